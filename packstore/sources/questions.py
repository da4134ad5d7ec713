"""Questions about a source: what is wrong, where, and the lines to try.

:func:`ask` words all of them. Their lines are candidates, which :mod:`.answers` tries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, PackstoreError, printable
from packstore.core.registry import SOURCES
from packstore.images.reading import CLIPS
from packstore.images.sniff import UNREAD_BYTES, find_unread_file_kind
from packstore.sources.annotations import (
    NAMES_IMAGES,
    SuspectedAnnotation,
    find_left_annotations,
    find_other_annotations,
)
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, Source, SourceOptions, Survey
from packstore.sources.companion_patterns import PAIR, Companion
from packstore.sources.contents import is_clip_name
from packstore.sources.folder import FolderSource
from packstore.sources.ignoring import compile_ignore_rules, escape_pattern, ignore_paths, ignore_patterns
from packstore.sources.ledger import Role, suffix_for_count
from packstore.sources.listing import is_image_name
from packstore.sources.pairing import find_companions
from packstore.sources.splits import find_split
from packstore.sources.tree import Tree

# Kind of images with files that belong to them; a question if it is not certain what the files are.
COMPANIONS = "companions"
# Kinds that match partially if there are annotations beside the images, see :mod:`.annotations`.
PLAIN_KINDS = ("imagefolder", "flat")
_SHOWN, _NAMED, _MOST_PATTERNS = 8, 4, 8


def ask(path: Path, why: str, *lines: Answer | Kind) -> AmbiguousSourceError:
    """Returns a question about a path. ``why`` continues the path. ``lines`` are the answers to try; a kind stands for
    the option that names it."""
    answers = [each if isinstance(each, Answer) else Answer(("--source", each.name)) for each in lines]
    return AmbiguousSourceError(f"{printable(str(path))} {why}", answers, path, lists_answers=True)


def join_few(names: Sequence[str]) -> str:
    """Joins the first eight names for messages."""
    return ", ".join(map(printable, names[:_SHOWN])) + (" …" if len(names) > _SHOWN else "")


def short_help(kind: Kind) -> str:
    """Returns the description of a kind up to its first comma or colon, without parentheses."""
    return re.sub(r" \(.*\)|[,:].*", "", kind.help)


def name_splits(folders: Mapping[str, str], *further: str) -> Answer:
    """Returns the answer that makes folders splits; ``folders`` has the name of the split of each path. ``further`` are
    more options."""
    splits = ",".join(f"{split}=/{escape_pattern(path)}" for path, split in folders.items())
    return Answer(("--splits", splits, *further))


def ask_about_nested(path: Path, found: Sequence[tuple[Path, Kind]], *kinds: Kind) -> AmbiguousSourceError:
    """Returns the question about a folder that is no dataset, but contains the datasets ``found``."""
    shown = ", ".join(f"{printable(place.relative_to(path).as_posix())} ({short_help(each)})" for place, each in found)
    lines = (Answer(source=place) for place, _ in found)
    return ask(path, f"seems to be no dataset itself, but to hold {shown}", *lines, *kinds)


def ask_about_annotations(
    path: Path, kind: Kind, found: Sequence[SuspectedAnnotation], holds_forms: bool = False, others: Iterable[Kind] = ()
) -> AmbiguousSourceError:
    """Returns the question about a path that would lose possible annotations as ``kind``; ``others`` are further kinds
    to try. With ``holds_forms``, naming this kind would pack masks and the like as samples, and is no answer."""
    shown = join_phrases(found) or "other folders of images"
    tables = [SOURCES["table"]] if any(each.phrase.endswith(NAMES_IMAGES) for each in found) else []
    why = f"is {short_help(kind)}, and would be packed without what else is there: {shown}"
    return ask(path, why, *leave_out(found), *([] if holds_forms else [kind]), *dict.fromkeys([*tables, *others]))


def ask_about_companions(path: Path, plain: Kind, *kinds: Kind) -> AmbiguousSourceError:
    """Returns the question about files that seem to belong to images. The answers read them, leave them out, or pack
    other forms of images as samples of the ``plain`` kind or of ``kinds``.
    """
    tree = open_tree(path)
    found = [] if tree is None else find_companions(tree)
    shown = ", ".join(f"{printable(each.phrase)} ({each.count} of {each.images})" for each in found[:_NAMED])
    ignored = Answer(ignore_patterns(dict.fromkeys(each.ignore for each in found)))
    suspects = [] if tree is None else find_other_annotations(tree)
    noted = f"; and holds {join_phrases(suspects)}" if suspects else ""
    samples = [plain] if any(each.option == PAIR for each in found) else []
    why = f"has files that seem to belong to its images by their names: {shown}{noted}"
    return ask(path, why, *read_companions(found), ignored, *samples, *kinds)


def read_companions(found: Sequence[Companion]) -> Iterator[Answer]:
    """Yields the answers that read all companions, and only those that are certain. If folders of different images
    belong to one, first yields the answer by which this one belongs to them."""
    pairs = [each.text.partition("=")[::2] for each in found]
    apart = len(found) > 1 and sum(each.count for each in found) <= found[0].images
    if apart and all(each.option == PAIR for each in found) and len({images for images, _ in pairs}) == 1:
        yield Answer(tuple(chain.from_iterable(("--pair", f"{files}={images}") for images, files in pairs)))
    certain = [each for each in found if each.certain]
    for some in (found, certain if len(certain) < len(found) else []):
        if some:
            yield Answer(tuple(chain.from_iterable(each.arguments for each in some)))


def join_phrases(found: Sequence[SuspectedAnnotation]) -> str:
    """Joins the phrases about the first eight suspected annotations."""
    return ", ".join(each.phrase for each in found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")


def leave_out(found: Sequence[SuspectedAnnotation]) -> list[Answer]:
    """Returns the answer that leaves out suspected annotations; empty if a pattern is missing, or they are more than
    eight.
    """
    patterns = list(dict.fromkeys(chain.from_iterable(each.patterns for each in found)))
    if not (0 < len(patterns) <= _MOST_PATTERNS and all(each.patterns for each in found)):
        return []
    return [Answer(ignore_patterns(patterns))]


def ask_about_folders(path: Path, why: str, folders: Sequence[str], may_be_splits: bool) -> AmbiguousSourceError:
    """Returns the question about an image folder whose ``folders`` do not seem to be classes."""
    lines = [Answer(source=path / name) for name in folders[:_SHOWN] if path.is_dir()]
    if may_be_splits and len(folders) > 1:
        lines.append(name_splits({name: name.rpartition("/")[2] for name in folders}))
    return ask(path, why, *lines, Answer(ignore_paths(folders)), SOURCES["imagefolder"])


def find_left_by_source(source: Source, survey: Survey) -> list[SuspectedAnnotation]:
    """Finds the possible annotations among the files that a source leaves out. Finds none for published datasets, and
    for sources without a tree."""
    tree = getattr(source, "tree", None)
    if not source.asks_about_left or not isinstance(tree, Tree) or not survey.ledger.count(Role.LEFT):
        return []
    left = survey.ledger.names(Role.LEFT)
    rules = compile_ignore_rules(source.options.ignore)
    return find_left_annotations(tree, (path for path in left if not (rules.hides(path) or source.expects_left(path))))


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
        others = _find_other_kinds(source)
        raise ask_about_annotations(source.path, SOURCES[source.kind], annotations, others=others)


def _find_other_kinds(source: Source) -> Iterator[Kind]:
    """Yields the kinds of annotations, other than its own, that match the path of a source."""
    for kind in map(SOURCES.__getitem__, SOURCES.built_in):
        if kind.name not in (source.kind, COMPANIONS, *PLAIN_KINDS) and kind.reads(source.path):
            with suppress(PackstoreError, OSError):
                if kind.recognise(source.path, SourceOptions()) >= Certainty.PARTIAL:
                    yield kind


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
        note = f"leaves out {len(keys):,} image{'s' * (len(keys) > 1)}"
        lines = [ignore_paths(keys)] if len(keys) <= _MOST_PATTERNS else []
        why = f"has {len(keys):,} images without the suffix of one; rename them (.jpg, .png …): {join_few(keys)}"
        raise ask(source.path, why, *(Answer(line, note=note) for line in (*lines, ("--on-error", "skip"))))


def ask_about_classes(source: Source, survey: Survey) -> None:
    """Raises :class:`AmbiguousSourceError` for names that do not seem to be those of classes or splits. Does nothing if
    the user has named the kind.

    - Folders are called as clips are: ``clip_0001``.
    - Tables whose names are no splits name different images.
    """
    if source.options.named or source.options.frames is not None or survey.store is not None:
        return
    splits = [*survey.splits]
    unlike = not any(find_split(name) or name[-1:].isdigit() for name in splits)
    if source.kind == "table" and len(splits) > 1 and unlike and not source.options.columns:
        raise ask(source.path, f"has tables that are splits or classes ({join_few(splits)})", SOURCES["table"])
    if source.kind != PLAIN_KINDS[0]:
        return
    classes = next((column.classes for column in survey.columns if column.name == "label"), None) or ()
    if len(classes) > 1 and all(map(is_clip_name, classes)):
        why = f"has folders that seem to be clips ({join_few(classes)}), whose frames are not classes"
        raise ask(source.path, why, Answer(("--frames", CLIPS)), SOURCES[source.kind])
