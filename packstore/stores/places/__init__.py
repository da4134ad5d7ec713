"""Places of stores and exports: paths on this machine and URLs, behind one interface.

A local place publishes by renaming; :mod:`packstore.stores.places.local`. A remote place publishes by creating an
object only if it is absent; :mod:`packstore.stores.places.remote`.
"""

from __future__ import annotations

from pathlib import Path

from packstore.core.urls import UrlPath
from packstore.stores.places.base import ExportDraft, Growth, LostRaceError, Place, StoreDraft

__all__ = ["ExportDraft", "Growth", "LostRaceError", "Place", "StoreDraft", "place_of"]


def place_of(path: Path) -> Place:
    """Returns the place at a path of :func:`packstore.core.urls.location`. Makes no request and reads nothing."""
    if isinstance(path, UrlPath):
        from packstore.stores.places.remote import RemotePlace

        return RemotePlace(path)
    from packstore.stores.places.local import LocalPlace

    return LocalPlace(path)
