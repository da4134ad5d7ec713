"""Base of sources whose samples are rows of named arrays: HDF5, npz, Zarr and others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import ITEM_SIZE
from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Bytes, Field, Image, Label, Mask, Text
from packstore.images.sniff import excess_pixels_message, max_file_bytes
from packstore.sources.arrays.choosing import IMAGE_WORDS, LABEL_WORDS, ArrayRoles, assign_roles
from packstore.sources.arrays.classes import assign_text_labels, find_class_names
from packstore.sources.arrays.stored import (
    ArrayInfo,
    BlockCache,
    ColumnArray,
    OpenArrays,
    bytes_per_row,
    rows_per_block,
)
from packstore.sources.arrays.values import (
    MASK_DTYPES,
    cast_exactly,
    decode_text,
    find_class_number,
    is_jpeg_or_png,
    pixel_mode,
    to_class_number,
    to_file,
    to_native,
)
from packstore.sources.base import Certainty, Kind, Source, SourceOptions
from packstore.sources.columns import name_words
from packstore.sources.dataset import index_key
from packstore.sources.ignoring import visible_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.rows import Row, RowSource
from packstore.sources.splits import find_split_folders

OpenSource = Callable[[Path, SourceOptions], Source]

_PROBED = 4
_MAX_FILES = 10_000


class ArraySource(RowSource):
    """Source whose samples are rows of arrays in one file, or in the files of a folder.

    Columns are ``image``, ``label``, and each further array with a row per image. A key is the split and a number.

    Opening raises :class:`AmbiguousSourceError`:

    - if names and shapes do not tell which arrays are images and labels
    - if samples were never written
    - if another file in the folder seems to hold the labels

    Opening raises :class:`SourceError`:

    - if there are no files or no images
    - if arrays contradict each other
    - for too large images or chunks

    Attributes:
        suffixes: Suffixes of its files, in lower case.
        files_name: Name of its files, for messages: ``HDF5 files``.
        grouped: A source is one folder, whose groups of arrays are the splits.
        max_open: Most files that are open at a time.
    """

    suffixes: ClassVar[tuple[str, ...]]
    files_name: ClassVar[str]
    grouped: ClassVar[bool] = False
    max_open: ClassVar[int] = 8

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._files = self.list_files()
        if not self._files:
            raise SourceError(f"{printable(str(path))} holds no {self.files_name} ({', '.join(self.suffixes)})")
        self._blocks = BlockCache(self._files, self.open_file, self.max_open)
        try:
            infos = [self._list_arrays(number, file) for number, file in enumerate(self._files)]
            self._roles, self._text_classes = self.assign_columns(infos)
            self._check_array_sizes()
            self._unwritten_rows, self._unwritten_chunks = self._find_unwritten()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def open_file(self, path: Path) -> OpenArrays:
        """Opens a file. Raises :class:`SourceError` if it is damaged, or refers to a file outside of the source."""

    @classmethod
    @abstractmethod
    def matches(cls, path: Path) -> bool:
        """Tells if a path is of this kind, by names and first bytes."""

    @classmethod
    def find_files(cls, path: Path) -> list[Path]:
        """Finds the files at a path. In a folder, these are its files and those in its folders of splits. Skips hidden
        and ignored files.

        Raises :class:`SourceError` for a path without file or folder, and for more than 10,000 files. Raises
        :class:`OSError` if a folder cannot be listed."""
        if not path.is_dir():
            if not path.is_file():
                raise SourceError(f"{printable(str(path))} is not a file")
            return [path]
        files = []
        splits = _find_split_folders(path)
        for folder in [path, *splits]:
            for file in sorted(visible_paths(folder)):
                if not is_passed_over(file.name) and cls.is_array_file(file):
                    files.append(file)
                if len(files) > _MAX_FILES:
                    raise SourceError(f"{printable(str(path))} holds more than {_MAX_FILES:,} {cls.files_name}")
        return files

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """Returns ``CERTAIN`` if :meth:`matches`, else ``NO``, without opening a file."""
        return Certainty.CERTAIN if cls.matches(path) else Certainty.NO

    def list_files(self) -> list[Path]:
        """Lists the files of this source, by :meth:`find_files`. Subclasses may choose others."""
        return self.find_files(self.path)

    @property
    def gaps_are_bad(self) -> bool:
        """True if samples that were never written are bad samples. If False, such samples have fill values: opening
        asks the user first, unless the user has named the kind."""
        return self.options.skip_bad

    @classmethod
    def is_array_file(cls, path: Path) -> bool:
        """Tells if ``path`` is a file with one of :attr:`suffixes`."""
        return path.name.lower().endswith(cls.suffixes) and path.is_file()

    @classmethod
    def holds_only_arrays(cls, path: Path) -> bool:
        """Tells if a folder holds files of this kind, directly or in folders of splits, and no images, data files of
        other kinds or further folders. Empty folders do not count."""
        has_arrays = False
        splits = _find_split_folders(path)
        for folder in [path, *splits]:
            for file in visible_paths(folder):
                name = file.name.lower()
                if is_passed_over(file.name) or file in splits:
                    continue
                if file.is_dir() or name.endswith((*IMAGE_SUFFIXES, *_OTHER_DATA)):
                    if cls.is_array_file(file):
                        has_arrays = True
                    elif not file.is_dir() or any(not is_passed_over(each.name) for each in visible_paths(file)):
                        return False
                has_arrays = has_arrays or cls.is_array_file(file)
        return has_arrays

    def assign_columns(self, infos: Sequence[Sequence[ArrayInfo]]) -> tuple[ArrayRoles, tuple[str, ...] | None]:
        """Chooses the arrays that are columns; returns their roles, and the names of classes if labels are texts, else
        None. Raises :class:`AmbiguousSourceError` if an option has to decide. Raises :class:`SourceError` if there are
        no images, or the texts cannot be read."""
        roles = self.assign_roles(infos)
        try:
            return assign_text_labels(roles, self._blocks)
        except (OSError, ValueError) as error:
            raise SourceError(f"{printable(str(self.path))}: {printable(str(error))}") from None

    def assign_roles(self, infos: Sequence[Sequence[ArrayInfo]]) -> ArrayRoles:
        """Assigns roles (image, label, further column) to the arrays of the files.

        Raises :class:`AmbiguousSourceError` if an option has to decide. Also raises it if a file beside seems to hold
        the labels, and the user has not named the kind. Raises :class:`SourceError` if there are no images.
        """
        roles = assign_roles(printable(str(self.path)), infos, self.options)
        if not self.path.is_dir() and not self.options.named:
            self._refuse_images_alone(roles)
        return roles

    def splits(self) -> Sequence[str]:
        """Returns the splits of the arrays, in packing order."""
        return list(dict.fromkeys(part.split for part in self._roles.parts))

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split. The size of a row of files or texts is the mean of the first four rows."""
        index, make_key = 0, self.make_key
        for number, part in enumerate(self._roles.parts):
            if part.split == split:
                size, rest = self._row_sizes[number]
                for row in range(part.length):
                    yield Row(make_key(split, index + row), (number, row), size, rest)
                index += part.length

    def make_key(self, split: str, index: int) -> str:
        """Makes the key of a sample from its split and its number in the split."""
        return index_key(split, index)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads a row of each array, and converts it to the value of its column. Raises :class:`OSError` or
        :class:`ValueError` for a row that cannot be read or converted. With :attr:`gaps_are_bad`, raises
        :class:`ValueError` for a row that was never written."""
        number, row = ref
        if self.gaps_are_bad and self._unwritten_rows[number][row]:
            raise ValueError("was never written: its chunks are missing, as after an interrupted copy")
        columns = self._converters[number]
        read = self._blocks.read_row
        return {name: convert(read(chosen, row, len(columns))) for name, chosen, convert in columns}

    @cached_property
    def _converters(self) -> list[list[tuple[str, ColumnArray, Callable[[Any], Any]]]]:
        """Name, array and converter of each column of each part."""
        return [
            [(name, chosen, self.make_converter(name, chosen)) for name, chosen in part.columns.items()]
            for part in self._roles.parts
        ]

    def fields(self) -> dict[str, Field]:
        """Declares a column for each array. A column that some splits lack is optional, except for images. Raises
        :class:`SourceError` for arrays of one name that differ in shape or dtype."""
        declared: dict[str, Field] = {}
        for part in self._roles.parts:
            for name, chosen in part.columns.items():
                field = self._declare_field(name, chosen)
                if declared.setdefault(name, field) != field:
                    raise SourceError(
                        f"{printable(str(self.path))}: {chosen.info.shown} is of another shape or dtype than the array "
                        "of that name elsewhere; give a source that holds one kind of them"
                    )
        lacking = {name for part in self._roles.parts for name in declared if name not in part.columns}
        return {name: _make_optional(field) if name in lacking else field for name, field in declared.items()}

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts arrays that are no columns, and chunks that were never written; leaves out zeros."""
        counts = {
            "arrays that are no values of samples": len(self._roles.left_out),
            "chunks that were never written": self._unwritten_chunks,
        }
        return {reason: count for reason, count in counts.items() if count}

    def files(self) -> Sequence[Path]:
        """Returns the files of arrays."""
        return self._files

    def close(self) -> None:
        """Closes all files, and drops cached rows; reading opens files again."""
        self._blocks.close()

    def _list_arrays(self, number: int, file: Path) -> Sequence[ArrayInfo]:
        """Describes the arrays of a file, with the file's path relative to the source. The path is ``""`` if the source
        is the file itself and its arrays have names."""
        name = "" if file == self.path else file.relative_to(self.path).as_posix()
        infos = self._blocks.open_file(number).list_arrays()
        return [replace(info, file=name or file.name if info.alone else name) for info in infos]

    def _refuse_images_alone(self, roles: ArrayRoles) -> None:
        """Raises :class:`AmbiguousSourceError` if the file has no labels, and another file is named as its labels."""
        path = self.path
        if any("label" in part.columns for part in roles.parts):
            return
        own = name_words(path.stem)
        for other in sorted(path.parent.iterdir()):
            words = name_words(other.stem)
            changed = [(a, b) for a, b in zip(own, words, strict=False) if a != b]
            beside = len(own) == len(words) and len(changed) == 1 and self.is_array_file(other)
            if beside and changed[0][0] in IMAGE_WORDS and changed[0][1] in LABEL_WORDS:
                raise AmbiguousSourceError(
                    f"{printable(str(path))} holds images, and {printable(other.name)} seems to hold their labels: "
                    f"give the folder {printable(str(path.parent))}, or --source {self.kind} for the images alone",
                    [Answer(source=path.parent), Answer(("--source", self.kind))],
                )

    def _find_unwritten(self) -> tuple[list[NDArray[np.bool_]], int]:
        """Finds samples whose image or label was never written.

        Returns a mask of rows for each of ``parts``, the groups of arrays that belong together. Also returns the number
        of missing chunks of all columns. Raises :class:`AmbiguousSourceError` if samples are missing, the user has not
        named the kind, and bad samples are not skipped.
        """
        masks, chunks = [], 0
        for part in self._roles.parts:
            rows = np.zeros(part.length, np.bool_)
            for name, chosen in part.columns.items():
                gaps = None
                if chosen.info.content == "numbers":
                    gaps = self._blocks.open_file(chosen.file).find_unwritten(chosen.info.name, chosen.axis)
                if gaps is not None:
                    chunks += gaps.chunks
                    if name in ("image", "label"):
                        rows |= gaps.rows
            masks.append(rows)
        lacking = sum(int(np.count_nonzero(rows)) for rows in masks)
        if lacking and not (self.options.named or self.gaps_are_bad):
            total = sum(part.length for part in self._roles.parts)
            raise AmbiguousSourceError(
                f"{printable(str(self.path))}: of {lacking:,} of {total:,} samples the image or the label was never "
                f"written ({chunks:,} chunks are missing, and read as fill values, mostly black): an interrupted copy "
                "or program leaves such gaps, and some programs skip black chunks. Copy it again, or leave these "
                f"samples out with --on-error skip, or keep the fill values with --source {self.kind}",
                [Answer(("--on-error", "skip")), Answer(("--source", self.kind))],
            )
        return masks, chunks

    def _check_array_sizes(self) -> None:
        """Checks lengths and sizes of the arrays; sets :attr:`shape` and :attr:`evidence`. Raises :class:`SourceError`
        for arrays of different lengths, too large chunks, and images of too many pixels."""
        shapes: set[tuple[int, ...]] = set()
        for part in self._roles.parts:
            if len({name for name in part.columns if part.columns[name].length != part.length}):
                raise SourceError(f"{printable(str(self.path))}: its arrays have different lengths")
            for chosen in part.columns.values():
                rows_per_block(chosen.info, chosen.axis)
            image = part.columns["image"]
            if image.info.content == "numbers":
                height, width = (image.info.shape[axis] for axis in image.order[:2])
                reason = excess_pixels_message(width, height, self.options.max_pixels)
                if reason is not None:
                    raise SourceError(f"{printable(str(self.path))}: {image.info.shown}: {reason}")
                mode = pixel_mode(image)
                size = (height, width)
                shapes.add((mode.channels, *size) if mode.dtype == "float32" else (*size, mode.channels))
            else:
                shapes.add(())
        if len(shapes) == 1:
            self.shape = shapes.pop() or None
        images = [part.columns["image"] for part in self._roles.parts]
        labels = [part.columns["label"].info.shown for part in self._roles.parts if "label" in part.columns]
        self.evidence = f"images {images[0].info.shown}" + (f", labels {labels[0]}" if labels else ", no labels")
        if len(images) > 1:
            self.evidence += f", and {len(images) - 1} more like these"

    @cached_property
    def _row_sizes(self) -> list[tuple[int, int]]:
        """Bytes of a sample's image, and of its other values. There is a pair for each of ``parts``, the groups of
        arrays that belong together."""
        pairs = []
        for part in self._roles.parts:
            sizes = {name: self._estimate_row_bytes(chosen, len(part.columns)) for name, chosen in part.columns.items()}
            pairs.append((sizes.pop("image"), sum(sizes.values())))
        return pairs

    def _estimate_row_bytes(self, chosen: ColumnArray, columns: int) -> int:
        """Returns the bytes of a row of numbers. For files and texts, returns the mean of the first four rows; a row
        that cannot be read counts as 0."""
        info = chosen.info
        if info.content == "numbers":
            return bytes_per_row(info, chosen.axis)
        rows = self._read_first_rows(chosen, columns)
        return sum(map(len, rows)) // max(1, min(_PROBED, chosen.length))

    def _read_first_rows(self, chosen: ColumnArray, columns: int) -> list[Any]:
        """Reads the first four rows of an array of files or texts, without those that cannot be read."""
        rows = []
        for row in range(min(_PROBED, chosen.length)):
            with suppress(OSError, ValueError):
                rows.append(self._blocks.read_row(chosen, row, columns))
        return rows

    def _declare_field(self, name: str, chosen: ColumnArray) -> Field:
        """Declares the column ``name`` of an array. Raises :class:`SourceError` if no column holds its dtype.

        - ``image`` and ``label`` are an image and a label.
        - Texts are a text.
        - Files are images if the first that can be read is a JPEG or PNG file, else bytes.
        - Whole numbers ``(N, H, W)`` of at most 32 bits are masks, if ``mask`` is in the name.
        - Other numbers are an array.
        """
        info = chosen.info
        if name == "image":
            mode = None if info.content == "files" else pixel_mode(chosen)
            return Image("original" if mode is None else mode.dtype, mode=None if mode is None else mode.name)
        if name == "label":
            return Label(self._classes)
        if info.content == "texts":
            return Text()
        if info.content == "files":
            return Image() if is_jpeg_or_png(*self._read_first_rows(chosen, 1)[:1]) else Bytes()
        if "mask" in name and len(info.shape) == 3 and info.dtype.kind in "uib" and info.dtype.itemsize <= 4:
            return Mask(MASK_DTYPES.get(info.dtype.name))
        if info.dtype.name not in ITEM_SIZE:
            raise SourceError(f"{printable(str(self.path))}: {info.shown}: no type of column holds {info.dtype}")
        return Array(info.dtype.name, info.shape[1:])

    def make_converter(self, name: str, chosen: ColumnArray) -> Callable[[Any], Any]:
        """Makes the function that converts a row of an array to a value of its column. A bool mask ``(H, W)`` becomes
        uint8. The function raises :class:`ValueError`:

        - for a file that is too large
        - for a label that is no whole number, or not one of the classes
        - for a text that cannot be decoded
        - for pixels that would change in the conversion
        """
        info = chosen.info
        if info.content == "files":
            return partial(to_file, name, max_file_bytes(self.options.max_pixels))
        if name == "image":
            return partial(cast_exactly, dtype=pixel_mode(chosen).dtype)
        if name == "label" and info.content == "texts":
            return partial(find_class_number, {text: number for number, text in enumerate(self._text_classes or ())})
        if info.content == "texts":
            return decode_text
        if name == "label":
            return to_class_number
        return partial(to_native, info.dtype, "mask" in name and len(info.shape) == 3)

    @cached_property
    def _classes(self) -> tuple[str, ...] | None:
        """Names of the classes: labels that are texts, or else the names of :func:`find_class_names`. None if there are
        none. Raises :class:`SourceError` if labels or names cannot be read."""
        if self._text_classes is not None:
            return self._text_classes
        try:
            return find_class_names(printable(str(self.path)), self._roles, self._blocks)
        except (OSError, ValueError) as error:
            raise SourceError(f"{printable(str(self.path))}: {printable(str(error))}") from None


_OTHER_DATA = (".h5", ".hdf5", ".npz", ".npy", ".mdb", ".tar", ".zip", ".parquet", ".arrow", ".tfrecord", ".mds")


def make_array_kind(source: type[ArraySource], help: str, open: OpenSource | None = None) -> Kind:
    """Makes the :class:`Kind` of a source of arrays. To recognise a path, its arrays are opened, by ``open`` or
    ``source``, if :meth:`ArraySource.matches`; that raises the errors of opening."""

    def recognise(path: Path, options: SourceOptions) -> Certainty:
        certainty = source.recognise(path, options)
        if certainty is not Certainty.NO:
            (open or source)(path, options).close()
        return certainty

    return Kind(source.kind, help, recognise, open or source, takes_arrays=True)


def _find_split_folders(path: Path) -> list[Path]:
    """Finds the folders of splits in a folder, sorted."""
    found = find_split_folders(each.name for each in visible_paths(path))
    return sorted(path / name for name in found if (path / name).is_dir())


def _make_optional(field: Field) -> Field:
    """Returns a copy of the field that is optional; an image field unchanged."""
    if isinstance(field, Image):
        return field
    return replace(field, optional=True)
