"""Names in folders and headers of tar files: what lists them."""

from __future__ import annotations

import gc
import io
import os
import random
import tarfile
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore.images.engine import scan_tar
from tests.internals import TAR_FAULTS, FolderTree, NameCache, Names, OpenTar, folder_names, list_directory_names

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


@pytest.mark.slow
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


NAMES = st.lists(
    st.one_of(
        st.sampled_from(
            ["a.jpg", "b.jpg", "B.JPG", ".jpg", "jpg", "a.tar.gz", "x.", "..y", "ä.png", "\udcff.png", "n\nl.jpg"]
        ),
        st.text(st.characters(blacklist_characters="\0/", blacklist_categories=("Cs",)), min_size=1, max_size=8),
    ),
    unique=True,
).map(sorted)


def listed(path: Path) -> Names:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return list_directory_names(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("compiled", [True, False])
def test_files_and_folders(compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(folder_names, "list_names", lambda _: None)
    inside = tmp_path / "inside"
    assert not listed(tmp_path)
    for folder in ("inside", "b", ".hidden"):
        (tmp_path / folder).mkdir()
    for file in (b"b.jpg", b".x", b"\xff.jpg", "ä".encode(), b"two\nlines"):
        Path(os.fsdecode(os.fsencode(inside) + b"/" + file)).write_bytes(b"")
    (inside / "here").symlink_to("../b")
    (inside / "self").symlink_to("self")
    (inside / "nowhere").symlink_to("nothing")
    os.mkfifo(inside / "pipe")
    assert (listed(tmp_path).files, listed(tmp_path).folders) == ([], [".hidden", "b", "inside"])
    found = listed(inside)
    assert found.files == sorted([".x", "b.jpg", "nowhere", "pipe", "self", "two\nlines", "ä", "\udcff.jpg"])
    assert found.folders == ["here"]


def test_more_names_than_one_call_has_room_for(tmp_path: Path) -> None:
    names = sorted(f"{n:04}-{'x' * (n % 200)}.jpg" for n in range(1_000))
    for name in names:
        (tmp_path / name).touch()
    assert listed(tmp_path).files == names


@given(NAMES, NAMES, st.sampled_from([0, 3, 1000]))
def test_names_are_kept_and_their_suffixes_found(files: list[str], folders: list[str], shared: int) -> None:
    names = Names(files, folders)
    with NameCache() as known, mock.patch.object(folder_names, "_SHARED_NAMES", shared):
        known.put_names("", Names(["other.png"]))
        known.put_names("a/b", Names(["replaced.png"]))
        known.put_names("a/b", names)
        again = known.get_names("a/b")
        other = known.get_names("")
        assert known.get_names("a") is None
        assert known.get_names("a/b") is again or shared < 1000
    assert other is not None
    assert other.files == ["other.png"]
    assert again is not None
    assert (list(again.files), list(again.folders), bool(again)) == (files, folders, bool(files or folders))
    suffixes = {name[name.rfind(".") :] if name.rfind(".") > 0 else "" for name in files}
    common = suffixes.pop() if len(suffixes) == 1 else ""
    for each in (names, again):
        assert each.common_suffix == common
        assert list(each.ending(".jpg", ".gz")) == [name for name in files if name.lower().endswith((".jpg", ".gz"))]


def test_names_are_used_again_only_in_a_folder_that_has_not_changed(tmp_path: Path) -> None:
    for name in ("old", "new", "recent"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").touch()
    tree = FolderTree(tmp_path)
    with (
        mock.patch.object(folder_names, "_SETTLED_NS", -1 << 62),  # as if time had passed
        tree.cache_names(keep=True),
    ):
        assert [tree.names(name).files for name in ("old", "new")] == [["a.jpg"]] * 2
        with mock.patch.object(folder_names, "_SETTLED_NS", 1 << 62):
            assert tree.names("recent").files == ["a.jpg"]
        (tmp_path / "old" / "b.jpg").touch()
        os.utime(tmp_path / "old", (1 << 31, 1 << 31))  # another time even if the clock is coarse
        assert tree.names("old").files == ["a.jpg"]
    again = copy(tree)
    with (
        mock.patch.object(folder_names, "_SETTLED_NS", -1 << 62),
        mock.patch.object(folder_names, "list_directory_names", wraps=list_directory_names) as lists,
        again.cache_names(),
    ):
        assert again.list("new").images == ["a.jpg"]
        assert lists.call_count == 0
        with mock.patch.object(folder_names, "_SETTLED_NS", 1 << 62):
            assert again.list("recent").images == ["a.jpg"]
            assert lists.call_count == 1
        assert again.list("old").images == ["a.jpg", "b.jpg"]
        assert lists.call_count == 2
        again.list("old")
        assert lists.call_count == 2
    with again.cache_names():
        (tmp_path / "new" / "c.jpg").touch()
    assert again.names("new").files == ["a.jpg", "c.jpg"]
    assert gc.isenabled()
