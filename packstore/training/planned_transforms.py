"""Transforms of torchvision on planned images: the user's objects draw, and the image notes what to do.

Pixels equal those of torchvision with PIL images, bit for bit, with two exceptions. After blurring, at most one value
in 10,000 differs by 1, because torch sums in another order. After AugMix, under one value in 100 differs by 1, and few
by more, because its operations are torch's. Transforms that are not here call methods of the image.

torchvision changes the colours of PIL images by functions of Pillow, which need pixels. So its transforms run as a
subclass that finds other functions in their place, which add a step to the image. AugMix calculates with tensors, so
its subclass finds a stand-in for a tensor. No code of torchvision is changed.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from PIL.Image import Resampling, Transpose

from packstore.images.programs import (
    AS_FIRST,
    AS_PILLOW,
    INTERPOLATIONS,
    MOST_FACTOR,
    MOST_KERNEL,
    Code,
    Program,
    new_program,
    pack_warp_flags,
    step,
)
from packstore.training.augment.policies import write_steps
from packstore.training.planned_images import PlannedImage, plan_pixels

_FILTERS = {way.name.lower(): way for way in Resampling}
_OF_FACTORS = (Code.BRIGHTNESS, Code.CONTRAST, Code.SATURATION)


def call_transform(transform: Any, image: Any) -> Any:
    """Calls a transform of torchvision with an image; only plans a known transform of a PIL image."""
    name = type(transform).__name__
    move = _MOVES.get(name)
    if move is not None and isinstance(image, PlannedImage) and not image.is_made:
        return move(transform, image)
    if not isinstance(image, Image.Image) or image.mode != "RGB" or not has_steps(transform) or not is_like_pillow():
        return transform(image)
    planned = _as_planned(image)
    return transform(image) if planned.is_tensor else _COLOURS[name](transform, planned)


def has_steps(transform: Any) -> bool:
    """Tells if the engine does a transform of torchvision by steps.

    Steps change colours, and warp with the nearest pixels, in AugMix also with bilinear ones.
    """
    way = getattr(transform, "interpolation", "nearest")
    way = getattr(way, "value", way)
    if type(transform).__name__ == "AugMix":
        kind: Any = type(transform)
        fills = transform.fill is None or _parse_fill(transform.fill) is not None
        return way in INTERPOLATIONS[:2] and fills and _is_known_augmix(kind)
    return way == "nearest" and not getattr(transform, "expand", False) and type(transform).__name__ in _COLOURS


def _as_planned(image: Image.Image) -> PlannedImage:
    """Returns a PIL image as a planned image."""
    return image if isinstance(image, PlannedImage) and not image.is_made else plan_pixels(np.asarray(image))


# Crops and flips do what torchvision's own do: its functions in between take half of the time of planning.


def _crop_and_resize(transform: Any, image: PlannedImage) -> Any:
    way = _FILTERS.get(getattr(transform.interpolation, "value", transform.interpolation))
    if way is None or image.is_tensor:
        return transform(image)
    top, left, height, width = _draw_crop(transform, image)
    return image.resize_crop(top, left, height, width, tuple(transform.size), way)


def _draw_crop(transform: Any, image: PlannedImage) -> tuple[int, int, int, int]:
    """Draws top, left, height and width, as the transform's ``get_params()`` does."""
    if not _draws_same_crops(type(transform).get_params):
        box: tuple[int, int, int, int] = transform.get_params(image, transform.scale, transform.ratio)
        return box
    drawn = _draw_fitting_crop(image, transform.scale, transform.ratio)
    if drawn is None:
        with torch.random.fork_rng(devices=[]):  # the numbers of ten attempts were drawn already
            drawn = transform.get_params(image, (100, 100), transform.ratio)
    return drawn


def _draw_fitting_crop(
    image: PlannedImage, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int] | None:
    """Draws a crop as torchvision's ``RandomResizedCrop.get_params()``; None if ten attempts do not fit."""
    # In a fifth of the time of torchvision's own.
    width, height = image.size
    limits, one = _take_logarithms(*ratio), torch.empty(1)
    for _ in range(10):
        area = height * width * one.uniform_(*scale).item()
        aspect = one.uniform_(*limits).exp_().item()
        columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < columns <= width and 0 < rows <= height:
            whole = torch.empty(1, dtype=torch.int64)
            top = int(whole.random_(height - rows + 1).item())
            return top, int(whole.random_(width - columns + 1).item()), rows, columns
    return None


@functools.cache
def _take_logarithms(*values: float) -> list[float]:
    return torch.tensor(values).log().tolist()


@functools.cache
def _draws_same_crops(get_params: Callable[..., Any]) -> bool:
    """Tells if a function draws the crops of :func:`_draw_fitting_crop`, from equally many numbers."""
    image = plan_pixels(np.zeros((32, 41, 3), np.uint8))
    with torch.random.fork_rng(devices=[]):
        for seed in range(32):
            results = []
            for draw in (get_params, _draw_fitting_crop):
                torch.default_generator.manual_seed(seed)
                # The next number shows if both have drawn equally many.
                results.append((draw(image, (0.2, 1.0), (0.5, 1.5)), torch.rand(1).item()))
            if results[0] != results[1]:
                return False
    return True


def _mirror(transform: Any, image: PlannedImage) -> Image.Image:
    return image.transpose(Transpose.FLIP_LEFT_RIGHT) if _draw_chance(transform.p) else image


def _draw_chance(probability: float) -> bool:
    """Draws as ``torch.rand(1) < probability``, which compares in single precision."""
    return bool(torch.rand(1).item() < np.float32(probability))


def _jitter(transform: Any, image: PlannedImage) -> PlannedImage:
    order, *values = transform.get_params(transform.brightness, transform.contrast, transform.saturation, transform.hue)
    for number in order.tolist():
        value = values[number]
        if value is not None and number < 3:
            image = image.recolour(_OF_FACTORS[number], value, flags=AS_PILLOW)
        elif value is not None:
            image = _turn_hue(image, value)
    return image


def _turn_hue(image: PlannedImage, shift: float) -> PlannedImage:
    if not -0.5 <= shift <= 0.5:
        raise ValueError(f"a shift of the hue should be -0.5 to 0.5, got {shift}")
    return image.recolour(Code.HUE, shift, int(shift * 255) & 255, flags=AS_PILLOW)


def _gray_at_random(transform: Any, image: PlannedImage) -> PlannedImage:
    return _make_gray(transform, image) if _draw_chance(transform.p) else image


def _make_gray(transform: Any, image: PlannedImage) -> Any:
    if getattr(transform, "num_output_channels", 3) != 3:
        return transform(image)
    return image.recolour(Code.GRAY, flags=AS_PILLOW)


def _blur(transform: Any, image: PlannedImage) -> Any:
    width, height = transform.kernel_size
    if max(width, height) > MOST_KERNEL or width // 2 >= image.width or height // 2 >= image.height:
        return transform(image)
    sigma = transform.get_params(*transform.sigma)
    return image.recolour(Code.BLUR, width, height, sigma, sigma)


_CODES = {
    "adjust_brightness": Code.BRIGHTNESS,
    "adjust_contrast": Code.CONTRAST,
    "adjust_saturation": Code.SATURATION,
    "adjust_sharpness": Code.SHARPNESS,
    "autocontrast": Code.AUTOCONTRAST,
    "equalize": Code.EQUALIZE,
    "invert": Code.INVERT,
    "posterize": Code.POSTERIZE,
    "solarize": Code.SOLARIZE,
}
"""Functions of torchvision that are a step, with at most one parameter."""


def _call_with_our_functions(transform: Any, image: PlannedImage) -> Any:
    """Calls a transform whose methods find our functions in place of torchvision's."""
    kind: Any = type(transform)
    planning = object.__new__(_replace_functions(kind))
    planning.__dict__ = vars(transform)
    return planning(image)


@functools.cache
def _replace_functions(kind: Any) -> Any:
    """Returns a subclass of a transform's class whose methods find our functions in place of torchvision's."""
    methods: dict[str, Any] = {}
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        if isinstance(method, FunctionType) and {"F", "_apply_op"} & {*method.__code__.co_names} & {
            *method.__globals__
        }:
            methods[name] = _replace_globals(method)
    if hasattr(kind, "_call_kernel"):  # v2's, which looks a function's kernel up
        methods["_call_kernel"] = _call_kernel
    if kind.__name__ == "AugMix":
        methods["_apply_image_or_video_transform"] = _note_operation
    return type(kind.__name__, (kind,), methods)


def _replace_globals(function: FunctionType) -> FunctionType:
    """Returns a copy of a function of torchvision that finds our functions."""
    names = dict(function.__globals__)
    own = vars(names["F"])
    planning: dict[str, Any] = {name: functools.partial(_recolour, code, own[name]) for name, code in _CODES.items()}
    planning |= {"pad": functools.partial(_pad, own["pad"]), "pil_to_tensor": _Chain, "to_pil_image": _Chain.mix}
    names["F"] = SimpleNamespace(**own | planning)
    if function.__qualname__ == "AugMix.forward":
        names["_apply_op"] = _Chain.note_first
    elif "_apply_op" in function.__code__.co_names:
        names["_apply_op"] = _replace_globals(names["_apply_op"])
    copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _call_kernel(transform: Any, function: Callable[..., Any], image: Any, *values: Any, **named: Any) -> Any:
    if isinstance(function, functools.partial):  # ours
        return function(image, *values, **named)
    return super(type(transform), transform)._call_kernel(function, image, *values, **named)


class _Chain:
    """Stands for a tensor in AugMix, and notes the steps that make it from a planned image.

    Attributes:
        image: The image that AugMix is called with.
        steps: Steps so far: a chain of operations, or what a sum adds up.
    """

    device, dtype, ndim = torch.device("cpu"), torch.uint8, 3

    def __init__(self, image: PlannedImage, steps: tuple[Program, ...] = ()) -> None:
        self.image, self.steps = image, steps
        self.shape = 3, image.height, image.width

    def view(self, *shape: Any, **options: Any) -> _Chain:
        """Returns the object itself: AugMix adds a dimension of 1, and removes it."""
        return self

    reshape = to = view

    def size(self, dimension: int) -> int:
        """Returns the number of images."""
        return 1

    def note_first(self, name: str, magnitude: float, interpolation: Any, fill: Any) -> _Chain:
        """Returns the tensor after an operation, as ``_apply_op()`` of torchvision's first transforms."""
        share = magnitude / 255 if name == "Solarize" else magnitude
        chain = self.note(name, share, interpolation, fill)
        if name == "AutoContrast":
            chain.steps[-1]["flags"] = AS_FIRST
        return chain

    def note(self, name: str, magnitude: float, interpolation: Any, fill: Any) -> _Chain:
        """Returns the tensor after an operation, as a method of torchvision's transforms v2."""
        way = INTERPOLATIONS.index(getattr(interpolation, "value", interpolation))
        one, flags = new_program(1), pack_warp_flags(way, _parse_fill(fill))
        write_steps(one, np.arange(1), 0, name, np.array([magnitude]), self.shape[1:], flags)
        return _Chain(self.image, (*self.steps, one))

    def __rmul__(self, weight: torch.Tensor) -> _Chain:
        code = Code.ADD if self.steps else Code.KEEP  # the sum begins with the image itself
        return _Chain(self.image, (*self.steps, step(1, code, weight.item())))

    def add_(self, other: _Chain) -> None:
        self.steps += other.steps

    def mix(self) -> PlannedImage:
        """Returns the planned image of the sum."""
        return self.image.turn_upright().run_steps(*self.steps, step(1, Code.MIX))


@functools.cache
def _is_known_augmix(kind: Callable[[], Any]) -> bool:
    """Tells if :class:`_Chain` supports everything that this version of AugMix does to a tensor."""
    image = plan_pixels(np.zeros((9, 11, 3), np.uint8))
    with torch.random.fork_rng(devices=[]):
        try:
            return isinstance(_call_with_our_functions(kind(), image), PlannedImage)
        except (AttributeError, TypeError):
            return False


def _note_operation(transform: Any, chain: _Chain, name: str, magnitude: float, **_options: Any) -> _Chain:
    return chain.note(name, magnitude, transform.interpolation, transform.fill)


def _parse_fill(fill: Any) -> tuple[int, ...] | None:
    """Returns a fill of torchvision as three bytes; None for no fill and for other values."""
    values = [*fill] if isinstance(fill, list | tuple) else [fill] * 3
    are_bytes = all(isinstance(value, int | float) and value in range(256) for value in values)
    return tuple(map(int, values)) if are_bytes and len(values) == 3 else None


def _recolour(code: Code, function: Callable[..., Any], image: Any, *values: Any, **named: Any) -> Any:
    """Plans what a function of torchvision does to the colours of a PIL image."""
    values += tuple(named.values())
    if code == Code.SOLARIZE:
        values = (math.ceil(min(max(values[0], 0), 256)),)  # equal, and fits a float32
    if values and not (1 <= values[0] <= 8 if code == Code.POSTERIZE else abs(values[0]) <= MOST_FACTOR):
        # The engine does not support these values.
        return function(image, *values)
    return _as_planned(image).recolour(code, *values, flags=AS_PILLOW)


def _pad(function: Callable[..., Any], image: Any, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Any:
    """Pads a PIL image as torchvision; only plans padding with zeros."""
    sides = [*padding] * (4 // max(len(padding), 1)) if isinstance(padding, list | tuple) else [padding] * 4
    whole = len(sides) == 4 and all(isinstance(side, int) and side >= 0 for side in sides)
    zeros = fill in (None, 0) and padding_mode == "constant"
    if not isinstance(image, PlannedImage) or image.is_made or not zeros or not whole:
        return function(image, padding, fill, padding_mode)
    left, top, right, bottom = sides
    return image.crop((-left, -top, image.width + right, image.height + bottom))


_MOVES = {
    "RandomResizedCrop": _crop_and_resize,
    "RandomHorizontalFlip": _mirror,
    "RandomCrop": _call_with_our_functions,
    "Pad": _call_with_our_functions,
}
_WITH_FUNCTIONS = (
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomRotation",
    "RandomAffine",
    "AutoAugment",
    "RandAugment",
    "TrivialAugmentWide",
    "AugMix",
)
_COLOURS: dict[str, Callable[[Any, PlannedImage], Any]] = {
    "ColorJitter": _jitter,
    "RandomGrayscale": _gray_at_random,
    "Grayscale": _make_gray,
    "GaussianBlur": _blur,
    **dict.fromkeys(_WITH_FUNCTIONS, _call_with_our_functions),
}

STEP_TRANSFORMS = {*_COLOURS}
"""Names of the transforms that the engine does by steps, if :func:`has_steps`."""


@functools.cache
def is_like_pillow() -> bool:
    """Tells if the engine changes colours as this Pillow, which rounds differently on some processors."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    image, planned = Image.fromarray(noise), plan_pixels(noise)
    hue, *others = image.convert("HSV").split()
    turned = Image.merge("HSV", (Image.fromarray(np.asarray(hue) + np.uint8(25)), *others)).convert("RGB")
    pairs = [
        (planned.recolour(Code.HUE, 0.1, 25, flags=AS_PILLOW), turned),
        (planned.recolour(Code.GRAY, flags=AS_PILLOW), image.convert("L").convert("RGB")),
    ]
    dark, planned_dark = Image.fromarray(noise // 3), plan_pixels(noise // 3)
    for code, equal in ((Code.AUTOCONTRAST, ImageOps.autocontrast), (Code.EQUALIZE, ImageOps.equalize)):
        pairs.append((planned_dark.recolour(code, flags=AS_PILLOW), equal(dark)))
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, ImageEnhance.Sharpness)
    for code, enhancer in zip((*_OF_FACTORS, Code.SHARPNESS), enhancers, strict=True):
        for factor in (0.7, 1.3):
            pairs.append((planned.recolour(code, factor, flags=AS_PILLOW), enhancer(image).enhance(factor)))
    return all(np.array_equal(np.asarray(found), np.asarray(expected)) for found, expected in pairs)
