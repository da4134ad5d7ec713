"""Whole conversions: what goes in comes out, and what goes wrong leaves nothing behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import packstore
from tests.internals import (
    ConvertOptions,
    DestinationError,
    Manifest,
    PackstoreError,
    Progress,
    SampleError,
    SourceError,
    UsageError,
    make_plan,
)
from tests.makers.datasets import CLASSES, make_cifar10, make_folder, pixels, write_image

SUFFIXES = (".lmdb", ".h5", ".pth")
ENCODINGS = ("original", "jpeg", "uint8", "float16", "bfloat16", "float32")


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cifar10(tmp_path_factory.mktemp("cifar"))


def left_in(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_in_every_format_verifies_against_its_source(
    photos: Path, tmp_path: Path, suffix: str, encoding: str
) -> None:
    size = 24 if "float" in encoding else None
    report = packstore.convert(photos, tmp_path / f"out{suffix}", encoding=encoding, size=size)
    assert report.manifest.records == 24
    assert [s.name for s in report.manifest.splits] == ["train", "val"]
    verified = packstore.verify(tmp_path / f"out{suffix}", decode=True, against=photos)
    assert verified.problems == ()


def test_records_come_split_by_split_and_class_by_class_as_in_imagefolder(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "out.h5")
    with packstore.open(tmp_path / "out.h5") as store:
        keys = [store.key(i) for i in range(len(store))]
        labels = store.fixed_column("label").tolist()
    expected = sorted(p.relative_to(photos).as_posix() for p in photos.rglob("*") if p.is_file())
    assert keys == expected
    assert labels == [CLASSES.index(key.split("/")[1]) for key in keys]


@pytest.mark.slow
def test_one_split_alone_keeps_the_class_numbers_of_all(photos: Path, tmp_path: Path) -> None:
    copy = tmp_path / "photos"
    shutil.copytree(photos, copy)
    shutil.rmtree(copy / "val" / "ant")
    report = packstore.convert(copy, tmp_path / "val.lmdb", split="val")
    assert report.manifest.classes == CLASSES
    with packstore.open(tmp_path / "val.lmdb") as store:
        assert set(store.fixed_column("label").tolist()) == {1, 2}


@pytest.mark.slow
@pytest.mark.sampled(9)
@pytest.mark.parametrize("first", SUFFIXES)
@pytest.mark.parametrize("second", SUFFIXES)
@pytest.mark.parametrize("encoding", ["original", "uint8", "bfloat16"])
def test_stores_convert_into_each_other_without_loss(
    photos: Path, tmp_path: Path, first: str, second: str, encoding: str
) -> None:
    size = 16 if encoding != "original" else None
    a, b = tmp_path / f"a{first}", tmp_path / f"b{second}"
    one = packstore.convert(photos, a, encoding=encoding, size=size).manifest
    two = packstore.convert(a, b, encoding=encoding).manifest
    assert two.dataset_digest == one.dataset_digest
    assert two.origin.kind == "store"
    assert two.origin.digest == one.dataset_digest
    assert packstore.verify(b, against=a).ok
    assert packstore.verify(b, against=photos).ok


@pytest.mark.parametrize(
    ("source", "suffix", "expected"),
    [
        ("photos", ".lmdb", "original"),
        ("photos", ".h5", "original"),
        ("cifar", ".lmdb", "uint8"),
        ("cifar", ".h5", "uint8"),
        ("cifar", ".pth", "float16"),
    ],
)
def test_default_encodings(
    request: pytest.FixtureRequest, tmp_path: Path, source: str, suffix: str, expected: str
) -> None:
    manifest = packstore.convert(request.getfixturevalue(source), tmp_path / f"out{suffix}").manifest
    assert manifest.encoding == expected


def test_a_float_store_stays_as_it_is_when_it_becomes_pth(cifar: Path, tmp_path: Path) -> None:
    packstore.convert(cifar, tmp_path / "a.lmdb", encoding="float32")
    assert packstore.convert(tmp_path / "a.lmdb", tmp_path / "b.pth").manifest.encoding == "float32"


@pytest.mark.slow
def test_cifar_is_normalised_with_its_own_figures_and_images_with_those_of_imagenet(
    cifar: Path, photos: Path, tmp_path: Path
) -> None:
    own = packstore.convert(cifar, tmp_path / "a.pth").manifest.normalization
    other = packstore.convert(photos, tmp_path / "b.pth", size=16).manifest.normalization
    assert own is not None
    assert own.mean == (0.4914, 0.4822, 0.4465)
    assert other is not None
    assert other.mean == (0.485, 0.456, 0.406)


def test_original_of_cifar_is_its_pixels(cifar: Path, tmp_path: Path) -> None:
    manifest = packstore.convert(cifar, tmp_path / "a.lmdb", encoding="original").manifest
    assert manifest.encoding == "uint8"
    assert manifest.image.shape == (32, 32, 3)


@pytest.mark.slow
def test_auto_normalisation_is_that_of_the_training_split(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", size=(20, 30), suffixes=(".png",))
    train = np.stack([np.asarray(Image.open(p)) for p in sorted((root / "train").rglob("*.png"))]) / 255
    manifest = packstore.convert(root, tmp_path / "a.pth", normalize="auto").manifest
    assert manifest.normalization is not None
    np.testing.assert_allclose(manifest.normalization.mean, train.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(manifest.normalization.std, train.std((0, 1, 2)), rtol=1e-9)


@pytest.mark.slow
def test_memory_in_flight_does_not_change_the_result(photos: Path, tmp_path: Path) -> None:
    manifests = [
        packstore.convert(photos, tmp_path / f"{workers}.h5", encoding="uint8", size=20, workers=workers).manifest
        for workers in (1, 2, 7)
    ]
    assert len({m.dataset_digest for m in manifests}) == 1


def test_progress_counts_up_to_every_record(photos: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    packstore.convert(photos, tmp_path / "a.lmdb", progress=seen.append)
    packed = [p for p in seen if p.stage == "pack"]
    assert [p.done for p in packed] == sorted(p.done for p in packed)
    assert packed[-1].done == packed[-1].total == 24
    assert packed[-1].done_bytes == sum(p.stat().st_size for p in photos.rglob("*") if p.is_file())


# What goes wrong --------------------------------------------------------------------------------------------------


BAD_FILES = {"empty": b"", "text": b"this is not an image at all, whatever its name says", "truncated": None}


@pytest.fixture(params=sorted(BAD_FILES))
def bad_folder(request: pytest.FixtureRequest, photos: Path, tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    shutil.copytree(photos, root)
    victim = root / "train" / "bee" / "000.jpg"
    content = BAD_FILES[request.param]
    victim.write_bytes(victim.read_bytes()[:-300] if content is None else content)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_size", [None, 20_000])
def test_a_bad_file_stops_the_conversion_and_leaves_nothing(
    bad_folder: Path, tmp_path: Path, suffix: str, shard_size: int | None
) -> None:
    with pytest.raises(SampleError) as caught:
        packstore.convert(bad_folder, tmp_path / f"out{suffix}", encoding="original", shard_size=shard_size)
    assert caught.value.key == "train/bee/000.jpg"
    assert left_in(tmp_path) == ["photos"]


@pytest.mark.slow
def test_skip_leaves_a_bad_file_out_and_says_so(bad_folder: Path, tmp_path: Path) -> None:
    report = packstore.convert(bad_folder, tmp_path / "out.lmdb", on_error="skip")
    assert [s.key for s in report.skipped] == ["train/bee/000.jpg"]
    assert report.manifest.records == 23
    assert report.manifest.skipped == report.skipped
    assert packstore.verify(tmp_path / "out.lmdb", decode=True, against=bad_folder).ok


@pytest.mark.slow
def test_damage_inside_a_file_is_found_by_check_decode_only(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "photos"
    shutil.copytree(photos, root)
    victim = root / "val" / "cat" / "001.png"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    assert packstore.convert(root, tmp_path / "header.lmdb").manifest.records == 24
    with pytest.raises(SampleError, match=r"val/cat/001\.png"):
        packstore.convert(root, tmp_path / "decode.lmdb", check="decode")
    assert not (tmp_path / "decode.lmdb").exists()


def test_all_skipped_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "photos" / "ant").mkdir(parents=True)
    (tmp_path / "photos" / "ant" / "a.jpg").write_bytes(b"no")
    with pytest.raises(SourceError, match="all 1 images"):
        packstore.convert(tmp_path / "photos", tmp_path / "out.lmdb", on_error="skip")
    assert left_in(tmp_path) == ["photos"]


def test_sizes_that_differ_are_named_and_a_size_is_proposed(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\d+x\d+ \(.*--size"):
        packstore.convert(photos, tmp_path / "out.pth")
    assert left_in(tmp_path) == []


def test_a_size_that_differs_late_is_found_too(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", splits=(), per_class=40, size=(12, 12), suffixes=(".png",))
    # The samples that the plan looks at are every fifth; this one is between them.
    write_image(root / "ant" / "003.png", 13, 12, 1)
    with pytest.raises(UsageError, match="13x12"):
        packstore.convert(root, tmp_path / "out.pth")
    assert left_in(tmp_path) == ["photos"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_existing_destination_is_kept_without_overwrite(photos: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out{suffix}"
    first = packstore.convert(photos, out, encoding="original", split="val").manifest
    with pytest.raises(DestinationError, match="--overwrite"):
        packstore.convert(photos, out, encoding="original")
    with packstore.open(out) as store:
        assert store.manifest == first
    packstore.convert(photos, out, encoding="original", overwrite=True)
    with packstore.open(out) as store:
        assert len(store) == 24
    assert left_in(tmp_path) == [out.name]


@pytest.mark.slow
def test_a_failed_overwrite_keeps_the_old_store(bad_folder: Path, photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "out.lmdb")
    with pytest.raises(SampleError):
        packstore.convert(bad_folder, tmp_path / "out.lmdb", overwrite=True)
    assert packstore.verify(tmp_path / "out.lmdb", against=photos).ok
    assert left_in(tmp_path) == ["out.lmdb", "photos"]


@pytest.mark.parametrize("name", ["out.lmdb", "train/out.lmdb"])
def test_a_destination_inside_the_source_is_refused(photos: Path, name: str) -> None:
    with pytest.raises(DestinationError, match="one lies in the other"):
        packstore.convert(photos, photos / name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "jpg"}, "unknown encoding"),
        ({"format": "zip"}, "unknown format"),
        ({"on_error": "ignore"}, "on_error"),
        ({"workers": 0}, "workers"),
        ({"shard_size": 0}, "shard_size"),
        ({"normalize": "imagenet"}, "floating point"),
        ({"encoding": "float16", "size": 8, "normalize": "mean"}, "normali"),
        ({"check": "maybe"}, "check"),
        ({"encoding": "uint8", "size": 8, "fit": "stretch"}, "fit"),
        ({"decoder": "magic", "encoding": "uint8"}, "decoder"),
        ({"split": "holdout"}, "train"),
        ({"source_kind": "cifar11"}, "cifar10"),
        ({"labels": Path("nowhere.csv")}, "nowhere.csv"),
        ({"shard_size": "1XB"}, "not a size"),
        ({"encoding": "png"}, "unknown encoding"),
        ({"quality": 80}, "for the encoding jpeg"),
        ({"encoding": "uint8", "fit": "pad"}, "give a size"),
        ({"decoder": "pillow"}, "nothing is decoded"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    photos: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(PackstoreError, match=message):
        packstore.convert(photos, tmp_path / "out.lmdb", **options)
    assert left_in(tmp_path) == []


def test_wrong_options_come_before_an_existing_destination(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out.lmdb").mkdir()
    with pytest.raises(UsageError):
        packstore.convert(photos, tmp_path / "out.lmdb", encoding="float16", normalize="garbage")


def test_unknown_suffix_and_missing_parent(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.tar.*\.lmdb"):
        packstore.convert(photos, tmp_path / "out.tar")
    assert packstore.convert(photos, tmp_path / "out.tar", format="lmdb").manifest.format == "lmdb"
    with pytest.raises(DestinationError, match="does not exist"):
        packstore.convert(photos, tmp_path / "no" / "out.lmdb")


def test_no_space_is_said_before_anything_is_written(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil._ntuple_diskusage(10**6, 10**6 - 1000, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(DestinationError, match="free"):
        packstore.convert(photos, tmp_path / "out.lmdb")
    assert left_in(tmp_path) == []


def test_a_source_that_shrinks_meanwhile_is_noticed(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "photos"
    shutil.copytree(photos, root)
    removed = False

    def remove_one(report: Progress) -> None:
        nonlocal removed
        if report.stage == "pack" and not removed:
            removed = True
            (root / "val" / "cat" / "003.png").unlink()

    with pytest.raises(SourceError):
        packstore.convert(root, tmp_path / "out.lmdb", progress=remove_one)
    assert removed
    assert left_in(tmp_path) == ["photos"]


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "encoding"), [(s, e) for s in SUFFIXES for e in ("original", "jpeg", "uint8")])
def test_the_estimate_is_near_the_truth(photos: Path, tmp_path: Path, suffix: str, encoding: str) -> None:
    out = tmp_path / f"out{suffix}"
    plan = make_plan(photos, out, ConvertOptions(encoding=encoding))
    plan.source.close()
    real = packstore.convert(photos, out, encoding=encoding).disk_bytes
    assert 0.7 * real <= plan.estimate_bytes <= 1.5 * real + 40_000
    assert plan.survey.records == 24


def test_ragged_pixels_keep_their_shapes(tmp_path: Path) -> None:
    for i, (height, width) in enumerate([(5, 9), (1, 1), (40, 3)]):
        write_image(tmp_path / "photos" / "ant" / f"{i}.png", height, width, i)
    packstore.convert(tmp_path / "photos", tmp_path / "out.h5", encoding="uint8")
    with packstore.open(tmp_path / "out.h5") as store:
        assert store.fixed_column("shape").tolist() == [[5, 9, 3], [1, 1, 3], [40, 3, 3]]
        np.testing.assert_array_equal(store.array(2), pixels(40, 3, 2))


def test_manifests_say_how_the_store_was_made(photos: Path, tmp_path: Path) -> None:
    manifest = packstore.convert(photos, tmp_path / "a.lmdb", encoding="jpeg", resize=20, quality=70).manifest
    assert manifest.options["resize"] == 20
    assert manifest.options["quality"] == 70
    assert manifest.origin.name == "photos"
    assert manifest.versions["packstore"] == packstore.__version__
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.slow
@pytest.mark.parametrize("target", [".", "..", "../..", "/"])
def test_skipping_passes_a_cycle_of_links(tmp_path: Path, target: str) -> None:
    root = make_folder(tmp_path / "photos", splits=())
    (root / "bee" / "again").mkdir()
    write_image(root / "bee" / "again" / "1.png", 9, 9, 1)
    (root / "bee" / "again" / "loop").symlink_to(target)
    with pytest.raises(SourceError, match=r"a cycle: .*--on-error skip"):
        packstore.convert(root, tmp_path / "a.lmdb")
    report = packstore.convert(root, tmp_path / "a.lmdb", on_error="skip")
    (skipped,) = report.skipped
    assert (skipped.key, skipped.reason) == ("bee/again/loop", "is a link to a folder that contains it, a cycle")
    assert report.manifest.records == 13
    assert report.manifest.skipped == report.skipped
    assert packstore.verify(tmp_path / "a.lmdb", against=root).ok
    fixed = packstore.repair(tmp_path / "a.lmdb", root, tmp_path / "b.lmdb")
    assert not fixed.lost
    assert left_in(tmp_path) == ["a.lmdb", "photos"]


@pytest.mark.slow
@pytest.mark.parametrize("labelled", [True, False])
def test_a_split_that_is_a_cycle_of_links(tmp_path: Path, labelled: bool) -> None:
    root = tmp_path / "photos"
    if labelled:
        make_folder(root)
    else:
        for split in ("train", "val"):
            write_image(root / split / "1.png", 9, 9, 1)
    (root / "test").symlink_to(root)
    for on_error in ("raise", "skip"):
        with pytest.raises(SourceError, match=r"a cycle.*--ignore"):
            packstore.convert(root, tmp_path / "a.h5", on_error=on_error)
    report = packstore.convert(root, tmp_path / "a.h5", ignore=["/test"])
    assert [split.name for split in report.manifest.splits] == ["train", "val"]
    assert report.manifest.records == (24 if labelled else 2)
    assert packstore.verify(tmp_path / "a.h5", against=root).ok


@pytest.mark.slow
def test_a_class_that_is_a_cycle_of_links(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", splits=())
    (root / "loop").symlink_to(root)
    with pytest.raises(SourceError, match="a cycle"):
        packstore.convert(root, tmp_path / "a.h5")
    report = packstore.convert(root, tmp_path / "a.h5", on_error="skip")
    assert [skipped.key for skipped in report.skipped] == ["loop"]
    assert report.manifest.records == 12
    assert packstore.verify(tmp_path / "a.h5", against=root).ok
