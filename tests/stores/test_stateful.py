"""A machine that converts, cuts short, kills, damages, cleans and moves, beside a model of what must be there.

The model is a fresh conversion, with the same options at the same moment, into another directory. For a longer run:
``./tools/test soak stores -k stateful``.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import packstore
from tests.internals import (
    DestinationError,
    PackstoreError,
    Progress,
    StoreError,
    find_leftovers,
    is_held,
    read_owner,
    remove_leftover,
    work_path,
)
from tests.internals import work_directory as work
from tests.internals import writer as lmdb_writer
from tests.makers.datasets import write_image
from tests.makers.interrupted import CutError, take_small_steps
from tests.makers.stores import content, files_of

Content = dict[str, bytes]

OPTIONS = st.fixed_dictionaries(
    {
        "encoding": st.sampled_from(("original", "uint8", "jpeg")),
        "shard_size": st.sampled_from((None, 1500)),
        "on_error": st.sampled_from(("raise", "skip")),
        "overwrite": st.booleans(),
    }
)


def delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def records(reader: Any) -> list[bytes]:
    return [bytes(reader.view(record)) for record in range(len(reader))]


class Life(RuleBasedStateMachine):
    """One source, one destination, and what may happen to them."""

    taken_over = 0  # records, by all machines

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        take_small_steps(self.patch)
        self.patch.setattr(lmdb_writer, "_TXN_BYTES", 1)
        self.root = Path(tempfile.mkdtemp(prefix="packstore-life-"))
        self.source, self.other = self.root / "photos", self.root / "reference"
        self.other.mkdir()
        self.seed = 0
        self.model: Content | None = None
        self.latest: dict[str, Any] | None = None  # options of the run that did not end
        self.faithful = False  # the source is what the store was made from, byte for byte
        self.readers: list[tuple[Any, list[bytes]]] = []

    @initialize(suffix=st.sampled_from((".lmdb", ".h5", ".pth")))
    def begin(self, suffix: str) -> None:
        self.out = self.root / f"out{suffix}"
        for name in ("ant", "bee"):
            for i in range(5):
                self.write(self.source / name / f"{i}{('.png', '.jpg')[i % 2]}")

    def write(self, path: Path) -> None:
        self.seed += 1
        write_image(path, 12 + self.seed % 3, 14, self.seed)

    def images(self) -> list[Path]:
        return files_of(self.source)

    def expected(self, options: dict[str, Any]) -> Content | None:
        """The bytes that a fresh conversion gives; None where it fails."""
        reference = self.other / self.out.name
        try:
            packstore.convert(self.source, reference, workers=1, **options)
        except PackstoreError:
            return None
        else:
            return content(reference)
        finally:
            delete(reference)
            delete(work_path(reference))

    @rule(options=OPTIONS)
    def convert(self, options: dict[str, Any]) -> None:
        expected = self.expected(options)
        if expected is None:
            with pytest.raises(PackstoreError):
                packstore.convert(self.source, self.out, workers=1, **options)
            return
        try:
            report = packstore.convert(self.source, self.out, workers=1, **options)
        except DestinationError:
            assert self.model is not None
            assert not options["overwrite"]
            return
        # With a store there and no overwriting, it may only be a run that had ended but for its cleaning up.
        assert self.model is None or options["overwrite"] or self.model == expected
        type(self).taken_over += report.resumed
        self.model = expected
        self.faithful = options["encoding"] == "original" and not report.skipped
        assert not work_path(self.out).exists()

    @precondition(lambda self: self.latest is not None)
    @rule()
    def convert_again(self) -> None:
        """The same command again."""
        assert self.latest is not None
        self.convert(self.latest)

    @rule(options=OPTIONS)
    def convert_killed_when_all_is_done(self, options: dict[str, Any]) -> None:
        """Between the rename and the cleaning up."""
        expected = self.expected(options)
        self.latest = options
        child = os.fork()
        if child == 0:
            try:
                work.WorkDirectory.remove = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
                packstore.convert(self.source, self.out, workers=1, **options)
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        if expected is not None and (self.model is None or options["overwrite"]):
            self.model = expected
            self.faithful = False

    @precondition(lambda self: work_path(self.out).exists())
    @rule(file=st.integers(0, 99), where=st.floats(0, 1, exclude_max=True))
    def damage_what_was_left(self, file: int, where: float) -> None:
        files = [path for path in files_of(work_path(self.out)) if path.name != "owner" and path.stat().st_size]
        if files:
            path = files[file % len(files)]
            data = bytearray(path.read_bytes())
            data[int(where * len(data))] ^= 0x10
            path.write_bytes(data)

    @rule(options=OPTIONS, after=st.integers(0, 12))
    def convert_cut_short(self, options: dict[str, Any], after: int) -> None:
        self.latest = options

        def progress(report: Progress) -> None:
            if report.stage == "pack" and report.done >= min(after, report.total):
                raise CutError

        # A run that was killed when all was done is ended without any packing, and so without a moment to cut it short.
        with suppress(CutError, PackstoreError):
            packstore.convert(self.source, self.out, progress=progress, workers=1, **options)

    @rule(options=OPTIONS, after=st.integers(0, 12))
    def convert_killed(self, options: dict[str, Any], after: int) -> None:
        self.latest = options

        def progress(report: Progress) -> None:
            if report.stage == "pack" and report.done >= min(after, report.total):
                os.kill(os.getpid(), signal.SIGKILL)

        child = os.fork()
        if child == 0:
            try:
                packstore.convert(self.source, self.out, progress=progress, workers=1, **options)
            except PackstoreError:
                os._exit(1)
            finally:
                os._exit(2)
        status = os.waitpid(child, 0)[1]
        assert os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, 1, 2)  # 2: it ended, see convert_cut_short

    @rule(what=st.sampled_from(("add", "remove", "touch", "rewrite", "swap", "spoil")), which=st.integers(0, 99))
    def change_the_source(self, what: str, which: int) -> None:
        images = self.images()
        path = images[which % len(images)]
        if what == "add":
            self.seed += 1
            self.write(path.with_name(f"new{self.seed}.png"))
        elif what == "remove" and len(images) > 4:
            path.unlink()
        elif what == "touch":
            os.utime(path, ns=(1, self.seed))
            self.seed += 1
        elif what == "rewrite":
            self.write(path)
        elif what == "swap":
            # As many files of as many bytes in all, and of the same names.
            other = images[(which + 2) % len(images)]
            path.rename(path.with_name("aside"))
            other.rename(path)
            path.with_name("aside").rename(other)
        elif what == "spoil":
            path.write_bytes(path.read_bytes()[:10])
        self.faithful = self.faithful and what == "touch"

    @precondition(lambda self: self.model is not None and len(self.readers) < 3)
    @rule()
    def keep_a_reader(self) -> None:
        reader = packstore.open(self.out)
        self.readers.append((reader, records(reader)))

    @precondition(lambda self: self.readers)
    @rule()
    def read_kept_readers(self) -> None:
        for reader, held in self.readers:
            assert records(reader) == held

    @precondition(lambda self: self.model is not None)
    @rule()
    def verify(self) -> None:
        against = self.source if self.faithful else None
        report = packstore.verify(self.out, against=against, workers=1)
        assert report.ok, report.problems

    @precondition(lambda self: self.model is not None)
    @rule(file=st.integers(0, 99), where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
    def damage(self, file: int, where: float, flip: int) -> None:
        files = files_of(self.out)
        path = files[file % len(files)]
        reader = packstore.open(self.out)
        whole = records(reader)
        reader.close()
        data = path.read_bytes()
        at = int(where * len(data))
        with path.open("r+b") as opened:  # in place: kept readers have this file
            opened.seek(at)
            opened.write(bytes([data[at] ^ flip]))
        try:
            try:
                noticed = not packstore.verify(self.out, workers=1).ok
            except StoreError:
                noticed = True
            if not noticed:
                reader = packstore.open(self.out)
                assert records(reader) == whole, f"byte {at} of {path.name}"
                reader.close()
        finally:
            with path.open("r+b") as opened:
                opened.seek(at)
                opened.write(data[at : at + 1])

    @rule()
    def clean(self) -> None:
        for leftover in list(find_leftovers(self.root)):
            remove_leftover(leftover)
        assert not work_path(self.out).exists()

    @precondition(lambda self: self.model is not None)
    @rule(back=st.booleans())
    def move(self, back: bool) -> None:
        moved = self.other / f"moved{self.out.suffix}"
        self.out.rename(moved)
        packstore.open(moved).close()
        assert content(moved) == self.model
        if back:
            moved.rename(self.out)
        else:
            delete(moved)
            self.model = None

    @invariant()
    def the_store_is_what_it_must_be(self) -> None:
        if not hasattr(self, "out"):
            return
        if self.model is None:
            assert not os.path.lexists(self.out)
        else:
            packstore.open(self.out).close()
            assert content(self.out) == self.model

    @invariant()
    def nothing_else_lies_about(self) -> None:
        if not hasattr(self, "out"):
            return
        left = work_path(self.out)
        assert {p.name for p in self.root.iterdir()} <= {"photos", "reference", self.out.name, left.name}
        assert not list(self.other.iterdir())
        if left.exists():
            owner = read_owner(left)
            assert owner is not None
            assert not is_held(left, owner)

    def teardown(self) -> None:
        for reader, _ in self.readers:
            reader.close()
        self.patch.undo()
        shutil.rmtree(self.root)


LIFE = settings(max_examples=max(15, settings().max_examples * 15 // 40), stateful_step_count=15, print_blob=True)


@pytest.mark.slow
@pytest.mark.hypothesis
def test_a_life_of_a_store() -> None:
    Life.taken_over = 0
    for times in (1, 2, 4, 8, 16):  # a few lives may have no interrupted run that is gone on with, by chance
        run_state_machine_as_test(Life, settings=settings(LIFE, max_examples=LIFE.max_examples * times))
        if Life.taken_over > 0:
            break
    assert Life.taken_over > 0
