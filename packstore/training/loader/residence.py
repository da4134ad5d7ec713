"""Decides if a loader keeps its images in device memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from packstore.core.errors import UsageError
from packstore.core.manifest import Manifest

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


@dataclass(frozen=True, slots=True)
class Residence:
    """Decision if a loader keeps all images in device memory (resident), or streams them.

    Attributes:
        resident: The images are kept in device memory.
        reason: The reason, in words.
    """

    resident: bool
    reason: str


def choose_residence(manifest: Manifest, records: int, device: torch.device, wanted: bool | str) -> Residence:
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
