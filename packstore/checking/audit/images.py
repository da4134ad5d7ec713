"""Inspects images in one pass: decodes each once, and checks file, header, pixels and masks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.checking import AuditOptions
from packstore.checking.audit.same import RecordHashes
from packstore.checking.store_check import decode_files, make_decoder
from packstore.core.columns import Buffer, find_file_columns
from packstore.core.errors import CorruptRecordError, DecodeError, PackstoreError, UnreachableError, printable
from packstore.core.manifest import Column, Manifest
from packstore.images.decoders import Decoder
from packstore.images.image_files import find_losses
from packstore.images.masks import decode_mask, read_mask_header
from packstore.images.orientation import read_orientation, readers_transpose, swaps_sides
from packstore.images.perceptual import CROPS, SIDE, WHOLE, hash_windows, shrink_to_side, to_grey
from packstore.images.reading import Reading, denormalize, to_display
from packstore.images.sniff import HeaderError, ImageInfo, check_header, sniff
from packstore.stores import Reader

_FLAT = 8
"""Largest difference of two values of a channel in a flat image, of 255: JPEG changes a single colour by less."""
_GREY = 2
"""Largest difference between the channels of a grey image."""
_CLIPPED = 0.25
"""Largest share of an image's values that may lie at its lowest or highest value."""
_WINDOWS = (WHOLE, *CROPS)
_MIRRORED = (WHOLE,)
_SUFFIXES = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "jpeg"),
    **dict.fromkeys((".tif", ".tiff"), "tiff"),
    **dict.fromkeys((".pbm", ".pgm", ".ppm", ".pnm"), "pnm"),
    **dict.fromkeys((".heic", ".heif"), "heif"),
    **dict.fromkeys((".jp2", ".j2k", ".jpx", ".jpf"), "jp2"),
    **{f".{kind}": kind for kind in ("png", "gif", "bmp", "webp", "avif", "jxl", "exr", "hdr", "npy")},
}


class Findings:
    """Findings in some records, as kind, record and text.

    Attributes:
        records: The records.
        record: The record that is inspected now.
        nbytes: Bytes of images that were read.
        found: The findings.
    """

    def __init__(self, records: range) -> None:
        self.records = records
        self.record = records.start
        self.nbytes = 0
        self.found: list[tuple[str, int, str]] = []

    def add(self, kind: str, what: str) -> None:
        """Adds a finding in the present record."""
        self.found.append((kind, self.record, what))

    @contextmanager
    def noting_damage(self, column: str | None = None) -> Iterator[None]:
        """Turns errors about damage in the block into findings. ``column``: the column that is read beside the image.

        Raises :class:`UnreachableError` if a shard cannot be fetched: it may be undamaged.
        """
        try:
            yield
        except DecodeError as error:
            self.add("undecodable", str(error) if column is None else f"column {column!r}: {error}")
        except UnreachableError:
            raise
        except CorruptRecordError as error:  # without the record and the advice
            self.add("damaged", f"{error.what} {error.found}, expected {error.expected}")
        except (PackstoreError, IndexError) as error:
            self.add("damaged", str(error))


class ImageInspector:
    """Inspects the images of a store. Threads may inspect different records at once.

    Attributes:
        pixels: ``uint64 (N,)``: hashes of the pixels.
        decoded: ``bool (N,)``: whether the image could be decoded.
        greys: ``bool (N,)``: whether it has details and is grey.
        sizes: ``int32 (N, 2)``: height and width as the image is shown; zeros if not decoded.
    """

    def __init__(self, reader: Reader, options: AuditOptions, hashes: RecordHashes | None) -> None:
        """Makes a decoder for each column of images.

        Args:
            reader: Store that checks the records that it reads.
            options: Thresholds of what is reported.
            hashes: Receives the perceptual hashes of the images; None computes none.
        """
        self._reader = reader
        self._manifest: Manifest = reader.manifest
        self._options = options
        self._hashes = hashes
        self._turned = readers_transpose(self._manifest)
        column = self._manifest.image
        self._decoder = decoder = make_decoder(self._manifest, column, options.max_pixels)
        self._mode = decoder.reading.pixels if column.layout is None else column.pixels
        self._masks = [column for column in self._manifest.columns if column.holds_masks]
        further = find_file_columns(self._manifest.columns)
        self._further = [(column, make_decoder(self._manifest, column, options.max_pixels)) for column in further]
        count = len(reader)
        self.pixels, self.decoded = np.zeros(count, np.uint64), np.zeros(count, np.bool_)
        self.greys, self.sizes = np.zeros(count, np.bool_), np.zeros((count, 2), np.int32)

    def inspect_records(self, records: range) -> Findings:
        """Inspects the images, masks and further images of some records; fills in the attributes, and returns the
        findings.

        Damage becomes a finding. Raises :class:`UnreachableError` if a shard cannot be fetched.
        """
        seen = Findings(records)
        small = np.zeros((len(records), SIDE, SIDE, 3), np.uint8)
        detailed = np.zeros(len(records), np.bool_)  # the perceptual hash of a flat image means nothing
        for row, record in enumerate(records):
            seen.record, image = record, None
            with seen.noting_damage():
                image = self._read_image(record, seen)
            if image is None:
                continue
            self.decoded[record] = True
            # Images of other widths may have the same bytes: the width is the seed.
            self.pixels[record] = xxh3_64_intdigest(np.ascontiguousarray(image).data, seed=image.shape[1])
            self.sizes[record] = image.shape[:2]
            shown = to_display(image, self._mode)
            small[row] = shrink_to_side(shown)
            self._check_values(image, seen)
            detailed[row] = not self._check_pixels(image, shown, small[row], seen)
            spread = small[row].max(2) - small[row].min(2)  # between the channels of a pixel
            self.greys[record] = detailed[row] and int(spread.max()) <= _GREY
            for mask in self._masks:
                self._check_mask(mask, record, image.shape[:2], seen)
            for column, decoder in self._further:
                self._check_further_images(column, decoder, record, seen)
        if self._hashes is not None:
            greys = to_grey(small)
            hashes = [hash_windows(greys, _WINDOWS)]
            if self._options.mirrored:
                hashes.append(hash_windows(greys[:, :, ::-1], _MIRRORED))
            self._hashes.store(records.start, detailed, np.concatenate(hashes, axis=1))
        return seen

    def _read_image(self, record: int, seen: Findings) -> NDArray[Any]:
        """Returns the image as it is shown, ``(H, W, C)``; adds findings about its file to ``seen``."""
        column = self._manifest.image
        if column.layout is not None:
            array = self._reader.array(record)
            seen.nbytes += array.nbytes
            return array if column.layout == "HWC" else denormalize(array, column, self._manifest.normalization)
        data = self._reader.view(record)
        seen.nbytes += len(data)
        try:
            info: ImageInfo | None = check_header(data)
        except HeaderError as error:
            try:
                # The beginning may still tell the kind, and decoders may read the rest.
                info = sniff(data)
                seen.add("truncated", f"it {error.reason}")
            except HeaderError:
                info = None
        image = self._decoder.decode(data)
        if info is None:
            return image
        flaw = self._decoder.describe_flaw(data)
        if flaw is not None:
            seen.add("truncated", flaw)
        return self._check_file(data, info, image, seen)

    def _check_file(self, data: Buffer, info: ImageInfo, image: NDArray[Any], seen: Findings) -> NDArray[Any]:
        """Adds findings about an image file, and returns the image with the sides it is shown with."""
        if info.kind == "jpeg" and info.components == 4:
            seen.add("cmyk", "a JPEG with 4 components")
        suffix = PurePosixPath(self._reader.key(seen.record)).suffix.lower()
        if _SUFFIXES.get(suffix, info.kind) != info.kind and self._manifest.encoding == "original":
            seen.add("suffix", f"{printable(suffix)}, and the content is {info.kind}")
        for what in find_losses(data, info, Reading(self._decoder.reading.mode)).values():
            seen.add("mode", f"it has {what}")
        orientation = read_orientation(data, info)
        if orientation != 1 and not self._turned:
            frame = next((c.frame for c in self._manifest.columns if c.traits.moves), None)
            of = f", and its annotations count in the {frame} image" if frame else ""
            seen.add("orientation", f"EXIF orientation {orientation}{of}")
        # Swaps the sides only: the pixels may be mirrored.
        turned = self._turned and swaps_sides(orientation)
        return np.ascontiguousarray(image.transpose(1, 0, 2)) if turned else image

    def _check_values(self, image: NDArray[Any], seen: Findings) -> None:
        """Adds findings about pixel values: not finite, too many at a bound, or clipped to 8 bits."""
        reading = self._decoder.reading
        if image.dtype == np.uint8:
            if reading.depth is not None and self._manifest.image.layout is None:
                share = float(np.mean((image == 0) | (image == 255)))
                if share > _CLIPPED:
                    what = f"{share:.0%} of the values are black or white by depth {reading.depth}"
                    seen.add("wrong_window", what)
            return
        low, high = image.min(), image.max()
        if not (np.isfinite(low) and np.isfinite(high)):
            seen.add("not_finite", "some values are infinite or not a number")
        elif low < high:
            for bound in (low, high):
                share = float(np.mean(image == bound))
                # Zeros are usual around scans and in padding.
                if share > _CLIPPED and bound != 0:
                    seen.add("clipped", f"{share:.0%} of the values are {bound}, a bound")

    def _check_pixels(
        self, image: NDArray[Any], shown: NDArray[np.uint8], small: NDArray[np.uint8], seen: Findings
    ) -> bool:
        """Adds findings about size, aspect ratio and flat colour; returns whether the image is flat."""
        height, width = image.shape[:2]
        short, long = sorted((height, width))
        if short < self._options.min_side:
            seen.add("tiny", f"{width} x {height} pixels")
        if long > self._options.max_aspect * short:
            seen.add("aspect", f"{width} x {height} pixels")
        if image.dtype == np.uint8:
            # The small image settles most cases, and is much faster.
            flat = _value_range(small) <= _FLAT and _value_range(shown) <= _FLAT
        else:
            flat = bool((image.max((0, 1)) - image.min((0, 1)) <= (0 if image.dtype.kind == "f" else _FLAT)).all())
        if flat:
            colour = image.reshape(-1, image.shape[2]).mean(0).round().tolist()
            seen.add("flat", f"one colour: {colour}")
        return flat

    def _check_mask(self, column: Column, record: int, size: tuple[int, ...], seen: Findings) -> None:
        """Adds findings about a mask of an image of ``size``: damage, and what its column type finds."""
        with seen.noting_damage(column.name):
            mask = self._read_mask(column, record)
            if mask is not None:
                for kind, what in column.traits.find_pixel_faults(column, *mask, size, self._options.mask_classes):
                    seen.add(kind, what)

    def _check_further_images(self, column: Column, decoder: Decoder, record: int, seen: Findings) -> None:
        """Adds findings about the mode, damage and truncation of a record's images in a further column."""
        with seen.noting_damage(column.name):
            for what, data, image in decode_files(self._reader, column, decoder, record, self._reader.value):
                with suppress(HeaderError):  # decoding reports a damaged header
                    for lost in find_losses(data, sniff(data), Reading(decoder.reading.mode)).values():
                        seen.add("mode", f"{what}: it has {lost}")
                if isinstance(image, DecodeError):
                    seen.add("undecodable", f"{what}: {image}")
                elif (flaw := decoder.describe_flaw(data)) is not None:
                    seen.add("truncated", f"{what}: {flaw}")

    def _read_mask(self, column: Column, record: int) -> tuple[tuple[int, ...], NDArray[Any] | None] | None:
        """Returns height and width of a mask, and its values if needed; None for a missing mask."""
        name = column.name
        if not self._reader.has_value(name, record):
            return None
        if column.layout is not None:
            value = self._reader.item(name, record)
            return value.shape, value
        data = self._reader.value(name, record)
        header = read_mask_header(data, self._decoder.max_pixels)
        # The values are only needed if the number of classes is known.
        wanted = self._options.mask_classes is not None
        return (header.height, header.width), decode_mask(data, header) if wanted else None


def _value_range(image: NDArray[np.uint8]) -> int:
    """Returns the largest difference between two values of the same channel."""
    flat = image.reshape(-1, 3)
    return int((flat.max(0).astype(np.int16) - flat.min(0)).max())
