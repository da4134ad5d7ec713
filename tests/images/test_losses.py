"""Files that have more than 8-bit RGB: a conversion asks before it leaves anything away."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore.cli import cli
from tests.internals import PLAIN, UNREAD_BYTES, UsageError, check_header, find_losses, pixels_of_pillow
from tests.makers.datasets import pixels
from tests.makers.fuzz_targets import CORPUS
from tests.makers.images import heic
from tests.makers.sources import not_packed

RGB = pixels(20, 30, 1)
OPAQUE = np.dstack([RGB, np.full((20, 30), 255, np.uint8)])
HOLE = OPAQUE.copy()
HOLE[3, 4, 3] = 254
DEEP = np.arange(600, dtype=np.uint16).reshape(20, 30) * 9


def tiff(channels: int, extra: int | None) -> bytes:
    """A TIFF of 8 bits with so many interleaved channels; ``extra`` says of those behind the third what they are."""
    entries = [
        (256, 4, 1, 30), (257, 4, 1, 20), (258, 3, channels, 0), (259, 3, 1, 1), (262, 3, 1, 2),
        (273, 4, 1, 512), (277, 3, 1, channels), (278, 4, 1, 20), (279, 4, 1, 600 * channels),
    ]  # fmt: skip
    if extra is not None:
        entries.append((338, 3, channels - 3, extra))
    bits_at = 8 + 2 + 12 * len(entries) + 4
    head = struct.pack("<2sHIH", b"II", 42, 8, len(entries))
    for tag, kind, count, value in entries:
        long = count * 2 > 4
        head += struct.pack("<HHII", tag, kind, count, bits_at if long and tag == 258 else value)
    head += bytes(4) + struct.pack(f"<{channels}H", *[8] * channels)
    return head.ljust(512, b"\0") + bytes(range(200)) * (3 * channels)


def _save(array: Any, suffix: str, mode: str | None = None, **options: Any) -> Callable[[Path], None]:
    def save(stem: Path) -> None:
        image = array if isinstance(array, Image.Image) else Image.fromarray(array)
        (image if mode is None else image.convert(mode)).save(stem.with_suffix(suffix), **options)

    return save


def _write(data: bytes, suffix: str) -> Callable[[Path], None]:
    def save(stem: Path) -> None:
        stem.with_suffix(suffix).write_bytes(data)

    return save


FRAMES: dict[str, Any] = {"save_all": True, "append_images": [Image.fromarray(255 - RGB)]}
LOSSY: dict[str, tuple[str, Callable[[Path], None]]] = {
    "png of 16 bits": ("depth", _save(DEEP, ".png")),
    "tiff of 16 bits": ("depth", _save(DEEP, ".tif")),
    "tiff of 32 bits": ("depth", _save(DEEP.astype(np.int32), ".tif")),
    "tiff of floats": ("depth", _save(DEEP.astype(np.float32), ".tif")),
    "pgm of 16 bits": ("depth", _write(b"P5 4 4 65535\n" + bytes(32), ".pgm")),
    "gif of two frames": ("frames", _save(RGB, ".gif", **FRAMES)),
    "png of two frames": ("frames", _save(RGB, ".png", **FRAMES)),
    "webp of two frames": ("frames", _save(RGB, ".webp", **FRAMES)),
    "tiff of two pages": ("frames", _save(RGB, ".tif", **FRAMES)),
    "png with alpha": ("alpha", _save(HOLE, ".png")),
    "gray png with alpha": ("alpha", _save(HOLE, ".png", "LA")),
    "png with a transparent colour": ("alpha", _save(np.zeros((9, 9), np.uint8), ".png", "P", transparency=0)),
    "webp with alpha": ("alpha", _save(HOLE, ".webp")),
    "tiff with alpha": ("alpha", _save(HOLE, ".tif")),
    "gif with a transparent colour": ("alpha", _save(np.zeros((9, 9), np.uint8), ".gif", "P", transparency=0)),
    "tiff of four channels": ("channels", _write(tiff(4, 0), ".tif")),
}  # fmt: skip
WHOLE: dict[str, Callable[[Path], None]] = {
    "jpeg": _save(RGB, ".jpg"),
    "jpeg of inks": _save(RGB, ".jpg", "CMYK"),
    "png": _save(RGB, ".png"),
    "gray png": _save(RGB, ".png", "L"),
    "png of one bit": _save(RGB, ".png", "1"),
    "png with a palette": _save(RGB, ".png", "P"),
    "png with opaque alpha": _save(OPAQUE, ".png"),
    "webp with opaque alpha": _save(OPAQUE, ".webp", lossless=True, exact=True),
    "gif": _save(RGB, ".gif"),
    "bmp": _save(RGB, ".bmp"),
    "tiff": _save(RGB, ".tif"),
    "tiff of inks": _save(RGB, ".tif", "CMYK"),
    "ppm": _save(RGB, ".ppm"),
}


ANSWERS: dict[str, Any] = {"depth": "scale", "frames": "first", "mode": "RGB", "alpha": "drop"}


def made(folder: Path, save: Callable[[Path], None]) -> Path:
    (folder / "a").mkdir(parents=True)
    save(folder / "a" / "0")
    return folder


@pytest.mark.parametrize("encoding", ["original", "uint8"])
@pytest.mark.parametrize("name", LOSSY)
def test_a_loss_is_asked_about(name: str, encoding: str, tmp_path: Path) -> None:
    loss, save = LOSSY[name]
    folder = made(tmp_path / "images", save)
    option = "mode" if loss == "channels" else loss
    others = {other: answer for other, answer in ANSWERS.items() if other != option}
    for answers in ({}, others):
        with pytest.raises(UsageError, match=rf"a/0\..*: it has .*--{option} keep|--frames first.*\(the run resumes"):
            packstore.convert(folder, tmp_path / "s.lmdb", encoding=encoding, **answers)
    not_packed(UsageError, folder, tmp_path / "s.lmdb", encoding=encoding, on_error="skip")  # none would be left
    answer: dict[str, Any] = {option: ANSWERS[option]}
    manifest = packstore.convert(folder, tmp_path / "s.lmdb", encoding=encoding, **answer).manifest
    assert manifest.options.get(option) == (None if option == "mode" else ANSWERS[option])
    assert packstore.verify(tmp_path / "s.lmdb", against=folder).ok
    packstore.convert(tmp_path / "s.lmdb", tmp_path / "again.h5")  # of a store nothing is asked again


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_asked_about_the_others(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "images", WHOLE[name])
    for encoding in ("original", "uint8"):
        manifest = packstore.convert(folder, tmp_path / f"{encoding}.lmdb", encoding=encoding).manifest
        assert not {"depth", "alpha", "frames"} & manifest.options.keys()
        assert manifest.image.mode is None


def test_smaller_versions_in_a_tiff_are_no_pages(tmp_path: Path) -> None:
    path = tmp_path / "0.tif"
    small = Image.fromarray(RGB[::2, ::2].copy())
    small.encoderinfo = {"tiffinfo": {254: 1}}
    Image.fromarray(RGB).save(path, save_all=True, append_images=[small])
    with Image.open(path) as written:
        written.seek(1)
        if written.tag_v2.get(254) != 1:
            pytest.skip("this Pillow writes no smaller versions")
    data = path.read_bytes()
    assert find_losses(data, check_header(data), PLAIN) == {}


def test_appending_asks_too(tmp_path: Path) -> None:
    plain, deep = made(tmp_path / "plain", WHOLE["png"]), made(tmp_path / "deep", LOSSY["png of 16 bits"][1])
    packstore.convert(plain, tmp_path / "s.lmdb")
    with pytest.raises(UsageError, match="--depth keep"):
        packstore.append(tmp_path / "s.lmdb", deep, key_prefix="more/")
    packstore.append(tmp_path / "s.lmdb", deep, key_prefix="more/", depth="scale")
    packstore.convert(deep, tmp_path / "d.lmdb", depth="scale")
    packstore.append(tmp_path / "d.lmdb", deep, key_prefix="more/")  # it was accepted before
    with packstore.open(tmp_path / "d.lmdb") as store:
        assert len(store) == 2


def test_a_writer_asks_too(tmp_path: Path) -> None:
    deep = next((made(tmp_path / "deep", LOSSY["png of 16 bits"][1]) / "a").iterdir())
    with pytest.raises(UsageError, match="--depth keep"), packstore.Writer(tmp_path / "s.lmdb") as writer:
        writer.add(image=deep)
    with packstore.Writer(tmp_path / "s.lmdb", depth="scale") as writer:
        writer.add(image=deep)
    with packstore.open(tmp_path / "s.lmdb") as store:
        assert bytes(store.read(0)) == deep.read_bytes()


def test_channels_that_only_tifffile_opens_are_asked_about() -> None:
    pytest.importorskip("tifffile")
    data = tiff(9, 0)
    assert len(data) > UNREAD_BYTES
    assert find_losses(data, check_header(data), PLAIN) == {"channels": "9 channels, and 3 are read"}


MIXED: dict[str, tuple[Callable[[Path], None], str | None]] = {
    "0 rgb": (_save(RGB, ".jpg"), None),
    "1 gray jpeg": (_save(RGB, ".jpg", "L"), "gray_to_colour"),
    "2 cmyk": (_save(RGB, ".jpg", "CMYK"), "cmyk_to_rgb"),
    "3 opaque": (_save(OPAQUE, ".png"), "opaque_alpha_dropped"),
    "4 gray png": (_save(RGB, ".png", "L"), "gray_to_colour"),
    "5 palette": (_save(RGB, ".png", "P"), None),
    "6 opaque tiff": (_save(OPAQUE, ".tif"), "opaque_alpha_dropped"),
    "7 inks": (_save(RGB, ".tif", "CMYK"), "cmyk_to_rgb"),
    "8 gray tiff": (_save(RGB, ".tif", "L"), "gray_to_colour"),
    "9 lab": (_save(Image.fromarray(RGB).convert("LAB"), ".tif"), "lab_to_rgb"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["original", "uint8"])
def test_modes_that_are_unified_are_counted_and_said(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    for name, (save, _) in MIXED.items():
        save(tmp_path / "images" / "a" / name)
    wanted = {"gray_to_colour": 3, "cmyk_to_rgb": 2, "lab_to_rgb": 1, "opaque_alpha_dropped": 2}
    out = tmp_path / "s.lmdb"
    said = CliRunner().invoke(cli, ["convert", str(tmp_path / "images"), str(out), "--encoding", encoding]).output
    told = CliRunner().invoke(cli, ["info", str(out)]).output
    for text in (said, told):
        assert "3 gray images: all channels are equal" in text
        assert "2 CMYK images: the colours are converted" in text
        assert "1 Lab image: the colours are converted" in text
        assert "2 images with opaque alpha: the alpha is left out" in text
    with packstore.open(out) as store:
        assert {name: store.manifest.options.get(name) for name in wanted} == wanted
    sharded = packstore.convert(tmp_path / "images", tmp_path / "t.lmdb", encoding=encoding, shard_size=900)
    assert dict(sharded.unified) == wanted
    grown = packstore.append(out, tmp_path / "images", key_prefix="more/")
    assert grown.manifest.options["gray_to_colour"] == 6
    gray = packstore.convert(tmp_path / "images", tmp_path / "g.lmdb", encoding=encoding, mode="L", alpha="drop")
    assert "gray_to_colour" not in gray.unified


@pytest.mark.parametrize(("dtype", "mode"), [("uint32", "I"), ("int64", "I"), ("float64", "F"), ("float16", "F")])
def test_tiffs_of_types_that_a_mode_may_hold(dtype: str, mode: str, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    (tmp_path / "images" / "a").mkdir(parents=True)
    values = np.arange(99.0).reshape(9, 11).astype(dtype)
    tifffile.imwrite(tmp_path / "images" / "a" / "0.tif", values)
    not_packed(UsageError, tmp_path / "images", tmp_path / "s.lmdb", "--depth keep")
    manifest = packstore.convert(tmp_path / "images", tmp_path / "s.lmdb", depth="keep").manifest
    assert manifest.image.mode == mode
    np.testing.assert_array_equal(packstore.PackedDataset(tmp_path / "s.lmdb")[0][0][0], values)
    if dtype == "float16":
        return
    values[0, 0] = {"uint32": 1 << 31, "int64": 1 << 40, "float64": 0.1}[dtype]
    tifffile.imwrite(tmp_path / "images" / "a" / "1.tif", values)
    with pytest.raises(packstore.SampleError, match=r"a/1\.tif: a TIFF of .* does not hold"):
        packstore.convert(tmp_path / "images", tmp_path / "t.lmdb", depth="keep")


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        (np.zeros((9, 11), np.complex64), {}, ""),
        (np.zeros((6, 16, 16), np.uint8), {"volumetric": True}, ".*: write each plane as a page of its own"),
        (np.zeros((6, 16, 16), np.uint16), {"volumetric": True}, ".*: write each plane as a page of its own"),
    ],
    ids=["complex", "planes", "deep planes"],
)
def test_a_tiff_that_no_mode_holds_is_refused(
    values: NDArray[Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    tifffile = pytest.importorskip("tifffile")
    (tmp_path / "images" / "a").mkdir(parents=True)
    tifffile.imwrite(tmp_path / "images" / "a" / "0.tif", values, photometric="minisblack", **options)
    for answers in ({}, {"mode": "keep"}, {"frames": "all"}):
        not_packed(packstore.PackstoreError, tmp_path / "images", tmp_path / "s.lmdb", rf"a/0\.tif{said}", **answers)


@pytest.mark.parametrize(
    ("first", "second", "option", "said", "answer"),
    [
        (_save(RGB, ".png"), _save(DEEP, ".png"), "depth", "if all images have this type", {"depth": "scale"}),
        (_save(RGB, ".png"), _save(HOLE, ".png"), "alpha", "else --mode RGBA", {"mode": "RGBA"}),
        (_save(RGB[..., 0], ".png"), _save(HOLE, ".png", "LA"), "alpha", "else --mode RGBA", {"mode": "LA"}),
        (_save(RGB, ".png"), _write(tiff(4, 0), ".tif"), "mode", "if all images have them", {"mode": "RGB"}),
    ],
)
def test_questions_after_keep_name_an_answer_that_works(
    first: Callable[[Path], None],
    second: Callable[[Path], None],
    option: str,
    said: str,
    answer: dict[str, str],
    tmp_path: Path,
) -> None:
    made(tmp_path / "images", first)
    second(tmp_path / "images" / "a" / "1")
    kept: dict[str, Any] = {option: "keep"}
    not_packed(UsageError, tmp_path / "images", tmp_path / "s.lmdb", said, **kept)
    assert packstore.convert(tmp_path / "images", tmp_path / "s.lmdb", **answer).manifest.records == 2


def test_a_mode_that_uint8_does_not_hold_is_not_advised_to_use_it(tmp_path: Path) -> None:
    folder = made(tmp_path / "images", _save(DEEP, ".png"))
    given = ["convert", str(folder), str(tmp_path / "s.pth"), "--encoding", "float32"]
    kept = CliRunner().invoke(cli, [*given, "--depth", "keep"]).output
    assert "uint8 takes" not in kept
    assert "rounds" not in kept
    assert "uint8 takes" in CliRunner().invoke(cli, [*given, "--depth", "scale", "--overwrite"]).output
    given[-1] = "float16"
    rounded = CliRunner().invoke(cli, [*given, "--depth", "keep", "--overwrite"]).output
    assert "float16 rounds values of uint16 to 11 bits" in rounded


@pytest.mark.parametrize("channels", [2, 4])
@pytest.mark.parametrize("kind", ["tif", "jp2"])
def test_alpha_of_16_bits_is_asked_about(kind: str, channels: int, tmp_path: Path) -> None:
    tifffile, imagecodecs = pytest.importorskip("tifffile"), pytest.importorskip("imagecodecs")
    values = np.full((20, 30, channels), 65535, np.uint16)
    values[..., 0] = DEEP
    (tmp_path / "images" / "a").mkdir(parents=True)

    def write() -> None:
        path = tmp_path / "images" / "a" / f"0.{kind}"
        if kind == "jp2":
            path.write_bytes(imagecodecs.jpeg2k_encode(values, level=0, codecformat="jp2"))
        else:
            colours = "rgb" if channels == 4 else "minisblack"
            given = {"photometric": colours, "planarconfig": "contig", "extrasamples": ["unassalpha"]}
            tifffile.imwrite(path, values, **given)

    write()
    report = packstore.convert(tmp_path / "images", tmp_path / "opaque.lmdb", depth="keep")
    assert "opaque_alpha_dropped" in report.unified
    values[3, 4, -1] = 65000
    write()
    for depth in ("keep", "scale"):
        with pytest.raises(UsageError, match=r"it has transparent pixels.*--alpha keep"):
            packstore.convert(tmp_path / "images", tmp_path / "s.lmdb", depth=depth)
    packstore.convert(tmp_path / "images", tmp_path / "s.lmdb", depth="keep", alpha="keep")
    pixels = packstore.PackedDataset(tmp_path / "s.lmdb", output="numpy")[0][0]
    np.testing.assert_array_equal(pixels, values)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("colours", "dtype", "said"),
    [
        ("cielab", "uint16", "channels of Lab, and RGB is read"),
        ("icclab", "uint8", "channels of Lab, and RGB is read"),
        ("ycbcr", "uint16", "channels of YCbCr, and RGB is read"),
        ("separated", "uint16", "4 channels, and 3 are read"),
    ],
)
def test_colours_that_are_not_converted_are_asked_about(colours: str, dtype: str, said: str, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    values = np.random.default_rng(0).integers(0, 256, (9, 11, 4 if colours == "separated" else 3)).astype(dtype)
    folder = tmp_path / "images"
    (folder / "a").mkdir(parents=True)
    tifffile.imwrite(folder / "a" / "1.tif", values, photometric=colours)
    deep: dict[str, Any] = {"depth": "clip"} if dtype == "uint16" else {}
    not_packed(UsageError, folder, tmp_path / "s.lmdb", rf"{said}.*--mode keep", **deep)
    named = packstore.convert(folder, tmp_path / "s.lmdb", mode="RGB", **deep).manifest
    assert named.image.mode is None
    np.testing.assert_array_equal(packstore.PackedDataset(tmp_path / "s.lmdb", output="numpy")[0][0], values[..., :3])
    kept = packstore.convert(folder, tmp_path / "t.lmdb", depth="keep").manifest
    assert kept.image.mode == f"multi:{values.shape[2]}:{dtype}"
    if colours == "separated":  # the fourth is no alpha, in 8 bits neither
        packstore.convert(folder, tmp_path / "v.lmdb", mode="keep", encoding="uint16")
        again = packstore.convert(tmp_path / "v.lmdb", tmp_path / "w.lmdb", depth="clip").manifest
        assert again.image.mode == "multi:4:uint8"
    np.testing.assert_array_equal(packstore.PackedDataset(tmp_path / "t.lmdb", output="numpy")[0][0], values)
    tifffile.imwrite(folder / "a" / "0.tif", values[..., :3], photometric="rgb")
    for options in ({"depth": "keep"}, {"frames": "all"}):
        with pytest.raises(
            packstore.PackstoreError,
            match=r"and RGB;16 is read.*'RGB;16'|channels, and 3 are|a store has one|and RGB is",
        ):
            packstore.convert(folder, tmp_path / "u.lmdb", **options)


def test_gray_in_which_0_is_white_is_said(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    made(tmp_path / "images", _save(RGB[..., 0], ".png"))
    for dtype in ("uint8", "uint16"):
        tifffile.imwrite(tmp_path / "images" / "a" / f"{dtype}.tif", DEEP.astype(dtype), photometric="miniswhite")
    out = str(tmp_path / "s.lmdb")
    said = CliRunner().invoke(cli, ["convert", str(tmp_path / "images"), out, "--depth", "clip"]).output
    assert "1 image in which 0 is white: the values are as stored" in said
    np.testing.assert_array_equal(packstore.PackedDataset(out)[1][0][0], np.minimum(DEEP, 255))
    np.testing.assert_array_equal(packstore.PackedDataset(out)[2][0][0], 255 - DEEP.astype(np.uint8))


def test_premultiplied_colours_of_16_bits_are_said(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    values = np.random.default_rng(0).integers(0, 1 << 16, (9, 11, 4)).astype(np.uint16)
    (tmp_path / "images" / "a").mkdir(parents=True)
    for name in ("assoc", "unass"):
        path = tmp_path / "images" / "a" / f"{name}.tif"
        tifffile.imwrite(path, values, photometric="rgb", extrasamples=[f"{name}alpha"])
    report = packstore.convert(tmp_path / "images", tmp_path / "s.lmdb", mode="keep")
    assert dict(report.unified) == {"premultiplied": 1}
    np.testing.assert_array_equal(packstore.PackedDataset(tmp_path / "s.lmdb", output="numpy")[0][0], values)


@pytest.mark.parametrize("suffix", [".png", ".webp", ".tif"])
def test_the_frame_that_is_read_decides(suffix: str, tmp_path: Path) -> None:
    hole = HOLE.copy()
    hole[4:9, 4:9, 3] = 0
    options: dict[str, Any] = {"lossless": True} if suffix == ".webp" else {}
    made(tmp_path / "images", _save(OPAQUE, suffix, save_all=True, append_images=[Image.fromarray(hole)], **options))
    packstore.convert(tmp_path / "images", tmp_path / "first.lmdb", frames=0)
    with pytest.raises(UsageError, match=r"it has transparent pixels.*--alpha keep"):
        packstore.convert(tmp_path / "images", tmp_path / "second.lmdb", frames=1)
    packstore.convert(tmp_path / "images", tmp_path / "second.lmdb", frames=1, mode="RGBA")
    pixels = packstore.PackedDataset(tmp_path / "second.lmdb", output="numpy")[0][0]
    assert pixels[[6, 15], [6, 15], 3].tolist() == [0, 255]


@pytest.mark.parametrize("options", [{"mode": "keep"}, {"depth": "keep"}])
def test_a_page_of_more_bits_is_asked_about(options: dict[str, Any], tmp_path: Path) -> None:
    deep = Image.fromarray(DEEP)
    made(tmp_path / "images", _save(RGB, ".tif", save_all=True, append_images=[deep]))
    not_packed(UsageError, tmp_path / "images", tmp_path / "s.lmdb", r"it has values of uint16.*--depth keep", frames=1)
    packstore.convert(tmp_path / "images", tmp_path / "s.lmdb", frames=1, **options)
    pixels = packstore.PackedDataset(tmp_path / "s.lmdb", output="numpy")[0][0]
    np.testing.assert_array_equal(pixels[..., 0], DEEP)


def test_pixels_of_a_lab_picture_have_no_alpha() -> None:
    assert pixels_of_pillow(Image.fromarray(RGB).convert("LAB")).shape == RGB.shape


IDLE: list[tuple[str, dict[str, Any], str]] = [
    ("deep", {"mode": "keep", "depth": "scale"}, "mode keep keeps all bits"),
    ("deep", {"mode": "RGB"}, "--depth"),
    ("deep", {"depth": "scale", "frames": 2}, "has 1 frame, but no frame 2"),
    ("plain", {"frames": 2}, "has 1 frame, but no frame 2"),
    ("plain", {"mode": "I;16"}, "different types"),
    ("plain", {"mode": "multi:5:uint8"}, "3 channels, and 5 are expected"),
    ("plain", {"mode": "multi:4096:uint8"}, "3 channels, and 4096 are expected"),
    ("hole", {"mode": "multi:4096:uint8"}, "--alpha drop or over:COLOUR"),
    ("npz", {"depth": "scale"}, "so depth cannot apply"),
    ("npz", {"alpha": "drop"}, "so alpha cannot apply"),
    ("npz", {"frames": "first"}, "so frames cannot apply"),
    ("npz", {"frames": "all"}, "frames=all is for files"),
    ("npz", {"frames": "clips"}, "frames=clips is for"),
    ("npz", {"mode": "F"}, "from which mode F"),
    (
        "rgba",
        {"mode": "RGB", "image_key": "x", "layout": "NHWC"},
        "mode RGBA .* has no alpha: say with --alpha drop or over:COLOUR",
    ),
    ("frames", {"mode": "L", "frames": "all"}, "mode RGBA .* has no alpha: say with --alpha drop or over:COLOUR"),
    ("store", {"mode": "I;16"}, "different types"),
    ("store", {"frames": 1}, "has 1 frame"),
]


@pytest.mark.parametrize(("source", "options", "said"), IDLE)
def test_options_that_make_no_sense_are_refused(
    source: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    made(tmp_path / "deep", _save(DEEP, ".png"))
    made(tmp_path / "plain", _save(RGB, ".png"))
    made(tmp_path / "hole", _save(HOLE, ".png"))
    np.savez(tmp_path / "npz", x_train=np.zeros((5, 8, 8, 3), np.uint8), y_train=np.arange(5))
    np.savez(tmp_path / "rgba", x_train=np.zeros((5, 8, 8, 4), np.uint8), y_train=np.arange(5))
    made(tmp_path / "frames", _save(HOLE, ".png", save_all=True, append_images=[Image.fromarray(OPAQUE)]))
    path = tmp_path / (f"{source}.npz" if source in ("npz", "rgba") else "store.lmdb" if source == "store" else source)
    if source == "store":
        packstore.convert(tmp_path / "plain", path)
    not_packed((UsageError, packstore.SampleError), path, tmp_path / "out.lmdb", said, **options)
    assert not (tmp_path / "out.lmdb").exists()


@pytest.mark.parametrize("encoding", ["original", "uint16"])
def test_a_store_of_files_is_asked_about_again_in_another_mode(encoding: str, tmp_path: Path) -> None:
    store = tmp_path / "s.lmdb"
    packstore.convert(made(tmp_path / "deep", _save(DEEP, ".png")), store, depth="keep")
    not_packed(UsageError, store, tmp_path / "t.lmdb", "--depth", mode="RGB")
    packstore.convert(store, tmp_path / "t.lmdb", encoding=encoding)
    packstore.convert(store, tmp_path / "u.lmdb", mode="RGB", depth="window:0,5391")
    shown = packstore.PackedDataset(tmp_path / "u.lmdb")[0][0]
    np.testing.assert_array_equal(shown[0], np.rint(DEEP / 5391 * 255))


MISSING: dict[str, tuple[tuple[str, ...], str]] = {
    "five.tif": (("tifffile",), r"takes tifffile: pip install 'packstore\[tiff\]'"),
    "lzw.tif": (("imagecodecs",), r"takes imagecodecs: pip install 'packstore\[tiff\]'"),
    "zstd.tif": (("tifffile", "imagecodecs"), r"packstore\[tiff\]"),
    "deep.jp2": (("imagecodecs",), r"takes imagecodecs: pip install 'packstore\[tiff\]'"),
    "deep.avif": (("imagecodecs",), r"takes imagecodecs: pip install 'packstore\[tiff\]'"),
    "a.jxl": (("imagecodecs",), r"takes imagecodecs: pip install 'packstore\[tiff\]'"),
    # Its header says without the library that a depth has to be chosen first.
    "a.exr": (("OpenEXR",), r"takes OpenEXR: pip install 'packstore\[exr\]'|values of float32 .* --depth keep"),
    "a.heic": (("pillow_heif", "pillow_heif.as_plugin"), "takes pip install pillow-heif"),
}


@pytest.mark.parametrize("mode", [None, "keep", "L"])
@pytest.mark.parametrize("name", MISSING)
def test_a_file_that_a_missing_library_reads_is_not_packed(
    name: str, mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept as it is, it would be found unreadable in training, or lose its channels without a word."""
    tifffile, imagecodecs = pytest.importorskip("tifffile"), pytest.importorskip("imagecodecs")
    five, deep = np.zeros((9, 8, 5), np.uint8), np.full((16, 20, 3), 1000, np.uint16)
    path = tmp_path / "images" / "a" / name
    path.parent.mkdir(parents=True)
    if name.endswith("tif"):
        compression = None if name == "five.tif" else name[:-4]
        pixels = deep if name == "zstd.tif" else five
        photometric = "rgb" if name == "zstd.tif" else "minisblack"
        tifffile.imwrite(path, pixels, photometric=photometric, planarconfig="contig", compression=compression)
    elif name.endswith("heic"):
        path.write_bytes(heic(36, 23))
    elif name.endswith("exr"):
        path.write_bytes((CORPUS / "exr" / "rgb-zip.exr").read_bytes())
    elif name.endswith("jxl"):
        path.write_bytes(imagecodecs.jpegxl_encode(five[..., :3].copy(), lossless=True))
    elif name.endswith("jp2"):
        path.write_bytes(imagecodecs.jpeg2k_encode(deep, level=0, reversible=True))
    else:
        path.write_bytes(imagecodecs.avif_encode(deep, level=100, bitspersample=10, pixelformat="444", matrix=0))
    libraries, said = MISSING[name]
    for library in libraries:
        monkeypatch.setitem(sys.modules, library, None)
    options: dict[str, Any] = {} if mode is None else {"mode": mode}
    with pytest.raises((packstore.SampleError, packstore.SourceError), match=said):
        packstore.convert(tmp_path / "images", tmp_path / "s.lmdb", **options)
