"""Object stores: S3, Google Cloud Storage, Azure, HTTP (read only), a local directory and memory, behind one interface.

Only this room uses obstore, which ``pip install 'packstore[remote]'`` installs.
"""

from __future__ import annotations

from packstore.objects.interrupts import interrupt, refuse_requests
from packstore.objects.location import ConflictError, MissingObjectError, ObjectInfo, RemoteError, is_url
from packstore.objects.store import ObjectStore, open_objects

__all__ = [
    "ConflictError",
    "MissingObjectError",
    "ObjectInfo",
    "ObjectStore",
    "RemoteError",
    "interrupt",
    "is_url",
    "open_objects",
    "refuse_requests",
]
