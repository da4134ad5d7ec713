"""The encodings ``uint8``, ``uint16``, ``int16`` and ``int32``: decoded pixels."""

from __future__ import annotations

from packstore.core.columns import ImageData
from packstore.images.encode.base import EncodedImage, Encoding


class Uint8(Encoding):
    """Pixels ``(H, W, C)``. A fixed array if all images have one size, else ragged with a ``shape`` column."""

    name = dtype = "uint8"
    layout = "HWC"

    def encode(self, key: str, image: ImageData) -> EncodedImage:
        """Decodes, orients and resizes the image to pixels."""
        return self.of_array(key, self.images.pixels(key, image))


class Uint16(Uint8):
    """Pixels of 16 bits without sign."""

    name = dtype = "uint16"


class Int16(Uint8):
    """Pixels of 16 bits with sign."""

    name = dtype = "int16"


class Int32(Uint8):
    """Pixels of 32 bits with sign."""

    name = dtype = "int32"
