"""Names in directories: what lists them, and what is asked of their text."""

import gc
import os
from copy import copy
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals import FolderTree, NameCache, Names, folder_names, list_directory_names

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
