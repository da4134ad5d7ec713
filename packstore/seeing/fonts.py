"""The font of drawn text, which Pillow brings along."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from PIL import ImageFont


@lru_cache(16)
def default_font(size: int) -> Any:
    """Returns Pillow's font in a size. Caches 16 fonts.

    Before Pillow 10.1 the font has one size and only Latin letters: :class:`_LatinFont`.
    """
    try:
        return ImageFont.load_default(size)
    except TypeError:
        return _LatinFont(ImageFont.load_default())


class _LatinFont:
    """Bitmap font of Latin letters. Draws a question mark for other characters instead of failing. Its methods ignore
    further arguments of Pillow's."""

    def __init__(self, font: Any) -> None:
        self._font = font

    def getmask(self, text: str, mode: str = "", *_: Any, **__: Any) -> Any:
        """Draws the mask of ``text``, after replacing characters that are not Latin."""
        return self._font.getmask(_replace_non_latin(text), mode)

    def getbbox(self, text: str, *_: Any, **__: Any) -> Any:
        """Returns the bounding box of ``text``, after replacing characters that are not Latin."""
        return self._font.getbbox(_replace_non_latin(text))

    def getlength(self, text: str, *_: Any, **__: Any) -> Any:
        """Returns the width of ``text``, after replacing characters that are not Latin."""
        return self._font.getlength(_replace_non_latin(text))


def _replace_non_latin(text: str) -> str:
    """Replaces ``…`` by three dots, and other characters beyond Latin-1 by question marks."""
    return text.replace("…", "...").encode("latin-1", "replace").decode("latin-1")
