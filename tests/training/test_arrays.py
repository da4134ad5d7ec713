"""Batches of numpy arrays, the dtype of images, and datasets as sources of grain and torchdata's nodes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import packstore
from packstore import PackedDataset, PackedLoader, UsageError
from packstore.augment import CenterCrop, Pad, RandomHorizontalFlip, RandomResizedCrop
from tests.makers.batches import same
from tests.makers.datasets import make_cifar10, make_folder
from tests.makers.images import encode, picture
from tests.makers.torchvision import import_torchvision


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("arrays")
    packstore.convert(make_folder(root / "photos"), root / "files.lmdb")
    for encoding in ("uint8", "float16", "bfloat16"):
        packstore.convert(make_cifar10(root / encoding), root / f"{encoding}.pth", encoding=encoding)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("encoding", ["uint8", "float16", "bfloat16"])
def test_arrays_hold_what_tensors_hold(packed: Path, encoding: str, resident: bool, channels_last: bool) -> None:
    ds = PackedDataset(packed / f"{encoding}.pth", "train", columns=("image", "label", "key"))
    options: dict[str, Any] = {"shuffle": True, "augment": RandomHorizontalFlip(), "resident": resident}
    tensors = PackedLoader(ds, 16, **options)
    arrays = PackedLoader(ds, 16, channels_last=channels_last, output="numpy", **options)
    for (images, *values), (found, *others) in zip(tensors, arrays, strict=True):
        assert isinstance(found, np.ndarray)
        assert isinstance(others[0], np.ndarray)
        assert found.flags.writeable
        assert found.flags.c_contiguous
        expected = images.float() if encoding == "bfloat16" else images
        assert same((found.transpose(0, 3, 1, 2) if channels_last else found, *others), (expected, *values))


@pytest.mark.slow
def test_kept_batches_stay_as_they_are(packed: Path) -> None:
    """Memory of the ring is used again, but only when no array lies in it any more."""
    ds = PackedDataset(packed / "files.lmdb", "train")
    options: dict[str, Any] = {"augment": RandomResizedCrop(24), "normalize": "imagenet", "prefetch": 2}
    kept, copies = [], []
    gc.collect()
    gc.freeze()  # what is there is no garbage, and need not be looked through again
    for _ in range(4):
        for images, _ in PackedLoader(ds, 2, output="numpy", **options):
            kept.append(images[1:])  # a view keeps the memory, too
            copies.append(images[1:].copy())
            del images
            gc.collect()
    assert len(kept) > 20
    assert all(map(np.array_equal, kept, copies))


def test_lists_and_tuples_and_dicts(tmp_path: Path) -> None:
    labels = packstore.Labels(classes=["x", "y"], of=False)
    fields = {"image": packstore.Image("uint8"), "tags": labels, "boxes": packstore.Boxes()}
    with packstore.Writer(tmp_path / "a.lmdb", fields) as writer:
        for i in range(4):
            boxes = np.ones((i, 4), np.float32) * [[0, 0, 4, 4]]
            writer.add(key=str(i), image=np.full((8, 8, 3), i, np.uint8), tags=[0, 1][:i], boxes=boxes)
    ds = PackedDataset(tmp_path / "a.lmdb", output="dict", columns=("image", "tags", "boxes"))
    (batch,) = PackedLoader(ds, 4, output="numpy", collate={"tags": "padded"})
    assert [len(boxes) for boxes in batch["boxes"]] == [0, 1, 2, 3]
    assert all(isinstance(boxes, np.ndarray) and boxes.dtype == np.float32 for boxes in batch["boxes"])
    assert batch["tags"].values.tolist() == [[0, 0], [0, 0], [0, 1], [0, 1]]
    assert batch["tags"].lengths.tolist() == [0, 1, 2, 2]
    assert isinstance(batch["tags"].lengths, np.ndarray)
    alone = PackedDataset(tmp_path / "a.lmdb", columns=("image",))
    (images,) = PackedLoader(alone, 4, output="numpy", channels_last=True)
    assert images.shape == (4, 8, 8, 3)
    assert images[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_what_gives_no_arrays_is_refused(packed: Path) -> None:
    ds = PackedDataset(packed / "uint8.pth", "train")
    with pytest.raises(UsageError, match="output should be 'tensor' or 'numpy', got 'np'"):
        PackedLoader(ds, output="np")
    with pytest.raises(UsageError, match="output='numpy' gives arrays on the CPU"):
        PackedLoader(PackedDataset(packed / "uint8.pth", "train", device="meta"), output="numpy")
    with pytest.raises(UsageError, match="output='numpy' for arrays, instead of the dataset"):
        PackedLoader(PackedDataset(packed / "uint8.pth", "train", output="numpy"))


@pytest.mark.slow
def test_a_dataset_is_a_source_of_grain(packed: Path) -> None:
    grain = pytest.importorskip("grain.python")
    ds = PackedDataset(packed / "uint8.pth", "train", output="numpy")
    assert isinstance(ds, grain.RandomAccessDataSource)
    loader = grain.MapDataset.source(ds).shuffle(seed=1).batch(10).to_iter_dataset()
    labels = [label for _, batch in loader for label in batch.tolist()]
    assert sorted(labels) == sorted(ds.targets)


@pytest.mark.slow
def test_a_dataset_goes_into_nodes_of_torchdata(packed: Path) -> None:
    nodes = pytest.importorskip("torchdata.nodes")
    ds = PackedDataset(packed / "uint8.pth", "train")
    sampler = torch.utils.data.SequentialSampler(ds)
    loader = nodes.Loader(nodes.Batcher(nodes.MapStyleWrapper(ds, sampler), 10, drop_last=False))
    assert [label for batch in loader for _, label in batch] == ds.targets


# Dtypes -----------------------------------------------------------------------------------------------------------

EXPECTED = {
    "original": torch.uint8,
    "jpeg": torch.uint8,
    "uint8": torch.uint8,
    **dict.fromkeys(("float32", "float16", "bfloat16"), torch.float32),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of each encoding."""
    path = tmp_path_factory.mktemp("dtypes")
    samples = [{"key": str(n), "image": encode(picture("RGB", 16, 16, n), "JPEG"), "label": n % 2} for n in range(6)]
    for encoding in EXPECTED:
        options: dict[str, Any] = {"normalize": "imagenet"} if "float" in encoding else {}
        if encoding != "original":
            options["size"] = 16
        packstore.convert(samples, path / f"{encoding}.h5", encoding=encoding, **options)
    return path


WAYS: dict[str, dict[str, Any]] = {
    "streaming": {"resident": False},
    "resident": {"resident": True},
    "channels-last": {"channels_last": True},
    "list": {"collate": {"image": "list"}},
    "padded": {"collate": {"image": "padded"}},
    "views": {"views": {"a": (2, [CenterCrop(8)])}},
    "crop": {"augment": [CenterCrop(12), RandomHorizontalFlip()]},
    "batches": {"augment": [Pad(2, fill=3), CenterCrop(18)]},
}


def image_of(batch: Any) -> torch.Tensor:
    images = batch[0]["a"] if isinstance(batch[0], dict) else batch[0]
    found: torch.Tensor = images if isinstance(images, torch.Tensor) else images[0]
    return found


@pytest.mark.parametrize("encoding", EXPECTED)
def test_items_and_slices(root: Path, encoding: str) -> None:
    dataset, expected = PackedDataset(root / f"{encoding}.h5"), EXPECTED[encoding]
    for image in (dataset[0][0], dataset[0:4][0], dataset[[2, 1]][0], next(iter(DataLoader(dataset, 3)))[0]):
        assert image.dtype == expected
    import_torchvision()
    for output in ("dict", "tv_tensors"):
        item = PackedDataset(root / f"{encoding}.h5", output=output)[0]
        assert (item["image"] if output == "dict" else item[0]).dtype == expected


@pytest.mark.parametrize("encoding", EXPECTED)
@pytest.mark.parametrize("way", WAYS)
def test_batches_have_the_dtype_of_items(root: Path, encoding: str, way: str) -> None:
    if way == "resident" and encoding in ("original", "jpeg"):
        return  # files are not resident
    dataset = PackedDataset(root / f"{encoding}.h5")
    assert image_of(next(iter(PackedLoader(dataset, 4, **WAYS[way])))).dtype == dataset[0][0].dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert image_of(next(iter(PackedLoader(dataset, 4, dtype=dtype, **WAYS[way])))).dtype == dtype


@pytest.mark.parametrize("encoding", ["float32", "float16", "bfloat16", "uint8"])
def test_results_of_functions_keep_their_dtype(root: Path, encoding: str) -> None:
    dataset = PackedDataset(root / f"{encoding}.h5")
    for function in (lambda images: images.to(torch.int64), lambda images: images.double()):
        expected = function(torch.zeros(1)).dtype
        for options in ({"augment": function}, {"pre_transform": function}):
            assert next(iter(PackedLoader(dataset, 4, **options)))[0].dtype == expected
