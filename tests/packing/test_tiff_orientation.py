"""TIFF's own orientation: every kind of file comes upright, on every way from a file to a batch and back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import packstore
from packstore import PackedDataset, PackedLoader, convert, export, verify
from packstore.augment import CenterCrop
from packstore.images.decoders import get_decoder
from packstore.stores import open_store
from tests.internals import Reading, image_size, parse_mode, to_corners
from tests.makers.tiffs import LAYOUTS, SIZE, Layout, oriented, tiff

pytest.importorskip("tifffile")
CROP = 12, 10

Check = Callable[[Path, list[NDArray[Any]], Layout], None]


def write(folder: Path, layout: Layout, orientation: int) -> list[NDArray[Any]]:
    """Writes three files of a class. Returns the pixels to expect, ``(H, W, C)``."""
    (folder / "a").mkdir(parents=True)
    for number in range(3):
        (folder / "a" / f"{number}.tif").write_bytes(layout.write(number, oriented(orientation)))
    return [layout.pixels(number, orientation) for number in range(3)]


def pack(images: Path, **options: Any) -> Path:
    convert(images, images.with_suffix(".lmdb"), mode="keep", **options)
    return images.with_suffix(".lmdb")


def check_items(images: Path, expected: list[NDArray[Any]], layout: Layout) -> None:
    del layout
    dataset = PackedDataset(pack(images), output="numpy")
    for (found, _), wanted in zip(dataset, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def check_batches(images: Path, expected: list[NDArray[Any]], layout: Layout) -> None:
    del layout
    (batch, _), *_ = PackedLoader(PackedDataset(pack(images)), 3)
    np.testing.assert_array_equal(batch, np.stack(expected).transpose(0, 3, 1, 2))


def check_crops(images: Path, expected: list[NDArray[Any]], layout: Layout) -> None:
    del layout
    (batch, _), *_ = PackedLoader(PackedDataset(pack(images)), 3, augment=[CenterCrop(CROP)])
    top, left = ((side - crop) // 2 for side, crop in zip(expected[0].shape[:2], CROP, strict=True))
    wanted = np.stack(expected)[:, top : top + CROP[0], left : left + CROP[1]]
    np.testing.assert_array_equal(batch, wanted.transpose(0, 3, 1, 2))


def check_pixels(images: Path, expected: list[NDArray[Any]], layout: Layout) -> None:
    store = pack(images, encoding=parse_mode(layout.mode).dtype)
    (batch, _), *_ = PackedLoader(PackedDataset(store), 3)
    np.testing.assert_array_equal(batch, np.stack(expected).transpose(0, 3, 1, 2))
    assert verify(store, decode=True, against=images).problems == ()


def check_eight_bits(images: Path, expected: list[NDArray[Any]], layout: Layout) -> None:
    """Values of more bits are scaled first, so only those of 8 bits are compared."""
    mode = {1: "L", 5: "multi:5:uint8"}.get(expected[0].shape[2], "RGB")
    store = images.with_suffix(".lmdb")
    convert(images, store, encoding="uint8", mode=mode, depth="scale", alpha="drop")
    (batch, _), *_ = PackedLoader(PackedDataset(store), 3)
    assert batch.shape[2:] == expected[0].shape[:2]
    for found, wanted in zip(batch.numpy().transpose(0, 2, 3, 1), expected, strict=True):
        if wanted.dtype == np.uint8:
            np.testing.assert_array_equal(found, wanted[..., : found.shape[2]])
        else:
            assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.99


def check_decoders(images: Path, expected: list[NDArray[Any]], layout: Layout) -> None:
    files = [path.read_bytes() for path in sorted(images.rglob("*.tif"))]
    decoder = get_decoder(reading=Reading(layout.mode))
    for turn in (False, True):
        found = [
            *(decoder.decode_small(file, 4, exif_transpose=turn) for file in files),
            *(decoder.decode(file, exif_transpose=turn) for file in files),
            *decoder.decode_each(files, exif_transpose=turn),
        ]
        for pixels, wanted in zip(found, expected * 3, strict=True):
            np.testing.assert_array_equal(pixels, wanted)
    box = 3, 5, *CROP
    part = decoder.decode_crop(files[0], box)
    np.testing.assert_array_equal(part, expected[0][3 : 3 + CROP[0], 5 : 5 + CROP[1]])


def check_sizes(images: Path, expected: list[NDArray[Any]], layout: Layout) -> None:
    """Those that a page, an audit, and fractions of boxes take."""
    del layout
    height, width = expected[0].shape[:2]
    file = next(images.rglob("*.tif")).read_bytes()
    np.testing.assert_allclose(to_corners([[0.0, 0.0, 1.0, 1.0]], "xyxyn", file), [[0, 0, width, height]])
    store = pack(images)
    with open_store(store) as reader:
        assert {image_size(reader, 0, turned) for turned in (False, True)} == {(height, width)}
    report = packstore.audit(store, pixels=True)
    assert not [finding for finding in report.findings if finding.kind in ("orientation", "damaged", "undecodable")]


CHECKS: dict[str, Check] = {
    "items": check_items, "batches": check_batches, "crops": check_crops, "pixels": check_pixels,
    "eight bits": check_eight_bits, "decoders": check_decoders, "sizes": check_sizes,
}  # fmt: skip


@pytest.mark.sampled(14, fast=4)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_kind_comes_upright_everywhere(check: str, layout: str, orientation: int, tmp_path: Path) -> None:
    expected = write(tmp_path / "images", LAYOUTS[layout], orientation)
    assert expected[0].shape[:2] == (SIZE if orientation < 5 else SIZE[::-1])
    CHECKS[check](tmp_path / "images", expected, LAYOUTS[layout])


@pytest.mark.sampled(4, fast=2)
@pytest.mark.parametrize(
    ("layout", "encoding"),
    [
        *product(("gray8", "rgb8", "gray16", "rgb16"), ("original", "pixels")),
        *product(("gray8", "rgb8"), ("jpeg",)),
    ],
)
@pytest.mark.parametrize("orientation", range(2, 9))
def test_exif_transpose_changes_nothing(encoding: str, layout: str, orientation: int, tmp_path: Path) -> None:
    """Nor does a conversion count such files as images that are not upright."""
    images, made = tmp_path / "images", LAYOUTS[layout]
    expected = write(images, made, orientation)
    options = {"mode": "keep", "encoding": parse_mode(made.mode).dtype if encoding == "pixels" else encoding}
    reports = [convert(images, tmp_path / f"{turn}.lmdb", exif_transpose=turn, **options) for turn in (False, True)]
    assert [report.oriented for report in reports] == [0, 0]
    one, other = (PackedDataset(tmp_path / f"{turn}.lmdb", output="numpy") for turn in (False, True))
    for (found, _), (same, _), wanted in zip(one, other, expected, strict=True):
        np.testing.assert_array_equal(found, same)
        assert found.shape == wanted.shape
        if encoding != "jpeg":
            np.testing.assert_array_equal(found, wanted)
    for turn in (False, True):
        assert verify(tmp_path / f"{turn}.lmdb", decode=True, against=images).problems == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["gray8", "rgb8", "palette", "bilevel", "gray16", "rgb16"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exports_are_upright(layout: str, orientation: int, tmp_path: Path) -> None:
    expected = write(tmp_path / "images", LAYOUTS[layout], orientation)
    export(pack(tmp_path / "images"), tmp_path / "out", to="imagefolder", encode="png")
    convert(tmp_path / "out", tmp_path / "again.lmdb", mode="keep")
    for (found, _), wanted in zip(PackedDataset(tmp_path / "again.lmdb", output="numpy"), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.sampled(4, fast=2)
@pytest.mark.parametrize("frames", ["all", "clips"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", range(1, 9))
def test_pages_of_one_size_when_upright(frames: str, layout: str, first: int, tmp_path: Path) -> None:
    """Each page is turned by its own tag; those that swap sides are stored the other way round."""
    kind = LAYOUTS[layout]
    pages, expected = [], []
    for number, orientation in enumerate([first, *range(1, 9)]):
        page = kind.make(number)
        page = page._replace(
            pixels=page.pixels if orientation < 5 else page.pixels.swapaxes(0, 1),
            tags=[*page.tags, oriented(orientation)],
        )
        pages.append(page)
        expected.append(kind.read(page.pixels, orientation))
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "x.tif").write_bytes(tiff(*pages, order=kind.order, big=kind.big))
    column = "image" if frames == "all" else "clip"
    dataset = PackedDataset(pack(tmp_path / "images", frames=frames), columns=(column,))
    found = list(dataset) if frames == "all" else dataset[0]
    for pixels, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(pixels, wanted.transpose(2, 0, 1))
