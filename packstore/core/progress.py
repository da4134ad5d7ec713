"""Progress reports of long-running work. The library never prints; the CLI turns these into a tqdm bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of a running job.

    Attributes:
        stage: What is being done, for people: ``"scan"``, ``"statistics"``, ``"pack"``, ``"verify"`` ...
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
