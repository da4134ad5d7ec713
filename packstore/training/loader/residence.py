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
from packstore.training.augment import RandomCrop, RandomHorizontalFlip

SHARE = {"cpu": 0.25, "cuda": 0.5}
"""Share of the free memory that ``resident="auto"`` takes at most."""


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
class CropMemory:
    """Memory for resident images that a crop is cut straight out of: :class:`packstore.training.augment.Padded`.

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
        memory: What they lie in; None for a plain tensor.
    """

    resident: bool
    reason: str
    memory: CropMemory | None = None


def resident_bytes(manifest: Manifest, records: int, memory: CropMemory | None = None) -> int | None:
    """Bytes that ``records`` images take when they are resident; None when they have no common shape."""
    image = manifest.image
    if image.kind != "fixed":
        return None
    if memory is None:
        return image.record_nbytes * records
    channels, height, width = image.shape if image.layout == "CHW" else (image.shape[-1], *image.shape[:-1])
    itemsize = NUMPY_DTYPE[image.dtype].itemsize
    return memory.crop.padded_bytes(records, (channels, height, width), itemsize, memory.mirrored)


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
    memory = None
    for way in _ways(augment, device):
        more = resident_bytes(manifest, records, way) or needed
        if more <= allowed:
            memory, needed = way, more
            break
    if wanted is True:
        return Residence(True, "asked for", memory)
    what = f"{needed:,} bytes of images, {allowed:,} allowed ({SHARE[device.type]:.0%} of the free memory of {device})"
    return Residence(needed <= allowed, what, memory)


def _ways(augment: Sequence[Any], device: torch.device) -> Iterator[CropMemory]:
    """Memory that suits the operations, the fastest first. None for a GPU, which gathers pixel by pixel in any case."""
    if device.type == "cpu" and augment and isinstance(augment[0], RandomCrop):
        if len(augment) > 1 and isinstance(augment[1], RandomHorizontalFlip):
            yield CropMemory(augment[0], mirrored=True)
        yield CropMemory(augment[0], mirrored=False)
