"""Reads a flat folder: images without labels, or images that a labels file names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packstore.core.errors import NotInSourceError, SourceError, printable
from packstore.core.fields import Field, Image, Label
from packstore.sources.archives import open_required_tree, open_tree
from packstore.sources.base import Certainty, Kind, Source, SourceOptions, stamp_files
from packstore.sources.beside import clean_path
from packstore.sources.columns import FILE_COLUMNS, LABEL_COLUMNS
from packstore.sources.contents import find_lone_image_folder, suffix_of
from packstore.sources.imagefolder import ImageFolderSource, SplitFolder
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import Listing
from packstore.sources.rows import FileRow, Row
from packstore.sources.splits import lower_known_split
from packstore.sources.table.images import ListedSource, ListedValues

_NUMBER = re.compile("0|[1-9][0-9]{0,18}")
_MAX_LABEL, _SHOWN = (1 << 63) - 1, 80
_TABLES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet")


class FlatSource(ImageFolderSource):
    """Images directly in a folder, sorted by name, without labels.

    - If the only folder of images in the folder has a generic name (``images``), its images are the samples.
    - If the folder has only folders of images, images at any depth are the samples.
    - Without images, ``.npy`` files are the images.
    """

    kind = "flat"
    left_images = "images in subfolders"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._folder = find_lone_image_folder(self.tree) or ""
        self.evidence = f"images in {printable(self._folder)} and nowhere else" if self._folder else "images at its top"

    def _list_split_folders(self, ignored: Counter[str], split: str | None) -> list[SplitFolder]:
        """Returns the folder of the images, without splits and classes."""
        return [SplitFolder("", self._folder, (), 0, self.tree.above)]

    def _list_directories(self, folder: SplitFolder, ignored: Counter[str]) -> Iterator[tuple[str, str, Listing]]:
        """Yields the folder of the images with its listing; all folders if there are no images at the top."""
        for directory, listing in self.tree.walk(folder.directory, folder.above, ignored, self.options.skip_bad):
            yield "", directory, listing
            if listing.images and directory == folder.directory:
                return

    def _refuse_without_folders(self, images: int, ignored: Counter[str]) -> None:
        """Raises :class:`SourceError` if there are no images."""
        if not images:
            super()._refuse_without_folders(images, ignored)


class LabelledSource(ListedSource):
    """Images of a folder, at any depth, in the order of a labels file.

    The labels file is a table with the columns ``file``, ``label`` and optionally ``split``. If all labels are whole
    numbers, they are class numbers without names. Otherwise all are names of classes, numbered in sorted order.

    Opening reads the table, and raises :class:`SourceError` for a malformed row, and for an image with two labels.
    Listing raises it for a missing image.
    """

    kind = "flat"
    left_images = "images that the labels file does not name"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        assert options.labels is not None
        self._labels = options.labels
        self.evidence = f"the labels in {self._labels.name}"
        self._names: set[str] = set()
        self._holds_numbers = False
        listed = ListedValues(self.tree, printable(str(self._labels)), self._read_labels())
        self.listed, self.assigned = listed, listed.splits
        if not self.listed.image_count:
            raise SourceError(
                f"{printable(str(self._labels))} names no files: expected file,label or file,label,split, with commas"
            )
        for image in self.listed.images_with_several():
            (first, label), *others = self.listed.values_of(image)
            for place, other in others:
                if other != label:
                    named = printable(self.listed.image_path(image))
                    raise SourceError(f"{place}: {named} is {printable(other)!r}, and {printable(label)!r} in {first}")
        if self._names and self._holds_numbers:  # then labels that look like numbers are names, too
            self._names.update(label for _, label in self.listed)
        self._numbers = {name: number for number, name in enumerate(sorted(self._names))}

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields ``image`` and ``label``."""
        return {"image": Image(), "label": Label(tuple(self._numbers) or None)}

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads ``image`` and ``label``."""
        values = dict(super().read_values(ref))
        _, label = self.listed.values_of(values.pop("entry"))[0]
        return {**values, "label": self._numbers[label] if self._numbers else int(label)}

    def describing_files(self) -> Iterable[str]:
        """Returns none: the labels file may be outside of the tree."""
        return ()

    def claim_files(self, claims: Claims) -> None:
        """Claims the labels file."""
        self.claim_paths(claims, [self._labels.absolute()], Role.ANNOTATION)

    def stamp(self) -> str:
        """Returns the stamp of an archive, and size and times of the labels file."""
        return " ".join(filter(None, (super().stamp(), stamp_files([self._labels]))))

    def _make_sized_row(self, row: FileRow) -> Row:
        """Makes a row as the base does."""
        sized = super()._make_sized_row(row)
        *_, rest = sized.ref
        if isinstance(rest, str):
            place, _ = self.listed.values_of(row.values["entry"])[0]
            why = "left out by --ignore" if self.tree.rules.hides(row.file) else rest
            raise SourceError(f"{place}: {printable(row.file)} in {self.tree.name()}: {why}")
        return sized

    def _read_labels(self) -> Iterator[tuple[str, tuple[str, str], str]]:
        """Yields image, place and label, and split of each row of the labels file."""

        from packstore.sources.table.reading import read_table

        if suffix_of(self._labels.name) not in _TABLES:
            raise SourceError(f"{printable(str(self._labels))}: labels are in {', '.join(_TABLES)} files")
        if not self._labels.exists():
            raise NotInSourceError(f"{printable(str(self._labels))}: no such file")
        columns: list[str] = []
        for place, cells in read_table(open_required_tree(self._labels.parent), self._labels.name, header=True):
            if not columns:
                columns = _find_columns(place, cells)
            file, label, *split = (str(cells.get(name) or "").strip() for name in columns)
            if not (file and label and all(split)):
                raise SourceError(f"{place}: an empty cell; expected {', '.join(columns)}")
            if _NUMBER.fullmatch(label) and int(label) <= _MAX_LABEL:
                self._holds_numbers = True
            else:
                self._names.add(label)
            try:
                yield clean_path(file), (place, label), lower_known_split("".join(split))
            except ValueError as error:
                raise SourceError(f"{place}: {error}") from None


def _find_columns(place: str, names: Iterable[str]) -> list[str]:
    """Returns the columns of files, labels and, if there is one, splits."""
    known = {name.lower(): name for name in names}
    file, label = (next((known[n] for n in usual if n in known), None) for usual in (FILE_COLUMNS, LABEL_COLUMNS))
    if file is None or label is None:
        missing = "file" if file is None else "label"
        header = printable(",".join(known)[:_SHOWN])
        raise SourceError(f"{place}: no column {missing}: {header}; expected file,label or file,label,split")
    return [file, label, *([known["split"]] if "split" in known else [])]


def _open(path: Path, options: SourceOptions) -> Source:
    """Opens images without labels, or with a labels file."""
    return FlatSource(path, options) if options.labels is None else LabelledSource(path, options)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder of images: certain if images are directly in it, or only in a folder such as ``images``."""
    if options.labels is not None:
        return Certainty.CERTAIN
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    found = tree.list("").images or find_lone_image_folder(tree) is not None
    return Certainty.CERTAIN if found else Certainty.POSSIBLE


KIND = Kind(
    "flat",
    "a folder of images, with labels in a CSV file or none",
    _recognise,
    _open,
    takes_labels=True,
    in_objects=True,
)
