"""MATLAB's files of others, and images that lie flat in a matrix of any kind of file."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset
from packstore.sources import open_source
from packstore.testing import SourceSuite
from tests.internals import SourceError
from tests.makers.lazy import import_on_use
from tests.makers.sources import prove, question, refused

scipy_io = import_on_use("scipy.io")
IMAGES = np.random.default_rng(3).integers(0, 256, (20, 12, 8), np.uint8)  # N, H, W
LABELS = np.arange(20, dtype=np.uint8) % 3


class TestMat(SourceSuite):
    kind = "mat"
    undecodable_keys = False
    bytes_per_sample = 400

    def make(self, folder: Path, samples: int) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        images = np.random.default_rng(3).integers(0, 256, (9, 7, samples), np.uint8)
        scipy_io.savemat(folder / "set.mat", {"images": images, "labels": np.arange(samples, dtype=np.uint8) % 3})
        return folder / "set.mat"

    def change(self, path: Path) -> None:
        content = scipy_io.loadmat(path)
        content["images"][0, 0, 0] ^= 1
        scipy_io.savemat(path, {name: content[name] for name in ("images", "labels")})


def write(path: Path, images: Any, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".mat":
        scipy_io.savemat(path, {"faces": images, "labels": LABELS, **more}, do_compression="z" in path.stem)
    else:
        np.savez(path, images=images, labels=LABELS)
    return path


def read(path: Path, **options: Any) -> tuple[Any, list[int]]:
    with closing(open_source(path, **options)) as source:
        samples = [source.read(entry) for entry in source.entries()]
    return np.stack([s.image for s in samples])[..., 0], [s.values["label"] for s in samples]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["plain.mat", "zipped.mat", "set.npz"])
@pytest.mark.parametrize("layout", ["NHW", "HWN", "WHN"])
def test_axes_in_their_order(name: str, layout: str, tmp_path: Path) -> None:
    axes = ["NHW".index(letter) for letter in layout]
    images, labels = read(write(tmp_path / name, IMAGES.transpose(axes)), layout=layout)
    assert (images == IMAGES).all()
    assert labels == LABELS.tolist()


FLAT = {
    "NHW:12x8": IMAGES.reshape(20, -1),
    "HWN:12x8": IMAGES.reshape(20, -1).T,
    "NWH:8x12": IMAGES.transpose(0, 2, 1).reshape(20, -1),
    "WHN:8x12": IMAGES.transpose(0, 2, 1).reshape(20, -1).T,
}


@pytest.mark.parametrize("name", ["set.mat", "set.npz"])
@pytest.mark.parametrize("layout", FLAT)
def test_flat_images_are_asked_about(name: str, layout: str, tmp_path: Path) -> None:
    """Numbers of an image in numpy's order are row by row, in MATLAB's column by column."""
    matrix = FLAT[layout]
    if name == "set.mat":  # as MATLAB's reshape(image, 1, []) orders them
        by_columns = [IMAGES[n].flatten("C" if layout.index("W") < layout.index("H") else "F") for n in range(20)]
        matrix = np.stack(by_columns) if layout[0] == "N" else np.stack(by_columns, 1)
    path = write(tmp_path / name, matrix)
    caught = question(path, "the order of its axes is not clear")
    answers = [answer.options[1] for answer in caught.answers]
    assert all(answer.startswith("N") == layout.startswith("N") for answer in answers)  # as many as labels
    assert layout in answers or name == "set.npz"
    images, labels = read(path, layout=layout)
    assert (images == IMAGES).all()
    assert labels == LABELS.tolist()
    prove(path, tmp_path / "x.h5", layout=layout)
    assert (np.asarray(PackedDataset(tmp_path / "x.h5")[7][0])[0] == IMAGES[7]).all()


def test_sizes_that_do_not_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "set.mat", FLAT["NHW:12x8"])
    refused(SourceError, path, "has 96 numbers an image, but --layout needs 81", layout="NHW:9x9")


@pytest.mark.parametrize(
    ("name", "answers"),
    [("set.npz", ["NHW:12x12"]), ("set.mat", ["NHW:12x12", "NWH:12x12"]), ("columns.mat", ["HWN:12x12", "WHN:12x12"])],
)
def test_square_images_lie_flat(name: str, answers: list[str], tmp_path: Path) -> None:
    matrix = np.resize(IMAGES, (20, 144))
    path = write(tmp_path / name, matrix.T if name == "columns.mat" else matrix)
    caught = question(path)
    assert [answer.options[1] for answer in caught.answers] == answers  # as many as labels


def test_colours_lie_flat(tmp_path: Path) -> None:
    colours = np.random.default_rng(5).integers(0, 256, (20, 9, 9, 3), np.uint8)
    path = write(tmp_path / "set.npz", colours.reshape(20, -1))
    caught = question(path)
    assert [answer.options[1] for answer in caught.answers] == ["NHW:27x9", "NHW:9x27"]
    with closing(open_source(path, layout="NHWC:9x9x3")) as source:
        found = [source.read(entry).image for entry in source.entries()]  # type: ignore[union-attr]
    assert (np.stack(found) == colours).all()


def test_damage_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "z.mat", FLAT["NHW:12x8"])
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    refused(SourceError, path, "incorrect data check", layout="NHW:12x8")
    scipy_io.savemat(tmp_path / "plain.mat", {"other": LABELS})  # uncompressed, so its file stays open
    scipy_io.savemat(tmp_path / "large.mat", {"faces": np.resize(IMAGES, (400, 400, 4))}, do_compression=True)
    large = bytearray((tmp_path / "large.mat").read_bytes())
    large[-1] ^= 1  # the checksum
    (tmp_path / "both.mat").write_bytes((tmp_path / "plain.mat").read_bytes() + large[128:])
    before = os.listdir("/proc/self/fd")
    refused(SourceError, tmp_path / "both.mat", "incorrect data check", layout="NHW:12x8")
    assert os.listdir("/proc/self/fd") == before
    path.write_bytes(path.read_bytes()[:200])
    refused(SourceError, path, layout="NHW:12x8")


@pytest.mark.slow
def test_a_file_of_many_variables_is_refused(tmp_path: Path) -> None:
    scipy_io.savemat(tmp_path / "many.mat", {f"v{number}": 1 for number in range(10_002)})
    refused(SourceError, tmp_path / "many.mat", "more than 10,000 arrays", kind="mat")
