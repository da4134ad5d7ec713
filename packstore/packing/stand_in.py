"""Stores that go to a URL and have to be made on this machine first."""

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
"""The name of a file beside a stand-in: what a run is about to publish."""


def stand_in_folder(url: UrlPath, number: int = 0) -> Path:
    """The folder in which this user makes what goes to a URL, in the system's folder for temporary files (TMPDIR).

    The same for each run, so that one that is interrupted leaves nothing that the next does not find; several runs at
    once take several numbers. Raises :class:`DestinationError` where somebody else has made it."""
    root = Path(tempfile.gettempdir(), f"packstore-{os.getuid() if hasattr(os, 'getuid') else 'user'}")
    digest = hashlib.sha256(str(url).encode("utf-8", "surrogateescape")).hexdigest()
    folder = root / f"{digest[:16]}-{number}"
    with writing(folder):
        for path in (root, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
                raise DestinationError(f"{printable(str(path))} is not a folder of this user; set TMPDIR to another")
    return folder


@contextmanager
def stand_in(url: UrlPath) -> Iterator[tuple[Path, WorkDirectory]]:
    """A local path of the same name, and a work directory that no other process has meanwhile.

    What is there in the end is removed."""
    folder, work = _held_folder(url)
    path = folder / url.name
    try:
        remove_unfinished(path)  # of a run that was killed
        yield path, work
    finally:
        remove_unfinished(path)
        work.remove()
        remove_empty(folder)


def _held_folder(url: UrlPath) -> tuple[Path, WorkDirectory]:
    """The first folder for a URL in which no other process is at work, and its work directory."""
    for number in range(_AT_ONCE):
        folder = stand_in_folder(url, number)
        with suppress(DestinationError):
            return folder, WorkDirectory(folder / "upload")
    raise DestinationError(f"{_AT_ONCE} processes of this machine write to {url} already; wait for some of them")


def note_publishing(note: Path, request: Mapping[str, Any], version: int, manifest: Manifest) -> None:
    """Notes what a run was asked for, and what it is about to publish for that."""
    with writing(note):
        note.write_text(json.dumps({"request": request, "version": version, "digest": manifest.digest}), "utf-8")


def published_by(url: UrlPath, note: Path) -> tuple[Any, Manifest] | None:
    """What a run was asked for that was killed when its version was there already, and that version; None where the
    note of no such run lies here."""
    try:
        noted = json.loads(note.read_bytes())
        found = read_version(open_objects(url), noted["version"])
    except (FileNotFoundError, MissingStoreError):
        return None
    except (ValueError, TypeError, KeyError):  # the machine failed while it was written, so nothing was published
        return None
    return (noted["request"], found) if found.digest == noted["digest"] else None
