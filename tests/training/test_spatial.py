"""Arrays of one value a pixel, such as depth: they are cropped, resized and mirrored with their image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from tests.internals import SampleError, UsageError

RNG = np.random.default_rng(2)


def store_of(path: Path, suffix: str = "lmdb", dtype: str = "float32") -> list[Any]:
    """Images whose red is a ramp; the depth of a pixel is 1.5 times that."""
    samples = []
    for number in range(6):
        image = RNG.integers(0, 256, (20 + number, 30, 3), np.uint8)
        depth = image[..., 0] * 1.5 if dtype == "float32" else image[..., 0].astype(np.int64) * 100
        samples.append({"image": image, "depth": depth.astype(dtype), "label": number})
    fields: dict[str, Any] = {
        "image": packstore.Image("uint8"),
        "depth": packstore.Array(dtype, spatial=True),
        "label": "label",
    }
    packstore.convert(samples, path / f"s.{suffix}", fields=fields)
    return samples


@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
@pytest.mark.parametrize("dtype", ["float32", "uint16", "int32"])
def test_items_have_it(tmp_path: Path, dtype: str, suffix: str) -> None:
    samples = store_of(tmp_path, suffix, dtype)
    store = tmp_path / f"s.{suffix}"
    assert packstore.verify(store, decode=True).ok
    for (depth,), sample in zip(zip(PackedDataset(store, columns=("depth",))), samples, strict=True):
        assert depth.dtype == (torch.float32 if dtype == "float32" else torch.int32)
        assert np.array_equal(depth.numpy(), sample["depth"])


@pytest.mark.parametrize(
    "operations", [[RandomCrop(16), RandomHorizontalFlip()], [RandomHorizontalFlip(), RandomCrop(12)]]
)
def test_it_moves_with_its_image(tmp_path: Path, operations: list[Any]) -> None:
    store_of(tmp_path)
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("image", "depth"))
    for images, depth in PackedLoader(dataset, 3, shuffle=True, augment=operations):
        assert torch.equal(depth, images[:, 0].float() * 1.5)


def test_it_is_resized_to_the_nearest_pixel(tmp_path: Path) -> None:
    samples = store_of(tmp_path)
    known = {float(value) for sample in samples for value in np.unique(sample["depth"])}
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("image", "depth"))
    _, depth = next(iter(PackedLoader(dataset, 6, augment=[RandomResizedCrop(24)])))
    assert depth.shape == (6, 24, 24)
    assert set(depth.unique().tolist()) <= known


def test_what_it_may_not_be(tmp_path: Path) -> None:
    image = np.zeros((8, 9, 3), np.uint8)
    for declared, message in (
        (packstore.Array("float64", spatial=True), "spatial takes one of uint8, uint16, int32, float32"),
        (packstore.Array("float32", (2,), spatial=True), "a shape of two to four sizes"),
    ):
        fields: dict[str, Any] = {"image": packstore.Image("uint8"), "depth": declared}
        with pytest.raises(UsageError, match=message):
            packstore.convert([{"image": image, "depth": np.zeros((8, 9))}], tmp_path / "s.lmdb", fields=fields)
    fields = {"image": packstore.Image("uint8"), "depth": packstore.Array("float32", spatial=True)}
    with pytest.raises(SampleError, match="depth"):  # of another size than its image
        packstore.convert([{"image": image, "depth": np.zeros((9, 9), np.float32)}], tmp_path / "s.lmdb", fields=fields)
