"""Converts texts to UTF-8 from UTF-16 with its mark, or from the encoding that ``--column encoding=NAME`` names.

All bytes of a text decide. A text in another encoding raises a question, since a byte is a different letter in each
encoding: the message shows a word of the text in the possible ones.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, UsageError, printable

ROLE = "encoding="
"""Beginning of the option that names the encoding of texts: ``--column encoding=cp1252``."""
_TEXT = re.compile(r".*\.(csv|tsv|txt|lst|json|jsonl|ndjson|odgt|caption|cap)", re.I)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CANDIDATES = ("cp1252", "cp1251", "gb18030", "shift_jis", "cp949")
_STEP = 1 << 20
_BETWEEN = rb"[\s,;:|\"'<>()\[\]{}]+"


def find_encoding(columns: Sequence[str]) -> str | None:
    """Returns the encoding that ``--column encoding=NAME`` names, or None without this option. Raises
    :class:`UsageError` for an encoding that Python does not know."""
    name = next((each.removeprefix(ROLE) for each in columns if each.startswith(ROLE)), None)
    try:
        b"a".decode(name or "utf-8", "replace")
    except (LookupError, ValueError):
        raise UsageError(
            f"--column encoding={printable(str(name))}: unknown encoding; expected one of Python's, such as cp1252"
        ) from None
    return name


@contextmanager
def use_encoding(encoding: str | None) -> Iterator[None]:
    """Sets the encoding of texts that are not UTF-8, for trees that are opened within the block."""
    token = _active.set(encoding)
    try:
        yield
    finally:
        _active.reset(token)


def active_encoding() -> str | None:
    """Returns the encoding that :func:`use_encoding` has set, or None for UTF-8 alone."""
    return _active.get()


def is_text(file: str) -> bool:
    """Tells by its suffix if a file is a text. XML is none, since it names its own encoding."""
    return _TEXT.fullmatch(file) is not None


def convert_start(start: bytes) -> bytes:
    """Converts the beginning of a text in UTF-8 or UTF-16 to UTF-8 without a mark; other bytes stay."""
    return (
        start.decode("utf-16", "ignore").encode() if start.startswith(_UTF16) else start.removeprefix(codecs.BOM_UTF8)
    )


def detect_encoding(chunks: Iterator[bytes], given: str | None) -> str:
    """Returns the encoding of a text for Python's ``open``. ``given`` is the encoding that the user has named, or None.

    - UTF-16 if the text begins with its mark.
    - UTF-8 if ``given`` is None, or all bytes are valid UTF-8.
    - Otherwise ``given``.
    """
    first = next(chunks, b"")
    if first.startswith(_UTF16):
        return "utf-16"
    if given is None:
        return "utf-8-sig"
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for chunk in chain([first], chunks):
            decoder.decode(chunk)
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return given
    return "utf-8-sig"


def to_utf8(data: bytes, encoding: str | None, shown: str) -> bytes:
    """Converts a text to UTF-8 from UTF-16 or ``encoding``; UTF-8 stays as it is. A text with NUL bytes is not UTF-8 if
    ``encoding`` is given. ``shown`` names the file in messages.

    Raises :class:`AmbiguousSourceError` for other bytes if ``encoding`` is None. Raises :class:`SourceError` for a text
    that is neither UTF-8 nor in ``encoding``.
    """
    text, fault = try_utf8(data, encoding, shown)
    if fault is not None:
        raise fault
    return text


def try_utf8(data: bytes, encoding: str | None, shown: str) -> tuple[bytes, SourceError | None]:
    """Converts a text as :func:`to_utf8` does, but returns the error; None without one. If there is an error, the text
    is decoded by a possible encoding."""
    place = None if data.isascii() or data.startswith(_UTF16) else _find_non_utf8(data)
    if place is None and not data.startswith(_UTF16) and (encoding is None or b"\0" not in data):
        return data, None
    if place is None or encoding is not None:
        name = "utf-16" if data.startswith(_UTF16) else encoding or ""
        try:
            return data.decode(name).encode(), None
        except ValueError as error:
            line = data.count(10, 0, getattr(error, "start", 0)) + 1
            return data.decode("latin-1").encode(), SourceError(f"{shown}, line {line}: neither UTF-8 nor {name}")
    begin = len(re.split(_BETWEEN, data[max(0, place - 20) : place])[-1])
    end = len(re.split(_BETWEEN, data[place : place + 20])[0])
    word = data[place - begin : place + end]
    possible = [name for name in _CANDIDATES if _can_decode(data, name)] or ["latin-1"]
    readings = ", ".join(f"{printable(word.decode(name, 'replace'))!r} in {name}" for name in possible)
    question = AmbiguousSourceError(
        f"{shown}{_describe_line(data, place)}: not UTF-8: {readings}. Name the encoding of such texts with "
        "--column encoding=NAME, or write the file again in UTF-8",
        [Answer(("--column", ROLE + name)) for name in possible],
    )
    return data.decode(possible[0]).encode(), question


def _describe_line(data: bytes, place: int) -> str:
    """Formats the line number of a byte as the end of a phrase: ``, line 3``. Returns ``""`` for a text of one line."""
    return f", line {data.count(10, 0, place) + 1}" if b"\n" in data else ""


def _find_non_utf8(data: bytes) -> int | None:
    """Returns the place of the first byte that is not UTF-8, or None."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for begin in range(0, len(data), _STEP):
        kept = len(decoder.getstate()[0])
        try:
            decoder.decode(data[begin : begin + _STEP], begin + _STEP >= len(data))
        except UnicodeDecodeError as error:
            return begin - kept + error.start
    return None


def _can_decode(data: bytes, name: str) -> bool:
    """Tells if all bytes are valid in the encoding ``name``."""
    try:
        data.decode(name)
    except UnicodeDecodeError:
        return False
    return True


_active: ContextVar[str | None] = ContextVar("encoding of texts", default=None)
