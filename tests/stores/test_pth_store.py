"""``.pth``: the contract, and what is its own."""

from __future__ import annotations

import collections
import contextlib
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packstore.stores import is_store, open_store
from packstore.testing import StoreSuite
from packstore.testing.records import ORIGIN, Records, assert_holds, expected_columns, flip, make_records, write
from tests.internals import NUMPY_DTYPE, Manifest, PickleError, StoreError, Tensor, dump_dict, unpickle
from tests.internals import zip as pth_zip


def as_tensors(manifest: Manifest, records: Records, data: dict[str, Any]) -> dict[str, Any]:
    """The documented dict, made with torch."""
    image = records.columns[0]
    content: dict[str, Any] = {"manifest": manifest.to_json()}
    for name, values in data.items():
        if isinstance(values, tuple):
            raw = torch.frombuffer(bytearray(values[0]), dtype=torch.uint8)
            content[name] = {"bytes": raw, "offsets": torch.tensor(values[1])}
        else:
            signed = f"<i{values.itemsize}" if values.dtype.kind == "u" and values.itemsize > 1 else values.dtype
            tensor = torch.from_numpy(values.view(signed))
            content[name] = tensor.view(torch.bfloat16) if manifest.column(name).dtype == "bfloat16" else tensor
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
        expected = as_tensors(manifest, records, expected_columns(records)[1])
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
            ("label", torch.nn.Parameter(torch.zeros(7, dtype=torch.int64), requires_grad=False)),
            ("label", torch.zeros(7, dtype=torch.int64, device="meta")),
            ("label", torch._neg_view(torch.zeros(7, dtype=torch.int64))),
            ("label", torch.zeros(7, requires_grad=True)),
            ("label", torch.zeros(7, dtype=torch.int64).expand(7).unsqueeze(0)),
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
        columns, data = expected_columns(records)
        content = as_tensors(Manifest("pth", "original", 7, columns, ORIGIN), records, data)
        content[name] = value
        torch.save(content, path)
        with pytest.raises(StoreError, match=name):
            open_store(path)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"\x80\x02}(" + b")" + b"\x85" * 1_000_000 + b"K\x01u.", "more than 200,000 operations"),
            (b"\x80\x02}(" + b")" + b"\x85" * 100_000 + b"K\x01u.", "a key of type tuple"),
            (b"\x80\x02" + b"(" * 100_000 + b".", "without a packstore manifest|damaged"),
            (b"\x80\x02}r\xff\xff\xff\xffj\xff\xff\xff\x7f.", "damaged"),
            (b"\x80\x02X\xff\xff\xff\xffabc", "damaged"),
            (b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", "without a packstore manifest"),
            (b"\x80\x02]q\x00(K\x01K\x02e.", "without a packstore manifest"),
            (b"\x80\x02}0.", "the instruction POP 0x30"),
            (b"\x80\x02}(K\x01K\x02u.", "a key of type int"),
            (b"\x80\x02K\x01Q.", "persistent id that is not a storage"),
            *(
                (data, "damaged")
                for data in (b"", b"\x80\x02", b"}}u.", b"u.", b"R.", b"Q.", b"\x85.", b"b.", b"}K\x01.")
            ),
        ],
    )
    def test_pickles_of_strangers(self, path: Path, data: bytes, message: str) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", data)
        with pytest.raises(StoreError, match=message) as caught:
            open_store(path)
        assert "\n" not in str(caught.value)
        assert not is_store(path)

    @given(data=st.binary(max_size=60), position=st.integers(0, 10**6), cut=st.integers(0, 80))
    def test_any_damage_to_the_pickle_is_malformed(self, data: bytes, position: int, cut: int) -> None:
        whole = dump_dict({"a": {"b": Tensor("0", "uint8", (2, 3))}, "manifest": "{}"})
        position %= len(whole)
        for damaged in (data, whole[:position] + data + whole[position + cut :]):
            with contextlib.suppress(PickleError):
                unpickle(damaged)

    @pytest.mark.slow
    def test_what_is_compressed_is_not_unpacked(self, path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(200 << 20))
        tracemalloc.start()
        try:
            with pytest.raises(StoreError, match="compressed or encrypted"):
                open_store(path)
            assert tracemalloc.get_traced_memory()[1] < 5 << 20
        finally:
            tracemalloc.stop()

    def test_a_pickle_or_a_directory_that_is_too_large(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(path, make_records())
        monkeypatch.setattr(pth_zip, "_MAX_PICKLE", 100)
        with pytest.raises(StoreError, match=r"its pickle has .* bytes, more than 100"):
            open_store(path)
        monkeypatch.setattr(pth_zip, "_MAX_DIRECTORY", 100)
        with pytest.raises(StoreError, match="not a zip archive that ends properly"):
            open_store(path)

    def test_truncated_says_so(self, path: Path) -> None:
        write(path, make_records())
        path.write_bytes(path.read_bytes()[:-30])
        said = r"is damaged or truncated: it cannot be opened as a \.pth \(not a zip archive that ends properly\)"
        with pytest.raises(StoreError, match=said):
            open_store(path)

    @pytest.mark.slow
    def test_flips_in_the_directory(self, path: Path) -> None:
        """Whatever zipfile makes of them: a StoreError at opening, or problems; nothing else is raised."""
        records = make_records("uint8")
        write(path, records)
        with zipfile.ZipFile(path) as archive:
            start = archive.start_dir
        found = 0
        for position in range(start, path.stat().st_size):
            mask = 1 << position % 8
            flip(path, position, mask)
            problems = list(pth_zip.check_zip(np.fromfile(path, np.uint8), lambda _: None))
            try:
                assert_holds(open_store(path), records)
            except StoreError:
                found += 1
            found += bool(problems)
            flip(path, position, mask)
        assert found > 100

    def test_a_view_of_a_storage(self, path: Path) -> None:
        """torch saves a slice with the whole storage and an offset."""
        records = make_records("uint8")
        columns, data = expected_columns(records)
        content = as_tensors(Manifest("pth", "uint8", 7, columns, ORIGIN), records, data)
        labels = torch.cat([torch.full((5,), -1), content["label"], torch.full((3,), -1)])
        content["label"] = labels[5:12]
        torch.save(content, path)
        assert_holds(open_store(path), records)

    def test_bfloat16_is_a_torch_dtype(self, path: Path) -> None:
        records = make_records("bfloat16")
        write(path, records)
        assert torch.load(path, weights_only=True)["image"].dtype == torch.bfloat16
        assert open_store(path).fixed_column("image").dtype == NUMPY_DTYPE["bfloat16"]
