"""FiftyOne (https://docs.voxel51.com/user_guide/export_datasets.html): ``data/`` with ``labels.json``.

Of the three layouts that FiftyOne writes so: classes, boxes as fractions of the sides, and samples of any labels
(``samples.json``), of whose fields ``detections`` and ``classification`` become columns and all are in ``json``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packstore.sources.annotation_formats.columns import AnnotationColumns
from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    Sides,
    from_corner,
    of_box,
    of_polygon,
    reals,
    text_or_none,
)
from packstore.sources.beside import is_file, join
from packstore.sources.listing import IMAGE_SUFFIXES

_SPLITS = ("train", "val", "validation", "test")


class FiftyOneFormat(AnnotationColumns):
    """FiftyOne's JSON, wherever it comes from."""

    title = "FiftyOne"
    ignored: Counter[str]

    def samples_of(self, document: Any) -> Iterator[Entry]:
        """The samples of a document, and its classes. Tags are splits if each sample has one of them."""
        self._listed = (*getattr(self, "_listed", ()), *map(str, document.get("classes") or ()))
        samples = document.get("samples", ())
        tags = [[tag for tag in sample.get("tags") or () if tag in _SPLITS] for sample in samples]
        split = all(len(each) == 1 for each in tags)
        self.ignored["splits, since not each sample has one"] += not split and any(tags)
        for sample, own in zip(samples, tags, strict=True):
            yield Entry(sample["filepath"], sample, own[0] if split else None)

    def class_order(self) -> Sequence[str]:
        return self._listed

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        if "filepath" in raw:
            found = Annotation(json=raw)
            for value in raw.values():
                self._add(found, value, sides)
            return found
        labels, classes = raw["labels"], raw["classes"]
        found = Annotation(json=labels)
        for each in labels if isinstance(labels, list) else [labels]:
            if isinstance(each, Mapping) and "bounding_box" in each:
                self._add_object(found, _named(each["label"], classes), each, sides)
            elif isinstance(each, Mapping):
                self._add(found, each, sides)
            elif each is not None:
                found.tags.append(_named(each, classes))
        return found

    def _add(self, found: Annotation, value: Any, sides: Sides) -> None:
        """Adds a field of a sample, if it is of labels."""
        kind = value.get("_cls") if isinstance(value, Mapping) else None
        if kind == "Classification" and text_or_none(value.get("label")):
            found.tags.append(value["label"])
        for each in value.get({"Classifications": "classifications"}.get(kind, ""), ()) if kind else ():
            found.tags.append(each["label"])
        for each in value["detections"] if kind == "Detections" else [value] if kind == "Detection" else ():
            self._add_object(found, text_or_none(each.get("label")), each, sides)
        for each in value["polylines"] if kind == "Polylines" else [value] if kind == "Polyline" else ():
            width, height = sides()
            shapes = [[n * side for x, y in shape for n, side in ((x, width), (y, height))] for shape in each["points"]]
            if each.get("closed") or each.get("filled"):
                found.objects.append(of_polygon(text_or_none(each.get("label")), *map(reals, shapes)))
        for each in value["keypoints"] if kind == "Keypoints" else [value] if kind == "Keypoint" else ():
            width, height = sides()
            places = [reals((x * width, y * height)) for x, y in each["points"] if x == x and y == y]  # NaN: not seen
            found.points += [(text_or_none(each.get("label")), x, y) for x, y in places]

    def _add_object(self, found: Annotation, label: str | None, each: Any, sides: Sides) -> None:
        left, top, width, height = reals(each["bounding_box"], 4)
        across, down = sides()
        found.objects.append(of_box(label, from_corner(left * across, top * down, width * across, height * down)))


class FiftyOneSource(FiftyOneFormat, DocumentSource):
    """Images in ``data`` that ``labels.json`` or ``samples.json`` describes."""

    kind = "fiftyone"
    names = re.compile(r"(labels|samples)\.json")
    signature = re.compile(
        rb'^\s*\{\s*("classes"\s*:\s*(null|\[[^]]*\])\s*,\s*)?"labels"\s*:\s*\{|^\s*\{\s*"samples"\s*:\s*\[\s*\{'
    )

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        yield from self.samples_of(document)
        if "samples" in document:
            return
        suffixes: dict[str, str] = {}
        for folder in (join(file.rpartition("/")[0], "data"), file.rpartition("/")[0]):
            for name in self.tree.names(folder).ending(*IMAGE_SUFFIXES):
                if suffixes.setdefault(name.rpartition(".")[0], name) != name:
                    raise ValueError(f"two images are called {name.rpartition('.')[0]!r:.60}")
        for stem, labels in document["labels"].items():
            yield Entry(suffixes.get(stem, stem), {"labels": labels, "classes": document.get("classes") or []})

    def describing_files(self) -> Iterable[str]:
        """Adds ``metadata.json``, which says how FiftyOne stores the fields of samples."""
        files = super().describing_files()
        metadata = (join(file.rpartition("/")[0], "metadata.json") for file in files)
        return [*files, *(file for file in metadata if is_file(self.tree, file))]


def _named(label: Any, classes: Sequence[Any]) -> str:
    """The name of a class, which may be a number."""
    return str(classes[label]) if isinstance(label, int) and classes and 0 <= label < len(classes) else str(label)


KIND = document_kind(FiftyOneSource, "FiftyOne: data with labels.json or samples.json")
