"""Table of published sets: splits are folders, columns are parts of paths, further files lie beside the images.

- Market-1501 and DukeMTMC-reID: ``0002_c1s3_000151_00.jpg`` is identity 2 from camera 1; -1 is junk, 0 a distractor.
- MARS: ``bbox_train/0001/0001C1T0001F001.jpg`` is identity 1, camera 1, tracklet 1, frame 1; ``00-1`` is junk.
- Omniglot: ``images_background/Greek/character01/0390_01.png``; the class is the character with its alphabet.
- Sources of the others: their read-me files, and the data sets of torchvision and torchgeo.
"""

from __future__ import annotations

from collections.abc import Sequence

from packstore.sources.named import FolderSet, make_folder_set_kind

_SUFFIX = r"\.(jpg|jpeg|png|bmp|tif)"

_PEOPLE = ("bounding_box_train", "bounding_box_test")
_PERSON = r"(?P<split>bounding_box_train|bounding_box_test|query)/(?P<identity>-?\d+)_c(?P<camera>\d+)"
_PEOPLE_SPLITS = {"bounding_box_train": "train", "bounding_box_test": "test"}

_MARKET = FolderSet(
    _PEOPLE,
    _PERSON + r"s(?P<sequence>\d+)_(?P<frame>\d+)_(?P<number>\d+)(\.jpg)?\.jpg",
    splits=_PEOPLE_SPLITS,
    left="gt_bbox/.*",
    known="gt_query/.*",
)
_DUKE = FolderSet(_PEOPLE, _PERSON + r"_f(?P<frame>\d+)\.jpg", splits=_PEOPLE_SPLITS)
_MARS = FolderSet(
    ("bbox_train", "bbox_test"),
    r"(?P<split>bbox_train|bbox_test)/[^/]+/(?P<identity>\d{4}|00-1)C(?P<camera>\d)T(?P<track>\d{4})F(?P<frame>\d{3})"
    r"\.jpg",
    splits={"bbox_train": "train", "bbox_test": "test"},
    known="info/.*",
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
        known=r"(.*/)?(pairs|people)[^/]*\.txt|lfw-names\.txt",
    ),
    "VGGFace2": FolderSet(
        ("train|test", "identity_meta.csv|meta/identity_meta.csv"),
        r"(?P<split>train|test)/(?P<label>n\d{6})/(?P<number>\d{4})_(?P<face>\d{2})\.jpg",
        known=r"(meta/)?(identity_meta\.csv|(train|test)_list\.txt|class_overlap[^/]*\.txt)",
    ),
    "MVTec AD": FolderSet(
        ("*/train/good", "*/ground_truth"),
        r"(?P<object>[^/]+)/(?P<split>train|validation|test)/(?P<label>[^/]+)/(?P<_name>[^/]+)" + _SUFFIX,
        beside={"mask": "{object}/ground_truth/{label}/{_name}_mask.png"},
    ),
    "MVTec AD, one object": FolderSet(
        ("train/good", "test", "ground_truth"),
        r"(?P<split>train|validation|test)/(?P<label>[^/]+)/(?P<_name>[^/]+)" + _SUFFIX,
        beside={"mask": "ground_truth/{label}/{_name}_mask.png"},
    ),
    "Caltech-101": FolderSet(
        ("101_ObjectCategories",),
        r"101_ObjectCategories/(?P<label>(?!BACKGROUND_Google/)[^/]+)/image_(?P<number>\d{4})\.jpg",
        left=r"101_ObjectCategories/BACKGROUND_Google/.*",
        known=r"Annotations/.*|.*\.m",
    ),
    "Caltech-256": FolderSet(
        ("256_ObjectCategories",),
        r"256_ObjectCategories/(?P<label>\d{3}\.[^/]+)/\d{3}_(?P<number>\d{4})\.jpg",
        known=r".*/RENAME2",
    ),
    "UC Merced Land Use": FolderSet(
        ("UCMerced_LandUse/Images|Images/agricultural",),
        r"(UCMerced_LandUse/)?Images/(?P<label>[a-z]+)/(?P=label)(?P<number>\d{2,})\.(tif|jpg|png)",
        known=r"(.*/)?readme\.txt",
    ),
    "NWPU-RESISC45": FolderSet(
        ("NWPU-RESISC45",), r"NWPU-RESISC45/(?P<label>[a-z_]+)/(?P=label)_(?P<number>\d{3})\.jpg"
    ),
    "DomainNet": FolderSet(
        ("clipart|quickdraw|infograph", "real|sketch|painting"),
        r"(?P<domain>clipart|infograph|painting|quickdraw|real|sketch)/(?P<label>[^/]+)/[^/]+\.(jpg|png)",
        unless=tuple(
            f"{name}_train.txt" for name in ("clipart", "quickdraw", "infograph", "real", "sketch", "painting")
        ),
    ),
    "Office-31": FolderSet(
        ("amazon/images|dslr/images", "webcam/images|dslr/images"),
        r"(?P<domain>amazon|dslr|webcam)/images/(?P<label>[^/]+)/frame_(?P<number>\d{4})\.jpg",
    ),
    "Office-Home": FolderSet(
        ("Art", "Clipart", "Product"),
        r"(?P<domain>Art|Clipart|Product|Real[ _]?World)/(?P<label>[^/]+)/(?P<number>\d{5})\.jpg",
        known=r"ImageInfo\.csv|imagelist\.txt",
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
    "ImageNet-C, one corruption": FolderSet(
        ("1", "2", "3", "4", "5"), r"(?P<severity>[1-5])/(?P<label>n\d{8})/[^/]+\.jpeg"
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
        known=r"label_colors\.txt",
    ),
    "images and instances": FolderSet(
        ("train/images|val/images|test/images|training/images", "train/instances|val/instances|training/instances"),
        r"(?P<split>train|val|test|training|validation|testing)/images/(?P<_name>[^/]+)\.(png|jpg)",
        beside={"instance_mask": "{split}/instances/{_name}.png"},
        known=r"(.*/)?labels\.txt",
        unless=("training/v2.0", "validation/v2.0", "training/labels", "train/labels", "val/labels"),
    ),
    "KITTI MOTS": FolderSet(
        ("training/image_02", "instances"),
        r"(?P<split>training|testing)/image_02/(?P<sequence>\d{4})/(?P<frame>\d{6})\.png",
        beside={"instance_mask": "instances/{sequence}/{frame}.png"},
    ),
    "Mapillary Vistas": FolderSet(
        ("training/images|validation/images", "training/instances|validation/instances|training/v2.0|validation/v2.0"),
        r"(?P<split>training|validation|testing)/images/(?P<_name>[^/]+)\.jpg",
        beside={
            **{
                f"{column}{version}": f"{{split}}/{top}{folder}/{{_name}}.png"
                for version, top in (("", ""), ("_v1", "v1.2/"), ("_v2", "v2.0/"))
                for column, folder in (
                    ("mask", "labels"),
                    ("instance_mask", "instances"),
                    ("panoptic_mask", "panoptic"),
                )
            },
            "polygons": "{split}/v2.0/polygons/{_name}.json",
        },
        known=r"config[^/]*\.json|demo\.py|.*/panoptic/panoptic[^/]*\.json|requirements\.txt",
    ),
    "SYNTHIA": FolderSet(
        ("RGB", "GT/LABELS"),
        r"RGB/(?P<_name>[^/]+)\.png",
        beside={
            "mask": "GT/LABELS/{_name}.png",
            "colour_mask": "GT/COLOR/{_name}.png",
            "depth": "Depth/Depth/{_name}.png",
            "instances": "GT/TXT/{_name}.txt",
        },
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
        known=r"(train|val|test|label_colors)\.txt",
    ),
    "COCO-Stuff": FolderSet(
        ("stuffthingmaps", "train2017|val2017|images/train2017|images/val2017"),
        r"(images/)?(?P<split>(train|val)2017)/(?P<_name>\d{12})\.jpg",
        beside={"mask": "stuffthingmaps/{split}/{_name}.png"},
        required=("mask",),
        known=r"labels\.txt|labels\.md",
    ),
    "ADE20K, full": FolderSet(
        ("images/ADE/training|images/ADE/validation|images/training|images/validation|training|validation",),
        r"(?P<_top>(images/)?(ADE/)?)(?P<split>training|validation)/(?P<scene>.+)/(?P<_name>ADE_[a-z]+_\d{8})\.jpg",
        texts=("scene",),
        beside={
            "mask": "{_top}{split}/{scene}/{_name}_seg.png",
            **{f"parts_{n}_mask": f"{{_top}}{{split}}/{{scene}}/{{_name}}_parts_{n}.png" for n in range(1, 7)},
            "annotation": "{_top}{split}/{scene}/{_name}.json",
            "attributes": "{_top}{split}/{scene}/{_name}_atr.txt",
        },
        required=("mask",),
        left=r".*/ADE_[a-z]+_\d{8}/instance_[^/]*\.png",
        known=r"index_ade20k\.(mat|pkl)|objects\.txt|objectInfo[^/]*",
    ),
}


def _list_bands(column: str, path: str, names: Sequence[str]) -> dict[str, str]:
    """Returns the paths of the bands ``names`` of an image, by column. ``%`` stands for the name of the band."""
    return {column.replace("%", name.lower().replace("-", "_")): path.replace("%", name) for name in names}


_LOW = {f"{how}_x{scale}": (how, scale) for how in ("bicubic", "unknown") for scale in (2, 3, 4)}
_BANDS = ("01", "03", "04", "05", "06", "07", "08", "8A", "09", "10", "11", "12")
_OSCD_MARKERS = ("*[Ii]mages/train.txt|Onera*Labels", "*[Ii]mages/test.txt|Onera*Images")
_OSCD_MASKS = {
    "mask": "labels/{city}/cm/cm.png",
    "mask_train": "Onera Satellite Change Detection dataset - Train Labels/{city}/cm/cm.png",
    "mask_test": "Onera Satellite Change Detection dataset - Test Labels/{city}/cm/cm.png",
}
_AREA = r"(?P<_top>((?P<split>train|test)/)?([^/]*AOI_\d+_[^/]+/)?)"
_SPACENET = ("PAN", "MS", "PS-MS", "RGBNIR", "PS-RGBNIR", "SAR-Intensity")
_ROADS = ("roads", "roads_speed")

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
    "OSCD": FolderSet(
        _OSCD_MARKERS,
        r"(?P<_top>[^/]*[Ii]mages)/(?P<city>[^/]+)/pair/img1\.png",
        beside={"after": "{_top}/{city}/pair/img2.png", **_OSCD_MASKS},
        required=("after",),
        left=r".*/(imgs_[12](_rect)?/.*|cm/[^/]+-cm\.tif)",
        known=r".*/(train|test|dates)\.txt|.*\.geojson",
    ),
    "OSCD, its bands": FolderSet(
        _OSCD_MARKERS,
        r"(?P<_top>[^/]*[Ii]mages)/(?P<city>[^/]+)/imgs_1_rect/(?P<_band>B02)\.tif",
        beside={
            **_list_bands("b%", "{_top}/{city}/imgs_1_rect/B%.tif", _BANDS),
            "after": "{_top}/{city}/imgs_2_rect/B02.tif",
            **_list_bands("after_b%", "{_top}/{city}/imgs_2_rect/B%.tif", _BANDS),
            **_OSCD_MASKS,
        },
        required=("after",),
        left=r".*/(imgs_[12]/.*|cm/[^/]+-cm\.tif)",
        known=r".*/(train|test|dates)\.txt|.*\.geojson",
    ),
    "change detection: A, B and label": FolderSet(
        ("train/A|val/A|test/A|A", "train/B|val/B|test/B|B", "train/label|val/label|test/label|label"),
        r"(?P<_top>((?P<split>train|val|test)/)?)A/(?P<_name>[^/]+\.(png|jpg|tif))",
        beside={"after": "{_top}B/{_name}", "mask": "{_top}label/{_name}"},
        required=("after", "mask"),
        known=r"list/[^/]+\.txt",
    ),
    "BigEarthNet": FolderSet(
        ("S1*_IW_*|S2*_MSIL*",),
        r"(?P<_patch>S[12][AB]_[^/]+)/(?P=_patch)_(B02|VV)\.tif",
        beside={
            **_list_bands("b%", "{_patch}/{_patch}_B%.tif", [band for band in _BANDS if band != "10"]),
            "vh": "{_patch}/{_patch}_VH.tif",
            "json": "{_patch}/{_patch}_labels_metadata.json",
        },
    ),
    "fMoW": FolderSet(
        ("|".join(f"{split}/{name}" for split in ("train", "val", "test_gt") for name in ("airport", "zoo")),),
        r"(?P<_top>(?P<split>train|val|test|seq|test_gt|seq_gt)/(?P<label>[^/]+)/(?P<_place>[^/]+)/(?P=_place)"
        r"_(?P<number>\d+)_(?P<_kind>rgb|msrgb|ms))\.(jpg|tif)",
        beside={"json": "{_top}.json"},
    ),
    "SpaceNet 1": FolderSet(
        ("3band", "8band|geojson"),
        r"3band/3band_(?P<_name>AOI_\d+_[A-Za-z]+_img\d+)\.tif",
        beside={"bands": "8band/8band_{_name}.tif", "buildings": "geojson/Geo_{_name}.geojson"},
        known=r"(vectordata|summaryData)/.*",
    ),
    "SpaceNet 2 and 3": FolderSet(
        (
            "RGB-PanSharpen|*/RGB-PanSharpen",
            "|".join(f"{top}geojson/{name}" for top in ("", "*/") for name in ("buildings", "spacenetroads")),
        ),
        _AREA + r"RGB-PanSharpen/[A-Za-z\d_-]*?(?P<_name>AOI_\d+_[A-Za-z]+_(Train_)?img\d+)\.tif",
        beside={
            "buildings": "{_top}geojson/buildings/buildings_{_name}.geojson",
            "roads": "{_top}geojson/spacenetroads/spacenetroads_{_name}.geojson",
            "pan": "{_top}PAN/PAN_{_name}.tif",
            "mul": "{_top}MUL/MUL_{_name}.tif",
            "mul_pansharpen": "{_top}MUL-PanSharpen/MUL-PanSharpen_{_name}.tif",
        },
        known=r"(.*/)?summaryData/.*",
    ),
    "SpaceNet 3, 5 and 6": FolderSet(
        (
            "|".join(f"{top}PS-RGB" for top in ("", "*/", "train/*/")),
            "|".join(f"{top}geojson_{name}" for top in ("", "*/", "train/*/") for name in ("buildings", *_ROADS)),
        ),
        _AREA + r"PS-RGB/(?P<_set>SN\d_\w+?_AOI_\d+_[A-Za-z]+)_PS-RGB_(?P<_tile>\w+)\.tif",
        beside={
            **_list_bands("%", "{_top}%/{_set}_%_{_tile}.tif", _SPACENET),
            "buildings": "{_top}geojson_buildings/{_set}_Buildings_{_tile}.geojson",
            **_list_bands("%", "{_top}geojson_%/{_set}_geojson_%_{_tile}.geojson", _ROADS),
        },
        known=r"(.*/)?(SummaryData|summaryData)/.*|(.*/)?[^/]*\.csv",
    ),
}

MARKET1501 = make_folder_set_kind("market1501", "Market-1501 as published", {"Market-1501": _MARKET})
DUKEMTMC = make_folder_set_kind("dukemtmc", "DukeMTMC-reID as published", {"DukeMTMC-reID": _DUKE})
MARS = make_folder_set_kind("mars", "MARS as published", {"MARS": _MARS})
OMNIGLOT = make_folder_set_kind("omniglot", "Omniglot as published", _OMNIGLOT)
PUBLISHED = make_folder_set_kind(
    "published", "a published set recognised by its folders and file names", CLASSES | MASKS | PAIRS
)
