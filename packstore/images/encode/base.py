"""The contract of an encoding: layout of the image column, encoding of an image, comparison of a record."""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, ImageData
from packstore.core.errors import DecodeError, SampleError, UsageError, printable
from packstore.core.manifest import Column, Normalization
from packstore.core.modes import RGB, Mode
from packstore.images.decoders import TOLERANCE, Decoder, get_decoder
from packstore.images.encode.options import GEOMETRY, EncodeOptions
from packstore.images.engine import is_plain_jpeg
from packstore.images.image_files import decode, decode_rgb, examine_losses, losses_error
from packstore.images.orientation import read_orientation, swaps_sides
from packstore.images.reading import convert_pixels
from packstore.images.resize import Pixels, compute_limited_size, resize_to_fit, shrink_to_limits, target_size
from packstore.images.sniff import (
    HeaderError,
    ImageInfo,
    check_header,
    excess_pixels_message,
    get_kind,
    sniff,
    unread_bits_message,
)


class EncodedImage(NamedTuple):
    """Encoded image.

    Attributes:
        record: Bytes for the image column.
        shape: ``(height, width, channels)`` of the pixels if they are known, else None.
        kept: Reason why the file was stored unchanged though the options ask to rewrite it; else None.
        oriented: The EXIF orientation of the source's file asks for a rotation or flip.
        unified: Names of conversions from another mode, see :class:`packstore.images.image_files.LossReport`.
    """

    record: Buffer
    shape: tuple[int, int, int] | None
    kept: str | None = None
    oriented: bool = False
    unified: tuple[str, ...] = ()


_thread = threading.local()
"""Caches the latest image file of a thread and its header, so that the header is parsed once."""


class SourceImages:
    """Prepares the images of a source for an encoding: checks files, and decodes, orients and resizes pixels.

    Each thread caches the header of the file that it has checked last.

    Attributes:
        options: The encode options.
        encoding: Encoding of the source: :class:`~packstore.images.encode.files.Original` for image files, ``Uint8``
            for arrays, or that of a store.
        normalization: Normalisation of a source of floats.
        mode: Mode of a source of arrays. A source of files does not use it.
    """

    def __init__(
        self,
        options: EncodeOptions,
        encoding: type[Encoding],
        normalization: Normalization | None = None,
        mode: Mode = RGB,
    ) -> None:
        self.options = options
        self.encoding = encoding
        self.normalization = normalization
        self.mode = mode

    @functools.cached_property
    def decoder(self) -> Decoder:
        """Decoder by the options; loaded at first use. Raises :class:`UsageError` if it is not available."""
        options = self.options
        return get_decoder(options.decoder, max_pixels=options.max_pixels, reading=options.reading)

    def check_file(self, key: str, image: ImageData) -> tuple[bytes | memoryview, ImageInfo | None]:
        """Checks header and end of an image file. Returns its bytes and header, and caches both for this thread.

        If the header does not tell all, decodes the file. If checks are off, only refuses arrays, and returns None for
        the header.

        Raises:
            SampleError: ``image`` is an array.
            HeaderError: The file is damaged, too large, or of bits that packstore does not read. With
                ``skips_losses``, also if reading it would lose something.
            DecodeError: No library here can read it, or a value does not fit its mode.
            UsageError: Reading it would lose something, and no option says that this is allowed.
        """
        if isinstance(image, np.ndarray):
            raise SampleError(
                key, f"the source gave an array of shape {image.shape}; expected the bytes of an image file"
            )
        # The check takes microseconds and names a fault in the same words for every encoding; decoders differ in
        # theirs.
        if self.options.check == "none":
            return image, None
        info = check_header(image)
        kind = get_kind(info.kind)
        kind.import_library()  # kept as a file that nothing here can read, it would show only in training
        options = self.options
        reason = excess_pixels_message(info.width, info.height, options.max_pixels) or unread_bits_message(info)
        if reason is not None:
            raise HeaderError(reason)
        reading = self.options.reading
        examined = examine_losses(image, info, reading) if self.options.asks else None
        if examined is not None and examined.losses:
            if options.skips_losses:
                raise HeaderError(f"has {'; and '.join(examined.losses.values())}")
            raise losses_error(key, examined.losses, reading)
        if examined is not None and any(name.endswith("_by_pillow") for name in examined.unified):
            decode_rgb(memoryview(image), options.max_pixels)  # not every file that packstore reads
        elif not kind.plugin[0] or (examined is not None and not examined.is_certain):
            # The header does not tell if such a file is complete and if the mode can represent its values.
            decode(memoryview(image), options.max_pixels)
        _thread.latest = image, info
        _thread.unified = () if examined is None else examined.unified
        return image, info

    def last_conversions(self) -> tuple[str, ...]:
        """Returns the conversions of the file that this thread has checked last: names in
        :data:`packstore.images.image_files.UNIFIED`.

        Empty if that file needs none, and if checks are off."""
        conversions: tuple[str, ...] = getattr(_thread, "unified", ()) if self.options.check != "none" else ()
        return conversions

    def parse_header(self, image: bytes | memoryview) -> ImageInfo:
        """Returns the header of an image file. Parses it unless :meth:`check_file` has just done so in this thread.

        Raises :class:`HeaderError` if it is damaged."""
        latest, info = getattr(_thread, "latest", (None, None))
        return info if info is not None and latest is image else sniff(image)

    def read_orientation(self, image: bytes | memoryview) -> int:
        """Returns the EXIF orientation of an image file. Uses the cached header if :meth:`check_file` has just parsed
        it."""
        latest, info = getattr(_thread, "latest", (None, None))
        return read_orientation(image, info if latest is image else None)

    def possible_sizes(self, image: ImageData) -> tuple[tuple[int, int], ...]:
        """Returns (height, width) of an image as readers show it: upright if the options apply EXIF. In a tuple, empty
        for a file if checks are off. Raises :class:`HeaderError` for a damaged header."""
        if isinstance(image, np.ndarray):
            height, width = image.shape[:2] if self.encoding.layout == "HWC" else image.shape[1:]
            return ((height, width),)
        if self.options.check == "none":
            return ()
        info = self.parse_header(image)
        turned = self.options.exif_transpose and swaps_sides(read_orientation(image, info))
        return ((info.width, info.height) if turned else (info.height, info.width),)

    def check_array(self, key: str, image: ImageData) -> NDArray[Any]:
        """Returns the array of a source of arrays. Raises :class:`SampleError` for image files, and for arrays whose
        item size or number of channels is not the encoding's."""
        encoding, expected = self.encoding, self.mode.channels
        if not isinstance(image, np.ndarray):
            raise SampleError(key, f"the source gave {len(image)} bytes; expected an array ({encoding.dtype})")
        channels = image.shape[2 if encoding.layout == "HWC" else 0] if image.ndim == 3 else 0
        if channels != expected or image.dtype.itemsize != NUMPY_DTYPE[encoding.dtype].itemsize:
            raise SampleError(
                key,
                f"the source gave {image.dtype} of shape {image.shape}; expected {encoding.dtype} with {expected} "
                f"channel{'s' if expected > 1 else ''}",
            )
        return image

    def pixels(self, key: str, image: ImageData) -> Pixels:
        """Decodes an image to pixels ``(H, W, C)`` in the mode, orientation and size of the options.

        Not for a source of normalised floats, whose normalisation would remain; not checked here.

        Raises the errors of :meth:`check_file` or :meth:`check_array`, of the decoder, and of resizing."""
        options = self.options
        if self.encoding.layout is None:
            data, info = self.check_file(key, image)
            pixels = self.decoder.decode(data, exif_transpose=options.exif_transpose, info=info)
        else:
            array = self.check_array(key, image)
            pixels = convert_pixels(
                array.transpose(1, 2, 0) if self.encoding.layout == "CHW" else array, self.mode, options.reading
            )
        if options.size is not None:
            return resize_to_fit(pixels, options.size, options.fit)
        return shrink_to_limits(pixels, options.resize, options.max_side)


class Encoding(ABC):
    """Contract of an encoding, which turns images into records of the image column.

    To add one: a subclass and one line in :data:`packstore.core.registry.ENCODINGS`, or an entry point in the group
    ``packstore.encodings``; :class:`packstore.testing.EncodingSuite` tests it. An instance makes the records of one
    source. Its methods are thread-safe. A record depends on the image and the options alone.

    Stores know three layouts:

    - None: the bytes of image files, of a kind that :mod:`packstore.images.decoders` reads;
    - ``HWC``: pixels that are whole numbers;
    - ``CHW``: floating point values, normalised or not.

    Attributes:
        name: Its name in the registry and in manifests.
        layout: None, ``HWC`` or ``CHW``.
        dtype: Element type of the arrays; ``uint8`` for files.
        accepts: Fields of :class:`EncodeOptions` that shape its records. The user may set no others.
        keeps_exif: Image files keep their EXIF orientation unless they are resized; readers then apply it.
        images: Images of the source.
        options: The encode options.
        shape: ``(height, width, channels)`` of all images; None for files and for differing sizes.
        mode: Mode of all records.
        passes_through: Records are the source's bytes, unchanged.
    """

    name: ClassVar[str]
    layout: ClassVar[str | None] = None
    dtype: ClassVar[str] = "uint8"
    accepts: ClassVar[frozenset[str]] = GEOMETRY
    keeps_exif: ClassVar[bool] = False

    def __init__(self, images: SourceImages, shape: tuple[int, ...] | None = None) -> None:
        """``shape`` is the shape of all images of the source, if known; ``options.size`` has priority.

        Raises :class:`UsageError` if the source cannot be converted to this encoding."""
        self.images = images
        self.options = images.options
        self.mode = self.options.reading.pixels
        same = images.encoding.layout is None or images.mode == self.mode
        self.passes_through = self.stores_unchanged(images.encoding) and same and not self.options.changes_pixels
        # Then nothing that a plain JPEG may have is worth a note: see check_file().
        reading = self.options.reading
        is_rgb = reading.mode == RGB.name and not reading.frame
        self._accepts_plain = self.options.check == "header" and (is_rgb or not self.options.asks)
        self._check_mode()
        self.shape = self._required_shape(shape)
        self._example = ""  # key of an image that had the expected shape, for messages

    @classmethod
    def choose_for_source(cls, source: type[Encoding]) -> type[Encoding]:
        """Returns the encoding that a store gets if the user asks for this one, and the source's images have the
        encoding ``source``. By default, returns this encoding."""
        return cls

    @classmethod
    def stores_unchanged(cls, source: type[Encoding]) -> bool:
        """Tells if images of a source with the encoding ``source`` can be stored unchanged. By default, True for the
        same encoding alone."""
        return source is cls

    @abstractmethod
    def encode(self, key: str, image: ImageData) -> EncodedImage:
        """Encodes an image; ``key`` is for messages.

        Raises :class:`SampleError`, or the errors of :class:`SourceImages` and its decoder, for a damaged image.
        """

    def difference(self, expected: EncodedImage, found: memoryview) -> str | None:
        """Describes how the record ``found`` differs from ``expected``, a new encoding of the same image.

        Returns None if the difference is so small that another version of a library may have made it. By default
        compares pixels: by at most 0, or with resizing a small tolerance. Arrays must have equal sizes:
        :meth:`compare` checks it."""
        allowed = RESIZE_TOLERANCE if self.options.resizes else TOLERANCE
        if self.layout is None:
            decoder = self.images.decoder
            measure = functools.partial(describe_pixel_difference, allowed=allowed)
            return describe_file_difference(decoder, decoder.decode(expected.record), found, measure)
        wider: type[np.integer[Any]] = np.int16 if self.dtype == "uint8" else np.int64
        values, wanted = (
            np.frombuffer(data, NUMPY_DTYPE[self.dtype]).astype(wider) for data in (found, expected.record)
        )
        return describe_value_difference(np.abs(values - wanted), allowed, f"{allowed} of {int(self.mode.white)}")

    def versions(self) -> dict[str, str]:
        """Returns name and version of each library on which the records' bytes depend, by its role. By default, the
        decoder alone.

        Loads the libraries. Raises :class:`UsageError` if a library is not available.

        The manifest records them; an interrupted conversion resumes only with the same versions."""
        return {"decoder": self.images.decoder.version}

    def columns(self) -> tuple[Column, ...]:
        """Returns the image column.

        For raw pixels of different sizes, also returns a column ``shape`` (int32: height, width, channels).

        Raises:
            UsageError: The encoding needs one shape, and neither ``size`` nor ``shape`` is given.
        """
        mode = None if self.mode == RGB else self.mode.name
        if self.layout is None:
            return (Column("image", "ragged", "uint8", type="image", mode=mode),)
        if self.shape is not None:
            height, width, channels = self.shape
            shape = self.shape if self.layout == "HWC" else (channels, height, width)
            return (Column("image", "fixed", self.dtype, shape, layout=self.layout, type="image", mode=mode),)
        if self.layout == "HWC":
            return (
                Column("image", "ragged", self.dtype, layout="HWC", type="image", mode=mode),
                Column("shape", "fixed", "int32", (3,)),
            )
        raise UsageError(
            f"the encoding {self.name} needs images of one size, and that size is not known; "
            "give one, for example --size 224"
        )

    def keep_unchanged(self, key: str, image: ImageData) -> EncodedImage:
        """Returns the record of an image that is stored unchanged. Decodes a file only if ``check`` is ``decode``, or
        if its header does not tell all.

        Raises the errors of :meth:`SourceImages.check_file` or :meth:`SourceImages.check_array`, and of the decoder."""
        images = self.images
        # A subclass may have unset passes_through: it reads what check_file notes of the file.
        accepts = self._accepts_plain and self.passes_through
        if accepts and type(image) is bytes and is_plain_jpeg(image, self.options.max_pixels):
            return EncodedImage(image, None)
        if images.encoding.layout is not None:
            return self.of_array(key, images.check_array(key, image))
        data, info = images.check_file(key, image)
        # Most JPEG files have no APP1; the call would take some 3% of the time of a small file.
        plain = info is not None and info.sof and not info.app1_at
        oriented = False
        if not plain:
            oriented = read_orientation(data, info) != 1
        if self.options.check != "decode":
            return EncodedImage(data, None, None, oriented, images.last_conversions())
        height, width, channels = images.decoder.decode(data, info=info).shape
        return EncodedImage(data, (height, width, channels), None, oriented, images.last_conversions())

    def of_array(self, key: str, array: NDArray[Any]) -> EncodedImage:
        """Returns ``array``, in this encoding's layout, as a record; without a copy if it is contiguous.

        Raises:
            UsageError: The size of the image differs from :attr:`shape`, which all images must have.
        """
        height, width = array.shape[:2] if self.layout == "HWC" else array.shape[1:]
        shape = (int(height), int(width), self.mode.channels)
        if shape == self.shape:
            self._example = self._example or key
        elif self.shape is not None:
            expected = self.shape
            others = printable(self._example) or "the others"
            proposal = 224 if min(*shape[:2], *expected[:2]) >= 64 else 32
            raise UsageError(
                f"images differ in size (height x width): {shape[0]}x{shape[1]} ({printable(key)}), "
                f"{expected[0]}x{expected[1]} ({others}); give --size, e.g. --size {proposal}"
            )
        return EncodedImage(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, shape)

    def compare(self, key: str, image: ImageData, found: memoryview, shape: Sequence[int] | None = None) -> str | None:
        """Encodes ``image`` again, and describes how the record ``found`` differs. Returns None if it is right.

        Records that are stored unchanged must have the same bytes. Others may differ as far as :meth:`difference`
        tolerates. ``shape``, the stored shape, must be right, too; None if it is not known.

        Raises the errors of encoding the image."""
        expected = self.keep_unchanged(key, image) if self.passes_through else self.encode(key, image)
        if shape is not None and expected.shape is not None and tuple(shape) != expected.shape:
            return f"its shape is {tuple(int(n) for n in shape)}, expected {expected.shape}"
        wanted = memoryview(expected.record)
        if found == wanted:
            return None
        if self.passes_through:
            return describe_byte_difference(found, wanted)
        if self.layout is not None and found.nbytes != wanted.nbytes:
            return f"it has {found.nbytes} bytes, expected {wanted.nbytes} (shape {expected.shape})"
        return self.difference(expected, found)

    def _required_shape(self, shape: tuple[int, ...] | None) -> tuple[int, int, int] | None:
        """Returns the shape that all records must have, or None if shapes may differ."""
        options = self.options
        if self.layout is None:  # files
            return None
        if options.size is not None:
            return (*target_size(options.size), self.mode.channels)
        if shape is None:
            return None
        if len(shape) != 3:
            raise UsageError(f"the images have shape {shape}; expected (height, width, channels)")
        return (*compute_limited_size(shape[0], shape[1], options.resize, options.max_side), self.mode.channels)

    def _check_mode(self) -> None:
        """Raises :class:`UsageError` if the records are whole-number pixels of another dtype than the mode's."""
        if self.layout == "HWC" and self.dtype != self.mode.dtype:
            instead = ", or say with --depth how values become 8 bits" if self.dtype == "uint8" else ""
            raise UsageError(
                f"the encoding {self.name} does not hold images of mode {self.mode}; use --encoding {self.mode.dtype}"
                f"{instead}"
            )


RESIZE_TOLERANCE = 1
"""Largest difference of a pixel value (of 255) between resizing here and with another torch or processor
(AVX-512, AVX2 and plain code of torch 2.13 do not differ at all)."""


def describe_byte_difference(found: memoryview, expected: memoryview) -> str:
    """Describes how two unequal records differ, by size or by number of bytes and first place."""
    if found.nbytes != expected.nbytes:
        return f"it has {found.nbytes} bytes, the source {expected.nbytes}"
    unequal = np.frombuffer(found, np.uint8) != np.frombuffer(expected, np.uint8)
    return f"{np.count_nonzero(unequal)} of {found.nbytes} bytes differ, the first at {int(unequal.argmax())}"


def describe_file_difference(
    decoder: Decoder, wanted: Pixels, found: memoryview, measure: Callable[[Pixels, Pixels], str | None]
) -> str | None:
    """Describes how the image file ``found`` differs from the pixels ``wanted``. Returns None if there is no
    difference.

    Describes damage or another size, or returns ``measure`` of both pixels."""
    try:
        pixels = decoder.decode(found)
    except DecodeError as error:
        return f"it does not decode: {error}"
    if pixels.shape != wanted.shape:
        return f"it has {pixels.shape[0]}x{pixels.shape[1]} pixels, expected {wanted.shape[0]}x{wanted.shape[1]}"
    return measure(pixels, wanted)


def describe_pixel_difference(pixels: Pixels, wanted: Pixels, allowed: int = 0) -> str | None:
    """Returns a text with the number of pixels that differ by more than ``allowed`` of 255 in any channel.

    Returns None if there are none. Both images must have one shape; not checked here."""
    differ = np.abs(pixels.astype(np.int16) - wanted) > allowed if allowed else pixels != wanted
    unequal = differ.any(2)
    if not unequal.any():
        return None
    margin = f" by more than {allowed} of 255" if allowed else ""
    return f"{np.count_nonzero(unequal)} of {unequal.size} pixels differ{margin}"


def describe_value_difference(difference: NDArray[Any], limit: Any, tolerance: str) -> str | None:
    """Returns a text with the number of values whose ``difference`` exceeds ``limit`` or is not a number. Returns None
    if there are none.

    ``limit``: an array or a number. ``tolerance``: the limit as text."""
    wrong = ~(difference <= limit)
    if not wrong.any():
        return None
    worst = float("nan") if np.isnan(difference).any() else float(np.where(wrong, difference, 0).max())
    return f"{np.count_nonzero(wrong)} of {wrong.size} values differ by up to {worst:g}, allowed are {tolerance}"
