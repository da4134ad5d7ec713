"""The encoding ``seekable``: JPEG files rewritten without loss so that crops decode fast; see
:mod:`packstore.images.seekable`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np

from packstore.core.columns import Buffer, ImageData
from packstore.core.errors import DecodeError, SampleError
from packstore.images.decoders import Decoder
from packstore.images.encode.base import Encoded
from packstore.images.encode.differences import compare_file, pixel_difference
from packstore.images.encode.jpeg import Jpeg
from packstore.images.encode.options import EncodeOptions
from packstore.images.resize import Pixels
from packstore.images.seekable import (
    FrameHeader,
    NotSeekableError,
    add_index,
    choose_interval,
    make_checked,
    read_index,
    transform_version,
)
from packstore.images.sniff import ImageInfo

_BYTES_PER_PIXEL = {10: 0.04, 50: 0.14, 75: 0.21, 85: 0.29, 90: 0.34, 95: 0.48, 100: 0.78}
"""Of 4:2:0 files by quality, linear in between: measured on 15 ImageNet images. Only the interval depends on it."""


class Seekable(Jpeg):
    """JPEG files keep pixels and metadata; other images, and all where pixels are to change, are encoded anew.

    A rewritten record of other bytes is right when it has exactly the file's pixels.
    """

    name = "seekable"
    keeps_exif = True

    def encode(self, key: str, image: ImageData) -> Encoded:
        if not self.rewrites(image):
            return super().encode(key, image)._replace(lossy=not self.options.changes_pixels)
        data, info = self.images.file(key, image)
        check = self.options.check
        try:
            return Encoded(rewrite(data, None if check == "none" else self.images.decoder, info), None)
        except NotSeekableError as error:
            if check == "decode":
                self.images.decoder.decode(data, info=info)
            return Encoded(data, None, error.reason)
        except DecodeError:
            if check == "decode":
                raise
            return Encoded(data, None, "does not decode")

    def encode_pixels(self, pixels: Pixels) -> bytes:
        return encode_seekable(pixels, self.options.quality)

    def compare(self, key: str, image: ImageData, found: memoryview, shape: Sequence[int] | None = None) -> str | None:
        if not self.rewrites(image):
            return super().compare(key, image, found, shape)
        data, info = self.images.file(key, image)
        if found == memoryview(data):  # kept as it was
            return None
        decoder = self.images.decoder
        try:
            wanted = decoder.decode(data, info=info)
        except DecodeError as error:
            raise SampleError(key, str(error)) from error
        return compare_file(decoder, wanted, found, pixel_difference)

    def rewrites(self, image: ImageData) -> bool:
        """Whether the record of ``image`` is a JPEG file rewritten, with exactly its pixels."""
        whole = not self.passes_through and not self.options.changes_pixels
        return whole and not isinstance(image, np.ndarray) and bytes(image[:3]) == b"\xff\xd8\xff"

    def versions(self) -> dict[str, str]:
        transform = transform_version()
        return super().versions() | ({} if transform is None else {"jpegtran": transform})

    def count(self, records: Sequence[Buffer]) -> Mapping[str, int]:
        kept = sum(read_index(record) is None for record in records)
        return {"not_seekable": kept} if kept else {}

    @classmethod
    def describe_loss(cls, options: EncodeOptions) -> str | None:
        return f"in what is no JPEG yet, encoded at quality {options.quality}; in JPEG files none"


def rewrite(data: bytes | memoryview, decoder: Decoder | None, info: ImageInfo | None = None) -> bytes:
    """The JPEG file ``data``, crop-seekable, with the same pixels and metadata.

    Args:
        data: The file.
        decoder: Decodes the file and the result, which must be the same pixels, where our engine has not compared their
            coefficients; None to trust libjpeg-turbo.
        info: What the header of ``data`` says, where that is known.

    Raises:
        NotSeekableError: It cannot be; with the reason.
        DecodeError: It is damaged, which only the decoder saw.
        UsageError: There is no engine, no ``jpegtran``, and no library that does the same.
    """
    made = make_checked(data)
    if decoder is None or made.is_proven:
        return made.data
    pixels = decoder.decode(data, info=info)
    try:
        same = np.array_equal(pixels, decoder.decode(made.data))
    except DecodeError:
        same = False
    if not same:
        raise NotSeekableError("came out of libjpeg-turbo with other pixels")
    return made.data


def encode_seekable(pixels: Pixels, quality: int) -> bytes:
    """``pixels``, uint8 ``(H, W, 3)`` RGB, as a crop-seekable baseline JPEG: YCbCr 4:2:0, by Pillow, which can write
    restart markers everywhere and uses the accurate DCT at every quality."""
    from PIL import Image

    height, width, _ = pixels.shape
    frame = FrameHeader(0xC0, 8, width, height, ((2, 2), (1, 1), (1, 1)))
    per_pixel = float(np.interp(quality, list(_BYTES_PER_PIXEL), list(_BYTES_PER_PIXEL.values())))
    interval = choose_interval(frame, max(1, round(per_pixel * height * width)))
    out = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.save(out, "JPEG", quality=quality, subsampling="4:2:0", optimize=True, restart_marker_blocks=interval)
    return add_index(out.getvalue())
