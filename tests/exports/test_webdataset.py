"""Exports as shards of WebDataset: the contract, and what others read."""

from __future__ import annotations

from packstore.testing import ExportSuite


class TestWebDataset(ExportSuite):
    kind = "webdataset"
