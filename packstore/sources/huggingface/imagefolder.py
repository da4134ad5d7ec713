"""Image folders as ``datasets`` reads them: with metadata beside the images, or with the splits that a card gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Boxes, Field, Image, Images, Json, Label, Labels, Mask
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import infer_mask_field, join
from packstore.sources.boxes import NOT_CONVERTED, to_corners
from packstore.sources.huggingface.card import CARD, Card, parse_card
from packstore.sources.huggingface.metadata import FILES, Line, has_file_names, names_several, read_metadata
from packstore.sources.huggingface.objects import ObjectColumn, Objects, find_objects, kind_of_value, merged_kind
from packstore.sources.huggingface.splits import IN_FOLDER, IN_NAME, matches
from packstore.sources.labels import hash_file, lower_known_split
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.names import make_column_names
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.tree import Tree
from packstore.sources.values import looks_like_mask

_CARD_BYTES = 8 << 20
_LEVELS, _NAMES, _SHOWN = 4, 256, 8
_LOOKED_AT = 64
_MAX_SPLITS = 100


class HfImageFolderSource(FileRowSource):
    """An image folder of Hugging Face.

    With metadata, the samples are their rows in order. Without, they are the images of the splits in the card, labelled
    by the names of their folders where ``datasets`` does so: all on one level, in more than one folder.
    """

    kind = "hf_imagefolder"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._card = _card_of(self.tree, path)
        files = list(_find_metadata(self.tree, self.options.skip_bad))
        self._metadata = read_metadata(self.tree, files, self._card.features) if files else None
        if not files and self._card.data_files is None:
            raise SourceError(f"{printable(str(path))} has no {' or '.join(FILES)}, and no card that gives its files")
        self.evidence = ", ".join(files[:3]) + (" …" if len(files) > 3 else "") if files else f"data_files in {CARD}"

    def splits(self) -> Sequence[str]:
        return in_packing_order(map(lower_known_split, self._splits))

    def describing_files(self) -> Iterable[str]:
        return (*(self._metadata.files if self._metadata else ()), *([CARD] if self._card != Card() else []))

    def fields(self) -> Mapping[str, Field]:
        found: dict[str, Field] = {"image": Image()}
        if self._metadata is None:
            return found | ({"label": Label(self._folder_classes)} if self._folder_classes else {})
        for name in self._metadata.images:
            if name in self._names:
                found[self._names[name]] = Images() if names_several(name) else self._further(name)
        found |= {self._names[name]: field for name, field in self._metadata.fields.items()}
        objects = self._objects
        if objects is None:
            return found
        boxes, labels = self._object_names
        optional = self._metadata.fields[objects.column].optional or any(
            line.values.get(objects.column) is None for line in self._metadata.lines()
        )
        if objects.boxes and not objects.has_rest:
            del found[self._names[objects.column]]
        return (
            found
            | {boxes: Boxes(optional=optional)}
            | ({labels: Labels(objects.classes, of=boxes, optional=optional)} if objects.labels else {})
        )

    def values(self, ref: Any) -> Mapping[str, Any]:
        found = dict(super().values(ref))
        objects = self._objects
        if objects is None:
            return found
        boxes, labels = self._object_names
        value = found[self._names[objects.column]]
        if objects.labels:
            found[labels] = objects.labels_of(value if objects.boxes else found[labels])
        found[self._names[objects.column]] = objects.rest_of(value) if objects.boxes else value
        if objects.boxes and not objects.has_rest:
            del found[self._names[objects.column]]
        raw = objects.boxes_of(value)
        found[boxes] = None if raw is None else to_corners(raw, objects.convention, found["image"])
        return found

    @cached_property
    def _objects(self) -> ObjectColumn | None:
        """The column of the metadata that holds boxes, with their convention. Raises :class:`SourceError`."""
        metadata, said = self._metadata, self.options.layout
        if metadata is None or said == NOT_CONVERTED:
            return None
        documents = [name for name, field in metadata.fields.items() if isinstance(field, Json)]
        lists = [name for name, field in metadata.fields.items() if isinstance(field, Array) and field.ragged]
        kinds: dict[str, str | dict[str, str] | None] = {}
        for line in metadata.lines() if documents else ():  # boxes are documents
            for name in (*documents, *lists):
                kinds[name] = merged_kind(kinds.get(name), kind_of_value(line.values.get(name)))
        found = find_objects({name: kind for name, kind in kinds.items() if kind is not None})
        if found is None:
            return None
        objects = Objects(found)
        for line in metadata.lines():
            sides = (line.values.get("width"), line.values.get("height"))
            objects.add(line.values.get(found.column), line.values.get(found.labels), sides)
        return objects.settle(said, printable(str(self.path)), self.path)

    @cached_property
    def _object_names(self) -> tuple[str, str]:
        """The names of the columns of boxes and of their labels."""
        assert self._objects is not None
        if self._objects.boxes:
            boxes, labels = make_column_names(["boxes", "labels"], ["image", *self._names.values()]).values()
            return boxes, labels
        return self._names[self._objects.column], self._names.get(self._objects.labels, "")

    def file_rows(self, split: str) -> Iterator[FileRow]:
        if self._metadata is None:
            for file in self._listed():
                if lower_known_split(self._split_of(file)) == split:
                    folder = file.rpartition("/")[0].rpartition("/")[2] or self.path.resolve().name
                    yield FileRow(file, {"label": folder} if self._folder_classes else {})
            return
        times: Counter[str] = Counter()
        for line in self._metadata.lines():
            file = self._file(line)
            if lower_known_split(self._split_of(file)) != split:
                continue
            values = {self._names[name]: value for name, value in self._metadata.others(line).items()}
            for name in self._metadata.images:
                files = line.paths(name)[name == self._main :]
                if names_several(name):
                    values[self._names[name]] = [*map(InTree, files)]
                elif files:
                    values[self._names[name]] = InTree(files[0])
            again = ""
            if self._is_repeated(file):
                again = f"#{times[file]}" if times[file] else ""
                times[file] += 1
            yield FileRow(file, values, file + again)

    def left_reason(self, folder: str, name: str) -> str | None:
        if name.lower().endswith(IMAGE_SUFFIXES):
            return "images that the metadata do not name" if self._metadata else "images of no split"
        return None

    @cached_property
    def _main(self) -> str:
        """The column that names the main images."""
        images = self._metadata.images if self._metadata else {}
        return next((name for name, called in images.items() if called == "image"), next(iter(images), ""))

    @cached_property
    def _names(self) -> dict[str, str]:
        """The names of columns: of images, that without ``_file_name``. If the main images are the first of lists,
        the others are ``further_…``."""
        if self._metadata is None:
            return {}
        called = {
            name: self._metadata.images.get(name, name) for name in (*self._metadata.images, *self._metadata.fields)
        }
        if names_several(self._main):
            called[self._main] = f"further_{called[self._main]}"
        else:
            called.pop(self._main, None)
        own = make_column_names(called.values(), ["image"])
        return {column: own[name] for column, name in called.items()}

    def _further(self, column: str) -> Image | Mask:
        """What the images are that a column names besides the main ones."""
        assert self._metadata is not None
        if not looks_like_mask(self._names[column]):
            return Image(optional=True)
        named = (line.path(column) for line in self._metadata.lines())
        return infer_mask_field(self.tree, islice(filter(None, named), _LOOKED_AT))

    def _file(self, line: Line) -> str:
        file = line.path(self._main)
        if file is None:
            raise SourceError(f"{line.place}: no {printable(self._main)}")
        return file

    def _files(self) -> Iterator[str]:
        """The main image of each sample, before it is known of which split they are."""
        if self._metadata is None:
            return self._listed()
        return map(self._file, self._metadata.lines())

    def _listed(self) -> Iterator[str]:
        """The images that the card gives a split."""
        for directory, listing in self.tree.walk("", self.tree.above, skip_cycles=self.options.skip_bad):
            for name in listing.images:
                if self._split_of(join(directory, name)):
                    yield join(directory, name)

    @cached_property
    def _hashes(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.sort(np.fromiter(map(hash_file, self._files()), np.uint64))

    def _count(self, file: str) -> int:
        wanted = np.uint64(hash_file(file))
        return int(np.searchsorted(self._hashes, wanted, "right") - np.searchsorted(self._hashes, wanted))

    def _is_repeated(self, file: str) -> bool:
        return self._has_repeated and self._count(file) > 1

    @cached_property
    def _has_repeated(self) -> bool:
        return bool(np.any(self._hashes[1:] == self._hashes[:-1]))

    def _is_named(self, file: str) -> bool:
        if self._count(file):
            return True
        several = self._metadata is not None and (len(self._metadata.images) > 1 or names_several(self._main))
        return several and hash_file(file) in self._further_named

    @cached_property
    def _further_named(self) -> frozenset[int]:
        """Hashes of the images that are named besides the main ones."""
        assert self._metadata is not None
        named = (
            file
            for line in self._metadata.lines()
            for name in self._metadata.images
            for file in line.paths(name)[name == self._main :]
        )
        return frozenset(map(hash_file, named))

    @cached_property
    def _folder_classes(self) -> tuple[str, ...]:
        """Names of folders as classes, as ``FolderBasedBuilder._split_generators`` decides."""
        if self._card.drop_labels:
            return ()
        folders, depths = set(), set()
        for file in self._listed():
            folders.add(file.rpartition("/")[0])
            depths.add(file.count("/"))
        classes = sorted({folder.rpartition("/")[2] or self.path.resolve().name for folder in folders})
        kept = self._card.drop_labels is False or (len(classes) > 1 and len(depths) == 1)
        return tuple(classes) if kept else ()

    @cached_property
    def _splits(self) -> tuple[str, ...]:
        """The splits that there are, by the patterns that tell them."""
        if self._patterns is None:
            return ("",)
        return tuple(dict.fromkeys(self._split_of(file) for file in self._files()))

    @cached_property
    def _patterns(self) -> Mapping[str, Sequence[str]] | None:
        """Patterns of the files of each split: the card's, else words in the names of folders, else in those of files.

        Raises :class:`SourceError` where words tell the split of some images and not of others."""
        if self._card.data_files is not None:
            return self._card.data_files
        for patterns in (IN_FOLDER, IN_NAME):
            found: Counter[int] = Counter()
            example: dict[int, str] = {}
            for file in self._files():
                number = len(_matching(file, patterns))
                found[number] += 1
                example.setdefault(number, file)
            if found.keys() == {1}:
                return patterns
            if patterns is IN_FOLDER and found.keys() != {0}:
                one = example.get(0) or example[max(example)]
                tops = sorted({file.partition("/")[0] for file in self._files() if "/" in file})
                raise AmbiguousSourceError(
                    f"{self.tree.name()}: folders tell the split of some images, but {printable(one)} is of "
                    f"{'none' if 0 in example else 'several'}: name the files of each split in the card's data_files, "
                    "or give one of the folders",
                    [Answer(source=self.path / top) for top in tops[:_SHOWN] if self.path.is_dir()],
                    self.path,
                )
        return None

    def _split_of(self, file: str) -> str:
        """The split of an image; empty where there are no splits, and for one that the card gives none."""
        if self._patterns is None:
            return ""
        found = _matching(file, self._patterns)
        if len(found) > 1:
            raise SourceError(
                f"{self.tree.name(file)} is of {' and '.join(map(printable, found))} by the card's data_files"
            )
        if not found and self._metadata is not None:
            found = self._split_of_metadata(file)
        return found[0] if found else ""

    def _split_of_metadata(self, file: str) -> tuple[str, ...]:
        """Of an image that the card's patterns leave out: the split of the metadata that name it."""
        assert self._metadata is not None
        assert self._patterns is not None
        beside = [name for name in self._metadata.files if file.startswith(name.rpartition("/")[0])]
        return _matching(max(beside, key=len), self._patterns) if beside else ()


def _matching(file: str, patterns: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    if patterns is IN_FOLDER:  # which look at folders alone
        return _matching_folder(file.rpartition("/")[0])
    return tuple(split for split, its in patterns.items() if any(matches(pattern, file) for pattern in its))


@lru_cache(1 << 12)
def _matching_folder(folder: str) -> tuple[str, ...]:
    return tuple(split for split, its in IN_FOLDER.items() if any(matches(pattern, f"{folder}/x") for pattern in its))


def _card_of(tree: Tree, path: Path) -> Card:
    try:
        return parse_card(tree.start(CARD, _CARD_BYTES), path)
    except AmbiguousSourceError:
        raise
    except ValueError as error:
        raise SourceError(f"{tree.name(CARD)}: its head {error}") from error


def _find_metadata(tree: Tree, skip_cycles: bool) -> Iterator[str]:
    for directory, _ in tree.walk("", tree.above, skip_cycles=skip_cycles):
        for name in tree.names(directory).ending(".csv", ".jsonl", ".parquet"):
            if name in FILES:
                yield join(directory, name)


def _upper_files(tree: Tree, *suffixes: str) -> Iterator[str]:
    """Yields the files of some suffixes in the upper folders of a tree, those near the top first."""
    folders = [""]
    for _ in range(_LEVELS):
        below = []
        for folder in folders:
            names = tree.names(folder)
            below += [join(folder, name) for name in names.folders if name[0] != "."]
            yield from (join(folder, name) for name in names.ending(*suffixes))
        folders = below


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """A folder or archive with metadata that name files, or with a card that gives the images of each split."""
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    tables = _upper_files(tree, ".csv", ".jsonl", ".parquet")
    metadata = [file for file in tables if file.rpartition("/")[2] in FILES]
    images = _upper_files(tree, *IMAGE_SUFFIXES)
    if metadata:
        named = all(has_file_names(tree, file) for file in metadata)
        return Certainty.CERTAIN if named and any(images) else Certainty.NO
    card = _card_of(tree, path) if any(images) else Card()
    patterns = [pattern for its in (card.data_files or {}).values() for pattern in its]
    found = patterns and any(
        matches(pattern, file) for file in _upper_files(tree, *IMAGE_SUFFIXES) for pattern in patterns
    )
    return Certainty.CERTAIN if found else Certainty.NO


KIND = Kind(
    "hf_imagefolder",
    "images with metadata.csv, .jsonl or .parquet, as Hugging Face's",
    _recognise,
    HfImageFolderSource,
    takes_boxes=True,
    in_objects=True,
)
