"""``fiftyone:NAME``: a dataset of FiftyOne's database."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from itertools import chain
from pathlib import Path

from packstore.core.errors import UsageError, printable
from packstore.sources.annotation_formats.columns import Raw
from packstore.sources.annotation_formats.shapes import Document
from packstore.sources.annotation_formats.tools import list_fiftyone_samples, read_fiftyone
from packstore.sources.base import SourceOptions
from packstore.sources.bridges import BridgedData
from packstore.sources.bridges.items import AnnotatedItem, AnnotatedItems
from packstore.sources.tree import FolderTree


def read_dataset(rest: str, options: SourceOptions) -> BridgedData:
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
    for each in list_fiftyone_samples(document):
        path, raw = Path(each.name), Raw(each.item, document.classes)
        items_by_split[each.split or ""].append(AnnotatedItem(path.relative_to(folder).as_posix(), path, raw))
    items = AnnotatedItems(Path(rest), items_by_split, "FiftyOne", read_fiftyone)
    items.listed, items.ignored = [*document.classes.values()], document.ignored
    return items.to_bridged_data()
