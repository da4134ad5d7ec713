"""Where an export is written, what is known of its finished shards, and its move to the destination."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from packstore.core.errors import DestinationError, ManifestError, printable
from packstore.core.export_manifest import (
    MANIFEST_FILE,
    ROWS_FILE,
    ExportManifest,
    RecordLines,
    is_beside,
    read_export_manifest,
)
from packstore.core.files import device_and_inode, sync_directory, sync_file, writing
from packstore.core.plainjson import canonical
from packstore.core.registry import EXPORTS
from packstore.exports.base import Export
from packstore.stores.builder.publish import Staging
from packstore.stores.builder.work_directory import EXPORT, PARTS, STORE, remove_run, runs_of, work_path
from packstore.stores.ownership import NotAStoreError

_log = logging.getLogger(__name__)

_MAX_PART = 1 << 20


class Part(NamedTuple):
    """A finished shard.

    Attributes:
        split: Its split.
        records: How many it holds.
        file: Its path in the export; None where each record is a file of its own.
        size: Bytes of that file; of an export of one file, up to here.
        digest: Digest of the records as they were written, see :func:`packstore.core.checksums.records_digest`.
        lines: Bytes of their lines.
    """

    split: str
    records: int
    file: str | None
    size: int
    digest: str
    lines: int


class ExportStaging(Staging):
    """The place of an export that is being written; goes on in the directory of an equal run that was interrupted.

    ``run-00001/`` holds ``store``, the export; ``export``, which export that is; and in ``parts/`` a file for each
    finished shard, with its lines beside it.
    """

    def __init__(self, destination: Path, kind: type[Export], identity: str, *, overwrite: bool, restart: bool) -> None:
        """Raises :class:`DestinationError` where the destination may not be written."""
        self._identity, self._restart, self._one_file = identity, restart, kind.one_file
        super().__init__(destination, overwrite=overwrite, owned=owned_files)
        with writing(destination):
            (self.run / PARTS).mkdir(exist_ok=True)

    def choose_run(self) -> Path:
        """That of an equal run, else a new one; all others are removed."""
        found: Path | None = None
        for run in self.work.runs():
            # Else it was published: what lies there then is the export that it has replaced.
            if found is None and not self._restart and _told(run) == _as_told(self._identity, run / STORE):
                found = run
                continue
            other = not (_told(run) or "").startswith(f"{self._identity} ")
            if other and not self._restart and any((run / PARTS).glob("*.json")):
                _log.warning("starting afresh: an interrupted run had other options, or exported another store")
            remove_run(run)
        if found is None:
            found = self.work.new_run()
            if self._one_file:
                (found / STORE).touch()
            else:
                (found / STORE).mkdir()
            (found / EXPORT).write_text(_as_told(self._identity, found / STORE), "ascii")
        return found

    def parts(self, export: Export) -> list[Part]:
        """The shards of ``export`` that are done, in order: as many as are there with all that belongs to them."""
        export.undo_finish()
        done: list[Part] = []
        while (part := self._read_part(len(done))) is not None:
            done.append(part)
        return done

    def leave(self, export: Export) -> bool:
        """After an error: keeps the shards that are done, so that another run can go on from there. Removes everything
        where there are none. Returns whether it was kept."""
        if self._published or not self.parts(export):
            self.discard()
            return False
        self.keep()
        return True

    def lines(self, number: int) -> Path:
        """Where the lines of a shard are."""
        return self.run / PARTS / f"{number:06}.rows"

    def done(self, number: int, part: Part) -> None:
        """Notes that a shard is complete and durable."""
        path = self.run / PARTS / f"{number:06}.json"
        new = path.with_suffix(".new")
        new.write_text(canonical(part._asdict()), "ascii")
        for file in (new, self.lines(number)):
            sync_file(file)
        new.rename(path)
        sync_directory(path.parent)

    def join_lines(self, count: int) -> Path:
        """The lines of all shards in one file. Those of each stay until the export is published."""
        whole = self.run / PARTS / ROWS_FILE
        with whole.open("wb") as out:
            for number in range(count):
                with self.lines(number).open("rb") as lines:
                    shutil.copyfileobj(lines, out)
        return whole

    def _read_part(self, number: int) -> Part | None:
        try:
            part = Part(**json.loads((self.run / PARTS / f"{number:06}.json").read_text("ascii")))
            size = (self.path / (part.file or "")).stat().st_size
            whole = size >= part.size if self._one_file else part.file is None or size == part.size
            return part if whole and self.lines(number).stat().st_size == part.lines else None
        except (OSError, ValueError, TypeError):
            return None


def was_published(destination: Path, identity: str) -> bool:
    """Whether an equal run was killed after it had published its export, and is to be ended."""
    work = work_path(destination)
    if not work.is_dir() or not os.path.lexists(destination):
        return False
    return any(_told(run) == _as_told(identity, destination) for run in runs_of(work))


def check_destination(destination: Path, *, overwrite: bool) -> None:
    """Raises :class:`DestinationError` where an export may not be written."""
    shown = printable(str(destination))
    if not destination.absolute().parent.is_dir():
        parent = printable(str(destination.absolute().parent))
        raise DestinationError(f"{shown}: the directory {parent} does not exist; make it first")
    if not os.path.lexists(destination):
        return
    owned_files(destination)
    if not overwrite:
        raise DestinationError(f"{shown}: exists already; choose another name, or --overwrite to replace it")


def owned_files(path: Path) -> list[Path]:
    """All files of the export at ``path``, once it is certain that nothing else lies there.

    Raises:
        NotAStoreError: It is not an export of packstore.
        DestinationError: Its folder holds something that is not the export's.
    """
    shown = printable(str(path))
    try:
        export_manifest = None
        if path.is_dir():
            export_manifest = read_export_manifest(path)
        elif path.is_file():  # opening a pipe would wait for a writer
            export_manifest = _read_from_file(path)
    except (ManifestError, OSError, ValueError) as error:
        raise NotAStoreError(f"{shown} is not an export of packstore, so it is not replaced: {error}") from None
    if export_manifest is None:
        raise NotAStoreError(
            f"{shown} exists and is not an export of packstore, which never replaces anything else; remove it yourself "
            "or choose another name"
        )
    return [path] if not path.is_dir() else _files_of(path, export_manifest, shown)


def _read_from_file(path: Path) -> ExportManifest | None:
    """The export manifest of an export of one file, of whatever kind."""
    kinds: list[type[Export]] = [kind for kind in EXPORTS.values() if kind.one_file]
    return next(
        (export_manifest for kind in kinds if (export_manifest := kind.read_export_manifest(path)) is not None), None
    )


def _files_of(path: Path, export_manifest: ExportManifest, shown: str) -> list[Path]:
    """The files of an export in a folder. Raises :class:`DestinationError` for any other."""
    own = {MANIFEST_FILE, *export_manifest.files, *(shard.file for shard in export_manifest.shards)}
    if export_manifest.rows:
        own.add(ROWS_FILE)
    files = set(map(os.fsencode, own)) | _named_in_lines(path, export_manifest)
    found: list[Path] = []
    root = os.fsencode(path)
    for folder, _, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        for name in names:
            file = name if inside == b"." else b"/".join((*inside.split(os.sep.encode()), name))
            if file not in files:
                raise DestinationError(
                    f"{shown} also holds {printable(os.fsdecode(file))!r}, which is not the export's, so it is not "
                    "replaced; move that away first"
                )
            found.append(Path(os.fsdecode(os.path.join(folder, name))))  # noqa: PTH118 - names may be of any bytes
    return found


def _named_in_lines(path: Path, export_manifest: ExportManifest) -> set[bytes]:
    if not export_manifest.rows or export_manifest.shards:
        return set()
    try:
        lines = RecordLines.of_file(path / ROWS_FILE)
        each = (lines[i].items() for i in range(len(lines)))
        named = (file for line in each for name, file in line if name == "file" or is_beside(name))
        return {os.fsencode(file) for file in named if isinstance(file, str)}
    except (OSError, ValueError):
        return set()


def _as_told(identity: str, path: Path) -> str:
    """What the directory of a run says of the export at ``path``: which it is, and its inode, which tells it from one
    that it replaces."""
    inode = device_and_inode(path)[1] if os.path.lexists(path) else None
    return f"{identity} {inode}"


def _told(run: Path) -> str | None:
    try:
        with (run / EXPORT).open("rb") as file:
            return file.read(_MAX_PART).decode("ascii")
    except (OSError, ValueError):
        return None
