"""Parquet with images in it, as on the Hugging Face Hub: one file, or a folder whose file names show the splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.exported_rows import open_with
from packstore.sources.huggingface.arrow_types import load_pyarrow
from packstore.sources.huggingface.card import Card, read_card
from packstore.sources.huggingface.exported import ExportedTables
from packstore.sources.huggingface.features import is_image_column, read_features
from packstore.sources.huggingface.open_table import (
    STEP_BYTES,
    OpenTable,
    RowGroup,
    TableOverview,
    pyarrow_errors,
)
from packstore.sources.huggingface.splits import (
    group_by_split,
    list_files_ending,
    list_folder_files,
    refuse_missing_shards,
)
from packstore.sources.huggingface.tables import HfTableSource
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.refusals import first_bytes

_MAGIC = b"PAR1"
_BUFFER = 1 << 20


class _ParquetFile(OpenTable):
    """Parquet file. Opening reads its metadata. Of a large row group, only some pages of each column are in memory."""

    def __init__(self, path: Path) -> None:
        parquet = load_pyarrow("pyarrow.parquet")
        metadata = parquet.read_metadata(path)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        large = any(group.total_byte_size > 2 * STEP_BYTES for group in groups)
        # Without a buffer pyarrow reads whole column chunks; with prefetching, all chunks of a row group.
        buffer_size = _BUFFER if large else 0
        self._file = parquet.ParquetFile(path, metadata=metadata, buffer_size=buffer_size, pre_buffer=False)

    def read_overview(self) -> TableOverview:
        """Summarises the table from the file's metadata. Reads a column of lists if its statistics do not exclude
        nulls."""
        metadata = self._file.metadata
        overview = TableOverview(self._file.schema_arrow)
        names = sorted(overview.schema.names, key=len, reverse=True)
        leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
        tops = [next((n for n in names if leaf.path == n or leaf.path.startswith(f"{n}.")), "") for leaf in leaves]
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            nbytes: dict[str, int] = dict.fromkeys(names, 0)
            for place, (leaf, top) in enumerate(zip(leaves, tops, strict=True)):
                nbytes[top] = nbytes.get(top, 0) + group.column(place).total_uncompressed_size
                self._summarise_chunk(overview, number, leaf, top, group.column(place))
            overview.groups.append(RowGroup(group.num_rows, nbytes))
        return overview

    def _summarise_chunk(self, overview: TableOverview, group: int, leaf: Any, top: str, chunk: Any) -> None:
        """Adds a column to an overview's sets if a chunk may have nulls, paths or negative numbers. Decides by
        statistics.

        Reads a chunk of lists if its statistics do not exclude nulls.

        Args:
            overview: Summary of the table; changed.
            group: Number of the row group.
            leaf: The chunk's column in Parquet's schema: ``top`` or a part of it.
            top: Name of the column.
            chunk: Metadata of the chunk.
        """
        statistics = chunk.statistics if chunk.is_stats_set else None
        nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
        if leaf.path in (f"{top}.path", f"{top}.list.element.path", f"{top}.list.item.path"):
            if nulls is None or nulls < chunk.num_values:
                overview.with_paths.add(top)
        elif (
            leaf.max_definition_level
            and nulls != 0
            and top not in overview.optional
            # For lists, the statistics also count empty ones.
            and (not leaf.max_repetition_level or self._has_nulls(group, top))
        ):
            overview.optional.add(top)
        # Times are INT64, too, and pyarrow does not convert nanoseconds to Python's times.
        is_number = str(leaf.physical_type).startswith("INT") and leaf.logical_type.type in ("NONE", "INT")
        if is_number and top == leaf.path:
            least = statistics.min if statistics is not None and statistics.has_min_max else -1
            if isinstance(least, int) and least < 0:
                overview.negative.add(top)

    def _has_nulls(self, group: int, column: str) -> bool:
        """Reads a column of a group to tell if a value is null."""
        return any(
            batch.column(0).null_count for batch in self._file.iter_batches(row_groups=[group], columns=[column])
        )

    def read_group(self, group: int, rows: int | None = None) -> Iterator[Any]:
        """Yields batches of at most ``rows`` rows; None sets no such limit.

        If the group has more than 32 MiB, a batch has at most about 16 MiB, too.
        """
        about = self._file.metadata.row_group(group)
        count, nbytes = about.num_rows, about.total_byte_size
        step = count if nbytes <= 2 * STEP_BYTES else count * STEP_BYTES // nbytes
        return iter(self._file.iter_batches(max(1, min(step, rows or step)), row_groups=[group]))

    def read_column(self, name: str) -> Iterator[Any]:
        """Yields a column's arrays, batch by batch."""
        return (batch.column(0) for batch in self._file.iter_batches(columns=[name]))

    def close(self) -> None:
        """Closes the file; rows that were read stay valid."""
        self._file.close(force=True)


class ParquetSource(HfTableSource):
    """Source for Parquet files, in the order of their names within a split. The dataset card, or else the names of
    files and folders, tell the splits.

    Opening reads the card. It raises :class:`SourceError` for a malformed card, and if numbered files are missing.
    """

    kind = "parquet"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self._card = read_card(path) if path.is_dir() else Card()
        super().__init__(path, options)

    def find_tables(self) -> Iterator[tuple[str, Path]]:
        """Yields split and path of each Parquet file. A single file has the split ``""``; in a folder, the card or the
        names tell the splits.

        Raises :class:`SourceError` if numbered files are missing. Raises it also for a file of two splits, and for a
        split of the card without files.
        """
        if self.path.is_file():
            yield "", self.path
            return
        names = [name for name in list_folder_files(self.path) if name.lower().endswith(".parquet")]
        refuse_missing_shards(self.path, names)
        for split, files in group_by_split(self.path, names, self._card).items():
            for name in files:
                yield split, self.path / name

    def open_table(self, path: Path) -> OpenTable:
        """Opens a Parquet file. Raises one of the exceptions in :func:`pyarrow_errors` if it is damaged."""
        return _ParquetFile(path)

    def card_features(self) -> Mapping[str, Any]:
        """Returns the features in the dataset card."""
        return self._card.features


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a Parquet file by its columns, and a folder by those of its first Parquet file; see
    :func:`_recognise_schema`.

    Returns ``NO`` for other files, and for folders with tars.
    """
    if path.is_file():
        return Certainty.NO if first_bytes(path, 4) != _MAGIC else _recognise_schema(path, alone=True)
    if not path.is_dir():
        return Certainty.NO
    files = [name for name in list_files_ending(path, ".parquet") if (path / name).is_file()]
    if not files or list_files_ending(path, ".tar", ".tar.gz", ".tgz"):
        return Certainty.NO
    alone = not list_files_ending(path, *IMAGE_SUFFIXES)
    return _recognise_schema(path / files[0], alone=alone)


def _recognise_schema(path: Path, *, alone: bool) -> Certainty:
    """Returns ``CERTAIN`` for a Parquet file whose schema has a column of images, else ``NO``.

    If the file is ``alone``, without images beside it, more is possible:

    - Columns of bytes count as images.
    - Other and damaged files are ``POSSIBLE``.
    - Without pyarrow, every file is ``CERTAIN``.
    """
    try:
        schema = load_pyarrow("pyarrow.parquet").read_schema(path)
        features = read_features(schema)
    except SourceError:
        return Certainty.CERTAIN if alone else Certainty.NO  # without pyarrow, opening raises the error
    except pyarrow_errors():
        return Certainty.POSSIBLE if alone else Certainty.NO
    if any(is_image_column(schema.field(name).type, features.get(name), only_files=not alone) for name in schema.names):
        return Certainty.CERTAIN
    return Certainty.POSSIBLE if alone else Certainty.NO


class ExportedParquet(ExportedTables, ParquetSource):
    """Export of packstore to Parquet."""


KIND = Kind(
    "parquet",
    "Parquet files with images in them, as Hugging Face's",
    _recognise,
    open_with(ParquetSource, ExportedParquet),
    takes_boxes=True,
)
