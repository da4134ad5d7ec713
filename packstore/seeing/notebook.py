"""What a notebook shows of a store, a dataset or a loader: a few thumbnails, and tables of splits and classes.

It takes less than a tenth of a second whatever the number of records. All text from the store is escaped.
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
from packstore.seeing.drawing import pictures_of, thumbnail
from packstore.seeing.nearby import parts_within, spread_at_hand
from packstore.stores.base import Reader
from packstore.training.dataset import PackedDataset
from packstore.training.loader import PackedLoader

_THUMBNAILS, _SIDE = 8, 96
_SECONDS = 0.05
"""After so long no further thumbnail is begun."""
_CLASSES, _SPLITS = 12, 20
_COUNTED = 4_000_000
"""Records up to which classes are counted; in a store of many shards they are not, since all would be opened."""
_COUNTED_SHARDS = 16
_LONGEST = 60
_CELL = "display:inline-block;margin:2px;vertical-align:top;text-align:center;font-size:11px"
_FAULT = f"width:{_SIDE}px;height:{_SIDE}px;border:1px solid #b00020;color:#b00020;overflow:hidden;white-space:normal"


def html_of(thing: Reader | PackedDataset | PackedLoader) -> str:
    """HTML for a notebook. Damage is shown, never raised."""
    if isinstance(thing, PackedLoader):
        facts = [f"{escape(repr(thing))}"]
        if thing.options.augment:
            facts.append("augment: " + ", ".join(_text(repr(operation)) for operation in thing.options.augment))
        return _page(facts, _of_dataset(thing.dataset))
    if isinstance(thing, PackedDataset):
        return _of_dataset(thing)
    return _of_store(thing)


def _of_dataset(dataset: PackedDataset) -> str:
    manifest = dataset.manifest
    named = f", split {_text(dataset.split)}" if dataset.split is not None else ""
    head = f"<b>PackedDataset</b> {_text(str(dataset.path))}{named}: {len(dataset):,} records, {_encoding(manifest)}"
    item = f"item: {', '.join(map(_text, dataset.columns))} (image as {_text(dataset.output)})"
    try:
        reader = dataset.reader
        chosen = reader.split(dataset.split)
        records = range(chosen.start, chosen.stop)
        parts = [_sheet(reader, records, dataset.exif_transpose), _classes(reader, records)]
    except PackstoreError as error:
        parts = [_text(str(error))]
    return _page([head, item], *parts)


def _of_store(reader: Reader) -> str:
    manifest = reader.manifest
    head = f"<b>{_text(type(reader).__name__)}</b> {_text(str(reader.path))}: {len(reader):,} records"
    records = range(len(reader))
    tables = [_splits(manifest), _classes(reader, records)]
    return _page([f"{head}, {_encoding(manifest)}"], _sheet(reader, records, None), *tables)


def _page(facts: Sequence[str], *parts: str) -> str:
    return "<div>" + "".join(f"<div>{fact}</div>" for fact in facts) + "".join(parts) + "</div>"


def _encoding(manifest: Manifest) -> str:
    shards = f" in {len(manifest.shards):,} shards" if manifest.shards else ""
    return _text(f"{manifest.encoding} in {manifest.format}") + shards


def _sheet(reader: Reader, records: range, exif_transpose: bool | None) -> str:
    """Thumbnails of records that are spread evenly, and how many these are. None is fetched for it."""
    if not len(records):
        return ""
    pictures = pictures_of(reader.manifest, exif_transpose=exif_transpose)
    cells = []
    end = perf_counter() + _SECONDS
    for record in spread_at_hand(reader, records.start, records.stop, _THUMBNAILS).tolist():
        if perf_counter() > end:
            break
        try:
            image = thumbnail(pictures, reader, record, _SIDE)
            key = reader.key(record)
        except (PackstoreError, IndexError) as error:
            cells.append(f'<div style="{_FAULT}">{_text(f"record {record}: {error}", 200)}</div>')
            continue
        label = _label(reader, record)
        if image is not None:
            cells.append(f'<img alt="{_text(key, 300)}" title="{_text(key, 300)}" src="{_as_url(image)}"><br>{label}')
    drawn = "".join(f'<div style="{_CELL}">{cell}</div>' for cell in cells)
    spread = ", evenly spread" if 1 < len(cells) < len(records) else ""
    shown = f"<div>shown: {len(cells):,} of {len(records):,} records{spread}</div>"
    return f"<div>{drawn}</div>{shown}{_absent(reader, records)}"


def _absent(reader: Reader, records: range) -> str:
    """What to say of parts that would have to be fetched."""
    here = reader.at_hand(parts_within(reader, records.start, records.stop))
    if here.all():
        return ""
    count = f"{int(here.sum()):,} of {len(here):,}"
    return f"<div>{count} shards are on this machine; images of the others are not shown</div>"


def _label(reader: Reader, record: int) -> str:
    manifest = reader.manifest
    if not manifest.has_column("label"):
        return ""
    try:
        number = reader.item("label", record)
    except (PackstoreError, IndexError):
        return "?"
    classes = manifest.classes
    return _text(classes[number] if classes is not None and number is not None and number < len(classes) else number)


def _as_url(image: NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _splits(manifest: Manifest) -> str:
    rows = [(split.name, f"{len(split):,}") for split in manifest.splits[:_SPLITS]]
    return _table(("split", "records"), rows, len(manifest.splits) - len(rows))


def _classes(reader: Reader, records: range) -> str:
    """A table of classes with their records, as far as these are quickly counted."""
    manifest = reader.manifest
    classes = manifest.classes
    if classes is None:
        return ""
    few = len(records) <= _COUNTED and (manifest.shards is None or len(manifest.shards) <= _COUNTED_SHARDS)
    few = few and bool(reader.at_hand(parts_within(reader, records.start, records.stop)).all())
    counts: Any = None
    if few:
        try:
            labels = reader.unchecked.values("label", np.arange(records.start, records.stop))
            counts = np.bincount(labels[(labels >= 0) & (labels < len(classes))], minlength=len(classes))
        except (PackstoreError, IndexError):
            counts = None
    shown = [
        (name, "" if counts is None else f"{int(counts[number]):,}") for number, name in enumerate(classes[:_CLASSES])
    ]
    return _table(("class", "records" if counts is not None else ""), shown, len(classes) - len(shown))


def _table(heads: tuple[str, str], rows: Sequence[tuple[str, str]], more: int) -> str:
    if not rows:
        return ""
    lines = "".join(f"<tr><td>{_text(name)}</td><td>{_text(value)}</td></tr>" for name, value in rows)
    rest = f'<tr><td colspan="2">… and {more:,} more</td></tr>' if more else ""
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    style = "display:inline-table;margin:4px 16px 4px 0;vertical-align:top"
    return f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{lines}{rest}</tbody></table>'


def _text(value: object, longest: int = _LONGEST) -> str:
    text = printable(str(value))
    return escape(text if len(text) <= longest else f"{text[: longest - 1]}…")
