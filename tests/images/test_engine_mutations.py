"""The tests of the engine find faults: each of a list that is put into its source."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.makers.engine_checks import good, noisy, save
from tests.makers.engine_mutations import MUTATIONS, Mutation, is_found

Need = Callable[[str, bool], None]
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[Path]:
    need: Need = request.getfixturevalue("need")
    need("gcc", shutil.which("gcc") is not None)
    need("jpegtran", shutil.which("jpegtran") is not None)
    folder = tmp_path_factory.mktemp("seeds")
    for name, (data, _) in good().items():
        if len(data) < 8000:
            (folder / f"{name}.jpg").write_bytes(data)
    for sampling in ("gray", "444", "420"):
        (folder / f"{sampling} progressive.jpg").write_bytes(save(noisy(35, 50), sampling, progressive=True))
    return [*sorted(folder.iterdir()), *sorted((ROOT / "tests" / "corpus" / "engine").iterdir())]


def test_nothing_is_found_in_the_source_as_it_is(tmp_path: Path, seeds: list[Path]) -> None:
    assert not is_found(None, tmp_path, seeds)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[f"{m.file}: {m.new.strip() or m.old.strip()}" for m in MUTATIONS])
def test_a_fault_is_found(mutation: Mutation, tmp_path: Path, seeds: list[Path]) -> None:
    assert is_found(mutation, tmp_path, seeds)
