"""Memory of torch's workers: used again as soon as no process has it, and no sooner."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from tests.internals import Item, allocate, send_by_value, share, worker_memory

SHAPE = 4, 3, 8, 8
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are Linux's")


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process of the test counts as a worker."""
    monkeypatch.setattr(worker_memory, "get_worker_info", object)
    yield
    worker_memory._files.clear()


def address(dtype: torch.dtype = torch.float32) -> int:
    return allocate(SHAPE, dtype).data_ptr()


def test_memory_is_used_again() -> None:
    first = address()
    assert address() == first
    assert address(torch.float16) == first
    assert address(torch.uint8) != first


@pytest.mark.slow
@pytest.mark.parametrize("part", ["block", "row", "numpy", "shared", "row of shared", "sent"])
def test_memory_is_kept_while_anything_has_it(part: str) -> None:
    hold: dict[str, Callable[[torch.Tensor], Any]] = {
        "block": lambda block: block,
        "row": lambda block: block.unbind()[2],
        "numpy": lambda block: block.numpy()[1:],
        "shared": share,
        "row of shared": lambda block: share(block)[1],
        "sent": lambda block: ForkingPickler.dumps(share(block)),
    }
    block = allocate(SHAPE, torch.float32).fill_(3)
    first, held = block.data_ptr(), hold[part](block)
    del block
    assert address() != first
    if part == "sent":
        held = pickle.loads(held)
        assert (held == 3).all()
        assert address() != first
    assert address() == address()
    del held
    gc.collect()
    assert first in {allocate(SHAPE, torch.float32).data_ptr() for _ in range(2)}


def test_what_is_shared_is_the_block() -> None:
    block = allocate(SHAPE, torch.float32).fill_(3)
    shared = share(block)
    assert shared.is_shared()
    assert (shared.shape, shared.dtype, shared.stride()) == (block.shape, block.dtype, block.stride())
    block[1] = 4
    assert torch.equal(shared, block)
    assert share(block) is block, "shared twice, both could be changed"


def test_other_memory_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary, block = torch.zeros(SHAPE), allocate(SHAPE, torch.float32)
    assert share(ordinary) is ordinary
    monkeypatch.setattr(torch.multiprocessing, "get_sharing_strategy", lambda: "file_system")
    assert share(block) is block


def test_labels_are_sent_without_a_descriptor() -> None:
    labels = default_collate([Item((torch.zeros(1), number)) for number in range(3)])[1]
    assert torch.equal(labels, torch.arange(3))
    assert type(labels + 1) is torch.Tensor
    message = bytes(ForkingPickler.dumps(labels))
    assert b"reductions" not in message
    sent = pickle.loads(message)
    assert type(sent) is torch.Tensor
    assert torch.equal(sent.add_(1), torch.arange(1, 4))


@pytest.mark.parametrize(
    "value",
    [torch.zeros(1 << 20), torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3, requires_grad=True), [1, 2], "text"],
    ids=["large", "bfloat16", "gradient", "list", "text"],
)
def test_other_values_are_sent_as_torch_does(value: Any) -> None:
    assert send_by_value(value) is value


def test_files_are_few() -> None:
    held = [allocate(SHAPE, torch.float32) for _ in range(worker_memory._MOST + 3)]
    assert len(worker_memory._files) == worker_memory._MOST
    assert len({block.data_ptr() for block in held}) == len(held)
    held.clear()
    assert allocate((4, *SHAPE), torch.float32).data_ptr() in worker_memory._files
    assert len(worker_memory._files) == worker_memory._MOST


class Blocks(torch.utils.data.Dataset[Any]):
    """Items of a batch in one block, each filled with its number."""

    def __len__(self) -> int:
        return 200

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        block = allocate((len(numbers), 3, 30, 30), torch.float32)
        block[:] = torch.tensor(numbers)[:, None, None, None]
        return [Item((row, number)) for number, row in zip(numbers, block.unbind(), strict=True)]

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 1, 30])
@pytest.mark.parametrize("workers", [1, 2])
def test_batches_that_are_kept_stay(keep: int, workers: int) -> None:
    kept: list[Any] = []
    for _ in range(2):
        for batch in DataLoader(Blocks(), 7, shuffle=True, num_workers=workers, prefetch_factor=3):
            kept.append(batch)
            for images, numbers in kept:
                assert torch.equal(images, numbers[:, None, None, None].expand(images.shape).float())
            kept = kept[len(kept) - keep :]


@pytest.mark.slow
def test_a_worker_makes_few_files() -> None:
    """Batches that training drops are files again."""
    seen: set[int] = set()
    for images, _ in DataLoader(Blocks(), 5, num_workers=1, collate_fn=collate_with_file):
        seen.update(images)
    assert 1 <= len(seen) <= 5, "40 batches, of which at most 4 are ahead"


def collate_with_file(items: list[Any]) -> Any:
    """Collates, and returns the address of the worker's memory with an image that is in it."""
    images, _ = default_collate(items)
    return [items[0][0].data_ptr()], images
