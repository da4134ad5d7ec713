"""Fixtures of the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.makers.datasets import make_folder


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image folder of all tests, with a space in its name: for reading only."""
    return make_folder(tmp_path_factory.mktemp("images") / "my photos")
