"""The engine: the pixels of libjpeg-turbo and of torch, bit for bit, or nothing at all."""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.cli import cli
from packstore.images.decoders import get_decoder
from packstore.images.engine import Engine, OutputFormat, Requests, engine_problem, get_engine
from packstore.training.augment import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from tests.conftest import ROOT, SharedData
from tests.internals import (
    NORMALIZATIONS,
    Assembler,
    Code,
    DecodeError,
    Draws,
    EngineError,
    Normalization,
    Normalizer,
    Operation,
    Reading,
    Size,
    apply_operations,
    as_numpy,
    backends,
    compiled,
    output_size,
    parse_mode,
    step,
)
from tests.makers.engine_checks import (
    MAX_PIXELS,
    Box,
    assert_same,
    check_brightness,
    check_checkpoints,
    check_forms,
    check_guard_pages,
    check_pixels,
    check_refusals,
    check_resizing,
    check_together,
    check_wrong_checkpoints,
    good,
    large,
    luma,
    reference,
    run,
    save,
)
from tests.makers.jpegs import cut, noisy, segments
from tests.makers.sanitizers import build_sanitized
from tests.makers.tiers import SEED, examples

SOURCE = ROOT / "packstore" / "images" / "engine"


def engines() -> list[Engine]:
    """With vector instructions, where the processor has them, and without."""
    library = compiled.load_once()[0]
    assert library is not None
    return [Engine(library, True), Engine(library, False)]


@pytest.mark.parametrize(
    "check",
    [
        *(pytest.param(each, marks=pytest.mark.slow) for each in (check_pixels, check_checkpoints, check_guard_pages)),
        check_resizing, check_brightness, check_together, check_forms, check_wrong_checkpoints, check_refusals,
    ],
)  # fmt: skip
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "plain"])
def test_what_every_engine_has_to_do(check: Callable[[Engine], None], vectors: bool) -> None:
    check(engines()[not vectors])


# Pixels


@st.composite
def boxes(draw: st.DrawFn, height: int, width: int) -> Box:
    rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
    return draw(st.integers(0, height - rows)), draw(st.integers(0, width - columns)), rows, columns


@st.composite
def jpegs(draw: st.DrawFn) -> bytes:
    """All samplings, sizes, qualities, tables and restart intervals."""
    sampling = draw(st.sampled_from(("gray", "444", "422", "420", "440")))
    height, width = draw(st.integers(1, 120)), draw(st.integers(1, 160))
    options: dict[str, Any] = {"quality": draw(st.sampled_from((1, 10, 50, 75, 95, 100)))}
    if draw(st.booleans()):
        options["optimize"] = True
    if draw(st.booleans()):
        options["restart_marker_blocks"] = draw(st.integers(1, 12))
    kind = draw(st.integers(0, 3))
    image = noisy(height, width, kind)
    if kind == 2:
        image = np.random.default_rng(kind).integers(0, 256, image.shape, np.uint8)
    if kind == 3:
        image[:] = image[:1, :1]
    return save(image, sampling, **options)


@given(jpegs(), st.data())
def test_pixels_are_those_of_libjpeg_turbo(data: bytes, choice: st.DataObject) -> None:
    images = reference(data), luma(data)
    wanted = choice.draw(st.lists(boxes(*images[0].shape[:2]), max_size=4))
    for engine, image in itertools.product(engines(), images):
        whole = engine.decode(data, MAX_PIXELS, None, image.shape[2])
        assert whole is not None
        np.testing.assert_array_equal(whole, image)
        (index,) = engine.make_indexes([data])
        for number, box in enumerate(wanted):
            for known in (b"", index):
                found = run(engine, data, box, mirrored=bool(number % 2), index=known, channels=image.shape[2])
                assert_same(found, image, box, None, None, bool(number % 2))
                assert engine.unindexed == 0


@given(st.data())
def test_resized_pixels_are_those_of_torch(choice: st.DataObject) -> None:
    height, width = choice.draw(st.integers(1, 70)), choice.draw(st.integers(1, 70))
    if choice.draw(st.integers(0, 9)) == 0:
        height *= 23
    channels = choice.draw(st.sampled_from((3, 1)))
    image = np.random.default_rng(height).integers(0, 256, (height, width, channels), np.uint8)
    box, mirrored = choice.draw(boxes(height, width)), choice.draw(st.booleans())
    size = choice.draw(st.tuples(st.integers(1, 120), st.integers(1, 120)))
    window = choice.draw(
        st.none() | st.tuples(st.integers(-40, 90), st.integers(-40, 90), st.integers(1, 60), st.integers(1, 60))
    )
    for engine in engines():
        assert_same(run(engine, image, box, size, window, mirrored), image, box, size, window, mirrored)


ODD = Normalization((0.1, 0.5, 2.0), (1e-6, 3.0, 4e5))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("normalization", [None, NORMALIZATIONS["imagenet"], ODD])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_normalised_values_are_those_of_torch(
    dtype: torch.dtype, normalization: Normalization | None, mode: str
) -> None:
    """Every byte in every channel, with tiny and infinite results; and counts that fill no register."""
    channels = len(mode)
    if normalization is not None:
        normalization = Normalization(normalization.mean[:channels], normalization.std[:channels])
    normalizer = Normalizer(normalization, dtype, parse_mode(mode))
    for count in (256, 1, 7, 8, 9, 31):
        values = torch.arange(256, dtype=torch.uint8)[:count]
        pixels = torch.stack([values, values.flip(0), values][:channels], -1).reshape(1, 1, count, channels)
        expected = torch.empty(pixels.shape, dtype=dtype)
        normalizer.write_rows(pixels.contiguous(), expected)
        whole = np.array([[0, 0, 1, count]])
        bits = torch.int32 if dtype == torch.float32 else torch.int16
        for planes, engine in itertools.product((False, True), engines()):
            expected_rows = expected.permute(0, 3, 1, 2) if planes else expected
            out = torch.full((3, *expected_rows.shape[1:]), 7, dtype=dtype)
            requests = Requests.of_array(pixels.contiguous().numpy(), np.array([0]))
            form = normalizer.add_to_format(OutputFormat(planes))
            requests.set_outputs(whole, whole[:, 2:], whole, None, as_numpy(out)[1:2], form)
            assert not engine.run(requests, 0, 1, MAX_PIXELS)[0]
            assert torch.equal(out[1:2].view(bits), expected_rows.contiguous().view(bits)), engine
            assert (out[::2] == 7).all()


def test_channels_are_one_or_three_and_alike() -> None:
    whole, gray = np.array([[0, 0, 5, 4]]), np.zeros((1, 5, 4, 1), np.uint8)
    with pytest.raises(ValueError, match="not contiguous"):
        Requests.of_array(np.zeros((1, 5, 4, 2), np.uint8), np.array([0]))
    requests = Requests.of_array(gray, np.array([0]))
    with pytest.raises(ValueError, match="rows of 1 channels"):
        requests.set_outputs(
            whole, whole[:, 2:], whole, None, np.empty((1, 5, 4, 1), np.float32), OutputFormat(scale=(1, 2, 3))
        )
    with pytest.raises(ValueError, match="programs work on bytes of three channels"):
        requests.set_outputs(whole, whole[:, 2:], whole, None, gray.copy(), programs=step(1, Code.INVERT))
    requests.set_outputs(whole, whole[:, 2:], whole, None, np.empty((1, 5, 4, 3), np.uint8))  # of gray
    assert engines()[0].run(requests, 0, 1, MAX_PIXELS)[0]
    with pytest.raises(ValueError, match=r"images of \[1, 3\] channels"):
        Requests([b"", b""]).set_whole_images(0, [np.empty((2, 2, 1), np.uint8), np.empty((2, 2, 3), np.uint8)])


@pytest.mark.parametrize("channels", [3, 1])
def test_requests_for_one_file_in_a_row_give_what_each_gives_alone(channels: int) -> None:
    """Of files that the engine takes, damaged ones and progressive ones: whatever is decoded together."""
    whole = save(noisy(60, 90), "420")
    files = [whole, save(noisy(40, 40), "444"), whole[: len(whole) // 2], save(noisy(35, 50), "420", progressive=True)]
    rng = np.random.default_rng(3)
    chosen = np.repeat([0, 1, 2, 0, 3, 1], [3, 1, 4, 2, 2, 5])
    boxes = np.stack([rng.integers(0, 15, (len(chosen), 2)), rng.integers(1, 20, (len(chosen), 2))], 1).reshape(-1, 4)
    sizes = np.where(rng.integers(0, 2, (len(chosen), 1)), boxes[:, 2:], 24)
    windows = np.tile([0, 0, 12, 12], (len(chosen), 1))
    together, alone = np.zeros((2, len(chosen), 12, 12, channels), np.uint8)
    requests = Requests([files[number] for number in chosen])
    requests.set_outputs(boxes, sizes, windows, None, together)
    for engine in engines():
        refused = engine.run(requests, 0, len(chosen), 1 << 20)
        assert 0 < refused.sum() < len(chosen)
        for row, number in enumerate(chosen):
            one, part = Requests([files[number]]), slice(row, row + 1)
            one.set_outputs(boxes[part], sizes[part], windows[part], None, alone[part])
            assert engine.run(one, 0, 1, 1 << 20)[0] == refused[row]
        np.testing.assert_array_equal(together[~refused], alone[~refused])


def test_repeated_requests_keep_the_array_of_their_images() -> None:
    images = np.zeros((2, 5, 4, 3), np.uint8)
    array = weakref.ref(images)
    requests = Requests.of_array(images, np.array([1])).repeat(2)
    del images
    assert len(requests) == 2
    assert array() is not None


def test_rows_of_another_shape_are_not_written() -> None:
    images = np.zeros((2, 5, 4, 3), np.uint8)
    requests, whole = Requests.of_array(images, np.array([1])), np.array([[0, 0, 5, 4]])
    with pytest.raises(ValueError, match="nothing is wanted"):
        requests.locate(0, 1)
    for other in (
        np.empty((1, 4, 5, 3), np.float32),
        np.empty((1, 5, 4, 3), np.float64),
        np.empty((2, 5, 4, 3), np.uint8),
    ):
        with pytest.raises(ValueError, match="rows of"):
            requests.set_outputs(whole, whole[:, 2:], whole, None, other)
    with pytest.raises(ValueError, match="rows of"):  # floats do not become bytes
        Requests.of_array(np.zeros((1, 3, 5, 4), np.float16), np.array([0])).set_outputs(
            whole, whole[:, 2:], whole, None, np.empty((1, 5, 4, 3), np.uint8)
        )
    with pytest.raises(IndexError):
        Requests.of_array(images, np.array([2]))
    with pytest.raises(ValueError, match="not contiguous"):
        Requests.of_array(images[:, ::2], np.array([0]))


@pytest.mark.slow
def test_every_colour() -> None:
    """All differences of colour at some lightness, as blocks of one colour each."""
    blue, red = np.mgrid[0:256:2, 0:256:2].astype(np.uint8)
    for light in (0, 90, 128, 255):
        ycc = np.stack([np.full_like(blue, light), blue, red], -1).repeat(8, 0).repeat(8, 1)
        out = io.BytesIO()
        Image.fromarray(ycc, "YCbCr").save(out, "JPEG", quality=100, subsampling=0)
        for engine in engines():
            np.testing.assert_array_equal(engine.decode(out.getvalue(), MAX_PIXELS), reference(out.getvalue()))


@pytest.mark.slow
def test_real_images(shared_data: SharedData) -> None:
    paths = sorted((shared_data / "imagenet-600").rglob("*.JPEG"))[::12]
    assert paths
    for path in paths:
        data = path.read_bytes()
        image = reference(data)
        height, width = image.shape[:2]
        for engine in engines():
            np.testing.assert_array_equal(engine.decode(data, MAX_PIXELS), image)
            box = height // 3, width // 4, height // 2, width // 2
            for pixels in (image, luma(data)):
                found = run(engine, data, box, (224, 224), channels=pixels.shape[2])
                assert_same(found, pixels, box, (224, 224), None, False)


@pytest.mark.slow
def test_crops_of_real_images_by_their_indexes(shared_data: SharedData) -> None:
    """Bit for bit those without; the indexes take less than 0.8% of the files."""
    paths = sorted((shared_data / "imagenet-600").rglob("*.JPEG"))
    files = [path.read_bytes() for path in paths]
    vectors, plain = engines()
    indexes = vectors.make_indexes(files)
    assert indexes == plain.make_indexes(files)
    assert 0 < sum(map(len, indexes)) < 0.008 * sum(map(len, files))
    sizes, rng = Requests(files).read_sizes(), np.random.default_rng(SEED)
    parts = np.ceil(sizes * rng.uniform(0.1, 1, sizes.shape)).astype(np.int64)
    boxes = np.concatenate([rng.integers(0, sizes - parts + 1), parts], 1)
    made = []
    for engine, known in ((vectors, None), (vectors, indexes), (plain, indexes)):
        out = np.empty((len(files), 96, 96, 3), np.uint8)
        requests = Requests(files, indexes=known)
        requests.set_outputs(boxes, np.full_like(sizes, 96), np.tile([0, 0, 96, 96], (len(files), 1)), None, out)
        assert not engine.run(requests, 0, len(files), MAX_PIXELS).any()
        assert engine.unindexed == 0
        made.append(out)
    np.testing.assert_array_equal(made[1], made[0])
    np.testing.assert_array_equal(made[2], made[0])


def test_what_has_no_index() -> None:
    """Files that the engine does not decode, and those of one piece."""
    whole, progressive = save(noisy(61, 83)), save(noisy(61, 83), progressive=True)
    for engine in engines():
        found = engine.make_indexes([progressive, save(noisy(8, 8), "444"), b"", b"no JPEG", whole[:-2], whole])
        assert [bool(index) for index in found] == [False, False, False, False, False, True]
        assert engine.make_indexes([]) == []


def test_rows_are_in_their_order_and_nothing_else_is_written() -> None:
    data, image = good()["420"]
    engine = engines()[0]
    out = np.full((4, 9, 11, 3), 77, np.uint8)
    requests = Requests([data, b"nothing", data, data])
    assert requests.read_sizes().tolist() == [[*image.shape[:2]], [0, 0], [*image.shape[:2]], [*image.shape[:2]]]
    wanted = np.array([(n, 2 * n, 9, 11) for n in range(4)])
    requests.set_outputs(wanted, wanted[:, 2:], np.tile([0, 0, 9, 11], (4, 1)), None, out)
    assert engine.run(requests, 0, 3, MAX_PIXELS).tolist() == [False, True, False]
    for n in (0, 2):
        np.testing.assert_array_equal(out[n], cut(image, tuple(wanted[n].tolist())))
    assert (out[[1, 3]] == 77).all()
    with pytest.raises(IndexError):
        engine.run(requests, 3, 5, MAX_PIXELS)
    with pytest.raises(ValueError, match="windows"):
        requests.set_outputs(wanted, wanted[:, 2:], np.tile([0, 0, 9, 12], (4, 1)), None, out)
    with pytest.raises(ValueError, match="contiguous"):
        requests.set_outputs(wanted, wanted[:, 2:], np.tile([0, 0, 9, 11], (4, 1)), None, out[:, :, ::-1])


@pytest.mark.slow
def test_threads_have_an_engine_each() -> None:
    wrong: list[str] = []
    seen: list[Engine | None] = []

    def work() -> None:
        engine = get_engine()
        seen.append(engine)
        for name, (data, image) in (good() | large()).items():
            if not np.array_equal(engine.decode(data, MAX_PIXELS), image):
                wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(set(seen)) == 4


# Damage


@pytest.mark.parametrize("channels", [3, 1])
@given(choice=st.data())
@examples(150)
def test_what_is_accepted_turbojpeg_accepts_with_the_same_pixels(channels: int, choice: st.DataObject) -> None:
    """Files with some bytes changed. What the engine refuses and TurboJPEG does not goes to TurboJPEG; the other way
    round would hide damage. Gray is refused of no file of which colours are not."""
    name = choice.draw(st.sampled_from(list(good())))
    data = bytearray(good()[name][0])
    for _ in range(choice.draw(st.integers(1, 3))):
        at = choice.draw(st.integers(2, len(data) - 1) | st.integers(2, min(700, len(data) - 1)))
        data[at] = choice.draw(st.integers(0, 255) | st.sampled_from((0, 255, 0xD0, 0xD9)))
    found, plain = (engine.decode(bytes(data), 1 << 20, None, channels) for engine in engines())
    assert (found is None) == (plain is None)
    if found is None or plain is None:
        assert engines()[0].decode(bytes(data), 1 << 20) is None
        return
    np.testing.assert_array_equal(found, plain)
    decode = backends.load_decoder_library("simplejpeg").decode
    assert decode is not None
    np.testing.assert_array_equal(luma(bytes(data)) if channels == 1 else decode(memoryview(bytes(data))), found)


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, list[Path]]:
    """``engine_fuzz.c`` with sanitizers, and seeds for it."""
    program, folder = build_sanitized("engine_fuzz", request), tmp_path_factory.mktemp("fuzz")
    for name, (data, _) in good().items():
        if len(data) < 20_000:
            (folder / f"{name}.jpg").write_bytes(data)
    for sampling in ("gray", "444", "420"):
        (folder / f"{sampling} progressive.jpg").write_bytes(save(noisy(35, 50), sampling, progressive=True))
    return program, [*sorted(folder.glob("*.jpg")), *sorted((ROOT / "tests" / "corpus" / "engine").iterdir())]


def fuzz(fuzzer: tuple[Path, list[Path]], count: int, seed: int) -> tuple[int, int]:
    program, seeds = fuzzer
    done = subprocess.run([program, str(count), str(seed), *seeds], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    tried, accepted = map(int, done.stdout.split())
    return tried, accepted


@pytest.mark.slow
@pytest.mark.long
def test_sanitizers_find_nothing(fuzzer: tuple[Path, list[Path]]) -> None:
    tried, accepted = fuzz(fuzzer, 10_000, SEED)
    assert tried >= 10_000
    assert accepted > tried // 10


def test_a_window_as_large_as_the_image_shows_a_smaller_box_and_padding() -> None:
    image = np.arange(1, 91, dtype=np.uint8).reshape(5, 6, 3)
    requests, out = Requests([image], np.array([[5, 6]])), np.full((1, 5, 6, 3), 255, np.uint8)
    requests.set_outputs(np.array([[1, 2, 3, 4]]), np.array([[3, 4]]), np.array([[0, 0, 5, 6]]), None, out)
    assert not engines()[0].run(requests, 0, 1, 0).any()
    expected = np.zeros_like(image)
    expected[:3, :4] = image[1:4, 2:]
    np.testing.assert_array_equal(out[0], expected)


@pytest.mark.soak
def test_sanitizers_find_nothing_in_a_million(fuzzer: tuple[Path, list[Path]]) -> None:
    assert fuzz(fuzzer, 1_000_000, 2)[0] >= 1_000_000


# Where it is not there


@pytest.fixture
def anew() -> Iterator[None]:
    compiled.load_once.cache_clear()
    yield
    compiled.load_once.cache_clear()
    compiled._make_structure.cache_clear()


def test_another_version_is_not_used(anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_INTERFACE", 12345)
    assert "another version" in str(engine_problem())
    with pytest.raises(EngineError, match=r"cannot be used here: .* is of another version of packstore: delete it"):
        get_engine()


@pytest.mark.parametrize("name", compiled.STRUCTURES)
def test_structures_of_another_layout_are_not_used(anew: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert engine_problem() is None
    compiled.load_once.cache_clear()
    fields = {**compiled.STRUCTURES, name: f"first:n {compiled.STRUCTURES[name]}"}
    monkeypatch.setattr(compiled, "STRUCTURES", fields)
    compiled._make_structure.cache_clear()
    with pytest.raises(EngineError, match=rf"its struct {name} has \d+ bytes, .*; delete it and install"):
        get_engine()


def test_what_was_not_compiled(anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    with pytest.raises(EngineError, match=r"it is not compiled in .*; install packstore again"):
        get_engine()


def test_what_cannot_be_loaded(anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ("_engine" + compiled.EXTENSION_SUFFIXES[0])).write_bytes(b"no library")
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    with pytest.raises(EngineError, match=r"cannot be loaded: .*; install packstore again"):
        get_engine()


@pytest.mark.slow
def test_all_but_loaders_does_without(stores: dict[str, Path], tmp_path: Path, no_engine: Callable[[], None]) -> None:
    photos, indexed, store = stores["indexed"].parent / "photos", stores["indexed"], tmp_path / "a.lmdb"
    no_engine()
    for command in (
        ["convert", photos, store],
        ["verify", store, "--decode", "--against", photos],
        ["verify", indexed, "--decode"],
        ["info", indexed],
        ["export", indexed, tmp_path / "a.zip"],
    ):
        result = CliRunner().invoke(cli, list(map(str, command)))
        assert result.exit_code == 0, result.output
    dataset = PackedDataset(store)
    assert len({dataset[number][0].shape for number in range(len(dataset))}) > 1
    with pytest.raises(EngineError, match=r"^packstore's engine cannot be used here: it is gone; fetch it$"):
        PackedLoader(dataset, 4, augment=[RandomResizedCrop(32)])
    assert isinstance(CliRunner().invoke(cli, ["bench", str(store)]).exception, EngineError)


def test_compilers_for_other_processors_are_told_so(tmp_path: Path) -> None:
    for defined, reason in (
        ("-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__", "little-endian"),
        ("-D__SIZEOF_POINTER__=4", "64-bit"),
        ("-U__GNUC__", "GNU C"),
    ):
        command = ["gcc", "-w", defined, "-fsyntax-only", str(SOURCE / "jpeg" / "headers.c")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode
        assert reason in done.stderr


@pytest.mark.parametrize("change", ["sys.byteorder = 'big'", "sys.maxsize = 2**31 - 1"])
def test_other_processors_are_refused(change: str) -> None:
    command = [sys.executable, "-c", f"import sys; {change}; import packstore"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ImportError: packstore needs a 64-bit little-endian processor" in done.stderr


# In the loader


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("engine")
    (root / "photos" / "a").mkdir(parents=True)
    for number in range(24):
        height, width = 40 + 17 * number % 200, 60 + 31 * number % 240
        sampling = ("444", "422", "420")[number % 3]
        (root / "photos" / "a" / f"{number:02}.jpg").write_bytes(
            save(noisy(height, width, number), sampling, quality=60 + number, progressive=number == 5)
        )
    Image.fromarray(noisy(64, 50)).save(root / "photos" / "a" / "x.png")
    made = {}
    for name, options in {"indexed": {}, "original": {"index": False}, "uint8": {"encoding": "uint8"}}.items():
        for mode in ("RGB", "L"):
            made[f"{name} {mode}"] = root / f"{name}-{mode}.lmdb"
            packstore.convert(root / "photos", made[f"{name} {mode}"], mode=mode, **options)  # type: ignore[arg-type]
        made[name] = made[f"{name} RGB"]
    for name, encoding in (("fixed", "uint8"), ("float16", "float16"), ("bfloat16", "bfloat16")):
        for suffix in ("lmdb", "h5"):
            made[f"{name} {suffix}"] = root / f"{name}.{suffix}"
            packstore.convert(root / "photos", made[f"{name} {suffix}"], encoding=encoding, size=29)
    return made


OPERATIONS: dict[str, list[Any]] = {
    "crop and flip": [RandomResizedCrop(32), RandomHorizontalFlip()],
    "crop": [RandomResizedCrop((20, 30))],
    "resize and centre": [Resize(40), CenterCrop(32)],
    "resize": [Resize((33, 44)), RandomHorizontalFlip()],
    "crop without resizing": [RandomCrop(30), RandomHorizontalFlip()],
    "beyond the edges": [Resize((50, 60)), RandomCrop(48, padding=9), RandomHorizontalFlip()],
}


def refuse_all(engine: Engine, requests: Requests, first: int, stop: int, max_pixels: int) -> NDArray[np.bool_]:
    """In place of :meth:`Engine.run`."""
    return np.ones(stop - first, np.bool_)


@pytest.mark.slow
@pytest.mark.parametrize("operations", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("encoding", ["indexed", "original", "uint8"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_loader_gives_the_same_batches(
    stores: dict[str, Path], encoding: str, mode: str, operations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    original = Assembler._write_refused

    def counted(assembler: Assembler, prepared: Any, row: int) -> Any:
        left.append(row)
        return original(assembler, prepared, row)

    monkeypatch.setattr(Assembler, "_write_refused", counted)

    def epochs() -> tuple[list[torch.Tensor], int]:
        left.clear()
        loader = PackedLoader(
            PackedDataset(stores[f"{encoding} {mode}"]), 7, shuffle=True, workers=2, augment=operations, resident=False
        )
        return [images.clone() for _ in range(2) for images, _ in loader], len(left)

    by_engine, few = epochs()
    assert {images.shape[1] for images in by_engine} == {3 if mode == "RGB" else 1}
    monkeypatch.setattr(Engine, "run", refuse_all)
    without, all_ = epochs()
    assert all(torch.equal(a, b) for a, b in zip(by_engine, without, strict=True))
    # A PNG and a progressive file are left to others.
    assert few == (0 if encoding == "uint8" else 4)
    assert all_ == 50


WAYS: dict[str, dict[str, Any]] = {
    "normalised": {"normalize": "imagenet"},
    "float16": {"normalize": "imagenet", "dtype": torch.float16, "channels_last": True},
    "last": {"normalize": "cifar10", "channels_last": True},
    "bytes": {"channels_last": True},
    "bfloat16": {"dtype": torch.bfloat16},
}


@dataclass(frozen=True)
class ByTorch(Operation):
    """Another entry of a list, run on whole batches."""

    operation: Any

    def __call__(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        return apply_operations([self.operation], images, draws, draws.stream)

    def size_after(self, size: Size | None) -> Size | None:
        return output_size([self.operation], size)


@pytest.mark.slow
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("encoding", ["original", "fixed", "float16", "bfloat16"])
def test_batches_are_finished_as_by_torch(
    stores: dict[str, Path], encoding: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streaming and resident, from each format, with what the engine refuses, and with operations after it."""
    floats = encoding in ("float16", "bfloat16")
    options = {name: value for name, value in options.items() if not (floats and name == "normalize")}
    augments: list[list[Any]] = [
        [RandomResizedCrop(24), RandomHorizontalFlip()],
        [RandomHorizontalFlip(), RandomCrop(20, padding=3, padding_mode="reflect"), CenterCrop(18)],
        [RandomCrop(22, padding=2, fill=1), lambda images: images.float()],
        [],
    ]
    for augment in augments[: 1 if encoding == "original" else None]:
        found = {}
        for path in ("original",) if encoding == "original" else (f"{encoding} lmdb", f"{encoding} h5"):
            for resident in (False,) if encoding == "original" else (False, True):
                for by_engine in (True, False):
                    operations = augment
                    if not by_engine and encoding == "original":
                        monkeypatch.setattr(Engine, "run", refuse_all)
                    elif not by_engine:
                        operations = [ByTorch(operation) for operation in augment or [lambda images: images]]
                    loader = PackedLoader(
                        PackedDataset(stores[path]), 7, shuffle=True, augment=operations, resident=resident, **options
                    )
                    found[path, resident, by_engine] = torch.cat([images for images, _ in loader])
                    monkeypatch.undo()
        expected = found[path, False, False]
        for way, images in found.items():
            assert images.dtype == expected.dtype, way
            layout = torch.channels_last if options.get("channels_last") else torch.contiguous_format
            assert images.is_contiguous(memory_format=layout) or augment[-1:] == augments[2][-1:], way
            dtypes = expected.dtype, getattr(torch, encoding, torch.uint8)
            step = max({torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}.get(dtype, 0.0) for dtype in dtypes)
            exact = not floats or not augment or not isinstance(augment[0], RandomResizedCrop)
            tolerances = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 2 * step, "atol": 1e-6}
            torch.testing.assert_close(images.float(), expected.float(), **tolerances, msg=str(way))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "resident", "options"),
    [
        (encoding, resident, options)
        for encoding in ("original", "uint8", "float16", "float32")
        for resident in ((False,) if encoding == "original" else (False, True))
        for options in ({"normalize": ([0.4], [0.3])}, {"dtype": torch.float16, "channels_last": True}, {})
        if encoding in ("original", "uint8") or "normalize" not in options
    ],
)
def test_gray_batches_are_finished_as_by_torch(
    stores: dict[str, Path],
    tmp_path: Path,
    encoding: str,
    resident: bool,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = stores["original L"]
    if encoding != "original":
        store = tmp_path / "gray.h5"
        packstore.convert(stores["original L"], store, mode="L", encoding=encoding, size=29, normalize=None)
    augment: list[Any] = [RandomCrop(22, padding=2, fill=1), RandomHorizontalFlip()]
    if not encoding.startswith("float"):
        augment = [RandomResizedCrop(24), RandomHorizontalFlip()]

    def batches(operations: list[Any]) -> torch.Tensor:
        dataset = PackedDataset(store)
        loader = PackedLoader(dataset, 7, shuffle=True, augment=operations, resident=resident, **options)
        return torch.cat([images.clone() for images, _ in loader])

    calls: list[int] = []
    original = Engine.run
    monkeypatch.setattr(Engine, "run", lambda engine, *rest: calls.append(rest[0].channels) or original(engine, *rest))
    found = batches(augment)
    assert {*calls} == {1}
    assert found.shape[1] == 1
    if encoding == "original":
        monkeypatch.setattr(Engine, "run", refuse_all)
    else:
        augment = [ByTorch(operation) for operation in augment]
    expected = batches(augment)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.slow
def test_gray_views_and_lists_are_those_without_the_engine(
    stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> list[torch.Tensor]:
        dataset = PackedDataset(stores["indexed L"])
        views = [[RandomResizedCrop(24), RandomHorizontalFlip()], [RandomResizedCrop(12)]]
        lists = PackedLoader(dataset, 5, augment=[Resize(40)], collate={"image": "list"})
        crops = PackedLoader(dataset, 5, views=views, normalize=([0.4], [0.3]))
        of_views = [view.clone() for found, _ in crops for view in found]
        return of_views + [image.clone() for images, _ in lists for image in images]

    by_engine = made()
    monkeypatch.setattr(Engine, "run", refuse_all)
    assert all(torch.equal(a, b) for a, b in zip(by_engine, made(), strict=True))
    assert {image.shape[-3] for image in by_engine} == {1}


def test_gray_of_files_that_are_no_luma_is_that_of_other_decoders(tmp_path: Path) -> None:
    """RGB and CMYK in a JPEG are left to libjpeg and Pillow, with the engine as without."""
    colours = noisy(40, 50)
    for name, picture, options in (
        ("rgb", Image.fromarray(colours), {"keep_rgb": True}),
        ("cmyk", Image.fromarray(colours).convert("CMYK"), {}),
    ):
        out = io.BytesIO()
        picture.save(out, "JPEG", **options)
        reading = Reading("L")
        found = get_decoder(reading=reading).decode(out.getvalue())
        np.testing.assert_array_equal(found, get_decoder("simplejpeg", reading=reading).decode(out.getvalue()))
        if name == "rgb" and b"Adobe" in out.getvalue():
            assert engines()[0].decode(out.getvalue(), MAX_PIXELS, None, 1) is None
            np.testing.assert_array_equal(found, luma(out.getvalue()))


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["indexed", "original"])
def test_damage_shows_as_with_another_decoder(stores: dict[str, Path], encoding: str, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.lmdb"
    shutil.copytree(stores[encoding], damaged)
    dataset = PackedDataset(damaged, columns=("image", "key"), output="bytes")
    records = [(bytes(data), key) for data, key in (dataset[n] for n in range(len(dataset)))]
    file = damaged / "data.mdb"
    content = bytearray(file.read_bytes())
    first, second = [data for data, key in records if key in ("a/07.jpg", "a/08.jpg")]
    # Pixels that are gone, which only Pillow puts up with; and tables.
    for data, start, new in (
        (first, (segments(first)[-1].stop + len(first)) // 2, b"\xff\xd9" * 40),
        (second, second.index(b"\xff\xdb"), b"\xff\xe5"),
    ):
        at = content.find(data)
        assert at > 0
        content[at + start : at + start + len(new)] = new
    file.write_bytes(content)
    name = next(key for data, key in records if data == second)

    def batches(decoder: str) -> tuple[list[torch.Tensor], list[str], float]:
        options: dict[str, Any] = {"checksums": "never", "decoder": decoder}
        with pytest.raises(DecodeError, match=rf"record \d+ \({name}\)"):
            list(PackedLoader(PackedDataset(damaged, **options), 5, augment=[RandomResizedCrop(32)], workers=2))
        dataset = PackedDataset(damaged, columns=("image", "key"), **options)
        loader = PackedLoader(dataset, 5, augment=[RandomResizedCrop(32)], on_error="skip", workers=2)
        found = [(images.clone(), keys) for _ in range(4) for images, keys in loader]
        return [images for images, _ in found], [key for _, keys in found for key in keys], loader.stats()["skipped"]

    with_it, without_it = batches("engine"), batches("simplejpeg")
    assert with_it[1:] == without_it[1:]
    assert name not in with_it[1]
    assert with_it[2] == 4
    assert all(torch.equal(a, b) for a, b in zip(with_it[0], without_it[0], strict=True))


@pytest.mark.slow
def test_the_default_decoder_is_the_engine(stores: dict[str, Path]) -> None:
    assert get_decoder().name == "engine"
    assert PackedDataset(stores["original"]).decoder.has_engine
    assert not PackedDataset(stores["original"], decoder="turbojpeg").decoder.has_engine
    assert PackedDataset(stores["original"], mode="L").decoder.has_engine
    assert not PackedDataset(stores["original"], mode="L", decoder="turbojpeg").decoder.has_engine
    assert not PackedDataset(stores["original"], mode="RGBA").decoder.has_engine


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="versions of symbols are of glibc")
def test_it_needs_no_new_glibc(need: Callable[[str, bool], None]) -> None:
    """So that a wheel with it installs wherever torch does, from glibc 2.28 on."""
    library = Path(compiled.load_once()[0]._name).read_bytes()
    versions = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_([0-9.]+)\0", library)}
    assert max(versions, default=(2, 0)) <= (2, 28)


@pytest.mark.skipif(getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has its GIL on")
def test_it_leaves_the_gil_off() -> None:
    """A compiled module that does not declare that it can do without would turn it on; ctypes loads no module."""
    code = "import sys; from packstore.images.engine import get_engine; get_engine(); print(sys._is_gil_enabled())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
