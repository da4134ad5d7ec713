"""A fourth format that lives in this file alone, plugged in by one line: proof that a format is a plug-in.

A toy file is a head (what it is, where its manifest begins and how long that is), the images one behind the other, the
other arrays in the manifest's order, each at a multiple of 8 bytes, and the manifest's JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import packstore
from packstore.cli import cli
from packstore.stores import format_of, is_store
from packstore.testing import StoreSuite
from packstore.testing.records import Records, make_records
from tests.internals import (
    FORMATS,
    Buffer,
    Column,
    ColumnData,
    FileWriter,
    Format,
    Manifest,
    MappedPart,
    OffsetSpool,
    Part,
    Ragged,
    StoreError,
    drop,
    list_array_sizes,
    map_consecutive_images,
    open_file,
    parse_manifest,
    reading,
    view_column,
)
from tests.makers.datasets import make_folder

ROOT = Path(__file__).parents[2]
MAGIC = b"TOY\x01"
HEAD = struct.Struct("<4s4xQQ")


class Toy(Format):
    name = "toy"
    title = "Toy"
    suffixes = (".toy.bin", ".toy")
    magic = MAGIC

    def open(self, path: Path, descriptor: int | None = None) -> Part:
        return ToyPart(path, descriptor)

    def new_writer(self, path: Path, image: Column) -> FileWriter:
        return ToyWriter(path, image)

    def open_partial_file(self, path: Path, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
        return map_consecutive_images(path, HEAD.size, sizes)


FORMAT = Toy()


def places(manifest: Manifest) -> Iterator[tuple[str, int, int]]:
    """Name, start and bytes of each array."""
    start = HEAD.size
    for name, size in list_array_sizes(manifest):
        yield name, start, size
        start += -(-size // 8) * 8


class ToyWriter(FileWriter):
    def __init__(self, path: Path, image: Column) -> None:
        super().__init__(path, image)
        self._file: IO[bytes] | None = open_file(path, "xb")
        self._file.write(bytes(HEAD.size))
        self._nbytes = 0
        self._offsets = OffsetSpool(path.parent) if image.kind == "ragged" else None

    def append(self, images: Sequence[Buffer]) -> None:
        assert self._file is not None
        self._file.writelines(images)
        sizes = [len(image) for image in images]
        self._nbytes += sum(sizes)
        if self._offsets is not None:
            self._offsets.append(sizes, len(images))

    def suspend(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def seal(self, manifest: Manifest, columns: Mapping[str, ColumnData]) -> None:
        arrays: dict[str, NDArray[Any]] = {}
        for name, data in columns.items():
            arrays |= {f"{name}/bytes": data.data, f"{name}/offsets": data.offsets} if isinstance(data, Ragged) else {
                name: data
            }  # fmt: skip
        if self._offsets is not None:
            arrays["image/offsets"] = self._offsets.offsets()
        self.suspend()
        self._file = open_file(self.path, "r+b")
        end = HEAD.size
        for name, start, size in places(manifest):
            if name in arrays:  # the images are there already
                self._file.seek(start)
                self._file.write(np.ascontiguousarray(arrays[name]).tobytes())
            end = start + -(-size // 8) * 8
        text = manifest.to_json().encode("ascii")
        self._file.truncate(end)
        self._file.seek(end)
        self._file.write(text)
        self._file.seek(0)
        self._file.write(HEAD.pack(MAGIC, end, len(text)))
        self.suspend()
        self.abort()

    def abort(self) -> None:
        if self._file is not None:
            drop(self._file)
            self._file = None
        if self._offsets is not None:
            self._offsets.close()


class ToyPart(MappedPart):
    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        try:
            with reading(path, descriptor) as opened:
                raw = memoryview(mmap.mmap(opened, 0, access=mmap.ACCESS_READ))
            magic, at, size = HEAD.unpack_from(raw)
        except (OSError, ValueError, struct.error) as error:
            raise StoreError(f"{path} is damaged: {error}") from None
        if magic != MAGIC or at + size != len(raw):
            raise StoreError(f"{path} is damaged: its manifest should end at byte {at + size} of {len(raw)}")
        manifest = parse_manifest(bytes(raw[at : at + size]), path)
        if manifest.format != FORMAT.name or manifest.shards:
            raise StoreError(f"{path} has the manifest of another store")
        found = {name: raw[start : start + length] for name, start, length in places(manifest)}
        if sum(map(len, found.values())) != sum(length for _, length in list_array_sizes(manifest)):
            raise StoreError(f"{path} is damaged: it ends before its arrays do")
        data = {column.name: view_column(column, manifest.records, found) for column in manifest.columns}
        super().__init__(path, manifest, data)


@pytest.fixture
def registered() -> Iterator[None]:
    FORMATS.register(FORMAT.name, FORMAT)
    yield
    FORMATS.unregister(FORMAT.name)


@pytest.mark.usefixtures("registered")
class TestToy(StoreSuite):
    format = "toy"
    PLAIN_READER = """
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
_, at, size = struct.unpack_from("<4s4xQQ", raw)
text = raw[at : at + size].decode()
manifest, start, arrays = json.loads(text), 24, {}
for column in manifest["columns"]:
    name, sizes = column["name"], [column["nbytes"], 8 * (manifest["records"] + 1)]
    names = [name] if column["kind"] == "fixed" else [name + "/bytes", name + "/offsets"]
    for name, nbytes in zip(names, sizes):
        arrays[name] = raw[start : start + nbytes]
        start += -(-nbytes // 8) * 8
def values(name):
    if name in arrays:
        step = len(arrays[name]) // manifest["records"]
        return [arrays[name][i : i + step].hex() for i in range(0, len(arrays[name]), step)]
    at = struct.unpack(f"<{manifest['records'] + 1}q", arrays[name + "/offsets"])
    return [arrays[name + "/bytes"][a:b].hex() for a, b in zip(at, at[1:])]
numbers = lambda name: list(struct.unpack(f"<{manifest['records']}q", arrays[name]))
print(json.dumps({"images": values("image"), "key": values("key"), "label": numbers("label"),
                  "checksum": numbers("checksum"), "manifest": text}))
"""

    def write_plain(self, path: Path, manifest: Manifest, records: Records, data: dict[str, Any]) -> None:
        image = b"".join(records.images)
        offsets = np.array([0, *np.cumsum([len(i) for i in records.images])], "<i8")
        raw = bytearray()
        for column in manifest.columns:
            value = data.get(column.name, (image, offsets) if column.kind == "ragged" else np.frombuffer(image, "u1"))
            for part in value if isinstance(value, tuple) else (value,):
                raw += bytes(part) if isinstance(part, bytes) else part.tobytes()
                raw += bytes(-len(raw) % 8)
        text = manifest.to_json().encode()
        path.write_bytes(HEAD.pack(MAGIC, HEAD.size + len(raw), len(text)) + raw + text)


class LeastToy(Toy):
    """What a format need not have left out."""

    open_partial_file = Format.open_partial_file


@pytest.mark.usefixtures("registered")
def test_the_least_of_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without images of an interrupted run, these are packed anew."""
    FORMATS.register(FORMAT.name, LeastToy())
    suite = TestToy()
    suite.test_an_interrupted_run(tmp_path / "out.toy", None, monkeypatch)
    suite.test_round_trip(tmp_path / "out.toy", make_records())


def test_unknown_without_the_line(tmp_path: Path) -> None:
    assert "toy" not in FORMATS
    assert format_of("out.toy") is None


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("arguments", [[], ["--shard-size", "3kB"]])
def test_from_the_command_line(tmp_path: Path, arguments: list[str]) -> None:
    source, path = make_folder(tmp_path / "source"), tmp_path / "out.toy"

    def run(*words: object, code: int = 0) -> str:
        done = CliRunner().invoke(cli, [str(word) for word in words])
        assert done.exit_code == code, done.output
        return done.output

    assert "Toy" in run("convert", source, path, *arguments)
    assert is_store(path)
    assert "undamaged" in run("verify", path, "--against", source)
    assert "Toy" in run("info", path)
    run("convert", source, path, "--overwrite", *arguments)
    run("convert", path, tmp_path / "named", "--format", "toy")
    assert is_store(tmp_path / "named")
    run("convert", path, tmp_path / "back.h5")
    run("verify", tmp_path / "back.h5", "--against", path)
    dataset = packstore.PackedDataset(path, split="val")
    assert len(dataset) == len(packstore.PackedDataset(tmp_path / "back.h5", split="val"))
    assert np.array_equal(
        np.asarray(dataset[0][0]), np.asarray(packstore.PackedDataset(tmp_path / "back.h5", split="val")[0][0])
    )
    dataset.close()
    if not arguments:
        with path.open("ab") as file:
            file.write(b"more")
        done = CliRunner().invoke(cli, ["salvage", str(path), "--out", str(tmp_path / "rescued.toy")])
        assert isinstance(done.exception, StoreError)
        assert "packstore cannot get records out of a damaged Toy file" in str(done.exception)


@pytest.mark.slow
@pytest.mark.long
def test_plugged_in_by_an_entry_point(tmp_path: Path) -> None:
    """As an installed distribution does it: by a line in its metadata, which is all that packstore sees of it."""
    info = tmp_path / "site" / "toy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[packstore.formats]\ntoy = tests.stores.test_toy_format:FORMAT\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(info.parent)])}
    source, path = make_folder(tmp_path / "source"), tmp_path / "out.toy"

    def run(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("-m", "packstore", "convert", str(source), str(path))
    reads = f"""
from packstore import PackedDataset
from packstore.cli import cli
cli.main(["info", {str(path)!r}, "--json"], standalone_mode=False)
assert not cli.main(["verify", "-q", {str(path)!r}], standalone_mode=False)
assert len(PackedDataset({str(path)!r}, split="val"))
"""
    assert json.loads(run("-c", reads))["format"] == "toy"
