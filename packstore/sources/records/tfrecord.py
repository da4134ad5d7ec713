"""Reads TFRecord files of ``tf.train.Example``, without a description of their features.

Layouts of TF-slim (``research/inception/inception/data/build_imagenet_data.py``,
``research/slim/datasets/dataset_utils.py``), of the TF Object Detection API (``using_your_own_dataset.md``), and any
other with an image file in a feature. Names of classes come from ``labels.txt`` or a label map beside the files, or
from features that name the class of each example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Array, Boxes, Bytes, Field, Image, Json, Label, Labels, Text
from packstore.core.protobuf import Feature, Message
from packstore.images.encode.png import encode_png
from packstore.images.orientation import upright_size
from packstore.images.sniff import HeaderError
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.names import make_column_name
from packstore.sources.records.examples import SUFFIXES, ExampleSource, is_tfrecord
from packstore.sources.records.facts import FeatureFacts
from packstore.sources.records.labels import ClassNameFile, Numbering, find_class_names, find_numbering
from packstore.sources.records.shards import find_shards, recognise_shards, refuse_missing_shards
from packstore.sources.schema import RELATIVE, STATED_SIZE

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
_SAID = ("height", "width", "depth", "channels", "format", "colorspace", "encoding")
_SIDES = ("image/width", "image/height")
"""Features with the size of the image, as TensorFlow's object detection writes them."""
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_PIXELS = 2.0
"""Edges of boxes beyond this are pixels, not fractions of the image."""

Decode = Callable[[Feature, Message], Any]


@dataclass(frozen=True)
class _ExampleColumn:
    """Column of a feature: its declaration, the name of the feature, and the function that decodes a value."""

    field: Field
    feature: str
    decode: Decode


class TfrecordSource(ExampleSource):
    """Source of TFRecord files: one file, or all in a folder. Opening raises :class:`SourceError` if there are none.

    Opening raises :class:`AmbiguousSourceError` if shards are missing. :meth:`fields` raises it if nothing tells
    whether labels begin at 0 or 1. If the user named the kind, packs the shards that exist, and labels unchanged.

    Attributes:
        format_name: Name of the format, for people.
        suffixes: Suffixes of its files.
        is_shard: Tells if a file without a known suffix is a shard.
    """

    kind = "tfrecord"
    format_name = "TFRecord"
    suffixes: tuple[str, ...] = SUFFIXES
    is_shard: Callable[[Path], bool] = staticmethod(is_tfrecord)
    label_names = _LABELS

    def __init__(self, path: Path, options: SourceOptions) -> None:
        shards = find_shards(path, self.suffixes, self.is_shard)
        if not shards.files:
            raise SourceError(f"{printable(str(path))} holds no {self.format_name} files")
        if not options.named:
            refuse_missing_shards(path, self.kind, shards.missing)
        super().__init__(path, options, shards.files)
        self.evidence = (
            f"{len(shards.files)} {self.format_name} file{'s' * (len(shards.files) != 1)} of tf.train.Example"
        )

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns of :meth:`_example_columns`, and ``boxes`` for the four features of edges. The first
        call indexes all records."""
        return {name: part.field for name, part in self._example_columns.items()} | (
            {"boxes": Boxes()} if self._box_features is not None else {}
        )

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts features that repeat size or format of the image, and features whose values hold several files each.
        Leaves out zeros."""
        counts = Counter[str]()
        counts["features that the images say themselves (size, format)"] = len(self._repeated_features)
        counts["features of several files each"] = len(self._file_list_features)
        return +counts

    def decode_example(self, features: Mapping[str, Feature], message: Message) -> dict[str, Any]:
        """Decodes the features of an example, by column. Encodes raw pixels as PNG, and converts boxes to pixels. A
        missing list becomes an empty array; other missing features are left out. Raises :class:`ValueError` for a
        feature that no other record has, and for a value that does not fit its column."""
        parts = self._example_columns
        unknown = features.keys() - self.facts.features.keys()
        if unknown:
            raise ValueError(f"it has a feature {printable(min(unknown))}, which no other record has")
        values = {}
        for name, part in parts.items():
            feature = features.get(part.feature)
            if feature is not None and feature.kind:
                try:
                    values[name] = part.decode(feature, message)
                except ValueError as error:
                    raise ValueError(f"{printable(part.feature)}: {error}") from error
            elif isinstance(part.field, (Labels, Array)) and getattr(part.field, "ragged", True):
                values[name] = np.zeros(0, np.int64 if isinstance(part.field, Labels) else part.field.dtype)
        if self._raw_shape_features is not None and "image" in values:
            try:
                values["image"] = _pixels_to_png(values["image"], *self._read_shape(features, message))
            except ValueError as error:
                raise ValueError(f"{printable(self._main_feature)}: {error}") from error
        if self._box_features is not None:
            values["boxes"] = self._read_boxes(features, message, values.get("image"))
            values[RELATIVE] = self._box_features[1]
        sides = [features.get(name) for name in _SIDES]
        if all(side is not None and side.kind for side in sides):
            width, height = (int(_decode_number(side, message) or 0) for side in sides if side is not None)
            values[STATED_SIZE] = (width, height)
        return values

    def _read_shape(self, features: Mapping[str, Feature], message: Message) -> tuple[int, int, int | None]:
        """Reads height, width and channels of an image of raw pixels; None for channels that are not recorded. Raises
        :class:`ValueError` if height or width is missing."""
        height, width, channels = (
            None if name is None else features.get(name) for name in self._raw_shape_features or ()
        )
        if height is None or width is None:
            raise ValueError("its height or width is missing")
        sides = [int(_decode_number(each, message) or 0) for each in (height, width)]
        return sides[0], sides[1], None if channels is None else int(_decode_number(channels, message) or 0)

    def _read_boxes(self, features: Mapping[str, Feature], message: Message, image: Any) -> NDArray[np.float32]:
        """Reads boxes in pixels, float32 ``(n, 4)``; ``(0, 4)`` if there are none. Raises :class:`ValueError`

        - if an edge (such as ``xmin``) is missing, or edges differ in number;
        - if boxes are fractions, and the image's size cannot be read.
        """
        prefix, fractions = self._box_features or ("", False)
        edges = [features[f"{prefix}/{edge}"].numbers(message) for edge in _EDGES if f"{prefix}/{edge}" in features]
        if not edges or not any(map(len, edges)):
            return np.zeros((0, 4), np.float32)
        if len({len(edge) for edge in edges}) > 1 or len(edges) < len(_EDGES):
            raise ValueError(f"{printable(prefix)}: the edges of its boxes differ in number")
        boxes = np.stack(edges, 1).astype(np.float64)
        if fractions:
            try:
                boxes *= upright_size(image or b"") * 2
            except HeaderError as error:
                raise ValueError(error.reason) from None
        return boxes.astype(np.float32)

    @cached_property
    def _main_feature(self) -> str:
        """Name of the feature of the main image: the first of these that exists.

        - A feature of image files with a usual name.
        - A feature with one image file in each record.
        - The feature of raw pixels.

        Raises :class:`SourceError` if there is none.
        """
        assert self.index
        images = [name for name, facts in self.facts.features.items() if facts.looks == {"image"} and facts.high == 1]
        known = [name for name in _MAIN if name in self.facts.features and "image" in self.facts.features[name].looks]
        if not known and not images and self._raw_shape_features is not None:
            return self._raw_feature
        if not known and not images:
            raw = next((name for name in _MAIN if name in self.facts.features), None)
            what = f"{raw} is not an image file (raw pixels?)" if raw else ", ".join(sorted(self.facts.features)[:8])
            raise SourceError(f"{printable(str(self.path))}: its records hold no image files: {printable(what)}")
        return (known or images)[0]

    @cached_property
    def _raw_feature(self) -> str:
        """Name of the feature that may have raw pixels, or ``""``. Such a feature has a usual name of images, and one
        value of bytes in each record."""
        facts = self.facts.features
        return next((name for name in _MAIN if name in facts and facts[name].kinds == {"bytes"}
                     and facts[name].low == facts[name].high == 1), "")  # fmt: skip

    @cached_property
    def _raw_shape_features(self) -> tuple[str, str, str | None] | None:
        """Names of the features with height, width and channels of raw pixels; None for channels that are not recorded.
        The whole value is None

        - if images are files;
        - if height or width is missing;
        - if one of these features is not one whole number in each record.
        """
        assert self.index
        facts = self.facts.features
        if not self._raw_feature or any("image" in each.looks for each in facts.values()):
            return None
        beside = self._raw_feature.rpartition("/")[0]
        height, width, channels, depth = (
            f"{beside}/{name}" if beside else name for name in ("height", "width", "channels", "depth")
        )
        known = next((name for name in (channels, depth) if name in facts), None)
        wanted = [facts[name] for name in (height, width, known) if name is not None and name in facts]
        whole = all(each.kinds == {"ints"} and each.low == each.high == 1 for each in wanted)
        return (height, width, known) if whole and {height, width} <= facts.keys() else None

    @cached_property
    def _box_features(self) -> tuple[str, bool] | None:
        """Prefix of the four features of boxes, and True if they are fractions of the image. Floats are fractions if
        all are at most 2. The value is None if there are no boxes."""
        assert self.index
        for name in sorted(self.facts.features):
            prefix = name.removesuffix("/xmin")
            facts = [self.facts.features.get(f"{prefix}/{edge}") for edge in _EDGES]
            if prefix != name and all(each is not None and each.kinds <= {"floats", "ints", ""} for each in facts):
                given = [each for each in facts if each is not None]
                floats = all("ints" not in each.kinds for each in given)
                return prefix, floats and max(each.largest for each in given) <= _PIXELS
        return None

    @cached_property
    def _repeated_features(self) -> frozenset[str]:
        """Names of features that repeat the size or format in the image file."""
        beside = self._main_feature.rpartition("/")[0]
        return frozenset({f"{beside}/{name}" if beside else name for name in _SAID} & self.facts.features.keys())

    @cached_property
    def _file_list_features(self) -> frozenset[str]:
        """Names of features with several files in a record, which no column can hold.

        A feature of bytes has files unless all its values are text."""
        lists = (name for name, facts in self.facts.features.items() if facts.kinds <= {"bytes", ""} and facts.high > 1)
        return frozenset(name for name in lists if self.facts.features[name].looks != {"text"})

    @cached_property
    def _numberings(self) -> dict[str, Numbering]:
        """Numbering of the classes of each label feature. TF-slim's boxes have that of their images' classes. Adds the
        reasons to :attr:`evidence`. Raises the errors of :func:`find_class_names` and :func:`find_numbering`."""
        assert self.index
        beside: ClassNameFile | None = find_class_names(self.path if self.path.is_dir() else self.path.parent)
        facts, labels = self.facts.features, self.facts.labels
        given = {each: labels[each] for each in _LABELS if each in labels and facts[each].kinds <= {"ints", ""}}
        numberings: dict[str, Numbering] = {}
        for label in given:
            if label == "image/object/bbox/label" and "image/class/label" in given:  # the image's class for each box
                numberings[label] = numberings["image/class/label"]
                continue
            named = self.options.named
            numberings[label] = find_numbering(self.path, self.kind, label, given[label], beside, named=named)
        reasons = dict.fromkeys(each.why for each in numberings.values() if each.why)
        self.evidence = "; ".join([self.evidence, *reasons])
        return numberings

    @cached_property
    def _example_columns(self) -> dict[str, _ExampleColumn]:
        """Columns except boxes, by name, ``image`` first. Leaves out features

        - without values;
        - with keys, names of classes, or edges of boxes;
        - with lists of files;
        - that repeat the size or format of the image.
        """
        main, boxes = self._main_feature, self._box_features
        edges = {f"{boxes[0]}/{edge}" for edge in _EDGES} if boxes else set()
        named = {each.by for each in self._numberings.values()}
        gone = edges | named | self._repeated_features | self._file_list_features | {main, self.key_feature}
        left = [name for name, facts in sorted(self.facts.features.items()) if name not in gone and facts.kinds != {""}]
        of = next((name for name in _OF_BOXES if name in self._numberings), None) if boxes else None
        columns = {"image": _ExampleColumn(Image(), main, _decode_bytes)}
        for name, feature in _name_columns(left, of).items():
            columns[name] = self._make_column(feature, of)
        return columns

    def _make_column(self, name: str, of: str | None) -> _ExampleColumn:
        """Makes the column of a feature by the facts about its values. Raises :class:`SourceError` if records hold
        different types.

        ``of``: name of the feature that labels the boxes, or None."""
        facts = self.facts.features[name]
        missing = facts.missing or facts.low == 0
        kinds = facts.kinds - {""}
        if len(kinds) > 1:
            both = " and ".join(sorted(kinds))
            raise SourceError(f"{printable(str(self.path))}: {printable(name)} holds {both} in different records")
        kind = kinds.pop()
        if name in self._numberings:
            numbers = self._numberings[name]
            if name == of:
                return _ExampleColumn(Labels(numbers.classes, of="boxes"), name, _make_labels_decoder(numbers))
            if facts.high <= 1:
                missing = missing or self.facts.labels[name].missing
                return _ExampleColumn(Label(numbers.classes, optional=missing), name, _make_label_decoder(numbers))
            return _ExampleColumn(Labels(numbers.classes, of=False), name, _make_labels_decoder(numbers))
        if kind == "bytes":
            return _make_bytes_column(name, facts, missing)
        dtype = "float32" if kind == "floats" else "int64"
        if facts.high <= 1:
            return _ExampleColumn(Array(dtype, optional=missing), name, _decode_number)
        if facts.low == facts.high:
            return _ExampleColumn(Array(dtype, (facts.high,), optional=missing), name, _decode_numbers)
        return _ExampleColumn(Array(dtype, ragged=True), name, _decode_numbers)


def _pixels_to_png(data: bytes, height: int, width: int, channels: int | None) -> bytes:
    """Encodes raw pixels as a PNG file. If ``channels`` is None, infers 1 or 3 from the number of bytes. Raises
    :class:`ValueError` for other channels, and if the number of bytes does not fit."""
    one = height * width
    if channels is None:
        channels = len(data) // one if one > 0 and len(data) in (one, 3 * one) else 0
    if one < 1 or channels not in (1, 3) or len(data) != one * channels:
        raise ValueError(f"found {len(data):,} bytes of {height} x {width} pixels; expected uint8 with 1 or 3 channels")
    pixels = np.frombuffer(data, np.uint8).reshape(height, width, channels)
    return encode_png(pixels)


def _name_columns(features: Sequence[str], of: str | None) -> dict[str, str]:
    """Returns features by the names of their columns: ``image/object/area`` becomes ``object_area``. ``of`` becomes
    ``labels``.

    If two features would have one column, each column gets the feature's whole name and ``_``. The same replaces the
    names ``image`` and ``boxes``. Raises :class:`SourceError` if two features still would have one column."""
    usual = {"image/class/label": "label", "class": "label", of: "labels", "caption": "caption"}
    short = {feature: usual.get(feature) or make_column_name(feature.removeprefix("image/")) for feature in features}
    names = list(short.values())
    columns: dict[str, str] = {}
    for feature, name in short.items():
        whole = name if names.count(name) == 1 and name not in ("image", "boxes") else f"{make_column_name(feature)}_"
        if whole in columns:
            raise SourceError(
                f"two features would be the column {whole!r}: {printable(feature)}, {printable(columns[whole])}"
            )
        columns[whole] = feature
    return columns


def _make_bytes_column(name: str, facts: FeatureFacts, missing: bool) -> _ExampleColumn:
    """Makes the column of a feature of bytes. Several values in an example are a list of texts. Single values are
    images, texts or bytes, by their guessed content."""
    if facts.high > 1:
        return _ExampleColumn(Json(optional=missing), name, _decode_texts)
    if facts.looks == {"image"}:
        return _ExampleColumn(Image(optional=missing), name, _decode_bytes)
    if facts.looks <= {"text"}:
        return _ExampleColumn(Text(optional=missing), name, _decode_text)
    return _ExampleColumn(Bytes(optional=missing), name, _decode_bytes)


def _decode_bytes(feature: Feature, message: Message) -> Any:
    """Returns the only value of bytes, or None for no value. Raises :class:`ValueError` for several values, and for
    values that are numbers."""
    values = feature.bytes(message) if feature.kind == "bytes" else []
    if len(values) > 1 or feature.kind != "bytes":
        raise ValueError(f"found {len(values)} values, expected one of bytes")
    return values[0] if values else None


def _decode_text(feature: Feature, message: Message) -> str | None:
    """Decodes the only text, or returns None for no value. Raises :class:`ValueError` for several values or other
    encodings."""
    value = _decode_bytes(feature, message)
    return None if value is None else value.decode("utf-8")


def _decode_number(feature: Feature, message: Message) -> Any:
    """Returns the only number, or None for no value. Raises :class:`ValueError` for several values or bytes."""
    values = _decode_numbers(feature, message)
    if len(values) > 1:
        raise ValueError(f"found {len(values)} numbers, expected one")
    return values[0] if len(values) else None


def _decode_numbers(feature: Feature, message: Message) -> NDArray[Any]:
    """Returns all numbers. Raises :class:`ValueError` for bytes."""
    if feature.kind == "bytes":
        raise ValueError("found bytes, expected numbers")
    return feature.numbers(message)


def _decode_texts(feature: Feature, message: Message) -> list[str]:
    """Decodes all texts. Raises :class:`ValueError` if one is not UTF-8."""
    return [value.decode("utf-8") for value in feature.bytes(message)]


def _make_label_decoder(numbers: Numbering) -> Decode:
    """Returns a function that decodes a label to the number of its class. The function returns None for -1 and for no
    value. It raises :class:`ValueError` for several values, and for a number that no class has."""

    def decode(feature: Feature, message: Message) -> int | None:
        number = _decode_number(feature, message)
        return None if number is None else numbers(int(number))

    return decode


def _make_labels_decoder(numbers: Numbering) -> Decode:
    """Returns a function that decodes labels to the numbers of their classes, int64. The function raises
    :class:`ValueError` for -1, and for a number that no class has."""

    def decode(feature: Feature, message: Message) -> NDArray[np.int64]:
        labels = [numbers(number) for number in _decode_numbers(feature, message).tolist()]
        if None in labels:
            raise ValueError("found -1 among numbers of classes")
        return np.array(labels, np.int64)

    return decode


KIND = Kind(
    "tfrecord",
    "TFRecord files of tf.train.Example",
    lambda path, _: recognise_shards(path, SUFFIXES, is_tfrecord),
    TfrecordSource,
)
