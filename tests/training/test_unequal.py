"""Batches of images that differ in size: operations of detection, lists and padded batches, and what goes along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import packstore
from packstore import PackedDataset, PackedLoader, UsageError
from packstore import augment as A  # noqa: N812
from tests.internals import BatchBoxes, DrawnOperations, Draws, Padded, parse_augment
from tests.makers.batches import go_on, same
from tests.makers.stores import change
from tests.makers.torchvision import skip_before
from tests.makers.typed import Typed, make_typed, spoilt
from tests.makers.typed import png as typed_png

CARRIED = ("image", "mask", "raw", "deep", "boxes", "labels", "points", "corners", "image_id")
DETECTION = [A.RandomPhotometricDistort(), A.RandomZoomOut((9, 8, 7)), A.RandomIoUCrop(), A.RandomHorizontalFlip()]
DETR = [
    A.RandomHorizontalFlip(),
    A.RandomChoice(
        [
            A.RandomShortestSize([30, 50, 70], max_size=90),
            A.Compose(
                [A.RandomShortestSize([40, 50]), A.RandomCrop(24), A.RandomShortestSize([30, 50, 70], max_size=90)]
            ),
        ]
    ),
]


def make_loader(made: Typed, columns: Any = CARRIED, **options: Any) -> PackedLoader:
    options = {"batch_size": 4, "collate": {"image": "list"}, **options}
    return PackedLoader(PackedDataset(made.path, columns=columns, output="dict"), **options)


def load(made: Typed, columns: Any = CARRIED, **options: Any) -> list[dict[str, Any]]:
    return list(make_loader(made, columns, **options))


def flat(batches: list[dict[str, Any]], name: str) -> list[Any]:
    return [value for batch in batches for value in batch[name]]


LISTS: dict[str, list[Any]] = {
    "detection": DETECTION,
    "detr": DETR,
    "jitter": [
        A.ScaleJitter(60, (0.3, 1.5)),
        A.RandomVerticalFlip(),
        A.RandomErasing(1.0),
        A.RandomZoomOut(3, (1, 1.5), p=1),
    ],
    "twice": [A.RandomResize(30, 60), A.RandomHorizontalFlip(), A.RandomResizedCrop((20, 30)), A.RandomZoomOut(5, p=1)],
    "into one size": [*DETECTION, A.Resize((40, 48))],
    "padded": [
        A.RandomShortestSize([20, 30]),
        A.RandomCrop(35, pad_if_needed=True),
        A.ColorJitter(0.4),
        A.RandomCrop(30, 4),
    ],
}


def by_torchvision(tv: Any, made: Typed, number: int, ops: list[Any], draws: Draws) -> dict[str, Any]:
    """What torchvision's functions make of a record, with the parameters that were drawn for it alone."""
    v2, types, values = tv.transforms.v2.functional, tv.tv_tensors, made.values[number]
    size = made.images[number].shape[:2]
    course = DrawnOperations(
        np.array([size]), ops, draws, BatchBoxes(values["boxes"], np.zeros(len(values["boxes"]), np.int64))
    )
    now: dict[str, Any] = {
        "image": types.Image(torch.from_numpy(made.images[number]).permute(2, 0, 1)),
        "raw": types.Mask(torch.from_numpy(np.asarray(values["raw"]))),
        "boxes": types.BoundingBoxes(torch.from_numpy(values["boxes"]), format="XYXY", canvas_size=size),
    }
    keep = torch.ones(len(values["boxes"]), dtype=torch.bool)
    for stage in course._stages:
        if stage.move is None:
            if stage.program is not None:
                image = stage.run_on_image(0, torch.as_tensor(now["image"])[None])[0]
                now["image"] = types.Image(image)
                if any(int(code) == 20 for code in stage.program["code"][0]):  # FLIP
                    now = {k: v2.vertical_flip(v) if k != "image" else v for k, v in now.items()}
            continue
        cut = stage.cuts[0]
        now = {k: v2.crop(v, *cut.box) for k, v in now.items()}
        if cut.resizes:
            assert cut.size[1] > 1  # to images one pixel wide torch 2.13 resizes wrongly
            now = {k: v2.resize(v, list(cut.size), antialias=True) for k, v in now.items()}
        top, left, height, width = cut.window
        if stage.move.drops is not None and stage.move.drops[0]:
            b = torch.as_tensor(now["boxes"])
            x, y = (b[:, 0] + b[:, 2]) * 0.5, (b[:, 1] + b[:, 3]) * 0.5
            keep &= (left < x) & (x < left + width) & (top < y) & (y < top + height)
        sides = [max(0, -left), max(0, -top), max(0, left + width - cut.size[1]), max(0, top + height - cut.size[0])]
        if any(sides):
            fill = list(cut.fill) if isinstance(cut.fill, tuple) else cut.fill
            now = {k: v2.pad(v, sides, fill=fill if k == "image" else 0) for k, v in now.items()}
        now = {k: v2.crop(v, max(0, top), max(0, left), height, width) for k, v in now.items()}
        if cut.flip:
            now = {k: v2.horizontal_flip(v) for k, v in now.items()}
    return {**now, "keep": keep}


@pytest.mark.parametrize("kind", ["sizes", "pixels"])
@pytest.mark.parametrize("name", LISTS)
def test_images_masks_and_boxes_are_those_of_torchvision(
    tv: Any, typed_stores: dict[str, Typed], kind: str, name: str
) -> None:
    made, ops = typed_stores[kind], LISTS[name]
    one_size = name in ("into one size", "padded")
    batches = load(made, augment=ops, seed=7, shuffle=True, min_area=4, collate=None if one_size else {"image": "list"})
    shapes = set()
    for place, number in enumerate(int(n) - 1000 for n in flat(batches, "image_id")):
        expected = by_torchvision(tv, made, number, ops, Draws(7, 0, np.array([number])))
        image = flat(batches, "image")[place]
        shapes.add(tuple(image.shape))
        assert torch.equal(image, torch.as_tensor(expected["image"])), number
        assert torch.equal(flat(batches, "raw")[place], torch.as_tensor(expected["raw"])), number
        boxes = torch.as_tensor(expected["boxes"])
        large = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) >= 4
        found = flat(batches, "boxes")[place]
        torch.testing.assert_close(found, boxes[large & expected["keep"]], atol=1e-4, rtol=0)
        labels = torch.as_tensor(made.values[number]["labels"])[large & expected["keep"]]
        assert torch.equal(flat(batches, "labels")[place], labels)
    assert (len(shapes) == 1) == one_size


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
def test_batches_are_the_same_whoever_makes_them(typed_stores: dict[str, Typed], name: str) -> None:
    made, options = typed_stores["sizes"], {"augment": LISTS[name], "seed": 3, "shuffle": True}
    batches = load(made, workers=1, **options)
    assert same(batches, load(made, workers=3, **options))
    assert same(flat_by_id(batches), flat_by_id(load(made, batch_size=2, **options)))
    begun, resumed = (make_loader(made, **options) for _ in range(2))
    assert same(go_on(begun, resumed), batches[1:])


def flat_by_id(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    order = np.argsort([int(n) for n in flat(batches, "image_id")])
    return [{name: [flat(batches, name)[place] for place in order] for name in batches[0]}]


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [None, "imagenet"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_padded_batches_and_arrays_hold_the_same_images(
    typed_stores: dict[str, Typed], normalize: str | None, channels_last: bool
) -> None:
    options: dict[str, Any] = {"augment": DETR, "normalize": normalize, "channels_last": channels_last, "mask_fill": 9}
    each = load(typed_stores["sizes"], **options)
    for batch, padded in zip(each, load(typed_stores["sizes"], collate={"image": "padded"}, **options), strict=True):
        for name in ("image", "mask"):
            assert isinstance(padded[name], Padded)
            values, sizes = padded[name]
            fill = 9 if name == "mask" else 0
            for image, row, (height, width) in zip(batch[name], values, sizes.tolist(), strict=True):
                assert image.shape[-2:] == (height, width)
                assert torch.equal(row[..., :height, :width], image)
                rest = row.clone()
                rest[..., :height, :width] = fill
                assert (rest == fill).all()
    arrays = load(typed_stores["sizes"], output="numpy", **options)
    for image, array in zip(flat(each, "image"), flat(arrays, "image"), strict=True):
        assert np.array_equal(image.permute(1, 2, 0) if channels_last else image, array)


def test_the_end_of_a_list_decides_on_the_form(typed_stores: dict[str, Typed]) -> None:
    made = typed_stores["sizes"]
    batches = load(made, augment=[*DETR, A.Resize((30, 40))], collate=None, normalize="imagenet")
    assert [batch["image"].shape for batch in batches] == [(4, 3, 30, 40), (4, 3, 30, 40), (1, 3, 30, 40)]
    as_list = load(made, augment=[*DETR, A.Resize((30, 40))], normalize="imagenet")
    assert same(flat_by_id(batches), flat_by_id(as_list))
    assert isinstance(as_list[0]["image"], list)
    with pytest.raises(UsageError, match=r"collate={'image': 'list'}"):
        load(made, augment=DETR, collate=None)


@pytest.mark.slow
def test_functions_of_the_user_run_image_by_image(typed_stores: dict[str, Typed]) -> None:
    def darker(images: torch.Tensor) -> torch.Tensor:
        assert len(images) == 1
        return images // 2

    def noisy(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return image + torch.randint(0, 9, image.shape, generator=generator, dtype=torch.uint8)

    made, columns = typed_stores["sizes"], ("image", "image_id")
    plain = load(made, columns, augment=DETR)
    dark = load(made, columns, augment=[*DETR, darker])
    assert same([image // 2 for image in flat(plain, "image")], flat(dark, "image"))
    runs = [load(made, columns, augment=[A.PerImage(noisy, generator=True), *DETR], workers=n) for n in (1, 3)]
    assert same(*runs)
    assert not same(runs[0], load(made, columns, augment=[torch.clone, *DETR]))
    cut = load(made, columns, augment=[A.RandomZoomOut(), lambda images: images[..., :9, :9], A.RandomHorizontalFlip()])
    assert {image.shape for image in flat(cut, "image")} == {(3, 9, 9)}  # the flip is drawn for what the function gives
    with pytest.raises(UsageError, match=r"should give one image \(1, C, H, W\)"):
        load(made, columns, augment=[A.RandomZoomOut(), lambda images: images[0]])


@pytest.mark.slow
def test_damaged_records_are_named_or_left_out(tmp_path: Path) -> None:
    made = make_typed(tmp_path / "a.lmdb", CARRIED, 9)
    options: dict[str, Any] = {"augment": DETECTION, "seed": 1}
    sound = flat(load(made, **options), "image")
    change(made.path, typed_png(made.images[4]), 60)
    with pytest.raises(Exception, match="record 4"):
        load(made, **options)
    batches = load(made, on_error="skip", **options)
    assert [int(n) - 1000 for n in flat(batches, "image_id")] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert same(flat(batches, "image"), [*sound[:4], *sound[5:]])


@pytest.mark.parametrize("normalize", [None, "imagenet"])
def test_a_batch_of_damaged_records_is_empty_in_every_form(tmp_path: Path, normalize: str | None) -> None:
    made = spoilt(tmp_path / "a.h5", {}, ["mask", "label"], image=[0, 1])
    for form in ("list", "padded"):
        options: dict[str, Any] = {"augment": [A.RandomShortestSize([20, 30])], "normalize": normalize}
        empty, full = load(
            made, ("image", "mask", "label"), batch_size=2, on_error="skip", collate={"image": form}, **options
        )
        assert (len(empty["label"]), len(full["label"])) == (0, 2)
        for name in ("image", "mask"):
            if form == "list":
                assert (len(empty[name]), len(full[name])) == (0, 2)
                continue
            values, lengths = empty[name]
            assert values.dtype == full[name].values.dtype
            assert values.shape == (0, *full[name].values.shape[1:-2], 0, 0)
            assert lengths.shape == (0, 2)


@pytest.mark.parametrize("ops", [[A.RandomResizedCrop(24)], [A.RandomShortestSize([20, 30])]])
def test_a_batch_of_damaged_records_makes_no_mosaics(tmp_path: Path, ops: list[Any]) -> None:
    made = spoilt(tmp_path / "a.h5", {}, ["boxes", "labels"], image=[0, 1])
    options: dict[str, Any] = {"batch_size": 2, "on_error": "skip", "augment": ops, "mix": A.Mosaic(32), "collate": {}}
    empty, full = load(made, ("image", "boxes", "labels"), **options)
    assert (empty["image"].shape[:2], empty["boxes"], empty["labels"]) == ((0, 3), [], [])
    assert full["image"].shape == (2, 3, 32, 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ssd", "detr"])
def test_recipes_of_detection_load(typed_stores: dict[str, Typed], name: str) -> None:
    columns, found = ("image", "boxes", "labels"), A.recipe(name)
    options: dict[str, Any] = {"collate": None if name == "ssd" else {"image": "list"}, "batch_size": 9}
    [batch], again = (load(typed_stores["sizes"], columns, augment=given, **options) for given in (name, list(found)))
    assert parse_augment(name) == list(found)
    assert same([batch], again)
    for image, boxes, labels in zip(batch["image"], batch["boxes"], batch["labels"], strict=True):
        height, width = image.shape[1:]
        assert (height, width) == (300, 300) if name == "ssd" else 480 <= max(height, width) <= 1333
        assert len(boxes) == len(labels)
        assert bool((boxes >= 0).all())
        assert bool((boxes <= torch.tensor([width, height] * 2)).all())


@pytest.mark.parametrize("sizes", ["one size", "many sizes"])
@pytest.mark.parametrize("p", [1.0, 0.0])
def test_a_mosaic_shows_four_images_with_their_boxes_and_masks(tmp_path: Path, sizes: str, p: float) -> None:
    """Each image has one colour, with a box around it, and a mask of its number."""
    rng, fields = np.random.default_rng(3), {"image": "image", "mask": "mask", "boxes": "boxes"}
    labels = packstore.Labels(("ant", "bee", "cat"), of="boxes")
    with packstore.Writer(tmp_path / "a.lmdb", {**fields, "labels": labels}, encoding="uint8") as writer:
        for number in range(12):
            height, width = (20, 30) if sizes == "one size" else rng.integers(8, 40, 2).tolist()
            pixels, boxes = np.full((height, width, 3), 10 + number, np.uint8), [[0, 0, width, height]]
            writer.add(key=str(number), image=pixels, mask=pixels[..., 0], boxes=boxes, labels=[number % 3])
    made = Typed(path=tmp_path / "a.lmdb")
    options: dict[str, Any] = {"mix": A.Mosaic((40, 50), p=p, fill=1), "mask_fill": 1, "collate": None, "min_area": 1}
    options |= {"augment": [A.RandomHorizontalFlip()] if sizes == "one size" else [A.RandomZoomOut(p=0)], "seed": 5}
    columns, sources = ("image", "mask", "boxes", "labels", "key"), []
    batches = load(made, columns, **options)
    for batch in batches:
        assert batch["image"].shape == (4, 3, 40, 50)
        assert torch.equal(batch["image"][:, 0].int(), batch["mask"].int())
        for place, image in enumerate(batch["image"][:, 0].numpy()):
            covered = np.zeros_like(image, bool)
            for box, label in zip(batch["boxes"][place], batch["labels"][place], strict=True):
                left, top, right, bottom = map(int, box.tolist())
                colours = np.unique(image[top:bottom, left:right])
                assert len(colours) == 1
                assert (int(colours[0]) - 10) % 3 == int(label)
                assert not covered[top:bottom, left:right].any()
                covered[top:bottom, left:right] = True
                sources.append(int(colours[0]) - 10)
            assert ((image != 1) == covered).all()
            assert int(batch["key"][place]) + 10 in image
    assert len(sources) > 30 if p else sources == list(range(12))
    assert same(batches, load(made, columns, workers=3, **options))
    with pytest.raises(UsageError, match="'labels'"):
        load(made, ("image", "labels"), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": DETECTION, "columns": ("image", "image_id")}, "RandomIoUCrop chooses by boxes"),
        ({"augment": DETECTION, "columns": ("image", "boxes", "right")}, "right cannot follow"),
        ({"augment": DETECTION, "resident": True, "columns": ("image",)}, "one by one"),
        ({"augment": DETECTION, "masking": "random"}, "masking"),
        ({"collate": {"image": "multi_hot"}}, "images are a list, or padded"),
    ],
)
def test_what_cannot_be_is_refused(typed_stores: dict[str, Typed], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(typed_stores["pixels"], **{"columns": CARRIED, **options})


@pytest.mark.slow
@pytest.mark.parametrize("size", [(100, 60), (50, 90)])
def test_zooming_out_draws_as_torchvision_does(tv: Any, size: tuple[int, int]) -> None:
    skip_before(21)
    count, blank = 4000, torch.zeros(3, *size, dtype=torch.uint8)
    theirs = tv.transforms.v2.RandomZoomOut(p=1)
    torch.manual_seed(0)
    pads = np.array([theirs.make_params([blank])["padding"] for _ in range(count)])  # left, top, right, bottom
    crops = A.RandomZoomOut(p=1).plan_whole_images(np.tile(np.array([size]), (count, 1)), Draws(1, 0, np.arange(count)))
    window = crops.window
    ours = np.stack([-window[:, 1], -window[:, 0], window[:, 3] - size[1], window[:, 2] - size[0]], 1)
    ours[:, 2:] -= ours[:, :2]
    for column in range(4):
        assert chi_square(pads[:, column], ours[:, column]) < 40
    whole = np.tile(np.array([size]), (count, 1))
    happens = A.RandomZoomOut(p=0.3).plan_whole_images(whole, Draws(1, 0, np.arange(count)))
    assert 0.27 < (happens.window[:, 2] > size[0]).mean() < 0.33


def chi_square(one: Any, other: Any) -> float:
    """Of the shares of eight ranges."""
    edges = np.unique(np.quantile(np.concatenate([one, other]), np.linspace(0, 1, 9)[1:-1]))
    shares = np.array([np.bincount(np.searchsorted(edges, x), minlength=len(edges) + 1) for x in (one, other)])
    expected = shares.sum(0) / 2
    return float(((shares - expected) ** 2 / expected.clip(1)).sum())


@pytest.mark.slow
@pytest.mark.parametrize("count", [500, pytest.param(1500, marks=pytest.mark.soak)])
def test_crops_by_boxes_are_drawn_as_torchvision_draws_them(tv: Any, count: int) -> None:
    size = (90, 120)
    boxes = np.array([[10, 10, 60, 50], [70, 30, 110, 85], [5, 60, 20, 70]], np.float32)
    of_torch = tv.tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=size)
    theirs, blank = tv.transforms.v2.RandomIoUCrop(), torch.zeros(3, *size, dtype=torch.uint8)
    torch.manual_seed(0)
    drawn = [theirs.make_params([blank, of_torch]) for _ in range(count)]
    expected = np.array([[p["top"], p["left"], p["height"], p["width"]] if p else [0, 0, *size] for p in drawn])
    rows = np.repeat(np.arange(count), len(boxes))
    crops = A.RandomIoUCrop().plan_around(
        np.tile(np.array([size]), (count, 1)),
        BatchBoxes(np.tile(boxes, (count, 1)), rows),
        Draws(2, 0, np.arange(count)),
    )
    for column in range(4):
        assert chi_square(expected[:, column], crops.window[:, column]) < 40
    whole = [(each == [0, 0, *size]).all(1).mean() for each in (expected, crops.window)]
    assert abs(whole[0] - whole[1]) < 0.06


@given(st.data())
def test_cuts_one_after_the_other_are_one_cut(data: st.DataObject) -> None:
    """Any chain, run operation by operation or joined."""
    image = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (1, 3, 23, 31), np.uint8))
    numbers = st.integers(0, 9)
    ops = data.draw(
        st.lists(
            st.one_of(
                st.just(A.RandomHorizontalFlip()),
                st.builds(lambda a, b, c, d: A.Pad((a, b, c, d), fill=7), numbers, numbers, numbers, numbers),
                st.builds(lambda a: A.Pad(a % 4, padding_mode="edge"), numbers),
                st.builds(lambda a, b: A.CenterCrop((5 + 4 * a, 9 + 3 * b)), numbers, numbers),
                st.builds(lambda a, b: A.Resize((9 + 3 * a, 5 + 4 * b)), numbers, numbers),
                st.just(A.RandomShortestSize([12, 20])),
                st.just(A.RandomZoomOut(4, (1, 2))),
                st.just(A.RandomResizedCrop((14, 17))),
            ),
            max_size=6,
        )
    )
    course = DrawnOperations(np.array([[23, 31]]), ops, Draws(data.draw(st.integers(0, 99)), 0, np.array([5])))
    expected = image
    for stage in course._stages:
        expected = stage.cuts[0](expected)
    assert torch.equal(course.run_on_image(0, image), expected)
    cut, done = course.first_cut(0)
    assert torch.equal(course.run_on_image(0, cut(image), done), expected)
    assert tuple(expected.shape[-2:]) == tuple(course.placement.sizes[0])


def test_what_is_no_operation_is_refused_for_lists_of_images_too(stores: Any) -> None:
    with pytest.raises(UsageError, match=r"augment\[0\] is not callable: 3"):
        PackedLoader(PackedDataset(stores("cifar.pth"), "train"), 4, augment=[3], collate={"image": "list"})


def test_an_operation_that_does_not_fit_the_images_skips_no_record(stores: Any) -> None:
    crop = A.RandomResizedCrop(20, interpolation="lanczos")  # of bytes alone
    loader = PackedLoader(
        PackedDataset(stores("floats.pth"), "train"), 4, augment=crop, collate={"image": "list"}, on_error="skip"
    )
    with pytest.raises(UsageError, match="lanczos resizes bytes") as caught:
        next(iter(loader))
    assert "record 0" in caught.value.__notes__[0]
