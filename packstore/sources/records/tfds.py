"""Reads TensorFlow Datasets: folders of TFRecord with ``dataset_info.json`` and ``features.json``
(https://www.tensorflow.org/datasets/external_tfrecord).

Features become examples as in ``tensorflow_datasets/core/example_serializer.py``, version 4.9.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Boxes, Field, Image, Images, Json, Label, Labels, Mask
from packstore.images.sniff import max_file_bytes
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.columns import BYTES, JSON, TEXT, ValueType, guess
from packstore.sources.exported_rows import open_with
from packstore.sources.records.arrayrecord import ArrayRecordFiles
from packstore.sources.records.examples import SUFFIXES, Example, ExampleSource, is_tfrecord, scale_boxes
from packstore.sources.records.exported import ExportedTfds
from packstore.sources.records.shards import list_first_shards, read_index
from packstore.sources.records.tfds_features import FEATURES, Leaf, is_mask_leaf, is_pixel_tensor, read_feature_columns
from packstore.sources.schema import RELATIVE

INFO = "dataset_info.json"
_MAX_JSON = 1 << 26
_BOX_FORMATS = ("XYXY", "YXYX", "XYWH", "REL_XYXY", "REL_YXYX")
_MAX_SHARDS = 1 << 20
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


class TfdsSource(ExampleSource):
    """Source of one version of a TensorFlow Datasets data set, in TFRecord or ArrayRecord files. Opening raises
    :class:`SourceError` for a missing shard, another format of files, and ``features.json`` of an old version. A shard
    with another number of records than ``dataset_info.json`` says adds a bad sample."""

    kind = "tfds"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        folder = _find_version(path)
        info, features = (read_index(folder / name, _MAX_JSON) for name in (INFO, FEATURES))
        if "featuresDict" not in features:
            raise SourceError(
                f"{printable(str(folder / FEATURES))} is of an old version of TensorFlow Datasets: write it again with "
                "tfds.builder_from_directory(…).info.write_to_directory(…) of version 4.7 or later"
            )
        form = str(info.get("fileFormat", "tfrecord"))
        if form not in ("tfrecord", "array_record"):
            raise SourceError(
                f"{printable(str(folder))} holds {printable(form)} files; packstore reads tfrecord and array_record"
            )
        if form == "array_record":
            self.record_files = ArrayRecordFiles
        shards = list(_list_shards(folder, info))
        if not shards:
            raise SourceError(f"{printable(str(folder / INFO))} names no shards")
        super().__init__(path, options, [(split, file) for split, file, _ in shards])
        self._counts = [count for _, _, count in shards]
        self._folder = folder
        try:
            self._described = read_feature_columns(features, folder)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise SourceError(f"{printable(str(folder / FEATURES))} cannot be used: {printable(str(error))}") from None
        labels = (leaf.feature for leaf in self._described.leaves.values() if leaf.what == "classLabel")
        self.label_names = dict.fromkeys(labels, ())
        plural = "s" * (len(shards) != 1)
        self.evidence = f"{FEATURES} and {len(shards)} shard{plural} of {printable(str(info.get('name', '')))}"

    def files(self) -> Iterator[Path]:
        """Yields the shards, the two JSON files that describe them, and the files of class names."""
        yield from super().files()
        yield from (self._folder / name for name in (INFO, FEATURES))
        yield from sorted(self._folder.glob("*.labels.txt"))

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts features that no column can hold, by reason."""
        return self._described.ignored

    def fields(self) -> Mapping[str, Field]:
        """Declares a column for each feature that a column can hold. The text with the keys has no column. The first
        call indexes all records."""
        assert self.index
        return {name: self._declare_column(name, leaf) for name, leaf in self._column_leaves.items()}

    def decode_example(self, example: Example) -> dict[str, Any]:
        """Decodes the features of an example, by column. A missing feature becomes None. Converts boxes to pixels.
        Raises :class:`ValueError`, with the name of the feature, for a value that does not fit its column."""
        values: dict[str, Any] = {}
        for name, leaf in self._column_leaves.items():
            try:
                values[name] = self._decode_leaf(leaf, example)
            except (ValueError, zlib.error, OverflowError) as error:
                raise ValueError(f"{printable(leaf.feature)}: {error}") from error
        for name, leaf in self._column_leaves.items():
            if leaf.what == "boundingBox" and values[name] is not None:
                values[name] = _boxes_to_pixels(leaf, values[name], values["image"])
                values[RELATIVE] = str(leaf.said.get("bboxFormat") or "REL_YXYX").startswith("REL_")
        return values

    def _index_file(self, number: int) -> Any:
        """Indexes a shard. If it has more or fewer records than ``dataset_info.json`` says, keeps the records, and
        records damage at byte 0."""
        index = super()._index_file(number)
        found, expected = len(index.places), self._counts[number]
        if index.damaged is None and found != expected:
            index.damaged = 0, f"it has {found} records, and {INFO} says {expected}"
        return index

    @cached_property
    def _column_leaves(self) -> dict[str, Leaf]:
        """Feature of each column, by name, without the text feature that has the keys."""
        key = self.key_feature
        leaves = self._described.leaves
        return {name: leaf for name, leaf in leaves.items() if leaf.feature != key or leaf.what != "text"}

    def _declare_column(self, name: str, leaf: Leaf) -> Field:
        """Declares the column of a feature by ``features.json``; optional if an example lacks the feature. Main images,
        labels of sequences, sequences of sequences and ragged arrays are never optional. Sets :attr:`shape` for main
        images that are pixels of one shape."""
        facts, labels = self.facts.features.get(leaf.feature), self.facts.labels.get(leaf.feature)
        some = facts is None or facts.missing or (labels is not None and labels.missing)
        if name == "image":
            if is_pixel_tensor(leaf) and -1 not in leaf.shape:
                self.shape = (*leaf.shape[:2], 3)
            return Image("uint8" if is_pixel_tensor(leaf) else None)
        if len(leaf.lengths) > 1:
            return Json()
        match leaf.what:
            case "image" if leaf.lengths:
                return Images(optional=some)
            case "image":
                return Mask(optional=some) if is_mask_leaf(leaf) else Image(optional=some)
            case "classLabel" if leaf.lengths:
                return Labels(leaf.classes, of=self._described.parallel.get(name, False))
            case "classLabel":
                return Label(leaf.classes, optional=some)
            case "boundingBox":
                return Boxes(optional=some)
        shape = (*leaf.lengths, *leaf.shape)
        if leaf.what == "text" or leaf.dtype == "string":
            looks = facts.looks if facts is not None and leaf.what != "text" else frozenset()
            plain = TEXT if not looks or "text" in looks else BYTES
            return replace(guess("", ValueType(JSON if shape else plain)), optional=some)
        declared = guess("", ValueType(leaf.dtype, shape))
        return declared if getattr(declared, "ragged", False) else replace(declared, optional=some)

    def _decode_leaf(self, leaf: Leaf, example: Example) -> Any:
        """Decodes the value of a column. Returns None if it is missing or the label -1. Numbers become an array; nested
        lists if any length but the first varies. Sequences of other values become lists. Raises :class:`ValueError` for
        a value that does not fit the feature."""
        name, shape = leaf.feature, (*leaf.lengths, *leaf.shape)
        if len(leaf.lengths) > 1:
            flat, rows = (
                f"{name}/ragged_flat_values",
                [f"{name}/ragged_row_lengths_{i}" for i in range(len(leaf.lengths) - 1)],
            )
            items = _decode_items(leaf, example, flat) if flat in example.features else []
            return _nest_rows(items, [example.numbers(row).tolist() if row in example.features else [] for row in rows])
        dynamic = leaf.shape.count(-1) > 1 and leaf.what == "tensor"
        if (name := f"{name}/value" if dynamic else name) not in example.features:
            return None
        if leaf.what == "image":
            return example.byte_values(name) if leaf.lengths else example.only_bytes(name)
        if leaf.what == "tensor" and (leaf.byte_encoding or leaf.dtype != "string"):
            if dynamic:
                shape = _read_shape(leaf, example)
            array = _decode_tensor(leaf, example, name, shape, max_file_bytes(self.options.max_pixels))
            return array.tolist() if -1 in (*leaf.lengths, *leaf.shape)[1:] and not is_pixel_tensor(leaf) else array
        items = _decode_items(leaf, example, name)
        if leaf.what == "boundingBox":
            return np.array(items, np.float64).reshape(-1, 4)
        if leaf.what == "tensor" and leaf.shape:  # of strings
            return items if -1 in leaf.shape else np.array(items, object).reshape(leaf.shape).tolist()
        if leaf.lengths:
            return items
        if len(items) != 1:
            raise ValueError(f"found {len(items)} values, expected one")
        return None if leaf.what == "classLabel" and items[0] == -1 else items[0]


def _read_shape(leaf: Leaf, example: Example) -> tuple[int, ...]:
    """Reads the shape of a tensor with several axes of any length. Raises :class:`ValueError` if it does not fit
    ``features.json``."""
    name, shape = f"{leaf.feature}/shape", leaf.shape
    said = example.numbers(name).tolist() if name in example.features else []
    if len(said) != len(shape) or any(most >= 0 and most != n for n, most in zip(said, shape, strict=True)):
        raise ValueError(f"found the shape {said}, expected {list(shape)}")
    return (*leaf.lengths, *said)


def _decode_items(leaf: Leaf, example: Example, name: str) -> list[Any]:
    """Decodes the values of a feature to a list of plain values. If a string of a tensor is not UTF-8, all strings of
    the tensor stay bytes. Raises :class:`ValueError` for values of another type, another text that is not UTF-8, and
    too large class numbers. Negative class numbers pass."""
    if leaf.what == "text" or leaf.dtype == "string":
        values = example.byte_values(name)
        try:
            return [value.decode("utf-8") for value in values]
        except UnicodeDecodeError:
            if leaf.lengths or leaf.what == "text":
                raise
            return list(values)
    if leaf.what == "boundingBox":
        return list(_decode_tensor(leaf, example, name, (-1, 4), 1 << 30).tolist())
    dtype = "int64" if leaf.what == "classLabel" else leaf.dtype
    numbers = _decode_tensor(replace(leaf, said={"dtype": dtype}), example, name, (-1, *leaf.shape), 1 << 30)
    if leaf.what == "classLabel" and leaf.classes is not None and numbers.size and numbers.max() >= len(leaf.classes):
        raise ValueError(f"{numbers.max()} is none of {len(leaf.classes)} classes")
    return list(numbers.tolist())


def _decode_tensor(leaf: Leaf, example: Example, name: str, shape: tuple[int, ...], limit: int) -> NDArray[Any]:
    """Decodes the numbers of a feature to an array of ``shape``. Raises :class:`ValueError` for numbers that do not fit
    the shape or an integer dtype. Also raises it for compressed numbers of more than ``limit`` bytes."""
    dtype = leaf.dtype or "float32"
    if leaf.byte_encoding:
        data = example.only_bytes(name)
        if leaf.byte_encoding == "zlib":
            inflate = zlib.decompressobj()
            data = inflate.decompress(data, limit)
            if not inflate.eof:
                raise ValueError(f"it is cut off, or larger than {limit} bytes")
        array = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))
    else:
        array = example.numbers(name, dtype)
    if -1 not in shape and array.size != math.prod(shape):
        raise ValueError(f"found {array.size} numbers, expected {math.prod(shape)}")
    return array.reshape(shape)


def _nest_rows(items: list[Any], row_lengths: Sequence[list[int]]) -> list[Any]:
    """Nests values in lists of lists. ``row_lengths`` has the lengths of the rows of each level, outermost first.
    Raises :class:`ValueError` if they do not add up."""
    for lengths in reversed(row_lengths):
        if sum(lengths) != len(items) or any(length < 0 for length in lengths):
            raise ValueError(f"{len(items)} values do not make rows of {sum(lengths)}")
        rows = iter(items)
        items = [list(islice(rows, length)) for length in lengths]
    return items


def _boxes_to_pixels(leaf: Leaf, boxes: NDArray[np.float64], image: Any) -> NDArray[np.float32]:
    """Converts boxes of any format of TensorFlow Datasets to left, top, right, bottom in pixels, float32. The default
    ``bboxFormat`` is ``REL_YXYX``. Raises :class:`ValueError` for an unknown format, and for relative boxes if the size
    of the image cannot be read."""
    form = str(leaf.said.get("bboxFormat") or "REL_YXYX")
    if form not in _BOX_FORMATS:
        raise ValueError(f"found boxes in the format {printable(form)}; expected {', '.join(_BOX_FORMATS)}")
    if form.endswith("YXYX"):
        boxes = boxes[:, [1, 0, 3, 2]]
    elif form.endswith("XYWH"):
        boxes = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    return (scale_boxes(boxes, image) if form.startswith("REL_") else boxes).astype(np.float32)


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
    ``config/1.0.0`` in it."""
    if (path / INFO).is_file():
        return [path]
    tree = open_tree(path)
    below = () if tree is None else tree.names("").folders
    versions = [path / name for name in below if _VERSION.fullmatch(name)]
    for folder in below:
        if tree is not None and path / folder not in versions:
            versions += [path / folder / name for name in tree.names(folder).folders if _VERSION.fullmatch(name)]
    return [p for p in versions if (p / INFO).is_file()]


def _find_version(path: Path) -> Path:
    """Finds the only version at a path. Raises :class:`SourceError` for none, :class:`AmbiguousSourceError` for
    several."""
    try:
        versions = _find_versions(path) if path.is_dir() else []
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
        versions = _find_versions(path) if path.is_dir() else []
    except OSError:
        return Certainty.NO
    if not versions:
        return Certainty.NO
    if not any((each / FEATURES).is_file() for each in versions):
        if any(is_tfrecord(file) for each in versions for file in list_first_shards(each, SUFFIXES)):
            raise AmbiguousSourceError(
                f"{printable(str(path))} has {INFO} of TensorFlow Datasets, but no {FEATURES}, which says what its "
                "features are: a version before 4.0 wrote it. Write it again with version 4.7 or later, or pack its "
                "TFRecord files as they are with --source tfrecord"
            )
        return Certainty.NO  # others have such a file, too
    _find_version(path)  # several are a question
    return Certainty.CERTAIN


KIND = Kind("tfds", "a folder of TensorFlow Datasets", _recognise, open_with(TfdsSource, ExportedTfds))
