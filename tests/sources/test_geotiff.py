"""GeoTIFF tags as a column, against tifffile."""

from __future__ import annotations

import io
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset
from packstore.sources import open_source
from tests.internals import DecodeError, Sample, SampleError, UsageError, decode, list_tiff_pages, read_geotiff
from tests.makers.annotated import fill
from tests.makers.images import tiny
from tests.makers.sources import prove, refused

tifffile = pytest.importorskip("tifffile")
DOUBLE, SHORT, ASCII = 12, 3, 2
KEYS = (1, 1, 0, 5, 1024, 0, 1, 1, 1025, 0, 1, 1, 1026, 34737, 8, 0, 2057, 34736, 1, 1, 3072, 0, 1, 32633)
TAGS = [
    (33550, DOUBLE, 3, (10.0, 20.0, 0.0)), (33922, DOUBLE, 6, (2.0, 3.0, 0.0, 500000.0, 4600000.0, 0.0)),
    (34735, SHORT, len(KEYS), KEYS), (34736, DOUBLE, 2, (1.5, 6378137.0)), (34737, ASCII, 9, "UTM 33N|\0"),
    (42113, ASCII, 6, "-9999\0"),
]  # fmt: skip
PIXELS = np.arange(12 * 9, dtype=np.uint16).reshape(12, 9)


def save(path: Path, tags: Any = TAGS, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tifffile.TiffWriter(path, **options) as file:
        file.write(PIXELS, photometric="minisblack", extratags=[(*each, True) for each in tags])
    return path


@pytest.mark.parametrize("options", [{}, {"bigtiff": True}, {"byteorder": ">"}])
def test_tags_are_tifffiles(options: dict[str, Any], tmp_path: Path) -> None:
    file = save(tmp_path / "a.tif", **options)
    found = read_geotiff(file.read_bytes())
    assert found is not None
    with tifffile.TiffFile(file) as known:
        for tag, value in found["tags"].items():
            wanted = known.pages[0].tags[int(tag)].value
            assert value == (wanted if isinstance(wanted, str) else list(wanted))
        metadata = known.geotiff_metadata
    assert found["crs"] == f"EPSG:{int(metadata['ProjectedCSTypeGeoKey'])}" == "EPSG:32633"
    assert found["keys"]["1026"] == metadata["GTCitationGeoKey"] == "UTM 33N"
    assert found["keys"]["2057"] == metadata["GeogSemiMajorAxisGeoKey"] == 6378137.0
    assert found["transform"] == [10.0, 0.0, 500000 - 2 * 10, 0.0, -20.0, 4600000 + 3 * 20]
    assert found["nodata"] == "-9999"


def test_a_matrix_and_points_in_the_middle_of_pixels(tmp_path: Path) -> None:
    matrix = (4.0, 1.0, 0.0, 100.0, 0.5, -4.0, 0.0, 200.0, *(0.0,) * 7, 1.0)
    keys = (1, 1, 0, 2, 1025, 0, 1, 2, 2048, 0, 1, 4326)
    file = save(tmp_path / "a.tif", [(34264, DOUBLE, 16, matrix), (34735, SHORT, len(keys), keys)])
    found = read_geotiff(file.read_bytes())
    assert found is not None
    assert found["transform"] == [4.0, 1.0, 100 - 2.5, 0.5, -4.0, 200 + 1.75]  # as GDAL moves it by half a pixel
    assert found["crs"] == "EPSG:4326"


def test_a_column_that_goes_with_images_to_store_and_proof(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save(source / "field" / "a.tif")
    save(source / "field" / "b.tif", [])
    save(source / "town" / "c.tif", TAGS[:2])
    prove(source, tmp_path / "out.lmdb", columns="keep=geo", mode="keep", decode=True)
    rows = PackedDataset(tmp_path / "out.lmdb", columns=("image", "label", "geo"))
    geo = [rows[number][2] for number in range(3)]
    assert geo[0]["crs"] == "EPSG:32633"
    assert geo[1] is None
    assert (geo[2]["crs"], geo[2]["transform"][0]) == (None, 10.0)
    assert [int(rows[number][1]) for number in range(3)] == [0, 0, 1]
    prove(source, tmp_path / "frames.lmdb", columns="keep=geo", frames="all", encoding="uint16")
    assert PackedDataset(tmp_path / "frames.lmdb", columns=("image", "geo"))[0][1] == geo[0]


def test_images_of_other_kinds_have_none(tmp_path: Path) -> None:
    fill(tmp_path, {"a/x.jpg": tiny(1)})
    with closing(open_source(tmp_path, columns=["keep=geo"])) as source:
        source.survey()
        sample = source.read(next(iter(source.entries())))
    assert isinstance(sample, Sample)
    assert sample.values == {"geo": None}


def test_damaged_tags_are_a_bad_sample(tmp_path: Path) -> None:
    file = save(tmp_path / "a" / "x.tif", [*TAGS[:3], (34736, DOUBLE, 1, (1.5,)), TAGS[4]])
    with closing(open_source(tmp_path, columns=["keep=geo"])) as source:
        entry = next(iter(source.entries()))
        with pytest.raises(SampleError, match="GeoTIFF tags are damaged: key 2057"):
            source.read(entry)
    data = file.read_bytes()
    for length in range(8, len(data), 3):
        try:
            read_geotiff(data[:length])
        except ValueError as error:
            said = str(error)
            assert "damaged" in said


def test_pages_without_end_are_damage() -> None:
    stream = io.BytesIO()
    with tifffile.TiffWriter(stream) as file:
        file.write(np.zeros((3, 2, 3), np.uint16), photometric="rgb", metadata=None)
    data = bytearray(stream.getvalue())
    first = int.from_bytes(data[4:8], "little")
    end = first + 2 + 12 * int.from_bytes(data[first : first + 2], "little")
    data[end : end + 4] = data[4:8]
    with pytest.raises(DecodeError, match="circle"):
        decode(memoryview(data), 100)


def test_offsets_that_no_file_has_are_damage(tmp_path: Path) -> None:
    data = bytearray(save(tmp_path / "a.tif", bigtiff=True).read_bytes())
    data[8:16] = b"\xff" * 8
    with pytest.raises(ValueError, match="GeoTIFF tags are damaged"):
        read_geotiff(data)
    with pytest.raises(struct.error):
        list_tiff_pages(data)


def test_sources_of_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x_train=np.zeros((4, 8, 8, 3), np.uint8))
    refused(UsageError, tmp_path / "x.npz", "GeoTIFF", columns="keep=geo")
