"""Sample to record and back to the question whether it is the right one.

:class:`Encoder` makes records, :func:`compare` checks them, :class:`DatasetStatistics` computes a normalisation.
"""

from packstore.encode.compare import compare
from packstore.encode.encoder import Encoded, Encoder, encode_jpeg
from packstore.encode.options import (
    CHECKS,
    MAX_SIDE,
    WRITABLE_ENCODINGS,
    EncodeOptions,
    as_normalization,
    parse_normalize,
    parse_size,
)
from packstore.encode.statistics import DatasetStatistics

__all__ = [
    "CHECKS",
    "MAX_SIDE",
    "WRITABLE_ENCODINGS",
    "DatasetStatistics",
    "EncodeOptions",
    "Encoded",
    "Encoder",
    "as_normalization",
    "compare",
    "encode_jpeg",
    "parse_normalize",
    "parse_size",
]
