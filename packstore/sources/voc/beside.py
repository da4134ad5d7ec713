"""Pascal VOC's XML files without its folders: beside the images, as from LabelImg and Roboflow, or in ``annotations``
beside ``images``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
from packstore.core.fields import Field
from packstore.sources.annotations import describe_annotations
from packstore.sources.base import Certainty, SourceOptions
from packstore.sources.beside import is_folder, join
from packstore.sources.encodings import convert_start
from packstore.sources.file_rows import FileRow, InTree
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_split_folders, is_split
from packstore.sources.spread import find_spread, places_by_split
from packstore.sources.tree import Tree
from packstore.sources.voc.objects import declare_annotation_fields
from packstore.sources.voc.source import AnnotatedVocSource

_IMAGES = ("images", "Images", "img", "imgs", "JPEGImages")
_XML = ("annotations", "Annotations", "annots", "annot", "xmls", "xml", "labels", "Labels")
_START, _LOOKED_AT = 512, 16


class VocBesideSource(AnnotatedVocSource):
    """Source of images with XML files beside them, in the folder itself or in folders of splits (``train``, ``valid``
    …).

    The columns ``boxes``, ``labels``, ``difficult`` and ``json`` are missing for an image without an XML file. Opening
    raises :class:`SourceError` if there are no XML files.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._pairs = find_folder_pairs(self.tree)
        if not self._pairs:
            raise SourceError(
                f"{printable(str(path))} has no folder JPEGImages, as in Pascal VOC, and no XML files of "
                "annotations beside its images, or in annotations beside images"
            )
        self.evidence = "XML files in " + ", ".join(
            dict.fromkeys(printable(xml) or "the folder" for pairs in self._pairs.values() for _, xml in pairs)
        )
        self.decide_convention()

    def splits(self) -> Sequence[str]:
        """Returns the splits in the names of the folders, in packing order. Returns ``("",)`` if no folder names a
        split."""
        return tuple(self._pairs)

    def fields(self) -> Mapping[str, Field]:
        """Returns the field of each column. Reads all annotations for their classes."""
        return declare_annotation_fields(self.facts.classes)

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split, with the XML file of the same name. This file may be missing."""
        for images, xml in self._pairs[split]:
            for name in self.tree.list(images).images:
                yield FileRow(join(images, name), {"json": InTree(join(xml, f"{_stem(name)}.xml"), optional=True)})

    def describing_files(self) -> Iterable[str]:
        """Returns nothing: each XML file belongs to one image."""
        return ()

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for annotations without an image, and for images that are no samples. None for other
        files."""
        if name.lower().endswith(".xml") and folder in {xml for pairs in self._pairs.values() for _, xml in pairs}:
            return "annotations without an image"
        return super().reason_to_leave_out(folder, name)


def find_folder_pairs(tree: Tree) -> dict[str, list[tuple[str, str]]]:
    """Finds pairs of a folder of images and a folder of XML files by split, in packing order. Returns ``{}`` if there
    are none.

    Folders named like splits come first. Without them the split is ``""``, or that of the images' folders.

    Raises :class:`AmbiguousSourceError` if no folder of images lies beside one folder of XML files, and several groups
    of folders have its images.
    """
    folders = tree.names("").folders
    splits = {split: pair for name, split in find_split_folders(folders).items() if (pair := _find_pair(tree, name))}
    if splits:
        return {split: [splits[split]] for split in in_packing_order(splits)}
    pair = _find_pair(tree, "")
    return _find_scattered_pairs(tree, pair) or ({} if pair is None else {"": [pair]})


def _find_scattered_pairs(tree: Tree, pair: tuple[str, str] | None) -> dict[str, list[tuple[str, str]]]:
    """Finds the folders of images that belong to a single folder of XML files, by split.

    Returns ``{}`` if there are none, or if ``pair`` already has all images. If several groups of folders have the
    images, returns ``{}`` with a ``pair``, and raises :class:`AmbiguousSourceError` without.

    ``pair``: folder of images and folder of XML files that were found; None for none.
    """
    xml = (
        next((name for name in tree.names("").folders if _has_annotations(tree, name)), None)
        if pair is None
        else pair[1]
    )
    if xml is None:
        return {}
    stems = [_stem(name) for name in tree.names(xml).ending(".xml")]
    if {*stems} <= {_stem(name) for name in tree.names(xml if pair is None else pair[0]).files if _is_image(name)}:
        return {"": [(xml, xml)]} if pair is None else {}
    try:
        places = find_spread(tree, stems, xml, stems=True)
    except AmbiguousSourceError:
        if pair is None:
            raise
        return {}
    return {split: [(images, xml) for images in some] for split, some in places_by_split(places or ()).items()}


def recognise_beside(tree: Tree) -> Certainty:
    """Returns ``CERTAIN`` for a tree with folders of images and XML files, or ``PARTIAL`` if other annotations are
    there too. Otherwise returns ``NO``.

    Raises :class:`AmbiguousSourceError` if several groups of folders have the images of one folder of XML files.
    """
    pairs = find_folder_pairs(tree)
    if not pairs:
        return Certainty.NO
    further = [phrase for phrase in describe_annotations(tree) if ".xml" not in phrase]
    return Certainty.PARTIAL if further else Certainty.CERTAIN


def _find_pair(tree: Tree, base: str) -> tuple[str, str] | None:
    """Finds a folder of images, and a folder with XML files for at least half of them. Returns None if there are none.

    Tries ``base`` itself, folders in it with usual names, and any two of the first 16 folders in it.
    """
    below = [(images, xml) for images in _IMAGES for xml in _XML if is_folder(tree, join(base, images))]
    folders = [name for name in tree.names(base).folders[:_LOOKED_AT] if not is_split(name)]
    below += [(images, xml) for xml in folders if _has_annotations(tree, join(base, xml)) for images in folders]
    for images, xml in [(base, base), *((join(base, images), join(base, xml)) for images, xml in below)]:
        stems = {_stem(name) for name in tree.names(images).files if _is_image(name)}
        hits = [name for name in tree.names(xml).files if name.endswith(".xml") and _stem(name) in stems]
        if hits and 2 * len(hits) >= len(stems) and _is_annotation(tree, join(xml, hits[0])):
            return images, xml
    return None


def _has_annotations(tree: Tree, folder: str) -> bool:
    """Tells if the first XML file of a folder is an annotation; False without such a file."""
    first = next((name for name in tree.names(folder).files if name.endswith(".xml")), None)
    return first is not None and _is_annotation(tree, join(folder, first))


def _is_annotation(tree: Tree, file: str) -> bool:
    """Tells by its beginning if an XML file is an annotation of Pascal VOC. MIT's LabelMe has polygons instead of
    boxes: False."""
    start = convert_start(tree.first_bytes(file, _START))
    return b"<annotation" in start and b"LabelMe Webtool" not in start


def _is_image(name: str) -> bool:
    """Tells if a name has the suffix of an image and is not hidden."""
    return name.lower().endswith(IMAGE_SUFFIXES) and name[0] != "."


def _stem(name: str) -> str:
    """Removes the suffix from a file name. Returns ``""`` for a name without a dot."""
    return name.rpartition(".")[0]
