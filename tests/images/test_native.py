"""The crop in compiled code: the pixels that Python gives, or nothing."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.core.errors import DecodeError
from packstore.images.decoders import get_decoder
from packstore.images.seekable import (
    CropWorker,
    NativeCrops,
    add_index,
    make_crop_worker,
    native,
    native_problem,
    plan_crop,
    plan_crops,
    segments,
    splice,
)
from packstore.training.augment import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from packstore.training.loader.rows import Rows
from tests.makers.jpegs import boxes, cut, noisy
from tests.makers.seekable import files, forged, index_of, save, seekable

Need = Callable[[str, bool], None]
Box = tuple[int, int, int, int]
MAX_PIXELS = 1 << 28
SAMPLINGS = ("gray", "444", "422", "420", "440", "411")
"""Those that TurboJPEG knows."""


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    need: Need = request.getfixturevalue("need")
    need("native", native_problem() is None)


@pytest.fixture(scope="module")
def worker(compiled: None) -> CropWorker:
    worker = make_crop_worker()
    assert worker is not None
    return worker


def crops_of(
    data: Sequence[bytes], wanted: Sequence[Box], mirrored: Sequence[bool] | None = None, max_pixels: int = MAX_PIXELS
) -> NativeCrops:
    areas = np.array(wanted, np.int64).reshape(-1, 4)
    flips = None if mirrored is None else np.array(mirrored, bool)
    return NativeCrops(data, plan_crops([index_of(one) for one in data], areas), areas, flips, max_pixels)


def crop(worker: CropWorker, data: bytes, box: Box, mirrored: bool = False, **options: Any) -> NDArray[np.uint8] | None:
    found = worker.crop(crops_of([data], [box], [mirrored], **options), 0)
    return None if found is None else found.copy()


# Pixels


@given(files(), st.data())
def test_a_crop_has_the_pixels_of_the_whole(case: tuple[bytes, list[Box]], choice: st.DataObject) -> None:
    data, wanted = case
    worker = make_crop_worker()
    assert worker is not None
    mirrored = choice.draw(st.lists(st.booleans(), min_size=len(wanted), max_size=len(wanted)))
    whole = get_decoder("simplejpeg").decode(data)
    crops = crops_of([data] * len(wanted), wanted, mirrored)
    for n, (box, mirror) in enumerate(zip(wanted, mirrored, strict=True)):
        found = worker.crop(crops, n)
        expected = cut(whole, box)
        if found is not None:
            np.testing.assert_array_equal(found, expected[:, ::-1] if mirror else expected)


@pytest.mark.sampled(4, fast=1)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_small_box_is_spliced(worker: CropWorker, sampling: str) -> None:
    data = seekable(70, 100, sampling)
    whole = get_decoder("simplejpeg").decode(data)
    for top in range(0, 70, 3):
        for left in range(0, 100, 3):
            box = (top, left, min(5, 70 - top), min(4, 100 - left))
            crops = crops_of([data], [box])
            assert crops.needs(0)[0] < len(data)
            assert crops.needs(0)[1] < whole.size // 2
            np.testing.assert_array_equal(worker.crop(crops, 0), cut(whole, box))


def test_one_file_leaves_nothing_to_the_next(worker: CropWorker, sample: bytes) -> None:
    """Neither its errors (libjpeg stays in the middle of a header), nor tables that a file without any could use."""
    box = (20, 20, 10, 10)
    good = crop(worker, sample, box)
    doubled = crops_of([sample], [box])
    doubled._kept[1][2][0, 1] = 0  # the tables begin with the file: a second SOI
    assert worker.crop(doubled, 0) is None
    np.testing.assert_array_equal(crop(worker, sample, box), good)
    bare, whole = without(sample, 0xDB), np.array([[0, 0, 90, 130]])
    with pytest.raises(DecodeError):
        get_decoder("simplejpeg").decode(bare)
    assert worker.crop(NativeCrops([bare], plan_crops([index_of(sample)], whole), whole, None, MAX_PIXELS), 0) is None


def without(data: bytes, marker: int) -> bytes:
    """Without the segments of a kind."""
    for segment in reversed(segments(data)):
        if segment.marker == marker:
            data = data[: segment.start] + data[segment.stop :]
    return data


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_box_that_needs_nearly_everything(worker: CropWorker, mirrored: bool) -> None:
    data = seekable(70, 101)
    whole = get_decoder("simplejpeg").decode(data)
    for box in ((0, 0, 70, 101), (1, 1, 68, 99), (0, 2, 70, 99)):
        assert plan_crops([index_of(data)], np.array([box]))[0].height == 0
        expected = cut(whole, box)
        np.testing.assert_array_equal(crop(worker, data, box, mirrored), expected[:, ::-1] if mirrored else expected)


@pytest.mark.slow
def test_metadata_and_several_parts_of_an_index(worker: CropWorker) -> None:
    image = noisy(1500, 3300)
    data = add_index(
        save(
            image,
            quality=50,
            subsampling=0,
            restart_marker_blocks=1,
            comment=b"x" * 3000,
            exif=b"Exif\0\0" + b"e" * 200,
        )
    )
    assert data.count(b"packstore\0") > 1
    whole = get_decoder("simplejpeg").decode(data)
    for box in ((0, 0, 20, 30), (333, 777, 200, 100), (880, 2080, 20, 20)):
        np.testing.assert_array_equal(crop(worker, data, box), cut(whole, box))


@pytest.mark.slow
def test_memory_grows_as_it_has_to(worker: CropWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = make_crop_worker()
    assert fresh is not None
    sizes = [(30, 40), (1300, 900), (30, 40), (40, 30000), (2000, 1500)]
    held = [save(noisy(height, width), quality=90, restart_marker_blocks=1) for height, width in sizes]
    for data in map(add_index, held):
        index = index_of(data)
        height, width = index.height, index.width
        whole = get_decoder("simplejpeg").decode(data)
        for box in ((0, 0, height, width), (1, 1, height * 2 // 3, width * 2 // 3), (0, 0, 9, width)):
            np.testing.assert_array_equal(crop(fresh, data, box, mirrored=True), cut(whole, box)[:, ::-1])
    monkeypatch.setattr(native, "_MOST_BYTES", 1000)
    another = make_crop_worker()
    assert another is not None
    assert crop(another, data, (0, 0, 2000, 1500)) is None


def test_many_threads_have_a_worker_each(worker: CropWorker) -> None:
    data = seekable(300, 400, seed=3)
    whole = get_decoder("simplejpeg").decode(data)
    rng = np.random.default_rng(0)
    wanted = [
        (int(t), int(v), 60, 70) for t, v in zip(rng.integers(0, 240, 200), rng.integers(0, 330, 200), strict=True)
    ]
    crops = crops_of([data] * 200, wanted)
    wrong: list[int] = []

    def work() -> None:
        own = make_crop_worker()
        for n, box in enumerate(wanted):
            found = own.crop(crops, n) if own is not None else None
            if found is None or not np.array_equal(found, cut(whole, box)):
                wrong.append(n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# What is refused


@pytest.fixture
def sample() -> bytes:
    return seekable(90, 130)


def test_larger_images_than_allowed_are_refused(worker: CropWorker, sample: bytes) -> None:
    assert crop(worker, sample, (20, 20, 10, 10), max_pixels=90 * 130 - 1) is None
    assert crop(worker, sample, (0, 0, 90, 130), max_pixels=90 * 130 - 1) is None
    assert crop(worker, sample, (20, 20, 10, 10), max_pixels=90 * 130) is not None


def test_boxes_outside_are_refused(worker: CropWorker, sample: bytes) -> None:
    for box in ((0, 0, 91, 10), (-1, 0, 10, 10), (0, 125, 10, 10), (0, 0, 0, 10), (0, 0, 10, 0), (90, 0, 1, 1)):
        assert crop(worker, sample, box) is None
    crops = crops_of([sample], [(20, 20, 10, 10)])
    assert worker.crop(crops, 0) is not None
    for n in (-1, 1, 1 << 40):
        assert worker._crop(crops.address, n, worker._address) == 1


def test_a_file_of_another_size_than_planned_is_refused(worker: CropWorker, sample: bytes) -> None:
    """TurboJPEG would scale it down to fit."""
    crops = crops_of([sample], [(0, 0, 89, 129)])
    heads = crops._kept[1][2]
    assert heads[0, 4:6].tolist() == [90, 130]
    assert worker.crop(crops, 0) is not None
    for height, width in ((89, 129), (180, 260), (90, 131)):
        heads[0, 4:6] = height, width
        assert worker.crop(crops, 0) is None


def test_every_forged_boundary_that_a_crop_uses_is_seen(worker: CropWorker, sample: bytes) -> None:
    box = (20, 20, 10, 40)
    expected = cut(get_decoder("simplejpeg").decode(sample), box)
    refused = 0
    for at in range(index_of(sample).across * index_of(sample).rows - 1):

        def shifted(low: NDArray[np.uint8], head: list[int], at: int = at) -> None:
            low[at] += 1
            low[at + 1] -= 1

        data = forged(sample, shifted)
        found = crop(worker, data, box)
        refused += found is None
        assert (found is None) == (spliced(data, box) is None), at
        if found is not None:
            np.testing.assert_array_equal(found, expected)
    assert refused > 5


def spliced(data: bytes, box: Box) -> bytearray | None:
    plan = plan_crop(index_of(data), box)
    assert plan.height
    return splice(data, index_of(data), plan)


@settings(max_examples=200)
@given(st.data())
def test_damage_is_refused_or_changes_what_python_finds_too(choice: st.DataObject) -> None:
    data = bytearray(SAMPLE)
    index = index_of(SAMPLE)
    for _ in range(choice.draw(st.integers(1, 3))):
        data[choice.draw(st.integers(index.scan_at, len(data) - 3))] = choice.draw(st.integers(0, 255))
    box = choice.draw(boxes(index.height, index.width))
    worker = make_crop_worker()
    assert worker is not None
    found = crop(worker, bytes(data), box)
    if found is not None:
        np.testing.assert_array_equal(found, get_decoder("simplejpeg").decode_crop(bytes(data), box))


NUMBER = st.one_of(st.integers(-3, 3), st.integers(-(1 << 62), 1 << 62), st.integers(0, 6000))


@settings(max_examples=300)
@given(st.data())
def test_whatever_the_numbers_are_nothing_else_is_read_or_written(choice: st.DataObject) -> None:
    """A wrong address would end the process, in the long run: see also tools/fuzz."""
    box = (20, 20, 30, 40)
    crops = crops_of([SAMPLE], [box], [choice.draw(st.booleans())])
    _, arrays, _ = crops._kept
    for _ in range(choice.draw(st.integers(1, 3))):
        # All but the file's address and size, and where the arrays end.
        array = arrays[choice.draw(st.sampled_from([2, 4, 5, 7, 9, 10]))].reshape(-1)
        value = choice.draw(NUMBER)
        array[choice.draw(st.integers(0, array.size - 1))] = value % 256 if array.dtype == np.uint8 else value
    worker = make_crop_worker()
    assert worker is not None
    assert worker._crop(crops.address, 0, worker._address) in (0, 1, 2)
    # The worker is as good as before.
    expected = cut(get_decoder("simplejpeg").decode(SAMPLE), box)
    np.testing.assert_array_equal(crop(worker, SAMPLE, box), expected)


@pytest.fixture(scope="module", autouse=True)
def _sample(compiled: None) -> None:
    global SAMPLE
    SAMPLE = seekable(90, 130)


SAMPLE = b""


# Where it is not there


@pytest.fixture
def anew() -> Iterator[None]:
    native._native.cache_clear()
    yield
    native._native.cache_clear()


def test_another_version_is_not_used(anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_INTERFACE", 12345)
    assert "another version" in str(native_problem())
    assert make_crop_worker() is None


def test_what_was_not_compiled(anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    assert "C compiler" in str(native_problem())
    assert make_crop_worker() is None


def test_what_cannot_be_loaded(anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ("_native" + native.EXTENSION_SUFFIXES[0])).write_bytes(b"no library")
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    assert "cannot be loaded" in str(native_problem())
    assert make_crop_worker() is None


def test_an_empty_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKSTORE_TURBOJPEG", "")
    assert native_problem() == "PACKSTORE_TURBOJPEG is empty"
    assert make_crop_worker() is None


def test_no_library_to_decode_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "find_library", lambda *_: None)
    assert "libturbojpeg0" in str(native_problem())
    assert make_crop_worker() is None


# In the loader


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("native")
    (root / "photos" / "a").mkdir(parents=True)
    for number in range(24):
        height, width = 40 + 17 * number % 200, 60 + 31 * number % 240
        (root / "photos" / "a" / f"{number:02}.jpg").write_bytes(
            save(noisy(height, width, number), quality=60 + number, subsampling=number % 3)
        )
    (root / "photos" / "a" / "x.png").write_bytes(save_png(noisy(64, 50)))
    packstore.convert(root / "photos", root / "store.lmdb", encoding="seekable")
    return root / "store.lmdb"


def save_png(image: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


OPERATIONS: dict[str, list[Any]] = {
    "crop and flip": [RandomResizedCrop(32), RandomHorizontalFlip()],
    "crop": [RandomResizedCrop((20, 30))],
    "resize and centre": [Resize(40), CenterCrop(32)],
    "resize": [Resize((33, 44)), RandomHorizontalFlip()],
    "crop without resizing": [RandomCrop(30), RandomHorizontalFlip()],
}


@pytest.mark.parametrize("operations", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("decoder", ["auto", "turbojpeg", "pillow"])
def test_a_loader_gives_the_same_batches(
    store: Path, operations: list[Any], decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned: list[int] = []
    original = Rows.place_turned

    def counted(rows: Rows, row: int, pixels: NDArray[np.uint8]) -> None:
        turned.append(row)
        original(rows, row, pixels)

    monkeypatch.setattr(Rows, "place_turned", counted)

    def epochs() -> list[torch.Tensor]:
        dataset = PackedDataset(store, decoder=decoder)
        loader = PackedLoader(dataset, 7, shuffle=True, workers=2, augment=operations)
        return [images.clone() for _ in range(2) for images, _ in loader]

    with_it = epochs()
    used = len(turned)
    monkeypatch.setattr("packstore.training.loader.assemble.native_problem", lambda: "not here")
    without = epochs()
    assert len(turned) == used
    assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))
    resizes = (
        operations is not OPERATIONS["crop without resizing"] and operations is not OPERATIONS["resize and centre"]
    )
    assert (used > 40) == (resizes and decoder != "pillow")


def test_damage_shows_as_ever(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "damaged.lmdb"
    shutil.copytree(store, damaged)
    dataset = PackedDataset(damaged, columns=("image", "key"), output="bytes")
    records = [(bytes(data), key) for data, key in (dataset[n] for n in range(len(dataset)))]
    file = damaged / "data.mdb"
    content = bytearray(file.read_bytes())
    first, second, third = [data for data, _ in records if data[:2] == b"\xff\xd8"][3:6]
    # Pixels that are gone, which only Pillow puts up with; a marker that is, which the index had; and tables.
    middle = (index_of(first).scan_at + len(first)) // 2
    for data, start, new in (
        (first, middle, b"\xff\xd9" * 40),
        (second, second.rindex(b"\xff\xd0"), b"\0\0"),
        (third, third.index(b"\xff\xdb"), b"\xff\xe5"),
    ):
        at = content.find(data)
        assert at > 0
        content[at + start : at + start + len(new)] = new
    file.write_bytes(content)
    name = next(key for data, key in records if data == third)

    def batches() -> tuple[list[torch.Tensor], list[str], float]:
        with pytest.raises(DecodeError, match=rf"record \d+ \({name}\)"):
            list(PackedLoader(PackedDataset(damaged), 5, augment=[RandomResizedCrop(32)], workers=2))
        dataset = PackedDataset(damaged, columns=("image", "key"))
        loader = PackedLoader(dataset, 5, augment=[RandomResizedCrop(32)], on_error="skip", workers=2)
        found = [(images.clone(), keys) for _ in range(4) for images, keys in loader]
        return [images for images, _ in found], [key for _, keys in found for key in keys], loader.stats()["skipped"]

    with_it = batches()
    monkeypatch.setattr("packstore.training.loader.assemble.native_problem", lambda: "not here")
    without_it = batches()
    assert with_it[1:] == without_it[1:]
    assert name not in with_it[1]
    assert with_it[2] == 4
    assert all(torch.equal(a, b) for a, b in zip(with_it[0], without_it[0], strict=True))
