"""Parquet with images in it, as Hugging Face keeps datasets: one file, or a folder whose names tell the splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.exported_rows import open_with
from packstore.sources.huggingface.card import Card, read_card
from packstore.sources.huggingface.exported import ExportedTables
from packstore.sources.huggingface.features import features_of, is_image_column, load_pyarrow
from packstore.sources.huggingface.splits import check_whole, files_by_split, files_ending, folder_files
from packstore.sources.huggingface.tables import STEP_BYTES, Group, Overview, Table, TableSource, faults
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.refusals import first_bytes

_MAGIC = b"PAR1"
_BUFFER = 1 << 20


class _ParquetTable(Table):
    def __init__(self, path: Path) -> None:
        parquet = load_pyarrow("pyarrow.parquet")
        metadata = parquet.read_metadata(path)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        large = any(group.total_byte_size > 2 * STEP_BYTES for group in groups)
        # Without a buffer the whole chunk of a column is read at once; prefetched, all chunks of a row group.
        buffer_size = _BUFFER if large else 0
        self._file = parquet.ParquetFile(path, metadata=metadata, buffer_size=buffer_size, pre_buffer=False)

    def overview(self) -> Overview:
        metadata = self._file.metadata
        found = Overview(self._file.schema_arrow)
        names = sorted(found.schema.names, key=len, reverse=True)
        leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
        tops = [next((n for n in names if leaf.path == n or leaf.path.startswith(f"{n}.")), "") for leaf in leaves]
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            nbytes: dict[str, int] = dict.fromkeys(names, 0)
            for place, (leaf, top) in enumerate(zip(leaves, tops, strict=True)):
                chunk = group.column(place)
                nbytes[top] = nbytes.get(top, 0) + chunk.total_uncompressed_size
                statistics = chunk.statistics if chunk.is_stats_set else None
                nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
                if leaf.path in (f"{top}.path", f"{top}.list.element.path", f"{top}.list.item.path"):
                    if nulls is None or nulls < chunk.num_values:
                        found.with_paths.add(top)
                elif (
                    leaf.max_definition_level
                    and nulls != 0
                    and top not in found.optional
                    # Of lists, what is empty counts as well.
                    and (not leaf.max_repetition_level or self._has_nulls(number, top))
                ):
                    found.optional.add(top)
                if str(leaf.physical_type).startswith("INT") and top == leaf.path:
                    least = statistics.min if statistics is not None and statistics.has_min_max else -1
                    if isinstance(least, int) and least < 0:
                        found.negative.add(top)
            found.groups.append(Group(group.num_rows, nbytes))
        return found

    def _has_nulls(self, group: int, column: str) -> bool:
        return any(
            batch.column(0).null_count for batch in self._file.iter_batches(row_groups=[group], columns=[column])
        )

    def batches(self, group: int, rows: int | None = None) -> Iterator[Any]:
        about = self._file.metadata.row_group(group)
        count, nbytes = about.num_rows, about.total_byte_size
        step = count if nbytes <= 2 * STEP_BYTES else count * STEP_BYTES // nbytes
        return iter(self._file.iter_batches(max(1, min(step, rows or step)), row_groups=[group]))

    def column(self, name: str) -> Iterator[Any]:
        return (batch.column(0) for batch in self._file.iter_batches(columns=[name]))

    def close(self) -> None:
        self._file.close(force=True)


class ParquetSource(TableSource):
    """Parquet files. Their order in a split is that of their names."""

    kind = "parquet"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self._card = read_card(path) if path.is_dir() else Card()
        super().__init__(path, options)

    def find(self) -> Iterator[tuple[str, Path]]:
        if self.path.is_file():
            yield "", self.path
            return
        names = [name for name in folder_files(self.path) if name.lower().endswith(".parquet")]
        check_whole(self.path, names)
        for split, files in files_by_split(self.path, names, self._card).items():
            for name in files:
                yield split, self.path / name

    def open_table(self, path: Path) -> Table:
        return _ParquetTable(path)

    def features(self) -> Mapping[str, Any]:
        """Returns the features that the card declares."""
        return self._card.features


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Parquet with a column of images or bytes; or any, where there is nothing else."""
    if path.is_file():
        return Certainty.NO if first_bytes(path, 4) != _MAGIC else _certainty(path, alone=True)
    if not path.is_dir():
        return Certainty.NO
    found = [name for name in files_ending(path, ".parquet") if (path / name).is_file()]
    if not found or files_ending(path, ".tar", ".tar.gz", ".tgz"):
        return Certainty.NO
    alone = not files_ending(path, *IMAGE_SUFFIXES)
    return max(_certainty(path / name, alone=alone) for name in found[:1])


def _certainty(path: Path, *, alone: bool) -> Certainty:
    """What the schema of a file says; ``alone``: there are no images beside it."""
    try:
        schema = load_pyarrow("pyarrow.parquet").read_schema(path)
        features = features_of(schema)
    except SourceError:
        return Certainty.CERTAIN if alone else Certainty.NO  # pyarrow is missing, which opening says
    except faults():
        return Certainty.POSSIBLE if alone else Certainty.NO
    if any(is_image_column(schema.field(name).type, features.get(name), only_files=not alone) for name in schema.names):
        return Certainty.CERTAIN
    return Certainty.POSSIBLE if alone else Certainty.NO


class ExportedParquet(ExportedTables, ParquetSource):
    """An export of packstore."""


KIND = Kind(
    "parquet",
    "Parquet files with images in them, as Hugging Face's",
    _recognise,
    open_with(ParquetSource, ExportedParquet),
    takes_boxes=True,
)
