"""``PerImage``: runs user functions image by image."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.core.options import check_bools
from packstore.training.augment.base import Operation, Size
from packstore.training.augment.in_place import InPlace, stable_repr
from packstore.training.augment.own_generators import find_generators, seed_generators
from packstore.training.augment.steps import check_function, iterate_parts
from packstore.training.augment.thread_generator import ThreadGenerator
from packstore.training.random_draws import Draws
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
