"""VisA (https://github.com/amazon-science/spot-diff): ``candle/Data/Images/Normal/``, ``split_csv/1cls.csv``.

``label`` is normal or anomaly, ``defects`` are the kinds of defects, and ``mask`` has a number for each kind.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Label, Labels
from packstore.sources.beside import clean_path, infer_mask_field
from packstore.sources.file_rows import FileRow, InTree
from packstore.sources.named import NamedSource, make_named_kind
from packstore.sources.rows import in_packing_order

_LIST = "split_csv/1cls.csv"
_NOTES = "image_anno.csv"
_NORMAL = "normal"


class VisA(NamedSource):
    """Source of VisA's images with label and object, in the order of ``split_csv/1cls.csv``. Anomalies have a mask.

    The column ``defects`` exists if a table names some. The tables ``2cls_fewshot`` and ``2cls_highshot`` split the
    same images otherwise: they are left out.
    """

    kind = "visa"
    title = "VisA"
    markers = (_LIST, "split_csv")

    def splits(self) -> tuple[str, ...]:
        """Returns the splits that the list names, in packing order."""
        return in_packing_order(row["split"] for row in self._rows)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image, label, object and mask. Adds defects if a table has any."""
        columns: dict[str, Field] = {"image": Image()}
        columns |= {name: Label(self._list_unique_values(name)) for name in ("label", "object")}
        masks = (self.tree_path(row["mask"]) for row in self._rows if row["mask"])
        kinds = sorted({kind for kinds in self._defects.values() for kind in kinds})
        columns |= {"defects": Labels(tuple(kinds), of=False)} if kinds else {}
        return columns | {"mask": infer_mask_field(self.tree, masks)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each line of the list that belongs to the split. A normal image has no mask.

        If no table of defects names an image, its list of defects is empty.
        """
        for row in self._rows:
            if row["split"] == split:
                values: dict[str, Any] = {"label": row["label"], "object": row["object"]}
                values |= {"mask": InTree(self.tree_path(row["mask"]))} if row["mask"] else {}
                values |= {"defects": self._defects.get(row["image"], [])} if self._defects else {}
                yield FileRow(self.tree_path(row["image"]), values)

    def describing_files(self) -> list[str]:
        """Returns the paths of the list of images, and of the table of defects of each object."""
        notes = (f"{name}/{_NOTES}" for name in self._list_unique_values("object"))
        return [self.tree_path(name) for name in (_LIST, *notes) if self.exists(name)]

    def _list_unique_values(self, column: str) -> tuple[str, ...]:
        """Returns the different values of a column of the list, sorted."""
        return tuple(sorted({row[column] for row in self._rows}))

    @cached_property
    def _rows(self) -> list[dict[str, str]]:
        """Rows of the list, by column. Raises :class:`SourceError` for an invalid list."""
        return self._read_csv(_LIST, ("object", "split", "label", "image", "mask"))

    @cached_property
    def _defects(self) -> dict[str, list[str]]:
        """Kinds of defects by image, from the tables of the objects. The word ``normal`` is no defect.

        Empty if no object has a table. Raises :class:`SourceError` for an invalid table.
        """
        defects: dict[str, list[str]] = {}
        for name in self._list_unique_values("object"):
            if self.exists(f"{name}/{_NOTES}"):
                for row in self._read_csv(f"{name}/{_NOTES}", ("image", "label", "mask")):
                    kinds = [kind.strip() for kind in row["label"].split(",")]
                    defects[row["image"]] = [kind for kind in dict.fromkeys(kinds) if kind and kind != _NORMAL]
        return defects

    def _read_csv(self, file: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
        """Reads the rows of a table. Raises :class:`SourceError` for another header, no rows, and a path out of the
        source."""
        shown = self.file_name(file)
        text = self.read_text(file)
        try:
            lines = csv.reader(io.StringIO(text.decode("utf-8-sig"), newline=""), strict=True)
            head = next(lines, [])
            rows = [dict(zip(columns, line, strict=True)) for line in lines if line]
            for row in rows:
                row["image"] = clean_path(row["image"])
                row["mask"] = clean_path(row["mask"]) if row["mask"] else ""
        except (ValueError, csv.Error) as error:
            raise SourceError(f"{shown}: {printable(str(error))}; expected columns {', '.join(columns)}") from None
        if head != [*columns] or not rows:
            raise SourceError(f"{shown} begins with {printable(','.join(head))[:80]}; expected {','.join(columns)}")
        return rows


KIND = make_named_kind(VisA)
