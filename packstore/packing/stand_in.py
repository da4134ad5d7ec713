"""Stores that go to a URL and have to be made on this machine first."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packstore.core.errors import DestinationError, printable
from packstore.core.files import remove_empty, writing
from packstore.core.urls import UrlPath
from packstore.stores.builder.work_directory import WorkDirectory
from packstore.stores.ownership import remove_unfinished


def stand_in_folder(url: UrlPath) -> Path:
    """The folder in which this user makes what goes to a URL, in the system's folder for temporary files (TMPDIR).

    The same for each run, so that one that is interrupted leaves nothing that the next does not find. Raises
    :class:`DestinationError` where somebody else has made it."""
    root = Path(tempfile.gettempdir(), f"packstore-{os.getuid() if hasattr(os, 'getuid') else 'user'}")
    folder = root / hashlib.sha256(str(url).encode("utf-8", "surrogateescape")).hexdigest()[:16]
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
    folder = stand_in_folder(url)
    path = folder / url.name
    work = WorkDirectory(folder / "upload")
    try:
        remove_unfinished(path)  # of a run that was killed
        yield path, work
    finally:
        remove_unfinished(path)
        work.remove()
        remove_empty(folder)
