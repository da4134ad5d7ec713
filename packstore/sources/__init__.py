"""Opens sources of samples: one file for each kind of source, found by :func:`open_source`.

A kind is imported when it first tests a path. May import ``core``, ``images`` and ``stores``.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from packstore.core.columns import CROWD
from packstore.core.errors import AmbiguousSourceError, PackstoreError, SourceError, UsageError, printable
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.registry import SOURCES, import_and_call
from packstore.core.urls import UrlPath, find_bridge
from packstore.images.reading import ALL_FRAMES, CLIPS, FILE_CLIPS, Reading
from packstore.sources.archives import cache_trees
from packstore.sources.base import TEXT_OPTIONS, Certainty, Entry, Kind, Source, SourceOptions, Survey
from packstore.sources.companion_patterns import OPTIONS
from packstore.sources.encodings import GEO, find_encoding, use_encoding
from packstore.sources.encodings import ROLE as ENCODING
from packstore.sources.ignoring import apply_ignore_rules, compile_ignore_rules, escape_pattern
from packstore.sources.questions import ask_about_classes, ask_about_left
from packstore.sources.recognition import find_kind, recognise, unreachable_message
from packstore.sources.refusals import NeedsCopyError
from packstore.stores.opening import holds_store

__all__ = [
    "DESCRIBING",
    "Certainty",
    "Entry",
    "Kind",
    "Source",
    "SourceOptions",
    "Survey",
    "add_source_to_questions",
    "ask_about_classes",
    "ask_about_left",
    "find_described_folder",
    "find_kind",
    "open_source",
    "recorded_companions",
    "take_frames",
]
DESCRIBING, _MOST_BESIDE = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".tsv", ".txt", ".data"), 256
"""Suffixes of files that may describe their folder, and the maximum number of such files beside one."""
# Groups of suffixes: if the path names one such file, other files of its group in the folder are ignored.
_add_geo = import_and_call("packstore.sources.geotiff:GeoSource")
"""Wraps a source to add the column ``geo``."""
_ALIKE = ((".json", ".jsonl"), (".csv", ".tsv"), (".yaml", ".yml"))


def open_source(
    path: Path,
    options: SourceOptions | None = None,
    *,
    kind: str | None = None,
    packed_as: Manifest | None = None,
    progress: ProgressCallback = no_progress,
    **given: Any,
) -> Source:
    """Opens the source at ``path``.

    Args:
        path: A file or directory; a bridge, see :mod:`packstore.sources.bridges`; or a URL as a :class:`UrlPath`.
            A file that describes a folder of images (``data.yaml``) opens that folder. Folders of images and stores at
            a URL are read directly; other sources are first fetched into the local cache.
        options: Options of the source. Any source takes the columns ``keep=geo``, which adds a column ``geo`` of
            GeoTIFF tags, and ``encoding=cp1252``, the encoding of all texts that are not UTF-8. None makes them of
            ``given``.
        kind: The name of its kind, one of :data:`packstore.core.registry.SOURCES`; None recognises the kind. A name
            settles an ambiguous folder: ``imagefolder`` takes all top folders as classes, even if some have names of
            splits and others contain images.
        packed_as: The manifest of a store that was packed from this source. Its kind is used if the path alone is
            ambiguous. Its options for arrays, ``ignore``, ``splits``, ``columns``, companions and ``frames`` replace
            those that are not given. If the source is itself a store or an export of a store, only ``frames``
            replaces, and only if the images are files.
        progress: Called when an object is fetched.
        given: Fields of :class:`SourceOptions`; a single text stands for a tuple.

    Raises:
        AmbiguousSourceError: ``kind`` is None, and several kinds match, or none reads all annotations of the images.
        UsageError: ``kind`` is unknown, the kind or the bridge does not use an option, or an option is unusable. Also
            for ``labels`` at a URL.
        SourceError: Nothing is at ``path``, or the path is of no known kind.
    """
    options = replace(SourceOptions(**given) if options is None else options, named=kind is not None)
    place = _as_remote_path(path) if isinstance(path, UrlPath) else path
    files_as = None if packed_as is not None and _is_packed(place) else packed_as
    frames = options.frames  # which the wrappers below apply
    recorded: dict[str, Any] = {
        name: _recorded_texts(files_as, name) for name in TEXT_OPTIONS if not getattr(options, name)
    }
    if packed_as is not None and options.crowds is None and not packed_as.has_column(CROWD):
        recorded["crowds"] = False
    options = replace(options, **recorded, frames=None)
    columns, encoding = options.columns, find_encoding(options.columns)
    options = replace(options, columns=tuple(each for each in columns if each != GEO and not each.startswith(ENCODING)))
    packed_frames = None if packed_as is None else packed_as.options.get("frames")
    with use_encoding(encoding):
        clips = (packed_frames if frames is None else frames) == CLIPS
        opened = _open_files(place, kind, options, files_as, progress, clips)
    if options.splits:
        from packstore.sources.wrapped import ChosenSplitsSource

        opened = ChosenSplitsSource(opened, options.splits)
    if encoding is not None:
        opened.options = replace(opened.options, columns=(*opened.options.columns, ENCODING + encoding))
    if GEO in columns:
        opened = _add_geo(opened)
    if frames is None and isinstance(packed_frames, str):
        holds_files = opened.store_manifest is None or opened.store_manifest.encoding == "original"
        frames = packed_frames if holds_files else None
    opened = take_frames(opened, frames)
    if frames in (CLIPS, FILE_CLIPS) and packed_as is not None:
        opened.read_as(Reading.restore(packed_as.image.mode, packed_as.options))
    return opened


def _as_remote_path(url: UrlPath) -> Path:
    """Returns a URL as a path that lists and reads."""
    from packstore.sources.remote import RemotePath

    return RemotePath(url)


def _is_packed(place: Path) -> bool:
    """Tells if ``place`` is a store, or an export with its manifest."""
    if find_bridge(place) is not None:
        return False
    try:
        return holds_store(place) or SOURCES["exported"].recognise(place, SourceOptions()) == Certainty.CERTAIN
    except (OSError, SourceError):
        return False  # opening reports why


def recorded_companions(manifest: Manifest, source: Path) -> Sequence[tuple[str, ...]]:
    """Returns the recorded ``pair``, ``sidecar`` and ``masks`` of a store to which ``source`` will be appended. All are
    empty if the source is a store or an export of one."""
    recorded = [_recorded_texts(manifest, name) for name in OPTIONS]
    place = _as_remote_path(source) if isinstance(source, UrlPath) else source
    return [()] * len(OPTIONS) if any(recorded) and _is_packed(place) else recorded


@contextmanager
def add_source_to_questions(place: Path, options: SourceOptions, kind: str | None = None) -> Iterator[None]:
    """Adds its source to each :class:`AmbiguousSourceError` of the block, and replaces its answers by tried ones,
    see :func:`packstore.sources.answers.try_answers`. ``kind`` is the kind that the user has named.
    """
    try:
        yield
    except AmbiguousSourceError as error:
        from packstore.sources.answers import is_trying, try_answers

        if not (is_trying() or error.tried):
            error.source = place
            error.answers = tuple(try_answers(error, place, options, kind, open_source))
            error.tried = True
        raise


def take_frames(source: Source, frames: str | None) -> Source:
    """Wraps the source if ``frames`` is ``all``, ``clips`` or ``clips:files``, else returns it."""
    if frames in (CLIPS, FILE_CLIPS):
        from packstore.sources.frames import ClipsSource

        return ClipsSource(source, frames)
    if frames == ALL_FRAMES:
        from packstore.sources.frames import FramesSource

        return FramesSource(source)
    return source


def _open_files(
    place: Path,
    kind: str | None,
    options: SourceOptions,
    packed_as: Manifest | None,
    progress: ProgressCallback,
    clips: bool,
) -> Source:
    """Opens a source like :func:`open_source`, but without the wrappers for frames, clips and GeoTIFF tags."""
    named: Kind | None = None if kind is None else SOURCES[kind]
    if named is not None and not named.takes(options):
        unused = ", ".join(named.find_unused(options))
        using = ", ".join(each.name for each in SOURCES.values() if each.takes(options)) or "none"
        raise UsageError(f"a source of kind {named.name} does not use {unused}: leave it out; kinds that do: {using}")
    if find_bridge(place) is not None:
        kept = {name: getattr(options, name) for name in ("max_pixels", "skip_bad", "layout", "crowds")}
        if named is not None or options != SourceOptions(**kept):
            raise UsageError(f"{printable(str(place))} is read by another library, which takes layout alone")
        if packed_as is not None:
            options = replace(options, **_recorded_array_names(packed_as, options))
        from packstore.sources.bridges import open_bridge

        return open_bridge(place, options)
    # ``place`` may be a file that describes a folder: the folder is opened.
    if options.labels is None and (described := find_described_folder(place, options, named)) is not None:
        place, options = described
    if isinstance(place, UrlPath) and (holds_store(place) if named is None else named.name == "store"):
        store: Kind = SOURCES["store"]
        return store.open(place, options)
    try:
        return _open_recognised(place, named, options, packed_as, clips)
    # The kind only reads local files.
    except NeedsCopyError:
        from packstore.sources.copied import CopiedSource
        from packstore.sources.remote import RemotePath

        assert isinstance(place, RemotePath)
        with add_source_to_questions(place, options):
            return CopiedSource(place, lambda copy: _open_recognised(copy, named, options, packed_as, clips), progress)


def find_described_folder(file: Path, options: SourceOptions, named: Kind | None) -> tuple[Path, SourceOptions] | None:
    """Finds the folder that an annotation file (``data.yaml``, ``instances_train.json``) describes: its own or the one
    above.

    Opens each folder as a source, and asks the source for its describing files. Returns the folder, and options that
    ignore other files beside ``file`` with the same suffix or a similar one (``.json`` and ``.jsonl``). Returns None if
    the file describes no folder, is at a URL, or has more than 256 such files beside it.
    """
    if isinstance(file, UrlPath) or file.suffix.lower() not in DESCRIBING or not file.is_file():
        return None
    alike = next((suffixes for suffixes in _ALIKE if file.suffix in suffixes), (file.suffix,))
    for folder in (file.parent, file.parent.parent):
        beside = [each for each in file.parent.iterdir() if each.suffix in alike and each.name != file.name]
        if len(beside) > _MOST_BESIDE:
            return None
        hidden = (f"/{escape_pattern(each.relative_to(folder).as_posix())}" for each in sorted(beside))
        given = replace(options, ignore=(*options.ignore, *hidden))
        with apply_ignore_rules(folder, compile_ignore_rules(given.ignore)), cache_trees():
            if any(_describes_folder(file, folder, kind, given) for kind in _find_possible_kinds(folder, given, named)):
                return folder, given
    return None


def _find_possible_kinds(folder: Path, options: SourceOptions, named: Kind | None) -> list[Kind]:
    """Returns the named or the recognised kind, or the kinds that the question of an ambiguous recognition offers."""
    try:
        return [named or recognise(folder, options)]
    except AmbiguousSourceError as error:
        return [SOURCES[each.options[1]] for each in error.answers if each.options[:1] == ("--source",)]
    except PackstoreError:
        return []


def _describes_folder(file: Path, folder: Path, kind: Kind, options: SourceOptions) -> bool:
    """Opens ``folder`` as ``kind``, and tells if ``file`` is one of its describing files."""
    from packstore.sources.rows import TreeRowSource

    try:
        with closing(kind.open(folder, replace(options, named=True))) as source:
            names = source.describing_files() if isinstance(source, TreeRowSource) else ()
            return hasattr(source, "tree") and file.relative_to(folder).as_posix() in set(names)
    except PackstoreError:
        return False


def _open_recognised(
    place: Path, named: Kind | None, options: SourceOptions, packed_as: Manifest | None, clips: bool
) -> Source:
    """Opens a path as the named kind, or else as the kind that recognition finds."""
    try:
        mode = place.stat().st_mode
    except PackstoreError:  # a UsageError is a ValueError, too
        raise
    except (OSError, ValueError) as error:
        raise SourceError(unreachable_message(place, error)) from None
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise SourceError(f"{printable(str(place))} is neither a file nor a folder, but a pipe, socket or device")
    if named is not None and not named.reads(place):
        raise NeedsCopyError(f"{printable(str(place))} is of kind {named.name}")
    with (
        apply_ignore_rules(place, compile_ignore_rules(options.ignore)),
        add_source_to_questions(place, options, None if named is None else named.name),
        cache_trees(),
        _cache_buckets(place),
    ):
        if named is None:
            try:
                named = recognise(place, options, clips)
            except NeedsCopyError:
                raise
            except SourceError as error:
                known = packed_as is not None and packed_as.origin.kind in SOURCES
                answered = known and packed_as is not None and _recorded_array_names(packed_as, options)
                # The kind in the manifest settles an ambiguity. After other errors it is only trusted if it also
                # recorded which arrays to use.
                if packed_as is None or not known or not (isinstance(error, AmbiguousSourceError) or answered):
                    raise
                named, options = SOURCES[packed_as.origin.kind], replace(options, named=True)
        takes = named.takes_arrays or named.takes_boxes
        # The manifest fills in options for arrays that the user left out.
        if packed_as is not None and packed_as.origin.kind == named.name and takes:
            options = replace(options, **_recorded_array_names(packed_as, options))
        return named.open(place, options)


def _cache_buckets(place: Path) -> AbstractContextManager[None]:
    """Shares listings of a bucket between all paths in it within the block, if ``place`` is a URL."""
    if not isinstance(place, UrlPath):
        return nullcontext()
    from packstore.sources.remote import cache_buckets

    return cache_buckets()


def _recorded_array_names(packed_as: Manifest, options: SourceOptions) -> dict[str, Any]:
    """Returns the options for arrays that a store was packed with; empty if ``options`` gives any of them."""
    if any(value is not None for value in options.array_names.values()):
        return {}
    recorded = {name: packed_as.options.get(name) for name in options.array_names}
    return {name: value for name, value in recorded.items() if isinstance(value, str)}


def _recorded_texts(packed_as: Manifest | None, name: str) -> tuple[str, ...]:
    """Returns the texts of an option (``ignore``, ``splits``, ``columns``) that a store was packed with, if there are
    any.
    """
    recorded = None if packed_as is None else packed_as.options.get(name)
    try:
        texts = json.loads(recorded) if isinstance(recorded, str) else ()
        return TEXT_OPTIONS[name](texts)
    except ValueError:
        return ()
