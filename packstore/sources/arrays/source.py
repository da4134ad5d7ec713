"""Base of sources whose samples are rows of named arrays: HDF5, npz, Zarr and others."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ITEM_SIZE
from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Bytes, Field, Image, Label, Mask, Text
from packstore.core.modes import Mode, mode_of
from packstore.images.sniff import begins_like_image, excess_pixels_message, max_file_bytes
from packstore.sources.arrays.choosing import ArrayRoles, assign_roles, find_class_names, find_text_labels
from packstore.sources.arrays.stored import (
    FAULTS,
    ArrayInfo,
    BlockCache,
    ColumnArray,
    OpenArrays,
    bytes_per_row,
    decode_text,
    rows_per_block,
)
from packstore.sources.base import Certainty, SourceOptions
from packstore.sources.dataset import KEY_DIGITS
from packstore.sources.ignoring import visible_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.refusals import refuse_page
from packstore.sources.rows import Row, RowSource
from packstore.sources.splits import find_split_folders

_MAX_FILES = 10_000
_OTHER_DATA = (".h5", ".hdf5", ".npz", ".npy", ".mdb", ".tar", ".zip", ".parquet", ".arrow", ".tfrecord", ".mds")
# Dtype of a column of masks by dtype of the array.
_MASK_DTYPES = {"bool": "uint8", "uint8": "uint8", "int8": "int32", "uint16": "uint16", "int16": "int32"}


class ArraySource(RowSource):
    """Source whose samples are rows of arrays in one file, or in the files of a folder.

    Columns are ``image``, ``label``, and each further array with a row per image. A key is the split and a number.

    Opening raises :class:`AmbiguousSourceError`:

    - if names and shapes do not tell which arrays are images and labels
    - if samples were never written

    Opening raises :class:`SourceError`:

    - if there are no files or no images
    - if arrays contradict each other
    - for too large images or chunks

    Attributes:
        suffixes: Suffixes of its files, in lower case.
        files_name: Name of its files, for messages: ``HDF5 files``.
        grouped: A source is one folder, whose groups of arrays are the splits.
        max_open: Most files that are open at a time.
        key_digits: Digits of a sample's number in its key.
    """

    suffixes: ClassVar[tuple[str, ...]]
    files_name: ClassVar[str]
    grouped: ClassVar[bool] = False
    max_open: ClassVar[int] = 8
    key_digits: ClassVar[int] = KEY_DIGITS

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        with name_path(path):
            self._files = self.list_files()
            if not self._files:
                raise SourceError(f"it holds no {self.files_name} ({', '.join(self.suffixes)})")
        self._blocks = BlockCache(self._files, self.open_file, self.max_open)
        try:
            with name_path(path):
                infos = [self._list_arrays(number, file) for number, file in enumerate(self._files)]
                self._roles = self.assign_columns(infos)
                self._check_arrays()
                self._unwritten_rows, self._unwritten_chunks = self._find_unwritten()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def open_arrays(self, opened: OpenArrays, path: Path) -> None:
        """Adds the arrays of a file. Raises :class:`SourceError`, or one of :data:`FAULTS` for a damaged file and one
        that refers to a file outside of the source."""

    def open_file(self, path: Path) -> OpenArrays:
        """Opens a file by :meth:`open_arrays`. Raises :class:`SourceError` if that fails."""
        opened = OpenArrays()
        try:
            with name_path(path, f" cannot be read as {self.kind}", FAULTS):
                self.open_arrays(opened, path)
        except BaseException:
            opened.close()
            raise
        return opened

    @classmethod
    def reads_file(cls, path: Path) -> bool:
        """Tells if a file is of this kind, by its first bytes. This base returns False."""
        return False

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is a file of this kind, or a folder of such files alone, see :func:`_is_other_data`. Raises
        :class:`SourceError` for a web page in a folder that has the name of such a file."""
        if not path.is_dir():
            return cls.reads_file(path)
        files = []
        for each in _walk_files(path):
            if cls.is_array_file(each):
                files.append(each)
            elif _is_other_data(each):
                return False
        for file in files:
            refuse_page(file)
        return bool(files) and all(map(cls.reads_file, files))

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """Returns ``CERTAIN`` if :meth:`matches`, else ``NO``, without opening a file."""
        return Certainty.CERTAIN if cls.matches(path) else Certainty.NO

    def list_files(self) -> list[Path]:
        """Lists the files of this source: its path, or the files in the folder and in its folders of splits. Skips
        hidden and ignored files. Raises :class:`SourceError` for more than 10,000 files, and :class:`OSError` if a
        folder cannot be listed."""
        if self.path.is_file():
            return [self.path]
        files = [file for file in _walk_files(self.path) if self.is_array_file(file)]
        if len(files) > _MAX_FILES:
            raise SourceError(f"it holds more than {_MAX_FILES:,} {self.files_name}")
        return files

    @property
    def gaps_are_bad(self) -> bool:
        """True if samples that were never written are bad samples. If False, such samples have fill values: opening
        asks the user first, unless the user has named the kind."""
        return self.options.skip_bad

    @classmethod
    def is_array_file(cls, path: Path) -> bool:
        """Tells if ``path`` is a file with one of :attr:`suffixes`."""
        return path.name.lower().endswith(cls.suffixes) and path.is_file()

    def assign_columns(self, infos: Sequence[Sequence[ArrayInfo]]) -> ArrayRoles:
        """Chooses the arrays that are columns. Raises :class:`AmbiguousSourceError` if an option has to decide, and
        :class:`SourceError` if there are no images."""
        roles = assign_roles(infos, self.options)
        if not self.options.named and (texts := find_text_labels(roles)):
            raise AmbiguousSourceError(
                f"{printable(', '.join(texts))} may name the class of each sample: say which, or name the kind to keep "
                "the texts",
                [*(Answer(("--label-key", name)) for name in texts), Answer(("--source", self.kind))],
                lists_answers=True,
            )
        return roles

    def splits(self) -> Sequence[str]:
        """Returns the splits of the arrays, in packing order."""
        return list(dict.fromkeys(part.split for part in self._roles.parts))

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split. Of files or texts, the first row stands for the sizes of all."""
        before = f"{split}/" if split else ""
        make_key, index = f"{before.replace('%', '%%')}%0{self.key_digits}d".__mod__, 0
        for number, part in enumerate(self._roles.parts):
            if part.split == split:
                size, rest = self._row_sizes[number]
                keys = map(make_key, range(index, index + part.length))
                yield from map(Row, keys, zip(repeat(number), range(part.length)), repeat(size), repeat(rest))
                index += part.length

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads a row of each array, and converts it to the value of its column. Raises :class:`OSError` or
        :class:`ValueError` for a row that cannot be read or converted. With :attr:`gaps_are_bad`, raises
        :class:`ValueError` for a row that was never written."""
        number, row = ref
        if self.gaps_are_bad and self._unwritten_rows[number][row]:
            raise ValueError("was never written: its chunks are missing, as after an interrupted copy")
        columns, read = self._columns[number], self._blocks.read_row
        return {name: convert(read(chosen, row, len(columns))) for name, (chosen, _, convert) in columns.items()}

    @cached_property
    def _columns(self) -> list[dict[str, tuple[ColumnArray, Field, Callable[[Any], Any]]]]:
        """Array, field and converter of each column of each part."""
        return [
            {name: (chosen, *self.make_column(name, chosen)) for name, chosen in part.columns.items()}
            for part in self._roles.parts
        ]

    def fields(self) -> dict[str, Field]:
        """Declares a column for each array. A column that some splits lack is optional, except for images. Raises
        :class:`SourceError` for arrays of one name that differ in shape or dtype."""
        declared: dict[str, Field] = {}
        with name_path(self.path):
            for columns in self._columns:
                for name, (chosen, field, _) in columns.items():
                    if declared.setdefault(name, field) != field:
                        raise SourceError(f"{chosen.info.shown} differs in shape or dtype from the array of that name")
        for name, field in declared.items():
            if not isinstance(field, Image) and any(name not in columns for columns in self._columns):
                declared[name] = replace(field, optional=True)
        return declared

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts arrays that are no columns, and chunks that were never written; leaves out zeros."""
        left, unwritten = len(self._roles.left_out), self._unwritten_chunks
        return +Counter({"arrays that are no values of samples": left, "chunks that were never written": unwritten})

    def files(self) -> Sequence[Path]:
        """Returns the files of arrays."""
        return self._files

    def close(self) -> None:
        """Closes all files, and drops cached rows; reading opens files again."""
        self._blocks.close()

    def _list_arrays(self, number: int, file: Path) -> Sequence[ArrayInfo]:
        """Describes the arrays of a file. Each description names the file by its path in the source."""
        name = "" if file == self.path else file.relative_to(self.path).as_posix()
        infos = [array.info for array in self._blocks.open_file(number).arrays.values()]
        # The path is empty if the source is the file itself and its arrays have names.
        return [replace(info, file=name or file.name if info.alone else name) for info in infos]

    def _find_unwritten(self) -> tuple[list[NDArray[np.bool_]], int]:
        """Returns a mask of the samples whose image or label was never written, for each part, and missing chunks."""
        masks, chunks = [], 0
        for part in self._roles.parts:
            masks.append(np.zeros(part.length, np.bool_))
            for name, chosen in part.columns.items():
                array = self._blocks.open_file(chosen.file).arrays[chosen.info.name]
                missing, rows = array.find_unwritten(chosen.file_axis)
                chunks += missing
                if missing and name in ("image", "label"):
                    masks[-1] |= rows
        lacking = sum(int(np.count_nonzero(rows)) for rows in masks)
        # A user who names the kind wants the fill values.
        if lacking and not (self.options.named or self.gaps_are_bad):
            total = sum(part.length for part in self._roles.parts)
            raise AmbiguousSourceError(
                f"of {lacking:,} of {total:,} samples the image or the label was never written ({chunks:,} chunks are "
                "missing, as after an interrupted copy): skip these samples, or name the kind to keep the fill values",
                [Answer(("--on-error", "skip")), Answer(("--source", self.kind))],
                lists_answers=True,
            )
        return masks, chunks

    def _check_arrays(self) -> None:
        """Checks lengths and sizes of the arrays; sets :attr:`shape` and :attr:`evidence`."""
        shapes: set[tuple[int, ...]] = set()
        for part in self._roles.parts:
            for chosen in part.columns.values():
                if chosen.length != part.length:
                    raise SourceError("its arrays have different lengths")
                rows_per_block(chosen.info, chosen.axis)
            image = part.columns["image"]
            if image.info.content != "numbers":
                shapes.add(())
                continue
            height, width = (image.info.shape[axis] for axis in image.order[:2])
            reason = excess_pixels_message(width, height, self.options.max_pixels)
            if reason is not None:
                raise SourceError(f"{image.info.shown}: {reason}")
            mode = _pixel_mode(image)
            shapes.add((mode.channels, height, width) if mode.dtype == "float32" else (height, width, mode.channels))
        self.shape = (shapes.pop() or None) if len(shapes) == 1 else None
        images = [part.columns["image"].info.shown for part in self._roles.parts]
        labels = [part.columns["label"].info.shown for part in self._roles.parts if "label" in part.columns]
        more = f", and {len(images) - 1} more like these" if len(images) > 1 else ""
        self.evidence = f"images {images[0]}, {f'labels {labels[0]}' if labels else 'no labels'}{more}"

    @cached_property
    def _row_sizes(self) -> list[tuple[int, int]]:
        """Bytes of a sample's image and of its other values, for each part."""
        pairs = []
        for part in self._roles.parts:
            sizes = {name: self._estimate_row_bytes(chosen) for name, chosen in part.columns.items()}
            pairs.append((sizes.pop("image"), sum(sizes.values())))
        return pairs

    def _estimate_row_bytes(self, chosen: ColumnArray) -> int:
        """Returns the bytes of a row of numbers, and of the first row of files or texts."""
        if chosen.info.content == "numbers":
            return bytes_per_row(chosen.info, chosen.axis)
        return len(self._read_first_row(chosen))

    def _read_first_row(self, chosen: ColumnArray) -> Any:
        """Reads the first row of an array of files or texts; ``b""`` if that fails."""
        with suppress(OSError, ValueError):
            return self._blocks.read_row(chosen, 0, 1) if chosen.length else b""
        return b""

    def make_column(self, name: str, chosen: ColumnArray) -> tuple[Field, Callable[[Any], Any]]:
        """Makes the field of an array, and the function that converts a row to its value. Raises :class:`SourceError`
        if no column holds its dtype, and :class:`OSError` or :class:`ValueError` for names of classes that cannot be
        read.

        - ``image`` and ``label`` are an image and a label.
        - Texts are a text.
        - Files are images if the first begins like an image, else bytes.
        - Whole numbers ``(N, H, W)`` of at most 32 bits are masks, if ``mask`` is in the name.
        - Other numbers are an array.

        The function raises :class:`ValueError` for too large files, labels that are no class, texts that cannot be
        decoded, and pixels that would change.
        """
        info, dtype = chosen.info, chosen.info.dtype
        if info.content == "files":
            are_images = name == "image" or begins_like_image(bytes(self._read_first_row(chosen)[:64]))
            convert = partial(_to_file, name, max_file_bytes(self.options.max_pixels))
            return Image() if are_images else Bytes(), convert
        if name == "image":
            mode = _pixel_mode(chosen)
            return Image(mode.dtype, mode=mode.name), partial(_cast_exactly, dtype=mode.dtype)
        if name == "label":
            numbers = {text: number for number, text in enumerate(self._classes or ())}
            return Label(self._classes), partial(
                _find_class_number, numbers
            ) if info.content == "texts" else _to_class_number
        if info.content == "texts":
            return Text(), decode_text
        if "mask" in name and len(info.shape) == 3 and dtype.kind in "uib" and dtype.itemsize <= 4:
            return Mask(_MASK_DTYPES.get(dtype.name)), partial(to_native, dtype, True)
        if dtype.name not in ITEM_SIZE:
            raise SourceError(f"{info.shown}: no type of column holds {dtype}")
        return Array(dtype.name, info.shape[1:]), partial(to_native, dtype, False)

    @cached_property
    def _classes(self) -> tuple[str, ...] | None:
        """Names of the classes, see :func:`find_class_names`."""
        return find_class_names(self._roles, self._blocks)


@contextmanager
def name_path(path: Path, why: str = "", faults: tuple[type[Exception], ...] = (OSError, ValueError)) -> Iterator[None]:
    """Begins errors in the block with a path, and ``why``. Converts ``faults`` to :class:`SourceError`."""
    shown = printable(str(path))
    try:
        yield
    except SourceError as error:
        if shown not in str(error.args[0]):
            error.args = (f"{shown}{why}: {error.args[0]}", *error.args[1:])
        raise
    except faults as error:
        raise SourceError(f"{shown}{why}: {printable(str(error))[:300]}") from None


def _walk_files(path: Path) -> Iterator[Path]:
    """Yields the visible paths in a folder and in its folders of splits, sorted in each."""
    splits = find_split_folders(each.name for each in visible_paths(path))
    folders = [path, *(path / name for name in sorted(splits) if (path / name).is_dir())]
    for folder in folders:
        for each in sorted(visible_paths(folder)):
            if not is_passed_over(each.name) and each not in folders:
                yield each


def _is_other_data(path: Path) -> bool:
    """Tells if a path is an image, a data file of another kind, or a folder that is not empty."""
    if path.is_dir():
        return any(not is_passed_over(each.name) for each in visible_paths(path))
    return path.name.lower().endswith((*IMAGE_SUFFIXES, *_OTHER_DATA))


def _pixel_mode(chosen: ColumnArray) -> Mode:
    """Returns the mode (channels and dtype) in which an array of images is stored."""
    dtype = chosen.info.dtype
    # A value that int32 or float32 does not hold makes a bad sample.
    wide = "float32" if dtype.kind == "f" else "int32" if dtype.itemsize > 2 else dtype.name
    channels = chosen.info.shape[chosen.order[2]] if len(chosen.order) == 3 else 1
    return mode_of(channels, {"bool": "uint8", "int8": "int16"}.get(wide, wide))


def _cast_exactly(pixels: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Converts values to a dtype."""
    if pixels.dtype == dtype:
        return pixels
    values = pixels.astype(dtype)
    if not np.array_equal(values, pixels, equal_nan=pixels.dtype.kind == "f"):
        raise ValueError(f"image: {pixels.dtype} values which {dtype} does not hold: write the array again as {dtype}")
    return values


def _to_file(name: str, limit: int, value: Any) -> bytes:
    """Returns the bytes of a file."""
    if len(value) > limit:
        raise ValueError(f"{name} has {len(value)} bytes, more than the {limit} of an image within max_pixels")
    return bytes(value)


def to_native(dtype: np.dtype[Any], is_mask: bool, value: Any) -> NDArray[Any]:
    """Copies a row of numbers in native byte order; ``is_mask`` makes bool uint8."""
    native = np.asarray(value).astype(dtype.newbyteorder("="), copy=True)
    return native.astype(np.uint8) if is_mask and native.dtype == np.bool_ else native


def _to_class_number(value: Any) -> int:
    """Converts a label to a class number, which may be negative or too large."""
    array = np.asarray(value)
    if array.size != 1:
        raise ValueError(f"label: found {array.size} numbers, expected one")
    number = array.reshape(-1)[0].item()
    if not math.isfinite(number) or number != int(number):
        raise ValueError(f"label: found {number}, expected a whole number")
    return int(number)


def _find_class_number(numbers: Mapping[str, int], value: Any) -> int:
    """Returns the number of a class by its text."""
    text = decode_text(value)
    if text not in numbers:
        raise ValueError(f"label: {printable(text[:40])!r} is not one of the classes: its file has changed")
    return numbers[text]
