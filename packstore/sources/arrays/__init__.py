"""Sources of named arrays: images, labels and further columns in HDF5, npz, MATLAB and Zarr, and published sets.

Arrays of packstore's own exports (:mod:`packstore.exports.arrays`) are found by the export manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import SourceError, printable
from packstore.core.fields import Bytes, Field
from packstore.sources.arrays.choosing import ArrayRoles, SplitArrays
from packstore.sources.arrays.source import ArraySource, to_native
from packstore.sources.arrays.stored import ArrayInfo, ColumnArray
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.exported import ExportedRows, open_with
from packstore.stores.export_manifest import MANIFEST_FILE

# Name of the array of shapes among the columns of a part.
_SHAPE = "shape of the image"


class ExportedArrays(ExportedRows, ArraySource):
    """Base of exports as arrays, whose names and shapes are in the export manifest. Opening raises :class:`SourceError`
    if a file or array is missing or has another length. A sample with missing chunks is a bad sample."""

    gaps_are_bad = True

    def list_files(self) -> list[Path]:
        """Lists the shards that the export manifest names. If the shards are groups of one folder, lists that folder
        alone."""
        return super().list_files() if self.grouped else [file for _, file in self.list_shards()]

    def assign_columns(self, infos: Sequence[Sequence[ArrayInfo]]) -> ArrayRoles:
        """Assigns roles by the export manifest, shard by shard. Raises :class:`SourceError` if an array is missing, or
        has another length."""
        export = self.export_manifest
        image = export.manifest.image
        names = {"image": "images"} | {name: "labels" if name == "label" else name for name in export.held}
        if image.kind == "ragged" and not export.manifest.holds_files and export.image == "kept":
            names[_SHAPE] = "images_shape"
        parts = []
        for place, shard in enumerate(export.shards):
            number = 0 if self.grouped else place
            folder = f"{shard.file}/" if self.grouped and shard.split else ""
            by_name = {info.name: info for info in infos[number]}
            columns = {}
            for column, name in names.items():
                info = by_name.get(f"{folder}{name}")
                if info is None or info.content not in ("numbers", "files") or info.shape[:1] != (shard.records,):
                    raise SourceError(
                        f"{printable(shard.file)} was changed after its export: it has no array {printable(name)} of "
                        f"{shard.records:,} values; remove {MANIFEST_FILE} to read it like any other"
                    )
                columns[column] = ColumnArray(number, info, 0, tuple(range(1, len(info.shape))))
            parts.append(SplitArrays(shard.split, shard.records, columns))
        return ArrayRoles(tuple(parts), None, ())

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads a sample's values as the exported store held them. An image that is stored as bytes becomes an array of
        its recorded shape. Raises :class:`ValueError` or :class:`OSError` for damage and missing chunks."""
        values = super().read_values(ref)
        if (shape := values.pop(_SHAPE, None)) is not None:
            dtype = NUMPY_DTYPE[self.export_manifest.manifest.image.dtype]
            values["image"] = np.frombuffer(values["image"], dtype).reshape(shape)
        return values

    def make_column(self, name: str, chosen: ColumnArray) -> tuple[Field, Callable[[Any], Any]]:
        """Makes the function that converts a value to that of the exported store. Files become bytes, numbers a copy in
        native byte order. The manifest declares the columns."""
        return Bytes(), bytes if chosen.info.content == "files" else partial(to_native, chosen.info.dtype, False)


def make_array_kind(source: type[ArraySource], help: str, *, exported: bool = False) -> Kind:
    """Makes the :class:`Kind` of a source of arrays. To recognise a path, its arrays are opened if
    :meth:`ArraySource.matches`; that raises the errors of opening. ``exported``: packstore exports such arrays."""
    of_exports = type(f"Exported{source.__name__}", (ExportedArrays, source), {})
    open = open_with(source, of_exports) if exported else source

    def recognise(path: Path, options: SourceOptions) -> Certainty:
        certainty = source.recognise(path, options)
        if certainty is not Certainty.NO:
            open(path, options).close()
        return certainty

    return Kind(source.kind, help, recognise, open, takes_arrays=True)
