"""Exports in formats of tools that annotate: the contract, and the same labels read back with and without
packstore.json."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packstore
from packstore.sources import open_source
from packstore.stores import open_store
from packstore.testing.exports import picture
from tests.internals import EXPORTS, NotAStoreError, Writer, convert, export
from tests.makers.annotated import coco, fill, jpeg, voc, without_export_manifest, yolo
from tests.makers.torchvision import import_torchvision

KINDS = {
    **{
        name: name
        for name in ("voc", "kitti", "labelme", "cvat", "label_studio", "datumaro", "fiftyone", "coco", "yolo")
    },
    **dict.fromkeys(("csv", "open_images"), "table"),
}
"""Exports, and the sources that read them without ``packstore.json``."""
TAGGED = ["labelme", "cvat", "label_studio", "datumaro", "fiftyone", "csv"]
POLYGONS = ["labelme", "cvat", "label_studio", "datumaro", "fiftyone"]


MAKERS = {"coco": coco, "yolo": yolo, "voc": voc}


def samples(path: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """The kind of a source, and what a store of it has of each sample, by names of files; classes by their names."""
    with closing(open_source(path)) as source:
        kind = source.kind
    store = path.with_name(f"{path.name}-{len(list(path.parent.glob(path.name + '-*')))}.lmdb")
    convert(path, store)
    found: dict[str, dict[str, Any]] = {}
    with closing(open_store(store)) as reader:
        for column in reader.manifest.columns:
            if column.type not in ("boxes", "label", "labels", "segments", "json", "text"):
                continue
            for number in range(len(reader)):
                value = reader.item(column.name, number)
                if value is not None and column.classes is not None:
                    value = [column.classes[n] for n in value] if np.ndim(value) else column.classes[value]
                name = reader.key(number).rpartition("/")[2]
                split = next((each.name for each in reader.manifest.splits if number < each.stop), "")
                found.setdefault(name, {"split": split})[column.name] = value
    return kind, found


@pytest.mark.slow
@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("kind", MAKERS)
def test_sets_with_objects_come_back(kind: str, to: str, tmp_path: Path) -> None:
    manifest = convert(MAKERS[kind](tmp_path / "set"), tmp_path / "in.lmdb").manifest
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to=to)
    lost = "\n".join(report.losses)
    assert "'boxes'" not in lost
    assert "'labels'" not in lost
    again = convert(tmp_path / "out", tmp_path / "again.h5").manifest
    assert again.dataset_digest == manifest.dataset_digest
    export(tmp_path / "in.lmdb", tmp_path / "out", to=to, overwrite=True)  # all its files are known as its own


@pytest.mark.slow
@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("kind", MAKERS)
def test_the_bare_files_say_the_same(kind: str, to: str, tmp_path: Path) -> None:
    root = MAKERS[kind](tmp_path / "set")
    convert(root, tmp_path / "in.lmdb")
    export(tmp_path / "in.lmdb", tmp_path / "out", to=to)
    _, before = samples(root)
    read_by, after = samples(without_export_manifest(tmp_path / "out"))
    assert read_by == KINDS[to]
    if to == "open_images":  # which names images by their boxes alone
        before = {name: values for name, values in before.items() if len(values["boxes"])}
    assert [*before] == [*after]
    for name, values in before.items():
        found, labels = after[name].get("boxes"), after[name].get("labels")
        crowds = values["iscrowd"] if "iscrowd" in values else [0] * len(values["boxes"])
        # Formats without a mark for crowd regions leave them out.
        kept = [not crowd or after[name].get("iscrowd") is not None for crowd in crowds]
        boxes = np.float32([box for box, keep in zip(values["boxes"], kept, strict=True) if keep]).reshape(-1, 4)
        assert np.allclose(boxes, np.float32([] if found is None else found).reshape(-1, 4), atol=1e-4), name
        named = ["DontCare" if crowd and to == "kitti" else label
                 for label, crowd in zip(values["labels"], crowds, strict=True)]  # fmt: skip
        expected = [label for label, keep in zip(named, kept, strict=True) if keep]
        written = [] if labels is None else list(labels)
        if to == "fiftyone":  # which lists polygons after boxes
            expected, written = sorted(expected), sorted(written)
        assert expected == written, name
        assert values["split"] == after[name]["split"]


@pytest.mark.slow
@pytest.mark.parametrize("to", TAGGED)
def test_classes_of_images(to: str, tmp_path: Path) -> None:
    files = {f"{split}/{label}/{label[0]}{n}.jpg": jpeg(n) for split in ("train", "val") for label in ("cat", "a dog")
             for n in range({"train": 0, "val": 3}[split], {"train": 3, "val": 5}[split])}  # fmt: skip
    root = fill(tmp_path / "set", files)
    digest = convert(root, tmp_path / "in.lmdb").manifest.dataset_digest
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to=to)
    assert "label" not in "\n".join(report.losses)
    assert convert(tmp_path / "out", tmp_path / "again.h5").manifest.dataset_digest == digest
    _, before = samples(root)
    read_by, after = samples(without_export_manifest(tmp_path / "out"))
    assert read_by == KINDS[to]
    assert {name: (each["label"], each["split"]) for name, each in before.items()} == {
        name: (each["label"], each["split"]) for name, each in after.items()
    }


@pytest.mark.slow
def test_classes_of_images_without_names(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"image": "image", "label": packstore.Label(optional=True)}
    with Writer(tmp_path / "in.lmdb", fields=fields) as writer:
        for number, label in enumerate((7, None, 2**40)):
            writer.add(key=f"{number}.jpg", image=picture(number), label=label)
    for to in TAGGED:
        export(tmp_path / "in.lmdb", tmp_path / to, to=to)
        _, found = samples(without_export_manifest(tmp_path / to))
        given = {name: str(each.get("label")) for name, each in found.items()}
        assert given == {"0.jpg": "7", "1.jpg": "None", "2.jpg": str(2**40)}, to
    assert f'value="{2**40}"' in (tmp_path / "label_studio/label_config.xml").read_text()


def test_classes_of_images_beside_boxes(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"image": "image", "boxes": "boxes", "label": packstore.Label(("cat", "dog"))}
    with Writer(tmp_path / "in.lmdb", fields=fields) as writer:
        writer.add(key="0.jpg", image=picture(0), boxes=[[0, 0, 4, 4]], label=1)
    for to in TAGGED:
        report = export(tmp_path / "in.lmdb", tmp_path / to, to=to)
        written = b"".join(path.read_bytes() for path in (tmp_path / to).rglob("*.*") if path.name[:9] != "packstore")
        assert (b"dog" in written.replace(b"/dog/", b"")) != ("label" in "\n".join(report.losses)), to


@pytest.mark.slow
@pytest.mark.parametrize("to", POLYGONS)
def test_polygons(to: str, tmp_path: Path) -> None:
    shapes = [
        {"label": "cat", "points": [[1, 1], [9.5, 2], [5, 7.25]], "shape_type": "polygon", "flags": {}},
        {"label": "dog", "points": [[2, 1], [4, 5]], "shape_type": "rectangle", "flags": {}},
    ]
    document = {"version": "5", "flags": {}, "shapes": shapes, "imagePath": "a.jpg", "imageData": None}
    root = fill(tmp_path / "set", {"a.jpg": jpeg(1), "a.json": json.dumps(document)})
    digest = convert(root, tmp_path / "in.lmdb").manifest.dataset_digest
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to=to)
    assert "'segments'" not in "\n".join(report.losses)
    assert convert(tmp_path / "out", tmp_path / "again.h5").manifest.dataset_digest == digest
    _, before = samples(root)
    _, after = samples(without_export_manifest(tmp_path / "out"))
    found, order = after["a.jpg"], [after["a.jpg"]["labels"].index(name) for name in ("cat", "dog")]
    assert np.allclose([found["boxes"][n] for n in order], before["a.jpg"]["boxes"], atol=1e-5)
    assert np.allclose(found["segments"][order[0]], before["a.jpg"]["segments"][0], atol=1e-5)
    assert found["segments"][order[1]] is None


NAMES = ['say "ü" & <b>', "a, b", "two words", "\N{GRINNING FACE}", "1", "tab\tline\nend"]


@pytest.mark.parametrize("to", KINDS)
def test_odd_names_of_classes_and_files(to: str, tmp_path: Path) -> None:
    keys = ["a b.jpg", "100%.jpg", "a+b&c=d.jpg", "ü.jpg", "x.y.jpg", "#1.jpg"]
    fields: dict[str, Any] = {"image": "image", "boxes": "boxes", "labels": packstore.Labels(NAMES, of="boxes")}
    with Writer(tmp_path / "in.lmdb", fields=fields) as writer:
        for number, key in enumerate(keys):
            writer.add(key=key, image=picture(number), boxes=[[1, 2, 3.5, 4 + number]], labels=[number])
    export(tmp_path / "in.lmdb", tmp_path / "out", to=to)
    _, found = samples(without_export_manifest(tmp_path / "out"))
    assert len(found) == len(keys)
    for values in found.values():
        number = round(values["boxes"][0][3] - 4)
        assert np.allclose(values["boxes"], [[1, 2, 3.5, 4 + number]], atol=1e-4)
        name = NAMES[number]
        expected = name.split() if to == "kitti" else [name]
        label = values["labels"][0] if "labels" in values else values["class"]  # a table takes odd names for a text
        assert "_".join(expected) in (label, label.removeprefix("_"))


@pytest.mark.slow
def test_a_folder_named_like_a_label_file(tmp_path: Path) -> None:
    keys = ["a.jpg", "a.json/b.jpg", "c.jpg", "c.xml/d.jpg"]
    with Writer(tmp_path / "in.lmdb", fields={"image": "image", "boxes": "boxes"}) as writer:
        for number, key in enumerate(keys):
            writer.add(key=key, image=picture(number), boxes=[[1, 2, 3, 4 + number]])
    for to in ("labelme", "voc"):
        export(tmp_path / "in.lmdb", tmp_path / to, to=to)
        convert(tmp_path / to, tmp_path / f"{to}.lmdb")
        with open_store(tmp_path / "in.lmdb") as old, open_store(tmp_path / f"{to}.lmdb") as new:
            assert new.manifest.dataset_digest == old.manifest.dataset_digest
        _, found = samples(without_export_manifest(tmp_path / to))
        assert sorted(values["boxes"][0][3] for values in found.values()) == [4, 5, 6, 7]


@pytest.mark.slow
@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("count", [3, 300, pytest.param(3000, marks=pytest.mark.soak)])
def test_bare_files_at_several_sizes(count: int, to: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(count)
    classes = tuple(f"class_{n}" for n in range(7))
    fields: dict[str, Any] = {"image": "image", "boxes": "boxes", "labels": packstore.Labels(classes, of="boxes")}
    expected: dict[str, Any] = {}
    with Writer(tmp_path / "in.lmdb", fields=fields) as writer:
        for number in range(count):
            split = "train" if number < max(1, 2 * count // 3) else "val"
            objects = int(generator.integers(0, 5)) if number > 2 else 2
            places = np.sort(generator.integers(0, 19, (objects, 2, 2)), 1)
            boxes = [[x, y, right + 1, bottom + 1] for (x, y), (right, bottom) in places.tolist()]
            labels = generator.integers(0, 7, objects).tolist()
            writer.add(key=f"{number:06}.jpg", image=picture(number % 9), boxes=boxes, labels=labels, split=split)
            if objects or to != "open_images":
                expected[f"{number:06}.jpg"] = split, sorted(zip(boxes, [classes[n] for n in labels], strict=True))
    export(tmp_path / "in.lmdb", tmp_path / "out", to=to, bare=True)
    read_by, found = samples(tmp_path / "out")
    assert read_by == KINDS[to]
    for name, values in found.items():
        boxes = np.asarray(values.get("boxes", ())).reshape(-1, 4).round(3).tolist()
        found[name] = values["split"], sorted(zip(boxes, values.get("labels") or (), strict=True))
    assert found == expected


def test_names_of_kitti_stay_different(tmp_path: Path) -> None:
    names = ("a b", "a_b", "A_b", "1")
    fields: dict[str, Any] = {"image": "image", "boxes": "boxes", "labels": packstore.Labels(names, of="boxes")}
    with Writer(tmp_path / "in.lmdb", fields=fields) as writer:
        writer.add(key="a.jpg", image=picture(1), boxes=[[n, 1, n + 1, 2] for n in range(4)], labels=range(4))
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to="kitti")
    words = [line.split()[0] for line in (tmp_path / "out/label_2/a.txt").read_text().splitlines()]
    assert words == ["a_b", "a_b~2", "A_b~3", "_1"]
    assert report.losses[0] == "4 class names: KITTI's are one word, so they are changed"


def test_records_without_boxes(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "image": "image",
        "boxes": packstore.Boxes(optional=True),
        "labels": packstore.Labels(("a", "b"), of="boxes", optional=True),
    }
    with Writer(tmp_path / "in.lmdb", fields=fields) as writer:
        for number, boxes in enumerate(([[1, 2, 3, 4]], None, [])):
            labels = None if boxes is None else [1] * len(boxes)
            writer.add(key=f"{number}.jpg", image=picture(number), boxes=boxes, labels=labels)
    for to, expected in (("voc", "Annotations/{}.xml"), ("kitti", "label_2/{}.txt"), ("labelme", "images/{}.json")):
        export(tmp_path / "in.lmdb", tmp_path / to, to=to)
        there = [(tmp_path / to / expected.format(number)).exists() for number in range(3)]
        assert there == [True, False, True]
    export(tmp_path / "in.lmdb", tmp_path / "studio", to="label_studio")
    tasks = json.loads((tmp_path / "studio/tasks_all.json").read_text())
    assert [len(task["annotations"]) for task in tasks] == [1, 0, 1]


@pytest.mark.parametrize("to", ["voc", "kitti", "open_images", "coco", "yolo"])
def test_a_store_without_boxes_is_said(to: str, tmp_path: Path) -> None:
    fill(tmp_path / "set", {"a/1.jpg": picture(1), "b/2.jpg": picture(2)})
    convert(tmp_path / "set", tmp_path / "in.lmdb")
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to=to)
    assert "objects: the store has no boxes" in report.losses
    assert "the column 'label'" in report.losses


def test_torchvision_reads_pascal_voc(tmp_path: Path) -> None:
    datasets = import_torchvision().datasets
    convert(voc(tmp_path / "set"), tmp_path / "in.lmdb")
    (tmp_path / "VOCdevkit").mkdir()
    export(tmp_path / "in.lmdb", tmp_path / "VOCdevkit/VOC2012", to="voc")
    found = datasets.VOCDetection(tmp_path, year="2012", image_set="train")
    expected = datasets.VOCDetection(tmp_path / "set", year="2012", image_set="train")
    assert len(found) == len(expected) == 4
    for (image, target), (their_image, theirs) in zip(found, expected, strict=True):
        assert image.tobytes() == their_image.tobytes()
        boxes, others = ([each["bndbox"] for each in t["annotation"].get("object", [])] for t in (target, theirs))
        assert boxes == others


def test_datumaro_reads_it(tmp_path: Path) -> None:
    datumaro = pytest.importorskip("datumaro")
    convert(coco(tmp_path / "set"), tmp_path / "in.lmdb")
    for to, name in (("datumaro", "datumaro"), ("cvat", "cvat"), ("voc", "voc_detection")):
        export(tmp_path / "in.lmdb", tmp_path / to, to=to)
        found = datumaro.Dataset.import_from(str(tmp_path / to), name)
        boxes = [each for item in found for each in item.annotations if each.type.name in ("bbox", "polygon")]
        assert len(boxes) == 8, to


@pytest.mark.parametrize("dtype", [None, "uint8", "uint16", "int32"])
def test_masks_come_back_as_files_with_a_palette(dtype: str | None, tmp_path: Path) -> None:
    from PIL import Image

    values = [np.full((20, 30), n, np.uint8) for n in (0, 3, 255)]
    fields: dict[str, Any] = {"image": "image", "mask": packstore.Mask(dtype, optional=True)}
    with Writer(tmp_path / "in.lmdb", fields=fields) as writer:
        for number, each in enumerate((*values, None)):
            mask = each if each is None or dtype is None else each.astype(dtype) * (257 if dtype != "uint8" else 1)
            data = None if mask is None else png(mask) if dtype is None else mask
            writer.add(key=f"{number}.jpg", image=picture(number), mask=data)
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to="masks")
    assert "'mask'" not in "\n".join(report.losses)
    again = convert(tmp_path / "out", tmp_path / "again.lmdb").manifest
    assert again.dataset_digest == report.manifest.dataset_digest
    assert not (tmp_path / "out/masks/3.png").exists()
    for number, each in enumerate(values):
        image = Image.open(tmp_path / f"out/masks/{number}.png")
        assert image.mode == ("P" if dtype in (None, "uint8") else "I;16")
        assert (np.array(image) == each.astype(np.uint16) * (1 if dtype in (None, "uint8") else 257)).all()
        if image.mode == "P":  # as Pascal VOC colours its classes
            assert image.getpalette()[3 * 1 : 3 * 4] == [128, 0, 0, 0, 128, 0, 128, 128, 0]
    with closing(open_source(without_export_manifest(tmp_path / "out"))) as source:
        assert source.kind == "companions"


def png(mask: Any) -> bytes:
    """A mask as a gray PNG file."""
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(mask).save(out, "PNG")
    return out.getvalue()


@pytest.mark.slow
def test_both_masks_of_an_image(tmp_path: Path) -> None:
    digest = convert(voc(tmp_path / "set"), tmp_path / "in.lmdb").manifest.dataset_digest
    export(tmp_path / "in.lmdb", tmp_path / "out", to="masks")
    there = sorted({each.parent.parts[-5] for each in (tmp_path / "out").rglob("*.png")})
    assert there == ["masks", "object_masks"]
    assert convert(tmp_path / "out", tmp_path / "again.lmdb").manifest.dataset_digest == digest
    export(tmp_path / "in.lmdb", tmp_path / "out", to="masks", overwrite=True)


@pytest.mark.parametrize("to", sorted(EXPORTS))
def test_bare_exports(to: str, tmp_path: Path) -> None:
    files = {f"{split}/{label}/{label}{n}{split}.jpg": jpeg(n) for split in ("train", "val") for label in "ab"
             for n in range(3)}  # fmt: skip
    convert(fill(tmp_path / "set", files), tmp_path / "in.lmdb", encoding="original")
    destination = tmp_path / f"out{next(iter(EXPORTS[to].suffixes), '')}"
    report = export(tmp_path / "in.lmdb", destination, to=to, bare=True)
    assert any(loss.startswith("packstore.json (--bare)") for loss in report.losses)
    if destination.is_dir():
        assert not list(destination.rglob("packstore*.json*"))
    else:
        assert b"packstore.json" not in destination.read_bytes()
        assert b"packstore.rows" not in destination.read_bytes()
    with pytest.raises(NotAStoreError, match="not an export of packstore"):
        export(tmp_path / "in.lmdb", destination, to=to, bare=True, overwrite=True)
    if to in ("imagefolder", "tar", "zip", "webdataset", "tfds", "mds", "parquet"):
        manifest = convert(destination, tmp_path / "again.lmdb").manifest
        assert manifest.records == 12
        assert manifest.classes == (None if to == "mds" else ("a", "b"))
