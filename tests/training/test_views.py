"""Several crops of a record: each as if it were loaded by itself, and one decoding for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from packstore.core.errors import UsageError
from packstore.images.decoders import Decoder
from packstore.training.augment.operations import apply_operations
from packstore.training.augment.views import as_views
from packstore.training.random_draws import Draws

VIEWS: Any = {
    "global": (2, [A.RandomResizedCrop(24, interpolation="random"), A.RandomHorizontalFlip(), A.ColorJitter(0.4)]),
    "local": (3, [A.RandomResizedCrop(12, (0.05, 0.4)), A.RandAugment(), A.RandomErasing(0.5)]),
    "mixed": (1, [A.Resize(20), A.CenterCrop(16), A.AugMix(), A.RandomInvert()]),
}


def load(dataset: PackedDataset, views: Any = VIEWS, **options: Any) -> list[Any]:
    return list(PackedLoader(dataset, 4, seed=3, views=views, **options))


def expected(dataset: PackedDataset, name: str, epoch: int = 0) -> torch.Tensor:
    """Each crop of each record, decoded whole and augmented by itself."""
    views = as_views(VIEWS)
    assert views is not None
    view = next(view for view in views.parts if view.name == name)
    start = dataset.reader.split("train").start
    found = []
    for number in range(len(dataset)):
        image = dataset[number][0][None]
        ids = torch.from_numpy(view.ids(np.array([start + number])))
        crops = [
            apply_operations(view.operations, image, Draws(view.seed(3), epoch, ids[n : n + 1]))
            for n in range(view.count)
        ]
        found.append(torch.cat(crops))
    return torch.stack(found)


@pytest.mark.parametrize("store", ["files.lmdb", "pixels.h5", "square.pth"])
@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 3}, {"channels_last": True}], ids=str)
def test_crops_are_those_of_single_images(stores: Any, store: str, options: Any) -> None:
    dataset = PackedDataset(stores(store), "train")
    batches = load(dataset, **options)
    assert torch.equal(
        torch.cat([labels for _, labels in batches]), torch.tensor([dataset[n][1] for n in range(len(dataset))])
    )
    for name, (count, _) in VIEWS.items():
        found = torch.cat([images[name] for images, _ in batches])
        assert found.shape[1] == count
        assert torch.equal(found, expected(dataset, name)), name
        if count > 1:
            assert not torch.equal(found[:, 0], found[:, 1])


def test_views_are_normalised(stores: Any) -> None:
    dataset = PackedDataset(stores("files.lmdb"), "train")
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    both = {name: VIEWS[name] for name in ("global", "local")}
    for views in (both, VIEWS):  # finished by the threads, and after operations on batches
        for options in ({}, {"channels_last": True}):
            batches = load(dataset, views, normalize="imagenet", **options)
            found = torch.cat([images["global"] for images, _ in batches])
            assert found.dtype == torch.float32
            wanted = (expected(dataset, "global").double() / 255 - mean) / std
            assert torch.allclose(found.double(), wanted, atol=1e-5)


def test_a_record_is_decoded_once(stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = PackedDataset(stores("files.lmdb"), "train")
    decoded = []
    each = Decoder.decode_each

    def counted(self: Decoder, files: Any, **options: Any) -> Any:
        decoded.extend(files)
        return each(self, files, **options)

    monkeypatch.setattr(Decoder, "decode_each", counted)
    for name in ("decode", "decode_crop"):
        monkeypatch.setattr(Decoder, name, None)
    load(dataset)
    assert len(decoded) == len(dataset)


def test_lists_of_lists(stores: Any) -> None:
    dataset = PackedDataset(stores("files.lmdb"), "train")
    crop = [A.RandomResizedCrop(16)]
    batches = load(dataset, [crop, crop, [*crop, A.Grayscale()]])
    for images, _ in batches:
        assert [tuple(each.shape[1:]) for each in images] == [(3, 16, 16)] * 3
        assert not torch.equal(images[0], images[1])
        assert torch.equal(images[2][:, 0], images[2][:, 1])
    arrays = load(dataset, {"one": (2, crop)}, output="numpy", channels_last=True)[0][0]["one"]
    assert arrays.shape == (4, 2, 16, 16, 3)


def test_damaged_records_are_left_out(stores: Any, tmp_path: Any) -> None:
    import shutil

    import packstore
    from tests.makers.stores import damage

    store = tmp_path / "damaged.lmdb"
    shutil.copytree(stores("files.lmdb"), store)
    reader = packstore.open(store)
    record = reader.split("train").start + 2
    reader.close()
    damage(store, [record], [])
    whole = load(PackedDataset(stores("files.lmdb"), "train"))
    found = load(PackedDataset(store, "train"), on_error="skip")
    assert len(found[0][1]) == 3
    assert torch.equal(found[0][0]["local"], whole[0][0]["local"][[0, 1, 3]])
    with pytest.raises(packstore.CorruptRecordError):
        load(PackedDataset(store, "train"))


def test_states_name_their_views(stores: Any) -> None:
    dataset = PackedDataset(stores("files.lmdb"), "train")
    loader = PackedLoader(dataset, 4, seed=3, views=VIEWS, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = list(batches)
    again = PackedLoader(dataset, 4, seed=3, views=VIEWS, shuffle=True)
    again.load_state_dict(state)
    assert all(torch.equal(a[0]["local"], b[0]["local"]) for a, b in zip(rest, again, strict=True))
    with pytest.raises(UsageError, match="has views"):
        PackedLoader(dataset, 4, seed=3, shuffle=True, views=[[A.RandomResizedCrop(3)]]).load_state_dict(state)


@pytest.mark.parametrize("name", [name for name in A.RECIPES if A.recipe(name).views is not None])
def test_recipes_of_several_views(stores: Any, name: str) -> None:
    recipe = A.recipe(name)
    images, _ = next(iter(PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 2, views=recipe.views)))
    assert recipe.views is not None
    assert {key: images[key].shape[1] for key in images} == {key: count for key, (count, _) in recipe.views.items()}


def test_what_cannot_be_is_refused(stores: Any) -> None:
    crop = [A.RandomResizedCrop(8)]
    dataset = PackedDataset(stores("files.lmdb"), "train")
    for views in ({}, {"a": 3}, {"a": (0, crop)}, {"a": (2, [A.RandomHorizontalFlip()])}, [3], "dino", {1: crop}):
        with pytest.raises(UsageError):
            load(dataset, views)
    for options in ({"augment": crop}, {"mix": A.MixUp()}, {"resident": True}):
        with pytest.raises(UsageError, match="leave out"):
            load(dataset, {"a": (2, crop)}, **options)
    with pytest.raises(UsageError, match="views= crops images of bytes"):
        load(PackedDataset(stores("floats.lmdb"), "train"))
