"""Losses of image files that are read as 8-bit RGB: bits, frames, channels, transparency.

Headers settle nearly all files in a microsecond: PNG (third edition, 11.2 and 11.3), GIF89a, RFC 9649 (WebP). Of the
rest Pillow says the particulars.
"""

from __future__ import annotations

from packstore.core.errors import UsageError, printable
from packstore.images.decoders import pillow
from packstore.images.sniff import LOSSES, ImageInfo

_ALPHA_MODES = ("RGBA", "LA", "PA", "La", "RGBa")
_WEBP_ANIMATION, _WEBP_ALPHA = 0x02, 0x10
_UINT8_MODES = frozenset(("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", *_ALPHA_MODES))


def check_losses(names: object) -> tuple[str, ...]:
    """Losses that a user accepts, as a tuple in order. Raises :class:`UsageError` for what is no name of one."""
    given = (names,) if isinstance(names, str) else names
    if not isinstance(given, (tuple, list)) or not all(name in LOSSES for name in given):
        raise UsageError(f"accept_loss should name some of {', '.join(LOSSES)}, got {names!r}")
    return tuple(sorted(set(given)))


def find_losses(data: bytes | memoryview, info: ImageInfo) -> dict[str, str]:
    """What of an image file does not come through as 8-bit RGB.

    Args:
        data: The file.
        info: Its header.

    Returns:
        By names of :data:`LOSSES`, what the file has, to follow "it has". Empty for CMYK, whose colours are converted,
        for alpha that is opaque everywhere, and for what Pillow cannot open.
    """
    if info.kind == "jpeg" or not _may_lose(bytes(data), info):
        return {}
    found = pillow.describe(memoryview(data))
    if found is None:
        return {}
    losses = {}
    deep = info.precision > 8 or found.mode not in _UINT8_MODES
    if deep and info.kind != "heif":
        bits = "floating point samples" if found.mode == "F" else f"{info.precision} bits a sample"
        losses["depth"] = f"{bits}, and 8 bits are read"
    if found.frames > 1:
        losses["frames"] = f"{found.frames:,} frames or pages, and the first is read"
    if found.channels > 4 or (found.channels == 4 and found.mode in ("RGB", "RGBX")):
        losses["channels"] = f"{found.channels} channels, and three are read"
    if found.transparent:
        losses["alpha"] = "transparent pixels, and their colours are read as if they were not"
    return losses


def refuse_losses(key: str, losses: dict[str, str], accepted: tuple[str, ...]) -> None:
    """Asks about losses that nobody has accepted: raises :class:`UsageError` with the answer."""
    left = {name: text for name, text in losses.items() if name not in accepted}
    if left:
        options = " ".join(f"--accept-loss {name}" for name in (*accepted, *left))
        raise UsageError(
            f"{printable(key)}: it has {'; and '.join(left.values())}. packstore reads images as 8-bit RGB. To pack "
            f"this file and those like it all the same: {options} (the run goes on where it stopped); or leave them "
            "out with --ignore"
        )


def _may_lose(data: bytes, info: ImageInfo) -> bool:
    if info.kind == "png":
        head = data[: max(0, data.find(b"IDAT"))]
        return info.precision > 8 or info.components in (2, 4) or b"tRNS" in head or b"acTL" in head
    if info.kind == "webp":
        return info.components == 4 or (data[12:16] == b"VP8X" and bool(data[20] & (_WEBP_ANIMATION | _WEBP_ALPHA)))
    if info.kind == "pnm":
        return info.precision > 8
    return info.kind != "bmp" or info.components == 4
