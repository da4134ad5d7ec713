"""HDF5 files of others, made by h5py: which arrays are taken for what, and what is asked instead of guessed."""

from __future__ import annotations

import os
import statistics
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import Source, open_source
from packstore.testing import SourceSuite
from tests.internals import PackstoreError, SampleError, SourceError, UsageError
from tests.internals import repair_store as repair
from tests.makers.annotated import fill
from tests.makers.images import tiny
from tests.makers.sources import look, not_packed, prove, question, refused

RNG = np.random.default_rng(5)


def pixels(*shape: int) -> Any:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def write(path: Path, arrays: dict[str, Any], **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)
    return path


def images(source: Source) -> list[Any]:
    return [source.image(entry) for entry in source.entries()]


class TestHdf5(SourceSuite):
    kind = "hdf5"
    undecodable_keys = False

    def make(self, folder: Path, samples: int) -> Path:
        numbers = np.arange(samples, dtype=np.uint32)
        x = np.repeat(numbers.view(np.uint8).reshape(samples, 2, 2, 1), 3, axis=3)
        path, half = folder / "data.h5", samples // 2
        arrays = {"x_train": x[:half], "y_train": numbers[:half] % 3, "x_test": x[half:], "y_test": numbers[half:] % 3}
        return write(path, arrays)

    def change(self, path: Path) -> None:
        with h5py.File(path, "r+") as file:
            file["y_train"][1] = 2


PCAM = "camelyonpatch_level_2_split_{}_{}.h5"


def pcam(folder: Path) -> dict[str, tuple[Any, Any]]:
    folder.mkdir()
    found = {}
    for split, count in (("train", 7), ("valid", 4), ("test", 3)):
        x, y = pixels(count, 8, 8, 3), RNG.integers(0, 2, (count, 1, 1, 1), dtype=np.uint8)
        write(folder / PCAM.format(split, "x"), {"x": x}, chunks=(3, 8, 8, 3), compression="gzip")
        write(folder / PCAM.format(split, "y"), {"y": y})
        found[split] = x, y
    (folder / "camelyonpatch_level_2_split_train_meta.csv").write_text("id\n")
    return found


@pytest.mark.slow
def test_pcam_has_images_and_labels_in_files_of_their_own(tmp_path: Path) -> None:
    made = pcam(tmp_path / "pcam")
    report = convert(tmp_path / "pcam", tmp_path / "p.lmdb")
    assert [(s.name, len(s)) for s in report.manifest.splits] == [("train", 7), ("valid", 4), ("test", 3)]
    assert dict(report.ledger.passed_over) == {"not images (.csv)": 1}
    for split, (x, y) in made.items():
        ds = PackedDataset(tmp_path / "p.lmdb", split, output="numpy")
        assert [label for _, label in ds] == y.ravel().tolist()
        assert all(np.array_equal(image, x[n]) for n, (image, _) in enumerate(ds))
    assert verify(tmp_path / "p.lmdb", against=tmp_path / "pcam").problems == ()


def test_one_file_of_pcam_has_no_labels(tmp_path: Path) -> None:
    pcam(tmp_path / "pcam")
    seen = look(tmp_path / "pcam" / PCAM.format("train", "x"))
    assert seen.columns == ()
    assert seen.evidence.endswith("no labels")


@pytest.mark.parametrize(
    ("shape", "options", "layout"),
    [
        ((6, 5, 4, 3), {}, "NHWC"),
        ((6, 3, 5, 4), {}, "NCHW"),
        ((6, 5, 4, 1), {}, "NHWC"),
        ((6, 1, 5, 4), {}, "NCHW"),
        ((6, 5, 4), {}, "NHW"),
        ((5, 4, 6), {}, "HWN"),
        ((5, 4, 3, 6), {}, "HWCN"),
        ((6, 3, 5, 3), {"layout": "NCHW"}, "NCHW"),
        ((6, 3, 4, 5), {"layout": "NCWH"}, "NCWH"),
    ],
)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_layouts(shape: tuple[int, ...], options: Any, layout: str, compression: str | None, tmp_path: Path) -> None:
    x = pixels(*shape)
    path = write(tmp_path / "a.h5", {"images": x, "labels": np.arange(6)}, compression=compression)
    expected = np.moveaxis(x, layout.index("N"), 0)
    letters = layout.replace("N", "")
    expected = expected[..., None] if "C" not in letters else expected
    letters = letters if "C" in letters else letters + "C"
    expected = expected.transpose(0, *(1 + letters.index(letter) for letter in "HWC"))
    with closing(open_source(path, **options)) as source:
        survey = source.survey()
        assert survey.shape == expected.shape[1:]
        for image, wanted in zip(images(source), expected, strict=True):
            assert np.array_equal(image, wanted)


def test_big_endian_labels_other_columns_and_classes(tmp_path: Path) -> None:
    x, vectors = pixels(3, 4, 4, 3), np.arange(6, dtype=">f4").reshape(3, 2)
    arrays = {
        "data/images": x,
        "data/labels": np.array([2, 0, 1], ">i2"),
        "data/embedding": vectors,
        "data/caption": np.array(["a", "ä", ""], dtype=h5py.string_dtype()),
        "data/good": np.array([True, False, True]),
        "data/masks": pixels(3, 4, 4),
        "class_names": np.array(["ant", "bee", "cat"], dtype=h5py.string_dtype()),
        "mean": np.zeros(2),
    }
    report = convert(write(tmp_path / "a.h5", arrays), tmp_path / "o.lmdb")
    assert report.manifest.classes == ("ant", "bee", "cat")
    assert dict(report.ledger.passed_over) == {"arrays that are no values of samples": 1}
    names = ("label", "data_embedding", "data_caption", "data_good", "data_masks")
    assert {name for name in names if report.manifest.has_column(name)} == set(names)
    ds = PackedDataset(tmp_path / "o.lmdb", columns=("image", *names), output="numpy")
    for n in range(3):
        image, label, vector, text, good, mask = ds[n]
        assert np.array_equal(image, x[n])
        assert (label, text, bool(good)) == ([2, 0, 1][n], ["a", "ä", ""][n], n != 1)
        assert np.array_equal(vector, vectors[n])
        assert np.array_equal(mask, arrays["data/masks"][n])


@pytest.mark.slow
def test_encoded_images_of_any_length(tmp_path: Path) -> None:
    many = [tiny(n) for n in range(60)]
    size = statistics.mode(map(len, many))
    files = [data for data in many if len(data) == size][:5]  # opaque values have one length
    with h5py.File(tmp_path / "v.h5", "w") as file:
        ragged = file.create_dataset("images", (5,), h5py.vlen_dtype(np.uint8))
        opaque = h5py.File(tmp_path / "o.h5", "w")
        voids = opaque.create_dataset("images", (5,), f"V{len(files[0])}")
        for n, data in enumerate(files):
            ragged[n] = np.frombuffer(data, np.uint8)
            voids[n] = np.void(data)
        file["labels"] = np.arange(5)
        opaque.close()
    for name in ("v.h5", "o.h5"):
        report = convert(tmp_path / name, tmp_path / f"{name}.lmdb")
        assert report.manifest.encoding == "original"
        ds = PackedDataset(tmp_path / f"{name}.lmdb", columns=("image",), output="bytes")
        assert [bytes(image) for image in ds] == files


def test_files_with_numbers_are_parts_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for number in (10, 9, 2):
        write(tmp_path / "d" / f"part_{number}.h5", {"x": np.full((2, 4, 5, 3), number, np.uint8), "y": [number] * 2})
    with closing(open_source(tmp_path / "d")) as source:
        assert [int(image[0, 0, 0]) for image in images(source)] == [2, 2, 9, 9, 10, 10]
    (tmp_path / "d" / "part_9.h5").rename(tmp_path / "d" / "cats_9.h5")
    with closing(open_source(tmp_path / "d")) as source:
        assert [int(image[0, 0, 0]) for image in images(source)] == [9, 9, 2, 2, 10, 10]


@pytest.mark.parametrize(
    ("arrays", "asked"),
    [
        ({"left": (5, 4, 4, 3), "right": (5, 4, 4, 3)}, "--image-key left; or --image-key right"),
        ({"images": (5, 3, 4, 3)}, "--layout NHWC; or --layout NCHW"),
        ({"volume": (5, 40, 40)}, "--layout NHW"),
        ({"image": (40, 40, 3)}, "--layout NHW"),
        ({"images": (4, 4, 3, 9)}, "--layout NHWC; or --layout NCHW"),
    ],
)
def test_what_is_not_clear_is_asked(arrays: dict[str, tuple[int, ...]], asked: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {name: pixels(*shape) for name, shape in arrays.items()})
    question(path, asked)


def test_several_labels_are_asked_for(tmp_path: Path) -> None:
    arrays = {"x": pixels(4, 5, 5, 3), "fine_labels": np.arange(4), "coarse_labels": np.arange(4) // 2}
    path = write(tmp_path / "a.h5", arrays)
    question(path, "--label-key coarse_labels; or --label-key fine_labels")
    report = convert(path, tmp_path / "o.h5", label_key="fine_labels")
    assert [c.name for c in report.manifest.columns if c.name.endswith(("label", "labels"))] == [
        "label",
        "coarse_labels",
    ]


def test_what_matlab_wrote_has_its_axes_reversed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mat", {"X": pixels(6, 3, 5, 4), "y": np.arange(6)})
    with h5py.File(path, "r+") as file:
        file["X"].attrs["MATLAB_class"] = np.bytes_("uint8")
    question(path, r"the order of its axes is not clear.*--layout NCWH")
    assert look(path, layout="NCWH").shape == (4, 5, 3)


def test_names_of_arrays_are_kept_for_going_on_and_for_proofs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"left": pixels(5, 4, 4, 3), "right": pixels(5, 4, 4, 3), "z": np.arange(5.0)})
    report = prove(path, tmp_path / "o.lmdb", image_key="right", label_key="z", layout="NHWC")
    options = report.manifest.options
    assert (options["image_key"], options["label_key"], options["layout"]) == ("right", "z", "NHWC")
    assert report.manifest.has_column("left")
    assert verify(tmp_path / "o.lmdb", against=path, image_key="left", label_key="z").problems
    assert not repair(tmp_path / "o.lmdb", path, tmp_path / "r.lmdb").lost
    sources = [open_source(path, image_key=name, label_key="z") for name in ("left", "right")]
    assert len({source.resume_key() for source in sources}) == 2
    for source in sources:
        source.close()


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"x": pixels(5, 4, 4, 3), "y": np.arange(5), "z": np.arange(4)})
    for options, said in (
        ({"image_key": "no"}, "has no array 'no', which --image-key names; arrays: x"),
        ({"label_key": "z"}, "5 images, and there are 4 labels"),
        ({"label_key": "x"}, "should have one number or text for each of 5 images"),
        ({"layout": "NHW"}, "has 4 axes, but the layout NHW has 3"),
        ({"layout": "HWCN"}, "layout HWCN|4 channels|images, and there are 5 labels"),
    ):
        refused(SourceError, path, said, **options)
    for layout in ("NCHWC", "HWC", "nhwc", "NNHW"):
        refused(UsageError, path, "layout should name the axes", layout=layout)
    fill(tmp_path, {"folder/a.png": tiny(1)})
    refused(SourceError, tmp_path / "folder", "is of no kind that uses image_key", image_key="x")


def test_pixels_are_never_rounded(tmp_path: Path) -> None:
    exact = {"images": pixels(5, 4, 4, 3).astype(np.float32), "labels": np.arange(5)}
    with closing(open_source(write(tmp_path / "a.h5", exact))) as source:
        planes = exact["images"].transpose(0, 3, 1, 2)  # as floating point lies in a store
        assert all(np.array_equal(image, planes[n]) for n, image in enumerate(images(source)))
        assert source.survey().mode == "multi:3:float32"
    wide = {"images": np.arange(5 * 16, dtype=np.int64).reshape(5, 4, 4), "labels": np.arange(5)}
    with closing(open_source(write(tmp_path / "wide.h5", wide))) as source:
        assert source.survey().mode == "I"
        assert all(np.array_equal(image[..., 0], wide["images"][n]) for n, image in enumerate(images(source)))
    exact["images"] = exact["images"].astype(np.float64)
    exact["images"][3] /= 255
    with pytest.raises(SampleError, match="which float32 does not hold: write the array again as float32") as caught:
        convert(write(tmp_path / "b.h5", exact), tmp_path / "o.h5")
    assert caught.value.key == "0000000003"


def test_labels_that_are_no_numbers_of_classes_keep_their_name(tmp_path: Path) -> None:
    targets = np.array([[0.5, 1], [2, 3], [4, 5]], np.float64)
    path = write(tmp_path / "a.h5", {"x": pixels(3, 4, 4, 3), "y": targets})
    report = convert(path, tmp_path / "o.h5")
    assert report.manifest.column("y").shape == (2,)
    assert not report.manifest.has_column("label")
    for odd in (1.5, np.inf, np.nan):
        one = write(tmp_path / "b.h5", {"x": pixels(3, 4, 4, 3), "y": [0.0, 1.0, odd]})
        not_packed(SampleError, one, tmp_path / "p.h5", rf"found {odd}, expected a whole number", label_key="y")


def test_datasets_in_deep_groups_are_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"x": pixels(3, 4, 4, 3), "g/" * 20 + "deep": np.arange(3) / 2})
    assert convert(path, tmp_path / "o.h5").manifest.has_column("g_" * 20 + "deep")


def test_a_split_without_labels(tmp_path: Path) -> None:
    arrays = {"x_train": pixels(3, 4, 4, 3), "y_train": np.arange(3), "x_test": pixels(2, 4, 4, 3)}
    report = convert(write(tmp_path / "a.h5", arrays), tmp_path / "o.h5")
    assert report.manifest.column("label").nullable


def test_files_that_refer_to_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "secret.h5", {"x": pixels(4, 4, 4, 3)})
    (tmp_path / "secret").write_bytes(bytes(4 * 4 * 4 * 3))
    with h5py.File(tmp_path / "in" / "link.h5", "w") as file:
        file["x"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "x")
    layout = h5py.VirtualLayout((4, 4, 4, 3), "u1")
    layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "x", (4, 4, 4, 3))
    with h5py.File(tmp_path / "in" / "virtual.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with h5py.File(tmp_path / "in" / "raw.h5", "w") as file:
        file.create_dataset("x", (4, 4, 4, 3), "u1", external=[(str(tmp_path / "secret"), 0, 192)])
    for name, said in (
        ("link", "is a link to x, which is not in the file"),
        ("virtual", "refers to values elsewhere"),
        ("raw", "refers to values elsewhere"),
    ):
        refused(SourceError, tmp_path / "in" / f"{name}.h5", said)


@pytest.mark.parametrize("where", ["", "beside", "cwd", "both"])
def test_raw_data_in_other_files_are_refused_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """HDF5 looks for them in the working directory, not in the folder of the file."""
    for folder in ("set", "home"):
        (tmp_path / folder / "keys").mkdir(parents=True)
    with h5py.File(tmp_path / "set" / "a.h5", "w") as file:
        file.create_dataset("images", (1, 8, 8, 3), "u1", external=[("keys/id_rsa", 0, h5py.h5f.UNLIMITED)])
        file["labels"] = np.zeros(1, np.int64)
    for folder, places in (("set", ("beside", "both")), ("home", ("cwd", "both"))):
        if where in places:
            (tmp_path / folder / "keys" / "id_rsa").write_bytes(b"private " * 24)
    monkeypatch.chdir(tmp_path / "home")
    refused(SourceError, tmp_path / "set" / "a.h5", "images refers to values elsewhere, which is not followed")


def test_a_virtual_dataset_is_refused_as_labels_and_left_out_as_a_column(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((4,), "i8")
    layout[:] = h5py.VirtualSource(".", "z", (4,))
    for name in ("labels", "more"):
        path = write(tmp_path / f"{name}.h5", {"x": pixels(4, 4, 4, 3), "z": np.arange(4)})
        with h5py.File(path, "a") as file:
            file.create_virtual_dataset(name, layout)
    refused(SourceError, tmp_path / "labels.h5", r"labels refers to values elsewhere, .*write the values into the file")
    assert look(tmp_path / "more.h5").ledger.passed_over == {"arrays that are no values of samples": 1}


TEXTS = ["dog", "ant", "cat ä", "ant", "dog", "dog"]


@pytest.mark.parametrize("kind", ["bytes", "strings"])
@pytest.mark.parametrize("name", ["labels", "label", "class", "class_name", "category", "y_train"])
def test_texts_that_may_be_labels_are_a_question(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x_train" if name == "y_train" else "images"] = pixels(6, 4, 4, 3)
        texts = [text.encode() for text in TEXTS]
        file[name] = np.array(texts) if kind == "bytes" else np.array(TEXTS, dtype=h5py.string_dtype())
    caught = question(path, f"{name} may name the class of each sample")
    assert [answer.options for answer in caught.answers] == [("--label-key", name), ("--source", "hdf5")]
    report = prove(path, tmp_path / "o.h5", label_key=name)
    assert report.manifest.classes == ("ant", "cat ä", "dog")
    assert list(PackedDataset(tmp_path / "o.h5", columns=("label",))) == [2, 0, 1, 0, 2, 2]
    manifest = convert(path, tmp_path / "texts.h5", source_kind="hdf5").manifest
    assert "text" in [column.type for column in manifest.columns]


def test_texts_in_the_order_of_the_names(tmp_path: Path) -> None:
    strings = h5py.string_dtype()
    arrays = {"images": pixels(6, 4, 4, 3), "labels": np.array(TEXTS, strings)}
    write(tmp_path / "a.h5", {**arrays, "class_names": np.array(["dog", "ox", "cat ä", "ant"], strings)})
    report = convert(tmp_path / "a.h5", tmp_path / "o.h5", label_key="labels")
    assert report.manifest.classes == ("dog", "ox", "cat ä", "ant")
    assert list(PackedDataset(tmp_path / "o.h5", columns=("label",))) == [0, 3, 2, 3, 0, 0]


@pytest.mark.parametrize("more", [{"caption": TEXTS}, {"y": np.arange(6) % 3, "class_name": TEXTS}])
def test_other_texts_stay_texts(more: dict[str, Any], tmp_path: Path) -> None:
    strings = h5py.string_dtype()
    texts = {name: values if name == "y" else np.array(values, strings) for name, values in more.items()}
    write(tmp_path / "a.h5", {"images": pixels(6, 4, 4, 3), **texts})
    manifest = convert(tmp_path / "a.h5", tmp_path / "o.h5").manifest
    assert manifest.column(list(more)[-1]).type == "text"
    assert manifest.classes is None


def test_a_split_of_texts_without_one_of_the_classes(tmp_path: Path) -> None:
    strings = h5py.string_dtype()
    arrays = {"x_train": pixels(6, 4, 4, 3), "y_train": np.array(TEXTS, strings), "x_test": pixels(2, 4, 4, 3)}
    write(tmp_path / "a.h5", {**arrays, "y_test": np.array(["dog", "dog"], strings)})
    convert(tmp_path / "a.h5", tmp_path / "o.h5", label_key="y_train")
    assert list(PackedDataset(tmp_path / "o.h5", split="test", columns=("label",))) == [2, 2]


@pytest.mark.parametrize("how", ["chunks", "resized", "labels", "all"])
def test_images_that_were_never_written_are_a_question(how: str, tmp_path: Path) -> None:
    """As a program leaves them that was killed halfway."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        x = file.create_dataset("images", (6, 8, 8, 3), "u1", chunks=(2, 8, 4, 3), maxshape=(None, 8, 8, 3))
        y = file.create_dataset("labels", (6,), "i8", chunks=(3,))
        if how != "all":
            y[: 3 if how == "labels" else 6] = 1
            x[: 4 if how in ("chunks", "resized") else 6] = 7
        if how == "chunks":
            x[4:, :, 4:] = 9
            x[2:4] = 9
        if how == "resized":
            x.resize(6, 0)
    lacking = {"chunks": 0, "resized": 2, "labels": 3, "all": 6}[how]
    chunks = {"chunks": 1, "resized": 2, "labels": 1, "all": 8}[how]
    if not lacking:
        report = convert(tmp_path / "a.h5", tmp_path / "o.h5")
        assert report.ledger.passed_over == {"chunks that were never written": 1}
        return
    question(tmp_path / "a.h5", f"of {lacking} of 6 samples .*{chunks} chunks are missing")
    kept = convert(tmp_path / "a.h5", tmp_path / "kept.h5", source_kind="hdf5")
    assert (kept.manifest.records, kept.ledger.passed_over["chunks that were never written"]) == (6, chunks)
    if lacking < 6:
        report = convert(tmp_path / "a.h5", tmp_path / "o.h5", on_error="skip")
        assert [int(each.key) for each in report.skipped] == list(range(6 - lacking, 6))


def test_a_dataset_in_one_piece_that_was_never_written_is_a_question(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("images", (6, 8, 8, 3), "u1")
    question(tmp_path / "a.h5", "of 6 of 6 samples")


def test_claims_that_no_file_can_hold(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (10**9, 64, 64, 3), "u1", chunks=(1, 64, 64, 3))
    refused(SourceError, tmp_path / "a.h5", "of which 0 were written")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", (2, 40_000, 40_000, 3), "u1", chunks=(1, 100, 100, 3))[0, :99, :99] = 7
    refused(SourceError, tmp_path / "b.h5", "were written")
    path = write(tmp_path / "c.h5", {"x": pixels(2, 50, 50, 3)})
    refused(SourceError, path, "pixels", max_pixels=2499)


def test_damaged_files_and_files_without_images(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"x": pixels(4, 9, 9, 3), "y": np.arange(4)}, compression="gzip")
    whole = path.read_bytes()
    for size in (9, 100, 600, len(whole) - 200):
        path.write_bytes(whole[:size])
        not_packed(PackstoreError, path, tmp_path / "o.h5")
    write(path, {"weights": np.zeros((3, 3, 64, 64), np.float32)})
    refused(SourceError, path, r"holds no arrays of images .* of uint8 or named images.* but weights")
    with h5py.File(path, "w") as file:
        file.create_group("empty")
    refused(SourceError, path, "holds no arrays")


def test_a_damaged_list_of_arrays_and_a_pipe(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros((4, 8, 8), np.uint8), np.arange(4)
    whole = (tmp_path / "a.h5").read_bytes()
    place = whole.index(b"SNOD")
    (tmp_path / "b.h5").write_bytes(whole[:place] + b"XXXX" + whole[place + 4 :])
    refused(SourceError, tmp_path / "b.h5", r"b\.h5 cannot be read as hdf5: ", kind="hdf5")
    os.mkfifo(tmp_path / "c.h5")
    refused(SourceError, tmp_path / "c.h5", r"c\.h5 is neither a file nor a folder", kind="hdf5")


def test_a_damaged_chunk_is_a_bad_sample(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"x": pixels(4, 9, 9, 3)}, compression="gzip", chunks=(1, 9, 9, 3))
    with h5py.File(path) as file:
        place = file["x"].id.get_chunk_info(2).byte_offset
    with path.open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\0" * 40)
    report = convert(path, tmp_path / "o.h5", on_error="skip")
    assert report.manifest.records < 4
    assert "0000000002" in [skipped.key for skipped in report.manifest.skipped]


def test_a_store_of_our_own_is_no_file_of_others(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"x": pixels(4, 9, 9, 3), "y": np.arange(4)})
    convert(path, tmp_path / "own.h5")
    assert look(tmp_path / "own.h5").kind == "store"
    with h5py.File(tmp_path / "own.h5", "r+") as file:
        file.attrs["manifest"] = "{}"
    refused(PackstoreError, tmp_path / "own.h5", r"packstore does not write|not a string of fixed length")
    store = bytearray((tmp_path / "own.h5").read_bytes())
    store[store.index(b"OHDR") + 4] ^= 1  # the version of the root group's header
    (tmp_path / "own.h5").write_bytes(store)
    refused(PackstoreError, tmp_path / "own.h5", "is damaged")


def test_a_chunk_is_decompressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.internals import _Hdf5Array

    path = write(tmp_path / "a.h5", {"x": pixels(60, 4, 4, 3)}, compression="gzip", chunks=(20, 4, 4, 3))
    monkeypatch.setattr("packstore.sources.arrays.stored._BLOCK_BYTES", 100)
    asked: list[tuple[int, int]] = []
    read = _Hdf5Array.read_rows

    def counted(self: Any, axis: int, start: int, stop: int) -> Any:
        asked.append((start, stop))
        return read(self, axis, start, stop)

    monkeypatch.setattr(_Hdf5Array, "read_rows", counted)
    with closing(open_source(path)) as source:
        assert len(images(source)) == 60
    assert asked == [(0, 20), (20, 40), (40, 60)]


def test_what_lies_beside_files_of_arrays(tmp_path: Path) -> None:
    """A file to read, and a folder that is empty, or hidden."""
    for name in ("x", "y"):
        with h5py.File(tmp_path / f"pcam_train_{name}.h5", "w") as file:
            file[name] = np.zeros((3, 8, 8, 3) if name == "x" else (3, 1, 1, 1), np.uint8)
    for folder in ("empty", ".git", "__MACOSX"):
        (tmp_path / folder).mkdir()
    (tmp_path / "empty/.DS_Store").touch()
    (tmp_path / "README.md").touch()
    seen = look(tmp_path)
    assert (seen.kind, dict(seen.splits)) == ("hdf5", {"train": 3})


def test_a_link_to_nothing_is_an_error(tmp_path: Path) -> None:
    """It may have stood for the labels."""
    path = write(tmp_path / "a.h5", {"x": pixels(3, 8, 8, 3)})
    with h5py.File(path, "a") as file:
        file["y"] = h5py.SoftLink("/gone")
    refused(SourceError, path, "y is a link to /gone, which is not in the file")
    with h5py.File(path, "a") as file:
        file["gone"] = np.arange(3)
    assert len(images(open_source(path))) == 3
