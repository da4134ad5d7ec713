"""Reads records of an open store as items and batches of a dataset, and as sequences of keys and samples."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Never, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from packstore.core.errors import UsageError
from packstore.core.manifest import Column, Manifest
from packstore.images.decoders import Decoder, get_decoder
from packstore.images.reading import Reading
from packstore.stores import Checksums, Reader
from packstore.training.augment.steps import repr_on_one_line
from packstore.training.pictures import ImageListReader, ImageReader, widen_for_torch
from packstore.training.record_notes import note_need_of_pil, note_records
from packstore.training.values import ValueReader, as_tensor
from packstore.training.worker_memory import move_rows, send_by_value, share

if TYPE_CHECKING:
    from packstore.training.torchvision_transforms import TransformPlan
    from packstore.training.tv_tensors import TVTensors

_UNREAD: Any = object()
"""In place of an image that is not read yet."""


class Item(tuple[Any, ...]):
    """Item that torch's ``default_collate`` collates by :func:`collate_items`."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)


def collate_items(batch: Sequence[Item], *, collate_fn_map: Any = None) -> list[Any]:
    """Collates items as ``default_collate``, without copying tensors that already are rows of one."""

    def collate_values(values: tuple[Any, ...]) -> Any:
        whole = values[0]._base if isinstance(values[0], torch.Tensor) else None
        if whole is not None and len(whole) == len(values) and _are_rows(values, whole):
            return share(whole)
        return send_by_value(collate(values, collate_fn_map=collate_fn_map))

    return [collate_values(values) for values in zip(*batch, strict=True)]


default_collate_fn_map[Item] = collate_items


class ItemDataset(torch.utils.data.Dataset[Any]):
    """Reads items and batches of a dataset by record number.

    Base of :class:`packstore.PackedDataset`, which opens the store, and sets and describes the attributes.
    """

    manifest: Manifest
    columns: tuple[str, ...]
    output: str
    dtype: torch.dtype | None
    device: torch.device
    transform: Callable[[Any], Any] | None
    target_transform: Callable[[Any], Any] | None
    transforms: Callable[..., Any] | None
    decoder: Decoder
    decoder_name: str
    exif_transpose: bool
    max_pixels: int
    checksums: Checksums

    @property
    @abstractmethod
    def reader(self) -> Reader:
        """Open reader of the store."""

    def _prepare_readers(self) -> None:
        """Creates a reader for each column. Called when all attributes are set."""
        self._numbers_of_classes = {
            column.name: len(column.classes)
            for column in self.manifest.columns
            if column.classes is not None and column.kind == "fixed" and not column.shape
        }
        chosen_columns = [self.manifest.column(name) for name in self.columns]
        self._wrapper: TVTensors | None = None
        if self.output == "tv_tensors":
            from packstore.training.tv_tensors import TVTensors

            self._wrapper = TVTensors(chosen_columns)
        self._form = "tensor" if self.output in ("dict", "tv_tensors") else self.output
        self.pictures = self._image_reader(self.manifest.image)
        self._fields = {column.name: self._column_reader(column) for column in chosen_columns}

    def _read_items(self, records: NDArray[np.int64]) -> list[Any]:
        """Reads the items of ``records`` as a list, and decodes their image files together."""
        images = self._read_images(records, together=self.target_transform is None and self.transforms is None)
        items = [self._make_item(record, image) for record, image in zip(records.tolist(), images, strict=True)]
        return [Item(item) if type(item) is tuple else item for item in items]

    def _make_item(self, record: int, image: Any = _UNREAD) -> Any:
        """Reads the item of a record, a value, tuple or dict, and calls the user's ``transforms``."""
        if self._wrapper is not None:
            item: Any = self._wrap_item(self._wrapper, record, image)
        elif self.output == "dict":
            item = {name: self._read_value(name, record, image) for name in self.columns}
        else:
            values = [self._read_value(name, record, image) for name in self.columns]
            item = values[0] if len(values) == 1 else tuple(values)
        if self.transforms is None:
            return item
        return self._call_user_function(self.transforms, record, *(item if isinstance(item, tuple) else (item,)))

    def _wrap_item(self, wrapper: TVTensors, record: int, image: Any) -> Any:
        """Reads the item of a record in torchvision's types, and calls ``transform`` with the image."""
        image = self.pictures.read("tensor", self.reader, record) if image is _UNREAD else image
        size = image.shape[-2], image.shape[-1]
        column = self.manifest.column
        target = {
            name: wrapper.wrap_value(column(name), self._read_value(name, record), size)
            for name in self.columns
            if name != "image"
        }
        image = wrapper.wrap_value(self.manifest.image, image, size)
        image = image if self.transform is None else self._call_transform(image, record)
        if not target:
            return image
        # A single value stands for itself, several are a dict by column name.
        return image, next(iter(target.values())) if len(target) == 1 else target

    def _read_value(self, name: str, record: int, image: Any = _UNREAD) -> Any:
        """Reads one column of a record, and calls ``transform`` or ``target_transform`` on it."""
        if name == "image":
            return self._read_image(record) if image is _UNREAD else image
        if name == "key":
            return self.reader.key(record)
        reader = self.reader
        if self.checksums == "always":
            reader.check_fields(record)
        value: Any = self._fields[name].read(self._form, reader, record)
        count = self._numbers_of_classes.get(name)
        if count is not None and value is not None and not 0 <= value < count:
            raise reader.class_error(self.manifest.column(name), record, value)
        if name != "label" or self.target_transform is None:
            return value
        return self._call_user_function(self.target_transform, record, value)

    def _call_user_function(self, function: Callable[..., Any], record: int, *values: Any) -> Any:
        """Calls a user's function with values of a record, whose exceptions then name the record."""
        try:
            return function(*values)
        except Exception as error:
            note_records(error, self.reader, np.array([record]))
            raise

    def _call_transform(self, image: Any, record: int) -> Any:
        """Calls the user's ``transform`` with the image of a record."""
        assert self.transform is not None
        try:
            return self._call_user_function(self.transform, record, image)
        except Exception as error:
            # Perhaps the function expects a PIL image.
            if self.output != "pil":
                note_need_of_pil(error, f"a {type(image).__name__}")
            raise

    def _read_batch(self, records: NDArray[np.int64]) -> Any:
        """Reads a batch column by column, as a value, tuple or dict."""
        if self._wrapper is not None or self.transforms is not None:
            return self._read_items(records)  # a list: both work on whole items
        if self.output == "dict":
            return {name: self._read_column(name, records) for name in self.columns}
        values = [self._read_column(name, records) for name in self.columns]
        return values[0] if len(values) == 1 else tuple(values)

    def _read_column(self, name: str, records: NDArray[np.int64]) -> Any:
        """Reads and verifies one column of a batch, and calls the user's transforms."""
        if name == "image":
            batch = self._try_gather_images(records) if self.transform is None else None
            if batch is not None:
                return batch
            return self._stack_values([*self._read_images(records, together=True)])
        column = self.manifest.column(name)
        transformed = name == "label" and self.target_transform is not None
        singly = transformed or column.nullable or column.traits.is_picture
        if column.kind != "fixed" or singly or not len(records):
            values = [self._read_value(name, r) for r in records.tolist()]
            # Only images and masks of a ragged column can be stacked.
            return values if column.kind == "ragged" and not column.traits.is_picture else self._stack_values(values)
        gathered = self._read_verified_values(name, records)
        if gathered.ndim == 1 and gathered.dtype.kind in "iu" and column.dtype != "bfloat16":
            # Checksums use all 64 bits; int64 holds the same bits, as in the .pth layout.
            gathered = gathered.view(np.int64) if gathered.dtype == np.uint64 else gathered.astype(np.int64)
        return as_tensor(column, gathered).to(self.device)

    def _read_verified_values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        """Reads and verifies values of a column of one shape."""
        reader = self.reader
        faults = reader.find_faults(records, (name,))
        if faults:
            raise faults[min(faults)]
        return reader.values(name, records)

    def _stack_values(self, values: list[Any]) -> Any:
        """Stacks values to a tensor or an array; returns a list of other values unchanged."""
        if not values or any(value is None for value in values):
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

    def _try_gather_images(self, records: NDArray[np.int64]) -> torch.Tensor | None:
        """Copies and verifies the stored arrays of ``records`` as a batch; None if images must be read singly."""
        if self._form != "tensor" or "image" not in self.columns or not len(records):
            return None
        reader = self.reader
        whole = map_images(reader)
        if whole is None:
            return None
        images = np.take(whole, records, axis=0)
        reader.check_images(records, images)  # the copies, which nothing changes any more
        return self.pictures.convert_pixels(torch.from_numpy(widen_for_torch(images, self.manifest.image)))

    def _read_image(self, record: int) -> Any:
        """Reads the image of a record, and calls ``transform`` with it."""
        if self._plan is not None:
            return next(iter(self._read_images(np.array([record]))))
        image = self.pictures.read(self._form, self.reader, record)
        return image if self.transform is None else self._call_transform(image, record)

    def _read_images(self, records: NDArray[np.int64], *, together: bool = False) -> Iterable[Any]:
        """Reads the images of ``records`` in the form of ``output``, and calls the user's ``transform`` with each."""
        if "image" not in self.columns:
            return [None] * len(records)  # items have no image
        plan = self._plan
        if plan is not None:
            from packstore.training.planned_images import PlannedBatch

            batch = PlannedBatch(self.pictures, self.reader, records, self.max_pixels)
            return (self._move_to_device(image) for image in plan.run(batch, len(records), together=together))
        gathered = self._try_gather_images(records)
        images: Iterable[Any] = (
            self.pictures.read_each(self._form, self.reader, records.tolist())
            if gathered is None
            else move_rows(gathered).unbind()
        )
        # Images of torchvision's types are transformed after they are wrapped.
        if self.transform is None or self._wrapper is not None:
            return images
        return map(self._call_transform, images, records.tolist())

    def _move_to_device(self, image: Any) -> Any:
        """Moves a tensor made by a transform of PIL images to the dataset's dtype and device."""
        if not isinstance(image, torch.Tensor):
            return image
        return image.to(self.device, self.dtype if image.is_floating_point() else None)

    @property
    def _plan(self) -> TransformPlan | None:
        """The plan of the user's ``transform``; None if it is called with images that are read already."""
        if self.transform is None or self.output not in ("tensor", "dict") or "torchvision" not in sys.modules:
            return None
        from packstore.training.torchvision_transforms import plan_transform

        # Not kept, since users change transforms.
        plan = plan_transform(self.transform)
        return plan if plan is not None and plan.fits(self.pictures) else None

    def _describe_transforms(self) -> Iterator[str]:
        """Yields lines on the user's functions, and on the parts of ``transform`` that the engine runs."""
        plan = self._plan
        for name in ("transform", "target_transform", "transforms"):
            function = getattr(self, name)
            if name == "transform" and plan is not None:
                by_engine, then = plan.split()
                parts = [("by the engine", by_engine), ("then", then)]
                yield "transform: " + "; ".join(f"{by}: {repr_on_one_line(some)}" for by, some in parts if some)
            elif function is not None:
                yield f"{name}: {repr_on_one_line(function)}"

    def _image_reader(self, column: Column) -> ImageReader:
        """Creates the reader of a column of images."""
        normalization = self.manifest.normalization
        decoder = self.decoder_of(column)
        return ImageReader(column, decoder, self.exif_transpose, normalization, self.dtype, self.device)

    def decoder_of(self, column: Column) -> Decoder:
        """Returns the decoder of a column of images: the dataset's own for ``image``, a new one for other columns."""
        if column.name == "image":
            return self.decoder
        reading = Reading.of_column(column, self.manifest.options)
        return get_decoder(self.decoder_name, max_pixels=self.max_pixels, reading=reading)

    def list_reader(self, column: Column) -> ImageListReader:
        """Creates the reader of a column of lists of images."""
        return ImageListReader(self._image_reader(column))

    def _column_reader(self, column: Column) -> ImageReader | ImageListReader | ValueReader:
        """Creates the reader of a column's values, by its type."""
        if column.name == "image":
            return self.pictures
        if column.form == "files":
            return self.list_reader(column)
        return (
            self._image_reader(column)
            if column.traits.has_images
            else ValueReader(column, self.device, self.max_pixels)
        )


def map_images(reader: Reader) -> NDArray[Any] | None:
    """Returns all images of a store as one memory-mapped array ``(N, …)``.

    Returns None if the images differ in shape, must be verified one by one, or are not contiguous.
    """
    return reader.fixed_column("image") if reader.manifest.image.kind == "fixed" and reader.has_image_array else None


def _are_rows(values: Sequence[Any], whole: torch.Tensor) -> bool:
    """Tells if tensors are all rows of another, in order."""
    length = whole[:1].numel()
    return whole.is_contiguous() and all(
        isinstance(value, torch.Tensor)
        and value._base is whole
        and value.shape == whole.shape[1:]
        and value.is_contiguous()
        and value.storage_offset() == number * length
        for number, value in enumerate(values)
    )


_T = TypeVar("_T")


class _LazySequence(Sequence[_T]):
    """Sequence over consecutive records that reads each value on access. A slice is a list. ``repr`` reads two
    values."""

    noun: ClassVar[str]

    def __init__(self, reader: Reader, start: int, length: int) -> None:
        self._reader, self._start, self._length = reader, start, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(self._length)[index]]
        return self._read_value(range(self._start, self._start + self._length)[index])

    @abstractmethod
    def _read_value(self, record: int) -> _T:
        """Reads the value of the store's record ``record``."""

    def __repr__(self) -> str:
        values = [f"{value!r:.80}" for value in self[:2]] + ["…"] * (self._length > 2)
        return f"<{self._length:,} {self.noun}: {', '.join(values)}>"


class LazyKeys(_LazySequence[str]):
    """Keys of consecutive records, read on access. Bytes that are not UTF-8 become surrogates."""

    noun = "keys"

    def _read_value(self, record: int) -> str:
        return bytes(self._reader.value("key", record)).decode("utf-8", "surrogateescape")


class LazySamples(_LazySequence[tuple[str, int]]):
    """Pairs ``(key, label)`` of consecutive records, read on access. Keys are as in :class:`LazyKeys`."""

    noun = "samples"

    def _read_value(self, record: int) -> tuple[str, int]:
        key = bytes(self._reader.value("key", record)).decode("utf-8", "surrogateescape")
        return key, int(self._reader.value("label", record))


class EpochBatch(Sequence[int]):
    """Dataset indices of a loader's batch. ``PackedDataset`` loads the batch itself where it is given one of these."""

    def __init__(self, load: Callable[[], Any], list_indices: Callable[[], list[int]]) -> None:
        """
        Args:
            load: Loads the batch, with the loader's augmentation. Raises :class:`StopIteration` if the epoch has none
                left.
            list_indices: Computes the indices, when somebody reads them.
        """
        self.load = load
        self._list_indices = list_indices

    @cached_property
    def _indices(self) -> list[int]:
        return self._list_indices()

    def __getitem__(self, index: Any) -> Any:
        return self._indices[index]

    def __len__(self) -> int:
        return len(self._indices)

    def __eq__(self, other: object) -> bool:
        return self._indices == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._indices)

    def __reduce__(self) -> Never:
        raise UsageError(
            "batches of a PackedLoader are loaded by its threads, and a DataLoader with num_workers sends them to a "
            "process: leave num_workers at 0"
        )
