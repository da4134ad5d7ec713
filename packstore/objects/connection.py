"""Connects to object stores: finds credentials in the environment and in the files of the clouds' own tools."""

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
from urllib.parse import urlsplit

from packstore.objects.location import ParsedUrl, RemoteError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, MemoryStore, RetryConfig
    from obstore.store import ObjectStore as Connection

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
