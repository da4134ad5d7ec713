"""Decides where each operation of a user's list runs: while decoding, on batches, or image by image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from packstore.core.errors import UsageError
from packstore.core.manifest import Column, Manifest
from packstore.core.modes import RGB
from packstore.training.augment.base import GeometricOperation, Size, Step
from packstore.training.augment.geometry import RandomCrop
from packstore.training.augment.operations import HOW_TO_COLLATE, need_one_by_one, output_size, split_operations
from packstore.training.augment.steps import as_operations, is_per_image, may_resize
from packstore.training.dataset import PackedDataset
from packstore.training.loader.looks import RowFormat, engine_supports, take_programs
from packstore.training.loader.options import Collate, LoaderOptions

if TYPE_CHECKING:
    from packstore.training.augment.per_image import PerImage


@dataclass(frozen=True, eq=False)
class WorkDivision:
    """Tells where each operation of a list runs, and the conversion to the final format.

    There is one for the loader's operations, and one for those of each view.

    Attributes:
        crops: First operations: they run as crops while images are decoded, or in the engine's pass over images in
            memory.
        programs: Next operations, which the engine runs in the same pass, while the image is in the CPU cache.
        per_image: Next operations, which decoding threads call image by image.
        on_batches: The other operations, on batches on the device.
        form: Final format that the threads write; None if batches are converted on the device.
        one_by_one: Decoding threads augment images one by one, since their sizes differ during augmentation.
        by_engine: The engine crops and finishes images that are resident on the CPU.
        whole_views: All operations of views run on batches of whole images.
    """

    crops: tuple[GeometricOperation, ...] = ()
    programs: tuple[Any, ...] = ()
    per_image: tuple[PerImage, ...] = ()
    on_batches: tuple[Step, ...] = ()
    form: RowFormat | None = None
    one_by_one: bool = False
    by_engine: bool = False
    whole_views: bool = False

    @property
    def first_on_batches(self) -> int:
        """Index of the first of :attr:`on_batches` in the list."""
        return len(self.crops) + len(self.programs) + len(self.per_image)


def divide_loader(
    dataset: PackedDataset, options: LoaderOptions, resident: bool, final: RowFormat | None
) -> WorkDivision:
    """Decides where each operation of a loader's ``augment`` runs.

    ``resident``: the images are in device memory. ``final``: final format of the images, see :func:`final_format`."""
    image, on_cpu = dataset.manifest.image, dataset.device.type == "cpu"
    views, plain = options.views is not None, options.pre_transform is None
    one_by_one = augments_one_by_one(dataset, options)
    whole_views = views and (resident or dataset.manifest.holds_floats)
    by_engine = resident and on_cpu and engine_supports(image) and plain and not whole_views
    # Threads work on the images: those that decode, or the engine's on resident images.
    in_threads = on_cpu and (by_engine or not resident)
    at_decoding = operations_at_decoding(dataset, options.augment, image) if plain else ()
    division = divide_work(
        () if one_by_one else options.augment,
        at_decoding if not one_by_one and (by_engine or not resident) else (),
        final if in_threads and not views else None,
        runs_programs=in_threads and dataset.reading.pixels == RGB and image.layout != "CHW",
        calls_functions=on_cpu and not resident,
    )
    return replace(division, one_by_one=one_by_one, by_engine=by_engine, whole_views=whole_views)


def divide_work(
    operations: Sequence[Step],
    crops: tuple[GeometricOperation, ...],
    form: RowFormat | None,
    *,
    runs_programs: bool,
    calls_functions: bool,
) -> WorkDivision:
    """Decides where each operation of a list runs, and if threads write the final format.

    Args:
        operations: The list.
        crops: Its first operations that run as crops.
        form: Final format; threads write it if all operations are crops or programs.
        runs_programs: The threads that crop can run programs.
        calls_functions: Decoding threads may call the user's functions after crops and programs. The first function
            that may not run in threads, and all operations after it, run on batches.
    """
    programs = take_programs(operations, len(crops)) if runs_programs else ()
    rest = tuple(operations[len(crops) + len(programs) :])
    per_image: list[PerImage] = []
    for operation in rest if calls_functions else ():
        if not is_per_image(operation) or not operation.runs_in_threads:
            break
        per_image.append(operation)
    return WorkDivision(crops, programs, tuple(per_image), rest[len(per_image) :], None if rest else form)


def operations_at_decoding(
    dataset: PackedDataset, operations: Sequence[Step], image: Column
) -> tuple[GeometricOperation, ...]:
    """Returns the first operations of a list that run as crops while images of a column are decoded.

    On the CPU, arrays of equal size may begin with a crop with padding, if the engine can fill the padding.

    Returns none, so that the caller augments whole batches, for:

    - arrays of equal size that the engine cannot resize with the operations' interpolation;
    - ``CHW`` arrays that the engine does not process on the CPU;
    - ``HWC`` arrays of equal size on other devices, if no operation resizes.
    """
    planned, _ = split_operations(operations, flip=True)
    samplings = {0, 1, 2, 3, 4} if image.layout == "HWC" else {0}  # indices of SAMPLINGS that the engine has
    if image.kind == "fixed" and not all(op.samplings <= samplings for op in planned):
        return ()  # the engine lacks this interpolation; torch resizes whole batches
    if dataset.device.type == "cpu" and engine_supports(image):
        padded, _ = split_operations(operations, flip=True, padded=True)
        return padded if all(_can_fill(op, image) for op in padded) else planned
    if image.layout == "CHW":
        return ()
    return planned if image.kind == "ragged" or any(op.resizes for op in planned) else ()


def augments_one_by_one(dataset: PackedDataset, options: LoaderOptions) -> bool:
    """Tells if decoding threads augment images one by one.

    They do if ``collate`` asks for a list or padded images. They also do if image sizes may differ during or after the
    operations. Always False with ``views`` or ``pre_transform``."""
    if options.views is not None or options.pre_transform is not None:
        return False
    if options.form_of_images is not None:
        return True
    image = dataset.manifest.image
    planned = operations_at_decoding(dataset, options.augment, image)
    return need_one_by_one(options.augment, len(planned), _size_of_column(image))


def choose_image_form(dataset: PackedDataset, options: LoaderOptions) -> str | None:
    """Returns the form of a batch's images: ``"list"`` or ``"padded"`` as ``collate`` says, else None.

    Returns ``"stacked"`` for results of a user's function that are augmented one by one: they must have one size. For
    mosaics, returns ``"list"`` if images may differ in size, else None.

    Raises :class:`UsageError` if:

    - images may differ in size, and ``collate`` names no form;
    - ``collate`` names a form, and other options (``views``, ``mix``, …) need one tensor.
    """
    form, one_by_one = options.form_of_images, augments_one_by_one(dataset, options)
    # A function may return any size and dtype, which rows of a buffer lack.
    of_functions = one_by_one and any(map(may_resize, options.augment))
    unequal = one_by_one and (of_functions or final_image_size(dataset, options) is None)
    if options.mosaic is not None:  # it makes a batch of images of any sizes
        return "list" if unequal else None
    if form is None and of_functions:
        return "stacked"
    if form is None and unequal:
        raise UsageError(f"images differ in size after augment=: {HOW_TO_COLLATE}")
    if form is not None:
        for name in ("views", "mix", "masking", "pre_transform"):
            if getattr(options, name) is not None:
                raise UsageError(f"collate={{'image': {form!r}}} gives no batch of one size, which {name}= needs")
    return form


def default_collate(dataset: PackedDataset, operations: Sequence[Step]) -> dict[str, Collate]:
    """Returns ``collate=`` for a list of images if ``operations`` give them different sizes; else an empty dict."""
    options = LoaderOptions(augment=as_operations(operations))
    unequal = final_image_size(dataset, options) is None or any(map(may_resize, options.augment))
    if augments_one_by_one(dataset, options) and unequal:
        return {"image": "list"}
    return {}


def final_image_size(dataset: PackedDataset, options: LoaderOptions) -> Size | None:
    """Returns the height and width of all images after ``augment``.

    Returns None if they may differ, or if ``collate`` asks for a list or padding."""
    if options.form_of_images is not None:
        return None
    return output_size(options.augment, _size_of_column(dataset.manifest.image))


def _size_of_column(image: Column) -> Size | None:
    """Returns the common height and width of a column's arrays; None for files, and for arrays that differ."""
    if image.kind != "fixed" or image.layout is None:
        return None
    height, width = image.shape[1:] if image.layout == "CHW" else image.shape[:2]
    return height, width


def _can_fill(operation: GeometricOperation, image: Column) -> bool:
    """Tells if the engine can fill the padding of an operation. False for a :class:`RandomCrop` of bytes with a value
    that no byte has."""
    if image.layout == "CHW" or not isinstance(operation, RandomCrop):
        return True
    colour = operation.fill
    return all(0 <= value <= 255 for value in ([colour] if isinstance(colour, int | float) else colour))


SHARE = {"cpu": 0.25, "cuda": 0.5}
"""Maximum fraction of the free memory that ``resident="auto"`` uses."""

# On the CPU the engine does the same work in both modes. Resident images need no reading and less Python per image,
# which matters for small ones; streaming works ahead (tools/bench/matrix.py).
SMALL_IMAGE_BYTES = 64 * 64 * 3


def free_memory(device: torch.device) -> int:
    """Returns the free memory of a device in bytes. On a CPU without ``/proc/meminfo``, returns half of all memory.

    Raises :class:`UsageError` for devices other than CPU and CUDA."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "cpu":
        info = Path("/proc/meminfo")
        if info.exists():
            fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
            return int(fields["MemAvailable"].split()[0]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    raise UsageError(f"how much memory {device} has is not known; say resident=True or resident=False")


def choose_residence(manifest: Manifest, records: int, device: torch.device, wanted: bool | str) -> tuple[bool, str]:
    """Decides if a loader keeps all images in device memory. The user decides, or their size and the free memory.

    ``"auto"`` keeps images of one shape:

    - on a GPU, if they take at most half of its free memory;
    - on the CPU, if they take at most a quarter of it, and an image at most 12,288 bytes;
    - on other devices, none.

    Args:
        manifest: Manifest of the store.
        records: Number of records.
        device: Device of the images.
        wanted: The user's wish: True, False or ``"auto"``.

    Raises:
        UsageError: ``wanted`` is True, but the images differ in shape, or do not fit into the free memory if that is
            known.
    """
    image = manifest.image
    if wanted is False:
        return False, "asked for"
    if image.kind != "fixed":
        if wanted is True:
            raise UsageError(
                f"resident=True needs images of one shape, and this store's {manifest.encoding} images have none; "
                "pack it with --encoding uint8 --size S, or stream"
            )
        return False, f"{manifest.encoding} images have no common shape"
    if device.type not in SHARE:
        return wanted is True, "asked for" if wanted is True else f"the free memory of {device} is not known"
    needed, free = image.record_nbytes * records, free_memory(device)
    if wanted is True and needed > free:
        raise UsageError(f"the images take {needed:,} bytes on {device}, where {free:,} are free; use resident=False")
    if wanted is True:
        return True, "asked for"
    allowed = int(free * SHARE[device.type])
    what = f"{needed:,} bytes of images, {allowed:,} allowed ({SHARE[device.type]:.0%} of the free memory of {device})"
    if needed > allowed:
        return False, what
    if device.type == "cpu" and image.record_nbytes > SMALL_IMAGE_BYTES:
        small = f"{SMALL_IMAGE_BYTES:,}"
        return False, f"on the CPU, images of {image.record_nbytes:,} bytes (over {small}) are faster by streaming"
    return True, what
