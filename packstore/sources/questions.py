"""Questions about a source that is open, and about answers that lead to further questions."""

from __future__ import annotations

from itertools import takewhile

from packstore.core.errors import AmbiguousSourceError, Answer, PackstoreError, printable
from packstore.core.registry import SOURCES
from packstore.images.reading import CLIPS
from packstore.images.unread import UNREAD_BYTES, find_unread_file_kind
from packstore.sources.base import Certainty, Kind, Source, Survey
from packstore.sources.contents import is_clip_name
from packstore.sources.folder import FolderSource
from packstore.sources.ignoring import escape_pattern, ignore_patterns
from packstore.sources.ledger import Role, suffix_for_count
from packstore.sources.listing import is_image_name
from packstore.sources.recognition import PLAIN_KINDS, find_left_by_source
from packstore.sources.refusals import (
    add_kinds,
    incomplete_error,
)

_MOST_PATTERNS = 8


def ask_about_left(source: Source, survey: Survey) -> None:
    """Raises :class:`AmbiguousSourceError` if a source leaves out files that seem to annotate its images. Does nothing
    if the user has named the kind, and for stores; for image folders and flat folders, only asks about names."""
    if source.kind in PLAIN_KINDS:
        _ask_about_names(source, survey)
    if source.options.named or source.kind in PLAIN_KINDS or survey.store is not None:
        return
    annotations = find_left_by_source(source, survey)
    if annotations and len(survey.splits) == 1 and "" not in survey.splits:
        annotations = find_left_by_source(source, source.survey())  # those of other splits are no question
    if annotations:
        error = incomplete_error(source.path, SOURCES[source.kind], [each[:2] for each in annotations])
        raise add_kinds(error, last=_find_partial_kinds(source))


def _ask_about_names(source: Source, survey: Survey) -> None:
    """Raises :class:`AmbiguousSourceError` for images whose names do not end as those of images, unless bad samples are
    skipped."""
    if source.options.skip_bad or not (isinstance(source, FolderSource) and source.by_suffix):
        return
    odd = {suffix for suffix in survey.ledger.suffixes if is_image_name(f"x{suffix}") is None}
    if not odd:
        return
    unpacked = (name for role in Role if role is not Role.PACKED for name in survey.ledger.names(role))
    if sum(map(survey.ledger.suffixes.__getitem__, odd)) == sum(suffix_for_count(name) in odd for name in unpacked):
        return
    keys = [entry.key for entry in source.entries() if is_image_name(entry.key.rpartition("/")[2]) is None]
    if keys and find_unread_file_kind(keys[0], source.tree.first_bytes(keys[0], UNREAD_BYTES)) is None:
        ends = {key: key.rpartition("/")[2].rpartition(".") for key in keys}
        patterns = dict.fromkeys(
            f"*.{escape_pattern(suffix)}" if dot and suffix else f"/{escape_pattern(key)}"
            for key, (_, dot, suffix) in ends.items()
        )
        more = f" and {len(keys) - 1:,} others" if len(keys) > 1 else ""
        note = f"leaves out {len(keys):,} image{'s' * (len(keys) > 1)}"
        raise AmbiguousSourceError(
            f"{printable(keys[0])}: is an image by its first bytes, but not by its name: rename it (.jpg, .png …)"
            f"{more}, or leave it out",
            [
                *([Answer(ignore_patterns(patterns), note=note)] if len(patterns) <= _MOST_PATTERNS else []),
                Answer(("--on-error", "skip"), note=note),
            ],
            source.path,
        )


def ask_about_clips(source: Source, survey: Survey) -> None:
    """Raises :class:`AmbiguousSourceError` if an image folder has several classes, all with names of clips:
    ``clip_0001`` …. Does nothing if the user has named the kind or the frames."""
    if source.options.named or source.options.frames is not None or source.kind != PLAIN_KINDS[0]:
        return
    classes = next((column.classes for column in survey.columns if column.name == "label"), None) or ()
    if len(classes) > 1 and all(map(is_clip_name, classes)):
        raise AmbiguousSourceError(
            f"{printable(str(source.path))}: its folders ({printable(classes[0])} …) seem to be clips, whose frames "
            "are not classes: --frames clips makes each a record, --source imagefolder a class",
            [Answer(("--frames", CLIPS)), Answer(("--source", source.kind))],
            source.path,
        )


def _find_partial_kinds(source: Source) -> list[Kind]:
    """Finds the kinds before its own in the registry that match the path of a source partially. Skips kinds that raise
    an error."""
    kinds: list[Kind] = []
    kind: Kind
    for kind in takewhile(lambda each: each.name != source.kind, SOURCES.values()):
        try:
            if kind.reads(source.path) and kind.recognise(source.path, source.options) is Certainty.PARTIAL:
                kinds.append(kind)
        except (PackstoreError, OSError):
            continue
    return kinds
