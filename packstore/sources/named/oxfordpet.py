"""Oxford-IIIT Pet (https://www.robots.ox.ac.uk/~vgg/data/pets/): ``images/``, ``annotations/``.

Names of classes are torchvision's: "Abyssinian", "American Bulldog". Masks are the trimaps: 1 is the pet, 2 the
background, 3 the border. Only some images have the box of a head, in ``annotations/xmls``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.fields import Boxes, Field, Image, Label, Mask
from packstore.sources.boxes import CORNERS
from packstore.sources.file_rows import FileRow, InTree
from packstore.sources.named import NamedSource, make_named_kind
from packstore.sources.voc.objects import parse_annotation


class OxfordPet(NamedSource):
    """Source of the pets' images, in the order of ``annotations/trainval.txt`` and ``annotations/test.txt``.

    The breed is ``label``, and the trimap ``mask``; ``species`` is a column. If the folder of XML files exists,
    ``boxes`` are those of heads, which most images lack.
    """

    kind = "oxfordpet"
    title = "Oxford-IIIT Pet"
    markers = ("annotations/list.txt", "annotations/trainval.txt")
    required = ("annotations/test.txt", "annotations/trimaps", "images")

    def splits(self) -> tuple[str, ...]:
        """Returns ``test`` and ``trainval``: train and val are not divided."""
        return ("test", "trainval")

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image, breed, species and mask. Adds boxes if the folder of XML files exists."""
        columns: dict[str, Field] = {
            "image": Image(),
            "label": Label(self._classes),
            "species": Label(("Cat", "Dog")),
            "mask": Mask(),
        }
        return columns | ({"boxes": Boxes(optional=True)} if self.exists("annotations/xmls") else {})

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each line of the list of a split. It has the mask and, if the folder of XML files exists,
        the XML.

        Raises :class:`SourceError` for an invalid line.
        """
        for name, label, species in self._read_list(split):
            values: dict[str, Any] = {
                "label": label,
                "species": species,
                "mask": InTree(self.tree_path(f"annotations/trimaps/{name}.png")),
            }
            if self.exists("annotations/xmls"):
                values["boxes"] = InTree(self.tree_path(f"annotations/xmls/{name}.xml"), optional=True)
            yield FileRow(self.tree_path(f"images/{name}.jpg"), values)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads image and mask, and parses the boxes, with the published corners. An image without an XML file has None
        as boxes.

        Raises :class:`ValueError` for an invalid XML file.
        """
        values = dict(super().read_values(ref))
        if values.get("boxes") is not None:
            with self.name_annotation_file(ref):
                values["boxes"] = parse_annotation(values["boxes"], CORNERS)["boxes"]
        return values

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Names of the breeds by number, from the names of images. A number without images has the name ``Class N``,
        counted from 0."""
        names = {label: name for split in self.splits() for name, label, _ in self._read_list(split)}
        stems = [names.get(label, f"class_{label}_1") for label in range(max(names, default=-1) + 1)]
        return tuple(" ".join(part.title() for part in name.rpartition("_")[0].split("_")) for name in stems)

    def _read_list(self, split: str) -> Iterator[tuple[str, int, int]]:
        """Yields name, class and species of each image of a split; class and species count from 0. Skips comments.

        Raises :class:`SourceError` for an invalid line, and for more than 10,000 classes.
        """
        table = self.read_table(f"annotations/{split}.txt")
        for line in table:
            if line[0].startswith("#"):
                continue
            if len(line) != 4 or line[2] not in ("1", "2"):
                table.refuse_line(line, "a name and three numbers")
            label = table.parse_int(line[1], "a name and three numbers", line)
            if not 1 <= label <= 10_000:
                table.refuse_line(line, "classes from 1 on")
            yield line[0], label - 1, int(line[2]) - 1


KIND = make_named_kind(OxfordPet)
