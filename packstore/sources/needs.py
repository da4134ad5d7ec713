"""Names without which a path is of no kind: a kind whose names are missing is neither imported nor asked.

The table states necessary conditions. Names that are present prove nothing, so the kind itself decides. A kind without
a row, such as a plug-in, is always asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from packstore.core.errors import SourceError
from packstore.sources.archives import open_tree
from packstore.sources.contents import MOST_SUFFIXES, Contents, list_contents, suffix_of
from packstore.sources.refusals import first_bytes
from packstore.sources.tree import Tree

ONE_FILE = "*"
ODD_SUFFIX = "."
RELATED_NAMES = "="
_START = 512
_USUAL = re.compile(r"\.[a-z][a-z0-9]*")
_MAT, _GZIP = b"MATLAB", b"\x1f\x8b\x08"
_LMDB = (".mdb", ".lmdb", ODD_SUFFIX, ONE_FILE)
_JSON_KINDS = (
    *("coco", "labelme", "label_studio", "createml", "datumaro", "supervisely", "vott", "sa1b", "bdd100k", "cord"),
    *("textocr", "art", "openmmlab", "funsd"),
)
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".txt", ".lst")

# Names by kind, one of which must be at the path or below it, in lower case:
#
# - ``.json``: a file with this last suffix.
# - :data:`ODD_SUFFIX`: a file without suffix, a shard (``a-00000-of-00002``), or a file with a suffix other than a
# letter and further letters and digits: ``.0001``, ``.idx3-ubyte``.
# - ``index.json``: a file of this name.
# - ``images/``: a folder of this name. The path itself counts, too.
# - ``ilsvrc*``: a file, an image or a folder whose name begins like this.
# - :data:`ONE_FILE`: the path is a file.
# - :data:`RELATED_NAMES`: names of images and of other files that may go together.
# - ``--pair``: the user gives this option.
# - Bytes: the path is a file that begins with them.
NEEDS: Mapping[str, Sequence[str | bytes]] = {
    # A store of a plug-in's format is asked about at the end, see recognition.py.
    "store": ("data.mdb", "manifest.json", "versions/", ONE_FILE),
    "exported": ("packstore.json",),
    "tfds": ("dataset_info.json",),
    "tfrecord": (".tfrecord", ".tfrecords", ".tfrec", ".gz", ".zlib", ODD_SUFFIX, ONE_FILE),
    "arrayrecord": (".array_record", ".arrayrecord", ODD_SUFFIX, ONE_FILE),
    "recordio": (".rec",),
    "beton": (".beton", ".ffcv"),
    "cifar10": (
        *("batches.meta", "batches.meta.txt", "cifar-10-batches-py/", "cifar-10-batches-bin/"),
        *("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz", _GZIP),
    ),
    "cifar100": (
        *("meta", "fine_label_names.txt", "cifar-100-python/", "cifar-100-binary/"),
        *("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz", _GZIP),
    ),
    "idx": (ODD_SUFFIX, ".gz"),
    "imagenet32": ("train_data_batch_*", "val_data", "val_data.npz"),
    "hdf5": (".h5", ".hdf5", ".he5", ".hdf", ONE_FILE),
    "npz": (".npz", ".npy", b"PK\x03\x04", b"\x93NUMPY"),
    "mat": (".mat", _MAT),
    "zarr": (".zarray", "zarr.json", ".zgroup", "attributes.json"),
    "webdataset": (".tar", ".tgz", ".gz", ".zst", ".xz", ".bz2", ONE_FILE),
    "yolo": (".txt", ".yaml", ".yml", ".data"),
    "voc": (".xml", "jpegimages/", "imagesets/"),
    "arrow": (".arrow", "state.json", "dataset_dict.json", b"ARROW1"),
    "parquet": (".parquet", b"PAR1"),
    "ilsvrc": ("ilsvrc*",),
    "tinyimagenet": ("val_annotations.txt",),
    "cub200": ("images.txt", "image_class_labels.txt"),
    "flowers102": ("imagelabels.mat",),
    "food101": ("train.json", "train.txt"),
    "oxfordpet": ("trainval.txt",),
    "stanfordcars": ("cars_meta.mat",),
    "stanforddogs": ("annotation/",),
    "fgvcaircraft": ("images_variant_train.txt", "images_variant_test.txt"),
    "visa": ("1cls.csv",),
    "sun397": ("classname.txt", "abbey/"),
    "dtd": ("train1.txt",),
    "eurosat": ("2750/",),
    "places365": ("categories_places365.txt",),
    "celeba": ("list_attr_celeba.txt",),
    "ade20k": ("scenecategories.txt",),
    "gtsrb": ("gt-00000.csv",),
    "stl10": ("train_x.bin",),
    "mars": ("bbox_train/",),
    "omniglot": ("images_background*", "images_evaluation/", "character01/"),
    "via": (".json", ".csv"),
    "fiftyone": ("labels.json", "samples.json"),
    "widerface": ("wider_face_*",),
    "crowdhuman": (".odgt",),
    "mot": ("gt.txt",),
    "sroie": (".txt", ".csv", ".json"),
    "wildreceipt": (".txt", ".json", ".jsonl"),
    # One marker of each set in named/published.py.
    "published": (
        *("lfw/", "lfw_funneled/", "lfw-deepfunneled/", "ground_truth/", "101_objectcategories/", "ucmerced_landuse/"),
        *("agricultural/", "nwpu-resisc45/", "amazon/", "dslr/", "art/", "art_painting/", "imagenet-*", "sketch/"),
        *("imagenetv2*", "1/", "5/", "leftimg8bit/", "image_2/", "1st_manual/", "image_0*", "trainannot/"),
        *("testannot/", "valannot/", "stuffthingmaps/", "training/", "validation/", "labels/", "targets/", "label/"),
        "div2k_*",
    ),
    **dict.fromkeys(_JSON_KINDS, (".json",)),
    **dict.fromkeys(("kitti", "dota", "visdrone", "mots", "icdar", "mlt", "line_boxes"), (".txt",)),
    **dict.fromkeys(("cvat", "imglab"), (".xml",)),
    **dict.fromkeys(("lsun", "folder2lmdb", "ocr", "basicsr", "caffe"), _LMDB),
    **dict.fromkeys(("mds", "litdata"), ("index.json",)),
    **dict.fromkeys(("market1501", "dukemtmc"), ("bounding_box_train/",)),
    "svhn": (".mat",),
    "companions": (RELATED_NAMES, "--pair", "--sidecar", "--masks"),
    "hf_imagefolder": (".csv", ".jsonl", ".parquet", "readme.md"),
    "conversations": (".json", ".jsonl"),
    "captions": (".csv", ".tsv", ".txt", ".jsonl", ".token"),
    "caption_files": (".txt", ".caption", ".cap"),
    "pixel_table": (".csv", ".tsv"),
    "table": _TABLES,
    "dicom": (".dcm", ".dicom", ".dic", ".ima", ODD_SUFFIX),
    "nifti": (".nii", ".gz"),
}

_BEGINNINGS = sorted(
    {each for needs in NEEDS.values() for each in needs if isinstance(each, str) and each[-1] == "*"} - {ONE_FILE}
)


class PresentNames:
    """Names of the files and folders at a path, for comparison with :data:`NEEDS`.

    The path is listed once, but never if it is a file and no archive. Every kind may match if the path cannot be
    listed, or has too many suffixes to know all of them.
    """

    def __init__(self, path: Path, given: Iterable[str] = ()) -> None:
        """``given``: options of the command line that the user gives."""
        self._path = path
        self._given = frozenset(given)
        self._suffixes, self._files, self._folders = set[str](), set[str](), set[str]()
        self._crowded = set[str]()
        self._start: bytes | None = None
        self._tree: Tree | None = None
        self._contents = Contents({})
        self._unknown = False
        try:
            self._list()
        except (SourceError, OSError, RuntimeError):  # reported by the kinds; RuntimeError is a cycle of links
            self._unknown = True

    def may_be(self, kind: str) -> bool:
        """Tells if the path may be of a kind, by the kind's row in :data:`NEEDS`."""
        needs = NEEDS.get(kind)
        return needs is None or self._unknown or any(map(self._has, needs))

    def _list(self) -> None:
        """Lists the path."""
        path = self._path
        if path.is_file():
            self._start = first_bytes(path, _START)
            self._add_files([path.name])
        else:
            self._folders.add(path.absolute().name.lower())
        self._tree = open_tree(path)
        if self._tree is None:
            return
        self._contents = list_contents(self._tree)
        for folder in self._contents.folders.values():
            self._folders.add(folder.name)
            self._add_files(folder.hidden)  # Roboflow has written .annotations.coco.json
            for suffix, names in folder.others.items():
                self._add_files(names.first)
                if names.count > len(names.first):
                    self._crowded.add(suffix)
            self._unknown |= len(folder.others) >= MOST_SUFFIXES

    def _add_files(self, names: Sequence[str]) -> None:
        """Adds names of files, and their suffixes."""
        for name in map(str.lower, names):
            suffix = suffix_of(name)
            self._files.add(name)
            self._suffixes.add(suffix)
            if "-of-" in name or not _USUAL.fullmatch(suffix):
                self._suffixes.add(ODD_SUFFIX)

    def _has(self, need: str | bytes) -> bool:
        """Tells if the path has what one entry of :data:`NEEDS` names."""
        if isinstance(need, bytes):
            return self._start is not None and self._start.startswith(need)
        if need == ONE_FILE:
            return self._start is not None
        if need.endswith("/"):
            return need[:-1] in self._folders
        if need.endswith("*"):
            return bool(self._crowded) or need in self._beginnings
        if need == RELATED_NAMES:
            return self._contents.may_have_companions
        if need.startswith("--"):
            return need in self._given
        return need in self._suffixes or need in self._files or suffix_of(need) in self._crowded

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        """Prefixes of :data:`_BEGINNINGS` that some file, image or folder name has."""
        texts = ["\0".join(("", *self._files, *self._folders))]
        for path, folder in self._contents.folders.items():
            images = folder.images
            if images.count == len(images.first):
                texts.append("\0".join(("", *images.first)).lower())
            elif self._tree is not None:
                texts.append(self._tree.names(path).text.lower())
        return frozenset(each for each in _BEGINNINGS if any(f"\0{each[:-1]}" in text for text in texts))
