"""Records for tests: made, written into a store, compared with what comes out, without packstore's own arithmetic."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.manifest import Column, Manifest, Origin, Skipped
from packstore.stores import Ragged, Reader, StoreBuilder, create_store, format_of

ORIGIN = Origin("flat", "somewhere")
CLASSES = ("ant", "bee", "cat")
KINDS = ("ragged", "uint8", "float16", "bfloat16", "ragged-uint8")
ODD_KEYS = ["a/b.jpg", "ünï/コード.png", "caf\udce9.JPEG", "new\nline", "", "x" * 300, "train/\U0001f600"]


@dataclasses.dataclass(frozen=True)
class Records:
    """What goes into a store, and should come out."""

    encoding: str
    columns: tuple[Column, ...]
    images: list[bytes]
    values: dict[str, Any]
    splits: list[str]

    def __len__(self) -> int:
        return len(self.images)

    def part(self, start: int, stop: int) -> tuple[list[bytes], dict[str, Any]]:
        return self.images[start:stop], {name: v[start:stop] for name, v in self.values.items()}


def make_records(kind: str = "ragged", count: int = 7, seed: int = 0, sizes: Sequence[int] | None = None) -> Records:
    """Records of a kind (see ``KINDS``) that are all different, in two splits."""
    rng = np.random.default_rng(seed)
    encoding, image, shapes = kind, Column("image", "ragged", "uint8", type="image"), None
    if kind == "ragged":
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
    images = [rng.bytes(n) for n in (sizes or [image.record_nbytes] * count)]
    first = -(-2 * count // 3)
    return Records(encoding, tuple(columns), images, values, ["train"] * first + ["val"] * (count - first))


def begin(path: Path, records: Records, **options: Any) -> StoreBuilder:
    format = options.pop("format", None) or format_of(path)
    assert format is not None
    return create_store(path, format=format, encoding=records.encoding, columns=records.columns, **options)


def append(builder: StoreBuilder, records: Records, batch: int = 3) -> None:
    start = 0
    while start < len(records):
        stop = start + 1
        while stop < min(start + batch, len(records)) and records.splits[stop] == records.splits[start]:
            stop += 1
        builder.append(*records.part(start, stop), records.splits[start])
        start = stop


def write(path: Path, records: Records, *, batch: int = 3, **options: Any) -> Manifest:
    with begin(path, records, **options) as builder:
        append(builder, records, batch)
        return builder.commit(origin=ORIGIN, versions={"packstore": "0"}, skipped=[Skipped("bad", "empty")])


def interrupted(path: Path, records: Records, error: BaseException, **options: Any) -> None:
    """A run that fails between the last record and the commit."""
    with begin(path, records, **options) as builder:
        append(builder, records)
        raise error


def finished(records: Records) -> tuple[tuple[Column, ...], dict[str, Any]]:
    """Columns with sizes and digests and the values of all but ``image``, reckoned here and not by packstore."""
    data: dict[str, Any] = {}
    columns = []
    for column in records.columns:
        if column.name == "image":
            columns.append(dataclasses.replace(column, nbytes=sum(map(len, records.images))))
            continue
        if column.kind == "ragged":
            raw = [k.encode("utf-8", "surrogateescape") for k in records.values[column.name]]
            offsets = np.array([0, *np.cumsum([len(r) for r in raw])], "<i8")
            data[column.name] = (b"".join(raw), offsets)
            shas = [hashlib.sha256(b).digest() for b in (offsets.tobytes(), b"".join(raw))]
            columns.append(dataclasses.replace(column, nbytes=len(b"".join(raw)), digest=sha256_hex(b"".join(shas))))
            continue
        if column.name == "checksum":
            array = np.array([xxhash.xxh3_64_intdigest(i) for i in records.images], "<u8")
        else:
            array = np.array(records.values[column.name], NUMPY_DTYPE[column.dtype])
        data[column.name] = array
        columns.append(dataclasses.replace(column, nbytes=array.nbytes, digest=sha256_hex(array.tobytes())))
    return tuple(columns), data


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def assert_holds(reader: Reader, records: Records) -> None:
    """Every record and every column of ``reader`` is what was put in."""
    assert len(reader) == len(records)
    assert [bytes(reader.read(i)) for i in range(len(reader))] == records.images
    assert [bytes(reader.view(i)) for i in range(len(reader))] == records.images
    assert [reader.key(i) for i in range(len(reader))] == records.values["key"]
    columns, data = finished(records)
    if reader.manifest.shards is not None:  # these have the digests
        columns = tuple(dataclasses.replace(column, digest=None) for column in columns)
    assert reader.manifest.columns == columns
    for name, expected in data.items():
        column = reader.column(name)
        if isinstance(column, Ragged):
            assert (bytes(column.data), column.offsets.tolist()) == (expected[0], expected[1].tolist())
        else:
            assert column.dtype == expected.dtype
            assert column.shape == expected.shape
            assert np.array_equal(column, expected)
            assert not column.flags.writeable


def listing(directory: Path) -> set[str]:
    return {str(p.relative_to(directory)) for p in directory.rglob("*")}


def flip(path: Path, position: int, mask: int = 0x01) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))
