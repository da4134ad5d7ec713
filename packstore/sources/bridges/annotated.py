"""Images with annotations that a library has read, as map-style datasets with columns.

- ``datumaro:FORMAT:PATH``: a dataset in a format that datumaro imports; ``auto`` is the format that it recognises.
- ``fiftyone:NAME``: a dataset of FiftyOne's database.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from packstore.core.errors import UsageError, printable
from packstore.sources.annotation_formats import tools
from packstore.sources.annotation_formats.columns import AnnotationColumns, Raw
from packstore.sources.annotation_formats.shapes import Document, Parts, Picture
from packstore.sources.annotation_formats.source import ReadParts
from packstore.sources.base import SourceOptions
from packstore.sources.bridges import BridgedData, split_name_and_path
from packstore.sources.tree import FolderTree

_JSON = "annotations"
_PICKLED = ("cifar",)


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
        ignored: Number of values that are left out, by reason.
    """

    def __init__(
        self, path: Path, items: Mapping[str, Sequence[AnnotatedItem]], title: str, read_parts: ReadParts
    ) -> None:
        """``read_parts`` reads the annotation of an image, in the format ``title``."""
        self.path, self.items, self.title = path, items, title
        self.ignored: Counter[str] = Counter()
        self._read_parts = read_parts

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


def read_datumaro(rest: str, options: SourceOptions) -> BridgedData:
    """Imports the dataset in its named format, or for ``auto`` in the format that datumaro detects. Ignores
    ``options``. Converts its annotations by way of Datumaro's own format, in a temporary folder.

    Sorts the images of a split by key. Drops a split ``trainval`` that repeats ``train`` and ``val``. Raises
    :class:`UsageError` for a missing path, formats that are unpickled, and data other than images. Raises the errors of
    the library.
    """
    name, path = split_name_and_path(rest, "datumaro")
    from datumaro.components.dataset import Dataset
    from datumaro.components.media import Image

    name = Dataset.detect(str(path)) if name == "auto" else name
    if name in _PICKLED:
        raise UsageError(
            f"datumaro unpickles the files of its format {name}, and compares no checksum before: give packstore the "
            "folder itself"
        )
    data = Dataset.import_from(str(path), name)
    if not issubclass(data.media_type(), Image):
        raise UsageError(f"datumaro:{printable(rest)} holds {data.media_type().__name__}; bridges read images")
    items_by_split: defaultdict[str, list[AnnotatedItem]] = defaultdict(list)
    format = AnnotatedItems(path, items_by_split, "Datumaro", tools.read_datumaro)
    with TemporaryDirectory(prefix="packstore-datumaro-") as folder:
        data.export(folder, "datumaro", save_media=False)
        for file in sorted(Path(folder, _JSON).glob("*.json")):
            document = Document(f"{_JSON}/{file.name}", json.loads(file.read_bytes()), FolderTree(Path(folder)))
            for each in tools.list_datumaro(document):
                item = data.get(each.item["id"], file.stem)
                key, raw = f"{each.split}/{item.id}".lstrip("/"), Raw(each.item, document.classes)
                items_by_split[each.split or ""].append(AnnotatedItem(key, _find_image(item), raw))
            format.listed = [*format.listed, *document.classes.values()]
            format.ignored += document.ignored
    for items in items_by_split.values():
        items.sort(key=lambda item: item.key)  # some formats list folders in the order of the disk
    _drop_trainval(format)
    return format.to_bridged_data()


def _drop_trainval(format: AnnotatedItems) -> None:
    """Removes the split ``trainval`` if its annotations are those of ``train`` and ``val`` together, as in VOC.
    Attributes are not compared. Counts its images as left out."""
    halves = [item.raw.item for split in ("train", "val") for item in format.items.get(split, ()) if item.raw]
    whole = [item.raw.item for item in format.items.get("trainval", ()) if item.raw]
    if whole and sorted(map(_serialise_without_attributes, halves)) == sorted(
        map(_serialise_without_attributes, whole)
    ):
        format.items = {split: items for split, items in format.items.items() if split != "trainval"}
        format.ignored["images of trainval, which are those of train and val"] += len(whole)


def _serialise_without_attributes(item: Any) -> str:
    """Serialises an item of Datumaro's JSON without its attributes, to compare items."""
    return json.dumps({name: value for name, value in item.items() if name != "attr"}, sort_keys=True)


def _find_image(item: Any) -> Path | Callable[[], bytes]:
    """Returns the path of an image's file. For an image within another file, returns a function that returns its bytes.
    For an image that is only pixels, returns a function that encodes them as PNG.

    For an image without data, returns a path that does not exist: reading it reports the problem.
    """
    path = getattr(item.media, "path", None)
    if path and Path(path).is_file():
        return Path(path)
    if item.media is None or not item.media.has_data:
        return Path(path or item.id)  # reported when it is read
    return lambda: item.media.bytes or _encode_png(item.media.data)


def _encode_png(pixels: Any) -> bytes:
    """Encodes pixels as PNG: ``(H, W)``, or ``(H, W, 3)`` with blue first, as in OpenCV. Raises :class:`ValueError` if
    they are not 8-bit. Does not check the number of channels."""
    import PIL.Image

    values = np.asarray(pixels)
    whole = values.astype(np.uint8)
    if not np.array_equal(whole, values) or values.ndim not in (2, 3):
        raise ValueError(f"found an image of {values.dtype} and shape {values.shape}; expected 8-bit pixels")
    file = io.BytesIO()
    PIL.Image.fromarray(whole if whole.ndim == 2 else np.ascontiguousarray(whole[..., ::-1])).save(file, "png")
    return file.getvalue()


def read_fiftyone(rest: str, options: SourceOptions) -> BridgedData:
    """Loads all samples of the dataset. Ignores ``options``. Turns off FiftyOne's usage reports, unless
    ``FIFTYONE_DO_NOT_TRACK`` is set.

    The tags ``train``, ``val``, ``validation`` and ``test`` are splits if each sample has exactly one of them. Keys are
    paths relative to the folder that holds all images. Raises :class:`UsageError` for media other than images, and the
    errors of the library.
    """
    os.environ.setdefault("FIFTYONE_DO_NOT_TRACK", "true")  # else its import reports to its makers
    import fiftyone

    data = fiftyone.load_dataset(rest)
    if data.media_type != "image":
        raise UsageError(f"fiftyone:{printable(rest)} holds {data.media_type}; bridges read images")
    samples = [json.loads(sample.to_json()) for sample in data.iter_samples()]
    folder = os.path.commonpath([Path(sample["filepath"]).parent for sample in samples]) if samples else ""
    items_by_split: defaultdict[str, list[AnnotatedItem]] = defaultdict(list)
    classes = dict.fromkeys([*data.default_classes, *chain.from_iterable(data.classes.values())])
    document = Document(rest, {"samples": samples, "classes": [*classes]}, FolderTree(Path(folder)))
    for each in tools.list_fiftyone_samples(document):
        path, raw = Path(each.name), Raw(each.item, document.classes)
        items_by_split[each.split or ""].append(AnnotatedItem(path.relative_to(folder).as_posix(), path, raw))
    items = AnnotatedItems(Path(rest), items_by_split, "FiftyOne", tools.read_fiftyone)
    items.listed, items.ignored = [*document.classes.values()], document.ignored
    return items.to_bridged_data()
