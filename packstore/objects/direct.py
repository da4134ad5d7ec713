"""Makes requests to an object store with obstore, from the calling process."""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packstore.core.errors import UsageError, printable
from packstore.core.files import sync_directory, sync_file
from packstore.objects import connection
from packstore.objects.connection import ConflictError, MissingObjectError, ObjectInfo, ParsedUrl, RemoteError, connect

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore as Connection

WORK = "_work"
"""Folder of objects that live only as long as a command: probes, and uploads before they get their name."""
STEP_BYTES = 1 << 20
"""Fewest bytes that :meth:`Direct.stream` yields at once, but for the last piece: they fit a processor's cache."""
_SINGLE_BYTES = 64 << 20  # most bytes of a conditional put, which holds all of them in memory
_PART_BYTES = 16 << 20
_PARTS = 9_000  # S3 allows 10,000
_COPY_BYTES = 5 << 30  # most bytes that S3 copies in one request
_AT_ONCE = 4
_BULK = 1000  # names in one request
_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|SAS|ACCOUNT")
_MOST_CHARACTERS = 300  # of a server's own message


class Direct:
    """The requests of :class:`packstore.objects.ObjectStore`, made in the calling thread, which handles no signal
    meanwhile.

    All methods raise :class:`RemoteError` if a request fails, and :class:`MissingObjectError` for a missing object.
    Writes and deletions raise :class:`UsageError` for HTTP. Reads of a whole object resume if the connection breaks
    off. Only :meth:`create` syncs files of a local store.
    """

    def __init__(self, location: ParsedUrl) -> None:
        self.location = location
        self._lock = threading.Lock()
        self._made: Connection | None = None
        self._probed: set[str] = set()
        # obstore has one memory store for all prefixes, and a store with a local prefix would create that directory.
        own = location.scheme in ("file", "memory") and location.prefix.strip("/")
        self._prefix = f"{own}/" if own else ""

    def get(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Returns an object's bytes from ``start`` to before ``stop``, by default all.

        Returns fewer if the object ends before ``stop``. Raises :class:`RemoteError` if ``start`` is behind the
        object's end, and :class:`MissingObjectError`. By HTTP, reads the beginning without a range request. Requests
        nothing for an empty range.
        """
        with self._raise_as_remote_error(name, "read"):
            path, start = self._full_name(name), start or 0
            if start == stop:
                return b""
            # Not every HTTP server supports range requests.
            if not start and (stop is None or self.location.scheme in ("http", "https")):
                pieces, nbytes = [], 0
                for piece in self.stream(name):
                    pieces.append(piece)
                    nbytes += len(piece)
                    if stop is not None and nbytes >= stop:
                        break
                return b"".join(pieces)[:stop]
            if stop is None:
                return bytes(self._client.get(path, options={"range": {"offset": start}}).bytes())
            return bytes(self._client.get_range(path, start=start, end=stop))

    def read(self, name: str) -> tuple[ObjectInfo, bytes]:
        """Returns an object's facts and all its bytes, with one request. Raises :class:`MissingObjectError`."""
        pieces = self._stream_pieces(name)
        info, _ = next(pieces)
        return info, b"".join(piece for _, piece in pieces)

    def stream(self, name: str) -> Iterator[memoryview]:
        """Yields an object's bytes in pieces of :data:`STEP_BYTES` or more. Only the last piece may be smaller.

        Requests nothing until the first piece is taken. Raises :class:`MissingObjectError` if there is no such object.
        """
        return (piece for _, piece in self._stream_pieces(name) if piece)

    def _stream_pieces(self, name: str) -> Iterator[tuple[ObjectInfo, memoryview]]:
        """Yields an object's facts with each piece of its bytes, the first of which is empty."""
        # obstore itself resumes only within its time limit, counted from the first byte.
        from obstore.exceptions import GenericError, PreconditionError

        seen, expected = 0, -1
        info: ObjectInfo | None = None
        options: GetOptions | None = None
        with self._raise_as_remote_error(name, "read"):
            while seen != expected:
                before = seen
                try:
                    reply = self._client.get(self._full_name(name), options=options)
                    if info is None:
                        info = self._to_info(dict(reply.meta))
                        expected = info.nbytes
                        yield info, memoryview(b"")
                    for piece in reply.stream(STEP_BYTES):
                        seen += len(piece)
                        yield info, memoryview(piece)
                except PreconditionError:
                    raise RemoteError(f"{self.location.display_url(name)} was replaced while it was read") from None
                except GenericError:
                    if seen == before:
                        raise
                else:
                    if seen == before and seen != expected:
                        raise RemoteError(
                            f"{self.location.display_url(name)} ends after {seen:,} of {expected:,} bytes"
                        )
                options = {"range": {"offset": seen}, "if_match": reply.meta["e_tag"]}

    def head(self, name: str) -> ObjectInfo:
        """Returns an object's facts. Raises :class:`MissingObjectError`."""
        with self._raise_as_remote_error(name, "read"):
            return self._to_info(dict(self._client.head(self._full_name(name))))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yields the facts of all objects whose names begin with ``prefix``, in any order."""
        # obstore treats a prefix as a directory; ours may end in the middle of a name.
        directory = prefix.rpartition("/")[0]
        with self._raise_as_remote_error(prefix, "listed"):
            below = self._full_name(directory).rstrip("/")
            for chunk in self._client.list(below or None, chunk_size=1000):
                for each in chunk:
                    info = self._to_info(dict(each))
                    if info.name.startswith(prefix):
                        yield info

    def list_directory(self, name: str = "") -> tuple[Sequence[ObjectInfo], Sequence[str]]:
        """Returns the objects directly in a directory, and the names of the directories in it.

        All names are relative to the store. Makes a request for each 1,000 names.
        """
        with self._raise_as_remote_error(name, "listed"):
            below = self._full_name(name).rstrip("/")
            listing = self._client.list_with_delimiter(below or None)
            files = [self._to_info(dict(each)) for each in listing["objects"]]
            return files, [str(each).removeprefix(self._prefix).rstrip("/") for each in listing["common_prefixes"]]

    def create(self, name: str, data: bytes | Path) -> bool:
        """Creates an object atomically if there is none of this name. ``data``: its bytes, or the file that has them.

        Over 64 MB are uploaded in parts to a name in ``_work/``, in bounded memory. The server copies the object to
        its own name. S3 cannot copy over 5 GB: such an object replaces one that another writer creates meanwhile. Give
        large objects names that depend on their content.

        Returns:
            True if this call created the object, False if it existed already with this content.

        Raises:
            ConflictError: An object with other content exists.
            RemoteError: Among others, the server cannot create an object only if it is absent, which the first call
                probes.
        """
        nbytes = data.stat().st_size if isinstance(data, Path) else len(data)
        with self._raise_as_remote_error(name, "written"):
            self._probe_conditional_writes("put")
            if nbytes <= _SINGLE_BYTES:
                created = self._create_in_one_put(name, data)
            else:
                created = self._create_in_parts(name, data, nbytes)
        if created is None and not self._is_same(name, data, nbytes):
            raise ConflictError(f"{self.location.display_url(name)} exists already, with other content", name)
        return bool(created)

    def put(self, name: str, data: bytes) -> None:
        """Writes an object in one request. Replaces an existing one."""
        with self._raise_as_remote_error(name, "written"):
            self._refuse_read_only()
            self._client.put(self._full_name(name), data, use_multipart=False)

    def delete(self, names: Sequence[str]) -> None:
        """Deletes objects, on S3 1,000 in a request. Ignores missing ones."""
        self._refuse_read_only()
        step = _BULK if self.location.scheme == "s3" else 1  # other clouds fail if one of several is absent
        for first in range(0, len(names), step):
            some = names[first : first + step]
            with self._raise_as_remote_error(some[0], "deleted"), suppress(FileNotFoundError):
                self._client.delete([self._full_name(name) for name in some])

    def _create_in_one_put(self, name: str, data: bytes | Path) -> bool | None:
        """Creates an object with one conditional put; returns True, or None if it exists already."""
        from obstore.exceptions import AlreadyExistsError, GenericError

        lost = False
        until = time.monotonic() + connection.RETRY_SECONDS
        while True:
            try:
                source = data.read_bytes() if isinstance(data, Path) else data
                self._client.put(self._full_name(name), source, mode="create")
            except AlreadyExistsError as error:
                # If the reply to a put was lost, its retry finds the object that it made.
                if not (lost or _was_retried(error)):
                    return None
                return True if self._is_same(name, data, len(source)) else None
            except GenericError as error:
                # obstore does not retry a put that timed out. It may have succeeded nevertheless: then an object with
                # equal content counts as created by this call.
                if "Timeout" not in str(error) or time.monotonic() > until:
                    raise
                lost = True
            else:
                self._sync_local_file(name)
                return True

    def _create_in_parts(self, name: str, data: bytes | Path, nbytes: int) -> bool | None:
        """Creates an object by an upload in parts; returns True, or None if it exists already."""
        from obstore.exceptions import AlreadyExistsError

        with suppress(MissingObjectError):
            self.head(name)
            return None
        self._probe_conditional_writes("copy")
        # An upload in parts may overwrite. So the parts go to a temporary object, which is copied to the name if that
        # is free. S3 cannot copy more than 5 GiB: a larger object replaces one that another writer creates meanwhile.
        part = max(_PART_BYTES, -(-nbytes // _PARTS))
        copies = self.location.scheme != "s3" or nbytes <= _COPY_BYTES
        target = f"{WORK}/upload-{uuid.uuid4().hex}" if copies else name
        self._client.put(self._full_name(target), data, use_multipart=True, chunk_size=part, max_concurrency=_AT_ONCE)
        if not copies:
            return True
        try:
            self._client.copy(self._full_name(target), self._full_name(name), overwrite=False)
        except AlreadyExistsError as error:
            return True if _was_retried(error) and self._is_same(name, data, nbytes) else None
        else:
            self._sync_local_file(name)
            return True
        finally:
            self.delete([target])

    def _probe_conditional_writes(self, way: str) -> None:
        """Raises :class:`RemoteError` unless the server supports a conditional ``put`` or ``copy``, as ``way`` says."""
        from obstore.exceptions import AlreadyExistsError, GenericError, NotSupportedError

        self._refuse_read_only()
        # Such a server would let two writers overwrite each other. Each way is tried once.
        if way in self._probed or self.location.scheme in ("file", "memory"):
            return
        made = self._client
        path = self._full_name(f"{WORK}/probe-{uuid.uuid4().hex}")
        why = "overwrites an object despite a request to create it only if absent"
        made.put(path, b"first")
        try:
            if way == "put":
                made.put(path, b"second", mode="create")
            else:
                made.copy(path, path, overwrite=False)
        except AlreadyExistsError:
            self._probed.add(way)
            return
        except (GenericError, NotSupportedError) as error:
            if "501" not in str(error) and "NotImplemented" not in str(error) and "not supported" not in str(error):
                raise
            why = "does not support creating an object only if it is absent"
        finally:
            made.delete(path)
        raise RemoteError(
            f"{self.location.display_url()} cannot be written: its server {why} "
            f"({'If-None-Match' if way == 'put' else 'If-None-Match of an upload in parts'}), so two writers could "
            "overwrite each other. Write to a local path and copy it there, or use a server that supports this "
            "(Amazon S3, Google Cloud Storage, Azure, MinIO)"
        )

    def _refuse_read_only(self) -> None:
        """Raises :class:`UsageError` for a store at an HTTP address."""
        if self.location.scheme in ("http", "https"):
            raise UsageError(
                f"{self.location.display_url()} is read only: {self.location.scheme}:// stores are not written"
            )

    def _is_same(self, name: str, data: bytes | Path, nbytes: int) -> bool:
        """Reads the object and returns whether its content is ``data``, bytes or a file."""
        if self.head(name).nbytes != nbytes:
            return False
        if isinstance(data, bytes):
            return self.get(name) == data
        with data.open("rb") as file:
            return all(file.read(len(piece)) == piece for piece in self.stream(name)) and not file.read(1)

    def _sync_local_file(self, name: str) -> None:
        """Syncs a file and its directory, if the store is local."""
        if self.location.scheme == "file":
            path = Path(self.location.prefix, name)
            sync_file(path)
            sync_directory(path.parent)

    @property
    def _client(self) -> Connection:
        """obstore's client for the store, made on first access."""
        with self._lock:
            if self._made is None:
                self._made = connect(self.location)
            return self._made

    def _full_name(self, name: str) -> str:
        """Returns the name that obstore knows an object by."""
        return self._prefix + name

    def _to_info(self, meta: dict[str, Any]) -> ObjectInfo:
        """Converts obstore's facts about an object to an :class:`ObjectInfo`, with the name relative to the store."""
        name = str(meta["path"]).removeprefix(self._prefix)
        return ObjectInfo(name, int(meta["size"]), meta["e_tag"], meta["last_modified"].timestamp())

    @contextmanager
    def _raise_as_remote_error(self, name: str, doing: str) -> Iterator[None]:
        """Turns errors of the storage into :class:`RemoteError`; ``doing`` is read, written, listed or deleted."""
        try:
            yield
        except (RemoteError, UsageError):
            raise
        except Exception as error:
            if not (type(error).__module__.startswith("obstore") or isinstance(error, (OSError, ValueError))):
                raise
            raise _to_remote_error(error, self.location, name, doing) from None


def _was_retried(error: Exception) -> bool:
    """Tells if obstore repeated the request after the reply to the first one was lost."""
    # The first request may have succeeded.
    return re.search(r"\bretries: [1-9]", str(error)) is not None


def _to_remote_error(error: Exception, location: ParsedUrl, name: str, doing: str) -> RemoteError:
    """Converts an error of obstore to a :class:`RemoteError` with a plain explanation."""
    text = str(error)
    shown = location.display_url(name)
    code = re.search(r"<Code>([^<]*)</Code>", text)
    if code is not None and code[1] in ("NoSuchBucket", "ContainerNotFound"):
        return RemoteError(f"{shown} cannot be {doing}: there is no bucket {location.bucket!r}")
    if isinstance(error, FileNotFoundError):
        return MissingObjectError(f"{shown} does not exist")
    return RemoteError(f"{shown} cannot be {doing}: {_explain_reason(text, location)}")


def _explain_reason(text: str, location: ParsedUrl) -> str:
    """Returns the reason of a known failure with advice, else the beginning of the server's message."""
    first = text.partition("\n\nDebug source")[0].strip()
    code = re.search(r"<Code>([^<]*)</Code>", text)
    status = re.search(r"status(?: code)?: (\d{3})", text)
    named = code[1] if code is not None else (status[1] if status is not None else "")
    tried = re.search(r"after (\d+) retries", first)
    again = f" (tried {int(tried[1]) + 1} times)" if tried is not None else ""
    if named in ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"):
        return f"the credentials have expired ({named}); renew them"
    if named in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed"):
        return f"the server does not accept the credentials ({named}); check those in the environment"
    if named == "RequestTimeTooSkewed":
        return "this machine's clock is wrong; servers accept signed requests of the last 15 minutes only"
    if status is not None and status[1] in ("301", "307", "308"):
        return f"the bucket is elsewhere (status {status[1]}); set AWS_REGION to its region"
    if status is not None and status[1] in ("401", "403"):
        return f"access is denied ({named}); the credentials in the environment lack this right"
    if status is not None:
        return f"the server answers {_remove_secrets(named)}{again}"
    if "kind: Timeout" in text or "TimedOut" in text:
        return (
            f"no answer within {connection.SILENCE_SECONDS:g} s{again}; is the server overloaded, or the network slow?"
        )
    if "ConnectionRefused" in text or "kind: Connect" in text:
        return f"no connection to the server{again}; check the endpoint and the network"
    if "kind: Interrupted" in text or "IncompleteBody" in text:
        return f"the connection keeps breaking off{again}"
    if location.scheme != "file" and ("metadata" in first or "credential" in first.lower()):
        return "the cloud's metadata service returned no credentials; set them in the environment"
    return _remove_secrets(first)[:_MOST_CHARACTERS]


def _remove_secrets(text: str) -> str:
    """Returns ``text`` on one line, without the secrets of URLs and of the environment."""
    for name, value in os.environ.items():
        if len(value) >= 8 and name.startswith(("AWS_", "AZURE_", "GOOGLE_")) and _SECRET_NAME.search(name):
            text = text.replace(value, "…")
    text = re.sub(r"(https?://)[^/@\s]*@", r"\1", text)
    text = re.sub(r"(https?://[^\s?]*)\?\S*", r"\1", text)
    return printable(" ".join(text.split()))
