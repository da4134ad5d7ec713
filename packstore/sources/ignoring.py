"""Patterns of ``--ignore``, which name files and folders that a source treats as absent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from packstore.core.errors import UsageError, printable
from packstore.core.progress import set_within
from packstore.sources.folder_names import Names

# Reason for a file that a pattern matches, for the ledger.
IGNORED = "left out by --ignore"
_TOKEN = re.compile(r"\\(.)|\[(!?)(\][^]/]*|[^]/]+)\]|(.)", re.S)


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Patterns in the syntax of ``.gitignore``: ``*``, ``?``, ``[a-z]``, ``**``.

    A pattern without a slash matches the name of a file or folder anywhere. A pattern with a slash before its end
    matches the path from the root. A pattern that ends with a slash matches only folders. A matching folder hides
    everything in it. Negation with ``!`` and comments with ``#`` are refused when patterns are compiled.

    Attributes:
        expression: Matches paths; a folder's path ends with ``/``.
        prefix: Path from the root of the patterns to the folder that tested paths are relative to, with a slash.
    """

    expression: re.Pattern[str] | None = None
    prefix: str = ""

    def __bool__(self) -> bool:
        return self.expression is not None

    def hides(self, path: str, is_directory: bool = False) -> bool:
        """Tells if a pattern matches a path relative to :attr:`prefix`, or a folder above it. False for ``""``."""
        if self.expression is None or not path:
            return False
        return self.expression.match(f"{self.prefix}{path}/" if is_directory else self.prefix + path) is not None

    def filter_names(self, directory: str, names: Names) -> Names:
        """Returns the names in a directory that no pattern matches."""
        prefix = f"{directory}/" if directory else ""
        return Names(
            [name for name in names.files if not self.hides(prefix + name)],
            [name for name in names.folders if not self.hides(prefix + name, True)],
        )

    def ignore_reason(self, directory: str, name: str) -> str | None:
        """Returns the reason to leave out a file. Returns None if no pattern matches the file."""
        return IGNORED if self.hides(f"{directory}/{name}" if directory else name) else None


@lru_cache
def compile_ignore_rules(patterns: tuple[str, ...]) -> IgnoreRules:
    """Compiles patterns. Raises :class:`UsageError` for a pattern that matches nothing or everything, or that git
    understands differently."""
    if not patterns:
        return IgnoreRules()
    return IgnoreRules(re.compile("|".join(f"(?:{_pattern_to_regex(each)})" for each in patterns), re.S))


def check_patterns(patterns: object) -> tuple[str, ...]:
    """Checks the option ``ignore``, and returns it as a tuple. The option is a text or a sequence of texts. Raises
    :class:`UsageError` for other values, and for unusable patterns."""
    given = (patterns,) if isinstance(patterns, str) else patterns
    if not isinstance(given, (tuple, list)) or not all(isinstance(each, str) for each in given):
        raise UsageError(f"ignore should be patterns such as '*.txt' or 'masks', got {patterns!r}")
    compile_ignore_rules(tuple(given))
    return tuple(given)


def escape_pattern(path: str) -> str:
    """Returns the pattern that matches exactly ``path``: a name anywhere, or a path with a slash from the root."""
    path = re.sub(r"([\\\[*?])", r"\\\1", path)
    return f"[{path[0]}]{path[1:]}" if path[0] in "!#" else path


def ignore_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Returns the command-line options ``--ignore`` for patterns."""
    return tuple(part for pattern in patterns for part in ("--ignore", pattern))


def ignore_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """Returns the command-line options ``--ignore`` for files or folders, by their paths in a source."""
    return ignore_patterns(f"/{escape_pattern(path)}" for path in paths)


def apply_ignore_rules(root: Path, rules: IgnoreRules) -> AbstractContextManager[None]:
    """Activates rules within the block, for trees that are opened there, and for :func:`is_ignored`. ``root`` is the
    path of the source that is opened."""
    return set_within(_active, (root, rules))


def active_rules(root: Path) -> IgnoreRules:
    """Returns the active rules for a tree with this root. Returns empty rules for a root outside of the source that is
    being opened."""
    source, rules = _active.get()
    inside = _relative_to(root, source) if rules else None
    return IgnoreRules() if inside is None else replace(rules, prefix=f"{inside}/" if inside else "")


def is_ignored(path: Path) -> bool:
    """Tells if the active rules hide a path. False for a path outside of the source that is being opened."""
    source, rules = _active.get()
    inside = _relative_to(path, source) if rules else None
    return bool(inside) and rules.hides(inside or "", path.is_dir())


def visible_paths(folder: Path) -> Iterator[Path]:
    """Yields the paths in a folder that the active rules do not hide, unordered. Raises :class:`OSError` if it cannot
    be listed."""
    return (path for path in folder.iterdir() if not is_ignored(path))


def _relative_to(path: Path, root: Path) -> str | None:
    """Returns the path relative to ``root``, ``""`` for itself, or None for a path outside."""
    base = root if path.is_relative_to(root) else root.absolute()
    if not path.is_relative_to(base):
        return None
    return "/".join(path.parts[len(base.parts) :])  # relative_to() of a URL returns a URL


_active: ContextVar[tuple[Path, IgnoreRules]] = ContextVar("ignored paths", default=(Path(), IgnoreRules()))


def _pattern_to_regex(pattern: str) -> str:
    """Converts a pattern to a regular expression for ``re.match`` of paths to hide."""
    parts = pattern.removeprefix("/").removesuffix("/").split("/")
    bad = "\0" in pattern or pattern[:1] in ("!", "#") or all(re.fullmatch(r"\*+", part) for part in parts)
    if bad or any(part in ("", ".", "..") for part in parts):
        raise UsageError(
            f"ignore: {printable(pattern)!r} is not a pattern: expected a name such as '*.txt', or a path from the top "
            "of the source such as 'a/b'; write '[!]…' or '[#]…' for a name that begins so"
        )
    regex = "" if "/" in pattern.removesuffix("/") else "(?:[^/]+/)*"
    for part in parts[:-1]:
        regex += "(?:[^/]+/)*" if part == "**" else _TOKEN.sub(_token_to_regex, part) + "/"
    regex += _TOKEN.sub(_token_to_regex, parts[-1]) + ("/" if pattern.endswith("/") else "(?:/|$)")
    try:
        re.compile(regex)
    except re.error as error:
        raise UsageError(f"ignore: {printable(pattern)!r} is not a pattern: {error}") from None
    return regex


def _token_to_regex(token: re.Match[str]) -> str:
    """Converts a part of a pattern that :data:`_TOKEN` matches to a regular expression."""
    escaped, negation, chars, char = token.groups()
    if chars:
        chars = re.sub(r"([\\\[\]&~|^])", r"\\\1", chars)
        return f"(?!/)[{'^' if negation else ''}{chars}]"
    # An unclosed bracket stays as it is, so that compiling the expression fails.
    wildcards = {"*": "[^/]*", "?": "[^/]", "[": "["}
    return re.escape(escaped) if escaped else wildcards.get(char) or re.escape(char)
