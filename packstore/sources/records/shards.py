"""Finds shards: files that each hold many samples and belong to one split. Reads them at any place, from any thread."""

from __future__ import annotations

import logging
import os
import re
import threading
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.files import beyond_standard_streams, read_bounded, read_text
from packstore.core.plainjson import load_json
from packstore.sources.archives import open_tree
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import TAR_FAULTS, decompress_to_temporary
from packstore.sources.base import Certainty
from packstore.sources.dataset import index_key
from packstore.sources.ignoring import visible_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.rows import Row, RowSource, in_packing_order
from packstore.sources.splits import find_split, find_split_folders
from packstore.stores.link_files import Location

_log = logging.getLogger(__name__)
INDEX = "index.json"
"""Name of the file that names the shards of MDS and LitData."""
MAX_INDEX = 1 << 28
"""Maximum number of its bytes."""
_OPEN = 8
_NAMED_MISSING = 1000
_TRIED = 4
_OF = re.compile(r"(.*?)[-_.]?(\d{3,6})-of-(\d{3,6})(\..*)?")
"""Name of a shard by TensorFlow's ``ShardedFile``, with its number and the number of all."""


class ShardSource(RowSource):
    """Base of sources whose rows are in shards: files of many samples of one split. Rows without a key of their own
    have split and number as key.

    Attributes:
        shards: Split and path of each shard, in the order of reading.
    """

    shards: Sequence[tuple[str, Path]]

    @abstractmethod
    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields the rows of shard ``number``. Takes one of ``keys`` for each row. Uses that key only if the row has no
        key of its own."""

    def splits(self) -> Sequence[str]:
        """Returns the splits of all shards, in packing order."""
        return in_packing_order(split for split, _ in self.shards)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of all shards of a split; generates keys for rows without their own."""
        keys = (index_key(split, number) for number in count())
        numbers = (number for number, (its, _) in enumerate(self.shards) if its == split)
        return chain.from_iterable(self.shard_rows(number, keys) for number in numbers)

    def files(self) -> Iterator[Path]:
        """Yields the paths of the shards."""
        return (path for _, path in self.shards)


@dataclass(frozen=True)
class FoundShards:
    """Shards at a path, and names of shards that are absent.

    Attributes:
        files: Split and path of each, in the order of reading.
        missing: Names of absent shards, derived from those of others: ``train-00002-of-00004``; at most 1,000 of a set.
    """

    files: list[tuple[str, Path]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def find_shards(
    path: Path, suffixes: tuple[str, ...], is_shard: Callable[[Path], bool] = lambda path: False
) -> FoundShards:
    """Finds the shards in a folder and in its folders ``train``, ``val`` …. A file is one shard without a split, and is
    not tested.

    The folder, or a part of the shard's name, names a split: ``imagenet-train-000042.tar``. Skips hidden files.

    Args:
        path: A file or a folder.
        suffixes: Suffixes of shards.
        is_shard: Tells if a file without a known suffix is a shard. Called if the file's name has no suffix, or is
            numbered.

    Raises:
        SourceError: The folder cannot be listed, or some shards have a split and others have none.
    """
    if path.is_file():
        return FoundShards([("", path)])
    shards = FoundShards()
    counted: dict[tuple[Path, str, int, str], set[int]] = {}
    try:
        top = _list_sorted(path)
        splits = find_split_folders(each.name for each in top if find_split(each.name) and each.is_dir())
        for folder in (path, *(path / name for name in splits)):
            for file in top if folder is path else _list_sorted(folder):
                of = _OF.fullmatch(file.name) if "-of-" in file.name else None
                named = file.name.lower().endswith(suffixes)
                if is_passed_over(file.name) or not (named or of or not file.suffix):
                    continue  # by its name alone, since there may be any number of files
                if not file.is_file() or not (named or is_shard(file)):
                    continue
                if of:
                    counted.setdefault((folder, of[1], int(of[3]), of[4] or ""), set()).add(int(of[2]))
                shards.files.append((find_split(file.name) if folder is path else splits[folder.name], file))
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be listed: {error.strerror or error}") from None
    for (_, stem, total, suffix), numbers in counted.items():
        gone = (n for n in range(total) if n not in numbers)
        shards.missing.extend(f"{stem}-{n:05}-of-{total:05}{suffix}" for n in islice(gone, _NAMED_MISSING))
    without = [file for split, file in shards.files if not split]
    if without and len(without) < len(shards.files):
        raise SourceError(f"{printable(str(without[0]))}: its name has no split, but those of other shards have")
    return shards


def _list_sorted(folder: Path) -> list[Path]:
    """Lists a folder, sorted by name, without ignored entries."""
    return sorted(visible_paths(folder), key=lambda path: path.name)


def recognise_shards(path: Path, suffixes: tuple[str, ...], is_shard: Callable[[Path], bool]) -> Certainty:
    """Certain if ``path`` is a shard, or a folder of shards without images directly in it; else ``NO``. Tests only the
    files of :func:`list_first_shards`, at most 8. One shard suffices."""
    if path.is_dir() and folder_has_images(path):
        return Certainty.NO
    files = [path] if path.is_file() else list_first_shards(path, suffixes)
    return Certainty.CERTAIN if any(map(is_shard, files)) else Certainty.NO


def list_first_shards(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Lists possible shards in a folder and its folders of splits. Lists up to 4 files with names of shards, and up to
    4 without a suffix. Returns ``[]`` if ``path`` is no folder."""
    tree = open_tree(path)
    if tree is None:
        return []
    splits = find_split_folders(tree.names("").folders)
    files = [path / folder / name for folder in ("", *splits) for name in tree.names(folder).files]
    files = [file for file in files if not is_passed_over(file.name)]
    named = [file for file in files if file.name.lower().endswith(suffixes) or _OF.fullmatch(file.name)]
    return [file for file in [*named[:_TRIED], *[file for file in files if not file.suffix][:_TRIED]] if file.is_file()]


def refuse_missing_shards(path: Path, kind: str, missing: Sequence[str]) -> None:
    """Raises :class:`AmbiguousSourceError` if the list ``missing`` is not empty."""
    if missing:
        raise AmbiguousSourceError(
            f"{printable(str(path))} lacks {len(missing)} of the shards that its files say there are, "
            f"{printable(missing[0])} among them: fetch them, or pack those that there are with --source {kind}",
            [Answer(("--source", kind))],
            path,
        )


def folder_has_images(path: Path) -> bool:
    """Tells if images are directly in a folder. False if ``path`` is no folder."""
    tree = open_tree(path)
    return tree is not None and len(tree.names("").ending(*IMAGE_SUFFIXES)) > 0


def find_indexes(path: Path) -> list[tuple[str, Path]]:
    """Finds ``index.json`` in a folder, or in its folders named after splits; returns split and path of each. Returns
    ``[]`` if there is none, or the folder cannot be listed."""
    if (path / INDEX).is_file():
        return [("", path / INDEX)]
    if not path.is_dir():
        return []
    try:
        splits = find_split_folders(each.name for each in visible_paths(path))
    except OSError:
        return []
    return [(split, path / name / INDEX) for name, split in splits.items() if (path / name / INDEX).is_file()]


def check_file_name(name: object) -> str:
    """Returns ``name`` if it is a plain file name, without a folder. Raises :class:`ValueError` for any other."""
    if not isinstance(name, str) or "/" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"the name {name!r:.80}")
    return name


def read_index(index: Path, most: int = MAX_INDEX) -> dict[str, Any]:
    """Reads the JSON object in an index file; does not check its content.

    Raises :class:`SourceError` if the file is missing or cannot be read, has no JSON object, or has more than ``most``
    bytes.
    """
    if not index.is_file():
        raise SourceError(f"{printable(str(index))} is missing, or no file")
    try:
        content = load_json(read_bounded(index, most), "it is not valid JSON")
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{printable(str(index))} cannot be read: {printable(str(error))}") from None
    if not isinstance(content, dict):
        raise SourceError(f"{printable(str(index))} cannot be read: it is not a JSON object")
    return content


class OpenFiles:
    """Opens files by number, for reads at any offset; thread-safe. Keeps the 8 last used files open.

    Opening a compressed file decompresses it to a temporary file. Opening it again decompresses it again.
    """

    def __init__(self, paths: Sequence[Path], compression: Callable[[Path], str | None]) -> None:
        self._paths, self._compression = paths, compression
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._plain: dict[int, bool] = {}
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> OpenFile:
        """Returns file ``number``, open and decompressed. Opens the file if necessary. Keeps at most 8 files, and drops
        the file that was used longest ago. Raises :class:`SourceError` for a missing file, or a damaged compressed
        one."""
        with self._lock:
            file = self._open.pop(number, None) or self._open_file(self._paths[number])
            self._open[number] = file
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
        return file

    def _open_file(self, path: Path) -> OpenFile:
        """Opens a file. Decompresses a compressed file to a temporary file. Raises :class:`SourceError` if it cannot be
        read, or is damaged."""
        try:
            kind = self._compression(path)
            if kind is not None:
                with decompress_to_temporary(path, kind, printable(str(path))) as content:
                    return OpenFile(os.dup(content.fileno()))
            with beyond_standard_streams():
                return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            raise SourceError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None

    def locate_span(self, number: int, start: int, size: int) -> Location | None:
        """Locates ``size`` bytes of a file from ``start`` on. Returns None if the file was decompressed, or has been
        replaced. The first call for a file opens it; later calls do not look for a replacement."""
        path = self._paths[number]
        if number not in self._plain:
            opened, lying = os.fstat(self[number].descriptor), path.stat()
            self._plain[number] = (opened.st_dev, opened.st_ino) == (lying.st_dev, lying.st_ino)
        return Location(str(path.absolute()), start, within=size) if self._plain[number] else None

    def close(self) -> None:
        """Closes all files; reading opens them again. A file that a thread reads closes when the thread is done."""
        with self._lock:
            self._open.clear()


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Converts errors of decompressing a damaged file to a :class:`SourceError` that names the file."""
    try:
        yield
    except TAR_FAULTS as error:
        raise SourceError(f"{printable(str(path))} is damaged: {printable(str(error))}") from None


def read_class_names(file: Path, count: int = 0, by: str = "") -> tuple[str, ...] | None:
    """Reads a file with the name of a class on each line. Returns None if there is no such file. If a name occurs
    twice, as ``crane`` does in some lists of ImageNet, logs a warning, and returns None.

    Raises :class:`SourceError` if the file cannot be read, or does not have ``count`` names, as a file ``by`` says. A
    ``count`` of 0 allows any number."""
    if not file.is_file():
        return None
    try:
        names = tuple(line.strip() for line in read_text(file).split("\n") if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{printable(str(file))} cannot be read: {error}") from None
    if count and len(names) != count:
        raise SourceError(f"{printable(str(file))} has {len(names)} names; {by} says {count}")
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is None:
        return names
    _log.warning("%s names %r twice: classes are packed as numbers alone", printable(str(file)), printable(twice))
    return None
