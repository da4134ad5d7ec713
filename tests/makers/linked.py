"""Sources whose images can be linked, and damage to them."""

from __future__ import annotations

import os
from pathlib import Path

from tests.makers.annotated import fill
from tests.makers.jpegs import jpeg
from tests.makers.layouts import tar, zipped


def make_files(folder: Path, count: int = 6) -> Path:
    """A folder of two classes whose images differ in size and content."""
    return fill(folder, {f"class{n % 2}/{n}.jpg": jpeg(240 + 8 * n, 320, "420", seed=n) for n in range(count)})


def make_source(tmp_path: Path, container: str, first: int = 0) -> Path:
    folder = make_files(tmp_path / "files")
    if container == "folder":
        return folder
    files = {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.jpg"))}
    if container not in ("zip", "tar"):
        shard = {}
        for number, data in enumerate(files.values(), first):
            shard |= {f"{number:05}.jpg": data, f"{number:05}.cls": b"%d" % ((number - first) % 2)}
        files = shard
    source = tmp_path / f"source.{'zip' if container == 'zip' else 'tar'}"
    source.write_bytes(zipped(files) if container == "zip" else tar(files))
    return source


def make_more(folder: Path, first: int, count: int = 4) -> Path:
    """A tar of two classes, with images and keys of their own."""
    images = {f"class{n % 2}/{n}.jpg": jpeg(200 + 8 * n, 240, "420", seed=n) for n in range(first, first + count)}
    return fill(folder, {"more.tar": tar(images)}) / "more.tar"


def spoil(file: Path, how: str) -> None:
    """Damages the last third of a file, where an image lies."""
    data = bytearray(file.read_bytes())
    if how == "deleted":
        file.unlink()
    elif how == "moved":
        file.rename(file.with_suffix(".elsewhere"))
    elif how == "truncated":
        file.write_bytes(data[: len(data) // 3])
    elif how == "directory":
        file.unlink()
        file.mkdir()
    else:
        found = file.stat()
        for place in range(len(data) // 3, len(data)):
            data[place] ^= 0x55
        file.write_bytes(data)
        if how == "same time":
            os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
