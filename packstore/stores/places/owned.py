"""Tells which files belong to a store or an export. packstore never removes any other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from packstore.core.errors import DestinationError, ManifestError, StoreError, printable
from packstore.core.files import MANIFEST_FILE, remove_empty
from packstore.core.registry import EXPORTS, FORMATS
from packstore.core.shards import SHARD, TABLE
from packstore.stores.export_manifest import MANIFEST_FILE as EXPORT_MANIFEST_FILE
from packstore.stores.export_manifest import ROWS_FILE, ExportManifest, RecordLines, names_sidecar, read_export_manifest
from packstore.stores.format import Format
from packstore.stores.opening import read_manifest


class NotAStoreError(DestinationError):
    """The destination exists and is neither a store nor an export of packstore."""


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
    """Returns the number in the name of a shard."""
    match = SHARD.fullmatch(name)
    assert match is not None
    return int(match["number"])


def _require_owned(file: Path, allowed: set[str], shown: str) -> Path:
    """Returns ``file``, or raises :class:`DestinationError` unless it is a regular file with an allowed name."""
    if file.name not in allowed or file.is_symlink() or not file.is_file():
        raise DestinationError(
            f"{shown} also holds {printable(file.name)!r}, which is not the store's, so it is not replaced; "
            "move that file away first"
        )
    return file


def remove_unfinished(path: Path) -> None:
    """Removes the file, or the store, or the part of a store, at ``path``, if anything is there.

    Of a directory, removes only files with names that packstore gives, and the directory if nothing else is in it.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    formats: list[Format] = list(FORMATS.values())
    names = {MANIFEST_FILE, *(name for format in formats for name in format.files)}
    for entry in sorted(path.iterdir()):
        if entry.name in names or TABLE.fullmatch(entry.name) or any(is_shard_name(entry.name, f) for f in formats):
            remove_unfinished(entry)
    remove_empty(path)


def remove_shards(path: Path, names: Iterable[str]) -> None:
    """Removes the shards and tables of shards ``names`` from a store's directory. Ignores other names."""
    for name in names:
        if SHARD.fullmatch(name) is not None or TABLE.fullmatch(name) is not None:
            remove_unfinished(path / name)


def find_owned_files(path: Path) -> list[Path]:
    """Lists all files of the export at ``path``. Refuses a folder with other files.

    Raises:
        NotAStoreError: ``path`` is not an export of packstore, or its manifest is damaged.
        DestinationError: The folder also holds a file that is not the export's.
    """
    shown = printable(str(path))
    try:
        export_manifest = read_manifest_of_export(path)
    except (ManifestError, OSError, ValueError) as error:
        raise NotAStoreError(f"{shown} is not an export of packstore, so it is not replaced: {error}") from None
    if export_manifest is None:
        raise NotAStoreError(
            f"{shown} exists and is not an export of packstore, which never replaces anything else; remove it yourself "
            "or choose another name"
        )
    if not path.is_dir():
        return [path]
    root = os.fsencode(path)  # names may be of any bytes
    files = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]  # noqa: PTH118
    names = [os.path.relpath(file, root).replace(os.sep.encode(), b"/") for file in files]
    refuse_foreign_names(names, export_manifest, lambda: RecordLines.map_file(path / ROWS_FILE), shown)
    return [Path(os.fsdecode(file)) for file in files]


def read_manifest_of_export(path: Path) -> ExportManifest | None:
    """Reads the export manifest of an export, a folder or one file. Returns None if ``path`` is no export, or is bare.

    Raises :class:`ManifestError` for a damaged manifest, and :class:`OSError`.
    """
    if path.is_dir():
        return read_export_manifest(path)
    return read_manifest_of_file(path) if path.is_file() else None  # opening a pipe would wait for a writer


def read_manifest_of_file(path: Path) -> ExportManifest | None:
    """Reads the export manifest from an export of one file, of any kind. Returns None if ``path`` is no export.

    Raises :class:`ManifestError` for a damaged manifest, and :class:`OSError`.
    """
    found = (kind.read_export_manifest(path) for kind in EXPORTS.values() if kind.one_file)
    return next((export_manifest for export_manifest in found if export_manifest is not None), None)


def refuse_foreign_names(
    names: Iterable[bytes], export_manifest: ExportManifest, read_lines: Callable[[], RecordLines], shown: str
) -> None:
    """Raises :class:`DestinationError` if one of the paths ``names``, relative to an export, is not the export's.

    ``read_lines`` reads the record lines. Called only if records may be files of their own.
    """
    own = {EXPORT_MANIFEST_FILE, *export_manifest.files, *(shard.file for shard in export_manifest.shards)}
    if export_manifest.rows:
        own.add(ROWS_FILE)
    if export_manifest.rows and not export_manifest.shards:
        with suppress(OSError, ValueError):  # lines that cannot be read name no files
            lines = read_lines()
            each = (lines[i].items() for i in range(len(lines)))
            named = (file for line in each for name, file in line if name == "file" or names_sidecar(name))
            own |= {file for file in named if isinstance(file, str)}
    allowed = set(map(os.fsencode, own))
    foreign = next((name for name in names if name not in allowed), None)
    if foreign is not None:
        raise DestinationError(
            f"{shown} also holds {printable(os.fsdecode(foreign))!r}, which is not the export's, so it is not "
            "replaced; move that away first"
        )
