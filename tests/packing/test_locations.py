"""A path or URL is interpreted once, by the public function that takes it: a second time might give another answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import packstore
from tests.internals import urls
from tests.makers.datasets import make_folder

LOCATION = urls.location
CALLS: list[tuple[Callable[..., object], str]] = [
    (lambda source, store: packstore.convert(source, store, shard_size="1kB"), "source a.lmdb"),
    (packstore.convert, "a.lmdb b.lmdb"),
    (lambda store, source: packstore.append(store, source, key_prefix="again/"), "a.lmdb source"),
    (lambda store, source: packstore.append(store, source, on_duplicate="skip"), "b.lmdb a.lmdb"),
    (lambda *each: packstore.merge(each[:2], each[2], on_duplicate="skip"), "a.lmdb b.lmdb c.lmdb"),
    (lambda store, out: packstore.select(store, out, sample=3), "a.lmdb d.lmdb"),
    (packstore.export, "a.lmdb a.zip"),
    (lambda store, source: packstore.verify(store, against=source), "a.lmdb source"),
    (lambda store, source: packstore.verify(store, against=source), "a.lmdb b.lmdb"),
    (packstore.audit, "a.lmdb"),
    (packstore.add_index, "a.lmdb"),
    (packstore.open, "a.lmdb"),
    (lambda store: packstore.PackedDataset(store, "train"), "a.lmdb"),
    (lambda *each: packstore.concat(each, "train"), "a.lmdb b.lmdb"),
]


@pytest.fixture
def located(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that :func:`packstore.core.urls.location` is called with from now on."""
    texts: list[str] = []

    def location(path: str | os.PathLike[str]) -> Path:
        texts.append(os.fspath(path))
        return LOCATION(path)

    for name in packstore.__all__:  # loads the modules, in each of which the function has a name
        getattr(packstore, name)
    for module in [module for name, module in sys.modules.items() if name.startswith("packstore.")]:
        if vars(module).get("location") is LOCATION:
            monkeypatch.setattr(module, "location", location)
    return texts


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("remote", [False, True], ids=["local", "url"])
def test_a_place_is_located_once(remote: bool, tmp_path: Path, located: list[str]) -> None:
    make_folder(tmp_path / "source", per_class=1)
    (tmp_path / "at").mkdir()
    base = f"file://{tmp_path}/at" if remote else f"{tmp_path}/at"
    for call, names in CALLS:
        places = [f"{tmp_path}/source" if name == "source" else f"{base}/{name}" for name in names.split()]
        located.clear()
        call(*places)
        assert sorted(located) == sorted(places), names
