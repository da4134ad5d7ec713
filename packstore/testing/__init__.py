"""The contracts as test suites: inherit one to prove your own format, source, encoding, export or column type.

Each suite is imported on first use. They need pytest and hypothesis, which packstore itself does not.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packstore.testing.column_types import ColumnTypeSuite
    from packstore.testing.encodings import EncodingSuite
    from packstore.testing.exports import ExportSuite
    from packstore.testing.sources import SourceSuite
    from packstore.testing.stores import StoreSuite

__all__ = ["ColumnTypeSuite", "EncodingSuite", "ExportSuite", "SourceSuite", "StoreSuite"]

_SUITES = {
    "ColumnTypeSuite": "packstore.testing.column_types",
    "EncodingSuite": "packstore.testing.encodings",
    "ExportSuite": "packstore.testing.exports",
    "SourceSuite": "packstore.testing.sources",
    "StoreSuite": "packstore.testing.stores",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Imports a suite at its first use, and lets pytest rewrite its assertions. Raises :class:`AttributeError` for
    other names."""
    if name not in _SUITES:
        raise AttributeError(f"module 'packstore.testing' has no attribute {name!r}")
    import pytest

    parts = {f"packstore.testing.{name}" for name in ("records", "store_files")}
    # So that failing assertions show their values.
    pytest.register_assert_rewrite(*{_SUITES[name], *parts} - sys.modules.keys())
    return getattr(import_module(_SUITES[name]), name)
