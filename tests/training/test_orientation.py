"""EXIF orientation in training: what comes out of a store equals what comes of the upright images."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import packstore
from packstore import PackedDataset, PackedLoader, UsageError
from packstore.augment import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from packstore.testing.encodings import picture
from tests.makers.batches import images_of
from tests.makers.images import avif, heic

pytestmark = pytest.mark.slow

JPEGS: tuple[dict[str, Any], ...] = (
    {},
    {"subsampling": 0},
    {"progressive": True},
    {"gray": True},
    {"restart_marker_blocks": 3},
)
OTHERS = {"png": "PNG", "webp": "WEBP", "tif": "TIFF"}
RECIPES: dict[str, list[Any]] = {
    "random": [RandomResizedCrop(24), RandomHorizontalFlip()],
    "random wide": [RandomResizedCrop((20, 36))],
    "evaluation": [Resize(40), CenterCrop(32)],
    "centre": [CenterCrop((30, 22))],
    "cropped": [Resize(50), RandomCrop(40), RandomHorizontalFlip()],
}
FILES = ("original.lmdb", "original.h5", "plain.lmdb")

Stores = Callable[[str], Path]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of photos of all orientations, and the same ones upright as PNG, by Pillow."""
    root = tmp_path_factory.mktemp("photos")
    (root / "stored" / "a").mkdir(parents=True)
    (root / "upright" / "a").mkdir(parents=True)
    for orientation in range(1, 9):
        tags = Image.Exif()
        tags[0x0112] = orientation
        for number, options in enumerate(JPEGS):
            options = dict(options)
            image = Image.fromarray(picture(61 + orientation, 83 + 5 * number, 10 * orientation + number))
            image = image.convert("L") if options.pop("gray", False) else image
            image.save(root / "stored" / "a" / f"{number}{orientation}.jpg", quality=92, exif=tags, **options)
        for suffix, kind in OTHERS.items():
            image.save(root / "stored" / "a" / f"x{orientation}.{suffix}", kind, exif=tags)
        (root / "stored" / "a" / f"y{orientation}.heic").write_bytes(heic(70, 50, orientation))
        (root / "stored" / "a" / f"z{orientation}.avif").write_bytes(avif(70, 50, orientation))
    for path in (root / "stored" / "a").iterdir():
        if path.suffix == ".heic":
            import pillow_heif

            image = pillow_heif.open_heif(path).to_pillow()
        else:
            image = ImageOps.exif_transpose(Image.open(path))
        image.convert("RGB").save(root / "upright" / "a" / f"{path.name}.png")
    return root / "stored", root / "upright"


@pytest.fixture(scope="module")
def stores(photos: tuple[Path, Path]) -> Stores:
    """Stores by encoding and format; ``plain.lmdb`` has no seek index, ``upright.lmdb`` holds the upright images."""

    @functools.cache
    def get(name: str) -> Path:
        path, encoding = photos[0].parent / name, name.partition(".")[0]
        options: dict[str, Any] = {"plain": {"index": False}}.get(encoding, {"encoding": encoding})
        options = {} if encoding == "upright" else {"exif_transpose": True, **options}
        packstore.convert(photos[encoding == "upright"], path, source_kind="imagefolder", **options)
        return path

    return get


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*FILES, "uint8.h5"])
@pytest.mark.parametrize("decoder", ["engine", "turbojpeg"])
def test_items_stand_upright(name: str, stores: Stores, decoder: str) -> None:
    dataset = PackedDataset(stores(name), output="numpy", decoder=decoder)
    upright = PackedDataset(stores("upright.lmdb"), output="numpy")
    assert len(upright) >= 40
    for i in range(len(upright)):
        np.testing.assert_array_equal(dataset[i][0], upright[i][0], dataset.keys[i])
    np.testing.assert_array_equal(PackedDataset(stores(name), output="pil")[5][0], upright[5][0])
    tensors = PackedDataset(stores(name))
    for each in (tensors, pickle.loads(pickle.dumps(tensors))):
        np.testing.assert_array_equal(each[5][0].permute(1, 2, 0), upright[5][0])


def test_jpeg_stores_are_upright_within_what_jpeg_loses(stores: Stores) -> None:
    dataset, upright = (PackedDataset(stores(n), output="numpy") for n in ("jpeg.lmdb", "upright.lmdb"))
    for i in range(len(upright)):
        found, wanted = dataset[i][0], upright[i][0]
        assert found.shape == wanted.shape
        assert np.abs(found.astype(int) - wanted).mean() < 8, dataset.keys[i]


@pytest.mark.sampled(2, per="name")
@pytest.mark.parametrize("name", [*FILES, "uint8.h5"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("decoder", ["engine", "turbojpeg", "simplejpeg", "pillow"])
def test_batches_equal_those_of_the_upright_images(name: str, recipe: str, stores: Stores, decoder: str) -> None:
    dataset, upright = (PackedDataset(stores(n), decoder=decoder) for n in (name, "upright.lmdb"))
    options: dict[str, Any] = {"shuffle": True, "augment": RECIPES[recipe], "resident": False, "seed": 3}
    found, wanted = (images_of(PackedLoader(each, 7, **options)) for each in (dataset, upright))
    assert len(found) == len(upright)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("decoder", ["engine", "turbojpeg"])
def test_images_of_one_size_when_upright(tmp_path: Path, decoder: str) -> None:
    """Stored 40x30 or 30x40, all 40x30 upright: they make a batch without any operation. Others do not."""
    root = tmp_path / "photos"
    root.mkdir()
    for orientation in range(1, 9):
        tags = Image.Exif()
        tags[0x0112] = orientation
        size = (30, 40) if orientation < 5 else (40, 30)
        Image.fromarray(picture(*size, orientation)).save(root / f"{orientation}.jpg", exif=tags)
    packstore.convert(root, tmp_path / "a.lmdb", exif_transpose=True)
    dataset = PackedDataset(tmp_path / "a.lmdb", decoder=decoder)
    batches = list(PackedLoader(dataset, 8))
    assert batches[0].shape == (8, 3, 30, 40)
    assert torch.equal(batches[0], torch.stack([dataset[i] for i in range(8)]))
    with pytest.raises(UsageError, match="images differ in size"):
        list(PackedLoader(PackedDataset(tmp_path / "a.lmdb", exif_transpose=False), 8))


def test_alone_each_image_has_its_own_size(stores: Stores) -> None:
    dataset = PackedDataset(stores("original.lmdb"))
    rows = [i for i, key in enumerate(dataset.keys) if key.endswith("6.jpg")]
    for i, (images, _) in zip(rows, PackedLoader(dataset, 1, indices=rows), strict=True):
        assert torch.equal(images[0], dataset[i][0])


def test_the_dataset_overrides_what_the_store_wishes(photos: tuple[Path, Path], stores: Stores, tmp_path: Path) -> None:
    packstore.convert(photos[0], tmp_path / "plain.lmdb", source_kind="imagefolder")
    wish = stores("original.lmdb")
    plain = PackedDataset(tmp_path / "plain.lmdb", output="numpy")
    turned = PackedDataset(tmp_path / "plain.lmdb", output="numpy", exif_transpose=True)
    assert not plain.exif_transpose
    assert turned.exif_transpose
    row = list(plain.keys).index("a/06.jpg")
    assert plain[row][0].shape == (*turned[row][0].shape[1::-1], 3)
    np.testing.assert_array_equal(turned[row][0], PackedDataset(wish, output="numpy")[row][0])
    np.testing.assert_array_equal(plain[row][0], PackedDataset(wish, output="numpy", exif_transpose=False)[row][0])
    options: dict[str, Any] = {"augment": RECIPES["random"], "batch_size": 16}
    untouched = PackedLoader(PackedDataset(wish, exif_transpose=False), **options)
    for one, two in zip(PackedLoader(PackedDataset(tmp_path / "plain.lmdb"), **options), untouched, strict=True):
        assert torch.equal(one[0], two[0])


def test_pixels_cannot_be_turned_any_more(photos: tuple[Path, Path], stores: Stores, tmp_path: Path) -> None:
    for name, wanted, words in (
        ("uint8.h5", False, "were turned when they were packed; pack it again without --exif-transpose"),
        ("jpeg.lmdb", False, "were turned when they were packed"),
    ):
        assert len(PackedDataset(stores(name), exif_transpose=True))
        with pytest.raises(UsageError, match=words):
            PackedDataset(stores(name), exif_transpose=wanted)
    never: list[dict[str, Any]] = [{"encoding": "uint8"}, {"encoding": "jpeg"}, {"encoding": "uint8", "size": 32}]
    for number, options in enumerate(never):
        packstore.convert(photos[0], tmp_path / f"{number}.lmdb", source_kind="imagefolder", **options)
        assert len(PackedDataset(tmp_path / f"{number}.lmdb", exif_transpose=False))
        with pytest.raises(UsageError, match="have no EXIF any more; pack it again with --exif-transpose"):
            PackedDataset(tmp_path / f"{number}.lmdb", exif_transpose=True)
    with pytest.raises(UsageError, match="exif_transpose should be True, False or None, got 'yes'"):
        PackedDataset(stores("original.lmdb"), exif_transpose="yes")


def test_the_loader_says_who_turns(stores: Stores) -> None:
    with pytest.raises(UsageError, match=r"PackedDataset\(path, exif_transpose=…\)"):
        PackedLoader(PackedDataset(stores("original.lmdb")), 4, exif_transpose=True)
