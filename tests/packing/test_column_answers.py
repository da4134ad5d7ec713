"""Columns of image files beside the main image: each has a mode and answers of its own, and loses nothing unasked."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader, Writer, append, audit, convert, merge, verify
from packstore.augment import RandomCrop, RandomHorizontalFlip
from packstore.cli import cli
from tests.internals import Column, ManifestError, SampleError, StoreError, UsageError, batches, journal

SIZE = 12, 16


def rgb(number: int) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, (*SIZE, 3), np.uint8)


def deep(number: int) -> NDArray[np.uint16]:
    return np.random.default_rng(number).integers(5_611, 45_597, SIZE, np.uint16)


def clear(number: int) -> NDArray[np.uint8]:
    return np.dstack([rgb(number), np.zeros(SIZE, np.uint8)])


def put(path: Path, pixels: NDArray[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def modalities(folder: Path, first: int = 0, **columns: Callable[[int], NDArray[Any]]) -> dict[str, Any]:
    """A folder of images for each column, beside ``rgb``."""
    for number in range(first, first + 3):
        for name, pixels in {"rgb": rgb, **columns}.items():
            put(folder / name / f"{number}.png", pixels(number))
    return {"source": folder, "pair": [f"rgb/{{s}}.*={name}/{{s}}.*" for name in columns]}


def test_columns_get_answers_of_their_own(tmp_path: Path) -> None:
    given = modalities(tmp_path / "set", depth=deep, thermal=deep, overlay=clear)
    answers = ["depth.depth=keep", "thermal.depth=window:0,51000", "overlay.alpha=over:white"]
    manifest = convert(**given, destination=tmp_path / "s.lmdb", columns=answers).manifest
    modes = {name: manifest.column(name).mode for name in ("image", "depth", "thermal", "overlay")}
    assert modes == {"image": None, "depth": "I;16", "thermal": None, "overlay": None}
    assert manifest.options["thermal.depth"] == "window:0,51000"
    assert manifest.options["overlay.alpha"] == "over:white"
    assert "depth" not in manifest.options
    columns = ("image", "depth", "thermal", "overlay")
    for number, (image, depth, thermal, overlay) in enumerate(PackedDataset(tmp_path / "s.lmdb", columns=columns)):
        np.testing.assert_array_equal(image, rgb(number).transpose(2, 0, 1))
        np.testing.assert_array_equal(depth, deep(number)[None])
        np.testing.assert_array_equal(thermal[0], np.rint(deep(number) / 200).astype(np.uint8))
        assert int(overlay.min()) == 255
    assert verify(tmp_path / "s.lmdb", decode=True, against=tmp_path / "set").ok


MODES: dict[str, tuple[list[str], str | None]] = {
    "keep": (["depth.mode=keep"], "I;16"),
    "named": (["depth.mode=I;16"], "I;16"),
    "gray": (["depth.mode=L", "depth.depth=scale"], "L"),
    "colour": (["depth.mode=RGB", "depth.depth=clip"], None),
}


@pytest.mark.parametrize("name", MODES)
def test_a_mode_of_a_column(name: str, tmp_path: Path) -> None:
    answers, mode = MODES[name]
    given = modalities(tmp_path / "set", depth=deep)
    assert convert(**given, destination=tmp_path / "s.h5", columns=answers).manifest.column("depth").mode == mode
    found = PackedDataset(tmp_path / "s.h5", columns=("depth",))[1]
    assert found.shape == ({"L": 1, "I;16": 1, None: 3}[mode], *SIZE)


@pytest.mark.parametrize(
    ("options", "columns", "mode"),
    [({"depth": "scale"}, ["depth.depth=keep"], "I;16"), ({"depth": "keep"}, ["depth.depth=scale"], None),
     ({"mode": "keep"}, ["depth.depth=scale"], None), ({"depth": "scale"}, ["depth.mode=keep"], "I;16")],
)  # fmt: skip
def test_an_answer_of_a_column_comes_before_that_of_all(
    options: dict[str, Any], columns: list[str], mode: str | None, tmp_path: Path
) -> None:
    given = modalities(tmp_path / "set", depth=deep, thermal=deep)
    manifest = convert(**given, destination=tmp_path / "s.lmdb", columns=columns, **options).manifest
    assert manifest.column("depth").mode == mode
    assert manifest.column("thermal").mode == (None if mode else "I;16")
    assert verify(tmp_path / "s.lmdb", decode=True).ok


def test_frames_of_a_column(tmp_path: Path) -> None:
    given = modalities(tmp_path / "set") | {"pair": "rgb/{s}.*=more/{s}.*"}
    frames = [Image.fromarray(rgb(number)) for number in range(3)]
    (tmp_path / "set" / "more").mkdir()
    for number in range(3):
        frames[0].save(tmp_path / "set" / "more" / f"{number}.png", save_all=True, append_images=frames[1:])
    with pytest.raises(UsageError, match=r"column 'more'.*3 frames.*--column more\.frames=first"):
        convert(**given, destination=tmp_path / "s.lmdb")
    convert(**given, destination=tmp_path / "s.lmdb", columns="more.frames=2")
    np.testing.assert_array_equal(PackedDataset(tmp_path / "s.lmdb", columns=("more",))[0], rgb(2).transpose(2, 0, 1))


def test_a_question_has_the_options_that_answer_it(tmp_path: Path) -> None:
    modalities(tmp_path / "set", depth=deep, overlay=clear)
    pairs = [f"--pair=rgb/{{s}}.*={name}/{{s}}.*" for name in ("depth", "overlay")]
    command = ["convert", str(tmp_path / "set"), str(tmp_path / "s.lmdb"), *pairs]
    for name, answer in (("depth", "depth.depth=keep"), ("overlay", "overlay.alpha=keep")):
        asked = CliRunner().invoke(cli, command)
        assert isinstance(asked.exception, UsageError)
        assert f"column {name!r}" in str(asked.exception)
        offered = re.findall(r"--column ([a-z.=]+)", str(asked.exception))
        assert answer in offered
        command += ["--column", answer]
    said = CliRunner().invoke(cli, command).output
    assert "mode I;16" in said
    assert "mode RGBA" in said
    shown = CliRunner().invoke(cli, ["info", str(tmp_path / "s.lmdb")]).output
    assert re.search(r"column depth .*mode I;16", shown)


def test_info_shows_the_answers(tmp_path: Path) -> None:
    given = modalities(tmp_path / "set", depth=deep)
    convert(**given, destination=tmp_path / "s.lmdb", columns="depth.depth=window:0,51000")
    shown = CliRunner().invoke(cli, ["info", str(tmp_path / "s.lmdb")]).output
    assert re.search(r"column depth .*depth window:0,51000", shown)


@pytest.mark.slow
def test_a_run_resumes_with_another_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in range(10, 40, 3):
        given = modalities(tmp_path / "set", first, depth=rgb)
    put(tmp_path / "set" / "depth" / "39.png", clear(2))
    monkeypatch.setattr(batches, "PASS_RECORDS", 1)
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    with pytest.raises(UsageError, match=r"--column depth\.alpha=keep"):
        convert(**given, destination=tmp_path / "s.h5")
    report = convert(**given, destination=tmp_path / "s.h5", columns="depth.alpha=drop")
    assert report.resumed > 9
    assert report.manifest.options["depth.alpha"] == "drop"


@pytest.mark.slow
def test_append_does_as_the_store_was_packed_and_asks_the_same(tmp_path: Path) -> None:
    convert(**modalities(tmp_path / "a", depth=deep), destination=tmp_path / "s.lmdb", columns="depth.depth=scale")
    modalities(tmp_path / "b", 5, depth=deep)
    append(tmp_path / "s.lmdb", tmp_path / "b")
    assert PackedDataset(tmp_path / "s.lmdb", columns=("depth",))[3].shape == (3, *SIZE)
    modalities(tmp_path / "c", 9, depth=clear)
    with pytest.raises(UsageError, match=r"column 'depth'.*transparent.*--column depth\.alpha="):
        append(tmp_path / "s.lmdb", tmp_path / "c")
    append(tmp_path / "s.lmdb", tmp_path / "c", columns="depth.alpha=over:black")
    assert int(PackedDataset(tmp_path / "s.lmdb", columns=("depth",))[6].max()) == 0
    assert packstore.open(tmp_path / "s.lmdb").manifest.options["depth.alpha"] == "over:black"


def test_other_answers_of_what_is_appended_are_refused(tmp_path: Path) -> None:
    convert(**modalities(tmp_path / "a", depth=deep), destination=tmp_path / "s.lmdb", columns="depth.depth=scale")
    given = modalities(tmp_path / "b", 5, depth=deep)
    with pytest.raises(StoreError, match=r"are read with depth\.depth scale and clip"):
        append(tmp_path / "s.lmdb", **given, columns="depth.depth=clip")
    convert(**given, destination=tmp_path / "t.lmdb", columns="depth.depth=clip")
    with pytest.raises(StoreError, match=r"are read with depth\.depth scale and clip"):
        append(tmp_path / "s.lmdb", tmp_path / "t.lmdb")


def of_main_image(path: Path, first: int, pixels: Callable[[int], NDArray[Any]]) -> Path:
    for number in range(first, first + 2):
        put(path / "a" / f"{number}.png", pixels(number))
    return path


@pytest.mark.slow
def test_an_answer_about_the_main_image_is_kept_by_append_and_merge(tmp_path: Path) -> None:
    convert(of_main_image(tmp_path / "a", 0, rgb), tmp_path / "s.lmdb")
    append(tmp_path / "s.lmdb", of_main_image(tmp_path / "b", 5, deep), depth="scale")
    wanted = np.rint(deep(6) / 257).astype(np.uint8)
    np.testing.assert_array_equal(PackedDataset(tmp_path / "s.lmdb")[3][0][0], wanted)
    convert(of_main_image(tmp_path / "c", 8, rgb), tmp_path / "t.lmdb")
    merge([tmp_path / "t.lmdb", tmp_path / "s.lmdb"], tmp_path / "m.lmdb")
    np.testing.assert_array_equal(PackedDataset(tmp_path / "m.lmdb")[5][0][0], wanted)
    convert(of_main_image(tmp_path / "d", 20, deep), tmp_path / "u.lmdb", depth="clip")
    for other in ("s.lmdb", "m.lmdb"):
        with pytest.raises(StoreError, match="are read with depth clip and scale"):
            merge([tmp_path / "u.lmdb", tmp_path / other], tmp_path / "n.lmdb")
    with pytest.raises(StoreError, match="are read with depth scale and clip"):
        append(tmp_path / "s.lmdb", tmp_path / "d", depth="clip")


@pytest.mark.slow
def test_merged_stores_have_one_answer(tmp_path: Path) -> None:
    for number, answer in enumerate(("scale", "scale", "clip")):
        given = modalities(tmp_path / f"set{number}", number * 5, depth=deep)
        convert(**given, destination=tmp_path / f"{number}.lmdb", columns=f"depth.depth={answer}")
    manifest = merge([tmp_path / "0.lmdb", tmp_path / "1.lmdb"], tmp_path / "m.lmdb").manifest
    assert manifest.options["depth.depth"] == "scale"
    with pytest.raises(StoreError, match=r"are read with depth\.depth scale and clip"):
        merge([tmp_path / "0.lmdb", tmp_path / "2.lmdb"], tmp_path / "n.lmdb")


def test_a_store_is_packed_again_in_another_mode(tmp_path: Path) -> None:
    convert(**modalities(tmp_path / "set", depth=deep), destination=tmp_path / "s.lmdb", depth="keep")
    again = convert(tmp_path / "s.lmdb", tmp_path / "again.lmdb").manifest
    assert again.column("depth").mode == "I;16"
    eight = convert(tmp_path / "s.lmdb", tmp_path / "eight.lmdb", columns="depth.depth=window:0,51000").manifest
    assert eight.column("depth").mode is None
    np.testing.assert_array_equal(
        PackedDataset(tmp_path / "eight.lmdb", columns=("depth",))[0][0], np.rint(deep(0) / 200).astype(np.uint8)
    )
    third = convert(tmp_path / "eight.lmdb", tmp_path / "third.lmdb").manifest
    assert third.options["depth.depth"] == "window:0,51000"


def test_samples_of_python_have_them(tmp_path: Path) -> None:
    modalities(tmp_path / "set", depth=deep)
    samples = [{"image": tmp_path / "set/rgb/0.png", "depth": tmp_path / "set/depth/0.png"}]
    convert(samples, tmp_path / "s.lmdb", fields={"image": "image", "depth": "image"}, columns="depth.depth=scale")
    assert PackedDataset(tmp_path / "s.lmdb", columns=("depth",))[0].shape == (3, *SIZE)


REFUSED = {
    "column": ("near.depth=keep", r"no column of image files 'near' beside the main image.*depth"),
    "main image": ("image.depth=keep", r"main image.*--depth keep"),
    "value": ("depth.depth=deep", r"depth should be scale, clip or window"),
    "mode": ("depth.mode=17", "mode"),
    "frames": ("depth.frames=all", "frames should be"),
    "twice": (["depth.alpha=keep", "depth.alpha=drop"], "twice"),
    "contradiction": (["depth.mode=keep", "depth.depth=scale"], "mode keep keeps all bits"),
    "other": ("depth.size=5", "expected image=COL"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_answer(name: str, tmp_path: Path) -> None:
    columns, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        convert(**modalities(tmp_path / "set", depth=deep), destination=tmp_path / "s.lmdb", columns=columns)


def png(pixels: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def table(folder: Path) -> dict[str, Any]:
    modalities(folder, depth=deep)
    rows = "".join(f"rgb/{number}.png,depth/{number}.png\n" for number in range(3))
    (folder / "table.csv").write_text("rgb,depth\n" + rows)
    return {"source": folder / "table.csv", "columns": ["image=rgb"]}


def conversations(folder: Path) -> dict[str, Any]:
    modalities(folder, depth=deep)
    turns = [{"from": "human", "value": "<image><image>"}, {"from": "gpt", "value": "far"}]
    found = [{"id": str(n), "image": [f"rgb/{n}.png", f"depth/{n}.png"], "conversations": turns} for n in range(3)]
    (folder / "chat.json").write_text(json.dumps(found))
    return {"source": folder}


def write(path: Path, field: Any, value: Any) -> None:
    with Writer(path, {"image": "image", "depth": field}) as writer:
        writer.add(image=put(path.parent / "main.png", rgb(0)), depth=value)


SETS = {"modalities": lambda folder: modalities(folder, depth=deep), "table": table, "conversations": conversations}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETS)
def test_a_deep_column_is_a_question_and_keep_gives_its_values(kind: str, tmp_path: Path) -> None:
    given, name = SETS[kind](tmp_path / "set"), "further_images" if kind == "conversations" else "depth"
    with pytest.raises(
        UsageError, match=rf"0.*column '{name}'.* \(depth/0\.png\): it has values of uint16 .*depth=keep"
    ):
        convert(**given, destination=tmp_path / "s.lmdb")
    assert not (tmp_path / "s.lmdb").exists()
    manifest = convert(**given, destination=tmp_path / "s.lmdb", depth="keep").manifest
    assert (manifest.image.mode, manifest.column(name).mode) == (None, "I;16")
    for number, (image, value) in enumerate(PackedDataset(tmp_path / "s.lmdb", columns=("image", name))):
        found = value[0] if kind == "conversations" else value
        np.testing.assert_array_equal(image, rgb(number).transpose(2, 0, 1))
        assert found.dtype == torch.int32
        np.testing.assert_array_equal(found, deep(number)[None])
    against = {"columns": given["columns"]} if kind == "table" else {}
    assert verify(tmp_path / "s.lmdb", decode=True, against=given["source"],
                  source_kind=given.get("source_kind"), **against).ok  # fmt: skip
    assert not [each for each in audit(tmp_path / "s.lmdb", pixels=True).findings if each.kind == "mode"]


@pytest.mark.parametrize("options", [{"columns": "keep=geo"}, {"frames": "all"}, {"frames": "clips:files"}])
def test_a_question_names_the_file_of_a_wrapped_source(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"column 'depth'.* \(depth/0\.png\): it has values of uint16"):
        convert(**modalities(tmp_path / "set", depth=deep), destination=tmp_path / "s.lmdb", **options)


def test_batches_have_the_mode_of_each_column(tmp_path: Path) -> None:
    convert(**modalities(tmp_path / "set", depth=deep), destination=tmp_path / "s.lmdb", depth="keep")
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("image", "depth"))
    images, depths = next(iter(PackedLoader(dataset, 3)))
    assert images.shape == (3, 3, *SIZE)
    np.testing.assert_array_equal(depths, np.stack([deep(n) for n in range(3)])[:, None])
    moved, depths = next(iter(PackedLoader(dataset, 3, augment=[RandomCrop(8), RandomHorizontalFlip()])))
    assert (moved.shape, depths.shape, depths.dtype) == ((3, 3, 8, 8), (3, 1, 8, 8), torch.int32)
    assert int(depths.min()) >= 5_611
    scaled = np.stack([deep(n) for n in range(3)])[:, None] / 65_535
    for options in ({"normalize": "imagenet"}, {"dtype": torch.float16}):
        images, depths = next(iter(PackedLoader(dataset, 3, **options)))
        assert depths.dtype == images.dtype
        np.testing.assert_allclose(depths.float(), scaled, atol=1e-3)


def test_a_later_file_of_another_mode_is_a_question(tmp_path: Path) -> None:
    given = modalities(tmp_path / "set", depth=deep)
    put(tmp_path / "set" / "depth" / "2.png", rgb(7))
    with pytest.raises(
        UsageError, match=r"column 'depth' \(depth/2\.png\): it has values of uint8 .*--column depth\.depth=scale"
    ):
        convert(**given, destination=tmp_path / "s.lmdb", depth="keep")
    put(tmp_path / "set" / "depth" / "0.png", rgb(7))  # now the first has 8 bits, and the second more
    with pytest.raises(
        UsageError, match=r"column 'depth' \(depth/1\.png\): it has values of uint16 .*--column depth\.depth=scale"
    ):
        convert(**given, destination=tmp_path / "s.lmdb", depth="keep")
    assert convert(**given, destination=tmp_path / "s.lmdb", depth="scale").manifest.records == 3


def test_a_column_without_a_first_value(tmp_path: Path) -> None:
    given = modalities(tmp_path / "set", depth=deep)
    (tmp_path / "set" / "depth" / "0.png").unlink()
    manifest = convert(**given, destination=tmp_path / "s.lmdb", depth="keep").manifest
    assert manifest.column("depth").mode == "I;16"
    assert PackedDataset(tmp_path / "s.lmdb", columns=("depth",))[0] is None


@pytest.mark.parametrize("field", [packstore.Image(), packstore.Images()])
def test_a_writer_asks_and_takes_a_declared_mode(field: Any, tmp_path: Path) -> None:
    path, is_list = put(tmp_path / "d.png", deep(1)), isinstance(field, packstore.Images)
    value: Any = [path, path] if is_list else path
    with pytest.raises(UsageError, match=r"column 'depth'.*uint16.*mode='I;16'"):
        write(tmp_path / "s.lmdb", field, value)
    with pytest.raises(UsageError, match=r"has values of uint16.*one mode") as caught:
        write(tmp_path / "s.lmdb", type(field)(mode="F"), value)
    assert "--depth" not in str(caught.value)  # which makes no floating point
    write(tmp_path / "s.lmdb", type(field)(mode="I;16"), value)
    found = PackedDataset(tmp_path / "s.lmdb", columns=("depth",))[0]
    np.testing.assert_array_equal(found[1] if is_list else found, deep(1)[None])
    assert verify(tmp_path / "s.lmdb", decode=True).ok
    again = convert(tmp_path / "s.lmdb", tmp_path / "again.h5").manifest
    assert again.column("depth").mode == "I;16"
    assert again.dataset_digest == packstore.open(tmp_path / "s.lmdb").manifest.dataset_digest


def test_a_writer_decodes_deep_files_into_an_array_column(tmp_path: Path) -> None:
    write(tmp_path / "s.lmdb", packstore.Image("uint16"), put(tmp_path / "1.png", deep(1)))
    np.testing.assert_array_equal(PackedDataset(tmp_path / "s.lmdb", columns=("depth",))[0], deep(1)[None])
    with pytest.raises(SampleError, match=r"sample 0: depth: the file has values of uint8.*mode=") as caught:
        write(tmp_path / "t.lmdb", packstore.Image("uint16"), png(rgb(1)))
    assert "--encoding" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["uint8", "jpeg"])
def test_a_writer_makes_no_8_bits_of_more(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"sample 0: depth: the file has values of uint16"):
        write(tmp_path / "s.lmdb", packstore.Image(encoding), png(deep(1)))


@pytest.mark.slow
def test_what_is_appended_gets_the_modes_of_the_store(tmp_path: Path) -> None:
    convert(**modalities(tmp_path / "a", depth=deep), destination=tmp_path / "s.lmdb", depth="keep")
    modalities(tmp_path / "b", 5, depth=deep)
    append(tmp_path / "s.lmdb", tmp_path / "b")
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("depth",))
    np.testing.assert_array_equal(dataset[3], deep(5)[None])
    modalities(tmp_path / "c", 9, depth=deep)
    put(tmp_path / "c" / "depth" / "10.png", rgb(1))
    with pytest.raises(UsageError, match=r"column 'depth' \(depth/10\.png\)"):
        append(tmp_path / "s.lmdb", tmp_path / "c")


def test_a_store_that_lost_its_mode_is_audited_and_gets_it(tmp_path: Path) -> None:
    """Stores of earlier versions: the files are whole, and read as RGB."""
    convert(**modalities(tmp_path / "set", depth=deep), destination=tmp_path / "old.lmdb", check="none")
    found = [each for each in audit(tmp_path / "old.lmdb", pixels=True).findings if each.kind == "mode"]
    assert "'depth'" in str(found)
    convert(tmp_path / "old.lmdb", tmp_path / "new.lmdb", depth="keep")
    np.testing.assert_array_equal(PackedDataset(tmp_path / "new.lmdb", columns=("depth",))[0], deep(0)[None])


def test_a_dataset_says_how_deep_images_become_8_bits(tmp_path: Path) -> None:
    for number in range(2):
        put(tmp_path / "set" / "a" / f"{number}.png", deep(number))
    convert(tmp_path / "set", tmp_path / "s.lmdb", depth="keep")
    with pytest.raises(UsageError, match=r"mode I;16.*depth='scale'"):
        PackedDataset(tmp_path / "s.lmdb", mode="RGB")
    assert PackedDataset(tmp_path / "s.lmdb", mode="RGB", depth="scale")[0][0].shape == (3, *SIZE)
    np.testing.assert_array_equal(PackedDataset(tmp_path / "s.lmdb", depth="keep")[0][0], deep(0)[None])
    wrong: Any = {"depth": "I;16"}
    with pytest.raises(UsageError, match="mode should be the name of a mode"):
        PackedDataset(tmp_path / "s.lmdb", mode=wrong)
    convert(tmp_path / "set", tmp_path / "eight.lmdb", depth="scale")
    with pytest.raises(UsageError, match="depth='keep' needs the mode of the files"):
        PackedDataset(tmp_path / "eight.lmdb", depth="keep")
    kept = PackedDataset(tmp_path / "eight.lmdb", mode="I;16", depth="keep")[0][0]
    np.testing.assert_array_equal(kept, deep(0)[None])


def test_only_images_have_a_mode() -> None:
    assert Column("a", "ragged", "uint8", type="images", mode="I;16").pixels.name == "I;16"
    with pytest.raises(ManifestError, match="mode of a text column"):
        Column("a", "ragged", "uint8", type="text", mode="L")
