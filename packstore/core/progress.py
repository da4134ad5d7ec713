"""How long work tells its caller how far it is. The library never prints; the CLI turns these into a tqdm bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of a running job.

    Attributes:
        stage: What is being done, for people: ``"scan"``, ``"statistics"``, ``"pack"``, ``"verify"`` ...
        done: Records finished in this stage.
        total: Records of this stage, or None when not known.
        done_bytes: Bytes handled in this stage.
    """

    stage: str
    done: int
    total: int | None
    done_bytes: int


ProgressCallback = Callable[[Progress], None]


def no_progress(_: Progress) -> None:
    """The callback for callers who do not ask."""
