"""Keeps torch from starting its own threads inside our threads.

torch distributes work of more than 32,768 elements over a thread pool. If every core already runs one of our threads,
the two compete (a mirrored 224 x 224 image: 8 ms of CPU time instead of 26 µs, with two of our threads on two cores).
torch has one number of threads per process (``torch.set_num_threads``); OpenMP, on which its pool is built, has one per
calling thread, so it is set there directly. That is impossible outside Linux.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_LIBRARIES = ("libgomp", "libiomp5", "libomp")


def make_single_threaded() -> None:
    """Keeps torch on the calling thread from now on. For threads of our own.

    Has no effect if OpenMP's number of threads cannot be set.
    """
    _set_openmp_threads(1)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Keeps torch on the calling thread within the block. Restores its number of threads afterwards.

    If OpenMP's number cannot be set, sets torch's number for the whole process. Does nothing if torch has one thread.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    # Preferred: a thread that reads torch's process-wide number for the first time meanwhile would keep the 1.
    by_openmp = _set_openmp_threads(1)
    if not by_openmp:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if not (by_openmp and _set_openmp_threads(before)):
            torch.set_num_threads(before)


def _set_openmp_threads(count: int) -> bool:
    """Sets OpenMP's threads for the calling thread; returns True if torch then has this number."""
    torch.get_num_threads()  # torch sets a thread's number when it is first asked, and would set it again later
    for library in _find_openmp_libraries():
        library.omp_set_num_threads(count)
    return torch.get_num_threads() == count


def make_fork_single_threaded() -> None:
    """Keeps torch on the calling thread if this process is a forked child. Call it before torch works there.

    OpenMP's pool does not survive a fork: the first parallel operation would wait for it forever.
    """
    if _forked:
        make_single_threaded()


def _mark_forked() -> None:
    """Remembers that this process is a forked child."""
    global _forked
    _forked = True


_forked = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


@functools.cache
def _find_openmp_libraries() -> tuple[ctypes.CDLL, ...]:
    """Returns the OpenMP libraries that this process has loaded at the first call."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ()  # a system without /proc
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    libraries = []
    for path in sorted(paths):
        if Path(path).name.startswith(_LIBRARIES):
            try:
                library = ctypes.CDLL(path)
                library.omp_set_num_threads.argtypes = (ctypes.c_int,)
                library.omp_set_num_threads.restype = None
            except (OSError, AttributeError):  # replaced on disk since it was loaded; or of that name only
                continue
            libraries.append(library)
    return tuple(libraries)
