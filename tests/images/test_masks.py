"""Masks: the values that Pillow gives, whoever decodes them; and the engine's reader of PNG rows beside zlib."""

from __future__ import annotations

import io
import itertools
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from packstore import DecodeError
from packstore.images.engine import png_rows
from tests.internals import compiled, decode_mask, make_mask_file, masks, read_mask_header
from tests.makers.engine_checks import guarded
from tests.makers.images import encode
from tests.makers.sanitizers import build_sanitized
from tests.makers.typed import png

RNG = np.random.default_rng(0)
CONTENTS = {
    "flat": np.zeros((40, 300), np.uint8),
    "objects": np.repeat(np.repeat(RNG.integers(0, 21, (5, 6)), 8, 0), 50, 1).astype(np.uint8),
    "noise": RNG.integers(0, 256, (40, 300)).astype(np.uint8),
    "sparse": (RNG.random((40, 300)) < 0.02).astype(np.uint8) * 7,
    "periods": np.tile(np.arange(13, dtype=np.uint8), 924)[:12000].reshape(40, 300),
    "steep": np.minimum(RNG.geometric(0.02, (40, 300)), 255).astype(np.uint8),
}


def filtered(values: NDArray[np.uint8], kinds: list[int], step: int = 1) -> bytes:
    """Rows as a PNG file has them, each with the next of these filters."""
    rows, above = b"", np.zeros(values.shape[1], np.int64)
    for row, kind in zip(values.astype(np.int64), itertools.cycle(kinds), strict=False):
        left, corner = (np.concatenate([np.zeros(step, np.int64), line[:-step]]) for line in (row, above))
        p = left + above - corner
        a, b, c = abs(p - left), abs(p - above), abs(p - corner)
        paeth = np.where((a <= b) & (a <= c), left, np.where(b <= c, above, corner))
        predicted = [0 * row, left, above, (left + above) // 2, paeth][kind]
        rows += bytes([kind]) + ((row - predicted) % 256).astype(np.uint8).tobytes()
        above = row
    return rows


def deflated(data: bytes, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY, memory: int = 8) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, 15, memory, strategy)
    half = len(data) // 2
    return (
        packer.compress(data[:half]) + packer.flush(zlib.Z_FULL_FLUSH) + packer.compress(data[half:]) + packer.flush()
    )


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_rows_are_what_was_packed(name: str, level: int) -> None:
    values = CONTENTS[name]
    for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FILTERED):
        for memory in (1, 9):
            packed = deflated(filtered(values, [0]), level, strategy, memory)
            for rows in (1, 17, 40):
                found = png_rows(packed, rows, 300, 1)
                assert found is not None
                np.testing.assert_array_equal(found, values[:rows])
            assert png_rows(packed, 41, 300, 1) is None


@pytest.mark.parametrize("kinds", [[0], [1], [2], [3], [4], [4, 1, 3, 0, 2], [5]])
@pytest.mark.parametrize("step", [1, 2])
def test_filters_are_undone(kinds: list[int], step: int) -> None:
    for values in CONTENTS.values():
        if kinds == [5]:
            assert png_rows(deflated(bytes([5]) + bytes(300)), 1, 300, step) is None
            continue
        found = png_rows(deflated(filtered(values, kinds, step)), 40, 300, step)
        assert found is not None
        np.testing.assert_array_equal(found, values)


@pytest.mark.slow
def test_damaged_streams_are_refused_or_what_zlib_gives() -> None:
    rng, accepted = np.random.default_rng(5), 0
    for name, level in itertools.product(CONTENTS, (0, 1, 9)):
        packed = bytearray(deflated(filtered(CONTENTS[name], [0]), level))
        for _ in range(60):
            changed = packed[: rng.integers(0, len(packed))] if rng.random() < 0.2 else bytearray(packed)
            for place in rng.integers(0, max(1, len(changed)), 2).tolist() if rng.random() < 0.8 else ():
                changed[place : place + 1] = bytes([rng.integers(256)])
            rows = int(rng.integers(1, 41))
            found = png_rows(bytes(changed) or b"\0", rows, 300, 1)
            try:
                expected = zlib.decompressobj().decompress(bytes(changed), rows * 301)
            except zlib.error:
                continue  # zlib looks a little further ahead
            lines = np.frombuffer(expected.ljust(rows * 301, b"\0"), np.uint8).reshape(rows, 301)
            if len(expected) < rows * 301 or (lines[:, 0] > 4).any():
                assert found is None
            elif not lines[:, 0].any():
                assert found is not None
                np.testing.assert_array_equal(found, lines[:, 1:])
                accepted += 1
    assert accepted > 100


def test_nothing_behind_the_stream_is_read() -> None:
    library = compiled.load_once()[0]
    assert library is not None
    to = np.empty((41, 301), np.uint8)
    for values in CONTENTS.values():
        packed = deflated(filtered(values, [0]))
        for length in (*range(2, 40), *range(len(packed) - 40, len(packed) + 1)):
            address, memory = guarded(packed[:length])
            library.packstore_engine_png(address, length, to.ctypes.data, 40, 300, 1, length % 2)
            del memory


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    program = build_sanitized("png_fuzz", request)
    seeds = []
    for name, level, strategy in itertools.product(CONTENTS, (0, 9), (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED)):
        seeds.append(tmp_path / f"{name}{level}{strategy}")
        seeds[-1].write_bytes(deflated(filtered(CONTENTS[name], [4, 1, 3, 0, 2]), level, strategy))
    done = subprocess.run([program, "100000", "1", *seeds], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    tried, accepted = map(int, done.stdout.split())
    assert tried == 100_000
    assert accepted > tried // 20


# Files


@pytest.fixture(params=["engine", "pillow"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pillow":
        monkeypatch.setattr(masks, "png_rows", lambda *_: None)


def pillow(data: bytes) -> NDArray[Any]:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("mode", ["P", "L", "1", "I;16"])
@pytest.mark.parametrize("rows", [None, 0, 1, 20])
def test_masks_are_what_pillow_gives(mode: str, rows: int | None) -> None:
    values: NDArray[Any] = CONTENTS["steep"][:33, :21]
    values = values > 9 if mode == "1" else values.astype(np.uint16) * 257 if mode == "I;16" else values
    data = png(values, palette=mode == "P")
    header = read_mask_header(data)
    found = decode_mask(data, header, rows)
    assert (header.height, header.width) == (33, 21)
    assert found.dtype == header.dtype
    assert len(found) >= (33 if rows is None else rows)
    np.testing.assert_array_equal(found[:rows], pillow(data)[:rows])


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_palettes_of_few_colours(bits: int) -> None:
    image = Image.new("P", (13, 7))
    image.putpalette([9, 8, 7] * 2**bits)
    image.putdata([n % 2**bits for n in range(91)])
    file = io.BytesIO()
    image.save(file, "PNG", bits=bits)
    header = read_mask_header(file.getvalue())
    assert header.bits == bits
    np.testing.assert_array_equal(decode_mask(file.getvalue(), header).ravel(), [n % 2**bits for n in range(91)])


@pytest.mark.usefixtures("either")
def test_content_in_many_chunks() -> None:
    values = CONTENTS["noise"]
    data = png(values)
    place = data.index(b"IDAT") - 4
    (length,) = struct.unpack(">I", data[place : place + 4])
    content, parts = data[place + 8 : place + 8 + length], b""
    for first in range(0, length, 1000):
        part = b"IDAT" + content[first : first + 1000]
        parts += struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
    split = data[:place] + parts + data[place + 12 + length :]
    np.testing.assert_array_equal(decode_mask(split, read_mask_header(split)), values)


def test_pillows_own_limit_and_missing_memory_are_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(Image.new("1", (40, 30), 1), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # a limit of the whole process; a mask has that of its dataset
    assert decode_mask(data, read_mask_header(data)).all()

    def fail(_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(MemoryError):
        decode_mask(data, read_mask_header(data))


@pytest.mark.usefixtures("either")
def test_damaged_files_raise() -> None:
    data = png(CONTENTS["noise"])
    header = read_mask_header(data)
    for damaged in (data[:200], data[:100] + bytes(400) + data[500:]):
        with pytest.raises(DecodeError, match="damaged"):
            decode_mask(damaged, header)
        with pytest.raises(DecodeError, match="damaged"):
            make_mask_file(damaged)


def chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, place = [], 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        found.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    return found


def assembled(found: list[tuple[bytes, bytes]]) -> bytes:
    """A PNG file of chunks, with right checksums."""
    parts = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in found
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """A PNG file with a change or two: in a chunk whose checksum is right afterwards, of chunks, or anywhere."""
    found = chunks(data)
    for _ in range(rng.integers(1, 3)):
        at = int(rng.integers(len(found)))
        kind, body = found[at]
        choice = rng.integers(6)
        if choice < 2 and body:
            near = rng.integers(len(body)) if rng.random() < 0.5 else rng.choice([0, -1, -2, -4, -5, -6])
            place = int(near) % len(body)
            found[at] = kind, body[:place] + bytes([rng.integers(256)]) + body[place + 1 :]
        elif choice == 2:
            found[at] = kind, (body[: rng.integers(len(body) + 1)], body + b"\0")[rng.integers(2)]
        elif choice == 3 and len(found) > 1:
            del found[at]
        elif choice == 4:
            found.insert(int(rng.integers(len(found) + 1)), found[at])
        elif choice == 5:
            name = (b"tRNS", b"PLTE", b"gAMA", b"pHYs", b"tEXt", b"acTL", b"iCCP", b"zTXt", b"IDAT", b"tIME")
            new = (
                name[rng.integers(len(name))],
                bytes(rng.integers(0, 256, rng.choice([0, 1, 2, 4, 9, 300]), np.uint8)),
            )
            found.insert(int(rng.integers(len(found) + 1)), new)
    changed = bytearray(assembled(found))
    if rng.random() < 0.3:
        changed[rng.integers(8, len(changed))] = rng.integers(256)
    return bytes(changed[: rng.integers(len(changed))] if rng.random() < 0.1 else changed)


def verdict(data: bytes) -> Any:
    """The values of a mask, or None for one that is refused."""
    try:
        return decode_mask(data, read_mask_header(data, 1 << 16)).tolist()
    except DecodeError:
        return None


def judged_by_pillow(data: bytes) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "png_rows", lambda *_: None)
        return verdict(data)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["P", "L", "I;16"])
def test_the_verdict_on_a_file_is_pillows(mode: str) -> None:
    count, refused, rng = 1000, 0, np.random.default_rng([*mode.encode()])
    for number in range(count):
        values: NDArray[Any] = [*CONTENTS.values()][number % len(CONTENTS)][:9, :21]
        data = mutated(png(values.astype(np.uint16) * 257 if mode == "I;16" else values, palette=mode == "P"), rng)
        expected = judged_by_pillow(data)
        assert verdict(data) == expected, data
        refused += expected is None
    assert count // 10 < refused < count * 9 // 10


@pytest.mark.parametrize("fault", ["IHDR", "PLTE", "IDAT", "filter", "checksum of pixels", "end of pixels"])
def test_each_fault_that_pillow_finds(fault: str) -> None:
    found = chunks(png(CONTENTS["objects"], palette=True))
    kinds = [kind for kind, _ in found]
    if fault in ("IHDR", "PLTE"):
        data = bytearray(assembled(found))
        data[data.index(fault.encode()) + 4 + len(found[kinds.index(fault.encode())][1])] ^= 1
    else:
        at = kinds.index(b"IHDR" if fault == "filter" else b"IDAT")
        body = bytearray(found[at][1])
        if fault == "end of pixels":
            del body[-6:]
        else:
            body[{"filter": 11, "IDAT": 40, "checksum of pixels": -1}[fault]] ^= 1
        found[at] = found[at][0], bytes(body)
        data = bytearray(assembled(found))
    assert verdict(bytes(data)) == judged_by_pillow(bytes(data))
    assert fault == "end of pixels" or verdict(bytes(data)) is None


def test_chunks_of_common_programs_do_not_slow_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "open_mask", lambda *_: pytest.fail("Pillow was asked"))
    header, palette, pixels, end = chunks(png(CONTENTS["objects"], palette=True))
    common = [
        (b"pHYs", bytes(9)),
        (b"tEXt", b"Software\0x"),
        (b"tIME", bytes(7)),
        (b"gAMA", bytes(4)),
        (b"tRNS", b"\0"),
    ]
    data = assembled([header, palette, *common, pixels, (b"tEXt", b"date\0x"), end])
    np.testing.assert_array_equal(verdict(data), CONTENTS["objects"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a PNG"),
        (b"GIF89a" + bytes(50), "not a PNG"),
        (png(np.zeros((4, 4, 3), np.uint8)), "holds RGB"),
        (png(np.zeros((4, 4, 4), np.uint8)), "RGB with alpha"),
        (png(np.zeros((4, 4), np.uint8))[:16] + bytes(4) + bytes(30), "header cannot be read"),
        (png(np.zeros((4, 4), np.uint8))[:16] + b"\x7f\xff\xff\xff" * 2 + b"\x08\0\0\0\0" + bytes(9), "pixels"),
    ],
)
def test_what_is_no_mask_is_named(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        read_mask_header(data)
