"""MATLAB files: images ``H x W x N`` or ``H x W x C x N``, or flat in a matrix, and their labels.

Files of version 7.3 are HDF5. Cells, structs and texts are left out, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.sources.arrays.source import ArraySource, recognise_arrays
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.named.mat import check_adler32, find_arrays, open_array
from packstore.sources.refusals import first_bytes

_MAGIC = b"MATLAB 5.0"


class MatSource(ArraySource):
    """Samples of ``.mat`` files of versions 5 to 7. Opening reads all compressed arrays, to verify their checksums;
    others have none."""

    kind = "mat"
    suffixes = (".mat",)
    files_name = "MATLAB files"

    @classmethod
    def open_file(cls, path: Path, folder: Path) -> OpenArrays:
        """Opens a ``.mat`` file, and verifies its compressed arrays. Ignores ``folder``. Raises :class:`SourceError`
        for damage, and for another format."""
        return _OpenMat(path)


class _OpenMat(OpenArrays):
    """Open ``.mat`` file, whose vectors have one axis, as labels need. Opening verifies the checksums of compressed
    arrays, and raises :class:`SourceError` for damage, and for another format."""

    def __init__(self, path: Path) -> None:
        shown = printable(str(path))
        if first_bytes(path, len(_MAGIC)) != _MAGIC:
            raise SourceError(f"{shown} is no MATLAB file of versions 5 to 7; save it again with -v7")
        self._arrays = find_arrays(path)
        for array in self._arrays.values():  # before any is opened
            check_adler32(shown, path, array)
        self._readers = {name: open_array(path, array) for name, array in self._arrays.items()}

    def list_arrays(self) -> Sequence[ArrayInfo]:
        """Describes all arrays of numbers; vectors have one axis."""
        arrays = self._arrays.items()
        return [
            ArrayInfo("", name, _flatten_vector_shape(array.shape), array.dtype, by_columns=True)
            for name, array in arrays
        ]

    def read_rows(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows ``start`` to ``stop`` along ``axis``; the result has the array's axes in their order. Raises
        :class:`ValueError` for damage."""
        array = self._arrays[name]
        shape = _flatten_vector_shape(array.shape)
        size, inner, outer = array.dtype.itemsize, math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        read, _ = self._readers[name]
        step, rows = inner * shape[axis] * size, (stop - start) * inner * size
        parts = [read(rows, array.offset + n * step + start * inner * size) for n in range(outer)]
        values = np.frombuffer(b"".join(parts), array.dtype)
        return values.reshape((*shape[:axis], stop - start, *shape[axis + 1 :]), order="F")

    def close(self) -> None:
        """Closes all arrays. Idempotent."""
        for _, close in self._readers.values():
            close()
        self._readers = {}


def _flatten_vector_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a vector with one axis, and any other shape unchanged."""
    return (math.prod(shape),) if len(shape) == 2 and min(shape) == 1 else shape


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Returns ``CERTAIN`` for a MATLAB file by its first bytes, and for a folder of such files alone. Else returns
    ``NO``. Opens the arrays before it returns ``CERTAIN``, and raises the errors of opening."""
    if path.is_dir():
        files = MatSource.find_files(path) if MatSource.recognise_folder(path) is Certainty.CERTAIN else []
        if not files or any(first_bytes(file, len(_MAGIC)) != _MAGIC for file in files):
            return Certainty.NO
    elif first_bytes(path, len(_MAGIC)) != _MAGIC:
        return Certainty.NO
    return recognise_arrays(MatSource, path, options)


KIND = Kind(MatSource.kind, "MATLAB files with arrays of images", _recognise, MatSource, takes_arrays=True)
