from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.internals import DestinationError, make_demo

ODDITIES = (".hidden", "Thumbs.db")


def images(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file() and p.name not in ODDITIES)


@pytest.mark.slow
def test_it_is_an_image_folder_with_splits(demo_folder: Path) -> None:
    assert sorted(p.name for p in demo_folder.iterdir()) == ["train", "val"]
    for split, count in (("train", 18), ("val", 6)):
        folders = sorted((demo_folder / split).iterdir())
        assert [f.name for f in folders] == ["discs", "rings", "stripes", "triangles"]
        assert [len(images(f)) for f in folders] == [count + (split == "train"), count, count, count]
    assert all((demo_folder / "train" / "discs" / name).is_file() for name in ODDITIES)


@pytest.mark.slow
def test_it_has_every_kind_of_file(demo_folder: Path) -> None:
    kinds: Counter[str] = Counter()
    sizes = set()
    for path in images(demo_folder):
        with Image.open(path) as image:
            image.load()
            sizes.add(image.size)
            kinds[f"{image.format} {image.mode}"] += 1
            kinds["lying"] += image.format == "PNG" and path.suffix == ".JPEG"
            if image.format == "JPEG":
                kinds["progressive"] += "progressive" in image.info
                kinds["rotated"] += image.getexif().get(0x0112, 1) != 1
                if image.mode == "RGB":
                    sampling = tuple(layer[1:3] for layer in image.layer)  # type: ignore[attr-defined]
                    kinds["4:4:4" if sampling[0] == (1, 1) else "4:2:0"] += 1
    expected = {"JPEG RGB", "JPEG L", "JPEG CMYK", "PNG RGB", "PNG RGBA", "PNG P", "PNG L", "BMP RGB", "WEBP RGB"}
    expected |= {"TIFF RGB", "GIF P", "progressive", "rotated", "4:4:4", "4:2:0"}
    assert {kind for kind in expected if kinds[kind] < 4} == set()
    assert kinds["lying"] == 1
    assert len(sizes) > 10


@pytest.mark.slow
def test_every_class_has_every_format_by_default(demo_folder: Path) -> None:
    suffixes = {".jpg", ".jpeg", ".JPEG", ".png", ".webp", ".bmp", ".gif", ".tif"}
    for folder in (demo_folder / "train").iterdir():
        assert {p.suffix for p in images(folder)} == suffixes


@pytest.mark.slow
def test_the_same_arguments_give_the_same_files(tmp_path: Path) -> None:
    make_demo(tmp_path / "a", images_per_class=4)
    make_demo(tmp_path / "b", images_per_class=4)
    names = [p.relative_to(tmp_path / "a") for p in images(tmp_path / "a")]
    assert names == [p.relative_to(tmp_path / "b") for p in images(tmp_path / "b")]
    assert len(names) == 4 * (4 + 1) + 1
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)


@pytest.mark.slow
def test_the_pictures_differ(demo_folder: Path) -> None:
    seen = set()
    for path in images(demo_folder):
        with Image.open(path) as image:
            seen.add(np.asarray(image.convert("RGB")).tobytes())
    assert len(seen) == len(images(demo_folder))


@pytest.mark.slow
def test_an_empty_directory_is_filled_and_stays_itself(tmp_path: Path) -> None:
    before = tmp_path.stat().st_ino
    make_demo(tmp_path, images_per_class=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train", "val"]
    assert tmp_path.stat().st_ino == before


@pytest.mark.slow
def test_missing_parents_are_made(tmp_path: Path) -> None:
    make_demo(tmp_path / "a" / "b", images_per_class=1)
    assert len(images(tmp_path / "a" / "b")) == 9


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(DestinationError, match="is not empty"):
        make_demo(tmp_path)
    with pytest.raises(DestinationError, match="is a file"):
        make_demo(tmp_path / "mine")
    with pytest.raises(DestinationError, match="cannot write"):
        make_demo(tmp_path / "mine" / "below")
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine").read_text() == "mine"


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)  # root may write everywhere, so no directory would do
    with pytest.raises(DestinationError, match=r"cannot write the demo to .*/demo: Permission denied"):
        make_demo(tmp_path / "demo")


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool, error: BaseException
) -> None:
    path = tmp_path / "demo"
    if existed:
        path.mkdir()
    turns = 0

    def rename(self: Path, target: Path) -> Path:
        nonlocal turns
        turns += 1
        if turns == 2:
            raise error
        os.rename(self, target)  # noqa: PTH104 # Path.rename is what is replaced here
        return target

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(DestinationError if isinstance(error, OSError) else KeyboardInterrupt):
        make_demo(path, images_per_class=1)
    assert path.exists() is existed
    assert not existed or list(path.iterdir()) == []


def test_too_few_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        make_demo(tmp_path / "demo", images_per_class=0)
    assert not (tmp_path / "demo").exists()
