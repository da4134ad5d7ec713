"""Flattens the user's list of operations, and replaces names by recipes and policies.

Refuses functions that would draw only once per batch. :class:`InPlace` marks functions that move no pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeGuard

import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.core.registry import COLUMN_TYPES
from packstore.training.arguments import refuse_class
from packstore.training.augment.base import GeometricOperation, Operation, Step
from packstore.training.random_draws import Draws

_INSTEAD = "packstore.augment's operations, or a DataLoader with output='tv_tensors'"
_RANDOM = {
    "AugMix",
    "AutoAugment",
    "ColorJitter",
    "ElasticTransform",
    "RandAugment",
    "ScaleJitter",
    "TrivialAugmentWide",
}
_LIBRARIES_OF_MIXERS = ("packstore.training.augment.m", "torchvision.transforms", "timm.data.mixup")
_RANDOM_IN_A_RANGE = {"GaussianBlur": "sigma", "JPEG": "quality"}  # and the attribute that has the range
_RANDOM_EACH = {"GaussianNoise"}  # for each pixel of a batch, from torch's own generator
_OURS = {
    *("AugMix", "AutoAugment", "ColorJitter", "GaussianBlur", "GaussianNoise", "RandAugment", "RandomAdjustSharpness"),
    *("RandomAffine", "RandomApply", "RandomAutocontrast", "RandomChannelPermutation", "RandomChoice", "RandomCrop"),
    *("RandomEqualize", "RandomErasing", "RandomGrayscale", "RandomHorizontalFlip", "RandomInvert", "RandomIoUCrop"),
    *("RandomOrder", "RandomPerspective", "RandomPhotometricDistort", "RandomPosterize", "RandomResize"),
    *("RandomResizedCrop", "RandomRotation", "RandomShortestSize", "RandomSolarize", "RandomVerticalFlip"),
    *("RandomZoomOut", "ScaleJitter", "TrivialAugmentWide"),
}


@dataclass(frozen=True, repr=False)
class InPlace(Operation):
    """Wraps a function that leaves every pixel in its place. Masks, boxes and keypoints then need not follow.

    A loader of such columns refuses unknown functions in ``augment=``, in ``transform=`` and in ``PerImage``, unless
    they are in an ``InPlace``.

    Args:
        fn: The function, or an :class:`Operation` of your own.

    Raises:
        UsageError: ``fn`` is not callable. When called: its result has another height or width.
    """

    fn: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise UsageError(f"InPlace takes a function, got {self.fn!r}")

    def __repr__(self) -> str:
        return f"InPlace({stable_repr(self.fn)})"

    def __call__(self, images: Tensor, draws: Draws | None = None, **options: Any) -> Any:
        """Calls the function with ``images``. Only an :class:`Operation` gets ``draws``, too.

        Raises :class:`UsageError` if the result has another height or width."""
        draws_too = (draws,) if isinstance(self.fn, Operation) and draws is not None else ()
        result = self.fn(images, *draws_too, **options)
        if isinstance(result, Tensor) and result.ndim >= 2 and result.shape[-2:] != images.shape[-2:]:
            (height, width), (tall, wide) = result.shape[-2:], images.shape[-2:]
            raise UsageError(f"{self!r} made {height}x{width} pixels of {tall}x{wide}: it does not leave them in place")
        return result


def stable_repr(fn: Any) -> str:
    """Returns the ``repr`` of a function, or its module and name if the ``repr`` contains a memory address."""
    text = repr(fn)
    if " at 0x" in text:  # an address, which another process would not have
        where: Any = fn if hasattr(fn, "__qualname__") else type(fn)
        text = f"{where.__module__}.{where.__qualname__}"
    return text


def repr_on_one_line(value: Any) -> str:
    """Returns the ``repr`` of a value, or of a tuple's values, on one line without memory addresses."""
    text = ", ".join(map(stable_repr, value)) if isinstance(value, tuple) else stable_repr(value)
    return " ".join(text.split())


def check_function(name: str, function: Any) -> None:
    """Raises :class:`UsageError` for a class in place of an object, a mixer, or a transform of albumentations."""
    refuse_class(name, function)
    refuse_mixer(function)
    if type(function).__module__.startswith("albumentations."):
        raise UsageError(
            f"{name} calls a function with an image, and albumentations takes named arguments: end augment= of the "
            f"PackedLoader with packstore.augment.Albumentations({type(function).__name__}(...)), or for items give "
            "PackedDataset(…, output='numpy', transform=lambda image: pipeline(image=image)['image'])"
        )


def is_per_image(op: Any) -> TypeGuard[Any]:
    """Tells if an entry of a user's list is a :class:`PerImage`."""
    return isinstance(op, Operation) and op.calls_each_image


def may_resize(op: Any) -> bool:
    """Tells if an entry of a user's list is a function that may return images of any size."""
    inner = op.fn if is_per_image(op) else op
    return not isinstance(inner, InPlace) and (is_per_image(op) or not isinstance(op, Operation))


def refuse_mixer(function: Any) -> None:
    """Raises :class:`UsageError` for a mixer in place of a function of images, with the ``mix=`` to write."""
    if not isinstance(function, list | tuple) and not any(
        kind.__module__.startswith(_LIBRARIES_OF_MIXERS) for kind in type(function).__mro__
    ):
        return
    from packstore.training.augment.mixing import describe_mix

    ours = describe_mix(function)
    if ours is not None:
        kind = type(function).__name__
        raise UsageError(f"{kind} mixes whole records, and is no function of images: give the PackedLoader {ours}")


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

    Replaces texts by operations. A single text is the name of a recipe, or a policy of timm, which has a dash. A text
    in a list is a policy of timm.

    Args:
        augment: One operation, a list of operations, or a text.
        use: Beginning of the advice in messages.

    Raises:
        UsageError: A transform of torchvision draws random numbers. A name is unknown, or of a recipe with views.
            ``augment`` is not a list.
    """
    if isinstance(augment, str):
        augment = _recipe_or_policy(augment)
    if _is_sequential(augment) or callable(augment):
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
            from packstore.training.augment.policy_tables import make_timm_augment

            flat.append(make_timm_augment(operation))
        elif _is_sequential(operation):
            parts = operation if isinstance(operation, torch.nn.Sequential) else operation.transforms
            flat += as_operations(list(parts), use)
        else:
            check_function("augment", operation)
            for part in iterate_parts(operation):
                _refuse_random(part, use)
            flat.append(operation)
    return tuple(flat)


def _recipe_or_policy(name: str) -> list[Any]:
    """Returns the operations of a recipe, or a list with a policy of timm."""
    from packstore.training.augment.policy_tables import TIMM_BEGINNINGS
    from packstore.training.augment.recipes import recipe

    # A policy has a dash after a known beginning.
    beginning, dash, _ = name.partition("-")
    if dash and beginning in TIMM_BEGINNINGS:
        return [name]
    try:
        return recipe(name)
    except UsageError as error:
        raise UsageError(f"{error}; or a policy of timm, such as rand-m9-mstd0.5") from None


def _is_sequential(operation: Any) -> bool:
    """Tells if an operation is torch's ``Sequential``, or ``Compose`` of packstore or torchvision."""
    kind = type(operation)
    ours = kind.__module__ == "packstore.training.augment.logic"
    # Not subclasses, which may do more than call their parts.
    return kind is torch.nn.Sequential or (kind.__name__ == "Compose" and (ours or is_of_torchvision(kind)))


def is_of_torchvision(kind: type) -> bool:
    """Tells if a class is a transform of torchvision, of either version."""
    return kind.__module__.startswith("torchvision.transforms")


def flatten_transforms(transform: Any) -> Iterator[Any]:
    """Yields the transforms in nested lists and in torchvision's presets for classification, in order."""
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
    """Yields ``operation`` and, at any depth, all operations in containers of torchvision and :class:`InPlace`."""
    yield operation
    for part in list_inner_operations(operation):
        yield from iterate_parts(part)


def list_names(code: CodeType | None) -> set[str]:
    """Returns the names of globals and attributes in a function's code, including functions within it."""
    if code is None:
        return set()
    inside = [list_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names}.union(*inside)


def list_inner_operations(operation: Any) -> Sequence[Any]:
    """Returns the operations directly inside a container of torchvision or an :class:`InPlace`; empty for others."""
    if isinstance(operation, InPlace):
        return [operation.fn]
    if any(map(is_of_torchvision, type(operation).__mro__)):
        inner: Sequence[Any] = getattr(operation, "transforms", ())
        return inner
    return ()


def draws_random_numbers(operation: Any) -> bool:
    """Tells if a transform of torchvision draws random numbers, and so cannot be called with batches."""
    try:
        _refuse_random(operation, "")
    except UsageError:
        return True
    return False


def _refuse_random(operation: Any, use: str) -> None:
    """Raises :class:`UsageError` for torchvision's random transforms, which would treat a batch alike."""
    # By name, without importing torchvision.
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


def check_target_options(mask_fill: int, min_area: float, min_visible: float) -> None:
    """Raises :class:`UsageError` for invalid options of :func:`place_mask` and :func:`place_boxes`.

    - ``mask_fill`` is a whole number within int32.
    - ``min_area`` is a finite number of at least 0.
    - ``min_visible`` is a number from 0 to 1.
    """
    if not isinstance(mask_fill, int) or isinstance(mask_fill, bool):
        raise UsageError(f"mask_fill should be a whole number, got {mask_fill!r}")
    if not -(2**31) <= mask_fill < 2**31:
        raise UsageError(f"mask_fill should be an int32, got {mask_fill}")
    if not isinstance(min_area, int | float) or not 0 <= min_area < float("inf"):
        raise UsageError(f"min_area should be a number of square pixels, at least 0, got {min_area!r}")
    if not isinstance(min_visible, int | float) or not 0 <= min_visible <= 1:
        raise UsageError(f"min_visible should be a share of a box's area, 0 … 1, got {min_visible!r}")


def check_targets(ops: Sequence[Step], types: Sequence[str], instead: str = _INSTEAD) -> None:
    """Raises :class:`UsageError` for operations that masks, boxes or keypoints cannot follow.

    - AugMix, which mixes images that lie in different places.
    - torchvision's transforms that move pixels.
    - Unknown functions, unless they are in :class:`InPlace`.
    - Beside boxes or keypoints: an operation whose padding repeats pixels. Operations inside groups are not checked.

    Args:
        ops: The user's whole list, and all other functions that are called with images.
        types: Names of the types of the loaded columns. Only types that move count. Against AugMix, images count too:
            they stand for further images.
        instead: Alternative that moves images and targets together, for messages.
    """
    traits = [COLUMN_TYPES[name] for name in dict.fromkeys(types)]
    rows = [each.name for each in traits if each.moves and not each.lies_on_image]
    moved = [*(each.name for each in traits if each.lies_on_image), *rows]
    has_images = any(each.has_images and each.is_picture for each in traits)
    if any(map(_contains_augmix, ops)) and (moved or has_images):
        others = " and ".join([*moved, *(["further images"] if has_images else [])])
        raise UsageError(f"AugMix mixes images that lie in different places, and {others} cannot follow")
    if not moved:
        return
    for op in ops:
        for part, stays in _iterate_nested_parts(op):
            if kind := next(filter(_is_moving_transform, type(part).__mro__), None):
                raise UsageError(
                    f"torchvision's {kind.__name__} would move the images, and leave {' and '.join(moved)} where they "
                    f"are; use {instead}, or leave them out by columns="
                )
            if not (stays or _keeps_places(part)):
                raise UsageError(
                    f"{stable_repr(part)} might move the images, and would leave {' and '.join(moved)} where they are; "
                    "if it leaves every pixel in its place, say so: packstore.augment.InPlace(…) around it; else use "
                    f"{instead}; or leave {' and '.join(moved)} out by columns= of the dataset"
                )
        if isinstance(op, GeometricOperation) and op.pads != "constant" and rows:
            raise UsageError(
                f"{op!r}: padding_mode {op.pads!r} shows parts of the image again, which have no {rows[-1]}; use "
                "padding_mode='constant'"
            )


def _contains_augmix(op: Any) -> bool:
    """Tells if an operation is AugMix, also timm's, or contains it."""
    return getattr(op, "mixes_places", False) or any(map(_contains_augmix, getattr(op, "transforms", ())))


def _iterate_nested_parts(op: Any, stays: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yields an operation and all operations in it, each with True if it is in an :class:`InPlace`."""
    stays = stays or isinstance(op, InPlace)
    yield op, stays
    if is_per_image(op):
        inner: Iterable[Any] = [op.fn]
    else:
        inner = op if type(op) is torch.nn.Sequential else list_inner_operations(op)
    for part in inner:
        yield from _iterate_nested_parts(part, stays)


def _keeps_places(part: Any) -> bool:
    """Tells if masks and boxes stay right under an operation, whatever operations it contains."""
    kind = type(part)
    # Transforms of torchvision that move pixels have been refused before.
    if is_of_torchvision(kind):
        return kind.__name__ != "Lambda"
    return kind.__module__.startswith("packstore.") or kind is torch.nn.Sequential


def _is_moving_transform(kind: type) -> bool:
    """Tells if a class is one of torchvision's transforms that move pixels."""
    if not is_of_torchvision(kind):
        return False
    return kind.__module__.endswith(("_geometry", "_auto_augment")) or kind.__name__ in _V1_GEOMETRY


_V1_GEOMETRY = {
    *("AugMix", "AutoAugment", "CenterCrop", "ElasticTransform", "FiveCrop", "Pad", "RandAugment", "RandomAffine"),
    *("RandomCrop", "RandomHorizontalFlip", "RandomPerspective", "RandomResizedCrop", "RandomRotation"),
    *("RandomVerticalFlip", "Resize", "TenCrop", "TrivialAugmentWide"),
}
