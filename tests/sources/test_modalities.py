"""Folders side by side whose images of one name are one sample: asked, and packed when named."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from packstore import AmbiguousSourceError
from packstore.core.errors import SourceError
from packstore.sources import Entry, ask_about_left, open_source
from packstore.testing import SourceSuite
from tests.makers.annotated import fill, mask
from tests.makers.images import encode, picture, tiny


def make(folder: Path, samples: int, names: tuple[str, ...] = ("rgb", "depth", "nir")) -> Path:
    return fill(folder, {f"{name}/{n:05}.png": tiny(n + 7 * k) for k, name in enumerate(names) for n in range(samples)})


class TestModalities(SourceSuite):
    kind = "modalities"
    recognised = False
    undecodable_keys = False
    bytes_per_sample = 1500
    many = 500
    damages = 10

    def make(self, folder: Path, samples: int) -> Path:
        dot = encode(picture(width=1, height=1), "PNG")
        return fill(make(folder, samples, ("rgb", "depth")), {f"depth/{n:05}.png": dot for n in range(samples)})

    def change(self, path: Path) -> None:
        (path / "rgb/00000.png").write_bytes(tiny(99_999))

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).unlink()
        (path / entry.key).symlink_to("nowhere")
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        with (path / entry.key).open("r+b") as file:
            file.truncate((64 << 20) + 100)
        return True


@pytest.mark.parametrize("samples", [3, 300, pytest.param(3000, marks=pytest.mark.soak)])
def test_they_are_asked_about_and_packed_when_named(samples: int, tmp_path: Path) -> None:
    path = make(tmp_path / "set", samples)
    for place in (path, *(Path(shutil.make_archive(str(tmp_path / "a"), each, path)) for each in ("zip", "tar"))):
        with pytest.raises(AmbiguousSourceError) as caught:
            open_source(place)
        assert ("--source", "modalities") in [answer.options for answer in caught.value.answers]
        with closing(open_source(place, kind="modalities")) as source:
            survey = source.survey()
            assert (survey.records, survey.ledger.left) == (samples, {})
            entry = list(source.entries())[-1]
            values = source.read(entry).values  # type: ignore[union-attr]
            assert entry.key == f"rgb/{samples - 1:05}.png"
            assert [bytes(values[name]) for name in ("depth", "nir")] == [tiny(samples + 6), tiny(samples + 13)]


def test_depth_beside_images_and_masks_offers_to_pack_them_all(tmp_path: Path) -> None:
    path = fill(make(tmp_path / "set", 6, ("rgb", "depth")), {f"mask/{n:05}.png": mask(n, 3, 2) for n in range(6)})
    with pytest.raises(AmbiguousSourceError) as caught, closing(open_source(path)) as source:
        ask_about_left(source, source.survey())
    assert ("--source", "modalities") in [answer.options for answer in caught.value.answers]


def test_two_folders_are_named_once(tmp_path: Path) -> None:
    with pytest.raises(AmbiguousSourceError, match=r"thermal has files of the same names as rgb\. Pack"):
        open_source(make(tmp_path / "set", 6, ("rgb", "thermal")))


def test_splits_masks_and_images_that_are_missing(tmp_path: Path) -> None:
    for split in ("train", "val"):
        make(tmp_path / split, 6, ("left", "right"))
        fill(tmp_path / split, {f"mask/{n:05}.png": mask(n, 3, 2) for n in range(5)})
    (tmp_path / "val/right/00002.png").unlink()
    (tmp_path / "val/left/00004.png").unlink()
    with closing(open_source(tmp_path, kind="modalities")) as source:
        survey = source.survey()
        assert dict(survey.splits) == {"train": 6, "val": 5}
        assert survey.ledger.left == {"images without a main image of the same name": 2}
        found = {entry.key: source.read(entry).values for entry in source.entries()}  # type: ignore[union-attr]
        assert found["val/left/00002.png"]["right"] is None
        assert found["train/left/00005.png"]["mask"] is None


@pytest.mark.parametrize("names", [("cats", "dogs"), ("a", "b"), ("0", "1", "2")])
def test_classes_that_count_from_0_are_none(names: tuple[str, ...], tmp_path: Path) -> None:
    with closing(open_source(make(tmp_path, 30, names))) as source:
        assert source.kind == "imagefolder"
    with closing(open_source(tmp_path, kind="modalities")) as source:
        assert source.survey().records == 30


def test_folders_of_other_names_are_none(tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}/{name}{n}.png": tiny(n) for name in ("rgb", "depth") for n in range(4)})
    with pytest.raises(SourceError, match="no folders side by side"):
        open_source(tmp_path, kind="modalities")


@pytest.mark.parametrize("samples", [3, 300])
@pytest.mark.parametrize("masks", [("vessels", "field_of_view"), ("masks/vessels", "masks/field_of_view")])
def test_several_masks_beside_images_are_columns(masks: tuple[str, str], samples: int, tmp_path: Path) -> None:
    """``images`` is no class, whatever the other folders are called; their files of one channel are masks."""
    files = {f"images/{n}.jpg": tiny(n) for n in range(samples)}
    gray = mask(1, 3, 2)
    files |= {f"{name}/{n}.png": gray for name in masks for n in range(samples)}
    root = fill(tmp_path, files)
    with pytest.raises(AmbiguousSourceError) as caught:
        open_source(root)
    assert ("--source", "modalities") in [answer.options for answer in caught.value.answers]
    with closing(open_source(root, kind="modalities")) as source:
        survey = source.survey()
        assert (survey.records, survey.ledger.left) == (samples, {})
        kinds = {column.name: column.type for column in survey.columns if not column.name.endswith("_valid")}
        assert kinds == {name.replace("/", "_"): "mask" for name in masks}
        values = source.read(next(source.entries())).values
        assert all(values[name] == gray for name in kinds)


def test_two_images_of_one_stem_are_refused(tmp_path: Path) -> None:
    path = fill(make(tmp_path / "set", 4, ("rgb", "depth")), {"rgb/00001.bmp": tiny(9)})
    with pytest.raises(SourceError, match=r"set/rgb has two images called 00001: rename one"):
        open_source(path, kind="modalities")
