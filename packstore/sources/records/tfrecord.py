"""Reads TFRecord and ArrayRecord files of ``tf.train.Example``, without a description of their features.

Layouts of TF-slim (``research/inception/inception/data/build_imagenet_data.py``,
``research/slim/datasets/dataset_utils.py``), of the TF Object Detection API (``using_your_own_dataset.md``), and any
other with an image file in a feature. Names of classes come from ``labels.txt`` or a label map beside the files, or
from features that name the class of each example.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.images.encode.files import encode_png
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.columns import make_column_names
from packstore.sources.records import RecordFiles, refuse_missing_shards
from packstore.sources.records.examples import SUFFIXES, Example, ExampleSource, FeatureColumn, is_tfrecord
from packstore.sources.records.facts import FeatureFacts, Numbering, find_class_names, find_numbering
from packstore.sources.records.wire import Message
from packstore.sources.refusals import first_bytes
from packstore.sources.schema import STATED_SIZE

_MAIN = ("image/encoded", "image", "image_raw", "img", "jpeg", "jpg", "png", "encoded", "image_bytes")
# Features that are class numbers, and features that name the classes.
_LABELS = {
    "image/class/label": ("image/class/synset", "image/class/text"),
    "label": ("class_name", "label_name", "label_text", "synset"),
    "class": ("class_name", "label_name", "class_text"),
    "image/object/class/label": ("image/object/class/text",),
    "image/object/bbox/label": (),
}
_OF_BOXES = ("image/object/class/label", "image/object/bbox/label")
# Columns of features that are not called like them.
_USUAL = {"image/class/label": "label", "class": "label"}
_SAID = ("height", "width", "depth", "channels", "format", "colorspace", "encoding")
# Features with the size of the image, as TensorFlow's object detection writes them.
_SIDES = ("image/width", "image/height")
_EDGES = ("xmin", "ymin", "xmax", "ymax")
# First bytes of files of Riegeli, the format of ArrayRecord and others.
_RIEGELI = bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9")


@dataclass(frozen=True)
class EdgeBoxes(FeatureColumn):
    """Column of boxes with a feature for each edge; :attr:`feature` is what their names begin with."""

    def decode(self, example: Example) -> NDArray[np.float64]:
        """Decodes boxes ``(n, 4)``; ``(0, 4)`` if there are none. Raises :class:`ValueError` if edges differ in
        number."""
        edges = [example.numbers(f"{self.feature}/{edge}") for edge in _EDGES]
        if len({len(edge) for edge in edges}) > 1:
            raise ValueError("the edges of its boxes differ in number")
        return np.stack(edges, 1).astype(np.float64)


@dataclass(frozen=True)
class RawPixels(FeatureColumn):
    """Column of images that are raw pixels of uint8.

    Attributes:
        sides: Features of height, width and channels; the last may be missing.
    """

    sides: tuple[str, ...] = ()

    def decode(self, example: Example) -> bytes | None:
        """Encodes the pixels as a PNG file; None if they are missing. Without recorded channels, infers 1 or 3 from the
        number of bytes. Raises :class:`ValueError` for other channels, and if the number of bytes does not fit."""
        data = self.take_only(example.byte_values(self.feature))
        if data is None:
            return None
        height, width, *channels = (int(self.take_only(example.numbers(side).tolist()) or 0) for side in self.sides)
        depth = channels[0] if channels else len(data) // max(1, height * width)
        if depth not in (1, 3) or min(height, width) < 1 or len(data) != height * width * depth:
            shown = f"found {len(data):,} bytes of {height} x {width} pixels"
            raise ValueError(f"{shown}; expected uint8 with 1 or 3 channels")
        return encode_png(np.frombuffer(data, np.uint8).reshape(height, width, depth))


class TfrecordSource(ExampleSource):
    """Source of TFRecord files: one file, or all in a folder. Opening raises :class:`SourceError` if there are none.

    Opening raises :class:`AmbiguousSourceError` if shards are missing. :meth:`fields` raises it if nothing tells
    whether labels begin at 0 or 1. If the user named the kind, packs the shards that exist, and labels unchanged.
    """

    kind = "tfrecord"
    unit = "TFRecord file"
    suffixes: tuple[str, ...] = SUFFIXES
    is_shard = staticmethod(is_tfrecord)
    label_names = _LABELS

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        if not options.named:
            refuse_missing_shards(path, self.kind, self.files())

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts features that repeat size or format of the image, and features whose values hold several files each.
        Leaves out zeros."""
        return {reason: len(features) for reason, features in self._left_features.items() if features}

    def decode_example(self, example: Example) -> dict[str, Any]:
        """Decodes the features of an example, by column, and the size of the image that they state."""
        values = super().decode_example(example)
        if all(map(example.count, _SIDES)):
            values[STATED_SIZE] = tuple(int(example.numbers(side)[0]) for side in _SIDES)
        return values

    @cached_property
    def _main_feature(self) -> str:
        """Name of the main image's feature: one with a usual name, else with one file a record, else raw pixels."""
        features = self.all_facts.features
        images = [name for name in _MAIN if name in features and "image" in features[name].looks]
        images += [name for name, facts in features.items() if facts.looks == {"image"} and facts.high == 1]
        images += self._raw_features[:1]
        if not images:
            names = printable(", ".join(sorted(features)[:8]))
            raise SourceError(f"{printable(str(self.path))}: its records hold no image files, but {names}")
        return images[0]

    @cached_property
    def _raw_features(self) -> tuple[str, ...]:
        """Names of the features with raw pixels, their height, width and channels; empty if images are files."""
        features = self.all_facts.features
        raw = next((name for name in _MAIN if name in features and features[name].kinds == {"bytes"}), "")
        prefix = raw[: raw.rfind("/") + 1]
        sides = [prefix + side for side in ("height", "width", "channels", "depth") if prefix + side in features]
        are_files = any("image" in facts.looks for facts in features.values())
        return (raw, *sides[:3]) if raw and sides[:2] == [f"{prefix}height", f"{prefix}width"] and not are_files else ()

    @cached_property
    def _box_features(self) -> tuple[str, bool] | None:
        """Prefix of the four features of boxes, and True if they are fractions of the image; None without boxes."""
        features = self.all_facts.features
        for prefix in sorted(name.removesuffix("/xmin") for name in features if name.endswith("/xmin")):
            facts = [features.get(f"{prefix}/{edge}", FeatureFacts(frozenset(("bytes",)))) for edge in _EDGES]
            if all(each.kinds <= {"floats", "ints", ""} for each in facts):
                return prefix, not any("ints" in each.kinds or "pixels" in each.looks for each in facts)
        return None

    @cached_property
    def _left_features(self) -> dict[str, set[str]]:
        """Names of features without a column, by reason."""
        features, prefix = self.all_facts.features, self._main_feature[: self._main_feature.rfind("/") + 1]
        lists = (name for name, facts in features.items() if facts.kinds <= {"bytes", ""} and facts.high > 1)
        return {
            "features that the images say themselves (size, format)": {prefix + name for name in _SAID} & {*features},
            # Several bytes are files, unless all of them are text.
            "features of several files each": {name for name in lists if features[name].looks != {"text"}},
        }

    @cached_property
    def _numberings(self) -> dict[str, Numbering]:
        """Numbering of the classes of each label feature; adds the reasons to :attr:`evidence`."""
        facts, labels, named = self.all_facts.features, self.facts.labels, self.options.named
        beside = find_class_names(self.path if self.path.is_dir() else self.path.parent)
        numberings: dict[str, Numbering] = {}
        for label in (each for each in _LABELS if each in labels and facts[each].kinds <= {"ints", ""}):
            if label == "image/object/bbox/label" and "image/class/label" in numberings:  # of each box
                numberings[label] = numberings["image/class/label"]
            else:
                numberings[label] = find_numbering(self.path, self.kind, label, labels[label], beside, named=named)
        reasons = dict.fromkeys(each.why for each in numberings.values() if each.why)
        self.evidence = "; ".join([self.evidence, *reasons])
        return numberings

    @cached_property
    def example_columns(self) -> Mapping[str, FeatureColumn]:
        """Columns by name, ``image`` first, and ``boxes`` last for the four features of edges. ``image/object/area``
        becomes ``object_area``. Leaves out features

        - without values;
        - with keys, names of classes, or edges of boxes;
        - with lists of files;
        - that repeat the size or format of the image.
        """
        features, boxes = self.all_facts.features, self._box_features
        gone = {each.by for each in self._numberings.values()}.union(*self._left_features.values())
        gone |= {self._main_feature, self.key_feature} | ({f"{boxes[0]}/{edge}" for edge in _EDGES} if boxes else set())
        of = next((name for name in _OF_BOXES if name in self._numberings), None) if boxes else None
        raw = self._raw_features
        image = RawPixels(raw[0], "image", sides=raw[1:]) if raw else FeatureColumn(self._main_feature, "image")
        columns = {"image": image}
        for feature in sorted(name for name in features.keys() - gone if features[name].kinds != {""}):
            short = "labels" if feature == of else _USUAL.get(feature, feature.removeprefix("image/"))
            name = make_column_names([short], ["boxes", *columns])[short]
            columns[name] = self._make_column(feature, feature == of)
        if boxes:
            columns["boxes"] = EdgeBoxes(boxes[0], "box", box_format=f"{'REL_' * boxes[1]}XYXY")
        return columns

    def _make_column(self, name: str, of_boxes: bool) -> FeatureColumn:
        """Makes the column of a feature by the facts about its values."""
        facts, numbering = self.facts.features[name], self._numberings.get(name)
        missing, kinds, many = facts.missing or facts.low == 0, facts.kinds - {""}, facts.high > 1
        if len(kinds) > 1:
            both = " and ".join(sorted(kinds))
            raise SourceError(f"{printable(str(self.path))}: {printable(name)} holds {both} in different records")
        if numbering is not None:
            missing = missing or -1 in self.facts.labels[name]
            return FeatureColumn(name, "class", (), of_boxes or many, missing, numbering, of_boxes and "boxes")
        if kinds != {"bytes"}:
            shape = (facts.high if facts.low == facts.high else -1,) if many else ()
            return FeatureColumn(name, "float32" if kinds == {"floats"} else "int64", shape, False, missing)
        kind = "text" if many or facts.looks <= {"text"} else "image" if facts.looks == {"image"} else "bytes"
        return FeatureColumn(name, kind, (), many, missing)


class ArrayRecordFiles(RecordFiles):
    """Reads records of ArrayRecord files by their numbers, with the library ``array_record``; thread-safe. The library
    verifies the hashes of what it reads. Raises :class:`SourceError` if it is not installed."""

    def open_file(self, path: Path) -> Any:
        """Opens a file with the library. Raises :class:`SourceError` if its index is damaged, or it has none."""
        try:
            library = importlib.import_module("array_record.python.array_record_module")
            # Samples are read one by one, so that nothing is read ahead.
            reader = library.ArrayRecordReader(os.fsencode(path), options="readahead_buffer_size:0,max_parallelism:0")
            if not reader.ok():
                reader.read()  # raises the reason
        except ImportError:
            raise SourceError(f"{printable(str(path))}: pip install 'packstore[arrayrecord]' to read it") from None
        except RuntimeError as error:
            raise SourceError(f"{printable(str(path))} cannot be read: {printable(str(error))}") from None
        return reader

    def walk_records(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Yields the number, size and message of each record of file ``number``. A record that cannot be read has the
        size 0 and the message None."""
        reader: Any = self[number]
        for record in range(reader.num_records()):
            try:
                data = self.read_record(number, record, 0)
            except ValueError:
                yield record, 0, None  # reported when it is read
            else:
                yield record, len(data), Message.from_bytes(data)

    def read_record(self, number: int, place: int, length: int) -> bytes:
        """Reads record ``place`` of file ``number``; ignores ``length``. Raises :class:`ValueError` if it is
        damaged."""
        reader: Any = self[number]
        try:
            return bytes(reader.read([place])[0])
        except RuntimeError as error:
            raise ValueError(f"record {place}: {printable(str(error))}") from None

    def locate_span(self, number: int, start: int, size: int) -> None:
        """Returns None: only the library knows where a record lies, and headers of blocks interrupt it."""


class ArrayRecordSource(TfrecordSource):
    """Source of ArrayRecord files: one file, or all in a folder. Columns and refusals are those of
    :class:`TfrecordSource`."""

    kind = "arrayrecord"
    unit = "ArrayRecord file"
    suffixes = (".array_record", ".arrayrecord")

    @classmethod
    def is_shard(cls, path: Path) -> bool:
        """Tells if a file has the signature of Riegeli, the format of ArrayRecord and others."""
        return first_bytes(path, len(_RIEGELI)) == _RIEGELI

    def open_files(self, paths: Sequence[Path]) -> RecordFiles:
        """Returns a reader of ArrayRecord files."""
        return ArrayRecordFiles(paths)


KIND = Kind("tfrecord", "TFRecord files of tf.train.Example", TfrecordSource.recognise, TfrecordSource)
ARRAYRECORD = Kind(
    "arrayrecord", "ArrayRecord files of tf.train.Example", ArrayRecordSource.recognise, ArrayRecordSource
)
