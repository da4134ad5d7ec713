"""The ring: slots are used again, and never while something still reads them. On a device whose copies come late."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.internals import DeviceWork, HostTransport, Ring, Shipment, Tensors, Transport, find_tensors, transport_to


class LateEvent:
    """Happens when the fake device gets to it."""

    def __init__(self, device: LateTransport, number: int) -> None:
        self.device, self.number = device, number

    def query(self) -> bool:
        return self.device.done > self.number

    def synchronize(self) -> None:
        self.device.waited += not self.query()
        self.device.run_until(self.number)


class LateShipment(Shipment):
    def __init__(self, event: LateEvent, work: DeviceWork, there: list[torch.Tensor]) -> None:
        self.copied, self._work, self._there = event, work, there

    def receive(self) -> Any:
        self.copied.device.run_until(self.copied.number)
        return self._work(tuple(self._there))


class LateTransport(Transport):
    """A device that copies only when somebody waits for it, or when told to: as late as can be."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.queue: list[tuple[Tensors, list[torch.Tensor]]] = []
        self.done = self.waited = self.made = 0

    def allocate(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        self.made += 1
        return torch.zeros(tuple(shape), dtype=dtype)

    def send(self, host: Tensors, work: DeviceWork) -> Shipment:
        there: list[torch.Tensor] = []
        self.queue.append((host, there))
        return LateShipment(LateEvent(self, len(self.queue) - 1), work, there)

    def run_until(self, number: int) -> None:
        while self.done <= number:
            host, there = self.queue[self.done]
            there.extend(t.clone() for t in host)
            self.done += 1


def test_a_slot_is_not_written_before_its_copy_is_done() -> None:
    device = LateTransport()
    ring = Ring(device, 2)
    shipments = []
    for number in range(7):
        slot = ring.acquire()
        assert slot is not None
        buffer = ring.get_buffer(slot, 0, (3,), torch.int64)
        buffer.fill_(number)
        slot.shipment = device.send((buffer,), lambda t: t[0])
        shipments.append(slot.shipment)
        ring.release(slot, ())
    # Nobody received anything yet: only what had to make room has been copied, and each as it was when it was sent.
    assert device.done == 5
    assert device.waited == 5
    assert [int(s.receive()[0]) for s in shipments] == list(range(7))
    assert device.made == 2


def test_a_copy_that_is_done_is_not_waited_for() -> None:
    device = LateTransport()
    ring = Ring(device, 2)
    for number in range(6):
        slot = ring.acquire()
        assert slot is not None
        slot.shipment = device.send((ring.get_buffer(slot, 0, (2,), torch.uint8),), lambda t: t[0])
        ring.release(slot, slot.shipment.receive())
        assert device.done == number + 1
    assert device.waited == 0


def test_slots_that_were_not_received_are_not_given_out() -> None:
    ring = Ring(HostTransport(), 2)
    first, second = ring.acquire(), ring.acquire()
    assert first is not None
    assert second is not None
    assert ring.acquire() is None
    ring.release(second, ())
    assert ring.acquire() is second


def test_on_the_cpu_a_buffer_that_the_consumer_keeps_is_his() -> None:
    ring = Ring(HostTransport(), 1)
    kept = []
    for number in range(4):
        slot = ring.acquire()
        assert slot is not None
        buffer = ring.get_buffer(slot, 0, (5,), torch.uint8)
        buffer.fill_(number)
        slot.shipment = ring.transport.send((buffer,), lambda t: t[0][1:3])
        value = slot.shipment.receive()
        kept.append(value)
        ring.release(slot, (value, "key"))
    assert [t.tolist() for t in kept] == [[n, n] for n in range(4)]


def test_on_the_cpu_a_buffer_that_was_converted_is_used_again() -> None:
    ring = Ring(HostTransport(), 1)
    pointers = set()
    for _ in range(4):
        slot = ring.acquire()
        assert slot is not None
        buffer = ring.get_buffer(slot, 0, (5,), torch.uint8)
        pointers.add(buffer.data_ptr())
        slot.shipment = ring.transport.send((buffer,), lambda t: t[0].float())
        ring.release(slot, slot.shipment.receive())
    assert len(pointers) == 1


def test_what_nobody_knows_may_hold_the_buffer() -> None:
    class Mine:
        def __init__(self, images: torch.Tensor) -> None:
            self.images = images

    ring = Ring(HostTransport(), 1)
    kept = []
    for number in range(3):
        slot = ring.acquire()
        assert slot is not None
        buffer = ring.get_buffer(slot, 0, (2,), torch.uint8)
        buffer.fill_(number)
        slot.shipment = ring.transport.send((buffer,), lambda t: Mine(t[0]))
        kept.append(slot.shipment.receive())
        ring.release(slot, kept[-1])
    assert [mine.images.tolist() for mine in kept] == [[0, 0], [1, 1], [2, 2]]


def test_buffers_grow_and_shrink_with_what_is_asked_for() -> None:
    ring = Ring(HostTransport(), 1)
    slot = ring.acquire()
    assert slot is not None
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
    assert shipment.copied.query()
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
