"""Samples of torchvision's datasets, with a name for each of their values."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from packstore.core.fields import Array, Field, Image, Keypoints, Label, Labels, Text
from packstore.sources.bridges.guard import guard, list_opened
from packstore.sources.bridges.torchvision_objects import relative_name
from packstore.sources.dataset import index_key
from packstore.sources.torchvision_files import InSplit, files_of
from packstore.sources.values import array_of, is_pil


class Samples(Sequence[dict[str, Any]]):
    """Samples of a dataset by name.

    Images and masks are files if torchvision reads them from such; the path of the image is then the key, or ``file``.

    Attributes:
        classes: Names of the classes of all splits.
    """

    def __init__(self, dataset: Any, root: Path, split: str, own: Sequence[str], classes: Sequence[str]) -> None:
        """``own`` are the classes of this split; numbers of theirs become those in ``classes``."""
        files = files_of(dataset)
        self._files = InSplit(files, split) if split and files is not None else files
        self._dataset = dataset
        listed = getattr(dataset, _UNSORTED.get(type(dataset).__name__, ""), None)
        self._order = range(len(dataset)) if listed is None else sorted(range(len(dataset)), key=listed.__getitem__)
        self._root = root
        self._split = split
        self._numbers = [classes.index(name) for name in own]
        self.classes = classes

    def __len__(self) -> int:
        return len(self._order)

    def key_at(self, index: int) -> str:
        """The key of a sample, before it is read."""
        return index_key(self._split, index) if self._files is None else self._files.key_at(self._order[index])

    def __getitem__(self, index: Any) -> Any:
        found = (self._read if self._files is None else self._files.__getitem__)(self._order[index])
        label = found.pop("label", None)
        number = -1 if label is None else int(label)
        if number >= 0:  # -1 is STL10's for none
            found["label"] = self._numbers[number] if self._numbers else number
        return found

    def _read(self, index: int) -> dict[str, Any]:
        with guard("torchvision"), list_opened() as opened:
            sample = self._dataset[index]
        values = list(sample) if isinstance(sample, tuple) else [sample]
        values += values.pop() if isinstance(values[-1], tuple) else ()
        image, *others = (_file_of(value, opened) if is_pil(value) else value for value in values)
        names = next(
            (_NAMES[each.__name__] for each in type(self._dataset).__mro__ if each.__name__ in _NAMES), _by_type
        )
        found = {"image": image} | names(self._dataset, others)
        return found | ({"file": relative_name(image, self._root)} if isinstance(image, Path) else {})


def class_names(dataset: Any) -> list[str]:
    """Names of the classes of a dataset; those that come twice with their numbers. Empty for none."""
    names = ("classes", "categories", "all_categories", "_characters")
    found = next((each for each in (getattr(dataset, name, None) for name in names) if each), None)
    if found is None:
        numbers = getattr(dataset, "class_to_idx", {})
        found = sorted(numbers, key=numbers.__getitem__)
    named = (getattr(each, "name", each) for each in found)  # Cityscapes has more than names
    texts = [", ".join(each) if isinstance(each, (list, tuple)) else str(each) for each in named]
    count = Counter(texts)
    return [text if count[text] == 1 else f"{text} ({number})" for number, text in enumerate(texts)]


def _file_of(image: Any, opened: Sequence[Path]) -> Any:
    """The one of the opened files that has the pixels of an image of Pillow; the image if there is none."""
    for path in opened:
        try:
            with PIL.Image.open(path) as other:
                if other.size == image.size and other.convert(image.mode).tobytes() == image.tobytes():
                    return path
        except (OSError, ValueError):
            continue  # no image, such as a module that was imported
    return image


_UNSORTED = {
    "Cityscapes": "images",
    "INaturalist": "index",
    "Omniglot": "_flat_character_images",
    "SUN397": "_image_files",
}
"""Lists of datasets whose samples have the order of the disk."""


def _by_type(dataset: Any, others: Sequence[Any]) -> dict[str, Any]:
    """Names what follows an image by what it is; the first number is the label. Raises :class:`ValueError`."""
    found: dict[str, Any] = {}
    for value in others:
        if is_pil(value) or isinstance(value, Path):
            name = "mask"
        elif isinstance(value, str):
            name = "text"
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            name = "captions"
        else:
            name = "label" if not getattr(value, "ndim", 0) and "label" not in found else "target"
        if name in found:
            raise ValueError(f"{type(dataset).__name__} gives two values that would be called {name!r}")
        found[name] = value
    return {name: value for name, value in found.items() if value is not None}


def _as_npy(values: Any) -> bytes:
    """An array as a file of numpy: its shape differs from image to image."""
    file = io.BytesIO()
    np.save(file, array_of(values))
    return file.getvalue()


def _in_order(*names: str, **convert: Callable[[Any], Any]) -> Callable[[Any, Sequence[Any]], dict[str, Any]]:
    """Gives the values of a sample these names, and converts some."""

    def name_values(dataset: Any, others: Sequence[Any]) -> dict[str, Any]:
        found = {name: value for name, value in zip(names, others, strict=False) if value is not None}
        return found | {name: convert[name](found[name]) for name in convert.keys() & found.keys()}

    return name_values


_CELEBA: Mapping[str, Callable[[Any], tuple[str, Any]]] = {
    "attr": lambda value: ("labels", np.flatnonzero(array_of(value)).tolist()),
    "identity": lambda value: ("identity", int(value)),
    "bbox": lambda value: ("bbox", array_of(value)),
    "landmarks": lambda value: ("keypoints", array_of(value).reshape(1, 5, 2)),
}
_CITYSCAPES = {"semantic": "mask", "instance": "instance_mask", "polygon": "polygons", "color": "colors"}
_NAMES: Mapping[str, Callable[[Any, Sequence[Any]], dict[str, Any]]] = {
    "CelebA": lambda data, others: dict(_CELEBA[t](v) for t, v in zip(data.target_type, others, strict=True)),
    "Cityscapes": lambda data, others: {_CITYSCAPES[t]: v for t, v in zip(data.target_type, others, strict=True)},
    "FlowDataset": _in_order("second", "flow", "valid_mask", flow=_as_npy),
    "LFWPairs": _in_order("second", "label"),
    "PhotoTour": _in_order("second", "match", second=lambda value: PIL.Image.fromarray(array_of(value))),
    "StereoMatchingDataset": _in_order("right", "disparity", "valid_mask", disparity=_as_npy),
}
"""Names of the values behind the image, by dataset or its base class; others are named by type."""


def _celeba_fields(data: Any) -> dict[str, Field]:
    columns: dict[str, Field] = {
        "attr": Labels([name for name in data.attr_names if name], of=False),  # the line ends in a space
        "identity": Label(),
        "bbox": Array("int64", (4,)),
        "landmarks": Keypoints(2, of=False, points=5),
    }
    return {"image": Image(), **{_CELEBA_COLUMNS[each]: columns[each] for each in data.target_type}, "file": Text()}


_CELEBA_COLUMNS = {"attr": "labels", "identity": "identity", "bbox": "bbox", "landmarks": "keypoints"}
FIELDS: Mapping[str, Callable[[Any], dict[str, Field]]] = {"CelebA": _celeba_fields}
"""Declarations of columns that samples alone do not tell."""
