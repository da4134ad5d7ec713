"""Conversions to object stores: what lies there afterwards, workers that die, and runners that do too much."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from packstore.objects import MissingObjectError, ObjectStore, open_objects
from tests.internals import (
    ConvertOptions,
    Driver,
    LocalRunner,
    Outcome,
    Packed,
    Plan,
    ProgressCallback,
    encode_manifest,
    location,
    make_plan,
    no_progress,
    parse_url,
    read_manifest,
    shard_object_names,
    table_name,
    version_name,
)


class KillingObjects(ObjectStore):
    """Kills the process, or stops it, before or after it creates an object whose name has ``part`` in it: once, or
    ``times``.

    ``folder`` remembers that it was done."""

    def __init__(
        self, url: str, folder: Path, part: str, *, after: bool = False, sent: int = signal.SIGKILL, times: int = 1
    ) -> None:
        super().__init__(parse_url(url))
        self._arguments = url, folder, part, after, sent, times
        folder.mkdir(exist_ok=True)

    def create(self, name: str, data: bytes | Path) -> bool:
        _, _, part, after, _, _ = self._arguments
        if part in name and not after:
            self._kill()
        created = super().create(name, data)
        if part in name and after:
            self._kill()
        return created

    def _kill(self) -> None:
        _, folder, _, _, sent, times = self._arguments
        for number in range(times):
            with contextlib.suppress(FileExistsError):
                (folder / f"killed{number or ''}").touch(exist_ok=False)
                os.kill(os.getpid(), sent)
                return

    def __reduce__(self) -> tuple[Any, ...]:
        return _killing, self._arguments


def _killing(url: str, folder: Path, part: str, after: bool, sent: int, times: int) -> KillingObjects:
    objects = KillingObjects(url, folder, part, after=after, sent=sent, times=times)
    if part == "start":
        objects._kill()
    return objects


class NamingObjects(ObjectStore):
    """Notes the names of Ray's tasks that create receipts, each in a file in ``folder``."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(parse_url(url))
        self._arguments = url, folder
        folder.mkdir(exist_ok=True)

    def create(self, name: str, data: bytes | Path) -> bool:
        import ray

        if "done/" in name:
            task: Any = ray.get_runtime_context()
            (self._arguments[1] / Path(name).name).write_text(task.get_task_name())
        return super().create(name, data)

    def __reduce__(self) -> tuple[Any, ...]:
        return NamingObjects, self._arguments


class Twice(LocalRunner):
    """Runs each task twice, as stragglers may be."""

    def wait(self, seconds: float | None = None) -> list[Outcome]:
        first, second = super().wait(), super().wait()
        assert first == second
        return first


def plan_for(source: Path, url: str, **options: Any) -> Plan:
    return make_plan(source, location(url), ConvertOptions(**options))


def drive(
    source: Path, url: str, progress: ProgressCallback = no_progress, objects: ObjectStore | None = None, **options: Any
) -> Packed:
    """Converts by a driver of its own."""
    return Driver(plan_for(source, url, **options), objects or open_objects(url), progress).run()


def objects_at(url: str) -> dict[str, bytes]:
    """All objects, by name; without those that go away meanwhile."""
    objects, found = open_objects(url), dict[str, bytes]()
    for info in objects.list():
        with contextlib.suppress(MissingObjectError):
            found[info.name] = objects.get(info.name)
    return found


def expected_objects(store: Path) -> dict[str, bytes]:
    """What a store of one machine is at a URL: no other object may lie there."""
    manifest = read_manifest(store)
    table = manifest.shards
    assert table is not None
    files = [store / name for name in table.names()]
    files = [path / "data.mdb" if path.is_dir() else path for path in files]
    expected = {name: file.read_bytes() for name, file in zip(shard_object_names(table), files, strict=True)}
    head = encode_manifest(manifest)
    return expected | {table_name(table): table.table.tobytes(), version_name(1): head, "manifest.json": head}


def assert_same(url: str, store: Path) -> None:
    """What lies at the URL is the store, to the byte, and nothing else."""
    found, expected = objects_at(url), expected_objects(store)
    assert sorted(found) == sorted(expected)
    assert found == expected
