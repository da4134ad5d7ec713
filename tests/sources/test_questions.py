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
    with pytest.raises(AmbiguousSourceError) as caught, closing(open_source(path)) as source:
        ask_about_left(source, source.survey())
    assert caught.value.source == path
    assert caught.value.answers or name in UNANSWERED
    for answer in caught.value.answers:
        place, given, split = opened(answer, path)
        asks = (name in FOLDERS_THAT_ASK and answer.source) or (name in SPLITS_THAT_ASK and "splits" in given)
        question = pytest.raises(AmbiguousSourceError) if asks else nullcontext()
        with question, closing(open_source(place, **given)) as source:
            assert source.survey(split).records


MASKS_LEFT: dict[str, tuple[str, str, str]] = {
    "in folders of splits": ("YOLO", "masks/train/a{}.png", "masks/train/.* goes with images/train/"),
    "with other names": ("CVAT for images", "gtFine/{}_gtFine.png", "goes with"),
}


@pytest.mark.parametrize("name", MASKS_LEFT)
def test_masks_that_a_format_leaves_out_are_asked_about(name: str, tmp_path: Path) -> None:
    layout, masks, said = MASKS_LEFT[name]
    root = fill(BY_NAME[layout](tmp_path, 4), {masks.format(f"{n:05}"): mask(n) for n in range(4)})
    with closing(open_source(root)) as source, pytest.raises(AmbiguousSourceError, match=said) as caught:
        ask_about_left(source, source.survey())
    for answer in caught.value.answers:
        place, given, _ = opened(answer, root)
        with closing(open_source(place, **given)) as source:
            ask_about_left(source, source.survey())


def numbered(pattern: str, count: int = 4, first: int = 0, content: bytes | None = None) -> dict[str, str | bytes]:
    return {pattern.format(n): jpeg(n) if content is None else content for n in range(first, first + count)}


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


def market(root: Path) -> Path:
    files = numbered("bounding_box_train/{:04}_c1.jpg", 6) | numbered("bounding_box_test/{:04}_c1.jpg", 6, 6)
    files |= numbered("query/{:04}_c2.jpg", 3, 6) | numbered("gt_bbox/{:04}_c1.jpg", 6, 6)
    return fill(root / "Market-1501", files | {"gt_query/0006_good.mat": b"x", "readme.txt": "Market"})


def mars(root: Path) -> Path:
    return fill(root, numbered("bbox_train/{0:04}/{0:04}C1T1.jpg") | numbered("bbox_test/{0:04}/{0:04}C1T1.jpg", 4, 4))


def kitti_segmentation(root: Path) -> Path:
    files = numbered("testing/image_2/{:06}_10.png")
    for name in ("image_2", "instance", "semantic", "semantic_rgb"):
        files |= numbered(f"training/{name}/{{:06}}_10.png", content=jpeg(1) if name == "image_2" else mask(1))
    return fill(root / "data_semantics", files)


def kitti_objects(root: Path) -> Path:
    return fill(root, numbered("image_2/{:06}.png") | numbered("label_2/{:06}.txt", content=b"Car 0 0 1 2 3 4 5\n"))


def xview2(root: Path) -> Path:
    files: dict[str, str | bytes] = {}
    for when in ("pre", "post"):
        files |= numbered(f"train/images/guatemala_{{:08}}_{when}_disaster.png")
        files |= numbered(f"train/labels/guatemala_{{:08}}_{when}_disaster.json", content=b'{"features": {}}')
        files |= numbered(f"train/targets/guatemala_{{:08}}_{when}_disaster_target.png", content=mask(1))
    return fill(root, files)


def oscd(root: Path) -> Path:
    files: dict[str, str | bytes] = {}
    for city in ("paris", "rennes"):
        for folder in ("imgs_1_rect", "imgs_2_rect"):
            files |= {f"images/{city}/{folder}/B{band:02}.tif": jpeg(band) for band in range(1, 5)}
        files |= {f"labels/{city}/cm/cm.png": mask(1)}
    return fill(root / "OSCD", files)


def icdar(root: Path) -> Path:
    said = b"1,2,3,4,5,6,7,8,word\n"
    files = numbered("ch4_training_images/img_{}.jpg", 20) | numbered("ch4_test_images/img_{}.jpg", 10)
    return fill(root, files | numbered("ch4_training_localization_transcription_gt/gt_img_{}.txt", 20, content=said))


def digits(root: Path) -> Path:
    files: dict[str, str | bytes] = {}
    for digit in range(3):
        files |= numbered(f"Dataset/{digit}/IMG_{digit}{{:03}}.JPG")
    return fill(root / "Sign-Language-Digits", files | numbered("Examples/example_{}.JPG", 3) | {"README.md": "digits"})


def levir(root: Path) -> Path:
    files: dict[str, str | bytes] = {}
    for split in ("train", "val"):
        for name in ("A", "B", "label"):
            files |= numbered(f"{split}/{name}/{split}_{{}}.png", content=mask(1) if name == "label" else jpeg(1))
    return fill(root, files)


def clips(root: Path) -> Path:
    files: dict[str, str | bytes] = {}
    for name in ("rgb", "depth", "nir"):
        files |= numbered(f"{name}/{{:05}}.png")
    return fill(root, files)


MODALITIES: dict[str, Make] = {make.__name__: make for make in (*(market, mars, kitti_objects, oscd, digits, clips),)}


@pytest.mark.parametrize("name", MODALITIES)
def test_folders_of_splits_modalities_and_labels_are_no_classes(name: str, tmp_path: Path) -> None:
    """They are a question, with a line that packs; nothing of it calls a label a class, or tells to remove it."""
    path = MODALITIES[name](tmp_path)
    with pytest.raises(AmbiguousSourceError) as caught, closing(open_source(path)) as source:
        source.survey()
    assert "emove" not in str(caught.value)
    assert caught.value.answers
    for answer in caught.value.answers:
        place, given, split = opened(answer, path)
        with closing(open_source(place, **given)) as source:
            assert source.survey(split).records


def test_words_of_a_challenge_are_read(tmp_path: Path) -> None:
    with closing(open_source(icdar(tmp_path))) as source:
        survey = source.survey()
        assert (source.kind, survey.records) == ("icdar", 20)
        assert survey.ledger.left == {"images without annotations in other folders": 10}


@pytest.mark.parametrize("make", [drive, chase, kitti_segmentation, xview2, levir])
def test_published_modalities_are_columns(make: Make, tmp_path: Path) -> None:
    with closing(open_source(make(tmp_path))) as source:
        assert source.kind == "published"
        assert not source.survey().ledger.left


def test_drive_with_the_other_name_of_its_test_split(tmp_path: Path) -> None:
    root = drive(tmp_path)
    (root / "test").rename(root / "testing")
    with closing(open_source(root)) as source:
        assert (source.kind, source.survey().splits) == ("published", {"training": 5, "testing": 4})
        assert not source.survey().ledger.left


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
    with pytest.raises(AmbiguousSourceError, match="seems to be no dataset itself") as caught:
        open_source(root)
    assert Answer(source=root / "training") in caught.value.answers
    assert not [answer for answer in caught.value.answers if answer.source == root / "training/images"]


@pytest.mark.parametrize("kind", ["voc", "kitti", "yolo", "coco", "createml"])
def test_annotations_of_other_splits_raise_no_question(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "set"
    if kind in ("kitti", "createml"):
        fill(source, {"kitti": kitti, "createml": createml}[kind](6))
    else:
        {"voc": voc, "yolo": yolo, "coco": coco}[kind](source)
    with closing(open_source(source)) as opened:
        splits = [*opened.survey().splits]
    assert len(splits) > 1
    for split in splits:
        report = convert(source, tmp_path / f"{split}.lmdb", split=split)
        assert [each.name for each in report.manifest.splits] == [split]
        assert verify(tmp_path / f"{split}.lmdb", against=source).problems == ()


@pytest.mark.slow
def test_other_annotations_still_do_with_a_split(tmp_path: Path) -> None:
    source = voc(tmp_path / "set")
    images = sorted(each.stem for each in source.rglob("JPEGImages/*.jpg"))
    (source / "scores.csv").write_text("name,score\n" + "".join(f"{name},1\n" for name in images))
    with pytest.raises(AmbiguousSourceError, match=r"scores\.csv") as caught:
        convert(source, tmp_path / "x.lmdb", split="val")
    assert ".xml" not in str(caught.value)


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
    with pytest.raises(AmbiguousSourceError, match=f"beside {count} of 20 images") as caught:
        convert(source, tmp_path / "x.lmdb")
    assert {Answer(("--source", kind)), Answer(("--source", "imagefolder"))} <= {*caught.value.answers}
    assert caught.value.answers[0].note.endswith("leaves out nothing")
    classes = convert(source, tmp_path / "classes.lmdb", source_kind="imagefolder").manifest
    assert (classes.records, classes.classes) == (20, ("ant", "bee"))
    boxes = convert(source, tmp_path / "boxes.lmdb", source_kind=kind).manifest
    assert boxes.has_column("boxes")
    for store in ("classes", "boxes"):
        assert verify(tmp_path / f"{store}.lmdb", against=source).problems == ()


def test_a_stray_json_hides_no_annotation(tmp_path: Path) -> None:
    photos = {f"{name}/{n}.jpg": jpeg(n) for name in ("ant", "bee") for n in range(10)}
    source = fill(tmp_path / "set", {**photos, "ant/1.json": '{"camera": "x"}', "ant/3.json": _labelme("3")})
    with pytest.raises(AmbiguousSourceError, match="beside 2 of 20 images"):
        convert(source, tmp_path / "x.lmdb")
    with pytest.raises(SampleError, match=r"ant/1\.jpg: its ant/1\.json: "):
        convert(source, tmp_path / "x.lmdb", source_kind="labelme")
    (source / "ant/3.json").unlink()
    report = convert(source, tmp_path / "x.lmdb")
    assert (report.manifest.records, dict(report.ledger.left)) == (20, {"not images (.json)": 1})
