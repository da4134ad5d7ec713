"""An encoding that lives in this file alone keeps the contract and works from the command line."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import packstore
from packstore.cli import cli
from packstore.testing import EncodingSuite
from tests.conftest import ROOT
from tests.internals import ENCODINGS, EncodedImage, Encoding, ImageData
from tests.makers.datasets import make_folder


class Toy(Encoding):
    """PNG files: smaller than pixels, and without loss."""

    name = "toy"

    def encode(self, key: str, image: ImageData) -> EncodedImage:
        pixels = self.images.pixels(key, image)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG", compress_level=1)
        height, width, _ = pixels.shape
        return EncodedImage(out.getvalue(), (height, width, 3))


@pytest.fixture
def registered() -> Iterator[None]:
    ENCODINGS.register("toy", Toy)
    yield
    ENCODINGS.unregister("toy")


@pytest.mark.usefixtures("registered")
class TestToy(EncodingSuite):
    encoding = "toy"
    variants = ({}, {"resize": 20}, {"size": (16, 20), "fit": "pad"})


class Careless(Toy):
    """Numbers its records, and takes any for right."""

    name = "toy"
    count = 0

    def encode(self, key: str, image: ImageData) -> EncodedImage:
        Careless.count += 1
        encoded = super().encode(key, image)
        return EncodedImage(bytes(encoded.record) + b"%d" % self.count, encoded.shape)

    def difference(self, expected: EncodedImage, found: memoryview) -> str | None:
        return None


@pytest.mark.usefixtures("registered")
def test_the_suite_finds_what_is_wrong() -> None:
    ENCODINGS.register("toy", Careless)
    for test in ("bytes_follow_from_the_image_and_the_options_alone", "records_of_other_images_compare_unequal"):
        with pytest.raises(AssertionError):
            getattr(TestToy(), f"test_{test}")()


def packed(*arguments: object) -> str:
    """What a command prints that succeeds."""
    done = CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
def test_from_the_command_line_to_a_dataset(suffix: str, tmp_path: Path) -> None:
    source, store = make_folder(tmp_path / "photos"), tmp_path / f"x.{suffix}"
    assert "encoding     toy" in packed("convert", source, store, "--encoding", "toy", "--dry-run")
    assert "(toy in " in packed("convert", source, store, "--encoding", "toy", "--resize", 24)
    packed("verify", store, "--against", source, "--decode")
    assert "toy" in packed("info", store)
    pixels = tmp_path / f"pixels.{suffix}"
    packstore.convert(source, pixels, encoding="uint8", resize=24)
    for split in ("train", "val"):
        toy, plain = packstore.PackedDataset(store, split), packstore.PackedDataset(pixels, split)
        assert len(toy) == len(plain) > 0
        for index in range(len(toy)):
            (image, label), (expected, wanted) = toy[index], plain[index]
            np.testing.assert_array_equal(image, expected)
            assert label == wanted


@pytest.mark.slow
def test_without_the_plug_in_its_stores_open_all_the_same(tmp_path: Path) -> None:
    source, store = make_folder(tmp_path / "photos"), tmp_path / "x.lmdb"
    ENCODINGS.register("toy", Toy)
    packstore.convert(source, store, encoding="toy")
    ENCODINGS.unregister("toy")
    assert packstore.verify(store, decode=True).problems == ()
    assert packstore.PackedDataset(store, "train")[0][0].ndim == 3
    with pytest.raises(packstore.UsageError, match=r"one of original, jpeg, .*, got 'toy'"):
        packstore.verify(store, against=source)
    with pytest.raises(packstore.UsageError, match="unknown encoding 'toy'; encodings: original, jpeg"):
        packstore.convert(source, tmp_path / "y.lmdb", encoding="toy")


@pytest.mark.slow
def test_an_entry_point_is_enough(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "photos")
    installed = tmp_path / "site" / "toy-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[packstore.encodings]\ntoy = {__name__}:Toy\n")
    path = os.pathsep.join(map(str, (installed.parent, ROOT)))

    def run(*arguments: object) -> str:
        command = [sys.executable, "-m", "packstore", *map(str, arguments)]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "(toy in " in run("convert", source, tmp_path / "x.h5", "--encoding", "toy")
    run("verify", tmp_path / "x.h5", "--against", source)
