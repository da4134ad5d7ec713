"""Normalises images of whole numbers, such as uint8, on any device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from packstore.core.errors import UsageError
from packstore.core.manifest import Manifest, Normalization
from packstore.core.modes import RGB, Mode
from packstore.images.engine import OutputFormat
from packstore.images.reading import parse_normalization
from packstore.training.augment.base import Units, is_channels_last
from packstore.training.loader.options import LoaderOptions

_SERIAL_ELEMENTS = 32768
"""torch distributes work of more elements over its threads, which cannot be switched off everywhere; see
:mod:`packstore.training.single_threaded`."""


class Normalizer:
    """Normalises images on any device: ``(x / white - mean) / std``, by one multiplication and one addition in float32.

    ``white`` is the mode's maximum: 255 for bytes, 65,535 for 16 bits, 1 for values without an upper bound.

    Attributes:
        dtype: Floating point type of the result.
        units: Units of the result.
    """

    def __init__(self, normalization: Normalization | None, dtype: torch.dtype, mode: Mode = RGB) -> None:
        """``normalization`` None scales to 0 … 1."""
        self.dtype = dtype
        self._shifts = normalization is not None
        self.units = Units.of_normalization(normalization, mode.white, mode.channels)
        self._scale, self._shift = (
            torch.tensor(each, dtype=torch.float32, device="cpu").view(1, -1, 1, 1)
            for each in (self.units.scale, self.units.shift)
        )
        self._there: tuple[torch.Tensor, torch.Tensor] = self._scale, self._shift  # on the device of the latest images
        self._line: tuple[torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def for_loader(cls, options: LoaderOptions, manifest: Manifest, mode: Mode) -> Normalizer | None:
        """Creates the normalizer for a loader's ``normalize`` and ``dtype``. Returns None if images stay whole numbers.

        Without ``dtype``, normalised images are float32, also those that a store holds as shorter types.

        Raises :class:`UsageError` for an unknown normalisation, or one that does not fit the store or the mode of its
        images."""
        normalization, dtype = options.normalize, options.dtype
        if normalization is not None and not isinstance(normalization, Normalization):
            normalization = parse_normalization(normalization, mode)
        if normalization is not None and manifest.holds_floats:
            known = "normalised already" if manifest.normalization is not None else "given as they are packed"
            raise UsageError(
                f"a {manifest.encoding} store holds images that are {known}; leave normalize out, or pack them again "
                "with --normalize"
            )
        if normalization is not None and len(normalization.mean) != mode.channels:
            example = ", such as ([0.13], [0.3])" if mode.channels == 1 else ""
            raise UsageError(
                f"normalize= is for {len(normalization.mean)} channels, and the images are of mode {mode}: give one "
                f"mean and one standard deviation per channel{example}"
            )
        if dtype is None and (normalization is not None or manifest.holds_floats):
            dtype = torch.float32
        return None if dtype is None else cls(normalization, dtype, mode)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out tensors on a device, which the reading process may not have."""
        return self.__dict__ | {"_there": (self._scale, self._shift)}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Normalises ``(B, C, H, W)``; keeps the memory format."""
        if images.device.type == "cpu" and is_channels_last(images):
            # By the line: with the channels innermost, loops over three numbers take eight times as long.
            count, channels, height, width = images.shape
            lines = images.permute(0, 2, 3, 1).reshape(count * height, width * channels)
            scale, shift = self._repeat_factors(width)
            return self._multiply_add(lines, scale, shift).view(count, height, width, channels).permute(0, 3, 1, 2)
        if self._there[0].device != images.device:
            self._there = self._scale.to(images.device), self._shift.to(images.device)
        return self._multiply_add(images, *self._there)

    def _multiply_add(self, images: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Computes ``images * scale + shift`` in float32, and rounds to :attr:`dtype`."""
        # uint8 times float32 is float32 in one pass; the second pass shifts and rounds to the dtype wanted.
        scaled = images * scale
        if self.dtype == torch.float32:
            return scaled.add_(shift) if self._shifts else scaled
        if not self._shifts:
            return scaled.to(self.dtype)
        return torch.add(scaled, shift, out=torch.empty_like(scaled, dtype=self.dtype))

    def add_to_format(self, form: OutputFormat) -> OutputFormat:
        """Returns a format of the engine with this normalisation added."""
        scale, shift = self._scale.flatten().tolist(), self._shift.flatten().tolist()
        return replace(form, scale=tuple(scale), shift=tuple(shift))

    def write_rows(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """Normalises uint8 ``(B, H, W, C)`` on the CPU into ``out`` of that shape.

        Works in pieces so small that torch uses no other thread."""
        count, height, width, channels = pixels.shape
        line = width * channels
        scales, shifts = self._repeat_factors(width)
        lines = max(1, _SERIAL_ELEMENTS // line)
        source, target = pixels.view(count * height, line), out.view(count * height, line)
        for first in range(0, count * height, lines):
            part, there = source[first : first + lines], target[first : first + lines]
            if out.dtype == torch.float32:
                torch.mul(part, scales, out=there)
                if self._shifts:
                    there.add_(shifts)
            elif self._shifts:
                torch.add(part * scales, shifts, out=there)
            else:
                there.copy_(part * scales)

    def _repeat_factors(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns scale and shift of each value in a line of ``width`` pixels, ``(width * C,)``, on the CPU."""
        factors = self._line
        if factors is None or len(factors[0]) != self._scale.shape[1] * width:
            # Threads may overwrite each other's result: both are equal.
            factors = self._line = self._scale.view(-1).repeat(width), self._shift.view(-1).repeat(width)
        return factors
