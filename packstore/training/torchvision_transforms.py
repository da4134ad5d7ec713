"""Runs torchvision's transforms of a dataset's ``transform=`` with the engine, as if each image were a PIL image.

The user's own objects draw their parameters, so random numbers are those of the installed torchvision. They are called
with a :class:`PlannedImage`, which notes crops, resizes and flips, and makes its pixels if anything else needs them.
Conversions to tensors become a table, which the engine applies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import islice
from types import CellType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from packstore.images.engine import OutputFormat
from packstore.training.augment.steps import flatten_transforms, is_of_torchvision, list_names
from packstore.training.pictures import ImageReader, has_pil_mode
from packstore.training.planned_images import PlannedBatch, PlannedImage, can_plan, make_rows, plan_pixels
from packstore.training.planned_transforms import STEP_TRANSFORMS, call_transform, has_steps
from packstore.training.record_notes import note_need_of_pil
from packstore.training.values import as_numpy

_FROM_PIL = {"ToTensor", "PILToTensor", "ToImage", "ToNumpy"}
"""Transforms that take a PIL image and return none; the last is timm's."""
_CALLED_FOR_TENSORS = _FROM_PIL | {"to_tensor", "pil_to_tensor", "to_image", "array", "asarray"}
"""Names by which functions make tensors or arrays of PIL images."""
_KEEP_BYTES = {"PILToTensor", "ToImage", "ToPureTensor", "Identity"}
_CONVERSIONS = _KEEP_BYTES | {"ToTensor", "ConvertImageDtype", "ToDtype", "Normalize"}
"""Transforms of each value by itself, whatever its place. Those in the first set keep bytes as they are."""
_FLIPS = {"RandomHorizontalFlip", "RandomVerticalFlip"}
_CROPS = {"CenterCrop", "RandomCrop"}
_RESIZES = {"Resize", "RandomResizedCrop"}
_ERASING = {"RandomErasing"}
_MOST_INSIDE = 256
"""Most objects to look at inside a function of the user, such as one that holds a model."""
_looked_inside: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_CONTAINERS = {"Compose", "RandomApply", "RandomChoice", "RandomOrder"}


class _Role(Enum):
    """Way in which a transform runs."""

    PLANNED = auto()  # called with a planned image
    CONVERSION = auto()  # part of the table, which follows all planned ones
    REST = auto()  # called with the result


@dataclass(frozen=True)
class TransformPlan:
    """Division of a list of transforms into planned ones and others.

    Attributes:
        steps: The transforms in order, with their roles.
        takes_pil: The first is called with a PIL image; otherwise with a tensor.
        given: The user's transforms; ``steps`` has copies of containers.
        tables: Results of :meth:`_tabulate` by number of channels.
    """

    steps: tuple[tuple[Callable[[Any], Any], _Role], ...]
    takes_pil: bool
    given: tuple[Any, ...]
    tables: dict[int, torch.Tensor | None] = field(default_factory=dict)

    def split(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Splits the user's transforms into those that the engine runs and the rest."""
        count = 0
        for step, (_, role) in zip(self.given, self.steps, strict=True):
            if role is _Role.REST or (role is _Role.PLANNED and not _can_plan(step, takes_pil=self.takes_pil)):
                break
            count += 1
        return self.given[:count], self.given[count:]

    def fits(self, pictures: ImageReader) -> bool:
        """Tells if this plan can run the transforms on images of a column; otherwise they are called with tensors.

        It cannot if images are normalised. Images of more than 8 bits need transforms that insist on PIL images.
        Transforms of tensors need bytes on the CPU, of which the engine can make parts.
        """
        if not self.takes_pil:
            return can_plan(pictures) and pictures.dtype in (None, torch.uint8) and pictures.device.type == "cpu"
        if pictures.floats:
            return False
        insists = any(_is_known(step, _FROM_PIL - {"ToImage"}) for step in self.given)
        return pictures.mode.dtype == "uint8" or (insists and has_pil_mode(pictures.mode))

    def run(self, batch: PlannedBatch, count: int, *, together: bool) -> Iterator[Any]:
        """Yields the results for the ``count`` images of a batch, in order.

        Args:
            batch: The images.
            count: Number of images.
            together: Plan all images first, then let the engine make them in one call. Has no effect if a transform
                other than erasing follows a conversion. Random numbers are the same if the caller draws none between
                results.
        """
        rest = [step for step, role in self.steps if role is _Role.REST]
        if not together or not all(_is_known(step, _ERASING) for step in rest):
            for row in range(count):
                try:
                    value = _run_all(rest, self._make_images([self._run_planned(batch.open(row))])[0])
                except Exception as error:
                    self._add_notes(error, batch, row)
                    raise
                yield value
            return
        images, patches = [], []
        for row in range(count):
            try:
                image = self._run_planned(batch.open(row))
                is_planned = _is_planned(image)
                erased = _run_all(rest, _Erased.of_size(image) if rest and is_planned else image)
            except Exception as error:
                self._add_notes(error, batch, row)
                raise
            images.append(image if is_planned else erased)
            patches.append(erased.patches if isinstance(erased, _Erased) else ())
        for value, some in zip(self._make_images(images), patches, strict=True):
            for place, colour in some:
                value[place] = colour
            yield value

    def _add_notes(self, error: Exception, batch: PlannedBatch, row: int) -> None:
        """Adds notes to an exception of a transform: the record, and how to get PIL images."""
        if not self.takes_pil:
            note_need_of_pil(error, "a tensor")
        batch.note_record(error, row)

    def _run_planned(self, image: Any) -> Any:
        """Calls the planned transforms; returns a planned image, or what they have made of its pixels."""
        if not self.takes_pil:
            image = image.as_tensor()
        delayed: list[Callable[[Any], Any]] = []
        for step, role in self.steps:
            if role is _Role.REST:
                break
            if role is _Role.CONVERSION and isinstance(image, Image.Image) and image.mode in ("RGB", "L"):
                if not _is_planned(image):  # another transform has made it
                    image = plan_pixels(np.asarray(image))
                delayed.append(step)
                image = image.as_tensor()
                continue
            image = step(image)
            if _is_planned(image) or not isinstance(image, Image.Image):
                continue
            if delayed or not self.takes_pil:  # padded, for example: the rest needs a tensor
                image = _run_all(delayed, image if self.takes_pil else _as_tensor(image))
                delayed = []
        return image

    def _make_images(self, images: Sequence[Any]) -> list[Any]:
        """Makes planned images, those of one size in one block of memory."""
        results, forms = [*images], dict[Any, list[int]]()
        for number, image in enumerate(images):
            if _is_planned(image):
                forms.setdefault(_shape_of(image), []).append(number)
        for numbers in forms.values():
            for number, value in zip(numbers, self._make_images_of_size([images[n] for n in numbers]), strict=True):
                results[number] = value
        return results

    def _make_images_of_size(self, images: Sequence[PlannedImage]) -> Iterable[Any]:
        """Makes planned images of one size, and converts them."""
        conversions = [step for step, role in self.steps if role is _Role.CONVERSION]
        if self.takes_pil and not conversions:
            return images
        channels = images[0].source.channels
        if channels not in self.tables:
            self.tables[channels] = self._tabulate(conversions, channels)
        table = self.tables[channels]
        if table is None:
            if self.takes_pil:
                return [_run_all(conversions, image) for image in images]
            return [_run_all(conversions, row) for row in make_rows(images, OutputFormat(planes=True)).unbind()]
        values = None if table.dtype == torch.uint8 else as_numpy(table.as_subclass(torch.Tensor)[:, 0].contiguous())
        block = make_rows(images, OutputFormat(planes=True, table=values), table.dtype)
        rows = block.unbind()
        return rows if type(table) is torch.Tensor else [row.as_subclass(type(table)) for row in rows]

    def _tabulate(self, conversions: Sequence[Callable[[Any], Any]], channels: int) -> torch.Tensor | None:
        """Converts each byte of each channel, to ``(C, 1, 256)``; None if the engine has no such conversion."""
        every: NDArray[np.uint8] = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], channels, 2)
        image = Image.fromarray(every if channels == 3 else every[..., 0])
        table = _run_all(conversions, image if self.takes_pil else _as_tensor(image))
        if not isinstance(table, torch.Tensor) or table.shape != (channels, 1, 256) or table.device.type != "cpu":
            return None
        if table.dtype == torch.uint8:
            return table if (table == torch.arange(256)).all() else None
        return table if table.dtype in (torch.float32, torch.float16, torch.bfloat16) else None


def plan_transform(transform: Any) -> TransformPlan | None:
    """Divides a user's transforms into planned ones and others.

    Returns None if the transform should simply be called with the image that the dataset has by default.
    """
    steps = [*flatten_transforms(transform)]
    takes_pil = _takes_pil(steps)
    known = _CONTAINERS | _CONVERSIONS | _FLIPS | _CROPS | _RESIZES
    if steps == [transform] and not takes_pil and not _is_known(transform, known):
        return None
    roles: list[_Role] = []
    of_bytes, of_tensors = True, not takes_pil
    for step in steps:
        if roles and roles[-1] is _Role.REST:
            role = _Role.REST
        elif _is_known(step, _CONVERSIONS) and (of_tensors or _is_known(step, _FROM_PIL)):
            role, of_tensors = _Role.CONVERSION, True
            of_bytes = of_bytes and (_is_known(step, _KEEP_BYTES) or getattr(step, "dtype", None) == torch.uint8)
        elif not of_tensors or _can_plan(step, takes_pil=False, of_bytes=of_bytes):
            role = _Role.PLANNED
        else:
            role = _Role.REST
        roles.append(role)
    if not takes_pil and roles[:1] != [_Role.PLANNED]:
        return None
    called: list[Any] = [_wrap_container(step) if takes_pil else step for step in steps]
    for number, role in enumerate(roles):
        if role is _Role.PLANNED and is_of_torchvision(type(called[number])):
            called[number] = partial(call_transform, called[number])
    return TransformPlan(tuple(zip(called, roles, strict=True)), takes_pil, tuple(steps))


def _wrap_container(step: Any) -> Any:
    """Returns a transform; a container of torchvision as a copy that calls its transforms by :func:`_call_step`."""
    if not _is_known(step, _CONTAINERS):
        return step
    inner = [partial(_call_step, _wrap_container(each)) for each in step.transforms]
    seen = copy.copy(step)
    # A module would refuse a list in place of a list of modules, and shares its modules with the user's object.
    vars(seen).update(
        {"_modules": {}, "transforms": inner} if isinstance(step, torch.nn.Module) else {"transforms": inner}
    )
    return seen


def _call_step(step: Callable[[Any], Any], *images: Any) -> Any:
    """Calls a transform, of the user or torchvision's, with an image."""
    if len(images) == 1 and is_of_torchvision(type(step)):
        return call_transform(step, images[0])
    return step(*images)


def _takes_pil(steps: Iterable[Any]) -> bool:
    """Tells if the first transform expects a PIL image: a later or inner one makes a tensor of it."""
    for step in steps:
        if _is_known(step, {"ToPILImage"}):
            return False
        if _hides_conversion(step):
            return True
    return False


def _hides_conversion(step: Any) -> bool:
    """Tells if something inside a transform makes a tensor."""
    # Remembered, because this is asked for every item.
    try:
        return _looked_inside[step]
    except (KeyError, TypeError):  # TypeError: not hashable, or without weak references
        found = any(map(_makes_tensor, islice(_iterate_inside(step), _MOST_INSIDE)))
    with suppress(TypeError):
        _looked_inside[step] = found
    return found


def _makes_tensor(step: Any) -> bool:
    """Tells if a transform makes a tensor of a PIL image."""
    if _is_known(step, _FROM_PIL) or type(step).__module__.startswith("albumentations."):
        # People make arrays for transforms of albumentations.
        return True
    if is_of_torchvision(type(step)):
        return False
    functions = [step, *(getattr(type(step), name, None) for name in ("__call__", "forward"))]
    return any(_CALLED_FOR_TENSORS & list_names(getattr(function, "__code__", None)) for function in functions)


def _iterate_inside(step: Any, depth: int = 3) -> Iterator[Any]:
    """Yields a transform and all callable objects that it holds, up to ``depth`` levels."""
    yield step
    if depth == 0:
        return
    # In attributes, arguments, lists and variables of a closure.
    cells = getattr(step, "__closure__", None) or ()
    held = [*getattr(step, "__dict__", {}).values(), *getattr(step, "args", ()), getattr(step, "func", None)]
    held += [cell.cell_contents for cell in cells if cell != CellType()]
    for value in held:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for part in parts:
            if callable(part) and not isinstance(part, type):
                yield from _iterate_inside(part, depth - 1)


def _can_plan(step: Any, *, takes_pil: bool, of_bytes: bool = True) -> bool:
    """Tells if the engine does what a transform does to an image."""
    if _is_known(step, _CONTAINERS):
        inner = getattr(step, "transforms", ())
        return all(_can_plan(each, takes_pil=takes_pil, of_bytes=of_bytes) for each in inner)
    if _is_known(step, _RESIZES):
        way = getattr(step.interpolation, "value", step.interpolation)
        if takes_pil:
            return way in ("bilinear", "bicubic", "box", "lanczos")
        return of_bytes and getattr(step, "antialias", None) is True and way in ("bilinear", "bicubic")
    # Values other than bytes can only be moved.
    if _is_known(step, _FLIPS) or (of_bytes and _is_known(step, _CROPS)):
        return True
    pads_zeros = _is_known(step, {"Pad"}) and step.padding_mode == "constant" and step.fill in (0, None)
    return takes_pil and (pads_zeros or (_is_known(step, STEP_TRANSFORMS) and has_steps(step)))


def _is_known(step: Any, names: set[str]) -> bool:
    """Tells if a transform has one of these names, and is torchvision's, torch's or a variant of timm's."""
    kind = type(step)
    name = kind.__name__
    if kind.__module__.startswith("timm.data."):
        name = name.removeprefix("Maybe")  # variants for PIL images
    elif not (is_of_torchvision(kind) or kind.__module__ == "torch.nn.modules.linear"):
        return False
    return name in names


class _Erased(torch.Tensor):
    """Stands for an image that is not made yet, and notes what transforms write to it. It has no memory.

    Attributes:
        patches: Place and value of each part that was written.
    """

    patches: list[tuple[Any, Any]]

    @classmethod
    def of_size(cls, image: PlannedImage) -> _Erased:
        """Returns a stand-in for an image as a tensor ``(C, H, W)``."""
        stand_in = torch.empty(_shape_of(image), device="meta").as_subclass(cls)
        stand_in.patches = []
        return stand_in

    def __setitem__(self, place: Any, value: Any) -> None:
        self.patches.append((place, value))

    def clone(self, *, memory_format: torch.memory_format | None = None) -> _Erased:
        """Returns the object itself: the image has memory of its own."""
        return self


def _is_planned(image: Any) -> bool:
    """Tells if an image is planned, and nothing has needed or changed its pixels."""
    return isinstance(image, PlannedImage) and not image.is_made


def _shape_of(image: PlannedImage) -> tuple[int, ...]:
    """Returns number of channels, height and width, which are equal for rows of one tensor."""
    return image.source.channels, image.height, image.width


def _as_tensor(image: Image.Image) -> torch.Tensor:
    """Returns a PIL image of bytes as a tensor ``(C, H, W)``."""
    pixels = np.array(image)
    return torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None]).permute(2, 0, 1)


def _run_all(steps: Iterable[Callable[[Any], Any]], value: Any) -> Any:
    """Calls transforms one after another."""
    for step in steps:
        value = step(value)
    return value
