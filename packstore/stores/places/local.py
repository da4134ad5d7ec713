"""Stores and exports on this machine: written in a work directory beside the destination, published by a rename."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packstore.core.errors import DestinationError, printable
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback
from packstore.stores.builder.assembly import ShardList, list_shards
from packstore.stores.builder.growth import publish_growth
from packstore.stores.builder.interrupted import remove_published_run
from packstore.stores.builder.owner import Owner
from packstore.stores.builder.publish import check_destination
from packstore.stores.builder.work_directory import ADDED, KEPT, WorkDirectory, find_writer, work_path
from packstore.stores.opening import read_manifest
from packstore.stores.ownership import list_owned_files
from packstore.stores.places.base import Growth, Place, StoreDraft


class LocalPlace(Place):
    """A path on this machine."""

    remote = False

    def check_new_store(self, *, overwrite: bool) -> None:
        check_destination(self.path, overwrite=overwrite, owned=list_owned_files)

    @contextmanager
    def new_store(self, *, overwrite: bool) -> Iterator[StoreDraft]:
        self.check_new_store(overwrite=overwrite)
        yield StoreDraft(self.path, lambda manifest, _: manifest)

    @contextmanager
    def grow(self) -> Iterator[Growth]:
        read_manifest(self.path)  # raises before anything is made if there is no store
        if self.path.is_symlink():  # else two processes could write to it at once, by different names
            raise DestinationError(f"{printable(str(self.path))} is a symbolic link; name the path that it points to")
        work = WorkDirectory(self.path)
        try:
            yield _LocalGrowth(self.path, work)
        except BaseException:
            if work_path(work.path / ADDED).exists():  # another run can go on from there
                work.release()
            raise
        finally:
            work.remove()

    def find_writer(self) -> Owner | None:
        return find_writer(self.path)

    def remove_finished_work(self) -> None:
        remove_published_run(self.path)


class _LocalGrowth(Growth):
    """Adds shards beside those of a local store, then replaces its manifest by a rename."""

    tries = 1  # others are locked out

    def __init__(self, path: Path, work: WorkDirectory) -> None:
        self._path, self._work = path, work
        self.added, self.kept = work.path / ADDED, work.path / KEPT

    def find_finished(self, read_request: Callable[[], Any]) -> Manifest | None:
        finished = self._work.find_finished_growth()
        self._work.undo_interrupted_publish()
        return read_manifest(self._path) if finished is not None and finished == read_request() else None

    def read_manifest(self) -> Manifest:
        self._old = read_manifest(self._path)
        return self._old

    def list_shards(self) -> ShardList:
        return list_shards(self._path, self._old)

    def publish(self, new: Manifest, parts: ShardList, request: Any, progress: ProgressCallback) -> None:
        first_new = 0 if self._old.shards is None else int(self._old.shards.table["number"].max()) + 1
        publish_growth(self._work, self._path, self._old, new, parts, first_new, request)
