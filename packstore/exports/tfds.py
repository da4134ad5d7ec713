"""A folder of TensorFlow Datasets: TFRecord files of ``tf.train.Example``, ``features.json`` and ``dataset_info.json``
(https://www.tensorflow.org/datasets/external_tfrecord), which ``tfds.builder_from_directory`` opens.

A column is the feature of its name, and ``key`` is a text. Numbers that an example holds exactly (integers, float32)
are lists of numbers; float16, bfloat16, float64, and arrays whose shape may differ, are the bytes of a tensor. A value
that is missing is empty or zeros, and ``name_valid`` says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.export_manifest import ExportManifest
from packstore.core.files import drop, open_file
from packstore.core.tfrecord import PACKED, framed, write_example
from packstore.exports.base import Export, Record, ShardWriter
from packstore.exports.names import are_lines

_NAME = "packstore"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"
_CLASSES = "tensorflow_datasets.core.features."
_PYTHON = {
    "image": "image_feature.Image",
    "tensor": "tensor_feature.Tensor",
    "classLabel": "class_label_feature.ClassLabel",
    "boundingBox": "bounding_boxes.BBoxFeature",
    "text": "text_feature.Text",
    "sequence": "sequence_feature.Sequence",
    "featuresDict": "features_dict.FeaturesDict",
}


class TfdsExport(Export):
    """Shards ``packstore-train.tfrecord-00000`` …, and what describes them."""

    name = "tfds"
    help = "TFRecord files of TensorFlow Datasets"
    source = "tfds"
    holds: ClassVar[frozenset[str]] = frozenset({"files", "uint8", "floats"})
    keeps_keys = True

    def held(self) -> Sequence[str]:
        return [column.name for column in self.columns]

    def losses(self) -> Sequence[str]:
        lost = []
        image = self.manifest.image
        unnamed = [c.name for c in self.columns if c.classes is not None and not are_lines(c.classes)]
        if unnamed:
            lost.append(f"names of classes of {', '.join(unnamed)}, which cannot be lines of a file")
        if (image.layout is None or self.recoded) and self.manifest.encoding == "original":
            lost.append("images other than JPEG, PNG, GIF and BMP, which TensorFlow does not decode")
        if any(column.dtype == "bfloat16" for column in (image, *self.columns)):
            lost.append("bfloat16 values: they are their bit patterns as uint16")
        if self.manifest.normalization is not None:
            lost.append("mean and standard deviation by which the arrays were normalised")
        if any(split.name != name for split, name in zip(self.manifest.splits, self._splits.values(), strict=True)):
            lost.append("names of splits: letters, digits and _ alone are kept")
        return lost

    def overhead(self) -> int:
        return 40 + self.key_bytes + sum(len(column.name) + 12 for column in self.columns)

    def begin(self, number: int, split: str) -> ShardWriter:
        return _RecordWriter(self.path, f"{_NAME}-{self._name_of(split)}.tfrecord-{number:05}", self.columns)

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        splits: dict[str, dict[str, Any]] = {}
        for file, split, records in export_manifest.shards:
            said = splits.setdefault(
                split, {"name": self._name_of(split), "filepathTemplate": _TEMPLATE, "numBytes": 0, "shardLengths": []}
            )
            said["shardLengths"].append(str(records))
            said["numBytes"] += (self.path / file).stat().st_size
        info: dict[str, Any] = {"name": _NAME, "version": "1.0.0", "fileFormat": "tfrecord"}
        if any((column.name, column.type, column.nullable) == ("label", "label", False) for column in self.columns):
            info["supervisedKeys"] = {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}}
        listed = [said | {"numBytes": str(said["numBytes"])} for said in splits.values()]
        files = {"dataset_info.json": _json(info | {"splits": listed}), "features.json": _json(self._features())}
        for column in self.columns:
            if column.classes and are_lines(column.classes):
                files[f"{column.name}.labels.txt"] = "".join(f"{name}\n" for name in column.classes).encode("utf-8")
        for name, data in files.items():
            with open_file(self.path / name, "wb") as out:
                out.write(data)
        return super().finish(replace(export_manifest, files=tuple(files)), lines)

    @property
    def _splits(self) -> dict[str, str]:
        """Names of splits that TensorFlow Datasets takes, by those of the store."""
        found: dict[str, str] = {}
        for split in self.manifest.splits:
            name = re.sub(r"[^A-Za-z0-9_]", "_", split.name)[:100] or "split"
            name = f"{name}_" if name == "all" else name  # which means every split
            while name in found.values():
                name += "_"
            found[split.name] = name
        return found

    def _name_of(self, split: str) -> str:
        return self._splits[split] if split else "train"

    def _features(self) -> dict[str, Any]:
        image = self.manifest.image
        features = {"key": _feature("text", {})}
        if image.layout is None or self.recoded:
            jpeg = self.manifest.encoding == "jpeg"
            form = "jpeg" if jpeg else "png" if image.layout is not None else None
            features["image"] = _feature("image", _image(3, form))
        else:
            features["image"] = _tensor(image)
        for column in self.columns:
            features[column.name] = _feature_of(column)
            if column.nullable:
                features[column.valid_name] = _feature("tensor", {"dtype": "bool", "encoding": "none", "shape": {}})
        return _feature("featuresDict", {"features": features})


class _RecordWriter(ShardWriter):
    def __init__(self, folder: Path, name: str, columns: Sequence[Column]) -> None:
        self.file = name
        self._columns = columns
        self._out = open_file(folder / name, "wb")

    def add(self, record: Record) -> Mapping[str, str]:
        image = record.image
        example: dict[str, Any] = {"key": [record.key.encode("utf-8", "surrogateescape")]}
        if isinstance(image, np.ndarray):
            example |= _values(record.columns["image"], image.tobytes(), image.shape)
        else:
            example["image"] = [image]
        for column in self._columns:
            shape = record.at_rest[column.shape_name].tolist() if _varies(column) else ()
            raw = record.at_rest[column.name]
            example |= _values(column, raw if isinstance(raw, bytes) else np.asarray(raw).tobytes(), shape)
            if column.nullable:
                example[column.valid_name] = np.array([int(record.present(column.name))])
        self._out.write(framed(write_example(example)))
        return {}

    def close(self) -> None:
        self._out.close()

    def abort(self) -> None:
        if not self._out.closed:
            drop(self._out)


def _values(column: Column, raw: bytes, shape: Sequence[int]) -> dict[str, Any]:
    """The features of a value, by its bytes at rest. ``shape`` is that of an array whose shape may differ."""
    if _varies(column):
        return {f"{column.name}/shape": np.array(shape, np.int64), f"{column.name}/value": [raw]}
    if _is_bytes(column):
        return {column.name: [raw]}
    values = np.frombuffer(raw, NUMPY_DTYPE[column.dtype])
    if values.dtype.kind == "f":
        return {column.name: values}
    return {column.name: values.view(np.int64) if column.dtype == "uint64" else values.astype(np.int64)}


def _feature_of(column: Column) -> dict[str, Any]:
    if column.type in ("text", "json"):
        return _feature("text", {})
    if column.type in ("label", "labels"):
        numbers = _feature("tensor", {"dtype": "int64", "encoding": "none", "shape": {}})
        if column.classes:
            numbers = _feature("classLabel", {"numClasses": str(len(column.classes))})
        return numbers if column.type == "label" else _feature("sequence", {"feature": numbers, "length": "-1"})
    if column.type == "boxes":
        box = _feature("boundingBox", {"dtype": "float32", "shape": {"dimensions": ["4"]}, "bboxFormat": "XYXY"})
        return _feature("sequence", {"feature": box, "length": "-1"})
    if column.type in ("image", "mask", "bytes") and column.layout is None:
        if column.type == "bytes" or column.nullable:  # nobody decodes a file that is not there
            return _feature("tensor", {"dtype": "string", "encoding": "none", "shape": {}})
        return _feature("image", _image(1, "png") if column.type == "mask" else _image(3, None))
    return _tensor(column)


def _tensor(column: Column) -> dict[str, Any]:
    sizes = {"HWC": (-1, -1, 3), "HW": (-1, -1)}[column.layout] if _varies(column) and column.layout else column.shape
    sizes = (-1, *sizes) if column.kind == "ragged" and column.layout is None else sizes
    encoding = "bytes" if _is_bytes(column) else "none"
    dtype = NUMPY_DTYPE[column.dtype].name
    return _feature("tensor", {"dtype": dtype, "encoding": encoding, "shape": {"dimensions": [str(n) for n in sizes]}})


def _varies(column: Column) -> bool:
    """Its arrays have shapes of their own."""
    return column.kind == "ragged" and column.layout is not None


def _is_bytes(column: Column) -> bool:
    """A value is one string of bytes."""
    texts = column.type in ("text", "json", "bytes") or (column.type in ("image", "mask") and column.layout is None)
    return texts or column.layout is not None or column.dtype in PACKED


def _image(channels: int, form: str | None) -> dict[str, Any]:
    said: dict[str, Any] = {"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", str(channels)]}}
    return said if form is None else said | {"encodingFormat": form}


def _feature(what: str, said: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": _CLASSES + _PYTHON[what], what: dict(said)}


def _json(plain: Any) -> bytes:
    return json.dumps(plain, indent=2, sort_keys=True).encode("ascii") + b"\n"
