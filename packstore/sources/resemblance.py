"""Compares a few pictures: tells masks from photos, and pictures of the same scene from others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.images import image_files, perceptual
from packstore.images.sniff import HeaderError, sniff
from packstore.sources.tree import Tree

_HEADER, _MAX_BYTES, _MAX_PIXELS = 1 << 16, 1 << 26, 1 << 25
_SIDE, _ROWS, _COUNTED, _MOST_RECENT = 256, 512, 1 << 20, 512
_MOST_CLASSES, _MOST_COLOURS, _FEW = 64, 32, 4
_SHADE, _CONTRAST, _TWO_SHADES = 16, 96, 0.9
# Factor by which a scan of text has more edges than the masks of its parts.
_MORE_EDGES = 3
# Pictures are compared by means of 16 x 16 blocks, and in shifts by up to a fifth of their width: two cameras side by
# side show nearly the same, further to the left or right.
_GRID, _SHIFTS = 16, range(-3, 4)
# Correlation of the blocks of most forms of a picture, of all of fewer than four, and of pictures that are equal.
_ALIKE, _FEW_ALIKE, _SAME = 0.75, 0.95, 0.95
# Of so many pairs, this share must be nearest to each other if all pictures have much in common.
_MANY, _MOST = 6, 0.7


_recent: dict[tuple[str, str, str, int, int], Picture | None] = {}


@dataclass(frozen=True)
class Picture:
    """Facts about the content of an image file.

    Attributes:
        kind: Kind of the file, such as ``jpeg``.
        width: Width in pixels.
        height: Height in pixels.
        digest: Hash of the bytes of the file.
        colours: Number of different colours, in a million of its pixels; 0 if it cannot be decoded.
        is_mask: It has few colours, each of many pixels, or two shades of grey.
        is_grey: All channels are equal, or there is one.
        edges: Share of neighbouring pixels in a row that differ by more than half of the contrast.
        is_deep: Its values have more than 8 bits.
        grey: The grey image at 64 x 64 pixels, float32 of 0 to 255; None if it cannot be decoded.
    """

    kind: str
    width: int
    height: int
    digest: int
    colours: int
    is_mask: bool
    is_grey: bool
    edges: float
    is_deep: bool
    grey: NDArray[np.float32] | None

    @property
    def blocks(self) -> NDArray[np.float32]:
        """Means of 4 x 4 blocks, ``(16, 16)``; hardly changed by noise, blur or other light."""
        assert self.grey is not None
        means: NDArray[np.float32] = self.grey.reshape(_GRID, 4, _GRID, 4).mean((1, 3))
        return means


Pair = tuple[Picture | None, Picture | None]
"""Pictures of an image and of a file that may belong to it; None for files that are no pictures."""


def read_picture(tree: Tree, file: str) -> Picture | None:
    """Reads and decodes an image, unless that was done recently. Returns None if its header cannot be read."""
    try:
        status = tree.stat(file)
    except OSError:
        return None
    key = str(tree.root), tree.stamp(), file, status.size, status.modified_ns
    if key not in _recent:
        if len(_recent) >= _MOST_RECENT:
            _recent.clear()
        _recent[key] = _decode_picture(tree.first_bytes(file, _MAX_BYTES))
    return _recent[key]


def _decode_picture(data: bytes) -> Picture | None:
    """Decodes an image to the facts about it; None if its header cannot be read."""
    try:
        info = sniff(data[:_HEADER])
    except HeaderError:
        return None
    try:
        if info.kind == "jpeg":
            pixels = image_files.decode_rgb(memoryview(data), _MAX_PIXELS, _SIDE)
        else:
            pixels = image_files.decode(memoryview(data), _MAX_PIXELS)[0]
    except (DecodeError, ValueError):
        return Picture(info.kind, info.width, info.height, hash(data), 0, False, True, 0.0, False, None)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    grey = pixels.shape[-1] == 2 or bool((pixels[..., :3] == pixels[..., :1]).all())
    colours = _count_colours(pixels)
    most = _MOST_CLASSES if pixels.shape[-1] == 1 else _MOST_COLOURS
    few = info.kind != "jpeg" and colours <= min(most, info.width * info.height / 4)
    is_mask = few or (grey and _has_two_shades(pixels[..., 0]))
    rows = pixels[:: max(1, len(pixels) // _ROWS), :, 0].astype(np.float32)
    edges = float((np.abs(np.diff(rows)) > np.ptp(rows) / 2).mean()) if rows.shape[1] > 1 else 0.0
    return Picture(
        info.kind,
        info.width,
        info.height,
        hash(data),
        colours,
        is_mask,
        grey,
        edges,
        pixels.itemsize > 1,
        _shrink(pixels),
    )


def _count_colours(pixels: NDArray[np.generic]) -> int:
    """Counts the different colours in a million of the pixels ``(H, W, C)``."""
    flat = pixels.reshape(-1, pixels.shape[-1])
    some = flat[:: max(1, len(flat) // _COUNTED)]
    if some.dtype == np.uint8 and some.shape[1] == 1:
        return int(np.count_nonzero(np.bincount(some[:, 0], minlength=256)))
    return len(np.unique(some[:, :4].astype(np.int64) @ (1 << 16 * np.arange(min(4, some.shape[1])))))


def _has_two_shades(grey: NDArray[np.generic]) -> bool:
    """Tells if most pixels of 8 bits are nearly as dark as the darkest, or as light as the lightest."""
    shades = grey.astype(np.int32)
    low, high = int(shades.min()), int(shades.max())
    extreme = (shades <= low + _SHADE) | (shades >= high - _SHADE)
    return grey.dtype == np.uint8 and high - low >= _CONTRAST and float(extreme.mean()) >= _TWO_SHADES


def _shrink(pixels: NDArray[np.generic]) -> NDArray[np.float32]:
    """Returns the grey image of pixels ``(H, W, C)`` at 64 x 64 pixels."""
    pixels = pixels[..., :3] if pixels.shape[-1] >= 3 else np.repeat(pixels[..., :1], 3, axis=-1)
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = (pixels.astype(np.float32) - low) * (255 / max(high - low, 1e-9))
    small = perceptual.shrink_to_side(np.ascontiguousarray(pixels.astype(np.uint8)))
    grey: NDArray[np.float32] = perceptual.to_grey(small[None])[0]
    return grey


def are_masks(pairs: Sequence[Pair], by_names: bool = True) -> bool:
    """Tells if the second picture of each pair is a mask of the first; one of four may be damaged. If names do not say
    so (``by_names`` is False), a drawing or a scan of few colours is no photo."""
    good = sum(image is not None and mask is not None and _is_mask_of(mask, image, by_names) for image, mask in pairs)
    return bool(pairs) and 4 * good >= 3 * len(pairs)


def _is_mask_of(mask: Picture, image: Picture, by_names: bool) -> bool:
    """Tells if a picture is a mask of an image, by its colours, its size or its few edges."""
    if not mask.is_mask or {image.width, image.height} != {mask.width, mask.height}:
        return False
    if mask.is_grey and not image.is_grey:
        return True
    has_more_colours = image.colours > 2 * mask.colours
    if not image.is_mask:
        return has_more_colours or mask.kind == "jpeg"
    return (by_names and has_more_colours and mask.kind != "jpeg") or image.edges > _MORE_EDGES * mask.edges


def have_own_sizes(pairs: Sequence[Pair]) -> bool:
    """Tells if the sizes of each pair are equal or have the same ratio, and would mostly not fit the next pair."""
    known = [
        ((one.width, one.height), (other.width, other.height))
        for one, other in pairs
        if one is not None and other is not None
    ]
    if len(known) < len(pairs) or len({one for one, _ in known}) < max(3, len(known) // 2):
        return False

    ones, others = np.swapaxes(np.array(known, np.float64), 0, 1)
    ratio = ones.sum(0) / others.sum(0)
    # A picture that is scaled has a rounded size.
    own, next_ones = (
        (np.abs(ones - ratio * each) <= np.maximum(1, ratio)).all(-1) for each in (others, np.roll(others, -1, 0))
    )
    return bool(own.all() and 2 * next_ones.sum() < len(known))


def differ_in_colour(pairs: Sequence[Pair]) -> bool:
    """Tells if one side of all pairs is in colour and the other grey, with one ratio of their sizes."""
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    ratios = {(round(one.width / other.width, 1), round(one.height / other.height, 1)) for one, other in known}
    if len(known) == len(pairs) and len(ratios) > max(1, len(known) // 2):
        return False
    return {(one.is_grey, other.is_grey) for one, other in known} in ({(True, False)}, {(False, True)})


def resemble(pairs: Sequence[Pair]) -> bool:
    """Tells if the two pictures of each pair show the same, and those of different pairs do not. Needs two pairs.

    Each picture must be more like its partner than like all other pictures, and so much that this is no chance. Of six
    pairs or more, what all pictures have in common, such as a background, does not count, and a few may be unlike.
    """
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    if len(known) < max(2, len(pairs)) or any(one.grey is None or other.grey is None for one, other in known):
        return False
    if all(one.digest == other.digest for one, other in known):
        return False  # copies of files
    ones, others = (np.stack([pair[side].blocks for pair in known]) for side in (0, 1))
    # Several folders may hold the same picture, which would be near to all its forms.
    new = ~(np.tril(_correlate(ones, ones, (0,)), -1) > _SAME).any(1)
    if len(known) >= _MANY and _are_nearest(_correlate(ones - ones.mean(0), others - others.mean(0))).mean() >= _MOST:
        return True
    if new.sum() < 2:
        return False
    alike = _correlate(ones[new], others[new])
    own = np.diag(alike)
    return bool(
        _are_nearest(alike).all() and (own.min() >= _FEW_ALIKE if len(own) < _FEW else np.median(own) >= _ALIKE)
    )


def _correlate(ones: NDArray[Any], others: NDArray[Any], shifts: Sequence[int] = _SHIFTS) -> NDArray[Any]:
    """Returns the largest correlation ``(n, m)``, over all shifts, of blocks ``(n, 16, 16)`` with others."""
    found = []
    for shift in shifts:
        left, right = max(0, shift), max(0, -shift)
        both = []
        for blocks, start, end in ((ones, left, right), (others, right, left)):
            cut = blocks[:, :, start : _GRID - end].reshape(len(blocks), -1)
            cut = cut - cut.mean(1, keepdims=True)
            both.append(cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-6))
        found.append(both[0] @ both[1].T)
    best: NDArray[Any] = np.max(found, axis=0)
    return best


def _are_nearest(alike: NDArray[Any]) -> NDArray[np.bool_]:
    """Tells for each ``i`` if ``alike[i, i]`` is the largest of its row and column: pictures ``i`` go together."""
    apart = np.where(np.eye(len(alike), dtype=bool), -np.inf, alike)
    nearest: NDArray[np.bool_] = np.diag(alike) > np.maximum(apart.max(0), apart.max(1))
    return nearest
