"""Bridges: what another library reads is what packstore packs, and nothing is unpickled on the way."""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
import pkgutil
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packstore import PackedDataset, SourceError, UsageError, convert, verify
from packstore.stores import open_store
from tests.internals import ConvertOptions, make_plan, restrict_library
from tests.makers import layouts
from tests.makers.all_layouts import idx
from tests.makers.annotated import fill, jpeg, voc
from tests.makers.sources import not_packed, refused
from tests.makers.torchvision import import_torchvision
from tests.makers.torchvision_sets import SETS as TORCHVISION_SETS

CORPUS = Path(__file__).parents[1] / "corpus"


def named(samples: int, maker: Callable[[int], tuple[str, layouts.Files]]) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        name, files = maker(samples)
        return fill(root / name, files)

    return make


def country(root: Path) -> Path:
    """Three folders of classes, each image another one."""
    names = (f"{split}/{kind}/{n}.jpg" for split in ("train", "valid", "test") for kind in ("AD", "AE") for n in (1, 2))
    return fill(root / "country211", {name: jpeg(seed) for seed, name in enumerate(names)})


def digits(root: Path) -> Path:
    """MNIST in which each image is another one."""
    rng = np.random.default_rng(0)
    files: layouts.Files = {}
    for split, count in (("train", 6), ("t10k", 3)):
        files[f"{split}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (count, 28, 28), np.uint8))
        files[f"{split}-labels-idx1-ubyte"] = idx(rng.integers(0, 10, count, np.uint8))
    fill(root / "MNIST/raw", files)
    return root


SETS: Mapping[str, Callable[[Path], Path]] = {
    "Country211": country,
    "DTD": named(9, layouts.dtd),
    "Flowers102": named(9, layouts.flowers102),
    "Food101": named(9, layouts.food101),
    "GTSRB": named(9, layouts.gtsrb),
    "MNIST": digits,
    "OxfordIIITPet": named(9, layouts.oxfordpet),
    "STL10": named(12, layouts.stl10),
    "SUN397": named(9, layouts.sun397),
    "SVHN": named(9, layouts.svhn),
}
"""Makers of data sets that packstore reads itself, by the name of torchvision's class."""


@pytest.fixture
def without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made files do not have the digests of published ones."""
    for module in pkgutil.iter_modules(import_torchvision().datasets.__path__):
        loaded = importlib.import_module(f"torchvision.datasets.{module.name}")
        if hasattr(loaded, "check_integrity"):
            monkeypatch.setattr(loaded, "check_integrity", lambda file, md5=None: Path(file).is_file())


def contents(store: Path) -> dict[bytes, tuple[Any, ...]]:
    """Of each image: its split, the name of its class, and its boxes with the names of theirs."""
    found = {}
    with open_store(store) as reader:
        columns = {column.name: column for column in reader.manifest.columns}
        splits = [split for split in reader.manifest.splits for _ in range(split.start, split.stop)]
        for n in range(len(reader)):
            label = reader.item("label", n) if "label" in columns else None
            boxes = reader.item("boxes", n) if "boxes" in columns else None
            labels = reader.item("labels", n) if "labels" in columns and boxes is not None else None
            classes = columns["labels"].classes or () if "labels" in columns else ()
            rows = [] if boxes is None else [tuple(box) for box in boxes.tolist()]
            names = [""] * len(rows) if labels is None else [classes[number].lower() for number in labels.tolist()]
            kind = None if label is None else (columns["label"].classes or [*map(str, range(10))])[label]
            split = splits[n].name if splits else ""
            found[bytes(reader.item("image", n))] = (split, kind, sorted(zip(rows, names, strict=True)))
    return found


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.sampled(6, fast=0)
@pytest.mark.parametrize("name", SETS)
def test_torchvision_reads_what_packstore_reads_itself(name: str, tmp_path: Path) -> None:
    path = SETS[name](tmp_path / "root")
    bridged = f"torchvision:{name}:{tmp_path / 'root'}"
    report = convert(bridged, tmp_path / "bridged.lmdb")
    assert not verify(tmp_path / "bridged.lmdb", against=bridged).problems
    convert(path, tmp_path / "own.lmdb")
    found, own = contents(tmp_path / "bridged.lmdb"), contents(tmp_path / "own.lmdb")
    assert len(found) == report.manifest.records > 5
    assert found.keys() == own.keys() or (name in ("STL10", "SVHN") and found.keys() < own.keys())
    for image, (split, label, objects) in found.items():
        assert split == own[image][0] or name == "SUN397"
        assert objects == own[image][2] or name in ("GTSRB", "OxfordIIITPet")  # torchvision leaves their boxes out
        # Here packstore has other names, none, or the number in the file.
        assert label == own[image][1] or name in ("GTSRB", "MNIST", "OxfordIIITPet", "SUN397", "SVHN")


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.sampled(2, fast=0)
@pytest.mark.parametrize("called", TORCHVISION_SETS)
def test_torchvision_keeps_pixels_and_labels(called: str, tmp_path: Path) -> None:
    make, splits, arguments, classes = TORCHVISION_SETS[called]
    make(tmp_path / "root")
    source = f"torchvision:{called}:{tmp_path / 'root'}"
    manifest = convert(source, tmp_path / "out.lmdb").manifest
    assert not verify(tmp_path / "out.lmdb", against=source).problems
    assert {split.name: split.stop - split.start for split in manifest.splits} == splits
    made = getattr(import_torchvision().datasets, called.partition(",")[0])
    with open_store(tmp_path / "out.lmdb") as reader:
        assert reader.manifest.classes == classes
        for split in manifest.splits:
            data = made(root=str(tmp_path / "root"), **arguments[split.name])
            stored = [stored_values(reader, n) for n in range(split.start, split.stop)]
            assert stored == [(image.convert("RGB").tobytes(), label) for image, label in data]


def stored_values(reader: Any, number: int) -> tuple[bytes, int]:
    """Pixels and label of a record."""
    image = reader.item("image", number)
    if reader.manifest.encoding == "uint8":
        shown = Image.fromarray(np.atleast_2d(np.asarray(image).squeeze()))
    else:
        shown = Image.open(io.BytesIO(image))
    return shown.convert("RGB").tobytes(), int(reader.item("label", number))


@pytest.mark.slow
@pytest.mark.usefixtures("without_checksums")
def test_cifar_is_unpickled_by_torchvision_once_its_digests_are_right(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        batch = {"labels": [n % 3 for n in range(4)], "data": rng.integers(0, 256, (4, 3072), np.uint8)}
        fill(tmp_path, {f"cifar-10-batches-py/{name}": pickle.dumps(batch)})
    fill(tmp_path, {"cifar-10-batches-py/batches.meta": pickle.dumps({"label_names": ["cat", "dog", "fox"]})})
    manifest = convert(f"torchvision:CIFAR10:{tmp_path}", tmp_path / "out.lmdb").manifest
    assert {split.name: split.stop - split.start for split in manifest.splits} == {"train": 20, "test": 4}
    with open_store(tmp_path / "out.lmdb") as reader:
        last = np.asarray(reader.item("image", 23)).reshape(32, 32, 3)
        assert np.array_equal(last.transpose(2, 0, 1).ravel(), batch["data"][3])


@pytest.mark.slow
def test_images_without_files_are_packed_as_pixels_or_as_asked_for(tmp_path: Path) -> None:
    import_torchvision()
    SETS["MNIST"](tmp_path)
    for encoding in (None, "jpeg"):
        store = tmp_path / f"{encoding}.lmdb"
        report = convert(f"torchvision:MNIST:{tmp_path}", store, encoding=encoding)
        assert report.manifest.encoding == (encoding or "uint8")
        assert {split.name: split.stop - split.start for split in report.manifest.splits} == {"train": 6, "test": 3}
        assert len(PackedDataset(store, split="test")) == 3


@pytest.mark.slow
def test_arguments_choose_a_split(tmp_path: Path) -> None:
    import_torchvision()
    SETS["DTD"](tmp_path)
    for arguments, splits in ((",split=val", ["val"]), (",split=train,partition=1", ["train"]), ("", None)):
        report = convert(f"torchvision:DTD{arguments}:{tmp_path}", tmp_path / "out.lmdb", overwrite=True)
        assert [split.name for split in report.manifest.splits] == (splits or ["train", "val", "test"])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("torchvision:Nope:{}", "torchvision:Nope is not one of the datasets of classes"),
        ("torchvision:MNIST:{}/nothing", "nothing: no such file or directory"),
        ("torchvision:MNIST", "write torchvision:NAME:ROOT"),
        ("torchvision:MNIST,colour=red:{}", "unexpected keyword argument 'colour'"),
        ("torchvision:MNIST:{}", "cannot read it: RuntimeError: Dataset not found"),
        ("torchvision:DTD,split=quiz:{}", "cannot read it: ValueError: Unknown value 'quiz'"),
        ("torchvision:CelebA:{}", "give packstore the folder itself"),
        ("datumaro:coco", "write datumaro:FORMAT:PATH"),
        ("tfds:mnist", "write tfds:NAME:DATA_DIR"),
        ("datasets:{}/nothing", "nothing: no such file or directory"),
    ],
)
def test_unreadable_sources_are_named_in_one_line(source: str, said: str, tmp_path: Path) -> None:
    import_torchvision()
    caught = not_packed((UsageError, SourceError), source.format(tmp_path), tmp_path / "out.lmdb")
    assert said in str(caught)
    assert str(caught).isprintable()
    assert not (tmp_path / "out.lmdb").exists()


@pytest.mark.parametrize(
    ("source", "wanted"),
    [("fiftyone:set", "fiftyone"), ("datumaro:coco:.", "datumaro"), ("tfds:mnist:.", "tensorflow-datasets")],
)
def test_a_library_that_is_missing_is_named(source: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("fiftyone", "datumaro", "tensorflow_datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    refused(UsageError, Path(source), f"pip install {wanted}$")


@pytest.mark.slow
def test_a_path_that_is_called_like_a_bridge_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(Path("datasets:photos"), {"a.jpg": jpeg(1), "b.jpg": jpeg(2)})
    assert convert("datasets:photos", "out.lmdb").manifest.records == 2


def test_options_for_paths_are_refused(tmp_path: Path) -> None:
    for given in ({"kind": "flat"}, {"ignore": "*.txt"}, {"image_key": "x"}, {"layout": "NHWC"}):
        refused(UsageError, Path("fiftyone:set"), **given)


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickles_of_cifar_are_opened_only_after_their_digest_was_compared(tmp_path: Path) -> None:
    import_torchvision()
    folder = tmp_path / "cifar-10-batches-py"
    names = ["test_batch", "batches.meta", *(f"data_batch_{n}" for n in range(1, 6))]
    evil = pickle.dumps(Evil(tmp_path / "ran"))
    fill(folder, dict.fromkeys(names, evil))
    refused(SourceError, Path(f"torchvision:CIFAR10:{tmp_path}"), "not found or corrupted")
    assert not (tmp_path / "ran").exists()


def test_unpickling_is_refused_in_this_thread_and_while_it_is_asked_for_alone() -> None:
    data = pickle.dumps(Path("x"))
    with restrict_library("a library"), pytest.raises(SourceError, match="a library would unpickle"):
        pickle.loads(data)
    with restrict_library("a library", unpickles=True):
        assert pickle.loads(data) == Path("x")
    with restrict_library("a library"):
        assert pickle.loads(pickle.dumps({"plain": [1, "two"]})) == {"plain": [1, "two"]}
    assert pickle.loads(data) == Path("x")


def test_no_bridge_reaches_another_machine() -> None:
    with restrict_library("a library"), pytest.raises(SourceError, match=r"would connect to packstore\.invalid"):
        socket.getaddrinfo("packstore.invalid", 80)
    with restrict_library("a library"), pytest.raises(SourceError, match=r"would connect to 192\.0\.2\.1"):
        socket.create_connection(("192.0.2.1", 80))
    with socket.create_server(("127.0.0.1", 0)) as server, restrict_library("a library"):
        socket.create_connection(server.getsockname()).close()


# --- libraries that are not always there ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "objects": {"bbox": datasets.List(datasets.List(datasets.Value("float32")))},
        }
    )
    rows = {
        "image": [{"bytes": jpeg(n), "path": f"{n}.jpg"} for n in range(20)],
        "label": [n % 2 for n in range(20)],
        "objects": [{"bbox": [[1, 2, 3, 4]] * (n % 3)} for n in range(20)],
    }
    data = datasets.Dataset.from_dict(rows, features=features)
    (tmp_path / "parquet").mkdir()
    data.to_parquet(tmp_path / "parquet" / "train-00000-of-00001.parquet")
    chosen = data.select([3, 1, 2])
    datasets.DatasetDict(train=data, test=chosen).save_to_disk(str(tmp_path / "saved"))
    loaded = datasets.load_dataset(str(tmp_path / "parquet"), cache_dir=str(tmp_path / "cache"))
    cached = Path(loaded["train"].cache_files[0]["filename"]).parent
    for path, splits in (("parquet", {"train": 20}), ("saved", {"train": 20, "test": 3}), (cached, {"train": 20})):
        source, store = f"datasets:{tmp_path / path}", tmp_path / "out.lmdb"
        report = convert(source, store, layout="xywh", overwrite=True)
        assert {split.name: split.stop - split.start for split in report.manifest.splits} == splits
        assert not verify(store, against=source, layout="xywh").problems
        with open_store(store) as reader:
            assert bytes(reader.item("image", 5)) == jpeg(5)
            assert reader.item("label", 5) == 1
            assert reader.item("boxes", 5).tolist() == [[1, 2, 4, 6]] * 2


@pytest.mark.slow
def test_tfds(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow_datasets")
    shutil.copytree(CORPUS / "tfds", tmp_path / "data/things/1.2.0")
    convert(tmp_path / "data/things/1.2.0", tmp_path / "own.lmdb")
    for name in ("things", "things:1.2.0"):
        source = f"tfds:{name}:{tmp_path / 'data'}"
        convert(source, tmp_path / "out.lmdb", overwrite=True)
        assert not verify(tmp_path / "own.lmdb", against=source).problems
    refused(SourceError, Path(f"tfds:nothing:{tmp_path / 'data'}"), "Could not find dataset files for: nothing")


@pytest.mark.slow
def test_datumaro(tmp_path: Path) -> None:
    pytest.importorskip("datumaro")
    voc(tmp_path / "voc")
    source = f"datumaro:voc_detection:{tmp_path / 'voc'}"
    report = convert(source, tmp_path / "out.lmdb")
    assert [split.name for split in report.manifest.splits] == ["train", "trainval", "val"]
    assert not verify(tmp_path / "out.lmdb", against=source).problems
    convert(tmp_path / "voc", tmp_path / "own.lmdb")
    found, own = contents(tmp_path / "out.lmdb"), contents(tmp_path / "own.lmdb")
    for image, (split, _, each) in found.items():
        moved = [((x - 1, y - 1, right, bottom), label) for (x, y, right, bottom), label in each]
        assert moved == own[image][2]
        assert split in (own[image][0], "trainval")


# --- FiftyOne needs a database: a stand-in that behaves as FiftyOne 1.22 ----------------------------------------------


class Sample:
    """A sample of FiftyOne."""

    def __init__(self, path: Path, tags: list[str], **labels: Any) -> None:
        self._value = {"filepath": str(path), "tags": tags, "metadata": None, **labels}

    def to_json(self) -> str:
        return json.dumps(self._value)


class FiftyOne(ModuleType):
    """Its module, with one dataset, ``photos``."""

    def __init__(self, *samples: Sample, media_type: str = "image") -> None:
        super().__init__("fiftyone")
        self._photos = SimpleNamespace(
            iter_samples=lambda: iter(samples),
            default_classes=["cat"],
            classes={"truth": ["dog"]},
            media_type=media_type,
        )

    def load_dataset(self, name: str) -> Any:
        if name != "photos":
            raise ValueError(f"Dataset {name} not found")
        return self._photos


def boxes(count: int) -> dict[str, Any]:
    each = {"_cls": "Detection", "attributes": {}, "label": "dog", "bounding_box": [0.25, 0.5, 0.5, 0.25]}
    return {"_cls": "Detections", "detections": [each] * count}


@pytest.mark.slow
def test_fiftyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "photos", {f"{n % 2}/{n}.jpg": jpeg(n) for n in range(4)})
    rain = {"_cls": "Classification", "label": "rain", "confidence": 0.5}
    paths = [tmp_path / f"photos/{n % 2}/{n}.jpg" for n in range(4)]
    tags = ["test", "train", "train", "train"]
    samples = [Sample(paths[n], [tags[n], "seen"], truth=boxes(n), weather=rain) for n in range(4)]
    monkeypatch.setitem(sys.modules, "fiftyone", FiftyOne(*samples))
    report = convert("fiftyone:photos", tmp_path / "out.lmdb")
    assert {split.name: split.stop - split.start for split in report.manifest.splits} == {"train": 3, "test": 1}
    assert not verify(tmp_path / "out.lmdb", against="fiftyone:photos").problems
    with open_store(tmp_path / "out.lmdb") as reader:
        assert [reader.key(n) for n in range(4)] == ["data/1/1.jpg", "data/0/2.jpg", "data/1/3.jpg", "data/0/0.jpg"]
        assert bytes(reader.item("image", 1)) == jpeg(2)
        assert reader.item("boxes", 1).tolist() == [[4, 4, 12, 6]] * 2
        columns = {column.name: column for column in reader.manifest.columns}
        assert columns["labels"].classes == ("cat", "dog")
        assert columns["label"].classes == ("rain",)
        assert np.array_equal(reader.item("labels", 1), [1, 1])


def test_fiftyone_of_which_some_samples_have_no_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"a.jpg": jpeg(1), "b.jpg": jpeg(2)})
    samples = Sample(tmp_path / "a.jpg", ["train"]), Sample(tmp_path / "b.jpg", [])
    monkeypatch.setitem(sys.modules, "fiftyone", FiftyOne(*samples))
    report = convert("fiftyone:photos", tmp_path / "out.lmdb")
    assert report.manifest.records == 2
    assert [split.name for split in report.manifest.splits] == ["train", "unassigned"]


def test_fiftyone_refuses_videos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fiftyone", FiftyOne(media_type="video"))
    refused(UsageError, Path("fiftyone:photos"), "holds video; bridges read images")
    refused(SourceError, Path("fiftyone:other"), "fiftyone cannot read it: ValueError: Dataset other not found")


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    import_torchvision()
    SETS["DTD"](tmp_path / "root")
    plan = make_plan(Path(f"torchvision:DTD:{tmp_path / 'root'}"), tmp_path / "out.lmdb", ConvertOptions())
    assert plan.survey.resumable
    assert "torchvision:DTD" in plan.source.resume_key()
    plan.source.close()
