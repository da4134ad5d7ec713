"""Masks by run lengths in tables, and boxes in tables without a header of tools: what they mean is proven or not
claimed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from packstore import coco_masks
from packstore.sources import open_source
from tests.internals import AmbiguousSourceError, SampleError, convert_runs
from tests.makers.annotated import fill, jpeg


def encode_runs(mask: Any) -> str:
    """Kaggle's run lengths, as its notebooks make them: column by column, from 1."""
    pixels = np.concatenate([[0], mask.T.flatten(), [0]])
    runs = np.where(pixels[1:] != pixels[:-1])[0] + 1
    runs[1::2] -= runs[::2]
    return " ".join(map(str, runs))


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


def rows(path: Path) -> dict[str, dict[str, Any]]:
    """All samples by key as the table source gives them, classes by name."""
    with closing(open_source(path)) as source:
        assert source.kind == "table"
        classes = {column.name: column.classes for column in source.survey().columns if column.classes}
        found = {}
        for entry in source.entries():
            values = dict(source.read(entry).values)  # type: ignore[union-attr]
            for name, names in classes.items():
                values[name] = [names[int(n)] for n in values[name]]
            found[entry.key] = {
                name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
            } | {"split": entry.split}
        return found


def make(folder: Path, text: str, samples: int = 4) -> Path:
    return fill(folder, {"train.csv": text, **{f"train/a{n}.jpg": jpeg(n) for n in range(samples)}})


def test_one_mask_a_row_and_none(tmp_path: Path) -> None:
    text = "ImageId,EncodedPixels\na0.jpg,1 3 9 2\na1.jpg,\na0.jpg,20 1\na2.jpg,128 1\n"
    found = rows(make(tmp_path, text))
    assert found["train/a0.jpg"]["boxes"] == [[0, 0, 2, 3], [2, 3, 3, 4]]
    assert found["train/a0.jpg"]["segmentations"][0] == {"size": [8, 16], "counts": [0, 3, 5, 2, 118]}
    assert found["train/a1.jpg"]["boxes"] == found["train/a1.jpg"]["segmentations"] == []
    assert found["train/a2.jpg"]["segmentations"] == [{"size": [8, 16], "counts": [127, 1]}]


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
