"""``PackedDataset``: a store as a map-style torch dataset, the drop-in for ``ImageFolder`` and ``CIFAR10``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from operator import index as as_index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.arguments import function_or_none, whole
from packstore.core.errors import DecodeError, StoreError, UsageError, printable
from packstore.core.files import refuse_urls
from packstore.core.manifest import Manifest
from packstore.images.decoders import get_decoder
from packstore.images.sniff import MAX_PIXELS
from packstore.stores import Checksums, open_store
from packstore.stores.base import Reader
from packstore.training.item_options import check_output, choose_columns, choose_orientation, choose_split, column_names
from packstore.training.samples import Keys, Samples

if TYPE_CHECKING:
    from PIL.Image import Image

Output = Literal["tensor", "pil", "numpy", "bytes"]


class PackedDataset(torch.utils.data.Dataset[Any]):
    """The records of a store, or of one of its splits, as a dataset.

    ``ds[i]`` is a tuple with one value a column, by default ``(image, label)``; with a single column (the default for
    a store without labels is just the image) it is that value itself. ``ds[a:b]`` and ``ds[[3, 1, 2]]`` are batches:
    images stacked to one tensor where their shapes agree and a list otherwise, numbers as a tensor, keys as a list.

    =============  ==============================================================================================
    output         an image is
    =============  ==============================================================================================
    ``"tensor"``   uint8 ``(3, H, W)`` RGB from image files and uint8 stores; float32 ``(3, H, W)``, normalised, from
                   floating point stores. Always writable memory of its own.
    ``"numpy"``    uint8 ``(H, W, 3)`` RGB, or floating point ``(3, H, W)`` in the store's dtype (bfloat16 as float32)
    ``"pil"``      ``PIL.Image`` in mode RGB, for torchvision's transforms (see ``denormalize``)
    ``"bytes"``    the record as it is stored: an image file's bytes, or raw pixels
    =============  ==============================================================================================

    ``label`` is an ``int``, ``key`` a ``str``. The object pickles as path and options; each
    process, forked or spawned, opens the store for itself.

    Args:
        path: A store of any format.
        split: The split to use. A store that has several needs one to be named; a store with one split or none does
            not.
        device: Where tensors are put, any torch device.
        columns: Names of the columns of an item, in order; None for ``("image", "label")``, or ``("image",)`` where
            the store has no labels.
        output: Form of the images, see above.
        transform: Called with each image.
        target_transform: Called with each label.
        decoder: ``"auto"`` or the name of one, see :func:`packstore.images.decoders.get_decoder`.
        exif_transpose: Turn images as their EXIF orientation says: True, False, or None for what was asked for when the
            store was packed. Not for stores of pixels, which were turned then or never.
        dtype: Floating point type of image tensors instead of the default. Pixels of a uint8 or encoded store are
            scaled to 0 … 1 then, as torchvision's ``ToTensor`` does.
        denormalize: With ``output="pil"``: undo the normalisation of a floating point store, to within a rounded 1 of
            255. A store that holds pixels or files gives the same images with it and without.
        max_pixels: An image whose header says more pixels raises :class:`DecodeError` instead of being decoded, which
            bounds the memory: up to 20 bytes a pixel in each thread or process that decodes.
        checksums: What is checked of what is read, which costs a pass over its bytes. ``"never"``: only the manifest,
            at opening; a changed byte in an image or label passes. ``"always"``: the image, label and key of each
            record that is accessed, against the record's checksums; ``targets`` and ``keys`` against the digests of
            their columns. (``packstore verify`` checks all of a store, once.)

    Raises:
        StoreError: ``path`` is not a store.
        UsageError: An unknown split, column, output or decoder; several splits and none named.
        DecodeError: (on access) a record cannot be decoded; names the record and its key.
        CorruptRecordError: (on access, with ``checksums="always"``) a record is damaged; names it and its key.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str | None = None,
        *,
        device: str | torch.device = "cpu",
        columns: Sequence[str] | None = None,
        output: Output = "tensor",
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        decoder: str = "auto",
        exif_transpose: bool | None = None,
        dtype: torch.dtype | None = None,
        denormalize: bool = False,
        checksums: Checksums = "never",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        # Absolute: a worker process may have another working directory.
        refuse_urls(path)
        self.path = Path(path).absolute()
        try:
            self.device = torch.device(device)
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise UsageError(f"device should be one of torch's, such as 'cuda:0', got {device!r}: {first}") from None
        function_or_none(transform=transform, target_transform=target_transform)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError("device='cuda', but torch finds no CUDA device here; use device='cpu'")
        self.output = output
        self.transform = transform
        self.target_transform = target_transform
        self.dtype = dtype
        self.decoder_name = decoder
        self.decoder = get_decoder(decoder, max_pixels=whole("max_pixels", max_pixels))
        self.checksums: Checksums = checksums
        self._reader: Reader | None = self._open()
        self._pid = os.getpid()
        self.manifest: Manifest = self._reader.manifest
        self.split = choose_split(self.manifest, split)
        chosen = self._reader.split(self.split)
        self._start, self._length = chosen.start, len(chosen)
        self.columns = choose_columns(self.manifest, columns)
        check_output(self.manifest, output, dtype, denormalize)
        self.exif_transpose = choose_orientation(self.manifest, exif_transpose)
        self._loaded: dict[str, Any] = {}
        self._read_image = self._image_method()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice | Sequence[int] | NDArray[Any] | torch.Tensor) -> Any:
        """Item ``index`` (negative from the end), or a batch for a slice or a list of indices.

        Raises :class:`IndexError` outside the dataset, and :class:`TypeError` for anything but indices, such as masks.
        """
        if type(index) is int:
            return self._item(self._record(index))
        if isinstance(index, slice):
            return self._batch(np.arange(*index.indices(self._length), dtype=np.int64) + self._start)
        if isinstance(index, Iterable) and not (hasattr(index, "ndim") and index.ndim == 0):
            return self._batch(self._records(index))
        return self._item(self._record(_whole(index)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The items at ``indices``. torch's ``DataLoader`` calls this for a batch, which it collates itself."""
        records = self._records(indices)
        images = self._gathered_images(records)
        if images is None:
            return [self._item(record) for record in records.tolist()]
        return [self._item(record, image) for record, image in zip(records.tolist(), images.unbind(), strict=True)]

    @property
    def reader(self) -> Reader:
        """The open store; opened anew in each process, because C libraries do not survive a fork."""
        reader = self._reader  # a copy: another thread may close the dataset meanwhile
        if reader is None or self._pid != os.getpid():
            reader = self._open()
            if reader.manifest != self.manifest:
                raise StoreError(f"{self.path} has been replaced by another store; open it again as a new dataset")
            self._loaded = {}
            self._reader = reader
            self._pid = os.getpid()
        return reader

    @property
    def classes(self) -> list[str]:
        """Class names by number; empty when the store has no labels, or labels without names."""
        return list(self.manifest.classes or ())

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class number by name."""
        return {name: i for i, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """Labels of all items, before ``target_transform``. Raises :class:`UsageError` without a label column."""
        self._check_labels()
        labels = self.reader.values("label", np.arange(self._start, self._start + self._length))
        return cast("list[int]", labels.tolist())

    def _check_labels(self) -> None:
        if not self.manifest.has_column("label"):
            raise UsageError(f"{self.path} has no labels; columns: {column_names(self.manifest)}")
        self.reader.check_column("label")

    @property
    def keys(self) -> Sequence[str]:
        """Keys of all items, read as they are asked for."""
        self.reader.check_column("key")
        return Keys(self.reader, self._start, self._length)

    @property
    def samples(self) -> Sequence[tuple[str, int]]:
        """``(key, label)`` of all items, read as they are asked for. Raises :class:`UsageError` without labels."""
        self._check_labels()
        self.reader.check_column("key")
        return Samples(self.reader, self._start, self._length)

    imgs = samples

    def loader(self, key: str) -> Image:
        """The image with this key as a ``PIL.Image``, without ``transform``, as ``ImageFolder``'s ``loader`` does.

        The first call reads all keys. Raises :class:`UsageError` for a key that no item has.
        """
        reader = self.reader  # first, since it empties what is kept in a new process
        items = self._loaded.get("items of keys")
        if items is None:
            items = self._loaded["items of keys"] = {key: i for i, key in enumerate(self.keys)}
        if key not in items:
            raise UsageError(
                f"no item has the key {key!r}; keys and samples list them, such as {reader.key(self._start)!r}"
            )
        return self.show(items[key])

    def show(self, index: int) -> Image:
        """Item ``index`` as a ``PIL.Image`` to look at, from any store: without ``transform``, normalisation undone."""
        return self._pil(self._record(_whole(index)))

    def close(self) -> None:
        """Closes the store; the next access opens it again. Reads under way in other threads finish."""
        self._reader = None
        self._loaded = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_loaded": {}, "_read_image": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._read_image = self._image_method()

    def __repr__(self) -> str:
        m = self.manifest
        shape = f" {'x'.join(map(str, m.image.shape))}" if m.image.shape else ""
        lines = [
            f"PackedDataset {str(self.path)!r}",
            f"    records: {len(self)}" + (f" (split {self.split!r})" if self.split else ""),
            *([f"    classes: {len(self.classes)}"] if m.classes is not None else []),
            f"    encoding: {m.encoding}{shape} in {m.format}",
            f"    item: {', '.join(self.columns)} (image as {self.output}, {self.device})",
        ]
        return "\n".join(lines)

    def _open(self) -> Reader:
        reader = open_store(self.path, self.checksums)
        try:
            reader.check_files()  # now, and not hours later
        except StoreError as error:
            reader.close()
            raise StoreError(
                f"{error}; packstore verify lists what is wrong, packstore salvage saves the rest"
            ) from error
        return reader

    def _record(self, index: int) -> int:
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(f"index out of range: the dataset has {self._length} items")
        return self._start + index

    def _records(self, indices: Iterable[Any]) -> NDArray[np.int64]:
        """Record numbers of the items ``indices``. Raises as :meth:`__getitem__`."""
        array = isinstance(indices, (np.ndarray, torch.Tensor)) and indices.ndim == 1 and indices.dtype != torch.bool
        items: list[Any] = indices.tolist() if array else list(indices)  # type: ignore[attr-defined]
        if not set(map(type, items)) <= {int}:
            items = [_whole(i) for i in items]
        if items and not -self._length <= min(items) <= max(items) < self._length:
            raise IndexError(f"index out of range: the dataset has {self._length} items")
        numbers = np.array(items, np.int64)
        return np.where(numbers < 0, numbers + self._length, numbers) + self._start

    def _item(self, record: int, image: Any = None) -> Any:
        values = [self._value(name, record, image) for name in self.columns]
        return values[0] if len(values) == 1 else tuple(values)

    def _value(self, name: str, record: int, image: Any) -> Any:
        if name == "image":
            image = self._read_image(record) if image is None else image
            return image if self.transform is None else self._transformed(image)
        if name == "key":
            return self.reader.key(record)
        reader = self.reader
        if self.checksums == "always":
            reader.check_fields(record)
        value: Any = reader.value(name, record)
        if isinstance(value, (bytes, memoryview)):
            return bytes(value)
        value = int(value) if isinstance(value, np.integer) else torch.from_numpy(np.array(value))
        return self.target_transform(value) if name == "label" and self.target_transform is not None else value

    def _transformed(self, image: Any) -> Any:
        assert self.transform is not None
        try:
            return self.transform(image)
        except (TypeError, AttributeError) as error:
            if self.output != "pil":
                error.add_note(
                    f"The transform was given a {type(image).__name__}, since the dataset has output={self.output!r}. "
                    "With output='pil' it is given PIL images, as many of torchvision's transforms expect."
                )
            raise

    def _batch(self, records: NDArray[np.int64]) -> Any:
        values = [self._batch_of(name, records) for name in self.columns]
        return values[0] if len(values) == 1 else tuple(values)

    def _batch_of(self, name: str, records: NDArray[np.int64]) -> Any:
        """One column of a batch: gathered at once where it is an array, else put together from single values."""
        if name == "image":
            images = self._gathered_images(records)
            if images is not None and self.transform is None:
                return images
            one_by_one = [None] * len(records) if images is None else images.unbind()
            return self._stack([self._value(name, r, i) for r, i in zip(records.tolist(), one_by_one, strict=True)])
        transformed = name == "label" and self.target_transform is not None
        fixed = self.manifest.column(name).kind == "fixed"
        if not fixed or transformed or self.checksums == "always" or not len(records):
            return self._stack([self._value(name, r, None) for r in records.tolist()])
        values = self.reader.values(name, records)
        if values.ndim > 1 or values.dtype.kind not in "iu":
            return torch.from_numpy(values)
        # Checksums use all 64 bits; int64 holds the same bits, as in the .pth layout.
        values = values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)
        return torch.from_numpy(values).to(self.device)

    def _stack(self, values: list[Any]) -> Any:
        if not values:
            return values
        first = values[0]
        if isinstance(first, int):
            # Checksums use all 64 bits, which int64 holds as the same bits, as the .pth layout does.
            return torch.from_numpy(
                np.array(values, np.uint64 if max(values) >= 2**63 else np.int64).view(np.int64)
            ).to(self.device)
        same = all(getattr(v, "shape", None) == getattr(first, "shape", ()) for v in values)
        if isinstance(first, torch.Tensor) and same:
            return torch.stack(values)
        return np.stack(values) if isinstance(first, np.ndarray) and same else values

    # Images -----------------------------------------------------------------------------------------------------

    def _gathered_images(self, records: NDArray[np.int64]) -> torch.Tensor | None:
        """Images of ``records`` as a batch in memory of its own; None where they have to be read one by one."""
        if self.output != "tensor" or "image" not in self.columns or not len(records):
            return None
        whole = image_array(self.reader)
        return None if whole is None else self._finish(torch.from_numpy(np.take(whole, records, axis=0)))

    def _finish(self, pixels: torch.Tensor) -> torch.Tensor:
        """Stored pixels, an image or a batch in memory of its own, as the user gets them."""
        if self.manifest.holds_floats:
            if self.manifest.image.dtype == "bfloat16":
                pixels = pixels.view(torch.bfloat16)
            return pixels.to(device=self.device, dtype=self.dtype or torch.float32)
        pixels = pixels.to(self.device).movedim(-1, -3)
        if self.dtype is None or self.dtype == torch.uint8:
            return pixels
        return pixels.to(torch.float32).div_(255).to(self.dtype)

    def _image_method(self) -> Callable[[int], Any]:
        if self.output == "bytes":
            return lambda record: bytes(self.reader.read(record))
        if self.output == "tensor":
            return lambda record: self._finish(torch.from_numpy(self._pixels(record)))
        if self.output == "pil":
            return self._pil
        return self._numpy

    def _pixels(self, record: int) -> NDArray[Any]:
        """One image as an array that shares no memory with the store, in the store's layout."""
        reader = self.reader
        if not self.manifest.holds_files:
            return np.array(reader.array(record))
        try:
            return self.decoder.decode(reader.view(record), exif_transpose=self.exif_transpose)
        except DecodeError as error:
            raise DecodeError(f"record {record} ({printable(reader.key(record))}) of {self.path}: {error}") from None

    def _numpy(self, record: int) -> NDArray[Any]:
        pixels = self._pixels(record)
        if self.manifest.image.dtype == "bfloat16":
            # The upper half of a float32 is a bfloat16.
            return (pixels.astype(np.uint32) << 16).view(np.float32)
        return pixels

    def _pil(self, record: int) -> Image:
        from PIL.Image import fromarray

        if not self.manifest.holds_floats:
            return fromarray(self._pixels(record))
        pixels = self._numpy(record).astype(np.float32)
        if self.manifest.normalization is not None:
            mean, std = (
                np.array(values, np.float32)[:, None, None]
                for values in (self.manifest.normalization.mean, self.manifest.normalization.std)
            )
            pixels = pixels * std + mean
        return fromarray((pixels * 255).round().clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def image_array(reader: Reader) -> NDArray[Any] | None:
    """All images of a store as one mapped array ``(N, …)``; None where each is read by itself: they differ in shape,
    are checked one by one, or lie apart."""
    return reader.fixed("image") if reader.manifest.image.kind == "fixed" and reader.has_image_array else None


def _whole(index: Any) -> int:
    if isinstance(index, (bool, np.bool_)) or getattr(index, "dtype", None) == torch.bool:
        raise TypeError("a mask is no list of indices; use mask.nonzero() or numpy.flatnonzero(mask)")
    return as_index(index)
