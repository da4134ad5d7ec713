"""What a source says, in one call, and the suite of sources whose samples are files."""

from __future__ import annotations

import os
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest

from packstore import ConvertReport, convert, verify
from packstore.sources import Entry, Source, Survey, ask_about_left, open_source
from packstore.testing import SourceSuite
from tests.internals import AmbiguousSourceError, PackstoreError, max_file_bytes

Refusal = TypeVar("Refusal", bound=PackstoreError)


class Seen:
    """What a source says: its kind, evidence and entries, and all that its survey has. The source is closed."""

    def __init__(self, path: Path | str, options: dict[str, Any]) -> None:
        self._open = lambda: closing(open_source(path, **options))
        with self._open() as source:
            self.survey: Survey = source.survey()
            self.kind, self.evidence = source.kind, source.evidence
            self.entries = list(source.entries())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.survey, name)

    @property
    def found(self) -> tuple[str, int]:
        """Its kind, and the number of its samples."""
        return self.kind, self.survey.records

    @property
    def keys(self) -> list[str]:
        return [entry.key for entry in self.entries]

    @property
    def classes(self) -> dict[str, tuple[str, ...] | None]:
        """Classes of each column that the survey has, in order."""
        return {column.name: column.classes for column in self.survey.columns}

    @cached_property
    def samples(self) -> dict[str, dict[str, Any]]:
        """The values of each sample, by its key."""
        with self._open() as source:
            source.survey()
            return {entry.key: dict(source.read(entry).values) for entry in source.entries()}

    @property
    def values(self) -> list[dict[str, Any]]:
        """The values of each sample."""
        return list(self.samples.values())

    def each(self, column: str) -> list[Any]:
        """A column's value of each sample."""
        return [values[column] for values in self.values]

    @property
    def named(self) -> dict[str, dict[str, Any]]:
        """The values of each sample by its key: class numbers as names, arrays as lists."""
        classes = {name: names for name, names in self.classes.items() if names}
        found: dict[str, dict[str, Any]] = {}
        for key, values in self.samples.items():
            own = found[key] = {}
            for name, value in values.items():
                if name in classes and value is not None:
                    many = isinstance(value, list | tuple | np.ndarray)
                    value = [classes[name][int(n)] for n in value] if many else classes[name][int(value)]
                own[name] = value.tolist() if isinstance(value, np.ndarray) else value
        return found

    def of(self, split: str) -> list[Entry]:
        """The entries of a split."""
        return [entry for entry in self.entries if entry.split == split]

    def read(self, number: int) -> Any:
        """The sample of one entry."""
        with self._open() as source:
            return source.read(self.entries[number])


def look(path: Path | str, **options: Any) -> Seen:
    """Opens a source, surveys and lists it, and closes it."""
    return Seen(path, options)


def rows_of_table(path: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """The named values of each sample of a table, and its split if it has one, by its key."""
    seen = look(path, **options)
    assert seen.kind == "table"
    named = seen.named
    return {each.key: named[each.key] | ({"split": each.split} if each.split else {}) for each in seen.entries}


def ask(path: Path | str, **options: Any) -> None:
    """Asks about files that a source leaves out, as a conversion does: raises ``AmbiguousSourceError``, or nothing."""
    with closing(open_source(path, **options)) as source:
        ask_about_left(source, source.survey())
        source.entries()


def refused(error: type[Refusal], path: Path | str, match: str | None = None, **options: Any) -> Refusal:
    """The error of one printable line, with ``match``, of a source that cannot be opened and listed."""
    with pytest.raises(error, match=match) as caught:
        ask(path, **options)
    assert str(caught.value).isprintable()
    return caught.value


def question(path: Path | str, match: str | None = None, **options: Any) -> AmbiguousSourceError:
    """The question that a source asks before it is packed; its text has ``match``."""
    return refused(AmbiguousSourceError, path, match, **options)


def not_packed(
    error: type[Refusal] | tuple[type[Refusal], ...],
    source: Any,
    store: Path | str,
    match: str | None = None,
    **options: Any,
) -> Refusal:
    """The error of one printable line, with ``match``, that ends a conversion."""
    with pytest.raises(error, match=match) as caught:
        convert(source, store, **options)
    assert str(caught.value).isprintable()
    return caught.value


def prove(source: Any, store: Path, *, decode: bool = False, **options: Any) -> ConvertReport:
    """Packs a source, and compares the store with it."""
    report = convert(source, store, **options)
    assert verify(store, decode=decode, against=source).problems == ()
    return report


class FramesSuite(SourceSuite):
    """The suite for an image folder whose files, or folders, are read frame by frame.

    Attributes:
        frames: The option.
        recorded: The option as the store has it.
    """

    kind = "imagefolder"
    frames: ClassVar[str]
    recorded: ClassVar[str]

    def open(self, path: Path, **more: Any) -> Source:
        return open_source(path, frames=self.frames, **more)

    def test_it_packs_and_the_store_holds_it(self, path: Path, tmp_path: Path) -> None:
        report = prove(path, tmp_path / "packed.h5", frames=self.frames, decode=True)
        with closing(self.open(path)) as source:
            assert report.manifest.records == source.survey().records
        assert report.manifest.options["frames"] == self.recorded

    def test_an_interrupted_conversion_goes_on_to_the_same_bytes(self) -> None:  # type: ignore[override]
        pytest.skip("convert is told of frames")


class FileSuite(SourceSuite):
    """The suite for a kind whose samples are files at their keys."""

    undecodable_keys = False
    many = 500

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).unlink()
        (path / entry.key).symlink_to("nowhere")
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        os.truncate(path / entry.key, max_file_bytes(1) + 1)
        return True
