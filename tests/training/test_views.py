"""Several crops of a record: each as if it were loaded by itself, and one decoding for all."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from packstore.images.decoders import Decoder
from tests.conftest import Simulate
from tests.internals import Draws, Units, UsageError, apply_operations, parse_views
from tests.makers.batches import check_order, same
from tests.makers.images import picture, whole_images
from tests.makers.simulated_cuda import Simulation, check_waits
from tests.makers.stores import damage
from tests.makers.torchvision import import_torchvision

VIEWS: Any = {
    "global": (2, [A.RandomResizedCrop(24, interpolation="random"), A.RandomHorizontalFlip(), A.ColorJitter(0.4)]),
    "local": (3, [A.RandomResizedCrop(12, (0.05, 0.4)), A.RandAugment(), A.RandomErasing(0.5)]),
    "mixed": (1, [A.Resize(20), A.CenterCrop(16), A.AugMix(), A.RandomInvert()]),
}


def load(dataset: PackedDataset, views: Any = VIEWS, **options: Any) -> list[Any]:
    return list(PackedLoader(dataset, 4, seed=3, views=views, **options))


def expected(dataset: PackedDataset, name: str, epoch: int = 0, views: Any = VIEWS) -> torch.Tensor:
    """Each crop of each record, decoded whole and augmented by itself."""
    wanted = parse_views(views, Units.of_column(dataset.manifest.image, dataset.manifest.normalization))
    view = next(view for view in wanted.parts if view.name == name)
    start = dataset.reader.split("train").start
    found = []
    for number in range(len(dataset)):
        image = dataset[number][0][None]
        if image.is_floating_point():  # items are float32 of the stored values
            image = image.to(getattr(torch, dataset.manifest.image.dtype))
        ids = torch.from_numpy(view.all_crop_ids(np.array([start + number])))
        crops = [
            apply_operations(view.operations, image, Draws(view.derive_seed(3), epoch, ids[n : n + 1]))
            for n in range(view.count)
        ]
        found.append(torch.cat(crops))
    crops_of_all = torch.stack(found)
    return crops_of_all.float() if crops_of_all.is_floating_point() else crops_of_all


@pytest.mark.slow
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


@pytest.mark.slow
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
    decode = Decoder.decode

    def counted(self: Decoder, file: Any, **options: Any) -> Any:
        decoded.append(file)
        return decode(self, file, **options)

    # What the engine refuses; consecutive requests for one file share its pixels there.
    monkeypatch.setattr(Decoder, "decode", counted)
    for name in ("decode_each", "decode_crop"):
        monkeypatch.setattr(Decoder, name, None)
    loader = PackedLoader(dataset, 4, views=VIEWS)
    list(loader)
    assert 0 < len(decoded) == len({*map(bytes, decoded)}) < len(dataset)
    assert loader.stats()["decoded"] == len(dataset)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of image files of every kind, some of them turned by EXIF."""
    root = tmp_path_factory.mktemp("kinds")
    (root / "train" / "a").mkdir(parents=True)
    for name, data in whole_images().items():
        (root / "train" / "a" / f"{name}.{name.partition('-')[0]}").write_bytes(data)
    turned = Image.Exif()
    turned[0x0112] = 6
    for number, progressive in enumerate((False, True)):
        image = picture(width=50 + number, height=31)
        image.save(root / "train" / "a" / f"turned{number}.jpeg", exif=turned, progressive=progressive)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("index", [None, False])
@pytest.mark.parametrize("exif_transpose", [False, True])
def test_files_of_every_kind(kinds: Path, tmp_path: Path, index: bool | None, exif_transpose: bool) -> None:
    packstore.convert(kinds, tmp_path / "kinds.lmdb", encoding="original", index=index)
    dataset = PackedDataset(tmp_path / "kinds.lmdb", "train", exif_transpose=exif_transpose)
    for workers in (1, 3):
        loader = PackedLoader(dataset, 5, seed=3, views=VIEWS, workers=workers)
        batches = list(loader)
        assert loader.stats()["decoded"] == len(dataset) > 20
        for name in VIEWS:
            assert torch.equal(torch.cat([images[name] for images, _ in batches]), expected(dataset, name)), name


@pytest.mark.slow
@pytest.mark.parametrize("store", ["square.pth", "square.lmdb", "cifar.h5"])
def test_resident_as_streamed(stores: Any, store: str) -> None:
    dataset = PackedDataset(stores(store), "train")
    for options in ({}, {"normalize": "imagenet", "channels_last": True}):
        streamed, held = (
            PackedLoader(dataset, 8, True, seed=3, views=VIEWS, resident=resident, **options)
            for resident in (False, True)
        )
        assert (streamed.mode, held.mode) == ("streaming", "resident")
        assert same(held, streamed, 1e-5 if options else 0)
        (ours, _), (theirs, _) = next(iter(streamed)), next(iter(held))
        assert [theirs[name].stride() for name in VIEWS] == [ours[name].stride() for name in VIEWS]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["floats.lmdb", "bfloats.pth"])
def test_views_of_floating_point(stores: Any, store: str) -> None:
    dataset = PackedDataset(stores(store), "train")
    crop = [A.RandomResizedCrop(12), A.RandomHorizontalFlip(), A.RandomErasing()]
    views: Any = {"one": (3, crop), "two": (1, [A.Resize(20), A.CenterCrop(16)])}
    found = [list(PackedLoader(dataset, 7, seed=3, views=views, resident=held)) for held in (False, True)]
    for name in views:
        wanted = expected(dataset, name, views=views)
        for batches in found:
            ours = torch.cat([images[name] for images, _ in batches])
            assert ours.dtype == wanted.dtype
            assert torch.equal(ours, wanted)
    with pytest.raises(UsageError):
        load(dataset, {"a": (1, [A.RandomResizedCrop(8), A.ColorJitter(0.4)])})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["files.lmdb", "cifar.h5", "floats.lmdb"])
def test_ranks_and_resuming(stores: Any, name: str) -> None:
    dataset = PackedDataset(stores(name), "train")
    views: Any = {"one": (2, [A.RandomResizedCrop(12)]), "two": (1, [A.RandomResizedCrop(16)])}
    make = partial(PackedLoader, dataset, shuffle=True, seed=3, drop_last=True, views=views)
    check_order(make, 8, (4,))
    with pytest.raises(UsageError, match="has views"):
        make(8, views=[[A.RandomResizedCrop(3)]]).load_state_dict(make(8).state_dict())


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


@pytest.mark.slow
def test_damaged_records_are_left_out(stores: Any, tmp_path: Any) -> None:
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


@pytest.mark.parametrize("name", [name for name in A.RECIPES if A.recipe(name).views is not None])
def test_recipes_of_several_views(stores: Any, name: str) -> None:
    recipe = A.recipe(name)
    images, _ = next(iter(PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 2, views=recipe.views)))
    assert {key: images[key].shape[1] for key in images} == {key: count for key, (count, _) in recipe.views.items()}


def test_what_cannot_be_is_refused(stores: Any) -> None:
    crop = [A.RandomResizedCrop(8)]
    dataset = PackedDataset(stores("files.lmdb"), "train")
    for views in ({}, {"a": 3}, {"a": (0, crop)}, {"a": (2, [A.RandomHorizontalFlip()])}, [3], "dino", {1: crop}):
        with pytest.raises(UsageError):
            load(dataset, views)
    for options in ({"augment": crop}, {"mix": A.MixUp()}):
        with pytest.raises(UsageError, match="leave out"):
            load(dataset, {"a": (2, crop)}, **options)
    with pytest.raises(UsageError, match="resident=True needs images of one shape"):
        load(dataset, {"a": (2, crop)}, resident=True)


@pytest.fixture(params=["late", "ahead", 3])
def device(request: pytest.FixtureRequest, simulate: Simulate) -> Iterator[Simulation]:
    with simulate(request.param) as simulation:
        yield simulation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "resident"),
    [
        ("files.lmdb", "auto"),
        ("pixels.h5", False),
        ("square.pth", False),
        ("square.pth", "auto"),
        ("floats.lmdb", True),
    ],
)
def test_views_on_a_device(stores: Any, device: Simulation, name: str, resident: Any) -> None:
    crop = [A.RandomResizedCrop(12), A.RandomHorizontalFlip()]
    views: Any = {"one": (2, crop), "two": (1, [A.Resize(20), A.CenterCrop(16), A.RandomErasing()])}
    where = torch.device("cuda", 0)
    size = 25 if name == "floats.lmdb" else 4  # of CIFAR, which has more images
    there, here = (
        PackedLoader(PackedDataset(stores(name), "train", device=place), size, True, seed=3, views=views, resident=held)
        for place, held in ((where, resident), (torch.device("cpu"), False))
    )
    assert there.mode == ("resident" if resident is True or (name, resident) == ("square.pth", "auto") else "streaming")
    for (ours, labels), (theirs, others) in zip(there, here, strict=True):
        assert same(labels, others)
        for view in views:
            assert ours[view].device == where
            far = (ours[view].cpu().float() - theirs[view].float()).abs()
            assert (far > (1 if name != "floats.lmdb" else 0.02)).float().mean() < 0.01
    # Operations that are programs on a device read the numbers of the records; others never wait.
    options: dict[str, Any] = {"views": {"one": (2, crop), "two": crop}, "resident": resident, "dtype": torch.float16}
    check_waits(device, PackedLoader(there.dataset, size, **options))


@pytest.mark.slow
def test_functions_image_by_image(stores: Any) -> None:
    v2, names = import_torchvision().transforms.v2, set()

    def noisy(image: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        names.add(threading.current_thread().name)
        return image.float() + torch.rand(image.shape, generator=generator)

    crop = A.RandomResizedCrop(12)
    views: Any = {
        "threads": (3, [crop, A.RandomInvert(), A.PerImage(v2.RandomCrop(8)), A.PerImage(noisy, generator=True)]),
        "after": (
            2,
            [A.RandomResizedCrop(32), A.PerImage(v2.ElasticTransform()), A.Grayscale(), A.PerImage(v2.RandomInvert())],
        ),
        "none": (1, [A.RandomResizedCrop(16), A.RandomInvert()]),
    }
    for name in ("files.lmdb", "square.pth"):
        dataset = PackedDataset(stores(name), "train")
        for options in ({"workers": 1}, {"workers": 3}):
            batches = load(dataset, views, resident=False, **options)
            assert all(each.startswith("packstore-loader") for each in names)
            for view in views:
                found = torch.cat([images[view] for images, _ in batches])
                assert torch.equal(found, expected(dataset, view, views=views)), view
            names.clear()
