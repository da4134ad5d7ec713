"""A folder of TensorFlow Datasets: TFRecord files of ``tf.train.Example``, ``features.json`` and ``dataset_info.json``
(https://www.tensorflow.org/datasets/external_tfrecord), for ``tfds.builder_from_directory``.

Each column becomes a feature of the same name, and the key a text named ``key``. Integers and float32, which an example
holds exactly, are lists of numbers; float16, bfloat16, float64, and arrays of different shapes, are the bytes of a
tensor. A missing value is empty or zeros, and ``name_valid`` is 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from packstore.core.column_types.pictures import frame
from packstore.core.columns import NUMPY_DTYPE, Column
from packstore.exports.base import Export, Record, can_be_lines, has_varying_shapes
from packstore.sources.records.wire import PACKED, frame_record, write_example
from packstore.stores.export_manifest import ExportManifest

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
    """Shards ``packstore-train.tfrecord-00000`` …, and the JSON files and class names that describe them.

    Names of splits get only ASCII letters, digits and ``_``. A store without splits is ``train``.
    """

    name = "tfds"
    help = "TFRecord files of TensorFlow Datasets"
    source = "tfds"
    image_forms: ClassVar[frozenset[str]] = frozenset({"files", "uint8", "floats"})
    keeps_keys = True

    def exact_columns(self) -> Sequence[str]:
        """Returns the names of all the user's columns, without ``image``."""
        return [column.name for column in self.columns]

    def losses(self) -> Sequence[str]:
        """Returns a text for each part of the store that TensorFlow Datasets cannot hold.

        These are class names, image formats, bfloat16 values, normalisation and split names.
        """
        lost = []
        image = self.manifest.image
        unnamed = [c.name for c in self.columns if c.classes is not None and not can_be_lines(c.classes)]
        if unnamed:
            lost.append(f"class names of {', '.join(unnamed)}: they cannot be lines of a file")
        if (image.layout is None or self.recoded) and self.manifest.encoding == "original":
            lost.append("images other than JPEG, PNG, GIF and BMP, which TensorFlow does not decode")
        lost += self.array_losses()
        if any(own not in ("", name) for own, name in self._split_names.items()):
            lost.append("names of splits: other characters than letters and digits become _")
        return lost

    def overhead(self) -> int:
        """Returns estimated bytes of an example's key, framing and names of features."""
        return 40 + self.mean_key_bytes + sum(len(column.name) + 12 for column in self.columns)

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> str:
        """Writes a TFRecord file, named by the split's name in TensorFlow Datasets. Each record is an example with its
        key, image and all columns."""
        file = f"{_NAME}-{self._split_names[split]}.tfrecord-{number:05}"
        with self.open_files(file) as (out,):
            for record in records:
                out.write(frame_record(write_example(self._make_example(record))))
        return file

    def _make_example(self, record: Record) -> dict[str, Any]:
        """Returns the features of a record."""
        example: dict[str, Any] = {"key": [record.key.encode("utf-8", "surrogateescape")]}
        if isinstance(record.image, np.ndarray):
            example |= _encode_value(record.columns["image"], record.image_bytes, record.image.shape)
        else:
            example["image"] = [record.image]
        for column in self.columns:
            empty = column.form == "files" and not record.has_value(column.name)
            raw = frame([]) if empty else record.stored_bytes(column.name)
            example |= _encode_value(column, raw, record.shape_of(column))
            if column.nullable:
                example[column.valid_name] = np.array([int(record.has_value(column.name))])
        return example

    def documents(self, export_manifest: ExportManifest, lines: Path | None) -> Mapping[str, Iterable[bytes]]:
        """Returns ``dataset_info.json``, ``features.json`` and files of class names.

        A column has such a file if each of its class names fits on one line. If every record must have a label, image
        and label become the supervised keys.
        """
        splits: dict[str, dict[str, Any]] = {}
        for file, split, records in export_manifest.shards:
            said = splits.setdefault(
                split,
                {"name": self._split_names[split], "filepathTemplate": _TEMPLATE, "numBytes": 0, "shardLengths": []},
            )
            said["shardLengths"].append(str(records))
            said["numBytes"] += (self.path / file).stat().st_size
        info: dict[str, Any] = {"name": _NAME, "version": "1.0.0", "fileFormat": "tfrecord"}
        if self.manifest.has_label and not self.manifest.column("label").nullable:
            info["supervisedKeys"] = {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}}
        listed = [said | {"numBytes": str(said["numBytes"])} for said in splits.values()]
        files = {
            "dataset_info.json": _format_json(info | {"splits": listed}),
            "features.json": _format_json(self._describe_features()),
        }
        for column in self.columns:
            if column.classes and can_be_lines(column.classes):
                files[f"{column.name}.labels.txt"] = "".join(f"{name}\n" for name in column.classes).encode("utf-8")
        return {name: [data] for name, data in files.items()}

    @cached_property
    def _split_names(self) -> dict[str, str]:
        """Names of splits that TensorFlow Datasets accepts, by split."""

        def rename(split: str) -> str:
            name = re.sub(r"[^A-Za-z0-9_]", "_", split)[:100] or "split"
            return f"{name}_" if name == "all" else name  # "all" would mean every split

        return self.rename_splits(rename)

    def _describe_features(self) -> dict[str, Any]:
        """Returns the content of ``features.json``: key, image and all columns."""
        image = self.manifest.image
        features = {"key": _make_feature("text", {})}
        if image.layout is None or self.recoded:
            jpeg = self.manifest.encoding == "jpeg"
            form = "jpeg" if jpeg else "png" if image.layout is not None else None
            features["image"] = _make_feature("image", _describe_image(3, form))
        else:
            features["image"] = _describe_tensor(image)
        for column in self.columns:
            features[column.name] = _describe_column(column)
            if column.nullable:
                features[column.valid_name] = _make_scalar("bool")
        return _make_feature("featuresDict", {"features": features})


def _encode_value(column: Column, raw: bytes, shape: Sequence[int]) -> dict[str, Any]:
    """Converts the stored bytes of a value to one or two features of an example, by name."""
    if has_varying_shapes(column):
        return {f"{column.name}/shape": np.array(shape, np.int64), f"{column.name}/value": [raw]}
    if column.form == "files":
        return {column.name: [bytes(file) for file in column.traits.files(column, raw)]}
    if _is_byte_string(column):
        return {column.name: [raw]}
    values = np.frombuffer(raw, NUMPY_DTYPE[column.dtype])
    if values.dtype.kind == "f":
        return {column.name: values}
    # Examples have no uint64: it keeps its bits.
    return {column.name: values.view(np.int64) if column.dtype == "uint64" else values.astype(np.int64)}


def _describe_column(column: Column) -> dict[str, Any]:
    """Returns the TFDS feature of a column, as in ``features.json``."""
    if column.form == "text":
        return _make_feature("text", {})
    if column.traits.has_classes:
        numbers = _make_scalar("int64")
        if column.classes:
            numbers = _make_feature("classLabel", {"numClasses": str(len(column.classes))})
        return numbers if column.kind == "fixed" else _make_feature("sequence", {"feature": numbers, "length": "-1"})
    if column.coordinates == "xyxy":
        box = _make_feature("boundingBox", {"dtype": "float32", "shape": {"dimensions": ["4"]}, "bboxFormat": "XYXY"})
        return _make_feature("sequence", {"feature": box, "length": "-1"})
    if column.form == "files":
        return _make_feature("sequence", {"feature": _make_feature("image", _describe_image(3, None)), "length": "-1"})
    if column.form in ("file", "bytes"):
        if column.form == "bytes" or column.nullable:  # readers must not decode a missing file
            return _make_scalar("string")
        return _make_feature("image", _describe_image(3, None) if column.holds_images else _describe_image(1, "png"))
    return _describe_tensor(column)


def _describe_tensor(column: Column) -> dict[str, Any]:
    """Returns the TFDS feature of a column of arrays, with -1 for sizes that vary."""
    sizes = (
        tuple(3 if axis == "C" and column.layout == "HWC" else -1 for axis in column.layout)
        if has_varying_shapes(column) and column.layout
        else column.shape
    )
    sizes = (-1, *sizes) if column.kind == "ragged" and column.layout is None else sizes
    encoding = "bytes" if _is_byte_string(column) else "none"
    dtype = NUMPY_DTYPE[column.dtype].name
    return _make_feature(
        "tensor", {"dtype": dtype, "encoding": encoding, "shape": {"dimensions": [str(n) for n in sizes]}}
    )


def _is_byte_string(column: Column) -> bool:
    """Tells if an example holds a value of the column as one byte string, not as numbers."""
    return column.form != "numbers" or column.layout is not None or column.dtype in PACKED


def _describe_image(channels: int, form: str | None) -> dict[str, Any]:
    """Returns the content of a TFDS image feature, for ``jpeg`` or ``png`` files or for any."""
    feature: dict[str, Any] = {"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", str(channels)]}}
    return feature if form is None else feature | {"encodingFormat": form}


def _make_scalar(dtype: str) -> dict[str, Any]:
    """Returns the TFDS feature of a single value."""
    return _make_feature("tensor", {"dtype": dtype, "encoding": "none", "shape": {}})


def _make_feature(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a TFDS feature: its ``content`` under the name ``kind``, and its Python class."""
    return {"pythonClassName": _CLASSES + _PYTHON[kind], kind: dict(content)}


def _format_json(plain: Any) -> bytes:
    """Formats ``plain`` as indented JSON with sorted keys and a line break."""
    return json.dumps(plain, indent=2, sort_keys=True).encode("ascii") + b"\n"
