"""Headers of tar: what packstore reads of them is what :mod:`tarfile` does, of sound archives and of damaged ones."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packstore.images.engine import scan_tar
from tests.internals import TAR_FAULTS, OpenTar

FORMATS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}


def _archive(form: str) -> bytes:
    out = io.BytesIO()
    extra: dict[str, Any] = {"pax_headers": {"comment": "made for a test"}} if form == "pax" else {}
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[form], **extra) as archive:
        for n in range(4):
            folder = tarfile.TarInfo(f"set/{n}/")
            folder.type, folder.mtime = tarfile.DIRTYPE, 1_700_000_000
            archive.addfile(folder)
            member = tarfile.TarInfo(f"set/{n}/{'bär' * (n == 2)}{'long' * 20 * (n == 3)}.png")
            member.size, member.mtime = 300 * n, 1_700_000_000 + (0.25 if n == 1 and form == "pax" else 0)
            archive.addfile(member, io.BytesIO(bytes(member.size)))
        link = tarfile.TarInfo("set/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "0/.png"
        archive.addfile(link)
        last = tarfile.TarInfo("set/last.png")
        last.size = 700
        if form == "pax":
            last.pax_headers = {"SCHILY.xattr.user.x": "1", "atime": "1700000000.5"}
        archive.addfile(last, io.BytesIO(bytes(last.size)))
    return out.getvalue()


def _said(member: tarfile.TarInfo) -> tuple[Any, ...]:
    kind = member.isreg(), member.isdir(), member.issparse(), member.islnk(), member.issym()
    return member.name, member.size, member.offset_data, int(member.mtime), kind


def _expected(path: Path) -> Iterator[tuple[Any, ...]]:
    """By tarfile alone."""
    with (
        path.open("rb") as file,
        tarfile.open(fileobj=file, errorlevel=2, encoding="utf-8", errors="surrogateescape") as archive,
    ):
        while (member := archive.next()) is not None:
            if not member.isdir():
                yield _said(member)
        file.seek(archive.offset)
        block = file.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE or any(block):
            raise tarfile.ReadError("it is cut off or broken")


def _until_a_fault(members: Iterator[Any]) -> tuple[list[Any], bool]:
    found = []
    try:
        found.extend(members)
    except TAR_FAULTS:
        return found, True
    return found, False


def _assert_same(path: Path) -> tuple[list[Any], bool]:
    tar = OpenTar(path)
    found = _until_a_fault(_said(member) for member in tar.walk_members() if not member.isdir())
    assert found == _until_a_fault(_expected(path))
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_members_are_those_of_tarfile(form: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(_archive(form))
    found, failed = _assert_same(tmp_path / "a.tar")
    assert (len(found), failed) == (6, False)


@pytest.mark.parametrize("form", FORMATS)
def test_damaged_headers_are_those_of_tarfile(form: str, tmp_path: Path) -> None:
    """Bytes are changed where there are headers, half the time with the checksum made right again."""
    whole, draw, path = _archive(form), random.Random(7), tmp_path / "a.tar"
    heads = [at for at in range(0, len(whole), 512) if whole[at + 257 : at + 262] == b"ustar"]
    failures = 0
    for number in range(150):
        data = bytearray(whole)
        at = draw.choice(heads)
        for _ in range(draw.randrange(1, 4)):
            place = at + draw.choice([draw.randrange(1100), draw.randrange(124, 160), 156, draw.randrange(257, 265)])
            data[min(place, len(data) - 1)] = draw.choice([0, 32, 48, 55, 57, 95, 120, 255, draw.randrange(256)])
        if number % 2:
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
        path.write_bytes(data if number % 5 else data[: draw.randrange(len(data))])
        failures += _assert_same(path)[1]
    assert 20 < failures < 140


def test_what_is_said_of_all_members_is_kept(tmp_path: Path) -> None:
    """A global header may say the size or the name of each member."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"mtime": "77.5"}) as archive:
        for n in range(3):
            archive.addfile(tarfile.TarInfo(f"{n}.png"))
    (tmp_path / "a.tar").write_bytes(out.getvalue())
    found, _ = _assert_same(tmp_path / "a.tar")
    assert [member[3] for member in found] == [77] * 3


@pytest.mark.parametrize("form", FORMATS)
def test_nearly_all_headers_are_read_without_tarfile(form: str, tmp_path: Path) -> None:
    data = _archive(form)
    (tmp_path / "a.tar").write_bytes(data)
    with (tmp_path / "a.tar").open("rb") as file:
        found = [len(scan_tar(file.fileno(), at, len(data))[0]) for at in range(0, len(data), 512)]
    assert max(found) >= 4
