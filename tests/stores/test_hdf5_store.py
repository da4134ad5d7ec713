"""HDF5: the contract, and what is its own."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from packstore.stores import is_store, open_store
from packstore.testing import StoreSuite
from packstore.testing.records import Records, append, assert_holds, begin, make_records, write
from tests.internals import NUMPY_DTYPE, Manifest, StoreError
from tests.internals import hdf5_store as hdf5_store


class TestHdf5(StoreSuite):
    format = "hdf5"
    PLAIN_READER = """
import json, sys
import h5py
with h5py.File(sys.argv[1], "r") as file:
    image = file["image"]
    if isinstance(image, h5py.Group):
        at, raw = image["offsets"][:], image["bytes"]
        images = [raw[a:b].tobytes().hex() for a, b in zip(at[:-1], at[1:])]
    else:
        images = [image[i].tobytes().hex() for i in range(len(image))]
    at, raw = file["key/offsets"][:], file["key/bytes"][:]
    key = [raw[a:b].tobytes().hex() for a, b in zip(at[:-1], at[1:])]
    print(json.dumps({"images": images, "label": file["label"][:].tolist(), "key": key,
                      "checksum": file["checksum"][:].tolist(), "manifest": file.attrs["manifest"].decode()}))
"""

    def write_plain(self, path: Path, manifest: Manifest, records: Records, data: dict[str, Any]) -> None:
        image = records.columns[0]
        with h5py.File(path, "w", libver="v110") as file:
            file.attrs["manifest"] = np.bytes_(manifest.to_json().encode())
            for name, values in data.items():
                if isinstance(values, tuple):
                    file[f"{name}/bytes"] = np.frombuffer(values[0], np.uint8)
                    file[f"{name}/offsets"] = values[1]
                else:
                    file[name] = values
            raw = b"".join(records.images)
            if image.kind == "fixed":
                file["image"] = np.frombuffer(raw, NUMPY_DTYPE[image.dtype]).reshape(len(records), *image.shape)
            else:
                file["image/bytes"] = np.frombuffer(raw, np.uint8)
                file["image/offsets"] = np.array([0, *np.cumsum([len(i) for i in records.images])], np.int64)

    @pytest.mark.parametrize("size", [1, 4000, 4095, 4096, 4097, 100_000, 5_000_001])
    def test_images_of_any_total_size(self, path: Path, size: int) -> None:
        """From images that HDF5 puts among its headers to images at their aligned place."""
        records = make_records("ragged", 3, sizes=[size - size // 2, 0, size // 2])
        write(path, records)
        assert_holds(open_store(path), records)
        with h5py.File(path) as file:
            dataset = file["image/bytes"]
            assert dataset.chunks is None
            assert dataset.id.get_offset() == 4096 or size < 4096
            assert dataset[:].tobytes() == b"".join(records.images)

    def test_an_h5py_that_puts_the_images_elsewhere(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hdf5_store, "_COPY_BYTES", 1000)
        for payload in (512, 4096 * 3):
            monkeypatch.setattr(hdf5_store, "IMAGES_START", payload)
            target = path.with_name(f"{payload}.h5")
            records = make_records()
            with begin(target, records) as builder:
                append(builder, records)
                monkeypatch.setattr(hdf5_store, "_ALIGNMENT", 4096)
                builder.commit()
            with h5py.File(target) as file:
                assert file["image/bytes"].id.get_offset() == 4096
            assert_holds(open_store(target), records)

    def test_bfloat16_says_so(self, path: Path) -> None:
        write(path, make_records("bfloat16"))
        with h5py.File(path) as file:
            assert file["image"].dtype == np.uint16
            assert file["image"].attrs["dtype"] == b"bfloat16"

    def test_foreign_files(self, path: Path) -> None:
        for libver, what in (
            ("earliest", "packstore did not write: .*superblock"),
            ("v110", "without a packstore man"),
        ):
            with h5py.File(path, "w", libver=libver) as file:
                file["data"] = [1, 2, 3]
            with pytest.raises(StoreError, match=what):
                open_store(path)
        assert not is_store(path)
        path.write_bytes(b"\x89HDF\r\n\x1a\n\x02" + bytes(5000))
        with pytest.raises(StoreError, match="cannot be opened as HDF5"):
            open_store(path)

    def test_truncated_says_so(self, path: Path) -> None:
        write(path, make_records())
        path.write_bytes(path.read_bytes()[:5000])
        said = r"is damaged or truncated: it cannot be opened as HDF5 \(the file is shorter than its header says\)"
        with pytest.raises(StoreError, match=said):
            open_store(path)

    def test_offsets_that_go_backwards(self, path: Path) -> None:
        records = make_records()
        write(path, records)
        with h5py.File(path, "r+") as file:
            offsets = file["image/offsets"]
            offsets[3] = 10**6
        reader = open_store(path)
        with pytest.raises(StoreError, match=r"record 3 .* offsets are damaged"):
            reader.read(3)
        assert {p.record for p in reader.check_structure(quick=True)} == {2, 3}


def test_no_object_has_a_time(tmp_path: Path) -> None:
    """Else stores of equal records would differ: groups of h5py 3.8 have times unless told."""
    write(tmp_path / "store.h5", make_records("typed"))
    file = (tmp_path / "store.h5").read_bytes()
    flags = [file[found.end()] for found in re.finditer(b"OHDR\x02", file)]
    assert len(flags) > 4
    assert not any(flag & 0x20 for flag in flags)  # bit 5: times are stored (HDF5 file format, IV.A.1.b)


def test_a_signal_while_h5py_closes_its_file_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(h5py.File, "__exit__", stop)
    with pytest.raises(KeyboardInterrupt) as stopped:
        write(tmp_path / "store.h5", make_records("typed"))
    monkeypatch.undo()
    del stopped  # with the file that h5py had open
    gc.collect()
    assert capfd.readouterr().err == ""
