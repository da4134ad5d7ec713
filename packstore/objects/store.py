"""An object store: named sequences of bytes under a URL."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packstore.core.errors import UsageError
from packstore.objects.agent import AT_ONCE, agent
from packstore.objects.direct import Direct
from packstore.objects.interrupts import in_batches, interruptible
from packstore.objects.location import Location, parse_url
from packstore.objects.values import ObjectInfo, RemoteError


def open_objects(url: str | os.PathLike[str]) -> ObjectStore:
    """The object store at a URL: s3://bucket/path, gs://bucket/path, az://container/path, https://host/path (read
    only), file:///path or memory://name/path. Connects at the first request.

    Credentials come from the environment: of S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
    AWS_REGION, AWS_ENDPOINT_URL, or AWS_PROFILE and the files in ~/.aws; of Google GOOGLE_APPLICATION_CREDENTIALS; of
    Azure AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; else from the metadata service of the cloud that
    the machine stands in.

    Raises:
        UsageError: Another scheme, or a URL that carries credentials.
    """
    return ObjectStore(parse_url(url))


class ObjectStore:
    """Objects under a URL. Names are relative to it, with ``/`` between their parts.

    From any thread, from forked processes (an agent process makes their requests) and spawned ones: it pickles as its
    URL. Requests that fail are made again for some :data:`~packstore.objects.connection.RETRY_SECONDS`.
    Nothing read is proven: a flipped bit passes.

    Every method raises :class:`RemoteError`, in one line, and :class:`packstore.core.errors.UsageError` where obstore
    is not installed.

    Attributes:
        url: Without a slash at its end.
        can_list: Whether :meth:`list` works: not with ``http`` and ``https``.
        can_write: Whether :meth:`create` may work: likewise. That a server refuses to overwrite shows at the first
            write.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._direct = Direct(location)
        self.url = location.url
        self.can_list = self.can_write = location.scheme not in ("http", "https")

    def get(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The bytes of an object, or those from ``start`` to before ``stop``; fewer where it ends before ``stop``.

        Raises :class:`MissingObjectError`, and :class:`RemoteError` where ``start`` is behind its end."""
        data: bytes = self._call("get", name, start, stop)
        return data

    def stream(self, name: str) -> Iterator[bytes | memoryview]:
        """An object's bytes, a MB or more at a time. Raises :class:`MissingObjectError` at the first."""
        return self._iterate("stream", name)

    def read(self, name: str) -> tuple[ObjectInfo, bytes]:
        """An object and its bytes, by one request. Raises :class:`MissingObjectError`."""
        found: tuple[ObjectInfo, bytes] = self._call("read", name)
        return found

    def head(self, name: str) -> ObjectInfo:
        """An object without its bytes. Raises :class:`MissingObjectError`."""
        info: ObjectInfo = self._call("head", name)
        return info

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose names start with ``prefix``, in any order."""
        return self._iterate("list", prefix)

    def directory(self, name: str = "") -> tuple[Sequence[ObjectInfo], Sequence[str]]:
        """The objects in a directory, and the names of the directories in it. Takes a request for 1,000 of them."""
        found: tuple[Sequence[ObjectInfo], Sequence[str]] = self._call("directory", name)
        return found

    def create(self, name: str, data: bytes | Path) -> bool:
        """Creates an object, whole or not at all, if there is none of this name; ``data``: its bytes, or their file.

        Above 64 MB it is uploaded in parts, in bounded memory, to a name in ``_work/``, and copied to its own by the
        server. Above 5 GB S3 cannot copy at once: then a name that another writer creates in the meantime is replaced,
        so a name should tell the content.

        Returns:
            True: created. False: an object with this content was there already.

        Raises:
            ConflictError: An object with another content is there.
            RemoteError: Among others, a server that cannot create an object only if it is absent.
        """
        created: bool = self._call("create", name, data)
        return created

    def put(self, name: str, data: bytes) -> None:
        """Writes an object, over one that is there."""
        self._call("put", name, data)

    def delete(self, names: Sequence[str]) -> None:
        """Deletes objects; names of none are passed over."""
        self._call("delete", names)

    def __repr__(self) -> str:
        return f"open_objects({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_objects, (self.url,)

    def _call(self, method: str, *arguments: Any) -> Any:
        self._refuse_without_obstore()
        process = agent()
        if process is None:
            return interruptible(getattr(self._direct, method), *arguments)
        self._refuse_memory()
        return process.call(self._location, method, *arguments)

    def _iterate(self, method: str, *arguments: Any) -> Iterator[Any]:
        self._refuse_without_obstore()
        process = agent()
        if process is None:
            values = getattr(self._direct, method)(*arguments)
            yield from in_batches(values, AT_ONCE[method], ahead=method == "stream")
        else:
            self._refuse_memory()
            yield from process.iterate(self._location, method, *arguments)

    def _refuse_without_obstore(self) -> None:
        if sys.modules.get("obstore") is None and find_spec("obstore") is None:
            raise UsageError(f"{self._location.scheme}:// URLs need obstore: pip install 'packstore[remote]'")

    def _refuse_memory(self) -> None:
        if self._location.scheme == "memory":
            raise RemoteError(f"{self.url} is the memory of one process; a forked one cannot read it")
