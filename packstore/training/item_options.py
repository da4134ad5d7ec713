"""Checks a dataset's options against its store, and replaces None by defaults: split, columns, reading of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from packstore.core.columns import find_class_column, list_user_columns
from packstore.core.errors import UsageError
from packstore.core.manifest import Column, Manifest
from packstore.core.options import check_bools, show_value
from packstore.images.orientation import keeps_exif, readers_transpose
from packstore.images.reading import Reading
from packstore.training.arguments import check_callables
from packstore.training.augment.base import Operation
from packstore.training.augment.steps import (
    InPlace,
    check_function,
    flatten_transforms,
    is_of_torchvision,
    iterate_parts,
)

OUTPUTS = ("tensor", "pil", "numpy", "bytes", "dict", "tv_tensors")
_OF_TENSORS = ("tensor", "dict", "tv_tensors")


def join_column_names(manifest: Manifest) -> str:
    """Joins the names of all columns by commas, for messages."""
    return ", ".join(c.name for c in manifest.columns)


def choose_split(manifest: Manifest, split: str | None) -> str | None:
    """Returns the name of the split to use; None in a store without splits.

    Raises :class:`UsageError` for an unknown split, or if there are several and none is named.
    """
    names = [s.name for s in manifest.splits]
    if split is None:
        if len(names) > 1:
            raise UsageError(f"the store has several splits; name one with split=: {', '.join(names)}")
        return names[0] if names else None
    if callable(split):
        raise UsageError(f"split should be a name, got {show_value(split)}: give a transform by its name, transform=…")
    if split not in names:
        raise UsageError(f"no split {split!r}; splits: {', '.join(names) or 'none'}")
    return split


def detection_columns(manifest: Manifest) -> list[Column]:
    """Returns the first column of objects, such as boxes, and the first column of their classes.

    Empty without objects.
    """
    objects = next((column for column in manifest.columns if column.traits.rows_are_objects), None)
    classes = None if objects is None else find_class_column(manifest.columns, objects.name)
    return [column for column in (objects, classes) if column is not None]


def choose_columns(manifest: Manifest, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the names of an item's columns: ``columns``, or the default columns for None.

    The default is image and label. Without a column ``label`` it is the image with its masks, boxes and their labels,
    if there are any, in the manifest's order. Beside boxes, masks that may be missing are left out: a batch without one
    would be an error.

    Raises :class:`UsageError` for an unknown name, and unless ``columns`` is a sequence of at least one name.
    """
    if columns is None:
        if manifest.has_column("label"):
            return ("image", "label")
        objects = detection_columns(manifest)
        masks = [column for column in manifest.columns if column.holds_masks and not (objects and column.nullable)]
        groups = sorted(
            [*([mask] for mask in masks), objects], key=lambda group: list(map(manifest.columns.index, group))
        )
        return ("image", *(column.name for group in groups for column in group))
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise UsageError(f"columns should be a sequence of names such as ('image', 'label'), got {columns!r}")
    for name in columns:
        if not manifest.has_column(name):
            raise UsageError(f"no column {name!r}; columns: {join_column_names(manifest)}")
    return tuple(columns)


def list_left_out(manifest: Manifest, columns: Sequence[str]) -> list[str]:
    """Returns the names of the columns that an item lacks, except the key and columns for packstore's own use."""
    listed = ["image", *(column.name for column in list_user_columns(manifest.columns))]
    return [name for name in listed if name not in columns]


def check_transforms(transform: Any, target_transform: Any, transforms: Any) -> None:
    """Raises :class:`UsageError` for functions that cannot transform items.

    - Values that cannot be called.
    - Operations of packstore, which take batches.
    - ``transforms`` together with one of the other two.
    """
    check_callables(transform=transform, target_transform=target_transform, transforms=transforms)
    if transforms is not None and not (transform is None and target_transform is None):
        raise UsageError("transforms= takes image and target together: leave out transform and target_transform")
    for name, function in (("transform", transform), ("transforms", transforms)):
        check_function(name, function)
    parts = [part for each in (transform, transforms) for part in iterate_parts(each)]
    if any(isinstance(part, Operation) and not isinstance(part, InPlace) for part in parts):
        raise UsageError("packstore.augment works on batches: PackedLoader(dataset, augment=[…])")


def choose_orientation(manifest: Manifest, wanted: bool | None) -> bool:
    """Tells if images are rotated by EXIF when decoded: as ``wanted``, or for None as chosen when the store was packed.

    Returns False if the store's images have no EXIF any more: they were rotated when packed, or never. Then raises
    :class:`UsageError` if ``wanted`` differs from the choice when packing. Also raises it for anything but True, False
    and None.
    """
    if wanted not in (None, True, False):
        raise UsageError(f"exif_transpose should be True, False or None, got {wanted!r}")
    if wanted is None or not keeps_exif(manifest):
        stored = bool(manifest.options.get("exif_transpose"))
        if wanted not in (None, stored):
            raise UsageError(
                f"exif_transpose={wanted}, but the images of this {manifest.encoding} store "
                + ("were turned when they were packed" if stored else "have no EXIF any more")
                + f"; pack it again {'without' if stored else 'with'} --exif-transpose"
            )
        return readers_transpose(manifest)
    return bool(wanted)


def check_frames(manifest: Manifest, columns: Sequence[str], upright: bool) -> None:
    """Raises :class:`UsageError` if boxes, points or masks were packed for the images in another orientation.

    ``upright``: images are rotated by EXIF.
    """
    packed = readers_transpose(manifest)
    chosen = [manifest.column(name) for name in columns]
    moved = [c.name for c in chosen if c.traits.moves or c.frame is not None or c.hides_boxes]
    if moved and upright is not packed and manifest.options.get("exif_oriented"):
        raise UsageError(
            f"exif_transpose={upright} would turn the images and not {', '.join(map(repr, moved))}, which count in the "
            f"{'upright' if packed else 'stored'} image; leave it out, or pack the store again "
            f"{'without' if packed else 'with'} --exif-transpose"
        )


def choose_reading(
    manifest: Manifest, mode: str | None, depth: str | None, alpha: str | None, frames: str | None
) -> Reading:
    """Returns the conversion of image files to pixels: the store's, with the user's mode, depth, alpha and frame.

    Raises:
        UsageError: An unknown value. An option other than ``depth="keep"`` for a store of pixels. A ``mode`` of 8 bits
            for images of more bits, without a ``depth`` that converts them. A ``mode`` with colours for images whose
            channels are no colours. ``depth="keep"`` without ``mode``, for a store that converts to 8 bits.
    """
    recorded = Reading.restore(manifest.image.mode, manifest.options)
    named = {"mode": mode, "depth": depth, "alpha": alpha, "frames": frames}
    given = {name: value for name, value in named.items() if value is not None}
    store_mode = recorded.pixels
    if given.get("depth") == "keep":
        if recorded.depth is not None and mode is None:
            raise UsageError(
                f"depth='keep' needs the mode of the files, since this store reads them as {store_mode} by depth "
                f"{recorded.depth}; name it, such as mode='I;16'"
            )
        del given["depth"]
    if not given:
        return recorded
    if not manifest.holds_files:
        raise UsageError(
            f"{', '.join(given)} {'says' if len(given) == 1 else 'say'} how image files are read, and this store holds "
            f"{manifest.encoding} pixels of mode {manifest.image.pixels}; pack it again with --mode, or leave "
            f"{'it' if len(given) == 1 else 'them'} out"
        )
    reading = replace(recorded, chosen=mode is not None, by_pillow=False, **given)
    # Colours of int16, int32 and float32 are multi, too: three channels, or four with alpha.
    no_colours = store_mode.name.startswith("multi") and store_mode.channels not in (3, 4)
    if no_colours and not reading.pixels.name.startswith("multi"):
        raise UsageError(
            f"the images of this store have mode {store_mode}, whose channels are no colours: mode {reading.pixels} "
            "would lose some; leave mode out"
        )
    if store_mode.dtype != "uint8" and reading.pixels.dtype == "uint8" and (reading.depth is None or depth == "keep"):
        raise UsageError(
            f"the images of this store have mode {store_mode}, and mode {reading.pixels} has 8 bits: say how values "
            "become 8 bits with depth='scale', 'clip' or 'window:LO,HI', or leave mode out"
        )
    return reading


def check_normalised(manifest: Manifest, output: str, transform: Any) -> None:
    """Raises :class:`UsageError` for transforms of torchvision that do not fit a store of normalised tensors.

    These would make tensors of the tensors, or normalise them again.
    """
    if manifest.normalization is None or not manifest.holds_floats or output == "pil" or transform is None:
        return
    for step in flatten_transforms(transform):
        name = type(step).__name__
        if is_of_torchvision(type(step)) and name in ("ToTensor", "PILToTensor", "Normalize"):
            raise UsageError(
                f"transform: this store holds normalised tensors, and {name} is for images that are not: leave it out; "
                "or give output='pil', denormalize=True, which takes the images back to bytes"
            )


def check_output(
    manifest: Manifest, columns: Sequence[str], output: str, dtype: torch.dtype | None, denormalize: bool
) -> None:
    """Raises :class:`UsageError` for an unknown ``output``, and for options that do not fit.

    - ``"tv_tensors"`` needs the column ``image``.
    - ``denormalize`` needs ``"pil"``. ``"pil"`` needs ``denormalize`` for a floating point store.
    - ``dtype`` needs tensors, and is a floating point type or uint8. A floating point store refuses uint8.
    """
    if output not in OUTPUTS:
        raise UsageError(f"no output {output!r}; outputs: {', '.join(OUTPUTS)}")
    if output == "tv_tensors" and "image" not in columns:
        raise UsageError(f"output='tv_tensors' needs the column 'image', and the columns are {', '.join(columns)}")
    check_bools(denormalize=denormalize)
    if denormalize and output != "pil":
        raise UsageError(f"denormalize= is for output='pil'; the output is {output!r}")
    if output == "pil" and manifest.holds_floats and not denormalize:
        raise UsageError(
            f"a {manifest.encoding} store holds normalised images, which PIL cannot hold; add denormalize=True to undo "
            "the normalisation, or use output='tensor'"
        )
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise UsageError(f"dtype should be one of torch's, such as torch.float16, got {dtype!r}")
    if dtype is not None and output not in _OF_TENSORS:
        raise UsageError(f"dtype= is for tensors; the output is {output!r}")
    if dtype is not None and not dtype.is_floating_point and dtype != torch.uint8:
        raise UsageError(f"dtype should be a floating point type or torch.uint8, got {dtype}")
    if dtype == torch.uint8 and manifest.holds_floats:
        raise UsageError(f"a {manifest.encoding} store holds normalised images: they do not fit torch.uint8")
