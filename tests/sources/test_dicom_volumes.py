"""DICOM series as volumes: ``--column image=volumes``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packstore import PackedDataset, PackedLoader, append, convert, verify
from packstore.augment import RandomCrop, RandomHorizontalFlip
from packstore.core.errors import SampleError, UsageError
from packstore.sources import Entry, Source, open_source
from packstore.testing import SourceSuite
from tests.makers.dicom import make_dataset, pixels_of, save
from tests.makers.medical import image_of, read_samples

pydicom = pytest.importorskip("pydicom")
VOLUMES = "image=volumes"
AXIAL = (1, 0, 0, 0, 1, 0)


def save_series(folder: Path, series: int, slices: int = 4, **elements: Any) -> list[Path]:
    """Files of a series, from the last slice to the first."""
    files = []
    for number in range(slices):
        given = {
            "ImagePositionPatient": [-10, -20, 2.5 * number], "ImageOrientationPatient": list(AXIAL),
            "PixelSpacing": [0.5, 0.25], "SeriesInstanceUID": f"1.{series}", "InstanceNumber": number + 1,
        }  # fmt: skip
        pixels = pixels_of(100 * series + number, "uint16")
        dataset = make_dataset(pixels, **(given | elements))
        files.append(save(dataset, folder / f"{slices - number}.dcm"))
    return files


def wanted(series: int, slices: int = 4) -> Any:
    return np.stack([pixels_of(100 * series + number, "uint16") for number in range(slices)])[:, None]


def change(file: Path, **elements: Any) -> None:
    dataset = pydicom.dcmread(file)
    for name, value in elements.items():
        if value is None:
            delattr(dataset, name)
        else:
            setattr(dataset, name, value)
    dataset.save_as(file)


class TestDicomVolumes(SourceSuite):
    kind = "dicom"
    many = 60
    damages = 12
    bytes_per_sample = 800

    def make(self, folder: Path, samples: int) -> Path:
        for number in range(samples):
            save_series(folder / f"study\udcfe {number:03}", number, 1 + number % 2)
        return folder

    def open(self, path: Path, **more: Any) -> Source:
        return open_source(path, columns=VOLUMES, **more)

    def change(self, path: Path) -> None:
        save_series(path / "study\udcfe 000", 0, 3)

    def spoil(self, path: Path, entry: Entry) -> bool:
        return False

    def test_it_packs_and_the_store_holds_it(self, path: Path, tmp_path: Path) -> None:
        convert(path, tmp_path / "packed.h5", columns=VOLUMES)
        assert verify(tmp_path / "packed.h5", decode=True, against=path).problems == ()

    def test_an_interrupted_conversion_goes_on_to_the_same_bytes(self) -> None:  # type: ignore[override]
        pytest.skip("convert is told of volumes")


@pytest.mark.parametrize("form", ["lmdb", "h5", "pth"])
def test_a_series_is_a_volume_in_the_order_of_its_planes(form: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / f"out.{form}"
    for series in range(2):
        save_series(source / f"s{series}", series, 3 + series)
    convert(source, out, columns=VOLUMES, encoding="uint16")
    dataset = PackedDataset(out, columns=("image", "volume", "series", "positions", "spacing", "key"))
    for series, (image, volume, number, positions, spacing, key) in enumerate(dataset):
        np.testing.assert_array_equal(volume, wanted(series, 3 + series))
        np.testing.assert_array_equal(image, wanted(series, 3 + series)[(3 + series) // 2])
        assert (int(number), key) == (series, f"s{series}/{3 + series}.dcm")
        assert positions.tolist() == [2.5 * n for n in range(3 + series)]
        assert spacing.tolist() == [2.5, 0.5, 0.25]
    assert verify(out, decode=True, against=source).ok
    assert b"ecret" not in (out.read_bytes() if out.is_file() else (out / "data.mdb").read_bytes())
    save_series(tmp_path / "more" / "s9", 9, 2)
    append(out, tmp_path / "more", columns=VOLUMES)
    np.testing.assert_array_equal(PackedDataset(out, columns=("volume",))[2], wanted(9, 2))


@pytest.mark.parametrize("axes", [AXIAL, (0, 1, 0, 0, 0, -1), (0.8, 0.6, 0, 0, 0, -1)])
def test_the_affine_is_nibabels(axes: tuple[float, ...], tmp_path: Path) -> None:
    """nibabel's is from (row, column, slice) to left, posterior and superior; it counts slices against the normal."""
    wrappers = pytest.importorskip("nibabel.nicom.dicomwrappers")
    aff2axcodes = pytest.importorskip("nibabel").aff2axcodes
    normal = np.cross(axes[:3], axes[3:])
    places = [np.array([3.0, -7, 11]) + 2.5 * number * normal for number in range(3)]
    files = save_series(tmp_path, 1, 3, ImageOrientationPatient=list(axes))
    for file, place in zip(files, places, strict=True):
        change(file, ImagePositionPatient=place.tolist(), SpacingBetweenSlices=2.5)
    (sample,) = read_samples(tmp_path, "dicom", columns=VOLUMES).values()
    by_rows = wrappers.wrapper_from_file(files[0]).affine
    expected = np.diag([-1, -1, 1, 1]) @ by_rows[:, [1, 0, 2, 3]] @ np.diag([1, 1, -1, 1])
    np.testing.assert_allclose(sample.values["affine"], expected, atol=1e-6)
    assert sample.values["orientation"] == "".join(aff2axcodes(sample.values["affine"]))


def test_values_are_rescaled_slice_by_slice(tmp_path: Path) -> None:
    """As those of PET, whose stored values do not compare."""
    files = save_series(tmp_path, 1, RescaleIntercept=-5, RescaleSlope=2)
    change(files[3], RescaleSlope=3)
    with pytest.raises(SampleError, match=r"different slopes.*volumes:rescaled"):
        read_samples(tmp_path, "dicom", columns=VOLUMES)
    (sample,) = read_samples(tmp_path, "dicom", columns="image=volumes:rescaled").values()
    expected = wanted(1).astype(np.int64) * np.array([2, 2, 2, 3]).reshape(-1, 1, 1, 1) - 5
    np.testing.assert_array_equal(sample.values["volume"], expected)
    np.testing.assert_array_equal(image_of(sample)[..., 0], expected[2, 0])
    assert sample.values["slope"] is None


def test_frames_of_a_file_are_slices(tmp_path: Path) -> None:
    def item(**values: Any) -> Any:
        made = pydicom.Dataset()
        for keyword, value in values.items():
            setattr(made, keyword, value)
        return made

    pixels = pixels_of(5, "uint16", (3, 6, 5))
    frames = [item(PlanePositionSequence=[item(ImagePositionPatient=[0, 0, place])]) for place in (4, 2, 0)]
    dataset = make_dataset(
        pixels, SeriesInstanceUID="1.5", ImageOrientationPatient=list(AXIAL), PixelSpacing=[1, 1],
        PerFrameFunctionalGroupsSequence=frames,
    )  # fmt: skip
    save(dataset, tmp_path / "frames.dcm")
    (sample,) = read_samples(tmp_path, "dicom", columns=VOLUMES).values()
    np.testing.assert_array_equal(sample.values["volume"][:, 0], pixels[::-1])


def test_volumes_move_with_their_image(tmp_path: Path) -> None:
    for series in range(2):
        save_series(tmp_path / "in" / f"{series}", series, 2 + series)
    convert(tmp_path / "in", tmp_path / "s.lmdb", columns=VOLUMES)
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("image", "volume"))
    for images, volumes in PackedLoader(dataset, 2, augment=[RandomCrop(4), RandomHorizontalFlip()]):
        for image, volume in zip(images, volumes, strict=True):
            assert torch.equal(volume[len(volume) // 2].to(image.dtype), image)


BROKEN: Mapping[str, tuple[Callable[[list[Path]], Any], str]] = {
    "missing": (lambda files: files[1].unlink(), r"uneven or twice: 5 mm from 4\.dcm to 2\.dcm, 2\.5"),
    "copied": (
        lambda files: change(files[1], ImagePositionPatient=[-10, -20, 0]),
        r"uneven or twice: 0 mm from [43]\.dcm to [34]\.dcm, 2\.5",
    ),
    "size": (lambda files: save_series(files[0].parent, 1, 1, Rows=5, Columns=6), "differ in size"),
    "orientation": (lambda files: change(files[1], ImageOrientationPatient=[0, 1, 0, 0, 0, 1]), "differ in size"),
    "pixels": (lambda files: change(files[1], PixelSpacing=[1, 1]), r"and 3\.dcm differ in size"),
    "shifted": (lambda files: change(files[1], ImagePositionPatient=[9, -20, 2.5]), "uneven"),
    "at one place": (
        lambda files: [change(file, ImagePositionPatient=[0, 0, 0]) for file in files], "uneven or twice: 0 mm from",
    ),
    "unplaced": (lambda files: change(files[2], ImagePositionPatient=None), r"2\.dcm has no position"),
    "no axes": (lambda files: change(files[2], ImageOrientationPatient=[0] * 6), r"2\.dcm has no position"),
    "frames": (lambda files: change(files[0], NumberOfFrames=3, PixelData=bytes(180)), "has no position"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_volume_is_said(name: str, tmp_path: Path) -> None:
    damage, said = BROKEN[name]
    damage(save_series(tmp_path / "in", 1))
    if name == "size":
        (tmp_path / "in" / "1.dcm").rename(tmp_path / "in" / "9.dcm")
        save_series(tmp_path / "in", 1)
    save_series(tmp_path / "in" / "good", 2)
    with pytest.raises(SampleError, match=said):
        convert(tmp_path / "in", tmp_path / "x.lmdb", columns=VOLUMES)
    report = convert(tmp_path / "in", tmp_path / "x.lmdb", columns=VOLUMES, on_error="skip")
    assert (report.manifest.records, len(report.skipped)) == (1, 1)


def test_options_are_checked(tmp_path: Path) -> None:
    save_series(tmp_path, 1)
    for wrong, said in (
        (["image=volumes:pretty"], "volumes:window"),
        ([VOLUMES, "keep=file"], "without volumes, keep=file"),
    ):
        with pytest.raises(UsageError, match=said):
            open_source(tmp_path, columns=wrong)
