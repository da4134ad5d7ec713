"""Files of CIFAR-10 and CIFAR-100 in their published layouts (https://www.cs.toronto.edu/~kriz/cifar.html), in a
directory, or in a ``.tar.gz`` that is read in place."""

from __future__ import annotations

import io
import os
import tarfile
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO

from packstore.core.errors import SourceError, printable
from packstore.sources.inflating import GzipReader

_MAX_MEMBER_BYTES = 1 << 28  # the largest published file, CIFAR-100's train, has 155 MB
_LOOKED_AT = 64
_BROKEN = (
    *(OSError, EOFError, zlib.error, tarfile.TarError),
    # tarfile raises these for broken headers: it does not check the numbers and names of pax headers.
    *(ValueError, ArithmeticError, LookupError, TypeError, RecursionError),
)


@dataclass(frozen=True, slots=True)
class CifarLayout:
    """Published layout of CIFAR: names of its files.

    Attributes:
        kind: ``cifar10`` or ``cifar100``.
        binary: Its batches are rows of bytes, not pickles.
        directory: Name of the directory.
        archive: Name of the download.
        batches: (split, file name) of all batches in order.
        meta: Files with the names of the classes, one a label column.
    """

    kind: str
    binary: bool
    directory: str
    archive: str
    batches: tuple[tuple[str, str], ...]
    meta: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files."""
        return (*self.meta, *(name for _, name in self.batches))

    def matches_directory(self, directory: str, files: Iterable[str]) -> bool:
        """Tells if a directory has this layout. Its name suffices, or a meta file and one batch: other files may be
        missing."""
        there = set(files)
        return directory == self.directory or (
            there.issuperset(self.meta[:1]) and any(name in there for _, name in self.batches)
        )


def _list_batches(suffix: str) -> tuple[tuple[str, str], ...]:
    """Returns split and file name of CIFAR-10's six batches, whose names end in ``suffix``."""
    train = tuple(("train", f"data_batch_{number}{suffix}") for number in range(1, 6))
    return (*train, ("test", f"test_batch{suffix}"))


LAYOUTS = (
    CifarLayout(
        "cifar10", False, "cifar-10-batches-py", "cifar-10-python.tar.gz", _list_batches(""), ("batches.meta",)
    ),
    CifarLayout(
        *("cifar10", True, "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
        *(_list_batches(".bin"), ("batches.meta.txt",)),
    ),
    CifarLayout(
        *("cifar100", False, "cifar-100-python", "cifar-100-python.tar.gz"),
        *((("train", "train"), ("test", "test")), ("meta",)),
    ),
    CifarLayout(
        *("cifar100", True, "cifar-100-binary", "cifar-100-binary.tar.gz"),
        *((("train", "train.bin"), ("test", "test.bin")), ("fine_label_names.txt", "coarse_label_names.txt")),
    ),
)


class CifarFiles(ABC):
    """Files of one layout, in a directory or an archive. Thread-safe."""

    def __init__(self, path: Path, layout: CifarLayout) -> None:
        self.path = path
        self.layout = layout

    @abstractmethod
    def read_all_files(self) -> Iterator[tuple[str, IO[bytes]]]:
        """Yields name and content of each file, in the order that is fastest to read. The content is closed when the
        next file is read. Raises :class:`SourceError` for missing files, and for an archive that is cut off or
        damaged."""

    @abstractmethod
    def open_file(self, name: str) -> IO[bytes]:
        """Opens one file. Raises :class:`SourceError` if it cannot be read."""

    @abstractmethod
    def list_disk_paths(self) -> list[Path]:
        """Returns the files on disk: those of the layout, or the archive."""

    def shown_path(self, name: str) -> str:
        """Returns the path of a file of the layout, for messages."""
        return printable(f"{self.path}/{name}")

    def close(self) -> None:
        """Closes open files. Does nothing in this base, since a directory keeps none open."""
        return

    def _check_complete(self, there: Iterable[str]) -> None:
        """Raises :class:`SourceError` unless all files of the layout are in ``there``."""
        missing = sorted(set(self.layout.files).difference(there))
        if missing:
            raise SourceError(
                f"{printable(str(self.path))} is {self.layout.kind} without {', '.join(missing)}: download it again"
            )


class DirectoryFiles(CifarFiles):
    """Files of a layout in a directory."""

    def read_all_files(self) -> Iterator[tuple[str, IO[bytes]]]:
        """Opens each file in turn. Raises :class:`SourceError` if one is missing, too large for CIFAR, or cannot be
        read."""
        self._check_complete(name for name in self.layout.files if (self.path / name).is_file())
        for name in self.layout.files:
            with self.open_file(name) as file:
                yield name, file

    def list_disk_paths(self) -> list[Path]:
        """Returns the paths of the files of the layout."""
        return [self.path / name for name in self.layout.files]

    def open_file(self, name: str) -> IO[bytes]:
        """Opens one file. Raises :class:`SourceError` if it cannot be read, or is too large for CIFAR."""
        path = self.path / name
        try:
            size = path.stat().st_size
            if size > _MAX_MEMBER_BYTES:
                raise SourceError(f"{self.shown_path(name)}: {size} bytes; that is not CIFAR")
            return path.open("rb")
        except OSError as error:
            raise SourceError(f"{self.shown_path(name)} cannot be read: {error.strerror or error}") from None


class TarFiles(CifarFiles):
    """Files of a layout in a ``.tar.gz``. One pass finds all of them; later reads seek."""

    def __init__(self, path: Path, layout: CifarLayout, prefix: str) -> None:
        super().__init__(path, layout)
        self._prefix = prefix
        self._gzip = GzipReader(path)
        self._found: dict[str, tuple[int, int]] = {}  # position and size
        self._lock = threading.Lock()

    def list_disk_paths(self) -> list[Path]:
        """Returns the path of the archive."""
        return [self.path]

    def read_all_files(self) -> Iterator[tuple[str, IO[bytes]]]:
        """Reads each file into memory, in one pass over the whole archive. The pass verifies the archive's checksum,
        and other reads wait until it ends. Raises :class:`SourceError` for damage, and for repeated, oversized and
        missing files."""
        with self._lock:
            try:
                yield from self._read_members()
            except _BROKEN as error:
                raise _damage_error(printable(str(self.path)), error) from None

    def _read_members(self) -> Iterator[tuple[str, IO[bytes]]]:
        """Yields name and content of each file, in one pass. Stores their offsets for :meth:`open_file` at the end.

        Raises :class:`SourceError` for repeated and missing files, and files larger than 256 MiB. Raises one of
        ``_BROKEN`` for damage."""
        self._gzip.seek(0)
        places: dict[str, tuple[int, int]] = {}
        with tarfile.open(fileobj=self._gzip, mode="r:") as tar:
            for member in tar:
                parent, _, name = member.name.removeprefix("./").rpartition("/")
                if parent != self._prefix or name not in self.layout.files or not member.isreg():
                    continue
                if name in places or member.size > _MAX_MEMBER_BYTES or member.sparse is not None:
                    raise SourceError(
                        f"{self.shown_path(name)}: {member.size} bytes, or there twice; that is not CIFAR"
                    )
                places[name] = (member.offset_data, member.size)
                yield name, io.BytesIO(self._read_member(*places[name]))
        while self._gzip.read(1 << 20):  # to the end, which has the checksum
            continue
        self._check_complete(places)
        self._found = places

    def _read_member(self, position: int, size: int) -> bytes:
        """Reads exactly ``size`` bytes at an offset of the tar. Raises :class:`EOFError` if it ends before."""
        self._gzip.seek(position)
        data = self._gzip.read(size)
        if len(data) != size:
            raise EOFError("the archive ends inside a file")
        return data

    def open_file(self, name: str) -> IO[bytes]:
        """Reads one file into memory. The first call finds all files, if :meth:`read_all_files` has not. Raises
        :class:`SourceError` as :meth:`read_all_files` does."""
        with self._lock:
            try:
                if not self._found:
                    for _ in self._read_members():
                        continue
                return io.BytesIO(self._read_member(*self._found[name]))
            except _BROKEN as error:
                raise _damage_error(self.shown_path(name), error) from None

    def close(self) -> None:
        """Closes the archive."""
        self._gzip.close()


def find_cifar(path: Path, kind: str | None) -> CifarFiles | None:
    """Finds the files of a CIFAR dataset. ``path`` may be its directory, its archive, or a folder that holds one of
    these. Returns None if there is no CIFAR. An archive does not count if its directory is in the same folder.

    Args:
        path: Directory, archive or folder.
        kind: ``cifar10`` or ``cifar100``; None takes either.

    Raises:
        SourceError: A folder holds several or cannot be listed, or the archive is damaged.
    """
    layouts = [layout for layout in LAYOUTS if kind in (None, layout.kind)]
    if path.is_file():
        return _open_archive(path, layouts)
    names = _list_names(path)
    for layout in layouts:
        if layout.matches_directory(path.resolve().name, names):
            return DirectoryFiles(path, layout)
    directories = [layout for layout in layouts if layout.directory in names and (path / layout.directory).is_dir()]
    unpacked = {layout.archive for layout in directories}
    archives = [layout for layout in layouts if layout.archive in names and layout.archive not in unpacked]
    paths = [path / layout.directory for layout in directories] + [path / layout.archive for layout in archives]
    if len(paths) > 1:
        listed = ", ".join(printable(place.name) for place in paths)
        raise SourceError(f"{printable(str(path))} holds {listed}: give the path of one of them")
    return find_cifar(paths[0], kind) if paths else None


def _list_names(path: Path) -> set[str]:
    """Lists the names in a folder. Raises :class:`SourceError` if it cannot be listed."""
    try:
        return set(os.listdir(path))
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be listed: {error.strerror or error}") from None


def _open_archive(path: Path, layouts: list[CifarLayout]) -> CifarFiles | None:
    """Opens the archive at ``path``. Returns None if the file is no gzip, or if its first 64 members do not show a
    layout. Raises :class:`SourceError` for damage in these members."""
    try:
        with path.open("rb") as file:
            if file.read(3) != b"\x1f\x8b\x08":
                return None
        folders: dict[str, set[str]] = {}
        reader = GzipReader(path)
        with reader, tarfile.open(fileobj=reader, mode="r:") as tar:
            for member in islice(tar, _LOOKED_AT):
                inside = PurePosixPath(member.name)
                parent = str(inside) if member.isdir() else str(inside.parent)
                folders.setdefault("" if parent == "." else parent, set()).add(inside.name)
                for folder, names in folders.items():
                    for layout in layouts:
                        if layout.matches_directory(PurePosixPath(folder).name, names):
                            return TarFiles(path, layout, folder)
    except _BROKEN as error:
        raise _damage_error(printable(str(path)), error) from None
    return None


def _damage_error(where: str, error: Exception) -> SourceError:
    """Returns the error for a damaged file or archive."""
    return SourceError(f"{where} is cut off or damaged ({printable(str(error)[:200])}): download it again")


def no_cifar_error(path: Path, kind: str) -> SourceError:
    """Returns the error for a path that is not of the kind that the user named."""
    expected = " or ".join(f"{layout.directory}/ or {layout.archive}" for layout in LAYOUTS if layout.kind == kind)
    return SourceError(f"{printable(str(path))} is not {kind}: expected {expected}, or a folder that holds one of them")
