"""Stores and exports at URLs: written on this machine, uploaded, and published by an object created only if absent."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from packstore.core.errors import DestinationError, ManifestError, MissingStoreError, StoreError, printable
from packstore.core.files import MANIFEST_FILE, SlicedFile, remove_empty, writing
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.proof import file_digest
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard, ShardTable
from packstore.core.urls import ShardPlace, UrlPath
from packstore.objects import ConflictError, MissingObjectError, ObjectStore, RemoteError, open_objects
from packstore.stores.assembly import ShardList, build_sharded_manifest, list_shards
from packstore.stores.export_manifest import MANIFEST_FILE as EXPORT_MANIFEST_FILE
from packstore.stores.export_manifest import ROWS_FILE, RecordLines, parse_export_manifest
from packstore.stores.format import encode_manifest
from packstore.stores.opening import read_manifest
from packstore.stores.places import ExportDraft, Growth, LostRaceError, Place, StoreDraft, exists_error
from packstore.stores.places.owned import read_manifest_of_file, refuse_foreign_names, remove_unfinished
from packstore.stores.places.receipts import RECEIPT, Receipt, read_receipt
from packstore.stores.places.work import ADDED, KEPT, WorkDirectory, describe_kept, work_path
from packstore.stores.remote_objects import (
    SHARDS,
    download_shard,
    find_newest_version,
    hash_object,
    read_head,
    read_version,
    read_writable_head,
    shard_object_name,
    table_name,
    version_name,
)

_log = logging.getLogger(__name__)

_AT_ONCE, _UPLOADS = 64, 4
_READ_BYTES = 1 << 16


class RemotePlace(Place):
    """A URL of an object store."""

    path: UrlPath
    remote = True

    def check_new_store(self, *, overwrite: bool) -> None:
        check_url(open_objects(self.path), overwrite=overwrite)

    @contextmanager
    def new_store(self, *, overwrite: bool) -> Iterator[StoreDraft]:
        self.check_new_store(overwrite=overwrite)  # before anything is written
        with _lock_upload_folder(self.path) as (path, _):

            def publish(_: Manifest, progress: ProgressCallback) -> Manifest:
                return upload_store(path, self.path, overwrite=overwrite, progress=progress)

            yield StoreDraft(path, publish)

    @contextmanager
    def new_export(self, *, overwrite: bool) -> Iterator[ExportDraft]:
        objects, above, name = open_objects(self.path), open_objects(self.path.parent), self.path.name
        shown = printable(str(self.path))
        if not objects.can_write:
            raise DestinationError(f"{shown} is read only; use s3://, gs:// or az://")
        folder = {info.name for info in objects.list()}
        taken = {name} if any(info.name == name for info in above.list(name)) else set()
        if (EXPORT_MANIFEST_FILE in folder or taken) and not overwrite:
            raise exists_error(shown)
        if folder:
            _refuse_other_objects(objects, folder, shown)
        if taken:
            _refuse_other_object(_ObjectPath(self.path), shown)
        with tempfile.TemporaryDirectory(prefix="packstore-") as temporary:
            path = Path(temporary, name)

            def publish(progress: ProgressCallback) -> None:
                if path.is_file():
                    _replace_objects(above, {name: path}, taken, progress)
                else:
                    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
                    _replace_objects(objects, files, folder, progress)

            yield ExportDraft(path, publish)

    @contextmanager
    def grow(self) -> Iterator[Growth]:
        with _lock_upload_folder(self.path) as (path, work):
            yield _RemoteGrowth(self.path, path.parent, work)


class _RemoteGrowth(Growth):
    """Uploads new shards and publishes the next version of a store at a URL."""

    tries = 20

    def __init__(self, url: UrlPath, folder: Path, work: WorkDirectory) -> None:
        self._url, self._folder = url, folder
        self.added, self.kept = work.path / ADDED, work.path / KEPT

    def find_finished(self, read_request: Callable[[], Any]) -> Manifest | None:
        receipt = read_receipt(self._folder)
        manifest = None if receipt is None else read_published(open_objects(self._url), receipt)
        if receipt is None or manifest is None or receipt.fingerprint != read_request():
            return None
        return manifest

    def read_manifest(self) -> Manifest:
        self._head = read_writable_head(self._url)
        return self._head.manifest

    def list_shards(self) -> ShardList:
        return list_shards(self._url, self._head.manifest, [UrlPath(self._url) / name for name in self._head.shards])

    def publish(self, new: Manifest, parts: ShardList, request: Any, progress: ProgressCallback) -> None:
        version = self._head.version or 0
        with writing(self._folder):
            Receipt(request, sealed=new.digest, version=version + 1).write(self._folder)
        upload_and_publish(open_objects(self._url), new, parts, version, progress)


def read_published(objects: ObjectStore, receipt: Receipt) -> Manifest | None:
    """Returns the manifest of the version that the run of a receipt has published, or None if it has published none.

    Others may have published versions after it.
    """
    try:
        manifest = None if receipt.version is None else read_version(objects, receipt.version)
    except MissingStoreError:
        return None
    return manifest if manifest is not None and manifest.digest == receipt.sealed else None


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
def _lock_upload_folder(url: UrlPath) -> Iterator[tuple[Path, WorkDirectory]]:
    """Locks a free work folder for a URL, and yields a path for the store and a work directory."""
    # one folder for each process that writes to this URL
    for number in range(_AT_ONCE):
        folder = make_upload_folder(url, number)
        with suppress(DestinationError):
            work = WorkDirectory(folder / "upload")
            break
    else:
        raise DestinationError(
            f"{_AT_ONCE} processes of this machine write to {url} already; wait until one has finished"
        )
    path = folder / url.name
    try:
        remove_unfinished(path)  # of a run that was killed
        yield path, work
    except BaseException as error:
        if work_path(work.path / ADDED).exists():  # another append can go on from there
            work.release()
            error.add_note(describe_kept(work.path, url))
        raise
    else:
        work.remove()
        (folder / RECEIPT).unlink(missing_ok=True)  # last: until then the next run finds what is published
    finally:
        remove_unfinished(path)
        work.remove()
        remove_empty(folder)


def check_url(objects: ObjectStore, *, overwrite: bool) -> int:
    """Checks that a new store may be written at a URL. Returns the number of its newest version, or 0.

    Ignores objects that are not of a store.

    Raises:
        DestinationError: The URL is read only, has a store without ``overwrite``, has versions that cannot be read, or
            has a plain copy of a local store.
        RemoteError: A request fails.
    """
    if not objects.can_write:
        raise DestinationError(f"{objects.url} is read only: stores are not written by HTTP; use s3://, gs:// or az://")
    newest = find_newest_version(objects)
    if newest:
        if not overwrite:
            raise exists_error(objects.url)
        try:
            read_head(objects)
        except (RemoteError, MissingStoreError):
            raise
        except StoreError as error:
            raise DestinationError(
                f"{objects.url} holds versions that packstore cannot read, so it is not replaced: {error}"
            ) from None
        return newest
    try:
        objects.head(MANIFEST_FILE)
    except MissingObjectError:
        return 0
    raise DestinationError(
        f"{objects.url} holds a {MANIFEST_FILE} and no versions: a copy of a local store, which packstore does not "
        "change; choose another URL"
    )


def upload_store(
    path: Path, destination: UrlPath, *, overwrite: bool = False, progress: ProgressCallback = no_progress
) -> Manifest:
    """Uploads the local store at ``path`` and publishes it as the next version at a URL. Returns its manifest there.

    A single-file store becomes a store of one shard. Raises the errors of :func:`check_url` and
    :func:`upload_and_publish`.
    """
    objects = open_objects(destination)
    previous = check_url(objects, overwrite=overwrite)
    manifest = read_manifest(path)
    parts = list_shards(path, manifest)
    if manifest.shards is None:
        manifest = build_sharded_manifest(manifest, parts, manifest.columns, skipped=manifest.skipped)
    upload_and_publish(objects, manifest, parts, previous, progress)
    return manifest


def upload_and_publish(
    objects: ObjectStore, manifest: Manifest, parts: ShardList, previous: int, progress: ProgressCallback = no_progress
) -> int:
    """Uploads the shards ``parts``, and publishes ``manifest`` as the version after ``previous``. Returns its number.

    Reads shards that exist at the URL, and does not upload them again if their SHA-256 is right. Leaves
    out shards whose place is already their object at the URL. Raises
    :class:`StoreError` if a shard differs from the table, and the errors of :func:`publish_version`.
    """
    there = {info.name: info.nbytes for info in objects.list(SHARDS)}
    done_bytes, pairs = 0, list(zip(manifest.shard_table, parts.places, strict=True))

    def upload(pair: tuple[Shard, ShardPlace]) -> int:
        shard, place = pair
        name = shard_object_name(shard)
        if not _is_at_destination(place, objects, name) and (
            there.get(name) != shard.nbytes or hash_object(objects, name) != shard.digest
        ):
            with open_shard_file(place, shard, manifest.format) as file:
                upload_shard(objects, shard, file)
        return shard.nbytes

    for done, nbytes in enumerate(ordered_map(upload, pairs, min(_UPLOADS, default_workers()))):
        done_bytes += nbytes
        progress(Progress("upload", done + 1, len(pairs), done_bytes))
    return publish_version(objects, manifest, previous)


def publish_version(objects: ObjectStore, manifest: Manifest, previous: int) -> int:
    """Publishes ``manifest``, whose shards are at the URL, as the version after ``previous``. Returns its number.

    Uploads the table of shards before, and replaces the hint after. Raises :class:`LostRaceError` if another process
    created that version, and :class:`StoreError` if a shard is missing or has another size.
    """
    upload_table(objects, manifest.shard_table)
    there = {info.name: info.nbytes for info in objects.list(SHARDS)}
    for shard in manifest.shard_table:  # packstore clean may have removed it as unneeded
        if there.get(shard_object_name(shard)) != shard.nbytes:
            raise StoreError(f"{objects.url}/{shard_object_name(shard)} no longer exists; run this again")
    return create_version(objects, manifest, previous)


def upload_shard(objects: ObjectStore, shard: Shard, file: Path) -> None:
    """Uploads the data file of a shard to a name with its digest. Replaces a damaged object of that name.

    Raises :class:`StoreError` if the file does not have the shard's size and digest.
    """
    nbytes, digest = file_digest(file)
    if (nbytes, digest) != (shard.nbytes, shard.digest):
        raise StoreError(
            f"{printable(str(file))} has changed since it was written: its SHA-256 is {digest}, expected {shard.digest}"
        )
    _create_by_content(objects, shard_object_name(shard), file)


def upload_table(objects: ObjectStore, table: ShardTable) -> None:
    """Uploads a table of shards to a name with its digest. Replaces a damaged object of that name."""
    _create_by_content(objects, table_name(table), table.table.tobytes())


def _create_by_content(objects: ObjectStore, name: str, data: bytes | Path) -> None:
    """Creates an object that is named by its content, and replaces a damaged one of that name."""
    try:
        objects.create(name, data)
    except ConflictError:
        _log.warning("%s/%s is damaged: its SHA-256 is not the one in its name; it is replaced", objects.url, name)
        objects.delete([name])
        objects.create(name, data)


def create_version(objects: ObjectStore, manifest: Manifest, previous: int) -> int:
    """Creates the version after ``previous``, and after that replaces the hint. Returns the version's number.

    Does not check that its shards and table exist. Logs a warning if the hint cannot be written. Raises
    :class:`LostRaceError` if another process created that version with other content.
    """
    number, text = previous + 1, encode_manifest(manifest)
    try:
        objects.create(version_name(number), text)
    except ConflictError:
        raise LostRaceError(
            f"{objects.url} was changed by somebody else meanwhile, who made version {number}; run this again"
        ) from None
    try:
        objects.put(MANIFEST_FILE, text)
    except RemoteError as error:  # only readers by HTTP need it, and the store is there
        _log.warning("the store is published, but its hint is not: %s", error)
    return number


def _is_at_destination(place: ShardPlace, objects: ObjectStore, name: str) -> bool:
    """Returns, without a request, whether ``place`` is the URL of the object ``name`` in ``objects``."""
    if not isinstance(place, UrlPath) or not str(place).endswith(f"/{name}"):
        return False
    return open_objects(place.parent.parent).url == objects.url


@contextmanager
def open_shard_file(place: ShardPlace, shard: Shard, format: str) -> Iterator[Path]:
    """Yields the path of a local file with the data of a shard.

    Downloads a shard at a URL, see :func:`download_shard`, and removes the download when the context ends.
    """
    if not isinstance(place, UrlPath):
        yield FORMATS[format].data_file(Path(place))
        return
    with tempfile.TemporaryDirectory(prefix="packstore-") as folder:
        file = Path(folder, shard.name)
        download_shard(place, file, shard.digest)
        yield file


class _ObjectPath(UrlPath):
    """URL of an object that can be opened as a file."""

    def open(self, mode: str = "rb", *_: Any, **__: Any) -> IO[Any]:  # type: ignore[override]
        """Opens the object for reading. Each read fetches a part of it. Ignores ``mode`` and other arguments."""
        return io.BufferedReader(SlicedFile(_ObjectBytes(open_objects(self.parent), self.name)), _READ_BYTES)


class _ObjectBytes:
    """Bytes of an object; fetches each slice with one request. Creating it asks the object store for the size."""

    def __init__(self, objects: ObjectStore, name: str) -> None:
        self._objects, self._name = objects, name
        self._size = objects.head(name).nbytes

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        return self._objects.get(self._name, start, stop) if start < stop else b""


def _refuse_other_object(path: _ObjectPath, shown: str) -> None:
    """Raises :class:`DestinationError` if an object is not an export of one file."""
    try:
        # Fetches only the parts of the object that hold the manifest.
        if read_manifest_of_file(path) is not None:
            return
        why = "choose another URL"
    except (ManifestError, OSError, ValueError) as error:
        why = str(error)
    raise DestinationError(f"{shown} is not an export of packstore, so it is not replaced: {why}")


def _refuse_other_objects(objects: ObjectStore, names: set[str], shown: str) -> None:
    """Raises :class:`DestinationError` unless the objects ``names`` are exactly the files of one export."""
    if EXPORT_MANIFEST_FILE not in names:
        raise DestinationError(
            f"{shown} holds {len(names):,} objects that are not an export of packstore; choose another URL"
        )
    try:
        export_manifest = parse_export_manifest(objects.get(EXPORT_MANIFEST_FILE))
    except ManifestError as error:
        raise DestinationError(f"{shown} is not an export of packstore, so it is not replaced: {error}") from None
    if export_manifest is None:
        raise DestinationError(f"{shown} is not an export of packstore, so it is not replaced; choose another URL")

    def read_lines() -> RecordLines:
        return RecordLines(objects.get(ROWS_FILE) if ROWS_FILE in names else b"")

    refuse_foreign_names(map(os.fsencode, sorted(names)), export_manifest, read_lines, shown)


def _replace_objects(objects: ObjectStore, files: dict[str, Path], old: set[str], progress: ProgressCallback) -> None:
    """Deletes ``old`` objects and uploads ``files``, ``packstore.json`` last; after a failure deletes the new ones."""
    objects.delete(
        sorted(old, key=lambda name: name != EXPORT_MANIFEST_FILE)
    )  # its manifest first: then it is no export
    created: list[str] = []  # objects that were there already stay after a failure
    done_bytes = 0
    try:
        for number, name in enumerate(sorted(files, key=lambda name: (name == EXPORT_MANIFEST_FILE, name))):
            if objects.create(name, files[name]):
                created.append(name)
            done_bytes += files[name].stat().st_size
            progress(Progress("upload", number + 1, len(files), done_bytes))
    except ConflictError as error:
        objects.delete(created)
        raise DestinationError(f"somebody else writes to {objects.url} now: {error}") from None
    except BaseException:
        objects.delete(created)
        raise
