"""Object stores: S3, Google Cloud Storage, Azure, HTTP (read only), a local directory and memory, behind one interface.

Only this room uses obstore, which ``pip install 'packstore[remote]'`` installs.
"""

from __future__ import annotations

from packstore.objects.location import ConflictError as ConflictError
from packstore.objects.location import MissingObjectError as MissingObjectError
from packstore.objects.location import ObjectInfo as ObjectInfo
from packstore.objects.location import RemoteError as RemoteError
from packstore.objects.store import ObjectStore as ObjectStore
from packstore.objects.store import interrupt as interrupt
from packstore.objects.store import open_objects as open_objects
from packstore.objects.store import refuse_requests as refuse_requests
