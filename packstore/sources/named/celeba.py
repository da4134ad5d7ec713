"""CelebA (http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html): ``img_align_celeba/`` and lists beside it.

``labels`` are the attributes of a face, out of 40; ``keypoints`` are eyes, nose and corners of the mouth. ``bbox``
(left, top, width, height) belongs to the photographs from which these images were cut, so it is no column of boxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.fields import Array, Field, Image, Keypoints, Label, Labels
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, make_named_kind
from packstore.sources.named.text_table import TextTable

_ATTRIBUTES, _PARTITION, _IMAGES = "list_attr_celeba.txt", "list_eval_partition.txt", "img_align_celeba"
_IDENTITY, _BOXES, _POINTS = "identity_CelebA.txt", "list_bbox_celeba.txt", "list_landmarks_align_celeba.txt"
_PARTS = {"train": "0", "valid": "1", "test": "2"}


class CelebA(NamedSource):
    """Source of CelebA's images with their attributes as ``labels``, in the order of ``list_eval_partition.txt``.

    The columns ``identity``, ``bbox`` and ``keypoints`` exist if their lists do. Listing the images raises
    :class:`SourceError` for one that a list lacks.
    """

    kind = "celeba"
    title = "CelebA"
    markers = (_ATTRIBUTES, _PARTITION)
    required = (_IMAGES,)
    optional_files = (_IDENTITY, _BOXES, _POINTS)

    def splits(self) -> tuple[str, ...]:
        """Returns ``train``, ``valid`` and ``test``."""
        return tuple(_PARTS)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image, and of its attributes as ``labels``.

        For each optional list that exists, adds ``identity``, ``bbox`` (an array, no boxes) or ``keypoints``.
        """
        columns: dict[str, Field] = {"image": Image(), "labels": Labels(self._attributes, of=False)}
        more: dict[str, Field] = {
            _IDENTITY: Label(),
            _BOXES: Array("int64", (4,)),
            _POINTS: Keypoints(2, of=False, points=5),
        }
        return columns | {name: more[file] for file, name in self._optional_columns.items()}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split. ``labels`` are the numbers of the attributes that an image has.

        Each optional list that exists gives one more value. Raises :class:`SourceError` for an invalid line, and for an
        image that a list lacks.
        """
        attributes, partition = self.read_table(_ATTRIBUTES, skip=2), self.read_table(_PARTITION)
        tables = {file: self.read_table(file, skip=0 if file == _IDENTITY else 2) for file in self._optional_columns}
        for line in partition:
            if len(line) != 2 or line[1] not in _PARTS.values():
                partition.refuse_line(line, "an image and 0, 1 or 2")
            if line[1] != _PARTS[split]:
                continue
            flags = _parse_image_line(attributes, line[0], len(self._attributes))
            values: dict[str, Any] = {"labels": [n for n, flag in enumerate(flags) if flag == 1]}
            for file, table in tables.items():
                numbers = _parse_image_line(table, line[0], {_IDENTITY: 1, _BOXES: 4, _POINTS: 10}[file])
                if file == _POINTS:
                    values["keypoints"] = [[numbers[n : n + 2] for n in range(0, 10, 2)]]
                else:
                    values[self._optional_columns[file]] = numbers if file == _BOXES else numbers[0]
            yield FileRow(self.tree_path(f"{_IMAGES}/{line[0]}"), values)

    @cached_property
    def _attributes(self) -> tuple[str, ...]:
        """Names of the attributes, from the second line of their list; empty if that line is missing."""
        return tuple(next(iter(self.read_table(_ATTRIBUTES, skip=1)), []))

    @cached_property
    def _optional_columns(self) -> dict[str, str]:
        """Name of the column for each optional list that exists, by file."""
        columns = {_IDENTITY: "identity", _BOXES: "bbox", _POINTS: "keypoints"}
        return {file: name for file, name in columns.items() if self.exists(file)}


def _parse_image_line(table: TextTable, image: str, count: int) -> list[int]:
    """Returns the ``count`` whole numbers in the line of an image. Raises :class:`SourceError` if the line is
    missing, or does not hold just these numbers."""
    line = table.require_line(image, count + 1, f"{image} and {count} numbers")
    return table.parse_ints(line[1:], "whole numbers", line)


KIND = make_named_kind(CelebA)
