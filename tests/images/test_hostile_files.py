"""Odd and hostile files in a source: each is a clean error, ruled by ``on_error``, within bounded time and memory.

Everything goes through ``convert``, as it would for somebody who packs a folder of a stranger.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket
import struct
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from packstore import PackedDataset, convert, verify
from packstore.images.decoders import available_decoders, get_decoder
from packstore.stores import is_store
from tests.internals import (
    DecodeError,
    HeaderError,
    Manifest,
    PackstoreError,
    SampleError,
    SourceError,
    UsageError,
    max_file_bytes,
    sniff,
)
from tests.makers.annotated import fill
from tests.makers.command import run
from tests.makers.hostile import LESS_MEMORY, LESS_RIGHTS, bombs, in_child, open_folder
from tests.makers.images import all_images, encode
from tests.makers.sources import not_packed

GOOD = all_images()["jpeg-420"]


@pytest.fixture
def one_good_image(tmp_path: Path) -> Path:
    """An image folder with one class ``a`` of one good image."""
    path = tmp_path / "source" / "a"
    fill(path, {"good.jpg": GOOD})
    return path.parent


def packed(source: Path, **options: Any) -> Manifest:
    return convert(source, source.parent / "out.lmdb", overwrite=True, **options).manifest


def is_left_out(source: Path, key: str, reason: str, **options: Any) -> None:
    """The sample ``key`` stops a conversion, leaving nothing behind; and is the only one that ``skip`` leaves out."""
    with pytest.raises(SampleError, match=reason) as caught:
        convert(source, source.parent / "none.lmdb", **options)
    assert caught.value.key == key
    assert str(caught.value).isprintable()
    assert not is_store(source.parent / "none.lmdb")
    manifest = packed(source, on_error="skip", **options)
    assert [s.key for s in manifest.skipped] == [key]
    assert manifest.records >= 1


# --- image bombs ------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("name", bombs())
def test_a_bomb_is_refused_by_its_header(name: str, one_good_image: Path) -> None:
    data = bombs()[name]
    assert len(data) < 12_000
    (one_good_image / "a" / "bomb.png").write_bytes(data)
    for options in ({}, {"check": "decode"}, {"check": "none", "encoding": "uint8"}):
        is_left_out(one_good_image, "a/bomb.png", "pixels|truncated|damaged", **options)
    for decoder, version in available_decoders().items():
        if "not available" not in version:
            with pytest.raises(DecodeError):
                get_decoder(decoder).decode(data)


def of_many_scans(side: int, count: int) -> bytes:
    """A progressive JPEG whose last scan is there ``count`` times more."""
    data = encode(Image.new("RGB", (side, side), (90, 9, 200)), "JPEG", progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * count + data[-2:]


@pytest.mark.slow
@pytest.mark.parametrize(("side", "count", "most"), [(64, 600, 500), (6000, 80, 59)])
def test_a_jpeg_of_too_many_scans_is_refused_at_once(side: int, count: int, most: int, one_good_image: Path) -> None:
    data = of_many_scans(side, count)
    for decoder, version in available_decoders().items():
        if "not available" not in version:
            taking = get_decoder(decoder)
            for decode in (taking.decode, lambda data, d=taking: d.decode_crop(data, (0, 0, 9, 9))):
                with pytest.raises(DecodeError, match=f"a JPEG of {count + 10} scans, of at most {most} that an image"):
                    decode(data)
    (one_good_image / "a" / "many.jpg").write_bytes(data)
    is_left_out(one_good_image, "a/many.jpg", "scans", check="decode")


def test_a_jpeg_of_many_scans_is_taken(one_good_image: Path) -> None:
    (one_good_image / "a" / "some.jpg").write_bytes(of_many_scans(64, 60))
    assert packed(one_good_image, check="decode").records == 2


@pytest.mark.slow
def test_bombs_take_no_memory(tmp_path: Path) -> None:
    """All of them, by every decoder, in a process that may take 256 MiB more than it has."""
    for name, data in bombs().items():
        (tmp_path / name).write_bytes(data)
    out = in_child(
        LESS_MEMORY
        + """
import sys
from packstore.images.decoders import available_decoders, get_decoder
from packstore.core.errors import DecodeError
from tests.makers.images import all_images
decoders = [get_decoder(n) for n, what in available_decoders().items() if "not available" not in what]
for decoder in decoders:
    for data in all_images().values():
        decoder.decode(data)  # loads whatever is loaded on first use
less_memory(256 << 20)
for path in sorted(Path(sys.argv[1]).iterdir()):
    for decoder in decoders:
        try:
            decoder.decode(path.read_bytes())
            print(path.name, "was decoded")
        except DecodeError:
            print("refused")
""",
        tmp_path,
    )
    assert set(out.split("\n")) == {"refused", ""}


def test_max_pixels_decides(one_good_image: Path) -> None:
    info = sniff(GOOD)
    pixels = info.width * info.height
    for options in ({}, {"check": "decode"}, {"encoding": "uint8"}, {"check": "none", "encoding": "jpeg"}):
        assert packed(one_good_image, max_pixels=pixels, **options).records == 1
        with pytest.raises(SampleError, match=rf"{info.width} x {info.height} pixels, more than the limit of"):
            packed(one_good_image, max_pixels=pixels - 1, **options)
    with pytest.raises(UsageError, match="max_pixels should be a whole number of at least 1"):
        packed(one_good_image, max_pixels=0)


def test_max_pixels_of_those_who_read(one_good_image: Path) -> None:
    packed(one_good_image)
    store = one_good_image.parent / "out.lmdb"
    assert verify(store, decode=True).ok
    report = verify(store, decode=True, against=one_good_image, max_pixels=100)
    assert report.problem_count
    assert any("more than the limit of 100" in problem.what for problem in report.problems)
    with pytest.raises(DecodeError, match=r"record 0 \(a/good.jpg\) .* limit of 100"):
        PackedDataset(store, max_pixels=100)[0]
    with pytest.raises(UsageError, match="max_pixels"):
        verify(store, max_pixels=0)


def test_a_file_that_is_larger_than_any_image_is_not_read(one_good_image: Path) -> None:
    """A terabyte without a single block on the disk: neither read nor counted in the estimate."""
    with (one_good_image / "a" / "huge.jpg").open("wb") as file:
        file.write(GOOD)
        try:
            file.truncate(1 << 40)
        except OSError as error:
            pytest.skip(f"no file of a terabyte here: {error}")
    is_left_out(
        one_good_image, "a/huge.jpg", r"has 1099511627776 bytes, more than the \d+ that an image within max_pixels"
    )
    assert max_file_bytes(1000) == 8000 + (64 << 20)


# --- odd things in a folder -------------------------------------------------------------------------------------------


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    # The path of a socket may have about 100 bytes.
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda p: p.touch(), "is empty"),
    "garbage": (lambda p: p.write_bytes(b"\x07" * 999), "is not an image"),
    "cut off": (lambda p: p.write_bytes(GOOD[:-40]), "is truncated"),
    "cut off in the header": (lambda p: p.write_bytes(GOOD[:100]), "is truncated"),
    "wrong segment length": (lambda p: p.write_bytes(GOOD[:4] + b"\xff\xff" + GOOD[6:]), "truncated|damaged"),
    "pipe": (_fifo, "is not a file"),
    "socket": (_socket, "is not a file"),
    "device": (lambda p: p.symlink_to("/dev/zero"), "is not a file"),
    "terminal": (lambda p: p.symlink_to("/dev/tty"), "is not a file"),
    "link to nowhere": (lambda p: p.symlink_to("nowhere"), "No such file"),
    "link to itself": (lambda p: p.symlink_to(p.name), "symbolic links"),
    "link to a secret": (lambda p: p.symlink_to("/etc/passwd"), "is not an image"),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_things_in_a_folder(what: str, one_good_image: Path) -> None:
    make, reason = ODD[what]
    make(one_good_image / "a" / "odd.jpg")
    is_left_out(one_good_image, "a/odd.jpg", reason)


@pytest.mark.parametrize("what", [name for name in ODD if name != "link to nowhere"])
def test_odd_things_that_a_labels_file_names(what: str, one_good_image: Path) -> None:
    make, reason = ODD[what]
    make(one_good_image / "odd.jpg")
    labels = one_good_image.parent / "labels.csv"
    labels.write_text("file,label\na/good.jpg,1\nodd.jpg,0\n")
    if what == "link to itself":
        with pytest.raises(SourceError, match=r"labels.csv, line 3: odd.jpg in .*symbolic links"):
            packed(one_good_image, labels=labels)
    else:
        is_left_out(one_good_image, "odd.jpg", reason, labels=labels)


def test_links_out_of_the_folder_are_followed(one_good_image: Path, tmp_path: Path) -> None:
    """As ImageFolder does; an image is an image wherever it lies."""
    outside = tmp_path / "outside"
    fill(outside, {"x.jpg": GOOD})
    (one_good_image / "b").symlink_to(outside)
    (one_good_image / "a" / "linked.jpg").symlink_to(outside / "x.jpg")
    manifest = packed(one_good_image)
    with closing(PackedDataset(tmp_path / "out.lmdb", columns=("key", "label"))) as dataset:
        assert [dataset[i] for i in range(3)] == [("a/good.jpg", 0), ("a/linked.jpg", 0), ("b/x.jpg", 1)]
    assert manifest.classes == ("a", "b")


NAMES = {
    "newline": b"line\nfeed.jpg",
    "escape": b"\x1b[31mred\x1b[0m.jpg",
    "carriage return": b"x\rpackstore: all is well.jpg",
    "bell and backspace": b"\x07\x08.jpg",
    "not UTF-8": b"\xff\xfe\x80.jpg",
    "a surrogate in UTF-8": b"\xed\xa0\x80.jpg",
    "right to left": "\u202egpj.exe.jpg".encode(),
    "255 bytes": b"x" * 251 + b".jpg",
    "blanks": b" leading and trailing .jpg",
    "quotes": b"'\";$(touch hacked)`.jpg",
}


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", NAMES)
def test_names_of_any_bytes(what: str, one_good_image: Path) -> None:
    """A good file under any name is packed with exactly that name; a bad one is named on one harmless line."""
    name = NAMES[what]
    place = os.fsencode(one_good_image / "a") + b"/" + name
    with open(place, "wb") as file:  # noqa: PTH123 - its name is bytes
        file.write(GOOD)
    key = f"a/{os.fsdecode(name)}"
    packed(one_good_image)
    with closing(PackedDataset(one_good_image.parent / "out.lmdb")) as dataset:
        assert sorted(dataset.keys) == sorted([key, "a/good.jpg"])
    with open(place, "wb") as file:  # noqa: PTH123
        file.write(b"bad")
    for arguments, code in (([], 1), (["--on-error", "skip"], 3)):
        done = run("convert", one_good_image, one_good_image.parent / "cli.lmdb", *arguments)
        assert done.returncode == code
        output = done.stdout + done.stderr
        assert "Traceback" not in output
        assert all(line.isprintable() for line in output.split("\n"))
        assert code == 3 or output.count("\n") == 1


def test_paths_of_many_hundred_characters(one_good_image: Path) -> None:
    deep = one_good_image / "a" / ("d" * 120) / ("e" * 120) / ("f" * 120)
    fill(deep, {"x.jpg": GOOD})
    assert packed(one_good_image).records == 2
    (deep / "y.jpg").write_bytes(b"")
    is_left_out_after_overwrite = packed(one_good_image, on_error="skip")
    assert [len(s.key) for s in is_left_out_after_overwrite.skipped] == [2 + 3 * 121 + 5]


def test_a_path_that_the_system_refuses(one_good_image: Path) -> None:
    """A folder can be deeper than any path may be long."""
    descriptors = [os.open(one_good_image / "a", os.O_RDONLY)]
    try:
        for _ in range(25):
            os.mkdir("d" * 200, dir_fd=descriptors[-1])
            descriptors.append(os.open("d" * 200, os.O_RDONLY, dir_fd=descriptors[-1]))
        with pytest.raises(SourceError, match="cannot be listed"):
            packed(one_good_image)
    finally:
        for inside, outside in zip(reversed(descriptors), list(reversed(descriptors))[1:], strict=False):
            os.close(inside)
            os.rmdir("d" * 200, dir_fd=outside)
        os.close(descriptors[0])


@pytest.mark.parametrize("kind", [None, "imagefolder", "flat", "cifar10", "store"])
@pytest.mark.parametrize("what", ["pipe", "device", "socket", "empty", "garbage"])
def test_a_source_that_is_none(what: str, kind: str | None, tmp_path: Path) -> None:
    path = tmp_path / "source"
    if what == "device":
        path = Path("/dev/zero")
    else:
        ODD[what][0](path)
    with pytest.raises(PackstoreError) as caught:
        convert(path, tmp_path / "out.lmdb", source_kind=kind)
    assert not isinstance(caught.value, SampleError)


@pytest.mark.slow
def test_files_that_nobody_may_read(one_good_image: Path) -> None:
    code = (
        LESS_RIGHTS
        + """
import importlib.metadata
import pkgutil
import sys
import packstore.sources
from packstore import convert
from packstore.core.errors import PackstoreError
for module in pkgutil.walk_packages(packstore.sources.__path__, "packstore.sources."):
    importlib.import_module(module.name)  # kinds and their parts are imported as late as they are needed
convert(sys.argv[1], sys.argv[2])  # imports the rest
less_rights()
for options in ({}, {"on_error": "skip"}):
    try:
        print([s.reason for s in convert(sys.argv[3], sys.argv[4], **options).manifest.skipped])
    except PackstoreError as error:
        print(type(error).__name__, error)
"""
    )

    def attempt(name: str) -> list[str]:
        return in_child(
            code, one_good_image, one_good_image.parent / name, place / "source", place / "out" / name
        ).splitlines()

    with open_folder() as place:
        inside, out = place / "source" / "a", place / "out"
        inside.mkdir(parents=True)
        out.mkdir()
        out.chmod(0o777)
        for name in ("good.jpg", "secret.jpg"):
            (inside / name).write_bytes(GOOD)
        (inside / "secret.jpg").chmod(0)
        reason = "cannot be opened: Permission denied"
        assert attempt("1.h5") == [f"SampleError a/secret.jpg: {reason}", f"['{reason}']"]
        inside.chmod(0)
        assert attempt("2.h5") == 2 * [f"SourceError {inside} cannot be listed: Permission denied"]
        inside.chmod(0o755)
        (inside / "secret.jpg").chmod(0o644)
        out.chmod(0o555)
        assert all(re.match(r"DestinationError .*3\.h5.*Permission denied", line) for line in attempt("3.h5"))


# --- a source that changes meanwhile ----------------------------------------------------------------------------------

CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "vanishes": (lambda p: p.unlink(), "No such file"),
    "grows": (lambda p: p.write_bytes(GOOD + b"\0"), "changed since it was listed"),
    "shrinks": (lambda p: os.truncate(p, 100), "changed since it was listed"),
    "becomes a pipe": (lambda p: (p.unlink(), os.mkfifo(p)), "is not a file"),
    "becomes a folder": (lambda p: (p.unlink(), p.mkdir()), "is not a file"),
    "becomes a link to a device": (lambda p: (p.unlink(), p.symlink_to("/dev/zero")), "is not a file"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_file_that_changes_between_listing_and_reading(what: str, one_good_image: Path) -> None:
    from packstore.sources import open_source

    change, reason = CHANGES[what]
    (one_good_image / "a" / "x.jpg").write_bytes(GOOD)
    source = open_source(one_good_image)
    source.survey()
    entries = list(source.entries())
    change(one_good_image / "a" / "x.jpg")
    assert source.read(entries[0]) == GOOD
    with pytest.raises(SampleError, match=reason):
        source.read(entries[1])


# --- archives ---------------------------------------------------------------------------------------------------------

ROW = bytes([3]) + bytes(3072)


def members(folder: str = "cifar-10-batches-bin") -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    names = "".join(f"class{i}\n" for i in range(10)).encode()
    files = {"batches.meta.txt": names, "test_batch.bin": ROW, **{f"data_batch_{i}.bin": ROW for i in range(1, 6)}}
    for name, data in files.items():
        info = tarfile.TarInfo(f"{folder}/{name}")
        info.size = len(data)
        yield info, data


def archive(path: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], object]) -> Path:
    made = list(members())
    change(made)
    with tarfile.open(path, "w:gz") as tar:
        for info, data in made:
            tar.addfile(info, io.BytesIO(data))
    return path


def _other(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"") -> Callable[[Any], None]:
    def change(made: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, len(data)
        made.append((info, data))

    return change


def _replaced(kind: bytes, link: str) -> Callable[[Any], None]:
    """The test batch as something that is not a file of its own."""

    def change(made: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        info = next(info for info, _ in made if info.name.endswith("test_batch.bin"))
        made[:] = [(i, d) for i, d in made if i is not info]
        info.type, info.linkname, info.size = kind, link, 0
        made.append((info, b""))

    return change


HARMLESS = {
    "absolute": _other("/tmp/evil", data=b"x"),
    "a link out": _other("cifar-10-batches-bin/l", tarfile.SYMTYPE, "/etc/passwd"),
    "a device": _other("cifar-10-batches-bin/zero", tarfile.CHRTYPE),
}
REFUSED = {
    "out of the folder": (_other("../../evil", data=b"x"), "evil leads out of the archive"),
    "another test batch elsewhere": (
        _other("../cifar-10-batches-bin/test_batch.bin", data=b"x"),
        r"\.\./cifar-10-batches-bin/test_batch.bin leads out of the archive",
    ),
    "a batch twice": (_other("cifar-10-batches-bin/test_batch.bin", data=ROW), "there once"),
    "a batch that is a link": (_replaced(tarfile.SYMTYPE, "/etc/passwd"), "without test_batch.bin"),
    "a batch that is a hard link": (_replaced(tarfile.LNKTYPE, "/etc/passwd"), "without test_batch.bin"),
    "a batch that is a device": (_replaced(tarfile.CHRTYPE, ""), "without test_batch.bin"),
    "a batch that is a pipe": (_replaced(tarfile.FIFOTYPE, ""), "without test_batch.bin"),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_members_of_an_archive_that_are_passed_over(what: str, tmp_path: Path) -> None:
    """Nothing is ever extracted, so a name cannot lead anywhere."""
    path = archive(tmp_path / "cifar-10-binary.tar.gz", HARMLESS[what])
    assert convert(path, tmp_path / "out.lmdb").manifest.records == 6
    assert {p.name for p in tmp_path.iterdir()} == {path.name, "out.lmdb"}


@pytest.mark.parametrize("what", REFUSED)
def test_archives_that_are_refused(what: str, tmp_path: Path) -> None:
    change, reason = REFUSED[what]
    path = archive(tmp_path / "cifar-10-binary.tar.gz", change)
    not_packed(SourceError, path, tmp_path / "out.lmdb", reason)
    assert not (tmp_path / "out.lmdb").exists()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 28, 1 << 40, (1 << 63) - 1])
def test_a_member_that_claims_an_enormous_size(size: int, tmp_path: Path) -> None:
    def claim(made: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        made[-1][0].size = size

    made = list(members())
    claim(made)
    path = tmp_path / "cifar-10-binary.tar.gz"
    raw = b"".join(i.tobuf(tarfile.GNU_FORMAT) + d + bytes(-len(d) % 512) for i, d in made) + bytes(1024)
    import gzip

    path.write_bytes(gzip.compress(raw))
    out = in_child(
        LESS_MEMORY
        + """
import sys
from packstore import convert
from packstore.core.errors import SourceError
import packstore.sources.arrays.published, packstore.stores.lmdb.store, packstore.stores.lmdb.writer
import packstore.images.encode
less_memory(400 << 20)
try:
    convert(sys.argv[1], sys.argv[2])
except SourceError as error:
    print("refused", error)
""",
        path,
        tmp_path / "out.lmdb",
    )
    assert out.startswith("refused")


@pytest.mark.slow
def test_a_gzip_bomb(tmp_path: Path) -> None:
    """Half a gigabyte of zeros in half a megabyte, as one member and as an endless header."""
    import gzip

    zeros = gzip.compress(bytes(64 << 20), 9)
    info = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
    info.size = 512 << 20
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 512 << 20
    for head in (info.tobuf(tarfile.GNU_FORMAT), name.tobuf(tarfile.GNU_FORMAT), struct.pack("512x")):
        path = tmp_path / "cifar-10-binary.tar.gz"
        path.write_bytes(gzip.compress(head) + zeros * 8)
        out = in_child(
            LESS_MEMORY
            + """
import sys
from pathlib import Path
from packstore.sources import open_source
from packstore.core.errors import PackstoreError
import packstore.sources.arrays.published
less_memory(400 << 20)
try:
    open_source(Path(sys.argv[1]), kind="cifar10").survey()
except PackstoreError as error:
    print("refused", error)
""",
            path,
        )
        assert out.startswith("refused")


def test_the_message_of_a_header_names_no_bytes_that_do_harm() -> None:
    with pytest.raises(HeaderError) as caught:
        sniff(b"\x1b[2J\nXXXXXXXX")
    assert caught.value.reason.isprintable()
