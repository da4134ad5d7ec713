"""Table of published sets: splits are folders, columns are parts of paths, further files lie beside the images.

- Market-1501 and DukeMTMC-reID: ``0002_c1s3_000151_00.jpg`` is identity 2 from camera 1; -1 is junk, 0 a distractor.
- MARS: ``bbox_train/0001/0001C1T0001F001.jpg`` is identity 1, camera 1, tracklet 1, frame 1; ``00-1`` is junk.
- Omniglot: ``images_background/Greek/character01/0390_01.png``; the class is the character with its alphabet.
- Sources of the others: their read-me files, and the data sets of torchvision and torchgeo.
"""

from __future__ import annotations

from packstore.sources.named.folder_sets import FolderSet, make_folder_set_kind

_RE_ID = {"bounding_box_train": "train", "bounding_box_test": "test"}
_PEOPLE = r"(?P<split>bounding_box_train|bounding_box_test|query)/"
_PERSON = ("bounding_box_train", "bounding_box_test")
_NOTES = r"(.*/)?(readme|licen[cs]e|copyright)[^/]*"
_IMAGE = r"\.(jpg|jpeg|JPG|JPEG|png|PNG|bmp|tif)"

_MARKET = FolderSet(
    "Market-1501",
    _PERSON,
    _PEOPLE + r"(?P<identity>-?\d+)_c(?P<camera>\d+)s(?P<sequence>\d+)_(?P<frame>\d+)_(?P<number>\d+)(\.jpg)?\.jpg",
    splits=_RE_ID,
    left=r"gt_bbox/.*",
    known=rf"gt_query/.*|{_NOTES}",
)
_DUKE = FolderSet(
    "DukeMTMC-reID", _PERSON, _PEOPLE + r"(?P<identity>\d+)_c(?P<camera>\d+)_f(?P<frame>\d+)\.jpg", splits=_RE_ID
)
_MARS = FolderSet(
    "MARS",
    ("bbox_train", "bbox_test"),
    r"(?P<split>bbox_train|bbox_test)/[^/]+/(?P<identity>\d{4}|00-1)C(?P<camera>\d)T(?P<track>\d{4})F(?P<frame>\d{3})"
    r"\.jpg",
    splits={"bbox_train": "train", "bbox_test": "test"},
    known=rf"info/.*|{_NOTES}",
)
_OMNIGLOT = FolderSet(
    "Omniglot",
    ("images_background|images_evaluation|images_background_small1|images_background_small2",),
    r"(?P<split>images_background|images_evaluation|images_background_small[12])/(?P<label>[^/]+/character\d+)/\d+_(?P<drawer>\d+)\.png",
    splits={"images_background": "train", "images_evaluation": "test"},
)
_OMNIGLOT_PART = FolderSet(
    "Omniglot, one of its archives", ("*/character01",), r"(?P<label>[^/]+/character\d+)/\d+_(?P<drawer>\d+)\.png"
)
_CORRUPTIONS = (
    "gaussian_noise|shot_noise|impulse_noise|defocus_blur|glass_blur|motion_blur|zoom_blur|snow|frost|fog|brightness|"
    "contrast|elastic_transform|pixelate|jpeg_compression|speckle_noise|gaussian_blur|spatter|saturate"
)
_V2 = ("matched-frequency", "threshold0.7", "threshold-0.7", "top-images")

CLASSES = (
    FolderSet(
        "Labeled Faces in the Wild",
        ("lfw|lfw_funneled|lfw-deepfunneled",),
        r"(lfw|lfw_funneled|lfw-deepfunneled)/(?P<label>[^/]+)/(?P=label)_(?P<number>\d{4})\.(jpg|png|ppm)",
        known=rf"(.*/)?(pairs|people)[^/]*\.txt|lfw-names\.txt|{_NOTES}",
    ),
    FolderSet(
        "VGGFace2",
        ("train|test", "identity_meta.csv|meta/identity_meta.csv"),
        r"(?P<split>train|test)/(?P<label>n\d{6})/(?P<number>\d{4})_(?P<face>\d{2})\.jpg",
        known=r"(meta/)?(identity_meta\.csv|(train|test)_list\.txt|class_overlap[^/]*\.txt)|" + _NOTES,
    ),
    FolderSet(
        "MVTec AD",
        ("*/train/good", "*/ground_truth"),
        r"(?P<object>[^/]+)/(?P<split>train|validation|test)/(?P<label>[^/]+)/(?P<_name>[^/]+)" + _IMAGE,
        labels=("label", "object"),
        beside={"mask": "{object}/ground_truth/{label}/{_name}_mask.png"},
        known=_NOTES,
    ),
    FolderSet(
        "MVTec AD, one object",
        ("train/good", "test", "ground_truth"),
        r"(?P<split>train|validation|test)/(?P<label>[^/]+)/(?P<_name>[^/]+)" + _IMAGE,
        beside={"mask": "ground_truth/{label}/{_name}_mask.png"},
        known=_NOTES,
    ),
    FolderSet(
        "Caltech-101",
        ("101_ObjectCategories",),
        r"101_ObjectCategories/(?P<label>(?!BACKGROUND_Google/)[^/]+)/image_(?P<number>\d{4})\.jpg",
        left=r"101_ObjectCategories/BACKGROUND_Google/.*",
        known=rf"Annotations/.*|.*\.m|{_NOTES}",
    ),
    FolderSet(
        "Caltech-256",
        ("256_ObjectCategories",),
        r"256_ObjectCategories/(?P<label>\d{3}\.[^/]+)/\d{3}_(?P<number>\d{4})\.jpg",
        known=r".*/RENAME2|" + _NOTES,
    ),
    FolderSet(
        "UC Merced Land Use",
        ("UCMerced_LandUse/Images|Images/agricultural",),
        r"(UCMerced_LandUse/)?Images/(?P<label>[a-z]+)/(?P=label)(?P<number>\d{2,})\.(tif|jpg|png)",
        known=r"(.*/)?readme\.txt",
    ),
    FolderSet(
        "NWPU-RESISC45",
        ("NWPU-RESISC45",),
        r"NWPU-RESISC45/(?P<label>[a-z_]+)/(?P=label)_(?P<number>\d{3})\.jpg",
        known=_NOTES,
    ),
    FolderSet(
        "DomainNet",
        ("clipart|quickdraw|infograph", "real|sketch|painting"),
        r"(?P<domain>clipart|infograph|painting|quickdraw|real|sketch)/(?P<label>[^/]+)/[^/]+\.(jpg|png)",
        labels=("label", "domain"),
        unless=tuple(
            f"{name}_train.txt" for name in ("clipart", "quickdraw", "infograph", "real", "sketch", "painting")
        ),
    ),
    FolderSet(
        "Office-31",
        ("amazon/images|dslr/images", "webcam/images|dslr/images"),
        r"(?P<domain>amazon|dslr|webcam)/images/(?P<label>[^/]+)/frame_(?P<number>\d{4})\.jpg",
        labels=("label", "domain"),
    ),
    FolderSet(
        "Office-Home",
        ("Art", "Clipart", "Product"),
        r"(?P<domain>Art|Clipart|Product|Real[ _]?World)/(?P<label>[^/]+)/(?P<number>\d{5})\.jpg",
        labels=("label", "domain"),
        known=r"ImageInfo\.csv|imagelist\.txt|" + _NOTES,
    ),
    FolderSet(
        "PACS",
        ("art_painting", "cartoon", "photo", "sketch"),
        r"(?P<domain>art_painting|cartoon|photo|sketch)/(?P<label>[^/]+)/[^/]+\.(jpg|png)",
        labels=("label", "domain"),
    ),
    FolderSet(
        "ImageNet-A, -O, -R or -Sketch",
        ("imagenet-a|imagenet-o|imagenet-r|imagenet-sketch|sketch",),
        r"(imagenet-[aor]|imagenet-sketch|sketch)/(?P<label>n\d{8})/[^/]+" + _IMAGE,
        known=_NOTES,
    ),
    FolderSet(
        "ImageNetV2",
        ("|".join(f"imagenetv2-{name}{end}" for name in _V2 for end in ("-format-val", "")),),
        r"imagenetv2-[^/]+/(?P<label>\d{1,3})/[0-9a-f]+\.(jpeg|jpg)",
    ),
    FolderSet(
        "ImageNet-C",
        ("|".join(f"{name}/{level}" for name in _CORRUPTIONS.split("|") for level in (1, 5)),),
        rf"(?P<corruption>{_CORRUPTIONS})/(?P<severity>[1-5])/(?P<label>n\d{{8}})/[^/]+\.jpeg",
        labels=("label", "corruption"),
    ),
    FolderSet(
        "ImageNet-C, one corruption",
        ("1", "2", "3", "4", "5"),
        r"(?P<severity>[1-5])/(?P<label>n\d{8})/[^/]+\.jpeg",
    ),
)

MASKS = (
    FolderSet(
        "KITTI semantics",
        ("training/image_2|train/image_2", "training/semantic|training/instance|train/semantic|train/instance"),
        r"(?P<split>training|testing|train|val|validation|test)/image_2/(?P<_name>[^/]+)\.png",
        beside={
            "mask": "{split}/semantic/{_name}.png",
            "instance_mask": "{split}/instance/{_name}.png",
            "colour_mask": "{split}/semantic_rgb/{_name}.png",
        },
        known=r"label_colors\.txt",
    ),
    FolderSet(
        "images and instances",
        ("train/images|val/images|test/images|training/images", "train/instances|val/instances|training/instances"),
        r"(?P<split>train|val|test|training|validation|testing)/images/(?P<_name>[^/]+)\.(png|jpg)",
        beside={"instance_mask": "{split}/instances/{_name}.png"},
        known=rf"(.*/)?labels\.txt|{_NOTES}",
        unless=("training/v2.0", "validation/v2.0", "training/labels", "train/labels", "val/labels"),
    ),
    FolderSet(
        "KITTI MOTS",
        ("training/image_02", "instances"),
        r"(?P<split>training|testing)/image_02/(?P<sequence>\d{4})/(?P<frame>\d{6})\.png",
        beside={"instance_mask": "instances/{sequence}/{frame}.png"},
    ),
    FolderSet(
        "Mapillary Vistas",
        ("training/images|validation/images", "training/instances|validation/instances|training/v2.0|validation/v2.0"),
        r"(?P<split>training|validation|testing)/images/(?P<_name>[^/]+)\.jpg",
        beside={
            "mask": "{split}/labels/{_name}.png",
            "instance_mask": "{split}/instances/{_name}.png",
            "panoptic_mask": "{split}/panoptic/{_name}.png",
            "mask_v1": "{split}/v1.2/labels/{_name}.png",
            "instance_mask_v1": "{split}/v1.2/instances/{_name}.png",
            "panoptic_mask_v1": "{split}/v1.2/panoptic/{_name}.png",
            "mask_v2": "{split}/v2.0/labels/{_name}.png",
            "instance_mask_v2": "{split}/v2.0/instances/{_name}.png",
            "panoptic_mask_v2": "{split}/v2.0/panoptic/{_name}.png",
            "polygons": "{split}/v2.0/polygons/{_name}.json",
        },
        known=rf"config[^/]*\.json|demo\.py|.*/panoptic/panoptic[^/]*\.json|requirements\.txt|{_NOTES}",
    ),
    FolderSet(
        "SYNTHIA",
        ("RGB", "GT/LABELS"),
        r"RGB/(?P<_name>[^/]+)\.png",
        beside={
            "mask": "GT/LABELS/{_name}.png",
            "colour_mask": "GT/COLOR/{_name}.png",
            "depth": "Depth/Depth/{_name}.png",
            "instances": "GT/TXT/{_name}.txt",
        },
        known=_NOTES,
    ),
    FolderSet(
        "DRIVE",
        (
            "training/images|test/images|testing/images|images",
            "training/1st_manual|test/1st_manual|testing/1st_manual|1st_manual",
        ),
        r"(?P<_top>((?P<split>training|test|testing)/)?)images/(?P<number>\d\d)_(?P<_end>training|test)\.(tif|png)",
        beside={
            "vessels": "{_top}1st_manual/{number}_manual1.gif",
            "vessels_2": "{_top}2nd_manual/{number}_manual2.gif",
            "field_of_view": "{_top}mask/{number}_{_end}_mask.gif",
        },
        known=_NOTES,
    ),
    FolderSet(
        "CHASE_DB1",
        ("Image_01L.jpg|Image_01R.jpg|Image_02L.jpg|Image_02R.jpg",),
        r"Image_(?P<number>\d\d)(?P<eye>[LR])\.jpg",
        labels=("eye",),
        beside={"vessels": "Image_{number}{eye}_1stHO.png", "vessels_2": "Image_{number}{eye}_2ndHO.png"},
        required=("vessels",),
        known=_NOTES,
    ),
    FolderSet(
        "CamVid of SegNet",
        ("train|test|val", "trainannot|testannot|valannot", "train.txt|test.txt|val.txt"),
        r"(?P<split>train|val|test)/(?P<_name>[^/]+)\.(png|jpg)",
        beside={"mask": "{split}annot/{_name}.png"},
        required=("mask",),
        known=rf"(train|val|test|label_colors)\.txt|{_NOTES}",
    ),
    FolderSet(
        "COCO-Stuff",
        ("stuffthingmaps", "train2017|val2017|images/train2017|images/val2017"),
        r"(images/)?(?P<split>(train|val)2017)/(?P<_name>\d{12})\.jpg",
        beside={"mask": "stuffthingmaps/{split}/{_name}.png"},
        required=("mask",),
        known=rf"labels\.txt|labels\.md|{_NOTES}",
    ),
    FolderSet(
        "ADE20K, full",
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
        known=rf"index_ade20k\.(mat|pkl)|objects\.txt|objectInfo[^/]*|{_NOTES}",
    ),
)

_BANDS = ("01", "03", "04", "05", "06", "07", "08", "8A", "09", "10", "11", "12")
_OSCD_MARKERS = ("*[Ii]mages/train.txt|Onera*Labels", "*[Ii]mages/test.txt|Onera*Images")
_OSCD_MASKS = {
    "mask": "labels/{city}/cm/cm.png",
    "mask_train": "Onera Satellite Change Detection dataset - Train Labels/{city}/cm/cm.png",
    "mask_test": "Onera Satellite Change Detection dataset - Test Labels/{city}/cm/cm.png",
}
_AREA = r"(?P<_top>((?P<split>train|test)/)?([^/]*AOI_\d+_[^/]+/)?)"
_ROADS = ("roads", "roads_speed")

PAIRS = (
    FolderSet(
        "xView2 (xBD)",
        (
            "train/images|test/images|hold/images|tier3/images|images",
            "|".join(f"{split}{name}" for split in ("train/", "test/", "hold/", "tier3/", "") for name in
                     ("labels", "targets")),
        ),
        r"(?P<_top>((?P<split>train|test|hold|tier3)/)?)images/(?P<disaster>[a-z\d-]+)_(?P<number>\d{8})_pre_disaster"
        r"\.(?P<_end>png|tif)",
        labels=("disaster",),
        beside={
            "after": "{_top}images/{disaster}_{number}_post_disaster.{_end}",
            "mask": "{_top}targets/{disaster}_{number}_pre_disaster_target.png",
            "mask_after": "{_top}targets/{disaster}_{number}_post_disaster_target.png",
            "buildings": "{_top}labels/{disaster}_{number}_pre_disaster.json",
            "buildings_after": "{_top}labels/{disaster}_{number}_post_disaster.json",
        },
        required=("after",),
        known=_NOTES,
    ),
    FolderSet(
        "OSCD",
        _OSCD_MARKERS,
        r"(?P<_top>[^/]*[Ii]mages)/(?P<city>[^/]+)/pair/img1\.png",
        labels=("city",),
        beside={"after": "{_top}/{city}/pair/img2.png", **_OSCD_MASKS},
        required=("after",),
        left=r".*/(imgs_[12](_rect)?/.*|cm/[^/]+-cm\.tif)",
        known=rf".*/(train|test|dates)\.txt|.*\.geojson|{_NOTES}",
    ),
    FolderSet(
        "OSCD, its bands",
        _OSCD_MARKERS,
        r"(?P<_top>[^/]*[Ii]mages)/(?P<city>[^/]+)/imgs_1_rect/(?P<_band>B02)\.tif",
        labels=("city",),
        beside={
            **{f"b{band.lower()}": f"{{_top}}/{{city}}/imgs_1_rect/B{band}.tif" for band in _BANDS},
            "after": "{_top}/{city}/imgs_2_rect/B02.tif",
            **{f"after_b{band.lower()}": f"{{_top}}/{{city}}/imgs_2_rect/B{band}.tif" for band in _BANDS},
            **_OSCD_MASKS,
        },
        required=("after",),
        left=r".*/(imgs_[12]/.*|cm/[^/]+-cm\.tif)",
        known=rf".*/(train|test|dates)\.txt|.*\.geojson|{_NOTES}",
    ),
    FolderSet(
        "change detection: A, B and label",
        ("train/A|val/A|test/A|A", "train/B|val/B|test/B|B", "train/label|val/label|test/label|label"),
        r"(?P<_top>((?P<split>train|val|test)/)?)A/(?P<_name>[^/]+\.(png|jpg|tif))",
        beside={"after": "{_top}B/{_name}", "mask": "{_top}label/{_name}"},
        required=("after", "mask"),
        known=rf"list/[^/]+\.txt|{_NOTES}",
    ),
    FolderSet(
        "BigEarthNet",
        ("S1*_IW_*|S2*_MSIL*",),
        r"(?P<_patch>S[12][AB]_[^/]+)/(?P=_patch)_(B02|VV)\.tif",
        beside={
            **{f"b{band.lower()}": f"{{_patch}}/{{_patch}}_B{band}.tif" for band in
               ("01", "03", "04", "05", "06", "07", "08", "8A", "09", "11", "12")},
            "vh": "{_patch}/{_patch}_VH.tif",
            "json": "{_patch}/{_patch}_labels_metadata.json",
        },
    ),
    FolderSet(
        "fMoW",
        ("|".join(f"{split}/{name}" for split in ("train", "val", "test_gt") for name in ("airport", "zoo")),),
        r"(?P<_top>(?P<split>train|val|test|seq|test_gt|seq_gt)/(?P<label>[^/]+)/(?P<_place>[^/]+)/(?P=_place)"
        r"_(?P<number>\d+)_(?P<_kind>rgb|msrgb|ms))\.(jpg|tif)",
        beside={"json": "{_top}.json"},
    ),
    FolderSet(
        "SpaceNet 1",
        ("3band", "8band|geojson"),
        r"3band/3band_(?P<_name>AOI_\d+_[A-Za-z]+_img\d+)\.tif",
        beside={"bands": "8band/8band_{_name}.tif", "buildings": "geojson/Geo_{_name}.geojson"},
        known=rf"(vectordata|summaryData)/.*|{_NOTES}",
    ),
    FolderSet(
        "SpaceNet 2 and 3",
        ("RGB-PanSharpen|*/RGB-PanSharpen", "|".join(
            f"{top}geojson/{name}" for top in ("", "*/") for name in ("buildings", "spacenetroads"))),
        _AREA + r"RGB-PanSharpen/[A-Za-z\d_-]*?(?P<_name>AOI_\d+_[A-Za-z]+_(Train_)?img\d+)\.tif",
        beside={
            "buildings": "{_top}geojson/buildings/buildings_{_name}.geojson",
            "roads": "{_top}geojson/spacenetroads/spacenetroads_{_name}.geojson",
            "pan": "{_top}PAN/PAN_{_name}.tif",
            "mul": "{_top}MUL/MUL_{_name}.tif",
            "mul_pansharpen": "{_top}MUL-PanSharpen/MUL-PanSharpen_{_name}.tif",
        },
        known=rf"(.*/)?summaryData/.*|{_NOTES}",
    ),
    FolderSet(
        "SpaceNet 3, 5 and 6",
        ("|".join(f"{top}PS-RGB" for top in ("", "*/", "train/*/")), "|".join(
            f"{top}geojson_{name}" for top in ("", "*/", "train/*/") for name in ("buildings", *_ROADS))),
        _AREA + r"PS-RGB/(?P<_set>SN\d_\w+?_AOI_\d+_[A-Za-z]+)_PS-RGB_(?P<_tile>\w+)\.tif",
        beside={
            **{name.lower().replace("-", "_"): f"{{_top}}{name}/{{_set}}_{name}_{{_tile}}.tif" for name in
               ("PAN", "MS", "PS-MS", "RGBNIR", "PS-RGBNIR", "SAR-Intensity")},
            "buildings": "{_top}geojson_buildings/{_set}_Buildings_{_tile}.geojson",
            **{name: f"{{_top}}geojson_{name}/{{_set}}_geojson_{name}_{{_tile}}.geojson" for name in _ROADS},
        },
        known=rf"(.*/)?(SummaryData|summaryData)/.*|(.*/)?[^/]*\.csv|{_NOTES}",
    ),
)  # fmt: skip

MARKET1501 = make_folder_set_kind("market1501", "Market-1501 as published", [_MARKET])
DUKEMTMC = make_folder_set_kind("dukemtmc", "DukeMTMC-reID as published", [_DUKE])
MARS = make_folder_set_kind("mars", "MARS as published", [_MARS])
OMNIGLOT = make_folder_set_kind("omniglot", "Omniglot as published", [_OMNIGLOT, _OMNIGLOT_PART])
PUBLISHED = make_folder_set_kind(
    "published", "a published set recognised by its folders and file names", [*CLASSES, *MASKS, *PAIRS]
)
