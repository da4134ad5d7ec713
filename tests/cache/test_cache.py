"""The cache: proven bytes within a budget, whatever is fetched, and nothing removed that is not its own."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from packstore.cache import Cache, default_cache
from tests.internals import CacheError, CacheFullError, StoreError, UsageError, compute_date_stamp

SIZE = 100_000


class Origin:
    """Objects of ``SIZE`` random bytes that count how often they are fetched, and can come damaged."""

    def __init__(self) -> None:
        self.objects = {hashlib.sha256(data).hexdigest(): data for data in map(random.Random(7).randbytes, [SIZE] * 8)}
        self.digests = list(self.objects)
        self.fetched: list[str] = []
        self.damages: list[Callable[[bytes], bytes]] = []

    def fetch(self, digest: str) -> Callable[[], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            self.fetched.append(digest)
            data = self.objects[digest]
            if self.damages:
                data = self.damages.pop(0)(data)
            yield from (data[start : start + 30_000] for start in range(0, len(data), 30_000))

        return pieces

    def open(self, cache: Cache, number: int) -> int:
        digest = self.digests[number]
        descriptor = cache.open(digest, SIZE, self.fetch(digest))
        assert os.pread(descriptor, 2 * SIZE, 0) == self.objects[digest]
        return descriptor

    def read(self, cache: Cache, *numbers: int) -> None:
        for number in numbers:
            os.close(self.open(cache, number))


@pytest.fixture
def origin() -> Origin:
    return Origin()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 3 * SIZE)


def whole(cache: Cache, origin: Origin, number: int) -> Path:
    return cache.root / "whole" / origin.digests[number]


def cut(data: bytes) -> bytes:
    return data[:-1]


def flip(data: bytes) -> bytes:
    return data[:777] + bytes([data[777] ^ 4]) + data[778:]


def longer(data: bytes) -> bytes:
    return data + b"?"


def test_an_object_is_fetched_once_and_read_often(cache: Cache, origin: Origin) -> None:
    origin.read(cache, 0, 1, 0, 1, 0)
    assert origin.fetched == origin.digests[:2]
    assert cache.list_missing(origin.digests) == origin.digests[2:]
    assert [(entry.name, entry.nbytes, entry.in_use) for entry in cache.entries()] == [
        (origin.digests[1], SIZE, False),
        (origin.digests[0], SIZE, False),
    ]


def test_an_empty_object(cache: Cache) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    os.close(cache.open(digest, 0, list))
    assert cache.list_missing([digest]) == []


def test_the_least_recently_used_goes_first(cache: Cache, origin: Origin) -> None:
    origin.read(cache, 0, 1, 2, 0, 3)
    assert set(cache.list_missing(origin.digests[:4])) == {origin.digests[1]}
    assert len(origin.fetched) == 4


def test_what_is_made_old_leaves_first(cache: Cache, origin: Origin) -> None:
    origin.read(cache, 0, 1, 2)
    mtime = whole(cache, origin, 2).stat().st_mtime_ns
    cache.set_last_used(origin.digests[2], 1.5)
    cache.set_last_used(origin.digests[7], 1.5)  # which is not there
    assert (whole(cache, origin, 2).stat().st_atime, whole(cache, origin, 2).stat().st_mtime_ns) == (1.5, mtime)
    origin.read(cache, 3)
    assert cache.list_missing(origin.digests[:4]) == [origin.digests[2]]


def test_what_is_open_stays_and_a_full_cache_says_what_it_needs(cache: Cache, origin: Origin) -> None:
    held = [origin.open(cache, number) for number in (0, 1)]
    origin.read(cache, 2, 3, 4, 5)
    assert not cache.list_missing(origin.digests[:2])
    held.append(origin.open(cache, 6))
    with pytest.raises(CacheFullError) as caught:
        origin.open(cache, 7)
    assert (caught.value.nbytes, caught.value.budget, caught.value.in_use) == (SIZE, 3 * SIZE, 3 * SIZE)
    assert str(caught.value) == (
        f"the cache {cache.root} is too small: an object needs 100,000 bytes, it may hold 300,000, of which 300,000 "
        "are in use; give it 400,000 with --cache-size or PACKSTORE_CACHE_SIZE"
    )
    assert os.listdir(cache.root / "part") == []
    assert origin.digests[7] not in origin.fetched
    os.close(held.pop())
    origin.read(cache, 7)
    for descriptor in held:
        os.close(descriptor)


def test_an_object_above_the_budget_is_not_fetched(cache: Cache, origin: Origin) -> None:
    small = Cache(cache.root, SIZE - 1)
    with pytest.raises(CacheFullError, match=r"needs 100,000 bytes, it may hold 99,999; give it 100,000 with"):
        origin.open(small, 0)
    assert origin.fetched == []
    assert not cache.root.exists()


@pytest.mark.parametrize(
    ("damage", "said"), [(cut, "99,999 bytes at last"), (flip, "at last with SHA-256 "), (longer, "more at last")]
)
def test_a_damaged_reply_is_fetched_again_up_to_three_times(
    cache: Cache, origin: Origin, damage: Callable[[bytes], bytes], said: str
) -> None:
    origin.damages = [damage] * 3
    with pytest.raises(CacheError, match=f"an object of 100,000 bytes came damaged 3 times, {said}"):
        origin.open(cache, 0)
    assert cache.entries() == []
    assert os.listdir(cache.root / "part") == []
    origin.damages = [damage] * 2
    origin.read(cache, 0)
    assert len(origin.fetched) == 6


def test_a_failing_fetch_leaves_nothing(cache: Cache, origin: Origin) -> None:
    def fetch() -> Iterator[bytes]:
        yield b"x" * 10
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.open(origin.digests[0], SIZE, fetch)
    assert os.listdir(cache.root / "part") == []
    origin.read(cache, 0)


class Breaking:
    """A fetch that is cut off by an error after so many bytes, the first few times."""

    def __init__(self, data: bytes, after: int, times: int) -> None:
        self.data, self.after, self.times = data, after, times
        self.calls = 0

    def __call__(self) -> Iterator[bytes]:
        self.calls += 1
        if self.calls > self.times:
            yield self.data
            return
        if self.after:
            yield self.data[: self.after]
        raise StoreError("the line is dead")


@pytest.mark.parametrize(("after", "times", "calls"), [(10, 2, 3), (10, 9, 3), (0, 9, 1)])
def test_a_fetch_that_breaks_off_is_made_again_unless_it_never_began(
    cache: Cache, origin: Origin, after: int, times: int, calls: int
) -> None:
    """What fetches has made its request often enough by then."""
    fetch = Breaking(origin.objects[origin.digests[0]], after, times)
    with nullcontext() if times < calls else pytest.raises(StoreError, match="the line is dead"):
        os.close(cache.open(origin.digests[0], SIZE, fetch))
    assert fetch.calls == calls
    assert os.listdir(cache.root / "part") == []


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(777)
        file.write(b"wrong")


def shortened(path: Path) -> None:
    os.truncate(path, SIZE // 2)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(SIZE))


@pytest.mark.parametrize("damage", [overwritten, shortened, zeroed])
def test_a_damaged_object_is_found_before_it_is_used(
    cache: Cache, origin: Origin, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    origin.read(cache, 0)
    damage(whole(cache, origin, 0))
    with caplog.at_level(logging.WARNING):
        origin.read(cache, 0)
    assert origin.fetched == [origin.digests[0]] * 2
    assert f"{origin.digests[0]} is damaged, and is fetched again" in caplog.text


def test_damage_without_a_trace_is_found_once_it_is_doubted(cache: Cache, origin: Origin) -> None:
    origin.read(cache, 0)
    path = whole(cache, origin, 0)
    overwritten(path)
    os.utime(path, ns=(0, compute_date_stamp(path.name)))
    cache.mark_suspect(path.name)
    cache.mark_suspect(origin.digests[1])  # absent
    origin.read(cache, 0)
    assert len(origin.fetched) == 2


def test_a_sound_object_with_another_date_is_proven_and_kept(cache: Cache, origin: Origin) -> None:
    """As after a copy of the cache."""
    origin.read(cache, 0)
    path = whole(cache, origin, 0)
    os.utime(path)
    origin.read(cache, 0)
    assert len(origin.fetched) == 1
    assert path.stat().st_mtime_ns == compute_date_stamp(path.name)


def test_an_object_of_before_the_machine_was_started_is_proven_again(
    cache: Cache, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure can leave a file with its size and date, and without its bytes."""
    origin.read(cache, 0, 1)
    path = whole(cache, origin, 0)
    overwritten(path)
    os.utime(path, ns=(0, compute_date_stamp(path.name)))
    changed = path.stat().st_ctime
    monkeypatch.setattr("packstore.cache._read_boot_time", lambda: changed + 60)
    origin.read(cache, 0, 1)
    assert origin.fetched == [origin.digests[0], origin.digests[1], origin.digests[0]]


def test_a_damaged_object_that_others_read_is_counted_until_they_end(cache: Cache, origin: Origin) -> None:
    held = [origin.open(cache, 0)]
    overwritten(whole(cache, origin, 0))
    held.append(origin.open(cache, 0))
    held.append(origin.open(cache, 1))
    with pytest.raises(CacheFullError, match="300,000 are in use"):
        origin.open(cache, 2)
    for descriptor in held:
        os.close(descriptor)
    origin.read(cache, 2, 3)
    assert os.listdir(cache.root / "part") == []


def test_what_a_killed_process_left_is_replaced(cache: Cache, origin: Origin) -> None:
    origin.read(cache, 0)
    for digest in origin.digests[1:3]:
        (cache.root / "part" / f"{digest}.01234567").write_bytes(bytes(SIZE))
    origin.read(cache, 1, 2)
    assert os.listdir(cache.root / "part") == []
    assert len(cache.entries()) == 3


def test_clean_keeps_what_is_used_and_what_was_used_last(cache: Cache, origin: Origin) -> None:
    held = origin.open(cache, 0)
    origin.read(cache, 1, 2)
    (cache.root / "part" / f"{origin.digests[3]}.01234567").write_bytes(bytes(50))
    assert cache.clean(keep=2 * SIZE) == SIZE + 50
    assert [entry.name for entry in cache.entries()] == [origin.digests[0], origin.digests[2]]
    assert [entry.in_use for entry in cache.entries()] == [True, False]
    assert cache.clean() == SIZE
    os.close(held)
    assert cache.clean() == SIZE
    assert cache.clean() == 0


def test_nothing_foreign_is_removed_or_counted(cache: Cache, origin: Origin, tmp_path: Path) -> None:
    origin.read(cache, 0)
    precious = tmp_path / "precious"
    precious.write_bytes(bytes(SIZE))
    whole(cache, origin, 5).symlink_to(precious)
    whole(cache, origin, 6).mkdir()
    foreign = [cache.root / "whole" / "notes.txt", cache.root / "part" / "notes.txt", cache.root / "notes.txt"]
    for path in foreign:
        path.write_bytes(bytes(SIZE))
    origin.read(cache, 1, 2, 3, 4)
    with pytest.raises(CacheError, match="is not a regular file"):
        origin.read(cache, 6)
    cache.clean()
    assert all(path.is_file() for path in [precious, *foreign])
    assert whole(cache, origin, 5).is_symlink()
    assert whole(cache, origin, 6).is_dir()


def test_a_link_in_place_of_an_object_is_refused(cache: Cache, origin: Origin, tmp_path: Path) -> None:
    origin.read(cache, 0)
    (tmp_path / "elsewhere").write_bytes(origin.objects[origin.digests[1]])
    whole(cache, origin, 1).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="symbolic links"):
        origin.read(cache, 1)
    assert (tmp_path / "elsewhere").exists()


def test_a_folder_with_other_files_does_not_become_a_cache(tmp_path: Path, origin: Origin) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CacheError, match=r"holds 'thesis.tex' and is not a cache of packstore; name an empty"):
        origin.open(Cache(tmp_path, SIZE), 0)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    assert Cache(tmp_path, SIZE).clean() == 0


def test_folders_of_a_cache_are_no_links(tmp_path: Path, origin: Origin) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "packstore-cache").touch()
    (tmp_path / "cache" / "whole").symlink_to(tmp_path / "data")
    with pytest.raises(CacheError, match="is not a folder"):
        origin.open(Cache(tmp_path / "cache", SIZE), 0)


def test_a_cache_that_is_removed_meanwhile_is_made_again(cache: Cache, origin: Origin) -> None:
    import shutil

    held = origin.open(cache, 0)
    shutil.rmtree(cache.root)
    origin.read(cache, 0)
    assert os.pread(held, SIZE, 0) == origin.objects[origin.digests[0]]
    os.close(held)


def test_it_travels_to_other_processes(cache: Cache, origin: Origin) -> None:
    origin.read(cache, 0)
    copy = pickle.loads(pickle.dumps(cache))
    assert copy == cache
    origin.read(copy, 0)
    assert len(origin.fetched) == 1


def test_an_object_without_a_known_digest(cache: Cache) -> None:
    for content in (b"first", b"first", b"other"):
        descriptor = cache.open_by_address(f"s3://b/out.h5 etag-{content.decode()}", 5, lambda data=content: [data])
        assert os.pread(descriptor, 10, 0) == content
        os.close(descriptor)
    assert len(cache.entries()) == 2
    with pytest.raises(CacheError, match="came damaged 3 times, 2 bytes at last"):
        cache.open_by_address("s3://b/out.h5 cut", 5, lambda: [b"ab"])


def test_what_cannot_be_proven_is_fetched_again_after_a_change(cache: Cache) -> None:
    os.close(cache.open_by_address("url", 5, lambda: [b"first"]))
    path = cache.root / "whole" / cache.entries()[0].name
    path.write_bytes(b"wrong")
    descriptor = cache.open_by_address("url", 5, lambda: [b"again"])
    assert os.pread(descriptor, 5, 0) == b"again"
    os.close(descriptor)


@pytest.mark.parametrize("digest", ["", "../../x", "A" * 64, "0" * 63])
def test_a_name_is_a_digest(cache: Cache, digest: str) -> None:
    with pytest.raises(ValueError, match="is not a SHA-256"):
        cache.open(digest, 1, lambda: [b"x"])


class TestTheDefault:
    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("PACKSTORE_CACHE", "PACKSTORE_CACHE_SIZE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr("sys.platform", "linux")

    def test_it_is_in_the_users_folder_and_takes_half_of_what_is_free(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: Origin
    ) -> None:
        monkeypatch.setattr("packstore.cache.files.count_free_bytes", lambda path: 10 * SIZE)
        assert default_cache() == Cache(tmp_path / ".cache" / "packstore", 5 * SIZE)
        origin.read(default_cache(), 0, 1)
        assert default_cache().budget == 6 * SIZE

    def test_the_environment_names_another(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
        assert default_cache().root == tmp_path / ".cache" / "packstore"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert default_cache().root == tmp_path / "xdg" / "packstore"
        monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "mine"))
        monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "2GB")
        assert default_cache() == Cache(tmp_path / "mine", 2 * 10**9)

    def test_a_size_that_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "9" * 400)
        with pytest.raises(UsageError, match=r"PACKSTORE_CACHE_SIZE: .* is larger than any disk"):
            default_cache()
        monkeypatch.setenv("PACKSTORE_CACHE", "s3://bucket/cache")
        with pytest.raises(UsageError, match="PACKSTORE_CACHE: s3://bucket/cache is a URL; give a path"):
            default_cache()
        monkeypatch.delenv("PACKSTORE_CACHE")
        monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "much")
        with pytest.raises(UsageError, match="PACKSTORE_CACHE_SIZE: 'much' is not a size"):
            default_cache()
