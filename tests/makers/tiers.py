"""Tiers of tests: what runs in ``./tools/test fast``, in ``./tools/test``, and in ``./tools/test soak`` alone.

``fast`` leaves out what is marked ``slow`` or ``soak``, the default tier what is marked ``soak``; ``soak`` runs what is
marked ``soak``. So the default tier and soak together are all tests. The cases are drawn by a salt, the hash of the
commit: each commit runs other ones, and every run of a commit the same. Of rooms that have just changed, the default
tier runs more cases.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import re
import resource
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.makers import command

SEED = int(os.environ.get("PACKSTORE_TEST_SEED", "0"))
"""Seed of random inputs and of the order of ``soak``. ``./tools/test soak`` sets another one in each run."""

_SALT_LETTERS = 12


def find_salt(environment: Mapping[str, str], folder: Path) -> str:
    """Finds the salt of the draw: the first 12 letters of a commit's hash.

    The commit is that of ``PACKSTORE_TEST_SALT``, else ``HEAD`` in the repository of ``folder``. Changes that are not
    committed do not count. If there is no such commit, the variable is the salt itself; without one the salt is
    ``none``.
    """
    given = environment.get("PACKSTORE_TEST_SALT", "")
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", f"{given or 'HEAD'}^{{commit}}"]
    found = ""
    with contextlib.suppress(FileNotFoundError):  # git is not installed
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return (found or given or "none")[:_SALT_LETTERS]


SALT = os.environ["PACKSTORE_TEST_SALT"] = find_salt(os.environ, Path(__file__).resolve().parent)
"""Salt of the draw. Workers of pytest-xdist inherit the variable: all draw alike, whoever commits meanwhile."""

ORDERS = {"cuda": ("late", "ahead"), "device": ("late", "backwards", "ahead", 3)}
"""Fixtures with an order of work of the simulated device as parameter: the default tier takes the first of these."""

SUITES = {
    "test_shards_missing_extra_swapped_truncated": pytest.mark.sampled(1, fast=0),
    "test_spawn": pytest.mark.slow,
    "test_damage_is_said_in_one_line": pytest.mark.slow,
    "test_open_reads_no_records_into_memory": pytest.mark.slow,
    "test_entries_are_listed_lazily_in_bounded_memory": pytest.mark.slow,
    "test_any_flipped_byte_is_found_or_harmless": pytest.mark.sampled(2, fast=0),
    "test_bytes_follow_from_the_image_and_the_options_alone": pytest.mark.slow,
    "test_memory_while_writing": pytest.mark.slow,
    "test_manifest_of_a_megabyte": pytest.mark.slow,
    "test_closed_while_others_read": pytest.mark.sampled(1, fast=0),
    "test_plain_library_reads_it": pytest.mark.sampled(1, fast=0),
    "test_fork": pytest.mark.sampled(2, fast=0),
    "test_what_was_handed_out_outlives_close": pytest.mark.sampled(2),
}
"""Tests of the suites in ``packstore.testing``, which know nothing of our tiers; of others with ``records`` of several
kinds the default tier takes three, and two are in the fast tier."""

CASES = {"SourceSuite": 3, "ExportSuite": 3}
"""Of each test in these suites, which dozens of kinds inherit, the default tier takes so many cases."""

SLOW_CASES, MANY_CASES = 1, 1
"""Cases of each other test in the default tier: of one that is marked ``slow`` where it is defined, and of the rest."""

CHANGED_FACTOR = 4
"""Of a room that has just changed, the default tier takes so many times as many cases."""
MOST_CASES = 6200
"""Cases of the default tier, beyond which none is added for a change. A case takes 0.2 s of CPU time, and the rest of
the run 130 s: 12 minutes on two cores."""
RECENT_SECONDS = 86400


def find_changed_rooms(folder: Path) -> frozenset[str]:
    """Finds the rooms in which a file of the package or its tests has just changed.

    Counts the commits of the day that ends with ``HEAD``, and what is not committed. Returns none without git.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    try:
        latest = git("log", "-1", "--format=%ct").strip()
    except FileNotFoundError:  # git is not installed
        return frozenset()
    files = git("status", "--porcelain", "--untracked-files=all", "--no-renames")
    if latest:
        files += git("log", f"--since={int(latest) - RECENT_SECONDS}", "--name-only", "--format=")
    return frozenset(re.findall(r"^(?:.. )?(?:packstore|tests)/(\w+)/", files, re.MULTILINE))


if "PACKSTORE_TEST_CHANGED" not in os.environ:  # workers of pytest-xdist inherit it
    os.environ["PACKSTORE_TEST_CHANGED"] = " ".join(sorted(find_changed_rooms(Path(__file__).resolve().parent)))
CHANGED = frozenset(os.environ["PACKSTORE_TEST_CHANGED"].split())
"""Rooms that have just changed."""


def examples(count: int) -> settings:
    """``count`` examples of Hypothesis where other tests take 40, so that each tier has its share of them."""
    return settings(max_examples=max(1, count * settings().max_examples // 40))


def turns(count: int) -> list[Any]:
    """Values of a parameter: 0 for the default tier, and ``count`` more for soak, in which each does more."""
    return [0, *(pytest.param(turn, marks=pytest.mark.soak) for turn in range(1, count + 1))]


FAST_CASES, FAST_SECONDS = 1, 0.1
"""Cases of a test that ``fast`` takes at most, and processor time of a test that should be marked ``slow``."""


def processor_time() -> float:
    """Seconds that this process, its children that have ended and the commands that it ran have used so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + command.seconds


def assign_tiers(items: Sequence[pytest.Item]) -> None:
    """Marks cases beyond those that the default tier takes, chosen by a hash of :data:`SALT` and their names.

    A test marked ``sampled(n)`` runs ``n`` of its cases; the others become ``soak``. With
    ``per="suffix"`` it runs ``n`` for each value of that parameter (or parameters, separated by blanks), with
    ``fast=m`` ``m`` of those in the fast tier; the others become ``slow``, as do those beyond ``FAST_CASES`` of a test.
    A test that is not ``sampled`` runs ``SLOW_CASES`` of its cases when it is marked ``slow``, else ``MANY_CASES``.
    In a room of :data:`CHANGED`, ``CHANGED_FACTOR`` times as many run; those beyond the usual number become ``extra``.
    """
    grids: defaultdict[tuple[str, ...], list[pytest.Item]] = defaultdict(list)
    drawn: defaultdict[tuple[str, bool], list[pytest.Item]] = defaultdict(list)
    for item in sorted(items, key=lambda item: hashlib.sha256(f"{SALT} {item.nodeid}".encode()).digest()):
        params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        if any(params.get(name) in orders and params[name] != orders[0] for name, orders in ORDERS.items()):
            item.add_marker("soak")
            continue
        function = item.name.partition("[")[0]
        suite = SUITES.get(function)
        if suite or "records" in params:
            item.add_marker(suite or pytest.mark.sampled(3, fast=2))
        test = item.nodeid.partition("[")[0]
        factor = CHANGED_FACTOR if CHANGED & {*test.split("/")[1:2]} else 1
        if inherited := _find_suite(getattr(item, "cls", None), function):
            group = grids[inherited.__name__, function]
            group.append(item)
            if _is_beyond(item, len(group), CASES[inherited.__name__], factor):
                continue
            if len(group) > FAST_CASES:
                item.add_marker("slow")
        marks = {mark.name: mark for mark in reversed([*item.iter_markers()])}  # the closest of each name
        if "soak" in marks:
            continue
        if mark := marks.get("sampled"):
            group = grids[test, *(str(params[name]) for name in mark.kwargs.get("per", "").split())]
            group.append(item)
            if mark.args and _is_beyond(item, len(group), mark.args[0], factor):
                continue
            if len(group) > mark.kwargs.get("fast", FAST_CASES):
                item.add_marker("slow")
                continue
        slow = "slow" in marks
        if mark and slow:
            continue
        group = drawn[test, slow]
        group.append(item)
        if not mark and _is_beyond(item, len(group), SLOW_CASES if slow else MANY_CASES, factor):
            continue
        if not slow and len(group) > FAST_CASES:
            item.add_marker("slow")


def _is_beyond(item: pytest.Item, count: int, most: int, factor: int) -> bool:
    """Marks a case beyond ``most`` as ``extra``, and one beyond ``most * factor`` as ``soak``. Returns whether it is
    ``soak``."""
    if count > most:
        item.add_marker("extra" if count <= most * factor else "soak")
    return count > most * factor


def limit_extra_cases(items: Sequence[pytest.Item]) -> None:
    """Makes extra cases ``soak`` where more than :data:`MOST_CASES` would run.

    The rooms add a case each in turn, chosen by their hash.
    """
    running = [item for item in items if item.get_closest_marker("soak") is None]
    extra = [item for item in running if item.get_closest_marker("extra")]
    rooms: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in sorted(extra, key=lambda item: hashlib.sha256(f"{SALT} {item.nodeid}".encode()).digest()):
        rooms[item.nodeid.split("/")[1]].append(item)
    in_turn = [item for turn in zip_longest(*rooms.values()) for item in turn if item is not None]
    for item in in_turn[max(0, MOST_CASES - len(running) + len(extra)) :]:
        item.add_marker("soak")


def import_suites(places: Sequence[str]) -> None:
    """Imports the test files below ``places`` that inherit a suite of :data:`CASES`, so that :func:`is_drawn` knows all
    classes."""
    root = Path(__file__).resolve().parents[2]
    suites = re.compile(rf"\b({'|'.join(CASES)}|FileSuite)\b")
    for place in places:
        path = Path(place)
        for file in sorted(path.rglob("test_*.py") if path.is_dir() else [path]):
            if suites.search(file.read_text("utf-8")):
                importlib.import_module(".".join(file.resolve().relative_to(root).with_suffix("").parts))


def is_drawn(cls: type, name: str) -> bool:
    """Returns whether the default tier runs test ``name`` in ``cls``: True unless a suite of :data:`CASES` has it and
    enough other classes are drawn.

    Most classes inherit tests that then do not run, and pytest would need 28 s a process to make their cases.
    """
    suite = _find_suite(cls, name)
    return suite is None or cls in _draw_classes(suite, name)


@functools.cache
def _find_suite(cls: type | None, name: str) -> type | None:
    """Finds the suite in :data:`CASES` from which a class inherits a test; None for a test of its own."""
    return next((base for base in getattr(cls, "__mro__", ()) if base.__name__ in CASES and name in vars(base)), None)


@functools.cache
def _draw_classes(suite: type, name: str) -> frozenset[type]:
    """Draws the classes that run a suite's test: all whose room has changed, up to ``CHANGED_FACTOR`` times as many."""
    found, more = set(), [suite]
    while more:
        more = [below for each in more for below in each.__subclasses__() if below not in found]
        found.update(more)
    tests = [cls for cls in found if cls.__module__.startswith("tests.") and cls.__name__.startswith("Test")]
    most = CASES[suite.__name__] * (CHANGED_FACTOR if {cls.__module__.split(".")[1] for cls in tests} & CHANGED else 1)
    key = lambda cls: hashlib.sha256(f"{SALT} {cls.__module__}.{cls.__qualname__} {name}".encode()).digest()  # noqa: E731
    return frozenset(sorted(tests, key=key)[:most])


class _Case:
    """A case of a test that pytest has not made yet, as far as :func:`assign_tiers` looks at it."""

    def __init__(self, metafunc: pytest.Metafunc, callspec: Any) -> None:
        self.callspec, self.cls = callspec, metafunc.cls
        self.name = f"{metafunc.definition.name}[{callspec.id}]"
        self.nodeid = f"{metafunc.definition.nodeid}[{callspec.id}]"
        self._marks = [getattr(mark, "mark", mark) for mark in callspec.marks] + [*metafunc.definition.iter_markers()]

    def iter_markers(self) -> Iterator[pytest.Mark]:
        return iter(self._marks)

    def add_marker(self, mark: str | pytest.MarkDecorator) -> None:
        self._marks.insert(0, (getattr(pytest.mark, mark) if isinstance(mark, str) else mark).mark)


def drop_soak_cases(metafunc: pytest.Metafunc) -> None:
    """Drops the cases of a test that ``soak`` alone runs, but one if that is all of them: every process of pytest takes
    half a millisecond for a case, even for one that it then leaves out."""
    if len(metafunc._calls) == 1:
        return
    cases = [_Case(metafunc, callspec) for callspec in metafunc._calls]
    assign_tiers(cases)  # type: ignore[arg-type]
    kept = [case.callspec for case in cases if all(mark.name != "soak" for mark in case.iter_markers())]
    metafunc._calls[:] = kept or metafunc._calls[:1]


def longest_first(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """``items`` so that each worker begins with tests marked ``long``, and none waits for one of them at the end.

    Each of pytest-xdist's workers is given an equal part of the list at first, and steals from the ends of the others'.
    """
    longest = [item for item in items if item.get_closest_marker("long")]
    others = iter([item for item in items if not item.get_closest_marker("long")])
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        mine = longest[worker::workers]
        share = (len(items) - len(ordered)) // (workers - worker)
        ordered += [*mine, *islice(others, max(0, share - len(mine)))]
    return [*ordered, *others]
