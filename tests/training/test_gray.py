"""Operations on the brightness of gray images: as torchvision's on one channel. Those on colours are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from tests.conftest import Simulate
from tests.internals import Code, UsageError, run_program, step
from tests.makers.torchvision import import_torchvision

IMAGES = torch.from_numpy(np.random.default_rng(4).integers(0, 256, (4, 1, 23, 31), np.uint8))

AS_TORCHVISION: dict[str, tuple[Code, tuple[float, ...], Callable[[Any, Any], Any]]] = {
    "brightness": (Code.BRIGHTNESS, (1.3,), lambda f, x: f.adjust_brightness(x, 1.3)),
    "darker": (Code.BRIGHTNESS, (0.4,), lambda f, x: f.adjust_brightness(x, 0.4)),
    "contrast": (Code.CONTRAST, (1.7,), lambda f, x: f.adjust_contrast(x, 1.7)),
    "less contrast": (Code.CONTRAST, (0.25,), lambda f, x: f.adjust_contrast(x, 0.25)),
    "invert": (Code.INVERT, (), lambda f, x: f.invert(x)),
    "posterize": (Code.POSTERIZE, (3,), lambda f, x: f.posterize(x, 3)),
    "solarize": (Code.SOLARIZE, (130,), lambda f, x: f.solarize(x, 130)),
    "autocontrast": (Code.AUTOCONTRAST, (), lambda f, x: f.autocontrast(x // 3 + 40)),
    "equalize": (Code.EQUALIZE, (), lambda f, x: f.equalize(x)),
    "sharpness": (Code.SHARPNESS, (2.5,), lambda f, x: f.adjust_sharpness(x, 2.5)),
    "blur": (Code.BLUR, (5, 3, 1.5, 0.5), lambda f, x: f.gaussian_blur(x, [5, 3], [1.5, 0.5])),
}


@pytest.mark.parametrize("name", AS_TORCHVISION)
def test_they_are_torchvisions_of_one_channel(name: str) -> None:
    code, parameters, by_torchvision = AS_TORCHVISION[name]
    given = IMAGES // 3 + 40 if name == "autocontrast" else IMAGES
    found = run_program(given, step(len(given), code, *parameters))
    functional = import_torchvision().transforms.v2.functional
    wanted = torch.stack([by_torchvision(functional, image) for image in IMAGES])
    assert torch.equal(found, wanted)
    assert not torch.equal(found, given)


def store_of(path: Path, count: int = 6) -> Path:
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (20 + number, 30), np.uint8)
        (path / "set" / "a").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path / "set" / "a" / f"{number}.png")
    packstore.convert(path / "set", path / "s.lmdb", mode="L")
    return path / "s.lmdb"


WORK: dict[str, Any] = {
    "ColorJitter": A.ColorJitter(brightness=0.4),
    "RandomInvert": A.RandomInvert(1.0),
    "RandomPosterize": A.RandomPosterize(3, 1.0),
    "RandomSolarize": A.RandomSolarize(100, 1.0),
    "RandomAutocontrast": A.RandomAutocontrast(1.0),
    "RandomEqualize": A.RandomEqualize(1.0),
    "RandomAdjustSharpness": A.RandomAdjustSharpness(2, 1.0),
    "GaussianBlur": A.GaussianBlur(5),
    "RandomApply": A.RandomApply([A.GaussianBlur(5)], 0.5),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("order", ["cpu", "late"])
def test_a_loader_of_gray_gives_what_one_of_rgb_gives_in_each_channel(
    name: str, order: str, tmp_path: Path, simulate: Simulate
) -> None:
    store, operations = store_of(tmp_path), [A.RandomCrop(16), WORK[name]]
    rgb = next(iter(PackedLoader(PackedDataset(store, mode="RGB"), 6, augment=operations)))[0]
    if order == "cpu":
        gray = next(iter(PackedLoader(PackedDataset(store), 6, augment=operations)))[0]
    else:
        with simulate(order):
            dataset = PackedDataset(store, device=torch.device("cuda", 0))
            gray = next(iter(PackedLoader(dataset, 6, augment=operations)))[0].cpu()
    assert gray.shape == (6, 1, 16, 16)
    assert torch.equal(gray.expand_as(rgb), rgb)


def test_deep_gray_is_refused() -> None:
    with pytest.raises(UsageError, match="more bits"):
        run_program(IMAGES.int(), step(4, Code.BRIGHTNESS, 1.3), "ColorJitter")
    with pytest.raises(UsageError, match="RandAugment needs 8 bits"):  # although this batch drew no colours
        run_program(IMAGES.int(), step(4, Code.MIRROR, 0.0), "RandAugment")
