"""Runs programs on batches: with the engine on the CPU, with torch on any device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.images.engine import augment
from packstore.images.programs import Code, Program
from packstore.training.augment import kernels
from packstore.training.augment.base import Units, is_channels_last

Steps = NDArray[np.void]

_ANY_DTYPE = (Code.AFFINE, Code.PERSPECTIVE, Code.ERASE, Code.MIRROR, Code.FLIP, Code.PERMUTE)
"""Codes that also work on other dtypes; the others need uint8. Permuting needs three channels."""

_IN_GRAY = (
    *(Code.BRIGHTNESS, Code.CONTRAST, Code.INVERT, Code.POSTERIZE, Code.SOLARIZE, Code.SOLARIZE_ADD),
    *(Code.AUTOCONTRAST, Code.EQUALIZE, Code.SHARPNESS, Code.BLUR),
)
"""Codes that also work on gray images of uint8."""

_MIXING = (Code.KEEP, Code.ADD, Code.MIX)
"""Codes that sum images. A column of a program contains only one of them."""

_SMALL_BYTES = 1 << 20
"""Images of fewer bytes are processed without threads, whose start would take longer."""

_CHUNK_BYTES = 1 << 20
"""Bytes of images per chunk on the CPU, so that float32 intermediates stay in the caches."""


def run_program(images: Tensor, program: Program, name: str = "", units: Units | None = None) -> Tensor:
    """Runs ``program`` on a copy of ``images``. Returns ``images`` themselves if the program does nothing.

    The engine runs it on uint8 RGB on the CPU. :func:`run_by_torch` runs it on other images, and raises the errors.
    """
    if not program["code"].any():
        return images
    if images.device.type == "cpu" and images.dtype == torch.uint8 and images.shape[1] == 3 and images.numel():
        pixels = images.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
        threads = torch.get_num_threads() if images.numel() > _SMALL_BYTES else 1
        augment(pixels.numpy(), program, threads)
        layout = torch.channels_last if is_channels_last(images) else torch.contiguous_format
        return pixels.permute(0, 3, 1, 2).contiguous(memory_format=layout)
    return run_by_torch(images, program, name, units)


def run_by_torch(images: Tensor, program: Program, name: str = "", units: Units | None = None) -> Tensor:
    """Applies the steps of ``program`` ``(B, n)`` to a copy of ``images`` ``(B, C, H, W)`` with torch, on any device.

    Returns ``images`` themselves if the program does nothing.

    Args:
        images: The images.
        program: The steps.
        name: Name of the operation in messages. By default, the name of the step.
        units: Units of normalised images, to which colours are converted.

    Raises:
        UsageError: A step does not support the images' dtype or channels, see :func:`check_pixels`.
    """
    codes, flags = program["code"], program["flags"]
    busy = codes.any(1)
    if not busy.any():
        return images
    if is_channels_last(images):
        result = images.clone(memory_format=torch.channels_last)
    else:
        result = images.clone(memory_format=torch.contiguous_format)
    step = len(images)
    if images.device.type == "cpu":
        step = max(1, _CHUNK_BYTES // max(1, images[:1].nbytes))
    kept, mixed = images, images
    for column in range(program.shape[1]):
        kinds = codes[:, column].astype(np.int64) << 32 | _group_flags(codes[:, column], flags[:, column])
        for kind in np.unique(kinds).tolist():
            code = Code(kind >> 32)
            if code == Code.IDENTITY:
                continue
            check_pixels(images.dtype, images.shape[1], code, kind & 0xFFFFFFFF, name, units=units)
            rows = np.flatnonzero(kinds == kind)
            if code in _MIXING:
                index = torch.from_numpy(rows).to(images.device, non_blocking=True)
                (share,) = _parameter_columns(images, program[rows, column], 0)
                chosen = result.index_select(0, index)
                # KEEP stores the image and begins a sum. ADD adds to the sum and restores the image. MIX shows the sum.
                if code == Code.KEEP:
                    kept, mixed = result.clone(), torch.zeros_like(result, dtype=torch.float32)
                if code != Code.MIX:
                    mixed.index_add_(0, index, chosen * share)
                if code == Code.ADD:
                    result.index_copy_(0, index, kept.index_select(0, index))
                elif code == Code.MIX:
                    shown = mixed.index_select(0, index).clamp_(0, 255).to(torch.uint8)
                    result.index_copy_(0, index, shown)
                continue
            for first in range(0, len(rows), step):
                part = rows[first : first + step]
                index = torch.from_numpy(part).to(images.device, non_blocking=True)
                # Contiguous planes: torch rounds some sums of strided channels differently.
                chosen = result.index_select(0, index).contiguous()
                steps, filling = program[part, column], _FILLING.get(code)
                made = _KERNELS[code](chosen, steps) if filling is None else filling(chosen, steps, units)
                result.index_copy_(0, index, made)
    return result


def _group_flags(codes: Steps, flags: Steps) -> NDArray[np.int64]:
    """Returns the flags by which steps are grouped for a kernel call."""
    low = flags.astype(np.int64) & 0xFFFFFFFF
    warped = (codes == Code.AFFINE) | (codes == Code.PERSPECTIVE)
    return np.where(warped, low & 0xFF, low)  # a warp's kernel takes a fill colour per image


def check_pixels(
    dtype: torch.dtype, channels: int, code: Code, flags: int, name: str, mode: str = "", units: Units | None = None
) -> None:
    """Raises :class:`UsageError` if ``code`` does not support images of a dtype and number of channels.

    - Most codes need uint8 RGB.
    - Codes in :data:`_IN_GRAY` also take gray of uint8.
    - Codes in :data:`_ANY_DTYPE` take all images, but permuting needs three channels.
    - Erasing with random values (``flags`` are not 0) needs RGB: uint8, or normalised images with ``units``.

    A policy, recognised by "Aug" in ``name``, supports only uint8 RGB. The message says how to load other images.
    ``mode`` is the name of the images' mode, for the message.
    """
    normalised = units is not None and channels == 3
    random_erasing = code == Code.ERASE and flags != 0 and not normalised
    if dtype == torch.uint8 and channels == 3:
        return
    # Policies draw saturation in some batches only: they are refused in the first one, whatever it draws.
    draws_colours = "Aug" in name
    in_gray = dtype == torch.uint8 and channels == 1 and code in _IN_GRAY
    any_dtype = code in _ANY_DTYPE and not random_erasing and not draws_colours
    if (in_gray and not draws_colours) or (any_dtype and (code != Code.PERMUTE or channels == 3)):
        return
    name = name or code.name.lower()
    if random_erasing:
        name += " with random values"
    instead = "erase with value=0" if random_erasing else "leave it out"
    if dtype.is_floating_point and not any_dtype:
        raise UsageError(
            f"{name} works on bytes, and these images are {dtype}: augment before normalising, and pack images "
            f"as files or uint8; or {instead}"
        )
    have = ("one" if channels == 1 else str(channels)) + (f" (mode {mode})" if mode else "")
    deep = dtype != torch.uint8 and not any_dtype
    if deep:
        problem = f"needs 8 bits and three channels, and these images have more bits and {have}"
    else:
        problem = f"needs three channels, and these images have {have}"
    if channels <= 4:
        options = ['mode="RGB"', *['depth="scale"'] * deep, *['alpha="drop"'] * (channels in (2, 4))]
        flags_of = " ".join("--" + option.replace("=", " ").replace('"', "") for option in options)
        instead += f", read image files with PackedDataset(…, {', '.join(options)}), or pack pixels with {flags_of}"
    raise UsageError(f"{name} {problem}: {instead}")


def _parameter_columns(images: Tensor, steps: Steps, *places: int) -> list[Tensor]:
    """Returns parameters number ``places`` of the steps, each float32 ``(B, 1, 1, 1)`` on the images' device."""
    values = torch.from_numpy(np.ascontiguousarray(steps["p"][:, list(places)].T)).to(images.device, non_blocking=True)
    return [each[:, None, None, None] for each in values]


def _join_seeds(steps: Steps, first: int) -> NDArray[np.int64]:
    """Joins parameters ``first`` and ``first + 1``, 16 bits each, to a 32-bit seed per step."""
    low, high = (steps["p"][:, first + n].astype(np.int64) for n in range(2))
    return low | high << 16


def _with_parameters(kernel: Callable[..., Tensor], *places: int) -> Callable[[Tensor, Steps], Tensor]:
    """Wraps a kernel as a function of images and steps; parameters number ``places`` become its arguments."""
    return lambda images, steps: kernel(images, *_parameter_columns(images, steps, *places))


def _run_blur(images: Tensor, steps: Steps) -> Tensor:
    """Blurs images with the kernel sizes and deviations in ``steps``."""
    sizes = steps["p"][:, :2].astype(np.int64)
    result = torch.empty_like(images)
    # A call of the kernel has one size.
    for size in np.unique(sizes, axis=0).tolist():
        rows = np.flatnonzero((sizes == size).all(1))
        index = torch.from_numpy(rows).to(images.device, non_blocking=True)
        sigma = torch.from_numpy(np.ascontiguousarray(steps["p"][rows, 2:4])).to(images.device, non_blocking=True)
        result.index_copy_(0, index, kernels.gaussian_blur(images.index_select(0, index), (size[0], size[1]), sigma))
    return result


def _run_noise(images: Tensor, steps: Steps) -> Tensor:
    """Adds noise with the means, deviations and seeds in ``steps``."""
    mean, sigma = _parameter_columns(images, steps, 0, 1)
    # All steps have equal flags: 0 wraps results around at 256, others clip them.
    return kernels.add_noise(images, mean, sigma, _join_seeds(steps, 2), bool(steps["flags"][0]))


def _run_permutation(images: Tensor, steps: Steps) -> Tensor:
    """Reorders channels by the orders in ``steps``."""
    order = torch.from_numpy(steps["p"][:, : images.shape[1]].astype(np.int64)).to(images.device, non_blocking=True)
    return kernels.permute_channels(images, order)


def _run_erasing(images: Tensor, steps: Steps, units: Units | None) -> Tensor:
    """Overwrites the boxes in ``steps`` with colours or random pixels."""
    boxes, flags = steps["p"][:, :4].astype(np.int64), steps["flags"][0]
    # All steps have equal flags.
    if flags == 1:
        return kernels.erase_with_noise(images, boxes, _join_seeds(steps, 4), units)
    return kernels.erase_boxes(images, boxes, steps["p"][:, 4:7], units)


_KERNELS: dict[Code, Callable[[Tensor, Steps], Tensor]] = {
    Code.BRIGHTNESS: _with_parameters(kernels.adjust_brightness, 0),
    Code.CONTRAST: _with_parameters(kernels.adjust_contrast, 0),
    Code.SATURATION: _with_parameters(kernels.adjust_saturation, 0),
    Code.HUE: _with_parameters(kernels.adjust_hue, 0),
    Code.GRAY: _with_parameters(kernels.convert_to_gray),
    Code.INVERT: _with_parameters(kernels.invert),
    Code.POSTERIZE: _with_parameters(kernels.posterize, 0),
    Code.SOLARIZE: _with_parameters(kernels.solarize, 0),
    Code.SOLARIZE_ADD: _with_parameters(kernels.solarize_add, 0, 1),
    Code.AUTOCONTRAST: _with_parameters(kernels.autocontrast),
    Code.EQUALIZE: _with_parameters(kernels.equalize),
    Code.SHARPNESS: _with_parameters(kernels.adjust_sharpness, 0),
    Code.BLUR: _run_blur,
    Code.NOISE: _run_noise,
    Code.PERMUTE: _run_permutation,
    Code.MIRROR: lambda images, steps: images.flip(-1),
    Code.FLIP: lambda images, steps: images.flip(-2),
}

_FILLING: dict[Code, Callable[[Tensor, Steps, Units | None], Tensor]] = {
    Code.AFFINE: lambda images, steps, units: kernels.warp_affine(images, steps["p"][:, :6], steps["flags"], units),
    Code.PERSPECTIVE: lambda images, steps, units: kernels.warp_perspective(images, steps["p"], steps["flags"], units),
    Code.ERASE: _run_erasing,
}
"""Kernels that fill with kernels."""
