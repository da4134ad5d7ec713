"""Columns of lists of images: packed, loaded, checked, shown, grown and exported."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packstore
from packstore import Manifest
from packstore.augment import ColorJitter, RandomHorizontalFlip, RandomResizedCrop
from packstore.images.decoders import get_decoder
from packstore.stores import StoreBuilder
from tests.conftest import Simulate
from tests.internals import (
    CHECKSUM,
    EXPORTS,
    KEY,
    Column,
    DecodeError,
    Origin,
    SampleError,
    StoreError,
    UsageError,
    frame,
)
from tests.makers.samples import jpeg
from tests.makers.torchvision import import_torchvision

COUNT = 7
PAGES = [[jpeg(10 * n + k, 8 + k, 9 + n) for k in range(n % 4)] for n in range(COUNT)]
FIELDS: dict[str, Any] = {"image": "image", "pages": "images", "rare": packstore.Images(optional=True)}
DECODED = [[get_decoder().decode(file) for file in files] for files in PAGES]


def write(path: Path, **options: Any) -> Path:
    with packstore.Writer(path, FIELDS, **options) as writer:
        for n in range(COUNT):
            writer.add(image=jpeg(n), pages=PAGES[n], rare=[jpeg(99)] if n % 3 == 0 else None)
    return path


@pytest.fixture(params=["lmdb", "h5", "pth"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / f"a.{request.param}")


def same(found: Any, expected: Any) -> bool:
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


def test_files_are_kept_and_given_as_a_list(store: Path) -> None:
    with packstore.open(store) as reader:
        assert [reader.item("pages", n) for n in range(COUNT)] == PAGES
        assert reader.item("rare", 1) is None
    items = packstore.PackedDataset(store, columns=("image", "pages", "rare"))
    for n in range(COUNT):
        _, pages, rare = items[n]
        assert all(isinstance(page, torch.Tensor) for page in pages)
        assert same([page.permute(1, 2, 0) for page in pages], DECODED[n])
        assert (rare is None) == (n % 3 != 0)
    assert [len(pages) for pages in items[:][1]] == [len(pages) for pages in PAGES]
    assert same(packstore.PackedDataset(store, columns=("pages",), output="numpy")[3], DECODED[3])
    assert packstore.PackedDataset(store, columns=("pages",), output="bytes")[3] == PAGES[3]
    assert [page.size for page in packstore.PackedDataset(store, columns=("pages",), output="pil")[3]] == [
        image.shape[1::-1] for image in DECODED[3]
    ]


@pytest.mark.parametrize("output", ["tensor", "numpy"])
@pytest.mark.parametrize("workers", [1, 3])
def test_batches_have_a_list_for_each_record(store: Path, output: Any, workers: int) -> None:
    items = packstore.PackedDataset(store, columns=("image", "pages", "rare"))
    loader = packstore.PackedLoader(items, 3, output=output, workers=workers, collate={"rare": "optional"})
    rows = [pair for _, pages, rare in loader for pair in zip(pages, rare, strict=True)]
    for (pages, rare), expected, n in zip(rows, DECODED, range(COUNT), strict=True):
        planes = [np.asarray(page).transpose(1, 2, 0) for page in pages]
        assert same(planes, expected)
        assert (rare is None) == (n % 3 != 0)


@pytest.mark.parametrize("order", ["late", "ahead"])
def test_batches_on_a_device(simulate: Simulate, order: str, tmp_path: Path) -> None:
    store = write(tmp_path / "a.lmdb")
    with simulate(order):
        items = packstore.PackedDataset(store, columns=("image", "pages"), device="cuda:0")
        pages = [row for _, pages in packstore.PackedLoader(items, 3) for row in pages]
        assert all(page.device.type == "cuda" for row in pages for page in row)
        assert all(same([page.cpu().permute(1, 2, 0) for page in row], DECODED[n]) for n, row in enumerate(pages))


def test_worker_processes_and_resumed_loaders_give_the_same(store: Path) -> None:
    items = packstore.PackedDataset(store, columns=("pages", "image"))
    again = pickle.loads(pickle.dumps(packstore.PackedLoader(items, 2, shuffle=True, seed=4)))
    batches = zip(packstore.PackedLoader(items, 2, shuffle=True, seed=4), again, strict=True)
    for (ours, _), (theirs, _) in batches:
        assert all(map(same, ours, theirs))


@pytest.mark.parametrize("kind", ["parquet", "tfds"])
def test_other_readers_get_lists(kind: str, tmp_path: Path) -> None:
    """Without packstore.json, as any program would write them."""
    packstore.export(write(tmp_path / "a.lmdb"), tmp_path / "out", to=kind, bare=True)
    packstore.convert(tmp_path / "out", tmp_path / "b.lmdb")
    with packstore.open(tmp_path / "b.lmdb") as reader:
        assert [reader.item("pages", n) for n in range(COUNT)] == PAGES


def test_operations_that_move_pixels_are_refused_or_leave_lists_as_they_are(store: Path) -> None:
    items = packstore.PackedDataset(store, columns=("image", "pages"))
    with pytest.raises(UsageError, match=r"lists of images in pages would stay.*collate=\{'pages': 'list'\}"):
        packstore.PackedLoader(items, 3, augment=[RandomHorizontalFlip()])
    for options in ({"augment": [RandomResizedCrop(4)], "collate": {"pages": "list"}}, {"augment": [ColorJitter(0.5)]}):
        rows = [row for _, pages in packstore.PackedLoader(items, 3, **options) for row in pages]
        assert all(same([page.permute(1, 2, 0) for page in row], DECODED[n]) for n, row in enumerate(rows))
    with pytest.raises(UsageError, match="is not of many rows"):
        packstore.PackedLoader(items, 3, collate={"pages": "padded"})


def test_a_list_is_inferred_from_files(tmp_path: Path) -> None:
    (tmp_path / "b.jpg").write_bytes(PAGES[1][0])
    samples = [{"image": jpeg(n), "pages": [tmp_path / "b.jpg", jpeg(n)] if n else []} for n in range(3)]
    packstore.convert(samples, tmp_path / "a.lmdb")
    with packstore.open(tmp_path / "a.lmdb") as reader:
        assert reader.manifest.column("pages").type == "images"
        assert reader.item("pages", 2) == [PAGES[1][0], jpeg(2)]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([b"no image"], "image 0: "),
        ([jpeg(1), jpeg(2)[:40]], "image 1: "),
        ([np.zeros((4, 5, 3), np.uint8)], "found list; expected a list of image files"),
        (jpeg(1), "found bytes; expected a list of image files"),
        ([Path("gone.jpg")], "image 0: gone.jpg cannot be read"),
    ],
)
def test_what_is_no_list_of_image_files_is_refused(value: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=said), packstore.Writer(tmp_path / "a.lmdb", FIELDS) as writer:
        writer.add(image=jpeg(1), pages=value)


@pytest.mark.slow
def test_each_image_is_checked(store: Path, tmp_path: Path) -> None:
    assert packstore.verify(store, decode=True).problems == ()
    assert not [
        each for each in packstore.audit(store, pixels=True).findings if each.kind in ("undecodable", "truncated")
    ]
    broken = PAGES[3][1][:-40] + bytes(38) + PAGES[3][1][-2:]
    path = hostile(tmp_path / "b.lmdb", [frame([jpeg(1)]), frame([jpeg(1), b"GIF89a" + bytes(40), broken])])
    (problem,) = packstore.verify(path, decode=True).problems
    assert (problem.record, problem.what[:36]) == (1, "image 1 of 'pages' does not decode: ")
    found = [(each.kind, each.records, each.what) for each in packstore.audit(path, pixels=True).findings]
    assert "image 1 of 'pages'" in str(found)


def hostile(path: Path, values: list[bytes]) -> Path:
    """A store whose checksums and digests fit values of any kind."""
    columns = [Column(name, "ragged", "uint8", type=type) for name, type in (("image", "image"), ("pages", "images"))]
    with StoreBuilder(path, Manifest("lmdb", "original", 0, (*columns, KEY, CHECKSUM), Origin("made", "x"))) as builder:
        keys = [str(n) for n in range(len(values))]
        builder.append([jpeg(n) for n in range(len(values))], {"pages": values, "key": keys}, "")
        builder.commit()
    return path


def test_a_damaged_frame_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    path = hostile(tmp_path / "a.lmdb", [bytes(8), b"\xff" * 20])
    items = packstore.PackedDataset(path, columns=("image", "pages"))
    assert items[0][1] == []
    with pytest.raises(StoreError, match=r"record 1 \(1\).*'pages' is no list of files"):
        items[1]
    with pytest.raises(StoreError, match=r"record 1 \(1\).*'pages' is no list of files"):
        list(packstore.PackedLoader(items, 2))
    (problem,) = packstore.verify(path, decode=True).problems
    assert problem.record == 1
    assert "no list of files" in problem.what


@pytest.mark.parametrize("kind", [kind for kind in EXPORTS.built_in if kind != "masks"])
def test_every_export_gives_lists_back(kind: str, tmp_path: Path) -> None:
    store = write(tmp_path / "a.lmdb")
    with packstore.open(store) as reader:
        digest = reader.manifest.dataset_digest
    report = packstore.export(store, tmp_path / "out", to=kind)
    assert packstore.convert(tmp_path / "out", tmp_path / "again.h5").manifest.dataset_digest == digest
    assert packstore.verify(store, against=tmp_path / "out").problems == ()
    assert ("pages" in " ".join(report.losses)) is (kind not in ("parquet", "tfds"))


def test_a_parquet_file_of_lists_of_images_alone(tmp_path: Path) -> None:
    """The first image of each list is the record's, the others are its list; with their paths."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [[{"bytes": data, "path": f"{n}.jpg"} for n, data in enumerate(files)] for files in PAGES if files]
    table = pa.table({"images": pa.array(rows, pa.list_(file)), "texts": ["a"] * len(rows)})
    parquet.write_table(table, tmp_path / "a.parquet")
    packstore.convert(tmp_path / "a.parquet", tmp_path / "a.lmdb")
    with packstore.open(tmp_path / "a.lmdb") as reader:
        kept = [files for files in PAGES if files]
        assert [bytes(reader.read(n)) for n in range(len(reader))] == [files[0] for files in kept]
        assert [reader.item("further_images", n) for n in range(len(reader))] == [files[1:] for files in kept]


@pytest.mark.parametrize("wrapped", [False, True])
def test_lists_beside_an_image_keep_their_name(wrapped: bool, tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pages: Any = [None if n == 1 else [{"bytes": d, "path": None} if wrapped else d for d in files]
                  for n, files in enumerate(PAGES)]  # fmt: skip
    table = {
        "image": pa.array([{"bytes": jpeg(n), "path": None} for n in range(COUNT)], file),
        "pages": pa.array(pages, pa.list_(file if wrapped else pa.binary())),
    }
    parquet.write_table(pa.table(table), tmp_path / "a.parquet")
    manifest = packstore.convert(tmp_path / "a.parquet", tmp_path / "a.lmdb").manifest
    with packstore.open(tmp_path / "a.lmdb") as reader:
        found = [reader.item("pages", n) for n in range(COUNT)]
    assert found == [None if n == 1 else files for n, files in enumerate(PAGES)]
    assert "pages_paths" not in [column.name for column in manifest.columns]


@pytest.mark.slow
def test_stores_grow_and_are_cut(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.lmdb", split="train"), write(tmp_path / "b.h5", split="val")
    packstore.merge([one, two], tmp_path / "c.lmdb")
    packstore.select(tmp_path / "c.lmdb", tmp_path / "d.pth", where="split == val")
    packstore.append(tmp_path / "d.pth", one)
    for name, lists in (("c.lmdb", PAGES * 2), ("d.pth", PAGES * 2)):
        with packstore.open(tmp_path / name) as reader:
            assert [reader.item("pages", n) for n in range(len(reader))] == lists


def test_a_linked_store_packs_lists(tmp_path: Path) -> None:
    """Only the main images stay where they are."""
    (tmp_path / "set").mkdir()
    turns = [{"from": "human", "value": "<image><image>"}, {"from": "gpt", "value": "Two."}]
    entries = [{"image": [f"{n}.jpg", f"{n + 1}.jpg"], "conversations": turns} for n in range(3)]
    (tmp_path / "set" / "llava.json").write_text(json.dumps(entries))
    for n in range(4):
        (tmp_path / "set" / f"{n}.jpg").write_bytes(jpeg(n))
    packstore.convert(tmp_path / "set", tmp_path / "a.lmdb", link=True)
    with packstore.open(tmp_path / "a.lmdb") as reader:
        assert reader.manifest.is_linked
        assert [bytes(reader.read(n)) for n in range(3)] == [jpeg(n) for n in range(3)]
        assert [reader.item("further_images", n) for n in range(3)] == [[jpeg(n + 1)] for n in range(3)]


def test_images_that_change_their_size_are_refused_beside_lists(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not 'pages', 'rare', which belong"):
        packstore.convert(store, tmp_path / "b.lmdb", encoding="jpeg", size=4)


def test_torchvision_knows_them_as_images(store: Path) -> None:
    tv_tensors = import_torchvision().tv_tensors
    _, target = packstore.PackedDataset(store, columns=("image", "pages", "rare"), output="tv_tensors")[3]
    assert all(isinstance(page, tv_tensors.Image) for page in (*target["pages"], *target["rare"]))


def test_sheets_and_pages_show_them(tmp_path: Path) -> None:
    from tests.internals import BrowserImages, describe_record

    store = write(tmp_path / "a.lmdb")
    with packstore.open(store) as reader:
        images = BrowserImages(reader)
        about = describe_record(reader, images, 3)
        pages = next(each for each in about["columns"] if each["name"] == "pages")
        assert pages["value"] == [len(file) for file in PAGES[3]]
        assert images.get_full_image(3, reader.manifest.column("pages"), 2).data == PAGES[3][2]
        with pytest.raises(DecodeError, match="has no image 3 in 'pages'"):
            images.get_full_image(3, reader.manifest.column("pages"), 3)
