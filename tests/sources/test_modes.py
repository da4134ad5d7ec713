"""The mode of images that come as pixels, from Python and from files of arrays."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import packstore
from packstore import PackedDataset
from tests.internals import UsageError
from tests.makers.sources import not_packed

RNG = np.random.default_rng(1)
BYTES = RNG.integers(0, 256, (6, 28, 28), np.uint8)
DEEP = RNG.integers(0, 1 << 16, (6, 28, 28), np.uint16)
COLOUR = RNG.integers(0, 256, (6, 28, 28, 4), np.uint8)

GIVEN: dict[str, tuple[list[Any], str | None, str]] = {
    "gray pictures": ([Image.fromarray(each) for each in BYTES], "L", "uint8"),
    "pictures of 16 bits": ([Image.fromarray(each) for each in DEEP], "I;16", "uint16"),
    "pictures with alpha": ([Image.fromarray(each) for each in COLOUR], "RGBA", "uint8"),
    "pictures in colour": ([Image.fromarray(each[..., :3]) for each in COLOUR], None, "uint8"),
    "gray and colour": ([Image.fromarray(BYTES[0]), Image.fromarray(COLOUR[0, ..., :3])] * 3, None, "uint8"),
    "arrays": (list(DEEP), "I;16", "uint16"),
    "arrays of one channel": (list(BYTES[..., None]), "L", "uint8"),
    "tensors": ([torch.from_numpy(each)[None] for each in BYTES], "L", "uint8"),
    "tensors in colour": ([torch.from_numpy(each).permute(2, 0, 1) for each in COLOUR], "RGBA", "uint8"),
    "signed": ([each.astype(np.int16) for each in BYTES], "I;16S", "int16"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_pixels_are_kept_as_they_are(tmp_path: Path, name: str) -> None:
    images, mode, dtype = GIVEN[name]
    manifest = packstore.convert([(image, 1) for image in images], tmp_path / "s.lmdb", encoding=dtype).manifest
    assert (manifest.image.mode, manifest.image.dtype) == (mode, dtype)
    for (item, _), given in zip(PackedDataset(tmp_path / "s.lmdb", output="numpy"), images, strict=True):
        wanted = given.permute(1, 2, 0).numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
        wanted = wanted if wanted.ndim == 3 else wanted[..., None]
        assert np.array_equal(item, np.broadcast_to(wanted, item.shape))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((3, 28, 28), np.uint8), r"shape \(3, 28, 28\); expected \(height, width, channels\)"),
        (np.zeros((28, 28, 3), np.float32), "leave out the transform that makes floats"),
        (np.zeros((28, 28), np.int64), "found an image of int64"),
    ],
)
def test_pixels_that_have_to_be_declared(tmp_path: Path, image: Any, message: str) -> None:
    not_packed(UsageError, [(image, 1)], tmp_path / "s.lmdb", message, encoding="uint8")


def test_floating_point_is_declared(tmp_path: Path) -> None:
    images = RNG.normal(size=(4, 9, 8, 3)).astype(np.float32)
    fields: dict[str, Any] = {"image": packstore.Image("float32", mode="multi:3:float32")}
    manifest = packstore.convert([{"image": image} for image in images], tmp_path / "s.lmdb", fields=fields).manifest
    assert manifest.image.mode == "multi:3:float32"
    for item, wanted in zip(PackedDataset(tmp_path / "s.lmdb"), images, strict=True):
        assert np.array_equal(item.numpy(), wanted.transpose(2, 0, 1))


def test_a_later_image_of_another_mode_is_a_bad_sample(tmp_path: Path) -> None:
    samples = [(BYTES[n % 6], 0) for n in range(6)] + [(COLOUR[0], 0)]
    fields: dict[str, Any] = {"image": packstore.Image(mode="L"), "label": "label"}
    with pytest.raises(packstore.SampleError, match="with 4 channels; expected mode L"):
        packstore.convert(samples, tmp_path / "s.lmdb", fields=fields, encoding="uint8")


def test_a_further_image_has_a_mode_of_its_own(tmp_path: Path) -> None:
    samples = [{"image": COLOUR[n, ..., :3], "depth_map": DEEP[n]} for n in range(6)]
    fields: dict[str, Any] = {"image": packstore.Image("uint8"), "depth_map": packstore.Image("uint16")}
    manifest = packstore.convert(samples, tmp_path / "s.lmdb", fields=fields).manifest
    assert manifest.column("depth_map").mode == "I;16"
    assert manifest.image.mode is None
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("image", "depth_map"))
    assert np.array_equal(dataset[2][1][0].numpy(), DEEP[2])
    assert packstore.verify(tmp_path / "s.lmdb", decode=True).ok


def test_mnist_has_the_bytes_and_shapes_of_torchvisions(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for split in ("train", "t10k"):
        images = struct.pack(">IIII", 0x803, len(BYTES), 28, 28) + BYTES.tobytes()
        (folder / f"{split}-images-idx3-ubyte").write_bytes(images)
        labels = struct.pack(">II", 0x801, len(BYTES)) + bytes(range(len(BYTES)))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(labels)
    manifest = packstore.convert(tmp_path / "MNIST", tmp_path / "m.lmdb").manifest
    assert manifest.image.nbytes == 2 * BYTES.nbytes
    for (image, label), number in zip(PackedDataset(tmp_path / "m.lmdb", "train"), range(6), strict=True):
        assert (image.shape, label) == ((1, 28, 28), number)
        assert np.array_equal(image[0].numpy(), BYTES[number])
    picture, _ = PackedDataset(tmp_path / "m.lmdb", "train", output="pil")[0]
    assert picture.mode == "L"
    net = torch.nn.Conv2d(1, 4, 3)
    images, _ = next(iter(packstore.PackedLoader(PackedDataset(tmp_path / "m.lmdb", "train"), 6, dtype=torch.float32)))
    assert net(images).shape == (6, 4, 26, 26)
