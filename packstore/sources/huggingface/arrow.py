"""Arrow as ``datasets.Dataset.save_to_disk`` writes it: one split, or a folder of them.

``dataset_dict.json`` names the splits, ``state.json`` the files of one; these are streams of Arrow's IPC format, or
files of it.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.huggingface.features import features_of, is_label, is_list, load_pyarrow
from packstore.sources.huggingface.tables import Group, Overview, Table, TableSource
from packstore.sources.refusals import first_bytes
from packstore.stores.link_files import Location

_DICT, _STATE = "dataset_dict.json", "state.json"
_MAGIC = b"ARROW1"
_STREAM = b"\xff\xff\xff\xff"
_MAX_BYTES = 16 << 20


class _ArrowTable(Table):
    """A file, mapped: only the rows that are read come into memory.

    To touch what a mapped file has lost since ends the process, so its size is looked at before each row.
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
                raise ValueError("has columns that are encoded by dictionary in a stream, which are not read")
        except BaseException:
            self._file.close()
            raise
        self._places = array("q")
        place = self._file.tell()
        self._file.seek(0)
        self._base = self._file.read_buffer(1).address
        self._file.seek(place)

    def check(self) -> None:
        size = self._path.stat().st_size
        if size < self._size:
            raise ValueError(f"{printable(str(self._path))} was cut from {self._size} to {size} bytes meanwhile")

    def overview(self) -> Overview:
        found = Overview(self._schema)
        features = features_of(self._schema)
        for batch in self._all():
            batch.validate()
            nbytes = {}
            for name, column in zip(self._schema.names, batch.columns, strict=True):
                nbytes[name] = column.nbytes
                parts = {}
                inner = column.flatten() if is_list(column.type) else column
                if self._pa.types.is_struct(inner.type):
                    parts = {inner.type.field(n).name: part for n, part in enumerate(inner.flatten())}
                if column.null_count or (
                    parts.keys() <= {"bytes", "path"} and "bytes" in parts and parts["bytes"].null_count
                ):
                    found.optional.add(name)
                if "path" in parts and parts["path"].null_count < len(inner):
                    found.with_paths.add(name)
                if is_label(name, column.type, features.get(name)):
                    least = load_pyarrow("pyarrow.compute").min(column).as_py()
                    if least is not None and least < 0:
                        found.negative.add(name)
            found.groups.append(Group(len(batch), nbytes))
        return found

    def batches(self, group: int, rows: int | None = None) -> Iterator[Any]:
        self.check()
        if self._random:
            batch = self._reader.get_batch(group)
        else:
            if not self._places:
                for _ in self._all():
                    continue
            self._file.seek(self._places[group])
            batch = self._ipc.read_record_batch(self._ipc.read_message(self._file), self._schema)
        batch.validate(full=True)
        yield batch

    def column(self, name: str) -> Iterator[Any]:
        return (batch.column(name) for batch in self._all())

    def locate(self, address: int) -> Location | None:
        inside = 0 <= address - self._base < self._size
        return Location(str(self._path.absolute()), address - self._base) if inside else None

    def close(self) -> None:
        self._reader = None
        self._file.close()

    def _all(self) -> Iterator[Any]:
        if self._random:
            for number in range(self._reader.num_record_batches):
                self.check()
                yield self._reader.get_batch(number)
            return
        del self._places[:]
        self._file.seek(0)
        reader = self._ipc.open_stream(self._file)
        while True:
            self.check()
            place = self._file.tell()
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            self._places.append(place)
            yield batch


class ArrowSource(TableSource):
    """The folder of a ``Dataset`` or a ``DatasetDict``, whose splits are packed under their own names."""

    kind = "arrow"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self._mapped: set[Path] = set()
        super().__init__(path, options)

    def find(self) -> Iterator[tuple[str, Path]]:
        if self.path.is_file():
            yield "", self.path
            return
        splits = _strings(self.path / _DICT, "splits") if (self.path / _DICT).is_file() else [""]
        for split in splits:
            folder = self.path / split
            state = _read(folder / _STATE)
            if state.get("_indices_data_files"):
                raise SourceError(
                    f"{printable(str(folder))} has indices, of an older datasets: flatten and save it again"
                )
            files = state.get("_data_files")
            if not isinstance(files, list) or not all(isinstance(each, dict) for each in files):
                raise SourceError(f"{printable(str(folder / _STATE))} names no files of data")
            for each in files:
                name = each.get("filename")
                if not isinstance(name, str) or _leads_out(name):
                    raise SourceError(f"{printable(str(folder / _STATE))} names a file outside its folder")
                yield split, folder / name

    def files(self) -> Iterator[Path]:
        yield from super().files()
        if self.path.is_dir():
            folders = {file.parent for file in super().files()}
            yield from sorted(folder / _STATE for folder in folders)

    def open_table(self, path: Path) -> Table:
        return _ArrowTable(path)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise SourceError(f"{printable(str(path))} is missing, or no file")
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{printable(str(path))} cannot be read: {printable(str(error))}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{printable(str(path))} holds no object")
    return found


def _strings(path: Path, name: str) -> list[str]:
    found = _read(path).get(name)
    if not isinstance(found, list) or not all(
        isinstance(each, str) and each and not _leads_out(each) for each in found
    ):
        raise SourceError(f"{printable(str(path))} has no list of {name} that can be used")
    return found


def _leads_out(name: str) -> bool:
    return Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """A folder with the files that ``save_to_disk`` writes beside the data; or one file of Arrow."""
    if path.is_dir():
        one = (path / _STATE).is_file() and (path / "dataset_info.json").is_file()
        return Certainty.CERTAIN if one or (path / _DICT).is_file() else Certainty.NO
    arrow = path.suffix.lower() == ".arrow" and first_bytes(path, 4) == _STREAM
    return Certainty.CERTAIN if arrow or first_bytes(path, 6) == _MAGIC else Certainty.NO


KIND = Kind("arrow", "Arrow files of datasets.save_to_disk", _recognise, ArrowSource, takes_boxes=True)
