"""Masks, boxes and keypoints under warps: where torchvision puts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from packstore import augment as A  # noqa: N812
from tests.internals import (
    Code,
    Draws,
    UsageError,
    check_targets,
    place_boxes,
    place_mask,
    place_points,
    plan_targets,
    run_program,
    step,
    uniform,
)
from tests.makers.torchvision import skip_before

COUNT = 6


def draws(stream: int = 0) -> Draws:
    return Draws(7, 0, np.arange(COUNT), stream)


def sample(size: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """An image, its mask, boxes and keypoints, alike for all records."""
    generator = torch.Generator().manual_seed(3)
    height, width = size
    coarse = torch.randint(0, 9, (1, 1, 5, 6), generator=generator).float()
    mask = torch.nn.functional.interpolate(coarse, size, mode="nearest")[0, 0].to(torch.uint8)
    low = torch.rand((9, 2), generator=generator) * torch.tensor([width, height]) * 0.7
    boxes = torch.cat([low, low + torch.rand((9, 2), generator=generator) * torch.tensor([width, height]) * 0.3], 1)
    points = torch.rand((9, 2), generator=generator) * torch.tensor([width, height])
    image = mask.expand(3, -1, -1).contiguous() * 20
    return image, mask, boxes, points


def by_torchvision(tv: Any, op: Any, row: int, values: Any, size: tuple[int, int]) -> list[Any]:
    """The same values after the operation with the parameters of image ``row``."""
    F, own = tv.transforms.v2.functional, draws()  # noqa: N806
    height, width = size
    if isinstance(op, A.RandomVerticalFlip):
        program = op.draw_program(own, size)
        return [F.vertical_flip(value) if program["code"][row, 0] else value for value in values]
    if isinstance(op, A.RandomRotation):
        low, high = op._parse_angles("degrees", op.degrees)
        angle = float(uniform(own, low, high, 0)[row])
        center = None if op.center is None else list(op.center)
        return [F.rotate(value, angle, center=center) for value in values]
    if isinstance(op, A.RandomAffine):
        low, high = op._parse_angles("degrees", op.degrees)
        across, down = op._shear_ranges()
        shares = op.translate or (0, 0)
        named = {
            "angle": float(uniform(own, low, high, 0)[row]),
            "translate": [
                float(np.rint(uniform(own, -share * length, share * length, 1 + n)[row]))
                for n, (share, length) in enumerate(zip(shares, (width, height), strict=True))
            ],
            "scale": 1.0 if op.scale is None else float(uniform(own, *op.scale, 3)[row]),
            "shear": [float(uniform(own, *across, 4)[row]), float(uniform(own, *down, 5)[row])],
            "center": None if op.center is None else list(op.center),
        }
        return [F.affine(value, **named) for value in values]
    steps = op.draw_program(own, size)[row, 0]
    if not steps["code"]:
        return list(values)
    named = {"startpoints": None, "endpoints": None, "coefficients": steps["p"].astype(float).tolist()}
    return [F.perspective(value, interpolation=tv.transforms.InterpolationMode.NEAREST, **named) for value in values]


OPERATIONS = [
    A.RandomVerticalFlip(),
    A.RandomRotation(180),
    A.RandomRotation((10, 40), center=(3, 5)),
    A.RandomAffine(30, (0.2, 0.1), (0.6, 1.5), (-10, 10, -5, 5)),
    A.RandomAffine(0, shear=20, center=(0, 0)),
    A.RandomPerspective(0.4, p=0.8, interpolation="nearest"),
]


@pytest.mark.parametrize("size", [(48, 64), (33, 20)], ids=str)
@pytest.mark.parametrize("op", OPERATIONS, ids=str)
def test_targets_follow_as_torchvisions(tv: Any, op: Any, size: tuple[int, int]) -> None:
    skip_before(23)  # keypoints
    image, mask, boxes, points = sample(size)
    sizes = np.tile(np.array(size), (COUNT, 1))
    placement = plan_targets(sizes, [op], draws())
    images = op(image.expand(COUNT, -1, -1, -1), draws())
    rows = np.arange(COUNT)
    for row in rows:
        kinds = tv.tv_tensors
        expected = by_torchvision(
            tv,
            op,
            row,
            [
                image,
                kinds.Mask(mask),
                kinds.BoundingBoxes(boxes, format="XYXY", canvas_size=size),
                kinds.KeyPoints(points, canvas_size=size),
            ],
            size,
        )
        assert (images[row] != expected[0]).float().mean() <= 0.001
        placed = place_mask(placement, row, mask.numpy(), fill=0)
        assert (placed != expected[1].numpy()).mean() <= 0.001
        of_row = np.full(9, row)
        moved, _ = place_boxes(placement, boxes.numpy(), of_row)
        assert np.allclose(moved, expected[2].numpy(), atol=2e-3)
        assert np.allclose(place_points(placement, points.numpy(), of_row), expected[3].numpy(), atol=2e-3)


@pytest.mark.parametrize(
    "ops",
    [
        [A.RandomHorizontalFlip(), A.RandomRotation(30), A.CenterCrop(24), A.RandomVerticalFlip()],
        [A.RandomResizedCrop(32), A.RandAugment(3, 20), A.RandomErasing(1)],
        [A.Resize((30, 40)), A.RandomApply([A.RandomHorizontalFlip(1), A.RandomAffine(20)], 0.5), A.RandomCrop(28)],
        [A.RandomChoice([A.RandomVerticalFlip(1), A.RandomPerspective(p=1), A.Grayscale()]), A.TrivialAugmentWide()],
        [A.TimmAugment("rand-m9-n3-p1", interpolation="nearest"), A.AutoAugment("cifar10")],
    ],
    ids=str,
)
def test_a_mask_stays_on_its_image(ops: Any) -> None:
    """The mask shows where the image's own pixels came from, through chains of all kinds."""
    size = (48, 64)
    count = COUNT
    # Each pixel tells where it is: without interpolation image and mask must agree.
    mask = np.arange(48 * 64).reshape(48, 64) % 251
    images = torch.from_numpy(mask).to(torch.uint8).expand(count, 3, -1, -1).contiguous()
    geometric = [op for op in ops if op.moves_pixels]
    sizes = np.tile(np.array(size), (count, 1))
    placement = plan_targets(sizes, ops, draws())
    found = images.float()
    for stream, op in enumerate(ops):
        if op not in geometric:
            continue
        if hasattr(op, "draw_program") and not isinstance(op, A.RandomHorizontalFlip):
            program = op.draw_program(draws(stream), (found.shape[-2], found.shape[-1]))
            program["flags"] &= ~3  # nearest
            program["flags"] = np.where(program["flags"] >> 2 & 3 == 2, 1 << 2, program["flags"])
            program[(program["code"] < Code.AFFINE) | (program["code"] == Code.ERASE)] = 0
            found = run_program(found, program)
        else:
            crops = op.plan_whole_images(np.tile(np.array(found.shape[-2:]), (count, 1)), draws(stream))
            moved = plan_targets(np.tile(np.array(found.shape[-2:]), (count, 1)), [op], draws(), crops)
            found = torch.stack(
                [
                    torch.from_numpy(place_mask(moved, row, found[row, 0].numpy())).expand(3, -1, -1)
                    for row in range(count)
                ]
            )
    for row in range(count):
        placed = place_mask(placement, row, mask.astype(np.uint8))
        assert placed.shape == found.shape[-2:]
        assert (placed != found[row, 0].numpy()).mean() <= 0.002
        out = np.empty(placed.shape, np.uint8)
        place_mask(placement, row, mask.astype(np.uint8), out=out)
        assert np.array_equal(out, placed)


def test_an_image_that_stays_keeps_its_boxes_to_the_bit() -> None:
    boxes = np.array([[1.25, 2.5, 9.125, 7.0]] * COUNT, np.float32)
    sizes = np.tile(np.array((32, 32)), (COUNT, 1))
    placement = plan_targets(sizes, [A.RandomApply([A.RandomRotation(45)], 0.0)], draws())
    assert not placement.moves
    half = plan_targets(sizes, [A.RandomPerspective(p=0.5)], draws())
    moved, _ = place_boxes(half, boxes, np.arange(COUNT))
    stays = A.RandomPerspective(p=0.5).draw_program(draws(), (32, 32))["code"][:, 0] == 0
    assert 0 < stays.sum() < COUNT
    assert np.array_equal(moved[stays], boxes[stays])
    assert not np.array_equal(moved[~stays], boxes[~stays])


def test_images_of_one_pixel_are_warped() -> None:
    images = torch.full((COUNT, 3, 1, 1), 9, dtype=torch.uint8)
    for op in OPERATIONS:
        assert op(images, draws()).shape == images.shape
    flipped = run_program(images, step(COUNT, Code.FLIP))
    assert torch.equal(flipped, images)


def test_what_cannot_follow_is_refused() -> None:
    with pytest.raises(UsageError, match="AugMix mixes images"):
        check_targets([A.RandomApply([A.Compose([A.AugMix()])])], ["mask"])
    with pytest.raises(UsageError, match="further images"):
        check_targets([A.AugMix()], ["image"])
    check_targets([A.RandAugment(), A.RandomErasing()], ["mask", "boxes"])
