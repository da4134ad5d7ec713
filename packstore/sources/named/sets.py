"""Published sets, each a generator of its images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from packstore.core.fields import Array, Boxes, Json, Keypoints, Label, Labels, Mask, Text
from packstore.sources.annotation_formats.voc import list_boxes, parse_annotation
from packstore.sources.beside import clean_path
from packstore.sources.found import Files, Found, parse_numbers, parse_text
from packstore.sources.named import published_set
from packstore.sources.named.mat import get_struct_fields, to_texts, to_whole_numbers
from packstore.sources.rows import InTree


@published_set("CelebA", "list_attr_celeba.txt", "list_eval_partition.txt", required=("img_align_celeba",))
def celeba(files: Files) -> Iterator[Found]:
    """CelebA (http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html). ``bbox`` (left, top, width, height) belongs to the
    photograph from which an image was cut, so it is no column of boxes."""
    names = next(files.lines("list_attr_celeba.txt", skip=1), [])
    files.columns |= {"labels": Labels(names, of=False), "identity": Label(), "bbox": Array("int64", (4,))}
    files.columns["keypoints"] = Keypoints(2, of=False, points=5)
    flags, boxes = files.by_key("list_attr_celeba.txt", skip=2), files.by_key("list_bbox_celeba.txt", skip=2)
    points, people = files.by_key("list_landmarks_align_celeba.txt", skip=2), files.by_key("identity_CelebA.txt")
    parts = {"0": "train", "1": "valid", "2": "test"}
    for split in files.each_split(*parts.values()):
        for image, part in files.lines("list_eval_partition.txt"):
            if parts[part] == split:
                flagged = enumerate(flags.numbers(image, len(names)))
                values = {"labels": [n for n, flag in flagged if flag == 1], "identity": people.numbers(image)}
                values |= {"bbox": boxes.numbers(image, 4), "keypoints": points.numbers(image, 1, 5, 2)}
                yield Found(f"img_align_celeba/{image}", split, values)


_ADE = ("images/training", "images/validation")


@published_set("ADE20K", "annotations", "sceneCategories.txt", required=_ADE)
def ade20k(files: Files) -> Iterator[Found]:
    """ADE20K of the MIT Scene Parsing Challenge 2016 (http://sceneparsing.csail.mit.edu)."""
    scenes = files.by_key("sceneCategories.txt")
    files.columns["scene"] = Text(optional=True)
    for split in files.each_split("training", "validation"):
        for image in files.images(f"images/{split}"):
            stem = image.rpartition(".")[0]
            mask = InTree(files.path(f"annotations/{split}/{stem}.png"), optional=True)
            scene = " ".join(next(scenes.all(stem), ())) or None
            yield Found(f"images/{split}/{image}", split, {"mask": mask, "scene": scene})


_CUB = ("images.txt", "image_class_labels.txt", "bounding_boxes.txt", "train_test_split.txt")


@published_set("CUB-200-2011", "|".join(_CUB[:2]), "|".join(_CUB[2:]), required=(*_CUB, "classes.txt", "images"))
def cub200(files: Files) -> Iterator[Found]:
    """CUB-200-2011 (https://www.vision.caltech.edu/datasets/cub_200_2011/). Parts are keypoints with visibility,
    (0, 0, 0) for a part that is not listed. Attributes are left out."""
    boxes, labels, chosen = files.by_key(_CUB[2]), files.by_key(_CUB[1]), files.by_key(_CUB[3])
    listed = islice(files.lines("parts/parts.txt"), 1000) if files.exists("parts/parts.txt") else ()
    parts, places = {str(n): n for n, _ in enumerate(listed, 1)}, files.by_key("parts/part_locs.txt")
    files.columns["label"] = Label([" ".join(name) for _, *name in files.lines("classes.txt")])
    files.columns |= {"boxes": Boxes(), "keypoints": Keypoints(3, of="boxes", points=len(parts))}
    for split in files.each_split("train", "test"):
        for key, *image in files.lines("images.txt", " "):
            if {"1": "train", "0": "test"}[" ".join(chosen[key])] == split:
                left, top, width, height = boxes.numbers(key, 4, parse=float)
                seen = {parts[part]: parse_numbers(point, 3) for part, *point in places.all(key)}
                points = [[seen.get(n, [0.0, 0.0, 0.0]) for n in parts.values()]] if places and parts else None
                values = {"boxes": [[left, top, left + width, top + height]], "label": labels.numbers(key) - 1}
                yield Found(f"images/{' '.join(image)}", split, values | {"keypoints": points})


@published_set("DTD", "images", "labels/train1.txt", required=("labels/val1.txt", "labels/test1.txt"))
def dtd(files: Files) -> Iterator[Found]:
    """Describable Textures (https://www.robots.ox.ac.uk/~vgg/data/dtd/): the first of ten partitions, torchvision's
    default. ``labels`` has all textures that an image shows, its class included."""
    lists = {split: [image for (image,) in files.lines(f"labels/{split}1.txt")] for split in ("train", "val", "test")}
    classes = sorted({image.partition("/")[0] for image in lists["train"]})
    files.columns |= {"label": Label(classes), "labels": Labels(classes, of=False)}
    joint = files.by_key("labels/labels_joint_anno.txt")
    for split in files.each_split(*lists):
        for image in lists[split]:
            label, _ = image.split("/")
            labels = joint.get(image, [label]) if joint else None
            yield Found(f"images/{image}", split, {"label": label, "labels": labels})


_EUROSAT = (
    *("AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial"),
    *("Pasture", "PermanentCrop", "Residential", "River", "SeaLake"),
)
_EUROSAT_FOLDERS = tuple(f"2750/{name}" for name in _EUROSAT)


@published_set("EuroSAT", "|".join(_EUROSAT_FOLDERS), required=_EUROSAT_FOLDERS)
def eurosat(files: Files) -> Iterator[Found]:
    """EuroSAT in RGB (https://github.com/phelber/eurosat), as torchvision puts it. The folder ``2750`` alone, and the
    archive, are image folders."""
    files.columns["label"] = Label(_EUROSAT)
    for name in _EUROSAT:
        yield Found(f"2750/{name}", values={"label": name}, is_folder=True)


_AIRCRAFT = {"label": "variant", "family": "family", "manufacturer": "manufacturer"}
_AIRCRAFT_CLASSES = {"label": "variants.txt", "family": "families.txt", "manufacturer": "manufacturers.txt"}
_PARTS = ("train", "val", "test")
_AIRCRAFT_LISTS = tuple(f"images_{level}_{part}.txt" for part in _PARTS for level in _AIRCRAFT.values())
_AIRCRAFT_FILES = ("images", *_AIRCRAFT_CLASSES.values(), *_AIRCRAFT_LISTS)


@published_set("FGVC-Aircraft", "images_variant_train.txt|images_variant_test.txt", required=_AIRCRAFT_FILES)
def fgvcaircraft(files: Files) -> Iterator[Found]:
    """FGVC-Aircraft (https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/): ``label`` is the variant."""
    for column, file in _AIRCRAFT_CLASSES.items():
        files.columns[column] = Label([*dict.fromkeys(" ".join(line) for line in files.lines(file))])
    boxes = files.by_key("images_box.txt")
    for split in files.each_split(*_PARTS):
        levels = {column: files.by_key(f"images_{level}_{split}.txt") for column, level in _AIRCRAFT.items()}
        for image, *_ in files.lines(f"images_variant_{split}.txt"):
            values = {column: " ".join(names[image]) for column, names in levels.items()}
            yield Found(f"images/{image}.jpg", split, values | {"boxes": boxes.numbers(image, 1, 4)})


@published_set("Flowers-102", "imagelabels.mat", "setid.mat", required=("jpg",))
def flowers102(files: Files) -> Iterator[Found]:
    """Oxford 102 Flower (https://www.robots.ox.ac.uk/~vgg/data/flowers/102/). Labels begin at 1 in the file; names are
    torchvision's."""
    files.columns["label"] = Label(Path(__file__).with_name("flowers102.txt").read_text("utf-8").splitlines())
    labels = dict(enumerate(to_whole_numbers(*files.mat("imagelabels.mat", "labels")).tolist(), 1))
    sets = {"train": "trnid", "val": "valid", "test": "tstid"}
    for split in files.each_split(*sets):
        for image in to_whole_numbers(*files.mat("setid.mat", sets[split])).tolist():
            yield Found(f"jpg/image_{image:05}.jpg", split, {"label": labels[image] - 1})


@published_set("Food-101", "images", "meta/train.json", required=("meta/test.json",))
def food101(files: Files) -> Iterator[Found]:
    """Food-101 (https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/)."""
    lists = {split: files.json(f"meta/{split}.json") for split in ("train", "test")}
    files.columns["label"] = Label(sorted({label for images in lists.values() for label in images}))
    for split in files.each_split(*lists):
        for label, images in lists[split].items():
            yield from (Found(f"images/{clean_path(image)}.jpg", split, {"label": label}) for image in images)


_GTSRB = "GTSRB/Training/00000|Training/00000|GTSRB/Final_Training/Images/00000|00000"
_GTSRB_TEST = "GTSRB/Final_Test/Images|Final_Test/Images"
_GTSRB_TRUTH = "GT-final_test.csv|GTSRB/Final_Test/Images/GT-final_test.csv|Final_Test/Images/GT-final_test.csv"
_GTSRB_COLUMNS = ("Filename", "Width", "Height", "Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2", "ClassId")


_GTSRB_LISTS = "|".join(f"{name}/GT-00000.csv" for name in _GTSRB.split("|"))


@published_set("GTSRB", _GTSRB_LISTS)
def gtsrb(files: Files) -> Iterator[Found]:
    """GTSRB (https://benchmark.ini.rub.de/): training images class by class, then test images if they are there."""
    train = files.choose(_GTSRB).removesuffix("00000")
    names = files.folders(train.rstrip("/"))
    files.columns["label"] = Label(names)
    for split in files.each_split("train", "test" if files.exists(_GTSRB_TEST) else None):
        tables = {f"{train}{name}": f"{train}{name}/GT-{name}.csv" for name in names}
        for folder, table in (tables if split == "train" else {files.choose(_GTSRB_TEST): _GTSRB_TRUTH}).items():
            for image, _, _, *box, label in files.csv(table, *_GTSRB_COLUMNS, separator=";"):
                yield Found(f"{folder}/{image}", split, {"label": int(label), "boxes": [parse_numbers(box, 4, int)]})


_KAGGLE, _DEVKIT = "ILSVRC/Data/CLS-LOC", "ILSVRC2012_devkit_t12"
_ILSVRC = {
    "train": "ILSVRC2012_img_train.tar",
    "val": "ILSVRC2012_img_val.tar",
    "test": "ILSVRC2012_img_test_v10102019.tar|ILSVRC2012_img_test.tar",
    _DEVKIT: f"{_DEVKIT}.tar.gz|{_DEVKIT}.tar",
}
_ILSVRC_MARKERS = f"{_KAGGLE}/train|{_KAGGLE}/val|{_ILSVRC['train']}|{_ILSVRC['val']}|val/ILSVRC2012_val_*.JPEG"
_ILSVRC_NAMES = f"{_DEVKIT}|{_ILSVRC[_DEVKIT]}|LOC_synset_mapping.txt"


@published_set("ILSVRC", _ILSVRC_MARKERS, required=(_ILSVRC_NAMES,), archives=_ILSVRC)
def ilsvrc(files: Files) -> Iterator[Found]:
    """ILSVRC 2012 as Kaggle has it, or as downloaded: each archive may be unpacked, ``train`` into folders of classes.
    Labels are torchvision's: the index of a wnid in the sorted list. Test images have none."""
    if files.exists("LOC_synset_mapping.txt"):
        yield from _walk_kaggle(files)
        return
    names, wnids = _read_devkit(files)
    files.columns |= {"label": Label(sorted(names)), "name": Text()}
    values = {wnid: {"label": wnid, "name": name} for wnid, name in names.items()}
    for split in files.each_split(*(split for split in ("train", "val", "test") if files.exists(split))):
        if split == "test":
            yield Found("test", split, is_folder=True)
            continue
        for wnid in files.folders(split):
            yield Found(f"{split}/{wnid}", split, values[wnid], is_folder=True)
        if not files.folders(split):  # keys are the paths to which torchvision unpacks
            for wnid, image in sorted((wnids[image], image) for image in files.images(split)):
                yield Found(f"{split}/{image}", split, values[wnid], f"{split}/{wnid}/{image}")


def _read_devkit(files: Files) -> tuple[dict[str, str], dict[str, str]]:
    """Reads the names of classes by wnid, and the wnid of each validation image."""
    shown, synsets = files.mat(f"{_DEVKIT}/data/meta.mat", "synsets")
    fields = get_struct_fields(shown, synsets, ("ILSVRC2012_ID", "num_children", "WNID", "words"))
    numbers, children = (to_whole_numbers(shown, column).tolist() for column in fields[:2])
    wnids, words = (to_texts(shown, column) for column in fields[2:])
    # Only synsets without children are classes; the devkit numbers them in an order of its own.
    leaves = [n for n, count in enumerate(children) if count == 0]
    by_number = {str(numbers[n]): wnids[n] for n in leaves}
    truth = enumerate(files.lines(f"{_DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt"), 1)
    return {wnids[n]: words[n] for n in leaves}, {
        f"ILSVRC2012_val_{n:08}.JPEG": by_number[number] for n, (number,) in truth
    }


def _walk_kaggle(files: Files) -> Iterator[Found]:
    """Yields the images of Kaggle's layout."""
    names = {wnid: " ".join(words) for wnid, *words in sorted(files.lines("LOC_synset_mapping.txt"))}
    files.columns |= {"label": Label([*names]), "name": Text(), "boxes": Boxes(optional=True)}
    files.columns["labels"] = Labels([*names], of="boxes", optional=True)
    for split in files.each_split(*(name for name in ("train", "val", "test") if files.exists(f"{_KAGGLE}/{name}"))):
        solutions = files.by_key(f"LOC_{split}_solution.csv", ",", skip=1)
        for image in files.images(f"{_KAGGLE}/{split}"):
            stem = image.rpartition("/")[2].rpartition(".")[0]
            line = solutions[stem] if split == "val" else solutions.get(stem)
            # A solution is ``WNID left top right bottom WNID …``; some training images have none.
            parts = " ".join(line or ()).split()
            boxes = [parse_numbers(parts[n : n + 4], 4, int) for n in range(1, len(parts) + 1, 5)]
            values: dict[str, Any] = {"boxes": boxes, "labels": parts[::5]} if parts else {}
            if split != "test":
                wnid = parts[0] if split == "val" else image.partition("/")[0]
                values |= {"label": wnid, "name": names[wnid]}
            yield Found(f"{_KAGGLE}/{split}/{image}", split, values)


_PETS = ("annotations/list.txt", "annotations/trainval.txt")
_PET_FILES = ("annotations/test.txt", "annotations/trimaps", "images")
_HEADS = {"boxes": lambda xml: {"boxes": list_boxes(parse_annotation(xml))}}


@published_set("Oxford-IIIT Pet", *_PETS, required=_PET_FILES, parsers=_HEADS)
def oxfordpet(files: Files) -> Iterator[Found]:
    """Oxford-IIIT Pet (https://www.robots.ox.ac.uk/~vgg/data/pets/): the mask is 1 for the pet, 2 for the background, 3
    for the border. Only some images have the box of a head. Names of classes are torchvision's."""
    listed = chain.from_iterable(files.lines(f"annotations/{name}.txt", comment="#") for name in ("test", "trainval"))
    breeds = {int(label): name.rpartition("_")[0].replace("_", " ").title() for name, label, *_ in listed}
    last = min(max(breeds, default=0), 10_000)
    files.columns["label"] = Label([breeds.get(n, f"Class {n - 1}") for n in range(1, last + 1)])
    files.columns |= {"species": Label(("Cat", "Dog")), "mask": Mask(), "boxes": Boxes()}
    heads = files.exists("annotations/xmls")
    for split in files.each_split("test", "trainval"):
        for name, label, species, _ in files.lines(f"annotations/{split}.txt", comment="#"):
            note = InTree(files.path(f"annotations/xmls/{name}.xml"), optional=True) if heads else None
            mask = InTree(files.path(f"annotations/trimaps/{name}.png"))
            values = {"label": int(label) - 1, "species": int(species) - 1, "mask": mask, "boxes": note}
            yield Found(f"images/{name}.jpg", split, values)


# List and folders of each split: the folders have torchvision's names, or those of the archives.
_PLACES = {
    "val": ("places365_val.txt", "val_256|val_large"),
    "test": ("places365_test.txt", "test_256|test_large"),
    "train-standard": ("places365_train_standard.txt", "data_256_standard|data_large_standard|data_256|data_large"),
    "train-challenge": ("places365_train_challenge.txt", "data_256_challenge|data_large_challenge"),
}


@published_set("Places365", "categories_places365.txt")
def places365(files: Files) -> Iterator[Found]:
    """Places365 (http://places2.csail.mit.edu/). Images of ``test`` have no labels."""
    names = {int(number): name for name, number in files.lines("categories_places365.txt")}
    files.columns["label"] = Label([names[number] for number in range(len(names))])
    for split in files.each_split(*(split for split, (_, folders) in _PLACES.items() if files.exists(folders))):
        file, folders = _PLACES[split]
        folder = files.choose(folders)
        for image, *label in files.lines(file):
            values = {} if split == "test" else {"label": parse_numbers(label, 1, int)[0]}
            yield Found(f"{folder}/{image.lstrip('/')}", split, values)


_CARS_TEST = "cars_test_annos_withlabels.mat|devkit/cars_test_annos_withlabels.mat"
_CARS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
_CARS_FILES = ("devkit/cars_train_annos.mat", "cars_train")


@published_set("Stanford Cars", "devkit/cars_meta.mat", required=_CARS_FILES)
def stanfordcars(files: Files) -> Iterator[Found]:
    """Stanford Cars: labels begin at 1 in the files. The split ``test`` exists if its folder does."""
    files.columns["label"] = Label(to_texts(*files.mat("devkit/cars_meta.mat", "class_names")))
    for split in files.each_split("train", "test" if files.exists("cars_test") else None):
        shown, notes = files.mat(_CARS_FILES[0] if split == "train" else _CARS_TEST, "annotations")
        *numbers, images = get_struct_fields(shown, notes, _CARS)
        columns = (to_whole_numbers(shown, each).tolist() for each in numbers)
        for image, *box, label in zip(to_texts(shown, images), *columns, strict=True):
            yield Found(f"cars_{split}/{image}", split, {"label": label - 1, "boxes": [box]})


_DOG_FOLDERS = ("Images/n0*-*|images/Images/n0*-*", "Annotation/n0*-*|annotations/Annotation/n0*-*")
_DOGS = {"train": "train_list.mat|lists/train_list.mat", "test": "test_list.mat|lists/test_list.mat"}


def _parse_dog(xml: bytes) -> dict[str, Any]:
    """Parses an annotation to ``boxes`` with the published corners, and ``json``."""
    parsed = parse_annotation(xml)
    return {"boxes": list_boxes(parsed), "json": parsed["annotation"]}


@published_set("Stanford Dogs", *_DOG_FOLDERS, parsers={"json": _parse_dog})
def stanforddogs(files: Files) -> Iterator[Found]:
    """Stanford Dogs (http://vision.stanford.edu/aditya86/ImageNetDogs/). Kaggle's copy has no lists, so no splits."""
    top, notes = files.choose("Images|images/Images"), files.choose("Annotation|annotations/Annotation")
    breeds = [parse_text(name, r"(n\d{8}-.+)")[0] for name in files.folders(top)]
    files.columns |= {"label": Label(breeds), "boxes": Boxes(optional=True), "json": Json(optional=True)}
    for split in files.each_split(*(_DOGS if any(map(files.exists, _DOGS.values())) else [""])):
        for image in to_texts(*files.mat(_DOGS[split], "file_list")) if split else files.images(top):
            label, name = parse_text(image, r"([^/]+)/([^/]+)\.jpg")
            note = InTree(files.path(f"{notes}/{label}/{name}"), optional=True)
            yield Found(f"{top}/{image}", split, {"label": label, "json": note})


@published_set("SUN397", "ClassName.txt|a/abbey", required=("ClassName.txt", "a"))
def sun397(files: Files) -> Iterator[Found]:
    """SUN397 (https://vision.princeton.edu/projects/2010/SUN/). It has no splits, as in torchvision; the ten partitions
    for training and testing are left out."""
    names = [parse_text(name, "/([^/]/[^/]+(?:/[^/]+)?)")[0] for (name,) in files.lines("ClassName.txt")]
    files.columns["label"] = Label([name[2:] for name in names])
    for name in names:
        for image in files.images(name):
            if re.fullmatch("sun_[^/]*", image):
                yield Found(f"{name}/{image}", values={"label": name[2:]})


@published_set("Tiny-ImageNet", "train", "val/val_annotations.txt", required=("wnids.txt", "val/images"))
def tinyimagenet(files: Files) -> Iterator[Found]:
    """Tiny-ImageNet (http://cs231n.stanford.edu/tiny-imagenet-200.zip): labels are in the order of the sorted wnids, as
    ``ImageFolder`` numbers the folders of ``train``. Test images have no labels."""
    wnids = sorted(wnid for wnid, *_ in files.lines("wnids.txt"))
    files.columns["label"] = Label(wnids)
    for split in files.each_split("train", "val", "test" if files.exists("test/images") else None):
        if split == "test":
            yield Found("test/images", "test", is_folder=True)
        elif split == "val":
            for image, wnid, *box in files.lines("val/val_annotations.txt"):
                yield Found(f"val/images/{image}", "val", {"label": wnid, "boxes": [parse_numbers(box, 4, int)]})
        else:
            for wnid in wnids:
                boxes, top = files.by_key(f"train/{wnid}/{wnid}_boxes.txt"), f"train/{wnid}/images"
                for image in files.images(top):
                    yield Found(f"{top}/{image}", split, {"label": wnid, "boxes": boxes.numbers(image, 1, 4)})


@published_set("VisA", "split_csv/1cls.csv", "split_csv")
def visa(files: Files) -> Iterator[Found]:
    """VisA (https://github.com/amazon-science/spot-diff): the mask has a number for each kind of defect. The tables
    ``2cls_fewshot`` and ``2cls_highshot`` split the same images otherwise: they are left out."""
    files.columns |= {"label": Label(), "object": Label(), "defects": Labels(of=False)}
    columns, defects = ("object", "split", "label", "image", "mask"), dict[str, list[str]]()
    tables = {f"{clean_path(name)}/image_anno.csv" for name, *_ in files.csv("split_csv/1cls.csv", *columns)}
    for table in sorted(filter(files.exists, tables)):
        for image, kinds, _ in files.csv(table, "image", "label", "mask"):
            if named := [kind for each in kinds.split(",") if (kind := each.strip()) not in ("", "normal")]:
                defects[clean_path(image)] = [*dict.fromkeys(named)]
    for name, split, label, image, mask in files.csv("split_csv/1cls.csv", *columns):
        values: dict[str, Any] = {"label": label, "object": name}
        values["mask"] = InTree(files.path(clean_path(mask))) if mask else None
        values["defects"] = defects.get(clean_path(image), []) if defects else None
        yield Found(clean_path(image), split, values)
