"""The loader on a CUDA device: the same batches as on the CPU, and slots, streams and memory as they should be."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from packstore import PackedDataset, PackedLoader, prefetch
from packstore.training.augment import Cutout, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from tests.conftest import Stores
from tests.internals import Ring, free_memory, transport_to
from tests.makers.batches import same

CROP = [RandomResizedCrop(32), RandomHorizontalFlip()]
SHIFT = [RandomCrop(32, padding=4, padding_mode="reflect"), RandomHorizontalFlip(), Cutout(8)]


def loaders(path: Path, device: torch.device, split: str = "train", **options: Any) -> tuple[PackedLoader, ...]:
    """The same loader for the CPU and for ``device``."""
    return tuple(PackedLoader(PackedDataset(path, split, device=d), 7, **options) for d in ("cpu", device))


# A kernel that keeps a stream busy for some 50 ms at the 2 GHz of today's devices, in cycles.
BUSY = 100_000_000


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "augment", "resident"),
    [
        ("files.lmdb", CROP, False),
        ("files.h5", CROP, False),
        ("cifar.pth", SHIFT, False),
        ("cifar.pth", SHIFT, True),
        ("cifar.lmdb", SHIFT, True),
        ("floats.h5", [RandomHorizontalFlip()], False),
        ("floats.pth", [RandomHorizontalFlip()], True),
        ("bfloats.h5", [], True),
    ],
)
def test_batches_are_those_of_the_cpu(
    stores: Stores, cuda: torch.device, name: str, augment: list[Any], resident: bool
) -> None:
    here, there = loaders(stores(name), cuda, shuffle=True, seed=3, augment=augment, resident=resident)
    assert there.mode == here.mode
    for _ in range(2):
        found = list(there)
        assert same(found, here)
        assert {tensor.device for batch in found for tensor in batch} == {cuda}


@pytest.mark.sampled(2, per="cuda", fast=0)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("resident", [True, False])
def test_normalised_on_the_device(
    stores: Stores, cuda: torch.device, dtype: torch.dtype, channels_last: bool, resident: bool
) -> None:
    options = {"normalize": "cifar10", "dtype": dtype, "channels_last": channels_last, "resident": resident}
    here, there = loaders(stores("cifar.pth"), cuda, augment=SHIFT, **options)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6}[dtype]
    for (images, _), (found, _) in zip(here, there, strict=True):
        assert found.dtype == dtype
        assert found.is_contiguous(memory_format=layout)
        torch.testing.assert_close(found.cpu().float(), images.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_buffers_are_page_locked_and_used_again(cuda: torch.device) -> None:
    transport = transport_to(cuda)
    ring = Ring(transport, 2)
    seen = set()
    for number in range(8):
        slot = ring.acquire()
        buffer = ring.get_buffer(slot, 0, (64, 1024), torch.uint8)
        assert buffer.is_pinned()
        seen.add(buffer.data_ptr())
        buffer.fill_(number)
        slot.shipment = transport.send((buffer,), lambda tensors: tensors[0])
        batch = slot.shipment.receive()
        ring.release(slot, batch)
        assert batch.device == cuda
        assert batch.unique().tolist() == [number]
    assert len(seen) == 2


def test_a_slot_is_not_written_before_its_copy_is_done(cuda: torch.device) -> None:
    """The copy waits behind a long kernel; the buffer must not be had again meanwhile."""
    transport = transport_to(cuda)
    ring = Ring(transport, 1)
    batches = []
    for number in range(4):
        slot = ring.acquire()
        buffer = ring.get_buffer(slot, 0, (1 << 20,), torch.uint8)
        buffer.fill_(number)
        with torch.cuda.stream(transport._stream):
            torch.cuda._sleep(BUSY)
        slot.shipment = transport.send((buffer,), lambda tensors: tensors[0])
        batches.append(slot.shipment.receive())
        ring.release(slot, batches[-1])
    assert [batch.unique().tolist() for batch in batches] == [[0], [1], [2], [3]]


def test_receiving_does_not_wait_on_the_host(cuda: torch.device) -> None:
    transport = transport_to(cuda)
    buffer = transport.allocate((1 << 20,), torch.uint8).fill_(7)
    with torch.cuda.stream(transport._stream):
        torch.cuda._sleep(20 * BUSY)
    shipment = transport.send((buffer,), lambda tensors: tensors[0])
    batch = shipment.receive()
    assert not shipment.copied.query()  # received, and yet the copy is still to come
    assert int(batch.sum()) == 7 << 20  # the consumer's stream waits for it


@pytest.mark.slow
def test_memory_of_a_batch_is_not_reused_while_the_consumers_kernels_read_it(
    stores: Stores, cuda: torch.device
) -> None:
    loader = PackedLoader(PackedDataset(stores("cifar.pth"), "train", device=cuda), 5, resident=False, prefetch=2)
    expected = torch.stack([images.float().mean() for images, _ in loader])
    consumer, means = torch.cuda.Stream(), []
    loader.set_epoch(0)
    with torch.cuda.stream(consumer):
        for images, _ in loader:
            torch.cuda._sleep(BUSY // 10)  # what reads the batch comes late
            means.append(images.float().mean())
            del images
    consumer.synchronize()
    assert torch.equal(torch.stack(means), expected)


@pytest.mark.slow
@pytest.mark.sampled(1, per="resident")
@pytest.mark.parametrize("resident", [True, False])
def test_memory_on_the_device_is_flat(stores: Stores, cuda: torch.device, resident: bool) -> None:
    loader = PackedLoader(PackedDataset(stores("cifar.pth"), "train", device=cuda), 5, resident=resident, augment=SHIFT)
    taken = []
    for _ in range(4):
        for _batch in loader:
            pass
        del _batch
        gc.collect()
        torch.cuda.synchronize()
        taken.append(torch.cuda.memory_allocated())
    assert len(set(taken[1:])) == 1


@pytest.mark.slow
def test_resident_is_one_copy_on_the_device(stores: Stores, cuda: torch.device) -> None:
    ds = PackedDataset(stores("cifar.pth"), "train", device=cuda)
    before = torch.cuda.memory_allocated()
    loader = PackedLoader(ds, 5)
    assert loader.mode == "resident"
    assert "free memory of cuda" in loader.mode_reason
    batches = [images for images, _ in loader]
    gc.collect()
    images = len(ds) * 3 * 32 * 32
    assert images <= torch.cuda.memory_allocated() - before < 4 * images + (8 << 20)
    assert free_memory(cuda) > 0
    assert torch.cat(batches).dtype == torch.uint8


@pytest.mark.parametrize("ahead", [1, 3])
def test_prefetch(cuda: torch.device, ahead: int) -> None:
    images = torch.arange(9 * 3 * 8 * 8, dtype=torch.int64).remainder(256).to(torch.uint8).view(9, 3, 8, 8)
    batches = DataLoader(TensorDataset(images, torch.arange(9)), batch_size=2, pin_memory=True)
    for normalize in (None, "imagenet"):
        there = list(prefetch(batches, cuda, normalize=normalize, ahead=ahead))
        assert same(there, prefetch(batches, "cpu", normalize=normalize, ahead=ahead), 1e-6)
        assert [found.device for found, _ in there] == [cuda] * 5


@pytest.mark.slow
def test_manners(stores: Stores, cuda: torch.device) -> None:
    """Items, early ends, two at once: no thread is left, and the device goes on working."""
    threads = set(threading.enumerate())
    here, there = loaders(stores("files.lmdb"), cuda, augment=CROP)
    assert there.dataset[0][0].device == cuda
    assert same(there.dataset[0], here.dataset[0])
    for _ in range(3):
        for _batch in there:
            break
    first, second = (loaders(stores("files.lmdb"), cuda, augment=CROP)[1] for _ in range(2))
    assert same(first, second)
    gc.collect()
    assert set(threading.enumerate()) <= threads
