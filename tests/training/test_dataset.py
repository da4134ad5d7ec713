"""``PackedDataset``: the drop-in for ``ImageFolder`` and ``CIFAR10``."""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, default_collate

import packstore
from packstore import DecodeError, PackedDataset, StoreError, UsageError
from tests.internals import open_checked
from tests.makers import annotated
from tests.makers.batches import same
from tests.makers.datasets import CLASSES, make_cifar10, make_folder
from tests.makers.engine_checks import save
from tests.makers.jpegs import noisy

SUFFIXES = ("lmdb", "h5", "pth")
SIZE = (20, 24)


@pytest.fixture(scope="module")
def png_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images") / "photos", size=SIZE, suffixes=(".png",))


Pack = Callable[..., Path]


@pytest.fixture(scope="module")
def pack(png_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Packs the folder, each way once."""

    @functools.cache
    def make(suffix: str, encoding: str, **options: Any) -> Path:
        path = tmp_path_factory.mktemp("stores") / f"{encoding}.{suffix}"
        packstore.convert(png_folder, path, encoding=encoding, **options)
        return path

    return make


def files(folder: Path, split: str) -> list[Path]:
    return sorted(p for p in (folder / split).rglob("*") if p.is_file())


def image(path: Path) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(path).convert("RGB"))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("encoding", ["original", "uint8"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_items_are_those_of_the_folder(pack: Pack, png_folder: Path, suffix: str, encoding: str, split: str) -> None:
    ds = PackedDataset(pack(suffix, encoding), split)
    paths = files(png_folder, split)
    assert len(ds) == len(paths) == 12
    assert ds.classes == list(CLASSES)
    assert ds.class_to_idx == {"ant": 0, "bee": 1, "cat": 2}
    assert ds.targets == [CLASSES.index(p.parent.name) for p in paths]
    assert list(ds.keys) == [p.relative_to(png_folder).as_posix() for p in paths]
    assert ds.keys[-1] == ds.keys[11]
    assert ds.keys[2:4] == list(ds.keys)[2:4]
    for i, path in enumerate(paths):
        pixels, label = ds[i]
        assert pixels.dtype == torch.uint8
        assert label == CLASSES.index(path.parent.name)
        np.testing.assert_array_equal(pixels.permute(1, 2, 0).numpy(), image(path))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("encoding", ["float16", "bfloat16", "float32"])
def test_float_stores_give_float32_unless_told_otherwise(
    pack: Pack, png_folder: Path, suffix: str, encoding: str
) -> None:
    path = pack(suffix, encoding, normalize="0.5,0.4,0.3/0.2,0.3,0.4")
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6}[encoding]
    ds = PackedDataset(path, "val")
    half = PackedDataset(path, "val", dtype=torch.float16)
    for i, file in enumerate(files(png_folder, "val")):
        expected = (torch.from_numpy(image(file).copy()).permute(2, 0, 1) / 255 - mean) / std
        assert ds[i][0].dtype == torch.float32
        assert ds[i][0].shape == (3, *SIZE)
        torch.testing.assert_close(ds[i][0], expected, atol=tolerance, rtol=tolerance)
        assert half[i][0].dtype == torch.float16
    stacked = PackedDataset(path, "val", output="numpy")[:][0]
    torch.testing.assert_close(torch.from_numpy(stacked).float(), ds[:][0])


def test_dtype_scales_pixels_like_to_tensor(pack: Pack, png_folder: Path) -> None:
    ds = PackedDataset(pack("lmdb", "original"), "val", dtype=torch.float32)
    expected = torch.from_numpy(image(files(png_folder, "val")[0]).copy()).permute(2, 0, 1) / 255
    torch.testing.assert_close(ds[0][0], expected)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("encoding", ["original", "uint8", "float16"])
def test_every_way_of_indexing_gives_the_same_items(pack: Pack, suffix: str, encoding: str) -> None:
    ds = PackedDataset(pack(suffix, encoding), "val")
    items = [ds[i] for i in range(len(ds))]
    for wanted in ([3, 1, 1, -1], torch.tensor([3, 1, 1, 11]), np.array([3, 1, 1, 11]), (3, 1, 1, 11), range(5)):
        chosen = [items[int(i)] for i in wanted]
        assert same(ds[wanted], default_collate(chosen))
        assert same(ds.__getitems__([int(i) for i in wanted]), chosen)
    assert same(ds[2:10:3], default_collate(items[2:10:3]))
    for one in (-1, torch.tensor(4), np.int64(4)):
        assert same(ds[one], items[int(one)])
    for outside in (12, -13, [0, 12]):
        with pytest.raises(IndexError, match="12 items"):
            ds[outside]


@pytest.mark.parametrize("suffix", ["h5", "pth"])
@pytest.mark.parametrize("encoding", ["uint8", "float16", "bfloat16"])
def test_a_batch_is_one_gather(pack: Pack, suffix: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record is read by itself, whichever way a batch is asked for."""
    columns = ("image", "label", "checksum", "key")
    ds = PackedDataset(pack(suffix, encoding, size=16), "val", columns=columns)
    halved = PackedDataset(ds.path, "val", transform=lambda image: image[..., ::2], target_transform=lambda y: y + 1)
    wanted = [3, 1, 1, -1]
    items = [ds[i] for i in wanted]

    def one_by_one(*_: Any) -> None:
        raise AssertionError("a record was read by itself")

    pairs = PackedDataset(ds.path, "val")
    for dataset in (ds, halved, pairs):
        for name in ("read", "view", "array"):
            monkeypatch.setattr(dataset.reader, name, one_by_one)
    with pytest.raises(AssertionError, match="by itself"):
        ds[3]
    for batch in (ds[wanted], ds[np.array(wanted)]):
        assert torch.equal(batch[0], torch.stack([image for image, *_ in items]))
        assert batch[1].tolist() == [label for _, label, *_ in items]
        assert batch[2].view(torch.uint64).tolist() == [checksum for *_, checksum, _ in items]
        assert batch[3] == [key for *_, key in items]
        assert batch[1].dtype == batch[2].dtype == torch.int64
    for got, expected in zip(next(iter(DataLoader(pairs, 4, sampler=wanted))), pairs[wanted], strict=True):
        assert torch.equal(got, expected)
    assert torch.equal(ds[1:4:2][0], ds[[1, 3]][0])
    images, labels = halved[wanted]
    assert torch.equal(images, ds[wanted][0][..., ::2])
    assert torch.equal(labels, ds[wanted][1] + 1)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("encoding", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("options", [{}, {"size": 16}])
def test_writing_into_an_item_changes_nothing_else(
    pack: Pack, suffix: str, encoding: str, options: dict[str, Any]
) -> None:
    ds = PackedDataset(pack(suffix, encoding, **options), "val")
    before = ds[0][0].clone()
    ds[0][0].zero_()
    ds[[0, 1]][0].zero_()
    ds.__getitems__([0])[0][0].zero_()
    assert before.any()
    assert torch.equal(ds[0][0], before)


@pytest.mark.slow
def test_batches_of_images_that_differ_in_size_are_lists(tmp_path: Path) -> None:
    packstore.convert(make_folder(tmp_path / "photos"), tmp_path / "a.lmdb")
    ds = PackedDataset(tmp_path / "a.lmdb", "train")
    images, labels = ds[:4]
    assert isinstance(images, list)
    assert len({i.shape for i in images}) > 1
    assert torch.equal(labels, torch.zeros(4, dtype=torch.int64))


@pytest.mark.slow
def test_outputs(pack: Pack, png_folder: Path) -> None:
    path = files(png_folder, "val")[5]
    encoded, raw, floats = (pack("h5", e) for e in ("original", "uint8", "float16"))
    assert PackedDataset(encoded, "val", output="bytes")[5][0] == path.read_bytes()
    assert PackedDataset(raw, "val", output="bytes")[5][0] == image(path).tobytes()
    for store in (encoded, raw):
        picture = PackedDataset(store, "val", output="pil")[5][0]
        assert picture.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(picture), image(path))
        np.testing.assert_array_equal(PackedDataset(store, "val", output="numpy")[5][0], image(path))
    assert PackedDataset(floats, "val", output="numpy")[5][0].dtype == np.float16


def test_columns_and_transforms(pack: Pack) -> None:
    path = pack("pth", "uint8")
    ds = PackedDataset(path, "val", columns=("key", "label", "checksum", "image"))
    key, label, checksum, _ = ds[4]
    assert (key, label) == ("val/bee/000.png", 1)
    assert isinstance(checksum, int)
    assert isinstance(ds[:3][0], list)
    assert PackedDataset(path, "val", columns=["label"])[4] == 1
    changed = PackedDataset(path, "val", transform=lambda x: x.float().mean(), target_transform=lambda y: y * 10)
    assert changed[4][0].ndim == 0
    assert changed[4][1] == 10
    assert changed[[4, 5]][1].tolist() == [10, 10]
    assert changed.__getitems__([4])[0][1] == 10


def test_a_store_without_labels_gives_images_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos", splits=(), size=SIZE)
    packstore.convert(tmp_path / "photos" / "ant", tmp_path / "a.lmdb")
    ds = PackedDataset(tmp_path / "a.lmdb")
    assert ds[0].shape == (3, *SIZE)
    assert ds[:2].shape == (2, 3, *SIZE)
    assert ds.classes == []
    with pytest.raises(UsageError, match="no labels"):
        _ = ds.targets


def test_a_store_for_detection_gives_boxes_and_their_classes(tmp_path: Path) -> None:
    packstore.convert(annotated.coco(tmp_path / "coco"), tmp_path / "a.lmdb")
    ds = PackedDataset(tmp_path / "a.lmdb", "train")
    image, boxes, labels = ds[1]
    assert (image.ndim, boxes.shape[1:], len(labels)) == (3, (4,), len(boxes))
    assert set(labels.tolist()) <= set(range(len(ds.classes)))
    assert ds.classes == list(ds.manifest.column("labels").classes or ())
    assert f"classes: {len(ds.classes)}" in repr(ds)
    assert "item: image, boxes, labels (image as tensor, on cpu)" in repr(ds)
    assert "item: a dict of image, on cpu" in repr(PackedDataset(ds.path, "train", columns=("image",), output="dict"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": None}, "train, val"),
        ({"split": "test"}, "train, val"),
        ({"columns": ("image", "mask")}, "mask.*columns: image, label"),
        ({"columns": "image"}, "sequence"),
        ({"columns": ()}, "sequence"),
        ({"output": "jpeg"}, "tensor, pil"),
        ({"decoder": "magic"}, "magic"),
        ({"dtype": torch.int32}, "int32"),
        ({"dtype": torch.float16, "output": "pil"}, "dtype"),
    ],
)
def test_wrong_arguments(pack: Pack, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PackedDataset(pack("lmdb", "original"), **{"split": "val", **options})


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_dataset_that_is_refused_closes_its_store(
    png_folder: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, closed = tmp_path / f"a.{suffix}", list[bool]()
    packstore.convert(png_folder, path, encoding="uint8", size=8)

    def open_recorded(*given: Any) -> Any:
        reader = open_checked(*given)
        close = reader.close
        number = len(closed)
        closed.append(False)

        def record_close() -> None:
            closed[number] = True
            close()

        monkeypatch.setattr(reader, "close", record_close)
        return reader

    monkeypatch.setattr("packstore.training.dataset.open_checked", open_recorded)
    with pytest.raises(UsageError, match="decoder"):
        PackedDataset(path, "val", decoder="magic")
    ds = PackedDataset(path, "val")
    ds.close()
    packstore.convert(png_folder, path, encoding="uint8", size=9, overwrite=True)
    with pytest.raises(StoreError, match="replaced"):
        ds[0]
    assert closed == [True, False, True]


@pytest.mark.slow
def test_float_stores_are_not_pictures(pack: Pack) -> None:
    for options in ({"output": "pil"}, {"dtype": torch.uint8}):
        with pytest.raises(UsageError, match="normalised"):
            PackedDataset(pack("h5", "float16"), "val", **options)


def test_not_a_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.lmdb"):
        with pytest.raises(StoreError, match=path.name):
            PackedDataset(path)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("checksums", ["never", "always"])
def test_a_store_that_lacks_a_shard_does_not_open(
    png_folder: Path, tmp_path: Path, suffix: str, checksums: Any
) -> None:
    path = tmp_path / f"a.{suffix}"
    packstore.convert(png_folder, path, encoding="uint8", size=8, shard_size=3000)
    travelling = pickle.dumps(PackedDataset(path, "train"))
    shard = sorted(path.glob("shard-*"))[-1]
    file = shard / "data.mdb" if shard.is_dir() else shard

    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match=f"{shard.name} of .* has {len(whole) - 1} bytes, expected {len(whole)}"):
        PackedDataset(path, "train", checksums=checksums)
    file.unlink()
    with pytest.raises(StoreError, match=f"{shard.name} of .* cannot be opened: No such file"):
        PackedDataset(path, "train", checksums=checksums)
    with pytest.raises(StoreError, match=f"{shard.name} of .* cannot be opened: No such file"):
        pickle.loads(travelling)[0]
    file.write_bytes(whole)
    assert len(PackedDataset(path, "train", checksums=checksums)) > 0


def test_repr_says_what_it_is(pack: Pack) -> None:
    text = repr(PackedDataset(pack("h5", "uint8"), "val"))
    for part in ("uint8", "hdf5", "'val'", "12", ".h5"):
        assert part in text


@pytest.mark.slow
@pytest.mark.parametrize("progressive", [None, "baseline"])
def test_files_that_are_decoded_together_are_those_decoded_alone(
    tmp_path: Path, progressive: Literal["baseline"] | None
) -> None:
    """More of them than one call decodes, of many sizes and kinds, one of them lying on its side."""
    (tmp_path / "photos").mkdir()
    for number in range(19):
        options: dict[str, Any] = {"progressive": number == 3}
        if number == 7:
            exif = Image.Exif()
            exif[274] = 6
            options["exif"] = exif
        picture = Image.fromarray(noisy(9 + 7 * number, 80 - 3 * number, number))
        picture.save(tmp_path / "photos" / f"{number:02}.jpg", **options)
    Image.fromarray(noisy(20, 30)).save(tmp_path / "photos" / "x.png")
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb", progressive=progressive)
    wanted = [19, *range(18, -1, -1), 3]
    for output in ("tensor", "numpy", "pil", "bytes"):
        for turned in (False, True):
            ds = PackedDataset(tmp_path / "a.lmdb", output=output, exif_transpose=turned)
            alone = [np.asarray(ds[i]) for i in wanted]
            for together in (ds.__getitems__(wanted), ds[wanted]):
                for one, other in zip(alone, together, strict=True):
                    np.testing.assert_array_equal(one, np.asarray(other))


def test_a_record_that_does_not_decode_is_named(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in "acd":
        (tmp_path / "photos" / f"{name}.jpg").write_bytes(save(noisy(20, 30)))
    (tmp_path / "photos" / "b.jpg").write_bytes(b"\xff\xd8\xff no JPEG")
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb", check="none")
    ds = PackedDataset(tmp_path / "a.lmdb")
    for read in (lambda: ds[1], lambda: ds[:], lambda: ds.__getitems__([0, 1, 2])):
        with pytest.raises(DecodeError, match=r"record 1 \(b\.jpg\)"):
            read()


@pytest.mark.slow
@pytest.mark.sampled(1, per="start")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("encoding", ["original", "uint8", "float16"])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_dataloader_workers_give_what_one_process_gives(pack: Pack, suffix: str, encoding: str, start: str) -> None:
    ds = PackedDataset(pack(suffix, encoding), "train")
    ds[0]  # opened in the parent: what a fork inherits must not be used
    workers = 2 if start == "fork" else 1  # one that is spawned takes seconds to import torch
    options: dict[str, Any] = {"multiprocessing_context": multiprocessing.get_context(start), "num_workers": workers}
    loader = DataLoader(ds, batch_size=5, persistent_workers=True, **options)
    for _ in range(2):
        assert same(loader, DataLoader(ds, batch_size=5))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_it_pickles_small_and_works_after_close(pack: Pack, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(suffix, "uint8")
    monkeypatch.chdir(path.parent)
    ds = PackedDataset(path.name, "val")
    state = pickle.dumps(ds)
    assert len(state) < 10_000
    monkeypatch.chdir("/")
    copy = pickle.loads(state)
    assert torch.equal(copy[3][0], ds[3][0])
    expected = ds[3][0]
    ds.close()
    ds.close()
    assert torch.equal(ds[3][0], expected)


def test_two_datasets_on_one_path_live_side_by_side(pack: Pack) -> None:
    path = pack("lmdb", "original")
    a, b = PackedDataset(path, "train"), PackedDataset(path, "val")
    expected = b[0][0]
    a[0]
    a.close()
    assert torch.equal(b[0][0], expected)


def test_any_torch_device(pack: Pack) -> None:
    ds = PackedDataset(pack("pth", "float16"), "val", device="meta")
    assert ds[0][0].device.type == "meta"
    images, labels = ds[:4]
    assert images.device.type == labels.device.type == "meta"
    assert images.shape == (4, 3, *SIZE)


def test_cifar_gives_torchvisions_items(tmp_path: Path) -> None:
    root = make_cifar10(tmp_path)
    packstore.convert(root, tmp_path / "c.pth", encoding="uint8")
    ds = PackedDataset(tmp_path / "c.pth", "train", output="pil")
    # torchvision's CIFAR10: np.vstack(data).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels in file order
    batches = [pickle.loads((root / f"data_batch_{i}").read_bytes(), encoding="bytes") for i in range(1, 6)]
    data = np.vstack([b[b"data"] for b in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = [label for b in batches for label in b[b"labels"]]
    assert ds.targets == labels
    assert ds.classes[:3] == ["airplane", "automobile", "bird"]
    for i in (0, 19, 20, 99):
        np.testing.assert_array_equal(np.asarray(ds[i][0]), data[i])


@pytest.mark.parametrize("mask", [[True, False], np.array([True] * 12), torch.tensor([True] * 12), np.True_, True])
def test_masks_are_no_indices(pack: Pack, mask: Any) -> None:
    with pytest.raises(TypeError, match="mask"):
        PackedDataset(pack("h5", "uint8"), "val")[mask]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_store_that_was_replaced_is_not_taken_for_the_old_one(png_folder: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    packstore.convert(png_folder, path, encoding="uint8", size=8, split="train")
    ds = PackedDataset(path)
    first = ds[0][0].clone()
    travelling = pickle.dumps(ds)
    packstore.convert(png_folder, path, encoding="uint8", size=8, split="val", overwrite=True)
    assert torch.equal(ds[0][0], first)  # still open: it keeps its data
    with pytest.raises(StoreError, match="replaced"):
        pickle.loads(travelling)[0]
    ds.close()
    with pytest.raises(StoreError, match="replaced"):
        ds[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_cuda_that_is_not_there(pack: Pack) -> None:
    with pytest.raises(UsageError, match="no CUDA device"):
        PackedDataset(pack("h5", "uint8"), "val", device="cuda")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_closing_while_others_read_harms_nobody(pack: Pack, suffix: str) -> None:
    ds = PackedDataset(pack(suffix, "original"), "train")
    wanted = [ds[i][0].clone() for i in range(len(ds))]
    wrong: list[BaseException | int] = []
    stop = threading.Event()

    def read() -> None:
        try:
            for i in itertools.cycle(range(len(ds))):
                if stop.is_set():
                    return
                if not torch.equal(ds[i][0], wanted[i]):
                    wrong.append(i)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        ds.close()
        ds[0]
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".h5", ".lmdb", ".pth"])
def test_a_dropped_dataset_lets_its_store_go_at_once(tmp_path: Path, suffix: str) -> None:
    packstore.convert(
        make_folder(tmp_path / "photos"), tmp_path / f"x{suffix}", encoding="uint8", size=8, shard_size=500
    )
    packstore.convert(make_folder(tmp_path / "more"), tmp_path / f"y{suffix}", encoding="uint8", size=8)
    gc.collect()
    gc.disable()
    try:
        for name in ("x", "y"):
            dataset = PackedDataset(tmp_path / f"{name}{suffix}", "train", checksums="auto")
            for _ in range(17):  # of arrays one in sixteen reads is checked
                dataset[0], dataset[1:3], dataset.targets
            reader = weakref.ref(dataset.reader.unchecked_reader)
            del dataset
            assert reader() is None
    finally:
        gc.enable()
