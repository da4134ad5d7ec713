"""Images of other modes to look at: through a window, and what an audit says of their values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import packstore
from packstore import PackedDataset
from packstore.cli import cli
from tests.internals import (
    BrowserImages,
    describe_record,
    find_window,
    make_image_reader,
    make_thumbnail,
    mode_of,
    parse_mode,
    to_display,
)

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
