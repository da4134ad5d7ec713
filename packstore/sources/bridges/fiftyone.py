"""``fiftyone:NAME``: a dataset of FiftyOne's database."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from itertools import chain
from pathlib import Path

from packstore.core.errors import UsageError, printable
from packstore.sources.annotation_formats.fiftyone import FiftyOneFormat
from packstore.sources.base import SourceOptions
from packstore.sources.bridges import BridgedData
from packstore.sources.bridges.items import AnnotatedItem, AnnotatedItems


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
    format = _FiftyOneItems(Path(rest), items_by_split)
    classes = dict.fromkeys([*data.default_classes, *chain.from_iterable(data.classes.values())])
    for entry in format.read_samples({"samples": samples, "classes": [*classes]}):
        path = Path(entry.name)
        items_by_split[entry.split or ""].append(AnnotatedItem(path.relative_to(folder).as_posix(), path, entry.raw))
    return format.to_bridged_data()


class _FiftyOneItems(FiftyOneFormat, AnnotatedItems):
    """Samples of a dataset of FiftyOne, with its JSON as annotations."""
