"""The samples of a source to the records of an encoding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packstore.core.columns import Buffer, ImageData
from packstore.core.errors import DecodeError, SampleError, UsageError
from packstore.core.manifest import Column, Normalization
from packstore.core.modes import RGB, Mode
from packstore.core.registry import ENCODINGS
from packstore.images.encode.base import Encoded, Encoding, SourceImages
from packstore.images.encode.options import EncodeOptions, check_encoding
from packstore.images.resize import TooLargeError
from packstore.images.sniff import HeaderError


class Encoder:
    """Turns what a source yields into records; may be called from many threads at once.

    Attributes:
        options: As given.
        encoding: What makes the records: that of ``options``, except that ``original`` of a source of arrays is the
            source's own encoding.
        passes_through: Records are the source's bytes, untouched.
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
            options: How samples become records.
            source_encoding: What the source yields: ``original`` for image files, ``uint8`` for arrays, a store's own
                encoding.
            shape: ``(height, width, channels)`` that all images have, if that is known; ``options.size`` has priority.
            source_normalization: What a source of floats was normalised with.
            source_mode: The mode of a source of arrays.

        Raises:
            UsageError: The source cannot be brought to the encoding.
        """
        check_encoding("source_encoding", source_encoding)
        source: type[Encoding] = ENCODINGS[source_encoding]
        target: type[Encoding] = ENCODINGS[options.encoding].of_source(source)
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
        self._encode = self.encoding.keep if self.passes_through else self._make

    def __call__(self, key: str, image: ImageData) -> Encoded:
        """The record of the sample ``key``.

        Args:
            key: For messages.
            image: Bytes of an image file; or pixels ``(H, W, C)``; or out of a store of floats ``(C, H, W)`` in its
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

    def shown_sizes(self, image: ImageData, shape: tuple[int, ...] | None) -> Sequence[tuple[int, int]]:
        """Heights and widths with which a record may be shown, as it lies and upright; empty where nothing was checked.

        Args:
            image: Of which the record was made, just before in this thread.
            shape: The record's, where it was decoded.
        """
        if shape is not None and not self.passes_through:
            return ((shape[0], shape[1]),)
        return self.encoding.images.shown_sizes(image)

    def _make(self, key: str, image: ImageData) -> Encoded:
        encoded = self.encoding.encode(key, image)
        if isinstance(image, np.ndarray):
            return encoded
        images = self.encoding.images
        return encoded._replace(oriented=images.orientation(image) != 1, unified=images.unified())

    def compare(self, key: str, image: ImageData, record: Buffer, shape: Sequence[int] | None = None) -> str | None:
        """What is wrong with ``record``, which should have been made of ``image``; None when nothing is. The rule
        behind ``verify --against``.

        The record is made again. The same bytes, which the same library versions give, are always right. Records that
        pass through must be the same; of the others, each encoding says what may differ
        (:meth:`packstore.images.encode.base.Encoding.difference`).

        Args:
            key: The sample's key, for errors.
            image: As the source gives it.
            record: The bytes in the store's image column.
            shape: What the store's ``shape`` column says, where it has one.

        Raises:
            SampleError, UsageError: As for making the record.
        """
        try:
            return self.encoding.compare(key, image, memoryview(record).cast("B"), shape)
        except DecodeError as error:
            raise SampleError(key, str(error)) from error
        except (HeaderError, TooLargeError) as error:
            raise SampleError(key, error.reason) from error

    def columns(self) -> tuple[Column, ...]:
        return self.encoding.columns()

    def versions(self) -> dict[str, str]:
        """Libraries on which the records' bytes depend; see :meth:`packstore.images.encode.base.Encoding.versions`."""
        return {} if self.passes_through else self.encoding.versions()
