"""Errors that ask about images with annotations beside them, or about a folder that may be something else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.annotations import find_all_annotations
from packstore.sources.archives import open_tree
from packstore.sources.contents import Contents, FolderContents, list_contents
from packstore.sources.ignoring import ignore_patterns
from packstore.sources.labels import LabelsFile
from packstore.sources.mask_folders import (
    SuspectedAnnotation,
    find_masks,
    find_masks_by_ending,
    list_ending_patterns,
    mask_ignore_pattern,
)
from packstore.sources.splits import find_split, find_split_folders

_NAMED = 4


def unread_annotations_error(path: Path, kind: str) -> AmbiguousSourceError:
    """Returns the error for a folder with annotations that its kind of source does not read. The error names the
    first four of all suspected annotations, and offers answers."""
    tree = open_tree(path)
    annotations = [] if tree is None else find_all_annotations(tree)
    return _question_error(
        path, f"holds more than images: {_shorten_list([each.phrase for each in annotations])}", kind, annotations
    )


def ambiguous_source_error(path: Path, why: str, ignore: Sequence[str] = ()) -> AmbiguousSourceError:
    """Returns the error for a folder of images that may be something else. ``why`` is the reason, a phrase that
    continues the path. ``ignore`` are patterns to suggest for ``--ignore``."""
    return _question_error(path, why, "imagefolder", [SuspectedAnnotation("", tuple(ignore))] if ignore else [])


def _shorten_list(phrases: Sequence[str]) -> str:
    """Joins the first four phrases, and counts the others: ``a, b, c, d and 3 more``."""
    more = f" and {len(phrases) - _NAMED} more" if len(phrases) > _NAMED else ""
    return ", ".join(phrases[:_NAMED]) + more


def _question_error(path: Path, why: str, kind: str, found: Sequence[SuspectedAnnotation]) -> AmbiguousSourceError:
    """Returns the error for a folder of images, with the reason ``why`` and answers:

    - ``--labels`` for CSV files that name images;
    - how to pack the images alone;
    - ``--ignore`` for the patterns of ``found``, if there are at most four; if all are of masks, also for all but one.
    """
    tree = open_tree(path)
    contents = Contents({}) if tree is None else list_contents(tree)
    masks = find_masks(contents)
    alone, answers = _advise_images_alone(path, kind, contents)
    labels = _propose_labels_files(path, contents) if path.is_dir() else []
    patterns = list(dict.fromkeys(pattern for each in found for pattern in each.patterns))
    ignore = ""
    if patterns and len(patterns) <= _NAMED:
        answers = [*answers, Answer(ignore_patterns(patterns))]
        ignore = "; leave it out on purpose with " + " ".join(f"--ignore {pattern!r}" for pattern in patterns)
        if len(patterns) > 1 and {*patterns} <= {
            *(mask_ignore_pattern(contents, masks, place) for place in masks),
            *list_ending_patterns(contents),
        }:
            answers += [Answer(ignore_patterns([other for other in patterns if other != kept])) for kept in patterns]
            ignore += ", or all but one of them"
    return AmbiguousSourceError(
        f"{printable(str(path))} {why}. Pack the images alone {alone}; "
        "give labels in a CSV file (columns file,label) with --labels; or pack all of it from Python "
        f"(packstore guide packing){ignore}",
        [*labels, *answers],
        path,
    )


def _propose_labels_files(path: Path, contents: Contents) -> list[Answer]:
    """Proposes ``--labels`` for each of the first four CSV files whose first row names an image. If the names are
    relative to another folder than ``path``, the answer has that folder."""
    folders = list(contents.folders.values())
    files = [(folder.path, name) for folder in folders for name in _first_names(folder, ".csv")]
    answers = []
    for folder, name in files[:_NAMED]:
        file = path / folder / name
        try:
            first = next(LabelsFile(file).rows(), None)
        except SourceError:
            continue
        places = dict.fromkeys((path, *(path / each.path for each in folders if each.images.count)))
        place = None if first is None else next((each for each in places if (each / first.file).is_file()), None)
        if place is not None:
            answers.append(Answer(("--labels", str(file)), None if place == path else place))
    return answers


def _first_names(folder: FolderContents, suffix: str) -> tuple[str, ...]:
    """Returns the first names of files with a suffix in a folder, at most 64; empty if it has no such file."""
    return folder.others[suffix].first if suffix in folder.others else ()


def _advise_images_alone(path: Path, kind: str, contents: Contents) -> tuple[str, list[Answer]]:
    """Returns how to pack the images without annotations, in words and as answers. An answer is an option, or a folder
    to give instead. If files must be moved first, there are no answers."""
    masks = find_masks(contents)
    holding = [
        folder.path
        for folder in contents.folders.values()
        if folder.images.count and not any(f"{folder.path}/".startswith(f"{mask}/") for mask in masks)
    ]
    if any(find_masks_by_ending(contents)):
        return f"once the masks are elsewhere (--source {kind} packs both)", []
    if not holding:
        return "once they are there (masks and annotations seem to be all)", []
    shared = takewhile(lambda part: not find_split(part), os.path.commonpath(holding or [""]).split("/"))
    if common := "/".join(shared):
        return f"from their folder, {_printable_path(path, common)}", _folder_answers(path, [common])
    tops = {place.split("/")[0] for place in holding}
    others = set(contents.folders[""].folders) - tops if contents.folders else set()
    if holding == [""]:
        return "with --source flat", [Answer(("--source", "flat"))]
    if not masks and (not others or len(find_split_folders(tops)) == len(tops)):
        return f"with --source {kind}", [Answer(("--source", kind))]
    if len(holding) <= _NAMED:
        places = ", ".join(_printable_path(path, place) for place in holding)
        return f"from their folders: {places}", _folder_answers(path, holding)
    return f"with --source {kind}, once the rest is out of the folder", []


def _folder_answers(path: Path, folders: list[str]) -> list[Answer]:
    """Returns answers that give folders below ``path`` instead; none in an archive, whose folders are no paths."""
    return [Answer(source=path / folder) for folder in folders] if path.is_dir() else []


def _printable_path(path: Path, folder: str) -> str:
    """Formats the path of a folder below ``path`` for messages. If ``path`` is an archive, returns the folder's path
    inside the archive, followed by ``(unpack the archive)``."""
    return printable(str(path / folder) if path.is_dir() else f"{folder} (unpack the archive)")
