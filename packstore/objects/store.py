"""An object store: named sequences of bytes under a URL."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packstore.core.errors import UsageError
from packstore.objects.agent import AT_ONCE, get_agent_if_forked
from packstore.objects.direct import Direct
from packstore.objects.interrupts import call_interruptibly, iterate_interruptibly
from packstore.objects.location import ParsedUrl, parse_url
from packstore.objects.values import ObjectInfo, RemoteError


def open_objects(url: str | os.PathLike[str]) -> ObjectStore:
    """Returns the object store at a URL; connects at the first request.

    URLs: s3://bucket/path, gs://bucket/path, az://container/path, https://host/path (read only), file:///path or
    memory://name/path.

    Credentials come from the environment: for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
    AWS_REGION, AWS_ENDPOINT_URL, or AWS_PROFILE and the files in ~/.aws; for Google GOOGLE_APPLICATION_CREDENTIALS; for
    Azure AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; else from the metadata service of the machine's
    cloud.

    Raises:
        UsageError: Another scheme, or a URL that carries credentials.
    """
    return ObjectStore(parse_url(url))


class ObjectStore:
    """Objects under a URL. Their names are relative to it, with ``/`` between their parts.

    Works from any thread, from spawned processes (it pickles as its URL) and from forked ones (an agent process makes
    their requests), but a forked process cannot read ``memory://``. Failed requests are retried for
    :data:`~packstore.objects.connection.RETRY_SECONDS`. Data read is not verified: a flipped bit passes.

    Every method raises :class:`RemoteError`, in one line, and :class:`packstore.core.errors.UsageError` if obstore is
    not installed. Writes and deletions raise that error also for HTTP.

    Attributes:
        url: The URL, without a slash at its end.
        can_list: Whether :meth:`list` works: not with ``http`` and ``https``.
        can_write: Whether :meth:`create` may work: not with ``http`` and ``https``. The first write shows whether the
            server supports creating only if absent.
    """

    def __init__(self, location: ParsedUrl) -> None:
        self._location = location
        self._direct = Direct(location)
        self.url = location.url
        self.can_list = self.can_write = location.scheme not in ("http", "https")

    def get(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Returns an object's bytes, or those from ``start`` to before ``stop``; fewer if it ends before ``stop``.

        Raises :class:`MissingObjectError`, and :class:`RemoteError` if ``start`` is behind its end.
        """
        data: bytes = self._call("get", name, start, stop)
        return data

    def stream(self, name: str) -> Iterator[bytes | memoryview]:
        """Yields an object's bytes, a MB or more at a time. Raises :class:`MissingObjectError` at the first, if there
        is no such object.
        """
        return self._iterate("stream", name)

    def read(self, name: str) -> tuple[ObjectInfo, bytes]:
        """Returns an object's facts and all its bytes, with one request. Raises :class:`MissingObjectError`."""
        result: tuple[ObjectInfo, bytes] = self._call("read", name)
        return result

    def head(self, name: str) -> ObjectInfo:
        """Returns an object's facts. Raises :class:`MissingObjectError`."""
        info: ObjectInfo = self._call("head", name)
        return info

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yields the facts of all objects whose names start with ``prefix``, in any order."""
        return self._iterate("list", prefix)

    def list_directory(self, name: str = "") -> tuple[Sequence[ObjectInfo], Sequence[str]]:
        """Lists the objects in a directory, and the directories in it by their names relative to the store, with one
        request for each 1,000.
        """
        listing: tuple[Sequence[ObjectInfo], Sequence[str]] = self._call("list_directory", name)
        return listing

    def create(self, name: str, data: bytes | Path) -> bool:
        """Creates an object atomically if there is none of this name; ``data``: its bytes, or their file.

        Above 64 MB it is uploaded in parts, in bounded memory, to a name in ``_work/``, and the server copies it to its
        own name. Above 5 GB S3 cannot copy in one request: then an object that another writer creates meanwhile is
        replaced, so names should depend on the content.

        Returns:
            True if it was created, False if an object with this content existed already.

        Raises:
            ConflictError: An object with other content exists.
            RemoteError: Among others, the server cannot create an object only if it is absent.
        """
        created: bool = self._call("create", name, data)
        return created

    def put(self, name: str, data: bytes) -> None:
        """Writes an object; replaces an existing one."""
        self._call("put", name, data)

    def delete(self, names: Sequence[str]) -> None:
        """Deletes objects; ignores names that do not exist."""
        self._call("delete", names)

    def __repr__(self) -> str:
        return f"open_objects({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_objects, (self.url,)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of :class:`Direct` in another thread, so that signals interrupt it; in a forked process
        through the agent. Raises :class:`UsageError` without obstore, and :class:`RemoteError` for ``memory://`` in a
        fork.
        """
        self._refuse_without_obstore()
        process = get_agent_if_forked()
        if process is None:
            return call_interruptibly(getattr(self._direct, method), *arguments)
        self._refuse_memory_in_fork()
        return process.call(self._location, method, *arguments)

    def _iterate(self, method: str, *arguments: Any) -> Iterator[Any]:
        """Yields the values of a method of :class:`Direct`. Runs it and raises errors like :meth:`_call`."""
        self._refuse_without_obstore()
        process = get_agent_if_forked()
        if process is None:
            values = getattr(self._direct, method)(*arguments)
            yield from iterate_interruptibly(values, AT_ONCE[method], ahead=method == "stream")
        else:
            self._refuse_memory_in_fork()
            yield from process.iterate(self._location, method, *arguments)

    def _refuse_without_obstore(self) -> None:
        """Raises :class:`UsageError` if obstore is not installed."""
        if sys.modules.get("obstore") is None and find_spec("obstore") is None:
            raise UsageError(f"{self._location.scheme}:// URLs need obstore: pip install 'packstore[remote]'")

    def _refuse_memory_in_fork(self) -> None:
        """Raises :class:`RemoteError` for a store in memory, which a forked process cannot read."""
        if self._location.scheme == "memory":
            raise RemoteError(f"{self.url} is the memory of one process; a forked one cannot read it")
