"""Downsampled ImageNet (https://image-net.org/download-images.php, "ImageNet32"): 8, 16, 32 or 64 pixels a side.

``train_data_batch_1`` to ``10`` and ``val_data``, each a pickle, or an ``.npz`` of that name, of ``data``, ``labels``
and ``mean``. Labels begin at 1 in the files and at 0 here, in the devkit's order of classes, not that of sorted wnids.
The wnids are known if ``map_clsloc.txt`` exists. Pickles are parsed, never executed; their pixels stay in the file.
"""

from __future__ import annotations

import math
import mmap
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
from packstore.sources.arrays.npz import NpzSource
from packstore.sources.arrays.stored import read_at
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.cifar.pickles import BatchError, Span, build_array, find_array_bytes, parse_dict
from packstore.sources.listing import list_folders
from packstore.sources.named.pixels import PixelFile, PixelSource, ReadRange, renumber_from_zero
from packstore.sources.named.text_table import TextTable
from packstore.sources.refusals import first_bytes

_BATCHES = tuple(f"train_data_batch_{number}" for number in range(1, 11))
_VAL = "val_data"
_FOLDER = re.compile(r"imagenet(8|16|32|64)_(train|val)(_npz)?", re.IGNORECASE)
_NAMES = "map_clsloc.txt"
_CLASSES = 1000
_MAX_COPY = 1 << 16
"""Largest part of a pickle that is copied out of it; larger parts are pixels."""


class _BatchFile(NamedTuple):
    """Split and file of a batch."""

    split: str
    file: Path


class ImageNet32Source(PixelSource):
    """Source of downsampled ImageNet: the batches in a folder, or in its folders ``Imagenet32_train`` and
    ``Imagenet32_val``.

    Opening raises :class:`SourceError` for a path without batches. It raises :class:`AmbiguousSourceError` if only some
    of the ten training batches exist. Reading the batches raises :class:`SourceError` if their images differ in size.
    """

    kind = "imagenet32"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._batches, missing = _find_batches(path)
        if not self._batches:
            raise SourceError(f"{printable(str(path))} is not downsampled ImageNet: it has no {_BATCHES[0]} or {_VAL}")
        if missing:
            raise _incomplete_error(path, missing)
        self.evidence = f"{self._batches[0].file.name}" + (
            f" and {len(self._batches) - 1} more" if len(self._batches) > 1 else ""
        )
        self.normalization = "imagenet"

    def read_class_names(self) -> tuple[str, ...] | None:
        """Returns the wnids in ``map_clsloc.txt`` in the order of their numbers; None without that file. Reads its
        first MiB.

        Raises :class:`SourceError` if the numbers are not 1, 2, 3 …, or a wnid occurs twice.
        """
        file = self.path / _NAMES
        if not file.is_file():
            return None
        table = TextTable(printable(str(file)), first_bytes(file, 1 << 20))
        wnids = {}
        for line in table:
            if len(line) < 2:
                table.refuse_line(line, "a wnid and a number")
            wnids[table.parse_int(line[1], "a wnid and a number", line)] = line[0]
        if sorted(wnids) != list(range(1, len(wnids) + 1)) or len(set(wnids.values())) != len(wnids):
            raise SourceError(f"{table.name} does not number its classes from 1 on")
        return tuple(wnids[number] for number in range(1, len(wnids) + 1))

    def read_pixel_files(self) -> list[PixelFile]:
        """Reads labels and positions of pixels of all batches. Sets :attr:`side`; labels begin at 0.

        Raises :class:`SourceError` for a damaged batch, a label that is no class, and images of different sizes.
        """
        files, sides = [], set()
        names = self.read_class_names()
        for split, file in self._batches:
            shown = printable(str(file))
            try:
                offset, shape, labels = _locate_in_npz(file) if file.suffix == ".npz" else _locate_in_pickle(file)
            except (BatchError, OSError, ValueError) as error:
                raise SourceError(f"{shown}: {printable(str(error))}") from None
            side = math.isqrt(shape[1] // 3) if len(shape) == 2 else 0
            if 3 * side * side != shape[-1] or not side:
                raise SourceError(f"{shown} has data of the shape {shape}, expected (images, 3 x side x side)")
            sides.add(side)
            labels = renumber_from_zero(shown, labels, shape[0], len(names or ()) or _CLASSES)
            files.append(PixelFile(split, file, shape[0], offset, labels))
        if len(sides) != 1:
            raise SourceError(f"{printable(str(self.path))} holds images of {sorted(sides)} pixels: give one folder")
        self.side = sides.pop()
        return files

    def open_reader(self, file: Path) -> tuple[ReadRange, Callable[[], None]]:
        """Opens a batch file, a pickle or an ``.npz``.

        Returns a function that reads bytes of its pixels, and a function that closes the file.
        """
        if file.suffix == ".npz":
            arrays = NpzSource.open_file(file, file.parent)
            return lambda size, offset: _read_npz(arrays, size, offset, 3 * self.side**2), arrays.close
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        return lambda size, offset: read_at(descriptor, size, offset), lambda: os.close(descriptor)

    def files(self) -> Iterator[Path]:
        """Yields the batches, and ``map_clsloc.txt`` if it exists."""
        yield from (batch.file for batch in self._batches)
        if (self.path / _NAMES).is_file():
            yield self.path / _NAMES


def _read_npz(arrays: Any, size: int, offset: int, row: int) -> bytes:
    """Reads a range of the pixels' bytes from an ``.npz``. The range begins and ends with a row of ``row`` bytes; other
    bounds are rounded down to rows."""
    rows: NDArray[np.uint8] = arrays.read_rows("data", 0, offset // row, (offset + size) // row)
    return rows.tobytes()


def _locate_in_npz(file: Path) -> tuple[int, tuple[int, ...], NDArray[np.int64]]:
    """Returns offset 0, the shape of the array of pixels, and the labels.

    Raises :class:`BatchError` if ``data`` is missing or not uint8. Raises it also if ``labels`` is missing or not
    one-dimensional.
    """
    arrays = NpzSource.open_file(file, file.parent)
    try:
        infos = {info.name: info for info in arrays.list_arrays()}
        data, labels = infos.get("data"), infos.get("labels")
        if data is None or labels is None or data.dtype != np.uint8 or len(labels.shape) != 1:
            raise BatchError("it has no uint8 array data, or no labels")
        raw = arrays.read_rows("labels", 0, 0, labels.shape[0])
    finally:
        arrays.close()
    return 0, data.shape, raw.astype(np.int64)


class _MappedPickle(mmap.mmap):
    """Memory-mapped pickle. A slice of more than 64 KiB is not copied: it becomes a :class:`Span`, its place in the
    file."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and key.stop - key.start > _MAX_COPY:
            return Span(key.start, key.stop)
        return super().__getitem__(key)


def _locate_in_pickle(file: Path) -> tuple[int, tuple[int, ...], NDArray[np.int64]]:
    """Returns the offset of the pixels in the file, the shape of their array, and the labels.

    Raises :class:`BatchError` for other dtypes, and for pixels that the pickle has as text.
    """
    with file.open("rb") as opened, _MappedPickle(opened.fileno(), 0, access=mmap.ACCESS_READ) as program:
        batch = parse_dict(cast(bytes, program))
        data, shape, dtype = find_array_bytes(batch.get("data"))
        if dtype != np.uint8 or not isinstance(data, (Span, bytes)):
            raise BatchError(f"data of {dtype}, expected uint8")
        offset = data.start if isinstance(data, Span) else program.find(data)
        if offset < 0:
            raise BatchError("its pixels are not plain bytes of the file: write it again with Python 3")
        return offset, shape, build_array(batch.get("labels")).astype(np.int64)


def _find_batches(path: Path) -> tuple[list[_BatchFile], list[str]]:
    """Finds the batches at ``path``, in order. Prefers a pickle to an ``.npz``.

    Returns the batches, and the names of missing training batches; without any training batch, none is missing. Raises
    :class:`OSError` if the folder cannot be listed.
    """
    if not path.is_dir():
        return [], []
    there: dict[str, Path] = {}
    for folder in [path, *(each for each in list_folders(path) if _FOLDER.fullmatch(each.name))]:
        for name in (*_BATCHES, _VAL):
            for file in (folder / name, folder / f"{name}.npz"):
                if name not in there and file.is_file():
                    there[name] = file
    missing = [name for name in _BATCHES if name not in there] if there.keys() & {*_BATCHES} else []
    names = [name for name in (*_BATCHES, _VAL) if name in there]
    return [_BatchFile("val" if name == _VAL else "train", there[name]) for name in names], missing


def _incomplete_error(path: Path, missing: list[str]) -> AmbiguousSourceError:
    """Returns the error for missing training batches."""
    return AmbiguousSourceError(
        f"{printable(str(path))} looks like downsampled ImageNet, without {', '.join(missing)}: download it again"
    )


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises batches by their names and first bytes, those of a pickle or an ``.npz``. Raises
    :class:`AmbiguousSourceError` if only some training batches exist."""
    try:
        batches, missing = _find_batches(path)
    except OSError:
        return Certainty.NO  # the general kinds report the error
    if not batches or any(not first_bytes(batch.file, 4).startswith((b"\x80", b"PK\x03\x04")) for batch in batches):
        return Certainty.NO
    if missing:
        raise _incomplete_error(path, missing)
    return Certainty.CERTAIN


KIND = Kind("imagenet32", "downsampled ImageNet (32 x 32, 64 x 64 …) as published", _recognise, ImageNet32Source)
