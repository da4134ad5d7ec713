"""Progress reports of long-running work, and tqdm bars that show them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from packstore.core.errors import UsageError

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of a running job.

    Attributes:
        stage: Name of the current stage: ``"unpack"``, ``"scan"``, ``"statistics"``, ``"pack"``, ``"verify"`` …
        done: Records finished in this stage; bytes of the compressed file that have been read in ``"unpack"``.
        total: Records of this stage, or bytes of that file; None if unknown.
        done_bytes: Bytes handled in this stage.
        unit: Unit of ``done`` and ``total``: ``"images"``, or ``"B"`` for bytes.
    """

    stage: str
    done: int
    total: int | None
    done_bytes: int
    unit: str = "images"


ProgressCallback = Callable[[Progress], None]


def no_progress(_: Progress) -> None:
    """Ignores reports: the default callback."""


_active: ContextVar[ProgressCallback] = ContextVar("progress", default=no_progress)


@contextmanager
def set_within(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Sets a variable within the block; afterwards it has its former value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def progress_callback(progress: bool | ProgressCallback, *, count_stages: bool = False) -> Iterator[ProgressCallback]:
    """Yields the callback for an argument ``progress=``. True draws a tqdm bar for each stage, and removes it at the
    end. Unless stages are counted, :func:`active_progress` returns this callback within the block.

    Args:
        progress: True, False, or the callback itself.
        count_stages: Draw a single bar that counts stages instead of images.

    Raises:
        UsageError: ``progress`` is neither True, False nor a function.
    """
    if not callable(progress) and progress is not True and progress is not False:
        raise UsageError(f"progress should be True, False or a function of a Progress, got {progress!r}")
    bars = _Bars(count_stages) if progress is True else None
    callback = bars or (no_progress if progress is False else progress)
    assert callable(callback)
    try:
        with set_within(_active, no_progress if count_stages else callback):
            yield callback
    finally:
        if bars is not None:
            bars.close()


def active_progress() -> ProgressCallback:
    """Returns the callback of this thread's :func:`progress_callback` block, for work deep within a call.

    Without such a block, the callback ignores reports.
    """
    return _active.get()


class _Bars:
    """Draws tqdm bars with images/s, MB/s and time left: one for each stage, or a single one that counts stages."""

    def __init__(self, count_stages: bool) -> None:
        self.count_stages = count_stages
        self.bar: Any = None
        self.stage: str | None = None

    def __call__(self, report: Progress) -> None:
        """Updates the bar. At a new stage, removes the bar and draws another, unless stages are counted."""
        if report.stage != self.stage and self.count_stages and self.bar is not None:
            self.stage = report.stage
            self.bar.set_description(report.stage, refresh=False)
        elif report.stage != self.stage:
            self.close()
            self.stage = report.stage
            sized = _has_terminal_size()
            self.bar = _import_tqdm()(
                desc=report.stage,
                total=report.total,
                unit=" stages" if self.count_stages else "B" if report.unit == "B" else f" {report.unit}",
                unit_scale=report.unit == "B",
                # For a terminal of unknown size, 0 x 0, tqdm would draw nothing.
                ncols=None if sized else 80,
                nrows=None if sized else 24,
                dynamic_ncols=sized,
                smoothing=0.1,
                leave=False,
            )
        self.bar.update(report.done - self.bar.n)
        elapsed = self.bar.format_dict["elapsed"]
        if report.done_bytes and elapsed > 0:
            self.bar.set_postfix_str(f"{report.done_bytes / 1e6 / elapsed:.0f} MB/s", refresh=False)

    def close(self) -> None:
        """Removes the current bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def _has_terminal_size() -> bool:
    """Returns False if standard error is a terminal of unknown size."""
    try:
        return os.get_terminal_size(2).columns > 0
    except OSError:
        return True


def _import_tqdm() -> Any:
    """Imports and returns tqdm's class for a notebook or a terminal."""
    if "IPython" not in sys.modules:  # tqdm.auto loads slower
        return import_module("tqdm").tqdm
    with warnings.catch_warnings():
        # Without ipywidgets tqdm warns and draws a bar of text, which is good enough.
        warnings.simplefilter("ignore", import_module("tqdm").TqdmWarning)
        return import_module("tqdm.auto").tqdm
