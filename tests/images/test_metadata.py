"""Metadata that is odd, damaged or huge: pixels are read without it, alike by every decoder and command."""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore.augment import CenterCrop
from packstore.images.decoders import available_decoders, get_decoder
from tests.internals import (
    MAX_PIXELS,
    HeaderError,
    SampleError,
    check_header,
    decode_mask,
    image_files,
    read_mask_header,
    read_orientation,
    sniff,
    strip_metadata,
)
from tests.makers.annotated import fill
from tests.makers.metadata import encode, list_odd_files, png_chunk

NAMES = [*list_odd_files()]


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.sampled(60)
@pytest.mark.parametrize("name", NAMES)
def test_pixels_do_not_depend_on_metadata(name: str) -> None:
    odd, clean = list_odd_files()[name]
    assert check_header(odd)[:5] == check_header(clean)[:5]
    found, expected = (image_files.decode(memoryview(data), MAX_PIXELS) for data in (odd, clean))
    assert found[1] == expected[1]
    np.testing.assert_array_equal(found[0], expected[0])
    described = [image_files.describe_image(memoryview(data), sniff(data)) for data in (odd, clean)]
    assert described[0] == described[1]
    if expected[1].dtype != "uint8":
        return
    for decoder, version in available_decoders().items():
        if not version.startswith("not"):
            pixels = [get_decoder(decoder).decode(data, exif_transpose=True) for data in (odd, clean)]
            np.testing.assert_array_equal(*pixels)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("png gray:", "png palette:"))])
def test_masks_do_not_depend_on_metadata(name: str) -> None:
    odd, clean = list_odd_files()[name]
    found, expected = (decode_mask(data, read_mask_header(data)) for data in (odd, clean))
    np.testing.assert_array_equal(found, expected)


MODES: dict[str, dict[str, Any]] = {
    "png": {},
    "png palette": {"alpha": "drop"},
    "png gray 16": {"mode": "I;16"},
    "png deep": {"mode": "RGB;16"},
    "jpeg": {},
    "webp": {},
    "gif": {},
    "tiff": {},
}


@pytest.mark.parametrize("kind", [*MODES])
def test_a_store_is_sound_wherever_it_is_read(kind: str, tmp_path: Path) -> None:
    pairs = [(name, *files) for name, files in list_odd_files().items() if name.startswith(f"{kind}:")]
    files = [pairs[0][2], *(odd for name, odd, _ in pairs if "huge" not in name)]
    (tmp_path / "photos").mkdir()
    suffix = kind.partition(" ")[0]
    for number, data in enumerate(files):
        (tmp_path / "photos" / f"{number:03}.{suffix}").write_bytes(data)
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb", **MODES[kind])
    report = packstore.verify(tmp_path / "a.lmdb", against=tmp_path / "photos", decode=True)
    assert not report.problems
    dataset = packstore.PackedDataset(tmp_path / "a.lmdb", output="dict")
    for augment in ([], [CenterCrop((9, 11))]):
        batch = next(iter(packstore.PackedLoader(dataset, len(dataset), augment=augment)))["image"]
        assert (batch == batch[:1]).all()
    packstore.export(tmp_path / "a.lmdb", tmp_path / "out", to="imagefolder")
    exported = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob(f"*.{suffix}")}
    assert exported == {path.name: path.read_bytes() for path in (tmp_path / "photos").iterdir()}


def test_transparency_and_orientation_stay() -> None:
    exif = Image.Exif()
    exif[274] = 6
    clean = encode("P", "PNG", transparency=3, exif=exif)
    large = png_chunk(b"iCCP", b"p\0\0" + zlib.compress(bytes(3 << 20)))
    odd = clean[:33] + large + clean[33:]
    assert read_orientation(odd) == 6
    pixels, mode = image_files.decode(memoryview(odd), MAX_PIXELS)
    assert mode.has_alpha
    assert (pixels[..., 3] == 0).any()
    # Pillow reads the orientation in a text.
    text = png_chunk(b"iTXt", b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="8"/>')
    assert read_orientation(clean[:33] + large + text + clean[33:].replace(b"eXIf", b"eXIg")) == 8


@pytest.mark.parametrize("kind", ["png", "webp", "gif", "tiff"])
def test_files_without_metadata_are_not_copied(kind: str) -> None:
    data = memoryview(encode("P" if kind == "gif" else "RGB", kind))
    bare = strip_metadata(data)
    assert strip_metadata(bare) is bare


def damaged_pngs() -> dict[str, bytes]:
    """PNG files that no decoder reads, though each has an end."""
    clean = encode("P", "PNG", transparency=3)
    first = clean.index(b"IDAT") - 4
    (length,) = struct.unpack_from(">I", clean, first)
    palette = clean.index(b"PLTE") - 4
    transparency = clean.index(b"tRNS") - 4
    long = struct.pack(">I", 1 << 20) + b"tEXt"
    return {
        "a chunk beyond the end": clean[:33] + long + clean[33:],
        "a chunk without a name": clean[:33] + struct.pack(">I", 4) + b"\0\1\2\3" + bytes(8) + clean[33:],
        "no pixels": clean[:first] + clean[first + 12 + length :],
        "no palette": clean[:palette] + clean[transparency:],
        "a damaged palette": clean[: palette + 9] + b"\xaa\xbb" + clean[palette + 11 :],
        "a damaged transparency": clean[: transparency + 8] + b"\x01" + clean[transparency + 9 :],
        "a damaged header": clean[:29] + b"abcd" + clean[33:],
        "impossible bits": clean[:8] + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 34, 21, 4, 2, 0, 0, 0)) + clean[33:],
    }


@pytest.mark.parametrize("name", [*damaged_pngs()])
def test_what_no_decoder_reads_is_found_while_packing(name: str, tmp_path: Path) -> None:
    data = damaged_pngs()[name]
    with pytest.raises(HeaderError):
        check_header(data)
    fill(tmp_path, {"photos/bad.png": data})
    Image.new("RGB", (4, 4)).save(tmp_path / "photos" / "good.png")
    report = packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb", on_error="skip", alpha="drop")
    assert [skipped.key for skipped in report.skipped] == ["bad.png"]
    writer = packstore.Writer(tmp_path / "b.lmdb", {"image": "image", "mask": "mask"}, encoding="uint8")
    sample = {"image": np.zeros((21, 34, 3), np.uint8), "mask": data}
    with pytest.raises(SampleError, match="mask"):
        write_sample(writer, sample)


def write_sample(writer: packstore.Writer, sample: dict[str, Any]) -> None:
    """Writes a store of one sample."""
    with writer:
        writer.add(**sample)
