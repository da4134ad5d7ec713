"""``repr`` of a loader, and the step at which it begins."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, Subset

from packstore import Mix, PackedDataset, PackedLoader
from packstore.augment import CutMix, MixUp, PerImage, RandomHorizontalFlip, RandomMasking, RandomResizedCrop
from tests.conftest import Stores
from tests.makers.batches import go_on, same
from tests.makers.torchvision import import_torchvision


@pytest.fixture
def dataset(stores: Stores) -> PackedDataset:
    return PackedDataset(stores("cifar.h5"), "train", columns=("image", "label", "key"))


def halve(images: torch.Tensor) -> torch.Tensor:
    return images / 2


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, ["shuffle: False", "images: torch.uint8"]),
        ({"shuffle": True}, ["shuffle: full"]),
        ({"shuffle": "lanes"}, ["shuffle: lanes"]),
        ({"seed": 3, "stream": "a"}, ["seed: 3", "stream: 'a'"]),
        ({"workers": 2, "prefetch": 5}, ["workers: 2", "prefetch: 5"]),
        ({"dtype": torch.float16}, ["images: torch.float16"]),
        ({"normalize": "cifar10"}, ["images: torch.float32", "normalize: 'cifar10'"]),
        ({"normalize": "cifar10", "dtype": torch.bfloat16}, ["images: torch.bfloat16"]),
        ({"normalize": np.array([[0.5] * 3, [0.2] * 3])}, ["images: torch.float32"]),
        ({"augment": [RandomHorizontalFlip(), PerImage(halve)]}, ["augment: RandomHorizontalFlip(", "PerImage("]),
        ({"mix": [MixUp(0.2), CutMix()]}, ["mix: BatchMixer(mixers=(MixUp(alpha=0.2), CutMix(alpha=1.0)), p=1.0"]),
        ({"views": {"a": (2, [RandomResizedCrop(8)])}}, ["views: Views('a': (2, [RandomResizedCrop(size=(8, 8)"]),
        ({"masking": RandomMasking(patch=8)}, ["masking: RandomMasking(ratio=0.75, patch=8)"]),
        ({"drop_last": True}, ["drop_last: True"]),
        ({"transform": halve}, ["transform: tests.training.test_loader_repr.halve"]),
        ({"indices": [3, 1]}, ["records: 2 of 100"]),
        ({"sampler": RandomSampler(range(100))}, ["sampler: RandomSampler"]),
        ({"sampler": [*range(90)]}, ["sampler: list"]),
    ],
)  # fmt: skip
def test_repr_shows_what_is_not_the_default(dataset: PackedDataset, options: Any, lines: list[str]) -> None:
    loader = PackedLoader(dataset, 4, **options)
    text = repr(loader)
    for line in lines:
        assert f"\n    {line}" in text or line.endswith("("), text
        assert line in text
    plain = {line.split(": ")[0] for line in repr(PackedLoader(dataset, 4)).splitlines()[1:]}
    shown = {line.split(": ")[0].strip() for line in text.splitlines()[1:]}
    assert shown - {name.strip() for name in plain} <= {*options, "records", "images"}
    assert " at 0x" not in text
    assert len(text) < 800


@pytest.mark.slow
def test_repr_of_a_subset_and_a_mix(stores: Stores, dataset: PackedDataset) -> None:
    assert "\n    records: 3 of 100" in repr(PackedLoader(Subset(dataset, [5, 6, 7]), 2))
    mix = Mix({stores("cifar.h5"): 2, stores("shards.lmdb"): 1}, "train")
    assert "\n    shuffle: full" in repr(PackedLoader(mix, 4, shuffle=True))


@pytest.mark.slow
def test_a_loader_says_with_which_step_it_begins(dataset: PackedDataset) -> None:
    make = partial(PackedLoader, dataset, 7, shuffle=True)
    whole = list(make())
    for given in range(len(whole) + 1):
        loader, ended = make(), given == len(whole)
        assert (loader.step, loader.epoch) == (0, 0)
        resumed = go_on(loader, make(), given)
        assert (resumed.epoch, resumed.step) == ((1, 0) if ended else (0, given))
        assert len(resumed) == len(whole)
        if ended:
            next(iter(resumed))
        else:
            assert same(resumed, whole[given:])
        assert (resumed.epoch, resumed.step) == (2 if ended else 1, 0)


def test_the_step_counts_batches_of_the_ranks_there_are_now(dataset: PackedDataset) -> None:
    for world_size, size in ((1, 16), (2, 8), (4, 4)):
        begun, resumed = (PackedLoader(dataset, s, rank=0, world_size=n) for s, n in ((4, 4), (size, world_size)))
        assert go_on(begun, resumed, 3).step == 3


def test_another_epoch_begins_at_its_first_step(dataset: PackedDataset) -> None:
    class Sampler:
        epoch = 0

        def __iter__(self) -> Any:
            return iter(range(100))

        def __len__(self) -> int:
            return 100

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    for with_sampler in (False, True):
        options: dict[str, Any] = {"sampler": Sampler()} if with_sampler else {"shuffle": True}
        loader = PackedLoader(dataset, 7, **options)
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        loader.set_epoch(0)
        assert loader.step == 1
        (options["sampler"] if with_sampler else loader).set_epoch(2)
        assert loader.step == 0


SAID = {
    "all": "by the engine: RandomResized, RandomHor, ToTensor, Norm",
    "erasing": "by the engine: Rand, ToT, Norm; then: RandomErasing",
    "colours": "by the engine: RandomRes, ColorJ, ToTensor, Norm",
    "other": "by the engine: RandomRes; then: RandomPers, ToTensor, Normalize",
    "policies": "by the engine: RandomRes, AugMix, ToTensor, Normalize",
    "steps": "by the engine: Pad, RandA, ToTensor, Normalize",
    "filled": "by the engine: RandomRes; then: Pad, ToTensor",
    "smooth": "by the engine: RandomRes; then: RandomRot, ToTensor",
    "other first": "then: RandomPers, RandomResizedCrop, ToTensor, Norm",
    "unknown": "",
    "tensors": "",
}
"""Beginnings of what the ``repr`` of a dataset says of its transform."""


def make_pipeline(name: str) -> Any:
    """Makes the transform of ``SAID``."""
    t = import_torchvision().transforms
    crop, flip, other = t.RandomResizedCrop(24), t.RandomHorizontalFlip(), t.RandomPerspective()
    rest = [t.ToTensor(), t.Normalize([0.5] * 3, [0.5] * 3)]
    steps = {
        "all": [crop, t.Compose([flip]), *rest],
        "erasing": [crop, *rest, t.RandomErasing()],
        "colours": [crop, t.ColorJitter(0.4), *rest],
        "other": [crop, other, *rest],
        "policies": [crop, t.AugMix(), *rest],
        "steps": [t.Pad(4), t.RandAugment(), *rest],
        "filled": [crop, t.Pad(4, fill=9), *rest],
        "smooth": [crop, t.RandomRotation(9, t.InterpolationMode.BILINEAR), *rest],
        "other first": [other, crop, *rest],
        "tensors": [torch.neg, flip],
    }
    return torch.neg if name == "unknown" else t.Compose(steps[name])


@pytest.mark.parametrize("name", SAID)
def test_a_dataset_says_what_the_engine_runs(stores: Stores, name: str) -> None:
    transform, said = make_pipeline(name), SAID[name]
    for options in ({}, {"output": "pil"}):
        dataset = PackedDataset(stores("cifar.lmdb"), "train", transform=transform, target_transform=float, **options)
        lines = [line.strip() for line in repr(dataset).splitlines()]
        (line,) = (line for line in lines if line.startswith("transform: "))
        assert "target_transform: <class 'float'>" in lines
        assert " at 0x" not in line
        if not said or options:
            assert not re.search("by the engine|then:", line)
            continue
        parts = said.removeprefix("by the engine: ").replace("then: ", "").replace(";", ",").split(", ")
        assert line.startswith("transform: " + said.partition(":")[0])
        assert re.search(".*".join(parts), line)
        assert ("; then: " in line) == ("; then: " in said)
