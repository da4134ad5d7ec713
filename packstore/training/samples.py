"""Sequences for users of ``ImageFolder``: keys and samples, read from the store on access."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from packstore.stores import Reader

_T = TypeVar("_T")


class _LazySequence(Sequence[_T]):
    """Sequence over consecutive records that reads each value on access. A slice is a list. ``repr`` reads two
    values."""

    noun: ClassVar[str]

    def __init__(self, reader: Reader, start: int, length: int) -> None:
        self._reader, self._start, self._length = reader, start, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(self._length)[index]]
        return self._read_value(range(self._start, self._start + self._length)[index])

    @abstractmethod
    def _read_value(self, record: int) -> _T:
        """Reads the value of the store's record ``record``."""

    def __repr__(self) -> str:
        values = [f"{value!r:.80}" for value in self[:2]] + ["…"] * (self._length > 2)
        return f"<{self._length:,} {self.noun}: {', '.join(values)}>"


class LazyKeys(_LazySequence[str]):
    """Keys of consecutive records, read on access. Bytes that are not UTF-8 become surrogates."""

    noun = "keys"

    def _read_value(self, record: int) -> str:
        return bytes(self._reader.value("key", record)).decode("utf-8", "surrogateescape")


class LazySamples(_LazySequence[tuple[str, int]]):
    """Pairs ``(key, label)`` of consecutive records, read on access. Keys are as in :class:`LazyKeys`."""

    noun = "samples"

    def _read_value(self, record: int) -> tuple[str, int]:
        key = bytes(self._reader.value("key", record)).decode("utf-8", "surrogateescape")
        return key, int(self._reader.value("label", record))
