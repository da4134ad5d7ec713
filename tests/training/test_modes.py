"""Images of other modes than 8-bit RGB: packed, verified, loaded, augmented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

import packstore
from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from tests.internals import UsageError
from tests.makers.sources import not_packed

tifffile = pytest.importorskip("tifffile")

DTYPES = {
    **dict.fromkeys(("L", "LA", "RGBA"), "uint8"),
    "I;16": "uint16",
    "I;16S": "int16",
    "I": "int32",
    "F": "float32",
    "multi:5:uint16": "uint16",
}
CHANNELS = {"LA": 2, "RGBA": 4, "multi:5:uint16": 5}
MODES = tuple(DTYPES)


def arrays(mode: str, count: int = 6, height: int = 22, width: int = 30) -> list[NDArray[Any]]:
    rng = np.random.default_rng(len(mode))
    shape = (count, height, width, CHANNELS.get(mode, 1))
    if mode == "F":
        return list(rng.normal(0, 3, shape).astype(np.float32))
    low = -3000 if mode in ("I", "I;16S") else 0
    return list(rng.integers(low, 256 if DTYPES[mode] == "uint8" else 4096, shape).astype(DTYPES[mode]))


def folder_of(path: Path, mode: str, images: list[NDArray[Any]] | None = None) -> Path:
    """A folder of two classes with image files of a mode."""
    for number, array in enumerate(images or arrays(mode)):
        folder = path / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        if DTYPES[mode] == "uint8" or mode == "I;16":
            Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).save(folder / f"{number}.png")
        else:
            options: dict[str, Any] = {"planarconfig": "contig"} if array.shape[2] > 1 else {}
            data = array if array.shape[2] > 1 else array[..., 0]
            tifffile.imwrite(folder / f"{number}.tif", data, photometric="minisblack", **options)
    return path


def in_order(mode: str) -> list[NDArray[Any]]:
    """The images as a store has them: class by class."""
    images = arrays(mode)
    return images[::2] + images[1::2]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
@pytest.mark.parametrize("encoding", ["original", "pixels", "float32"])
def test_every_mode_goes_through(tmp_path: Path, mode: str, encoding: str, suffix: str) -> None:
    folder = folder_of(tmp_path / "images", mode)
    dtype = DTYPES[mode]
    if encoding == "pixels":
        encoding = "float32" if mode == "F" else dtype
    store = tmp_path / f"s.{suffix}"
    manifest = packstore.convert(folder, store, encoding=encoding, mode="keep", normalize=None).manifest
    assert manifest.image.mode == mode
    assert packstore.verify(store, decode=True, against=folder).ok
    dataset = PackedDataset(store, columns=("image",))
    white = {"uint8": 255, "uint16": 65535}.get(dtype, 1) if encoding == "float32" else 1
    for item, wanted in zip(dataset, in_order(mode), strict=True):
        planes = wanted.transpose(2, 0, 1)
        assert np.array_equal(item.numpy(), planes if white == 1 else planes.astype(np.float32) / np.float32(white))
    expected = {"uint16": torch.int32, "int16": torch.int32}.get(dtype, getattr(torch, dtype))
    assert dataset[0].dtype == (torch.float32 if encoding == "float32" else expected)
    assert [each.shape for each in (dataset[0], dataset[:2][0])] == [dataset[0].shape] * 2
    again = packstore.convert(store, tmp_path / "again.h5", encoding=manifest.encoding).manifest
    assert again.dataset_digest == manifest.dataset_digest


def test_a_mode_is_part_of_the_digest_unless_it_is_rgb(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "L")
    rgb = packstore.convert(folder, tmp_path / "rgb.lmdb").manifest
    assert rgb.image.mode is None
    assert '"mode"' not in rgb.to_json()
    gray = packstore.convert(folder, tmp_path / "gray.lmdb", mode="L").manifest
    assert gray.dataset_digest != rgb.dataset_digest
    assert gray.records_digest == rgb.records_digest  # the files are the same


RECIPES: dict[str, dict[str, Any]] = {
    "crop and flip": {"augment": [A.RandomResizedCrop(16), A.RandomHorizontalFlip()]},
    "resize and crop": {"augment": [A.Resize(20), A.CenterCrop(16)]},
    "rotate and erase": {"augment": [A.Resize((16, 16)), A.RandomRotation(20), A.RandomErasing(1.0)]},
    "views": {"views": [[A.RandomResizedCrop(16), A.RandomHorizontalFlip()], [A.RandomResizedCrop(12)]]},
    "mixture": {"augment": [A.Resize((16, 16))], "mix": A.MixUp(0.4)},
}


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("encoding", ["original", "pixels"])
def test_geometry_is_that_of_each_channel(tmp_path: Path, mode: str, encoding: str, recipe: str) -> None:
    """Each channel as a gray image of floating point goes through the same operations to the same pixels."""

    def load(store: Path) -> list[torch.Tensor]:
        images, _ = next(iter(PackedLoader(PackedDataset(store), 6, resident=False, **RECIPES[recipe])))
        return images if isinstance(images, list) else [images]

    kept = "original" if encoding == "original" else "float32" if mode == "F" else DTYPES[mode]
    packstore.convert(folder_of(tmp_path / "images", mode), tmp_path / "s.lmdb", mode="keep", encoding=kept)
    found, channels = load(tmp_path / "s.lmdb"), CHANNELS.get(mode, 1)
    assert found[0].shape == (6, channels, 16, 16)
    dtype = {"uint8": torch.uint8, "float32": torch.float32}.get(DTYPES[mode], torch.int32)
    assert found[0].dtype == dtype
    # torch's kernel for bytes has weights of fewer bits; the engine's for floats differs from it in the last bits.
    floats = 1e-5 if encoding == "pixels" else 0
    allowed = floats if mode == "F" else 2.0 if DTYPES[mode] == "uint8" else 0.51
    for channel in range(channels):
        single = [array[..., channel : channel + 1].astype(np.float32) for array in arrays(mode)]
        of_one = tmp_path / f"{channel}.lmdb"
        packstore.convert(folder_of(tmp_path / str(channel), "F", single), of_one, mode="keep")
        for images, other in zip(found, load(of_one), strict=True):
            difference = (images[:, channel].double() - other[:, 0].double()).abs().max()
            assert difference <= allowed * (1 + (recipe == "mixture"))


@pytest.mark.parametrize("resident", [False, True])
def test_resident_or_not(tmp_path: Path, mode: str, resident: bool) -> None:
    folder = folder_of(tmp_path / "images", mode)
    encoding = "float32" if mode == "F" else DTYPES[mode]
    packstore.convert(folder, tmp_path / "s.h5", mode="keep", encoding=encoding, size=20)
    dataset = PackedDataset(tmp_path / "s.h5")
    images, _ = next(iter(PackedLoader(dataset, 6, resident=resident)))
    assert torch.equal(images, dataset[:][0])
    means = tuple(0.1 * n for n in range(1, CHANNELS.get(mode, 1) + 1))
    if mode == "F":
        return  # normalised when it is packed, or not at all
    floats, _ = next(iter(PackedLoader(dataset, 6, resident=resident, normalize=(means, means))))
    white = {"uint8": 255, "uint16": 65535}.get(DTYPES[mode], 1)
    mean = torch.tensor(means).view(1, -1, 1, 1)
    assert torch.allclose(floats, (images / white - mean) / mean, rtol=1e-4, atol=1e-4)
    halves, _ = next(iter(PackedLoader(dataset, 6, resident=resident, dtype=torch.float16)))
    assert halves.dtype == torch.float16


def test_resizing_is_torchs_in_floating_point(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "I;16")
    packstore.convert(folder, tmp_path / "s.lmdb", mode="keep")
    packstore.convert(folder, tmp_path / "s.h5", mode="keep", encoding="uint16", size=(11, 15), fit="squash")
    images, _ = next(iter(PackedLoader(PackedDataset(tmp_path / "s.lmdb"), 6, augment=[A.Resize((11, 15))])))
    source = torch.from_numpy(np.stack(in_order("I;16")).transpose(0, 3, 1, 2).astype(np.float32))
    wanted = interpolate(source, (11, 15), mode="bilinear", antialias=True, align_corners=False)
    assert (images - wanted).abs().max() <= 0.51  # the order of sums may differ
    assert (PackedDataset(tmp_path / "s.h5")[:][0] - wanted).abs().max() <= 0.51


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operations", "name"),
    [
        ([A.ColorJitter(saturation=0.4)], "ColorJitter"),
        ([A.RandomCrop(16), A.RandomGrayscale(1e-9)], "RandomGrayscale"),
        ([A.RandomApply([A.ColorJitter(saturation=0.4)], 1e-9)], r"RandomApply\(\[ColorJitter\]\)"),
        (
            [A.RandomChoice([A.RandomRotation(9), A.RandomOrder([A.RandomPhotometricDistort(p=1e-9)])], [1, 1e-9])],
            r"RandomChoice\(\[RandomRotation, RandomOrder\(\[RandomPhotometricDistort\]\)\]\)",
        ),
        ([A.ThreeAugment()], "ThreeAugment"),
        ([A.RandomErasing(1e-9, value="random")], "RandomErasing with random values"),
        (["rand-m9-mstd0.5"], "TimmAugment"),
        ([A.RandAugment()], "RandAugment"),
        ([A.TrivialAugmentWide()], "TrivialAugmentWide"),
        ([A.RandomCrop(16), A.AugMix()], "AugMix"),
        ([A.RandomShortestSize([16, 20]), A.ColorJitter(saturation=0.4)], "ColorJitter"),
    ],
)
def test_colour_operations_are_refused_by_name(tmp_path: Path, operations: list[Any], name: str) -> None:
    """The message says what to do instead; in `loads` that works."""
    options: dict[str, Any] = {"augment": operations}
    if isinstance(operations[0], A.RandomShortestSize):
        options["collate"] = {"image": "list"}
    read = '.*PackedDataset\\(…, mode="RGB"'
    for mode, problem in {
        "L": f"needs three channels, and these images have one .mode L.: {read}\\), or pack pixels with --mode RGB$",
        "LA": f'needs three channels, and these images have 2 .mode LA.: {read}, alpha="drop"',
        "I;16": f'needs 8 bits and three channels, .* have more bits and one .mode I;16.: {read}, depth="scale"',
        "F": "works on bytes, and these images are torch.float32: augment before normalising",
    }.items():
        store = tmp_path / f"{mode}.lmdb"
        packstore.convert(folder_of(tmp_path / mode, mode), store, mode="keep")
        with pytest.raises(UsageError, match=f"{name} {problem}"):
            PackedLoader(PackedDataset(store), 6, **options)
        if isinstance(operations[0], A.RandomCrop):
            with pytest.raises(UsageError, match=f"{name} {problem}"):
                PackedLoader(PackedDataset(store), 6, views=[operations])
        if mode != "F":
            given = {"I;16": {"depth": "scale"}, "LA": {"alpha": "drop"}}.get(mode, {})
            loads = PackedDataset(store, mode="RGB", **given)
            next(iter(PackedLoader(loads, 6, resident=False, **options)))


def test_channels_are_permuted_in_three_alone(tmp_path: Path) -> None:
    """Of RGBA the alpha was replaced."""
    for mode in ("L", "RGBA", "multi:5:uint16"):
        packstore.convert(folder_of(tmp_path / mode[:4], mode), tmp_path / f"{mode[:4]}.lmdb", mode="keep")
        with pytest.raises(UsageError, match="RandomChannelPermutation needs three channels"):
            PackedLoader(PackedDataset(tmp_path / f"{mode[:4]}.lmdb"), 6, augment=[A.RandomChannelPermutation()])


def test_operations_that_never_draw_colours_are_not_refused(tmp_path: Path) -> None:
    packstore.convert(folder_of(tmp_path / "images", "L"), tmp_path / "s.lmdb", mode="keep")
    operations = [
        A.RandomGrayscale(0),
        A.ColorJitter(0.2, 0.2),
        lambda images: images.expand(-1, 3, -1, -1),
        A.ThreeAugment(),
    ]
    assert next(iter(PackedLoader(PackedDataset(tmp_path / "s.lmdb"), 6, augment=operations)))[0].shape[1] == 3


def test_a_normalization_of_other_channels_is_refused_with_an_example(tmp_path: Path) -> None:
    packstore.convert(folder_of(tmp_path / "images", "L"), tmp_path / "s.lmdb", mode="keep")
    dataset = PackedDataset(tmp_path / "s.lmdb")
    with pytest.raises(UsageError, match=r"mode L .*: give one mean .* per channel, such as \(\[0\.13\], \[0\.3\]\)"):
        PackedLoader(dataset, 6, normalize="imagenet")
    PackedLoader(dataset, 6, normalize=([0.13], [0.3]))


def test_statistics_of_any_number_of_channels(tmp_path: Path, mode: str) -> None:
    folder = folder_of(tmp_path / "images", mode)
    manifest = packstore.convert(folder, tmp_path / "s.pth", mode="keep", normalize="auto", encoding="float32").manifest
    white = {"uint8": 255, "uint16": 65535}.get(DTYPES[mode], 1)
    stacked = np.stack(arrays(mode)).astype(np.float64) / white
    assert np.allclose(manifest.normalization.mean, stacked.mean((0, 1, 2)), rtol=1e-9)
    assert np.allclose(manifest.normalization.std, stacked.std((0, 1, 2)), rtol=1e-9)
    items = torch.stack([item for item, _ in PackedDataset(tmp_path / "s.pth")])
    assert items.mean((0, 2, 3)).abs().max() < 1e-4
    packstore.convert(folder, tmp_path / "raw.pth", mode="keep", normalize="none", encoding="float32")
    with pytest.raises(UsageError, match=r"given as they are packed; .*--normalize"):
        PackedLoader(
            PackedDataset(tmp_path / "raw.pth"), 2, normalize=([0.5] * stacked.shape[3], [1] * stacked.shape[3])
        )


def test_a_dataset_reads_files_in_another_mode(tmp_path: Path) -> None:
    packstore.convert(folder_of(tmp_path / "deep", "I;16"), tmp_path / "deep.lmdb", mode="keep")
    windowed = PackedDataset(tmp_path / "deep.lmdb", mode="RGB", depth="window:0,4095")
    image, _ = windowed[0]
    assert (image.dtype, image.shape) == (torch.uint8, (3, 22, 30))
    assert image.float().mean() == pytest.approx(127.5, abs=8)
    packstore.convert(folder_of(tmp_path / "alpha", "RGBA"), tmp_path / "alpha.lmdb", alpha="over:black")
    assert PackedDataset(tmp_path / "alpha.lmdb")[0][0].shape == (3, 22, 30)
    white = PackedDataset(tmp_path / "alpha.lmdb", alpha="over:white")[0][0].float()
    assert white.mean() > PackedDataset(tmp_path / "alpha.lmdb")[0][0].float().mean() + 50
    gray, _ = PackedDataset(tmp_path / "alpha.lmdb", mode="L", alpha="drop")[0]
    wanted = Image.fromarray(in_order("RGBA")[0][..., :3]).convert("L")
    assert np.array_equal(gray[0].numpy(), np.asarray(wanted))
    packstore.convert(tmp_path / "alpha", tmp_path / "pixels.h5", encoding="uint8", alpha="drop")
    with pytest.raises(UsageError, match=r"^mode says how .* holds uint8 pixels of mode RGB .*or leave it out"):
        PackedDataset(tmp_path / "pixels.h5", mode="L")


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_channels_without_colours_do_not_become_colours(tmp_path: Path, mode: str) -> None:
    (tmp_path / "images" / "class").mkdir(parents=True)
    image = np.arange(24, dtype=np.uint8).reshape(3, 4, 2)
    options = {"photometric": "minisblack", "planarconfig": "contig", "extrasamples": ["unspecified"]}
    tifffile.imwrite(tmp_path / "images" / "class" / "0.tif", image, **options)
    packstore.convert(tmp_path / "images", tmp_path / "a.lmdb", mode="keep")
    with pytest.raises(UsageError, match=rf"mode multi:2:uint8.* mode {mode} .* would lose some"):
        PackedDataset(tmp_path / "a.lmdb", mode=mode)
    assert np.array_equal(PackedDataset(tmp_path / "a.lmdb", output="numpy")[0][0], image)


def test_gray_and_colour_are_loaded_as_asked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(4):
        folder = tmp_path / "images" / "a"
        folder.mkdir(parents=True, exist_ok=True)
        shape = (20, 24, 3) if number % 2 else (20, 24)
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(folder / f"{number}.jpg")
    packstore.convert(tmp_path / "images", tmp_path / "s.lmdb")
    assert PackedDataset(tmp_path / "s.lmdb")[0][0].shape == (3, 20, 24)
    gray = PackedDataset(tmp_path / "s.lmdb", mode="L")
    assert gray[1][0].shape == (1, 20, 24)
    images, _ = next(iter(PackedLoader(gray, 4, augment=[A.RandomResizedCrop(16)], normalize=([0.5], [0.25]))))
    assert (images.shape, images.dtype) == ((4, 1, 16, 16), torch.float32)
    # The first is gray, and others are not.
    not_packed(UsageError, tmp_path / "images", tmp_path / "kept.lmdb", "3 channels, and 1 is read", mode="keep")


@pytest.mark.slow
def test_pil_images_have_the_mode(tmp_path: Path) -> None:
    for mode in ("L", "I;16", "F", "RGBA"):
        packstore.convert(folder_of(tmp_path / mode, mode), tmp_path / f"{mode}.lmdb", mode="keep")
        image, _ = PackedDataset(tmp_path / f"{mode}.lmdb", output="pil")[0]
        assert image.mode == mode
        assert np.array_equal(np.asarray(image).reshape(22, 30, -1), in_order(mode)[0])
    packstore.convert(folder_of(tmp_path / "five", "multi:5:uint16"), tmp_path / "five.lmdb", mode="keep")
    with pytest.raises(UsageError, match="has none of mode multi:5:uint16"):
        PackedDataset(tmp_path / "five.lmdb", output="pil")


def test_floating_point_values_keep_their_mode(tmp_path: Path) -> None:
    packstore.convert(folder_of(tmp_path / "images", "I;16"), tmp_path / "s.h5", mode="keep", encoding="float32")
    for options in ({"mode": "L"}, {"depth": "scale"}, {"alpha": "drop"}):
        with pytest.raises(UsageError, match=r"floating point values of mode I;16 .*, so \w+ cannot apply"):
            packstore.convert(tmp_path / "s.h5", tmp_path / "other.h5", **options)
    again = packstore.convert(tmp_path / "s.h5", tmp_path / "again.pth", mode="keep").manifest
    assert again.image.mode == "I;16"


def test_other_types_among_deep_images_are_refused_with_what_helps(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "I;16")
    Image.fromarray(np.zeros((22, 30, 3), np.uint8)).save(folder / "a" / "photo.jpg")
    with pytest.raises(UsageError, match=r"values of uint8 .*Values of different types do not compare.*--depth scale"):
        packstore.convert(folder, tmp_path / "s.lmdb", mode="keep")
    packstore.convert(folder, tmp_path / "s.lmdb", mode="RGB", depth="scale")
    assert PackedDataset(tmp_path / "s.lmdb")[0][0].shape == (3, 22, 30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mode": "keep", "encoding": "uint8"},
            "the encoding uint8 does not hold images of mode I;16.*use --encoding uint16, or",
        ),
        ({"mode": "keep", "encoding": "int32"}, "the encoding int32 does not hold .*; use --encoding uint16$"),
        ({"mode": "keep", "encoding": "jpeg"}, "a JPEG does not hold images of mode I;16"),
        ({"mode": "grey"}, "unknown mode 'grey'"),
        ({"mode": "L", "depth": "keep"}, "mode L has 8 bits, so depth cannot be kept"),
        ({"mode": "keep", "encoding": "float32", "normalize": "imagenet"}, "1 channel .* and the normalisation has 3"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    folder = folder_of(tmp_path / "images", "I;16")
    not_packed(UsageError, folder, tmp_path / "s.h5", message, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
