"""Work directory of an export: staged files, receipts of complete shards, and the move to the destination."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import NamedTuple

from packstore.core.errors import ManifestError
from packstore.core.files import device_and_inode, sync_directory, sync_file, writing
from packstore.core.plainjson import encode_with_digest, parse_with_digest
from packstore.exports.base import Export
from packstore.stores.export_manifest import ROWS_FILE
from packstore.stores.places import place_of
from packstore.stores.places.local import Staging
from packstore.stores.places.owned import find_owned_files
from packstore.stores.places.receipts import Receipt, read_receipt
from packstore.stores.places.work import EXPORT, PARTS, is_published, list_runs, remove_run

_log = logging.getLogger(__name__)


class ShardReceipt(NamedTuple):
    """Receipt of a complete shard, which lets the next run resume after this shard.

    Attributes:
        split: Name of its split.
        records: Number of its records.
        file: Its path in the export. None if each record is a file of its own, or the export is one file.
        size: Bytes of the shard's file. For an export of one file: bytes of the export up to the end of the shard. Else
            0.
        records_digest: Digest of re-encoded records, see :func:`packstore.core.proof.records_digest`. Unchanged
            records do not count.
        lines: Bytes of the records' lines.
    """

    split: str
    records: int
    file: str | None
    size: int
    records_digest: str
    lines: int


class ExportStaging(Staging):
    """Work directory of an export. Reuses the directory of an interrupted run of the same request. Removes the
    directories of other runs.

    Each run has a directory such as ``run-00001/``, with

    - ``export``: the staged export;
    - ``receipt``: its request, and the inode of the staged export;
    - ``parts/``: facts on each complete shard, and its record lines.
    """

    name = EXPORT

    def __init__(self, destination: Path, kind: type[Export], request: str, *, overwrite: bool, restart: bool) -> None:
        """Finds or creates the run's directory and removes other runs. Raises :class:`DestinationError` if the
        destination cannot be written."""
        self._request, self._restart, self._one_file = request, restart, kind.one_file
        super().__init__(destination, overwrite=overwrite, owned=find_owned_files)
        with writing(destination):
            (self.run / PARTS).mkdir(exist_ok=True)

    def choose_run_directory(self) -> Path:
        """Returns the directory of an interrupted run of the same request. If there is none, or with ``restart``,
        creates a new one with an empty export.

        Removes the directories of all other runs. Warns if one of them has complete shards, and other options or
        another store.
        """
        directory: Path | None = None
        for run in list_runs(self.work.path):
            # An inode of another file means that the run was published, and this is the export that it has replaced.
            receipt = read_receipt(run)
            if receipt is not None and receipt.fingerprint != self._request:
                receipt = None
            if receipt and directory is None and not self._restart and is_published(receipt, run / EXPORT):
                directory = run
                continue
            if receipt is None and not self._restart and any((run / PARTS).glob("*.json")):
                _log.warning("starting again: the interrupted run had other options or exported another store")
            remove_run(run)
        if directory is None:
            directory = self.work.create_run()
            if self._one_file:
                (directory / EXPORT).touch()
            else:
                (directory / EXPORT).mkdir()
            # The inode tells a published export from one that it replaced.
            Receipt(self._request, inode=device_and_inode(directory / EXPORT)[1]).write(directory)
        return directory

    def find_complete_shards(self, export: Export) -> list[ShardReceipt]:
        """Returns the receipts of complete shards in order. Stops at the first that is missing or damaged.

        Calls :meth:`Export.undo_finish`, which may rename shards.
        """
        export.undo_finish()
        done: list[ShardReceipt] = []
        while (part := self._read_receipt(len(done))) is not None:
            done.append(part)
        return done

    def keep_complete(self, export: Export) -> str:
        """Keeps complete shards after an error, for the next run. Returns a note for the user; empty if none is kept.

        Removes the run's directory if no shard is complete, or if the export is published already. Unlocks the work
        directory.
        """
        if self._published or not self.find_complete_shards(export):
            self.discard()
            return ""
        return self.keep()

    def lines_path(self, number: int) -> Path:
        """Returns the path of the file with the record lines of shard ``number``."""
        return self.run / PARTS / f"{number:06}.rows"

    def mark_complete(self, number: int, part: ShardReceipt) -> None:
        """Makes the record lines of a shard durable, and then writes its receipt."""
        path = self.run / PARTS / f"{number:06}.json"
        new = path.with_suffix(".new")
        new.write_bytes(encode_with_digest(part._asdict()))
        for file in (new, self.lines_path(number)):
            sync_file(file)
        new.rename(path)
        sync_directory(path.parent)

    def join_lines(self, count: int) -> Path:
        """Copies the record lines of the first ``count`` shards into one file and returns its path. The lines of each
        shard stay."""
        whole = self.run / PARTS / ROWS_FILE
        with whole.open("wb") as out:
            for number in range(count):
                with self.lines_path(number).open("rb") as lines:
                    shutil.copyfileobj(lines, out)
        return whole

    def _read_receipt(self, number: int) -> ShardReceipt | None:
        """Reads the receipt of a shard, or returns None if it is damaged or does not fit the files."""
        try:
            part = ShardReceipt(**parse_with_digest((self.run / PARTS / f"{number:06}.json").read_bytes()))
            size = (self.path / (part.file or "")).stat().st_size
            whole = size >= part.size if self._one_file else part.file is None or size == part.size
            return part if whole and self.lines_path(number).stat().st_size == part.lines else None
        except (OSError, ValueError, TypeError, ManifestError):
            return None


def was_published(destination: Path, request: str) -> bool:
    """Tells if a run of the same request was killed after publishing its export. If so, only its work directory is
    left to remove."""
    receipt = place_of(destination).find_published()
    return receipt is not None and receipt.fingerprint == request
