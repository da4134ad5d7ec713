"""The CUDA device of this machine, for tests that were written for the simulated one."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch


class RealDevice:
    """What tests ask a :class:`~tests.makers.simulated_cuda.Simulation`, as far as a real device can tell it.

    Attributes:
        waits: What torch says of operations for which the host waits.
        staged: Nothing: copies from ordinary memory that do not wait are not reported.
    """

    def __init__(self) -> None:
        self.waits: list[str] = []
        self.staged: list[str] = []

    @property
    def allocated(self) -> int:
        return torch.cuda.memory_allocated()

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()

    @peak.setter
    def peak(self, _: int) -> None:
        torch.cuda.reset_peak_memory_stats()

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"only a simulated device tells {name}")


@contextlib.contextmanager
def real_cuda(order: str | int = "late") -> Iterator[RealDevice]:
    """The device as it is. It has no orders of work to choose from: skips tests of all but the first."""
    if order != "late":
        pytest.skip("there is a CUDA device, whose order of work is its own")
    device = RealDevice()

    def note(message: Warning | str, *_: Any) -> None:
        device.waits.append(str(message))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype feature")
        warnings.filterwarnings("always", message="called a synchronizing CUDA operation")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield device
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
