"""Parquet files in Hugging Face's layout: ``data/train-00000-of-00002.parquet`` and a card, ``README.md``.

Features are in the schema's metadata, as ``datasets`` writes them. Images are plain-encoded and uncompressed, in small
row groups, so that a single image can be read at its offset.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Column
from packstore.core.errors import UsageError
from packstore.core.fields import BOXES_ARE
from packstore.core.manifest import Manifest
from packstore.exports.base import Export, Record, shorten_name
from packstore.sources.yamltext import format_yaml_string
from packstore.stores import Reader
from packstore.stores.export_manifest import ExportManifest

CARD, DATA = "README.md", "data"
_GROUP_BYTES, _GROUP_ROWS = 16 << 20, 100
"""A row group ends at ``_GROUP_BYTES`` of images, or at ``_GROUP_ROWS`` rows if they have a sixteenth of the bytes."""


class ParquetExport(Export):
    """A folder ``data`` of Parquet files, and a dataset card with features and splits. Keeps only the file names of
    keys.

    Raises :class:`UsageError` if pyarrow is not installed.
    """

    name = "parquet"
    help = "Parquet files and a card, as on the Hugging Face hub"
    suffixes = (".parquet",)
    source = "parquet"
    shard_bytes: ClassVar[int | None] = 500 << 20

    def __init__(self, path: Path, manifest: Manifest, reader: Reader, *, recoded: bool) -> None:
        super().__init__(path, manifest, reader, recoded=recoded)
        # datasets has no type for bfloat16, for arrays of varying shape, and for shapes with a 0.
        self._held = [c for c in self.columns if c.layout is None and c.dtype != "bfloat16" and 0 not in c.shape]
        self._schema = _make_schema(manifest.image, self._held)

    def exact_columns(self) -> Sequence[str]:
        """Returns the columns that have an Arrow type of ``datasets``."""
        return [column.name for column in self._held]

    def losses(self) -> Sequence[str]:
        """Returns a text on folders in keys, and one for each name of a split that ``datasets`` does not accept."""
        renamed = {own: name for own, name in self._split_names.items() if own not in ("", name)}
        return [
            "folders in keys: only file names are kept",
            *(f"the split name {own!r}: it becomes {name!r}" for own, name in renamed.items()),
        ]

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> str:
        """Writes a Parquet file in row groups. Its name lacks the number of shards until :meth:`finish`.

        Marks text that is not UTF-8 as inexact.
        """
        (self.path / DATA).mkdir(exist_ok=True)
        file = f"{DATA}/{self._split_names[split]}-{number:05}.parquet"
        inside = {"file": ".bytes", "files": ".list.element.bytes"}
        files = [column.name + inside[column.form] for column in self._held if column.form in inside]
        named = [name for name in _list_leaf_paths(self._schema) if name not in ("image.bytes", *files)]
        with self.open_files(file) as (out,):
            writer = _import_pyarrow("pyarrow.parquet").ParquetWriter(
                out, self._schema, compression="none", use_dictionary=False, write_statistics=named
            )
            try:
                for rows in self._group_rows(records):
                    writer.write_batch(self._make_batch(rows))
                writer.close()
            finally:
                writer.is_open = False  # after an error, garbage collection would write the file's end
        return file

    def _group_rows(self, records: Iterable[Record]) -> Iterator[list[Record]]:
        """Yields the records of each row group, and marks text that is not UTF-8 as inexact."""
        rows: list[Record] = []
        nbytes = 0
        for record in records:
            for column in self._held:
                if column.form == "text" and not _is_utf8(record.stored[column.name]):
                    record.inexact.add(column.name)
            rows.append(record)
            nbytes += len(record.image)
            if nbytes >= _GROUP_BYTES or (len(rows) >= _GROUP_ROWS and nbytes >= _GROUP_BYTES // 16):
                yield rows
                rows, nbytes = [], 0
        if rows:
            yield rows

    def _make_batch(self, rows: Sequence[Record]) -> Any:
        """Converts the records of a row group to Arrow."""
        arrays = [_make_file_array([record.image for record in rows], [_file_name(record) for record in rows])]
        for column in self._held:
            there = [record.has_value(column.name) for record in rows]
            arrays.append(_make_arrow_array(column, [record.stored[column.name] for record in rows], there))
        return _import_pyarrow("pyarrow").RecordBatch.from_arrays(arrays, schema=self._schema)

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Renames the shards to ``…-of-00002.parquet``, also in the export manifest. Then does as the base."""
        counts = Counter(shard.split for shard in export_manifest.shards)
        shards = []
        for shard in export_manifest.shards:
            file = shard.file.replace(".parquet", f"-of-{counts[shard.split]:05}.parquet")
            (self.path / shard.file).rename(self.path / file)
            shards.append(shard._replace(file=file))
        return super().finish(replace(export_manifest, shards=tuple(shards)), lines)

    def documents(self, export_manifest: ExportManifest, lines: Path | None) -> Mapping[str, Iterable[bytes]]:
        """Returns the dataset card, ``README.md``."""
        return {CARD: [self._format_card(export_manifest).encode("utf-8", "replace")]}

    def undo_finish(self) -> None:
        """Renames ``…-of-00002.parquet`` back to names without the number of shards."""
        for file in (self.path / DATA).glob("*-of-*.parquet"):
            file.rename(file.with_name(re.sub(r"-of-\d+\.parquet$", ".parquet", file.name)))

    @cached_property
    def _split_names(self) -> dict[str, str]:
        """Names of splits that ``datasets`` accepts, of letters, digits and ``_``, by split."""
        return self.rename_splits(lambda split: shorten_name(re.sub(r"\W", "_", split, flags=re.ASCII)) or "_")

    def _format_card(self, export_manifest: ExportManifest) -> str:
        """Returns the text of ``README.md``: features, splits and sizes, in the form of ``datasets``."""
        splits = []
        for own, name in self._split_names.items():
            its = [shard for shard in export_manifest.shards if shard.split == own]
            size = sum((self.path / shard.file).stat().st_size for shard in its)
            splits.append({"name": name, "num_bytes": size, "num_examples": sum(shard.records for shard in its)})
        size = sum(split["num_bytes"] for split in splits)  # type: ignore[misc]
        files = [{"split": name, "path": f"{DATA}/{name}-*"} for name in self._split_names.values()]
        described = _describe_features(self._held).items()
        features = [{"name": name, **_to_card_feature(feature)} for name, feature in described]
        info = {"features": features, "splits": splits, "download_size": size, "dataset_size": size}
        configs = [{"config_name": "default", "data_files": files}]
        head = _format_yaml({"configs": configs, "dataset_info": info})
        return f"---{head}\n---\n\nExported by packstore: {self.manifest.records:,} records.\n"


def _file_name(record: Record) -> str:
    """Returns the file name at the end of a record's key, in valid UTF-8."""
    return record.key.rpartition("/")[2].encode("utf-8", "replace").decode("utf-8")


def _is_utf8(raw: Any) -> bool:
    """Tells if bytes are valid UTF-8."""
    try:
        bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _make_schema(image: Column, columns: Sequence[Column]) -> Any:
    """Makes the Arrow schema of the image and of ``columns``, with the metadata that ``datasets`` reads."""
    pa, features = _import_pyarrow("pyarrow"), _describe_features(columns)
    fields = []
    for column in (image, *columns):
        boxes = {BOXES_ARE: b"xyxy"} if column.coordinates == "xyxy" else None
        fields.append(pa.field(column.name, _to_arrow_type(features[column.name], column.dtype), metadata=boxes))
    described = json.dumps({"info": {"features": features}})
    return pa.schema(fields, {b"huggingface": described.encode("ascii")})


def _describe_features(columns: Sequence[Column]) -> dict[str, Any]:
    """Returns the features of the image and of ``columns``, in the form of ``datasets.Features.to_dict``."""
    return {"image": {"_type": "Image"}} | {column.name: _describe_feature(column) for column in columns}


def _describe_feature(column: Column) -> dict[str, Any]:
    """Returns the feature of a column, in the form of ``datasets.Features.to_dict``."""
    feature: dict[str, Any] = {"dtype": column.dtype, "_type": "Value"}
    if column.form != "numbers":
        dtype = "binary" if column.form == "bytes" else "string"
        feature = {"dtype": dtype, "_type": "Value"} if column.form in ("text", "bytes") else {"_type": "Image"}
        return {"feature": feature, "_type": "List"} if column.form == "files" else feature
    if column.classes is not None:
        names = [name.encode("utf-8", "replace").decode("utf-8") for name in column.classes]
        feature = {"names": names, "_type": "ClassLabel"}
    for length in reversed(column.shape):
        feature = {"feature": feature, "length": length, "_type": "List"}
    return {"feature": feature, "_type": "List"} if column.kind == "ragged" else feature


def _to_arrow_type(feature: Mapping[str, Any], dtype: str) -> Any:
    """Returns the Arrow type of a feature, whose numbers are of the column's ``dtype``."""
    pa = _import_pyarrow("pyarrow")
    if feature["_type"] == "List":
        return pa.list_(_to_arrow_type(feature["feature"], dtype))
    if feature["_type"] == "Image":  # images that are arrays become PNG files
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    named = {"string": pa.string(), "binary": pa.binary(), "bool": pa.bool_()}
    return named.get(feature.get("dtype", dtype)) or pa.from_numpy_dtype(NUMPY_DTYPE[dtype])


def _to_card_feature(feature: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a feature to its form in a dataset card, like ``datasets.Features._to_yaml_list``."""
    kind = feature["_type"]
    if kind == "List":
        inner = _to_card_feature(feature["feature"])
        rest = {"length": feature["length"]} if "length" in feature else {}
        return {"list": inner.get("dtype", inner), **rest}
    if kind == "ClassLabel":
        names = {str(number): name for number, name in enumerate(feature["names"])}
        return {"dtype": {"class_label": {"names": names}}}
    return {"dtype": "image" if kind == "Image" else feature["dtype"]}


def _format_yaml(value: Any, indent: str = "\n") -> str:
    """Formats dicts, lists, strings and numbers as the YAML that follows a name and its colon."""
    # ``indent`` is a line break and the spaces before each line.
    if isinstance(value, dict):
        named = ((format_yaml_string(name), _format_yaml(each, f"{indent}  ")) for name, each in value.items())
        return "".join(f"{indent}{name}:{text}" for name, text in named)
    if isinstance(value, list):
        return "".join(f"{indent}- {_format_yaml(each, f'{indent}  ').lstrip()}" for each in value)
    return f" {format_yaml_string(value) if isinstance(value, str) else value}"


def _make_arrow_array(column: Column, raw: Sequence[Any], there: Sequence[bool]) -> Any:
    """Converts stored values of a column to an Arrow array, with null for a value that is not ``there``."""
    pa = _import_pyarrow("pyarrow")
    missing = ~np.array(there, bool)
    absent = pa.array(missing) if missing.any() else None
    if column.form == "files":
        pairs = zip(raw, there, strict=True)
        lists = [column.traits.files(column, each) if is_there else () for each, is_there in pairs]
        offsets = np.cumsum([0, *map(len, lists)])
        return _make_lists(offsets, _make_file_array([*chain.from_iterable(lists)]), absent)
    if column.form != "numbers":
        given = [bytes(each) if is_there else None for each, is_there in zip(raw, there, strict=True)]
        if column.form == "text":
            return pa.array([None if each is None else each.decode("utf-8", "replace") for each in given], pa.string())
        return _make_file_array(given) if column.form == "file" else pa.array(given, pa.binary())
    dtype = NUMPY_DTYPE[column.dtype]
    if column.kind == "fixed":
        values = np.array(raw, dtype).reshape(-1)
        if not column.shape:
            return pa.array(values, mask=missing)
        counts, inside = [column.shape[0]] * len(raw), column.shape[1:]
    else:
        values = np.frombuffer(b"".join(raw), dtype)
        counts, inside = [len(each) // column.record_nbytes for each in raw], column.shape
    array = pa.array(values)
    for length in reversed(inside):
        array = _make_lists(np.arange(0, len(array) + 1, length), array, None)
    return _make_lists(np.cumsum([0, *counts]), array, absent)


def _make_lists(offsets: NDArray[np.int64], values: Any, absent: Any) -> Any:
    """Makes an Arrow array of lists that begin and end at ``offsets``, and are null where ``absent`` is True."""
    pa = _import_pyarrow("pyarrow")
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, mask=absent)


def _make_file_array(files: Sequence[Any], names: Sequence[str | None] | None = None) -> Any:
    """Converts files to an Arrow array of ``datasets.Image``, with null for None."""
    pa = _import_pyarrow("pyarrow")
    data = pa.array(files, pa.binary())
    paths = pa.array([None] * len(files) if names is None else names, pa.string())
    return pa.StructArray.from_arrays([data, paths], ["bytes", "path"], mask=data.is_null())


def _list_leaf_paths(schema: Any) -> list[str]:
    """Returns the Parquet paths of all leaf columns, such as ``boxes.list.element``."""
    paths = []
    for name, type in zip(schema.names, schema.types, strict=True):
        while type.num_fields == 1:
            name, type = f"{name}.list.element", type.value_type
        paths += [f"{name}.bytes", f"{name}.path"] if type.num_fields else [name]
    return paths


def _import_pyarrow(module: str) -> Any:
    """Imports a module of pyarrow."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError("writing Parquet needs pyarrow: pip install 'packstore[parquet]'") from None
