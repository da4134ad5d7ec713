"""URLs of object stores, their errors, and connections to them.

Credentials are found in the environment and in the files of the clouds' own tools.
"""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from packstore.core.errors import MissingStoreError, StoreError, UsageError, printable
from packstore.core.urls import split_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig, MemoryStore, RetryConfig
    from obstore.store import ObjectStore as Connection

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


SILENCE_SECONDS = 15.0
"""A request that returns no byte for this long is aborted and retried."""
RETRY_SECONDS = 45.0
"""Failed requests are retried for this long; the last retry may take :data:`SILENCE_SECONDS` more."""
_CONNECT_SECONDS = 5
_METADATA_SECONDS = 1.0  # the service runs on the machine's own host: it answers in milliseconds, or not at all
_MOST_SECONDS = 3600  # for a whole request, which may fetch many gigabytes over a slow line

_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def connect(location: ParsedUrl) -> Connection:
    """Makes obstore's client for a store. Requests nothing from the store.

    May ask the cloud's metadata service for credentials. All ``memory://`` URLs with the same bucket share one store in
    this process.

    Raises :class:`RemoteError` without an Azure account, and without credentials.
    """
    from obstore import store as kinds

    client: ClientConfig = {
        "connect_timeout": f"{_CONNECT_SECONDS}s",
        "read_timeout": timedelta(seconds=SILENCE_SECONDS),
        "timeout": f"{_MOST_SECONDS}s",
        "allow_http": True,
    }
    retry: RetryConfig = {
        "max_retries": 12,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
    }
    match location.scheme:
        case "file":
            return kinds.LocalStore()
        case "memory":
            with _memory_lock:
                return _memory.setdefault(location.bucket, kinds.MemoryStore())
        case "http" | "https":
            return kinds.HTTPStore.from_url(location.url, client_options=client, retry_config=retry)
    if location.scheme == "az" and not (
        os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") or os.environ.get("AZURE_STORAGE_USE_EMULATOR")
    ):
        raise RemoteError(f"{location.display_url()} needs the name of its account: set AZURE_STORAGE_ACCOUNT_NAME")
    kind: Any = {"s3": kinds.S3Store, "gs": kinds.GCSStore, "az": kinds.AzureStore}[location.scheme]
    own = {"copy_if_not_exists": "multipart"} if location.scheme == "s3" else {}
    made: Connection = kind(
        location.bucket,
        prefix=location.prefix or None,
        client_options=client,
        retry_config=retry,
        **own,
        **_find_credentials(location),
    )
    return made


class _Cloud(NamedTuple):
    """Environment variables and metadata service of a cloud.

    Attributes:
        credentials: Variables, each of which holds credentials. ``A B``: these two are needed together.
        public: Variable that asks for requests without credentials.
        metadata: Variable with the address of the metadata service.
        usual: Its usual address.
        probe: Method, path and headers of a request to the metadata service, which answers it with status 200.
        advice: Variables that the error for missing credentials names.
    """

    credentials: tuple[str, ...]
    public: str
    metadata: str
    usual: str
    probe: tuple[str, str, dict[str, str]]
    advice: str


_CLOUDS = {
    "s3": _Cloud(
        (
            *("AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"),
            *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        ),
        "AWS_SKIP_SIGNATURE",
        "AWS_METADATA_ENDPOINT",
        "http://169.254.169.254",
        ("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}),
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
    "gs": _Cloud(
        (
            *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
            *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN"),
        ),
        "GOOGLE_SKIP_SIGNATURE",
        "GCE_METADATA_HOST",
        "http://metadata.google.internal",
        ("GET", "/computeMetadata/v1/instance/id", {"Metadata-Flavor": "Google"}),
        "GOOGLE_APPLICATION_CREDENTIALS",
    ),
    "az": _Cloud(
        (
            *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
            *("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN"),
            *("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"),
            *("AZURE_STORAGE_USE_EMULATOR", "AZURE_USE_AZURE_CLI", "IDENTITY_ENDPOINT"),
        ),
        "AZURE_SKIP_SIGNATURE",
        "AZURE_MSI_ENDPOINT",
        "http://169.254.169.254",
        ("GET", "/metadata/instance?api-version=2021-02-01", {"Metadata": "true"}),
        "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    ),
}


def _find_credentials(location: ParsedUrl) -> dict[str, Any]:
    """Returns arguments for obstore's client, or raises :class:`RemoteError` if there are no credentials."""
    # Without credentials and outside a cloud, obstore would query the cloud's metadata address for minutes.
    cloud = _CLOUDS[location.scheme]
    profile = _read_profile(location) if location.scheme == "s3" else {}
    if location.scheme == "s3":
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
            _check_endpoint(name, os.environ.get(name))
        _check_endpoint("endpoint_url of the AWS profile", profile.get("endpoint"))
    if any(all(os.environ.get(name) for name in each.split()) for each in cloud.credentials):
        return profile
    if profile.keys() & {"access_key_id", "credential_provider"}:
        return profile
    if os.environ.get(cloud.public, "").lower() in ("1", "true", "yes", "on"):
        return profile
    if location.scheme == "gs" and Path("~/.config/gcloud/application_default_credentials.json").expanduser().exists():
        return profile
    # Else only the service of a machine in the cloud can have them. They are not tried.
    address = os.environ.get(cloud.metadata) or cloud.usual
    if not _has_metadata_service(address if "//" in address else f"http://{address}", *cloud.probe):
        raise RemoteError(
            f"{location.display_url()}: no credentials; set {cloud.advice} (or {cloud.public}=true for public "
            "objects). No metadata service of a cloud answers on this machine"
        )
    return profile


def _check_endpoint(name: str, url: str | None) -> None:
    """Raises :class:`RemoteError` for an address at which obstore would panic."""
    # Without http:// or https://, or with a user name.
    if url and not re.match(r"https?://[^/@]+(/|$)", url, re.IGNORECASE):
        raise RemoteError(
            f"{name} should be the URL of a server, such as http://127.0.0.1:9000, without a user name or a password"
        )


def _read_profile(location: ParsedUrl) -> dict[str, Any]:
    """Reads region, endpoint and keys of the current AWS profile, except those the environment sets."""
    name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    settings: dict[str, str] = {}
    for variable, usual, section in (
        ("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    ):
        path = Path(os.environ.get(variable) or usual).expanduser()
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, "utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):
            raise RemoteError(f"{location.display_url()}: {path}, the file of the AWS tools, cannot be read") from None
        if parser.has_section(section):
            settings.update(parser.items(section))
    own: dict[str, Any] = {}
    if not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        own["region"] = settings.get("region", "us-east-1")
    if "endpoint_url" in settings and not (os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_S3")):
        own["endpoint"] = settings["endpoint_url"]
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return own
    if settings.get("aws_access_key_id") and settings.get("aws_secret_access_key"):
        own |= {"access_key_id": settings["aws_access_key_id"], "secret_access_key": settings["aws_secret_access_key"]}
        if settings.get("aws_session_token"):
            own["session_token"] = settings["aws_session_token"]
    elif settings.keys() & {"sso_session", "sso_start_url", "credential_process", "role_arn"}:
        own["credential_provider"] = _use_boto3(location, name)
    elif name != "default" and not settings:
        raise RemoteError(f"{location.display_url()}: there is no AWS profile {name!r}, which AWS_PROFILE names")
    return own


def _use_boto3(location: ParsedUrl, profile: str) -> Any:
    """Returns boto3's provider of credentials for a profile."""
    if importlib.util.find_spec("boto3") is None:
        raise RemoteError(
            f"{location.display_url()}: the AWS profile {profile!r} has no keys of its own (it signs in); install "
            'boto3, or run: eval "$(aws configure export-credentials --format env)"'
        )
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider()


def _has_metadata_service(url: str, method: str, path: str, headers: dict[str, str]) -> bool:
    """Tells if a cloud's metadata service answers a request within a second."""
    import http.client  # imported here: with ssl it takes a tenth of the start of a small conversion

    parts = urlsplit(url)
    try:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_METADATA_SECONDS)
        with closing(connection):
            connection.request(method, path, headers=headers)
            # Proxies and firewalls answer with another status.
            return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, ValueError, http.client.HTTPException):
        return False
