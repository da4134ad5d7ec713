"""Images to records: one class an encoding; :class:`Encoder` makes records of a source and compares them with it."""

from packstore.images.encode.base import Encoded, Encoding, SourceImages
from packstore.images.encode.encoder import Encoder
from packstore.images.encode.options import (
    GEOMETRY,
    EncodeOptions,
    encodings_that_accept,
    parse_size,
)
from packstore.images.encode.statistics import DatasetStatistics

__all__ = [
    "GEOMETRY",
    "DatasetStatistics",
    "EncodeOptions",
    "Encoded",
    "Encoder",
    "Encoding",
    "SourceImages",
    "encodings_that_accept",
    "parse_size",
]
