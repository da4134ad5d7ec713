"""torchvision as tests use it: PyPI's wheel beside any build of torch."""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path
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


def transforms_of(tv: Any) -> dict[str, type]:
    """All transforms of both versions, by module and name."""
    return {
        f"{kind.__module__}.{kind.__name__}": kind
        for module in (tv.transforms, tv.transforms.v2)
        for kind in vars(module).values()
        if inspect.isclass(kind) and (issubclass(kind, torch.nn.Module) or "__call__" in vars(kind))
    }


def make_any(kind: type, **attributes: Any) -> Any:
    """An object of the class, whatever its constructor asks for."""
    op: Any = object.__new__(kind)
    if isinstance(op, torch.nn.Module):
        torch.nn.Module.__init__(op)
    vars(op).update(attributes)
    return op


def skip_before(minor: int) -> None:
    """Skips a test that compares with what torchvision has from 0.``minor`` on."""
    if tuple(map(int, version("torchvision").split(".")[:2])) < (0, minor):
        pytest.skip(f"torchvision is older than 0.{minor}")


_declared: list[Any] = []  # a library that is collected takes its operators away


@functools.cache
def import_image_io() -> Any:
    """The module ``torchvision.io`` with its decoders of image files, also beside a CPU build of torch.

    The library of PyPI's wheel needs two of CUDA's, of which its decoders for the CPU call nothing: libraries stand in
    for them whose functions end the process.
    """
    module = importlib.import_module(f"{import_torchvision().__name__}.io")
    if not hasattr(module.image, "_has_image_ops"):
        pytest.skip("this torchvision does not tell if its decoders load")
    if module.image._has_image_ops():
        return module
    library = Path(module.__file__).parent.parent / "image.so"
    if not library.is_file() or shutil.which("gcc") is None or shutil.which("nm") is None:
        pytest.skip("torchvision's decoders do not load, and gcc and nm are not there to make libraries for them")
    listed = subprocess.run(["nm", "-D", "--undefined-only", library], check=True, capture_output=True, text=True)
    missing = {line.split()[-1] for line in listed.stdout.splitlines() if line.split()[-1].startswith(_CUDA)}
    code = "".join(f"void {name}(void) {{ abort(); }}\n" for name in sorted(missing))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("libc10_cuda.so", f"#include <stdlib.h>\n{code}"), ("libtorch_cuda.so", "")):
            Path(folder, "code.c").write_text(text)
            made = Path(folder, name)
            subprocess.run(
                ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", made, Path(folder, "code.c")], check=True
            )
            _declared.append(ctypes.CDLL(str(made), ctypes.RTLD_GLOBAL))
        try:
            torch.ops.load_library(library)
        except OSError as error:
            pytest.skip(f"torchvision's decoders do not load: {error}")
    module.image._has_image_ops = lambda: True
    return module


_CUDA = ("_ZN3c104cuda", "_ZNK3c104cuda")
