"""Counts files and rows at a path with other programs than packstore's readers: a fault of those readers then shows.

Folders are walked, archives listed by :mod:`zipfile` and :mod:`tarfile`, Parquet and HDF5 read by their libraries.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import os
import posixpath
import tarfile
import zipfile
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from packstore.core.errors import SourceError, printable

ROWS = "rows"
"""Key of the number of rows of all tables; with a colon and an array's name, of the rows of that array in all files."""
_TABLES, _ARRAYS = (".parquet",), (".h5", ".hdf5", ".he5", ".hdf")
_NOT_AN_ARCHIVE = ".npz"
"""A zip that readers treat as one file."""
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_LONGEST_SUFFIX = 12
_FAULTS = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, RuntimeError)


def count_independently(path: Path) -> dict[str, int]:
    """Counts the files at ``path`` by suffix (see :func:`suffix_of`), or the files in an archive at ``path``.

    Outside archives also counts the rows of Parquet and HDF5 files, under :data:`ROWS`. For a tar inside a tar, counts
    its content instead. Counts a name that occurs twice in an archive once. Memory is 8 bytes an entry; for zip, some
    600 bytes in :mod:`zipfile`.

    Raises :class:`SourceError` if a library finds damage.
    """
    try:
        if path.is_dir():
            return _count_files(_walk_files(path))
        if path.suffix.lower() != _NOT_AN_ARCHIVE and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return _count_paths_by_suffix(info.filename for info in archive.infolist() if not info.is_dir())
        if _is_tar(path):
            with _open_decompressed(path) as stream:
                return _count_paths_by_suffix(_list_tar_names(stream, ""))
        return _count_files([path])
    except _FAULTS as error:
        raise SourceError(f"{printable(str(path))} cannot be counted: {printable(str(error))}") from None


def suffix_of(name: str) -> str:
    """Returns the last suffix in lower case with its dot, or ``""`` without one.

    A hidden name such as ``.x``, a number, and more than 12 characters are no suffix.
    """
    stem, _, suffix = posixpath.basename(name).rpartition(".")
    return f".{suffix.lower()}" if stem and 0 < len(suffix) <= _LONGEST_SUFFIX and not suffix.isdigit() else ""


def _walk_files(path: Path) -> Iterator[Path]:
    """Yields all files below a folder; follows links, but not to a folder that contains the link."""
    for folder, inside, names in os.walk(path, followlinks=True):
        here = Path(folder)
        inside[:] = [
            name
            for name in inside
            if not ((here / name).is_symlink() and here.resolve().is_relative_to((here / name).resolve()))
        ]
        yield from (here / name for name in names)


def _count_files(files: Iterable[Path]) -> dict[str, int]:
    """Counts files by suffix, and the rows of Parquet and HDF5 files, see :data:`ROWS`."""
    counts: Counter[str] = Counter()
    for file in files:
        suffix = suffix_of(file.name)
        counts[suffix] += 1
        if suffix in _TABLES:
            counts[ROWS] += int(importlib.import_module("pyarrow.parquet").read_metadata(file).num_rows)
        elif suffix in _ARRAYS:
            counts.update(_count_array_rows(file))
    return dict(counts)


def _count_paths_by_suffix(names: Iterable[str]) -> dict[str, int]:
    """Counts paths by suffix; counts equal paths once."""
    hashes: defaultdict[str, array[int]] = defaultdict(lambda: array("Q"))
    for name in names:
        # A later member of an archive replaces an earlier one with the same path.
        plain = posixpath.normpath(f"/{name}").lstrip("/")
        hashes[suffix_of(plain)].append(xxhash.xxh3_64_intdigest(plain.encode("utf-8", "surrogateescape")))
    return {suffix: len(np.unique(np.frombuffer(some, np.uint64))) for suffix, some in hashes.items()}


def _list_tar_names(stream: IO[bytes] | Any, folder: str) -> Iterator[str]:
    """Yields the file names in a tar, prefixed by ``folder``; for a tar inside it, the names in that."""
    with tarfile.open(
        fileobj=stream, mode="r|", ignore_zeros=True, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined] # else it keeps all of them in memory
            # ImageNet's training set is a tar of tars.
            if member.isreg() and not member.issparse() and not folder and member.name.endswith(".tar"):
                yield from _list_tar_names(archive.extractfile(member), f"{member.name[:-4]}/")
            elif not member.isdir():
                yield folder + member.name


def _is_tar(path: Path) -> bool:
    """Tells if a file is a tar, plain or compressed."""
    with _open_decompressed(path) as stream:
        try:
            return stream.read(tarfile.BLOCKSIZE)[257:262] == b"ustar"
        except _FAULTS:
            return False


@contextmanager
def _open_decompressed(path: Path) -> Iterator[IO[bytes] | Any]:
    """Opens a file for reading; decompresses gzip, bzip2, xz and zstandard."""
    with ExitStack() as opened:
        file: Any = opened.enter_context(path.open("rb"))
        start = file.peek(6)[:6]
        if start.startswith(b"\x1f\x8b"):
            file = opened.enter_context(gzip.GzipFile(fileobj=file))
        elif start.startswith(b"BZh"):
            file = opened.enter_context(bz2.BZ2File(file))
        elif start.startswith(b"\xfd7zXZ\0"):
            file = opened.enter_context(lzma.LZMAFile(file))
        elif start.startswith(_ZSTANDARD):
            import zstandard

            file = opened.enter_context(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
        yield file


def _count_array_rows(file: Path) -> dict[str, int]:
    """Returns the first dimension of each dataset of an HDF5 file, by :data:`ROWS`, a colon and its name."""
    import h5py

    counts: dict[str, int] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape:
            counts[f"{ROWS}:{name}"] = int(item.shape[0])

    with h5py.File(file, "r", locking=False) as opened:
        opened.visititems(visit)
    return counts
