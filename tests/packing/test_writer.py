"""``Writer``: samples of every type, one by one, come back as they were; a bad one is named, and nothing is left."""

from __future__ import annotations

import io
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import packstore
from tests.internals import (
    ITEM_SIZE,
    NUMPY_DTYPE,
    DestinationError,
    PackstoreError,
    SampleError,
    SourceError,
    SourceOptions,
    StoreBuilder,
    StreamSource,
    UsageError,
    base,
    make_schema,
)
from tests.makers.datasets import make_folder, pixels
from tests.makers.images import all_images, whole_images
from tests.makers.samples import COCO_CLASSES, coco, jpeg, palette_png
from tests.makers.tiers import examples

FORMATS = [".lmdb", ".h5", ".pth"]
COCO = {
    "image": "image",
    "boxes": "boxes",
    "labels": packstore.Labels(COCO_CLASSES, of="boxes"),
    "captions": "json",
    "mask": "mask",
    "image_id": "int64",
    "note": packstore.Text(optional=True),
}


def write(path: Path, samples: Any, fields: Any = None, **options: Any) -> packstore.ConvertReport:
    with packstore.Writer(path, fields, **options) as writer:
        for sample in samples:
            writer.add(**sample)
    assert writer.report is not None
    assert writer.added == writer.report.manifest.records + len(writer.report.skipped)
    return writer.report


def item(path: Path, name: str, record: int = 0) -> Any:
    with packstore.open(path) as store:
        return store.item(name, record)


def test_types_are_inferred(tmp_path: Path) -> None:
    samples = [
        {
            "photo": jpeg(i, 3, 2),
            "label": i % 2,
            "score": i / 7,
            "good": i % 2 == 0,
            "embedding": np.full(4, i, np.float16),
            "tokens": list(range(i + 1)),
            "keypoints": torch.ones(i, 3),
            "segmentation": palette_png(np.full((3, 2), i)),
            "thumbnail": jpeg(i, 8, 8),
            "extra": b"\0" * i,
            "text": "x" * i,
            "meta": {"a": [1, None]},
            "weights": torch.full((2, 2), float(i), dtype=torch.bfloat16),
            "price": i if i < 3 else i + 0.5,
            "reading": np.int16(i) if i else np.float32(0.5),
            "path": [i] if i < 4 else [0.25, 1],
            "target": i if i < 4 else 0.5,
            "maybe": None if i == 3 else i,
        }
        for i in range(5)
    ]
    columns = {c.name: c for c in write(tmp_path / "a.h5", samples).manifest.columns}
    found = {name: (c.type, c.kind, c.dtype, c.shape) for name, c in columns.items()}
    assert found == {
        "image": ("image", "ragged", "uint8", ()),
        "label": ("label", "fixed", "int64", ()),
        "score": ("array", "fixed", "float64", ()),
        "good": ("array", "fixed", "bool", ()),
        "embedding": ("array", "fixed", "float16", (4,)),
        "tokens": ("array", "ragged", "int64", ()),
        "keypoints": ("keypoints", "ragged", "float32", (3,)),
        "segmentation": ("mask", "ragged", "uint8", ()),
        "thumbnail": ("image", "ragged", "uint8", ()),
        "extra": ("bytes", "ragged", "uint8", ()),
        "text": ("text", "ragged", "uint8", ()),
        "meta": ("json", "ragged", "uint8", ()),
        "weights": ("array", "fixed", "bfloat16", (2, 2)),
        "price": ("array", "fixed", "float64", ()),
        "reading": ("array", "fixed", "float32", ()),
        "path": ("array", "ragged", "float64", ()),
        "target": ("array", "fixed", "float64", ()),
        "maybe": ("array", "fixed", "int64", ()),
        "maybe_valid": ("array", "fixed", "bool", ()),
        "key": ("text", "ragged", "uint8", ()),
        "checksum": ("array", "fixed", "uint64", ()),
        "row_checksum": ("array", "fixed", "uint64", ()),
        "seek_index": ("array", "ragged", "uint8", ()),
    }
    with packstore.open(tmp_path / "a.h5") as store:
        assert store.item("image", 2) == samples[2]["photo"]
        assert store.item("maybe", 3) is None
        assert store.item("weights", 3).tolist() == [[0x4040, 0x4040], [0x4040, 0x4040]]  # 3.0
        assert [store.item("tokens", i).tolist() for i in range(5)] == [list(range(i + 1)) for i in range(5)]


def test_names_of_files_are_not_kept_as_text_unasked(tmp_path: Path) -> None:
    file = tmp_path / "0.PNG"
    file.write_bytes(palette_png(INDICES))
    sample = {"image": str(file), "mask": str(file), "caption": "a cat.jpg", "file_name": "000.jpg"}
    columns = write(tmp_path / "a.h5", [sample]).manifest.columns
    types = {column.name: column.type for column in columns}
    assert types.items() >= {"image": "image", "mask": "mask", "caption": "text", "file_name": "text"}.items()
    assert item(tmp_path / "a.h5", "mask") == file.read_bytes()
    with pytest.raises(UsageError, match="depth: found the name of an image file: declare it as 'image' or 'mask'"):
        write(tmp_path / "b.h5", [{**sample, "depth": str(file)}])


def test_files_pass_through_byte_for_byte(tmp_path: Path) -> None:
    """Of any kind, as bytes of several types, and by their paths."""
    files = list(whole_images().values())
    paths = [tmp_path / str(i) for i in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    given: list[Any] = [*files, *map(bytearray, files), *map(memoryview, files), *paths, *map(str, paths)]
    write(tmp_path / "a.pth", ({"image": value} for value in given), {"image": "image"})
    with packstore.open(tmp_path / "a.pth") as store:
        assert [store.item("image", i) for i in range(len(given))] == files * 5


PIXELS = pixels(12, 17, 1)
DECODED = {"array": PIXELS, "PIL": Image.fromarray(PIXELS), "tensor": torch.from_numpy(PIXELS).permute(2, 0, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("form", DECODED)
def test_decoded_images_are_encoded_as_asked(tmp_path: Path, form: str) -> None:
    sample = {"image": DECODED[form], "label": 1}
    write(tmp_path / "a.h5", [sample], encoding="uint8")
    assert np.array_equal(item(tmp_path / "a.h5", "image"), PIXELS)
    write(tmp_path / "b.h5", [sample], {"image": packstore.Image("uint8"), "label": "label"})
    assert np.array_equal(item(tmp_path / "b.h5", "image"), PIXELS)
    write(tmp_path / "c.h5", [sample], encoding="jpeg", quality=95)
    decoded = np.asarray(Image.open(io.BytesIO(item(tmp_path / "c.h5", "image"))))
    assert np.abs(decoded.astype(int) - PIXELS).mean() < 8
    write(tmp_path / "d.pth", [sample], encoding="float32", size=8, normalize="none")
    assert item(tmp_path / "d.pth", "image").shape == (3, 8, 8)


@pytest.mark.parametrize("form", DECODED)
@pytest.mark.parametrize("encoding", [None, "original"])
def test_how_decoded_images_are_kept_is_never_guessed(tmp_path: Path, form: str, encoding: str | None) -> None:
    with pytest.raises(UsageError, match=r"not as files: choose encoding='uint8' .* or 'jpeg'"):
        write(tmp_path / "a.lmdb", [{"image": DECODED[form]}], encoding=encoding)
    fields = {"image": "image", "left": "image"}
    with pytest.raises(UsageError, match=r"left: .* choose fields=\{…, 'left': packstore.Image\('uint8'\)\}"):
        write(tmp_path / "a.lmdb", [{"image": jpeg(1), "left": DECODED[form]}], fields)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_images_in_gray_are_gray_unless_declared(tmp_path: Path) -> None:
    gray = PIXELS[..., 0]
    for value in (gray, gray[..., None], torch.from_numpy(gray.copy())[None], Image.fromarray(gray)):
        write(tmp_path / "a.h5", [{"image": value}], encoding="uint8", overwrite=True)
        assert np.array_equal(item(tmp_path / "a.h5", "image"), gray[..., None])
        declared = {"image": packstore.Image(mode="RGB")}
        write(tmp_path / "a.h5", [{"image": value}], declared, encoding="uint8", overwrite=True)
        assert np.array_equal(item(tmp_path / "a.h5", "image"), np.stack([gray] * 3, -1))


@pytest.mark.parametrize("encoding", [None, "jpeg", "uint8"])
def test_further_images_have_an_encoding_of_their_own(tmp_path: Path, encoding: str | None) -> None:
    fields = {"image": "image", "left": packstore.Image(encoding), "right": packstore.Image("uint8", optional=True)}
    files = [jpeg(1), jpeg(2)]
    samples = [{"image": files[0], "left": files[1], "right": PIXELS}, {"image": files[1], "left": files[0]}]
    manifest = write(tmp_path / "a.lmdb", samples, fields).manifest
    assert manifest.encoding == "original"
    assert manifest.column("left").layout == ("HWC" if encoding == "uint8" else None)
    left, decoded = item(tmp_path / "a.lmdb", "left"), np.asarray(Image.open(io.BytesIO(files[1])))
    if encoding is None:
        assert left == files[1]
    elif encoding == "uint8":
        assert np.abs(left.astype(int) - decoded).max() <= 1
    else:
        assert Image.open(io.BytesIO(left)).format == "JPEG"
    assert np.array_equal(item(tmp_path / "a.lmdb", "right"), PIXELS)
    assert item(tmp_path / "a.lmdb", "right", 1) is None


INDICES = np.arange(12).reshape(3, 4)
SMALL = jpeg(1, 3, 4)
MASKS = {
    "uint8": INDICES.astype(np.uint8),
    "uint16": INDICES.astype(np.uint16) * 5000,
    "int32": INDICES.astype(np.int32) - 6,
    "int64": INDICES,
    "bool": INDICES > 5,
    "tensor": torch.from_numpy(INDICES),
    "tensor of one": torch.from_numpy(INDICES)[None],
    "P": Image.open(io.BytesIO(palette_png(INDICES))),
    "L": Image.fromarray(INDICES.astype(np.uint8)),
    "I;16": Image.fromarray(INDICES.astype(np.uint16) * 5000),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks(tmp_path: Path, kind: str) -> None:
    fields = {"image": "image", "mask": "mask"} if kind == "tensor of one" else None
    write(tmp_path / "a.h5", [{"image": SMALL, "mask": MASKS[kind]}], fields)
    found = item(tmp_path / "a.h5", "mask")
    wanted = np.asarray(MASKS[kind]).reshape(3, 4)
    assert np.array_equal(found, wanted)
    assert found.dtype in (np.uint8, np.uint16, np.int32)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (jpeg(1), "mask: found a jpeg file; expected PNG, or an array"),
        (all_images()["png-rgb"], "mask: found a PNG in colour; expected one with a palette or in gray"),
        (b"\x89PNG\r\n\x1a\n", "mask: is truncated"),
        (b"", "mask: is empty"),
    ],
)
def test_files_that_are_no_masks(tmp_path: Path, value: bytes, message: str) -> None:
    with pytest.raises(SampleError, match=f"^0000000000: sample 0: {message}"):
        write(tmp_path / "a.h5", [{"image": jpeg(1), "mask": value}], {"image": "image", "mask": "mask"})
    assert list(tmp_path.iterdir()) == []


GOOD = {
    "image": SMALL, "boxes": [[0, 0, 1, 1]], "labels": [1], "label": 1, "caption": "x", "mask": MASKS["uint8"],
    "vector": np.zeros(3, np.float32), "count": 7,
}  # fmt: skip
DECLARED = {
    "image": "image", "boxes": "boxes", "labels": packstore.Labels(["a", "b"]), "label": packstore.Label(["a", "b"]),
    "caption": "text", "mask": "mask", "vector": packstore.Array("float32", (3,)), "count": "int8",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": PIXELS}, "image: found pixels, expected a file as in the first sample"),
        ({"image": b"not an image"}, "is not an image"),
        ({"image": Path("missing.jpg")}, r"image: missing\.jpg cannot be read: No such file"),
        ({"image": Path("/dev")}, "image: /dev"),
        ({"mask": palette_png(INDICES)}, "mask: found a file, expected pixels as in the first sample"),
        ({"mask": INDICES.astype(float)}, "mask: found float64 of shape"),
        ({"mask": INDICES + 250}, "mask: found values from 250 to 261, which are not all uint8"),
        ({"mask": np.zeros((4, 3), np.uint8)}, "mask: the mask is 4x3, and its image 3x4"),
        ({"image": jpeg(1, 4, 3)}, "mask: the mask is 3x4, and its image 4x3"),
        ({"boxes": [[0, 0, 1]]}, "'boxes'"),
        ({"boxes": [[0, 0, np.nan, 1]]}, r"'boxes': box 0 is \[0.0, 0.0, nan, 1.0\]; expected finite numbers"),
        ({"boxes": [[0, -np.inf, 0, 1]]}, r"'boxes': box 0 is \[0.0, -inf, 0.0, 1.0\]; expected finite numbers"),
        ({"boxes": torch.tensor([[2, 0, 1, 1]])}, "box 0 is .*; expected left <= right and top <= bottom"),
        ({"boxes": [[0, 0, 1, 1], [0, 3, 1, 2]]}, "box 1 is .*; expected left <= right and top <= bottom"),
        ({"boxes": [[0, 0, 1, 1], [1, 1, 2, 2]]}, "'labels' has 1 rows and 'boxes' has 2; expected as many"),
        ({"labels": [2]}, "has 2 classes, numbered from 0; got 2"),
        ({"labels": ["c"]}, "labels: found 'c'; expected one of 2 classes"),
        ({"label": "c"}, "label: found 'c'; expected one of 2 classes"),
        ({"label": 0.5}, "'label'"),
        ({"caption": 3}, "'caption' .* needs a str, got int"),
        ({"vector": np.zeros(4, np.float32)}, r"'vector' .* needs shape \(3,\), got float32 \(4,\)"),
        ({"count": 128}, "'count' has dtype int8: some values are out of its range"),
        ({"count": None}, "count: no value; declare the field optional"),
        ({"colour": 1}, "colour: no such field; fields: image, boxes"),
    ],
)
def test_a_later_sample_that_does_not_fit_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good = [{**GOOD, "key": f"k{i}"} for i in range(40)]
    samples = [*good, {**GOOD, "key": "odd", **change}, *good]
    with pytest.raises(SampleError, match=f"^odd: sample 40: .*{message}") as caught:
        write(tmp_path / "a.lmdb", samples, DECLARED)
    assert caught.value.key == "odd"
    assert list(tmp_path.iterdir()) == []


def test_bad_targets_can_be_skipped(tmp_path: Path) -> None:
    """Boxes that are none, and masks of another size than their images; boxes may be empty, and lie outside."""
    good = [[[0, 0, 0, 0]], [[5, 5, 5, 9]], [[-9, -9, 99, 99]], np.zeros((0, 4)), []]
    bad = [[[1, 0, 0, 1]], [[0, 0, np.inf, 1]], [[0, np.nan, 1, 1]]]
    samples = [{"image": SMALL, "boxes": boxes, "mask": MASKS["uint8"]} for boxes in (*good, *bad)]
    samples.append({**samples[0], "mask": np.zeros((4, 4), np.uint8)})
    report = write(tmp_path / "a.lmdb", samples, {"image": "image", "boxes": "boxes", "mask": "mask"}, on_error="skip")
    assert [skipped.key for skipped in report.skipped] == [f"{i:010}" for i in range(5, 9)]
    assert report.manifest.records == 5
    with packstore.open(tmp_path / "a.lmdb") as store:
        assert [store.item("boxes", i).tolist() for i in range(5)] == [np.asarray(b).tolist() for b in good]


@pytest.mark.parametrize("encoding", ["original", "uint8"])
@pytest.mark.parametrize("exif_transpose", [False, True])
def test_a_mask_of_an_image_that_is_to_be_turned(tmp_path: Path, encoding: str, exif_transpose: bool) -> None:
    """It may lie as the pixels do or as they are shown, and is turned with them."""
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels(3, 4, 1)).save(turned, "JPEG", exif=exif)
    for shape in ((3, 4), (4, 3), (4, 4)):
        sample = {"image": turned.getvalue(), "mask": np.zeros(shape, np.uint8)}
        options: dict[str, Any] = {"encoding": encoding, "exif_transpose": exif_transpose, "overwrite": True}
        if shape in ((3, 4), (4, 3)):
            write(tmp_path / "a.h5", [sample], **options)
            with packstore.open(tmp_path / "a.h5") as store:
                assert store.item("mask", 0).shape == ((4, 3) if exif_transpose else (3, 4))
        else:
            with pytest.raises(SampleError, match=f"mask: the mask is {shape[0]}x{shape[1]}, and its image"):
                write(tmp_path / "a.h5", [sample], **options)


def _add_and_raise(writer: packstore.Writer, image: bytes, count: int) -> None:
    for _ in range(count):
        writer.add(image=image)
    raise KeyError("enough")


@pytest.mark.parametrize("count", [0, 3, 40, 3000])
def test_leaving_by_an_exception_leaves_nothing(tmp_path: Path, count: int) -> None:
    threads = set(threading.enumerate())
    image = jpeg(1)
    writer = packstore.Writer(tmp_path / "a.lmdb", {"image": "image"})
    with pytest.raises(KeyError, match="enough"), writer:
        _add_and_raise(writer, image, count)
    assert list(tmp_path.iterdir()) == []
    assert writer.report is None
    assert set(threading.enumerate()) <= threads
    with pytest.raises(UsageError, match="inside the with block"):
        writer.add(image=image)


def test_a_writer_without_samples_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sample was added"), packstore.Writer(tmp_path / "a.lmdb"):
        pass
    assert list(tmp_path.iterdir()) == []
    schema = make_schema([{"image": jpeg(1)}], {"image": packstore.Image()}, max_pixels=1 << 20)
    with pytest.raises(SourceError, match="stream has no samples, so there is nothing to pack"):
        StreamSource(Path("stream"), SourceOptions(), schema, iter(())).survey()


def test_an_error_of_the_packing_thread_is_raised(tmp_path: Path) -> None:
    with pytest.raises(PackstoreError, match="records 0 and 1 have the same key 'twice'"):
        write(tmp_path / "a.lmdb", [{"key": "twice", "image": jpeg(1)}] * 2)
    with pytest.raises(UsageError, match="normalize='auto' reads all images first"):
        write(tmp_path / "a.pth", [{"image": jpeg(1)}], encoding="float16", size=8, normalize="auto")
    with pytest.raises(UsageError, match="size, resize and max_side would change the images and not 'boxes'"):
        write(tmp_path / "a.lmdb", coco(2), COCO, encoding="jpeg", resize=8)
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_with_the_destination_is_said_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a.lmdb", [{"image": jpeg(1)}])
    with pytest.raises(DestinationError, match="exists already"):
        packstore.Writer(tmp_path / "a.lmdb")
    with pytest.raises(UsageError, match="unknown suffix"):
        packstore.Writer(tmp_path / "a.zip")
    with pytest.raises(DestinationError, match="make it first"):
        packstore.Writer(tmp_path / "no" / "a.lmdb")
    write(tmp_path / "a.lmdb", [{"image": jpeg(2)}], overwrite=True)
    assert item(tmp_path / "a.lmdb", "image") == jpeg(2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "picture"}, "field 'image': 'picture' declares nothing; use one of image, images, mask"),
        ({"label": "label"}, "no field is an image"),
        ({"image": packstore.Image(optional=True)}, "every record has the main image"),
        ({"image": "image", "Label": "label"}, "cannot be kept: .*'Label'"),
        ({"image": "image", "shape": "int64"}, "'shape' is made by packstore itself"),
        ({"image": "image", "a": packstore.Text(optional=True), "a_valid": "bool"}, "'a_valid' is made by packstore"),
        (
            {"image": "image", "labels": packstore.Labels(of="boxes")},
            "goes with 'boxes', which is not a field of boxes",
        ),
        ({"image": "image", "a": packstore.Array("complex64")}, "cannot be kept"),
        ({"image": "image", "a": packstore.Boxes("xywh")}, "cannot be kept"),
        ({"image": "image", "a": packstore.Keypoints(4)}, "cannot be kept"),
        ({"image": "image", "a": packstore.Label("abc")}, "classes should be a list of names"),
        (["image"], "fields should be a dict"),
    ],
)
def test_fields_that_cannot_be(tmp_path: Path, fields: Any, message: str) -> None:
    sample = {name: jpeg(1) if name == "image" else None for name in fields}
    with pytest.raises(UsageError, match=message):
        write(tmp_path / "a.lmdb", [sample], fields)
    assert list(tmp_path.iterdir()) == []


def test_splits_follow_each_other(tmp_path: Path) -> None:
    with packstore.Writer(tmp_path / "a.lmdb", {"image": "image"}, split="train") as writer:
        for i in range(20):
            writer.add(image=jpeg(i))
        for i in range(3):
            writer.add(image=jpeg(30 + i), split="val")
        with pytest.raises(UsageError, match="samples of split 'train' must follow each other"):
            writer.add(image=jpeg(0))
    assert writer.report is not None
    assert [(split.name, len(split)) for split in writer.report.manifest.splits] == [("train", 20), ("val", 3)]
    with packstore.open(tmp_path / "a.lmdb") as store:
        assert (store.key(19), store.key(20)) == ("train/0000000019", "val/0000000000")


def test_a_writer_makes_what_convert_makes(tmp_path: Path) -> None:
    """The same files and labels: the same dataset, so the same bytes but for what says where they came from."""
    folder = make_folder(tmp_path / "photos", splits=())
    converted = packstore.convert(folder, tmp_path / "a.lmdb").manifest
    with packstore.open(tmp_path / "a.lmdb") as store:
        samples = [
            {"key": store.key(i), "image": folder / store.key(i), "label": store.item("label", i)}
            for i in range(len(store))
        ]
    fields = {"image": "image", "label": packstore.Label(converted.classes)}
    assert write(tmp_path / "b.lmdb", samples, fields).manifest.dataset_digest == converted.dataset_digest


def upright(box: tuple[float, ...]) -> tuple[float, ...]:
    """The box between two corners."""
    left, top, right, bottom = box
    return min(left, right), min(top, bottom), max(left, right), max(top, bottom)


@st.composite
def datasets(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Fields and samples of every type; arrays of any dtype and shape."""
    numbers, few = st.integers(-(2**31), 2**31 - 1), st.integers(1, 5)
    texts = st.text(st.characters(codec="utf-8"), max_size=8)
    dtype, shape = draw(st.sampled_from(sorted(ITEM_SIZE))), draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
    kinds: dict[str, tuple[Any, Any]] = {
        "text": (packstore.Text, texts),
        "json": (packstore.Json, st.recursive(numbers | texts, lambda s: st.lists(s, max_size=2), max_leaves=4)),
        "bytes": (packstore.Bytes, st.binary(max_size=5000)),
        "label": (packstore.Label, st.integers(0, 2**62)),
        "labels": (partial(packstore.Labels, of=False), st.lists(st.integers(0, 99), max_size=4)),
        "boxes": (packstore.Boxes, st.lists(st.tuples(*[st.floats(0, 99, width=32)] * 4).map(upright), max_size=3)),
        "keypoints": (
            partial(packstore.Keypoints, of=False),
            st.lists(st.tuples(*[st.floats(0, 99, width=32)] * 2), max_size=3),
        ),
        "mask": (partial(packstore.Mask, "int32"), hnp.arrays(np.int32, (3, 4))),
        "view": (
            partial(packstore.Image, "uint8"),
            st.tuples(few, few).flatmap(lambda size: hnp.arrays(np.uint8, (*size, 3))),
        ),
        "vector": (partial(packstore.Array, dtype, shape), hnp.arrays(NUMPY_DTYPE[dtype], shape)),
        "rows": (
            partial(packstore.Array, dtype, shape, ragged=True),
            st.integers(0, 3).flatmap(lambda rows: hnp.arrays(NUMPY_DTYPE[dtype], (rows, *shape))),
        ),
    }
    names = draw(st.lists(st.sampled_from(sorted(kinds)), unique=True))
    fields, values = {}, {}
    for name in names:
        optional = draw(st.booleans())
        fields[name] = kinds[name][0](optional=optional)
        values[name] = st.none() | kinds[name][1] if optional else kinds[name][1]
    samples = draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=12))
    return fields, samples


@pytest.mark.slow
@settings(examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dataset=datasets(), suffix=st.sampled_from(FORMATS), shards=st.sampled_from([None, 1, 1500]), large=st.booleans()
)
def test_whatever_is_written_comes_back(
    tmp_path: Path, dataset: Any, suffix: str, shards: int | None, large: bool
) -> None:
    """``large``: in an LMDB every column that can lies record by record."""
    fields, samples = dataset
    path = tmp_path / f"a{suffix}"
    given = [{"image": SMALL, **sample} for sample in samples]
    with pytest.MonkeyPatch.context() as patch:
        if large and suffix == ".lmdb":
            patch.setattr(base, "_WHOLE_BYTES", 0)
        write(path, given, {"image": "image", **fields}, overwrite=True, shard_size=shards)
        with packstore.open(path) as store:
            assert list(store.check_structure()) == []
            for record, sample in enumerate(samples):
                for name, value in sample.items():
                    found = store.item(name, record)
                    assert store.has_value(name, record) == (value is not None)
                    if isinstance(found, np.ndarray | np.generic):
                        assert found.tobytes() == np.asarray(value, found.dtype).tobytes(), name
                    else:
                        assert found == value, name
        assert packstore.verify(path).ok


class Alive:
    """Arrays of a megabyte; counts those that are alive."""

    def __init__(self) -> None:
        self.most = 0
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for i in range(200):
            array = Counted((512, 683, 3))
            array[:] = i
            self._alive.add(array)
            self.most = max(self.most, len(self._alive))
            yield {"image": array}


class Counted(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array that a set of weak references takes."""

    def __new__(cls, shape: Any) -> Counted:
        return super().__new__(cls, shape, np.uint8)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self is other


@pytest.mark.slow
@pytest.mark.parametrize("generator", [False, True])
def test_memory_does_not_grow_with_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generator: bool
) -> None:
    """However slow the disk is."""
    monkeypatch.setattr("packstore.core.parallel.BUDGET_BYTES", 16 << 20)
    append = StoreBuilder.append

    def slow(*args: Any, **options: Any) -> None:
        time.sleep(0.002)
        append(*args, **options)

    monkeypatch.setattr(StoreBuilder, "append", slow)
    samples = Alive()
    if generator:
        packstore.convert(iter(samples), tmp_path / "a.h5", encoding="uint8", size=8, workers=2)
    else:
        write(tmp_path / "a.h5", samples, encoding="uint8", size=8, workers=2)
    assert samples.most < 60
