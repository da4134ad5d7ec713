"""Exports at a URL: made in a temporary directory, then uploaded, ``packstore.json`` last."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from packstore.core.errors import DestinationError, printable
from packstore.core.export_manifest import MANIFEST_FILE
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.urls import UrlPath
from packstore.objects import ConflictError, ObjectStore, open_objects

Publish = Callable[[ProgressCallback], None]
"""Puts an export where it is to be, once it is whole."""


@contextmanager
def local_destination(destination: Path, *, overwrite: bool) -> Iterator[tuple[Path, Publish]]:
    """Gives the path to export to, which is ``destination`` itself unless that is a URL, and what publishes it.

    Until :data:`Publish` has ended, readers at the URL find no ``packstore.json``; if it fails, what it has created is
    deleted. Raises :class:`DestinationError` if the URL is taken, read only, or holds what is no export."""
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
        raise DestinationError(f"{shown} exists already; choose another URL, or --overwrite to replace it")
    if folder and MANIFEST_FILE not in folder:
        raise DestinationError(f"{shown} holds {len(folder):,} objects that are no export of packstore; choose another")
    with tempfile.TemporaryDirectory(prefix="packstore-") as temporary:
        path = Path(temporary, destination.name)

        def publish(progress: ProgressCallback) -> None:
            if path.is_file():
                _upload(above, {destination.name: path}, {destination.name} if taken else set(), progress)
            else:
                files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
                _upload(objects, files, folder, progress)

        yield path, publish


def _upload(objects: ObjectStore, files: dict[str, Path], old: set[str], progress: ProgressCallback) -> None:
    """Creates the objects, that which says that all are there as the last, in place of ``old`` ones."""
    objects.delete(sorted(old, key=lambda name: name != MANIFEST_FILE))  # first what says that they are an export
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
        raise DestinationError(f"{objects.url} is written to by somebody else: {error}") from None
    except BaseException:
        objects.delete(created)
        raise
