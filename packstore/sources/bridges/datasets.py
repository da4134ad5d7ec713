"""Datasets that a library converts to its own files, which packstore reads.

``datasets:PATH`` is a dataset that the library ``datasets`` of Hugging Face loads. PATH is a folder that
``load_dataset`` takes (Parquet, CSV, JSON, images …), a folder that ``save_to_disk`` wrote, or a folder of the
library's cache; ``PATH:CONFIG`` is one of several configurations. The library converts it to Arrow files in its cache.

``tfds:NAME:DATA_DIR`` is a dataset that TensorFlow Datasets has prepared, of the version that it chooses. Its records
are read by :mod:`packstore.sources.records.tfds`, without TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packstore.core.errors import SourceError, UsageError, printable
from packstore.sources.base import SourceOptions
from packstore.sources.bridges import require_path
from packstore.sources.huggingface.files import ArrowSource
from packstore.sources.huggingface.tables import HfTableSource
from packstore.sources.records.tfds import TfdsSource

_INFO = "dataset_info.json"


def read_datasets(rest: str, options: SourceOptions) -> DatasetsSource:
    """Loads the dataset of a folder, or of ``FOLDER:CONFIG``, with all its splits and without connections.

    Raises :class:`UsageError` for a missing path, and for a file. Also raises it for a version of the library below 4,
    which runs scripts. Raises the errors of the library.
    """
    folder, _, config = rest.rpartition(":")
    configured = bool(folder and config) and Path(folder).is_dir() and not Path(rest).exists()
    path = require_path(folder if configured else rest)
    if not path.is_dir():
        raise UsageError(f"{printable(str(path))} is a file; datasets reads folders: give packstore the file itself")
    import datasets

    if int(datasets.__version__.partition(".")[0]) < 4:
        raise UsageError(f"datasets {datasets.__version__} runs scripts that it finds: pip install 'datasets>=4'")
    shown, offline = not datasets.are_progress_bars_disabled(), datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    datasets.disable_progress_bars()
    try:
        data = _load_dataset(path, config if configured else None)
    finally:
        datasets.config.HF_HUB_OFFLINE = offline
        if shown:
            datasets.enable_progress_bars()
    return DatasetsSource(path, options, data if isinstance(data, dict) else {"": data}, rest)


def _load_dataset(path: Path, config: str | None) -> Any:
    """Loads a dataset with ``datasets``: what ``save_to_disk`` wrote, else a dataset of its cache, else files.

    ``config``: Name of one of several configurations, for files alone. Raises :class:`UsageError` if the cache has
    several datasets, and :class:`SourceError` for a cached split without Arrow files. Raises the errors of the library.
    """
    import datasets

    if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return datasets.load_from_disk(str(path))
    if (cached := sorted(path.rglob(_INFO))) and any(cached[0].parent.glob("*.arrow")):
        return _load_cached(cached)
    return datasets.load_dataset(str(path), config)


def _load_cached(places: list[Path]) -> dict[str, Any]:
    """Loads the splits of a dataset from the cache of ``datasets``. Raises :class:`UsageError` for several datasets,
    and :class:`SourceError` for a split without Arrow files.

    ``places``: Paths of ``dataset_info.json`` files, one for each dataset.
    """
    import datasets

    if len(places) > 1:
        folders = ", ".join(printable(str(each.parent)) for each in places[:3])
        raise UsageError(f"there are {len(places)} datasets: give the folder of one ({folders} …)")
    folder = places[0].parent
    splits: dict[str, Any] = {}
    for split in datasets.DatasetInfo.from_directory(str(folder)).splits or {}:
        files = sorted([*folder.glob(f"*-{split}.arrow"), *folder.glob(f"*-{split}-[0-9]*-of-[0-9]*.arrow")])
        if not files:
            raise SourceError(f"{printable(str(folder))} has no Arrow files of its split {printable(str(split))!r}")
        splits[str(split)] = datasets.concatenate_datasets([datasets.Dataset.from_file(str(each)) for each in files])
    return splits


class DatasetsSource(ArrowSource):
    """Source of the Arrow files in which ``datasets`` stores a dataset.

    Reads the files in place. If rows were selected or shuffled, or are in memory, copies them to a temporary folder.
    Making a source creates that folder, and :meth:`close` removes it. The ledger has no files, since the library does
    not tell which it has read.
    """

    def __init__(self, path: Path, options: SourceOptions, splits: Mapping[str, Any], name: str) -> None:
        self._copies = TemporaryDirectory(prefix="packstore-datasets-")
        self._splits = splits
        self._folder = path.resolve()
        super().__init__(path, options)
        self.path = Path(f"datasets:{name}")

    def find_tables(self) -> Iterator[tuple[str, Path]]:
        """Yields split and path of each Arrow file. If rows were selected or shuffled, or are in memory, writes them to
        a temporary file first."""
        for number, (split, data) in enumerate(self._splits.items()):
            if data._indices is not None or not data.cache_files:  # chosen or shuffled rows; rows in memory
                file = Path(self._copies.name, f"{number}.arrow")
                data = data.flatten_indices(cache_file_name=str(file))
            yield from ((split, Path(file["filename"])) for file in data.cache_files)

    def list_all_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists no files: the library does not tell which files it has read."""
        return iter(())  # the library does not tell which files it has read

    def files(self) -> Iterator[Path]:
        """Yields the Arrow files alone."""
        return HfTableSource.files(self)

    def _resolve_path(self, number: int, path: str | None) -> Path | None:
        """Returns the path of an image file; None for None. A path within the given folder is returned unchanged. Any
        other path is resolved in the folder of the table. Raises :class:`ValueError` for a path that leads out of that
        folder."""
        if path is None or not Path(path).resolve().is_relative_to(self._folder):
            return super()._resolve_path(number, path)
        return Path(path)

    def _read_row(self, block: Any, row: int) -> dict[str, Any]:
        """Reads a row. Paths, which the library makes absolute, become relative to the given folder again."""
        values = super()._read_row(block, row)
        for name in filter(None, (column.path for column in self._columns)):
            paths = values[name]
            values[name] = [*map(self._shorten_path, paths)] if isinstance(paths, list) else self._shorten_path(paths)
        return values

    def _shorten_path(self, path: str | None) -> str | None:
        """Returns the path of a file relative to the given folder. Returns None and a path elsewhere unchanged."""
        if path is None or not Path(path).is_relative_to(self._folder):
            return path
        return Path(path).relative_to(self._folder).as_posix()

    def close(self) -> None:
        """Closes the source, and removes the temporary copies."""
        super().close()
        self._splits = {}
        self._copies.cleanup()


def read_tfds(rest: str, options: SourceOptions) -> TfdsSource:
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
