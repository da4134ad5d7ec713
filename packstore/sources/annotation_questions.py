"""Errors that ask about images with annotations beside them, or about a folder that may be something else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain, takewhile
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.annotations import (
    NAMES_IMAGES,
    find_all_annotations,
    find_image_companions,
    find_other_annotations,
)
from packstore.sources.archives import open_tree
from packstore.sources.companion_patterns import PAIR, SIDECAR, Companion, parse_pattern
from packstore.sources.contents import Contents, list_contents
from packstore.sources.flat import LabelsFile
from packstore.sources.ignoring import ignore_patterns
from packstore.sources.pairing import find_companions
from packstore.sources.splits import is_split

_NAMED = 4


def unread_annotations_error(path: Path, kind: str) -> AmbiguousSourceError:
    """Returns the error for a folder with annotations that its kind of source does not read. The error names the
    first four of all suspected annotations, and offers answers."""
    tree = open_tree(path)
    found = [] if tree is None else find_all_annotations(tree)
    named = [each.phrase for each in found]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    why = f"holds more than images: {', '.join(named[:_NAMED])}{more}"
    error = ambiguous_source_error(path, why, [pattern for each in found for pattern in each.patterns], kind)
    if any(each.phrase.endswith(NAMES_IMAGES) for each in found):
        error.answers = (*error.answers, Answer(("--source", "table")))
    return error


def companions_error(path: Path, plain: str) -> AmbiguousSourceError:
    """Returns the error for a folder with files that seem to belong to images. Its answers read them, or leave them
    out. ``plain`` is the kind that packs the images alone."""
    tree = open_tree(path)
    found = [] if tree is None else find_companions(tree)
    shown = ", ".join(f"{printable(each.phrase)} ({each.count} of {each.images})" for each in found[:_NAMED])
    answers = [
        Answer(tuple(chain.from_iterable(each.arguments for each in found))),
        Answer(ignore_patterns(dict.fromkeys(each.ignore for each in found))),
    ]
    if any(each.option == PAIR for each in found):
        answers.append(Answer(("--source", plain)))
    start = f"{printable(str(path))}: "
    if tree is not None and find_other_annotations(tree):
        error = unread_annotations_error(path, plain)
        start = f"{error.args[0]}; "
        answers += [each for each in error.answers if "--ignore" not in each.options]
    why = f"files seem to belong to its images by their names: {shown}"
    return AmbiguousSourceError(start + why, answers, path, lists_answers=True)


def has_sidecars(path: Path) -> bool:
    """Tells if files other than images seem to belong to images."""
    tree = open_tree(path)
    return tree is not None and any(each.option == SIDECAR for each in find_companions(tree))


def ambiguous_source_error(
    path: Path, why: str, ignore: Sequence[str] = (), kind: str = "imagefolder"
) -> AmbiguousSourceError:
    """Returns the error for a folder of images that may be something else than ``kind``. ``why`` is the reason, a
    phrase that continues the path. Its answers:

    - ``--labels`` for CSV files that name images;
    - how to pack the images alone;
    - ``--ignore`` for the patterns ``ignore``, if there are at most four.
    """
    tree = open_tree(path)
    contents = Contents({}) if tree is None else list_contents(tree)
    masks = [] if tree is None else find_image_companions(tree)
    answers = [*(_propose_labels_files(path, contents) if path.is_dir() else [])]
    answers += _pack_alone(path, kind, contents, masks)
    patterns = list(dict.fromkeys(ignore))
    if 0 < len(patterns) <= _NAMED:
        answers.append(Answer(ignore_patterns(patterns)))
    return AmbiguousSourceError(
        f"{printable(str(path))} {why}. Pack the images alone, give labels in a CSV file (columns file,label) with "
        "--labels, or pack all of it from Python (packstore guide packing)",
        answers,
        path,
        lists_answers=True,
    )


def _propose_labels_files(path: Path, contents: Contents) -> list[Answer]:
    """Proposes ``--labels`` for each of the first four CSV files whose first row names an image. If the names are
    relative to another folder than ``path``, the answer has that folder."""
    folders = list(contents.folders.values())
    files = [(each.path, name) for each in folders if ".csv" in each.others for name in each.others[".csv"].first]
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


def _pack_alone(path: Path, kind: str, contents: Contents, masks: Sequence[Companion]) -> list[Answer]:
    """Returns answers that pack the images without annotations: an option, or a folder to give instead. Empty if files
    must be moved first."""
    patterns = [parse_pattern(each.option, each.text) for each in masks]
    holding = [
        folder.path
        for folder in contents.folders.values()
        if (names := folder.images.first)
        and not any(pattern.matches_file(f"{folder.path}/{names[0]}".lstrip("/")) for pattern in patterns)
    ]
    if not holding or any("/" not in each.text for each in masks):
        return []
    shared = takewhile(lambda part: not is_split(part), os.path.commonpath(holding).split("/"))
    if common := "/".join(shared):
        return [Answer(source=path / common)] if path.is_dir() else []
    tops = {place.split("/")[0] for place in holding}
    others = set(contents.folders[""].folders) - tops if contents.folders else set()
    if holding == [""]:
        return [Answer(("--source", "flat"))]
    if not masks and (not others or all(map(is_split, tops))):
        return [Answer(("--source", kind))]
    return [Answer(source=path / folder) for folder in holding] if len(holding) <= _NAMED and path.is_dir() else []
