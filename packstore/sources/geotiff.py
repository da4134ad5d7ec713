"""The column ``geo``: GeoTIFF tags, which give the position of a TIFF's pixels on the ground.

Tags and keys are those of OGC 19-008r4 (GeoTIFF 1.1).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from packstore.core.errors import SampleError, UsageError, printable
from packstore.core.fields import Json, column_of
from packstore.core.progress import ProgressCallback, no_progress
from packstore.sources.base import Entry, Sample, Source, Survey
from packstore.sources.encodings import GEO
from packstore.sources.wrapped import WrappedSource

_GEO_BYTES = 1024
"""Estimated bytes of an image's tags as JSON."""

_SCALE, _TIEPOINT, _TRANSFORMATION, _KEYS, _DOUBLES, _TEXTS = 33550, 33922, 34264, 34735, 34736, 34737
_NODATA = 42113  # GDAL's
_TAGS = (_SCALE, _TIEPOINT, _TRANSFORMATION, _KEYS, _DOUBLES, _TEXTS, _NODATA)
_TYPES = {2: "s", 3: "H", 4: "I", 11: "f", 12: "d"}
_MOST_BYTES = 1 << 20
_RASTER_TYPE, _GEOGRAPHIC, _PROJECTED = 1025, 2048, 3072
_POINT, _USER_DEFINED = 2, 32767


class GeoSource(WrappedSource):
    """Wraps a source, and adds the column ``geo``. Its value is JSON of a TIFF's transform and reference system, and
    missing for other images. The survey refuses a source of arrays, a store, and a source with such a column."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, replace(source.options, columns=(*source.options.columns, GEO)))

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Adds the column ``geo``. Raises :class:`UsageError` for a source of arrays, a store, or a source with such a
        column."""
        survey: Survey = super().survey(split, progress)
        if survey.encoding != "original" or survey.store is not None or any(c.name == "geo" for c in survey.columns):
            raise UsageError(
                f"{printable(str(self.path))} ({self.kind}): --column {GEO} is for files of GeoTIFF in a source "
                "without a column geo; leave it out"
            )
        column = column_of("geo", Json(optional=True))
        columns = (*survey.columns, column, *column.companions)
        names = frozenset(each.name for each in columns[len(survey.columns) :])
        value_bytes = survey.value_bytes + _GEO_BYTES * survey.records
        return replace(survey, columns=columns, sampled=survey.sampled | names, value_bytes=value_bytes)

    def read(self, entry: Entry) -> Sample:
        """Reads a sample, and its GeoTIFF tags. Raises :class:`SampleError` for damaged tags."""
        data = super().read(entry)
        sample = data if isinstance(data, Sample) else Sample(data, {})
        try:
            geo = read_geotiff(bytes(sample.image))
        except ValueError as error:
            raise SampleError(entry.key, str(error)) from None
        return sample._replace(values={**sample.values, "geo": geo})


def read_geotiff(data: bytes) -> dict[str, Any] | None:
    """Reads the GeoTIFF tags of a TIFF's first page, as JSON values.

    Returns None for a file that is not a TIFF, or has none of these tags but ``nodata``. Otherwise returns:

    - ``tags``: values by number.
    - ``keys``: values of the GeoKeys by number.
    - ``crs``: such as ``EPSG:32633``, or None.
    - ``transform``: ``[a, b, c, d, e, f]``, or None. From the corner of the first pixel, ``x = a * column + b * row +
      c`` and ``y = d * column + e * row + f``.
    - ``nodata``: text of GDAL's tag, or None.

    Raises:
        ValueError: The tags are damaged.
    """
    if data[:4] not in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return None
    try:
        tags = _read_tags(data)
        if not tags.keys() - {_NODATA}:
            return None
        keys = _read_keys(tags)
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"its GeoTIFF tags are damaged: {error}") from None
    code = next((keys[key] for key in (_PROJECTED, _GEOGRAPHIC) if keys.get(key)), _USER_DEFINED)
    return {
        "crs": None if code == _USER_DEFINED else f"EPSG:{code}",
        "transform": _compute_affine_transform(tags, keys.get(_RASTER_TYPE) == _POINT),
        "nodata": tags.get(_NODATA),
        "keys": {str(key): value for key, value in keys.items()},
        "tags": {str(tag): value for tag, value in tags.items() if tag != _NODATA},
    }


def _read_tags(data: bytes) -> dict[int, Any]:
    """Reads the GeoTIFF tags of the first directory, by number: a text, or a list of numbers."""
    order, big = "<" if data[:2] == b"II" else ">", 43 in data[2:4]
    offset, count_format, entry, inline = ("Q", "Q", 20, 8) if big else ("I", "H", 12, 4)
    (at,) = struct.unpack_from(order + offset, data, 8 if big else 4)
    (count,) = struct.unpack_from(order + count_format, data, at)
    at += struct.calcsize(count_format)
    tags = {}
    for place in range(at, min(at + count * entry, len(data)), entry):
        tag, kind, length = struct.unpack_from(order + ("HHQ" if big else "HHI"), data, place)
        if tag not in _TAGS or kind not in _TYPES:
            continue
        letter = _TYPES[kind]
        size, value = length * struct.calcsize(letter), place + entry - inline
        if size > _MOST_BYTES:
            raise IndexError(f"tag {tag} has {size:,} bytes")
        if size > inline:
            # Raises struct.error if the file is cut off.
            (value,) = struct.unpack_from(order + offset, data, value)
        values = struct.unpack_from(f"{order}{length}{letter}", data, value)
        if letter == "s":
            tags[tag] = values[0].decode("latin-1").rstrip("\0")
        else:
            # JSON has no NaN or infinity.
            tags[tag] = [each if not isinstance(each, float) or math.isfinite(each) else None for each in values]
    return tags


def _read_keys(tags: Mapping[int, Any]) -> dict[int, Any]:
    """Looks up the values of the GeoKeys, by number: a number, a text, or a list of several numbers."""
    directory: Sequence[int] = tags.get(_KEYS, ())
    keys: dict[int, Any] = {}
    for at in range(4, min(len(directory), 4 + 4 * (directory[3] if len(directory) > 3 else 0)), 4):
        key, place, count, value = directory[at : at + 4]
        if not place:
            keys[key] = value
            continue
        values = tags.get(place, "" if place == _TEXTS else [])[value : value + count]
        if len(values) != count:
            raise IndexError(f"key {key} lies beyond the values of tag {place}")
        keys[key] = values.rstrip("|") if isinstance(values, str) else values[0] if count == 1 else values
    return keys


def _compute_affine_transform(tags: Mapping[int, Any], is_point: bool) -> list[float] | None:
    """Computes the transform from pixel corners to ground coordinates; None if the tags do not define one."""
    matrix, scale, tie = tags.get(_TRANSFORMATION, ()), tags.get(_SCALE, ()), tags.get(_TIEPOINT, ())
    if len(matrix) >= 8:
        transform = [matrix[n] for n in (0, 1, 3, 4, 5, 7)]
    elif len(scale) >= 2 and len(tie) == 6:
        if None in (*scale, *tie):
            return None
        transform = [scale[0], 0.0, tie[3] - tie[0] * scale[0], 0.0, -scale[1], tie[4] + tie[1] * scale[1]]
    else:
        return None
    if None in transform:
        return None
    if is_point:  # the tie is the middle of the pixel, as GDAL has it
        transform[2] -= (transform[0] + transform[1]) / 2
        transform[5] -= (transform[3] + transform[4]) / 2
    return transform if all(map(math.isfinite, transform)) else None
