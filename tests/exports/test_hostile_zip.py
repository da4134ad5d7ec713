"""A zip at the destination that is not ours: it is looked at in bounded memory, and never replaced."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.internals import export_archives


def test_a_manifest_without_end_is_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("packstore.json", b" " * 5000)
    assert export_archives.read_zip_file(path, "packstore.json") == b" " * 5000
    monkeypatch.setattr(export_archives, "_MAX_MANIFEST_BYTES", 4999)
    assert export_archives.read_zip_file(path, "packstore.json") is None


def test_a_zip_that_is_damaged_is_none_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("packstore.json", bytes(range(256)) * 20)
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + b"\xff" * 40 + whole[100:])
    assert export_archives.read_zip_file(path, "packstore.json") is None
