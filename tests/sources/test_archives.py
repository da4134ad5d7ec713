"""Archives: what they hold is what the folder held, whatever kind they are; and archives of strangers."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import shutil
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore import PackstoreError, convert, verify
from packstore.images.engine import scan_tar
from packstore.sources import Entry, open_source
from packstore.testing import SourceSuite
from tests.conftest import SharedData
from tests.internals import (
    CENTRAL,
    END,
    LOCAL,
    Progress,
    SampleError,
    SourceError,
    archives,
    progress_callback,
    read_first_names,
    read_tar,
    read_zip,
)
from tests.makers.annotated import fill
from tests.makers.images import encode, tiny
from tests.makers.layouts import tar, zipped, zstd
from tests.makers.sources import look, not_packed, prove, refused

FILES = {
    **{f"train/{label}/{n}.png": tiny(10 * n + len(label)) for label in ("cat", "dog bär") for n in range(3)},
    **{f"val/{label}/{n}.png": tiny(100 + 10 * n + len(label)) for label in ("cat", "dog bär") for n in range(2)},
    "README.md": b"text",
    "__MACOSX/._x.png": b"no image",
    ".DS_Store": b"nothing",
}


def tar_of_tars(files: dict[str, bytes]) -> bytes:
    """Each class of the training images a tar in a tar, as ILSVRC2012_img_train.tar."""
    classes: dict[str, dict[str, bytes]] = {}
    for name, data in files.items():
        label, _, file = name.rpartition("/")
        classes.setdefault(label, {})[file] = data
    return tar({f"{label}.tar": tar(inside) for label, inside in classes.items()})


KINDS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "tar": tar,
    "tar with ./": lambda files: tar(files, "./"),
    "tar, GNU": lambda files: tar(files, format=tarfile.GNU_FORMAT),
    "tar, ustar": lambda files: tar(files, format=tarfile.USTAR_FORMAT),
    "tar with a folder": lambda files: tar(files, "imagenet/set/"),
    "tar, last first": lambda files: tar(dict(reversed(files.items()))),
    "tar.gz": lambda files: gzip.compress(tar(files)),
    "tar.gz of two parts": lambda files: gzip.compress(tar(files)[:5000]) + gzip.compress(tar(files)[5000:]),
    "tar.bz2": lambda files: bz2.compress(tar(files)),
    "tar.xz": lambda files: lzma.compress(tar(files)),
    "tar.zst": lambda files: zstd(tar(files)),
    "zip": zipped,
    "zip, deflated": lambda files: zipped(files, method=zipfile.ZIP_DEFLATED),
    "zip with a folder": lambda files: zipped(files, "set/"),
    "zip behind other bytes": lambda files: b"PK\x03\x04" + zipped(files)[4:],
}


class _Archive(SourceSuite):
    """An image folder in an archive."""

    kind = "imagefolder"
    write: ClassVar[Callable[[dict[str, bytes]], bytes]]
    bytes_per_sample = 200
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        names = [f"{('train', 'val', 'train')[n % 3]}/{n // 3 % 4 + n // 400 * 4}/{n}ä.png" for n in range(samples)]
        path = folder / "set.archive"
        path.write_bytes(type(self).write({name: tiny(n) for n, name in enumerate(names)}))
        return path

    def change(self, path: Path) -> None:
        path.write_bytes(path.read_bytes())


class TestTar(_Archive):
    write = staticmethod(tar)


class TestCompressedTar(_Archive):
    write = staticmethod(lambda files: gzip.compress(tar(files), 1))


class TestZip(_Archive):
    write = staticmethod(zipped)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_is_its_folder(kind: str, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(KINDS[kind](FILES))
    folder = fill(tmp_path / "folder", FILES)
    expected = convert(folder, tmp_path / "folder.h5").manifest
    manifest = convert(archive, tmp_path / "archive.h5").manifest
    assert manifest.dataset_digest == expected.dataset_digest
    assert manifest.origin.kind == "imagefolder"
    assert manifest.origin.ignored == expected.origin.ignored
    assert verify(tmp_path / "folder.h5", against=archive).problems == ()
    assert verify(tmp_path / "archive.h5", against=folder).problems == ()


def test_tars_in_a_tar_are_folders(tmp_path: Path) -> None:
    files = {name.removeprefix("train/"): data for name, data in FILES.items() if name.startswith("train/")}
    (tmp_path / "train.tar").write_bytes(tar_of_tars(files))
    expected = convert(fill(tmp_path / "train", files), tmp_path / "folder.h5").manifest
    manifest = convert(tmp_path / "train.tar", tmp_path / "archive.h5").manifest
    assert manifest.classes == ("cat", "dog bär")
    assert manifest.dataset_digest == expected.dataset_digest


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_images_alone_and_a_labels_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "photos"
    path.write_bytes(KINDS[kind]({f"photos/{n}.png": tiny(n) for n in range(4)}))
    with closing(open_source(path)) as source:
        assert source.kind == "flat"
        assert [entry.key for entry in source.entries()] == [f"{n}.png" for n in range(4)]
        stamp = source.stamp()
    path.write_bytes(KINDS[kind]({f"photos/{n}.png": tiny(n + 1) for n in range(4)}))
    with closing(open_source(path)) as source:  # its entries need not show that it was exchanged
        assert source.stamp() != stamp
    (tmp_path / "labels.csv").write_text("file,label\n2.png,a\n0.png,b\n")
    with closing(open_source(path, labels=tmp_path / "labels.csv")) as source:
        assert [(e.key, source.read(e).values["label"]) for e in source.entries()] == [("2.png", 0), ("0.png", 1)]
    (tmp_path / "labels.csv").write_text("file,label\n9.png,a\n")
    refused(SourceError, path, r"9\.png", labels=tmp_path / "labels.csv")


def test_annotations_in_an_archive_are_a_question(tmp_path: Path) -> None:
    files = {f"images/ant/{n}.png": tiny(n) for n in range(4)} | {"poses.mat": b"MATLAB 5.0"}
    (tmp_path / "a.zip").write_bytes(zipped(files))
    refused(PackstoreError, tmp_path / "a.zip", r"would be packed without what else is there: poses\.mat")


@pytest.mark.slow
def test_an_image_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    for kind, make in KINDS.items():
        (tmp_path / "a").write_bytes(make({"a/x.png": tiny(1), "b/y.dat": tiny(2), "b/z.png": tiny(3)}))
        with closing(open_source(tmp_path / "a")) as source:
            bad = [entry for entry in source.entries() if entry.key.endswith(".dat")]
            assert len(bad) == 1, kind
            with pytest.raises(SampleError, match="by its first bytes"):
                source.read(bad[0])


def test_links_in_a_tar(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("a/x.png")
        member.size = len(tiny(1))
        archive.addfile(member, io.BytesIO(tiny(1)))
        targets = {
            "a/hard.png": (tarfile.LNKTYPE, "a/x.png"),
            "b/soft.png": (tarfile.SYMTYPE, "../a/x.png"),
            "b/chain.png": (tarfile.SYMTYPE, "soft.png"),
            "b/out.png": (tarfile.SYMTYPE, "../../etc/passwd"),
            "b/absolute.png": (tarfile.SYMTYPE, "/etc/passwd"),
            "b/loop.png": (tarfile.SYMTYPE, "loop.png"),
            "b/fifo.png": (tarfile.FIFOTYPE, ""),
        }
        for name, (kind, target) in targets.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    (tmp_path / "a.tar").write_bytes(out.getvalue())
    read, bad = [], []
    with closing(open_source(tmp_path / "a.tar", kind="imagefolder")) as source:
        for entry in source.entries():
            try:
                data = source.read(entry)
            except SampleError:
                bad.append(entry.key)
                continue
            assert data == tiny(1)
            read.append(entry.key)
    assert read == ["a/hard.png", "a/x.png", "b/chain.png", "b/soft.png"]
    assert bad == ["b/absolute.png", "b/fifo.png", "b/loop.png", "b/out.png"]


@pytest.mark.parametrize("name", ["../x.png", "a/../../x.png", "a/.."])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_names_that_lead_out_are_refused(kind: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(KINDS[kind]({"a/x.png": tiny(0), name: tiny(1)}))
    refused(SourceError, tmp_path / "a", rf"a: {re.escape(name)} leads out of the archive")


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.xz", "tar.bz2", "tar.zst", "zip"])
@pytest.mark.parametrize("keep", [0.3, 0.7, 0.97])
def test_an_archive_that_is_cut_off(kind: str, keep: float, tmp_path: Path) -> None:
    data = KINDS[kind](FILES)
    (tmp_path / "a").write_bytes(data[: int(keep * len(data.rstrip(b"\0") if kind == "tar" else data))])
    caught = refused(SourceError, tmp_path / "a")
    assert str(tmp_path / "a") in str(caught)
    assert "\n" not in str(caught)


def test_a_zip_that_is_encrypted(tmp_path: Path) -> None:
    data = bytearray(zipped({"a/x.png": tiny(1), "b/y.png": tiny(2)}))
    at = data.rfind(b"PK\x01\x02")
    data[at + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    refused(SourceError, tmp_path / "a.zip", r"y\.png is encrypted")


@pytest.mark.slow
def test_every_changed_byte_of_an_image_in_a_zip_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    data = zipped({"a/x.png": tiny(1), "b/y.png": tiny(2)})
    start = data.index(tiny(2))
    for offset in range(len(tiny(2))):
        changed = bytearray(data)
        changed[start + offset] ^= 4
        path.write_bytes(changed)
        with closing(open_source(path)) as source:
            entry = list(source.entries())[1]
            with pytest.raises(SampleError, match="CRC-32"):
                source.read(entry)


@pytest.mark.slow
def test_a_bomb_in_a_zip_is_not_inflated(tmp_path: Path) -> None:
    data = zipped({"a/x.png": tiny(1), "b/y.png": bytes(50_000_000)}, method=zipfile.ZIP_DEFLATED)
    sizes = struct.pack("<L", 50_000_000)
    (tmp_path / "a.zip").write_bytes(data.replace(sizes, struct.pack("<L", 1000)))
    with pytest.raises(SampleError, match="1001 bytes"):
        look(tmp_path / "a.zip").read(1)


def test_a_compressed_tar_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar(FILES)))
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full stands for a full disk")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "w+b", 0))  # noqa: PTH123, SIM115
    refused(SourceError, tmp_path / "a.tar.gz", "TMPDIR")


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_real_images(kind: str, shared_data: SharedData, tmp_path: Path) -> None:
    folder = shared_data / "imagenet-600"
    files = {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}
    (tmp_path / "a").write_bytes(KINDS[kind](files))
    expected = convert(folder, tmp_path / "folder.lmdb").manifest
    assert convert(tmp_path / "a", tmp_path / "archive.lmdb").manifest.dataset_digest == expected.dataset_digest
    assert (tmp_path / "a").stat().st_size > 60_000_000


def test_an_entry_of_a_changed_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zipped({"a/x.png": tiny(1), "b/y.png": tiny(2)}))
    with closing(open_source(path)) as source:
        entry: Entry = list(source.entries())[1]
        stamp = source.stamp()
    path.write_bytes(zipped({"a/x.png": tiny(1), "b/z.png": tiny(2)}))
    with closing(open_source(path)) as source:
        assert source.stamp() != stamp
        with pytest.raises(SampleError, match="it has changed"):
            source.read(entry)


@pytest.mark.slow
def test_zeros_behind_a_compressed_tar(tmp_path: Path) -> None:
    """As tapes have them; and a terabyte of them, in a file with a hole."""
    path = tmp_path / "a.tar.gz"
    whole = tar(FILES)
    path.write_bytes(gzip.compress(whole[:3000]) + bytes(1_000_000) + gzip.compress(whole[3000:]) + bytes(700_000))
    assert look(path).records == 10
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    refused(SourceError, path, "more than 64 MiB of zeros")


def test_a_tar_in_a_tar_that_is_cut_or_broken_behind_another(tmp_path: Path) -> None:
    """What is before ends with zeros, as a whole archive does."""
    whole = tar_of_tars({"a/1.png": tiny(1), "b/2.png": tiny(2)})
    second = whole.index(b"b.tar\0")
    broken = bytearray(whole)
    broken[second + 100] ^= 1
    for data, said in ((whole[: second + 200], "it is cut off"), (bytes(broken), f"header at byte {second} is broken")):
        (tmp_path / "a.tar").write_bytes(data)
        not_packed(SourceError, tmp_path / "a.tar", tmp_path / "a.h5", said)


def test_only_headers_of_a_tar_are_read_to_know_what_it_is(tmp_path: Path) -> None:
    """A terabyte of no data, which nothing could read in time."""
    with (tmp_path / "a.tar").open("wb") as file:
        for name, data in (("r/a/1.png", tiny(1)), ("r/large.bin", None), ("r/b/2.png", tiny(2))):
            member = tarfile.TarInfo(name)
            member.size = 1 << 40 if data is None else len(data)
            file.write(member.tobuf())
            if data is None:
                file.seek(member.size, io.SEEK_CUR)
            else:
                file.write(data.ljust(-(-len(data) // 512) * 512, b"\0"))
        file.write(bytes(1024))
    assert convert(tmp_path / "a.tar", tmp_path / "a.h5").manifest.classes == ("a", "b")


def test_a_zip_of_windows_may_have_backslashes(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for n, name in enumerate(("set\\a\\1.png", "set\\b\\2.png")):
            member = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            member.create_system = 0
            archive.writestr(member, tiny(n))
    assert convert(tmp_path / "a.zip", tmp_path / "a.h5").manifest.classes == ("a", "b")
    with zipfile.ZipFile(tmp_path / "unix.zip", "w") as archive:  # where a backslash may be part of a name
        for n, name in enumerate(("a\\1.png", "b\\2.png", "c.png")):
            archive.writestr(name, tiny(n))
    assert look(tmp_path / "unix.zip").keys == ["a\\1.png", "b\\2.png", "c.png"]
    with zipfile.ZipFile(tmp_path / "unix.zip", "a") as archive:
        archive.writestr("d/3.png", tiny(3))
    assert convert(tmp_path / "unix.zip", tmp_path / "unix.h5").manifest.classes == ("d",)


def _unmarked(tar_file: bytes) -> bytes:
    """A tar without the zeros at its end."""
    return tar_file.rstrip(b"\0").ljust(-(-len(tar_file.rstrip(b"\0")) // 512) * 512, b"\0")


PARTS = [tar({f"{label}/{n}.png": tiny(n) for n in range(5)}) for label in "abc"]
JOINED = {
    "cat": b"".join(PARTS),
    "cat of a tar without an end": _unmarked(PARTS[0]) + PARTS[1] + PARTS[2],
    "2 MiB of zeros between": PARTS[0] + bytes(2 << 20) + PARTS[1] + bytes((1 << 20) + 512) + PARTS[2],
    "an empty tar between": PARTS[0] + tar({}) + PARTS[1] + PARTS[2],
    "one block of zeros between": b"".join(_unmarked(part) + bytes(512) for part in PARTS) + bytes(512),
    "zeros before": bytes(1024) + b"".join(PARTS),
}


def _by_tarfile(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as archive:
        return sorted(member.name for member in archive if member.isfile())


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
@pytest.mark.parametrize("how", [how for how in JOINED if how != "zeros before"])
def test_tars_joined_by_cat_are_read_whole(suffix: str, how: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(gzip.compress(JOINED[how]) if suffix == "tar.gz" else JOINED[how])
    expected = _by_tarfile(JOINED[how])
    assert len(expected) == 15
    with closing(open_source(path)) as source:
        assert [entry.key for entry in source.entries()] == expected
        assert all(source.image(entry) == tiny(int(entry.key[2])) for entry in source.entries())


@pytest.mark.parametrize("how", JOINED)
def test_tars_in_a_tar_joined_by_cat_are_read_whole(how: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar({"1.tar": JOINED[how], "2.tar": PARTS[0]}))
    expected = [f"1/{name}" for name in _by_tarfile(JOINED[how])] + [f"2/{name}" for name in _by_tarfile(PARTS[0])]
    assert len(expected) == 20
    assert look(path).keys == expected


def test_webdataset_shards_joined_by_cat(tmp_path: Path) -> None:
    files = [{f"{n}.png": tiny(n), f"{n}.cls": b"%d" % (n % 2)} for n in range(10)]
    path = tmp_path / "x.tar"
    path.write_bytes(b"".join(tar({k: v for each in files[at : at + 5] for k, v in each.items()}) for at in (0, 5)))
    assert look(path).found == ("webdataset", 10)


@pytest.mark.parametrize(
    "junk", [b"junk" * 200, bytes(3 << 20) + b"junk" * 128, b"j"], ids=["at once", "far", "a byte"]
)
def test_what_is_no_tar_behind_a_tar_is_refused(junk: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(PARTS[0] + junk)
    refused(SourceError, tmp_path / "x.tar", r"the header at byte \d+ is broken|is cut off")


def test_a_tar_in_a_tar_does_not_read_on_beyond_its_end(tmp_path: Path) -> None:
    """Without zeros at its end, the next header is that of the outer tar."""
    (tmp_path / "x.tar").write_bytes(tar({"1.tar": _unmarked(PARTS[0]), "b/x.png": tiny(1)}))
    refused(SourceError, tmp_path / "x.tar", "it is cut off")


def _entry(name: str, kind: bytes, value: str | int) -> tuple[tarfile.TarInfo, bytes]:
    member, data = tarfile.TarInfo(name), tiny(value) if isinstance(value, int) else b""
    member.type, member.size, member.linkname = kind, len(data), value if isinstance(value, str) else ""
    return member, data


FILE, HARD, SOFT = tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE
LINKED: dict[str, list[tuple[str, bytes, str | int]]] = {
    "a link replaces a file": [("a/x.png", FILE, 1), ("a/y.png", FILE, 2), ("a/x.png", SOFT, "y.png")],
    "a hard link replaces a file": [("a/x.png", FILE, 1), ("a/y.png", FILE, 2), ("a/x.png", HARD, "a/y.png")],
    "a file replaces a link": [("a/y.png", FILE, 2), ("a/x.png", SOFT, "y.png"), ("a/x.png", FILE, 1)],
    "a hard link to what is replaced": [("a/x.png", FILE, 1), ("a/h.png", HARD, "a/x.png"), ("a/x.png", FILE, 2)],
    "a link to what is replaced": [("a/x.png", FILE, 1), ("a/s.png", SOFT, "x.png"), ("a/x.png", FILE, 2)],
    "a hard link to a link": [
        ("a/x.png", FILE, 1),
        ("a/s.png", SOFT, "x.png"),
        ("b/x.png", FILE, 2),
        ("b/h.png", HARD, "a/s.png"),
    ],
    "a chain of hard links": [
        ("a/x.png", FILE, 1),
        ("b/h.png", HARD, "a/x.png"),
        ("b/i.png", HARD, "b/h.png"),
        ("b/h.png", FILE, 3),
    ],
    "a link to what comes later": [("a/s.png", SOFT, "../b/x.png"), ("b/x.png", FILE, 1)],
    "a file twice": [("a/x.png", FILE, 1), ("a/x.png", FILE, 2)],
}


@pytest.mark.parametrize("case", LINKED)
def test_links_are_what_tar_makes_of_them(case: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for each in LINKED[case]:
            member, data = _entry(*each)
            archive.addfile(member, io.BytesIO(data))
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "x.tar", "-C", tmp_path / "out"], check=True)
    expected = {
        str(file.relative_to(tmp_path / "out")): file.read_bytes() for file in (tmp_path / "out").rglob("*.png")
    }
    with closing(open_source(tmp_path / "x.tar", kind="imagefolder")) as source:
        prefix = "" if (tmp_path / "out/b").exists() else "a/"  # a folder that is alone at the top is the root
        found = {f"{prefix}{entry.key}": source.image(entry) for entry in source.entries()}
    assert found == expected


def test_a_hard_link_to_what_comes_later_is_a_bad_sample(tmp_path: Path) -> None:
    """Unpacking it fails, too."""
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for each in (("a/h.png", HARD, "b/x.png"), ("b/x.png", FILE, 1)):
            member, data = _entry(*each)
            archive.addfile(member, io.BytesIO(data))
    report = convert(tmp_path / "x.tar", tmp_path / "o.h5", source_kind="imagefolder", on_error="skip")
    assert [bad.key for bad in report.skipped] == ["a/h.png"]


def test_files_that_are_replaced_are_counted(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar(FILES) + tar({name: data for name, data in FILES.items() if "cat" in name}))
    replaced = sum("cat" in name for name in FILES)
    report = convert(tmp_path / "x.tar", tmp_path / "x.h5")
    assert report.ledger.members == {"files replaced by later ones of the same name": replaced}


def test_links_in_webdataset_are_left_out_and_counted(tmp_path: Path) -> None:
    links = {"2.png": (HARD, "0.png"), "3.png": (SOFT, "0.png")}
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for n in range(6):
            member, data = _entry(f"{n}.png", *links.get(f"{n}.png", (FILE, n)))
            archive.addfile(member, io.BytesIO(data))
            label = tarfile.TarInfo(f"{n}.cls")
            label.size = 1
            archive.addfile(label, io.BytesIO(b"%d" % n))
        archive.addfile(tarfile.TarInfo(".hidden"))
    report = convert(tmp_path / "x.tar", tmp_path / "x.h5", on_error="skip", source_kind="webdataset")
    assert [bad.key for bad in report.skipped] == ["2", "3"]
    assert report.ledger.members == {"members that are links or devices": 2, "hidden members": 1}


SPELLED = {
    "a slash twice": ("a/x.png", "a//x.png"),
    "a dot": ("b/y.png", "./b/y.png"),
    "a dot within": ("b/y.png", "b/./y.png"),
    "a slash before": ("b/y.png", "/b/y.png"),
    "dots before": ("./b/y.png", "././b/y.png"),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("case", SPELLED)
@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_two_spellings_of_a_name_are_one_path(kind: str, case: str, swapped: bool, tmp_path: Path) -> None:
    first, second = reversed(SPELLED[case]) if swapped else SPELLED[case]
    (tmp_path / "x").write_bytes(KINDS[kind]({"c/z.png": tiny(0), first: tiny(1), second: tiny(2)}))
    report = convert(tmp_path / "x", tmp_path / "x.h5")
    assert report.ledger.members == {"files replaced by later ones of the same name": 1}
    with packstore.open(tmp_path / "x.h5") as store:
        assert tiny(2) in [bytes(store.read(n)) for n in range(len(store))]


def test_two_spellings_in_a_tar_in_a_tar(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar({"a.tar": tar({"x.png": tiny(1)}, "./"), "b.tar": tar({"x.png": tiny(2)})}))
    assert look(tmp_path / "x.tar").keys == ["a/x.png", "b/x.png"]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for part in PARTS[:2]:
            member = tarfile.TarInfo("a.tar")
            member.size = len(part)
            archive.addfile(member, io.BytesIO(part))
    (tmp_path / "x.tar").write_bytes(out.getvalue())
    refused(SourceError, tmp_path / "x.tar", r"a\.tar is there twice")


def _zip_of(count: int, said: int | None = None) -> bytes:
    """A zip of so many empty files, by a program that knows no zip64."""
    local, central = bytearray(), bytearray()
    for n in range(count):
        name = f"{n % 2}/{n}.png".encode()
        central += CENTRAL.pack(b"PK\1\2", 20, 20, *[0] * 7, len(name), *[0] * 5, len(local)) + name
        local += LOCAL.pack(b"PK\3\4", 20, *[0] * 7, len(name), 0) + name
    number = (count if said is None else said) & 0xFFFF
    return bytes(local + central) + END.pack(b"PK\5\6", 0, 0, number, number, len(central), len(local), 0)


MANY = {f"{n // 20}/{n}.png": tiny(n % 7) for n in range(100)}
MANY_TARS: dict[str, Callable[[], bytes]] = {
    "plain": lambda: tar(MANY),
    "GNU": lambda: tar(MANY, format=tarfile.GNU_FORMAT),
    "with ./": lambda: tar(MANY, "./"),
    "some with ./": lambda: tar({("./" if n > 50 else "") + name: data for n, (name, data) in enumerate(MANY.items())}),
    "./ first": lambda: tar({("./" if n < 50 else "") + name: data for n, (name, data) in enumerate(MANY.items())}),
    "empty parts": lambda: tar({name.replace("/70", "//70"): data for name, data in MANY.items()}),
    "leads out": lambda: tar({**MANY, "../x.png": tiny(0)}),
    "long names": lambda: tar({name.replace("70", 100 * "7"): data for name, data in MANY.items()}),
    "not UTF-8": lambda: tar({name.replace(".", "\udcff."): data for name, data in MANY.items()}),
    "repeated": lambda: tar(MANY) + tar(dict(list(MANY.items())[:30])),
    "tars": lambda: tar({**MANY, "a.tar": tar(MANY), "b.tar": tar(MANY, "./"), "c.png": tiny(1)}),
    "broken": lambda: tar(MANY).replace(b"3/70.png", b"3/71.png", 1),
    "cut off": lambda: tar(MANY)[:50_000],
    "cut off in a header": lambda: tar(MANY)[:51_300],
}


@pytest.mark.slow
def test_headers_that_the_engine_reads_are_those_of_tarfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> Any:
        try:
            index = read_tar(tmp_path / "a", "latin-1")
        except SourceError as error:
            return str(error)
        return index.blob, index.ends, index.table.tolist(), index.replaced

    for case, make in MANY_TARS.items():
        (tmp_path / "a").write_bytes(make())
        scan = Mock(wraps=scan_tar)
        monkeypatch.setattr(archives.tar, "scan_tar", scan)
        found = read()
        assert scan.called
        monkeypatch.setattr(archives.tar, "scan_tar", lambda *_: ([], np.empty((0, 3), np.int64)))
        assert found == read(), case
        assert isinstance(found, str) is (case in ("leads out", "broken", "cut off", "cut off in a header")), case


@pytest.mark.slow
@pytest.mark.parametrize("count", [65_534, 65_535, 65_536, 66_000, 2 * 65_536 + 1])
def test_a_zip_of_more_files_than_it_can_count(count: int, tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(_zip_of(count))
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == count
    if shutil.which("unzip"):
        listed = subprocess.run(["unzip", "-Z1", path], check=True, capture_output=True)
        assert len(listed.stdout.splitlines()) == count
    assert len(read_zip(path)) == count


@pytest.mark.parametrize("said", [0, 3, 5, 7, 12])
def test_a_zip_that_counts_wrongly_is_refused(said: int, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(_zip_of(6, said))
    refused(SourceError, tmp_path / "x.zip", f"directory holds 6 entries, and counts {said}")


def test_a_zip_with_zip64_counts_exactly(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for n in range(6):
            archive.writestr(f"{n % 2}/{n}.png", tiny(n))
    data, size = (tmp_path / "x.zip").read_bytes(), END.size
    *_, nbytes, start, _ = END.unpack(data[-size:])
    for said in (6, 3):
        end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, said, said, nbytes, start)
        locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(data) - size, 1)
        (tmp_path / "x.zip").write_bytes(data[:-size] + end64 + locator + data[-size:])
        if said == 6:
            assert len(read_zip(tmp_path / "x.zip")) == 6
            continue
        with pytest.raises(SourceError, match=f"directory holds 6 entries, and counts {said:,}"):
            read_zip(tmp_path / "x.zip")


def test_zips_joined_by_cat_are_refused(tmp_path: Path) -> None:
    """The directory of the last is where that of the first lies, whose files alone were read."""
    parts = [zipped({"a/x.png": tiny(n), "b/y.png": tiny(n + 1)}) for n in (1, 3)]
    (tmp_path / "x.zip").write_bytes(b"".join(parts))
    refused(SourceError, tmp_path / "x.zip", "or joined with another file")


@pytest.mark.slow
@pytest.mark.parametrize("contents", ["folder", "webdataset"])
@pytest.mark.parametrize("kind", ["tar.gz", "tar.xz", "tar.bz2", "tar.zst"])
def test_the_progress_of_unpacking_is_reported(kind: str, contents: str, tmp_path: Path) -> None:
    def make_noise() -> bytes:
        return encode(Image.fromarray(generator.integers(0, 256, (300, 300, 3), np.uint8)), "PNG")

    generator = np.random.default_rng(0)
    names = ("a/{}", "b/{}") if contents == "folder" else ("{}",)
    files = {f"{name.format(n)}.png": make_noise() for n in range(10) for name in names}
    files |= {f"{n}.cls": b"1" for n in range(10 * (contents == "webdataset"))}
    archive = tmp_path / f"set.{kind}"
    archive.write_bytes(KINDS[kind](dict(sorted(files.items()))))
    reports: list[Progress] = []
    convert(archive, tmp_path / "x.lmdb", progress=reports.append)
    unpacking = [each for each in reports if each.stage == "unpack"]
    assert reports[0].stage == "unpack"
    assert {(each.total, each.unit) for each in unpacking} == {(archive.stat().st_size, "B")}
    assert unpacking[-1].done == archive.stat().st_size
    assert all(0 < each.done <= archive.stat().st_size for each in unpacking)
    assert {each.unit for each in reports if each.stage != "unpack"} == {"images"}
    reports.clear()
    look(archive)
    assert not reports  # they belong to the call of convert


def test_the_bar_of_unpacking_counts_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_callback(True) as report:
        report(Progress("unpack", 1_000_000, 3_000_000, 7_000_000, "B"))
        report(Progress("scan", 7, 7, 0))
    unpacking, _, scanning = capsys.readouterr().err.partition("scan")
    assert "unpack" in unpacking
    assert "3.00M" in unpacking
    assert "B/s" in unpacking
    assert "images" not in unpacking
    assert "images/s" in scanning


@pytest.mark.parametrize("digits", [15, 400])
def test_a_member_longer_than_a_compressed_tar_ends_the_search_for_names(digits: int, tmp_path: Path) -> None:
    member = tarfile.TarInfo("a.png")
    member.pax_headers = {"size": "9" * digits}
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as out:
        out.addfile(member)
    assert read_first_names(path, 1) == read_first_names(path, 2) == ["a.png"]


def test_hidden_files_beside_the_root_are_counted(tmp_path: Path) -> None:
    """As in zips of macOS; ``verify`` counts them on its own."""
    files = {f"set/{label}/{label}{n}.png": tiny(n + ord(label)) for label in "ab" for n in range(3)}
    (tmp_path / "x.zip").write_bytes(zipped(files | {"__MACOSX/set/._x": b"1", ".DS_Store": b"1"}))
    report = prove(tmp_path / "x.zip", tmp_path / "x.h5")
    assert report.ledger.left == {"hidden": 1, "system files": 1}
