"""Functions image by image: where they run, with which random numbers, and what ``transform=`` refuses of them."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch

from packstore import PackedDataset, PackedLoader, UsageError
from packstore import augment as A  # noqa: N812
from tests.conftest import Stores
from tests.internals import Draws, ThreadGenerator
from tests.makers.batches import images_of
from tests.makers.torchvision import import_torchvision


def _noisy(image: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    return image.float() + torch.rand(image.shape, generator=generator)


def _loaded(dataset: PackedDataset, **options: Any) -> torch.Tensor:
    return images_of(PackedLoader(dataset, **({"batch_size": 8, "seed": 3} | options)))


# With a generator ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("cifar.lmdb", []),
        ("cifar.h5", [A.RandomCrop(24)]),
        ("files.lmdb", [A.RandomResizedCrop(24)]),
        ("floats.pth", []),
    ],
)
@pytest.mark.parametrize("after", [[], [A.Cutout(4), A.PerImage(_noisy), A.RandomHorizontalFlip()], [A.PerImage(abs)]])
def test_a_generator_makes_the_same_images_wherever_it_runs(
    stores: Stores, name: str, before: list[Any], after: list[Any]
) -> None:
    dataset = PackedDataset(stores(name), "train")
    augment = [*before, A.PerImage(_noisy, generator=True), A.PerImage(A.InPlace(_noisy), generator=True), *after]
    expected = _loaded(dataset, augment=augment, resident=False, workers=1)
    assert len(torch.unique(expected.flatten(1), dim=0)) == len(expected)
    for options in ({"workers": 4}, {"batch_size": 7}, {"batch_size": 1, "workers": 3}, {"channels_last": True}):
        assert torch.equal(_loaded(dataset, augment=augment, resident=False, **options), expected), options
    if name != "files.lmdb":
        assert torch.equal(_loaded(dataset, augment=augment, resident=True), expected)
    assert not torch.equal(_loaded(dataset, augment=augment, resident=False, seed=4), expected)


@pytest.mark.parametrize("generator", [True, False])
def test_functions_run_in_the_threads_that_decode_if_they_take_a_generator(stores: Stores, generator: bool) -> None:
    names: set[str] = set()
    torches: set[int] = set()

    def noted(image: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        names.add(threading.current_thread().name)
        torches.add(torch.get_num_threads())
        return image

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.manual_seed(0)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=True)[1].tolist()
    try:
        dataset = PackedDataset(stores("files.lmdb"), "train")
        loader = PackedLoader(
            dataset, 8, augment=[A.RandomResizedCrop(16), A.PerImage(noted, generator)], workers=2, resident=False
        )
        list(loader)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert torches == {1}
    assert (threading.main_thread().name in names) is not generator
    assert all(name.startswith("packstore-loader") for name in names) is generator
    after = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=True)[1].tolist()
    assert torch.equal(after[0], states[0])
    assert after[1:] == states[1:]


TRANSFORMS: dict[str, Any] = {
    "crop": lambda v1, v2: v2.RandomResizedCrop(16),
    "chain": lambda v1, v2: v2.Compose(
        [v2.RandomRotation(20), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomErasing(1.0)]
    ),
    "choice": lambda v1, v2: v2.RandomChoice(
        [v2.RandomInvert(), v2.GaussianBlur(3), v2.RandomApply([v2.Grayscale(3)])]
    ),
    "order": lambda v1, v2: v2.RandomOrder([v2.RandomInvert(), v2.RandomSolarize(100), v2.RandomHorizontalFlip()]),
    "policies": lambda v1, v2: v2.Compose([v2.RandAugment(), v2.AutoAugment(), v2.TrivialAugmentWide(), v2.AugMix()]),
    "elastic": lambda v1, v2: v2.ElasticTransform(),
    "perspective": lambda v1, v2: v2.Compose([v2.RandomPerspective(p=1.0), v2.RandomChannelPermutation()]),
    "first version": lambda v1, v2: v1.Compose([v1.RandomResizedCrop(16), v1.ColorJitter(0.4), v1.RandAugment()]),
    "in place": lambda v1, v2: A.InPlace(v2.RandomPhotometricDistort()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMS)
def test_torchvision_runs_in_the_threads_that_decode(stores: Stores, name: str) -> None:
    transforms = import_torchvision().transforms
    each = A.PerImage(TRANSFORMS[name](transforms, transforms.v2))
    assert each.runs_in_threads
    dataset = PackedDataset(stores("files.lmdb"), "train")
    images = _loaded(dataset, augment=[A.RandomResizedCrop(24)])
    after = each(images, Draws(3, 0, torch.arange(len(dataset)), stream=1))  # with the generators of the process
    assert len(torch.unique(after.flatten(1), dim=0)) > len(after) // 2
    for workers in (1, 3):
        torch.manual_seed(0)
        drawn, found = [], []
        loader = PackedLoader(dataset, 4, seed=3, augment=[A.RandomResizedCrop(24), each], workers=workers)
        for batch, _ in loader:
            drawn.append(float(torch.rand(())))
            found.append(batch)
        assert torch.equal(torch.cat(found), after)
        torch.manual_seed(0)
        assert drawn == [float(torch.rand(())) for _ in drawn]
        assert loader.stats()["per_image_seconds"] > 0
    square = PackedDataset(stores("square.pth"), "train")
    assert torch.equal(*(_loaded(square, augment=[each], resident=resident) for resident in (True, False)))


def test_a_function_that_draws_from_torch_alone_may_run_in_the_threads(stores: Stores) -> None:
    names: set[str] = set()

    def noisy(image: torch.Tensor) -> torch.Tensor:
        names.add(threading.current_thread().name)
        return image + torch.randint(0, 20, image.shape, dtype=torch.uint8)

    dataset = PackedDataset(stores("files.lmdb"), "train")
    found = []
    for threads, workers in ((False, 2), (True, 1), (True, 3)):
        names.clear()
        augment = [A.RandomResizedCrop(16), A.PerImage(noisy, threads=threads)]
        loader = PackedLoader(dataset, 8, augment=augment, workers=workers, resident=False, seed=4)
        found.append(torch.cat([images for images, _ in loader]))
        assert all(name.startswith("packstore-loader") for name in names) is threads
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])
    assert repr(A.PerImage(abs, threads=True)) == "PerImage(<built-in function abs>, threads=True)"


@pytest.mark.slow
def test_functions_that_may_draw_from_other_generators_do_not(stores: Stores) -> None:
    transforms = import_torchvision().transforms
    dataset, v2, names = PackedDataset(stores("files.lmdb"), "train"), transforms.v2, set()

    def noted(image: torch.Tensor) -> torch.Tensor:
        names.add(threading.current_thread().name)
        return image

    class Own(v2.RandomInvert):
        pass

    holders = [v2.Lambda(noted), v2.Compose([noted]), v2.RandomApply([noted], 1.0), transforms.RandomChoice([noted])]
    for fn in (noted, *holders, transforms.Lambda(noted), A.InPlace(noted), Own()):
        each = A.PerImage(fn)
        assert not each.runs_in_threads, fn
        list(PackedLoader(dataset, 8, augment=[A.RandomResizedCrop(8), each], workers=2))
    assert names == {threading.main_thread().name}


def test_an_operation_without_a_generator_is_refused() -> None:
    with ThreadGenerator(torch.Generator()):
        assert torch.ones(3).tolist() == [1, 1, 1]
        with pytest.raises(UsageError, match="takes no generator"):
            torch.native_dropout(torch.ones(9), 0.5, True)


def test_a_function_with_a_generator_may_resize_and_fail(stores: Stores) -> None:
    def smaller(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return image[:, :9, : 5 + int(torch.randint(1, (1,), generator=generator))]

    dataset = PackedDataset(stores("cifar.lmdb"), "train")
    options = {"resident": False, "augment": [A.PerImage(smaller, generator=True)]}
    assert _loaded(dataset, **options).shape[1:] == (3, 9, 5)
    options["augment"] = [A.PerImage(lambda image, generator: 1, generator=True)]
    with pytest.raises(UsageError, match="should give tensors of one shape, and gave int"):
        _loaded(dataset, **options)
    with pytest.raises(
        UsageError, match=r"calls fn\(image, generator=…\), and .* takes no generator; leave generator="
    ):
        A.PerImage(lambda image: image, generator=True)
    with pytest.raises(UsageError, match="generator should be True or False, got 3"):
        A.PerImage(_noisy, generator=3)


def test_records_that_are_skipped_are_not_given_to_functions(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.internals import Assembler

    fill = Assembler.fill_rows

    def failing(self: Any, prepared: Any, first: int, stop: int) -> list[int]:
        return fill(self, prepared, first, stop) + [row for row in (2, 5) if first <= row < stop]

    dataset = PackedDataset(stores("cifar.lmdb"), "train", columns=("image", "key"))
    augment = [A.PerImage(_noisy, generator=True)]
    whole = _loaded(dataset, augment=augment, resident=False, indices=range(16))
    monkeypatch.setattr(Assembler, "fill_rows", failing)
    loader = PackedLoader(
        dataset, 8, seed=3, augment=augment, resident=False, indices=range(16), on_error="skip", workers=3
    )
    kept = [row for row in range(16) if row % 8 not in (2, 5)]
    batches = list(loader)
    assert torch.equal(torch.cat([images for images, _ in batches]), whole[kept])
    assert [key for _, keys in batches for key in keys] == [dataset.keys[row] for row in kept]


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("generator", [True, False])
def test_its_seconds_have_their_own_name(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, generator: bool, resident: bool
) -> None:
    """By a clock that only the function moves."""
    now = threading.local()
    for place in ("stats", "streaming", "resident"):
        monkeypatch.setattr(f"packstore.training.loader.{place}.perf_counter", lambda: getattr(now, "time", 0.0))

    def slow(image: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        now.time = getattr(now, "time", 0.0) + 1.0
        return image

    loader = PackedLoader(
        PackedDataset(stores("cifar.lmdb"), "train"), 10, augment=[A.PerImage(slow, generator)], resident=resident
    )
    list(loader)
    stats = loader.stats()
    assert stats["per_image_seconds"] == 100
    assert [stats[f"{stage}_seconds"] for stage in ("augment", "copy", "wait")] == [0, 0, 0]


# Streams ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "resident"), [("cifar.lmdb", True), ("cifar.lmdb", False), ("files.lmdb", False)])
def test_streams_of_one_seed_differ_in_their_draws_alone(stores: Stores, name: str, resident: bool) -> None:
    dataset = PackedDataset(stores(name), "train", columns=("image", "key"))
    augment = [A.RandomResizedCrop(16), A.RandomHorizontalFlip()]

    def load(**options: Any) -> tuple[torch.Tensor, list[str]]:
        loader = PackedLoader(dataset, 8, True, seed=3, augment=augment, resident=resident, **options)
        batches = list(loader)
        return torch.cat([images for images, _ in batches]), [key for _, keys in batches for key in keys]

    plain, one, other = load(), load(stream="global"), load(stream="local")
    assert plain[1] == one[1] == other[1]
    for first, second in ((plain, one), (plain, other), (one, other)):
        same = (first[0] == second[0]).flatten(1).all(1)
        assert same.float().mean() < 0.1
    assert torch.equal(load(stream="local", workers=3)[0], other[0])
    state = PackedLoader(dataset, 8, stream="local").state_dict()
    with pytest.raises(UsageError, match="state has stream 'local', this loader 'global'"):
        PackedLoader(dataset, 8, stream="global").load_state_dict(state)
    with pytest.raises(UsageError, match="stream should be text or None, got 3"):
        PackedLoader(dataset, 8, stream=3)


# In transform= ------------------------------------------------------------------------------------------------------


def _torchvisions(name: str, **attributes: Any) -> Any:
    members = {"__module__": "torchvision.transforms.v2._misc", "__call__": lambda self, images: images}
    return type(name, (), members | attributes)()


@pytest.mark.parametrize("option", ["transform", "pre_transform"])
def test_random_functions_are_refused_as_in_augment(stores: Stores, option: str) -> None:
    make: Any = PackedLoader
    dataset, erasing = PackedDataset(stores("cifar.lmdb"), "train"), _torchvisions("RandomErasing")
    compose = _torchvisions("Compose", transforms=[_torchvisions("Normalize"), erasing])
    advice = (
        r"put it into augment=: packstore\.augment\.RandomErasing, augment\.PerImage\(RandomErasing\(\.\.\.\)\), or"
    )
    for function in (erasing, compose, A.InPlace(erasing), A.InPlace(compose)):
        with pytest.raises(UsageError, match=f"RandomErasing would treat the whole batch alike; {advice}"):
            make(dataset, 4, **{option: function})
    for drawn in (A.PerImage(erasing), A.RandomHorizontalFlip(), A.Resize(9), A.InPlace(A.RandomHorizontalFlip())):
        with pytest.raises(UsageError, match=f"{option} is called with batches alone, and .* put it into augment="):
            make(dataset, 4, **{option: drawn})
    for plain in (
        torch.neg,
        _torchvisions("Normalize"),
        A.InPlace(torch.neg),
        torch.nn.Sequential(torch.nn.Identity()),
    ):
        make(dataset, 4, **{option: plain})
