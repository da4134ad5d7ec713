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
from packstore.sources.named.mat import MatArray, check_adler32, find_arrays, open_array
from packstore.sources.named.pixels import PixelFile, PixelSource, ReadRange, renumber_from_zero
from packstore.sources.refusals import first_bytes

_SPLITS = ("train", "test", "extra")
_SIDE = 32
_MAX_LABEL_BYTES = 1 << 28


class SvhnSource(PixelSource):
    """Source of SVHN's cropped digits: one of the files, or a folder with some of them. The label 10 becomes 0.

    Leaves out files that do not begin as MAT files. Opening raises :class:`SourceError` for a path without any.
    """

    kind = "svhn"
    column_major = True
    side = _SIDE

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._files = _find_files(path)
        if not self._files:
            raise SourceError(
                f"{printable(str(path))} is not SVHN: expected train_32x32.mat, test_32x32.mat or extra_32x32.mat"
            )
        self.evidence = ", ".join(file.name for file in self._files.values())
        self._arrays: dict[Path, MatArray] = {}

    def read_class_names(self) -> tuple[str, ...]:
        """Returns the digits 0 to 9."""
        return tuple(map(str, range(10)))

    def read_pixel_files(self) -> list[PixelFile]:
        """Reads labels and positions of pixels of all files, and verifies checksums of compressed arrays. Label 10
        becomes 0.

        Raises :class:`SourceError` for damage, for labels other than 1 to 10, and for arrays of another shape or dtype.
        """
        files = []
        for split, file in self._files.items():
            arrays, shown = find_arrays(file), printable(str(file))
            images, labels = arrays.get("X"), arrays.get("y")
            if images is None or labels is None or images.dtype != np.uint8 or images.shape[:3] != (_SIDE, _SIDE, 3):
                raise SourceError(f"{shown} has no uint8 array X of {_SIDE} x {_SIDE} x 3 x n, or no array y")
            for array in (images, labels):
                check_adler32(shown, file, array)
            length = images.shape[3] if len(images.shape) == 4 else 1
            numbers = renumber_from_zero(shown, _read_labels(shown, file, labels), length, 10) + 1
            self._arrays[file] = images
            files.append(PixelFile(split, file, length, images.offset, numbers % 10))
        return files

    def open_reader(self, file: Path) -> tuple[ReadRange, Callable[[], None]]:
        """Opens a MAT file. Returns a function that reads bytes of the file's pixels, and a function that closes the
        file."""
        return open_array(file, self._arrays[file])

    def files(self) -> Iterator[Path]:
        """Yields the MAT files."""
        yield from self._files.values()


def _read_labels(shown: str, file: Path, array: MatArray) -> NDArray[np.int64]:
    """Reads the labels of a file as integers.

    Raises :class:`SourceError` if they cannot be read, are not whole, or have more than 256 MiB.
    """
    size = int(np.prod(array.shape)) * array.dtype.itemsize
    if size > _MAX_LABEL_BYTES:
        raise SourceError(f"{shown} has {size:,} bytes of labels, expected at most {_MAX_LABEL_BYTES:,}")
    read, close = open_array(file, array)
    try:
        raw = np.frombuffer(read(size, array.offset), array.dtype)
    except (OSError, ValueError) as error:
        raise SourceError(f"{shown} cannot be read: {printable(str(error))}") from None
    finally:
        close()
    labels = raw.astype(np.int64)
    if not np.array_equal(labels, raw):
        raise SourceError(f"{shown} has labels that are not whole numbers")
    return labels


def _find_files(path: Path) -> dict[str, Path]:
    """Finds the MAT file of each split that exists. ``path`` is one of them, or their folder.

    Skips files that do not begin as a MAT file. Raises :class:`SourceError` if a file cannot be read.
    """
    if not path.is_dir():
        split = path.name.removesuffix("_32x32.mat")
        return {split: path} if split in _SPLITS and first_bytes(path, 6) == b"MATLAB" else {}
    files = {split: path / f"{split}_32x32.mat" for split in _SPLITS}
    return {split: file for split, file in files.items() if first_bytes(file, 6) == b"MATLAB"}


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Returns ``CERTAIN`` if ``path`` is one of the MAT files, or a folder with one; else ``NO``. Raises
    :class:`SourceError` for a file that cannot be read."""
    return Certainty.CERTAIN if _find_files(path) else Certainty.NO


KIND = Kind("svhn", "SVHN, cropped digits, as published", _recognise, SvhnSource)
