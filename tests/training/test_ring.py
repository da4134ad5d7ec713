"""The ring: slots are used again, and never while something still reads them. And ``prefetch`` of any batches."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from packstore import UsageError, prefetch
from tests.internals import NORMALIZATIONS, HostTransport, Ring, find_tensors, transport_to
from tests.makers.batches import same


def send(ring: Ring, number: int, work: Any, shape: Any = (5,)) -> Any:
    """Sends a buffer that is filled with the number through a slot of the ring. Returns what is received."""
    slot = ring.acquire()
    buffer = ring.get_buffer(slot, 0, shape, torch.uint8).fill_(number)
    slot.shipment = ring.transport.send((buffer,), lambda tensors: work(tensors[0]))
    value = slot.shipment.receive()
    ring.release(slot, (value, "key"))
    return value


def test_slots_that_were_not_received_are_not_given_out() -> None:
    ring = Ring(HostTransport(), 2)
    _, second = ring.acquire(), ring.acquire()
    assert second is not None
    assert ring.acquire() is None
    ring.release(second, ())
    assert ring.acquire() is second


def test_on_the_cpu_a_buffer_that_the_consumer_keeps_is_his() -> None:
    """Also if nobody knows what may hold it."""

    class Mine:
        def __init__(self, images: torch.Tensor) -> None:
            self.images = images

    ring = Ring(HostTransport(), 1)
    kept = [send(ring, number, lambda images: images[1:3]) for number in range(4)]
    assert [images.tolist() for images in kept] == [[n, n] for n in range(4)]
    own = [send(ring, number, Mine) for number in range(3)]
    assert [mine.images.tolist() for mine in own] == [[n] * 5 for n in range(3)]


def test_on_the_cpu_a_buffer_that_was_converted_is_used_again() -> None:
    ring, pointers = Ring(HostTransport(), 1), set()
    for number in range(4):
        send(ring, number, lambda images: pointers.add(images.data_ptr()) or images.float())
    assert len(pointers) == 1


def test_buffers_grow_and_shrink_with_what_is_asked_for() -> None:
    ring = Ring(HostTransport(), 1)
    slot = ring.acquire()
    large = ring.get_buffer(slot, 0, (4, 3), torch.float32)
    small = ring.get_buffer(slot, 0, (2, 3), torch.float32)
    assert small.shape == (2, 3)
    assert small.data_ptr() == large.data_ptr()
    assert ring.get_buffer(slot, 0, (2, 3), torch.uint8).dtype == torch.uint8
    assert ring.get_buffer(slot, 1, (7,), torch.int64).shape == (7,)


def test_a_shipment_is_received_once() -> None:
    shipment = HostTransport().send((torch.zeros(1),), lambda t: t[0])
    shipment.receive()
    with pytest.raises(RuntimeError, match="once"):
        shipment.receive()


def test_tensors_in() -> None:
    a, b = torch.zeros(1), torch.ones(1)
    assert find_tensors({"x": (a, [b, "s", None, 1])}) == [a, b]
    assert find_tensors([object()]) is None


def test_any_device_has_a_transport() -> None:
    transport = transport_to(torch.device("meta"))
    shipment = transport.send((transport.allocate((2,), torch.uint8),), lambda t: t[0])
    assert shipment.copied is None
    assert shipment.receive().device.type == "meta"


def test_memory_comes_back_when_the_last_view_of_it_is_gone() -> None:
    transport = HostTransport()
    first = transport.allocate((100, 3), torch.uint8)
    address = first.data_ptr()
    view = first[10:20].float, first[50:]
    del first
    other = transport.allocate((100, 3), torch.uint8)
    assert other.data_ptr() != address  # a view of it lives
    del view
    again = transport.allocate((99, 3), torch.uint8)
    assert again.data_ptr() == address
    assert again.shape == (99, 3)
    small = transport.allocate((2,), torch.float32)
    assert small.dtype == torch.float32


# prefetch ---------------------------------------------------------------------------------------------------------

IMAGES = torch.arange(7 * 3 * 4 * 4, dtype=torch.uint8).view(7, 3, 4, 4)
LABELS = torch.arange(7)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(IMAGES, LABELS), batch_size=2)


@pytest.mark.parametrize("ahead", [1, 2, 9])
def test_every_batch_comes_once_and_in_order(ahead: int) -> None:
    ahead_of = prefetch(loader(), "cpu", ahead=ahead)
    assert len(ahead_of) == 4
    for _ in range(2):
        assert same(ahead_of, loader())


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float32])
def test_uint8_images_are_scaled_and_normalised(dtype: torch.dtype | None) -> None:
    chosen = NORMALIZATIONS["cifar10"]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (chosen.mean, chosen.std))
    images = torch.cat([x for x, _ in prefetch(loader(), "cpu", normalize="cifar10", dtype=dtype)])
    assert images.dtype == (dtype or torch.float32)
    tolerance = 2e-3 if dtype == torch.float16 else 1e-6
    torch.testing.assert_close(images.float(), (IMAGES / 255 - mean) / std, rtol=tolerance, atol=tolerance)


def test_floating_point_images_are_normalised_as_they_are() -> None:
    chosen = NORMALIZATIONS["imagenet"]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (chosen.mean, chosen.std))
    (images,) = prefetch([IMAGES / 255], "cpu", normalize="imagenet")
    torch.testing.assert_close(images, (IMAGES / 255 - mean) / std)
    (half,) = prefetch([IMAGES / 255], "cpu", dtype=torch.float16)
    assert half.dtype == torch.float16


class Pair(NamedTuple):
    image: torch.Tensor
    key: str


@pytest.mark.slow
def test_any_structure_keeps_its_form() -> None:
    batch = {"a": [IMAGES, (LABELS, "key", None)], "b": Pair(IMAGES, "x")}
    (got,) = prefetch([batch], "meta", normalize="cifar10")
    assert got["a"][0].device.type == "meta"
    assert got["a"][0].dtype == torch.float32
    assert got["a"][1][0].dtype == torch.int64
    assert got["a"][1][1:] == ("key", None)
    assert isinstance(got["b"], Pair)
    assert got["b"].key == "x"


def test_mappings_keep_their_kind() -> None:
    batch = defaultdict(list, x=torch.arange(3), y=torch.ones(2))
    ordered = OrderedDict(b=torch.arange(2), a=1)
    (found, pairs), *_ = list(prefetch([(batch, ordered)], "cpu"))
    assert found["new"] == []
    assert torch.equal(found["x"], batch["x"])
    assert list(pairs) == ["b", "a"]
    assert type(pairs) is OrderedDict
    assert batch["x"].shape == (3,)  # the loader's own is left as it is


def test_wrong_options() -> None:
    for options in ({"normalize": "mnist"}, {"dtype": torch.int8}, {"ahead": 0}):
        with pytest.raises(UsageError):
            prefetch([], "cpu", **options)
