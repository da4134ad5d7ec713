"""``torchvision:NAME:ROOT``: a dataset of ``torchvision.datasets`` with all its splits.

Arguments of its class follow the name: ``torchvision:VOCDetection,year=2007,image_set=test:ROOT``. A list is written
``target_type=category+annotation``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from packstore.core.errors import UsageError, printable
from packstore.core.fields import Array, Field, Image, Keypoints, Label, Labels, Text
from packstore.sources.annotation_formats.columns import Raw
from packstore.sources.annotation_formats.parsing import match_images, parse_id
from packstore.sources.annotation_formats.published import DONT_CARE
from packstore.sources.annotation_formats.shapes import box_from_corner
from packstore.sources.base import SourceOptions
from packstore.sources.boxes import CORNERS
from packstore.sources.bridges import BridgedData, explain_errors, samples, split_name_and_path
from packstore.sources.bridges.arguments import list_parameters, parse_arguments
from packstore.sources.bridges.guard import restrict_library
from packstore.sources.bridges.items import AnnotatedItem, Objects
from packstore.sources.coco.documents import parse_crowds
from packstore.sources.encodings import active_encoding, to_utf8
from packstore.sources.values import array_of
from packstore.sources.voc import CLASSES, counts_from_zero, parse_annotation


def _make_split_entries(parameter: str, splits: str, names: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Makes an entry for each dataset in ``names``.

    An entry has the name of the ``parameter`` that chooses a split, and a dict that maps each name in ``splits`` to
    itself."""
    return dict.fromkeys(names.split(), (parameter, {split: split for split in splits.split()}))


SPLITS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **_make_split_entries("split", "train val test", "CLEVRClassification DTD FGVCAircraft Flowers102 PCAM"),
    **_make_split_entries("split", "train val test", "RenderedSST2 WIDERFace"),
    **_make_split_entries("split", "train val", "Cityscapes FlyingChairs ImageNet Imagenette"),
    **_make_split_entries("split", "train test", "ETH3DStereo FER2013 FlyingThings3D Food101 GTSRB HD1K InStereo2k"),
    **_make_split_entries("split", "train test", "Kitti2012Stereo Kitti2015Stereo KittiFlow LFWPairs LFWPeople"),
    **_make_split_entries("split", "train test", "Sintel StanfordCars SVHN"),
    **_make_split_entries("split", "train valid test", "CelebA Country211"),
    **_make_split_entries("split", "trainval test", "OxfordIIITPet"),
    **_make_split_entries("split", "train unlabeled test", "STL10"),
    **_make_split_entries("image_set", "train val", "SBDataset VOCDetection VOCSegmentation"),
    "INaturalist": ("version", {"train": "2021_train", "val": "2021_valid"}),
    "Middlebury2014Stereo": ("split", {"train": "train", "test": {"split": "test", "calibration": None}}),
    "Omniglot": ("background", {"background": True, "evaluation": False}),
    "Places365": ("split", {"train": "train-standard", "val": "val"}),
}
"""Splits by dataset: the parameter that chooses one, and its value, or all arguments, for each split. Splits have no
image in common."""
_IF_THERE: Mapping[str, tuple[str, str]] = {
    "Cityscapes": ("test", "leftImg8bit/test"),
    "Middlebury2014Stereo": ("additional", "Middlebury2014/additional"),
    "SVHN": ("extra", "extra_32x32.mat"),
}
"""A further split of a dataset, and the path that must exist for it."""
_TRAIN = ("train", {"train": True, "test": False})
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "CelebA": {"target_type": ["attr", "identity", "bbox", "landmarks"]},
    "Cityscapes": {"target_type": ["semantic", "instance", "polygon"]},
    "OxfordIIITPet": {"target_types": ["category", "segmentation"]},
    "SBDataset": {"mode": "segmentation"},
}
"""Arguments with which a dataset returns all its values."""
_CHECKED = ("CIFAR10", "CIFAR100")
"""Datasets of pickles whose class verifies MD5 digests of the files before it opens them."""
_OTHER = ("DatasetFolder", "FakeData", "HMDB51", "Kinetics", "MovingMNIST", "UCF101", "VisionDataset")
"""Datasets of videos, and classes that are no datasets of images by themselves."""
_OURS = ("root", "transform", "target_transform", "transforms", "download", "loader", "is_valid_file")
_UNSORTED = {"Cityscapes": "images", "INaturalist": "index", "SUN397": "_image_files"}
_UNSORTED |= {"Omniglot": "_flat_character_images"}
"""Attribute that lists the samples, of datasets whose samples have the order of the disk."""
_CELEBA = {"attr": "labels", "identity": "identity", "bbox": "bbox", "landmarks": "keypoints"}
_CITYSCAPES = {"semantic": "mask", "instance": "instance_mask", "polygon": "polygons", "color": "colors"}
_NAMES: Mapping[str, samples.NameValues] = {
    "CelebA": samples.namer_by_target(
        _CELEBA,
        labels=lambda value: np.flatnonzero(array_of(value)).tolist(),
        identity=int,
        bbox=array_of,
        keypoints=lambda value: array_of(value).reshape(1, 5, 2),
    ),
    "Cityscapes": samples.namer_by_target(_CITYSCAPES),
    "FlowDataset": samples.namer_in_order("second", "flow", "valid_mask", flow=samples.encode_npy),
    "LFWPairs": samples.namer_in_order("second", "label"),
    "PhotoTour": samples.namer_in_order("second", "match", second=lambda value: PIL.Image.fromarray(array_of(value))),
    "StereoMatchingDataset": samples.namer_in_order("right", "disparity", "valid_mask", disparity=samples.encode_npy),
}
"""Functions that name the values after the image, by dataset or its base class; other values are named by type."""


def read_dataset(rest: str, options: SourceOptions) -> BridgedData:
    """Opens the dataset: all its splits, or the split that the arguments choose. Ignores ``options``. Blocks
    connections. Blocks unpickling too, but not for datasets whose checksums torchvision verifies.

    Raises :class:`UsageError` for an unknown class, an unknown or missing argument, and a missing folder. Raises
    :class:`SourceError` if torchvision cannot read the dataset.
    """
    called, root = split_name_and_path(rest, "torchvision")
    name, *given = called.split(",")
    from torchvision import datasets

    made = getattr(datasets, name, None) if name in datasets.__all__ else None
    if not isinstance(made, type) or name in _OTHER:
        raise UsageError(f"torchvision has no dataset {printable(name)!r}, or it is not one of images")
    known = list_parameters(made)
    arguments = {**ARGUMENTS.get(name, {}), **parse_arguments(f"torchvision's {name}", given, known, _OURS)}
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
            restrict_library("torchvision", unpickles=name in _CHECKED),
            explain_errors("torchvision", f"torchvision:{called}:{printable(str(root))}", hint),
        ):
            parts[split] = made(root=str(root), **{**arguments, **chosen})
    if name in _OBJECTS:
        items = {split: _list_annotated_items(name, part, split, root) for split, part in parts.items()}
        return Objects(Path(rest), items).to_bridged_data()
    samples_by_split = samples.make_samples_by_split(
        "torchvision",
        parts,
        root,
        name_values=next((_NAMES[each.__name__] for each in made.__mro__ if each.__name__ in _NAMES), None),
        sorted_by=_UNSORTED.get(name, ""),
        sort_classes=name == "Omniglot",  # whose folders have the order of the disk
    )
    return BridgedData(
        samples_by_split, _declare_celeba_fields(next(iter(parts.values()))) if name == "CelebA" else None
    )


def _declare_celeba_fields(data: Any) -> dict[str, Field]:
    """Declares the columns of CelebA: image, file, and one for each target type of ``data``. Without declarations, the
    names of its attributes would be unknown."""
    columns: dict[str, Field] = {
        "attr": Labels([name for name in data.attr_names if name], of=False),  # the line ends in a space
        "identity": Label(),
        "bbox": Array("int64", (4,)),
        "landmarks": Keypoints(2, of=False, points=5),
    }
    return {"image": Image(), **{_CELEBA[each]: columns[each] for each in data.target_type}, "file": Text()}


def _list_annotated_items(name: str, data: Any, split: str, root: Path) -> list[AnnotatedItem]:
    """Lists the images of a dataset with objects, with their raw annotations. A key is split and path."""
    images = ((samples.relative_name(path, root), path, raw) for path, raw in _OBJECTS[name](data))
    return [
        AnnotatedItem(f"{split}/{key}".lstrip("/"), path, None if raw is None else Raw(raw))
        for key, path, raw in images
    ]


def _read_coco(data: Any) -> Iterator[tuple[Path, Any]]:
    """Yields path and raw annotation of each image of COCO. The raw annotation is for :class:`Objects`, with all
    classes."""
    names = {parse_id(number): each["name"] for number, each in sorted(data.coco.cats.items())}
    classes = [*names.values()]
    by_image: dict[Any, list[Any]] = {parse_id(number): [] for number in data.ids}
    listed = ((each.get("id"), each["image_id"], each) for each in data.coco.dataset.get("annotations", ()))
    for annotation, own in match_images("CocoDetection", listed, by_image):
        if own is not None:
            own.append(annotation)
    for number in data.ids:
        annotations = by_image[parse_id(number)]
        objects: list[tuple[Any, ...]] = [
            (
                names[parse_id(a["category_id"])],
                box_from_corner(*a["bbox"]),
                a.get("segmentation") or None,
                {},
                bool(crowd),
            )
            for a, crowd in zip(annotations, parse_crowds(annotations), strict=True)
        ]
        yield Path(data.root, data.coco.imgs[number]["file_name"]), (objects, annotations, classes)


def _read_kitti(data: Any) -> Iterator[tuple[Path, Any]]:
    """Yields path and raw annotation of each image of KITTI, sorted by path. The raw annotation is for
    :class:`Objects`, and None for test images."""
    for number, path in sorted(
        enumerate(data.images), key=lambda each: each[1]
    ):  # sorted: the list has the order of the disk
        annotations = data._parse_target(number) if data.train else None
        objects: list[tuple[Any, ...]] = [
            (each["type"], each["bbox"], None, {}, each["type"] == DONT_CARE) for each in annotations or ()
        ]
        yield Path(path), None if annotations is None else (objects, annotations)


def _read_voc(data: Any) -> Iterator[tuple[Path, Any]]:
    """Yields path and raw annotation of each image of VOC. The raw annotation is for :class:`Objects`, with the 20
    classes if there are no others. Boxes count from 0 if one of them proves it. Raises :class:`ValueError` for an
    invalid XML file."""
    annotations = [
        parse_annotation(to_utf8(Path(file).read_bytes(), active_encoding(), str(file)), CORNERS)
        for file in data.annotations
    ]
    if not any(counts_from_zero(box) for annotation in annotations for box in annotation["boxes"]):
        for each in annotations:
            each["boxes"] = [[left - 1, top - 1, right, bottom] for left, top, right, bottom in each["boxes"]]
    own = {label for annotation in annotations for label in annotation["labels"]} <= set(CLASSES)
    for image, annotation in zip(data.images, annotations, strict=True):
        values = [{"difficult": each} for each in annotation["difficult"]]
        objects = zip(annotation["labels"], annotation["boxes"], [None] * len(values), values, strict=True)
        yield Path(image), ([*objects], annotation["json"], CLASSES if own else ())


def _read_wider_face(data: Any) -> Iterator[tuple[Path, Any]]:
    """Yields path and raw annotation of each image of WIDER FACE. The raw annotation is for :class:`Objects`, without
    classes. It is None for an image without labels."""
    for each in data.img_info:
        annotations = each.get("annotations")
        columns = None if annotations is None else {name: values.tolist() for name, values in annotations.items()}
        faces = [] if columns is None else zip(columns["bbox"], columns["invalid"], strict=True)
        objects: list[tuple[Any, ...]] = [
            (None, box_from_corner(*box), None, {}, bool(invalid)) for box, invalid in faces
        ]
        yield Path(each["img_path"]), None if columns is None else (objects, columns)


_OBJECTS: Mapping[str, Callable[[Any], Iterator[tuple[Path, Any]]]] = {
    "CocoDetection": _read_coco,
    "Kitti": _read_kitti,
    "VOCDetection": _read_voc,
    "WIDERFace": _read_wider_face,
}
"""Functions that yield path and annotations of each image, in the form for :class:`Objects`, by dataset."""
