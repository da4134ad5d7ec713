"""Collects facts about the features of all examples of a source, since the column of a feature depends on all of its
values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from packstore.core.protobuf import Feature, Message
from packstore.images.sniff import begins_like_image

_MAX_LABELS = 1 << 17
_MAX_SHAPES = 1 << 12
_MAX_NAMINGS, _NAMING_BYTES = 1 << 14, 256
_LOOKED_AT = 256
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_ExampleShape = tuple[tuple[str, str, int, str], ...]
"""Name, kind, number of values and guessed content of each feature of an example."""


@dataclass(slots=True)
class FeatureFacts:
    """Facts about one feature in all examples.

    Attributes:
        kinds: Types of its values: ``bytes``, ``floats``, ``ints``; ``""`` for a feature without values.
        looks: Guessed content of bytes: ``image``, ``text``, ``bytes``.
        low: Smallest number of values in an example.
        high: Largest number of values in an example.
        missing: Some examples lack the feature.
        largest: Largest absolute value of floats that are edges of boxes.
    """

    kinds: set[str] = field(default_factory=set)
    looks: set[str] = field(default_factory=set)
    low: int = 1 << 62
    high: int = 0
    missing: bool = False
    largest: float = 0.0


@dataclass(slots=True)
class LabelFacts:
    """Class numbers of a label feature in all examples, with the names beside them.

    Attributes:
        names: By class number, the value of each feature that names the class; None if examples disagree.
        missing: Some examples have -1, which means no label.
    """

    names: dict[int, dict[str, bytes | None]] = field(default_factory=dict)
    missing: bool = False

    def would_change(self, number: int, named: Mapping[str, bytes]) -> bool:
        """Tells if :meth:`add_label` of this number and these names would change the facts."""
        if number == -1:
            return not self.missing
        known = self.names.get(number)
        if known is None:
            return len(self.names) < _MAX_LABELS
        return any(value is not None and named.get(name) != value for name, value in known.items())

    def add_label(self, number: int, named: Mapping[str, bytes]) -> None:
        """Adds a class number with its names; -1 means a missing label. A name that differs from an earlier one becomes
        None. Ignores new numbers after 131,072."""
        if number == -1:
            self.missing = True
        elif number not in self.names:
            if len(self.names) < _MAX_LABELS:
                self.names[number] = dict(named)
        else:
            known = self.names[number]
            for name in known:
                if named.get(name) != known[name]:
                    known[name] = None


class ExampleFacts:
    """Facts about all examples, collected one by one. Skips an example with a new fact if it is damaged.

    Most examples add no fact, since their feature types and label names are known. Their checksums are not verified.

    Attributes:
        features: Facts about each feature.
        labels: Facts about each feature of labels.
        parsed: Number of examples that were added.
    """

    def __init__(self, label_names: Mapping[str, tuple[str, ...]]) -> None:
        """``label_names``: features that name the class of a label, by the feature of the label."""
        self.features: dict[str, FeatureFacts] = {}
        self.labels: dict[str, LabelFacts] = {}
        self.parsed = 0
        self._label_names = label_names
        self._shapes: set[_ExampleShape] = set()
        self._namings: set[tuple[bytes, ...]] = set()

    def add_example(self, features: Mapping[str, Feature], message: Message, is_sound: Callable[[], bool]) -> None:
        """Adds the facts of an example. For new facts, calls ``is_sound``, which verifies the whole record; if that
        returns False, adds nothing. Raises :class:`ValueError` for an invalid message."""
        shape: _ExampleShape = tuple(
            [(name, its.kind, *_describe_values(its, message)) for name, its in features.items()]
        )
        largest = _find_largest_edges(features, message)
        labels = self._find_new_labels(features, message)
        news = shape not in self._shapes and self._would_change(shape)
        if (news or labels or self._has_larger_edge(largest)) and not is_sound():
            return
        self.parsed += 1
        if shape not in self._shapes:
            self._add_shape(shape)
        for name, value in largest.items():
            self.features[name].largest = max(self.features[name].largest, value)
        for label, numbers in labels.items():
            facts = self.labels.setdefault(label, LabelFacts())
            for number, named in numbers:
                facts.add_label(number, named)

    def _would_change(self, shape: _ExampleShape) -> bool:
        """Tells if an example with this shape would change the known facts. A shape has name, type, count and content
        of each feature."""
        names = {name for name, *_ in shape}
        if any(not known.missing and name not in names for name, known in self.features.items()):
            return True
        for name, kind, count, look in shape:
            known = self.features.get(name)
            if known is None or kind not in known.kinds or not known.low <= count <= known.high:
                return True
            if look and look not in known.looks:
                return True
        return False

    def _add_shape(self, shape: _ExampleShape) -> None:
        """Adds the shape of an example to the facts about features, and to the known shapes. Forgets all known shapes
        when there are too many."""
        for name, kind, count, look in shape:
            if name not in self.features:
                self.features[name] = FeatureFacts(missing=self.parsed > 1)
            known = self.features[name]
            known.kinds.add(kind)
            if look:
                known.looks.add(look)
            known.low, known.high = min(known.low, count), max(known.high, count)
        for name in self.features.keys() - {name for name, *_ in shape}:
            self.features[name].missing = True
        if len(self._shapes) >= _MAX_SHAPES:
            self._shapes.clear()
        self._shapes.add(shape)

    def _has_larger_edge(self, largest: Mapping[str, float]) -> bool:
        """Tells if an edge of boxes is larger than the largest of all earlier examples."""
        return any(value > self.features[name].largest for name, value in largest.items() if name in self.features)

    def _find_new_labels(
        self, features: Mapping[str, Feature], message: Message
    ) -> dict[str, list[tuple[int, dict[str, bytes]]]]:
        """Returns class numbers with their names, by label feature. Leaves out label features without a new number or
        name. Remembers combinations without news, to skip them next time."""
        news = {}
        for label, naming in self._label_names.items():
            feature = features.get(label)
            if feature is None or feature.kind != "ints":
                continue
            given = [its for name in naming if (its := features.get(name)) is not None and its.kind == "bytes"]
            whole = (label.encode(), *(value for its in (feature, *given) for value in its.bytes(message)))
            if whole in self._namings:
                continue
            numbers = feature.numbers(message).tolist()
            named = {name: features[name] for name in naming if name in features and features[name] in given}
            values = {name: its.bytes(message) for name, its in named.items() if len(its.spans) == len(numbers)}
            said = [(number, {name: each[i] for name, each in values.items()}) for i, number in enumerate(numbers)]
            known = self.labels.get(label, LabelFacts())
            if any(known.would_change(number, names) for number, names in said):
                news[label] = said
            elif sum(map(len, whole)) <= _NAMING_BYTES:
                if len(self._namings) >= _MAX_NAMINGS:
                    self._namings.clear()
                self._namings.add(whole)
        return news


def _describe_values(feature: Feature, message: Message) -> tuple[int, str]:
    """Returns the number of values, and the content of the first value. Guesses the content from the first 256 bytes.
    The content is ``""`` for values that are not bytes, and for no values."""
    count = feature.count(message)
    if feature.kind != "bytes" or not count:
        return count, ""
    _, start, stop = feature.spans[0]
    return count, _guess_content(message.get(start, min(stop, start + _LOOKED_AT)), stop - start > _LOOKED_AT)


def _find_largest_edges(features: Mapping[str, Feature], message: Message) -> dict[str, float]:
    """Returns the largest absolute value of each feature of edges of boxes (``…xmin``), by name. Leaves out features
    that are no floats."""
    edges = {}
    for name, feature in features.items():
        if feature.kind == "floats" and feature.spans and name.endswith(_EDGES):
            data = b"".join([message.get(start, stop) for _, start, stop in feature.spans])
            edges[name] = max(map(abs, struct.unpack(f"<{len(data) // 4}f", data)), default=0.0)
    return edges


def _guess_content(start: bytes, cut: bool) -> str:
    """Guesses if a value is ``image``, ``text`` or ``bytes`` from its first bytes. ``cut``: the value is longer, and
    the last character of ``start`` may be incomplete."""
    if begins_like_image(start[:16]):
        return "image"
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return "text" if cut and error.start > len(start) - 4 else "bytes"
    return "bytes" if b"\0" in start else "text"
