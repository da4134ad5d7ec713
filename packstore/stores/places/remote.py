"""Stores and exports at URLs: written on this machine, uploaded, and published by an object created only if absent."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from packstore.core.errors import DestinationError, MissingStoreError, printable
from packstore.core.files import remove_empty, writing
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback
from packstore.core.urls import UrlPath
from packstore.objects import open_objects
from packstore.stores.builder.assembly import ShardList, list_shards
from packstore.stores.builder.owner import Owner
from packstore.stores.builder.work_directory import ADDED, KEPT, WorkDirectory
from packstore.stores.ownership import remove_unfinished
from packstore.stores.places.base import Growth, Place, StoreDraft
from packstore.stores.remote.head import read_version, read_writable_head
from packstore.stores.remote.publish import check_url, upload_and_publish, upload_store

_AT_ONCE = 64
NOTE = "publishing.json"
"""Name of the file in a work folder that notes which version a run is about to publish."""


class RemotePlace(Place):
    """A URL of an object store."""

    path: UrlPath
    remote = True

    def check_new_store(self, *, overwrite: bool) -> None:
        check_url(open_objects(self.path), overwrite=overwrite)

    @contextmanager
    def new_store(self, *, overwrite: bool) -> Iterator[StoreDraft]:
        self.check_new_store(overwrite=overwrite)  # before anything is written
        with lock_upload_folder(self.path) as (path, _):

            def publish(_: Manifest, progress: ProgressCallback) -> Manifest:
                return upload_store(path, self.path, overwrite=overwrite, progress=progress)

            yield StoreDraft(path, publish)

    @contextmanager
    def grow(self) -> Iterator[Growth]:
        with lock_upload_folder(self.path) as (path, work):
            yield _RemoteGrowth(self.path, path.parent / NOTE, work)

    def find_writer(self) -> Owner | None:
        return None

    def remove_finished_work(self) -> None:
        pass


class _RemoteGrowth(Growth):
    """Uploads new shards and publishes the next version of a store at a URL."""

    tries = 20

    def __init__(self, url: UrlPath, note: Path, work: WorkDirectory) -> None:
        self._url, self._note = url, note
        self.added, self.kept = work.path / ADDED, work.path / KEPT

    def find_finished(self, read_request: Callable[[], Any]) -> Manifest | None:
        try:
            noted = json.loads(self._note.read_bytes())
            manifest = read_version(open_objects(self._url), noted["version"])
        except (FileNotFoundError, MissingStoreError):
            return None
        except (ValueError, TypeError, KeyError):  # the machine failed while it was written: nothing was published
            return None
        if manifest.digest != noted["digest"] or noted["request"] != read_request():
            return None
        self._note.unlink()
        return manifest

    def read_manifest(self) -> Manifest:
        self._head = read_writable_head(self._url)
        return self._head.manifest

    def list_shards(self) -> ShardList:
        return list_shards(self._url, self._head.manifest, [UrlPath(self._url) / name for name in self._head.shards])

    def publish(self, new: Manifest, parts: ShardList, request: Any, progress: ProgressCallback) -> None:
        version = self._head.version or 0
        with writing(self._note):
            note = {"request": request, "version": version + 1, "digest": new.digest}
            self._note.write_text(json.dumps(note), "utf-8")
        upload_and_publish(open_objects(self._url), new, parts, version, progress)
        self._note.unlink(missing_ok=True)


def make_upload_folder(url: UrlPath, number: int = 0) -> Path:
    """Creates and returns this user's work folder for a URL, in the system's temporary folder (TMPDIR).

    The path is the same for each run: a run finds the records of an interrupted run there. Simultaneous runs use
    different numbers. Raises :class:`DestinationError` if the folder belongs to another user, or cannot be created.
    """
    root = Path(tempfile.gettempdir(), f"packstore-{os.getuid() if hasattr(os, 'getuid') else 'user'}")
    digest = hashlib.sha256(str(url).encode("utf-8", "surrogateescape")).hexdigest()
    folder = root / f"{digest[:16]}-{number}"
    with writing(folder):
        for path in (root, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            state = path.lstat()
            if not stat.S_ISDIR(state.st_mode) or (hasattr(os, "getuid") and state.st_uid != os.getuid()):
                raise DestinationError(f"{printable(str(path))} is not a folder of this user; set TMPDIR to another")
    return folder


@contextmanager
def lock_upload_folder(url: UrlPath) -> Iterator[tuple[Path, WorkDirectory]]:
    """Locks a work folder for a URL; yields a local path for the store, and a work directory.

    First deletes an unfinished store at that path. At the end deletes the work directory, an unfinished store, and the
    folder if it is empty. Raises :class:`DestinationError` if 64 other processes write to the URL.
    """
    folder, work = _lock_free_folder(url)
    path = folder / url.name
    try:
        remove_unfinished(path)  # of a run that was killed
        yield path, work
    finally:
        remove_unfinished(path)
        work.remove()
        remove_empty(folder)


def _lock_free_folder(url: UrlPath) -> tuple[Path, WorkDirectory]:
    """Locks the first free of 64 work folders for a URL; returns folder and lock.

    Raises :class:`DestinationError` if other processes hold all of them.
    """
    for number in range(_AT_ONCE):
        folder = make_upload_folder(url, number)
        with suppress(DestinationError):
            return folder, WorkDirectory(folder / "upload")
    raise DestinationError(f"{_AT_ONCE} processes of this machine write to {url} already; wait until one has finished")
