"""SUN397 (https://vision.princeton.edu/projects/2010/SUN/): ``ClassName.txt``, ``a/abbey/``, ``b/bar/indoor/`` …

torchvision has no splits; the ten partitions for training and testing are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.fields import Field, Image, Label
from packstore.sources.named import NamedSource, named
from packstore.sources.rows import FileRow


class Sun397(NamedSource):
    """Its images class by class."""

    kind = "sun397"
    title = "SUN397"
    signs = ("ClassName.txt|a/abbey",)
    needs = ("ClassName.txt", "a")

    def splits(self) -> tuple[str, ...]:
        return ("",)

    def fields(self) -> Mapping[str, Field]:
        return {"image": Image(), "label": Label(self._classes)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        for number, name in enumerate(self._classes):
            folder = self.at(f"{name[0]}/{name}")
            for image in sorted(self.tree.list(folder).images):
                if image.startswith("sun_"):
                    yield FileRow(f"{folder}/{image}", {"label": number})

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        table = self.table("ClassName.txt")
        for line in table:
            if len(line) != 1 or line[0].count("/") not in (2, 3) or line[0][:1] != "/" or line[0][2:4] == "/":
                table.refuse(line, "a class such as /a/abbey")
        return tuple(line[0][3:] for line in table)


KIND = named(Sun397)
