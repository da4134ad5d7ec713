"""Arrays of an export of packstore (:mod:`packstore.exports.arrays`), as its export manifest names them."""

from __future__ import annotations

from collections.abc import Sequence

from packstore.core.errors import SourceError, printable
from packstore.core.export_manifest import MANIFEST_FILE, ExportManifest
from packstore.sources.arrays.choosing import Choice, Chosen, Part
from packstore.sources.arrays.stored import ArrayInfo

EXPORTED_SHAPE = "shape of the image"
"""Stands for the array of shapes among the columns of a part."""


def exported(
    export_manifest: ExportManifest, files: Sequence[Sequence[ArrayInfo]], path: str, *, grouped: bool
) -> Choice:
    """The parts that the shards of an export are. Raises :class:`SourceError` where an array is missing.

    ``grouped``: there is one folder, of which the shards are groups."""
    image = export_manifest.manifest.image
    names = {"image": "images"} | {name: "labels" if name == "label" else name for name in export_manifest.held}
    if image.kind == "ragged" and not export_manifest.manifest.holds_files and export_manifest.image == "kept":
        names[EXPORTED_SHAPE] = "images_shape"
    parts = []
    if len(files) != (1 if grouped else len(export_manifest.shards)):
        raise SourceError(f"{printable(path)}: {MANIFEST_FILE} is not that of {len(files)} files")
    for place, shard in enumerate(export_manifest.shards):
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
                    f"{printable(name)} of {shard.records:,} values; remove {MANIFEST_FILE} to read it like any other"
                )
            columns[column] = Chosen(number, info, 0, tuple(range(1, len(info.shape))))
        parts.append(Part(shard.split, shard.records, columns))
    return Choice(tuple(parts), None, ())
