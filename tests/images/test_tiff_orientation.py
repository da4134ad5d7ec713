"""TIFF's orientation in headers and decoders: what is unusual is as Pillow has it, and pages have their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore.images.decoders import get_decoder
from tests.internals import (
    DecodeError,
    HeaderError,
    OpenImage,
    check_header,
    native,
    read_annotation_orientation,
    read_orientation,
    sniff,
    upright_size,
)
from tests.makers.images import all_images, avif, heic
from tests.makers.tiffs import LAYOUTS, ORIENTATION, SIZE, TURNS, XMP, Page, Tag, noise, oriented, tiff

LIMIT = 10**6


def xmp(kind: int, text: str) -> Tag:
    return XMP, kind, text.encode() + bytes(50)


UNUSUAL: dict[str, list[Tag]] = {
    "missing": [],
    "zero": [oriented(0)],
    "nine": [oriented(9)],
    **{f"type {kind}": [(ORIENTATION, kind, [6])] for kind in (1, 4, 6, 8, 9, 11, 12, 16)},
    "negative": [(ORIENTATION, 8, [-6])],
    "beyond 16 bits": [(ORIENTATION, 4, [65536 + 6])],
    "rational": [(ORIENTATION, 5, [6, 1])],
    "text": [(ORIENTATION, 2, b"6\0")],
    "bytes": [(ORIENTATION, 7, b"\6")],
    "two values": [(ORIENTATION, 3, [6, 3])],
    "nine values": [(ORIENTATION, 3, [6] * 9)],
    "twice": [oriented(6), oriented(3)],
    "twice, of two types": [(ORIENTATION, 4, [8]), oriented(3)],
    "twice, and one is bytes": [(ORIENTATION, 7, b"\6"), oriented(3)],
    "XMP": [xmp(1, '<x tiff:Orientation="6"/>')],
    "XMP of undefined type": [xmp(7, "<tiff:Orientation>8</tiff:Orientation>")],
    "XMP of nine": [xmp(1, '<x tiff:Orientation="9"/>')],
    "XMP without": [xmp(1, "<x/>")],
    "both": [oriented(3), xmp(1, '<x tiff:Orientation="6"/>')],
    "XMP, and a tag of bytes": [(ORIENTATION, 7, b"\3"), xmp(1, '<x tiff:Orientation="6"/>')],
}
"""Tags of files that no ordinary writer makes; versions of Pillow differ about some."""


def pillows(data: bytes) -> Any:
    """Pillow's pixels."""
    return OpenImage(memoryview(data)).load_frame(0, LIMIT, False, np.array)


@pytest.mark.filterwarnings("ignore:Metadata Warning")  # Pillow's, of several values
@pytest.mark.sampled(6, fast=3)
@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize(("order", "big"), [("<", False), (">", False), ("<", True)])  # Pillow lacks the fourth
def test_unusual_tags_are_as_pillow_has_them(name: str, order: str, big: bool) -> None:
    """In files that Pillow decodes, and in those that tifffile decodes alike."""
    pixels = noise(3)
    data = tiff(Page(pixels, UNUSUAL[name]), order=order, big=big)
    wanted = pillows(data)
    info = check_header(data)
    assert (info.height, info.width) == wanted.shape[:2]
    np.testing.assert_array_equal(TURNS[read_annotation_orientation(data)](pixels), wanted)
    np.testing.assert_array_equal(get_decoder().decode(data), wanted)
    deep = tiff(Page(pixels.astype(np.uint16) * 257, UNUSUAL[name]), order=order, big=big)
    np.testing.assert_array_equal(native.decode(memoryview(deep), LIMIT)[0], wanted.astype(np.uint16) * 257)


@pytest.mark.slow
@pytest.mark.sampled(6, fast=3)
@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("behind", [False, True], ids=["values before pixels", "values behind"])
def test_a_part_of_a_file_gives_the_same_header_or_none(name: str, big: bool, behind: bool) -> None:
    """Readers first parse the beginning of a file."""
    tags = [(270, 2, b"a long description, whose end a part of the file may lack" * 3 + b"\0"), *UNUSUAL[name]]
    small, large = Page(noise(3)[:2, :3], tags), Page(noise(3))
    whole = tiff(small, *([large] if behind else []), big=big)
    expected, parsed = sniff(whole), 0
    for length in range(8, len(whole)):
        try:
            found = sniff(whole[:length])
        except HeaderError:
            continue
        parsed += 1
        assert found == expected
    assert parsed


@pytest.mark.parametrize("orientation", range(1, 9))
def test_headers_have_the_upright_size(orientation: int) -> None:
    for layout in LAYOUTS.values():
        data = layout.write(0, oriented(orientation))
        height, width = SIZE if orientation < 5 else SIZE[::-1]
        for info in (sniff(data), check_header(data)):
            assert (info.height, info.width, info.tiff_orientation) == (height, width, orientation)
            assert read_annotation_orientation(data, info) == read_annotation_orientation(data) == orientation
            assert read_orientation(data, info) == 1
        assert upright_size(data) == (width, height)


@pytest.mark.sampled(4, fast=2)
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_page_is_turned_by_its_own_tag(layout: str, backwards: bool) -> None:
    """Also a page without the tag behind one with it, and if only a later page has one."""
    pytest.importorskip("tifffile")
    kind = LAYOUTS[layout]
    turns = [1, 6, 6, 1, 8, 3, 5, 2, 7, 4]
    pages = [kind.make(number) for number in range(len(turns))]
    pages = [
        page._replace(tags=[*page.tags, *([oriented(turn)] if turn > 1 else [])])
        for page, turn in zip(pages, turns, strict=True)
    ]
    data = tiff(*pages, order=kind.order, big=kind.big)
    assert (sniff(data).height, sniff(data).width) == SIZE
    reader = native.FrameReader(memoryview(data), LIMIT)
    for number in range(len(turns))[:: -1 if backwards else 1]:
        pixels, mode = reader.read_frame(number)
        assert mode.name == kind.mode
        np.testing.assert_array_equal(pixels, kind.pixels(number, turns[number]))


def test_orientation_of_annotations_in_other_kinds() -> None:
    """HEIF has the upright size in its header, as TIFF has, and no stored frame that an annotation might be in."""
    assert read_annotation_orientation(heic(31, 20, 6)) == 1
    assert read_annotation_orientation(avif(31, 20, 6)) == 6
    for data in all_images().values():
        assert read_annotation_orientation(data) == read_orientation(data) == 1
    whole = LAYOUTS["rgb8"].write(0, oriented(6))
    assert [read_annotation_orientation(data) for data in (whole[:20], b"II*\0", b"", b"text")] == [1, 1, 1, 1]


@pytest.mark.slow
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4), st.booleans())
def test_damaged_files_have_the_size_that_is_decoded(
    orientation: int, damage: list[tuple[int, int]], deep: bool
) -> None:
    data = bytearray(LAYOUTS["rgb16" if deep else "rgb8"].write(0, oriented(orientation)))
    start = data.index(bytes((0, 1, 4, 0)))  # the first entry, whose tag is 256
    for at, value in damage:
        data[start + at % (len(data) - start)] = value
    try:
        info = check_header(data)
        pixels, _ = native.decode(memoryview(bytes(data)), LIMIT)
    except (HeaderError, DecodeError):
        return
    assert pixels.shape[:2] == (info.height, info.width)
