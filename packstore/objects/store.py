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
    """Returns the object store at a URL. Connects at the first request.

    URLs: s3://bucket/path, gs://bucket/path, az://container/path, https://host/path (read only), file:///path or
    memory://name/path.

    Credentials come from these environment variables, or from the metadata service of the machine's cloud:

    - S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL, or AWS_PROFILE and
      the files in ~/.aws
    - Google: GOOGLE_APPLICATION_CREDENTIALS
    - Azure: AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY

    Raises:
        UsageError: Not a URL of these, or one with credentials or a query; see :func:`parse_url`.
    """
    return ObjectStore(parse_url(url))


class ObjectStore:
    """Objects under a URL. Names of objects are relative to the URL, with ``/`` between their parts.

    Works from any thread. Pickles as its URL. In forked processes, an agent process makes the requests. A forked
    process cannot read ``memory://``.

    Every method raises :class:`RemoteError` with a message of one line if its request fails. Requests are retried for
    :data:`~packstore.objects.connection.RETRY_SECONDS` before. Every method raises
    :class:`packstore.core.errors.UsageError` if obstore is not installed. Writes and deletions raise it also for HTTP.

    Does not verify the bytes that it reads.

    Attributes:
        url: The URL, without a slash at its end.
        can_list: Whether :meth:`list` works: False for ``http`` and ``https``.
        can_write: Whether :meth:`create` may work: False for ``http`` and ``https``. Only the first write shows whether
            the server can create an object only if it is absent.
    """

    def __init__(self, location: ParsedUrl) -> None:
        self._location = location
        self._direct = Direct(location)
        self.url = location.url
        self.can_list = self.can_write = location.scheme not in ("http", "https")

    def get(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Returns an object's bytes from ``start`` to before ``stop``, by default all.

        Returns fewer if the object ends before ``stop``. Raises :class:`RemoteError` if ``start`` is behind the
        object's end, and :class:`MissingObjectError`.
        """
        data: bytes = self._call("get", name, start, stop)
        return data

    def stream(self, name: str) -> Iterator[bytes | memoryview]:
        """Yields an object's bytes, a MB or more at a time.

        Requests nothing until the first piece is taken. Raises :class:`MissingObjectError` if there is no such object.
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
        """Returns the objects directly in a directory, and the names of the directories in it.

        All names are relative to the store. Makes a request for each 1,000 names.
        """
        listing: tuple[Sequence[ObjectInfo], Sequence[str]] = self._call("list_directory", name)
        return listing

    def create(self, name: str, data: bytes | Path) -> bool:
        """Creates an object atomically if there is none of this name. ``data``: its bytes, or the file that has them.

        Over 64 MB are uploaded in parts to a name in ``_work/``, in bounded memory. The server copies the object to
        its own name. S3 cannot copy over 5 GB: such an object replaces one that another writer creates meanwhile. Give
        large objects names that depend on their content.

        Returns:
            True if this call created the object, False if it existed already with this content.

        Raises:
            ConflictError: An object with other content exists.
            RemoteError: Among others, the server cannot create an object only if it is absent.
        """
        created: bool = self._call("create", name, data)
        return created

    def put(self, name: str, data: bytes) -> None:
        """Writes an object. Replaces an existing one."""
        self._call("put", name, data)

    def delete(self, names: Sequence[str]) -> None:
        """Deletes objects. Ignores names that do not exist."""
        self._call("delete", names)

    def __repr__(self) -> str:
        return f"open_objects({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_objects, (self.url,)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of :class:`Direct` in another thread, while this thread handles signals.

        In a forked process, the agent calls the method instead. Raises :class:`UsageError` without obstore, and
        :class:`RemoteError` for ``memory://`` in a forked process.
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
