"""Crops of ordinary JPEG files: only the rows down to the crop's lower edge are decoded, and give the same pixels."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from packstore.core.errors import DecodeError
from packstore.images.decoders import UNAVAILABLE, Box, Decoder, available_decoders, get_decoder
from packstore.images.sniff import sniff
from tests.conftest import Need, SharedData
from tests.makers.jpegs import SAMPLINGS, USUAL, cut, jpeg

BASELINE = ("turbojpeg", "simplejpeg")


@pytest.fixture(scope="module", autouse=True)
def programs(need: Need) -> None:
    need("cjpeg", shutil.which("cjpeg") is not None)


def baseline_decoders() -> list[Decoder]:
    names = [n for n, what in available_decoders().items() if n in BASELINE and UNAVAILABLE not in what]
    decoders = [get_decoder(name) for name in names]
    for decoder in decoders:
        decoder._region = None  # it would come first
    return decoders


class Watched:
    """A decoder's way to upper rows, and how many rows it gave; -1 where it failed."""

    def __init__(self, decoder: Decoder, patch: pytest.MonkeyPatch) -> None:
        self.given: list[int] = []
        self._rows: Any = decoder._rows
        patch.setattr(decoder, "_rows", self)

    def __call__(self, *arguments: Any) -> NDArray[np.uint8]:
        self.given.append(-1)
        image: NDArray[np.uint8] = self._rows(*arguments)
        self.given[-1] = len(image)
        return image


@st.composite
def cases(draw: st.DrawFn) -> tuple[bytes, Box, bool]:
    """A file, a box, and whether the file is one that TurboJPEG takes, too."""
    height, width = draw(st.integers(1, 130)), draw(st.integers(1, 90))
    options = draw(st.sampled_from([[], ["-restart", "1"], ["-restart", "3B"], ["-optimize", "-quality", "95"]]))
    sampling = draw(st.sampled_from(SAMPLINGS))
    data = jpeg(height, width, sampling, *options, seed=draw(st.integers(0, 3)))
    rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
    top, left = draw(st.integers(0, height - rows)), draw(st.integers(0, width - columns))
    return data, (top, left, rows, columns), sampling in USUAL


@given(cases())
def test_pixels_are_those_of_the_whole_image(case: tuple[bytes, Box, bool]) -> None:
    data, box, usual = case
    bottom = box[0] + box[2] + 2
    plain = b"\xff\xdd" not in data  # with restart markers, surplus bytes may be anywhere
    expected_rows = [bottom] if plain and bottom <= 0.95 * sniff(data).height else []
    for decoder in baseline_decoders():
        expected = cut(decoder.decode(data), box)
        with pytest.MonkeyPatch.context() as patch:
            watched = Watched(decoder, patch)
            found = decoder.decode_crop(data, box)
        np.testing.assert_array_equal(found, expected)
        assert watched.given == expected_rows or (not usual and watched.given == [-1])


@pytest.mark.slow
def test_real_files(shared_data: SharedData) -> None:
    rng = np.random.default_rng(5)
    for path in sorted((shared_data / "imagenet-600").rglob("*.*"))[::10]:
        data = path.read_bytes()
        for decoder in baseline_decoders():
            whole = decoder.decode(data)
            height, width, _ = whole.shape
            top, left = rng.integers(0, (height // 2, width // 2)).tolist()
            box = top, left, height // 4, width // 4
            np.testing.assert_array_equal(decoder.decode_crop(data, box), cut(whole, box))


@pytest.mark.parametrize("options", [["-progressive"], ["-arithmetic"]])
def test_other_kinds_of_jpeg_are_decoded_whole(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    data, box = jpeg(80, 60, "2x2,1x1,1x1", *options), (3, 4, 20, 30)
    for decoder in baseline_decoders():
        watched = Watched(decoder, monkeypatch)
        np.testing.assert_array_equal(decoder.decode_crop(data, box), cut(decoder.decode(data), box))
        assert watched.given == []


def test_components_in_scans_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scans").write_text("0;\n1;\n2;\n")
    data, box = jpeg(80, 60, "2x2,1x1,1x1", "-scans", str(tmp_path / "scans")), (3, 4, 20, 30)
    assert sniff(data).height_at == 0
    for decoder in baseline_decoders():
        watched = Watched(decoder, monkeypatch)
        np.testing.assert_array_equal(decoder.decode_crop(data, box), cut(decoder.decode(data), box))
        assert watched.given == []


def test_damage_in_the_rows_that_are_needed_is_not_taken_for_bytes_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the library complains of first, the whole image decides: an error, or pixels that it gives as well."""
    data, box = jpeg(160, 120, "2x2,1x1,1x1", seed=2), (8, 8, 60, 60)
    scan = data.index(b"\xff\xda") + 14
    rng = np.random.default_rng(1)
    for decoder in baseline_decoders():
        watched = Watched(decoder, monkeypatch)
        for marker in (b"\xff\xd9", b"\xff\xd3", b"\xff\xc4\x00\x03\x00"):
            for at in rng.integers(scan, scan + (len(data) - scan) // 5, 20).tolist():
                damaged = data[:at] + marker + data[at + len(marker) :]
                try:
                    whole = decoder.decode(damaged)
                except DecodeError:
                    with pytest.raises(DecodeError):
                        decoder.decode_crop(damaged, box)
                else:
                    np.testing.assert_array_equal(decoder.decode_crop(damaged, box), cut(whole, box))
        assert watched.given.count(-1) > 50


@pytest.mark.parametrize("surplus", [b"\0\0\xff\xd0", b"\0\0", b"\xff\xff"])
def test_bytes_out_of_place_in_the_header(surplus: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """libjpeg complains of them before it has decoded anything, in the same words."""
    data, box = jpeg(200, 160, "2x2,1x1,1x1"), (0, 0, 64, 64)
    at = data.index(b"\xff\xc0")
    data = data[:at] + surplus + data[at:]
    for decoder in baseline_decoders():
        watched = Watched(decoder, monkeypatch)
        np.testing.assert_array_equal(decoder.decode_crop(data, box), cut(decoder.decode(data), box))
        assert watched.given == []


def test_a_cut_behind_surplus_bytes_within_the_rows() -> None:
    """Its warning is the first, and would hide that of the cut."""
    data, box = jpeg(160, 120, "2x2,1x1,1x1", "-restart", "1"), (8, 8, 60, 60)
    first = data.index(b"\xff\xd0", data.index(b"\xff\xda"))
    data = data[:first] + b"\x11\x22\x33" + data[first:]
    data = data[: data.index(b"\xff\xd1", first) + 6]
    for decoder in baseline_decoders():
        with pytest.raises(DecodeError):
            decoder.decode_crop(data, box)


def test_truncated_files_are_rejected() -> None:
    data = jpeg(160, 120, "2x2,1x1,1x1")
    for decoder in baseline_decoders():
        for stop in (len(data) // 3, len(data) - 2):
            with pytest.raises(DecodeError):
                decoder.decode_crop(data[:stop], (8, 8, 20, 20))


def test_a_box_outside_of_the_image_is_an_error() -> None:
    data = jpeg(80, 60, "2x2,1x1,1x1")
    for decoder in baseline_decoders():
        for box in ((0, 50, 20, 20), (-1, 0, 20, 20), (70, 0, 20, 20), (0, 0, 0, 5)):
            with pytest.raises(DecodeError):
                decoder.decode_crop(data, box)


def test_too_many_pixels_are_too_many_though_few_are_needed() -> None:
    data = jpeg(80, 60, "2x2,1x1,1x1")
    for name in BASELINE:
        if UNAVAILABLE not in available_decoders()[name]:
            with pytest.raises(DecodeError, match="60 x 80 pixels, more than the limit"):
                get_decoder(name, max_pixels=4799).decode_crop(data, (0, 0, 10, 10))


def test_where_the_height_stands() -> None:
    for sampling in SAMPLINGS:
        data = jpeg(77, 33, sampling)
        at = sniff(data).height_at
        assert int.from_bytes(data[at : at + 2], "big") == 77
        assert sniff(jpeg(77, 33, sampling, "-restart", "1")).height_at == 0
    twice = jpeg(77, 33, "gray")
    frame = twice.index(b"\xff\xc0")
    twice = twice[:frame] + twice[frame : frame + 13] + twice[frame:]
    assert sniff(twice).height_at == 0
    png = io.BytesIO()
    Image.new("RGB", (3, 4)).save(png, "PNG")
    assert sniff(png.getvalue()).height_at == 0
