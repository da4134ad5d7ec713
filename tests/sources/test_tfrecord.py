"""TFRecord files: what tensorflow wrote, and what can be wrong with them.

``tests/corpus/tfrecord`` was written by ``tf.io.TFRecordWriter`` of tensorflow-cpu 2.21.0. ``slim-*`` have the features
of TF-slim's ``build_imagenet_data.py`` (labels from 1; the shard of validation is compressed by gzip and says so
nowhere); ``detection.tfrecord.zlib`` those of the Object Detection API, with the ids 3 and 18; ``plain.tfrec`` one
feature of each sort.
"""

from __future__ import annotations

import gzip
import io
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import Entry, open_source
from packstore.testing import SourceSuite
from tests.internals import AmbiguousSourceError, SampleError, SourceError, masked_crc32c, write_example
from tests.internals import tfrecord_frame_record as frame_record
from tests.makers.annotated import fill
from tests.makers.images import tiny
from tests.makers.sources import look, not_packed, refused

WRITTEN = Path(__file__).parents[1] / "corpus" / "tfrecord"
WNIDS = ("n01440764", "n01443537", "n01484850")


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def records(*examples: dict[str, Any]) -> bytes:
    return b"".join(frame_record(write_example(example)) for example in examples)


def plain(n: int, **more: Any) -> dict[str, Any]:
    return {"image": [tiny(n)], "label": ints(n % 3), "filename": [b"%04d.png" % n], **more}


class TestTfrecord(SourceSuite):
    kind = "tfrecord"
    bytes_per_sample = 400
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        for name, numbers in {
            "a-train-00000-of-00002": range(samples // 2),
            "a-train-00001-of-00002": range(samples // 2, samples - 2),
            "a-val-00000-of-00001": range(samples - 2, samples),
        }.items():
            (folder / name).write_bytes(records(*map(plain, numbers)))
        return folder

    def change(self, path: Path) -> None:
        file = path / "a-val-00000-of-00001"
        file.write_bytes(file.read_bytes())

    def spoil(self, path: Path, entry: Entry) -> bool:
        shard, place, length = entry.ref
        with (path / f"a-train-0000{shard}-of-00002").open("r+b") as file:
            file.seek(place)
            data = file.read(length)
            file.seek(place + data.index(b"IDAT") + 6)
            file.write(b"\xff")
        return True


@pytest.fixture
def slim(tmp_path: Path) -> Path:
    folder = tmp_path / "imagenet"
    folder.mkdir()
    for file in WRITTEN.glob("slim-*"):
        shutil.copy(file, folder)
    return folder


@pytest.mark.parametrize("suffix", [".lmdb", ".h5", ".pth"])
def test_imagenet_of_slim(slim: Path, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{suffix}"
    manifest = convert(slim, path, encoding="original").manifest
    assert manifest.origin.kind == "tfrecord"
    assert manifest.classes == WNIDS
    assert [(split.name, len(split)) for split in manifest.splits] == [("train", 7), ("validation", 2)]
    names = ("key", "label", "class_text", "boxes", "labels", "image")
    seen = [
        item for split in ("train", "validation") for item in PackedDataset(path, split, columns=names, output="bytes")
    ]
    for n, (key, label, text, boxes, labels, image) in enumerate(seen):
        k = n % 4
        left = 3 * 0.25 * np.arange(k)
        expected = np.stack([left, np.zeros(k), 3 * (0.5 + 0.125 * np.arange(k)), np.ones(k)], 1)
        assert (key, label) == (f"{WNIDS[n % 3]}_{n}.JPEG", n % 3)
        assert str(text).startswith(("tench", "goldfish", "great white shark")[n % 3])
        assert np.array_equal(boxes, expected.astype(np.float32))
        assert labels.tolist() == [n % 3] * k
        assert bytes(image) == tiny(n)
    assert verify(path, against=slim).problems == ()


def test_what_it_was_recognised_by(slim: Path) -> None:
    seen = look(slim)
    left = seen.ledger.members
    assert seen.evidence == ("3 TFRecord files; image/class/label is 1 to 3, and image/class/synset names each")
    assert left == {"features that the images say themselves (size, format)": 5}


def test_part_of_imagenet_is_a_question(slim: Path, tmp_path: Path) -> None:
    shard = slim / "slim-validation-00000-of-00001"  # classes 2 and 3 of 1,000
    not_packed(AmbiguousSourceError, shard, tmp_path / "x.h5", r"image/class/label is 2 to 3.*--source tfrecord")


@pytest.mark.slow
def test_ids_of_the_detection_api_are_a_question_or_named_by_a_label_map(tmp_path: Path) -> None:
    file = tmp_path / "set" / "x.tfrecord"
    file.parent.mkdir()
    shutil.copy(WRITTEN / "detection.tfrecord.zlib", file)
    not_packed(AmbiguousSourceError, file, tmp_path / "x.h5", r"image/object/class/label is 3 to 18.*--source tfrecord")
    convert(file, tmp_path / "numbers.h5", source_kind="tfrecord")
    ds = PackedDataset(tmp_path / "numbers.h5", columns=("key", "labels", "object_class_text", "source_id"))
    assert [(key, labels.tolist(), text, number) for key, labels, text, number in ds][2:5] == [
        ("0000000002", [18, 3], ["cat", "dog"], "2"),
        ("0000000003", [], [], "3"),
        ("0000000004", [18], ["cat"], "4"),
    ]
    (file.parent / "pets_label_map.pbtxt").write_text(
        "# two\nitem {\n  id: 18\n  name: 'cat'\n  display_name: 'Cat'\n}\nitem { name: \"do\\'g\" id: 3 }\n"
    )
    report = convert(file.parent, tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", columns=("boxes", "labels", "object_area"))
    assert ds.manifest.column("labels").classes == ("do'g", "cat")
    boxes, labels, area = ds[2]
    assert boxes.tolist() == [[0.75, 1.0, 3.0, 2.0]] * 2
    assert (labels.tolist(), area.tolist()) == ([1, 0], [1.5, 1.5])
    assert report.ledger.members["features of several files each"] == 1  # masks


def test_features_of_all_sorts(tmp_path: Path) -> None:
    convert(WRITTEN / "plain.tfrec", tmp_path / "x.lmdb")
    ds = PackedDataset(tmp_path / "x.lmdb", columns=("label", "weight", "history", "pair", "caption", "tags", "raw"))
    for n, (label, weight, history, pair, caption, tags, raw) in enumerate(ds):
        assert (label, weight, caption) == (n % 3, n / 2, ("é%d", "c1", None, "c3", "c4")[n])
        assert (history.tolist(), pair.tolist()) == (list(range(n)), [n, -n])
        assert (tags, bytes(raw)) == (["a", "b"], b"\xff\0%d" % n)


@pytest.mark.parametrize(
    ("numbers", "names", "expected"),
    [
        ((0, 2), None, (None, [0, 2])),
        ((1, 2), "1:cat\n2:dog\n", (("cat", "dog"), [0, 1])),
        ((5, 2), "5:cat\n2:dog\n9:eel\n", (("dog", "cat", "eel"), [1, 0])),
        ((0, 1), "ant\nbee\ncat\n", (("ant", "bee", "cat"), [0, 1])),
        ((1, 3), "ant\nbee\ncat\n", "the 3 names in labels.txt have no numbers"),
        pytest.param((0, 1), "\ufeff" + "\n" * (1 << 24) + "0:ant\n1:bee\n", (("ant", "bee"), [0, 1]), id="long"),
        ((0, 1), "\ufeff0:ant\n1:bee\n", (("ant", "bee"), [0, 1])),
        ((1, 2), "1:crane\n2:crane\n", (None, [0, 1])),
        ((-1, 0), None, (None, [None, 0])),
        ((1, 2), None, "is 1 to 2, and nothing says whether its classes begin at 0 or at 1"),
        ((1, 2), "ant\nbee\ncat\n", "the 3 names in labels.txt have no numbers"),
        ((0, 3), "ant\nbee\ncat\n", "label has 3, for which labels.txt has no name"),
        ((1, 7), "1:ant\n2:bee\n", "label has 7, for which labels.txt has no name"),
        ((1, 1), "1:ant\n1:bee\n", "two names for one number"),
        ((1, 1), b"\xff", "labels.txt cannot be read"),
    ],
)
def test_where_labels_begin(numbers: tuple[int, ...], names: Any, expected: Any, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    examples = [plain(i, label=ints(n)) for i, n in enumerate(numbers)]
    (folder / "a.tfrecord").write_bytes(records(*examples))
    if names:
        (folder / "labels.txt").write_bytes(names if isinstance(names, bytes) else names.encode())
    if isinstance(expected, str):
        not_packed(SourceError, folder, tmp_path / "x.h5", expected)
        return
    manifest = convert(folder, tmp_path / "x.h5").manifest
    assert (manifest.classes, list(PackedDataset(tmp_path / "x.h5", columns=("label",)))) == expected


def test_boxes_in_pixels(tmp_path: Path) -> None:
    edges = {"xmin": floats(1.0), "ymin": floats(0.0), "xmax": floats(2.5), "ymax": floats(2.0)}
    example = plain(1) | {f"bbox/{edge}": value for edge, value in edges.items()}
    (tmp_path / "x.tfrecord").write_bytes(records(example))
    convert(tmp_path / "x.tfrecord", tmp_path / "x.h5", source_kind="tfrecord")
    assert PackedDataset(tmp_path / "x.h5", columns=("boxes",))[0].tolist() == [[1.0, 0.0, 2.5, 2.0]]


def test_a_shard_that_is_missing(slim: Path, tmp_path: Path) -> None:
    (slim / "slim-train-00001-of-00002").unlink()
    not_packed(AmbiguousSourceError, slim, tmp_path / "x.h5", r"lacks 1 of the shards.*slim-train-00001-of-00002")
    assert convert(slim, tmp_path / "x.h5", source_kind="tfrecord").manifest.records == 6


def test_a_length_that_is_wrong_ends_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    one = bytearray(records(*map(plain, range(5))))
    at = len(records(*map(plain, range(3))))
    one[at] ^= 1
    fill(folder, {"a-00000-of-00002": one, "a-00001-of-00002": records(*map(plain, range(5, 9)))})
    said = f"a-00000-of-00002: byte {at}: the length of a record does not match its checksum; the rest"
    not_packed(SampleError, folder, tmp_path / "x.h5", said)
    report = convert(folder, tmp_path / "x.h5", on_error="skip")
    assert (report.manifest.records, len(report.manifest.skipped)) == (7, 1)


@pytest.mark.parametrize("left", [1, 11, 12, 100, -1, -5])
def test_a_file_that_is_cut_off(left: int, tmp_path: Path) -> None:
    whole = records(*map(plain, range(3)))
    (tmp_path / "x.tfrecord").write_bytes((whole + whole)[: len(whole) + left])
    with pytest.raises(SampleError, match=r"x\.tfrecord: byte \d+: (the file ends|a record of)"):
        convert(tmp_path / "x.tfrecord", tmp_path / "x.h5")


@pytest.mark.slow
def test_damage_does_not_change_what_is_said_of_others(tmp_path: Path) -> None:
    """A bit that flips in a name, a label or a number of values is no new feature and no class."""
    names = [[b"%d.png" % 7**n] for n in range(1, 10)]  # so unlike that one bit makes none of them another
    examples = [
        plain(n, label=ints(n % 3 + 1), class_name=[b"abc"[n % 3 : n % 3 + 1]], filename=names[n]) for n in range(9)
    ]
    whole = records(*examples)
    first = len(records(*examples[:4]))
    (tmp_path / "labels.txt").write_text("1:a\n2:b\n3:c\n")
    good = look(_file(tmp_path, whole)).columns
    for place in range(12, len(records(examples[4])) - 4):
        damaged = bytearray(whole)
        damaged[first + place] ^= 1 << place % 8
        with closing(open_source(_file(tmp_path, bytes(damaged)))) as source:
            assert source.survey().columns == good
            bad = []
            for entry in source.entries():
                try:
                    source.read(entry)
                except SampleError as error:
                    bad.append(error.reason)
            assert len(bad) == 1
            assert bad[0].endswith("the record does not match its checksum")


def _file(folder: Path, data: bytes) -> Path:
    (folder / "x.tfrecord").write_bytes(data)
    return folder / "x.tfrecord"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (frame_record(b"\x0a\xff\xff\xff\xff\x0f"), "longer than itself|none of its records"),
        (frame_record(b"\x12\x02\x0a\x00"), "none of its records is a tf.train.Example"),
        (frame_record(b"\x0a" + b"\xff" * 11), "none of its records is a tf.train.Example"),
        (frame_record(write_example({"label": ints(0)})), "hold no image files, but label"),
        (
            frame_record(write_example({"image": [b"\0" * 300], "label": ints(0)})),
            "hold no image files, but image, label",
        ),
        (records(plain(0, x=ints(1)), plain(1, x=floats(1.0))), "x holds floats and ints in different records"),
    ],
)
def test_records_of_something_else(data: bytes, said: str, tmp_path: Path) -> None:
    not_packed(SourceError, _file(tmp_path, data), tmp_path / "x.h5", said, source_kind="tfrecord")


@pytest.mark.parametrize("gone", [20, 5000])
def test_a_compressed_file_that_is_damaged(gone: int, tmp_path: Path) -> None:
    data = gzip.compress(records(*map(plain, range(30))))
    (tmp_path / "x.tfrecord.gz").write_bytes(data[: len(data) // 2] + data[len(data) // 2 + gone :])
    not_packed(SourceError, tmp_path / "x.tfrecord.gz", tmp_path / "x.h5", r"x\.tfrecord\.gz is damaged")


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, data in {"a.tfrecord": b"text" * 20, "b": b"\0" * 64, "train-00000-of-00001": b""}.items():
        (tmp_path / name).write_bytes(data)
    refused(SourceError, tmp_path)


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_crc_of_the_standard(data: bytes, crc: int) -> None:
    """RFC 3720, appendix B.4, and the check value of the catalogue of CRCs."""
    turned = (masked_crc32c(data) - 0xA282EAD8) & 0xFFFFFFFF
    assert turned == (crc >> 15 | crc << 17) & 0xFFFFFFFF


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 300])
@pytest.mark.parametrize("channels", [None, 1, 3])
def test_raw_pixels_whose_sides_are_beside_them(channels: int | None, size: int, tmp_path: Path) -> None:
    shape = (4, 6, 3) if channels == 3 else (4, 6)
    pixels = [np.random.default_rng(n).integers(0, 256, shape, np.uint8) for n in range(size)]
    sides = {"height": ints(4), "width": ints(6)} | ({} if channels is None else {"depth": ints(channels)})
    examples = [
        write_example({"image_raw": [each.tobytes()], "label": ints(n % 3), **sides}) for n, each in enumerate(pixels)
    ]
    path = _file(tmp_path, b"".join(map(frame_record, examples)))
    convert(path, tmp_path / "x.h5")
    images = PackedDataset(tmp_path / "x.h5", columns=("image", "label"), output="bytes")
    assert [column.name for column in images.manifest.columns if column.name in ("height", "width", "depth")] == []
    for n in (0, size - 1):
        data, label = images[n]
        assert label == n % 3
        assert (np.array(PIL.Image.open(io.BytesIO(data))) == pixels[n]).all()


def test_raw_pixels_of_another_number_are_bad_samples(tmp_path: Path) -> None:
    sides = {"height": ints(4), "width": ints(6), "depth": ints(1)}
    examples = [write_example({"image_raw": [bytes(24 + 5 * (n == 1))], **sides}) for n in range(3)]
    with closing(open_source(_file(tmp_path, b"".join(map(frame_record, examples))))) as source:
        entries = list(source.entries())
        source.read(entries[0])
        with pytest.raises(SampleError, match="found 29 bytes of 4 x 6 pixels"):
            source.read(entries[1])
