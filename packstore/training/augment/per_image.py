"""Runs user functions image by image; refuses functions that would draw only once per batch."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.core.options import check_bools
from packstore.training.arguments import refuse_class
from packstore.training.augment.base import Operation, Size
from packstore.training.augment.in_place import InPlace, stable_repr
from packstore.training.augment.logic import Compose
from packstore.training.augment.mixing import refuse_mixer
from packstore.training.augment.own_generators import find_generators, seed_generators
from packstore.training.augment.recipes import recipe
from packstore.training.augment.thread_generator import ThreadGenerator
from packstore.training.augment.timm_policies import POLICY_BEGINNINGS, TimmAugment
from packstore.training.random_draws import Draws
from packstore.training.record_notes import mark_records
from packstore.training.single_threaded import single_threaded

_RANDOM = {
    "AugMix",
    "AutoAugment",
    "ColorJitter",
    "ElasticTransform",
    "RandAugment",
    "ScaleJitter",
    "TrivialAugmentWide",
}
_RANDOM_IN_A_RANGE = {"GaussianBlur": "sigma", "JPEG": "quality"}  # and the attribute that has the range
_RANDOM_EACH = {"GaussianNoise"}  # for each pixel of a batch, from torch's own generator
_OURS = {
    *("AugMix", "AutoAugment", "ColorJitter", "GaussianBlur", "GaussianNoise", "RandAugment", "RandomAdjustSharpness"),
    *("RandomApply", "RandomAutocontrast", "RandomChannelPermutation", "RandomChoice", "RandomCrop", "RandomEqualize"),
    *("RandomErasing", "RandomGrayscale", "RandomHorizontalFlip", "RandomInvert", "RandomOrder"),
    *("RandomPhotometricDistort", "RandomPosterize", "RandomResizedCrop", "RandomSolarize", "TrivialAugmentWide"),
}


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

    - torchvision's transforms that draw from torch alone. During a call torch uses a generator of the thread.
    - Any ``fn`` with ``threads=True``. The same generator is used.
    - Any ``fn`` with ``generator=True``. It receives the generator.

    Other functions run one after another in the thread that asks for batches. The process's generators of torch, numpy
    and Python are seeded before each call, and restored after the last. So are generators that the function itself
    holds, as transforms of albumentations do, but they are not restored. Meanwhile torch starts no threads.

    Args:
        fn: Called with a tensor ``(C, H, W)``. Returns one.
        generator: Call ``fn(image, generator=…)``, with a seeded :class:`torch.Generator` on the image's device.
        threads: Promise that ``fn`` is thread-safe, and draws no numbers or from torch alone (not from :mod:`random` or
            numpy). This cannot be checked.

    Raises:
        UsageError: ``fn`` is not callable, or takes no ``generator``. When called: ``fn`` returns anything but tensors
            of one shape.
    """

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
        """True if decoding threads may call the function. Its random numbers then come from a generator of this
        class."""
        return self.generator or self.threads or all(map(_draws_from_torch, iterate_parts(self.fn)))

    def call_each(self, images: Iterable[Tensor], draws: Draws) -> list[Tensor]:
        """Calls the function with a copy of each image, a record of ``draws``. Thread-safe.

        A torch generator with the image's seed is passed as ``generator``, or replaces torch's own during the call.
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
        """Calls the function with a copy of the image of a record, whose id is ``record``."""
        try:
            return self.fn(image.clone(), **options)
        except Exception as error:
            mark_records(error, record.reshape(1))
            raise

    def _call_seeded(self, images: Tensor, draws: Draws) -> list[Tensor]:
        """Calls the function with a copy of each image, a record of ``draws``.

        Seeds the process's generators of torch, numpy and Python before each call, and restores them in the end.
        """
        cuda = [images.device] if images.device.type == "cuda" else []
        own = find_generators(self.fn)
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
        """Stacks results of the function to a batch. Raises :class:`UsageError` unless they are tensors of one
        shape."""
        for result in results:
            if not isinstance(result, Tensor) or result.shape != results[0].shape:
                found = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
                raise UsageError(f"{self!r} should give tensors of one shape, and gave {found}")
        return torch.stack(list(results))


def check_function(name: str, function: Any) -> None:
    """Raises :class:`UsageError` for a class in place of an object, for a mixer, and for a transform of albumentations,
    which takes named arguments."""
    refuse_class(name, function)
    refuse_mixer(function)
    if type(function).__module__.startswith("albumentations."):
        raise UsageError(
            f"{name} calls a function with an image, and albumentations takes named arguments: end augment= of the "
            f"PackedLoader with packstore.augment.Albumentations({type(function).__name__}(...)), or for items give "
            "PackedDataset(…, output='numpy', transform=lambda image: pipeline(image=image)['image'])"
        )


def may_resize(op: Any) -> bool:
    """Tells if an entry of a user's list is a function that may return images of any size."""
    inner = op.fn if isinstance(op, PerImage) else op
    return not isinstance(inner, InPlace) and (isinstance(op, PerImage) or not isinstance(op, Operation))


_FIRST_VERSION = ("torchvision.transforms.transforms", "torchvision.transforms.autoaugment")
_OTHERS = {"Lambda", "RandomChoice", "RandomOrder", "RandomTransforms"}
"""Transforms of those modules that call user functions, or draw from Python's generator."""


def _draws_from_torch(part: Any) -> bool:
    """Tells if a function is known to draw random numbers from torch alone.

    - torchvision's transforms: True, except ``Lambda`` and those that draw from Python's generator.
    - :class:`InPlace`: True. The caller tests the function in it separately.
    - Others: False.
    """
    name, module = type(part).__name__, type(part).__module__
    if isinstance(part, InPlace):
        return True
    if module.startswith("torchvision.transforms.v2."):
        return name != "Lambda"
    return module in _FIRST_VERSION and name not in _OTHERS


def _takes_generator(fn: Callable[..., Any]) -> bool:
    """Tells if a function can be called with ``generator=``. True if its signature is unknown."""
    while isinstance(fn, InPlace):
        fn = fn.fn
    try:
        parameters = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn).parameters
    except (TypeError, ValueError):
        return True
    return "generator" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def refuse_drawing_functions(**functions: Any) -> None:
    """Raises :class:`UsageError` for functions that would be called once per batch, but draw random numbers.

    - Random transforms of torchvision would draw the same for all images.
    - An :class:`Operation` would get no draws.

    ``functions``: the user's functions, or lists of functions, by the name of their option.
    """
    for name, function in functions.items():
        for part in as_operations([] if function is None else function, "put it into augment=: "):
            inner = list(iterate_parts(part))[-1]
            if isinstance(inner, Operation):
                raise UsageError(
                    f"{name} is called with batches alone, and {inner!r} draws a record: put it into augment="
                )


def as_operations(augment: Any, use: str = "use ") -> tuple[Any, ...]:
    """Flattens a user's ``augment=`` to a tuple. Expands ``Compose`` and ``nn.Sequential``.

    Replaces texts by operations: a single text is the name of a recipe, or with a dash also a policy of timm. A text in
    a list is a policy of timm.

    Args:
        augment: One operation, a list of operations, or a text.
        use: Beginning of the advice in messages.

    Raises:
        UsageError: A transform of torchvision draws random numbers. A name is unknown, or of a recipe with views.
            ``augment`` is not a list.
    """
    if isinstance(augment, str):
        augment = _recipe_or_policy(augment)
    if _is_sequence(augment) or callable(augment):
        augment = [augment]
    if getattr(augment, "views", None) is not None:
        raise UsageError(
            f"the recipe {augment.name} has several views of an image: views=recipe({augment.name!r}).views"
        )
    if not isinstance(augment, Iterable):
        refuse_mixer(augment)
        raise UsageError(f"augment should be a list of operations, got {augment!r}")
    flat: list[Any] = []
    for operation in augment:
        if isinstance(operation, str):
            flat.append(TimmAugment(operation))
        elif _is_sequence(operation):
            parts = operation if isinstance(operation, torch.nn.Sequential) else operation.transforms
            flat += as_operations(list(parts), use)
        else:
            check_function("augment", operation)
            for part in iterate_parts(operation):
                _refuse_random(part, use)
            flat.append(operation)
    return tuple(flat)


def _recipe_or_policy(name: str) -> list[Any]:
    """Returns the operations of a recipe, or a list with a policy of timm: a name with a dash after a known beginning.

    Raises :class:`UsageError` for any other name."""
    beginning, dash, _ = name.partition("-")
    if dash and beginning in POLICY_BEGINNINGS:
        return [name]
    try:
        return recipe(name)
    except UsageError as error:
        raise UsageError(f"{error}; or a policy of timm, such as rand-m9-mstd0.5") from None


def _is_sequence(operation: Any) -> bool:
    """Tells if an operation is torch's ``Sequential``, or ``Compose`` of packstore or torchvision. Subclasses are
    not."""
    kind = type(operation)
    return kind in (torch.nn.Sequential, Compose) or (is_of_torchvision(kind) and kind.__name__ == "Compose")


def is_of_torchvision(kind: type) -> bool:
    """Tells if a class is a transform of torchvision, of either version."""
    return kind.__module__.startswith("torchvision.transforms")


def flatten_transforms(transform: Any) -> Iterator[Any]:
    """Yields the transforms of lists in lists, in order, and those of the preset of a classifier's weights."""
    kind = type(transform)
    if kind is torch.nn.Sequential or (is_of_torchvision(kind) and kind.__name__ == "Compose"):
        for step in getattr(transform, "transforms", transform):
            yield from flatten_transforms(step)
    elif is_of_torchvision(kind) and kind.__name__ == "ImageClassification":
        from torchvision import transforms as v1

        options = {"interpolation": transform.interpolation, "antialias": transform.antialias}
        yield from (v1.Resize(transform.resize_size, **options), v1.CenterCrop(transform.crop_size), v1.PILToTensor())
        yield from (v1.ConvertImageDtype(torch.float32), v1.Normalize(transform.mean, transform.std))
    else:
        yield transform


def iterate_parts(operation: Any) -> Iterator[Any]:
    """Yields ``operation``, and all operations inside it, at any depth. Looks into containers of torchvision and
    :class:`InPlace`."""
    yield operation
    for part in list_inner_operations(operation):
        yield from iterate_parts(part)


def list_inner_operations(operation: Any) -> Sequence[Any]:
    """Returns the operations directly inside a container of torchvision or an :class:`InPlace`; empty for others."""
    if isinstance(operation, InPlace):
        return [operation.fn]
    if any(map(is_of_torchvision, type(operation).__mro__)):
        inner: Sequence[Any] = getattr(operation, "transforms", ())
        return inner
    return ()


def draws_random_numbers(operation: Any) -> bool:
    """Tells if a transform of torchvision draws random numbers, so that it is no function of batches."""
    try:
        _refuse_random(operation, "")
    except UsageError:
        return True
    return False


def _refuse_random(operation: Any, use: str) -> None:
    """Raises :class:`UsageError` for torchvision's random transforms, which would treat a whole batch alike.

    Also refuses torchvision's noise, which no seed determines. Recognises all by name, without importing torchvision.

    ``use``: beginning of the advice.
    """
    for kind in filter(is_of_torchvision, type(operation).__mro__):
        name = kind.__name__
        bounds = getattr(operation, _RANDOM_IN_A_RANGE.get(name, ""), None)
        ranged = isinstance(bounds, tuple | list) and len(set(bounds)) > 1
        if name.startswith("Random") or name in _RANDOM or ranged:
            fault = "would treat the whole batch alike"
        elif name in _RANDOM_EACH:
            fault = "would draw other numbers in each run, whatever the seed"
        else:
            continue
        ours = f"packstore.augment.{name}, " if name in _OURS else ""
        raise UsageError(f"torchvision's {name} {fault}; {use}{ours}augment.PerImage({name}(...)), or a DataLoader")
