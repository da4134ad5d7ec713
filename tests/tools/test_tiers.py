"""How the cases of a test are shared out among the tiers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.makers.tiers import FAST_CASES, MANY_CASES, ORDERS, SLOW_CASES, assign_tiers, drop_soak_cases, longest_first


class Case:
    """A collected test, as far as tiers look at it."""

    def __init__(self, name: str, params: dict[str, Any], *marks: pytest.MarkDecorator) -> None:
        self.name = self.nodeid = name
        self.callspec = SimpleNamespace(params=params)
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
