"""Where samples come from: one file a kind of source, found by :func:`open_source`.

A kind is imported when it is asked whether a path is its own. May import ``core``, ``images`` and ``stores``.
"""

from __future__ import annotations

import os
from pathlib import Path

from packstore.core.errors import SourceError, UsageError, printable
from packstore.core.registry import SOURCES
from packstore.images.sniff import MAX_PIXELS
from packstore.sources.base import Certainty, Entry, Kind, Source, SourceOptions, Survey
from packstore.sources.refusals import unrecognised

__all__ = ["Certainty", "Entry", "Kind", "Source", "SourceOptions", "Survey", "open_source"]


def open_source(
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Source:
    """Opens the source at ``path``.

    Args:
        path: A file or directory.
        kind: The name of its kind, one of :data:`packstore.core.registry.SOURCES`; None recognises it. A name decides
            where a folder is ambiguous: ``imagefolder`` takes all top folders as classes where some look like splits
            and others hold images as well.
        labels: A CSV file with the columns ``file,label`` and optionally ``split``, paths relative to ``path``; the
            source is then of a kind that takes one (``flat``).
        max_pixels: See :class:`SourceOptions`.

    Raises:
        UsageError: An unknown kind, or labels for a kind that has its own.
        SourceError: There is nothing at ``path``, or nothing of a known kind.
    """
    place = Path(path)
    options = SourceOptions(None if labels is None else Path(labels), max_pixels, named=kind is not None)
    named: Kind | None = None if kind is None else SOURCES[kind]
    if named is not None and options.labels is not None and not named.takes_labels:
        raise UsageError(f"a source of kind {kind} has its own labels; leave the labels file out, or use another kind")
    try:
        place.stat()
    except (OSError, ValueError) as error:
        raise SourceError(_unreachable(place, error)) from None
    found = named or _recognise(place, options)
    return found.open(place, options)


def _recognise(path: Path, options: SourceOptions) -> Kind:
    """The first kind that is certain of ``path``, else the first for which it is possible."""
    possible: Kind | None = None
    for name in SOURCES:  # plug-ins come last, and are not even looked for where a built-in kind is certain
        kind: Kind = SOURCES[name]
        if options.labels is not None and not kind.takes_labels:
            continue
        certainty = kind.recognise(path, options)
        if certainty is Certainty.CERTAIN:
            return kind
        if certainty is Certainty.POSSIBLE and possible is None:
            possible = kind
    if possible is None:
        raise unrecognised(path, [SOURCES[name] for name in SOURCES])
    return possible


def _unreachable(path: Path, error: OSError | ValueError) -> str:
    name = printable(str(path))
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"{name} is a link to nowhere: {printable(str(path.readlink()))} does not exist"
    return f"{name}: {printable(str(error)) if isinstance(error, ValueError) else error.strerror or error}"
