"""The last steps of a batch, on its device: batch operations, normalisation, dtype, memory format, the user's own."""

from __future__ import annotations

from typing import Any

import torch

from packstore.core.errors import UsageError
from packstore.core.manifest import Manifest, Normalization
from packstore.images.normalization import as_normalization
from packstore.training.augment import Padded, apply_ops, cut_ops, output_size
from packstore.training.augment.base import Operation, is_channels_last
from packstore.training.loader.options import LoaderOptions
from packstore.training.loader.rows import SERIAL_ELEMENTS
from packstore.training.random_draws import Draws


class Normalizer:
    """``(x / 255 - mean) / std`` of uint8 images on any device, as one multiplication and one addition in float32.

    Attributes:
        dtype: Floating point type of the result.
    """

    def __init__(self, normalization: Normalization | None, dtype: torch.dtype) -> None:
        """``normalization`` None scales to 0 … 1."""
        self.dtype = dtype
        self._shifts = normalization is not None
        if normalization is None:
            normalization = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        mean, std = (
            torch.tensor(v, dtype=torch.float64, device="cpu") for v in (normalization.mean, normalization.std)
        )
        self._scale = (1 / (255 * std)).to(torch.float32).view(1, 3, 1, 1)
        self._shift = (-mean / std).to(torch.float32).view(1, 3, 1, 1)
        self._there: tuple[torch.Tensor, torch.Tensor] = self._scale, self._shift  # on the device of the latest images
        self._line: tuple[torch.Tensor, torch.Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without tensors of a device, which the process that reads it may not have."""
        return self.__dict__ | {"_there": (self._scale, self._shift)}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Of uint8 ``(B, 3, H, W)``, in its memory format."""
        if images.device.type == "cpu" and is_channels_last(images):
            # By the line: with the channels innermost, loops over three numbers take eight times as long.
            count, channels, height, width = images.shape
            lines = images.permute(0, 2, 3, 1).reshape(count * height, width * channels)
            scale, shift = self._by_line(width)
            return self._normalized(lines, scale, shift).view(count, height, width, channels).permute(0, 3, 1, 2)
        if self._there[0].device != images.device:
            self._there = self._scale.to(images.device), self._shift.to(images.device)
        return self._normalized(images, *self._there)

    def _normalized(self, images: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        # uint8 times float32 is float32 in one pass; the second pass shifts and rounds to the dtype wanted.
        scaled = images * scale
        if self.dtype == torch.float32:
            return scaled.add_(shift) if self._shifts else scaled
        if not self._shifts:
            return scaled.to(self.dtype)
        return torch.add(scaled, shift, out=torch.empty_like(scaled, dtype=self.dtype))

    def rows(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """The same of uint8 ``(B, H, W, 3)`` on the CPU, into ``out`` of that shape, on the calling thread alone."""
        count, height, width, channels = pixels.shape
        line = width * channels
        scale, shift = self._by_line(width)
        lines = max(1, SERIAL_ELEMENTS // line)
        source, target = pixels.view(count * height, line), out.view(count * height, line)
        for first in range(0, count * height, lines):
            part, there = source[first : first + lines], target[first : first + lines]
            if out.dtype == torch.float32:
                torch.mul(part, scale, out=there)
                if self._shifts:
                    there.add_(shift)
            elif self._shifts:
                torch.add(part * scale, shift, out=there)
            else:
                there.copy_(part * scale)

    def _by_line(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and shift of a line of ``width`` pixels, ``(width * 3,)`` each, on the CPU."""
        factors = self._line
        if factors is None or len(factors[0]) != 3 * width:
            # A thread that finds another's is as well served.
            factors = self._line = self._scale.view(-1).repeat(width), self._shift.view(-1).repeat(width)
        return factors


class Finish:
    """Turns a batch of stored images on the device into what the model gets.

    Attributes:
        batched: Whether there are operations that work on whole batches.
    """

    def __init__(self, manifest: Manifest, options: LoaderOptions, first: int, in_threads: bool = False) -> None:
        """
        Args:
            manifest: The store's.
            options: The loader's.
            first: Place of the first operation of ``options.augment`` that runs on batches.
            in_threads: Whether the decoding threads may normalise, where no operation comes before it. So it is when
                the device is the CPU: torch's own threads would get in the decoding ones' way.
        """
        self._options = options
        self._first = first
        self._operations = tuple(options.augment)[first:]
        self._floats = manifest.holds_floats
        normalization = options.normalize
        if normalization is not None and not isinstance(normalization, Normalization):
            normalization = as_normalization(normalization)
        if normalization is not None and self._floats:
            raise UsageError(
                f"a {manifest.encoding} store holds images that are normalised already; leave normalize out"
            )
        dtype = options.dtype
        if normalization is not None and dtype is None:
            dtype = torch.float32
        self._normalizer = None if dtype is None else Normalizer(normalization, dtype)
        self.dtype_in_threads = dtype if in_threads and not self._floats and not self._operations else None

    @property
    def batched(self) -> bool:
        return bool(self._operations)

    @property
    def foreign(self) -> bool:
        """Whether something of the user's own is called with batches."""
        return self._options.transform is not None or any(not isinstance(op, Operation) for op in self._operations)

    def largest(self, images: torch.Tensor | Padded) -> int:
        """Pixels of an image of all ``images`` where they are most: as it is, or after some operation.

        What ``pre_transform`` made need not be an image: then a pixel is three numbers. And what a stranger's function
        makes of it nobody knows: it is taken to double both sides.
        """
        if isinstance(images, Padded):
            size = images.size
        elif images.ndim == 4:
            size = (images.shape[2], images.shape[3])
        else:
            size = (1, -(-images[:1].numel() // 3))
        after = [output_size(self._operations[:n], size) for n in range(1, len(self._operations) + 1)]
        return max(1, *(h * w for h, w in (size, *(s or (2 * size[0], 2 * size[1]) for s in after))))

    def cut(self, images: Padded, places: torch.Tensor, records: torch.Tensor, epoch: int) -> torch.Tensor:
        """:meth:`augment` of the images at ``places`` of all, which lie in memory that the first operation made."""
        draws = Draws(self._options.seed, epoch, records)
        return cut_ops(self._operations, images, places, draws, self._first)

    def augment(self, images: torch.Tensor, records: torch.Tensor, epoch: int) -> torch.Tensor:
        """The batch operations.

        Args:
            images: ``(B, 3, H, W)`` on the device.
            records: int64 ``(B,)``, on the same device.
            epoch: For random operations.
        """
        return apply_ops(self._operations, images, Draws(self._options.seed, epoch, records), self._first)

    def convert(self, images: torch.Tensor) -> torch.Tensor:
        """Normalisation, dtype and memory format."""
        if self._normalizer is not None:
            images = self._normalizer(images) if images.dtype == torch.uint8 else images.to(self._normalizer.dtype)
        if self._options.channels_last is True:
            images = images.contiguous(memory_format=torch.channels_last)
        elif self._options.channels_last is False:
            images = images.contiguous()
        return images

    def normalize_rows(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """See :meth:`Normalizer.rows`."""
        if self._normalizer is not None:
            self._normalizer.rows(pixels, out)

    def __call__(self, images: torch.Tensor, records: torch.Tensor, epoch: int) -> Any:
        """All steps in order; the user's ``transform`` last."""
        return self.last(self.convert(self.augment(images, records, epoch)))

    def last(self, images: torch.Tensor) -> Any:
        """The user's ``transform``."""
        return images if self._options.transform is None else self._options.transform(images)

    def labels(self, labels: torch.Tensor) -> Any:
        return labels if self._options.target_transform is None else self._options.target_transform(labels)
