"""Base of annotation formats: a format declares how to find its files, and parses the annotation of one image.

:class:`SidecarSource` is for formats with a file for each image, :class:`DocumentSource` (in :mod:`.documents`) for
those with a file for many. Both read all annotations once, when columns are declared, since classes and columns depend
on the whole data set. The column ``json`` keeps the content of the files unchanged, so nothing of it is lost.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from packstore.core.errors import AmbiguousSourceError, SampleError, SourceError, printable
from packstore.sources.annotation_formats.columns import AnnotationColumns
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import join, read_text
from packstore.sources.contents import list_contents
from packstore.sources.encodings import convert_start
from packstore.sources.file_rows import FileRow, FileRowSource, InTree
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_splits_of_folders, is_split
from packstore.sources.tree import Tree

_MAX_BYTES = 256 << 20
_START, _LOOKED_AT = 1 << 16, 16


class AnnotatedSource(AnnotationColumns, FileRowSource):
    """Base of annotation formats whose images are files: converts the raw annotation of each row to columns.

    Attributes:
        expected: Matches paths of further files that belong to the layout, and are left without a question.
    """

    left_images = "images without annotations in other folders"
    expected: ClassVar[re.Pattern[str]] = re.compile("(?!)")

    def expects_left(self, path: str) -> bool:
        """Tells if a left file matches :attr:`expected`: such files raise no question."""
        return self.expected.fullmatch(path) is not None

    @abstractmethod
    def pop_annotation(self, values: dict[str, Any]) -> Any:
        """Removes the raw annotation from the values of a row, and returns it; None if the row has none."""

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image and converts its annotation to columns. Without annotation, returns the image alone. Raises
        :class:`ValueError` for an invalid annotation."""
        values = dict(super().read_values(ref))
        raw = self.pop_annotation(values)
        with self.name_annotation_file(ref):
            return values if raw is None else values | self.make_column_values(raw, values[self.main])


class AnnotatedFolder(NamedTuple):
    """Folder of images, folder of their annotations (None if it is missing), and split."""

    images: str
    annotations: str | None
    split: str


class SidecarSource(AnnotatedSource):
    """Base of formats with a file of annotations for each image. The files are in the images' folder or in another.

    An image without such a file has no annotation. Opening raises :class:`SourceError` if there is no annotation at
    all. The split of an image is a folder in its path with the name of a split. If no path has such a folder, it is a
    word of the folder's name, if each folder has one: ``VisDrone2019-DET-train``.

    Attributes:
        folder_pairs: Pairs of folder names: of images, and of annotations. ``("", "")`` means one folder for both.
        patterns: Names of the files of annotations, with ``{stem}`` or ``{name}`` of the image.
        signature: Matches the beginning of a file of annotations that is not empty. Half of the first 16 in a folder
            must match; the others are bad samples.
    """

    folder_pairs: ClassVar[Sequence[tuple[str, str]]]
    patterns: ClassVar[Sequence[str]] = ("{stem}.json",)
    signature: ClassVar[re.Pattern[bytes]]

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._folders = self.find_folders(self.tree)
        if not any(folder.annotations is not None for folder in self._folders):
            raise SourceError(f"{printable(str(path))} has no images with annotations of {self.title}")
        places = dict.fromkeys(each.annotations for each in self._folders if each.annotations is not None)
        self.evidence = f"annotations of {self.title} in " + ", ".join(printable(p) or "the folder" for p in places)

    @classmethod
    def find_folders(cls, tree: Tree) -> list[AnnotatedFolder]:
        """Finds the folders of images that have annotations, with their splits; ``[]`` if there are none.

        Adds folders of images without annotations, if they have the same name for images. If the images' folders have
        no such name, adds those at the top that are named like a split.
        """
        contents = list_contents(tree)
        suffixes = {f".{pattern.rpartition('.')[2].lower()}" for pattern in cls.patterns}
        with_files = {path for path, each in contents.folders.items() if suffixes & each.others.keys()}
        if not with_files:
            return []
        folders, used, unpaired = [], set(), []
        for path, folder in contents.folders.items():
            if not folder.images.count:
                continue
            pairs = [(pair, place) for pair in cls.folder_pairs for place in _list_annotation_folders(path, *pair)]
            pairs = [each for each in pairs if each[1] in with_files]
            match = next((each for each in pairs if cls._annotates_images(tree, path, each[1])), None)
            if match is None:
                unpaired.append(path)
            else:
                folders.append(AnnotatedFolder(path, match[1], ""))
                used.add(match[0])
        taken = {folder.annotations for folder in folders}
        alike = [
            path
            for path in unpaired
            if path not in taken
            and any(image.lower() in map(str.lower, path.split("/")) if image else is_split(path) for image, _ in used)
        ]
        folders += [AnnotatedFolder(path, None, "") for path in alike]
        splits = find_splits_of_folders((each.images for each in folders), some=True)
        return [folder._replace(split=splits.get(folder.images, "")) for folder in folders]

    @classmethod
    def _annotates_images(cls, tree: Tree, images: str, folder: str) -> bool:
        """Tells if ``folder`` has annotations of this format for images in the folder ``images``. At least one file of
        annotations must not be empty, and half of the first 16 such files must match :attr:`signature`."""
        there = set(tree.names(folder).files)
        looked = matches = 0
        for image in tree.names(images).ending(*IMAGE_SUFFIXES):
            for name in cls._list_annotation_names(image):
                start = convert_start(tree.first_bytes(join(folder, name), _START)) if name in there else b""
                if start.strip():
                    matches += cls.signature.search(start) is not None
                    looked += 1
            if looked == _LOOKED_AT:
                break
        return 0 < looked <= 2 * matches

    @classmethod
    def list_sidecar_extensions(cls) -> frozenset[str]:
        """Returns the extensions that mark annotations beside an image of the same name. Empty if annotations are never
        in the images' folder."""
        patterns = cls.patterns if ("", "") in cls.folder_pairs else ()
        return frozenset(each.removeprefix("{stem}.") for each in patterns if each.startswith("{stem}."))

    @classmethod
    def _list_annotation_names(cls, image: str) -> list[str]:
        """Lists the names that the file of annotations of an image may have."""
        stem = image.rpartition(".")[0]
        return [pattern.replace("{stem}", stem).replace("{name}", image) for pattern in cls.patterns]

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order; ``""`` for folders without split."""
        return in_packing_order(folder.split for folder in self._folders)

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split, sorted by folder. Its value ``raw`` is the image's file of
        annotations, if that exists."""
        for images, folder, own in sorted(self._folders, key=lambda each: each.images):
            if own != split:
                continue
            there = frozenset(self.tree.names(folder).files) if folder is not None else frozenset()
            for image in self.tree.list(images).images:
                names = [name for name in self._list_annotation_names(image) if name in there]
                file = InTree(join(folder, names[0]), optional=True) if folder is not None and names else None
                yield FileRow(join(images, image), {} if file is None else {"raw": file})

    def describing_files(self) -> Iterable[str]:
        """Returns nothing: each file of annotations belongs to one image."""
        return ()

    def pop_annotation(self, values: dict[str, Any]) -> Any:
        """Removes the content of the file of annotations from the values, and returns it; None without such a file."""
        return values.pop("raw", None)

    def find_annotation_file(self, ref: Any) -> str:
        """Returns the path of the image's file of annotations; empty without one."""
        raw = ref[-1].get("raw")
        return raw.file if isinstance(raw, InTree) else ""

    def raw_annotations(self) -> Iterator[Any]:
        """Yields the content of each file of annotations, in UTF-8; ``b""`` for an image without one.

        Skips files that cannot be read, and files larger than 256 MiB. Raises :class:`AmbiguousSourceError` for a file
        of unknown encoding."""
        for row in chain.from_iterable(map(self.file_rows, self.splits())):
            try:
                yield read_text(self.tree, row.values["raw"].file, _MAX_BYTES) if "raw" in row.values else b""
            except AmbiguousSourceError:
                raise
            except (SourceError, SampleError):
                continue

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for a file of annotations without an image. For other files, returns the usual reason, or
        None."""
        suffixes = tuple(pattern[pattern.rindex(".") :] for pattern in self.patterns)
        if name.lower().endswith(suffixes) and folder in {each.annotations for each in self._folders}:
            return "annotations without an image"
        return super().reason_to_leave_out(folder, name)


def _list_annotation_folders(path: str, images: str, annotations: str) -> Iterator[str]:
    """Yields the folders that may have the annotations for the images in the folder ``path``.

    For each folder named ``images`` in the path, from the last on, ``annotations`` replaces this name. If ``images`` is
    empty, yields only the folder ``annotations`` in ``path``, or ``path`` if ``annotations`` is empty as well.
    """
    if not images:
        yield join(path, annotations) if annotations else path
        return
    parts = path.split("/")
    for n in reversed(range(len(parts))):
        if parts[n].lower() == images.lower():
            yield "/".join((*parts[:n], *([annotations] if annotations else []), *parts[n + 1 :]))


def make_sidecar_kind(source: type[SidecarSource], help: str) -> Kind:
    """Makes the kind of a format. Recognition is certain of each path with images and their annotations."""

    def recognise(path: Path, options: SourceOptions) -> Certainty:
        tree = open_tree(path)
        matches = tree is not None and any(each.annotations is not None for each in source.find_folders(tree))
        return Certainty.CERTAIN if matches else Certainty.NO

    return Kind(
        source.kind, help, recognise, source, in_objects=True, sidecar_extensions=source.list_sidecar_extensions()
    )


def count_unused_values(document: Mapping[str, Any], used: Iterable[str]) -> Counter[str]:
    """Counts 1 for each value of a document that is not ``used``. The keys are reasons for the report of what is left
    out."""
    return Counter(f"values {printable(str(key))!r} of files of annotations" for key in document.keys() - set(used))
