"""The way back: a crop-seekable JPEG as a file without restart markers and index."""

from __future__ import annotations

from packstore.images.engine import get_engine
from packstore.images.seekable.index import read_index, without_index
from packstore.images.seekable.transform import transform


def strip_index(data: bytes) -> bytes:
    """The JPEG file ``data`` with the same pixels and metadata, without restart markers and seek index; unchanged where
    it has no index.

    Raises:
        NotSeekableError: It is damaged.
        UsageError: There is no engine, no ``jpegtran``, and no library that does the same.
    """
    if read_index(data) is None:
        return data
    plain = without_index(data)
    engine = get_engine()
    made = None if engine is None else engine.rewrite(plain, 0, index=False)
    return transform(plain, 0) if made is None else made
