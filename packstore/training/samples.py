"""What users of ``ImageFolder`` look up, as sequences that read from the store what they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from numpy.typing import NDArray

from packstore.core.columns import Ragged

_T = TypeVar("_T")


class _Lazy(Sequence[_T]):
    def __init__(self, start: int, length: int) -> None:
        self._start, self._length = start, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(self._length)[index]]
        return self._of(range(self._start, self._start + self._length)[index])

    @abstractmethod
    def _of(self, record: int) -> _T:
        """The value of a record."""

    def __repr__(self) -> str:
        values = [f"{value!r:.80}" for value in self[:2]] + ["…"] * (self._length > 2)
        return f"<{self._length:,} {type(self).__name__.lower()}: {', '.join(values)}>"


class Keys(_Lazy[str]):
    """The keys of consecutive records."""

    def __init__(self, keys: Ragged, start: int, length: int) -> None:
        super().__init__(start, length)
        self._keys = keys

    def _of(self, record: int) -> str:
        return bytes(self._keys[record]).decode("utf-8", "surrogateescape")


class Samples(_Lazy[tuple[str, int]]):
    """``(key, label)`` of consecutive records."""

    def __init__(self, keys: Ragged, labels: NDArray[Any], start: int, length: int) -> None:
        super().__init__(start, length)
        self._keys = Keys(keys, 0, start + length)
        self._labels = labels

    def _of(self, record: int) -> tuple[str, int]:
        return self._keys[record], int(self._labels[record])
