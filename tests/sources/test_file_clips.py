"""``--frames clips`` of files of several frames, against Pillow, tifffile and imagecodecs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image, ImageSequence

import packstore
from packstore import PackedDataset, PackedLoader, append, convert, export, verify
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from packstore.cli import cli
from packstore.sources import open_source
from tests.internals import Sample, SampleError, SourceError, UsageError
from tests.makers.annotated import fill
from tests.makers.sources import FramesSuite, not_packed, prove

tifffile = pytest.importorskip("tifffile")
imagecodecs = pytest.importorskip("imagecodecs")


def pixels_of(seed: int, *shape: int, dtype: str = "uint8") -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def save(path: Path, frames: NDArray[Any], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *rest = map(Image.fromarray, frames)
    if path.suffix in (".webp", ".avif"):
        options |= {"lossless": True} if path.suffix == ".webp" else {"quality": 100}
    first.save(path, save_all=True, append_images=rest, **options)
    return path


def shown(path: Path, mode: str = "RGB") -> NDArray[Any]:
    """The frames of a file by Pillow, ``(frames, C, H, W)``."""
    with Image.open(path) as image:
        frames = np.stack([np.array(each.convert(mode)) for each in ImageSequence.Iterator(image)])
    return frames[:, None] if frames.ndim == 3 else frames.transpose(0, 3, 1, 2)


def clips(path: Path, **options: Any) -> dict[str, Sample]:
    found = {}
    with closing(open_source(path, frames="clips", **options)) as source:
        survey = source.survey()
        for entry in source.entries():
            sample = source.read(entry)
            assert isinstance(sample, Sample)
            found[entry.key] = sample
    assert survey.records == len(found)
    return found


class TestFileClips(FramesSuite):
    frames, recorded = "clips", "clips:files"
    exact_sizes = False

    def make(self, folder: Path, samples: int) -> Path:
        for number in range(samples):
            frames = pixels_of(number, 1 + (number + 1) % 3, 6, 8, 3)
            save(folder / f"class {number % 2}" / f"{number:05} \udcfe.webp", frames)
        return folder

    def change(self, path: Path) -> None:
        save(path / "class 0" / "00000 \udcfe.webp", pixels_of(99, 5, 6, 8, 3))

    def test_entries_are_listed_lazily_in_bounded_memory(self, tmp_path: Path) -> None:
        pytest.skip("of the wrapped source")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".gif", ".png", ".webp", ".avif", ".tif"])
@pytest.mark.parametrize("form", ["lmdb", "h5", "pth"])
def test_clips_are_pillows(suffix: str, form: str, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / f"out.{form}"
    files = [save(folder / "ab"[n % 2] / f"{n}{suffix}", pixels_of(n, n + 1, 6 + n, 8, 3)) for n in range(3)]
    manifest = convert(folder, out, frames="clips", encoding="uint8").manifest
    assert (manifest.classes, manifest.image.mode) == (("a", "b"), None)
    dataset = PackedDataset(out, columns=("image", "label", "clip", "key"))
    by_key = {key: (image, label, clip) for image, label, clip, key in dataset}
    for number, file in enumerate(files):
        image, label, clip = by_key[f"{file.parent.name}/{file.name}"]
        np.testing.assert_array_equal(clip, shown(file))
        np.testing.assert_array_equal(image, shown(file)[(number + 1) // 2])
        assert label == number % 2
    assert verify(out, decode=True, against=folder).ok
    assert convert(out, tmp_path / "again.h5", encoding="uint8").manifest.dataset_digest == manifest.dataset_digest


STACKS: Mapping[str, tuple[tuple[int, ...], str, str | None]] = {
    "gray of 16 bits": ((6, 8), "uint16", "I;16"),
    "signed": ((6, 8), "int16", "I;16S"),
    "floating point": ((6, 8), "float32", "F"),
    "five channels": ((6, 8, 5), "uint8", "multi:5:uint8"),
    "colours of 16 bits": ((6, 8, 3), "uint16", "RGB;16"),
}


@pytest.mark.parametrize("name", STACKS)
def test_stacks_are_tifffiles(name: str, tmp_path: Path) -> None:
    shape, dtype, mode = STACKS[name]
    (tmp_path / "in").mkdir()
    stacks = [pixels_of(n, n + 2, *shape, dtype="uint16").astype(dtype) for n in range(2)]
    for number, stack in enumerate(stacks):
        kind = "rgb" if shape[2:] == (3,) else "minisblack"
        with tifffile.TiffWriter(tmp_path / "in" / f"{number}.tif") as file:
            for page in stack:
                file.write(page, photometric=kind, planarconfig="contig" if len(shape) > 2 else None)
    not_packed(UsageError, tmp_path / "in", tmp_path / "x.lmdb", r"2 frames or pages.*--frames.*clips")
    manifest = convert(tmp_path / "in", tmp_path / "x.lmdb", frames="clips").manifest
    assert manifest.image.mode == mode
    for (image, clip), stack in zip(PackedDataset(tmp_path / "x.lmdb", columns=("image", "clip")), stacks, strict=True):
        wanted = stack.reshape(len(stack), 6, 8, -1).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(clip, wanted)
        np.testing.assert_array_equal(image, wanted[len(wanted) // 2])
    assert verify(tmp_path / "x.lmdb", decode=True, against=tmp_path / "in").ok


def test_frames_of_jpeg_xl_are_imagecodecs(tmp_path: Path) -> None:
    frames = pixels_of(1, 5, 6, 8, 3)
    frames[3] = 0
    data = imagecodecs.jpegxl_encode(frames, lossless=True, photometric="RGB")
    fill(tmp_path, {"in/a.jxl": data})
    np.testing.assert_array_equal(clips(tmp_path / "in")["a.jxl"].values["clip"], frames.transpose(0, 3, 1, 2))
    convert(tmp_path / "in", tmp_path / "x.lmdb", frames="all")
    np.testing.assert_array_equal(np.stack([*PackedDataset(tmp_path / "x.lmdb")]), frames.transpose(0, 3, 1, 2))
    (tmp_path / "in" / "a.jxl").write_bytes(data[:-100])
    for how in ("all", "clips:files"):
        not_packed(SampleError, tmp_path / "in", tmp_path / "y.lmdb", r"a\.jxl", frames=how)


@pytest.mark.slow
def test_frames_of_a_deep_avif_are_imagecodecs(tmp_path: Path) -> None:
    """10 bits: imagecodecs corrupts memory if it is asked for one frame of several."""
    frames = pixels_of(1, 4, 16, 24, 3, dtype="uint16") >> 6
    fill(tmp_path, {"in/a.avif": imagecodecs.avif_encode(frames, bitspersample=10, level=100)})
    np.testing.assert_array_equal(clips(tmp_path / "in")["a.avif"].values["clip"], frames.transpose(0, 3, 1, 2))
    convert(tmp_path / "in", tmp_path / "x.lmdb", frames=2, depth="keep")
    np.testing.assert_array_equal(PackedDataset(tmp_path / "x.lmdb")[0], frames[2].transpose(2, 0, 1))
    not_packed(SampleError, tmp_path / "in", tmp_path / "y.lmdb", "4 frames", frames=4, depth="keep")


@pytest.mark.slow
def test_answers_hold_for_the_frames_of_clips(tmp_path: Path) -> None:
    """Clips and their images are of one mode, and appended ones too."""
    for name in ("one", "two"):
        save(tmp_path / name / "x.webp", pixels_of(len(name), 3, 6, 8, 4))
    save(tmp_path / "two" / "y.webp", pixels_of(9, 3, 6, 8, 3))
    (tmp_path / "deep").mkdir()
    stack = pixels_of(1, 3, 6, 8, dtype="uint16")
    tifffile.imwrite(tmp_path / "deep" / "x.tif", stack, photometric="minisblack")
    not_packed(UsageError, tmp_path / "deep", tmp_path / "d.lmdb", "--depth", frames="clips", mode="L")
    prove(tmp_path / "deep", tmp_path / "d.lmdb", frames="clips", mode="L", depth="window:0,4095", decode=True)
    (image, clip), *_ = PackedDataset(tmp_path / "d.lmdb", columns=("image", "clip"))
    np.testing.assert_array_equal(clip[:, 0], np.rint(np.clip(stack / 4095, 0, 1) * 255))
    np.testing.assert_array_equal(clip[1], image)
    out = tmp_path / "s.lmdb"
    manifest = prove(tmp_path / "one", out, frames="clips", alpha="over:white", mode="L", decode=True).manifest
    assert (manifest.image.mode, manifest.encoding) == ("L", "uint8")
    append(out, tmp_path / "two", key_prefix="two/")
    for image, clip in PackedDataset(out, columns=("image", "clip")):
        assert clip.shape == (3, 1, 6, 8)
        assert torch.equal(clip[1], image)
    append(tmp_path / "d.lmdb", tmp_path / "deep", key_prefix="again/")
    (_, one), (_, two) = PackedDataset(tmp_path / "d.lmdb", columns=("image", "clip"))
    assert torch.equal(one, two)


def test_labels_of_a_table_go_with_clips_and_they_move_with_their_image(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "in" / "gifs" / f"{number}.gif", pixels_of(number, number + 1, 6, 8, 3))
    (tmp_path / "in" / "train.csv").write_text(
        "file,label,score\n" + "".join(f"{n}.gif,k{n},0.{n}\n" for n in range(3))
    )
    out = tmp_path / "s.lmdb"
    convert(tmp_path / "in", out, frames="clips", source_kind="table", columns=["image=file"])
    dataset = PackedDataset(out, columns=("image", "label", "score", "clip"))
    assert [(int(label), float(score), len(clip)) for _, label, score, clip in dataset] == [
        (0, 0.0, 1), (1, 0.1, 2), (2, 0.2, 3),
    ]  # fmt: skip
    moved = PackedDataset(out, columns=("image", "clip"))
    for images, found in PackedLoader(moved, 3, augment=[RandomResizedCrop(5), RandomHorizontalFlip()]):
        for image, clip in zip(images, found, strict=True):
            assert torch.equal(clip[len(clip) // 2], image)
    export(out, tmp_path / "out.npz")
    digest = convert(tmp_path / "out.npz", tmp_path / "back.h5").manifest.dataset_digest
    assert digest == packstore.open(out).manifest.dataset_digest


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["uint8", "float32"])
def test_clips_are_appended_and_resumed(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        save(tmp_path / "in" / f"{number}.gif", pixels_of(number, 2 + number, 6, 8, 3))
    store, whole = tmp_path / "s.lmdb", tmp_path / "whole.lmdb"
    convert(tmp_path / "in", whole, frames="clips", encoding=encoding)
    broken = tmp_path / "in" / "3.gif"
    data, found = broken.read_bytes(), broken.stat()
    monkeypatch.setattr("packstore.packing.batches.DECODE_RECORDS", 1)
    monkeypatch.setattr("packstore.packing.batches.PASS_RECORDS", 1)
    monkeypatch.setattr("packstore.stores.places.resuming.EVERY_SECONDS", 0.0)
    broken.write_bytes(data[:-9])
    not_packed(SampleError, tmp_path / "in", store, r"3\.gif", frames="clips", encoding=encoding, workers=1)
    broken.write_bytes(data)
    os.utime(broken, ns=(found.st_atime_ns, found.st_mtime_ns))
    report = convert(tmp_path / "in", store, frames="clips", encoding=encoding, workers=1)
    assert report.manifest.dataset_digest == packstore.open(whole).manifest.dataset_digest
    save(tmp_path / "still" / "8.gif", pixels_of(8, 1, 6, 8, 3))
    save(tmp_path / "still" / "9.gif", pixels_of(9, 1, 6, 8, 3))
    append(store, tmp_path / "still")  # each file is a clip, as in the store
    lengths = [len(clip) for _, clip in PackedDataset(store, columns=("image", "clip"))]
    assert lengths == [2, 3, 4, 5, 1, 1]
    append(store, whole, key_prefix="again/")
    assert verify(store, decode=True).ok


def pages_of_two_sizes(path: Path) -> None:
    with tifffile.TiffWriter(path / "a" / "pages.tif") as file:
        for size in (6, 7):
            file.write(pixels_of(1, size, 8), photometric="minisblack")


REFUSED: Mapping[str, tuple[Any, dict[str, Any], str]] = {
    "sizes": (pages_of_two_sizes, {}, r"a/pages\.tif: frame 1 has 7 x 8 pixels, other frames 6 x 8"),
    "bomb": (lambda path: None, {"max_pixels": 50}, r"a/x\.gif: is a clip of 20 frames"),
    "resize": (lambda path: None, {"resize": 4}, "resize.*clip"),
    "idle": (lambda path: None, {"depth": "clip"}, "depth cannot apply"),
    "column": (lambda path: None, {"columns": ["clip.mode=L"]}, "clip"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_clip_is_said(name: str, tmp_path: Path) -> None:
    make, options, said = REFUSED[name]
    save(tmp_path / "in" / "a" / "x.gif", pixels_of(1, 20, 6, 8, 3))
    make(tmp_path / "in")
    with pytest.raises((SourceError, SampleError, UsageError), match=said):
        convert(tmp_path / "in", tmp_path / "x.lmdb", frames="clips", **options)


def test_files_of_one_frame_are_clips_if_asked(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.gif", pixels_of(1, 1, 6, 8, 3))
    not_packed(SourceError, tmp_path / "in", tmp_path / "x.lmdb", "clips:files", frames="clips")
    done = CliRunner().invoke(
        cli, ["convert", str(tmp_path / "in"), str(tmp_path / "x.lmdb"), "--frames", "clips:files"]
    )
    assert done.exit_code == 0, done.output
    assert "--size" not in done.output  # which clips refuse
    assert next(iter(PackedDataset(tmp_path / "x.lmdb", columns=("image", "clip"))))[1].shape == (1, 3, 6, 8)


def test_stores_of_files_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.gif", pixels_of(1, 2, 6, 8, 3))
    convert(tmp_path / "in", tmp_path / "s.lmdb", frames="first", mode="L")
    for frames in ("clips", "all"):
        with pytest.raises(UsageError, match="pack the files that it was packed from"):
            convert(tmp_path / "s.lmdb", tmp_path / "x.lmdb", frames=frames)


@pytest.mark.slow
def test_stacks_of_many_frames(tmp_path: Path) -> None:
    frames = np.zeros((500, 6, 8, 3), np.uint8)
    frames[:, 0] = pixels_of(1, 500, 8, 3)
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "in" / "a.tif", frames, photometric="rgb")
    save(tmp_path / "in" / "b.webp", frames)
    found = clips(tmp_path / "in")
    for name in ("a.tif", "b.webp"):
        np.testing.assert_array_equal(found[name].values["clip"], frames.transpose(0, 3, 1, 2))
