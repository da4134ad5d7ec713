"""HDF5 files that are no packstore stores: datasets of images and labels by name, shape and dtype, read by h5py.

Links to other files are refused, and datasets whose values lie in other files are not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.sources.arrays import make_array_kind
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import (
    ArrayInfo,
    FileArray,
    OpenArrays,
    may_be_written,
    object_array,
)
from packstore.sources.refusals import first_bytes

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_STARTS = (0, 512, 1024, 2048)
_MAX_OBJECTS = 10_000
_OUTSIDE = "which is not followed: write the values into the file, for instance by h5repack"


class Hdf5Source(ArraySource):
    """Samples of HDF5 files. Opening raises :class:`SourceError` for damage, for links to other files or to nothing,
    and for images or labels with values in other files. Also raises it if over 256 MiB of a dataset of numbers were
    never written."""

    kind = "hdf5"
    suffixes = (".h5", ".hdf5", ".he5", ".hdf")
    files_name = "HDF5 files"

    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        """Adds all datasets of a file, at most 10,000, and visits each group once."""
        import h5py

        file = opened.enter_context(h5py.File(path, "r", locking=False))
        waiting, seen = [("", file)], set()
        while waiting:
            name, group = waiting.pop(0)
            for child in group:
                inside, link = f"{name}/{child}".lstrip("/"), group.get(child, getlink=True)
                item = group.get(child) if not isinstance(link, h5py.ExternalLink) else None
                if item is None:  # labels would be missing without a word
                    raise ValueError(
                        f"{inside} is a link to {getattr(link, 'path', 'an object')}, which is not in the file"
                    )
                if not isinstance(link, h5py.HardLink):
                    continue  # its target is found by its own name
                if isinstance(item, h5py.Group) and item.id not in seen:
                    seen.add(item.id)
                    waiting.append((inside, item))
                elif isinstance(item, h5py.Dataset):
                    opened.arrays[inside] = _Hdf5Array(_describe_dataset(inside, item), item)
                if len(opened.arrays) + len(seen) > _MAX_OBJECTS:
                    raise ValueError(f"it holds more than {_MAX_OBJECTS:,} datasets and groups")

    @classmethod
    def reads_file(cls, path: Path) -> bool:
        """Tells if a path is an HDF5 file by its signature, which a user block may precede. False for packstore stores,
        and files that h5py cannot open."""
        import h5py

        start = first_bytes(path, _STARTS[-1] + len(_SIGNATURE))
        if not any(start.startswith(_SIGNATURE, place) for place in _STARTS):
            return False
        try:
            with h5py.File(path, "r", locking=False) as file:
                return "manifest" not in file.attrs and "row_checksum" not in file
        except (OSError, RuntimeError, ValueError, KeyError):
            return False  # opening it as a store tells the fault


def _describe_dataset(name: str, dataset: Any) -> ArrayInfo:
    """Describes a dataset, as unreadable if it has no shape, no column can hold its values, or they are in other files.

    - Byte arrays of varying length and opaque values are files; strings are texts.
    - A dataset with MATLAB's attributes has reversed axes.

    Raises :class:`ValueError` if over 256 MiB of its numbers were never written.
    """
    import h5py

    shape, dtype, inner = dataset.shape, dataset.dtype, h5py.check_vlen_dtype(dataset.dtype)
    if shape is None:
        return ArrayInfo.unreadable(name, (), "it is empty")
    if dataset.is_virtual or dataset.external:  # HDF5 finds the files by the working directory and the environment
        return ArrayInfo.unreadable(name, shape, f"{printable(name)} refers to values elsewhere, {_OUTSIDE}")
    if h5py.check_string_dtype(dtype) is not None:
        return ArrayInfo(name, shape, content="texts")
    if inner in (np.uint8, np.int8) or (dtype.kind == "V" and dtype.fields is None and dtype.subdtype is None):
        return ArrayInfo(name, shape, content="files")
    chunk = dataset.chunks[0] if dataset.chunks else 1
    info = ArrayInfo.of_numbers(name, shape, dtype, f"values of {inner or dtype}", chunk)
    if info.content == "numbers":
        stored, size = dataset.id.get_storage_size(), dtype.itemsize * math.prod(shape)
        if not may_be_written(size, [stored]):
            raise ValueError(f"{name} should have {size:,} bytes, of which {stored:,} were written")
    return replace(info, reversed="MATLAB_class" in dataset.attrs)


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

    def list_written(self) -> tuple[Sequence[int], Iterable[Sequence[int]]] | None:
        """Lists the chunks that were written; None also for an empty dataset."""
        dataset, chunk = self.dataset, self.dataset.chunks
        if not dataset.size:
            return None
        if chunk is None:
            return None if dataset.id.get_storage_size() else (dataset.shape, ())
        count = dataset.id.get_num_chunks()
        if count == math.prod(-(-a // b) for a, b in zip(dataset.shape, chunk, strict=True)):
            return None
        places: list[tuple[int, ...]] = []
        if hasattr(dataset.id, "chunk_iter"):
            dataset.id.chunk_iter(lambda info: places.append(info.chunk_offset))
        else:  # HDF5 before 1.12.3 (h5py 3.8); slower: each call searches for its chunk
            places += (dataset.id.get_chunk_info(number).chunk_offset for number in range(count))
        return chunk, (tuple(a // b for a, b in zip(place, chunk, strict=True)) for place in places)


KIND = make_array_kind(Hdf5Source, "HDF5 files with arrays of images", exported=True)
