"""Downsampled ImageNet (https://image-net.org/download-images.php, "ImageNet32"): 8, 16, 32 or 64 pixels a side.

``train_data_batch_1`` to ``10`` and ``val_data``, each a pickle, or an ``.npz`` of that name, of ``data``, ``labels``
and ``mean``. Labels begin at 1 in the files and at 0 here: the devkit's order of classes and not that of sorted wnids;
their wnids come from ``map_clsloc.txt`` where it is there. Pickles are read without being run, and their pixels stay in
the file.
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
from packstore.sources.cifar.pickles import BatchError, Span, array_of, data_of, mapping_of
from packstore.sources.listing import list_folders
from packstore.sources.named.pixels import PixelPart, PixelSource, Read, from_one
from packstore.sources.named.tables import Table
from packstore.sources.refusals import first_bytes

_BATCHES = tuple(f"train_data_batch_{number}" for number in range(1, 11))
_VAL = "val_data"
_FOLDER = re.compile(r"imagenet(8|16|32|64)_(train|val)(_npz)?", re.IGNORECASE)
_NAMES = "map_clsloc.txt"
_CLASSES = 1000
_LARGE = 1 << 16
"""Bytes of a pickle that are taken out of it at once, at most; more than that are pixels."""


class _Batch(NamedTuple):
    split: str
    file: Path


class ImageNet32Source(PixelSource):
    """The batches in a folder, or in its folders ``Imagenet32_train`` and ``Imagenet32_val``."""

    kind = "imagenet32"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._batches, missing = _find(path)
        if not self._batches:
            raise SourceError(f"{printable(str(path))} is not downsampled ImageNet: it has no {_BATCHES[0]} or {_VAL}")
        if missing:
            raise _incomplete(path, missing)
        self.evidence = f"{self._batches[0].file.name}" + (
            f" and {len(self._batches) - 1} more" if len(self._batches) > 1 else ""
        )
        self.normalization = "imagenet"

    def classes(self) -> tuple[str, ...] | None:
        """The wnids in ``map_clsloc.txt``, by the number that is there."""
        file = self.path / _NAMES
        if not file.is_file():
            return None
        table = Table(printable(str(file)), first_bytes(file, 1 << 20))
        found = {}
        for line in table:
            if len(line) < 2:
                table.refuse(line, "a wnid and a number")
            found[table.whole(line[1], "a wnid and a number", line)] = line[0]
        if sorted(found) != list(range(1, len(found) + 1)) or len(set(found.values())) != len(found):
            raise SourceError(f"{table.name} does not number its classes from 1 on")
        return tuple(found[number] for number in range(1, len(found) + 1))

    def parts(self) -> list[PixelPart]:
        found, sides = [], set()
        names = self.classes()
        for split, file in self._batches:
            shown = printable(str(file))
            try:
                place, shape, labels = _npz(file) if file.suffix == ".npz" else _pickle(file)
            except (BatchError, OSError, ValueError) as error:
                raise SourceError(f"{shown}: {printable(str(error))}") from None
            side = math.isqrt(shape[1] // 3) if len(shape) == 2 else 0
            if 3 * side * side != shape[-1] or not side:
                raise SourceError(f"{shown} has data of the shape {shape}, expected (images, 3 x side x side)")
            sides.add(side)
            labels = from_one(shown, labels, shape[0], len(names or ()) or _CLASSES)
            found.append(PixelPart(split, file, shape[0], place, labels))
        if len(sides) != 1:
            raise SourceError(f"{printable(str(self.path))} holds images of {sorted(sides)} pixels: give one folder")
        self.side = sides.pop()
        return found

    def reader(self, file: Path) -> tuple[Read, Callable[[], None]]:
        if file.suffix == ".npz":
            arrays = NpzSource.open_file(file, file.parent)
            return lambda size, place: _of_npz(arrays, size, place, 3 * self.side**2), arrays.close
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        return lambda size, place: read_at(descriptor, size, place), lambda: os.close(descriptor)

    def files(self) -> Iterator[Path]:
        yield from (batch.file for batch in self._batches)
        if (self.path / _NAMES).is_file():
            yield self.path / _NAMES


def _of_npz(arrays: Any, size: int, place: int, row: int) -> bytes:
    found: NDArray[np.uint8] = arrays.read("data", 0, place // row, (place + size) // row)
    return found.tobytes()


def _npz(file: Path) -> tuple[int, tuple[int, ...], NDArray[np.int64]]:
    """Where pixels begin, the shape of their array, and the labels."""
    arrays = NpzSource.open_file(file, file.parent)
    try:
        infos = {info.name: info for info in arrays.infos()}
        data, labels = infos.get("data"), infos.get("labels")
        if data is None or labels is None or data.dtype != np.uint8 or len(labels.shape) != 1:
            raise BatchError("it has no uint8 array data, or no labels")
        raw = arrays.read("labels", 0, 0, labels.shape[0])
    finally:
        arrays.close()
    return 0, data.shape, raw.astype(np.int64)


class _Program(mmap.mmap):
    """A pickle on disk, out of which nothing large is taken."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and key.stop - key.start > _LARGE:
            return Span(key.start, key.stop)
        return super().__getitem__(key)


def _pickle(file: Path) -> tuple[int, tuple[int, ...], NDArray[np.int64]]:
    """Where pixels begin, the shape of their array, and the labels."""
    with file.open("rb") as opened, _Program(opened.fileno(), 0, access=mmap.ACCESS_READ) as program:
        found = mapping_of(cast(bytes, program))
        data, shape, dtype = data_of(found.get("data"))
        if dtype != np.uint8 or not isinstance(data, (Span, bytes)):
            raise BatchError(f"data of {dtype}, expected uint8")
        place = data.start if isinstance(data, Span) else program.find(data)
        if place < 0:
            raise BatchError("its pixels do not lie in it as they are: write it again with Python 3")
        return place, shape, array_of(found.get("labels")).astype(np.int64)


def _find(path: Path) -> tuple[list[_Batch], list[str]]:
    """The batches at ``path`` in order, and what is missing among them. Raises :class:`OSError`."""
    if not path.is_dir():
        return [], []
    there: dict[str, Path] = {}
    for folder in [path, *(each for each in list_folders(path) if _FOLDER.fullmatch(each.name))]:
        for name in (*_BATCHES, _VAL):
            for file in (folder / name, folder / f"{name}.npz"):
                if name not in there and file.is_file():
                    there[name] = file
    missing = [name for name in _BATCHES if name not in there] if _BATCHES[0] in there else []
    found = [name for name in (*_BATCHES, _VAL) if name in there]
    return [_Batch("val" if name == _VAL else "train", there[name]) for name in found], missing


def _incomplete(path: Path, missing: list[str]) -> AmbiguousSourceError:
    return AmbiguousSourceError(
        f"{printable(str(path))} looks like downsampled ImageNet ({_BATCHES[0]}), without {', '.join(missing)}: "
        "download it again"
    )


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """By names, and first bytes: of a pickle of protocol 2 to 5, or of an npz."""
    try:
        batches, missing = _find(path)
    except OSError:
        return Certainty.NO  # the general kinds say why it cannot be listed
    if not batches or any(not first_bytes(batch.file, 4).startswith((b"\x80", b"PK\x03\x04")) for batch in batches):
        return Certainty.NO
    if missing:
        raise _incomplete(path, missing)
    return Certainty.CERTAIN


KIND = Kind("imagenet32", "downsampled ImageNet (32 x 32, 64 x 64 …) as published", _recognise, ImageNet32Source)
