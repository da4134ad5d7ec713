"""Food-101 (https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/): ``images/CLASS/``, ``meta/``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Label
from packstore.sources.beside import clean_path
from packstore.sources.named import NamedSource, named
from packstore.sources.rows import FileRow


class Food101(NamedSource):
    """Its images in the order of ``meta/train.json`` and ``meta/test.json``, or of the ``.txt`` of that name."""

    kind = "food101"
    title = "Food-101"
    signs = ("images", "meta/train.json|meta/train.txt")
    needs = ("meta/test.json|meta/test.txt",)
    lists = ("meta/classes.txt", "meta/labels.txt")

    def splits(self) -> tuple[str, ...]:
        return ("train", "test")

    def fields(self) -> Mapping[str, Field]:
        return {"image": Image(), "label": Label(self._classes)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        numbers = {name: number for number, name in enumerate(self._classes)}
        for image in self._lists[split]:
            yield FileRow(self.at(f"images/{image}.jpg"), {"label": numbers[image.partition("/")[0]]})

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        return tuple(sorted({image.partition("/")[0] for images in self._lists.values() for image in images}))

    @cached_property
    def _lists(self) -> dict[str, list[str]]:
        return {split: self._list(f"meta/{split}") for split in self.splits()}

    def _list(self, name: str) -> list[str]:
        if self.has(f"{name}.json"):
            try:
                found = json.loads(self.content_of(f"{name}.json"))
                images = [image for of_class in found.values() for image in of_class]
            except (ValueError, AttributeError, TypeError, RecursionError):
                images = [None]
        else:
            images = [line[0] for line in self.table(f"{name}.txt")]
        for image in images:
            try:
                if clean_path(image).count("/") != 1:
                    raise ValueError(f"names {image!r}")
            except (ValueError, AttributeError) as error:
                said = printable(str(error)[:200])
                raise SourceError(f"{self.tree.name(self.at(name))} {said}; expected images as CLASS/NUMBER") from None
        return images


KIND = named(Food101)
