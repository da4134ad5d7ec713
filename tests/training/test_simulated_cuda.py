"""The loader by the rules of a CUDA device, on a simulated one; and that the simulation notices what breaks them."""

from __future__ import annotations

import gc
import importlib
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import packstore
from packstore import DecodeError, PackedDataset, PackedLoader, prefetch
from packstore import augment as A  # noqa: N812
from tests.conftest import ROOT, Simulate
from tests.internals import BatchJob, BenchOptions, CudaTransport, bench, find_tensors, transport_to
from tests.makers.batches import go_on, same
from tests.makers.datasets import make_cifar10, make_folder
from tests.makers.simulated_cuda import NONSENSE, Simulation, check_waits
from tests.makers.stores import damage
from tests.makers.typed import COLUMNS, make_typed

pytestmark = pytest.mark.slow

HERE = torch.device("cuda", 0)
SHIFT = [A.RandomCrop(32, padding=4), A.RandomHorizontalFlip(), A.Cutout(8)]


@pytest.fixture(params=["late", "backwards", "ahead", 3])
def device(request: pytest.FixtureRequest, simulate: Simulate) -> Iterator[Simulation]:
    with simulate(request.param) as simulation:
        yield simulation


@pytest.fixture
def late(simulate: Simulate) -> Iterator[Simulation]:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device: nothing is simulated")
    with simulate("late") as simulation:
        yield simulation


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stores")
    packstore.convert(make_folder(root / "photos", per_class=7), root / "x.lmdb")
    packstore.convert(root / "photos", root / "ragged.lmdb", encoding="uint8", max_side=64)
    cifar = make_cifar10(root / "cifar", per_batch=300)
    packstore.convert(cifar, root / "x.pth", encoding="uint8")
    packstore.convert(cifar, root / "x.h5", encoding="float16")
    return root


def on(root: Path, name: str, batch_size: int = 7, **options: Any) -> PackedLoader:
    return PackedLoader(PackedDataset(root / name, "train", device=HERE), batch_size, **options)


def both(path: Path, batch_size: int, split: str | None = "train", columns: Any = None, **options: Any) -> Any:
    """The same loader on the device, and on the CPU; of dicts, if ``columns`` are named."""
    named = {} if columns is None else {"columns": columns, "output": "dict"}
    return [PackedLoader(PackedDataset(path, split, device=d, **named), batch_size, **options) for d in (HERE, "cpu")]


# The simulation itself ------------------------------------------------------------------------------------------------


def test_it_computes_what_the_cpu_does(device: Simulation) -> None:
    x = torch.arange(24, dtype=torch.float32).view(2, 3, 4)
    y = x.to(HERE)
    assert y.device == HERE
    for function in (
        lambda t: t * 2 + 1,
        lambda t: t.permute(2, 0, 1).contiguous().clamp(3, 9)[1:, :, ::2],
        lambda t: torch.matmul(t, t.mT).round_(),
        lambda t: torch.where(t > 5, t.flip(-1), t),
        lambda t: t.to(torch.uint8).index_select(1, torch.ones(2, dtype=torch.int64, device=t.device)),
        lambda t: torch.cat([t, torch.full((1, 3, 4), 7.5, device=t.device)]).cumsum(0),
        lambda t: t[t > 7],
        lambda t: t.clone().masked_fill_(t == 3, -1),
    ):
        assert torch.equal(function(y).cpu(), function(x))
    assert int(y.sum()) == int(x.sum())
    assert y.tolist() == x.tolist()


def test_it_refuses_tensors_of_two_devices(device: Simulation) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=HERE) + torch.ones(3)


def test_a_stream_that_does_not_wait_reads_nonsense(late: Simulation) -> None:
    other: Any = torch.cuda.Stream(HERE)
    with torch.cuda.stream(other):
        there = torch.ones(100, dtype=torch.uint8).pin_memory().to(HERE, non_blocking=True)
    assert (there + 0).unique().tolist() != [1]
    late.default.wait_stream(other)
    assert there.unique().tolist() == [1]


def test_a_page_locked_buffer_is_read_when_the_copy_is_done(late: Simulation) -> None:
    buffer, plain = torch.ones(100, dtype=torch.uint8).pin_memory(), torch.ones(100, dtype=torch.uint8)
    there, other = buffer.to(HERE, non_blocking=True), plain.to(HERE, non_blocking=True)
    buffer.fill_(2)
    plain.fill_(2)
    assert there.unique().tolist() == [2]
    assert other.unique().tolist() == [1]


@pytest.mark.parametrize("recorded", [True, False])
def test_memory_that_another_stream_reads_is_given_away_unless_that_is_recorded(
    late: Simulation, recorded: bool
) -> None:
    other: Any = torch.cuda.Stream(HERE)
    with torch.cuda.stream(other):
        first = torch.full((100,), 1.0, device=HERE)
    late.default.wait_stream(other)
    total = first.sum()
    if recorded:
        first.record_stream(torch.cuda.current_stream(HERE))
    del first
    gc.collect()
    with torch.cuda.stream(other):
        second = torch.full((100,), 2.0, device=HERE)
    other.synchronize()
    assert (float(total) == 100) == recorded
    assert float(second.cpu().sum()) == 200


def test_new_memory_holds_nonsense(late: Simulation) -> None:
    assert torch.empty(9, dtype=torch.uint8, device=HERE).tolist() == [NONSENSE] * 9


# The loader -----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize(
    ("name", "augment", "resident"),
    [
        ("x.lmdb", [A.RandomResizedCrop(32), A.RandomHorizontalFlip()], False),
        ("ragged.lmdb", [A.RandomResizedCrop(32), A.RandomHorizontalFlip()], False),
        ("x.pth", SHIFT, False),
        ("x.pth", [A.RandomHorizontalFlip(), A.Resize(20)], False),
        ("x.pth", [A.RandomHorizontalFlip(), A.RandomResizedCrop(20)], False),
        ("x.h5", [A.CenterCrop(16)], False),
        ("x.h5", SHIFT, False),
        ("x.h5", SHIFT, True),
        ("x.pth", SHIFT, True),
        ("x.pth", [], True),
    ],
)
def test_the_host_never_waits(root: Path, device: Simulation, name: str, augment: list[Any], resident: bool) -> None:
    normalize = None if name == "x.h5" else "imagenet"
    size = 5 if name.endswith(".lmdb") else 300
    options: dict[str, Any] = {"normalize": normalize, "dtype": torch.float16}
    check_waits(device, on(root, name, size, augment=augment, resident=resident, **options))


DRAWN = {
    "colours": {"augment": [A.ColorJitter(0.4, 0.4, 0.4, 0.1), A.RandomErasing(1.0), A.GaussianBlur(5), A.AugMix()]},
    "noise": {"augment": [A.RandomErasing(1.0, value="random"), A.RandomChannelPermutation()]},
    "mixup": {"mix": A.MixUp()},
    "cutmix": {"mix": A.BatchMixer([A.MixUp(), A.CutMix()], mode="elem")},
    "views": {
        "views": {"large": (2, [A.CenterCrop(16), A.GaussianBlur(5)]), "small": [A.CenterCrop(8), A.RandAugment()]}
    },
}


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("name", DRAWN)
def test_the_host_never_waits_for_what_it_draws(root: Path, device: Simulation, name: str, resident: bool) -> None:
    options: dict[str, Any] = {"resident": resident, "indices": range(20), "normalize": "cifar10", **DRAWN[name]}
    check_waits(device, on(root, "x.pth", 6, **options), staged=None)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "indices": range(3, 1100)}, {}])
@pytest.mark.parametrize("ranks", [{}, {"rank": 1, "world_size": 2}])
def test_the_order_of_a_resident_epoch_is_worked_out_there(
    root: Path, device: Simulation, options: dict[str, Any], ranks: dict[str, Any]
) -> None:
    there, here = both(root / "x.pth", 64, resident=True, **options, **ranks)
    assert len(here.dataset) == 1500
    for _ in range(2):
        assert same(there, here)
    assert same(go_on(there, there, 5), go_on(here, here, 5))
    check_waits(device, there, 12)  # the walk of the permutation, once an epoch: three for each of its few rounds


def test_a_resident_batch_costs_few_launches(root: Path, device: Simulation) -> None:
    """Each takes the host some 5 µs, and there are a hundred batches in a CIFAR epoch of 50,000."""
    loader = on(root, "x.pth", 64, resident=True, shuffle=True, augment=SHIFT, normalize="cifar10", dtype=torch.float16)
    batches = iter(loader)
    next(batches)
    assert device.launched < 400  # for all of them
    for _batch in batches:
        device.launched = 0
        if next(batches, None) is not None:
            assert device.launched == 2  # images, labels


def test_damaged_records_are_left_out_there(root: Path, device: Simulation, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    shutil.copy(root / "x.pth", path)
    damage(path, [5, 900], ["label"], record=64)
    there, here = map(list, both(path, 64, shuffle=True, resident=True, on_error="skip"))
    assert sum(len(labels) for _, labels in here) == 1497
    assert same(there, here)


def test_resident_batches_share_no_memory(root: Path, device: Simulation) -> None:
    """Or one would keep all of them, and what is done to it in place would count for all."""
    loader = on(root, "x.pth", 64, resident=True, normalize="cifar10")
    first, second = (images for _, (images, _) in zip(range(2), loader, strict=False))
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    assert first.untyped_storage().nbytes() == first.nbytes


def test_what_enlarges_is_done_for_fewer_at_once(
    root: Path, device: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packstore.training.loader.resident._PIXELS_AT_ONCE, "cuda", 64 * 96 * 96)
    peaks = []
    for augment in ([A.Resize(96)], [A.Resize(96), A.CenterCrop(32)], [A.CenterCrop(32)]):
        loader = on(root, "x.pth", 8, resident=True, augment=augment, normalize="cifar10")
        next(iter(loader))
        before = device.peak = device.allocated
        for number, _batch in enumerate(loader):
            if number == 20:
                break
        peaks.append(device.peak - before)
    a_chunk = 64 * 96 * 96 * 3 * 4
    assert max(peaks) < 6 * a_chunk  # of 1,500 images of 96 x 96, resized in float32, it would be 150


@pytest.mark.parametrize("encoding", ["original", "uint8"])
def test_columns_of_every_type_come_with_the_images(tmp_path: Path, device: Simulation, encoding: str) -> None:
    names = [column.name for column in COLUMNS]
    made = make_typed(tmp_path / "a.h5", names, 9, size=(44, 52), encoding=encoding)
    forms: dict[str, Any] = dict.fromkeys(("caption", "weight", "depth"), "optional")
    forms |= {"labels": "padded", "tags": "multi_hot"}
    options: dict[str, Any] = {
        "augment": [A.RandomCrop(30), A.RandomHorizontalFlip()],
        "collate": forms,
        "shuffle": True,
    }
    there, here = both(made.path, 4, None, ("image", *names, "key"), normalize="imagenet", **options)
    batches = list(there)
    assert same(batches, here, 1e-5)
    assert {tensor.device for batch in batches for tensor in find_tensors(batch) or ()} == {HERE}
    check_waits(device, there)


@pytest.mark.parametrize("form", ["list", "padded", "one size", "mosaic"])
def test_images_that_differ_in_size_come_as_on_the_cpu(tmp_path: Path, device: Simulation, form: str) -> None:
    names = ("mask", "boxes", "labels", "image_id")
    made = make_typed(tmp_path / "a.h5", names, 9)
    ops = [A.RandomZoomOut(7), A.RandomIoUCrop(), A.RandomHorizontalFlip()]
    options: dict[str, Any] = {"augment": [*ops, A.Resize((40, 30))] if form == "one size" else ops, "shuffle": True}
    options |= {"collate": {"image": form} if form in ("list", "padded") else None, "normalize": "imagenet"}
    options["mix"] = A.Mosaic(64) if form == "mosaic" else None
    there, here = both(made.path, 4, None, ("image", *names), **options)
    assert same(there, here, 1e-5)
    check_waits(device, there, 99 if form == "mosaic" else 0)  # which of its boxes are left decides on shapes


@pytest.mark.sampled(1, per="each")
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("each", ["batch", "chunk", "epoch"])
@pytest.mark.parametrize("normalize", [None, "cifar10"])
def test_streams_that_change_from_batch_to_batch(
    root: Path, device: Simulation, resident: bool, each: str, normalize: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or from chunk to chunk, or from epoch to epoch: what one has made the others read when it is done, no earlier."""
    # Every third batch is the first of a chunk, and comes on the same stream as that of the chunk before.
    monkeypatch.setitem(packstore.training.loader.resident._PIXELS_AT_ONCE, "cuda", 300 * 32 * 32)
    options: dict[str, Any] = {"augment": [A.RandomHorizontalFlip()], "normalize": normalize, "resident": resident}
    loader, cpu = both(root / "x.pth", 100, **options)
    expected = [images.double().mean() for images, _ in cpu]
    streams: list[Any] = [torch.cuda.Stream(HERE) for _ in range(3)]
    means = []
    for epoch in range(2):
        loader.set_epoch(0)
        batches = iter(loader)
        for number in range(len(loader)):
            with torch.cuda.stream(streams[{"batch": number, "chunk": number // 3, "epoch": epoch}[each] % 3]):
                means.append(next(batches)[0].double().mean())
    torch.cuda.synchronize()
    assert [float(mean) for mean in means] == pytest.approx([float(mean) for mean in expected] * 2, abs=1e-6)


def test_what_a_transform_uses_may_have_been_made_just_now(root: Path, device: Simulation) -> None:
    expected = [2 * images.float() for images, _ in PackedLoader(PackedDataset(root / "x.pth", "train"), 64)]
    factor = torch.full((1, 3, 1, 1), 2.0, device=HERE)
    loader = on(root, "x.pth", 64, resident=False, transform=lambda images: images * factor)
    assert all(torch.equal(x.cpu(), y) for (x, _), y in zip(loader, expected, strict=True))


def test_a_batch_that_was_sent_early_in_another_mode_is_made_again(
    root: Path, device: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sent(monkeypatch)
    seen = []

    def transform(images: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return images

    batches = iter(on(root, "x.lmdb", 5, augment=[A.CenterCrop(8)], transform=transform))
    with torch.no_grad():
        first, _ = next(batches)
    second, _ = next(batches)
    assert seen == [False, False, True, True]  # the first, the second early, the second again, the third early
    assert not torch.equal(first.cpu(), second.cpu())
    with torch.inference_mode():
        assert next(batches)[0].is_inference()


@pytest.mark.parametrize(("error", "call"), [(KeyboardInterrupt, 3), (torch.OutOfMemoryError, 2)])
def test_an_early_batch_that_fails_is_not_lost(
    root: Path, device: Simulation, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], call: int
) -> None:
    """Ctrl-C ends the epoch after the batch before. Memory that is short for an early batch may do in its turn."""
    Sent(monkeypatch)
    calls = []

    def transform(images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        if len(calls) == call:
            raise error
        return images

    loader = on(root, "x.lmdb", 5, augment=[A.CenterCrop(8)], transform=transform)
    if error is torch.OutOfMemoryError:
        assert len(list(loader)) == len(loader)
        return
    given: list[Any] = []
    with pytest.raises(error):
        given.extend(loader)
    assert len(given) == 1
    assert loader.state_dict()["records"] == loader.batch_size


def test_a_loader_that_was_used_travels_without_tensors_of_the_device(root: Path, device: Simulation) -> None:
    for name, resident in (("x.pth", True), ("x.pth", False)):
        loader = on(root, name, 64, resident=resident, normalize="cifar10")
        next(iter(loader))
        assert len(pickle.loads(pickle.dumps(loader))) == len(loader)
    batches = prefetch([torch.ones(1, 3, 2, 2)], HERE, normalize="imagenet")
    (found,) = batches
    (again,) = pickle.loads(pickle.dumps(batches))
    assert torch.equal(again.cpu(), found.cpu())


def test_keys_come_with_resident_batches(root: Path, device: Simulation) -> None:
    there, here = both(root / "x.pth", 64, columns=("image", "key"), resident=True, shuffle=True)
    assert same(there, here)


class Sent:
    """Counts what is sent, and lets a batch that may be sent early be ready for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        send, early = CudaTransport.send, BatchJob.send_early

        def counted(transport: CudaTransport, *args: Any) -> Any:
            self.count += 1
            return send(transport, *args)

        def when_ready(job: BatchJob, ring: Any) -> None:
            job._wait_for_slices()
            early(job, ring)

        monkeypatch.setattr(CudaTransport, "send", counted)
        monkeypatch.setattr(BatchJob, "send_early", when_ready)


def test_a_batch_that_is_ready_travels_while_the_model_works_on_the_one_before(
    root: Path, device: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent(monkeypatch)
    loader = on(root, "x.lmdb", 5, augment=[A.RandomResizedCrop(16)])
    for given, _batch in enumerate(loader, 1):
        assert sent.count == min(given + 1, len(loader))


def test_an_error_of_a_batch_that_was_sent_early_comes_in_its_turn(
    tmp_path: Path, device: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "photos")
    victim = sorted(p for p in (folder / "train").rglob("*") if p.is_file())[6]
    victim.write_bytes(victim.read_bytes()[:60])
    packstore.convert(folder, tmp_path / "x.lmdb", check="none")
    Sent(monkeypatch)
    given = []
    with pytest.raises(DecodeError, match="record 6 "):
        given.extend(len(labels) for _, labels in on(tmp_path, "x.lmdb", 2, augment=[A.RandomResizedCrop(16)]))
    assert given == [2, 2, 2]

    def broken(images: torch.Tensor) -> torch.Tensor:
        if len(images) == 2:
            raise ValueError("two alone")
        return images

    given = []
    with pytest.raises(ValueError, match="two alone"):
        given.extend(
            len(labels) for _, labels in on(tmp_path, "x.lmdb", 5, on_error="skip", augment=[A.CenterCrop(8), broken])
        )
    assert given == [5, 4]  # of twelve, one is skipped and two are left


@dataclass
class Sample:
    """A stranger to the loader."""

    images: torch.Tensor
    note: torch.Tensor


@pytest.mark.parametrize("resident", [True, False])
def test_what_a_transform_returns_need_not_be_tensors_of_the_device(
    root: Path, device: Simulation, resident: bool
) -> None:
    """Also where nobody knows which tensors are in it, they are ready, and their memory is not given away."""

    def transform(images: torch.Tensor) -> Sample:
        return Sample(images.float().mul(2), torch.ones(3))

    cpu = PackedLoader(PackedDataset(root / "x.pth", "train", device="cpu"), 64, resident=resident)
    expected = [images.double().mul(2).sum() for images, _ in cpu]
    sums = []
    for sample, _labels in on(root, "x.pth", 64, resident=resident, transform=transform):
        sums.append(sample.images.double().sum())
        del sample
    assert [float(s) for s in sums] == [float(s) for s in expected]
    pairs = on(root, "x.pth", 64, resident=resident, transform=lambda images: {"x": images, "host": torch.ones(2)})
    for (batch, _), (images, _) in zip(pairs, cpu, strict=True):
        assert batch["host"].device.type == "cpu"
        assert torch.equal(batch["x"].cpu(), images)


# prefetch -------------------------------------------------------------------------------------------------------------


def test_prefetch_of_batches_that_are_there_already(device: Simulation) -> None:
    def batches() -> Iterator[Any]:
        for number in range(6):
            images = torch.full((2, 3, 4, 4), number, dtype=torch.uint8, device=HERE)
            yield images, torch.tensor([number, number]).pin_memory()
            del images

    found = list(prefetch(batches(), HERE))
    assert [(x.unique().tolist(), y.tolist()) for x, y in found] == [([n], [n, n]) for n in range(6)]
    means = [float(x.mean()) for x, _ in prefetch(batches(), HERE, normalize="imagenet")]
    expected = [float(x.mean()) for x, _ in prefetch(((x.cpu(), y) for x, y in batches()), "cpu", normalize="imagenet")]
    assert means == pytest.approx(expected, abs=1e-6)


def test_prefetch_has_one_stream(device: Simulation) -> None:
    loader = prefetch([torch.ones(2).pin_memory()], HERE)
    for _ in range(5):
        list(loader)
    assert len(device.streams) == 2


def test_prefetch_keeps_what_is_no_tensor_and_does_not_wait(device: Simulation) -> None:
    note = object()
    batches = [{"x": torch.full((2, 3, 4, 4), float(n)).pin_memory(), "note": note} for n in range(6)]
    loader = prefetch(batches, HERE, normalize="imagenet")
    check_waits(device, loader)
    assert same(loader, prefetch(batches, "cpu", normalize="imagenet"), 1e-5)


def test_the_copy_stream_follows_the_consumer_only_where_it_must(root: Path, device: Simulation) -> None:
    plain = on(root, "x.pth", 64, resident=False)
    list(plain)
    transport = plain._producer.transport
    assert transport.followed is None
    assert transport_to(torch.device("cuda")).device == HERE


@pytest.mark.parametrize("name", ["x.lmdb", "x.pth"])
def test_bench_on_the_device(root: Path, device: Simulation, name: str) -> None:
    report = bench(root / name, BenchOptions(seconds=0.01, batch_size=8, device="cuda:0", split="train", tries=False))
    stages = {stage.name: stage for stage in report.stages}
    assert stages["copy"].note == "page-locked memory to the GPU"
    assert report.verdict.stage in {*stages, "loader"}


def test_the_measuring_script_runs(
    root: Path, device: Simulation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``tools/bench/gpu.py``: what it prints here means nothing, but where there is a device it should not fail."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "bench"))
    gpu = importlib.import_module("gpu")
    options = {"images": root / "photos", "cifar": root / "cifar", "repeats": 1, "batches": 3, "size": 16, "width": 8}
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    gpu.main([*arguments, "--batch-size", "4", "--models"])
    printed = capsys.readouterr().out
    for row in ("crop, flip, float16", "the ring", "streaming from the store", "the loader's, item()"):
        assert f"| {row} |" in printed
