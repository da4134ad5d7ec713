"""Any sequence of conversions, appends, merges, selections, exports, repairs and kills, against a model."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule, run_state_machine_as_test

import packstore
from packstore.stores import open_store
from tests.internals import SourceError, StoreError, find_leftovers, work_path
from tests.makers.datasets import CLASSES, make_folder
from tests.makers.stores import content, damage
from tests.makers.tiers import examples

SUFFIXES = (".lmdb", ".h5", ".pth")
SPLITS = ("train", "val")
PER_CLASS = 3


class Record(NamedTuple):
    """What the model knows of a record: key, class, and digest of the image file."""

    key: str
    name: str
    digest: str


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


@dataclass
class Stored:
    """A store, and what it must hold: records by split, in order."""

    path: Path
    splits: dict[str, list[Record]]
    classes: tuple[str, ...]

    @property
    def records(self) -> list[Record]:
        return [record for records in self.splits.values() for record in records]

    @property
    def keys(self) -> set[str]:
        return {record.key for record in self.records}

    def add(self, other: Stored) -> None:
        """Adds the records of another whose keys are new."""
        known = self.keys
        for split, records in other.splits.items():
            new = [record for record in records if record.key not in known]
            if new:
                self.splits.setdefault(split, []).extend(new)
        if other.keys - known:
            self.classes = tuple(dict.fromkeys([*self.classes, *other.classes]))

    def copy(self, path: Path) -> Stored:
        return replace(self, path=path, splits={split: [*records] for split, records in self.splits.items()})


def read(path: Path) -> dict[str, list[Record]]:
    with open_store(path) as reader:
        labels, classes = reader.fixed_column("label").tolist(), reader.manifest.classes
        assert classes is not None
        rows = [Record(reader.key(i), classes[labels[i]], digest(bytes(reader.read(i)))) for i in range(len(reader))]
        return {split.name: rows[split.start : split.stop] for split in reader.manifest.splits}


def check(store: Stored) -> None:
    """The store holds what the model says, is whole, and nothing lies beside it."""
    assert read(store.path) == store.splits
    manifest = packstore.open(store.path).manifest
    assert manifest.classes == store.classes
    assert packstore.verify(store.path).problems == ()
    assert not work_path(store.path).exists()


def die_at(event: int, folder: Path, run: Any) -> bool:
    """Runs ``run`` in a child, which dies at the given event that touches files in ``folder``. Tells if it died.

    Events are what Python audits: files that are opened, linked, renamed, removed; calls of the system by ctypes.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    seen = count()

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        touches = any(str(folder) in os.fsdecode(a) for a in arguments if isinstance(a, str | bytes | os.PathLike))
        if (touches or name == "ctypes.dlsym") and next(seen) == event:
            os._exit(9)

    try:
        sys.addaudithook(audit)
        run()
        os._exit(0)
    except BaseException:
        os._exit(1)


wanted = st.tuples(
    st.sets(st.sampled_from(SPLITS), min_size=1),
    st.sets(st.sampled_from(CLASSES), min_size=1),
    st.sets(st.integers(0, PER_CLASS - 1), min_size=1),
)
suffixes, shard_sizes = st.sampled_from(SUFFIXES), st.sampled_from([None, 700, 2000])
same_or_other = st.none() | suffixes  # only shards of the same format are linked


class Stores(RuleBasedStateMachine):
    """Stores of some of the photos, made from each other. Each rule checks the stores that it makes or changes."""

    stores = Bundle("stores")
    photos: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=self.photos.parent))
        self.numbers = count()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def name(self, suffix: str = "") -> Path:
        return self.folder / f"{next(self.numbers)}{suffix}"

    def make_source(self, chosen: tuple[set[str], set[str], set[int]]) -> Stored:
        """A folder with the photos of some splits and classes, with some numbers."""
        source = Stored(self.name(), {}, tuple(sorted(chosen[1])))
        for split in sorted(chosen[0]):
            files = [file for name in source.classes for file in sorted((self.photos / split / name).iterdir())]
            files = [file for file in files if int(file.stem) in chosen[2]]
            source.splits[split] = []
            for file in files:
                key = str(file.relative_to(self.photos))
                (source.path / key).parent.mkdir(parents=True, exist_ok=True)
                os.link(file, source.path / key)
                source.splits[split].append(Record(key, file.parent.name, digest(file.read_bytes())))
        return source

    @rule(target=stores, chosen=wanted, suffix=suffixes, shard_size=shard_sizes)
    def convert(self, chosen: Any, suffix: str, shard_size: int | None) -> Stored:
        source = self.make_source(chosen)
        store = source.copy(self.name(suffix))
        packstore.convert(source.path, store.path, encoding="original", shard_size=shard_size)
        check(store)
        return store

    def append_to(self, store: Stored, source: Stored) -> None:
        before = content(store.path)
        if store.keys & source.keys:
            with pytest.raises(SourceError, match="of the keys of"):
                packstore.append(store.path, source.path)
            assert content(store.path) == before
        report = packstore.append(store.path, source.path, on_duplicate="skip")
        assert report.duplicates == len(store.keys & source.keys)
        assert sum(report.added.values()) == len(source.keys - store.keys)
        store.add(source)
        check(store)

    @rule(store=stores, chosen=wanted)
    def append_folder(self, store: Stored, chosen: Any) -> None:
        self.append_to(store, self.make_source(chosen))

    @rule(store=stores, source=stores)
    def append_store(self, store: Stored, source: Stored) -> None:
        if store is not source:
            self.append_to(store, source)

    @rule(store=stores, chosen=wanted, event=st.integers(0, 60))
    def append_and_die(self, store: Stored, chosen: Any, event: int) -> None:
        """The store is the old or the new one, and the same command finishes what is left to do."""
        source, grown = self.make_source(chosen), store.copy(store.path)
        grown.add(source)
        died = die_at(event, self.folder, lambda: packstore.append(store.path, source.path, on_duplicate="skip"))
        assert read(store.path) in (store.splits, grown.splits)
        if died:
            packstore.append(store.path, source.path, on_duplicate="skip")
        assert not [*find_leftovers(self.folder)]
        store.splits, store.classes = grown.splits, grown.classes
        check(store)

    @rule(target=stores, stores=st.lists(stores, min_size=2, max_size=3), suffix=same_or_other)
    def merge(self, stores: list[Stored], suffix: str | None) -> Stored:
        merged = Stored(self.name(suffix or stores[0].path.suffix), {}, ())
        paths = [store.path for store in stores]
        repeated = sum(len(store.keys) for store in stores) - len(set().union(*(store.keys for store in stores)))
        if repeated:
            with pytest.raises(StoreError, match="in more than one store"):
                packstore.merge(paths, merged.path)
        report = packstore.merge(paths, merged.path, on_duplicate="skip")
        assert report.duplicates == repeated
        for store in stores:
            merged.add(store)
            merged.classes = tuple(dict.fromkeys([*merged.classes, *store.classes]))
        check(merged)
        return merged

    def select_from(self, store: Stored, where: str, keep: Callable[[Record, str], bool], suffix: str | None) -> Stored:
        selected = store.copy(self.name(suffix or store.path.suffix))
        selected.splits = {s: kept for s, rs in store.splits.items() if (kept := [r for r in rs if keep(r, s)])}
        if not selected.splits:
            with pytest.raises(StoreError, match="no records are chosen"):
                packstore.select(store.path, selected.path, where=where)
            return store
        packstore.select(store.path, selected.path, where=where)
        check(selected)
        return selected

    @rule(target=stores, store=stores, name=st.sampled_from((*CLASSES, *SPLITS)), suffix=same_or_other)
    def select(self, store: Stored, name: str, suffix: str | None) -> Stored:
        """The records of a class or split, if the store has it."""
        if name not in (*store.classes, *store.splits):
            return store
        where = f"split == {name}" if name in SPLITS else f"label == {name}"
        return self.select_from(store, where, lambda record, split: name in (record.name, split), suffix)

    @rule(target=stores, store=stores, data=st.data())
    def leave_one_out(self, store: Stored, data: st.DataObject) -> Stored:
        """All records but one: of shards, one is rewritten, and the others are linked."""
        key = data.draw(st.sampled_from([record.key for record in store.records]))
        return self.select_from(store, f"key != '{key}'", lambda record, _: record.key != key, None)

    @rule(target=stores, store=stores, seed=st.integers(0, 9), suffix=suffixes)
    def split_anew(self, store: Stored, seed: int, suffix: str) -> Stored:
        """Only the draw decides which record is where, so the model learns that from the store."""
        if len(store.records) < 4:
            return store
        split = store.copy(self.name(suffix))
        packstore.select(store.path, split.path, splits={"val": 0.5, "train": 0.5}, seed=seed)
        split.splits = read(split.path)
        assert [*split.splits] == ["val", "train"]
        assert sorted(split.records) == sorted(store.records)
        check(split)
        return split

    @rule(target=stores, store=stores, suffix=suffixes)
    def export(self, store: Stored, suffix: str) -> Stored:
        exported = store.copy(self.name(suffix))
        folder = self.name()
        packstore.export(store.path, folder, to="imagefolder")
        packstore.convert(folder, exported.path, encoding="original")
        digests = [packstore.open(each.path).manifest.dataset_digest for each in (store, exported)]
        assert digests[0] == digests[1]
        check(exported)
        return exported

    @rule(target=stores, store=stores, data=st.data())
    def repair(self, store: Stored, data: st.DataObject) -> Stored:
        """A changed byte is found, named, and replaced from the undamaged store."""
        number = data.draw(st.integers(0, len(store.records) - 1))
        damaged, repaired = (store.copy(self.name(store.path.suffix)) for _ in range(2))
        (shutil.copytree if store.path.is_dir() else shutil.copy2)(store.path, damaged.path)
        damage(damaged.path, [number], [])
        problems = packstore.verify(damaged.path).problems
        assert store.records[number].key in {problem.key for problem in problems}
        report = packstore.repair(damaged.path, store.path, repaired.path)
        assert report.lost == ()
        assert not report.identical or content(repaired.path) == content(store.path)
        check(repaired)
        return repaired


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_stores_hold_what_was_put_into_them(tmp_path: Path) -> None:
    """A failure shows its steps as they were drawn: to shorten them would take minutes."""
    Stores.photos = make_folder(tmp_path / "photos", SPLITS, PER_CLASS, size=(8, 9))
    chosen = settings(examples(7), stateful_step_count=12, phases=[Phase.generate])
    run_state_machine_as_test(Stores, settings=chosen)
