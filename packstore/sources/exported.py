"""Reads exports of packstore, by the ``packstore.json`` beside the data; see :mod:`packstore.core.export_manifest`.

If a kind of source reads the format (``webdataset``), that kind opens the export. Exports whose records are files of
a folder, a tar or a zip are read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packstore.core.errors import ManifestError, SourceError, printable
from packstore.core.export_manifest import (
    MANIFEST_FILE,
    ROWS_FILE,
    ExportManifest,
    RecordLines,
    names_sidecar,
    parse_export_manifest,
    read_export_manifest,
    stays_in_folder,
)
from packstore.core.manifest import MAX_JSON_BYTES
from packstore.core.registry import SOURCES
from packstore.images.sniff import max_file_bytes
from packstore.sources.archives import open_required_tree, open_tree
from packstore.sources.archives.tar import TAR_FAULTS, is_tar, read_first_names
from packstore.sources.archives.zip import is_zip
from packstore.sources.base import Certainty, Kind, Source, SourceOptions
from packstore.sources.exported_rows import ExportedRows
from packstore.sources.ledger import Claims, Role, list_files
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.refusals import NeedsCopyError, first_bytes
from packstore.sources.rows import Row
from packstore.sources.tree import FolderTree, Tree
from packstore.stores.link_files import Location

_MAX_LINES = 1 << 28
"""Maximum bytes of lines in an archive; larger archives may have as many as their own bytes."""


class ExportedFiles(ExportedRows):
    """Export in a folder or an archive. Its records are image files, which the lines of the records name. The
    constructor reads the export manifest, and raises :class:`SourceError` for a missing or damaged one. The survey
    refuses images that no line names, and another number of lines than records."""

    kind = "exported"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.tree = open_required_tree(path)
        self._max_bytes = max_file_bytes(options.max_pixels)
        if not self.export_manifest.rows:
            raise SourceError(f"{printable(str(path))} holds no {MANIFEST_FILE} of an export of files")

    def find_export_manifest(self) -> ExportManifest | None:
        """Reads the export manifest in the folder or archive; None if there is none. Raises :class:`ManifestError` for
        a damaged one."""
        return _read_tree_manifest(self.tree)

    def count_unlisted(self) -> int:
        """Counts how many more images there are than the export's lines name; 0 for fewer. Walks the whole tree."""
        there = sum(len(listing.images) for _, listing in self.tree.walk("", self.tree.above, skip_cycles=True))
        more = there - len(self._lines)
        if more > 0:  # masks beside images
            beside = (file.lower() for number in range(len(self._lines)) for file in self._list_sidecars(number))
            more -= sum(file.endswith(IMAGE_SUFFIXES) for file in beside)
        return max(0, more)

    @property
    def _lines(self) -> RecordLines:
        """Lines of the records, which an export of files always has."""
        assert self.lines is not None
        return self.lines

    def _list_sidecars(self, number: int) -> list[str]:
        """Returns the files that line ``number`` names besides its image; none for a damaged line."""
        try:
            line = self._lines[number]
        except ValueError:
            return []
        return [file for name, file in line.items() if names_sidecar(name) and isinstance(file, str)]

    def find_lines(self) -> RecordLines:
        """Opens the lines of the records: maps them in a folder, else reads them into memory. Raises
        :class:`SampleError` for lines of more than 256 MiB that are larger than their archive."""
        if isinstance(self.tree, FolderTree):
            return super().find_lines()
        status = self.tree.stat(ROWS_FILE)
        in_archive = self.path.is_file()
        most = max(_MAX_LINES, self.path.stat().st_size) if in_archive else status.size  # else it is a bomb
        return RecordLines(self.tree.read(ROWS_FILE, status.size, status.modified_ns, most))

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims the image file of a record."""
        claims.claim(row.ref[1][0])

    def claim_files(self, claims: Claims) -> None:
        """Claims the export manifest, the lines of the records and the files beside images as annotations.

        Claims the files in :attr:`ExportManifest.files` as evidence.
        """
        claims.claim_all("", (MANIFEST_FILE, ROWS_FILE), Role.ANNOTATION)
        for name in self.export_manifest.files:
            claims.claim(name, Role.EVIDENCE)
        for number in range(len(self._lines)) if self._lines.may_name_sidecars else ():
            for name in self._list_sidecars(number):
                claims.claim(name, Role.ANNOTATION)

    def list_all_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists the files of the folder or archive."""
        return list_files(self.tree)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields a row for the file of each record. Reading the row of a missing file fails. Raises
        :class:`SourceError` for a damaged line, and for a line that names no file within the export."""
        for number in self.ranges[split]:
            try:
                file = self._lines[number].get("file")
            except ValueError as error:
                raise SourceError(f"{printable(str(self.path))}: {error}") from error
            if not isinstance(file, str) or not stays_in_folder(file):
                raise SourceError(f"{self.tree.name(ROWS_FILE)}: line {number + 1} names no file of the export")
            try:
                status = self.tree.stat(file)
            except OSError as error:
                yield Row(file, (file, -1, 0, error.strerror or str(error)), 0)
                continue
            ref = (file, status.size, status.modified_ns, "is not a file")
            yield Row(file, ref, max(0, status.size), 0, status.modified_ns, status.changed_ns)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the image file of a row. Raises :class:`ValueError` if it is missing or no regular file, and
        :class:`SampleError` if it cannot be read."""
        file, size, modified, problem = ref
        if size < 0:
            raise ValueError(problem)
        return {"image": self.tree.read(file, size, modified, self._max_bytes)}

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the image file of a record; None if it is compressed or at a URL."""
        return self.tree.locate(ref[0])

    def close(self) -> None:
        """Closes the tree, too."""
        super().close()
        self.tree.close()


def _read_tree_manifest(tree: Tree) -> ExportManifest | None:
    """Reads the export manifest of a tree, or returns None if there is none. Raises :class:`ManifestError` for a
    damaged one."""
    try:
        status = tree.stat(MANIFEST_FILE)
    except OSError:
        return None
    return (
        parse_export_manifest(tree.read(MANIFEST_FILE, status.size, status.modified_ns, 2 * MAX_JSON_BYTES))
        if status.size >= 0
        else None
    )


def _find_export_manifest(path: Path) -> ExportManifest | None:
    """Reads the export manifest at ``path``: in a folder, in a zip, or as the first file of a tar.

    Returns None if there is none, or the archive is damaged. Raises :class:`ManifestError` for a damaged manifest.
    """
    if path.is_dir():
        return read_export_manifest(path)
    start = first_bytes(path, 512)
    try:
        if is_zip(start) or (is_tar(start) and read_first_names(path, 1) == [MANIFEST_FILE]):
            tree = open_tree(path)
            return None if tree is None else _read_tree_manifest(tree)
    except (*TAR_FAULTS, SourceError):
        return None  # another kind reports what is wrong
    return None


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Certain for a path with an export manifest of a known kind of source, else ``NO``. Raises :class:`SourceError`
    for a damaged manifest."""
    try:
        export_manifest = _find_export_manifest(path)
    except ManifestError as error:
        raise SourceError(
            f"{printable(str(path))}: {error}; remove {MANIFEST_FILE} to read the data without it"
        ) from error
    return Certainty.NO if export_manifest is None or export_manifest.source not in SOURCES else Certainty.CERTAIN


def _open(path: Path, options: SourceOptions) -> Source:
    """Opens an export by the kind of source that reads its format, else as files. Sets the evidence. Raises
    :class:`SourceError` for a missing or damaged manifest, and :class:`NeedsCopyError` at a URL if the kind reads only
    local files."""
    try:
        export_manifest = _find_export_manifest(path)
    except ManifestError as error:
        raise SourceError(f"{printable(str(path))}: {error}") from error
    if export_manifest is None or export_manifest.source == "exported" or export_manifest.source not in SOURCES:
        opened: Source = ExportedFiles(path, options)
    else:
        kind: Kind = SOURCES[export_manifest.source]
        if not kind.reads(path):
            raise NeedsCopyError(f"{printable(str(path))} is an export as {kind.name}")
        opened = kind.open(path, options)
    opened.evidence = MANIFEST_FILE
    return opened


KIND = Kind("exported", "an export of packstore, with its packstore.json", _recognise, _open, in_objects=True)
