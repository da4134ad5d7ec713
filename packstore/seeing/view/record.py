"""Describes one record in JSON values: columns, image header, EXIF and checksums."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.column_types.forms import MOST_ROWS, RowClasses, cut_rows, to_json_numbers
from packstore.core.columns import read_row_classes
from packstore.core.errors import DecodeError, PackstoreError
from packstore.core.manifest import Column, Manifest
from packstore.core.proof import Comparison, Proof
from packstore.images.orientation import read_orientation
from packstore.images.sniff import HeaderError
from packstore.seeing.facts import describe_channels, locate_in_split, parse_header, read_image_facts, shown_columns
from packstore.seeing.view.images import BrowserImages
from packstore.stores import Reader

if TYPE_CHECKING:
    from packstore.seeing.loaded import LoadedRecord

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
        "split": locate_in_split(manifest, record)[0],
        "shard": _find_shard_name(reader, record),
        "image": _describe_image(reader, images, record),
        "checksums": _compare_checksums(reader, record),
        "columns": [_describe_column(reader, column, record) for column in described],
        "exif": _read_or_error(lambda: _read_exif(reader, record)),
    }


def describe_loaded(manifest: Manifest, loaded: LoadedRecord) -> dict[str, Any]:
    """Describes a record that the loader returned as a JSON object.

    - ``shown``: width and height of the image as loaded.
    - ``exact``: see :class:`LoadedRecord`.
    - ``columns``: see :func:`describe_value`.
    - ``python``: code that loads this record in the same way.
    """
    height, width = loaded.image.shape[:2]
    columns = [
        {"name": c.name, "type": c.type, "parallel": c.parallel}
        | describe_value(c, loaded.values[c.name], read_row_classes(c, manifest.columns, loaded.values.get))
        for c in manifest.columns
        if c.name in loaded.values
    ]
    return {"shown": [width, height], "exact": loaded.exact, "columns": columns, "python": loaded.python}


def describe_value(column: Column, value: Any, classes: RowClasses | None) -> dict[str, Any]:
    """Converts a column's value to a JSON object to show, see :meth:`ColumnType.show`.

    For a column that is drawn over the image, adds:

    - ``layer``: number that orders drawn columns; shapes of a higher layer are above.
    - ``shapes``: see :class:`ShapeList`. Absent for masks: the page fetches these as pictures.

    A missing value is ``{"value": None}``. ``classes``: class numbers that describe the value's rows.
    """
    if value is None:
        return {"value": None}
    shown = column.traits.show(column, value)
    if not column.traits.drawn_as:
        return shown
    shapes = ShapeList()
    if not column.holds_masks:
        column.traits.draw(shapes, column, value if isinstance(value, list) else np.asarray(value), classes)
    return shown | {"layer": column.traits.layer} | ({} if column.holds_masks else {"shapes": shapes.shapes})


class ShapeList:
    """Collects the shapes of a value as JSON objects, :attr:`shapes`.

    - Boxes: ``boxes``, each left, top, right, bottom. With classes: ``numbers`` and ``names``, one for each box.
    - Points: ``points``, a list of points for each object.
    - Segments: ``rings``, a list of rings for each object, ``x, y, x, y …``; ``outlined`` for each object;
      ``fractions``; with classes ``numbers``.

    Leaves out masks, and the rows that :func:`cut_rows` leaves out. A value without rows adds nothing.
    """

    def __init__(self) -> None:
        self.shapes: list[dict[str, Any]] = []

    def draw_mask(self, mask: NDArray[Any]) -> None:
        return

    def draw_boxes(self, boxes: NDArray[Any], classes: RowClasses | None = None) -> None:
        """Adds the first boxes with their classes, see :func:`cut_rows`. Adds nothing without boxes."""
        kept = cut_rows(boxes)
        if classes is not None:
            classes = classes._replace(numbers=classes.numbers[: len(kept)])
        named = {} if classes is None else {"numbers": to_json_numbers(classes.numbers), "names": classes.texts}
        self.shapes += [{"boxes": to_json_numbers(kept), **named}] if len(kept) else []

    def draw_rings(
        self,
        objects: Sequence[Sequence[Sequence[float]]],
        outlined: Sequence[bool],
        holed: Sequence[bool],
        fractions: bool,
        classes: RowClasses | None = None,
    ) -> None:
        """Adds the rings of the first 2,000 objects. Adds nothing without objects."""
        kept = objects[:MOST_ROWS]
        numbered = {} if classes is None else {"numbers": to_json_numbers(classes.numbers[: len(kept)])}
        self.shapes += (
            [
                {
                    "rings": list(kept),
                    "outlined": list(outlined[:MOST_ROWS]),
                    "holed": list(holed[:MOST_ROWS]),
                    "fractions": fractions,
                    **numbered,
                }
            ]
            if any(kept)
            else []
        )

    def draw_points(self, points: NDArray[Any]) -> None:
        """Adds the points of each row as one object. Adds nothing without rows.

        Draws only the first rows, see :func:`cut_rows`: at most 2,000.
        """
        kept = cut_rows(points)
        objects = kept.reshape(len(kept), -1, kept.shape[-1]) if len(kept) else kept
        self.shapes += [{"points": to_json_numbers(objects)}] if len(kept) else []


def _describe_column(reader: Reader, column: Column, record: int) -> dict[str, Any]:
    """Describes a column and its value as a JSON object, with ``error`` for a damaged value."""
    names = ("name", "type", "dtype", "parallel", "frame")
    about = {name: getattr(column, name) for name in names}
    try:
        return about | describe_value(
            column, reader.item(column.name, record), _read_row_classes(reader, column, record)
        )
    except (PackstoreError, IndexError) as error:
        return about | {"error": str(error)}


def _read_row_classes(reader: Reader, column: Column, record: int) -> RowClasses | None:
    """Reads the classes of a value's rows; None if there are none or they are damaged."""
    try:
        return read_row_classes(column, reader.manifest.columns, lambda name: reader.item(name, record))
    except (PackstoreError, IndexError):
        return None


def _describe_image(reader: Reader, images: BrowserImages, record: int) -> dict[str, Any]:
    """Describes the main image and how it is shown, with ``error`` if it is damaged."""
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
    """Compares the stored checksums of the image and of the other columns with computed ones."""
    proof = Proof(reader.manifest.columns, reader.value)

    def compare_image() -> Comparison:
        return proof.compare_image(record, reader.view(record))

    def compare_fields() -> Comparison:
        return proof.compare_fields(record, {c.name: reader.value(c.name, record) for c in proof.columns})

    comparisons: list[dict[str, Any]] = []
    # Without row checksums, compares only the image.
    for of, compare in [("image", compare_image), ("other columns", compare_fields)][: 1 + proof.has_rows]:
        try:
            result = compare()
        except (PackstoreError, IndexError) as error:
            comparisons.append({"of": of, "ok": False, "error": str(error)})
        else:
            shown = {"stored": f"{result.expected:016x}", "found": f"{result.found:016x}"}
            comparisons.append({"of": of, "ok": not result.differs, **shown})
    return comparisons


def _read_exif(reader: Reader, record: int) -> dict[str, str]:
    """Reads the EXIF values of the main image by tag name; empty for stores of pixels."""
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
    return shards.name(int(np.searchsorted(reader.table.starts, record, "right")) - 1)


def _read_or_error(work: Any) -> Any:
    """Returns the result of ``work``, or ``{"error": text}`` if it raises an error of the store."""
    try:
        return work()
    except (PackstoreError, IndexError) as error:
        return {"error": str(error)}
