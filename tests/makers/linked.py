"""Sources whose images can be linked, and damage to them."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

from tests.makers.jpegs import jpeg


def make_files(folder: Path, count: int = 6) -> Path:
    """A folder of two classes whose images differ in size and content."""
    for number in range(count):
        file = folder / f"class{number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(240 + 8 * number, 320, "420", seed=number))
    return folder


def make_source(tmp_path: Path, container: str, first: int = 0) -> Path:
    folder = make_files(tmp_path / "files")
    if container == "folder":
        return folder
    files = sorted(folder.rglob("*.jpg"))
    source = tmp_path / f"source.{'zip' if container == 'zip' else 'tar'}"
    if container == "zip":
        with zipfile.ZipFile(source, "w", zipfile.ZIP_STORED) as archive:
            for file in files:
                archive.write(file, file.relative_to(folder))
        return source
    with tarfile.open(source, "w") as tar:
        for number, file in enumerate(files):
            if container == "tar":
                tar.add(file, str(file.relative_to(folder)))
                continue
            label = tmp_path / "label.cls"
            label.write_text(str(number % 2))
            tar.add(file, f"{first + number:05}.jpg")
            tar.add(label, f"{first + number:05}.cls")
    return source


def make_more(folder: Path, first: int, count: int = 4) -> Path:
    """A tar of two classes, with images and keys of their own."""
    folder.mkdir()
    with tarfile.open(folder / "more.tar", "w") as tar:
        for number in range(first, first + count):
            data = jpeg(200 + 8 * number, 240, "420", seed=number)
            member = tarfile.TarInfo(f"class{number % 2}/{number}.jpg")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return folder / "more.tar"


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
