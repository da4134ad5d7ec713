"""Stores of crop-seekable JPEG: converted, verified and loaded like any other, with the same pixels."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import torch
import xxhash
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.cli import cli
from packstore.core.errors import UsageError
from packstore.images.decoders import DECODERS, UNAVAILABLE, Decoder, available_decoders
from packstore.images.engine import engine_problem
from packstore.images.seekable import CropPlan, Index, add_index, check_index, make_seekable, plan_crop, read_index
from packstore.stores import create_store
from packstore.training.augment import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from packstore.training.loader import assemble
from tests.makers.datasets import make_folder, pixels
from tests.makers.seekable import forged

Need = Callable[[str, bool], None]
LISTS = {
    "resized crops": [RandomResizedCrop(32), RandomHorizontalFlip()],
    "small crops": [RandomResizedCrop(24, scale=(0.01, 0.2))],
    "evaluation": [Resize(40), CenterCrop(32)],
    "crops": [RandomCrop(20), RandomHorizontalFlip()],
}


@pytest.fixture(scope="module", autouse=True)
def jpegtran(request: pytest.FixtureRequest) -> None:
    need: Need = request.getfixturevalue("need")
    need("jpegtran", shutil.which("jpegtran") is not None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files of many kinds, large enough to be worth cutting."""
    root = tmp_path_factory.mktemp("images") / "photos"
    kinds: list[dict[str, Any]] = [
        {"subsampling": "4:2:0"},
        {"subsampling": "4:4:4", "quality": 95},
        {"subsampling": "4:2:2", "progressive": True},
        {"gray": True},
    ]
    for i in range(24):
        options = dict(kinds[i % 4])
        image = Image.fromarray(pixels(90 + 13 * (i % 5), 110 + 17 * (i % 3), i))
        image = image.convert("L") if options.pop("gray", False) else image
        path = root / ("train" if i < 18 else "val") / "ab"[i % 2] / f"{i:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, **options)
    return root


@pytest.fixture(scope="module")
def stores(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("stores")

    def get(name: str) -> Path:
        path = root / name
        if not path.exists():
            packstore.convert(folder, path, encoding=name.partition(".")[0])
        return path

    return get


Stores = Callable[[str], Path]


def batches(path: Path, augment: list[Any], **options: Any) -> list[Any]:
    dataset = PackedDataset(path, split="train", decoder=options.pop("decoder", "auto"))
    loader = PackedLoader(dataset, 5, shuffle=True, seed=7, augment=augment, **options)
    return [batch for _ in range(2) for batch in loader]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
def test_batches_are_those_of_the_original_files(stores: Stores, name: str, suffix: str) -> None:
    expected = batches(stores("original.lmdb"), LISTS[name])
    assert_same(batches(stores(f"seekable.{suffix}"), LISTS[name], workers=3), expected)


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_loads_the_same(stores: Stores, decoder: str, need: Need) -> None:
    need(decoder, not available_decoders()[decoder].startswith(UNAVAILABLE))
    expected = batches(stores("original.lmdb"), LISTS["resized crops"])
    assert_same(batches(stores("seekable.lmdb"), LISTS["resized crops"], decoder=decoder), expected)


def test_crops_are_decoded_and_nothing_else(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    stores("seekable.lmdb")
    monkeypatch.setattr(Decoder, "decode", lambda *_, **__: pytest.fail("a whole image was asked for"))
    assert batches(stores("seekable.lmdb"), LISTS["small crops"])


def test_a_wrong_index_changes_no_batch(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each record had been changed by another program after it was packed."""
    expected = batches(stores("original.lmdb"), LISTS["resized crops"])
    monkeypatch.setattr(assemble, "read_index", lambda _: None)
    assert_same(batches(stores("seekable.lmdb"), LISTS["resized crops"]), expected)


def test_forged_indexes_among_others_change_no_batch(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts are planned for a batch at once; what is wrong with one image stays with it."""

    def swapped(low: NDArray[np.uint8], head: list[int]) -> None:
        low[:] = np.roll(low, 1)

    def endless(low: NDArray[np.uint8], head: list[int]) -> None:
        low[:] = 255

    changes = [swapped, endless, None]
    for number, file in enumerate(sorted(folder.glob("train/*/*.jpg"))):
        data, change = make_seekable(file.read_bytes()), changes[number % 3]
        path = tmp_path / "photos" / file.relative_to(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if change is None else forged(data, change))
        assert read_index(path.read_bytes()) is not None
    packstore.convert(tmp_path / "photos", tmp_path / "forged.lmdb")
    found = batches(tmp_path / "forged.lmdb", LISTS["small crops"])
    monkeypatch.setattr(assemble, "read_index", lambda _: None)
    assert_same(batches(tmp_path / "forged.lmdb", LISTS["small crops"]), found)


def test_images_of_very_many_segments_are_planned_one_by_one(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no batch of them takes much memory."""
    expected = batches(stores("original.lmdb"), LISTS["resized crops"])
    alone: list[int] = []

    def plan_alone(index: Index, box: Any) -> CropPlan:
        alone.append(index.across * index.rows)
        return plan_crop(index, box)

    monkeypatch.setattr("packstore.images.decoders.plan_crop", plan_alone)
    monkeypatch.setattr("packstore.images.decoders.get_engine", lambda: None)  # which plans nothing
    monkeypatch.setattr(assemble, "_MOST_SEGMENTS", 50)
    assert_same(batches(stores("seekable.lmdb"), LISTS["resized crops"]), expected)
    assert alone
    assert min(alone) > 50


def test_scaling_is_off_unless_asked_for(stores: Stores) -> None:
    small = [RandomResizedCrop(16, scale=(0.8, 1.0))]
    expected = batches(stores("original.lmdb"), small)
    for name in ("original.lmdb", "seekable.lmdb"):
        assert_same(batches(stores(name), small, dct_scaling=False), expected)
        scaled = batches(stores(name), small, dct_scaling=True)
        difference = torch.cat([(a[0].float() - b[0].float()).abs() for a, b in zip(scaled, expected, strict=True)])
        assert 0 < difference.mean() < 9
        assert all(torch.equal(a[1], b[1]) for a, b in zip(scaled, expected, strict=True))


def test_items_of_a_dataset_are_whole_images(stores: Stores, folder: Path) -> None:
    dataset = PackedDataset(stores("seekable.lmdb"), split="val", output="numpy", columns=("image", "key"))
    for image, key in dataset:
        with Image.open(folder / key) as file:
            np.testing.assert_array_equal(image, np.array(file.convert("RGB")))


def test_a_record_is_a_file_for_everybody(stores: Stores, tmp_path: Path) -> None:
    with lmdb.open(str(stores("seekable.lmdb")), readonly=True, lock=False) as environment, environment.begin() as txn:
        (tmp_path / "0.jpg").write_bytes(txn.get(b"0000000000"))
    with Image.open(tmp_path / "0.jpg") as image:
        assert image.format == "JPEG"
        image.load()
    assert read_index((tmp_path / "0.jpg").read_bytes()) is not None


def test_verified_against_its_source(stores: Stores, folder: Path) -> None:
    assert packstore.verify(stores("seekable.lmdb"), decode=True, against=folder).problems == ()
    assert packstore.verify(stores("seekable.h5"), against=stores("original.lmdb")).problems == ()


def test_verify_sees_other_pixels(stores: Stores, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "photos")
    other = tmp_path / "photos" / "train" / "a" / "00.jpg"
    with Image.open(other) as image:
        changed = np.array(image)
    changed[3, 5] ^= 64
    Image.fromarray(changed).save(other, subsampling="4:2:0")
    problems = packstore.verify(stores("seekable.lmdb"), against=tmp_path / "photos").problems
    assert [p.key for p in problems] == ["train/a/00.jpg"]
    assert "pixels differ" in problems[0].what


def test_a_wrong_index_is_found_by_decoding(stores: Stores, tmp_path: Path) -> None:
    """Checksums are right, and the index is that of another image of the same size."""
    with packstore.open(stores("seekable.lmdb")) as store:
        manifest, data = store.manifest, bytes(store.read(0))
    at = data.index(b"packstore\0") + 13
    wrong = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    columns = tuple(c for c in manifest.columns if c.name in ("image", "key", "checksum"))
    with create_store(tmp_path / "a.lmdb", format="lmdb", encoding="seekable", columns=columns) as builder:
        checksums = np.array([xxhash.xxh3_64_intdigest(r) for r in (data, wrong)], np.uint64)
        builder.append([data, wrong], {"key": ["right", "wrong"]}, "", checksums=checksums)
        builder.commit(origin=manifest.origin)
    assert packstore.verify(tmp_path / "a.lmdb").ok
    problems = packstore.verify(tmp_path / "a.lmdb", decode=True).problems
    assert [(p.key, p.what) for p in problems] == [("wrong", "its seek index does not match the file")]


def test_an_index_that_a_file_brought_along_is_no_damage(stores: Stores, tmp_path: Path) -> None:
    """As ``jpegtran -copy all -rotate 90`` leaves it: the file is as it was, and its pixels are right."""
    with packstore.open(stores("seekable.lmdb")) as store:
        data = bytes(store.read(0))
    at = data.index(b"packstore\0") + 13
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "a" / "0.jpg").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb")
    assert packstore.verify(tmp_path / "a.lmdb", decode=True).ok
    loader = packstore.PackedLoader(packstore.PackedDataset(tmp_path / "a.lmdb"), 1, augment=[CenterCrop(16)])
    ((images, _),) = loader
    with Image.open(tmp_path / "photos/a/0.jpg") as image:
        whole = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    top, left = (round((side - 16) / 2) for side in whole.shape[1:])
    assert images[0].equal(whole[:, top : top + 16, left : left + 16])


def test_what_cannot_be_seekable_is_kept_and_counted(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", splits=(), per_class=2)
    Image.fromarray(pixels(30, 40, 1)).convert("CMYK").save(root / "ant" / "cmyk.jpg")
    broken = (root / "bee" / "000.jpg").read_bytes()
    (root / "bee" / "broken.jpg").write_bytes(broken[: len(broken) // 2] + b"\xff\xd9")
    report = packstore.convert(root, tmp_path / "a.lmdb", encoding="seekable")
    assert sum(report.kept.values()) == 2
    assert report.kept["has 4 colour components"] == 1
    assert report.manifest.options["not_seekable"] == 2
    with packstore.open(tmp_path / "a.lmdb") as store:
        for i in range(len(store)):
            data = bytes(store.read(i))
            kept = store.key(i) in ("ant/cmyk.jpg", "bee/broken.jpg")
            assert (read_index(data) is None) == kept
            assert not kept or data == (root / store.key(i)).read_bytes()
    assert packstore.verify(tmp_path / "a.lmdb", against=root).ok
    run = CliRunner().invoke(cli, ["info", str(tmp_path / "a.lmdb")])
    assert "2 of them cannot be made seekable" in run.output
    run = CliRunner().invoke(cli, ["convert", str(root), str(tmp_path / "b.h5"), "--encoding", "seekable"])
    assert run.exit_code == 0, run.output
    assert "has 4 colour components: 1 file" in run.output
    # From store to store they stay what they are, and are counted again.
    again = packstore.convert(tmp_path / "a.lmdb", tmp_path / "c.h5")
    assert again.manifest.options["not_seekable"] == 2
    assert again.manifest.column("image").nbytes == report.manifest.column("image").nbytes


def test_store_to_store_keeps_seekable_records(stores: Stores, tmp_path: Path) -> None:
    packstore.convert(stores("seekable.lmdb"), tmp_path / "a.h5")
    packstore.convert(stores("original.h5"), tmp_path / "b.h5", encoding="seekable")
    with (
        packstore.open(stores("seekable.lmdb")) as source,
        packstore.open(tmp_path / "a.h5") as copy,
        packstore.open(tmp_path / "b.h5") as other,
    ):
        assert copy.manifest.encoding == other.manifest.encoding == "seekable"
        assert copy.manifest.dataset_digest == source.manifest.dataset_digest == other.manifest.dataset_digest
    assert "not_seekable" not in source.manifest.options


def test_pixels_become_seekable(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", splits=(), suffixes=(".png",))
    packstore.convert(root, tmp_path / "a.lmdb", encoding="seekable", max_side=50, quality=80)
    packstore.convert(root, tmp_path / "raw.h5", encoding="uint8")
    packstore.convert(tmp_path / "raw.h5", tmp_path / "b.lmdb", encoding="seekable", max_side=50, quality=80)
    with packstore.open(tmp_path / "a.lmdb") as a, packstore.open(tmp_path / "b.lmdb") as b:
        for i in range(len(a)):
            assert check_index(bytes(a.read(i))) is None
            assert read_index(bytes(a.read(i))) is not None
            assert bytes(a.read(i)) == bytes(b.read(i))
        assert a.manifest.options["quality"] == 80
    assert packstore.verify(tmp_path / "a.lmdb", decode=True, against=root).ok


def test_without_jpegtran(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is enough for most files; without it nothing is begun. Wheels are enough for what is encoded anew."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("PACKSTORE_TURBOJPEG", "")
    if engine_problem() is None:
        report = packstore.convert(folder, tmp_path / "a.lmdb", encoding="seekable")
        assert "jpegtran" not in report.manifest.versions
        assert all("takes the program jpegtran" in reason for reason in report.kept)
        assert sum(report.kept.values()) < report.manifest.records
        shutil.rmtree(tmp_path / "a.lmdb")
    monkeypatch.setattr("packstore.images.engine.native._library", lambda: (None, "not compiled"))
    with pytest.raises(UsageError, match="apt install libjpeg-turbo-progs"):
        packstore.convert(folder, tmp_path / "a.lmdb", encoding="seekable")
    assert list(tmp_path.iterdir()) == []
    report = packstore.convert(folder, tmp_path / "b.lmdb", encoding="seekable", resize=64)
    assert report.kept == {}


def test_the_programs_version_is_noted(stores: Stores) -> None:
    with packstore.open(stores("seekable.lmdb")) as store:
        assert "version" in store.manifest.versions["jpegtran"]


def test_files_that_are_seekable_already_stay(stores: Stores, tmp_path: Path) -> None:
    with packstore.open(stores("seekable.lmdb")) as store:
        data = bytes(store.read(3))
    path = tmp_path / "photos" / "a" / "0.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb", encoding="seekable")
    with packstore.open(tmp_path / "a.lmdb") as store:
        assert bytes(store.read(0)) == data == add_index(data)
