"""Re-encodes images for an export if the user asks for it; otherwise images are written unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ImageData
from packstore.core.errors import DecodeError, SampleError, UsageError, printable
from packstore.core.manifest import Column, Manifest
from packstore.exports.base import Export
from packstore.images.decoders import get_decoder
from packstore.images.encode import EncodeOptions, Encoder
from packstore.images.encode.options import readers_transpose
from packstore.images.encode.png import encode_png, fits_png
from packstore.images.reading import Reading

_JPEG_MODES = ("RGB", "L")
Recode = Callable[[str, Any], ImageData]
"""Returns the image to write for a record's key and image."""


class Recoding(NamedTuple):
    """Plan for writing images, unchanged or re-encoded.

    Attributes:
        manifest: Manifest of the written records, except :attr:`Manifest.records_digest`, which still belongs to the
            store.
        form: ``kept``, or ``png`` for arrays that become PNG files; see
            :attr:`packstore.stores.export_manifest.ExportManifest.image`.
        recode: Re-encodes an image; raises :class:`SampleError` if it cannot. None: images are written unchanged.
        new: Images are re-encoded with other bytes or pixels. An import has another dataset digest.
    """

    manifest: Manifest
    form: str = "kept"
    recode: Recode | None = None
    new: bool = False


def plan_recoding(kind: type[Export], manifest: Manifest, encode: str | None, quality: int) -> Recoding:
    """Plans how images are written: unchanged if ``encode`` is None, else as ``png`` or ``jpeg``.

    Re-encoded images are upright if the store's readers apply the EXIF orientation. ``quality`` is for JPEG.

    Raises :class:`UsageError` if the kind or the encoding cannot hold the images. No encoding holds floating point
    values.
    """
    stored = "files" if manifest.holds_files else "floats" if manifest.holds_floats else "uint8"
    mode = manifest.image.pixels
    if encode is None:
        if stored in kind.image_forms:
            return Recoding(manifest)
        if stored == "floats":
            raise UsageError(
                f"{kind.name} holds image files, but the store holds {manifest.encoding} values; export to "
                f"{_kinds_that_hold(stored)}, or pack the images with --encoding uint8"
            )
        raise UsageError(
            f"{kind.name} holds image files, but the store holds {manifest.encoding} pixels"
            + (": --encode png keeps every pixel" if fits_png(mode) else f" of mode {mode}, which no PNG holds")
            + (", --encode jpeg changes pixels" if mode.name in _JPEG_MODES else "")
            + f"; or export to {_kinds_that_hold(stored)}"
        )
    if stored == "floats":
        raise UsageError(f"encode needs pixels, but the store holds {manifest.encoding} values; leave it out")
    if encode == "png" and not fits_png(mode):
        raise UsageError(f"a PNG does not hold images of mode {mode}; leave encode out, or export to another kind")
    if encode == "jpeg" and mode.name not in _JPEG_MODES:
        raise UsageError(f"a JPEG does not hold images of mode {mode}; leave encode out, or use --encode png")
    reading = Reading.restore(manifest.image.mode, manifest.options)
    if encode == "png" and stored == "uint8":
        return Recoding(manifest, "png", _name_record(lambda key, pixels: encode_png(pixels)))
    if encode == "png":
        decoder = get_decoder(reading=reading)
        upright = readers_transpose(manifest)

        def as_png(key: str, data: bytes) -> bytes:
            return encode_png(decoder.decode(data, exif_transpose=upright))

        return Recoding(
            _with_encoding(manifest, "original", exif_transpose=False), recode=_name_record(as_png), new=True
        )
    options = EncodeOptions("jpeg", quality=quality, exif_transpose=readers_transpose(manifest), reading=reading)
    encoder = Encoder(options, "original" if manifest.holds_files else "uint8", source_mode=mode)

    def as_jpeg(key: str, image: bytes | NDArray[Any]) -> bytes:
        return bytes(encoder(key, image).record)

    return Recoding(_with_encoding(manifest, "jpeg", quality=quality), recode=_name_record(as_jpeg), new=True)


def _name_record(recode: Recode) -> Recode:
    """Returns ``recode`` as a function that raises :class:`SampleError` with the record's key for an image that cannot
    be re-encoded."""

    def recode_record(key: str, image: Any) -> ImageData:
        try:
            return recode(key, image)
        except (ValueError, DecodeError) as error:
            raise SampleError(key, printable(str(error))) from error

    return recode_record


def _with_encoding(manifest: Manifest, encoding: str, **options: int) -> Manifest:
    """Returns a copy of the manifest for image files of another encoding. It has no shapes, no normalisation and no
    table of shards, and also has ``options``."""
    image = Column("image", "ragged", "uint8", type="image", mode=manifest.image.mode)
    others = (column for column in manifest.columns[1:] if column.name != "shape")
    return replace(
        manifest,
        encoding=encoding,
        columns=(image, *others),
        normalization=None,
        shards=None,  # its sizes are those of the stored images
        options={**manifest.options, **options},
    )


def _kinds_that_hold(stored: str) -> str:
    """Returns the names of the kinds that hold a form of images unchanged, joined by "or"."""
    from packstore.core.registry import EXPORTS

    return " or ".join(kind.name for kind in EXPORTS.values() if stored in kind.image_forms)


def image_from_stored(manifest: Manifest, data: Any, shape: Any) -> ImageData:
    """Converts a stored image to the bytes of a file, or to an array.

    ``shape`` is needed only if the store's arrays differ in shape.
    """
    image = manifest.image
    if image.layout is None:
        return data if isinstance(data, bytes) else bytes(data)
    from packstore.stores.base import as_image_array

    return as_image_array(
        data, image, image.shape if image.kind == "fixed" else tuple(np.asarray(shape).tolist()), lambda: "an image"
    )
