"""Errors for paths that are not a source, or that the user must decide about."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.images.sniff import IS_LFS_POINTER, LFS_POINTER, HeaderError, sniff
from packstore.sources.base import Kind
from packstore.sources.ignoring import escape_pattern, ignore_paths, ignore_patterns
from packstore.sources.listing import no_images_message
from packstore.sources.tree import Tree

SEE_GUIDE = "see packstore guide sources"
TABLES = (".csv", ".tsv")
_SHOWN = 8
_HEADER = 1 << 20  # enough for the header of any image but one with a megabyte of metadata before it
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<!--.*?-->\s*)?<(?:!doctype\s+html|html)\b", re.I | re.S)
_ARCHIVES = (b"\x1f\x8b\x08", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"Rar!\x1a\x07", b"7z\xbc\xaf\x27\x1c")
"""First bytes of gzip, zip, bzip2, xz, RAR and 7z files."""


class NeedsCopyError(SourceError):
    """Raised for a URL that is not a folder of images. If it is a source, it can be read only from local copies."""


def unrecognised_error(path: Path) -> SourceError:
    """Returns the error for a path of no known kind. Its message depends on the first bytes: empty, one image, an
    archive …. Raises :class:`SourceError` for a saved web page, and for a file that cannot be read."""
    name = printable(str(path))
    start = first_bytes(path, _HEADER)
    if path.is_file() and not start:
        return SourceError(f"{name} is an empty file")
    begins = _describe_start(start)
    if path.name == "data.mdb":
        return SourceError(f"{name} is the data file of an LMDB: give its directory, {printable(str(path.parent))}")
    if _is_image(start):
        return _single_image_error(name)
    if start.startswith(LFS_POINTER):
        return SourceError(f"{name} {IS_LFS_POINTER}")
    refuse_page(path)
    if start.startswith(_ARCHIVES):
        return SourceError(f"{name} is an archive{begins} of no known kind: unpack it, and give the folder")
    if path.suffix.lower() in TABLES:
        return SourceError(
            f"{name} is a file{begins}, and names no image of its folder: move it to the images; or give the folder of "
            f"the images, and --labels {name} (columns file,label)"
        )
    return SourceError(f"{name} is a file{begins}: neither a store nor a source that packstore reads ({SEE_GUIDE})")


def incomplete_error(path: Path, kind: Kind, found: Sequence[tuple[str, Sequence[str]]]) -> AmbiguousSourceError:
    """Returns the error for a path that would lose possible annotations as ``kind``. Its answers confirm the kind, or
    ignore the annotations.

    ``found`` has, for each group of annotations, its description and its patterns for ``--ignore``. The message shows
    eight descriptions. Ignoring is offered only if there are at most eight patterns, and at least one for each group.
    """
    more = ", ".join(phrase for phrase, _ in found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
    patterns = list(dict.fromkeys(pattern for _, each in found for pattern in each))
    answers = [Answer(("--source", kind.name))]
    if 0 < len(patterns) <= _SHOWN and all(each for _, each in found):
        answers.insert(0, Answer(ignore_patterns(patterns)))
    return AmbiguousSourceError(
        f"{printable(str(path))} is {short_help(kind)}, and would be packed without what else is there: "
        f"{more or 'other folders of images'}",
        answers,
        path,
        lists_answers=True,
    )


def several_kinds_error(path: Path, kinds: Sequence[Kind]) -> AmbiguousSourceError:
    """Returns the error for a path that several ``kinds`` match partially. The user must choose one."""
    could_be = " or ".join(short_help(kind) for kind in kinds)
    answers = [Answer(("--source", kind.name)) for kind in kinds]
    shown = " or ".join(f"--source {kind.name}" for kind in kinds)
    return AmbiguousSourceError(f"{printable(str(path))} could be {could_be}: say which, with {shown}", answers, path)


def add_kinds(
    error: AmbiguousSourceError, first: Sequence[Kind] = (), last: Sequence[Kind] = ()
) -> AmbiguousSourceError:
    """Adds kinds to the answers of an error, before and after the others, and returns the error."""
    before, after = ([Answer(("--source", kind.name)) for kind in kinds] for kinds in (first, last))
    error.answers = (*before, *error.answers, *after)
    return error


def nested_error(path: Path, found: Sequence[tuple[Path, Kind]], kind: str | None = None) -> AmbiguousSourceError:
    """Returns the error for a folder that is not a dataset, but contains the datasets ``found``. ``kind`` adds the
    answer to pack the folder as that kind."""
    shown = ", ".join(f"{printable(place.relative_to(path).as_posix())} ({short_help(each)})" for place, each in found)
    advice = "give that" if len(found) == 1 else "give one of them"
    answers = [Answer(source=place) for place, _ in found]
    if kind is not None:
        advice += f", or with --source {kind} pack it as the only class"
        answers.append(Answer(("--source", kind)))
    return AmbiguousSourceError(
        f"{printable(str(path))} seems to be no dataset itself, but to hold {shown}: {advice}", answers, path
    )


def no_classes_error(
    path: Path, why: str, folders: Sequence[str], may_be_splits: bool, kind: str
) -> AmbiguousSourceError:
    """Returns the error for an image folder whose folders do not seem to be classes. Its answers name at most eight
    folders. ``why`` is the reason, a phrase that continues the path."""
    answers = [Answer(source=path / name) for name in folders[:_SHOWN] if path.is_dir()]
    if may_be_splits and len(folders) > 1:
        answers.append(name_splits({name: name.rpartition("/")[2] for name in folders}))
    answers.append(Answer(ignore_paths(folders)))  # dropped when it is tried, if these are all folders
    unpack = "" if path.is_dir() else f": unpack it to give one of them ({join_few(folders)})"
    answers.append(Answer(("--source", kind)))
    return AmbiguousSourceError(f"{printable(str(path))} {why}{unpack}", answers, path, lists_answers=True)


def name_splits(folders: Mapping[str, str]) -> Answer:
    """Returns the answer that makes folders splits; ``folders`` has the name of the split of each path."""
    return Answer(("--splits", ",".join(f"{split}=/{escape_pattern(path)}" for path, split in folders.items())))


def join_few(names: Sequence[str]) -> str:
    """Joins the first eight names for messages."""
    return ", ".join(map(printable, names[:_SHOWN])) + (" …" if len(names) > _SHOWN else "")


def few_annotations_error(path: Path, kind: Kind, count: int, images: int) -> AmbiguousSourceError:
    """Returns the error for folders of images, ``count`` of which have annotations of ``kind`` beside them."""
    answers = [Answer(("--source", name)) for name in (kind.name, "imagefolder")]
    return AmbiguousSourceError(
        f"{printable(str(path))}: {count:,} of {images:,} images have annotations beside them ({short_help(kind)}), "
        f"and the folders may be classes. --source {kind.name} packs the annotations, and leaves out folders without "
        "any; --source imagefolder packs the classes, and leaves out the annotations",
        answers,
        path,
    )


def archive_without_images_error(path: Path, tree: Tree) -> SourceError:
    """Returns the error for an archive without images. Walks the archive to count its other files."""
    passed: Counter[str] = Counter()
    for _ in tree.walk("", tree.above, passed, skip_cycles=True):
        continue
    advice = "archives of other data are read only once they are unpacked: unpack it, and give the folder"
    return SourceError(no_images_message(printable(str(path)), passed, advice))


def short_help(kind: Kind) -> str:
    """Returns the description of a kind up to its first comma or colon, without parentheses."""
    return re.sub(r" \(.*\)|[,:].*", "", kind.help)


def not_a_folder_error(path: Path) -> SourceError:
    """Returns the error for a file in place of a folder of images. Its message depends on the first bytes. Raises
    :class:`SourceError` if the file cannot be read."""
    name = printable(str(path))
    start = first_bytes(path, _HEADER)
    return _single_image_error(name) if _is_image(start) else SourceError(
        f"{name} is a file{_describe_start(start)}, not a folder of images"
    )  # fmt: skip


def refuse_page(path: Path) -> None:
    """Raises :class:`SourceError` for a web page that was saved instead of data, and for an unreadable file. Reads 512
    bytes."""
    if _PAGE.match(first_bytes(path, 512)):
        raise SourceError(
            f"{printable(str(path))} is a web page (HTML), and no {printable(path.suffix) or 'data'}: its server asks "
            "for a login or a confirmation, or has moved it; download it again"
        )


def first_bytes(path: Path, size: int = 8) -> bytes:
    """Reads the first ``size`` bytes of a file; empty if ``path`` is not a regular file. Raises :class:`SourceError`
    if the file cannot be read."""
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None


def _single_image_error(name: str) -> SourceError:
    """Returns the error for an image file in place of a folder; ``name`` is printable."""
    return SourceError(f"{name} is one image; give a folder of images")


def _is_image(start: bytes) -> bool:
    """Tells if the beginning of a file has the header of an image."""
    try:
        sniff(start)
    except HeaderError:
        return False
    return True


def _describe_start(start: bytes) -> str:
    """Returns a phrase with the first bytes of a file; empty for no bytes."""
    return f" that begins with {start[:8]!r}" if start else ""
