"""``PackedDataset``: a store as a map-style torch dataset, a drop-in for ``ImageFolder`` and ``CIFAR10``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from operator import index as as_index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, cast

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import StoreError, UsageError, printable
from packstore.core.manifest import Manifest
from packstore.core.options import check_bools, show_value, whole_number
from packstore.core.registry import notebook_html
from packstore.core.urls import UrlPath, location
from packstore.images.decoders import get_decoder
from packstore.images.sniff import MAX_PIXELS
from packstore.stores import Checksums, Reader, check_checksums, with_checksums
from packstore.stores.opening import open_reader
from packstore.stores.records import Records
from packstore.training.arguments import unknown_argument
from packstore.training.augment.steps import check_targets
from packstore.training.crowds import leave_out_crowds
from packstore.training.item_options import (
    check_frames,
    check_normalised,
    check_output,
    check_transforms,
    choose_columns,
    choose_orientation,
    choose_reading,
    choose_split,
    detection_columns,
    join_column_names,
    list_left_out,
)
from packstore.training.items import EpochBatch, ItemDataset, LazyKeys, LazySamples
from packstore.training.pictures import check_pil_mode

if TYPE_CHECKING:
    from PIL.Image import Image

    from packstore.stores.remote_objects import RemoteHead
    from packstore.training.mixture import Mixture

Output = Literal["tensor", "pil", "numpy", "bytes", "dict", "tv_tensors"]


class PackedDataset(ItemDataset):
    """Records of a store, or of one of its splits, as a dataset.

    It has ``classes``, ``class_to_idx``, ``targets``, ``samples``, ``imgs`` and ``loader``, as torchvision's
    ``ImageFolder``.

    ``ds[i]`` is a tuple with one value for each column; with a single column, the value itself. The default columns are
    ``image`` and ``label``. A store without ``label`` has the image with its masks, its boxes and the boxes' labels, as
    far as there are any, in the order of the store's columns. Beside boxes, masks that may be missing are left out.
    ``repr`` lists what is left out.

    ``ds[a:b]`` and ``ds[[3, 1, 2]]`` are batches. Images of one shape become one tensor, other images a list. Numbers
    become a tensor, and keys a list.

    An image, by ``output``:

    - ``"tensor"``: a tensor ``(C, H, W)`` in memory of its own. Image files and uint8 stores give uint8, RGB or of the
      store's ``mode``. 16 bits give int32. Floating point stores give float32, normalised. A loader's batches have the
      same dtypes.
    - ``"numpy"``: an array ``(H, W, C)`` in the mode's dtype. Floating point stores give ``(C, H, W)`` in their dtype,
      but float32 for bfloat16.
    - ``"pil"``: a ``PIL.Image`` in mode RGB or the store's, for torchvision's transforms. See ``denormalize``.
    - ``"bytes"``: the bytes of the record as stored: an image file, or raw pixels.
    - ``"dict"``: as ``"tensor"``. An item is a dict by column name.
    - ``"tv_tensors"``: torchvision's ``Image``. Masks, boxes and keypoints have torchvision's types, too. An item is
      the image, or a pair ``(image, value)``. With more columns it is a pair ``(image, target)``; the target is a dict
      by name, as torchvision's references take it. A batch is a list of items.

    A value of another column, by type. A missing value is None:

    - ``mask``: integer ``(H, W)``: uint8, or int32 if values have more bits. A file with a palette gives its indices.
      ``"numpy"`` keeps uint16. ``"pil"`` gives mode ``P``, ``L``, ``1``, ``I;16`` or ``I``. ``"bytes"`` gives the
      stored bytes.
    - ``label``: ``int``.
    - ``labels``: int64 ``(n,)``.
    - ``boxes``: float32 ``(n, 4)``: left, top, right, bottom in pixels of the image.
    - ``keypoints``: float32 ``(n, k)``, or ``(n, points, k)`` with several points in a row. k is 3 with visibility.
    - ``text`` and ``key``: ``str``. ``json``: the object. ``bytes``: bytes.
    - ``array``: ``int`` for single whole numbers. Otherwise a tensor of the column's dtype and shape; in a ragged
      column ``(n, *shape)``. ``"numpy"`` gives an array.

    The object pickles as path and options. Each process, forked or spawned, opens the store for itself. At a URL, it
    opens the version that was the newest when the dataset was made.

    Args:
        path: A store of any format, or the URL of one.
        split: The split to use. Required if the store has several.
        device: Device of the tensors.
        columns: Names of the columns of an item, in order. None for the default columns, see above.
        output: Form of the images, see above.
        transform: Called with each image of the column ``image``. With ``output="tensor"`` and ``"dict"`` the engine
            runs torchvision's crops, resizes, flips and conversions, with equal pixels and random numbers. A pipeline
            of torchvision that has ``ToTensor``, ``PILToTensor`` or ``ToImage`` begins with a PIL image. A transform
            must not move pixels if masks, boxes or keypoints are loaded. Then torchvision's transforms that move pixels
            are refused, and other functions need :class:`packstore.augment.InPlace` around them.
        target_transform: Called with each label.
        transforms: Called with the values of an item, as torchvision's datasets do: ``transforms(image, target)``.
            Instead of the other two.
        decoder: ``"auto"`` or the name of one, see :func:`packstore.images.decoders.get_decoder`.
        exif_transpose: Rotate and flip images by their EXIF orientation. None for the choice made when the store was
            packed. Stores of pixels refuse another choice: their images were rotated when packed, or never.
        dtype: Floating point type of image tensors instead of the default. Pixels of a uint8 or encoded store are
            scaled to 0 … 1, as torchvision's ``ToTensor`` does.
        denormalize: With ``output="pil"``: undo the normalisation of a floating point store. Rounding may change a
            value by 1 of 255. Has no effect on stores of pixels or files.
        mode: Mode in which image files are read, such as ``"L"`` for gray, ``(1, H, W)``. None for the store's. ``"L"``
            is the luma of a colour JPEG, as torchvision's ``decode_image(mode="GRAY")`` returns it.
        depth: Conversion of values of more than 8 bits for a mode of 8 bits: ``"scale"``, ``"clip"`` or
            ``"window:LO,HI"``. None for the store's conversion. ``"keep"`` converts nothing. With it, a store that
            converts to 8 bits needs a ``mode``.
        alpha: ``"drop"`` or ``"over:COLOUR"`` for a mode without alpha. None for the store's choice.
        frames: ``"first"`` or the number of a frame, as text, from 0. None for the store's choice.
        keep_crowds: Keep objects that the column ``iscrowd`` flags: crowds, and regions to ignore. By default they are
            left out of boxes, labels and all other columns of objects, as in torchvision's reference for detection.
        max_pixels: An image whose header says more pixels raises :class:`DecodeError` instead of being decoded. This
            bounds the memory: a thread or process that decodes takes up to 20 bytes for each pixel.
        checksums: Policy of checksum verification. ``"auto"`` checks image files at each read, and arrays of pixels at
            one of sixteen reads. It checks labels, keys and other columns once, at their first use. A loader also
            checks all images that it makes resident. It checks one sixteenth of streamed arrays in each epoch, and all
            in sixteen epochs. ``"always"`` checks image, label and key of each record at each access. ``"never"``
            checks only the manifest, at opening: a changed byte in an image passes. Labels without a class are errors
            in any case. (``packstore verify`` checks a whole store.)

    Raises:
        StoreError: ``path`` is not a store.
        UsageError: An unknown split, column, output, decoder or device. Several splits, and none named. Options that
            contradict each other or the store. Transforms that move pixels without their masks, boxes or keypoints.
        DecodeError: On access: a record cannot be decoded. Names the record and its key.
        CorruptRecordError: On access: a record is damaged. Names the record and its key.
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
        transforms: Callable[..., Any] | None = None,
        decoder: str = "auto",
        exif_transpose: bool | None = None,
        dtype: torch.dtype | None = None,
        denormalize: bool = False,
        mode: str | None = None,
        depth: str | None = None,
        alpha: str | None = None,
        frames: str | None = None,
        keep_crowds: bool = False,
        checksums: Checksums = "auto",
        max_pixels: int = MAX_PIXELS,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_argument(PackedDataset, min(unknown))
        self.path = self._resolve_path(path)
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError, ValueError) as error:
            shown, first = show_value(device), str(error).partition("\n")[0]
            raise UsageError(f"device should be one of torch's, such as 'cuda:0', got {shown}: {first}") from None
        check_transforms(transform, target_transform, transforms)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError("device='cuda', but torch finds no CUDA device here; use device='cpu'")
        self.output = output
        self.transform = transform
        self.target_transform = target_transform
        self.transforms = transforms
        self.dtype = dtype
        self.decoder_name = decoder
        self.max_pixels = whole_number("max_pixels", max_pixels)
        check_bools(keep_crowds=keep_crowds)
        self.keep_crowds = keep_crowds
        check_checksums(checksums)
        self.checksums: Checksums = checksums
        with ExitStack() as opened:
            self._reader: Reader | None = opened.enter_context(self._open())
            self._head = self._reader.table.head
            self._pid = os.getpid()
            self.manifest: Manifest = self._reader.manifest
            self.reading = choose_reading(self.manifest, mode, depth, alpha, frames)
            self.decoder = get_decoder(decoder, max_pixels=self.max_pixels, reading=self.reading)
            self.split = choose_split(self.manifest, split)
            chosen = self._reader.split(self.split)
            self._start, self._length = chosen.start, len(chosen)
            self.columns = choose_columns(self.manifest, columns)
            check_output(self.manifest, self.columns, output, dtype, denormalize)
            check_normalised(self.manifest, output, transform)
            if output == "pil":
                check_pil_mode(self.reading.pixels)
            if transform is not None:
                types = [self.manifest.column(name).type for name in self.columns]
                check_targets([transform], types, "transforms=, which is called with all of an item")
            self.exif_transpose = choose_orientation(self.manifest, exif_transpose)
            check_frames(self.manifest, self.columns, self.exif_transpose)
            self._loaded: dict[str, Any] = {}
            self._prepare_readers()
            opened.pop_all()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice | Sequence[int] | NDArray[Any] | torch.Tensor) -> Any:
        """Returns item ``index`` (negative from the end), or a batch for a slice or a list of indices.

        Raises :class:`IndexError` for an index out of range, and :class:`TypeError` for anything but indices, such as
        masks.
        """
        if type(index) is int:
            return self._make_item(self._record_of_item(index))
        if isinstance(index, slice):
            return self._read_batch(np.arange(*index.indices(self._length), dtype=np.int64) + self._start)
        if isinstance(index, Iterable) and not (hasattr(index, "ndim") and index.ndim == 0):
            return self._read_batch(self._records_of_items(index))
        return self._make_item(self._record_of_item(_parse_index(index)))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Returns the items at ``indices`` as a list, for torch's ``DataLoader``, which collates them itself.

        A batch of a loader's ``batch_sampler`` is loaded by that loader.
        """
        if isinstance(indices, EpochBatch):
            return indices.load()
        records = self._records_of_items(indices)
        return self._read_items(records)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises :class:`AttributeError` for an attribute that is read from the store, and names the ways out."""
        if name in ("classes", "class_to_idx", "imgs", "samples", "targets"):
            raise AttributeError(
                f"{name} cannot be set, since it is read from the store: take some of the items by "
                "torch.utils.data.Subset or packstore select, and make other labels by target_transform="
            )
        super().__setattr__(name, value)

    @property
    def reader(self) -> Reader:
        """Open reader of the store.

        After :meth:`close` and in a new process, opens the store again, and empties the dataset's caches: C libraries
        do not survive a fork. Raises :class:`StoreError` if another store has replaced the store.
        """
        reader = self._reader  # a copy: another thread may close the dataset meanwhile
        if reader is None or self._pid != os.getpid():
            reader = self._open(self._head)
            if reader.manifest != self.manifest:
                reader.close()
                raise StoreError(f"{self.path} has been replaced by another store; open it again as a new dataset")
            self._loaded = {}
            self._reader = reader
            self._pid = os.getpid()
        return reader

    @property
    def classes(self) -> list[str]:
        """Class names by number, from 0: of the column ``label``, or of the boxes in a store without ``label``.

        Empty without names. torchvision's detectors reserve 0 for the background: add 1 to the labels for them.
        """
        classes = self.manifest.classes
        if classes is None and not self.manifest.has_column("label"):
            named = [column for column in detection_columns(self.manifest) if column.classes is not None]
            classes = named[0].classes if named else None
        return list(classes or ())

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class number by name."""
        return {name: i for i, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """Labels of all items, before ``target_transform``. Verifies the column's checksums first, unless
        ``checksums="never"``.

        Raises :class:`UsageError` unless each item has one label. Raises :class:`CorruptRecordError` for a label
        without a class.
        """
        self._check_labels()
        labels = self._read_verified_values("label", np.arange(self._start, self._start + self._length))
        return cast("list[int]", labels.tolist())

    def _check_labels(self) -> None:
        """Verifies the column ``label``, and that each item has one label."""
        if not self.manifest.has_column("label"):
            raise UsageError(f"{self.path} has no labels; columns: {join_column_names(self.manifest)}")
        self.reader.verify_column("label")
        column = self.manifest.column("label")
        if column.kind != "fixed":
            raise UsageError(f"{printable(str(self.path))}: 'label' is not one class a record; columns= has it")
        if column.nullable:
            records = np.arange(self._start, self._start + self._length)
            missing = records[~self.reader.values(column.valid_name, records)]
            if len(missing):
                raise UsageError(
                    f"{len(missing):,} items have no label, such as {printable(self.reader.key(int(missing[0])))}; "
                    "columns= gives None for them"
                )

    @property
    def keys(self) -> Sequence[str]:
        """Keys of all items, read on access. Verifies the column's checksum first, unless ``checksums="never"``."""
        self.reader.verify_column("key")
        return LazyKeys(self.reader, self._start, self._length)

    @property
    def samples(self) -> Sequence[tuple[str, int]]:
        """Pairs ``(key, label)`` of all items, read on access. Verifies both columns' checksums first, unless
        ``checksums="never"``.

        Raises :class:`UsageError` unless each item has one label.
        """
        self._check_labels()
        self.reader.verify_column("key")
        return LazySamples(self.reader, self._start, self._length)

    imgs = samples

    def loader(self, key: str) -> Image:
        """Returns the image with this key as an RGB ``PIL.Image``, as :meth:`show` does. Like ``ImageFolder``'s
        ``loader``.

        The first call reads all keys. If several items have the key, returns the last. Raises :class:`UsageError` for
        an unknown key.
        """
        reader = self.reader  # first: in a new process it clears the caches
        items = self._loaded.get("items of keys")
        if items is None:
            items = self._loaded["items of keys"] = {key: i for i, key in enumerate(self.keys)}
        if key not in items:
            raise UsageError(
                f"no item has the key {key!r}; keys and samples list them, such as {reader.key(self._start)!r}"
            )
        return self.show(items[key])

    def show(self, index: int, window: tuple[float, float] | None = None) -> Image:
        """Returns the image of item ``index`` as an RGB ``PIL.Image`` for display.

        Undoes normalisation, and does not call ``transform``.

        Args:
            index: Index of the item. A negative index counts from the end.
            window: Values shown as black and white, unless values have 8 bits. None for the 1st and 99th percentile of
                the image.

        Raises:
            IndexError: The index is out of range.
            TypeError: The index is not a whole number.
            DecodeError: The image cannot be decoded.
        """
        return self.pictures.read_for_display(self.reader, self._record_of_item(_parse_index(index)), window)

    def close(self) -> None:
        """Closes the store, and empties the caches. The next access opens the store again. Reads in other threads
        finish."""
        self._reader = None
        self._loaded = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the open reader and the caches."""
        return {**self.__dict__, "_reader": None, "_loaded": {}}

    def _repr_html_(self) -> str:
        """Returns HTML that shows the dataset in a notebook."""
        return notebook_html(self)

    def __repr__(self) -> str:
        m = self.manifest
        shape = f" {'x'.join(map(str, m.image.shape))}" if m.image.shape else ""
        lines = [
            f"PackedDataset {str(self.path)!r}",
            f"    records: {len(self)}" + (f" (split {self.split!r})" if self.split else ""),
            *([f"    classes: {len(self.classes)}"] if self.classes or m.classes is not None else []),
            f"    encoding: {m.encoding}{shape} in {m.format}"
            + (", normalised" if m.normalization is not None else ""),
            f"    item: {self._describe_item()}",
            *(f"    {line}" for line in self._describe_transforms()),
        ]
        if nullable := [name for name in self.columns if m.column(name).nullable]:
            lines.append(f"    None if missing: {', '.join(nullable)}")
        if left_out := list_left_out(m, self.columns):
            lines.append(f"    left out: {', '.join(left_out)} (columns= adds them)")
        return "\n".join(lines)

    def _describe_item(self) -> str:
        """Describes the type and device of an item, for ``repr``."""
        names = ", ".join(self.columns)
        where = f"on {self.device}"
        if self.output == "dict":
            return f"a dict of {names}, {where}"
        if self.output == "tv_tensors":
            return f"{names} as torchvision's types, {where}"
        form = f"image as {self.output}, " if "image" in self.columns else ""
        return f"{names} ({form}{where})"

    def _resolve_path(self, path: Any) -> Path:
        """Returns the store's absolute path, or its URL."""
        if not isinstance(path, str | os.PathLike):
            several = "; packstore.concat joins several" if isinstance(path, list | tuple) else ""
            raise UsageError(f"path should be that of a store, got {show_value(path)}{several}")
        return location(path).absolute()  # worker processes may have another working directory

    def _open(self, head: RemoteHead | None = None) -> Reader:
        """Opens the store; at a URL in the version of ``head``."""
        reader = open_checked(self.path, self.checksums, head)
        return reader if self.keep_crowds else leave_out_crowds([reader])[0]

    def _resolve_mixture(self, shuffle: bool | str) -> Mixture | None:
        """Returns the order in which an epoch draws from the stores of a :class:`Mix`; None for other datasets."""
        return None

    def _record_of_item(self, index: int) -> int:
        """Converts the index of an item, negative from the end, to a record number."""
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(f"index out of range: the dataset has {self._length} items")
        return self._start + index

    def _records_of_items(self, indices: Iterable[Any]) -> NDArray[np.int64]:
        """Converts indices of items, negative from the end, to record numbers."""
        array = isinstance(indices, (np.ndarray, torch.Tensor)) and indices.ndim == 1 and indices.dtype != torch.bool
        items: list[Any] = indices.tolist() if array else list(indices)  # type: ignore[attr-defined]
        if not set(map(type, items)) <= {int}:
            items = [_parse_index(i) for i in items]
        if items and not -self._length <= min(items) <= max(items) < self._length:
            raise IndexError(f"index out of range: the dataset has {self._length} items")
        numbers = np.array(items, np.int64)
        return np.where(numbers < 0, numbers + self._length, numbers) + self._start


def open_checked(path: Path, checksums: Checksums, head: RemoteHead | None = None) -> Reader:
    """Opens a store, and checks that all of its files exist.

    With ``head``, opens that version of a store at a URL again, without this check. Raises :class:`StoreError`, with
    advice, if a file is missing or the store does not open.
    """
    if head is not None:
        from packstore.stores.remote_shards import reopen_remote

        return with_checksums(Records(reopen_remote(UrlPath(path), head)), checksums)
    reader = with_checksums(open_reader(path), checksums)
    try:
        reader.check_files()  # now, and not hours later
    except StoreError as error:
        reader.close()
        raise StoreError(f"{error}; packstore verify lists what is wrong, packstore salvage saves the rest") from error
    return reader


def _parse_index(index: Any) -> int:
    """Converts an index to ``int``, and refuses masks."""
    if isinstance(index, (bool, np.bool_)) or getattr(index, "dtype", None) == torch.bool:
        raise TypeError("a mask is no list of indices; use mask.nonzero() or numpy.flatnonzero(mask)")
    return as_index(index)
