"""Encodes images as records: one class per encoding; :class:`Encoder` encodes the samples of a source and verifies
records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packstore.core.columns import Buffer, ImageData
from packstore.core.errors import DecodeError, SampleError, UsageError
from packstore.core.manifest import Column, Normalization
from packstore.core.modes import RGB, Mode
from packstore.core.registry import ENCODINGS
from packstore.images.encode.base import EncodedImage as EncodedImage
from packstore.images.encode.base import Encoding as Encoding
from packstore.images.encode.base import SourceImages as SourceImages
from packstore.images.encode.options import EncodeOptions as EncodeOptions
from packstore.images.encode.options import check_encoding
from packstore.images.encode.options import parse_size as parse_size
from packstore.images.resize import TooLargeError
from packstore.images.sniff import HeaderError


class Encoder:
    """Encodes images of a source as records, and compares records with images. Thread-safe.

    Attributes:
        options: The encode options.
        encoding: Encoding of the records: that of ``options``; for ``original`` and a source of arrays, the source's.
        passes_through: Records are the source's bytes, unchanged.
    """

    def __init__(
        self,
        options: EncodeOptions,
        source_encoding: str = "original",
        shape: tuple[int, ...] | None = None,
        source_normalization: Normalization | None = None,
        source_mode: Mode = RGB,
    ) -> None:
        """
        Args:
            options: The encode options.
            source_encoding: Encoding of the source: ``original`` for image files, ``uint8`` for arrays, or that of a
                store.
            shape: ``(height, width, channels)`` of all images, if it is known; ``options.size`` has priority.
            source_normalization: Normalisation of a source of floats.
            source_mode: Mode of a source of arrays.

        Raises:
            UsageError: The source cannot be converted to the encoding.
        """
        check_encoding("source_encoding", source_encoding)
        source: type[Encoding] = ENCODINGS[source_encoding]
        target: type[Encoding] = ENCODINGS[options.encoding].choose_for_source(source)
        is_reduced = source_normalization is None and source_mode.dtype != options.reading.pixels.dtype == "uint8"
        if source.layout == "CHW" and not is_reduced and (target.layout != "CHW" or options.changes_pixels):
            if source_normalization is None and source_mode.dtype == "float32":
                raise UsageError(
                    f"the source holds {source.name} values, from which neither {options.encoding} images nor other "
                    "sizes can be made without loss; say with --depth window:LO,HI how they become 8 bits"
                )
            raise UsageError(
                f"the source holds normalised {source.name} values, from which neither {options.encoding} images "
                "nor other sizes can be made without loss; pack from the images"
            )
        self.options = options
        self.encoding = target(SourceImages(options, source, source_normalization, source_mode), shape)
        self.passes_through = self.encoding.passes_through
        self._encode = self.encoding.keep_unchanged if self.passes_through else self._encode_noting_orientation

    def __call__(self, key: str, image: ImageData) -> EncodedImage:
        """Encodes the image of the sample ``key``.

        Args:
            key: Key of the sample, for messages.
            image: Bytes of an image file; pixels ``(H, W, C)``; or values ``(C, H, W)`` of a store of floats (bfloat16
                as uint16 bit patterns).

        Raises:
            SampleError: The image is damaged or cannot be encoded.
            UsageError: The image differs in size from earlier ones, and the encoding needs one size.
        """
        try:
            return self._encode(key, image)
        except DecodeError as error:
            raise SampleError(key, str(error)) from error
        except (HeaderError, TooLargeError) as error:
            raise SampleError(key, error.reason) from error

    def possible_sizes(self, image: ImageData, shape: tuple[int, ...] | None) -> Sequence[tuple[int, int]]:
        """Returns (height, width) of an image as readers show it, in a sequence; empty for a file if headers are not
        checked.

        Args:
            image: Image that this thread has just encoded.
            shape: Shape of its record; None if it was not decoded.
        """
        if shape is not None and not self.passes_through:
            return ((shape[0], shape[1]),)
        return self.encoding.images.possible_sizes(image)

    def _encode_noting_orientation(self, key: str, image: ImageData) -> EncodedImage:
        """Encodes an image, and notes orientation and conversions of a file in the result."""
        encoded = self.encoding.encode(key, image)
        if isinstance(image, np.ndarray):  # an array has no EXIF
            return encoded
        images = self.encoding.images
        return encoded._replace(oriented=images.read_orientation(image) != 1, unified=images.last_conversions())

    def compare(self, key: str, image: ImageData, record: Buffer, shape: Sequence[int] | None = None) -> str | None:
        """Describes how ``record`` differs from the record of ``image``, by the rule of ``verify --against``. Returns
        None if it is right.

        Encodes the image again. Equal bytes are always right; equal library versions produce them. Records that are
        stored unchanged must be equal. For others, each encoding has a tolerance
        (:meth:`packstore.images.encode.base.Encoding.difference`).

        Args:
            key: The sample's key, for errors.
            image: Image of the source.
            record: Bytes of the store's image column.
            shape: Value of the store's ``shape`` column, if it has one.

        Raises:
            SampleError, UsageError: As :meth:`__call__`.
        """
        try:
            return self.encoding.compare(key, image, memoryview(record).cast("B"), shape)
        except DecodeError as error:
            raise SampleError(key, str(error)) from error
        except (HeaderError, TooLargeError) as error:
            raise SampleError(key, error.reason) from error

    def columns(self) -> tuple[Column, ...]:
        """Returns the columns of the image, see :meth:`packstore.images.encode.base.Encoding.columns`."""
        return self.encoding.columns()

    def versions(self) -> dict[str, str]:
        """Returns the versions of the libraries on which the records' bytes depend. Empty if records are stored
        unchanged."""
        return {} if self.passes_through else self.encoding.versions()
