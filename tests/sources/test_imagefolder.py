"""Image folders: order and labels of torchvision's ImageFolder, splits, links, and what else lies in folders."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore.sources import Source, open_source
from tests.conftest import SharedData
from tests.internals import (
    IMAGE_SUFFIXES,
    NO_FILE,
    SPLIT_ORDER,
    SYSTEM_NAMES,
    FolderTree,
    SampleError,
    SourceError,
    UsageError,
    tree,
)
from tests.makers.images import all_images, tiny
from tests.makers.sources import FileSuite, refused


def fill(root: Path, files: Iterable[str | bytes], data: bytes = b"image") -> Path:
    """Writes ``files`` (relative paths) below ``root``."""
    for name in files:
        path = os.path.join(os.fsencode(root), os.fsencode(name))  # noqa: PTH118 - names that are not UTF-8
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(data)
    root.mkdir(exist_ok=True)
    return root


def torchvision_samples(root: str) -> tuple[list[str], list[tuple[str, int]]]:
    """Classes and (path, label) as torchvision 0.24 ``datasets/folder.py`` finds them, with our suffixes, and without
    hidden and system files."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not passed(entry.name))
    samples = []
    for label, name in enumerate(classes):
        for directory, _, files in sorted(os.walk(f"{root}/{name}", followlinks=True)):
            if any(passed(part) for part in directory[len(root) + 1 :].split("/")):
                continue
            samples += [
                (f"{directory}/{file}"[len(root) + 1 :], label)
                for file in sorted(files)
                if file.lower().endswith(IMAGE_SUFFIXES) and not passed(file)
            ]
    return classes, samples


def passed(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def samples(source: Source, split: str | None = None) -> list[tuple[str, int]]:
    return [(entry.key, entry.labels[0]) for entry in source.entries(split)]


def failure(path: Path, split: str | None = None, kind: str | None = "imagefolder") -> str:
    """The message of the SourceError of a survey; entries may not fail otherwise than it."""
    with pytest.raises(SourceError) as caught:
        open_source(path, kind=kind).survey(split)
    return str(caught.value)


class TestImageFolder(FileSuite):
    kind = "imagefolder"
    many = 2000
    undecodable_keys = True

    def make(self, folder: Path, samples: int) -> Path:
        for number in range(samples):
            split, label = ("train", "val", "train")[number % 3], number // 3 % 4 + number // 400 * 4
            fill(folder, [f"{split}/{label}/{number}\udcff.png"], tiny(number))
        return folder

    def change(self, path: Path) -> None:
        """Exchanges two files of one size and age, which only their times of change tell."""
        first, second = sorted((path / "train").rglob("*.png"))[:2]
        for file in (first, second):
            os.utime(file, ns=(0, 0))
        first.rename(path / "aside")
        second.rename(first)
        (path / "aside").rename(second)


def test_order_and_labels_are_those_of_torchvision(tmp_path: Path) -> None:
    files = [
        "dog/b.jpg", "dog/a.JPG", "dog/B.jpeg", "dog/10.png", "dog/9.png", "Cat/x.webp", "ant/deep/er/1.gif",
        # "a-b" sorts before "a/x" as a path, though after "a" as a directory: no depth-first order gives that
        "dog/a/x/1.jpg", "dog/a-b/1.jpg", "dog/a/1.jpg", "dog/a b/1.jpg", "dog/a0/1.jpg", "dog/a/x-y/1.jpg",
        "Äffin/é.jpg", "ant/日本.png", "ant/with\nnewline.jpg", "ant/" + "n" * 200 + ".jpg", "dog/picture.jpg/1.jpg",
    ]  # fmt: skip
    source = open_source(fill(tmp_path / "root", files))
    classes, expected = torchvision_samples(str(tmp_path / "root"))
    survey = source.survey()
    assert source.kind == "imagefolder"
    assert samples(source) == expected
    assert sorted(key for key, _ in expected) == sorted(files)
    assert survey.columns[0].classes == tuple(classes) == ("Cat", "ant", "dog", "Äffin")
    assert (survey.columns[0].name, survey.columns[0].dtype, survey.columns[0].shape) == ("label", "int64", ())
    assert dict(survey.splits) == {"": len(files)}
    assert (survey.encoding, survey.shape, survey.store) == ("original", None, None)


NAME = st.one_of(
    st.sampled_from(["a", "b", "a-b", "a b", "A", "train", "é", "x.jpg", ".h", "Thumbs.db", "ab", "a.", "\udc80"]),
    st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=4).filter(
        lambda name: name not in (".", "..")
    ),
)
FILE = st.tuples(
    st.lists(NAME, min_size=1, max_size=4), NAME, st.sampled_from([".jpg", ".JPEG", ".png", ".txt", "", ".Gif"])
)


@pytest.mark.slow
@given(tree=st.lists(FILE, min_size=1, max_size=14))
def test_any_tree_gives_what_torchvision_finds(
    tree: list[tuple[list[str], str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for folders, name, suffix in tree:
        path = root.joinpath(*folders)
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / (name + suffix)).write_bytes(b"12345")
        except OSError:
            continue  # a name that is a folder and a file
    classes, expected = torchvision_samples(str(root))
    others = [name for name in classes if name.lower() not in SPLIT_ORDER]
    if not any(key.startswith(f"{name}/") for key, _ in expected for name in others):
        return  # splits, or a folder of classes without any image beside one
    source = open_source(root, kind="imagefolder")
    assert samples(source) == expected
    empty = set(range(len(classes))) - {label for _, label in expected}
    if empty:
        assert f"{len(empty)} of {len(classes)} class folders without images" in failure(root)
        return
    survey = source.survey()
    assert survey.columns[0].classes == tuple(classes)
    assert survey.records == len(expected)
    assert (survey.size_bytes, survey.size_counts) == (5 * len(expected), {64: len(expected)})
    assert survey.key_bytes == sum(len(os.fsencode(key)) for key, _ in expected)


def test_splits_share_one_class_list(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ["val/b/1.jpg", "train/a/1.jpg", "train/c/1.jpg", "Test/d/1.jpg", "val/c/2.jpg"])
    source = open_source(root)
    survey = source.survey()
    assert list(survey.splits.items()) == [("train", 2), ("val", 2), ("test", 1)]
    assert survey.columns[0].classes == ("a", "b", "c", "d")
    assert [(e.key, e.split, e.labels) for e in source.entries()] == [
        ("train/a/1.jpg", "train", (0,)),
        ("train/c/1.jpg", "train", (2,)),
        ("val/b/1.jpg", "val", (1,)),
        ("val/c/2.jpg", "val", (2,)),
        ("Test/d/1.jpg", "test", (3,)),
    ]
    one = source.survey("test")
    assert dict(one.splits) == {"test": 1}
    assert one.columns[0].classes == ("a", "b", "c", "d")
    assert samples(source, "TEST") == [("Test/d/1.jpg", 3)]
    assert source.read(next(source.entries("test"))) == b"image"


def test_a_folder_called_train_among_classes_is_a_class(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ["train/1.jpg", "plane/1.jpg", "car/1.jpg"])
    survey = open_source(root).survey()
    assert survey.columns[0].classes == ("car", "plane", "train")
    assert list(survey.splits) == [""]


def test_every_split_name_is_known_and_ordered(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", [f"{name}/c/1.jpg" for name in reversed(SPLIT_ORDER)])
    assert list(open_source(root).survey().splits) == list(SPLIT_ORDER)


def test_splits_of_bare_images_have_no_labels(tmp_path: Path) -> None:
    source = open_source(fill(tmp_path / "root", ["train/2.jpg", "train/1.jpg", "test/1.jpg"]))
    survey = source.survey()
    assert survey.columns == ()
    assert dict(survey.splits) == {"train": 2, "test": 1}
    assert [(e.key, e.split, e.labels) for e in source.entries()] == [
        ("train/1.jpg", "train", ()),
        ("train/2.jpg", "train", ()),
        ("test/1.jpg", "test", ()),
    ]


def test_a_split_without_class_folders_beside_others_needs_a_choice(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ["train/a/1.jpg", "test/1.jpg", "test/2.jpg"])
    text = failure(root)
    assert "images without in test" in text
    assert "--split" in text
    source = open_source(root)
    with pytest.raises(SourceError, match="images without in"):
        source.entries()
    assert source.survey("train").columns[0].classes == ("a",)
    assert source.survey("test").columns == ()
    assert [e.labels for e in source.entries("test")] == [(), ()]


def test_folders_without_images_beside_splits_are_passed_over(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ["train/a/1.jpg", "Val/a/2.jpg", "ILSVRC_devkit/data/map.txt", "annotations/1.xml"])
    for kind in (None, "imagefolder"):
        survey = open_source(root, kind=kind).survey()
        assert dict(survey.splits) == {"train": 1, "val": 1}
        assert survey.columns[0].classes == ("a",)
        assert dict(survey.ledger.passed_over) == {"not images (.txt)": 1, "not images (.xml)": 1}
        assert samples(open_source(root, kind=kind), "val") == [("Val/a/2.jpg", 0)]


def test_splits_are_not_classes_beside_other_folders_with_images(tmp_path: Path) -> None:
    root = fill(
        tmp_path / "root", ["train/a/1.jpg", "test/a/2.jpg", "test/b/3.jpg", "unlabel\x1bed/x/4.jpg", "doc/x.md"]
    )
    text = failure(root, kind=None)
    assert "splits (test, train) and beside them folders with images (unlabel\\x1bed)" in text
    assert "--split test" in text
    assert "--source imagefolder" not in text
    refused(SourceError, root, "folders with images")
    one = open_source(root).survey("test")
    assert (dict(one.splits), one.columns[0].classes) == ({"test": 2}, ("a", "b"))
    assert dict(one.ledger.passed_over) == {"images that are not of this split": 2, "not images (.md)": 1}
    assert samples(open_source(root), "train") == [("train/a/1.jpg", 0)]
    assert failure(root, "val", kind=None).endswith("has no split 'val'; splits: train, test")
    assert "1 of 4 class folders without images: 'doc'" in failure(root)
    (root / "doc" / "5.jpg").write_bytes(b"image")
    forced = open_source(root, kind="imagefolder")
    assert forced.survey().columns[0].classes == ("doc", "test", "train", "unlabel\x1bed")
    assert samples(forced) == torchvision_samples(str(root))[1]


def test_an_empty_split_is_an_error_unless_another_is_asked_for(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ["train/a/1.jpg"])
    (root / "val").mkdir()
    (root / "val" / "notes.txt").write_text("none yet")
    assert "val holds no images (passed over: 1 not images (.txt)): remove this split" in failure(root)
    assert open_source(root).survey("train").records == 1


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["train/a/1.jpg", "Train/a/2.jpg"], "are the same split"),
        (["1.jpg"], "no class folders: pack it with --source flat"),
        (["a/1.jpg", "b/notes.txt", "c/1.jpg"], "1 of 3 class folders without images: 'b'"),
        (["a/1.jpg", "b/notes.txt", "c/1.jpg"], "passed over in all folders: 1 not images (.txt)"),
    ],
)
def test_what_is_no_image_folder(files: list[str], said: str, tmp_path: Path) -> None:
    assert said in failure(fill(tmp_path / "root", files))


def test_a_class_may_be_empty_in_one_split_only(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "train/c/notes.txt"])
    (root / "val" / "b").mkdir()
    assert "'c'" in failure(root)
    assert "'c'" in failure(root, "val")
    (root / "val" / "c" / "deep").mkdir(parents=True)
    fill(root, ["val/c/deep/1.jpg"])
    assert dict(open_source(root).survey().splits) == {"train": 2, "val": 2}
    assert dict(open_source(root).survey("train").splits) == {"train": 2}


def test_an_empty_source(tmp_path: Path) -> None:
    assert "holds no images" in failure(tmp_path, kind=None)
    fill(tmp_path, ["readme.txt", "a.csv"])
    text = failure(tmp_path)
    assert "holds no images (passed over: 1 not images (" in text
    assert text.endswith("give a folder of images (.jpg, .png …), or another source (see packstore guide sources)")


def test_what_is_passed_over_is_counted(tmp_path: Path) -> None:
    files = ["a/1.jpg", "a/.2.jpg", "a/Thumbs.db", "a/x.txt", "a/y.TXT", "a/noext", "loose.jpg", "sizes.csv"]
    files += [".git/x.jpg", "__MACOSX/a/1.jpg", "a/@eaDir/1.jpg", "a/.ipynb_checkpoints/1.jpg", "a/desktop.ini"]
    survey = open_source(fill(tmp_path / "root", files)).survey()
    assert survey.records == 1
    assert survey.columns[0].classes == ("a",)
    assert dict(survey.ledger.passed_over) == {
        "hidden": 3,
        "system files": 4,
        "not images (.txt)": 2,
        "not images (no extension)": 1,
        "not images (.csv)": 1,
        "images beside the class folders": 1,
    }


def test_what_is_passed_over_beside_splits(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ["train/a/1.jpg", "train/loose.jpg", "loose.jpg"])
    ignored = open_source(root).survey().ledger.passed_over
    assert dict(ignored) == {"images beside the class folders": 2}


def test_reasons_do_not_grow_without_bound(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ["a/1.jpg", *(f"a/part.{number:05}" for number in range(300))])
    ignored = open_source(root).survey().ledger.passed_over
    assert sum(ignored.values()) == 300
    assert len(ignored) < 50


def test_links_are_followed(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", ["1.jpg", "sub/2.jpg"])
    root = fill(tmp_path / "root", ["a/0.jpg"])
    (root / "b").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "link.jpg").symlink_to(tmp_path / "elsewhere" / "1.jpg")
    (root / "a" / "again").symlink_to(tmp_path / "elsewhere")  # a second way to the same folder is no cycle
    source = open_source(root)
    assert samples(source) == torchvision_samples(str(root))[1]
    assert len(samples(source)) == 6
    assert all(source.read(entry) == b"image" for entry in source.entries())
    (tmp_path / "rootlink").symlink_to(root)
    assert samples(open_source(tmp_path / "rootlink")) == samples(source)


@pytest.mark.parametrize("target", [".", "..", "../..", "../../..", "../../../..", "/"])
def test_a_cycle_of_links_is_an_error(tmp_path: Path, target: str) -> None:
    root = fill(tmp_path / "up" / "root", ["a/sub/0.jpg", "b/1.jpg"])
    (root / "a" / "sub" / "loop").symlink_to(target)
    text = failure(root)
    assert str(root / "a" / "sub" / "loop") in text
    assert "cycle" in text
    with pytest.raises(SourceError, match="cycle"):
        list(open_source(root, kind="imagefolder").entries())
    refused(SourceError, root, "cycle")


def test_a_split_that_is_a_cycle(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ["train/a/0.jpg"])
    (root / "val").symlink_to(root)
    assert "cycle" in failure(root)


def test_a_broken_link_and_a_link_to_itself_fail_when_read(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ["a/0.jpg"])
    (root / "a" / "1.jpg").symlink_to("nowhere")
    (root / "a" / "2.jpg").symlink_to("2.jpg")
    source = open_source(root)
    assert source.survey().records == 3
    good, broken, itself = source.entries()
    assert source.read(good) == b"image"
    for entry, why in ((broken, "No such file"), (itself, "symbolic links")):
        with pytest.raises(SampleError, match=why) as caught:
            source.read(entry)
        assert caught.value.key == entry.key


def test_pipes_sockets_and_devices_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fill(tmp_path / "root", ["a/0.jpg"])
    os.mkfifo(root / "a" / "1.jpg")
    monkeypatch.chdir(root / "a")  # a socket's path has a limit of about 100 bytes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("2.jpg")
        (root / "a" / "3.jpg").symlink_to("/dev/zero")
        source = open_source(root)
        survey = source.survey()
        entries = list(source.entries())
        assert survey.records == len(entries) == 4
        assert survey.size_bytes == sum(entry.size_bytes for entry in entries) == 5
        for entry in entries[1:]:
            with pytest.raises(SampleError, match="is not a file"):
                source.read(entry)
            with pytest.raises(SampleError):  # neither when it turned into one after the listing
                source.read(entry._replace(ref=None))


def test_small_files_are_read_together(tmp_path: Path) -> None:
    """All that is wrong with one is left to reading it alone."""
    root = fill(tmp_path / "root", ["a/0.jpg", "a/1.jpg", "a/2.jpg", "a/3.jpg", "b/c/0.jpg", "b/0.jpg", b"b/\xff.jpg"])
    for number, path in enumerate(sorted(root.rglob("*.jpg"))):
        path.write_bytes(bytes([number]) * (number * 700))
    source = open_source(root)
    entries = list(source.entries())
    whole = [source.read(entry) for entry in entries]
    assert source.read_together(entries) == whole
    assert source.read_together([]) == []
    (root / "a" / "0.jpg").unlink()
    os.mkfifo(root / "a" / "0.jpg")
    (root / "a" / "1.jpg").unlink()
    longer = root / "a" / "2.jpg"
    longer.write_bytes(longer.read_bytes() + b"x")
    os.utime(longer, ns=(entries[2].modified_ns, entries[2].modified_ns))
    os.utime(root / "a" / "3.jpg", ns=(1, 1))
    assert source.read_together(entries) == [None, None, None, None, *whole[4:]]
    for other in (entries[4]._replace(key="nowhere/0.jpg"), entries[4]._replace(key="b/\0.jpg")):
        assert source.read_together([entries[5], other])[-1] is None
    large = root / "b" / "0.jpg"
    large.write_bytes(bytes(1 << 20))
    assert source.read_together(list(source.entries()))[-1] is None  # of large files one call for each is as fast


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fill(tmp_path / "root", ["a/0.jpg"], b"0123456789")
    source = open_source(root)
    (entry,) = source.entries()
    whole = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: whole(descriptor, min(size, 3)))
    assert source.read(entry) == b"0123456789"  # short reads are put together
    parts = iter([b"0123", b""])
    monkeypatch.setattr(os, "read", lambda descriptor, size: next(parts))
    with pytest.raises(SampleError, match="ends after 4 of 10 bytes"):
        source.read(entry)


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fill(tmp_path / "root", ["a/0.jpg", "b/0.jpg"])
    source = open_source(root)
    entry = next(source.entries())
    real = os.open

    def refuse(path: str, *args: int) -> int:
        if str(path).endswith(("/a", "/0.jpg")):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SampleError, match=r"a/0\.jpg: cannot be opened: Permission denied"):
        source.read(entry)
    with pytest.raises(SourceError, match="root/a cannot be listed: Permission denied"):
        source.survey()


def test_relative_paths_survive_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "root", ["a/0.jpg"])
    monkeypatch.chdir(tmp_path)
    source = open_source(Path("root"))
    monkeypatch.chdir("/")
    assert [source.read(entry) for entry in source.entries()] == [b"image"]


@pytest.mark.slow
def test_kinds_and_what_is_no_source(tmp_path: Path) -> None:
    refused(UsageError, tmp_path, r"'folder'; use one of: .*store, .*imagefolder, flat", kind="folder")
    refused(SourceError, tmp_path / "missing", "missing: No such file")
    (tmp_path / "link").symlink_to("nowhe\x1bre")
    refused(SourceError, tmp_path / "link", r"link is a link to nowhere: nowhe\\x1bre does not exist")
    (tmp_path / "photo").write_bytes(all_images()["png-rgb"])
    for kind in (None, "imagefolder", "flat"):
        refused(SourceError, tmp_path / "photo", "photo is one image; give a folder of images", kind=kind)
    refused(SourceError, Path("a\0b"), "null byte")
    (tmp_path / "text.txt").write_text("hello world")
    for kind in (None, "imagefolder", "flat"):
        refused(SourceError, tmp_path / "text.txt", "is a file that begins with b'hello wo'", kind=kind)
    refused(
        SourceError,
        tmp_path / "text.txt",
        r": neither a store nor a source that packstore reads \(see packstore guide sources\)$",
    )
    (tmp_path / "empty").touch()
    refused(SourceError, tmp_path / "empty", "empty is an empty file")
    refused(UsageError, tmp_path, "labels", kind="imagefolder", labels=tmp_path / "text.txt")


@pytest.mark.slow
def test_real_folder(shared_data: SharedData) -> None:
    root = shared_data / "imagenet-600"
    source = open_source(root)
    survey = source.survey()
    assert dict(survey.splits) == {"train": 480, "val": 120}
    for split in survey.splits:
        classes, expected = torchvision_samples(str(root / split))
        assert survey.columns[0].classes == tuple(classes)
        assert samples(source, split) == [(f"{split}/{key}", label) for key, label in expected]
    assert sum(len(source.read(entry)) for entry in source.entries()) == survey.size_bytes


def test_a_change_of_a_file_from_the_epoch_is_noticed(tmp_path: Path) -> None:
    """Its time of modification is 0, as archives made to be reproducible have it."""
    root = fill(tmp_path / "root", ["a/0.jpg"])
    os.utime(root / "a" / "0.jpg", ns=(0, 0))
    source = open_source(root)
    (entry,) = source.entries()
    assert source.read(entry) == (root / "a" / "0.jpg").read_bytes()
    (root / "a" / "0.jpg").write_bytes(b"longer than it was before")
    with pytest.raises(SampleError, match="has changed since it was listed"):
        source.read(entry)


def test_facts_of_many_files_are_those_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"{number}.jpg").write_bytes(b"x" * number)
    (tmp_path / "link.jpg").symlink_to("7.jpg")
    (tmp_path / "nowhere.jpg").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe.jpg")
    Path(str(tmp_path), "odd\udcff.jpg").touch()
    together = FolderTree(tmp_path).list("")
    monkeypatch.setattr(tree, "stat_files", lambda *_: None)
    assert together == FolderTree(tmp_path).list("")
    assert together.sizes[together.images.index("pipe.jpg")] == NO_FILE
