"""Thin images that operations enlarge beyond all memory: the crop alone is computed, or the record fails by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import packstore
from packstore import PackedDataset
from packstore.augment import CenterCrop, ColorJitter, Pad, RandomCrop, RandomResize, Resize
from tests.internals import Cut, DecodeError, UsageError, check_padding, resize_shown
from tests.internals import resample_images as resize

SIZES = [(1, 65500), (65500, 1)]
SCRIPT = """
import resource, sys
import numpy as np
import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import *

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
WORK = {
    "crop": [Resize(256), CenterCrop(224)],
    "random crop": [RandomHorizontalFlip(), Resize(256), RandomCrop(224)],
    "bicubic": [Resize(256, interpolation="bicubic"), CenterCrop(224)],
    "nearest": [Resize(256, interpolation="nearest"), CenterCrop(224)],
    "lanczos": [Resize(256, interpolation="lanczos"), CenterCrop(224)],
    "shortest": [RandomShortestSize([200, 300]), RandomCrop(224, pad_if_needed=True, fill=7)],
    "jitter": [ScaleJitter(1024), RandomCrop(224, pad_if_needed=True)],
    "between": [RandomResize(200, 400), ColorJitter(0.1), RandomCrop(224)],
    "rotation": [Resize(256), RandomRotation(10), CenterCrop(224)],
    "list": [Resize(256)],
}
path, columns = sys.argv[1], tuple(sys.argv[2].split(","))
for name, work in WORK.items():
    options = {"collate": {"image": "list"}} if name == "list" else {}
    for on_error in ("raise", "skip"):
        dataset = PackedDataset(path, columns=columns, output="dict")
        try:
            loader = PackedLoader(dataset, 2, augment=work, on_error=on_error, **options)
            print(name, on_error, sum(len(batch["image"]) for batch in loader))
        except packstore.PackstoreError as error:
            print(name, on_error, type(error).__name__, "thin" in str(error))
"""


def make_store(folder: Path, kind: str, size: tuple[int, int]) -> tuple[Path, str]:
    """Makes a store of a thin image and an ordinary one; returns the columns to load."""
    sizes = {"ordinary": (280, 300), "thin": size}
    if kind == "masks":
        with packstore.Writer(folder / "a.lmdb", {"image": "image", "mask": "mask"}, encoding="uint8") as writer:
            for key, (height, width) in sizes.items():
                mask = np.zeros((height, width), np.uint8)
                writer.add(image=np.full((height, width, 3), 9, np.uint8), mask=mask, key=key)
        return folder / "a.lmdb", "image,mask"
    (folder / "photos").mkdir()
    for key, (height, width) in sizes.items():
        Image.new("RGB", (width, height), (9, 9, 9)).save(folder / "photos" / f"{key}.png")
    encoding = "original" if kind == "files" else "uint8"
    packstore.convert(folder / "photos", folder / "a.lmdb", encoding=encoding)
    return folder / "a.lmdb", "image"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not bound the memory of a process")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["files", "pixels", "masks"])
def test_memory_is_bounded(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    path, columns = make_store(tmp_path, kind, size)
    run = [sys.executable, "-c", SCRIPT, str(path), columns]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 20
    for line in lines:
        name, on_error, *rest = line.rsplit(" ", 3 if "Error" in line else 2)
        whole = name in ("crop", "random crop", "jitter")
        assert rest == (["2"] if whole else ["DecodeError", "True"] if on_error == "raise" else ["1"]), line


@given(
    st.integers(1, 4), st.integers(1, 90), st.integers(1, 60), st.booleans(), st.integers(-5, 70), st.integers(-5, 70)
)
def test_a_part_has_the_pixels_of_the_whole(short: int, long: int, side: int, tall: bool, top: int, left: int) -> None:
    height, width = (long, short) if tall else (short, long)
    pixels = np.random.default_rng(long).integers(0, 256, (height, width, 3), np.uint8)
    size = max(1, side * height // min(height, width)), max(1, side * width // min(height, width))
    cut = Cut((0, 0, height, width), size, (top, left, 3, 4))
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    whole = torch.nn.functional.pad(resize(image, size), (80, 80, 80, 80))
    assert torch.equal(cut(image), whole[..., 80 + top : 83 + top, 80 + left : 84 + left])


def test_one_record_may_not_make_more_pixels_than_an_image_may_have() -> None:
    thin = np.zeros((1, 65500, 3), np.uint8)
    part, window = resize_shown(thin, (256, 256 * 65500), (16, 8_000_000, 224, 224))
    assert part.shape == (224, 224, 3)
    assert window == (0, 0, 224, 224)
    with pytest.raises(DecodeError, match="1x65500 would become one of 256x16768000"):
        resize(torch.from_numpy(thin).permute(2, 0, 1)[None], (256, 256 * 65500))
    with pytest.raises(DecodeError, match="1x65500 would become"):
        resize_shown(thin, (256, 256 * 65500), (16, 8_000_000, 224, 224), "bicubic")


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_stores_of_thin_images(size: tuple[int, int], resident: bool, tmp_path: Path) -> None:
    for number in range(2):
        Image.new("RGB", size[::-1], (9, 9, 9)).save(tmp_path / f"{number}.png")
    packstore.convert(tmp_path, tmp_path.parent / "thin.pth", encoding="uint8", size=size, overwrite=True)
    dataset = packstore.PackedDataset(tmp_path.parent / "thin.pth", output="dict")
    options: dict[str, Any] = {"resident": True} if resident else {}
    with pytest.raises(packstore.PackstoreError, match=r"would become|makes images of"):
        [*packstore.PackedLoader(dataset, 2, augment=[Resize(256), ColorJitter(0.5), CenterCrop(224)], **options)]
    with pytest.raises(packstore.PackstoreError):
        [*packstore.PackedLoader(dataset, 2, augment=[Resize(256)], **options)]
    for work in ([Resize(256), CenterCrop(224)], [CenterCrop(224)]):
        if not resident or len(work) == 1:
            batch = next(iter(packstore.PackedLoader(dataset, 2, augment=work, **options)))
            assert batch["image"].shape == (2, 3, 224, 224)


def test_thin_images_of_both_ways_make_no_padded_batch(tmp_path: Path) -> None:
    for number, size in enumerate(SIZES):
        Image.new("RGB", size, (9, 9, 9)).save(tmp_path / f"{number}.png")
    packstore.convert(tmp_path, tmp_path.parent / "both.lmdb", overwrite=True)
    dataset = packstore.PackedDataset(tmp_path.parent / "both.lmdb", output="dict")
    with pytest.raises(UsageError, match="padded images of this batch would have 65500x65500"):
        [*packstore.PackedLoader(dataset, 2, collate={"image": "padded"})]


def test_operations_that_make_every_image_too_large_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    packstore.convert(tmp_path, tmp_path.parent / "one.lmdb", overwrite=True)
    dataset = packstore.PackedDataset(tmp_path.parent / "one.lmdb", output="dict")
    for work in ([Pad(20_000)], [RandomResize(40_000, 40_001)]):
        loader = packstore.PackedLoader(dataset, 1, augment=work, collate={"image": "list"}, on_error="skip")
        with pytest.raises(UsageError, match="augment= makes images of"):
            next(iter(loader))
    batch = next(iter(packstore.PackedLoader(dataset, 1, augment=[Pad(20_000), RandomCrop(16)])))
    assert batch["image"].shape == (1, 3, 16, 16)


@pytest.mark.parametrize(("stored", "resident"), [("uint8.h5", True), ("uint8.lmdb", False), ("png.lmdb", False)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: [RandomCrop(32, padding=10**7)],
        lambda: [RandomCrop(32, padding=7_000, padding_mode="edge")],
        lambda: [ColorJitter(0.1), RandomCrop(32, padding=6_685)],
        lambda: [Pad(10**6, padding_mode="edge"), CenterCrop(20)],
        lambda: [Pad((0, 0, 10**9, 0), padding_mode="edge"), CenterCrop(20)],
        lambda: [ColorJitter(0.1), Pad(10**6), CenterCrop(20)],
        lambda: [ColorJitter(0.1), RandomCrop((13_000, 13_000), pad_if_needed=True), CenterCrop(20)],
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_padding_beyond_what_an_image_may_have_is_refused(
    stored: str, resident: bool, make: Any, on_error: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for n in range(2):
        Image.new("RGB", (20, 20)).save(folder / f"{n}.png")
    store = tmp_path / stored
    options = {"encoding": "uint8", "size": 20} if stored.startswith("uint8") else {}
    packstore.convert(folder, store, **options)
    with pytest.raises(UsageError, match=r"makes images of .*178,956,970 that an image may have: choose"):
        next(
            iter(packstore.PackedLoader(PackedDataset(store), 2, augment=make(), resident=resident, on_error=on_error))
        )


@pytest.mark.parametrize("operation", [CenterCrop(20), Pad(6_678), RandomCrop(20, padding=6_678)])
def test_padding_within_it_is_not(operation: Any) -> None:
    check_padding(operation, (6_678,) * 4, (20, 20))
    with pytest.raises(UsageError, match=f"{type(operation).__name__}: padding makes images of 13376x13379 pixels"):
        check_padding(operation, (6_678, 6_681, 6_678, 6_678), (20, 20))
