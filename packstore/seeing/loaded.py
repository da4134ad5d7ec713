"""Loads single records through :class:`packstore.PackedLoader`, so that they are bit for bit what training gets.

Augmentations are parsed from text such as ``RandomResizedCrop(224), RandomHorizontalFlip()``, without executing it.
"""

from __future__ import annotations

import ast
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.columns import INTERNAL
from packstore.core.errors import UsageError
from packstore.images.sniff import HeaderError
from packstore.seeing.facts import locate_in_split, read_image_facts, shown_columns
from packstore.stores import Reader
from packstore.training import augment
from packstore.training.augment import RECIPES, Operation, recipe
from packstore.training.augment.sizes import BatchBoxes
from packstore.training.augment.steps import as_operations
from packstore.training.augment.unequal import DrawnOperations
from packstore.training.dataset import PackedDataset
from packstore.training.loader import PackedLoader
from packstore.training.loader.division import default_collate
from packstore.training.loader.options import Collate
from packstore.training.random_draws import Draws

OPERATIONS = tuple(
    name
    for name in augment.__all__
    if isinstance(kind := getattr(augment, name), type)
    and issubclass(kind, Operation)
    and name not in ("Albumentations", "InPlace", "Operation", "PerImage")
)
"""Names of the allowed operations; operations that take functions are not allowed."""
MOST_PIXELS = 4096
"""Largest number in the text, since it may be a side of the resulting images in pixels."""

_LONGEST = 2000
_DEEPEST = 50
"""Most levels of the syntax tree. Deeper ones exceed Python's stack in ``ast.unparse``."""


def parse_augment(text: str) -> list[Operation]:
    """Parses ``text`` to operations: the name of a recipe, or calls as in Python, separated by commas. Executes no code
    of the text.

    A call names one of :data:`OPERATIONS`. Its arguments are numbers up to :data:`MOST_PIXELS`, strings, None and
    further calls. Tuples and lists have up to eight of these.

    Raises :class:`UsageError` for anything else, for more than 2,000 letters, for nested expressions of more than 50
    levels, and for a recipe with several views.
    """
    if text.strip() in RECIPES:
        return list(as_operations(text.strip()))
    return [_make_operation(node) for node in _parse_calls(text)]


def parse_options(text: str) -> dict[str, Any]:
    """Parses ``text`` like :func:`parse_augment` into an option of a loader: ``{"augment": operations}``.

    For a recipe with several views (crops of one record), the option is ``{"views": views}``.
    """
    name = text.strip()
    if name in RECIPES and (views := recipe(name).views) is not None:
        return {"views": views}
    return {"augment": parse_augment(text)}


def list_operation_names(text: str) -> list[str]:
    """Returns the sorted names of all operations in a text, including nested ones. Returns none for the name of a
    recipe.

    :func:`parse_augment` must accept the text; only its syntax is checked here.
    """
    called = (node.func for call in _parse_calls(text) for node in ast.walk(call) if isinstance(node, ast.Call))
    return sorted({each.id for each in called if isinstance(each, ast.Name)})


def _parse_calls(text: str) -> list[ast.expr]:
    """Parses a text to the syntax trees of its expressions."""
    if len(text) > _LONGEST:
        raise UsageError(f"augmentations should take at most {_LONGEST} letters, got {len(text)}")
    try:
        parsed = ast.parse(f"[{text}]", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unfit_error(text) from None
    if not isinstance(parsed, ast.List):
        raise _unfit_error(text)
    # Without recursion, since the tree may be deeper than the stack.
    level: list[ast.AST] = [*parsed.elts]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise UsageError(f"augmentations are nested too deeply, more than {_DEEPEST} levels; got {text[:200]!r}")
    return parsed.elts


def _make_operation(node: ast.expr) -> Operation:
    """Makes an operation from its call in the syntax tree."""
    text = ast.unparse(node)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in OPERATIONS:
        raise _unfit_error(text)
    try:
        positional = [_parse_argument(each) for each in node.args]
        named = {str(each.arg): _parse_argument(each.value) for each in node.keywords if each.arg}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _unfit_error(text) from None
    if len(named) != len(node.keywords) or not all(map(_is_small, [*positional, *named.values()])):
        raise _unfit_error(text)
    try:
        made: Operation = getattr(augment, node.func.id)(*positional, **named)
    except TypeError as error:
        raise UsageError(f"{text[:200]}: {error}") from None
    return made


def _parse_argument(node: ast.expr) -> Any:
    """Converts an argument to its value: a literal, an operation, or a list or tuple of these."""
    if isinstance(node, ast.List | ast.Tuple):
        values = [_parse_argument(each) for each in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    return _make_operation(node) if isinstance(node, ast.Call) else ast.literal_eval(node)


def _is_small(value: Any) -> bool:
    """Tells if an argument has an accepted type, no number over :data:`MOST_PIXELS`, and no long list."""
    if isinstance(value, (tuple, list)):
        return len(value) <= 8 and all(map(_is_small, value))
    if isinstance(value, (int, float)):
        return abs(value) <= MOST_PIXELS
    return value is None or isinstance(value, str | Operation)


def _unfit_error(text: str) -> UsageError:
    """Makes the error for text that :func:`parse_augment` does not allow."""
    return UsageError(
        f"augmentations should be calls of packstore.augment's operations with numbers up to {MOST_PIXELS}, "
        f"such as RandomResizedCrop(224), RandomHorizontalFlip(); got {text[:200]!r}"
    )


_KEPT = 24
_MOST_BYTES = 3 << 26
"""Most bytes of a record that operations have enlarged, and of all cached records together."""
_VALUE_BYTES = 4
"""Most bytes of a mask's pixel, and of an image's channel, which becomes float32 unless it is uint8."""
_MOST_SEED = 1 << 63


@dataclass(frozen=True)
class LoadRequest:
    """A request for one record as the loader returns it.

    Attributes:
        record: Number of the record.
        augment: Augmentations as text for :func:`packstore.seeing.loaded.parse_augment`.
        seed: Seed of the loader.
        epoch: Epoch of the loader.
    """

    record: int
    augment: str
    seed: int
    epoch: int


@dataclass(frozen=True, eq=False)
class LoadedRecord:
    """One record from a batch of the loader.

    Attributes:
        image: uint8 ``(h, w, 3)``, without normalisation. Several views (sets of crops) are one picture, with a row for
            each view.
        exact: ``image`` has the loader's own values. False if it was converted from floating point.
        values: Masks, boxes, keypoints and class numbers, by column.
        python: Python code that loads this record in the same way.
    """

    image: NDArray[np.uint8]
    exact: bool
    values: dict[str, Any]
    python: str

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays = (value for value in self.values.values() if isinstance(value, np.ndarray))
        return self.image.nbytes + sum(array.nbytes for array in arrays)


class SampleLoader:
    """Loads single records as a loader of the whole split would. Thread-safe.

    Caches the latest 24 records, up to 192 MiB, and keeps a dataset of each split open. Raises :class:`UsageError` for
    wrong augmentations, and if the store has been replaced.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._manifest = reader.manifest
        self._datasets: dict[tuple[str | None, bool], PackedDataset] = {}
        self._kept: OrderedDict[LoadRequest, LoadedRecord] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, request: LoadRequest) -> LoadedRecord:
        """Loads a record, or returns it from the cache.

        Raises :class:`UsageError` for wrong augmentations, also for those that would enlarge the record to more than
        192 MiB. Raises it for a seed or an epoch over 63 bits, and for a store that has been replaced. Raises
        :class:`PackstoreError` if the record cannot be loaded.
        """
        with self._lock:  # one at a time, since images may be large
            loaded = self._kept.pop(request, None) or self._load_uncached(request)
            self._kept[request] = loaded
            while len(self._kept) > _KEPT or self.cached_bytes > _MOST_BYTES:
                self._kept.popitem(last=False)
            return loaded

    @property
    def cached_bytes(self) -> int:
        """Bytes of the cached records; at most 192 MiB."""
        return sum(loaded.nbytes for loaded in self._kept.values())

    def _load_uncached(self, request: LoadRequest) -> LoadedRecord:
        """Loads a record with a new loader."""
        how = parse_options(request.augment)
        if max(request.seed, request.epoch) >= _MOST_SEED:
            raise UsageError("seed and epoch should have at most 63 bits")
        manifest = self._manifest
        split, item = locate_in_split(manifest, request.record)
        dataset = self._open_dataset(split, "views" in how)
        if dataset.manifest != manifest:
            raise UsageError("the store has been replaced by another one: start packstore view again")
        collate: dict[str, Collate] = {n: "optional" for n in dataset.columns if manifest.column(n).nullable}
        form: dict[str, Collate] = {}
        if "augment" in how:
            self._check_size(how["augment"], request)
            form = default_collate(dataset, how["augment"])
        loader = PackedLoader(
            dataset, 1, indices=[item], seed=request.seed, workers=1, resident=False, collate=collate | form, **how
        )
        loader.set_epoch(request.epoch)
        batch = next(iter(loader))
        images = batch.pop("image")
        image = _join_views(images) if isinstance(images, dict) else images[0]
        loaded = {name: value[0] for name, value in batch.items() if value[0] is not None}
        values = {name: each.numpy() if isinstance(each, torch.Tensor) else each for name, each in loaded.items()}
        left_out = loader.pipeline.division.one_by_one or "views" in how
        python = _python_code(self._reader, split, item, request, form, left_out)
        return LoadedRecord(self._to_pixels(image), not image.is_floating_point(), values, python)

    def _open_dataset(self, split: str | None, alone: bool) -> PackedDataset:
        """Returns a split's dataset, opened once, with the columns drawn over images unless ``alone``."""
        if (split, alone) not in self._datasets:
            columns = [c for c in self._manifest.columns if c.name not in INTERNAL and not alone]
            drawn = [c.name for c in columns if c.traits.moves or (c.traits.has_classes and c.parallel is not None)]
            self._datasets[split, alone] = PackedDataset(
                self._reader.path, split, columns=["image", *drawn], output="dict"
            )
        return self._datasets[split, alone]

    def _check_size(self, operations: list[Operation], request: LoadRequest) -> None:
        """Raises :class:`UsageError` if ``operations`` would enlarge the record to more than 192 MiB."""
        try:
            size, _, _ = read_image_facts(self._reader, request.record)
        except HeaderError:
            return  # the loader reports it
        if 0 in size:  # no pixels to enlarge
            return
        image = self._manifest.image
        masks = sum(column.holds_masks for column in self._manifest.columns)
        channel_bytes = 1 if image.dtype == image.pixels.dtype == "uint8" else _VALUE_BYTES
        pixel_bytes = image.pixels.channels * channel_bytes + masks * _VALUE_BYTES
        draws = Draws(request.seed, request.epoch, np.array([request.record]))
        no_boxes = BatchBoxes(np.empty((0, 4), np.float32), np.empty(0, np.int64))
        most_pixels = max(size[0] * size[1], _MOST_BYTES // pixel_bytes)
        DrawnOperations(np.array([size], np.int64), operations, draws, no_boxes, most_pixels)

    def _to_pixels(self, image: torch.Tensor) -> NDArray[np.uint8]:
        """Converts an image of the loader to uint8 ``(h, w, 3)``, with normalisation undone."""
        if not image.is_floating_point():
            pixels: NDArray[np.uint8] = np.array(image.movedim(0, -1).numpy(), np.uint8)
            return pixels
        array: NDArray[Any] = image.movedim(0, -1).float().numpy()
        normalization = self._manifest.normalization
        if normalization is not None:
            array = array * np.array(normalization.std, np.float32) + np.array(normalization.mean, np.float32)
        # NaN becomes 0.
        shown: NDArray[np.uint8] = np.nan_to_num(array * 255).round().clip(0, 255).astype(np.uint8)
        return shown


def _join_views(views: dict[str, torch.Tensor]) -> torch.Tensor:
    """Joins the crops ``(1, n, 3, h, w)`` of each view to a row of an image ``(3, H, W)``."""
    rows = [torch.cat(list(crops[0]), 2) for crops in views.values()]
    width = max(row.shape[2] for row in rows)
    return torch.cat([torch.nn.functional.pad(row, (0, width - row.shape[2])) for row in rows], 1)


def _python_code(
    reader: Reader, split: str | None, item: int, request: LoadRequest, form: dict[str, Collate], no_further: bool
) -> str:
    """Returns Python code that loads a record as ``request`` asks, with the columns that the page shows."""
    operations = request.augment.strip()
    several = operations in RECIPES and recipe(operations).views is not None
    shown = shown_columns(reader.manifest)
    if operations:
        shown = [c for c in shown if c.traits.extension != "json" and c.form != "files"]
    if several:
        shown = [c for c in shown if c.name == "image"]
    if no_further:  # no images besides the main image
        shown = [c for c in shown if c.name == "image" or not c.traits.has_images]
    columns = tuple(c.name for c in shown)
    optional = {c.name: "optional" for c in shown if c.nullable} | form  # ``form``: entries for ``collate``
    collate = f", collate={optional!r}" if optional else ""
    named = "" if split is None else f", split={split!r}"
    lines = ["import packstore"]
    augment = f", augment=[{operations}]" if operations else ""
    if operations in RECIPES:
        augment = f", views=recipe({operations!r}).views" if several else f", augment={operations!r}"
        lines += ["from packstore.augment import recipe"] if several else []
    elif operations:
        lines.append(f"from packstore.augment import {', '.join(list_operation_names(operations))}")
    seed = f", seed={request.seed}" if request.seed else ""
    lines += [
        "",
        f"dataset = packstore.PackedDataset({str(reader.path)!r}{named}, columns={columns!r})",
        # ``item`` is the number of the record in ``split``.
        f"loader = packstore.PackedLoader(dataset, indices=[{item}]{seed}{augment}{collate})",
        f"loader.set_epoch({request.epoch})",
        "batch = next(iter(loader))",
    ]
    return "\n".join(lines) + "\n"
