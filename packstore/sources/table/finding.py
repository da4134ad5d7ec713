"""Finds the tables in a tree whose rows name its images, and joins those of the same images. Reads all rows of each
possible table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Field
from packstore.sources.annotations import holds_masks
from packstore.sources.beside import join, read_whole
from packstore.sources.columns import FILE_COLUMNS
from packstore.sources.contents import list_contents, suffix_of
from packstore.sources.huggingface import features as hf
from packstore.sources.huggingface.features import ObjectColumn
from packstore.sources.ignoring import escape_pattern, ignore_paths
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.splits import find_split_of_file
from packstore.sources.table.images import ImageIndex, Naming, NamingCounter, split_path
from packstore.sources.table.reading import (
    MAX_BYTES,
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

_SAMPLE = re.compile(r".*sample[_ -]?submission.*|submission[_ -]?(sample|format).*", re.I)
"""Names of Kaggle's sample submissions: forms to fill in, whose values mean nothing."""
_NO_TABLE = re.compile(r"(readme|licen[cs]e|requirements|notes?|class(es)?|labels?_?names?|obj)\b.*\.(txt|json)", re.I)
_BOXES = re.compile(r"(.*/)?[\w-]*annotations-bbox\.csv", re.I)
_FEW, _SEARCHED = 16, 48
_WORDS = re.compile(r"[^\W\d_][^\d.]*(\.\D+)?")
_IDS = re.compile(r".*(image|img|file|path|name|photo|picture|^id|_id|uuid).*", re.I)


@dataclass(slots=True)
class Table:
    """Table, and how its rows name images.

    Attributes:
        file: Path in the tree.
        header: The first line names the columns.
        image: Column of the main image.
        naming: How that column names images.
        further: Other columns that name other images.
        split: Split that the path names; ``""`` for none.
        joined: Tables of the same images whose columns are added to its rows.
        is_list: It has one column.
        declared: Fields of its columns, if the table states types.
        objects: Column of objects with boxes, whose members :meth:`rows` turns into columns.
        strip: Texts lose the white space around them.
    """

    file: str
    header: bool
    image: str
    naming: Naming
    further: dict[str, Naming] = field(default_factory=dict)
    split: str = ""
    joined: tuple[Table, ...] = ()
    is_list: bool = False
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
    def has_row_per_image(self) -> bool:
        """True if the table has one row for each image."""
        return self.naming.hits == self.naming.images

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


def is_open_images_boxes(file: str) -> bool:
    """Tells if a table has the name of Open Images' tables of boxes."""
    return _BOXES.fullmatch(file) is not None


def list_possible_tables(tree: Tree) -> list[str]:
    """Lists files with the suffix of a table. Leaves out names of other files, such as ``README.txt`` and sample
    submissions.

    Leaves out all files of a suffix in a folder that has more than 16 of them.
    """
    files = []
    for folder, contents in list_contents(tree).folders.items():
        for suffix in SUFFIXES:
            names = contents.others.get(suffix)
            if names is not None and names.count <= _FEW:
                files += [join(folder, n) for n in names.first if not (_SAMPLE.fullmatch(n) or _NO_TABLE.fullmatch(n))]
    return files


def find_sample_submissions(tree: Tree) -> list[str]:
    """Finds Kaggle's sample submissions by their names: forms to fill in."""
    return [
        join(folder, name)
        for folder, contents in list_contents(tree).folders.items()
        for name in contents.other_names
        if _SAMPLE.fullmatch(name) and suffix_of(name) in SUFFIXES
    ]


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
    lists = [] if named else [table for table in found if table.is_list]
    splits = {table.split for table in lists if table.split}
    one_folder = sum(folder.images.count > 0 for folder in list_contents(tree).folders.values()) == 1
    if lists and (len(splits) < 2 or not one_folder):  # folders may be classes, which a list does not tell
        found = [table for table in found if not table.is_list]
    return found


def separate_repeated_tables(tree: Tree, tables: Sequence[Table]) -> tuple[list[Table], list[Table]]:
    """Separates tables that repeat others. Returns the tables to read, and the repeating ones.

    A table repeats others if it has no split, and its rows are exactly those of all tables with a split together. Reads
    all rows of all tables, if there are several splits and a table without split.
    """
    parts = [table for table in tables if table.split]
    copies = []
    if len({table.split for table in parts}) > 1 and len(parts) < len(tables):
        rows = sum((_count_rows(tree, table) for table in parts), Counter[int]())
        copies = [table for table in tables if not table.split and _count_rows(tree, table) == rows]
    return [table for table in tables if table not in copies], copies


def name_splits_alike(tables: Sequence[Table], some: bool = True) -> list[Table]:
    """Names the split of each table after its file, if it has none, but a table of the same folder, suffix and columns
    has: ``quiz.lst`` beside ``train.lst`` is ``quiz``. With ``some`` false, that table needs no split."""
    alike = [table.form for table in tables]
    pairs = [*zip(tables, alike, strict=True)]
    known = {key for table, key in pairs if table.split or (not some and alike.count(key) > 1)}
    stems = [table.file.rpartition("/")[2].rpartition(".")[0].lower() for table in tables]
    names = [table.split or (stem if key in known else "") for (table, key), stem in zip(pairs, stems, strict=True)]
    return [replace(table, split=name) for table, name in zip(tables, names, strict=True)]


def _count_rows(tree: Tree, table: Table) -> Counter[int]:
    """Counts equal rows of a table. The keys are hashes of the rows."""
    return Counter(hash(tuple(sorted(map(repr, row.cells.items())))) for row in table.rows(tree))


def has_unread_lists(tree: Tree, tables: Sequence[Table]) -> bool:
    """Tells if some text file would be left out, though at least two of its lines begin with an image. Such a file
    is none of ``tables``."""
    index, known = ImageIndex(tree), {file for table in tables for file in table.files}
    for file in list_possible_tables(tree):
        if file in known or suffix_of(file) not in (".txt", ".lst"):
            continue
        lines = read_whole(tree, file, MAX_BYTES).decode("utf-8", "replace").splitlines()
        pairs = [
            pair for line in lines if (words := line.split(None, 1)) and (pair := split_path(words[0])) is not None
        ]
        if sum(map(bool, index.find_images(pairs, by_stem=False, whole_path=False))) > 1:
            return True
    return False


def examine_table(
    tree: Tree, file: str, index: ImageIndex, given: Mapping[str, Sequence[str]], named: bool
) -> Table | None:
    """Reads a table whole, and finds its columns that name images. See :func:`find_tables` for arguments and errors.

    Of more than 48 columns, searches only the first and the last 24. Returns None in these cases:

    - No column certainly names images in at least half of the rows.
    - The table has no rows, or lacks the user's column.
    - The table is a damaged text or JSON file that may be something else, and the user did not name the kind.
    """
    counters: dict[str, NamingCounter] = {}
    first: dict[str, Any] = {}
    rows, kinds = 0, KindCounter()
    failure: SourceError | None = None
    try:
        for block in batch_rows(read_table(tree, file, header=False)):
            first = first or block[0].cells
            listed = [*dict.fromkeys(name for row in block for name in row.cells)]
            for name in dict.fromkeys([*listed[: _SEARCHED // 2], *listed[-_SEARCHED // 2 :]]):
                counter = counters.setdefault(name, NamingCounter(index))
                counter.count_values(row.cells.get(name) for row in block)
            for row in block if suffix_of(file) not in TEXT else ():
                kinds.count_cells(row.cells)
            rows += len(block)
    except SourceError as error:
        failure = error
    ways = {name: way for name, counter in counters.items() if (way := counter.best_naming(file)) is not None}
    if not ways:
        return None
    if failure is not None:
        asked = isinstance(failure, AmbiguousSourceError) and any(2 * way.hits >= rows for way in ways.values())
        if suffix_of(file) in (".txt", ".json", ".lst") and not (named or asked):
            return None
        raise failure
    header = suffix_of(file) in TEXT and _is_header(first, ways)
    rows -= header
    if header:  # the first line names the columns, which had numbers so far
        names = dict(zip(first, name_columns([str(cell) for cell in first.values()]), strict=True))
        counters = {names[name]: counter for name, counter in counters.items()}
        ways = {names[name]: way for name, way in ways.items()}
    likely = {
        name: way
        for name, way in ways.items()
        if 2 * way.hits >= rows and (is_open_images_boxes(file) or _is_image_column(name, way))
    }
    wanted = given.get("image", ())
    if wanted:
        if wanted[0] not in ways:
            return None
        likely = {wanted[0]: ways[wanted[0]]} | {n: w for n, w in likely.items() if n != wanted[0]}
    if not likely or rows < 1:
        return None
    main = wanted[0] if wanted else _find_main_column(tree, file, likely)
    way = likely[main]
    photos = [folder for folder in way.rivals if not holds_masks(tree, folder)]
    if len(photos) == 1:
        way.bases.sort(key=lambda base: base != photos[0])
    elif way.rivals:
        shown = " or ".join(map(printable, way.rivals))
        raise AmbiguousSourceError(
            f"{tree.name(file)}: its column {printable(main)} could name the images in {shown}: leave one out with "
            "--ignore",
            [Answer(("--ignore", f"/{escape_pattern(folder)}/")) for folder in way.rivals],
        )
    further = {
        name: other
        for name, other in likely.items()
        if name != main and not other.by_stem and counters[name].list_named() != counters[main].list_named()
    }
    declared = declare_parquet(tree, file, {}) if suffix_of(file) == ".parquet" else {}
    return Table(
        *(file, header, main, way, further, find_split_of_file(file)),
        is_list=len(first) < 2,
        declared=declared,
        objects=kinds.find_objects(),
    )


def _is_header(first: Mapping[str, Any], ways: Mapping[str, Naming]) -> bool:
    """Tells if the first line names the columns, by its cell in the column that names most images.

    This cell must be a word or empty, without a path or an image's suffix.
    """
    name = max(ways, key=lambda each: (ways[each].images, ways[each].hits))
    cell = str(first.get(name, ""))
    if cell.lower().endswith(IMAGE_SUFFIXES) or re.search(r"[\\/]", cell):
        return False
    return _WORDS.fullmatch(cell) is not None or cell.lower() in FILE_COLUMNS or not cell


def _is_image_column(name: str, way: Naming) -> bool:
    """Tells if a column names images. Names with suffixes always do.

    Names without suffixes do if they are of at least two images, and one of these holds:

    - The column's name is that of ids.
    - All names are of images, and at least two are no numbers.
    """
    if not way.by_stem:
        return True
    if way.images < 2:
        return False
    return (way.words > 1 and way.images == way.hits) or _IDS.fullmatch(name) is not None


def _find_main_column(tree: Tree, file: str, likely: Mapping[str, Naming]) -> str:
    """Finds the column of the main image among the ``likely`` columns, which name images.

    If some of these are not of masks, it is among them. A column with a usual name wins, otherwise the one that names
    most images. Raises :class:`AmbiguousSourceError` if several columns have names with suffixes, and none has a usual
    name.
    """
    # A table may have a row for each mask of an image.
    likely = {name: way for name, way in likely.items() if not looks_like_mask(name.lower())} or likely
    with_suffix = [name for name, way in likely.items() if not way.by_stem]
    usual = [name for name in with_suffix if name.lower() in FILE_COLUMNS]
    if len(with_suffix) > 1 and not usual:
        shown = " or ".join(map(printable, with_suffix))
        raise AmbiguousSourceError(
            f"{tree.name(file)}: the main image could be in column {shown}: say which with --column image=COL",
            [Answer(("--column", f"image={name}")) for name in with_suffix],
        )
    best = max((way.images, not way.by_stem) for way in likely.values())
    names = [name for name, way in likely.items() if (way.images, not way.by_stem) == best]
    return next((name for name in names if name.lower() in FILE_COLUMNS), (usual or names)[0])


def join_tables(tree: Tree, tables: Sequence[Table]) -> list[Table]:
    """Joins each table with one row per image to the first earlier table that fits. Returns the tables that were not
    joined.

    Their :attr:`Table.joined` has the tables that were joined to them. Tables fit if they name as many images, and
    share no column in the first 4,096 rows. If the earlier table has several rows per image, it may also have fewer
    images. :func:`join_rows` finds later if the images are the same.
    """
    groups: list[Table] = []
    columns: list[set[str]] = []
    for table in tables:
        own = {name for row in next(batch_rows(table.rows(tree)), []) for name in row.cells} - {table.image}
        place = next((n for n, each in enumerate(groups) if _can_join(each, table) and not columns[n] & own), None)
        if place is None:
            groups.append(table)
            columns.append(own)
        else:
            groups[place] = replace(groups[place], joined=(*groups[place].joined, table))
            columns[place] |= own
    return groups


def _can_join(one: Table, other: Table) -> bool:
    """Tells if table ``other`` may be joined to table ``one``, by their numbers of rows and images.

    Both must be of the same split, both or neither of text, and have names of columns. Only one column of ``other`` may
    name images.
    """
    alike = one.has_names and other.has_names and one.is_text == other.is_text and one.split == other.split
    if not (alike and other.has_row_per_image) or other.further:
        return False
    enough = other.naming.images - one.naming.images
    return enough == 0 if one.has_row_per_image else enough >= 0


def join_rows(tree: Tree, table: Table, index: ImageIndex) -> Iterator[tuple[str | None, str, dict[str, Any]]]:
    """Yields the image, place and cells of each row of a table, together with the image's cells in the tables that are
    joined to it; these are in memory. The image is None if a row names none.

    If the first table has several rows per image, the joined tables may have more images: a row of each follows. Raises
    :class:`AmbiguousSourceError` if the tables otherwise do not name the same images, or have a column in common.
    """
    joined: dict[str, dict[str, Any]] = {}
    times: Counter[str] = Counter()

    def refuse(image: str) -> NoReturn:
        raise AmbiguousSourceError(
            f"{tree.name()}: {' and '.join(map(printable, table.files))} name as many images, but not the same, or "
            f"have a column in common ({printable(image)}): leave one out with --ignore",
            [Answer(ignore_paths([file])) for file in table.files],
        )

    for other in table.joined:
        for image, _, cells in other.match_rows(tree, index):
            if image is not None:
                if joined.setdefault(image, {}).keys() & cells.keys():
                    refuse(image)
                joined[image] |= cells
                times[image] += 1
    differing = next((image for image, count in times.items() if count != len(table.joined)), None)
    if differing is not None:
        refuse(differing)
    taken = set()
    for image, place, cells in table.match_rows(tree, index):
        if image is not None and table.joined:
            if image not in joined or joined[image].keys() & cells.keys():
                refuse(image)
            taken.add(image)
            cells |= joined[image]
        yield image, place, cells
    for image, cells in joined.items():
        if image not in taken:
            if table.has_row_per_image:
                refuse(image)
            yield image, tree.name(table.joined[0].file), cells
