"""Base of sources that change the samples of another source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packstore.core.columns import ImageData
from packstore.core.errors import SampleError, UsageError, printable
from packstore.core.fields import Json, column_of
from packstore.core.files import Location
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.images.geotiff import read_geotiff
from packstore.sources.base import Entry, Sample, Source, SourceOptions, Survey
from packstore.sources.encodings import GEO

_GEO_BYTES = 1024


class WrappedSource(Source):
    """Base of sources that wrap another source. Methods here do what those of the wrapped source do; a subclass changes
    some. Methods that are not defined here are those of :class:`Source`, not of the wrapped source."""

    def __init__(self, source: Source, options: SourceOptions) -> None:
        super().__init__(source.path, options)
        self._source = source
        self.kind, self.normalization, self.evidence = source.kind, source.normalization, source.evidence

    @property
    def store_manifest(self) -> Manifest | None:
        """Manifest of the store that the wrapped source is, or was exported from; else None."""
        return self._source.store_manifest

    @property
    def asks_about_left(self) -> bool:  # type: ignore[override]
        """True if files that the wrapped source leaves out raise a question."""
        return self._source.asks_about_left

    @property
    def left_images(self) -> str:  # type: ignore[override]
        """Reason why the wrapped source leaves out images."""
        return self._source.left_images

    @property
    def tree(self) -> Any:
        """Tree of the wrapped source; None if it has none."""
        return getattr(self._source, "tree", None)

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        return self._source.survey(split, progress)

    def follow_store(self, manifest: Manifest) -> None:
        self._source.follow_store(manifest)

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        return self._source.entries(split)

    def read(self, entry: Entry) -> ImageData | Sample:
        return self._source.read(entry)

    def annotation_frame(self, kind: str) -> str | None:
        return self._source.annotation_frame(kind)

    def further_file_name(self, entry: Entry, column: str, number: int) -> str | None:
        return self._source.further_file_name(entry, column, number)

    def locate(self, entry: Entry) -> Location | None:
        return self._source.locate(entry)

    def fetch(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        return self._source.fetch(entries)

    def workers(self) -> int:
        return self._source.workers()

    def pick_entries(self, split: str | None, records: int, count: int) -> Iterator[Entry]:
        return self._source.pick_entries(split, records, count)

    def stamp(self) -> str:
        return self._source.stamp()

    def list_all_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        return self._source.list_all_files()

    def expects_left(self, path: str) -> bool:
        return self._source.expects_left(path)

    def count_left_parts(self) -> Mapping[str, int]:
        return self._source.count_left_parts()

    def close(self) -> None:
        self._source.close()


class GeoSource(WrappedSource):
    """Wraps a source, and adds the column ``geo``. Its value is JSON of a TIFF's transform and reference system, and
    missing for other images. The survey refuses a source of arrays, a store, and a source with such a column."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, replace(source.options, columns=(*source.options.columns, GEO)))

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Adds the column ``geo``. Raises :class:`UsageError` for a source of arrays, a store, or a source with such a
        column."""
        survey = super().survey(split, progress)
        if survey.encoding != "original" or survey.store is not None or any(c.name == "geo" for c in survey.columns):
            raise UsageError(
                f"{printable(str(self.path))} ({self.kind}): --column {GEO} is for files of GeoTIFF in a source "
                "without a column geo; leave it out"
            )
        column = column_of("geo", Json(optional=True))
        columns = (*survey.columns, column, *column.companions)
        names = frozenset(each.name for each in columns[len(survey.columns) :])
        value_bytes = survey.value_bytes + _GEO_BYTES * survey.records
        return replace(survey, columns=columns, sampled=survey.sampled | names, value_bytes=value_bytes)

    def read(self, entry: Entry) -> Sample:
        """Reads a sample, and its GeoTIFF tags. Raises :class:`SampleError` for damaged tags."""
        data = super().read(entry)
        sample = data if isinstance(data, Sample) else Sample(data, {})
        try:
            geo = read_geotiff(bytes(sample.image))
        except ValueError as error:
            raise SampleError(entry.key, str(error)) from None
        return sample._replace(values={**sample.values, "geo": geo})
