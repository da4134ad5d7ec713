"""Assigns every file of a source its role, from a listing that is independent of what the source has read.

A source claims the files that it uses while it is surveyed; files without a claim are left out, with a reason. So no
file has two roles, none is missing, and the counts add up to all files.
"""

from __future__ import annotations

import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import compress
from operator import not_

import xxhash

from packstore.core.manifest import FileCounts
from packstore.sources.folder_names import find_common_suffix
from packstore.sources.listing import count_reason, is_passed_over, skip_reason
from packstore.sources.tree import Tree

_MAX_SUFFIXES = 256
_LONGEST_SUFFIX = 12
_NO_HASHES = array("q")
_MASK = (1 << 128) - 1


class Role(StrEnum):
    """Role of a file in its source.

    - ``PACKED``: its content is in a record.
    - ``ANNOTATION``: it has labels or other data about packed files.
    - ``EVIDENCE``: it describes the dataset, as a class list or a card does.
    - ``LEFT``: it is left out.
    """

    PACKED = "packed"
    ANNOTATION = "annotation"
    EVIDENCE = "evidence"
    LEFT = "left"


_USED = (Role.PACKED, Role.ANNOTATION, Role.EVIDENCE)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every file of a source by role, and the parts of files that are left out.

    Attributes:
        files: Number of files of each role.
        left: Number of files left out, by reason; at most 41 reasons.
        members: Number of parts left out of packed files (records, arrays, columns), by reason.
        suffixes: Number of all files by suffix, see :func:`suffix_for_count`.
        used: Digest of the paths and roles of all files that are used: 32 hexadecimal digits, or empty for none.
        others: Digest of the paths of files that are left out: 32 hexadecimal digits, or empty for none.
        named: Compressed entries ``role<TAB>path<NUL>`` of all files that are not packed.
    """

    files: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, int] = field(default_factory=dict)
    suffixes: Mapping[str, int] = field(default_factory=dict)
    used: str = ""
    others: str = ""
    named: bytes = field(default=b"", repr=False, compare=False)

    def count(self, role: Role) -> int:
        """Returns the number of files with a role."""
        return self.files.get(role, 0)

    @property
    def total(self) -> int:
        """Number of all files."""
        return sum(self.files.values())

    @property
    def passed_over(self) -> dict[str, int]:
        """Number of files and parts of files that are left out, by reason."""
        return {**self.left, **self.members}

    def names(self, role: Role) -> Iterator[str]:
        """Yields the paths of files with a role, folder by folder. Paths of packed files are not kept: yields none for
        ``PACKED``."""
        rest = b""
        unpacker = zlib.decompressobj()
        # In pieces, since the text of millions of paths is large.
        for start in range(0, len(self.named), 1 << 16):
            *lines, rest = (rest + unpacker.decompress(self.named[start : start + (1 << 16)])).split(b"\0")
            for line in lines:
                kind, _, path = line.decode("utf-8", "surrogateescape").partition("\t")
                if kind == role:
                    yield path


class Claims:
    """Files that a source uses, by role. Keeps only hashes of names, eight bytes for each file."""

    def __init__(self) -> None:
        self._hashes: dict[Role, defaultdict[str, array[int]]] = {
            role: defaultdict(lambda: array("q")) for role in _USED
        }

    def claim(self, path: str, role: Role = Role.PACKED) -> None:
        """Claims one file by its path in the tree."""
        folder, _, name = path.rpartition("/")
        self._hashes[role][folder].append(hash(name))

    def claim_all(self, folder: str, names: Iterable[str], role: Role = Role.PACKED) -> None:
        """Claims files of one folder by their names, each with the same role."""
        self._hashes[role][folder].extend(map(hash, names))

    def hashes(self, folder: str, role: Role) -> array[int]:
        """Returns the hashes of names with a role in a folder, in claimed order. Empty for none."""
        return self._hashes[role].get(folder, _NO_HASHES)


def make_ledger(
    listing: Iterable[tuple[str, Sequence[str]]],
    claims: Claims,
    reason: Callable[[str, str], str | None],
    members: Mapping[str, int],
) -> Ledger:
    """Assigns each listed file the role for which the source claims it. A file with several claims gets the first of
    these roles in the order of :class:`Role`. A file without a claim is left out. Ignores claims of unlisted files.

    Args:
        listing: Folders with the names of their files, see :func:`list_files`.
        claims: Files that the source uses.
        reason: Returns the reason for leaving out a file, by folder and name; None for the usual reason. Not called for
            hidden and system files.
        members: See :attr:`Ledger.members`.
    """
    files: Counter[str] = Counter()
    left: Counter[str] = Counter()
    suffixes: Counter[str] = Counter()
    digests = {True: 0, False: 0}
    packer = zlib.compressobj(1)
    named = bytearray()
    for folder, names in listing:
        rest = names
        prefix = f"{folder}/" if folder else ""
        count_suffixes(names, suffixes)
        for role in _USED:
            claimed = claims.hashes(folder, role)
            if not claimed:
                continue
            hashes = array("q", map(hash, rest))
            # Most folders are claimed whole and in order, which needs no set.
            if hashes == claimed:
                of_role, rest = rest, []
            else:
                mine = [*map(frozenset(claimed).__contains__, hashes)]
                of_role, rest = [*compress(rest, mine)], [*compress(rest, map(not_, mine))]
            files[role] += len(of_role)
            # A sum does not depend on the order of folders.
            digests[True] += _digest_names(role, folder, of_role)
            if role is not Role.PACKED:
                named += packer.compress(_encode_lines(role, prefix, of_role))
        if rest:
            files[Role.LEFT] += len(rest)
            digests[False] += _digest_names(Role.LEFT, folder, rest)
            named += packer.compress(_encode_lines(Role.LEFT, prefix, rest))
            above = _folder_skip_reason(folder)
            for name in rest:
                count_reason(above or _folder_skip_reason(name) or reason(folder, name) or skip_reason(name), left)
    named += packer.flush()
    used, others = (f"{digests[key] & _MASK:032x}" if digests[key] else "" for key in (True, False))
    return Ledger(dict(+files), dict(left), dict(members), dict(suffixes), used, others, bytes(named))


def list_files(tree: Tree) -> Iterator[tuple[str, Sequence[str]]]:
    """Lists all files of a tree, folder by folder. Includes hidden files, and files that ``--ignore`` hides."""
    for folder, names in tree.all_folders():
        yield folder, names.files


def count_replaced_members(tree: Tree) -> dict[str, int]:
    """Counts files of an archive that later files of the same name replace, as unpacking does. Returns the number by
    its reason, or an empty dict for none."""
    return {"files replaced by later ones of the same name": tree.replaced} if tree.replaced else {}


def count_suffixes(names: Iterable[str], counts: Counter[str]) -> None:
    """Adds the number of names of each suffix to ``counts``, see :func:`suffix_for_count`. After 256 suffixes, counts
    new ones as ``""``."""
    names = list(names)
    common = find_common_suffix("\0".join(("", *names, ""))) if names else ""
    # Much faster than a loop over the names.
    if common:
        endings = {common: len(names)}
    else:
        endings = Counter(name[dot:] if (dot := name.rfind(".")) > 0 else "" for name in names)
    for ending, count in endings.items():
        suffix = _suffix_of_ending(ending)
        counts[suffix if suffix in counts or len(counts) < _MAX_SUFFIXES else ""] += count


@lru_cache(1 << 10)
def _suffix_of_ending(ending: str) -> str:
    """Returns :func:`suffix_for_count` of a name with this ending."""
    return suffix_for_count(f"x{ending}")


def suffix_for_count(name: str) -> str:
    """Returns the last suffix in lower case, with its dot. Returns ``""`` if there is none, or if it is a number or
    longer than 12 characters."""
    stem, _, suffix = name.rpartition(".")
    # Numbers and long endings are parts of a name.
    return f".{suffix.lower()}" if stem and suffix and len(suffix) <= _LONGEST_SUFFIX and not suffix.isdigit() else ""


def file_counts(ledger: Ledger) -> FileCounts:
    """Returns the ledger's counts for a manifest."""
    return FileCounts(**{role.value: ledger.count(role) for role in Role}, used=ledger.used, others=ledger.others)


def _folder_skip_reason(folder: str) -> str | None:
    """Returns why all files of a folder are left out, hidden or the system's; None if they are not."""
    passed = next(filter(is_passed_over, filter(None, folder.split("/"))), None)
    return None if passed is None else skip_reason(passed)


def _digest_names(role: Role, folder: str, names: Sequence[str]) -> int:
    """Hashes the role and the paths of files in a folder, in any order; 0 for no names."""
    text = "\0".join([role, folder, *sorted(names)])
    return xxhash.xxh3_128_intdigest(text.encode("utf-8", "surrogateescape")) if names else 0


def _encode_lines(role: Role, prefix: str, names: Sequence[str]) -> bytes:
    """Encodes paths with their role for :attr:`Ledger.named`."""
    return "".join(f"{role}\t{prefix}{name}\0" for name in names).encode("utf-8", "surrogateescape")
