"""Converts samples that a library returns as an image and other values without names to map-style datasets with
columns.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from packstore.sources.bridges.guard import record_opened_files, restrict_library
from packstore.sources.dataset import index_key
from packstore.sources.torchvision_files import find_image_files
from packstore.sources.values import array_of, is_pil

NameValues = Callable[[Any, Sequence[Any]], dict[str, Any]]
"""Takes a dataset and the values after the image of a sample, and returns these by name."""


class Samples(Sequence[dict[str, Any]]):
    """Samples of a library's dataset as a map-style dataset with named values.

    If a torchvision dataset lists its image files, these are read directly, and their paths are the keys. Otherwise the
    dataset reads each sample, and the keys are split and number.

    The file of a sample's image, if it is found, replaces the decoded image; the value ``file`` is its path. A negative
    label means no label, and is left out.

    Attributes:
        classes: Names of the classes of all splits.
    """

    def __init__(
        self,
        library: str,
        dataset: Any,
        root: Path,
        split: str,
        *,
        own: Sequence[str],
        classes: Sequence[str],
        name_values: NameValues,
        sorted_by: str = "",
    ) -> None:
        """Finds the image files and the order of the samples; reads none.

        Args:
            library: Name of the library.
            dataset: Its dataset.
            root: Folder from which ``file`` is named.
            split: Name of the split.
            own: Classes of this split; their numbers become those in ``classes``.
            classes: Classes of all splits.
            name_values: Names the values after the image.
            sorted_by: Attribute of the dataset by which to sort its samples, if they have the order of the disk.
        """
        self._files = find_image_files(dataset, f"{split}/" if split else "")
        self._library = library
        self._dataset = dataset
        listed = getattr(dataset, sorted_by) if sorted_by else None
        self._order = range(len(dataset)) if listed is None else sorted(range(len(dataset)), key=listed.__getitem__)
        self._root = root
        self._split = split
        self._numbers = [classes.index(name) for name in own]
        self._name_values = name_values
        self.classes = classes

    def __len__(self) -> int:
        return len(self._order)

    def key_at(self, index: int) -> str:
        """Returns the key of a sample without reading it."""
        return index_key(self._split, index) if self._files is None else self._files.key_at(self._order[index])

    def __getitem__(self, index: Any) -> Any:
        values = (self._read_sample if self._files is None else self._files.__getitem__)(self._order[index])
        label = values.pop("label", None)
        number = -1 if label is None else int(label)
        if number >= 0:  # -1 is STL10's for none
            values["label"] = self._numbers[number] if self._numbers else number
        return values

    def _read_sample(self, index: int) -> dict[str, Any]:
        """Reads a sample; returns its values by name. Blocks connections and unpickling meanwhile. An image of Pillow
        becomes the path of its file, if that is found."""
        with restrict_library(self._library), record_opened_files() as opened:
            sample = self._dataset[index]
        values = list(sample) if isinstance(sample, tuple) else [sample]
        values += values.pop() if isinstance(values[-1], tuple) else ()
        image, *others = (_find_source_file(value, opened) if is_pil(value) else value for value in values)
        values_by_name = {"image": image} | self._name_values(self._dataset, others)
        return values_by_name | ({"file": relative_name(image, self._root)} if isinstance(image, Path) else {})


def make_samples_by_split(
    library: str,
    parts: Mapping[str, Any],
    root: Path,
    *,
    name_values: NameValues | None = None,
    sorted_by: str = "",
    sort_classes: bool = False,
) -> dict[str, Samples]:
    """Makes a :class:`Samples` for each split of a library's datasets, with the classes of all splits.

    Args:
        library: Name of the library.
        parts: Its datasets by split.
        root: Folder to which ``file`` is relative.
        name_values: Names the values after the image; None names them by type.
        sorted_by: Attribute of a dataset by which to sort its samples, if they have the order of the disk.
        sort_classes: Sorts the classes. They are sorted as well if datasets have different classes.
    """
    own = {split: find_class_names(part) for split, part in parts.items()}
    classes = [*dict.fromkeys(chain.from_iterable(own.values()))]
    if sort_classes or any(each != classes for each in own.values()):
        classes.sort()
    named = name_values or name_values_by_type
    return {
        split: Samples(
            library, part, root, split, own=own[split], classes=classes, name_values=named, sorted_by=sorted_by
        )
        for split, part in parts.items()
    }


def _find_source_file(image: Any, opened: Sequence[Path]) -> Any:
    """Finds the first file among ``opened`` with the size and pixels of a Pillow image. Skips files that are no images.
    Returns the image itself if there is no such file."""
    for path in opened:
        try:
            with PIL.Image.open(path) as other:
                if other.size == image.size and other.convert(image.mode).tobytes() == image.tobytes():
                    return path
        except (OSError, ValueError):
            continue  # no image, such as a module that was imported
    return image


def relative_name(path: Path, root: Path) -> str:
    """Returns the path of a file relative to ``root``. For a file elsewhere, returns its name alone."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def find_class_names(dataset: Any) -> list[str]:
    """Finds the names of a dataset's classes in its usual attributes; returns ``[]`` if there are none. A name that
    occurs twice gets its number. Several names of one class are joined by commas."""
    names = ("classes", "categories", "all_categories", "_characters")
    classes = next((each for each in (getattr(dataset, name, None) for name in names) if each), None)
    if classes is None:
        numbers = getattr(dataset, "class_to_idx", {})
        classes = sorted(numbers, key=numbers.__getitem__)
    named = (getattr(each, "name", each) for each in classes)  # Cityscapes has more than names
    texts = [", ".join(each) if isinstance(each, (list, tuple)) else str(each) for each in named]
    count = Counter(texts)
    return [text if count[text] == 1 else f"{text} ({number})" for number, text in enumerate(texts)]


def name_values_by_type(dataset: Any, others: Sequence[Any]) -> dict[str, Any]:
    """Names the values after an image by their types; drops None.

    - ``mask``: an image or a path
    - ``text``
    - ``captions``: a list of texts
    - ``label``: the first other value that is no array of several numbers
    - ``target``: any further value

    Raises :class:`ValueError` if two values would have one name.
    """
    values: dict[str, Any] = {}
    for value in others:
        if is_pil(value) or isinstance(value, Path):
            name = "mask"
        elif isinstance(value, str):
            name = "text"
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            name = "captions"
        else:
            name = "label" if not getattr(value, "ndim", 0) and "label" not in values else "target"
        if name in values:
            raise ValueError(f"{type(dataset).__name__} gives two values that would be called {name!r}")
        values[name] = value
    return {name: value for name, value in values.items() if value is not None}


def namer_in_order(*names: str, **convert: Callable[[Any], Any]) -> NameValues:
    """Returns a function that names the values of a sample by ``names``, in order. The function drops None, and values
    beyond the names.

    ``convert``: Functions that convert values, by name.
    """

    def name_values(dataset: Any, others: Sequence[Any]) -> dict[str, Any]:
        values = {name: value for name, value in zip(names, others, strict=False) if value is not None}
        return values | {name: convert[name](values[name]) for name in convert.keys() & values.keys()}

    return name_values


def namer_by_target(names: Mapping[str, str], **convert: Callable[[Any], Any]) -> NameValues:
    """Returns a function that names the values of a sample by the entries of ``dataset.target_type``; it drops None.

    ``names``: Name of the value for each entry. ``convert``: Functions that convert values, by name of the value.
    """

    def name_values(dataset: Any, others: Sequence[Any]) -> dict[str, Any]:
        return namer_in_order(*(names[target] for target in dataset.target_type), **convert)(dataset, others)

    return name_values


def encode_npy(values: Any) -> bytes:
    """Encodes an array as the bytes of an ``.npy`` file. For arrays whose shape differs from sample to sample."""
    file = io.BytesIO()
    np.save(file, array_of(values))
    return file.getvalue()
