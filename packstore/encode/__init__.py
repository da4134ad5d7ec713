"""Sample to record and back to the question whether it is the right one.

:class:`Encoder` makes records, :func:`compare` checks them, :class:`DatasetStatistics` computes a normalisation.
"""

from packstore.encode.compare import compare
from packstore.encode.encoder import Encoded, Encoder, encode_jpeg
from packstore.encode.options import CHECKS, MAX_SIDE, EncodeOptions, parse_normalize, parse_size
from packstore.encode.statistics import DatasetStatistics

__all__ = [
    "CHECKS",
    "MAX_SIDE",
    "DatasetStatistics",
    "EncodeOptions",
    "Encoded",
    "Encoder",
    "compare",
    "encode_jpeg",
    "parse_normalize",
    "parse_size",
]
