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
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.errors import SourceError, printable
from packstore.core.plainjson import load_json
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import ZSTANDARD, detect_compression, load_zstandard, write_temporary
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.columns import ANY, BYTES, FILE, JSON, PIXELS, TEXT, ValueType
from packstore.sources.records import OpenFiles, check_file_name, find_indexes, read_index
from packstore.sources.records.mds import Layout, MdsSource, decode_value
from packstore.sources.records.typed import NUMBERS, PICKLE, Shard, to_array

_TYPES = {
    "jpeg": ValueType(FILE, (), "jpeg"), "image": ValueType(FILE, (), "jpeg"), "bytes": ValueType(BYTES, (), "bytes"),
    "str": ValueType(TEXT, (), "str"), "text": ValueType(TEXT, (), "str"), "int": ValueType("int64", (), "int64"),
    "float": ValueType("float64", (), "float64"), "bool": ValueType("uint8", (), "uint8"),
    "pil": ValueType(PIXELS, (), "pil"), "json": ValueType(JSON, (), "json"), "pickle": ValueType(PICKLE),
    "numpy": ValueType(ANY, (), "numpy"),
}  # fmt: skip
"""Types by the formats of LitData, with the encoding of MDS that has the same layout."""
_ZSTD = re.compile(r"zstd(:\d+)?")
_MAX_RATIO = 256
"""Maximum number of items for each byte of a compressed chunk."""
_FRAMED = b"LDFZ01\0\0"
_HEAD, _FRAME = struct.Struct("<8sHHIII"), struct.Struct("<IIQII")
_STEP, _MAX_CHUNK = 1 << 20, 1 << 32


class LitdataSource(MdsSource):
    """Source of LitData chunks that ``index.json`` names; with splits, ``train/index.json``, ``val/index.json`` …

    Opening refuses nested items, pickles, encryption, compressions other than zstd, and unknown formats."""

    kind = "litdata"

    def open_files(self, paths: list[Path]) -> OpenFiles:
        """Returns a reader of the chunks, which decompresses compressed ones."""
        return _ChunkFiles(paths, detect_compression)

    def read_index_shards(self, split: str, index: Path) -> Iterator[Shard]:
        """Yields the chunks that an index names. Raises :class:`SourceError` for a missing chunk, encryption, and
        compressions other than zstd. Raises other errors for an invalid index, nested items and unknown formats."""
        plain = read_index(index)
        config = plain["config"]
        compression = config.get("compression")
        unread = next((name for name in ("encryption", "ipc_compression") if config.get(name)), None)
        if unread is None and compression and not _ZSTD.fullmatch(str(compression)):
            unread = "compression"
        if unread is not None:
            how = "with zstd, or without it" if unread == "compression" else "without it"
            raise SourceError(
                f"{printable(str(index))}: {unread} is {printable(str(config[unread]))[:40]}, which packstore does "
                f"not read: write the chunks again {how}"
            )
        forms = [_parse_format(str(form)) for form in config["data_format"]]
        types = dict(zip(_parse_names(config["data_spec"], len(forms)), forms, strict=True))
        for chunk in plain["chunks"]:
            file = index.parent / check_file_name(chunk["filename"])
            nbytes = file.stat().st_size if file.is_file() else 0
            most = _MAX_RATIO * nbytes if compression else max(0, nbytes // 4 - 2)
            layout = Layout(int(chunk["chunk_size"]), (None,) * len(types), None if compression else nbytes)
            yield self.make_shard(split, file, types, layout, most)

    def decode(self, type: ValueType, data: bytes, form: None = None) -> Any:
        """Decodes a value: arrays with and without a header, other values as MDS does. Raises :class:`ValueError` if it
        is damaged."""
        if type.kind != ANY:
            return decode_value(type.encoding, data)
        if type.encoding != "numpy":  # one dimension, without a header
            return np.frombuffer(data, np.dtype(type.encoding).newbyteorder("<"))
        code, rank = np.frombuffer(data[:8], "<u4").tolist() if len(data) >= 8 else (len(NUMBERS), 0)
        if code >= len(NUMBERS) or rank > 8 or len(data) < 8 + 4 * rank:
            raise ValueError("found an array of no known dtype or shape")
        shape = np.frombuffer(data[8 : 8 + 4 * rank], "<u4").tolist()
        return to_array(data[8 + 4 * rank :], NUMBERS[code], shape)


def _parse_format(form: str) -> ValueType:
    """Converts a format of LitData (``jpeg``, ``no_header_numpy:1``) to a type. Raises :class:`ValueError` for an
    unknown one."""
    name, _, rest = form.partition(":")
    if name in _TYPES and (name != "numpy" or not rest):
        return _TYPES[name]
    if name == "no_header_numpy" and rest.isdecimal() and int(rest) < len(NUMBERS):
        return ValueType(ANY, encoding=NUMBERS[int(rest)])
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


class _ChunkFiles(OpenFiles):
    """Opens chunks of LitData. Decompresses compressed chunks to temporary files."""

    def _open_file(self, path: Path) -> OpenFile:
        """Opens a chunk. Decompresses it to a temporary file if it is compressed as a whole, by batches or by items.
        Raises :class:`SourceError` if it cannot be read, or is damaged."""
        file, name = super()._open_file(path), printable(str(path))
        size = os.fstat(file.descriptor).st_size
        count = int.from_bytes(file.read(4, 0), "little")
        if file.read(len(_FRAMED), 0) == _FRAMED:
            pieces = _inflate_frames(file, size, name)
        elif file.read(4, 4 * (count + 2)) == ZSTANDARD:  # otherwise the size of a value is there
            pieces = _inflate_items(file, size, count, name)
        else:
            return file
        with write_temporary(pieces, size, name) as whole:
            return OpenFile(os.dup(whole.fileno()))


def _inflate_frames(file: OpenFile, size: int, name: str) -> Iterator[bytes]:
    """Yields the uncompressed content of a chunk that is compressed by batches.

    Raises :class:`ValueError` if it is inconsistent, or larger than 4 GB. Also raises the errors of
    :func:`_inflate_frame`."""
    head = file.read(_HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise ValueError("it ends within its header")
    _, version, _, count, _, frames = _HEAD.unpack(head)
    table = _HEAD.size + 4 * (count + 1)
    if version != 1 or table + _FRAME.size * frames > size:
        raise ValueError(f"its header says version {version}, {count} items and {frames} frames")
    offsets = np.frombuffer(file.read(4 * (count + 1), _HEAD.size), "<u4").astype(np.int64) + 4 * (count + 2)
    if offsets[-1] >= 1 << 32:
        raise ValueError("it has more than 4 GB")
    yield np.uint32(count).tobytes() + offsets.astype("<u4").tobytes()
    first = total = 0
    for number in range(frames):
        said, items, at, packed, nbytes = _FRAME.unpack(file.read(_FRAME.size, table + _FRAME.size * number))
        if said != first or at + packed > size:
            raise ValueError(f"frame {number} is not where it should be")
        yield from _inflate_frame(file.read(packed, at), nbytes, name, exactly=True)
        first, total = first + items, total + nbytes
    if first != count or total != offsets[-1] - offsets[0]:
        raise ValueError(f"its frames hold {first} items of {total} bytes")


def _inflate_items(file: OpenFile, size: int, count: int, name: str) -> Iterator[bytes]:
    """Yields the uncompressed content of a chunk whose items are compressed one by one.

    Raises :class:`ValueError` if it is inconsistent, or larger than 4 GB. Also raises the errors of
    :func:`_inflate_frame`."""
    places = np.frombuffer(file.read(4 * (count + 1), 4), "<u4").tolist()
    if len(places) != count + 1 or places != sorted(places) or places[-1] > size:
        raise ValueError("its items are not where they should be")
    # Sizes come before items: inflating all items twice keeps only one in memory.
    offsets = [4 * (count + 2)]
    for start, stop in pairwise(places):
        offsets.append(offsets[-1] + sum(map(len, _inflate_frame(file.read(stop - start, start), 1 << 32, name))))
        if offsets[-1] >= 1 << 32:
            raise ValueError("it has more than 4 GB")
    yield np.array([count, *offsets], "<u4").tobytes()
    for start, stop in pairwise(places):
        yield from _inflate_frame(file.read(stop - start, start), 1 << 32, name)


def _inflate_frame(data: bytes, most: int, name: str, *, exactly: bool = False) -> Iterator[bytes]:
    """Yields the uncompressed content of a Zstandard frame in pieces, at most ``most`` bytes.

    Raises :class:`ValueError` if the frame has more bytes; with ``exactly``, also if it has fewer. Raises the library's
    errors for damage, and :class:`SourceError` without the library."""
    nbytes = 0
    with load_zstandard(name).ZstdDecompressor().stream_reader(data) as stream:
        while piece := stream.read(_STEP):
            nbytes += len(piece)
            if nbytes > most:
                break
            yield piece
    if nbytes > most or (exactly and nbytes != most):
        raise ValueError(f"a frame has {nbytes} bytes or more, where it should have {most}")


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
