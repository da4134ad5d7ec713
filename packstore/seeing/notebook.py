"""HTML of a store, a dataset or a loader in a notebook: a few thumbnails, and tables of splits and classes.

Rendering takes about as long for any number of records: at most eight are read. All text from the store is escaped.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packstore.core.errors import PackstoreError, printable
from packstore.core.manifest import Manifest
from packstore.seeing.drawing import make_image_reader, make_thumbnail
from packstore.seeing.facts import find_parts_within, spread_local_records
from packstore.stores import Reader
from packstore.training.dataset import PackedDataset
from packstore.training.item_options import list_left_out
from packstore.training.loader import PackedLoader

_THUMBNAILS, _LEAST_THUMBNAILS, _SIDE = 8, 4, 96
_SECONDS = 0.05
"""Time after which no further thumbnail is started, beyond the least number: the first one imports the decoders."""
_CLASSES, _SPLITS = 12, 20
_COUNTED = 4_000_000
"""Most records for which classes are counted. With many shards they are not counted, since that would open all."""
_COUNTED_SHARDS = 16
_LONGEST = 60
_CELL = "display:inline-block;margin:2px;vertical-align:top;text-align:center;font-size:11px"
_FAULT = f"width:{_SIDE}px;height:{_SIDE}px;border:1px solid #b00020;color:#b00020;overflow:hidden;white-space:normal"


def render_html(thing: Reader | PackedDataset | PackedLoader) -> str:
    """Returns the HTML of a store, dataset or loader for a notebook. Shows errors of the store as text."""
    if isinstance(thing, PackedLoader):
        facts = [escape(line.strip()) for line in repr(thing).splitlines()]
        return _render_page(facts, _render_dataset(thing.pipeline.dataset))
    if isinstance(thing, PackedDataset):
        return _render_dataset(thing)
    return _render_store(thing)


def _render_dataset(dataset: PackedDataset) -> str:
    """Renders a dataset's facts, then its thumbnails and classes, or the error from reading them."""
    manifest = dataset.manifest
    named = f", split {_escape(dataset.split)}" if dataset.split is not None else ""
    path, encoding = _escape(str(dataset.path)), _describe_encoding(manifest)
    head = f"<b>PackedDataset</b> {path}{named}: {len(dataset):,} records, {encoding}"
    item = f"item: {', '.join(map(_escape, dataset.columns))} (image as {_escape(dataset.output)})"
    if left_out := list_left_out(manifest, dataset.columns):
        item += f"; left out: {', '.join(map(_escape, left_out))}"
    try:
        reader = dataset.reader
        chosen = reader.split(dataset.split)
        records = range(chosen.start, chosen.stop)
        parts = [_render_thumbnails(reader, records, dataset.exif_transpose), _render_classes(reader, records)]
    except PackstoreError as error:
        parts = [_escape(str(error))]
    return _render_page([head, item], *parts)


def _render_store(reader: Reader) -> str:
    """Renders a store: its facts, thumbnails, splits and classes."""
    manifest = reader.manifest
    head = f"<b>{_escape(type(reader).__name__)}</b> {_escape(str(reader.path))}: {len(reader):,} records"
    records = range(len(reader))
    tables = [_render_splits(manifest), _render_classes(reader, records)]
    return _render_page([f"{head}, {_describe_encoding(manifest)}"], _render_thumbnails(reader, records, None), *tables)


def _render_page(facts: Sequence[str], *parts: str) -> str:
    """Joins lines of facts and further parts, all HTML already, to one block of HTML."""
    return "<div>" + "".join(f"<div>{fact}</div>" for fact in facts) + "".join(parts) + "</div>"


def _describe_encoding(manifest: Manifest) -> str:
    """Describes encoding, format and number of shards."""
    shards = f" in {len(manifest.shards):,} shards" if manifest.shards else ""
    return _escape(f"{manifest.encoding} in {manifest.format}") + shards


def _render_thumbnails(reader: Reader, records: range, exif_transpose: bool | None) -> str:
    """Renders up to eight evenly spread thumbnails from shards on this machine, and the number shown."""
    if not len(records):
        return ""
    pictures = make_image_reader(reader.manifest, exif_transpose=exif_transpose)
    cells: list[str] = []
    end = perf_counter() + _SECONDS
    for record in spread_local_records(reader, records.start, records.stop, _THUMBNAILS).tolist():
        # Shows at least four, however long they take.
        if len(cells) >= _LEAST_THUMBNAILS and perf_counter() > end:
            break
        try:
            image = make_thumbnail(pictures, reader, record, _SIDE)
            key = reader.key(record)
        except (PackstoreError, IndexError) as error:
            cells.append(f'<div style="{_FAULT}">{_escape(f"record {record}: {error}", 200)}</div>')
            continue
        label = _read_label(reader, record)
        if image is not None:  # leaves out records without an image
            cells.append(
                f'<img alt="{_escape(key, 300)}" title="{_escape(key, 300)}" src="{_data_url(image)}"><br>{label}'
            )
    drawn = "".join(f'<div style="{_CELL}">{cell}</div>' for cell in cells)
    spread = ", evenly spread" if 1 < len(cells) < len(records) else ""
    shown = f"<div>shown: {len(cells):,} of {len(records):,} records{spread}</div>"
    return f"<div>{drawn}</div>{shown}{_render_absent(reader, records)}"


def _render_absent(reader: Reader, records: range) -> str:
    """Renders a note with the number of shards on this machine; empty if all are."""
    here = reader.table.are_local(find_parts_within(reader, records.start, records.stop))
    if here.all():
        return ""
    count = f"{int(here.sum()):,} of {len(here):,}"
    return f"<div>{count} shards are on this machine; images of the others are not shown</div>"


def _read_label(reader: Reader, record: int) -> str:
    """Reads a record's label as escaped text, with class names for numbers; ``?`` if it is damaged."""
    manifest = reader.manifest
    if not manifest.has_column("label"):
        return ""
    try:
        label = reader.item("label", record)
    except (PackstoreError, IndexError):
        return "?"
    classes = manifest.classes
    if classes is None or label is None:
        return _escape(label)
    # A number without a name stays.
    numbers = np.atleast_1d(label).tolist()
    return _escape(", ".join(classes[n] if 0 <= n < len(classes) else str(n) for n in numbers))


def _data_url(image: NDArray[np.uint8]) -> str:
    """Encodes an image as a ``data:`` URL of JPEG."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _render_splits(manifest: Manifest) -> str:
    """Renders a table of the first 20 splits; empty without splits."""
    rows = [(split.name, f"{len(split):,}") for split in manifest.splits[:_SPLITS]]
    return _render_table(("split", "records"), rows, len(manifest.splits) - len(rows))


def _render_classes(reader: Reader, records: range) -> str:
    """Renders a table of the first 12 classes, with numbers of records for small local stores."""
    manifest = reader.manifest
    classes = manifest.classes
    if classes is None:
        return ""
    few = len(records) <= _COUNTED and (manifest.shards is None or len(manifest.shards) <= _COUNTED_SHARDS)
    few = few and bool(reader.table.are_local(find_parts_within(reader, records.start, records.stop)).all())
    counts: Any = None
    if few:
        try:
            labels = reader.unchecked_reader.values("label", np.arange(records.start, records.stop))
            counts = np.bincount(labels[(labels >= 0) & (labels < len(classes))], minlength=len(classes))
        except (PackstoreError, IndexError):
            counts = None
    shown = [
        (name, "" if counts is None else f"{int(counts[number]):,}") for number, name in enumerate(classes[:_CLASSES])
    ]
    return _render_table(("class", "records" if counts is not None else ""), shown, len(classes) - len(shown))


def _render_table(heads: tuple[str, str], rows: Sequence[tuple[str, str]], more: int) -> str:
    """Renders a table of two columns, and the number of left-out rows, ``more``; empty without rows."""
    if not rows:
        return ""
    lines = "".join(f"<tr><td>{_escape(name)}</td><td>{_escape(value)}</td></tr>" for name, value in rows)
    rest = f'<tr><td colspan="2">… and {more:,} more</td></tr>' if more else ""
    head = "".join(f"<th>{_escape(name)}</th>" for name in heads)
    style = "display:inline-table;margin:4px 16px 4px 0;vertical-align:top"
    return f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{lines}{rest}</tbody></table>'


def _escape(value: object, longest: int = _LONGEST) -> str:
    """Makes a value printable text, cuts it to ``longest`` characters and escapes it for HTML."""
    text = printable(str(value))
    return escape(text if len(text) <= longest else f"{text[: longest - 1]}…")
