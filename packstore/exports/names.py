"""Safe file names for keys and class names, which may be any text: no path leaves the export's folder."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xxhash import xxh3_64_hexdigest

_LONGEST = 200
"""Most bytes of a name: file systems take 255, and an extension may follow."""
_BAD = re.compile(r'[\x00-\x1f\x7f%/\\:*?"<>|\ud800-\udfff]')
"""Characters to escape: control characters, those that Windows refuses, slashes, bytes that are not UTF-8, and ``%``,
which begins an escape."""


def safe_name(text: str) -> str:
    """Converts ``text`` to the name of a file or folder. Different texts get different names. Common names are
    unchanged.

    Unsafe characters become ``%`` and their code, like in URLs. A long name is cut, and ends with a hash of the whole
    name.
    """
    name = _BAD.sub(_percent_encode, text)
    if name in ("", ".", ".."):
        name = name.replace(".", "%2E") or "%"
    return shorten_name(name)


def can_be_lines(names: Sequence[str]) -> bool:
    """Tells if each name can be a line of a text file: printable, not empty, without space at its ends."""
    return all(name.strip() == name != "" and name.isprintable() for name in names)


def can_be_strings(names: Sequence[str]) -> bool:
    """Tells if each name can be a string in other languages: no NUL, and no byte that is not UTF-8."""
    return not any(re.search("[\0\ud800-\udfff]", name) for name in names)


def shorten_name(name: str) -> str:
    """Returns ``name`` if it has at most 200 bytes in UTF-8. Otherwise returns its beginning and a hash of the whole
    name."""
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) <= _LONGEST:
        return name
    kept = raw[: _LONGEST - 17].decode("utf-8", "ignore")
    return f"{kept}-{xxh3_64_hexdigest(raw)}"


def _percent_encode(match: re.Match[str]) -> str:
    """Returns ``%`` and the hexadecimal code of the matched character. A surrogate has the code of the byte that it
    replaces."""
    code = ord(match[0])
    return f"%{code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code:02X}"
