"""Fixtures for tests of datasets and loaders."""

from __future__ import annotations

from typing import Any

import pytest

from tests.makers.torchvision import import_torchvision
from tests.makers.typed import COLUMNS, Typed, make_typed


@pytest.fixture(scope="session")
def tv() -> Any:
    return import_torchvision()


@pytest.fixture(scope="session")
def typed_stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Typed]:
    """Nine records with columns of every type: image files of many sizes, in shards; of one size; and pixels."""
    folder, names = tmp_path_factory.mktemp("typed"), [column.name for column in COLUMNS]
    return {
        "sizes": make_typed(folder / "sizes.lmdb", names, 9, shard_size=9000),
        "files": make_typed(folder / "files.pth", names, 9, size=(44, 52)),
        "pixels": make_typed(folder / "pixels.h5", names, 9, size=(44, 52), encoding="uint8"),
    }
