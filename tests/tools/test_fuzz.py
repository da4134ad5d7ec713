"""Every parser that is ours, on inputs that somebody might write: it returns, or raises what its contract names.

A bounded run, the same with the same seed, over the corpus and mutations of it that coverage guides; ``tools/fuzz``
runs as long as one likes. And a check that the fuzzer itself finds what is there to be found.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.internals import Manifest, PackstoreError
from tests.makers.fuzz_targets import CORPUS, TARGETS, WRITTEN, seeds, signed
from tests.makers.fuzzing import Target, fuzz
from tests.makers.tiers import turns

COUNT = 240
SLOW = {
    "lmdb": 72,
    "hdf5": 60,
    "cifar_archive": 75,
    "cifar_binary": 90,
    "pth": 90,
    "tfds": 24,
    "hf_features": 60,
    "torch_pickle": 120,
    "hf_imagefolder": 120,
    "beside": 120,
    "tfrecord": 30,
    "recordio": 60,
    "litdata": 60,
    "mds": 36,
    "npz": 90,
    "mat": 90,
    "tiff": 36,
    "dicom": 6,
    "nifti": 18,
}
"""Targets whose inputs take milliseconds."""


@pytest.mark.slow
@pytest.mark.sampled(1, per="target")
@pytest.mark.parametrize("turn", turns(10))
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_parsers_answer_whatever_they_are_given(target: Target, turn: int, rng: random.Random) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = SLOW.get(target.name, COUNT) * (5 if turn else 1)
        result = fuzz(target, seeds(target.name), rng=rng, count=count)
    assert not result.finds, "\n".join(f"{find.what}\n{find.trace}\n{find.data[:500]!r}" for find in result.finds)
    assert result.answered, "not even a seed is accepted, so nothing behind the first check was reached"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_watched_files_are_there(target: Target) -> None:
    """A name that matches no file would leave the search without anything to be guided by."""
    names = [path.as_posix() for path in (ROOT / "packstore").rglob("*.py")]
    assert target.files
    for watched in target.files:
        assert any(name.endswith(f"/{watched}") for name in names), watched


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@given(field=st.integers(0, 30), value=_JSON, seed=st.sampled_from(seeds("manifest")))
def test_a_manifest_with_anything_in_a_field(field: int, value: Any, seed: bytes) -> None:
    """With the digest that goes with it; what is accepted comes back as it was."""
    plain = json.loads(seed)
    plain[sorted(plain)[field % len(plain)]] = value
    with suppress(PackstoreError):
        manifest = Manifest.from_json(signed(plain))
        assert Manifest.from_json(manifest.to_json()) == manifest


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 102), min_size=1, max_size=12))
def test_offsets_are_read_or_reported(offsets: list[int]) -> None:
    next(target for target in TARGETS if target.name == "offsets").run(np.array(offsets, "<i8").tobytes())


def test_the_corpus_is_small_and_all_of_it_is_used() -> None:
    sizes = {path.relative_to(CORPUS): path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()}
    assert sum(size for path, size in sizes.items() if path.parts[0] not in WRITTEN) < 20_000 * len(TARGETS)
    assert max(size for path, size in sizes.items() if path.parts[0] in WRITTEN - {"released"}) < 20_000
    assert max(size for path, size in sizes.items() if path.parts[0] == "released") < 200_000
    assert {path.name for path in CORPUS.iterdir()} == {target.name for target in TARGETS} | WRITTEN


def _fragile(data: bytes) -> None:
    """A parser with faults behind a few conditions, each of which coverage leads to."""
    if len(data) < 4:
        raise PackstoreError("short")
    if data[0] == ord("P"):
        if data[1] > 200:  # noqa: SIM102 - each condition is a line to be reached
            if data[2] == data[3]:
                raise KeyError("a fault")
        if data[1] == 0:
            while True:
                continue


@pytest.mark.slow
def test_the_fuzzer_finds_faults_and_loops() -> None:
    target = Target("fragile", _fragile, (PackstoreError,), ("test_fuzz.py",))
    result = fuzz(target, [b"PACK"], rng=random.Random(1), count=3000, limit_seconds=0.2)
    assert {find.what.split()[0] for find in result.finds} == {"KeyError", "TookTooLong"}
    again = fuzz(target, [b"PACK"], rng=random.Random(1), count=3000, limit_seconds=0.2)
    assert [find.data for find in again.finds] == [find.data for find in result.finds]


@pytest.mark.slow
def test_the_tool_runs_and_counts() -> None:
    command = [sys.executable, "tools/fuzz", "labels", "offsets", "--inputs", "2000"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:2]] == ["labels", "offsets"]
    tried = 2 * 2000 + len(seeds("labels")) + len(seeds("offsets"))
    assert done.stdout.endswith(f"{tried:,} inputs tried, 0 finds\n")
    unknown = subprocess.run([sys.executable, "tools/fuzz", "x"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert unknown.returncode == 2
