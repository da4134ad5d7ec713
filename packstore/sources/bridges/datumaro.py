"""``datumaro:FORMAT:PATH``: a dataset in a format that datumaro imports; ``auto`` is the format that it recognises."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from packstore.core.errors import UsageError, printable
from packstore.sources.annotation_formats.columns import Raw
from packstore.sources.annotation_formats.shapes import Document
from packstore.sources.annotation_formats.tools import list_datumaro, read_datumaro
from packstore.sources.base import SourceOptions
from packstore.sources.bridges import BridgedData, split_name_and_path
from packstore.sources.bridges.items import AnnotatedItem, AnnotatedItems
from packstore.sources.tree import FolderTree

_JSON = "annotations"
_PICKLED = ("cifar",)


def read_dataset(rest: str, options: SourceOptions) -> BridgedData:
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
    format = AnnotatedItems(path, items_by_split, "Datumaro", read_datumaro)
    with TemporaryDirectory(prefix="packstore-datumaro-") as folder:
        data.export(folder, "datumaro", save_media=False)
        for file in sorted(Path(folder, _JSON).glob("*.json")):
            document = Document(f"{_JSON}/{file.name}", json.loads(file.read_bytes()), FolderTree(Path(folder)))
            for each in list_datumaro(document):
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
