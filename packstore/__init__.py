"""packstore packs image datasets once, proves that nothing was lost, and feeds them to a model fast.

The public names load on first use, so that ``import packstore`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from packstore.errors import (
    CorruptRecordError,
    DecodeError,
    DestinationError,
    ManifestError,
    MissingStoreError,
    NotInSourceError,
    PackstoreError,
    SampleError,
    SourceError,
    StoreError,
    UsageError,
)

if TYPE_CHECKING:
    from packstore.conversion import ConvertReport, convert
    from packstore.dataset import PackedDataset
    from packstore.loader import LoaderOptions, PackedLoader, prefetch
    from packstore.manifest import Manifest
    from packstore.plan import ConvertOptions
    from packstore.repair import RepairOptions, RepairReport, repair_store
    from packstore.salvage import SalvageOptions, SalvageReport, salvage_store
    from packstore.stores import open_store as open  # noqa: F401 - not in __all__: it would hide the built-in one
    from packstore.stores.base import Problem, Reader
    from packstore.verification import VerifyOptions, VerifyReport, verify

__version__ = "0.1.0"

# Where each lazily loaded name lives: (module, name there). No module of the package has the name of one of them:
# importing it would put the module in the name's place.
_LAZY = {
    "ConvertOptions": ("packstore.plan", "ConvertOptions"),
    "ConvertReport": ("packstore.conversion", "ConvertReport"),
    "LoaderOptions": ("packstore.loader", "LoaderOptions"),
    "Manifest": ("packstore.manifest", "Manifest"),
    "PackedDataset": ("packstore.dataset", "PackedDataset"),
    "PackedLoader": ("packstore.loader", "PackedLoader"),
    "Problem": ("packstore.stores.base", "Problem"),
    "RepairOptions": ("packstore.repair", "RepairOptions"),
    "RepairReport": ("packstore.repair", "RepairReport"),
    "SalvageOptions": ("packstore.salvage", "SalvageOptions"),
    "SalvageReport": ("packstore.salvage", "SalvageReport"),
    "Reader": ("packstore.stores.base", "Reader"),
    "VerifyOptions": ("packstore.verification", "VerifyOptions"),
    "VerifyReport": ("packstore.verification", "VerifyReport"),
    "convert": ("packstore.conversion", "convert"),
    "open": ("packstore.stores", "open_store"),
    "repair_store": ("packstore.repair", "repair_store"),
    "salvage_store": ("packstore.salvage", "salvage_store"),
    "prefetch": ("packstore.loader", "prefetch"),
    "verify": ("packstore.verification", "verify"),
}

__all__ = [
    "ConvertOptions",
    "ConvertReport",
    "CorruptRecordError",
    "DecodeError",
    "DestinationError",
    "LoaderOptions",
    "Manifest",
    "ManifestError",
    "MissingStoreError",
    "NotInSourceError",
    "PackedDataset",
    "PackedLoader",
    "PackstoreError",
    "Problem",
    "Reader",
    "RepairOptions",
    "RepairReport",
    "SalvageOptions",
    "SalvageReport",
    "SampleError",
    "SourceError",
    "StoreError",
    "UsageError",
    "VerifyOptions",
    "VerifyReport",
    "convert",
    "prefetch",
    "repair_store",
    "salvage_store",
    "verify",
]


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module 'packstore' has no attribute {name!r}") from None
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
