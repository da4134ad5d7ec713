"""What the examples of a source say of their features: what a column can be shows only when all of them are known."""

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
_Shape = tuple[tuple[str, str, int, str], ...]
"""Name, kind, number of values and look of each feature of an example."""


@dataclass(slots=True)
class Facts:
    """What all examples say of one feature.

    Attributes:
        kinds: ``bytes``, ``floats``, ``ints``.
        looks: Of bytes: ``image``, ``text``, ``bytes``.
        low: The least number of values.
        high: The largest one.
        missing: Some examples have no such feature.
        largest: Of floats that are edges of boxes, the largest absolute value.
    """

    kinds: set[str] = field(default_factory=set)
    looks: set[str] = field(default_factory=set)
    low: int = 1 << 62
    high: int = 0
    missing: bool = False
    largest: float = 0.0


@dataclass(slots=True)
class LabelFacts:
    """What all examples say of the numbers of a feature of labels.

    Attributes:
        names: By number, the values of each feature that names the class; None where they differ.
        missing: Some examples have -1, which stands for no label.
    """

    names: dict[int, dict[str, bytes | None]] = field(default_factory=dict)
    missing: bool = False

    def is_news(self, number: int, named: Mapping[str, bytes]) -> bool:
        """Whether an example tells anything with this number, which has these names."""
        if number == -1:
            return not self.missing
        known = self.names.get(number)
        if known is None:
            return len(self.names) < _MAX_LABELS
        return any(value is not None and named.get(name) != value for name, value in known.items())

    def note(self, number: int, named: Mapping[str, bytes]) -> None:
        """Takes what an example says."""
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
    """What all examples say.

    Most say nothing that others did not say before, which is cheap to see: their features are of the same kinds, and
    their label goes with the same name.

    Attributes:
        features: By name.
        labels: By the name of a feature of labels.
        parsed: Number of examples.
    """

    def __init__(self, label_names: Mapping[str, tuple[str, ...]]) -> None:
        """``label_names``: by the feature of a label, the features that name its class."""
        self.features: dict[str, Facts] = {}
        self.labels: dict[str, LabelFacts] = {}
        self.parsed = 0
        self._label_names = label_names
        self._shapes: set[_Shape] = set()
        self._namings: set[tuple[bytes, ...]] = set()

    def add(self, features: Mapping[str, Feature], message: Message, is_sound: Callable[[], bool]) -> None:
        """Takes what an example says. ``is_sound`` reads all of it: it is asked only where it says anything new, and
        what a damaged one says is left out. Raises :class:`ValueError` for what is no example."""
        shape: _Shape = tuple([(name, its.kind, *_look(its, message)) for name, its in features.items()])
        largest = _largest(features, message)
        labels = self._news_of_labels(features, message)
        news = shape not in self._shapes and self._is_news(shape)
        if (news or labels or self._are_larger(largest)) and not is_sound():
            return
        self.parsed += 1
        if shape not in self._shapes:
            self._note(shape)
        for name, value in largest.items():
            self.features[name].largest = max(self.features[name].largest, value)
        for label, numbers in labels.items():
            facts = self.labels.setdefault(label, LabelFacts())
            for number, named in numbers:
                facts.note(number, named)

    def _is_news(self, shape: _Shape) -> bool:
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

    def _note(self, shape: _Shape) -> None:
        for name, kind, count, look in shape:
            if name not in self.features:
                self.features[name] = Facts(missing=self.parsed > 1)
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

    def _are_larger(self, largest: Mapping[str, float]) -> bool:
        return any(value > self.features[name].largest for name, value in largest.items() if name in self.features)

    def _news_of_labels(
        self, features: Mapping[str, Feature], message: Message
    ) -> dict[str, list[tuple[int, dict[str, bytes]]]]:
        """By label, all numbers and names of an example where any of them is new."""
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
            if any(known.is_news(number, names) for number, names in said):
                news[label] = said
            elif sum(map(len, whole)) <= _NAMING_BYTES:
                if len(self._namings) >= _MAX_NAMINGS:
                    self._namings.clear()
                self._namings.add(whole)
        return news


def _look(feature: Feature, message: Message) -> tuple[int, str]:
    """Number of values, and what the first one looks like where they are bytes."""
    count = feature.count(message)
    if feature.kind != "bytes" or not count:
        return count, ""
    _, start, stop = feature.spans[0]
    return count, _looks(message.get(start, min(stop, start + _LOOKED_AT)), stop - start > _LOOKED_AT)


def _largest(features: Mapping[str, Feature], message: Message) -> dict[str, float]:
    found = {}
    for name, feature in features.items():
        if feature.kind == "floats" and feature.spans and name.endswith(_EDGES):
            data = b"".join([message.get(start, stop) for _, start, stop in feature.spans])
            found[name] = max(map(abs, struct.unpack(f"<{len(data) // 4}f", data)), default=0.0)
    return found


def _looks(start: bytes, cut: bool) -> str:
    """What the beginning of a value says of it."""
    if begins_like_image(start[:16]):
        return "image"
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return "text" if cut and error.start > len(start) - 4 else "bytes"
    return "bytes" if b"\0" in start else "text"
