"""Exports as image folders, tars and zips: the contract, and what others read."""

from __future__ import annotations

from packstore.testing import ExportSuite


class TestImageFolder(ExportSuite):
    kind = "imagefolder"


class TestTar(ExportSuite):
    kind = "tar"


class TestZip(ExportSuite):
    kind = "zip"
