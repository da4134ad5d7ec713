"""Which files are a store's own: nothing else is ever removed."""

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
    """What lies at a destination is not a packstore store."""


def owned_files(path: Path) -> list[Path]:
    """All files of the store at ``path``, once it is certain that nothing else lies there.

    Raises:
        NotAStoreError: It is not a store.
        DestinationError: Its directory holds something that is not the store's.
    """
    shown = printable(str(path))
    try:
        manifest = read_manifest(path)
    except StoreError as error:
        raise NotAStoreError(f"{shown} is not a packstore store, so it is not replaced: {error}") from None
    if not path.is_dir():
        return [path]
    format: Format = FORMATS[manifest.format]
    allowed = {MANIFEST_FILE, manifest.shards.file} if manifest.shards else set(format.files)
    files: list[Path] = []
    for entry in sorted(path.iterdir()):
        shard = bool(manifest.shards) and is_shard(entry.name, format)
        if shard and format.files and entry.is_dir() and not entry.is_symlink():
            files += [_own(file, set(format.files), shown) for file in sorted(entry.iterdir())]
        else:
            files.append(_own(entry, {entry.name} if shard else allowed, shown))
    return files


def is_shard(name: str, format: Format) -> bool:
    """Whether a shard of this format can have this name."""
    found = SHARD.fullmatch(name)
    return found is not None and found["suffix"] == format.suffixes[0]


def shard_number(name: str) -> int:
    """The number in the name of a shard."""
    found = SHARD.fullmatch(name)
    assert found is not None
    return int(found["number"])


def _own(file: Path, allowed: set[str], shown: str) -> Path:
    if file.name not in allowed or file.is_symlink() or not file.is_file():
        raise DestinationError(
            f"{shown} also holds {printable(file.name)!r}, which is not the store's, so it is not replaced; "
            "move that away first"
        )
    return file


def remove_unfinished(path: Path) -> None:
    """Removes a store that was begun, whatever there is of it, by the names that packstore gives; all else stays."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    formats: list[Format] = list(FORMATS.values())
    names = {name for format in formats for name in format.files}
    for entry in sorted(path.iterdir()):
        whole = entry.name in (MANIFEST_FILE, *names) or TABLE.fullmatch(entry.name) is not None
        if whole or any(is_shard(entry.name, format) for format in formats):
            _remove_part(entry, names)
    remove_empty(path)


def remove_parts(path: Path, names: Iterable[str]) -> None:
    """Removes shards and tables of these names from the directory of a store, those that are there."""
    inner = {name for format in FORMATS.values() for name in format.files}
    for name in names:
        if SHARD.fullmatch(name) is not None or TABLE.fullmatch(name) is not None:
            _remove_part(path / name, inner)


def _remove_part(path: Path, names: Iterable[str]) -> None:
    if path.is_dir() and not path.is_symlink():
        for name in names:
            (path / name).unlink(missing_ok=True)
        remove_empty(path)
    else:
        path.unlink(missing_ok=True)
