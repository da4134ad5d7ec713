"""``PackedLoader`` with columns of every type: carried through the operations, collated, missing, damaged, resumed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from packstore import CorruptRecordError, DecodeError, PackedDataset, PackedLoader, SizeError, StoreError, UsageError
from packstore import augment as A  # noqa: N812
from tests.internals import Draws, Padded
from tests.makers import typed
from tests.makers.batches import as_tensors, check_order, place_values, same
from tests.makers.stores import change
from tests.makers.torchvision import import_torchvision
from tests.makers.typed import COLUMNS, SIZE, Typed, make_typed, spoilt

NAMES = [column.name for column in COLUMNS]
CARRIED = ("image", "mask", "raw", "deep", "boxes", "labels", "points", "corners", "right", "image_id")


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


UNRESIZED = {
    "none": [],
    "zoom and crop": [A.RandomZoomOut(), A.RandomIoUCrop(), A.RandomHorizontalFlip()],
    "crop and zoom": [A.RandomHorizontalFlip(), A.RandomIoUCrop(min_scale=0.5), A.RandomZoomOut(0, (1, 2), p=1)],
    "a choice": [
        A.RandomChoice([A.RandomIoUCrop(), A.Compose([A.RandomCrop(30), A.Pad((1, 2, 3, 4))])]),
        A.RandomHorizontalFlip(),
    ],
    "sometimes": [A.RandomApply([A.CenterCrop(70), A.RandomHorizontalFlip(1)]), A.RandomZoomOut(p=1)],
}
"""Lists after which images differ in size."""
EXACT = UNRESIZED | {
    "crop and flip": [A.RandomCrop((24, 30)), A.RandomHorizontalFlip()],
    "centre": [A.CenterCrop(30), A.RandomHorizontalFlip(1)],
    "two crops": [A.RandomCrop(38), A.RandomCrop(20)],
    "flip and crop": [A.RandomHorizontalFlip(), A.RandomCrop(25)],
    "padding": [A.RandomCrop(40, padding=6), A.RandomHorizontalFlip()],
    "beyond": [A.CenterCrop(70)],
    "cutout": [A.RandomCrop(24), A.Cutout(3), A.RandomHorizontalFlip()],
    "alternating": [A.RandomHorizontalFlip(alternating=True)],
}


@pytest.mark.parametrize(("kind", "name"), cases(EXACT))
def test_all_goes_where_the_pixels_say_that_they_come_from(
    typed_stores: dict[str, Typed], kind: str, name: str
) -> None:
    made, erased, unequal = typed_stores[kind], name == "cutout", name in UNRESIZED
    columns = [column for column in CARRIED if column != "right" or not unequal]
    options: dict[str, Any] = {"collate": {"image": "list"}} if unequal else {}
    batches = load(made, columns, 1, augment=EXACT[name], shuffle=True, seed=4, mask_fill=255, min_area=0, **options)
    found = {column: rows(batches, column) for column in columns}
    assert sorted(records_of(batches)) == list(range(9))
    kept = []
    for place, number in enumerate(records_of(batches)):
        values, image = made.values[number], found["image"][place].numpy().astype(np.int64)
        inside, from_rows, from_columns = image[2] > 0, image[0] // 3, image[1] // 3
        mask = np.where(inside, from_rows // 8 * 16 + from_columns // 8, 255)
        compared = inside if erased else np.ones_like(inside)
        for column in ("mask", "raw"):
            np.testing.assert_array_equal(found[column][place][compared], mask[compared])
        np.testing.assert_array_equal(found["deep"][place][inside], mask[inside] * 200)
        if "right" in found and not erased:  # cutout leaves further images alone
            right = made.images[number][:, ::-1][from_rows, from_columns]
            np.testing.assert_array_equal(found["right"][place].numpy().transpose(1, 2, 0)[inside], right[inside])
        row, column = np.argwhere(inside[:, :-1] & inside[:, 1:])[0]
        mirrored = bool(from_columns[row, column + 1] < from_columns[row, column])
        down, sign = row - from_rows[row, column], -1 if mirrored else 1
        across = column + sign * (values["corners"][:, 0] - from_columns[row, column])
        moved = np.stack([across, values["corners"][:, 1] + down], 1)
        np.testing.assert_allclose(found["corners"][place], moved, atol=1e-4)
        boxes, of_image = values["boxes"], found["boxes"][place].numpy()
        sides = column + mirrored + sign * (boxes[:, 0::2] - from_columns[row, column])
        moved = np.stack([sides.min(1), boxes[:, 1] + down, sides.max(1), boxes[:, 3] + down], 1)
        shown = np.argwhere(inside if unequal else np.ones_like(inside))[:, ::-1]
        moved = np.clip(moved, [*shown.min(0)] * 2, [*shown.max(0) + 1] * 2)
        kept.append((of_image[:, 2:] > of_image[:, :2]).all(1) if unequal else np.ones(len(boxes), np.bool_))
        np.testing.assert_allclose(of_image[kept[-1]], moved[kept[-1]], atol=1e-4)
    assert np.concatenate(kept).any()
    assert name != "none" or np.concatenate(kept).all()
    differ = len({image.shape for image in found["image"]}) > 1
    assert differ == (unequal and (name != "none" or kind == "sizes"))


RESIZED = {
    "crop": [A.RandomResizedCrop(24), A.RandomHorizontalFlip()],
    "resize": [A.Resize((30, 20)), A.RandomCrop(18)],
    "flip first": [A.RandomHorizontalFlip(), A.RandomResizedCrop((20, 16))],
    "twice": [A.Resize((40, 36)), A.RandomResizedCrop((20, 16)), A.RandomHorizontalFlip()],
}


@pytest.mark.parametrize(("kind", "name"), cases(RESIZED))
def test_what_is_resized_goes_where_the_functions_put_it(typed_stores: dict[str, Typed], kind: str, name: str) -> None:
    made, ops = typed_stores[kind], RESIZED[name]
    options: dict[str, Any] = {"augment": ops, "shuffle": True, "seed": 5}
    batches = load(made, min_area=9, min_visible=0.3, **options)
    found = {column: rows(batches, column) for column in CARRIED}
    dropped = 0
    for place, number in enumerate(records_of(batches)):
        values, draws = made.values[number], Draws(5, 0, np.array([number]))
        expected, keep = place_values(values, made.images[number].shape[:2], ops, draws, 0, 9, 0.3)
        for column, value in {**expected, "deep": expected["mask"].astype(np.int32) * 200}.items():
            np.testing.assert_array_equal(found[column][place], value)
        dropped += (~keep).sum()
    assert dropped
    for columns in (("image",), ("right", "image")):
        alone = load(made, columns, **options)
        assert all(same(a[columns[0]], b[columns[0]]) for a, b in zip(alone, batches, strict=True))


def test_labels_stay_with_boxes_that_are_not_asked_for(typed_stores: dict[str, Typed]) -> None:
    options: dict[str, Any] = {"augment": [A.RandomResizedCrop(24)], "min_visible": 0.5}
    with_boxes = load(typed_stores["sizes"], **options)
    for columns in (("image", "labels"), ("labels", "image", "points")):
        batches = load(typed_stores["sizes"], columns, **options)
        for name in {"labels", "points"} & {*columns}:
            assert same(rows(batches, name), rows(with_boxes, name))


@pytest.mark.slow
def test_without_operations_nothing_moves(typed_stores: dict[str, Typed]) -> None:
    made = typed_stores["files"]
    optional: Any = dict.fromkeys(("caption", "weight", "depth"), "optional")
    [batch] = load(made, ("image", *NAMES, "key"), batch_size=9, collate=optional)
    for number in range(9):
        expected = as_tensors(made, number)
        for name in ("label", "image_id"):
            expected[name] = torch.tensor(expected[name])
        assert {name: value for name, value in expected.items() if not same(batch[name][number], value)} == {}


def test_forms_of_batches(typed_stores: dict[str, Typed]) -> None:
    made = typed_stores["files"]
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


def test_optional_columns_of_all_kinds(typed_stores: dict[str, Typed]) -> None:
    optional: dict[str, Any] = dict.fromkeys(("image_id", "boxes", "mask", "right", "info"), "optional")
    batch = load(typed_stores["files"], ("image", *optional), collate=optional)[0]
    for name in optional:
        assert type(batch[name]) is list
        assert len(batch[name]) == 4
    assert [int(n) for n in batch["image_id"]] == [1000, 1001, 1002, 1003]
    assert torch.equal(batch["mask"][1], torch.from_numpy(typed_stores["files"].values[1]["raw"]))


@pytest.mark.parametrize("name", ["caption", "weight", "depth"])
def test_a_missing_value_is_an_error(typed_stores: dict[str, Typed], name: str) -> None:
    for policy in ("raise", "skip"):
        with pytest.raises(UsageError, match=rf"record 1 \(0001.png\).*no '{name}'.*optional"):
            load(typed_stores["files"], ("image", name), on_error=policy)


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
        (("image", "boxes"), {"augment": [A.RandomCrop(24, padding=2, padding_mode="reflect")]}, "reflect"),
    ],
)
def test_wrong_arguments(
    typed_stores: dict[str, Typed], columns: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        PackedLoader(PackedDataset(typed_stores["pixels"].path, columns=columns), 4, **options)


@pytest.mark.slow  # torchvision takes seconds to import
def test_operations_that_cannot_be_followed(typed_stores: dict[str, Typed]) -> None:
    rotation = A.PerImage(import_torchvision().transforms.v2.RandomRotation(9))
    with pytest.raises(UsageError, match=r"RandomRotation.*boxes"):
        load(typed_stores["files"], ("image", "boxes"), augment=[rotation])
    load(typed_stores["files"], ("image", "label"), augment=[rotation])


@pytest.mark.slow
def test_functions_beside_targets(typed_stores: dict[str, Typed]) -> None:
    """One that nobody knows is refused, wherever it is called; one that is said to keep pixels in place is called."""
    one = typed_stores["files"]
    for options in ({"augment": [torch.neg]}, {"augment": [A.PerImage(torch.neg)]}, {"transform": torch.neg}):
        with pytest.raises(UsageError, match=r"torch.*neg.* might move the images, .* boxes .*InPlace\(…\) around it"):
            load(one, ("image", "boxes"), **options)
        load(one, ("image", "label"), **options)
    crop = [A.RandomResizedCrop(16)]
    said = ({"augment": [*crop, A.InPlace(torch.neg)]}, {"augment": [*crop, A.PerImage(A.InPlace(torch.neg))]})
    plain = load(one, ("image", "boxes"), augment=crop)
    negative = [batch | {"image": torch.neg(batch["image"])} for batch in plain]
    for options in (*said, {"augment": crop, "transform": A.InPlace(torch.neg)}):
        assert same(load(one, ("image", "boxes"), **options), negative)


@pytest.mark.slow
def test_small_columns_stay_resident(typed_stores: dict[str, Typed]) -> None:
    path = typed_stores["pixels"].path
    resident = PackedLoader(PackedDataset(path, columns=("image", "vector", "key", "brain", "label")), 4)
    assert resident.mode == "resident"
    streaming = PackedLoader(PackedDataset(path, columns=resident.dataset.columns), 4, resident=False)
    assert same(resident, streaming)
    other = PackedLoader(PackedDataset(path, columns=("image", "mask")), 4)
    assert other.mode == "streaming"
    assert "'mask' is read as it is needed" in repr(other)


def test_items_are_tuples_unless_asked_otherwise(typed_stores: dict[str, Typed]) -> None:
    ds = PackedDataset(typed_stores["files"].path, columns=("mask", "label", "image"))
    masks, labels, images = next(iter(PackedLoader(ds, 4, target_transform=lambda y: y + 5, normalize="imagenet")))
    assert (masks.dtype, labels.tolist(), images.dtype) == (torch.uint8, [5, 6, 7, 5], torch.float32)
    with pytest.raises(UsageError, match="'dict'"):
        PackedLoader(PackedDataset(typed_stores["files"].path, output="numpy"), 4)


@pytest.mark.slow
def test_further_images_are_normalised_alike(typed_stores: dict[str, Typed]) -> None:
    for kind in ("files", "pixels"):
        batch = load(typed_stores[kind], ("image", "right"), normalize="imagenet", dtype=torch.float16)[0]
        assert (batch["right"].shape, batch["right"].dtype) == ((4, 3, *SIZE), torch.float16)
        assert torch.equal(batch["right"], batch["image"].flip(3))


@pytest.mark.slow
def test_the_same_with_any_threads_and_ranks_and_resumed(typed_stores: dict[str, Typed]) -> None:
    dataset = PackedDataset(typed_stores["sizes"].path, columns=CARRIED, output="dict")
    ops = [A.RandomResizedCrop(24), A.RandomHorizontalFlip()]
    check_order(partial(PackedLoader, dataset, shuffle=True, seed=2, augment=ops, drop_last=True), 4, (2,))


def test_a_record_that_comes_twice_is_cropped_twice(typed_stores: dict[str, Typed]) -> None:
    batch = load(typed_stores["sizes"], sampler=[4, 4], augment=[A.RandomResizedCrop(24)])[0]
    assert not torch.equal(batch["mask"][0], batch["mask"][1])
    assert not torch.equal(batch["corners"][0], batch["corners"][1])


@pytest.mark.slow
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
    options: dict[str, Any] = {"augment": [A.RandomResizedCrop(24)], "batch_size": 4, "collate": {"boxes": "padded"}}
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


@pytest.mark.parametrize("ops", [[A.RandomResizedCrop(24)], [A.RandomHorizontalFlip(), A.RandomCrop(24)]])
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
    options: dict[str, Any] = {"augment": [A.RandomResizedCrop(24)], "collate": {"caption": "optional"}}
    options = options if name == "caption" else options | {"collate": {}}
    with pytest.raises(CorruptRecordError, match="record 6"):
        dataset[6]
    with pytest.raises(CorruptRecordError, match="record 6"):
        list(PackedLoader(dataset, 8, **options))
    loader = PackedLoader(dataset, 8, on_error="skip", **options)
    assert [len(batch[name]) for batch in loader] == [7]


def test_labels_of_boxes_that_fail_are_skipped_with_their_boxes(tmp_path: Path) -> None:
    made, columns = make_typed(tmp_path / "a.h5", ["label", "boxes", "labels"], 8), ("image", "boxes", "labels")
    options: dict[str, Any] = {"batch_size": 8, "augment": [A.RandomResizedCrop(24)], "on_error": "skip"}
    [wanted] = load(made, columns, **options)
    at_rest = made.values[6]["labels"].tobytes()
    change(made.path, at_rest, len(at_rest) - 3)
    [batch] = load(made, columns, **options)
    for name in ("boxes", "labels"):
        assert same(batch[name], [*wanted[name][:6], wanted[name][7]])


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
    options: dict[str, Any] = {"batch_size": 4, "augment": [A.RandomHorizontalFlip()]}
    counts = [len(made.values[number]["boxes"]) for number in range(4)]
    words = rf"record 1 \(0001.png\) of .*: it has {counts[1] - 1} rows of 'labels', and {counts[1]} of 'boxes'"
    with pytest.raises(StoreError, match=words):
        next(iter(PackedLoader(dataset, **options)))
    loader = PackedLoader(dataset, on_error="skip", **options)
    batch = next(iter(loader))
    assert [*map(len, batch["boxes"])] == [*map(len, batch["labels"])] == [counts[0], counts[3]]
    assert loader.stats()["skipped"] == 2


@pytest.mark.slow
def test_masks_of_differing_sizes_make_no_batch(typed_stores: dict[str, Typed], tmp_path: Path) -> None:
    made = spoilt(tmp_path / "a.h5", {1: {"mask": typed.png(np.zeros((9, 9), np.uint8))}}, ["mask"])
    with pytest.raises(SizeError, match="9x9"):
        load(made, ("image", "mask"))


def test_masks_of_more_bits_widen_their_batch(tmp_path: Path) -> None:
    deep = np.full(SIZE, 999, np.uint16)
    made = spoilt(tmp_path / "a.h5", {1: {"mask": typed.png(deep)}}, ["mask"])
    first, second = load(made, ("image", "mask"), batch_size=2)
    assert (first["mask"].dtype, second["mask"].dtype) == (torch.int32, torch.uint8)
    assert int(first["mask"][1, 0, 0]) == 999


@pytest.mark.parametrize("fill", [-1, 12345])
@pytest.mark.parametrize("name", ["mask", "raw", "deep"])
def test_a_fill_value_that_is_no_uint8_makes_masks_of_int32(
    typed_stores: dict[str, Typed], name: str, fill: int
) -> None:
    for usual, batch in zip(
        load(typed_stores["files"], ("image", name), augment=[A.RandomCrop(50, padding=9)]),
        load(typed_stores["files"], ("image", name), augment=[A.RandomCrop(50, padding=9)], mask_fill=fill),
        strict=True,
    ):
        found = batch[name]
        assert found.dtype == torch.int32
        assert (found == fill).any()
        assert torch.equal(torch.where(found == fill, 0, found), usual[name].int())
