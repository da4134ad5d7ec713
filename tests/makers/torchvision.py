"""torchvision as tests use it: PyPI's wheel beside any build of torch."""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.internals import Code


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


def photos(count: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Bytes with large structures and noise, all values among them, ``(count, 3, height, width)``."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(-40, 296, (count, 3, 4, 5), generator=generator).float()
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    noise = torch.randint(-20, 21, (count, 3, height, width), generator=generator)
    return (smooth + noise).clamp(0, 255).to(torch.uint8)


def step_by_torchvision(image: torch.Tensor, code: int, p: Sequence[float]) -> Any:
    """One step of a program on one image, ``(3, H, W)``, by torchvision's functions."""
    F = import_torchvision().transforms.v2.functional  # noqa: N806 (everybody's name for it)
    plain: dict[Code, Callable[[], Any]] = {
        Code.IDENTITY: lambda: image,
        Code.BRIGHTNESS: lambda: F.adjust_brightness(image, p[0]),
        Code.CONTRAST: lambda: F.adjust_contrast(image, p[0]),
        Code.SATURATION: lambda: F.adjust_saturation(image, p[0]),
        Code.HUE: lambda: F.adjust_hue(image, p[0]),
        Code.GRAY: lambda: F.rgb_to_grayscale(image, 3),
        Code.INVERT: lambda: F.invert(image),
        Code.POSTERIZE: lambda: F.posterize(image, int(p[0])),
        Code.SOLARIZE: lambda: F.solarize(image, p[0]),
        Code.AUTOCONTRAST: lambda: F.autocontrast(image),
        Code.EQUALIZE: lambda: F.equalize(image),
        Code.SHARPNESS: lambda: F.adjust_sharpness(image, p[0]),
        Code.BLUR: lambda: F.gaussian_blur(image, [int(p[0]), int(p[1])], [p[2], p[3]]),
        Code.PERMUTE: lambda: F.permute_channels(image, [int(n) for n in p[:3]]),
        Code.ERASE: lambda: F.erase(image, *map(int, p[:4]), torch.tensor(p[4:7]).to(image.dtype)[:, None, None]),
        Code.MIRROR: lambda: F.horizontal_flip(image),
        Code.FLIP: lambda: F.vertical_flip(image),
    }
    return plain[Code(int(code))]()


def agree(found: torch.Tensor, expected: torch.Tensor, share: float) -> None:
    """Checks that bytes are within 1, and that at most ``share`` of them differ; or one of them if there are few."""
    assert found.shape == expected.shape
    difference = (found.int() - expected.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).sum() <= (max(1, share * difference.numel()) if share else 0)


def share_equal(found: torch.Tensor, expected: torch.Tensor, interpolation: str) -> None:
    """Checks that 99.9% are equal; by bilinear interpolation within 1 elsewhere."""
    difference = (found.int() - expected.int()).abs()
    assert (difference > (interpolation != "nearest")).sum() <= 0.001 * difference.numel()
    assert (difference > 0).sum() <= 0.01 * difference.numel()


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
