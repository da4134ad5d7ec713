"""Exports in files of records: MDS shards of MosaicML Streaming, RecordIO of MXNet, TFRecord of TensorFlow Datasets.

- MDS: a folder a split with ``index.json`` and ``shard.00000.mds`` (``streaming/base/format/mds/``, version 2 of the
  format). Arrays are ``ndarray``, which has neither bool (written as ``uint8``) nor bfloat16 (its bits as ``uint16``).
- RecordIO: ``train-000000.rec`` with ``.idx`` and ``.lst`` beside it, see :mod:`packstore.sources.records.recordio`.
- TensorFlow Datasets: TFRecord files of ``tf.train.Example``, ``features.json`` and ``dataset_info.json``
  (https://www.tensorflow.org/datasets/external_tfrecord), for ``tfds.builder_from_directory``. Integers and float32,
  which an example holds exactly, are lists of numbers; float16, bfloat16, float64, and arrays of different shapes, are
  the bytes of a tensor.

In MDS and TFRecord each column becomes a value of the same name, and the key a text named ``key``. A missing value is
empty or zeros, and ``name_valid`` is 0.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from packstore.core.column_types.pictures import frame
from packstore.core.columns import NUMPY_DTYPE, Column
from packstore.core.errors import SampleError, UsageError
from packstore.core.files import sync_directory, sync_tree
from packstore.exports.base import Export, Record, can_be_lines, has_varying_shapes, name_folder, name_shard
from packstore.sources.records.recordio import HEADER
from packstore.sources.records.recordio import frame_record as frame_recordio_record
from packstore.sources.records.wire import PACKED, frame_record, write_example
from packstore.stores.export_manifest import ExportManifest

_INDEX = "index.json"
_MAX_SHARD_BYTES = (1 << 32) - 1
"""Most bytes of a shard: its offsets have 32 bits."""
_CODES = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34,
    "uint64": 64, "int64": 65, "float64": 66,
}  # fmt: skip
"""Codes of the dtypes of ``ndarray``."""
_EXACT = 1 << 24
"""Largest label: RecordIO's labels are float32, which is exact for integers up to here."""
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


class MdsExport(Export):
    """MDS shards, and an ``index.json`` for each split. A shard of 4 GiB or more raises :class:`UsageError`.

    A missing value is empty or zeros, and 0 in the column ``NAME_valid``.
    """

    name = "mds"
    help = "MDS shards of MosaicML Streaming"
    suffixes = (".mds",)
    source = "mds"
    image_forms: ClassVar[frozenset[str]] = frozenset({"files", "uint8", "floats"})
    keeps_keys = True
    shard_bytes = 1 << 26

    def exact_columns(self) -> Sequence[str]:
        """Returns the names of all the user's columns, without ``image``."""
        return [column.name for column in self.columns]

    def losses(self) -> Sequence[str]:
        """Returns a text for each of these parts that the store has: class names, bfloat16 values, lists of images,
        normalisation."""
        lost = []
        if any(column.classes is not None for column in self.columns):
            lost.append("names of classes: labels are numbers")
        if lists := [column.name for column in self.columns if column.form == "files"]:
            lost.append(
                f"that {', '.join(lists)} are images: a value is their sizes and files (packstore guide formats)"
            )
        return [*lost, *self.array_losses()]

    def overhead(self) -> int:
        """Returns estimated bytes of a sample's key, offset and sizes."""
        return 16 + self.mean_key_bytes + 4 * len(self.columns)

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> str:
        """Creates the folder of the split and the shard's file in it. Collects the samples in a temporary file, since
        the shard's header needs their number."""
        folder, encodings = name_folder(split), self._choose_encodings()
        (self.path / folder).mkdir(exist_ok=True)
        file, ends = f"{folder}/shard.{number:05}.mds".lstrip("/"), array("Q", [0])
        with self.open_files(file) as (out,), tempfile.TemporaryFile(dir=self.path / folder) as samples:
            for record in records:
                ends.append(ends[-1] + samples.write(self._encode_sample(record, encodings)))
            described = json.dumps(_describe_columns(encodings), sort_keys=True).encode("ascii")
            begin = 4 * (len(ends) + 1) + len(described)
            if begin + ends[-1] > _MAX_SHARD_BYTES:
                raise UsageError(f"an MDS shard of {begin + ends[-1]} bytes is too large; give a smaller --shard-size")
            out.write(np.uint32(len(ends) - 1).tobytes())
            out.write((np.frombuffer(ends, np.uint64) + np.uint64(begin)).astype("<u4").tobytes())
            out.write(described)
            samples.seek(0)
            shutil.copyfileobj(samples, out, 1 << 20)
        return file

    def _encode_sample(self, record: Record, encodings: Mapping[str, str]) -> bytes:
        """Returns the sample of a record: the sizes of values that vary in size, then all values."""
        values = {"key": record.key.encode("utf-8", "surrogateescape"), "image": record.image_bytes}
        if isinstance(record.image, np.ndarray):
            values["image"] = _encode_value(record.columns["image"], values["image"], record.image.shape)
        for column in self.columns:
            values[column.name] = _encode_value(column, record.stored_bytes(column.name), record.shape_of(column))
            if column.nullable:
                values[column.valid_name] = bytes([record.has_value(column.name)])
        data = [values[name] for name in encodings]
        sizes = [len(values[name]) for name, encoding in encodings.items() if not _parse_fixed_size(encoding)]
        return np.array(sizes, "<u4").tobytes() + b"".join(data)

    def sync(self, file: str | None) -> None:
        """Makes the shard's file and the export's folder durable, but not the entry in the split's folder."""
        super().sync(file)
        sync_directory(self.path)

    def documents(self, export_manifest: ExportManifest, lines: Path | None) -> Mapping[str, Iterable[bytes]]:
        """Returns ``index.json`` for each split that has records."""
        shards: dict[str, list[dict[str, Any]]] = {}
        for file, _, records in export_manifest.shards:
            folder, _, name = file.rpartition("/")
            size = (self.path / file).stat().st_size
            said = {"samples": records, "raw_data": {"basename": name, "bytes": size, "hashes": {}}, "zip_data": None}
            shards.setdefault(folder, []).append(_describe_columns(self._choose_encodings()) | said)
        indexes = {folder: {"version": 2, "shards": listed} for folder, listed in shards.items()}
        return {
            f"{folder}/{_INDEX}".lstrip("/"): [json.dumps(index, sort_keys=True).encode("ascii")]
            for folder, index in indexes.items()
        }

    def _choose_encodings(self) -> dict[str, str]:
        """Returns the MDS encoding of each field of a sample."""
        image = self.manifest.image
        # Image files of any kind are ``jpeg``.
        encodings = {"key": "str", "image": "jpeg" if image.layout is None or self.recoded else _choose_encoding(image)}
        for column in self.columns:
            encodings[column.name] = _choose_encoding(column)
            if column.nullable:
                encodings[column.valid_name] = "uint8"
        return dict(sorted(encodings.items()))  # sorted by name, as in the format


def _describe_columns(encodings: Mapping[str, str]) -> dict[str, Any]:
    """Returns the description of the columns for shards and indexes: names, encodings and fixed sizes."""
    return {
        "version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": None,
        "column_names": list(encodings), "column_encodings": list(encodings.values()),
        "column_sizes": [_parse_fixed_size(encoding) for encoding in encodings.values()],
    }  # fmt: skip


def _choose_encoding(column: Column) -> str:
    """Returns the name of the MDS encoding of a column, such as ``jpeg``, ``int`` or ``ndarray:float32:4``."""
    dtype = NUMPY_DTYPE[column.dtype].name
    dtype = dtype if dtype in _CODES else "uint8"  # MDS has no bool
    if column.form == "text":
        return "json" if column.traits.extension == "json" else "str"
    if column.form == "files":
        return "bytes"  # framed, as in the store
    if column.form in ("file", "bytes"):
        # Readers must not decode a missing file.
        return "bytes" if column.form == "bytes" or column.nullable else "jpeg" if column.holds_images else "png"
    if column.kind == "fixed" and not column.shape:
        return dtype
    whole = column.kind == "fixed" and 0 not in column.shape
    return f"ndarray:{dtype}:{','.join(map(str, column.shape))}" if whole else f"ndarray:{dtype}"


def _encode_value(column: Column, raw: bytes, shape: Sequence[int]) -> bytes:
    """Encodes a value for MDS from its stored bytes."""
    if not _choose_encoding(column).startswith("ndarray") or _parse_fixed_size(_choose_encoding(column)):
        return raw
    # Arrays without a fixed size get a header with their shape.
    if column.kind == "ragged" and column.layout is None:
        row = max(math.prod(column.shape) * NUMPY_DTYPE[column.dtype].itemsize, 1)
        shape = (len(raw) // row, *column.shape)
    sizes = np.array(shape, np.uint64)
    width = next(w for w in (1, 2, 4, 8) if w == 8 or not sizes.size or int(sizes.max()) < 1 << 8 * w)
    return bytes([len(sizes) << 2 | width.bit_length() - 1]) + sizes.astype(f"<u{width}").tobytes() + raw


def _parse_fixed_size(encoding: str) -> int | None:
    """Returns the bytes of each value with an encoding; None if values vary in size."""
    name, _, rest = encoding.partition(":")
    if name in _CODES:
        return np.dtype(name).itemsize
    dtype, _, shape = rest.partition(":")
    return np.dtype(dtype).itemsize * math.prod(map(int, shape.split(","))) if shape else None


class RecordioExport(Export):
    """A ``.rec`` file for each shard, with its index and its list of keys.

    If a label may be missing, is negative or above 2^24, all labels are written as 0. Float32 does not hold larger
    numbers exactly.
    """

    name = "recordio"
    help = "RecordIO files of MXNet"
    suffixes = (".recordio",)
    source = "recordio"
    image_forms: ClassVar[frozenset[str]] = frozenset({"files"})

    def exact_columns(self) -> Sequence[str]:
        """Returns ``label`` if no label may be missing and all are 0 … 2^24. Returns none otherwise. Reads all
        labels."""
        return ["label"] if self._holds_label else []

    def losses(self) -> Sequence[str]:
        """Returns a text on escaped characters of keys. Adds one on class names if the store has them."""
        lost = ["tabs and line breaks in keys: .lst has %09, %0A and %0D for them"]
        if self.manifest.classes is not None:
            lost.append("names of classes: labels are numbers")
        return lost

    @cached_property
    def _holds_label(self) -> bool:
        """Tells if every record has a label that float32 holds exactly."""
        if not self.manifest.has_label or self.manifest.column("label").nullable:
            return False
        values = np.asarray(self.reader.column("label"))
        return bool(np.all((values >= 0) & (values <= _EXACT)))  # up to 2^24

    def overhead(self) -> int:
        """Returns estimated bytes of a record's header, and of its lines in the index and the list."""
        return 60 + self.mean_key_bytes

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> str:
        """Writes the images with their labels, their places to the index, and their keys to the list.

        A label is 0 if labels are not held. Raises :class:`SampleError` for an image too large for a record.
        """
        file = name_shard(split, number, "rec")
        with self.open_files(file, *_companion_files(file)) as (out, index, listed):
            for count, record in enumerate(records):
                assert isinstance(record.image, bytes)
                label = int(record["label"]) if self._holds_label else 0
                try:
                    data = frame_recordio_record(HEADER.pack(0, label, count, 0) + record.image)
                except ValueError as error:
                    raise SampleError(record.key, str(error)) from None
                index.write(b"%d\t%d\n" % (count, out.tell()))
                out.write(data)
                name = record.key.translate({9: "%09", 10: "%0A", 13: "%0D"}).encode("utf-8", "surrogateescape")
                listed.write(b"%d\t%d\t%s\n" % (count, label, name))
        return file

    def sync(self, file: str | None) -> None:
        """Makes the shard's three files durable."""
        assert file is not None
        for each in (file, *_companion_files(file)):
            sync_tree(self.path / each)

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Adds the index and the list of each shard to the export manifest. Writes the export manifest unless the
        export is bare."""
        files = tuple(file for shard in export_manifest.shards for file in _companion_files(shard.file))
        return super().finish(replace(export_manifest, files=files), lines)


def _companion_files(file: str) -> tuple[str, str]:
    """Returns the paths of the index and the list of a ``.rec`` file."""
    stem = file.removesuffix(".rec")
    return f"{stem}.idx", f"{stem}.lst"


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
            example |= _encode_features(record.columns["image"], record.image_bytes, record.image.shape)
        else:
            example["image"] = [record.image]
        for column in self.columns:
            empty = column.form == "files" and not record.has_value(column.name)
            raw = frame([]) if empty else record.stored_bytes(column.name)
            example |= _encode_features(column, raw, record.shape_of(column))
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


def _encode_features(column: Column, raw: bytes, shape: Sequence[int]) -> dict[str, Any]:
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
