"""Operations, loaders and comparisons for tests of the loader."""

from __future__ import annotations

import inspect
import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, DistributedSampler, RandomSampler, Sampler, WeightedRandomSampler

from packstore import Mix, PackedDataset, PackedLoader
from packstore.augment import Cutout, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, RASampler
from tests.internals import Draws, place_boxes, place_mask, place_points, plan_targets
from tests.makers.typed import Typed

RAGGED = [RandomResizedCrop(32), RandomHorizontalFlip()]
FIXED = [RandomCrop(32, padding=4), RandomHorizontalFlip(), Cutout(8)]
_ABSENT = object()
"""Stands for what one of two lists lacks."""


def joined(batches: Iterable[Any]) -> list[torch.Tensor]:
    """Returns each column of all batches as one tensor."""
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def images_of(batches: Iterable[Any]) -> torch.Tensor:
    """Returns the images of all batches as one tensor."""
    return torch.cat([batch if isinstance(batch, torch.Tensor) else batch[0] for batch in batches])


def keys_of(loader: Iterable[Any]) -> list[list[str]]:
    """Lists the keys of each batch: its last column."""
    return [list(batch[-1]) for batch in loader]


def flat_keys(loader: Iterable[Any]) -> list[str]:
    """Lists the keys of all batches: their last column."""
    return [key for batch in loader for key in batch[-1]]


def same(a: Any, b: Any, atol: float = 0) -> bool:
    """Tells if loaders, datasets, batches or values are equal, with their dtypes, on any device."""
    if a is _ABSENT or b is _ABSENT:
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[name], b[name], atol) for name in a)
    if isinstance(a, torch.Tensor | np.ndarray):
        one, other = (torch.as_tensor(each).cpu() for each in (a, b))
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return torch.equal(one, other) or bool(atol and torch.allclose(one, other, rtol=0, atol=atol, equal_nan=True))
    if isinstance(a, str | bytes) or not isinstance(a, Iterable | Dataset):
        return bool(a == b)
    return all(same(x, y, atol) for x, y in zip_longest(a, b, fillvalue=_ABSENT))


def go_on(begun: PackedLoader, resumed: PackedLoader, batches: int = 1) -> PackedLoader:
    """Loads so many batches, and gives the state to ``resumed``, which is returned."""
    iterator = iter(begun)
    for _ in range(batches):
        next(iterator)
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    return resumed


def join_ranks(make: Callable[..., PackedLoader], ranks: int) -> list[Any]:
    """Loads an epoch on so many ranks, by ``make(rank=…, world_size=…)``. Returns the global batches."""
    parts = (make(rank=rank, world_size=ranks) for rank in range(ranks))
    return [_join(step) for step in zip(*parts, strict=True)]


def _join(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(parts[0], Mapping):
        return {name: _join([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(map(_join, zip(*parts, strict=True)))
    return [value for part in parts for value in part]


class Endless(Sampler[int]):
    """Draws permutations by a generator of its own, ``epochs`` or without end, and has no length."""

    def __init__(self, length: int, generator: torch.Generator, epochs: float = float("inf")) -> None:
        self.length, self.generator, self.epochs = length, generator, epochs

    def __iter__(self) -> Iterator[int]:
        done = 0
        while done < self.epochs:
            yield from torch.randperm(self.length, generator=self.generator).tolist()
            done += 1


def make_loaders(stores: Callable[[str], Path], kind: str) -> list[PackedLoader]:
    """Makes the loaders of all ranks of a kind, of images and keys; of images alone for ``single``.

    Those of an unknown kind shuffle records 2 to 27. Each call makes the same ones.
    """
    if kind == "mix":
        mixed = Mix({stores("cifar.h5"): 3, stores("cifar.pth"): 1}, "train", columns=("image", "key"), epoch=26)
        return [PackedLoader(mixed, 8, True, seed=3)]
    name = {"files": "files.lmdb", "lanes": "shards.h5", "lanes on ranks": "shards.h5"}.get(kind, "cifar.lmdb")
    columns = ("image",) if kind == "single" else ("image", "key")
    dataset = PackedDataset(stores(name), "train", columns=columns, output="dict" if kind == "dict" else "tensor")
    ranks = 3 if kind in ("ranks", "lanes on ranks", "distributed") else 1
    some, seeded = range(2, 28), torch.Generator().manual_seed(7)
    views = [[RandomResizedCrop(16)], [RandomResizedCrop(8)]]
    samplers: dict[str, Callable[[int], Any]] = {
        "random": lambda _: RandomSampler(dataset, num_samples=26, generator=seeded),
        "weighted": lambda _: WeightedRandomSampler([1.0] * 26, 26, generator=seeded),
        "distributed": lambda rank: DistributedSampler(dataset, ranks, rank, seed=5),
        "repeated": lambda _: RASampler(dataset, 3, seed=5),
        "list": lambda _: [*range(26)][::-1],
        "endless": lambda _: Endless(26, torch.Generator().manual_seed(2)),
        "without a length": lambda _: Endless(26, seeded, 1),
        "resident, without a length": lambda _: Endless(24, seeded, 1),
    }
    if kind in samplers:
        resident = {"without a length": False, "resident, without a length": True}.get(kind, "auto")
        return [PackedLoader(dataset, 8, sampler=samplers[kind](rank), resident=resident) for rank in range(ranks)]
    options: dict[str, Any] = {
        "files": {"augment": RAGGED, "indices": None},
        "resident": {"resident": True},
        "streaming": {"resident": False, "prefetch": 1},
        "in order": {"shuffle": False},
        "drop_last": {"drop_last": True},
        "lanes": {"shuffle": "lanes", "window": 2, "indices": range(0, 100, 3)},
        "lanes on ranks": {"shuffle": "lanes", "window": 2, "indices": None},
        "ranks": {"indices": range(2, 78)},
        "block": {"block": 4},
        "views": {"views": {"one": (2, RAGGED)}, "resident": False},
        "resident views": {"views": views, "resident": True},
    }.get(kind, {})
    options = {"shuffle": True, "seed": 3, "indices": some} | options
    return [PackedLoader(dataset, 8, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


def load_as(stores: Callable[[str], Path], kind: str, batch_size: int, split: str = "train", **options: Any) -> Any:
    """Makes a loader of CIFAR as frameworks train with it; of the first 20 records in order for another split."""
    dataset = PackedDataset(stores("shards.h5" if kind == "lanes" else "cifar.lmdb"), split, **options)
    if split != "train":
        return PackedLoader(dataset, 8, normalize="imagenet", indices=range(20))
    chosen: dict[str, Any] = {
        "resident": {"resident": True},
        "lanes": {"shuffle": "lanes", "window": 2},
        "random": {"shuffle": False, "sampler": RandomSampler(dataset, generator=torch.Generator().manual_seed(4))},
        "distributed": {"shuffle": False, "sampler": DistributedSampler(dataset, 1, 0)},  # type: ignore[dict-item]
    }.get(kind, {"resident": False})
    return PackedLoader(dataset, batch_size, **({"shuffle": True, "augment": FIXED, "normalize": "imagenet"} | chosen))


def run_ranks(train: Callable[..., Any], address: str, *arguments: Any) -> list[Any]:
    """Runs ``train(rank, …)`` in two processes of torch's group. Returns what it returns on each rank.

    A generator runs to its first ``yield`` before the group is made, and then to the second, which gives the result.
    """
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=_run_rank, args=(rank, train, address, queue, arguments), daemon=True) for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    return [results[rank] for rank in (0, 1)]


def _run_rank(rank: int, train: Callable[..., Any], address: str, queue: Any, arguments: tuple[Any, ...]) -> None:
    begun = train(rank, *arguments) if inspect.isgeneratorfunction(train) else None
    if begun is not None:
        next(begun)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    try:
        queue.put((rank, train(rank, *arguments) if begun is None else next(begun)))
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def check_order(make: Callable[..., PackedLoader], batch_size: int, ranks: Iterable[int]) -> None:
    """Checks that threads, ranks and a resume change nothing of what ``make(batch_size, **options)`` loads."""
    whole = list(make(batch_size))
    assert len(whole) > 1
    assert same(make(batch_size, workers=1), whole), "one thread"
    assert same(make(batch_size, workers=3, prefetch=1), whole), "three threads"
    for count in ranks:
        assert same(join_ranks(partial(make, batch_size // count), count), whole), f"{count} ranks"
    assert same(go_on(make(batch_size), make(batch_size)), whole[1:]), "resumed"


def place_values(
    values: dict[str, Any], size: Any, ops: Sequence[Any], draws: Draws, fill: int = 0, *least: float
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    """Puts masks, boxes and points of a record where ``ops`` move them, by the functions for one record.

    Returns them by column, and which boxes are kept. ``least``: smallest area and visible share of a box."""
    placement, boxes = plan_targets(np.array([size]), ops, draws), values["boxes"]
    rows = np.zeros(len(boxes), np.int64)
    moved, keep = place_boxes(placement, boxes, rows, *least)
    mask = place_mask(placement, 0, values["raw"], fill)
    return {
        "mask": mask,
        "raw": mask,
        "boxes": moved[keep],
        "labels": values["labels"][keep],
        "points": place_points(placement, values["points"], rows)[keep],
        "corners": place_points(placement, values["corners"], np.zeros(2, np.int64)),
    }, keep


def as_tensors(made: Typed, number: int) -> dict[str, Any]:
    """The values of a record as a dataset gives them, by column."""
    values, pixels = made.values[number], made.images[number].transpose(2, 0, 1)
    found = {name: torch.tensor(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}
    mask = torch.from_numpy(values["raw"])
    found |= {"image": torch.tensor(pixels), "right": torch.tensor(pixels[..., ::-1].copy()), "mask": mask}
    found |= {"deep": mask.int() * 200, "depth": None if values["depth"] is None else mask.int() * 250}
    found |= {"brain": torch.tensor(values["brain"]).bfloat16(), "crowd": torch.tensor(values["crowd"])}
    found["key"], weight = f"{number:04}.png", values["weight"]
    return found | {"weight": None if weight is None else torch.tensor(weight, dtype=torch.float64)}
