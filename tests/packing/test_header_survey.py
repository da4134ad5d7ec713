"""Questions about pixels before anything is packed, and the answers that they print."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore.cli import cli
from tests.internals import (
    AmbiguousSourceError,
    PackstoreError,
    SampleError,
    SourceError,
    StoreError,
    UsageError,
    suggest_commands,
)
from tests.makers.annotated import fill
from tests.makers.interrupted import take_small_steps

tifffile = pytest.importorskip("tifffile")


def pixels(*shape: int, dtype: str = "uint8", seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape).astype(dtype)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def tiff(values: NDArray[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, values, photometric="minisblack", planarconfig="contig", **options)
    return file.getvalue()


PHOTO = Image.fromarray(pixels(20, 24, 3))
ODD: dict[str, Callable[[], bytes]] = {
    "alpha.png": lambda: saved(Image.fromarray(pixels(20, 24, 4)), "PNG"),
    "moving.gif": lambda: saved(
        PHOTO, "GIF", save_all=True, append_images=[Image.fromarray(pixels(20, 24, 3, seed=1))]
    ),
    "deep.png": lambda: saved(Image.fromarray(pixels(20, 24, dtype="uint16")), "PNG"),
    "two.jp2": lambda: saved(Image.fromarray(pixels(20, 24, 2), "LA"), "JPEG2000"),
    "two.tif": lambda: tiff(pixels(20, 24, 2)),
    "five.tif": lambda: tiff(pixels(20, 24, 5)),
    "cmyk.jpg": lambda: saved(PHOTO.convert("CMYK"), "JPEG"),
    "palette.png": lambda: saved(PHOTO.convert("P"), "PNG"),
}


def pile(root: Path, *odd: str, photos: int = 6) -> Path:
    """A folder of two classes of photos, and the odd files among them."""
    for number in range(photos):
        place = root / "images" / "ab"[number % 2] / f"photo{number:03}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(saved(Image.fromarray(pixels(20, 24, 3, seed=number)), "JPEG"))
    for number, name in enumerate(odd):
        place = root / "images" / "ab"[number % 2] / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(ODD[name]())
    return root / "images"


PILES = {
    "alpha": ("alpha.png",),
    "frames": ("moving.gif",),
    "16 bits": ("deep.png",),
    "two channels": ("two.jp2", "two.tif"),
    "what Pillow does not read": ("five.tif", "alpha.png"),
    "alpha and frames": ("alpha.png", "moving.gif"),
    "everything": tuple(ODD),
}


@pytest.mark.parametrize("given", [[], ["--mode", "RGB"], ["--encoding", "uint8"], ["--alpha", "drop"]], ids=" ".join)
@pytest.mark.parametrize("name", PILES)
def test_each_printed_line_packs(name: str, given: list[str], tmp_path: Path) -> None:
    folder = pile(tmp_path, *PILES[name])
    command = ["convert", str(folder), str(tmp_path / "s.lmdb"), *given]
    done = CliRunner().invoke(cli, command)
    if done.exit_code == 0:
        assert (name, given) in [("alpha", ["--alpha", "drop"])]
        return
    assert isinstance(done.exception, AmbiguousSourceError), done.exception
    lines = suggest_commands(done.exception, command)
    assert lines
    for number, line in enumerate(lines):
        words = shlex.split(line)[1:]
        words[2] = str(tmp_path / f"{number}.lmdb")
        answered = CliRunner().invoke(cli, words)
        assert answered.exit_code == (3 if "skip" in words else 0), (line, answered.output, answered.exception)
    assert all(answer.note for answer in done.exception.answers)


@pytest.mark.parametrize("photos", [1, 40, 200])
def test_info_asks_what_convert_asks(photos: int, tmp_path: Path) -> None:
    folder = pile(tmp_path, *ODD, photos=photos)
    with pytest.raises(AmbiguousSourceError) as asked:
        packstore.convert(folder, tmp_path / "s.lmdb")
    for what in ("with transparent pixels", "with several frames", "with more than 8 bits", "with other channels"):
        assert what in str(asked.value)
    said = CliRunner().invoke(cli, ["info", str(folder)])
    assert said.exit_code == 0
    assert str(asked.value) in said.output
    for answer in asked.value.answers:
        assert " ".join(answer.options) in said.output


def test_rare_suffixes_of_a_large_source_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packstore.packing.header_survey._FEW", 4)
    with pytest.raises(AmbiguousSourceError, match="1 with several frames"):
        packstore.convert(pile(tmp_path, "moving.gif", photos=80), tmp_path / "s.lmdb")


def test_what_the_sample_missed_is_a_question_while_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packstore.packing.header_survey._choose_entries", lambda *_: iter(()))
    folder = pile(tmp_path, "alpha.png")
    with pytest.raises(AmbiguousSourceError, match=r"alpha.png: it has transparent.*--pixels pillow") as asked:
        packstore.convert(folder, tmp_path / "s.lmdb")
    options = [answer.options for answer in asked.value.answers]
    assert options[:2] == [("--alpha", "keep"), ("--alpha", "over:white")]
    assert options[-2:] == [("--pixels", "pillow"), ("--on-error", "skip")]
    packstore.convert(folder, tmp_path / "s.lmdb", alpha="drop")
    assert packstore.verify(tmp_path / "s.lmdb", against=folder).ok
    with pytest.raises(UsageError, match="it has transparent") as once:
        packstore.convert(iter([{"image": (folder / "a/alpha.png").read_bytes()}]), tmp_path / "t.lmdb")
    assert not isinstance(once.value, AmbiguousSourceError)  # a generator cannot be read again


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["original", "uint8", "jpeg"])
def test_pixels_are_those_of_pillow(encoding: str, tmp_path: Path) -> None:
    folder = pile(tmp_path, *(name for name in ODD if name != "five.tif"))
    options: dict[str, Any] = {"encoding": encoding, "pixels": "pillow"}
    report = packstore.convert(folder, tmp_path / "s.lmdb", **options)
    manifest = report.manifest
    assert manifest.options["pixels"] == "pillow"
    counts = {"alpha_by_pillow": 3, "frames_by_pillow": 1, "depth_by_pillow": 1, "cmyk_to_rgb": 1}
    if "channels_by_pillow" in report.unified:  # two channels are gray and alpha, or not
        counts |= {"alpha_by_pillow": 2, "channels_by_pillow": 1}
    assert dict(report.unified) == counts
    if encoding != "jpeg":
        with packstore.open(tmp_path / "s.lmdb") as store:
            keys = [store.key(number) for number in range(len(store))]
        for key, (image, _) in zip(keys, packstore.PackedDataset(tmp_path / "s.lmdb", output="numpy"), strict=True):
            with Image.open(folder / key) as opened:
                np.testing.assert_array_equal(image, np.asarray(opened.convert("RGB")), err_msg=key)
    assert packstore.verify(tmp_path / "s.lmdb", decode=True, against=folder).ok
    packstore.export(tmp_path / "s.lmdb", tmp_path / "out.tar", to="webdataset")
    again = packstore.convert(tmp_path / "out.tar", tmp_path / "t.lmdb").manifest
    assert (again.dataset_digest, again.options["pixels"]) == (manifest.dataset_digest, "pillow")
    more = packstore.append(tmp_path / "s.lmdb", folder, key_prefix="more/").manifest
    assert more.options["pixels"] == "pillow"


@pytest.mark.slow
def test_it_is_recorded_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_small_steps(monkeypatch)
    monkeypatch.setattr("packstore.packing.header_survey._choose_entries", lambda *_: iter(()))
    folder = pile(tmp_path, photos=40)
    (folder / "b" / "z.png").write_bytes(ODD["alpha.png"]())
    with pytest.raises(UsageError):
        packstore.convert(folder, tmp_path / "s.h5")
    found = packstore.convert(folder, tmp_path / "s.h5", pixels="pillow")
    assert found.resumed >= 30
    whole = packstore.convert(folder, tmp_path / "whole.h5", pixels="pillow").manifest
    assert (found.manifest.records_digest, found.manifest.options) == (whole.records_digest, whole.options)


def test_it_excludes_the_exact_options(tmp_path: Path) -> None:
    folder = pile(tmp_path)
    others: list[dict[str, Any]] = [{"mode": "L"}, {"depth": "scale"}, {"alpha": "drop"}, {"frames": "all"}]
    for other in others:
        with pytest.raises(UsageError, match="pixels=pillow makes 8-bit RGB of every image"):
            packstore.convert(folder, tmp_path / "s.lmdb", pixels="pillow", **other)
    packstore.convert(folder, tmp_path / "s.lmdb", encoding="uint8")
    with pytest.raises(UsageError, match="not image files"):
        packstore.convert(tmp_path / "s.lmdb", tmp_path / "t.lmdb", pixels="pillow")


def test_stores_of_different_readings_are_not_merged(tmp_path: Path) -> None:
    stores = [tmp_path / "pillow.lmdb", tmp_path / "scale.lmdb"]
    readings: list[dict[str, Any]] = [{"pixels": "pillow"}, {"depth": "scale"}]
    for store, options in zip(stores, readings, strict=True):
        folder = pile(tmp_path / store.stem, "deep.png")
        (folder / "a").rename(folder / store.stem)
        (folder / "b").rename(folder / f"{store.stem}_b")
        packstore.convert(folder, store, **options)
    with pytest.raises(StoreError, match="are read with depth and pixels"):
        packstore.merge(stores, tmp_path / "c.lmdb")


def test_skip_leaves_out_what_would_lose_something(tmp_path: Path) -> None:
    folder = pile(tmp_path, "alpha.png", "moving.gif", "deep.png")
    report = packstore.convert(folder, tmp_path / "s.lmdb", on_error="skip")
    assert [each.key for each in report.skipped] == ["a/alpha.png", "a/deep.png", "b/moving.gif"]
    assert report.manifest.records == 6
    assert packstore.verify(tmp_path / "s.lmdb", against=folder).ok


def test_two_channels_are_not_advised_to_give_the_mode_that_was_given(tmp_path: Path) -> None:
    folder = pile(tmp_path, "two.tif", "two.jp2")
    with pytest.raises(PackstoreError) as asked:
        packstore.convert(folder, tmp_path / "s.lmdb", mode="RGB", alpha="drop")
    assert "--mode RGB" not in str(asked.value)


def test_gray_is_offered_for_other_channels(tmp_path: Path) -> None:
    with pytest.raises(AmbiguousSourceError) as asked:
        packstore.convert(pile(tmp_path, "two.jp2", "five.tif", "deep.png"), tmp_path / "s.lmdb")
    others = "--depth", "scale", "--alpha", "drop"
    assert ("--mode", "L", *others) in [answer.options for answer in asked.value.answers]


def test_no_image_is_an_error_of_info(tmp_path: Path) -> None:
    folder = pile(tmp_path, photos=2)
    for file in folder.rglob("*.jpg"):
        file.write_bytes(b"")
    done = CliRunner().invoke(cli, ["info", str(folder)])
    assert done.exit_code != 0
    assert isinstance(done.exception, SourceError)
    assert "0 images can be packed" in str(done.exception)


def test_unreadable_files_are_part_of_the_question(tmp_path: Path) -> None:
    folder = pile(tmp_path, "alpha.png")
    (folder / "a" / "empty.jpg").write_bytes(b"")
    with pytest.raises(AmbiguousSourceError, match=r"1 cannot be read, such as a/empty.jpg: is empty") as asked:
        packstore.convert(folder, tmp_path / "s.lmdb")
    assert all(answer.options[-2:] == ("--on-error", "skip") for answer in asked.value.answers)


def test_info_reads_values_too(tmp_path: Path) -> None:
    """A bad line of labels is said before anything is packed."""
    for number in range(4):
        line = "0 0.5 0.5 0.1 0.1\n" + "0 0.5 nothing 0.1 0.1\n" * (number == 2)
        files: dict[str, str | bytes] = {f"images/train/{number}.jpg": saved(PHOTO, "JPEG")}
        fill(tmp_path / "boxes", {**files, f"labels/train/{number}.txt": line})
    with pytest.raises(SampleError) as raised:
        packstore.convert(tmp_path / "boxes", tmp_path / "s.lmdb")
    said = CliRunner().invoke(cli, ["info", str(tmp_path / "boxes")])
    assert said.exit_code == 0, said.exception
    assert raised.value.key in said.output
    assert "--on-error skip" in said.output


def test_info_asks_about_further_columns(tmp_path: Path) -> None:
    for number in range(3):
        for place in ("left", "right"):
            image = Image.fromarray(pixels(20, 24, 4 if place == "right" else 3, seed=number))
            fill(tmp_path / "set", {f"{place}/{number}.png": saved(image, "PNG")})
    with pytest.raises(UsageError) as asked:
        packstore.convert(tmp_path / "set", tmp_path / "s.lmdb", pair="left/{s}.*=right/{s}.*")
    said = CliRunner().invoke(cli, ["info", str(tmp_path / "set"), "--pair", "left/{s}.*=right/{s}.*"])
    assert str(asked.value) in said.output


def test_an_empty_class_folder_is_a_question_with_a_line(tmp_path: Path) -> None:
    folder = pile(tmp_path)
    (folder / "empty one").mkdir()
    with pytest.raises(AmbiguousSourceError, match="1 of 3 class folders without images: 'empty one'") as asked:
        packstore.convert(folder, tmp_path / "s.lmdb")
    (answer,) = asked.value.answers
    assert answer.options == ("--ignore", "empty one/")
    assert packstore.convert(folder, tmp_path / "s.lmdb", ignore=answer.options[1]).manifest.records == 6
