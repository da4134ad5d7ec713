"""Killing conversions and appends, and looking at what is left: shared by tools/kill and tests/packing/test_kill.py."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.makers.modes import ENCODINGS, convert_options, make_samples
from tests.makers.stores import content

SYSCALLS = (
    "write,pwrite64,writev,pwritev,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,"
    "fdatasync,ftruncate,fallocate"
)
"""System calls that change a file system."""
_PR_SET_PTRACER = 0x59616D61

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lmdb": (".lmdb", {"encoding": "original"}),
    "hdf5": (".h5", {"encoding": "original"}),
    "pth": (".pth", {"encoding": "uint8", "size": 32}),
    "jpeg": (".lmdb", {"encoding": "jpeg", "resize": 32}),
    "floats": (".h5", {"encoding": "float16", "size": 32}),
    "lmdb shards": (".lmdb", {"encoding": "original", "shard_size": 20_000}),
    "hdf5 shards": (".h5", {"encoding": "original", "shard_size": 20_000}),
    "pth shards": (".pth", {"encoding": "uint8", "size": 32, "shard_size": 20_000}),
    "linked lmdb": (".lmdb", {"encoding": "original", "link": True}),
    "linked hdf5 shards": (".h5", {"encoding": "original", "link": "relative", "shard_size": 20_000}),
}
"""Conversions by name: suffix of the destination, and options."""

APPENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "append to lmdb": (".lmdb", {"encoding": "original"}),
    "append to lmdb shards": (".lmdb", {"encoding": "original", "shard_size": 20_000}),
    "append to hdf5 shards": (".h5", {"encoding": "uint8", "size": 32, "shard_size": 20_000}),
    "append to pth": (".pth", {"encoding": "jpeg", "resize": 32}),
    "append to linked lmdb": (".lmdb", {"encoding": "original", "link": True}),
}
"""Stores of one split, to which the other one is appended: suffix, and options of the conversion."""
CASES |= APPENDS

INDEXED: dict[str, tuple[str, dict[str, Any]]] = {
    "index of lmdb": (".lmdb", {"encoding": "original"}),
    "index of hdf5 shards": (".h5", {"encoding": "original", "shard_size": 20_000}),
    "index of pth": (".pth", {"encoding": "original"}),
}
"""Stores that get a seek index: suffix, and options of the conversion."""
CASES |= INDEXED

DATASETS: dict[str, tuple[str, dict[str, Any]]] = {
    "dataset to lmdb": (".lmdb", {"encoding": "original"}),
    "dataset to hdf5 shards": (".h5", {"encoding": "original", "shard_size": 80_000}),
    "dataset to pth": (".pth", {"encoding": "uint8"}),
}
"""Conversions of the same images as samples with masks, boxes and text: suffix of the destination, and options."""
CASES |= DATASETS

ARRAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "arrays to lmdb": (".lmdb", {"encoding": "uint8"}),
    "arrays to hdf5 shards": (".h5", {"encoding": "float16", "shard_size": 80_000}),
    "arrays to pth": (".pth", {"encoding": "float16"}),
}
"""Conversions of the same images as arrays, with classes that are declared: suffix of the destination, and options."""
CASES |= ARRAYS

WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    "writer to lmdb shards": (".lmdb", {"encoding": "float16", "shard_size": 20_000}),
    "writer to hdf5": (".h5", {"encoding": "uint8"}),
    "writer to pth": (".pth", {"encoding": "float16"}),
}
"""Likewise, through a Writer, which starts afresh."""
CASES |= WRITERS

MODES: dict[str, tuple[str, dict[str, Any]]] = {
    f"{mode} as {encoding} to {'shards ' * bool(number % 2)}{suffix}": (
        suffix,
        {"mode": mode, "encoding": encoding, "shard_size": 400 if number % 2 else None},
    )
    for mode, encodings in ENCODINGS.items()
    for number, (encoding, suffix) in enumerate(itertools.product(encodings, (".lmdb", ".h5", ".pth")))
}
"""Conversions of samples of other modes than RGB: suffix of the destination, mode, encoding and size of shards."""

CLASSES = ("ant", "bee", "cat")


def samples(images: Path) -> list[dict[str, Any]]:
    """The images of a folder, each with values of several types."""
    files = sorted(path for path in images.rglob("*") if path.is_file())
    return [
        {
            "key": path.relative_to(images),
            "image": path,
            "mask": np.full(_size(path), i, np.uint8),
            "boxes": np.full((i % 3, 4), i, np.float32),
            "labels": list(range(i % 3)),
            "caption": "text " * i if i % 4 else None,
            "keypoints": np.full((i % 3, 3), i, np.float32),
            "about": {"number": i, "of": ["a", None]},
            "blob": bytes([i % 250]) * 50 * (i % 5),
            "vector": np.full((2, 3), i, np.float16),
            "score": i / 7 if i % 2 else None,
            "track": np.full((i % 3, 2), i, np.int16),
            "right": path,
        }
        for i, path in enumerate(files)
    ]


def arrays(images: Path) -> list[dict[str, Any]]:
    """The images of a folder as arrays, each with values of the types that have classes."""
    files = sorted(path for path in images.rglob("*") if path.is_file())
    found = []
    for i, path in enumerate(files):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB").resize((40, 32)))
        rows = [j % 3 for j in range(i % 4)]
        found.append(
            {
                "key": path.relative_to(images),
                "image": pixels,
                "label": i % 3,
                "coarse": i % 3 if i % 5 else None,
                "tags": rows if i % 7 else None,
                "boxes": np.tile(np.array([0, 0, 1 + i, 2], np.float32), (len(rows), 1)),
                "names": rows,
                "right": pixels[::2] if i % 6 else None,
            }
        )
    return found


def fields() -> dict[str, Any]:
    """What :func:`arrays` has."""
    from packstore.core.fields import Image, Label, Labels

    return {
        "image": "image",
        "label": Label(CLASSES),
        "coarse": Label(CLASSES, optional=True),
        "tags": Labels(CLASSES, of=False, optional=True),
        "boxes": "boxes",
        "names": Labels(CLASSES, of="boxes"),
        "right": Image("uint8", optional=True),
    }


def _size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.height, image.width


def prepare(case: str, images: Path, out: Path, *, overwrite: bool) -> dict[str, bytes]:
    """What lies at the destination before a case runs: its files."""
    import packstore

    if case in APPENDS:
        packstore.convert(images, out, split="train", **APPENDS[case][1])
    elif case in INDEXED:
        packstore.convert(images, out, index=False, **INDEXED[case][1])
    elif overwrite:
        packstore.convert(images, out, encoding="uint8", size=8, split="val")
    return content(out) if out.exists() else {}


def run_case(case: str, images: Path, out: Path, *, overwrite: bool = False) -> int:
    """Runs a case. Returns how many records were taken over from a run that was killed."""
    import packstore

    if case in APPENDS:
        packstore.append(out, images, split="val")
        return 0
    if case in INDEXED:
        packstore.add_index(out)
        return 0
    options = (CASES | MODES)[case][1]
    if case in MODES:
        mode, encoding = options["mode"], options["encoding"]
        named = convert_options(mode, encoding) | {"shard_size": options["shard_size"]}
        made = make_samples(mode, encoding, 40)
        return packstore.convert(made, out, encoding=encoding, overwrite=overwrite, **named).resumed
    if case in WRITERS:
        with packstore.Writer(out, fields(), overwrite=overwrite, **options) as writer:
            for sample in arrays(images):
                writer.add(**sample)
        return 0
    if case in ARRAYS:
        return packstore.convert(arrays(images), out, fields=fields(), overwrite=overwrite, **options).resumed
    source: Any = samples(images) if case in DATASETS else images
    return packstore.convert(source, out, overwrite=overwrite, **options).resumed


def named_content(path: Path) -> dict[str, bytes]:
    """The files of a store that its manifest names. A killed append may leave others."""
    from packstore.core.errors import StoreError
    from packstore.stores.opening import read_manifest

    found = content(path)
    try:
        shards = read_manifest(path).shards
    except StoreError:
        shards = None
    if shards is None:
        return found
    names = {"manifest.json", shards.file, *shards.names()}
    return {name: data for name, data in found.items() if name.partition("/")[0] in names}


class LossError(Exception):
    """Something was lost, or is there that should not be."""


@dataclass
class Tally:
    """What has been seen.

    Attributes:
        kills: Runs that were killed.
        complete: Kills that found the store complete, under its name.
        resumed: Runs after a kill that took records over.
        taken_over: These records.
        losses: What went wrong, one line each.
        calls: Kills by system call.
    """

    kills: int = 0
    complete: int = 0
    resumed: int = 0
    taken_over: int = 0
    losses: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)


def small_steps() -> None:
    """A receipt after each batch, few images a batch, and small transactions: there is more to be cut in two."""
    from packstore.packing import batches as record_packing
    from packstore.stores.lmdb import writer as lmdb_writer
    from packstore.stores.places import resuming as receipts

    receipts.EVERY_SECONDS = 0.0
    record_packing.PASS_RECORDS = record_packing.DECODE_RECORDS = 4
    lmdb_writer._TXN_BYTES = 1 << 14


def in_child(function: Callable[[], Any]) -> int:
    """Runs a function in a forked child, which does nothing else; returns its process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - this process ends here
            function()
            code = 0
        finally:
            os._exit(code)
    with suppress(PermissionError, ProcessLookupError):  # it has done so itself, or has ended
        os.setpgid(child, child)
    return child


def wait_for_lock(out: Path) -> None:
    """Waits until nobody holds the work directory of ``out``: a worker that was killed just after it was forked lets go
    a moment after the process that forked it."""
    from packstore.stores.places.work import is_held, read_owner, work_path

    left = work_path(out)
    until = time.monotonic() + 60
    while left.exists() and (owner := read_owner(left)) is not None and is_held(left, owner):
        assert time.monotonic() < until, f"{left} is still held"
        time.sleep(0.01)


@dataclass
class Known:
    """What is known of uninterrupted runs of a case, once for all kills of the same images.

    Attributes:
        content: The files of the store.
        seconds: What a run took.
        calls: Its system calls, as (name, which of this name).
    """

    content: dict[str, bytes]
    seconds: float
    calls: list[tuple[str, int]] = field(default_factory=list)


class Killer:
    """Kills conversions of one folder in a directory of its own.

    After each kill: the destination must be what it was before, or complete, to the byte; and the same conversion, run
    again, must complete it, to the byte, and leave nothing else behind.
    """

    def __init__(self, images: Path, scratch: Path, seed: int, known: dict[str, Known] | None = None) -> None:
        """``known`` is shared by those that kill conversions of the same images."""
        small_steps()
        self._images = images
        self._scratch = scratch
        self._random = random.Random(seed)
        self._known = {} if known is None else known
        self.tally = Tally()

    def reference(self, case: str) -> dict[str, bytes]:
        """What an uninterrupted conversion gives."""
        if case not in self._known:
            path = self._scratch / f"reference{(CASES | MODES)[case][0]}"
            prepare(case, self._images, path, overwrite=False)
            started = time.monotonic()
            run_case(case, self._images, path)
            self._known[case] = Known(content(path), time.monotonic() - started)
            _remove(path)
        return self._known[case].content

    def at_random(self, case: str, *, overwrite: bool) -> None:
        """Kills one conversion one to three times in a row, each at a random moment, and then lets it end."""
        expected, out = self.reference(case), self._scratch / f"out{(CASES | MODES)[case][0]}"
        before = prepare(case, self._images, out, overwrite=overwrite)
        for _ in range(self._random.randint(1, 3)):
            child = in_child(lambda: run_case(case, self._images, out, overwrite=overwrite))
            # Started from a process that has loaded everything, a run takes about as long as the reference did.
            time.sleep(self._random.random() * 1.3 * self._known[case].seconds)
            os.kill(child, signal.SIGKILL)
            if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
                break  # it was quicker
            wait_for_lock(out)
            self.tally.kills += 1
            self.look(case, out, before)
            if out.exists() and named_content(out) == expected:
                break
        self.finish(case, out, overwrite)

    def at_calls(self, case: str, every: int = 1, first: int = 0) -> int:
        """Kills a conversion at each ``every``-th system call that changes the file system, by strace. Returns how many
        such calls it makes."""
        suffix, _ = (CASES | MODES)[case]
        self.reference(case)
        out = self._scratch / f"out{suffix}"
        calls = list(self._calls(case, out))
        for number, (call, count) in enumerate(calls):
            if number % every != first:
                continue
            before = prepare(case, self._images, out, overwrite=False)
            _, status, said = self._traced(case, out, f"trace={call}", f"inject={call}:signal=KILL:when={count}")
            if not os.WIFSIGNALED(status):
                raise LossError(f"{case}: {call} number {count}: exit code {os.waitstatus_to_exitcode(status)}: {said}")
            wait_for_lock(out)
            self.tally.kills += 1
            self.tally.calls[call] += 1
            self.look(f"{case} at {call} number {count}", out, before)
            self.finish(case, out, overwrite=False)
        return len(calls)

    def look(self, case: str, out: Path, before: dict[str, bytes]) -> None:
        """The destination is what it was, or complete."""
        there = named_content(out) if out.exists() else {}
        if there == self._known[case.partition(" at ")[0]].content:
            self.tally.complete += 1
        elif there != before:
            self.tally.losses.append(f"{case}: after a kill something else lies at the destination")

    def finish(self, case: str, out: Path, overwrite: bool) -> None:
        """The same conversion again: it completes the store, and nothing else is left."""
        import packstore
        from packstore.core.errors import DestinationError
        from packstore.stores.places.leftovers import find_leftovers, remove_leftover
        from packstore.stores.places.work import OWNER

        try:
            resumed = run_case(case, self._images, out, overwrite=overwrite)
            self.tally.resumed += resumed > 0
            self.tally.taken_over += resumed
        except DestinationError as error:
            # Complete already, and the work directory gone as far as this could be told from its receipt.
            if not out.exists() or "exists already" not in str(error):
                self.tally.losses.append(f"{case}: {error}")
        except Exception as error:
            # An append, likewise.
            if case not in APPENDS or "of the keys of" not in str(error):
                self.tally.losses.append(f"{case}: {type(error).__name__}: {error}")
        found = content(out) if out.exists() else {}
        if found != self.reference(case):
            self.tally.losses.append(f"{case}: the store that was completed differs from one made without a kill")
        else:
            verified = packstore.verify(out)
            if not verified.ok:
                self.tally.losses.append(f"{case}: {verified.problems[0].what}")
        _remove(out)
        # Killed in the very last moments, a run may leave its work directory, with at most its owner in it.
        for leftover in find_leftovers(self._scratch):
            if any(p.name != OWNER for p in leftover.path.rglob("*") if not p.is_dir()):
                self.tally.losses.append(f"{case}: {leftover.path} still holds something")
            remove_leftover(leftover)
        left = [str(p) for p in self._scratch.rglob("*")]
        if left:
            self.tally.losses.append(f"{case}: left over: {left}")
            for path in self._scratch.iterdir():
                _remove(path)

    def _calls(self, case: str, out: Path) -> list[tuple[str, int]]:
        """The calls of an uninterrupted run. Threads count by themselves for strace, so only those of the first, which
        does all but the syncing, are listed."""
        known = self._known[case]
        if not known.calls:
            log = self._scratch.with_name(f"{self._scratch.name}.trace")
            prepare(case, self._images, out, overwrite=False)
            child, status, said = self._traced(case, out, f"trace={SYSCALLS}", log=log)
            if status:
                raise LossError(f"{case}: the traced run failed: {said}")
            _remove(out)
            lines = log.read_text(errors="replace").splitlines()
            log.unlink()
            seen: Counter[str] = Counter()
            for line in lines:
                thread, _, rest = line.partition(" ")
                name = rest.lstrip().partition("(")[0]
                if thread == str(child) and name in SYSCALLS.split(","):
                    seen[name] += 1
                    known.calls.append((name, seen[name]))
        return known.calls

    def _traced(self, case: str, out: Path, *expressions: str, log: Path | None = None) -> tuple[int, int, str]:
        """Runs a case in a forked child to which strace attaches: its id, its wait status, and what strace says.

        A Python of its own would have to import everything each time, which takes longer than all the rest.
        """
        ready, go = os.pipe()

        def run() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)  # strace is no ancestor of it
            os.read(ready, 1)
            run_case(case, self._images, out)

        child = in_child(run)
        try:
            arguments = [*(word for each in expressions for word in ("-e", each)), "-p", str(child)]
            with subprocess.Popen(
                ["strace", "-f", "-o", str(log or os.devnull), *arguments], stderr=subprocess.PIPE, text=True
            ) as strace:
                assert strace.stderr is not None
                said = strace.stderr.readline()  # that it is attached
                os.write(go, b"x")
                status = os.waitpid(child, 0)[1]
                return child, status, said + strace.stderr.read()
        finally:
            os.close(ready)
            os.close(go)


def can_trace() -> bool:
    """Whether strace is there and may trace."""
    try:
        return subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
