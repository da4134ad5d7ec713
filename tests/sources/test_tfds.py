"""Folders of TensorFlow Datasets: what the library wrote, and what can be wrong with them.

``tests/corpus/tfds`` was written by tensorflow-datasets 4.9.10: a ``GeneratorBasedBuilder`` with a feature of each
sort, five examples of ``train`` and three of ``test`` (which it shuffles); example n has n % 3 objects.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import Entry
from packstore.testing import SourceSuite
from tests.internals import SampleError, SourceError, write_example
from tests.internals import tfrecord_frame_record as frame_record
from tests.makers.annotated import fill
from tests.makers.images import encode, picture, tiny
from tests.makers.sources import look, not_packed, question

WRITTEN = Path(__file__).parents[1] / "corpus" / "tfds"
IMAGE = {"image": {"dtype": "uint8", "encodingFormat": "png", "shape": {"dimensions": ["-1", "-1", "3"]}}}
LABEL = {"classLabel": {"numClasses": "3"}}


def tensor(dtype: str, *dimensions: int, encoding: str = "none") -> dict[str, Any]:
    return {"tensor": {"dtype": dtype, "encoding": encoding, "shape": {"dimensions": [str(n) for n in dimensions]}}}


def dataset(
    folder: Path, shards: Mapping[str, list[list[dict[str, Any]]]], features: Mapping[str, Any], **info: Any
) -> Path:
    """A dataset called ``d`` with the shards of each split."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for split, its in shards.items():
        listed.append({"name": split, "shardLengths": [str(len(shard)) for shard in its]})
        for i, shard in enumerate(its):
            data = b"".join(frame_record(write_example(example)) for example in shard)
            (folder / f"d-{split}.tfrecord-{i:05}-of-{len(its):05}").write_bytes(data)
    described = {"name": "d", "version": "1.0.0", "fileFormat": "tfrecord", "splits": listed, **info}
    (folder / "dataset_info.json").write_text(json.dumps(described))
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": dict(features)}}))
    return folder


def example(n: int, **more: Any) -> dict[str, Any]:
    return {"image": [tiny(n)], "label": np.array([n % 3]), **more}


class TestTfds(SourceSuite):
    kind = "tfds"
    bytes_per_sample = 400
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        one, two = range(samples // 2), range(samples // 2, samples - 2)
        shards = [[example(n) for n in numbers] for numbers in (one, two)]
        splits = {"test": [[example(n) for n in range(samples - 2, samples)]], "train": shards}
        dataset(folder, splits, {"image": IMAGE, "label": LABEL})
        (folder / "label.labels.txt").write_text("zebra\nant\nbee\n")
        return folder

    def change(self, path: Path) -> None:
        (path / "label.labels.txt").write_text("zebra\nant\ncat\n")

    def spoil(self, path: Path, entry: Entry) -> bool:
        number, place, length = entry.ref
        with (path / f"d-train.tfrecord-0000{number - 1}-of-00002").open("r+b") as file:
            file.seek(place)
            data = file.read(length)
            file.seek(place + data.index(b"IDAT") + 6)
            file.write(b"\xff")
        return True


@pytest.mark.parametrize("suffix", [".lmdb", ".h5", ".pth"])
def test_what_the_library_wrote(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{suffix}"
    manifest = convert(WRITTEN, path, encoding="original").manifest
    assert manifest.origin.kind == "tfds"
    assert manifest.classes == ("zebra", "ant", "bee")
    assert [(split.name, len(split)) for split in manifest.splits] == [("train", 5), ("test", 3)]
    names = ("key", "image", "label", "segmentation_mask", "boxes", "labels", "head", "vector", "packed")
    more = ("score", "flag", "big", "tags", "nested_a", "nested_b", "objects_area", "objects_name")
    items = [
        dict(zip((*names, *more), item, strict=True))
        for split in ("train", "test")
        for item in PackedDataset(path, split, columns=(*names, *more), output="bytes")
    ]
    assert sorted(item["key"] for item in items) == [f"{n:03}.png" for n in range(8)]
    for item in items:
        n = int(item["key"][:3])
        k = n % 3
        assert bytes(item["image"]) == tiny(n)
        assert item["label"] == (n % 3 if n != 7 else None)
        # The image is 3 x 2; its boxes are ymin, xmin, ymax, xmax as fractions.
        assert item["boxes"].tolist() == [[0.75 * i, 0, 1.5 + 0.75 * i, 1] for i in range(k)]
        assert item["head"].tolist() == [[0, 0.5, 3, 2]]
        assert item["labels"].tolist() == [i % 2 for i in range(k)]
        assert item["objects_area"].tolist() == [i + 7 for i in range(k)]
        assert item["objects_name"] == [f"o{i}" for i in range(k)]
        assert item["vector"].tolist() == [n, n + 1, n + 2]
        assert item["packed"].tolist() == [[n, n + 1], [n + 2, n + 3]]
        assert (item["score"], item["flag"], item["big"]) == (n / 4, n % 2, 2**64 - 1 - n)
        assert item["tags"] == ["é"] * k
        assert (item["nested_a"], item["nested_b"]) == (n, "x")
    mask = PackedDataset(path, "train", columns=("segmentation_mask",), output="pil")[0]
    assert (mask.size, mask.mode) == ((3, 2), "L")
    assert verify(path, against=WRITTEN).problems == ()


def test_versions_and_configurations(tmp_path: Path) -> None:
    root = tmp_path / "things"
    shutil.copytree(WRITTEN, root / "small" / "1.2.0")
    seen = look(root)
    assert seen.kind == "tfds"
    assert seen.evidence == "2 shards"
    for other in ("small/1.3.0", "large/1.2.0"):
        shutil.copytree(WRITTEN, root / other)
        question(root, r"several versions or configurations.*small/1\.2\.0")
        shutil.rmtree(root / other)


def test_a_text_that_is_the_same_twice_is_no_key(tmp_path: Path) -> None:
    text = {"text": {}}
    examples = [example(n, file_name=[b"same"]) for n in range(3)]
    path = dataset(tmp_path / "d", {"train": [examples]}, {"image": IMAGE, "label": LABEL, "file_name": text})
    convert(path, tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", "train", columns=("key", "file_name"))
    assert list(ds) == [(f"train/{n:010}", "same") for n in range(3)]


def test_pixels_and_boxes_in_pixels(tmp_path: Path) -> None:
    boxes = {"sequence": {"feature": {"boundingBox": {"bboxFormat": "XYWH"}}}}
    features = {"image": tensor("uint8", -1, -1, 3, encoding="bytes"), "boxes": boxes}
    arrays = [np.full((2, 3 + n, 3), n, np.uint8) for n in range(2)]
    examples = [
        {
            "image/shape": np.array(array.shape),
            "image/value": [array.tobytes()],
            "boxes": np.array([1, 0, 1, 2], np.float32),
        }
        for array in arrays
    ]
    convert(dataset(tmp_path / "d", {"train": [examples]}, features), tmp_path / "x.h5", encoding="uint8")
    ds = PackedDataset(tmp_path / "x.h5", "train", columns=("image", "boxes"), output="numpy")
    for n, (image, boxes) in enumerate(ds):
        assert np.array_equal(image, arrays[n])
        assert boxes.tolist() == [[1, 0, 2, 2]]
    features["boxes"]["sequence"]["feature"]["boundingBox"]["bboxFormat"] = "CENTER_XYWH"
    with pytest.raises(SampleError, match="found boxes in the format CENTER_XYWH; expected XYXY, "):
        convert(dataset(tmp_path / "e", {"train": [examples]}, features), tmp_path / "y.h5", encoding="uint8")


def test_what_no_column_can_hold_is_counted(tmp_path: Path) -> None:
    features = {
        "image": IMAGE,
        "label": LABEL,
        "sound": {"audio": {}},
        "frames": {"sequence": {"feature": {"sequence": {"feature": IMAGE}}}},
        "packed": tensor("int8", 4, encoding="zlib"),
        "depth": {"image": {"dtype": "float32", "encodingFormat": "png"}},
    }
    path = dataset(tmp_path / "d", {"train": [[example(n) for n in range(3)]]}, features)
    report = convert(path, tmp_path / "x.h5")
    assert report.ledger.members == {"features of types that no column can hold": 4}


def test_a_sequence_of_images_is_a_list(tmp_path: Path) -> None:
    examples = [example(n) for n in range(4)]
    frames = [[each["image"][0] for each in examples[:n]] for n in range(4)]
    for each, files in zip(examples, frames, strict=True):
        each["frames"] = files
    features = {"image": IMAGE, "label": LABEL, "frames": {"sequence": {"feature": IMAGE}}}
    convert(dataset(tmp_path / "d", {"train": [examples]}, features), tmp_path / "x.h5")
    assert list(PackedDataset(tmp_path / "x.h5", "train", columns=("frames",), output="bytes")) == frames


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"splits": [{"name": "train", "shardLengths": ["4"]}]}, "has 3 records, and dataset_info.json says 4"),
        ({"splits": [{"name": "train", "shardLengths": ["3", "1"]}]}, "00000-of-00002 is missing"),
        ({"splits": [{"name": "train", "shardLengths": ["x"]}]}, "dataset_info.json cannot be read"),
        ({"splits": [{"name": "t", "shardLengths": ["1"], "filepathTemplate": "../x"}]}, "cannot be read: the name"),
        ({"splits": [3]}, "dataset_info.json cannot be read"),
        ({"splits": [{"name": "t", "shardLengths": [float("inf")]}]}, "dataset_info.json cannot be read"),
        ({"splits": []}, "holds no shards"),
        ({"fileFormat": "riegeli"}, "riegeli-00000-of-00001 is missing"),
    ],
)
def test_wrong_descriptions_of_shards(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    shards = {"train": [[example(n) for n in range(3)]]}
    path = dataset(tmp_path / "d", shards, {"image": IMAGE, "label": LABEL}, **change)
    not_packed(SourceError, path, tmp_path / "x.h5", said)


def test_a_folder_of_a_version_without_features_is_read_as_tfrecord(tmp_path: Path) -> None:
    path = dataset(tmp_path / "d", {"train": [[example(n) for n in range(3)]]}, {})
    (path / "features.json").unlink()
    report = convert(path, tmp_path / "x.h5")
    assert (report.manifest.origin.kind, report.manifest.records) == ("tfrecord", 3)
    assert report.ledger.left == {"not images (.json)": 1}


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({"type": "FeaturesDict", "content": {}}, "of an old version of TensorFlow Datasets"),
        ({"featuresDict": {"features": {"label": LABEL}}}, "holds no images, but label"),
        ({"featuresDict": {"features": {"image": IMAGE, "label": {"classLabel": {"numClasses": "7"}}}}}, "says 7"),
        ({"featuresDict": {"features": {f"f{n}": LABEL for n in range(1001)}}}, "more than 1,000 features"),
        ({"featuresDict": {"features": {"image": {"image": {"shape": {"dimensions": ["x"]}}}}}}, "cannot be read"),
        ({"featuresDict": []}, "cannot be read"),
        *(
            ({"featuresDict": {"features": {"image": IMAGE, "x": {kind: {"dtype": "int8", "shape": shape}}}}}, said)
            for kind in ("tensor", "boundingBox", "image")
            for shape, said in [
                ("", "cannot be read"),
                ([2], "cannot be read"),
                ({"dimensions": 2}, "cannot be read"),
                ({"dimensions": [[]]}, "cannot be read"),
                ({"dimensions": [1e999]}, "cannot be read"),
            ]
        ),
    ],
)
def test_wrong_descriptions_of_features(features: Any, said: str, tmp_path: Path) -> None:
    path = dataset(tmp_path / "d", {"train": [[example(n) for n in range(3)]]}, {})
    fill(path, {"features.json": json.dumps(features), "label.labels.txt": "a\nb\nc\n"})
    not_packed(SourceError, path, tmp_path / "x.h5", said)


@pytest.mark.parametrize(
    ("feature", "values", "said"),
    [
        (LABEL, np.array([3]), "label: 3 is none of 3 classes"),
        (LABEL, np.array([0, 1]), "label: found 2 values, expected one"),
        (LABEL, [b"x"], "label: found bytes, expected numbers"),
        (tensor("int8"), np.array([300]), "label: found numbers beyond int8"),
        (tensor("float32", 2), np.array([1], np.float32), "label: found 1 numbers, expected 2"),
        (tensor("int16", 2, encoding="bytes"), [b"abc"], "label: "),
        ({"text": {}}, [b"\xff"], "label: .*utf-8"),
        ({"text": {}}, np.array([1]), "label: found numbers, expected texts"),
    ],
)
def test_a_bad_sample_is_named(feature: Any, values: Any, said: str, tmp_path: Path) -> None:
    good = {
        "float32": np.array([1, 2], np.float32),
        "int16": [b"abcd"],
    }
    fine = good.get(feature.get("tensor", {}).get("dtype"), [b"t"] if "text" in feature else np.array([1]))
    examples = [example(n) | {"label": fine} for n in range(30)]
    examples[25]["label"] = values
    path = dataset(tmp_path / "d", {"train": [examples]}, {"image": IMAGE, "label": feature})
    (path / "label.labels.txt").write_text("a\nb\nc\n")
    caught = not_packed(SampleError, path, tmp_path / "x.h5", said)
    assert caught.key == "train/0000000025"
    assert str(caught).isprintable()


def test_a_sequence_that_an_example_lacks_is_empty(tmp_path: Path) -> None:
    features = {
        "image": IMAGE,
        "numbers": {"sequence": {"length": "-1", "feature": tensor("int32")}},
        "kinds": {"sequence": {"length": "-1", "feature": LABEL}},
    }
    whole = {"numbers": np.array([4, 5]), "kinds": np.array([1])}
    examples = [{"image": [tiny(n)], **(whole if n < 2 else {})} for n in range(3)]
    path = dataset(tmp_path / "d", {"train": [examples]}, features)
    (path / "kinds.labels.txt").write_text("a\nb\nc\n")
    convert(path, tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", "train", columns=("numbers", "kinds"), output="bytes")
    assert [(numbers.tolist(), kinds.tolist()) for numbers, kinds in ds] == [([4, 5], [1])] * 2 + [([], [])]


def test_images_that_are_no_masks(tmp_path: Path) -> None:
    """Masks in colour are images."""
    features = {"image": IMAGE, "mask": IMAGE}
    examples = [{"image": [tiny(n)], "mask": [encode(picture(seed=n), "PNG")]} for n in range(2)]
    manifest = convert(dataset(tmp_path / "d", {"train": [examples]}, features), tmp_path / "x.h5").manifest
    assert manifest.column("mask").type == "image"
