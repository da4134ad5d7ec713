"""The contract of a format as tests: see :class:`StoreSuite`."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import DestinationError, StoreError
from packstore.core.manifest import Manifest, Skipped
from packstore.core.registry import FORMATS
from packstore.stores import Ragged, create_store, format_of, is_store, open_store
from packstore.stores.builder import journal
from packstore.stores.builder.work_directory import find_leftovers, remove_leftover
from packstore.stores.format import Format
from packstore.testing.records import (
    KINDS,
    ORIGIN,
    Records,
    append,
    assert_holds,
    begin,
    finished,
    flip,
    interrupted,
    listing,
    make_records,
    sha256_hex,
    write,
)


def read_all(path: str, format: Format) -> list[bytes]:
    """For a spawned process, in which a format that was registered by a call is not."""
    FORMATS.register(format.name, format)
    with open_store(path) as reader:
        return [bytes(reader.read(i)) for i in range(len(reader))]


def in_child(work: Callable[[], bool]) -> bool:
    """Whether ``work`` returns True in a forked child."""
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


class StoreSuite:
    """Everything that holds for every format. Inherit it to prove one, and add tests of what is the format's own::

        from packstore.core.registry import FORMATS
        from packstore.testing import StoreSuite

        FORMATS.register("tar", TarFormat())  # or an entry point in the group packstore.formats

        class TestTar(StoreSuite):
            format = "tar"

    What a store holds should be proven without packstore as well, where a plain library can read or write it: set
    ``PLAIN_READER`` and define ``write_plain``.

    The suite takes for granted that the manifest's JSON lies in the data file as it is, and that the data file of a
    store is as long as it has to be: a shorter one is damaged.

    Attributes:
        format: The format's registered name.
        PLAIN_READER: A program without packstore. ``argv[1]`` is a store; it prints JSON with ``images`` and ``key``
            (lists of hexadecimal strings), ``label`` and ``checksum`` (lists of numbers), and ``manifest`` (a string).
            Empty where no plain library reads the format.
    """

    format: str
    PLAIN_READER: str = ""

    def write_plain(self, path: Path, manifest: Manifest, records: Records, data: dict[str, Any]) -> None:
        """Writes a store without packstore's writer, by the documented layout.

        Args:
            path: Of the store; does not exist.
            manifest: The store's.
            records: The records; their images are ``records.images``.
            data: All other columns by name: an array, or for a ragged one its bytes and its ``int64`` offsets.
        """
        pytest.skip("the suite has no plain writer of this format")

    @property
    def registered(self) -> Format:
        """The format itself."""
        found: Format = FORMATS[self.format]
        return found

    @property
    def suffix(self) -> str:
        """The suffix of stores."""
        return self.registered.suffixes[0]

    def data_file(self, path: Path) -> Path:
        """The file with the data of the store, or the shard, at ``path``."""
        return self.registered.data_file(path)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / f"out{self.suffix}"

    @pytest.fixture(params=KINDS)
    def records(self, request: pytest.FixtureRequest) -> Records:
        return make_records(request.param)

    # What comes back

    def test_round_trip(self, path: Path, records: Records) -> None:
        manifest = write(path, records)
        assert is_store(path)
        with open_store(path) as reader:
            assert_holds(reader, records)
            assert reader.manifest == manifest
            assert [(s.name, s.start, s.stop) for s in manifest.splits] == [("train", 0, 5), ("val", 5, 7)]
            assert manifest.skipped == (Skipped("bad", "empty"),)
            assert list(reader.check_structure()) == []
            assert list(reader.check_structure(quick=True)) == []
            assert reader.disk_bytes() >= sum(map(len, records.images))

    def test_arrays(self, path: Path, records: Records) -> None:
        write(path, records)
        reader = open_store(path)
        image = records.columns[0]
        if image.layout is None:
            with pytest.raises(StoreError, match="encoded images"):
                reader.array(0)
            return
        for i, raw in enumerate(records.images):
            shape = tuple(records.values["shape"][i]) if "shape" in records.values else image.shape
            array = reader.array(i)
            assert np.array_equal(array, np.frombuffer(raw, NUMPY_DTYPE[image.dtype]).reshape(shape).copy()) or (
                array.tobytes() == raw  # not-a-number among random floats
            )
            assert array.shape == shape
            assert not array.flags.writeable

    def test_plain_library_reads_it(self, path: Path, records: Records) -> None:
        if not self.PLAIN_READER:
            pytest.skip("the suite has no plain reader of this format")
        manifest = write(path, records)
        program = self.PLAIN_READER + "\nassert not any(m.partition('.')[0] == 'packstore' for m in sys.modules)\n"
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        data = finished(records)[1]
        assert [bytes.fromhex(i) for i in found["images"]] == records.images
        assert found["label"] == records.values["label"]
        assert [bytes.fromhex(k).decode("utf-8", "surrogateescape") for k in found["key"]] == records.values["key"]
        assert [c % 2**64 for c in found["checksum"]] == data["checksum"].tolist()
        assert Manifest.from_json(found["manifest"]) == manifest

    def test_reads_what_the_plain_library_wrote(self, path: Path, records: Records) -> None:
        columns, data = finished(records)
        manifest = Manifest(self.format, records.encoding, len(records), columns, ORIGIN)
        self.write_plain(path, manifest, records, data)
        with open_store(path) as reader:
            assert_holds(reader, records)
            assert list(reader.check_structure()) == []

    def test_any_bytes_round_trip(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        plain = make_records("ragged", 12)

        # Inside, because Hypothesis does not like one decorated test in several classes.
        @given(
            images=st.lists(st.binary(max_size=5000), min_size=1, max_size=12),
            keys=st.lists(st.binary(max_size=40), min_size=12, max_size=12, unique=True),
            batch=st.integers(1, 5),
            shard_size=st.one_of(st.none(), st.integers(1, 6000)),
        )
        def check(images: list[bytes], keys: list[bytes], batch: int, shard_size: int | None) -> None:
            path = tmp_path_factory.mktemp("any") / f"out{self.suffix}"
            values = {
                "label": plain.values["label"][: len(images)],
                "key": [k.decode("utf-8", "surrogateescape") for k in keys[: len(images)]],
            }
            records = Records("original", plain.columns, images, values, ["train"] * len(images))
            write(path, records, batch=batch, shard_size=shard_size)
            with open_store(path) as reader:
                assert_holds(reader, records)
                assert list(reader.check_structure()) == []

        check()

    def test_memory_while_writing(self, path: Path) -> None:
        """A writer may keep 32 MiB until it has them together, but never all."""
        records = make_records()
        tracemalloc.start()
        try:
            with begin(path, records) as builder:
                for i in range(96):
                    values = {"label": [0] * 16, "key": [f"{i}/{j}" for j in range(16)]}
                    builder.append([bytes(65536) for _ in range(16)], values, "")
                builder.commit(origin=ORIGIN)
            assert tracemalloc.get_traced_memory()[1] < 40 << 20
        finally:
            tracemalloc.stop()

    def test_manifest_of_a_megabyte(self, path: Path) -> None:
        records = make_records()
        with begin(path, records) as builder:
            append(builder, records)
            manifest = builder.commit(origin=ORIGIN, skipped=[Skipped("k" * 100, str(i)) for i in range(10_000)])
        assert len(manifest.to_json()) > 1_000_000
        assert open_store(path).manifest == manifest

    def test_given_checksums(self, path: Path) -> None:
        records = make_records()
        sums = np.array([xxhash.xxh3_64_intdigest(image) for image in records.images], np.uint64)
        with begin(path, records) as builder:
            builder.append(*records.part(0, 7), "", sums)
            manifest = builder.commit(origin=ORIGIN)
        assert manifest.splits == ()
        assert open_store(path).fixed("checksum").tolist() == sums.tolist()

    def test_given_checksums_that_are_wrong_are_not_published(self, path: Path) -> None:
        records = make_records()
        sums = np.array([xxhash.xxh3_64_intdigest(image) for image in records.images], np.uint64)
        sums[3] ^= np.uint64(1 << 63)
        with begin(path, records) as builder:
            builder.append(*records.part(0, 7), "", sums)
            with pytest.raises(StoreError, match=r"record 3 of .* reads back otherwise"):
                builder.commit(origin=ORIGIN)
        assert not path.exists()

    def test_views_of_a_buffer_that_is_used_again(self, path: Path) -> None:
        records = make_records("uint8")
        ring = bytearray(60)
        with begin(path, records) as builder:
            for i, image in enumerate(records.images):
                ring[:] = image
                builder.append([memoryview(ring)], records.part(i, i + 1)[1], records.splits[i])
            builder.commit(origin=ORIGIN)
        assert_holds(open_store(path), records)

    def test_recognised_by_content_and_suffix(self, path: Path) -> None:
        records = make_records()
        write(path, records)
        assert format_of(path) == format_of(path.with_name(path.name.upper())) == self.format
        other = path.rename(path.with_name("no suffix"))
        assert open_store(other).manifest.format == self.format
        assert self.registered.read_manifest(other) == open_store(other).manifest
        assert format_of(other) is None

    # The duties of a reader

    def test_outside_the_range(self, path: Path, records: Records) -> None:
        write(path, records)
        reader = open_store(path)
        for index in (-1, len(records), 10**12):
            with pytest.raises(IndexError):
                reader.read(index)
            with pytest.raises(IndexError):
                reader.view(index)
        with pytest.raises(KeyError, match="label"):
            reader.column("nothing")
        with pytest.raises(StoreError, match="ragged"):
            reader.fixed("key")
        with pytest.raises(StoreError, match="not ragged"):
            reader.ragged("label")
        assert bytes(reader.read(np.int64(1))) == records.images[1]  # type: ignore[arg-type]

    def test_what_was_handed_out_outlives_close(self, path: Path, records: Records) -> None:
        write(path, records)
        reader = open_store(path)
        images = [reader.read(i) for i in range(len(reader))]
        views = [reader.view(i) for i in range(len(reader))]
        arrays = [] if records.columns[0].layout is None else [reader.array(i) for i in range(len(reader))]
        label, key, checksum = reader.fixed("label"), reader.ragged("key"), reader.fixed("checksum")
        reader.close()
        reader.close()
        del reader
        gc.collect()
        assert [bytes(i) for i in images] == records.images
        assert [bytes(i) for i in views] == records.images
        assert [a.tobytes() for a in arrays] == records.images[: len(arrays)]
        assert label.tolist() == records.values["label"]
        assert bytes(key.data) == finished(records)[1]["key"][0]
        assert checksum.tolist() == finished(records)[1]["checksum"].tolist()

    def test_closed(self, path: Path, records: Records) -> None:
        write(path, records)
        reader = open_store(path)
        reader.close()
        for use in (lambda: reader.read(2), lambda: reader.view(2), lambda: reader.column("label")):
            with pytest.raises(StoreError, match="closed"):
                use()

    def test_does_not_pickle(self, path: Path) -> None:
        write(path, make_records())
        with pytest.raises(TypeError, match="path"):
            pickle.dumps(open_store(path))

    def test_two_readers_of_one_path(self, path: Path, records: Records) -> None:
        write(path, records)
        first, second = open_store(path), open_store(path)
        assert_holds(first, records)
        first.close()
        assert_holds(second, records)

    def test_threads(self, path: Path, records: Records) -> None:
        write(path, records)
        reader = open_store(path)
        wrong: list[object] = []
        start = threading.Barrier(8)

        def work() -> None:
            try:
                start.wait()
                for i in range(50 * len(records)):
                    if bytes(reader.read(i % len(records))) != records.images[i % len(records)]:
                        wrong.append(i)
                assert_holds(reader, records)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    @pytest.mark.parametrize("shard_size", [None, 3000])
    def test_closed_while_others_read(self, path: Path, records: Records, shard_size: int | None) -> None:
        """What a thread reads is right, or the reader is closed; never wrong bytes, never the end of the process."""
        write(path, records, shard_size=shard_size)
        wrong: list[object] = []
        stop = threading.Event()
        current = [open_store(path)]

        def work() -> None:
            kept = []
            while not stop.is_set():
                reader = current[0]
                try:
                    for i in range(len(records)):
                        kept.append((i, reader.view(i), reader.read(i)))
                    reader.column("label")
                    reader.key(1)
                except StoreError as error:
                    if "closed" not in str(error):
                        wrong.append(error)
                except BaseException as error:
                    wrong.append(error)
                reader = None  # type: ignore[assignment]
                if len(kept) > 500:
                    wrong.extend(i for i, *both in kept if any(bytes(b) != records.images[i] for b in both))
                    kept.clear()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            old, current[0] = current[0], open_store(path)
            old.close()
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
    def test_fork(self, path: Path, records: Records) -> None:
        write(path, records)
        reader = open_store(path)
        label, image = reader.fixed("label"), reader.read(0)

        def inherited() -> bool:
            assert_holds(reader, records)
            assert label.tolist() == records.values["label"]
            assert bytes(image) == records.images[0]
            reader.close()
            return True

        def opened_anew() -> bool:
            assert_holds(open_store(path), records)
            return True

        for work in (inherited, opened_anew):
            assert in_child(work)
        assert_holds(reader, records)
        reader.close()
        assert in_child(opened_anew)

    def test_spawn(self, path: Path) -> None:
        records = make_records()
        write(path, records)
        reader = open_store(path)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(read_all, (str(path), self.registered)) == records.images
        assert_holds(reader, records)

    def test_open_reads_no_records_into_memory(self, path: Path) -> None:
        count = 100_000
        columns = make_records().columns
        with create_store(path, format=self.format, encoding="original", columns=columns) as builder:
            for start in range(0, count, 1000):
                keys = [f"{i:020d}" for i in range(start, start + 1000)]
                builder.append([b"x"] * 1000, {"label": np.zeros(1000, np.int32), "key": keys}, "")
            with pytest.raises(StoreError, match="dtype"):  # and floats are no labels
                builder.append([b"x"], {"label": [0.5], "key": ["k"]}, "")
            builder.commit(origin=ORIGIN)
        open_store(path).close()  # imports
        tracemalloc.start()
        try:
            reader = open_store(path)
            reader.read(count - 1)
            assert tracemalloc.get_traced_memory()[1] < 400_000  # the keys alone are 2 MB
        finally:
            tracemalloc.stop()

    # Publishing

    def test_same_input_gives_the_same_bytes(self, tmp_path: Path, records: Records) -> None:
        files = []
        for batch in (1, 3, 7):
            path = tmp_path / f"{batch}{self.suffix}"
            write(path, records, batch=batch)
            files.append(self.data_file(path).read_bytes())
        assert files[0] == files[1] == files[2]

    def test_existing_destination_is_refused(self, path: Path) -> None:
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
        old, new = make_records(seed=1), make_records(seed=2)
        write(path, old, shard_size=old_shard_size)
        reader = open_store(path)
        labels = reader.fixed("label")
        if old_shard_size is None:
            assert bytes(reader.read(0)) == old.images[0]
        with begin(path, new, overwrite=True, shard_size=shard_size) as builder:
            append(builder, new)
            assert_holds(open_store(path), old)  # until the new one is complete
            builder.commit(origin=ORIGIN)
        assert_holds(open_store(path), new)
        assert listing(path.parent) == {path.name} | {f"{path.name}/{n}" for n in listing(path) if path.is_dir()}
        assert_holds(reader, old)  # whoever has it open keeps what he opened
        assert labels.tolist() == old.values["label"]

    def test_failed_overwrite_keeps_the_old_store(self, path: Path) -> None:
        old, new = make_records(seed=1), make_records(seed=2)
        write(path, old)
        before = listing(path.parent)
        with pytest.raises(RuntimeError, match="stop"):
            interrupted(path, new, RuntimeError("stop"), overwrite=True)
        assert listing(path.parent) == before
        assert_holds(open_store(path), old)

    @pytest.mark.parametrize("shard_size", [None, 3000])
    def test_nothing_is_left_without_a_commit(self, path: Path, shard_size: int | None) -> None:
        records = make_records()
        with begin(path, records, shard_size=shard_size) as builder:
            append(builder, records)
        with pytest.raises(StoreError, match="committed or aborted"):
            builder.append([], {}, "")
        with pytest.raises(KeyboardInterrupt):
            interrupted(path, records, KeyboardInterrupt(), shard_size=shard_size)
        assert listing(path.parent) == set()

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_each_failing_fsync(self, path: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the disk fails at any step, everything is as before."""
        old, new = make_records(seed=1), make_records(seed=2)
        real, calls = os.fsync, 0

        def failing(fd: int) -> None:
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
        """Another run takes over what is proven, and what nobody takes over can be removed."""
        monkeypatch.setattr(journal, "EVERY_SECONDS", 0)
        records = make_records()
        identity = journal.Identity({"source": "the same"}, lambda _: None)
        options: dict[str, Any] = {"shard_size": shard_size, "identity": identity}

        def run() -> None:
            with begin(path, records, **options) as builder:
                builder.describe(origin=ORIGIN)
                append(builder, records)
                builder.checkpoint(lambda: journal.SourcePosition(len(records), "", ()))
                raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            run()
        assert not path.exists()
        with begin(path, records, **options) as builder:
            assert builder.interrupted is not None
            assert builder.interrupted.records == len(records)
            for i, image in enumerate(records.images):
                try:
                    found = builder.interrupted.image(i)[0]
                except StoreError:
                    break  # from here on the source has to be read again
                assert bytes(found) == image
        (leftover,) = find_leftovers(path.parent)
        remove_leftover(leftover)
        assert listing(path.parent) == set()

    def test_a_file_of_somebody_else_is_never_removed(self, path: Path) -> None:
        write(path, make_records(), shard_size=3000)
        for name in ("shard-00000.bak", f"my{self.suffix}", "notes.txt"):
            (path / name).write_text("mine")
            with pytest.raises(DestinationError, match=f"also holds '{re.escape(name)}'"):
                begin(path, make_records(), overwrite=True)
            (path / name).unlink()
        write(path, make_records(), overwrite=True)

    # Damage

    def test_flipped_byte_of_the_manifest(self, path: Path) -> None:
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
        """Structure, record checksums and column digests together leave no byte of the data uncovered."""
        write(path, records)
        file = self.data_file(path)
        size = file.stat().st_size
        found = 0
        for position in [*range(0, size, max(1, size // 150) | 1), *range(0, min(size, 600), 3)]:
            flip(file, position, 1 << position % 8)
            try:
                reader = open_store(path)
                problems = list(reader.check_structure())
                found += bool(problems)
                if not problems:
                    sums = [xxhash.xxh3_64_intdigest(reader.read(i)) for i in range(len(reader))]
                    damaged = sums != reader.fixed("checksum").tolist()
                    for column in reader.manifest.columns[1:]:
                        data = reader.column(column.name)
                        if isinstance(data, Ragged):
                            shas = [hashlib.sha256(a.tobytes()).digest() for a in (data.offsets, data.data)]
                            damaged = damaged or sha256_hex(b"".join(shas)) != column.digest
                        else:
                            damaged = damaged or sha256_hex(data.tobytes()) != column.digest
                    if not damaged:
                        assert_holds(reader, records)
                    found += damaged
            except StoreError:
                found += 1
            flip(file, position, 1 << position % 8)
            reader = None  # type: ignore[assignment]
        assert found > 0
        assert_holds(open_store(path), records)

    # Shards

    def test_sharded(self, path: Path, records: Records) -> None:
        size = max(map(len, records.images)) + 1
        manifest = write(path, records, shard_size=size)
        assert path.is_dir()
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
        manifest = write(path, make_records("uint8"), shard_size=1)
        assert [s.records for s in manifest.shards] == [1] * 7

    def test_shards_are_opened_when_needed(self, path: Path) -> None:
        records = make_records("uint8")
        manifest = write(path, records, shard_size=120)
        for shard in manifest.shards[1:]:
            (path / shard.name).rename(path / f"hidden-{shard.name}")
        reader = open_store(path)
        assert bytes(reader.read(1)) == records.images[1]
        with pytest.raises(StoreError, match=r"shard-00001.*cannot be opened"):
            reader.read(2)

    @pytest.mark.parametrize("quick", [False, True])
    def test_shards_missing_extra_swapped_truncated(self, path: Path, quick: bool) -> None:
        records = make_records("uint8")
        names = [s.name for s in write(path, records, shard_size=120).shards]

        def problems() -> list[tuple[str | None, str]]:
            gc.collect()
            with open_store(path) as reader:
                return [(p.shard, p.what) for p in reader.check_structure(quick=quick)]

        extra = path / "notes.txt"
        extra.write_text("mine")
        assert problems() == [(None, "'notes.txt' does not belong to the store")]
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
        records = dataclasses.replace(make_records("uint8", 4), splits=["train"] * 4)
        records.values["key"] = ["a", "b", "c", "d"]
        first, second = (path / s.name for s in write(path, records, shard_size=120).shards)
        assert self.data_file(first).stat().st_size == self.data_file(second).stat().st_size
        first.rename(path / "away")
        second.rename(first)
        (path / "away").rename(second)
        with open_store(path) as reader:
            for use in (lambda: reader.read(0), lambda: reader.column("label"), lambda: reader.key(3)):
                with pytest.raises(StoreError, match=r"shard-0000\d\..*is another shard or of another store"):
                    use()
            assert len(list(reader.check_structure(quick=True))) == 2


def assert_damaged_sharded_manifest(path: Path) -> None:
    file = path / "manifest.json"
    text = file.read_bytes()
    for position in range(0, len(text) - 1, 101):
        flip(file, position)
        with pytest.raises(StoreError, match=r"manifest\.json"):
            open_store(path)
        flip(file, position)
    file.unlink()
    with pytest.raises(StoreError, match=r"is a directory without .*manifest\.json"):
        open_store(path)
