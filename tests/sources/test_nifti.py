"""NIfTI as a source, against nibabel."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from packstore import PackedDataset, PackedLoader, convert
from packstore.augment import RandomCrop, RandomHorizontalFlip
from packstore.sources import open_source
from packstore.testing import SourceSuite
from tests.internals import Sample, SampleError, SourceError, UsageError
from tests.makers.annotated import fill
from tests.makers.lazy import import_on_use
from tests.makers.medical import image_of, noise, read_samples
from tests.makers.sources import look, prove, question, refused

nibabel = import_on_use("nibabel")
PUBLISHED = Path(nibabel.__file__).parent / "tests" / "data"
SLICES, VOLUMES = "image=slices", "image=volumes"


def values_of(number: int, dtype: str = "int16", shape: tuple[int, ...] = (5, 4, 3)) -> NDArray[Any]:
    return noise(number, dtype, shape)


def save(values: NDArray[Any], path: Path, kind: Any = None, affine: Any = None, **header: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = (kind or nibabel.Nifti1Image)(values, np.diag([2.0, 3, 4, 1]) if affine is None else affine)
    for name, value in header.items():
        image.header[name] = value
    nibabel.save(image, path)
    return path


def records(path: Path, columns: str = SLICES) -> dict[str, Sample]:
    return read_samples(path, "nifti", columns=columns)


class TestNifti(SourceSuite):
    kind = "nifti"
    many = 400
    damages = 12

    def make(self, folder: Path, samples: int) -> Path:
        for number in range(-(-samples // 3)):
            suffix = ".nii.gz" if number % 2 else ".nii"
            save(values_of(number), folder / "imagesTr" / f"{number}.nii.gz")
            (folder / "imagesTr" / f"{number}.nii.gz").rename(folder / "imagesTr" / f"\udcfe{number}.nii.gz")
            if suffix == ".nii":
                save(values_of(number, "uint8"), folder / "labelsTr" / "x.nii.gz")
                (folder / "labelsTr" / "x.nii.gz").rename(folder / "labelsTr" / f"\udcfe{number}.nii.gz")
        return folder

    def options(self, path: Path) -> Mapping[str, Any]:
        return {"columns": (SLICES,)}

    def change(self, path: Path) -> None:
        file = path / "labelsTr" / "x.nii.gz"
        save(values_of(4711, "uint8"), file)
        file.rename(path / "labelsTr" / "\udcfe0.nii.gz")


@pytest.mark.parametrize("columns", [SLICES, VOLUMES])
@pytest.mark.parametrize("name", ["anatomical.nii", "functional.nii", "example_nifti2.nii.gz"])
def test_published_files_are_nibabels(name: str, columns: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes((PUBLISHED / name).read_bytes())
    image = nibabel.load(PUBLISHED / name)
    wanted = image.dataobj.get_unscaled()
    wanted = wanted.reshape(*wanted.shape[:3], -1)
    found = list(records(tmp_path, columns).values())
    depth, steps = wanted.shape[2:]
    assert len(found) == steps * (depth if columns == SLICES else 1)
    for number, sample in enumerate(found):
        np.testing.assert_array_equal(sample.values["affine"], image.affine)
        assert sample.values["orientation"] == "".join(nibabel.aff2axcodes(image.affine))
        time = sample.values["time"]
        if columns == SLICES:
            assert (time, sample.values["slice"]) == divmod(number, depth)
            np.testing.assert_array_equal(image_of(sample)[..., 0], wanted[:, :, number % depth, time].T)
        else:
            volume = np.asarray(sample.values["volume"])
            assert volume.shape == (depth, 1, wanted.shape[1], wanted.shape[0])
            np.testing.assert_array_equal(volume[:, 0].transpose(2, 1, 0), wanted[..., time])
            np.testing.assert_array_equal(image_of(sample), volume[depth // 2].transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("dtypes", "mode"),
    [(["uint8"], "L"), (["int8"], "I;16S"), (["uint16"], "I;16"), (["uint8", "int16"], "I;16S"),
     (["uint16", "int16"], "I"), (["float32"], "F"), (["float32", "uint8"], "F")],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["Nifti1Image", "Nifti2Image"])
def test_the_mode_holds_all_files(dtypes: list[str], mode: str, kind: str, tmp_path: Path) -> None:
    for number, dtype in enumerate(dtypes):
        values = values_of(number, dtype)
        big = values.astype(values.dtype.newbyteorder(">"))
        save(big, tmp_path / f"{number}.nii.gz", getattr(nibabel, kind))
    assert look(tmp_path, columns=SLICES).mode == mode
    found = records(tmp_path)
    for number, dtype in enumerate(dtypes):
        for k in range(3):
            np.testing.assert_array_equal(
                image_of(found[f"{number}.nii.gz#{k}"])[..., 0], values_of(number, dtype)[:, :, k].T
            )


@pytest.mark.parametrize("columns", [SLICES, VOLUMES])
def test_scale_is_refused_for_scans(columns: str, tmp_path: Path) -> None:
    """Of int16, values from 0 to 1,500 became 128 to 133."""
    values = (np.arange(4 * 5 * 3, dtype=np.int16) * 24).reshape(4, 5, 3)
    save(values, tmp_path / "deep" / "a.nii.gz")
    save(values.astype(np.uint8), tmp_path / "bytes" / "a.nii.gz")
    with pytest.raises(UsageError, match=r"values of int16, .* give --depth window:LO,HI"):
        convert(tmp_path / "deep", tmp_path / "s.h5", columns=columns, depth="scale")
    convert(tmp_path / "deep", tmp_path / "s.h5", columns=columns, depth="window:0,1530")
    found = PackedDataset(tmp_path / "s.h5", columns=("image",), output="numpy")[1 if columns == SLICES else 0]
    np.testing.assert_array_equal(found[..., 0], values[:, :, 1].T // 6)
    with pytest.raises(UsageError, match="so depth cannot apply"):
        convert(tmp_path / "bytes", tmp_path / "t.h5", columns=columns, depth="scale")


def test_slices_or_volumes_is_a_question(tmp_path: Path) -> None:
    save(values_of(1), tmp_path / "a.nii")
    caught = question(tmp_path, r"image=slices.*image=volumes")
    assert [answer.options for answer in caught.answers] == [("--column", SLICES), ("--column", VOLUMES)]
    refused(UsageError, tmp_path, "image=slices", columns="image=planes")


@pytest.mark.slow
def test_labels_beside_images_are_masks(tmp_path: Path) -> None:
    root = tmp_path / "Task01"
    for split in ("Tr", "Ts"):
        for number in range(2):
            save(values_of(number), root / f"images{split}" / f"a_{number}_0000.nii.gz")
    save(values_of(5, "uint8"), root / "labelsTr" / "a_0.nii.gz")
    save(np.full((5, 4, 3), 300, np.float32), root / "labelsTr" / "a_1.nii.gz")
    save(values_of(6, "uint8"), root / "labelsTr" / "b.nii.gz")
    (root / "dataset.json").write_text("{}")
    survey = look(root, columns=SLICES)
    assert dict(survey.splits) == {"train": 6, "test": 6}
    assert survey.ledger.left == {"segmentations without a volume": 1}
    found = records(root)
    mask = found["imagesTr/a_0_0000.nii.gz#2"].values["mask"]
    np.testing.assert_array_equal(mask, values_of(5, "uint8")[:, :, 2].T)
    assert found["imagesTr/a_1_0000.nii.gz#0"].values["mask"].max() == 300
    assert found["imagesTs/a_0_0000.nii.gz#0"].values["mask"] is None
    prove(root, tmp_path / "out.lmdb", columns=SLICES, decode=True)
    dataset = PackedDataset(tmp_path / "out.lmdb", "train", columns=("image", "mask"))
    ((images, masks),) = PackedLoader(dataset, batch_size=6)
    assert images.shape == (6, 1, 4, 5)
    assert masks.shape == (6, 4, 5)
    volumes = records(root, VOLUMES)["imagesTr/a_0_0000.nii.gz"].values
    np.testing.assert_array_equal(volumes["volume_mask"][:, 0].transpose(2, 1, 0), values_of(5, "uint8"))
    prove(root, tmp_path / "volumes.h5", columns=VOLUMES, decode=True)
    _, volume = PackedDataset(tmp_path / "volumes.h5", "train", columns=("image", "volume"))[0]
    assert volume.shape == (3, 1, 4, 5)


def test_volumes_and_their_masks_move_with_the_image(tmp_path: Path) -> None:
    for number in range(3):  # of several sizes
        volume = np.random.default_rng(number).integers(-900, 900, (20 + number, 16, 2 + number), np.int16)
        save(volume, tmp_path / "set" / "imagesTr" / f"a_{number}_0000.nii.gz")
        save((volume > 0).astype(np.uint8), tmp_path / "set" / "labelsTr" / f"a_{number}.nii.gz")
    prove(tmp_path / "set", tmp_path / "out.lmdb", columns=VOLUMES, decode=True)
    dataset = PackedDataset(tmp_path / "out.lmdb", "train", columns=("image", "volume", "volume_mask"))
    collate: Any = {"volume_mask": "optional"}
    for images, volumes, masks in PackedLoader(dataset, 3, augment=[RandomCrop(12), RandomHorizontalFlip()],
                                               collate=collate):  # fmt: skip
        assert sorted(len(volume) for volume in volumes) == [2, 3, 4]
        for image, volume, mask in zip(images, volumes, masks, strict=True):
            assert torch.equal(volume[len(volume) // 2], image)
            assert torch.equal(mask, (volume > 0).to(mask.dtype))


def test_stored_values_with_their_slope(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(values_of(1), np.eye(4))
    image.header.set_slope_inter(0.5, -3)
    nibabel.save(image, tmp_path / "a.nii")
    stored = nibabel.load(tmp_path / "a.nii")
    sample = records(tmp_path)["a.nii#0"]
    scaled = image_of(sample)[..., 0] * sample.values["slope"] + sample.values["intercept"]
    np.testing.assert_allclose(scaled, stored.get_fdata()[:, :, 0].T)


@pytest.mark.slow
def test_hostile_files_are_bad_samples(tmp_path: Path) -> None:
    save(values_of(1), tmp_path / "good.nii")
    save(values_of(1), tmp_path / "cut.nii")
    os.truncate(tmp_path / "cut.nii", 400)
    save(values_of(1), tmp_path / "crc.nii.gz")
    data = bytearray((tmp_path / "crc.nii.gz").read_bytes())
    data[-6] ^= 1
    (tmp_path / "crc.nii.gz").write_bytes(data)
    plain = (tmp_path / "good.nii").read_bytes()
    huge = plain[:40] + np.array([7, *[30000] * 7], np.int16).tobytes() + plain[56:]
    (tmp_path / "huge.nii").write_bytes(huge)
    (tmp_path / "wide.nii").write_bytes(plain[:42] + np.array([30000, 30000, 1], np.int16).tobytes() + plain[48:])
    many = plain[:40] + np.array([4, 1, 1, 1000, 1000], np.int16).tobytes() + plain[50:]
    (tmp_path / "many.nii").write_bytes(many)
    (tmp_path / "many.nii.gz").write_bytes(gzip.compress(many))
    (tmp_path / "complex.nii").write_bytes(plain[:70] + np.array([32, 64], np.int16).tobytes() + plain[74:])
    (tmp_path / "offset.nii").write_bytes(plain[:108] + np.float32(np.nan).tobytes() + plain[112:])
    fill(tmp_path, {"bomb.nii.gz": gzip.compress(plain + bytes(50 << 20)), "empty.nii": b""})
    save(np.full((5, 4, 3), 0.1), tmp_path / "double.nii")
    save(np.ones((5, 4, 3), [(name, "u1") for name in "RGB"]), tmp_path / "colours.nii")
    said, read = {}, set()
    with closing(open_source(tmp_path, columns=SLICES, max_pixels=1_000_000)) as source:
        assert source.survey().records < 50
        for entry in source.entries():
            try:
                source.read(entry)
                read.add(entry.key.partition("#")[0])
            except SampleError as error:
                said[entry.key.partition("#")[0]] = error.reason
    assert read == {"good.nii", "bomb.nii.gz"}  # which is read as far as its header says
    expected = {"cut.nii": "truncated", "crc.nii.gz": "damaged", "huge.nii": "max_pixels", "wide.nii": "max_pixels",
                "complex.nii": "complex", "colours.nii": "does not read",
                "offset.nii": "no NIfTI", "empty.nii": "no NIfTI",
                "double.nii": "does not hold",
                "many.nii": "truncated", "many.nii.gz": "truncated"}  # fmt: skip
    assert said.keys() == expected.keys()
    for name, part in expected.items():
        assert part in said[name], said[name]


def test_without_nibabel_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(values_of(1), tmp_path / "a.nii")
    monkeypatch.setitem(sys.modules, "nibabel", None)
    refused(SourceError, tmp_path, r"packstore\[nifti\]", columns=SLICES)
