"""Base of sources of medical files. It reads all headers before anything is packed: one mode must hold all pixels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from packstore.core.fields import Image
from packstore.core.modes import RGB, Mode
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.sources.base import SourceOptions, Survey
from packstore.sources.beside import join
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import TreeRowSource
from packstore.sources.tree import FileStat
from packstore.stores.link_files import Location

_REPORT_EVERY = 200


class HeaderScanSource(TreeRowSource):
    """Source whose rows are known after a scan of all headers. Ignores hidden files.

    Linked stores cannot be made of it: its pixels are converted.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._progress: ProgressCallback = no_progress

    @abstractmethod
    def scan_headers(self) -> int:
        """Reads all headers on the first call. Returns the number of files.

        Raises :class:`SourceError` if there are none.
        """

    def describing_files(self) -> Iterable[str]:
        """Returns no files: headers are in the image files themselves."""
        return ()

    def locate_row(self, ref: Any) -> Location | None:
        """Returns None: pixels are converted from the file's values."""
        return None

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Scans all headers, then counts the rows. Both report progress.

        The count reports nothing below the number of scanned files, since progress never goes back.
        """
        self._progress = progress
        self._choose_splits(split)
        files = self.scan_headers()
        # Progress never goes back behind the scan.
        return super().survey(split, lambda report: progress(report) if report.done >= files else None)

    def report_scanned(self, files: int) -> None:
        """Reports progress if ``files``, the number of scanned files, is a multiple of 200."""
        if files % _REPORT_EVERY == 0:
            self._progress(Progress("scan", files, None, 0))

    def find_files(self, is_wanted: Callable[[str], bool]) -> list[str]:
        """Returns the sorted paths of files in the tree that ``is_wanted`` accepts, without hidden ones."""
        return sorted(
            join(folder, name)
            for folder, names in self.tree.folders(is_passed_over)
            for name in names.files
            if not is_passed_over(name) and is_wanted(join(folder, name))
        )

    def stat_file(self, path: str) -> tuple[FileStat, str]:
        """Returns size and times of a file, and an empty text. For a file that cannot be read, returns size -1 and
        an error text."""
        stat = self._stat_or_missing(path)
        return stat, "is no file that can be read" if stat.size < 0 else ""


def declare_image_field(mode: Mode) -> Image:
    """Returns the field of the image for pixels of a mode. Leaves out the mode's name for RGB, which is the default."""
    return Image(mode.dtype, mode=None if mode == RGB else mode.name)
