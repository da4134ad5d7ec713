"""Policies in timm's notation: timm's operations and magnitudes, as often, and pixels near Pillow's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from packstore.augment import Draws, TimmAugment
from tests.internals import Code, UsageError, new_program, run_program, unpack_fill
from tests.makers.torchvision import import_torchvision

CONFIGS = [
    "rand-m9-mstd0.5-inc1",
    "rand-m7-mstd101-n3-p0.9",
    "rand-m6-inc1-tweights",
    "rand-m4-t3a",
    "original",
    "v0r-mstd0.5",
    "augmix-m5-w4-d2",
    "augmix-mstd0.5-a0.5-b1",
]


def import_timm() -> Any:
    """timm's policies; skips the test where timm is not installed."""
    import_torchvision()  # which timm imports
    return pytest.importorskip("timm.data.auto_augment")


def draws(count: int, seed: int = 0) -> Draws:
    return Draws(seed, 0, np.arange(count))


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_operations_are_as_frequent_and_as_strong_as_timms(config: str) -> None:
    timm = import_timm()
    import random

    from PIL import Image

    random.seed(0)
    np.random.seed(0)
    found: Counter[str] = Counter()
    levels: dict[str, list[float]] = {}
    makers = {"rand": timm.rand_augment_transform, "augm": timm.augment_and_mix_transform}
    make = makers.get(config[:4], timm.auto_augment_transform)
    theirs = make(config, {"translate_const": 100, "img_mean": (124, 116, 104)})
    operations = theirs.ops if hasattr(theirs, "ops") else [op for pair in theirs.policy for op in pair]
    for operation in operations:
        code = KINDS[operation.name.removesuffix("Increasing").removesuffix("Original")]

        def record(image: Any, *values: Any, code: str = code, **_: Any) -> Any:
            found[code] += 1
            levels.setdefault(code, []).append(float(values[0]) if values else 0.0)
            return image

        operation.aug_fn = record
    trials, blank = 4000, Image.new("RGB", (2, 2))
    for _ in range(trials):
        theirs(blank)
    program = TimmAugment(config).draw_program(draws(trials, seed=1), (224, 224))
    for code, count in found.items():
        mine = program["code"] == Code[code]
        assert abs(mine.sum() - count) < 5 * (count + 10) ** 0.5, code
        values = program["p"][mine][:, 0]
        if code in ("BRIGHTNESS", "CONTRAST", "SHARPNESS", "POSTERIZE", "SOLARIZE", "SOLARIZE_ADD") and count > 100:
            expected = np.array(levels[code])
            spread = 5 * (expected.std() + 1e-6) / count**0.5 + 1e-5 + (code == "POSTERIZE") * 0.2
            assert abs(values.mean() - expected.mean()) <= 2 * spread, code
    assert (program["code"] != 0).sum() > 0


KINDS = {
    **dict.fromkeys(("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"), "AFFINE"),
    "AutoContrast": "AUTOCONTRAST",
    "Equalize": "EQUALIZE",
    "Invert": "INVERT",
    "Posterize": "POSTERIZE",
    "Solarize": "SOLARIZE",
    "SolarizeAdd": "SOLARIZE_ADD",
    "Color": "SATURATION",
    "Desaturate": "SATURATION",
    "Contrast": "CONTRAST",
    "Brightness": "BRIGHTNESS",
    "Sharpness": "SHARPNESS",
    "GaussianBlur": "BLUR",
    "GaussianBlurRand": "BLUR",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel", "SolarizeAdd", "Color", "Contrast"]
)
def test_pixels_are_near_those_of_pillow(name: str) -> None:
    timm = import_timm()
    from PIL import Image

    from tests.internals import TIMM_OPERATIONS as OPERATIONS
    from tests.internals import TimmMagnitudes

    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (1, 3, 5, 6), generator=generator).float()
    image = torch.nn.functional.interpolate(coarse, (64, 80), mode="bicubic").clamp(0, 255).to(torch.uint8)
    picture = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    own = draws(1)
    sign = -1.0
    fill = TimmAugment("rand", interpolation="bilinear")._draw_warp_flags(np.zeros(1, np.int64))
    steps = new_program(1, 1)[:, 0]
    steps["code"], formula = OPERATIONS[name]
    steps["flags"] = fill if steps["code"] == Code.AFFINE else 0
    for place, values in enumerate(formula(TimmMagnitudes(np.array([0.7]), np.array([0.7 * sign]), (64, 80), own))):
        steps["p"][:, place] = 0 if values is None else values
    found = run_program(image, steps[:, None])[0].permute(1, 2, 0).int().numpy()
    argument = {"Rotate": 21.0 * sign, "TranslateXRel": 0.315 * sign, "TranslateYRel": 0.315 * sign}.get(name)
    argument = (
        {"SolarizeAdd": 77, "Color": 1.36, "Contrast": 1.36}.get(name, 0.21 * sign) if argument is None else argument
    )
    expected = np.asarray(
        timm.NAME_TO_OP[name](picture, argument, fillcolor=(124, 116, 104), resample=Image.Resampling.BILINEAR)
    ).astype(int)
    difference = np.abs(found - expected)
    assert (difference > 2).mean() < 0.02
    assert np.median(difference) <= 1


def test_fills_and_interpolations() -> None:
    program = TimmAugment("rand-m9-mstd0.5-inc1").draw_program(draws(500), (64, 64))
    flags = program["flags"][program["code"] == Code.AFFINE]
    assert {unpack_fill(int(each)) for each in flags} == {(124, 116, 104)}
    assert set((flags & 3).tolist()) == {1, 2}
    images = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8)
    found = TimmAugment("rand-m9-n4-p1")(images, draws(20))
    assert found.shape == images.shape
    assert eval(repr(TimmAugment("rand-m9"))) == TimmAugment("rand-m9")


@pytest.mark.parametrize(
    "config",
    [
        "", "randm9", "rand-x3", "rand-m", "rand-tall", "original-m3", "rand-n99", "rand--",
        "augmix-n3", "augmix-w0", "augmix-d21", "augmix-a0", "augmix-inc1",
    ],
)  # fmt: skip
def test_what_timm_does_not_know_is_refused(config: str) -> None:
    with pytest.raises(UsageError):
        TimmAugment(config)


def test_augmix_mixes_chains_by_shares_that_sum_to_one() -> None:
    program = TimmAugment("augmix-w4-a0.7").draw_program(draws(300), (64, 64))
    kept = program["code"][:, 0] == Code.KEEP
    added = program["code"] == Code.ADD
    assert kept.all()
    assert (added.sum(1) == 4).all()
    assert (program["code"][:, -1] == Code.MIX).all()
    shares = program["p"][:, 0, 0] + np.where(added, program["p"][..., 0], 0).sum(1)
    np.testing.assert_allclose(shares, 1, atol=1e-5)
    between = np.diff(np.flatnonzero(added[0])) - 1
    assert set(between.tolist()) == {3}
    depths = (program["code"][:, 1:4] != 0).sum(1)
    assert set(depths.tolist()) == {1, 2, 3}
    assert (np.bincount(depths, minlength=4)[1:] > 70).all()
    images = torch.randint(0, 256, (5, 3, 20, 30), dtype=torch.uint8)
    assert TimmAugment("augmix-m3")(images, draws(5)).shape == images.shape
