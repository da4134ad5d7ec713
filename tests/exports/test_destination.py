"""What lies where an export is to be written is looked at without harm, and never replaced if it is not ours."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from tests.internals import DestinationError, check_destination, export_archives, find_owned_files


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pipe_is_refused_unopened(overwrite: bool, tmp_path: Path) -> None:
    """Opening it to see what it is would wait for a writer; this one writes what is no zip."""
    os.mkfifo(tmp_path / "p.zip")
    end = os.open(tmp_path / "p.zip", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(end, bytes(4096))
        with pytest.raises(DestinationError, match="is not an export of packstore"):
            check_destination(tmp_path / "p.zip", overwrite=overwrite, owned=find_owned_files)
        assert os.read(end, 8192) == bytes(4096), "it was read"
    finally:
        os.close(end)


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
