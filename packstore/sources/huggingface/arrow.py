"""Arrow as ``datasets.Dataset.save_to_disk`` writes it: one split, or a folder of splits.

``dataset_dict.json`` names the splits, ``state.json`` the files of a split. These have Arrow's IPC format, as streams
or as files.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.files import read_bounded
from packstore.core.plainjson import load_json
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.huggingface.arrow_types import is_list, load_pyarrow
from packstore.sources.huggingface.features import is_label, read_features
from packstore.sources.huggingface.open_table import OpenTable, RowGroup, TableOverview
from packstore.sources.huggingface.tables import HfTableSource
from packstore.sources.refusals import first_bytes
from packstore.stores.link_files import Location

_DATASET_DICT, _STATE = "dataset_dict.json", "state.json"
_MAGIC = b"ARROW1"
_STREAM = b"\xff\xff\xff\xff"
_MAX_BYTES = 16 << 20


class _ArrowFile(OpenTable):
    """Arrow file mapped into memory: only rows that are read take memory.

    Opening raises :class:`ValueError` for a stream with dictionary-encoded columns. A read beyond the end of a mapped
    file ends the process. Therefore the size of the file is checked again before reads.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, path.stat().st_size
        self._pa, self._ipc = load_pyarrow(), load_pyarrow("pyarrow.ipc")
        self._file = self._pa.memory_map(str(path))
        try:
            self._random = self._size > 0 and first_bytes(path, len(_MAGIC)) == _MAGIC
            self._reader = self._ipc.open_file(self._file) if self._random else self._ipc.open_stream(self._file)
            self._schema = self._reader.schema
            if not self._random and any(self._pa.types.is_dictionary(type) for type in self._schema.types):
                raise ValueError("has dictionary-encoded columns in a stream, which packstore does not read")
        except BaseException:
            self._file.close()
            raise
        self._batch_starts = array("q")
        position = self._file.tell()
        self._file.seek(0)
        self._base = self._file.read_buffer(1).address
        self._file.seek(position)

    def require_readable(self) -> None:
        """Raises :class:`ValueError` if the file has become shorter since it was opened."""
        size = self._path.stat().st_size
        if size < self._size:
            raise ValueError(f"{printable(str(self._path))} was cut from {self._size} to {size} bytes meanwhile")

    def read_overview(self) -> TableOverview:
        """Reads all record batches, without checking their values; each is a group of the overview. Finds the columns
        with nulls, paths and negative labels."""
        overview = TableOverview(self._schema)
        features = read_features(self._schema)
        for batch in self._read_batches():
            batch.validate()
            for name, column in zip(self._schema.names, batch.columns, strict=True):
                self._summarise_column(overview, name, column, features.get(name))
            nbytes = {name: column.nbytes for name, column in zip(self._schema.names, batch.columns, strict=True)}
            overview.groups.append(RowGroup(len(batch), nbytes))
        return overview

    def _summarise_column(self, overview: TableOverview, name: str, column: Any, feature: Any) -> None:
        """Adds to an overview what the values of one column contain: nulls, paths or negative labels.

        The overview has a set of column names for each of these. ``column``: array of the values."""
        parts = {}
        inner = column.flatten() if is_list(column.type) else column
        if self._pa.types.is_struct(inner.type):
            parts = {inner.type.field(n).name: part for n, part in enumerate(inner.flatten())}
        has_files = parts.keys() <= {"bytes", "path"} and "bytes" in parts
        if column.null_count or (has_files and parts["bytes"].null_count):
            overview.optional.add(name)
        if "path" in parts and parts["path"].null_count < len(inner):
            overview.with_paths.add(name)
        if is_label(name, column.type, feature):
            least = load_pyarrow("pyarrow.compute").min(column).as_py()
            if least is not None and least < 0:
                overview.negative.add(name)

    def read_group(self, group: int, rows: int | None = None) -> Iterator[Any]:
        """Yields the record batch ``group``, validated, as a whole: ``rows`` has no effect.

        The first call for a stream reads all batches to find their positions. Raises :class:`ValueError` if the file
        became shorter.
        """
        self.require_readable()
        if self._random:
            batch = self._reader.get_batch(group)
        else:
            if not self._batch_starts:
                for _ in self._read_batches():
                    continue
            self._file.seek(self._batch_starts[group])
            batch = self._ipc.read_record_batch(self._ipc.read_message(self._file), self._schema)
        batch.validate(full=True)
        yield batch

    def read_column(self, name: str) -> Iterator[Any]:
        """Yields a column's array of each record batch."""
        return (batch.column(name) for batch in self._read_batches())

    def locate(self, address: int) -> Location | None:
        """Converts a memory address to a place in the mapped file; None outside of it."""
        inside = 0 <= address - self._base < self._size
        return Location(str(self._path.absolute()), address - self._base) if inside else None

    def close(self) -> None:
        """Closes the file; rows that were read stay valid."""
        self._reader = None
        self._file.close()

    def _read_batches(self) -> Iterator[Any]:
        """Yields all record batches. Stores the positions of a stream's batches for :meth:`read_group`. Raises
        :class:`ValueError` if the file became shorter."""
        if self._random:
            for number in range(self._reader.num_record_batches):
                self.require_readable()
                yield self._reader.get_batch(number)
            return
        del self._batch_starts[:]
        self._file.seek(0)
        reader = self._ipc.open_stream(self._file)
        while True:
            self.require_readable()
            position = self._file.tell()
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            self._batch_starts.append(position)
            yield batch


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
        splits = _read_names(self.path / _DATASET_DICT, "splits") if (self.path / _DATASET_DICT).is_file() else [""]
        for split in splits:
            folder = self.path / split
            state = _read_object(folder / _STATE)
            if state.get("_indices_data_files"):
                raise SourceError(
                    f"{printable(str(folder))} has indices of an older version of datasets: flatten and save it again"
                )
            files = state.get("_data_files")
            if not isinstance(files, list) or not all(isinstance(each, dict) for each in files):
                raise SourceError(f"{printable(str(folder / _STATE))} names no data files")
            for each in files:
                name = each.get("filename")
                if not isinstance(name, str) or _leads_outside(name):
                    raise SourceError(f"{printable(str(folder / _STATE))} names a file outside its folder")
                yield split, folder / name

    def files(self) -> Iterator[Path]:
        """Yields the data files, and ``state.json`` of each split."""
        yield from super().files()
        if self.path.is_dir():
            folders = {file.parent for file in super().files()}
            yield from sorted(folder / _STATE for folder in folders)

    def open_table(self, path: Path) -> OpenTable:
        """Opens an Arrow file. Raises one of the exceptions in :func:`pyarrow_errors` if it is damaged."""
        return _ArrowFile(path)


def _read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises :class:`SourceError` if the file is missing or cannot be read, has no JSON object, or has more than 16 MiB.
    """
    if not path.is_file():
        raise SourceError(f"{printable(str(path))} is missing, or is no file")
    try:
        content = load_json(read_bounded(path, _MAX_BYTES), "it is not valid JSON")
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{printable(str(path))} cannot be read: {printable(str(error))}") from None
    if not isinstance(content, dict):
        raise SourceError(f"{printable(str(path))} holds no object")
    return content


def _read_names(path: Path, name: str) -> list[str]:
    """Reads a list of folder names from the member ``name`` of a JSON file.

    Raises :class:`SourceError` if it is no such list, or a name leads out of the folder.
    """
    names = _read_object(path).get(name)
    if not isinstance(names, list) or not all(
        isinstance(each, str) and each and not _leads_outside(each) for each in names
    ):
        raise SourceError(f"{printable(str(path))} has no usable list of {name}")
    return names


def _leads_outside(name: str) -> bool:
    """Tells if a name is an absolute path, or has ``..`` or a null character."""
    return Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Returns ``CERTAIN`` in three cases, else ``NO``:

    - a folder with the files that ``save_to_disk`` writes beside the data;
    - an Arrow file;
    - an Arrow stream with the suffix ``.arrow``.
    """
    if path.is_dir():
        one = (path / _STATE).is_file() and (path / "dataset_info.json").is_file()
        return Certainty.CERTAIN if one or (path / _DATASET_DICT).is_file() else Certainty.NO
    arrow = path.suffix.lower() == ".arrow" and first_bytes(path, 4) == _STREAM
    return Certainty.CERTAIN if arrow or first_bytes(path, 6) == _MAGIC else Certainty.NO


KIND = Kind("arrow", "Arrow files of datasets.save_to_disk", _recognise, ArrowSource, takes_boxes=True)
