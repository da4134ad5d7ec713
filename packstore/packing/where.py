"""Parses the conditions of ``--where``, a small language of comparisons; nothing in it is executed.

::

    label in (cat, dog) and split == train
    not (key like "n01*") or score >= 0.5

A condition compares a column (``key``, ``split``, or one with a single value per record) with names, quoted strings or
numbers: ``== != < <= > >=``, ``in (…)``, ``like`` with ``*`` and ``?``. ``and``, ``or``, ``not`` and parentheses
combine conditions. In a column with classes, a name is that of a class. A comparison with a missing value is neither
true nor false, as in SQL, and ``not`` keeps it so: a record is chosen if its condition is true without that value.
"""

from __future__ import annotations

import difflib
import functools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError, join_names, printable
from packstore.core.manifest import Column, Manifest
from packstore.stores import Reader

_MAX_TEXT, _MAX_DEPTH, _MAX_DIGITS = 100_000, 100, 100
_KEYWORDS = ("and", "or", "not", "in", "like")
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
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


class FileRecords:
    """Records of one file of a store, for a condition to test."""

    def __init__(self, reader: Reader, splits: Sequence[str]) -> None:
        self._reader = reader
        self._splits = splits

    def __len__(self) -> int:
        return len(self._splits)

    def values(self, name: str) -> NDArray[Any]:
        """Reads the values of a fixed column or the keys; knows the splits without reading."""
        if name == "split":
            return np.array(self._splits, object)
        if name == "key":
            return np.array([self._reader.key(i) for i in range(len(self))], object)
        return self._reader.fixed_column(name)


_Truth = Callable[[FileRecords], NDArray[np.int8]]
"""Returns for each record 0 for false, 1 for unknown, 2 for true: ``and`` is the minimum, ``or`` the maximum."""


class _Token(NamedTuple):
    """Token of a condition.

    Attributes:
        kind: Name of its group in :data:`_TOKEN`.
        text: Its text, with quotes.
        place: Index of its first character.
    """

    kind: str
    text: str
    place: int


@dataclass(frozen=True, slots=True)
class Where:
    """Parsed condition. Called with records, it returns which of them meet it.

    Attributes:
        columns: Names of the columns that it reads.
    """

    columns: frozenset[str]
    _truth: _Truth

    def __call__(self, rows: FileRecords) -> NDArray[np.bool_]:
        """Tests all records; returns ``bool (N,)``."""
        mask: NDArray[np.bool_] = self._truth(rows) == 2
        return mask


def parse_where(text: str, manifest: Manifest) -> Where:
    """Parses a condition on the records of a store.

    Raises :class:`UsageError` for a wrong condition, with the first wrong character, and for more than 100,000
    characters.
    """
    if len(text) > _MAX_TEXT:
        raise UsageError(f"the condition has {len(text):,} characters; at most {_MAX_TEXT:,} are allowed")
    parser = _Parser(text, manifest)
    truth = parser.parse_or()
    if parser.current.kind != "end":
        raise parser.make_error("'and', 'or' or the end is expected")
    return Where(frozenset(parser.columns), truth)


class _Parser:
    """Recursive-descent parser of conditions. The parse methods consume tokens and return tests of records."""

    def __init__(self, text: str, manifest: Manifest) -> None:
        self.text = text
        self.manifest = manifest
        self.columns: set[str] = set()
        self.depth = self.at = 0
        self.tokens = list(self._tokenize())

    def parse_or(self) -> _Truth:
        """Parses conditions joined by ``or``, each of conditions joined by ``and``."""
        return self._parse_joined("or", np.maximum, lambda: self._parse_joined("and", np.minimum, self._parse_not))

    def _parse_joined(self, word: str, join: Callable[[Any, Any], Any], parse_part: Callable[[], _Truth]) -> _Truth:
        """Parses one or more parts with ``word`` between them."""
        parts = [parse_part()]
        while self._accept(word):
            parts.append(parse_part())
        return lambda rows: functools.reduce(join, (part(rows) for part in parts))

    def _parse_not(self) -> _Truth:
        """Parses a negation, a condition in parentheses, or a comparison."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.make_error(f"more than {_MAX_DEPTH} levels of parentheses")
        if self._accept("not"):
            inner = self._parse_not()
            condition: _Truth = lambda rows: 2 - inner(rows)  # noqa: E731
        elif self._accept("("):
            condition = self.parse_or()
            self._expect(")")
        else:
            condition = self._parse_comparison()
        self.depth -= 1
        return condition

    def _parse_comparison(self) -> _Truth:
        """Parses a column, an operator and its values, and returns their test."""
        name, column = self._parse_column()
        negative = self._accept("not")
        sign = self.current
        if self._accept("in"):
            self._expect("(")
            values = [self._parse_value(name, column)]
            while self._accept(","):
                values.append(self._parse_value(name, column))
            self._expect(")")
            test = _is_among(values)
        elif self._accept("like"):
            test = self._parse_pattern(column)
        elif not negative and sign.kind == "sign" and sign.text in _COMPARISONS:
            self.at += 1
            place = self.current
            value = self._parse_value(name, column)
            if column is not None and column.classes is not None and sign.text not in ("==", "!="):
                raise self.make_error(f"classes have no order; use == or in instead of {sign.text}", place)
            compare = _COMPARISONS[sign.text]
            test = lambda found: np.asarray(compare(found, value), np.bool_)  # noqa: E731
        else:
            expected = "'in' or 'like'" if negative else "==, !=, <, <=, >, >=, in, not in or like"
            raise self.make_error(f"{expected} is expected")

        def compare_rows(rows: FileRecords) -> NDArray[np.int8]:
            truth: NDArray[np.int8] = (test(rows.values(name)) != negative).astype(np.int8) * 2
            if column is not None and column.nullable:
                truth[~rows.values(column.valid_name)] = 1  # unknown
            return truth

        return compare_rows

    def _parse_column(self) -> tuple[str, Column | None]:
        """Consumes the name of a column; returns it and the column, which is None for ``key`` and ``split``."""
        name = self.current.text
        if self.current.kind != "word" or name in _KEYWORDS:
            raise self.make_error("the name of a column is expected")
        known = [c.name for c in self.manifest.columns if c.kind == "fixed" and c.shape == () and c.layout is None]
        if name not in ("key", "split", *known):
            raise self.make_error(f"no column {name!r} to compare; there are: {', '.join(['key', 'split', *known])}")
        self.at += 1
        self.columns.add(name)
        return name, None if name in ("key", "split") else self.manifest.column(name)

    def _parse_value(self, name: str, column: Column | None) -> Any:
        """Consumes a token and returns the value to compare with."""
        token = self.current
        if token.kind not in ("word", "string") or (token.kind == "word" and token.text in _KEYWORDS):
            raise self.make_error("a value is expected")
        text = _unquote(token)
        value: Any = text
        if column is None:  # key or split: the text itself
            splits = [split.name for split in self.manifest.splits]
            if name == "split" and text not in splits:
                raise self.make_error(_make_unknown_message("split", text, splits))
        # A class, by name or by number.
        elif column.classes is not None and (text in column.classes or _NUMBER.fullmatch(text) is None):
            if text not in column.classes:
                raise self.make_error(_make_unknown_message("class", text, column.classes))
            value = column.classes.index(text)
        elif column.dtype == "bool" and text in ("true", "false"):
            value = text == "true"
        elif token.kind == "string" or _NUMBER.fullmatch(text) is None:
            raise self.make_error(f"column {column.name!r} holds numbers, and {text!r} is none")
        elif len(text) > _MAX_DIGITS:
            raise self.make_error(f"a number of at most {_MAX_DIGITS} digits is expected")
        else:
            value = float(text) if any(c in text for c in ".eE") else int(text)
        self.at += 1
        return value

    def _parse_pattern(self, column: Column | None) -> Callable[[NDArray[Any]], NDArray[np.bool_]]:
        """Parses the pattern of ``like``, and returns the test of keys, splits or class numbers."""
        token = self.current
        if column is not None and column.classes is None:
            raise self.make_error(f"column {column.name!r} holds numbers; like is for key, split and classes")
        if token.kind not in ("word", "string"):
            raise self.make_error("a pattern is expected")
        self.at += 1
        text = re.sub(r"(\\\*)+", ".*", re.escape(_unquote(token))).replace(r"\?", ".")
        matches = re.compile(text, re.DOTALL).fullmatch
        if column is not None:
            return _is_among([i for i, name in enumerate(column.classes or ()) if matches(name)])
        return lambda found: np.fromiter((matches(value) is not None for value in found), np.bool_, len(found))

    @property
    def current(self) -> _Token:
        """Current token."""
        return self.tokens[self.at]

    def _accept(self, text: str) -> bool:
        """Consumes the current token if it is the word or sign ``text``, and returns whether it was."""
        matches = self.current.kind in ("word", "sign") and self.current.text == text
        self.at += matches
        return matches

    def _expect(self, text: str) -> None:
        """Consumes the token ``text``, or raises :class:`UsageError` if there is another."""
        if not self._accept(text):
            raise self.make_error(f"{text!r} is expected")

    def make_error(self, what: str, token: _Token | None = None) -> UsageError:
        """Returns the error for a wrong token, by default the current one. ``what`` says what was expected."""
        token = self.current if token is None else token
        where = "at the end" if token.kind == "end" else f"at character {token.place + 1}, {printable(token.text)!r}"
        return UsageError(f"the condition {printable(self.text)!r:.300} is wrong {where}: {what}")

    def _tokenize(self) -> Iterator[_Token]:
        """Splits the text into tokens, an end token last."""
        at, kind = 0, ""
        while kind != "end":
            match = _TOKEN.match(self.text, at)
            if match is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                mistakes = {"=": "write == for equal", "!": "write != for different, or not"}
                what = mistakes.get(self.text[at], "the quote does not end")
                raise self.make_error(what, _Token("word", self.text[at : at + 10], at))
            kind, at = str(match.lastgroup), match.end()
            yield _Token(kind, match[kind], match.start(kind))


def _is_among(values: list[Any]) -> Callable[[NDArray[Any]], NDArray[np.bool_]]:
    """Returns a test that is true for values that are among ``values``."""
    chosen = set(values)

    def test(found: NDArray[Any]) -> NDArray[np.bool_]:
        if found.dtype == object:
            return np.fromiter((value in chosen for value in found), np.bool_, len(found))
        return np.isin(found, values)

    return test


def _unquote(token: _Token) -> str:
    """Returns the text of a token, without quotes and backslashes if it is a string."""
    return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL) if token.kind == "string" else token.text


def _make_unknown_message(what: str, name: str, known: Sequence[str]) -> str:
    """Returns the message for an unknown class or split, with similar names or the first ten."""
    near = difflib.get_close_matches(name, known, 3)
    said = f"; did you mean {' or '.join(map(printable, near))}?" if near else ""
    return f"no {what} {printable(name)!r}{said or '; there are: ' + (join_names(known) or 'none')}"
