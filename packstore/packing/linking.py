"""Links records to the files of their source, for stores that hold no images."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from packstore.core.column import Link
from packstore.core.columns import Buffer
from packstore.core.errors import SampleError, SourceError, UsageError, printable
from packstore.core.files import FileState, Location
from packstore.sources.base import Entry, Source
from packstore.stores.link_files import LinkedFiles, is_url_link, read_file_state
from packstore.stores.linked import make_relative_link

_KNOWN_PATHS = 1 << 10


class Linker:
    """Computes links to records, and checks that their files did not change while they were read.

    Refuses samples that are no plain range of a file's bytes.
    """

    def __init__(self, source: Source, folder: Path | None) -> None:
        """``folder`` is the base of relative links; None for absolute links."""
        self._source = source
        self._files = LinkedFiles()

        @lru_cache(_KNOWN_PATHS)  # an archive's path is asked for often
        def stored_path(path: str) -> str:
            return path if folder is None else make_relative_link(path, folder)

        self._stored_path = stored_path

    def locate(self, entry: Entry, states: dict[str, FileState]) -> Location:
        """Locates a sample before it is read, and notes the state of its file in ``states``.

        Raises :class:`UsageError` if the sample is no range of a file's bytes. Raises :class:`SampleError` if the file
        is gone.
        """
        place = self._source.locate(entry)
        if place is None:
            raise self._make_unlinkable_error(entry.key)
        if place.path not in states:
            try:
                states[place.path] = read_file_state(place.path) if place.state is None else place.state
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                raise SampleError(entry.key, f"cannot be linked: {reason}") from None
        return place

    def make_link(self, key: str, place: Location, record: Buffer, states: Mapping[str, FileState]) -> Link:
        """Returns the link to a record that has been read, in the form in which stores keep it.

        :meth:`locate` may know only a longer range of the file; then searches that range for the record. Raises
        :class:`UsageError` if the record is not there, and :class:`SampleError` if the file cannot be read.
        """
        path, offset, _, within = place
        if within is not None:
            try:
                file = self._files.open(path).data.obj
            except (OSError, ValueError) as error:
                raise SampleError(key, f"cannot be linked: {error}") from None
            offset = file.find(record, offset, offset + within) if isinstance(file, mmap.mmap) else -1
            if offset < 0:
                raise self._make_unlinkable_error(key)
        nbytes, modified = states[path]
        return Link(self._stored_path(path), offset, len(record), nbytes, modified)

    def _make_unlinkable_error(self, key: str) -> UsageError:
        """Makes the error for a sample that is no plain range of a file's bytes."""
        return UsageError(
            f"{printable(key)} cannot be linked: in this source ({self._source.kind}) it is no plain range of bytes of "
            "a file, as in compressed archives and shards; pack without --link"
        )

    def check_files(self, states: Mapping[str, FileState]) -> None:
        """Raises :class:`SourceError` if a file changed or vanished since its state was noted.

        Skips files at URLs: the source itself checks them when it has been read.
        """
        for path, state in states.items():
            if is_url_link(path):
                continue
            try:
                same = read_file_state(path) == state
            except OSError:
                same = False
            if not same:
                raise SourceError(f"{printable(path)} changed while it was read; link it when nothing writes to it")
