"""Assigns the images of tables to splits."""

from __future__ import annotations

from collections.abc import Sequence

from packstore.core.errors import SourceError
from packstore.sources.splits import find_splits_of_folders, lower_known_split
from packstore.sources.table.finding import Table
from packstore.sources.table.image_rows import RowsByImage

_MAX_SPLITS = 100


def assign_splits(where: str, tables: Sequence[Table], rows: RowsByImage, column: str) -> tuple[list[str], bytearray]:
    """Assigns each image its split. Returns the names of the splits, and the number of each image's split.

    The column of splits decides. If its cell is blank, the path of the image's table decides. Without either, the
    images' own paths decide, if all of them name a split.

    Raises :class:`SourceError` for an image in two splits, and for more than 100 splits.

    Args:
        where: Name of the source, for messages.
        tables: The tables, in the order of ``rows.table_of``.
        rows: The rows of all tables.
        column: Name of the column of splits; empty for none.
    """
    of_tables = [table.split for table in tables]
    by_path = not column and not any(of_tables)
    folders = (rows.image_path(number).rpartition("/")[0] for number in range(rows.image_count))
    own = list(folders) if by_path else []
    of_folders = find_splits_of_folders(own)
    names: list[str] = []
    split_of = bytearray()
    for number in range(rows.image_count):
        split = of_tables[rows.table_of[number]]
        if column:
            values = {str(cells.get(column) or "") for cells in rows.cells_of(number)}
            split = lower_known_split(min(values)) or split
            if len(values) > 1:
                raise SourceError(f"{rows.rows_of(number)[-1][0]}: its image is in two splits")
        elif of_folders:
            split = of_folders[own[number]]
        if split not in names:
            names.append(split)
        if len(names) > _MAX_SPLITS:
            raise SourceError(f"{where}: more than {_MAX_SPLITS} splits in {column!r}")
        split_of.append(names.index(split))
    return names, split_of
