"""SVHN, cropped digits (http://ufldl.stanford.edu/housenumbers/): ``train_32x32.mat``, ``test_32x32.mat``, ``extra``.

Pixels lie column by column, image after image; the label 10 is the digit 0, and 0 here, as in torchvision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.named.mat import MatArray, check_array, find_arrays, open_array
from packstore.sources.named.pixels import PixelPart, PixelSource, Read, from_one
from packstore.sources.refusals import first_bytes

_SPLITS = ("train", "test", "extra")
_SIDE = 32
_MAX_LABELS = 1 << 28


class SvhnSource(PixelSource):
    """One of the files, or the folder that holds some of them."""

    kind = "svhn"
    by_columns = True
    side = _SIDE

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._files = _find(path)
        if not self._files:
            raise SourceError(f"{printable(str(path))} is not SVHN, which is train_32x32.mat, test_32x32.mat …")
        self.evidence = ", ".join(file.name for file in self._files.values())
        self._arrays: dict[Path, MatArray] = {}

    def classes(self) -> tuple[str, ...]:
        """The digits."""
        return tuple(map(str, range(10)))

    def parts(self) -> list[PixelPart]:
        found = []
        for split, file in self._files.items():
            arrays, shown = find_arrays(file), printable(str(file))
            images, labels = arrays.get("X"), arrays.get("y")
            if images is None or labels is None or images.dtype != np.uint8 or images.shape[:3] != (_SIDE, _SIDE, 3):
                raise SourceError(f"{shown} has no uint8 array X of {_SIDE} x {_SIDE} x 3 x n, or no array y")
            for array in (images, labels):
                check_array(shown, file, array)
            length = images.shape[3] if len(images.shape) == 4 else 1
            numbers = from_one(shown, _numbers(shown, file, labels), length, 10) + 1
            self._arrays[file] = images
            found.append(PixelPart(split, file, length, images.place, numbers % 10))
        return found

    def reader(self, file: Path) -> tuple[Read, Callable[[], None]]:
        return open_array(file, self._arrays[file])

    def files(self) -> Iterator[Path]:
        yield from self._files.values()


def _numbers(shown: str, file: Path, array: MatArray) -> NDArray[np.int64]:
    """All numbers of an array. Raises :class:`SourceError`."""
    size = int(np.prod(array.shape)) * array.dtype.itemsize
    if size > _MAX_LABELS:
        raise SourceError(f"{shown} has labels of {size:,} bytes, which is no SVHN")
    read, close = open_array(file, array)
    try:
        raw = np.frombuffer(read(size, array.place), array.dtype)
    except (OSError, ValueError) as error:
        raise SourceError(f"{shown} cannot be read: {printable(str(error))}") from None
    finally:
        close()
    labels = raw.astype(np.int64)
    if not np.array_equal(labels, raw):
        raise SourceError(f"{shown} has labels that are not whole numbers")
    return labels


def _find(path: Path) -> dict[str, Path]:
    """The files by split. Raises :class:`OSError`."""
    if not path.is_dir():
        split = path.name.removesuffix("_32x32.mat")
        return {split: path} if split in _SPLITS and first_bytes(path, 6) == b"MATLAB" else {}
    found = {split: path / f"{split}_32x32.mat" for split in _SPLITS}
    return {split: file for split, file in found.items() if first_bytes(file, 6) == b"MATLAB"}


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    return Certainty.CERTAIN if _find(path) else Certainty.NO


KIND = Kind("svhn", "SVHN, cropped digits, as published", _recognise, SvhnSource)
