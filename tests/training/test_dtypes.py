"""The dtype of images: one rule for items and batches, for every encoding and every way to load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import CenterCrop, Pad, RandomHorizontalFlip
from tests.makers.images import encode, picture
from tests.makers.torchvision import import_torchvision

EXPECTED = {
    "original": torch.uint8,
    "jpeg": torch.uint8,
    "uint8": torch.uint8,
    **dict.fromkeys(("float32", "float16", "bfloat16"), torch.float32),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of each encoding."""
    path = tmp_path_factory.mktemp("dtypes")
    samples = [{"key": str(n), "image": encode(picture("RGB", 16, 16, n), "JPEG"), "label": n % 2} for n in range(6)]
    for encoding in EXPECTED:
        options: dict[str, Any] = {"normalize": "imagenet"} if "float" in encoding else {}
        if encoding != "original":
            options["size"] = 16
        packstore.convert(samples, path / f"{encoding}.h5", encoding=encoding, **options)
    return path


WAYS: dict[str, dict[str, Any]] = {
    "streaming": {"resident": False},
    "resident": {"resident": True},
    "channels-last": {"channels_last": True},
    "list": {"collate": {"image": "list"}},
    "padded": {"collate": {"image": "padded"}},
    "views": {"views": {"a": (2, [CenterCrop(8)])}},
    "crop": {"augment": [CenterCrop(12), RandomHorizontalFlip()]},
    "batches": {"augment": [Pad(2, fill=3), CenterCrop(18)]},
}


def image_of(batch: Any) -> torch.Tensor:
    images = batch[0]["a"] if isinstance(batch[0], dict) else batch[0]
    found: torch.Tensor = images if isinstance(images, torch.Tensor) else images[0]
    return found


@pytest.mark.parametrize("encoding", EXPECTED)
def test_items_and_slices(root: Path, encoding: str) -> None:
    dataset, expected = PackedDataset(root / f"{encoding}.h5"), EXPECTED[encoding]
    for image in (dataset[0][0], dataset[0:4][0], dataset[[2, 1]][0], next(iter(DataLoader(dataset, 3)))[0]):
        assert image.dtype == expected
    import_torchvision()
    for output in ("dict", "tv_tensors"):
        item = PackedDataset(root / f"{encoding}.h5", output=output)[0]
        assert (item["image"] if output == "dict" else item[0]).dtype == expected


@pytest.mark.parametrize("encoding", EXPECTED)
@pytest.mark.parametrize("way", WAYS)
def test_batches_have_the_dtype_of_items(root: Path, encoding: str, way: str) -> None:
    if way == "resident" and encoding in ("original", "jpeg"):
        return  # files are not resident
    dataset = PackedDataset(root / f"{encoding}.h5")
    assert image_of(next(iter(PackedLoader(dataset, 4, **WAYS[way])))).dtype == dataset[0][0].dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert image_of(next(iter(PackedLoader(dataset, 4, dtype=dtype, **WAYS[way])))).dtype == dtype


@pytest.mark.parametrize("encoding", ["float32", "float16", "bfloat16", "uint8"])
def test_results_of_functions_keep_their_dtype(root: Path, encoding: str) -> None:
    dataset = PackedDataset(root / f"{encoding}.h5")
    for function in (lambda images: images.to(torch.int64), lambda images: images.double()):
        expected = function(torch.zeros(1)).dtype
        for options in ({"augment": function}, {"pre_transform": function}):
            assert next(iter(PackedLoader(dataset, 4, **options)))[0].dtype == expected
