"""Values as programs come to have them: of other dtypes, empty, impossible; they are kept as they are, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packstore
from tests.internals import SampleError, UsageError
from tests.makers.samples import jpeg, palette_png

JPEG = jpeg(1, 4, 5)
MASK = np.zeros((4, 5), np.uint8)


def convert(path: Path, values: dict[str, Any], fields: Any = None, count: int = 2, **options: Any) -> dict[str, Any]:
    """The values of the first record."""
    fields = None if fields is None else {"image": "image", **fields}
    packstore.convert([{"image": JPEG, **values}] * count, path / "a.lmdb", fields=fields, **options)
    with packstore.open(path / "a.lmdb") as store:
        return {name: store.item(name, 0) for name in values}


BFLOAT16 = torch.tensor([[1.5, -2.0, 3.25, 100.0]], dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "field",
    [
        "boxes",
        packstore.Array("float32", (4,), ragged=True),
        packstore.Array("float64", (1, 4)),
        packstore.Json(),
        None,
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_numbers_of_bfloat16_stay_what_they_are(tmp_path: Path, field: Any, listed: bool) -> None:
    if isinstance(field, packstore.Json):
        value: Any = BFLOAT16.tolist()
    else:
        value = list(BFLOAT16) if listed else BFLOAT16
    name = "boxes" if field == "boxes" else "a"
    found = convert(tmp_path, {name: value}, None if field is None else {name: field})[name]
    if field is None and not listed:  # bfloat16: its bit patterns
        found = torch.from_numpy(np.array(found)).view(torch.bfloat16).float().numpy()
    assert np.array_equal(found, BFLOAT16.float().numpy())


def test_bytes_and_text_of_any_kind(tmp_path: Path) -> None:
    values = {"a": memoryview(b"abcdef")[::2], "b": "", "c": "a\0b\udc80"}
    assert convert(tmp_path, values, {"a": "bytes", "b": "text", "c": "text"}) == {
        "a": b"ace",
        "b": "",
        "c": values["c"],
    }


def test_fields_of_values_that_are_all_empty_are_known_by_their_names(tmp_path: Path) -> None:
    found = convert(tmp_path, {"boxes": [], "labels": []})
    assert (found["boxes"].shape, found["labels"].dtype) == ((0, 4), np.int64)


NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("boxes", torch.ones(2, 4).to_sparse(), "boxes: found a tensor that is not an array"),
        ("boxes", torch.ones(2, 4, device="meta"), "boxes: found a tensor that is not an array: Cannot copy out"),
        ("json", NESTED, "a value of column 'json' cannot be JSON"),
        ("mask", MASK[:0], r"mask: found uint8 of shape \(0, 5\); expected integers"),
        (packstore.Image("uint8"), np.zeros((0, 5, 3), np.uint8), r"found an image without pixels, of shape \(0, 5"),
        (packstore.Image("jpeg"), torch.zeros(3, 0, 0, dtype=torch.uint8), r"found an image without pixels"),
        (packstore.Label(), "cat", "a number, since no classes are declared"),
    ],
)  # fmt: skip
def test_values_that_cannot_be(tmp_path: Path, field: Any, value: Any, message: str) -> None:
    name = field if isinstance(field, str) else "a"
    with pytest.raises(SampleError, match=message):
        convert(tmp_path, {name: value}, {name: field})
    with (
        pytest.raises(SampleError, match=message),
        packstore.Writer(tmp_path / "b.lmdb", {"image": "image", name: field}) as w,
    ):
        w.add(image=JPEG, **{name: value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("encoding", ["uint8", "jpeg"])
def test_a_main_image_without_pixels(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(SampleError, match="image: found an image without pixels"):
        packstore.convert([{"image": np.zeros((0, 5, 3), np.uint8)}], tmp_path / "a.lmdb", encoding=encoding)


@pytest.mark.parametrize(
    "field",
    [packstore.Array("int64", 3), packstore.Array("int64", (2.5,)), packstore.Keypoints(points=2.5)],  # type: ignore[arg-type]
)
def test_shapes_that_cannot_be(tmp_path: Path, field: Any) -> None:
    with pytest.raises(UsageError, match=r"field 'a': .* cannot be kept"):
        convert(tmp_path, {"a": 1}, {"a": field})


def test_names_of_the_arguments_of_add_are_no_fields(tmp_path: Path) -> None:
    with packstore.Writer(tmp_path / "a.lmdb", {"image": "image", "self": "int64"}) as writer:
        writer.add(image=JPEG, self=3)
    with pytest.raises(UsageError, match="rename your field"):
        packstore.Writer(tmp_path / "b.lmdb", {"image": "image", "split": "int64"})


def test_a_declared_dtype_says_that_masks_are_arrays_where_the_first_samples_have_none(tmp_path: Path) -> None:
    fields = {"image": "image", "mask": packstore.Mask("uint8", optional=True)}
    samples: list[dict[str, Any]] = [{"image": JPEG, "mask": None}] * 20
    packstore.convert([*samples, {"image": JPEG, "mask": MASK}], tmp_path / "a.lmdb", fields=fields)
    with packstore.open(tmp_path / "a.lmdb") as store:
        assert np.array_equal(store.item("mask", 20), MASK)
    both = [{"image": JPEG, "mask": mask} for mask in (MASK, palette_png(MASK))]
    with pytest.raises(SampleError, match="sample 1: mask: found a file, expected pixels as in the first samples"):
        packstore.convert(both, tmp_path / "b.lmdb", fields={"image": "image", "mask": "mask"})


def test_labels_go_with_all_boxes_or_with_none(tmp_path: Path) -> None:
    """One sample with too few labels is a fault, and does not part the labels of all others from their boxes."""
    fields = {"image": "image", "boxes": "boxes", "labels": "labels"}
    samples = [{"image": JPEG, "boxes": np.ones((2, 4)), "labels": [1, 2]} for _ in range(4)]
    samples[2]["labels"] = [1]
    with pytest.raises(UsageError, match="one for each of the boxes in sample 0, but not in sample 2; declare it"):
        packstore.convert(samples, tmp_path / "a.lmdb", fields=fields)
    for wrong in (5, None):
        samples[0]["labels"] = wrong
        with pytest.raises(UsageError, match="in sample 1, but not in sample 0"):
            packstore.convert(samples, tmp_path / "a.lmdb", fields=fields)
    for sample in samples:
        sample["labels"] = [1]
    assert packstore.convert(samples, tmp_path / "a.lmdb", fields=fields).manifest.column("labels").parallel is None
