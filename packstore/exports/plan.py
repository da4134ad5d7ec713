"""What an export is to do, before anything is written."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from xxhash import xxh3_128_hexdigest

from packstore import __version__
from packstore.core.arguments import text_or_none, true_or_false, whole
from packstore.core.errors import DestinationError, StoreError, UsageError, printable
from packstore.core.export_manifest import ExportManifest
from packstore.core.files import check_paths, refuse_empty
from packstore.core.manifest import Manifest
from packstore.core.plainjson import canonical
from packstore.core.registry import EXPORTS
from packstore.core.sizes import parse_bytes
from packstore.exports.base import Export
from packstore.exports.estimate import estimate_bytes
from packstore.exports.recoding import Recoding, plan_recoding
from packstore.exports.staging import check_destination, was_published
from packstore.stores import Reader, open_store


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """The keyword arguments of :func:`packstore.export`, which describes them; validated."""

    to: str | None = None
    encode: Literal["jpeg", "png"] | None = None
    quality: int | None = None
    shard_size: int | str | None = None
    bare: bool = False
    overwrite: bool = False
    restart: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        text_or_none(to=self.to)
        true_or_false(bare=self.bare, overwrite=self.overwrite, restart=self.restart)
        if self.to is not None:
            EXPORTS.check(self.to)
        if self.encode not in (None, "jpeg", "png"):
            raise UsageError(f"encode should be 'jpeg', 'png' or None, got {self.encode!r}")
        if self.quality is not None and (self.encode != "jpeg" or not 1 <= whole("quality", self.quality) <= 100):
            raise UsageError(f"quality is a number from 1 to 100 for encode='jpeg', got {self.quality!r}")
        if self.workers is not None:
            whole("workers", self.workers)
        if self.shard_bytes is not None:
            whole("shard_size", self.shard_bytes)

    @property
    def shard_bytes(self) -> int | None:
        """:attr:`shard_size` in bytes."""
        return parse_bytes(self.shard_size) if isinstance(self.shard_size, str) else self.shard_size


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What is to be done for :func:`packstore.export`.

    Attributes:
        reader: The open store.
        kind: What to write.
        destination: Where.
        options: How.
        recoding: What becomes of the images.
        held: See :meth:`Export.held`.
        losses: See :attr:`packstore.exports.run.ExportReport.losses`.
        shard_bytes: Bytes of images after which a shard ends; None for one file.
        estimate_bytes: About what it takes on disk.
        free_bytes: What is free there.
    """

    reader: Reader
    kind: type[Export]
    destination: Path
    options: ExportOptions
    recoding: Recoding
    held: tuple[str, ...]
    losses: tuple[str, ...]
    shard_bytes: int | None
    estimate_bytes: int
    free_bytes: int

    @property
    def manifest(self) -> Manifest:
        """Of the records that are written."""
        return self.recoding.manifest

    @property
    def has_lines(self) -> bool:
        """Whether each record has a line in ``packstore.rows.jsonl``."""
        return not self.kind.keeps_keys or any(name not in self.held for name in value_columns(self.manifest))

    def new_export(self, path: Path) -> Export:
        """An export to ``path``."""
        made = self.kind(path, self.manifest, self.reader, recoded=self.recoding.recode is not None)
        made.bare = self.options.bare
        return made

    @property
    def identity(self) -> str:
        """What an interrupted run must have been asked for, so that this one can go on from it."""
        options = self.options
        asked = [self.kind.name, options.encode, options.quality, self.shard_bytes, options.bare]
        text = canonical([__version__, self.reader.manifest.digest, *asked])
        return xxh3_128_hexdigest(text.encode("ascii"))


def plan_export(path: Path, destination: Path, options: ExportOptions, stack: ExitStack) -> ExportPlan:
    """What is to be done for :func:`packstore.export`. Writes nothing; ``stack`` closes the store."""
    refuse_empty(path)
    check_paths(destination)
    kind = _resolve_kind(destination, options.to)
    if options.shard_bytes is not None and (kind.one_file or kind.shard_bytes is None):
        why = "is one file" if kind.one_file else "has a file for each image"
        raise UsageError(f"shard_size is for exports of several shards, and {kind.name} {why}; leave it out")
    reader = stack.enter_context(open_store(path))
    manifest = reader.manifest
    _refuse_inside(destination, path)
    if not manifest.records:
        raise StoreError(f"{printable(str(path))} holds no records, so there is nothing to export")
    recoding = plan_recoding(kind, manifest, options.encode, options.quality or 90)
    recoding = recoding._replace(manifest=replace(recoding.manifest, shards=None))
    trial = kind(destination, recoding.manifest, reader, recoded=recoding.recode is not None)
    held, shown = tuple(trial.held()), trial.shown()
    hidden = [repr(name) for name in value_columns(recoding.manifest) if name not in shown]
    lost = [f"the column{'s' * (len(hidden) > 1)} {', '.join(hidden)}"] if hidden else []
    lost += [_BARE] if options.bare else []
    plan = ExportPlan(
        reader=reader,
        kind=kind,
        destination=destination,
        options=options,
        recoding=recoding,
        held=held,
        losses=(*trial.losses(), *lost),
        shard_bytes=None if kind.one_file else options.shard_bytes or kind.shard_bytes,
        estimate_bytes=0,
        free_bytes=0,
    )
    if not was_published(destination, plan.identity):
        check_destination(destination, overwrite=options.overwrite)
    return replace(
        plan,
        estimate_bytes=estimate_bytes(trial, held, plan.has_lines, recoding.recode),
        free_bytes=shutil.disk_usage(destination.absolute().parent).free,
    )


_BARE = (
    "packstore.json (--bare): packstore convert gets no more from it than other readers, so keys, types of columns and "
    "the dataset digest may be others"
)


def check_space(plan: ExportPlan) -> None:
    """Raises :class:`DestinationError` when the estimated result does not fit into the free space."""
    if plan.estimate_bytes > plan.free_bytes:
        raise DestinationError(
            f"{printable(str(plan.destination))}: the result takes about {plan.estimate_bytes / 1e6:,.1f} MB, but only "
            f"{plan.free_bytes / 1e6:,.1f} MB are free there; free some space or write elsewhere"
        )


def value_columns(manifest: Manifest) -> list[str]:
    """Names of the columns whose values an export has to hold, without companions."""
    columns = ExportManifest(kind="", source="", manifest=manifest, held=()).columns
    companions = {each.name for column in columns for each in column.companions}
    return [column.name for column in columns if column.name not in companions]


def _resolve_kind(destination: Path, to: str | None) -> type[Export]:
    """The kind of export for a destination, by its suffix unless it is given."""
    if to is not None:
        found: type[Export] = EXPORTS[to]
        return found
    name = destination.name.lower()
    kinds: list[type[Export]] = list(EXPORTS.values())
    for kind in kinds:
        if any(name.endswith(suffix) for suffix in kind.suffixes):
            return kind
    raise UsageError(
        f"{printable(str(destination))}: its name says no kind of export; choose one with --to: "
        f"{', '.join(kind.name for kind in kinds)}"
    )


def _refuse_inside(destination: Path, store: Path) -> None:
    new, old = destination.resolve(), store.resolve()
    if new == old or new.is_relative_to(old) or old.is_relative_to(new):
        raise UsageError(
            f"{printable(str(destination))} and {printable(str(store))} are the same or lie in each other; write the "
            "export elsewhere"
        )
