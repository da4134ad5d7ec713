"""Tells which files belong to a store. packstore never removes any other."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from packstore.core.errors import DestinationError, StoreError, printable
from packstore.core.files import MANIFEST_FILE, remove_empty
from packstore.core.registry import FORMATS
from packstore.core.shards import SHARD, TABLE
from packstore.stores.format import Format
from packstore.stores.opening import read_manifest


class NotAStoreError(DestinationError):
    """The destination exists and is not a packstore store."""


def list_owned_files(path: Path) -> list[Path]:
    """Lists all files of the store at ``path``. Checks first that its directory holds nothing else.

    In a sharded store, any file with the name of a shard of its format counts as the store's.

    Raises:
        NotAStoreError: There is no store at ``path``.
        DestinationError: Its directory holds a foreign file.
    """
    shown = printable(str(path))
    try:
        manifest = read_manifest(path)
    except StoreError as error:
        why = str(error).partition(";")[0]  # without advice for readers
        raise NotAStoreError(
            f"{shown} exists and is not a packstore store, which packstore never replaces; remove it yourself or "
            f"choose another name ({why})"
        ) from None
    if not path.is_dir():
        return [path]
    format: Format = FORMATS[manifest.format]
    allowed = {MANIFEST_FILE, manifest.shards.file} if manifest.shards else set(format.files)
    files: list[Path] = []
    for entry in sorted(path.iterdir()):
        shard = bool(manifest.shards) and is_shard_name(entry.name, format)
        if shard and format.files and entry.is_dir() and not entry.is_symlink():
            files += [_require_owned(file, set(format.files), shown) for file in sorted(entry.iterdir())]
        else:
            files.append(_require_owned(entry, {entry.name} if shard else allowed, shown))
    return files


def is_shard_name(name: str, format: Format) -> bool:
    """Returns whether ``name`` is a possible name of a shard of this format, such as ``shard-00042.lmdb``."""
    match = SHARD.fullmatch(name)
    return match is not None and match["suffix"] == format.suffixes[0]


def parse_shard_number(name: str) -> int:
    """Returns the number in the name of a shard. Asserts that ``name`` is the name of a shard."""
    match = SHARD.fullmatch(name)
    assert match is not None
    return int(match["number"])


def _require_owned(file: Path, allowed: set[str], shown: str) -> Path:
    """Returns ``file``. Raises :class:`DestinationError` unless it is a regular file with an allowed name."""
    if file.name not in allowed or file.is_symlink() or not file.is_file():
        raise DestinationError(
            f"{shown} also holds {printable(file.name)!r}, which is not the store's, so it is not replaced; "
            "move that file away first"
        )
    return file


def remove_unfinished(path: Path) -> None:
    """Removes the store, or the part of a store, at ``path``.

    - A file or link: removes it, whatever its name.
    - A directory: removes only files with names that packstore gives, and the directory if nothing else is in it.
    - Nothing: does nothing.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    formats: list[Format] = list(FORMATS.values())
    names = {name for format in formats for name in format.files}
    for entry in sorted(path.iterdir()):
        known = entry.name in (MANIFEST_FILE, *names) or TABLE.fullmatch(entry.name) is not None
        if known or any(is_shard_name(entry.name, format) for format in formats):
            _remove_file_or_folder(entry, names)
    remove_empty(path)


def remove_shards(path: Path, names: Iterable[str]) -> None:
    """Removes the shards and tables of shards ``names`` from a store's directory.

    Ignores other names and missing files.
    """
    inner = {name for format in FORMATS.values() for name in format.files}
    for name in names:
        if SHARD.fullmatch(name) is not None or TABLE.fullmatch(name) is not None:
            _remove_file_or_folder(path / name, inner)


def _remove_file_or_folder(path: Path, names: Iterable[str]) -> None:
    """Removes a file. Of a folder, removes the files ``names``, and the folder if nothing else is in it.

    Ignores missing files.
    """
    if path.is_dir() and not path.is_symlink():
        for name in names:
            (path / name).unlink(missing_ok=True)
        remove_empty(path)
    else:
        path.unlink(missing_ok=True)
