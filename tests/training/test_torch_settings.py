"""Settings of torch that are the user's: they change neither pixels nor where a loader's tensors lie."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.training.augment import CenterCrop, Cutout, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from tests.makers.batches import same
from tests.makers.datasets import make_cifar10, make_folder


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    """Of what is made on the meta device, and should not have been, nothing can be read."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS: dict[str, Callable[[], Any]] = {
    "set_default_device": default_device,
    "set_default_dtype": default_dtype,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference_mode": torch.inference_mode,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


def pack(root: Path, name: str) -> None:
    folder, cifar = root / "photos", root / "cifar"
    if not folder.exists():
        make_folder(folder, per_class=4)
        make_cifar10(cifar)
    packstore.convert(folder, root / f"{name}.lmdb")
    packstore.convert(folder, root / f"{name}-ragged.h5", encoding="uint8", max_side=48)
    packstore.convert(cifar, root / f"{name}.pth", encoding="uint8")
    packstore.convert(cifar, root / f"{name}.h5", encoding="float16")


def batches(path: Path, augment: list[Any], resident: bool) -> list[torch.Tensor]:
    dataset = PackedDataset(path, "train", device="cpu")
    normalize = "cifar10" if path.suffix != ".h5" or "ragged" in path.name else None
    loader = PackedLoader(dataset, 5, shuffle=True, augment=augment, resident=resident, normalize=normalize)
    found = [images for _ in range(2) for images, _ in loader]
    return [*found, *(image for image, _ in [dataset[2], *dataset.__getitems__([3, 1])])]


@pytest.mark.slow
@pytest.mark.sampled(9)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    ("name", "augment", "resident"),
    [
        ("x.lmdb", [RandomResizedCrop(24), RandomHorizontalFlip()], False),
        ("x-ragged.h5", [Resize(24), CenterCrop(20)], False),
        ("x.pth", [RandomCrop(32, padding=4), RandomHorizontalFlip(), Cutout(8)], False),
        ("x.pth", [RandomCrop(32, padding=4, padding_mode="reflect"), RandomHorizontalFlip()], True),
        ("x.pth", [], False),
        ("x.h5", [RandomHorizontalFlip(), RandomResizedCrop(20)], True),
        ("x.h5", [Resize((9, 1))], False),
    ],
)
def test_batches_are_the_same(root: Path, setting: str, name: str, augment: list[Any], resident: bool) -> None:
    if not (root / "x.lmdb").exists():
        pack(root, "x")
    expected = batches(root / name, augment, resident)
    with SETTINGS[setting]():
        found = batches(root / name, augment, resident)
    assert same(found, expected)
    assert {image.device.type for image in found} == {"cpu"}


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_store_is_the_same(root: Path, setting: str) -> None:
    if not (root / "x.lmdb").exists():
        pack(root, "x")
    with SETTINGS[setting]():
        pack(root, setting)
    for end in (".lmdb", "-ragged.h5", ".pth", ".h5"):
        assert same(*(PackedDataset(root / f"{name}{end}", "train") for name in ("x", setting)))
