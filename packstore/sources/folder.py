"""Base of sources whose samples are image files of a folder or an archive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packstore.core.errors import SampleError, printable
from packstore.core.files import Location
from packstore.images.sniff import UNREAD_BYTES, find_unread_file_kind, max_file_bytes, unread_kind_message
from packstore.sources.archives import open_required_tree
from packstore.sources.base import Entry, Source, SourceOptions
from packstore.sources.ledger import count_replaced_members, list_files
from packstore.sources.listing import ARRAY, CYCLE, IMAGE_SUFFIXES, IS_CYCLE

# Suffixes that only images have; other files have ``.hdr``, too.
_SURE = frozenset(spelled for suffix in IMAGE_SUFFIXES if suffix != ".hdr" for spelled in (suffix, suffix.upper()))
_SMALL = 16 << 10  # bytes of a file, on average, up to which one call for many is faster


class FolderSource(Source):
    """Source whose samples are files in its folder or archive. Raises :class:`SourceError` for any other path.

    The key of a sample is its path relative to the folder, with ``/``. ``ref`` is None, but
    :data:`packstore.sources.listing.NO_FILE` or :data:`packstore.sources.listing.CYCLE` if reading must refuse it.

    Attributes:
        by_suffix: An image with another suffix than those of images is a bad sample. ``ImageFolder`` would leave it
            out, without a word.
    """

    by_suffix = True

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.tree = open_required_tree(path)
        self.max_bytes = max_file_bytes(options.max_pixels)

    def name(self, directory: str = "") -> str:
        """Returns the printable path of the folder, or of a directory in it."""
        return printable(f"{self.path}/{directory}" if directory else str(self.path))

    def read(self, entry: Entry) -> bytes:
        """Reads the bytes of the file. Raises :class:`SampleError`

        - if the file cannot be read, is too large, or has changed;
        - for a pipe, a device, a cycle of links, and a format that packstore does not read;
        - with :attr:`by_suffix`, for an image without the suffix of an image.
        """
        if entry.ref is not None:
            reason = (
                IS_CYCLE if entry.ref == CYCLE else "is not a file but a pipe, a device, or a link out of its archive"
            )
            raise SampleError(entry.key, reason)
        suffix = entry.key[entry.key.rfind(".") :]
        if suffix not in _SURE and suffix.lower() not in _SURE:
            self._refuse_odd_suffix(entry.key, suffix.lower())
        return self.tree.read(entry.key, entry.size_bytes, entry.modified_ns, self.max_bytes)

    def read_together(self, entries: Sequence[Entry]) -> Sequence[bytes | None]:
        """Reads small files together, see :meth:`Source.read_together`.

        Returns None for all if their mean size is 16 KiB or more, or if one is no regular file or has no suffix of
        images.
        """
        if sum([entry.size_bytes for entry in entries]) >= _SMALL * len(entries):
            return [None] * len(entries)
        suffixes = {entry.key[entry.key.rfind(".") :] for entry in entries}
        if not suffixes <= _SURE or any(entry.ref is not None for entry in entries):
            return [None] * len(entries)
        return self.tree.read_together([(entry.key, entry.size_bytes, entry.modified_ns) for entry in entries])

    def locate(self, entry: Entry) -> Location | None:
        """Locates the image file; None if it is compressed or at a URL."""
        return self.tree.locate(entry.key)

    def list_all_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists the files of the folder or archive."""
        return list_files(self.tree)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts files of an archive that later files of the same name replace."""
        return count_replaced_members(self.tree)

    def _refuse_odd_suffix(self, key: str, suffix: str) -> None:
        """Raises :class:`SampleError` if the first bytes or the suffix of a file show no image that packstore reads."""
        kind = find_unread_file_kind(key, self.tree.first_bytes(key, UNREAD_BYTES))
        if kind is not None:
            raise SampleError(key, unread_kind_message(kind))
        if self.by_suffix and suffix not in (*IMAGE_SUFFIXES, ARRAY):
            raise SampleError(key, "is an image by its first bytes, but not by its name: rename it (.jpg, .png …)")

    def close(self) -> None:
        """Closes directories; reading opens them again."""
        self.tree.close()

    def stamp(self) -> str:
        """Returns the stamp of an archive; empty for a folder, whose entries have times."""
        return self.tree.stamp()
