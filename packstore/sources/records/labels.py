"""Finds numbers and names of classes in record files: the first number, and the name of each.

Nothing is guessed: a file beside the data or the data themselves decide, or it is a question. Features that begin
with ``image/`` are TF-slim's and the Object Detection API's, whose writers reserve 0 for the background.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.files import read_bounded
from packstore.sources.records.facts import LabelFacts

_log = logging.getLogger(__name__)
_MAX_BYTES = 1 << 28
_ITEM = re.compile(r"item\s*\{(.*?)\}", re.DOTALL)
_VALUE = re.compile(r"(id|name)\s*:\s*(-?\d+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_WORDNET = re.compile(rb"n\d{8}")


@dataclass(frozen=True)
class ClassNameFile:
    """Names of classes in a file beside the data.

    Attributes:
        file: Name of the file.
        names: Names of the classes, in the order of the file.
        numbers: Number of each class in the data; None if the file only lists names.
    """

    file: str
    names: tuple[str, ...]
    numbers: tuple[int, ...] | None


@dataclass(frozen=True)
class Numbering:
    """Converts class numbers in the data to packstore's, which count from 0.

    Attributes:
        first: Number of the first class in the data.
        numbers: Maps class numbers in the data to packstore's; None to subtract ``first`` instead.
        classes: Names of the classes; None if unknown.
        by: Feature whose values are the names.
        why: Reason for this numbering, for people.
    """

    first: int = 0
    numbers: Mapping[int, int] | None = None
    classes: tuple[str, ...] | None = None
    by: str | None = None
    why: str = ""

    def __call__(self, number: int) -> int | None:
        """Converts a number to the number of its class. Returns None for -1, which means no label. Raises
        :class:`ValueError` for a number that no class has."""
        if number == -1:
            return None
        class_number = number - self.first if self.numbers is None else self.numbers.get(number, -1)
        if class_number < 0 or (self.classes is not None and class_number >= len(self.classes)):
            raise ValueError(f"{number} is the number of no class")
        return class_number


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
    try:
        text = read_bounded(files[0], _MAX_BYTES).decode("utf-8-sig")
        pairs = _parse_label_map(text) if maps else _parse_lines(text)
    except (OSError, ValueError) as error:
        raise SourceError(f"{printable(str(files[0]))} cannot be read: {printable(str(error))}") from None
    names = tuple(name for _, name in pairs)
    numbers = [number for number, _ in pairs if number is not None]
    if len(set(numbers)) < len(numbers):
        raise SourceError(f"{printable(str(files[0]))} has two names for one number")
    return ClassNameFile(files[0].name, names, tuple(numbers) if numbers else None)


def _parse_lines(text: str) -> list[tuple[int | None, str]]:
    """Parses lines ``0:daisy`` to numbers and names. If one line has no number, all lines are names, and all numbers
    None. Skips empty lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    parts = [re.fullmatch(r"(\d{1,9})\s*:\s*(.+)", line) for line in lines]
    if all(parts):
        return [(int(part[1]), part[2]) for part in parts if part]
    return [(None, line) for line in lines]


def _parse_label_map(text: str) -> list[tuple[int | None, str]]:
    """Parses number and name of each item of a label map (``object_detection/protos/string_int_label_map.proto``) in
    text form. An item without a name is named by its number. Raises :class:`ValueError` if it is invalid."""
    items: list[tuple[int | None, str]] = []
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
    - ImageNet's numbers from 1, if WordNet ids in the data confirm them.
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
    seen = sorted(facts.names)
    if beside is not None:
        return _number_by_file(path, label, seen, beside)
    if not seen:
        return Numbering()
    row = seen == list(range(seen[0], seen[0] + len(seen)))
    for by in facts.names[seen[0]]:
        values = [facts.names[n].get(by) for n in seen]
        names = [value.decode("utf-8", "replace") for value in values if value]
        if len(set(names)) < len(seen):
            continue
        if row and (seen[0] == 0 or (seen[0] == 1 and label.startswith("image/"))):
            why = f"{label} is {seen[0]} to {seen[-1]}, and {by} names each"
            return Numbering(seen[0], None, tuple(names), by, why)
        if seen[0] > 0 and by == "image/class/synset" and seen[-1] <= 1000 and _are_imagenet_classes(values):
            return Numbering(1, why=f"{label} is numbered from 1 as TF-slim numbers ImageNet")
    if seen[0] == 0 or named:
        return Numbering(why=f"{label} is {seen[0]} to {seen[-1]}, packed as it is")
    raise AmbiguousSourceError(
        f"{printable(str(path))}: {printable(label)} is {seen[0]} to {seen[-1]}, and nothing says whether its classes "
        f"begin at 0 or at 1: put a file labels.txt beside it, with a line for each class (1:cat), or pack the numbers "
        f"as they are with --source {kind}",
        [Answer(("--source", kind))],
        path,
    )


def _are_imagenet_classes(values: Sequence[bytes | None]) -> bool:
    """Tells if all values are WordNet ids in ascending order, the order of ImageNet's classes."""
    ids = [value for value in values if value is not None and _WORDNET.fullmatch(value)]
    return len(ids) == len(values) and ids == sorted(ids)


def _number_by_file(path: Path, label: str, seen: Sequence[int], beside: ClassNameFile) -> Numbering:
    """Numbers classes by the names in a file, in the order of the file's numbers. Names without numbers count from 1 if
    only that fits, else from 0. If a name occurs twice, logs a warning, and returns a numbering without names. Raises
    :class:`SourceError` if the names do not fit ``seen``, the numbers in the data. Raises :class:`AmbiguousSourceError`
    if names without numbers may count from 0 or 1."""
    file, count = printable(beside.file), len(beside.names)
    if beside.numbers is None:
        if seen and seen[0] <= 0 and seen[-1] >= count:
            raise SourceError(
                f"{printable(str(path))}: {file} has {count} names; {label} is {seen[0]} to {seen[-1]}: more"
            )
        if seen and seen[0] > 0 and seen[-1] < count:
            raise AmbiguousSourceError(
                f"{printable(str(path))}: {printable(label)} is {seen[0]} to {seen[-1]}, and the {count} names in "
                f"{file} have no numbers: write each line with its own (1:cat)"
            )
        first = 1 if seen and seen[0] > 0 else 0
        numbers = tuple(range(first, first + count))
    else:
        numbers = beside.numbers
    order = sorted(range(count), key=numbers.__getitem__)
    places = {numbers[i]: place for place, i in enumerate(order)}
    strange = next((n for n in seen if n not in places), None)
    if strange is not None:
        raise SourceError(f"{printable(str(path))}: {printable(label)} has {strange}, for which {file} has no name")
    names = tuple(beside.names[i] for i in order)
    why = f"classes from {file}"
    if len(set(names)) < count:
        twice = next(name for name in names if names.count(name) > 1)
        _log.warning("%s names %r twice: classes are packed as numbers alone", file, printable(twice))
        return Numbering(0, places, None, None, why)
    return Numbering(0, places, names, None, why)
