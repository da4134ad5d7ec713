"""The encoding ``uint8``: decoded pixels."""

from __future__ import annotations

from packstore.core.columns import ImageData
from packstore.images.encode.base import Encoded, Encoding


class Uint8(Encoding):
    """RGB, ``(H, W, 3)``: an array where all images have one size, else ragged with a ``shape`` column."""

    name = "uint8"
    layout = "HWC"

    def encode(self, key: str, image: ImageData) -> Encoded:
        return self.of_array(key, self.images.pixels(key, image))
