"""A folder of image files, or an archive of one, as a source: reading them by their keys, in any number of threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packstore.core.errors import SampleError, printable
from packstore.images.sniff import max_file_bytes
from packstore.images.unread import UNREAD_BYTES, unread_file, unread_reason
from packstore.sources.archives import tree_of
from packstore.sources.base import Entry, Source, SourceOptions
from packstore.sources.ledger import list_files, replaced_members
from packstore.sources.listing import ARRAY, CYCLE, IMAGE_SUFFIXES, IS_CYCLE
from packstore.stores.link_files import Location

_SURE = tuple(suffix for suffix in IMAGE_SUFFIXES if suffix != ".hdr")
"""Suffixes that only images have: ``.hdr`` is that of other headers, too."""


class FolderSource(Source):
    """A source whose samples are files below its folder, or in its archive.

    The key of a sample is its path relative to the folder, with ``/``; its ``ref`` is None, or
    :data:`packstore.sources.listing.NO_FILE` or :data:`packstore.sources.listing.CYCLE` for what is not to be opened.

    Attributes:
        by_suffix: The samples are the files with an image's suffix. Another file that is an image by its first bytes
            is a bad sample: packed, it would differ from ``ImageFolder``; passed over, it would be lost.
    """

    by_suffix = True

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.tree = tree_of(path)
        self.max_bytes = max_file_bytes(options.max_pixels)

    def name(self, directory: str = "") -> str:
        """The folder, or a directory in it, for messages."""
        return printable(f"{self.path}/{directory}" if directory else str(self.path))

    def read(self, entry: Entry) -> bytes:
        """The bytes of the file. Raises :class:`SampleError` when it cannot be read or is not a file."""
        if entry.ref is not None:
            reason = (
                IS_CYCLE if entry.ref == CYCLE else "is not a file but a pipe, a device, or a link out of its archive"
            )
            raise SampleError(entry.key, reason)
        if not entry.key.endswith(_SURE):
            suffix = entry.key[entry.key.rfind(".") :].lower()
            if suffix not in _SURE:
                self._check_name(entry.key, suffix)
        return self.tree.read(entry.key, entry.size_bytes, entry.modified_ns, self.max_bytes)

    def read_together(self, entries: Sequence[Entry]) -> Sequence[bytes | None]:
        """Small files; see :meth:`Source.read_together`."""
        if any(entry.ref is not None or not entry.key.endswith(_SURE) for entry in entries):
            return [None] * len(entries)
        return self.tree.read_together([(entry.key, entry.size_bytes, entry.modified_ns) for entry in entries])

    def locate(self, entry: Entry) -> Location | None:
        return self.tree.locate(entry.key)

    def listed_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        return list_files(self.tree)

    def left_members(self) -> Mapping[str, int]:
        return replaced_members(self.tree)

    def _check_name(self, key: str, suffix: str) -> None:
        kind = unread_file(key, self.tree.start(key, UNREAD_BYTES))
        if kind is not None:
            raise SampleError(key, unread_reason(kind))
        if self.by_suffix and suffix not in (*IMAGE_SUFFIXES, ARRAY):
            raise SampleError(key, "is an image by its first bytes, but not by its name: rename it (.jpg, .png …)")

    def close(self) -> None:
        """Closes directories; reading opens them again."""
        self.tree.close()

    def stamp(self) -> str:
        return self.tree.stamp()
