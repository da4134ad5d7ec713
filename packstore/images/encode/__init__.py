"""Sample to record and back to the question whether it is the right one.

:class:`Encoder` makes records, :func:`compare` checks them, :class:`DatasetStatistics` computes a normalisation.
"""

from packstore.images.encode.compare import compare
from packstore.images.encode.encoder import Encoded, Encoder, encode_jpeg
from packstore.images.encode.options import (
    CHECKS,
    MAX_SIDE,
    EncodeOptions,
    as_normalization,
    parse_normalize,
    parse_size,
)
from packstore.images.encode.statistics import DatasetStatistics

__all__ = [
    "CHECKS",
    "MAX_SIDE",
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
