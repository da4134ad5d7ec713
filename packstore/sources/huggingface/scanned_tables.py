"""Scan of the tables of a dataset: their columns, and the facts about these that only all tables show."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, error_line, printable
from packstore.core.fields import Image, Images
from packstore.sources.boxes import NOT_CONVERTED
from packstore.sources.columns import LabelTexts
from packstore.sources.huggingface.arrow_types import load_pyarrow
from packstore.sources.huggingface.cells import json_cells
from packstore.sources.huggingface.columns import TableColumn, TableFacts, declare_columns, find_box_column
from packstore.sources.huggingface.features import (
    class_names,
    is_label,
    is_text_label,
    read_features,
    warn_of_lost_names,
)
from packstore.sources.huggingface.objects import ObjectColumn, ObjectFacts
from packstore.sources.huggingface.open_table import (
    OpenTable,
    TableOverview,
    pyarrow_errors,
    unreadable_message,
)
from packstore.sources.records import ShardSource
from packstore.sources.rows import PROBED
from packstore.sources.splits import lower_known_split


@dataclass(slots=True)
class FileSizes:
    """Rows and mean sizes in the groups of a file.

    Attributes:
        rows: Number of rows of each group.
        image: Mean bytes of the main image in each group.
        rest: Mean bytes of the other values together.
        further: Mean bytes of each further column of images, by name.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    image: array[int] = field(default_factory=lambda: array("q"))
    rest: array[int] = field(default_factory=lambda: array("q"))
    further: dict[str, array[int]] = field(default_factory=dict)


class ScannedTables(ShardSource):
    """Base of sources whose samples are rows of tables: finds the tables, and chooses their columns.

    The first use of the columns scans all files. It raises :class:`SourceError` if one has other columns or classes
    than the first.
    """

    @abstractmethod
    def find_tables(self) -> Iterable[tuple[str, Path]]:
        """Yields split and path of each file; the files of a split come in order. Raises :class:`SourceError` for
        damaged lists of files."""

    @abstractmethod
    def open_table(self, path: Path) -> OpenTable:
        """Opens a file. Raises one of the exceptions in :func:`pyarrow_errors` if it is damaged."""

    def list_shards(self) -> list[tuple[str, Path]]:
        """Lists split and path of each file. Known names of splits are in lower case."""
        return [(lower_known_split(split), file) for split, file in self.find_tables()]

    def card_features(self) -> Mapping[str, Any]:
        """Returns features by column from a dataset card, for tables whose schema has none. The base returns none."""
        return {}

    def open_shard(self, number: int) -> OpenTable:
        """Opens the table of a shard. Raises :class:`ValueError` if it is missing or damaged."""
        path = self.shards[number][1]
        if not path.is_file():
            raise ValueError(f"{printable(str(path))} is not a file")
        try:
            return self.open_table(path)
        except pyarrow_errors() as error:
            raise ValueError(f"{printable(str(path))} cannot be read: {error_line(error)}") from error

    @contextmanager
    def _open_for_scan(self, number: int) -> Iterator[OpenTable]:
        """Opens the table of a shard, and closes it at the end of the block. Converts errors in the block to
        :class:`SourceError` with the name of the file."""
        try:
            with closing(self.open_shard(number)) as table:
                yield table
        except pyarrow_errors() as error:
            raise SourceError(unreadable_message(self.shards[number][1], error)) from error

    @property
    def _file_sizes(self) -> list[FileSizes]:
        """Rows and sizes of all files; scans them on first use."""
        return self._scan_result[0]

    @property
    def _facts(self) -> TableFacts:
        """Facts about the columns of all files; scans them on first use."""
        return self._scan_result[1]

    @cached_property
    def _columns(self) -> list[TableColumn]:
        """Columns, declared by all facts; scans all files on first use."""
        return self._declare_columns(self._facts)

    @cached_property
    def _probed_columns(self) -> list[TableColumn]:
        """Columns, declared by the first rows alone, without a scan."""
        return self._declare_columns(TableFacts())

    def _declare_columns(self, facts: TableFacts) -> list[TableColumn]:
        """Chooses the columns by the first rows and ``facts``.

        Raises :class:`SourceError` with the path of the source, for a column that no field holds and for tables without
        images.
        """
        try:
            return self._choose_columns(facts)
        except SourceError as error:
            raise SourceError(f"{printable(str(self.path))}: {error}") from error

    def _choose_columns(self, facts: TableFacts) -> list[TableColumn]:
        """Chooses the columns by the first rows and ``facts``. Raises :class:`SourceError` for a column that no field
        holds, and for tables without images."""
        return declare_columns(self._first_batch, self._features, facts)

    @cached_property
    def _first_batch(self) -> Any:
        """Record batch of the first rows, in the first file that has any. Raises :class:`SourceError` if no file has
        rows."""
        for number in range(len(self.shards)):
            with self._open_for_scan(number) as table:
                for group, rows in enumerate(table.read_overview().groups):
                    if rows.rows:
                        return next(table.read_group(group, PROBED))
        raise SourceError(f"{printable(str(self.path))} holds no samples, so there is nothing to pack")

    @cached_property
    def _features(self) -> Mapping[str, Any]:
        """Features in the schema of the first rows. If that has none, those in the card. Raises :class:`SourceError`
        if they are damaged."""
        try:
            return read_features(self._first_batch.schema) or self.card_features()
        except ValueError as error:
            raise SourceError(unreadable_message(self.shards[0][1], error)) from error

    @cached_property
    def _scan_result(self) -> tuple[list[FileSizes], TableFacts]:
        """Sizes and facts of all files, from their overviews. Reads columns of possible classes and boxes.

        Raises :class:`SourceError` for a damaged file. Raises it also for a file with other columns or classes than the
        first.
        """
        main = next(column.column for column in self._probed_columns if column.name == "image")
        further = {each.name: each.column for each in self._probed_columns if isinstance(each.field, (Image, Images))}
        further.pop("image")
        optional: set[str] = set()
        negative: set[str] = set()
        with_paths: set[str] = set()
        sizes = []
        for number, (_, path) in enumerate(self.shards):
            with self._open_for_scan(number) as table:
                overview = table.read_overview()
                self._refuse_other_columns(overview.schema)
                file_bytes = path.stat().st_size
            sizes.append(_average_group_sizes(path, overview, file_bytes, main, further))
            optional |= overview.optional
            negative |= overview.negative
            with_paths |= overview.with_paths
        pathless = set(self._first_batch.schema.names) - with_paths
        return sizes, TableFacts(optional, negative, pathless, self._find_text_classes(), self._find_objects())

    def _find_text_classes(self) -> tuple[str, tuple[str, ...]] | None:
        """Finds the only column of texts that certainly names the class of each row. Returns its name and the classes.

        Returns None for none or several such columns, and if a column has class numbers. Reads the whole column.
        """
        schema = self._first_batch.schema
        columns = [(name, schema.field(name).type, self._features.get(name)) for name in schema.names]
        named = [name for name, type, feature in columns if is_text_label(name, type, feature)]
        if len(named) != 1 or any(is_label(*each) for each in columns):
            return None
        texts, compute = LabelTexts(), load_pyarrow("pyarrow.compute")
        for number in range(len(self.shards)):
            with self._open_for_scan(number) as table:
                for values in table.read_column(named[0]):
                    different = compute.unique(values.drop_null())
                    texts.add_texts(different.to_pylist(), len(values) - values.null_count)
        coded = load_pyarrow("pyarrow.types").is_dictionary(schema.field(named[0]).type)
        classes = texts.decide_classes(coded=coded)
        return None if classes is None else (named[0], classes)

    def _find_objects(self) -> ObjectColumn | None:
        """Finds the column that holds boxes, and decides their convention. Reads the column unless the convention is
        known.

        Returns None if there is no such column, or boxes stay JSON. If boxes stay JSON, warns in the log of names of
        classes that are lost. Raises :class:`AmbiguousSourceError` if the convention is not clear.
        """
        objects = find_box_column(self._first_batch.schema, self._features)
        if objects is None:
            return None
        layout = self.options.layout
        if objects.convention and layout is None and not objects.named:
            return objects
        decided = (
            None if layout == NOT_CONVERTED else self._decide_convention(objects, layout or objects.convention or None)
        )
        if decided is None:
            warn_of_lost_names(objects.column, self._features.get(objects.column))
        return decided

    def _decide_convention(self, objects: ObjectColumn, convention: str | None) -> ObjectColumn | None:
        """Reads all boxes, and returns their column with its convention.

        Returns None if there are no boxes, or some box lacks four numbers and one label. Raises
        :class:`AmbiguousSourceError` if ``convention`` is None, and the boxes fit several conventions or none.
        """
        facts = ObjectFacts(objects)
        sides = [name for name in ("width", "height") if name in self._first_batch.schema.names]
        names = [objects.column, objects.labels if objects.labels and not objects.boxes else objects.column, *sides]
        for number in range(len(self.shards)):
            with self._open_for_scan(number) as table:
                columns = [chain.from_iterable(map(_read_json_values, table.read_column(name))) for name in names]
                for values, labels, *size in zip(*columns, strict=True):
                    facts.add_row(values, labels, (size[0], size[1]) if len(size) == 2 else None)
        return facts.decide_convention(convention, printable(str(self.path)), self.path)

    def _refuse_other_columns(self, schema: Any) -> None:
        """Raises :class:`ValueError` if a schema has other columns or classes than that of the first file."""
        first, first_name = self._first_batch.schema, self.shards[0][1].name
        if dict(zip(schema.names, schema.types, strict=True)) != dict(zip(first.names, first.types, strict=True)):
            differing = sorted({*schema.names} ^ {*first.names}) or [
                name for name in first.names if schema.field(name).type != first.field(name).type
            ]
            columns = ", ".join(map(printable, differing))
            raise ValueError(f"its columns are not those of {first_name} ({columns}): pack them apart")
        for name, feature in read_features(schema).items():
            if name in self._features and class_names(feature) != class_names(self._features[name]):
                raise ValueError(f"the classes of {printable(name)!r} are not those of {first_name}")


def _read_json_values(array: Any) -> Iterator[Any]:
    """Yields the values of an array as JSON."""
    return map(json_cells(array), range(len(array)))


def _average_group_sizes(
    path: Path, overview: TableOverview, file_bytes: int, main: str, further: Mapping[str, str]
) -> FileSizes:
    """Computes the mean bytes a row in each group of a file. Raises :class:`SourceError` for more rows than bytes.

    Args:
        path: The file.
        overview: Summary of its groups.
        file_bytes: Its size.
        main: Column of the main image. All other columns are averaged together.
        further: Columns of further images, by name; each is also averaged alone.
    """
    sizes = FileSizes()
    for rows, nbytes in overview.groups:
        if not 0 <= rows <= file_bytes:
            raise SourceError(f"{printable(str(path))} says that {file_bytes} bytes hold {rows} rows")
        count, image = max(1, rows), max(0, nbytes.get(main, 0))
        sizes.rows.append(rows)
        sizes.image.append(image // count)
        sizes.rest.append(max(0, sum(nbytes.values()) - image) // count)
        for name, column in further.items():
            sizes.further.setdefault(name, array("q")).append(max(0, nbytes.get(column, 0)) // count)
    return sizes
