"""Places365 (http://places2.csail.mit.edu/): ``categories_places365.txt``, lists, and folders of images.

Folders have torchvision's names (``data_256_standard``) or those of the archives (``data_256``). Images of ``test``
have no labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.errors import SourceError
from packstore.core.fields import Field, Image, Label
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, has_path, make_named_kind
from packstore.sources.tree import Tree

_LISTS = {
    "train-standard": "places365_train_standard.txt",
    "train-challenge": "places365_train_challenge.txt",
    "val": "places365_val.txt",
    "test": "places365_test.txt",
}
_FOLDERS = {
    "train-standard": ("data_256_standard", "data_large_standard"),
    "train-challenge": ("data_256_challenge", "data_large_challenge"),
    "val": ("val_256", "val_large"),
    "test": ("test_256", "test_large"),
}
_UNNAMED = ("data_256", "data_large")
"""Folders of unpacked training archives. They belong to the standard or the challenge set, whichever has its list."""


class Places365(NamedSource):
    """Source of Places' images, in the order of the lists: ``train-standard`` or ``train-challenge``, ``val``,
    ``test``.

    A split exists if its folder does. Opening raises :class:`SourceError` for two folders of one split, and for a
    folder without its list.
    """

    kind = "places365"
    title = "Places365"
    markers = ("categories_places365.txt",)
    optional_files = tuple(_LISTS.values())

    @classmethod
    def find_missing(cls, tree: Tree, base: str) -> list[str]:
        """Lists the missing list of each folder of images. If there is no such folder, returns a text that names two of
        them.

        Raises :class:`SourceError` if a split has two folders.
        """
        folders = _find_folders(tree, base)
        without = [_LISTS[split] for split in folders if not has_path(tree, base, _LISTS[split])]
        return without if folders else ["data_256_standard or val_256"]

    def splits(self) -> tuple[str, ...]:
        """Returns the splits that have a folder of images."""
        return tuple(self._folders)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image and label. If there are test images, the label is optional."""
        return {"image": Image(), "label": Label(self._classes, optional="test" in self._folders)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split. Test images have no label.

        Raises :class:`SourceError` for an invalid line, and for a number that is no class.
        """
        table = self.read_table(_LISTS[split])
        for line in table:
            if len(line) != (1 if split == "test" else 2):
                table.refuse_line(line, "an image and its class" if split != "test" else "an image")
            values = {} if split == "test" else {"label": table.parse_int(line[1], "an image and a number", line)}
            if not 0 <= values.get("label", 0) < len(self._classes):
                table.refuse_line(line, f"one of {len(self._classes)} classes")
            yield FileRow(self.tree_path(f"{self._folders[split]}/{line[0].lstrip('/')}"), values)

    @cached_property
    def _folders(self) -> dict[str, str]:
        """Folder of images by split."""
        return _find_folders(self.tree, self.base)

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers. Raises :class:`SourceError` unless these are 0, 1, 2 …"""
        table = self.read_table("categories_places365.txt")
        names = {}
        for line in table:
            if len(line) != 2:
                table.refuse_line(line, "a class and its number")
            names[table.parse_int(line[1], "a class and its number", line)] = line[0]
        if sorted(names) != list(range(len(names))):
            raise SourceError(f"{table.name} does not number its classes from 0 on")
        return tuple(names[number] for number in range(len(names)))


def _find_folders(tree: Tree, base: str) -> dict[str, str]:
    """Finds the folder of images of each split that exists; ``val`` and ``test`` come first.

    An archive's own folder (``data_256``) belongs to the training set whose list exists. If both lists exist, it does
    not count. Raises :class:`SourceError` if a split has two folders.
    """
    by_split: dict[str, str] = {}
    variants = [split for split in ("train-standard", "train-challenge") if has_path(tree, base, _LISTS[split])]
    for split, names in _FOLDERS.items():
        folders = [name for name in names if has_path(tree, base, name)]
        if variants == [split]:
            folders += [name for name in _UNNAMED if has_path(tree, base, name)]
        if len(folders) > 1:
            raise SourceError(
                f"{tree.name(base)} holds {' and '.join(folders)}, the same images twice: move one of them out"
            )
        if folders:
            by_split[split] = folders[0]
    return dict(sorted(by_split.items(), key=lambda item: ("val", "test", *_LISTS).index(item[0])))


KIND = make_named_kind(Places365)
