"""HDF5 files that are no packstore stores: datasets of images and labels by name, shape and dtype, read by h5py.

A contiguous dataset is read from the file directly, a compressed one in whole chunks. References to files in other
folders are refused, and so are raw data in any other file.
"""

from __future__ import annotations

import math
import os
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.images.sniff import begins_like_image
from packstore.sources.arrays import make_array_kind
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import (
    ATTRIBUTES,
    ArrayInfo,
    FileArray,
    OpenArrays,
    StoredArray,
    Unwritten,
    count_unwritten,
    may_be_written,
    object_array,
    read_at,
)
from packstore.sources.refusals import first_bytes

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_STARTS = (0, 512, 1024, 2048)
_MAX_OBJECTS = 10_000
_PREFIX = "HDF5_VDS_PREFIX"
"""Environment variable with the folder in which HDF5 looks first for the files of a virtual dataset."""


class Hdf5Source(ArraySource):
    """Samples of HDF5 files. Opening raises :class:`SourceError` for damage, and for links to other files or to
    nothing. Also raises it for values in raw files, or in files of other folders. Also raises it if over 256 MiB of a
    dataset of numbers were never written."""

    kind = "hdf5"
    suffixes = (".h5", ".hdf5", ".he5", ".hdf")
    files_name = "HDF5 files"

    def open_file(self, path: Path) -> OpenArrays:
        """Opens an HDF5 file, and describes its datasets. Raises :class:`SourceError` for damage."""
        return _OpenHdf5(path, self.path if self.path.is_dir() else self.path.parent)

    @classmethod
    def reads_file(cls, path: Path) -> bool:
        """Tells if a path is an HDF5 file. False for packstore stores, and files that h5py cannot open."""
        return is_hdf5(path) and not _is_store(path)


class _OpenHdf5(OpenArrays):
    """Datasets of an HDF5 file. Contiguous ones are read without h5py. Opening raises :class:`SourceError`:

    - for a damaged file
    - for links to other files or to nothing
    - for values in raw files, or in files of other folders
    - for a dataset of numbers of which over 256 MiB were never written
    - for more than 10,000 datasets and groups
    """

    def __init__(self, path: Path, folder: Path) -> None:
        import h5py

        super().__init__()
        self._path = path
        self._shown = printable(str(path))
        self._folder = folder.resolve()
        try:
            self._file = h5py.File(path, "r", locking=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise SourceError(f"{self._shown} is not a readable HDF5 file: {printable(str(error))[:200]}") from None
        self.closing.callback(self._file.close)
        try:
            with self:
                self._read = partial(read_at, self.open_descriptor(path))
                self._find_datasets()
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:  # as h5py finds damage
            raise SourceError(f"{self._shown} is damaged: {printable(str(error))[:200]}") from None

    def _find_datasets(self) -> None:
        """Adds all datasets; visits each group once. Raises :class:`SourceError` as opening does."""
        import h5py

        waiting = [""]
        seen = set()
        while waiting:
            name = waiting.pop(0)
            group = self._file[name] if name else self._file
            for child in group:
                inside = f"{name}/{child}" if name else child
                link = group.get(child, getlink=True)
                if isinstance(link, h5py.ExternalLink):
                    raise SourceError(
                        f"{self._shown}: {printable(inside)} is a link to another file ({printable(link.filename)}), "
                        "which is not followed: give that file"
                    )
                if not isinstance(link, h5py.HardLink):
                    if group.get(child) is None:  # its target, such as labels, would be missing without a word
                        raise SourceError(
                            f"{self._shown}: {printable(inside)} is a link to {printable(link.path)}, "
                            "which is not in the file: remove the link, or write its target"
                        )
                    continue  # its target is found by its own name
                item = group.get(child)
                if isinstance(item, h5py.Group):
                    if item.id not in seen:
                        seen.add(item.id)
                        waiting.append(inside)
                elif isinstance(item, h5py.Dataset):
                    self.arrays[inside] = self._open_dataset(inside, item)
                if len(self.arrays) + len(seen) > _MAX_OBJECTS:
                    raise SourceError(f"{self._shown} holds more than {_MAX_OBJECTS:,} datasets and groups")

    def _open_dataset(self, name: str, dataset: Any) -> FileArray:
        """Opens a dataset. Numbers at one place of the file are read directly. Raises as :meth:`_describe_dataset`
        does."""
        import h5py

        info = self._describe_dataset(name, dataset)
        offset = dataset.id.get_offset() if info.content == "numbers" else None
        if offset is not None and dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype):
            return StoredArray(info, self._read, offset)
        return _Hdf5Array(info, dataset)

    def _describe_dataset(self, name: str, dataset: Any) -> ArrayInfo:
        """Describes a dataset, as unreadable if it has no shape or no column can hold its values.

        - Byte arrays of varying length and opaque values are files.
        - Strings are files if the first string begins like an image, else texts.
        - A dataset with MATLAB's attributes has reversed axes.

        Raises:
            SourceError: :meth:`_refuse_outside_values` refuses it, or over 256 MiB of its numbers were never written.
        """
        import h5py

        shape = dataset.shape
        if shape is None:
            return ArrayInfo.unreadable(name, (), "it is empty")
        self._refuse_outside_values(name, dataset)
        dtype, inner = dataset.dtype, h5py.check_vlen_dtype(dataset.dtype)
        if h5py.check_string_dtype(dtype) is not None:
            is_file = begins_like_image(_read_first_value(dataset)[:64])
            return ArrayInfo(name, shape, content="files" if is_file else "texts")
        if inner in (np.uint8, np.int8) or (dtype.kind == "V" and dtype.fields is None and dtype.subdtype is None):
            return ArrayInfo(name, shape, content="files")
        if inner is not None:
            return ArrayInfo.unreadable(name, shape, f"{printable(name)} holds arrays of {inner} of different lengths")
        chunk = dataset.chunks[0] if dataset.chunks else 1
        info = ArrayInfo.of_numbers(name, shape, dtype, f"values of {dtype}", chunk)
        if info.content == "numbers" and not dataset.is_virtual:  # parts in other files are not checked
            stored, size = dataset.id.get_storage_size(), dtype.itemsize * math.prod(shape)
            if not may_be_written(size, [stored]):
                raise SourceError(
                    f"{self._shown}: {printable(name)} should have {size:,} bytes, of which {stored:,} were written"
                )
        return replace(info, reversed="MATLAB_class" in dataset.attrs)

    def _refuse_outside_values(self, name: str, dataset: Any) -> None:
        """Raises :class:`SourceError` for a dataset with values in raw files, and for one of these virtual datasets:

        - A part is missing, or in another folder.
        - A part is named by a pattern.
        - A part refers to further files.
        - Parts are in other files, and the environment variable ``HDF5_VDS_PREFIX`` is set: HDF5 would look for them
          there.
        """
        if dataset.external:
            file = dataset.external[0][0]
            raise SourceError(
                f"{self._shown}: the values of {printable(name)} are outside it, in {printable(file)}; that is not "
                f"followed, since the file depends on the working directory: write the values into the file, for "
                f"instance by h5repack -l {printable(name)}:CONTI"
            )
        sources = dataset.virtual_sources() if dataset.is_virtual else []
        if os.environ.get(_PREFIX) and any(source.file_name != "." for source in sources):
            raise SourceError(
                f"{self._shown}: {printable(name)} is made of other files, and {_PREFIX} makes HDF5 look for them in "
                f"{printable(os.environ[_PREFIX])}: unset it, and put them beside the file"
            )
        for source in sources:
            self._refuse_source(name, source.file_name, source.dset_name)

    def _refuse_source(self, name: str, file_name: str, dataset_name: str) -> None:
        """Raises :class:`SourceError` for a part of a virtual dataset as :meth:`_refuse_outside_values` does."""
        import h5py

        shown = f"{printable(file_name)}, {printable(dataset_name)}"
        if file_name != "." and "%" in file_name + dataset_name:
            raise SourceError(
                f"{self._shown}: {printable(name)} is made of files by a pattern ({shown}), which is not followed; "
                "write it into one file"
            )
        place = self._path if file_name == "." else self._path.parent / file_name
        if not (place.parent.resolve() / place.name).is_relative_to(self._folder):  # it may be a link itself
            raise SourceError(
                f"{self._shown}: the values of {printable(name)} are outside its folder, in "
                f"{printable(file_name)}; that is not followed"
            )
        try:
            with nullcontext(self._file) if file_name == "." else h5py.File(place, "r", locking=False) as file:
                dataset = file[dataset_name]
                if not dataset.is_virtual and not dataset.external and dataset.file.filename == file.filename:
                    return
        except (OSError, KeyError, RuntimeError, ValueError, AttributeError):
            raise SourceError(f"{self._shown}: a part of {printable(name)} is missing: {shown}") from None
        raise SourceError(
            f"{self._shown}: a part of {printable(name)} refers to other files in turn, which is not followed"
        )

    def read_attributes(self, name: str) -> dict[str, Any]:
        """Reads the attributes of a dataset or group that may name classes, by name. Returns ``{}`` if they cannot be
        read."""
        values = {}
        with suppress(OSError, RuntimeError, ValueError, TypeError, KeyError):  # a type that numpy lacks
            attributes = self._file[name or "/"].attrs
            values = {each: attributes[each] for each in ATTRIBUTES if each in attributes}
        return values


@dataclass(slots=True)
class _Hdf5Array(FileArray):
    """Dataset that h5py reads. Strings and opaque values become an array of ``bytes`` objects."""

    dataset: Any

    def read_rows(self, axis: int, start: int, stop: int) -> NDArray[Any]:
        try:
            values = np.asarray(self.dataset[(slice(None),) * axis + (slice(start, stop),)])
        except (RuntimeError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.info.name} cannot be read: {error}") from None
        if values.dtype.kind in "SV":
            return object_array([bytes(item) for item in values])
        return values

    def find_unwritten(self, axis: int) -> Unwritten | None:
        """Finds the chunks that were never written. Returns None if all were, or if the dataset is empty or virtual."""
        dataset = self.dataset
        if dataset.is_virtual or not dataset.size:
            return None
        chunk, places = dataset.chunks, list[tuple[int, ...]]()
        if chunk is None:
            return None if dataset.id.get_storage_size() else count_unwritten(dataset.shape, dataset.shape, axis, ())
        if dataset.id.get_num_chunks() == math.prod(-(-a // b) for a, b in zip(dataset.shape, chunk, strict=True)):
            return None
        if hasattr(dataset.id, "chunk_iter"):
            dataset.id.chunk_iter(lambda info: places.append(info.chunk_offset))
        else:  # HDF5 before 1.12.3 (h5py 3.8); slower: each call searches for its chunk
            places += (dataset.id.get_chunk_info(n).chunk_offset for n in range(dataset.id.get_num_chunks()))
        inside = (tuple(a // b for a, b in zip(place, chunk, strict=True)) for place in places)
        return count_unwritten(dataset.shape, chunk, axis, inside)


def _read_first_value(dataset: Any) -> bytes:
    """Reads the first value of a dataset with one axis. Returns ``b""`` for other axes, and if there is no value, it is
    no bytes, or it cannot be read."""
    try:
        value = dataset[0] if len(dataset.shape) == 1 and dataset.shape[0] else b""
    except (OSError, RuntimeError, ValueError, UnicodeDecodeError):
        return b""
    return value if isinstance(value, bytes) else b""


def is_hdf5(path: Path) -> bool:
    """Tells if a file has HDF5's signature at byte 0, 512, 1024 or 2048. A user block may precede it."""
    start = first_bytes(path, _STARTS[-1] + len(_SIGNATURE))
    return any(start[place : place + len(_SIGNATURE)] == _SIGNATURE for place in _STARTS)


def _is_store(path: Path) -> bool:
    """Tells if a file is a packstore store. True also for a file that cannot be opened: opening it as a store raises
    the error."""
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as file:
            return "manifest" in file.attrs or "row_checksum" in file
    except (OSError, RuntimeError, ValueError, KeyError):
        return True  # opening it as a store tells the fault


KIND = make_array_kind(Hdf5Source, "HDF5 files with arrays of images", exported=True)
