"""Orientation by EXIF and TIFF: counted, said, recorded, and upright on every way from a file to a batch and back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image, ImageOps

import packstore
from packstore import PackedDataset, PackedLoader, convert, export, verify
from packstore.augment import CenterCrop
from packstore.cli import cli
from packstore.images.decoders import get_decoder
from packstore.stores import open_store
from packstore.testing.encodings import picture
from tests.internals import Reading, image_size, parse_mode, to_corners
from tests.makers.images import heic
from tests.makers.interrupted import cut_short, take_small_steps
from tests.makers.stores import content
from tests.makers.tiffs import LAYOUTS, SIZE, Layout, oriented, tiff

ORIENTED = 4
TURNED = {"exif_transpose": True}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten photos, of which four have an orientation: two JPEG, a PNG, a WebP."""
    root = tmp_path / "photos"
    for number in range(5):
        (root / f"c{number}").mkdir(parents=True)
    names = ("6.jpg", "1.jpg", "3.png", "None.jpg", "8.webp", "1.png", "5.jpg", "None.bmp", "6.tif")
    for number, name in enumerate(names):
        orientation, suffix = name.split(".")
        tags = Image.Exif()
        tags[0x0131] = "a program"
        if orientation != "None":
            tags[0x0112] = int(orientation)
        options = {} if suffix == "bmp" else {"exif": tags}
        image = Image.fromarray(picture(40, 56, number))
        image.save(root / f"c{number % 5}" / f"{number}.{suffix}", **options)  # type: ignore[arg-type]
    (root / "c4" / "9.heic").write_bytes(heic(56, 40, 6))  # libheif turns it
    return root


def upright(photos: Path, key: str) -> Any:
    with Image.open(photos / key) as image:
        return np.array(ImageOps.exif_transpose(image).convert("RGB"))


def summary(*arguments: str | Path) -> str:
    run = CliRunner().invoke(cli, list(map(str, arguments)))
    assert run.exit_code == 0, run.output
    return run.output


ENCODINGS = [("lmdb", "original"), ("h5", "jpeg"), ("h5", "uint8"), ("pth", "float16")]


@pytest.mark.sampled(8, fast=3)
@pytest.mark.parametrize(("suffix", "encoding"), ENCODINGS)
@pytest.mark.parametrize("check", ["header", "decode", "none"])
def test_the_summary_counts_them(suffix: str, encoding: str, check: str, photos: Path, tmp_path: Path) -> None:
    options = ["--encoding", encoding, "--check", check, *(["--size", "32"] if encoding == "float16" else [])]
    said = summary("convert", photos, tmp_path / f"a.{suffix}", *options)
    line = "4 of 10 images have an EXIF orientation that is not applied; --exif-transpose turns them upright"
    assert line in said
    assert "4 of them have an EXIF orientation, which is not applied" in summary("info", tmp_path / f"a.{suffix}")
    said = summary("convert", photos, tmp_path / f"b.{suffix}", *options, "--exif-transpose")
    kept = encoding == "original"
    assert f"4 of 10 images have an EXIF orientation, {'applied when loading' if kept else 'applied'}\n" in said
    how = "applied when they are loaded" if kept else "which was applied"
    assert f"4 of them have an EXIF orientation, {how}\n" in summary("info", tmp_path / f"b.{suffix}")


def test_nothing_is_said_where_all_stand_upright(photos: Path, tmp_path: Path) -> None:
    for path in photos.rglob("*.*"):
        if path.name[0] in "0246":
            path.unlink()
    report = packstore.convert(photos, tmp_path / "a.lmdb")
    assert report.oriented == 0
    assert "exif_oriented" not in report.manifest.options
    assert "EXIF" not in summary("convert", photos, tmp_path / "b.lmdb")


def test_skipped_images_do_not_count(photos: Path, tmp_path: Path) -> None:
    path = photos / "c0" / "0.jpg"
    path.write_bytes(path.read_bytes()[:-50])
    report = packstore.convert(photos, tmp_path / "a.lmdb", on_error="skip")
    assert (report.oriented, report.orientation) == (ORIENTED - 1, "not applied")
    assert f"{ORIENTED - 1} with an EXIF orientation that is not applied" in repr(report)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["original", "jpeg", "uint8"])
@pytest.mark.parametrize("size", [None, 32])
def test_it_is_proven_against_its_source(encoding: str, size: int | None, photos: Path, tmp_path: Path) -> None:
    if size is not None and encoding == "original":
        with pytest.raises(packstore.UsageError, match="so size, resize and max-side cannot apply"):
            packstore.convert(photos, tmp_path / "a.lmdb", encoding=encoding, size=size, **TURNED)
        return
    report = packstore.convert(photos, tmp_path / "a.lmdb", encoding=encoding, size=size, **TURNED)
    assert report.manifest.options["exif_transpose"] is True
    assert packstore.verify(tmp_path / "a.lmdb", against=photos, decode=encoding != "uint8").ok
    packstore.convert(photos, tmp_path / "flat.lmdb", encoding=encoding, size=size)
    if encoding == "original":
        assert content(tmp_path / "a.lmdb") != content(tmp_path / "flat.lmdb")  # the manifest alone
    with packstore.open(tmp_path / "a.lmdb") as one, packstore.open(tmp_path / "flat.lmdb") as other:
        same = [one.read(i) == other.read(i) for i in range(10)]
    assert sum(same) == (10 if encoding == "original" else 6)


@pytest.mark.slow
def test_from_store_to_store(photos: Path, tmp_path: Path) -> None:
    """Files that stay files keep the wish, and pixels made of them stand upright; all are proven right."""
    a, b, c, d = (tmp_path / name for name in ("a.lmdb", "b.h5", "c.h5", "d.lmdb"))
    packstore.convert(photos, a, **TURNED)
    kept = packstore.convert(a, b)
    assert kept.manifest.options["exif_transpose"] is True
    assert (kept.oriented, kept.orientation) == (4, "applied when loading")
    packstore.convert(b, c, encoding="uint8")
    packstore.convert(c, d)
    packstore.convert(b, tmp_path / "small.h5", encoding="uint8", size=32)
    packstore.convert(a, tmp_path / "s.lmdb", progressive="baseline")
    for made in (a, b, c, d, tmp_path / "small.h5", tmp_path / "s.lmdb"):
        assert packstore.verify(made, against=a).ok, made
        assert packstore.verify(made, against=photos).ok, made
    for made in (a, b, c, d):
        images = PackedDataset(made, output="numpy")
        for i, key in enumerate(images.keys):
            if key.endswith(".jpg"):
                np.testing.assert_array_equal(images[i][0], upright(photos, key), f"{made} {key}")


@pytest.mark.slow
def test_a_store_without_the_wish_gets_it(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.lmdb")
    report = packstore.convert(tmp_path / "a.lmdb", tmp_path / "b.lmdb", **TURNED)
    assert report.orientation == "applied when loading"
    made = packstore.convert(tmp_path / "a.lmdb", tmp_path / "c.h5", encoding="uint8", **TURNED)
    assert made.orientation == "applied"
    assert not packstore.convert(tmp_path / "a.lmdb", tmp_path / "d.lmdb").manifest.options["exif_transpose"]
    for name in ("b.lmdb", "c.h5"):
        assert packstore.verify(tmp_path / name, against=photos).ok
        assert packstore.verify(tmp_path / name, against=tmp_path / "a.lmdb").ok
        images = PackedDataset(tmp_path / name, output="numpy")
        np.testing.assert_array_equal(images[0][0], upright(photos, images.keys[0]))


@pytest.mark.parametrize("how", ["repair", "salvage"])
def test_repair_and_salvage_keep_the_wish(how: str, photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.h5", **TURNED)
    data = bytearray((tmp_path / "a.h5").read_bytes())
    at = data.index((photos / "c1" / "1.jpg").read_bytes()) + 600
    data[at] ^= 0xFF
    (tmp_path / "a.h5").write_bytes(data)
    if how == "repair":
        packstore.repair(tmp_path / "a.h5", photos, tmp_path / "b.h5")
    else:
        packstore.salvage(tmp_path / "a.h5", tmp_path / "b.h5")
    images = PackedDataset(tmp_path / "b.h5", output="numpy")
    assert images.exif_transpose
    assert len(images) == (10 if how == "repair" else 9)
    np.testing.assert_array_equal(images[0][0], upright(photos, images.keys[0]))


@pytest.mark.slow
@pytest.mark.sampled(4, fast=1)
@pytest.mark.parametrize(("suffix", "encoding"), ENCODINGS)
@pytest.mark.parametrize("options", [{}, TURNED])
def test_a_run_that_goes_on_counts_the_same(
    suffix: str, encoding: str, options: dict[str, Any], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where records have lost their EXIF, or an LMDB transaction is packed once more; to the same bytes."""
    options = options | {"encoding": encoding, **({"size": 32} if encoding == "float16" else {})}
    take_small_steps(monkeypatch, 1)
    expected = packstore.convert(photos, tmp_path / f"whole.{suffix}", **options)
    assert expected.oriented == ORIENTED
    for after in (7, 2, 5):
        cut_short(packstore.convert, photos, tmp_path / f"a.{suffix}", after=after, **options)
    report = packstore.convert(photos, tmp_path / f"a.{suffix}", **options)
    assert report.resumed or suffix == "lmdb"
    assert (report.oriented, report.orientation) == (ORIENTED, expected.orientation)
    assert ("not applied" in repr(report)) == (report.orientation == "not applied")
    assert content(tmp_path / f"a.{suffix}") == content(tmp_path / f"whole.{suffix}")


CROP = 12, 10

Check = Callable[[Path, list[NDArray[Any]], Layout], None]


def write(folder: Path, layout: Layout, orientation: int) -> list[NDArray[Any]]:
    """Writes three files of a class. Returns the pixels to expect, ``(H, W, C)``."""
    pytest.importorskip("tifffile")
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
    [*product(("gray8", "rgb8", "gray16", "rgb16"), ("original", "pixels")), *product(("gray8", "rgb8"), ("jpeg",))],
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
    pytest.importorskip("tifffile")
    kind, pages, expected = LAYOUTS[layout], [], []
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
