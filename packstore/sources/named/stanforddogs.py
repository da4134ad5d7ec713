"""Stanford Dogs (http://vision.stanford.edu/aditya86/ImageNetDogs/): ``Images/``, ``Annotation/``, ``train_list.mat`` …

Kaggle has it as ``images/Images`` and ``annotations/Annotation`` without lists, and so without splits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.errors import SourceError
from packstore.core.fields import Boxes, Field, Image, Json, Label
from packstore.sources.beside import join
from packstore.sources.named import NamedSource, holds, named
from packstore.sources.named.mat import texts
from packstore.sources.rows import FileRow, InTree
from packstore.sources.tree import Tree
from packstore.sources.voc.objects import objects_of

_LISTS = {"train": "train_list.mat|lists/train_list.mat", "test": "test_list.mat|lists/test_list.mat"}
_IMAGES, _NOTES = "Images|images/Images", "Annotation|annotations/Annotation"
_BREED = re.compile(r"n\d{8}-.+")
_LIST_OF_ALL = "file_list.mat|lists/file_list.mat"


class StanfordDogs(NamedSource):
    """Its images in the order of the lists; without any, folder by folder. The class is the folder's name."""

    kind = "stanforddogs"
    title = "Stanford Dogs"
    signs = (_IMAGES, _NOTES)
    lists = (*_LISTS.values(), _LIST_OF_ALL)

    @classmethod
    def find(cls, tree: Tree) -> str | None:
        """Finds both folders, which must contain nothing but folders such as ``n02085620-Chihuahua``."""
        base = super().find(tree)
        if base is None:
            return None
        for sign in cls.signs:
            place = next(name for name in sign.split("|") if holds(tree, base, name))
            folders = tree.names(join(base, place)).folders
            if not folders or not all(map(_BREED.fullmatch, folders)):
                return None
        return base

    @classmethod
    def missing(cls, tree: Tree, base: str) -> list[str]:
        """Adds a list that is missing if the other exists."""
        lists = [file for file in _LISTS.values() if not holds(tree, base, file, sound=True)]
        return [*super().missing(tree, base), *(lists if len(lists) == 1 else ())]

    def splits(self) -> tuple[str, ...]:
        return tuple(_LISTS) if any(map(self.has, _LISTS.values())) else ("",)

    def fields(self) -> Mapping[str, Field]:
        return {
            "image": Image(),
            "label": Label(tuple(self._classes)),
            "boxes": Boxes(optional=True),
            "json": Json(optional=True),
        }

    def file_rows(self, split: str) -> Iterator[FileRow]:
        images, notes = self._which(_IMAGES), self._which(_NOTES)
        for image in self._named_by(split) if split else self._listed():
            folder, _, name = image.partition("/")
            if folder not in self._classes or "/" in name or not name.endswith(".jpg"):
                raise SourceError(f"{self.tree.name()}: its list names {image!r:.80}; expected CLASS/FILE.jpg")
            note = InTree(self.at(f"{notes}/{image.removesuffix('.jpg')}"), optional=True)
            yield FileRow(self.at(f"{images}/{image}"), {"label": self._classes[folder], "json": note})

    def values(self, ref: Any) -> Mapping[str, Any]:
        found = dict(super().values(ref))
        if found["json"] is not None:
            read = objects_of(found["json"])
            corners = [[left + 1, top + 1, right, bottom] for left, top, right, bottom in read["boxes"]]
            found |= {"boxes": corners, "json": read["json"]["annotation"]}
        return found

    def _named_by(self, split: str) -> list[str]:
        return texts(*self.mat(self._which(_LISTS[split]), "file_list"))

    def _listed(self) -> Iterator[str]:
        place = self._which(_IMAGES)
        return (image[len(self.at(place)) + 1 :] for image in self.images(place))

    @cached_property
    def _classes(self) -> dict[str, int]:
        return {name: n for n, name in enumerate(sorted(self.tree.names(self.at(self._which(_IMAGES))).folders))}


KIND = named(StanfordDogs)
