"""A CUDA device played on the CPU, whose work is done as late as the rules of streams and events allow.

It is for what goes wrong between host, streams and the allocator, which a fast device shows one time in a thousand: a
batch read before its copy is done, a buffer written while it is still to be copied, memory given away while another
stream's kernels read it, tensors of two devices in one operation. It says nothing about speed.

Tensors on it are wrappers that tell ``cuda:0`` and hold their values in CPU memory. Operations go to the queue of the
current stream and run when somebody waits for them (``order="late"``; ``"backwards"``, where all are waited for, the
newest stream first), at once on all streams but the default one (``"ahead"``), or here and there at random (a number,
the seed). The rules are those of the CUDA C++ Programming Guide
("Asynchronous Concurrent Execution") and of torch's caching allocator (``record_stream``): memory goes back to the
stream that it was taken on, at once, unless other streams were recorded, whose work so far comes first. Memory that is
taken is filled with nonsense first.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NONSENSE = 0xA5
TOTAL = 16 << 30
_CUDA, _META, _KINDS = 1, 14, 16  # of c10::DeviceType

# What gives as many values as there are in the data, or a value to the host: the host waits.
_WAITING = ("nonzero", "_local_scalar_dense", "equal", "masked_select", "_unique2", "unique_dim", "bincount")

# What takes indices that are on the host. (And empty_like and the like take only a shape from there.)
_MIXING = ("index", "index_put", "index_put_")


class Stream:
    """A queue of work. ``torch.cuda.Stream``."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.work: deque[Callable[[], None]] = deque()
        self.queued = self.done = 0
        self.asleep = False  # it works only when it is waited for, as if it were busy for long

    def add(self, work: Callable[[], None]) -> None:
        self.work.append(work)
        self.queued += 1

    def run(self, until: int | None = None) -> None:
        """Does the work up to number ``until``, all of it by default."""
        until = self.queued if until is None else until
        with torch.inference_mode():  # where memory of either kind of tensors may be written
            while self.done < until:
                work = self.work.popleft()
                self.done += 1
                work()

    synchronize = run

    def query(self) -> bool:
        return self.done == self.queued

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        stream, number = event.stream, event.number
        if stream is not None:
            self.add(lambda: stream.run(number))

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())


class Event:
    """A place in a stream's work. ``torch.cuda.Event``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.stream: Stream | None = None
        self.number = 0

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream or _device().current
        self.number = self.stream.queued

    def wait(self, stream: Stream | None = None) -> None:
        (stream or _device().current).wait_event(self)

    def query(self) -> bool:
        return self.stream is None or self.stream.done >= self.number

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.run(self.number)


class Block:
    """Memory that was taken on a stream. When nothing refers to it any more, it can be taken again."""

    def __init__(self, memory: torch.Tensor, stream: Stream) -> None:
        self.memory = memory
        self.stream = stream
        self.used_on: set[Stream] = set()


class SimulatedTensor(torch.Tensor):
    """A tensor on ``cuda:0`` with its values in ``held``, a part of the memory of ``block``."""

    held: torch.Tensor
    block: Block

    @staticmethod
    def __new__(cls, held: torch.Tensor, block: Block) -> SimulatedTensor:
        self: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device="cuda:0"
        )
        self.held, self.block = held, block
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _device().dispatch(func, args, kwargs or {})

    def record_stream(self, stream: Any) -> None:
        if stream is not self.block.stream:
            self.block.used_on.add(stream)

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:
        return f"SimulatedTensor({tuple(self.shape)}, {self.dtype})"


Place = tuple[Stream, int]
"""Where memory is given back: the stream that it was taken on, and its bytes."""


class Simulation(TorchDispatchMode):
    """The device.

    Attributes:
        waits: Operations for which the host waited for all work of a stream.
        staged: Bytes of each copy from memory that is not page-locked, for which the host may have to wait.
        launched: Operations that are work for the device: all but views.
        allocated: Bytes of tensors on it; ``peak`` the most so far.
    """

    def __init__(self, order: str | int = "late") -> None:
        super().__init__()
        self.ahead, self.backwards = order == "ahead", order == "backwards"
        self.random = random.Random(order) if isinstance(order, int) else None
        self.default = Stream()
        self.streams = [self.default]
        self.local = threading.local()
        self.waits: list[str] = []
        self.staged: list[int] = []
        self.launched = 0
        self.allocated = self.peak = 0
        self._free: dict[Place, list[torch.Tensor]] = {}
        self._leaving: list[tuple[Place, torch.Tensor, list[Event]]] = []
        self._pinned: set[int] = set()
        self._lock = threading.RLock()  # memory may be let go of by the garbage collector, at any time

    # Streams ----------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Stream:
        return getattr(self.local, "stream", self.default)

    @contextlib.contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        before = self.current
        self.local.stream = stream or before
        try:
            yield
        finally:
            self.local.stream = before

    def new_stream(self, *_: Any, **__: Any) -> Stream:
        stream = Stream()
        self.streams.append(stream)
        return stream

    def synchronize(self, *_: Any) -> None:
        for stream in reversed(self.streams) if self.backwards else list(self.streams):
            stream.run()

    def _queue(self, work: Callable[[], None]) -> None:
        self.current.add(work)
        if self.ahead and self.current is not self.default and not self.current.asleep:
            self.current.run()
        awake = [stream for stream in self.streams if not stream.asleep]
        if self.random is not None and awake and self.random.random() < 0.5:
            stream = self.random.choice(awake)
            stream.run(min(stream.queued, stream.done + self.random.randrange(1, 4)))

    def sleep(self, cycles: int) -> None:
        stream = self.current
        stream.asleep = True
        stream.add(lambda: setattr(stream, "asleep", False))

    def _wait(self, what: str) -> None:
        self.waits.append(what)
        self.current.run()

    # Memory -----------------------------------------------------------------------------------------------------

    def take(self, like: torch.Tensor) -> SimulatedTensor:
        """New memory for a tensor of the shape, strides and dtype of ``like``."""
        nbytes = like.dtype.itemsize * (1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)))
        nbytes = 0 if not like.numel() else -(-nbytes // 512) * 512
        stream = self.current
        place = stream, nbytes
        with self._lock:
            leaving, self._leaving = self._leaving, []
            for entry in leaving:
                if all(event.query() for event in entry[2]):
                    self._free.setdefault(entry[0], []).append(entry[1])
                else:
                    self._leaving.append(entry)
            free = self._free.get(place)
            memory = free.pop() if free else torch.empty(nbytes, dtype=torch.uint8)
            self.allocated += nbytes
            self.peak = max(self.peak, self.allocated)
        self._queue(lambda: void(memory.fill_(NONSENSE)))
        block = Block(memory, stream)
        weakref.finalize(block, self._let_go, memory, place, block.used_on).atexit = False
        held = memory.view(like.dtype).as_strided(like.shape, like.stride())
        return SimulatedTensor(held, block)

    def _let_go(self, memory: torch.Tensor, place: Place, used_on: set[Stream]) -> None:
        with self._lock:
            self.allocated -= memory.nbytes
            if used_on:
                self._leaving.append((place, memory, [other.record_event() for other in used_on]))
            else:
                self._free.setdefault(place, []).append(memory)

    def _pin(self, buffer: torch.Tensor) -> torch.Tensor:
        storage = buffer.untyped_storage()
        self._pinned.add(storage.data_ptr())
        weakref.finalize(storage, self._pinned.discard, storage.data_ptr()).atexit = False
        return buffer

    def _is_pinned(self, buffer: torch.Tensor) -> bool:
        return buffer.untyped_storage().data_ptr() in self._pinned

    # Operations -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        facts = facts_of(func)
        if facts.is_composite and torch.is_inference_mode_enabled():  # in which it comes here as it is
            with self:
                return func.decompose(*args, **kwargs)
        name, kwargs = facts.name, dict(kwargs)
        tensors = tensors_of((*args, *kwargs.values()))
        there = any(isinstance(tensor, SimulatedTensor) for tensor in tensors)
        asked = kwargs.get("device")
        to_cuda = asked is not None and torch.device(asked).type == "cuda"
        pinned = kwargs.pop("pin_memory", False)
        if name == "is_pinned":
            return not there and self._is_pinned(args[0])
        if not there and not to_cuda:
            if name == "_pin_memory":
                return self._pin(args[0].clone())
            value = func(*args, **kwargs)
            return self._pin(value) if pinned else value
        if name in ("_to_copy", "copy_"):
            return self._copy(func, name, args, kwargs)
        if asked is not None and not to_cuda:
            return func(*each(as_meta, args), **kwargs)  # made elsewhere, like a tensor here: empty_like(x, "cpu")
        if name not in _MIXING and not name.endswith("_like"):
            for tensor in tensors:
                if tensor.ndim and not isinstance(tensor, SimulatedTensor):
                    raise RuntimeError(
                        "Expected all tensors to be on the same device, but found at least two devices, "
                        f"cuda:0 and cpu! (in {name})"
                    )
        return self._operate(func, facts, args, kwargs)

    def _operate(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> Any:
        on_device = kwargs.pop("device", None) is not None and not facts.is_mutable
        masks = facts.name.startswith("index") and any(
            tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors_of(args[1:2])
        )
        inside = each(held, args), each(held, kwargs)
        if facts.name in _WAITING or masks:
            self.launched += 1
            self._wait(facts.name)
            return each(self._given, func(*inside[0], **inside[1]))
        if facts.is_mutable:
            self.launched += 1
            values = dict(zip(facts.arguments, args, strict=False)) | kwargs
            changed = [values[name] for name in facts.changed]
            self._queue(lambda: void(func(*inside[0], **inside[1])))
            return changed[0] if len(changed) == 1 else tuple(changed)
        if facts.is_view:
            block = next(tensor.block for tensor in tensors_of(args) if isinstance(tensor, SimulatedTensor))
            return each(lambda tensor: SimulatedTensor(tensor, block), func(*inside[0], **inside[1]))
        result = each(self.take, shape_of(func, args, kwargs | ({"device": "meta"} if on_device else {})))
        if not facts.name.startswith(("empty", "new_empty")):
            self.launched += 1
            if on_device:
                inside[1]["device"] = "cpu"
            targets = each(held, tensors_of((result,)))

            def work() -> None:
                for target, value in zip(targets, tensors_of((func(*inside[0], **inside[1]),)), strict=True):
                    target.copy_(value)

            self._queue(work)
        return result

    def _given(self, value: torch.Tensor) -> SimulatedTensor:
        result = self.take(value)
        self._queue(lambda: void(result.held.copy_(value)))
        return result

    def _copy(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Between host and device, or on it."""
        source = args[1] if name == "copy_" else args[0]
        late = bool(kwargs.pop("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2]))
        if name == "copy_":
            target = args[0]
        else:
            asked = kwargs.pop("device", None)
            shape = shape_of(func, (source,), kwargs)
            if asked is not None and torch.device(asked).type == "cpu":
                target = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype)
            else:
                target = self.take(shape)
        self.launched += 1
        value, into = held(source), held(target)
        if isinstance(source, SimulatedTensor) and isinstance(target, SimulatedTensor):
            late = True
        elif isinstance(source, SimulatedTensor):
            late = late and self._is_pinned(into)
        elif late and not (self._is_pinned(value) and value.dtype == into.dtype and value.is_contiguous()):
            value = value.clone()  # by way of memory of the driver's, from which it is copied later
            self.staged.append(value.nbytes)
        self._queue(lambda: void(into.copy_(value)))
        if not late:
            self._wait(name)
        return target


def void(_: Any) -> None:
    """For work whose value nobody wants."""


def held(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.held if isinstance(tensor, SimulatedTensor) else tensor


def as_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


# Arguments and results of operations: tensors and other values, and lists, tuples and dicts of these.


def each(function: Callable[[Any], Any], values: Any) -> Any:
    """``values`` with ``function`` applied to the tensors."""
    if isinstance(values, torch.Tensor):
        return function(values)
    if isinstance(values, dict):
        return {name: each(function, value) for name, value in values.items()}
    if type(values) in (tuple, list):
        return type(values)([each(function, value) for value in values])
    return values


def tensors_of(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (tuple, list):
            found += tensors_of(value)
    return found


class Facts(NamedTuple):
    """Of an operation."""

    name: str
    is_composite: bool  # made of other operations
    is_mutable: bool
    is_view: bool
    arguments: list[str]
    changed: list[str]


@functools.cache
def facts_of(func: Any) -> Facts:
    schema = func._schema
    aliases = {argument.name: argument.alias_info for argument in schema.arguments}
    return Facts(
        schema.name.removeprefix("aten::"),
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), torch._C.DispatchKey.CompositeImplicitAutograd),
        schema.is_mutable,
        any(alias is not None for alias in aliases.values()),
        [*aliases],
        [name for name, alias in aliases.items() if alias is not None and alias.is_write],
    )


def shape_of(func: Any, args: Any, kwargs: Any) -> Any:
    """Result of an operation on tensors without values. Torch finds it in Python: each is asked for once."""
    key = func, _key(args), _key(kwargs)
    if key not in _shapes:
        _shapes[key] = func(*each(as_meta, args), **each(as_meta, kwargs))
    return _shapes[key]


_shapes: dict[Any, Any] = {}


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in value.items())
    return tuple(map(_key, value)) if isinstance(value, (tuple, list)) else (type(value), value)


_running: list[Simulation] = []


def _device() -> Simulation:
    return _running[-1]


@contextlib.contextmanager
def simulated_cuda(order: str | int = "late") -> Iterator[Simulation]:
    """A simulated device that torch and packstore take for ``cuda:0``, on this thread. See :func:`is_possible`."""
    device = Simulation(order)
    here = torch.device("cuda", 0)
    names: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "Stream": device.new_stream,
        "Event": Event,
        "stream": device.on,
        "device": lambda _: contextlib.nullcontext(),
        "current_stream": lambda of=here: _current(device, of),
        "default_stream": lambda of=here: device.default,
        "synchronize": device.synchronize,
        "mem_get_info": lambda _=None: (TOTAL - device.allocated, TOTAL),
        "memory_allocated": lambda _=None: device.allocated,
        "empty_cache": lambda: None,
        "_sleep": device.sleep,
        "get_device_name": lambda _=None: "simulated",
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(_guarded())
        for name, value in names.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        if hasattr(torch, "accelerator"):  # from torch 2.6 on
            patch = mock.patch.object(torch.accelerator, "is_available", return_value=True)
            stack.enter_context(patch)
            patch = mock.patch.object(torch.accelerator, "current_accelerator", return_value=torch.device("cuda"))
            stack.enter_context(patch)
        # torch.tensor(..., device="cuda") as a tensor of the host that is then copied, which a mode can see.
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        _running.append(device)
        stack.callback(_running.remove, device)
        stack.enter_context(device)
        yield device
        device.synchronize()


def _current(device: Simulation, of: Any) -> Stream:
    if torch.device(of).type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {of}")  # as torch says
    return device.current


def is_possible() -> bool:
    """Whether this build of torch lets itself be told of a device."""
    try:
        return bool(_known_devices()[_META])
    except (OSError, ValueError):
        return False


def _known_devices() -> Any:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    return (ctypes.c_void_p * _KINDS).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """A build without CUDA knows no device to switch to when a tensor of it is indexed, and one with it finds none.
    That of the meta device, which does nothing, is as good."""
    known = _known_devices()
    before = known[_CUDA]
    known[_CUDA] = known[_META]
    yield
    known[_CUDA] = before


def check_waits(device: Any, batches: Iterable[Any], waits: int = 0, staged: int | None = 0) -> None:
    """Goes through the batches twice, and checks how often the host waits, and copies by the way, the second time."""
    for _ in range(2):  # the first makes what is made once
        device.waits.clear()
        device.staged.clear()
        for _batch in batches:
            pass
    assert len(device.waits) <= waits, device.waits
    assert staged is None or len(device.staged) == staged, device.staged
