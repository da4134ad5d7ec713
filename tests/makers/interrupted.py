"""Runs with a receipt after every few records, which end as an interrupt ends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.internals import Progress, batches, journal


class CutError(BaseException):
    """Ends a run: not an Exception, as an interrupt is none."""


def take_small_steps(monkeypatch: pytest.MonkeyPatch, records: int = 3) -> None:
    """Packs so many records a batch, and writes a receipt after each batch."""
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    for name in ("PASS_RECORDS", "DECODE_RECORDS"):
        monkeypatch.setattr(batches, name, records)


def stop_after(count: int) -> Callable[[Progress], None]:
    """Returns a progress callback that ends a run once ``count`` records are packed."""

    def progress(report: Progress) -> None:
        if report.stage == "pack" and report.done >= count:
            raise CutError

    return progress


def cut_short(run: Callable[..., object], *arguments: Any, after: int, **options: Any) -> BaseException:
    """Runs a conversion or append until ``after`` records are packed. Returns the error that ended it."""
    with pytest.raises(CutError) as caught:
        run(*arguments, progress=stop_after(after), **options)
    return caught.value
