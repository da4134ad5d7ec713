"""Keys of samples in shards of WebDataset: which dot of a name ends the key, and if that can be meant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, UsageError, printable
from packstore.sources.column_options import KEY

_NUMBERED = re.compile(r"\d+[.][^.]+")
_VERSION = re.compile(r"(.*[^a-z])?v\d+", re.I)
_INDEX = re.compile(r"\d{3,}")
"""Usual key of a sample."""
_FEW = 3
FIRST_DOT, LAST_DOT = "first-dot", "last-dot"
_MANY = 8
"""Most images of a sample, and most columns of numbered images, that raise no question."""


def find_key_end(columns: Sequence[str]) -> str | None:
    """Returns the dot that ends keys by ``--column key=last-dot``; None without this option. Raises :class:`UsageError`
    for another value."""
    given = next((each.removeprefix(KEY) for each in columns if each.startswith(KEY)), None)
    if given not in (None, FIRST_DOT, LAST_DOT):
        raise UsageError(f"--column {KEY}{printable(given)}: expected {KEY}{FIRST_DOT} or {KEY}{LAST_DOT}")
    return given


def split_key(name: str, key_end: str | None = None) -> tuple[str, str]:
    """Splits a path into key and extension, at the first or last dot of the file's name. Removes ``./`` at the start of
    the path. The extension is in lower case."""
    folder, slash, base = name.removeprefix("./").rpartition("/")
    if key_end == LAST_DOT and "." in base:
        stem, _, extension = base.rpartition(".")
    else:
        stem, _, extension = base.partition(".")
    return f"{folder}{slash}{stem}", extension.lower()


def ask_about_dots(path: Path, counts: Mapping[tuple[str, ...], int], kinds: Mapping[str, str], example: str) -> None:
    """Raises :class:`AmbiguousSourceError` if dots seem to belong to the names of files, as in ``v1.0.jpg``.

    Args:
        path: The source.
        counts: Number of samples with the same extensions, by these extensions.
        kinds: Kind of content by extension.
        example: Key of a sample with the most files.
    """
    versions = _are_few_numbered(counts, kinds, example) or _are_numbered_pairs(counts, kinds)
    if not (versions or _have_several_stems(counts, kinds) or _have_many_images(counts, kinds)):
        return
    size = max(map(len, counts))
    shown = ", ".join(sorted(printable(f".{each}") for each in max(counts, key=len))[:4])
    raise AmbiguousSourceError(
        f"{printable(str(path))}: in WebDataset a key ends at the first dot of a file's name, so up to {size} "
        f"files are one sample: {printable(example)} with {shown} …. If such dots belong to the names, end keys at the "
        f"last dot with --column {KEY}{LAST_DOT}; if not, say --column {KEY}{FIRST_DOT}",
        [Answer(("--column", f"{KEY}{end}")) for end in (LAST_DOT, FIRST_DOT)],
        path,
    )


def _have_several_stems(counts: Mapping[tuple[str, ...], int], kinds: Mapping[str, str]) -> bool:
    """Tells if several parts before the last dot of extensions have an image and its label or text: ``0`` of ``0.jpg``
    and ``0.cls``. Words such as ``left`` and ``right`` may, if each is in half of the samples or more."""
    have: Counter[str] = Counter()
    for extensions, count in counts.items():
        parts = _find_paired_parts(extensions, kinds)
        if "" in parts:  # words beside it are further images of the sample: a.png, a.json, a.crop.png, a.crop.json
            parts = {part for part in parts if part == "" or part[:1].isdigit()}
        elif not _has_no_plain_file(extensions):
            continue
        have.update(dict.fromkeys(parts, count))
    total = sum(counts.values())
    usual = total > 1 and all(2 * count >= total and not part[:1].isdigit() for part, count in have.items())
    return len(have) > 1 and not usual


def _have_many_images(counts: Mapping[tuple[str, ...], int], kinds: Mapping[str, str]) -> bool:
    """Tells if a sample has many images, or if many numbers are parts of names of images: ``img.07.jpg``.

    Samples with a file without such a part (``img.cls``) do not count: it belongs to all their images."""
    images = [[e for e in extensions if kinds[e] == "image"] for extensions in counts if _has_no_plain_file(extensions)]
    numbered = {each for its in images for each in its if each[:1].isdigit()}
    return max(map(len, images), default=0) > _MANY or len(numbered) > _MANY


def _are_few_numbered(counts: Mapping[tuple[str, ...], int], kinds: Mapping[str, str], example: str) -> bool:
    """Tells if all files are images that a number tells apart, ``v1.0.jpg`` and ``v1.1.jpg``, and numbers may belong to
    the names: there are at most three such samples, or the key is that of a version."""
    if not all(kinds[each] == "image" and _NUMBERED.fullmatch(each) for extensions in counts for each in extensions):
        return False
    name = example.rpartition("/")[2]
    few = sum(counts.values()) <= _FEW and not _INDEX.fullmatch(name)
    return max(map(len, counts)) > 1 and (few or _VERSION.fullmatch(name) is not None)


def _are_numbered_pairs(counts: Mapping[tuple[str, ...], int], kinds: Mapping[str, str]) -> bool:
    """Tells if every sample is an image and other files with one number: ``5.jpg`` and ``5.cls`` of ``img_0.5``."""
    parts = [{each.rpartition(".")[0] for each in extensions} for extensions in counts]
    numbered = all(len(its) == 1 and min(its)[:1].isdigit() for its in parts)
    return numbered and any(_find_paired_parts(extensions, kinds) for extensions in counts)


def _has_no_plain_file(extensions: Sequence[str]) -> bool:
    """Tells if each extension of a sample has a part before its last dot."""
    return all("." in each for each in extensions)


def _find_paired_parts(extensions: Sequence[str], kinds: Mapping[str, str]) -> set[str]:
    """Finds the parts before the last dot of a sample's extensions that have an image and a file of another known
    kind."""
    by_part: dict[str, set[bool]] = {}
    for extension in extensions:
        if kinds[extension] != "bytes":
            by_part.setdefault(extension.rpartition(".")[0], set()).add(kinds[extension] == "image")
    return {part for part, found in by_part.items() if len(found) > 1}
