"""When images and tables are taken for a source of tables."""

from __future__ import annotations

from pathlib import Path

from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.column_options import parse_columns
from packstore.sources.contents import list_contents, suffix_of
from packstore.sources.table.finding import find_tables, has_unread_lists, part_copies
from packstore.sources.table.images import split_words, words_of_path
from packstore.sources.table.joining import join_tables
from packstore.sources.table.open_images import has_boxes
from packstore.sources.table.source import TableSource


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """A folder or archive with a table whose rows name most images there."""
    tree = open_tree(path)
    tables = [] if tree is None else find_tables(tree, parse_columns(options.columns), options.named)
    if tree is None or not tables:
        return Certainty.NO
    found = join_tables(tree, part_copies(tree, tables)[0])
    # Images of another split have no rows, as of a test set; more than that is a question. Lists without a header, and
    # several tables, are often a part of a set of many files, so they have to name all images.
    lists = any(suffix_of(table.file) in (".txt", ".lst") for table in found)
    whole = lists or len(found) > 1
    splits = {split for table in found for split in split_words(words_of_path(table.file))}
    folders = list_contents(tree).folders.values()
    others = sum(
        folder.images.count for folder in folders if whole or not split_words(words_of_path(folder.path)) - splits
    )
    named = sum(each.images for table in found for each in (table.naming, *table.further.values()))
    enough = named * (1 if whole else 2) >= others
    if options.named or options.columns or all(has_boxes(table.file) for table in found):
        return Certainty.CERTAIN
    return Certainty.CERTAIN if enough and not (lists and has_unread_lists(tree, found)) else Certainty.PARTIAL


KIND = Kind(
    "table",
    "images with a table that names them: CSV, TSV, JSON, Parquet or text lines",
    _recognise,
    TableSource,
    takes_boxes=True,
    takes_columns=True,
    in_objects=True,
)
