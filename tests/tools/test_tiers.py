"""How the cases of a test are shared out among the tiers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.makers import tiers as tiers_module
from tests.makers.tiers import (
    FAST_CASES,
    MANY_CASES,
    ORDERS,
    SALT,
    SLOW_CASES,
    assign_tiers,
    drop_soak_cases,
    find_changed_rooms,
    find_salt,
    is_drawn,
    limit_extra_cases,
    longest_first,
)


class Case:
    """A collected test, as far as tiers look at it."""

    def __init__(self, name: str, params: dict[str, Any], *marks: pytest.MarkDecorator, cls: Any = None) -> None:
        self.name = self.nodeid = name
        self.callspec, self.cls = SimpleNamespace(params=params), cls
        self.marks = list(marks)

    def add_marker(self, mark: str | pytest.MarkDecorator) -> None:
        self.marks.append(getattr(pytest.mark, mark) if isinstance(mark, str) else mark)

    def iter_markers(self) -> Iterator[pytest.Mark]:
        return (mark.mark for mark in self.marks)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.iter_markers() if mark.name == name), None)


def tiers(*marks: pytest.MarkDecorator) -> dict[str, list[tuple[int, str]]]:
    """The cases of a test of thirty, by tier."""
    cases = [Case(f"t[{n}-{kind}]", {"n": n, "kind": kind}, *marks) for n in range(10) for kind in "abc"]
    assign_tiers(cases)  # type: ignore[arg-type]
    found: dict[str, list[tuple[int, str]]] = {"fast": [], "slow": [], "soak": []}
    for case in cases:
        tier = next((tier for tier in ("soak", "slow") if case.get_closest_marker(tier)), "fast")
        found[tier].append((case.callspec.params["n"], case.callspec.params["kind"]))
    return found


@pytest.mark.parametrize(
    ("marks", "fast", "slow"),
    [
        ([], FAST_CASES, MANY_CASES - FAST_CASES),
        ([pytest.mark.sampled(fast=2)], min(2, FAST_CASES), 30 - min(2, FAST_CASES)),
        ([pytest.mark.sampled(6)], FAST_CASES, 6 - FAST_CASES),
        ([pytest.mark.sampled(2, per="kind")], FAST_CASES, 6 - FAST_CASES),
        ([pytest.mark.sampled(2, per="kind", fast=1)], min(3, FAST_CASES), 6 - min(3, FAST_CASES)),
        ([pytest.mark.sampled(6, fast=0)], 0, 6),
        ([pytest.mark.slow], 0, SLOW_CASES),
        ([pytest.mark.slow, pytest.mark.sampled(7)], 0, 7),
        ([pytest.mark.soak], 0, 0),
    ],
)
def test_cases_are_in_one_tier_each(marks: list[pytest.MarkDecorator], fast: int, slow: int) -> None:
    found = tiers(*marks)
    assert {tier: len(cases) for tier, cases in found.items()} == {"fast": fast, "slow": slow, "soak": 30 - fast - slow}
    assert tiers(*marks) == found


@pytest.mark.parametrize("mark", [pytest.mark.sampled(2, per="kind", fast=1), pytest.mark.slow, pytest.mark.soak])
def test_cases_of_soak_are_not_made(mark: pytest.MarkDecorator) -> None:
    calls = [
        SimpleNamespace(id=f"{n}-{kind}", params={"n": n, "kind": kind}, marks=[]) for n in range(10) for kind in "abc"
    ]
    definition = SimpleNamespace(name="t", nodeid="t", iter_markers=lambda: iter([mark.mark]))
    metafunc: Any = SimpleNamespace(_calls=calls.copy(), cls=None, definition=definition)
    drop_soak_cases(metafunc)
    left = sorted((call.params["n"], call.params["kind"]) for call in metafunc._calls)
    found = tiers(mark)
    assert left == (sorted([*found["fast"], *found["slow"]]) or [(0, "a")])


def test_each_value_has_its_share() -> None:
    found = tiers(pytest.mark.sampled(2, per="kind"))
    assert sorted(kind for _, kind in found["fast"] + found["slow"]) == ["a", "a", "b", "b", "c", "c"]


def test_what_is_for_soak_takes_no_share() -> None:
    cases = [Case(f"t[{n}]", {"n": n}, *[pytest.mark.soak] * (n > 0), pytest.mark.sampled(1)) for n in range(9)]
    assign_tiers(cases)  # type: ignore[arg-type]
    assert [case.get_closest_marker("soak") is None for case in cases] == [True] + [False] * 8


def test_an_order_of_the_device_is_in_the_default_tier_and_the_others_in_soak() -> None:
    for name, orders in ORDERS.items():
        cases = [Case(f"t[{order}]", {name: order}) for order in orders]
        assign_tiers(cases)  # type: ignore[arg-type]
        assert [case.get_closest_marker("soak") is None for case in cases] == [True] + [False] * (len(orders) - 1)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 5, 30])
def test_each_worker_begins_with_what_takes_long(workers: int, count: int) -> None:
    cases: Any = [Case(str(n), {}, *[pytest.mark.long] * (n % 4 == 3)) for n in range(count)]
    ordered = longest_first(cases, workers)
    assert sorted(case.name for case in ordered) == sorted(case.name for case in cases)
    assert [case.name for case in ordered if not case.marks] == [case.name for case in cases if not case.marks]
    start = 0
    for worker in range(workers if count == 30 else 0):
        share = ordered[start : start + (count - start) // (workers - worker)]
        assert len([case for case in share if case.marks]) in (7 // workers, -(-7 // workers))
        assert [bool(case.marks) for case in share] == sorted((bool(case.marks) for case in share), reverse=True)
        start += len(share)


# The salt of the draw.


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


DRAWN = [
    [],
    [pytest.mark.slow],
    [pytest.mark.sampled(6)],
    [pytest.mark.sampled(2, per="kind")],
    [pytest.mark.sampled(6, fast=0)],
    [pytest.mark.slow, pytest.mark.sampled(7)],
]


def draw(salt: str, marks: list[pytest.MarkDecorator], monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The cases of the default tier."""
    monkeypatch.setattr(tiers_module, "SALT", salt)
    found = tiers(*marks)
    return sorted(found["fast"] + found["slow"])


@pytest.mark.parametrize("marks", DRAWN)
def test_a_salt_always_draws_the_same_cases_and_others_draw_others(
    marks: list[pytest.MarkDecorator], monkeypatch: pytest.MonkeyPatch
) -> None:
    salts = [f"{number:012x}" for number in range(9)]
    draws = [draw(salt, marks, monkeypatch) for salt in salts]
    assert draws == [draw(salt, marks, monkeypatch) for salt in salts]
    assert len({tuple(cases) for cases in draws}) > 5
    assert len({len(cases) for cases in draws}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("marks", DRAWN)
def test_every_case_is_drawn_by_some_salt(marks: list[pytest.MarkDecorator], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {case for number in range(300) for case in draw(f"{number:012x}", marks, monkeypatch)}
    assert drawn == {(n, kind) for n in range(10) for kind in "abc"}


def test_every_case_of_a_suite_is_drawn_by_some_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    from packstore.testing import SourceSuite

    name = next(name for name in vars(SourceSuite) if name.startswith("test_"))
    drawn = set()
    for salt in range(100):
        monkeypatch.setattr(tiers_module, "SALT", str(salt))
        cases = [Case(name, {}, cls=SourceSuite) for _ in range(20)]
        for number, case in enumerate(cases):
            case.nodeid = f"Test{number}::{name}"
        assign_tiers(cases)  # type: ignore[arg-type]
        left = [case.nodeid for case in cases if case.get_closest_marker("soak") is None]
        assert len(left) == 3
        drawn.update(left)
    assert len(drawn) == 20


@pytest.mark.parametrize("marks", DRAWN)
def test_what_is_dropped_does_not_depend_on_the_order(
    marks: list[pytest.MarkDecorator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers collect the files in different orders."""
    for salt in "abcde":
        monkeypatch.setattr(tiers_module, "SALT", salt)
        cases = [Case(f"t[{n}-{kind}]", {"n": n, "kind": kind}, *marks) for n in range(10) for kind in "abc"]
        assign_tiers(cases[::-1])  # type: ignore[arg-type]
        left = [
            (case.callspec.params["n"], case.callspec.params["kind"])
            for case in cases
            if case.get_closest_marker("soak") is None
        ]
        assert sorted(left) == draw(salt, marks, monkeypatch)


def test_the_salt_is_the_commit(tmp_path: Path) -> None:
    assert find_salt({}, tmp_path) == "none"
    git(tmp_path, "init", "-q")
    assert find_salt({}, tmp_path) == "none"
    salts = []
    for number in range(2):
        (tmp_path / "file").write_text(str(number))
        git(tmp_path, "add", "file")
        assert find_salt({}, tmp_path) == (salts or ["none"])[-1], "what is not committed does not count"
        git(tmp_path, "commit", "-qm", "a")
        salts.append(git(tmp_path, "rev-parse", "HEAD")[:12])
        assert find_salt({}, tmp_path) == find_salt({"PACKSTORE_TEST_SALT": ""}, tmp_path) == salts[-1]
    for given in (salts[0], salts[0][:8], git(tmp_path, "rev-parse", "HEAD~1"), "HEAD~1"):
        assert find_salt({"PACKSTORE_TEST_SALT": given}, tmp_path) == salts[0]
    for given in ("0123456789ab", "0123456789abcdef0123456789abcdef01234567", "none", "--all", "a b"):
        assert find_salt({"PACKSTORE_TEST_SALT": given}, tmp_path) == given[:12]


# Rooms that have just changed.


def test_rooms_of_the_last_day_and_of_uncommitted_files_are_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(file: str, hours: int) -> None:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(str(hours))
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{1_700_000_000 + hours * 3600} +0000")
        git(tmp_path, "add", file)
        git(tmp_path, "commit", "-qm", "a")

    assert find_changed_rooms(tmp_path) == set()
    git(tmp_path, "init", "-q")
    assert find_changed_rooms(tmp_path) == set()
    commit("packstore/sources/a.py", 0)
    commit("packstore/stores/lmdb/a.py", 10)
    commit("README.md", 20)
    commit("tests/images/test_a.py", 30)
    assert find_changed_rooms(tmp_path) == {"stores", "images"}
    (tmp_path / "packstore" / "sources" / "a.py").write_text("b")
    (tmp_path / "packstore" / "core").mkdir()
    (tmp_path / "packstore" / "core" / "a b.py").write_text("b")
    assert find_changed_rooms(tmp_path) == {"stores", "images", "sources"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_changed_rooms(tmp_path) == set()


@pytest.mark.parametrize(
    ("marks", "base"),
    [([], MANY_CASES), ([pytest.mark.slow], SLOW_CASES), ([pytest.mark.sampled(3)], 3), ([pytest.mark.soak], 0)],
)
def test_more_cases_run_of_a_changed_room(
    marks: list[pytest.MarkDecorator], base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw_room() -> list[Case]:
        cases = [Case(f"tests/core/test_a.py::t[{n}]", {"n": n}, *marks) for n in range(40)]
        assign_tiers(cases)  # type: ignore[arg-type]
        return [case for case in cases if case.get_closest_marker("soak") is None]

    monkeypatch.setattr(tiers_module, "CHANGED", frozenset({"stores"}))
    before = [case.name for case in draw_room()]
    monkeypatch.setattr(tiers_module, "CHANGED", frozenset({"core"}))
    after = draw_room()
    assert len(before) == base
    assert len(after) == base * tiers_module.CHANGED_FACTOR
    assert {case.name for case in after if not case.get_closest_marker("extra")} == {*before}

    monkeypatch.setattr(tiers_module, "MOST_CASES", base + 2)
    limit_extra_cases(after)  # type: ignore[arg-type]
    left = {case.name for case in after if case.get_closest_marker("soak") is None}
    assert len(left) == (base + 2 if base else 0)
    assert left >= {*before}


def test_each_changed_room_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers_module, "CHANGED", frozenset({"core", "stores", "images"}))
    sizes = {"core": 4, "stores": 30, "images": 30}
    names = [
        f"tests/{room}/test_a.py::t{n}[{case}]" for room, size in sizes.items() for n in range(size) for case in "ab"
    ]
    cases = [Case(name, {"case": name[-2]}) for name in names]
    assign_tiers(cases)  # type: ignore[arg-type]
    monkeypatch.setattr(tiers_module, "MOST_CASES", sum(sizes.values()) + 24)
    limit_extra_cases(cases)  # type: ignore[arg-type]
    left = [case for case in cases if case.get_closest_marker("extra") and not case.get_closest_marker("soak")]
    assert {room: sum(room in case.nodeid for case in left) for room in sizes} == {
        "core": 4,
        "stores": 10,
        "images": 10,
    }


def test_classes_that_inherit_a_suite_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class SourceSuite:
        def test_a(self) -> None: ...

    classes = [type(f"Test{n}", (SourceSuite,), {"__module__": "tests.sources.x", "test_b": None}) for n in range(20)]
    for changed, most in ((set(), 3), ({"sources"}, 3 * tiers_module.CHANGED_FACTOR)):
        drawn = set()
        monkeypatch.setattr(tiers_module, "CHANGED", changed)
        for salt in range(60):
            monkeypatch.setattr(tiers_module, "SALT", str(salt))
            tiers_module._draw_classes.cache_clear()
            now = {cls for cls in classes if is_drawn(cls, "test_a")}
            assert len(now) == most
            drawn |= now
            assert all(is_drawn(cls, "test_b") for cls in classes), "a test of their own always runs"
        assert drawn == {*classes}
    tiers_module._draw_classes.cache_clear()


def test_without_git_there_is_a_salt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_salt({}, ROOT) == "none"
    assert find_salt({"PACKSTORE_TEST_SALT": "x"}, ROOT) == "x"


def test_all_workers_have_the_salt_of_this_process() -> None:
    assert os.environ["PACKSTORE_TEST_SALT"] == SALT


@pytest.mark.slow
def test_pytest_prints_the_salt_and_draws_by_it() -> None:
    def draw(salt: str, *options: str) -> tuple[set[str], str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not soak", *options]
        done = subprocess.run(
            [*command, "tests/core/test_columns.py"],
            cwd=ROOT,
            env=os.environ | {"PACKSTORE_TEST_SALT": salt, "PACKSTORE_TEST_CHANGED": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        header = re.search(r"PACKSTORE_TEST_SALT=(\S+)", done.stdout)
        assert header
        return {*re.findall(r"(?:PASSED \S+?::|<Function )(.+?)[> ]*$", done.stdout, re.MULTILINE)}, header[1]

    first, salt = draw("0123456789ab", "-v", "-n", "2")
    assert salt == "0123456789ab"
    assert draw(salt, "--collect-only") == (first, salt)
    other, salt = draw("ba9876543210", "--collect-only")
    assert salt == "ba9876543210"
    assert len(other) == len(first) > 1
    assert other != first
