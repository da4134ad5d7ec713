"""Operations on pixels equal torchvision's for the same parameters, and draw them for each record by itself."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from packstore import augment as A  # noqa: N812
from tests.internals import (
    INTERPOLATIONS,
    Code,
    Draws,
    Program,
    UsageError,
    inverse_affine,
    inverse_rotation,
    join_programs,
    new_program,
    pack_warp_flags,
    run_by_torch,
    run_program,
    step,
    unpack_fill,
    write_steps,
)
from tests.makers.torchvision import agree, photos, share_equal, step_by_torchvision

SIZES = [(1, 1), (2, 5), (7, 3), (32, 32), (61, 47), (224, 224)]


def draws(count: int, seed: int = 0, epoch: int = 0, first: int = 0) -> Draws:
    return Draws(seed, epoch, np.arange(first, first + count))


def apply(op: Any, images: Tensor, own: Draws) -> Tensor:
    """What the operation makes of a batch, as a loader asks it."""
    found: Tensor = op(images, Draws(own.seed, own.epoch, torch.from_numpy(own.records), own.stream))
    return found


EXACT = {
    Code.IDENTITY, Code.BRIGHTNESS, Code.GRAY, Code.INVERT, Code.POSTERIZE, Code.SOLARIZE, Code.AUTOCONTRAST,
    Code.EQUALIZE, Code.PERMUTE, Code.ERASE, Code.MIRROR, Code.FLIP, Code.SHARPNESS,
}  # fmt: skip
"""Integer arithmetic, tables, or the very operations of torchvision; all others end in sums that torch rounds as the
shape of a tensor has it, but for hues, which are turned without torchvision's divisions."""


OPERATIONS: list[A.Operation] = [
    A.ColorJitter(0.4, 0.4, 0.4, 0.1),
    A.ColorJitter(brightness=(0.0, 3.0)),
    A.ColorJitter(hue=0.5),
    A.ColorJitter(saturation=(0, 5), contrast=(0, 5)),
    A.Grayscale(),
    A.RandomGrayscale(0.5),
    A.RandomInvert(),
    A.RandomPosterize(3),
    A.RandomPosterize(0, p=1),
    A.RandomPosterize(8, p=1),
    A.RandomSolarize(127.5),
    A.RandomAutocontrast(),
    A.RandomEqualize(),
    A.RandomAdjustSharpness(2.0),
    A.RandomAdjustSharpness(0, p=1),
    A.RandomChannelPermutation(),
    A.RandomPhotometricDistort(),
    A.RandomErasing(1.0),
    A.RandomErasing(0.6, value=(1, 2, 3), count=(1, 4)),
    A.RandomErasing(1.0, value="color"),
    A.Cutout(5, fill=9),
    A.RandomApply([A.ColorJitter(0.8, 0.8, 0.8, 0.2), A.RandomHorizontalFlip()], 0.8),
    A.RandomChoice([A.Grayscale(), A.RandomSolarize(128, 1), A.RandomAutocontrast(1)]),
    A.RandomChoice([A.RandomInvert(1), A.Compose([A.Grayscale(), A.RandomEqualize(1)])], p=[1, 3]),
    A.RandomOrder([A.RandomInvert(), A.RandomPosterize(2), A.RandomEqualize(), A.ColorJitter(0.5)]),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("op", OPERATIONS, ids=str)
def test_steps_by_torch_are_those_of_torchvision(op: Any, size: tuple[int, int]) -> None:
    count = 6
    program = op.draw_program(draws(count, seed=3), size)
    images = photos(count, *size)
    before = images.clone()
    assert torch.equal(op(images, Draws(3, 0, torch.arange(count))), run_program(images, program))
    for column in range(program.shape[1]):  # step by step, so that a difference of one is not amplified
        found = run_by_torch(images, program[:, column : column + 1])
        assert found.dtype == torch.uint8
        for row, each in enumerate(program[:, column]):
            share = 0 if each["code"] in EXACT else 0.01
            agree(found[row], step_by_torchvision(images[row], each["code"], each["p"].tolist()), share)
        images = found
    assert torch.equal(before, photos(count, *size))


@pytest.mark.parametrize("size", [(32, 32), (61, 47), (224, 224)], ids=str)
@pytest.mark.parametrize("kernel", [3, 23, (5, 9)], ids=str)
def test_blur_by_torch_is_that_of_torchvision(kernel: Any, size: tuple[int, int]) -> None:
    images = photos(4, *size)
    program = A.GaussianBlur(kernel, (0.1, 5.0)).draw_program(draws(4), size)
    for found, image, each in zip(run_by_torch(images, program), images, program[:, 0], strict=True):
        agree(found, step_by_torchvision(image, Code.BLUR, each["p"].tolist()), 0.01)


@pytest.mark.parametrize("run", [run_by_torch, run_program])
@pytest.mark.parametrize("size", [(32, 32), (61, 47), (1, 1), (224, 200)], ids=str)
@pytest.mark.parametrize("fill", [None, (7, 130, 255)], ids=str)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS[:2])
def test_warps_are_those_of_torchvision(
    tv: Any, interpolation: str, fill: Any, size: tuple[int, int], run: Any
) -> None:
    F = tv.transforms.v2.functional  # noqa: N806
    images = photos(4, *size)
    flags = pack_warp_flags(INTERPOLATIONS.index(interpolation), fill)
    angle, scale = np.array([0.0, 33.3, -120.0, 180.0]), np.array([1.0, 0.7, 1.8, 1.1])
    shift, shear = np.array([0.0, 3.0, -5.0, 1.0]), np.array([0.0, 10.0, -20.0, 5.0])
    mode = tv.transforms.InterpolationMode(interpolation)
    named = {"fill": list(fill) if fill else None, "interpolation": mode}
    matrix = inverse_affine(4, angle, (shift, -shift), scale, (shear, shear / 2))
    found = run(images, step(4, Code.AFFINE, *matrix.T, flags=flags))
    turned = run(images, step(4, Code.AFFINE, *inverse_rotation(4, angle).T, flags=flags))
    for n in range(4):
        expected = F.affine(images[n], angle[n], [shift[n], -shift[n]], scale[n], [shear[n], shear[n] / 2], **named)
        share_equal(found[n], expected, interpolation)
        share_equal(turned[n], F.rotate(images[n], angle[n], **named), interpolation)


POLICY_NAMES = (
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
)


@pytest.mark.slow
@pytest.mark.parametrize("interpolation", INTERPOLATIONS[:2])
@pytest.mark.parametrize(
    "name", [*POLICY_NAMES, "Posterize", "Solarize", "AutoContrast", "Equalize", "Identity", "Invert"]
)
def test_operations_of_policies_are_those_of_torchvision(tv: Any, name: str, interpolation: str) -> None:
    images = photos(3, 64, 48)
    magnitude = {"Posterize": [0, 4, 8], "Solarize": [0.0, 0.5, 1.0]}.get(name)
    if magnitude is None:
        magnitude = [-9.0, 4.7, 31.0] if name[0] in "TR" else [-0.3, 0.9, 0.02]
    program = new_program(3)
    flags = pack_warp_flags(INTERPOLATIONS.index(interpolation), None)
    write_steps(program, np.arange(3), 0, name, np.array(magnitude, np.float64), (64, 48), int(flags))
    found = run_program(images, program)
    policy = tv.transforms.v2.RandAugment(interpolation=tv.transforms.InterpolationMode(interpolation))
    for n in range(3):
        expected = policy._apply_image_or_video_transform(
            images[n], name, float(magnitude[n]), policy.interpolation, policy._fill
        )
        if program["code"][n, 0] == Code.AFFINE:
            share_equal(found[n], expected, interpolation)
        else:
            agree(found[n], expected, 0 if program["code"][n, 0] in EXACT else 0.01)


# What is drawn ----------------------------------------------------------------------------------------------------

POLICIES: list[tuple[Any, str]] = [
    (A.RandAugment(), "RandAugment()"),
    (A.RandAugment(3, 5, 11), "RandAugment(3, 5, 11)"),
    (A.TrivialAugmentWide(), "TrivialAugmentWide()"),
    (A.AutoAugment(), "AutoAugment(_transforms.AutoAugmentPolicy.IMAGENET)"),
    (A.AutoAugment("cifar10"), "AutoAugment(_transforms.AutoAugmentPolicy.CIFAR10)"),
    (A.AutoAugment("svhn"), "AutoAugment(_transforms.AutoAugmentPolicy.SVHN)"),
]


def named_steps(program: Program) -> list[tuple[Any, ...]]:
    """What each image goes through, with parameters rounded."""
    return [
        tuple((int(each["code"]), *np.round(each["p"][:7].astype(float), 3).tolist()) for each in row if each["code"])
        for row in program
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "text"), POLICIES, ids=str)
def test_policies_draw_as_torchvision(tv: Any, op: Any, text: str) -> None:
    """The same single operations and magnitudes, as often (chi-square with fixed seeds)."""
    v2 = tv.transforms.v2
    theirs = eval(text, {**vars(v2), "_transforms": v2})
    counts: dict[Any, list[float]] = {}
    size = (32, 48)

    @cache
    def steps_of(name: str, magnitude: float) -> list[Any]:
        program = new_program(1)
        if name in ("Posterize", "TranslateX", "TranslateY"):
            magnitude = int(magnitude)
        write_steps(program, np.arange(1), 0, name, np.array([magnitude]), size, 0)
        return [*named_steps(program)[0]]

    class Recorder(type(theirs)):
        def _apply_image_or_video_transform(self, image: Any, name: str, magnitude: float, *_: Any, **__: Any) -> Any:
            for one in steps_of(name, magnitude):
                counts.setdefault(one, [0, 0])[1] += 1
            return image

    theirs.__class__ = Recorder
    torch.manual_seed(0)
    image = torch.zeros((3, *size), dtype=torch.uint8)
    trials = 20000 if text.startswith("Trivial") else 4000  # of many magnitudes each is rare
    for _ in range(trials):
        theirs(image)
    ours = named_steps(op.draw_program(draws(10 * trials, seed=5), size))
    for row in ours:
        for one in row:
            counts.setdefault(one, [0, 0])[0] += 0.1
    pairs = np.array([pair for pair in counts.values() if sum(pair) > 20])
    rare = np.array([pair for pair in counts.values() if sum(pair) <= 20] or [(0, 0)]).sum(0)
    assert rare.sum() < 0.2 * pairs.sum()
    # Ours are ten times as many: their own variance is a tenth.
    chi_square = ((pairs[:, 0] - pairs[:, 1]) ** 2 / (pairs.mean(1) * 1.1)).sum()
    freedom = len(pairs)
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5
    assert freedom > 10


def test_augmix_mixes_its_chains() -> None:
    images = photos(5, 40, 30)
    for op in (A.AugMix(), A.AugMix(10, 2, 4, 0.5, all_ops=False)):
        chains, weights = op.draw_chains(draws(5, seed=2), (40, 30))
        assert np.allclose(weights.sum(1), 1, atol=1e-6)
        expected = images * torch.from_numpy(weights[:, 0])[:, None, None, None]
        for n, program in enumerate(chains):
            weight = torch.from_numpy(weights[:, n + 1])[:, None, None, None]
            expected = expected + run_program(images, program) * weight
        found = apply(op, images, draws(5, seed=2))
        agree(found, expected.clamp(0, 255).to(torch.uint8), 0.01)
        agree(run_by_torch(images, op.draw_program(draws(5, seed=2), (40, 30))), found, 0.01)


@pytest.mark.slow
def test_beta_and_dirichlet_have_their_moments() -> None:
    from tests.internals import beta, dirichlet

    for alpha in (0.1, 0.2, 0.8, 1.0, 3.0):
        values = beta(draws(20000, seed=1), alpha, 0)
        assert abs(values.mean() - 0.5) < 0.015
        assert abs(values.var() - 1 / (4 * (2 * alpha + 1))) < 0.01
        shares = dirichlet(draws(20000, seed=1), alpha, 3, 0)
        assert np.allclose(shares.sum(1), 1)
        assert np.allclose(shares.var(0), (2 / 9) / (3 * alpha + 1), atol=0.01)


# For each record by itself ----------------------------------------------------------------------------------------

ALL = [
    *OPERATIONS,
    *(op for op, _ in POLICIES),
    A.AugMix(),
    A.GaussianBlur(5),
    A.GaussianNoise(),
    A.RandomErasing(1, value="random"),
]


@pytest.mark.parametrize("op", ALL, ids=str)
def test_images_do_not_depend_on_their_batch(op: Any) -> None:
    images = photos(6, 24, 20)
    whole = apply(op, images, draws(6))
    for n in range(6):
        assert torch.equal(apply(op, images[n : n + 1], draws(1, first=n)), whole[n : n + 1])
    strided = apply(op, images.contiguous(memory_format=torch.channels_last), draws(6))
    assert torch.equal(strided, whole)
    assert strided.is_contiguous(memory_format=torch.channels_last)
    copy = pickle.loads(pickle.dumps(op))
    assert copy == op
    assert torch.equal(apply(copy, images, draws(6)), whole)
    assert eval(repr(op), {name: getattr(A, name) for name in A.__all__}) == op


@pytest.mark.parametrize("op", ALL, ids=str)
def test_records_epochs_and_seeds_differ(op: Any) -> None:
    if op in (A.Grayscale(), A.RandomPosterize(0, p=1), A.RandomPosterize(8, p=1), A.RandomAdjustSharpness(0, p=1)):
        return
    images = photos(1, 24, 20).expand(40, -1, -1, -1)
    found = apply(op, images, draws(40))
    assert len({each.numpy().tobytes() for each in found}) > 1
    assert not torch.equal(apply(op, images, draws(40, epoch=1)), found)
    assert not torch.equal(apply(op, images, draws(40, seed=1)), found)


def test_noise_has_the_deviation_that_it_says() -> None:
    images = torch.full((2, 3, 64, 64), 128, dtype=torch.uint8)
    found = apply(A.GaussianNoise(0.1, 0.05), images, draws(2)).float() - 128
    assert abs(found.mean() - 25.5) < 0.7
    assert abs(found.std() - 12.75) < 0.4
    erased = apply(A.RandomErasing(1, scale=(0.9, 0.9), ratio=(1, 1), value="random"), images, draws(2)).float()
    assert erased[erased != 128].std() > 50


@pytest.mark.parametrize("op", [op for op in ALL if hasattr(op, "draw_program")], ids=str)
def test_the_engine_and_torch_give_nearly_the_same(op: Any) -> None:
    """Step by step within 1 of 255; warps may take another of two pixels that are as near."""
    images = photos(5, 48, 64)
    program = op.draw_program(draws(5, seed=1), (48, 64))
    sums = bool(np.isin(program["code"], (Code.KEEP, Code.ADD, Code.MIX)).any())  # which belong together
    for one in [program] if sums else [program[:, [column]] for column in range(program.shape[1])]:
        found, expected = run_program(images, one), run_by_torch(images, one)
        difference = (found.int() - expected.int()).abs()
        assert (difference > 1).float().mean() <= 0.001
        assert (difference > 0).float().mean() <= 0.01
        images = found


@given(st.data())
def test_random_chains_run_as_their_steps(data: st.DataObject) -> None:
    chain = data.draw(st.lists(st.sampled_from([op for op in ALL if hasattr(op, "draw_program")]), max_size=6))
    height, width, count = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    images = photos(count, height, width, data.draw(st.integers(0, 9)))
    programs = [op.draw_program(draws(count).child(n), (height, width)) for n, op in enumerate(chain)]
    expected = images
    for program in programs:
        expected = run_program(expected, program)
    assert torch.equal(run_program(images, join_programs(programs, count)), expected)
    found = A.Compose(chain).draw_program(draws(count), (height, width))
    assert np.array_equal(found, join_programs(programs, count))


REFUSED = (
    "ColorJitter(-1); ColorJitter(hue=0.6); ColorJitter(brightness=(2, 1)); Grayscale(1); RandomPosterize(9); "
    "RandomSolarize(300); RandomInvert(1.5); GaussianBlur(4); GaussianBlur(3, 0); GaussianNoise(sigma=-1); "
    "RandomErasing(value='noise'); RandomErasing(value=(1, 2)); RandomErasing(scale=(0.5, 0.1)); "
    "RandomErasing(count=0); RandAugment(magnitude=31); RandAugment(interpolation='cubic'); RandAugment(fill=300); "
    "AutoAugment('mnist'); AugMix(severity=11); RandomApply(Grayscale()); RandomOrder([Resize(3)]); "
    "RandomChoice([]); RandomChoice([Grayscale()], p=[1, 2]); RandomOrder([len]); RandomRotation((20, 10)); "
    "RandomVerticalFlip(-1); RandomRotation(10, center=3); RandomAffine(10, translate=(0.1, 2)); "
    "RandomAffine(10, scale=(2, 1)); RandomAffine(10, interpolation='bicubic'); RandomPerspective(2); "
    "Resize(3, 'cubic'); RandomResizedCrop(3, antialias=1); RandomResize(0, 5); RandomResize(5, 5); "
    "RandomShortestSize([]); RandomShortestSize([3, 0]); RandomMasking(1.0); ScaleJitter(8, (0, 1)); ScaleJitter(0); "
    "Pad(-1); Pad((1, 2, 3)); Pad(1, padding_mode='wrap'); MixUp(0); CutMix(-1); RandomResize(3, 9, 'linear'); "
    "RandomCrop(8, 2, pad_if_needed=True); RandomMasking(0.5, 0); BatchMixer([]); "
    "BatchMixer([RandomHorizontalFlip()]); BatchMixer([MixUp()], mode='half'); BatchMixer([MixUp()], p=2); "
    "BatchMixer([MixUp()], weights=[1, 2]); BatchMixer([MixUp()], labels='pairs', label_smoothing=0.1)"
)


@pytest.mark.parametrize("code", REFUSED.split("; "))
def test_what_cannot_be_is_refused(code: str) -> None:
    with pytest.raises(UsageError):
        eval(code, {name: getattr(A, name) for name in A.__all__})


def test_colours_of_normalised_images_are_refused() -> None:
    with pytest.raises(UsageError, match="RandomInvert works on bytes"):
        apply(A.RandomInvert(1), torch.zeros(1, 3, 4, 4), draws(1))
    with pytest.raises(UsageError, match="RandomErasing with random values works on bytes"):
        apply(A.RandomErasing(1, value="random"), torch.zeros(1, 3, 4, 4), draws(1))
    erased = apply(A.RandomErasing(1, value=2.5), torch.zeros(1, 3, 40, 40), draws(1))
    assert set(erased.unique().tolist()) == {0.0, 2.5}


def test_boxes_of_an_image_share_its_erased_area() -> None:
    operation = A.RandomErasing(1, scale=(0.4, 0.4), ratio=(1, 1), value=1, count=4)
    erased = apply(operation, torch.zeros(64, 3, 40, 40), draws(64))[:, 0].sum((1, 2))
    square = 13 * 13  # a tenth of the pixels; the four may overlap
    assert erased.min() > square
    assert erased.max() <= 4 * square


def test_fills_travel_in_flags() -> None:
    for fill in ((0, 0, 0), (255, 255, 255), (1, 2, 3), (0, 0, 200)):
        assert unpack_fill(int(np.int32(pack_warp_flags(1, fill)))) == fill
