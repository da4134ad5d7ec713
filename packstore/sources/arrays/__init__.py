"""Sources of named arrays: images, labels and further columns in HDF5, npz, MATLAB, Zarr and N5, and published sets."""

from __future__ import annotations

from pathlib import Path

from packstore.core.export_manifest import MANIFEST_FILE
from packstore.sources.arrays.source import ArraySource
from packstore.sources.base import Certainty, Kind, Source, SourceOptions


def make_array_kind(source: type[ArraySource], help: str, *, exported: bool = False) -> Kind:
    """Makes the :class:`Kind` of a source of arrays. To recognise a path, its arrays are opened if
    :meth:`ArraySource.matches`; that raises the errors of opening. ``exported``: packstore exports such arrays."""

    def open(path: Path, options: SourceOptions) -> Source:
        if exported and (path / MANIFEST_FILE).is_file():
            from packstore.sources.arrays.exported import open_exported

            return open_exported(source, path, options)
        return source(path, options)

    def recognise(path: Path, options: SourceOptions) -> Certainty:
        certainty = source.recognise(path, options)
        if certainty is not Certainty.NO:
            open(path, options).close()
        return certainty

    return Kind(source.kind, help, recognise, open, takes_arrays=True)
