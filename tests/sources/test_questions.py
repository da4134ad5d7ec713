"""What a question about a source offers as answers: each of them packs, without a further question."""

from __future__ import annotations

import shutil
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from packstore import AmbiguousSourceError, convert, verify
from packstore.sources import Entry, Source, ask_about_left, open_source
from tests.internals import Answer, Sample, SampleError
from tests.makers.all_layouts import LAYOUTS, Make, corpus, without
from tests.makers.annotated import coco, fill, jpeg, mask, voc, voc_xml, yolo
from tests.makers.annotation_formats import createml, kitti, labelme
from tests.makers.by_name import BY_NAME
from tests.makers.images import encode, picture
from tests.makers.sources import look, not_packed, prove, question

IMAGES: dict[str, str | bytes] = {f"images/{n}.jpg": jpeg(n) for n in range(3)}


def hdf5(**shapes: tuple[int, ...]) -> Make:
    def make(root: Path) -> Path:
        with h5py.File(root / "a.h5", "w") as file:
            for name, shape in shapes.items():
                file[name] = np.zeros(shape, np.uint8)
        return root / "a.h5"

    return make


def half_written(root: Path) -> Path:
    with h5py.File(root / "a.h5", "w") as file:
        file.create_dataset("images", (4, 8, 8, 3), "u1", chunks=(1, 8, 8, 3))[:2] = 1
    return root / "a.h5"


def configurations(root: Path) -> Path:
    each = "- config_name: {0}\n  data_files:\n  - split: train\n    path: {0}/train-*\n"
    shutil.copytree(corpus("parquet")(root), root / "hub/a")
    shutil.move(root / "parquet", root / "hub/b")
    return fill(root / "hub", {"README.md": f"---\nconfigs:\n{each.format('a/data')}{each.format('b/data')}---\n"})


def two_years(root: Path) -> Path:
    voc(root)
    shutil.copytree(root / "VOCdevkit/VOC2012", root / "VOCdevkit/VOC2007")
    return root


def both(root: Path) -> Path:
    return fill(coco(root), {"labels/train2017/1.txt": "0 0.5 0.5 0.1 0.1\n", "images/train2017/1.jpg": jpeg(0)})


def numbered(pattern: str, count: int = 4, first: int = 0, content: bytes | None = None) -> dict[str, str | bytes]:
    return {pattern.format(n): jpeg(n) if content is None else content for n in range(first, first + count)}


def market(root: Path) -> Path:
    files = numbered("bounding_box_train/{:04}_c1.jpg", 6) | numbered("bounding_box_test/{:04}_c1.jpg", 6, 6)
    files |= numbered("query/{:04}_c2.jpg", 3, 6) | numbered("gt_bbox/{:04}_c1.jpg", 6, 6)
    return fill(root / "Market-1501", files | {"gt_query/0006_good.mat": b"x", "readme.txt": "Market"})


def mars(root: Path) -> Path:
    return fill(root, numbered("bbox_train/{0:04}/{0:04}C1T1.jpg") | numbered("bbox_test/{0:04}/{0:04}C1T1.jpg", 4, 4))


def kitti_objects(root: Path) -> Path:
    return fill(root, numbered("image_2/{:06}.png") | numbered("label_2/{:06}.txt", content=b"Car 0 0 1 2 3 4 5\n"))


def oscd(root: Path) -> Path:
    files: dict[str, str | bytes] = {}
    for city in ("paris", "rennes"):
        for folder in ("imgs_1_rect", "imgs_2_rect"):
            files |= {f"images/{city}/{folder}/B{band:02}.tif": jpeg(band) for band in range(1, 5)}
        files |= {f"labels/{city}/cm/cm.png": mask(1)}
    return fill(root / "OSCD", files)


def digits(root: Path) -> Path:
    files: dict[str, str | bytes] = {}
    for digit in range(3):
        files |= numbered(f"Dataset/{digit}/IMG_{digit}{{:03}}.JPG")
    return fill(root / "Sign-Language-Digits", files | numbered("Examples/example_{}.JPG", 3) | {"README.md": "digits"})


def clips(root: Path) -> Path:
    files: dict[str, str | bytes] = {}
    for name in ("rgb", "depth", "nir"):
        files |= numbered(f"{name}/{{:05}}.png")
    return fill(root, files)


BESIDE: dict[str, tuple[dict[str, str | bytes], str]] = {
    "jsonl": ({"metadata.jsonl": "", "a.jpg": ""}, "metadata.jsonl"),
    "maps": ({"images/a.png": "", "images/b.png": "", "geojson/Buildings_a.geojson": "{}"}, "Buildings_a.geojson"),
    "patches": (
        {f"{place}/{place}_{name}": "" for place in ("one", "two", "six") for name in ("B.png", "C.png", "of.json")},
        ".json files in 3 of 3 folders of images",
    ),
    "as many texts as images": (
        {f"images/{n}.jpg": "" for n in range(20)} | {f"texts/{n + 100:x}_t.txt": "" for n in range(20)},
        "a .txt file for each image in texts",
    ),
    "lists of stems": (
        {**dict.fromkeys(("images/pie/1005649.jpg", "images/pie/1011328.jpg", "images/ribs/1000000.jpg"), ""),
         "meta/train.txt": "pie/1005649\nribs/1000000\npie/1011328\n", "meta/classes.txt": "pie\nribs\n"},
        "meta/train.txt",
    ),
    "two cameras": (
        {f"{split}/{side}/{number}.png": encode(picture("RGB", 40, 30 + shift, number), "PNG")
         for split in ("train", "val") for shift, side in enumerate(("Left", "right")) for number in range(3)},
        "train/right/0.png goes with train/Left/0.png",
    ),
    "texts beside": ({"a.jpg": "", "a.txt": "{cat}", "b.jpg": "", "b.txt": "{dog}"}, "a .txt file for each image"),
}  # fmt: skip
"""What lies beside images and would be lost with them packed alone, and what is said of it."""


ASKED: dict[str, Make] = {
    "configurations": configurations,
    "splits with and without classes": lambda root: fill(root, {"train/a/0.jpg": jpeg(0), "test/1.jpg": jpeg(1)}),
    "splits beside others": lambda root: fill(root, {"train/a/0.jpg": jpeg(0), "x/1.jpg": jpeg(1)}),
    "axes": hdf5(images=(4, 3, 3, 3)),
    "arrays of images": hdf5(images_left=(4, 8, 8, 3), images_right=(4, 8, 8, 3)),
    "arrays of labels": hdf5(images=(4, 8, 8, 3), fine_labels=(4,), coarse_labels=(4,)),
    "images that were never written": half_written,
    "years of Pascal VOC": two_years,
    "COCO and YOLO": both,
    "two data sets": lambda root: [coco(root / "a"), yolo(root / "b"), root][-1],
    "a missing shard": without(
        corpus("tfrecord"), "slim-train-00001-of-00002", "plain.tfrec", "detection.tfrecord.zlib"
    ),
    **{make.__name__: make for make in (market, mars, kitti_objects, oscd, digits, clips)},
    **{f"beside: {name}": lambda root, files=files: fill(root / "set", files) for name, (files, _) in BESIDE.items()},
    **{name: make for name, (kind, make) in LAYOUTS.items() if kind is None},
}  # fmt: skip
UNANSWERED = {"STL-10 without labels", "downsampled ImageNet without a batch", "ILSVRC without its devkit"}
"""A file has to be fetched first."""


def opened(answer: Answer, path: Path) -> tuple[Path, dict[str, Any], str | None]:
    """What an answer makes of the command line: source, keywords of :func:`open_source`, split."""
    words = dict(zip(answer.options[::2], answer.options[1::2], strict=True))
    given: dict[str, Any] = {name.removeprefix("--").replace("-", "_"): value for name, value in words.items()}
    if "ignore" in given:
        given["ignore"] = answer.options[1::2]
    if "column" in given:
        given["columns"] = [given.pop("column")]
    if "source" in given:
        given["kind"] = given.pop("source")
    if given.pop("on_error", "raise") == "skip":
        given["skip_bad"] = True
    split = given.pop("split", None)
    return answer.source or path, given, split


FOLDERS_THAT_ASK = ("Kaggle's without the labels of val",)
SPLITS_THAT_ASK = ("splits beside others",)
"""Names of layouts whose splits lead to a further question, and so are no answer once they are tried."""
"""Names of cases whose answer is another folder, which is a question of its own."""


@pytest.mark.parametrize("name", ASKED)
def test_each_answer_packs(name: str, tmp_path: Path) -> None:
    path = ASKED[name](tmp_path)
    caught = question(path)
    assert caught.source == path
    assert "emove" not in str(caught)  # a label or a class is never to be removed
    assert BESIDE.get(name.removeprefix("beside: "), ("", ""))[1] in str(caught)
    assert caught.answers or name in UNANSWERED
    for answer in caught.answers:
        place, given, split = opened(answer, path)
        asks = (name in FOLDERS_THAT_ASK and answer.source) or (name in SPLITS_THAT_ASK and "splits" in given)
        asking = pytest.raises(AmbiguousSourceError) if asks else nullcontext()
        with asking, closing(open_source(place, **given)) as source:
            assert source.survey(split).records


MASKS_LEFT: dict[str, tuple[str, str, str]] = {
    "in folders of splits": ("YOLO", "masks/train/a{}.png", "masks/train/.* goes with images/train/"),
    "with other names": ("CVAT for images", "gtFine/{}_gtFine.png", "goes with"),
}


@pytest.mark.parametrize("name", MASKS_LEFT)
def test_masks_that_a_format_leaves_out_are_asked_about(name: str, tmp_path: Path) -> None:
    layout, masks, said = MASKS_LEFT[name]
    root = fill(BY_NAME[layout](tmp_path, 4), {masks.format(f"{n:05}"): mask(n) for n in range(4)})
    caught = question(root, said)
    for answer in caught.answers:
        place, given, _ = opened(answer, root)
        with closing(open_source(place, **given)) as source:
            ask_about_left(source, source.survey())


def drive(root: Path) -> Path:
    files: dict[str, str | bytes] = {}
    for n in range(21, 26):
        files |= {f"training/images/{n}_training.tif": jpeg(n), f"training/1st_manual/{n}_manual1.gif": mask(n)}
        files |= {f"training/mask/{n}_training_mask.gif": mask(n)}
    for n in range(1, 5):
        files |= {f"test/images/{n:02}_test.tif": jpeg(n), f"test/1st_manual/{n:02}_manual1.gif": mask(n)}
        files |= {f"test/mask/{n:02}_test_mask.gif": mask(n)}
    return fill(root / "DRIVE", files)


def chase(root: Path) -> Path:
    eyes = [f"Image_{n:02}{side}" for n in range(1, 4) for side in "LR"]
    ends = {".jpg": jpeg(0), "_1stHO.png": mask(0), "_2ndHO.png": mask(1)}
    return fill(root / "CHASEDB1", {eye + end: content for eye in eyes for end, content in ends.items()})


def test_words_of_a_challenge_are_read(tmp_path: Path) -> None:
    files = numbered("ch4_training_images/img_{}.jpg", 20) | numbered("ch4_test_images/img_{}.jpg", 10)
    files |= numbered("ch4_training_localization_transcription_gt/gt_img_{}.txt", 20, content=b"1,2,3,4,5,6,7,8,word\n")
    seen = look(fill(tmp_path, files))
    assert (*seen.found, seen.ledger.left) == ("icdar", 20, {"images without annotations in other folders": 10})


def test_drive_with_the_other_name_of_its_test_split(tmp_path: Path) -> None:
    root = drive(tmp_path)
    (root / "test").rename(root / "testing")
    seen = look(root)
    assert (seen.kind, seen.splits) == ("published", {"training": 5, "testing": 4})
    assert not seen.ledger.left


def read_mask(source: Source, entry: Entry, column: str = "mask") -> Any:
    sample = source.read(entry)
    assert isinstance(sample, Sample)
    return sample.values[column]


def test_one_of_two_experts_is_kept(tmp_path: Path) -> None:
    with closing(open_source(chase(tmp_path), ignore=["*_2ndHO.*"])) as source:
        assert (source.kind, source.survey().records) == ("published", 6)
        assert read_mask(source, next(source.entries()), "vessels") == mask(0)


@pytest.mark.slow
def test_a_folder_that_is_a_question_itself_is_offered_and_not_its_images_alone(tmp_path: Path) -> None:
    root = drive(tmp_path / "copies")
    shutil.copytree(root, root / "again")
    fill(root, {f"training/images/{n}_training.tif": jpeg(n) for n in range(60, 90)})  # without outlines
    fill(root, {f"training/more/{n}_training.gif": jpeg(n) for n in range(60, 90)})
    caught = question(root, "seems to be no dataset itself")
    assert Answer(source=root / "training") in caught.answers
    assert not [answer for answer in caught.answers if answer.source == root / "training/images"]


@pytest.mark.parametrize("kind", ["voc", "kitti", "yolo", "coco", "createml"])
def test_annotations_of_other_splits_raise_no_question(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "set"
    if kind in ("kitti", "createml"):
        fill(source, {"kitti": kitti, "createml": createml}[kind](6))
    else:
        {"voc": voc, "yolo": yolo, "coco": coco}[kind](source)
    splits = [*look(source).splits]
    assert len(splits) > 1
    for split in splits:
        report = prove(source, tmp_path / f"{split}.lmdb", split=split)
        assert [each.name for each in report.manifest.splits] == [split]


@pytest.mark.slow
def test_other_annotations_still_do_with_a_split(tmp_path: Path) -> None:
    source = voc(tmp_path / "set")
    images = sorted(each.stem for each in source.rglob("JPEGImages/*.jpg"))
    (source / "scores.csv").write_text("name,score\n" + "".join(f"{name},1\n" for name in images))
    caught = not_packed(AmbiguousSourceError, source, tmp_path / "x.lmdb", r"scores\.csv", split="val")
    assert ".xml" not in str(caught)


def _labelme(stem: str) -> str:
    return labelme(1)["a00000.json"].replace("a00000", stem)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize(
    ("files", "kind", "count"),
    [
        ({"ant/1.json": _labelme("1")}, "labelme", 1),
        ({"ant/1.json": _labelme("1"), "bee/7.json": _labelme("7")}, "labelme", 2),
        ({"train/ant/1.json": _labelme("1")}, "labelme", 1),
        ({"ant/1.xml": voc_xml("1", ("cat", (3, 2, 9, 7), 0))}, "voc", 1),
    ],
)
def test_a_few_annotations_beside_class_photos(
    files: dict[str, str], kind: str, count: int, archive: bool, tmp_path: Path
) -> None:
    top = "train/" if any(name.startswith("train/") for name in files) else ""
    photos = {f"{top}{name}/{n}.jpg": jpeg(n) for name in ("ant", "bee") for n in range(10)}
    source = fill(tmp_path / "set", photos | files)
    if archive:
        source = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", source))
    caught = not_packed(AmbiguousSourceError, source, tmp_path / "x.lmdb", f"beside {count} of 20 images")
    assert {Answer(("--source", kind)), Answer(("--source", "imagefolder"))} <= {*caught.answers}
    assert caught.answers[0].note.endswith("leaves out nothing")
    classes = convert(source, tmp_path / "classes.lmdb", source_kind="imagefolder").manifest
    assert (classes.records, classes.classes) == (20, ("ant", "bee"))
    boxes = convert(source, tmp_path / "boxes.lmdb", source_kind=kind).manifest
    assert boxes.has_column("boxes")
    for store in ("classes", "boxes"):
        assert verify(tmp_path / f"{store}.lmdb", against=source).problems == ()


def test_a_stray_json_hides_no_annotation(tmp_path: Path) -> None:
    photos = {f"{name}/{n}.jpg": jpeg(n) for name in ("ant", "bee") for n in range(10)}
    source = fill(tmp_path / "set", {**photos, "ant/1.json": '{"camera": "x"}', "ant/3.json": _labelme("3")})
    not_packed(AmbiguousSourceError, source, tmp_path / "x.lmdb", "beside 2 of 20 images")
    not_packed(SampleError, source, tmp_path / "x.lmdb", r"ant/1\.jpg: its ant/1\.json: ", source_kind="labelme")
    (source / "ant/3.json").unlink()
    report = convert(source, tmp_path / "x.lmdb")
    assert (report.manifest.records, dict(report.ledger.left)) == (20, {"not images (.json)": 1})
