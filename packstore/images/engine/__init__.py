"""The engine: baseline JPEG files and raw pixels to crops that are resized and mirrored, in compiled code; in RGB, or
gray.

The pixels are those of libjpeg-turbo and of torch's resizing, bit for bit. What the engine does not know, or does not
find flawless, it refuses, image by image: :mod:`packstore.images.decoders` then gives the same pixels, or says what is
wrong.
"""

from packstore.images.engine.native import (
    MODES,
    Engine,
    Form,
    Places,
    Requests,
    augment,
    engine_problem,
    get_engine,
    highway_hash,
    list_names,
    png_rows,
    read_files,
    stat_files,
)

__all__ = [
    "MODES",
    "Engine",
    "Form",
    "Places",
    "Requests",
    "augment",
    "engine_problem",
    "get_engine",
    "highway_hash",
    "list_names",
    "png_rows",
    "read_files",
    "stat_files",
]
