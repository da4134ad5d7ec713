"""Image folders as ``datasets`` reads them: with metadata beside the images, or with the splits that a card states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Array, Field, Image, Images, Json, Label, Labels, Mask
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import infer_mask_field, join
from packstore.sources.boxes import NOT_CONVERTED, to_corners
from packstore.sources.columns import make_column_names
from packstore.sources.huggingface import features as hf
from packstore.sources.huggingface import splits as hf_splits
from packstore.sources.huggingface.metadata import FILES, MetadataRow, has_file_names, names_lists, read_metadata
from packstore.sources.huggingface.splits import CARD, Card
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.schema import RELATIVE
from packstore.sources.splits import lower_known_split
from packstore.sources.values import looks_like_mask

_PROBED_MASKS = 64


class HfImageFolderSource(FileRowSource):
    """Source for an image folder of Hugging Face.

    With metadata files, each of their rows is a sample, in order. Later rows of one image have keys such as
    ``a.jpg#1``.

    Without metadata files, the samples are the images to which the card gives a split. Folders are classes if the card
    says so. If the card says nothing, they are classes as in ``datasets``: all images lie on one level, in folders of
    several names.

    Opening reads all metadata once. It raises :class:`SourceError` for bad metadata, and if there are no metadata files
    and no card that states files.
    """

    kind = "hf_imagefolder"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._card = hf_splits.read_card(self.tree, path)
        files = [
            join(folder, name)
            for folder, _ in self.tree.walk("", self.tree.above, skip_cycles=self.options.skip_bad)
            for name in self.tree.names(folder).ending(".csv", ".jsonl", ".parquet")
            if name in FILES
        ]
        self._metadata = read_metadata(self.tree, files, self._card.features) if files else None
        if not files and self._card.data_files is None:
            raise SourceError(f"{printable(str(path))} has no {' or '.join(FILES)}, and no card that gives its files")
        self.evidence = ", ".join(files[:3]) + (" …" if len(files) > 3 else "") if files else f"data_files in {CARD}"

    def splits(self) -> Sequence[str]:
        """Returns the splits of all samples; reads all rows first.

        Raises :class:`SourceError` for an image of two splits. Raises :class:`AmbiguousSourceError` if only some images
        lie in folders that name a split.
        """
        return self._splits

    def describing_files(self) -> Iterable[str]:
        """Returns the metadata files, and the card unless it is empty."""
        return (*(self._metadata.files if self._metadata else ()), *([CARD] if self._card != Card() else []))

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image, the columns of the metadata, and boxes with labels.

        Without metadata, returns those of the image, and of ``label`` if folders are classes.
        """
        columns: dict[str, Field] = {"image": Image()}
        if self._metadata is None:
            return columns | ({"label": Label(self._folder_classes)} if self._folder_classes else {})
        for name in self._metadata.images:
            if name in self._field_names:
                columns[self._field_names[name]] = Images() if names_lists(name) else self._declare_further_image(name)
        columns |= {self._field_names[name]: field for name, field in self._metadata.fields.items()}
        if self._object_column is None:
            return columns
        objects, name, parts = self._object_column
        if objects.boxes and not objects.has_rest:
            del columns[name]
        columns |= {part: field for part, (field, _) in parts.items()}
        if objects.labels and not objects.boxes:
            optional = columns[name].optional
            columns[self._field_names[objects.labels]] = Labels(objects.classes, of=name, optional=optional)
        return columns

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the files and values of a row. Converts its boxes, if any, to corners in pixels.

        Separates objects into boxes, labels and the other members. Raises :class:`ValueError` for invalid boxes and
        labels.
        """
        values = dict(super().read_values(ref))
        if self._object_column is None:
            return values
        objects, name, parts = self._object_column
        value = values.pop(name) if objects.boxes else values[name]
        values |= {part: convert(value) for part, (_, convert) in parts.items()}
        if objects.has_rest:
            values[name] = objects.rest_of(value)
        if objects.labels and not objects.boxes:
            labels = self._field_names[objects.labels]
            values[labels] = objects.labels_of(values[labels])
        boxes = next(iter(parts))
        if values[boxes] is not None:
            values[boxes] = to_corners(values[boxes], objects.convention, values["image"])
        return values | {RELATIVE: objects.convention.endswith("n")}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of the metadata that are of the split.

        Without metadata, yields the images to which the card gives the split.
        """
        return self._card_rows(split) if self._metadata is None else self._metadata_rows(split)

    def _card_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image to which the card gives the split.

        If folders are classes, the label is the name of the image's folder.
        """
        for file in self._list_images():
            if lower_known_split(self._find_split(file)) == split:
                folder = file.rpartition("/")[0].rpartition("/")[2] or self.path.resolve().name
                yield FileRow(file, {"label": folder} if self._folder_classes else {})

    def _metadata_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split in the metadata. Later rows of one image have keys such as ``a.jpg#1``.

        Raises :class:`SourceError` for a row without a main image, and for a value that does not fit its field.
        """
        assert self._metadata is not None
        times: Counter[str] = Counter()
        for row in self._metadata.rows():
            file = self._main_file(row)
            if lower_known_split(self._find_split(file)) != split:
                continue
            values = {self._field_names[name]: value for name, value in self._metadata.convert_values(row).items()}
            for name in self._metadata.images:
                files = row.list_paths(name)[name == self._main_column :]
                if names_lists(name):
                    values[self._field_names[name]] = [*map(InTree, files)]
                elif files:
                    values[self._field_names[name]] = InTree(files[0])
            key = f"{file}#{times[file]}" if times[file] else file
            if _hash_path(file) in self._repeated_path_hashes:
                times[file] += 1
            yield FileRow(file, values, key)

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason why an image is left out: no metadata name it, or it is of no split. None for other
        files."""
        if name.lower().endswith(IMAGE_SUFFIXES):
            return "images that the metadata do not name" if self._metadata else "images of no split"
        return None

    @cached_property
    def _object_column(self) -> tuple[hf.ObjectColumn, str, Mapping[str, tuple[Field, Callable[[Any], Any]]]] | None:
        """Column of the metadata that holds boxes, with their convention; the name of its field; and its
        :meth:`ObjectColumn.declare_parts`. None if there is none, or boxes stay JSON.

        Reads all rows. Raises :class:`AmbiguousSourceError` if the convention is not clear.
        """
        metadata, layout = self._metadata, self.options.layout
        if metadata is None or layout == NOT_CONVERTED:
            return None
        documents = [name for name, field in metadata.fields.items() if isinstance(field, Json)]
        lists = [name for name, field in metadata.fields.items() if isinstance(field, Array) and field.ragged]
        kinds: dict[str, hf.ValueKind | None] = {}
        for row in metadata.rows() if documents else ():  # boxes are documents
            for name in (*documents, *lists):
                kinds[name] = hf.merge_kinds(kinds.get(name), hf.classify_value(row.values.get(name)))
        objects = hf.find_object_column({name: kind for name, kind in kinds.items() if kind is not None})
        if objects is None:
            return None
        facts, optional = hf.ObjectFacts(objects), metadata.fields[objects.column].optional
        for row in metadata.rows():
            sides = (row.values.get("width"), row.values.get("height"))
            facts.add_row(row.values.get(objects.column), row.values.get(objects.labels), sides)
            optional |= row.values.get(objects.column) is None
        decided = facts.decide_convention(layout, self.path)
        if decided is None:
            return None
        name = self._field_names[objects.column]
        return decided, name, decided.declare_parts(name, ["image", *self._field_names.values()], optional)

    @cached_property
    def _main_column(self) -> str:
        """Column that names the main images: ``file_name``, else the first column that names images."""
        images = self._metadata.images if self._metadata else {}
        return next((column for column, name in images.items() if name == "image"), next(iter(images), ""))

    @cached_property
    def _field_names(self) -> dict[str, str]:
        """Name of the field of each column of the metadata; empty without metadata.

        A column with one main image a row has no field here. A column with lists of images has the field ``further_…``,
        which holds the images after the first.
        """
        if self._metadata is None:
            return {}
        wanted = self._metadata.images | {name: name for name in self._metadata.fields}
        if names_lists(self._main_column):
            wanted[self._main_column] = f"further_{wanted[self._main_column]}"
        else:
            wanted.pop(self._main_column, None)
        unique = make_column_names(wanted.values(), ["image"])
        return {column: unique[name] for column, name in wanted.items()}

    def _declare_further_image(self, column: str) -> Image | Mask:
        """Returns the field of a column of images beside the main ones: optional images.

        If the column's name means masks, its first readable file among 64 decides between masks and images.
        """
        assert self._metadata is not None
        if not looks_like_mask(self._field_names[column]):
            return Image(optional=True)
        files = (row.first_path(column) for row in self._metadata.rows())
        return infer_mask_field(self.tree, islice(filter(None, files), _PROBED_MASKS))

    def _main_file(self, row: MetadataRow) -> str:
        """Returns the path of a row's main image. Raises :class:`SourceError` if it has none."""
        file = row.first_path(self._main_column)
        if file is None:
            raise SourceError(f"{row.place}: no {printable(self._main_column)}")
        return file

    def _main_files(self) -> Iterator[str]:
        """Yields the path of each sample's main image, in all splits. Raises :class:`SourceError` for a row without
        one."""
        if self._metadata is None:
            return self._list_images()
        return map(self._main_file, self._metadata.rows())

    def _list_images(self) -> Iterator[str]:
        """Yields the paths of the images to which the card gives a split. Raises :class:`SourceError` for an image
        of two splits."""
        for directory, listing in self.tree.walk("", self.tree.above, skip_cycles=self.options.skip_bad):
            for name in listing.images:
                if self._find_split(join(directory, name)):
                    yield join(directory, name)

    @cached_property
    def _repeated_path_hashes(self) -> frozenset[int]:
        """Hashes of the paths of main images that several samples have. Reads all rows."""
        hashes = np.sort(np.fromiter(map(_hash_path, self._main_files()), np.uint64))
        return frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())

    @cached_property
    def _folder_classes(self) -> tuple[str, ...]:
        """Names of folders as classes, sorted; empty if folders are no classes.

        The ``drop_labels`` of the card decides. If the card lacks this, two conditions decide, as in ``datasets``
        (``FolderBasedBuilder._split_generators``): all images are on one level, and their folders have several names.
        """
        if self._card.drop_labels:
            return ()
        folders, depths = set(), set()
        for file in self._list_images():
            folders.add(file.rpartition("/")[0])
            depths.add(file.count("/"))
        classes = sorted({folder.rpartition("/")[2] or self.path.resolve().name for folder in folders})
        kept = self._card.drop_labels is False or (len(classes) > 1 and len(depths) == 1)
        return tuple(classes) if kept else ()

    @cached_property
    def _patterns(self) -> hf_splits.Patterns | None:
        """hf_splits.Patterns of the files of each split; None without splits.

        The patterns are the card's. If the card has none, they are words such as ``train`` in the names of folders or
        files. Raises :class:`AmbiguousSourceError` if only some images lie in folders that name a split.
        """
        if self._card.data_files is not None:
            return self._card.data_files
        return hf_splits.choose_word_patterns(self._main_files, self.tree.name(), self.path)

    @cached_property
    def _splits(self) -> tuple[str, ...]:
        """Splits of all samples, in packing order; ``("",)`` without splits."""
        if self._patterns is None:
            return ("",)
        return in_packing_order({lower_known_split(self._find_split(file)) for file in self._main_files()})

    def _find_split(self, file: str) -> str:
        """Returns the split of an image, by the image's path. If that has none, decides by the path of the metadata
        file.

        Returns ``""`` if neither path has a split. Raises :class:`SourceError` for an image of two splits.
        """
        if self._patterns is None:
            return ""
        splits = hf_splits.find_splits(file, self._patterns)
        if len(splits) > 1:
            raise SourceError(
                f"{self.tree.name(file)} is of {' and '.join(map(printable, splits))} by the card's data_files"
            )
        if not splits and self._metadata is not None:
            beside = [name for name in self._metadata.files if file.startswith(join(name.rpartition("/")[0], ""))]
            splits = hf_splits.find_splits(max(beside, key=len), self._patterns) if beside else ()
        return splits[0] if splits else ""


def _hash_path(file: str) -> int:
    """Hashes the path of a file with XXH3-64."""
    return xxhash.xxh3_64_intdigest(file.encode("utf-8", "surrogatepass"))


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises metadata files beside images, or a card whose patterns match images: ``CERTAIN``, else ``NO``.

    Looks into the upper four levels of folders. Returns ``NO`` if some metadata file names no files. Raises
    :class:`SourceError` for a malformed card. Raises :class:`AmbiguousSourceError` for several configurations without a
    default.
    """
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    tables = hf_splits.list_upper_files(tree, ".csv", ".jsonl", ".parquet")
    metadata = [file for file in tables if file.rpartition("/")[2] in FILES]
    has_images = any(hf_splits.list_upper_files(tree, *IMAGE_SUFFIXES))
    if metadata:
        named = all(has_file_names(tree, file) for file in metadata)
        return Certainty.CERTAIN if named and has_images else Certainty.NO
    card = hf_splits.read_card(tree, path) if has_images else Card()
    patterns = [pattern for its in (card.data_files or {}).values() for pattern in its]
    images = hf_splits.list_upper_files(tree, *IMAGE_SUFFIXES) if patterns else ()
    matches = any(hf_splits.matches_pattern(pattern, file) for file in images for pattern in patterns)
    return Certainty.CERTAIN if matches else Certainty.NO


KIND = Kind(
    "hf_imagefolder",
    "images with metadata.csv, .jsonl or .parquet, as Hugging Face's",
    _recognise,
    HfImageFolderSource,
    takes_boxes=True,
    in_objects=True,
)
