"""``tools/bench/against.py``: it runs to its end, tells a slower case from a noisy one, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import ROOT

SCRIPT = ROOT / "tools" / "bench" / "against.py"
QUICK = ("items-jpeg", "help", "memory-pack")
COLUMNS = 6


class FakeRevision:
    """Answers with given values: constant, or by the number of the turn."""

    def __init__(
        self, values: Mapping[str, Mapping[str, float] | Callable[[int], Mapping[str, float]]], *missing: str
    ) -> None:
        self.values, self.missing = values, missing
        self.turns = dict.fromkeys(values, 0)

    def prepare(self, case: str) -> str | None:
        return "TypeError: not yet known" if case in self.missing else None

    def run(self, case: str) -> dict[str, float]:
        turn, value = self.turns[case], self.values[case]
        self.turns[case] += 1
        return dict(value(turn) if callable(value) else value)


@pytest.fixture
def against(bench: Callable[[str], ModuleType]) -> ModuleType:
    return bench("against")


def compare(against: ModuleType, old: FakeRevision, new: FakeRevision) -> Any:
    return against.compare(list(old.values), old, new, time.monotonic() + 1000)


ONE = {"wall": 1.0, "cpu": 1.0}


@pytest.mark.parametrize(
    "slow",
    [
        {"wall": 1.1, "cpu": 1.0},
        {"wall": 1.0, "cpu": 1.1},
        {"wall": 3.0, "cpu": 3.0},
        lambda turn: {"wall": 1.1 + 0.2 * (turn % 5), "cpu": 1.0},
    ],
)
def test_a_slower_case_is_marked(slow: Any, against: ModuleType) -> None:
    old = FakeRevision({"items": ONE, "verify": ONE})
    new = FakeRevision({"items": ONE, "verify": slow})
    outcome = compare(against, old, new)
    assert outcome.failed
    assert outcome.verdicts == {"verify": "SLOWER"}
    assert old.turns == new.turns == {"items": against.ROUNDS, "verify": against.ROUNDS * (1 + against.LONGER)}
    assert "SLOWER" in against.format_outcome(outcome, ["items", "verify"])


def test_more_memory_is_marked(against: ModuleType) -> None:
    old, new = ({"memory-load": {"memory": value}} for value in (1000.0, 1100.0))
    outcome = compare(against, FakeRevision(old), FakeRevision(new))
    assert (outcome.failed, outcome.verdicts) == (True, {"memory-load": "MORE MEMORY"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ONE, {"wall": 1.05, "cpu": 1.05}),
        (ONE, {"wall": 0.2, "cpu": 0.2}),
        # the new one was as quick once: something else ran during its other turns
        (ONE, lambda turn: {"wall": 1.0 if turn == 3 else 1.5, "cpu": 1.0}),
        # the old one was lucky once
        (lambda turn: {"wall": 0.5 if turn == 5 else 1.0, "cpu": 1.0}, ONE),
    ],
)
def test_noise_is_not_marked(old: Any, new: Any, against: ModuleType) -> None:
    outcome = compare(against, FakeRevision({"items": old}), FakeRevision({"items": new}))
    assert (outcome.failed, outcome.verdicts) == (False, {})


def test_the_same_times_with_noise_are_not_marked(against: ModuleType) -> None:
    random = np.random.default_rng(0)
    cases = list(against.CASES)

    def draw(turn: int) -> dict[str, float]:
        return dict(zip(("wall", "cpu"), 1 + random.gamma(1, 0.15, 2), strict=True))

    for _ in range(10):
        outcome = compare(against, FakeRevision(dict.fromkeys(cases, draw)), FakeRevision(dict.fromkeys(cases, draw)))
        assert not outcome.failed


def test_the_second_measurement_decides(against: ModuleType) -> None:
    new = FakeRevision({"items": lambda turn: {"wall": 2.0 if turn < against.ROUNDS else 1.0, "cpu": 1.0}})
    outcome = compare(against, FakeRevision({"items": ONE}), new)
    assert (outcome.failed, outcome.verdicts) == (False, {"items": "slower at first, not again"})
    assert outcome.samples["items"].ratios("wall") == (1, 1)


def test_turns_alternate(against: ModuleType) -> None:
    turns: list[str] = []

    def note(name: str) -> Callable[[int], dict[str, float]]:
        return lambda turn: turns.append(name) or ONE  # type: ignore[func-returns-value]

    compare(against, FakeRevision({"items": note("A")}), FakeRevision({"items": note("B")}))
    assert "".join(turns).startswith("ABBAABBA")


def test_a_case_that_a_revision_cannot_run(against: ModuleType) -> None:
    cases = {"items": ONE, "recipe": ONE}
    outcome = compare(against, FakeRevision(cases, "recipe"), FakeRevision(cases))
    assert (outcome.failed, outcome.verdicts) == (False, {"recipe": "n/a: TypeError: not yet known"})
    assert "n/a: TypeError: not yet known" in against.format_outcome(outcome, cases)
    outcome = compare(against, FakeRevision(cases), FakeRevision(cases, "recipe"))
    assert (outcome.failed, outcome.verdicts) == (True, {"recipe": "FAILS: TypeError: not yet known"})


def test_a_deadline_that_has_passed_leaves_two_rounds(against: ModuleType) -> None:
    old, new = FakeRevision({"items": ONE}), FakeRevision({"items": {"wall": 2.0, "cpu": 1.0}})
    outcome = against.compare(["items"], old, new, time.monotonic() - 1)
    assert outcome.verdicts == {"items": "SLOWER"}
    assert old.turns == new.turns == {"items": 4}


def test_resident_images_beside_the_bare_gather(against: ModuleType) -> None:
    cases = {against.GATHER: ONE, against.GATHERED: {"wall": 1.25, "cpu": 1.0}}
    text = against.format_outcome(compare(against, FakeRevision(cases), FakeRevision(cases)), cases)
    assert "0.80 → 0.80 (goal: 0.9)" in text
    assert "too busy" not in text
    noisy = FakeRevision(cases | {against.GATHER: {"wall": 2.0, "cpu": 2.0}})
    outcome = compare(against, FakeRevision(cases), noisy)
    assert (outcome.failed, outcome.verdicts) == (False, {})
    assert "too busy" in against.format_outcome(outcome, cases)


def run_script(*arguments: str, scratch: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments, "--scratch", str(scratch)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.long
def test_against_itself(tmp_path: Path) -> None:
    images, scratch = tmp_path / "images", tmp_path / "scratch"
    for folder in (images, scratch):
        folder.mkdir()
    Image.new("RGB", (40, 30), "teal").save(images / "a.jpg")
    options = ("--seconds", "1", "--images", str(images))
    done = run_script(str(ROOT), "--only", *QUICK, *options, scratch=scratch)
    assert done.returncode in (0, 1), done.stderr  # 1: a busy machine
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert [row[0].strip("| ") for row in rows] == list(QUICK)
    for row in rows:
        assert len(row) == COLUMNS
        assert re.fullmatch(r"\d+\.\d\d, \d+\.\d\d", row[2])
        assert " rounds" in row[4]
        assert "FAILS" not in row[5]
        assert "n/a" not in row[5]
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_arguments(tmp_path: Path) -> None:
    listed = run_script("--list", scratch=tmp_path)
    assert (listed.returncode, listed.stdout.count("\n| ")) == (0, 24)
    assert "Examples:" in run_script("--help", scratch=tmp_path).stdout
    assert run_script(scratch=tmp_path).returncode == 2
    missing = run_script("HEAD", scratch=tmp_path / "missing")
    assert (missing.returncode, "missing is not a folder" in missing.stderr) == (2, True)
    unknown = run_script("no-such-commit", scratch=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no-such-commit is neither a commit of" in unknown.stderr


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_what_ends_the_script_ends_its_processes(name: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(ROOT), "--only", "help", "--scratch", str(tmp_path)]
    environment = os.environ | {"PACKSTORE_AGAINST_TEST": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while len(find_processes(tmp_path)) < 3:  # the script and both workers
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(name)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 128 + name
    for _ in range(600):  # a worker that the script was starting ends at the end of its input
        if not find_processes(tmp_path):
            break
        time.sleep(0.1)
    assert find_processes(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def find_processes(scratch: Path) -> list[int]:
    """Returns the processes that were started with a variable of this test."""
    mark, found = f"PACKSTORE_AGAINST_TEST={scratch}".encode(), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environment.read_bytes():
                found.append(int(environment.parent.name))
        except OSError:  # ended, or somebody else's
            continue
    return found


def test_a_commit_is_installed_once(
    tmp_path: Path, against: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suffix, installed, run = against.EXTENSION_SUFFIXES[0], [], subprocess.run

    def run_fake(command: list[str], **options: Any) -> Any:
        if "pip" not in command:
            return run(["echo", "abc123"], **options)
        installed.append(command[-1])
        if len(installed) == 1:
            raise KeyboardInterrupt
        engine = Path(command[command.index("--target") + 1]) / "packstore" / f"_engine{suffix}"
        engine.parent.mkdir(parents=True)
        engine.touch()
        return None

    monkeypatch.setattr(against, "ROOT", tmp_path)
    monkeypatch.setattr("subprocess.run", run_fake)
    with pytest.raises(KeyboardInterrupt):
        against.find_tree("v1")
    assert list((tmp_path / "build" / "against").iterdir()) == []  # an interrupted one leaves nothing
    for _ in range(2):
        tree = against.find_tree("v1")
        assert tree == tmp_path / "build" / "against" / "abc123"
        assert [path.name for path in tree.iterdir()] == ["packstore"]
    assert installed == [f"git+{tmp_path.as_uri()}@abc123"] * 2


def test_a_folder_without_an_engine(tmp_path: Path, against: ModuleType) -> None:
    (tmp_path / "packstore").mkdir()
    (tmp_path / "packstore" / "__init__.py").touch()
    with pytest.raises(SystemExit, match="no engine is compiled"):
        against.find_tree(str(tmp_path))
