"""COCO: what its files of annotations say of each image, together by split; and what can be wrong with them."""

from __future__ import annotations

import io
import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from packstore import PackedDataset, coco_masks, convert, verify
from packstore.sources import Entry, ask_about_left, open_source
from tests.internals import AmbiguousSourceError, Role, SampleError, SourceError
from tests.makers.annotated import CATS, POINTS, coco, coco_image, coco_object, fill, jpeg
from tests.makers.command import run
from tests.makers.images import encode
from tests.makers.sources import FileSuite, look, not_packed, prove, question, refused


class TestCoco(FileSuite):
    kind = "coco"
    bytes_per_sample = 400

    def make(self, folder: Path, samples: int) -> Path:
        return coco(folder, samples)

    def change(self, path: Path) -> None:
        change(path / "annotations/captions_val2017.json", lambda document: document["annotations"].pop())

    def spoil(self, path: Path, entry: Entry) -> bool:
        def shorten(document: Any) -> None:
            for annotation in document["annotations"]:
                if entry.key.endswith(f"{annotation['image_id']:012}.jpg"):
                    annotation["bbox"] = [1]

        change(path / "annotations/instances_train2017.json", shorten)
        return True


def change(file: Path, how: Any) -> None:
    document = json.loads(file.read_text())
    how(document)
    file.write_text(json.dumps(document))


def plain(root: Path, images: list[Any], annotations: list[Any], categories: Any = CATS) -> Path:
    """A single file of annotations beside its images."""
    document = {"images": images, "annotations": annotations, "categories": categories}
    numbers = [image["id"] for image in images if isinstance(image.get("id"), int)]
    files: dict[str, str | bytes] = {f"{number:012}.jpg": jpeg(number) for number in numbers}
    return fill(root, {**files, "annotations.json": json.dumps(document)})


def test_what_is_kept(tmp_path: Path) -> None:
    root = coco(tmp_path / "set")
    convert(root, tmp_path / "x.h5")
    columns = ("key", "boxes", "labels", "keypoints", "captions", "segments", "json")
    ds = PackedDataset(tmp_path / "x.h5", "train", columns=columns, keep_crowds=True)
    assert [(split.name, len(split)) for split in ds.manifest.splits] == [("train", 4), ("val", 2)]
    classes = next(column.classes for column in ds.manifest.columns if column.name == "labels")
    assert classes == ("person", "car", "dog")  # in the order of the ids 1, 3, 18
    key, boxes, labels, keypoints, captions, segments, document = ds[1]
    assert key == "train2017/000000000001.jpg"
    assert boxes.tolist() == [[1.5, 1, 6, 7.5]] * 2
    assert labels.tolist() == [2, 1]
    assert keypoints.tolist() == [[[1, 2, 2], [3.5, 4, 1]], [[0, 0, 0]] * 2]
    assert captions == ["caption 0 of 1", "caption 1 of 1"]
    assert document["image"] == coco_image(1)
    assert document["captions"] == [{"id": 5}, {"id": 6}]
    first, crowd = document["annotations"]
    told = {**coco_object(10, 1), "keypoints": [1, 2, 2, 3.5, 4, 1], "num_keypoints": 2}
    assert told == {**first, "image_id": 1, "segmentation": segments[0]}
    assert (crowd["iscrowd"], crowd["id"], crowd["area"]) == (1, 11, 14.5)
    assert coco_masks(segments, 8, 16).sum((1, 2)).tolist()[1] == 20
    assert ds[0][1].shape == (0, 4)  # without objects, and not lost
    assert verify(tmp_path / "x.h5", against=root).problems == ()


IDS = {
    "float": float,
    "text": str,
    "text of a float": lambda number: f"{number}.0",
    "mixed": lambda number: (int, float, str)[number % 3](number),
}


@pytest.mark.parametrize("form", IDS)
@pytest.mark.parametrize("places", ["references", "ids", "both"])
def test_ids_match_by_value(places: str, form: str, tmp_path: Path) -> None:
    """Ids of images, categories, annotations and segments, in all kinds of files."""
    roots = [panoptic(tmp_path / name) for name in ("a", "b")]
    names = {"references": ("image_id", "category_id"), "ids": ("id",), "both": ("image_id", "category_id", "id")}

    def write_ids(value: Any) -> Any:
        if isinstance(value, list):
            return [write_ids(each) for each in value]
        if isinstance(value, dict):
            wanted = names[places]
            return {k: IDS[form](v) if k in wanted else write_ids(v) for k, v in value.items() if k != "licenses"}
        return value

    for file in roots[1].glob("annotations/*.json"):
        file.write_text(json.dumps(write_ids(json.loads(file.read_text()))))
    found = []
    for root in roots:
        survey = look(root)
        samples = survey.samples
        left = survey.ledger.passed_over
        json_of = [values.pop("json") for values in samples.values()]
        assert any("annotations" in each for each in json_of)
        found.append((survey.columns, survey.splits, left, samples))
    assert found[0] == found[1]


@pytest.mark.parametrize("image", ["a", "0"])
def test_other_texts_are_ids_as_they_are(image: str, tmp_path: Path) -> None:
    images = [{"id": f"{image}{n}", "file_name": f"{n:012}.jpg"} for n in (1, 2)]
    root = plain(tmp_path, images, [coco_object(1, f"{image}2")])
    fill(root, {f"{n:012}.jpg": jpeg(n) for n in (1, 2)})
    assert [*map(len, look(root).each("boxes"))] == [0, 1]


@pytest.mark.parametrize("image", [True, False, None, [1], {"id": 1}, 1.5, 1e300])
@pytest.mark.parametrize("kind", ["instances", "captions", "panoptic", "person_keypoints", "stuff"])
def test_an_annotation_whose_image_id_is_no_id_is_an_error(kind: str, image: Any, tmp_path: Path) -> None:
    number = {"id": 1} if kind == "captions" else {"id": 1, "category_id": 18, "bbox": [1, 1, 2, 2]}
    document = {
        "images": [coco_image(1)],
        "annotations": [number | {"image_id": 1}, number | {"id": 7, "image_id": image}, number | {"image_id": "1"}],
        "categories": CATS,
    }
    if kind == "panoptic":
        document["annotations"] = [{"id": 7, "image_id": image, "file_name": "1.png", "segments_info": []}]
    fill(tmp_path, {f"annotations/{kind}_train2017.json": json.dumps(document), "train2017/000000000001.jpg": jpeg(1)})
    said = rf"{kind}_train2017\.json: annotation 7 has the image_id {re.escape(repr(image))}; expected a whole number"
    refused(SourceError, tmp_path, said)


@pytest.mark.parametrize("image", [7, "01", "b"])
@pytest.mark.parametrize("kind", ["instances", "captions", "panoptic"])
def test_annotations_of_no_image_are_an_error_if_most_are(kind: str, image: Any, tmp_path: Path) -> None:
    root = panoptic(tmp_path)
    file = root / f"annotations/{kind}_train2017.json"
    document = json.loads(file.read_text())
    number = len(document["annotations"])
    for spoilt in range(number):
        document["annotations"][spoilt]["image_id"] = image
        file.write_text(json.dumps(document))
        if 2 * (spoilt + 1) > number:
            said = (
                rf"{kind}_train2017\.json: {spoilt + 1} of {number} annotations have the image_id of no image, such as"
            )
            caught = refused(SourceError, root, said)
            assert repr(image) in str(caught)
        else:
            seen = look(root)
            left = seen.ledger.passed_over
            assert left["annotations of images that are not listed"] == spoilt + 1


@pytest.mark.parametrize("category", [7, "07", 1.5, None, [18]])
def test_annotations_of_no_category_are_an_error_if_most_are(category: Any, tmp_path: Path) -> None:
    objects = [coco_object(1, 1, category_id=category), coco_object(2, 1, category_id=category), coco_object(3, 1)]
    root = plain(tmp_path, [coco_image(1)], objects)
    refused(SourceError, root, r"2 of 3 annotations have the category_id of no category")


def test_categories_of_another_split_count(tmp_path: Path) -> None:
    root = coco(tmp_path)
    change(root / "annotations/instances_val2017.json", lambda it: it.pop("categories"))
    seen = look(root)
    assert [len(seen.samples[entry.key]["labels"]) for entry in seen.of("val")] == [2, 2]


def test_images_come_in_the_order_of_their_ids_as_from_torchvision(tmp_path: Path) -> None:
    seen = look(coco(tmp_path))
    assert seen.keys == sorted(seen.keys)
    assert seen.evidence.startswith("annotations/instances_train2017.json, annotations/person_keypoints_")


@pytest.mark.parametrize(
    ("image", "annotations"),
    [
        ("images/train2017/{}", "annotations/instances_train2017.json"),
        ("images/train/{}", "annotations/instances_train.json"),
        ("train/images/{}", "annotations/train.json"),
        ("images/{}", "annotations/instances_default.json"),
        ("data/{}", "labels.json"),
        ("train/{}", "train/_annotations.coco.json"),
        ("{}", "_annotations.coco.json"),
        ("{}", "anything.json"),
        ("deep/{}", "annotations/train.json"),
    ],
)
def test_where_images_may_lie(image: str, annotations: str, tmp_path: Path) -> None:
    name = "deep/0.jpg" if image.startswith("deep") else "0.jpg"
    document = {"images": [{"id": 4, "file_name": name}], "annotations": [coco_object(1, 4)], "categories": CATS}
    fill(tmp_path, {image.format("0.jpg"): jpeg(1), annotations: json.dumps(document)})
    seen = look(tmp_path)
    (entry,) = seen.entries
    assert (seen.kind, entry.key, entry.split) == (
        "coco", image.format("0.jpg"), "train" if "train" in annotations else "")  # fmt: skip
    assert seen.each("labels") == [[1]]


def test_what_is_missing_or_not_named_is_said(tmp_path: Path) -> None:
    coco(tmp_path)
    files: dict[str, str | bytes] = {"train2017/extra.jpg": jpeg(9), "test2017/1.jpg": jpeg(8), "docs/x.txt": ""}
    fill(tmp_path, files)
    shutil.rmtree(tmp_path / "val2017")
    (tmp_path / "train2017/000000000001.jpg").unlink()
    change(tmp_path / "annotations/instances_train2017.json", lambda it: it["annotations"].append(coco_object(7, 99)))
    with closing(open_source(tmp_path)) as source:
        survey = source.survey()
        assert dict(survey.splits) == {"train": 4}
        assert dict(survey.ledger.passed_over) == {
            "files of annotations of images that are missing": 3,
            "annotations of images that are not listed": 1,
            "images that no annotations name": 2,
            "not images (.txt)": 1,
        }
        with pytest.raises(SampleError, match="No such file"):
            source.read(list(source.entries())[1])


def test_images_for_which_nobody_looked_for_objects_have_no_boxes(tmp_path: Path) -> None:
    coco(tmp_path)
    fill(tmp_path, {"annotations/image_info_test2017.json": json.dumps({"images": [coco_image(50)]})})
    fill(tmp_path, {"test2017/000000000050.jpg": jpeg(50)})
    values = look(tmp_path).samples["test2017/000000000050.jpg"]
    assert values["boxes"] is values["labels"] is values["captions"] is None


SEGMENTS = [
    {"id": 7, "category_id": 18, "area": 9, "bbox": [0, 0, 2, 2], "iscrowd": 0},
    {"id": 1 + 2 * 256 + 3 * 65536, "category_id": 187, "area": 4, "bbox": [2, 2, 2, 2], "iscrowd": 0},
]
THINGS = [*CATS, {"id": 187, "name": "sky-other-merged", "supercategory": "sky", "isthing": 0, "color": [1, 2, 3]}]


def panoptic_mask() -> bytes:
    """A mask of the two segments of :data:`SEGMENTS`, of 9 and 4 pixels, and no segment elsewhere."""
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:3, :3] = 7, 0, 0
    pixels[4:6, 4:6] = 1, 2, 3
    return encode(PIL.Image.fromarray(pixels), "PNG")


def panoptic(root: Path, samples: int = 6, masks: str = "annotations/panoptic_train2017") -> Path:
    """Panoptic masks beside the objects of :func:`coco`; the first image has no mask."""
    coco(root, samples)
    images = [coco_image(n) for n in range(samples - 2)]
    head = {"info": {}, "licenses": [], "images": images, "categories": THINGS}
    entries = [{"image_id": n, "file_name": f"{n:012}.png", "segments_info": SEGMENTS} for n in range(1, samples - 2)]
    files: dict[str, str | bytes] = {f"{masks}/{n:012}.png": panoptic_mask() for n in range(1, samples - 2)}
    files["annotations/panoptic_train2017.json"] = json.dumps(head | {"annotations": entries})
    return fill(root, files)


@pytest.mark.slow
@pytest.mark.parametrize("masks", ["annotations/panoptic_train2017", "panoptic_train2017"])
def test_panoptic_masks_go_with_their_images(masks: str, tmp_path: Path) -> None:
    root = panoptic(tmp_path / "set", masks=masks)
    with closing(open_source(root)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert survey.ledger.count(Role.LEFT) == 0
        assert survey.ledger.total == sum(1 for file in root.rglob("*") if file.is_file())
        classes = {column.name: column.classes for column in survey.columns if column.classes}
        found = [source.read(entry).values for entry in source.entries("train")]
        val = source.read(next(source.entries("val"))).values
    assert classes == {
        "labels": ("person", "car", "dog"),
        "segment_labels": ("car", "dog", "sky-other-merged"),
    }
    assert found[0]["panoptic_mask"] is found[0]["segment_ids"] is found[0]["segment_labels"] is None
    assert val["panoptic_mask"] is val["segment_ids"] is None
    first = found[1]
    assert first["boxes"] == [[1.5, 1, 6, 7.5]] * 2
    assert (first["segment_ids"], first["segment_labels"]) == ([7, 197121], [1, 2])
    assert first["panoptic_mask"] == panoptic_mask()
    assert first["json"]["panoptic"] == {"file_name": "000000000001.png", "segments_info": SEGMENTS}
    pixels = np.asarray(PIL.Image.open(io.BytesIO(first["panoptic_mask"]))).astype(int) @ [1, 256, 65536]
    assert [(pixels == number).sum() for number in first["segment_ids"]] == [9, 4]
    prove(root, tmp_path / "x.h5", decode=True)


def test_each_pixel_of_a_panoptic_mask_is_the_id_of_its_segment(tmp_path: Path) -> None:
    """The format says: id = R + 256 G + 65,536 B (https://cocodataset.org/#format-data)."""
    ids = [1, 255, 256, 257, 65_535, 65_536, 65_793, 8_388_608, 16_777_215]
    drawn = np.random.default_rng(7).choice([0, *ids], (8, 16))
    pixels = np.stack([drawn % 256, drawn // 256 % 256, drawn // 65_536], -1).astype(np.uint8)
    segments = [{"id": each, "category_id": (3, 18)[n % 2], "area": int((drawn == each).sum()), "iscrowd": 0}
                for n, each in enumerate(ids)]  # fmt: skip
    entry = {"image_id": 0, "file_name": "0.png", "segments_info": segments}
    document = {"images": [coco_image(0)], "annotations": [entry], "categories": CATS}
    mask = encode(PIL.Image.fromarray(pixels), "PNG")
    files = {f"train2017/{0:012}.jpg": jpeg(0), "panoptic_train2017/0.png": mask}
    fill(tmp_path / "set", {**files, "annotations/panoptic_train2017.json": json.dumps(document)})
    convert(tmp_path / "set", tmp_path / "x.h5")
    columns = ("panoptic_mask", "segment_ids", "segment_labels")
    packed, found, labels = PackedDataset(tmp_path / "x.h5", "train", columns=columns)[0]
    values = np.asarray(packed).astype(np.int64)
    values = values if values.shape[-1] == 3 else np.moveaxis(values, 0, -1)
    assert ((values * [1, 256, 65_536]).sum(-1) == drawn).all()
    assert list(found) == ids
    assert labels.tolist() == [n % 2 for n in range(len(ids))]
    assert [int((drawn == each).sum()) for each in found] == [each["area"] for each in segments]


def test_stuff_alone_is_objects_and_beside_objects_is_left(tmp_path: Path) -> None:
    coco(tmp_path)
    stuff = {"images": [coco_image(n) for n in range(4)], "categories": THINGS[2:]}
    stuff["annotations"] = [coco_object(900 + n, n, category_id=187) for n in range(4)]
    fill(tmp_path, {"annotations/stuff_train2017.json": json.dumps(stuff)})
    with closing(open_source(tmp_path)) as source:
        assert [*source.survey().ledger.names(Role.LEFT)] == ["annotations/stuff_train2017.json"]
        with pytest.raises(AmbiguousSourceError, match=r"stuff_train2017\.json"):
            ask_about_left(source, source.survey())
    seen = look(tmp_path, ignore=["instances*", "person*", "captions*"])
    values = seen.values[0]
    assert (values["boxes"], values["labels"]) == ([[1.5, 1, 6, 7.5]], [0])


def test_panoptic_masks_alone(tmp_path: Path) -> None:
    panoptic(tmp_path)
    seen = look(tmp_path, ignore=["instances*", "person*", "captions*"])
    names = [column.name for column in seen.columns if not column.name.endswith("_valid")]
    assert names == ["segment_ids", "segment_labels", "panoptic_mask", "json"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"file_name": "../x.png"}, "not a path within the source"),
        ({"file_name": None, "image_id": 1}, "None is missing"),
        ({"image_id": 2}, "two panoptic masks of"),
        ({"segments_info": None}, "the segments_info None"),
        ({"segments_info": [{"id": "x", "category_id": 18}]}, "the segments_info"),
        ({"segments_info": [{"id": 7, "category_id": 5}]}, "category_id 5; expected one of the categories"),
        ({"file_name": "gone.png"}, "gone.png is missing"),
    ],
)
def test_a_panoptic_mask_that_is_wrong_is_said(entry: dict[str, Any], said: str, tmp_path: Path) -> None:
    root = panoptic(tmp_path)
    change(root / "annotations/panoptic_train2017.json", lambda document: document["annotations"][0].update(entry))
    with pytest.raises((SourceError, SampleError), match=said):
        assert look(root).values


def test_panoptic_masks_that_are_not_there_are_counted(tmp_path: Path) -> None:
    root = panoptic(tmp_path)
    shutil.rmtree(root / "annotations/panoptic_train2017")
    assert look(root).ledger.passed_over["panoptic masks that are missing"] == 3


def test_captions_alone(tmp_path: Path) -> None:
    coco(tmp_path)
    for split in ("train", "val"):
        for kind in ("instances", "person_keypoints"):
            (tmp_path / f"annotations/{kind}_{split}2017.json").unlink()
    seen = look(tmp_path)
    assert [*seen.classes] == ["captions", "captions_valid", "json"]
    assert seen.values[0]["captions"] == ["caption 0 of 0", "caption 1 of 0"]


def test_names_that_several_categories_have_get_their_ids(tmp_path: Path) -> None:
    categories = [{"id": 9, "name": "crane"}, {"id": 2, "name": "crane"}, {"id": 5, "name": "bat"}]
    root = plain(tmp_path, [coco_image(1)], [coco_object(1, 1, category_id=9)], categories)
    seen = look(root)
    assert seen.classes["labels"] == ("crane (2)", "bat", "crane (9)")
    assert seen.values[0]["labels"] == [2]


@pytest.mark.parametrize(
    ("images", "annotations", "categories", "said"),
    [
        ([coco_image(1), coco_image(1) | {"file_name": "x.jpg"}], [], CATS, "two images have one id"),
        ([coco_image(1), coco_image(1) | {"id": 2}], [], CATS, "000000000001.jpg is annotated twice"),
        ([{"id": 1}], [], CATS, "found None as the name of an image"),
        ([{"id": [1], "file_name": "x"}], [], CATS, "has no id"),
        ([coco_image(1) | {"file_name": "../x.jpg"}], [], CATS, "not a path within the source"),
        ([coco_image(1) | {"file_name": "/etc/passwd"}], [], CATS, "are missing: passwd"),
        ([coco_image(1) | {"file_name": "\ud800.jpg"}], [], CATS, "surrogates not allowed"),
        ([coco_image(1), 5], [], CATS, "'images' is no list of objects"),
        (None, [], CATS, "'images' is no list of objects"),
        ([coco_image(1)], {"a": 1}, CATS, "'annotations' is no list of objects"),
        ([coco_image(1)], [], [{"id": "x", "name": "y"}], "a category without a number"),
        ([coco_image(1)], [], [{"id": 1, "name": "y"}, {"id": 1, "name": "z"}], "category 1 is 'z', and elsewhere 'y'"),
    ],
)
def test_what_is_not_coco(images: Any, annotations: Any, categories: Any, said: str, tmp_path: Path) -> None:
    plain(tmp_path, [image for image in images or () if isinstance(image, dict)], [], categories)
    change(tmp_path / "annotations.json", lambda it: it.update(images=images, annotations=annotations))
    refused(SourceError, tmp_path, said)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"bbox": [1, 2, 3]}, r"annotation 1 has the bbox \[1, 2, 3\]; expected 4 numbers"),
        ({"bbox": [1, 2, 3, "x"]}, "expected 4 numbers"),
        ({"bbox": [1, 2, 3, 1e99]}, "expected 4 numbers"),
        ({"bbox": None}, "expected 4 numbers"),
        ({"category_id": 7}, "category_id 7; expected one of the categories"),
        ({"category_id": [18]}, "expected one of the categories"),
        ({"bbox": [1, 2, float("nan"), 4]}, "expected 4 numbers"),
    ],
)
def test_a_bad_annotation_is_a_bad_sample(more: Any, said: str, tmp_path: Path) -> None:
    objects = [coco_object(1, 1, **more), coco_object(2, 1), coco_object(3, 1)]
    with closing(open_source(plain(tmp_path, [coco_image(1)], objects))) as source:
        with pytest.raises(SampleError, match=said) as caught:
            source.read(next(source.entries()))
        assert caught.value.key == "000000000001.jpg"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"images": [', "is not valid JSON"),
        ('{"images": [], "annotations": [' + "[" * 100_000, "nested too deeply"),
        ('{"images": [{"file_name": "\udcff"}]', "not UTF-8"),
    ],
)
def test_a_file_that_is_no_json(text: str, said: str, tmp_path: Path) -> None:
    data = text.encode("utf-8", "surrogateescape")
    fill(tmp_path, {"train2017/1.jpg": jpeg(1), "annotations/instances_train2017.json": data})
    refused(SourceError, tmp_path, said)


def of_images(*numbers: int, **more: Any) -> str:
    """A file of annotations of some images."""
    images = [coco_image(number) for number in numbers]
    objects = [coco_object(number, number) for number in numbers]
    return json.dumps({"images": images, "annotations": objects, "categories": CATS} | more)


def photos(folder: str, *numbers: int) -> dict[str, str | bytes]:
    return {f"{folder}/{n:012}.jpg": jpeg(n) for n in numbers}


def test_a_list_of_images_alone_beside_keypoints(tmp_path: Path) -> None:
    both = json.dumps({"images": [coco_image(1), coco_image(2)], "categories": CATS})
    files = {"annotations/train.json": both, "annotations/person_keypoints_train.json": of_images(1)}
    fill(tmp_path, photos("images", 1, 2) | files)
    change(tmp_path / "annotations/person_keypoints_train.json", lambda each: each["annotations"][0].update(id=[]))
    with closing(open_source(tmp_path)) as source:
        values = [source.read_values(entry.ref) for entry in source.entries()]
    assert [len(each.get("boxes", ())) for each in values] == [1, 0]


@pytest.mark.parametrize(
    ("first", "second", "splits"),
    [
        ("a.json", "b.json", ("a", "b")),
        ("annotations/cats.json", "annotations/dogs.json", ("cats", "dogs")),
        ("annotations/instances_train2014.json", "annotations/instances_train2017.json", ("train2014", "train2017")),
        ("one/cats.json", "two/dogs.json", ("cats", "dogs")),
    ],
)
def test_two_sets_in_one_folder_are_splits(first: str, second: str, splits: tuple[str, str], tmp_path: Path) -> None:
    fill(tmp_path, {first: of_images(0, 1), second: of_images(2, 3), **photos("images", 0, 1, 2, 3)})
    seen = look(tmp_path)
    assert dict(seen.splits) == dict.fromkeys(splits, 2)
    keys = [[entry.key for entry in seen.of(split)] for split in splits]
    assert keys == [[f"images/{n:012}.jpg" for n in pair] for pair in ((0, 1), (2, 3))]


def test_annotations_of_years_whose_images_are_not_there(tmp_path: Path) -> None:
    """As where ``annotations_trainval2014.zip`` and ``…2017.zip`` were unpacked in one folder."""
    coco(tmp_path)
    expected = look(tmp_path).entries
    for split, n in (("train", 77), ("val", 78)):
        fill(tmp_path, {f"annotations/instances_{split}2014.json": of_images(n)})
    seen = look(tmp_path)
    assert seen.entries == expected
    ledger = seen.ledger
    assert ledger.left == {"files of annotations of images that are missing": 2}
    assert set(ledger.names(Role.LEFT)) == {f"annotations/instances_{split}2014.json" for split in ("train", "val")}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["annotations.json", "_annotations.coco.json", "instances.json"])
def test_two_sets_in_folders_of_one_name_are_a_question(name: str, tmp_path: Path) -> None:
    for folder, n in (("one", 0), ("two", 1)):
        fill(tmp_path, {f"{folder}/{name}": of_images(n), **photos(f"{folder}/images", n)})
    asked = question(tmp_path, "whose names have no split: give one of their folders")
    assert [answer.source for answer in asked.answers] == [tmp_path / "one", tmp_path / "two"]
    for answer, n in zip(asked.answers, (0, 1), strict=True):
        assert answer.source is not None
        assert look(answer.source).keys == [f"images/{n:012}.jpg"]
    assert run("info", tmp_path).returncode == 2
    shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path)
    question(tmp_path / "x.zip", "give one of their folders")


def test_two_sets_with_the_same_images_or_other_classes_are_questions(tmp_path: Path) -> None:
    fill(tmp_path, {"a.json": of_images(0, 1), "b.json": of_images(1, 2), **photos("images", 0, 1, 2)})
    question(tmp_path, r"01\.jpg is annotated twice, by a\.json and b\.json")
    wolf = [{"id": 18, "name": "wolf"}]
    fill(tmp_path, {"b.json": of_images(2, categories=wolf)})
    caught = question(tmp_path, "category 18 is 'wolf', and elsewhere 'dog': leave one")
    assert {answer.options for answer in caught.answers} == {("--ignore", "/a.json"), ("--ignore", "/b.json")}


@pytest.mark.parametrize("place", ["https://host/images/", "/home/me/images/", "C:\\images\\", "s3://bucket/"])
def test_of_urls_and_absolute_paths_the_last_part_counts(place: str, tmp_path: Path) -> None:
    images = [{**coco_image(n), "file_name": f"{place}{n:012}.jpg"} for n in range(2)]
    root = plain(tmp_path, images, [coco_object(n, n) for n in range(2)])
    assert look(root, kind="coco").keys == [f"{n:012}.jpg" for n in range(2)]


@pytest.mark.parametrize(
    "name",
    ["../out.jpg", "/etc/passwd.jpg", "a/../../out.jpg", "..\\out.jpg", "C:\\out.jpg", "\\out.jpg", "a\0.jpg", ".."],
)
@pytest.mark.parametrize("archive", [False, True])
def test_names_that_lead_out_of_the_source_are_refused(archive: bool, name: str, tmp_path: Path) -> None:
    image = coco_image(0) | {"file_name": name}
    path = fill(
        tmp_path / "set", {"annotations/instances_train.json": of_images(0, images=[image]), **photos("images", 0)}
    )
    (tmp_path / "out.jpg").write_bytes(jpeg(9))
    if archive:
        path = Path(shutil.make_archive(str(tmp_path / "x"), "zip", path))
    said = r"names .*, which is not a path within the source|the images of annotations/instances_train"
    refused(SourceError, path, said)


def test_a_json_file_for_each_image_is_not_taken(tmp_path: Path) -> None:
    text = '{"annotations": [{"image_id": 1}], "images": []}'
    fill(
        tmp_path,
        {f"{n}.{suffix}": text if suffix == "json" else jpeg(n) for n in range(20) for suffix in ("jpg", "json")},
    )
    question(tmp_path, r"a \.json file for each image")


def test_other_json_beside_images_is_not_taken(tmp_path: Path) -> None:
    fill(tmp_path, {"cat/1.jpg": jpeg(1), "config.json": '{"images": [], "size": 3}'})
    assert look(tmp_path).kind == "imagefolder"


def test_boxes_are_float32_of_the_sum(tmp_path: Path) -> None:
    root = plain(tmp_path / "set", [coco_image(1)], [coco_object(1, 1, bbox=[0.1, 0.2, 0.3, 7])])
    convert(root, tmp_path / "x.h5")
    boxes = PackedDataset(tmp_path / "x.h5", columns=("boxes",))[0]
    assert np.array_equal(np.reshape(np.asarray(boxes), (1, 4)), np.float32([[0.1, 0.2, 0.1 + 0.3, 0.2 + 7]]))


def test_images_of_lvis_are_named_by_their_urls(tmp_path: Path) -> None:
    images: list[Any] = [{"id": n, "coco_url": f"http://images.cocodataset.org/val2017/{n}.jpg"} for n in range(2)]
    said = {"images": images, "annotations": [coco_object(1, 0)], "categories": CATS}
    fill(tmp_path, {"lvis_v1_val.json": json.dumps(said), **{f"val2017/{n}.jpg": jpeg(n) for n in range(2)}})
    assert [entry.key for entry in look(tmp_path).of("val")] == ["val2017/0.jpg", "val2017/1.jpg"]


def test_without_its_images_the_first_is_named(tmp_path: Path) -> None:
    plain(tmp_path, [{"id": 0, "file_name": "0.JPG"}], [])
    refused(SourceError, tmp_path, r"the images of .* are missing: 0\.JPG")


@pytest.mark.parametrize("several", [False, True])
def test_classes_of_whole_images(several: bool, tmp_path: Path) -> None:
    """iNaturalist: annotations without boxes."""
    annotations = [{"id": n, "image_id": n, "category_id": 1 + n % 2} for n in range(3)]
    annotations += [{"id": 9, "image_id": 0, "category_id": 2}] if several else []
    document = {
        "images": [{"id": n, "file_name": f"train/{n:05}.jpg", "width": 16, "height": 8} for n in range(4)],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "owl"}, {"id": 2, "name": "fox"}],
    }
    files = {f"train/{n:05}.jpg": jpeg(n) for n in range(4)}
    seen = look(fill(tmp_path, {**files, "train.json": json.dumps(document)}))
    name = "tags" if several else "label"
    assert seen.classes[name] == ("owl", "fox")
    assert "boxes" not in seen.classes
    expected = [[0, 1], [1], [0], []] if several else [0, 1, 0, None]
    assert [list(each) if several else each for each in seen.each(name)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 300])
def test_images_in_a_folder_of_any_name(count: int, tmp_path: Path) -> None:
    files = photos("input_pictures", *range(count)) | {"notes.json": of_images(*range(count))}
    assert look(fill(tmp_path, files)).found == ("coco", count)
    fill(tmp_path, photos("copies", *range(count)))
    question(tmp_path, "are in copies, and in input_pictures: leave all but one out", kind="coco")


def test_images_in_the_folder_of_another_split_are_not_taken(tmp_path: Path) -> None:
    files = photos("train_pictures", 1, 2) | {"annotations/instances_val.json": of_images(1, 2)}
    refused(SourceError, fill(tmp_path, files), "are missing")


def test_images_of_a_file_without_a_split_beside_others_are_unassigned(tmp_path: Path) -> None:
    files = photos("train", 1, 2) | photos("images", 7, 8, 9)
    notes = {"train/_annotations.coco.json": of_images(1, 2), "_annotations.coco.json": of_images(7, 8, 9)}
    survey = look(fill(tmp_path, files | notes), kind="coco")
    assert dict(survey.splits) == {"train": 2, "unassigned": 3}
    assert any("3 of the samples have no split" in note for note in survey.notes)
    assert [entry.split for entry in survey.entries] == ["train"] * 2 + ["unassigned"] * 3


def test_a_file_without_a_split_that_has_the_images_of_others_is_a_question(tmp_path: Path) -> None:
    files = {"annotations/instances_train.json": of_images(1, 2), "annotations/all.json": of_images(1, 2, 3)}
    caught = question(fill(tmp_path, photos("images", 1, 2, 3) | files), "is annotated twice", kind="coco")
    assert len(caught.answers) == 2


def test_folders_of_another_machine_before_the_names(tmp_path: Path) -> None:
    """Objects365: ``images/v1/patch0/a.jpg`` lies in ``train/patch0``."""
    names = [f"patch{n}/a{n}.jpg" for n in range(3)]
    document = {
        "images": [{"id": n, "file_name": f"images/v1/{name}"} for n, name in enumerate(names)],
        "annotations": [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 2, 3, 4]} for n in range(3)],
        "categories": [{"id": 1, "name": "cup"}],
    }
    files = {f"train/{name}": jpeg(n) for n, name in enumerate(names)}
    seen = look(fill(tmp_path, {**files, "annotations/objv2_train.json": json.dumps(document)}))
    assert seen.keys == [f"train/{name}" for name in names]


def test_one_file_of_annotations_over_the_folders_of_splits(tmp_path: Path) -> None:
    """The folders of the images are the splits; a further image that no annotations name is left."""
    files = photos("data/train_images", 1, 3) | photos("data/val_images", 2) | photos("saved", 8)
    masks = {f"data/{folder}_masks/{n:012}.jpg": jpeg(9) for folder, n in (("train", 1), ("train", 3), ("val", 2))}
    root = fill(tmp_path / "set", files | masks | {"annotations/annotations.json": of_images(1, 2, 3)})
    report = prove(root, tmp_path / "x.lmdb", ignore=("/saved", "*_masks"))
    assert [(split.name, split.stop - split.start) for split in report.manifest.splits] == [("train", 2), ("val", 1)]
    ds = PackedDataset(tmp_path / "x.lmdb", "train", columns=("key", "image", "json"))
    assert [each[0] for each in ds] == [f"data/train_images/{n:012}.jpg" for n in (1, 3)]
    assert [each[2]["image"]["id"] for each in ds] == [1, 3]


@pytest.mark.parametrize("base", ["", "images/"])
@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (("train", "val"), {"train": 2, "val": 2}),
        (("val2017", "train2017"), {"train": 2, "val": 2}),
        (("test/day", "test/night"), {"test": 4}),
        (("day", "night"), {"": 4}),
        (("train", "day"), {"train": 2, "unassigned": 2}),
        (("train2017", "extra"), {"train": 2, "unassigned": 2}),
    ],
)
def test_names_with_folders_of_splits_in_one_file(
    base: str, folders: tuple[str, ...], splits: dict[str, int], tmp_path: Path
) -> None:
    images = [coco_image(n) | {"file_name": f"{folders[n // 2]}/{n:012}.jpg"} for n in range(4)]
    files = photos(f"{base}{folders[0]}", 0, 1) | photos(f"{base}{folders[1]}", 2, 3)
    fill(tmp_path, files | {"annotations/instances.json": of_images(images=images)})
    seen = look(tmp_path)
    assert dict(seen.splits) == splits
    keys = sorted(f"{base}{each['file_name']}" for each in images)
    assert sorted(entry.key for entry in seen.entries) == keys


@pytest.mark.parametrize("name", ["{}", "cats/{}"])
def test_one_file_of_annotations_over_other_folders(name: str, tmp_path: Path) -> None:
    images = [coco_image(n) | {"file_name": name.format(f"{n:012}.jpg")} for n in range(4)]
    files = photos("part_b/cats", 0, 2) | photos("part_a/cats", 1, 3)
    fill(tmp_path, files | {"notes.json": of_images(images=images)})
    seen = look(tmp_path)
    assert (*seen.splits,) == ("",)
    assert seen.keys == [f"part_{part}/cats/{n:012}.jpg" for n, part in enumerate("baba")]


def test_groups_of_folders_with_the_same_names_are_a_question_with_answers(tmp_path: Path) -> None:
    files = photos("data/train", 1, 2) | photos("data/val", 3) | photos("kinds/owl", 1, 3) | photos("kinds/fox", 2)
    fill(tmp_path, files | {"notes.json": of_images(1, 2, 3)})
    question(tmp_path, r"the images that notes\.json names are in data/train, data/val, and")
    asked = question(tmp_path, kind="coco")
    one, other = (answer.options for answer in asked.answers)
    assert (one, other) == (
        ("--ignore", "/kinds/fox", "--ignore", "/kinds/owl"),
        ("--ignore", "/data/train", "--ignore", "/data/val"),
    )
    assert [*look(tmp_path, ignore=one[1::2]).splits] == ["train", "val"]
    assert [*look(tmp_path, ignore=other[1::2]).splits] == [""]


@pytest.mark.parametrize("missing", [True, False])
def test_images_in_several_folders_of_which_one_is_missing_or_twice(missing: bool, tmp_path: Path) -> None:
    files = photos("one", 1, 2) | photos("two", 3, *([] if missing else [2]))
    fill(tmp_path, files | {"notes.json": of_images(1, 2, 3, *([4] if missing else []))})
    refused(SourceError, tmp_path, r"the images of notes\.json are missing")


@pytest.mark.parametrize("bbox", ["missing", None, []])
@pytest.mark.parametrize("name", ["annotations.json", "annotations/person_keypoints_train.json"])
def test_keypoints_without_boxes(name: str, bbox: Any, tmp_path: Path) -> None:
    """Such as those of hands and faces, of several objects in an image, or of none."""
    source = plain(tmp_path / "set", [coco_image(n) for n in (1, 2, 3)], [])
    points = [[1, 2, 2, 3, 4, 1], [5, 6, 2, 0, 0, 0], [7, 1, 1, 2, 2, 2]]
    objects = [
        {"id": n, "image_id": (1, 1, 3)[n], "category_id": (4, 1, 4)[n], "keypoints": points[n]}
        | ({} if bbox == "missing" else {"bbox": bbox})
        for n in range(3)
    ]
    categories = [POINTS, {**POINTS, "id": 4, "name": "hand"}]
    change(source / "annotations.json", lambda document: document.update(annotations=objects, categories=categories))
    if name != "annotations.json":
        (source / "annotations").mkdir()
        (source / "annotations.json").rename(source / name)
    prove(source, tmp_path / "x.lmdb")
    dataset = PackedDataset(tmp_path / "x.lmdb", columns=("keypoints", "keypoint_labels"))
    assert [(each.tolist(), labels.tolist()) for each, labels in dataset] == [
        ([[[1, 2, 2], [3, 4, 1]], [[5, 6, 2], [0, 0, 0]]], [1, 0]),
        ([], []),
        ([[[7, 1, 1], [2, 2, 2]]], [1]),
    ]
    assert not dataset.manifest.has_column("boxes")


def test_keypoints_of_which_only_some_have_boxes(tmp_path: Path) -> None:
    objects: list[Any] = [{**coco_object(n, 1 + n % 2), "keypoints": [1, 2, 2, 3, 4, 1]} for n in range(4)]
    del objects[2]["bbox"]
    source = plain(
        tmp_path / "set", [coco_image(1), coco_image(2)], objects, [{**POINTS, "id": each["id"]} for each in CATS]
    )
    not_packed(SampleError, source, tmp_path / "x.lmdb", "annotation 2 has the bbox None; expected 4 numbers")
    report = convert(source, tmp_path / "x.lmdb", on_error="skip")
    assert (report.manifest.records, len(report.skipped)) == (1, 1)
