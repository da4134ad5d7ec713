"""Publishes a store at a URL: shards named by their digests, then the table, then a version created only if absent,
then the hint.

Objects belong to a store only once its version exists. ``packstore clean`` finds the objects that a killed run leaves.
If two runs create the same version, one of them raises :class:`LostRaceError`.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packstore.core.checksums import file_digest
from packstore.core.errors import DestinationError, MissingStoreError, StoreError, printable
from packstore.core.files import MANIFEST_FILE
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard, ShardTable
from packstore.core.urls import ShardPlace, UrlPath
from packstore.objects import ConflictError, MissingObjectError, ObjectStore, RemoteError, open_objects
from packstore.stores.base import encode_manifest
from packstore.stores.builder.assembly import ShardList, build_sharded_manifest, list_shards
from packstore.stores.opening import read_manifest
from packstore.stores.remote.head import find_newest_version, read_head
from packstore.stores.remote.names import SHARDS, shard_object_name, table_name, version_name
from packstore.stores.remote.transfer import download_shard, hash_object

_log = logging.getLogger(__name__)

_AT_ONCE = 4


class LostRaceError(DestinationError):
    """Another process created the same version first; read that version before trying again."""


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
            raise DestinationError(
                f"{objects.url} exists already; choose another URL, or --overwrite (Python: overwrite=True) to replace "
                "it"
            )
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
    table = manifest.shards
    assert table is not None
    there = {info.name: info.nbytes for info in objects.list(SHARDS)}
    done_bytes, pairs = 0, list(zip(table, parts.places, strict=True))

    def upload(pair: tuple[Shard, ShardPlace]) -> int:
        shard, place = pair
        name = shard_object_name(shard)
        if not _is_at_destination(place, objects, name) and (
            there.get(name) != shard.nbytes or hash_object(objects, name) != shard.digest
        ):
            with open_shard_file(place, shard, manifest.format) as file:
                upload_shard(objects, shard, file)
        return shard.nbytes

    for done, nbytes in enumerate(ordered_map(upload, pairs, min(_AT_ONCE, default_workers()))):
        done_bytes += nbytes
        progress(Progress("upload", done + 1, len(pairs), done_bytes))
    return publish_version(objects, manifest, previous)


def publish_version(objects: ObjectStore, manifest: Manifest, previous: int) -> int:
    """Publishes ``manifest``, whose shards are at the URL, as the version after ``previous``. Returns its number.

    Uploads the table of shards before, and replaces the hint after. Raises :class:`LostRaceError` if another process
    created that version, and :class:`StoreError` if a shard is missing.
    """
    assert manifest.shards is not None
    upload_table(objects, manifest.shards)
    refuse_missing_shards(objects, manifest.shards)
    return create_version(objects, manifest, previous)


def refuse_missing_shards(objects: ObjectStore, table: ShardTable) -> None:
    """Lists the shards at a URL. Raises :class:`StoreError` if one of the table is missing or has another size.

    ``packstore clean`` may have removed it as unneeded.
    """
    there = {info.name: info.nbytes for info in objects.list(SHARDS)}
    for shard in table:
        if there.get(shard_object_name(shard)) != shard.nbytes:
            raise StoreError(f"{objects.url}/{shard_object_name(shard)} no longer exists; run this again")


def upload_shard(objects: ObjectStore, shard: Shard, file: Path) -> str:
    """Uploads the data file of a shard to a name with its digest, and returns the name.

    Replaces a damaged object of that name, and logs a warning. Raises :class:`StoreError` if the file does not have the
    shard's size and digest.
    """
    name = shard_object_name(shard)
    nbytes, digest = file_digest(file)
    if (nbytes, digest) != (shard.nbytes, shard.digest):
        raise StoreError(
            f"{printable(str(file))} has changed since it was written: its SHA-256 is {digest}, expected {shard.digest}"
        )
    _create_by_content(objects, name, file)
    return name


def upload_table(objects: ObjectStore, table: ShardTable) -> str:
    """Uploads a table to a name with its digest, and returns the name.

    Replaces a damaged object of that name, and logs a warning.
    """
    name = table_name(table)
    _create_by_content(objects, name, table.table.tobytes())
    return name


def _create_by_content(objects: ObjectStore, name: str, data: bytes | Path) -> None:
    """Creates an object that is named by its content.

    An object of that name with other content is damaged: replaces it, and logs a warning.
    """
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
    """Returns whether ``place`` is the URL of the object ``name`` in ``objects``. Makes no request."""
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
