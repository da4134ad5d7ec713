"""``torchvision:NAME:ROOT``: a dataset of ``torchvision.datasets`` with all its splits.

Arguments of its class follow the name: ``torchvision:VOCDetection,year=2007,image_set=test:ROOT``. A list is written
``target_type=category+annotation``.
"""

from __future__ import annotations

import inspect
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from packstore.core.errors import UsageError, printable
from packstore.sources.base import SourceOptions
from packstore.sources.bridges import (
    BridgedData,
    explain_errors,
    record_opened_files,
    restrict_library,
    split_name_and_path,
)
from packstore.sources.dataset import index_key
from packstore.sources.torchvision_files import find_image_files
from packstore.sources.values import array_of, is_pil, is_tensor

SPLITS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    name: (parameter, {split: split for split in splits.split()})
    for parameter, splits, names in (
        ("split", "train val test", "CLEVRClassification DTD FGVCAircraft Flowers102 PCAM RenderedSST2"),
        ("split", "train val", "FlyingChairs ImageNet Imagenette"),
        ("split", "train test", "ETH3DStereo FER2013 FlyingThings3D Food101 GTSRB HD1K InStereo2k Kitti2012Stereo"),
        ("split", "train test", "Kitti2015Stereo KittiFlow LFWPairs LFWPeople Sintel StanfordCars SVHN"),
        ("split", "train valid test", "Country211"),
        ("split", "trainval test", "OxfordIIITPet"),
        ("split", "train unlabeled test", "STL10"),
        ("image_set", "train val", "SBDataset VOCSegmentation"),
    )
    for name in names.split()
} | {
    "EMNIST": ("train", {"train": True, "test": False}),
    "INaturalist": ("version", {"train": "2021_train", "val": "2021_valid"}),
    "Middlebury2014Stereo": ("split", {"train": "train", "test": {"split": "test", "calibration": None}}),
    "Omniglot": ("background", {"background": True, "evaluation": False}),
    "Places365": ("split", {"train": "train-standard", "val": "val"}),
}
"""Splits by dataset: the parameter that chooses one, and its value, or all arguments, for each split. Splits have no
image in common."""
_IF_THERE: Mapping[str, tuple[str, str]] = {
    "Middlebury2014Stereo": ("additional", "Middlebury2014/additional"),
    "SVHN": ("extra", "extra_32x32.mat"),
}
"""A further split of a dataset, and the path that must exist for it."""
_TRAIN = ("train", {"train": True, "test": False})
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "OxfordIIITPet": {"target_types": ["category", "segmentation"]},
    "SBDataset": {"mode": "segmentation"},
}
"""Arguments with which a dataset returns all its values."""
_CHECKED = ("CIFAR10", "CIFAR100")
"""Datasets of pickles whose class verifies MD5 digests of the files before it opens them."""
_OTHER = ("DatasetFolder", "FakeData", "HMDB51", "Kinetics", "MovingMNIST", "UCF101", "VisionDataset")
"""Datasets of videos, and classes that are no datasets of images by themselves."""
_READ_HERE = ("CelebA", "Cityscapes", "CocoDetection", "Kitti", "VOCDetection", "WIDERFace")
"""Datasets of several annotations an image, which packstore reads from their folders."""
_UNSORTED = {"INaturalist": "index", "SUN397": "_image_files"}
_UNSORTED |= {"Omniglot": "_flat_character_images"}
"""Attribute that lists the samples, of datasets whose samples have the order of the disk."""
_NAMES: Mapping[str, Sequence[str]] = {
    "FlowDataset": ("second", "flow", "valid_mask"),
    "LFWPairs": ("second", "label"),
    "PhotoTour": ("second", "match"),
    "StereoMatchingDataset": ("right", "disparity", "valid_mask"),
}
"""Names of the values after the image, in order, by dataset or its base class; other values are named
by type."""
_CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "second": lambda value: PIL.Image.fromarray(array_of(value)) if is_tensor(value) else value,
    "flow": lambda value: _encode_npy(value),
    "disparity": lambda value: _encode_npy(value),
}
"""Functions that convert the values in :data:`_NAMES`, by name."""


def read_torchvision(rest: str, options: SourceOptions) -> BridgedData:
    """Opens the dataset: all its splits, or the split that the arguments choose. Ignores ``options``. Blocks
    connections. Blocks unpickling too, but not for datasets whose checksums torchvision verifies.

    Raises :class:`UsageError` for an unknown class, one of boxes, and a missing folder. Raises :class:`SourceError` if
    torchvision cannot read the dataset, or refuses an argument.
    """
    called, root = split_name_and_path(rest, "torchvision")
    name, *given = called.split(",")
    from torchvision import datasets

    made = getattr(datasets, name, None) if name in datasets.__all__ else None
    if not isinstance(made, type) or name in _OTHER:
        raise UsageError(f"torchvision has no dataset {printable(name)!r}, or it is not one of images")
    if name in _READ_HERE:
        raise UsageError(f"packstore reads {name} itself, with all annotations: give the folder {printable(str(root))}")
    parameters = inspect.signature(made).parameters
    arguments = {**ARGUMENTS.get(name, {}), **_parse_arguments(parameters, given)}
    parameter, splits = SPLITS.get(name, _TRAIN if "train" in parameters else ("", {}))
    more, file = _IF_THERE.get(name, ("", ""))
    splits = {**splits, more: more} if more and (root / file).exists() else splits
    if not splits or parameter in arguments:
        chosen = arguments.get(parameter, "")
        splits = {next((split for split, value in splits.items() if value == chosen), str(chosen)): chosen}
    parts = {}
    for split, value in splits.items():
        alone = f"torchvision:{name},{parameter}=…:ROOT"
        hint = f" (split {split}; to read another alone: {alone})" if len(splits) > 1 else ""
        chosen = value if isinstance(value, Mapping) else {parameter: value} if parameter else {}
        with (
            restrict_library("torchvision", unpickles=name in _CHECKED),
            explain_errors("torchvision", f"torchvision:{called}:{printable(str(root))}", hint),
        ):
            parts[split] = made(root=str(root), **{**arguments, **chosen})
    own = {split: find_class_names(part) for split, part in parts.items()}
    classes = [*dict.fromkeys(chain.from_iterable(own.values()))]
    # The folders of Omniglot have the order of the disk.
    if name == "Omniglot" or any(each != classes for each in own.values()):
        classes.sort()
    samples = {split: _Samples(part, root, split, own[split], classes) for split, part in parts.items()}
    return BridgedData(samples)


def _parse_arguments(parameters: Mapping[str, inspect.Parameter], given: Sequence[str]) -> dict[str, Any]:
    """Converts each ``name=value`` to a list for ``a+b``, a truth value, a number, or a text if the parameter's default
    is one."""
    values: dict[str, Any] = {}
    for each in given:
        name, _, text = each.partition("=")
        is_text = name in parameters and isinstance(parameters[name].default, str)
        if text.lower() in ("true", "false"):
            values[name] = text.lower() == "true"
        elif text.isdecimal() and not is_text:
            values[name] = int(text)
        else:
            values[name] = text.split("+") if "+" in text else text
    return values


class _Samples(Sequence[dict[str, Any]]):
    """Samples of a dataset as a map-style dataset with named values.

    If a torchvision dataset lists its image files, these are read directly, and their paths are the keys. Otherwise the
    dataset reads each sample, and the keys are split and number.

    The file of a sample's image, if it is found, replaces the decoded image; the value ``file`` is its path. A negative
    label means no label, and is left out.

    Attributes:
        classes: Names of the classes of all splits.
    """

    def __init__(self, dataset: Any, root: Path, split: str, own: Sequence[str], classes: Sequence[str]) -> None:
        """Finds the image files and the order of the samples; reads none.

        Args:
            dataset: Dataset of torchvision.
            root: Folder from which ``file`` is named.
            split: Name of the split.
            own: Classes of this split; their numbers become those in ``classes``.
            classes: Classes of all splits.
        """
        self._files = find_image_files(dataset, f"{split}/" if split else "")
        self._dataset = dataset
        unsorted = _UNSORTED.get(type(dataset).__name__)
        listed = None if unsorted is None else getattr(dataset, unsorted)
        self._order = range(len(dataset)) if listed is None else sorted(range(len(dataset)), key=listed.__getitem__)
        self._root = root
        self._split = split
        self._numbers = [classes.index(name) for name in own]
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
        with restrict_library("torchvision"), record_opened_files() as opened:
            sample = self._dataset[index]
        values = list(sample) if isinstance(sample, tuple) else [sample]
        values += values.pop() if isinstance(values[-1], tuple) else ()
        image, *others = (_find_source_file(value, opened) if is_pil(value) else value for value in values)
        values_by_name = {"image": image} | _name_values(self._dataset, others)
        return values_by_name | ({"file": _relative_name(image, self._root)} if isinstance(image, Path) else {})


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


def _relative_name(path: Path, root: Path) -> str:
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


def _name_values_by_type(dataset: Any, others: Sequence[Any]) -> dict[str, Any]:
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


def _name_values(dataset: Any, others: Sequence[Any]) -> dict[str, Any]:
    """Names the values after an image by :data:`_NAMES`, and converts them. Drops None, and values beyond the names.
    Names those of other datasets by type."""
    names = next((_NAMES[each.__name__] for each in type(dataset).__mro__ if each.__name__ in _NAMES), None)
    if names is None:
        return _name_values_by_type(dataset, others)
    values = {name: value for name, value in zip(names, others, strict=False) if value is not None}
    return {name: _CONVERT[name](value) if name in _CONVERT else value for name, value in values.items()}


def _encode_npy(values: Any) -> bytes:
    """Encodes an array as the bytes of an ``.npy`` file. For arrays whose shape differs from sample to sample."""
    file = io.BytesIO()
    np.save(file, array_of(values))
    return file.getvalue()
