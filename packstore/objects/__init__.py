"""Object stores: S3, Google Cloud Storage, Azure, HTTP (read only), a local directory and memory, behind one interface.

The only user of obstore, which ``pip install 'packstore[remote]'`` brings.
"""

from __future__ import annotations

from packstore.objects.interrupts import interrupt, refused
from packstore.objects.location import is_url
from packstore.objects.store import ObjectStore, open_objects
from packstore.objects.values import ConflictError, MissingObjectError, ObjectInfo, RemoteError

__all__ = [
    "ConflictError",
    "MissingObjectError",
    "ObjectInfo",
    "ObjectStore",
    "RemoteError",
    "interrupt",
    "is_url",
    "open_objects",
    "refused",
]
