"""Conversions that are killed: a few, and in a soak thousands."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.makers.datasets import make_folder
from tests.makers.tiers import turns
from tests.makers.tools import load_tool

killing: Any = load_tool("killing.py")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of images, and what is known of uninterrupted conversions of it."""
    return make_folder(tmp_path_factory.mktemp("images") / "photos"), {}


@pytest.fixture
def killer(images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> Any:
    from tests.internals import batches as record_packing
    from tests.internals import journal as receipts
    from tests.internals import writer as lmdb_writer

    for module, name in (
        (receipts, "EVERY_SECONDS"),
        (record_packing, "PASS_RECORDS"),
        (record_packing, "DECODE_RECORDS"),
        (lmdb_writer, "_TXN_BYTES"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))  # to be set back
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    folder, known = images
    return killing.Killer(folder, scratch, seed=rng.randrange(1 << 30), known=known)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("case", killing.CASES)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("turn", turns(8))
def test_killed_at_random_moments_nothing_is_lost(killer: Any, case: str, overwrite: bool, turn: int) -> None:
    for _ in range(10 if turn else 2):
        killer.at_random(case, overwrite=overwrite)
    assert killer.tally.losses == []


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("case", killing.MODES)
def test_killed_conversions_of_any_mode_lose_nothing(killer: Any, case: str, rng: random.Random) -> None:
    for overwrite in (False, True):
        killer.at_random(case, overwrite=overwrite)
    assert killer.tally.losses == []


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("case", killing.MODES)
def test_killed_at_system_calls_any_mode_loses_nothing(killer: Any, case: str, need: Any, rng: random.Random) -> None:
    need("strace", killing.can_trace())
    every = 40
    assert killer.at_calls(case, every, rng.randrange(every)) >= 5
    assert killer.tally.losses == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("turn", turns(10))
@pytest.mark.parametrize("case", [case for case in killing.CASES if case not in killing.WRITERS])
def test_killed_at_system_calls_nothing_is_lost(
    killer: Any, case: str, turn: int, need: Any, rng: random.Random
) -> None:
    """At each 80th call, in soak at all. A writer works in a thread whose calls are not counted."""
    need("strace", killing.can_trace())
    every, first = (10, turn - 1) if turn else (80, rng.randrange(80))
    calls = killer.at_calls(case, every, first)
    assert calls >= 5  # an index takes few
    assert killer.tally.kills == len(range(first, calls, every))
    assert killer.tally.losses == []


@pytest.mark.slow
def test_a_loss_is_noticed(killer: Any) -> None:
    killer.reference("hdf5")
    out = killer._scratch / "out.h5"
    out.write_bytes(b"something else")
    killer.look("hdf5", out, {})
    killer.finish("hdf5", out, overwrite=False)
    assert [loss.partition(":")[2].split()[0] for loss in killer.tally.losses] == ["after", str(out), "the"]
