"""Image folders as ``datasets`` reads them: with metadata beside the images, or with the splits that a card states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Label
from packstore.sources import huggingface as hf
from packstore.sources.archives import open_required_tree, open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import clean_path, join
from packstore.sources.columns import make_column_names
from packstore.sources.huggingface import splits as hf_splits
from packstore.sources.huggingface.splits import CARD, Card
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import FileRow, FileRowSource, in_packing_order
from packstore.sources.splits import lower_known_split
from packstore.sources.table import TableSource
from packstore.sources.table.finding import KindCounter, Table
from packstore.sources.table.images import NamedRow, SplitNumbers
from packstore.sources.table.reading import TableRow, declare_parquet
from packstore.sources.tree import Tree

FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
# Column that names files, with the name of its images: ``file_name``, ``mask_file_name``, ``frames_file_names``.
_NAMES = re.compile("(?:(.+)_)?file_name(s?)")
# Bytes of a metadata file that are searched for the name of a column.
_SEARCHED = 64 << 20


class MetadataSource(TableSource):
    """Source for an image folder with metadata files: tables with columns of paths called ``file_name``,
    ``*_file_name`` or ``*_file_names``. Paths are relative to the folder of the file.

    Each row is a sample, in order. Later rows of one image have keys such as ``a.jpg#1``. Splits are those of
    ``datasets``. Opening raises :class:`SourceError` for bad metadata.
    """

    kind = "hf_imagefolder"
    left_images = "images that the metadata do not name"
    merges_rows = False

    def _find_tables(self, given: dict[str, list[str]]) -> Sequence[Table]:
        """Finds the metadata files, and their columns that name files."""
        self._card = hf_splits.read_card(self.tree, self.path)
        # ``datasets`` gives a column ``split`` no meaning.
        given["split"] = []
        files = find_metadata(self.tree)
        if len({file.rpartition(".")[2] for file in files}) > 1:
            raise SourceError(f"{self.tree.name()} has metadata in several formats: keep the files of one format")
        classes = {name: hf.class_names(each) for name, each in self._card.features.items()}
        labels: dict[str, Field] = {name: Label(names) for name, names in classes.items() if names is not None}
        tables = [Table(file, True, "", strip=False) for file in files]
        columns: dict[str, None] = {}
        kinds = KindCounter()
        for table in tables:
            table.declared = labels
            if table.file.endswith(".parquet"):
                table.declared = declare_parquet(self.tree, table.file, self._card.features)
            for row in table.rows(self.tree):
                columns |= dict.fromkeys(row.cells)
                kinds.count_cells(row.cells)
        matches = {name: match for name in columns if (match := _NAMES.fullmatch(name)) is not None}
        if not matches:
            shown = ", ".join(map(printable, list(columns)[:20]))
            raise SourceError(f"{self.tree.name(files[0])} has no rows with a file_name; columns: {shown}")
        own = {name: matches[name][1] or f"image{matches[name][2]}" for name in sorted(matches, key=_names_lists)}
        self._main = next((name for name, images in own.items() if images == "image"), next(iter(own)))
        main = own.pop(self._main)
        own |= {self._main: f"further_{main}"} if _names_lists(self._main) else {}
        self._naming = dict(zip(own, make_column_names(own.values(), columns).values(), strict=True))
        self._lists = {images for name, images in self._naming.items() if _names_lists(name)}
        for table in tables:
            table.image, table.objects = self._main, kinds.find_objects()
            table.further = dict.fromkeys(self._naming.values(), table.naming)
        return tables

    def _read_rows(self) -> Iterator[NamedRow]:
        """Yields all rows, with the paths that they name."""
        for number, table in enumerate(self._tables):
            folder = table.file.rpartition("/")[0]
            for row in table.rows(self.tree):
                paths = {name: _list_paths(row, name, folder) for name in (self._main, *self._naming)}
                image, *more = paths[self._main] or [""]
                if not image:
                    raise SourceError(f"{row.place}: no {printable(self._main)}")
                paths[self._main] = more
                cells = {name: value for name, value in row.cells.items() if name not in paths}
                yield NamedRow(image, number, row.place, cells | {own: paths[n] for n, own in self._naming.items()})

    def _assign_splits(self) -> SplitNumbers:
        """Returns the splits of all images, by the card or by words such as ``train`` in their paths."""
        paths = [*map(self.file_of, range(self.listed.image_count))]
        find = self._card.find_splits if self._card.data_files else hf_splits.choose_words(paths)
        # Words in the names of images only count if each image has one.
        if find is None or (find is hf_splits.find_splits_of_name and not all(map(find, paths))):
            return SplitNumbers(self.tree.name(), ("" for _ in paths))

        def find_split(number: int) -> str:
            # Without a split in its own path, an image has that of its metadata file.
            files = paths[number], self._tables[self.listed.table_of[number]].file
            found = (hf_splits.find_only_split(self.tree, file, find) for file in files)
            return lower_known_split(next(filter(None, found), ""))

        return SplitNumbers(self.tree.name(), map(find_split, range(len(paths))))

    def describing_files(self) -> Iterable[str]:
        """Returns the metadata files, and the card unless it is empty."""
        return (*super().describing_files(), *([CARD] if self._card != Card() else []))


class CardFolderSource(FileRowSource):
    """Source for the images to which a dataset card gives a split.

    The card says if folders are classes. If it does not, they are as in ``datasets``: if all images lie on one level,
    in folders of several names. Opening raises :class:`SourceError` for a card that states no files.
    """

    kind = "hf_imagefolder"
    left_images = "images of no split"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._card = hf_splits.read_card(self.tree, path)
        self.evidence = f"data_files in {CARD}"

    def splits(self) -> Sequence[str]:
        """Returns the splits of all images. Raises :class:`SourceError` for an image of two splits."""
        return in_packing_order({split for _, split in self._list_images()})

    def describing_files(self) -> Iterable[str]:
        """Returns the card."""
        return (CARD,)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image, and of ``label`` if folders are classes."""
        return {"image": Image()} | ({"label": Label(self._classes)} if self._classes else {})

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split. If folders are classes, the label is the name of its folder."""
        for file, own in self._list_images():
            if own == split:
                yield FileRow(file, {"label": self._name_folder(file)} if self._classes else {})

    def _list_images(self) -> Iterator[tuple[str, str]]:
        """Yields path and split of each image to which the card gives a split."""
        for directory, listing in self.tree.walk("", self.tree.above, skip_cycles=self.options.skip_bad):
            for name in listing.images:
                file = join(directory, name)
                if split := hf_splits.find_only_split(self.tree, file, self._card.find_splits):
                    yield file, lower_known_split(split)

    def _name_folder(self, file: str) -> str:
        """Returns the name of the folder of an image."""
        return file.rpartition("/")[0].rpartition("/")[2] or self.path.resolve().name

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Names of folders as classes, sorted; empty if folders are no classes."""
        if self._card.drop_labels:
            return ()
        found = {(self._name_folder(file), file.count("/")) for file, _ in self._list_images()}
        classes, depths = ({*each} for each in zip(*found, strict=True)) if found else (set(), set())
        # As in ``datasets`` (``FolderBasedBuilder._split_generators``).
        kept = self._card.drop_labels is False or (len(classes) > 1 and len(depths) == 1)
        return tuple(sorted(classes)) if kept else ()


def find_metadata(tree: Tree, levels: int | None = None) -> list[str]:
    """Finds the metadata files in all folders of a tree, or in the upper ``levels``."""
    files = hf_splits.list_files(tree, ".csv", ".jsonl", ".parquet", levels=levels)
    return sorted(file for file in files if file.rpartition("/")[2] in FILES)


def _list_paths(row: TableRow, name: str, folder: str) -> list[str]:
    """Returns the paths in the tree of all files that a cell names."""
    value = row.cells.get(name)
    if value is None or value == "":
        return []
    try:
        if _names_lists(name) and not isinstance(value, list):
            raise ValueError(f"is {printable(repr(value)[:80])}, expected a list")
        paths = value if _names_lists(name) else [value]
        if not all(isinstance(each, str) and "://" not in each for each in paths):
            raise ValueError(f"is {printable(repr(value)[:80])}, expected a path")
        return [join(folder, clean_path(each)) for each in paths]
    except ValueError as error:
        raise SourceError(f"{row.place}: {printable(name)} {error}") from None


def _names_lists(name: str) -> bool:
    """Tells if a column that names files has a list of them in each row: ``file_names``, ``frames_file_names``."""
    return name.endswith("s")


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises metadata files beside images, or a card whose patterns match images, in the upper four levels."""
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    images = hf_splits.list_files(tree, *IMAGE_SUFFIXES, levels=hf_splits.LEVELS)
    if next(images, None) is None:
        return Certainty.NO
    if metadata := find_metadata(tree, hf_splits.LEVELS):
        # Other programs have files of these names, too.
        named = all(b"file_name" in tree.first_bytes(file, _SEARCHED) for file in metadata)
        return Certainty.CERTAIN if named else Certainty.NO
    card = hf_splits.read_card(tree, path)
    images = hf_splits.list_files(tree, *IMAGE_SUFFIXES, levels=hf_splits.LEVELS)
    return Certainty.CERTAIN if card.data_files and any(map(card.find_splits, images)) else Certainty.NO


def open_image_folder(path: Path, options: SourceOptions) -> MetadataSource | CardFolderSource:
    """Opens an image folder by its metadata, or else by its card."""
    with_metadata = bool(find_metadata(open_required_tree(path)))
    return MetadataSource(path, options) if with_metadata else CardFolderSource(path, options)


KIND = Kind(
    "hf_imagefolder",
    "images with metadata.csv, .jsonl or .parquet, as Hugging Face's",
    _recognise,
    open_image_folder,
    takes_boxes=True,
    in_objects=True,
)
