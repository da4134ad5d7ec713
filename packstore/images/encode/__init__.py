"""Encodes images as records: one class per encoding; :class:`Encoder` encodes the samples of a source and verifies
records."""

from packstore.images.encode.base import EncodedImage, Encoding, SourceImages
from packstore.images.encode.encoder import Encoder
from packstore.images.encode.options import (
    GEOMETRY,
    EncodeOptions,
    encodings_that_accept,
    parse_size,
)

__all__ = [
    "GEOMETRY",
    "EncodeOptions",
    "EncodedImage",
    "Encoder",
    "Encoding",
    "SourceImages",
    "encodings_that_accept",
    "parse_size",
]
