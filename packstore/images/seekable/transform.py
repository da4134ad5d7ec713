"""Lossless transformation of JPEG files by libjpeg-turbo: by its library, or by its program ``jpegtran``.

The library works in this process, by ``tj3Transform``, which can set restart markers from version 3.1 on (see its
ChangeLog). Without it the program does the work and takes two thirds more time. Both give the same bytes (measured on
100 ImageNet files, the library of 3.1.3 against the programs of 3.1.3 and 2.1.5), and so does our engine
(:meth:`packstore.images.engine.Engine.rewrite`), which leaves to them what it does not take.

:mod:`packstore.images.turbojpeg_library` chooses the library.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
from typing import Any

from packstore.core.errors import UsageError
from packstore.images.engine import get_engine
from packstore.images.seekable.markers import NotSeekableError
from packstore.images.turbojpeg_library import find_library

_JPEGTRAN = "jpegtran"
# From turbojpeg.h.
_TRANSFORM, _OPTIMIZE, _RESTART_BLOCKS = 2, 11, 18
_FUNCTIONS = (
    "tj3TransformBufSize",  # since 3.1
    *("tj3Init", "tj3Set", "tj3Transform", "tj3GetErrorStr", "tj3Free", "tj3Destroy"),
)


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "w", "h")]


class _Transform(ctypes.Structure):
    """``tjtransform``; all zeros changes nothing and keeps all markers."""

    _fields_ = [
        ("region", _Region),
        ("operation", ctypes.c_int),
        ("options", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("filter", ctypes.c_void_p),
    ]


def transform(data: bytes, interval: int) -> bytes:
    """A baseline JPEG with the coefficients and markers of ``data``, optimal Huffman tables, and a restart marker after
    every ``interval`` MCUs, or none for 0. Drops bytes behind the end of the image.

    Raises:
        NotSeekableError: The library or program says that the file is damaged; or neither is there.
        UsageError: Neither is there, nor our engine, so that no file can be transformed.
    """
    name = find_library(*_FUNCTIONS)
    if name is not None:
        return _by_library(_load(name), data, interval)
    program = _find(os.environ.get("PATH"))
    if program is not None:
        return _by_program(program, data, interval)
    if get_engine() is None:
        raise UsageError(
            "the encoding seekable needs a C compiler when packstore is installed, or the program jpegtran, or "
            "TurboJPEG's library of version 3.1 or newer (3.0 is not enough), and none of these was there; on Debian "
            "and Ubuntu: apt install libjpeg-turbo-progs; without root: packstore guide troubleshooting"
        )
    raise NotSeekableError("takes the program jpegtran, which is not there (apt install libjpeg-turbo-progs)")


def transform_version() -> str | None:
    """Name and version of the library or program that transforms here; None without any."""
    if find_library(*_FUNCTIONS) is not None:
        return "libjpeg-turbo version 3.1 or newer (tj3Transform)"  # the library does not say which
    program = _find(os.environ.get("PATH"))
    return None if program is None else _probe(program)


@functools.cache
def _load(name: str) -> Any:
    library = ctypes.CDLL(name)
    size, handle = ctypes.c_size_t, ctypes.c_void_p
    library.tj3Init.argtypes, library.tj3Init.restype = (ctypes.c_int,), handle
    library.tj3Set.argtypes = (handle, ctypes.c_int, ctypes.c_int)
    library.tj3Transform.argtypes = (
        handle, ctypes.c_char_p, size, ctypes.c_int,
        ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(size), ctypes.POINTER(_Transform),
    )  # fmt: skip
    library.tj3GetErrorStr.argtypes, library.tj3GetErrorStr.restype = (handle,), ctypes.c_char_p
    library.tj3Free.argtypes, library.tj3Free.restype = (ctypes.c_void_p,), None
    library.tj3Destroy.argtypes, library.tj3Destroy.restype = (handle,), None
    return library


def _by_library(library: Any, data: bytes, interval: int) -> bytes:
    handle = library.tj3Init(_TRANSFORM)  # one a call, so that threads share nothing
    if not handle:
        raise MemoryError
    result, size = ctypes.c_void_p(), ctypes.c_size_t()
    try:
        failed = library.tj3Set(handle, _OPTIMIZE, 1) or library.tj3Set(handle, _RESTART_BLOCKS, interval)
        failed = failed or library.tj3Transform(
            handle, data, len(data), 1, ctypes.byref(result), ctypes.byref(size), ctypes.byref(_Transform())
        )
        if failed:
            # Warnings, too: jpegtran fails with these as well.
            raise NotSeekableError(f"is damaged: {library.tj3GetErrorStr(handle).decode('utf-8', 'replace')}")
        return ctypes.string_at(result, size.value)
    finally:
        library.tj3Free(result)
        library.tj3Destroy(handle)


@functools.cache
def _probe(program: str) -> str:
    run = subprocess.run([program, "-version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    lines = (run.stderr or run.stdout).decode("utf-8", "replace").splitlines()
    return lines[0].strip() if lines else "unknown"


@functools.cache
def _find(path: str | None) -> str | None:
    return shutil.which(_JPEGTRAN, path=path)


def _by_program(program: str, data: bytes, interval: int) -> bytes:
    command = [program, "-copy", "all", "-optimize", "-restart", f"{interval}B"]
    # Pipes, so that nothing is written to disk. This thread only waits, without the GIL, so each thread keeps one
    # program running. (With close_fds, Python starts programs in a slower way.)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, close_fds=False) as process:
        assert process.stdin is not None
        # jpegtran writes nothing before it has read everything, so one write is safe: communicate() would write pieces
        # of 4 KiB.
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # it may give up early, and says why
            stdin.write(data)
        process.stdin = None
        out, errors = process.communicate()
    if process.returncode:
        said = errors.decode("utf-8", "replace").strip().splitlines()
        raise NotSeekableError(f"is damaged: {said[-1] if said else f'jpegtran ended with {process.returncode}'}")
    return out
