"""Files that are left out: by patterns, and since no decoder reads them."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pytest

from packstore import AmbiguousSourceError, SampleError, SourceError, UsageError, append, convert, repair, verify
from packstore.sources import open_source
from tests.internals import (
    IGNORED,
    UNREAD_SUFFIXES,
    Listing,
    active_rules,
    apply_ignore_rules,
    compile_ignore_rules,
    ignore_paths,
    is_ignored,
    location,
)
from tests.makers.all_layouts import corpus
from tests.makers.annotated import fill, jpeg, mask
from tests.makers.command import run
from tests.makers.images import avif, encode, heic, picture, tiny
from tests.makers.s3 import Double, upload
from tests.makers.sources import look, not_packed, prove, question, refused

FILES: dict[str, str | bytes] = {
    **{f"{label}/{number}.png": tiny(number) for label in ("cat", "dog") for number in range(4)},
    **{f"extra/cat/{number}.png": tiny(number) for number in range(4)},
    **{f"{label}/{number}.txt": "a cat" for label in ("cat", "dog") for number in range(4)},
}
PATTERNS = ("*.txt", "/extra")


@pytest.mark.parametrize(
    ("pattern", "hidden", "seen"),
    [
        ("*.txt", ["a.txt", "x/a.txt", "x.txt/b.jpg"], ["a.txt2", "atxt", "x/a.jpg"]),
        ("masks", ["masks", "masks/a.png", "train/masks/a.png"], ["masks2/a.png", "a/mask"]),
        ("masks/", ["masks/a.png", "x/masks/y/a.png"], ["masks", "x/masks"]),
        ("train/masks", ["train/masks/a.png", "train/masks"], ["masks", "x/train/masks/a.png"]),
        ("/a.csv", ["a.csv"], ["x/a.csv"]),
        ("**/gt/*.png", ["gt/a.png", "x/y/gt/a.png"], ["gt/x/a.jpg", "gt/a.jpg"]),
        ("gt/**", ["gt/a.png", "gt/x/a.png"], ["gt", "x/gt/a.png"]),
        ("[!a]_?.jpg", ["b_1.jpg", "x/c_2.jpg"], ["a_1.jpg", "b_12.jpg", "b_/.jpg"]),
        (r"a\*b", ["a*b"], ["aXb"]),
        ("[[]1].jpg", ["[1].jpg"], ["1.jpg"]),
    ],
)
def test_patterns_are_those_of_gitignore(pattern: str, hidden: Sequence[str], seen: Sequence[str]) -> None:
    rules = compile_ignore_rules((pattern,))
    assert [path for path in hidden if not rules.hides(path)] == []
    assert [path for path in seen if rules.hides(path)] == []
    assert rules.ignore_reason("", hidden[0]) == IGNORED
    assert rules.ignore_reason("", seen[0]) is None


@pytest.mark.parametrize(
    "pattern", ["", "/", "*", "**", "**/*", "!a", "#a", "a/../b", "./a", "a//b", "[a", "[]", "[z-a]", "a\0"]
)
def test_what_is_no_pattern_is_refused(pattern: str, tmp_path: Path) -> None:
    refused(UsageError, fill(tmp_path, FILES), "is not a pattern", ignore=[pattern])
    for given in ([1], 1, None, {"a": 1}):
        refused(UsageError, tmp_path, "ignore should be patterns", ignore=given)


@pytest.mark.parametrize("packed", ["folder", "zip", "tar"])
def test_a_tree_without_what_is_ignored(packed: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", FILES)
    path = root if packed == "folder" else Path(shutil.make_archive(str(tmp_path / "set"), packed, root))
    question(path)
    seen = look(path, ignore=PATTERNS)
    assert seen.kind == "imagefolder"
    survey = seen
    assert survey.labels[0].classes == ("cat", "dog")
    assert survey.records == 8
    assert survey.ledger.left == {IGNORED: 12}
    assert survey.ledger.total == len(FILES)


def test_one_pattern_is_text() -> None:
    assert compile_ignore_rules(("a",)).hides("a")


@pytest.mark.slow
def test_a_store_remembers_what_was_ignored(tmp_path: Path) -> None:
    root, store = fill(tmp_path / "set", FILES), tmp_path / "x.lmdb"
    convert(root, store, ignore=PATTERNS)
    report = verify(store, against=root)
    assert report.ok, report.problems
    append(
        store, fill(tmp_path / "more", {"cat/9.png": tiny(77), "dog/9.txt": "", "dog/10.png": tiny(78)}), ignore="*.txt"
    )
    again = tmp_path / "again.lmdb"
    convert(root, again, ignore=PATTERNS)
    data = again / "data.mdb"
    data.write_bytes(data.read_bytes().replace(tiny(2), tiny(2)[:-1] + b"!"))
    assert repair(again, root, tmp_path / "whole.lmdb").replaced
    assert verify(tmp_path / "whole.lmdb", against=root).ok


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", FILES)
    given = [word for pattern in PATTERNS for word in ("--ignore", pattern)]
    assert run("info", root).returncode == 2
    told = run("info", root, *given, "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["records"] == 8
    assert "--ignore '*.txt' --ignore /extra" in run("info", root, *given).stdout
    assert run("convert", root, tmp_path / "x.lmdb", *given).returncode == 0
    assert run("verify", tmp_path / "x.lmdb", "--against", root).returncode == 0
    assert run("verify", tmp_path / "x.lmdb", "--ignore", "a").returncode == 2


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("tfrecord", ["detection*", "plain.tfrec"]),
        ("tfrecord", ["slim-*", "detection*"]),
        ("webdataset", ["odd.tar"]),
    ],
)
def test_kinds_that_list_by_themselves(name: str, patterns: list[str], tmp_path: Path) -> None:
    path = corpus(name)(tmp_path)
    if patterns[0].startswith("odd"):
        fill(path, {patterns[0]: "of another kind"})
    with pytest.raises((SourceError, SampleError)):
        look(path)
    assert look(path, ignore=patterns).records


def test_masks_and_labels_that_are_ignored_are_no_question(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"images/{n}.jpg": jpeg(n) for n in range(4)}
    files |= {f"masks/{n}.png": mask(n) for n in range(4)} | {f"labels/{n}.txt": "0 .5 .5 .1 .1" for n in range(4)}
    root = fill(tmp_path, files)
    assert look(root, ignore=["masks"]).kind == "yolo"
    assert look(root, ignore=["labels"]).kind == "companions"
    assert look(root / "images", ignore=["labels"]).kind == "flat"


def test_a_listing_keeps_sizes_in_step(tmp_path: Path) -> None:
    root = fill(tmp_path, {f"{n}.png": bytes(n + 1) for n in range(20)})
    with closing(open_source(root, kind="flat", ignore=["1?.png"])) as source:
        listing: Listing = source.tree.list("")  # type: ignore[attr-defined]
    assert dict(zip(listing.images, listing.sizes, strict=True)) == {f"{n}.png": n + 1 for n in range(10)}


@pytest.mark.slow
def test_a_bucket_without_what_is_ignored(s3_double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed as it lies there, or copied first."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    url = upload(fill(tmp_path / "set", FILES), "s3://bucket/set")
    survey = look(location(url), ignore=PATTERNS)
    assert (survey.kind, survey.records, survey.ledger.left) == ("imagefolder", 8, {IGNORED: 12})
    url = upload(fill(tmp_path / "shards", {"odd.tar": "x"}), "s3://bucket/shards")
    upload(corpus("webdataset")(tmp_path), "s3://bucket/shards")
    seen = look(location(url), ignore="odd.tar")
    assert (seen.kind, seen.ledger.left) == ("webdataset", {IGNORED: 1})


@pytest.mark.slow
def test_processes_of_a_cluster_ignore_the_same(s3_double: Double, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", FILES)
    made = [run("convert", root, "s3://bucket/x.lmdb", "--shard-size", "300B", "--cluster", "processes:2",
                *(word for pattern in PATTERNS for word in ("--ignore", pattern)))]  # fmt: skip
    assert made[0].returncode == 0, made[0].stderr
    alone = convert(root, tmp_path / "x.lmdb", ignore=PATTERNS, shard_size=300)
    told = json.loads(run("info", "s3://bucket/x.lmdb", "--json").stdout)
    assert told["dataset_digest"] == alone.manifest.dataset_digest


def test_another_pattern_is_another_conversion(tmp_path: Path) -> None:
    """An interrupted run with one pattern is not resumed with another."""
    root = fill(tmp_path / "set", FILES)
    opened = [open_source(root, ignore=patterns) for patterns in (PATTERNS, ["*.txt", "extra/"])]
    assert opened[0].resume_key() != opened[1].resume_key()


def test_patterns_of_a_part_of_the_source_are_those_from_its_top(tmp_path: Path) -> None:
    rules = compile_ignore_rules(("a/b.txt", "c"))
    with apply_ignore_rules(tmp_path, rules):
        inside = active_rules(tmp_path / "a")
        assert (inside.hides("b.txt"), inside.hides("x.txt"), inside.hides("c")) == (True, False, True)
        assert not active_rules(tmp_path.parent)
        assert not is_ignored(tmp_path.parent / "c")


def test_arguments_ignore_exactly_the_paths() -> None:
    patterns = ignore_paths(["a[1].json", "b/*.csv"])[1::2]
    rules = compile_ignore_rules(patterns)
    hidden = [path for path in ("a[1].json", "a1.json", "b/*.csv", "b/x.csv", "c/a[1].json") if rules.hides(path)]
    assert hidden == ["a[1].json", "b/*.csv"]
    assert ignore_paths(["a", "b"])[::2] == ("--ignore", "--ignore")


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
    fill(place, {"fine.jpg": JPEG, name: data})
    return root


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_is_an_error_or_listed(name: str, flat: bool, tmp_path: Path) -> None:
    data, reason = CASES[name]
    root = make_images(tmp_path / "root", flat, name, data)
    asked = "not by its name" in reason or "by its first bytes" in reason
    said = rf"images without the suffix of one; .*{re.escape(name)}" if asked else re.escape(f"{name}: {reason}")
    not_packed(AmbiguousSourceError if asked else SampleError, root, tmp_path / "x.lmdb", said)
    report = prove(root, tmp_path / "x.lmdb", on_error="skip")
    ((key, why),) = ((skipped.key, skipped.reason) for skipped in report.manifest.skipped)
    assert key == ("" if flat else "cat/") + name
    assert why.startswith(reason)
    assert report.manifest.records == 1


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
    report = prove(root, tmp_path / "x.h5", encoding="uint8", size=16, decode=True)
    assert report.manifest.records == 3
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
    refused(SourceError, tmp_path / "x", said)


@pytest.mark.parametrize("kind", [None, "imagefolder", "webdataset"])
def test_a_pipe_is_no_source(kind: str | None, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    refused(SourceError, tmp_path / "x", "x is neither a file nor a folder", kind=kind)


@pytest.mark.parametrize("pages", [["a.h5"], ["a.h5", "b.h5"], ["b.h5"]])
def test_pages_saved_as_hdf5_are_said(pages: list[str], tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        if name in pages:
            (tmp_path / name).write_bytes(b"\n<!doctype HTML><title>Sign in</title>")
        else:
            with h5py.File(tmp_path / name, "w") as file:
                file["images"] = np.zeros((2, 4, 4, 3), np.uint8)
    for path in (tmp_path, *([tmp_path / "a.h5"] if "a.h5" in pages else [])):
        refused(SourceError, path, rf"{pages[0]} is a web page \(HTML\), and no \.h5: .*download it again")
