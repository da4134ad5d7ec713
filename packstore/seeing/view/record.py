"""Describes one record in JSON values: columns, image header, EXIF and checksums."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import ROW_CHECKSUM, image_checksum, row_checksum, row_columns
from packstore.core.column import INTERNAL
from packstore.core.errors import DecodeError, PackstoreError
from packstore.core.manifest import Column, Manifest
from packstore.images.decoders.orientation import read_orientation
from packstore.images.sniff import HeaderError
from packstore.seeing.view.facts import describe_channels, parse_header, read_image_facts
from packstore.seeing.view.images import BrowserImages
from packstore.stores.base import Reader

LONGEST_TEXT = 16_000
"""Most characters of a text that are sent."""
MOST_ROWS = 2000
"""Most rows of boxes, points and arrays that are sent."""

_EXIF_TAGS, _EXIF_TEXT = 80, 200


def describe_record(reader: Reader, images: BrowserImages, record: int) -> dict[str, Any]:
    """Describes a record for the page as a JSON object: ``record``, ``key``, ``split``, ``shard``, ``image``,
    ``checksums``, ``columns`` and ``exif``.

    A damaged part has the entry ``error`` with a text.
    """
    manifest = reader.manifest
    described = [c for c in shown_columns(manifest) if c.name != "image"]
    return {
        "record": record,
        "key": _read_or_error(lambda: reader.key(record)),
        "split": next((s.name for s in manifest.splits if s.start <= record < s.stop), None),
        "shard": _find_shard_name(reader, record),
        "image": _describe_image(reader, images, record),
        "checksums": _compare_checksums(reader, record),
        "columns": [_describe_column(reader, column, record) for column in described],
        "exif": _read_or_error(lambda: _read_exif(reader, record)),
    }


def shown_columns(manifest: Manifest) -> list[Column]:
    """Returns the columns that the page shows: all except internal ones and companions."""
    columns = manifest.columns
    return [c for c in columns if (c.name == "image" or c.name not in INTERNAL) and not _is_companion(c, columns)]


def describe_value(column: Column, value: Any) -> dict[str, Any]:
    """Converts a column's value, from :meth:`packstore.stores.base.Reader.item`, to a JSON object to show.

    - Missing values and labels: ``value``.
    - Images and masks: only ``nbytes``.
    - Lists of files: ``value`` is the length of each file, ``nbytes`` their sum.
    - Other bytes: ``value`` is the first 64 in hexadecimal, ``nbytes`` their number.
    - Texts and JSON: ``value`` is the first 16,000 letters. If there are more, ``cut`` is their number.
    - Arrays: ``shape``, and ``value`` with the first rows. If there are more, ``cut`` is the number of rows.
    """
    if value is None:
        return {"value": None}
    if column.type == "label":
        return {"value": int(value)}
    if column.traits.is_picture:
        return {"nbytes": len(value) if isinstance(value, bytes) else int(np.asarray(value).nbytes)}
    if column.form == "files":
        return {"value": [len(file) for file in value], "nbytes": sum(map(len, value))}
    if column.form == "bytes":
        return {"value": value[:64].hex(" "), "nbytes": len(value)}
    if column.form == "text":
        text = value if column.type == "text" else json.dumps(value, ensure_ascii=False, indent=1)
        return {"value": text[:LONGEST_TEXT], **({"cut": len(text)} if len(text) > LONGEST_TEXT else {})}
    array = np.asarray(value)
    if column.dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    kept = array[:MOST_ROWS] if array.ndim else array
    if kept.ndim and kept.size > 64 * MOST_ROWS:
        kept = kept[: max(1, MOST_ROWS * 64 // max(1, kept[0].size))]
    cut = {"cut": len(array)} if array.ndim and len(kept) < len(array) else {}
    return {"value": to_json_numbers(kept), "shape": list(array.shape), **cut}


def to_json_numbers(array: NDArray[Any]) -> Any:
    """Converts ``array`` to lists for JSON. NaN, infinity and whole numbers of more than 53 bits become strings."""

    def plain(value: Any) -> Any:
        """Converts a value of a list, and the values of nested lists."""
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        return str(value) if type(value) is int and abs(value) >= 1 << 53 else value

    return plain(array.tolist())


def _is_companion(column: Column, columns: tuple[Column, ...]) -> bool:
    """Tells if a column holds lengths, validity or shapes of another column."""
    return any(column.name in {c.name for c in other.companions} for other in columns)


def _describe_column(reader: Reader, column: Column, record: int) -> dict[str, Any]:
    """Describes a column: ``name``, ``type``, ``dtype``, ``parallel``, and the entries of :func:`describe_value`. If
    the value is damaged, ``error`` replaces these entries."""
    about = {"name": column.name, "type": column.type, "dtype": column.dtype, "parallel": column.parallel}
    try:
        return about | describe_value(column, reader.item(column.name, record))
    except (PackstoreError, IndexError) as error:
        return about | {"error": str(error)}


def _describe_image(reader: Reader, images: BrowserImages, record: int) -> dict[str, Any]:
    """Describes the main image: bytes, size, kind, and the size and display window in which it is shown. Decodes the
    image.

    If the image is damaged, returns ``error`` and the facts that could be read.
    """
    column = reader.manifest.image
    try:
        data = memoryview(reader.view(record)).cast("B")
    except (PackstoreError, IndexError) as error:
        return {"error": str(error)}
    about: dict[str, Any] = {"nbytes": len(data)}
    try:
        if column.layout is None:
            info = parse_header(data)
            about |= {"width": info.width, "height": info.height, "kind": info.kind, "mode": describe_channels(info)}
            about |= {"progressive": info.progressive, "orientation": read_orientation(data, info)}
        else:
            (height, width), kind, _ = read_image_facts(reader, record)
            about |= {"width": width, "height": height, "kind": kind}
    except (PackstoreError, HeaderError) as error:
        return about | {"error": str(error)}
    try:
        height, width = images.decode_for_display(record, column).shape[:2]
    except PackstoreError as error:
        return about | {"error": str(error)}
    window = images.choose_window(record, column)
    return about | {"shown": [width, height]} | ({} if window is None else {"window": window})


def _compare_checksums(reader: Reader, record: int) -> list[dict[str, Any]]:
    """Compares the stored checksums of the image and of the other columns with computed ones. Returns an object for
    each.

    The object has ``of``, ``ok``, ``stored`` and ``found``. If a value cannot be read, it has ``of``, ``ok`` (False)
    and ``error``. Without row checksums, returns only the object of the image.
    """
    manifest = reader.manifest
    found: list[dict[str, Any]] = []
    try:
        found.append(
            _describe_comparison("image", int(reader.value("checksum", record)), image_checksum(reader.view(record)))
        )
    except (PackstoreError, IndexError) as error:
        found.append({"of": "image", "ok": False, "error": str(error)})
    if manifest.has_column(ROW_CHECKSUM.name):
        try:
            row = {column.name: reader.value(column.name, record) for column in row_columns(manifest.columns)}
            stored = int(reader.value(ROW_CHECKSUM.name, record))
            found.append(_describe_comparison("other columns", stored, row_checksum(manifest.columns, row)))
        except (PackstoreError, IndexError) as error:
            found.append({"of": "other columns", "ok": False, "error": str(error)})
    return found


def _describe_comparison(what: str, stored: int, found: int) -> dict[str, Any]:
    """Returns the comparison of a stored checksum with the computed one: ``of``, ``ok``, ``stored``, ``found``."""
    return {"of": what, "ok": stored == found, "stored": f"{stored:016x}", "found": f"{found:016x}"}


def _read_exif(reader: Reader, record: int) -> dict[str, str]:
    """Reads the EXIF values of an image by tag name, at most 80, each cut to 200 letters. Leaves out values of bytes.

    Names of tags of the GPS directory begin with ``GPS``. Empty for pixels. Raises :class:`DecodeError` if EXIF is
    damaged.
    """
    if reader.manifest.image.layout is not None:
        return {}
    from PIL import ExifTags, Image

    try:
        with Image.open(io.BytesIO(bytes(reader.view(record)))) as image:
            exif = image.getexif()
            tags = {**exif, **exif.get_ifd(ExifTags.IFD.Exif)}
            place = {f"GPS {ExifTags.GPSTAGS.get(k, k)}": v for k, v in exif.get_ifd(ExifTags.IFD.GPSInfo).items()}
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise DecodeError(f"EXIF cannot be read: {error}") from error
    named = {str(ExifTags.TAGS.get(tag, tag)): value for tag, value in tags.items()} | place
    shown = [(name, str(value)[:_EXIF_TEXT]) for name, value in named.items() if not isinstance(value, bytes)]
    return dict(shown[:_EXIF_TAGS])


def _find_shard_name(reader: Reader, record: int) -> str | None:
    """Returns the name of a record's shard; None in a store without shards."""
    shards = reader.manifest.shards
    if shards is None:
        return None
    return shards.name(int(np.searchsorted(reader.part_starts, record, "right")) - 1)


def _read_or_error(work: Any) -> Any:
    """Returns the result of ``work``, or ``{"error": text}`` if it raises an error of the store."""
    try:
        return work()
    except (PackstoreError, IndexError) as error:
        return {"error": str(error)}
