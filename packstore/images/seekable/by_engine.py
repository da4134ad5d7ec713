"""A file rewritten by our engine: byte for byte what ``jpegtran -copy all -optimize -restart`` makes.

libjpeg writes JFIF first, then the metadata, then quantisation, frame, Huffman tables, restart interval and scan header
(jcmarker.c, jctrans.c and transupp.c of libjpeg-turbo).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.images.engine import Engine, get_engine
from packstore.images.seekable.markers import (
    APP0,
    COM,
    DHT,
    DQT,
    DRI,
    SOF0,
    SOF1,
    SOF2,
    SOS,
    NotSeekableError,
    Segment,
    segments,
)

_METADATA = frozenset((COM, *range(APP0, APP0 + 16)))
_JFIF = b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"
"""What libjpeg writes for a file that has none."""


class Rewritten(NamedTuple):
    """A file that was rewritten.

    Attributes:
        contents: Its segments up to and with the header of its scan.
        scan: What follows, up to the end of its image; see :class:`packstore.images.engine.native.Rewritten`.
        ends: Where its restart segments end, markers included: int64, from the scan's first byte.
    """

    contents: list[bytes]
    scan: memoryview
    ends: NDArray[np.int64]

    @property
    def data(self) -> bytes:
        return b"".join((b"\xff\xd8", *self.contents, self.scan))


def rewrite_by_engine(
    data: bytes, interval: int, found: list[Segment] | None = None, engine: Engine | None = None
) -> Rewritten | None:
    """The file with a restart marker after every ``interval`` MCUs, or none for 0, and with optimal Huffman tables;
    None where there is no engine, or it does not take the file. ``found`` are its segments, where they are known."""
    engine = engine or get_engine()
    made = None if engine is None else engine.rewrite(data, interval)
    if made is None:
        return None
    scan, tables, ends = made
    try:
        found = found or segments(data)
    except NotSeekableError:
        return None
    jfif = _jfif(data, found)
    frame = next(data[s.start + 4 : s.stop] for s in found if s.marker in (SOF0, SOF1, SOF2))
    components = [frame[6 + 3 * i : 9 + 3 * i] for i in range(frame[5])]
    if jfif is None or (len(components) == 1 and components[0][1] != 0x11):
        return None
    has_jfif = found[0].marker == APP0 and data[found[0].start + 4 :].startswith(b"JFIF\0")
    metadata = [data[s.start : s.stop] for s in found[has_jfif:] if s.marker in _METADATA]
    quantisation = {}
    for content in (data[s.start + 4 : s.stop] for s in found if s.marker == DQT):
        for at in range(0, len(content), 65):
            quantisation[content[at]] = content[at : at + 65]
    wanted = dict.fromkeys(component[2] for component in components)
    numbers = [0, 0x10] if len(components) == 1 else [0, 0x10, 1, 0x11]
    chosen = b"".join(bytes((component[0], 0x11 if i else 0)) for i, component in enumerate(components))
    contents = [
        *jfif,
        *metadata,
        *(_segment(DQT, quantisation[number]) for number in wanted),
        _segment(SOF0, frame),
        *(_segment(DHT, bytes((number,)) + table) for number, table in zip(numbers, tables, strict=False)),
        *([_segment(DRI, interval.to_bytes(2, "big"))] if interval else []),
        _segment(SOS, bytes((len(components),)) + chosen + b"\0\x3f\0"),
    ]
    return Rewritten(contents, scan, ends)


def _segment(marker: int, content: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(content) + 2).to_bytes(2, "big") + content


def _jfif(data: bytes, found: list[Segment]) -> list[bytes] | None:
    """The JFIF segment that libjpeg writes: that of the file without thumbnail, or a new one; none where EXIF comes
    first. None where it depends on more."""
    metadata = [s for s in found if s.marker in _METADATA]
    own = [s for s in metadata if s.marker == APP0 and data[s.start + 4 : s.start + 9] == b"JFIF\0"]
    if own:
        start = own[0].start + 4
        alone = len(own) == 1 and own[0] is found[0]
        return [_segment(APP0, data[start : start + 12] + b"\0\0")] if alone else None
    if metadata and metadata[0].marker == APP0 + 1 and data[metadata[0].start + 4 :].startswith(b"Exif\0\0"):
        return []
    return [_segment(APP0, _JFIF)]
