"""Opens or scavenges a store of any format, recognised by its content and never by its name."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from packstore.core.errors import MissingStoreError, StoreError, printable
from packstore.core.files import MANIFEST_FILE, open_regular
from packstore.core.manifest import Manifest
from packstore.core.registry import FORMATS
from packstore.core.urls import UrlPath, url_message
from packstore.stores.format import Format
from packstore.stores.records import OneFile, Records

if TYPE_CHECKING:
    from packstore.stores.scavenge import RecoveredManifest, ScavengedData

START_BYTES = 512
"""First bytes of a file by which formats recognise it."""


def recognise_store(path: Path) -> Format | None:
    """Reads the first bytes at a local path and returns the format of the store, or None if it is sharded.

    Raises :class:`MissingStoreError` if nothing is there. Raises :class:`StoreError` if the file or directory is no
    store or cannot be read. The message says what is there instead.
    """
    shown = printable(str(path))
    try:
        if path.is_dir():
            return _recognise_directory(path)
        if not path.exists():
            raise MissingStoreError(url_message(path) or f"{shown} does not exist")
        if not path.is_file():
            raise StoreError(f"{shown} is neither a file nor a directory, so it is not a store")
        with path.open("rb") as file:
            start = file.read(START_BYTES)
        format = _recognise_file(path, start)
    except StoreError:  # before ValueError, which MissingStoreError is too
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise StoreError(f"{shown} cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    if format is not None:
        return format
    if path.name in (*_data_file_names(), MANIFEST_FILE):
        raise StoreError(f"{shown} is part of a store; name the directory that it is in")
    raise StoreError(f"{shown} is not a store: it begins with {start[:8]!r}" if start else f"{shown} is an empty file")


def looks_like_store(path: Path, start: bytes) -> bool:
    """Returns whether ``path`` looks like a store: a file by its first bytes, a directory by the files in it.

    Opening the store may still fail. ``start``: the first :data:`START_BYTES` of a file, empty for a directory. Raises
    :class:`OSError` if the directory cannot be read.
    """
    if not path.is_dir():
        return _recognise_file(path, start) is not None
    sharded = (path / MANIFEST_FILE).is_file() and any(path.glob("shard-*"))
    return sharded or _is_copy_of_url(path) or directory_format(path) is not None


def _recognise_file(path: Path, start: bytes) -> Format | None:
    """Returns the first format that recognises a file by its path and first bytes, or None."""
    return next((format for format in FORMATS.values() if format.recognises(path, start)), None)


def directory_format(path: Path) -> Format | None:
    """Returns the format of the unsharded store in the directory ``path``.

    Returns None for a sharded store and for a directory that is no store. Loads no plug-ins if there is a manifest
    file, which a sharded store has.
    """
    # Without plug-ins if it is sharded: loading those takes 30 ms.
    sharded = (path / MANIFEST_FILE).is_file()
    formats: Iterable[Format] = (FORMATS[name] for name in FORMATS.built_in) if sharded else FORMATS.values()
    return next((format for format in formats if format.recognises(path, b"")), None)


def _is_copy_of_url(path: Path) -> bool:
    """Returns whether a directory is a plain copy of the objects of a store at a URL."""
    if not (path / "versions").is_dir():
        return False
    from packstore.stores.remote_objects import VERSIONS, parse_version_number

    return any(parse_version_number(VERSIONS + file.name) for file in path.glob(f"{VERSIONS}*.json"))


def _recognise_directory(path: Path) -> Format | None:
    """Returns the format of a store that is a directory, or None if it is sharded."""
    if _is_copy_of_url(path):
        raise StoreError(
            f"{printable(str(path))} is a store in the layout of object stores; open it as "
            f"file://{printable(str(path.resolve()))}"
        )
    format = directory_format(path)
    if format is not None or (path / MANIFEST_FILE).is_file():
        return format
    names = ", ".join(_data_file_names())
    raise StoreError(
        f"{printable(str(path))} is a directory without {names} or {MANIFEST_FILE}, so it is not a store; pack images "
        "with packstore convert"
    )


def _data_file_names() -> list[str]:
    """Lists the data files of formats whose stores are directories, such as ``data.mdb``."""
    return [format.files[0] for format in FORMATS.values() if format.files]


def open_reader(path: Path) -> Records:
    """Opens a store of any format at a path or URL. Reads the images of a linked store from the linked files.

    Raises :class:`StoreError` if there is no valid store.
    """
    if isinstance(path, UrlPath):
        from packstore.stores.remote_shards import open_remote

        return Records(open_remote(path))
    format = recognise_store(path)
    if format is None:
        from packstore.stores.folder import open_sharded

        return Records(open_sharded(path))
    part = format.open(path)
    if part.manifest.is_linked:
        from packstore.stores.linked import Linked, link_folder

        part = Linked(part, link_folder(path))
    return Records(OneFile(part))


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest of a store at a path or URL, without opening its data.

    Raises :class:`StoreError` if there is no store with a valid manifest.
    """
    if isinstance(path, UrlPath):
        from packstore.stores.remote_shards import read_remote_manifest

        return read_remote_manifest(path)
    format = recognise_store(path)
    if format is not None:
        return format.read_manifest(path)
    from packstore.stores.folder import read_sharded_manifest

    return read_sharded_manifest(path)


def holds_store(path: Path) -> bool:
    """Returns whether a store with a valid manifest is at a path or URL. Reads only the manifest.

    Returns False for anything that cannot be read.
    """
    try:
        read_manifest(path)
    except StoreError:
        return False
    return True


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Returns the format of a name's suffix, such as ``.h5``, in any case.

    Returns None for another suffix, and for a name that is only a suffix. Reads no file.
    """
    name = Path(path).name.lower()
    for format in FORMATS.values():
        if any(name.endswith(suffix) and name != suffix for suffix in format.suffixes):
            return str(format.name)
    return None


def scavenge_file(path: Path, hint: RecoveredManifest | None = None) -> ScavengedData:
    """Recovers columns and images from an unsharded store, or a shard, even if it does not open.

    Args:
        path: Path of the store.
        hint: Its manifest, if known from elsewhere. None searches for the manifest in the file.

    Raises:
        StoreError: The file cannot be read, or nothing of a store can be found. The message says what is missing.
    """
    format = directory_format(path) if path.is_dir() else None
    file = path if format is None else format.data_file(path)
    try:
        descriptor = open_regular(file)
        try:
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is empty"
        raise StoreError(f"{printable(str(file))} cannot be read: {reason}") from error
    data = memoryview(mapped)
    if format is not None:
        return format.scavenge(path, data, hint)
    from packstore.stores.scavenge import find_manifest

    recovered = hint or find_manifest(data)
    if recovered is None:
        raise StoreError(
            f"{printable(str(path))} holds no readable manifest, and only a manifest tells where its records are"
        )
    named: Format = FORMATS[recovered.manifest.format]
    return named.scavenge(path, data, recovered)
