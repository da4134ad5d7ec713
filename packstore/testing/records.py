"""Records for tests: makes them, writes them into a store, and compares a store with them, by independent
code. Also damages files of a source, as disks, downloads and attackers do."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import os
import shutil
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from packstore.core.columns import ITEM_SIZE, NUMPY_DTYPE, ROW_CHECKSUM, Ragged
from packstore.core.manifest import Column, Manifest, Origin, Skipped
from packstore.stores import Reader, StoreBuilder, format_of

ORIGIN = Origin("flat", "somewhere")
CLASSES = ("ant", "bee", "cat")
KINDS = ("ragged", "uint8", "float16", "bfloat16", "ragged-uint8", "typed")
ODD_KEYS = ["a/b.jpg", "ünï/コード.png", "caf\udce9.JPEG", "new\nline", "", "x" * 300, "train/\U0001f600"]
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


@dataclasses.dataclass(frozen=True)
class Records:
    """Records to write into a store, and to expect from it.

    Attributes:
        encoding: The store's encoding.
        columns: The store's columns.
        images: Stored images.
        values: Values of the other columns, by name.
        splits: Name of each record's split.
    """

    encoding: str
    columns: tuple[Column, ...]
    images: list[bytes]
    values: dict[str, Any]
    splits: list[str]

    def __len__(self) -> int:
        return len(self.images)

    def part(self, start: int, stop: int) -> tuple[list[bytes], dict[str, Any]]:
        """Returns images and values of the records ``start`` to ``stop - 1``."""
        return self.images[start:stop], {name: v[start:stop] for name, v in self.values.items()}


def make_records(kind: str = "ragged", count: int = 7, seed: int = 0, sizes: Sequence[int] | None = None) -> Records:
    """Makes ``count`` records of a kind, one of ``KINDS``. The first two thirds are in the split ``train``, the others
    in ``val``.

    Keys are different; the first seven are unusual texts. The same arguments give the same records. ``sizes``: bytes of
    each image, only for the kinds ``ragged`` and ``typed``; None for usual sizes.
    """
    rng = np.random.default_rng(seed)
    encoding, image, shapes = kind, Column("image", "ragged", "uint8", type="image"), None
    if kind in ("ragged", "typed"):
        encoding = "original"
        sizes = sizes or [[5, 0, 3000, 100, 9000, 1, 0][i % 7] for i in range(count)]
    elif kind == "uint8":
        image = Column("image", "fixed", "uint8", (5, 4, 3), "HWC", type="image")
    elif kind == "ragged-uint8":
        encoding, image = "uint8", Column("image", "ragged", "uint8", (), "HWC", type="image")
        shapes = np.array([(1 + i % 5, 2 + i % 3, 3) for i in range(count)], np.int32)
        sizes = [math.prod(s) for s in shapes.tolist()]
    else:
        image = Column("image", "fixed", kind, (3, 4, 5), "CHW", type="image")
    columns = [
        image,
        Column("label", "fixed", "int64", classes=CLASSES, type="label"),
        Column("key", "ragged", "uint8", type="text"),
        Column("checksum", "fixed", "uint64"),
    ]
    values: dict[str, Any] = {
        "label": [i % len(CLASSES) for i in range(count)],
        "key": [ODD_KEYS[i] if i < len(ODD_KEYS) else f"train/{i}" for i in range(count)],
    }
    if shapes is not None:
        columns.append(Column("shape", "fixed", "int32", (3,)))
        values["shape"] = shapes
    if kind == "typed":
        typed = typed_values(count, rng)
        columns[2:2] = typed
        columns.append(ROW_CHECKSUM)
        values |= {column.name: value for column, value in typed.items()}
    images = [rng.bytes(n) for n in (sizes or [image.record_nbytes] * count)]
    first = -(-2 * count // 3)
    return Records(encoding, tuple(columns), images, values, ["train"] * first + ["val"] * (count - first))


def typed_values(count: int, rng: np.random.Generator) -> dict[Column, Any]:
    """Makes columns of every type, kind and dtype, with stored values by column. In nullable columns, every third
    record has no value."""
    there = np.array([i % 3 != 1 for i in range(count)])
    boxes = rng.integers(0, 4, count)

    def texts(column: Column, size: int) -> list[bytes]:
        """Makes random bytes for each record, empty for missing values."""
        kept = there if column.nullable else np.ones(count, bool)
        return [rng.bytes(size * i % 4000) if kept[i] else b"" for i in range(count)]

    def arrays(column: Column, rows: NDArray[Any]) -> list[bytes]:
        """Makes random rows of numbers; valid class numbers if the column has classes."""
        if column.classes is not None:
            return [rng.integers(0, len(column.classes), n).astype("<i8").tobytes() for n in rows]
        return [rng.bytes(int(n) * column.record_nbytes) for n in rows]

    stored: dict[Column, Any] = {}

    def add(column: Column, value: Any, shapes: Any = None) -> None:
        """Adds a column with its values, and its companions (shapes, validity)."""
        stored[column] = value
        for companion in column.companions:
            stored[companion] = there if companion.name == column.valid_name else np.array(shapes, np.int32)

    for type, nullable in (("image", True), ("mask", False), ("text", True), ("json", False), ("bytes", True)):
        column = Column(f"a_{type}", "ragged", "uint8", type=type, nullable=nullable)
        add(column, [b'{"a": %d}' % i for i in range(count)] if type == "json" else texts(column, 700))
    for type, layout, dtype in (("image", "HWC", "uint8"), ("mask", "HW", "uint16")):
        column = Column(f"raw_{type}", "ragged", dtype, layout=layout, type=type, nullable=True)
        shapes = [((3 + i % 7, i % 5, 3)[: len(layout)] if there[i] else (0,) * len(layout)) for i in range(count)]
        add(column, [rng.bytes(math.prod(s) * column.record_nbytes) for s in shapes], shapes)
    planes = Column("planes", "ragged", "int16", layout="DCHW", type="volume")
    shapes = [(i % 3, 1, 2 + i % 2, 3) for i in range(count)]
    add(planes, [rng.bytes(math.prod(s) * planes.record_nbytes) for s in shapes], shapes)
    parallel: dict[str, Any] = {"parallel": "boxes"}
    for column in (
        Column("boxes", "ragged", "float32", (4,), type="boxes", coordinates="xyxy"),
        Column("names", "ragged", "int64", classes=CLASSES, type="labels", **parallel),
        Column("joints", "ragged", "float32", (5, 3), type="keypoints", coordinates="xyv", **parallel),
    ):
        add(column, arrays(column, boxes))
    for column in (
        Column("tags", "ragged", "int64", classes=CLASSES, type="labels", nullable=True),
        Column("corners", "ragged", "float32", (2,), type="keypoints", coordinates="xy", nullable=True),
        Column("track", "ragged", "float16", (2, 3), nullable=True),
        Column("steps", "ragged", "int16", nullable=True),
    ):
        add(column, arrays(column, np.where(there, rng.integers(0, 9, count), 0)))
    for dtype, shape in {**dict.fromkeys(ITEM_SIZE, ()), "float32": (2, 3), "bfloat16": (4,), "int8": (0,)}.items():
        column = Column(f"a_{dtype}", "fixed", dtype, shape, nullable=dtype in ("float64", "int32"))
        raw = rng.integers(0, 2 if dtype == "bool" else 100, (count, *shape)).astype(NUMPY_DTYPE[dtype])
        raw[~there] *= not column.nullable
        add(column, raw)
    fixed = Column("square", "fixed", "int32", (3, 2), "HW", type="mask")
    add(fixed, rng.integers(-9, 9, (count, 3, 2)).astype(np.int32))
    frames = Column("frames", "fixed", "uint8", (2, 1, 3, 2), "DCHW", type="clip", nullable=True)
    add(frames, rng.integers(0, 9, (count, *frames.shape), np.uint8) * there[:, None, None, None, None])
    coarse = Column("coarse", "fixed", "int64", classes=CLASSES, type="label", nullable=True)
    add(coarse, np.where(there, rng.integers(0, 3, count), 0))
    for name, nullable in (("a_images", False), ("some_images", True)):
        column = Column(name, "ragged", "uint8", type="images", nullable=nullable)
        lists = [[rng.bytes(100 * n + i) for n in range(i % 4)] for i in range(count)]
        add(column, [_join_files(files) if there[i] or not nullable else b"" for i, files in enumerate(lists)])
    return stored


def _join_files(files: Sequence[bytes]) -> bytes:
    """Joins files to the stored value of a list of images."""
    return struct.pack(f"<{1 + len(files)}Q", len(files), *map(len, files)) + b"".join(files)


def begin(path: Path, records: Records, *, format: str | None = None, **building: Any) -> StoreBuilder:
    """Creates a store at ``path`` for ``records`` and returns its builder. Appends no records."""
    format = format or format_of(path)
    assert format is not None
    base = Manifest(format, records.encoding, 0, tuple(records.columns), ORIGIN, versions={"packstore": "0"})
    return StoreBuilder(path, base, **building)


def append(builder: StoreBuilder, records: Records, batch: int = 3) -> None:
    """Appends all records in batches of at most ``batch`` records of one split."""
    start = 0
    while start < len(records):
        stop = start + 1
        while stop < min(start + batch, len(records)) and records.splits[stop] == records.splits[start]:
            stop += 1
        builder.append(*records.part(start, stop), records.splits[start])
        start = stop


def write(path: Path, records: Records, *, batch: int = 3, **options: Any) -> Manifest:
    """Writes a store of ``records`` and returns its manifest, which lists one sample as skipped."""
    with begin(path, records, **options) as builder:
        append(builder, records, batch)
        return builder.commit(skipped=[Skipped("bad", "empty")])


def interrupt_write(path: Path, records: Records, error: BaseException, **options: Any) -> None:
    """Begins a store and appends all records. Raises ``error`` in place of the commit."""
    with begin(path, records, **options) as builder:
        append(builder, records)
        raise error


def expected_columns(records: Records) -> tuple[tuple[Column, ...], dict[str, Any]]:
    """Computes the columns of a store of ``records``, with sizes and digests, and the values of all columns but
    ``image``, by name.

    The value of a ragged column is a pair of bytes and offsets. Sizes, digests and checksums are computed without
    packstore's code.
    """
    data: dict[str, Any] = {}
    columns = []
    for column in records.columns:
        if column.name == "image":
            columns.append(dataclasses.replace(column, nbytes=sum(map(len, records.images))))
            continue
        if column.kind == "ragged":
            given = records.values[column.name]
            raw = [v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v for v in given]
            offsets = np.array([0, *np.cumsum([len(r) for r in raw])], "<i8")
            data[column.name] = (b"".join(raw), offsets)
            shas = [hashlib.sha256(b).digest() for b in (offsets.tobytes(), b"".join(raw))]
            hides = column.traits.find_hidden_boxes(column, raw)
            digest = sha256_hex(b"".join(shas))
            nbytes = len(b"".join(raw))
            columns.append(dataclasses.replace(column, nbytes=nbytes, digest=digest, hides_boxes=hides))
            continue
        if column.name == "row_checksum":
            array = np.array([_row_checksum(records, data, i) for i in range(len(records))], "<u8")
        elif column.name == "checksum":
            array = np.array([xxhash.xxh3_64_intdigest(i) for i in records.images], "<u8")
        else:
            array = np.array(records.values[column.name], NUMPY_DTYPE[column.dtype])
        data[column.name] = array
        columns.append(dataclasses.replace(column, nbytes=array.nbytes, digest=sha256_hex(array.tobytes())))
    return tuple(columns), data


def _row_checksum(records: Records, data: dict[str, Any], i: int) -> int:
    """Computes the checksum of the values of record ``i``, without packstore's code."""
    row = b""
    for column in records.columns:
        if column.name in ("image", "checksum", "row_checksum"):
            continue
        if column.kind == "fixed":
            row += data[column.name][i].tobytes()
        else:
            raw, offsets = data[column.name]
            row += xxhash.xxh3_64_intdigest(raw[offsets[i] : offsets[i + 1]]).to_bytes(8, "little")
    return xxhash.xxh3_64_intdigest(row)


def sha256_hex(data: bytes) -> str:
    """Computes the SHA-256 of ``data`` in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def assert_holds(reader: Reader, records: Records) -> None:
    """Asserts that every record and every column of ``reader`` equals ``records``, and that arrays are read-only."""
    assert len(reader) == len(records)
    assert [bytes(reader.read(i)) for i in range(len(reader))] == records.images
    assert [bytes(reader.view(i)) for i in range(len(reader))] == records.images
    assert [reader.key(i) for i in range(len(reader))] == records.values["key"]
    columns, data = expected_columns(records)
    if reader.manifest.shards is not None:  # these have the digests
        columns = tuple(dataclasses.replace(column, digest=None) for column in columns)
    assert reader.manifest.columns == columns
    for name, expected in data.items():
        column = reader.column(name)
        if isinstance(column, Ragged):
            assert (bytes(column.data), column.offsets.tolist()) == (expected[0], expected[1].tolist())
            ends = expected[1].tolist()
            assert [bytes(value) for value in column] == [expected[0][a:b] for a, b in itertools.pairwise(ends)]
        else:
            assert column.dtype == expected.dtype
            assert column.shape == expected.shape
            assert np.array_equal(column, expected)
            assert not (column[0].size and column[0].flags.writeable)


def open_files(folder: Path) -> list[str]:
    """Lists the files below ``folder`` that this process has open. Skips the test if the system cannot tell.

    Other files do not count: threads and the garbage collector may close files of other tests at any time.
    """
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("open files are listed in /proc")
    paths = []
    for descriptor in descriptors.iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile, like the descriptor of the listing itself
            paths.append(str(descriptor.readlink()))
    return [file for file in paths if file.startswith(f"{folder}/")]


def listing(directory: Path) -> set[str]:
    """Returns the relative paths of all files and folders below a directory."""
    return {str(p.relative_to(directory)) for p in directory.rglob("*")}


def flip(path: Path, position: int, mask: int = 0x01) -> None:
    """Flips the bits ``mask`` of the byte at ``position`` in a file."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


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
