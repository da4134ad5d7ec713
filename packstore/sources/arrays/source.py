"""Sources whose samples are rows of named arrays: what HDF5, npz, Zarr and others have in common."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import ITEM_SIZE
from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Bytes, Field, Image, Label, Mask, Text
from packstore.core.modes import Mode, mode_of
from packstore.images.sniff import max_file_bytes, too_many_pixels
from packstore.sources.arrays.choosing import IMAGE_WORDS, LABEL_WORDS, Choice, Chosen, Part, choose
from packstore.sources.arrays.classes import parse_names, with_text_labels
from packstore.sources.arrays.stored import ArrayInfo, Blocks, OpenArrays, block_rows, row_bytes
from packstore.sources.base import SPLIT_ORDER, Certainty, Source, SourceOptions
from packstore.sources.dataset import index_key
from packstore.sources.ignoring import visible_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.rows import Row, RowSource
from packstore.sources.text_labels import name_words

_log = logging.getLogger(__name__)

_PROBED = 4
_MAX_FILES = 10_000
_MAX_CLASSES = 1 << 20
_TEXTS = 4096


class ArraySource(RowSource):
    """The samples of arrays in one file, or in the files of a folder.

    Attributes:
        suffixes: Of its files in a folder, in lower case.
        what: What these are, for messages: ``HDF5 files``.
        grouped: A source is one folder, in which splits are groups of arrays.
    """

    suffixes: ClassVar[tuple[str, ...]]
    what: ClassVar[str]
    grouped: ClassVar[bool] = False

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._files = self.list_files()
        if not self._files:
            raise SourceError(f"{printable(str(path))} holds no {self.what} ({', '.join(self.suffixes)})")
        self._blocks = Blocks(self._files, partial(self.open_file, folder=path if path.is_dir() else path.parent))
        try:
            infos = [self._infos(number, file) for number, file in enumerate(self._files)]
            self._choice, self._text_classes = self.choose_columns(infos)
            self._check()
            self._nothing, self._unwritten_chunks = self._find_unwritten()
        except BaseException:
            self.close()
            raise

    @classmethod
    @abstractmethod
    def open_file(cls, path: Path, folder: Path) -> OpenArrays:
        """Opens a file. What it refers to lies in ``folder``. Raises :class:`SourceError`."""

    @classmethod
    def find(cls, path: Path) -> list[Path]:
        """Finds the files of a source."""
        if not path.is_dir():
            if not path.is_file():
                raise SourceError(f"{printable(str(path))} is not a file")
            return [path]
        found = []
        for folder in [path, *_split_folders(path)]:
            for file in sorted(visible_paths(folder)):
                if not is_passed_over(file.name) and cls.takes_file(file):
                    found.append(file)
                if len(found) > _MAX_FILES:
                    raise SourceError(f"{printable(str(path))} holds more than {_MAX_FILES:,} {cls.what}")
        return found

    def list_files(self) -> list[Path]:
        """Lists the files of this source."""
        return self.find(self.path)

    @property
    def gaps_are_bad(self) -> bool:
        """Whether samples that were never written are bad ones; else they are a question."""
        return self.options.skip_bad

    @classmethod
    def takes_file(cls, path: Path) -> bool:
        """Whether a file of a folder is one of its files."""
        return path.name.lower().endswith(cls.suffixes) and path.is_file()

    @classmethod
    def recognise_folder(cls, path: Path) -> Certainty:
        """Of a folder: whether it holds nothing but such files, directly or in folders of splits."""
        found = False
        for folder in [path, *_split_folders(path)]:
            for file in visible_paths(folder):
                name = file.name.lower()
                if is_passed_over(file.name) or (folder == path and name in SPLIT_ORDER):
                    continue
                if file.is_dir() or name.endswith((*IMAGE_SUFFIXES, *_OTHER_DATA)):
                    if cls.takes_file(file):
                        found = True
                    elif not file.is_dir() or any(not is_passed_over(each.name) for each in visible_paths(file)):
                        return Certainty.NO
                found = found or cls.takes_file(file)
        return Certainty.CERTAIN if found else Certainty.NO

    def choose_columns(self, infos: Sequence[Sequence[ArrayInfo]]) -> tuple[Choice, tuple[str, ...] | None]:
        """Chooses the arrays that are columns, and the names of classes if labels are texts. Raises
        :class:`SourceError`."""
        return with_text_labels(self.choose(infos), self._texts)

    def choose(self, infos: Sequence[Sequence[ArrayInfo]]) -> Choice:
        """What the arrays of the files are. Raises :class:`SourceError`."""
        found = choose(printable(str(self.path)), infos, self.options)
        if not self.path.is_dir() and not self.options.named:
            self._refuse_lone(found)
        return found

    def splits(self) -> Sequence[str]:
        return list(dict.fromkeys(part.split for part in self._choice.parts))

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows; the size of encoded images is a mean."""
        index = 0
        for number, part in enumerate(self._choice.parts):
            if part.split == split:
                size, rest = self._sizes[number]
                for row in range(part.length):
                    yield Row(index_key(split, index), (number, row), size, rest)
                    index += 1

    def values(self, ref: Any) -> dict[str, Any]:
        number, row = ref
        part = self._choice.parts[number]
        if self.gaps_are_bad and self._nothing[number][row]:
            raise ValueError("was never written: its chunks are missing, as after a copy that broke off")
        found = {}
        for name, chosen in part.columns.items():
            value = self._blocks.row(chosen.file, chosen.info, chosen.axis, row, len(part.columns))
            found[name] = self.convert(name, chosen, value)
        return found

    def fields(self) -> dict[str, Field]:
        declared: dict[str, Field] = {}
        for part in self._choice.parts:
            for name, chosen in part.columns.items():
                field = self._field(name, chosen)
                if declared.setdefault(name, field) != field:
                    raise SourceError(
                        f"{printable(str(self.path))}: {chosen.info.shown} is of another shape or dtype than the array "
                        "of that name elsewhere; give a source that holds one kind of them"
                    )
        lacking = {name for part in self._choice.parts for name in declared if name not in part.columns}
        return {name: _optional(field) if name in lacking else field for name, field in declared.items()}

    def count_left_members(self) -> Mapping[str, int]:
        found = {
            "arrays that are no values of samples": len(self._choice.left_out),
            "chunks that were never written": self._unwritten_chunks,
        }
        return {reason: count for reason, count in found.items() if count}

    def files(self) -> Sequence[Path]:
        return self._files

    def close(self) -> None:
        self._blocks.close()

    def _infos(self, number: int, file: Path) -> Sequence[ArrayInfo]:
        name = "" if file == self.path else file.relative_to(self.path).as_posix()
        found = self._blocks.file(number).infos()
        return [replace(info, file=name or file.name if info.alone else name) for info in found]

    def _refuse_lone(self, choice: Choice) -> None:
        """Raises :class:`AmbiguousSourceError` for one file of images beside another file of their labels."""
        path = self.path
        if any("label" in part.columns for part in choice.parts):
            return
        own = name_words(path.stem)
        for other in sorted(path.parent.iterdir()):
            words = name_words(other.stem)
            changed = [(a, b) for a, b in zip(own, words, strict=False) if a != b]
            beside = len(own) == len(words) and len(changed) == 1 and self.takes_file(other)
            if beside and changed[0][0] in IMAGE_WORDS and changed[0][1] in LABEL_WORDS:
                raise AmbiguousSourceError(
                    f"{printable(str(path))} holds images, and their labels seem to lie in {printable(other.name)}: "
                    f"give the folder {printable(str(path.parent))}, or --source {self.kind} for the images alone",
                    [Answer(source=path.parent), Answer(("--source", self.kind))],
                )

    def _find_unwritten(self) -> tuple[list[NDArray[np.bool_]], int]:
        """By part, which samples have an image or a label that was never written; and the number of chunks that were
        not, of all columns. Raises :class:`AmbiguousSourceError` for such samples, unless an option says what they are.
        """
        nothing, chunks = [], 0
        for part in self._choice.parts:
            rows = np.zeros(part.length, np.bool_)
            for name, chosen in part.columns.items():
                found = None
                if chosen.info.what == "numbers":
                    found = self._blocks.file(chosen.file).unwritten(chosen.info.name, chosen.axis)
                if found is not None:
                    chunks += found.chunks
                    if name in ("image", "label"):
                        rows |= found.rows
            nothing.append(rows)
        lacking = sum(int(np.count_nonzero(rows)) for rows in nothing)
        if lacking and not (self.options.named or self.gaps_are_bad):
            total = sum(part.length for part in self._choice.parts)
            raise AmbiguousSourceError(
                f"{printable(str(self.path))}: of {lacking:,} of {total:,} samples the image or the label was never "
                f"written ({chunks:,} chunks are missing, and read as fill values, mostly black): a copy or a program "
                "that broke off leaves such gaps, and some programs do for what is black. Copy it again, or leave "
                f"these samples out with --on-error skip, or keep the fill values with --source {self.kind}",
                [Answer(("--on-error", "skip")), Answer(("--source", self.kind))],
            )
        return nothing, chunks

    def _check(self) -> None:
        """Sizes that would not fit, said at once; and what the arrays are, in :attr:`evidence`."""
        shapes: set[tuple[int, ...]] = set()
        for part in self._choice.parts:
            if len({name for name in part.columns if part.columns[name].length != part.length}):
                raise SourceError(f"{printable(str(self.path))}: its arrays have different lengths")
            for chosen in part.columns.values():
                block_rows(chosen.info, chosen.axis)
            image = part.columns["image"]
            if image.info.what == "numbers":
                height, width = (image.info.shape[axis] for axis in image.order[:2])
                reason = too_many_pixels(width, height, self.options.max_pixels)
                if reason is not None:
                    raise SourceError(f"{printable(str(self.path))}: {image.info.shown}: {reason}")
                mode = _mode_of(image)
                size = (height, width)
                shapes.add((mode.channels, *size) if mode.dtype == "float32" else (*size, mode.channels))
            else:
                shapes.add(())
        if len(shapes) == 1:
            self.shape = shapes.pop() or None
        images = [part.columns["image"] for part in self._choice.parts]
        labels = [part.columns["label"].info.shown for part in self._choice.parts if "label" in part.columns]
        self.evidence = f"images {images[0].info.shown}" + (f", labels {labels[0]}" if labels else ", no labels")
        if len(images) > 1:
            self.evidence += f", and {len(images) - 1} more like these"

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """Of each part, bytes of an image and of the other values of a sample; of files, by the first ones."""
        found = []
        for part in self._choice.parts:
            sizes = {name: self._size(chosen, len(part.columns)) for name, chosen in part.columns.items()}
            found.append((sizes.pop("image"), sum(sizes.values())))
        return found

    def _size(self, chosen: Chosen, columns: int) -> int:
        info = chosen.info
        if info.what == "numbers":
            return row_bytes(info, chosen.axis)
        total = 0
        for row in range(min(_PROBED, chosen.length)):
            try:
                total += len(self._blocks.row(chosen.file, info, 0, row, columns))
            except (OSError, ValueError):
                continue
        return total // max(1, min(_PROBED, chosen.length))

    def _field(self, name: str, chosen: Chosen) -> Field:
        info = chosen.info
        if name == "image":
            mode = None if info.what == "files" else _mode_of(chosen)
            return Image("original" if mode is None else mode.dtype, mode=None if mode is None else mode.name)
        if name == "label":
            return Label(self._classes)
        if info.what == "texts":
            return Text()
        if info.what == "files":
            return Image() if _begins_like_files(self._first(chosen)) else Bytes()
        if "mask" in name and len(info.shape) == 3 and info.dtype.kind in "uib" and info.dtype.itemsize <= 4:
            return Mask(_MASK_DTYPES.get(info.dtype.name))
        if info.dtype.name not in ITEM_SIZE:
            raise SourceError(f"{printable(str(self.path))}: {info.shown}: no column holds {info.dtype}")
        return Array(info.dtype.name, info.shape[1:])

    def _first(self, chosen: Chosen) -> bytes:
        try:
            return bytes(self._blocks.row(chosen.file, chosen.info, 0, 0, 1)) if chosen.length else b""
        except (OSError, ValueError):
            return b""

    def convert(self, name: str, chosen: Chosen, value: Any) -> Any:
        """Converts a row of an array to a value of its column. Raises :class:`ValueError`."""
        info = chosen.info
        if name == "image":
            return self._image(chosen, value)
        if name == "label":
            return _whole(value) if info.what == "numbers" else self._label_numbers[_decoded(value)]
        if info.what == "files":
            limit = max_file_bytes(self.options.max_pixels)
            if len(value) > limit:
                raise ValueError(f"{name} has {len(value)} bytes, more than {limit} within max_pixels")
            return bytes(value)
        if info.what == "texts":
            return _decoded(value)
        native = np.asarray(value).astype(info.dtype.newbyteorder("="), copy=True)
        return native.astype(np.uint8) if "mask" in name and native.dtype == np.bool_ and native.ndim == 2 else native

    def _image(self, chosen: Chosen, value: Any) -> Any:
        if chosen.info.what == "files":
            limit = max_file_bytes(self.options.max_pixels)
            if len(value) > limit:
                raise ValueError(f"it has {len(value)} bytes, more than the {limit} of an image within max_pixels")
            return bytes(value)
        pixels = np.transpose(value, [axis - (axis > chosen.axis) for axis in chosen.order])
        return np.ascontiguousarray(_as_pixels(pixels, _mode_of(chosen).dtype))

    @cached_property
    def _classes(self) -> tuple[str, ...] | None:
        """Names of classes, in an array of texts or in attributes of the labels, the images or a group above them; None
        where labels do not go with them."""
        if self._text_classes is not None:
            return self._text_classes
        try:
            most = max((int(self._labels(part).max(initial=0)) for part in self._choice.parts), default=0)
            for shown, names, is_certain in self._named_classes():
                if names is not None and most < len(names) and (is_certain or most + 1 == len(names)):
                    return names
                if is_certain:
                    _log.warning("%s: %s does not name the classes of the labels; they are packed as numbers alone",
                                 printable(str(self.path)), shown)  # fmt: skip
                    return None
        except (OSError, ValueError) as error:
            raise SourceError(f"{printable(str(self.path))}: {printable(str(error))}") from None
        return None

    def _named_classes(self) -> Iterator[tuple[str, tuple[str, ...] | None, bool]]:
        """What may name the classes: what it is for messages, the names, and whether it surely means classes."""
        if self._choice.classes is not None:
            file, info = self._choice.classes
            if not 0 < info.shape[0] <= _MAX_CLASSES:
                return
            texts = list(chain.from_iterable(self._texts(Chosen(file, info))))
            yield info.shown, tuple(texts) if all(texts) and len({*texts}) == len(texts) else None, True
            return
        for part in self._choice.parts:
            for role in ("label", "image"):
                if (chosen := part.columns.get(role)) is None or "label" not in part.columns:
                    continue
                place: str | None = chosen.info.name
                while place is not None:
                    found = self._blocks.file(chosen.file).attributes(place)
                    for name, value in found.items():
                        shown = printable(f"the attribute {name} of {place or 'the file'}")
                        names = parse_names(value)
                        is_certain = names is not None and (name != "names" or place == part.columns["label"].info.name)
                        yield shown, names, is_certain
                    place = place.rpartition("/")[0] if place else None

    def _texts(self, chosen: Chosen) -> Iterator[list[str]]:
        """All texts of an array, some at a time. Raises :class:`OSError` and :class:`ValueError`."""
        file, info = self._blocks.file(chosen.file), chosen.info
        for start in range(0, info.shape[0], _TEXTS):
            yield [_decoded(text) for text in file.read(info.name, 0, start, min(start + _TEXTS, info.shape[0]))]

    @cached_property
    def _label_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._text_classes or ())}

    def _labels(self, part: Part) -> NDArray[Any]:
        chosen = part.columns.get("label")
        if chosen is None or not chosen.length:
            return np.zeros(0, np.int64)
        return self._blocks.file(chosen.file).read(chosen.info.name, 0, 0, chosen.length)


def _decoded(text: Any) -> str:
    return text.decode("utf-8") if isinstance(text, bytes) else str(text)


_OTHER_DATA = (".h5", ".hdf5", ".npz", ".npy", ".mdb", ".tar", ".zip", ".parquet", ".arrow", ".tfrecord", ".mds")
_MASK_DTYPES = {"bool": "uint8", "uint8": "uint8", "int8": "int32", "uint16": "uint16", "int16": "int32"}


def recognise_arrays(open: Callable[[Path, SourceOptions], Source], path: Path, options: SourceOptions) -> Certainty:
    """Opens the source to see whether its arrays are clear. Raises what opening it raises: no other kind reads it."""
    open(path, options).close()
    return Certainty.CERTAIN


def _split_folders(path: Path) -> list[Path]:
    return sorted(folder for folder in visible_paths(path) if folder.name.lower() in SPLIT_ORDER and folder.is_dir())


def _optional(field: Field) -> Field:
    if isinstance(field, Image):
        return field
    return replace(field, optional=True)


def _begins_like_files(data: bytes) -> bool:
    return data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"))


def _whole(value: Any) -> int:
    """A class number. Raises :class:`ValueError` for a fraction, or more than one number."""
    array = np.asarray(value)
    if array.size != 1:
        raise ValueError(f"label: found {array.size} numbers, expected one")
    number = array.reshape(-1)[0].item()
    if number != int(number):
        raise ValueError(f"label: found {number}, expected a whole number")
    return int(number)


def _mode_of(chosen: Chosen) -> Mode:
    """The mode of an array of images; of 64 bits that of 32, which holds them or not."""
    channels = chosen.info.shape[chosen.order[2]] if len(chosen.order) == 3 else 1
    return mode_of(channels, _PIXEL_DTYPES.get(chosen.info.dtype.name, "uint8"))


_PIXEL_DTYPES = {
    "bool": "uint8",
    "uint8": "uint8",
    "int8": "int16",
    "uint16": "uint16",
    "int16": "int16",
    **dict.fromkeys(("int32", "uint32", "int64", "uint64"), "int32"),
    **dict.fromkeys(("float16", "float32", "float64"), "float32"),
}
"""The dtype of a mode by that of an array."""


def _as_pixels(pixels: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Values in a dtype. Raises :class:`ValueError` for those that it does not hold: they would have to be rounded."""
    if pixels.dtype == dtype:
        return pixels
    found = pixels.astype(dtype)
    if not np.array_equal(found, pixels, equal_nan=pixels.dtype.kind == "f"):
        raise ValueError(
            f"image: found {pixels.dtype} from {pixels.min()} to {pixels.max()}, which {dtype} does not hold: write "
            f"the array again as {dtype}"
        )
    return found
