"""Runs an operation once for each system call that writes, failing this call and all later ones: a program for tests.

A library in C replaces these functions of the C library. LD_PRELOAD loads it, so the program starts itself again.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>
#include <sys/uio.h>
static long count, target;
static int armed, number;
void arm(long t, int e) { count = 0; target = t; number = e; armed = 1; }
long disarm(void) { armed = 0; return count; }
static int fails(int fd) {
    if (!armed || (fd >= 0 && fd <= 2)) return 0;
    if (__sync_add_and_fetch(&count, 1) < target) return 0;
    errno = number;
    return 1;
}
#define CALL(type, name, fd, declared, given) type name declared { static type (*real) declared; \
    if (!real) real = dlsym(RTLD_NEXT, #name); if (fails(fd)) return -1; return real given; }
CALL(ssize_t, write, fd, (int fd, const void *b, size_t n), (fd, b, n))
CALL(ssize_t, pwrite, fd, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o))
CALL(ssize_t, pwrite64, fd, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o))
CALL(ssize_t, writev, fd, (int fd, const struct iovec *v, int n), (fd, v, n))
CALL(ssize_t, sendfile, fd, (int fd, int in, off_t *o, size_t n), (fd, in, o, n))
CALL(ssize_t, sendfile64, fd, (int fd, int in, off64_t *o, size_t n), (fd, in, o, n))
CALL(int, rename, -1, (const char *a, const char *b), (a, b))
CALL(int, renameat2, -1, (int d, const char *a, int e, const char *b, unsigned f), (d, a, e, b, f))
CALL(int, link, -1, (const char *a, const char *b), (a, b))
CALL(int, linkat, -1, (int d, const char *a, int e, const char *b, int f), (d, a, e, b, f))
CALL(int, mkdir, -1, (const char *a, mode_t m), (a, m))
CALL(int, fsync, fd, (int fd), (fd))
CALL(int, fdatasync, fd, (int fd), (fd))
CALL(int, syncfs, fd, (int fd), (fd))
CALL(int, ftruncate, fd, (int fd, off_t n), (fd, n))
CALL(int, ftruncate64, fd, (int fd, off64_t n), (fd, n))
#define OPEN(name) int name(const char *p, int flags, ...) { static int (*real)(const char *, int, mode_t); \
    va_list a; va_start(a, flags); mode_t mode = va_arg(a, mode_t); va_end(a); \
    if (!real) real = dlsym(RTLD_NEXT, #name); \
    if (((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) && fails(-1)) return -1; return real(p, flags, mode); }
OPEN(open)
OPEN(open64)
"""
Work = Callable[[], object]


def start_with_shim(folder: Path) -> Any:
    """Starts this program again with the library, at first. Then returns the library."""
    library = folder / "shim.so"
    if str(library) not in os.environ.get("LD_PRELOAD", ""):
        (folder / "shim.c").write_text(SHIM)
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", library, folder / "shim.c", "-ldl"], check=True)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "LD_PRELOAD": str(library)})
    shim = ctypes.CDLL(str(library))
    shim.arm.argtypes = [ctypes.c_long, ctypes.c_int]
    shim.disarm.restype = ctypes.c_long
    return shim


def run_in_child(work: Work, shim: Any, call: int, error: int) -> tuple[int, str]:
    """Runs ``work`` in a forked child, whose calls fail from number ``call`` on. Returns how many there were, and the
    outcome: "done", the text of a PackstoreError, or "RAW" and another error."""
    from tests.internals import PackstoreError

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        shim.arm(call, error)
        try:
            work()
            outcome = "done"
        except PackstoreError as raised:
            outcome = f"{type(raised).__name__}: {raised}"
        except BaseException as raised:
            outcome = f"RAW {type(raised).__name__}: {raised}"
        text = f"{shim.disarm()} {outcome}".encode(errors="replace")
        os.write(writer, text)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        count, _, outcome = file.read().decode().partition(" ")
    os.waitpid(child, 0)
    return int(count or 0), outcome or "killed"


def try_each_call(begin: Work, work: Work, out: Path, shim: Any, step: int, errors: list[str]) -> dict[str, int]:
    """Fails the calls of ``work``, which writes ``out``: from every ``step``-th on. Returns the outcomes, counted.

    Calls ``begin`` before each.
    """
    outcomes: dict[str, int] = {}
    call, turn = 1, 0
    while True:
        for left in out.parent.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        begin()
        count, outcome = run_in_child(work, shim, call, getattr(errno, errors[turn % len(errors)]))
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if count < call:
            return outcomes
        call, turn = call + step, turn + 1


def main(folder: Path, name: str, step: int, errors: list[str]) -> None:
    """Tries the operation ``name`` of :mod:`tests.makers.failing_operations`; prints the outcomes as JSON."""
    shim = start_with_shim(folder)
    from tests.makers.failing_operations import prepare

    (folder / "out").mkdir(exist_ok=True)
    begin, work, out = prepare(name, folder)
    print(json.dumps(try_each_call(begin, work, out, shim, step, errors)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4].split(","))
