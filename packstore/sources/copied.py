"""Reads archives, record files and arrays at URLs from copies in the local cache.

Their readers map files and seek in them, so whole objects are fetched, once per machine, and opened through a folder of
links. They stay in the cache while the source is open; together they must fit into its budget.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from packstore.cache import Cache, default_cache
from packstore.core.columns import ImageData
from packstore.core.errors import SampleError, SourceError, StoreError, printable
from packstore.core.files import Location, raise_open_file_limit, release_open_files, scratch_folder
from packstore.core.parallel import ordered_map
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.objects import MissingObjectError, ObjectInfo, ObjectStore, open_objects
from packstore.sources.base import Entry, Sample, Source, Survey
from packstore.sources.remote import RemotePath
from packstore.sources.wrapped import WrappedSource
from packstore.stores.linked import derive_object_state
from packstore.stores.remote_objects import cached_copy_key, open_cached_copy_of

_AT_ONCE = 4

Objects = tuple[ObjectInfo, ...]


class CopiedSource(WrappedSource):
    """Wraps a source that reads copies of the objects at a URL. Its constructor fetches all objects into the cache.
    :meth:`close` lets the cache evict them. Errors name the URL.

    Its entries have no times of change, since those of copies are not those of the objects. :meth:`stamp` covers the
    objects instead."""

    def __init__(
        self, path: RemotePath, opener: Callable[[Path], Source], progress: ProgressCallback = no_progress
    ) -> None:
        """Fetches the objects into the cache, and opens the copies.

        Args:
            path: URL of an object, or of a folder of objects.
            opener: Opens the copies as a source.
            progress: Called after each object is fetched.

        Raises:
            SourceError: The objects cannot be fetched, do not fit into the cache, or are not a source.
        """
        store, objects = list_objects(path)
        with ExitStack() as stack, _as_source_errors():
            self._copy = str(place := stack.enter_context(link_copies(path, store, objects, default_cache(), progress)))
            with self._urls_in_errors(path):
                source = opener(place)
            stack.callback(source.close)
            super().__init__(source, source.options)
            self._end = weakref.finalize(self, _close_in_process, os.getpid(), stack.pop_all())
        self.path = path
        self._found = _digest_objects(objects)
        top = str(path).partition("://")[2].partition("/")[2]
        self._states = {_relative_path(path, o.name, top): derive_object_state(o) for o in objects}

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Surveys the copies, and takes the evidence from their source. Errors name the URL."""
        with self._urls_in_errors(self.path):
            survey = self._source.survey(split, progress)
        self.evidence = self._source.evidence  # some kinds complete it in their survey
        return survey

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields the entries of the copies, without times of change. Errors name the URL."""
        with self._urls_in_errors(self.path):
            entries = self._source.entries(split)
        return self._zero_change_times(entries)

    def read(self, entry: Entry) -> ImageData | Sample:
        """Reads a sample from the copies. Errors name the URL."""
        with self._urls_in_errors(self.path):
            return self._source.read(entry)

    def image(self, entry: Entry) -> ImageData:
        """Reads the main image of a sample from the copies. Errors name the URL."""
        with self._urls_in_errors(self.path):
            return self._source.image(entry)

    def locate(self, entry: Entry) -> Location | None:
        """Locates the image in the object at its URL; None if it is not in one range of a copy."""
        location = self._source.locate(entry)
        # A source may make further files, such as decompressed ones, which are at no URL.
        if location is None or not f"{location.path}/".startswith(f"{self._copy}/"):
            return None
        inside = location.path[len(self._copy) + 1 :]
        return Location(f"{self.path}/{inside}".rstrip("/"), location.offset, self._states[inside])

    def nbytes(self, entry: Entry) -> int:
        """Estimates the bytes of an entry, by the source of the copies."""
        return self._source.nbytes(entry)

    def pick_entries(self, split: str | None, records: int, count: int) -> Iterator[Entry]:
        """Picks entries of the copies, without times of change. Errors name the URL."""
        return self._zero_change_times(self._source.pick_entries(split, records, count))

    def stamp(self) -> str:
        """Lists the objects again, and returns a digest of their names, sizes and ETags. Raises :class:`SourceError` if
        the objects have changed since they were fetched."""
        assert isinstance(self.path, RemotePath)
        now = _digest_objects(list_objects(self.path)[1])
        if now != self._found:
            raise SourceError(f"{printable(str(self.path))} has changed since it was fetched; run this again")
        return now

    def close(self) -> None:
        """Closes the source and its copies. Does nothing in a forked process."""
        self._end()

    def _zero_change_times(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Yields entries with 0 as their time of change."""
        with self._urls_in_errors(self.path):
            for entry in entries:
                # The copies change with the cache, and :meth:`stamp` covers the objects.
                yield entry._replace(changed_ns=0)

    @contextmanager
    def _urls_in_errors(self, path: Path) -> Iterator[None]:
        """Replaces paths of copies by URLs in messages of a :class:`SourceError` or :class:`SampleError` from the
        block."""
        try:
            yield
        except SampleError as error:
            raise SampleError(error.key, error.reason.replace(self._copy, str(path))) from error
        except SourceError as error:
            error.args = tuple(
                part.replace(self._copy, str(path)) if isinstance(part, str) else part for part in error.args
            )
            raise


def list_objects(path: RemotePath) -> tuple[ObjectStore, Objects]:
    """Opens the bucket of a URL, and lists its objects. Lists the object at the URL, else all objects below it by name.
    Leaves out markers of folders (``NAME/``). Raises :class:`SourceError` if there is no object, or the bucket cannot
    be reached."""
    scheme, _, rest = str(path).partition("://")
    bucket, _, name = rest.partition("/")
    store = open_objects(f"{scheme}://{bucket}/")
    with _as_source_errors():
        if name:
            try:
                return store, (store.head(name),)
            except MissingObjectError:
                pass
        # Names with a slash at their end are markers of folders.
        below = (info for info in store.list(f"{name}/" if name else "") if not info.name.endswith("/"))
        objects = tuple(sorted(below))
    if not objects:
        raise SourceError(f"{printable(str(path))}: nothing is there")
    return store, objects


@contextmanager
def link_copies(
    path: RemotePath, store: ObjectStore, found: Objects, cache: Cache, progress: ProgressCallback
) -> Iterator[Path]:
    """Fetches objects into the cache, and yields the path of links to the copies. Removes the links after the block.

    Raises :class:`StoreError` if an object cannot be fetched. Raises :class:`SourceError`

    - if the objects exceed the cache's budget or the limit of open files;
    - if an object's name cannot be a file's path;
    - if the disk refuses a write.
    """
    name = str(path).partition("://")[2].partition("/")[2]
    total = sum(info.nbytes for info in found)
    if total > cache.budget:
        raise SourceError(
            f"{printable(str(path))} is read from copies on this machine, and needs {total:,} bytes of the "
            f"{cache.budget:,} that the cache {printable(str(cache.root))} may hold; give it more with --cache-size or "
            "PACKSTORE_CACHE_SIZE, or another disk with --cache or PACKSTORE_CACHE"
        )
    done_bytes = 0
    with scratch_folder("source") as folder, ExitStack() as held:
        # An open file keeps the cache from evicting its copy.
        granted = raise_open_file_limit(len(found))
        held.callback(release_open_files, granted)
        if granted < len(found):
            raise SourceError(
                f"{printable(str(path))} has {len(found):,} objects, and only {granted:,} files may be open at a time; "
                "raise that (ulimit -n), or pack it in parts"
            )

        def link(info: ObjectInfo) -> int:
            _fetch_and_link(folder / path.name / _relative_path(path, info.name, name), store, info, cache, held)
            return info.nbytes

        for done, nbytes in enumerate(ordered_map(link, found, _AT_ONCE)):
            done_bytes += nbytes
            progress(Progress("fetch", done + 1, len(found), done_bytes))
        yield folder / path.name


def _fetch_and_link(place: Path, store: ObjectStore, info: ObjectInfo, cache: Cache, held: ExitStack) -> None:
    """Fetches an object into the cache, and links to the copy at ``place``; ``held`` closes the copy at its end."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if not info.nbytes:
            place.touch()
            return
        held.callback(os.close, open_cached_copy_of(store, info, cache))
        place.symlink_to(cache.path_of_address(cached_copy_key(store, info)))
    except OSError as error:
        url = printable(f"{store.url}/{info.name}")
        raise SourceError(f"{url} cannot be copied: {error.strerror or error}") from error


def _relative_path(path: Path, name: str, top: str) -> str:
    """Returns the path of an object below the folder ``top``; empty for the object ``top`` itself."""
    inside = name if not top else name[len(top) + 1 :]
    if inside and (any(part in ("", ".", "..") for part in inside.split("/")) or "\0" in inside):
        raise SourceError(f"{printable(str(path))} holds {printable(name)!r}, which cannot be the path of a file")
    return inside


def _digest_objects(found: Objects) -> str:
    """Returns a digest of names, sizes and ETags of objects, or times without an ETag."""
    facts = "".join(repr((info.name, info.nbytes, info.etag or info.modified)) for info in found)
    return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()


@contextmanager
def _as_source_errors() -> Iterator[None]:
    """Converts a :class:`StoreError` within the block (unreachable bucket, full cache) to :class:`SourceError`."""
    try:
        yield
    except StoreError as error:
        raise SourceError(str(error)) from error


def _close_in_process(process: int, stack: ExitStack) -> None:
    """Closes the copies, unless this is a forked process."""
    # A forked process has the same files open, and they are not its own.
    if os.getpid() == process:
        stack.close()
