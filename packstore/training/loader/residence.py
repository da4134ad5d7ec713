"""Whether a loader holds its images in device memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from packstore.core.errors import UsageError
from packstore.core.manifest import Manifest

SHARE = {"cpu": 0.25, "cuda": 0.5}
"""Share of the free memory that ``resident="auto"`` takes at most."""

# The engine does the same work in both modes on the CPU; resident saves reading and some Python an image, which counts
# for small ones, and streaming works ahead (tools/bench/matrix.py).
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
class Residence:
    """Whether a loader's images are resident.

    Attributes:
        resident: Whether they are.
        reason: Why, in words.
    """

    resident: bool
    reason: str


def choose_residence(manifest: Manifest, records: int, device: torch.device, wanted: bool | str) -> Residence:
    """Decides whether to be resident.

    Args:
        manifest: The store's.
        records: How many would be.
        device: Where.
        wanted: What the user says: True, False or "auto".

    Raises:
        UsageError: It is wanted but impossible: with the bytes needed and those that are free.
    """
    image = manifest.image
    if wanted is False:
        return Residence(False, "asked for")
    if image.kind != "fixed":
        if wanted is True:
            raise UsageError(
                f"resident=True needs images of one shape, and this store's {manifest.encoding} images have none; "
                "pack it with --encoding uint8 --size S, or stream"
            )
        return Residence(False, f"{manifest.encoding} images have no common shape")
    if device.type not in SHARE:
        return Residence(wanted is True, "asked for" if wanted is True else f"the free memory of {device} is not known")
    needed, free = image.record_nbytes * records, free_memory(device)
    if wanted is True and needed > free:
        raise UsageError(f"the images take {needed:,} bytes on {device}, where {free:,} are free; use resident=False")
    if wanted is True:
        return Residence(True, "asked for")
    allowed = int(free * SHARE[device.type])
    what = f"{needed:,} bytes of images, {allowed:,} allowed ({SHARE[device.type]:.0%} of the free memory of {device})"
    if needed > allowed:
        return Residence(False, what)
    if device.type == "cpu" and image.record_nbytes > SMALL_IMAGE_BYTES:
        small = f"{SMALL_IMAGE_BYTES:,}"
        return Residence(
            False, f"on the CPU, images of {image.record_nbytes:,} bytes (over {small}) are faster by streaming"
        )
    return Residence(True, what)
