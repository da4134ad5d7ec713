"""Reads chunks of LitData: ``index.json`` and ``chunk-0-0.bin`` (``litdata/streaming/writer.py``, ``serializers.py``).

A chunk is the number of its items, the offset of each and of the end (32 bits each), and the items: sizes of all
values, then the values. This is the layout of MDS without its description.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.errors import SourceError, printable
from packstore.core.plainjson import load_json
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.records.litdata_chunks import ChunkFiles
from packstore.sources.records.mds import MdsSource, find_indexes
from packstore.sources.records.mds_layout import INDEX, MdsShard, check_file_name, decode_value, read_index

_ENCODINGS = {
    "jpeg": "jpeg", "image": "jpeg", "bytes": "bytes", "str": "str", "text": "str", "int": "int64",
    "float": "float64", "bool": "uint8", "pil": "pil", "json": "json", "pickle": "pkl",
}  # fmt: skip
"""Encodings of MDS for the formats of LitData with the same layout."""
_DTYPES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
"""dtypes of arrays by number (``_NUMPY_DTYPES_MAPPING``), up to the last that columns support."""
_UNREAD = ("encryption", "ipc_compression")
_ZSTD = re.compile(r"zstd(:\d+)?")
_MAX_RATIO = 256
"""Maximum number of items for each byte of a compressed chunk."""


class LitdataSource(MdsSource):
    """Source of LitData chunks that ``index.json`` names; with splits, ``train/index.json``, ``val/index.json`` …

    Opening refuses nested items, pickles, encryption, compressions other than zstd, and unknown formats."""

    kind = "litdata"

    open_files = ChunkFiles

    @staticmethod
    def read_shards(split: str, index: Path) -> Iterator[MdsShard]:
        """Yields the chunks that an index names. Raises :class:`SourceError` for an invalid index, a missing chunk,
        nested items, encryption, unknown formats, and compressions other than zstd."""
        try:
            plain = read_index(index)
            config = plain["config"]
            unread = next((name for name in _UNREAD if config.get(name)), None)
            if unread is not None:
                raise SourceError(
                    f"{printable(str(index))}: {unread} is {printable(str(config[unread]))[:40]}, which packstore does "
                    "not read: write the chunks again without it"
                )
            compression = config.get("compression")
            if compression and not _ZSTD.fullmatch(str(compression)):
                raise SourceError(
                    f"{printable(str(index))}: compression is {printable(str(compression))[:40]}, which packstore does "
                    "not read: write the chunks again with zstd, or without it"
                )
            encodings = tuple(_parse_encoding(str(name)) for name in config["data_format"])
            names = _parse_names(config["data_spec"], len(encodings))
            for chunk in plain["chunks"]:
                file = index.parent / check_file_name(chunk["filename"])
                if not file.is_file():
                    raise SourceError(f"{printable(str(file))} is missing; {INDEX} names it")
                samples, nbytes = int(chunk["chunk_size"]), file.stat().st_size
                most = _MAX_RATIO * nbytes if compression else max(0, nbytes // 4 - 2)
                if not 0 <= samples <= most:
                    raise ValueError(f"{samples} items in {nbytes} bytes")
                sizes = (None,) * len(names)
                yield MdsShard(split, file, samples, names, encodings, sizes, None if compression else nbytes)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise SourceError(f"{printable(str(index))} cannot be used: {printable(str(error))}") from None

    @staticmethod
    def decode_by_encoding(encoding: str, data: bytes) -> Any:
        """Decodes a value by its encoding: an array for ``numpy`` and ``numpy:DTYPE``, other values as MDS does. Raises
        :class:`ValueError` if it is damaged."""
        if encoding in ("int64", "float64", "uint8") and len(data) != np.dtype(encoding).itemsize:
            raise ValueError(f"found {len(data)} bytes, expected one {encoding}")
        if encoding.startswith("numpy:"):  # one dimension, without a header
            return np.frombuffer(data, np.dtype(encoding[6:]).newbyteorder("<"))
        if encoding != "numpy":
            return decode_value(encoding, data)
        code, rank = np.frombuffer(data[:8], "<u4").tolist() if len(data) >= 8 else (len(_DTYPES), 0)
        if code >= len(_DTYPES) or rank > 8 or len(data) < 8 + 4 * rank:
            raise ValueError("found an array of no known dtype or shape")
        shape = np.frombuffer(data[8 : 8 + 4 * rank], "<u4").tolist()
        dtype = np.dtype(_DTYPES[code]).newbyteorder("<")
        if len(data) - 8 - 4 * rank != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"found {len(data)} bytes, expected an array {dtype.name} of shape {tuple(shape)}")
        return np.frombuffer(data, dtype, offset=8 + 4 * rank).reshape(shape)


def _parse_encoding(form: str) -> str:
    """Converts a format of LitData (``jpeg``, ``no_header_numpy:1``) to an encoding of MDS or ``numpy:DTYPE``. Raises
    :class:`ValueError` for an unknown one."""
    name, _, rest = form.partition(":")
    if name in _ENCODINGS:
        return _ENCODINGS[name]
    if form == "numpy":
        return form
    if name == "no_header_numpy" and rest.isdecimal() and int(rest) < len(_DTYPES):
        return f"numpy:{_DTYPES[int(rest)]}"
    raise ValueError(f"the format {form!r:.60}, which packstore does not read")


def _parse_names(spec: object, count: int) -> tuple[str, ...]:
    """Parses the names of the values of an item from a ``data_spec``. Names are keys of a dict, or positions in a tuple
    or list. Raises :class:`ValueError` for nested items, other types, and a number of names other than ``count``."""
    if not isinstance(spec, str):
        raise ValueError("it has no data_spec")
    node = load_json(spec)[1]
    children = node["children_spec"]
    if len(children) != count or any(child["children_spec"] for child in children):
        raise ValueError("its items are nested, or not as many values as it says")
    kind = str(node["type"]).rpartition(".")[2]
    names = tuple(map(str, load_json(node["context"]) if kind == "dict" else range(count)))
    if kind not in ("dict", "tuple", "list") or len(set(names)) != count:
        raise ValueError(f"its items are {kind!r:.40}, where a dict or a tuple should be")
    return names


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Certain if the first ``index.json`` describes formats as LitData does, else ``NO``."""
    for _, index in find_indexes(path)[:1]:
        try:
            plain = read_index(index)
        except SourceError:
            return Certainty.NO
        if isinstance(plain.get("config"), dict) and {"data_format", "data_spec"} <= plain["config"].keys():
            return Certainty.CERTAIN
    return Certainty.NO


KIND = Kind("litdata", "chunks of LitData", _recognise, LitdataSource)
