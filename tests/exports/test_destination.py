"""What lies where an export is to be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.internals import DestinationError, check_destination, find_owned_files


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
