"""Images with a text each, in a column ``caption``: the layout of diffusers and kohya."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from packstore.core.errors import SourceError, printable
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.companion_patterns import SIDECAR, CompanionPattern, parse_pattern
from packstore.sources.companions import CompanionsSource
from packstore.sources.contents import list_contents
from packstore.sources.pairing import PROSE, find_companions
from packstore.sources.splits import find_splits_of_folders
from packstore.sources.tree import Tree

_REPEATS = re.compile(r"\d+_.+")
"""Folders of kohya, whose number tells how often to repeat their images."""


class CaptionFilesSource(CompanionsSource):
    """Images with a text each, ``a.jpg`` and ``a.txt`` or ``a.caption``, in the column ``caption``. The folder of an
    image is a text, too."""

    kind = "caption_files"
    left_companions = None
    folder_texts = True

    def _find_patterns(self) -> tuple[CompanionPattern, ...]:
        """Returns the pattern of the texts. Raises :class:`SourceError` if there are none."""
        pattern = _find_captions(self.tree)
        if pattern is None:
            raise SourceError(f"{printable(str(self.path))} has no images with a text each (a.jpg, a.txt)")
        return (pattern,)

    def _name_columns(self) -> Mapping[str, Sequence[CompanionPattern]]:
        """Returns the only column."""
        return {"caption": self._patterns}


def _find_captions(tree: Tree) -> CompanionPattern | None:
    """Returns the pattern of the only texts that have the stems of at least half of the images; else None."""
    contents = list_contents(tree)
    counts = {
        suffix: sum(
            each.images.count_shared(each.others[suffix]) for each in contents.folders.values() if suffix in each.others
        )
        for suffix in PROSE
    }
    suffixes = [suffix for suffix, count in counts.items() if count]
    if len(suffixes) != 1 or 2 * counts[suffixes[0]] < contents.image_count:
        return None
    return parse_pattern(SIDECAR, f"{{s}}.*={{s}}{suffixes[0]}=text")


def _recognise_captions(path: Path, options: SourceOptions) -> Certainty:
    """Certain if at least half of the images have a text, and all texts are for people, else ``NO``. Partial if several
    folders of images may be classes. Raises :class:`AmbiguousSourceError` for texts of an unknown encoding."""
    tree = open_tree(path)
    if tree is None or _find_captions(tree) is None:
        return Certainty.NO
    if not CaptionFilesSource(path, options).has_plain_texts():
        return Certainty.NO
    if any(each.option != SIDECAR for each in find_companions(tree)):
        return Certainty.NO  # masks or further images would be samples
    holding = [folder for folder, each in list_contents(tree).folders.items() if each.images.count]
    splits = find_splits_of_folders(holding)
    plain = {f for f in holding if f not in splits and not _REPEATS.fullmatch(f.rpartition("/")[2])}
    return Certainty.CERTAIN if len(plain) < 2 else Certainty.PARTIAL


KIND = Kind(
    "caption_files",
    "images with a text each: a.jpg and a.txt",
    _recognise_captions,
    CaptionFilesSource,
    in_objects=True,
)
