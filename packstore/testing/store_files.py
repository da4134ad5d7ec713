"""Part of :class:`StoreSuite`: tests of a store's files: publishing, damage, shards."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
import xxhash

from packstore.core.columns import Ragged
from packstore.core.errors import DestinationError, StoreError
from packstore.core.registry import FORMATS
from packstore.stores import is_store, open_store
from packstore.stores.format import Format
from packstore.stores.places import resuming as journal
from packstore.stores.places.leftovers import find_leftovers, remove_leftover
from packstore.stores.places.receipts import ConversionIdentity, SourcePosition, Tally
from packstore.testing.records import (
    KINDS,
    Records,
    append,
    assert_holds,
    begin,
    flip,
    interrupt_write,
    listing,
    make_records,
    sha256_hex,
    write,
)


class StoreFilesSuite:
    """Tests of the files of a store of any format."""

    format: str

    @property
    def registered_format(self) -> Format:
        """The registered format."""
        entry: Format = FORMATS[self.format]
        return entry

    @property
    def suffix(self) -> str:
        """The usual suffix of a store."""
        return self.registered_format.suffixes[0]

    def data_file(self, path: Path) -> Path:
        """Returns the data file of the store or shard at ``path``."""
        return self.registered_format.data_file(path)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Path of a store, which does not exist yet."""
        return tmp_path / f"out{self.suffix}"

    @pytest.fixture(params=KINDS)
    def records(self, request: pytest.FixtureRequest) -> Records:
        """Records of a kind; each test runs with every kind."""
        return make_records(request.param)

    # Publishing

    def test_same_input_gives_the_same_bytes(self, tmp_path: Path, records: Records) -> None:
        """The data file does not depend on the size of appended batches."""
        files = []
        for batch in (1, 3, 7):
            path = tmp_path / f"{batch}{self.suffix}"
            write(path, records, batch=batch)
            files.append(self.data_file(path).read_bytes())
        assert files[0] == files[1] == files[2]

    def test_existing_destination_is_refused(self, path: Path) -> None:
        """An existing store raises :class:`DestinationError`, and stays unchanged, without ``overwrite``."""
        records = make_records()
        write(path, records)
        before = listing(path.parent)
        with pytest.raises(DestinationError, match="--overwrite"):
            begin(path, records)
        assert listing(path.parent) == before
        assert_holds(open_store(path), records)

    @pytest.mark.parametrize("shard_size", [None, 3000])
    @pytest.mark.parametrize("old_shard_size", [None, 3000])
    def test_overwrite(self, path: Path, shard_size: int | None, old_shard_size: int | None) -> None:
        """The old store can be opened until the new store is complete. Readers that were open keep reading the old
        store."""
        old, new = make_records(seed=1), make_records(seed=2)
        write(path, old, shard_size=old_shard_size)
        reader = open_store(path)
        labels = reader.fixed_column("label")
        if old_shard_size is None:
            assert bytes(reader.read(0)) == old.images[0]
        with begin(path, new, overwrite=True, shard_size=shard_size) as builder:
            append(builder, new)
            assert_holds(open_store(path), old)  # until the new one is complete
            builder.commit()
        assert_holds(open_store(path), new)
        assert listing(path.parent) == {path.name} | {f"{path.name}/{n}" for n in listing(path) if path.is_dir()}
        assert_holds(reader, old)  # an open reader keeps reading the old store
        assert labels.tolist() == old.values["label"]

    def test_failed_overwrite_keeps_the_old_store(self, path: Path) -> None:
        """An error while overwriting leaves the old store and no other files."""
        old, new = make_records(seed=1), make_records(seed=2)
        write(path, old)
        before = listing(path.parent)
        with pytest.raises(RuntimeError, match="stop"):
            interrupt_write(path, new, RuntimeError("stop"), overwrite=True)
        assert listing(path.parent) == before
        assert_holds(open_store(path), old)

    @pytest.mark.parametrize("shard_size", [None, 3000])
    def test_nothing_is_left_without_a_commit(self, path: Path, shard_size: int | None) -> None:
        """A builder that is closed without a commit leaves no files. An interrupted builder leaves none, either."""
        records = make_records()
        with begin(path, records, shard_size=shard_size) as builder:
            append(builder, records)
        with pytest.raises(StoreError, match="committed or aborted"):
            builder.append([], {}, "")
        with pytest.raises(KeyboardInterrupt):
            interrupt_write(path, records, KeyboardInterrupt(), shard_size=shard_size)
        assert listing(path.parent) == set()

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_each_failing_fsync(self, path: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """The destination stays unchanged if the disk fails at any step of publishing."""
        old, new = make_records(seed=1), make_records(seed=2)
        real, calls = os.fsync, 0

        def failing(fd: int) -> None:
            """Fails from a call number on."""
            nonlocal calls
            calls += 1
            if calls > allowed:
                raise OSError(28, "No space left on device")
            real(fd)

        for allowed in range(50):  # noqa: B007 - failing reads it
            if overwrite:
                write(path, old, overwrite=path.exists())
            calls = 0
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", failing)
                try:
                    write(path, new, overwrite=overwrite)
                    break
                except DestinationError as error:
                    message = str(error)
            assert "No space left" in message
            assert [p for p in path.parent.iterdir() if p != path] == []
            assert path.exists() == overwrite
            if overwrite:
                assert_holds(open_store(path), old)
        assert allowed >= 2
        assert_holds(open_store(path), new)

    @pytest.mark.parametrize("shard_size", [None, 3000])
    def test_an_interrupted_run(self, path: Path, shard_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another run with the same identity finds the records of an interrupted run. Its leftovers can be removed."""
        monkeypatch.setattr(journal, "EVERY_SECONDS", 0)
        records = make_records()
        identity = ConversionIdentity({"source": "the same"}, lambda _: None)
        options: dict[str, Any] = {"shard_size": shard_size, "identity": identity}

        def run() -> None:
            """Writes records with a checkpoint, then fails."""
            with begin(path, records, **options) as builder:
                append(builder, records)
                builder.checkpoint(lambda: SourcePosition("", Tally(len(records))))
                raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            run()
        assert not path.exists()
        with begin(path, records, **options) as builder:
            assert builder.interrupted_run is not None
            assert builder.interrupted_run.records == len(records)
            for i, image in enumerate(records.images):
                try:
                    found = builder.interrupted_run.read_image(i)[0]
                except StoreError:
                    break  # from here on the source has to be read again
                assert bytes(found) == image
        (leftover,) = find_leftovers(path.parent)
        remove_leftover(leftover)
        assert listing(path.parent) == set()

    def test_a_file_of_somebody_else_is_never_removed(self, path: Path) -> None:
        """A foreign file in a store of shards makes overwriting fail."""
        write(path, make_records(), shard_size=3000)
        for name in ("shard-00000.bak", f"my{self.suffix}", "notes.txt"):
            (path / name).write_text("mine")
            with pytest.raises(DestinationError, match=f"also holds '{re.escape(name)}'"):
                begin(path, make_records(), overwrite=True)
            (path / name).unlink()
        write(path, make_records(), overwrite=True)

    # Damage

    def test_flipped_byte_of_the_manifest(self, path: Path) -> None:
        """A flipped byte of the manifest raises :class:`StoreError` in one line that names the path."""
        manifest = write(path, make_records())
        text = manifest.to_json().encode()
        file = self.data_file(path)
        start = file.read_bytes().index(text)
        for position in range(start, start + len(text), 101):
            flip(file, position)
            with pytest.raises(StoreError) as caught:
                open_store(path)
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
            flip(file, position)
        open_store(path)

    def test_truncated(self, path: Path, records: Records) -> None:
        """A truncated data file raises :class:`StoreError` when it is opened."""
        write(path, records)
        file = self.data_file(path)
        whole = file.read_bytes()
        for size in sorted({0, 1, 7, 100, 4096, 8192, len(whole) // 2, len(whole) - 4096, len(whole) - 1}):
            if 0 <= size < len(whole):
                file.write_bytes(whole[:size])
                with pytest.raises(StoreError) as caught:
                    open_store(path)
                assert str(path) in str(caught.value)
                assert "\n" not in str(caught.value)
                if size >= 100:
                    assert re.search("damaged|truncated|empty", str(caught.value))
                assert not is_store(path)

    def test_any_flipped_byte_is_found_or_harmless(self, path: Path, records: Records) -> None:
        """Flips some 220 bytes, one at a time. Checks of structure, checksums and digests find each flip that changes a
        value."""
        write(path, records)
        file = self.data_file(path)
        size = file.stat().st_size
        detections = 0
        for position in [*range(0, size, max(1, size // 100) | 1), *range(0, min(size, 600), 5)]:
            flip(file, position, 1 << position % 8)
            try:
                reader = open_store(path)
                problems = list(reader.check_structure())
                detections += bool(problems)
                if not problems:
                    sums = [xxhash.xxh3_64_intdigest(reader.read(i)) for i in range(len(reader))]
                    damaged = sums != reader.fixed_column("checksum").tolist()
                    for column in reader.manifest.columns[1:]:
                        data = reader.column(column.name)
                        if isinstance(data, Ragged):
                            shas = [hashlib.sha256(a.tobytes()).digest() for a in (data.offsets, data.data)]
                            damaged = damaged or sha256_hex(b"".join(shas)) != column.digest
                        else:
                            damaged = damaged or sha256_hex(data[:].tobytes()) != column.digest
                    if not damaged:
                        assert_holds(reader, records)
                    detections += damaged
            except StoreError:
                detections += 1
            flip(file, position, 1 << position % 8)
            reader = None  # type: ignore[assignment]
        assert detections > 0
        assert_holds(open_store(path), records)

    # Shards

    def test_sharded(self, path: Path, records: Records) -> None:
        """A store of shards holds the records. Each shard is a store of its own. The dataset digest equals that of a
        store of one file."""
        size = max(map(len, records.images)) + 1
        manifest = write(path, records, shard_size=size)
        assert path.is_dir()
        assert manifest.shards is not None
        assert len(manifest.shards) > 1
        assert is_store(path)
        with open_store(path) as reader:
            assert_holds(reader, records)
            assert reader.manifest == manifest
            assert list(reader.check_structure()) == []
            assert [(s.name, s.start, s.stop) for s in manifest.splits] == [("train", 0, 5), ("val", 5, 7)]
        start = 0
        for shard in manifest.shards:
            part = open_store(path / shard.name)
            images = records.images[start : start + shard.records]
            assert [bytes(part.read(i)) for i in range(len(part))] == images
            assert sum(map(len, images)) <= size
            splits = [s.name for s in part.manifest.splits for _ in range(len(s))]
            assert splits == records.splits[start : start + shard.records]
            assert list(part.check_structure()) == []
            start += shard.records
        other = path.with_name(f"one{self.suffix}")
        assert write(other, records).dataset_digest == manifest.dataset_digest

    def test_a_shard_has_a_record_even_if_it_is_too_large(self, path: Path) -> None:
        """A record larger than the size of shards gets a shard of its own."""
        manifest = write(path, make_records("uint8"), shard_size=1)
        assert [s.records for s in manifest.shards or ()] == [1] * 7

    def test_shards_are_opened_when_needed(self, path: Path) -> None:
        """A missing shard is an error only when one of its records is read."""
        records = make_records("uint8")
        manifest = write(path, records, shard_size=120)
        for shard in list(manifest.shards or ())[1:]:
            (path / shard.name).rename(path / f"hidden-{shard.name}")
        reader = open_store(path)
        assert bytes(reader.read(1)) == records.images[1]
        with pytest.raises(StoreError, match=r"shard-00001.*cannot be opened"):
            reader.read(2)

    @pytest.mark.parametrize("quick", [False, True])
    def test_shards_missing_extra_swapped_truncated(self, path: Path, quick: bool) -> None:
        """Checking the structure finds missing, foreign, truncated, damaged and swapped shards. Without a sound
        manifest, the store does not open."""
        records = make_records("uint8")
        names = [s.name for s in write(path, records, shard_size=120).shards or ()]

        def problems() -> list[tuple[str | None, str]]:
            """Returns shard and text of each problem."""
            gc.collect()
            with open_store(path) as reader:
                return [(p.shard, p.what) for p in reader.check_structure(quick=quick)]

        extra = path / "notes.txt"
        extra.write_text("mine")
        assert problems() == []  # an append may be adding files
        with open_store(path) as reader:
            assert reader.table.list_surplus_files() == ["notes.txt"]
        extra.unlink()
        (path / names[1]).rename(path.with_name("away"))
        assert [shard for shard, _ in problems()] == [names[1]]
        path.with_name("away").rename(path / names[1])
        file = self.data_file(path / names[2])
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        assert {shard for shard, _ in problems()} == {names[2]}
        file.write_bytes(whole)
        flip(file, whole.index(records.images[4][:8]))
        assert [shard for shard, what in problems() if "SHA-256" in what] == ([] if quick else [names[2]])
        flip(file, whole.index(records.images[4][:8]))
        assert problems() == []
        for a, b in ((0, "away"), (1, names[0]), ("away", names[1])):
            (path / (names[a] if isinstance(a, int) else a)).rename(path / b)
        assert {names[0], names[1]} == {shard for shard, _ in problems()}
        if not quick:
            assert {shard for shard, what in problems() if "SHA-256" in what} == {names[0], names[1]}
        for a, b in ((0, "away"), (3, names[0]), ("away", names[3])):
            (path / (names[a] if isinstance(a, int) else a)).rename(path / b)
        assert {names[0], names[3]} <= {shard for shard, _ in problems()}  # they differ in size
        assert_damaged_sharded_manifest(path)

    def test_swapped_shards_of_equal_size_do_not_open(self, path: Path) -> None:
        """Reading from a swapped shard raises :class:`StoreError`."""
        records = dataclasses.replace(make_records("uint8", 4), splits=["train"] * 4)
        records.values["key"] = ["a", "b", "c", "d"]
        first, second = (path / s.name for s in write(path, records, shard_size=120).shards or ())
        assert self.data_file(first).stat().st_size == self.data_file(second).stat().st_size
        first.rename(path / "away")
        second.rename(first)
        (path / "away").rename(second)
        with open_store(path) as reader:
            for use in (lambda: reader.read(0), lambda: reader.column("label"), lambda: reader.key(3)):
                with pytest.raises(StoreError, match=r"shard-0000\d\..*is another shard, or belongs to another store"):
                    use()
            assert len(list(reader.check_structure(quick=True))) == 2


def assert_damaged_sharded_manifest(path: Path) -> None:
    """Asserts that a damaged or missing manifest of a store of shards is an error. Removes the manifest."""
    file = path / "manifest.json"
    text = file.read_bytes()
    for position in range(0, len(text) - 1, 101):
        flip(file, position)
        with pytest.raises(StoreError, match=r"manifest\.json"):
            open_store(path)
        flip(file, position)
    file.unlink()
    with pytest.raises(StoreError, match=r"is a directory without .*manifest\.json.*packstore convert"):
        open_store(path)
