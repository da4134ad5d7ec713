"""Explains failures of obstore in one line and without credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from packstore.core.errors import UsageError, printable
from packstore.objects import connection
from packstore.objects.location import MissingObjectError, ParsedUrl, RemoteError

_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|SAS|ACCOUNT")
_MOST = 300  # most characters of a server's own message


@contextmanager
def raise_as_remote_error(location: ParsedUrl, name: str, doing: str) -> Iterator[None]:
    """Raises :class:`RemoteError` for each error of obstore, :class:`OSError` or :class:`ValueError` in the context.

    Raises :class:`MissingObjectError` for a missing object. Does not change a :class:`UsageError`.

    ``doing``: verb of the message: read, written, listed or deleted.
    """
    try:
        yield
    except (RemoteError, UsageError):
        raise
    except Exception as error:
        if not (type(error).__module__.startswith("obstore") or isinstance(error, (OSError, ValueError))):
            raise
        raise _to_remote_error(error, location, name, doing) from None


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
    return _remove_secrets(first)[:_MOST]


def _remove_secrets(text: str) -> str:
    """Returns ``text`` on one line without secrets.

    - Queries and user names in URLs are removed.
    - Values of the environment's AWS, Azure and Google credential variables become ``…``, from 8 characters on.
    """
    for name, value in os.environ.items():
        if len(value) >= 8 and name.startswith(("AWS_", "AZURE_", "GOOGLE_")) and _SECRET_NAME.search(name):
            text = text.replace(value, "…")
    text = re.sub(r"(https?://)[^/@\s]*@", r"\1", text)
    text = re.sub(r"(https?://[^\s?]*)\?\S*", r"\1", text)
    return printable(" ".join(text.split()))
