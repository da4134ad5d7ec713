"""Columns from strangers: manifests that lie about types, and values that are not what their type says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from packstore import verify
from packstore.stores import open_store
from packstore.testing.records import make_records, write
from tests.internals import PackstoreError, StoreError
from tests.internals import base as column_module
from tests.makers.fuzz_targets import signed
from tests.makers.hostile_stores import plain_manifest, put_manifest, survives

SUFFIXES = (".lmdb", ".h5", ".pth")
LARGE = "large.lmdb"
"""An LMDB that keeps every column that may lie so record by record."""
RECORDS = make_records("typed", 6, sizes=range(9, 15))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("typed")
    for suffix in SUFFIXES:
        write(root / f"typed{suffix}", RECORDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_module, "_WHOLE_BYTES", 40)
        write(root / f"typed{LARGE}", RECORDS)
    return root


@pytest.fixture
def store(stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """``store(".h5")`` is a copy of that store."""

    def copied(suffix: str) -> Path:
        if suffix == LARGE:
            monkeypatch.setattr(column_module, "_WHOLE_BYTES", 40)
        source, path = stores / f"typed{suffix}", tmp_path / f"typed{suffix}"
        shutil.copytree(source, path) if source.is_dir() else shutil.copy(source, path)
        return path

    return copied


Lie = dict[str, Any] | None
LIES: dict[str, tuple[str, Lie]] = {
    "an unknown type": ("boxes", {"type": "polygons"}),
    "a type that is no text": ("boxes", {"type": 3}),
    "boxes that are text": ("boxes", {"type": "text"}),
    "text that is bytes": ("a_text", {"type": "bytes"}),
    "bytes that are an array": ("a_bytes", {"type": "array"}),
    "a mask that is an image": ("a_mask", {"type": "image"}),
    "a text that is a mask": ("a_json", {"type": "mask"}),
    "a mask of another layout": ("raw_mask", {"layout": "HWC"}),
    "a mask without its layout": ("raw_mask", {"layout": None}),
    "a mask without its shape": ("raw_mask_shape", None),
    "a shape that is none": ("raw_mask_shape", {"shape": [3], "nbytes": 72}),
    "nobody missing": ("a_text_valid", None),
    "numbers in place of what is missing": ("a_text_valid", {"dtype": "uint8"}),
    "what cannot be missing": ("key", {"nullable": True}),
    "missing as text": ("a_text", {"nullable": "yes"}),
    "not missing after all": ("a_text", {"nullable": False}),
    "missing after all": ("a_json", {"nullable": True}),
    "labels of no boxes": ("names", {"parallel": "other"}),
    "labels of themselves": ("names", {"parallel": "names"}),
    "labels of a text": ("names", {"parallel": "a_text"}),
    "labels of fewer boxes": ("tags", {"parallel": "boxes"}),
    "boxes of labels": ("boxes", {"parallel": "names"}),
    "other coordinates": ("boxes", {"coordinates": "xywh"}),
    "no coordinates": ("joints", {"coordinates": None}),
    "rows of nothing": ("track", {"shape": [0, 3]}),
    "rows that are wider": ("track", {"shape": [7, 11]}),
    "rows without end": ("track", {"shape": [2**39] * 5}),
    "a fixed column that is ragged": ("a_float32", {"kind": "ragged"}),
    "a ragged column that is fixed": ("track", {"kind": "fixed"}),
    "another dtype": ("a_float64", {"dtype": "int64"}),
    "another dtype of the same size": ("steps", {"dtype": "float16"}),
    "classes of an array": ("a_int64", {"classes": ["a"]}),
    "fewer classes": ("names", {"classes": ["a"]}),
    "more than is there": ("a_mask", {"nbytes": 2**61}),
    "more than an LMDB holds as one": ("a_json", {"nbytes": 2**31}),
    "fewer bytes": ("a_bytes", {"nbytes": 1}),
    "arrays that are wider": ("a_float32", {"shape": [2, 4], "nbytes": 2 * 4 * 4 * 6}),
    "arrays without end": ("a_float32", {"shape": [2**40, 2**17], "nbytes": 2**57 * 4 * 6}),
    "arrays of another dtype": ("a_float32", {"dtype": "int32"}),
    "arrays with fewer dimensions": ("a_float32", {"shape": [6]}),
    "arrays of which there is nothing": ("a_float32", {"shape": [2, 0], "nbytes": 0}),
    "a name that leads out": ("a_mask", {"name": "a_mask/0000000000"}),
}


@pytest.mark.slow
@pytest.mark.sampled(20, fast=2)
@pytest.mark.parametrize("suffix", [*SUFFIXES, LARGE])
@pytest.mark.parametrize("lie", LIES)
def test_manifests_that_lie_about_columns(lie: str, suffix: str, store: Callable[[str], Path]) -> None:
    path, (name, changes) = store(suffix), LIES[lie]
    manifest = plain_manifest(path)
    column = next(c for c in manifest["columns"] if c["name"] == name)
    if changes is None:
        manifest["columns"].remove(column)
    else:
        assert changes != {key: column[key] for key in changes}
        column.update(changes)
    put_manifest(path, signed(manifest))
    if survives(path):
        with open_store(path) as reader:
            for each in reader.manifest.columns:
                for record in range(len(reader)):
                    try:
                        reader.item(each.name, record)
                    except PackstoreError:
                        continue


VALUES: dict[str, tuple[str, int, bytes, str]] = {
    "no JSON": ("a_json", 2, b"\xff{", "not JSON"),
    "a shape that is negative": ("raw_mask_shape", 3, np.array([-1, 2], "<i4").tobytes(), "elements, not"),
    "a shape that is enormous": ("raw_image_shape", 3, np.array([2**31 - 1] * 3, "<i4").tobytes(), "elements, not"),
}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("what", VALUES)
def test_values_that_are_not_what_their_type_says(what: str, suffix: str, store: Callable[[str], Path]) -> None:
    path, (name, record, value, message) = store(suffix), VALUES[what]
    given = RECORDS.values[name]
    column = given.tobytes() if isinstance(given, np.ndarray) else b"".join(given)
    start = sum(len(v) if isinstance(v, bytes) else v.nbytes for v in given[:record])
    changed = column[:start] + value + column[start + len(value) :]
    file = path / "data.mdb" if path.is_dir() else path
    data = file.read_bytes()
    assert column in data
    file.write_bytes(data.replace(column, changed))
    with open_store(path) as reader, pytest.raises(StoreError, match=message):
        reader.item(name.removesuffix("_shape"), record)
    survives(path)
    assert not verify(path).ok


def _entries(*changes: tuple[bytes, bytes | None]) -> Callable[[Path], None]:
    """Puts or deletes entries of an LMDB."""

    def act(path: Path) -> None:
        with lmdb.open(str(path), lock=False, map_size=1 << 24) as env, env.begin(write=True) as txn:
            for key, value in changes:
                assert txn.delete(key) if value is None else txn.put(key, value)

    return act


DISORDER = {
    "one too few": _entries((b"a_mask/0000000003", None)),
    "one too many": _entries((b"a_mask/0000000006", b"x")),
    "a key that is too long": _entries((b"a_mask/00000000030", b"x")),
    "a key that is too short": _entries((b"a_mask/x", b"x")),
    "one of another column": _entries((b"a_mask/0000000003", None), (b"b_mask/0000000003", b"x")),
    "one twice in another place": _entries((b"a_mask/0000000003", None), (b"a_mask/0000000009", b"x")),
    "a longer one": _entries((b"a_mask/0000000003", b"longer than before" * 500)),
}
DISORDER |= {
    f"of an array, {what}": _entries(*changes)
    for what, changes in {
        "a longer one": [(b"a_float32/0000000003", bytes(25))],
        "a much longer one": [(b"a_float32/0000000003", bytes(1 << 20))],
        "a shorter one": [(b"a_float32/0000000003", bytes(23))],
        "an empty one": [(b"a_float32/0000000003", b"")],
        "one too few": [(b"a_float32/0000000003", None)],
        "one in another place": [(b"a_float32/0000000003", None), (b"a_float32/0000000006", bytes(24))],
        "all of them together, too": [(b"a_float32", bytes(24 * 6))],
    }.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DISORDER)
def test_an_lmdb_with_values_in_disorder(what: str, store: Callable[[str], Path]) -> None:
    """Entries too many, too few and of other columns among those that lie one by one."""
    path = store(LARGE if "array" in what else ".lmdb")
    DISORDER[what](path)
    survives(path)
    try:
        open_store(path).close()
    except StoreError as error:
        message = str(error)
    else:
        assert not verify(path).ok
        assert not verify(path, quick=True).ok
        return
    assert "entries, its manifest says" in message
