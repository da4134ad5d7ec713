"""Reading back what has just been written, before it gets its name."""

from __future__ import annotations

from pathlib import Path

from xxhash import xxh3_64_intdigest

from packstore.errors import StoreError, printable
from packstore.manifest import Manifest
from packstore.parallel import default_workers, ordered_map
from packstore.stores import formats
from packstore.stores.base import manifest_text
from packstore.stores.columns import finished_column

_BATCH_BYTES = 4 << 20


def read_again(path: Path, manifest: Manifest) -> None:
    """Opens a sealed file as a reader would and compares everything with what was meant to be written.

    The manifest, every column and every image go by their digests. What is read comes from the system's cache as a
    rule: this finds errors on the way into it (a faulty library, memory, or file system), not those of a disk that
    loses what it has confirmed.

    Raises:
        StoreError: Something differs, or the file does not even open.
    """
    shown = printable(str(path))
    with formats.open_reader(path) as reader:
        if reader.manifest.digest != manifest.digest:
            raise _differs(shown, "its manifest")
        for column in manifest.columns[1:]:
            if finished_column(column, reader.column(column.name)) != column:
                raise _differs(shown, f"column {column.name!r}")
        # What lies around the data: of a .pth its zip's checksums too, which nothing else looks at.
        problem = next(iter(reader.check_structure(quick=manifest.format != "pth")), None)
        if problem is not None:
            raise _differs(shown, f"the structure ({problem.what})")
        checksums, total = reader.fixed("checksum"), len(reader)
        step = max(1, _BATCH_BYTES * total // max(1, manifest.image.nbytes))

        def check(start: int) -> int | None:
            stop = min(start + step, total)
            expected = checksums[start:stop].tolist()
            for record, checksum in zip(range(start, stop), expected, strict=True):
                if xxh3_64_intdigest(reader.view(record)) != checksum:
                    return record
            return None

        for wrong in ordered_map(check, range(0, total, step), default_workers()):
            if wrong is not None:
                raise _differs(shown, f"record {wrong}")


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes the manifest of a sharded store, and reads it again. Raises :class:`StoreError` where that differs."""
    text = manifest_text(manifest)
    path.write_bytes(text)
    if path.read_bytes() != text:
        raise _differs(printable(str(path.parent)), path.name)


def _differs(shown: str, what: str) -> StoreError:
    return StoreError(
        f"{what} of {shown} reads back otherwise than it was written: the disk, the memory or the file system is "
        "faulty; nothing is published"
    )
