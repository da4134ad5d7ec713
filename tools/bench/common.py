"""What the measuring scripts share: timing of whole processes, medians, the machine in words, Markdown tables.

Machines are noisy, so every script compares things within one run, in turn (A B A B …), and gives ratios of medians.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

# As users run it: with compiled modules kept, which some development environments switch off.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Run:
    """One run of a process: wall-clock and processor seconds (user and system, children included)."""

    wall: float
    cpu: float


def run_process(command: Sequence[str], *, before: Callable[[], None] | None = None) -> Run:
    """Runs a command to its end, output thrown away; raises when it fails. ``before`` is not timed."""
    if before is not None:
        before()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=_ENVIRONMENT)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(wall, after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime)


def interleaved(jobs: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Runs every job once for warm-up, then all of them in turn ``repeats`` times; the median of each."""
    for job in jobs.values():
        job()
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            seconds[name].append(job())
    return {name: median(values) for name, values in seconds.items()}


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def machine() -> str:
    """The machine and the date, for the line under a table."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores ({model}), {platform.system()}, Python {platform.python_version()}, {date.today()}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def packstore_command() -> list[str]:
    """The ``packstore`` of the interpreter that runs the script."""
    return [str(Path(sys.executable).parent / "packstore")]
