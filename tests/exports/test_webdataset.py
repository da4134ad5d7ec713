"""Exports as shards of WebDataset: the contract, and what others read."""

from __future__ import annotations

import io
import json
import tarfile
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore.stores import open_store
from packstore.testing.records import make_records, write
from tests.internals import convert, export
from tests.makers.typed import COLUMNS, make_typed


def samples(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    """The samples of a shard as WebDataset's ``group_by_keys`` makes them: files of one key, up to the first dot of the
    file's name, that follow each other."""
    with tarfile.open(path) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]

    def key(member: tuple[str, bytes]) -> str:
        folder, slash, base = member[0].rpartition("/")
        return folder + slash + base.partition(".")[0]

    groups = groupby(members, key)
    return [(k, {name.rpartition("/")[2].partition(".")[2]: data for name, data in group}) for k, group in groups]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("typed")
    return make_typed(folder / "typed.lmdb", [column.name for column in COLUMNS], 6)


def test_each_value_is_a_file_that_others_know(typed: Any, tmp_path: Path) -> None:
    export(typed.path, tmp_path / "out", to="webdataset")
    (shard,) = (tmp_path / "out").glob("*.tar")
    found = samples(shard)
    assert len(found) == 6
    with open_store(typed.path) as reader:
        for i, ((_, files), values) in enumerate(zip(found, typed.values, strict=True)):
            assert files["png"] == bytes(reader.read(i))
            assert int(files["cls"]) == values["label"]
            assert files["mask.png"] == values["mask"]
            assert np.array_equal(np.load(io.BytesIO(files["raw.npy"])), values["raw"])
            assert np.array_equal(np.load(io.BytesIO(files["boxes.npy"])), values["boxes"])
            assert json.loads(files["info.json"]) == values["info"]
            assert files.get("caption.txt") == (values["caption"] and values["caption"].encode())
            assert files["blob.bin"] == values["blob"]
            assert ("depth.png" in files) == (values["depth"] is not None)
    assert (tmp_path / "out/classnames.txt").read_text() == "ant\nbee\ncat\n"


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_library_reads_it(typed: Any, tmp_path: Path) -> None:
    """With version 1.0.2, which leaves its shards open."""
    webdataset = pytest.importorskip("webdataset")
    export(typed.path, tmp_path / "out", to="webdataset")
    (shard,) = (tmp_path / "out").glob("*.tar")
    found = list(webdataset.WebDataset(str(shard), shardshuffle=False).decode("rgb8"))
    assert [sample["cls"] for sample in found] == [values["label"] for values in typed.values]
    assert all(np.array_equal(s["png"], image) for s, image in zip(found, typed.images, strict=True))


@pytest.mark.parametrize("kind", ["ragged", "typed"])
def test_strange_keys_stay_in_the_shard_and_apart(tmp_path: Path, kind: str) -> None:
    records = make_records(kind, count=11)
    keys = [
        "../../x.jpg",
        "/etc/passwd",
        "a/../b",
        "x.y.z",
        "x",
        "x.jpg",
        ".hidden",
        "__meta__",
        "a\0b",
        "y/" * 900,
        "X",
    ]
    records.values["key"] = keys
    write(tmp_path / "in.lmdb", records)
    export(tmp_path / "in.lmdb", tmp_path / "out", to="webdataset")
    names, found = [], 0
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(shard) as tar:
            names += tar.getnames()
            assert all(member.mtime == 0 and not member.pax_headers for member in tar)
        found += len(samples(shard))
    assert found == 11
    assert all(name and ".." not in name and name[0] != "/" and name.isprintable() for name in names)
    assert not any(name.rpartition("/")[2].startswith((".", "__")) for name in names)
    again = convert(tmp_path / "out", tmp_path / "again.lmdb", check="none")
    with open_store(tmp_path / "again.lmdb") as reader:
        assert [reader.key(i) for i in range(again.manifest.records)] == keys


def test_shards_are_of_about_one_size_and_of_one_split(tmp_path: Path) -> None:
    records = make_records("ragged", count=9, sizes=[400] * 9)
    write(tmp_path / "in.lmdb", records)
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to="webdataset", shard_size=1000)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.tar"))
    assert names == ["train-000000.tar", "train-000001.tar", "val-000000.tar"]
    assert report.shards == 3
