"""WebDataset's shards: what their own library wrote, and what can be wrong with them.

``tests/corpus/webdataset`` was written by webdataset 1.0.2: ``TarWriter`` with four samples of ``png``, ``cls``,
``json``, ``seg.png``, ``emb.npy`` and ``txt`` (the third has none), then ``gzip``.
"""

from __future__ import annotations

import gzip
import random
from contextlib import closing
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import Entry, open_source
from packstore.testing import SourceSuite
from tests.internals import AmbiguousSourceError, Answer, PackstoreError, Role, SampleError, SourceError
from tests.makers.annotated import fill, jpeg
from tests.makers.images import npy, tiny
from tests.makers.layouts import tar as shard
from tests.makers.sources import look, not_packed, prove, question, refused

WRITTEN = Path(__file__).parents[1] / "corpus" / "webdataset"


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
    assert look(WRITTEN).kind == "webdataset"
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
    fill(tmp_path, {"0.tar": shard(files(range(6))), "classnames.txt": "ant\nbee\ncat\n"})
    manifest = convert(tmp_path / "0.tar", tmp_path / "x.h5").manifest
    assert manifest.origin.kind == "webdataset"
    assert manifest.classes == ("ant", "bee", "cat")
    assert manifest.splits == ()
    assert [*look(tmp_path).ledger.names(Role.EVIDENCE)] == ["classnames.txt"]


def test_names_of_classes_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, {"0.tar": shard(files(range(6))), "classnames.txt": "crane\nbee\ncrane\n"})
    assert convert(tmp_path / "0.tar", tmp_path / "x.h5").manifest.classes is None
    assert "names 'crane' twice: classes are packed as numbers alone" in caplog.text
    (tmp_path / "classnames.txt").write_bytes(b"caf\xe9\nbee\ncat\n")
    not_packed(SourceError, tmp_path / "0.tar", tmp_path / "y.h5", r"classnames\.txt cannot be read")


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
        fill(folder, {f"{number:05}.parquet": b"PAR1 and so on PAR1", f"{number:05}_stats.json": '{"count": 3}'})
    (folder / "_info.json").write_text("{}")
    report = convert(folder, tmp_path / "x.h5")
    assert (report.manifest.origin.kind, report.manifest.records) == ("webdataset", 6)
    assert report.ledger.passed_over == {"not images (.parquet)": 2, "not images (.json)": 3}


def test_folders_are_splits(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    for number, split in enumerate(("val", "train")):
        fill(folder, {f"{split}/000.tar.gz": gzip.compress(shard(files(range(4 * number, 4 * number + 4))))})
    report = convert(folder, tmp_path / "x.h5")
    assert [split.name for split in report.manifest.splits] == ["train", "val"]


def test_the_key_ends_at_the_first_dot_of_the_name(tmp_path: Path) -> None:
    names = {"./a.b/22.05.png": tiny(1), "./a.b/22.05.cls": b"1", "./a.b/23.png": tiny(2), "./a.b/23.cls": b"0"}
    (tmp_path / "x.tar").write_bytes(shard(names))
    with closing(open_source(tmp_path / "x.tar", kind="webdataset", columns="key=first-dot")) as source:
        assert [entry.key for entry in source.entries()] == ["a.b/22", "a.b/23"]
        with pytest.raises(SampleError, match="image"):
            source.read(next(source.entries()))  # its image is called 05.png


def test_class_folders_with_captions_are_not_taken_for_shards(tmp_path: Path) -> None:
    names = {f"{label}/{n}.{kind}": tiny(n) for label in "ab" for n in range(3) for kind in ("png", "txt")}
    (tmp_path / "x.tar").write_bytes(shard(names))
    refused(PackstoreError, tmp_path / "x.tar", "seem to belong")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"0001.cls": b"cat"}, r"\.cls: found 'cat', expected a number"),
        ({"0001.png": None}, "has no image"),
        ({"0001.json": b"{"}, "json|Expecting"),
        ({"0001.txt": b"\xff"}, "not UTF-8"),
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
    vector = npy(np.zeros(2))
    for n in range(20, 0, -1):
        names |= files(range(n, n + 1)) | {
            f"{n:04}.json": b"1",
            f"{n:04}.txt": b"t",
            f"{n:04}.v.npy": vector,
        }
    for name, data in change.items():
        if data is None:
            del names[name]
        else:
            names[name] = data
    (tmp_path / "x.tar").write_bytes(shard(names))
    caught = not_packed(SampleError, tmp_path / "x.tar", tmp_path / "x.h5", said)
    assert caught.key == "0001"
    report = convert(tmp_path / "x.tar", tmp_path / "x.h5", on_error="skip")
    assert [skipped.key for skipped in report.manifest.skipped] == ["0001"]
    assert report.manifest.records == 19


def test_pickles_are_refused_and_never_run(tmp_path: Path) -> None:
    names = files(range(3)) | {"0002.pyd": b"cos\nsystem\n(S'touch ran'\ntR."}
    (tmp_path / "x.tar").write_bytes(shard(names))
    not_packed(SourceError, tmp_path / "x.tar", tmp_path / "x.h5", "does not run")


def test_a_key_that_comes_again_is_named(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    start = shard(files(range(2))).rstrip(b"\0")
    (tmp_path / "set/0.tar").write_bytes(start + bytes(-len(start) % 512) + shard(files(range(1))))
    not_packed(PackstoreError, tmp_path / "set", tmp_path / "x.h5", r"0000: \.png is there twice")


def test_a_shard_without_a_split_among_others(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name in ("train-0.tar", "rest-0.tar"):
        (tmp_path / "set" / name).write_bytes(shard(files(range(3))))
    not_packed(SourceError, tmp_path / "set", tmp_path / "x.h5", r"rest-0\.tar: its name has no split")


def test_two_images_of_a_sample_are_two_columns(tmp_path: Path) -> None:
    two = {f"{n}.{suffix}": tiny(10 * n + k) for n in range(3) for k, suffix in enumerate(("jpg", "png", "image"))}
    (tmp_path / "a.tar").write_bytes(shard(two))
    convert(tmp_path / "a.tar", tmp_path / "a.lmdb", source_kind="webdataset", on_error="raise")
    ds = PackedDataset(tmp_path / "a.lmdb", columns=("image", "png", "image_"), output="bytes")
    assert [tuple(map(bytes, item)) for item in ds] == [tuple(tiny(10 * n + k) for k in range(3)) for n in range(3)]


def test_a_file_that_is_there_twice(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard([*files(range(2)).items(), ("0001.cls", b"7")]))
    not_packed(SampleError, tmp_path / "a.tar", tmp_path / "a.lmdb", "cls is there twice")


@pytest.mark.parametrize(
    "header", [b"{'descr': '<f8', 'fortran_order': False, 'shape': (1", b"(" * 118, b"{'descr': 5}"]
)
def test_an_array_whose_header_is_damaged(header: bytes, tmp_path: Path) -> None:
    data = b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n"
    (tmp_path / "a.tar").write_bytes(shard({"0.png": tiny(0), "0.npy": data, "1.png": tiny(1)}))
    not_packed(SampleError, tmp_path / "a.tar", tmp_path / "a.lmdb", r"npy|header|descr", source_kind="webdataset")


def test_an_array_that_claims_to_be_larger_than_the_memory(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(117) + b"\n"
    claims = {f"{n}.npy": b"\x93NUMPY\x01\x00v\x00" + header for n in range(2)}
    (tmp_path / "a.tar").write_bytes(shard({**claims, **{f"{n}.png": tiny(n) for n in range(2)}}))
    not_packed(SampleError, tmp_path / "a.tar", tmp_path / "a.lmdb", r"npy: .*allocate", source_kind="webdataset")


@pytest.mark.parametrize("numbered", [True, False])
def test_shards_of_images_alone_are_a_question_where_they_are_numbered(numbered: bool, tmp_path: Path) -> None:
    for n in range(2):
        name = f"shard-{n:06}.tar" if numbered else f"n0144076{n}.tar"
        (tmp_path / name).write_bytes(shard({f"{n}{k}.png": tiny(10 * n + k) for k in range(3)}))
    caught = question(tmp_path)
    assert (Answer(("--source", "webdataset")) in caught.answers) is numbered
    assert look(tmp_path, kind="webdataset").records == 6


def test_a_first_shard_that_is_cut_off_is_named(tmp_path: Path) -> None:
    data = shard(files(range(4)))
    (tmp_path / "a-000000.tar").write_bytes(data[:2000])
    refused(SourceError, tmp_path, r"a-000000\.tar is not a readable tar, or it is damaged")


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
        seen = look(path)
        assert seen.kind == "webdataset"
        assert seen.each("label") == [5, 4, 3]


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
    prove(tmp_path, tmp_path.parent / f"{tmp_path.name}.lmdb")


@pytest.mark.parametrize("name", ["", "view."])
def test_numbered_images_beside_another_are_its_list(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard(numbered([0, 3, 1], 0, name, main=True)))
    expected = [(tiny(100 + n), [tiny(10 * n + k) for k in range(count)]) for n, count in enumerate((0, 3, 1))]
    assert images_of(tmp_path, "view" if name else "further_images") == expected


def test_a_named_list_alone_gives_its_first_image(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard(numbered([2, 1, 4], 0, "view.")))
    assert [len(rest) for _, rest in images_of(tmp_path, "further_view")] == [1, 0, 3]


def test_numbered_images_of_equal_counts_are_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard(numbered([2, 2, 2])))
    assert "images" not in {column.type for column in look(tmp_path).columns}


@pytest.mark.parametrize("names", [("0.png", "2.png"), ("0.png", "0.jpg")])
def test_a_list_that_is_not_numbered_is_a_bad_sample(names: tuple[str, str], tmp_path: Path) -> None:
    more = {f"0009.{name}": tiny(n) for n, name in enumerate(names)}
    (tmp_path / "a.tar").write_bytes(shard({**numbered([1, 3, 3]), **more}))
    report = convert(tmp_path, tmp_path.parent / f"{tmp_path.name}.h5", on_error="skip")
    assert ([skipped.key for skipped in report.skipped], report.manifest.records) == (["0009"], 3)


def write_shard(path: Path, members: list[tuple[str, bytes]]) -> Path:
    """A tar of members in this order, compressed as its suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(shard(members)) if path.suffix == ".gz" else shard(members))
    return path


def members_of(numbers: range, *extensions: str) -> list[tuple[str, bytes]]:
    """Members of samples, sorted by key; the second image of a sample is a mask."""
    found = []
    for n in numbers:
        values = {"cls": b"%d" % (n % 3), "json": b'{"n": %d}' % n, "txt": b"caption %d" % n}
        values |= {"png": tiny(n), "seg.png": tiny(100 + n)}
        found += [(f"{n:04}.{extension}", values[extension]) for extension in extensions]
    return found


ORDERS = {
    "kinds": lambda members: sorted(members, key=lambda each: (each[0].partition(".")[2] != "png", each[0][4:])),
    "labels first": lambda members: sorted(members, key=lambda each: (each[0].partition(".")[2] == "png", each[0][4:])),
    "any": lambda members: random.Random(5).sample(members, len(members)),
    "one straggler": lambda members: [members[0], *members[2:], members[1]],
    "backwards": lambda members: members[::-1],
}


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("more", [("cls",), ("json",), ("txt",), ("seg.png",), ("cls", "json", "txt", "seg.png")])
@pytest.mark.parametrize("place", ["set/0.tar", "set/0.tar.gz", "set/train/00000.tar"])
@pytest.mark.parametrize("samples", [6, 100])
def test_files_of_a_sample_that_lie_apart_are_joined(
    samples: int, place: str, more: tuple[str, ...], order: str, tmp_path: Path
) -> None:
    members = members_of(range(samples), "png", *more)
    found = []
    for name, ordered in (("sorted", members), ("apart", ORDERS[order](members))):
        file = write_shard(tmp_path / name / place, ordered)
        root = tmp_path / name / "set" if "train" in place or order == "any" else file
        with closing(open_source(root)) as source:
            assert source.kind == "webdataset"
            survey = source.survey()
            samples = {e.key: source.read(e) for e in source.entries()}
        columns = {column.name: column for column in survey.columns}
        values = {key: (sample.image, {**sample.values}) for key, sample in samples.items()}
        found.append((columns, survey.splits, survey.ledger.passed_over, values))
    assert found[0] == found[1]


@pytest.mark.parametrize("order", ["kinds", "labels first", "any"])
def test_the_first_kind_of_image_is_the_main_one_however_they_lie(order: str, tmp_path: Path) -> None:
    members = [(f"{n:04}.{e}", jpeg(n) if e == "jpg" else tiny(n)) for n in range(6) for e in ("jpg", "png")]
    write_shard(tmp_path / "set/0.tar", ORDERS[order](members))
    with closing(open_source(tmp_path / "set")) as source:
        assert [c.name for c in source.survey().columns] == ["png"]
        for entry in source.entries():
            assert source.read(entry).image.startswith(b"\xff\xd8")


def test_samples_without_a_label_stay_so_and_others_are_joined(tmp_path: Path) -> None:
    images, labels = members_of(range(8), "png"), members_of(range(6), "cls")
    write_shard(tmp_path / "set/0-train-0.tar", images[:4] + labels[:3])
    write_shard(tmp_path / "set/0-train-1.tar", labels[4:] + images[4:])
    prove(tmp_path / "set", tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", "train", columns=("key", "label"))
    assert {ds[n] for n in range(8)} == {(f"{n:04}", n % 3 if n in (0, 1, 2, 4, 5) else None) for n in range(8)}


def test_labels_in_another_shard_are_samples_without_an_image(tmp_path: Path) -> None:
    write_shard(tmp_path / "set/0000.tar", members_of(range(6), "png"))
    write_shard(tmp_path / "set/0001.tar", [(f"labels/{name}", data) for name, data in members_of(range(6), "cls")])
    not_packed(SampleError, tmp_path / "set", tmp_path / "x.h5", "labels/0000: has no image", source_kind="webdataset")


@pytest.mark.parametrize("count", [1, 2])
def test_a_folder_of_a_tar_says_what_the_tar_alone_says(count: int, tmp_path: Path) -> None:
    members = [(f"images/{n:06}.png", tiny(n)) for n in range(6)] + [(f"labels/{n:06}.cls", b"1") for n in range(6)]
    for number in range(count):
        write_shard(tmp_path / f"set/{number}.tar", members)
    said = []
    for each in ("set/0.tar", "set"):
        caught = not_packed(PackstoreError, tmp_path / each, tmp_path / "x.h5")
        said.append(str(caught).partition(" Answers: ")[0].rstrip("."))
    assert said[0] == said[1]
    assert "holds no images" not in said[0]


DOTTED = {
    "versions": [f"v1.{n}" for n in range(20)],
    "two versions": ["v1.0", "v1.1"],
    "decimals": [f"img_{n}.{7 * n % 100:02}" for n in range(20)],
    "several decimals": [f"img_{n // 4}.{n % 4}5" for n in range(12)],
    "times": [f"2024-01-0{n % 4 + 1}T10.{n}.15" for n in range(8)],
    "words": ["cat.front", "cat.side"],
    "one number": [f"img_{n}.5" for n in range(6)],
    "a number each": [f"img_{n}.{n + 3}" for n in range(3)],
    "one day": [f"cam{n}.2024-01-02" for n in range(4)],
    "also plain": ["v1", "v1.1", "v2", "v2.1"],
}


@pytest.mark.parametrize("stems", DOTTED)
@pytest.mark.parametrize("more", ["cls", "json", "txt"])
def test_dots_within_names_are_asked_about(more: str, stems: str, tmp_path: Path) -> None:
    values = {"cls": b"1", "json": b"{}", "txt": b"x"}
    names = sorted(DOTTED[stems])
    files = {f"{stem}.{e}": tiny(n) if e == "png" else values[e] for n, stem in enumerate(names) for e in ("png", more)}
    write_shard(tmp_path / "set/0.tar", sorted(files.items()))
    caught = not_packed(AmbiguousSourceError, tmp_path / "set", tmp_path / "x.h5", "key ends at the first dot")
    answers = [Answer(("--column", "key=last-dot")), Answer(("--column", "key=first-dot"))]
    assert [*caught.answers] == answers
    not_packed(AmbiguousSourceError, tmp_path / "set", tmp_path / "x.h5", source_kind="webdataset")
    manifest = convert(tmp_path / "set", tmp_path / "x.h5", columns="key=last-dot").manifest
    assert manifest.records == len(names)
    column = {"cls": "label", "json": "json", "txt": "text"}[more]
    ds = PackedDataset(tmp_path / "x.h5", columns=("key", column))
    assert sorted((ds[n] for n in range(len(ds))), key=itemgetter(0)) == [
        (stem, {"cls": 1, "json": {}, "txt": "x"}[more]) for stem in names
    ]
    assert verify(tmp_path / "x.h5", against=tmp_path / "set").problems == ()  # as it was packed


@pytest.mark.parametrize("stems", ["versions", "decimals"])
def test_many_images_of_a_sample_are_asked_about_without_labels(stems: str, tmp_path: Path) -> None:
    write_shard(tmp_path / "set/0.tar", [(f"{stem}.png", tiny(n)) for n, stem in enumerate(sorted(DOTTED[stems]))])
    for each in ("set", "set/0.tar"):
        with pytest.raises(AmbiguousSourceError, match="key ends at the first dot"):
            convert(tmp_path / each, tmp_path / "x.h5", source_kind="webdataset")
    manifest = convert(tmp_path / "set", tmp_path / "x.h5", columns="key=last-dot", source_kind="webdataset").manifest
    assert manifest.records == 20


@pytest.mark.parametrize(
    ("keys", "images"),
    [
        (["a", "b"], ["left.png", "right.png"]),
        (["a", "b", "c"], ["0.png", "1.png", "cls"]),
        ([f"{n:06}" for n in range(2)], ["0.png", "1.png"]),
        (["a", "b", "c", "d", "e"], ["0.png", "1.png"]),
        (["v1", "v2"], ["png", "json"]),
        (["v1", "v2"], ["png", "0.png"]),
    ],
)
def test_ordinary_samples_of_several_images_are_not(keys: list[str], images: list[str], tmp_path: Path) -> None:
    values = {"png": tiny(1), "cls": b"1", "json": b"{}"}
    files = [(f"{key}.{each}", values[each.rpartition(".")[2]]) for key in keys for each in images]
    write_shard(tmp_path / "set/0.tar", files)
    assert look(tmp_path / "set", kind="webdataset").records == len(keys)


@pytest.mark.parametrize(
    "extensions",
    [
        ["left.png", "right.png", "cls"],
        [*(f"{n}.png" for n in range(12)), "json"],
        [f"{n}.png" for n in range(5)],
        ["png", "seg.png", "cls", "emb.npy"],
        ["view.0.png", "view.1.png", "cls"],
        ["png", "json", "crop.png", "crop.json"],
    ],
)
def test_samples_of_several_images_raise_no_question(extensions: list[str], tmp_path: Path) -> None:
    files = {}
    array = npy(np.zeros(2))
    for n in range(4):
        for number, each in enumerate(extensions):
            values = {"png": tiny(10 * n + number), "cls": b"1", "json": b"{}", "npy": array}
            files[f"{n:03}.{each}"] = values[each.rpartition(".")[2]]
    write_shard(tmp_path / "set/0.tar", [*files.items()])
    assert look(tmp_path / "set").found == ("webdataset", 4)


def test_the_end_of_keys_is_an_option_of_webdataset_alone(tmp_path: Path) -> None:
    write_shard(tmp_path / "set/0.tar", members_of(range(6), "png", "cls"))
    refused(PackstoreError, tmp_path / "set", "key=first-dot or key=last-dot", columns="key=second-dot")
    for name in ("photos/a/1.png", "photos/b/2.png", "photos/t.csv"):
        fill(tmp_path, {name: tiny(1) if name.endswith("png") else b"file,key\na/1.png,x\nb/2.png,y\n"})
    for kind in ("imagefolder", "table"):
        refused(PackstoreError, tmp_path / "photos", "kinds that do: webdataset", kind=kind, columns="key=last-dot")
