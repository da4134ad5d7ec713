"""The arrays of an export of packstore, see :mod:`packstore.exports.arrays`: what its sheet says, and no guess."""

from __future__ import annotations

from collections.abc import Sequence

from packstore.core.errors import SourceError, printable
from packstore.core.sheet import SHEET, Sheet
from packstore.sources.arrays.choosing import Choice, Chosen, Part
from packstore.sources.arrays.stored import ArrayInfo

EXPORTED_SHAPE = "shape of the image"
"""Stands for the array of shapes among the columns of a part."""


def exported(sheet: Sheet, files: Sequence[Sequence[ArrayInfo]], path: str, *, grouped: bool) -> Choice:
    """The parts that the shards of an export are. Raises :class:`SourceError` where an array is missing.

    ``grouped``: there is one folder, of which the shards are groups."""
    image = sheet.manifest.image
    names = {"image": "images"} | {name: "labels" if name == "label" else name for name in sheet.held}
    if image.kind == "ragged" and not sheet.manifest.holds_files and sheet.image == "kept":
        names[EXPORTED_SHAPE] = "images_shape"
    parts = []
    if len(files) != (1 if grouped else len(sheet.shards)):
        raise SourceError(f"{printable(path)}: {SHEET} is not that of {len(files)} files")
    for place, shard in enumerate(sheet.shards):
        # A file for each shard; or one folder, of which a shard is a group.
        number = 0 if grouped else place
        folder = f"{shard.file}/" if grouped and shard.split else ""
        by_name = {info.name: info for info in files[number]}
        columns = {}
        for column, name in names.items():
            info = by_name.get(f"{folder}{name}")
            if info is None or info.what not in ("numbers", "files") or info.shape[:1] != (shard.records,):
                raise SourceError(
                    f"{printable(path)}/{printable(shard.file)} is not as packstore exported it: it has no array "
                    f"{printable(name)} of {shard.records:,} values; remove {SHEET} to read it like any other"
                )
            columns[column] = Chosen(number, info, 0, tuple(range(1, len(info.shape))))
        parts.append(Part(shard.split, shard.records, columns))
    return Choice(tuple(parts), None, ())
