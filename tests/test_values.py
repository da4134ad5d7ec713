"""Values of the wrong kind: each is refused at once, in words that name the argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader, UsageError
from packstore.augment import CenterCrop, RandomHorizontalFlip
from tests.makers.datasets import make_folder, write_image


@pytest.fixture(scope="module")
def unsplit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images") / "photos", splits=())


@pytest.fixture(scope="module")
def store(unsplit_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stores") / "a.lmdb"
    packstore.convert(unsplit_folder, out)
    return out


LOADER = [
    ({"indices": []}, "indices .* is empty: there is nothing to load"),
    ({"indices": np.array([], np.int64)}, "is empty"),
    ({"indices": ["a"]}, "indices should be a list of whole numbers"),
    ({"sampler": []}, "is empty"),
    ({"sampler": ["a"]}, "sampler should be numbers, got"),
    ({"sampler": [1.5]}, "sampler should give one whole number after another"),
    ({"sampler": [[1, 2]]}, "sampler should give one whole number after another"),
    ({"sampler": 5}, "sampler should give one index after another, got 5"),
    ({"seed": 1.5}, "seed should be a whole number, got 1.5"),
    ({"seed": None}, "seed should be a whole number, got None"),
    ({"batch_size": 2.0}, "batch_size should be a whole number of at least 1, got 2.0"),
    ({"batch_size": 0}, "batch_size should be a whole number of at least 1, got 0"),
    ({"batch_size": None}, "batch_size should be"),
    ({"batch_size": True}, "batch_size should be"),
    ({"rank": 0, "world_size": 0}, "world_size should be a whole number of at least 1, got 0"),
    ({"rank": 0, "world_size": 2.0}, "world_size should be"),
    ({"rank": "0", "world_size": 2}, "rank should be a whole number, got '0'"),
    ({"world_size": 0}, "world_size should be"),
    ({"prefetch": 0}, "prefetch should be a whole number from 1 to 1,000, got 0"),
    ({"prefetch": 1.5}, "prefetch should be"),
    ({"workers": 0}, "workers should be a whole number"),
    ({"workers": 1.5}, "workers should be"),
    ({"block": 1.5, "shuffle": True}, "block should be"),
    ({"shuffle": "yes"}, "shuffle should be True, False, 'full' or 'lanes', got 'yes'"),
    ({"drop_last": "no"}, "drop_last should be True or False"),
    ({"channels_last": "yes"}, "channels_last should be True or False"),
    ({"transform": 5}, "transform should be a function or None, got 5"),
    ({"target_transform": 5}, "target_transform should be a function"),
    ({"pre_transform": 5}, "pre_transform should be a function"),
]


@pytest.mark.parametrize(("options", "message"), LOADER)
def test_the_loader(store: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        next(iter(PackedLoader(PackedDataset(store), **{"augment": [CenterCrop(8)], **options})))


def test_whole_numbers_of_numpy_are_numbers(store: Path) -> None:
    loader = PackedLoader(
        PackedDataset(store), np.int64(2), seed=np.int64(3), workers=np.int32(1), prefetch=np.uint8(2),
        augment=[CenterCrop(8)], sampler=torch.arange(4),
    )  # type: ignore[arg-type]  # fmt: skip
    assert len(next(iter(loader))[0]) == 2
    assert loader.state_dict()["seed"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "device should be one of torch's, such as 'cuda:0', got 'gpu'"),
        ({"columns": 5}, "columns should be a sequence of names"),
        ({"transform": 5}, "transform should be a function or None, got 5"),
        ({"target_transform": "x"}, "target_transform should be a function"),
        ({"dtype": "float16"}, "dtype should be one of torch's, such as torch.float16, got 'float16'"),
        ({"max_pixels": 0}, "max_pixels should be a whole number of at least 1, got 0"),
        ({"max_pixels": 1.5}, "max_pixels should be"),
        ({"denormalize": "yes", "output": "pil"}, "denormalize should be True or False"),
    ],
)
def test_the_dataset(store: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PackedDataset(store, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": 5}, "split should be text or None, got 5"),
        ({"source_kind": 5}, "source_kind should be text or None, got 5"),
        ({"encoding": 5}, "encoding should be text"),
        ({"encoding": "jpeg", "quality": 0}, "quality should be a whole number from 1 to 100, got 0"),
        ({"overwrite": "no"}, "overwrite should be True or False, got 'no'"),
        ({"restart": "no"}, "restart should be True or False"),
        ({"shard_size": "2 lots"}, "'2 lots' is not a size; write for example 500MB or 1GiB"),
        ({"shard_size": "2"}, "'2' has no unit"),
        ({"shard_size": 2.5}, "shard_size should be a whole number of at least 1, got 2.5"),
        ({"workers": 0}, "workers should be a whole number"),
    ],
)
def test_convert(unsplit_folder: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        packstore.convert(unsplit_folder, tmp_path / "a.lmdb", **options)


@pytest.mark.parametrize(
    ("function", "paths", "options", "message"),
    [
        (packstore.verify, 1, {"quick": "no"}, "quick should be True or False"),
        (packstore.verify, 1, {"decode": 2}, "decode should be True or False"),
        (packstore.verify, 1, {"workers": 0}, "workers should be"),
        (packstore.verify, 1, {"source_kind": 5}, "source_kind should be text"),
        (packstore.repair, 3, {"partial": "no"}, "partial should be True or False"),
        (packstore.repair, 3, {"workers": 1.5}, "workers should be"),
        (packstore.salvage, 2, {"unproven": "no"}, "unproven should be True or False"),
    ],
)
def test_the_others(
    tmp_path: Path, function: Callable[..., Any], paths: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        function(*(tmp_path / name for name in "abc"[:paths]), **options)


def test_prefetch() -> None:
    for ahead in (0, 1.5, "2"):
        with pytest.raises(UsageError, match="ahead should be a whole number of at least 1"):
            packstore.prefetch([], "cpu", ahead=ahead)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="dtype should be a floating point type"):
        packstore.prefetch([], "cpu", dtype="float16")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_shard_size_as_on_the_command_line(unsplit_folder: Path, tmp_path: Path) -> None:
    text = packstore.convert(unsplit_folder, tmp_path / "a.lmdb", shard_size="2kB").manifest
    number = packstore.convert(unsplit_folder, tmp_path / "b.lmdb", shard_size=2000).manifest
    assert len(text.shards) > 1
    assert text.shards == number.shards


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixed")
    for i, (height, width) in enumerate([(20, 24), (9, 50), (70, 3), (1, 1), (20, 24)]):
        write_image(root / "photos" / "ant" / f"{i}.png", height, width, i)
        Image.open(root / "photos" / "ant" / f"{i}.png").save(root / "photos" / "ant" / f"{i}.jpg")
    for encoding in ("original", "uint8"):
        packstore.convert(root / "photos", root / f"{encoding}.lmdb", source_kind="imagefolder", encoding=encoding)
    return root


@pytest.mark.parametrize("encoding", ["original", "uint8"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_one_image_a_batch_may_have_any_size(mixed: Path, encoding: str, shuffle: bool) -> None:
    ds = PackedDataset(mixed / f"{encoding}.lmdb", columns=("image", "key"))
    images = {key: image for image, key in (ds[i] for i in range(10))}
    for epoch in PackedLoader(ds, 1, shuffle), PackedLoader(ds, 1, augment=[RandomHorizontalFlip(1.0)]):
        seen = [(key, batch[0]) for batch, (key,) in epoch]
        assert {key for key, _ in seen} == set(images)
        for key, image in seen:
            flipped = epoch.options.augment
            assert torch.equal(image, images[key].flip(-1) if flipped else images[key]), key
    floats = {key: batch for batch, (key,) in PackedLoader(ds, 1, normalize="imagenet", dtype=torch.float16)}
    assert {key: tuple(batch.shape[1:]) for key, batch in floats.items()} == {
        k: tuple(i.shape) for k, i in images.items()
    }
    with pytest.raises(packstore.SizeError, match="differ in size"):
        list(PackedLoader(ds, 2))
