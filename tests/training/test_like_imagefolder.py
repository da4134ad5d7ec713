"""What users of ``ImageFolder`` touch: samples and loader, pictures to look at, errors that name the way out."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import packstore
from packstore import PackedDataset, UsageError
from packstore.augment import CenterCrop, Cutout, Draws, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from packstore.stores import StoreBuilder
from tests.internals import Fact, Report
from tests.makers.datasets import make_folder
from tests.makers.stores import damage


@pytest.fixture(scope="module")
def png_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images") / "photos", size=(20, 24), suffixes=(".png",))


@pytest.fixture(scope="module")
def store(png_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stores") / "a.lmdb"
    packstore.convert(png_folder, out)
    return out


@pytest.mark.parametrize("name", ["samples", "imgs", "targets", "classes", "class_to_idx"])
def test_what_is_read_from_the_store_cannot_be_set(store: Path, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^{name} cannot be set, .*Subset.* target_transform="):
        setattr(PackedDataset(store, "train"), name, [])


def test_samples_are_keys_and_labels(png_folder: Path, store: Path) -> None:
    for split in ("train", "val"):
        ds = PackedDataset(store, split)
        expected = [(p.relative_to(png_folder).as_posix(), ds.class_to_idx[p.parent.name])
                    for p in sorted((png_folder / split).rglob("*.png"))]  # fmt: skip
        assert list(ds.samples) == list(ds.imgs) == expected
        assert ds.samples[-1] == expected[-1]
        assert ds.samples[1:3] == expected[1:3]
        assert type(ds.samples[0][1]) is int
        assert [label for _, label in ds.samples] == ds.targets


def test_samples_are_read_as_they_are_asked_for(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = PackedDataset(store, "train").samples
    asked = []
    monkeypatch.setattr(type(samples), "_read_value", lambda self, record: asked.append(record) or ("key", 0))
    assert (len(samples), asked) == (12, [])
    assert (samples[3], asked) == (("key", 0), [3])


def test_the_loader_gives_the_image_of_a_key(png_folder: Path, store: Path) -> None:
    ds = pickle.loads(pickle.dumps(PackedDataset(store, "val")))
    for key, _ in ds.samples:
        np.testing.assert_array_equal(np.asarray(ds.loader(key)), np.asarray(Image.open(png_folder / key)))
    other = PackedDataset(store, "train").keys[0]
    with pytest.raises(UsageError, match="no item has the key"):
        ds.loader(other)


def test_without_labels_there_are_no_samples(png_folder: Path, tmp_path: Path) -> None:
    packstore.convert(png_folder / "val" / "ant", tmp_path / "flat.h5")
    ds = PackedDataset(tmp_path / "flat.h5")
    with pytest.raises(UsageError, match="has no labels"):
        _ = ds.samples
    assert ds.loader(ds.keys[0]).size == (24, 20)


@pytest.mark.parametrize("suffix", ["lmdb", "pth"])
@pytest.mark.parametrize("encoding", ["float16", "bfloat16", "float32", "uint8"])
@pytest.mark.parametrize("normalize", ["imagenet", "none"])
def test_pictures_of_normalised_stores(
    png_folder: Path, tmp_path: Path, suffix: str, encoding: str, normalize: str
) -> None:
    out = tmp_path / f"a.{suffix}"
    options = {} if encoding == "uint8" else {"normalize": normalize}
    packstore.convert(png_folder, out, encoding=encoding, **options)
    ds = PackedDataset(out, "val", output="pil", denormalize=True)
    plain = PackedDataset(out, "val")
    for index in (0, -1):
        key, expected = plain.keys[index], np.asarray(Image.open(png_folder / plain.keys[index]), np.int64)
        for picture in (ds[index][0], ds.show(index), plain.show(index), plain.loader(key)):
            assert (picture.mode, picture.size) == ("RGB", (24, 20))
            # A bfloat16 has 8 bits of precision, and values up to 2.6.
            assert np.abs(np.asarray(picture, np.int64) - expected).max() <= (1 if encoding == "bfloat16" else 0)
    with pytest.raises(IndexError):
        ds.show(len(ds))


@pytest.mark.slow
def test_looking_needs_words(png_folder: Path, tmp_path: Path) -> None:
    packstore.convert(png_folder, tmp_path / "a.pth")
    with pytest.raises(UsageError, match="denormalize=True"):
        PackedDataset(tmp_path / "a.pth", "val", output="pil")
    for output in ("tensor", "numpy", "bytes"):
        with pytest.raises(UsageError, match="denormalize= is for output='pil'"):
            PackedDataset(tmp_path / "a.pth", "val", output=output, denormalize=True)


def only_pil(picture: Any) -> Any:
    """As torchvision's ``ToTensor`` does."""
    if not isinstance(picture, Image.Image):
        raise TypeError(f"pic should be PIL Image or ndarray. Got {type(picture)}")
    return torch.from_numpy(np.array(picture))


def convert_mode(picture: Any) -> Any:
    return picture.convert("L")


def test_a_transform_that_makes_arrays_is_given_pil_images(store: Path) -> None:
    only_pil(PackedDataset(store, "train", output="pil")[0][0])
    PackedDataset(store, "train", transform=only_pil)[0]


@pytest.mark.slow
def test_a_transform_that_wants_pil_images_is_told_how(store: Path) -> None:
    ds = PackedDataset(store, "train", transform=convert_mode)
    for read in (lambda: ds[0], lambda: ds[:2], lambda: next(iter(DataLoader(ds, 4, num_workers=1)))):
        with pytest.raises((TypeError, AttributeError), match="output='pil'"):
            read()
    PackedDataset(store, "train", transform=convert_mode, output="pil")[0]


def test_other_errors_of_a_transform_are_left_alone(store: Path) -> None:
    def broken(_: Any) -> Any:
        raise TypeError("mine")

    with pytest.raises(TypeError) as caught:
        PackedDataset(store, "train", transform=broken, output="pil")[0]
    (note,) = caught.value.__notes__
    assert "output=" not in note


def test_size_error_is_public() -> None:
    assert issubclass(packstore.SizeError, UsageError)


@pytest.mark.slow
def test_reprs_are_short(png_folder: Path, store: Path, tmp_path: Path) -> None:
    report = packstore.convert(png_folder, tmp_path / "a.lmdb")
    whole = packstore.verify(tmp_path / "a.lmdb")
    damage(tmp_path / "a.lmdb", [3], [])
    ds = PackedDataset(store, "train")
    saved = packstore.salvage(tmp_path / "a.lmdb", tmp_path / "b.lmdb")
    repaired = packstore.repair(tmp_path / "a.lmdb", png_folder, tmp_path / "c.lmdb")
    loader = packstore.PackedLoader(ds, 4)
    with packstore.open(store) as reader, packstore.open(store, checksums="always") as checked:
        builder = StoreBuilder(tmp_path / "d.lmdb", reader.manifest)
        with builder:
            things: list[Any] = [
                report, whole, packstore.verify(tmp_path / "a.lmdb"), saved, repaired, ds.manifest, ds.keys,
                ds.samples, ds.samples[:0], reader, checked, builder, packstore.prefetch(loader, "cpu"),
                Resize(8), CenterCrop(8), RandomCrop(8), RandomResizedCrop(8), RandomHorizontalFlip(), Cutout(8),
                Draws(1, 2, np.arange(1000)), Report((Fact('a', 'b', 'c' * 500),)),
            ]  # fmt: skip
            for thing in things:
                text = repr(thing).replace(str(tmp_path), "").replace(str(store.parent), "")
                assert len(text) <= 160, text
                assert "\n" not in text
                assert " object at 0x" not in text, text
    assert max(map(len, repr(loader).replace(str(store.parent), "").splitlines())) <= 160
    assert repr(whole).endswith("24 records, undamaged>")
    assert repr(ds.keys).startswith("<12 keys: 'train/ant/")
    assert repr(ds.samples).startswith("<12 samples: ('train/ant/")
