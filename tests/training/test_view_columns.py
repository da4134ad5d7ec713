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
from tests.internals import (
    DecodeError,
    Draws,
    Padded,
    StoreError,
    UsageError,
    View,
    parse_views,
    place_boxes,
    place_mask,
    place_points,
    plan_targets,
)
from tests.makers.typed import COLUMNS, Typed, make_typed, png, spoilt

NAMES = [column.name for column in COLUMNS]
CARRIED = ("image", "mask", "raw", "boxes", "labels", "points", "corners", "label", "info", "image_id")
VIEWS: Any = {
    "large": (2, [A.RandomCrop((24, 30)), A.RandomHorizontalFlip(), A.ColorJitter(0.3)]),
    "small": (3, [A.RandomResizedCrop(16, (0.2, 0.6)), A.RandomRotation(20), A.RandomHorizontalFlip()]),
}


@pytest.fixture(scope="module", params=["sizes", "files", "pixels"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Typed:
    """Image files of many sizes, in shards; image files of one size; and pixels."""
    folder = tmp_path_factory.mktemp("typed")
    if request.param == "sizes":
        return make_typed(folder / "sizes.lmdb", NAMES, 9, shard_size=9000)
    encoding = "original" if request.param == "files" else "uint8"
    return make_typed(folder / f"{request.param}.h5", NAMES, 9, size=(44, 52), encoding=encoding)


def load(made: Typed, views: Any = VIEWS, columns: Any = CARRIED, **options: Any) -> list[dict[str, Any]]:
    options = {"batch_size": 4, "seed": 5, "mask_fill": 255, "min_area": 2} | options
    return list(PackedLoader(PackedDataset(made.path, columns=columns, output="dict"), views=views, **options))


def expected(made: Typed, view: View, record: int, number: int) -> dict[str, Any]:
    """Mask, boxes and points of crop ``number`` of a record, worked out by themselves."""
    values, zero = made.values[record], np.zeros(1, np.int64)
    draws = Draws(view.derive_seed(5), 0, view.all_crop_ids(np.array([record]))[number : number + 1])
    placement = plan_targets(np.array([made.images[record].shape[:2]]), view.operations, draws)
    boxes, keep = place_boxes(placement, values["boxes"], zero.repeat(len(values["boxes"])), 2)
    points = place_points(placement, values["points"], zero.repeat(len(values["points"])))
    return {
        "mask": place_mask(placement, 0, values["raw"], 255),
        "boxes": boxes[keep],
        "labels": values["labels"][keep],
        "points": points[keep],
        "corners": place_points(placement, values["corners"], zero.repeat(2)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 3, "shuffle": True}, {"batch_size": 9}], ids=str)
def test_each_crop_has_its_own(made: Typed, options: Any) -> None:
    views = parse_views(VIEWS)
    assert views is not None
    seen = []
    for batch in load(made, **options):
        for row, record in enumerate((batch["image_id"] - 1000).tolist()):
            seen.append(record)
            assert batch["label"][row] == made.values[record]["label"]
            assert batch["info"][row] == made.values[record]["info"]
            for view in views.parts:
                for number in range(view.count):
                    wanted = expected(made, view, record, number)
                    np.testing.assert_array_equal(batch["mask"][view.name][row, number], wanted["mask"])
                    np.testing.assert_array_equal(batch["raw"][view.name][row, number], wanted["mask"])
                    for name in ("boxes", "labels", "points", "corners"):
                        np.testing.assert_array_equal(batch[name][view.name][row][number], wanted[name])
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


def test_labels_of_boxes_alone(made: Typed) -> None:
    plain, found = load(made), load(made, columns=("image", "labels"))
    for ours, batch in zip(plain, found, strict=True):
        for name in VIEWS:
            assert [[each.tolist() for each in row] for row in batch["labels"][name]] == [
                [each.tolist() for each in row] for row in ours["labels"][name]
            ]


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
    batch = load(made, views, names, on_error="skip")[0]
    whole = load(spoilt(tmp_path / "b.h5", {}, names[1:]), views, names)[0]
    assert batch["label"].tolist() == [0, 1, 0]
    for view in views:
        for column in ("image", "mask"):
            assert torch.equal(batch[column][view], whole[column][view][[0, 1, 3]])
        for row, ours in zip((0, 1, 3), batch["boxes"][view], strict=True):
            assert all(map(torch.equal, ours, whole["boxes"][view][row]))


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


@pytest.mark.parametrize("order", ["late", "ahead"])
def test_on_a_device(made: Typed, simulate: Simulate, order: str) -> None:
    columns, views = ("image", "mask", "boxes", "labels", "label"), {"one": (2, VIEWS["large"][1][:2])}
    here = load(made, views, columns, collate={"boxes": "padded"}, shuffle=True)
    with simulate(order):
        dataset = PackedDataset(made.path, columns=columns, output="dict", device="cuda:0")
        options: Any = {"seed": 5, "mask_fill": 255, "min_area": 2, "collate": {"boxes": "padded"}}
        for ours, theirs in zip(PackedLoader(dataset, 4, True, views=views, **options), here, strict=True):
            for name in ("image", "mask"):
                assert torch.equal(ours[name]["one"].cpu(), theirs[name]["one"])
            for part, same in zip(ours["boxes"]["one"], theirs["boxes"]["one"], strict=True):
                assert torch.equal(part.cpu(), same)
            assert [[each.tolist() for each in row] for row in ours["labels"]["one"]] == [
                [each.tolist() for each in row] for row in theirs["labels"]["one"]
            ]
