"""HDF5 files that are no packstore stores, and Zarr of version 2 and 3 (https://zarr-specs.readthedocs.io).

The libraries ``h5py`` and ``zarr`` read them. In HDF5, links to other files are refused, and datasets whose values lie
in other files are not read. In Zarr, arrays are folders of chunk files. Those with unknown codecs are not opened: the
format has a codec for pickles.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.files import read_bounded
from packstore.core.plainjson import load_json
from packstore.sources.arrays import make_array_kind
from packstore.sources.arrays.source import ArraySource
from packstore.sources.arrays.stored import ArrayInfo, FileArray, OpenArrays, may_be_written, object_array
from packstore.sources.ignoring import visible_paths
from packstore.sources.refusals import first_bytes

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_STARTS = (0, 512, 1024, 2048)
_MAX_OBJECTS = 10_000
_OUTSIDE = "which is not followed: write the values into the file, for instance by h5repack"

_MAX_JSON, _MAX_FOLDERS = 1 << 24, 1000
_MAX_CHUNK_BYTES = 1 << 30
# Metadata files of arrays and groups; an array of version 2 comes before version 3.
_NODES = (".zarray", "zarr.json", ".zgroup")
_METADATA = (*_NODES, ".zattrs", ".zmetadata")
_CHUNK = re.compile(r"c|(?:c[./])?((?:0|[1-9][0-9]{0,15})(?:[./](?:0|[1-9][0-9]{0,15}))*)")
# Codecs that yield bytes, texts or numbers, and run nothing.
_CODECS = frozenset(
    ["bytes", "transpose", "blosc", "gzip", "zstd", "crc32c", "sharding_indexed", "vlen-utf8", "vlen-bytes", "zlib",
     "lz4", "lzma", "bz2", "delta", "shuffle", "adler32", "crc32"]
)  # fmt: skip
_MAX_FILE_BYTES = 2 << 30
# Limit, since the library takes some kilobytes for each chunk that is read.
_MAX_SAMPLE_CHUNKS = 1024


@dataclass(slots=True)
class _LibraryArray(FileArray):
    """Array as its library has opened it."""

    opened: Any

    def read_rows(self, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows along ``axis``; texts and files become Python objects. Raises :class:`ValueError` for any error of
        the library."""
        try:
            values = np.asarray(self.opened[(slice(None),) * axis + (slice(start, stop),)])
        except Exception as error:  # each codec has errors of its own
            name = self.info.name
            raise ValueError(f"{name} cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
        if values.dtype.kind in "TUSVO":
            return object_array([str(item) if isinstance(item, str) else bytes(item) for item in values])
        return values


class _Hdf5Array(_LibraryArray):
    """Dataset of an HDF5 file."""

    def list_written(self) -> tuple[Sequence[int], Iterable[Sequence[int]]] | None:
        """Lists the chunks that were written; None also for an empty dataset."""
        dataset, chunk = self.opened, self.opened.chunks
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


class Hdf5Source(ArraySource):
    """Samples of HDF5 files.

    Opening raises :class:`SourceError` for damage, for links to other files or to nothing, for images or labels with
    values in other files, and if over 256 MiB of a dataset of numbers were never written.
    """

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
                    target = getattr(link, "path", "an object")
                    raise ValueError(f"{inside} is a link to {target}, which is not in the file")
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
        start = first_bytes(path, _STARTS[-1] + len(_SIGNATURE))
        if not any(start.startswith(_SIGNATURE, place) for place in _STARTS):
            return False
        import h5py

        try:
            with h5py.File(path, "r", locking=False) as file:
                return "manifest" not in file.attrs and "row_checksum" not in file
        except (OSError, RuntimeError, ValueError, KeyError):
            return False  # opening it as a store tells the fault


def _describe_dataset(name: str, dataset: Any) -> ArrayInfo:
    """Describes a dataset of HDF5; one that no column can hold is described as unreadable."""
    import h5py

    shape, dtype, inner = dataset.shape, dataset.dtype, h5py.check_vlen_dtype(dataset.dtype)
    if shape is None:
        return ArrayInfo.unreadable(name, (), "it is empty")
    if dataset.is_virtual or dataset.external:  # HDF5 finds the files by the working directory and the environment
        return ArrayInfo.unreadable(name, shape, f"{printable(name)} refers to values elsewhere, {_OUTSIDE}")
    if h5py.check_string_dtype(dtype) is not None:
        return ArrayInfo(name, shape, content="texts")
    # Byte arrays of varying length and opaque values are files.
    if inner in (np.uint8, np.int8) or (dtype.kind == "V" and dtype.fields is None and dtype.subdtype is None):
        return ArrayInfo(name, shape, content="files")
    chunk = dataset.chunks[0] if dataset.chunks else 1
    info = ArrayInfo.of_numbers(name, shape, dtype, chunk)
    if info.content == "numbers":
        stored, size = dataset.id.get_storage_size(), dtype.itemsize * math.prod(shape)
        # Over 256 MiB that were never written are an error: the file claims a size it does not have.
        if not may_be_written(size, [stored]):
            raise ValueError(f"{name} should have {size:,} bytes, of which {stored:,} were written")
    return replace(info, reversed="MATLAB_class" in dataset.attrs)


@dataclass(slots=True)
class _ZarrArray(_LibraryArray):
    """Array in a folder. Keeps no file open."""

    folder: Path

    def list_written(self) -> tuple[Sequence[int], Iterable[Sequence[int]]]:
        """Lists the chunk files ``c/0/1``, ``0.1`` or ``0/1`` by their positions. Does not look into shards."""
        grid = self.opened.shards or self.opened.chunks
        names = (file.relative_to(self.folder).as_posix() for file in _walk_files(self.folder))
        places = (re.split("[./]", match[1] or "") for name in names if (match := _CHUNK.fullmatch(name)))
        return grid, (tuple(map(int, place)) for place in places if len(place) == len(grid) and all(place))


class ZarrSource(ArraySource):
    """Samples of the arrays in a Zarr group. Its files are those of the arrays that are read, and the metadata of
    groups above them; other files are left out. Arrays with unknown codecs are not opened."""

    kind = "zarr"
    suffixes = ()
    files_name = "Zarr arrays"
    grouped = True

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is a folder with a metadata file of Zarr. Raises :class:`SourceError` for an N5 container."""
        start = first_bytes(path / "attributes.json", 4096)
        if b'"n5"' in start or b'"blockSize"' in start:
            raise SourceError(f"{printable(str(path))} is N5, which is not read: convert it to Zarr or HDF5")
        return any((path / name).is_file() for name in _NODES)

    def list_files(self) -> list[Path]:
        """Returns the folder itself, which is opened as one file."""
        return [self.path]

    def files(self) -> Iterator[Path]:  # type: ignore[override]
        """Yields the metadata and chunk files of the arrays that are read, and the metadata of groups above them."""
        folders = {self.path / chosen.info.name for part in self._roles.parts for chosen in part.columns.values()}
        above = {each for folder in folders for each in folder.parents if each.is_relative_to(self.path)}
        for group in sorted(above):
            yield from (file for name in _METADATA if (file := group / name).is_file())
        for folder in sorted(folders):
            yield from _list_array_files(folder)

    def stamp(self) -> str:
        """Returns a digest of size and times of all files, which may be too many for a text. Raises
        :class:`SourceError` if a file is missing."""
        return f"files {xxhash.xxh3_128_hexdigest(super().stamp().encode())}"

    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        """Opens all arrays, from the top down. Raises one of ``FAULTS`` for more than 1,000 arrays and groups, damaged
        metadata, too large chunks, and if the files cannot hold an array's bytes."""
        waiting = [("", path)]
        for name, folder in waiting:
            if len(waiting) > _MAX_FOLDERS:
                raise ValueError(f"it holds more than {_MAX_FOLDERS:,} arrays and groups")
            found = (_read_object(folder / each) for each in _NODES)
            metadata = next((each for each in found if each is not None), None)
            if metadata is None:
                continue
            if metadata.get("node_type") == "array" or "chunks" in metadata:
                opened.arrays[name] = self._open_array(name, folder, metadata)
            else:
                inside = sorted(each.name for each in visible_paths(folder) if each.is_dir() and each.name[0] != ".")
                waiting += [(f"{name}/{each}".lstrip("/"), folder / each) for each in inside]

    def _open_array(self, name: str, folder: Path, metadata: dict[str, Any]) -> _ZarrArray:
        """Opens an array; one that the library cannot open, or must not, is unreadable."""
        try:
            import zarr
        except ImportError:
            raise SourceError(f"{printable(str(self.path))} is Zarr: pip install 'packstore[zarr]'") from None
        try:
            codecs = [*_walk_codecs(metadata)]
            unknown = next((each for each in codecs if each not in _CODECS), None)
            if unknown is not None:
                raise ValueError(f"the codec {unknown[:40]} is not run")
            largest = math.inf if "sharding_indexed" in codecs else _MAX_FILE_BYTES
            for file in _list_array_files(folder):  # the library would read all of a pipe or a device
                if not file.is_file() or file.stat().st_size > largest:
                    raise ValueError(f"{file.name} is no file, or has more than {largest:,} bytes")
            array = zarr.open_array(str(folder), mode="r")
            shape, chunks, dtype = array.shape, array.chunks, array.dtype
            if 0 in chunks:
                raise ValueError(f"its chunks have the shape {chunks}")
        except Exception as error:  # the library has many
            why = printable(f"{name or 'its array'} cannot be read by zarr: {type(error).__name__}: {str(error)[:200]}")
            return _ZarrArray(ArrayInfo.unreadable(name, (), why), None, folder)
        if "vlen-utf8" in codecs or "vlen-bytes" in codecs:
            content = "texts" if "vlen-utf8" in codecs else "files"
            return _ZarrArray(ArrayInfo(name, shape, content=content), array, folder)  # type: ignore[arg-type]
        info = ArrayInfo.of_numbers(name, shape, dtype, (*chunks, 1)[0])
        counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
        if math.prod(counts) > _MAX_SAMPLE_CHUNKS * max(counts, default=1):
            raise ValueError(f"a sample of {name} is spread over more than {_MAX_SAMPLE_CHUNKS:,} chunks")
        nbytes, chunk_bytes = (info.dtype.itemsize * math.prod(each) for each in (shape, chunks))
        if nbytes and chunk_bytes > _MAX_CHUNK_BYTES:
            raise ValueError(f"the chunks of {name} have more than {_MAX_CHUNK_BYTES:,} bytes")
        if not may_be_written(nbytes, (file.stat().st_size for file in _walk_files(folder))):
            raise ValueError(f"{info.shown} should have {nbytes:,} bytes, more than its files can hold")
        return _ZarrArray(info, array, folder)


def _read_object(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object from a file of at most 16 MiB; None if there is no file."""
    if not path.is_file():
        return None
    metadata = load_json(read_bounded(path, _MAX_JSON))
    if not isinstance(metadata, dict):
        raise ValueError(f"{path.name} holds no object")
    return metadata


def _walk_codecs(metadata: dict[str, Any]) -> Iterator[str]:
    """Yields the names of the codecs of an array, and of those nested in them."""
    for key in ("filters", "compressor", "codecs", "index_codecs"):
        found = metadata.get(key) or []
        for codec in found if isinstance(found, list) else [found]:
            yield str(codec.get("name", codec.get("id")))
            yield from _walk_codecs(codec.get("configuration") or {})


def _list_array_files(folder: Path) -> Iterator[Path]:
    """Yields the metadata and chunk files of an array."""
    for file in _walk_files(folder):
        if file.name in _METADATA or _CHUNK.fullmatch(file.relative_to(folder).as_posix()):
            yield file


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yields all files at and below a folder, sorted in each folder, without following links."""
    for directory, inside, names in os.walk(folder):
        inside.sort()
        for name in sorted(names):
            yield Path(directory, name)


HDF5 = make_array_kind(Hdf5Source, "HDF5 files with arrays of images", exported=True)
ZARR = make_array_kind(ZarrSource, "Zarr arrays of images", exported=True)
