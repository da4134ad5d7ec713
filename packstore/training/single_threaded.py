"""Threads of ours in which torch starts no threads of its own.

torch shares out what has more than 32,768 elements to a pool of its own. Where every core already runs a thread of
ours, the two get in each other's way (a mirrored 224 x 224 image: 8 ms of processor time instead of 26 µs, with two of
our threads on two cores). torch sets its number of threads for the whole process (``torch.set_num_threads``); OpenMP,
on which its pool is built, keeps one for each calling thread, so OpenMP is asked directly. Where that is not possible,
as outside Linux, :func:`is_single_threaded` says so, and work is cut into pieces below 32,768 elements. That takes more
calls, each of which gives the GIL away and has to get it back (crops of JPEG files: 1 to 2 percent fewer images a
second).
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_LIBRARIES = ("libgomp", "libiomp5", "libomp")
_thread = threading.local()


def make_single_threaded() -> None:
    """Keeps torch on the calling thread, which should be one of ours, where that is possible."""
    _thread.single = _set_openmp_threads(1)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Keeps torch on the calling thread, whoever's it is, and gives it its number of threads back afterwards.

    Torch's own number, which is the whole process's, is set only where OpenMP's cannot be: a thread that first asked
    for it meanwhile would keep the 1.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    by_openmp = _set_openmp_threads(1)
    if not by_openmp:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if not (by_openmp and _set_openmp_threads(before)):
            torch.set_num_threads(before)


def _set_openmp_threads(count: int) -> bool:
    """Sets OpenMP's number of threads for the calling thread. Returns whether torch goes by it."""
    torch.get_num_threads()  # torch sets a thread's number when it is first asked, and would set it again later
    for library in _openmp():
        library.omp_set_num_threads(count)
    return torch.get_num_threads() == count


def begin_in_fork() -> None:
    """To be called before torch works in the calling thread: in a forked child it then starts no threads.

    OpenMP's pool does not survive a fork: the first operation that is shared out would wait for it for ever.
    """
    if _forked:
        make_single_threaded()


def _in_child() -> None:
    global _forked
    _forked = True


_forked = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def is_single_threaded() -> bool:
    """Whether :func:`make_single_threaded` has succeeded in this thread."""
    return getattr(_thread, "single", False)


@functools.cache
def _openmp() -> tuple[ctypes.CDLL, ...]:
    """The OpenMP libraries that this process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ()
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    found = []
    for path in sorted(paths):
        if Path(path).name.startswith(_LIBRARIES):
            try:
                library = ctypes.CDLL(path)
                library.omp_set_num_threads.argtypes = (ctypes.c_int,)
                library.omp_set_num_threads.restype = None
            except (OSError, AttributeError):  # replaced on disk since it was loaded; or of that name only
                continue
            found.append(library)
    return tuple(found)
