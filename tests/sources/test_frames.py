"""``--frames all``: each frame of GIF, APNG, WebP and TIFF files as a record, against Pillow and tifffile."""

from __future__ import annotations

import io
import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageSequence

import packstore
from packstore import PackedDataset, append, convert, export, verify
from packstore.sources import open_source
from packstore.stores import open_store
from tests.internals import HeaderError, SampleError, SourceError, UsageError, count_frames, sniff
from tests.makers.images import encode
from tests.makers.sources import FramesSuite, not_packed, prove, refused


def frames_of(seed: int, count: int, mode: str = "RGB", size: tuple[int, int] = (9, 7)) -> list[Image.Image]:
    random = np.random.default_rng(seed)
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (count, size[1], size[0], channels) if channels > 1 else (count, size[1], size[0])
    return [Image.fromarray(each, mode) for each in random.integers(0, 256, shape, np.uint8)]


def save(path: Path, frames: list[Image.Image], kind: str | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(path, kind, save_all=True, append_images=frames[1:], **options)
    return path


def records(path: Path, **options: Any) -> dict[str, NDArray[Any]]:
    """The pixels of all samples, ``(H, W, C)``, by key."""
    found = {}
    with closing(open_source(path, frames="all", **options)) as source:
        survey = source.survey()
        entries = list(source.entries())
        assert survey.records == len(entries)
        for entry in entries:
            image = source.image(entry)
            assert isinstance(image, np.ndarray)
            found[entry.key] = image.transpose(1, 2, 0) if image.dtype.kind == "f" else image
    return found


class TestFrames(FramesSuite):
    frames = recorded = "all"

    def make(self, folder: Path, samples: int) -> Path:
        for number in range(-(-samples // 3)):
            place = folder / f"class {number % 2}"
            save(place / f"{number} \udcfe.webp", frames_of(number, 2), "WEBP", lossless=True)
            (place / f"{number}.jpg").write_bytes(encode(frames_of(number, 1)[0], "JPEG"))
        return folder

    def change(self, path: Path) -> None:
        save(path / "class 0" / "0 \udcfe.webp", frames_of(99, 3), "WEBP", lossless=True)

    def test_entries_are_listed_lazily_in_bounded_memory(self, tmp_path: Path) -> None:
        pytest.skip("of the wrapped source")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_frames_are_pillows(kind: str, mode: str, count: int, tmp_path: Path) -> None:
    options = {"lossless": True} if kind == "WEBP" else {"disposal": 2} if kind == "GIF" else {}
    file = save(tmp_path / "a" / f"x.{kind.lower()}", frames_of(3, count, mode), kind, **options)
    with Image.open(file) as image:
        wanted = [np.array(each.convert("RGBA")) for each in ImageSequence.Iterator(image)]
    found = records(tmp_path)
    assert list(found) == ([f"a/{file.name}"] if count == 1 else [f"a/{file.name}#{n}" for n in range(count)])
    for pixels, expected in zip(found.values(), wanted, strict=True):
        shown = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGBA")
        np.testing.assert_array_equal(np.array(shown), expected)


def test_counts_are_pillows_where_the_first_image_of_a_png_is_no_frame(tmp_path: Path) -> None:
    file = save(tmp_path / "x.png", frames_of(1, 3), "PNG", default_image=True)
    with Image.open(file) as image:
        assert count_frames(file.read_bytes(), sniff(file.read_bytes())).total == image.n_frames == 3


@pytest.mark.parametrize("disposal", [0, 1, 2, 3])
@pytest.mark.parametrize("transparent", ["first", "later", "none"])
def test_transparency_of_a_gif_is_pillows(transparent: str, disposal: int, tmp_path: Path) -> None:
    frames = [frame.convert("RGBA") for frame in frames_of(1, 3)]
    for frame in {"first": frames[:1], "later": frames[1:], "none": []}[transparent]:
        frame.paste((0, 0, 0, 0), (0, 0, 4, 4))
    file = save(tmp_path / "a" / "x.gif", frames, "GIF", disposal=disposal)
    with Image.open(file) as image:
        wanted = [np.array(each.convert("RGBA")) for each in ImageSequence.Iterator(image)]
    found = [*records(tmp_path).values()]
    assert (found[0].shape[-1] == 4) == (min(each[..., 3].min() for each in wanted) < 255)
    for pixels, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.array(Image.fromarray(pixels).convert("RGBA")), expected)


@pytest.mark.slow
def test_stacks_of_many_bits_are_tifffiles(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    stack = np.random.default_rng(1).integers(0, 65536, (70, 8, 6), np.uint16)
    (tmp_path / "a").mkdir()
    tifffile.imwrite(tmp_path / "a" / "x.tif", stack, photometric="minisblack")
    found = records(tmp_path)
    np.testing.assert_array_equal(np.stack([*found.values()])[..., 0], stack)
    convert(tmp_path / "a", tmp_path / "out.lmdb", frames="all")
    with open_store(tmp_path / "out.lmdb") as store:
        assert (store.manifest.image.mode, store.manifest.records) == ("I;16", 70)
    assert PackedDataset(tmp_path / "out.lmdb")[69].tolist() == [stack[69].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["original", "uint8"])
def test_frames_are_appended_and_resumed(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("one", 3), ("two", 2)):
        for number in range(count):
            save(tmp_path / name / "a" / f"{name} {number}.gif", frames_of(number, 1 + number), "GIF")
    store, whole = tmp_path / "s.lmdb", tmp_path / "whole.lmdb"
    convert(tmp_path / "one", whole, frames="all", encoding=encoding)
    broken = tmp_path / "one" / "a" / "one 2.gif"
    data, found = broken.read_bytes(), broken.stat()
    monkeypatch.setattr("packstore.packing.batches.DECODE_RECORDS", 1)
    monkeypatch.setattr("packstore.packing.batches.PASS_RECORDS", 1)
    monkeypatch.setattr("packstore.stores.places.resuming.EVERY_SECONDS", 0.0)
    broken.write_bytes(data[:-9])
    not_packed(SampleError, tmp_path / "one", store, frames="all", encoding=encoding, workers=1)
    broken.write_bytes(data)
    os.utime(broken, ns=(found.st_atime_ns, found.st_mtime_ns))
    report = convert(tmp_path / "one", store, frames="all", encoding=encoding, workers=1)
    assert report.manifest.dataset_digest == packstore.open(whole).manifest.dataset_digest
    append(store, tmp_path / "two")  # frame by frame, as the store was packed
    keys = [item[0] if isinstance(item, tuple) else item for item in PackedDataset(store, columns=("key",))]
    assert keys[-3:] == ["a/two 0.gif", "a/two 1.gif#0", "a/two 1.gif#1"]
    assert verify(store, decode=True).ok
    append(store, whole, key_prefix="again/")
    assert packstore.open(store).manifest.records == len(keys) + 6
    export(whole, tmp_path / "export", to="npz")  # of frames: their number is not asked for again
    convert(whole, tmp_path / "copy.h5")
    assert all(verify(whole, against=tmp_path / each).ok for each in ("export", "copy.h5"))
    append(store, tmp_path / "export", key_prefix="export/")
    assert packstore.open(store).manifest.records == len(keys) + 12


def test_smaller_versions_of_pages_are_no_frames(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    pages = np.random.default_rng(1).integers(0, 256, (3, 8, 6, 3), np.uint8)
    (tmp_path / "a").mkdir()
    with tifffile.TiffWriter(tmp_path / "a" / "x.tif") as file:
        for page in pages:
            file.write(page, photometric="rgb")
            file.write(page[::2, ::2], photometric="rgb", subfiletype=1)
    np.testing.assert_array_equal(np.stack([*records(tmp_path).values()]), pages)


def test_pages_of_different_modes_are_refused_and_8_bits_unified(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    for name, second in (("one", np.full((4, 4), 7, np.uint8)), ("two", np.full((4, 4), 300, np.uint16))):
        (tmp_path / name / "a").mkdir(parents=True)
        with tifffile.TiffWriter(tmp_path / name / "a" / "x.tif") as file:
            file.write(np.full((4, 4, 3), 9, np.uint8), photometric="rgb")
            file.write(second, photometric="minisblack")
    np.testing.assert_array_equal(records(tmp_path / "one")["a/x.tif#1"], np.full((4, 4, 3), 7))
    with pytest.raises(SourceError, match="mode"):
        records(tmp_path / "two")


@pytest.mark.slow
def test_labels_and_answers_go_with_frames(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        save(tmp_path / "source" / label / "x.webp", frames_of(len(label), 2, "RGBA"), "WEBP", lossless=True)
    prove(tmp_path / "source", tmp_path / "out.lmdb", frames="all", alpha="over:white", mode="L")
    dataset = PackedDataset(tmp_path / "out.lmdb")
    assert [int(dataset[n][1]) for n in range(4)] == [0, 0, 1, 1]
    assert dataset[0][0].shape == (1, 7, 9)
    for wrong in ({"exif_transpose": True}, {"link": True}):
        not_packed(UsageError, tmp_path / "source", tmp_path / "other.lmdb", "frames=all", frames="all", **wrong)


def test_damaged_files_are_bad_samples_and_counts_are_bounded(tmp_path: Path) -> None:
    good = save(tmp_path / "a" / "good.gif", frames_of(1, 2), "GIF").read_bytes()
    (tmp_path / "a" / "cut.gif").write_bytes(good[: len(good) // 2])
    png = bytearray(save(tmp_path / "a" / "many.png", frames_of(1, 2), "PNG").read_bytes())
    at = png.index(b"acTL") + 4
    png[at : at + 4] = b"\x7f\xff\xff\xff"
    (tmp_path / "a" / "many.png").write_bytes(png)
    tiff = bytearray(save(tmp_path / "a" / "loop.tif", frames_of(1, 1), "TIFF").read_bytes())
    first = int.from_bytes(tiff[4:8], "little")
    end = first + 2 + 12 * int.from_bytes(tiff[first : first + 2], "little")
    tiff[end : end + 4] = tiff[4:8]
    (tmp_path / "a" / "loop.tif").write_bytes(tiff)
    said = {}
    with closing(open_source(tmp_path, frames="all")) as source:
        for entry in source.entries():
            try:
                source.read(entry)
            except SampleError as error:
                said[entry.key] = error.reason
    assert said.keys() == {"a/cut.gif", "a/many.png", "a/loop.tif"}
    assert "circle" in said["a/loop.tif"]
    assert "frames in" in said["a/many.png"]


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_any_cut_is_an_error_of_ours(kind: str) -> None:
    file = io.BytesIO()
    first, *rest = frames_of(1, 3)
    first.save(file, kind, save_all=True, append_images=rest)
    data = file.getvalue()
    info = sniff(data)
    for length in range(30, len(data), 7):
        with suppress(HeaderError):
            assert 1 <= count_frames(data[:length], info).total <= 3


def test_sources_without_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x_train=np.zeros((4, 8, 8, 3), np.uint8))
    refused(UsageError, tmp_path / "x.npz", "no image", frames="all")
