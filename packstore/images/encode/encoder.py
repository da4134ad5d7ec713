"""Sample to record: pass through, resize and re-encode, decode to uint8, normalise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ImageData
from packstore.core.errors import DecodeError, SampleError, UsageError, printable
from packstore.core.manifest import (
    ENCODED,
    ENCODINGS,
    FLOAT_ENCODINGS,
    ITEM_SIZE,
    TENSOR_ENCODINGS,
    Column,
    Normalization,
)
from packstore.images.decoders import Decoder, get_decoder
from packstore.images.encode.options import MAX_SIDE, EncodeOptions, check_choice
from packstore.images.encode.pixels import cast_floats, normalization_tables, normalize
from packstore.images.encode.seekable import encode_seekable, is_jpeg, rewrite
from packstore.images.resize import Pixels, TooLargeError, fit, limit, limited_size, target_size
from packstore.images.seekable import NotSeekableError
from packstore.images.sniff import HeaderError, ImageInfo, check_header, too_many_pixels


class Encoded(NamedTuple):
    """A record.

    Attributes:
        record: The bytes of the image column.
        shape: ``(height, width, 3)`` of the pixels where they were decoded or known, else None.
        kept: For ``seekable``: why the record is the file as it came, where it could not be made so; else None.
        lossy: For ``seekable``: an image that was no JPEG became one, of other pixels.
    """

    record: bytes | bytearray | memoryview
    shape: tuple[int, int, int] | None
    kept: str | None = None
    lossy: bool = False


class Encoder:
    """Turns what a source yields into records; may be called from many threads at once.

    Attributes:
        options: As given.
        encoding: What the image column holds. It is ``options.encoding`` except that ``original`` of a source of
            arrays is that source's own encoding: there are no files.
        passes_through: Records are the source's bytes, untouched.
    """

    def __init__(
        self,
        options: EncodeOptions,
        source_encoding: str = "original",
        shape: tuple[int, ...] | None = None,
        source_normalization: Normalization | None = None,
    ) -> None:
        """
        Args:
            options: How samples become records.
            source_encoding: What the source yields: ``original``, ``jpeg`` or ``seekable`` for bytes of image files,
                ``uint8`` for arrays, a floating point encoding for arrays out of such a store.
            shape: ``(height, width, 3)`` that all images have, where that is known; ``options.size`` decides alone.
            source_normalization: What a source of floats was normalised with.

        Raises:
            UsageError: The source cannot be brought to the encoding.
        """
        check_choice("source_encoding", source_encoding, ENCODINGS)
        self.options = options
        self.source_encoding = source_encoding
        as_it_is = options.encoding == "original" and source_encoding in TENSOR_ENCODINGS
        self.encoding = source_encoding if as_it_is else options.encoding
        self._normalization = source_normalization if as_it_is else options.normalization
        self._example = ""  # key of an image that had the expected shape, for messages
        self.shape = self._fixed_shape(shape)
        same = self.encoding == source_encoding or (options.encoding == "original" and source_encoding in ENCODED)
        self.passes_through = same and not options.changes_pixels
        self._encode = self._choose(source_normalization)

    def __call__(self, key: str, image: ImageData) -> Encoded:
        """The record of the sample ``key``.

        Args:
            key: For messages.
            image: Bytes of an image file; or uint8 ``(H, W, 3)``; or out of a store of floats ``(3, H, W)`` in its
                dtype (bfloat16 as uint16 bit patterns).

        Raises:
            SampleError: The image is damaged or cannot be encoded.
            UsageError: It has another size than the images before, and the encoding needs one size.
        """
        try:
            return self._encode(key, image)
        except DecodeError as error:
            raise SampleError(key, str(error)) from error
        except (HeaderError, TooLargeError) as error:
            raise SampleError(key, error.reason) from error

    def columns(self) -> tuple[Column, ...]:
        """The image column, and ``shape`` (int32, height width channels) for raw pixels of differing sizes.

        Raises:
            UsageError: The encoding needs to know the shape, and neither ``size`` nor ``shape`` was given.
        """
        if self.encoding in ENCODED:
            return (Column("image", "ragged", "uint8"),)
        if self.encoding == "uint8":
            if self.shape is None:
                return (Column("image", "ragged", "uint8", layout="HWC"), Column("shape", "fixed", "int32", (3,)))
            return (Column("image", "fixed", "uint8", self.shape, layout="HWC"),)
        if self.shape is None:
            raise UsageError(
                f"the encoding {self.encoding} needs images of one size, and that size is not known; "
                "give one, for example --size 224"
            )
        height, width, channels = self.shape
        return (Column("image", "fixed", self.encoding, (channels, height, width), layout="CHW"),)

    def decoder_version(self) -> str:
        """Name and version of the library that decodes. Loads it."""
        return self.decoder.version

    @functools.cached_property
    def decoder(self) -> Decoder:
        return get_decoder(self.options.decoder, max_pixels=self.options.max_pixels)

    def _fixed_shape(self, shape: tuple[int, ...] | None) -> tuple[int, int, int] | None:
        if self.encoding in ENCODED:
            return None
        if self.options.size is not None:
            return (*target_size(self.options.size), 3)
        if shape is None:
            return None
        if len(shape) != 3 or shape[2] != 3:
            raise UsageError(f"the images have shape {shape}; expected (height, width, 3)")
        return (*limited_size(shape[0], shape[1], self.options.resize, self.options.max_side), 3)

    def _choose(self, source_normalization: Normalization | None) -> Callable[[str, ImageData], Encoded]:
        source, target = self.source_encoding, self.encoding
        if source in FLOAT_ENCODINGS:
            if target not in FLOAT_ENCODINGS or self.options.changes_pixels:
                raise UsageError(
                    f"the source holds normalised {source} values, from which neither {self.options.encoding} images "
                    "nor other sizes can be made without loss; pack from the images"
                )
            if self._normalization != source_normalization:
                raise UsageError(
                    f"the source is normalised with {_describe(source_normalization)}, not with "
                    f"{_describe(self._normalization)}; keep its normalisation, or pack from the images"
                )
            return self._keep_array if source == target else self._cast
        if self.passes_through:
            return self._keep_bytes if source in ENCODED else self._keep_array
        if target == "jpeg":
            return self._jpeg
        if target == "seekable":
            return self._seekable
        if target == "uint8":
            return self._uint8
        if target in FLOAT_ENCODINGS:
            self._tables = normalization_tables(target, self._normalization)
            return self._float
        raise UsageError(f"{source} cannot become {target}; use jpeg, seekable or a tensor encoding")

    def _keep_bytes(self, key: str, image: ImageData) -> Encoded:
        data = _as_bytes(key, image)
        info = self._check_header(data)
        if self.options.check == "decode":
            height, width, _ = self.decoder.decode(data, info=info).shape
            return Encoded(data, (height, width, 3))
        return Encoded(data, None)

    def _check_header(self, data: bytes | memoryview) -> ImageInfo | None:
        # Microseconds, and it names what is wrong with a file in the same words whatever becomes of the file; a decoder
        # says what it stumbled over.
        if self.options.check == "none":
            return None
        info = check_header(data)
        reason = too_many_pixels(info.width, info.height, self.options.max_pixels)
        if reason is not None:
            raise HeaderError(reason)
        return info

    def _keep_array(self, key: str, image: ImageData) -> Encoded:
        array = _as_array(key, image, self.source_encoding)
        return Encoded(_raw(array), self._check_shape(key, _pixel_shape(array, self.encoding)))

    def _cast(self, key: str, image: ImageData) -> Encoded:
        array = _as_array(key, image, self.source_encoding)
        shape = self._check_shape(key, _pixel_shape(array, self.encoding))
        return Encoded(_raw(cast_floats(array, self.source_encoding, self.encoding)), shape)

    def _pixels(self, key: str, image: ImageData) -> Pixels:
        options = self.options
        if self.source_encoding in ENCODED:
            data = _as_bytes(key, image)
            info = self._check_header(data)
            pixels = self.decoder.decode(data, exif_transpose=options.exif_transpose, info=info)
        else:
            pixels = _as_array(key, image, "uint8")
        if options.size is not None:
            return fit(pixels, options.size, options.fit)
        return limit(pixels, options.resize, options.max_side)

    def _jpeg(self, key: str, image: ImageData) -> Encoded:
        return self._as_jpeg(key, image, encode_jpeg)

    def _as_jpeg(self, key: str, image: ImageData, encode: Callable[[Pixels, int], bytes]) -> Encoded:
        pixels = self._pixels(key, image)
        height, width, _ = pixels.shape
        if max(height, width) > MAX_SIDE:
            raise SampleError(key, f"{height}x{width} pixels are too many for a JPEG; shrink it with max-side")
        return Encoded(encode(pixels, self.options.quality), (height, width, 3))

    def rewrites(self, image: ImageData) -> bool:
        """Whether the record of ``image`` has exactly its pixels, in a JPEG file that is written anew."""
        whole = self.encoding == "seekable" and not self.passes_through and not self.options.changes_pixels
        return whole and not isinstance(image, np.ndarray) and is_jpeg(image)

    def _seekable(self, key: str, image: ImageData) -> Encoded:
        if not self.rewrites(image):
            return self._as_jpeg(key, image, encode_seekable)._replace(lossy=not self.options.changes_pixels)
        data = _as_bytes(key, image)
        info = self._check_header(data)
        check = self.options.check
        try:
            return Encoded(rewrite(data, None if check == "none" else self.decoder, info), None)
        except NotSeekableError as error:
            if check == "decode":
                self.decoder.decode(data, info=info)
            return Encoded(data, None, error.reason)
        except DecodeError:
            if check == "decode":
                raise
            return Encoded(data, None, "does not decode")

    def _uint8(self, key: str, image: ImageData) -> Encoded:
        pixels = self._pixels(key, image)
        return Encoded(_raw(pixels), self._check_shape(key, _pixel_shape(pixels, "uint8")))

    def _float(self, key: str, image: ImageData) -> Encoded:
        pixels = self._pixels(key, image)
        shape = self._check_shape(key, _pixel_shape(pixels, "uint8"))
        return Encoded(_raw(normalize(pixels, self._tables)), shape)

    def _check_shape(self, key: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        if shape == self.shape:
            self._example = self._example or key
        elif self.shape is not None:
            height, width, _ = self.shape
            others = printable(self._example) or "the others"
            proposal = 224 if min(*shape[:2], height, width) >= 64 else 32
            raise UsageError(
                f"images differ in size (height x width): {shape[0]}x{shape[1]} ({printable(key)}), "
                f"{height}x{width} ({others}); give --size, e.g. --size {proposal}"
            )
        return shape


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """``pixels``, uint8 ``(H, W, 3)`` RGB, as a baseline JPEG: YCbCr 4:2:0. Releases the GIL.

    Always simplejpeg, so that records do not depend on what else is installed: libjpeg-turbo's own choice of DCT, the
    fast one below quality 96 (measured on 300 images: 0.06 dB less than the accurate one at 90, 0.27 dB at 95).
    """
    import simplejpeg

    pixels = np.ascontiguousarray(pixels)
    return cast(bytes, simplejpeg.encode_jpeg(pixels, quality, "RGB", "420", fastdct=False))


def _as_bytes(key: str, image: ImageData) -> bytes | memoryview:
    if isinstance(image, np.ndarray):
        raise SampleError(key, f"the source gave an array of shape {image.shape}; expected the bytes of an image file")
    return image


def _as_array(key: str, image: ImageData, encoding: str) -> NDArray[Any]:
    if not isinstance(image, np.ndarray):
        raise SampleError(key, f"the source gave {len(image)} bytes; expected an array ({encoding})")
    channels = image.shape[2 if encoding == "uint8" else 0] if image.ndim == 3 else 0
    if channels != 3 or image.dtype.itemsize != ITEM_SIZE[encoding]:
        raise SampleError(
            key, f"the source gave {image.dtype} of shape {image.shape}; expected {encoding} with 3 channels"
        )
    return image


def _pixel_shape(array: NDArray[Any], encoding: str) -> tuple[int, int, int]:
    height, width = array.shape[:2] if encoding == "uint8" else array.shape[1:]
    return (int(height), int(width), 3)


def _raw(array: NDArray[Any]) -> memoryview:
    """The bytes of ``array`` in C order; no copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _describe(normalization: Normalization | None) -> str:
    if normalization is None:
        return "nothing (plain 0 to 1)"
    return f"mean {normalization.mean} and standard deviation {normalization.std}"
