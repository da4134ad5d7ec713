"""Exports of packstore as sources: the contract of a source, for a folder, an archive and shards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from packstore.sources import Entry, open_source
from packstore.testing import SourceSuite
from tests.internals import SourceError, convert, export
from tests.makers.images import tiny


class _Exported(SourceSuite):
    kind = "exported"
    bytes_per_sample = 400
    to: ClassVar[str]

    def make(self, folder: Path, samples: int) -> Path:
        root = folder.parent / f"{folder.name}-images"
        for i in range(samples):
            path = root / ("train", "val")[i % 3 == 2] / ("cat", "dog")[i % 2] / f"{i:05}\udce9.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tiny(i))
        store = folder.parent / f"{folder.name}.lmdb"
        convert(root, store, check="none")
        export(store, folder / "out", to=self.to)
        shutil.rmtree(root)
        return folder / "out"

    def change(self, path: Path) -> None:
        rows = path / "packstore.rows.jsonl"
        rows.write_bytes(rows.read_bytes().replace(b'"key":"train/cat', b'"key":"train/cow'))


class TestFolder(_Exported):
    to = "imagefolder"

    def spoil(self, path: Path, entry: Entry) -> bool:
        found = path / entry.ref[1][0]
        found.unlink()
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        with (path / entry.ref[1][0]).open("r+b") as file:
            file.truncate(200 << 20)
        return True


class TestZip(_Exported):
    to = "zip"

    def change(self, path: Path) -> None:
        other = path.parent / "other"
        other.mkdir()
        shutil.move(self.make(other, 14), path)


class TestShards(_Exported):
    kind = "webdataset"
    to = "webdataset"


def test_what_the_manifest_says_is_not_taken_on_trust(tmp_path: Path) -> None:
    suite = TestFolder()
    (tmp_path / "x").mkdir()
    path = suite.make(tmp_path / "x", 6)
    rows = path / "packstore.rows.jsonl"
    good = rows.read_text()
    hostile: Mapping[str, Any] = {
        "file": ["/etc/passwd", "../x", "", "a\0b", "\ud800", 5, None],
        "key": [5, "\ud800"],
        "values": [[], {"label": "x"}, {"label": 2**70}, {"label": 99}, {}],
    }
    first, rest = good.split("\n", 1)
    for name, values in hostile.items():
        for value in values:
            rows.write_text(json.dumps(json.loads(first) | {name: value}) + "\n" + rest)
            with pytest.raises(SourceError) as caught:
                convert(path, tmp_path / "never.lmdb")
            assert str(caught.value).isprintable()
    rows.unlink()
    with pytest.raises(SourceError, match=r"packstore\.rows\.jsonl"), closing(open_source(path)) as source:
        source.survey()
