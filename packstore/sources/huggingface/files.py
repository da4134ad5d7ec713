"""Parquet with images in it, as on the Hugging Face Hub, and Arrow as ``datasets.Dataset.save_to_disk`` writes it.

Parquet is one file, or a folder whose file names show the splits. Of saved datasets, ``dataset_dict.json`` names the
splits, ``state.json`` the files of a split. These have Arrow's IPC format, as streams or as files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.columns import NUMPY_DTYPE, Column
from packstore.core.errors import SourceError, printable
from packstore.core.fields import Bytes, Image, Images
from packstore.core.files import Location
from packstore.sources import huggingface as hf
from packstore.sources.archives import open_required_tree, open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.exported import ExportedRows, open_with
from packstore.sources.huggingface import columns as hf_columns
from packstore.sources.huggingface import splits as hf_splits
from packstore.sources.huggingface.columns import CellReader, Cells, TableColumn, TableFacts, TableFile
from packstore.sources.huggingface.tables import HfTableSource, OpenTable, RowGroup
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.records import read_index, refuse_missing_shards
from packstore.sources.refusals import first_bytes
from packstore.stores.export_manifest import MANIFEST_FILE, StoredBytes, stays_in_folder

STEP_BYTES = 16 << 20
"""About the bytes of a group of Parquet that are decoded at a time."""
_BUFFER = 1 << 20
_DATASET_DICT, _STATE = "dataset_dict.json", "state.json"
_PARQUET, _ARROW, _STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_MAX_STATE = 16 << 20


class _ArrowFile(OpenTable):
    """Arrow file mapped into memory: only rows that are read take memory.

    A read beyond the end of a mapped file ends the process. Therefore the size of the file is checked again before
    reads.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, path.stat().st_size
        self._pa, self._ipc = hf.load_pyarrow(), hf.load_pyarrow("pyarrow.ipc")
        self._file = self._pa.memory_map(str(path))
        try:
            self._is_stream = self._size == 0 or first_bytes(path, len(_ARROW)) != _ARROW
            self._base = self._file.read_buffer(1).address
            self._file.seek(0)
            self._reader = (self._ipc.open_stream if self._is_stream else self._ipc.open_file)(self._file)
            self.schema = self._reader.schema
        except BaseException:
            self._file.close()
            raise

    @cached_property
    def _batches(self) -> Sequence[Any]:
        """Record batches, in the mapped memory."""
        self.require_readable()
        if self._is_stream:
            return [*self._reader]
        return [self._reader.get_batch(number) for number in range(self._reader.num_record_batches)]

    def require_readable(self) -> None:
        """Raises :class:`ValueError` if the file has become shorter since it was opened."""
        size = self._path.stat().st_size
        if size < self._size:
            raise ValueError(f"{printable(str(self._path))} was cut from {self._size} to {size} bytes meanwhile")

    def read_groups(self, facts: TableFacts) -> list[RowGroup]:
        """Reads all record batches, without checking their values; each is a group. Finds the columns
        with nulls, paths and negative labels."""
        groups = []
        features = hf.read_features(self.schema)
        for batch in self._batches:
            batch.validate()
            columns = dict(zip(self.schema.names, batch.columns, strict=True))
            for name, column in columns.items():
                self._summarise_column(facts, name, column, features.get(name))
            groups.append(RowGroup(len(batch), {name: column.nbytes for name, column in columns.items()}))
        return groups

    def _summarise_column(self, facts: TableFacts, name: str, column: Any, feature: Any) -> None:
        """Adds a column to the facts if its array has nulls, paths or negative labels."""
        parts = dict(zip(column.type.names, column.flatten(), strict=True)) if hf.is_file_struct(column.type) else {}
        if column.null_count or (parts and parts["bytes"].null_count):
            facts.optional.add(name)
        if "path" in parts and parts["path"].null_count < len(column):
            facts.with_paths.add(name)
        if hf.is_label(name, column.type, feature):
            least = hf.load_pyarrow("pyarrow.compute").min(column).as_py()
            if least is not None and least < 0:
                facts.negative.add(name)

    def read_group(self, group: int) -> Iterator[Any]:
        """Yields the record batch ``group``, validated."""
        self.require_readable()
        batch = self._batches[group]
        batch.validate(full=True)
        yield batch

    def read_column(self, name: str) -> Iterator[Any]:
        """Yields a column's array of each record batch."""
        return (batch.column(name) for batch in self._batches)

    def locate(self, address: int) -> Location | None:
        """Converts a memory address to a place in the mapped file; None outside of it."""
        inside = 0 <= address - self._base < self._size
        return Location(str(self._path.absolute()), address - self._base) if inside else None

    def close(self) -> None:
        """Closes the file; rows that were read stay valid."""
        self.__dict__.pop("_batches", None)
        self._reader = None
        self._file.close()


class _ParquetFile(OpenTable):
    """Parquet file. Opening reads its metadata. Of a large row group, only some pages of each column are in memory."""

    def __init__(self, path: Path) -> None:
        parquet = hf.load_pyarrow("pyarrow.parquet")
        metadata = parquet.read_metadata(path)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        large = any(group.total_byte_size > 2 * STEP_BYTES for group in groups)
        # Without a buffer pyarrow reads whole column chunks; with prefetching, all chunks of a row group.
        buffer_size = _BUFFER if large else 0
        self._file = parquet.ParquetFile(path, metadata=metadata, buffer_size=buffer_size, pre_buffer=False)
        self.schema = self._file.schema_arrow

    def read_groups(self, facts: TableFacts) -> list[RowGroup]:
        """Returns the row groups from the file's metadata. Reads a column of lists if its statistics do not exclude
        nulls."""
        metadata = self._file.metadata
        groups = []
        names = sorted(self.schema.names, key=len, reverse=True)
        leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
        tops = [next((n for n in names if leaf.path == n or leaf.path.startswith(f"{n}.")), "") for leaf in leaves]
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            nbytes: dict[str, int] = dict.fromkeys(names, 0)
            for place, (leaf, top) in enumerate(zip(leaves, tops, strict=True)):
                nbytes[top] = nbytes.get(top, 0) + group.column(place).total_uncompressed_size
                self._summarise_chunk(facts, number, leaf, top, group.column(place))
            groups.append(RowGroup(group.num_rows, nbytes))
        return groups

    def _summarise_chunk(self, facts: TableFacts, group: int, leaf: Any, top: str, chunk: Any) -> None:
        """Adds a column to ``facts`` if its chunk in row group ``group`` may have nulls, paths or negative numbers."""
        # ``leaf`` is the chunk's column in Parquet's schema: the column ``top`` or a part of it.
        statistics = chunk.statistics if chunk.is_stats_set else None
        nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
        if leaf.path == f"{top}.path":
            if nulls is None or nulls < chunk.num_values:
                facts.with_paths.add(top)
        elif (
            leaf.max_definition_level
            and nulls != 0
            and top not in facts.optional
            # For lists, the statistics also count empty ones.
            and (not leaf.max_repetition_level or any(each.null_count for each in self.read_column(top, [group])))
        ):
            facts.optional.add(top)
        # Times are INT64, too, and pyarrow does not convert nanoseconds to Python's times.
        is_number = str(leaf.physical_type).startswith("INT") and leaf.logical_type.type in ("NONE", "INT")
        if is_number and top == leaf.path:
            least = statistics.min if statistics is not None and statistics.has_min_max else -1
            if isinstance(least, int) and least < 0:
                facts.negative.add(top)

    def read_group(self, group: int) -> Iterator[Any]:
        """Yields a single batch. If the group has more than 32 MiB, yields batches of about 16 MiB."""
        about = self._file.metadata.row_group(group)
        count, nbytes = about.num_rows, about.total_byte_size
        step = count if nbytes <= 2 * STEP_BYTES else count * STEP_BYTES // nbytes
        return iter(self._file.iter_batches(max(1, step), row_groups=[group]))

    def read_column(self, name: str, groups: Sequence[int] | None = None) -> Iterator[Any]:
        """Yields a column's arrays, batch by batch; None reads all groups."""
        return (batch.column(0) for batch in self._file.iter_batches(row_groups=groups, columns=[name]))

    def close(self) -> None:
        """Closes the file; rows that were read stay valid."""
        self._file.close(force=True)


class ArrowSource(HfTableSource):
    """Source for the folder of a saved ``Dataset`` or ``DatasetDict``, or for one Arrow file. Splits keep their names.

    Opening raises :class:`SourceError` for a dataset of an older version that has indices.
    """

    kind = "arrow"

    def find_tables(self) -> Iterator[tuple[str, Path]]:
        """Yields split and path of each file that ``state.json`` names. For an Arrow file, yields only this file, with
        the split ``""``.

        Raises :class:`SourceError` if a list of files or splits is damaged, or names a path outside its folder. Raises
        it also for an old version with indices.
        """
        if self.path.is_file():
            yield "", self.path
            return
        named = self.path / _DATASET_DICT
        for split in _read_names(named, "splits") if named.is_file() else [""]:
            place = self.path / split / _STATE
            if read_index(place, _MAX_STATE).get("_indices_data_files"):
                raise SourceError(
                    f"{printable(str(place.parent))} has indices of an older version of datasets: flatten and save it "
                    "again"
                )
            for name in _read_names(place, "_data_files"):
                yield split, place.parent / name

    def files(self) -> Iterator[Path]:
        """Yields the data files, and ``state.json`` of each split."""
        yield from super().files()
        if self.path.is_dir():
            yield from sorted({file.parent / _STATE for file in super().files()})

    def open_table(self, path: Path) -> OpenTable:
        """Opens an Arrow file. Raises one of the exceptions in :func:`pyarrow_errors` if it is damaged."""
        return _ArrowFile(path)

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the image of a row in its file; None if the row has no bytes of an image."""
        with suppress(ValueError):  # reported when it is read
            block = self.find_block(ref)
            number = next(number for number, column in enumerate(self.columns) if column.name == "image")
            file = block.cells[number](ref[2] - block.first)
            if isinstance(block.table, _ArrowFile) and isinstance(file, TableFile) and file.address:
                return block.table.locate(file.address)
        return None


def _read_names(index: Path, member: str) -> list[str]:
    """Reads the names in a list of a JSON file: texts, or objects with ``filename``."""
    items = read_index(index, _MAX_STATE).get(member)
    names = []
    for each in items if isinstance(items, list) else [None]:
        name = each.get("filename") if isinstance(each, dict) else each
        if not isinstance(name, str) or not name or not stays_in_folder(name):
            raise SourceError(f"{printable(str(index))} has no usable list {member} of names within its folder")
        names.append(name)
    return names


def _recognise_arrow(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder that ``save_to_disk`` wrote, an Arrow file, and an Arrow stream called ``.arrow``."""
    if path.is_dir():
        one = (path / _STATE).is_file() and (path / "dataset_info.json").is_file()
        return Certainty.CERTAIN if one or (path / _DATASET_DICT).is_file() else Certainty.NO
    arrow = path.suffix.lower() == ".arrow" and first_bytes(path, 4) == _STREAM
    return Certainty.CERTAIN if arrow or first_bytes(path, 6) == _ARROW else Certainty.NO


class ParquetSource(HfTableSource):
    """Source for Parquet files, in the order of their names within a split. The dataset card, or else the names of
    files and folders, tell the splits.

    Opening reads the card. It raises :class:`SourceError` for a malformed card, and if numbered files are missing.
    """

    kind = "parquet"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self._card = hf_splits.read_card(open_required_tree(path), path) if path.is_dir() else hf_splits.Card()
        super().__init__(path, options)

    def find_tables(self) -> Iterator[tuple[str, Path]]:
        """Yields split and path of each Parquet file.

        A single file has the split ``""``; in a folder, the card or the names tell the splits. Raises
        :class:`SourceError` if numbered files are missing, for a file of two splits, and for a split of the card
        without files.
        """
        if self.path.is_file():
            yield "", self.path
            return
        tree = open_required_tree(self.path)
        names = [*hf_splits.list_files(tree, ".parquet")]
        if not self.options.named:
            refuse_missing_shards(self.path, self.kind, [self.path / name for name in names])
        for split, files in hf_splits.group_by_split(tree, names, self._card).items():
            for name in files:
                yield split, self.path / name

    def open_table(self, path: Path) -> OpenTable:
        """Opens a Parquet file. Raises one of the exceptions in :func:`pyarrow_errors` if it is damaged."""
        return _ParquetFile(path)


def _recognise_parquet(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a Parquet file with a column of images, and a folder whose first Parquet file is one."""
    if path.is_file():
        if first_bytes(path, 4) != _PARQUET:
            return Certainty.NO
        file, alone = path, True
    else:
        tree = open_tree(path) if path.is_dir() else None
        if tree is None:
            return Certainty.NO
        names = sorted(hf_splits.list_files(tree, ".parquet", levels=hf_splits.LEVELS))
        names = [name for name in names if (path / name).is_file()]  # pyarrow would wait for a pipe
        # The images are in the tars.
        if not names or any(hf_splits.list_files(tree, ".tar", ".tar.gz", ".tgz", levels=hf_splits.LEVELS)):
            return Certainty.NO
        # A file without images beside it may also have them as columns of bytes.
        file, alone = path / names[0], not any(hf_splits.list_files(tree, *IMAGE_SUFFIXES, levels=hf_splits.LEVELS))
    otherwise = Certainty.POSSIBLE if alone else Certainty.NO
    try:
        schema = hf.load_pyarrow("pyarrow.parquet").read_schema(file)
        features = hf.read_features(schema)
    except SourceError:
        return Certainty.CERTAIN if alone else Certainty.NO  # without pyarrow, opening raises the error
    except hf.pyarrow_errors():
        return otherwise
    types = ((schema.field(name).type, features.get(name)) for name in schema.names)
    return Certainty.CERTAIN if any(hf.is_image_column(*each, only_files=not alone) for each in types) else otherwise


class ExportedParquet(ExportedRows, ParquetSource):
    """Export of packstore to Parquet. The export manifest, ``packstore.json``, lists its columns."""

    def _declare_columns(self, facts: TableFacts) -> list[TableColumn]:
        """Returns the image and the columns that the export manifest lists as held by the tables."""
        held, names = self.export_manifest.held, self._first_batch.schema.names
        missing = next((name for name in ("image", *held) if name not in names), None)
        if missing is not None:
            raise self._changed_error(f"the tables have no column {missing!r}, which {MANIFEST_FILE} names")
        return [TableColumn("image", "image", Image(), hf_columns.file_cells)] + [
            TableColumn(each.name, each.name, Images() if each.form == "files" else Bytes(), _choose_cell_reader(each))
            for each in self.export_manifest.columns
            if each.name in held
        ]

    def _find_text_classes(self) -> None:
        """Returns None: the export manifest has the classes."""

    def _find_objects(self) -> None:
        """Returns None: the export manifest has the columns of boxes."""


def _choose_cell_reader(column: Column) -> CellReader:
    """Returns a reader of cells that convert values to the form in which the store holds them."""
    if column.form in ("file", "files"):
        return hf_columns.file_cells if column.form == "file" else hf_columns.file_list_cells
    if column.form in ("text", "bytes"):
        return hf_columns.scalar_cells(lambda scalar: StoredBytes(scalar.as_buffer()) if scalar.is_valid else None)
    dtype = NUMPY_DTYPE[column.dtype]
    ragged = column.kind == "ragged"
    if not ragged and not column.shape:
        return lambda array: _number_cells(array, dtype)

    def numbers(scalar: Any) -> Any:
        values = hf_columns.flatten_numbers(scalar)
        if values is None:
            return None
        cell = values.reshape((-1, *column.shape) if ragged else column.shape)
        # Boxes are kept unchecked, as they were in the store.
        return StoredBytes(cell.tobytes()) if ragged and column.classes is None and cell.dtype == dtype else cell

    return hf_columns.scalar_cells(numbers)


def _number_cells(array: Any, dtype: np.dtype[Any]) -> Cells:
    """Returns cells that read a number, with all its bits if the array has this dtype; null becomes None."""
    if dtype == np.bool_ or array.type != hf.load_pyarrow().from_numpy_dtype(dtype):
        return hf_columns.python_cells(array)
    # Conversion to Python's numbers would change the bits of a NaN.
    values = np.frombuffer(array.buffers()[1], dtype)[array.offset :]
    return lambda row: values[row] if array[row].is_valid else None


ARROW = Kind("arrow", "Arrow files of datasets.save_to_disk", _recognise_arrow, ArrowSource, takes_boxes=True)
PARQUET = Kind(
    "parquet",
    "Parquet files with images in them, as Hugging Face's",
    _recognise_parquet,
    open_with(ParquetSource, ExportedParquet),
    takes_boxes=True,
)
