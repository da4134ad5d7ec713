"""Temporary folders that a killed process leaves, and the next one removes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packstore.core.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK = ".packstore-scratch"
"""A file in such a folder, locked as long as it is in use: what a killed process has left has none."""


@contextlib.contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A folder of its own on this machine's disk, under ``TMPDIR``. Removes those of this name that were left.

    A forked process that leaves it removes nothing."""
    if fcntl is None:
        raise UsageError("object stores and clusters need file locks, which Windows does not have")
    root, prefix = Path(tempfile.gettempdir()), f"packstore-{name}-"
    _remove_left(root, prefix)
    process = os.getpid()
    made = Path(tempfile.mkdtemp(prefix="packstore-new-"))
    folder = root / (prefix + made.name.rpartition("-")[2])
    try:
        with (made / _LOCK).open("xb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            made.rename(folder)  # whoever finds it by this name finds it locked
            yield folder
    finally:
        if os.getpid() == process:
            for path in (made, folder):
                shutil.rmtree(path, ignore_errors=True)


def _remove_left(directory: Path, prefix: str) -> None:
    for folder in directory.glob(f"{prefix}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its process runs, or has just ended
            continue
