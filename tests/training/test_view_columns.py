"""Masks, boxes and keypoints beside several views: each crop has its own, moved by the draws of that crop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from tests.conftest import Simulate
from tests.internals import DecodeError, Draws, Padded, StoreError, UsageError, View, parse_views
from tests.makers.batches import place_values, same
from tests.makers.typed import Typed, png, spoilt

CARRIED = ("image", "mask", "raw", "boxes", "labels", "points", "corners", "label", "info", "image_id")
VIEWS: Any = {
    "large": (2, [A.RandomCrop((24, 30)), A.RandomHorizontalFlip(), A.ColorJitter(0.3)]),
    "small": (3, [A.RandomResizedCrop(16, (0.2, 0.6)), A.RandomRotation(20), A.RandomHorizontalFlip()]),
}


@pytest.fixture(params=["sizes", "files", "pixels"])
def made(request: pytest.FixtureRequest, typed_stores: dict[str, Typed]) -> Typed:
    return typed_stores[request.param]


def load(
    made: Typed, views: Any = VIEWS, columns: Any = CARRIED, device: str = "cpu", **options: Any
) -> list[dict[str, Any]]:
    options = {"batch_size": 4, "seed": 5, "mask_fill": 255, "min_area": 2} | options
    dataset = PackedDataset(made.path, columns=columns, output="dict", device=device)
    return list(PackedLoader(dataset, views=views, **options))


def expected(made: Typed, view: View, record: int, number: int) -> dict[str, Any]:
    """Mask, boxes and points of crop ``number`` of a record, worked out by themselves."""
    draws = Draws(view.derive_seed(5), 0, view.all_crop_ids(np.array([record]))[number : number + 1])
    size = made.images[record].shape[:2]
    return place_values(made.values[record], size, view.operations, draws, 255, 2)[0]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 3, "shuffle": True}, {"batch_size": 9}], ids=str)
def test_each_crop_has_its_own(made: Typed, options: Any) -> None:
    views = parse_views(VIEWS)
    seen = []
    for batch in load(made, **options):
        for row, record in enumerate((batch["image_id"] - 1000).tolist()):
            seen.append(record)
            for name in ("label", "info"):
                assert batch[name][row] == made.values[record][name]
            for view, number in ((part, n) for part in views.parts for n in range(part.count)):
                for name, value in expected(made, view, record, number).items():
                    np.testing.assert_array_equal(batch[name][view.name][row][number], value)
    assert sorted(seen) == list(range(9))


def test_masks_show_the_pixels_of_their_crop(made: Typed) -> None:
    """The pixels say where they come from."""
    views = {"one": (3, [A.RandomCrop((24, 30)), A.RandomHorizontalFlip()])}
    for batch in load(made, views):
        image = batch["image"]["one"].numpy().astype(np.int64)
        mask = image[:, :, 0] // 3 // 8 * 16 + image[:, :, 1] // 3 // 8
        np.testing.assert_array_equal(batch["mask"]["one"], mask)
        assert len(np.unique(mask.reshape(-1, 24 * 30), axis=0)) > len(mask)


@pytest.mark.slow
def test_forms(made: Typed) -> None:
    collate: Any = {"boxes": "padded", "labels": "multi_hot", "depth": "optional"}
    plain = load(made)
    found = load(made, columns=(*CARRIED, "depth"), collate=collate)
    for ours, batch in zip(plain, found, strict=True):
        for name, (count, _) in VIEWS.items():
            padded, hot = batch["boxes"][name], batch["labels"][name]
            assert isinstance(padded, Padded)
            assert hot.shape == (len(hot), count, 3)
            for row, number in np.ndindex(*hot.shape[:2]):
                assert torch.equal(
                    padded.values[row, number, : padded.lengths[row, number]], ours["boxes"][name][row][number]
                )
                assert hot[row, number].nonzero()[:, 0].tolist() == ours["labels"][name][row][number].unique().tolist()
                odd = (int(batch["image_id"][row]) - 1000) % 2
                assert (batch["depth"][name][row][number] is None) == bool(odd)
    lists = load(made, [VIEWS["large"][1], VIEWS["small"][1]])[0]
    assert [tuple(each.shape) for each in lists["mask"]] == [(4, 24, 30), (4, 16, 16)]
    assert [len(each) for each in lists["boxes"]] == [4, 4]
    arrays = load(made, output="numpy", channels_last=True)[0]
    assert arrays["mask"]["large"].shape == (4, 2, 24, 30)
    assert arrays["image"]["large"].shape == (4, 2, 24, 30, 3)
    np.testing.assert_array_equal(arrays["mask"]["small"], plain[0]["mask"]["small"])


@pytest.mark.slow
def test_labels_of_boxes_alone(made: Typed) -> None:
    plain, found = load(made), load(made, columns=("image", "labels"))
    assert same([batch["labels"] for batch in found], [batch["labels"] for batch in plain])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operations", [VIEWS["large"][1], VIEWS["small"][1]], ids=["crop", "rotation"])
@pytest.mark.parametrize(
    ("mask", "image", "message"),
    [
        (png(np.zeros((9, 9), np.uint8)), [], "record 2 .*the mask is 9x9, and its image 44x52"),
        (b"no mask", [], "record 2 .*not a PNG"),
        (None, [2], "record 2 "),
    ],
)
def test_what_is_damaged_is_named_or_left_out(
    tmp_path: Path, operations: Any, mask: bytes | None, image: list[int], message: str
) -> None:
    names, views = ("image", "mask", "boxes", "label"), {"a": (2, operations), "b": (1, operations)}
    made = spoilt(tmp_path / "a.h5", {} if mask is None else {2: {"mask": mask}}, names[1:], image)
    with pytest.raises((DecodeError, StoreError), match=message):
        load(made, views, names)
    [batch] = load(made, views, names, on_error="skip")
    [whole] = load(spoilt(tmp_path / "b.h5", {}, names[1:]), views, names)
    assert batch["label"].tolist() == [0, 1, 0]
    for name in ("image", "mask", "boxes"):
        for view in views:
            assert same([*batch[name][view]], [whole[name][view][row] for row in (0, 1, 3)])


def test_what_cannot_follow_is_refused(made: Typed) -> None:
    for operations, columns in (
        ([A.RandomResizedCrop(8), A.AugMix()], ("image", "mask")),
        ([A.RandomResizedCrop(8), lambda x: x], ("image", "boxes")),
    ):
        with pytest.raises(UsageError):
            load(made, {"a": (2, operations)}, columns)
    with pytest.raises(UsageError, match="right would stay whole: leave it out of columns="):
        load(made, columns=("image", "right"))
    with pytest.raises(UsageError, match="collate names the column 'boxes'; the dataset gives mask"):
        load(made, columns=("image", "mask"), collate={"boxes": "padded"})


@pytest.mark.slow
@pytest.mark.parametrize("order", ["late", "ahead"])
def test_on_a_device(made: Typed, simulate: Simulate, order: str) -> None:
    columns, views = ("image", "mask", "boxes", "labels", "label"), {"one": (2, VIEWS["large"][1][:2])}
    options: dict[str, Any] = {"collate": {"boxes": "padded"}, "shuffle": True}
    here = load(made, views, columns, **options)
    with simulate(order):
        assert same(load(made, views, columns, device="cuda:0", **options), here)
