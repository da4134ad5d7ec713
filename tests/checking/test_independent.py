"""Independent counts are those that the data were made with, and those of the ledger."""

from __future__ import annotations

import gzip
import importlib
import io
import lzma
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packstore.sources import open_source
from tests.internals import SourceError, against, convert, count_independently, suffix_for_count, suffix_of, verify
from tests.makers.images import tiny

NAMES = [
    *("a/1.png", "a/2.PNG", "a/.hidden", "b/3.png", "b/3.txt", "b/no suffix", "LICENSE"),
    *("a/deep/er/x.tar.gz", "v1.0"),
]
COUNTS = {".png": 3, ".txt": 1, ".gz": 1, "": 4}


def tar(names: list[str], inside: dict[str, bytes] | None = None) -> bytes:
    out = io.BytesIO()
    files = {**{name: tiny(n) if ".p" in name.lower() else b"x" for n, name in enumerate(names)}, **(inside or {})}
    with tarfile.open(fileobj=out, mode="w") as archive:
        folder = tarfile.TarInfo("a")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def zipped(names: list[str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a/", b"")
        for n, name in enumerate(names):
            archive.writestr(name, tiny(n) if ".p" in name.lower() else b"x")
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    compressed: bytes = importlib.import_module("zstandard").ZstdCompressor().compress(data)
    return compressed


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "zip": lambda: zipped(NAMES),
    "tar": lambda: tar(NAMES),
    "tar.gz": lambda: gzip.compress(tar(NAMES)),
    "tar.xz": lambda: lzma.compress(tar(NAMES)),
    "tar.zst": lambda: zstd(tar(NAMES)),
    "cat": lambda: tar(NAMES[:4]) + bytes(2 << 20) + tar(NAMES[4:]),
    "a name twice": lambda: tar(NAMES) + tar(NAMES[:3]),
    "other spellings": lambda: tar(NAMES) + tar([f"./{name}" for name in NAMES]),
    "tars in a tar": lambda: tar(["LICENSE"], {"t.tar": tar(NAMES[:3]), "u.tar": tar(NAMES[3:6]) + tar(NAMES[7:])}),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_entries_of_archives(kind: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(ARCHIVES[kind]())
    assert count_independently(tmp_path / "x") == COUNTS


@pytest.mark.parametrize("kind", ["folder", *(kind for kind in ARCHIVES if kind != "other spellings")])
def test_the_ledger_counts_the_same(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if kind == "folder":
        for n, name in enumerate(NAMES):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(tiny(n) if ".p" in name.lower() else b"x")
    else:
        path.write_bytes(ARCHIVES[kind]())
    with closing(open_source(path, kind="imagefolder")) as source:
        assert source.survey().ledger.suffixes == count_independently(path) == COUNTS


def test_files_behind_links(tmp_path: Path) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "far").mkdir()
    for place in ("set/a/1.png", "far/2.png", "far/3.txt"):
        (tmp_path / place).write_bytes(tiny(1))
    (tmp_path / "set" / "far").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "loop").symlink_to(tmp_path / "set" / "far")
    (tmp_path / "set" / "a" / "above").symlink_to(tmp_path)
    (tmp_path / "set" / "gone.png").symlink_to(tmp_path / "nothing")
    assert count_independently(tmp_path / "set") == {".png": 3, ".txt": 1}


def test_rows_of_tables_and_arrays(tmp_path: Path) -> None:
    for n in range(3):
        pq.write_table(pa.table({"x": list(range(10 + n))}), tmp_path / f"{n}.parquet")
        with h5py.File(tmp_path / f"{n}.h5", "w") as file:
            file["images"] = np.zeros((5 + n, 2, 2), np.uint8)
            file["deep/labels"] = np.zeros(5 + n)
            file["scalar"] = 1
    (tmp_path / "README.md").write_text("text")
    found = {".parquet": 3, ".h5": 3, ".md": 1, "rows": 33, "rows:images": 18, "rows:deep/labels": 18}
    assert count_independently(tmp_path) == found
    assert count_independently(tmp_path / "1.h5") == {".h5": 1, "rows:images": 6, "rows:deep/labels": 6}
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    assert count_independently(tmp_path / "a.npz") == {".npz": 1}
    assert count_independently(tmp_path / "1.parquet") == {".parquet": 1, "rows": 11}


def test_verify_says_that_the_counts_agree_only_if_they_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    for n in range(3):
        (tmp_path / "set" / f"{n}.png").write_bytes(tiny(n))
    convert(tmp_path / "set", tmp_path / "a.lmdb")
    report = verify(tmp_path / "a.lmdb", against=tmp_path / "set")
    assert report.ok
    assert report.checks[-1] == "3 files in the source, 0 of them left out; an independent count agrees"
    monkeypatch.setattr(against, "count_independently", lambda _: {".png": 4})
    report = verify(tmp_path / "a.lmdb", against=tmp_path / "set")
    assert report.differences == 1
    assert report.checks[-1] == "3 files in the source, 0 of them left out"


@pytest.mark.parametrize("kind", ["tar.gz", "tar.xz", "zip", "a.parquet", "a.h5"])
def test_what_a_library_cannot_read_is_an_error(kind: str, tmp_path: Path) -> None:
    data = ARCHIVES[kind]() if kind in ARCHIVES else b"junk" * 200
    data = data.rstrip(b"\0")[:-200]
    if kind == "zip":
        data = zipped(NAMES).replace(b"PK\1\2", b"PK\1\7")
    path = tmp_path / (kind if "." in kind and kind not in ARCHIVES else "x")
    path.write_bytes(data)
    with pytest.raises(SourceError, match="cannot be counted"):
        count_independently(path)


@pytest.mark.parametrize(
    "name", ["a.png", "A.JPG", ".hidden", "none", "v1.0", "x.abcdefghijkl", "x.abcdefghijklm", "a."]
)
def test_suffixes_are_those_of_the_ledger(name: str) -> None:
    assert suffix_of(name) == suffix_for_count(name)


@pytest.mark.slow
def test_a_long_tar_takes_little_memory(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for n in range(5_000):
            archive.addfile(tarfile.TarInfo(f"{n % 10}/{n}.png"))
            archive.members = []  # type: ignore[attr-defined]
    count_independently(tmp_path / "x.tar")
    tracemalloc.start()
    assert count_independently(tmp_path / "x.tar") == {".png": 5_000}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000
