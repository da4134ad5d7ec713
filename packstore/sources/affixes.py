"""Finds what the names of files add to a common part: ``a.jpg`` and ``mask_a_0.png`` add nothing and ``mask_``, ``_0``.

Names are divided where letters, digits, case or other characters meet. Of many names a sample is read, spread evenly.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")
_EDGE = re.compile(r"(?<=[a-z])(?![a-z])|(?<=[A-Z])(?![A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\d)(?!\d)|(?<=[\W_])")
_DIGITS = re.compile(r"\d+")
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[\d*]+")
_PLAIN = re.compile(r"[^*{=.]+[.][^*{=.]+")
_SEPARATORS = " _.-+"
_NUMBERED = (
    re.compile(r"(?P<before>[A-Za-z]*\d{1,2}[ _.+-]+)(?P<base>[^\W_].*)"),
    re.compile(r"(?P<base>.*[^\W_])(?P<after>[ _.+-]+(?:[A-Za-z]*\d{1,2}[A-Za-z]?|\d+x\d+))"),
    re.compile(r"(?P<base>.*\d)(?P<after>x\d{1,2})"),
)
_MOST_EDGES, _MOST_AFFIXES, _LONGEST, _FEW = 5, 40, 200, 3
_GOLDEN = 0.6180339887498949


class Affix(NamedTuple):
    """Text before and behind the common part of a name. ``*`` in ``after`` stands for any number."""

    before: str
    after: str

    @property
    def is_plain(self) -> bool:
        """True if the name is the common part and a suffix."""
        return not self.before and self.after.count(".") == 1 and self.after[:1] == "."

    @property
    def has_word(self) -> bool:
        """True if there are letters apart from the suffix."""
        return any(token.isalpha() for token in self.tokens)

    @property
    def tokens(self) -> list[str]:
        """Words and numbers of the affix without the suffix, in lower case; a ``*`` is a number."""
        return [token.lower() for token in _TOKEN.findall(f"{self.before} {self.after.rpartition('.')[0]}")]

    @property
    def suffix(self) -> str:
        """The suffix with its dot, in lower case."""
        return f".{self.after.rpartition('.')[2].lower()}" if "." in self.after else ""

    def is_longer(self, other: Affix) -> bool:
        """Tells if this affix has more characters than another one."""
        return len(self.before) + len(self.after) > len(other.before) + len(other.after)

    def base_of(self, name: str) -> str | None:
        """Returns the common part of a name; None if the name lacks the affix, or the common part would be empty."""
        if not name.startswith(self.before):
            return None
        if "*" not in self.after:
            base = name[len(self.before) : len(name) - len(self.after)] if name.endswith(self.after) else ""
            return base or None
        found = _compile(self.after).search(name, len(self.before) + 1)
        return name[len(self.before) : found.start()] if found is not None else None

    def find(self, names: Sequence[str], base: str) -> str | None:
        """Finds the first name with this affix and common part among sorted names."""
        return next(self.find_all(names, base), None)

    def find_all(self, names: Sequence[str], base: str) -> Iterator[str]:
        """Yields the names with this affix and common part among sorted names."""
        start, star, _ = self.after.partition("*")
        wanted = self.before + base + start
        place = bisect_left(names, wanted)
        while place < len(names) and names[place].startswith(wanted):
            if self.base_of(names[place]) == base:
                yield names[place]
            if not star:
                return
            place += 1

    def pattern(self) -> str:
        """Returns the pattern of names with this affix, see :mod:`.companion_patterns`."""
        return f"{self.before}{{s}}{self.after}"


@lru_cache(1 << 10)
def _compile(after: str) -> re.Pattern[str]:
    """Compiles the end of a name with numbers."""
    return re.compile("".join(r"\d+" if part == "*" else re.escape(part) for part in re.split(r"(\*)", after)) + r"\Z")


def sample(items: Sequence[Item], count: int) -> Sequence[Item]:
    """Returns ``count`` of the items, spread evenly but not regularly; the same at each call."""
    if len(items) <= count:
        return items
    return [items[int(len(items) * ((number * _GOLDEN) % 1))] for number in range(count)]


@lru_cache(1 << 13)
def list_affixes(name: str) -> Sequence[tuple[Affix, str]]:
    """Returns the possible affixes of a name, each with the common part. A common part has a letter or digit. Affixes
    before it have no digits, since those count; behind it, digits become ``*``."""
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(name) > _LONGEST or not name.isprintable() or "*" in name or "{" in name or "=" in name:
        return ()
    edges = [match.start() for match in _EDGE.finditer(stem)]
    starts = [0, *(edge for edge in edges if not any(map(str.isdigit, stem[:edge])))][: _MOST_EDGES + 1]
    ends = [len(stem), *reversed(edges)][: _MOST_EDGES + 5]
    found = []
    for start in starts:
        for end in ends:
            base, before, after = stem[start:end], stem[:start], stem[end:]
            if not any(map(str.isalnum, base)) or base[-1] in _SEPARATORS or (start and base[0] in _SEPARATORS):
                continue
            found.append((Affix(before, _DIGITS.sub("*", after) + dot + suffix), base))
    return tuple(dict.fromkeys(found))


def list_glued_affixes(name: str, names: Sequence[str]) -> Iterator[tuple[Affix, str]]:
    """Yields the affixes of a name that no edge divides from the stem of another name: ``mask`` of ``maskpearl.png``
    beside ``pearl.jpg``. ``names`` are sorted."""
    stem, dot, suffix = name.rpartition(".")
    if len(name) > _LONGEST or not _PLAIN.fullmatch(name):
        return
    for place in range(1, len(stem)):
        if not (stem[place - 1].islower() and stem[place].islower()):
            continue
        for affix, base in (
            (Affix(stem[:place], dot + suffix), stem[place:]),
            (Affix("", stem[place:] + dot + suffix), stem[:place]),
        ):
            found = bisect_left(names, f"{base}.")
            if not any(map(str.isdigit, affix.before)) and found < len(names) and names[found].startswith(f"{base}."):
                yield affix._replace(after=_DIGITS.sub("*", affix.after)), base


@lru_cache(1 << 13)
def list_numbered_affixes(name: str) -> Sequence[tuple[Affix, str]]:
    """Returns the affixes of a name that are a short number, perhaps behind a word, each with the common part:
    ``cam0_`` of ``cam0_0001.png`` and ``_10.png`` of ``0001_10.png``."""
    stem, dot, suffix = name.rpartition(".")
    if len(name) > _LONGEST or not _PLAIN.fullmatch(name):
        return ()
    found = []
    for pattern in _NUMBERED:
        match = pattern.fullmatch(stem)
        if match is not None:
            parts = match.groupdict("")
            found.append((Affix(parts.get("before", ""), parts.get("after", "") + dot + suffix), parts["base"]))
    return tuple(found)


def differ_in_number(one: Affix, other: Affix) -> bool:
    """Tells if two affixes with numbers are equal but for these and the suffix."""
    numbers = [(each.before, each.after.rpartition(".")[0]) for each in (one, other)]
    plain = [[_DIGITS.sub("*", text) for text in each] for each in numbers]
    return numbers[0] != numbers[1] and plain[0] == plain[1]


def list_frequent(counts: Counter[Affix], names: int) -> list[Affix]:
    """Returns the affixes of two names or more, and of one in fifty, 40 at most; of up to three names all."""
    least = max(2, names // 50) if names > _FEW else 1
    return [affix for affix, count in counts.most_common(_MOST_AFFIXES) if count >= least]


def go_together(one: Affix, other: Affix) -> bool:
    """Tells if names with two affixes may differ in these alone: the common part could not be longer."""
    if one == other:
        return False
    after: list[str]
    others_after: list[str]
    before, others_before = _TOKEN.findall(one.before), _TOKEN.findall(other.before)
    if before and others_before and before[-1] == others_before[-1]:
        return False
    after, others_after = _TOKEN.findall(one.after), _TOKEN.findall(other.after)
    if after == others_after[: len(after)] or others_after == after[: len(others_after)]:
        return after != others_after or one.before != other.before  # a.jpg and a.jpg.txt
    return after[0] != others_after[0]
