"""Conditions on records, as ``--where`` takes them: a small language of its own, which nothing is executed of.

::

    label in (cat, dog) and split == train
    not (key like "n01*") or score >= 0.5

A condition compares a column (``key``, ``split``, or one that has a single value a record) with names, strings in
quotes, or numbers: ``==  !=  <  <=  >  >=``, ``in (…)``, ``like`` with ``*`` and ``?``; ``and``, ``or``, ``not`` and
parentheses join conditions. Of a column with classes, names are those of classes. A missing value fulfils none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError, printable
from packstore.core.manifest import Column, Manifest

Mask = NDArray[np.bool_]

_MAX_TEXT, _MAX_DEPTH = 100_000, 100
_KEYWORDS = ("and", "or", "not", "in", "like")
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<sign>==|!=|<=|>=|<|>|\(|\)|,)
      | (?P<word>[^\s()<>=!,'"]+)
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


class Rows(Protocol):
    """Records of which a condition is asked, as columns."""

    def __len__(self) -> int: ...

    def values(self, name: str) -> NDArray[Any]:
        """The values of a fixed column."""
        ...

    def keys(self) -> Sequence[str]:
        """The keys."""
        ...

    def splits(self) -> Sequence[str]:
        """The name of each record's split."""
        ...


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


@dataclass(frozen=True, slots=True)
class Where:
    """A condition that fits a store.

    Attributes:
        text: As it was written.
        columns: What it looks at.
    """

    text: str
    columns: frozenset[str]
    _matches: Callable[[Rows], Mask]

    def __call__(self, rows: Rows) -> Mask:
        """``bool``, which of the records fulfil it."""
        return self._matches(rows)


def parse_where(text: str, manifest: Manifest) -> Where:
    """The condition that ``text`` says, of the records of a store.

    Raises :class:`UsageError` that says what is wrong, and at which character."""
    if len(text) > _MAX_TEXT:
        raise UsageError(f"the condition has {len(text):,} characters; at most {_MAX_TEXT:,} are allowed")
    parser = _Parser(text, manifest)
    matches = parser.whole()
    return Where(text, frozenset(parser.columns), matches)


class _Parser:
    def __init__(self, text: str, manifest: Manifest) -> None:
        self.text = text
        self.manifest = manifest
        self.columns: set[str] = set()
        self.depth = 0
        self.tokens = self._tokens()
        self.at = 0

    def whole(self) -> Callable[[Rows], Mask]:
        condition = self.any_of()
        if self.now.kind != "end":
            raise self.wrong("'and', 'or' or the end is expected")
        return condition

    def any_of(self) -> Callable[[Rows], Mask]:
        parts = [self.all_of()]
        while self.take("or"):
            parts.append(self.all_of())
        return lambda rows: np.asarray(np.logical_or.reduce([part(rows) for part in parts]), np.bool_)

    def all_of(self) -> Callable[[Rows], Mask]:
        parts = [self.negated()]
        while self.take("and"):
            parts.append(self.negated())
        return lambda rows: np.asarray(np.logical_and.reduce([part(rows) for part in parts]), np.bool_)

    def negated(self) -> Callable[[Rows], Mask]:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.wrong(f"more than {_MAX_DEPTH} levels of parentheses")
        try:
            if self.take("not"):
                inner = self.negated()
                return lambda rows: ~inner(rows)
            if self.take("("):
                condition = self.any_of()
                self.expect(")")
                return condition
            return self.comparison()
        finally:
            self.depth -= 1

    def comparison(self) -> Callable[[Rows], Mask]:
        token = self.now
        if token.kind != "word" or token.text in _KEYWORDS:
            raise self.wrong("the name of a column is expected")
        get, column = self.column(token)
        self.at += 1
        negative = self.take("not")
        sign = self.now
        if self.take("in"):
            self.expect("(")
            values = [self.value(token.text, column)]
            while self.take(","):
                values.append(self.value(token.text, column))
            self.expect(")")
            test = _among(get, values)
        elif self.take("like"):
            test = self.like(get, column)
        elif not negative and sign.kind == "sign" and sign.text in _COMPARISONS:
            self.at += 1
            place = self.now
            value = self.value(token.text, column)
            if column is not None and column.classes is not None and sign.text not in ("==", "!="):
                raise self.wrong(f"classes have no order; use == or in instead of {sign.text}", place)
            compare = _COMPARISONS[sign.text]
            test = lambda rows: np.asarray(compare(get(rows), value), np.bool_)  # noqa: E731
        else:
            expected = "'in' or 'like'" if negative else "==, !=, <, <=, >, >=, in, not in or like"
            raise self.wrong(f"{expected} is expected")
        if negative:
            test = _negated(test)
        valid = None if column is None or not column.nullable else column.valid_name
        return test if valid is None else lambda rows: test(rows) & rows.values(valid)

    def column(self, token: _Token) -> tuple[Callable[[Rows], NDArray[Any]], Column | None]:
        name = token.text
        known = [c.name for c in self.manifest.columns if c.kind == "fixed" and c.shape == () and c.layout is None]
        if name not in ("key", "split") and name not in known:
            raise self.wrong(f"no column {name!r} to compare; there are: {', '.join(['key', 'split', *known])}")
        self.columns.add(name)
        if name == "key":
            return lambda rows: np.array(rows.keys(), object), None
        if name == "split":
            return lambda rows: np.array(rows.splits(), object), None
        return lambda rows: rows.values(name), self.manifest.column(name)

    def value(self, name: str, column: Column | None) -> Any:
        """The next token as a value of a column: a number, or for ``key`` and ``split`` text."""
        token = self.now
        if token.kind not in ("word", "string") or (token.kind == "word" and token.text in _KEYWORDS):
            raise self.wrong("a value is expected")
        text = _unquoted(token.text) if token.kind == "string" else token.text
        value: Any = text
        if column is None:
            splits = [split.name for split in self.manifest.splits]
            if name == "split" and text not in splits:
                raise self.wrong(_unknown("split", text, splits))
        elif column.classes is not None and (text in column.classes or _NUMBER.fullmatch(text) is None):
            if text not in column.classes:
                raise self.wrong(_unknown("class", text, column.classes))
            value = column.classes.index(text)
        elif column.dtype == "bool" and text in ("true", "false"):
            value = text == "true"
        elif token.kind == "string" or _NUMBER.fullmatch(text) is None:
            raise self.wrong(f"column {column.name!r} holds numbers, and {text!r} is none")
        else:
            value = float(text) if any(c in text for c in ".eE") else int(text)
        self.at += 1
        return value

    def like(self, get: Callable[[Rows], NDArray[Any]], column: Column | None) -> Callable[[Rows], Mask]:
        token = self.now
        if column is not None and column.classes is None:
            raise self.wrong(f"column {column.name!r} holds numbers; like is for key, split and classes")
        if token.kind not in ("word", "string"):
            raise self.wrong("a pattern is expected")
        self.at += 1
        text = _unquoted(token.text) if token.kind == "string" else token.text
        pattern = re.compile(re.sub(r"(\\\*)+", ".*", re.escape(text)).replace(r"\?", "."), re.DOTALL)
        if column is not None:
            assert column.classes is not None
            numbers = [i for i, name in enumerate(column.classes) if pattern.fullmatch(name)]
            return _among(get, numbers)
        return lambda rows: np.fromiter((pattern.fullmatch(v) is not None for v in get(rows)), np.bool_, len(rows))

    @property
    def now(self) -> _Token:
        return self.tokens[self.at]

    def take(self, text: str) -> bool:
        """Whether the next token is this one, which it then passes."""
        found = self.now.kind in ("word", "sign") and self.now.text == text
        self.at += found
        return found

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.wrong(f"{text!r} is expected")

    def wrong(self, what: str, token: _Token | None = None) -> UsageError:
        token = self.now if token is None else token
        where = "at the end" if token.kind == "end" else f"at character {token.place + 1}, {printable(token.text)!r}"
        return UsageError(f"the condition {printable(self.text)!r:.300} is wrong {where}: {what}")

    def _tokens(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while not tokens or tokens[-1].kind != "end":
            match = _TOKEN.match(self.text, at)
            if match is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                what = "write == for equal" if self.text[at] == "=" else "the quote does not end"
                what = "write != for different, or not" if self.text[at] == "!" else what
                raise self.wrong(what, _Token("word", self.text[at : at + 10], at))
            kind = str(match.lastgroup)
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            at = match.end()
        return tokens


def _among(get: Callable[[Rows], NDArray[Any]], values: list[Any]) -> Callable[[Rows], Mask]:
    chosen = set(values)

    def test(rows: Rows) -> Mask:
        found = get(rows)
        if found.dtype == object:
            return np.fromiter((value in chosen for value in found), np.bool_, len(rows))
        return np.isin(found, values)

    return test


def _negated(test: Callable[[Rows], Mask]) -> Callable[[Rows], Mask]:
    return lambda rows: ~test(rows)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 3)
    said = f"; did you mean {' or '.join(map(printable, near))}?" if near else ""
    some = ", ".join(map(printable, known[:10])) + (", …" if len(known) > 10 else "")
    return f"no {what} {printable(name)!r}{said or '; there are: ' + (some or 'none')}"
