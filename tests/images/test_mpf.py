"""JPEG files of several pictures: views are asked about, previews and gain maps are counted."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

import packstore
from packstore.images.engine import is_plain_jpeg
from tests.internals import MAX_PIXELS, UsageError, find_pictures, sniff
from tests.makers.datasets import pixels
from tests.makers.images import encode
from tests.makers.sources import not_packed

PRIMARY, GAIN_MAP, PREVIEW, STEREO = 0x20030000, 0, 0x010001, 0x020002


def jpeg(seed: int, **options: Any) -> bytes:
    return encode(Image.fromarray(pixels(24, 32, seed)), "jpeg", **options)


def join(kinds: list[int], order: str = "<", **options: Any) -> bytes:
    """A file of as many pictures as ``kinds``, its types, after CIPA DC-007."""
    parts = [jpeg(seed, **options) for seed in range(len(kinds))]
    size = 16 * len(kinds)
    at = 2 + 4 + 4 + 8 + 2 + 36 + 4 + size  # of the first picture's rest
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, 3)
    head += struct.pack(order + "HHI4s", 0xB000, 7, 4, b"0100") + struct.pack(order + "HHII", 0xB001, 4, 1, len(kinds))
    head += struct.pack(order + "HHIII", 0xB002, 7, size, 8 + 2 + 36 + 4, 0)
    offset = at + len(parts[0]) - 2 - 10  # from the byte order
    for number, kind in enumerate(kinds):
        long = len(parts[number]) + (at - 2 if not number else 0)
        head += struct.pack(order + "IIIHH", kind, long, offset if number else 0, 0, 0)
        offset += len(parts[number]) if number else 0
    segment = b"MPF\0" + head
    return (
        parts[0][:2] + b"\xff\xe2" + struct.pack(">H", 2 + len(segment)) + segment + parts[0][2:] + b"".join(parts[1:])
    )


def folder_of(tmp_path: Path, *files: bytes) -> Path:
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    for number, data in enumerate(files):
        (folder / f"{number}.jpg").write_bytes(data)
    return folder.parent


@pytest.mark.parametrize("order", "<>")
def test_pictures_are_those_that_pillow_finds(order: str) -> None:
    data = join([PRIMARY, STEREO, PREVIEW], order)
    found = find_pictures(data, sniff(data))
    assert (len(found.views), found.others) == (2, 1)
    assert not is_plain_jpeg(data, MAX_PIXELS)
    with JpegImagePlugin.jpeg_factory(io.BytesIO(data)) as image:
        assert image.n_frames == 3
        image.seek(1)
        wanted = np.asarray(image)
    start, end = found.views[1]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data[start:end]))), wanted)
    assert np.array_equal(wanted, np.asarray(Image.open(io.BytesIO(jpeg(1)))))


@pytest.mark.parametrize("encoding", ["original", "uint8"])
def test_previews_and_gain_maps_are_counted(encoding: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010F] = "phone"
    files = [join([PRIMARY, GAIN_MAP]), join([PRIMARY, PREVIEW, PREVIEW], exif=exif), jpeg(0)]
    folder = folder_of(tmp_path, *files)
    report = packstore.convert(folder, tmp_path / "s.lmdb", encoding=encoding)
    assert dict(report.unified) == {"further_pictures": 2}
    found = packstore.PackedDataset(tmp_path / "s.lmdb", output="numpy")
    for number in range(3):
        np.testing.assert_array_equal(found[number][0], np.asarray(Image.open(io.BytesIO(jpeg(0)))))
    gray = packstore.convert(folder, tmp_path / "g.lmdb", mode="L")
    assert dict(gray.unified) == {"further_pictures": 2}


def test_views_are_frames(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, join([PRIMARY, STEREO]), jpeg(0))
    wanted = [np.asarray(Image.open(io.BytesIO(jpeg(seed)))) for seed in range(2)]
    not_packed(UsageError, folder, tmp_path / "s.lmdb", r"a/0\.jpg: it has 2 frames or pages.*--frames first")
    packstore.convert(folder, tmp_path / "s.lmdb", frames="first")
    np.testing.assert_array_equal(packstore.PackedDataset(tmp_path / "s.lmdb", output="numpy")[0][0], wanted[0])
    packstore.convert(folder, tmp_path / "all.lmdb", frames="all")
    frames = packstore.PackedDataset(tmp_path / "all.lmdb", output="numpy")
    for number, seed in enumerate((0, 1, 0)):
        np.testing.assert_array_equal(frames[number][0], wanted[seed])
    packstore.convert(folder, tmp_path / "clips.lmdb", frames="clips")
    clip = packstore.PackedDataset(tmp_path / "clips.lmdb", columns=("clip",))[0]
    np.testing.assert_array_equal(np.asarray(clip).transpose(0, 2, 3, 1), np.stack(wanted))
    (folder / "a" / "1.jpg").unlink()
    packstore.convert(folder, tmp_path / "second.lmdb", frames=1)
    np.testing.assert_array_equal(packstore.PackedDataset(tmp_path / "second.lmdb", output="numpy")[0][0], wanted[1])


def test_a_damaged_index_names_no_further_pictures() -> None:
    data = join([PRIMARY, STEREO])
    info = sniff(data)
    for at in range(info.mpf_at, info.mpf_at + 90):
        for value in (0, 0xFF):
            broken = data[:at] + bytes([value]) + data[at + 1 :]
            assert 1 <= len(find_pictures(broken, info).views) <= 2
    assert len(find_pictures(data[: len(data) // 2], info).views) == 1
