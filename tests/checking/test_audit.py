"""``audit``: what it finds, in stores made to have it."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore import Manifest
from packstore.stores import StoreBuilder
from tests.internals import (
    CHECKSUM,
    CROPS,
    DEFAULT_DROP,
    KEY,
    ROW_CHECKSUM,
    THRESHOLD,
    RecordHashes,
    UsageError,
    find_nearest_before,
    group_equal,
    hamming_distances,
    hash_windows,
    list_kinds,
    no_progress,
    same,
    shrink_to_side,
    to_grey,
)
from tests.makers.command import run
from tests.makers.datasets import make_folder
from tests.makers.stores import change, damage, files_of
from tests.makers.typed import COLUMNS, IMAGE, ORIGIN, append, make_typed, png, record


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(out, kind, **options)
    return out.getvalue()


def fill(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def pack(tmp_path: Path, files: dict[str, bytes], **options: Any) -> Path:
    packstore.convert(fill(tmp_path / "in", files), tmp_path / "x.lmdb", **options)
    return tmp_path / "x.lmdb"


def scene(seed: int, height: int = 120, width: int = 160) -> Image.Image:
    """A picture with shapes of all sizes, the larger the stronger, as photos have; unlike any other."""
    rng = np.random.default_rng(seed)
    mixed = np.zeros((height, width, 3))
    for scale in (3, 6, 12, 24, 48, 96):
        small = Image.fromarray(rng.integers(0, 256, (scale, scale, 3), np.uint8))
        large = small.resize((width, height), Image.Resampling.BICUBIC)
        mixed += (np.asarray(large, np.float64) - 128) / scale**0.5
    return Image.fromarray((mixed / mixed.std() * 50 + 128).clip(0, 255).astype(np.uint8))


def test_the_same_bytes_in_a_split_across_splits_and_under_two_labels(tmp_path: Path) -> None:
    a, b, c, d = (encoded(scene(n, 20, 20)) for n in range(4))
    files = {
        "train/ant/a.png": a,
        "train/ant/a2.png": a,
        "train/bee/b.png": b,
        "train/bee/c.png": c,
        "train/bee/d.png": d,
        "val/ant/b2.png": b,
        "val/bee/c2.png": c,
    }
    report = packstore.audit(pack(tmp_path, files))
    assert {kind: [finding.keys for finding in report.of(kind)] for kind in ("duplicate", "leakage", "conflict")} == {
        "duplicate": [("train/ant/a.png", "train/ant/a2.png")],
        "leakage": [("train/bee/b.png", "val/ant/b2.png"), ("train/bee/c.png", "val/bee/c2.png")],
        "conflict": [("train/bee/b.png", "val/ant/b2.png")],
    }
    assert report.of("conflict")[0].what == "same bytes under 2 labels: ant, bee"
    keys = {kind: [report_key(tmp_path, number) for number in drop.tolist()] for kind, drop in report.drop.items()}
    assert keys == {
        "duplicate": ["train/ant/a2.png"],  # the later ones
        "leakage": ["train/bee/b.png", "train/bee/c.png"],  # those of the larger split
        "conflict": ["train/bee/b.png", "val/ant/b2.png"],  # nobody knows which label is right
    }
    assert "1 duplicate" in repr(report)


@pytest.mark.parametrize("pixels", [False, True])
def test_conflicts_in_any_column_of_classes(tmp_path: Path, pixels: bool) -> None:
    fields = {
        "image": "image",
        "kind": packstore.Label(("big", "small"), optional=True),
        "tags": packstore.Labels(("red", "wet", "old"), of=False, optional=True),
    }
    values: list[tuple[int, str | None, list[str] | None]] = [
        (0, "big", ["red", "wet"]),
        (0, "small", ["wet", "red"]),
        (1, "big", ["red"]),
        (1, None, ["red", "old"]),
        (2, "big", None),
        (2, "big", []),
        (3, "big", ["old"]),
    ]
    with packstore.Writer(tmp_path / "x.lmdb", fields) as writer:
        for n, (picture, kind, tags) in enumerate(values):
            writer.add(image=encoded(scene(picture, 20, 20)), kind=kind, tags=tags, key=str(n))
    report = packstore.audit(tmp_path / "x.lmdb", pixels=pixels)
    what = "same pixels" if pixels else "same bytes"
    assert {(finding.what, finding.keys) for finding in report.of("conflict")} == {
        (f"{what} under 2 classes of 'kind': big, small", ("0", "1")),
        (f"{what} under 2 lists of classes in 'tags'", ("2", "3")),
    }


def report_key(tmp_path: Path, number: int) -> str:
    with packstore.open(tmp_path / "x.lmdb") as reader:
        return reader.key(number)


@pytest.mark.slow
def test_a_sound_dataset_has_no_findings(tmp_path: Path) -> None:
    store = tmp_path / "x.lmdb"
    packstore.convert(make_folder(tmp_path / "in"), store)
    for with_pixels in (False, True):
        report = packstore.audit(store, pixels=with_pixels)
        assert (report.counts, report.findings, report.drop) == ({}, (), {}), report
    assert "nothing found" in repr(report)


def test_classes(tmp_path: Path) -> None:
    files = {f"train/ant/{n}.png": encoded(scene(n, 9, 9)) for n in range(12)}
    files |= {"train/bee/x.png": encoded(scene(50, 9, 9)), "val/ant/y.png": encoded(scene(51, 9, 9))}
    store = pack(tmp_path, files)
    report = packstore.audit(store)
    assert [finding.what for finding in report.of("imbalance")] == ["in train, ant has 12 records, bee 1"]
    assert [finding.what for finding in report.of("class_split")] == ["bee: 1 in all, none in val"]
    assert "imbalance" not in packstore.audit(store, imbalance=13).counts
    packstore.select(store, tmp_path / "ants.lmdb", where="label == ant")
    assert [f.what for f in packstore.audit(tmp_path / "ants.lmdb").of("class_empty")] == ["bee has no record"]


def odd_files() -> dict[str, bytes]:
    plain = {f"a/{n}.png": encoded(scene(n, 40, 40)) for n in range(9)}
    exif = Image.Exif()
    exif[274] = 3
    jpeg = encoded(scene(20, 64, 64), "JPEG", quality=95)
    bad = bytearray(encoded(scene(21, 40, 40)))
    bad[60:70] = bytes(10)
    return plain | {
        "a/flat.png": encoded(np.full((40, 40, 3), 77, np.uint8)),
        "a/tiny.png": encoded(scene(30, 8, 40)),
        "a/long.png": encoded(scene(31, 20, 160)),
        "a/grey.png": encoded(scene(32, 40, 40).convert("L")),
        "a/print.jpg": encoded(scene(33, 40, 40).convert("CMYK"), "JPEG"),
        "a/turned.jpg": encoded(scene(34, 40, 40), "JPEG", exif=exif),
        "a/suffix.jpg": encoded(scene(35, 40, 40)),
        "a/cut.jpg": jpeg[: len(jpeg) // 2] + b"\xff\xd9",
        "a/bad.png": bytes(bad),
    }


ODD = {
    "flat": "a/flat.png",
    "tiny": "a/tiny.png",
    "aspect": "a/long.png",
    "grey": "a/grey.png",
    "cmyk": "a/print.jpg",
    "orientation": "a/turned.jpg",
    "suffix": "a/suffix.jpg",
    "truncated": "a/cut.jpg",
    "undecodable": "a/bad.png",
}


def test_odd_images(tmp_path: Path) -> None:
    report = packstore.audit(pack(tmp_path, odd_files()), pixels=True)
    assert {finding.kind: finding.keys[0] for finding in report.findings} == ODD
    assert len(report.findings) == len(ODD), report.findings


def test_what_counts_as_odd_can_be_said(tmp_path: Path) -> None:
    store = pack(tmp_path, {"a/1.png": encoded(scene(1, 20, 60)), "a/2.png": encoded(scene(2, 20, 30))})
    report = packstore.audit(store, pixels=True, min_side=21, max_aspect=2)
    assert report.counts == {"tiny": 2, "aspect": 1}


def test_an_orientation_that_readers_apply_is_none(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    files = {"a/turned.jpg": encoded(scene(34, 40, 60), "JPEG", exif=exif)}
    assert packstore.audit(pack(tmp_path, files, exif_transpose=True), pixels=True).counts == {}


def test_the_same_pixels_in_other_bytes(tmp_path: Path) -> None:
    image = scene(1, 30, 30)
    files = {"train/a/1.png": encoded(image), "train/a/2.bmp": encoded(image, "BMP"), "val/a/3.png": encoded(scene(2))}
    store = pack(tmp_path, files)
    assert packstore.audit(store).counts == {}
    report = packstore.audit(store, pixels=True)
    assert report.counts == {"duplicate": 1}
    assert (report.findings[0].what, report.findings[0].records) == ("same pixels 2 times", (0, 1))


@pytest.mark.slow
def test_nearly_the_same_pictures(tmp_path: Path) -> None:
    image = scene(3)
    smaller = image.resize((80, 60), Image.Resampling.BICUBIC)
    cropped = image.crop((5, 3, 5 + 152, 3 + 114))
    files = {f"train/a/{n}.png": encoded(scene(n)) for n in range(6)}
    files |= {
        "train/b/again.jpg": encoded(image, "JPEG", quality=40),
        "val/a/small.png": encoded(smaller),
        "val/a/part.png": encoded(cropped),
        "val/b/mirrored.png": encoded(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    }
    store = pack(tmp_path, files)
    report = packstore.audit(store, pixels=True)
    assert report.counts == {"near_leakage": 2, "near_conflict": 1, "near_duplicate": 2}
    later = {finding.keys[1] for finding in report.of("near_leakage")}
    assert later == {"val/a/small.png", "val/a/part.png"}
    assert report.of("near_duplicate")[0].keys == ("train/a/3.png", "train/b/again.jpg")
    assert {keys for finding in report.of("near_conflict") for keys in finding.keys} >= {"train/b/again.jpg"}
    assert "near_leakage" not in packstore.audit(store, pixels=True, near=False).counts
    mirrored = packstore.audit(store, pixels=True, mirrored=True)
    assert {finding.keys[1] for finding in mirrored.of("near_leakage")} == later | {"val/b/mirrored.png"}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"encoding": "uint8"}, {"encoding": "float16", "normalize": "imagenet"}])
def test_arrays(tmp_path: Path, options: dict[str, Any]) -> None:
    files = {"train/a/1.png": encoded(scene(1)), "train/a/2.png": encoded(scene(2)), "val/a/1.png": encoded(scene(1))}
    files["train/a/flat.png"] = encoded(np.full((40, 40, 3), 200, np.uint8))
    store = pack(tmp_path, files, size=48, **options)
    assert packstore.audit(store, pixels=True).counts == {"leakage": 1, "flat": 1}


def test_boxes_and_masks(tmp_path: Path) -> None:
    with packstore.Writer(tmp_path / "x.lmdb", {"image": "image", "mask": "mask", "boxes": "boxes"}) as writer:
        boxes = [[[1, 1, 5, 5]], [[3, 3, 3, 9]], [[-9, 0, 4, 4]], [[0, 0, 30.5, 20]], [[0, 0, 90, 20], [1, 1, 2, 2]]]
        for n, each in enumerate(boxes):
            mask = np.full((20, 30), 7 if n == 2 else n, np.uint8)
            mask[0] = 255
            sample = {"image": encoded(scene(n, 20, 30)), "mask": encoded(mask), "boxes": np.array(each, np.float32)}
            writer.add(**sample, key=str(n))
    quick = packstore.audit(tmp_path / "x.lmdb")
    assert [(finding.kind, *finding.keys) for finding in quick.findings] == [("box_empty", "1"), ("box_outside", "2")]
    report = packstore.audit(tmp_path / "x.lmdb", pixels=True, mask_classes=5)
    assert {(finding.kind, *finding.keys) for finding in report.findings} == {
        *(("box_empty", "1"), ("box_outside", "2"), ("box_outside", "4"), ("mask_value", "2"))
    }
    assert report.of("box_outside")[1].what == "'boxes' 0: [0.0, 0.0, 90.0, 20.0] in 30 x 20"
    assert report.of("mask_value")[0].what == "'mask' has 7; there are 5 classes, numbered from 0"


@pytest.mark.parametrize("name", ["mask", "raw"])
def test_masks_of_another_size_and_boxes_that_are_none(tmp_path: Path, name: str) -> None:
    """packstore packs none of these; another program may."""
    columns = [column for column in COLUMNS if column.name in (name, "boxes")]
    companions = [companion for column in columns for companion in column.companions]
    all_columns = [IMAGE, *columns, KEY, CHECKSUM, ROW_CHECKSUM, *companions]
    with StoreBuilder(tmp_path / "x.h5", Manifest("hdf5", "original", 0, tuple(all_columns), ORIGIN)) as builder:
        for number in range(3):
            image, values = record(number)
            if number == 1:
                other = np.zeros((7, 5), np.uint8)
                values[name] = png(other) if name == "mask" else other
            values["boxes"] = np.array([[1, 1, 1.5, 2]], np.float32)
            append(builder, IMAGE, columns, number, image, values)
        builder.commit()
    report = packstore.audit(tmp_path / "x.h5", pixels=True)
    assert [finding.records for finding in report.of("mask_size")] == [(1,)]
    assert "has 5 x 7 pixels, its image" in report.of("mask_size")[0].what
    change(tmp_path / "x.h5", np.array([1, 1, 1.5, 2], np.float32).tobytes(), 11)
    assert packstore.audit(tmp_path / "x.h5").counts["box_inverted"] == 3


@pytest.mark.slow
def test_columns_of_every_type_are_audited(tmp_path: Path) -> None:
    names = ["label", "mask", "raw", "deep", "boxes", "labels", "points", "caption", "right", "depth"]
    made = make_typed(tmp_path / "x.h5", names, 12)
    assert packstore.audit(made.path, pixels=True).counts == {}


def test_damage_is_found_and_ends_nothing(tmp_path: Path) -> None:
    store = pack(tmp_path, {f"a/{n}.png": encoded(scene(n, 40, 40)) for n in range(5)})
    damage(store, [2], [])
    report = packstore.audit(store, pixels=True)
    assert report.counts == {"damaged": 1}
    assert report.findings[0].keys == ("a/2.png",)
    assert report.drop["damaged"].tolist() == [2]


@pytest.mark.slow
def test_a_shard_that_is_lost_ends_nothing(tmp_path: Path) -> None:
    twice = encoded(scene(9, 40, 40))
    files = {f"a/{n}.png": encoded(scene(n, 40, 40)) for n in range(6)} | {"a/7.png": twice, "b/8.png": twice}
    store = pack(tmp_path, files, shard_size=8000)
    shards = sorted(store.glob("shard-*"))
    assert len(shards) > 2
    for file in files_of(shards[0]):
        file.unlink()
    counts = packstore.audit(store, pixels=True).counts
    assert counts["conflict"] == 1
    assert counts["damaged"] > 1  # the shard, and each of its records
    assert (
        packstore.audit(store).counts == {"conflict": 1, "duplicate": 1, "damaged": 1} | packstore.audit(store).counts
    )


def test_labels_that_are_no_class_are_found(tmp_path: Path) -> None:
    store = pack(tmp_path, {f"{'ab'[n % 2]}/{n}.png": encoded(scene(n, 9, 9)) for n in range(6)})
    damage(store, [], ["label"], record=3)
    report = packstore.audit(store)
    assert [finding.records for finding in report.of("bad_label")] == [(3,)]


@pytest.mark.slow
def test_the_command_exits_with_1_for_what_it_is_told_to(tmp_path: Path) -> None:
    image = encoded(scene(1, 20, 20))
    store = pack(tmp_path, {"train/a/1.png": image, "val/a/1.png": image, "train/b/<i>.png": encoded(scene(2, 9, 9))})
    done = run("audit", store)
    assert done.returncode == 0, done.stderr
    assert "leakage  1 finding: the same image in several splits" in done.stdout
    assert run("audit", store, "--fail-on", "conflict,duplicate").returncode == 0
    assert run("audit", store, "--fail-on", "leakage,conflict").returncode == 1
    assert run("audit", store, "--fail-on", "any", "--quiet").returncode == 1
    wrong = run("audit", store, "--fail-on", "leaks")
    assert wrong.returncode == 2
    assert "unknown kind of finding 'leaks'" in wrong.stderr
    assert run("audit", tmp_path / "none.lmdb").returncode == 2


@pytest.mark.slow
def test_json_goes_into_a_file_or_to_the_output(tmp_path: Path) -> None:
    image = encoded(scene(1, 20, 20))
    store = pack(tmp_path, {"train/a/1.png": image, "val/a/1.png": image})
    done = run("audit", store, "--json", tmp_path / "audit.json")
    assert "leakage" in done.stdout
    written = json.loads((tmp_path / "audit.json").read_text())
    assert written == json.loads(run("audit", store, "--json", "-").stdout)
    assert written["dataset_digest"] == packstore.open(store).manifest.dataset_digest
    assert written["counts"] == {"leakage": 1}
    assert written["findings"] == [
        {"kind": "leakage", "what": "same bytes in the splits train, val", "records": [0, 1],
         "keys": ["train/a/1.png", "val/a/1.png"]}
    ]  # fmt: skip


@pytest.mark.parametrize("options", [{"min_side": 0}, {"max_aspect": 0.5}, {"mirrored": True}, {"mask_classes": 3}])
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        packstore.audit(tmp_path, **options)


def test_every_kind_of_finding_is_in_the_guide() -> None:
    page = (Path(packstore.__file__).parent / "guide" / "seeing.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(list_kinds())
    named = re.search(r"`select --drop` leaves out (`leak.*?); `--drop-kinds`", page, re.DOTALL)
    assert named is not None
    assert re.findall(r"`(\w+)`", named[1]) == list(DEFAULT_DROP)


def test_groups_are_those_of_equal_values() -> None:
    values = np.random.default_rng(1).integers(0, 40, 100).astype(np.uint64)
    valid = np.arange(100) % 7 != 0
    found = [group.tolist() for group in group_equal(values, valid)]
    expected = [[i for i in range(100) if valid[i] and values[i] == v] for v in range(40)]
    assert sorted(found) == sorted(group for group in expected if len(group) > 1)
    assert list(group_equal(values[:0], valid[:0])) == []


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "pairs"), [(1 << 16, 1 << 17), (7, 5)])
def test_hashes_that_are_near_are_found_as_if_all_were_compared(
    queries: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that agree in no band, of which there is none here: each has changes in a few bytes only."""
    monkeypatch.setattr(same, "_QUERIES", queries)
    monkeypatch.setattr(same, "_PAIRS", pairs)
    rng = np.random.default_rng(2)
    count = 600
    whole = rng.integers(0, 1 << 63, (count, 4)).astype(np.uint64) * np.uint64(2)
    origin = rng.integers(0, 300, count)
    for row in range(300, count):
        whole[row] = whole[origin[row]]
        changed = whole[row].view(np.uint8)
        places = [*rng.choice(8, 2, replace=False), *rng.choice(range(8, 32), 3, replace=False)]
        changed[places] ^= rng.integers(1, 256, 5, np.uint8)
    store = RecordHashes(count, 0)
    store.store(0, rng.random(count) < 0.95, whole[:, None])
    splits = (np.arange(count) % 3 == 0).astype(np.int32)
    within, across = find_nearest_before(store, splits, np.arange(count).astype(np.uint64), no_progress)
    for nearest, wanted in ((within, True), (across, False)):
        for later in range(count):
            earlier = np.flatnonzero(store.valid[:later] & ((splits[:later] == splits[later]) == wanted))
            bits = hamming_distances(whole[earlier], whole[later][None])
            best = int(bits.min()) if len(bits) and store.valid[later] else 256
            if best > THRESHOLD:
                assert nearest.partners[later] == -1
            else:
                assert (nearest.bits[later], nearest.partners[later]) == (best, earlier[bits.argmin()])
    store.close()


@pytest.mark.slow
def test_a_temporary_directory_without_room_is_told_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    store = pack(tmp_path, {"a/1.png": encoded(scene(1, 9, 9))})
    with pytest.raises(UsageError, match=r"a temporary file of 0 MB in .*: No space left on device; set TMPDIR"):
        packstore.audit(store, pixels=True)
    assert packstore.audit(store, pixels=True, near=False).counts == {"tiny": 1}


@pytest.mark.slow
def test_a_hash_is_the_signs_of_a_cosine_transform() -> None:
    scipy_fft = pytest.importorskip("scipy.fft")
    small = shrink_to_side(np.asarray(scene(5)))
    found = np.unpackbits(hash_windows(to_grey(small[None]))[0, 0].view(np.uint8)).astype(bool)
    halved = to_grey(small[None])[0].reshape(32, 2, 32, 2).mean((1, 3))
    waves = scipy_fft.dctn(halved, type=2)[1:17, 1:17].ravel()
    assert (found == (waves > np.median(waves))).mean() > 0.99  # rounding, next to the median


def test_a_hash_of_a_crop_is_that_of_the_cropped_image() -> None:
    image = scene(6, 200, 400)
    top, bottom, left, right = CROPS[1]
    part = image.crop((round(left * 400), round(top * 200), round(right * 400), round(bottom * 200)))
    ours = hash_windows(to_grey(shrink_to_side(np.asarray(image))[None]), CROPS)[0, 1]
    other = hash_windows(to_grey(shrink_to_side(np.asarray(part))[None]))[0, 0]
    assert hamming_distances(ours, other) <= 12
    assert hamming_distances(hash_windows(to_grey(shrink_to_side(np.asarray(image))[None]))[0, 0], other) > 20


def test_bits_are_counted_with_older_numpy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.internals import count_bits

    words = np.random.default_rng(3).integers(0, 1 << 63, (5, 7)).astype(np.uint64)
    expected = [[int(word).bit_count() for word in row] for row in words]
    assert count_bits(words).tolist() == expected
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert count_bits(words).tolist() == expected


def keys_of(path: Path) -> list[str]:
    with packstore.open(path) as reader:
        return [reader.key(record) for record in range(len(reader))]


@pytest.mark.slow
def test_select_takes_out_what_an_audit_found(tmp_path: Path) -> None:
    a, b, c = (encoded(scene(n, 20, 20)) for n in range(3))
    files = {
        "train/ant/a.png": a,
        "train/ant/a2.png": a,
        "train/bee/b.png": b,
        "train/bee/c.png": c,
        "val/bee/b2.png": b,
        "val/ant/c2.png": c,
        "val/ant/d.png": encoded(scene(9, 20, 20)),
    }
    store = pack(tmp_path, files)
    report = tmp_path / "audit.json"
    report.write_text(packstore.audit(store).to_json())
    packstore.select(store, tmp_path / "clean.lmdb", drop=report)
    # The later of equals, the copy in the larger split, and both where labels contradict each other.
    assert keys_of(tmp_path / "clean.lmdb") == ["train/ant/a.png", "val/ant/d.png", "val/bee/b2.png"]
    assert not {"leakage", "conflict", "duplicate"} & set(packstore.audit(tmp_path / "clean.lmdb").counts)
    packstore.select(store, tmp_path / "some.lmdb", drop=report, drop_kinds=["duplicate"])
    assert set(keys_of(store)) - set(keys_of(tmp_path / "some.lmdb")) == {"train/ant/a2.png"}
    done = run("select", store, "-o", tmp_path / "x2.lmdb", "--drop", report, "--drop-kinds", "leakage,duplicate")
    assert done.returncode == 0, done.stderr
    assert len(keys_of(tmp_path / "x2.lmdb")) == 4


@pytest.mark.slow
def test_a_report_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = pack(tmp_path, {f"a/{n}.png": encoded(scene(n, 9, 9)) for n in range(3)})
    report = tmp_path / "audit.json"
    good = json.loads(packstore.audit(store).to_json())
    for changes, message in [
        ({"dataset_digest": "0" * 64}, "about another store"),
        ({"packstore_audit": 2}, "is not a report"),
        ({"drop": []}, "is not a report"),
        ({"drop": {"leakage": [3]}}, "records that the store lacks"),
        ({"drop": {"leakage": ["0"]}}, "records that the store lacks"),
        ({"drop": {"leakage": 5}}, "is not a report"),
    ]:
        report.write_text(json.dumps(good | changes))
        with pytest.raises(UsageError, match=message):
            packstore.select(store, tmp_path / "y.lmdb", drop=report)
    report.write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        packstore.select(store, tmp_path / "y.lmdb", drop=report)
    with pytest.raises(UsageError, match="cannot be read"):
        packstore.select(store, tmp_path / "y.lmdb", drop=tmp_path / "none")
    report.write_text(json.dumps(good))
    with pytest.raises(UsageError, match="unknown kind of finding 'leak'"):
        packstore.select(store, tmp_path / "y.lmdb", drop=report, drop_kinds=["leak"])
    with pytest.raises(UsageError, match="give its report, too, as drop"):
        packstore.select(store, tmp_path / "y.lmdb", drop_kinds=["leakage"])
    monkeypatch.setattr("packstore.core.findings._MOST_BYTES", 100)
    with pytest.raises(UsageError, match=r"^\S+audit\.json is larger than any report: "):
        packstore.select(store, tmp_path / "y.lmdb", drop=report)
    assert not (tmp_path / "y.lmdb").exists()
