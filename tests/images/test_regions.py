"""Crops of JPEG files by libjpeg-turbo 3: only the region is decoded, and gives the same pixels.

The library is the one that ``PACKSTORE_TEST_TURBOJPEG3`` or ``PACKSTORE_TURBOJPEG`` names, or else the system's.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.images.decoders import UNAVAILABLE, Decoder, available_decoders, get_decoder
from packstore.training.augment import RandomResizedCrop
from tests.conftest import Need, SharedData
from tests.internals import DecodeError, UsageError, backends, decoders, load_region, printable, turbo_version
from tests.makers.annotated import fill
from tests.makers.jpegs import SAMPLINGS, USUAL, boxes, cut, jpeg

KINDS: list[list[str]] = [[], ["-restart", "1"], ["-restart", "3B"], ["-optimize", "-quality", "95"], ["-progressive"]]


@pytest.fixture(scope="module", autouse=True)
def library(need: Need) -> Iterator[None]:
    """Makes ``turbojpeg`` a decoder with that library, for this module's tests."""
    need("cjpeg", shutil.which("cjpeg") is not None)
    with pytest.MonkeyPatch.context() as patch:
        name = os.environ.get("PACKSTORE_TEST_TURBOJPEG3") or os.environ.get("PACKSTORE_TURBOJPEG")
        if name:
            patch.setenv("PACKSTORE_TURBOJPEG", name)
        else:
            patch.delenv("PACKSTORE_TURBOJPEG", raising=False)
        try:
            found = backends.load_decoder_library("turbojpeg")
        except backends.UnavailableError:
            found = None
        need("turbojpeg3", found is not None and load_region() is not None)
        patch.setitem(decoders._loaded, "turbojpeg", found)
        yield


def test_the_version_is_that_of_the_systems_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the library of a wheel is loaded and comes first."""
    expected = turbo_version()
    wheel = tmp_path / "libturbojpeg-0123abcd.so.0.4.0"
    wheel.write_bytes(b"libjpeg-turbo version 9.8.7")
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *rest: f"... {wheel}\n{read(path, *rest)}")
    assert turbo_version() == expected != "9.8.7"


class Watched:
    """A decoder's way to regions, and how many of them it gave; -1 where it failed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.decoder = get_decoder("turbojpeg")
        self.given: list[int] = []
        self._region: Any = self.decoder._region
        patch.setattr(self.decoder, "_region", self)

    def __call__(self, *arguments: Any) -> NDArray[np.uint8]:
        self.given.append(-1)
        image: NDArray[np.uint8] = self._region(*arguments)
        self.given[-1] = image.size
        return image


@st.composite
def files(draw: st.DrawFn, samplings: tuple[str, ...], least: int) -> tuple[bytes, int, int, str]:
    """A file, its height, width and sampling."""
    height, width = draw(st.integers(least, 150)), draw(st.integers(least, 150))
    sampling = draw(st.sampled_from(samplings))
    file = jpeg(height, width, sampling, *draw(st.sampled_from(KINDS)), seed=draw(st.integers(0, 3)))
    return file, height, width, sampling


@pytest.mark.slow
@given(st.data())
def test_pixels_are_those_of_the_whole_image(data: st.DataObject) -> None:
    file, height, width, sampling = data.draw(files(SAMPLINGS, 1))
    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch)
        whole = watched.decoder.decode(file)
        for _ in range(20):
            box = data.draw(boxes(height, width))
            watched.given.clear()
            np.testing.assert_array_equal(watched.decoder.decode_crop(file, box), cut(whole, box))
            nearly_all = box[2] > 0.95 * height and box[3] > 0.95 * width
            expected = [] if nearly_all else [box[2] * box[3] * 3]
            assert watched.given == expected or (sampling not in USUAL and watched.given == [-1])


@pytest.mark.parametrize("kind", ["gray", "2x2,1x1,1x1"])
@pytest.mark.parametrize("size", [(16, 20_000), (20_000, 24)])
def test_long_sides(size: tuple[int, int], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = jpeg(*size, kind)
    watched = Watched(monkeypatch)
    whole = watched.decoder.decode(file)
    rng = random.Random(1)
    for _ in range(10):
        rows, columns = rng.randint(1, min(size[0], 300)), rng.randint(1, min(size[1], 300))
        box = rng.randint(0, size[0] - rows), rng.randint(0, size[1] - columns), rows, columns
        np.testing.assert_array_equal(watched.decoder.decode_crop(file, box), cut(whole, box))
    assert len(watched.given) == 10
    assert -1 not in watched.given


@pytest.mark.slow
def test_real_files(shared_data: SharedData, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    watched = Watched(monkeypatch)
    paths = sorted((shared_data / "imagenet-600").rglob("*.*"))[::6]
    for path in paths:
        file = path.read_bytes()
        whole = watched.decoder.decode(file)
        height, width, _ = whole.shape
        rows, columns = rng.randint(1, height * 9 // 10), rng.randint(1, width)
        box = rng.randint(0, height - rows), rng.randint(0, width - columns), rows, columns
        np.testing.assert_array_equal(watched.decoder.decode_crop(file, box), cut(whole, box))
    assert len(watched.given) > 0.9 * len(paths)
    assert -1 not in watched.given


@pytest.mark.parametrize("kind", KINDS)
def test_damage_in_the_rows_that_are_needed(kind: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the library complains of, the whole image decides: an error, or pixels that it gives as well."""
    file, box = jpeg(160, 120, "2x2,1x1,1x1", *kind, seed=2), (8, 8, 60, 60)
    scan = file.index(b"\xff\xda") + 14
    rng = np.random.default_rng(1)
    watched = Watched(monkeypatch)
    for marker in (b"\xff\xd9", b"\xff\xd3", b"\xff\xc4\x00\x03\x00"):
        for at in rng.integers(scan, scan + (len(file) - scan) // 5, 20).tolist():
            damaged = file[:at] + marker + file[at + len(marker) :]
            try:
                whole = watched.decoder.decode(damaged)
            except DecodeError:
                with pytest.raises(DecodeError):
                    watched.decoder.decode_crop(damaged, box)
            else:
                np.testing.assert_array_equal(watched.decoder.decode_crop(damaged, box), cut(whole, box))
    # Of damaged progressive files it is not even asked: they are not whole.
    assert watched.given.count(-1) > 50 or kind == ["-progressive"]


def test_truncated_files_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    file = jpeg(160, 120, "2x2,1x1,1x1")
    watched = Watched(monkeypatch)
    for stop in (len(file) // 3, len(file) - 2):
        with pytest.raises(DecodeError):
            watched.decoder.decode_crop(file[:stop], (8, 8, 20, 20))
    assert watched.given == []


def test_bytes_behind_the_end_are_no_reason_to_fail() -> None:
    file, box = jpeg(160, 120, "2x2,1x1,1x1") + b"more", (8, 8, 20, 20)
    decoder = get_decoder("turbojpeg")
    np.testing.assert_array_equal(decoder.decode_crop(file, box), cut(decoder.decode(file), box))


def test_a_box_outside_of_the_image_is_an_error() -> None:
    file = jpeg(80, 60, "2x2,1x1,1x1", "-progressive")
    for box in ((0, 50, 20, 20), (-1, 0, 20, 20), (70, 0, 20, 20), (0, 0, 0, 5)):
        with pytest.raises(DecodeError):
            get_decoder("turbojpeg").decode_crop(file, box)


def test_too_many_pixels_are_too_many_though_few_are_needed() -> None:
    file = jpeg(80, 60, "2x2,1x1,1x1", "-progressive")
    with pytest.raises(DecodeError, match="60 x 80 pixels, more than the limit"):
        get_decoder("turbojpeg", max_pixels=4799).decode_crop(file, (0, 0, 10, 10))


@pytest.mark.parametrize("name", ["/nonexistent/libturbojpeg.so.0", "libc.so.6", "/nonexistent/\udcff.so"])
def test_a_library_that_was_asked_for_and_does_not_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKSTORE_TURBOJPEG", name)
    shown = re.escape(printable(name))
    with pytest.raises(backends.UnavailableError):
        backends.load_decoder_library("turbojpeg")
    monkeypatch.setattr(decoders, "_loaded", {})
    with pytest.raises(UsageError, match=f"PACKSTORE_TURBOJPEG names .*{shown}"):
        get_decoder()  # and not the next best without a word
    assert get_decoder("pillow").name == "pillow"
    assert UNAVAILABLE in available_decoders()["turbojpeg"]


def test_none_is_used_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKSTORE_TURBOJPEG", "")
    assert load_region() is None


@pytest.mark.slow
def test_the_loader_uses_it_and_gives_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = tmp_path / "images"
    for number, (kind, sampling) in enumerate((k, s) for k in KINDS for s in USUAL):
        folder = images / f"class{number % 2}"
        fill(folder, {f"{number:03}.jpg": jpeg(90 + number, 150 - number, sampling, *kind, seed=number)})
    packstore.convert(images, tmp_path / "store.lmdb")
    calls: list[tuple[int, int]] = []
    region = Decoder._decode_region

    def counted(self: Decoder, *arguments: Any) -> Any:
        found = region(self, *arguments)
        calls.append((0, 0) if found is None else found.shape[:2])
        return found

    monkeypatch.setattr(Decoder, "_decode_region", counted)
    dataset = PackedDataset(tmp_path / "store.lmdb", decoder="turbojpeg")
    operation = RandomResizedCrop(32, scale=(0.1, 0.6))

    def batch() -> NDArray[np.uint8]:
        loader = PackedLoader(dataset, batch_size=30, augment=[operation], seed=3, workers=2)
        images: NDArray[np.uint8] = next(iter(loader))[0].numpy()
        return images

    found = batch()
    assert len(calls) == 30
    assert (0, 0) not in calls
    monkeypatch.setattr(Decoder, "decodes_parts", lambda self, info: False)
    np.testing.assert_array_equal(found, batch())
    assert len(calls) == 30
