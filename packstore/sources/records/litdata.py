"""Reads chunks of LitData: ``index.json`` and ``chunk-0-0.bin`` (``litdata/streaming/writer.py``, ``serializers.py``,
``framed_zstd.py``).

A chunk is the number of its items, the offset of each and of the end (32 bits each), and the items: sizes of all
values, then the values. This is the layout of MDS without its description. Chunks that are compressed by Zstandard, as
a whole, by batches of items, or item by item, are decompressed to temporary files in this layout.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.core.plainjson import load_json
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import ZSTANDARD, detect_compression, load_zstandard, write_temporary
from packstore.sources.base import Kind
from packstore.sources.columns import ANY, BYTES, FILE, JSON, PIXELS, TEXT, ValueType
from packstore.sources.records import OpenFiles, find_named_file
from packstore.sources.records.mds import Layout, MdsSource, decode_value
from packstore.sources.records.typed import NUMBERS, PICKLE, Shard, to_array

_TYPES = {
    "jpeg": ValueType(FILE, (), "jpeg"), "image": ValueType(FILE, (), "jpeg"), "bytes": ValueType(BYTES, (), "bytes"),
    "str": ValueType(TEXT, (), "str"), "text": ValueType(TEXT, (), "str"), "int": ValueType("int64", (), "int64"),
    "float": ValueType("float64", (), "float64"), "bool": ValueType("uint8", (), "uint8"),
    "pil": ValueType(PIXELS, (), "pil"), "json": ValueType(JSON, (), "json"), "pickle": ValueType(PICKLE),
    "numpy": ValueType(ANY, (), "numpy"),
    **{f"no_header_numpy:{code}": ValueType(ANY, (), dtype) for code, dtype in enumerate(NUMBERS)},
}  # fmt: skip
"""Types by the formats of LitData, with the encoding of MDS that has the same layout."""
_ZSTD = re.compile(r"(zstd(:\d+)?)?")
_MAX_RATIO = 256
"""Maximum number of items for each byte of a compressed chunk."""
_FRAMED = b"LDFZ01\0\0"
_HEAD, _FRAME = struct.Struct("<8sHHIII"), struct.Struct("<IIQII")
_STEP, _MAX_CHUNK = 1 << 20, 1 << 32


class LitdataSource(MdsSource):
    """Source of LitData chunks that ``index.json`` names; with splits, ``train/index.json``, ``val/index.json`` …

    Opening refuses nested items, pickles, encryption, compressions other than zstd, and unknown formats."""

    kind = "litdata"
    unit = "LitData chunk"
    index_patterns = (rb'"data_format"', rb'"data_spec"', rb'"config"')

    def open_files(self, paths: Sequence[Path]) -> OpenFiles:
        """Returns a reader of the chunks, which decompresses compressed ones."""
        return _ChunkFiles(paths, detect_compression)

    def read_index_shards(self, split: str, folder: Path, index: Mapping[str, Any]) -> Iterator[Shard]:
        """Yields the chunks that an index names. Raises :class:`ValueError` and other errors for a missing chunk, an
        invalid index, nested items, and unknown formats, compressions and encryption."""
        config = index["config"]
        compression = str(config.get("compression") or "")
        for name in ("encryption", "ipc_compression", *(() if _ZSTD.fullmatch(compression) else ("compression",))):
            if config.get(name):
                raise ValueError(f"its {name} is {str(config[name])[:40]}, which packstore does not read")
        unknown = next((form for form in config["data_format"] if form not in _TYPES), None)
        if unknown is not None:
            raise ValueError(f"found the format {unknown!r:.60}, which packstore does not know")
        names = _parse_names(config["data_spec"], len(config["data_format"]))
        types = {name: _TYPES[form] for name, form in zip(names, config["data_format"], strict=True)}
        for chunk in index["chunks"]:
            file = find_named_file(folder, chunk["filename"])
            nbytes = file.stat().st_size
            layout = Layout(int(chunk["chunk_size"]), (None,) * len(types), None if compression else nbytes)
            yield self.make_shard(split, file, types, layout, _MAX_RATIO * nbytes if compression else nbytes // 4)

    def decode(self, type: ValueType, data: bytes, form: None = None) -> Any:
        """Decodes a value: arrays with and without a header, other values as MDS does. Raises :class:`ValueError` if it
        is damaged."""
        if type.kind != ANY:
            return decode_value(type.encoding, data)
        if type.encoding != "numpy":  # one dimension, without a header
            return np.frombuffer(data, np.dtype(type.encoding).newbyteorder("<"))
        code, rank = np.frombuffer(data[:8], "<u4").tolist() if len(data) >= 8 else (len(NUMBERS), 0)
        if code >= len(NUMBERS) or rank > 8 or len(data) < 8 + 4 * rank:
            raise ValueError("found an array of an unknown dtype or shape")
        shape = np.frombuffer(data[8 : 8 + 4 * rank], "<u4").tolist()
        return to_array(data[8 + 4 * rank :], NUMBERS[code], shape)


def _parse_names(spec: str, count: int) -> list[str]:
    """Parses the names of the values of an item from a ``data_spec``. Names are keys of a dict, or positions in a tuple
    or list. Raises :class:`ValueError` for nested items and other types, and other errors for an invalid text."""
    node = load_json(spec)[1]
    kind, children = str(node["type"]).rpartition(".")[2], node["children_spec"]
    names = [*map(str, load_json(node["context"]) if kind == "dict" else range(len(children)))]
    nested = any(child["children_spec"] for child in children)
    if nested or kind not in ("dict", "tuple", "list") or not len({*names}) == len(children) == count:
        raise ValueError(f"its items are {kind!r:.40} of {len(children)} values, expected a dict or tuple of {count}")
    return names


class _ChunkFiles(OpenFiles):
    """Opens chunks of LitData. Decompresses compressed chunks to temporary files."""

    def open_file(self, path: Path) -> OpenFile:
        """Opens a chunk. Decompresses it to a temporary file if it is compressed as a whole, by batches or by items.
        Raises :class:`SourceError` if it cannot be read, or is damaged."""
        file, name = super().open_file(path), printable(str(path))
        count = int.from_bytes(file.read(4, 0), "little")
        if file.read(len(_FRAMED), 0) == _FRAMED:
            pieces = _inflate_batches(file, name)
        elif file.read(4, 4 * (count + 2)) == ZSTANDARD:  # otherwise the size of a value is there
            pieces = _inflate_items(file, count, name)
        else:
            return file
        with write_temporary(pieces, file.size, name) as whole:
            return OpenFile(os.dup(whole.fileno()))


def _inflate_batches(file: OpenFile, name: str) -> Iterator[bytes]:
    """Yields the uncompressed content of a chunk that is compressed by batches. Raises as :func:`_inflate`."""
    _, version, _, count, _, frames = _HEAD.unpack(file.read(_HEAD.size, 0).ljust(_HEAD.size, b"\0"))
    table = _HEAD.size + 4 * (count + 1)
    if version != 1 or table + _FRAME.size * frames > file.size:
        raise ValueError(f"its header says version {version}, {count} items and {frames} frames")
    offsets = np.frombuffer(file.read(4 * (count + 1), _HEAD.size), "<u4").astype(np.int64) + 4 * (count + 2)
    spans = [each[2:] for each in _FRAME.iter_unpack(file.read(_FRAME.size * frames, table))]
    yield from _inflate(file, offsets, spans, name)


def _inflate_items(file: OpenFile, count: int, name: str) -> Iterator[bytes]:
    """Yields the uncompressed content of a chunk whose items are compressed one by one. Raises as :func:`_inflate`."""
    places = np.frombuffer(file.read(4 * (count + 1), 4), "<u4").tolist()
    library = load_zstandard(name)
    sizes = [library.frame_content_size(file.read(min(18, max(0, b - a)), a)) for a, b in pairwise(places)]
    spans = [(a, b - a, size) for (a, b), size in zip(pairwise(places), sizes, strict=True)]
    yield from _inflate(file, np.array([*accumulate(sizes, initial=4 * (count + 2))]), spans, name)


def _inflate(
    file: OpenFile, offsets: NDArray[np.int64], spans: Iterable[tuple[int, int, int]], name: str
) -> Iterator[bytes]:
    """Yields number and ``offsets`` of the items of a chunk, and its frames of Zstandard without their compression.

    ``spans``: offset, compressed and uncompressed size of each frame. Raises :class:`ValueError` if they are not what
    the frames have, the library's errors for damage, and :class:`SourceError` without the library.
    """
    if not 0 <= offsets[-1] < _MAX_CHUNK or offsets[-1] - offsets[0] != sum(size for *_, size in spans):
        raise ValueError(f"its items have {offsets[-1]} bytes, unlike its frames")
    yield np.array([len(offsets) - 1, *offsets], "<u4").tobytes()
    for place, packed, size in spans:
        left = size
        if packed < 0 or place + packed > file.size:
            raise ValueError(f"a frame of {packed} bytes at byte {place}, where none can be")
        with load_zstandard(name).ZstdDecompressor().stream_reader(file.read(packed, place)) as stream:
            while left >= 0 and (piece := stream.read(_STEP)):
                left -= len(piece)
                yield piece
        if left:
            raise ValueError(f"a frame has {size - left} bytes or more, where it should have {size}")


KIND = Kind("litdata", "chunks of LitData", LitdataSource.recognise, LitdataSource)
