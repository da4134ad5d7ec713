#!/usr/bin/env python3
"""Times this revision against another one, in turn, and marks what has become slower.

    .venv/bin/python tools/bench/against.py REV [--only CASE …] [--seconds 330] [--images FOLDER]

REV is a commit, or a folder with a packstore that is compiled in place. A commit is installed from git by pip into
build/against/COMMIT on first use, which takes a minute, and compiles its engine as that of .venv was. This revision is
the clone of this script: install it first (./tools/test install) if a C source has changed. Both run in the Python that
runs this script.

Each revision has a process that stays, and stores that it packed itself. A round runs each case once with either; the
one that begins alternates (A B, B A). The start of programs, and peak memory, are measured in new processes. A ratio is
the old time divided by the new one: above 1 is faster. There are two of each: the median of the ratios of all rounds,
and the ratio of the shortest times. A case is slower if both are below 0.93, by the clock or by CPU time. Such a case
is measured again, with up to three times as many rounds, and only the second measurement decides.

Exit code: 0, or 1 if a case stays slower or fails with this revision, 2 for wrong arguments.

Examples:
    tools/bench/against.py v0.1.0                          all cases, within six minutes
    tools/bench/against.py HEAD --only cifar-uint8 items   what you have not committed, two cases
    tools/bench/against.py --list                          the cases
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import count
from pathlib import Path
from statistics import median
from typing import Protocol

import against_cases
from against_cases import CASES, GATHER, GATHERED, THREADS
from common import machine, table

ROOT = Path(__file__).resolve().parents[2]
SLOWER = 0.93
GOAL = 0.9
"""Of the rate of bare gathers that resident images should reach."""
ROUNDS = 12
"""Of the first measurement, if the time allows."""
LONGER = 3
FIRST_SHARE = 0.65
"""Of the time after preparations; the rest is for measuring again."""


# --- revisions --------------------------------------------------------------------------------------------------------


def find_tree(revision: str) -> Path:
    """Returns the folder that PYTHONPATH names to import a revision. Installs a commit there on first use."""
    if (Path(revision) / "packstore" / "__init__.py").exists():
        return require_engine(Path(revision).resolve())
    git = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    if not commit:
        sys.exit(f"against.py: {revision} is neither a commit of {ROOT} nor a folder with a packstore")
    tree = ROOT / "build" / "against" / commit
    if not tree.exists():
        print(f"installing {commit[:10]} into {tree} ...", file=sys.stderr, flush=True)
        tree.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=tree.parent) as scratch:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", scratch]
            extra = os.environ.get("PACKSTORE_PIP_ARGS", "").split()  # as for .venv, see tools/lib.sh
            subprocess.run([*pip, *extra, f"git+{ROOT.as_uri()}@{commit}"], check=True)
            made = Path(scratch) / "tree"
            made.mkdir()
            # Alone: the metadata beside it would cost this revision time at each start.
            (Path(scratch) / "packstore").rename(made / "packstore")
            made.rename(tree)
    return require_engine(tree)


def require_engine(tree: Path) -> Path:
    """Returns the tree. Exits if its engine is not compiled: old revisions would decode without it, slowly."""
    if not any(path.name.endswith(tuple(EXTENSION_SUFFIXES)) for path in (tree / "packstore").rglob("_*")):
        sys.exit(f"against.py: no engine is compiled in {tree}; run ./tools/test install there")
    return tree


class Runner(Protocol):
    """Runs cases with a revision."""

    def prepare(self, case: str) -> str | None:
        """Returns None, or why the revision cannot run the case."""

    def run(self, case: str) -> dict[str, float]:
        """Returns measured values by quantity, of which less is better."""


class Revision:
    """A revision's worker, and its processes for single runs. ``close`` ends them."""

    def __init__(self, tree: Path, sources: Path, stores: Path, images: str) -> None:
        self.sources, self.stores, self.outs = sources, stores, count()
        stores.mkdir()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(THREADS))
        # Threads of torch that spin while they wait make a busy machine useless: a gather took 1,100 to 1,900 ms so, in
        # runs of 230 to 4,100 ms, and 120 to 210 ms if they sleep.
        threads["OMP_WAIT_POLICY"] = "PASSIVE"
        self.environment = os.environ | threads | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
        # Compiled modules are kept, as for users.
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.processes: list[subprocess.Popen[str]] = []
        command = [sys.executable, against_cases.__file__, "work", str(sources), str(stores), images]
        self.worker = self.start(command, subprocess.PIPE)

    def start(self, command: Sequence[str], stdin: int) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C is for this script, which then kills all processes of the session.
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.stores,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def ask(self, action: str, case: str) -> dict[str, float]:
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(json.dumps([action, case]) + "\n")
        self.worker.stdin.flush()
        line = self.worker.stdout.readline()
        if not line:
            code = self.worker.wait()
            sys.exit(f"against.py: the process of the {self.stores.name} revision ended at {case}: exit code {code}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def prepare(self, case: str) -> str | None:
        failed = self.ask("prepare", case).get("failed")
        if failed is None and CASES[case].command is not None:
            try:
                self.run(case)
            except subprocess.CalledProcessError as error:
                failed = f"exit code {error.returncode}"
        return None if failed is None else str(failed)

    def run(self, case: str) -> dict[str, float]:
        make_command = CASES[case].command
        if make_command is None:
            return self.ask("run", case)
        out = self.stores / f"command-{next(self.outs)}.lmdb"
        begin = time.perf_counter()
        process = self.start(make_command(self.sources, self.stores, out), subprocess.DEVNULL)
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = {"wall": time.perf_counter() - begin, "cpu": usage.ru_utime + usage.ru_stime}
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        self.processes.remove(process)
        shutil.rmtree(out, ignore_errors=True)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        if CASES[case].memory:
            return {"memory": float(usage.ru_maxrss)}
        return json.loads(said) if said.startswith("{") else seconds

    def close(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Samples:
    """Measured values of a case by quantity, in pairs of the old and the new revision."""

    pairs: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, old: dict[str, float], new: dict[str, float]) -> None:
        for quantity, value in new.items():
            self.pairs.setdefault(quantity, []).append((old[quantity], value))

    def ratios(self, quantity: str) -> tuple[float, float]:
        """Returns the median of the ratios of all pairs, and the ratio of the smallest values."""
        old, new = map(min, zip(*self.pairs[quantity], strict=True))
        return median(a / b for a, b in self.pairs[quantity]), old / new

    def is_slower(self) -> bool:
        """Returns whether both ratios of a quantity are too low. Noise rarely lowers both."""
        return any(max(self.ratios(quantity)) < SLOWER for quantity in self.pairs)


def measure(cases: Sequence[str], old: Runner, new: Runner, rounds: int, deadline: float) -> dict[str, Samples]:
    """Runs all cases in rounds, at least twice; ends before a round that would pass the deadline."""
    samples = {case: Samples() for case in cases}
    begin = time.monotonic()
    for turn in range(rounds if cases else 0):
        now = time.monotonic()
        if turn >= 2 and now + (now - begin) / turn > deadline:
            break
        for number, case in enumerate(cases):
            if (turn + number) % 2:
                second = new.run(case)
                samples[case].add(old.run(case), second)
            else:
                samples[case].add(old.run(case), new.run(case))
    return samples


@dataclass
class Outcome:
    """What a run found."""

    samples: dict[str, Samples]
    verdicts: dict[str, str]
    """Words on cases that stand out."""
    failed: bool


def compare(cases: Sequence[str], old: Runner, new: Runner, deadline: float) -> Outcome:
    """Prepares and measures the cases, and measures those again that seem slower."""
    verdicts, failed = {}, False
    for case in cases:
        if (reason := new.prepare(case)) is not None:
            verdicts[case], failed = f"FAILS: {reason}", True
        elif (reason := old.prepare(case)) is not None:
            verdicts[case] = f"n/a: {reason}"
    left = [case for case in cases if case not in verdicts]
    now = time.monotonic()
    samples = measure(left, old, new, ROUNDS, now + (deadline - now) * FIRST_SHARE)
    # The gather runs no line of packstore: it tells how quiet the machine is.
    marked = [case for case in left if samples[case].is_slower() and case != GATHER]
    if marked:
        print(f"measuring {', '.join(marked)} again ...", file=sys.stderr, flush=True)
    again = measure(marked, old, new, LONGER * ROUNDS, deadline)
    for case in marked:
        slower = again[case].is_slower()
        word = "MORE MEMORY" if CASES[case].memory else "SLOWER"
        verdicts[case] = word if slower else f"{word.lower()} at first, not again"
        failed = failed or slower
    return Outcome(samples | again, verdicts, failed)


def format_outcome(outcome: Outcome, cases: Iterable[str]) -> str:
    """Returns the table of all cases, and lines on the bare gather."""
    rows = []
    for case in cases:
        row = [case, CASES[case].about]
        samples = outcome.samples.get(case, Samples())
        for quantity in ("wall", "cpu"):
            quantity = "memory" if CASES[case].memory and quantity == "wall" else quantity
            row.append("{:.2f}, {:.2f}".format(*samples.ratios(quantity)) if quantity in samples.pairs else "")
        for quantity, unit, scale in (("memory", "MB", 1 / 1024), ("wall", "ms", 1000)):
            if quantity in samples.pairs:
                old, new = (median(side) * scale for side in zip(*samples.pairs[quantity], strict=True))
                row.append(f"{old:,.1f} → {new:,.1f} {unit}, {len(samples.pairs[quantity])} rounds")
        rows.append([*row, *[""] * (5 - len(row)), outcome.verdicts.get(case, "")])
    lines = [table(["case", "", "old / new: median, best", "the same of CPU time", "medians", ""], rows)]
    if GATHER in outcome.samples:
        control = outcome.samples[GATHER].ratios("wall")
        if not all(SLOWER < ratio < 1 / SLOWER for ratio in control):
            lines.append(f"\n{GATHER} runs no packstore and still differs: the machine is too busy for these figures.")
    if outcome.samples.keys() >= {GATHER, GATHERED}:
        bare, loaded = (outcome.samples[case].pairs["wall"] for case in (GATHER, GATHERED))
        sides = ((min(values) for values in zip(*pairs, strict=True)) for pairs in (bare, loaded))
        shares = [a / b for a, b in zip(*sides, strict=True)]
        lines.append(f"\n{GATHERED} of {GATHER}: {shares[0]:.2f} → {shares[1]:.2f} (goal: {GOAL})")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="against.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", metavar="REV", nargs="?", help="a commit, or a folder with a compiled packstore")
    parser.add_argument("--only", nargs="+", metavar="CASE", choices=CASES, default=list(CASES), help="see --list")
    parser.add_argument("--seconds", type=float, default=330, help="of the run, without the installation (default 330)")
    parser.add_argument("--images", type=Path, help="folder of JPEG files, instead of made ones")
    parser.add_argument("--scratch", type=Path, help="folder for 1.5 GB of data (default: /dev/shm if it has room)")
    parser.add_argument("--list", action="store_true", help="prints the cases")
    arguments = parser.parse_args()
    if arguments.revision is None and not arguments.list:
        parser.error("name a revision, for example HEAD")
    for folder in (arguments.images, arguments.scratch):
        if folder is not None and not folder.is_dir():
            parser.error(f"{folder} is not a folder")
    return arguments


def choose_scratch() -> str | None:
    """Returns /dev/shm if it has room: a disk makes packing wait, and its time varies."""
    memory = Path("/dev/shm")
    return str(memory) if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30 else None


def stop(number: int, frame: object) -> None:
    """Ends the script, and by that its processes. A second signal does not disturb this."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    arguments = parse_arguments()
    if arguments.list:
        print(table(["case", ""], [[name, case.about] for name, case in CASES.items()]))
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    trees = find_tree(arguments.revision), require_engine(ROOT)
    deadline = time.monotonic() + arguments.seconds
    images = "" if arguments.images is None else str(arguments.images.resolve())
    with tempfile.TemporaryDirectory(prefix="packstore-against-", dir=arguments.scratch or choose_scratch()) as folder:
        sources = Path(folder) / "sources"
        sources.mkdir()
        revisions: list[Revision] = []
        try:
            for name, tree in zip(("old", "new"), trees, strict=True):
                revisions.append(Revision(tree, sources, Path(folder) / name, images))
            outcome = compare(arguments.only, *revisions, deadline)
        finally:
            for revision in revisions:
                revision.close()
    print(format_outcome(outcome, arguments.only))
    print(f"\n{arguments.revision} → {ROOT.name}, {THREADS} threads, {machine()}")
    return int(outcome.failed)


if __name__ == "__main__":
    sys.exit(main())
