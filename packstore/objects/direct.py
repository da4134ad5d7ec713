"""Requests to an object store, from the process that makes them."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packstore.core.errors import UsageError
from packstore.core.files import sync_directory, sync_file
from packstore.objects import connection
from packstore.objects.connection import connect
from packstore.objects.failures import explaining
from packstore.objects.location import Location
from packstore.objects.values import ConflictError, MissingObjectError, ObjectInfo, RemoteError

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore as Connection

WORK = "_work"
"""Where objects lie that last only as long as a command: probes, and uploads before they have their name."""
STEP_BYTES = 1 << 20
"""What :meth:`Direct.stream` yields at once, at least, but for the last piece: what a processor's cache holds."""
_SINGLE_BYTES = 64 << 20  # a conditional put holds all of it in memory
_PART_BYTES = 16 << 20
_PARTS = 9_000  # S3 allows 10,000
_COPY_BYTES = 5 << 30  # what S3 copies at once
_AT_ONCE = 4
_BULK = 1000  # names in one request


class Direct:
    """The requests of :class:`packstore.objects.ObjectStore`, made by obstore in this process."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._lock = threading.Lock()
        self._made: Connection | None = None
        self._probed: set[str] = set()
        # In memory there is one store for all prefixes; one for a local directory would have to create it.
        own = location.scheme in ("file", "memory") and location.prefix.strip("/")
        self._above = f"{own}/" if own else ""

    def get(self, name: str, start: int | None, stop: int | None) -> bytes:
        import obstore

        with self._explaining(name, "read"):
            path = self._path(name)
            if start is None and stop is None:
                return b"".join(self.stream(name))
            start = start or 0
            if start == stop:
                return b""
            if stop is not None and not start and self.location.scheme in ("http", "https"):
                return self._beginning(name, stop)
            if stop is None:
                return bytes(obstore.get(self._connection(), path, options={"range": {"offset": start}}).bytes())
            return bytes(obstore.get_range(self._connection(), path, start=start, end=stop))

    def _beginning(self, name: str, stop: int) -> bytes:
        """By no range: not every HTTP server knows them."""
        data = bytearray()
        for piece in self.stream(name):
            data += piece
            if len(data) >= stop:
                break
        return bytes(data[:stop])

    def read(self, name: str) -> tuple[ObjectInfo, bytes]:
        reply = self._reply(name)
        info, _ = next(reply)
        return info, b"".join(piece for _, piece in reply)

    def stream(self, name: str) -> Iterator[memoryview]:
        return (piece for _, piece in self._reply(name) if piece)

    def _reply(self, name: str) -> Iterator[tuple[ObjectInfo, memoryview]]:
        """An object's bytes, piece by piece, each with what the object is; at first none.

        obstore asks again for the rest of a body that breaks off, but only within its time from the first byte on;
        so it is asked anew, as long as each time brings something."""
        import obstore
        from obstore.exceptions import GenericError, PreconditionError

        seen, expected = 0, -1
        info: ObjectInfo | None = None
        options: GetOptions | None = None
        with self._explaining(name, "read"):
            while seen != expected:
                before = seen
                try:
                    found = obstore.get(self._connection(), self._path(name), options=options)
                    if info is None:
                        info = self._info(dict(found.meta))
                        expected = info.nbytes
                        yield info, memoryview(b"")
                    for piece in found.stream(STEP_BYTES):
                        seen += len(piece)
                        yield info, memoryview(piece)
                except PreconditionError:
                    raise RemoteError(f"{self.location.shown(name)} was replaced while it was read") from None
                except GenericError:
                    if seen == before:
                        raise
                else:
                    if seen == before and seen != expected:
                        raise RemoteError(f"{self.location.shown(name)} ends after {seen:,} of {expected:,} bytes")
                options = {"range": {"offset": seen}, "if_match": found.meta["e_tag"]}

    def head(self, name: str) -> ObjectInfo:
        import obstore

        with self._explaining(name, "read"):
            return self._info(dict(obstore.head(self._connection(), self._path(name))))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        import obstore

        # obstore takes a prefix for a directory; ours may end in the middle of a name.
        directory = prefix.rpartition("/")[0]
        with self._explaining(prefix, "listed"):
            below = self._path(directory).rstrip("/")
            for chunk in obstore.list(self._connection(), below or None, chunk_size=1000):
                for found in chunk:
                    info = self._info(dict(found))
                    if info.name.startswith(prefix):
                        yield info

    def directory(self, name: str) -> tuple[Sequence[ObjectInfo], Sequence[str]]:
        import obstore

        with self._explaining(name, "listed"):
            below = self._path(name).rstrip("/")
            found = obstore.list_with_delimiter(self._connection(), below or None)
            files = [self._info(dict(each)) for each in found["objects"]]
            return files, [str(each).removeprefix(self._above).rstrip("/") for each in found["common_prefixes"]]

    def create(self, name: str, data: bytes | Path) -> bool:
        nbytes = data.stat().st_size if isinstance(data, Path) else len(data)
        with self._explaining(name, "written"):
            self._probe("put")
            if nbytes <= _SINGLE_BYTES:
                created = self._create_at_once(name, data)
            else:
                created = self._create_in_parts(name, data, nbytes)
        if created is None and not self._is_same(name, data, nbytes):
            raise ConflictError(f"{self.location.shown(name)} exists already, with another content", name)
        return bool(created)

    def put(self, name: str, data: bytes) -> None:
        import obstore

        with self._explaining(name, "written"):
            self._refuse_read_only()
            obstore.put(self._connection(), self._path(name), data, use_multipart=False)

    def delete(self, names: Sequence[str]) -> None:
        import obstore

        self._refuse_read_only()
        step = _BULK if self.location.scheme == "s3" else 1  # others fail where one of several is absent
        for first in range(0, len(names), step):
            some = names[first : first + step]
            with self._explaining(some[0], "deleted"), contextlib.suppress(FileNotFoundError):
                obstore.delete(self._connection(), [self._path(name) for name in some])

    def _create_at_once(self, name: str, data: bytes | Path) -> bool | None:
        """Whether this call created it; None where it lies there already, by whomever.

        Where the reply to a put is lost, the object of the first attempt stands in the way of the second: what lies
        there after a failed attempt is taken for ours, and compared."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, GenericError

        lost = False
        until = time.monotonic() + connection.RETRY_SECONDS
        while True:
            try:
                source = data.read_bytes() if isinstance(data, Path) else data
                obstore.put(self._connection(), self._path(name), source, mode="create")
            except AlreadyExistsError as error:
                retries = re.search(r"retries: (\d+)", str(error))
                if not lost and (retries is None or retries[1] == "0"):
                    return None
                return True if self._is_same(name, data, len(source)) else None
            except GenericError as error:
                # obstore does not repeat a put that got no answer in time.
                if "Timeout" not in str(error) or time.monotonic() > until:
                    raise
                lost = True
            else:
                self._sync(name)
                return True

    def _create_in_parts(self, name: str, data: bytes | Path, nbytes: int) -> bool | None:
        """Uploads in parts beside, and copies it to its name if there is nothing yet: uploads in parts replace."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        if self._exists(name):
            return None
        self._probe("copy")
        part = max(_PART_BYTES, -(-nbytes // _PARTS))
        copies = self.location.scheme != "s3" or nbytes <= _COPY_BYTES
        target = f"{WORK}/upload-{uuid.uuid4().hex}" if copies else name
        obstore.put(
            self._connection(), self._path(target), data, use_multipart=True, chunk_size=part, max_concurrency=_AT_ONCE
        )
        if not copies:
            return True
        try:
            obstore.copy(self._connection(), self._path(target), self._path(name), overwrite=False)
        except AlreadyExistsError as error:
            retries = re.search(r"retries: (\d+)", str(error))
            lost = retries is not None and retries[1] != "0"
            return True if lost and self._is_same(name, data, nbytes) else None
        else:
            self._sync(name)
            return True
        finally:
            self.delete([target])

    def _probe(self, way: str) -> None:
        """Creates an object twice before the first one is written: a server that lets the second through would let two
        writers overwrite each other. ``way``: put or copy."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, GenericError, NotSupportedError

        self._refuse_read_only()
        if way in self._probed or self.location.scheme in ("file", "memory"):
            return
        made = self._connection()
        path = self._path(f"{WORK}/probe-{uuid.uuid4().hex}")
        why = "overwrites an object that was to be created only if absent"
        obstore.put(made, path, b"first")
        try:
            if way == "put":
                obstore.put(made, path, b"second", mode="create")
            else:
                obstore.copy(made, path, path, overwrite=False)
        except AlreadyExistsError:
            self._probed.add(way)
            return
        except (GenericError, NotSupportedError) as error:
            if "501" not in str(error) and "NotImplemented" not in str(error) and "not supported" not in str(error):
                raise
            why = "does not support creating an object only if it is absent"
        finally:
            obstore.delete(made, path)
        raise RemoteError(
            f"{self.location.shown()} cannot be written: its server {why} "
            f"({'If-None-Match' if way == 'put' else 'If-None-Match of an upload in parts'}), so two writers could "
            "overwrite each other. Write to a local path and copy it there, or use a server that supports this "
            "(Amazon S3, Google Cloud Storage, Azure, MinIO)"
        )

    def _refuse_read_only(self) -> None:
        if self.location.scheme in ("http", "https"):
            raise UsageError(f"{self.location.shown()} is read only: {self.location.scheme}:// stores are not written")

    def _exists(self, name: str) -> bool:
        try:
            self.head(name)
        except MissingObjectError:
            return False
        return True

    def _is_same(self, name: str, data: bytes | Path, nbytes: int) -> bool:
        """Whether the object's content is ``data``."""
        if self.head(name).nbytes != nbytes:
            return False
        if isinstance(data, bytes):
            return self.get(name, None, None) == data
        with data.open("rb") as file:
            return all(file.read(len(piece)) == piece for piece in self.stream(name)) and not file.read(1)

    def _sync(self, name: str) -> None:
        if self.location.scheme == "file":
            path = Path(self.location.prefix, name)
            sync_file(path)
            sync_directory(path.parent)

    def _connection(self) -> Connection:
        with self._lock:
            if self._made is None:
                self._made = connect(self.location)
            return self._made

    def _path(self, name: str) -> str:
        """``name`` as obstore is asked for it."""
        return self._above + name

    def _info(self, found: dict[str, Any]) -> ObjectInfo:
        name = str(found["path"]).removeprefix(self._above)
        return ObjectInfo(name, int(found["size"]), found["e_tag"], found["last_modified"].timestamp())

    def _explaining(self, name: str, doing: str) -> Any:
        return explaining(self.location, name, doing)
