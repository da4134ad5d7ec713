"""Connections to object stores, with the credentials that the environment holds."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from packstore.core.errors import UsageError
from packstore.objects.location import Location
from packstore.objects.values import RemoteError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, MemoryStore, RetryConfig
    from obstore.store import ObjectStore as Connection

SILENCE_SECONDS = 15
"""A request that no byte comes back from in this time is given up, and made again."""
RETRY_SECONDS = 45
"""Requests that fail are made again for this long; the last of them may take :data:`SILENCE_SECONDS` more."""
_CONNECT_SECONDS = 5
_METADATA_SECONDS = 1.0  # the address is the machine's own host's: it answers in milliseconds, or is not there
_MOST_SECONDS = 3600  # of a whole request, which may be an object of many gigabytes over a thin line

_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def connect(location: Location) -> Connection:
    """A connection of obstore. Makes no request, but for one to the cloud's metadata address where no credentials are
    set. Raises :class:`UsageError` without obstore, and :class:`RemoteError` without credentials."""
    try:
        from obstore import store as kinds
    except ImportError:
        raise UsageError(f"{location.scheme}:// URLs need obstore: pip install 'packstore[remote]'") from None
    client: ClientConfig = {
        "connect_timeout": f"{_CONNECT_SECONDS}s",
        "read_timeout": f"{SILENCE_SECONDS}s",
        "timeout": f"{_MOST_SECONDS}s",
        "allow_http": True,
    }
    retry: RetryConfig = {
        "max_retries": 12,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
    }
    prefix = location.prefix or None
    try:
        match location.scheme:
            case "file":
                return kinds.LocalStore()
            case "memory":
                with _memory_lock:
                    return _memory.setdefault(location.bucket, kinds.MemoryStore())
            case "s3":
                _require_credentials(location, os.environ)
                region = None if _any(os.environ, "AWS_REGION", "AWS_DEFAULT_REGION") else "us-east-1"
                more: dict[str, Any] = {"region": region} if region else {}
                return kinds.S3Store(
                    location.bucket,
                    prefix=prefix,
                    copy_if_not_exists="multipart",
                    client_options=client,
                    retry_config=retry,
                    **more,
                )
            case "gs":
                _require_credentials(location, os.environ)
                return kinds.GCSStore(location.bucket, prefix=prefix, client_options=client, retry_config=retry)
            case "az":
                if not _any(os.environ, "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"):
                    raise RemoteError(
                        f"{location.shown()} needs the name of its account: set AZURE_STORAGE_ACCOUNT_NAME"
                    )
                _require_credentials(location, os.environ)
                return kinds.AzureStore(location.bucket, prefix=prefix, client_options=client, retry_config=retry)
            case _:
                url = f"{location.scheme}://{location.bucket}/{location.prefix}"
                return kinds.HTTPStore.from_url(url, client_options=client, retry_config=retry)
    except (ValueError, OSError) as error:
        raise RemoteError(f"{location.shown()} cannot be opened: {str(error).partition(chr(10))[0]}") from None


def _any(environment: Mapping[str, str], *names: str) -> bool:
    return any(environment.get(name) for name in names)


def _has_s3(env: Mapping[str, str]) -> bool:
    if _any(env, "AWS_ACCESS_KEY_ID") and _any(env, "AWS_SECRET_ACCESS_KEY"):
        return True
    return _any(
        env,
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )


def _has_gs(env: Mapping[str, str]) -> bool:
    names = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY")
    if _any(env, *names, "GOOGLE_APPLICATION_CREDENTIALS", "SERVICE_ACCOUNT"):
        return True
    return Path("~/.config/gcloud/application_default_credentials.json").expanduser().exists()


def _has_az(env: Mapping[str, str]) -> bool:
    return _any(
        env,
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_STORAGE_USE_EMULATOR",
        "AZURE_USE_AZURE_CLI",
        "AZURE_MSI_ENDPOINT",
        "IDENTITY_ENDPOINT",
    )


_KINDS: dict[str, tuple[Callable[[Mapping[str, str]], bool], str, str, str, str]] = {
    "s3": (
        _has_s3,
        "AWS_SKIP_SIGNATURE",
        "AWS_METADATA_ENDPOINT",
        "http://169.254.169.254",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    "gs": (
        _has_gs,
        "GOOGLE_SKIP_SIGNATURE",
        "GCE_METADATA_HOST",
        "http://metadata.google.internal",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ),
    "az": (
        _has_az,
        "AZURE_SKIP_SIGNATURE",
        "AZURE_MSI_ENDPOINT",
        "http://169.254.169.254",
        "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    ),
}


def _require_credentials(location: Location, environment: Mapping[str, str]) -> None:
    """Raises :class:`RemoteError` where no credentials are set and the machine is none of the cloud's own.

    Without this obstore would ask the cloud's metadata address for minutes.
    """
    has, public, variable, usual, wanted = _KINDS[location.scheme]
    if has(environment) or environment.get(public, "").lower() in ("1", "true", "yes", "on"):
        return
    address = environment.get(variable) or usual
    if not _answers(address if "//" in address else f"http://{address}"):
        raise RemoteError(
            f"{location.shown()}: no credentials; set {wanted} (or {public}=true for what everybody may read). "
            "This machine has none of its own: no metadata service of the cloud answers"
        )


def _answers(url: str) -> bool:
    """Whether something accepts connections there."""
    parts = urlsplit(url)
    try:
        address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        with socket.create_connection(address, timeout=_METADATA_SECONDS):
            return True
    except (OSError, ValueError):
        return False
