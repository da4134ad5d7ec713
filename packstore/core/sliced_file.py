"""File object over bytes that are elsewhere: in a map, or in an object at a URL."""

from __future__ import annotations

import errno
import io
import os
from typing import Any, Protocol


class Sliceable(Protocol):
    """Bytes whose length is known, and whose slices can be read."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...


class SlicedFile(io.RawIOBase):
    """A read-only file object over sliceable bytes, with its own position."""

    def __init__(self, content: Sliceable) -> None:
        self._content = content
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position, also beyond the end. Raises :class:`OSError` for a position before the beginning."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._content)}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))  # as for a file
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._content[self._position : self._position + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
