"""Collects facts about the features of all examples of a source, since the column of a feature depends on all of its
values. Finds numbers and names of classes by them: the first number, and the name of each.

Nothing is guessed: a file beside the data or the data themselves decide, or it is a question. Features that begin
with ``image/`` are TF-slim's and the Object Detection API's, whose writers reserve 0 for the background.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.files import read_bounded, read_text
from packstore.images.sniff import begins_like_image
from packstore.sources.records import refuse_damage
from packstore.sources.records.wire import Feature, Message

_log = logging.getLogger(__name__)
_MAX_LABELS = 1 << 17
_MAX_SHAPES = 1 << 12
_LOOKED_AT = 256
_EDGES = ("xmin", "ymin", "xmax", "ymax")
# Edges of boxes beyond this are pixels, not fractions of the image.
_LARGEST_FRACTION = 2.0
_MAX_BYTES = 1 << 28
_ITEM = re.compile(r"item\s*\{(.*?)\}", re.DOTALL)
_NUMBERED = re.compile(r"(\d{1,9})\s*:\s*(.+)")
_VALUE = re.compile(r"(id|name)\s*:\s*(-?\d+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")


class FeatureFacts(NamedTuple):
    """Facts about one feature in all examples.

    Attributes:
        kinds: Types of its values: ``bytes``, ``floats``, ``ints``; ``""`` for a feature without values.
        looks: Guessed content of bytes: ``image``, ``text``, ``bytes``. Floats that are edges of boxes in pixels:
            ``pixels``.
        low: Smallest number of values in an example.
        high: Largest number of values in an example.
        missing: Some examples lack the feature.
    """

    kinds: frozenset[str] = frozenset()
    looks: frozenset[str] = frozenset()
    low: int = 1 << 62
    high: int = 0
    missing: bool = False

    def add(self, kind: str, count: int, look: str) -> FeatureFacts:
        """Returns the facts with those of one more example."""
        looks = self.looks | {look} if look else self.looks
        return FeatureFacts(self.kinds | {kind}, looks, min(self.low, count), max(self.high, count), self.missing)


# By class number, the value of each feature that names the class; None if examples disagree. -1 means no label.
LabelFacts = dict[int, dict[str, bytes | None]]


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
        self._shapes: set[tuple[tuple[str, str, int, str], ...]] = set()

    def add_example(self, features: Mapping[str, Feature], message: Message, is_sound: Callable[[], bool]) -> None:
        """Adds the facts of an example. For new facts, calls ``is_sound``, which verifies the whole record; if that
        returns False, adds nothing. Raises :class:`ValueError` for an invalid message."""
        shape = tuple([(name, its.kind, *_describe_values(name, its, message)) for name, its in features.items()])
        labels = self._find_new_labels(features, message)
        known = shape in self._shapes
        if (labels or not known) and not is_sound():
            return
        if not known:
            merged = {name: facts._replace(missing=True) for name, facts in self.features.items()}
            for name, kind, count, look in shape:
                facts = self.features.get(name, FeatureFacts(missing=self.parsed > 0))
                merged[name] = facts.add(kind, count, look)
            self.features = merged
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            self._shapes.add(shape)
        self.parsed += 1
        for (label, number), named in labels.items():
            self.labels.setdefault(label, {})[number] = named

    def _find_new_labels(
        self, features: Mapping[str, Feature], message: Message
    ) -> dict[tuple[str, int], dict[str, bytes | None]]:
        """Returns the new facts about class numbers, by feature and number."""
        news: dict[tuple[str, int], dict[str, bytes | None]] = {}
        for label, naming in self._label_names.items():
            feature, known = features.get(label), self.labels.get(label, {})
            if feature is None or feature.kind != "ints":
                continue
            numbers = feature.numbers(message).tolist()
            given = {name: its for name in naming if (its := features.get(name)) is not None and its.kind == "bytes"}
            values = {name: its.bytes(message) for name, its in given.items() if len(its.spans) == len(numbers)}
            for i, number in enumerate(numbers):
                named = {name: values[name][i] if name in values else None for name in naming}
                old = news.get((label, number), known.get(number))
                if old is not None:
                    named = {name: value if named[name] == value else None for name, value in old.items()}
                # Beyond this limit the numbers are no classes, and would fill the memory.
                if named != old and (old is not None or len(known) + len(news) < _MAX_LABELS):
                    news[label, number] = named
        return news


def _describe_values(name: str, feature: Feature, message: Message) -> tuple[int, str]:
    """Returns the number of values of a feature, and what they look like, see :class:`FeatureFacts`."""
    count = feature.count(message)
    if feature.kind == "bytes" and count:
        _, start, stop = feature.spans[0]
        return count, _guess_content(message.get(start, min(stop, start + _LOOKED_AT)), stop - start > _LOOKED_AT)
    edges = feature.kind == "floats" and name.endswith(_EDGES)
    return count, "pixels" if edges and np.any(np.abs(feature.numbers(message)) > _LARGEST_FRACTION) else ""


def _guess_content(start: bytes, cut: bool) -> str:
    """Guesses if a value is ``image``, ``text`` or ``bytes`` from its first bytes; ``cut``: it is longer."""
    if begins_like_image(start[:16]):
        return "image"
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        # The last character may be incomplete.
        return "text" if cut and error.start > len(start) - 4 else "bytes"
    return "bytes" if b"\0" in start else "text"


class ClassNameFile(NamedTuple):
    """Names of classes in a file beside the data.

    Attributes:
        file: Name of the file.
        names: Names of the classes, by their numbers.
        numbered: The file has the numbers; if not, they are those of the lines, from 0.
    """

    file: str
    names: Mapping[int, str]
    numbered: bool


@dataclass(frozen=True)
class Numbering:
    """Converts class numbers in the data to packstore's, which count from 0.

    Attributes:
        numbers: Maps class numbers in the data to packstore's; None if they are the same.
        classes: Names of the classes; None if unknown.
        by: Feature whose values are the names.
        why: Reason for this numbering, for people.
    """

    numbers: Mapping[int, int] | None = None
    classes: tuple[str, ...] | None = None
    by: str | None = None
    why: str = ""

    def __call__(self, number: int) -> int | None:
        """Converts a number to the number of its class. Returns None for -1, which means no label. Raises
        :class:`ValueError` for a number that no class has."""
        if number == -1:
            return None
        class_number = number if self.numbers is None else self.numbers.get(number, -1)
        if class_number < 0 or (self.classes is not None and class_number >= len(self.classes)):
            what = "the number of no class" if self.classes is None else f"none of {len(self.classes)} classes"
            raise ValueError(f"{number} is {what}")
        return class_number


# Numbering of classes that count from 0 and have no names.
UNCHANGED = Numbering()


def find_class_names(folder: Path) -> ClassNameFile | None:
    """Reads names of classes from ``labels.txt`` or a label map (``.pbtxt``). Returns None if there is no such file.

    ``labels.txt`` has the lines of TF-slim, ``0:daisy``, or lines of names alone; these have no numbers.

    Raises :class:`SourceError` if the file cannot be read, has more than 256 MiB, or has two names for one number.
    Raises :class:`AmbiguousSourceError` for several files.
    """
    maps = sorted(file for file in folder.glob("*.pbtxt") if file.is_file())
    files = [file for file in (folder / "labels.txt",) if file.is_file()] + maps
    if len(files) > 1:
        listed = ", ".join(printable(file.name) for file in files)
        raise AmbiguousSourceError(f"{printable(str(folder))} holds {listed}: leave only the one that names the labels")
    if not files:
        return None
    with refuse_damage(files[0]):
        text = read_bounded(files[0], _MAX_BYTES).decode("utf-8-sig")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        parts = [_NUMBERED.fullmatch(line) for line in lines]
        pairs = _parse_label_map(text) if maps else [(int(part[1]), part[2]) for part in parts if part]
        numbered = bool(maps) or all(parts)
        names = dict(pairs if numbered else enumerate(lines))
        if numbered and len(names) < len(pairs):
            raise ValueError("it has two names for one number")
    return ClassNameFile(files[0].name, names, numbered)


def read_class_names(file: Path, count: int = 0, by: str = "") -> tuple[str, ...] | None:
    """Reads a file with the name of a class on each line; None if there is no such file.

    If a name occurs twice, as ``crane`` does in some lists of ImageNet, logs a warning, and returns None. Raises
    :class:`SourceError` if the file cannot be read, or does not have ``count`` names, as the file ``by`` says. A
    ``count`` of 0 allows any number.
    """
    if not file.is_file():
        return None
    with refuse_damage(file):
        names = tuple(line.strip() for line in read_text(file).split("\n") if line.strip())
        if count and len(names) != count:
            raise ValueError(f"it has {len(names)} names; {by} says {count}")
    return _without_duplicates(printable(str(file)), names)


def _without_duplicates(file: str, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Returns names of classes; logs a warning and returns None if a name occurs twice."""
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is None:
        return names
    _log.warning("%s names %r twice: classes are packed as numbers alone", file, printable(twice))
    return None


def _parse_label_map(text: str) -> list[tuple[int, str]]:
    """Parses number and name of each item of a label map in text form."""
    # Source: ``object_detection/protos/string_int_label_map.proto``.
    items: list[tuple[int, str]] = []
    text = re.sub(r"(?m)^\s*#.*$", "", text)
    for item in _ITEM.findall(text):
        values = dict(_VALUE.findall(re.sub(r"display_name\s*:\s*", "shown:", item)))
        if not re.fullmatch(r"\d{1,9}", values.get("id", "")):
            raise ValueError("an item has no id")
        name = re.sub(r"\\(.)", r"\1", values.get("name", "")[1:-1])
        items.append((int(values["id"]), name or values["id"]))
    if len(items) != len(re.findall(r"\bitem\b\s*\{", text)) or not items:
        raise ValueError("it is not a label map")
    return items


def find_numbering(
    path: Path, kind: str, label: str, facts: LabelFacts, beside: ClassNameFile | None, *, named: bool
) -> Numbering:
    """Finds the numbering of the classes of ``label``. Takes the first of these that applies.

    - A file of names beside the data.
    - Names in the data, if they name all numbers from 0. In features of TF-slim, numbers from 1.
    - Numbers from 0, without names.

    Args:
        path: Path of the source, for messages.
        kind: Kind of the source, for messages.
        label: Feature of the label.
        facts: Facts about its numbers in all examples.
        beside: Names in a file beside the data; None if there are none.
        named: The user named the kind. Numbers that nothing explains are then packed unchanged.

    Raises:
        AmbiguousSourceError: Nothing tells if the classes count from 0 or from 1.
        SourceError: The names beside the data do not fit its numbers.
    """
    seen = sorted(facts.keys() - {-1})
    if beside is not None:
        return _number_by_file(path, label, seen, beside)
    if not seen:
        return Numbering()
    row = seen == list(range(seen[0], seen[0] + len(seen)))
    for by in facts[seen[0]]:
        values = [facts[n].get(by) for n in seen]
        names = [value.decode("utf-8", "replace") for value in values if value]
        if len(set(names)) < len(seen):
            continue
        if row and (seen[0] == 0 or (seen[0] == 1 and label.startswith("image/"))):
            why = f"{label} is {seen[0]} to {seen[-1]}, and {by} names each"
            return Numbering({n: i for i, n in enumerate(seen)}, tuple(names), by, why)
    if seen[0] == 0 or named:
        return Numbering(why=f"{label} is {seen[0]} to {seen[-1]}, packed as it is")
    raise AmbiguousSourceError(
        f"{printable(str(path))}: {printable(label)} is {seen[0]} to {seen[-1]}, and nothing says whether its classes "
        f"begin at 0 or at 1: put a file labels.txt beside it, with a line for each class (1:cat), or pack the numbers "
        f"as they are with --source {kind}",
        [Answer(("--source", kind))],
        path,
    )


def _number_by_file(path: Path, label: str, seen: Sequence[int], beside: ClassNameFile) -> Numbering:
    """Numbers the classes ``seen`` in the data by a file of names, in the order of the file's numbers."""
    file, count = printable(beside.file), len(beside.names)
    # Names without numbers count from 0, but these may count from 1.
    if not beside.numbered and seen and seen[0] > 0:
        raise AmbiguousSourceError(
            f"{printable(str(path))}: {printable(label)} is {seen[0]} to {seen[-1]}, and the {count} names in "
            f"{file} have no numbers: write each line with its own (1:cat)"
        )
    strange = next((n for n in seen if n not in beside.names), None)
    if strange is not None:
        raise SourceError(f"{printable(str(path))}: {printable(label)} has {strange}, for which {file} has no name")
    numbers = {number: place for place, number in enumerate(sorted(beside.names))}
    names = tuple(beside.names[number] for number in numbers)
    return Numbering(numbers, _without_duplicates(file, names), None, f"classes from {file}")
