"""The contract of a format as tests: see :class:`StoreSuite`."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
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
from packstore.core.errors import StoreError
from packstore.core.manifest import Manifest, Skipped
from packstore.core.registry import FORMATS
from packstore.stores import StoreBuilder, format_of, is_store, open_store
from packstore.stores.format import Format
from packstore.testing.records import (
    ORIGIN,
    Records,
    append,
    assert_holds,
    begin,
    expected_columns,
    make_records,
    write,
)
from packstore.testing.store_files import StoreFilesSuite


def read_all(path: str, format: Format) -> list[bytes]:
    """Registers ``format``, and reads all images of the store at ``path``.

    Tests call this function in a spawned process, whose registry lacks the format.
    """
    FORMATS.register(format.name, format)
    with open_store(path) as reader:
        return [bytes(reader.read(i)) for i in range(len(reader))]


def in_child(work: Callable[[], bool]) -> bool:
    """Runs ``work`` in a forked child. Tells if ``work`` returned True; False if it raised an error."""
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


class StoreSuite(StoreFilesSuite):
    """Tests of the duties of every format. Inherit it to prove a format, and add tests of its own::

        from packstore.core.registry import FORMATS
        from packstore.testing import StoreSuite

        FORMATS.register("tar", TarFormat())  # or an entry point in the group packstore.formats

        class TestTar(StoreSuite):
            format = "tar"

    If a plain library can read the format, set ``PLAIN_READER``. If it can write the format, define ``write_plain``.

    The suite assumes two things: the data file contains the manifest's JSON verbatim, and a truncated data file is
    damaged.

    Attributes:
        format: The format's registered name.
        PLAIN_READER: Python code without packstore that prints the content of the store ``sys.argv[1]`` as JSON:
            ``images`` and ``key`` (lists of hexadecimal strings), ``label`` and ``checksum`` (lists of numbers), and
            ``manifest`` (a string). Empty if no plain library reads the format.
    """

    PLAIN_READER: str = ""

    def write_plain(self, path: Path, manifest: Manifest, records: Records, data: dict[str, Any]) -> None:
        """Writes a store without packstore's writer, by the documented layout. Override it; by default the test is
        skipped.

        Args:
            path: Path of the new store; does not exist.
            manifest: The store's manifest.
            records: The records; their images are ``records.images``.
            data: All other columns by name: an array, or bytes and ``int64`` offsets of a ragged column.
        """
        pytest.skip("the suite has no plain writer of this format")

    # Round trips

    def test_round_trip(self, path: Path, records: Records) -> None:
        """A written store holds the records, and its structure has no problem."""
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
        """``array`` returns pixels with the right shape, read-only. For image files it raises :class:`StoreError`."""
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
        """The plain reader, without packstore, reads the same images, columns and manifest. Skipped without
        :attr:`PLAIN_READER`."""
        if not self.PLAIN_READER:
            pytest.skip("the suite has no plain reader of this format")
        manifest = write(path, records)
        program = self.PLAIN_READER + "\nassert not any(m.partition('.')[0] == 'packstore' for m in sys.modules)\n"
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        data = expected_columns(records)[1]
        assert [bytes.fromhex(i) for i in answer["images"]] == records.images
        assert answer["label"] == records.values["label"]
        assert [bytes.fromhex(k).decode("utf-8", "surrogateescape") for k in answer["key"]] == records.values["key"]
        assert [c % 2**64 for c in answer["checksum"]] == data["checksum"].tolist()
        assert Manifest.from_json(answer["manifest"]) == manifest

    def test_reads_what_the_plain_library_wrote(self, path: Path, records: Records) -> None:
        """packstore reads a store that the plain library wrote."""
        columns, data = expected_columns(records)
        manifest = Manifest(self.format, records.encoding, len(records), columns, ORIGIN)
        self.write_plain(path, manifest, records, data)
        with open_store(path) as reader:
            assert_holds(reader, records)
            assert list(reader.check_structure()) == []

    @pytest.mark.hypothesis
    def test_any_bytes_round_trip(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        """Images and keys of any bytes come back, with batches and shards of any size."""
        plain = make_records("ragged", 12)

        # Inside, because Hypothesis refuses a decorated test that several classes share.
        @given(
            images=st.lists(st.binary(max_size=5000), min_size=1, max_size=12),
            keys=st.lists(st.binary(max_size=40), min_size=12, max_size=12, unique=True),
            batch=st.integers(1, 5),
            shard_size=st.one_of(st.none(), st.integers(1, 6000)),
        )
        def check(images: list[bytes], keys: list[bytes], batch: int, shard_size: int | None) -> None:
            """Writes a store of generated records and compares it with them."""
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
        """A writer may buffer 32 MiB, but never all records."""
        records = make_records()
        tracemalloc.start()
        try:
            with begin(path, records) as builder:
                for i in range(96):
                    values = {"label": [0] * 16, "key": [f"{i}/{j}" for j in range(16)]}
                    builder.append([bytes(65536) for _ in range(16)], values, "")
                builder.commit()
            assert tracemalloc.get_traced_memory()[1] < 40 << 20
        finally:
            tracemalloc.stop()

    def test_manifest_of_a_megabyte(self, path: Path) -> None:
        """A manifest of over a megabyte is read back."""
        records = make_records()
        with begin(path, records) as builder:
            append(builder, records)
            manifest = builder.commit(skipped=[Skipped("k" * 100, str(i)) for i in range(10_000)])
        assert len(manifest.to_json()) > 1_000_000
        assert open_store(path).manifest == manifest

    def test_given_checksums(self, path: Path) -> None:
        """The checksums that the caller gives are stored."""
        records = make_records()
        sums = np.array([xxhash.xxh3_64_intdigest(image) for image in records.images], np.uint64)
        with begin(path, records) as builder:
            builder.append(*records.part(0, 7), "", sums)
            manifest = builder.commit()
        assert manifest.splits == ()
        assert open_store(path).fixed_column("checksum").tolist() == sums.tolist()

    def test_given_checksums_that_are_wrong_are_not_published(self, path: Path) -> None:
        """A wrong checksum raises :class:`StoreError` at the commit, and no store is left."""
        records = make_records()
        sums = np.array([xxhash.xxh3_64_intdigest(image) for image in records.images], np.uint64)
        sums[3] ^= np.uint64(1 << 63)
        with begin(path, records) as builder:
            builder.append(*records.part(0, 7), "", sums)
            with pytest.raises(StoreError, match=r"record 3 of .* reads back differently"):
                builder.commit()
        assert not path.exists()

    def test_views_of_a_buffer_that_is_used_again(self, path: Path) -> None:
        """A builder copies images before it returns. The caller can use their buffer again."""
        records = make_records("uint8")
        ring = bytearray(60)
        with begin(path, records) as builder:
            for i, image in enumerate(records.images):
                ring[:] = image
                builder.append([memoryview(ring)], records.part(i, i + 1)[1], records.splits[i])
            builder.commit()
        assert_holds(open_store(path), records)

    def test_recognised_by_content_and_suffix(self, path: Path) -> None:
        """A store is recognised by its content whatever its name. A new path is recognised by its suffix."""
        records = make_records()
        write(path, records)
        assert format_of(path) == format_of(path.with_name(path.name.upper())) == self.format
        other = path.rename(path.with_name("no suffix"))
        assert open_store(other).manifest.format == self.format
        assert self.registered_format.read_manifest(other) == open_store(other).manifest
        assert format_of(other) is None

    # The duties of a reader

    def test_outside_the_range(self, path: Path, records: Records) -> None:
        """Record numbers outside the store raise :class:`IndexError`, and unknown columns :class:`KeyError`. Columns of
        the other kind raise :class:`StoreError`."""
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
            reader.fixed_column("key")
        with pytest.raises(StoreError, match="not ragged"):
            reader.ragged_column("label")
        assert bytes(reader.read(np.int64(1))) == records.images[1]  # type: ignore[arg-type]

    def test_what_was_handed_out_outlives_close(self, path: Path, records: Records) -> None:
        """Images, views and columns stay valid after their reader is closed."""
        write(path, records)
        reader = open_store(path)
        images = [reader.read(i) for i in range(len(reader))]
        views = [reader.view(i) for i in range(len(reader))]
        arrays = [] if records.columns[0].layout is None else [reader.array(i) for i in range(len(reader))]
        label, key, checksum = (
            reader.fixed_column("label"),
            reader.ragged_column("key"),
            reader.fixed_column("checksum"),
        )
        reader.close()
        reader.close()
        del reader
        gc.collect()
        assert [bytes(i) for i in images] == records.images
        assert [bytes(i) for i in views] == records.images
        assert [a.tobytes() for a in arrays] == records.images[: len(arrays)]
        assert label.tolist() == records.values["label"]
        assert bytes(key.data) == expected_columns(records)[1]["key"][0]
        assert checksum.tolist() == expected_columns(records)[1]["checksum"].tolist()

    def test_closed(self, path: Path, records: Records) -> None:
        """Reading from a closed reader raises :class:`StoreError`."""
        write(path, records)
        reader = open_store(path)
        reader.close()
        for use in (lambda: reader.read(2), lambda: reader.view(2), lambda: reader.column("label")):
            with pytest.raises(StoreError, match="closed"):
                use()

    def test_does_not_pickle(self, path: Path) -> None:
        """Pickling a reader raises :class:`TypeError`, which advises to pickle the path."""
        write(path, make_records())
        with pytest.raises(TypeError, match="path"):
            pickle.dumps(open_store(path))

    def test_two_readers_of_one_path(self, path: Path, records: Records) -> None:
        """Two readers of one store work, and closing one leaves the other open."""
        write(path, records)
        first, second = open_store(path), open_store(path)
        assert_holds(first, records)
        first.close()
        assert_holds(second, records)

    def test_threads(self, path: Path, records: Records) -> None:
        """Eight threads read the right records from one reader."""
        write(path, records)
        reader = open_store(path)
        wrong: list[object] = []
        start = threading.Barrier(8)

        def work() -> None:
            """Reads all records many times; notes wrong ones and errors."""
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
        """Threads that read while the reader is closed get the right bytes, or the error of a closed reader."""
        write(path, records, shard_size=shard_size)
        wrong: list[object] = []
        stop = threading.Event()
        current = [open_store(path)]

        def work() -> None:
            """Reads from the current reader until the test stops; notes wrong bytes and other errors."""
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
        """A reader works in a forked process, opened before or after the fork. The parent's reader still works after
        that."""
        write(path, records)
        reader = open_store(path)
        label, image = reader.fixed_column("label"), reader.read(0)

        def read_inherited() -> bool:
            """Reads with the parent's reader, and closes it."""
            assert_holds(reader, records)
            assert label.tolist() == records.values["label"]
            assert bytes(image) == records.images[0]
            reader.close()
            return True

        def reopen_and_read() -> bool:
            """Reads with a new reader."""
            assert_holds(open_store(path), records)
            return True

        for work in (read_inherited, reopen_and_read):
            assert in_child(work)
        assert_holds(reader, records)
        reader.close()
        assert in_child(reopen_and_read)

    def test_spawn(self, path: Path) -> None:
        """A spawned process reads the store while the parent has it open."""
        records = make_records()
        write(path, records)
        reader = open_store(path)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(read_all, (str(path), self.registered_format)) == records.images
        assert_holds(reader, records)

    def test_open_reads_no_records_into_memory(self, path: Path) -> None:
        """Opening a store of 100,000 records takes less than 400 kB of memory. Besides, labels of floating point are
        refused."""
        count = 100_000
        columns = make_records().columns
        with StoreBuilder(path, Manifest(self.format, "original", 0, tuple(columns), ORIGIN)) as builder:
            for start in range(0, count, 1000):
                keys = [f"{i:020d}" for i in range(start, start + 1000)]
                builder.append([b"x"] * 1000, {"label": np.zeros(1000, np.int32), "key": keys}, "")
            with pytest.raises(StoreError, match="dtype"):  # and floats are no labels
                builder.append([b"x"], {"label": [0.5], "key": ["k"]}, "")
            builder.commit()
        open_store(path).close()  # imports
        tracemalloc.start()
        try:
            reader = open_store(path)
            reader.read(count - 1)
            assert tracemalloc.get_traced_memory()[1] < 400_000  # the keys alone are 2 MB
        finally:
            tracemalloc.stop()
