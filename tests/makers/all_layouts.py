"""Each layout that packstore reads, made tiny, and what only looks like one."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

from tests.internals import write_example
from tests.makers.annotated import coco, fill, jpeg, mask, voc, yolo
from tests.makers.annotation_formats import MAKERS as ANNOTATED
from tests.makers.annotation_formats import PATHS, make_folder_set
from tests.makers.arrayrecord import write_arrayrecord
from tests.makers.datasets import make_cifar10
from tests.makers.images import encode, picture, tiny
from tests.makers.layouts import MAKERS, imagenet32, make_layout, tar
from tests.makers.published import SETS as PUBLISHED
from tests.makers.published import make_set

CORPUS = Path(__file__).parents[1] / "corpus"
Make = Callable[[Path], Path]


def pixels(*shape: int) -> Any:
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


def dicom(root: Path) -> Path:
    """Three slices without file meta information but for the syntax: explicit VR, little endian."""
    elements = [
        (0x0008, 0x0016, b"UI", b"1.2.840.10008.5.1.4.1.1.2\0"), (0x0020, 0x000E, b"UI", b"1.2.8\0"),
        (0x0028, 0x0002, b"US", b"\1\0"), (0x0028, 0x0004, b"CS", b"MONOCHROME2 "),
        (0x0028, 0x0010, b"US", b"\4\0"), (0x0028, 0x0011, b"US", b"\5\0"), (0x0028, 0x0100, b"US", b"\x10\0"),
        (0x0028, 0x0101, b"US", b"\x0c\0"), (0x0028, 0x0102, b"US", b"\x0b\0"), (0x0028, 0x0103, b"US", b"\0\0"),
    ]  # fmt: skip
    syntax = struct.pack("<HH2sH", 2, 0x10, b"UI", 20) + b"1.2.840.10008.1.2.1\0"
    meta = bytes(128) + b"DICM" + struct.pack("<HH2sHI", 2, 0, b"UL", 4, len(syntax)) + syntax
    header = b"".join(struct.pack("<HH2sH", *element[:3], len(element[3])) + element[3] for element in elements)
    for number in range(3):
        samples = (pixels(4, 5).astype(np.uint16) + number).tobytes()
        packed = struct.pack("<HH2sHI", 0x7FE0, 0x10, b"OW", 0, len(samples)) + samples
        fill(root / "studies", {f"a/{number}.dcm": meta + header + packed})
    return root / "studies"


def nifti(root: Path) -> Path:
    """A volume of 5 x 4 x 3 bytes: slices or a volume is a question."""
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, 3, 5, 4, 3, 1, 1, 1, 1)
    struct.pack_into("<2h", header, 70, 2, 8)
    struct.pack_into("<8f", header, 76, *[1.0] * 8)
    struct.pack_into("<f", header, 108, 352.0)
    header[344:348] = b"n+1\0"
    return fill(root / "volumes", {"a.nii": bytes(header) + pixels(60).tobytes()})


def idx(array: Any) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def files(**named: bytes | str) -> Make:
    """A folder of these; ``__`` in a name is a slash, and ``_dot_`` a dot."""
    return lambda root: fill(root / "set", {_path(name): content for name, content in named.items()})


def _path(name: str) -> str:
    return name.replace("__", "/").replace("_dot_", ".")


def corpus(name: str) -> Make:
    return lambda root: shutil.copytree(CORPUS / name, root / name)


def named(kind: str) -> Make:
    return lambda root: make_layout(kind, root, 24)


def in_its_root(kind: str) -> Make:
    """As torchvision puts it: in a folder that is given."""
    return lambda root: [make_layout(kind, root), root][1]


def archived(make: Make, suffix: str) -> Make:
    """An archive of it, beside it."""

    def pack(root: Path) -> Path:
        folder = make(root / "unpacked")
        way = {".zip": "zip", ".tar": "tar", ".tar.gz": "gztar"}[suffix]
        return Path(shutil.make_archive(str(root / "set"), way, folder.parent, folder.name))

    return pack


def without(make: Make, *names: str) -> Make:
    """The same without some files or folders."""

    def lose(root: Path) -> Path:
        path = make(root)
        for name in names:
            if (path / name).is_dir():
                shutil.rmtree(path / name)
            else:
                (path / name).unlink()
        return path

    return lose


def database(name: str, entries: dict[bytes, bytes], meta: str = "") -> Make:
    """An LMDB of others."""

    def make(root: Path) -> Path:
        with lmdb.open(str(root / name), map_size=1 << 22) as environment, environment.begin(write=True) as transaction:
            for key, value in entries.items():
                transaction.put(key, value)
        if meta:
            (root / name / "meta_info.txt").write_text(meta)
        return root / name

    return make


def hdf5(*named: str) -> Make:
    def make(root: Path) -> Path:
        root.mkdir(exist_ok=True)
        with h5py.File(root / "data.h5", "w") as file:
            for name in named:
                file[name] = pixels(6, 8, 8, 3) if name.startswith(("x", "images")) else np.arange(6) % 2
        return root / "data.h5"

    return make


def pcam(root: Path) -> Path:
    for split in ("train", "valid"):
        for what, array in (("x", pixels(4, 8, 8, 3)), ("y", pixels(4, 1, 1, 1) % 2)):
            with h5py.File(root / f"camelyonpatch_level_2_split_{split}_{what}.h5", "w") as file:
                file[what] = array
    return root


def zarr_of(version: Any) -> Make:
    def make(root: Path) -> Path:
        zarr = pytest.importorskip("zarr")
        group = zarr.open_group(str(root / "data.zarr"), mode="w", zarr_format=version)
        group.create_array("images", data=pixels(4, 8, 8, 3))
        group.create_array("labels", data=np.arange(4))
        return root / "data.zarr"

    return make


def mds(root: Path) -> Path:
    (root / "train").mkdir()
    shutil.copy(CORPUS / "mds/train-index.json", root / "train/index.json")
    for file in (CORPUS / "mds").glob("shard.*"):
        shutil.copy(file, root / "train")
    return root


def npz(root: Path) -> Path:
    np.savez(root / "pneumoniamnist.npz", **{
        f"{split}_{what}": pixels(4, 28, 28) if what == "images" else np.zeros((4, 1), np.uint8)
        for split in ("train", "val", "test") for what in ("images", "labels")
    })  # fmt: skip
    return root / "pneumoniamnist.npz"


def matlab(root: Path) -> Path:
    from scipy.io import savemat  # only here: its import takes long

    savemat(root / "set.mat", {"images": pixels(20, 9, 7).T, "labels": np.arange(20, dtype=np.uint8) % 3})
    return root / "set.mat"


def mnist(suffix: str) -> Make:
    arrays = {"images-idx3": idx(pixels(4, 28, 28)), "labels-idx1": idx(np.arange(4, dtype=np.uint8))}
    return lambda root: fill(root, {
        f"MNIST/raw/{split}-{what}-ubyte{suffix}": gzip.compress(data) if suffix else data
        for split in ("train", "t10k") for what, data in arrays.items()
    })  # fmt: skip


def cifar100(root: Path) -> Path:
    row = bytes([1, 2]) + bytes(3072)
    return fill(root / "cifar-100-binary", {
        "train.bin": row, "test.bin": row, "fine_label_names.txt": "".join(f"fine{n}\n" for n in range(100)),
        "coarse_label_names.txt": "".join(f"coarse{n}\n" for n in range(20)),
    })  # fmt: skip


def shards(suffix: str) -> Make:
    members = {f"{n:04}.{kind}": tiny(n) if kind == "jpg" else b"1" for n in range(6) for kind in ("jpg", "cls")}
    data = gzip.compress(tar(members)) if suffix else tar(members)
    return lambda root: fill(root, {f"imagenet-{split}-000000.tar{suffix}": data for split in ("train", "val")})


def train_archive(root: Path) -> Path:
    make_layout("ilsvrc", root)
    return root / "imagenet/ILSVRC2012_img_train.tar"


def val_archive(root: Path) -> Path:
    make_layout("ilsvrc", root)
    return root / "imagenet/ILSVRC2012_img_val.tar"


def unpacked_imagenet(root: Path) -> Path:
    """What torchvision leaves: folders of classes beside the archives and its own file."""
    folder = make_layout("ilsvrc", root)
    for split in ("train", "val"):
        for wnid in ("n01000000", "n02000000"):
            fill(folder / split / wnid, {f"{wnid}_{n}.JPEG": tiny(n) for n in range(2)})
    (folder / "meta.bin").write_bytes(b"PK")
    return folder


def eurosat_classes(root: Path) -> Path:
    return make_layout("eurosat", root) / "2750"


def npz_imagenet(root: Path) -> Path:
    folder, content = imagenet32(24, npz=True)
    return fill(root / folder, content)


def segmented(images: str, masks: str) -> Make:
    return lambda root: fill(
        root / "set", {**{images.format(n): jpeg(n) for n in range(6)}, **{masks.format(n): mask(n) for n in range(6)}}
    )


def captions(suffix: str) -> Make:
    """Images, and a table of what they show."""
    lines = "".join(f"{n}.jpg,picture {n}\r\n" for n in range(6))
    return lambda root: fill(
        root / "set",
        {f"captions.{suffix}": f"image,caption\r\n{lines}", **{f"images/{n}.jpg": jpeg(n) for n in range(6)}},
    )


def table(root: Path) -> Path:
    """Kaggle's: a table of the images of one split, by their stems."""
    lines = "".join(f"a{n}c,{'xy'[n % 2]}\n" for n in range(6))
    return fill(root / "set", {"train.csv": f"id,breed\n{lines}", **{f"train/a{n}c.jpg": jpeg(n) for n in range(6)}})


DATUM = b"\x08\3\x10\2\x18\2\x22\x0c" + bytes(12) + b"\x28\1"
"""3 x 2 x 2 pixels and the label 1, as Caffe writes them."""
METADATA = "file_name,label\n" + "".join(f"{n}.png,{n % 2}\n" for n in range(4))
PHOTOS: dict[str, bytes | str] = {f"{label}/{n}.jpg": jpeg(n + ord(label)) for label in "ab" for n in range(4)}

LAYOUTS: dict[str, tuple[str | None, Make]] = {
    "store": ("store", lambda root: CORPUS / "pth/fixed.pth"),
    "CIFAR-10": ("cifar10", make_cifar10),
    "CIFAR-10 in a folder": ("cifar10", lambda root: make_cifar10(root).parent),
    "CIFAR-100": ("cifar100", cifar100),
    "DICOM": ("dicom", dicom),
    "NIfTI": (None, nifti),
    "MNIST": ("idx", mnist("")),
    "MNIST, compressed": ("idx", mnist(".gz")),
    "HDF5": ("hdf5", hdf5("x_train", "y_train", "x_test", "y_test")),
    "HDF5, images and labels": ("hdf5", hdf5("images", "labels")),
    "PCam": ("hdf5", pcam),
    "Zarr 2": ("zarr", zarr_of(2)),
    "Zarr 3": ("zarr", zarr_of(3)),
    "RecordIO": ("recordio", lambda root: corpus("recordio")(root) / "plain.rec"),
    "MDS": ("mds", mds),
    "LitData": ("litdata", corpus("litdata")),
    "ArrayRecord": (
        "arrayrecord",
        lambda root: write_arrayrecord(root / "x", [write_example({"image": [tiny(n)]}) for n in range(3)]),
    ),
    "FFCV": ("beton", lambda root: corpus("beton")(root) / "plain.beton"),
    "npz, MedMNIST": ("npz", npz),
    "MATLAB": ("mat", matlab),
    "WebDataset": ("webdataset", shards("")),
    "WebDataset, compressed": ("webdataset", shards(".gz")),
    "WebDataset by its library": ("webdataset", corpus("webdataset")),
    "TFRecord": ("tfrecord", without(corpus("tfrecord"), "detection.tfrecord.zlib", "plain.tfrec")),
    "TFRecord, a file": ("tfrecord", lambda root: corpus("tfrecord")(root) / "plain.tfrec"),
    "TFDS": ("tfds", corpus("tfds")),
    "Parquet": ("parquet", corpus("parquet")),
    "Arrow": ("arrow", corpus("arrow")),
    "Hugging Face's image folder": (
        "hf_imagefolder",
        lambda root: fill(root, {"train/metadata.csv": METADATA, **{f"train/{n}.png": tiny(n) for n in range(4)}}),
    ),
    "folder2lmdb": (
        "folder2lmdb",
        database("train.lmdb", {b"0": pickle.dumps((tiny(0), 1)), b"__keys__": pickle.dumps([b"0"]),
                                b"__len__": pickle.dumps(1)}),
    ),
    "OCR": ("ocr", database("data", {b"num-samples": b"1", b"image-000000001": tiny(1), b"label-000000001": b"w"})),
    "BasicSR": ("basicsr", database("DIV2K.lmdb", {b"0801": tiny(1)}, "0801.png (2,3,3) 1\n")),
    "Caffe": ("caffe", database("mnist_train_lmdb", {b"%08d" % n: DATUM for n in range(2)})),
    "LSUN": ("lsun", database("tower_train_lmdb", {b"%040d" % n: tiny(n) for n in range(2)})),
    "captions": ("captions", captions("csv")),
    "table": ("table", table),
    "table, zip": ("table", archived(table, ".zip")),
    "captions beside images": ("caption_files", lambda root: fill(root / "set", {
        **{f"a{n}.jpg": jpeg(n) for n in range(6)}, **{f"a{n}.txt": f"a photo of {n} things" for n in range(6)}})),
    "conversations": ("conversations", lambda root: fill(root / "set", {
        **{f"images/a{n}.jpg": jpeg(n) for n in range(6)}, "llava.json": json.dumps([
            {"id": f"{n}", "image": f"a{n}.jpg", "conversations": [{"from": "human", "value": "<image>"}]}
            for n in range(6)])})),
    "pixels in a table": ("pixel_table", lambda root: fill(root / "set", {"train.csv": "label," + ",".join(
        f"pixel{n}" for n in range(64)) + "\n" + "1" + ",7" * 64 + "\n"})),
    "COCO": ("coco", coco),
    "YOLO": ("yolo", yolo),
    "Pascal VOC": ("voc", voc),
    "images and masks": ("companions", segmented("images/{}.jpg", "masks/{}.png")),
    "ADE20K": ("ade20k", named("ade20k")),
    "images and annotations": ("companions", segmented("images/training/{}.jpg", "annotations/training/{}.png")),
    "ILSVRC": ("ilsvrc", named("ilsvrc")),
    "ILSVRC of Kaggle": ("ilsvrc", named("kaggle")),
    "ILSVRC of Kaggle, zip": ("ilsvrc", archived(named("kaggle"), ".zip")),
    "ILSVRC for validation": ("flat", val_archive),
    "ILSVRC for training": ("imagefolder", train_archive),
    "ILSVRC unpacked by torchvision": ("ilsvrc", unpacked_imagenet),
    "SVHN, a file": ("svhn", lambda root: make_layout("svhn", root) / "test_32x32.mat"),
    "downsampled ImageNet, npz": ("imagenet32", npz_imagenet),
    **{kind: (kind, named(kind)) for kind in MAKERS if kind not in ("ilsvrc", "kaggle")},
    **{
        f"{kind} for torchvision": (kind, in_its_root(kind))
        for kind in MAKERS if kind not in ("ilsvrc", "kaggle", "imagenet32")
    },
    **{
        f"{kind}, {suffix}": (kind, archived(named(kind), suffix))
        for kind, suffix in (("cub200", ".tar"), ("food101", ".tar.gz"), ("stl10", ".tar.gz"), ("tinyimagenet", ".zip"))
    },
    "EuroSAT's classes": ("imagefolder", eurosat_classes),
    "EuroSAT, zip": ("imagefolder", archived(eurosat_classes, ".zip")),
    "image folder": ("imagefolder", lambda root: fill(root, PHOTOS)),
    "image folder with splits": (
        "imagefolder", lambda root: fill(root, {f"{s}/{name}": jpeg(1) for s in ("train", "val") for name in PHOTOS}),
    ),
    "image folder, zip": ("imagefolder", archived(lambda root: fill(root, PHOTOS), ".zip")),
    "image folder of 102 flowers": (
        "imagefolder", lambda root: fill(root, {f"{split}/{n}/image_{n:05}.jpg": jpeg(n) for split in ("train", "valid")
                                                for n in range(1, 6)}),
    ),
    "flat": ("flat", lambda root: fill(root, {f"{n}.jpg": jpeg(n) for n in range(4)})),
    "flat, tar.gz": ("flat", archived(lambda root: fill(root, {f"{n}.jpg": jpeg(n) for n in range(4)}), ".tar.gz")),
    # What only looks like one.
    "CUB without its split": (None, without(named("cub200"), "train_test_split.txt")),
    "CUB without the list of its images": (None, without(named("cub200"), "images.txt")),
    "Tiny-ImageNet without wnids": (None, without(named("tinyimagenet"), "wnids.txt")),
    "Tiny-ImageNet without the labels of val": (None, without(named("tinyimagenet"), "val/val_annotations.txt")),
    "Flowers without their sets": (None, without(named("flowers102"), "setid.mat")),
    "Food without meta/test": (None, without(named("food101"), "meta/test.json", "meta/test.txt")),
    "pets without test.txt": (None, without(named("oxfordpet"), "annotations/test.txt")),
    "SUN397 without a folder": (None, without(named("sun397"), "a")),
    "DTD without val1": (None, without(named("dtd"), "labels/val1.txt")),
    "CelebA without partitions": (None, without(named("celeba"), "list_eval_partition.txt")),
    "STL-10 without labels": (None, without(named("stl10"), "train_y.bin")),
    "downsampled ImageNet without a batch": (
        None, without(named("imagenet32"), "Imagenet8_train/train_data_batch_3"),
    ),
    "ILSVRC without its devkit": (None, without(named("ilsvrc"), "ILSVRC2012_devkit_t12.tar.gz")),
    "a list of labels": ("table", lambda root: fill(root, {"anything.csv": "id,y\n0,1\n1,0\n2,0\n", **{
        f"x/{n}.jpg": jpeg(n) for n in range(3)}})),
    "masks whose names begin with GT": ("companions", lambda root: fill(root, {
        **{f"a{n}.jpg": jpeg(n) for n in range(3)}, **{f"GTa{n}.png": mask(n) for n in range(3)}})),
    "depth beside photos": (None, lambda root: fill(root / "set", {
        f"{name}/{n}.png": encode(picture(mode, seed=n), "PNG")
        for name, mode in (("rgb", "RGB"), ("depth", "L")) for n in range(6)})),
    "arrays without labels' meaning": (None, hdf5("images", "masses", "angles", "xs")),
}  # fmt: skip

for _kind in ANNOTATED:
    LAYOUTS[f"annotations of {_kind}"] = (
        _kind, lambda root, make=ANNOTATED[_kind]: fill(root / "set", make(6))  # type: ignore[misc]
    )  # fmt: skip
for _kind in PATHS:
    LAYOUTS[f"folders of {_kind}"] = (_kind, lambda root, kind=_kind: make_folder_set(kind, root / "set", 6))  # type: ignore[misc]
for _kind in PUBLISHED:
    LAYOUTS[f"published: {_kind}"] = ("published", lambda root, kind=_kind: make_set(kind, root / "set", 6))  # type: ignore[misc]
