"""Every exception that packstore raises on purpose.

All derive from :class:`PackstoreError`, so ``except PackstoreError`` catches them all. A message says which file or
record, what was found, what was expected and what to do next; the CLI prints it as one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

WITHOUT_TORCH = (
    "needs torch, which is not installed: pip install torch. Without it packstore packs image files as they are, "
    "verifies, repairs, selects and exports stores, and packstore.open reads them; resizing, datasets, loaders and "
    "bench need it"
)
"""End of the message about a name that exists only with torch installed."""


class PackstoreError(Exception):
    """Base of all packstore errors. The text is safe for a terminal, whatever file names it contains.

    Attributes:
        record: Number of the record that cannot be read. None if the error is not about one record.
    """

    record: int | None = None

    def __str__(self) -> str:
        return _make_printable(super().__str__())


class UsageError(PackstoreError, ValueError):
    """Arguments that are invalid, exclude each other, or name something unknown. The CLI exits with 2."""


class UnknownArgumentError(UsageError, TypeError):
    """An unknown keyword argument; the message suggests the right name."""


class SourceError(PackstoreError):
    """A source as a whole cannot be read: not recognised, empty, a symlink cycle, a broken labels file."""


class NotInSourceError(SourceError, UsageError):
    """The arguments name something that the source lacks: a split, a labels file. The CLI exits with 2."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One way to resolve an ambiguous source: a change of the command line.

    Attributes:
        options: Options to add.
        source: Path to give as source instead; None keeps the path.
        note: What the change makes and leaves out, in a few words; empty if that is not known.
    """

    options: tuple[str, ...] = ()
    source: Path | None = None
    note: str = field(default="", compare=False)


class AmbiguousSourceError(SourceError, UsageError):
    """A source that can be read in several ways, or only in part: the user has to choose. The CLI exits with 2.

    Attributes:
        answers: Ways to resolve it; the CLI prints each as a command.
        source: Path of the ambiguous source, if ``answers`` change its path or add options; else None.
        tried: Each answer was tried before it is offered.
    """

    tried = False

    def __init__(
        self, message: str, answers: Sequence[Answer] = (), source: Path | None = None, *, lists_answers: bool = False
    ) -> None:
        """``lists_answers``: the text of the error ends with the answers."""
        super().__init__(message)
        self.answers = tuple(answers)
        self.source = source
        self._lists_answers = lists_answers

    def __str__(self) -> str:
        if not (self._lists_answers and self.answers):
            return super().__str__()
        offered = [" ".join([*(["give", str(a.source)] if a.source else []), *a.options]) for a in self.answers]
        return f"{super().__str__()}. Answers: {printable('; or '.join(offered))}"


class SampleError(SourceError):
    """One sample of a source is unusable: empty, truncated, not an image, unreadable.

    Subject to the ``on_error`` policy of a conversion.

    Attributes:
        key: The sample's key (relative path or id).
        reason: The problem, without the key.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{printable(self.key)}: {_make_printable(self.reason)}"


class DecodeError(PackstoreError):
    """Image bytes that no available decoder can decode."""


class EngineError(PackstoreError):
    """The compiled engine cannot be loaded; the message has the reason and a remedy."""


class StoreError(PackstoreError):
    """A store cannot be opened or written: not a store, unfinished, of a newer version, broken structure."""


class MissingStoreError(StoreError, UsageError):
    """There is nothing at the path of a store. The CLI exits with 2."""


class DestinationError(StoreError):
    """A destination that cannot be written: it exists, lies inside the source, has no space, no permission."""


class UnreachableError(StoreError):
    """A part of a store cannot be fetched now: no network, no credentials, no space. Nothing is damaged."""


class CacheError(StoreError):
    """The local cache of remote stores cannot be used: no permission, no file locks, no space, a damaged object."""


class DamagedObjectError(CacheError):
    """An object could not be cached: each download had other bytes than its digest demands."""


class DiskFullError(CacheError, UnreachableError):
    """The disk of the cache has no room for an object. Cached objects that are in use cannot make room."""


class CacheFullError(CacheError, UnreachableError):
    """The budget of the cache has no room for an object. Cached objects that are in use cannot make room.

    Attributes:
        nbytes: Size of the object.
        budget: Most bytes of the cache.
        in_use: Bytes of cached objects that are open or being fetched.
    """

    def __init__(self, nbytes: int, budget: int, in_use: int, root: Path) -> None:
        super().__init__(nbytes, budget, in_use, root)
        self.nbytes = nbytes
        self.budget = budget
        self.in_use = in_use
        self._root = root

    def __str__(self) -> str:
        there = f", of which {self.in_use:,} are in use" if self.in_use else ""
        # Objects in use cannot be removed, so the new limit has to hold them and the object.
        return (
            f"the cache {printable(str(self._root))} is too small: an object needs {self.nbytes:,} bytes, it may hold "
            f"{self.budget:,}{there}; give it {self.in_use + self.nbytes:,} with --cache-size or PACKSTORE_CACHE_SIZE"
        )


class ManifestError(StoreError):
    """A manifest that is not valid: broken JSON, a wrong digest, impossible numbers."""


ROW_CHECKSUM_NOUN = "row checksum (label, key, other fields)"
""":attr:`CorruptRecordError.what` of a record whose fields do not match its row checksum."""


class CorruptRecordError(StoreError):
    """A record whose image or another value does not match its checksum, or whose label is outside the classes.

    Attributes:
        record: Number of the record in its store.
        key: The record's key.
        expected: The stored checksum, as 16 hexadecimal digits; or the range of labels.
        found: The checksum of the bytes that were read; or the label.
        what: Noun for ``found`` in the message.
    """

    def __init__(self, record: int, key: str, expected: str, found: str, what: str = "checksum of its image") -> None:
        super().__init__(record, key, expected, found, what)
        self.record: int = record
        self.key = key
        self.expected = expected
        self.found = found
        self.what = what

    def __str__(self) -> str:
        return (
            f"record {self.record} ({printable(self.key)}) is damaged: {self.what} {self.found}, expected "
            f"{self.expected}; packstore verify lists all damage, packstore repair takes records from the source again"
        )


def printable(text: str) -> str:
    """Escapes control characters, newlines and undecodable bytes, so that a terminal can show the result safely.

    File names come from strangers: a newline or an escape sequence in a name must not forge a line of a report.
    Replaces Python's text on numbers with too many digits, which gives advice for programmers.
    """
    if "set_int_max_str_digits" in text:
        text = _TOO_LONG.sub(_describe_long_number, text)
    if text.isprintable():
        return text
    # A surrogate stands for a byte that is no UTF-8.
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)


def join_names(names: Sequence[str], most: int = 10) -> str:
    """Joins the first ``most`` names, made printable, with an ellipsis if there are more."""
    return ", ".join(map(printable, names[:most])) + (", …" if len(names) > most else "")


def join_first(texts: Iterable[str], count: int, most: int) -> str:
    """Joins the first ``most`` of ``count`` texts, and counts the others: ``1, 2, 3 and 5 more``."""
    return ", ".join(islice(texts, most)) + (f" and {count - most:,} more" if count > most else "")


def _make_printable(text: str) -> str:
    """Escapes a text as :func:`printable` does, but keeps its newlines."""
    return "\n".join(map(printable, text.split("\n")))


def _describe_long_number(match: re.Match[str]) -> str:
    """Returns words to replace Python's own about a number too long to convert."""
    digits = f" of {int(match[2]):,} digits" if match[2] else ""
    return f"a number{digits} is too long; at most {int(match[1]):,} digits are read"


_TOO_LONG = re.compile(
    r"Exceeds the limit \((\d+) digits\) for integer string conversion(?:: value has (\d+) digits)?;"
    r" use sys\.set_int_max_str_digits\(\) to increase the limit"
)


def error_line(error: BaseException) -> str:
    """Returns the text of an error as one printable line, made from its first 300 characters.

    Returns the name of its type if it has no text.
    """
    return printable(" ".join(str(error).split())[:300]) or type(error).__name__
