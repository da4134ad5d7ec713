"""Pixels and masks by run lengths in the columns of tables."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from packstore import coco_masks
from packstore.sources import open_source
from packstore.testing import SourceSuite
from tests.internals import AmbiguousSourceError, SampleError, SourceError, convert_runs
from tests.makers.annotated import fill, jpeg
from tests.makers.images import tiny
from tests.makers.sources import look, question, refused
from tests.makers.sources import rows_of_table as rows

SIDE = 8


def pixels(n: int, count: int = SIDE * SIDE) -> list[int]:
    return [(n * 7 + i) % 256 for i in range(count)]


def fer(samples: int, usage: str = "Training") -> str:
    return "emotion,pixels,Usage\n" + "".join(
        f"{n % 7},{' '.join(map(str, pixels(n)))},{usage if n % 3 else 'PublicTest'}\n" for n in range(samples)
    )


def wide(samples: int, header: str = "pixel{}", count: int = SIDE * SIDE, label: str = "label") -> str:
    names = ",".join(header.format(i) for i in range(count))
    rows = "".join(f"{n % 10},{','.join(map(str, pixels(n, count)))}\n" for n in range(samples))
    return f"{label},{names}\n{rows}" if header else rows


def grid(samples: int) -> str:
    names = ",".join(f"{y}x{x}" for y in range(1, SIDE + 1) for x in range(1, SIDE + 1))
    return "label," + names + "\n" + wide(samples, "")


def read(path: Path, **options: Any) -> dict[str, tuple[Any, dict[str, Any]]]:
    with closing(open_source(path, **options)) as source:
        assert source.kind == "pixel_table"
        assert not source.survey().ledger.left.keys() - {"left out by --ignore"}
        found = [(entry, source.read(entry)) for entry in source.entries()]
        return {entry.key: (sample.image, dict(sample.values)) for entry, sample in found}  # type: ignore[union-attr]


class TestPixelTable(SourceSuite):
    kind = "pixel_table"
    bytes_per_sample = 700
    undecodable_keys = False
    many = 1000

    def make(self, folder: Path, samples: int) -> Path:
        return fill(folder, {"mnist_train.csv": wide(samples)})

    def change(self, path: Path) -> None:
        (path / "mnist_train.csv").write_text(wide(5))


@pytest.mark.parametrize("samples", [3, 300, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["fer", "wide", "grid", "rgb"])
def test_all_numbers_are_kept(name: str, samples: int, tmp_path: Path) -> None:
    colours = 3 if name == "rgb" else 1
    text = {"fer": fer, "wide": wide, "grid": grid}.get(name, lambda n: wide(n, count=SIDE * SIDE * 3))(samples)
    path = fill(tmp_path / "set", {"train.csv": text})
    for place in (path, path / "train.csv", Path(shutil.make_archive(str(tmp_path / "a"), "zip", path))):
        found = read(place)
        assert len(found) == samples
        images = {image.tobytes() for image, _ in found.values()}
        expected = [np.array(pixels(n, SIDE * SIDE * colours), np.uint8).reshape(SIDE, SIDE, colours)
                    for n in range(samples)]  # fmt: skip
        assert images == {each.tobytes() for each in expected}


def test_usage_is_the_split_and_emotion_the_label(tmp_path: Path) -> None:
    found = read(fill(tmp_path, {"fer2013.csv": fer(9)}))
    assert [key.split("/")[0] for key in found] == ["training"] * 6 + ["PublicTest"] * 3
    assert [values for _, values in found.values()] == [{"label": n} for n in (1, 2, 4, 5, 0, 1, 0, 3, 6)]


def test_tables_of_splits(tmp_path: Path) -> None:
    found = read(fill(tmp_path, {"sign_mnist_train.csv": wide(4), "sign_mnist_test.csv": wide(3)}))
    assert list(found) == [*(f"train/{n:010}" for n in range(4)), *(f"test/{n:010}" for n in range(3))]


def test_tables_of_which_one_has_no_labels(tmp_path: Path) -> None:
    """Kaggle's digits."""
    bare = "\n".join(line.partition(",")[2] for line in wide(3).splitlines())
    form = "ImageId,Label\n1,0\n2,0\n3,0\n"
    path = fill(tmp_path, {"train.csv": wide(4), "test.csv": bare, "sample_submission.csv": form})
    labels = [values["label"] for _, values in read(path).values()]
    assert labels == [0, 1, 2, 3, None, None, None]


def test_two_tables_of_no_splits_are_asked_about(tmp_path: Path) -> None:
    path = fill(tmp_path, {"a.csv": fer(4), "b.csv": fer(4)})
    question(path, "do not tell different splits")
    assert len(read(path, ignore=["b.csv"])) == 4


def test_other_tables_are_asked_about(tmp_path: Path) -> None:
    path = fill(tmp_path, {"fer.csv": fer(4), "fer2013new.csv": "usage,neutral,happy\n" + "a,1,2\n" * 4})
    question(path)


def test_beside_images_a_table_of_pixels_is_left(tmp_path: Path) -> None:
    path = fill(tmp_path, {"hmnist_8_8_L.csv": wide(4), **{f"{s}/ISIC{s}.png": tiny(n) for n, s in enumerate("abcd")}})
    assert look(path).kind == "imagefolder"


REFUSED = {
    "256": ("mnist_train.csv", wide(3) + "1," + ",".join(["256"] * 64), "line 5: a pixel is not a whole number from 0"),
    "-1": ("mnist_train.csv", wide(3) + "1," + ",".join(["-1"] * 64), "line 5: a pixel is no"),
    "0.5": ("mnist_train.csv", wide(3) + "1," + ",".join(["0.5"] * 64), "line 5: a pixel is no"),
    "short": ("mnist_train.csv", wide(3) + "1," + ",".join(["1"] * 63), "line 5: 64 fields, the first line has 65"),
    "open": ("mnist_train.csv", wide(3) + '1,"' + ",".join(["1"] * 64), "a quote is not closed"),
    "larger": ("fer.csv", fer(3) + f"1,{' '.join(['7'] * 81)},Training", "line 5: 81 pixels, expected those of a sq"),
    "twice": ("fer.csv", f"label,label,pixels\n0,1,{' '.join(['7'] * 64)}", "line 1: the header has a column twice"),
    "no image": ("a.csv", "a,pixels\n1,2", "holds no images"),
    "signals": ("a.csv", f"time,{','.join(f's{n}' for n in range(64))}\n1{',3' * 64}", "holds no images"),
    "no square": ("a.csv", f"label,{','.join(f'pixel{n}' for n in range(65))}", "holds no images"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_tables_and_damaged_rows_are_named(name: str, tmp_path: Path) -> None:
    file, text, said = REFUSED[name]
    refused(SourceError, fill(tmp_path, {file: text + "\n"}), said)


def test_a_table_without_a_header_is_refused(tmp_path: Path) -> None:
    path = fill(tmp_path, {"mnist_train.csv": wide(9, "")})
    refused(SourceError, path, "its first line names a column pixels, or columns pixel0", kind="pixel_table")


@pytest.mark.slow
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.binary(min_size=64, max_size=64)), min_size=1, max_size=8))
def test_cells_come_back(tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[int, bytes]]) -> None:
    names = ",".join(f"pixel{n}" for n in range(64))
    text = f"label,{names}\n" + "".join(f"{label},{','.join(map(str, raw))}\n" for label, raw in cells)
    found = read(fill(tmp_path_factory.mktemp("pixels"), {"x.csv": text}))
    assert [(v["label"], image[..., 0].tobytes()) for image, v in found.values()] == cells


def encode_runs(mask: Any) -> str:
    """Kaggle's run lengths, as its notebooks make them: column by column, from 1."""
    pixels = np.concatenate([[0], mask.T.flatten(), [0]])
    runs = np.where(pixels[1:] != pixels[:-1])[0] + 1
    runs[1::2] -= runs[::2]
    return " ".join(map(str, runs))


@pytest.mark.slow
@given(arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 1)))
def test_runs_are_masks_and_boxes(mask: Any) -> None:
    text = encode_runs(mask)
    if not text:
        return
    height, width = mask.shape
    box, segmentation = convert_runs(text, width, height)
    assert coco_masks([segmentation], height, width)[0].tolist() == mask.astype(bool).tolist()
    ys, xs = np.nonzero(mask)
    assert box == [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]


@pytest.mark.parametrize("text", ["1 0", "5 2 3 1", "1 129", "0 3", "128 2"])
def test_runs_out_of_the_image_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not in order, or not within 16 x 8 pixels"):
        convert_runs(text, 16, 8)


def make(folder: Path, text: str, samples: int = 4) -> Path:
    return fill(folder, {"train.csv": text, **{f"train/a{n}.jpg": jpeg(n) for n in range(samples)}})


def test_one_mask_a_row_and_none(tmp_path: Path) -> None:
    text = "ImageId,EncodedPixels\na0.jpg,1 3 9 2\na1.jpg,\na0.jpg,20 1\na2.jpg,128 1\n"
    found = rows(make(tmp_path, text))
    assert found["train/a0.jpg"]["boxes"] == [[0, 0, 2, 3], [2, 3, 3, 4]]
    assert found["train/a0.jpg"]["segments"][0] == {"size": [8, 16], "counts": [0, 3, 5, 2, 118]}
    assert found["train/a1.jpg"]["boxes"] == found["train/a1.jpg"]["segments"] == []
    assert found["train/a2.jpg"]["segments"] == [{"size": [8, 16], "counts": [127, 1]}]


def test_classes_go_with_their_masks(tmp_path: Path) -> None:
    text = "ImageId,ClassId,EncodedPixels\n" + "a0.jpg,3,1 3\na0.jpg,3,9 3\na0.jpg,1,30 2\na1.jpg,2,5 5\n"
    found = rows(make(tmp_path, text, 2))
    assert found["train/a0.jpg"]["labels"] == [3, 3, 1]
    assert len(found["train/a0.jpg"]["boxes"]) == 3


@pytest.mark.parametrize("name", ["rle_mask", "annotation", "segmentation"])
def test_runs_of_another_order_stay_texts(name: str, tmp_path: Path) -> None:
    """Carvana's run row by row, Salt's column by column: nothing says which."""
    text = f"id,{name}\n" + "".join(f"a{n},{n + 1} 3\n" for n in range(4))
    found = rows(make(tmp_path, text))
    assert found["train/a2.jpg"][name] == "3 3"


def test_runs_that_are_none_stay_texts(tmp_path: Path) -> None:
    """SIIM's -1."""
    text = "ImageId,EncodedPixels\na0.jpg,1 3\na1.jpg,-1\na2.jpg,-1\na3.jpg,-1\n"
    assert rows(make(tmp_path, text))["train/a1.jpg"] == {"encodedpixels": "-1", "split": "train"}


def test_a_mask_of_another_image_is_a_bad_sample(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="its run 400 2 is not in order, or not within 16 x 8"):
        rows(make(tmp_path, "ImageId,EncodedPixels\na0.jpg,1 3\na1.jpg,400 2\n", 2))


def test_makesense(tmp_path: Path) -> None:
    text = "cat,1,1,4,4,a0.jpg,16,8\ndog,2,2,3,3,a0.jpg,16,8\ncat,0,0,9,5,a1.jpg,16,8\n"
    found = rows(make(tmp_path, text, 2))
    assert found["train/a0.jpg"]["boxes"] == [[1, 1, 5, 5], [2, 2, 5, 5]]
    assert found["train/a0.jpg"]["labels"] == ["cat", "dog"]


def test_sku_110k(tmp_path: Path) -> None:
    text = "".join(f"a{n}.jpg,{n},1,{n + 12},8,object,16,8\n" for n in range(4))
    found = rows(make(tmp_path, text))
    assert found["train/a3.jpg"]["boxes"] == [[3, 1, 15, 8]]
    assert found["train/a3.jpg"]["labels"] == ["object"]
    with pytest.raises(AmbiguousSourceError, match="xyxy or xywh"):
        rows(make(tmp_path / "b", "a0.jpg,1,1,4,4,object,16,8\na1.jpg,1,1,5,5,object,16,8\n", 2))
