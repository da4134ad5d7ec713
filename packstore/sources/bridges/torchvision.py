"""``torchvision:NAME:ROOT``: a dataset of ``torchvision.datasets`` with all its splits.

Arguments of its class follow the name: ``torchvision:VOCDetection,year=2007,image_set=test:ROOT``. A list is written
``target_type=category+annotation``.
"""

from __future__ import annotations

import inspect
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from packstore.core.errors import UsageError, printable
from packstore.core.fields import Array, Field, Image, Keypoints, Label, Labels, Text
from packstore.sources.annotation_formats.columns import Raw
from packstore.sources.annotation_formats.parsing import match_images, parse_id
from packstore.sources.annotation_formats.published import DONT_CARE
from packstore.sources.annotation_formats.shapes import AnnotatedObject, Parts, Picture, Value, box_from_corner
from packstore.sources.base import SourceOptions
from packstore.sources.boxes import CORNERS
from packstore.sources.bridges import (
    BridgedData,
    explain_errors,
    record_opened_files,
    restrict_library,
    split_name_and_path,
)
from packstore.sources.bridges.annotated import AnnotatedItem, AnnotatedItems
from packstore.sources.coco.documents import parse_crowds
from packstore.sources.dataset import index_key
from packstore.sources.encodings import active_encoding, to_utf8
from packstore.sources.torchvision_files import find_image_files
from packstore.sources.values import array_of, is_pil, is_tensor
from packstore.sources.voc import CLASSES, counts_from_zero, parse_annotation

SPLITS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    name: (parameter, {split: split for split in splits.split()})
    for parameter, splits, names in (
        ("split", "train val test", "CLEVRClassification DTD FGVCAircraft Flowers102 PCAM RenderedSST2 WIDERFace"),
        ("split", "train val", "Cityscapes FlyingChairs ImageNet Imagenette"),
        ("split", "train test", "ETH3DStereo FER2013 FlyingThings3D Food101 GTSRB HD1K InStereo2k Kitti2012Stereo"),
        ("split", "train test", "Kitti2015Stereo KittiFlow LFWPairs LFWPeople Sintel StanfordCars SVHN"),
        ("split", "train valid test", "CelebA Country211"),
        ("split", "trainval test", "OxfordIIITPet"),
        ("split", "train unlabeled test", "STL10"),
        ("image_set", "train val", "SBDataset VOCDetection VOCSegmentation"),
    )
    for name in names.split()
} | {
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
_NAMES: Mapping[str, Sequence[str] | Mapping[str, str]] = {
    "CelebA": _CELEBA,
    "Cityscapes": {"semantic": "mask", "instance": "instance_mask", "polygon": "polygons", "color": "colors"},
    "FlowDataset": ("second", "flow", "valid_mask"),
    "LFWPairs": ("second", "label"),
    "PhotoTour": ("second", "match"),
    "StereoMatchingDataset": ("right", "disparity", "valid_mask"),
}
"""Names of the values after the image, in order or by target type, by dataset or its base class; other values are named
by type."""
_CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "labels": lambda value: np.flatnonzero(array_of(value)).tolist(),
    "identity": int,
    "bbox": array_of,
    "keypoints": lambda value: array_of(value).reshape(1, 5, 2),
    "second": lambda value: PIL.Image.fromarray(array_of(value)) if is_tensor(value) else value,
    "flow": lambda value: _encode_npy(value),
    "disparity": lambda value: _encode_npy(value),
}
"""Functions that convert the values in :data:`_NAMES`, by name."""


def read_torchvision(rest: str, options: SourceOptions) -> BridgedData:
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
    known = _list_parameters(made)
    arguments = {**ARGUMENTS.get(name, {}), **_parse_arguments(name, given, known)}
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
        items: dict[str, list[AnnotatedItem]] = {split: [] for split in parts}
        for split, part in parts.items():
            for path, raw in _OBJECTS[name](part):
                key = f"{split}/{_relative_name(path, root)}".lstrip("/")
                items[split].append(AnnotatedItem(key, path, None if raw is None else Raw(raw)))
        annotated = AnnotatedItems(Path(rest), items, "objects", _read_objects)
        annotated.listed = next((raw.item[2] for raw in annotated.raw_annotations() if len(raw.item) > 2), ())
        return annotated.to_bridged_data()
    own = {split: find_class_names(part) for split, part in parts.items()}
    classes = [*dict.fromkeys(chain.from_iterable(own.values()))]
    # The folders of Omniglot have the order of the disk.
    if name == "Omniglot" or any(each != classes for each in own.values()):
        classes.sort()
    samples = {split: _Samples(part, root, split, own[split], classes) for split, part in parts.items()}
    return BridgedData(samples, _declare_celeba_fields(next(iter(parts.values()))) if name == "CelebA" else None)


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


def _parse_arguments(dataset: str, given: Sequence[str], known: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Converts each ``name=value`` to the annotated type of its parameter; returns the values by name. ``a+b`` becomes
    a list of texts. The last value of a repeated name counts.

    Raises :class:`UsageError` for a name that no parameter has, or that the user must not set, and for a value of
    another type.
    """
    known = {name: one for name, one in known.items() if name not in _OURS}
    values: dict[str, Any] = {}
    for each in given:
        name, _, text = each.partition("=")
        if name not in known:
            raise UsageError(
                f"torchvision's {dataset} takes no argument {printable(name)!r} here; it takes {', '.join(known)}"
            )
        kind = str(known[name].annotation)
        if "bool" in kind and text.lower() in ("true", "false"):
            values[name] = text.lower() == "true"
        elif "int" in kind and text.isdecimal():
            values[name] = int(text)
        elif "str" in kind:
            values[name] = text.split("+") if "+" in text else text
        else:
            raise UsageError(f"torchvision's {dataset}: {printable(name)} is {printable(text)!r}; expected {kind}")
    return values


def _list_parameters(made: type) -> dict[str, inspect.Parameter]:
    """Lists the parameters of a class's ``__init__`` by name. Includes parameters that ``__init__`` passes on to its
    bases as ``**kwargs``. Leaves out ``self`` and parameters that are keyword-only or positional-only."""
    parameters: dict[str, inspect.Parameter] = {}
    for each in made.__mro__:
        make: Callable[..., None] = each.__init__  # type: ignore[misc]
        own = inspect.signature(make).parameters
        named = {name: one for name, one in own.items() if one.kind == one.POSITIONAL_OR_KEYWORD}
        parameters = {name: one for name, one in named.items() if name != "self"} | parameters
        if not any(one.kind == one.VAR_KEYWORD for one in own.values()):
            break
    return parameters


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
    if isinstance(names, Mapping):
        names = [names[target] for target in dataset.target_type]
    values = {name: value for name, value in zip(names, others, strict=False) if value is not None}
    return {name: _CONVERT[name](value) if name in _CONVERT else value for name, value in values.items()}


def _encode_npy(values: Any) -> bytes:
    """Encodes an array as the bytes of an ``.npy`` file. For arrays whose shape differs from sample to sample."""
    file = io.BytesIO()
    np.save(file, array_of(values))
    return file.getvalue()


def _read_objects(item: Any, _: Picture) -> Parts:
    """Reads the list of objects. The value of ``json`` is the annotation as it was read."""
    yield from item[0]
    yield Value("json", item[1])


def _read_coco(data: Any) -> Iterator[tuple[Path, Any]]:
    """Yields path and raw annotation of each image of COCO. The raw annotation is for :func:`_read_objects`, with all
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
        objects = [
            AnnotatedObject(
                names[parse_id(each["category_id"])],
                box_from_corner(*each["bbox"]),
                each.get("segmentation") or None,
                crowd=bool(crowd),
            )
            for each, crowd in zip(annotations, parse_crowds(annotations), strict=True)
        ]
        yield Path(data.root, data.coco.imgs[number]["file_name"]), (objects, annotations, classes)


def _read_kitti(data: Any) -> Iterator[tuple[Path, Any]]:
    """Yields path and raw annotation of each image of KITTI, sorted by path. The raw annotation is for
    :func:`_read_objects`, and None for test images."""
    for number in sorted(range(len(data.images)), key=data.images.__getitem__):  # the list has the order of the disk
        annotations = data._parse_target(number) if data.train else None
        objects = [
            AnnotatedObject(each["type"], each["bbox"], crowd=each["type"] == DONT_CARE) for each in annotations or ()
        ]
        yield Path(data.images[number]), None if annotations is None else (objects, annotations)


def _read_voc(data: Any) -> Iterator[tuple[Path, Any]]:
    """Yields path and raw annotation of each image of VOC. The raw annotation is for :func:`_read_objects`, with the 20
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
        parts = zip(annotation["labels"], annotation["boxes"], annotation["difficult"], strict=True)
        objects = [AnnotatedObject(label, box, values={"difficult": difficult}) for label, box, difficult in parts]
        yield Path(image), (objects, annotation["json"], CLASSES if own else ())


def _read_wider_face(data: Any) -> Iterator[tuple[Path, Any]]:
    """Yields path and raw annotation of each image of WIDER FACE. The raw annotation is for :func:`_read_objects`,
    without classes. It is None for an image without labels."""
    for each in data.img_info:
        annotations = each.get("annotations")
        if annotations is None:
            yield Path(each["img_path"]), None
            continue
        columns = {name: values.tolist() for name, values in annotations.items()}
        faces = zip(columns["bbox"], columns["invalid"], strict=True)
        objects = [AnnotatedObject(None, box_from_corner(*box), crowd=bool(invalid)) for box, invalid in faces]
        yield Path(each["img_path"]), (objects, columns)


_OBJECTS: Mapping[str, Callable[[Any], Iterator[tuple[Path, Any]]]] = {
    "CocoDetection": _read_coco,
    "Kitti": _read_kitti,
    "VOCDetection": _read_voc,
    "WIDERFace": _read_wider_face,
}
"""Functions that yield path and annotations of each image, in the form for :func:`_read_objects`, by dataset."""
