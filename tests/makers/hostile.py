"""What the tests of hostile input share: image bombs, and children with less memory or fewer rights."""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import ROOT
from tests.makers.command import run_program
from tests.makers.images import encode, picture
from tests.makers.metadata import png_chunk

NOBODY = 65534


def bombs() -> dict[str, bytes]:
    """Small files that claim an enormous image, one of each kind that packstore reads."""
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    rows = png_chunk(b"IDAT", zlib.compress(bytes(1 << 20), 9))
    png = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + rows + png_chunk(b"IEND", b"")
    rgb = picture()
    jpegs = {}
    for name, options in (("jpeg", {}), ("jpeg-progressive", {"progressive": True})):
        data = bytearray(encode(rgb, "JPEG", **options))
        frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        data[frame + 5 : frame + 9] = struct.pack(">HH", 65_000, 65_000)
        jpegs[name] = bytes(data)
    gif = bytearray(encode(picture("P"), "GIF"))
    gif[6:10] = struct.pack("<HH", 65_535, 65_535)
    image = gif.index(b"\x2c")
    gif_frame = bytearray(gif)
    gif_frame[image + 5 : image + 9] = struct.pack("<HH", 65_535, 65_535)
    bmp = bytearray(encode(rgb, "BMP"))
    bmp[18:26] = struct.pack("<ii", 1 << 30, -(1 << 30))
    bmp[30:34] = struct.pack("<I", 1)  # run lengths: however few bytes there are, they may do
    webp = bytearray(encode(rgb, "WEBP", lossless=True))
    webp[21:25] = struct.pack("<I", 0x0FFFFFFF)  # 16384 x 16384
    canvas = bytearray(encode(rgb, "WEBP", save_all=True, append_images=[picture(seed=3)]))
    canvas[24:30] = b"\xff\xff\x00\xff\xff\x00"  # 65536 x 65536
    tiff = bytearray(encode(rgb, "TIFF", compression="tiff_deflate"))
    at = struct.unpack_from("<I", tiff, 4)[0]
    for entry in range(at + 2, at + 2 + 12 * struct.unpack_from("<H", tiff, at)[0], 12):
        tag, _, count = struct.unpack_from("<HHI", tiff, entry)
        if tag in (256, 257, 278):
            tiff[entry : entry + 12] = struct.pack("<HHII", tag, 4, count, 1_000_000)
    return {
        **jpegs,
        "png": png,
        "gif": bytes(gif),
        "gif-frame": bytes(gif_frame),
        "bmp": bytes(bmp),
        "webp": bytes(webp),
        "webp-canvas": bytes(canvas),
        "tiff": bytes(tiff),
        "pnm": b"P6 100000 100000 255\n" + bytes(1000),
    }


def in_child(code: str, *arguments: object) -> str:
    """Runs ``code`` in a process of its own; returns what it printed."""
    done = run_program(code, *arguments, cwd=ROOT)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stdout[-500:]} {done.stderr[-2000:]}"
    return done.stdout


LESS_MEMORY = """
import resource
from pathlib import Path

def less_memory(nbytes):
    "From here on, this process may take so many bytes more of address space."
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, used + nbytes))
"""


LESS_RIGHTS = f"""
import os

def less_rights():
    "From here on, permissions count: root can do anything. What is imported later must not be needed."
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid({NOBODY})
        os.setuid({NOBODY})
"""


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that everybody can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="packstore-test-", dir="/tmp", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)
