"""Layout of MDS shards: the content of ``index.json``, and the encodings of values (``streaming/base/format/mds/``,
version 2 of the format).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.files import read_bounded
from packstore.core.plainjson import load_json

INDEX = "index.json"
MAX_JSON, _MAX_COLUMNS = 1 << 28, 1000
SCALARS = frozenset(
    (*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64")
)
_CODES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_OTHERS = ("bytes", "str", "int", "str_int", "str_float", "str_decimal", "pil", "pkl", "json")
LISTS = ("list[pil]", "list[jpeg]", "list[png]", "jpeg_array", "jpegarray")
FILES = ("jpeg", "png")
_COMPRESSED = ("zstd", "gz", "bz2")


@dataclass(frozen=True)
class MdsShard:
    """MDS shard as described in ``index.json``.

    Attributes:
        split: Name of its split.
        file: Path of the file.
        samples: Number of samples by the index.
        names: Names of the values of a sample.
        encodings: Encodings of the values, in the same order.
        sizes: Sizes of the values in bytes; None if each value has its own size.
        nbytes: Bytes of the uncompressed shard; None if unknown.
    """

    split: str
    file: Path
    samples: int
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    nbytes: int | None


def decode_value(encoding: str, data: bytes) -> Any:
    """Decodes a value by its encoding: a text, a number, JSON, pixels or an array; files and bytes stay as they are.
    Raises :class:`ValueError` if it is damaged."""
    if encoding in (*FILES, "bytes"):
        return data
    if encoding in ("str", "str_decimal"):
        return data.decode("utf-8")
    if encoding in ("int", *SCALARS):
        values = np.frombuffer(data, np.dtype("int64" if encoding == "int" else encoding).newbyteorder("<"))
        if len(values) != 1:
            raise ValueError(f"found {len(data)} bytes, expected one number {encoding}")
        return values[0]
    if encoding == "str_int":
        if not re.fullmatch(rb"[+-]?\d{1,18}", data):
            raise ValueError(f"found {data[:40]!r}, expected an integer")
        return int(data)
    if encoding == "str_float":
        return float(data)
    if encoding == "json":
        return load_json(data)
    if encoding == "pil":
        return _decode_pixels(data)
    return decode_array(encoding, data)


def decode_array(encoding: str, data: bytes, dtype: str = "") -> NDArray[Any]:
    """Decodes an array with the encoding ``ndarray:DTYPE:SHAPE``, read-only. ``data`` begins with the dtype unless
    ``encoding`` or ``dtype`` has it, and with the shape unless ``encoding`` has it. Raises :class:`ValueError` if they
    do not fit the data."""
    parts = encoding.split(":")
    dtype = dtype or (parts[1] if len(parts) > 1 else "")
    at = 0
    if not dtype:
        if not data or data[0] not in _CODES:
            raise ValueError("found an array of no known dtype")
        dtype, at = _CODES[data[0]], 1
    if len(parts) > 2:
        shape = [int(n) for n in parts[2].split(",")]
    else:
        if len(data) <= at:
            raise ValueError("it ends within its shape")
        count, width = data[at] >> 2, 1 << (data[at] & 3)
        sizes = data[at + 1 : at + 1 + count * width]
        if len(sizes) < count * width or count > 8:
            raise ValueError("it ends within its shape")
        shape, at = np.frombuffer(sizes, f"<u{width}").tolist(), at + 1 + count * width
    kind = np.dtype(dtype).newbyteorder("<")
    if len(data) - at != math.prod(shape) * kind.itemsize:
        raise ValueError(f"found {len(data) - at} bytes, expected an array {dtype} of shape {tuple(shape)}")
    return np.frombuffer(data, kind, offset=at).reshape(shape)


def _decode_pixels(data: bytes) -> NDArray[np.uint8]:
    """Decodes pixels of Pillow in mode L or RGB to ``(H, W, C)``. ``data`` is width, height, length of the mode's name,
    the name, and the pixels. Raises :class:`ValueError` for other modes and damage."""
    width, height, length = np.frombuffer(data[:12], "<u4").tolist() if len(data) >= 12 else (0, 0, 0)
    mode = data[12 : 12 + length].decode("ascii", "replace") if length < 16 else ""
    channels = {"L": 1, "RGB": 3}.get(mode)
    if channels is None:
        raise ValueError(f"found an image of mode {printable(mode)}; packstore reads L and RGB of these")
    if len(data) - 12 - length != width * height * channels:
        raise ValueError(f"found {len(data) - 12 - length} bytes, expected {width} x {height} pixels")
    return np.frombuffer(data, np.uint8, offset=12 + length).reshape(height, width, channels)


def read_shards(split: str, index: Path) -> Iterator[MdsShard]:
    """Yields the shards that an index names. If an index names both forms of a shard, prefers the uncompressed file.
    Raises :class:`SourceError` for a missing shard, an unknown compression, another version, and an invalid index."""
    try:
        for plain in read_index(index)["shards"]:
            if plain["format"] != "mds" or plain["version"] != 2:
                raise SourceError(
                    f"{printable(str(index))} is of shards {plain['format']!r:.20} {plain['version']!r:.20}; packstore "
                    "reads mds of version 2"
                )
            names, encodings = tuple(map(str, plain["column_names"])), tuple(map(str, plain["column_encodings"]))
            sizes = tuple(_fixed_value_size(encoding) for encoding in encodings)
            said = tuple(None if not size else int(size) for size in plain["column_sizes"])
            if not len(names) == len(encodings) == len(said) <= _MAX_COLUMNS or len(set(names)) < len(names):
                raise ValueError("its columns do not go together")
            if sizes != said:
                raise ValueError(f"columns {encodings} have sizes {said}")
            raw, packed = plain["raw_data"], plain.get("zip_data")
            file = index.parent / check_file_name(raw["basename"])
            if packed and not file.is_file():
                kind = str(plain.get("compression") or "").partition(":")[0]
                file = index.parent / check_file_name(packed["basename"])
                if kind not in _COMPRESSED:
                    raise SourceError(f"{printable(str(file))} is compressed by {printable(kind)}: decompress it first")
            if not file.is_file():
                raise SourceError(f"{printable(str(file))} is missing; {INDEX} names it")
            samples, nbytes = int(plain["samples"]), int(raw["bytes"])
            if not 0 <= samples <= max(0, nbytes // 4 - 2):
                raise ValueError(f"{samples} samples in {nbytes} bytes")
            yield MdsShard(split, file, samples, names, encodings, sizes, nbytes)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SourceError(f"{printable(str(index))} cannot be used: {printable(str(error))}") from None


def _fixed_value_size(encoding: str) -> int | None:
    """Returns the number of bytes of each value of an encoding, or None if it varies.

    Raises :class:`ValueError` for an unknown encoding. For ``ndarray``, raises it also for an unknown dtype, and for a
    shape of more than eight axes or with an invalid length."""
    name, _, rest = encoding.partition(":")
    if name == "ndarray":
        dtype, _, shape = rest.partition(":")
        if dtype and dtype not in SCALARS:
            raise ValueError(f"an array of {dtype!r:.40}")
        if not shape:
            return None
        sizes = [int(n) for n in shape.split(",")]
        if len(sizes) > 8 or any(not 0 < n < 1 << 31 for n in sizes):
            raise ValueError(f"an array of shape {shape!r:.40}")
        return math.prod(sizes) * np.dtype(dtype).itemsize
    if rest or encoding not in (*SCALARS, *FILES, *LISTS, *_OTHERS):
        raise ValueError(f"the encoding {encoding!r:.40}, which packstore does not know")
    return 8 if encoding == "int" else np.dtype(encoding).itemsize if encoding in SCALARS else None


def check_file_name(name: object) -> str:
    """Returns ``name`` if it is a plain file name, without a folder. Raises :class:`ValueError` for any other."""
    if not isinstance(name, str) or "/" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"the name {name!r:.80}")
    return name


def read_index(index: Path) -> dict[str, Any]:
    """Reads the JSON object in an index file; does not check its content.

    Raises :class:`SourceError` if the file cannot be read, has no JSON object, or has more than 256 MiB.
    """
    try:
        content = load_json(read_bounded(index, MAX_JSON), "it is not valid JSON")
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{printable(str(index))} cannot be read: {printable(str(error))}") from None
    if not isinstance(content, dict):
        raise SourceError(f"{printable(str(index))} cannot be read: it is not a JSON object")
    return content
