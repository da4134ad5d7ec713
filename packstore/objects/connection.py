"""Opens connections to object stores."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from packstore.objects.credentials import find_credentials
from packstore.objects.location import ParsedUrl
from packstore.objects.values import RemoteError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, MemoryStore, RetryConfig
    from obstore.store import ObjectStore as Connection

SILENCE_SECONDS = 15.0
"""A request that returns no byte for this long is aborted and retried."""
RETRY_SECONDS = 45.0
"""Failed requests are retried for this long; the last retry may take :data:`SILENCE_SECONDS` more."""
_CONNECT_SECONDS = 5
_MOST_SECONDS = 3600  # for a whole request, which may fetch many gigabytes over a slow line

_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def connect(location: ParsedUrl) -> Connection:
    """Makes obstore's client for a store. Requests nothing from the store.

    May ask the cloud's metadata service for credentials. All ``memory://`` URLs with the same bucket share one store in
    this process.

    Raises :class:`RemoteError` without an Azure account. Raises the errors of :func:`find_credentials`.
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
    bucket, prefix = location.bucket, location.prefix or None
    match location.scheme:
        case "file":
            return kinds.LocalStore()
        case "memory":
            with _memory_lock:
                return _memory.setdefault(bucket, kinds.MemoryStore())
        case "http" | "https":
            return kinds.HTTPStore.from_url(location.url, client_options=client, retry_config=retry)
        case "s3":
            own = {"copy_if_not_exists": "multipart", **find_credentials(location)}
            return kinds.S3Store(bucket, prefix=prefix, client_options=client, retry_config=retry, **own)
        case "gs":
            own = find_credentials(location)
            return kinds.GCSStore(bucket, prefix=prefix, client_options=client, retry_config=retry, **own)
        case _:
            if not (os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") or os.environ.get("AZURE_STORAGE_USE_EMULATOR")):
                raise RemoteError(
                    f"{location.display_url()} needs the name of its account: set AZURE_STORAGE_ACCOUNT_NAME"
                )
            own = find_credentials(location)
            return kinds.AzureStore(bucket, prefix=prefix, client_options=client, retry_config=retry, **own)
