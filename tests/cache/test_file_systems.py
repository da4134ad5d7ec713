"""Caches on file systems without room or locks, or that cannot be written; faults on the way from an object store."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from packstore.cache import Cache
from packstore.objects import open_objects
from tests.internals import CacheError, StoreError, files
from tests.internals import folder as folders
from tests.makers.s3 import Double, Fault

SIZE = 200_000
CONTENTS = [bytes([number]) * SIZE for number in range(8)]


def open_object(cache: Cache, number: int, *, absent: bool = True) -> int:
    content = CONTENTS[number]

    def fetch() -> list[bytes]:
        assert absent, "it is there"
        return [content]

    descriptor = cache.open(hashlib.sha256(content).hexdigest(), SIZE, fetch)
    assert os.pread(descriptor, 2 * SIZE, 0) == content
    return descriptor


@contextmanager
def mounted(place: Path, *commands: list[str]) -> Iterator[Path]:
    """``place`` with a mount, or the test is skipped."""
    place.mkdir(exist_ok=True)
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                pytest.skip(f"mounting is not possible here: {error}")
            if done.returncode:
                pytest.skip(f"mounting is not possible here: {done.stderr.strip()}")
            if not number:
                stack.callback(subprocess.run, ["umount", str(place)], check=True)
        yield place


def read_only(place: Path, content: Path) -> tuple[list[str], list[str]]:
    return ["mount", "--bind", str(content), str(place)], ["mount", "-o", "remount,bind,ro", str(place)]


class TestNoSpace:
    def test_a_full_disk_makes_room_by_what_is_not_in_use(self, tmp_path: Path) -> None:
        with mounted(
            tmp_path / "disk", ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path / "disk")]
        ) as disk:
            cache = Cache(disk / "cache", 100 * SIZE)
            for number in range(8):
                os.close(open_object(cache, number))
            assert 2 <= len(cache.entries()) <= 5
            held: list[int] = []
            with pytest.raises(CacheError, match=r"is full: an object needs 200,000 bytes, [\d,]+ are free; make room"):
                held.extend(open_object(cache, number) for number in range(8))
            assert os.listdir(cache.root / "part") == []
            for descriptor in held:
                os.close(descriptor)
            cache.clean()
            os.close(open_object(cache, 0))

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_it_evicts_until_there_is_room_simulated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        """A disk for two objects, under a budget for many."""
        cache = Cache(tmp_path / "cache", 100 * SIZE)

        def allocate(descriptor: int, nbytes: int, allocate: Callable[[int, int], None] = files.allocate_bytes) -> None:
            if sum(path.stat().st_size for path in cache.root.glob("*/*")) + nbytes > 2 * SIZE:
                raise OSError(code, os.strerror(code))
            allocate(descriptor, nbytes)

        monkeypatch.setattr(files, "allocate_bytes", allocate)
        for number in (0, 1, 2):
            os.close(open_object(cache, number))
        assert len(cache.entries()) == 2
        held = [open_object(cache, number, absent=False) for number in (1, 2)]
        with pytest.raises(CacheError, match="an object needs 200,000 bytes"):
            open_object(cache, 3)
        for descriptor in held:
            os.close(descriptor)
        os.close(open_object(cache, 3))

    def test_a_disk_that_fills_while_it_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where nothing can be reserved."""
        cache = Cache(tmp_path / "cache", 100 * SIZE)

        def write(descriptor: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(files, "allocate_bytes", os.ftruncate)
        with monkeypatch.context() as patch:
            patch.setattr("packstore.cache.os.write", write)
            with pytest.raises(CacheError, match="an object needs 200,000 bytes"):
                open_object(cache, 0)
        assert os.listdir(cache.root / "part") == []
        os.close(open_object(cache, 0))


class TestReadOnly:
    @pytest.fixture
    def filled(self, tmp_path: Path) -> Path:
        for number in (0, 1):
            os.close(open_object(Cache(tmp_path / "filled", 10 * SIZE), number))
        return tmp_path / "filled"

    def test_a_mount_is_used_as_it_is(self, filled: Path, tmp_path: Path) -> None:
        with mounted(tmp_path / "there", *read_only(tmp_path / "there", filled)) as place:
            self.check(Cache(place, 10 * SIZE))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_of_another_is_used_as_it_is(self, filled: Path) -> None:
        folders = [filled, filled / "whole", filled / "part"]
        try:
            for path in folders:
                path.chmod(0o555)
            self.check(Cache(filled, 10 * SIZE))
        finally:
            for path in folders:
                path.chmod(0o755)

    def check(self, cache: Cache) -> None:
        for _ in range(2):
            os.close(open_object(cache, 0, absent=False))
        assert len(cache.entries()) == 2
        with pytest.raises(CacheError, match="cannot be written and lacks an object of 200,000 bytes; name another"):
            open_object(cache, 2)
        with pytest.raises(CacheError, match="cannot be written"):
            cache.clean()
        assert len(cache.entries()) == 2

    def test_damage_there_is_an_error_and_other_dates_are_none(self, filled: Path, tmp_path: Path) -> None:
        sound, damaged = (filled / "whole" / hashlib.sha256(CONTENTS[number]).hexdigest() for number in (0, 1))
        os.utime(sound)  # as a copy has it
        damaged.write_bytes(bytes(SIZE))
        with mounted(tmp_path / "there", *read_only(tmp_path / "there", filled)) as place:
            cache = Cache(place, 10 * SIZE)
            os.close(open_object(cache, 0, absent=False))
            os.close(open_object(cache, 0, absent=False))
            with pytest.raises(CacheError, match=r"cannot be written and has a damaged copy of [0-9a-f]{64}; name"):
                open_object(cache, 1, absent=False)

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(CacheError, match=r"file/cache cannot be written: Not a directory; name another folder"):
            open_object(Cache(tmp_path / "file" / "cache", SIZE), 0)


def no_locks(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def empty_locks(descriptor: int, operation: int) -> None:
    """Locks of a network file system that nobody sees."""


class TestNoLocks:
    @pytest.mark.parametrize("flock", [no_locks, empty_locks])
    def test_nothing_is_fetched(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: Callable[[int, int], None]
    ) -> None:
        cache = Cache(tmp_path / "cache", 10 * SIZE)
        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(CacheError, match=r"without file locks \(flock\), so processes cannot share it; name"):
            open_object(cache, 0)
        assert list(cache.root.glob("*/*")) == []
        with pytest.raises(CacheError, match="without file locks"):
            cache.clean()

    def test_nothing_is_read_that_others_may_remove(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = Cache(tmp_path / "cache", 10 * SIZE)
        os.close(open_object(cache, 0))
        monkeypatch.setattr(fcntl, "flock", no_locks)
        with pytest.raises(CacheError, match="without file locks"):
            open_object(cache, 0, absent=False)

    def test_a_read_only_cache_needs_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = Cache(tmp_path / "cache", 10 * SIZE)
        os.close(open_object(cache, 0))
        with mounted(tmp_path / "there", *read_only(tmp_path / "there", cache.root)) as place:
            monkeypatch.setattr(fcntl, "flock", no_locks)
            os.close(open_object(Cache(place, 10 * SIZE), 0, absent=False))

    def test_a_lock_that_needs_a_writable_file_keeps_what_another_user_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As over NFS."""
        cache = Cache(tmp_path / "cache", SIZE)
        os.close(open_object(cache, 0))

        def flock(descriptor: int, operation: int, flock: Callable[[int, int], None] = fcntl.flock) -> None:
            if operation & fcntl.LOCK_EX and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            flock(descriptor, operation)

        def opened(self: folders.CacheFolder, path: Path, flags: int, opened=folders.CacheFolder._open_file) -> int:  # type: ignore[no-untyped-def]
            if path.parent.name == "whole" and flags & os.O_RDWR:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return int(opened(self, path, flags))

        monkeypatch.setattr(fcntl, "flock", flock)
        monkeypatch.setattr(folders.CacheFolder, "_open_file", opened)
        with pytest.raises(CacheError, match="200,000 are in use"):
            open_object(cache, 1)
        assert len(cache.entries()) == 1


def test_a_cache_on_another_disk_is_a_link_at_most(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "scratch")
    cache = Cache(tmp_path / "cache", SIZE)
    os.close(open_object(cache, 0))
    assert cache.clean() == SIZE
    shutil.rmtree(tmp_path / "scratch")
    with pytest.raises(CacheError, match="cannot be written: File exists"):
        open_object(cache, 0)


CONTENT = random.Random(5).randbytes(9 << 20)  # obstore gives it in several pieces
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def open_it(cache: Cache, content: bytes = CONTENT) -> None:
    objects = open_objects("s3://bucket")
    digest = hashlib.sha256(content).hexdigest()
    descriptor = cache.open(digest, len(content), lambda: objects.stream("x"))
    assert os.pread(descriptor, len(content) + 1, 0) == content
    os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["503", "cut", "flipped", "slow"])
@pytest.mark.parametrize("content", [CONTENT, b"small"])
def test_the_bytes_are_right_at_last(s3_double: Double, tmp_path: Path, kind: str, content: bytes) -> None:
    s3_double.objects["x"] = content
    s3_double.faults = [Fault(kind, "GET", times=2)]
    open_it(Cache(tmp_path, 10 << 20), content)
    assert s3_double.faults[0].times < 2


@pytest.mark.parametrize(
    ("kind", "said"), [("flipped", "came damaged 3 times"), ("403", "s3://bucket/x"), ("expired", "s3://bucket/x")]
)
def test_it_is_one_line(s3_double: Double, tmp_path: Path, kind: str, said: str) -> None:
    s3_double.objects["x"] = CONTENT
    s3_double.faults = [Fault(kind, "GET", times=1000)]
    cache = Cache(tmp_path / "cache", 10 << 20)
    with pytest.raises(StoreError, match=said) as caught:
        open_it(cache)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert cache.entries() == []
    assert list((cache.root / "part").iterdir()) == []
