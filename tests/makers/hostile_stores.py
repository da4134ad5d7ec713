"""What the tests of stores from strangers share: another manifest in a store, and all that one can do with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import torch

from packstore import PackedDataset, convert, verify
from packstore.stores import is_store, open_store
from tests.internals import PackstoreError, StoreError, read_manifest, store_rows
from tests.makers.fuzz_targets import use


def plain_manifest(path: Path) -> dict[str, Any]:
    return json.loads(read_manifest(path).to_json())  # type: ignore[no-any-return]


def put_manifest(path: Path, text: bytes) -> None:
    """Exchanges the manifest of a store, by the format's own library."""
    if (path / "manifest.json").exists():
        (path / "manifest.json").write_bytes(text)
    elif path.suffix == ".lmdb":
        with lmdb.open(str(path), lock=False, map_size=1 << 24) as env, env.begin(write=True) as txn:
            txn.put(b"manifest", text)
    elif path.suffix == ".h5":
        with h5py.File(path, "r+", libver=("v108", "v108")) as file:
            file.attrs["manifest"] = np.bytes_(text)
    else:
        content = torch.load(path, weights_only=True)
        content["manifest"] = text.decode("utf-8", "replace")
        torch.save(content, path)


def survives(path: Path) -> bool:
    """Does everything that one can do with a store; whether it opened. Only :class:`PackstoreError` is allowed."""
    try:
        reader = open_store(path)
    except StoreError:
        is_store(path)
        return False
    with reader:
        use(reader)
        for act in (lambda: store_rows(reader).text, lambda: json.dumps(store_rows(reader).values)):
            try:
                act()
            except PackstoreError:
                continue
    for act in (
        lambda: verify(path, decode=True),
        lambda: convert(path, path.with_name("converted.h5"), overwrite=True),
        lambda: convert(path, path.with_name("skipped.h5"), overwrite=True, on_error="skip", encoding="uint8"),
        lambda: list(map(PackedDataset(path, split="train").__getitem__, range(3))),
        lambda: PackedDataset(path, split="train").targets,
    ):
        try:
            act()
        except (PackstoreError, IndexError):
            continue
    return True
