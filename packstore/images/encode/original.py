"""The encoding ``original``: image files, byte for byte."""

from __future__ import annotations

from packstore.core.columns import ImageData
from packstore.images.encode.base import Encoded, Encoding


class Original(Encoding):
    """Files as they are. Of a source of arrays, which has no files, the arrays as they are, under its own encoding."""

    name = "original"
    accepts = frozenset({"exif_transpose"})
    keeps_exif = True

    @classmethod
    def of_source(cls, source: type[Encoding]) -> type[Encoding]:
        return cls if source.layout is None else source

    @classmethod
    def holds(cls, source: type[Encoding]) -> bool:
        return source.layout is None

    def encode(self, key: str, image: ImageData) -> Encoded:
        return self.keep(key, image)
