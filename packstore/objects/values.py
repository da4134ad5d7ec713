"""Values that object stores return, and errors that they raise."""

from __future__ import annotations

from typing import NamedTuple

from packstore.core.errors import MissingStoreError, StoreError


class RemoteError(StoreError):
    """An object store cannot be reached, refuses a request, or fails for longer than the retries last."""


class MissingObjectError(RemoteError, MissingStoreError):
    """There is no object of this name. The CLI exits with 2."""


class ConflictError(RemoteError):
    """An object of this name exists already, with other content.

    Attributes:
        name: The object's name, relative to its store.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message, name)
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])


class ObjectInfo(NamedTuple):
    """Facts about an object, without its bytes.

    Attributes:
        name: Its name, relative to the store's URL.
        nbytes: Its size.
        etag: The server's identifier of exactly this content; None if the server has none.
        modified: Time of its last change, in seconds since 1970.
    """

    name: str
    nbytes: int
    etag: str | None
    modified: float
