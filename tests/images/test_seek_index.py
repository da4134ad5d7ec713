"""Stores with a seek index: the same datasets, read from checkpoints on, through every command that writes stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.cli import cli
from packstore.images.decoders import DECODERS, UNAVAILABLE, available_decoders
from packstore.stores import open_store
from packstore.training.augment import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from tests.internals import CorruptRecordError, EngineError, Manifest, UsageError, make_indexes
from tests.makers.datasets import pixels
from tests.makers.seek_indexes import outside, repaired, with_changes
from tests.makers.stores import content

pytestmark = pytest.mark.slow

SUFFIXES = (".lmdb", ".h5", ".pth")
PROGRESSIVE, OTHER = 5, 11
COUNT = 20
RANDOM = (RandomResizedCrop(48), RandomHorizontalFlip())
LISTS = {
    "small crops": (RandomResizedCrop(24, scale=(0.01, 0.2)),),
    "evaluation": (Resize(60), CenterCrop(48)),
    "crops": (RandomCrop(60), RandomHorizontalFlip()),
    "whole": (Resize((40, 50)),),
}


@pytest.fixture(scope="module")
def jpegs_and_png(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files, one of them progressive, and a PNG."""
    root = tmp_path_factory.mktemp("images") / "photos"
    for i in range(COUNT):
        place = root / f"class{i * 2 // COUNT}"
        place.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(pixels(150 + i, 260 - 3 * i, i))
        name = f"{i:02}.png" if i == OTHER else f"{i:02}.jpg"
        image.save(place / name, **({} if i == OTHER else {"quality": 92, "progressive": i == PROGRESSIVE}))
    return root


def pack(folder: Path, store: Path, **options: object) -> Manifest:
    return packstore.convert(folder, store, encoding="original", **options).manifest  # type: ignore[arg-type]


def indexes_of(store: Path) -> list[bytes]:
    with open_store(store) as reader:
        return [bytes(reader.value("seek_index", i)) for i in range(len(reader))]


def assert_indexed(store: Path, records: int = COUNT) -> None:
    """Each record has its file's index, and the store is whole."""
    with open_store(store) as reader:
        files = [bytes(reader.read(i)) for i in range(len(reader))]
        columns = reader.manifest.columns
    assert len(files) == records
    assert indexes_of(store) == make_indexes(files, columns)
    assert {index[0] for index in indexes_of(store) if index} == {2 if columns[0].mode == "L" else 1}
    assert any(indexes_of(store))
    report = packstore.verify(store, decode=True)
    assert report.ok, report.problems
    assert "every seek index computed again and compared" in report.checks


def epoch(
    store: Path, operations: Sequence[Any] = RANDOM, decoder: str = "auto", mode: str | None = None, **options: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    dataset = PackedDataset(store, decoder=decoder, mode=mode)
    loader = PackedLoader(dataset, batch_size=6, augment=[*operations], seed=3, shuffle=True, **options)
    images = torch.cat([batch[0].clone() for batch in loader])
    return images, loader.stats()


@pytest.mark.parametrize("shard_size", [None, "100kB"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_store_with_it_is_the_same_dataset(
    jpegs_and_png: Path, tmp_path: Path, suffix: str, shard_size: str | None
) -> None:
    plain, indexed = tmp_path / f"plain{suffix}", tmp_path / f"indexed{suffix}"
    without = pack(jpegs_and_png, plain, shard_size=shard_size, index=False)
    manifest = pack(jpegs_and_png, indexed, shard_size=shard_size)
    assert (manifest.dataset_digest, manifest.records_digest) == (without.dataset_digest, without.records_digest)
    assert manifest.shards is None or len(manifest.shards) > 2
    assert_indexed(indexed)
    assert [i for i, index in enumerate(indexes_of(indexed)) if not index] == [PROGRESSIVE, OTHER]
    (expected, _), (found, stats) = epoch(plain), epoch(indexed)
    assert torch.equal(found, expected)
    assert stats["unindexed"] == 0


@pytest.fixture(scope="module")
def stores(jpegs_and_png: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A store by its name, which says whether it has an index."""
    root = tmp_path_factory.mktemp("stores")

    def get(name: str) -> Path:
        if not (root / name).exists():
            pack(jpegs_and_png, root / name, index=name.startswith("indexed"))
        return root / name

    return get


Need = Callable[[str, bool], None]
Stores = Callable[[str], Path]


@pytest.mark.parametrize("operations", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_batches_are_those_without_it(stores: Stores, suffix: str, operations: Sequence[Any]) -> None:
    expected, _ = epoch(stores("plain.lmdb"), operations)
    found, stats = epoch(stores(f"indexed{suffix}"), operations, workers=3)
    assert torch.equal(found, expected)
    assert stats["unindexed"] == 0


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_gives_the_same_batches(stores: Stores, decoder: str, need: Need) -> None:
    need(decoder, not available_decoders()[decoder].startswith(UNAVAILABLE))
    expected, _ = epoch(stores("plain.lmdb"))
    assert torch.equal(epoch(stores("indexed.lmdb"), decoder=decoder)[0], expected)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_what_a_crop_needs_is_decoded(stores: Stores, tmp_path: Path, suffix: str) -> None:
    """Coded bytes beside it may be anything, which without an index is damage."""
    side, sizes = 24, []

    def damage(file: bytes, index: bytes) -> tuple[bytes, bytes]:
        with Image.open(BytesIO(file)) as image:
            box = (round((image.height - side) / 2), round((image.width - side) / 2), side, side)
        changed = outside(index, file, box) if index else file
        sizes.append(sum(a != b for a, b in zip(changed, file, strict=True)))
        return changed, index

    damaged, without = tmp_path / f"damaged{suffix}", tmp_path / f"without{suffix}"
    with_changes(stores(f"indexed{suffix}"), damaged, damage)
    assert sum(size > 2000 for size in sizes) == COUNT - 2
    expected, _ = epoch(stores("plain.lmdb"), (CenterCrop(side),))
    found, stats = epoch(damaged, (CenterCrop(side),))
    assert torch.equal(found, expected)
    assert stats["unindexed"] == 0
    with_changes(damaged, without, lambda file, _: (file, b""))
    others, _ = epoch(without, (CenterCrop(side),), on_error="skip")
    assert len(others) < COUNT or not torch.equal(others, expected)


def test_without_the_engine(stores: Stores, jpegs_and_png: Path, tmp_path: Path, no_engine: Callable[[], None]) -> None:
    """No store gets an index, and one that is asked for is an error before anything is done."""
    indexed = stores("indexed.lmdb")
    no_engine()
    with pytest.raises(EngineError, match="packstore's engine cannot be used here: it is gone"):
        pack(jpegs_and_png, tmp_path / "a.lmdb", index=True)
    assert list(tmp_path.iterdir()) == []
    assert not pack(jpegs_and_png, tmp_path / "a.lmdb").has_column("seek_index")
    with packstore.Writer(tmp_path / "w.lmdb") as writer:
        writer.add(image=next(jpegs_and_png.rglob("*.jpg")))
    assert not packstore.open(tmp_path / "w.lmdb").manifest.has_column("seek_index")
    report = packstore.verify(indexed, decode=True)
    assert report.ok
    assert any(
        "seek indexes not compared, because the engine does not load: it is gone" in check for check in report.checks
    )


def test_what_has_it_by_default(jpegs_and_png: Path, tmp_path: Path) -> None:
    """Image files, wherever they come from; neither pixels nor files that were made smaller."""
    arrays = [{"image": pixels(30, 40, i)} for i in range(3)]
    encodings: dict[str, dict[str, Any]] = {
        "jpeg.lmdb": {"encoding": "jpeg"},
        "uint8.h5": {"encoding": "uint8"},
        "half.pth": {"size": 32},
    }
    for name, options in encodings.items():
        manifest = packstore.convert(jpegs_and_png, tmp_path / name, **options).manifest
        assert not manifest.has_column("seek_index"), name
    packstore.convert(arrays, tmp_path / "arrays.h5", encoding="uint8")
    for number, name in enumerate(("uint8.h5", "arrays.h5")):
        manifest = packstore.convert(tmp_path / name, tmp_path / f"{number}.lmdb", encoding="original").manifest
        assert manifest.encoding == "uint8"
        assert not manifest.has_column("seek_index"), name
    assert pack(jpegs_and_png, tmp_path / "files.pth").has_column("seek_index")
    with pytest.raises(UsageError, match="for the encoding original, not jpeg"):
        packstore.convert(jpegs_and_png, tmp_path / "other.lmdb", encoding="jpeg", index=True)
    for option, there in (("--no-index", False), ("--quiet", True), ("--index", True)):
        store = tmp_path / f"cli{option}.lmdb"
        done = CliRunner().invoke(cli, ["convert", str(jpegs_and_png), str(store), option])
        assert done.exit_code == 0, done.output
        assert "seek_index" not in done.output
        assert packstore.open(store).manifest.has_column("seek_index") == there
    said = CliRunner().invoke(cli, ["info", str(tmp_path / "files.pth")]).output
    assert "uint8, where crops of each JPEG file begin to decode" in said
    for asked in (None, True, False):
        with packstore.Writer(tmp_path / f"{asked}.lmdb", index=asked) as writer:
            writer.add(image=next(jpegs_and_png.rglob("*.jpg")))
        assert packstore.open(tmp_path / f"{asked}.lmdb").manifest.has_column("seek_index") == (asked is not False)


@pytest.mark.parametrize("operations", LISTS.values(), ids=LISTS)
def test_gray_is_that_of_stores_without_it(stores: Stores, tmp_path: Path, operations: Sequence[Any]) -> None:
    """By an index with lengths and by one without, and RGB by an index with lengths."""
    gray, linked = tmp_path / "gray.lmdb", tmp_path / "linked.lmdb"
    packstore.convert(stores("indexed.lmdb"), gray, mode="L")
    assert_indexed(gray)
    packstore.convert(stores("indexed.lmdb"), linked, mode="L", link=True)
    assert_indexed(linked)
    for mode, others in (("L", ("plain.lmdb", "indexed.lmdb")), ("RGB", ("plain.lmdb",))):
        found, stats = epoch(gray, operations, mode=mode)
        assert stats["unindexed"] == 0
        for other in others:
            assert torch.equal(epoch(stores(other), operations, mode=mode)[0], found)


def test_an_index_without_lengths_is_right_in_a_gray_store(jpegs_and_png: Path, tmp_path: Path) -> None:
    """Stores of earlier versions have such indexes."""
    gray, former = tmp_path / "gray.lmdb", tmp_path / "former.lmdb"
    pack(jpegs_and_png, gray, mode="L")
    with_changes(gray, former, lambda file, _: (file, make_indexes([file], ())[0]))
    assert {index[0] for index in indexes_of(former) if index} == {1}
    assert packstore.verify(former, decode=True).ok


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_wrong_index_is_counted_and_not_used(jpegs_and_png: Path, tmp_path: Path, suffix: str) -> None:
    indexed, wrong = tmp_path / f"indexed{suffix}", tmp_path / f"wrong{suffix}"
    pack(jpegs_and_png, indexed, index=True)

    def spoil(file: bytes, index: bytes) -> tuple[bytes, bytes]:
        return file, index[:-1] + bytes([index[-1] ^ 1]) if index else b"none of it"

    with_changes(indexed, wrong, spoil)
    (expected, _), (found, stats) = epoch(indexed), epoch(wrong)
    assert torch.equal(found, expected)
    assert stats["unindexed"] == COUNT - 2  # the engine does not decode the others
    assert packstore.verify(wrong).ok  # they are what was packed
    problems = packstore.verify(wrong, decode=True).problems
    assert [problem.record for problem in problems] == [*range(COUNT)]
    assert "its seek index does not fit its file" in problems[0].what


def test_a_forged_index_is_found_by_verify(jpegs_and_png: Path, tmp_path: Path) -> None:
    """Its checksum is right, and a shift of all predictions fits itself: only making it again shows it."""
    indexed, forged = tmp_path / "indexed.lmdb", tmp_path / "forged.lmdb"
    pack(jpegs_and_png, indexed, index=True)

    def shift(file: bytes, index: bytes) -> tuple[bytes, bytes]:
        return file, index and repaired(index[:10] + bytes([index[10] ^ 1]) + index[11:], file)

    with_changes(indexed, forged, shift)
    epoch(forged)
    report = packstore.verify(forged, decode=True)
    assert {problem.record for problem in report.problems} == {*range(COUNT)} - {PROGRESSIVE, OTHER}


@pytest.mark.parametrize(
    ("suffix", "mode"), [*((suffix, None) for suffix in SUFFIXES), pytest.param(".h5", "L", id="gray")]
)
def test_every_command_that_writes_stores_makes_it(
    jpegs_and_png: Path, tmp_path: Path, suffix: str, mode: str | None
) -> None:
    first, second, whole = (tmp_path / f"{name}{suffix}" for name in ("first", "second", "whole"))
    pack(jpegs_and_png, whole, index=True, mode=mode)
    halves = ((first, "label == class0"), (second, "label == class1"))
    for half, where in halves:
        packstore.select(whole, half, where=where)
        assert_indexed(half, COUNT // 2)
    merged = tmp_path / f"merged{suffix}"
    packstore.merge([first, second], merged)
    assert_indexed(merged)
    packstore.append(first, second)
    assert_indexed(first)
    packed, more = tmp_path / f"packed{suffix}", tmp_path / "more" / "class0"
    pack(jpegs_and_png, packed, index=True, shard_size="100kB")
    more.mkdir(parents=True)
    Image.fromarray(pixels(200, 300, 77)).save(more / "new.jpg", quality=92)
    packstore.append(packed, more.parent)
    assert_indexed(packed, COUNT + 1)
    assert indexes_of(packed)[-1]
    copied = tmp_path / "copied.lmdb"
    digest = packstore.open(whole).manifest.dataset_digest
    assert packstore.convert(whole, copied, index=True).manifest.dataset_digest == digest
    assert_indexed(copied)
    assert not packstore.convert(whole, tmp_path / "without.h5", index=False).manifest.has_column("seek_index")
    packstore.select(whole, tmp_path / f"less{suffix}", drop_columns=["seek_index"])
    assert not packstore.open(tmp_path / f"less{suffix}").manifest.has_column("seek_index")


@pytest.mark.parametrize("order", [1, -1])
def test_stores_with_and_without_it_together(jpegs_and_png: Path, tmp_path: Path, order: int) -> None:
    """What is made of them has one if all have."""
    first, second, whole = (tmp_path / f"{name}.lmdb" for name in ("first", "second", "whole"))
    pack(jpegs_and_png, whole)
    packstore.select(whole, first, where="label == class0")
    packstore.select(whole, second, where="label == class1", drop_columns=["seek_index"])
    stores = [first, second][::order]
    merged = packstore.merge(stores, tmp_path / "merged.lmdb").manifest
    assert not merged.has_column("seek_index")
    assert packstore.verify(tmp_path / "merged.lmdb", decode=True).ok
    crops = [RandomResizedCrop(24)]
    images = [torch.cat([batch[0].clone() for batch in PackedLoader(packstore.concat(stores), 6, augment=crops)])]
    dataset = PackedDataset(tmp_path / "merged.lmdb")
    images.append(torch.cat([batch[0].clone() for batch in PackedLoader(dataset, 6, augment=crops)]))
    assert torch.equal(*images)
    report = packstore.append(first, second)
    assert report.manifest.has_column("seek_index")
    assert_indexed(first)


def test_damage_of_the_column_is_found_and_mended(jpegs_and_png: Path, tmp_path: Path) -> None:
    store, mended, saved = tmp_path / "s.h5", tmp_path / "mended.h5", tmp_path / "saved.h5"
    pack(jpegs_and_png, store, index=True)
    whole, index = store.read_bytes(), indexes_of(store)[2]
    at = whole.index(index) + 25
    store.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    problems = packstore.verify(store).problems
    assert len(problems) == 1
    assert "'seek_index' is damaged" in problems[0].what
    _, stats = epoch(store)
    assert stats["unindexed"] == 1
    report = packstore.repair(store, jpegs_and_png, mended)
    assert report.identical
    assert mended.read_bytes() == whole
    packstore.salvage(store, saved)
    assert_indexed(saved)


def test_exports_do_not_have_it(jpegs_and_png: Path, tmp_path: Path) -> None:
    indexed, exported = tmp_path / "s.lmdb", tmp_path / "out.tar"
    digest = pack(jpegs_and_png, indexed, index=True).dataset_digest
    packstore.export(indexed, exported)
    assert pack(exported, tmp_path / "again.lmdb").dataset_digest == digest
    assert packstore.convert(exported, tmp_path / "once.lmdb", index=True).manifest.dataset_digest == digest


@pytest.mark.parametrize("shard_size", [None, "100kB"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_added_later_a_store_has_the_bytes_of_one_packed_with_it(
    jpegs_and_png: Path, tmp_path: Path, suffix: str, shard_size: str | None
) -> None:
    store, packed = tmp_path / f"store{suffix}", tmp_path / f"packed{suffix}"
    pack(jpegs_and_png, store, shard_size=shard_size, index=False)
    manifest = pack(jpegs_and_png, packed, shard_size=shard_size, index=True)
    report = packstore.add_index(store)
    assert (report.written, report.manifest) == (True, manifest)
    assert content(store) == content(packed)
    assert not packstore.add_index(store).written
    assert content(store) == content(packed)


def test_added_later_on_the_command_line(jpegs_and_png: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.lmdb"
    pack(jpegs_and_png, store, index=False)
    for said in (f"{COUNT} records indexed", "has a seek index already"):
        done = CliRunner().invoke(cli, ["index", str(store)])
        assert done.exit_code == 0, done.output
        assert said in done.output
    assert_indexed(store)
    packstore.convert(jpegs_and_png, tmp_path / "other.lmdb", encoding="jpeg")
    with pytest.raises(UsageError, match="has the encoding jpeg; a seek index is for original"):
        packstore.add_index(tmp_path / "other.lmdb")


def test_a_damaged_record_is_not_indexed(jpegs_and_png: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.h5"
    pack(jpegs_and_png, store, index=False)
    with open_store(store) as reader:
        image = bytes(reader.read(3))
    whole = store.read_bytes()
    at = whole.index(image) + len(image) // 2
    damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    store.write_bytes(damaged)
    with pytest.raises(CorruptRecordError, match="record 3"):
        packstore.add_index(store)
    assert store.read_bytes() == damaged
    assert [path.name for path in tmp_path.iterdir()] == ["s.h5"]
