"""The base of readers that wrap another reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ColumnData
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.urls import ShardPlace
from packstore.stores.base import Problem, Reader


class DelegatingReader(Reader):
    """Wraps a reader, which does everything but read images and check values. Subclasses read images.

    :meth:`spans` yields nothing, and :meth:`will_need` does nothing. :meth:`close` closes the wrapped reader.
    """

    def __init__(self, reader: Reader, manifest: Manifest | None = None) -> None:
        """``manifest`` describes the wrapped store as this reader presents it. None takes that of ``reader``."""
        super().__init__(reader.path, reader.manifest if manifest is None else manifest)
        self._reader = reader
        self.nbytes = reader.nbytes
        self.can_refetch = reader.can_refetch

    def column(self, name: str) -> ColumnData:
        return self._reader.column(name)

    def value(self, name: str, index: int) -> Any:
        return self._reader.value(name, index)

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        return self._reader.values(name, records)

    def key(self, index: int) -> str:
        return self._reader.key(index)

    def part(self, number: int) -> Reader:
        """Returns the wrapped reader's reader of a file, without the checks or conversions of this reader."""
        return self._reader.part(number)

    @property
    def part_starts(self) -> NDArray[np.int64]:
        return self._reader.part_starts

    def part_places(self) -> list[ShardPlace]:
        return self._reader.part_places()

    def parts_are_local(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        return self._reader.parts_are_local(numbers)

    def mark_suspect(self, index: int) -> None:
        self._reader.mark_suspect(index)

    def check_files(self) -> None:
        self._reader.check_files()

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        return self._reader.check_structure(quick=quick, progress=progress)

    def disk_bytes(self) -> int:
        return self._reader.disk_bytes()

    def close(self) -> None:
        self._reader.close()
