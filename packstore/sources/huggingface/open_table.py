"""Contract of an open table: rows in groups, which are row groups of Parquet or record batches of Arrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import error_line, printable
from packstore.images.sniff import IS_LFS_POINTER, LFS_POINTER
from packstore.sources.huggingface.arrow_types import load_pyarrow
from packstore.sources.refusals import first_bytes
from packstore.stores.link_files import Location

STEP_BYTES = 16 << 20
"""About the bytes of a group that are decoded at a time."""


class RowGroup(NamedTuple):
    """Group of rows in a table.

    Attributes:
        rows: Number of rows.
        nbytes: Uncompressed bytes of each column, by name.
    """

    rows: int
    nbytes: Mapping[str, int]


@dataclass(slots=True)
class TableOverview:
    """Summary of a table from its metadata, or from a pass over it.

    Attributes:
        schema: Its Arrow schema.
        groups: Its groups, in order.
        optional: Columns that may have rows without a value.
        negative: Columns of integers that may be below 0.
        with_paths: Columns of files that may have paths.
    """

    schema: Any
    groups: list[RowGroup] = field(default_factory=list)
    optional: set[str] = field(default_factory=set)
    negative: set[str] = field(default_factory=set)
    with_paths: set[str] = field(default_factory=set)


class OpenTable(ABC):
    """An open table, for one thread. Its methods raise the exceptions in :func:`pyarrow_errors`."""

    @abstractmethod
    def read_overview(self) -> TableOverview:
        """Summarises the table from its metadata, or by reading all rows."""

    @abstractmethod
    def read_group(self, group: int, rows: int | None = None) -> Iterator[Any]:
        """Yields the record batches of a group in order. Batches have ``rows`` rows if the format allows. The first
        rows then cost less than the group."""

    @abstractmethod
    def read_column(self, name: str) -> Iterator[Any]:
        """Yields the arrays of one column, in order."""

    def require_readable(self) -> None:
        """Raises :class:`ValueError` if its rows cannot be read safely any more. The base never raises.

        Called before each row, maybe after :meth:`close`.
        """
        return

    def locate(self, address: int) -> Location | None:
        """Converts an address in memory to a place in the file. Returns None if the file is not mapped there; the
        base always does."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Closes its file. Arrays that were read stay valid."""


def pyarrow_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that pyarrow raises for files that are damaged, or gone."""
    return (
        OSError,
        ValueError,
        KeyError,
        NotImplementedError,
        MemoryError,
        OverflowError,
        load_pyarrow().ArrowException,
    )


def unreadable_message(path: Path, error: Exception) -> str:
    """Returns the message for a file that could not be read. It says so if the file is a pointer of Git LFS."""
    if first_bytes(path, len(LFS_POINTER)) == LFS_POINTER:
        return f"{printable(str(path))} {IS_LFS_POINTER}"
    text = error_line(error)
    return text if text.startswith(printable(str(path))) else f"{printable(str(path))} cannot be read: {text}"
