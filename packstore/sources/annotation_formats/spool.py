"""Keeps values in a temporary file, to be read by number: annotations that are too large for memory."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Iterable
from typing import Any

from packstore.sources.archives.index import OpenFile


class Spool:
    """List of values, written as JSON to a temporary file and read back by number. Takes 8 bytes of memory for each
    value. Making one writes all values, and raises :class:`OSError` if that fails."""

    def __init__(self, values: Iterable[Any]) -> None:
        """Writes all values. Raises :class:`OSError` if the file cannot be written."""
        self._ends = array("q", [0])
        end = 0
        with tempfile.TemporaryFile() as file:
            for value in values:
                end += file.write(json.dumps(value, separators=(",", ":")).encode("ascii"))
                self._ends.append(end)
            file.flush()
            self._file: OpenFile | None = OpenFile(os.dup(file.fileno()))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def value_size(self, number: int) -> int:
        """Returns the size of a value in the file, in bytes."""
        return self._ends[number + 1] - self._ends[number]

    def read_value(self, number: int) -> Any:
        """Reads a value by its number. Thread-safe. Raises :class:`ValueError` after :meth:`close`."""
        if self._file is None:
            raise ValueError("its source is closed")
        return json.loads(self._file.read(self.value_size(number), self._ends[number]))

    def close(self) -> None:
        """Removes the temporary file. Idempotent."""
        self._file = None
