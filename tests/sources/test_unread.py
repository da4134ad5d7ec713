"""Files that are images and cannot be read are bad samples: an error by default, listed with ``on_error="skip"``."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from packstore import AmbiguousSourceError, SampleError, SourceError, convert, verify
from packstore.sources import open_source
from tests.internals import UNREAD_SUFFIXES
from tests.makers.images import avif, encode, heic, picture

JPEG = encode(picture(), "JPEG")


def tiff(*bits: int) -> bytes:
    """A gray or RGB TIFF of 4 x 4 pixels of so many bits."""
    pixels = bytes(range(1, 1 + 4 * -(-4 * sum(bits) // 8)))
    tags = {256: 4, 257: 4, 258: bits[0], 259: 1, 262: 2 if len(bits) == 3 else 1, 273: 200, 277: len(bits), 278: 4}
    entries = b"".join(
        struct.pack("<HHII", tag, 3, len(bits), 190)
        if tag == 258 and len(bits) > 2
        else struct.pack("<HHIHH", tag, 3, 1, value, 0)
        for tag, value in {**tags, 279: len(pixels)}.items()
    )
    head = b"II*\0" + struct.pack("<IH", 8, len(tags) + 1) + entries + bytes(4)
    return head.ljust(190, b"\0") + struct.pack(f"<{len(bits)}H", *bits).ljust(10, b"\0") + pixels


def jpeg_of(bits: int) -> bytes:
    data = bytearray(JPEG)
    data[data.index(b"\xff\xc0") + 4] = bits
    return bytes(data)


CASES = {
    **{
        f"{n}.tif": (tiff(n), f"is a TIFF of {n} bits a sample, which packstore does not read")
        for n in range(5, 16)
        if n != 8
    },
    "3x12.tif": (tiff(12, 12, 12), "is a TIFF of 12 bits a sample"),
    "565.tif": (tiff(5, 6, 5), "is a TIFF of 5 bits a sample"),
    "24.tif": (tiff(24), "is a TIFF of 24 bits a sample"),
    "12.jpg": (jpeg_of(12), "is a JPEG of 12 bits a sample, which packstore does not read: convert it to 8 bits"),
    "a.jxl": (b"\xff\x0a\xfa", "is truncated: its JPEG XL header is cut off"),
    "a.CR2": (b"II*\0\x10\0\0\0CR\x02\0", "is a camera raw image, which packstore does not read"),
    "a.nef": (JPEG, "is a camera raw image"),
    "lfs.jpg": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "is a pointer of Git LFS"),
    "a.tga": (b"\0\0\x02\0", "is a Targa image"),
    "a.dds": (b"DDS |", "is a DirectDraw surface image"),
    "a.png": (b"8BPS\0\x01", "is a Photoshop image, which packstore does not read"),
    "photo": (JPEG, "is an image by its first bytes, but not by its name: rename it"),
    "photo.jpg_large": (JPEG, "is an image by its first bytes"),
    "photo.dat": (b"\0\0\0\x0cJXL \r\n\x87\n\0\0\0\0", "is an image by its first bytes, but not by its name"),
    "a.dcm": (bytes(128) + b"DICM\2\0", "is a DICOM image: pack a folder of them"),
    "IM-0001": (b"II*\0".ljust(128, b"\0") + b"DICM\2\0", "is a DICOM image: pack a folder of them"),
    "dicom.png": (bytes(128) + b"DICM\2\0", "is a DICOM image: pack a folder of them"),
    "a.nii": (struct.pack("<I", 348) + bytes(400), "is a NIfTI image: pack a folder of them with --source nifti"),
    "a.nii.gz": (b"\x1f\x8b\x08", "is a NIfTI image: pack a folder of them"),
    "a.hdr": (struct.pack("<I", 348) + bytes(344), "is the header of a NIfTI image, which packstore does not read"),
    "b.hdr": (struct.pack(">I", 348) + bytes(344), "is the header of a NIfTI image"),
    "c.HDR": (b"#?RADIANCE\n", "is truncated: its header is cut off"),
    "d.hdr": (b"#?RGBE\n", "is truncated: its header is cut off"),
    "e.hdr": (b"ENVI\nsamples = 3\n", "is the header of an ENVI image"),
    "f.hdr": (b"anything", "is the header of an unknown image"),
    "photo.bin": (encode(picture(), "WEBP"), "is an image by its first bytes"),
}


def make_images(root: Path, flat: bool, name: str, data: bytes) -> Path:
    place = root if flat else root / "cat"
    place.mkdir(parents=True)
    (place / "fine.jpg").write_bytes(JPEG)
    (place / name).write_bytes(data)
    return root


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_is_an_error_or_listed(name: str, flat: bool, tmp_path: Path) -> None:
    data, reason = CASES[name]
    root = make_images(tmp_path / "root", flat, name, data)
    asked = "not by its name" in reason or "by its first bytes" in reason
    said = rf"images without the suffix of one; .*{re.escape(name)}" if asked else re.escape(f"{name}: {reason}")
    with pytest.raises(AmbiguousSourceError if asked else SampleError, match=said):
        convert(root, tmp_path / "x.lmdb")
    report = convert(root, tmp_path / "x.lmdb", on_error="skip")
    ((key, why),) = ((skipped.key, skipped.reason) for skipped in report.manifest.skipped)
    assert key == ("" if flat else "cat/") + name
    assert why.startswith(reason)
    assert report.manifest.records == 1
    assert verify(tmp_path / "x.lmdb", against=root).ok


@pytest.mark.parametrize("bits", [(1,), (2,), (4,), (8,), (16,), (8, 8, 8), (16, 16, 16)])
def test_tiffs_that_pillow_reads_are_packed_and_loaded(bits: tuple[int, ...], tmp_path: Path) -> None:
    convert(make_images(tmp_path / "root", False, "a.tif", tiff(*bits)), tmp_path / "x.lmdb", depth="scale")
    assert verify(tmp_path / "x.lmdb", decode=True).ok


def test_suffixes_are_in_lower_case() -> None:
    assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in UNREAD_SUFFIXES)


@pytest.mark.parametrize(
    ("name", "data"), [("a.txt", JPEG), ("notes", b"BMW is a car"), ("a.svg", b"<svg/>"), ("P1", b"P1 x"), ("e", b"")]
)
def test_other_files_are_passed_over(name: str, data: bytes, tmp_path: Path) -> None:
    survey = open_source(make_images(tmp_path / "root", False, name, data), kind="imagefolder").survey()
    assert survey.records == 1
    assert sum(survey.ledger.passed_over.values()) == 1


def test_heif_and_avif_are_images(tmp_path: Path) -> None:
    root = make_images(tmp_path / "root", False, "b.HEIC", heic(36, 23))
    (root / "cat" / "c.avif").write_bytes(avif(36, 23))
    report = convert(root, tmp_path / "x.h5", encoding="uint8", size=16)
    assert report.manifest.records == 3
    assert verify(tmp_path / "x.h5", against=root, decode=True).ok
    assert convert(root, tmp_path / "y.lmdb").manifest.records == 3
    assert verify(tmp_path / "y.lmdb", against=root, decode=True).ok


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"Rar!\x1a\x07\x01\x00", "begins with .*, an archive of no known kind: unpack it"),
        (b"7z\xbc\xaf\x27\x1c\x00\x04", "begins with .*, an archive of no known kind: unpack it"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS without the file itself"),
        (b"<!DOCTYPE html>\n<html>", r"is a web page \(HTML\), and no data: .*download it again"),
        (b"\xef\xbb\xbf\n<!-- saved -->\n<HTML><head>", r"is a web page \(HTML\)"),
    ],
)
def test_files_that_are_no_source(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(SourceError, match=said):
        open_source(tmp_path / "x")


@pytest.mark.parametrize("kind", [None, "imagefolder", "webdataset"])
def test_a_pipe_is_no_source(kind: str | None, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(SourceError, match="x is neither a file nor a folder"):
        open_source(tmp_path / "x", kind=kind)


@pytest.mark.parametrize("pages", [["a.h5"], ["a.h5", "b.h5"], ["b.h5"]])
def test_pages_saved_as_hdf5_are_said(pages: list[str], tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        if name in pages:
            (tmp_path / name).write_bytes(b"\n<!doctype HTML><title>Sign in</title>")
        else:
            with h5py.File(tmp_path / name, "w") as file:
                file["images"] = np.zeros((2, 4, 4, 3), np.uint8)
    for path in (tmp_path, *([tmp_path / "a.h5"] if "a.h5" in pages else [])):
        with pytest.raises(SourceError, match=rf"{pages[0]} is a web page \(HTML\), and no \.h5: .*download it again"):
            open_source(path)
