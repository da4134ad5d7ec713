"""URLs of object stores, the facts that stores return about objects, and the errors that they raise."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from packstore.core.errors import MissingStoreError, StoreError, UsageError, printable
from packstore.core.urls import split_url

SCHEMES = ("s3", "gs", "az", "http", "https", "file", "memory")
_QUERY = re.compile(r"\?([^/]*&)?(versionId|generation|versionid|snapshot|X-Amz-\w+|sv|sig)=")
"""Query that names a version of an object or signs a URL. Any other question mark may be part of a name."""


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


class ParsedUrl(NamedTuple):
    """A parsed URL of an object store.

    Attributes:
        scheme: One of :data:`SCHEMES`.
        bucket: The bucket or container; for ``http`` the host with its port, for ``memory`` any name, for ``file`` "".
        prefix: The path in it, without slashes at its ends; for ``file`` an absolute path.
    """

    scheme: str
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """The URL as text, which :func:`parse_url` takes."""
        path = quote(self.prefix) if self.scheme in ("http", "https") else self.prefix
        return f"{self.scheme}://{'/'.join(part for part in (self.bucket, path) if part)}"

    def display_url(self, name: str = "") -> str:
        """Returns the URL of an object, for messages. Without ``name``, returns that of the store."""
        return printable(f"{self.url}/{name}" if name else self.url)


def parse_url(url: str | os.PathLike[str]) -> ParsedUrl:
    """Parses a URL. Reads ``s3a`` as ``s3``, and decodes percent signs of HTTP.

    Raises :class:`UsageError` for

    - text that is not a URL, or has an unknown scheme,
    - a missing bucket or host (``memory`` needs none),
    - a user name or password,
    - a query. Outside HTTP, only one that names a version or signs the URL; any other ``?`` belongs to the name.
    """
    split = split_url(url)
    if split is None:
        raise UsageError(f"{printable(os.fspath(url))} is not a URL")
    scheme, rest = split
    if scheme == "s3a":
        scheme = "s3"
    if scheme not in SCHEMES:
        allowed = ", ".join(f"{known}://" for known in SCHEMES)
        raise UsageError(f"URLs of {printable(scheme)}:// are not supported; these are: {allowed}")
    if scheme == "file":
        return ParsedUrl("file", "", str(Path("/" + rest.lstrip("/"))))
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket:
        raise UsageError(
            f"the {scheme}:// URL holds a user name or a password, which would end up in manifests and logs; "
            "put credentials into the environment"
        )
    if scheme in ("http", "https"):
        parts = urlsplit(f"//{rest}")
        if parts.query or parts.fragment:
            raise UsageError(
                f"the URL of {printable(bucket)} has a query ('?…'), as signed URLs have, which would end up in "
                "manifests and logs; give the URL without it"
            )
        prefix = unquote(prefix)
    elif _QUERY.search(prefix):
        raise UsageError(
            f"{printable(os.fspath(url)).partition('?')[0]} is given with a query ('?…'), but older versions of "
            "objects cannot be read; give the URL without it"
        )
    if not bucket and scheme != "memory":
        raise UsageError(f"{scheme}:// needs a {'host' if scheme in ('http', 'https') else 'bucket'}")
    return ParsedUrl(scheme, bucket, prefix.strip("/"))
