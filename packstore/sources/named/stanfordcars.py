"""Stanford Cars: ``cars_train/``, ``cars_test/``, ``devkit/``, ``cars_test_annos_withlabels.mat``.

Labels begin at 1 in the files and at 0 here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.errors import SourceError
from packstore.core.fields import Boxes, Field, Image, Label
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, has_path, make_named_kind
from packstore.sources.named.mat import get_struct_fields, to_texts, to_whole_number
from packstore.sources.tree import Tree

_TEST = "cars_test_annos_withlabels.mat|devkit/cars_test_annos_withlabels.mat"
_FIELDS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")


class StanfordCars(NamedSource):
    """Source of the cars' images with label and box, in the order of the annotations.

    The split ``test`` exists if the folder ``cars_test`` does. Opening raises :class:`SourceError` if labels of this
    folder's images are missing.
    """

    kind = "stanfordcars"
    title = "Stanford Cars"
    markers = ("devkit/cars_meta.mat",)
    required = ("devkit/cars_train_annos.mat", "cars_train")
    optional_files = ("cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat")

    @classmethod
    def find_missing(cls, tree: Tree, base: str) -> list[str]:
        """Lists missing files. If ``cars_test`` exists, its labels are required, too."""
        unlabelled = has_path(tree, base, "cars_test") and not has_path(tree, base, _TEST, check_content=True)
        return [*super().find_missing(tree, base), *([_TEST.partition("|")[0]] if unlabelled else [])]

    def splits(self) -> tuple[str, ...]:
        """Returns ``train``, and ``test`` if ``cars_test`` exists."""
        return ("train", "test") if self.exists("cars_test") else ("train",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image, label and box."""
        return {"image": Image(), "label": Label(self._classes), "boxes": Boxes()}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split: ``label`` from 0, and ``boxes`` with the published corners.

        Raises :class:`SourceError` for an invalid class, box or name.
        """
        name, *columns = self._annotations[split]
        for *corners, label, image in zip(*columns, strict=True):
            if not isinstance(image, str):
                raise SourceError(f"{name} has {image!r:.80} instead of the name of an image")
            class_number = to_whole_number(name, label)
            if not 1 <= class_number <= len(self._classes):
                raise SourceError(f"{name} has class {class_number}; expected 1 to {len(self._classes)}")
            box = [float(to_whole_number(name, corner)) for corner in corners]
            yield FileRow(self.tree_path(f"cars_{split}/{image}"), {"label": class_number - 1, "boxes": [box]})

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their numbers."""
        return tuple(to_texts(*self.read_mat("devkit/cars_meta.mat", "class_names")))

    @cached_property
    def _annotations(self) -> dict[str, tuple[Any, ...]]:
        """Name of the annotation file and the columns in it, by split. Raises :class:`SourceError` for a damaged
        file."""
        files = {"train": "devkit/cars_train_annos.mat", "test": self.resolve_alternative(_TEST)}
        structs = {split: self.read_mat(files[split], "annotations") for split in self.splits()}
        return {split: (name, *get_struct_fields(name, value, _FIELDS)) for split, (name, value) in structs.items()}


KIND = make_named_kind(StanfordCars)
