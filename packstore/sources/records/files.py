"""Shards of records: which files of a folder they are, their splits, and reading them by place from any thread."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.files import beyond_standard_streams
from packstore.sources.archives import open_tree
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import TAR_FAULTS, decompressed
from packstore.sources.base import SPLIT_ORDER
from packstore.sources.ignoring import visible_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over, reason_for
from packstore.stores.link_files import Location

_OPEN = 8
_NAMED_MISSING = 1000
_TRIED = 4
_OF = re.compile(r"(.*?)[-_.]?(\d{3,6})-of-(\d{3,6})(\..*)?")
"""A shard as TensorFlow's ``ShardedFile`` calls it: its number of how many."""


class OpenFiles:
    """Files that are read by their places, from any thread; the last ones used stay open.

    A compressed file is decompressed once for as long as it stays open.
    """

    def __init__(self, paths: Sequence[Path], compression: Callable[[Path], str | None]) -> None:
        self._paths, self._compression = paths, compression
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._plain: dict[int, bool] = {}
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> OpenFile:
        """Raises :class:`SourceError` for a file that is gone, or damaged where it is compressed."""
        with self._lock:
            found = self._open.pop(number, None) or self._opened(self._paths[number])
            self._open[number] = found
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
        return found

    def _opened(self, path: Path) -> OpenFile:
        try:
            kind = self._compression(path)
            if kind is not None:
                with decompressed(path, kind, printable(str(path))) as spooled:
                    return OpenFile(os.dup(spooled.fileno()))
            with beyond_standard_streams():
                return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            raise SourceError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None

    def stretch(self, number: int, start: int, size: int) -> Location | None:
        """Where so many bytes of a file lie; None if it was decompressed."""
        path = self._paths[number]
        if number not in self._plain:
            opened, lying = os.fstat(self[number].descriptor), path.stat()
            self._plain[number] = (opened.st_dev, opened.st_ino) == (lying.st_dev, lying.st_ino)
        return Location(str(path.absolute()), start, within=size) if self._plain[number] else None

    def close(self) -> None:
        """Closes those that nobody reads; reading opens them again."""
        with self._lock:
            self._open.clear()


@dataclass(frozen=True)
class Shards:
    """The shards at a path.

    Attributes:
        files: Split and path of each, in the order of reading.
        missing: Names of shards that others say there are: ``train-00002-of-00004``.
        ignored: Number of other files, by reason.
    """

    files: list[tuple[str, Path]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)


def find_shards(path: Path, suffixes: tuple[str, ...], is_shard: Callable[[Path], bool]) -> Shards:
    """The shards at ``path``: it itself, those in the folder, and in its folders ``train``, ``val`` …

    A split is named by the folder, or by a part of the shard's name.

    Args:
        path: A file or a folder.
        suffixes: Of files that are shards.
        is_shard: Whether a file is one whose name says nothing: it has no known suffix.

    Raises:
        SourceError: Some shards have a split and others have none.
    """
    if path.is_file():
        return Shards([("", path)])
    found = Shards()
    counted: dict[tuple[Path, str, int, str], set[int]] = {}
    try:
        folders = [path, *sorted(p for p in visible_paths(path) if p.is_dir() and p.name.lower() in SPLIT_ORDER)]
        for folder in folders:
            for file in sorted(visible_paths(folder)):
                if not file.is_file():
                    continue
                of = _OF.fullmatch(file.name)
                if is_passed_over(file.name) or not (
                    file.name.lower().endswith(suffixes) or ((of or not file.suffix) and is_shard(file))
                ):
                    found.ignored[reason_for(file.name)] += 1
                    continue
                if of:
                    counted.setdefault((folder, of[1], int(of[3]), of[4] or ""), set()).add(int(of[2]))
                found.files.append((split_of(file.name) if folder is path else folder.name.lower(), file))
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be listed: {error.strerror or error}") from None
    for (_, stem, total, suffix), numbers in counted.items():
        gone = (n for n in range(total) if n not in numbers)
        found.missing.extend(f"{stem}-{n:05}-of-{total:05}{suffix}" for n in islice(gone, _NAMED_MISSING))
    without = [file for split, file in found.files if not split]
    if without and len(without) < len(found.files):
        raise SourceError(f"{printable(str(without[0]))}: its name says no split, as those of other shards do")
    return found


def first_shards(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Some files of a folder, or of its splits, that may be shards by their names."""
    tree = open_tree(path)
    if tree is None:
        return []
    splits = [name for name in tree.names("").folders if name.lower() in SPLIT_ORDER]
    files = [path / folder / name for folder in ("", *splits) for name in tree.names(folder).files]
    files = [file for file in files if not is_passed_over(file.name)]
    named = [file for file in files if file.name.lower().endswith(suffixes) or _OF.fullmatch(file.name)]
    return [file for file in [*named[:_TRIED], *[file for file in files if not file.suffix][:_TRIED]] if file.is_file()]


def refuse_missing(path: Path, kind: str, missing: Sequence[str]) -> None:
    """Raises :class:`AmbiguousSourceError` for shards that are not there."""
    if missing:
        raise AmbiguousSourceError(
            f"{printable(str(path))} lacks {len(missing)} of the shards that its files say there are, "
            f"{printable(missing[0])} among them: fetch them, or pack those that there are with --source {kind}",
            [Answer(("--source", kind))],
            path,
        )


def split_of(name: str) -> str:
    """The part of a file's name that is a split; empty where none is."""
    parts = [part.lower() for part in re.split(r"[-_.]", name)]
    return next((part for part in parts if part in SPLIT_ORDER), "")


def holds_images(path: Path) -> bool:
    """Whether images are among the files of a folder."""
    tree = open_tree(path)
    return tree is not None and len(tree.names("").ending(*IMAGE_SUFFIXES)) > 0


@contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """Turns what a damaged file raises into a :class:`SourceError` that names it."""
    try:
        yield
    except TAR_FAULTS as error:
        raise SourceError(f"{printable(str(path))} is damaged: {printable(str(error))}") from None
