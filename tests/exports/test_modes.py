"""Images of any mode leave by every export that holds them, and come back the same."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import PackedDataset
from tests.internals import UsageError, encode_png, fits_png, parse_mode

MODES = (
    *("L", "LA", "RGBA", "I;16", "RGB;16", "RGBA;16", "I;16S", "I", "F", "multi:5:uint16", "multi:3:float32"),
    *("multi:4:uint16", "multi:3:uint16", "multi:3:uint8", "multi:2:uint8"),
)
ARRAYS = ("npz", "hdf5", "zarr", "mds", "tfds", "webdataset")
FILES = ("imagefolder", "tar", "parquet", "recordio")
SUFFIXES = {"npz": ".npz", "hdf5": ".hdf5", "tar": ".tar"}


def arrays(name: str, height: int = 9) -> list[NDArray[Any]]:
    mode, rng = parse_mode(name), np.random.default_rng(3)
    shape = (5, height, 8, mode.channels)
    if mode.dtype == "float32":
        return list(rng.normal(0, 9, shape).astype(np.float32))
    low = -999 if mode.dtype.startswith("int") else 0
    return list(rng.integers(low, 256 if mode.dtype == "uint8" else 4096, shape).astype(mode.dtype))


def store_of(path: Path, name: str, images: list[NDArray[Any]] | None = None) -> packstore.Manifest:
    samples = [{"image": image, "label": number % 2} for number, image in enumerate(images or arrays(name))]
    dtype = parse_mode(name).dtype
    fields: dict[str, Any] = {"image": packstore.Image(dtype, mode=name), "label": packstore.Label(("a", "b"))}
    return packstore.convert(samples, path, fields=fields, encoding=dtype).manifest


def export_to(tmp_path: Path, kind: str, **options: Any) -> Path:
    out = tmp_path / f"out{SUFFIXES.get(kind, '')}"
    packstore.export(tmp_path / "s.h5", out, to=kind, **options)
    return out


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("mode", MODES)
def test_arrays_keep_their_mode(tmp_path: Path, mode: str, kind: str) -> None:
    manifest = store_of(tmp_path / "s.h5", mode)
    assert manifest.image.mode == mode
    out = export_to(tmp_path, kind)
    back = packstore.convert(out, tmp_path / "back.lmdb").manifest
    assert back.dataset_digest == manifest.dataset_digest
    assert packstore.verify(tmp_path / "s.h5", against=out).ok
    for (item, _), wanted in zip(PackedDataset(tmp_path / "back.lmdb", output="numpy"), arrays(mode), strict=True):
        assert np.array_equal(item, wanted.transpose(2, 0, 1) if wanted.dtype == np.float32 else wanted)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("mode", MODES)
def test_png_files_hold_up_to_16_bits_and_four_channels(tmp_path: Path, mode: str, kind: str) -> None:
    manifest = store_of(tmp_path / "s.h5", mode)
    if not fits_png(parse_mode(mode)):
        with pytest.raises(UsageError, match=r"does not hold images of mode|encode needs pixels"):
            export_to(tmp_path, kind, encode="png")
        return
    out = export_to(tmp_path, kind, encode="png")
    back = packstore.convert(out, tmp_path / "back.lmdb").manifest
    assert back.dataset_digest == manifest.dataset_digest


@pytest.mark.slow
def test_images_of_different_sizes_keep_their_mode(tmp_path: Path) -> None:
    images = [image for height in (7, 9, 11) for image in arrays("RGB;16", height)]
    manifest = store_of(tmp_path / "s.h5", "RGB;16", images)
    assert (manifest.image.kind, manifest.image.dtype) == ("ragged", "uint16")
    for kind in ARRAYS:
        out = tmp_path / f"out-{kind}{SUFFIXES.get(kind, '')}"
        packstore.export(tmp_path / "s.h5", out, to=kind)
        assert packstore.convert(out, tmp_path / f"{kind}.lmdb").manifest.dataset_digest == manifest.dataset_digest


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_png_files_are_what_others_read(dtype: str, channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max + 1, (9, 8, channels)).astype(dtype)
    data = encode_png(pixels)
    if dtype == "uint8" or channels == 1:
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))).reshape(pixels.shape), pixels)
    elif channels != 2:  # which OpenCV makes BGRA
        code = {3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGBA}[channels]
        found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(cv2.cvtColor(found, code), pixels)


def test_files_read_as_gray_are_exported_as_gray(tmp_path: Path) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    Image.fromarray(arrays("L", 40)[0][..., 0]).save(tmp_path / "images" / "a" / "0.jpg")
    packstore.convert(tmp_path / "images", tmp_path / "s.h5", mode="L")
    for encode in ("png", "jpeg"):
        out = tmp_path / encode
        packstore.export(tmp_path / "s.h5", out, to="imagefolder", encode=encode)
        (file,) = out.rglob(f"*.{'jpg' if encode == 'jpeg' else 'png'}")
        with Image.open(file) as image:
            assert image.mode == "L"
        assert packstore.convert(out, tmp_path / f"{encode}.lmdb").manifest.image.mode == "L"
