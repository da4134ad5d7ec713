"""packstore packs image datasets once, proves that nothing was lost, and feeds them to a model fast.

The public names load on first use, so that ``import packstore`` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from packstore.core.errors import (
    WITHOUT_TORCH,
    AmbiguousSourceError,
    CacheError,
    CacheFullError,
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

if sys.byteorder != "little" or sys.maxsize < 2**32:
    raise ImportError(
        f"packstore needs a 64-bit little-endian processor, and this one is {sys.maxsize.bit_length() + 1}-bit, "
        f"{sys.byteorder}-endian: use x86-64 or ARM64"
    )

if TYPE_CHECKING:
    from packstore import augment as augment
    from packstore.checking.audit import AuditReport, audit
    from packstore.checking.repair import repair
    from packstore.checking.reports import RepairReport, SalvageReport, VerifyReport
    from packstore.checking.salvage import salvage
    from packstore.checking.verification import verify
    from packstore.core.fields import (
        Array,
        Boxes,
        Bytes,
        Image,
        Images,
        Json,
        Keypoints,
        Label,
        Labels,
        Mask,
        Segments,
        Text,
    )
    from packstore.core.manifest import Manifest
    from packstore.exports.run import ExportReport, export
    from packstore.packing.append import AppendReport, append
    from packstore.packing.conversion import ConvertReport, convert
    from packstore.packing.merge import IndexReport, MergeReport, RelinkReport, add_index, merge, relink
    from packstore.packing.select import select
    from packstore.packing.writer import Writer
    from packstore.stores import Problem, Reader, open_store
    from packstore.training.coco_masks import coco_masks
    from packstore.training.concatenation import Mix, concat
    from packstore.training.dataset import PackedDataset
    from packstore.training.loader import PackedLoader
    from packstore.training.loader.looks import SizeError
    from packstore.training.loader.prefetch import prefetch

    open = open_store  # not in __all__: a star import would hide the built-in one

__version__ = "0.2.0"

# Module of each lazily loaded object. No module of the package may have one of these names: importing it would replace
# the object by the module.
_LAZY = {
    name: module
    for module, names in {
        "packstore.checking.audit": "AuditReport audit",
        "packstore.checking.repair": "repair",
        "packstore.checking.reports": "RepairReport SalvageReport VerifyReport",
        "packstore.checking.salvage": "salvage",
        "packstore.checking.verification": "verify",
        "packstore.core.fields": "Array Boxes Bytes Field Image Images Json Keypoints Label Labels Mask Segments Text",
        "packstore.core.manifest": "Manifest",
        "packstore.exports.run": "ExportReport export",
        "packstore.packing.append": "AppendReport append",
        "packstore.packing.conversion": "ConvertReport convert",
        "packstore.packing.merge": "IndexReport MergeReport RelinkReport add_index merge relink",
        "packstore.packing.select": "select",
        "packstore.packing.writer": "Writer",
        "packstore.stores": "Problem Reader open",
        "packstore.training.coco_masks": "coco_masks",
        "packstore.training.concatenation": "Mix concat",
        "packstore.training.dataset": "PackedDataset",
        "packstore.training.loader": "PackedLoader",
        "packstore.training.loader.prefetch": "prefetch",
        "packstore.training.loader.looks": "SizeError",
    }.items()
    for name in names.split()
}

_MODULES = ("augment", "testing")
"""Public modules, which also load on first use."""

__all__ = [
    "AmbiguousSourceError",
    "AppendReport",
    "Array",
    "AuditReport",
    "Boxes",
    "Bytes",
    "CacheError",
    "CacheFullError",
    "ConvertReport",
    "CorruptRecordError",
    "DecodeError",
    "DestinationError",
    "ExportReport",
    "Image",
    "Images",
    "IndexReport",
    "Json",
    "Keypoints",
    "Label",
    "Labels",
    "Manifest",
    "ManifestError",
    "Mask",
    "MergeReport",
    "MissingStoreError",
    "Mix",
    "NotInSourceError",
    "PackedDataset",
    "PackedLoader",
    "PackstoreError",
    "Problem",
    "Reader",
    "RelinkReport",
    "RepairReport",
    "SalvageReport",
    "SampleError",
    "Segments",
    "SizeError",
    "SourceError",
    "StoreError",
    "Text",
    "UsageError",
    "VerifyReport",
    "Writer",
    "add_index",
    "append",
    "audit",
    "coco_masks",
    "concat",
    "convert",
    "export",
    "merge",
    "prefetch",
    "relink",
    "repair",
    "salvage",
    "select",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Imports a public name or module on first use, and keeps it. Raises :class:`ModuleNotFoundError` with advice if
    it needs torch, which is missing."""
    if name not in _LAZY and name not in _MODULES:
        raise AttributeError(f"module 'packstore' has no attribute {name!r}")
    try:
        if name in _MODULES:
            return import_module(f"packstore.{name}")
        value = getattr(import_module(_LAZY[name]), "open_store" if name == "open" else name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"{name} {WITHOUT_TORCH}", name="torch") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, *_MODULES, *(name for name in globals() if name.startswith("__"))})
