"""The compiled engine: decodes baseline JPEG files, and crops, resizes, mirrors and augments images, RGB or gray.

Its pixels are bit-exact with libjpeg-turbo's decoding and torch's resizing. It refuses every image with an unknown
feature or a flaw; :mod:`packstore.images.decoders` then decodes the image to the same pixels, or reports the flaw.
"""

from packstore.core.compiled import engine_problem
from packstore.images.engine.addresses import BufferAddresses
from packstore.images.engine.engine import MOST_SIDE, Engine, augment, get_engine
from packstore.images.engine.functions import (
    is_plain_jpeg,
    list_names,
    permute_in_place,
    png_rows,
    read_files,
    scan_tar,
    stat_files,
)
from packstore.images.engine.requests import MODES, OutputFormat, Requests

__all__ = [
    "MODES",
    "MOST_SIDE",
    "BufferAddresses",
    "Engine",
    "OutputFormat",
    "Requests",
    "augment",
    "engine_problem",
    "get_engine",
    "is_plain_jpeg",
    "list_names",
    "permute_in_place",
    "png_rows",
    "read_files",
    "scan_tar",
    "stat_files",
]
