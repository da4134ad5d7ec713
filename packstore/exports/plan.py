"""Plan of an export, made before anything is written; and its work directory: staged files, receipts of shards."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from packstore import __version__
from packstore.core.columns import NUMPY_DTYPE, UPRIGHT, ImageData
from packstore.core.errors import DecodeError, ManifestError, SampleError, StoreError, UsageError, printable
from packstore.core.files import device_and_inode, free_bytes, refuse_nested_paths, sync_directory, sync_file, writing
from packstore.core.manifest import Column, Manifest
from packstore.core.plainjson import encode_with_digest, parse_with_digest, to_canonical_json
from packstore.core.registry import EXPORTS
from packstore.core.urls import check_paths
from packstore.exports import ExportOptions
from packstore.exports.base import Export
from packstore.images.decoders import get_decoder
from packstore.images.encode import EncodeOptions, Encoder
from packstore.images.encode.files import encode_png, fits_png
from packstore.images.orientation import keeps_exif, readers_transpose
from packstore.images.reading import Reading
from packstore.stores import Reader
from packstore.stores.export_manifest import ROWS_FILE
from packstore.stores.opening import open_reader
from packstore.stores.parts import as_image_array
from packstore.stores.places import place_of
from packstore.stores.places.local import Staging, check_destination
from packstore.stores.places.owned import find_owned_files
from packstore.stores.places.receipts import Receipt, read_receipt
from packstore.stores.places.work import EXPORT, PARTS, is_published, list_runs, remove_run
from packstore.stores.proven import Proven

_FIXED_BYTES = 8192
"""Bytes of each split, and of ``packstore.json``, in an export of few records."""
_SAMPLE_IMAGES = 16
"""Images that are encoded to estimate the size; sizes differ by tens of percent."""


_JPEG_MODES = ("RGB", "L")
Recode = Callable[[str, Any], ImageData]
"""Returns the image to write for a record's key and image."""
_log = logging.getLogger(__name__)


class Recoding(NamedTuple):
    """Plan for writing images, unchanged or re-encoded.

    Attributes:
        manifest: Manifest of the written records, except :attr:`Manifest.records_digest`, which still belongs to the
            store.
        form: ``kept``, or ``png`` for arrays that become PNG files; see
            :attr:`packstore.stores.export_manifest.ExportManifest.image`.
        recode: Re-encodes an image; raises :class:`SampleError` if it cannot. None: images are written unchanged.
        new: Images are re-encoded with other bytes or pixels. An import has another dataset digest.
    """

    manifest: Manifest
    form: str = "kept"
    recode: Recode | None = None
    new: bool = False


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """Plan of a call of :func:`packstore.export`.

    Attributes:
        reader: The open store.
        export: The export, which has written nothing. Its path is set when it is run.
        destination: The new folder or file.
        options: The validated arguments.
        recoding: Plan for writing images, unchanged or re-encoded.
        held: Names of the columns that the format holds exactly, see :meth:`Export.exact_columns`.
        has_lines: Each record has a line in ``packstore.rows.jsonl``. A bare export writes this file, too, and deletes
            it at the end.
        losses: See :attr:`packstore.exports.run.ExportReport.losses`.
        shard_bytes: Bytes of images after which a shard ends. None if the export is one file, or each image is a file.
        request: Hash of the store, the version, and the options that change the export's content. A run resumes only
            a run of the same request.
        estimate_bytes: Estimated size of the export on disk.
        free_bytes: Free bytes on the destination's disk.
    """

    reader: Reader
    export: Export
    destination: Path
    options: ExportOptions
    recoding: Recoding
    held: tuple[str, ...]
    has_lines: bool
    losses: tuple[str, ...]
    shard_bytes: int | None
    request: str
    estimate_bytes: int
    free_bytes: int

    @property
    def manifest(self) -> Manifest:
        """Manifest of the written records, whose encoding may differ from the store's."""
        return self.recoding.manifest

    @property
    def kind(self) -> type[Export]:
        """The class of the export."""
        return type(self.export)


def _describe_frame(kind: type[Export], recoding: Recoding) -> list[str]:
    """Describes in which frame labels count, or that EXIF applies, if images keep an EXIF orientation."""
    manifest = recoding.manifest
    oriented, framed = manifest.options.get("exif_oriented"), [c for c in manifest.columns if c.frame is not None]
    if not oriented or recoding.recode is not None or not keeps_exif(manifest):
        return []
    where = f"({oriented:,} of {manifest.records:,} images have an orientation)"
    if not framed:
        return [f"that readers should apply EXIF {where}"] if readers_transpose(manifest) else []
    frame, names = framed[0].frame, ", ".join(printable(column.name) for column in framed)
    upright = sorted(getattr(kind, "upright_kinds", ())) if frame != UPRIGHT else []
    of = f" (those of {' and '.join(upright)} files: in the upright one)" if upright else ""
    return [f"that {names} count in the {frame} image{of} {where}"]


def plan_export(path: Path, destination: Path, options: ExportOptions, stack: ExitStack) -> ExportPlan:
    """Checks the arguments, opens the store and plans the export. Writes nothing.

    ``stack``: closes the store.

    With ``encode``, re-encodes up to 16 images to estimate the size.

    Raises:
        UsageError: An argument is wrong, or the format cannot hold the store.
        StoreError: The store does not open, or is empty. For a damaged record: :class:`CorruptRecordError`.
        SampleError: An image cannot be re-encoded.
        DestinationError: See :func:`packstore.stores.places.local.check_destination`. A destination that a killed
            run of the same export had published is accepted.
    """
    check_paths(destination)
    kind = _resolve_kind(destination, options.to)
    if options.shard_bytes is not None and (kind.one_file or kind.shard_bytes is None):
        why = "is one file" if kind.one_file else "has a file for each image"
        raise UsageError(f"shard_size is for exports of several shards, and {kind.name} {why}; leave it out")
    reader = stack.enter_context(open_reader(path))
    manifest = reader.manifest
    refuse_nested_paths(destination, path)
    if not manifest.records:
        raise StoreError(f"{printable(str(path))} holds no records, so there is nothing to export")
    recoding = plan_recoding(kind, manifest, options.encode, options.quality or 90)
    recoding = recoding._replace(manifest=replace(recoding.manifest, shards=None))
    export = kind(destination, recoding.manifest, reader, recoded=recoding.recode is not None)
    export.bare = options.bare
    held, visible = tuple(export.exact_columns()), export.visible_columns()
    names = [column.name for column in export.columns]
    hidden = [export.describe_hidden(name) for name in names if name not in visible]
    lost = [f"the column{'s' * (len(hidden) > 1)} {', '.join(hidden)}"] if hidden else []
    lost += _describe_frame(kind, recoding) + ([_BARE] if options.bare else [])
    shard_bytes = None if kind.one_file else options.shard_bytes or kind.shard_bytes
    asked = [kind.name, options.encode, options.quality, shard_bytes, options.bare]
    request = xxh3_128_hexdigest(to_canonical_json([__version__, manifest.digest, *asked]).encode("ascii"))
    if not was_published(destination, request):
        check_destination(destination, overwrite=options.overwrite, owned=find_owned_files)
    has_lines = not kind.keeps_keys or any(name not in held for name in names)
    return ExportPlan(
        reader=reader,
        export=export,
        destination=destination,
        options=options,
        recoding=recoding,
        held=held,
        has_lines=has_lines,
        losses=(*export.losses(), *lost),
        shard_bytes=shard_bytes,
        request=request,
        estimate_bytes=_estimate_bytes(export, held, has_lines, recoding.recode),
        free_bytes=free_bytes(destination) or 0,
    )


_BARE = (
    "packstore.json (--bare): packstore convert gets no more from it than other readers, so keys, types of columns and "
    "the dataset digest may differ"
)


def _resolve_kind(destination: Path, to: str | None) -> type[Export]:
    """Returns the kind of export ``to``, or else the first kind with the destination's suffix."""
    if to is not None:
        export_kind: type[Export] = EXPORTS[to]
        return export_kind
    name = destination.name.lower()
    kinds: list[type[Export]] = list(EXPORTS.values())
    for kind in kinds:
        if any(name.endswith(suffix) for suffix in kind.suffixes):
            return kind
    raise UsageError(
        f"{printable(str(destination))}: the name has no suffix of an export; choose the kind with --to: "
        f"{', '.join(kind.name for kind in kinds)}"
    )


def _estimate_bytes(export: Export, held: Sequence[str], has_lines: bool, recode: Recode | None) -> int:
    """Estimates the bytes of an export on disk."""
    manifest, reader = export.manifest, export.reader
    image = reader.manifest.image.nbytes
    if recode is not None:
        image = int(image * _estimate_size_ratio(reader, recode))
    # ``held``: the columns that the format holds exactly.
    kept = [each for column in export.columns if column.name in held for each in (column, *column.companions)]
    values = sum(column.size_of(manifest.records) for column in kept)
    total = image + values + manifest.records * export.overhead() + _FIXED_BYTES * (1 + len(manifest.splits))
    if has_lines:
        keys = 0 if export.keeps_keys else export.mean_key_bytes
        files = 0 if held or export.shard_bytes is not None else export.mean_key_bytes
        line = len('{"key":"","file":""}\n') + keys + files
        rest = [each for column in export.columns if column.name not in held for each in (column, *column.companions)]
        total += manifest.records * line + sum(_estimate_line_bytes(column, manifest.records) for column in rest)
    return total


def _estimate_line_bytes(column: Column, records: int) -> int:
    """Estimates the bytes of a column's values in ``packstore.rows.jsonl``."""
    size = records * (len(column.name) + 6)
    if column.kind == "fixed" and column.shape == () and NUMPY_DTYPE[column.dtype].kind in "biu":
        return size
    values = column.size_of(records)
    return size + (values if column.form == "text" else values * 4 // 3)


def _estimate_size_ratio(reader: Reader, recode: Recode) -> float:
    """Estimates the ratio of new to old size by re-encoding some images from all over the store."""
    records = Proven(reader)
    before = after = 0
    for number in range(0, len(reader), -(-len(reader) // _SAMPLE_IMAGES)):
        image = records.prove_image(number)
        before += len(image)
        shape = records.prove_fields(number).get("shape")
        after += len(recode(reader.key(number), image_from_stored(reader.manifest, image, shape)))
    return after / max(1, before)


def plan_recoding(kind: type[Export], manifest: Manifest, encode: str | None, quality: int) -> Recoding:
    """Plans how images are written: unchanged if ``encode`` is None, else as ``png`` or ``jpeg``.

    Re-encoded images are upright if the store's readers apply the EXIF orientation. ``quality`` is for JPEG.

    Raises :class:`UsageError` if the kind or the encoding cannot hold the images. No encoding holds floating point
    values.
    """
    stored = "files" if manifest.holds_files else "floats" if manifest.holds_floats else "uint8"
    mode = manifest.image.pixels
    if encode is None:
        if stored in kind.image_forms:
            return Recoding(manifest)
        if stored == "floats":
            raise UsageError(
                f"{kind.name} holds image files, but the store holds {manifest.encoding} values; export to "
                f"{_kinds_that_hold(stored)}, or pack the images with --encoding uint8"
            )
        raise UsageError(
            f"{kind.name} holds image files, but the store holds {manifest.encoding} pixels"
            + (": --encode png keeps every pixel" if fits_png(mode) else f" of mode {mode}, which no PNG holds")
            + (", --encode jpeg changes pixels" if mode.name in _JPEG_MODES else "")
            + f"; or export to {_kinds_that_hold(stored)}"
        )
    if stored == "floats":
        raise UsageError(f"encode needs pixels, but the store holds {manifest.encoding} values; leave it out")
    if encode == "png" and not fits_png(mode):
        raise UsageError(f"a PNG does not hold images of mode {mode}; leave encode out, or export to another kind")
    if encode == "jpeg" and mode.name not in _JPEG_MODES:
        raise UsageError(f"a JPEG does not hold images of mode {mode}; leave encode out, or use --encode png")
    reading = Reading.restore(manifest.image.mode, manifest.options)
    if encode == "png" and stored == "uint8":
        return Recoding(manifest, "png", _name_record(lambda key, pixels: encode_png(pixels)))
    if encode == "png":
        decoder = get_decoder(reading=reading)
        upright = readers_transpose(manifest)

        def as_png(key: str, data: bytes) -> bytes:
            return encode_png(decoder.decode(data, exif_transpose=upright))

        return Recoding(
            _with_encoding(manifest, "original", exif_transpose=False), recode=_name_record(as_png), new=True
        )
    options = EncodeOptions("jpeg", quality=quality, exif_transpose=readers_transpose(manifest), reading=reading)
    encoder = Encoder(options, "original" if manifest.holds_files else "uint8", source_mode=mode)

    def as_jpeg(key: str, image: bytes | NDArray[Any]) -> bytes:
        return bytes(encoder(key, image).record)

    return Recoding(_with_encoding(manifest, "jpeg", quality=quality), recode=_name_record(as_jpeg), new=True)


def _name_record(recode: Recode) -> Recode:
    """Makes ``recode`` raise its errors as :class:`SampleError` with the record's key."""

    def recode_record(key: str, image: Any) -> ImageData:
        try:
            return recode(key, image)
        except (ValueError, DecodeError) as error:
            raise SampleError(key, printable(str(error))) from error

    return recode_record


def _with_encoding(manifest: Manifest, encoding: str, **options: int) -> Manifest:
    """Returns a copy of the manifest for image files of another encoding, with ``options`` added."""
    image = Column("image", "ragged", "uint8", type="image", mode=manifest.image.mode)
    others = (column for column in manifest.columns[1:] if column.name != "shape")
    return replace(
        manifest,
        encoding=encoding,
        columns=(image, *others),
        normalization=None,
        shards=None,  # its sizes are those of the stored images
        options={**manifest.options, **options},
    )


def _kinds_that_hold(stored: str) -> str:
    """Returns the names of the kinds that hold a form of images unchanged, joined by "or"."""
    return " or ".join(kind.name for kind in EXPORTS.values() if stored in kind.image_forms)


def image_from_stored(manifest: Manifest, data: Any, shape: Any) -> ImageData:
    """Converts a stored image to the bytes of a file, or to an array.

    ``shape`` is needed only if the store's arrays differ in shape.
    """
    image = manifest.image
    if image.layout is None:
        return data if isinstance(data, bytes) else bytes(data)
    return as_image_array(
        data, image, image.shape if image.kind == "fixed" else tuple(np.asarray(shape).tolist()), lambda: "an image"
    )


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
