"""Food-101 (https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/): ``images/CLASS/``, ``meta/``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Label
from packstore.sources.beside import clean_path
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, make_named_kind


class Food101(NamedSource):
    """Source of the images, in the order of ``meta/train.json`` and ``meta/test.json``, or of the same files as
    ``.txt``.

    Classes are the folders that the lists name. Reading a list raises :class:`SourceError` for anything but
    ``CLASS/NUMBER``.
    """

    kind = "food101"
    title = "Food-101"
    markers = ("images", "meta/train.json|meta/train.txt")
    required = ("meta/test.json|meta/test.txt",)
    optional_files = ("meta/classes.txt", "meta/labels.txt")

    def splits(self) -> tuple[str, ...]:
        """Returns ``train`` and ``test``."""
        return ("train", "test")

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image and label."""
        return {"image": Image(), "label": Label(self._classes)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image in the list of a split. Raises :class:`SourceError` for an invalid list."""
        numbers = {name: number for number, name in enumerate(self._classes)}
        for image in self._image_lists[split]:
            yield FileRow(self.tree_path(f"images/{image}.jpg"), {"label": numbers[image.partition("/")[0]]})

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Class names, sorted."""
        return tuple(sorted({image.partition("/")[0] for images in self._image_lists.values() for image in images}))

    @cached_property
    def _image_lists(self) -> dict[str, list[str]]:
        """Images of each split, as ``CLASS/NUMBER``."""
        return {split: self._read_list(f"meta/{split}") for split in self.splits()}

    def _read_list(self, name: str) -> list[str]:
        """Reads a list of images, as ``CLASS/NUMBER``, from JSON. Without a JSON file, reads the first word of each
        line of text.

        Raises :class:`SourceError` for any other content.
        """
        if self.exists(f"{name}.json"):
            text = self.read_text(f"{name}.json")
            try:
                by_class = json.loads(text)
                images = [image for of_class in by_class.values() for image in of_class]
            except (ValueError, AttributeError, TypeError, RecursionError):
                images = [None]
        else:
            images = [line[0] for line in self.read_table(f"{name}.txt")]
        for image in images:
            try:
                if clean_path(image).count("/") != 1:
                    raise ValueError(f"names {image!r}")
            except (ValueError, AttributeError) as error:
                reason = printable(str(error)[:200])
                raise SourceError(f"{self.file_name(name)} {reason}; expected images as CLASS/NUMBER") from None
        return images


KIND = make_named_kind(Food101)
