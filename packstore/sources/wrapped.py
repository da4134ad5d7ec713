"""Base of sources that change the samples of another source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from packstore.core.errors import SampleError, UsageError, printable
from packstore.core.fields import Json, column_of
from packstore.core.progress import ProgressCallback, no_progress
from packstore.images.geotiff import read_geotiff
from packstore.sources.base import Entry, Sample, Source, SourceOptions, Survey
from packstore.sources.encodings import GEO

_GEO_BYTES = 1024


class _OfWrapped:
    """Attribute or method of the wrapped source."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Any, owner: type) -> Any:
        return self if wrapper is None else getattr(wrapper._source, self._name)


class WrappedSource(Source):
    """Base of sources that wrap another source. The names here are those of the wrapped source; a subclass changes
    some. Methods that are not named here are those of :class:`Source`, not of the wrapped source."""

    survey: Any = _OfWrapped()
    entries: Any = _OfWrapped()
    fetch: Any = _OfWrapped()
    read: Any = _OfWrapped()
    locate: Any = _OfWrapped()
    pick_entries: Any = _OfWrapped()
    workers: Any = _OfWrapped()
    stamp: Any = _OfWrapped()
    close: Any = _OfWrapped()
    follow_store: Any = _OfWrapped()
    store_manifest: Any = _OfWrapped()
    annotation_frame: Any = _OfWrapped()
    further_file_name: Any = _OfWrapped()
    list_all_files: Any = _OfWrapped()
    expects_left: Any = _OfWrapped()
    count_left_parts: Any = _OfWrapped()
    asks_about_left: ClassVar[Any] = _OfWrapped()
    left_images: ClassVar[Any] = _OfWrapped()

    def __init__(self, source: Source, options: SourceOptions) -> None:
        super().__init__(source.path, options)
        self._source = source
        self.kind, self.normalization, self.evidence = source.kind, source.normalization, source.evidence

    @property
    def tree(self) -> Any:
        """Tree of the wrapped source; None if it has none."""
        return getattr(self._source, "tree", None)


class GeoSource(WrappedSource):
    """Wraps a source, and adds the column ``geo``. Its value is JSON of a TIFF's transform and reference system, and
    missing for other images. The survey refuses a source of arrays, a store, and a source with such a column."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, replace(source.options, columns=(*source.options.columns, GEO)))

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Adds the column ``geo``. Raises :class:`UsageError` for a source of arrays, a store, or a source with such a
        column."""
        survey: Survey = super().survey(split, progress)
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
