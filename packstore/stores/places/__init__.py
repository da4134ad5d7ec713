"""Places of stores and exports: paths on this machine and URLs, behind one interface.

A local place publishes by renaming; :mod:`packstore.stores.places.local`. A remote place publishes by creating an
object only if it is absent; :mod:`packstore.stores.places.remote`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from packstore.core.errors import DestinationError
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback
from packstore.core.registry import import_and_call
from packstore.core.urls import UrlPath

if TYPE_CHECKING:
    from packstore.stores.assembly import ShardList
    from packstore.stores.places.receipts import ConversionIdentity, Receipt
    from packstore.stores.places.work import Owner


_local = import_and_call("packstore.stores.places.local:LocalPlace")
_remote = import_and_call("packstore.stores.places.remote:RemotePlace")


def place_of(path: Path) -> Place:
    """Returns the place at a path of :func:`packstore.core.urls.location`. Makes no request and reads nothing."""
    place: Place = _remote(path) if isinstance(path, UrlPath) else _local(path)
    return place


class LostRaceError(DestinationError):
    """Another process created the same version first; read that version before trying again."""


def exists_error(shown: str, what: str = "URL") -> DestinationError:
    """Returns the error for a destination that exists and is not to be replaced. ``what``: what else to choose."""
    return DestinationError(
        f"{shown} exists already; choose another {what}, or --overwrite (Python: overwrite=True) to replace it"
    )


class Place(ABC):
    """A local path or a URL, at which a store or an export is or will be.

    Attributes:
        path: The path or URL.
        remote: Whether it is a URL.
    """

    remote: ClassVar[bool]

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def check_new_store(self, *, overwrite: bool) -> None:
        """Raises :class:`DestinationError` if a new store may not be written here.

        A store is replaced only with ``overwrite``, and anything else never.
        """

    @abstractmethod
    def new_store(self, *, overwrite: bool) -> AbstractContextManager[StoreDraft]:
        """Calls :meth:`check_new_store` and yields a local path for a new store, and the function that publishes it.

        What is not published is removed at the end of the context.
        """

    @abstractmethod
    def new_export(self, *, overwrite: bool) -> AbstractContextManager[ExportDraft]:
        """Yields a local path for a new export, and the function that publishes it.

        A local path is yielded unchecked, since an interrupted export may have been published there. For a URL,
        publishing with ``overwrite`` first deletes the old export: readers find no ``packstore.json`` until publishing
        has ended. If it fails, it deletes the objects that it has created. What is not published is removed at the end
        of the context.

        Raises :class:`DestinationError` if a URL may not be written, has an export and ``overwrite`` is False, or has
        objects that do not belong to one export.
        """

    @abstractmethod
    def grow(self) -> AbstractContextManager[Growth]:
        """Locks the store that is here against other writers of this machine, and yields what adds shards to it.

        Raises :class:`StoreError` if there is no store, and :class:`DestinationError` if it cannot grow.
        """

    def is_empty(self) -> bool:
        """Returns whether nothing is here. False for every URL, which is not asked."""
        return False

    def find_writer(self) -> Owner | None:
        """Returns the process that writes here. None if there is none, and for every URL."""
        return None

    def remove_finished_work(self) -> None:  # noqa: B027 - nothing lies beside a URL
        """Removes the work directory that a run left which was killed right after publishing.

        Keeps a directory from which another run can resume, that packstore did not make, or that a process uses.
        """

    def find_published(self) -> Receipt | None:
        """Returns the receipt of the run that published what is here and was killed before it removed its work
        directory: a conversion, an append or an export.

        None if there is none, and for every URL, where :func:`packstore.stores.places.remote.read_published` takes the
        receipt from a run.
        """
        return None

    def was_killed_after_publishing(self) -> bool:
        """Returns whether :meth:`find_published` finds a conversion."""
        receipt = self.find_published()
        return receipt is not None and receipt.position is not None

    def finish_published_run(self, identity: ConversionIdentity, *, overwrite: bool) -> Manifest | None:
        """Removes the work directory of a conversion that was killed right after publishing its store.

        Returns the store's manifest. None if no such conversion was killed, and for every URL. None also if another
        conversion was killed and ``overwrite`` is set; its work directory stays.

        Raises :class:`DestinationError` if another conversion made the store and ``overwrite`` is not set, or if a
        process uses the work directory.
        """
        return None


@dataclass(frozen=True, slots=True)
class StoreDraft:
    """A new store before it is published.

    Attributes:
        path: Where to write it: the destination itself for a local place, whose builder publishes by a rename.
        publish: Publishes the store with this manifest. Returns its manifest at the destination: at a URL, every store
            has shards.
    """

    path: Path
    publish: Callable[[Manifest, ProgressCallback], Manifest]


@dataclass(frozen=True, slots=True)
class ExportDraft:
    """A new export before it is published.

    Attributes:
        path: Where to write it: the destination itself for a local place.
        publish: Uploads the complete export; does nothing for a local place.
    """

    path: Path
    publish: Callable[[ProgressCallback], None]


class Growth(ABC):
    """An append to the store at a place. The work directory is locked until the end of :meth:`Place.grow`.

    Attributes:
        added: Local path at which to pack the records to add. An interrupted run may have begun it.
        kept: Local path at which to copy those records of the store that must be rewritten.
        tries: Number of times to plan again after others have published first.
    """

    added: Path
    kept: Path
    tries: ClassVar[int]

    @abstractmethod
    def find_finished(self, read_request: Callable[[], Any]) -> Manifest | None:
        """Returns the store's manifest if a run of the same request was killed after publishing; else None.

        Cleans up after an interrupted run, which may have published or not. Calls ``read_request``, which returns
        plain JSON, only if a run has published.
        """

    @abstractmethod
    def read_manifest(self) -> Manifest:
        """Reads the present manifest, which :meth:`publish` will replace.

        Raises :class:`DestinationError` if the store cannot grow.
        """

    @abstractmethod
    def list_shards(self) -> ShardList:
        """Lists the shards of the manifest that was read last. A store of one file is one shard."""

    @abstractmethod
    def publish(self, new: Manifest, parts: ShardList, request: Any, progress: ProgressCallback) -> None:
        """Publishes ``new``, with all shards ``parts``, in place of the manifest that was read last, in one step.

        Removes from a local store the files that only the old manifest needed. ``request`` is plain JSON, for
        :meth:`find_finished` of another run.

        Raises :class:`LostRaceError` if another process has published at the URL first, and
        :class:`DestinationError` if a local store was changed or cannot be written. The store is then as before.
        """
