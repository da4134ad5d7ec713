"""``--frames clips``: folders of numbered frames as records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from packstore import PackedDataset, PackedLoader, append, convert, verify
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from tests.internals import AmbiguousSourceError, SampleError, SourceError, UsageError
from tests.makers.sources import FramesSuite, not_packed, prove, question


def frames_of(seed: int, count: int, channels: int = 3, dtype: str = "uint8") -> NDArray[Any]:
    random = np.random.default_rng(seed)
    shape = (count, 6, 8, channels) if channels > 1 else (count, 6, 8)
    return random.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def save(folder: Path, frames: NDArray[Any], name: str = "frame_{:04}.png", first: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames, first):
        Image.fromarray(frame).save(folder / name.format(number))


class TestClips(FramesSuite):
    frames = recorded = "clips"
    exact_sizes = False
    many = 300
    bytes_per_sample = 600  # the frames of a clip

    def make(self, folder: Path, samples: int) -> Path:
        for number in range(samples):
            save(folder / f"class {number % 2}" / f"clip \udcfe{number:04}", frames_of(number, 1 + number % 3))
        return folder

    def change(self, path: Path) -> None:
        save(path / "class 0" / "clip \udcfe0000", frames_of(99, 5))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["lmdb", "h5", "pth"])
@pytest.mark.parametrize(("channels", "dtype", "mode"), [(3, "uint8", None), (1, "uint8", "L"), (1, "uint16", "I;16")])
def test_clips_are_arrays_of_their_frames(
    channels: int, dtype: str, mode: str | None, form: str, tmp_path: Path
) -> None:
    clips = [frames_of(number, 3 + number, channels, dtype) for number in range(3)]
    for number, frames in enumerate(clips):
        save(tmp_path / "video" / f"clip_{number:04}", frames, "{}.png", 8)  # 10 comes after 9
    out = tmp_path / f"out.{form}"
    manifest = convert(tmp_path / "video", out, frames="clips", encoding=dtype).manifest
    assert manifest.image.mode == mode
    assert not manifest.has_column("label")
    for (image, clip, key), frames in zip(PackedDataset(out, columns=("image", "clip", "key")), clips, strict=True):
        wanted = frames.reshape(len(frames), 6, 8, channels).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(clip, wanted)
        np.testing.assert_array_equal(image, wanted[len(wanted) // 2])
        assert key.startswith("clip_000")
    assert verify(out, against=tmp_path / "video").ok


def test_clips_move_with_their_image(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "video" / f"v{number}", frames_of(number, 2 + number))
    convert(tmp_path / "video", tmp_path / "s.lmdb", frames="clips")
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("image", "clip"))
    for images, clips in PackedLoader(dataset, 3, augment=[RandomResizedCrop(5), RandomHorizontalFlip()]):
        assert images.shape == (3, 3, 5, 5)
        for image, clip in zip(images, clips, strict=True):
            assert torch.equal(clip[len(clip) // 2], image)
    (_, clips), *_ = PackedLoader(dataset, 3, augment=[RandomResizedCrop(5)], collate={"clip": "padded"})
    assert clips.values.shape == (3, 4, 3, 5, 5)
    assert clips.lengths.tolist() == [[2, 3, 5, 5], [3, 3, 5, 5], [4, 3, 5, 5]]


@pytest.mark.slow
def test_folders_above_clips_are_classes_and_clips_are_appended(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for number in range(4):
            save(tmp_path / "a" / split / ("jump", "run")[number % 2] / f"v{number}", frames_of(number, 2))
    save(tmp_path / "b" / "train" / "jump" / "v8", frames_of(8, 1))
    save(tmp_path / "b" / "train" / "run" / "v9", frames_of(9, 7))
    manifest = convert(tmp_path / "a", tmp_path / "s.lmdb", frames="clips", shard_size="1KB").manifest
    assert (manifest.classes, manifest.records) == (("jump", "run"), 8)
    assert [label for _, label in PackedDataset(tmp_path / "s.lmdb", "val")] == [0, 0, 1, 1]
    append(tmp_path / "s.lmdb", tmp_path / "b")
    clips = {key: clip for clip, key in PackedDataset(tmp_path / "s.lmdb", "train", columns=("clip", "key"))}
    np.testing.assert_array_equal(clips["train/run/v9"], frames_of(9, 7).transpose(0, 3, 1, 2))


@pytest.mark.slow
def test_classes_may_number_their_clips_alike(tmp_path: Path) -> None:
    for number in range(4):
        save(tmp_path / "a" / ("jump", "run")[number % 2] / f"clip_{number // 2}", frames_of(number, 2))
    question(tmp_path / "a", "same folders of images in each")
    manifest = prove(tmp_path / "a", tmp_path / "s.lmdb", frames="clips").manifest
    assert (manifest.classes, manifest.records) == (("jump", "run"), 4)


def test_folders_like_clips_are_a_question(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "video" / f"clip_{number:04}", frames_of(number, 2))
    caught = not_packed(AmbiguousSourceError, tmp_path / "video", tmp_path / "x.lmdb", "seem to be clips")
    assert [answer.options for answer in caught.answers] == [("--frames", "clips"), ("--source", "imagefolder")]
    manifest = prove(tmp_path / "video", tmp_path / "x.lmdb", source_kind="imagefolder").manifest
    assert manifest.classes == ("clip_0000", "clip_0001", "clip_0002")


REFUSED: Mapping[str, tuple[Any, str]] = {
    "no number": (lambda path: save(path / "a", frames_of(1, 1), "cover.png"), "is not a numbered frame"),
    "sizes": (lambda path: save(path / "a", frames_of(1, 2)[:, :4]), "all clips have one size"),
    "depths": (lambda path: save(path / "b" / "a", frames_of(1, 2)), "all clips have one depth of folders"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_clip_is_said(name: str, tmp_path: Path) -> None:
    save(tmp_path / "video" / "v1", frames_of(1, 2))
    make, said = REFUSED[name]
    make(tmp_path / "video")
    not_packed(SourceError, tmp_path / "video", tmp_path / "x.lmdb", said, frames="clips")


def test_columns_of_single_files_are_refused(tmp_path: Path) -> None:
    for kind in ("k", "l"):
        save(tmp_path / "video" / kind / "v1", frames_of(1, 2), "{}.tif")
    with pytest.raises(UsageError, match="and geo is of each file"):
        convert(tmp_path / "video", tmp_path / "x.lmdb", frames="clips", columns="keep=geo")


def test_other_sources_and_damaged_frames(tmp_path: Path) -> None:
    save(tmp_path / "flat", frames_of(1, 3))
    not_packed(SourceError, tmp_path / "flat", tmp_path / "x.lmdb", "no file of several frames", frames="clips")
    save(tmp_path / "video" / "v1", frames_of(1, 3))
    save(tmp_path / "video" / "v2", frames_of(2, 3))
    damaged = tmp_path / "video" / "v2" / "frame_0002.png"
    damaged.write_bytes(damaged.read_bytes()[:40])
    not_packed(SampleError, tmp_path / "video", tmp_path / "x.lmdb", r"frame_0002", frames="clips")
    report = convert(tmp_path / "video", tmp_path / "x.lmdb", frames="clips", on_error="skip")
    assert len(report.skipped) == 1
    assert report.manifest.records == 1
