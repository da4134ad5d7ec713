"""Files of numpy's, made by numpy: ``.npz`` as MedMNIST and keras publish them, and ``.npy`` files side by side."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import Source, open_source
from packstore.testing import SourceSuite
from tests.internals import SampleError, SourceError
from tests.makers.images import tiny
from tests.makers.sources import look, not_packed, question, refused

RNG = np.random.default_rng(6)


def pixels(*shape: int) -> Any:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def images(source: Source) -> list[Any]:
    return [source.image(entry) for entry in source.entries()]


class TestNpz(SourceSuite):
    kind = "npz"
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        numbers, half = np.arange(samples, dtype=np.uint32), samples // 2
        x = numbers.view(np.uint8).reshape(samples, 2, 2)
        np.savez_compressed(
            folder / "data.npz",
            x_train=x[:half],
            y_train=numbers[:half] % 3,
            x_test=x[half:],
            y_test=numbers[half:] % 3,
        )
        return folder / "data.npz"

    def change(self, path: Path) -> None:
        np.savez_compressed(path, **{name: array + 1 for name, array in np.load(path).items()})


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_medmnist(save: Any, tmp_path: Path) -> None:
    """Its names, shapes and dtypes (labels N x 1), as MedMNIST 3.0 publishes them."""
    made = {}
    for split, count in (("train", 6), ("val", 3), ("test", 4)):
        made[split] = pixels(count, 28, 28, 3), RNG.integers(0, 9, (count, 1)).astype(np.uint8)
    arrays = {f"{split}_{name}": each[k] for split, each in made.items() for k, name in enumerate(("images", "labels"))}
    save(tmp_path / "pathmnist.npz", **arrays)
    report = convert(tmp_path / "pathmnist.npz", tmp_path / "o.lmdb")
    assert [(s.name, len(s)) for s in report.manifest.splits] == [("train", 6), ("val", 3), ("test", 4)]
    for split, (x, y) in made.items():
        ds = PackedDataset(tmp_path / "o.lmdb", split, output="numpy")
        assert [label for _, label in ds] == y.ravel().tolist()
        assert all(np.array_equal(image, x[n]) for n, (image, _) in enumerate(ds))
    assert verify(tmp_path / "o.lmdb", against=tmp_path / "pathmnist.npz").problems == ()


def test_several_labels_a_sample_keep_their_name(tmp_path: Path) -> None:
    labels = RNG.integers(0, 2, (5, 14)).astype(np.uint8)
    np.savez(tmp_path / "chestmnist.npz", train_images=pixels(5, 8, 8), train_labels=labels)
    report = convert(tmp_path / "chestmnist.npz", tmp_path / "o.h5")
    assert report.manifest.column("labels").shape == (14,)
    ds = PackedDataset(tmp_path / "o.h5", columns=("labels",), output="numpy")
    assert np.array_equal(np.stack(list(ds)), labels)


def test_keras_mnist_as_it_is_published(tmp_path: Path) -> None:
    x, y = pixels(4, 28, 28), np.array([5, 0, 4, 1], np.uint8)
    np.savez_compressed(tmp_path / "mnist.npz", x_test=x[:1], x_train=x, y_train=y, y_test=y[:1])
    with closing(open_source(tmp_path / "mnist.npz")) as source:
        assert dict(source.survey().splits) == {"train": 4, "test": 1}
        assert source.survey().shape == (28, 28, 1)
        assert source.survey().mode == "L"
        samples = [source.read(entry) for entry in source.entries("train")]
        assert [sample.values["label"] for sample in samples] == [5, 0, 4, 1]  # type: ignore[union-attr]
        assert all(np.array_equal(image[..., 0], x[n]) for n, image in enumerate(images(source)[:4]))
        assert source.evidence == "images x_train (4, 28, 28) uint8, labels y_train (4,) uint8, and 1 more like these"


@pytest.mark.parametrize("split", ["", "train_"])
def test_files_side_by_side(split: str, tmp_path: Path) -> None:
    x, y = pixels(5, 3, 8, 9), np.arange(5, dtype=">i8")
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d" / f"{split}images.npy", x)
    np.save(tmp_path / "d" / f"{split}labels.npy", y)
    (tmp_path / "d" / "README.md").touch()
    with closing(open_source(tmp_path / "d")) as source:
        survey = source.survey()
        assert dict(survey.splits) == {split.rstrip("_"): 5}
        assert survey.ledger.passed_over == {"not images (.md)": 1}
        assert all(np.array_equal(image, x[n].transpose(1, 2, 0)) for n, image in enumerate(images(source)))


def test_parts_by_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for number in (11, 2):
        np.save(tmp_path / "train" / f"x_{number}.npy", np.full((2, 8, 9), number, np.uint8))
        np.save(tmp_path / "train" / f"y_{number}.npy", np.full(2, number))
    with closing(open_source(tmp_path)) as source:
        assert source.kind == "npz"
        assert [entry.key for entry in source.entries()][:1] == ["train/0000000000"]
        assert [int(image[0, 0, 0]) for image in images(source)] == [2, 2, 11, 11]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [0, 3])
def test_any_order_of_axes(axis: int, order: Any, compress: bool, tmp_path: Path) -> None:
    """Column-major arrays, and the samples on the last axis, as in SVHN's files."""
    x = pixels(5, 8, 9, 3)
    stored = np.asarray(np.moveaxis(x, 0, axis), order=order)
    (np.savez_compressed if compress else np.savez)(tmp_path / "a.npz", X=stored, y=np.arange(5))
    with closing(open_source(tmp_path / "a.npz")) as source:
        assert all(np.array_equal(image, x[n]) for n, image in enumerate(images(source)))


def test_one_image_a_file_is_not_taken_for_samples(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", pixels(16, 16, 3))
    question(tmp_path, "the order of its axes is not clear")


def test_objects_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    np.savez(tmp_path / "a.npz", x=np.array([Bad(), Bad()], object), y=np.arange(2))
    refused(SourceError, tmp_path / "a.npz", "holds Python objects, which numpy pickles")
    for x in (np.full((3, 8, 9), "text", object), np.ones((3, 8, 9), np.complex64)):
        np.savez(tmp_path / "c.npz", x=x, y=np.arange(3))
        refused(SourceError, tmp_path / "c.npz", r"holds (Python objects|complex64)", image_key="x")
    np.savez(tmp_path / "b.npz", x=pixels(2, 8, 9), meta=np.array({"a": Bad()}, object))
    with closing(open_source(tmp_path / "b.npz")) as source:
        assert source.survey().ledger.passed_over == {"arrays that are no values of samples": 1}
        assert len(images(source)) == 2
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("compress", [False, True])
def test_damage_is_found_by_the_checksum_of_the_zip(compress: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    (np.savez_compressed if compress else np.savez)(path, x=pixels(40, 8, 9), y=np.arange(40))
    data = bytearray(path.read_bytes())
    data[1500] ^= 1
    path.write_bytes(data)
    caught = not_packed(SampleError, path, tmp_path / "o.h5", r"x\.npy is damaged|it is damaged|it is cut off")
    assert caught.key == "0000000000"


def test_damaged_names_of_classes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=pixels(6, 8, 9, 3), class_names=np.array(["cat", "dog", "cat", "cow", "dog", "elk"]))
    data = path.read_bytes()
    path.write_bytes(data.replace("elk".encode("utf-32-le"), "elf".encode("utf-32-le")))
    refused(SourceError, path, r"a\.npz: class_names\.npy is damaged", label_key="class_names")


def test_a_text_that_becomes_another_after_opening_is_a_bad_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=pixels(20, 8, 9, 3), label=np.array(["cat", "dog"] * 10))
    with closing(open_source(path, label_key="label")) as source:
        source.survey()  # reads the classes
        *_, last = source.entries()  # the first texts are kept
        path.write_bytes(path.read_bytes().replace("dog".encode("utf-32-le"), "cow".encode("utf-32-le")))
        with pytest.raises(SampleError, match="label: 'cow' is not one of the classes: its file has changed"):
            source.read(last)


@pytest.mark.parametrize("array", [np.arange(9), np.zeros((3, 3)), np.zeros((1, 2, 3, 4, 5)), np.full((3, 8, 9), "a")])
def test_an_array_that_cannot_be_images(array: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=pixels(3, 8, 9, 3), z=array)
    refused(SourceError, tmp_path / "a.npz", r"z \(.* cannot be images", image_key="z")


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (9, 8, 8)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 8, 8)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-2, 8, 8)}",
        "{'descr': '|u1', 'fortran_order': 0, 'shape': 3}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (2, 8, 8)}",
        "{'descr': '|u1'}",
        "__import__('os').system('touch ran')",
        "[" * 5000,
        "{" * 200,
        "",
    ],
)
def test_headers_that_lie(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.npy").write_bytes(header(text) + bytes(100))
    refused(SourceError, tmp_path / "x.npy")
    assert not (tmp_path / "ran").exists()


def test_zips_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((50, 64, 64), np.uint8))
    whole = path.read_bytes()
    for size in (3, 40, 100, len(whole) - 5):
        path.write_bytes(whole[:size])
        refused(SourceError, path)
    for old, new in ((b"PK\x03\x04", b"PK\x03\x05"), (b"x.npy", b"x.txt")):
        path.write_bytes(whole.replace(old, new))
        refused(SourceError, path, kind="npz")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header("{'descr': '|u1', 'fortran_order': False, 'shape': (0,)}"))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", b"")
    refused(SourceError, path, "twice")


def test_an_archive_of_images_with_an_array_first_is_no_npz(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("stats.npy", b"")
        for number in range(4):
            archive.writestr(f"{'ab'[number % 2]}/{number}.png", tiny(number))
    assert look(tmp_path / "a.zip").kind == "imagefolder"


def test_class_folders_beside_an_array_are_an_image_folder(tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", np.zeros(3))
    for number in range(4):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        (tmp_path / "ab"[number % 2] / f"{number}.png").write_bytes(tiny(number))
    assert look(tmp_path).kind == "imagefolder"


@pytest.mark.slow
@pytest.mark.parametrize("compress", [False, True])
def test_memory_does_not_grow_with_the_array(compress: bool, tmp_path: Path) -> None:
    x = np.zeros((40_000, 32, 32, 3), np.uint8)  # 120 MB
    x[:, 0, 0, 0] = np.arange(40_000) % 251
    (np.savez_compressed if compress else np.savez)(tmp_path / "a.npz", x=x)
    del x
    tracemalloc.start()
    try:
        with closing(open_source(tmp_path / "a.npz")) as source:
            for number, entry in enumerate(source.entries()):
                if number % 400 == 0:
                    assert source.image(entry)[0, 0, 0] == number % 251
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


def test_labels_that_are_a_pickle_are_not_lost(tmp_path: Path) -> None:
    labels = np.array(["a", None, "b"], dtype=object)
    np.savez(tmp_path / "a.npz", images=pixels(3, 8, 8, 3), labels=labels, notes=labels)
    refused(SourceError, tmp_path / "a.npz", "labels holds Python objects")
