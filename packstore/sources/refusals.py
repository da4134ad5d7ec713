"""Errors for paths that are not a source."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from packstore.core.errors import SourceError, printable
from packstore.images.sniff import IS_LFS_POINTER, LFS_POINTER, HeaderError, sniff
from packstore.sources.listing import no_images_message
from packstore.sources.tree import Tree

TABLES = (".csv", ".tsv")
_HEADER = 1 << 20  # enough for the header of any image but one with a megabyte of metadata before it
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<!--.*?-->\s*)?<(?:!doctype\s+html|html)\b", re.I | re.S)
# First bytes of gzip, zip, bzip2, xz, RAR and 7z files.
_ARCHIVES = (b"\x1f\x8b\x08", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"Rar!\x1a\x07", b"7z\xbc\xaf\x27\x1c")


class NeedsCopyError(SourceError):
    """Raised for a URL that is not a folder of images. If it is a source, it can be read only from local copies."""


def unrecognised_error(path: Path) -> SourceError:
    """Returns the error for a path of no known kind. Its message depends on the first bytes: empty, one image, an
    archive …. Raises :class:`SourceError` for a saved web page, and for a file that cannot be read."""
    refuse_page(path)
    start = first_bytes(path, _HEADER)
    begins = f"is a file that begins with {start[:8]!r}" if start else "is a folder"
    what = {
        f"is the data file of an LMDB: give its directory, {printable(str(path.parent))}": path.name == "data.mdb",
        "is an empty file": path.is_file() and not start,
        "is one image; give a folder of images": _is_image(start),
        IS_LFS_POINTER: start.startswith(LFS_POINTER),
        f"{begins}, an archive of no known kind: unpack it, and give the folder": start.startswith(_ARCHIVES),
        f"{begins}, and names no image of its folder: give that of the images, and the table with --labels": (
            path.suffix.lower() in TABLES
        ),
        f"{begins}: neither a store nor a source that packstore reads (see packstore guide sources)": True,
    }
    return SourceError(f"{printable(str(path))} {next(text for text, applies in what.items() if applies)}")


def archive_without_images_error(path: Path, tree: Tree) -> SourceError:
    """Returns the error for an archive without images. Walks the archive to count its other files."""
    passed: Counter[str] = Counter()
    for _ in tree.walk("", tree.above, passed, skip_cycles=True):
        continue
    advice = "archives of other data are read only once they are unpacked: unpack it, and give the folder"
    return SourceError(no_images_message(printable(str(path)), passed, advice))


def refuse_page(path: Path) -> None:
    """Raises :class:`SourceError` for a web page that was saved instead of data, and for an unreadable file. Reads 512
    bytes."""
    if _PAGE.match(first_bytes(path, 512)):
        raise SourceError(
            f"{printable(str(path))} is a web page (HTML), and no {printable(path.suffix) or 'data'}: its server asks "
            "for a login or a confirmation, or has moved it; download it again"
        )


def first_bytes(path: Path, size: int = 8) -> bytes:
    """Reads the first ``size`` bytes of a file; empty if ``path`` is not a regular file. Raises :class:`SourceError`
    if the file cannot be read."""
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None


def _is_image(start: bytes) -> bool:
    """Tells if the beginning of a file has the header of an image."""
    try:
        sniff(start)
    except HeaderError:
        return False
    return True
