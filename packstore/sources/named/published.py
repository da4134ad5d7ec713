"""Published sets whose folders and file names tell everything: splits are folders, columns are parts of paths, and
further files lie beside the images.

- Market-1501 and DukeMTMC-reID: ``0002_c1s3_000151_00.jpg`` is identity 2 from camera 1; -1 is junk, 0 a distractor.
- MARS: ``bbox_train/0001/0001C1T0001F001.jpg`` is identity 1, camera 1, tracklet 1, frame 1; ``00-1`` is junk.
- Omniglot: ``images_background/Greek/character01/0390_01.png``; the class is the character with its alphabet.
- Sources of the others: their read-me files, and the data sets of torchvision and torchgeo.

A set fits a source if the path of each image matches its pattern, or belongs to a matching image. A source with other
images raises a question, so it is never mistaken for another set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import Answer, SourceError, printable
from packstore.core.fields import Label
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.found import Files, Found, FoundSource, has_path, walk_images
from packstore.sources.ignoring import ignore_paths
from packstore.sources.named import open_tree_or_none, walk_lone_folders
from packstore.sources.questions import ask
from packstore.sources.rows import InTree
from packstore.sources.tree import Tree

# Groups of patterns that are classes.
_LABELS = ("label", "object", "domain", "corruption", "eye", "disaster")
_NOTES = r"(.*/)?(readme|licen[cs]e|copyright)[^/]*"


@dataclass(frozen=True, slots=True)
class FolderSet:
    """Published data set, described by patterns of paths. Paths are relative to the folder that holds all
    :attr:`markers`.

    Attributes:
        markers: Files and folders that mark the set, all of them. In ``a|b``, either is enough. ``*/a`` is ``a`` in any
            folder.
        path: Pattern of the path of an image, with its suffix in lower case. Its groups are columns: classes, whole
            numbers or texts. The group ``split`` is the split, and a group ``_name`` is no column.
        splits: Names of splits by the text of the group, if they differ.
        beside: Path of a further file of an image by column, with groups in braces: image, mask, ``.json`` or ``.txt``.
        required: Columns of :attr:`beside` that each image must have.
        left: Pattern of files that belong to the set and are left out, besides read-me files and licences.
    """

    markers: tuple[str, ...]
    path: str
    splits: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    left: str = ""

    def format_beside_paths(self, match: re.Match[str]) -> dict[str, str]:
        """Returns the path of each further file of an image, by column; the file need not exist. ``match``: that of
        :attr:`path` with the image's path."""
        groups = {name: text or "" for name, text in match.groupdict().items()}
        return {column: template.format_map(groups) for column, template in self.beside.items()}


class FolderSetMatch(NamedTuple):
    """Result of matching a :class:`FolderSet` with the files of a source.

    Attributes:
        title: The publisher's name for the set.
        form: The set.
        base: Folder that holds the markers.
        images: Number of matching images.
        strangers: Number of images that do not belong to the set.
        first_stranger: The first of them; ``""`` if there are none.
    """

    title: str
    form: FolderSet
    base: str
    images: int
    strangers: int
    first_stranger: str


class FolderSetSource(FoundSource):
    """Source of one of several known sets; takes its images folder by folder.

    Leaves out images that do not match the set's pattern. Further files, such as masks, become a column if at least one
    exists. Opening raises :class:`SourceError` if no set fits the path.
    """

    left_images = "images whose names do not follow the set's pattern"

    def __init__(self, kind: str, known_sets: Mapping[str, FolderSet], path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.kind = kind
        fit = find_folder_set(self.tree, known_sets)
        if fit is None:
            raise SourceError(f"{printable(str(path))} is none of the sets of {kind}: {', '.join(known_sets)}")
        self._form, self.base = fit.form, fit.base
        self.evidence = f"the folders of {fit.title}, and the names of {fit.images:,} images"

    def generate(self, files: Files) -> Iterator[Found]:
        """Yields the images whose paths match the pattern, with their further files."""
        form, pattern = self._form, re.compile(self._form.path)
        files.columns = {name: Label() for name in pattern.groupindex if name in _LABELS}
        for image in files.images(""):
            if match := pattern.fullmatch(_lower_suffix(image)):
                groups = match.groupdict()
                split = groups.pop("split", None) or ""
                values = {name: _parse_group(name, text) for name, text in groups.items() if name[0] != "_"}
                for column, path in form.format_beside_paths(match).items():
                    values[column] = InTree(files.path(path), optional=column not in form.required)
                yield Found(image, form.splits.get(split, split.lower()), values)

    def expects_left(self, path: str) -> bool:
        """Tells if the set leaves out a file on purpose."""
        inside = path[len(self.base) + 1 if self.base else 0 :]
        return re.fullmatch(f"{_NOTES}|{self._form.left}", inside) is not None


def _parse_group(name: str, text: str | None) -> Any:
    """Parses a group of a path: a class stays a text, anything else becomes a whole number if it can."""
    if text == "00-1":  # junk of MARS
        return -1
    return int(text) if text and name not in _LABELS and re.fullmatch(r"-?\d+", text) else text


def find_folder_set(tree: Tree, known_sets: Mapping[str, FolderSet]) -> FolderSetMatch | None:
    """Finds the first set that matches all images of a tree. If none does, finds the first that matches some. None if
    no set matches.

    Looks for the markers in the folders of :func:`walk_lone_folders`, up to the first folder in which a set matches.
    Skips sets with missing required files. Lists all images.
    """
    for base in walk_lone_folders(tree):
        fits = [
            fit
            for title, form in known_sets.items()
            if all(has_path(tree, base, marker) for marker in form.markers)
            if (fit := _match_set(tree, base, title, form)) is not None
        ]
        if fits:
            # A set that explains all images is preferred to one that explains some.
            return min(fits, key=lambda fit: fit.strangers > 0)
    return None


def _match_set(tree: Tree, base: str, title: str, form: FolderSet) -> FolderSetMatch | None:
    """Matches all images of a tree with a set; None if no image matches, or a required file is missing."""
    pattern, left = re.compile(form.path), re.compile(form.left)
    images = 0
    # Paths of a large set do not fit into memory, but their hashes do.
    others, beside, required = set[int](), set[int](), set[int]()
    for image in map(_lower_suffix, walk_images(tree, base)):
        if match := pattern.fullmatch(image):
            images += 1
            paths = form.format_beside_paths(match)
            beside.update(map(hash, paths.values()))
            required.update(hash(paths[name]) for name in form.required)
        elif not left.fullmatch(image):
            others.add(hash(image))
    if not images or not required <= others:
        return None
    strangers = others - beside
    below = map(_lower_suffix, walk_images(tree, base)) if strangers else ()
    first = next((image for image in below if hash(image) in strangers), "")
    return FolderSetMatch(title, form, base, images, len(strangers), first)


def _lower_suffix(path: str) -> str:
    """Returns a path with its suffix in lower case, as the patterns of paths have it."""
    stem, dot, suffix = path.rpartition(".")
    return stem + dot + suffix.lower()


def make_folder_set_kind(name: str, help: str, known_sets: Mapping[str, FolderSet]) -> Kind:
    """Makes the :class:`Kind` of some sets. It recognises a path by the images that a set matches:

    - All images: ``CERTAIN``.
    - At least half of the images: raises :class:`AmbiguousSourceError`.
    - Fewer, and a damaged archive: ``NO``.
    """

    def recognise(path: Path, options: SourceOptions) -> Certainty:
        tree = open_tree_or_none(path)
        fit = None if tree is None else find_folder_set(tree, known_sets)
        if fit is None or fit.strangers > fit.images:
            return Certainty.NO
        if fit.strangers:
            why = f"looks like {fit.title}, but {fit.strangers:,} of its images have other names, "
            alone = [Answer(ignore_paths([fit.first_stranger]))] if fit.strangers == 1 else []
            raise ask(path, f"{why}{printable(fit.first_stranger)} among them", *alone)
        return Certainty.CERTAIN

    return Kind(name, help, recognise, partial(FolderSetSource, name, known_sets), in_objects=True)


_SUFFIX = r"\.(jpg|jpeg|png|bmp|tif)"

_PEOPLE = ("bounding_box_train", "bounding_box_test")
_PERSON = r"(?P<split>bounding_box_train|bounding_box_test|query)/(?P<identity>-?\d+)_c(?P<camera>\d+)"
_PEOPLE_SPLITS = {"bounding_box_train": "train", "bounding_box_test": "test"}

_MARKET = FolderSet(
    _PEOPLE,
    _PERSON + r"s(?P<sequence>\d+)_(?P<frame>\d+)_(?P<number>\d+)(\.jpg)?\.jpg",
    splits=_PEOPLE_SPLITS,
    left="gt_(bbox|query)/.*",
)
_DUKE = FolderSet(_PEOPLE, _PERSON + r"_f(?P<frame>\d+)\.jpg", splits=_PEOPLE_SPLITS)
_MARS = FolderSet(
    ("bbox_train", "bbox_test"),
    r"(?P<split>bbox_train|bbox_test)/[^/]+/(?P<identity>\d{4}|00-1)C(?P<camera>\d)T(?P<track>\d{4})F(?P<frame>\d{3})"
    r"\.jpg",
    splits={"bbox_train": "train", "bbox_test": "test"},
    left="info/.*",
)
_CHARACTER = r"(?P<label>[^/]+/character\d+)/\d+_(?P<drawer>\d+)\.png"
_OMNIGLOT = {
    "Omniglot": FolderSet(
        ("images_background|images_evaluation|images_background_small1|images_background_small2",),
        r"(?P<split>images_background|images_evaluation|images_background_small[12])/" + _CHARACTER,
        splits={"images_background": "train", "images_evaluation": "test"},
    ),
    "Omniglot, one of its archives": FolderSet(("*/character01",), _CHARACTER),
}
_CORRUPTIONS = (
    "gaussian_noise|shot_noise|impulse_noise|defocus_blur|glass_blur|motion_blur|zoom_blur|snow|frost|fog|brightness|"
    "contrast|elastic_transform|pixelate|jpeg_compression|speckle_noise|gaussian_blur|spatter|saturate"
)
_V2 = ("matched-frequency", "threshold0.7", "threshold-0.7", "top-images")

CLASSES = {
    "Labeled Faces in the Wild": FolderSet(
        ("lfw|lfw_funneled|lfw-deepfunneled",),
        r"(lfw|lfw_funneled|lfw-deepfunneled)/(?P<label>[^/]+)/(?P=label)_(?P<number>\d{4})\.(jpg|png|ppm)",
        left=r"(.*/)?(pairs|people)[^/]*\.txt|lfw-names\.txt",
    ),
    "MVTec AD": FolderSet(
        ("*/train/good", "*/ground_truth"),
        r"(?P<object>[^/]+)/(?P<split>train|validation|test)/(?P<label>[^/]+)/(?P<_name>[^/]+)" + _SUFFIX,
        beside={"mask": "{object}/ground_truth/{label}/{_name}_mask.png"},
    ),
    "Caltech-101": FolderSet(
        ("101_ObjectCategories",),
        r"101_ObjectCategories/(?P<label>(?!BACKGROUND_Google/)[^/]+)/image_(?P<number>\d{4})\.jpg",
        left=r"101_ObjectCategories/BACKGROUND_Google/.*|Annotations/.*|.*\.m",
    ),
    "UC Merced Land Use": FolderSet(
        ("UCMerced_LandUse/Images|Images/agricultural",),
        r"(UCMerced_LandUse/)?Images/(?P<label>[a-z]+)/(?P=label)(?P<number>\d{2,})\.(tif|jpg|png)",
        left=r"(.*/)?readme\.txt",
    ),
    "NWPU-RESISC45": FolderSet(
        ("NWPU-RESISC45",), r"NWPU-RESISC45/(?P<label>[a-z_]+)/(?P=label)_(?P<number>\d{3})\.jpg"
    ),
    "Office-31": FolderSet(
        ("amazon/images|dslr/images", "webcam/images|dslr/images"),
        r"(?P<domain>amazon|dslr|webcam)/images/(?P<label>[^/]+)/frame_(?P<number>\d{4})\.jpg",
    ),
    "Office-Home": FolderSet(
        ("Art", "Clipart", "Product"),
        r"(?P<domain>Art|Clipart|Product|Real[ _]?World)/(?P<label>[^/]+)/(?P<number>\d{5})\.jpg",
        left=r"ImageInfo\.csv|imagelist\.txt",
    ),
    "PACS": FolderSet(
        ("art_painting", "cartoon", "photo", "sketch"),
        r"(?P<domain>art_painting|cartoon|photo|sketch)/(?P<label>[^/]+)/[^/]+\.(jpg|png)",
    ),
    "ImageNet-A, -O, -R or -Sketch": FolderSet(
        ("imagenet-a|imagenet-o|imagenet-r|imagenet-sketch|sketch",),
        r"(imagenet-[aor]|imagenet-sketch|sketch)/(?P<label>n\d{8})/[^/]+" + _SUFFIX,
    ),
    "ImageNetV2": FolderSet(
        ("|".join(f"imagenetv2-{name}{end}" for name in _V2 for end in ("-format-val", "")),),
        r"imagenetv2-[^/]+/(?P<label>\d{1,3})/[0-9a-f]+\.(jpeg|jpg)",
    ),
    "ImageNet-C": FolderSet(
        ("|".join(f"{name}/{level}" for name in _CORRUPTIONS.split("|") for level in (1, 5)),),
        rf"(?P<corruption>{_CORRUPTIONS})/(?P<severity>[1-5])/(?P<label>n\d{{8}})/[^/]+\.jpeg",
    ),
}

MASKS = {
    **{
        title: FolderSet(
            ("leftImg8bit", kind),
            r"leftImg8bit/(?P<split>[^/]+)/(?P<_city>[^/]+)/(?P<_name>[^/]+)_leftImg8bit\.png",
            beside={
                column: f"{kind}/{{split}}/{{_city}}/{{_name}}_{kind}_{end}"
                for column, end in (
                    ("mask", "labelIds.png"),
                    ("instance_mask", "instanceIds.png"),
                    ("train_mask", "labelTrainIds.png"),
                    ("polygons", "polygons.json"),
                )
            },
            left=rf"{kind}/.*_color\.(?i:png)",
        )
        for title, kind in (("Cityscapes", "gtFine"), ("Cityscapes, coarse", "gtCoarse"))
    },
    "KITTI semantics": FolderSet(
        ("training/image_2|train/image_2", "training/semantic|training/instance|train/semantic|train/instance"),
        r"(?P<split>training|testing|train|val|validation|test)/image_2/(?P<_name>[^/]+)\.png",
        beside={
            "mask": "{split}/semantic/{_name}.png",
            "instance_mask": "{split}/instance/{_name}.png",
            "colour_mask": "{split}/semantic_rgb/{_name}.png",
        },
        left=r"label_colors\.txt",
    ),
    "Mapillary Vistas": FolderSet(
        ("training/images|validation/images", "training/v2.0|validation/v2.0|training/v1.2|validation/v1.2"),
        r"(?P<split>training|validation|testing)/images/(?P<_name>[^/]+)\.jpg",
        beside={
            "mask_v1": "{split}/v1.2/labels/{_name}.png",
            "instance_mask_v1": "{split}/v1.2/instances/{_name}.png",
            "panoptic_mask_v1": "{split}/v1.2/panoptic/{_name}.png",
            "mask_v2": "{split}/v2.0/labels/{_name}.png",
            "instance_mask_v2": "{split}/v2.0/instances/{_name}.png",
            "panoptic_mask_v2": "{split}/v2.0/panoptic/{_name}.png",
            "polygons": "{split}/v2.0/polygons/{_name}.json",
        },
        left=r"config[^/]*\.json|demo\.py|.*/panoptic/panoptic[^/]*\.json|requirements\.txt",
    ),
    "DRIVE": FolderSet(
        ("images|*/images", "1st_manual|*/1st_manual"),
        r"(?P<_top>((?P<split>training|test|testing)/)?)images/(?P<number>\d\d)_(?P<_end>training|test)\.(tif|png)",
        beside={
            "vessels": "{_top}1st_manual/{number}_manual1.gif",
            "vessels_2": "{_top}2nd_manual/{number}_manual2.gif",
            "field_of_view": "{_top}mask/{number}_{_end}_mask.gif",
        },
    ),
    "CHASE_DB1": FolderSet(
        ("Image_01L.jpg|Image_01R.jpg|Image_02L.jpg|Image_02R.jpg",),
        r"Image_(?P<number>\d\d)(?P<eye>[LR])\.jpg",
        beside={"vessels": "Image_{number}{eye}_1stHO.png", "vessels_2": "Image_{number}{eye}_2ndHO.png"},
        required=("vessels",),
    ),
    "CamVid of SegNet": FolderSet(
        ("train|test|val", "trainannot|testannot|valannot", "train.txt|test.txt|val.txt"),
        r"(?P<split>train|val|test)/(?P<_name>[^/]+)\.(png|jpg)",
        beside={"mask": "{split}annot/{_name}.png"},
        required=("mask",),
        left=r"(train|val|test|label_colors)\.txt",
    ),
    "COCO-Stuff": FolderSet(
        ("stuffthingmaps", "train2017|val2017|images/train2017|images/val2017"),
        r"(images/)?(?P<split>(train|val)2017)/(?P<_name>\d{12})\.jpg",
        beside={"mask": "stuffthingmaps/{split}/{_name}.png"},
        required=("mask",),
        left=r"labels\.txt|labels\.md",
    ),
    "ADE20K, full": FolderSet(
        ("images/ADE/training|images/ADE/validation|images/training|images/validation|training|validation",),
        r"(?P<_top>(images/)?(ADE/)?)(?P<split>training|validation)/(?P<scene>.+)/(?P<_name>ADE_[a-z]+_\d{8})\.jpg",
        beside={
            "mask": "{_top}{split}/{scene}/{_name}_seg.png",
            **{f"parts_{n}_mask": f"{{_top}}{{split}}/{{scene}}/{{_name}}_parts_{n}.png" for n in range(1, 7)},
            "annotation": "{_top}{split}/{scene}/{_name}.json",
            "attributes": "{_top}{split}/{scene}/{_name}_atr.txt",
        },
        required=("mask",),
        left=r".*/ADE_[a-z]+_\d{8}/instance_[^/]*\.png|index_ade20k\.(mat|pkl)|objects\.txt|objectInfo[^/]*",
    ),
}


_LOW = {f"{how}_x{scale}": (how, scale) for how in ("bicubic", "unknown") for scale in (2, 3, 4)}

PAIRS = {
    "DIV2K": FolderSet(
        ("DIV2K_train_HR|DIV2K_valid_HR", "DIV2K_train_LR_*|DIV2K_valid_LR_*"),
        r"DIV2K_(?P<split>train|valid)_HR/(?P<_name>\d{4})\.png",
        beside={
            **{
                column: f"DIV2K_{{split}}_LR_{how}/X{scale}/{{_name}}x{scale}.png"
                for column, (how, scale) in _LOW.items()
            },
            "x8": "DIV2K_{split}_LR_x8/{_name}x8.png",
            "mild": "DIV2K_{split}_LR_mild/{_name}x4m.png",
            "difficult": "DIV2K_{split}_LR_difficult/{_name}x4d.png",
            **{f"wild_{n}": f"DIV2K_{{split}}_LR_wild/{{_name}}x4w{n}.png" for n in range(1, 5)},
        },
    ),
    "xView2 (xBD)": FolderSet(
        ("images|*/images", "labels|targets|*/labels|*/targets"),
        r"(?P<_top>((?P<split>train|test|hold|tier3)/)?)images/(?P<disaster>[a-z\d-]+)_(?P<number>\d{8})_pre_disaster"
        r"\.(?P<_end>png|tif)",
        beside={
            "after": "{_top}images/{disaster}_{number}_post_disaster.{_end}",
            "mask": "{_top}targets/{disaster}_{number}_pre_disaster_target.png",
            "mask_after": "{_top}targets/{disaster}_{number}_post_disaster_target.png",
            "buildings": "{_top}labels/{disaster}_{number}_pre_disaster.json",
            "buildings_after": "{_top}labels/{disaster}_{number}_post_disaster.json",
        },
        required=("after",),
    ),
    "change detection: A, B and label": FolderSet(
        ("train/A|val/A|test/A|A", "train/B|val/B|test/B|B", "train/label|val/label|test/label|label"),
        r"(?P<_top>((?P<split>train|val|test)/)?)A/(?P<_name>[^/]+\.(png|jpg|tif))",
        beside={"after": "{_top}B/{_name}", "mask": "{_top}label/{_name}"},
        required=("after", "mask"),
        left=r"list/[^/]+\.txt",
    ),
}


MARKET1501 = make_folder_set_kind("market1501", "Market-1501 as published", {"Market-1501": _MARKET})
DUKEMTMC = make_folder_set_kind("dukemtmc", "DukeMTMC-reID as published", {"DukeMTMC-reID": _DUKE})
MARS = make_folder_set_kind("mars", "MARS as published", {"MARS": _MARS})
OMNIGLOT = make_folder_set_kind("omniglot", "Omniglot as published", _OMNIGLOT)
PUBLISHED = make_folder_set_kind(
    "published", "a published set recognised by its folders and file names", CLASSES | MASKS | PAIRS
)
