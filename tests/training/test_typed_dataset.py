"""``PackedDataset`` with columns of every type, in every form of its output."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import packstore
from packstore import DecodeError, PackedDataset, StoreError, UsageError
from packstore.augment import InPlace
from tests.makers import typed
from tests.makers.batches import as_tensors, same
from tests.makers.torchvision import import_torchvision, skip_before
from tests.makers.typed import COLUMNS, Typed, make_typed, spoilt

NAMES = [column.name for column in COLUMNS]
TARGET = ("image", "boxes", "labels", "mask", "corners", "image_id")


@pytest.fixture(scope="module", params=["lmdb", "h5", "pth"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Typed:
    return make_typed(tmp_path_factory.mktemp("typed") / f"a.{request.param}", NAMES)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Typed:
    return make_typed(tmp_path_factory.mktemp("typed") / "a.h5", NAMES)


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A value as numpy has it; a file of an image or a mask decoded by Pillow."""
    return np.asarray(Image.open(io.BytesIO(value)) if isinstance(value, bytes) else value)


def test_items_have_every_column(made: Typed) -> None:
    ds = PackedDataset(made.path, columns=("image", *NAMES, "key"), output="dict")
    for number in range(len(ds)):
        item, expected = ds[number], as_tensors(made, number)
        assert list(item) == ["image", *NAMES, "key"]
        assert {name: value for name, value in item.items() if not same(value, expected[name])} == {}
        for name in ("label", "caption", "info", "blob", "image_id"):
            assert type(item[name]) is type(expected[name])


def test_what_an_item_gives_may_be_written_to(one: Typed) -> None:
    ds = PackedDataset(one.path, columns=("raw", "boxes", "vector", "mask"))
    before = [value.clone() for value in ds[0]]
    for value in ds[0]:
        value += 1
    for value, expected in zip(ds[0], before, strict=True):
        assert torch.equal(value, expected)


def test_other_outputs(one: Typed) -> None:
    columns = ("image", "mask", "raw", "deep", "depth", "boxes", "right")
    image, mask, raw, deep, depth, boxes, right = PackedDataset(one.path, columns=columns, output="pil")[4]
    assert [picture.mode for picture in (image, mask, raw, right)] == ["RGB", "P", "L", "RGB"]
    assert [depth.mode, deep.mode] == ["I;16", "I;16"]
    assert mask.getpalette() == [n * 7 % 256 for n in range(768)]
    assert isinstance(boxes, torch.Tensor)
    values = one.values[4]
    for picture, name in zip((mask, raw, deep, depth, right), ("mask", "raw", "deep", "depth", "right"), strict=True):
        np.testing.assert_array_equal(np.asarray(picture), as_array(values[name]))

    arrays = PackedDataset(one.path, columns=columns, output="numpy")[4]
    assert all(isinstance(value, np.ndarray) for value in arrays)
    assert [value.dtype.name for value in arrays[1:6]] == ["uint8", "uint8", "uint16", "uint16", "float32"]

    stored = PackedDataset(one.path, columns=columns, output="bytes")[4]
    assert stored[1] == values["mask"]
    assert stored[3] == values["deep"].tobytes()
    assert stored[6] == values["right"]


def test_batches_of_items(one: Typed) -> None:
    ds = PackedDataset(one.path, columns=("label", "boxes", "caption", "weight", "vector", "mask", "brain"))
    labels, boxes, captions, weights, vectors, masks, brains = ds[:4]
    assert labels.tolist() == [0, 1, 2, 0]
    assert [len(part) for part in boxes] == [len(v["boxes"]) for v in one.values[:4]]
    assert captions == [v["caption"] for v in one.values[:4]]
    assert [w is None for w in weights] == [False, True, False, True]
    assert vectors.shape == (4, 5)
    assert isinstance(masks, list)  # of differing sizes
    assert brains.dtype == torch.bfloat16
    assert brains[:, 1].tolist() == [0, -1, -2, -3]
    batch = PackedDataset(one.path, columns=("label", "boxes"), output="dict")[[2, 0]]
    assert batch["label"].tolist() == [2, 0]
    assert [len(part) for part in batch["boxes"]] == [0, len(one.values[0]["boxes"])]


@pytest.mark.slow  # torchvision takes seconds to import
def test_torchvisions_tensors(one: Typed) -> None:
    kinds = import_torchvision().tv_tensors
    assert type(PackedDataset(one.path, columns=("image",), output="tv_tensors")[0]) is kinds.Image
    image, label = PackedDataset(one.path, output="tv_tensors")[1]
    assert (type(image), label) == (kinds.Image, 1)
    image, mask = PackedDataset(one.path, columns=("mask", "image"), output="tv_tensors")[1]
    assert (type(image), type(mask)) == (kinds.Image, kinds.Mask)
    ds = pickle.loads(pickle.dumps(PackedDataset(one.path, columns=TARGET, output="tv_tensors")))
    image, target = ds[0]
    assert list(target) == list(TARGET[1:])
    boxes = target["boxes"]
    assert (type(boxes), boxes.format.value, boxes.canvas_size) == (kinds.BoundingBoxes, "XYXY", tuple(image.shape[1:]))
    assert type(target["corners"]) is kinds.KeyPoints
    assert (type(target["labels"]), type(target["mask"]), target["image_id"]) == (torch.Tensor, kinds.Mask, 1000)
    assert [len(item) for item in ds[:3]] == [2, 2, 2]
    empty = ds[2][1]
    assert (empty["boxes"].shape, empty["labels"].shape) == ((0, 4), (0,))


@pytest.mark.slow  # torchvision takes seconds to import
def test_torchvisions_transforms_take_items(one: Typed) -> None:
    v2 = import_torchvision().transforms.v2
    steps = [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(1)]
    transforms = v2.Compose([*steps, v2.SanitizeBoundingBoxes(), v2.ToPureTensor()])
    ds = PackedDataset(one.path, columns=TARGET, output="tv_tensors", transforms=transforms)
    loader = DataLoader(ds, batch_size=4, collate_fn=_together)
    for images, targets in loader:
        for image, target in zip(images, targets, strict=True):
            assert type(image) is torch.Tensor
            assert image.shape == (3, 24, 24)
            assert target["mask"].shape == (24, 24)
            assert len(target["boxes"]) == len(target["labels"])
            assert target["boxes"].numel() == 0 or 0 <= target["boxes"].min() <= target["boxes"].max() <= 24
    pairs = v2.Compose(steps)
    segmentation = PackedDataset(one.path, columns=("image", "mask"), output="tv_tensors", transforms=pairs)
    model = torch.nn.Conv2d(3, 256, 1)
    before = model.weight.clone()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for images, masks in DataLoader(segmentation, batch_size=4):
        torch.nn.functional.cross_entropy(model(images.float()), masks.long()).backward()
        optimizer.step()
    assert not torch.equal(before, model.weight)


def _together(batch: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*batch, strict=True))


def test_transforms_of_whole_items(one: Typed) -> None:
    ds = PackedDataset(one.path, columns=("image", "label"), transforms=lambda image, label: (label, image.shape))
    assert ds[1] == (1, (3, *one.images[1].shape[:2]))
    assert ds[[1, 2]] == [ds[1], ds[2]]
    as_dict = PackedDataset(one.path, columns=("label",), output="dict", transforms=lambda item: {**item, "more": 1})
    assert as_dict[1] == {"label": 1, "more": 1}
    with pytest.raises(UsageError, match="transforms= takes image and target together"):
        PackedDataset(one.path, transforms=_together, transform=_together)


@pytest.mark.parametrize("name", ["mask", "boxes", "corners"])
@pytest.mark.parametrize("output", ["tensor", "pil", "dict", "tv_tensors"])
def test_transform_of_images_does_not_leave_targets_behind(one: Typed, name: str, output: Any) -> None:
    if output == "tv_tensors":
        import_torchvision()
        skip_before(23)  # keypoints
    kind = "keypoints" if name == "corners" else name
    mirrored = torch.nn.Identity()
    with pytest.raises(UsageError, match=rf"lambda.*might move the images, and would leave {kind}.*use transforms="):
        PackedDataset(one.path, columns=("image", name), output=output, transform=lambda image: mirrored(image))
    PackedDataset(one.path, columns=("image", "label"), transform=lambda image: mirrored(image))
    said = PackedDataset(one.path, columns=("image", name), output=output, transform=InPlace(mirrored))
    item = said[0]
    assert len(item) == 2
    if output == "tensor":
        with pytest.raises(UsageError, match="it does not leave them in place"):
            PackedDataset(one.path, columns=("image", name), transform=InPlace(_narrower))[0]


def _narrower(image: torch.Tensor) -> torch.Tensor:
    return image[..., 1:]


@pytest.mark.slow
def test_torchvision_transforms_of_images_beside_targets(one: Typed) -> None:
    import_torchvision()
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    asked = {"columns": ("image", "mask"), "output": "pil"}
    for moving in (v2.RandomCrop(3), v1.Resize(4), v1.Compose([v1.ToTensor(), v1.RandomHorizontalFlip()])):
        with pytest.raises(
            UsageError, match=r"torchvision's \w+ would move the images, and leave mask .*use transforms="
        ):
            PackedDataset(one.path, transform=moving, **asked)
    image, mask = PackedDataset(one.path, transform=v1.Compose([v1.Grayscale(3), v1.ToTensor()]), **asked)[0]
    assert image.shape[-2:] == mask.size[::-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ("mask", "boxes"), "output": "tv_tensors"}, "needs the column 'image'"),
        ({"columns": ("image", "points"), "output": "tv_tensors"}, "'points'.*visibility.*output='dict'"),
    ],
)
def test_wrong_arguments(one: Typed, options: dict[str, Any], message: str) -> None:
    import_torchvision()
    with pytest.raises(UsageError, match=message):
        PackedDataset(one.path, **options)


def test_without_torchvision(one: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UsageError, match=r"needs torchvision.*; install it, or use output='dict'"):
        PackedDataset(one.path, output="tv_tensors")
    assert PackedDataset(one.path, columns=("image", "boxes"), output="dict")[0]["boxes"].shape[1] == 4


def test_with_a_torchvision_that_does_not_work(one: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=r"nms does not exist\); see packstore guide troubleshooting, or use"):
        PackedDataset(one.path, output="tv_tensors")


RGB = typed.png(np.zeros((4, 4, 3), np.uint8))
GREY = typed.png(np.zeros((4, 4), np.uint8))


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("mask", RGB, DecodeError, "'mask': the mask holds RGB"),
        ("mask", b"GIF89a" + bytes(40), DecodeError, "not a PNG"),
        ("mask", GREY[:45], DecodeError, "damaged"),
        ("mask", GREY[:16] + b"\xff" * 4 + GREY[20:], DecodeError, "pixels"),
        ("right", b"no image", DecodeError, "'right'"),
        ("info", b"{", StoreError, "'info'.*JSON"),
    ],
)
def test_damaged_values_are_named(
    tmp_path: Path, name: str, value: bytes, error: type[Exception], message: str
) -> None:
    made = spoilt(tmp_path / "a.h5", {2: {name: value}}, [name])
    with pytest.raises(error, match=rf"record 2 \(0002.png\).*{message}"):
        PackedDataset(made.path, columns=("image", name))[2]


def test_missing_labels_are_no_targets(tmp_path: Path) -> None:
    fields = {"image": packstore.Image("uint8"), "label": packstore.Label(["a"], optional=True)}
    with packstore.Writer(tmp_path / "a.h5", fields) as writer:
        writer.add(key="a.png", image=np.zeros((4, 4, 3), np.uint8), label=None)
    ds = PackedDataset(tmp_path / "a.h5", columns=("image", "label"))
    assert ds[0][1] is None
    assert ds[:1][1] == [None]
    for ask in (lambda: ds.targets, lambda: ds.samples):
        with pytest.raises(UsageError, match=r"1 items have no label, such as a\.png"):
            ask()
