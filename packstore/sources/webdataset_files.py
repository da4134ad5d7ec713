"""Files in shards of WebDataset: which of them are a sample, which dot of a name ends its key and if that can be meant,
and their values by extension."""

from __future__ import annotations

import io
import re
import tarfile
import tokenize
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, UsageError, printable
from packstore.core.plainjson import load_json, parse_float64
from packstore.sources.archives.tar import TAR_FAULTS, OpenTar, states_utf8
from packstore.sources.columns import make_column_name
from packstore.sources.encodings import KEY, choose_name_encoding, to_utf8
from packstore.sources.listing import IMAGE_SUFFIXES

LABELS = frozenset(("cls", "class"))
_KINDS = {
    **dict.fromkeys((suffix[1:] for suffix in IMAGE_SUFFIXES), "image"),
    **dict.fromkeys((*LABELS, *(f"cls{digit}" for digit in "0123456789")), "label"),
    **dict.fromkeys(("txt", "text", "transcript"), "text"),
    **dict.fromkeys(("json", "jsn"), "json"),
    **dict.fromkeys(("count", "index", "inx", "id"), "number"),
    **dict.fromkeys(("pyd", "pickle", "pkl", "pth", "pt"), "pickle"),
    "npy": "array",
}
"""Kinds of content by the last part of an extension; others are bytes."""
_PER_FILE = 4
"""Numbers of a file in :attr:`ShardIndex.files`."""
_NUMBERED = re.compile(r"\d+[.][^.]+")
_VERSION = re.compile(r"(.*[^a-z])?v\d+", re.I)
_INDEX = re.compile(r"\d{3,}")
"""Usual key of a sample."""
_FEW = 3
FIRST_DOT, LAST_DOT = "first-dot", "last-dot"
_MANY = 8
"""Most images of a sample, and most columns of numbered images, that raise no question."""


@dataclass(slots=True)
class ShardIndex:
    """Index of the samples of a shard. A sample takes 8 bytes, 32 bytes for each file, and its key.

    Attributes:
        keys: Keys of the samples.
        counts: Number of files of each sample.
        files: Four numbers for each file: its extension, offset, size and time of modification.
        left: Number of members that are not part of a sample, by reason.
        alike: Number of samples with the same extensions, by the numbers of the extensions. Questions about all samples
            need no loop over them.
        joined: True if files of a sample lay apart in the shard.
    """

    keys: list[str] = field(default_factory=list)
    counts: array[int] = field(default_factory=lambda: array("q"))
    files: array[int] = field(default_factory=lambda: array("q"))
    left: Counter[str] = field(default_factory=Counter)
    alike: Counter[tuple[int, ...]] = field(default_factory=Counter)
    joined: bool = False

    def walk_samples(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yields the key of each sample, and the numbers of its files' extensions."""
        extensions = iter(self.files[::_PER_FILE])
        return ((key, tuple(islice(extensions, count))) for key, count in zip(self.keys, self.counts, strict=True))


def read_shard_index(
    tar: OpenTar,
    path: Path,
    numbers: dict[str, int],
    key_end: str | None = None,
    encoding: str | None = None,
    *,
    keeps_names: bool = False,
) -> ShardIndex:
    """Reads the index of a shard from the headers of its members. Files of one key are a sample, wherever they lie.

    ``numbers`` has the number of each extension; adds new extensions. ``key_end``: the dot that ends a key.
    ``encoding``: encoding of names that are not UTF-8. ``keeps_names``: they keep their bytes. Raises
    :class:`SourceError` for a damaged tar, and :class:`AmbiguousSourceError` for names in an unknown encoding.
    """
    found, unstated = dict(numbers), list[bytes]()
    index = _index_samples(tar, path, found, key_end, "utf-8", unstated)
    chosen = "utf-8" if keeps_names else choose_name_encoding(unstated, encoding, printable(str(path)))
    if chosen != "utf-8":  # rare, so that most shards are read once
        found = dict(numbers)
        index = _index_samples(tar, path, found, key_end, chosen, unstated)
    numbers.update(found)
    return index


def _index_samples(
    tar: OpenTar, path: Path, numbers: dict[str, int], key_end: str | None, encoding: str, unstated: list[bytes]
) -> ShardIndex:
    """Reads the index of a shard. Decodes names that do not state to be UTF-8 by ``encoding``, and adds them to
    ``unstated``."""
    index = ShardIndex()

    def read_name(member: tarfile.TarInfo) -> str:
        if member.name.isascii() or states_utf8(member):
            return member.name
        unstated.append(member.name.encode("utf-8", "surrogateescape"))
        return unstated[-1].decode(encoding, "surrogateescape")

    try:
        members = (member for member in _resolve_hard_links(tar) if _is_sample_file(member, index.left))
        named = ((*split_key(read_name(member), key_end), member) for member in members)
        for key, group in groupby(named, key=itemgetter(0)):
            files = [(extension, member) for _, extension, member in group]
            index.keys.append(key)
            index.counts.append(len(files))
            for extension, member in files:
                number = numbers.setdefault(extension, len(numbers))
                modified = int(member.mtime) * 10**9 if 0 <= member.mtime < 2**33 else 0
                index.files.extend((number, member.offset_data, member.size, modified))
    except TAR_FAULTS as error:
        raise SourceError(f"{printable(str(path))} is not a readable tar, or it is damaged: {error}") from None
    if len({*index.keys}) < len(index.keys):
        _join_parts(index)
    index.alike.update(numbers for _, numbers in index.walk_samples())
    return index


def _join_parts(index: ShardIndex) -> None:
    """Joins the samples of one key whose files lie apart in the tar. The first file gives the sample its place.

    A sample does not get a second file of an extension: the key is then that of another sample.
    """
    starts = [0, *(_PER_FILE * total for total in accumulate(index.counts))]
    parts: list[list[int]] = []
    by_key: dict[str, list[list[int]]] = {}
    for part, key in enumerate(index.keys):
        own = {*index.files[starts[part] : starts[part + 1] : _PER_FILE]}
        for sample in by_key.setdefault(key, []):
            if all(own.isdisjoint(index.files[starts[n] : starts[n + 1] : _PER_FILE]) for n in sample):
                sample.append(part)
                break
        else:
            parts.append([part])
            by_key[key].append(parts[-1])
    files: array[int] = array("q")
    for sample in parts:
        for part in sample:
            files.extend(index.files[starts[part] : starts[part + 1]])
    index.joined = len(parts) < len(index.keys)
    index.counts = array("q", [sum(index.counts[part] for part in sample) for sample in parts])
    index.keys, index.files = [index.keys[sample[0]] for sample in parts], files


def refuse_scattered_samples(paths: Sequence[Path], indexes: Sequence[ShardIndex], kinds: Sequence[str]) -> None:
    """Raises :class:`SourceError` if a sample has its image in one shard or folder and other files in another. Such
    another folder has no images.

    ``kinds``: kind of content of each extension, by its number.
    """
    if all(_has_kind(numbers, kinds, "image") for index in indexes for numbers in index.alike):
        return

    def walk(with_image: bool) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        samples = ((shard, *sample) for shard, index in enumerate(indexes) for sample in index.walk_samples())
        return (sample for sample in samples if _has_kind(sample[2], kinds, "image") is with_image)

    without = {key: (shard, its) for shard, key, its in walk(with_image=False)}
    with_images = {key.rpartition("/")[0] for _, key, _ in walk(with_image=True)}
    apart = {key.rpartition("/")[2]: key for key in without if key.rpartition("/")[0] not in with_images}
    for shard, key, numbers in walk(with_image=True):
        other = apart.get(key.rpartition("/")[2], key)
        place, further = without.get(other, (shard, numbers))
        if (place, other) != (shard, key) and {*numbers}.isdisjoint(further):
            where = " and ".join(printable(paths[each].name) for each in sorted({shard, place}))
            raise SourceError(
                f"{printable(str(paths[shard] if len(paths) == 1 else paths[shard].parent))}: {printable(key)} and "
                f"{printable(other)} of {where} look like one sample, but the files of a sample belong in one folder "
                "of one shard. Unpack all shards into one folder F, move the files of each sample to one folder there, "
                "and pack them again sorted by name: tar --sort=name -cf sorted.tar -C F ."
            )


def _has_kind(numbers: Iterable[int], kinds: Sequence[str], kind: str) -> bool:
    """Tells if one of the extensions, given by number, is of a kind of content."""
    return any(kinds[number] == kind for number in numbers)


def _resolve_hard_links(tar: OpenTar) -> Iterator[tarfile.TarInfo]:
    """Yields all members. A hard link to an earlier file becomes a file with the same content. Other hard links stay
    links."""
    known: dict[str, tarfile.TarInfo] | None = None
    for number, member in enumerate(tar.walk_members()):
        if member.islnk():
            if known is None:  # links are rare
                before = islice(tar.walk_members(), number)
                known = {each.name.removeprefix("./"): each for each in before if each.isreg()}
            target = known.get(member.linkname.removeprefix("./"))
            if target is not None:
                member.type, member.size, member.offset_data = tarfile.REGTYPE, target.size, target.offset_data
        if known is not None and member.isreg():
            known[member.name.removeprefix("./")] = member
        yield member


def _is_sample_file(member: tarfile.TarInfo, left: Counter[str]) -> bool:
    """Tells if a member of a shard is a file of a sample. Counts other members, except folders, in ``left``."""
    if member.isreg() and not is_hidden(member.name):
        return True
    if not member.isdir():
        left["hidden members" if member.isreg() else "members that are links or devices"] += 1
    return False


def is_hidden(name: str) -> bool:
    """Tells if a member is hidden: its name begins with a dot or two underscores."""
    return name.rpartition("/")[2].startswith((".", "__"))


def content_kind(extension: str) -> str:
    """Returns the kind of content of a file, by the last part of its extension. Kinds are ``image``, ``label``,
    ``text``, ``json``, ``number``, ``pickle`` and ``array``; ``bytes`` for all others."""
    return _KINDS.get(extension.rpartition(".")[2], "bytes")


def make_usual_column(extension: str) -> str:
    """Returns the usual column of files with an extension: ``image`` for ``jpg``, ``left``
    for ``left.jpg`` …. Files called ``image`` that are no images get ``image_``."""
    first, _, last = extension.rpartition(".")
    usual = {"image": "image", "label": "label", "text": "text", "json": "json"}
    name = first or usual.get(content_kind(extension), last)
    return "image_" if name == "image" != content_kind(extension) else make_column_name(name)


def make_own_column(extension: str) -> str:
    """Returns a column named after the extension, for files whose usual column is taken.

    Example: ``png`` for the masks beside ``jpg``. The extension ``image`` gets ``image_``."""
    name = make_column_name(extension)
    return f"{name}_" if name == "image" else name


def decode_file(extension: str, data: bytes, encoding: str | None = None) -> Any:
    """Decodes the content of a file by its extension. Decodes numbers, texts, JSON and ``.npy``; other content stays
    bytes. Raises :class:`ValueError` for damaged content, and :class:`AmbiguousSourceError` for a text in an unknown
    encoding.

    ``encoding``: Encoding of texts that are not UTF-8; None if the user has named none.
    """
    kind = content_kind(extension)
    if kind in ("text", "json"):
        data = to_utf8(data, encoding, f".{extension}")
    try:
        return _DECODERS[kind](data) if kind in _DECODERS else data
    except (*TAR_FAULTS, TypeError, SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f".{extension}: {error}") from None


def _parse_number(data: bytes) -> int:
    """Parses a number of 64 bits. Raises :class:`ValueError` for any other text."""
    text = data.decode("utf-8").strip()
    if not re.fullmatch(r"[+-]?\d{1,19}", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(f"found {text[:40]!r}, expected a number")
    return int(text)


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "label": _parse_number, "number": _parse_number, "text": bytes.decode,
    "json": partial(load_json, parse_float=parse_float64),
    "array": lambda data: np.lib.format.read_array(io.BytesIO(data), allow_pickle=False),
}  # fmt: skip
"""Decoders by kind of content."""


def has_image_pair(extensions: set[str]) -> bool:
    """Tells if a sample has an image and another known file, or two images."""
    images = {name for name in extensions if content_kind(name) == "image"}
    others = {name.rpartition(".")[2] for name in extensions - images}
    return bool(images) and (len(images) > 1 or not others.isdisjoint((*_KINDS, "npz")))


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
    few = _are_few_numbered(counts, kinds, example)
    if not few and not _have_paired_parts(counts, kinds) and not _have_many_images(counts, kinds):
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


def _have_paired_parts(counts: Mapping[tuple[str, ...], int], kinds: Mapping[str, str]) -> bool:
    """Tells if parts before the last dot of extensions have an image and its label or text: numbers such as ``0`` of
    ``0.jpg`` and ``0.cls``, or several words such as ``left`` and ``right``. Words may, if each is in half of the
    samples or more."""
    have: Counter[str] = Counter()
    for extensions, count in counts.items():
        parts = _find_paired_parts(extensions, kinds)
        if "" not in parts and not _has_no_plain_file(extensions):
            continue
        if any(part[:1].isdigit() for part in parts):
            return True
        if "" not in parts:  # words beside it are further images of the sample: a.png, a.json, a.crop.png, a.crop.json
            have.update(dict.fromkeys(parts, count))
    total = sum(counts.values())
    return len(have) > 1 and (total == 1 or any(2 * count < total for count in have.values()))


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
