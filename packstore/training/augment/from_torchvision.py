"""Translates torchvision's transforms in a loader's ``augment=`` to packstore's operations, recognised by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from packstore.core.errors import UsageError
from packstore.training import augment as ours
from packstore.training.augment.steps import draws_random_numbers, flatten_transforms, is_of_torchvision, refuse_mixer

_NOTHING = {"ToTensor", "PILToTensor", "ToImage", "ToPureTensor"}
"""Conversions that a loader does anyway; only the first one also scales values."""
_AFTER_FLOATS = {"RandomHorizontalFlip", "RandomVerticalFlip", "CenterCrop", "RandomCrop", "RandomErasing"}
"""Operations that can run before the conversion to floating point instead of after it."""
_MUST_BE = {"max_size": None, "expand": False, "gain": 1}
"""Options that packstore's operations lack, with the only supported value."""
_OTHERWISE = (
    "use PackedDataset(transform=) with torch's DataLoader, which runs it as it is, or packstore.augment.PerImage"
)


def translate_augment(augment: Any) -> tuple[Any, dict[str, Any]]:
    """Translates torchvision's transforms in a user's ``augment=``.

    Returns the list of operations, and the loader's options for its conversions: ``normalize`` or ``dtype``. Returns
    ``augment`` itself if no transform is torchvision's. Keeps transforms without a counterpart in the list.

    Raises :class:`UsageError` for options of random transforms without a counterpart, and for functions after a
    conversion.
    """
    if isinstance(augment, str) or not (callable(augment) or isinstance(augment, Iterable)):
        return augment, {}
    if getattr(augment, "views", None) is not None:
        return augment, {}
    given = augment if isinstance(augment, list | tuple) else [augment]
    steps = [step for each in given for step in flatten_transforms(each)]
    if not any(is_of_torchvision(type(step)) for step in steps):
        return augment, {}
    operations: list[Any] = []
    converted: dict[str, Any] = {}
    for step in steps:
        refuse_mixer(step)
        name = type(step).__name__ if is_of_torchvision(type(step)) else ""
        if name in _NOTHING or name in ("ConvertImageDtype", "ToDtype", "Normalize"):
            converted |= _translate_conversion(step, name)
            continue
        if converted and name not in _AFTER_FLOATS and not isinstance(step, ours.Operation):
            raise UsageError(
                f"{step!r} follows a conversion to floating point, which a loader does last: put it into the loader's "
                f"transform=, before the conversion, or {_OTHERWISE}"
            )
        operations.append(_translate_step(step, converted))
    return operations, converted


def _translate_conversion(step: Any, name: str) -> dict[str, Any]:
    """Returns the loader's options for a conversion."""
    if name == "Normalize":
        normalize = tuple([float(value) for value in values] for values in (step.mean, step.std))
        return {"normalize": normalize}
    dtype = torch.float32 if name == "ToTensor" else getattr(step, "dtype", None)
    if name in _NOTHING - {"ToTensor"} or dtype == torch.uint8:
        return {}  # the loader gives such tensors anyway
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or getattr(step, "scale", True) is not True:
        raise UsageError(f"a loader has no conversion like torchvision's {step!r}; {_OTHERWISE}")
    return {"dtype": dtype}


def _translate_step(step: Any, converted: dict[str, Any]) -> Any:
    """Returns packstore's operation for one of torchvision's, or any other step itself."""
    kind = type(step)
    found = getattr(ours, kind.__name__, None) if is_of_torchvision(kind) else None
    if not dataclasses.is_dataclass(found):
        return step
    operation: Any = found
    values = {}
    try:
        for name, only in _MUST_BE.items():
            if getattr(step, name, only) != only:
                raise UsageError(f"{name}={getattr(step, name)!r} has no counterpart")
        for field in dataclasses.fields(operation):
            if hasattr(step, field.name):
                values[field.name] = _translate_value(kind.__name__, field.name, getattr(step, field.name))
        if kind.__name__ == "RandomErasing":
            # Its colour is in the units of images after the conversions before it.
            values["value"] = _translate_erasing_value(values["value"], converted)
        return operation(**{name: value for name, value in values.items() if value is not None})
    except UsageError as error:
        if not draws_random_numbers(step):
            return step  # a function of batches
        raise UsageError(
            f"torchvision's {kind.__name__} cannot be translated to packstore.augment: {error}; {_OTHERWISE}"
        ) from None


def _translate_value(kind: str, name: str, value: Any) -> Any:
    """Returns the option of packstore's operation for a value of torchvision's; None for the default."""
    if name == "transforms":
        return [_translate_step(inner, {}) for inner in value]
    if isinstance(value, list | tuple):
        value = tuple(value)
        if name == "size" and kind == "Resize" and len(value) == 1:
            return value[0]  # length of the shorter side
        if name == "padding" and kind == "RandomCrop":
            if len(set(value)) > 1:
                raise UsageError(f"padding={value!r} differs between sides")
            return value[0]
        return value
    if kind == "RandomErasing" and name == "value" and value is None:
        return "random"  # how v2 notes it
    return getattr(value, "value", value)  # of an enum


def _translate_erasing_value(value: Any, converted: dict[str, Any]) -> Any:
    """Converts ``value`` of torchvision's ``RandomErasing`` to 0 … 255, undoing normalisation; keeps ``"random"``."""
    if isinstance(value, str) or not converted:
        return value[0] if isinstance(value, tuple) and len(value) == 1 else value
    values = value if isinstance(value, tuple) else (value,)
    mean, std = converted.get("normalize", ([0.0], [1.0]))
    count = max(len(values), len(mean))
    each = [[*part] * (count // len(part)) for part in (values, mean, std)]
    # Reverses normalization: v * std + mean is a fraction of 255.
    colour = tuple(round(min(255.0, max(0.0, 255 * (v * s + m)))) for v, m, s in zip(*each, strict=True))
    return colour if len(set(colour)) > 1 else colour[0]
