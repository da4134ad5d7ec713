"""Damages files of a source, as disks, downloads and attackers do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

_CHUNK = 64
_TEXTS = (
    b"-1",
    b"1e999",
    b"9" * 20,
    b"null",
    b"[",
    b"{",
    b'"',
    b"\xff",
    b"",
    b"\n",
    b"..",
    b"../",
    b"/etc/passwd",
    b"nan",
)
_MARKS = b'0123456789{}[]",:\n'


def damage_file(folder: Path, random: Random) -> str:
    """Damages a random file below ``folder``. Returns a description of the damage.

    Draws a suffix first, and then a file with this suffix: rare types of files are damaged as often as others. Mostly
    corrupts bytes. Otherwise deletes the file, or replaces it by one of these:

    - a sparse file of 8 GiB
    - an empty folder
    - a pipe
    - a link to itself, or to ``/dev/zero``
    """
    by_suffix: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink():
            by_suffix.setdefault(file.suffix, []).append(file)
    file = random.choice(by_suffix[random.choice(sorted(by_suffix))])
    how = random.choice(["bytes"] * 14 + ["gone", "a folder", "a pipe", "a device", "a cycle", "8 GiB"])
    if how == "bytes":
        file.write_bytes(corrupt_bytes(file.read_bytes(), random))
    elif how == "8 GiB":
        os.truncate(file, 1 << 33)
    else:
        file.unlink()
        if how == "a folder":
            file.mkdir()
        elif how == "a pipe":
            os.mkfifo(file)
        elif how == "a device":
            file.symlink_to("/dev/zero")
        elif how == "a cycle":
            file.symlink_to(file.name)
    return f"{file.relative_to(folder)}: {how}"


def corrupt_bytes(data: bytes, random: Random) -> bytes:
    """Returns a copy of ``data`` with one random change. Bytes are cut off, overwritten, repeated or emptied, or a
    number or sign is replaced."""
    copy, place = bytearray(data), random.randrange(len(data) or 1)
    some = random.choice((1, 4, 8, _CHUNK, 4096))
    how = random.randrange(8)
    if how == 0:
        del copy[place:]
    elif how == 1:
        copy[place : place + 1] = random.randbytes(1)
    elif how == 2:
        copy[place : place + some] = bytes(len(copy[place : place + some]))
    elif how == 3:
        ones = random.choice((b"\xff", b"\x7f", b"\x80")) * min(some, 8)
        copy[place : place + len(ones)] = ones
    elif how == 4:
        copy += random.choice((bytes(600), random.randbytes(100), data[:200]))
    elif how == 5:
        copy.clear()
    elif how == 6:
        copy[place:place] = copy[place : place + some]
    else:
        marks = [number for number, byte in enumerate(data[: 1 << 16]) if byte in _MARKS]
        place = random.choice(marks or [0])
        copy[place : place + 1] = random.choice(_TEXTS)
    return bytes(copy)


def copy_damaged(folder: Path, copy: Path, random: Random) -> str:
    """Copies ``folder`` to ``copy`` and damages a file of the copy. Returns a description of the damage. Keeps
    links."""
    shutil.copytree(folder, copy, symlinks=True)
    return damage_file(copy, random)
