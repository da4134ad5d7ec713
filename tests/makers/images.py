"""Small images of all kinds that the sources promise, for tests: ``all_images()["jpeg-cmyk"]`` is a file's bytes."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

WIDTH, HEIGHT = 37, 23
"""Size of every image of :func:`all_images`: odd, so that padded rows and cropped blocks show."""


def picture(mode: str = "RGB", width: int = WIDTH, height: int = HEIGHT, seed: int = 0) -> Image.Image:
    """A smooth image with some noise, in any mode of Pillow."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [(x * (3 + seed % 5) + y * 5 + 40 * c + rng.integers(0, 12, (height, width))) % 256 for c in range(4)]
    rgba = Image.fromarray(np.stack(planes, -1).astype(np.uint8), "RGBA")
    if mode == "I;16":
        return Image.fromarray((planes[0] * 256 + planes[1]).astype(np.uint16))
    if mode == "CMYK":
        return Image.frombytes("CMYK", (width, height), rgba.tobytes())
    return rgba if mode == "RGBA" else rgba.convert("RGB").convert(mode)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The image as the bytes of a file of ``kind``, a format of Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    """An array as the bytes of a file of numpy."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), **options)
    return buffer.getvalue()


def tiny(seed: int) -> bytes:
    """A PNG file of a few pixels; another one for each seed."""
    return encode(Image.frombytes("RGB", (3, 2), seed.to_bytes(18, "big")), "PNG")


def heic(width: int, height: int, orientation: int = 1) -> bytes:
    """A HEIC file, by the extra ``heif``. ``orientation`` is the one in its EXIF."""
    pillow_heif = pytest.importorskip("pillow_heif")  # which takes a newer Pillow than packstore

    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image = pillow_heif.from_pillow(picture(width=width, height=height))
    image.save(buffer, quality=50, exif=exif.tobytes() if orientation != 1 else None)
    return buffer.getvalue()


def avif(width: int, height: int, orientation: int = 1) -> bytes:
    """An AVIF file. ``orientation`` is the one in its EXIF."""
    Image.init()
    if "AVIF" not in Image.SAVE:  # Pillow before 11.3
        pytest.skip("this Pillow writes no AVIF", allow_module_level=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(picture(width=width, height=height), "AVIF", quality=50, speed=10, exif=exif)


@functools.cache
def whole_images() -> dict[str, bytes]:
    """Those of :func:`all_images` of which 8-bit RGB loses nothing."""
    more = ("16", "rgba", "alpha", "transparent", "animated")
    return {name: data for name, data in all_images().items() if not name.endswith(more)}


@functools.cache
def all_images() -> dict[str, bytes]:
    """Files by name; the name begins with the kind that :func:`packstore.images.sniff.sniff` tells."""
    thumbnail = encode(picture(width=16, height=12), "JPEG")
    exif = b"Exif\0\0II*\0\x08\0\0\0" + b"\0" * 6 + thumbnail  # a thumbnail with an end-of-image marker of its own
    rgb = picture()
    frames = [picture("P", seed=seed) for seed in (1, 2)]
    return {
        "jpeg-420": encode(rgb, "JPEG", quality=90),
        "jpeg-444": encode(rgb, "JPEG", subsampling=0),
        "jpeg-gray": encode(picture("L"), "JPEG"),
        "jpeg-cmyk": encode(picture("CMYK"), "JPEG"),
        "jpeg-progressive": encode(rgb, "JPEG", progressive=True),
        "jpeg-optimized": encode(rgb, "JPEG", optimize=True),
        "jpeg-restarts": encode(rgb, "JPEG", restart_marker_blocks=1),
        "jpeg-exif": encode(rgb, "JPEG", exif=exif),
        "png-rgb": encode(rgb, "PNG"),
        "png-rgba": encode(picture("RGBA"), "PNG"),
        "png-gray": encode(picture("L"), "PNG"),
        "png-gray-alpha": encode(picture("LA"), "PNG"),
        "png-16": encode(picture("I;16"), "PNG"),
        "png-palette": encode(picture("P"), "PNG"),
        "png-palette-transparent": encode(picture("P"), "PNG", transparency=0),
        "png-bits": encode(picture("1"), "PNG"),
        "gif": encode(picture("P"), "GIF"),
        "gif-animated": encode(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "bmp-24": encode(rgb, "BMP"),
        "bmp-8": encode(picture("L"), "BMP"),
        "bmp-1": encode(picture("1"), "BMP"),
        "bmp-32": encode(picture("RGBA"), "BMP"),
        "webp-lossy": encode(rgb, "WEBP"),
        "webp-lossless": encode(rgb, "WEBP", lossless=True),
        "webp-alpha": encode(picture("RGBA"), "WEBP"),
        "webp-animated": encode(rgb, "WEBP", save_all=True, append_images=[picture(seed=3)]),
        "tiff": encode(rgb, "TIFF"),
        "tiff-deflate": encode(rgb, "TIFF", compression="tiff_deflate"),
        "tiff-jpeg": encode(rgb, "TIFF", compression="jpeg"),  # its JPEG tables lie behind the pixels
        "tiff-16": encode(picture("I;16"), "TIFF"),
        "tiff-bits": encode(picture("1"), "TIFF"),
        "tiff-big": encode(rgb, "TIFF", big_tiff=True),
        "pnm-p6": encode(rgb, "PPM"),
        "pnm-p5": encode(picture("L"), "PPM"),
        # Pillow before 10.3 writes none of 16 bits.
        "pnm-p5-16": b"P5\n%d %d\n65535\n" % (WIDTH, HEIGHT) + np.asarray(picture("I;16")).astype(">u2").tobytes(),
        "pnm-p4": encode(picture("1"), "PPM"),
        "pnm-p3": b"P3 # a comment\n37 23\n255\n" + b"\n".join(b"%d" % b for b in rgb.tobytes()) + b"\n",
        "pnm-p2": b"P2\n37 23\n255\n" + b" ".join(b"%d" % b for b in picture("L").tobytes()) + b"\n",
        "pnm-p1": b"P1\n37 23\n" + b"10110" * 170 + b"1\n",
    }
