"""Column types: each is an object in a registry; and the type of lists of images."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import packstore
from packstore.testing import ColumnTypeSuite
from tests.internals import (
    COLUMN_TYPES,
    Column,
    ManifestError,
    StoreError,
    UsageError,
    from_stored,
    parse_field,
    to_stored,
)
from tests.makers.samples import jpeg
from tests.makers.typed import SHAPES, png

IMAGES = Column("pages", "ragged", "uint8", type="images")


class TestImages(ColumnTypeSuite):
    type = "images"
    field = packstore.Images()
    optional = packstore.Images(optional=True)
    values = ([], [jpeg(1)], [jpeg(2), jpeg(1, 90, 80), jpeg(2)])
    wrong = (b"one file", ["a.jpg"], [None], {"a": b""}, 5)


class TestText(ColumnTypeSuite):
    type = "text"
    field = packstore.Text()
    optional = packstore.Text(optional=True)
    values = ("", "a word ☺", "x" * 5000, "\udcff")
    wrong = (b"a", 5, ["a"])


class TestJson(ColumnTypeSuite):
    type = "json"
    field = packstore.Json()
    optional = packstore.Json(optional=True)
    values = ({}, {"a": [1, None, "ü"]}, "x" * 5000, [1.5])
    wrong = (b"a", float("nan"), {1, 2})


class TestBytes(ColumnTypeSuite):
    type = "bytes"
    field = packstore.Bytes()
    optional = packstore.Bytes(optional=True)
    values = (b"", b"\0\xff", bytes(5000))
    wrong = ("a", 5, [b"a"])


class TestBoxes(ColumnTypeSuite):
    type = "boxes"
    field = packstore.Boxes()
    optional = packstore.Boxes(optional=True)
    values = (np.zeros((0, 4)), [[1, 2, 3, 4]], np.arange(400).reshape(-1, 4))
    wrong = ([[1, 2, 3]], [[3, 2, 1, 4]], [[1, 2, float("inf"), 4]], "box")
    placed, mirrored = [[0, 1, 3, 4], [1.5, 1, 4, 5]], [[1, 1, 4, 4], [0, 1, 2.5, 5]]
    faulty: ClassVar = {
        "box_empty": [[0, 1, 3, 4], [1, 1, 1, 3]],
        "box_inverted": [[3, 1, 1, 3]],
        "box_outside": [[0, 0, 4, 7]],
    }


class TestKeypoints(ColumnTypeSuite):
    type = "keypoints"
    field = packstore.Keypoints(3)
    optional = packstore.Keypoints(3, optional=True)
    values = (np.zeros((0, 3)), [[1, 2, 2]], np.arange(300).reshape(-1, 3))
    wrong = ([[1, 2]], [1, 2, 3], "point")
    placed, mirrored = [[0, 1, 2], [2.5, 4, 1]], [[3, 1, 2], [0.5, 4, 1]]


class TestSegments(ColumnTypeSuite):
    type = "segments"
    field = packstore.Segments()
    optional = packstore.Segments(optional=True)
    values = SHAPES
    wrong = (
        5,
        "x",
        [5],
        [[5]],
        [[[1]]],
        [[["a", 1]]],
        [[["1", "2"]]],
        [{"size": [0, 4], "counts": []}],
        [[[1e9, 1]]],
        [[[float("nan"), 1]]],
        [{"counts": [3]}],
    )
    placed: ClassVar = [[[0, 1, 3, 4, 0, 4]], {"size": [5, 4], "counts": [5, 5, 10]}, None]
    mirrored: ClassVar = [[[4, 1, 1, 4, 4, 4]], {"size": [5, 4], "counts": [10, 5, 5]}, None]
    joined: ClassVar = [placed[0], {"size": [10, 8], "counts": [10, 5, 65]}, None]


class TestLabel(ColumnTypeSuite):
    type = "label"
    field = packstore.Label(["ant", "bee"])
    optional = packstore.Label(["ant", "bee"], optional=True)
    values = (0, 1, 1)
    wrong = (2, -1, 0.5, [1])


class TestLabels(ColumnTypeSuite):
    type = "labels"
    field = packstore.Labels(["ant", "bee"])
    optional = packstore.Labels(["ant", "bee"], optional=True)
    values = (np.zeros(0, np.int64), [1], [0, 1, 1])
    wrong = ([2], [-1], [0.5], 1)


class TestArray(ColumnTypeSuite):
    type = "array"
    field = packstore.Array("int16", (2,), ragged=True)
    optional = packstore.Array("int16", (2,), ragged=True, optional=True)
    values = (np.zeros((0, 2)), [[1, -2]], np.arange(200).reshape(-1, 2))
    wrong = ([[1]], [[1 << 20, 2]], "numbers")


class TestMask(ColumnTypeSuite):
    type = "mask"
    field = packstore.Mask("uint8")
    optional = packstore.Mask("uint8", optional=True)
    values = (np.zeros((5, 4), np.uint8), np.arange(20).reshape(5, 4))
    wrong = (np.zeros(4), "mask")
    faulty: ClassVar = {"mask_size": np.zeros((4, 5)), "mask_value": np.full((5, 4), 200)}

    def test_damaged_values_are_errors_or_values(self, tmp_path: Path) -> None:
        pytest.skip("shapes lie in a column of their own")


class TestVolume(ColumnTypeSuite):
    type = "volume"
    field = packstore.Array("int32", spatial="DCHW")
    optional = packstore.Array("int32", spatial="DCHW", optional=True)
    values = (np.zeros((2, 1, 5, 4), np.int32), np.arange(60).reshape(1, 3, 5, 4), np.zeros((0, 1, 5, 4), np.int8))
    wrong = (np.zeros((3, 5, 4)), np.zeros(4), "volume")
    placed = np.arange(60).reshape(1, 3, 5, 4)

    def test_a_batch_without_any_value(self, tmp_path: Path) -> None:
        self.write(tmp_path / "a.lmdb", self.optional, [None, np.zeros((0, 1, 5, 4))])
        items = packstore.PackedDataset(tmp_path / "a.lmdb", columns=("image", "value"))
        [(_, (none, empty))] = packstore.PackedLoader(items, 2, collate={"value": "optional"})
        assert none is None
        assert (empty.shape, empty.dtype) == ((0, 1, 5, 4), torch.int32)

    def test_damaged_values_are_errors_or_values(self, tmp_path: Path) -> None:
        pytest.skip("shapes lie in a column of their own")


class TestClip(ColumnTypeSuite):
    type = "clip"
    field = packstore.Array("uint8", (2, 1, 5, 4), spatial=True, smooth=True)
    optional = packstore.Array("uint8", (2, 1, 5, 4), spatial=True, smooth=True, optional=True)
    values = (np.zeros((2, 1, 5, 4), np.uint8), np.arange(40).reshape(2, 1, 5, 4))
    wrong = (np.zeros((1, 1, 5, 4), np.uint8), np.full((2, 1, 5, 4), 256), "clip")


class TestImage(ColumnTypeSuite):
    type = "image"
    field = packstore.Image()
    optional = packstore.Image(optional=True)
    values = (jpeg(1), jpeg(2, 90, 80))
    wrong = ("a.jpg", 5)
    placed = png(np.arange(60, dtype=np.uint8).reshape(5, 4, 3))


def test_every_type_has_its_suite() -> None:
    suites = {suite.type for suite in ColumnTypeSuite.__subclasses__()}
    assert suites >= {*COLUMN_TYPES.built_in}


def test_a_list_is_the_sizes_and_the_files() -> None:
    value = bytes(to_stored(IMAGES, [b"one", b"", b"three"]))
    assert value == struct.pack("<4Q", 3, 3, 0, 5) + b"onethree"
    assert np.frombuffer(value, "<u8", 1).tolist() == [3]
    assert to_stored(IMAGES, []) == bytes(8)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_lists_come_back(files: list[bytes]) -> None:
    assert from_stored(IMAGES, to_stored(IMAGES, files)) == files


@given(st.lists(st.binary(max_size=10), max_size=3), st.data())
def test_damaged_lists_are_errors_or_other_lists(files: list[bytes], data: st.DataObject) -> None:
    value = bytearray(to_stored(IMAGES, files))
    place = data.draw(st.integers(0, len(value) - 1))
    value[place] ^= data.draw(st.integers(1, 255))
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    for raw in (bytes(value), cut):
        with suppress(StoreError):
            assert to_stored(IMAGES, from_stored(IMAGES, raw)) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(7),
        struct.pack("<Q", 1),
        struct.pack("<Q", 2**64 - 1),
        struct.pack("<Q", 2**61) + bytes(16),
        struct.pack("<QQ", 1, 2**64 - 1) + b"x",
        struct.pack("<QQQ", 2, 2**63, 2**63),
        struct.pack("<QQ", 1, 1),
        struct.pack("<QQ", 1, 1) + b"xy",
        struct.pack("<Q", 0) + b"x",
    ],
)
def test_sizes_beyond_a_value_are_damage(raw: bytes) -> None:
    with pytest.raises(StoreError, match="'pages' is no list of files"):
        from_stored(IMAGES, raw)


def test_without_its_plug_in_a_type_is_unknown() -> None:
    with pytest.raises(UsageError, match=r"'reversed' declares nothing; use one of .*images"):
        parse_field("word", "reversed")
    with pytest.raises(ManifestError, match="one of a plug-in that is not installed: 'reversed'"):
        Column("word", "ragged", "uint8", type="reversed")
