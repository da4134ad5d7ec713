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
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError, printable
from packstore.core.manifest import Column, Manifest

Mask = NDArray[np.bool_]
Truth = NDArray[np.int8]
"""0 for false, 1 for unknown, 2 for true: ``and`` is the minimum, ``or`` the maximum."""

_MAX_TEXT, _MAX_DEPTH, _MAX_DIGITS = 100_000, 100, 100
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


class TestedRecords(Protocol):
    """Records to test, column by column."""

    def __len__(self) -> int: ...

    def values(self, name: str) -> NDArray[Any]:
        """Returns the values of a fixed column."""
        ...

    def keys(self) -> Sequence[str]:
        """Returns the keys."""
        ...

    def splits(self) -> Sequence[str]:
        """Returns the split name of each record."""
        ...


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
        text: The condition as written.
        columns: Names of the columns that it reads.
    """

    text: str
    columns: frozenset[str]
    _matches: Callable[[TestedRecords], Mask]

    def __call__(self, rows: TestedRecords) -> Mask:
        """Tests all records; returns ``bool (N,)``."""
        return self._matches(rows)


def parse_where(text: str, manifest: Manifest) -> Where:
    """Parses a condition on the records of a store.

    Raises :class:`UsageError` for a wrong condition, with the first wrong character, and for more than 100,000
    characters.
    """
    if len(text) > _MAX_TEXT:
        raise UsageError(f"the condition has {len(text):,} characters; at most {_MAX_TEXT:,} are allowed")
    parser = _Parser(text, manifest)
    matches = parser.parse()
    return Where(text, frozenset(parser.columns), matches)


class _Parser:
    """Recursive-descent parser of conditions. The parse methods consume tokens and return tests of records."""

    def __init__(self, text: str, manifest: Manifest) -> None:
        """Splits the text into tokens, and raises the errors of :meth:`_tokenize`. :meth:`parse` does the rest."""
        self.text = text
        self.manifest = manifest
        self.columns: set[str] = set()
        self.depth = 0
        self.tokens = self._tokenize()
        self.at = 0

    def parse(self) -> Callable[[TestedRecords], Mask]:
        """Parses the whole text into a test. Raises :class:`UsageError` if something follows the condition."""
        condition = self.parse_or()
        if self.current.kind != "end":
            raise self.make_error("'and', 'or' or the end is expected")
        return lambda rows: condition(rows) == 2

    def parse_or(self) -> Callable[[TestedRecords], Truth]:
        """Parses conditions joined by ``or``."""
        parts = [self.parse_and()]
        while self.accept_token("or"):
            parts.append(self.parse_and())
        return lambda rows: functools.reduce(np.maximum, (part(rows) for part in parts))

    def parse_and(self) -> Callable[[TestedRecords], Truth]:
        """Parses conditions joined by ``and``."""
        parts = [self.parse_not()]
        while self.accept_token("and"):
            parts.append(self.parse_not())
        return lambda rows: functools.reduce(np.minimum, (part(rows) for part in parts))

    def parse_not(self) -> Callable[[TestedRecords], Truth]:
        """Parses a negation, a condition in parentheses, or a comparison.

        Raises :class:`UsageError` beyond 100 levels of nesting.
        """
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.make_error(f"more than {_MAX_DEPTH} levels of parentheses")
        try:
            if self.accept_token("not"):
                inner = self.parse_not()
                return lambda rows: 2 - inner(rows)
            if self.accept_token("("):
                condition = self.parse_or()
                self.expect_token(")")
                return condition
            return self.parse_comparison()
        finally:
            self.depth -= 1

    def parse_comparison(self) -> Callable[[TestedRecords], Truth]:
        """Parses a column, an operator and its values. The test is unknown for missing values.

        Raises :class:`UsageError` for anything else, and for ``<``, ``<=``, ``>`` and ``>=`` with classes.
        """
        token = self.current
        if token.kind != "word" or token.text in _KEYWORDS:
            raise self.make_error("the name of a column is expected")
        get, column = self.resolve_column(token)
        self.at += 1
        negative = self.accept_token("not")
        sign = self.current
        if self.accept_token("in"):
            self.expect_token("(")
            values = [self.parse_value(token.text, column)]
            while self.accept_token(","):
                values.append(self.parse_value(token.text, column))
            self.expect_token(")")
            test = _test_membership(get, values)
        elif self.accept_token("like"):
            test = self.parse_like(get, column)
        elif not negative and sign.kind == "sign" and sign.text in _COMPARISONS:
            self.at += 1
            place = self.current
            value = self.parse_value(token.text, column)
            if column is not None and column.classes is not None and sign.text not in ("==", "!="):
                raise self.make_error(f"classes have no order; use == or in instead of {sign.text}", place)
            compare = _COMPARISONS[sign.text]
            test = lambda rows: np.asarray(compare(get(rows), value), np.bool_)  # noqa: E731
        else:
            expected = "'in' or 'like'" if negative else "==, !=, <, <=, >, >=, in, not in or like"
            raise self.make_error(f"{expected} is expected")
        valid = None if column is None or not column.nullable else column.valid_name

        def compare_rows(rows: TestedRecords) -> Truth:
            truth: Truth = (test(rows) != negative).astype(np.int8) * 2
            if valid is not None:
                truth[~rows.values(valid)] = 1
            return truth

        return compare_rows

    def resolve_column(self, token: _Token) -> tuple[Callable[[TestedRecords], NDArray[Any]], Column | None]:
        """Returns a getter of the column's values, and the column. The column is None for ``key`` and ``split``.

        Adds the name to :attr:`columns` and consumes no token. Raises :class:`UsageError` if there is no such column,
        or if it has several values a record.
        """
        name = token.text
        known = [c.name for c in self.manifest.columns if c.kind == "fixed" and c.shape == () and c.layout is None]
        if name not in ("key", "split") and name not in known:
            raise self.make_error(f"no column {name!r} to compare; there are: {', '.join(['key', 'split', *known])}")
        self.columns.add(name)
        if name == "key":
            return lambda rows: np.array(rows.keys(), object), None
        if name == "split":
            return lambda rows: np.array(rows.splits(), object), None
        return lambda rows: rows.values(name), self.manifest.column(name)

    def parse_value(self, name: str, column: Column | None) -> Any:
        """Consumes a token and returns the value to compare with.

        - ``key`` and ``split``: the text.
        - A column with classes: the class number, by name or as written.
        - Another column: a number; for booleans also ``true`` or ``false``.

        Raises :class:`UsageError` for another token, and for an unknown split or class.
        """
        token = self.current
        if token.kind not in ("word", "string") or (token.kind == "word" and token.text in _KEYWORDS):
            raise self.make_error("a value is expected")
        text = _unquote(token.text) if token.kind == "string" else token.text
        value: Any = text
        if column is None:
            splits = [split.name for split in self.manifest.splits]
            if name == "split" and text not in splits:
                raise self.make_error(_make_unknown_message("split", text, splits))
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

    def parse_like(
        self, get: Callable[[TestedRecords], NDArray[Any]], column: Column | None
    ) -> Callable[[TestedRecords], Mask]:
        """Parses the pattern of ``like``, with ``*`` and ``?``. Returns the test of keys, splits or names of classes.

        Raises :class:`UsageError` for a column without class names, and if no pattern follows.
        """
        token = self.current
        if column is not None and column.classes is None:
            raise self.make_error(f"column {column.name!r} holds numbers; like is for key, split and classes")
        if token.kind not in ("word", "string"):
            raise self.make_error("a pattern is expected")
        self.at += 1
        text = _unquote(token.text) if token.kind == "string" else token.text
        pattern = re.compile(re.sub(r"(\\\*)+", ".*", re.escape(text)).replace(r"\?", "."), re.DOTALL)
        if column is not None:
            assert column.classes is not None
            numbers = [i for i, name in enumerate(column.classes) if pattern.fullmatch(name)]
            return _test_membership(get, numbers)
        return lambda rows: np.fromiter((pattern.fullmatch(v) is not None for v in get(rows)), np.bool_, len(rows))

    @property
    def current(self) -> _Token:
        """Current token."""
        return self.tokens[self.at]

    def accept_token(self, text: str) -> bool:
        """Consumes the current token if it is the word or sign ``text``. Returns whether it was."""
        matches = self.current.kind in ("word", "sign") and self.current.text == text
        self.at += matches
        return matches

    def expect_token(self, text: str) -> None:
        """Consumes the token ``text``. Raises :class:`UsageError` for any other token."""
        if not self.accept_token(text):
            raise self.make_error(f"{text!r} is expected")

    def make_error(self, what: str, token: _Token | None = None) -> UsageError:
        """Returns the error for a wrong token, by default the current one. ``what`` says what was expected."""
        token = self.current if token is None else token
        where = "at the end" if token.kind == "end" else f"at character {token.place + 1}, {printable(token.text)!r}"
        return UsageError(f"the condition {printable(self.text)!r:.300} is wrong {where}: {what}")

    def _tokenize(self) -> list[_Token]:
        """Splits the text into tokens, an end token last.

        Raises :class:`UsageError` for ``=``, for ``!`` alone, and for a quote that does not end.
        """
        tokens: list[_Token] = []
        at = 0
        while not tokens or tokens[-1].kind != "end":
            match = _TOKEN.match(self.text, at)
            if match is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                what = "write == for equal" if self.text[at] == "=" else "the quote does not end"
                what = "write != for different, or not" if self.text[at] == "!" else what
                raise self.make_error(what, _Token("word", self.text[at : at + 10], at))
            kind = str(match.lastgroup)
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            at = match.end()
        return tokens


def _test_membership(
    get: Callable[[TestedRecords], NDArray[Any]], values: list[Any]
) -> Callable[[TestedRecords], Mask]:
    """Returns a test that is true for records whose value is among ``values``."""
    chosen = set(values)

    def test(rows: TestedRecords) -> Mask:
        column = get(rows)
        if column.dtype == object:
            return np.fromiter((value in chosen for value in column), np.bool_, len(rows))
        return np.isin(column, values)

    return test


def _unquote(text: str) -> str:
    """Removes the quotes around a string token, and the backslashes of its escapes."""
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)


def _make_unknown_message(what: str, name: str, known: Sequence[str]) -> str:
    """Returns the message for an unknown class or split. It suggests up to three similar names, else lists the first
    ten."""
    near = difflib.get_close_matches(name, known, 3)
    said = f"; did you mean {' or '.join(map(printable, near))}?" if near else ""
    some = ", ".join(map(printable, known[:10])) + (", …" if len(known) > 10 else "")
    return f"no {what} {printable(name)!r}{said or '; there are: ' + (some or 'none')}"
