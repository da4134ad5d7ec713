"""Whether a loader holds its images in device memory, and laid out how."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import UsageError
from packstore.core.manifest import Manifest
from packstore.images.engine import get_engine
from packstore.training.augment import RandomCrop, RandomHorizontalFlip
from packstore.training.augment.base import GeometricOperation

SHARE = {"cpu": 0.25, "cuda": 0.5}
"""Share of the free memory that ``resident="auto"`` takes at most."""

# With the engine both modes do the same work on the CPU; resident saves reading and some Python an image, which counts
# for small ones, and streaming works ahead (tools/bench/matrix.py). Without it, resident / streaming, images a second,
# from .pth, batches of 256, 2 cores (tools/bench/loader.py --only modes): above 12 KiB an image streaming is faster,
# and at any size where its threads resize pixels; but a crop that comes first is faster resident at all sizes.
#
#   pixels, encoding   none  flip  normalise  crop, flip  crop, flip, normalise  resized crop, flip
#    32 uint8          1.15  2.30       4.32        4.01                   2.58                0.93
#    32 float16        2.39  1.54          -        3.30                      -                1.12
#    64 uint8          2.00  1.77       1.55        3.34                   1.59                0.70
#    96 uint8          0.55  0.72       0.92        2.70                   1.40                0.33
#    96 float16        0.52  0.43          -        2.92                      -                1.43
#   128 uint8          0.40  1.03       0.13        3.22                   1.28                0.04
#   160 uint8          0.84  1.16       0.16        3.13                   1.15                0.23
#   224 uint8          0.10  0.54          -        5.37                      -                   -
#   224 float16        0.17  0.76          -        4.46                      -                   -
#   256 uint8          0.20  0.87          -        2.68                      -                   -
SMALL_IMAGE_BYTES = 64 * 64 * 3


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device. Raises :class:`UsageError` where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "cpu":
        info = Path("/proc/meminfo")
        if info.exists():
            fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
            return int(fields["MemAvailable"].split()[0]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    raise UsageError(f"how much memory {device} has is not known; say resident=True or resident=False")


@dataclass(frozen=True, slots=True)
class PaddedLayout:
    """Resident images lie padded, ready for the crop that comes first: as
    :class:`packstore.training.augment.crop.PaddedImages`.

    Attributes:
        crop: The crop that comes first.
        mirrored: Whether images are kept mirrored, too, for the flip after it.
    """

    crop: RandomCrop
    mirrored: bool


@dataclass(frozen=True, slots=True)
class Residence:
    """Whether a loader's images are resident.

    Attributes:
        resident: Whether they are.
        reason: Why, in words.
        layout: How they lie; None for a plain tensor.
    """

    resident: bool
    reason: str
    layout: PaddedLayout | None = None


def resident_bytes(manifest: Manifest, records: int, layout: PaddedLayout | None = None) -> int | None:
    """Bytes that ``records`` images take when they are resident; None when they have no common shape."""
    image = manifest.image
    if image.kind != "fixed":
        return None
    if layout is None:
        return image.record_nbytes * records
    channels, height, width = image.shape if image.layout == "CHW" else (image.shape[-1], *image.shape[:-1])
    itemsize = NUMPY_DTYPE[image.dtype].itemsize
    return layout.crop.padded_bytes(records, (channels, height, width), itemsize, layout.mirrored)


def choose_residence(
    manifest: Manifest, records: int, device: torch.device, wanted: bool | str, augment: Sequence[Any] = ()
) -> Residence:
    """Whether to be resident, and how.

    Args:
        manifest: The store's.
        records: How many would be.
        device: Where.
        wanted: What the user says: True, False or "auto".
        augment: The loader's operations.

    Raises:
        UsageError: It is wanted but impossible: with the bytes needed and those that are free.
    """
    needed = resident_bytes(manifest, records)
    if wanted is False:
        return Residence(False, "asked for")
    if needed is None:
        if wanted is True:
            raise UsageError(
                f"resident=True needs images of one shape, and this store's {manifest.encoding} images have none; "
                "pack it with --encoding uint8 --size S, or stream"
            )
        return Residence(False, f"{manifest.encoding} images have no common shape")
    if device.type not in SHARE:
        return Residence(wanted is True, "asked for" if wanted is True else f"the free memory of {device} is not known")
    free = free_memory(device)
    allowed = int(free * SHARE[device.type])
    if wanted is True and needed > free:
        raise UsageError(f"the images take {needed:,} bytes on {device}, where {free:,} are free; use resident=False")
    layout = None
    for candidate in _layouts(augment, device) if get_engine() is None else ():
        more = resident_bytes(manifest, records, candidate) or needed
        if more <= allowed:
            layout, needed = candidate, more
            break
    if wanted is True:
        return Residence(True, "asked for", layout)
    what = f"{needed:,} bytes of images, {allowed:,} allowed ({SHARE[device.type]:.0%} of the free memory of {device})"
    if needed > allowed:
        return Residence(False, what)
    faster = _why_stream(manifest, augment, layout) if device.type == "cpu" else None
    return Residence(True, what, layout) if faster is None else Residence(False, faster)


def _why_stream(manifest: Manifest, augment: Sequence[Any], layout: PaddedLayout | None) -> str | None:
    """Why streaming is faster than resident images on the CPU; None where it is not."""
    resizes = get_engine() is None and any(isinstance(op, GeometricOperation) and op.resizes for op in augment)
    if resizes and manifest.image.layout == "HWC":  # floats are resized in whole batches in either mode
        return "on the CPU, images are resized faster by streaming"
    if layout is None and manifest.image.record_nbytes > SMALL_IMAGE_BYTES:
        return (
            f"on the CPU, images of {manifest.image.record_nbytes:,} bytes (over {SMALL_IMAGE_BYTES:,}) are faster "
            "by streaming"
        )
    return None


def _layouts(augment: Sequence[Any], device: torch.device) -> Iterator[PaddedLayout]:
    """Layouts that suit the operations, the fastest first. None for a GPU, which gathers pixel by pixel in any case."""
    if device.type == "cpu" and augment and isinstance(augment[0], RandomCrop) and not augment[0].pad_if_needed:
        if len(augment) > 1 and isinstance(augment[1], RandomHorizontalFlip):
            yield PaddedLayout(augment[0], mirrored=True)
        yield PaddedLayout(augment[0], mirrored=False)
