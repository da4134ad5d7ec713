"""``prefetch``: copies the batches of any loader to the device while the model computes."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from packstore.core.errors import UsageError
from packstore.core.manifest import Normalization
from packstore.core.options import whole_number
from packstore.images.reading import MeanAndStd, parse_normalization
from packstore.training.loader.normalizer import Normalizer
from packstore.training.ring import Shipment, Transport, transport_to

Rebuild = Callable[[Iterator[torch.Tensor]], Any]


class prefetch:  # noqa: N801 - used like a function
    """Iterates over any loader's batches on a device. Copies the next batch while the model computes on the current
    one.

    Copy and normalisation run on their own stream. The consumer's stream waits for it, the host does not. For this,
    batches should be in pinned memory (``DataLoader(pin_memory=True)``). On the CPU it only normalises. Every batch is
    yielded exactly once.

    Args:
        iterable: Any loader whose batches are tensors in tuples, lists and dicts; other values pass unchanged.
        device: Device of the tensors.
        normalize: ``imagenet``, ``cifar10``, ``cifar100`` or a :class:`packstore.core.manifest.Normalization`, for
            tensors ``(B, 3, H, W)``. uint8 becomes ``(x / 255 - mean) / std``, floating point ``(x - mean) / std``.
        dtype: Floating point type of these tensors; None for float32 from normalised uint8, else unchanged. Without
            ``normalize``, it scales uint8 to 0 … 1.
        ahead: Number of batches in transfer at a time.

    Raises:
        UsageError: An unknown normalisation; a dtype that is not floating point; ``ahead`` below 1.
    """

    def __init__(
        self,
        iterable: Iterable[Any],
        device: str | torch.device,
        normalize: str | Normalization | MeanAndStd | None = None,
        dtype: torch.dtype | None = None,
        ahead: int = 2,
    ) -> None:
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise UsageError(f"dtype should be a floating point type, such as torch.float16, got {dtype!r}")
        ahead = whole_number("ahead", ahead)
        self.iterable = iterable
        self.device = torch.device(device)
        self._ahead = ahead
        if normalize is not None and not isinstance(normalize, Normalization):
            normalize = parse_normalization(normalize)
        self._normalization = normalize
        self._dtype = dtype
        wanted = dtype or (torch.float32 if self._normalization is not None else None)
        self._normalizer = None if wanted is None else Normalizer(self._normalization, wanted)
        self._transport: Transport | None = None
        self._factors: list[torch.Tensor] = []
        self._factors_of: tuple[torch.dtype, torch.device] | None = None

    def __repr__(self) -> str:
        return f"prefetch of a {type(self.iterable).__name__} to {self.device}"

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the transport and tensors, which belong to this process."""
        return self.__dict__ | {"_transport": None, "_factors": [], "_factors_of": None}

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Iterates the loader anew. When a batch is yielded, up to ``ahead`` further ones are in transfer."""
        if self._transport is None:  # one for all epochs: a device has not many streams, and each keeps memory
            self._transport = transport_to(self.device)
        transport = self._transport
        waiting: deque[tuple[Shipment, Rebuild]] = deque()
        for batch in self.iterable:
            tensors: list[torch.Tensor] = []
            rebuild = _take_tensors(batch, tensors)
            waiting.append((transport.send(tuple(tensors), self._normalize_all), rebuild))
            if len(waiting) > self._ahead:
                yield _receive_batch(*waiting.popleft())
        while waiting:
            yield _receive_batch(*waiting.popleft())

    def _normalize_all(self, there: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Normalises the image batches among the tensors on the device."""
        return [self._normalize_images(t) if t.ndim == 4 and t.shape[1] == 3 else t for t in there]

    def _normalize_images(self, images: torch.Tensor) -> torch.Tensor:
        """Normalises uint8 or floating point images, converts them to the wanted dtype, and leaves other dtypes as they
        are."""
        if images.dtype == torch.uint8:
            return images if self._normalizer is None else self._normalizer(images)
        if not images.is_floating_point():
            return images
        if self._normalization is not None:
            if (images.dtype, images.device) != self._factors_of:
                self._factors_of = images.dtype, images.device
                self._factors = [  # made once, since the host waits for them
                    torch.tensor(values, dtype=images.dtype, device=images.device).view(1, 3, 1, 1)
                    for values in (self._normalization.mean, self._normalization.std)
                ]
            mean, std = self._factors
            images = (images - mean) / std
        return images if self._dtype is None else images.to(self._dtype)


def _receive_batch(shipment: Shipment, rebuild: Rebuild) -> Any:
    """Receives the tensors of a shipment, and rebuilds the structure of their batch around them."""
    return rebuild(iter(shipment.receive()))


def _update_mapping(mapping: Any, values: dict[Any, Any]) -> Any:
    """Updates ``mapping`` in place, and returns it."""
    mapping.update(values)
    return mapping


def _take_tensors(batch: Any, tensors: list[torch.Tensor]) -> Rebuild:
    """Appends the tensors of a nested batch to ``tensors``, and returns a function that rebuilds it around others."""
    if isinstance(batch, torch.Tensor):
        tensors.append(batch)
        return lambda there: next(there)
    if isinstance(batch, dict):
        parts = {name: _take_tensors(value, tensors) for name, value in batch.items()}
        if type(batch) is dict:
            return lambda there: {name: part(there) for name, part in parts.items()}
        like = copy.copy(batch)  # of its own kind, such as a defaultdict; with places instead of values
        like.update(dict.fromkeys(like))
        return lambda there: _update_mapping(copy.copy(like), {name: part(there) for name, part in parts.items()})
    if isinstance(batch, (tuple, list)):
        items, kind = [_take_tensors(value, tensors) for value in batch], type(batch)
        if hasattr(batch, "_fields"):
            return lambda there: kind(*(item(there) for item in items))
        return lambda there: kind([item(there) for item in items])
    return lambda there: batch
