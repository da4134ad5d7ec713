"""What becomes of images on their way into an export: nothing, unless the user asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ImageData
from packstore.core.errors import UsageError
from packstore.core.manifest import Column, Manifest
from packstore.exports.base import Export
from packstore.images.decoders import get_decoder
from packstore.images.encode import EncodeOptions, Encoder
from packstore.images.encode.options import turned_by_readers
from packstore.images.encode.png import encode_png

Recode = Callable[[str, Any], ImageData]
"""The image to write, of a record's key and image."""


class Recoding(NamedTuple):
    """How images are written.

    Attributes:
        manifest: That of the written records; :attr:`Manifest.records_digest` is of the old ones.
        form: See :attr:`packstore.core.export_manifest.ExportManifest.image`.
        recode: What is done to an image; None for nothing.
        new: The records are others than those of the store, so that an import has another dataset digest.
    """

    manifest: Manifest
    form: str = "kept"
    recode: Recode | None = None
    new: bool = False


def plan_recoding(kind: type[Export], manifest: Manifest, encode: str | None, quality: int) -> Recoding:
    """How images come into an export. Raises :class:`UsageError` where they could not without a change for which nobody
    asked, and for options that do not go with the store."""
    found = "files" if manifest.holds_files else "floats" if manifest.holds_floats else "uint8"
    if encode is None:
        if found in kind.holds:
            return Recoding(manifest)
        if found == "floats":
            raise UsageError(
                f"{kind.name} holds image files, and the store normalised {manifest.encoding} values, which are no "
                f"pixels; export to {_others(found)}, or pack the images with --encoding uint8"
            )
        raise UsageError(
            f"{kind.name} holds image files, and the store uint8 pixels: --encode png keeps every pixel, --encode jpeg "
            f"loses some; or export to {_others(found)}"
        )
    if found == "floats":
        raise UsageError(f"normalised {manifest.encoding} values are no pixels, so encode cannot apply; leave it out")
    if encode == "png" and found == "uint8":
        return Recoding(manifest, "png", lambda key, pixels: encode_png(pixels))
    if encode == "png":
        decoder = get_decoder()
        upright = turned_by_readers(manifest)

        def as_png(key: str, data: bytes) -> bytes:
            return encode_png(decoder.decode(data, exif_transpose=upright))

        return Recoding(_with_files(manifest, "original", exif_transpose=False), recode=as_png, new=True)
    options = EncodeOptions("jpeg", quality=quality, exif_transpose=turned_by_readers(manifest))
    encoder = Encoder(options, "original" if manifest.holds_files else "uint8")

    def as_jpeg(key: str, image: bytes | NDArray[Any]) -> bytes:
        return bytes(encoder(key, image).record)

    return Recoding(_with_files(manifest, "jpeg", quality=quality), recode=as_jpeg, new=True)


def _with_files(manifest: Manifest, encoding: str, **options: int) -> Manifest:
    """The manifest of the same records with files of another encoding as images."""
    image = Column("image", "ragged", "uint8", type="image")
    others = (column for column in manifest.columns[1:] if column.name != "shape")
    return replace(
        manifest,
        encoding=encoding,
        columns=(image, *others),
        normalization=None,
        options={**manifest.options, **options},
    )


def _others(found: str) -> str:
    """The kinds of export that hold such images as they are."""
    from packstore.core.registry import EXPORTS

    return " or ".join(kind.name for kind in EXPORTS.values() if found in kind.holds)


def image_of(manifest: Manifest, data: Any, shape: Any) -> ImageData:
    """An image at rest as a user sees it: the bytes of a file, or an array. ``shape`` is that of a ragged array."""
    image = manifest.image
    if image.layout is None:
        return data if isinstance(data, bytes) else bytes(data)
    from packstore.stores.base import shaped

    return shaped(data, image, image.shape if image.kind == "fixed" else tuple(np.asarray(shape).tolist()), "an image")
