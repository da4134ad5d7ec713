"""Stanford Dogs (http://vision.stanford.edu/aditya86/ImageNetDogs/): ``Images/``, ``Annotation/``, ``train_list.mat`` …

Kaggle's copy has ``images/Images`` and ``annotations/Annotation``, and no lists, so it has no splits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.errors import SourceError
from packstore.core.fields import Boxes, Field, Image, Json, Label
from packstore.sources.beside import join
from packstore.sources.boxes import CORNERS
from packstore.sources.file_rows import FileRow, InTree
from packstore.sources.named import NamedSource, has_path, make_named_kind
from packstore.sources.named.mat import to_texts
from packstore.sources.tree import Tree
from packstore.sources.voc.objects import parse_annotation

_LISTS = {"train": "train_list.mat|lists/train_list.mat", "test": "test_list.mat|lists/test_list.mat"}
_IMAGES, _NOTES = "Images|images/Images", "Annotation|annotations/Annotation"
_BREED = re.compile(r"n\d{8}-.+")
_LIST_OF_ALL = "file_list.mat|lists/file_list.mat"


class StanfordDogs(NamedSource):
    """Source of the dogs' images, in the order of the lists. The class is the name of the folder.

    Without lists, takes the images folder by folder, without splits. An image with an annotation has ``boxes``, and the
    annotation as ``json``.
    """

    kind = "stanforddogs"
    title = "Stanford Dogs"
    markers = (_IMAGES, _NOTES)
    optional_files = (*_LISTS.values(), _LIST_OF_ALL)

    @classmethod
    def find_base(cls, tree: Tree) -> str | None:
        """Finds the folder that holds both the folder of images and that of annotations. Returns None if there is none.

        Returns None also if one of the two holds no folders, or a folder with a name unlike ``n02085620-Chihuahua``.
        """
        base = super().find_base(tree)
        if base is None:
            return None
        for marker in cls.markers:
            place = next(name for name in marker.split("|") if has_path(tree, base, name))
            folders = tree.names(join(base, place)).folders
            if not folders or not all(map(_BREED.fullmatch, folders)):
                return None
        return base

    @classmethod
    def find_missing(cls, tree: Tree, base: str) -> list[str]:
        """Lists missing files. If one of the two lists exists, the other list is required, too."""
        lists = [file for file in _LISTS.values() if not has_path(tree, base, file, check_content=True)]
        return [*super().find_missing(tree, base), *(lists if len(lists) == 1 else ())]

    def splits(self) -> tuple[str, ...]:
        """Returns ``train`` and ``test``; without lists ``("",)``."""
        return tuple(_LISTS) if any(map(self.exists, _LISTS.values())) else ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image and label, and of boxes and the XML as ``json``, which are optional."""
        return {
            "image": Image(),
            "label": Label(tuple(self._classes)),
            "boxes": Boxes(optional=True),
            "json": Json(optional=True),
        }

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split. Raises :class:`SourceError` for an image that is not ``CLASS/FILE.jpg``, in a
        list or a folder."""
        images, notes = self.resolve_alternative(_IMAGES), self.resolve_alternative(_NOTES)
        for image in self._read_list(split) if split else self._list_folders():
            folder, _, name = image.partition("/")
            if folder not in self._classes or "/" in name or not name.endswith(".jpg"):
                raise SourceError(f"{self.tree.name()}: its list names {image!r:.80}; expected CLASS/FILE.jpg")
            note = InTree(self.tree_path(f"{notes}/{image.removesuffix('.jpg')}"), optional=True)
            yield FileRow(self.tree_path(f"{images}/{image}"), {"label": self._classes[folder], "json": note})

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image. Parses its annotation, if it has one, to ``boxes`` with the published corners, and ``json``.

        Raises :class:`ValueError` for an invalid annotation.
        """
        values = dict(super().read_values(ref))
        if values["json"] is not None:
            with self.name_annotation_file(ref):
                read = parse_annotation(values["json"], CORNERS)
            values |= {"boxes": read["boxes"], "json": read["json"]["annotation"]}
        return values

    def _read_list(self, split: str) -> list[str]:
        """Reads the images in the list of a split, as ``CLASS/FILE``. Raises :class:`SourceError` for a damaged
        file."""
        return to_texts(*self.read_mat(self.resolve_alternative(_LISTS[split]), "file_list"))

    def _list_folders(self) -> Iterator[str]:
        """Yields the images of all folders, as ``CLASS/FILE``."""
        place = self.resolve_alternative(_IMAGES)
        return (image[len(self.tree_path(place)) + 1 :] for image in self.list_images(place))

    @cached_property
    def _classes(self) -> dict[str, int]:
        """Class number by name of a folder; the names are sorted."""
        folder = self.tree_path(self.resolve_alternative(_IMAGES))
        return {name: n for n, name in enumerate(sorted(self.tree.names(folder).folders))}


KIND = make_named_kind(StanfordDogs)
