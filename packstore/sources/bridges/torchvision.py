"""``torchvision:NAME:ROOT``: a dataset of ``torchvision.datasets`` with all its splits.

Arguments of its class follow the name: ``torchvision:VOCDetection,year=2007,image_set=test:ROOT``. A list is written
``target_type=category+annotation``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from packstore.core.errors import UsageError, printable
from packstore.sources.base import SourceOptions
from packstore.sources.bridges import Bridged, explain_errors, split_name
from packstore.sources.bridges.guard import guard
from packstore.sources.bridges.items import Objects
from packstore.sources.bridges.torchvision_objects import OBJECTS, items_of
from packstore.sources.bridges.torchvision_samples import FIELDS, Samples, class_names


def _alike(parameter: str, *splits: str) -> tuple[str, Mapping[str, Any]]:
    """Splits under the names that torchvision gives them."""
    return parameter, {split: split for split in splits}


SPLITS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **dict.fromkeys(
        ("CLEVRClassification", "DTD", "FGVCAircraft", "Flowers102", "PCAM", "RenderedSST2", "WIDERFace"),
        _alike("split", "train", "val", "test"),
    ),
    **dict.fromkeys(("Cityscapes", "FlyingChairs", "ImageNet", "Imagenette"), _alike("split", "train", "val")),
    **dict.fromkeys(("SBDataset", "VOCDetection", "VOCSegmentation"), _alike("image_set", "train", "val")),
    **dict.fromkeys(
        ("ETH3DStereo", "FER2013", "FlyingThings3D", "Food101", "GTSRB", "HD1K", "InStereo2k", "Kitti2012Stereo",
         "Kitti2015Stereo", "KittiFlow", "LFWPairs", "LFWPeople", "Sintel", "StanfordCars", "SVHN"),
        _alike("split", "train", "test"),
    ),
    **dict.fromkeys(("CelebA", "Country211"), _alike("split", "train", "valid", "test")),
    "INaturalist": ("version", {"train": "2021_train", "val": "2021_valid"}),
    "Middlebury2014Stereo": ("split", {"train": "train", "test": {"split": "test", "calibration": None}}),
    "Omniglot": ("background", {"background": True, "evaluation": False}),
    "OxfordIIITPet": _alike("split", "trainval", "test"),
    "Places365": ("split", {"train": "train-standard", "val": "val"}),
    "STL10": _alike("split", "train", "unlabeled", "test"),
}  # fmt: skip
"""For datasets in parts: the parameter that chooses one, and its value for each split, or all arguments. Splits have no
image in common."""
_IF_THERE: Mapping[str, tuple[str, str]] = {
    "Cityscapes": ("test", "leftImg8bit/test"),
    "Middlebury2014Stereo": ("additional", "Middlebury2014/additional"),
    "SVHN": ("extra", "extra_32x32.mat"),
}
"""One more split, if this path is there."""
_TRAIN = ("train", {"train": True, "test": False})
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "CelebA": {"target_type": ["attr", "identity", "bbox", "landmarks"]},
    "Cityscapes": {"target_type": ["semantic", "instance", "polygon"]},
    "OxfordIIITPet": {"target_types": ["category", "segmentation"]},
    "SBDataset": {"mode": "segmentation"},
}
"""Arguments that bring all that a dataset has."""
_CHECKED = ("CIFAR10", "CIFAR100")
"""Datasets of pickles whose class compares their files with MD5 digests before it opens them."""
_OTHER = ("DatasetFolder", "FakeData", "HMDB51", "Kinetics", "MovingMNIST", "UCF101", "VisionDataset")
"""Videos, and classes that read no data set of images by themselves."""
_OURS = ("root", "transform", "target_transform", "transforms", "download", "loader", "is_valid_file")


def read(rest: str, options: SourceOptions) -> Bridged:
    """Opens the dataset: all its splits, unless the arguments choose one."""
    called, root = split_name(rest, "torchvision")
    name, *given = called.split(",")
    from torchvision import datasets

    made = getattr(datasets, name, None) if name in datasets.__all__ else None
    if not isinstance(made, type) or name in _OTHER:
        raise UsageError(f"torchvision has no dataset {printable(name)!r}, or it is not one of images")
    known = _parameters(made)
    arguments = {**ARGUMENTS.get(name, {}), **dict(_argument(name, each, known) for each in given)}
    parameter, splits = SPLITS.get(name, _TRAIN if "train" in known else ("", {}))
    more, file = _IF_THERE.get(name, ("", ""))
    splits = {**splits, more: more} if more and (root / file).exists() else splits
    if not splits or parameter in arguments:
        chosen = arguments.get(parameter, "")
        splits = {next((split for split, value in splits.items() if value == chosen), str(chosen)): chosen}
    missing = [each for each, one in known.items() if one.default is one.empty and each not in (*arguments, "root")]
    if missing:
        raise UsageError(f"torchvision's {name} needs {missing[0]}=…: torchvision:{name},{missing[0]}=…:ROOT")
    parts = {}
    for split, value in splits.items():
        alone = f"torchvision:{name},{parameter}=…:ROOT"
        hint = f" (split {split}; to read another alone: {alone})" if len(splits) > 1 else ""
        chosen = value if isinstance(value, Mapping) else {parameter: value} if parameter else {}
        with (
            guard("torchvision", unpickles=name in _CHECKED),
            explain_errors("torchvision", f"torchvision:{called}:{printable(str(root))}", hint),
        ):
            parts[split] = made(root=str(root), **{**arguments, **chosen})
    if name in OBJECTS:
        items = {split: list(items_of(name, part, split, root)) for split, part in parts.items()}
        return Objects(Path(rest), items).bridged()
    own = {split: class_names(part) for split, part in parts.items()}
    classes = [*dict.fromkeys(chain.from_iterable(own.values()))]
    if any(each != classes for each in own.values()) or name == "Omniglot":  # whose folders have the order of the disk
        classes.sort()
    samples = {split: Samples(part, root, split, own[split], classes) for split, part in parts.items()}
    return Bridged(samples, FIELDS[name](next(iter(parts.values()))) if name in FIELDS else None)


def _parameters(made: type) -> dict[str, inspect.Parameter]:
    """The parameters of a class by name, with those that it hands on as ``**kwargs``."""
    found: dict[str, inspect.Parameter] = {}
    for each in made.__mro__:
        parameters = inspect.signature(each.__init__).parameters  # type: ignore[misc]
        named = {name: one for name, one in parameters.items() if one.kind == one.POSITIONAL_OR_KEYWORD}
        found = {name: one for name, one in named.items() if name != "self"} | found
        if not any(one.kind == one.VAR_KEYWORD for one in parameters.values()):
            break
    return found


def _argument(dataset: str, given: str, known: Mapping[str, inspect.Parameter]) -> tuple[str, Any]:
    """Name and value of ``name=value``. Raises :class:`UsageError`."""
    name, _, text = given.partition("=")
    if name not in known or name in _OURS:
        names = ", ".join(each for each in known if each not in _OURS)
        raise UsageError(f"torchvision's {dataset} takes no argument {printable(name)!r} here; it takes {names}")
    kind = str(known[name].annotation)
    if "bool" in kind and text.lower() in ("true", "false"):
        return name, text.lower() == "true"
    if "int" in kind and text.isdecimal():
        return name, int(text)
    if "str" not in kind:
        raise UsageError(f"torchvision's {dataset}: {printable(name)} is {printable(text)!r}; expected {kind}")
    return name, text.split("+") if "+" in text else text
