"""Progress reports of long-running work, and tqdm bars that show them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from packstore.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of a running job.

    Attributes:
        stage: Name of the current stage: ``"scan"``, ``"statistics"``, ``"pack"``, ``"verify"`` …
        done: Records finished in this stage.
        total: Records of this stage; None if unknown.
        done_bytes: Bytes handled in this stage.
    """

    stage: str
    done: int
    total: int | None
    done_bytes: int


ProgressCallback = Callable[[Progress], None]


def no_progress(_: Progress) -> None:
    """Ignores reports: the default callback."""


@contextmanager
def progress_callback(progress: bool | ProgressCallback, *, count_stages: bool = False) -> Iterator[ProgressCallback]:
    """Yields the callback for an argument ``progress=``. True draws a tqdm bar for each stage, and removes it at the
    end.

    Args:
        progress: True, False, or the callback itself.
        count_stages: Draw a single bar that counts stages instead of images.

    Raises:
        UsageError: ``progress`` is neither True, False nor a function.
    """
    if progress is True:
        bars = _Bars(count_stages)
        try:
            yield bars
        finally:
            bars.close()
    elif progress is False:
        yield no_progress
    elif callable(progress):
        yield progress
    else:
        raise UsageError(f"progress should be True, False or a function of a Progress, got {progress!r}")


class _Bars:
    """Draws tqdm bars with images/s, MB/s and time left. One bar for each stage, or a single bar that counts stages."""

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
                unit=" stages" if self.count_stages else " images",
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
    """Returns False if standard error is a terminal of unknown size. True for other terminals, and without a
    terminal."""
    try:
        return os.get_terminal_size(2).columns > 0
    except OSError:
        return True


def _import_tqdm() -> Any:
    """Imports and returns tqdm's class. For a notebook if IPython is loaded, else for a terminal, which loads
    faster."""
    if "IPython" not in sys.modules:
        return import_module("tqdm").tqdm
    with warnings.catch_warnings():
        # Without ipywidgets tqdm warns and draws a bar of text, which is good enough.
        warnings.simplefilter("ignore", import_module("tqdm").TqdmWarning)
        return import_module("tqdm.auto").tqdm
