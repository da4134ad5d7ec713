"""Planned images: PIL images whose crops, colours and warps the engine does, with the pixels of Pillow and torch."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from tests.internals import Code, PlannedImage, call_transform, find_order, has_steps, plan_pixels
from tests.makers.datasets import pixels
from tests.makers.lazy import Lazy
from tests.makers.torchvision import import_torchvision

v1 = Lazy("torchvision.transforms", lambda: import_torchvision().transforms)
v2 = Lazy("torchvision.transforms.v2", lambda: import_torchvision().transforms.v2)
pytestmark = pytest.mark.filterwarnings("ignore:The transform `.*` is deprecated:UserWarning")  # torchvision's v2
WAYS = Lazy("InterpolationMode", lambda: v1.InterpolationMode)


POLICIES: dict[str, Callable[[Any], Any]] = {
    "imagenet": lambda t: t.AutoAugment(v1.AutoAugmentPolicy.IMAGENET),
    "cifar10": lambda t: t.AutoAugment(v1.AutoAugmentPolicy.CIFAR10),
    "svhn": lambda t: t.AutoAugment(v1.AutoAugmentPolicy.SVHN),
    "rand": lambda t: t.RandAugment(3, 14),
    "rand, filled": lambda t: t.RandAugment(2, 30, fill=[3, 200, 9]),
    "trivial": lambda t: t.TrivialAugmentWide(),
    "trivial, filled": lambda t: t.TrivialAugmentWide(fill=77),
}
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "invert": lambda t: t.RandomInvert(0.7),
    "posterize": lambda t: t.RandomPosterize(3, 0.7),
    "solarize": lambda t: t.RandomSolarize(130.00001, 0.7),
    "solarize everything": lambda t: t.RandomSolarize(-3.0),
    "sharpen": lambda t: t.RandomAdjustSharpness(2.3, 0.7),
    "smooth": lambda t: t.RandomAdjustSharpness(0.2, 0.7),
    "autocontrast": lambda t: t.RandomAutocontrast(0.7),
    "equalize": lambda t: t.RandomEqualize(0.7),
    "rotation": lambda t: t.RandomRotation(180, fill=4),
    "around": lambda t: t.RandomRotation(30, center=(3, 5)),
    "half a turn": lambda t: t.RandomRotation((180, 180)),
    "a quarter": lambda t: t.RandomRotation((90, 90)),
    "three quarters": lambda t: t.RandomRotation((-90, -90)),
    "affine": lambda t: t.RandomAffine(30, (0.2, 0.3), (0.5, 1.4), (-10, 20, -30, 9), fill=(1, 2, 3)),
    "scale": lambda t: t.RandomAffine(0, (0.2, 0.3), (0.5, 1.4)),
    "crop": lambda t: t.RandomCrop((20, 30), padding=(3, 5), pad_if_needed=True),
    "pad": lambda t: t.Pad((1, 2, 3, 4)),
}
BEFORE: list[Callable[[Any], Any]] = [
    lambda t: t.RandomResizedCrop((33, 41)),
    lambda t: t.RandomHorizontalFlip(),
    lambda t: t.RandomVerticalFlip(),
    lambda t: t.ColorJitter(0.4, 0.3, 0.2, 0.1),
    lambda t: t.RandomGrayscale(0.5),
]


def pixels_of_any_kind(height: int, width: int, seed: int) -> Any:
    """Noise of all values or few, of which channels may be flat."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (height, width, 3), np.uint8) // np.uint8(rng.integers(1, 5)) + np.uint8(7)
    values[..., rng.random(3) < 0.1] = 9
    return values


def run_both(transforms: Sequence[Any], values: Any, seed: int) -> list[Any]:
    """Gives a planned image and one of Pillow to transforms, which have to leave the same states of the generator."""
    results, states = [], []
    for image in (plan_pixels(values), Image.fromarray(values)):
        torch.manual_seed(seed)
        for transform in transforms:
            image = call_transform(transform, image) if isinstance(image, PlannedImage) else transform(image)
        results.append(image)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    return results


def assert_planned(transforms: Sequence[Any], values: Any, seed: int) -> PlannedImage:
    """Compares the pixels of a planned image, which nothing makes before the end, with those of one of Pillow."""
    found, expected = run_both(transforms, values, seed)
    assert isinstance(found, PlannedImage)
    assert not found.is_made
    assert found.size == expected.size
    assert (np.asarray(found) == np.asarray(expected)).all()
    return found


@pytest.mark.parametrize("name", [*OPERATIONS, *POLICIES])
@pytest.mark.parametrize("module", [v1, v2])
@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)) | st.integers(1, 70).map(lambda side: (side, side)),
    seed=st.integers(0, 2**31),
)
def test_operations_are_planned(module: Any, name: str, size: tuple[int, int], seed: int) -> None:
    """Bit for bit as torchvision's of PIL images, which draw the same; nothing makes the pixels before the end."""
    transform = (OPERATIONS | POLICIES)[name](module)
    before = vars(transform).copy()
    assert_planned([transform], pixels_of_any_kind(*size, seed), seed)
    assert vars(transform) == before
    assert has_steps(transform) or name in ("crop", "pad")


@pytest.mark.parametrize("module", [v1, v2])
@given(
    names=st.lists(st.sampled_from([*OPERATIONS, *POLICIES, *range(len(BEFORE))]), min_size=2, max_size=5),
    seed=st.integers(0, 2**31),
)
def test_chains_of_operations_are_planned(module: Any, names: list[Any], seed: int) -> None:
    """In any order: moves after a warp begin anew, mirroring after it becomes a step."""
    every = {**OPERATIONS, **POLICIES, **dict(enumerate(BEFORE))}
    assert_planned([every[name](module) for name in names], pixels_of_any_kind(40, 57, seed), seed)


MIXES: dict[str, Callable[[Any], Any]] = {
    "default": lambda t: t.AugMix(),
    "severe": lambda t: t.AugMix(10, 2, 4, 0.5, fill=77),
    "without colours": lambda t: t.AugMix(5, 4, 2, all_ops=False, fill=[3, 200, 9.0]),
    "nearest": lambda t: t.AugMix(interpolation=WAYS.NEAREST, fill=0),
    "one operation": lambda t: t.AugMix(mixture_width=1, chain_depth=1, alpha=0.1),
}


def mix_exactly(module: Any) -> Any:
    """Returns an AugMix that has only operations whose result does not depend on the rounding of sums."""
    transform, names = module.AugMix(10, 4, 3), ["TranslateX", "Posterize", "Solarize", "AutoContrast", "Equalize"]
    if module is v2:
        transform._AUGMENTATION_SPACE = {name: transform._AUGMENTATION_SPACE[name] for name in names}
        return transform

    def select(bins: int, size: Any) -> Any:
        space = v1.AugMix._augmentation_space(transform, bins, size)
        return {name: space[name] for name in names}

    transform._augmentation_space = select
    return transform


@pytest.mark.slow
@pytest.mark.parametrize("module", [v1, v2])
@given(size=st.tuples(st.integers(1, 70), st.integers(1, 70)), seed=st.integers(0, 2**31))
def test_augmix_adds_up_its_chains_as_torch(module: Any, size: tuple[int, int], seed: int) -> None:
    """Bit for bit, after other steps and before them."""
    flips = [module.RandomHorizontalFlip(), module.RandomVerticalFlip()]
    before, after = module.ColorJitter(0.4, 0.3), module.RandAugment()
    transforms = [*flips, before, mix_exactly(module), mix_exactly(module), *flips, after]
    assert_planned(transforms, pixels_of_any_kind(*size, seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("module", [v1, v2])
def test_augmix_is_nearly_that_of_torchvision(module: Any, name: str) -> None:
    """Sums that torch rounds otherwise differ by 1. Equalize, posterize and solarize make more of few of them."""
    transform, differences = MIXES[name](module), []
    assert has_steps(transform)
    before = vars(transform).copy()
    for seed in range(40):
        found, expected = run_both([transform], pixels(30 + seed, 70 - seed % 9, seed), seed)
        assert isinstance(found, PlannedImage)
        assert not found.is_made
        differences.append(np.abs(np.subtract(found, expected, dtype=int)).ravel())
    assert vars(transform) == before
    every = np.concatenate(differences)
    assert (every > 0).mean() < 0.01
    assert (every > 1).mean() < 0.001


def test_mirroring_after_a_warp_is_a_step() -> None:
    rotation, flips = v1.RandomRotation((30, 30)), [v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0)]
    found = assert_planned([*flips, rotation, *flips, rotation], pixels_of_any_kind(30, 41, 2), 0)
    assert [int(one["code"][0, 0]) for one in found.colours] == [
        Code.FLIP, Code.AFFINE, Code.MIRROR, Code.FLIP, Code.AFFINE,
    ]  # fmt: skip


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize(
    "use",
    [
        lambda t: t.RandomRotation(30, interpolation=WAYS.BILINEAR),
        lambda t: t.RandomRotation((33, 33), expand=True),
        lambda t: t.RandAugment(3, interpolation=WAYS.BILINEAR),
        lambda t: t.AugMix(fill=[0.5, 2, 0]),
        lambda t: t.AugMix(fill=[256, 2, 0]),
        lambda t: t.RandomAdjustSharpness(1e7, 1.0),
        lambda t: t.RandomAffine(0, (0, 0), fill=(300, -2, 0)),
        lambda t: t.Pad(3, padding_mode="edge"),
        lambda t: t.Pad(3, fill=9),
        lambda t: t.Pad((-2, 3, 4, -1)),
        lambda t: t.Pad(3, fill=(0, 0, 0)),
    ],
)
def test_what_the_engine_has_not_is_done_by_pillow(module: Any, use: Any) -> None:
    assert np.array_equal(*run_both([use(module)], pixels_of_any_kind(30, 41, 2), 3))


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("name", ["invert", "equalize", "affine", "rotation", "crop", "default"])
def test_gray_images_stay_with_pillow(module: Any, name: str) -> None:
    transform = (OPERATIONS | MIXES)[name](module) if name != "affine" else module.RandomAffine(30, fill=4)
    found, expected = run_both([transform], pixels_of_any_kind(30, 41, 2)[..., 0], 3)
    assert found.mode == "L"
    assert np.array_equal(found, expected)


def test_bits_that_pillow_refuses_are_refused() -> None:
    transform, values = v1.RandomPosterize(9, 1.0), pixels_of_any_kind(5, 7, 1)
    errors = []
    for call, image in ((call_transform, plan_pixels(values)), (lambda t, image: t(image), Image.fromarray(values))):
        try:
            errors.append(np.asarray(call(transform, image)).tobytes())  # old Pillow does something
        except ValueError as error:
            errors.append(str(error))
    assert errors[0] == errors[1]


def planned(height: int = 50, width: int = 70) -> tuple[PlannedImage, Image.Image]:
    values = pixels(height, width, 3)
    return plan_pixels(values), Image.fromarray(values)


@pytest.mark.parametrize(
    "use",
    [
        lambda image: image.convert("HSV"),
        lambda image: image.crop((-3, 2, 40, 60)),
        lambda image: image.crop((2.5, 3, 20, 30)),
        lambda image: image.crop(),
        lambda image: image.resize((20, 20), Image.Resampling.HAMMING),
        lambda image: image.resize((20, 20), box=(1, 2, 30, 40)),
        lambda image: image.resize((20, 20), reducing_gap=2.0),
        lambda image: image.resize(image.size),
        lambda image: image.rotate(30, expand=True),
        lambda image: image.rotate(30, fillcolor="red"),
        lambda image: image.rotate(180).rotate(90).rotate(45),
        lambda image: image.transform((50, 30), Image.Transform.AFFINE, (1, 0.2, 3, 0, 1, 0)),
        lambda image: image.transform(image.size, Image.Transform.AFFINE, (1, 0.2, 3, 0, 1, 0, 0, 0)),
        lambda image: image.transform(image.size, Image.Transform.AFFINE, (900, 0.2, 3, 0, 1, 0)),
        lambda image: image.transform(image.size, Image.Transform.EXTENT, (3, 4, 30, 40)),
        lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM).crop((-3, -9, 40, 52)),
        lambda image: image.crop((-30, 2, -3, 60)),
        lambda image: image.crop((0, 0, 9000, 2)),
        lambda image: image.transpose(Image.Transpose.ROTATE_90),
        lambda image: image.getchannel(1),
        lambda image: image.copy(),
        lambda image: Image.blend(image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 0.5),
        lambda image: pickle.loads(pickle.dumps(image.crop((3, 4, 30, 40)))),
        lambda image: image.reduce(3),
        lambda image: Image.fromarray(np.asarray(image.crop((3, 4, 30, 40)))),
    ],
)
def test_a_planned_image_is_one_of_pillow(use: Callable[[Image.Image], Image.Image]) -> None:
    found, expected = map(use, planned())
    assert (found.mode, found.size, found.tobytes()) == (expected.mode, expected.size, expected.tobytes())


def test_what_is_drawn_on_a_planned_image_stays() -> None:
    made = []
    for image in planned():
        small = image.crop((10, 10, 60, 45))
        ImageDraw.Draw(small).line((0, 0, 30, 30), fill=(255, 0, 0))
        made.append(small.resize((33, 22)).transpose(Image.Transpose.FLIP_TOP_BOTTOM).tobytes())
    assert made[0] == made[1]


def test_this_pillow_resizes_as_the_engine() -> None:
    assert find_order() is not None
