"""Patterns of ``--ignore``: names of files and folders that a source treats as not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from packstore.core.errors import UsageError, printable
from packstore.sources.folder_names import Names

IGNORED = "left out by --ignore"
"""Why a file is left that a pattern matches."""
_SET = re.compile(r"\[(!?)(\]?[^]/]*)\]")


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Patterns as git has them in ``.gitignore``: ``*``, ``?``, ``[a-z]``, ``**``.

    A pattern without a slash matches the name of a file or folder anywhere, another one the path from the root. Behind
    a slash at its end it matches folders alone. A folder that matches hides all that is in it.

    Attributes:
        expression: Matches a path that ends in ``/`` if it is a folder's.
        prefix: Path of the folder from which on paths are given, as the patterns name it, with a slash.
    """

    expression: re.Pattern[str] | None = None
    prefix: str = ""

    def __bool__(self) -> bool:
        return self.expression is not None

    def hides(self, path: str, is_directory: bool = False) -> bool:
        """Whether a path from the root, or a folder above it, matches."""
        if self.expression is None or not path:
            return False
        return self.expression.match(f"{self.prefix}{path}/" if is_directory else self.prefix + path) is not None

    def visible(self, directory: str, names: Names) -> Names:
        """The names in a directory that do not match."""
        prefix = f"{directory}/" if directory else ""
        return Names(
            [name for name in names.files if not self.hides(prefix + name)],
            [name for name in names.folders if not self.hides(prefix + name, True)],
        )

    def reason(self, directory: str, name: str) -> str | None:
        """Why a file is left if a pattern matches it, else None."""
        return IGNORED if self.hides(f"{directory}/{name}" if directory else name) else None


@lru_cache
def ignore_rules(patterns: tuple[str, ...]) -> IgnoreRules:
    """Compiles patterns. Raises :class:`UsageError` for one that can match nothing, or would do something else."""
    if not patterns:
        return IgnoreRules()
    return IgnoreRules(re.compile("|".join(f"(?:{_translate(each)})" for each in patterns), re.S))


def check_patterns(patterns: object) -> tuple[str, ...]:
    """``patterns`` as a tuple. Raises :class:`UsageError` for anything but text, and as :func:`ignore_rules` does."""
    given = (patterns,) if isinstance(patterns, str) else patterns
    if not isinstance(given, (tuple, list)) or not all(isinstance(each, str) for each in given):
        raise UsageError(f"ignore should be patterns such as '*.txt' or 'masks', got {patterns!r}")
    ignore_rules(tuple(given))
    return tuple(given)


def pattern_of(path: str) -> str:
    """The pattern that matches a name anywhere or, with a slash, a path."""
    path = re.sub(r"([\\\[*?])", r"\\\1", path)
    return f"[{path[0]}]{path[1:]}" if path[0] in "!#" else path


@contextmanager
def ignoring(root: Path, rules: IgnoreRules) -> Iterator[None]:
    """Until its end, trees that are opened hide what the rules match, and :func:`is_ignored` knows them."""
    token = _active.set((root, rules))
    try:
        yield
    finally:
        _active.reset(token)


def active_rules(root: Path) -> IgnoreRules:
    """The rules for a tree with this root: none outside the source that is being opened."""
    active = _active.get()
    inside = None if active is None or not active[1] else _inside(root, active[0])
    if active is None or inside is None:
        return IgnoreRules()
    return replace(active[1], prefix=f"{inside}/" if inside else "")


def is_ignored(path: Path) -> bool:
    """Whether a path of the source that is being opened is to be treated as not there."""
    active = _active.get()
    inside = None if active is None or not active[1] else _inside(path, active[0])
    return active is not None and bool(inside) and active[1].hides(inside or "", path.is_dir())


def visible_paths(folder: Path) -> Iterator[Path]:
    """The paths in a folder that are not ignored, in any order. Raises :class:`OSError`."""
    return (path for path in folder.iterdir() if not is_ignored(path))


def _inside(path: Path, root: Path) -> str | None:
    """The path from ``root`` on, ``""`` for itself; None for one outside."""
    base = root if path.is_relative_to(root) else root.absolute()
    if not path.is_relative_to(base):
        return None
    return "/".join(path.parts[len(base.parts) :])  # relative_to() of a URL is one again


_active: ContextVar[tuple[Path, IgnoreRules] | None] = ContextVar("ignored paths", default=None)


def _translate(pattern: str) -> str:
    """A regular expression for the beginning of a path that the pattern hides."""
    body = pattern.removeprefix("/").removesuffix("/")
    parts = body.split("/")
    if not body or "\0" in pattern or any(part in ("", ".", "..") for part in parts):
        raise _unusable(pattern, "expected a name such as '*.txt', or a path from the top of the source such as 'a/b'")
    if pattern[0] in "!#":
        raise _unusable(pattern, f"it begins with {pattern[0]!r}: for a name that does, write '[{pattern[0]}]…'")
    if all(re.fullmatch(r"\*+", part) for part in parts):
        raise _unusable(pattern, "it matches everything")
    anywhere = "/" not in pattern.removesuffix("/")
    found = "(?:[^/]+/)*" if anywhere else ""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            found += "[^/]+" if last else "(?:[^/]+/)*"
        else:
            found += _translate_part(pattern, part) + ("" if last else "/")
    return found + ("/" if pattern.endswith("/") else "(?:/|$)")


def _translate_part(pattern: str, part: str) -> str:
    found, place = "", 0
    while place < len(part):
        char = part[place]
        if char == "[":
            inside = _SET.match(part, place)
            if inside is None or not inside[2]:
                raise _unusable(pattern, "the bracket '[' is not closed: for the character itself, write '[[]'")
            chars = re.sub(r"([\\\[\]&~|^])", r"\\\1", inside[2])
            found += f"(?!/)[{'^' if inside[1] else ''}{chars}]"
            place = inside.end()
            continue
        if char == "\\" and place + 1 < len(part):
            place += 1
            found += re.escape(part[place])
        else:
            found += "[^/]*" if char == "*" else "[^/]" if char == "?" else re.escape(char)
        place += 1
    try:
        re.compile(found)
    except re.error as error:
        raise _unusable(pattern, str(error)) from None
    return found


def _unusable(pattern: str, why: str) -> UsageError:
    return UsageError(f"ignore: {printable(pattern)!r} is no pattern: {why}")
