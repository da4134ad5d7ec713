"""Builds packstore with setuptools; the engine with ziglang of PyPI if no C compiler of this machine can.

pip calls these hooks (PEP 517) in the folder of ``pyproject.toml``.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.build_ext import build_ext

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ZIGLANG = "ziglang==0.17.1"
"""A C compiler with its headers and libraries, 100 MB."""

# Takes GNU C, and intrinsics that old compilers lack.
_PROBE = "packstore/images/engine/ops/points.c"


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compilers()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compilers()]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    with _compiler():
        return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    with _compiler():
        return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def _build_extensions(command: build_ext) -> None:
    """Compiles files at the same time, which setuptools compiles one after another. A wheel's engine is stripped."""
    if not command.editable_mode:  # symbols and lines stay for gdb and perf where packstore is developed
        for extension in command.extensions:
            extension.extra_link_args.append("-s")
    compile_in_turn = command.compiler.compile

    def compile_together(sources: list[str], **options: Any) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = pool.map(lambda source: compile_in_turn([source], **options), sources)
            return [path for paths in made for path in paths]

    command.compiler.compile = compile_together
    _build_in_turn(command)


_build_in_turn = build_ext.build_extensions
build_ext.build_extensions = _build_extensions


def _compilers() -> list[str]:
    return [] if _can_compile() else [ZIGLANG]


def _can_compile() -> bool:
    """Compiles a file of the engine as setuptools will: by ``CC``, or by what compiled this Python."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as scratch:
        command += ["-std=gnu11", "-shared", "-fPIC", _PROBE, "-o", f"{scratch}/probe.so"]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


@contextmanager
def _compiler() -> Iterator[None]:
    """Names ziglang as the compiler for setuptools if there is no other."""
    if _can_compile():
        yield
        return
    command = f"{shlex.quote(sys.executable)} -m ziglang cc {_target()}"
    with tempfile.TemporaryDirectory() as cache:
        caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), cache)
        # Instead of what this Python's own compiler was told, which another may refuse.
        flags = {"CC": command, "LDSHARED": f"{command} -shared", "CFLAGS": f"-fPIC {os.environ.get('CFLAGS', '')}"}
        before = dict(os.environ)
        os.environ.update(caches | flags)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _target() -> str:
    """Any processor of this kind, and any C library: by itself ziglang compiles for this very machine."""
    machine = platform.machine()
    known = machine in ("x86_64", "aarch64") and platform.libc_ver()[0] == "glibc"
    return f"-target {machine}-linux-gnu.2.17" if known else "-mcpu=baseline"
