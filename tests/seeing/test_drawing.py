"""Thumbnails of images of every mode, and what is drawn over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image, ImageDraw, ImageFont

import packstore
from packstore import PackedDataset
from packstore.cli import cli
from packstore.images.decoders import get_decoder
from packstore.stores import open_store
from tests.internals import (
    BrowserImages,
    Column,
    DecodeError,
    class_color,
    convert,
    default_font,
    describe_record,
    draw_values,
    find_window,
    fit_text,
    list_drawable_columns,
    make_image_reader,
    make_thumbnail,
    mode_of,
    parse_mode,
    read_drawn_values,
    text_color_on,
    to_display,
)
from tests.makers.datasets import write_image
from tests.makers.images import encode
from tests.makers.typed import make_typed

BOXES = Column("boxes", "ragged", "float32", (4,), type="boxes", coordinates="xyxy")
LABELS = Column("labels", "ragged", "int64", type="labels", classes=("ant", "bee"), parallel="boxes")
POINTS = Column("points", "ragged", "float32", (3,), type="keypoints", coordinates="xyv")
MASK = Column("mask", "ragged", "uint8", layout="HW", type="mask")
GREY = np.full((60, 80, 3), 128, np.uint8)


@pytest.mark.slow
def test_a_thumbnail_is_the_image_made_small(tmp_path: Path) -> None:
    write_image(tmp_path / "in" / "a" / "large.jpg", 600, 900, 1)
    write_image(tmp_path / "in" / "a" / "small.png", 20, 30, 2)
    convert(tmp_path / "in", tmp_path / "x.lmdb")
    with open_store(tmp_path / "x.lmdb") as reader:
        pictures = make_image_reader(reader.manifest)
        large, small = make_thumbnail(pictures, reader, 0, 96), make_thumbnail(pictures, reader, 1, 96)
        assert large is not None
        assert small is not None
        assert (large.shape, small.shape) == ((64, 96, 3), (20, 30, 3))
        whole = Image.fromarray(get_decoder().decode(reader.read(0)))
        expected = np.asarray(whole.resize((96, 64), Image.Resampling.BOX), np.int64)
        assert np.abs(large - expected).mean() < 3
        np.testing.assert_array_equal(small, get_decoder().decode(reader.read(1)))


@pytest.mark.parametrize("options", [{"encoding": "uint8"}, {"encoding": "float16", "normalize": "imagenet"}])
def test_arrays_have_thumbnails_too(tmp_path: Path, options: dict[str, str]) -> None:
    write_image(tmp_path / "in" / "a" / "1.png", 48, 64, 1)
    convert(tmp_path / "in", tmp_path / "x.h5", size=(48, 64), **options)  # type: ignore[arg-type]
    dataset = PackedDataset(tmp_path / "x.h5")
    found = make_thumbnail(dataset.pictures, dataset.reader, 0, 32)
    assert found is not None
    assert found.shape == (24, 32, 3)
    expected = np.asarray(dataset.show(0).resize((32, 24)), np.int64)
    assert np.abs(found - expected).mean() < 4


def test_a_thumbnail_stands_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    picture = Image.fromarray(
        np.concatenate([np.zeros((200, 300, 3), np.uint8), np.full((200, 300, 3), 255, np.uint8)])
    )
    (tmp_path / "in" / "a").mkdir(parents=True)
    picture.save(tmp_path / "in" / "a" / "1.jpg", exif=exif)
    convert(tmp_path / "in", tmp_path / "x.lmdb")
    with open_store(tmp_path / "x.lmdb") as reader:
        lying = make_thumbnail(make_image_reader(reader.manifest), reader, 0, 40)
        upright = make_thumbnail(make_image_reader(reader.manifest, exif_transpose=True), reader, 0, 40)
    assert lying is not None
    assert upright is not None
    assert (lying.shape, upright.shape) == ((40, 30, 3), (30, 40, 3))
    assert upright[:, :15].mean() > 250  # what lay below lies on the left


def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    data = bytearray(encode(Image.fromarray(np.zeros((99, 99, 3), np.uint8)), "PNG"))
    data[50:60] = bytes(10)
    (tmp_path / "in" / "a" / "bad.png").write_bytes(data)
    convert(tmp_path / "in", tmp_path / "x.lmdb", check="header")
    with open_store(tmp_path / "x.lmdb") as reader, pytest.raises(DecodeError, match=r"record 0 \(a/bad.png\)"):
        make_thumbnail(make_image_reader(reader.manifest), reader, 0, 32)


def test_boxes_masks_and_points_are_drawn_where_they_are() -> None:
    boxes = np.array([[10, 20, 40, 50]], np.float32)
    found = draw_values(GREY, {"boxes": boxes, "labels": np.array([1])}, (BOXES, LABELS))
    assert tuple(found[50, 25]) == class_color(1)
    assert tuple(found[35, 10]) == class_color(1)
    assert (found[30:45, 15:35] == 128).all()
    mask = np.zeros((60, 80), np.uint8)
    mask[:30] = 3
    found = draw_values(GREY, {"mask": mask}, (MASK,))
    assert (found[30:] == 128).all()
    assert (np.abs(found[:30] - (128 * 0.55 + np.array(class_color(3)) * 0.45)) <= 1).all()
    points = np.array([[70, 5, 2], [20, 30, 0]], np.float32)
    found = draw_values(GREY, {"points": points}, (POINTS,))
    assert (found[5, 70] != 128).any()
    assert (found[20:40, 10:30] == 128).all(), "a point that is not labelled is not there"
    assert (GREY == 128).all()


def luminance(color: Any) -> float:
    """By WCAG 2."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in np.array(color) / 255)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def test_the_names_of_boxes_are_readable_in_every_colour() -> None:
    for number in range(256):
        darker, lighter = sorted((luminance(class_color(number)), luminance(text_color_on(class_color(number)))))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, number


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("left", [-50, 0, 270, 590])
@pytest.mark.parametrize("top", [-50, 0, 210, 470])
def test_the_name_of_a_box_is_whole_wherever_the_box_is(left: int, top: int, number: int) -> None:
    """As many of its pixels have the colour of letters as in the middle of the image."""

    def letters(left: int, top: int) -> int:
        boxes = np.array([[left, top, left + 60, top + 60]], np.float32)
        labels = Column("labels", "ragged", "int64", type="labels", classes=("a name", "another"), parallel="boxes")
        image = np.full((480, 600, 3), 128, np.uint8)
        found = draw_values(image, {"boxes": boxes, "labels": np.array([number])}, (BOXES, labels))
        return int((found == text_color_on(class_color(number))).all(2).sum())

    assert letters(left, top) == letters(210, 240) > 20


def test_a_name_that_is_longer_than_the_image_ends_with_dots() -> None:
    draw = ImageDraw.Draw(Image.new("RGB", (50, 20)))
    font = default_font(10)
    text = fit_text(draw, "a traffic light", 50, font)
    assert text.startswith("a tr")
    assert text.endswith("…")
    assert draw.textlength(text, font=font) <= 50


def test_a_pillow_with_one_font_draws_latin_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before version 10.1, whose font fails for other characters."""
    newest = getattr(ImageFont, "load_default_imagefont", ImageFont.load_default)
    monkeypatch.setattr(ImageFont, "load_default", lambda: newest())
    default_font.cache_clear()
    try:
        labels = Column("labels", "ragged", "int64", type="labels", classes=("猫 … ü",), parallel="boxes")
        values = {"boxes": np.array([[20, 40, 80, 100]], np.float32), "labels": np.array([0])}
        found = draw_values(np.full((480, 600, 3), 128, np.uint8), values, (BOXES, labels))
        assert (found == text_color_on(class_color(0))).all(2).sum() > 20
        draw, font = ImageDraw.Draw(Image.new("RGB", (50, 20))), default_font(10)
        text = fit_text(draw, "a traffic light", 50, font)
        assert text.endswith("…")
        assert draw.textlength(text, font=font) <= 50
    finally:
        default_font.cache_clear()


def test_names_of_boxes_keep_clear_of_each_other() -> None:
    image = np.full((200, 200, 3), 128, np.uint8)
    values = {"boxes": np.array([[50, 80, 150, 140], [52, 82, 148, 138]], np.float32), "labels": np.array([0, 1])}
    labels = Column("labels", "ragged", "int64", type="labels", classes=("first", "second"), parallel="boxes")
    both = draw_values(image, values, (BOXES, labels)).astype(int)
    for row, number in ((0, 0), (1, 1)):
        alone = {name: value[row : row + 1] for name, value in values.items()}
        grounds = [
            (each == class_color(number)).all(2).sum() for each in (both, draw_values(image, alone, (BOXES, labels)))
        ]
        assert grounds[0] >= grounds[1] * 0.9, number


def test_what_is_drawn_can_be_chosen_and_counts_in_the_size_of_the_whole() -> None:
    boxes = np.array([[20, 40, 80, 100]], np.float32)
    mask = np.full((120, 160), 2, np.uint16)
    values = {"boxes": boxes, "mask": mask}
    found = draw_values(GREY, values, (BOXES, MASK), ["boxes"], (120, 160))
    assert tuple(found[50, 25]) == class_color(0)
    assert tuple(found[2, 2]) == (128,) * 3
    assert tuple(draw_values(GREY, values, (BOXES, MASK), None, (120, 160))[2, 2]) != (128,) * 3


def test_values_that_are_wrong_end_nothing() -> None:
    boxes = np.array([[np.nan, 0, 1, 1], [50, 50, 10, 10], [1e30, 0, -1e30, 5], [70, 50, 500, 500]], np.float32)
    points = np.array([[np.inf, 1, 2], [-1e9, 5, 2]], np.float32)
    values = {"boxes": boxes, "labels": np.array([7, -1]), "points": points, "mask": np.zeros((0, 5), np.uint8)}
    found = draw_values(GREY, values, (BOXES, LABELS, POINTS, MASK))
    assert found.shape == GREY.shape
    assert draw_values(GREY, {"points": np.zeros((0, 3))}, (POINTS,)).shape == GREY.shape


def test_values_of_a_record(tmp_path: Path) -> None:
    made = make_typed(tmp_path / "x.lmdb", ["mask", "deep", "boxes", "labels", "points", "depth", "label"], 4)
    with open_store(made.path) as reader:
        assert [c.name for c in list_drawable_columns(reader.manifest)] == ["mask", "deep", "boxes", "points", "depth"]
        values = read_drawn_values(reader, 1)
        assert set(values) == {"mask", "deep", "boxes", "labels", "points"}  # depth is missing
        np.testing.assert_array_equal(values["deep"], made.values[1]["deep"])
        np.testing.assert_array_equal(values["boxes"], made.values[1]["boxes"])
        assert set(read_drawn_values(reader, 1, ["deep"])) == {"deep"}
        assert draw_values(made.images[1], values, reader.manifest.columns).shape == made.images[1].shape


RAMP = np.linspace(0, 4095, 40 * 50).reshape(40, 50).astype(np.uint16)


def xrays(path: Path, *images: Any) -> Path:
    (path / "a").mkdir(parents=True)
    for number, image in enumerate(images or (RAMP, RAMP.T.copy())):
        Image.fromarray(image).save(path / "a" / f"{number}.png")
    return path


def test_deep_values_are_shown_through_percentiles() -> None:
    mode = parse_mode("I;16")
    window = find_window(RAMP[..., None], mode)
    assert window is not None
    assert window == pytest.approx((41, 4054), abs=3)
    shown = to_display(RAMP[..., None], mode)
    assert (shown.shape, shown.dtype) == ((40, 50, 3), np.uint8)
    assert (shown.min(), shown.max()) == (0, 255)
    assert abs(float(shown.mean()) - 127.5) < 2
    assert to_display(RAMP[..., None], mode, (0.0, 8190.0)).max() == 128  # half of the window


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32", "float32"])
def test_every_mode_can_be_shown(dtype: str, channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 200, (6, 7, channels)).astype(dtype)
    shown = to_display(pixels, mode_of(channels, dtype))
    assert (shown.shape, shown.dtype) == ((6, 7, 3), np.uint8)
    flat = to_display(np.full((4, 5, channels), 7).astype(dtype), mode_of(channels, dtype))
    assert flat.shape == (4, 5, 3)


def test_not_a_number_is_black() -> None:
    pixels = np.array([[[0.0], [np.nan], [1.0], [np.inf]]], np.float32)
    assert to_display(pixels, parse_mode("F"), (0.0, 1.0))[0, :, 0].tolist() == [0, 0, 255, 255]
    assert to_display(np.full((2, 2, 1), np.nan, np.float32), parse_mode("F")).max() == 0


def test_sheet_view_and_show(tmp_path: Path) -> None:
    packstore.convert(xrays(tmp_path / "x"), tmp_path / "s.lmdb", depth="keep")
    with packstore.open(tmp_path / "s.lmdb") as reader:
        small = make_thumbnail(make_image_reader(reader.manifest), reader, 0, 25)
        assert small is not None
        assert small.shape == (20, 25, 3)
        assert small.max() > 240
        images = BrowserImages(reader)
        described = describe_record(reader, images, 0)
        assert described["image"]["window"] == pytest.approx((41, 4054), abs=3)
        assert images.decode_for_display(0, reader.manifest.image).shape == (40, 50, 3)
        given = BrowserImages(reader, (4000, 5000))
        assert describe_record(reader, given, 0)["image"]["window"] == (4000, 5000)
        assert given.decode_for_display(0, reader.manifest.image).mean() < 50
        assert images.get_thumbnail(0, 32).data.startswith(b"\x89PNG")
        json.dumps(described)
    shown = PackedDataset(tmp_path / "s.lmdb").show(0)
    assert (shown.mode, shown.size) == ("RGB", (50, 40))
    assert np.asarray(PackedDataset(tmp_path / "s.lmdb").show(0, window=(0, 8190))).max() == 128
    for options, said in (
        (["--window", "0", "9000"], "black is 0, white 9000\n"),
        ([], "black and white are percentiles 1 and 99 of each image's values; --window LO HI sets others\n"),
    ):
        done = CliRunner().invoke(cli, ["sheet", str(tmp_path / "s.lmdb"), str(tmp_path / "o.png"), *options])
        assert done.exit_code == 0, done.output
        assert done.output.endswith(said)


def audit_of(folder: Path, store: Path, **options: Any) -> dict[str, int]:
    packstore.convert(folder, store, **options)
    return dict(packstore.audit(store, pixels=True, near=False).counts)


@pytest.mark.slow
def test_an_audit_looks_at_values(tmp_path: Path) -> None:
    clipped = np.minimum(RAMP, 2000)
    flat = np.full((40, 50), 900, np.uint16)
    found = audit_of(xrays(tmp_path / "x", RAMP, clipped, flat), tmp_path / "s.lmdb", depth="keep")
    assert (found.get("clipped"), found.get("flat")) == (1, 1)
    assert "mode" not in found
    found = audit_of(tmp_path / "x", tmp_path / "w.lmdb", depth="window:0,500")
    assert (found.get("wrong_window"), found.get("mode")) == (3, 3)
    assert "wrong_window" not in audit_of(xrays(tmp_path / "y"), tmp_path / "g.lmdb", depth="window:0,4095")
    floats = tmp_path / "f" / "a"
    floats.mkdir(parents=True)
    Image.fromarray(np.where(RAMP > 4000, np.nan, RAMP).astype(np.float32)).save(floats / "0.tif")
    assert audit_of(tmp_path / "f", tmp_path / "f.lmdb", depth="keep").get("not_finite") == 1
