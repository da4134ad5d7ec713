"""Reads TensorFlow Datasets: folders of TFRecord with ``dataset_info.json`` and ``features.json``
(https://www.tensorflow.org/datasets/external_tfrecord). Also reads exports of packstore in this format.

Features become examples as in ``tensorflow_datasets/core/example_serializer.py``, version 4.9. ``features.json`` has
the messages of ``tensorflow_datasets/core/proto/feature.proto`` as JSON. The Python classes that it names are neither
imported nor needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.export_manifest import StoredBytes
from packstore.core.protobuf import PACKED, Message
from packstore.images.sniff import max_file_bytes
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.columns import choose_main_image, name_columns
from packstore.sources.exported import ExportedRows, open_with
from packstore.sources.records import Record, RecordFiles, RecordIndex, find_named_file, read_index, refuse_damage
from packstore.sources.records.arrayrecord import ArrayRecordFiles
from packstore.sources.records.examples import (
    Example,
    ExampleSource,
    FeatureColumn,
    measure_largest_value,
)
from packstore.sources.records.facts import Numbering, read_class_names
from packstore.sources.records.typed import NUMBERS

INFO, FEATURES = "dataset_info.json", "features.json"
_MAX_JSON = 1 << 26
_MAX_SHARDS = 1 << 20
_MAX_COLUMNS, _MAX_DEPTH = 1000, 16
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_KINDS = {"image": "image", "tensor": "", "classLabel": "class", "boundingBox": "box", "text": "text"}
_FORMATS = ("tfrecord", "array_record")


class TfdsSource(ExampleSource):
    """Source of one version of a TensorFlow Datasets data set, in TFRecord or ArrayRecord files. Opening raises
    :class:`SourceError` for a missing shard, another format of files, and ``features.json`` of an old version. A shard
    with another number of records than ``dataset_info.json`` says adds a bad sample."""

    kind = "tfds"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        folder, features = self._folder, read_index(self._folder / FEATURES, _MAX_JSON)
        with refuse_damage(folder / FEATURES):
            self._described, self._ignored = _read_columns(features, folder)
        self.label_names = {each.feature: () for each in self._described.values() if each.kind == "class"}
        image = self._described["image"]
        if image.kind == "pixels" and -1 not in image.shape:
            self.shape = (*image.shape[:2], 3)
        self.evidence = f"{FEATURES} and {self.evidence} of {printable(str(self._info.get('name', '')))}"

    def list_shards(self) -> list[tuple[str, Path]]:
        """Lists split and path of each shard that ``dataset_info.json`` names. Raises :class:`SourceError` for a
        missing shard or invalid content."""
        self._folder = folder = _find_version(self.path)
        self._info = read_index(folder / INFO, _MAX_JSON)
        self._format = str(self._info.get("fileFormat", "tfrecord"))
        with refuse_damage(folder / INFO):
            if self._format not in _FORMATS:
                raise ValueError(f"its files are of the format {self._format}; packstore reads {', '.join(_FORMATS)}")
            shards = list(_list_shards(folder, self._info))
        self._counts = [count for *_, count in shards]
        return [(split, file) for split, file, _ in shards]

    def open_files(self, paths: Sequence[Path]) -> RecordFiles:
        """Returns a reader of TFRecord or ArrayRecord files."""
        return super().open_files(paths) if self._format == "tfrecord" else ArrayRecordFiles(paths)

    def files(self) -> Iterator[Path]:
        """Yields the shards, the two JSON files that describe them, and the files of class names."""
        yield from super().files()
        yield from (self._folder / name for name in (INFO, FEATURES))
        yield from sorted(self._folder.glob("*.labels.txt"))

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts features that no column can hold, by reason."""
        return self._ignored

    def index_file(self, number: int) -> RecordIndex:
        """Indexes a shard. If it has more or fewer records than ``dataset_info.json`` says, keeps the records, and
        records damage at byte 0."""
        index = super().index_file(number)
        found, expected = len(index.keys), self._counts[number]
        if index.damaged is None and found != expected:
            index.damaged = Record(0, -1, fault=f"it has {found} records, and {INFO} says {expected}")
        return index

    @cached_property
    def example_columns(self) -> Mapping[str, FeatureColumn]:
        """Column of each feature, by name, without the text feature that has the keys. Columns are optional if an
        example lacks the feature, or has the label -1. Strings are bytes if none looks like a text."""
        columns, key = {}, self.key_feature
        for name, column in self._described.items():
            facts, labels = self.facts.features.get(column.feature), self.facts.labels.get(column.feature, {})
            some = name != "image" and (facts is None or facts.missing or -1 in labels)
            kind = column.kind
            if kind == "string":
                kind = "bytes" if facts is not None and facts.looks and "text" not in facts.looks else "text"
            if column.kind != "text" or column.feature != key:
                columns[name] = replace(column, optional=some, kind=kind)
        return columns


def _read_columns(features: Mapping[str, Any], folder: Path) -> tuple[dict[str, FeatureColumn], Counter[str]]:
    """Converts ``features.json`` to columns. Counts features that no column can hold, by type. A uint8 array of pixels
    called ``image`` is an image. Reads names of classes from files in ``folder``. The only sequence of boxes becomes
    ``boxes``, and the only class label beside it ``labels``.

    Raises :class:`ValueError` if there are no images, and for more than 1,000 columns. Raises other errors for invalid
    content.
    """
    if "featuresDict" not in features:
        raise ValueError("it is of an old version of TensorFlow Datasets: write it again with 4.7 or later")
    columns: dict[str, FeatureColumn] = {}
    ignored = Counter[str]()
    for path, what, said, lengths in _walk_features(features, (), (), 0):
        made = _make_column("/".join(path), what, said, lengths)
        if made is None:
            ignored[f"features of type {printable(what)} that no column can hold"] += 1
            continue
        if made.kind == "class":
            where = "-".join(part.replace("/", ".") for part in path)
            classes = read_class_names(folder / f"{where}.labels.txt", int(said.get("numClasses") or 0), FEATURES)
            made = replace(made, numbering=Numbering(classes=classes))
        columns[made.feature] = made
        if len(columns) > _MAX_COLUMNS:
            raise ValueError(f"it has more than {_MAX_COLUMNS:,} features")
    own = columns.get("image")
    if own is not None and own.kind == "uint8" and len(own.shape) == 3 and own.shape[2] in (1, 3):
        columns["image"] = replace(own, kind="pixels")
    images = [name for name, each in columns.items() if each.kind in ("image", "pixels") and not each.lengths]
    names = name_columns(folder, columns, choose_main_image(folder, images, columns))
    sequences = {name: each.kind for name, each in columns.items() if len(each.lengths) == 1}
    boxes = [name for name, kind in sequences.items() if kind == "box"]
    for box in boxes:
        beside = [
            name
            for name, kind in sequences.items()
            if kind == "class" and name.rpartition("/")[0] == box.rpartition("/")[0] != ""
        ]
        renamed = {box: "boxes"} | ({beside[0]: "labels"} if len(beside) == 1 else {})
        if len(boxes) == 1 and not {*renamed.values()} & {names[name] for name in names.keys() - renamed.keys()}:
            names |= renamed
        columns |= {name: replace(columns[name], of=names[box]) for name in beside}
    image_first = sorted(columns, key=lambda name: names[name] != "image")
    return {names[name]: columns[name] for name in image_first}, ignored


def _walk_features(
    node: Mapping[str, Any], path: tuple[str, ...], lengths: tuple[int, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], str, Mapping[str, Any], tuple[int, ...]]]:
    """Yields path, type, description and lengths of the sequences of each single feature within groups and sequences.
    Raises :class:`ValueError` for more than 16 levels."""
    if depth > _MAX_DEPTH:
        raise ValueError("its features are nested too deeply")
    if "featuresDict" in node:
        for name, child in node["featuresDict"].get("features", {}).items():
            yield from _walk_features(child, (*path, str(name)), lengths, depth + 1)
    elif "sequence" in node:
        length = int(node["sequence"].get("length", -1))
        yield from _walk_features(node["sequence"]["feature"], path, (*lengths, length), depth + 1)
    else:
        others = (name for name in node if name not in ("pythonClassName", "description"))
        what = next((name for name in _KINDS if name in node), None) or next(others, "unknown")
        said = node.get(what, {})
        yield path, what, said if isinstance(said, dict) else {}, lengths


def _make_column(feature: str, what: str, said: Mapping[str, Any], lengths: tuple[int, ...]) -> FeatureColumn | None:
    """Makes the column of a feature; None if no column can hold it."""
    shape = tuple(int(n) for n in said.get("shape", {}).get("dimensions", ()))
    dtype, encoding = str(said.get("dtype", "")), str(said.get("encoding", "none")).lower()
    if what == "image":
        # A mask is a PNG of one channel, with such a name or with labels in its description.
        named = "mask" in feature or "segmentation" in feature or "label" in said
        is_mask = shape[-1:] == (1,) and said.get("encodingFormat") == "png" and named and not lengths
        readable = dtype != "float32" and len(lengths) <= 1
        return FeatureColumn(feature, "mask" if is_mask else "image", (), lengths) if readable else None
    if what == "boundingBox":
        form = str(said.get("bboxFormat") or "REL_YXYX")
        return FeatureColumn(feature, "box", (), lengths, encoding=form) if len(lengths) <= 1 else None
    if what != "tensor":
        return FeatureColumn(feature, _KINDS[what], (), lengths) if what in _KINDS else None
    packed = "" if encoding in ("", "none") else encoding
    is_known = dtype in ("bool", *NUMBERS) or (dtype == "string" and not packed)
    if not is_known or packed not in ("", "bytes", "zlib") or (packed and lengths):
        return None
    return FeatureColumn(feature, dtype, shape, lengths, encoding=packed)


def _list_shards(folder: Path, info: Mapping[str, Any]) -> Iterator[tuple[str, Path, int]]:
    """Yields split, path and number of records of each shard that ``dataset_info.json`` names. Raises
    :class:`ValueError` and other errors for a missing shard or invalid content."""
    for split in info.get("splits", ()):
        name, lengths = str(split["name"]), [int(n) for n in split.get("shardLengths", ())]
        if len(lengths) > _MAX_SHARDS:
            raise ValueError(f"{len(lengths)} shards")
        for i, count in enumerate(lengths):
            file = str(split.get("filepathTemplate") or _TEMPLATE)
            for key, value in {
                "DATASET": info["name"], "SPLIT": name, "SHARD_X_OF_Y": f"{i:05}-of-{len(lengths):05}",
                "FILEFORMAT": info.get("fileFormat", "tfrecord"),
                "SHARD_INDEX": f"{i:05}", "NUM_SHARDS": f"{len(lengths):05}",
            }.items():  # fmt: skip
                file = file.replace(f"{{{key}}}", str(value))
            yield name, find_named_file(folder, file), count


def _find_versions(path: Path) -> list[Path]:
    """Finds folders of versions with ``dataset_info.json``: ``path`` itself, else all folders like ``1.0.0`` and
    ``config/1.0.0`` in it. Returns ``[]`` if there are none."""
    tree = open_tree(path) if path.is_dir() else None
    if tree is None or (path / INFO).is_file():
        return [path] if tree is not None else []
    names = [*tree.names("").folders]
    below = (name for name in names if not _VERSION.fullmatch(name))
    names += [f"{folder}/{name}" for folder in below for name in tree.names(folder).folders]
    versions = (path / name for name in names if _VERSION.fullmatch(name.rpartition("/")[2]))
    return [version for version in versions if (version / INFO).is_file()]


def _find_version(path: Path) -> Path:
    """Finds the only version at a path. Raises :class:`SourceError` for none, :class:`AmbiguousSourceError` for
    several."""
    versions = _find_versions(path)
    if len(versions) > 1:
        several = ", ".join(printable(str(each)) for each in versions[:5]) + (", …" if len(versions) > 5 else "")
        raise AmbiguousSourceError(
            f"{printable(str(path))} holds several versions or configurations: give one of {several}",
            [Answer(source=each) for each in versions[:5]],
        )
    if not versions:
        raise SourceError(f"{printable(str(path))} holds no {INFO} of TensorFlow Datasets")
    return versions[0]


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Certain for a version of a dataset with ``dataset_info.json`` and ``features.json``, else ``NO``. Raises
    :class:`AmbiguousSourceError` for several versions."""
    if any((each / FEATURES).is_file() for each in _find_versions(path)):
        _find_version(path)  # several are a question
        return Certainty.CERTAIN
    return Certainty.NO  # others have such a file, too


class ExportedTfds(ExportedRows, ExampleSource):
    """Source of TFRecord shards that packstore exported; the feature ``key`` has the keys."""

    kind = "tfds"
    has_keys = True

    def index_record(self, number: int, place: int, message: Message) -> tuple[int, str | None]:
        """Returns the size of the image and the key. For an invalid record, returns the size of the record and None.
        Counts the example, but collects no facts: the export manifest has the columns."""
        try:
            example = Example(message)
            self.facts.parsed += 1
            key = example.only_bytes("key").decode("utf-8", "surrogateescape")
            return measure_largest_value(example.features), key
        except ValueError:
            return message.size, None

    def decode_example(self, example: Example) -> dict[str, Any]:
        """Decodes the image and the values of the exported columns; leaves out values that are missing. Raises
        :class:`ValueError` for a missing image, and for a value that does not fit its column."""
        image, limit = self.export_manifest.manifest.image, max_file_bytes(self.options.max_pixels)
        files = image.layout is None or self.export_manifest.image == "png"
        values = {"image": example.only_bytes("image") if files else _decode_column(image, example, limit)}
        for column in (column for column in self.columns_at_rest if column.name in self.export_manifest.held):
            valid = example.features.get(column.valid_name) if column.nullable else None
            if valid is None or valid.numbers(example.message).any():
                try:
                    values[column.name] = _decode_column(column, example, limit)
                except ValueError as error:
                    raise ValueError(f"{column.name}: {error}") from error
        return values


def _decode_column(column: Column, example: Example, limit: int) -> Any:
    """Decodes the value of a column to an array, a list of files, or :class:`StoredBytes`. Raises :class:`ValueError`
    for a missing feature, and for values that do not fit the column."""
    is_array = column.layout is not None or column.kind == "fixed"
    if not is_array and column.form != "numbers":
        many = column.form == "files"
        return example.byte_values(column.name) if many else StoredBytes(example.only_bytes(column.name))
    shape = column.shape
    if column.kind != "fixed":
        shape = (-1,) * len(column.layout) if column.layout else (-1, *shape)
    packed = "bytes" if column.layout is not None or column.dtype in PACKED else ""
    feature = FeatureColumn(column.name, NUMPY_DTYPE[column.dtype].name, shape, encoding=packed)
    array = feature.decode_array(example, limit)
    return array if is_array else StoredBytes(array.tobytes())


KIND = Kind("tfds", "a folder of TensorFlow Datasets", _recognise, open_with(TfdsSource, ExportedTfds))
