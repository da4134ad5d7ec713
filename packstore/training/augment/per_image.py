"""``PerImage``: runs user functions image by image, each with seeded random numbers."""

from __future__ import annotations

import functools
import inspect
import random
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from packstore.core.errors import UsageError
from packstore.core.options import check_bools
from packstore.training.augment.base import Operation, Size
from packstore.training.augment.steps import InPlace, check_function, iterate_parts, list_names, stable_repr
from packstore.training.random_draws import Draws, derive_key
from packstore.training.record_notes import mark_records
from packstore.training.single_threaded import single_threaded


@dataclass(frozen=True, repr=False)
class PerImage(Operation):
    """Calls a function image by image, so that a random function draws for each image.

    Its draws depend only on seed, epoch, record, and index in the list. Results do not depend on threads, ranks or
    resuming.

    It may be the first operation, on images of any size: then the images are on the CPU. Later operations are drawn for
    the sizes of its results. Results of one size make a batch; see ``collate`` of :class:`packstore.PackedLoader` for
    others.

    On the CPU the decoding threads make the calls, if all earlier operations run while decoding. They do so for
    functions that should be stateless:

    - torchvision's transforms that draw only from torch. During a call torch uses a generator of the thread.
    - Any ``fn`` with ``threads=True``. The same generator is used.
    - Any ``fn`` with ``generator=True``. It receives the generator.

    Other functions run one after another in the thread that asks for batches. The process's generators of torch, numpy
    and Python are seeded before each call, and restored after the last. So are generators that the function itself
    holds, as transforms of albumentations do, but they are not restored. Meanwhile torch starts no threads.

    Args:
        fn: Called with a tensor ``(C, H, W)``. Returns one.
        generator: Call ``fn(image, generator=…)``, with a seeded :class:`torch.Generator` on the image's device.
        threads: Promise that ``fn`` is thread-safe, and draws random numbers only from torch, if at all (not from
            :mod:`random` or numpy). This cannot be checked.

    Raises:
        UsageError: ``fn`` is not callable, or takes no ``generator``. When called: ``fn`` returns anything but tensors
            of one shape.
    """

    calls_each_image: ClassVar[bool] = True

    fn: Callable[..., Tensor]
    generator: bool = False
    threads: bool = False

    def __post_init__(self) -> None:
        check_function("PerImage: fn", self.fn)
        if not callable(self.fn):
            raise UsageError(f"PerImage calls a function with each image, got {self.fn!r}")
        check_bools(generator=self.generator, threads=self.threads)
        if self.generator and not _takes_generator(self.fn):
            raise UsageError(
                f"PerImage with generator=True calls fn(image, generator=…), and {stable_repr(self.fn)} takes no "
                "generator; leave generator=True out, and the generators of torch, numpy and Python are seeded instead"
            )
        if self.threads and find_generators(self.fn):
            raise UsageError(
                f"{self!r}: threads=True is for functions that draw from torch alone, and this one holds generators of "
                "its own, which threads would share: leave threads=True out, or for albumentations end augment= with "
                "packstore.augment.Albumentations(...)"
            )

    def __repr__(self) -> str:
        options = "".join(f", {name}=True" for name in ("generator", "threads") if getattr(self, name))
        return f"PerImage({stable_repr(self.fn)}{options})"

    def size_after(self, size: Size | None) -> Size | None:
        """Returns None: a user's function may return any size."""
        return None

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """Calls the function with each image, on the calling thread. Returns an empty batch itself."""
        with single_threaded():  # one image is too little work to divide
            results = self.call_each(images, draws) if self.generator else self._call_seeded(images, draws)
        return self.stack_results(results) if results else images

    @cached_property
    def runs_in_threads(self) -> bool:
        """True if decoding threads may call the function, with random numbers from a generator of this class."""
        return self.generator or self.threads or all(map(_draws_from_torch, iterate_parts(self.fn)))

    def call_each(self, images: Iterable[Tensor], draws: Draws) -> list[Tensor]:
        """Calls the function with a copy of each image. Thread-safe.

        A torch generator, seeded for the record in ``draws``, is passed as ``generator`` or replaces torch's own.
        """
        results = []
        for image, seed, record in zip(images, draws.bits(0).tolist(), draws.records, strict=True):
            generator = torch.Generator(image.device).manual_seed(seed)
            if self.generator:
                results.append(self._call_function(image, record, generator=generator))
            else:
                with ThreadGenerator(generator):
                    results.append(self._call_function(image, record))
        return results

    def _call_function(self, image: Tensor, record: Any, **options: Any) -> Tensor:
        """Calls the function with a copy of an image, and marks errors with its ``record``."""
        try:
            return self.fn(image.clone(), **options)
        except Exception as error:
            mark_records(error, record.reshape(1))
            raise

    def _call_seeded(self, images: Tensor, draws: Draws) -> list[Tensor]:
        """Calls the function with a copy of each image, after seeding torch, numpy and Python for its record."""
        cuda = [images.device] if images.device.type == "cuda" else []
        own = find_generators(self.fn)  # seeded, but not restored
        numpys, pythons = np.random.get_state(), random.getstate()
        results = []
        try:
            with torch.random.fork_rng(cuda):
                for image, seed, record in zip(images, draws.bits(0).tolist(), draws.records, strict=True):
                    torch.default_generator.manual_seed(seed)
                    for device in cuda:
                        with torch.cuda.device(device):
                            torch.cuda.manual_seed(seed)
                    np.random.seed(seed)
                    random.seed(seed)
                    seed_generators(own, seed)
                    results.append(self._call_function(image, record))
        finally:
            np.random.set_state(numpys)
            random.setstate(pythons)
        return results

    def stack_results(self, results: Sequence[Any]) -> Tensor:
        """Stacks results of the function to a batch. Raises :class:`UsageError` unless all are tensors of one shape."""
        for result in results:
            if not isinstance(result, Tensor) or result.shape != results[0].shape:
                found = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
                raise UsageError(f"{self!r} should give tensors of one shape, and gave {found}")
        return torch.stack(list(results))


_FIRST_VERSION = ("torchvision.transforms.transforms", "torchvision.transforms.autoaugment")
_OTHERS = {"Lambda", "RandomChoice", "RandomOrder", "RandomTransforms"}
"""Transforms of these modules that call user functions or draw from Python's generator."""


def _draws_from_torch(part: Any) -> bool:
    """Tells if a function is known to draw random numbers only from torch."""
    name, module = type(part).__name__, type(part).__module__
    if isinstance(part, InPlace):
        return True  # the function in it is tested separately
    if module.startswith("torchvision.transforms.v2."):
        return name != "Lambda"  # which calls a user's function
    return module in _FIRST_VERSION and name not in _OTHERS


def _takes_generator(fn: Callable[..., Any]) -> bool:
    """Tells if a function can be called with ``generator=``."""
    while isinstance(fn, InPlace):
        fn = fn.fn
    try:
        parameters = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn).parameters
    except (TypeError, ValueError):
        return True  # the signature is unknown
    return "generator" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


_MOST_OBJECTS = 2000  # a pipeline of albumentations with 30 transforms has some 500
_OF_PROCESS = {id(getattr(random, "_inst", None)), id(getattr(np.random.mtrand, "_rand", None))}
"""Python's and numpy's own, which :class:`PerImage` seeds itself; torch's is no object of these classes."""

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_OPAQUE = (*_GENERATORS, types.ModuleType, type, torch.Tensor, np.ndarray, str, bytes, int, float, bool, complex)


def find_generators(fn: Callable[..., Any]) -> list[Any]:
    """Lists the random generators that a function reaches, each once, always in the same order.

    Follows closures, defaults, globals named in the code, attributes and containers. A transform of albumentations, for
    example, has two generators in its attributes.
    """
    found: dict[int, Any] = {}
    seen: set[int] = {id(torch.default_generator), *_OF_PROCESS}
    waiting: list[Any] = [fn]
    for part in waiting:  # grows meanwhile
        if id(part) in seen or len(seen) > _MOST_OBJECTS:
            continue
        seen.add(id(part))
        if isinstance(part, _GENERATORS):
            found[id(part)] = part
        elif not isinstance(part, _OPAQUE):
            waiting += _list_parts(part)
    return list(found.values())


def seed_generators(generators: list[Any], seed: int) -> None:
    """Seeds generators, each with its own number."""
    for number, generator in enumerate(generators):
        own = derive_key(seed, number) & 0xFFFFFFFF  # the most that numpy's RandomState takes
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(own).state
        elif isinstance(generator, torch.Generator):
            generator.manual_seed(own)
        else:
            generator.seed(own)


def _list_parts(part: Any) -> list[Any]:
    """Lists what an object refers to directly."""
    if isinstance(part, dict):
        return list(part.values())
    if isinstance(part, list | tuple):  # not sets, whose order differs between processes
        return list(part)
    if isinstance(part, functools.partial):
        return [part.func, *part.args, *part.keywords.values()]
    if isinstance(part, types.MethodType):
        return [part.__self__, part.__func__]
    if isinstance(part, types.FunctionType):
        cells = [cell.cell_contents for cell in part.__closure__ or () if cell != types.CellType()]
        names = list_names(part.__code__)
        named = [value for name, value in part.__globals__.items() if name in names]
        return [*cells, *(part.__defaults__ or ()), *(part.__kwdefaults__ or {}).values(), *named]
    methods = (vars(kind).get(name) for kind in type(part).__mro__ for name in ("__call__", "forward"))
    own = [
        each for each in methods if isinstance(each, types.FunctionType) and not each.__module__.startswith("torch.")
    ]
    return [*getattr(part, "__dict__", {}).values(), *own]


class ThreadGenerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes torch's random operations on the calling thread draw from ``generator``, instead of the process's
    generator.

    ``with ThreadGenerator(generator): fn(image)`` gives the result of ``fn(image)`` after ``torch.manual_seed`` with
    the same seed. Other threads may draw numbers meanwhile. Operations that are called with a generator keep it.

    Raises:
        UsageError: Within the block: a random operation has no version with a generator.
    """

    # Modes of torch's dispatcher are per thread.

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            func, kwargs = _find_generator_overload(func), kwargs | {"generator": self._generator}
        return func(*args, **kwargs)


def _find_generator_overload(operation: Any) -> Any:
    """Returns the overload of a random torch operation that takes a generator."""
    if any(argument.name == "generator" for argument in operation._schema.arguments):
        return operation
    versions = operation.overloadpacket
    for name in (f"{operation._overloadname}_generator", "generator"):
        if name in versions.overloads():
            return getattr(versions, name)
    raise UsageError(f"{operation} takes no generator, so its numbers would depend on what other threads draw")
