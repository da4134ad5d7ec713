"""Lists the entries that an LMDB should have by its manifest, and checks that all are there, in order and intact."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from packstore.core.manifest import Manifest
from packstore.core.progress import Progress, ProgressCallback
from packstore.stores.base import Problem
from packstore.stores.lmdb.bulk_walk import IrregularError, walk_in_bulk
from packstore.stores.lmdb.pages import KEY_SIZE, Pages
from packstore.stores.scavenge import array_names

MANIFEST = "manifest"
_REPORT_EVERY = 1 << 14


def list_column_prefixes(manifest: Manifest) -> list[bytes]:
    """Returns the key prefix ``name/`` of each column with an entry per record.

    A key is the prefix and the record number in ten digits.
    """
    return [f"{column.name}/".encode("ascii") for column in manifest.columns[1:] if column.one_by_one]


def list_named_keys(manifest: Manifest) -> set[bytes]:
    """Returns the keys of a store that do not end in a record number: ``manifest``, and the arrays of whole columns."""
    names = {MANIFEST}
    for column in manifest.columns[1:]:
        if not column.one_by_one:
            names.update(array_names(column))
    return {name.encode("ascii") for name in names}


def check_entries(pages: Pages, manifest: Manifest, *, quick: bool, progress: ProgressCallback) -> Iterator[Problem]:
    """Yields the faults of pages and entries, and differences from the manifest's bytes of each column.

    ``quick`` skips the overflow pages of long values. A sound file is checked in bulk, without progress reports.
    """
    if _is_sound(pages, manifest, overflow=not quick):
        return
    nbytes_by_column = yield from _walk_faults(pages, manifest, quick, progress)
    for column in manifest.container_columns:
        nbytes = nbytes_by_column.get(column.name, column.nbytes)
        if nbytes != column.nbytes:
            what = "images" if column.name == "image" else f"values of {column.name!r}"
            yield Problem(f"all {what} have {nbytes} bytes, the manifest says {column.nbytes}")


def _is_sound(pages: Pages, manifest: Manifest, *, overflow: bool) -> bool:
    """Returns whether every page and entry is as the manifest says. Walks in bulk, which does not show the fault."""
    widths = _list_value_widths(manifest)
    sizes = {f"{c.name}/".encode("ascii"): c.nbytes for c in manifest.columns[1:] if c.one_by_one}
    sizes[b""] = manifest.container_columns[0].nbytes
    counts = dict.fromkeys(sizes, 0)
    names: list[bytes] = []
    try:
        for item in walk_in_bulk(pages, list_column_prefixes(manifest), overflow=overflow):
            if isinstance(item, bytes):
                names.append(item)
                continue
            done, count = counts[item.prefix], len(item.numbers)
            if not done:
                names.append(item.prefix)
            wrong_size = item.prefix in widths and (item.sizes != widths[item.prefix]).any()
            in_order = names[-1] == item.prefix and (item.numbers == np.arange(done, done + count)).all()
            if wrong_size or not in_order:
                return False
            counts[item.prefix] += count
            sizes[item.prefix] -= int(item.sizes.sum())
    except IrregularError:
        return False
    complete = set(counts.values()) == {manifest.records} and not any(sizes.values())
    return complete and names == sorted([*list_named_keys(manifest), *counts])


def _walk_faults(
    pages: Pages, manifest: Manifest, quick: bool, progress: ProgressCallback
) -> Generator[Problem, None, dict[str, int]]:
    """Yields the faults of pages and entries, page by page.

    Returns the counted bytes of the images and of each column with an entry per record, by name.
    """
    named = list_named_keys(manifest)
    widths = _list_value_widths(manifest)
    numbered = {b"": "image"} | {prefix: prefix[:-1].decode("ascii") for prefix in list_column_prefixes(manifest)}
    next_record, nbytes = dict.fromkeys(numbered, 0), dict.fromkeys(numbered.values(), 0)
    for item in pages.walk_entries(overflow=not quick):
        if isinstance(item, str):
            yield Problem(item)
            continue
        prefix, digits = item.key[:-KEY_SIZE], item.key[-KEY_SIZE:]
        record = next_record.get(prefix, 0)
        if item.key in named:
            named.remove(item.key)
        elif (
            prefix in numbered and len(digits) == KEY_SIZE and digits.isdigit()
            and record <= int(digits) < manifest.records
        ):  # fmt: skip
            for missing in range(record, int(digits)):
                yield _missing_entry_problem(numbered[prefix], missing)
            record = next_record[prefix] = int(digits) + 1
            nbytes[numbered[prefix]] += item.size
            if item.size != widths.get(prefix, item.size):
                what = f"{_describe_entry(numbered[prefix])} has {item.size} bytes, expected {widths[prefix]}"
                yield Problem(what, record=record - 1)
            if record % _REPORT_EVERY == 0:
                progress(Progress("structure", record, manifest.records, nbytes["image"]))
        else:
            yield Problem(f"entry {item.key!r} does not belong to the store")
    for prefix, record in next_record.items():
        for missing in range(record, manifest.records):
            yield _missing_entry_problem(numbered[prefix], missing)
    for name in sorted(named):
        yield Problem(f"entry {name!r} is missing")
    return nbytes


def _missing_entry_problem(column: str, record: int) -> Problem:
    """Returns the problem of a record without an entry in a column."""
    return Problem(f"{_describe_entry(column)} is missing", record=record)


def _describe_entry(column: str) -> str:
    """Returns ``its entry`` for the image, and ``its entry of 'mask'`` for a column."""
    return "its entry" if column == "image" else f"its entry of {column!r}"


def _list_value_widths(manifest: Manifest) -> dict[bytes, int]:
    """Returns the bytes of a value by key prefix, for fixed images and fixed columns with an entry per record."""
    widths = {f"{c.name}/".encode("ascii"): c.record_nbytes for c in manifest.columns[1:] if c.one_by_one
              and c.kind == "fixed"}  # fmt: skip
    if manifest.image.kind == "fixed":
        widths[b""] = manifest.image.record_nbytes
    return widths
