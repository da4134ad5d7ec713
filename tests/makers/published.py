"""Published sets that folders and names tell, made tiny: rows of name, number of samples to files, and what is read."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.makers.annotated import Files, fill, jpeg, mask
from tests.makers.images import encode, picture


@functools.cache
def content(kind: str, n: int) -> bytes:
    """An image of 16 x 8 pixels."""
    if kind == "jpeg":
        return jpeg(n)
    if kind == "mask":
        return mask(n, mode="L")
    if kind == "colours":
        return mask(n, mode="RGB")
    image = picture("L" if kind == "gif" else "RGB", 16, 8, n)
    return encode(image, {"png": "PNG", "tiff": "TIFF", "gif": "GIF"}[kind])


class Part(NamedTuple):
    """Files of one pattern: ``{n}`` is the sample, ``{c}`` its number modulo 3, ``{s}`` a letter of it."""

    pattern: str
    kind: str = "jpeg"
    value: Any = None


class Made(NamedTuple):
    """One set.

    Attributes:
        parts: Its images and files; the first is the main image.
        splits: Its splits, in packing order, each with a sample of each number.
        columns: Its columns besides the image.
        once: Files that are there once.
    """

    parts: tuple[Part, ...]
    columns: tuple[str, ...]
    splits: tuple[str, ...] = ("",)
    once: Mapping[str, str] = {}


_WORDS = {"features": {"xy": [{"wkt": "POLYGON ((1 1, 2 1, 2 2, 1 1))"}]}}
_QUAKE = "{p}/images/quake_{n:08}"

SETS: dict[str, Made] = {
    "LFW": Made((Part("lfw/Per_{s}/Per_{s}_{n:04}.jpg"),), ("label", "number"), once={"pairs.txt": "10\t2\n"}),
    "MVTec AD": Made(
        (Part("bottle/{p}/broken/{n:04}.png", "png"), Part("bottle/train/good/{n:04}.png", "png"),
         Part("bottle/ground_truth/broken/{n:04}_mask.png", "mask")),
        ("object", "label", "mask"), ("test",), once={"bottle/license.txt": "x"},
    ),
    "Caltech-101": Made(
        (Part("101_ObjectCategories/{s}/image_{n:04}.jpg"),), ("label", "number"),
        once={"Annotations/a/annotation_0001.mat": "MATLAB 5.0"},
    ),
    "UC Merced": Made((Part("UCMerced_LandUse/Images/{s}/{s}{n:03}.tif", "tiff"),), ("label", "number")),
    "RESISC45": Made((Part("NWPU-RESISC45/{s}_x/{s}_x_{m:03}.jpg"),), ("label", "number")),
    "Office-31": Made(
        (Part("amazon/images/{s}/frame_{n:04}.jpg"), Part("dslr/images/{s}/frame_{n:04}.jpg")),
        ("domain", "label", "number"),
    ),
    "Office-Home": Made(
        tuple(Part(f"{name}/{{s}}/{{n:05}}.jpg") for name in ("Art", "Clipart", "Product", "Real World")),
        ("domain", "label", "number"),
    ),
    "PACS": Made(
        tuple(Part(f"{name}/{{s}}/{{n}}.jpg") for name in ("art_painting", "cartoon", "photo", "sketch")),
        ("domain", "label"),
    ),
    "ImageNet-A": Made(
        (Part("imagenet-a/n0149849{c}/0.00_x_{n}.jpg"),), ("label",), once={"imagenet-a/README.txt": ""},
    ),
    "ImageNet-Sketch": Made((Part("sketch/n0149849{c}/sketch_{n}.JPEG"),), ("label",)),
    "ImageNetV2": Made((Part("imagenetv2-matched-frequency-format-val/{c}{c}/{n:08x}.jpeg"),), ("label",)),
    "ImageNet-C": Made(
        (Part("fog/1/n0149849{c}/x{n}.JPEG"), Part("snow/5/n0149849{c}/x{n}.JPEG")), ("corruption", "label", "severity")
    ),
    **{
        title: Made(
            (Part("leftImg8bit/{p}/bonn/bonn_{n:06}_leftImg8bit.png", "png"),
             Part(f"{kind}/{{p}}/bonn/bonn_{{n:06}}_{kind}_labelIds.png", "mask"),
             Part(f"{kind}/{{p}}/bonn/bonn_{{n:06}}_{kind}_polygons.json", value={"objects": []})),
            ("mask", "polygons"), ("train", "val"),
        ) for title, kind in (("Cityscapes", "gtFine"), ("Cityscapes, coarse", "gtCoarse"))
    },
    "KITTI semantics": Made(
        (Part("{p}/image_2/{n:06}_10.png", "png"), Part("{p}/semantic/{n:06}_10.png", "mask"),
         Part("{p}/instance/{n:06}_10.png", "mask"), Part("{p}/semantic_rgb/{n:06}_10.png", "colours")),
        ("mask", "instance_mask", "colour_mask"), ("training", "testing"),
    ),
    "Mapillary Vistas": Made(
        (Part("{p}/images/{p}{n}.jpg"), *(Part(f"{{p}}/v2.0/{name}/{{p}}{{n}}.png", "mask") for name in
         ("labels", "instances", "panoptic")), Part("{p}/v2.0/polygons/{p}{n}.json", value={"objects": []})),
        ("mask_v2", "instance_mask_v2", "panoptic_mask_v2", "polygons"), ("training", "validation"),
        once={"config_v2.0.json": "{}"},
    ),
    "DRIVE": Made(
        (Part("{p}/images/{m:02}_{p}.tif", "tiff"), Part("{p}/1st_manual/{m:02}_manual1.gif", "gif"),
         Part("{p}/2nd_manual/{m:02}_manual2.gif", "gif"), Part("{p}/mask/{m:02}_{p}_mask.gif", "gif")),
        ("number", "vessels", "vessels_2", "field_of_view"), ("training", "test"),
    ),
    "CHASE_DB1": Made(
        (Part("Image_{m:02}L.jpg"), Part("Image_{m:02}L_1stHO.png", "mask"), Part("Image_{m:02}L_2ndHO.png", "mask")),
        ("eye", "number", "vessels", "vessels_2"),
    ),
    "CamVid of SegNet": Made(
        (Part("{p}/{n:04}.png", "png"), Part("{p}annot/{n:04}.png", "mask")), ("mask",), ("train", "val", "test"),
        once={"train.txt": "/SegNet/CamVid/train/0000.png /SegNet/CamVid/trainannot/0000.png\n"},
    ),
    "COCO-Stuff": Made(
        (Part("{p}/{n:012}.jpg"), Part("stuffthingmaps/{p}/{n:012}.png", "mask")), ("mask",), ("train2017", "val2017")
    ),
    "ADE20K, full": Made(
        (Part("images/ADE/{p}/urban/ADE_{p}_{n:08}.jpg"),
         Part("images/ADE/{p}/urban/ADE_{p}_{n:08}_seg.png", "colours"),
         Part("images/ADE/{p}/urban/ADE_{p}_{n:08}_parts_1.png", "colours"),
         Part("images/ADE/{p}/urban/ADE_{p}_{n:08}.json", value={"annotation": {"object": []}})),
        ("scene", "mask", "parts_1_mask", "annotation"), ("training", "validation"),
    ),
    "DIV2K": Made(
        (Part("DIV2K_{p}_HR/{n:04}.png", "png"), Part("DIV2K_{p}_LR_bicubic/X2/{n:04}x2.png", "png"),
         Part("DIV2K_{p}_LR_unknown/X4/{n:04}x4.png", "png"), Part("DIV2K_{p}_LR_mild/{n:04}x4m.png", "png")),
        ("bicubic_x2", "unknown_x4", "mild"), ("train", "valid"),
    ),
    "xView2": Made(
        (Part(f"{_QUAKE}_pre_disaster.png", "png"), Part(f"{_QUAKE}_post_disaster.png", "png"),
         Part("{p}/labels/quake_{n:08}_pre_disaster.json", value=_WORDS),
         Part("{p}/labels/quake_{n:08}_post_disaster.json", value=_WORDS)),
        ("disaster", "number", "after", "buildings", "buildings_after"), ("train", "test"),
    ),
    "change detection": Made(
        (Part("{p}/A/{n}.png", "png"), Part("{p}/B/{n}.png", "png"), Part("{p}/label/{n}.png", "mask")),
        ("after", "mask"), ("train", "test"),
    ),
}  # fmt: skip


def make_set(name: str, root: Path, samples: int) -> Path:
    """A set of so many images in each folder of images."""
    made = SETS[name]
    files: Files = dict(made.once)
    for part in made.parts:
        for split in made.splits:
            for n in range(samples):
                path = part.pattern.format(n=n, m=n % 100, c=n % 3, s="abc"[n % 3], p=split)
                value = part.value
                text = value if isinstance(value, str) else None if value is None else json.dumps(value)
                files[path] = content(part.kind, n % 40) if text is None else text
    return fill(root, files)
