"""Reads TFRecord files of ``tf.train.Example``, without a description of their features.

Layouts of TF-slim (``research/inception/inception/data/build_imagenet_data.py``,
``research/slim/datasets/dataset_utils.py``), of the TF Object Detection API (``using_your_own_dataset.md``), and any
other with an image file in a feature. Names of classes come from ``labels.txt`` or a label map beside the files, or
from features that name the class of each example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.images.encode.png import encode_png
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.columns import make_column_names
from packstore.sources.records import refuse_missing_shards
from packstore.sources.records.examples import (
    SUFFIXES,
    Example,
    ExampleSource,
    FeatureColumn,
    is_tfrecord,
)
from packstore.sources.records.facts import FeatureFacts, Numbering, find_class_names, find_numbering
from packstore.sources.schema import STATED_SIZE

_MAIN = ("image/encoded", "image", "image_raw", "img", "jpeg", "jpg", "png", "encoded", "image_bytes")
_LABELS = {
    "image/class/label": ("image/class/synset", "image/class/text"),
    "label": ("class_name", "label_name", "label_text", "synset"),
    "class": ("class_name", "label_name", "class_text"),
    "image/object/class/label": ("image/object/class/text",),
    "image/object/bbox/label": (),
}
"""Features that are class numbers, and features that name the classes."""
_OF_BOXES = ("image/object/class/label", "image/object/bbox/label")
_USUAL = {"image/class/label": "label", "class": "label"}
"""Columns of features that are not called like them."""
_SAID = ("height", "width", "depth", "channels", "format", "colorspace", "encoding")
_SIDES = ("image/width", "image/height")
"""Features with the size of the image, as TensorFlow's object detection writes them."""
_EDGES = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True)
class EdgeBoxes(FeatureColumn):
    """Column of boxes with a feature for each edge; :attr:`feature` is what their names begin with."""

    def decode(self, example: Example, limit: int) -> NDArray[np.float64]:
        """Decodes boxes ``(n, 4)``; ``(0, 4)`` if there are none. Raises :class:`ValueError` if an edge is missing, or
        edges differ in number."""
        names = [f"{self.feature}/{edge}" for edge in _EDGES]
        edges = [example.numbers(name) for name in names if name in example.features]
        if not any(map(len, edges)):
            return np.zeros((0, 4))
        if len({len(edge) for edge in edges}) > 1 or len(edges) < len(_EDGES):
            raise ValueError("the edges of its boxes differ in number")
        return np.stack(edges, 1).astype(np.float64)


@dataclass(frozen=True)
class RawPixels(FeatureColumn):
    """Column of images that are raw pixels of uint8.

    Attributes:
        sides: Features of height, width and channels; the last is empty if channels are not recorded.
    """

    sides: tuple[str, ...] = ()

    def decode(self, example: Example, limit: int) -> bytes | None:
        """Encodes the pixels as a PNG file; None if they are missing. Without recorded channels, infers 1 or 3 from the
        number of bytes. Raises :class:`ValueError` for other channels, for a missing side, and if the number of bytes
        does not fit."""
        data = self.take_only(example.byte_values(self.feature) if self.feature in example.features else [])
        if data is None:
            return None
        height, width, channels = (example.only_number(side) or 0 for side in self.sides)
        channels = channels or len(data) // max(1, height * width)
        if channels not in (1, 3) or min(height, width) < 1 or len(data) != height * width * channels:
            shown = f"found {len(data):,} bytes of {height} x {width} pixels"
            raise ValueError(f"{shown}; expected uint8 with 1 or 3 channels")
        return encode_png(np.frombuffer(data, np.uint8).reshape(height, width, channels))


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
        return +Counter({reason: len(features) for reason, features in self._left_features.items()})

    def decode_example(self, example: Example) -> dict[str, Any]:
        """Decodes the features of an example, by column, and the size of the image that they state. A missing list
        becomes an empty array. Raises :class:`ValueError` for a value that does not fit its column."""
        values = super().decode_example(example)
        if all(map(example.has_values, _SIDES)):
            values[STATED_SIZE] = tuple(example.only_number(side) or 0 for side in _SIDES)
        return values

    @cached_property
    def _main_feature(self) -> str:
        """Name of the feature of the main image: the first of these that exists.

        - A feature of image files with a usual name.
        - A feature with one image file in each record.
        - The feature of raw pixels.

        Raises :class:`SourceError` if there is none.
        """
        features = self.all_facts.features
        images = [name for name in _MAIN if name in features and "image" in features[name].looks]
        images += [name for name, facts in features.items() if facts.looks == {"image"} and facts.high == 1]
        images += self._raw_features[:1] if self._raw_features else ()
        if not images:
            names = printable(", ".join(sorted(features)[:8]))
            raise SourceError(f"{printable(str(self.path))}: its records hold no image files, but {names}")
        return images[0]

    @cached_property
    def _raw_features(self) -> tuple[str, str, str, str] | None:
        """Names of the features with raw pixels, their height, width and channels; the last is empty if channels are
        not recorded. Raw pixels have a usual name of images, and are one value of bytes in each record. The value is
        None

        - if images are files;
        - if pixels, height or width are missing;
        - if a size is not one whole number in each record.
        """
        facts = self.all_facts.features
        single = {name: each.kinds for name, each in facts.items() if each.low == each.high == 1}
        raw = next((name for name in _MAIN if single.get(name) == frozenset(("bytes",))), "")
        prefix = raw[: raw.rfind("/") + 1]
        known = next((prefix + name for name in ("channels", "depth") if prefix + name in facts), "")
        sizes = (prefix + "height", prefix + "width", known)
        are_sizes = all(single.get(name) == frozenset(("ints",)) for name in sizes if name)
        are_files = any("image" in each.looks for each in facts.values())
        return (raw, *sizes) if raw and are_sizes and not are_files else None

    @cached_property
    def _box_features(self) -> tuple[str, bool] | None:
        """Prefix of the four features of boxes, and True if they are fractions of the image. Floats are fractions if
        all are at most 2. The value is None if there are no boxes."""
        features = self.all_facts.features
        for prefix in sorted(name.removesuffix("/xmin") for name in features if name.endswith("/xmin")):
            facts = [features.get(f"{prefix}/{edge}", FeatureFacts(frozenset(("bytes",)))) for edge in _EDGES]
            if all(each.kinds <= {"floats", "ints", ""} for each in facts):
                return prefix, not any("ints" in each.kinds or "pixels" in each.looks for each in facts)
        return None

    @cached_property
    def _left_features(self) -> dict[str, set[str]]:
        """Names of features without a column, by reason: those that repeat the size or format in the image file, and
        those with several files in a record. A feature of several bytes has files unless all its values are text."""
        features, prefix = self.all_facts.features, self._main_feature[: self._main_feature.rfind("/") + 1]
        lists = (name for name, facts in features.items() if facts.kinds <= {"bytes", ""} and facts.high > 1)
        return {
            "features that the images say themselves (size, format)": {prefix + name for name in _SAID} & {*features},
            "features of several files each": {name for name in lists if features[name].looks != {"text"}},
        }

    @cached_property
    def _numberings(self) -> dict[str, Numbering]:
        """Numbering of the classes of each label feature. TF-slim's boxes have that of their images' classes. Adds the
        reasons to :attr:`evidence`. Raises the errors of :func:`find_class_names` and :func:`find_numbering`."""
        facts, labels = self.all_facts.features, self.facts.labels
        beside = find_class_names(self.path if self.path.is_dir() else self.path.parent)
        numberings: dict[str, Numbering] = {}
        for label in (each for each in _LABELS if each in labels and facts[each].kinds <= {"ints", ""}):
            if label == "image/object/bbox/label" and "image/class/label" in numberings:  # of each box
                numberings[label] = numberings["image/class/label"]
                continue
            named = self.options.named
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
            columns["boxes"] = EdgeBoxes(boxes[0], "box", lengths=(-1,), encoding=f"{'REL_' * boxes[1]}XYXY")
        return columns

    def _make_column(self, name: str, of_boxes: bool) -> FeatureColumn:
        """Makes the column of a feature by the facts about its values. Raises :class:`SourceError` if records hold
        different types."""
        facts, numbering = self.facts.features[name], self._numberings.get(name)
        missing, kinds = facts.missing or facts.low == 0, facts.kinds - {""}
        if len(kinds) > 1:
            both = " and ".join(sorted(kinds))
            raise SourceError(f"{printable(str(self.path))}: {printable(name)} holds {both} in different records")
        shape = () if facts.high <= 1 else (facts.high if facts.low == facts.high else -1,)
        if numbering is not None:
            lengths = (-1,) if of_boxes or shape else ()
            missing = missing or -1 in self.facts.labels[name]
            return FeatureColumn(name, "class", (), lengths, missing, numbering, "boxes" if of_boxes else False)
        if kinds != {"bytes"}:
            return FeatureColumn(name, "float32" if kinds == {"floats"} else "int64", shape, (), missing)
        kind = "text" if shape or facts.looks <= {"text"} else "image" if facts.looks == {"image"} else "bytes"
        return FeatureColumn(name, kind, (), (-1,) if shape else (), missing)


KIND = Kind("tfrecord", "TFRecord files of tf.train.Example", TfrecordSource.recognise, TfrecordSource)
