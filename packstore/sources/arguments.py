"""Arguments with which the public functions open a source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.images.sniff import MAX_PIXELS
from packstore.sources import open_source
from packstore.sources.base import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceArguments:
    """Base of the options of functions that read a source; :func:`packstore.convert` describes these."""

    source_kind: str | None = None
    labels: str | os.PathLike[str] | None = None
    image_key: str | None = None
    label_key: str | None = None
    layout: str | None = None
    ignore: str | Sequence[str] = ()
    columns: str | Sequence[str] = ()
    max_pixels: int = MAX_PIXELS

    def open_source(
        self,
        path: Path,
        *,
        columns: Sequence[str] | None = None,
        frames: str | None = None,
        packed_as: Manifest | None = None,
        skip_bad: bool = False,
        progress: ProgressCallback = no_progress,
    ) -> Source:
        """Opens the source at ``path`` with these options, see :func:`packstore.sources.open_source`. ``columns``
        replaces the option of this name, unless it is None."""
        return open_source(
            path,
            kind=self.source_kind,
            labels=self.labels,
            max_pixels=self.max_pixels,
            packed_as=packed_as,
            skip_bad=skip_bad,
            image_key=self.image_key,
            label_key=self.label_key,
            layout=self.layout,
            ignore=self.ignore,
            columns=self.columns if columns is None else columns,
            frames=frames,
            progress=progress,
        )

    def open_packed(self, path: Path, manifest: Manifest, progress: ProgressCallback) -> Source:
        """Opens the source at ``path`` again, from which the store of ``manifest`` was packed. Skips bad samples if any
        was skipped in packing."""
        return self.open_source(path, packed_as=manifest, skip_bad=bool(manifest.skipped), progress=progress)
