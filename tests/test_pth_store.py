"""``.pth``: the contract, and what is its own."""

from __future__ import annotations

import collections
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packstore.errors import StoreError
from packstore.manifest import Manifest
from packstore.stores import is_store, open_store
from packstore.stores.base import NUMPY_DTYPE
from tests.store_suite import ORIGIN, Records, StoreSuite, assert_holds, finished, flip, make_records, write


def as_tensors(manifest: Manifest, records: Records, data: dict[str, Any]) -> dict[str, Any]:
    """The documented dict, made with torch."""
    image = records.columns[0]
    content: dict[str, Any] = {"manifest": manifest.to_json()}
    for name, values in data.items():
        if isinstance(values, tuple):
            raw = torch.frombuffer(bytearray(values[0]), dtype=torch.uint8)
            content[name] = {"bytes": raw, "offsets": torch.tensor(values[1])}
        else:
            content[name] = torch.from_numpy(values.view(np.int64) if values.dtype == np.uint64 else values)
    joined = bytearray(b"".join(records.images))
    raw = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.zeros(0, dtype=torch.uint8)
    if image.kind == "fixed":
        content["image"] = raw.view(getattr(torch, image.dtype)).reshape(len(records), *image.shape)
    else:
        offsets = torch.tensor([0, *np.cumsum([len(i) for i in records.images])])
        content["image"] = {"bytes": raw, "offsets": offsets}
    return content


def assert_equal(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_equal(a[name], b[name])
    elif isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert bytes(a.reshape(-1).view(torch.uint8).numpy()) == bytes(b.reshape(-1).view(torch.uint8).numpy())
    else:
        assert a == b


class TestPth(StoreSuite):
    format = "pth"
    suffix = ".pth"
    PLAIN_READER = """
import json, sys
import torch
store = torch.load(sys.argv[1], mmap=True, weights_only=True)
def split(column):
    at = column["offsets"].tolist()
    return [bytes(column["bytes"][a:b].numpy()).hex() for a, b in zip(at[:-1], at[1:])]
image = store["image"]
if isinstance(image, dict):
    images = split(image)
else:
    images = [bytes(i.contiguous().reshape(-1).view(torch.uint8).numpy()).hex() for i in image]
print(json.dumps({"images": images, "label": store["label"].tolist(), "key": split(store["key"]),
                  "checksum": store["checksum"].tolist(), "manifest": store["manifest"]}))
"""

    def write_plain(self, path: Path, manifest: Manifest, records: Records, data: dict[str, Any]) -> None:
        torch.save(as_tensors(manifest, records, data), path)

    def test_it_is_what_torch_saves(self, path: Path, records: Records, tmp_path: Path) -> None:
        manifest = write(path, records)
        expected = as_tensors(manifest, records, finished(records)[1])
        for mmap in (False, True):
            loaded = torch.load(path, mmap=mmap, weights_only=True)
            assert_equal(loaded, {name: expected[name] for name in loaded} | {n: expected[n] for n in expected})
        again = tmp_path / "again.pth"
        torch.save(loaded, again)
        assert_equal(torch.load(again, weights_only=True), loaded)
        with open_store(again) as reader:
            assert_holds(reader, records)

    def test_zip_is_sound_and_aligned(self, path: Path, records: Records) -> None:
        write(path, records)
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            for info in archive.infolist():
                assert info.compress_type == zipfile.ZIP_STORED
                assert info.date_time == (1980, 1, 1, 0, 0, 0)
                with path.open("rb") as file:
                    file.seek(info.header_offset + 26)
                    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
                assert (info.header_offset + 30 + name + extra) % 64 == 0

    def test_only_empty_records(self, path: Path) -> None:
        records = make_records("ragged", 2, sizes=[0, 0])
        write(path, records)
        assert_holds(open_store(path), records)
        assert torch.load(path, weights_only=True, mmap=True)["image"]["bytes"].shape == (0,)

    def test_flipped_image_byte_is_a_crc_error(self, path: Path) -> None:
        records = make_records("uint8")
        write(path, records)
        flip(path, path.read_bytes().index(records.images[3]) + 7)
        reader = open_store(path)
        assert list(reader.check_structure(quick=True)) == []
        assert ["archive/data/0" in p.what for p in reader.check_structure()] == [True]

    def test_nothing_is_executed(self, path: Path) -> None:
        class Evil:
            def __reduce__(self) -> Any:
                return Path.write_text, (path.with_name("pwned"), "x")

        for content in (Evil(), {"manifest": Evil()}):
            torch.save(content, path)
            with pytest.raises(StoreError, match=r"cannot be opened as a \.pth"):
                open_store(path)
        path.unlink()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps({"manifest": Evil()}, protocol=2))
            archive.writestr("archive/version", "3\n")
        assert not is_store(path)
        assert [p.name for p in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize(
        "content", [{"a": torch.zeros(2)}, torch.zeros(2), {"manifest": 3}, collections.OrderedDict(x=1)]
    )
    def test_foreign(self, path: Path, content: Any) -> None:
        torch.save(content, path)
        with pytest.raises(StoreError, match=r"is a \.pth without a packstore manifest"):
            open_store(path)
        assert not is_store(path)

    def test_another_zip(self, path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", "a")
        with pytest.raises(StoreError, match=r"cannot be opened as a \.pth"):
            open_store(path)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("label", torch.zeros(7, dtype=torch.int32)),
            ("label", torch.zeros(6, dtype=torch.int64)),
            ("label", torch.zeros(14, dtype=torch.int64)[::2]),
            ("label", torch.zeros(7, dtype=torch.int64).to_sparse()),
            ("label", "text"),
            ("label", None),
            ("key", torch.zeros(7)),
            ("key", {"bytes": torch.zeros(0, dtype=torch.uint8), "offsets": torch.zeros(0, dtype=torch.int64)}),
            ("key", {"bytes": torch.zeros(3, dtype=torch.uint8), "offsets": torch.zeros(8, dtype=torch.int64)}),
            ("key", {}),
        ],
    )
    def test_tensors_that_are_not_what_the_manifest_says(self, path: Path, name: str, value: Any) -> None:
        records = make_records()
        columns, data = finished(records)
        content = as_tensors(Manifest("pth", "original", 7, columns, ORIGIN), records, data)
        content[name] = value
        torch.save(content, path)
        with pytest.raises(StoreError, match=name):
            open_store(path)

    def test_bfloat16_is_a_torch_dtype(self, path: Path) -> None:
        records = make_records("bfloat16")
        write(path, records)
        assert torch.load(path, weights_only=True)["image"].dtype == torch.bfloat16
        assert open_store(path).fixed("image").dtype == NUMPY_DTYPE["bfloat16"]
