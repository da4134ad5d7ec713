"""The encoding ``original``: image files, unchanged."""

from __future__ import annotations

import numpy as np

from packstore.core.columns import ImageData
from packstore.core.errors import DecodeError
from packstore.images.encode.base import EncodedImage, Encoding, SourceImages


class Original(Encoding):
    """Stores image files unchanged. A source of arrays has no files: its arrays are stored in its own encoding.

    The option ``progressive`` rewrites progressive JPEG files as baseline files with the same pixels and metadata.
    """

    name = "original"
    accepts = frozenset({"exif_transpose", "progressive"})
    keeps_exif = True

    def __init__(self, images: SourceImages, shape: tuple[int, ...] | None = None) -> None:
        super().__init__(images, shape)
        self.passes_through = self.passes_through and self.options.progressive is None

    @classmethod
    def choose_for_source(cls, source: type[Encoding]) -> type[Encoding]:
        """Returns this encoding for a source of image files. Returns ``source`` for a source of arrays, which stay
        unchanged."""
        return cls if source.layout is None else source

    @classmethod
    def stores_unchanged(cls, source: type[Encoding]) -> bool:
        """Tells if the source gives image files, not arrays."""
        return source.layout is None

    def versions(self) -> dict[str, str]:
        """Adds the version of TurboJPEG, by the role ``TurboJPEG``, if progressive files are rewritten. Raises
        :class:`UsageError` if the library is missing."""
        if self.options.progressive is None:
            return super().versions()
        from packstore.images.turbojpeg import find_baseline_version

        return super().versions() | {"TurboJPEG": find_baseline_version()}

    def encode(self, key: str, image: ImageData) -> EncodedImage:
        """Returns the file unchanged, or a progressive JPEG rewritten as baseline.

        Rewriting must not change a pixel. If it fails or would, the file is kept, and :attr:`EncodedImage.kept` says
        why."""
        kept = self.keep_unchanged(key, image)
        if isinstance(image, np.ndarray) or bytes(image[:2]) != b"\xff\xd8":
            return kept
        if not self.images.parse_header(image).progressive:
            return kept
        from packstore.images.turbojpeg import NotBaselineError, make_baseline

        decoder, data = self.images.decoder, bytes(image)
        try:
            record = make_baseline(data)
            # Verified by other code than the transformation: both files are decoded and compared.
            same = np.array_equal(decoder.decode(data), decoder.decode(record))
        except (NotBaselineError, DecodeError) as error:
            return kept._replace(kept=str(error))
        return kept._replace(record=record) if same else kept._replace(kept="came out with other pixels")
