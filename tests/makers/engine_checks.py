"""What every build of the engine has to do, as one function: for the tests, and for mutations of its source."""

from __future__ import annotations

import ctypes
import functools
import io
import itertools
import mmap
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.internals import _FIELDS, Code, Engine, OutputFormat, Requests, _Form, resample, source_index, step
from tests.internals import resize_pixels as resize
from tests.makers.datasets import pixels
from tests.makers.jpegs import cjpeg, cut, noisy, segments
from tests.makers.seek_indexes import HEAD, lengths, outside, pieces, repaired, with_lengths

Box = tuple[int, int, int, int]
MAX_PIXELS = 1 << 28
CORPUS = Path(__file__).parents[1] / "corpus" / "engine"
SAMPLINGS = {"444": 0, "422": 1, "420": 2}


def save(image: NDArray[np.uint8], sampling: str = "420", **options: object) -> bytes:
    """A JPEG by Pillow; gray, 4:4:4, 4:2:2, 4:2:0, or 4:4:0 (which is 4:2:2 with its factors exchanged: its blocks mean
    something else then, but any blocks are an image)."""
    out, picture = io.BytesIO(), Image.fromarray(image)
    if sampling == "440":
        return tall(save(np.ascontiguousarray(image.transpose(1, 0, 2)), "422", **options))
    if sampling != "gray":
        options["subsampling"] = SAMPLINGS[sampling]
    (picture.convert("L") if sampling == "gray" else picture).save(out, "JPEG", **options)
    return out.getvalue()


def tall(data: bytes) -> bytes:
    """A 4:2:2 file as one of 4:4:0, with height and width exchanged: as many MCUs, of as many blocks."""
    frame = next(segment for segment in segments(data) if segment.marker in (0xC0, 0xC1, 0xC2))
    at, changed = frame.start, bytearray(data)
    changed[at + 5 : at + 9] = data[at + 7 : at + 9] + data[at + 5 : at + 7]
    changed[at + 11] = 0x12
    return bytes(changed)


def reference(data: bytes) -> NDArray[np.uint8]:
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def luma(data: bytes) -> NDArray[np.uint8]:
    """As libjpeg gives it, ``(H, W, 1)``."""
    image: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "GRAY", strict=True)
    return image


def run(
    engine: Engine,
    source: bytes | NDArray[np.uint8],
    box: Box,
    size: tuple[int, int] | None = None,
    window: Box | None = None,
    mirrored: bool = False,
    max_pixels: int = MAX_PIXELS,
    index: bytes = b"",
    channels: int = 3,
) -> NDArray[np.uint8] | None:
    """One request; None where it is refused. Arrays have their own channels."""
    size = box[2:] if size is None else size
    window = (0, 0, *size) if window is None else window
    raw = isinstance(source, np.ndarray)
    channels = source.shape[2] if raw else channels  # type: ignore[union-attr]
    pixels_of = np.array([source.shape[:2]]) if raw else None  # type: ignore[union-attr]
    requests = Requests([source.tobytes() if raw else source], pixels_of, indexes=[index])
    out = np.full((1, *window[2:], channels), 7, np.uint8)
    requests.set_outputs(np.array([box]), np.array([size]), np.array([window]), np.array([mirrored]), out)
    return None if engine.run(requests, 0, 1, max_pixels)[0] else out[0]


def expected(
    image: NDArray[np.uint8], box: Box, size: tuple[int, int] | None, window: Box | None, mirrored: bool
) -> NDArray[np.uint8]:
    """The same by numpy and torch."""
    part = np.ascontiguousarray(cut(image, box))
    part = part if size is None else resize(part, *size)
    if window is not None:
        top, left, height, width = window
        whole = np.zeros((height, width, image.shape[2]), np.uint8)
        y0, x0 = max(0, -top), max(0, -left)
        inner = part[top + y0 : max(0, top + height), left + x0 : max(0, left + width)]
        whole[y0 : y0 + inner.shape[0], x0 : x0 + inner.shape[1]] = inner
        part = whole
    return part[:, ::-1] if mirrored else part


STORED: dict[str, torch.dtype] = {
    "uint8": torch.uint8,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_SCALE, _SHIFT = (0.017124753, 0.0175070024, 0.0174291935), (-2.117904, -2.0357144, -1.8044444)


def check_forms(engine: Engine) -> None:
    """Every type to every other, both layouts, resized or padded in every way, mirrored or not, against torch."""
    rng = np.random.default_rng(7)
    for number, (channels, source, (to, planes, padding)) in enumerate(
        itertools.product(CHANNELS, STORED, itertools.product(STORED, (False, True), PADDING))
    ):
        if to == "uint8" and source != "uint8":
            continue
        for resized, mirrored in itertools.product((False, True), repeat=2):
            height, width = rng.integers(8, 40, 2).tolist()
            images = _images(source, height, width, channels, number)
            tall, wide = rng.integers(5, [height + 1, width + 1]).tolist()
            box = (int(rng.integers(0, height - tall + 1)), int(rng.integers(0, width - wide + 1)), tall, wide)
            size = tuple(rng.integers(2, 50, 2).tolist()) if resized else (tall, wide)
            mode = "constant" if resized else padding
            fill = 0 if resized else 3
            window = (*rng.integers(-4, 4, 2).tolist(), *rng.integers(4, 40, 2).tolist())
            case = source, to, planes, mode, box, size, window, mirrored
            form = OutputFormat(planes, mode, fill, _SCALE[:channels], _SHIFT[:channels])
            found = _made(engine, images, STORED[to], form, *case[4:])
            expected_ = _expected_form(images, STORED[to], mode, fill, *case[4:])
            if source == "uint8" or not resized:
                assert torch.equal(found, expected_), case
            else:  # as floats to 1e-6; then one more rounding
                step = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[to]
                torch.testing.assert_close(
                    found.double(), expected_.double(), rtol=1e-6 + 2 * step, atol=1e-6, msg=str(case)
                )


PADDING = ("constant", "edge", "reflect", "symmetric")
CHANNELS = (3, 1)


def _images(source: str, height: int, width: int, channels: int, seed: int) -> torch.Tensor:
    """Two images, ``(2, C, H, W)``: bytes with channels last."""
    bytes_ = torch.from_numpy(noisy(2 * height, width, seed)).view(2, height, width, 3)[..., :channels].contiguous()
    return (
        bytes_.permute(0, 3, 1, 2)
        if source == "uint8"
        else (bytes_ / 97 - 1).permute(0, 3, 1, 2).contiguous().to(STORED[source])
    )


def _made(
    engine: Engine,
    images: torch.Tensor,
    to: torch.dtype,
    form: OutputFormat,
    box: Box,
    size: tuple[int, int],
    window: Box,
    mirrored: bool,
) -> torch.Tensor:
    """The second of ``images``, as ``(C, h, w)``."""
    lying = images.permute(0, 2, 3, 1) if images.dtype == torch.uint8 else images
    channels = images.shape[1]
    shape = (channels, *window[2:]) if form.planes else (*window[2:], channels)
    out = torch.full((3, *shape), 7, dtype=to)
    as_ints = {torch.bfloat16: torch.uint16}
    requests = Requests.of_array(lying.view(as_ints.get(lying.dtype, lying.dtype)).numpy(), np.array([1]))
    row = out[1:2].view(as_ints.get(to, to)).numpy()
    requests.set_outputs(np.array([box]), np.array([size]), np.array([window]), np.array([mirrored]), row, form)
    assert not engine.run(requests, 0, 1, MAX_PIXELS)[0]
    assert (out[::2] == 7).all()
    return out[1] if form.planes else out[1].permute(2, 0, 1)


def _expected_form(
    images: torch.Tensor,
    to: torch.dtype,
    padding: str,
    fill: int,
    box: Box,
    size: tuple[int, int],
    window: Box,
    mirrored: bool,
) -> torch.Tensor:
    top, left, height, width = box
    wide = images if images.dtype == torch.uint8 else images.float()
    part = resample.resize(wide[1:2, :, top : top + height, left : left + width], size)[0]
    rows, columns = (torch.arange(window[i + 2]) + window[i] for i in (0, 1))
    inside = [
        source_index(at, length, padding).clip(0, length - 1) for at, length in ((rows, size[0]), (columns, size[1]))
    ]
    shown = part[:, inside[0][:, None], inside[1]]
    if padding == "constant":
        outside = (inside[0] != rows)[:, None] | (inside[1] != columns)
        shown = shown.masked_fill(outside, fill)
    shown = shown.flip(-1) if mirrored else shown
    if images.dtype == torch.uint8 and to != torch.uint8:
        factors = (torch.tensor(values[: len(shown)])[:, None, None] for values in (_SCALE, _SHIFT))
        return (shown * next(factors) + next(factors)).to(to)
    return shown.to(to)


def guarded(data: bytes) -> tuple[int, mmap.mmap]:
    """The address of a copy of ``data`` behind which no byte can be read or written, and what keeps it there."""
    page = mmap.PAGESIZE
    size = -(-len(data) // page) * page
    memory = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    address = start + size - len(data)
    ctypes.memmove(address, data, len(data))
    return address, memory


@functools.cache
def good() -> dict[str, tuple[bytes, NDArray[np.uint8]]]:
    """Small files of every kind that the engine takes, with their pixels."""
    made: dict[str, bytes] = {}
    for number, sampling in enumerate(("gray", "444", "422", "420", "440")):
        made[sampling] = save(noisy(61, 83, number), sampling, quality=60 + 9 * number)
        made[f"{sampling} optimised"] = save(noisy(37, 100, number), sampling, quality=97, optimize=True)
        made[f"{sampling} restarts"] = save(noisy(70, 50, number), sampling, restart_marker_blocks=3)
        made[f"{sampling} many restarts"] = save(noisy(70, 100, number), sampling, restart_marker_blocks=1)
        if sampling != "440":
            made[f"{sampling} rows"] = save(noisy(100, 90, number), sampling, restart_marker_rows=1)
        made[f"{sampling} tiny"] = save(noisy(1, 1, number), sampling)
        made[f"{sampling} narrow"] = save(noisy(20, 3, number), sampling)
        made[f"{sampling} low"] = save(noisy(3, 20, number), sampling)
    made["a code of 16 bits"] = tiny(dc=(0,), ac=(0,), coded=packed("0" + 16 * "0"), symbols=16)
    made["extremes"] = save(np.random.default_rng(1).choice([0, 255], (40, 40, 3)).astype(np.uint8), "444", quality=100)
    return {name: (data, reference(data)) for name, data in made.items()}


@functools.cache
def large() -> dict[str, tuple[bytes, NDArray[np.uint8]]]:
    """The same of large files, which take seconds to make."""
    made = {
        "long codes": save(noisy(300, 400, 9), "420", quality=100, optimize=True),
        "very many restarts": save(noisy(520, 700, 4) // 9 * 9, "444", quality=99, restart_marker_blocks=1),
        "long rows": save(noisy(40, 1500, 4), "444", quality=97, restart_marker_rows=1),
        "longer rows": save(noisy(16, 9000, 4), "444", quality=99, restart_marker_rows=1),
        "restarts far apart": save(noisy(400, 60, 5), "420", restart_marker_rows=11),
        "a busy row": save(a_busy_row(), "420", quality=95),
        "few bytes": save(pixels(1500, 3300, 3), "444", quality=30, restart_marker_blocks=1),
    }
    return {name: (data, reference(data)) for name, data in made.items()}


def a_busy_row() -> NDArray[np.uint8]:
    """Bands of one colour each take so few bytes that many are decoded before the busy row of MCUs above them is."""
    colours = np.arange(32, dtype=np.uint8)[:, None] * np.array([37, 91, 53], np.uint8)
    image = np.ascontiguousarray(np.broadcast_to(colours.repeat(16, 0)[:, None], (512, 1200, 3)))
    image[48:64] = noisy(16, 1200)
    return image


def some_boxes(height: int, width: int, seed: int, count: int) -> Iterator[Box]:
    rng = np.random.default_rng(seed)
    yield 0, 0, height, width
    for _ in range(count):
        rows, columns = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
        yield int(rng.integers(0, height - rows + 1)), int(rng.integers(0, width - columns + 1)), rows, columns


@functools.cache
def gray(files: Callable[[], dict[str, tuple[bytes, NDArray[np.uint8]]]]) -> dict[str, tuple[bytes, NDArray[np.uint8]]]:
    """The same files with their luma."""
    return {name: (data, luma(data)) for name, (data, _) in files().items()}


def all_files(channels: int) -> dict[str, tuple[bytes, NDArray[np.uint8]]]:
    return good() | large() if channels == 3 else gray(good) | gray(large)


def check_pixels(engine: Engine) -> None:
    for channels in CHANNELS:
        for name, (data, image) in all_files(channels).items():
            height, width = image.shape[:2]
            found = engine.decode(data, MAX_PIXELS, None, channels)
            assert found is not None, name
            assert np.array_equal(found, image), name
            for number, box in enumerate(some_boxes(height, width, 1, 12)):
                mirrored = number % 2 == 1
                found = run(engine, data, box, mirrored=mirrored, channels=channels)
                assert_same(found, image, box, None, None, mirrored)


def assert_same(
    found: NDArray[np.uint8] | None,
    image: NDArray[np.uint8],
    box: Box,
    size: tuple[int, int] | None,
    window: Box | None,
    mirrored: bool,
) -> None:
    assert found is not None
    assert np.array_equal(found, expected(image, box, size, window, mirrored)), (box, size, window, mirrored)


def check_resizing(engine: Engine) -> None:
    rng = np.random.default_rng(2)
    image = noisy(61, 83, 5)
    one = np.ascontiguousarray(image[..., 1:2])
    name = "420 many restarts"
    for source, pixels_ in ((image, image), good()[name], (one, one), gray(good)[name]):
        height, width = pixels_.shape[:2]
        for box in some_boxes(height, width, 3, 30):
            size = int(rng.integers(1, 90)), int(rng.integers(1, 90))
            window = None
            if rng.integers(2):
                window = *rng.integers(-20, 40, 2).tolist(), *rng.integers(1, 60, 2).tolist()
            mirrored = bool(rng.integers(2))
            for wanted in (size, None):
                found = run(engine, source, box, wanted, window, mirrored, channels=pixels_.shape[2])
                assert_same(found, pixels_, box, wanted, window, mirrored)


def check_guard_pages(engine: Engine) -> None:
    """Neither behind the source nor behind the rows is anything read or written."""
    cases: list[tuple[bytes, tuple[int, int], Box, tuple[int, int]]] = []
    for data, image in (good() | large()).values():
        height, width = image.shape[:2]
        cases.append((data, (0, 0), (0, 0, height, width), (height, width)))
        cases.append((data, (0, 0), (height // 2, width // 3, (height + 1) // 2, width // 2 + 1), (23, 29)))
    raw = noisy(19, 31)
    for box in ((0, 0, 19, 31), (18, 30, 1, 1), (9, 27, 10, 4)):
        cases += [(raw.tobytes(), (19, 31), box, size) for size in ((19, 31), (5, 3), (40, 41), (1, 1))]
    for (data, pixels_of, box, size), channels in itertools.product(cases, CHANNELS):
        for mirrored in (False, True):
            source, kept = guarded(data[::3] if any(pixels_of) and channels == 1 else data)
            nbytes = len(data) // 3 if any(pixels_of) and channels == 1 else len(data)
            out, kept_out = guarded(bytes(channels * size[0] * size[1]))
            fields = (source, nbytes, *pixels_of, *box, *size, 0, 0, *size, mirrored, out, 0, 0)
            assert not run_fields(engine, fields, _Form(3, 3), channels), (box, size)
            del kept, kept_out
    for case in range(400):  # every type, layout and padding; sizes that fill no register
        rng = np.random.default_rng(case)
        kind, to, height, width, rows, columns = rng.integers((0, 0, 1, 1, 1, 1), (4, 4, 30, 60, 30, 60)).tolist()
        to, channels = to if kind == 3 else min(to, 2), CHANNELS[case // 200]
        pixels_ = rng.integers(0, 100, channels * height * width * ITEM_BYTES[kind], np.uint8)
        source, kept = guarded(pixels_.tobytes())
        out, kept_out = guarded(bytes(channels * rows * columns * ITEM_BYTES[to]))
        size = (rows, columns) if case % 3 == 0 else (height, width)
        window = (*(rng.integers(-9, 9, 2).tolist() if case % 2 else (0, 0)), rows, columns)
        fields = (source, pixels_.size, height, width, 0, 0, height, width, *size, *window, case % 2, out, 0, 0)
        assert not run_fields(engine, fields, _Form(kind, to, int(rng.integers(2)), case % 4), channels), case
        del kept, kept_out


ITEM_BYTES = (4, 2, 2, 1)
"""Of the types of ``core/base.h``."""


def run_fields(engine: Engine, fields: tuple[int, ...], form: _Form, channels: int = 3) -> int:
    """One request by its numbers: whether it is refused."""
    request, refused = np.zeros(_FIELDS, np.int64), np.empty(1, np.uint8)
    request[: len(fields)] = fields
    at, to = request.ctypes.data, refused.ctypes.data
    engine._library.packstore_engine_run(engine._decoder, at, 1, ctypes.byref(form), channels, MAX_PIXELS, to)
    return int(refused[0])


def check_refusals(engine: Engine) -> None:
    data, image = good()["420"]
    for (name, bad), channels in itertools.product(refused_files().items(), CHANNELS):
        assert engine.decode(bad, MAX_PIXELS, None, channels) is None, name
        assert run(engine, bad, (0, 0, *image.shape[:2]), (9, 9), channels=channels) is None, name
    assert engine.decode(coarse(1), MAX_PIXELS) is None
    np.testing.assert_array_equal(engine.decode(coarse(1), MAX_PIXELS, None, 1), luma(coarse(1)))
    for channels in CHANNELS:
        assert engine.decode(lowest_first_coefficient(), MAX_PIXELS, (0, 8 * 16, 8, 8), channels) is None
    one, out = np.ascontiguousarray(image[..., :1]), np.empty(81, np.uint8)  # programs are for colours
    fields = (one.ctypes.data, one.size, *one.shape[:2], 0, 0, 9, 9, 9, 9, 0, 0, 9, 9, 0, out.ctypes.data, 0, 0)
    assert not run_fields(engine, fields, _Form(3, 3), 1)
    assert run_fields(engine, (*fields, one.ctypes.data, 1), _Form(3, 3), 1)
    assert run_fields(engine, fields, _Form(3, 3))  # too few bytes for three channels
    height, width = image.shape[:2]
    for source in (data, image):
        for box in ((0, 0, height + 1, 9), (-1, 0, 9, 9), (0, width - 8, 9, 9), (0, -1, 9, 9), (height, 0, 1, 1)):
            assert run(engine, source, box) is None, box
            assert run(engine, source, box, (5, 5)) is None, box
    assert run(engine, data, (0, 0, 9, 9), max_pixels=height * width - 1) is None
    for form in (
        OutputFormat(padding="edge"),
        OutputFormat(fill=3),
    ):  # what is outside of a JPEG file's box is made of zeros
        requests, out = Requests([data]), np.zeros((1, 12, 12, 3), np.uint8)
        box, size = np.array([[0, 0, 9, 9]]), np.array([[9, 9]])
        requests.set_outputs(box, size, np.array([[-1, -1, 12, 12]]), None, out, form)
        assert engine.run(requests, 0, 1, MAX_PIXELS)[0], form
    assert run(engine, data, (0, 0, 9, 9), max_pixels=height * width) is not None


@functools.cache
def refused_files() -> dict[str, bytes]:
    """Files that libjpeg warns of, refuses, or decodes in another way."""
    data, _ = good()["420"]
    parts = segments(data)
    of = {segment.marker: segment for segment in parts}
    frame, scan, jfif = of[0xC0].start, parts[-1], of[0xE0].start
    coded = scan.stop
    restarts = (CORPUS / "photo-restarts").read_bytes()  # Pillow before 10.2 writes none
    marker = restarts.index(b"\xff\xd1")

    def changed(at: int, *values: int, source: bytes = data) -> bytes:
        return source[:at] + bytes(values) + source[at + len(values) :]

    def tables(marker: int) -> list[bytes]:
        return [data[s.start : s.stop] for s in parts if s.marker == marker]

    first_ac = next(s for s in parts if s.marker == 0xC4 and data[s.start + 4] == 0x10)
    first_dc = next(s for s in parts if s.marker == 0xC4 and data[s.start + 4] == 0x00)
    rgb = io.BytesIO()
    Image.fromarray(noisy(20, 20)).save(rgb, "JPEG", keep_rgb=True)
    cmyk = io.BytesIO()
    Image.fromarray(noisy(20, 20)).convert("CMYK").save(cmyk, "JPEG")
    low_dc = without(data, 0xE0)
    return {
        "nothing": b"",
        "PNG": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "headers alone": data[:coded],
        "no end": data[:-2],
        "half of it": data[: (coded + len(data)) // 2],
        "another end": changed(len(data) - 1, 0xD8),
        "progressive": save(noisy(30, 30), progressive=True),
        **({"RGB": rgb.getvalue()} if b"Adobe" in rgb.getvalue() else {}),  # Pillow before 10.2 writes none
        "CMYK": cmyk.getvalue(),
        "twelve bits": changed(frame + 4, 12),
        "arithmetic coding": changed(frame + 1, 0xC9),
        "no width": changed(frame + 7, 0, 0),
        "too wide": changed(frame + 7, 0xFF, 0xFF),
        "two components": changed(frame + 9, 2),
        "two frames": data[:frame] + data[frame : of[0xC0].stop] + data[frame:],
        "a component twice": changed(frame + 13, data[frame + 10]),
        "a wide sampling": changed(frame + 11, 0x41),
        "chroma of two kinds": changed(frame + 14, 0x21),
        **({name: cjpeg(noisy(40, 50), name) for name in ("large MCUs", "411")} if shutil.which("cjpeg") else {}),
        "no sampling": changed(frame + 11, 0x02),
        "a table of quantisation that is not there": changed(frame + 12, 3),
        "a scan of another component": changed(scan.start + 5, 77),
        "a scan with a table that is not there": changed(scan.start + 6, 0x30),
        "a scan of some coefficients": changed(scan.stop - 2, 62),
        "a scan without first coefficients": changed(scan.stop - 3, 1),
        "a scan of some bits": changed(scan.stop - 1, 1),
        "a component twice, in the scan too": changed(
            frame + 13, data[frame + 10], source=changed(scan.start + 7, data[frame + 10])
        ),
        "codes of ones only": tiny(dc=(0, 1), ac=(0, 1), coded=b"\x3f"),
        "a value of 12 bits": tiny(dc=(12,), ac=(0,), coded=b"\x40\x01"),
        "a single value of 11 bits": tiny(dc=(0,), ac=(0, 11), coded=packed("0 01 10000000000 00"), symbols=2),
        "a value of 11 bits": tiny(dc=(0,), ac=(11,), coded=b"\x10\x01" * 63),
        "an end of block that is none": tiny(dc=(0,), ac=(0x10,), coded=bytes(4) + b"\x7f"),
        "a run beyond the block": tiny(dc=(0,), ac=(0xF0,), coded=b"\x07"),
        "no such code of 16 bits": tiny(dc=(0,), ac=(0,), coded=b"\x7f\xff\xff"),
        "no such code": tiny(dc=(0,), ac=(0,), coded=b"\x7f"),
        "far too few bytes, but more behind": tiny(dc=(0,), ac=(10,), coded=b"\0", size=(2000, 2048)) + bytes(80_000),
        "JFIF of another version": changed(jfif + 9, 2),
        "bytes between segments": data[:frame] + b"\0" + data[frame:],
        "a segment of impossible length": changed(frame + 2, 0, 1),
        "a table that is too long": changed(first_ac.start + 5, 255),
        "a code of ones only": changed(first_ac.start + 5, 2),
        "a coefficient of 11 bits": changed(first_ac.start + 4 + 17, 0x0B),
        "a first coefficient of 12 bits": changed(first_dc.start + 4 + 17, 12),
        "an end of block with a run": changed(first_ac.start + 4 + 17 + 3, 0x20),
        "other component numbers": without(changed(frame + 10, 82, source=changed(scan.start + 5, 82)), 0xE0),
        "a transform of Adobe's": low_dc[:2] + b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\x02" + low_dc[2:],
        "no tables of quantisation": without(data, 0xDB),
        "no Huffman tables": without(data, 0xC4),
        "tables of 16 bits": changed(of[0xDB].start + 4, 0x10),
        "a restart out of order": changed(marker + 1, 0xD3, source=restarts),
        "a restart too few": restarts[: marker - 4] + restarts[marker - 3 :],
        "bytes too many": data[:-2] + b"\x55\x55\x55" + data[-2:],
        "a scan too short": data[: coded + 200] + data[-2:],
        "a file of far too few bytes": changed(frame + 5, 0xF0, 0, 0xF0, 0),
        "large coefficients": coarse(0),
        "tables doubled": b"".join((data[:2], *tables(0xC4)[:1], changed(frame + 9, 3)[2:-7])),
    }


def coarse(table: int) -> bytes:
    """With the largest numbers in a table of quantisation: 0 is that of luma, 1 of chroma."""
    data = good()["extremes"][0]
    at = [segment.start for segment in segments(data) if segment.marker == 0xDB][table] + 5
    return data[:at] + bytes([255] * 64) + data[at + 64 :]


def tiny(
    *, dc: tuple[int, ...], ac: tuple[int, ...], coded: bytes, size: tuple[int, int] = (8, 8), symbols: int = 1
) -> bytes:
    """A gray file with these symbols, whose codes have ``symbols`` bits, and these bytes of a scan."""

    def segment(marker: int, content: bytes) -> bytes:
        return bytes((0xFF, marker)) + (len(content) + 2).to_bytes(2, "big") + content

    tables = [
        bytes((kind, *bytes(length - 1), len(values), *bytes(16 - length), *values))
        for kind, values, length in ((0, dc, 1), (0x10, ac, symbols))
    ]
    frame = b"\x08" + size[0].to_bytes(2, "big") + size[1].to_bytes(2, "big") + b"\x01\x01\x11\0"
    parts = (segment(0xDB, b"\0" + b"\1" * 64), segment(0xC0, frame), *(segment(0xC4, table) for table in tables))
    scan = segment(0xDA, b"\x01\x01\0\0\x3f\0")
    return b"\xff\xd8" + b"".join(parts) + scan + coded.replace(b"\xff", b"\xff\0") + b"\xff\xd9"


def lowest_first_coefficient() -> bytes:
    """Gray blocks side by side. The last one's first coefficient is -32768, of which 16 bits cannot hold twice as much;
    that of those before is not right either, but shows only where they are wanted."""
    differences = [-2047] * 15 + [-1024, -1039]
    coded = packed("".join(f"0{difference + 2047:011b} 010 00" for difference in differences))
    data = tiny(dc=(11,), ac=(0, 1), coded=coded, size=(8, 8 * len(differences)), symbols=2)
    return data.replace(b"\1" * 64, b"\2" * 64)


def without(data: bytes, marker: int) -> bytes:
    """Without the segments of a kind."""
    for segment in reversed(segments(data)):
        if segment.marker == marker:
            data = data[: segment.start] + data[segment.stop :]
    return data


def packed(bits: str) -> bytes:
    bits = bits.replace(" ", "")
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def check_together(engine: Engine) -> None:
    """Files whose symbols are decoded in turn give what each gives alone, beside files that are refused, too."""
    files = {name: data for name, (data, _) in good().items()} | refused_files()
    rng = np.random.default_rng(3)
    for channels in (3, 1, 3, 1):
        wanted_pixels = good() if channels == 3 else gray(good)
        names = [list(files)[i] for i in rng.permutation(len(files))]
        found = engine.decode_each([files[name] for name in names], MAX_PIXELS, channels)
        for name, image in zip(names, found, strict=True):
            assert (image is None) == (name not in good()), name
            if image is not None:
                np.testing.assert_array_equal(image, wanted_pixels[name][1], name)
        sizes = [good()[name][1].shape[:2] if name in good() else (9, 9) for name in names]
        boxes = np.array([next(some_boxes(*size, seed, 1)) for seed, size in enumerate(sizes)])
        mirrored, made = rng.random(len(names)) < 0.5, np.full((len(names), 13, 17, channels), 7, np.uint8)
        wanted = np.full((len(names), 2), (13, 17))
        requests = Requests([files[name] for name in names])
        requests.set_outputs(boxes, wanted, np.full((len(names), 4), (0, 0, 13, 17)), mirrored, made)
        refused = engine.run(requests, 0, len(names), MAX_PIXELS)
        for i, name in enumerate(names):
            box = tuple(boxes[i].tolist())
            alone = run(engine, files[name], box, (13, 17), None, bool(mirrored[i]), channels=channels)
            assert refused[i] == (alone is None), name
            if alone is not None:
                np.testing.assert_array_equal(made[i], alone, name)


def check_checkpoints(engine: Engine) -> None:
    """By its index each file gives what it gives without; all are made together as each alone."""
    for gray in (False, True):
        _check_checkpoints(engine, gray)


def _check_checkpoints(engine: Engine, gray: bool) -> None:
    files = good() | large()
    indexes = dict(zip(files, engine.make_indexes([data for data, _ in files.values()], gray), strict=True))
    assert sum(map(bool, indexes.values())) > len(files) // 2
    assert {index[0] for index in indexes.values() if index} == ({1, 2} if gray else {1})
    for name, (data, image) in files.items():
        index = indexes[name]
        assert engine.make_indexes([data], gray) == [index], name
        assert not index or repaired(index, data) == index, name
        if index[:1] == b"\2":  # chroma of an unknown length is decoded
            values, width = lengths(index, data)
            forgotten = with_lengths(index, data, [(1 << width) - 1 if i % 3 else v for i, v in enumerate(values)])
            whole = (0, 0, *image.shape[:2])
            found = run(engine, data, whole, index=forgotten, channels=1)
            assert_same(found, all_files(1)[name][1], whole, None, None, False)
            assert engine.unindexed == 0, name
        for box in some_boxes(*image.shape[:2], 5, 12):
            for pixels_ in (image, all_files(1)[name][1]):
                found = run(engine, data, box, index=index, channels=pixels_.shape[2])
                assert_same(found, pixels_, box, None, None, False)
                assert engine.unindexed == 0, name
    # Damage in pieces that a box does not need is not seen with an index.
    for name, (data, image) in files.items():
        for box in some_boxes(*image.shape[:2], 6, 4) if indexes[name] else ():
            changed = outside(indexes[name], data, box)
            assert_same(run(engine, changed, box, index=indexes[name]), image, box, None, None, False)
            assert engine.unindexed == 0, name
            assert changed == data or engine.decode(changed, MAX_PIXELS, None, 1) is None, name
            assert changed == data or engine.decode(changed, MAX_PIXELS) is None, name


def check_wrong_checkpoints(engine: Engine) -> None:
    """An index with a byte changed, cut off, or of another file is not used, and all is as without; one that was forged
    reads nothing that it should not, and what shows that it is wrong leads to decoding without it."""
    for channels, gray in ((3, False), (1, False), (1, True)):
        _check_wrong_checkpoints(engine, channels, gray)


def _check_wrong_checkpoints(engine: Engine, channels: int, gray: bool) -> None:
    (data, image), (other, _) = (all_files(channels)[name] for name in ("420", "420 restarts"))
    decoded = functools.partial(run, channels=channels)
    index, others = engine.make_indexes([data, other], gray)
    box = (17, 30, 40, 50)
    wrong = [others, index[:-1], index + b"\0", index[:HEAD], index[:3]]
    wrong += [index[:at] + bytes([index[at] ^ 1 << at % 8]) + index[at + 1 :] for at in range(len(index))]
    for each in wrong:
        assert_same(decoded(engine, data, box, index=each), image, box, None, None, False)
        assert engine.unindexed == 1
    for changed in (data + b"\0", data.replace(b"\xff\xda", b"\xff\xfe\0\2\xff\xda", 1)):  # another length; a comment
        assert_same(decoded(engine, changed, box, index=index), image, box, None, None, False)
        assert engine.unindexed == 1
    detected = 0
    for at in range(len(index) * 8):
        if at // 8 in range(16, HEAD):
            continue
        forged = bytearray(index)
        forged[at // 8] ^= 1 << at % 8
        found = decoded(engine, data, box, index=repaired(bytes(forged), data))
        assert found is not None  # it is decoded without, or differs in pixels
        detected += engine.unindexed
    assert detected > len(index)
    # In a decoded row the first piece's fields have to lead to the next checkpoint: its bit, and its predictions.
    whole = (0, 0, *image.shape[:2])
    fields = index[2:4] if gray else index[2:6]  # chroma that is passed over has no predictions
    for at in range(8 * HEAD, 8 * HEAD + sum(fields)):
        forged = bytearray(index)
        forged[at // 8] ^= 1 << at % 8
        found = decoded(engine, data, whole, index=repaired(bytes(forged), data))
        assert_same(found, image, whole, None, None, False)
        assert engine.unindexed == 1, at
    # Another marker behind a piece that is decoded.
    there = [piece.stop // 8 for piece in pieces(others, other) if other[piece.stop // 8] == 0xFF]
    assert decoded(engine, other, (0, 0, 9, 9), index=others) is not None
    changed = other[: there[0] + 1] + bytes([other[there[0] + 1] ^ 3]) + other[there[0] + 2 :]
    assert decoded(engine, changed, (0, 0, 9, 9), index=others) is None
    # Damage is an error with an index, too, if it lies in what the box needs.
    half = data[: len(data) // 2] + b"\xff\xd9" + data[len(data) // 2 + 2 :]
    assert decoded(engine, half, whole, index=index) is None
    assert engine.unindexed == 1


def check_brightness(engine: Engine) -> None:
    """A program scales bytes, truncates and clips them as torchvision does; images end within a vector."""
    rng = np.random.default_rng(3)
    for width, factor in itertools.product((7, 32, 71), (0.3, 1.4)):
        images = rng.integers(0, 256, (2, 9, width, 3), np.uint8)
        expected = np.clip(images * np.float32(factor), 0, 255).astype(np.uint8)
        engine.augment(images, step(2, Code.BRIGHTNESS, factor))
        assert (images == expected).all(), (width, factor)


def check_all(engine: Engine) -> None:
    """Runs all checks, quick ones first: most faults are found by these."""
    check_pixels(engine)
    check_resizing(engine)
    check_brightness(engine)
    check_together(engine)
    check_refusals(engine)
    check_wrong_checkpoints(engine)
    check_guard_pages(engine)
    check_checkpoints(engine)
    check_forms(engine)
