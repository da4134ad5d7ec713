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

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.export_manifest import StoredBytes
from packstore.core.protobuf import PACKED, Message
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.columns import make_column_name
from packstore.sources.exported import ExportedRows, open_with
from packstore.sources.records import RecordFiles, RecordIndex, list_first_shards, read_index
from packstore.sources.records.arrayrecord import ArrayRecordFiles
from packstore.sources.records.examples import (
    KEYS,
    SUFFIXES,
    Example,
    ExampleSource,
    FeatureColumn,
    is_tfrecord,
    measure_largest_value,
    to_pixels,
)
from packstore.sources.records.facts import Numbering, read_class_names
from packstore.sources.records.typed import NUMBERS
from packstore.sources.schema import RELATIVE

INFO, FEATURES = "dataset_info.json", "features.json"
_MAX_JSON = 1 << 26
_MAX_SHARDS = 1 << 20
_MAX_COLUMNS, _MAX_DEPTH = 1000, 16
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_KINDS = {"image": "image", "tensor": "", "classLabel": "class", "boundingBox": "box", "text": "text"}


class TfdsSource(ExampleSource):
    """Source of one version of a TensorFlow Datasets data set, in TFRecord or ArrayRecord files. Opening raises
    :class:`SourceError` for a missing shard, another format of files, and ``features.json`` of an old version. A shard
    with another number of records than ``dataset_info.json`` says adds a bad sample."""

    kind = "tfds"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self._folder = folder = _find_version(path)
        info, features = (read_index(folder / name, _MAX_JSON) for name in (INFO, FEATURES))
        if "featuresDict" not in features:
            raise SourceError(
                f"{printable(str(folder / FEATURES))} is of an old version of TensorFlow Datasets: write it again with "
                "tfds.builder_from_directory(…).info.write_to_directory(…) of version 4.7 or later"
            )
        self._format = str(info.get("fileFormat", "tfrecord"))
        if self._format not in ("tfrecord", "array_record"):
            raise SourceError(
                f"{printable(str(folder))} holds {printable(self._format)} files; packstore reads tfrecord and "
                "array_record"
            )
        shards = list(_list_shards(folder, info))
        if not shards:
            raise SourceError(f"{printable(str(folder / INFO))} names no shards")
        super().__init__(path, options, [(split, file) for split, file, _ in shards])
        self._counts = [count for _, _, count in shards]
        try:
            self._described, self._ignored = _read_columns(features, folder)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise SourceError(f"{printable(str(folder / FEATURES))} cannot be used: {printable(str(error))}") from None
        self.label_names = {each.feature: () for each in self._described.values() if each.kind == "class"}
        image = self._described["image"]
        if image.kind == "pixels" and -1 not in image.shape:
            self.shape = (*image.shape[:2], 3)
        plural = "s" * (len(shards) != 1)
        self.evidence = f"{FEATURES} and {len(shards)} shard{plural} of {printable(str(info.get('name', '')))}"

    def open_records(self, paths: Sequence[Path]) -> RecordFiles:
        """Returns a reader of TFRecord or ArrayRecord files."""
        return ArrayRecordFiles(paths) if self._format == "array_record" else super().open_records(paths)

    def files(self) -> Iterator[Path]:
        """Yields the shards, the two JSON files that describe them, and the files of class names."""
        yield from super().files()
        yield from (self._folder / name for name in (INFO, FEATURES))
        yield from sorted(self._folder.glob("*.labels.txt"))

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts features that no column can hold, by reason."""
        return self._ignored

    def decode_example(self, example: Example) -> dict[str, Any]:
        """Decodes the features of an example, by column. A missing feature becomes None. Converts boxes to pixels."""
        values = super().decode_example(example)
        for name, column in self.example_columns.items():
            if column.kind == "box" and values[name] is not None:
                values[name] = to_pixels(column.encoding, values[name], values["image"])
                values[RELATIVE] = column.encoding.startswith("REL_")
        return values

    def index_file(self, number: int) -> RecordIndex:
        """Indexes a shard. If it has more or fewer records than ``dataset_info.json`` says, keeps the records, and
        records damage at byte 0."""
        index = super().index_file(number)
        found, expected = len(index.places), self._counts[number]
        if index.damaged is None and found != expected:
            index.damaged = 0, f"it has {found} records, and {INFO} says {expected}"
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
    """Converts ``features.json`` to columns. Counts features that no column can hold, by reason. The first image that
    is no mask becomes ``image``, unless there is such a column. Reads names of classes from files in ``folder``. The
    only sequence of boxes becomes ``boxes``, and the only class label beside it ``labels``.

    Raises :class:`ValueError` if there are no images, more than 1,000 columns, or two columns with one name. Raises
    other errors for invalid content.
    """
    columns: dict[str, FeatureColumn] = {}
    ignored = Counter[str]()
    for path, what, said, lengths in _walk_features(features, (), (), 0):
        made = _make_column("/".join(path), what, said, lengths)
        if isinstance(made, str):
            ignored[f"features that are {made}"] += 1
            continue
        if made.kind == "class":
            where = "-".join(part.replace("/", ".") for part in path)
            names = read_class_names(folder / f"{where}.labels.txt", int(said.get("numClasses") or 0), FEATURES)
            made = replace(made, numbering=Numbering(classes=names))
        name = make_column_name(made.feature if made.feature in KEYS else "_".join(path))
        if name in columns:
            raise ValueError(f"two features would be the column {name!r}")
        if len(columns) >= _MAX_COLUMNS:
            raise ValueError(f"it has more than {_MAX_COLUMNS:,} features")
        columns[name] = made
    columns = _rename_boxes(columns)
    images = [name for name, each in columns.items() if each.kind == "image" and not each.lengths]
    own = columns.get("image")
    if own is not None and own.kind == "uint8" and len(own.shape) == 3 and own.shape[2] in (1, 3):
        columns["image"] = replace(own, kind="pixels")
        images.append("image")
    if not images:
        raise ValueError(f"it has no images, but {', '.join(columns) or 'nothing'}")
    if "image" not in images:
        if "image" in columns:
            raise ValueError(f"its feature 'image' is none, and {images[0]!r} is")
        columns = {"image" if name == images[0] else name: each for name, each in columns.items()}
    return columns, ignored


def _rename_boxes(columns: dict[str, FeatureColumn]) -> dict[str, FeatureColumn]:
    """Renames the only sequence of boxes to ``boxes``, and the class label beside it to ``labels``. Several labels
    beside it keep their names. Renames none if another column has such a name. Sets the boxes of labels."""
    boxes = [name for name, each in columns.items() if each.kind == "box" and len(each.lengths) == 1]
    for box in boxes:
        beside = columns[box].feature.rpartition("/")[0]
        labels = [
            name
            for name, each in columns.items()
            if each.kind == "class" and len(each.lengths) == 1 and each.feature.rpartition("/")[0] == beside != ""
        ]
        names = {box: "boxes"} | ({labels[0]: "labels"} if len(labels) == 1 else {})
        if len(boxes) > 1 or (set(names.values()) - set(names)) & columns.keys():
            names = {}
        columns = {
            names.get(name, name): replace(each, of=names.get(box, box)) if name in labels else each
            for name, each in columns.items()
        }
    return columns


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
        what = next((name for name in _KINDS if name in node), None) or next(others, "of no known kind")
        said = node.get(what, {})
        yield path, what, said if isinstance(said, dict) else {}, lengths


def _make_column(feature: str, what: str, said: Mapping[str, Any], lengths: tuple[int, ...]) -> FeatureColumn | str:
    """Makes the column of a feature, or returns the reason why no column can hold it."""
    if what not in _KINDS:
        return what
    shape = tuple(int(n) for n in said.get("shape", {}).get("dimensions", ()))
    dtype, encoding = str(said.get("dtype", "")), str(said.get("encoding", "none")).lower()
    if what == "image":
        # A mask is a PNG of one channel, with such a name or with labels in its description.
        named = "mask" in feature or "segmentation" in feature or "label" in said
        is_mask = shape[-1:] == (1,) and said.get("encodingFormat") == "png" and named
        reason = "images of float32" if dtype == "float32" else ""
        if len(lengths) > 1:
            reason = "sequences of sequences of images"
        return reason or FeatureColumn(feature, "mask" if is_mask and not lengths else "image", (), lengths)
    if what == "boundingBox":
        form = str(said.get("bboxFormat") or "REL_YXYX")
        if len(lengths) > 1:
            return "sequences of sequences of boxes"
        return FeatureColumn(feature, "box", (), lengths, encoding=form)
    if what != "tensor":
        return FeatureColumn(feature, _KINDS[what], (), lengths)
    packed = "" if encoding in ("", "none") else encoding
    if dtype not in ("bool", *NUMBERS) and (dtype != "string" or packed):
        return f"tensors of {printable(dtype)}"
    if packed not in ("", "bytes", "zlib") or (packed and lengths):
        return "sequences of packed tensors"
    return FeatureColumn(feature, dtype, shape, lengths, encoding=packed)


def _list_shards(folder: Path, info: Mapping[str, Any]) -> Iterator[tuple[str, Path, int]]:
    """Yields split, path and number of records of each shard that ``dataset_info.json`` names. Raises
    :class:`SourceError` for a missing shard or invalid content."""
    try:
        for split in info.get("splits", ()):
            name, lengths = str(split["name"]), [int(n) for n in split.get("shardLengths", ())]
            if len(lengths) > _MAX_SHARDS:
                raise ValueError(f"{len(lengths)} shards")
            for i, count in enumerate(lengths):
                of = f"{i:05}-of-{len(lengths):05}"
                file = str(split.get("filepathTemplate") or _TEMPLATE)
                for key, value in {
                    "DATASET": info["name"], "SPLIT": name, "SHARD_X_OF_Y": of,
                    "FILEFORMAT": info.get("fileFormat", "tfrecord"),
                    "SHARD_INDEX": f"{i:05}", "NUM_SHARDS": f"{len(lengths):05}",
                }.items():  # fmt: skip
                    file = file.replace(f"{{{key}}}", str(value))
                if "/" in file or "\0" in file or file.startswith("."):
                    raise ValueError(f"the name {file!r}")
                if not (folder / file).is_file():
                    raise SourceError(f"{printable(str(folder / file))} is missing; {INFO} names it")
                yield name, folder / file, count
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SourceError(f"{printable(str(folder / INFO))} cannot be used: {printable(str(error))}") from None


def _find_versions(path: Path) -> list[Path]:
    """Finds folders of versions with ``dataset_info.json``: ``path`` itself, else all folders like ``1.0.0`` and
    ``config/1.0.0`` in it. Returns ``[]`` if there are none. Raises :class:`OSError` for a folder that cannot be
    listed."""
    if (path / INFO).is_file():
        return [path]
    tree = open_tree(path) if path.is_dir() else None
    if tree is None:
        return []
    names = [*tree.names("").folders]
    below = (name for name in names if not _VERSION.fullmatch(name))
    names += [f"{folder}/{name}" for folder in below for name in tree.names(folder).folders]
    versions = (path / name for name in names if _VERSION.fullmatch(name.rpartition("/")[2]))
    return [version for version in versions if (version / INFO).is_file()]


def _find_version(path: Path) -> Path:
    """Finds the only version at a path. Raises :class:`SourceError` for none, :class:`AmbiguousSourceError` for
    several."""
    try:
        versions = _find_versions(path)
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be listed: {error.strerror or error}") from None
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
    :class:`AmbiguousSourceError` for several versions, and for TFRecord files without ``features.json``."""
    try:
        versions = _find_versions(path)
    except OSError:
        return Certainty.NO
    if any((each / FEATURES).is_file() for each in versions):
        _find_version(path)  # several are a question
        return Certainty.CERTAIN
    if any(is_tfrecord(file) for each in versions for file in list_first_shards(each, SUFFIXES)):
        raise AmbiguousSourceError(
            f"{printable(str(path))} has {INFO} of TensorFlow Datasets, but no {FEATURES}, which says what its "
            "features are: a version before 4.0 wrote it. Write it again with version 4.7 or later, or pack its "
            "TFRecord files as they are with --source tfrecord"
        )
    return Certainty.NO  # others have such a file, too


class ExportedTfds(ExportedRows, ExampleSource):
    """Source of TFRecord shards that packstore exported; the feature ``key`` has the keys."""

    kind = "tfds"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = path  # for the export manifest
        super().__init__(path, options, self.list_shards())

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

    @cached_property
    def has_keys(self) -> bool:
        """Always True: every exported record has a key."""
        return True

    @cached_property
    def _held_columns(self) -> Sequence[Column]:
        """Columns whose values are in the examples, not in other files of the export."""
        return [column for column in self.columns_at_rest if column.name in self.export_manifest.held]

    def decode_example(self, example: Example) -> dict[str, Any]:
        """Decodes the image and the values of the exported columns; leaves out values that are missing. Raises
        :class:`ValueError` for a missing image, and for a value that does not fit its column."""
        image = self.export_manifest.manifest.image
        files = image.layout is None or self.export_manifest.image == "png"
        values = {"image": example.only_bytes("image") if files else _decode_array(image, example)}
        for column in self._held_columns:
            valid = example.features.get(column.valid_name) if column.nullable else None
            if valid is None or valid.numbers(example.message).any():
                try:
                    values[column.name] = _decode_column(column, example)
                except ValueError as error:
                    raise ValueError(f"{column.name}: {error}") from error
        return values


def _decode_column(column: Column, example: Example) -> Any:
    """Decodes the value of a column to an array, a list of files, or :class:`StoredBytes`. Raises :class:`ValueError`
    for a missing feature, or another type of values."""
    if column.layout is not None or column.kind == "fixed":
        return _decode_array(column, example)
    if column.form == "numbers":
        return StoredBytes(_decode_numbers(column, example).tobytes())
    return example.byte_values(column.name) if column.form == "files" else StoredBytes(example.only_bytes(column.name))


def _decode_array(column: Column, example: Example) -> NDArray[Any]:
    """Decodes the array of a column. Raises :class:`ValueError` if its numbers do not fit its dtype or shape."""
    if column.kind == "ragged":
        shape = [int(n) for n in example.numbers(f"{column.name}/shape").tolist()]
        return np.frombuffer(example.only_bytes(f"{column.name}/value"), NUMPY_DTYPE[column.dtype]).reshape(shape)
    if column.layout is not None:
        return np.frombuffer(example.only_bytes(column.name), NUMPY_DTYPE[column.dtype]).reshape(column.shape)
    return _decode_numbers(column, example).reshape(column.shape)


def _decode_numbers(column: Column, example: Example) -> NDArray[Any]:
    """Decodes the numbers of a column to its dtype. A dtype in :data:`PACKED` has bytes in the example. Raises
    :class:`ValueError` for another type of values, and for numbers beyond an integer dtype."""
    if column.dtype in PACKED:
        return np.frombuffer(example.only_bytes(column.name), NUMPY_DTYPE[column.dtype])
    return example.numbers(column.name, NUMPY_DTYPE[column.dtype].name)


KIND = Kind("tfds", "a folder of TensorFlow Datasets", _recognise, open_with(TfdsSource, ExportedTfds))
