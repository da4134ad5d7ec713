"""Colours of ``fill`` and ``value``: the same image in every store, normalised in advance or by the loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packstore
from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from tests.internals import NORMALIZATIONS, UsageError
from tests.makers.images import encode, picture
from tests.makers.torchvision import import_torchvision

pytestmark = pytest.mark.slow

COLOUR = (10, 130, 250)
ENCODINGS = {"original": 1e-5, "uint8": 1e-5, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""Largest difference of a normalised value from that of bytes normalised in float32."""
SIDE = 24

OPERATIONS: dict[str, list[Any]] = {
    "pad": [A.Pad((3, 0, 1, 2))],
    "pad-colour": [A.Pad(2, fill=COLOUR)],
    "pad-crop": [A.Pad(4), A.RandomHorizontalFlip(), A.RandomCrop(20)],
    "pad-twice": [A.Pad(2, fill=9), A.Pad(1, fill=COLOUR)],
    "pad-larger": [A.Pad(2, fill=COLOUR), A.CenterCrop(40)],
    "cifar": [A.RandomCrop(SIDE, padding=4), A.RandomHorizontalFlip()],
    "crop-colour": [A.RandomHorizontalFlip(), A.RandomCrop(SIDE, padding=9, fill=COLOUR)],
    "crop-edge": [A.RandomCrop(SIDE, padding=4, padding_mode="edge", fill=77)],
    "pad-if-needed": [A.RandomCrop(32, pad_if_needed=True, fill=114)],
    "center": [A.CenterCrop((30, 18))],
    "cutout": [A.Cutout(9)],
    "cutout-colour": [A.RandomVerticalFlip(), A.Cutout(9, fill=COLOUR)],
    "erase": [A.RandomErasing(1)],
    "erase-colour": [A.RandomErasing(0.7, value=COLOUR, count=2)],
    "erase-random": [A.RandomErasing(1, value="random")],
    "erase-one-colour": [A.RandomErasing(1, value="color")],
    "rotate": [A.RandomRotation(60, fill=COLOUR)],
    "rotate-none": [A.RandomRotation(60, "bilinear", fill=None)],
    "affine": [A.RandomAffine(30, (0.2, 0.3), (0.6, 0.8), 10, "bilinear", fill=COLOUR)],
    "perspective": [A.RandomPerspective(0.5, 1, "bilinear")],
    "group": [
        A.RandomChoice([A.RandomApply([A.Pad(2, fill=COLOUR)], 1), A.Pad(2, fill=7)]),
        A.RandomErasing(1),
        A.CenterCrop(26),
    ],
    "zoom": [A.RandomZoomOut(fill=COLOUR, p=1), A.CenterCrop(40)],
    "in-place": [A.InPlace(A.RandomErasing(1, value=COLOUR)), A.Resize(20), A.CenterCrop(26)],
    "validation": [A.Resize(22), A.CenterCrop(20)],
    "resized": [A.Resize(20), A.CenterCrop(26), A.Pad(1, fill=COLOUR)],
}
WAYS: dict[str, dict[str, Any]] = {
    "streaming": {"resident": False},
    "item": {"resident": False, "batch_size": 1, "workers": 1},
    "resident": {"resident": True},
    "list": {"collate": {"image": "list"}},
    "channels-last": {"resident": False, "channels_last": True},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of the same images in every encoding, in RGB and gray."""
    path = tmp_path_factory.mktemp("fills")
    for mode, normalize in (("RGB", "cifar10"), ("L", ([0.4], [0.3]))):
        samples = [
            {"key": str(n), "image": encode(picture(mode, SIDE, SIDE, n), "JPEG"), "label": n % 3} for n in range(6)
        ]
        for encoding in ENCODINGS:
            options: dict[str, Any] = {"normalize": normalize} if "float" in encoding else {}
            if encoding != "original":
                options["size"] = SIDE
            packstore.convert(samples, path / f"{mode}-{encoding}.h5", encoding=encoding, mode=mode, **options)
    packstore.convert(samples, path / "scaled.pth", encoding="float32", normalize="none", mode="L", size=SIDE)
    return path


def load(path: Path, operations: list[Any], normalize: Any, way: dict[str, Any], device: Any = "cpu") -> list[Any]:
    """The images of an epoch, as float32: normalised already, or by the loader."""
    dataset = PackedDataset(path, device=device)
    options: dict[str, Any] = {"batch_size": 4, "seed": 5, "augment": operations, "dtype": torch.float32} | way
    if not dataset.manifest.holds_floats:
        options["normalize"] = normalize
    return [image.cpu() for batch, _ in PackedLoader(dataset, **options) for image in batch]


def assert_close(found: list[Any], expected: list[Any], encoding: str, moved: bool) -> None:
    """Compares images. Bytes that were interpolated are rounded, floating point is not: there one level is allowed."""
    limit = ENCODINGS[encoding] + (0.022 if moved and "float" in encoding else 0)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= limit


ROUNDED = ("rotate", "affine", "perspective", "in-place", "resized", "validation")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_colour_is_the_same_in_every_store(root: Path, name: str, way: str, encoding: str) -> None:
    if encoding == "original" and (way == "resident" or name == "pad"):
        return  # no images of one size
    if way == "resident" and name in ("zoom", "group"):
        return  # operations after which images differ in size
    operations = OPERATIONS[name]
    expected = load(root / "RGB-uint8.h5", operations, "cifar10", {"resident": False})
    found = load(root / f"RGB-{encoding}.h5", operations, "cifar10", WAYS[way])
    assert_close(found, expected, encoding, name.startswith(ROUNDED))


@pytest.mark.parametrize("encoding", ["uint8", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in ("zoom", "group")])
def test_a_colour_is_the_same_on_a_device(root: Path, name: str, encoding: str, cuda: torch.device) -> None:
    expected = load(root / "RGB-uint8.h5", OPERATIONS[name], "cifar10", {"resident": False})
    for resident in (False, True):
        found = load(root / f"RGB-{encoding}.h5", OPERATIONS[name], "cifar10", {"resident": resident}, cuda)
        for one, other in zip(found, expected, strict=True):  # bytes that were interpolated may differ by one, too
            assert (one - other).abs().max() <= ENCODINGS[encoding] + 0.022 * name.startswith(ROUNDED)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "operation",
    [
        A.Pad(3, fill=200),
        A.RandomCrop(SIDE, padding=4, fill=(200, 200, 200)),
        A.Cutout(9, fill=200),
        A.RandomErasing(1, value=(200, 200, 200)),
        A.RandomRotation(60, fill=200),
        A.CenterCrop(40),
    ],
    ids=lambda operation: type(operation).__name__,
)
@pytest.mark.parametrize("way", ["streaming", "resident", "list"])
def test_gray(root: Path, operation: Any, encoding: str, way: str) -> None:
    if way == "resident" and encoding == "original":
        return
    normalize = ([0.4], [0.3])
    expected = load(root / "L-uint8.h5", [operation], normalize, {"resident": False})
    found = load(root / f"L-{encoding}.h5", [operation], normalize, WAYS[way])
    assert_close(found, expected, encoding, moved=False)
    if way == "streaming" and encoding == "float32":  # as scaled pixels: no mean, no deviation
        scaled = load(root / "scaled.pth", [operation], None, WAYS[way])
        assert_close([(image - 0.4) / 0.3 for image in scaled], expected, encoding, moved=False)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_views_fill_with_colours(root: Path, encoding: str) -> None:
    views = {"a": (2, [A.RandomCrop(20), A.RandomErasing(1, value=COLOUR), A.RandomRotation(50, fill=COLOUR)])}

    def crops(path: Path) -> torch.Tensor:
        dataset = PackedDataset(path)
        options = {} if dataset.manifest.holds_floats else {"normalize": "cifar10"}
        batch, _ = next(iter(PackedLoader(dataset, 6, views=views, dtype=torch.float32, **options)))
        found: torch.Tensor = batch["a"]
        return found

    expected, found = crops(root / "RGB-uint8.h5"), crops(root / f"RGB-{encoding}.h5")
    assert (found - expected).abs().max() <= ENCODINGS[encoding]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("fill", [0, 114, COLOUR], ids=str)
def test_mosaics_have_a_colour(root: Path, encoding: str, fill: Any) -> None:
    dataset = PackedDataset(root / f"RGB-{encoding}.h5", columns=("image",))
    options = {} if dataset.manifest.holds_floats else {"normalize": "cifar10"}
    loader = PackedLoader(dataset, 6, mix=A.Mosaic(100, fill=fill), dtype=torch.float32, **options)
    corner = next(iter(loader))[0, :, 0, 0]
    mean, std = map(torch.tensor, (NORMALIZATIONS["cifar10"].mean, NORMALIZATIONS["cifar10"].std))
    assert torch.allclose(corner, (torch.tensor(fill) / 255 - mean) / std, atol=ENCODINGS[encoding])


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("fill", [0, 114, COLOUR], ids=str)
def test_padding_is_that_of_torchvision(root: Path, encoding: str, fill: Any) -> None:
    import_torchvision()
    from torchvision.transforms import v2

    mean, std = NORMALIZATIONS["cifar10"].mean, NORMALIZATIONS["cifar10"].std
    steps = [v2.Pad(4, fill=fill), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    images = [image for image, _ in PackedDataset(root / "RGB-uint8.h5")]
    expected = [v2.Compose(steps)(image) for image in images]
    for operations in ([A.Pad(4, fill=fill), A.CenterCrop(SIDE + 8)], [A.RandomCrop(SIDE + 8, padding=4, fill=fill)]):
        found = load(root / f"RGB-{encoding}.h5", operations, "cifar10", {})
        assert_close(found, expected, encoding, moved=False)


FILLING: dict[str, Callable[[Any], Any]] = {
    "Pad": lambda fill: A.Pad(2, fill=fill),
    "RandomCrop": lambda fill: [A.RandomCrop(11, pad_if_needed=True, fill=fill)],
    "RandomCrop-padding": lambda fill: [A.RandomHorizontalFlip(), A.RandomCrop(12, padding=3, fill=fill)],
    "Cutout": lambda fill: A.Cutout(40, fill=fill),
    "RandomErasing": lambda fill: A.RandomErasing(1, (0.3, 0.5), (1, 1), fill),
    "RandomErasing-three": lambda fill: A.RandomErasing(1, (0.3, 0.5), (1, 1), (fill,) * 3),
    "RandomZoomOut": lambda fill: A.RandomZoomOut(fill, (3, 4), 1),
    "warp-rotation": lambda fill: A.RandomRotation((45, 45), fill=fill),
    "warp-affine": lambda fill: A.RandomAffine((20, 30), scale=(0.5, 0.6), interpolation="bilinear", fill=(fill,) * 3),
    "warp-perspective": lambda fill: A.RandomApply([A.RandomPerspective(0.9, 1, "nearest", fill)], 1),
}
"""Operations that fill at least one whole pixel of small images, by name."""


@pytest.mark.parametrize(("mode", "white"), [("I;16", 65535), ("I;16S", 1), ("F", 1)], ids=lambda value: str(value))
@pytest.mark.parametrize("stored", ["pixels", "float32"])
@pytest.mark.parametrize("fill", [1000, 65535, -1000, 1.5])
@pytest.mark.parametrize("name", FILLING)
def test_other_modes_fill_with_their_own_values(
    tmp_path: Path, mode: str, white: int, stored: str, name: str, fill: float
) -> None:
    """A fill of 16 bits is 0 … 65,535, and of unlimited modes any value: that of a pixel before the normalisation."""
    dtype = {"I;16": "uint16", "I;16S": "int16", "F": "float32"}[mode]
    samples = [{"key": str(n), "image": np.full((8, 9, 1), 100 * n).astype(dtype)} for n in range(3)]
    if stored == "pixels" and mode == "F":
        return  # arrays of floating point are stored as they are
    fields = {"image": packstore.Image(dtype if stored == "pixels" else "float32", mode=mode)}
    options: dict[str, Any] = {} if stored == "pixels" or mode == "F" else {"normalize": ([0.5], [0.25])}
    packstore.convert(samples, tmp_path / "x.lmdb", fields=fields, **options)
    dataset = PackedDataset(tmp_path / "x.lmdb", columns=("image",))
    form = {"collate": {"image": "list"}} if name == "RandomZoomOut" else {}
    refused = (fill < 0 and mode == "I;16") or (fill == 1.5 and mode == "F" and name.startswith("warp"))
    if (fill > 32767 and mode == "I;16S") or (fill == 1.5 and mode != "F"):
        return  # no such pixels
    if refused:
        with pytest.raises(UsageError, match=r"(fill|value) should be (0 … 65535|a whole number)"):
            PackedLoader(dataset, 1, augment=FILLING[name](fill), **form)
        return
    images = [batch[0] for batch in PackedLoader(dataset, 1, augment=FILLING[name](fill), **form)]
    expected = (fill / white - 0.5) / 0.25 if options else fill
    for image in images:
        assert (image - expected).abs().min() <= abs(expected) * 1e-6


def test_a_colour_of_three_is_refused_for_gray(root: Path) -> None:
    for store in ("L-uint8.h5", "L-float16.h5", "L-original.h5"):
        dataset = PackedDataset(root / store)
        for operation in (A.Pad(2, fill=COLOUR), A.RandomApply([A.RandomErasing(1, value=COLOUR)])):
            with pytest.raises(UsageError, match="3 channels, and the images have 1"):
                PackedLoader(dataset, 2, augment=operation)


WRONG: dict[str, dict[str, Any]] = {
    "Pad": {"augment": A.Pad(2, fill=-2.1)},
    "RandomCrop": {"augment": A.RandomCrop(9, padding=4, fill=256)},
    "RandomErasing": {"augment": [A.RandomHorizontalFlip(), A.RandomErasing(value=-0.5)]},
    "Cutout": {"augment": A.RandomApply([A.Cutout(4, fill=300)])},
    "Mosaic": {"mix": A.Mosaic(30, fill=-1)},
}


@pytest.mark.parametrize("store", ["RGB-uint8.h5", "RGB-float16.h5", "RGB-original.h5", "L-float32.h5", "scaled.pth"])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_colour_is_refused(root: Path, store: str, name: str) -> None:
    """Such as the values of a store, which fills were once."""
    dataset = PackedDataset(root / store, columns=("image",))
    with pytest.raises(UsageError, match=f"{name}: .* should be 0 … 255 for these images.*a colour of the image"):
        PackedLoader(dataset, 2, **WRONG[name])


def test_units_are_not_part_of_an_operation(root: Path) -> None:
    """So a state fits loaders of the same operations, and an operation may be given to loaders of several stores."""
    operations = [A.Pad(2, fill=COLOUR), A.RandomApply([A.RandomErasing(value=5)])]
    first = PackedLoader(PackedDataset(root / "RGB-float16.h5"), 2, augment=operations)
    second = PackedLoader(PackedDataset(root / "RGB-uint8.h5"), 2, augment=operations)
    assert repr(first.options.augment) == repr(second.options.augment) == repr(tuple(operations))
    assert first.options.augment == second.options.augment == tuple(operations)
    assert operations[0].image_units is None
