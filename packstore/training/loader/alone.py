"""Threads in which torch works alone, without its own threads, which would get in the way of ours.

torch shares what it does with more than 32,768 elements out to a pool of its own. Where every core has a thread of ours
already, these wait for each other (a mirrored 224 x 224 image: 8 ms of processor time instead of 26 µs, with two of
our threads on two cores). OpenMP, on which torch's pool is built, keeps the number of threads for each calling thread;
torch itself only offers to set it for all (``torch.set_num_threads``), so OpenMP is asked directly. Where that is not
possible, as outside Linux, :func:`is_alone` says so, and work is cut into small pieces, which takes more calls: each
gives the GIL away and has to get it back (crops of JPEG files: 1 to 2 percent fewer images a second).
"""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path

import torch

_LIBRARIES = ("libgomp", "libiomp5", "libomp")
_thread = threading.local()


def work_alone() -> None:
    """Makes the calling thread, which should be one of ours, one in which torch works alone, where that can be."""
    torch.get_num_threads()  # torch sets a thread's number when it is first asked, and would set it again later
    for library in _openmp():
        library.omp_set_num_threads(1)
    _thread.alone = torch.get_num_threads() == 1


def is_alone() -> bool:
    """Whether :func:`work_alone` was called in this thread, with success."""
    return getattr(_thread, "alone", False)


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
