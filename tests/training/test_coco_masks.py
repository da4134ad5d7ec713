"""Masks of COCO's segmentations, equal to those of pycocotools.

``tests/corpus/coco_masks/masks.json`` was made by pycocotools 2.0.11: random polygons, one or two an object, some with
points outside the image, on whole pixels or twice the same; ``counts`` is what
``mask.merge(mask.frPyObjects(polygons, height, width))`` gave.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore import coco_masks

CASES = json.loads((Path(__file__).parents[1] / "corpus/coco_masks/masks.json").read_text())


def test_polygons_are_those_of_pycocotools() -> None:
    filled = 0
    for case in CASES:
        height, width = case["size"]
        runs = {"size": case["size"], "counts": case["counts"]}
        ours, theirs = coco_masks([case["segmentation"], runs], height, width)
        assert np.array_equal(ours, theirs), case
        filled += int(ours.sum())
    assert filled > 10_000


def test_runs_go_down_the_columns() -> None:
    (mask,) = coco_masks([{"size": [2, 3], "counts": [1, 3, 2]}], 2, 3)
    assert mask.tolist() == [[0, 1, 0], [1, 1, 0]]
    assert mask.dtype == np.uint8
    (same,) = coco_masks([{"size": [2, 3], "counts": b"132"}], 2, 3)
    assert np.array_equal(same, mask)
    assert coco_masks([], 4, 5).shape == (0, 4, 5)
    assert not coco_masks([[]], 2, 2).any()


@pytest.mark.parametrize(
    ("segmentation", "said"),
    [
        (None, "expected polygons"),
        (5, "expected rings"),
        ([[1, 2, 3, 4]], "at least three points"),
        ([[1, 2, 3, 4, 5, 6, 7]], "expected x, y"),
        ([["a"] * 6], "could not convert"),
        ([[float("nan")] * 6], "expected x, y"),
        ([[1e300] * 6], "expected x, y"),
        ({"size": [4, 4], "counts": [16]}, "in an image"),
        ({"counts": [16]}, "in an image"),
        ({"size": [3, 5], "counts": [16]}, "do not add up to the 15 pixels"),
        ({"size": [3, 5], "counts": [-1, 16]}, "do not add up"),
        ({"size": [3, 5], "counts": [1 << 62, 1 << 62, 1 << 62, 1 << 62, 15]}, "do not add up"),
        ({"size": [3, 5], "counts": [1.5, 13.5]}, "neither a list of whole numbers nor a string"),
        ({"size": [3, 5]}, "neither a list"),
        ({"size": [3, 5], "counts": "o" * 10}, "within a number|not COCO's string"),
        ({"size": [3, 5], "counts": "\x7f"}, "not COCO's string"),
        ({"size": [3, 5], "counts": "P" * 50}, "."),
        ({"size": [3, 5], "counts": "P"}, "ends? within|end within"),
    ],
)
def test_what_is_no_segmentation(segmentation: Any, said: str) -> None:
    with pytest.raises(ValueError, match=rf"segmentation 1: .*{said}" if said != "." else "segmentation 1"):
        coco_masks([[], segmentation], 3, 5)


def test_masks_larger_than_asked_for() -> None:
    with pytest.raises(ValueError, match=r"segmentation 268: .* more than 1073741824 bytes"):
        coco_masks([[]] * 1000, 2000, 2000)
    with pytest.raises(ValueError, match=r"segmentation 1: .* 2 masks of 2 x 2 .*ask for fewer objects at once"):
        coco_masks([[]] * 2, 2, 2, max_bytes=7)
    with pytest.raises(ValueError, match="at least one pixel"):
        coco_masks([], 0, 2)


@given(counts=st.text(st.characters(min_codepoint=48, max_codepoint=111), max_size=12))
def test_any_string_gives_a_mask_or_one_error(counts: str) -> None:
    with suppress(ValueError):
        assert coco_masks([{"size": [4, 4], "counts": counts}], 4, 4).shape == (1, 4, 4)
