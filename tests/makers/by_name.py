"""Each layout that the guide lists by its name, made tiny: so many images, and what annotates them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.makers.annotated import CATS, Files, coco_image, coco_object, fill, jpeg, mask, voc, voc_xml, yolo
from tests.makers.annotation_formats import MAKERS, kitti_mots, make_folder_set, via_csv
from tests.makers.images import encode
from tests.makers.layouts import make_layout
from tests.makers.published import SETS, make_set

Make = Callable[[Path, int], Path]


def files(make: Callable[[int], Files]) -> Make:
    return lambda root, samples: fill(root, make(samples))


def images(samples: int, folder: str = "", suffix: str = ".jpg") -> Files:
    return {f"{folder}a{n:05}{suffix}": jpeg(n % 40, 32, 24) for n in range(samples)}


def table(name: str, head: str, line: str, folder: str = "", suffix: str = ".jpg") -> Make:
    """Images and a table with a line for each, of its number ``n``, and ``c``, 0, 1, 2 …"""
    return files(
        lambda samples: {
            **images(samples, folder, suffix),
            name: head + "".join(line.format(n=n, c=n % 3, s="abc"[n % 3], f=f"a{n:05}") for n in range(samples)),
        }
    )


def of_coco(name: str, folder: str, image: Callable[[int], Any], **more: Any) -> Make:
    """A file of annotations of COCO with an object for each image, and further values of objects."""

    def make(samples: int) -> Files:
        entries = [image(n) for n in range(samples)]
        objects = [{**coco_object(n, n), **more} for n in range(samples)]
        document = {"images": entries, "annotations": objects, "categories": CATS}
        names = [each.get("file_name") or each["coco_url"].rpartition("/")[2] for each in entries]
        found: Files = {f"{folder}{each.rpartition('/')[2]}": jpeg(n % 40) for n, each in enumerate(names)}
        return found | {name: json.dumps(document)}

    return files(make)


def _coco_panoptic(samples: int) -> Files:
    segments = [{"id": 7, "category_id": 18, "area": 9, "bbox": [0, 0, 2, 2], "iscrowd": 0}]
    entries = [{"image_id": n, "file_name": f"{n:012}.png", "segments_info": segments} for n in range(samples)]
    document = {"images": [coco_image(n) for n in range(samples)], "annotations": entries, "categories": CATS}
    found: Files = {f"val2017/{n:012}.jpg": jpeg(n % 40) for n in range(samples)}
    found |= {f"annotations/panoptic_val2017/{n:012}.png": mask(n % 40, mode="RGB") for n in range(samples)}
    return found | {"annotations/panoptic_val2017.json": json.dumps(document)}


def _lvis(number: int) -> Any:
    return {"id": number, "coco_url": f"http://images.cocodataset.org/train2017/{number:012}.jpg", "width": 16,
            "height": 8, "neg_category_ids": [3], "not_exhaustive_category_ids": []}  # fmt: skip


def _inaturalist(samples: int) -> Files:
    names = [f"train_val2018/Aves/{n % 3}/{n:032x}.jpg" for n in range(samples)]
    document = {
        "images": [{"id": n, "file_name": name, "width": 16, "height": 8} for n, name in enumerate(names)],
        "annotations": [{"id": n, "image_id": n, "category_id": n % 3} for n in range(samples)],
        "categories": [{"id": c, "name": f"bird {c}", "supercategory": "Aves"} for c in range(3)],
    }
    return {**{name: jpeg(n % 40) for n, name in enumerate(names)}, "train2018.json": json.dumps(document)}


def _cvat_video(samples: int) -> Files:
    boxes = "".join(
        f'<box frame="{n}" outside="0" occluded="0" keyframe="1" xtl="1" ytl="2" xbr="5" ybr="6"/>'
        for n in range(samples)
    )
    track = f'<track id="3" label="dog">{boxes}</track>'
    head = "<version>1.1</version><meta><task><labels><label><name>dog</name></label></labels></task></meta>"
    found: Files = {f"images/frame_{n:06}.png": jpeg(n % 40) for n in range(samples)}
    return found | {"annotations.xml": f"<annotations>{head}{track}</annotations>"}


def coloured(number: int) -> bytes:
    """A mask in the colours of :data:`COLOURS`."""
    colours = np.array([(64, 128, 64), (192, 0, 128)], np.uint8)
    return encode(Image.fromarray(colours[(np.arange(number, number + 128) % 2).reshape(8, 16)]), "PNG")


def gray(number: int) -> bytes:
    """A mask of the values 0 and 1."""
    return encode(Image.fromarray((np.arange(number, number + 128) % 2).astype(np.uint8).reshape(8, 16)), "PNG")


def pairs(image: str, masked: str, make: Callable[[int], bytes], **once: str) -> Make:
    """Images and masks by pattern, and files that are there once; ``__`` in their names is a dot."""

    def build(samples: int) -> Files:
        found: Files = {image.format(n): jpeg(n % 40) for n in range(samples)}
        found |= {masked.format(n): make(n % 40) for n in range(samples)}
        return found | {name.replace("__", "."): text for name, text in once.items()}

    return files(build)


def _cityscapes(samples: int) -> Files:
    found: Files = {}
    for n in range(samples):
        place = f"train/bochum/bochum_{n:06}_000019_"
        found[f"leftImg8bit/{place}leftImg8bit.png"] = jpeg(n % 40)
        found |= {f"gtFine/{place}gtFine_{name}.png": mask(n % 40, mode="L") for name in ("labelIds", "instanceIds")}
        found[f"gtFine/{place}gtFine_color.png"] = mask(n % 40, mode="RGB")
        found[f"gtFine/{place}gtFine_polygons.json"] = json.dumps({"imgHeight": 8, "imgWidth": 16, "objects": []})
    return found


def _ade20k(samples: int) -> Files:
    names = [f"{'validation' if n < 3 else 'training'}/ADE_{n:08}" for n in range(samples)]
    found: Files = {f"images/{name}.jpg": jpeg(n % 40) for n, name in enumerate(names)}
    found |= {f"annotations/{name}.png": mask(n % 40, mode="L") for n, name in enumerate(names)}
    return found | {"sceneCategories.txt": "".join(f"{name.rpartition('/')[2]} attic\n" for name in names)}


def _fiftyone_samples(samples: int) -> Files:
    box = {"_cls": "Detection", "label": "dog", "bounding_box": [0.25, 0.5, 0.5, 0.25]}
    listed = [
        {
            "filepath": f"data/a{n:05}.jpg",
            "tags": ["train"],
            "ground_truth": {"_cls": "Detections", "detections": [box]},
        }
        for n in range(samples)
    ]
    return {**images(samples, "data/"), "samples.json": json.dumps({"samples": listed}), "metadata.json": "{}"}


def _fiftyone_classes(samples: int) -> Files:
    labels = {f"a{n:05}": n % 2 for n in range(samples)}
    return {**images(samples, "data/"), "labels.json": json.dumps({"classes": ["cat", "dog"], "labels": labels})}


def _makesense_vgg(samples: int) -> Files:
    shape = {"name": "polygon", "all_points_x": [0, 4, 4, 0], "all_points_y": [0, 0, 3, 0]}
    regions = {"0": {"shape_attributes": shape, "region_attributes": {"label": "dog"}}}
    listed = {
        f"a{n:05}.jpg": {"fileref": "", "size": 9, "filename": f"a{n:05}.jpg", "base64_img_data": "",
                         "file_attributes": {}, "regions": regions}
        for n in range(samples)
    }  # fmt: skip
    return {**images(samples), "labels_my-project.json": json.dumps(listed)}


def _by_split(name: str, text: Callable[[Iterable[int]], str], **once: str) -> Make:
    """Roboflow's folders ``train`` and ``valid``, each with a file of annotations."""

    def build(samples: int) -> Files:
        found: Files = {}
        for split, own in (("train", range(0, samples, 2)), ("valid", range(1, samples, 2))):
            found |= {f"{split}/a{n:05}.jpg": jpeg(n % 40, 32, 24) for n in own}
            found |= {f"{split}/{name}": text(own), **{f"{split}/{each}": content for each, content in once.items()}}
        return found

    return files(build)


def _roboflow_coco(own: Iterable[int]) -> str:
    entries = [{"id": n, "file_name": f"a{n:05}.jpg", "width": 32, "height": 24} for n in own]
    objects = [coco_object(each["id"], each["id"]) for each in entries]
    return json.dumps({"images": entries, "annotations": objects, "categories": CATS})


def _roboflow_masks(samples: int) -> Files:
    found: Files = {f"train/a{n:05}.jpg": jpeg(n % 40) for n in range(samples)}
    found |= {f"train/a{n:05}_mask.png": gray(n % 40) for n in range(samples)}
    return found | {"train/_classes.csv": "Pixel Value, Class\n0, background\n1, dog\n"}


def _cvat_masks(samples: int) -> Files:
    found: Files = {f"JPEGImages/{n}.jpg": jpeg(n % 40) for n in range(samples)}
    for folder in ("SegmentationClass", "SegmentationObject"):
        found |= {f"{folder}/{n}.png": coloured(n % 40) for n in range(samples)}
    labels = "# label:color_rgb:parts:actions\nroad:64,128,64::\ncar:192,0,128::\n"
    lists = "".join(f"{n}\n" for n in range(samples))
    return found | {"labelmap.txt": labels, "ImageSets/Segmentation/default.txt": lists}


def _open_images(samples: int) -> Files:
    head = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated\n"
    lines = "".join(f"a{n:05},xclick,/m/0{n % 2},1,0.1,0.5,0.2,0.8,0,0\n" for n in range(samples))
    above = {"LabelName": "/m/0bl9f", "Subcategory": [{"LabelName": "/m/00"}, {"LabelName": "/m/01"}]}
    return {
        **images(samples, "train/"), "oidv6-train-annotations-bbox.csv": head + lines,
        "class-descriptions-boxable.csv": "/m/00,Cat\n/m/01,Dog\n", "bbox_labels_600_hierarchy.json": json.dumps(above),
    }  # fmt: skip


def _llava(samples: int) -> Files:
    turns = [{"from": "human", "value": "<image>\nWhat is this?"}, {"from": "gpt", "value": "A dog."}]
    listed = [
        {"id": f"{n}", "image": [f"a{(n + k) % samples:05}.jpg" for k in range(1 + n % 2)], "conversations": turns}
        for n in range(samples)
    ]
    return {**images(samples, "images/"), "llava.json": json.dumps(listed)}


def _isic(samples: int) -> Files:
    names = [f"ISIC_{n:07}" for n in range(samples)]
    classes = "".join(f"{name},{','.join(f'{float(n % 4 == k)}' for k in range(4))}\n" for n, name in enumerate(names))
    facts = "".join(f"{name},{20 + n % 60},male\n" for n, name in enumerate(names))
    found: Files = {f"ISIC_2019_Training_Input/{name}.jpg": jpeg(n % 40) for n, name in enumerate(names)}
    return found | {"ISIC_2019_Training_GroundTruth.csv": f"image,MEL,NV,BCC,AK\n{classes}",
                    "ISIC_2019_Training_Metadata.csv": f"image,age_approx,sex\n{facts}"}  # fmt: skip


def _domainnet(samples: int) -> Files:
    found: Files = {}
    for domain in ("clipart", "real"):
        names = [f"{domain}/cat/{domain}_001_{n:06}.jpg" for n in range(samples)]
        found |= {name: jpeg(n % 40) for n, name in enumerate(names)}
        found[f"{domain}_train.txt"] = "".join(f"{name} 0\n" for name in names[1:])
        found[f"{domain}_test.txt"] = "".join(f"{name} 0\n" for name in names[:1])
    return found


def _mini_imagenet(samples: int) -> Files:
    names = [f"n0153282{n % 3}{n:08}.jpg" for n in range(samples)]
    found: Files = {f"images/{name}": jpeg(n % 40) for n, name in enumerate(names)}
    for k, split in enumerate(("train", "val", "test")):
        found[f"{split}.csv"] = "filename,label\n" + "".join(f"{name},{name[:9]}\n" for name in names[k::3])
    return found


def _sku(samples: int) -> Files:
    found: Files = {
        f"images/{split}_{n}.jpg": jpeg(n % 40, 32, 24) for split in ("train", "val") for n in range(samples)
    }
    for split in ("train", "val"):
        lines = "".join(f"{split}_{n}.jpg,20,10,30,20,object,32,24\n" for n in range(samples))
        found[f"annotations/annotations_{split}.csv"] = lines
    return found


def _voc_beside(samples: int) -> Files:
    notes: Files = {f"a{n:05}.xml": voc_xml(f"a{n:05}", ("cat", (1, 1, 2, 2), 0)) for n in range(samples)}
    return {**{f"a{n:05}.jpg": jpeg(n % 40) for n in range(samples)}, **notes}


def named(kind: str) -> Make:
    return lambda root, samples: make_layout(kind, root, max(12, samples))


def published(name: str) -> Make:
    return lambda root, samples: make_set(name, root, min(samples, 90) if "{m:" in str(SETS[name]) else samples)


def folder_set(kind: str) -> Make:
    return lambda root, samples: make_folder_set(kind, root, samples)


def _captions(samples: int) -> Files:
    return {**images(samples), **{f"a{n:05}.txt": f"a photo of {n} things" for n in range(samples)}}


BY_NAME: dict[str, Make] = {
    "LabelMe": files(MAKERS["labelme"]),
    "CVAT for images": files(MAKERS["cvat"]),
    "CVAT for video": files(_cvat_video),
    "CVAT, segmentation masks": files(_cvat_masks),
    "VIA 1 and 2": files(MAKERS["via"]),
    "VIA, CSV": files(via_csv),
    "Label Studio, JSON": files(MAKERS["label_studio"]),
    "VoTT, JSON": files(MAKERS["vott"]),
    "VoTT, CSV": table("vott-csv-export/x-export.csv", '"image","xmin","ymin","xmax","ymax","label"\n',
                       '"{f}.jpg",1.5,2,5,6,"{s}"\n'),
    "Create ML": files(MAKERS["createml"]),
    "Supervisely": files(MAKERS["supervisely"]),
    "Datumaro": files(MAKERS["datumaro"]),
    "FiftyOne, samples": files(_fiftyone_samples),
    "FiftyOne, detections": files(MAKERS["fiftyone"]),
    "FiftyOne, classes": files(_fiftyone_classes),
    "Roboflow, COCO": _by_split("_annotations.coco.json", _roboflow_coco),
    "Roboflow, YOLO": yolo,
    "Roboflow, CSV": _by_split(
        "_annotations.csv",
        lambda own: "filename,width,height,class,xmin,ymin,xmax,ymax\n"
        + "".join(f"a{n:05}.jpg,32,24,dog,1,2,20,12\n" for n in own),
    ),
    "Roboflow, _classes.csv": _by_split(
        "_classes.csv", lambda own: "filename, cat, dog\n" + "".join(f"a{n:05}.jpg, 1, {n % 2}\n" for n in own)
    ),
    "Roboflow, _annotations.txt": _by_split(
        "_annotations.txt", lambda own: "".join(f"a{n:05}.jpg 1,2,5,6,0 0,0,4,4,1\n" for n in own),
        **{"_classes.txt": "dog\ncat"},
    ),
    "Roboflow, masks": files(_roboflow_masks),
    "makesense, CSV": table("labels_my-project.csv", "", "{s},1,2,4,4,{f}.jpg,32,24\n"),
    "makesense, VGG JSON": files(_makesense_vgg),
    "SA-1B": files(MAKERS["sa1b"]),
    "COCO": of_coco("annotations/instances_train2017.json", "train2017/", coco_image),
    "Pascal VOC": voc,
    "LabelImg": files(_voc_beside),
    "YOLO": yolo,
    "KITTI": files(MAKERS["kitti"]),
    "Open Images": files(_open_images),
    "BDD100K": files(MAKERS["bdd100k"]),
    "Objects365": of_coco(
        "zhiyuan_objv2_train.json", "train/patch0/",
        lambda n: {"id": n, "file_name": f"images/v2/patch0/objects365_v2_{n:08}.jpg", "width": 16, "height": 8},
        isfake=0, isreflected=0,
    ),
    "LVIS": of_coco("annotations/lvis_v1_train.json", "train2017/", _lvis),
    "CrowdHuman": files(MAKERS["crowdhuman"]),
    "WIDER FACE": files(MAKERS["widerface"]),
    "VisDrone": files(MAKERS["visdrone"]),
    "DOTA": files(MAKERS["dota"]),
    "MOT": files(MAKERS["mot"]),
    "MOTS": files(MAKERS["mots"]),
    "KITTI MOTS": files(kitti_mots),
    "SKU-110K": files(_sku),
    "RetinaNet": table("annotations.csv", "", "{f}.jpg,20,10,30,20,{s}\n"),
    "COCO panoptic": files(_coco_panoptic),
    "COCO stuff": of_coco("annotations/stuff_train2017.json", "train2017/", coco_image),
    "COCO-Stuff, maps": published("COCO-Stuff"),
    "Cityscapes": files(_cityscapes),
    "Mapillary Vistas": published("Mapillary Vistas"),
    "ADE20K": files(_ade20k),
    "ADE20K, full": published("ADE20K, full"),
    "CamVid": pairs("701_StillsRaw_full/s_{}.png", "LabeledApproved_full/s_{}_L.png", coloured,
                    label_colors__txt="64 128 64\tAnimal\n192 0 128\tArchway\n"),
    "CamVid of SegNet": published("CamVid of SegNet"),
    "KITTI semantics": published("KITTI semantics"),
    "DRIVE": published("DRIVE"),
    "CHASE_DB1": published("CHASE_DB1"),
    "images and masks": pairs("images/{}.jpg", "masks/{}.png", mask),
    "masks in colours, with a palette": pairs("images/{}.jpg", "masks/{}.png", coloured,
                                              class_dict__csv="name,r,g,b\nroad,64,128,64\ncar,192,0,128\n"),
    "a table, as Kaggle's": table("train.csv", "id,breed,age\n", "{f},{s},{n}\n", "train/"),
    "masks by run lengths": table("train.csv", "ImageId,EncodedPixels\n", "{f}.jpg,1 3 40 5\n", "train/"),
    "Market-1501": folder_set("market1501"),
    "DukeMTMC-reID": folder_set("dukemtmc"),
    "MARS": folder_set("mars"),
    "LFW": published("LFW"),
    "MVTec AD": published("MVTec AD"),
    "VisA": named("visa"),
    "Caltech-101": published("Caltech-101"),
    "FGVC-Aircraft": named("fgvcaircraft"),
    "Stanford Dogs": named("stanforddogs"),
    "iNaturalist": files(_inaturalist),
    "DomainNet": files(_domainnet),
    "Office-31": published("Office-31"),
    "Omniglot": folder_set("omniglot"),
    "mini-ImageNet": files(_mini_imagenet),
    "UC Merced": published("UC Merced"),
    "RESISC45": published("RESISC45"),
    "ISIC": files(_isic),
    "HAM10000": table("HAM10000_metadata.csv", "lesion_id,image_id,dx,age,sex\n", "HAM_{n},{f},{s}kl,5{c},male\n",
                      "HAM10000_images_part_1/"),
    "ImageNet-A": published("ImageNet-A"),
    "ImageNet-Sketch": published("ImageNet-Sketch"),
    "ImageNetV2": published("ImageNetV2"),
    "ImageNet-C": published("ImageNet-C"),
    "ICDAR 2013, 2015, 2019": files(MAKERS["icdar"]),
    "ICDAR MLT": files(MAKERS["mlt"]),
    "ArT, LSVT": files(MAKERS["art"]),
    "SROIE": files(MAKERS["sroie"]),
    "FUNSD": files(MAKERS["funsd"]),
    "CORD": files(MAKERS["cord"]),
    "TextOCR": files(MAKERS["textocr"]),
    "captions, one file per image": files(_captions),
    "captions without a header": table("captions.txt", "", "{f}.jpg\ta photo of {n} things\n"),
    "CLIP, CSV": table("train.csv", "filepath,title\n", "images/{f}.jpg,a photo of {n}\n", "images/"),
    "CLIP, TSV": table("train.tsv", "title\tfilepath\n", "a photo of {n}\timages/{f}.jpg\n", "images/"),
    "LLaVA": files(_llava),
    "DIV2K": published("DIV2K"),
    "xView2": published("xView2"),
}  # fmt: skip
