"""Data sets in the layouts in which they are published, tiny: ``make_layout("food101", folder)``.

Each is made as torchvision's class wants it below its ``root``; the images are :func:`tests.makers.images.tiny`.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.makers.annotated import Files, fill, jpeg, mask, voc_xml
from tests.makers.images import tiny


def make_layout(kind: str, root: Path, samples: int = 12) -> Path:
    """Makes about ``samples`` images in the layout of ``kind`` in ``root``. Returns the data set's own folder."""
    folder, files = MAKERS[kind](samples)
    return fill(root / folder, files)


def mat(**variables: Any) -> bytes:
    """A MAT file, compressed as published ones are."""
    from scipy.io import savemat

    out = io.BytesIO()
    savemat(out, variables, do_compression=True)
    return out.getvalue()


def structs(fields: dict[str, list[Any]]) -> Any:
    """An array of structs for :func:`mat`, ``1 x n``."""
    count = len(next(iter(fields.values())))
    array = np.empty((1, count), dtype=[(name, object) for name in fields])
    for name, values in fields.items():
        for n, value in enumerate(values):
            array[name][0, n] = value
    return array


ILSVRC = {"n04": "a fourth", "n01": "tench, Tinca tinca", "n03": "goldfish", "n02": "shark, white shark"}
"""Names of classes by wnid (here with six zeros more), in the order of the devkit's numbers, which is not theirs."""


def tar(files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], prefix: str = "", **options: Any) -> bytes:
    """A tar of files in their order; of pairs, a name may come twice."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as archive:
        for name, data in files.items() if isinstance(files, Mapping) else files:
            member = tarfile.TarInfo(prefix + name)
            member.size, member.mtime = len(data), 1_700_000_000
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def zipped(files: Mapping[str, bytes], prefix: str = "", method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of files in their order."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(prefix + name, (2020, 1, 1, 0, 0, 0)), data, method)
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    compressed: bytes = importlib.import_module("zstandard").ZstdCompressor().compress(data)
    return compressed


def train_tar(images: dict[str, bytes]) -> bytes:
    """``ILSVRC2012_img_train.tar`` of images ``WNID/FILE``: a tar for each class."""
    wnids = dict.fromkeys(name.partition("/")[0] for name in images)
    tars = {w: tar({n.partition("/")[2]: data for n, data in images.items() if n.startswith(w)}) for w in wnids}
    return tar({f"{wnid}.tar": data for wnid, data in tars.items()})


def devkit(names: dict[str, str], truth: list[str]) -> bytes:
    """``ILSVRC2012_devkit_t12.tar.gz``: names of classes by wnid in the order of their numbers, and the wnid of each
    validation image. ``meta.mat`` holds a class above them, as the real one does."""
    count = len(names)
    synsets = structs(
        {
            "ILSVRC2012_ID": [np.uint16(n + 1) for n in range(count + 1)],
            "WNID": [*names, "n00001740"],
            "words": [*names.values(), "entity"],
            "gloss": ["what it is"] * (count + 1),
            "num_children": [*[np.uint8(0)] * count, np.uint8(count)],
            "children": [*[np.zeros((1, 0))] * count, np.arange(count) + 1.0],
            "wordnet_height": [np.uint8(0)] * (count + 1),
            "num_train_images": [np.uint16(3)] * (count + 1),
        }
    )
    numbers = {wnid: n + 1 for n, wnid in enumerate(names)}
    files = {
        "readme.txt": b"text",
        "data/meta.mat": mat(synsets=synsets),
        "data/ILSVRC2012_validation_ground_truth.txt": "".join(f"{numbers[w]}\n" for w in truth).encode(),
    }
    return gzip.compress(tar({f"ILSVRC2012_devkit_t12/{name}": data for name, data in files.items()}), mtime=0)


def ilsvrc(samples: int) -> tuple[str, Files]:
    names = {f"{wnid}000000": name for wnid, name in ILSVRC.items()}
    wnids = [*names]
    train = {f"{wnids[n % 4]}/{wnids[n % 4]}_{n}.JPEG": tiny(n) for n in range(samples - 4)}
    truth = [wnids[n % 4] for n in range(2, 6)]
    val = {f"ILSVRC2012_val_{n + 1:08}.JPEG": tiny(samples - 4 + n) for n in range(4)}
    return "imagenet", {
        "ILSVRC2012_img_train.tar": train_tar(train),
        "ILSVRC2012_img_val.tar": tar(dict(reversed(val.items()))),
        "ILSVRC2012_devkit_t12.tar.gz": devkit(names, truth),
    }


def kaggle(samples: int) -> tuple[str, Files]:
    """ILSVRC as Kaggle has it."""
    names = {f"{wnid}000000": name for wnid, name in ILSVRC.items()}
    wnids, root = sorted(names), "ILSVRC/Data/CLS-LOC"
    train = [f"{wnids[n % 4]}_{n}" for n in range(samples - 6)]
    val = {f"ILSVRC2012_val_{n:08}": wnids[(n + 1) % 4] for n in range(samples - 6, samples - 2)}
    return "kaggle", {
        "LOC_synset_mapping.txt": "".join(f"{wnid} {names[wnid]}\n" for wnid in wnids),
        "LOC_train_solution.csv": "ImageId,PredictionString\n"
        + "".join(f"{name},{name[:9]} 1 2 3 4 {name[:9]} 5 6 7 8 \n" for name in train[::2]),
        "LOC_val_solution.csv": "ImageId,PredictionString\n"
        + "".join(f"{name},{wnid} 1 2 3 {n + 3} \n" for n, (name, wnid) in enumerate(reversed(val.items()))),
        "LOC_sample_submission.csv": "ImageId,PredictionString\n",
        "ILSVRC/ImageSets/CLS-LOC/val.txt": "".join(f"{name} 1\n" for name in val),
        "ILSVRC/Annotations/CLS-LOC/val/x.xml": "<annotation/>",
        **{f"{root}/train/{name[:9]}/{name}.JPEG": tiny(n) for n, name in enumerate(train)},
        **{f"{root}/val/{name}.JPEG": tiny(samples - 6 + n) for n, name in enumerate(val)},
        **{f"{root}/test/ILSVRC2012_test_{n:08}.JPEG": tiny(samples - 2 + n) for n in range(2)},
    }


def tinyimagenet(samples: int) -> tuple[str, Files]:
    wnids = ["n03", "n01", "n02"]
    files: Files = {"wnids.txt": "".join(f"{w}\n" for w in wnids), "words.txt": "n01\tant\nn02\tbee\nn03\tcat\n"}
    numbers = range(samples - 6)
    for wnid in wnids:
        its = [n for n in numbers if wnids[n % 3] == wnid]
        files |= {f"train/{wnid}/images/{wnid}_{n}.JPEG": tiny(n) for n in its}
        files[f"train/{wnid}/{wnid}_boxes.txt"] = "".join(f"{wnid}_{n}.JPEG\t0\t{n}\t62\t63\n" for n in its)
    val = [(f"val_{n}.JPEG", n) for n in range(samples - 6, samples - 2)]
    files |= {f"val/images/{name}": tiny(n) for name, n in val}
    files["val/val_annotations.txt"] = "".join(f"{name}\t{wnids[n % 3]}\t1\t2\t3\t4\n" for name, n in val)
    files |= {f"test/images/test_{n}.JPEG": tiny(n) for n in range(samples - 2, samples)}
    return "tiny-imagenet-200", files


def cub200(samples: int) -> tuple[str, Files]:
    classes = ["001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross"]
    names = [f"{classes[n % 3]}/Bird_{n:04}.jpg" for n in range(samples)]
    ids = range(1, samples + 1)
    return "CUB_200_2011", {
        "README": "text",
        "classes.txt": "".join(f"{n} {name}\n" for n, name in enumerate(classes, 1)),
        "images.txt": "".join(f"{i} {name}\n" for i, name in zip(ids, names, strict=True)),
        "image_class_labels.txt": "".join(f"{i} {(i - 1) % 3 + 1}\n" for i in ids),
        "train_test_split.txt": "".join(f"{i} {int(i % 2 or i == 2)}\n" for i in ids),
        "bounding_boxes.txt": "".join(f"{i} {i}.0 2.0 10.0 20.5\n" for i in ids),
        "parts/parts.txt": "1 back\n2 beak\n",
        "parts/part_locs.txt": "".join(f"{i} {part} {i}.5 {part}.0 {part % 2}\n" for i in ids for part in (1, 2)),
        "attributes/certainties.txt": "1 not visible\n",
        **{f"images/{name}": tiny(n) for n, name in enumerate(names)},
    }


def flowers102(samples: int) -> tuple[str, Files]:
    labels = np.array([n * 7 % 102 + 1 for n in range(samples)], np.uint8)
    ids = np.random.default_rng(1).permutation(samples) + 1
    return "flowers-102", {
        **{f"jpg/image_{n + 1:05}.jpg": tiny(n) for n in range(samples)},
        "imagelabels.mat": mat(labels=labels),
        "setid.mat": mat(trnid=ids[4:], valid=ids[2:4], tstid=ids[:2]),
    }


def food101(samples: int) -> tuple[str, Files]:
    names = [f"{('waffles', 'apple_pie', 'ceviche')[n % 3]}/{1000 + n}" for n in range(samples)]
    files: Files = {f"images/{name}.jpg": tiny(n) for n, name in enumerate(names)}
    for split, its in (("train", names[3:]), ("test", names[:3])):
        by_class: dict[str, list[str]] = {}
        for name in its:
            by_class.setdefault(name.partition("/")[0], []).append(name)
        files[f"meta/{split}.json"] = json.dumps(by_class)
        files[f"meta/{split}.txt"] = "\n".join(name for of_class in by_class.values() for name in of_class)
    files["meta/classes.txt"] = "apple_pie\nceviche\nwaffles\n"
    return "food-101", files


def oxfordpet(samples: int) -> tuple[str, Files]:
    breeds = [("Abyssinian", 1), ("american_bulldog", 2), ("Bengal", 1)]
    lines = [f"{breeds[n % 3][0]}_{n + 1} {n % 3 + 1} {breeds[n % 3][1]} 1\n" for n in range(samples)]
    names = [line.split()[0] for line in lines]
    sides = "<xmin>3</xmin><ymin>4</ymin><xmax>5</xmax><ymax>6</ymax>"
    box = f"<annotation><object><name>cat</name><bndbox>{sides}</bndbox></object></annotation>"
    files: Files = {f"images/{name}.jpg": jpeg(n) for n, name in enumerate(names)}
    files |= {f"annotations/trimaps/{name}.png": mask(n, mode="L") for n, name in enumerate(names)}
    return "oxford-iiit-pet", {
        **files,
        "annotations/list.txt": "#Image CLASS-ID SPECIES BREED ID\n" + "".join(lines),
        "annotations/trainval.txt": "".join(lines[: samples - 3]),
        "annotations/test.txt": "".join(lines[samples - 3 :]),
        f"annotations/xmls/{names[0]}.xml": box,
    }


def stanfordcars(samples: int) -> tuple[str, Files]:
    def annotations(numbers: range) -> bytes:
        side = [np.uint16(n) for n in numbers]
        return mat(
            annotations=structs(
                {
                    "bbox_x1": side,
                    "bbox_y1": [np.uint8(2)] * len(side),
                    "bbox_x2": [np.uint16(n + 9) for n in numbers],
                    "bbox_y2": [np.uint8(8)] * len(side),
                    "class": [np.uint8(n % 3 + 1) for n in numbers],
                    "fname": [f"{n:05}.jpg" for n in numbers],
                }
            )
        )

    names = np.array([["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "smart fortwo 2012"]], object)
    train, test = range(2, samples), range(2)
    return "stanford_cars", {
        "devkit/cars_meta.mat": mat(class_names=names),
        "devkit/cars_train_annos.mat": annotations(train),
        "devkit/cars_test_annos.mat": annotations(test),
        "cars_test_annos_withlabels.mat": annotations(test),
        **{f"cars_train/{n:05}.jpg": tiny(n) for n in train},
        **{f"cars_test/{n:05}.jpg": tiny(n) for n in test},
    }


def stanforddogs(samples: int) -> tuple[str, Files]:
    breeds = ["n02085620-Chihuahua", "n02085782-Japanese_spaniel", "n02091244-Ibizan_hound"]
    names = [f"{breeds[n % 3]}/{breeds[n % 3][:9]}_{n}" for n in range(samples)]
    files: Files = {f"Images/{name}.jpg": tiny(n) for n, name in enumerate(names)}
    for n, name in enumerate(names):
        dogs = [("Chihuahua", (1, 2, n + 3, 9), 0)] * (1 + n % 2)
        files[f"Annotation/{name}"] = voc_xml("%s", *dogs)
    lists = {"train": names[::-1][:-3], "test": names[2::-1], "file": names}
    for split, own in lists.items():
        cell = np.array([f"{name}.jpg" for name in own], object).reshape(-1, 1)
        numbers = np.array([[breeds.index(name.partition("/")[0]) + 1] for name in own], np.uint8)
        files[f"{split}_list.mat"] = mat(file_list=cell, labels=numbers)
    return "dogs", files


def fgvcaircraft(samples: int) -> tuple[str, Files]:
    variants = {
        "A300B4": ("A300", "Airbus"),
        "707-320": ("Boeing 707", "Boeing"),
        "MD-11": ("MD-11", "McDonnell Douglas"),
    }
    names = [f"{n * 7919 % 10_000_000:07}" for n in range(samples)]
    sets = {"train": names[:-4], "val": names[-4:-2], "test": names[-2:], "trainval": names[:-2]}
    listed = {"variants": [*variants], "families": [v[0] for v in variants.values()],
              "manufacturers": ["Boeing", "Airbus", "McDonnell Douglas"]}  # fmt: skip
    files: Files = {f"{level}.txt": "".join(f"{name}\n" for name in own) for level, own in listed.items()}
    for split, own in sets.items():
        files[f"images_{split}.txt"] = "".join(f"{name}\n" for name in own)
        for place, level in enumerate(("variant", "family", "manufacturer")):
            chosen = [[*variants][names.index(name) % 3] for name in own]
            lines = [f"{name} {(v, *variants[v])[place]}\n" for name, v in zip(own, chosen, strict=True)]
            files[f"images_{level}_{split}.txt"] = "".join(lines)
    files["images_box.txt"] = "".join(f"{name} 1 2 {n + 3} 9\n" for n, name in enumerate(names))
    files |= {f"images/{name}.jpg": tiny(n) for n, name in enumerate(names)}
    return "fgvc-aircraft-2013b/data", files


def visa(samples: int) -> tuple[str, Files]:
    files: Files = {}
    rows: dict[str, list[str]] = {"candle": [], "pcb1": []}
    split_rows = []
    for n in range(samples):
        name, odd = ("candle", "pcb1")[n % 2], n % 3 == 2
        image = f"{name}/Data/Images/{'Anomaly' if odd else 'Normal'}/{n:04}.JPG"
        shade = f"{name}/Data/Masks/Anomaly/{n:04}.png" if odd else ""
        files |= {image: tiny(n)} | ({shade: mask(n, 3, 2)} if odd else {})
        rows[name].append(f"{image},{chr(34)}bent,scratch{chr(34)},{shade}\n" if odd else f"{image},normal,\n")
        split = "test" if odd or n % 5 == 0 else "train"
        split_rows.append(f"{name},{split},{'anomaly' if odd else 'normal'},{image},{shade}\n")
    files |= {f"{name}/image_anno.csv": "image,label,mask\n" + "".join(own) for name, own in rows.items()}
    for kind in ("1cls", "2cls_fewshot", "2cls_highshot"):
        files[f"split_csv/{kind}.csv"] = "object,split,label,image,mask\n" + "".join(split_rows)
    return "VisA_20220922", files


def sun397(samples: int) -> tuple[str, Files]:
    classes = ["a/abbey", "a/apse/indoor", "b/bar"]
    return "SUN397", {
        "ClassName.txt": "".join(f"/{name}\n" for name in classes),
        **{f"{classes[n % 3]}/sun_{n:016x}.jpg": tiny(n) for n in range(samples)},
    }


def dtd(samples: int) -> tuple[str, Files]:
    names = [f"{('woven', 'banded', 'dotted')[n % 3]}/{n:04}.jpg" for n in range(samples)]
    parts = {"train": names[6:] or names[:3], "val": names[3:6], "test": names[:3]}
    joint = "".join(f"{name} {name.partition('/')[0]} {'dotted ' * (n % 3 == 1)}\n" for n, name in enumerate(names))
    return "dtd/dtd", {
        **{f"images/{name}": tiny(n) for n, name in enumerate(names)},
        **{f"labels/{split}{k}.txt": "\n".join(its[:: (1, -1)[k - 1]]) for split, its in parts.items() for k in (1, 2)},
        "labels/labels_joint_anno.txt": joint,
        "imdb/imdb.mat": mat(meta=1),
    }


def eurosat(samples: int) -> tuple[str, Files]:
    classes = ["AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial"]
    classes += ["Pasture", "PermanentCrop", "Residential", "River", "SeaLake"]
    numbers = range(max(samples, 10))
    return "eurosat", {f"2750/{classes[n % 10]}/{classes[n % 10]}_{n}.jpg": tiny(n) for n in numbers}


def places365(samples: int) -> tuple[str, Files]:
    classes = ["/a/airfield", "/a/airplane_cabin", "/z/zen_garden"]
    train = [f"{classes[n % 3]}/{n:08}.jpg {n % 3}" for n in range(samples - 4)]
    val = [f"Places365_val_{n:08}.jpg {(n + 1) % 3}" for n in range(samples - 4, samples - 2)]
    test = [f"Places365_test_{n:08}.jpg" for n in range(samples - 2, samples)]
    files: Files = {"categories_places365.txt": "".join(f"{name} {n}\n" for n, name in enumerate(classes))}
    number = 0
    for split, folder, lines in (
        ("train_standard", "data_256_standard", train),
        ("val", "val_256", val),
        ("test", "test_256", test),
    ):
        files[f"places365_{split}.txt"] = "".join(f"{line}\n" for line in lines)
        for line in lines:
            files[f"{folder}/{line.split()[0].lstrip('/')}"] = tiny(number)
            number += 1
    return "", files


def celeba(samples: int) -> tuple[str, Files]:
    names, attributes = [f"{n + 1:06}.jpg" for n in range(samples)], ["5_o_Clock_Shadow", "Bald", "Young"]
    points = "lefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y rightmouth_x rightmouth_y"

    def rows(values: Callable[[int], str]) -> str:
        return "".join(f"{name} {values(n)}\n" for n, name in enumerate(names))

    flags = rows(lambda n: " ".join(f"{1 if (n >> k) % 2 else -1:2}" for k in range(3)))
    return "celeba", {
        **{f"img_align_celeba/{name}": tiny(n) for n, name in enumerate(names)},
        "list_eval_partition.txt": rows(lambda n: str(max(0, n - samples + 6) // 2)),
        "list_attr_celeba.txt": f"{samples}\n{' '.join(attributes)} \n{flags}",
        "identity_CelebA.txt": rows(lambda n: str(2000 + n)),
        "list_bbox_celeba.txt": f"{samples}\nimage_id x_1 y_1 width height\n" + rows(lambda n: f" {n}  72 221 306"),
        "list_landmarks_align_celeba.txt": f"{samples}\n{points}\n"
        + rows(lambda n: " ".join(str(n + k) for k in range(10))),
    }


def ade20k(samples: int) -> tuple[str, Files]:
    names = [("training" if n < samples - 2 else "validation", f"ADE_{n:08}") for n in range(samples)]
    return "ADEChallengeData2016", {
        **{f"images/{split}/{name}.jpg": tiny(n) for n, (split, name) in enumerate(names)},
        **{f"annotations/{split}/{name}.png": mask(n, 3, 2, "L") for n, (split, name) in enumerate(names)},
        "sceneCategories.txt": "".join(f"{name} scene {name[-1]}\n" for _, name in names),
        "objectInfo150.txt": "Idx\tRatio\tName\n1\t0.1\twall\n",
    }


def gtsrb(samples: int) -> tuple[str, Files]:
    header = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"
    files: Files = {}
    for label in range(3):
        its = [n for n in range(2, samples) if n % 3 == label]
        folder = f"GTSRB/Training/{label:05}"
        files |= {f"{folder}/00000_{n:05}.ppm": tiny(n) for n in its}
        files[f"{folder}/GT-{label:05}.csv"] = header + "".join(
            f"00000_{n:05}.ppm;3;2;1;0;2;{n};{label}\n" for n in its
        )
    files |= {f"GTSRB/Final_Test/Images/{n:05}.ppm": tiny(n) for n in range(2)}
    files["GT-final_test.csv"] = header + "".join(f"{n:05}.ppm;3;2;0;0;2;1;{2 - n}\n" for n in range(2))
    return "gtsrb", files


def pixels(number: int, side: int) -> Any:
    """The image of a number, uint8 ``(side, side, 3)``."""
    return np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)


def stl10(samples: int) -> tuple[str, Files]:
    parts = {"train": range(4, samples - 2), "test": range(4), "unlabeled": range(samples - 2, samples)}
    files: Files = {"class_names.txt": "".join(f"{name}\n" for name in STL10)}
    for split, numbers in parts.items():
        files[f"{split}_X.bin"] = b"".join(pixels(n, 96).transpose(2, 1, 0).tobytes() for n in numbers)
        if split != "unlabeled":
            files[f"{split}_y.bin"] = bytes(n % 10 + 1 for n in numbers)
    files["fold_indices.txt"] = "".join(f"{fold % 3} 3 \n" for fold in range(10))
    return "stl10_binary", files


STL10 = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


def svhn(samples: int) -> tuple[str, Files]:
    files: Files = {}
    for split, numbers in (("train", range(4, samples)), ("test", range(2)), ("extra", range(2, 4))):
        images = np.stack([pixels(n, 32) for n in numbers], -1)
        files[f"{split}_32x32.mat"] = mat(X=images, y=np.array([[n % 10 or 10] for n in numbers], np.uint8))
    return "", files


def imagenet32(samples: int, npz: bool = False) -> tuple[str, Files]:
    files: Files = {"map_clsloc.txt": "n03000000 1 goldfish\nn01000000 2 tench\nn02000000 3 shark\n"}
    batches = {f"train_data_batch_{k + 1}": [*range(k + 2, samples, 10)] for k in range(10)} | {"val_data": [0, 1]}
    for name, numbers in batches.items():
        data = np.array([pixels(n, 8).transpose(2, 0, 1).ravel() for n in numbers], np.uint8).reshape(-1, 192)
        batch: dict[str, Any] = {"data": data, "labels": [n % 3 + 1 for n in numbers], "mean": np.zeros(192)}
        out = io.BytesIO()
        if npz:
            np.savez(out, **batch)
        folder = f"Imagenet8_{'val' if name == 'val_data' else 'train'}{'_npz' * npz}"
        files[f"{folder}/{name}{'.npz' * npz}"] = out.getvalue() if npz else pickle.dumps(batch, protocol=3)
    return "imagenet8", files


MAKERS: dict[str, Callable[[int], tuple[str, Files]]] = {
    make.__name__: make
    for make in (
        ilsvrc, kaggle, tinyimagenet, cub200, flowers102, food101, oxfordpet, stanfordcars, stanforddogs, fgvcaircraft,
        visa, sun397, dtd, eurosat, places365, celeba, ade20k, gtsrb, stl10, svhn, imagenet32,
    )
}  # fmt: skip
