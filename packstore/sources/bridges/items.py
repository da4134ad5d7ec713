"""Converts images with annotations that a library has read to map-style datasets with columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packstore.sources.annotation_formats.columns import AnnotationColumns, Raw
from packstore.sources.annotation_formats.shapes import AnnotatedObject, Parts, Picture, Value
from packstore.sources.annotation_formats.source import ReadParts
from packstore.sources.bridges import BridgedData


class AnnotatedItem(NamedTuple):
    """Image with annotations that a library has read.

    Attributes:
        key: Key of the sample.
        image: Path of its file, or a function that returns the bytes of the file.
        raw: Its annotation; None without annotation.
    """

    key: str
    image: Path | Callable[[], bytes]
    raw: Raw | None


class AnnotatedItems(AnnotationColumns):
    """Images with annotations by split, which it converts to columns. All splits have the same columns.

    Attributes:
        items: The images by split.
        listed: Classes in the order of the dataset, if it lists them.
        ignored: Number of values that are left out, by reason.
    """

    def __init__(
        self, path: Path, items: Mapping[str, Sequence[AnnotatedItem]], title: str, read_parts: ReadParts
    ) -> None:
        """``read_parts`` reads the annotation of an image, in the format ``title``."""
        self.path, self.items, self.title = path, items, title
        self.listed: Sequence[str] = ()
        self.ignored: Counter[str] = Counter()
        self._read_parts = read_parts

    def list_classes(self) -> Sequence[str]:
        """Returns :attr:`listed`."""
        return self.listed

    def parse_parts(self, item: Any, picture: Picture) -> tuple[Any, Parts]:
        """Reads an annotation; the value of ``json`` is the annotation itself."""
        return item, self._read_parts(item, picture)

    def raw_annotations(self) -> Iterator[Raw]:
        """Yields the raw annotations of all images; skips None."""
        return (item.raw for items in self.items.values() for item in items if item.raw is not None)

    def to_bridged_data(self) -> BridgedData:
        """Returns the splits as datasets, with the columns of the whole dataset; leaves out empty splits. Reads all
        annotations. Values in :attr:`ignored` count as left out."""
        parts = {split: _SplitItems(self, items) for split, items in self.items.items() if items}
        return BridgedData(parts, self.fields(), dict(+self.ignored))


class Objects(AnnotatedItems):
    """Images with objects, converted to columns. The raw annotation of an image is a tuple:

    - a list of objects, each with name, box, segmentation, other values, and whether it is a crowd
    - the annotation as read from the file
    - all classes, if the format lists them
    """

    def __init__(self, path: Path, items: Mapping[str, Sequence[AnnotatedItem]]) -> None:
        super().__init__(path, items, "objects", _read_objects)

    def list_classes(self) -> Sequence[str]:
        """Returns the classes in the first raw annotation that lists them; ``()`` if none does."""
        return next((raw.item[2] for raw in self.raw_annotations() if len(raw.item) > 2), ())


def _read_objects(item: Any, _: Picture) -> Parts:
    """Reads the list of objects. The value of ``json`` is the annotation as it was read."""
    yield from (AnnotatedObject(*each) for each in item[0])
    yield Value("json", item[1])


class _SplitItems(Sequence[Mapping[str, Any]]):
    """Samples of a split as a map-style dataset, whose images are read on access. A sample without an annotation has
    the image alone."""

    def __init__(self, columns: AnnotatedItems, items: Sequence[AnnotatedItem]) -> None:
        self._columns = columns
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        _, image, raw = self._items[index]
        data = image.read_bytes() if isinstance(image, Path) else image()
        return {"image": data} | ({} if raw is None else self._columns.make_column_values(raw, data))

    def key_at(self, index: int) -> str:
        """Returns the key of a sample without reading it."""
        return self._items[index].key
