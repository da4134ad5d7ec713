"""Finds the tables in a tree whose rows name its images, and joins those of the same images. Reads all rows of each
possible table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Field
from packstore.sources import huggingface as hf
from packstore.sources.annotations import holds_masks
from packstore.sources.beside import join
from packstore.sources.columns import FILE_COLUMNS
from packstore.sources.contents import list_contents, suffix_of
from packstore.sources.huggingface import ObjectColumn
from packstore.sources.ignoring import escape_pattern, ignore_paths
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.splits import find_split_of_file
from packstore.sources.table.images import ImageIndex, Naming
from packstore.sources.table.reading import (
    SUFFIXES,
    TEXT,
    TableRow,
    batch_rows,
    declare_parquet,
    name_columns,
    read_table,
)
from packstore.sources.tree import Tree
from packstore.sources.values import looks_like_mask

# Names of Kaggle's sample submissions: forms to fill in, whose values mean nothing.
_SAMPLE = re.compile(r".*sample[_ -]?submission.*|submission[_ -]?(sample|format).*", re.I)
_NO_TABLE = re.compile(r"(readme|licen[cs]e|requirements|notes?|class(es)?|labels?_?names?|obj)\b.*\.(txt|json)", re.I)
_FEW, _SEARCHED, _MAX_CLASSES = 16, 48, 1 << 16
_WORDS = re.compile(r"[^\W\d_][^\d.]*(\.\D+)?")
_IDS = re.compile(r".*(image|img|file|path|name|photo|picture|^id|_id|uuid).*", re.I)
_IMAGE_ID = re.compile(r"(image|img|file|photo|picture)[ _]?(id|name)?", re.I)


@dataclass(slots=True)
class Table:
    """Table, and how its rows name images.

    Attributes:
        file: Path in the tree.
        header: The first line names the columns.
        image: Column of the main image.
        columns: Names of all columns.
        naming: How the column of the main image names images.
        further: Other columns that name other images.
        split: Split that the path names; ``""`` for none.
        joined: Tables of the same images whose columns are added to its rows.
        declared: Fields of its columns, if the table states types.
        objects: Column of objects with boxes, whose members :meth:`rows` turns into columns.
        strip: Texts lose the white space around them.
    """

    file: str
    header: bool
    image: str
    columns: Sequence[str] = ()
    naming: Naming = field(default_factory=Naming)
    further: dict[str, Naming] = field(default_factory=dict)
    split: str = ""
    joined: tuple[Table, ...] = ()
    declared: Mapping[str, Field] = field(default_factory=dict)
    objects: ObjectColumn | None = None
    strip: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        """Path of the table, and those of the tables that are joined to it."""
        return (self.file, *(table.file for table in self.joined))

    @property
    def is_text(self) -> bool:
        """True if all cells are texts, and only a header names the columns."""
        return suffix_of(self.file) in TEXT

    @property
    def has_names(self) -> bool:
        """True if the columns have names."""
        return self.header or not self.is_text

    @property
    def form(self) -> tuple[str, str, bool, str]:
        """Folder, suffix, header and column of images, which tables of several splits share."""
        return self.file.rpartition("/")[0], suffix_of(self.file), self.header, self.image

    @property
    def own_columns(self) -> set[str]:
        """Columns besides that of the main image, with those of joined tables."""
        return {name for table in (self, *self.joined) for name in table.columns if name != table.image}

    def rows(self, tree: Tree) -> Iterator[TableRow]:
        """Yields all rows of the table's file, but not the header, nor rows of joined tables. Raises
        :class:`SourceError` for a malformed row."""
        rows = read_table(tree, self.file, self.header, strip=self.strip)
        return rows if self.objects is None else (row._replace(cells=self.objects.expand(row.cells)) for row in rows)

    def match_rows(self, tree: Tree, index: ImageIndex) -> Iterator[tuple[str | None, str, dict[str, Any]]]:
        """Yields the image that each row names, its place, and its other cells; those of further images are paths."""
        for block in batch_rows(self.rows(tree)):
            paths = {
                name: [*naming.find_paths(index, [row.cells.get(name) for row in block])]
                for name, naming in {self.image: self.naming, **self.further}.items()
            }
            for number, (place, cells) in enumerate(block):
                found = {name: its[number] for name, its in paths.items()}
                image = found.pop(self.image)
                further = {name: None if path is None else [path] for name, path in found.items()}
                yield image, place, {name: each for name, each in cells.items() if name != self.image} | further


class KindCounter:
    """Finds the column of objects with boxes by all values of a table."""

    def __init__(self) -> None:
        self._kinds: dict[str, hf.ValueKind | None] = {}

    def count_cells(self, cells: Mapping[str, Any]) -> None:
        """Merges the kinds of the values of a row with those so far."""
        for name, value in cells.items():
            if isinstance(value, (list, dict)):
                self._kinds[name] = hf.merge_kinds(self._kinds.get(name), hf.classify_value(value))

    def find_objects(self) -> ObjectColumn | None:
        """Returns the only column of objects with boxes; None for none or several, and for a column of boxes alone."""
        found = hf.find_object_column({name: kind for name, kind in self._kinds.items() if kind is not None})
        return found if found is not None and found.boxes else None


def list_possible_tables(tree: Tree, submissions: bool = False) -> list[str]:
    """Lists files with the suffix of a table. Leaves out names of other files, such as ``README.txt``. With
    ``submissions``, lists Kaggle's sample submissions instead: forms to fill in.

    Leaves out all files of a suffix in a folder that has more than 16 of them.
    """
    listed = [
        join(folder, name)
        for folder, contents in list_contents(tree).folders.items()
        for suffix in SUFFIXES
        if suffix in contents.others and contents.others[suffix].count <= _FEW
        for name in contents.others[suffix].first
        if not _NO_TABLE.fullmatch(name)
    ]
    return [file for file in listed if submissions is (_SAMPLE.fullmatch(file.rpartition("/")[2]) is not None)]


def find_tables(tree: Tree, given: Mapping[str, Sequence[str]], named: bool) -> list[Table]:
    """Finds the tables whose rows name images; none in a tree without images. Reads all possible tables whole.

    Args:
        tree: The tree of images and tables.
        given: Columns that the user names, by role. Only ``image`` is used.
        named: The user has named the kind of source; tables need not be certain then.

    Raises:
        AmbiguousSourceError: Several columns may name the main image, or several folders the images.
        SourceError: A table that names images is damaged.
    """
    files = list_possible_tables(tree)
    if not files:
        return []
    index = ImageIndex(tree)
    if not len(index):
        return []
    found = [table for file in files if (table := examine_table(tree, file, index, given, named)) is not None]
    lists = [] if named else [table for table in found if len(table.columns) < 2]
    splits = {table.split for table in lists if table.split}
    one_folder = sum(folder.images.count > 0 for folder in list_contents(tree).folders.values()) == 1
    if len(splits) > 1 and one_folder:
        return found
    return [table for table in found if table not in lists]  # folders may be classes, which a list does not tell


def name_splits_alike(tables: Sequence[Table]) -> list[str]:
    """Returns the split of each table. A table without one is named like its file if another table has the same
    folder, suffix and columns: ``quiz.lst`` beside ``train.lst`` is ``quiz``.
    """
    forms = [table.form for table in tables]
    return [
        table.split or (table.file.rpartition("/")[2].rpartition(".")[0].lower() if forms.count(form) > 1 else "")
        for table, form in zip(tables, forms, strict=True)
    ]


def examine_table(
    tree: Tree, file: str, index: ImageIndex, given: Mapping[str, Sequence[str]], named: bool
) -> Table | None:
    """Reads a table whole, and finds its columns that name images. See :func:`find_tables` for arguments and errors.

    Of more than 48 columns, searches only the first and the last 24. Returns None in these cases:

    - No column certainly names images in at least half of the rows.
    - The table has no rows, or lacks the user's column.
    - The table is a damaged text or JSON file that may be something else, and the user did not name the kind.
    """
    by_column: dict[str, tuple[Naming, Naming]] = {}  # by whole paths, and by names alone
    first: dict[str, Any] = {}
    columns: dict[str, None] = {}
    rows, kinds, is_text = 0, KindCounter(), suffix_of(file) in TEXT
    failure: SourceError | None = None
    try:
        for block in batch_rows(read_table(tree, file, header=False)):
            first = first or block[0].cells
            columns |= dict.fromkeys(name for row in block for name in row.cells)
            listed = [*columns]
            for name in dict.fromkeys([*listed[: _SEARCHED // 2], *listed[-_SEARCHED // 2 :]]):
                for way in by_column.setdefault(name, (Naming(), Naming(whole_path=False))):
                    way.count_values(index, (row.cells.get(name) for row in block))
            for row in block if not is_text else ():
                kinds.count_cells(row.cells)
            rows += len(block)
    except SourceError as error:
        failure = error
    # A path that does not exist does not mean an image of the same name elsewhere, if others exist.
    ways = {
        name: whole if 2 * whole.hits >= whole.rows or whole.hits == alone.hits else alone
        for name, (whole, alone) in by_column.items()
        if alone.hits
    }
    if not ways:
        return None
    if failure is not None:
        asked = isinstance(failure, AmbiguousSourceError) and any(2 * way.hits >= rows for way in ways.values())
        if suffix_of(file) in (".txt", ".json", ".lst") and not (named or asked):
            return None
        raise failure
    names = [*columns]
    header = is_text and _is_header(first, ways, index)
    if header:  # the first line names the columns, which had numbers so far
        names = name_columns([str(cell) for cell in first.values()])
        if len({*names}) < len(names) and not (named or any(name.lower() in FILE_COLUMNS for name in names)):
            return None  # of another format: DeepLabCut has three lines of names
        ways = {name: ways[number] for name, number in zip(names, first, strict=True) if number in ways}
    wanted = given.get("image", ())
    likely = {
        name: way
        for name, way in ways.items()
        if name in wanted or (2 * way.hits >= rows - header and _is_image_column(name, way))
    }
    if not likely or rows - header < 1 or (wanted and wanted[0] not in likely):
        return None
    main = wanted[0] if wanted else _find_main_column(tree, file, likely)
    for way in likely.values():
        rivals = way.rank_bases(file)
        photos = [folder for folder in rivals if not holds_masks(tree, folder)]
        if len(photos) == 1:
            way.bases = {photos[0]: 0} | way.bases
        elif rivals and way is likely[main]:
            shown = " or ".join(map(printable, rivals))
            raise AmbiguousSourceError(
                f"{tree.name(file)}: its column {printable(main)} could name the images in {shown}: leave one out with "
                "--ignore",
                [Answer(("--ignore", f"/{escape_pattern(folder)}/")) for folder in rivals],
            )
    further = {
        name: way
        for name, way in likely.items()
        if name != main and not way.by_stem and way.named != likely[main].named
    }
    declared = declare_parquet(tree, file, {}) if suffix_of(file) == ".parquet" else {}
    split = find_split_of_file(file)
    return Table(
        *(file, header, main, names, likely[main], further, split),
        declared=declared,
        objects=kinds.find_objects(),
    )


def _is_header(first: Mapping[str, Any], ways: Mapping[str, Naming], index: ImageIndex) -> bool:
    """Tells if the first line names the columns, by its cell in the column that names most images."""
    name = max(ways, key=lambda each: (len(ways[each].images), ways[each].hits))
    cell = str(first.get(name, ""))
    if cell.lower() in FILE_COLUMNS or not cell:
        return True
    names_image = next(ways[name].find_paths(index, [cell])) is not None or cell.lower().endswith(IMAGE_SUFFIXES)
    return not names_image and _WORDS.fullmatch(cell) is not None and re.search(r"[\\/]", cell) is None


def _is_image_column(name: str, way: Naming) -> bool:
    """Tells if a column names images, by its values and its name."""
    if not way.by_stem or _IMAGE_ID.fullmatch(name) is not None:
        return True
    images = len(way.images)
    # Numbers may equal names of images by chance, so two words are needed, or a column of ids.
    return images > 1 and ((way.words > 1 and images == way.hits) or _IDS.fullmatch(name) is not None)


def _find_main_column(tree: Tree, file: str, likely: Mapping[str, Naming]) -> str:
    """Finds the column of the main image among the ``likely`` columns, which name images."""
    # A table may have a row for each mask of an image.
    likely = {name: way for name, way in likely.items() if not looks_like_mask(name.lower())} or likely
    with_suffix = [name for name, way in likely.items() if not way.by_stem]
    usual = [name for name in likely if name.lower() in FILE_COLUMNS]
    if len(with_suffix) > 1 and not {*usual} & {*with_suffix}:
        shown = " or ".join(map(printable, with_suffix))
        raise AmbiguousSourceError(
            f"{tree.name(file)}: the main image could be in column {shown}: say which with --column image=COL",
            [Answer(("--column", f"image={name}")) for name in with_suffix],
        )

    def score(name: str) -> tuple[bool, int, bool, bool]:
        is_usual, has_suffix = name in usual, name in with_suffix
        return is_usual and has_suffix, len(likely[name].images), has_suffix, is_usual

    return max(likely, key=score)


def join_tables(tables: Sequence[Table]) -> list[Table]:
    """Joins each table with one row per image to the first earlier table of the same images and other columns. Returns
    the tables that were not joined; their :attr:`Table.joined` has the tables that were joined to them."""
    groups: list[Table] = []
    for table in tables:
        place = next((n for n, each in enumerate(groups) if _can_join(each, table)), None)
        if place is None:
            groups.append(table)
        else:
            groups[place] = replace(groups[place], joined=(*groups[place].joined, table))
    return groups


def _can_join(one: Table, other: Table) -> bool:
    """Tells if ``other`` only adds columns to ``one``: both name the same images, in one split."""
    alike = one.has_names and other.has_names and one.is_text == other.is_text and one.split == other.split
    if not alike or other.further or not other.own_columns or one.own_columns & other.own_columns:
        return False
    images, others = one.naming.images, other.naming.images
    if len(others) != other.naming.hits:
        return False
    single = len(images) == one.naming.hits
    # A table with several rows per image, such as boxes, need not name all images.
    return np.array_equal(images, others) if single else bool(np.isin(images, others).all())


def separate_class_table(tree: Tree, tables: list[Table]) -> tuple[list[Table], list[str], str, tuple[str, ...] | None]:
    """Separates a table of classes, such as one that names an icon of each.

    A column of such a table has a different value in each row, and all values of some column of the other tables.
    Returns the other tables, its path, the column of the others that has the classes, and their names if it numbers
    them from 0. All but the tables are empty without such a table.
    """
    for table in tables:
        others = [each for each in tables if each.form != table.form]
        few = len(table.naming.images) < min(_MAX_CLASSES, sum(len(each.naming.images) for each in others))
        if not few or len(others) < len(tables) - 1 or not table.has_names:
            continue
        columns: dict[str, list[str]] = {name: [] for name in table.own_columns}
        for row in table.rows(tree):
            for name, values in columns.items():
                values.append(str(row.cells.get(name)))
        unique = {name: values for name, values in columns.items() if len({*values}) == len(values)}
        used: dict[str, set[str]] = {}
        for row in chain.from_iterable(each.rows(tree) for each in others):
            for name, cell in row.cells.items():
                if len(found := used.setdefault(name, set())) <= _MAX_CLASSES:
                    found.add(str(cell))
        pairs = [(len(used[name]), name, key) for name in used for key, own in unique.items() if used[name] <= {*own}]
        count, column, key = max(pairs, default=(0, "", ""))
        if count > 1:
            named = min(unique, key=lambda name: ("name" not in name.lower(), unique[name][0].isdecimal(), name))
            titles = dict(zip(unique[key], unique[named], strict=True))
            names = [titles.get(str(number), "") for number in range(len(titles))]
            return others, [table.file], column, tuple(names) if all(names) else None
    return tables, [], "", None


def join_rows(tree: Tree, table: Table, index: ImageIndex) -> Iterator[tuple[str | None, str, dict[str, Any]]]:
    """Yields the image, place and cells of each row of a table, with the image's cells in the tables that are joined to
    it.

    Joined tables are in memory. The image is None if a row names none. If the first table has several rows per image,
    the joined tables may have more images: a row of each follows. Raises :class:`AmbiguousSourceError` if a joined
    table lacks an image, since it names another one of the same name.
    """
    joined: dict[str, dict[str, Any]] = {}
    for other in table.joined:
        for image, _, cells in other.match_rows(tree, index):
            if image is not None:
                joined[image] = joined.get(image, {}) | cells
    taken = set()
    for image, place, cells in table.match_rows(tree, index):
        if image is not None and table.joined:
            if image not in joined:
                raise AmbiguousSourceError(
                    f"{place}: {' and '.join(map(printable, table.files))} name different images called "
                    f"{printable(image)}: leave one out with --ignore",
                    [Answer(ignore_paths([file])) for file in table.files],
                )
            taken.add(image)
            cells |= joined[image]
        yield image, place, cells
    for image, cells in joined.items():
        if image not in taken:
            yield image, tree.name(table.joined[0].file), cells
