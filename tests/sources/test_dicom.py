"""DICOM as a source, against pydicom."""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from packstore import PackedDataset, PackedLoader, convert, verify
from packstore.cli import cli
from packstore.sources import Entry, open_source
from packstore.testing import SourceSuite
from tests.internals import Sample, SampleError, SourceError, UsageError
from tests.internals import read_dicom_header as read_header
from tests.makers.annotated import fill
from tests.makers.dicom import make_dataset, pixels_of, save
from tests.makers.lazy import import_on_use
from tests.makers.medical import image_of, read_samples
from tests.makers.sources import look, not_packed, prove, refused

pydicom = import_on_use("pydicom")
PUBLISHED = Path(str(find_spec("pydicom").origin)).parent / "data" / "test_files"


def records(path: Path, **options: Any) -> dict[str, Sample]:
    return read_samples(path, "dicom", **options)


class TestDicom(SourceSuite):
    kind = "dicom"
    many = 200
    damages = 12

    def make(self, folder: Path, samples: int) -> Path:
        for number in range(samples - 2):
            dataset = make_dataset(pixels_of(number), InstanceNumber=number, SeriesInstanceUID=f"1.{number % 3}")
            save(dataset, folder / f"study\udcfe {number % 2}" / f"{number}.dcm")
        save(make_dataset(pixels_of(9999, shape=(2, 6, 5)), SeriesInstanceUID="1.9"), folder / "frames.dcm")
        return folder

    def change(self, path: Path) -> None:
        save(make_dataset(pixels_of(77777, shape=(6, 6))), path / "study\udcfe 0" / "0.dcm")

    def spoil(self, path: Path, entry: Entry) -> bool:
        file = path / entry.key
        data = bytearray(file.read_bytes())
        found = file.stat()
        at = data.index(b"\x28\x00\x00\x01US\x02\x00") + 8  # BitsAllocated, which the listing does not need
        data[at] = 11
        file.write_bytes(data)
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
        return True


@pytest.mark.parametrize(
    "name",
    ["CT_small", "MR_small_RLE", "MR_small_bigendian", "MR_small_implicit", "MR_small_jp2klossless",
     "MR_small_jpeg_ls_lossless", "JPEG2000", "JPGExtended", "693_J2KI", "SC_rgb_jpeg_gdcm", "SC_rgb_rle_16bit_2frame",
     "SC_ybr_full_422_uncompressed", "SC_rgb_jls_lossy_sample", "examples_palette", "examples_overlay",
     "examples_ybr_color", "liver_1frame", "rtdose", "rtdose_rle", "J2K_pixelrep_mismatch"],
)  # fmt: skip
def test_pixels_are_pydicoms(name: str, tmp_path: Path) -> None:
    file = PUBLISHED / f"{name}.dcm"
    (tmp_path / file.name).write_bytes(file.read_bytes())
    found = records(tmp_path)
    dataset = pydicom.dcmread(file)
    wanted = dataset.pixel_array
    if dataset.PhotometricInterpretation == "PALETTE COLOR":
        wanted = pydicom.pixels.apply_color_lut(wanted, dataset)
    if dataset.get("NumberOfFrames", 1) > 1:
        assert list(found) == [f"{file.name}#{frame}" for frame in range(len(wanted))]
        assert [sample.values["frame"] for sample in found.values()] == list(range(len(wanted)))
    else:
        wanted = wanted[None]
    for sample, pixels in zip(found.values(), wanted, strict=True):
        np.testing.assert_array_equal(image_of(sample).reshape(pixels.shape), pixels)


@pytest.mark.slow
def test_series_are_in_the_order_of_their_planes_and_identity_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    axes = [1, 0, 0, 0, 1, 0]
    for number, (series, place) in enumerate([("a", 5.0), ("b", 1.0), ("a", -2.5), ("a", 1.5), ("b", 0.5)]):
        dataset = make_dataset(
            pixels_of(number), ImagePositionPatient=[0, 0, place], ImageOrientationPatient=axes,
            SeriesInstanceUID=f"1.{ord(series)}", RescaleSlope=2, RescaleIntercept=-1024.5,
            WindowCenter=[40, 400], WindowWidth=[80, 2000], InstanceNumber=number,
        )  # fmt: skip
        save(dataset, source / "anonymous" / f"{number}.dcm")
    found = records(source)
    assert [key[-5] for key in found] == ["2", "3", "0", "4", "1"]
    assert [sample.values["series"] for sample in found.values()] == [0, 0, 0, 1, 1]
    assert [sample.values["position"] for sample in found.values()] == [-2.5, 1.5, 5.0, 0.5, 1.0]
    first = found["anonymous/2.dcm"].values
    assert (first["slope"], first["intercept"], first["patient"], first["study"]) == (2, -1024.5, 0, 0)
    np.testing.assert_array_equal(first["window"], [[40, 80], [400, 2000]])
    assert first["dicom"]["Modality"] == "CT"
    report = convert(source, tmp_path / "out.h5")
    data = (tmp_path / "out.h5").read_bytes()
    assert b"ecret" not in data
    assert b"042Y" not in data
    assert any("--column keep=" in reason for reason in report.ledger.passed_over)
    kept = records(source, columns=["keep=PatientAge,PatientName"])["anonymous/2.dcm"].values["dicom"]
    assert (kept["PatientAge"], kept["PatientName"]) == ("042Y", "Secret^Name")


def test_rescaled_values_are_pydicoms(tmp_path: Path) -> None:
    whole = make_dataset(pixels_of(1), BitsStored=16, RescaleSlope=1, RescaleIntercept=-1024)
    save(whole, tmp_path / "whole" / "a.dcm")
    found = records(tmp_path / "whole", columns="image=rescaled")["a.dcm"]
    assert image_of(found).dtype == np.int32  # a short one does not hold -32,768 - 1,024
    expected = pydicom.pixels.apply_modality_lut(whole.pixel_array, whole)
    np.testing.assert_array_equal(image_of(found)[..., 0], expected)
    part = make_dataset(pixels_of(2), RescaleSlope="0.37", RescaleIntercept="-3.5")
    save(part, tmp_path / "part" / "a.dcm")
    found = records(tmp_path / "part", columns="image=rescaled")["a.dcm"]
    expected = pydicom.pixels.apply_modality_lut(part.pixel_array, part)
    np.testing.assert_array_equal(image_of(found)[..., 0], expected.astype(np.float32))


def test_scale_is_refused_for_values_that_do_not_take_all_bits(tmp_path: Path) -> None:
    """Of 12 bits, scale would make 0 … 16."""
    pixels = np.abs(pixels_of(1)).astype(np.uint16)
    save(
        make_dataset(pixels % 4096, BitsStored=12, HighBit=11, RescaleIntercept=-1024, RescaleSlope=1),
        tmp_path / "12" / "a.dcm",
    )
    for columns, window in (("image=stored", "0,4095"), ("image=rescaled", "-1024,3071")):
        with pytest.raises(UsageError, match=f"give --depth window:{window},"):
            convert(tmp_path / "12", tmp_path / "out.h5", columns=columns, depth="scale")
    save(make_dataset(pixels), tmp_path / "16" / "a.dcm")
    assert convert(tmp_path / "16", tmp_path / "out.h5", depth="scale").manifest.encoding == "uint8"


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_the_window_is_pydicoms(function: str, tmp_path: Path) -> None:
    pixels = np.arange(-1500, 1500, 25, np.int16).reshape(10, 12)
    dataset = make_dataset(
        pixels, RescaleSlope=2, RescaleIntercept=-100, WindowCenter=40, WindowWidth=400, VOILUTFunction=function
    )
    save(dataset, tmp_path / "a.dcm")
    shown = pydicom.pixels.apply_voi_lut(pydicom.pixels.apply_modality_lut(pixels, dataset), dataset)
    low, high = (2 * end - 100 for end in (-32768, 32767))
    expected = np.rint((shown - low) / (high - low) * 255)
    np.testing.assert_array_equal(image_of(records(tmp_path, columns="image=window")["a.dcm"])[..., 0], expected)
    dataset.PhotometricInterpretation = "MONOCHROME1"
    save(dataset, tmp_path / "a.dcm")
    np.testing.assert_array_equal(image_of(records(tmp_path, columns="image=window")["a.dcm"])[..., 0], 255 - expected)


def test_a_window_that_no_file_names_is_an_error_with_the_files_name(tmp_path: Path) -> None:
    save(make_dataset(pixels_of(1)), tmp_path / "a.dcm")
    with pytest.raises(SampleError, match=r"a\.dcm: .*names no window"):
        records(tmp_path, columns="image=window")


def test_frames_of_functional_groups_have_their_own_values(tmp_path: Path) -> None:
    def group(**sequences: Mapping[str, Any]) -> Any:
        made = pydicom.Dataset()
        for name, values in sequences.items():
            item = pydicom.Dataset()
            for keyword, value in values.items():
                setattr(item, keyword, value)
            setattr(made, name, pydicom.Sequence([item]))
        return made

    frames = [
        group(
            PlanePositionSequence={"ImagePositionPatient": [0, 0, place]},
            PixelValueTransformationSequence={"RescaleSlope": slope, "RescaleIntercept": 0},
        )
        for place, slope in ((3, 2), (7, 5))
    ]
    shared = group(PlaneOrientationSequence={"ImageOrientationPatient": [1, 0, 0, 0, 1, 0]})
    pixels = pixels_of(3, shape=(2, 4, 4))
    dataset = make_dataset(
        pixels, PerFrameFunctionalGroupsSequence=pydicom.Sequence(frames),
        SharedFunctionalGroupsSequence=pydicom.Sequence([shared]),
    )  # fmt: skip
    save(dataset, tmp_path / "a.dcm")
    found = records(tmp_path, columns="image=rescaled")
    assert [(s.values["position"], s.values["slope"]) for s in found.values()] == [(3, 2), (7, 5)]
    np.testing.assert_array_equal(image_of(found["a.dcm#1"])[..., 0], pixels[1].astype(np.int64) * 5)


@pytest.mark.parametrize(
    ("dtypes", "mode"),
    [(["uint8"], "L"), (["uint16"], "I;16"), (["int16", "uint8"], "I;16S"), (["int16", "uint16"], "I")],
)
def test_the_mode_holds_all_files(dtypes: list[str], mode: str, tmp_path: Path) -> None:
    for number, dtype in enumerate(dtypes):
        save(make_dataset(pixels_of(number, dtype)), tmp_path / f"{number}.dcm")
    assert look(tmp_path).mode == mode
    for number, sample in enumerate(records(tmp_path).values()):
        np.testing.assert_array_equal(image_of(sample)[..., 0], pixels_of(number, dtypes[number]))


def test_gray_of_16_bits_and_colours_are_refused(tmp_path: Path) -> None:
    save(make_dataset(pixels_of(1)), tmp_path / "gray.dcm")
    (tmp_path / "colour.dcm").write_bytes((PUBLISHED / "SC_rgb_rle.dcm").read_bytes())
    refused(SourceError, tmp_path, r"gray\.dcm.*colour\.dcm.*--ignore")


def test_reports_and_other_files_are_said(tmp_path: Path) -> None:
    save(make_dataset(pixels_of(1)), tmp_path / "images" / "IM0001")  # without a suffix
    for name in ("rtplan.dcm", "test-SR.dcm"):
        (tmp_path / name).write_bytes((PUBLISHED / name).read_bytes())
    (tmp_path / "DICOMDIR").write_bytes((PUBLISHED / "dicomdirtests" / "DICOMDIR").read_bytes())
    survey = look(tmp_path).survey
    assert survey.records == 1
    assert dict(survey.ledger.left) == {"DICOM without pixels (reports, plans, directories)": 3}


def test_options_are_checked(tmp_path: Path) -> None:
    save(make_dataset(pixels_of(1)), tmp_path / "a.dcm")
    for wrong, said in (
        ("image=pretty", "stored"),
        ("image=volumes", "dcm2niix"),
        ("keep=Nothing", "Nothing"),
        ("label=Modality", "keep=KEYWORD"),
    ):
        refused(UsageError, tmp_path, said, kind="dicom", columns=wrong)


@pytest.mark.parametrize("slope", ["1", "0.37"])
def test_a_window_of_ones_own(slope: str, tmp_path: Path) -> None:
    """Of whole numbers and of floating point alike: ``--column image=rescaled --depth window:…``."""
    dataset = make_dataset(pixels_of(1) // 100, RescaleSlope=slope, RescaleIntercept="-24.5")
    save(dataset, tmp_path / "source" / "a.dcm")
    report = prove(tmp_path / "source", tmp_path / "out.lmdb", columns="image=rescaled", depth="window:-160,240")
    assert (report.manifest.encoding, report.manifest.image.mode) == ("uint8", "L")
    values = pydicom.pixels.apply_modality_lut(dataset.pixel_array, dataset).astype(np.float32).astype(np.float64)
    wanted = np.rint(np.clip((values + 160) * (255 / 400), 0, 255))
    np.testing.assert_array_equal(PackedDataset(tmp_path / "out.lmdb")[0][0], wanted)
    for options, said in (({"mode": "L"}, "--depth"), ({"encoding": "uint8"}, "--depth")):
        not_packed(UsageError, tmp_path / "source", tmp_path / "x.lmdb", said, columns="image=rescaled", **options)


@pytest.mark.parametrize("form", ["lmdb", "h5", "pth"])
def test_files_are_kept_if_asked(form: str, tmp_path: Path) -> None:
    one = save(make_dataset(pixels_of(1)), tmp_path / "source" / "a.dcm")
    two = save(make_dataset(pixels_of(2, shape=(2, 6, 5))), tmp_path / "source" / "b.dcm")
    out = tmp_path / f"out.{form}"
    done = CliRunner().invoke(cli, ["convert", str(tmp_path / "source"), str(out), "--dicom", "keep-file"])
    assert done.exit_code == 0, done.output
    assert "whole DICOM files, which identify patients" in done.output
    items = [
        value
        for (value,) in (item if isinstance(item, tuple) else (item,) for item in PackedDataset(out, columns=["file"]))
    ]
    assert items == [one.read_bytes(), two.read_bytes(), None]
    assert verify(out, against=tmp_path / "source").ok


def test_it_trains_and_proves(tmp_path: Path) -> None:
    for number in range(4):
        save(make_dataset(pixels_of(number, "uint16", (8, 8))), tmp_path / "source" / f"{number}.dcm")
    prove(tmp_path / "source", tmp_path / "out.lmdb", decode=True)
    (batch,) = PackedLoader(PackedDataset(tmp_path / "out.lmdb"), batch_size=4)
    assert batch.dtype == torch.int32
    np.testing.assert_array_equal(batch[:, 0], [pixels_of(n, "uint16", (8, 8)) for n in range(4)])


@pytest.mark.slow
def test_hostile_files_are_bad_samples(tmp_path: Path) -> None:
    save(make_dataset(pixels_of(1)), tmp_path / "good.dcm")
    save(make_dataset(pixels_of(1), NumberOfFrames=1_000_000_000), tmp_path / "frames.dcm")
    save(make_dataset(pixels_of(1), Rows=60000, Columns=60000), tmp_path / "large.dcm")
    save(make_dataset(pixels_of(1), BitsStored=200), tmp_path / "bits.dcm")
    (tmp_path / "deflated.dcm").write_bytes((PUBLISHED / "image_dfl.dcm").read_bytes())
    late = save(make_dataset(pixels_of(1)), tmp_path / "late.dcm")  # Columns once more behind the pixels, as text
    late.write_bytes(late.read_bytes() + b"\x28\x00\x11\x00LT\x02\x00no")
    claim = bytearray(save(make_dataset(pixels_of(1), NumberOfFrames=100_000), tmp_path / "claim.dcm").read_bytes())
    at = claim.rindex(b"\xe0\x7f\x10\x00") + 8
    claim[at : at + 4] = (1 << 30).to_bytes(4, "little")  # bytes of pixels
    fill(tmp_path, {"claim.dcm": claim, "text.dcm": "no DICOM at all", "empty.dcm": b""})
    stream = bytearray((PUBLISHED / "MR_small_jp2klossless.dcm").read_bytes())
    at = stream.index(b"\xff\x4f\xff\x51") + 8
    stream[at : at + 8] = (60000).to_bytes(4) * 2
    (tmp_path / "stream.dcm").write_bytes(stream)
    said = {}
    with closing(open_source(tmp_path, max_pixels=1_000_000)) as source:
        assert source.survey().records == 10
        for entry in source.entries():
            try:
                source.read(entry)
            except SampleError as error:
                said[entry.key] = error.reason
    expected = {"frames": "frames", "large": "max_pixels", "bits": "200 bits", "deflated": "is deflated",
                "claim": "100,000 frames, but bytes for", "late": "cannot be read",
                "text": "no DICOM", "empty": "no DICOM", "stream": "60000 x 60000"}  # fmt: skip
    assert said.keys() == {f"{name}.dcm" for name in expected}
    for name, part in expected.items():
        assert part in said[f"{name}.dcm"], said[f"{name}.dcm"]


def test_a_palette_that_grows_with_each_segment_is_refused(tmp_path: Path) -> None:
    segments = [0, 1, 5, 1, 65535, 5]
    for count in range(2, 20):  # each repeats all before it
        segments += [2, count, 0, 0]
    colours = {
        f"{name}{colour}PaletteColorLookupTable{what}": value
        for colour in ("Red", "Green", "Blue")
        for name, what, value in (
            ("", "Descriptor", [256, 0, 16]),
            ("Segmented", "Data", struct.pack("<78H", *segments)),
        )
    }
    palette = {"PhotometricInterpretation": "PALETTE COLOR", **colours}
    save(make_dataset(pixels_of(1, "uint8"), **palette), tmp_path / "a.dcm")
    with pytest.raises(SampleError, match="palette is segmented"):
        look(tmp_path).read(0)


def test_frames_without_a_group_of_their_own_take_no_time(tmp_path: Path) -> None:
    groups = {"NumberOfFrames": 1 << 22, "PerFrameFunctionalGroupsSequence": [pydicom.Dataset()], "BitsAllocated": 1}
    made = save(make_dataset(np.zeros((1 << 10, 1 << 9), np.uint8), **groups, Rows=1, Columns=1), tmp_path / "a.dcm")
    data, before = made.read_bytes(), time.process_time()
    header = read_header(lambda size: data[:size], len(data), len(data), ())
    assert header is not None
    assert header.frames == 1 << 22
    assert time.process_time() - before < 2


def test_without_pydicom_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(make_dataset(pixels_of(1)), tmp_path / "a.dcm")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    refused(SourceError, tmp_path, r"packstore\[dicom\]")
