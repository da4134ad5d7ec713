"""Maps, volumes and clips: arrays that move with their image, alike over D."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from tests.conftest import Simulate
from tests.internals import PackstoreError, SampleError, UsageError
from tests.makers.sources import not_packed
from tests.makers.torchvision import import_torchvision

RNG = np.random.default_rng(3)
MODES = {"uint8": 3, "uint16": 1, "int16": 1, "int32": 1, "float32": 1}
SIZE = (20, 26)


def frames_of(depth: int, size: tuple[int, int], dtype: str = "uint8") -> NDArray[Any]:
    shape = (depth, MODES[dtype], *size)
    if dtype == "float32":
        return RNG.normal(size=shape).astype(np.float32)
    return RNG.integers(0, 1 << (8 if dtype == "uint8" else 12), shape).astype(dtype)


def tiff(pixels: NDArray[Any]) -> bytes:
    Image.fromarray(pixels).save(file := io.BytesIO(), "TIFF")
    return file.getvalue()


def store_of(
    path: Path, suffix: str = "lmdb", dtype: str = "uint8", fixed: bool = False, several_sizes: bool = False
) -> list[dict[str, Any]]:
    """Clips whose middle frame is the image; volumes of which each plane is the mask; maps of values as of the mask."""
    samples = []
    for number in range(6):
        size = (SIZE[0] + number * several_sizes, SIZE[1] - number * several_sizes)
        clip = frames_of(3 if fixed else 1 + number % 4, size, dtype)
        middle = clip[len(clip) // 2]
        mask = RNG.integers(0, 9, size, np.uint8)
        samples.append({
            "image": tiff(middle[0]) if dtype == "float32" else np.ascontiguousarray(middle.transpose(1, 2, 0)),
            "clip": clip,
            "mask": mask,
            "volume": np.broadcast_to(mask, (len(clip), 2, *size)).astype(np.int32),
            "features": mask[None] * np.float32(1.5),
            "depth": mask * np.float32(2.5),
        })  # fmt: skip
    shape: Any = {"shape": (3, MODES[dtype], *SIZE), "spatial": True} if fixed else {"spatial": "DCHW"}
    planes: Any = {"shape": (3, 2, *SIZE), "spatial": True} if fixed else {"spatial": "DCHW"}
    mode = {"uint8": None, "uint16": "I;16", "int16": "I;16S", "int32": "I", "float32": "F"}[dtype]
    fields: dict[str, Any] = {
        "image": packstore.Image(None if dtype == "float32" else dtype, mode=mode),
        "clip": packstore.Array(dtype, **shape, smooth=True),
        "mask": packstore.Mask("uint8"),
        "volume": packstore.Array("int32", **planes),
        "features": packstore.Array("float32", spatial="CHW"),
        "depth": packstore.Array("float32", spatial=True),
    }
    options: Any = {"depth": "keep"} if dtype == "float32" else {}
    packstore.convert(samples, path / f"s.{suffix}", fields=fields, **options)
    return samples


COLUMNS = ("image", "clip", "mask", "volume", "features", "depth")


def check(batch: Sequence[Any]) -> None:
    for image, clip, mask, volume, feature, depth in zip(*batch, strict=True):
        assert clip.shape[-2:] == image.shape[-2:] == volume.shape[-2:]
        assert torch.equal(clip[len(clip) // 2], image.to(clip.dtype))
        assert torch.equal(volume, mask.to(volume.dtype).expand(volume.shape))
        assert torch.equal(feature[0], mask * 1.5)
        assert torch.equal(depth, mask * 2.5)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
@pytest.mark.parametrize("dtype", MODES)
def test_items_have_them(tmp_path: Path, dtype: str, suffix: str, fixed: bool) -> None:
    samples = store_of(tmp_path, suffix, dtype, fixed)
    store = tmp_path / f"s.{suffix}"
    assert packstore.verify(store, decode=True).ok
    for output in ("tensor", "numpy"):
        for values, sample in zip(PackedDataset(store, columns=COLUMNS, output=output), samples, strict=True):
            assert str(values[1].dtype).endswith("int32" if output == "tensor" and "int16" in dtype else dtype)
            for name, value in zip(COLUMNS[1:], values[1:], strict=True):
                assert np.array_equal(np.asarray(value), sample[name])


LISTS: dict[str, list[Any]] = {
    "none": [],
    "crop": [A.RandomCrop(16), A.RandomHorizontalFlip()],
    "resized crop": [A.RandomResizedCrop(18), A.RandomHorizontalFlip()],
    "resize and crop": [A.Resize(17), A.CenterCrop(15)],
    "padding": [A.RandomHorizontalFlip(), A.RandomCrop(20, padding=4, fill=7)],
    "reflected": [A.RandomCrop(20, padding=4, padding_mode="reflect")],
    "vertical": [A.RandomVerticalFlip(), A.RandomResizedCrop(12)],
    "rotation": [A.RandomRotation(40, interpolation="bilinear"), A.RandomResizedCrop(12)],
    "perspective": [A.RandomResizedCrop(24), A.RandomPerspective(p=1.0), A.RandomHorizontalFlip()],
    "some": [A.RandomResizedCrop(24), A.RandomApply([A.RandomRotation(90, interpolation="nearest")])],
}


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("dtype", MODES)
@pytest.mark.parametrize("operations", LISTS)
def test_they_move_with_their_image(tmp_path: Path, operations: str, dtype: str, fixed: bool) -> None:
    store_of(tmp_path, dtype=dtype, fixed=fixed)
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=COLUMNS)
    loader = PackedLoader(dataset, 3, shuffle=True, augment=LISTS[operations])
    for _ in range(2):
        for batch in loader:
            assert isinstance(batch[1], torch.Tensor) == fixed
            check(batch)


@pytest.mark.parametrize("collate", [{}, {"image": "padded", "clip": "padded", "volume": "padded"}])
@pytest.mark.parametrize("augment", [[A.ScaleJitter((20, 20))], [A.RandomHorizontalFlip()]])
def test_sizes_may_differ(tmp_path: Path, augment: list[Any], collate: dict[str, Any]) -> None:
    store_of(tmp_path, several_sizes=True)
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("image", "clip", "volume"))
    images, clips, volumes = next(iter(PackedLoader(dataset, 6, augment=augment, collate={"image": "list"} | collate)))
    if not collate:
        for image, clip, volume in zip(images, clips, volumes, strict=True):
            assert torch.equal(clip[len(clip) // 2], image)
            assert volume.shape[-2:] == image.shape[-2:]
        return
    assert clips.values.shape[:2] == (6, 4)
    assert torch.equal(clips.lengths[:, 2:], images.lengths)
    assert clips.lengths[:, 0].tolist() == [1, 2, 3, 4, 1, 2]
    assert torch.equal(volumes.lengths[:, [0, 2, 3]], clips.lengths[:, [0, 2, 3]])
    for n, (depth, _, height, width) in enumerate(clips.lengths.tolist()):
        assert torch.equal(clips.values[n, depth // 2], images.values[n])
        assert not clips.values[n, depth:].any()
        assert not clips.values[n, :, :, height:].any()
        assert not clips.values[n, ..., width:].any()


@pytest.mark.parametrize("fixed", [False, True])
def test_each_view_has_its_own(tmp_path: Path, fixed: bool) -> None:
    store_of(tmp_path, fixed=fixed)
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("image", "clip", "volume", "mask"))
    views: Any = {"large": (2, [A.RandomResizedCrop(16)]), "small": (3, [A.RandomResizedCrop(8)])}
    images, clips, volumes, masks = next(iter(PackedLoader(dataset, 4, views=views)))
    for name, count, side in (("large", 2, 16), ("small", 3, 8)):
        assert images[name].shape == (4, count, 3, side, side)
        for n in range(4):
            for view in range(count):
                clip, volume = clips[name][n][view], volumes[name][n][view]
                assert torch.equal(clip[len(clip) // 2], images[name][n, view])
                assert torch.equal(volume, masks[name][n, view].expand(volume.shape))


def test_colours_of_a_clip_stay(tmp_path: Path) -> None:
    samples = store_of(tmp_path)
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("clip",))
    clips = next(iter(PackedLoader(PackedDataset(tmp_path / "s.lmdb", columns=("image", "clip")), 6, augment=[
        A.ColorJitter(0.9), A.GaussianBlur(3)
    ])))[1]  # fmt: skip
    for clip, sample, item in zip(clips, samples, dataset, strict=True):
        assert np.array_equal(clip, sample["clip"])
        assert np.array_equal(item, sample["clip"])


def test_policies_move_them(tmp_path: Path) -> None:
    store_of(tmp_path)
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("image", "clip", "volume", "mask"))
    for images, clips, volumes, masks in PackedLoader(dataset, 6, augment=[A.RandomResizedCrop(20), A.RandAugment(3)]):
        assert [clip.shape[-2:] for clip in clips] == [image.shape[-2:] for image in images]
        for volume, mask in zip(volumes, masks, strict=True):
            assert torch.equal(volume, mask.expand(volume.shape))


@pytest.mark.parametrize("order", ["late", "ahead"])
def test_a_device_has_them(tmp_path: Path, order: str, simulate: Simulate) -> None:
    store_of(tmp_path)
    with simulate(order):
        dataset = PackedDataset(tmp_path / "s.lmdb", columns=COLUMNS, device=torch.device("cuda", 0))
        for batch in PackedLoader(dataset, 3, shuffle=True, augment=LISTS["resized crop"]):
            assert batch[1][0].device.type == "cuda"
            check([[each.cpu() for each in column] for column in batch])


def test_batches_of_numpy_have_them(tmp_path: Path) -> None:
    store_of(tmp_path)
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=COLUMNS)
    for batch in PackedLoader(dataset, 3, augment=LISTS["crop"], output="numpy"):
        assert isinstance(batch[1][0], np.ndarray)
        check([[torch.from_numpy(each) for each in column] for column in batch])


def test_torchvision_moves_items(tmp_path: Path) -> None:
    store_of(tmp_path)
    v2, seen = import_torchvision().transforms.v2, 0
    moved = v2.Compose([v2.RandomResizedCrop(12, antialias=True), v2.RandomHorizontalFlip()])
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=COLUMNS, output="tv_tensors", transforms=moved)
    for image, targets in dataset:
        values = (image, *map(targets.__getitem__, COLUMNS[1:]))
        check([[each.as_subclass(torch.Tensor)] for each in values])
        seen += 1
    assert seen == 6


REFUSED: dict[str, tuple[Any, str]] = {
    "dtype": (packstore.Array("float64", spatial="DCHW"), "spatial takes one of uint8, uint16, int16, int32, float32"),
    "dtype of a map": (packstore.Array("float64", spatial=True), "spatial takes one of uint8, uint16, int32, float32"),
    "shape of a map": (packstore.Array("float32", (2,), spatial=True), "a shape of two to four sizes"),
    "axes": (packstore.Array("float32", spatial="WH"), "the axes: spatial='HW', 'CHW' or 'DCHW'"),
    "shape": (packstore.Array("float32", (1, 2, 3, 4, 5), spatial=True), "a shape of two to four sizes"),
    "shape and axes": (packstore.Array("float32", (3, 8, 9), spatial="DCHW"), "a shape of two to four sizes"),
    "ragged": (packstore.Array("float32", (3, 8, 9), ragged=True, spatial=True), "if sizes differ no shape"),
    "smooth map": (packstore.Array("float32", spatial=True, smooth=True), r"declare packstore\.Image"),
    "smooth": (packstore.Array("float32", smooth=True), "smooth is for spatial arrays"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_they_may_not_be(tmp_path: Path, name: str) -> None:
    declared, message = REFUSED[name]
    fields: dict[str, Any] = {"image": packstore.Image("uint8"), "values": declared}
    sample = {"image": np.zeros((8, 9, 3), np.uint8), "values": np.zeros((2, 3, 8, 9))}
    not_packed(UsageError, [sample], tmp_path / "s.lmdb", message, fields=fields)


@pytest.mark.parametrize(
    ("shape", "spatial"), [((2, 3, 9, 9), "DCHW"), ((2, 3, 8), "DCHW"), ((8, 9), "DCHW"), ((9, 9), True)]
)
def test_they_have_the_size_of_their_image(tmp_path: Path, shape: tuple[int, ...], spatial: Any) -> None:
    fields: dict[str, Any] = {"image": packstore.Image("uint8"), "values": packstore.Array("uint8", spatial=spatial)}
    sample = {"image": np.zeros((8, 9, 3), np.uint8), "values": np.zeros(shape, np.uint8)}
    not_packed(SampleError, [sample], tmp_path / "s.lmdb", "values", fields=fields)


def test_what_cannot_have_them(tmp_path: Path) -> None:
    store_of(tmp_path)
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("image", "clip"))
    with pytest.raises(UsageError, match="Mosaic joins images, not volumes and clips"):
        PackedLoader(dataset, 4, augment=[A.RandomCrop(16)], mix=packstore.augment.Mosaic(32))
    with pytest.raises(UsageError, match="AugMix"):
        PackedLoader(dataset, 4, augment=[A.RandomCrop(16), packstore.augment.AugMix()])
    with pytest.raises(PackstoreError, match="would change the images and not 'clip'"):
        packstore.convert(tmp_path / "s.lmdb", tmp_path / "small.lmdb", max_side=8)
