"""Reads chunks of LitData: ``index.json`` and ``chunk-0-0.bin`` (``litdata/streaming/writer.py``, ``serializers.py``).

A chunk is the number of its items, the offset of each and of the end (32 bits each), and the items: sizes of all
values, then the values. This is the layout of MDS without its description. A chunk may be compressed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.plainjson import load_json
from packstore.sources.base import Kind
from packstore.sources.columns import ANY, BYTES, FILE, JSON, PIXELS, TEXT, ValueType
from packstore.sources.records import find_named_file
from packstore.sources.records.mds import MdsSource
from packstore.sources.records.typed import NUMBERS, PICKLE, Shard, to_array

# Types by the formats of LitData, with the encoding of MDS that has the same layout.
_TYPES = {
    "jpeg": ValueType(FILE, (), "jpeg"), "image": ValueType(FILE, (), "jpeg"), "bytes": ValueType(BYTES, (), "bytes"),
    "str": ValueType(TEXT, (), "str"), "text": ValueType(TEXT, (), "str"), "int": ValueType("int64", (), "int64"),
    "float": ValueType("float64", (), "float64"), "bool": ValueType("uint8", (), "uint8"),
    "pil": ValueType(PIXELS, (), "pil"), "json": ValueType(JSON, (), "json"), "pickle": ValueType(PICKLE),
    "numpy": ValueType(ANY, (), "numpy"),
    **{f"no_header_numpy:{code}": ValueType(ANY, (), dtype) for code, dtype in enumerate(NUMBERS)},
}  # fmt: skip


class LitdataSource(MdsSource):
    """Source of LitData chunks that ``index.json`` names, or ``train/index.json``, ``val/index.json`` and so on.

    Opening refuses nested items, pickles, encryption and unknown formats."""

    kind = "litdata"
    unit = "LitData chunk"
    index_patterns = (rb'"data_format"', rb'"data_spec"', rb'"config"')

    def read_index_shards(self, split: str, folder: Path, index: Mapping[str, Any]) -> Iterator[Shard]:
        """Yields the chunks that an index names. Raises :class:`ValueError` and other errors for a missing chunk, an
        invalid index, nested items, unknown formats and encryption."""
        config = index["config"]
        if config.get("encryption"):
            raise ValueError("it is encrypted, which packstore does not read")
        unknown = next((form for form in config["data_format"] if form not in _TYPES), None)
        if unknown is not None:
            raise ValueError(f"found the format {unknown!r:.60}, which packstore does not know")
        names = _parse_names(config["data_spec"], len(config["data_format"]))
        types = {name: _TYPES[form] for name, form in zip(names, config["data_format"], strict=True)}
        for chunk in index["chunks"]:
            layout = (int(chunk["chunk_size"]), (None,) * len(types))
            yield Shard(split, find_named_file(folder, chunk["filename"]), types, layout)

    def decode(self, type: ValueType, data: bytes, form: None = None) -> Any:
        """Decodes a value: arrays with and without a header, other values as MDS does. Raises :class:`ValueError` if it
        is damaged."""
        if type.kind != ANY:
            return super().decode(type, data)
        if type.encoding != "numpy":  # one dimension, without a header
            return np.frombuffer(data, np.dtype(type.encoding).newbyteorder("<"))
        code, rank = np.frombuffer(data[:8], "<u4").tolist() if len(data) >= 8 else (len(NUMBERS), 0)
        if code >= len(NUMBERS) or rank > 8 or len(data) < 8 + 4 * rank:
            raise ValueError("found an array of an unknown dtype or shape")
        shape = np.frombuffer(data[8 : 8 + 4 * rank], "<u4").tolist()
        return to_array(data[8 + 4 * rank :], NUMBERS[code], shape)


def _parse_names(spec: str, count: int) -> list[str]:
    """Parses the names of an item's values from a ``data_spec``: keys of a dict, or positions in a tuple or list."""
    node = load_json(spec)[1]
    kind, children = str(node["type"]).rpartition(".")[2], node["children_spec"]
    names = [*map(str, load_json(node["context"]) if kind == "dict" else range(len(children)))]
    nested = any(child["children_spec"] for child in children)
    if nested or kind not in ("dict", "tuple", "list") or not len({*names}) == len(children) == count:
        raise ValueError(f"its items are {kind!r:.40} of {len(children)} values, expected a dict or tuple of {count}")
    return names


KIND = Kind("litdata", "chunks of LitData", LitdataSource.recognise, LitdataSource)
