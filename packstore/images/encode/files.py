"""Encodings as image files: ``original`` keeps files, ``jpeg`` encodes images again. :func:`encode_png` writes PNG."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ImageData
from packstore.core.errors import DecodeError, SampleError, UsageError
from packstore.core.modes import Mode
from packstore.images.decoders import backends
from packstore.images.encode.base import EncodedImage, Encoding, SourceImages, describe_file_difference
from packstore.images.encode.options import GEOMETRY, MAX_SIDE
from packstore.images.resize import Pixels


class Original(Encoding):
    """Stores image files unchanged. A source of arrays has no files: its arrays are stored in its own encoding.

    The option ``progressive`` rewrites progressive JPEG files as baseline files with the same pixels and metadata.
    """

    name = "original"
    accepts = frozenset({"exif_transpose", "progressive"})
    keeps_exif = True

    def __init__(self, images: SourceImages, shape: tuple[int, ...] | None = None) -> None:
        super().__init__(images, shape)
        self.passes_through = self.passes_through and self.options.progressive is None

    @classmethod
    def choose_for_source(cls, source: type[Encoding]) -> type[Encoding]:
        """Returns this encoding for a source of image files. Returns ``source`` for a source of arrays, which stay
        unchanged."""
        return cls if source.layout is None else source

    @classmethod
    def stores_unchanged(cls, source: type[Encoding]) -> bool:
        """Tells if the source gives image files, not arrays."""
        return source.layout is None

    def versions(self) -> dict[str, str]:
        """Adds the version of TurboJPEG, by the role ``TurboJPEG``, if progressive files are rewritten. Raises
        :class:`UsageError` if the library is missing."""
        if self.options.progressive is None:
            return super().versions()
        return super().versions() | {"TurboJPEG": backends.find_baseline_version()}

    def encode(self, key: str, image: ImageData) -> EncodedImage:
        """Returns the file unchanged, or a progressive JPEG rewritten as baseline.

        Rewriting must not change a pixel. If it fails or would, the file is kept, and :attr:`EncodedImage.kept` says
        why."""
        kept = self.keep_unchanged(key, image)
        if isinstance(image, np.ndarray) or bytes(image[:2]) != b"\xff\xd8":
            return kept
        if not self.images.parse_header(image).progressive:
            return kept
        decoder, data = self.images.decoder, bytes(image)
        try:
            record = backends.make_baseline(data)
            # Verified by other code than the transformation: both files are decoded and compared.
            same = np.array_equal(decoder.decode(data), decoder.decode(record))
        except (backends.NotBaselineError, DecodeError) as error:
            return kept._replace(kept=str(error))
        return kept._replace(record=record) if same else kept._replace(kept="came out with other pixels")


MEAN_TOLERANCE = 0.5
"""Largest mean difference of pixel values (of 255) between a JPEG record and the same image encoded again.

Measured on 600 ImageNet files at shorter side 256, as mean difference of an image, largest of all images: after another
resizing (Pillow's, within 1 of 255 before encoding) 0.11 at quality 10, 0.19 at 50, 0.27 at 75, 0.33 at 90, 0.36 at 95,
0.14 at 100; so one value does for every quality. libjpeg-turbo 2.1 and 3.1 give the same bytes for the same pixels. A
quality that is off by 5 gives 2.5 (median). Comparing with the pixels before encoding would need 24 of 255."""

PATCH_TOLERANCES = {1: 45, 10: 32, 30: 24, 50: 20, 75: 11, 85: 8, 90: 6.2, 95: 3.8, 100: 1.4}
"""Largest mean difference (of 255) of any 8 x 8 pixels between a JPEG record and the same image encoded again, by
quality, linear in between. It sees what :data:`MEAN_TOLERANCE` averages away: a coefficient that is rounded the other
way changes one block, and no further than a quantisation step.

Measured as above on the 600 files (at shorter side 256 or 100) and on 50 images of noise, largest of all: 32 at
quality 1, 22 at 10, 17 at 30, 14 at 50, 8.3 at 75, 6.2 at 85, 4.5 at 90, 2.7 at 95, 0.9 at 100. In these files, 4 x 4
pixels that are off by 38 give at least 8.5 at quality 90 to 95, 8.0 at 100; below 85 they may pass for a rounded
coefficient. TurboJPEG and simplejpeg give the same bytes. Pillow encodes with another DCT below quality 96, which is
another image (up to 5 of 255 on average, 30 in a patch): packstore never encodes with it, and such records differ."""


class Jpeg(Encoding):
    """Baseline JPEG files, YCbCr 4:2:0 or gray. Refuses other modes, and sides above 65,535 pixels.

    A record with other bytes than expected may be right. It must have the same size, and differ by at most
    :data:`MEAN_TOLERANCE` on average. No patch of 8 x 8 pixels may differ by more than :data:`PATCH_TOLERANCES`."""

    name = "jpeg"
    accepts = GEOMETRY | {"quality"}

    def encode(self, key: str, image: ImageData) -> EncodedImage:
        """Decodes, resizes and re-encodes the image.

        Raises :class:`SampleError` for a side above 65,535 pixels, and the errors of :meth:`SourceImages.pixels`."""
        pixels = self.images.pixels(key, image)
        height, width, channels = pixels.shape
        if max(height, width) > MAX_SIDE:
            raise SampleError(key, f"{height}x{width} pixels are too many for a JPEG; shrink it with max-side")
        return EncodedImage(encode_jpeg(pixels, self.options.quality), (height, width, channels))

    def _check_mode(self) -> None:
        """Raises :class:`UsageError` for modes other than RGB and L."""
        if self.mode.name not in ("RGB", "L"):
            raise UsageError(
                f"a JPEG does not hold images of mode {self.mode}; use --encoding original or {self.mode.dtype}, or "
                "say with --mode RGB or L and --depth how they become 8 bits"
            )

    def difference(self, expected: EncodedImage, found: memoryview) -> str | None:
        """Describes differences of decoded pixels beyond :data:`MEAN_TOLERANCE` and :data:`PATCH_TOLERANCES`. Returns
        None if there are none."""
        decoder = self.images.decoder
        measure = functools.partial(describe_jpeg_difference, quality=self.options.quality)
        return describe_file_difference(decoder, decoder.decode(expected.record), found, measure)


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Encodes ``pixels``, uint8, as a baseline JPEG. Releases the GIL.

    ``(H, W, 3)`` RGB becomes YCbCr 4:2:0, ``(H, W, 1)`` gray becomes luma alone.

    Always uses simplejpeg, so that records do not depend on installed libraries. The DCT is libjpeg-turbo's default,
    the fast one below quality 96 (measured on 300 images: 0.06 dB less than the accurate one at 90, 0.27 dB at 95)."""
    import simplejpeg

    pixels = np.ascontiguousarray(pixels)
    colours = ("RGB", "420") if pixels.shape[2] == 3 else ("GRAY", "Gray")
    return cast(bytes, simplejpeg.encode_jpeg(pixels, quality, *colours, fastdct=False))


def describe_jpeg_difference(pixels: Pixels, wanted: Pixels, quality: int) -> str | None:
    """Describes how decoded pixels differ beyond the tolerances for ``quality``. Returns None if they do not.

    Both images have one shape."""
    difference = np.abs(pixels.astype(np.int16) - wanted)
    mean = float(difference.mean())
    if mean > MEAN_TOLERANCE:
        return f"its pixels differ by {mean:.2f} of 255 on average, allowed are {MEAN_TOLERANCE:g}"
    tolerance = float(np.interp(quality, list(PATCH_TOLERANCES), list(PATCH_TOLERANCES.values())))
    worst, row, column = worst_patch(difference)
    if worst <= tolerance:
        return None
    return (
        f"its pixels differ by {worst:.1f} of 255 on average around row {row}, column {column}, allowed are "
        f"{tolerance:g} in any 8 x 8 pixels"
    )


def worst_patch(difference: NDArray[np.int16]) -> tuple[float, int, int]:
    """Finds the patch of 8 x 8 pixels with the largest mean of absolute differences, over all channels.

    Returns the mean, and row and column of the patch's centre. Patches overlap by half, so that any 4 x 4 pixels are
    within one. At the image's border, pixels outside count as equal."""
    channels = difference.shape[2]
    sums = difference.sum(2, dtype=np.int32)
    for axis in (0, 1):
        sums = np.add.reduceat(sums, np.arange(0, sums.shape[axis], 4), axis)
    for axis in (0, 1):
        if sums.shape[axis] > 1:
            sums = np.take(sums, range(sums.shape[axis] - 1), axis) + np.take(sums, range(1, sums.shape[axis]), axis)
    row, column = divmod(int(sums.argmax()), sums.shape[1])
    return float(sums[row, column]) / (8 * 8 * channels), row * 4 + 4, column * 4 + 4


_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""Colour type in a PNG header (third edition, 11.2.1), by number of channels."""


def fits_png(mode: Mode) -> bool:
    """Tells if PNG can store every pixel value of a mode."""
    return mode.dtype in ("uint8", "uint16") and mode.channels in _COLOUR_TYPES and not mode.name.startswith("multi")


def encode_png(pixels: NDArray[Any]) -> bytes:
    """Encodes pixels, uint8 or uint16 ``(H, W, C)`` with 1 to 4 channels, as a PNG file.

    Pillow writes 8 bits and 16-bit gray. It has no mode for other 16-bit images: these are written here without row
    filters."""
    if pixels.dtype == np.uint16 and pixels.shape[2] > 1:
        return _encode_16_bit(pixels)
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)).save(out, "PNG")
    return out.getvalue()


def _encode_16_bit(pixels: NDArray[np.uint16]) -> bytes:
    """Encodes 16-bit pixels as a PNG file without row filters."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOUR_TYPES[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels * 2), np.uint8)  # byte 0 of a row: filter type none
    rows[:, 1:] = pixels.astype(">u2").reshape(height, -1).view(np.uint8)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_make_chunk(name, content) for name, content in chunks)


def _make_chunk(name: bytes, content: bytes) -> bytes:
    """Returns a PNG chunk with its length and checksum."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
