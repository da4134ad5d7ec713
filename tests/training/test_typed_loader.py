"""``PackedLoader`` with columns of every type: carried through the operations, collated, missing, damaged, resumed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

import packstore
from packstore import CorruptRecordError, DecodeError, PackedDataset, PackedLoader, SizeError, StoreError, UsageError
from packstore.augment import (
    CenterCrop,
    Cutout,
    InPlace,
    PerImage,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from tests.internals import Draws, Padded, place_boxes, place_mask, place_points, plan_targets
from tests.makers import typed
from tests.makers.stores import change
from tests.makers.torchvision import import_torchvision
from tests.makers.typed import COLUMNS, Typed, make_typed, spoilt

NAMES = [column.name for column in COLUMNS]
SIZE = (44, 52)
CARRIED = ("image", "mask", "raw", "deep", "boxes", "labels", "points", "corners", "right", "image_id")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Typed]:
    """Image files of many sizes, in shards; image files of one size; and pixels."""
    folder = tmp_path_factory.mktemp("typed")
    return {
        "sizes": make_typed(folder / "sizes.lmdb", NAMES, 9, shard_size=9000),
        "files": make_typed(folder / "files.pth", NAMES, 9, size=SIZE),
        "pixels": make_typed(folder / "pixels.h5", NAMES, 9, size=SIZE, encoding="uint8"),
    }


def load(made: Typed, columns: Sequence[str] = CARRIED, epoch: int = 0, **options: Any) -> list[dict[str, Any]]:
    """The batches of an epoch, as dicts."""
    loader = PackedLoader(PackedDataset(made.path, columns=columns, output="dict"), **{"batch_size": 4, **options})
    loader.set_epoch(epoch)
    return list(loader)


def records_of(batches: list[dict[str, Any]]) -> list[int]:
    return [int(n) - 1000 for batch in batches for n in batch["image_id"]]


def rows(batches: list[dict[str, Any]], name: str) -> list[Any]:
    return [value for batch in batches for value in batch[name]]


OF_ONE_SIZE = ("flip and crop", "padding", "alternating")
"""Lists of operations for images of one size."""


def cases(operations: dict[str, list[Any]]) -> list[tuple[str, str]]:
    """Each list with each store that it is for."""
    kinds = ("sizes", "files", "pixels")
    return [(kind, name) for kind in kinds for name in operations if kind != "sizes" or name not in OF_ONE_SIZE]


EXACT = {
    "crop and flip": [RandomCrop((24, 30)), RandomHorizontalFlip()],
    "centre": [CenterCrop(30), RandomHorizontalFlip(1)],
    "two crops": [RandomCrop(38), RandomCrop(20)],
    "flip and crop": [RandomHorizontalFlip(), RandomCrop(25)],
    "padding": [RandomCrop(40, padding=6), RandomHorizontalFlip()],
    "beyond": [CenterCrop(70)],
    "cutout": [RandomCrop(24), Cutout(3), RandomHorizontalFlip()],
    "alternating": [RandomHorizontalFlip(alternating=True)],
}


@pytest.mark.parametrize(("kind", "name"), cases(EXACT))
def test_what_is_cropped_and_mirrored_goes_with_the_pixels(stores: dict[str, Typed], kind: str, name: str) -> None:
    made = stores[kind]
    batches = load(made, augment=EXACT[name], shuffle=True, seed=3, epoch=1, mask_fill=255, min_area=0)
    found = {column: rows(batches, column) for column in CARRIED}
    assert sorted(records_of(batches)) == list(range(9))
    for place, number in enumerate(records_of(batches)):
        values, image = made.values[number], found["image"][place].numpy().astype(np.int64)
        inside = image[2] > 0
        from_rows, from_columns = image[0] // 3, image[1] // 3  # the pixels say where they come from
        mask = np.where(inside, from_rows // 8 * 16 + from_columns // 8, 255)
        compared = inside if name == "cutout" else np.ones_like(inside)
        np.testing.assert_array_equal(found["mask"][place][compared], mask[compared])
        np.testing.assert_array_equal(found["raw"][place][compared], mask[compared])
        np.testing.assert_array_equal(found["deep"][place][inside], mask[inside] * 200)
        if name != "cutout":  # which leaves further images alone
            right = made.images[number][:, ::-1][from_rows, from_columns]
            np.testing.assert_array_equal(found["right"][place].numpy().transpose(1, 2, 0)[inside], right[inside])

        row, column = np.argwhere(inside[:, :-1] & inside[:, 1:])[0]
        mirrored = bool(from_columns[row, column + 1] < from_columns[row, column])
        down = row - from_rows[row, column]
        corners, sign = values["corners"], -1 if mirrored else 1
        across = column + sign * (corners[:, 0] - from_columns[row, column])
        np.testing.assert_allclose(found["corners"][place], np.stack([across, corners[:, 1] + down], 1), atol=1e-4)
        boxes = values["boxes"]
        sides = column + mirrored + sign * (boxes[:, 0::2] - from_columns[row, column])
        moved = np.stack([sides.min(1), boxes[:, 1] + down, sides.max(1), boxes[:, 3] + down], 1)
        limits = [image.shape[2], image.shape[1]] * 2
        np.testing.assert_allclose(found["boxes"][place], np.clip(moved, 0, limits), atol=1e-4)


RESIZED = {
    "crop": [RandomResizedCrop(24), RandomHorizontalFlip()],
    "resize": [Resize((30, 20)), RandomCrop(18)],
    "flip first": [RandomHorizontalFlip(), RandomResizedCrop((20, 16))],
    "twice": [Resize((40, 36)), RandomResizedCrop((20, 16)), RandomHorizontalFlip()],
}


@pytest.mark.parametrize(("kind", "name"), cases(RESIZED))
def test_what_is_resized_goes_where_the_functions_put_it(stores: dict[str, Typed], kind: str, name: str) -> None:
    made, ops = stores[kind], RESIZED[name]
    batches = load(made, augment=ops, shuffle=True, seed=5, min_area=9, min_visible=0.3)
    found = {column: rows(batches, column) for column in CARRIED}
    dropped = 0
    for place, number in enumerate(records_of(batches)):
        values = made.values[number]
        sizes = np.array([made.images[number].shape[:2]])
        placement = plan_targets(sizes, ops, Draws(5, 0, np.array([number])))
        mask = np.asarray(values["raw"])
        np.testing.assert_array_equal(found["mask"][place], place_mask(placement, 0, mask))
        np.testing.assert_array_equal(found["deep"][place], place_mask(placement, 0, mask.astype(np.int32) * 200))
        alone = np.zeros(len(values["boxes"]), np.int64)
        boxes, keep = place_boxes(placement, values["boxes"], alone, 9, 0.3)
        np.testing.assert_array_equal(found["boxes"][place], boxes[keep])
        np.testing.assert_array_equal(found["labels"][place], values["labels"][keep])
        np.testing.assert_array_equal(found["points"][place], place_points(placement, values["points"], alone)[keep])
        np.testing.assert_array_equal(
            found["corners"][place], place_points(placement, values["corners"], np.zeros(2, np.int64))
        )
        dropped += (~keep).sum()
    assert dropped
    alone = load(made, ("image", "image_id"), augment=ops, shuffle=True, seed=5)
    assert all(torch.equal(a["image"], b["image"]) for a, b in zip(alone, batches, strict=True))
    right = load(made, ("right", "image"), augment=ops, shuffle=True, seed=5)
    assert all(torch.equal(a["right"], b["right"]) for a, b in zip(right, batches, strict=True))


def test_labels_stay_with_boxes_that_are_not_asked_for(stores: dict[str, Typed]) -> None:
    ops = [RandomResizedCrop(24)]
    with_boxes = load(stores["sizes"], augment=ops, min_visible=0.5)
    for columns in (("image", "labels"), ("labels", "image", "points")):
        batches = load(stores["sizes"], columns, augment=ops, min_visible=0.5)
        for name in {"labels", "points"} & {*columns}:
            for a, b in zip(rows(batches, name), rows(with_boxes, name), strict=True):
                assert torch.equal(a, b)


def test_without_operations_nothing_moves(stores: dict[str, Typed]) -> None:
    made = stores["files"]
    batch = load(made, ("image", *NAMES, "key"), batch_size=9, collate={"caption": "optional", **_OPTIONAL})[0]
    assert batch["mask"].shape == (9, *SIZE)
    assert (batch["mask"].dtype, batch["raw"].dtype, batch["deep"].dtype) == (torch.uint8, torch.uint8, torch.int32)
    for number, values in enumerate(made.values):
        np.testing.assert_array_equal(batch["mask"][number], values["raw"])
        np.testing.assert_array_equal(batch["deep"][number], values["deep"].astype(np.int32))
        for name in ("boxes", "labels", "points", "corners", "tags", "track"):
            assert batch[name][number].numpy().dtype == np.asarray(values[name]).dtype
            np.testing.assert_array_equal(batch[name][number], values[name])
        for name in ("caption", "info", "blob"):
            assert batch[name][number] == values[name]
        assert batch["key"][number] == f"{number:04}.png"
        weight, depth = batch["weight"][number], batch["depth"][number]
        assert (weight is None, depth is None) == (values["weight"] is None, values["depth"] is None)
        if weight is not None:
            assert float(weight) == values["weight"]
            np.testing.assert_array_equal(depth, np.asarray(Image.open(io.BytesIO(values["depth"]))).astype(np.int32))
        np.testing.assert_array_equal(batch["right"][number], made.images[number][:, ::-1].transpose(2, 0, 1))
    assert batch["label"].tolist() == [n % 3 for n in range(9)]
    assert (batch["vector"].shape, batch["vector"].dtype) == ((9, 5), torch.float16)
    assert (batch["brain"].dtype, batch["crowd"].dtype) == (torch.bfloat16, torch.bool)


_OPTIONAL: dict[str, Any] = {"weight": "optional", "depth": "optional"}


def test_forms_of_batches(stores: dict[str, Typed]) -> None:
    made = stores["files"]
    forms: dict[str, Any] = {"boxes": "padded", "labels": "padded", "tags": "multi_hot", "track": "padded"}
    batch = load(made, ("image", "boxes", "labels", "tags", "track"), batch_size=9, collate=forms)[0]
    assert isinstance(batch["boxes"], Padded)
    counts = [len(values["boxes"]) for values in made.values]
    assert batch["boxes"].lengths.tolist() == counts
    assert batch["boxes"].values.shape == (9, max(counts), 4)
    assert batch["labels"].values.shape == (9, max(counts))
    assert batch["track"].values.dtype == torch.int16
    assert (batch["tags"].shape, batch["tags"].dtype) == ((9, 3), torch.float32)
    for number, values in enumerate(made.values):
        np.testing.assert_array_equal(batch["boxes"].values[number, : counts[number]], values["boxes"])
        assert not batch["boxes"].values[number, counts[number] :].any()
        np.testing.assert_array_equal(batch["labels"].values[number, : counts[number]], values["labels"])
        assert batch["tags"][number].nonzero().flatten().tolist() == sorted(values["tags"].tolist())


def test_optional_columns_of_all_kinds(stores: dict[str, Typed]) -> None:
    optional: dict[str, Any] = dict.fromkeys(("image_id", "boxes", "mask", "right", "info"), "optional")
    batch = load(stores["files"], ("image", *optional), collate=optional)[0]
    for name in optional:
        assert type(batch[name]) is list
        assert len(batch[name]) == 4
    assert [int(n) for n in batch["image_id"]] == [1000, 1001, 1002, 1003]
    assert torch.equal(batch["mask"][1], torch.from_numpy(stores["files"].values[1]["raw"]))


@pytest.mark.parametrize("name", ["caption", "weight", "depth"])
def test_a_missing_value_is_an_error(stores: dict[str, Typed], name: str) -> None:
    for policy in ("raise", "skip"):
        with pytest.raises(UsageError, match=rf"record 1 \(0001.png\).*no '{name}'.*optional"):
            load(stores["files"], ("image", name), on_error=policy)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            ("image", "label"),
            {"collate": {"mask": "padded"}},
            "collate names the column 'mask'; the dataset gives label",
        ),
        (("image", "mask"), {"collate": {"mask": "padded"}}, r"'mask' \(mask\) is not of many rows"),
        (("image", "boxes"), {"collate": {"boxes": "multi_hot"}}, "several labels with classes, not boxes"),
        (("image", "boxes"), {"collate": {"boxes": "stacked"}}, "padded, multi_hot, optional"),
        (("image", "boxes"), {"resident": True}, "'boxes' is read as it is needed"),
        (("image", "mask"), {"pre_transform": torch.abs}, "'mask' is read as it is needed"),
        (("image", "mask"), {"mask_fill": 0.5}, "mask_fill"),
        (("image", "boxes"), {"min_visible": 2}, "min_visible"),
        (("image", "boxes"), {"augment": [RandomCrop(24, padding=2, padding_mode="reflect")]}, "reflect"),
    ],
)
def test_wrong_arguments(
    stores: dict[str, Typed], columns: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        PackedLoader(PackedDataset(stores["pixels"].path, columns=columns), 4, **options)


@pytest.mark.slow  # torchvision takes seconds to import
def test_operations_that_cannot_be_followed(stores: dict[str, Typed]) -> None:
    rotation = PerImage(import_torchvision().transforms.v2.RandomRotation(9))
    with pytest.raises(UsageError, match=r"RandomRotation.*boxes"):
        load(stores["files"], ("image", "boxes"), augment=[rotation])
    load(stores["files"], ("image", "label"), augment=[rotation])


def test_functions_beside_targets(stores: dict[str, Typed]) -> None:
    """One that nobody knows is refused, wherever it is called; one that is said to keep pixels in place is called."""
    one = stores["files"]
    for options in ({"augment": [torch.neg]}, {"augment": [PerImage(torch.neg)]}, {"transform": torch.neg}):
        with pytest.raises(UsageError, match=r"torch.*neg.* might move the images, .* boxes .*InPlace\(…\) around it"):
            load(one, ("image", "boxes"), **options)
        load(one, ("image", "label"), **options)
    crop = [RandomResizedCrop(16)]
    said = ({"augment": [*crop, InPlace(torch.neg)]}, {"augment": [*crop, PerImage(InPlace(torch.neg))]})
    plain = load(one, ("image", "boxes"), augment=crop)
    for options in (*said, {"augment": crop, "transform": InPlace(torch.neg)}):
        found = load(one, ("image", "boxes"), **options)
        for batch, other in zip(found, plain, strict=True):
            assert torch.equal(batch["image"], torch.neg(other["image"]))
            assert all(torch.equal(a, b) for a, b in zip(batch["boxes"], other["boxes"], strict=True))


def test_small_columns_stay_resident(stores: dict[str, Typed]) -> None:
    path = stores["pixels"].path
    resident = PackedLoader(PackedDataset(path, columns=("image", "vector", "key", "brain", "label")), 4)
    assert resident.mode == "resident"
    streaming = PackedLoader(PackedDataset(path, columns=resident.dataset.columns), 4, resident=False)
    for a, b in zip(resident, streaming, strict=True):
        assert all(x == y if isinstance(x, list) else torch.equal(x, y) for x, y in zip(a, b, strict=True))
    other = PackedLoader(PackedDataset(path, columns=("image", "mask")), 4)
    assert other.mode == "streaming"
    assert "'mask' is read as it is needed" in repr(other)


def test_items_are_tuples_unless_asked_otherwise(stores: dict[str, Typed]) -> None:
    ds = PackedDataset(stores["files"].path, columns=("mask", "label", "image"))
    masks, labels, images = next(iter(PackedLoader(ds, 4, target_transform=lambda y: y + 5, normalize="imagenet")))
    assert (masks.dtype, labels.tolist(), images.dtype) == (torch.uint8, [5, 6, 7, 5], torch.float32)
    with pytest.raises(UsageError, match="'dict'"):
        PackedLoader(PackedDataset(stores["files"].path, output="numpy"), 4)


def test_further_images_are_normalised_alike(stores: dict[str, Typed]) -> None:
    for kind in ("files", "pixels"):
        batch = load(stores[kind], ("image", "right"), normalize="imagenet", dtype=torch.float16)[0]
        assert (batch["right"].shape, batch["right"].dtype) == ((4, 3, *SIZE), torch.float16)
        assert torch.equal(batch["right"], batch["image"].flip(3))


@pytest.mark.slow
def test_the_same_with_any_threads_and_ranks_and_resumed(stores: dict[str, Typed]) -> None:
    made, ops = stores["sizes"], [RandomResizedCrop(24), RandomHorizontalFlip()]
    options: dict[str, Any] = {"augment": ops, "shuffle": True, "seed": 2}
    whole = load(made, batch_size=4, **options)
    assert _same(whole, load(made, batch_size=4, workers=1, **options))
    parts = [load(made, batch_size=2, rank=rank, world_size=2, **options) for rank in (0, 1)]
    by_record = dict(zip(records_of(whole), range(9), strict=True))
    for part in parts:
        for place, number in enumerate(records_of(part)):
            for name in ("mask", "boxes", "labels", "points", "right"):
                assert torch.equal(rows(part, name)[place], rows(whole, name)[by_record[number]])
    dataset = PackedDataset(made.path, columns=CARRIED, output="dict")
    loader = PackedLoader(dataset, 4, **options)
    next(iter(loader))
    other = PackedLoader(dataset, 4, **options)
    other.load_state_dict(loader.state_dict())
    assert _same(list(other), whole[1:])


def test_a_record_that_comes_twice_is_cropped_twice(stores: dict[str, Typed]) -> None:
    batch = load(stores["sizes"], sampler=[4, 4], augment=[RandomResizedCrop(24)])[0]
    assert not torch.equal(batch["mask"][0], batch["mask"][1])
    assert not torch.equal(batch["corners"][0], batch["corners"][1])


def _same(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    def equal(x: Any, y: Any) -> bool:
        if isinstance(x, torch.Tensor):
            return torch.equal(x, y)
        return all(equal(v, w) for v, w in zip(x, y, strict=True)) if isinstance(x, list) else bool(x == y)

    return all(equal(p[name], q[name]) for p, q in zip(a, b, strict=True) for name in p)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mask", b"no mask", "not a PNG"),
        ("mask", typed.png(np.zeros((9, 9), np.uint8)), "the mask is 9x9, and its image 44x52"),
        ("mask", typed.png(np.zeros(SIZE, np.uint8))[:50], "damaged"),
        ("right", b"none", "'right'"),
        ("right", typed.png(np.zeros((9, 9, 3), np.uint8)), "the image is 9x9, and the first one 44x52"),
        ("info", b"[", "'info'.*JSON"),
    ],
)
def test_damaged_values_are_named_or_skipped(tmp_path: Path, name: str, value: bytes, message: str) -> None:
    names = ["label", "boxes", "labels", "mask", "right", "info"]
    made = spoilt(tmp_path / "a.h5", {2: {name: value}}, names)
    options: dict[str, Any] = {"augment": [RandomResizedCrop(24)], "batch_size": 4, "collate": {"boxes": "padded"}}
    with pytest.raises((DecodeError, StoreError), match=rf"record 2 \(0002.png\).*{message}"):
        load(made, ("image", *names), **options)
    loader = PackedLoader(
        PackedDataset(made.path, columns=("image", *names), output="dict"), on_error="skip", **options
    )
    batch = next(iter(loader))
    assert loader.stats()["skipped"] == 1
    assert batch["label"].tolist() == [0, 1, 0]
    assert (len(batch["image"]), len(batch["mask"]), len(batch["right"])) == (3, 3, 3)
    assert [info["id"] for info in batch["info"]] == [0, 1, 3]
    good = load(spoilt(tmp_path / "b.h5", {}, names), ("image", *names), **options)[0]
    assert torch.equal(batch["mask"][2], good["mask"][3])
    assert torch.equal(batch["boxes"].values[2], good["boxes"].values[3])
    assert torch.equal(batch["labels"][2], good["labels"][3])


@pytest.mark.parametrize("ops", [[RandomResizedCrop(24)], [RandomHorizontalFlip(), RandomCrop(24)]])
def test_an_image_that_cannot_be_decoded_takes_its_columns_along(tmp_path: Path, ops: list[Any]) -> None:
    made = spoilt(tmp_path / "a.h5", {}, ["mask", "boxes", "label"], image=[1])
    batch = load(
        made, ("image", "mask", "boxes", "label"), augment=ops, on_error="skip", collate={"label": "optional"}
    )[0]
    assert [int(n) for n in batch["label"]] == [0, 2, 0]
    assert (batch["mask"].shape, len(batch["boxes"])) == ((3, 24, 24), 3)


@pytest.mark.parametrize("checksums", ["auto", "always"])
@pytest.mark.parametrize("name", ["mask", "boxes", "caption", "blob"])
def test_a_changed_byte_is_found(tmp_path: Path, name: str, checksums: Any) -> None:
    made = make_typed(tmp_path / "a.h5", ["label", "mask", "boxes", "caption", "blob"], 8)
    value = made.values[6][name]
    at_rest = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else value.tobytes()
    change(made.path, at_rest, len(at_rest) - 3)
    dataset = PackedDataset(made.path, columns=("image", name), output="dict", checksums=checksums)
    options: dict[str, Any] = {"augment": [RandomResizedCrop(24)], "collate": {"caption": "optional"}}
    options = options if name == "caption" else options | {"collate": {}}
    with pytest.raises(CorruptRecordError, match="record 6"):
        dataset[6]
    with pytest.raises(CorruptRecordError, match="record 6"):
        list(PackedLoader(dataset, 8, **options))
    loader = PackedLoader(dataset, 8, on_error="skip", **options)
    assert [len(batch[name]) for batch in loader] == [7]


def test_labels_of_boxes_that_fail_are_skipped_with_their_boxes(tmp_path: Path) -> None:
    made = make_typed(tmp_path / "a.h5", ["label", "boxes", "labels"], 8)
    wanted = load(made, ("image", "boxes", "labels"), batch_size=8, augment=[RandomResizedCrop(24)])[0]
    at_rest = made.values[6]["labels"].tobytes()
    change(made.path, at_rest, len(at_rest) - 3)
    dataset = PackedDataset(made.path, columns=("image", "boxes", "labels"), output="dict")
    batch = next(iter(PackedLoader(dataset, 8, augment=[RandomResizedCrop(24)], on_error="skip")))
    for name in ("boxes", "labels"):
        assert [value.tolist() for value in batch[name]] == [
            wanted[name][row].tolist() for row in (0, 1, 2, 3, 4, 5, 7)
        ]


def test_a_class_beyond_the_classes_names_its_record(tmp_path: Path) -> None:
    made = make_typed(tmp_path / "a.h5", ["tags"], 4, size=SIZE)
    tags = made.values[3]["tags"]
    change(made.path, tags.tobytes(), 0)
    dataset = PackedDataset(made.path, columns=("image", "tags"), checksums="never")
    with pytest.raises(
        StoreError, match=r"record 3 \(0003.png\) of .*: it has class \d+ in 'tags', which has classes 0 to 2"
    ):
        next(iter(PackedLoader(dataset, 4, collate={"tags": "multi_hot"})))
    _, found = next(iter(PackedLoader(dataset, 4, collate={"tags": "multi_hot"}, on_error="skip")))
    assert [row.nonzero().flatten().tolist() for row in found] == [sorted(made.values[n]["tags"]) for n in range(3)]


def test_labels_of_other_numbers_than_boxes_are_named_or_skipped(tmp_path: Path) -> None:
    made = make_typed(tmp_path / "a.h5", ["boxes", "labels"], 4, size=SIZE)
    with h5py.File(made.path, "r+") as file:
        file["labels/offsets"][2] -= 8  # record 2 gets a label of record 1
    dataset = PackedDataset(made.path, columns=("image", "boxes", "labels"), output="dict", checksums="never")
    options: dict[str, Any] = {"batch_size": 4, "augment": [RandomHorizontalFlip()]}
    counts = [len(made.values[number]["boxes"]) for number in range(4)]
    words = rf"record 1 \(0001.png\) of .*: it has {counts[1] - 1} rows of 'labels', and {counts[1]} of 'boxes'"
    with pytest.raises(StoreError, match=words):
        next(iter(PackedLoader(dataset, **options)))
    loader = PackedLoader(dataset, on_error="skip", **options)
    batch = next(iter(loader))
    assert [*map(len, batch["boxes"])] == [*map(len, batch["labels"])] == [counts[0], counts[3]]
    assert loader.stats()["skipped"] == 2


def test_masks_of_differing_sizes_make_no_batch(stores: dict[str, Typed], tmp_path: Path) -> None:
    made = spoilt(tmp_path / "a.h5", {1: {"mask": typed.png(np.zeros((9, 9), np.uint8))}}, ["mask"])
    with pytest.raises(SizeError, match="9x9"):
        load(made, ("image", "mask"))


def test_masks_of_more_bits_widen_their_batch(tmp_path: Path) -> None:
    deep = np.full(SIZE, 999, np.uint16)
    made = spoilt(tmp_path / "a.h5", {1: {"mask": typed.png(deep)}}, ["mask"])
    first, second = load(made, ("image", "mask"), batch_size=2)
    assert (first["mask"].dtype, second["mask"].dtype) == (torch.int32, torch.uint8)
    assert int(first["mask"][1, 0, 0]) == 999


def test_training_for_a_step(stores: dict[str, Typed]) -> None:
    """Segmentation and detection: losses of what the loader gives, whole."""
    model = torch.nn.Conv2d(3, 128, 1)
    head = torch.nn.Linear(3, 4)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    before = [p.clone() for p in (model.weight, head.weight)]
    for batch in load(stores["sizes"], augment=[RandomResizedCrop(24)], normalize="imagenet", mask_fill=127):
        loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["mask"].long(), ignore_index=127)
        means = batch["image"].mean((2, 3))
        for mean, boxes, labels in zip(means, batch["boxes"], batch["labels"], strict=True):
            assert len(boxes) == len(labels)
            loss = loss + (head(mean) - boxes).square().sum()
        loss.backward()
        optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, (model.weight, head.weight), strict=True))


@pytest.mark.parametrize("fill", [-1, 12345])
@pytest.mark.parametrize("name", ["mask", "raw", "deep"])
def test_a_fill_value_that_is_no_uint8_makes_masks_of_int32(stores: dict[str, Typed], name: str, fill: int) -> None:
    for usual, batch in zip(
        load(stores["files"], ("image", name), augment=[RandomCrop(50, padding=9)]),
        load(stores["files"], ("image", name), augment=[RandomCrop(50, padding=9)], mask_fill=fill),
        strict=True,
    ):
        found = batch[name]
        assert found.dtype == torch.int32
        assert (found == fill).any()
        assert torch.equal(torch.where(found == fill, 0, found), usual[name].int())


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ({"bbox": [[1, 2, 3, 4]], "category": [1]}, True),
        ({"bbox": []}, True),
        ([{"bbox": [1, 2, 3, 4]}], True),
        ([{"caption": "a box"}, {"bbox": [1, 2, 3, 4]}], True),
        ({"annotations": [{"boxes": [1, 2, 3, 4]}]}, True),
        ({"caption": "a box"}, False),
        (["boxes"], False),
        (None, False),
    ],
)
def test_boxes_as_json_are_not_left_behind(value: Any, held: bool, tmp_path: Path) -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    with packstore.Writer(tmp_path / "in.lmdb", {"image": "image", "objects": "json"}, encoding="uint8") as writer:
        for _ in range(4):
            writer.add(image=image, objects=value)
    dataset = packstore.PackedDataset(tmp_path / "in.lmdb", columns=("image", "objects"))
    next(iter(packstore.PackedLoader(dataset, 2)))
    flipped = [packstore.augment.RandomHorizontalFlip(0.5)]
    if held:
        with pytest.raises(UsageError, match=r"the column 'objects' \(json\) holds boxes, which would"):
            packstore.PackedLoader(dataset, 2, augment=flipped)
    else:
        next(iter(packstore.PackedLoader(dataset, 2, augment=flipped)))
