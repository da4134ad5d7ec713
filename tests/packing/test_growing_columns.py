"""``append``, ``merge`` and ``select`` of stores with masks, boxes, several labels, texts and missing values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore.stores import open_store
from tests.internals import Reader, StoreError, UsageError
from tests.makers.datasets import make_folder

SUFFIXES = (".lmdb", ".h5", ".pth")
FIRST, SECOND, BOTH = ("cat", "dog"), ("dog", "bee"), ("cat", "dog", "bee")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = make_folder(tmp_path_factory.mktemp("images"), splits=(), per_class=6, suffixes=(".jpg",))
    return sorted(folder.rglob("*.jpg"))


def write(
    path: Path,
    images: list[Path],
    numbers: range,
    classes: tuple[str, ...],
    known: tuple[str, ...],
    *,
    backwards: bool = False,
    **options: Any,
) -> None:
    """Records whose label is one of ``classes``, in a store that knows the classes ``known``."""
    fields = {
        "image": "image",
        "label": packstore.Label(known, optional=True),
        "boxes": "boxes",
        "names": packstore.Labels(known, of="boxes"),
        "mask": packstore.Mask("uint8"),
        "caption": packstore.Text(optional=True),
        "vector": packstore.Array("float32", (3,)),
    }
    fields = dict(reversed(fields.items())) if backwards else fields
    with packstore.Writer(path, fields, split="train", **options) as writer:
        for i in numbers:
            count = i % 4
            with Image.open(images[i]) as image:
                size = image.height, image.width
            writer.add(
                key=f"k{i}",
                image=images[i],
                label=classes[i % 2] if i % 5 else None,
                boxes=np.arange(count * 4, dtype=np.float32).reshape(count, 4),
                names=[classes[(i + j) % 2] for j in range(count)],
                mask=np.full(size, i, np.uint8),
                caption=f"ü{i}" if i % 3 else None,
                vector=np.arange(3) * i,
            )


def rows(reader: Reader) -> list[tuple[object, ...]]:
    """Each record, classes by name."""
    label, names = (reader.manifest.column(name).classes or () for name in ("label", "names"))
    return [
        (
            reader.key(i),
            bytes(reader.read(i)),
            label[int(reader.value("label", i))] if reader.has_value("label", i) else None,
            int(reader.value("label", i)) if not reader.has_value("label", i) else None,
            bytes(reader.value("boxes", i)),
            [names[k] for k in np.frombuffer(bytes(reader.value("names", i)), "<i8")],
            bytes(reader.value("mask", i)),
            bytes(reader.value("caption", i)) if reader.has_value("caption", i) else None,
            reader.value("vector", i).tolist(),
        )
        for i in range(len(reader))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_other_numbers_of_classes(images: list[Path], tmp_path: Path, suffix: str) -> None:
    a, b, all_, merged = (tmp_path / f"{name}{suffix}" for name in ("a", "b", "all", "merged"))
    write(a, images, range(9), FIRST, FIRST)
    write(b, images, range(9, 18), SECOND, SECOND)
    packstore.merge([a, b], merged)
    with open_store(a) as first, open_store(b) as second, open_store(merged) as both:
        assert both.manifest.column("names").classes == both.manifest.classes == BOTH
        assert rows(both) == rows(first) + rows(second)
    assert packstore.verify(merged).ok
    report = packstore.append(a, b)
    assert (report.added, report.linked) == ({"train": 9}, 0)
    assert packstore.verify(a).ok
    with open_store(a) as one, open_store(merged) as other:
        assert rows(one) == rows(other)
        assert one.manifest.dataset_digest == other.manifest.dataset_digest
    write(all_, images, range(9), FIRST, BOTH)
    write(b.with_name(f"c{suffix}"), images, range(9, 18), SECOND, BOTH)
    report = packstore.append(all_, b.with_name(f"c{suffix}"))
    assert report.linked == 1
    assert report.manifest.dataset_digest == open_store(merged).manifest.dataset_digest
    again = packstore.append(all_, b, on_duplicate="skip")
    assert (again.added, again.duplicates) == ({}, 9)


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [None, 3000])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_columns_in_another_order(images: list[Path], tmp_path: Path, suffix: str, shard_size: int | None) -> None:
    """The order of the first stays, and the dataset is that of stores with one order."""
    a, b, c, merged = (tmp_path / f"{name}{suffix}" for name in ("a", "b", "c", "merged"))
    write(a, images, range(9), FIRST, FIRST, shard_size=shard_size)
    write(b, images, range(9, 18), SECOND, SECOND, backwards=True, shard_size=shard_size)
    write(c, images, range(9, 18), SECOND, SECOND, shard_size=shard_size)
    names = [[column.name for column in packstore.open(path).manifest.columns] for path in (a, b)]
    assert names[0] != names[1]
    assert set(names[0]) == set(names[1])
    packstore.merge([a, b], merged)
    expected = packstore.merge([a, c], tmp_path / f"expected{suffix}").manifest
    with open_store(a) as first, open_store(b) as second, open_store(merged) as both:
        assert [column.name for column in both.manifest.columns] == names[0]
        assert rows(both) == rows(first) + rows(second)
        assert both.manifest.dataset_digest == expected.dataset_digest
    assert packstore.verify(merged).ok
    assert packstore.append(a, b).manifest.dataset_digest == expected.dataset_digest
    assert packstore.verify(a).ok


@pytest.mark.slow
def test_a_store_that_is_made_otherwise(images: list[Path], tmp_path: Path) -> None:
    write(tmp_path / "a.h5", images, range(4), FIRST, FIRST)
    packstore.select(tmp_path / "a.h5", tmp_path / "b.h5", drop_columns=["caption"])
    packstore.select(tmp_path / "a.h5", tmp_path / "c.h5")
    with pytest.raises(StoreError, match="has a column 'caption', the source has none"):
        packstore.append(tmp_path / "c.h5", tmp_path / "b.h5", on_duplicate="unchecked")
    with pytest.raises(StoreError, match="have different columns"):
        packstore.merge([tmp_path / "c.h5", tmp_path / "b.h5"], tmp_path / "d.h5")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_select(images: list[Path], tmp_path: Path, suffix: str) -> None:
    store = tmp_path / f"a{suffix}"
    write(store, images, range(18), FIRST, FIRST)
    with open_store(store) as reader:
        expected = rows(reader)
    packstore.select(store, tmp_path / f"b{suffix}", where="label == dog or caption_valid == false")
    with open_store(tmp_path / f"b{suffix}") as reader:
        assert rows(reader) == [row for row in expected if row[2] == "dog" or row[7] is None]
    dropped = ["mask", "boxes", "names"]
    packstore.select(store, tmp_path / f"c{suffix}", drop_columns=dropped)
    with open_store(tmp_path / f"c{suffix}") as reader:
        names = [column.name for column in reader.manifest.columns]
        assert not {*dropped, "mask_shape"} & set(names)
    with pytest.raises(UsageError, match="column 'names' goes with 'boxes': leave both out, or none"):
        packstore.select(store, tmp_path / f"d{suffix}", drop_columns=["boxes"])
    with pytest.raises(UsageError, match="no column 'caption_valid' that can be left out; there are"):
        packstore.select(store, tmp_path / f"d{suffix}", drop_columns=["caption_valid"])
    packstore.select(store, tmp_path / f"e{suffix}", relabel={"cat": ""})
    with open_store(tmp_path / f"e{suffix}") as reader:
        assert [row[0] for row in rows(reader)] == [row[0] for row in expected if row[2] != "cat"]
    packstore.select(store, tmp_path / f"f{suffix}", per_class=2)
    with open_store(tmp_path / f"f{suffix}") as reader:
        assert sorted(str(row[2]) for row in rows(reader)) == ["None", "None", "cat", "cat", "dog", "dog"]
    for name in "bcef":
        assert packstore.verify(tmp_path / f"{name}{suffix}").ok
