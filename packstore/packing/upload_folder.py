"""Local work folders in which stores for a URL are made before they are uploaded."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from packstore.core.errors import DestinationError, MissingStoreError, printable
from packstore.core.files import remove_empty, writing
from packstore.core.manifest import Manifest
from packstore.core.urls import UrlPath
from packstore.objects import open_objects
from packstore.stores.builder.work_directory import WorkDirectory
from packstore.stores.ownership import remove_unfinished
from packstore.stores.remote.head import read_version

_AT_ONCE = 64
NOTE = "publishing.json"
"""Name of the file in a work folder that notes which version a run is about to publish."""


def make_upload_folder(url: UrlPath, number: int = 0) -> Path:
    """Creates and returns this user's work folder for a URL, in the system's temporary folder (TMPDIR).

    The path is the same for each run: a run finds the records of an interrupted run there. Simultaneous runs use
    different numbers. Raises :class:`DestinationError` if the folder belongs to another user, or cannot be created.
    """
    root = Path(tempfile.gettempdir(), f"packstore-{os.getuid() if hasattr(os, 'getuid') else 'user'}")
    digest = hashlib.sha256(str(url).encode("utf-8", "surrogateescape")).hexdigest()
    folder = root / f"{digest[:16]}-{number}"
    with writing(folder):
        for path in (root, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            state = path.lstat()
            if not stat.S_ISDIR(state.st_mode) or (hasattr(os, "getuid") and state.st_uid != os.getuid()):
                raise DestinationError(f"{printable(str(path))} is not a folder of this user; set TMPDIR to another")
    return folder


@contextmanager
def lock_upload_folder(url: UrlPath) -> Iterator[tuple[Path, WorkDirectory]]:
    """Locks a work folder for a URL; yields a local path for the store, and a work directory.

    First deletes an unfinished store at that path. At the end deletes the work directory, an unfinished store, and the
    folder if it is empty. Raises :class:`DestinationError` if 64 other processes write to the URL.
    """
    folder, work = _lock_free_folder(url)
    path = folder / url.name
    try:
        remove_unfinished(path)  # of a run that was killed
        yield path, work
    finally:
        remove_unfinished(path)
        work.remove()
        remove_empty(folder)


def _lock_free_folder(url: UrlPath) -> tuple[Path, WorkDirectory]:
    """Locks the first free of 64 work folders for a URL; returns folder and lock.

    Raises :class:`DestinationError` if other processes hold all of them.
    """
    for number in range(_AT_ONCE):
        folder = make_upload_folder(url, number)
        with suppress(DestinationError):
            return folder, WorkDirectory(folder / "upload")
    raise DestinationError(f"{_AT_ONCE} processes of this machine write to {url} already; wait until one has finished")


def note_publishing(note: Path, request: Mapping[str, Any], version: int, manifest: Manifest) -> None:
    """Writes the file ``note`` before this run publishes: its request, and the number and digest of the new version.

    Raises :class:`DestinationError` if the file cannot be written.
    """
    with writing(note):
        note.write_text(json.dumps({"request": request, "version": version, "digest": manifest.digest}), "utf-8")


def read_published_note(url: UrlPath, note: Path) -> tuple[Any, Manifest] | None:
    """Reads the note of a run that was killed after publishing; returns its request and the published manifest.

    Returns None if there is no note, if the note is incomplete, or if its version was never published.
    """
    try:
        noted = json.loads(note.read_bytes())
        manifest = read_version(open_objects(url), noted["version"])
    except (FileNotFoundError, MissingStoreError):
        return None
    except (ValueError, TypeError, KeyError):  # the machine failed while it was written, so nothing was published
        return None
    return (noted["request"], manifest) if manifest.digest == noted["digest"] else None
