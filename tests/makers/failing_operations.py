"""Operations that write a store or an export, for :mod:`tests.makers.failing_calls`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import packstore
from tests.internals import EXPORTS as EXPORT_KINDS
from tests.makers.datasets import make_folder
from tests.makers.stores import damage

SUFFIXES = ("lmdb", "h5", "pth")
STORES = [
    f"{what} {suffix}{shards}"
    for what in ("convert", "append", "merge", "select", "repair", "salvage", "add_index")
    for suffix in SUFFIXES
    for shards in ("", " shards")
]
EXPORTS = [f"export {kind}" for kind in EXPORT_KINDS.built_in]


Work = Callable[[], object]


def prepare(name: str, folder: Path) -> tuple[Work, Work, Path]:
    """Makes what an operation reads. Returns a function that makes what it changes, one that runs it, and the path that
    it writes."""
    what, form, *more = name.split()
    photos = make_folder(folder / "photos", per_class=2)
    source = folder / ("a.lmdb" if what == "export" else f"a.{form}")
    out = folder / "out" / f"o{source.suffix}"
    shard_size = 4000 if more else None
    options = {"encoding": "original", "shard_size": shard_size, "index": what != "add_index"}
    packstore.convert(photos, source, split="train", **options)
    other = source.with_name(f"b{source.suffix}")
    packstore.convert(photos, other, split="val", **options)
    bad = source.with_name(f"bad{source.suffix}")
    copy(source, bad)
    damage(bad, [1], [])
    if what == "export":
        to = folder / "out" / "o"
        return nothing, lambda: packstore.export(source, to, to=form), to
    work: dict[str, Work] = {
        "convert": lambda: packstore.convert(photos, out, **options),
        "merge": lambda: packstore.merge([source, other], out),
        "select": lambda: packstore.select(source, out, sample=4),
        "repair": lambda: packstore.repair(bad, photos, out),
        "salvage": lambda: packstore.salvage(bad, out),
        "append": lambda: packstore.append(out, photos, split="val"),
        "add_index": lambda: packstore.add_index(out),
    }
    return (lambda: copy(source, out)) if what in ("append", "add_index") else nothing, work[what], out


def copy(store: Path, new: Path) -> None:
    shutil.copytree(store, new) if store.is_dir() else shutil.copy(store, new)


def nothing() -> None:
    """Prepares nothing."""
