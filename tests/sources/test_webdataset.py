"""WebDataset's shards: what their own library wrote, and what can be wrong with them.

``tests/corpus/webdataset`` was written by webdataset 1.0.2: ``TarWriter`` with four samples of ``png``, ``cls``,
``json``, ``seg.png``, ``emb.npy`` and ``txt`` (the third has none), then ``gzip``.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore import PackedDataset, convert, verify
from packstore.core.errors import AmbiguousSourceError, Answer, PackstoreError, SampleError, SourceError
from packstore.sources import Entry, open_source
from packstore.sources.ledger import Role
from packstore.testing import SourceSuite
from tests.makers.images import tiny

WRITTEN = Path(__file__).parents[1] / "corpus" / "webdataset"


def shard(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1_700_000_000
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def files(numbers: range, folder: str = "") -> dict[str, bytes]:
    found = {}
    for n in numbers:
        found |= {f"{folder}{n:04}.png": tiny(n), f"{folder}{n:04}.cls": b"%d\n" % (n % 3)}
    return found


class TestWebDataset(SourceSuite):
    kind = "webdataset"
    bytes_per_sample = 400
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        (folder / "a-train-0.tar").write_bytes(shard(files(range(samples // 2))))
        (folder / "a-train-1.tar").write_bytes(shard(files(range(samples // 2, samples - 2))))
        (folder / "a-val-0.tar").write_bytes(shard(files(range(samples - 2, samples))))
        return folder

    def change(self, path: Path) -> None:
        (path / "a-val-0.tar").write_bytes((path / "a-val-0.tar").read_bytes())

    def spoil(self, path: Path, entry: Entry) -> bool:
        shard, files = entry.ref
        with (path / f"a-train-{shard}.tar").open("r+b") as tar:
            tar.seek(next(place for extension, place, *_ in files if extension == "cls"))
            tar.write(b"x")
        return True


@pytest.mark.parametrize("suffix", [".lmdb", ".h5", ".pth"])
def test_what_the_library_wrote(suffix: str, tmp_path: Path) -> None:
    with closing(open_source(WRITTEN)) as source:
        assert source.kind == "webdataset"
    path = tmp_path / f"out{suffix}"
    convert(WRITTEN, path, encoding="original")
    names = ("key", "label", "text", "json", "emb", "seg")
    ds = PackedDataset(path, "train", columns=(*names, "image"), output="bytes")
    assert len(ds) == 4
    for n in range(4):
        key, label, text, document, vector, other, image = ds[n]
        assert (key, label) == (f"sample{n:03}", n % 2)
        assert text == (None if n == 2 else f"caption {n} ä")
        assert document == {"n": n, "name": "ä"}
        assert np.array_equal(vector, np.arange(3, dtype=np.float32) + n)
        assert (bytes(image), bytes(other)) == (tiny(n), tiny(100 + n))
    assert verify(path, against=WRITTEN).problems == ()


def test_classes_beside_the_shards_and_a_shard_alone(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(shard(files(range(6))))
    (tmp_path / "classnames.txt").write_text("ant\nbee\ncat\n")
    manifest = convert(tmp_path / "0.tar", tmp_path / "x.h5").manifest
    assert manifest.origin.kind == "webdataset"
    assert manifest.classes == ("ant", "bee", "cat")
    assert manifest.splits == ()
    with closing(open_source(tmp_path)) as source:
        assert [*source.survey().ledger.names(Role.EVIDENCE)] == ["classnames.txt"]


def test_names_of_classes_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "0.tar").write_bytes(shard(files(range(6))))
    (tmp_path / "classnames.txt").write_text("crane\nbee\ncrane\n")
    assert convert(tmp_path / "0.tar", tmp_path / "x.h5").manifest.classes is None
    assert "names 'crane' twice: classes are packed as numbers alone" in caplog.text
    (tmp_path / "classnames.txt").write_bytes(b"caf\xe9\nbee\ncat\n")
    with pytest.raises(SourceError, match=r"classnames\.txt cannot be read"):
        convert(tmp_path / "0.tar", tmp_path / "y.h5")


def test_what_img2dataset_writes_beside_the_shards(tmp_path: Path) -> None:
    """Of its version 1.47: a table and statistics a shard; ``_info.json`` is webdataset's own."""
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(2):
        members = {}
        for n in range(3):
            key = f"{number:05}{n:04}"
            members |= {f"{key}.png": tiny(10 * number + n), f"{key}.txt": b"a cat", f"{key}.json": b'{"url": "x"}'}
        (folder / f"{number:05}.tar").write_bytes(shard(members))
        (folder / f"{number:05}.parquet").write_bytes(b"PAR1 and so on PAR1")
        (folder / f"{number:05}_stats.json").write_text('{"count": 3}')
    (folder / "_info.json").write_text("{}")
    report = convert(folder, tmp_path / "x.h5")
    assert (report.manifest.origin.kind, report.manifest.records) == ("webdataset", 6)
    assert report.ledger.passed_over == {"not images (.parquet)": 2, "not images (.json)": 3}


def test_folders_are_splits(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    for number, split in enumerate(("val", "train")):
        (folder / split).mkdir(parents=True)
        (folder / split / "000.tar.gz").write_bytes(gzip.compress(shard(files(range(4 * number, 4 * number + 4)))))
    report = convert(folder, tmp_path / "x.h5")
    assert [split.name for split in report.manifest.splits] == ["train", "val"]


def test_the_key_ends_at_the_first_dot_of_the_name(tmp_path: Path) -> None:
    names = {"./a.b/22.05.png": tiny(1), "./a.b/22.05.cls": b"1", "./a.b/23.png": tiny(2), "./a.b/23.cls": b"0"}
    (tmp_path / "x.tar").write_bytes(shard(names))
    with closing(open_source(tmp_path / "x.tar", kind="webdataset")) as source:
        assert [entry.key for entry in source.entries()] == ["a.b/22", "a.b/23"]
        with pytest.raises(SampleError, match="image"):
            source.read(next(source.entries()))  # its image is called 05.png


def test_class_folders_with_captions_are_not_taken_for_shards(tmp_path: Path) -> None:
    names = {f"{label}/{n}.{kind}": tiny(n) for label in "ab" for n in range(3) for kind in ("png", "txt")}
    (tmp_path / "x.tar").write_bytes(shard(names))
    with pytest.raises(PackstoreError, match="holds more than images"):
        open_source(tmp_path / "x.tar")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"0001.cls": b"cat"}, r"\.cls holds 'cat'; expected a number"),
        ({"0001.png": None}, "has no image"),
        ({"0001.json": b"{"}, "json|Expecting"),
        ({"0001.txt": b"\xff"}, "utf-8"),
        ({"0001.v.npy": b"no array"}, "."),
        ({"0001.v.npy": b""}, "."),
        ({"0001.v.npy": b"PK\x03\x04 no array either"}, "."),
        ({"0001.v.npy": b"\x93NUMPY\x01\x00\x04\x00{'a("}, "."),
        (
            {
                "0001.v.npy": b"\x93NUMPY\x01\x00\x40\x00"
                + b"{'descr':'<f8','fortran_order':False,'shape':(%d,)}" % 10**18
            },
            ".",
        ),
    ],
)
def test_a_bad_sample_is_named(change: dict[str, bytes | None], said: str, tmp_path: Path) -> None:
    names: dict[str, bytes] = {}
    vector = io.BytesIO()
    np.save(vector, np.zeros(2))
    for n in range(20, 0, -1):
        names |= files(range(n, n + 1)) | {
            f"{n:04}.json": b"1",
            f"{n:04}.txt": b"t",
            f"{n:04}.v.npy": vector.getvalue(),
        }
    for name, data in change.items():
        if data is None:
            del names[name]
        else:
            names[name] = data
    (tmp_path / "x.tar").write_bytes(shard(names))
    with pytest.raises(SampleError, match=said) as caught:
        convert(tmp_path / "x.tar", tmp_path / "x.h5")
    assert caught.value.key == "0001"
    report = convert(tmp_path / "x.tar", tmp_path / "x.h5", on_error="skip")
    assert [skipped.key for skipped in report.manifest.skipped] == ["0001"]
    assert report.manifest.records == 19


def test_pickles_are_refused_and_never_run(tmp_path: Path) -> None:
    names = files(range(3)) | {"0002.pyd": b"cos\nsystem\n(S'touch ran'\ntR."}
    (tmp_path / "x.tar").write_bytes(shard(names))
    with pytest.raises(SourceError, match="does not run"):
        convert(tmp_path / "x.tar", tmp_path / "x.h5")


def test_a_key_that_comes_again_is_named(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    start = shard(files(range(2))).rstrip(b"\0")
    (tmp_path / "set/0.tar").write_bytes(start + bytes(-len(start) % 512) + shard(files(range(1))))
    with pytest.raises(PackstoreError, match="the same key '0000'"):
        convert(tmp_path / "set", tmp_path / "x.h5")


def test_members_of_a_sample_that_are_apart(tmp_path: Path) -> None:
    names = files(range(4))
    apart = {name: names[name] for name in sorted(names, key=lambda name: name.endswith("cls"))}
    (tmp_path / "x.tar").write_bytes(shard(apart))
    with pytest.raises(PackstoreError):
        convert(tmp_path / "x.tar", tmp_path / "x.h5", source_kind="webdataset")


def test_a_shard_without_a_split_among_others(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name in ("train-0.tar", "rest-0.tar"):
        (tmp_path / "set" / name).write_bytes(shard(files(range(3))))
    with pytest.raises(SourceError, match=r"rest-0\.tar: its name has no split"):
        convert(tmp_path / "set", tmp_path / "x.h5")


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 4))
def test_damaged_shards_are_errors_or_bad_samples(
    tmp_path_factory: pytest.TempPathFactory, seed: int, changes: int
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.tar"
    data, draw = bytearray(gzip.decompress((WRITTEN / "set-train-000000.tar.gz").read_bytes())), random.Random(seed)
    for _ in range(changes):
        data[draw.randrange(len(data))] = draw.choice([0, 255, draw.randrange(256)])
    path.write_bytes(data)
    said = ""
    try:
        with closing(open_source(path, kind="webdataset")) as source:
            source.survey()
            for entry in source.entries():
                with suppress(SampleError):
                    json.dumps(str(source.read(entry)))
    except PackstoreError as error:
        said = str(error)
    assert said.isprintable()


def test_two_images_of_a_sample_are_two_columns(tmp_path: Path) -> None:
    two = {f"{n}.{suffix}": tiny(10 * n + k) for n in range(3) for k, suffix in enumerate(("jpg", "png", "image"))}
    (tmp_path / "a.tar").write_bytes(shard(two))
    convert(tmp_path / "a.tar", tmp_path / "a.lmdb", source_kind="webdataset", on_error="raise")
    ds = PackedDataset(tmp_path / "a.lmdb", columns=("image", "png", "image_"), output="bytes")
    assert [tuple(map(bytes, item)) for item in ds] == [tuple(tiny(10 * n + k) for k in range(3)) for n in range(3)]


def test_a_file_that_is_there_twice(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for member, data in [*files(range(2)).items(), ("0001.cls", b"7")]:
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(SampleError, match="cls is there twice"):
        convert(tmp_path / "a.tar", tmp_path / "a.lmdb")


@pytest.mark.parametrize(
    "header", [b"{'descr': '<f8', 'fortran_order': False, 'shape': (1", b"(" * 118, b"{'descr': 5}"]
)
def test_an_array_whose_header_is_damaged(header: bytes, tmp_path: Path) -> None:
    data = b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n"
    (tmp_path / "a.tar").write_bytes(shard({"0.png": tiny(0), "0.npy": data, "1.png": tiny(1)}))
    with pytest.raises(SampleError, match=r"npy|header|descr"):
        convert(tmp_path / "a.tar", tmp_path / "a.lmdb", source_kind="webdataset")


def test_an_array_that_claims_to_be_larger_than_the_memory(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(117) + b"\n"
    claims = {f"{n}.npy": b"\x93NUMPY\x01\x00v\x00" + header for n in range(2)}
    (tmp_path / "a.tar").write_bytes(shard({**claims, **{f"{n}.png": tiny(n) for n in range(2)}}))
    with pytest.raises(SampleError, match="npy claims to be larger than the memory"):
        convert(tmp_path / "a.tar", tmp_path / "a.lmdb", source_kind="webdataset")


@pytest.mark.parametrize("numbered", [True, False])
def test_shards_of_images_alone_are_a_question_where_they_are_numbered(numbered: bool, tmp_path: Path) -> None:
    for n in range(2):
        name = f"shard-{n:06}.tar" if numbered else f"n0144076{n}.tar"
        (tmp_path / name).write_bytes(shard({f"{n}{k}.png": tiny(10 * n + k) for k in range(3)}))
    with pytest.raises(AmbiguousSourceError) as caught:
        open_source(tmp_path)
    assert (Answer(("--source", "webdataset")) in caught.value.answers) is numbered
    with closing(open_source(tmp_path, kind="webdataset")) as source:
        assert source.survey().records == 6


def test_a_first_shard_that_is_cut_off_is_named(tmp_path: Path) -> None:
    data = shard(files(range(4)))
    (tmp_path / "a-000000.tar").write_bytes(data[:2000])
    with pytest.raises(SourceError, match=r"a-000000\.tar is not a readable tar, or it is damaged"):
        open_source(tmp_path).survey()


def test_a_sample_without_an_image_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard({"0.png": tiny(0), "0.cls": b"1", "1.cls": b"1"}))
    with closing(open_source(tmp_path / "a.tar")) as source:
        _, lacking = source.entries()
        with pytest.raises(SampleError, match="1: has no image"):
            source.read(lacking)


def test_labels_of_keys_with_folders_are_not_those_of_folders(tmp_path: Path) -> None:
    """As packstore writes image folders, here without its ``packstore.json``."""
    data = {}
    for n in range(3):
        data |= {f"n0{n}/{n}.png": tiny(n), f"n0{n}/{n}.cls": b"%d" % (5 - n)}
    (tmp_path / "val-000000.tar").write_bytes(shard(data))
    for path in (tmp_path, tmp_path / "val-000000.tar"):
        with closing(open_source(path)) as source:
            assert source.kind == "webdataset"
            assert [source.read(entry).values["label"] for entry in source.entries()] == [5, 4, 3]  # type: ignore[union-attr]


def numbered(counts: list[int], first: int = 0, name: str = "", main: bool = False) -> dict[str, bytes]:
    """Samples with so many images, ``0001.0.png``, the last ones first; with ``main`` another one beside."""
    found: dict[str, bytes] = {}
    for n, count in enumerate(counts):
        found |= {f"{n:04}.png": tiny(100 + n)} if main else {}
        found |= {f"{n:04}.{name}{first + k}.png": tiny(10 * n + k) for k in reversed(range(count))}
        found |= {f"{n:04}.cls": b"%d" % (n % 2)}
    return found


def images_of(root: Path, further: str) -> list[tuple[bytes, list[bytes]]]:
    with closing(open_source(root)) as source:
        names = {column.name: column.type for column in source.survey().columns}
        assert names[further] == "images"
        samples = [source.read(entry) for entry in source.entries()]
        return [(bytes(each.image), [*map(bytes, each.values[further])]) for each in samples]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("counts", [[1, 3, 2], [12, 1, 2], [2, 2, 2, 3]])
def test_numbered_images_of_different_counts_are_a_list(first: int, counts: list[int], tmp_path: Path) -> None:
    """The first is the image, as in conversations."""
    (tmp_path / "a.tar").write_bytes(shard(numbered(counts, first)))
    expected = [[tiny(10 * n + k) for k in range(count)] for n, count in enumerate(counts)]
    assert images_of(tmp_path, "further_images") == [(each[0], each[1:]) for each in expected]
    convert(tmp_path, tmp_path.parent / f"{tmp_path.name}.lmdb")
    assert verify(tmp_path.parent / f"{tmp_path.name}.lmdb", against=tmp_path).problems == ()


@pytest.mark.parametrize("name", ["", "view."])
def test_numbered_images_beside_another_are_its_list(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard(numbered([0, 3, 1], 0, name, main=True)))
    expected = [(tiny(100 + n), [tiny(10 * n + k) for k in range(count)]) for n, count in enumerate((0, 3, 1))]
    assert images_of(tmp_path, "view" if name else "further_images") == expected


def test_a_named_list_alone_gives_its_first_image(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard(numbered([2, 1, 4], 0, "view.")))
    assert [len(rest) for _, rest in images_of(tmp_path, "further_view")] == [1, 0, 3]


@pytest.mark.parametrize(
    "files",
    [
        numbered([2, 2, 2]),  # the same number everywhere
        {**numbered([1, 3, 3]), "0009.0.png": tiny(1), "0009.2.png": tiny(2)},  # a gap
        {**numbered([1, 3, 3]), "0009.1.png": tiny(1)},
        {**numbered([1, 3, 3]), "0009.0.png": tiny(1), "0009.0.jpg": tiny(2)},
    ],
)
def test_other_numbered_images_are_columns(files: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard(files))
    with closing(open_source(tmp_path)) as source:
        assert "images" not in {column.type for column in source.survey().columns}
