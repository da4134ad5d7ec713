"""``tfds:NAME:DATA_DIR``: a dataset that TensorFlow Datasets has prepared, of the version that it chooses.

Its records are read by :mod:`packstore.sources.records.tfds`, without TensorFlow.
"""

from __future__ import annotations

from pathlib import Path

from packstore.core.errors import UsageError, printable
from packstore.sources.base import SourceOptions
from packstore.sources.records.tfds import TfdsSource


def read_dataset(rest: str, options: SourceOptions) -> TfdsSource:
    """Finds the folder of the dataset ``name/config:version`` and opens it. Raises :class:`UsageError` for another form
    of the name, and for a missing folder. Raises the errors of the library."""
    name, _, folder = rest.rpartition(":")
    if not name or not folder:
        raise UsageError(f"tfds:{printable(rest)}: write tfds:NAME:DATA_DIR")
    if not Path(folder).is_dir():
        raise UsageError(f"{printable(folder)}: no such directory")
    from tensorflow_datasets.core import read_only_builder

    builder = read_only_builder.builder_from_files(name, data_dir=folder)
    return TfdsSource(Path(builder.data_path), options)
