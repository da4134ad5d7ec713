"""The tests of the engine find faults: each of a list that is put into its source."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.makers.engine_checks import good, save
from tests.makers.engine_mutations import MUTATIONS, NEON_MUTATIONS, SOURCE, Builds, Mutation
from tests.makers.jpegs import noisy

Need = Callable[[str, bool], None]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[Path]:
    need: Need = request.getfixturevalue("need")
    need("gcc", shutil.which("gcc") is not None)
    folder = tmp_path_factory.mktemp("seeds")
    for name, (data, _) in good().items():
        if len(data) < 8000:
            (folder / f"{name}.jpg").write_bytes(data)
    for sampling in ("gray", "444", "420"):
        (folder / f"{sampling} progressive.jpg").write_bytes(save(noisy(35, 50), sampling, progressive=True))
    return [*sorted(folder.iterdir()), *sorted((ROOT / "tests" / "corpus" / "engine").iterdir())]


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory, seeds: list[Path]) -> Builds:
    return Builds(tmp_path_factory.mktemp("builds"))


def test_the_faults_are_of_what_there_is() -> None:
    for mutation in (*MUTATIONS, *NEON_MUTATIONS):
        assert (SOURCE / mutation.file).read_text().count(mutation.old) == 1, mutation
        assert mutation.old != mutation.new


@pytest.mark.soak
def test_nothing_is_found_in_the_source_as_it_is(builds: Builds, tmp_path: Path, seeds: list[Path]) -> None:
    assert not builds.is_found(None, tmp_path, seeds)


@pytest.mark.soak
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[f"{m.file}: {m.new.strip() or m.old.strip()}" for m in MUTATIONS])
def test_a_fault_is_found(builds: Builds, mutation: Mutation, tmp_path: Path, seeds: list[Path]) -> None:
    assert builds.is_found(mutation, tmp_path, seeds)
