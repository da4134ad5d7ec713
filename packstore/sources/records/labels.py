"""Numbers of classes in files of others: where they begin, and what their names are.

Nothing is guessed: either a file beside the data or the data themselves say it, or it is a question. Features that
begin with ``image/`` are TF-slim's and the Object Detection API's, whose writers keep 0 for the background.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.records.facts import LabelFacts

_log = logging.getLogger(__name__)
_MAX_BYTES = 1 << 24
_ITEM = re.compile(r"item\s*\{(.*?)\}", re.DOTALL)
_VALUE = re.compile(r"(id|name)\s*:\s*(-?\d+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_WORDNET = re.compile(rb"n\d{8}")


@dataclass(frozen=True)
class Names:
    """Names of classes, as a file beside the data has them.

    Attributes:
        file: Its name.
        names: The names, in order.
        numbers: The number of each; None where the file only lists them.
    """

    file: str
    names: tuple[str, ...]
    numbers: tuple[int, ...] | None


@dataclass(frozen=True)
class Numbering:
    """How the numbers of the data become those of classes.

    Attributes:
        first: The number of the first class.
        numbers: Those of all classes, where they are not in a row.
        classes: Names of the classes; None where nothing says them.
        by: The feature whose values are the names.
        why: How that is known, for people.
    """

    first: int = 0
    numbers: Mapping[int, int] | None = None
    classes: tuple[str, ...] | None = None
    by: str | None = None
    why: str = ""

    def __call__(self, number: int) -> int | None:
        """The number of a class; None for -1, which stands for no label. Raises :class:`ValueError`."""
        if number == -1:
            return None
        found = number - self.first if self.numbers is None else self.numbers.get(number, -1)
        if found < 0 or (self.classes is not None and found >= len(self.classes)):
            raise ValueError(f"{number} is the number of no class")
        return found


def find_names(folder: Path) -> Names | None:
    """The names in ``labels.txt`` (lines of TF-slim, ``0:daisy``, or the names alone) or in a label map (``.pbtxt``).

    Raises :class:`SourceError` for a file that cannot be read, and :class:`AmbiguousSourceError` for several."""
    maps = sorted(file for file in folder.glob("*.pbtxt") if file.is_file())
    files = [file for file in (folder / "labels.txt",) if file.is_file()] + maps
    if len(files) > 1:
        listed = ", ".join(printable(file.name) for file in files)
        raise AmbiguousSourceError(f"{printable(str(folder))} holds {listed}: leave only the one that names the labels")
    if not files:
        return None
    try:
        with files[0].open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8")
        pairs = _label_map(text) if maps else _lines(text)
    except (OSError, ValueError) as error:
        raise SourceError(f"{printable(str(files[0]))} cannot be read: {printable(str(error))}") from None
    names = tuple(name for _, name in pairs)
    numbers = [number for number, _ in pairs if number is not None]
    if len(set(numbers)) < len(numbers):
        raise SourceError(f"{printable(str(files[0]))} has two names for one number")
    return Names(files[0].name, names, tuple(numbers) if numbers else None)


def _lines(text: str) -> list[tuple[int | None, str]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    parts = [re.fullmatch(r"(\d{1,9})\s*:\s*(.+)", line) for line in lines]
    if all(parts):
        return [(int(part[1]), part[2]) for part in parts if part]
    return [(None, line) for line in lines]


def _label_map(text: str) -> list[tuple[int | None, str]]:
    """``object_detection/protos/string_int_label_map.proto`` as text."""
    found: list[tuple[int | None, str]] = []
    text = re.sub(r"(?m)^\s*#.*$", "", text)
    for item in _ITEM.findall(text):
        values = dict(_VALUE.findall(re.sub(r"display_name\s*:\s*", "shown:", item)))
        if not re.fullmatch(r"\d{1,9}", values.get("id", "")):
            raise ValueError("an item has no id")
        name = re.sub(r"\\(.)", r"\1", values.get("name", "")[1:-1])
        found.append((int(values["id"]), name or values["id"]))
    if len(found) != len(re.findall(r"\bitem\b\s*\{", text)) or not found:
        raise ValueError("it is no label map")
    return found


def numbering(path: Path, kind: str, label: str, facts: LabelFacts, beside: Names | None, *, named: bool) -> Numbering:
    """How the values of ``label`` are numbered.

    Args:
        path: The source, for messages.
        kind: Its kind.
        label: The feature.
        facts: What all examples say of it.
        beside: The names of a file beside the data.
        named: The user named the kind: numbers of which nothing is known are packed as they are.

    Raises:
        AmbiguousSourceError: It is not certain where the numbers begin.
        SourceError: The names beside are not those of the data.
    """
    seen = sorted(facts.names)
    if beside is not None:
        return _from_file(path, label, seen, beside)
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
        if seen[0] > 0 and by == "image/class/synset" and seen[-1] <= 1000 and _is_imagenet(values):
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


def _is_imagenet(values: Sequence[bytes | None]) -> bool:
    """Whether these are WordNet's ids in their order, as the classes of ImageNet are numbered."""
    ids = [value for value in values if value is not None and _WORDNET.fullmatch(value)]
    return len(ids) == len(values) and ids == sorted(ids)


def _from_file(path: Path, label: str, seen: Sequence[int], beside: Names) -> Numbering:
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
        raise SourceError(f"{printable(str(path))}: {printable(label)} has {strange}, of which {file} has no name")
    names = tuple(beside.names[i] for i in order)
    why = f"classes from {file}"
    if len(set(names)) < count:
        twice = next(name for name in names if names.count(name) > 1)
        _log.warning("%s names %r twice: classes are packed as numbers alone", file, printable(twice))
        return Numbering(0, places, None, None, why)
    return Numbering(0, places, names, None, why)
