"""Facts about the machine: processors, memory, limits, disk. Needs no library."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packstore.core.errors import printable
from packstore.core.parallel import default_workers


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about the installation or the machine.

    Attributes:
        section: Heading of the section.
        name: Name of the fact.
        value: Its value for programs, any JSON value; None if unknown.
        text: Its value for people; empty: ``value`` is shown.
        problem: The problem and its remedy; None for no problem.
    """

    section: str
    name: str
    value: Any
    text: str = ""
    problem: str | None = None


DISK_BYTES = 64 << 20
DISK_SECONDS = 10.0
"""Writing and reading stop after this time, so that a slow disk gives a figure too."""

FEW_FILES = 1024
SMALL_SHM = 1 << 30
NETWORK = ("nfs", "cifs", "smb", "fuse", "ceph", "gluster", "lustre", "beegfs", "9p", "afs")
_BLOCK = 4 << 20


def find_existing_folder(path: Path) -> Path:
    """Returns ``path`` if it is a folder, else its closest parent that is one. For a store that is a folder, returns
    the store's parent."""
    path = path.absolute()
    if path.is_dir() and ((path / "data.mdb").exists() or (path / "manifest.json").exists()):
        return path.parent
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def path_exists_fact(path: Path, folder: Path) -> Fact:
    """Returns a fact: whether ``path`` exists. The fact has a problem if the parent of ``path`` does not exist either.

    ``folder`` is the result of :func:`find_existing_folder`.
    """
    name = printable(str(path))
    if path.exists():
        return Fact("disk", "path", str(path), name)
    problem = None
    if path.absolute().parent != folder:
        problem = f"neither it nor its folder exists: the disk of {printable(str(folder))} is examined instead"
    return Fact("disk", "path", str(path), f"{name}, which does not exist yet", problem)


def processor_facts() -> list[Fact]:
    """Returns facts about the processor: model, cores that this process may use, load, and any quota of the container.

    Problems are a quota below the cores, and a load of over half of the cores.
    """
    usable, all_cores, quota = default_workers(), os.cpu_count() or 1, read_cpu_quota()
    facts = [
        Fact("processor", "model", _cpu_model()),
        Fact("processor", "cores", usable, f"{usable} of {all_cores} usable"),
    ]
    if quota is not None:
        problem = None
        if quota < usable - 0.01:
            threads = max(1, math.floor(quota))
            problem = (
                f"the default of {usable} threads exceeds the quota, which would pause them: use workers={threads}"
            )
        facts.append(Fact("processor", "quota of the container", quota, f"{quota:.3g} cores", problem))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    problem = (
        f"{load:.1f} cores were busy in the last minute, before this: rates measured now may be too low"
        if load > usable * 0.5
        else None
    )
    facts.append(Fact("processor", "load", load, f"{load:.2f} in the last minute", problem))
    return facts


def read_cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Returns the cores that the control group (version 2, else 1) allows. Returns None without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        cores = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return cores if cores > 0 else None


def memory_facts() -> list[Fact]:
    """Returns facts about memory: RAM, the container's limit if it is below the RAM, and ``/dev/shm``.

    ``/dev/shm`` below 1 GiB is a problem. Leaves out facts that the system does not tell.
    """
    facts = []
    total, available = _read_meminfo()
    if total is not None and available is not None:
        text = f"{total / 1e9:.1f} GB, {available / 1e9:.1f} GB available"
        facts.append(Fact("memory", "RAM", {"total": total, "available": available}, text))
    limit = read_memory_limit()
    if limit is not None and (total is None or limit < total):
        facts.append(Fact("memory", "limit of the container", limit, f"{limit / 1e9:.1f} GB, page cache included"))
    shm = Path("/dev/shm")
    if shm.is_dir():
        usage = shutil.disk_usage(shm)
        small = usage.total < SMALL_SHM
        problem = (
            "worker processes of DataLoader need more (docker run --shm-size=8g); PackedLoader needs none"
            if small
            else None
        )
        facts.append(Fact("memory", "/dev/shm", usage.total, f"{usage.total / 1e9:.2g} GB", problem))
    return facts


def read_memory_limit(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Returns the memory limit of the control group in bytes. Returns None without a limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def _read_meminfo() -> tuple[int | None, int | None]:
    """Returns total and available memory in bytes, each None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None, None
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    sizes = [int(fields[name][0]) * 1024 if name in fields else None for name in ("MemTotal", "MemAvailable")]
    return sizes[0], sizes[1]


def limit_facts() -> list[Fact]:
    """Returns facts about limits of this process that affect loading: open files, locked memory, address space.

    Problems are fewer than 1,024 files, a limit of the address space, and a 32-bit Python.
    """
    facts = []
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = files != resource.RLIM_INFINITY and files < FEW_FILES
    higher = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    higher = "it cannot be raised here" if hard == files else f"ulimit -n {higher}"
    problem = f"a store of many shards, and worker processes, may need more: {higher}" if few else None
    facts.append(Fact("limits", "open files", _limit_or_none(files), _format_limit(files), problem))
    if hasattr(resource, "RLIMIT_MEMLOCK"):
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        text = _format_limit(locked, bytes=True) + " (page-locked buffers of CUDA do not count)"
        facts.append(Fact("limits", "locked memory", _limit_or_none(locked), text))
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    problem = None
    if space != resource.RLIM_INFINITY:
        problem = "LMDB and mapped files take address space as large as the store: ulimit -v unlimited"
    elif sys.maxsize < 1 << 32:
        problem = "a 32-bit Python cannot map stores of more than 2 GB: use a 64-bit one"
    facts.append(
        Fact("limits", "address space (LMDB's map)", _limit_or_none(space), _format_limit(space, bytes=True), problem)
    )
    return facts


def disk_facts(folder: Path, *, measure: bool) -> list[Fact]:
    """Returns facts about the disk of ``folder``: file system and free space. With ``measure``, also its sequential
    speed.

    Problems are a network file system, a folder that cannot be read, and less than 256 MiB of free space to measure. If
    no file can be written, nothing is measured, and this is no problem.
    """
    facts = [Fact("disk", "folder", str(folder), printable(str(folder)))]
    kind = _find_file_system(folder)
    if kind is not None:
        problem = None
        if kind.startswith(NETWORK):
            problem = "a network file system: shuffle in blocks (block=1024), or copy the store to a local disk"
        facts.append(Fact("disk", "file system", kind, problem=problem))
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return [*facts, Fact("disk", "free", None, "unknown", f"the folder cannot be read: {error.strerror or error}")]
    facts.append(Fact("disk", "free", free, f"{free / 1e9:.1f} GB"))
    if not measure:
        return facts
    if free < 4 * DISK_BYTES:
        return [*facts, Fact("disk", "speed", None, "not measured: too little space is free", "free some space")]
    try:
        written, read = measure_disk_speed(folder)
    except OSError as error:
        reason = f"{error.strerror or error}"
        return [*facts, Fact("disk", "speed", None, f"not measured: no file can be written there ({reason})")]
    text = f"writes {written / 1e6:,.0f} MB/s, reads {read / 1e6:,.0f} MB/s (a file of {DISK_BYTES >> 20} MB, in order)"
    return [*facts, Fact("disk", "speed", {"write": written, "read": read}, text)]


def measure_disk_speed(folder: Path, nbytes: int = DISK_BYTES) -> tuple[float, float]:
    """Measures writing to the disk, and reading back after dropping the page cache. Returns both rates in bytes a
    second.

    Uses an unnamed temporary file, which does not outlive this process. Stops writing, and reading, after 10 seconds
    each. Raises :class:`OSError` if no file can be written.
    """
    block = os.urandom(_BLOCK)  # not zeros, which some disks do not store
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        start, size = time.perf_counter(), 0
        while size < nbytes and time.perf_counter() - start < DISK_SECONDS:
            size += file.write(block)
        os.fsync(file.fileno())
        written = size / max(time.perf_counter() - start, 1e-9)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start, size = time.perf_counter(), 0
        while time.perf_counter() - start < DISK_SECONDS and (piece := file.read(_BLOCK)):
            size += len(piece)
        return written, size / max(time.perf_counter() - start, 1e-9)


def _find_file_system(folder: Path) -> str | None:
    """Returns the type of ``folder``'s file system, such as ``ext4``; None if unknown."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return None
    best, kind = "", None
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = point == "/" or str(folder) == point or str(folder).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _cpu_model() -> str:
    """Returns the model of the CPU, or its architecture if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.processor() or platform.machine()


def _limit_or_none(limit: int) -> int | None:
    """Returns a limit, or None for an infinite one."""
    return None if limit == resource.RLIM_INFINITY else limit


def _format_limit(limit: int, bytes: bool = False) -> str:
    """Formats a limit for people: as a number, as MB with ``bytes``, or as ``unlimited``."""
    if limit == resource.RLIM_INFINITY:
        return "unlimited"
    return f"{limit / 1e6:,.1f} MB" if bytes else f"{limit:,}"
