"""Reads files of records at any place, from any thread."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packstore.core.errors import SourceError, printable
from packstore.core.files import beyond_standard_streams
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import TAR_FAULTS, decompress_to_temporary
from packstore.stores.link_files import Location

_OPEN = 8


class OpenFiles:
    """Opens files by number, for reads at any offset; thread-safe. Keeps the 8 last used files open.

    Opening a compressed file decompresses it to a temporary file. Opening it again decompresses it again.
    """

    def __init__(self, paths: Sequence[Path], compression: Callable[[Path], str | None]) -> None:
        self._paths, self._compression = paths, compression
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._plain: dict[int, bool] = {}
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> OpenFile:
        """Returns file ``number``, open and decompressed. Opens the file if necessary. Keeps at most 8 files, and drops
        the file that was used longest ago. Raises :class:`SourceError` for a missing file, or a damaged compressed
        one."""
        with self._lock:
            file = self._open.pop(number, None) or self._open_file(self._paths[number])
            self._open[number] = file
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
        return file

    def _open_file(self, path: Path) -> OpenFile:
        """Opens a file. Decompresses a compressed file to a temporary file. Raises :class:`SourceError` if it cannot be
        read, or is damaged."""
        try:
            kind = self._compression(path)
            if kind is not None:
                with decompress_to_temporary(path, kind, printable(str(path))) as content:
                    return OpenFile(os.dup(content.fileno()))
            with beyond_standard_streams():
                return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            raise SourceError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None

    def locate_span(self, number: int, start: int, size: int) -> Location | None:
        """Locates ``size`` bytes of a file from ``start`` on. Returns None if the file was decompressed, or has been
        replaced. The first call for a file opens it; later calls do not look for a replacement."""
        path = self._paths[number]
        if number not in self._plain:
            opened, lying = os.fstat(self[number].descriptor), path.stat()
            self._plain[number] = (opened.st_dev, opened.st_ino) == (lying.st_dev, lying.st_ino)
        return Location(str(path.absolute()), start, within=size) if self._plain[number] else None

    def close(self) -> None:
        """Closes all files; reading opens them again. A file that a thread reads closes when the thread is done."""
        with self._lock:
            self._open.clear()


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Converts errors of decompressing a damaged file to a :class:`SourceError` that names the file."""
    try:
        yield
    except TAR_FAULTS as error:
        raise SourceError(f"{printable(str(path))} is damaged: {printable(str(error))}") from None
