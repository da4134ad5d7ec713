"""Converts texts, and names in archives, to UTF-8: from UTF-16 with its mark, from the encoding that XML declares, or
from the one that ``--column encoding=NAME`` names.

All bytes of a text decide. A text in another encoding raises a question, since a byte is a different letter in each
encoding: the message shows a word of the text in the possible ones.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence, Set
from contextlib import AbstractContextManager
from contextvars import ContextVar

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, UsageError, printable
from packstore.core.progress import set_within

_ROLES = ("image", "label", "labels", "boxes", "split", "keypoints", "keep", "encoding", "key")
# Value of ``--column`` that adds the position of images on the ground, see :class:`.geotiff.GeoSource`.
GEO = "keep=geo"
KEY = "key="
"""Beginning of the option that says which dot ends keys of WebDataset: ``--column key=last-dot``."""
ROLE = "encoding="
"""Beginning of the option that names the encoding of texts: ``--column encoding=cp1252``."""
_TEXT = re.compile(r".*\.(csv|tsv|txt|lst|json|jsonl|ndjson|odgt|caption|cap|xml)", re.I)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CANDIDATES = ("cp1252", "cp1251", "gb18030", "shift_jis", "big5", "cp949")
# Candidates for names in archives. Programs of DOS and Windows write those of the machine's code page.
_OF_NAMES = ("gb18030", "shift_jis", "big5", "cp949", "cp437", "cp866", "cp1252", "cp1251")
# Extensions of encodings that are often declared in their stead, as in https://encoding.spec.whatwg.org.
_WIDER = {
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    **dict.fromkeys(("shift_jis", "cp932"), "cp932"),
    **dict.fromkeys(("euc_kr", "cp949"), "cp949"),
    **dict.fromkeys(("big5", "cp950"), "big5hkscs"),
}
# Encodings in which two bytes are one letter. Two such bytes may be one letter of UTF-8, too.
_OF_PAIRS = {*_WIDER, *_WIDER.values(), "euc_jp", "euc_jis_2004", "shift_jis_2004", "johab"}
# Encodings of Python in which no file is written.
_NO_TEXTS = ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf-7", "undefined", "mbcs", "oem")
# Byte that begins three or four bytes of UTF-8. Such bytes are hardly ever valid by chance.
_LONG = re.compile(rb"[\xe0-\xff]")
_DECLARED = re.compile(rb"""(?:\xef\xbb\xbf)?\s*<\?xml\b[^>]{0,200}?\bencoding\s*=\s*["']([A-Za-z][\w.-]{0,39})["']""")
_SHOWN_NAMES, _SHOWN_LETTERS = 3, 60
_BETWEEN = rb"[\s,;:|\"'<>()\[\]{}]+"


def check_columns(given: object) -> tuple[str, ...]:
    """Checks the option ``columns``, a text or several, and returns a tuple. Raises :class:`UsageError` for other
    types, for an unknown encoding, and where :func:`parse_columns` does."""
    texts = (given,) if isinstance(given, str) else given
    if not isinstance(texts, (tuple, list)) or not all(isinstance(each, str) for each in texts):
        raise UsageError(f"columns should be texts such as 'image=photo', got {given!r:.80}")
    parse_columns(texts)
    find_encoding(texts)
    return tuple(texts)


def parse_columns(given: Sequence[str]) -> dict[str, list[str]]:
    """Parses texts of ``--column``, such as ``image=COL`` or ``boxes=X1,Y1,X2,Y2``; returns the columns by role. Raises
    :class:`UsageError` for an unknown or repeated role, and for a wrong number of columns."""
    by_role: dict[str, list[str]] = {}
    for each in given:
        role, equals, columns = each.partition("=")
        names = [name.strip() for name in columns.split(",")]
        fits = {"boxes": len(names) in (1, 4), "keypoints": len(names) % 2 == 0, "labels": True, "keep": True}
        if role not in _ROLES or not equals or not all(names) or role in by_role or not fits.get(role, len(names) == 1):
            raise UsageError(
                f"--column {printable(each)!r}: expected {', '.join(f'{role}=COL' for role in _ROLES)}, each once; "
                "boxes are one column or four, keypoints=X1,Y1,X2,Y2,… pairs of x and y"
            )
        by_role[role] = names
    return by_role


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


def use_encoding(encoding: str | None) -> AbstractContextManager[None]:
    """Sets the encoding of texts that are not UTF-8, for trees that are opened within the block."""
    return set_within(_active, encoding)


def active_encoding() -> str | None:
    """Returns the encoding that :func:`use_encoding` has set, or None for UTF-8 alone."""
    return _active.get()


def is_text(file: str) -> bool:
    """Tells by its suffix if a file is a text."""
    return _TEXT.fullmatch(file) is not None


def convert_start(start: bytes) -> bytes:
    """Converts the beginning of a text in UTF-8 or UTF-16 to UTF-8 without a mark; other bytes stay."""
    return (
        start.decode("utf-16", "ignore").encode() if start.startswith(_UTF16) else start.removeprefix(codecs.BOM_UTF8)
    )


def to_utf8(data: bytes, encoding: str | None, shown: str) -> bytes:
    """Converts a text to UTF-8: from UTF-16, from the encoding that XML declares, or from ``encoding``.

    UTF-8 stays as it is, but a text with NUL bytes is not UTF-8 if ``encoding`` is given. ``shown`` names the file in
    messages.

    Raises :class:`AmbiguousSourceError` for other bytes if ``encoding`` is None, and :class:`SourceError` for a text
    that is not in ``encoding`` either.
    """
    text, fault = try_utf8(data, encoding, shown)
    if fault is not None:
        raise fault
    return text


def try_utf8(data: bytes, encoding: str | None, shown: str) -> tuple[bytes, SourceError | None]:
    """Converts a text as :func:`to_utf8` does, but returns the error; None without one. If there is an error, the text
    is decoded by a possible encoding."""
    declared = _decode_as_declared(data)
    if declared is not None:
        return declared, None
    is_wide = data.startswith(_UTF16)
    place = None if is_wide else _find_non_utf8(data)
    is_kept = encoding is None or (b"\0" not in data and _is_utf8(data, encoding))
    if place is None and not is_wide and is_kept:
        return data, None
    if place is None or encoding is not None:
        name = "utf-16" if is_wide else encoding or ""
        try:
            return data.decode(name).encode(), None
        except ValueError as error:
            line = data.count(10, 0, getattr(error, "start", 0)) + 1
            return data.decode("latin-1").encode(), SourceError(f"{shown}, line {line}: neither UTF-8 nor {name}")
    begin = len(re.split(_BETWEEN, data[max(0, place - 20) : place])[-1])
    end = len(re.split(_BETWEEN, data[place : place + 20])[0])
    line = data.count(10, 0, place) + 1
    start = f"{shown}, line {line}:" if b"\n" in data else f"{shown}:"
    question = _make_question(start, data, [data[place - begin : place + end]], _CANDIDATES)
    return data.decode(question.answers[0].options[1].removeprefix(ROLE)).encode(), question


def _make_question(start: str, data: bytes, words: Sequence[bytes], candidates: Sequence[str]) -> AmbiguousSourceError:
    """Makes the question which of the candidates is the encoding of a text, with some of its words in each."""

    def count_others(name: str) -> int:
        return sum(not (letter.isascii() or letter.isalpha()) for letter in b"".join(words).decode(name, "replace"))

    # The likeliest encoding gives most letters.
    possible = sorted([n for n in candidates if _can_decode(data, n)] or ["latin-1"], key=count_others)
    readings = "; ".join(
        f"{', '.join(repr(printable(word.decode(name, 'replace')[-_SHOWN_LETTERS:])) for word in words)} in {name}"
        for name in possible
    )
    return AmbiguousSourceError(
        f"{start} not UTF-8: {readings}. Name the encoding with --column encoding=NAME, or write it again in UTF-8",
        [Answer(("--column", ROLE + name)) for name in possible],
    )


def choose_name_encoding(names: Sequence[bytes], given: str | None, shown: str) -> str:
    """Chooses the one encoding of all names in an archive that do not state theirs.

    - UTF-8 if all are valid UTF-8, see :func:`_is_utf8`.
    - Otherwise ``given``, which the user has named.

    Raises :class:`AmbiguousSourceError` if ``given`` is None; shows some names in each possible encoding. Raises
    :class:`SourceError` if the names are not in ``given`` either. ``shown`` names the archive.
    """
    joined = b"\n".join(names)
    if _is_utf8(joined, given):
        return "utf-8"
    if given is not None:
        if not _can_decode(joined, given):
            raise SourceError(f"{shown}: its names of files are neither UTF-8 nor {given}")
        return given
    some = [name for name in names if not name.isascii()][:_SHOWN_NAMES]
    raise _make_question(f"{shown}: its names of files are", joined, some, _OF_NAMES)


def decode_names(names: list[bytes], stated: Set[bytes], given: str | None, shown: str) -> list[bytes]:
    """Converts names in an archive, except those ``stated`` to be UTF-8, by :func:`choose_name_encoding`. Returns
    ``names`` itself if all are UTF-8. Raises :class:`SourceError` if two names become the same one."""
    encoding = choose_name_encoding([name for name in names if not name.isascii() and name not in stated], given, shown)
    if encoding == "utf-8":
        return names
    decoded = [name if name in stated else name.decode(encoding).encode() for name in names]
    if len(set(decoded)) < len(decoded):
        raise SourceError(f"{shown}: two of its names of files are the same in {encoding}: unpack it, give the folder")
    return decoded


def _is_utf8(data: bytes, given: str | None) -> bool:
    """Tells if all bytes are UTF-8, and are not just so by chance in the encoding that the user named."""
    if _find_non_utf8(data) is not None:
        return False
    if given is None or codecs.lookup(given).name not in _OF_PAIRS or data.startswith(codecs.BOM_UTF8):
        return True
    # A short text with two bytes a letter may be valid in both encodings. Longer UTF-8 sequences settle it.
    return data.isascii() or _LONG.search(data) is not None or not _can_decode(data, given)


def _decode_as_declared(data: bytes) -> bytes | None:
    """Converts XML to UTF-8 from the encoding that it declares; None if there is nothing to convert."""
    found = _DECLARED.match(data)
    if found is None or (_LONG.search(data) is not None and _find_non_utf8(data) is None):
        return None  # what is valid UTF-8 with such bytes is UTF-8, whatever it declares
    try:
        name = codecs.lookup(found[1].decode("ascii")).name
    except LookupError:
        return None
    if name in _NO_TEXTS or name.startswith(("utf-", "utf_")):
        return None  # UTF-16 would not begin so
    for each in dict.fromkeys((name, _WIDER.get(name, name))):
        try:
            return data.decode(each).encode()
        except (ValueError, LookupError):  # LookupError: no encoding of texts, such as base64
            continue
    return None


def _find_non_utf8(data: bytes) -> int | None:
    """Returns the place of the first byte that is not UTF-8, or None."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            return error.start
    return None


def _can_decode(data: bytes, name: str) -> bool:
    """Tells if all bytes are valid in the encoding ``name``."""
    try:
        data.decode(name)
    except UnicodeDecodeError:
        return False
    return True


_active: ContextVar[str | None] = ContextVar("encoding of texts", default=None)
