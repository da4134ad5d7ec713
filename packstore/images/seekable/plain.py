"""The way back: a crop-seekable JPEG as a file without restart markers and index."""

from __future__ import annotations

from packstore.images.seekable.index import read_index, without_index
from packstore.images.seekable.transform import without_restarts


def strip_index(data: bytes) -> bytes:
    """The JPEG file ``data`` with the same pixels and metadata, without restart markers and seek index; unchanged where
    it has no index.

    Raises:
        NotSeekableError: It is damaged.
        UsageError: There is neither ``jpegtran`` nor a library that does the same.
    """
    return data if read_index(data) is None else without_restarts(without_index(data))
