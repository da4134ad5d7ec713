"""torchvision as tests use it: PyPI's wheel beside any build of torch."""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import version
from typing import Any

import pytest
import torch


@functools.cache
def import_torchvision() -> Any:
    """The module ``torchvision`` with ``transforms.v2`` and ``tv_tensors``.

    PyPI's wheel is compiled for CUDA and says at its import what its two operators do without gradients. Beside a CPU
    build of torch its library does not load, so the operators have to be declared before.
    """
    if torch.version.cuda is None:
        library = torch.library.Library("torchvision", "DEF")
        _declared.append(library)
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    module = importlib.import_module("torchvision")
    for name in ("transforms.v2", "tv_tensors", "datasets"):
        importlib.import_module(f"torchvision.{name}")
    return module


def skip_before(minor: int) -> None:
    """Skips a test that compares with what torchvision has from 0.``minor`` on."""
    if tuple(map(int, version("torchvision").split(".")[:2])) < (0, minor):
        pytest.skip(f"torchvision is older than 0.{minor}")


_declared: list[Any] = []  # a library that is collected takes its operators away
