"""Recognises images with tables that name them."""

from __future__ import annotations

from pathlib import Path

from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.column_options import parse_columns
from packstore.sources.contents import list_contents, suffix_of
from packstore.sources.splits import find_meanings
from packstore.sources.table.finding import find_tables, has_unread_lists, separate_repeated_tables
from packstore.sources.table.joining import join_tables
from packstore.sources.table.open_images import is_open_images_boxes
from packstore.sources.table.source import TableSource


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder or archive with tables that name its images.

    - ``CERTAIN`` if the user named the kind or the columns, or if all tables are Open Images' boxes.
    - ``CERTAIN`` if the only table has a header and names at least half of the images. Images in folders of splits
      without a table do not count.
    - ``CERTAIN`` if several tables, or lists without a header, name all images.
    - ``PARTIAL`` if tables name fewer images.
    - ``PARTIAL`` if some lists of images would be read, and others not.
    - ``NO`` without a table.
    """
    tree = open_tree(path)
    tables = [] if tree is None else find_tables(tree, parse_columns(options.columns), options.named)
    if tree is None or not tables:
        return Certainty.NO
    groups = join_tables(tree, separate_repeated_tables(tree, tables)[0])
    # Images of another split, such as a test set, may have no rows; others raise a question. Lists without a header,
    # and several tables, are often a part of a dataset of many files, so they must name all images.
    lists = any(suffix_of(table.file) in (".txt", ".lst") for table in groups)
    whole = lists or len(groups) > 1
    splits = {split for table in groups for split in find_meanings(table.file)}
    folders = list_contents(tree).folders.values()
    others = sum(folder.images.count for folder in folders if whole or not find_meanings(folder.path) - splits)
    named = sum(each.images for table in groups for each in (table.naming, *table.further.values()))
    enough = named * (1 if whole else 2) >= others
    if options.named or options.columns or all(is_open_images_boxes(table.file) for table in groups):
        return Certainty.CERTAIN
    return Certainty.CERTAIN if enough and not (lists and has_unread_lists(tree, groups)) else Certainty.PARTIAL


KIND = Kind(
    "table",
    "images with a table that names them: CSV, TSV, JSON, Parquet or text lines",
    _recognise,
    TableSource,
    takes_boxes=True,
    takes_columns=True,
    in_objects=True,
)
