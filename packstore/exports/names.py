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
    """Converts ``text`` to a name of a file or folder. Different texts get different names; common ones are unchanged.

    Unsafe characters become ``%`` and their code, as in URLs. A long name is cut and ends with a hash of all of it."""
    name = _BAD.sub(_percent_encode, text)
    if name in ("", ".", ".."):
        name = name.replace(".", "%2E") or "%"
    return shorten(name)


def can_be_lines(names: Sequence[str]) -> bool:
    """Tells if each name can be a line of a text file."""
    return all(name.strip() == name != "" and name.isprintable() for name in names)


def can_be_strings(names: Sequence[str]) -> bool:
    """Tells if each name can be a string in other languages: without NUL and surrogates."""
    return not any(re.search("[\0\ud800-\udfff]", name) for name in names)


def shorten(name: str) -> str:
    """Returns ``name``; if it is too long for a file, its beginning and a hash."""
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) <= _LONGEST:
        return name
    kept = raw[: _LONGEST - 17].decode("utf-8", "ignore")
    return f"{kept}-{xxh3_64_hexdigest(raw)}"


def _percent_encode(match: re.Match[str]) -> str:
    """Returns ``%`` and the code of a character; of a surrogate, the byte that it stands for."""
    code = ord(match[0])
    return f"%{code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code:02X}"
