"""SUN397 (https://vision.princeton.edu/projects/2010/SUN/): ``ClassName.txt``, ``a/abbey/``, ``b/bar/indoor/`` …

It has no splits, as in torchvision; the ten partitions for training and testing are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.fields import Field, Image, Label
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, make_named_kind


class Sun397(NamedSource):
    """Source of SUN397's images, class by class. Takes only the images ``sun_*`` in the folders that
    ``ClassName.txt`` names."""

    kind = "sun397"
    title = "SUN397"
    markers = ("ClassName.txt|a/abbey",)
    required = ("ClassName.txt", "a")

    def splits(self) -> tuple[str, ...]:
        """Returns ``("",)``: the ten partitions are left out."""
        return ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image and label."""
        return {"image": Image(), "label": Label(self._classes)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a class's folder whose name begins with ``sun_``."""
        for number, name in enumerate(self._classes):
            folder = self.tree_path(f"{name[0]}/{name}")
            for image in sorted(self.tree.list(folder).images):
                if image.startswith("sun_"):
                    yield FileRow(f"{folder}/{image}", {"label": number})

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Class names: ``abbey`` for ``/a/abbey``. Raises :class:`SourceError` for any other line."""
        table = self.read_table("ClassName.txt")
        for line in table:
            if len(line) != 1 or line[0].count("/") not in (2, 3) or line[0][:1] != "/" or line[0][2:4] == "/":
                table.refuse_line(line, "a class such as /a/abbey")
        return tuple(line[0][3:] for line in table)


KIND = make_named_kind(Sun397)
