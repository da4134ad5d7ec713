"""EXIF orientation while packing: counted, said, recorded; and kept or applied from store to store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image, ImageOps

import packstore
from packstore import PackedDataset
from packstore.cli import cli
from packstore.testing.encodings import picture
from tests.makers.images import heic
from tests.makers.interrupted import cut_short, take_small_steps
from tests.makers.stores import content

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


@pytest.mark.sampled(4, fast=1)
@pytest.mark.parametrize(("suffix", "encoding"), ENCODINGS)
@pytest.mark.parametrize("options", [{}, TURNED])
def test_a_run_that_goes_on_counts_the_same(
    suffix: str,
    encoding: str,
    options: dict[str, Any],
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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
