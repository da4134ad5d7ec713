"""Reusable batch buffers and their copy to the device. The only module that makes pinned memory, streams and events.

A batch is assembled in a host buffer (page-locked for a GPU), *sent* to the device, processed there, and *received* by
the consumer:

- CUDA: ``send`` queues the copy and the device work on a stream of its own and returns at once; ``receive`` makes the
  consumer's stream wait for it, never the host. An event signals the end of the copy, which frees the buffer.
- CPU: nothing is copied. If the work does not change the buffer, the consumer gets it, and the slot allocates a new
one.

The logic is the same for both, so a machine without a GPU can test it, with a fake device whose copies are delayed.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_KEPT_BUFFERS = 4

Tensors = tuple[torch.Tensor, ...]
DeviceWork = Callable[[Tensors], Any]
"""Function from the tensors on the device to the value that the consumer gets (tensors in tuples or lists)."""


class Transport(ABC):
    """Copies host buffers to one device.

    Attributes:
        asynchronous: Copies run in parallel to the host. Sending early saves time.
    """

    asynchronous = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocates a host buffer that can be sent. Its content is undefined."""

    def wait_for_current_stream(self) -> None:
        """Makes later sends wait for the work that is queued on the caller's stream now. By default does nothing."""
        return

    @abstractmethod
    def send(self, host: Tensors, work: DeviceWork) -> Shipment:
        """Starts the copy of ``host`` to the device, and after it ``work`` on the copies. Thread-safe.

        Returns the shipment, which the consumer receives. A transport may defer copy and work until then.
        """


class Shipment(ABC):
    """Batch in transfer to the device.

    Attributes:
        copied: CUDA event after which its host buffers may be overwritten; None if they may be once it is received.
    """

    copied: Any = None

    @abstractmethod
    def receive(self) -> Any:
        """Returns the result of the device work, safe to use on the caller's current stream. Call it once."""


class HostTransport(Transport):
    """Transport for the CPU: copies nothing.

    When the last tensor over a buffer is gone, its memory can be allocated again. At most four such buffers are kept.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        # New memory for each batch would cost page faults: a fifth of the time in which two threads crop and resize.
        self._returned: deque[NDArray[np.uint8]] = deque(maxlen=_KEPT_BUFFERS)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocates a tensor, if possible in the memory of an earlier one. Views of the tensor keep its memory in
        use."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not nbytes:  # torch cannot view an empty tensor as another dtype
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        memory = self._take_buffer(nbytes)
        # A tensor's storage keeps a reference to the array that it was made from. This view belongs to it alone, so it
        # is finalised together with the storage, whatever views of it existed.
        lent = memory[:nbytes]
        weakref.finalize(lent, self._returned.append, memory).atexit = False
        return torch.from_numpy(lent).view(dtype).view(*shape)

    def _take_buffer(self, nbytes: int) -> NDArray[np.uint8]:
        """Takes a returned buffer of ``nbytes`` to twice as many, or allocates one."""
        for _ in range(len(self._returned)):
            try:
                memory = self._returned.popleft()
            except IndexError:  # another thread was quicker
                break
            # Buffers of other sizes are dropped.
            if nbytes <= memory.nbytes <= 2 * nbytes:
                return memory
        return np.empty(nbytes, np.uint8)

    def send(self, host: Tensors, work: DeviceWork) -> Shipment:
        """Returns a shipment at once. ``work`` runs when the shipment is received."""
        return _HostShipment(host, work)


class _HostShipment(Shipment):
    """Shipment whose work runs when it is received, in the consumer's thread."""

    def __init__(self, host: Tensors, work: DeviceWork) -> None:
        self._waiting: tuple[Tensors, DeviceWork] | None = host, work

    def receive(self) -> Any:
        """Runs the work in the consumer's thread. Raises :class:`RuntimeError` the second time."""
        # Here torch's own threads do the work. Workers, which keep torch single-threaded, have no time to spare for it.
        # References to host tensors and work are dropped first, because the slot keeps this shipment for longer.
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            raise RuntimeError("a shipment is received once")
        host, work = waiting
        return work(host)


class CudaTransport(Transport):
    """Transport for CUDA: copies and device work run on a stream of their own.

    Attributes:
        followed: A stream that all later copies wait for, or None. :meth:`_CudaShipment.receive` sets it.
    """

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.followed: Any = None

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocates a tensor in pinned memory."""
        return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)

    def wait_for_current_stream(self) -> None:
        """Makes the transport's stream wait for the work that is queued on the caller's current stream now."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def send(self, host: Tensors, work: DeviceWork) -> Shipment:
        """Queues copy and work on the transport's stream, and returns at once.

        Both wait for the work on :attr:`followed`, if it is set. If a tensor is on the device already, they also wait
        for the work on the caller's current stream.
        """
        copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        if self.followed is not None:
            self._stream.wait_stream(self.followed)
        for tensor in host:
            if tensor.device == self.device:  # there already: made by the caller's stream, and let go of by it
                self.wait_for_current_stream()
                tensor.record_stream(self._stream)
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            there = tuple(tensor.to(self.device, non_blocking=True) for tensor in host)
            copied.record(self._stream)
            value = work(there)
            done.record(self._stream)
        return _CudaShipment(self, value, copied, done)


class _CudaShipment(Shipment):
    """Shipment on a CUDA device."""

    def __init__(self, transport: CudaTransport, value: Any, copied: Any, done: Any) -> None:
        self._transport = transport
        self._value = value
        self.copied = copied
        self._done = done

    def receive(self) -> Any:
        """Makes the caller's current stream wait for the work; the host does not wait.

        The memory of the result's tensors stays allocated until that stream has read them. If :func:`find_tensors`
        cannot list them, all later sends wait for that stream.
        """
        value, self._value = self._value, None
        tensors, stream = find_tensors(value), torch.cuda.current_stream(self._transport.device)
        stream.wait_event(self._done)
        # The memory belongs to the copy stream, whose next batch would be written to it as soon as this one is gone,
        # while the consumer's kernels may still read it.
        for tensor in tensors or ():
            if tensor.device.type == "cuda":  # the user's transform may return tensors on other devices
                theirs = torch.cuda.current_stream(tensor.device)
                theirs.wait_event(self._done)
                tensor.record_stream(theirs)
        if tensors is None:  # a value of the user's that may hold tensors out of sight
            self._transport.followed = stream
        return value


class ProducerStream:
    """Remembers the CUDA stream on which tensors are made, to make other streams wait for them. Does nothing on other
    devices."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._stream: Any = None

    def record(self) -> None:
        """Remembers the current stream, on which the tensors are being made."""
        if self._cuda:
            self._stream = torch.cuda.current_stream(self._device)

    def wait(self, *tensors: torch.Tensor) -> None:
        """Makes the current stream wait for the remembered one, if that is another.

        Keeps the memory of ``tensors`` until the current stream has read them.
        """
        if not self._cuda or self._stream is None:
            return
        stream = torch.cuda.current_stream(self._device)
        if stream != self._stream:
            stream.wait_stream(self._stream)
            for tensor in tensors:
                tensor.record_stream(stream)


def transport_to(device: torch.device) -> Transport:
    """Returns the transport for ``device``.

    - CPU: :class:`HostTransport`.
    - CUDA: :class:`CudaTransport`, on the current device if ``device`` has no index.
    - Others: :class:`PlainTransport`.
    """
    if device.type == "cuda":
        return CudaTransport(device if device.index is not None else torch.device("cuda", torch.cuda.current_device()))
    return HostTransport() if device.type == "cpu" else PlainTransport(device)


class PlainTransport(Transport):
    """Transport for other devices than CPU and CUDA. Copies, and runs the work, when the batch is received."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocates a tensor in ordinary host memory."""
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")

    def send(self, host: Tensors, work: DeviceWork) -> Shipment:
        """Returns a shipment at once. Copy and ``work`` run when the shipment is received."""
        return _HostShipment(host, lambda tensors: work(tuple(t.to(self.device) for t in tensors)))


class Slot:
    """Host buffers of one batch in the ring, and the batch's shipment."""

    def __init__(self) -> None:
        self.buffers: list[torch.Tensor | None] = []
        self.shipment: Shipment | None = None

    @property
    def copied(self) -> Any:
        """CUDA event after which the buffers may be overwritten; None if they may be now."""
        return None if self.shipment is None else self.shipment.copied


class Ring:
    """Fixed number of reusable slots for batches, so that memory does not grow with an epoch.

    Not thread-safe: the consumer alone acquires and releases. Workers only write into buffers.
    """

    def __init__(self, transport: Transport, slots: int) -> None:
        self.transport = transport
        self._free = [Slot() for _ in range(slots)]
        self._leaving: list[Slot] = []

    def acquire(self) -> Slot | None:
        """Takes a slot whose buffers are free. Returns None if all slots contain batches that are not received yet.

        If no slot is free, but batches were received, waits until one of these is copied to the device.
        """
        if not self._free and self._leaving:
            slot = next((s for s in self._leaving if s.copied is None or s.copied.query()), self._leaving[0])
            if slot.copied is not None:
                slot.copied.synchronize()
            self._leaving.remove(slot)
            slot.shipment = None
            self._free.append(slot)
        return self._free.pop() if self._free else None

    def get_buffer(self, slot: Slot, number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns host buffer ``number`` of a slot as a tensor of this shape and dtype.

        Allocates a new buffer if none has this dtype, or the present one is too small. The content is undefined.
        """
        while len(slot.buffers) <= number:
            slot.buffers.append(None)
        wanted = math.prod(shape)
        held = slot.buffers[number]
        # The consumer may be in torch.inference_mode(). That holds for its thread alone, and others could not write
        # into tensors that were made in it.
        with torch.inference_mode(False):
            if held is None or held.dtype != dtype or held.numel() < wanted:
                held = slot.buffers[number] = self.transport.allocate((wanted,), dtype)
            return held[:wanted].view(*shape)

    def release(self, slot: Slot, received: Any) -> None:
        """Frees a slot whose batch was received.

        The consumer keeps the buffers whose memory ``received`` may use. The slot allocates new ones later.
        """
        tensors = find_tensors(received)
        if tensors is None:  # a value of the user's that may share the buffers
            slot.buffers = []
        else:
            for number, held in enumerate(slot.buffers):
                if held is not None and any(shares_memory(tensor, held) for tensor in tensors):
                    slot.buffers[number] = None
        self._leaving.append(slot)


def shares_memory(tensor: torch.Tensor, buffer: torch.Tensor) -> bool:
    """Tells if the storage of ``tensor`` begins within that of ``buffer``. Views share a storage.

    - Another device: False.
    - Sparse tensors: True, without a look at their memory.
    """
    if tensor.device != buffer.device:
        return False
    if tensor.layout != torch.strided:
        return True  # a sparse tensor may hold the memory in parts
    storage = buffer.untyped_storage()
    return 0 <= tensor.untyped_storage().data_ptr() - storage.data_ptr() < max(1, storage.nbytes())


def find_tensors(value: Any) -> list[torch.Tensor] | None:
    """Lists all tensors in nested tuples, lists and dicts.

    Numbers, strings, bytes and None hold no tensors. Returns None if any other object is found.
    """
    if isinstance(value, torch.Tensor):
        return [value]
    if value is None or isinstance(value, (str, bytes, int, float)):
        return []
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (tuple, list)):
        return None
    tensors: list[torch.Tensor] = []
    for item in value:
        inside = find_tensors(item)
        if inside is None:
            return None
        tensors += inside
    return tensors
