"""Exports to a URL: written to a temporary directory, then uploaded, ``packstore.json`` last."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from packstore.core.errors import DestinationError, ManifestError, printable
from packstore.core.files import SlicedFile
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.urls import UrlPath
from packstore.exports.staging import list_own_names, read_manifest_of_file
from packstore.objects import ConflictError, ObjectStore, open_objects
from packstore.sources.export_manifest import MANIFEST_FILE, ROWS_FILE, RecordLines, parse_export_manifest

_READ_BYTES = 1 << 16
Publish = Callable[[ProgressCallback], None]
"""Uploads a complete export; does nothing for a local destination."""


@contextmanager
def local_destination(destination: Path, *, overwrite: bool) -> Iterator[tuple[Path, Publish]]:
    """Yields a local path to export to, and the function that publishes the result.

    A local ``destination`` is yielded unchecked, and its function does nothing. For a URL the path is in a temporary
    directory, which the end of the context deletes.

    Publishing with ``overwrite`` first deletes the old export. Readers at the URL find no ``packstore.json`` until
    publishing has ended. A publishing that fails deletes the objects that it has created. If another process writes to
    the URL, publishing raises :class:`DestinationError`.

    Raises :class:`DestinationError` if the URL is read only, or is taken and ``overwrite`` is False. Raises it, too, if
    the URL has objects that do not belong to one export.
    """
    if not isinstance(destination, UrlPath):
        yield destination, lambda _: None
        return
    objects = open_objects(destination)
    shown = printable(str(destination))
    if not objects.can_write:
        raise DestinationError(f"{shown} is read only; use s3://, gs:// or az://")
    folder = {info.name for info in objects.list()}
    above = open_objects(destination.parent)
    taken = any(info.name == destination.name for info in above.list(destination.name))
    if (MANIFEST_FILE in folder or taken) and not overwrite:
        raise DestinationError(
            f"{shown} exists already; choose another URL, or --overwrite (Python: overwrite=True) to replace it"
        )
    if folder and MANIFEST_FILE not in folder:
        raise DestinationError(
            f"{shown} holds {len(folder):,} objects that are not an export of packstore; choose another URL"
        )
    if folder:
        _refuse_other_objects(objects, folder, shown)
    if taken:
        _refuse_other_object(_ObjectPath(destination), shown)
    with tempfile.TemporaryDirectory(prefix="packstore-") as temporary:
        path = Path(temporary, destination.name)

        def publish(progress: ProgressCallback) -> None:
            if path.is_file():
                _replace_objects(above, {destination.name: path}, {destination.name} if taken else set(), progress)
            else:
                files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
                _replace_objects(objects, files, folder, progress)

        yield path, publish


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
    """Raises :class:`DestinationError` if an object is not an export of one file. Fetches only the parts of the object
    that tell this."""
    try:
        if read_manifest_of_file(path) is not None:
            return
        why = "choose another URL"
    except (ManifestError, OSError, ValueError) as error:
        why = str(error)
    raise DestinationError(f"{shown} is not an export of packstore, so it is not replaced: {why}")


def _refuse_other_objects(objects: ObjectStore, names: set[str], shown: str) -> None:
    """Raises :class:`DestinationError` unless the objects ``names`` are exactly the files of one export."""
    try:
        export_manifest = parse_export_manifest(objects.get(MANIFEST_FILE))
    except ManifestError as error:
        raise DestinationError(f"{shown} is not an export of packstore, so it is not replaced: {error}") from None
    if export_manifest is None:
        raise DestinationError(f"{shown} is not an export of packstore, so it is not replaced; choose another URL")
    own = list_own_names(export_manifest, lambda: RecordLines(objects.get(ROWS_FILE) if ROWS_FILE in names else b""))
    other = next((name for name in sorted(names) if os.fsencode(name) not in own), None)
    if other is not None:
        raise DestinationError(
            f"{shown} also holds {printable(other)!r}, which is not the export's, so it is not replaced; move that "
            "away first"
        )


def _replace_objects(objects: ObjectStore, files: dict[str, Path], old: set[str], progress: ProgressCallback) -> None:
    """Deletes ``old`` objects and uploads ``files``, ``packstore.json`` last. If an upload fails, deletes the objects
    that it has created.

    Raises :class:`DestinationError` if another process writes to the same URL.
    """
    objects.delete(sorted(old, key=lambda name: name != MANIFEST_FILE))  # its manifest first: then it is no export
    created: list[str] = []
    done_bytes = 0
    try:
        for number, name in enumerate(sorted(files, key=lambda name: (name == MANIFEST_FILE, name))):
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
