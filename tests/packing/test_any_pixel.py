"""Images of any pixel, from files to training and exports: nothing is lost unless it is said.

Each kind of file that 8-bit RGB does not hold: the question, the answer, and what comes out.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from packstore import PackedDataset, PackedLoader, convert, export, verify
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from tests.internals import EXPORTS, UsageError

tifffile = pytest.importorskip("tifffile")
SIZE = 24, 20


def noise(number: int, dtype: str, channels: int = 1, high: int | None = None) -> NDArray[Any]:
    """Values ``(H, W, C)``, the higher half of the dtype's among them."""
    rng = np.random.default_rng(number)
    if dtype == "float32":
        return rng.random((*SIZE, channels), np.float32)
    values = rng.integers(0, (high or np.iinfo(dtype).max) + 1, (*SIZE, channels)).astype(dtype)
    values[0, 0] = high or np.iinfo(dtype).max
    return values


def png(pixels: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(stream, "PNG")
    return stream.getvalue()


def tiff(pixels: NDArray[Any], **options: Any) -> bytes:
    stream = io.BytesIO()
    tifffile.imwrite(stream, pixels, photometric="rgb" if pixels.shape[-1] == 3 else "minisblack", **options)
    return stream.getvalue()


def moving(kind: str) -> Callable[[NDArray[Any]], bytes]:
    def write(pixels: NDArray[Any]) -> bytes:
        stream = io.BytesIO()
        frames = [Image.fromarray(each) for each in (pixels[..., 0], 255 - pixels[..., 0])]
        options = {"lossless": True} if kind == "WEBP" else {}
        frames[0].save(stream, kind, save_all=True, append_images=frames[1:], **options)
        return stream.getvalue()

    return write


Row = tuple[str, Callable[[int], NDArray[Any]], Callable[[NDArray[Any]], bytes], str, dict[str, Any], str]
TABLE: dict[str, Row] = {
    "16-bit gray PNG": ("png", lambda n: noise(n, "uint16", 1, 4095), png, "--depth", {"depth": "keep"}, "I;16"),
    "32-bit integer TIFF": ("tif", lambda n: noise(n, "int32"), tiff, "--depth", {"depth": "keep"}, "I"),
    "32-bit float TIFF": ("tif", lambda n: noise(n, "float32"), tiff, "--depth", {"depth": "keep"}, "F"),
    "16-bit RGB TIFF": ("tif", lambda n: noise(n, "uint16", 3), tiff, "--depth", {"depth": "keep"}, "RGB;16"),
    "TIFF of five channels": (
        "tif", lambda n: noise(n, "uint8", 5), lambda pixels: tiff(pixels, planarconfig="contig"), "--mode keep",
        {"mode": "keep"}, "multi:5:uint8",
    ),
    "TIFF of five pages": (
        "tif", lambda n: noise(n, "uint8"), lambda p: tiff(np.repeat(p[None, ..., 0], 5, 0)), "--frames",
        {"frames": "first", "mode": "keep"}, "L",
    ),
    "GIF of two frames": ("gif", lambda n: noise(n, "uint8"), moving("GIF"), "--frames",
                          {"frames": "first", "mode": "L"}, "L"),
    "WebP of two frames": ("webp", lambda n: noise(n, "uint8"), moving("WEBP"), "--frames",
                           {"frames": "first", "mode": "L"}, "L"),
    "PNG with alpha": ("png", lambda n: noise(n, "uint8", 4), png, "--alpha", {"alpha": "keep"}, "RGBA"),
}  # fmt: skip


@pytest.mark.parametrize("encoding", ["original", "pixels"])
@pytest.mark.parametrize("name", TABLE)
def test_what_convert_asks_and_what_comes_out(name: str, encoding: str, tmp_path: Path) -> None:
    suffix, make, write, question, answer, mode = TABLE[name]
    (tmp_path / "images" / "a").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "images" / "a" / f"{number}.{suffix}").write_bytes(write(make(number)))
    with pytest.raises(UsageError, match=rf"a/0\.{suffix}: it has .*{question}"):
        convert(tmp_path / "images", tmp_path / "s.lmdb")
    dtype = str(make(0).dtype)
    manifest = convert(
        tmp_path / "images", tmp_path / "s.lmdb", encoding=dtype if encoding == "pixels" else None, **answer
    ).manifest
    assert manifest.image.mode == mode
    for number, (image, _) in enumerate(PackedDataset(tmp_path / "s.lmdb")):
        assert image.dtype == {"uint16": torch.int32}.get(dtype, getattr(torch, dtype))
        np.testing.assert_array_equal(image, make(number).transpose(2, 0, 1))
    assert verify(tmp_path / "s.lmdb", decode=True, against=tmp_path / "images").ok


def make_set(folder: Path, name: str) -> list[NDArray[Any]]:
    """A set of eight images of two classes; returns them class by class."""
    channels, dtype, high = {"X-rays": (1, "uint16", 4095), "five channels": (5, "uint16", None)}[name]
    images = [noise(number, dtype, channels, high) for number in range(8)]
    for number, pixels in enumerate(images):
        place = folder / ("ill", "well")[number % 2] / (f"{number}.png" if channels == 1 else f"{number}.tif")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(png(pixels) if channels == 1 else tiff(pixels, planarconfig="contig"))
    return images[::2] + images[1::2]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["original", "uint16", "float32"])
@pytest.mark.parametrize("name", ["X-rays", "five channels"])
def test_a_set_is_packed_and_trained_on(name: str, encoding: str, tmp_path: Path) -> None:
    images = make_set(tmp_path / "images", name)
    normalize: dict[str, Any] = {"normalize": "auto"} if encoding == "float32" else {}
    report = convert(tmp_path / "images", tmp_path / "s.h5", mode="keep", encoding=encoding, **normalize)
    channels = images[0].shape[-1]
    values = np.stack(images).reshape(-1, channels).astype(np.float64) / 65535
    if encoding == "float32":
        found = report.manifest.normalization
        assert found is not None
        np.testing.assert_allclose([found.mean, found.std], [values.mean(0), values.std(0)], rtol=1e-4)
        operations: list[Any] = [RandomHorizontalFlip()]
    else:
        operations = [RandomResizedCrop(16), RandomHorizontalFlip()]
    further: dict[str, Any] = {"normalize": (values.mean(0).tolist(), values.std(0).tolist())}
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(channels, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 2)
    )
    before = [weights.clone() for weights in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = PackedLoader(
        PackedDataset(tmp_path / "s.h5"), 4, shuffle=True, augment=operations, **(further if not normalize else {})
    )
    for batch, labels in loader:
        assert batch.dtype == torch.float32
        assert 0.05 < float(batch.std()) < 20
        torch.nn.functional.cross_entropy(model(batch), labels).backward()
    optimizer.step()
    assert all(bool((now != then).any()) for now, then in zip(model.parameters(), before, strict=True))


ARRAYS = ("npz", "zarr", "hdf5", "tfds", "mds", "webdataset")
"""Exports that hold any pixels; ``tests/exports/test_modes.py`` is about them."""


@pytest.mark.parametrize("to", [to for to in EXPORTS if to not in ARRAYS])
@pytest.mark.parametrize("name", ["X-rays", "five channels"])
def test_an_export_of_files_is_refused_and_says_what_holds_the_pixels(name: str, to: str, tmp_path: Path) -> None:
    make_set(tmp_path / "images", name)
    convert(tmp_path / "images", tmp_path / "s.lmdb", mode="keep", encoding="uint16")
    with pytest.raises(UsageError, match=r"--encode png|which no PNG holds"):
        export(tmp_path / "s.lmdb", tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


def test_a_copy_does_not_apply_an_answer_again(tmp_path: Path) -> None:
    """A mode that was named beside an answer holds alpha, or all bits."""
    cases: list[tuple[str, NDArray[Any], dict[str, Any]]] = [
        ("LA", noise(0, "uint8", 2), {"encoding": "uint8", "alpha": "over:black"}),
        ("I;16", noise(0, "uint16"), {"encoding": "uint16", "depth": "clip"}),
    ]
    for mode, pixels, options in cases:
        root = tmp_path / options["encoding"]
        (root / "in").mkdir(parents=True)
        (root / "in" / "0.png").write_bytes(png(pixels))
        packed = convert(root / "in", root / "s.h5", mode=mode, **options)
        copy = convert(root / "s.h5", root / "copy.lmdb")
        assert copy.manifest.dataset_digest == packed.manifest.dataset_digest
        np.testing.assert_array_equal(PackedDataset(root / "copy.lmdb", output="numpy")[0], pixels)
