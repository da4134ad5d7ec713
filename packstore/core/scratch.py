"""Temporary folders; those of killed processes are removed by the next process."""

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
"""A file in each folder that is locked while the folder is in use. A killed process holds no lock."""


@contextlib.contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Creates a temporary folder under ``TMPDIR`` and removes it at the end of the block.

    First removes folders of the same ``name`` that killed processes have left. A forked process that ends the block
    removes nothing. Raises :class:`UsageError` on Windows."""
    if fcntl is None:
        raise UsageError("object stores and clusters need file locks, which Windows does not have")
    root, prefix = Path(tempfile.gettempdir()), f"packstore-{name}-"
    _remove_leftovers(root, prefix)
    process = os.getpid()
    made = Path(tempfile.mkdtemp(prefix="packstore-new-"))
    folder = root / (prefix + made.name.rpartition("-")[2])
    try:
        with (made / _LOCK).open("xb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            made.rename(folder)  # under this name it is always locked
            yield folder
    finally:
        if os.getpid() == process:
            for path in (made, folder):
                shutil.rmtree(path, ignore_errors=True)


def _remove_leftovers(directory: Path, prefix: str) -> None:
    """Removes this user's folders with this prefix that no process has locked. Skips folders that it cannot remove."""
    for folder in directory.glob(f"{prefix}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, or just removed by its process
            continue
