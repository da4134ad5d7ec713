"""``PackedLoader``: threads, memory, options, and what happens when things go wrong."""

from __future__ import annotations

import gc
import itertools
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import packstore
from packstore import DecodeError, PackedDataset, PackedLoader, UsageError
from packstore import augment as A  # noqa: N812
from tests.conftest import Stores
from tests.internals import (
    Assembler,
    BatchJob,
    Crops,
    DrawnLook,
    Look,
    RowFormat,
    make_single_threaded,
    resize_by_products,
    single_threaded,
)
from tests.makers.batches import FIXED, RAGGED, same
from tests.makers.datasets import write_image


def loader_threads() -> list[str]:
    """Those that ask object stores stay, for the next requests."""
    names = [t.name for t in threading.enumerate() if t.name.startswith("packstore")]
    return [name for name in names if name != "packstore-request"]


@pytest.mark.slow
def test_nothing_holds_the_first_batch_back(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, others = [], threading.Event()
    prepare = Assembler.plan_batch

    def watched(self: Assembler, *arguments: Any, **options: Any) -> Any:
        begun.append(len(begun))
        if len(begun) > 1:
            others.set()
            return prepare(self, *arguments, **options)
        prepared = prepare(self, *arguments, **options)
        assert not others.wait(0.2)
        return prepared

    monkeypatch.setattr(Assembler, "plan_batch", watched)
    for _ in PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 2, resident=False, augment=RAGGED, workers=3):
        pass
    assert len(begun) > 3


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["break", "forgotten", "exception"])
def test_an_iterator_that_ends_early_leaves_no_thread(stores: Stores, ending: str) -> None:
    loader = PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 2, augment=RAGGED, workers=3)

    def train() -> None:
        for _ in loader:
            raise KeyboardInterrupt

    if ending == "exception":
        with pytest.raises(KeyboardInterrupt):
            train()
    elif ending == "forgotten":
        iterator = iter(loader)
        next(iterator)
        assert loader_threads() != []
        del iterator
    else:
        for _ in range(5):
            for _ in loader:
                break
    gc.collect()
    assert loader_threads() == []


def test_several_iterations_at_once(stores: Stores) -> None:
    loader = PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, augment=RAGGED)
    wanted, iterators = list(loader), []
    for _ in range(2):
        loader.set_epoch(0)
        iterators.append(iter(loader))
    for one, two, batch in zip(*iterators, wanted, strict=True):
        assert same((one, two), (batch, batch))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Twelve images, of which two do not decode."""
    for i in range(12):
        write_image(tmp_path / "photos" / f"{i:02}.png", 40, 50, i)
    for i in (4, 9):
        data = bytearray((tmp_path / "photos" / f"{i:02}.png").read_bytes())
        data[len(data) // 2] ^= 0xFF
        (tmp_path / "photos" / f"{i:02}.png").write_bytes(data)
    packstore.convert(tmp_path / "photos", tmp_path / "d.lmdb")
    return tmp_path / "d.lmdb"


@pytest.mark.slow
def test_a_record_that_does_not_decode_is_named(damaged: Path) -> None:
    loader = PackedLoader(PackedDataset(damaged), 2, augment=RAGGED)
    seen = []
    with pytest.raises(DecodeError, match=r"record 4 \(04\.png\)"):
        seen += [len(images) for images in loader]
    gc.collect()
    assert loader_threads() == []


def test_skip_leaves_it_out_and_counts_it(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    ds = PackedDataset(damaged, columns=("image", "key"))
    loader = PackedLoader(ds, 4, augment=RAGGED, on_error="skip")
    batches = list(loader)
    assert [len(images) for images, _ in batches] == [4, 3, 3]
    assert [k for _, keys in batches for k in keys] == [k for k in ds.keys if k not in ("04.png", "09.png")]
    assert loader.stats()["skipped"] == 2
    assert "record 4 (04.png)" in caplog.text
    clean = [i for i in range(12) if i not in (4, 9)]
    wanted = PackedLoader(ds, 4, augment=RAGGED, indices=clean)
    assert torch.equal(torch.cat([i for i, _ in batches]), torch.cat([i for i, _ in wanted]))


@pytest.mark.parametrize("augment", [[], [A.RandomHorizontalFlip()]])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("kind", ["files", "pixels"])
def test_images_of_differing_sizes_make_no_batch(
    stores: Stores, kind: str, on_error: Literal["raise", "skip"], augment: list[Any]
) -> None:
    loader = PackedLoader(PackedDataset(stores(f"{kind}.lmdb"), "train"), 64, augment=augment, on_error=on_error)
    with pytest.raises(UsageError, match=r"differ in size \(\d+x\d+, \d+x\d+\), so they make no batch: begin augment="):
        list(loader)


def test_images_of_differing_sizes_need_an_operation(stores: Stores) -> None:
    with pytest.raises(UsageError, match="RandomResizedCrop"):
        list(PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4))
    with pytest.raises(UsageError, match=r"collate={'image': 'list'}"):
        list(PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, augment=[A.Resize(20)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"prefetch": 0}, "prefetch"),
        ({"workers": 0}, "workers"),
        ({"resident": "maybe"}, "resident"),
        ({"on_error": "ignore"}, "on_error"),
        ({"dtype": torch.uint8}, "floating point"),
        ({"dtype": "float16"}, "torch.float16"),
        ({"normalize": "mnist"}, "imagenet, cifar10"),
        ({"sampler": [1], "shuffle": True}, "sampler"),
        ({"block": 4}, "shuffle=True"),
        ({"rank": 1}, "go together"),
        ({"rank": 2, "world_size": 2}, "from 0 to 1"),
        ({"indices": [100]}, "from 0 to 99"),
        ({"indices": [0.5]}, "whole numbers"),
        ({"augment": [3]}, "not callable"),
    ],
)
def test_wrong_options(stores: Stores, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PackedLoader(PackedDataset(stores("cifar.h5"), "train"), **{"batch_size": 4, **options})


def test_datasets_that_work_item_by_item_are_refused(stores: Stores) -> None:
    path = stores("cifar.h5")
    for options in ({"transform": abs}, {"output": "pil"}, {"dtype": torch.float32}, {"columns": ("label",)}):
        with pytest.raises(UsageError):
            PackedLoader(PackedDataset(path, "train", **options), 4)
    with pytest.raises(UsageError, match="normalised already"):
        PackedLoader(PackedDataset(stores("floats.pth"), "train"), 4, normalize="cifar10")


@pytest.mark.parametrize(
    ("size", "augment", "mode", "reason"),
    [
        (64, [], "resident", "free memory of cpu"),
        (64, [A.RandomHorizontalFlip()], "resident", "free memory of cpu"),
        (64, [A.RandomResizedCrop(32)], "resident", "free memory of cpu"),
        (64, [A.RandomCrop(56), A.Resize(32)], "resident", "free memory of cpu"),
        (65, [], "streaming", "12,675 bytes .over 12,288. are faster by streaming"),
        (65, [A.RandomHorizontalFlip()], "streaming", "over 12,288"),
        (65, [A.RandomCrop(65, padding=4)], "streaming", "over 12,288"),
    ],
)
def test_the_cpu_streams_where_that_is_faster(
    tmp_path: Path, size: int, augment: list[Any], mode: str, reason: str
) -> None:
    write_image(tmp_path / "photos" / "a.png", size, size, 0)
    packstore.convert(tmp_path / "photos", tmp_path / "a.pth", encoding="uint8", size=size)
    loader = PackedLoader(PackedDataset(tmp_path / "a.pth"), 1, augment=augment)
    assert loader.mode == mode
    assert re.search(reason, loader.mode_reason)
    assert PackedLoader(PackedDataset(tmp_path / "a.pth"), 1, augment=augment, resident=True).mode == "resident"


def test_resident_that_does_not_fit_says_both_numbers(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packstore.training.loader.division.free_memory", lambda device: 1000)
    ds = PackedDataset(stores("cifar.h5"), "train")
    with pytest.raises(UsageError, match=r"307,200 bytes .* 1,000 are free"):
        PackedLoader(ds, 4, resident=True)
    loader = PackedLoader(ds, 4)
    assert loader.mode == "streaming"
    assert "250 allowed" in loader.mode_reason
    with pytest.raises(UsageError, match="one shape"):
        PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, resident=True)


def test_stats_say_where_the_time_goes(stores: Stores) -> None:
    loader = PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, augment=RAGGED)
    list(loader)
    stats = loader.stats()
    assert stats["images"] == 21
    assert stats["batches"] == 6 == len(loader)
    for name in ("seconds", "images_per_second", "decode_seconds", "read_seconds"):
        assert stats[name] > 0
    loader.reset_stats()
    assert loader.stats()["images"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["files.lmdb", "pixels.h5", "cifar.h5", "floats.pth"])
@pytest.mark.parametrize("resident", [False, "auto"])
def test_in_inference_mode_as_elsewhere(stores: Stores, name: str, resident: Any) -> None:
    """It holds for the consumer's thread alone, and memory that was made in it for no other."""
    augment = RAGGED if name in ("files.lmdb", "pixels.h5") else FIXED
    options: dict[str, Any] = {} if name == "floats.pth" else {"normalize": "imagenet"}
    dataset = PackedDataset(stores(name), "train")
    loader = PackedLoader(dataset, 4, augment=augment, resident=resident, workers=2, **options)
    before = list(loader)
    loader.set_epoch(0)
    with torch.inference_mode():
        inside = list(loader)
    loader.set_epoch(0)
    after = list(loader)
    assert same(before, inside)
    assert same(before, after)
    after[0][0].mul_(2)  # not of inference mode


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("augment", [[], [A.RandomHorizontalFlip()]])
def test_batches_are_the_consumers_to_change(stores: Stores, resident: bool, augment: list[Any]) -> None:
    """Of autograd, too: no batch is a view of something that others are."""
    ds = PackedDataset(stores("bfloats.h5"), "train")
    batches = iter(PackedLoader(ds, 4, resident=resident, augment=augment))
    weights = torch.ones(10, requires_grad=True)
    loss = torch.zeros(())
    for (images, labels), _ in zip(batches, range(4), strict=False):
        images += torch.zeros(1, requires_grad=True).to(images.dtype)
        labels.clamp_(max=8)
        loss = loss + (weights * images.float().mean()).index_select(0, labels).sum()
        assert labels.untyped_storage().nbytes() == labels.nbytes
    loss.backward()
    assert weights.grad is not None


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("where", ["augment", "transform"])
def test_a_view_by_numpy_is_not_written_over(
    stores: Stores, resident: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins where no buffer does."""
    monkeypatch.setitem(packstore.training.loader.resident._PIXELS_AT_ONCE, "cpu", 8 * 32 * 32)

    def view(images: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(images.numpy()[..., 1:, :])

    ds = PackedDataset(stores("cifar.h5"), "train")
    options: dict[str, Any] = {where: [view] if where == "augment" else view}
    kept = [images for images, _ in PackedLoader(ds, 4, resident=resident, **options)]
    plain = [images[..., 1:, :] for images, _ in PackedLoader(ds, 4, resident=resident)]
    assert all(torch.equal(a, b) for a, b in zip(kept, plain, strict=True))


def test_memory_of_one_epoch_serves_the_next(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page of new memory costs a fault: a fifth of the time of small epochs."""
    made: list[int] = []
    take = packstore.training.ring.HostTransport._take_buffer

    def counting(self: Any, nbytes: int) -> Any:
        before = len(self._returned)
        memory = take(self, nbytes)
        made.extend([nbytes] * (len(self._returned) == before))
        return memory

    monkeypatch.setattr(packstore.training.ring.HostTransport, "_take_buffer", counting)
    loader = PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, augment=RAGGED, drop_last=True, prefetch=2)
    batches = 0
    for _ in range(4):
        for images, _ in loader:
            del images
            batches += 1
    assert batches > 12
    assert 1 <= len(made) <= 4  # prefetch + 1 slots, and the batch that the caller had last


def test_block_shuffle_reads_blocks_together(stores: Stores) -> None:
    ds = PackedDataset(stores("cifar.h5"), "train", columns=("image", "key"))
    keys = [k for _, part in PackedLoader(ds, 10, shuffle=True, block=10) for k in part]
    assert sorted(keys) == sorted(ds.keys)
    assert keys != sorted(keys)
    np.testing.assert_array_equal(np.sort([ds.keys.index(k) for k in keys]), np.arange(100))


@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.integers(0, 2**32 - 1),
)
def test_mirrored_before_resizing_or_after_is_the_same(
    size: tuple[int, int], target: tuple[int, int], seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    pixels.flags.writeable = False  # as from a map
    before = pixels.copy()
    rows = np.zeros((2, *target, 3), np.uint8)
    alone = np.zeros_like(rows)
    for row, flip in enumerate((False, True)):
        box, window = np.array([[0, 0, *size]]), np.array([[0, 0, *target]])
        crops = Crops(box, np.array([target]), window, np.array([flip]))
        write_crops(pixels, crops, rows[row : row + 1])
        in_thread(partial(write_crops, pixels, crops, alone[row : row + 1]))
    assert np.array_equal(rows[1], rows[0][:, ::-1])
    assert np.array_equal(alone, rows)
    assert np.array_equal(pixels, before)


@pytest.mark.slow
@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("flip", [True, False])
def test_boxes_and_targets_of_one_pixel_are_resized_like_others(writable: bool, flip: bool) -> None:
    """torch's kernel for bytes asserts or mixes planes up for one pixel's width in other memory layouts."""
    image = np.random.default_rng(1).integers(0, 256, (30, 30, 3), np.uint8)
    image.flags.writeable = writable
    sides = (1, 2, 9)
    for box, target in itertools.product(itertools.product(sides, sides), repeat=2):
        if box == target:
            continue
        window = np.array([[0, 0, *target]] * 2)
        crops = Crops(np.array([[7, 5, *box]] * 2), np.array([target] * 2), window, np.array([flip] * 2))
        found = np.zeros((2, 2, *target, 3), np.uint8)
        write_crops(image, crops, found[0], 1)
        in_thread(partial(write_crops, image, crops, found[1], 1))
        wide = torch.tensor(image[7 : 7 + box[0], 5 : 5 + box[1]]).permute(2, 0, 1)[None]
        expected = resize_by_products(wide, torch.tensor([[0, 0, *box]]), target)[0].permute(1, 2, 0).int().numpy()
        for each in found[:, 1]:
            assert np.abs(each.astype(int) - (expected[:, ::-1] if flip else expected)).max() <= 1, (box, target)
        assert not found[:, 0].any()


def write_crops(pixels: NDArray[np.uint8], crops: Crops, out: NDArray[np.uint8], row: int = 0) -> None:
    """Writes one crop as the threads do that get an image which the engine refuses."""
    look = DrawnLook(Look(RowFormat(torch.uint8, False)), crops, None, torch.from_numpy(out))
    look.write_without_engine(row, pixels)


def in_thread(function: Callable[[], Any]) -> Any:
    """What ``function`` gives in a thread in which torch works alone."""
    with ThreadPoolExecutor(1, initializer=make_single_threaded) as pool:
        return pool.submit(function).result()


ON_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is not known where OpenMP is elsewhere")


@ON_LINUX
def test_torch_works_alone_in_our_threads_and_as_before_in_others() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert in_thread(torch.get_num_threads) == 1
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("openmp", [pytest.param(True, marks=ON_LINUX), False])
def test_torch_works_alone_for_a_while_and_other_threads_as_before(
    openmp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not openmp:
        monkeypatch.setattr("packstore.training.single_threaded._find_openmp_libraries", lambda: ())
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with single_threaded():
            assert torch.get_num_threads() == 1
            with ThreadPoolExecutor(1) as pool:
                assert not openmp or pool.submit(torch.get_num_threads).result() == 3
        assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError), single_threaded():
            _ = 1 / 0
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


_LEFT_OPEN = """
import sys, torch
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomResizedCrop
loader = PackedLoader(PackedDataset(sys.argv[1], "train"), 4, resident=sys.argv[2] == "True", workers=2,
                      augment=[RandomResizedCrop(32)])
iterator = torch.kept = iter(loader)  # outlives packstore's modules
if sys.argv[3] != "True":
    del torch.kept
next(iterator)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "resident", "held"), [("files.lmdb", False, False), ("cifar.h5", True, True), ("cifar.h5", False, True)]
)
def test_an_iterator_may_be_left_open_at_exit(stores: Stores, name: str, resident: bool, held: bool) -> None:
    command = [sys.executable, "-c", _LEFT_OPEN, str(stores(name)), str(resident), str(held)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"normalize": "cifar10"}, {"augment": [A.RandomHorizontalFlip(), A.Cutout(4)]}]
)
def test_batches_train_a_plain_model_without_a_warning(stores: Stores, options: Any, resident: bool) -> None:
    """DistributedDataParallel warns of gradients whose strides are not those of their weights."""
    batch, _ = next(iter(PackedLoader(PackedDataset(stores("cifar.h5"), "train"), 4, resident=resident, **options)))
    assert batch.is_contiguous()
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 1))
    model(batch.float()).sum().backward()
    for weight in model.parameters():
        assert weight.grad is not None
        assert weight.grad.stride() == weight.stride()


def test_what_is_no_dataset_of_ours_is_told(stores: Stores) -> None:
    dataset = PackedDataset(stores("cifar.lmdb"), "train")
    both = torch.utils.data.ConcatDataset([dataset, dataset])
    subset = torch.utils.data.Subset(torch.utils.data.Subset(both, [3, 2]), [0])
    for other, named in ((both, "ConcatDataset"), (subset, "a Subset of ConcatDataset"), (str(dataset.path), "str")):
        with pytest.raises(UsageError, match=rf"or a Subset of one, got {named}; packstore\.concat joins"):
            PackedLoader(other, 4)


@pytest.mark.parametrize(("name", "batch_size", "side", "most"), [("cifar.pth", 512, 32, 7), ("files.lmdb", 64, 8, 16)])
def test_small_pixels_are_not_cut_into_slices_for_every_thread(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, name: str, batch_size: int, side: int, most: int
) -> None:
    """A thread that wakes for a hundred kilobytes takes longer to wake than to copy them."""
    slices, fill = [], BatchJob._fill_slice

    def counted(job: BatchJob, *args: Any) -> Any:
        slices.append(job)
        return fill(job, *args)

    monkeypatch.setattr(BatchJob, "_fill_slice", counted)
    dataset = PackedDataset(stores(name), "train")
    repeated = np.resize(np.arange(len(dataset)), batch_size)
    list(PackedLoader(dataset, batch_size, indices=repeated, workers=16, resident=False, augment=[A.RandomCrop(side)]))
    assert 1 < len(slices) <= most
