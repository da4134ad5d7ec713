"""Names of files out of keys and names of classes, which may be anything: nothing gets out of the export's folder."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xxhash import xxh3_64_hexdigest

_LONGEST = 200
"""Bytes of a name: file systems take 255, and an extension may follow."""
_BAD = re.compile(r'[\x00-\x1f\x7f%/\\:*?"<>|\ud800-\udfff]')
"""Control characters, what Windows does not take, slashes, bytes that are no UTF-8, and the percent sign, by which all
these are written."""


def safe_name(text: str) -> str:
    """``text`` as the name of a file or folder: other texts have other names, and common ones stay as they are.

    Characters that no name should have become ``%`` and their code, as in URLs; a long name is cut, with a hash of the
    whole at its end."""
    name = _BAD.sub(_escaped, text)
    if name in ("", ".", ".."):
        name = name.replace(".", "%2E") or "%"
    return shortened(name)


def are_lines(names: Sequence[str]) -> bool:
    """Whether names can be lines of a text file."""
    return all(name.strip() == name != "" and name.isprintable() for name in names)


def are_texts(names: Sequence[str]) -> bool:
    """Whether names can be strings of other languages: without NUL, and of characters."""
    return not any(re.search("[\0\ud800-\udfff]", name) for name in names)


def shortened(name: str) -> str:
    """``name``, or its beginning with a hash where it is too long for a file."""
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) <= _LONGEST:
        return name
    kept = raw[: _LONGEST - 17].decode("utf-8", "ignore")
    return f"{kept}-{xxh3_64_hexdigest(raw)}"


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"%{code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code:02X}"
