"""Columns of image files beside the main image: each has a mode of its own, and none loses anything unasked."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader, Writer, append, audit, convert, verify
from packstore.augment import RandomCrop, RandomHorizontalFlip
from tests.internals import Column, ManifestError, SampleError, UsageError

SIZE = 12, 16


def rgb(number: int) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, (*SIZE, 3), np.uint8)


def deep(number: int) -> NDArray[np.uint16]:
    return np.random.default_rng(number).integers(5_611, 45_597, SIZE, np.uint16)


def png(pixels: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def put(path: Path, pixels: NDArray[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(pixels))
    return path


def modalities(folder: Path, first: int = 0, count: int = 3) -> dict[str, Any]:
    for number in range(first, first + count):
        put(folder / "rgb" / f"{number}.png", rgb(number))
        put(folder / "depth" / f"{number}.png", deep(number))
    return {"source": folder, "pair": "rgb/{s}.*=depth/{s}.*"}


def table(folder: Path) -> dict[str, Any]:
    modalities(folder)
    rows = "".join(f"rgb/{number}.png,depth/{number}.png\n" for number in range(3))
    (folder / "table.csv").write_text("rgb,depth\n" + rows)
    return {"source": folder / "table.csv", "columns": ["image=rgb"]}


def conversations(folder: Path) -> dict[str, Any]:
    modalities(folder)
    turns = [{"from": "human", "value": "<image><image>"}, {"from": "gpt", "value": "far"}]
    found = [{"id": str(n), "image": [f"rgb/{n}.png", f"depth/{n}.png"], "conversations": turns} for n in range(3)]
    (folder / "chat.json").write_text(json.dumps(found))
    return {"source": folder}


def write(path: Path, field: Any, value: Any) -> None:
    with Writer(path, {"image": "image", "depth": field}) as writer:
        writer.add(image=put(path.parent / "main.png", rgb(0)), depth=value)


SETS = {"modalities": modalities, "table": table, "conversations": conversations}


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
        convert(**modalities(tmp_path / "set"), destination=tmp_path / "s.lmdb", **options)


def test_batches_have_the_mode_of_each_column(tmp_path: Path) -> None:
    convert(**modalities(tmp_path / "set"), destination=tmp_path / "s.lmdb", depth="keep")
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
    given = modalities(tmp_path / "set")
    put(tmp_path / "set" / "depth" / "2.png", rgb(7))
    with pytest.raises(
        UsageError,
        match=r"column 'depth' \(depth/2\.png\): it has values of uint8 .*--column depth\.depth=scale",
    ):
        convert(**given, destination=tmp_path / "s.lmdb", depth="keep")
    put(tmp_path / "set" / "depth" / "0.png", rgb(7))  # now the first has 8 bits, and the second more
    with pytest.raises(
        UsageError,
        match=r"column 'depth' \(depth/1\.png\): it has values of uint16 .*--column depth\.depth=scale",
    ):
        convert(**given, destination=tmp_path / "s.lmdb", depth="keep")
    assert convert(**given, destination=tmp_path / "s.lmdb", depth="scale").manifest.records == 3


def test_a_column_without_a_first_value(tmp_path: Path) -> None:
    given = modalities(tmp_path / "set", count=5)
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


def test_what_is_appended_gets_the_modes_of_the_store(tmp_path: Path) -> None:
    convert(**modalities(tmp_path / "a"), destination=tmp_path / "s.lmdb", depth="keep")
    modalities(tmp_path / "b", 5)
    append(tmp_path / "s.lmdb", tmp_path / "b")
    dataset = PackedDataset(tmp_path / "s.lmdb", columns=("depth",))
    np.testing.assert_array_equal(dataset[3], deep(5)[None])
    modalities(tmp_path / "c", 9)
    put(tmp_path / "c" / "depth" / "10.png", rgb(1))
    with pytest.raises(UsageError, match=r"column 'depth' \(depth/10\.png\)"):
        append(tmp_path / "s.lmdb", tmp_path / "c")


def test_a_store_that_lost_its_mode_is_audited_and_gets_it(tmp_path: Path) -> None:
    """Stores of earlier versions: the files are whole, and read as RGB."""
    convert(**modalities(tmp_path / "set"), destination=tmp_path / "old.lmdb", check="none")
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
