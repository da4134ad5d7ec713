"""Patterns of files that belong to images: the options ``--pair``, ``--sidecar`` and ``--masks``.

A pattern is a path with ``{s}`` for the stem of an image. The parts before the last slash are folders. ``*`` stands for
any text without a slash, and ``{dir}`` at the beginning for the path of the image's folder.

- ``{s}_mask.png``: in the image's folder.
- ``masks/{s}.png``: ``masks`` is in the image's folder or in a folder above it. ``{s}`` may include folders:
  ``masks/train/a.png`` belongs to ``images/train/a.jpg``, and with ``masks/gt_{s}.png`` ``masks/train/gt_a.png`` does.
- ``{dir}/../masks/{s}*.png``: relative to the image's folder; several files may belong to an image.
- ``{dir}/right.png``: of one name in the folder of each image.
- ``{dir}_boxes/{s}.txt``: in a folder whose name begins with that of the image's folder.

A second pattern before it, with ``=`` between them, tells which part of an image's path is ``{s}``:
``{s}_HR.png={s}_LR.png``. Without it, ``{s}`` is the name of an image without suffix, or the part before another dot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from packstore.core.errors import UsageError, printable
from packstore.sources.listing import IMAGE_SUFFIXES

PAIR, SIDECAR, MASKS = "pair", "sidecar", "masks"
OPTIONS = (PAIR, SIDECAR, MASKS)
"""Names of the options, in the order of their columns."""
# Types of sidecars.
TYPES = ("text", "json", "label", "numbers", "npy", "bytes")
_STEM, _FOLDER = "{s}", "{dir}"
_PART = r"(?!\.{1,2}(?:/|\Z))(?:[^/{}*\0]|\{s\})+"
# A relative path within the source, perhaps from the image's folder.
_PATH = re.compile(rf"(?:\{{dir\}}(?:(?:/\.\.)*/|(?!/)))?(?:{_PART}/)*(?!\.{{1,2}}\Z)(?:[^/{{}}\0]|\{{s\}})+")
_FORMS = {PAIR: "IMAGES=FILES", SIDECAR: "[IMAGES=]FILES=TYPE", MASKS: "[IMAGES=]FILES"}
_EXAMPLES = "'{s}_mask.png' or 'masks/{s}.png'"
_WORDS = re.compile(r"[^\W_]+")
_SUFFIX = re.compile(r"(\.[^./{}*]+)$")


@dataclass(frozen=True)
class Companion:
    """Files that seem to belong to images.

    Attributes:
        option: Option that reads them: ``pair``, ``sidecar`` or ``masks``.
        text: Value of that option.
        ignore: Pattern for ``--ignore`` that leaves the files out.
        count: Number of images looked at that have such a file.
        images: Number of images looked at.
        example: An image, and a file that belongs to it.
        certain: It is sure what the files are; else the user has to say it.
        further: Further options: that a column of depth keeps its values of 16 bits.
    """

    option: str
    text: str
    ignore: str
    count: int
    images: int
    example: tuple[str, str]
    certain: bool
    further: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Options of the command line that read the files."""
        return f"--{self.option}", self.text, *self.further

    @property
    def phrase(self) -> str:
        """Description for people: ``a_mask.png belongs to a.jpg``."""
        return f"{self.example[1]} goes with {self.example[0]}"


@dataclass(frozen=True)
class CompanionPattern:
    """One value of ``--pair``, ``--sidecar`` or ``--masks``.

    Attributes:
        option: Name of the option.
        text: The value as given.
        images: Pattern of the images; None for any image.
        files: Pattern of the files that belong to them.
        type: One of :data:`TYPES` for a sidecar, else ``image`` or ``mask``.
    """

    option: str
    text: str
    images: str | None
    files: str
    type: str

    @property
    def words(self) -> str:
        """The words of the files' pattern that the images' pattern lacks, without suffix: ``lr``, or ``gt`` for
        ``{s}.gt.txt``. Empty if there are none."""
        own, known = (_words_of(each) for each in (self.files, self.images or ""))
        new = dict.fromkeys(word for word in own if word not in known and f".{word}" not in IMAGE_SUFFIXES)
        return "_".join(new)

    def may_share_column(self, other: CompanionPattern) -> bool:
        """Tells if two patterns can share a column: they have equal words, and files of different images."""
        own, others = ((each.option, each.type, each.words) for each in (self, other))
        apart = None not in (self.images, other.images) and self.images != other.images
        return apart and self.words != "" and own == others

    @cached_property
    def _of_file(self) -> re.Pattern[str]:
        """Matches the path of any file that may belong to an image."""
        named = self._from_folder and not self.files.startswith(f"{_FOLDER}/")
        start = "(?P<base>(?:[^/]+/)*?)" + ("[^/]+" if named else "")
        return re.compile(start + _to_regex(self._tail, "/" in self._tail and not self._from_folder))

    @cached_property
    def _of_image(self) -> re.Pattern[str] | None:
        """Matches the path of an image, with the groups ``base`` and ``s``; None for any image."""
        if self.images is None:
            return None
        return re.compile(r"(?P<base>(?:[^/]+/)*?)" + _to_regex(self.images, "/" in self.images, named=True))

    @property
    def _from_folder(self) -> bool:
        """True if the files' pattern is relative to the folder of the image."""
        return self.files.startswith(_FOLDER)

    @property
    def _tail(self) -> str:
        """The files' pattern without ``{dir}/../`` at its beginning."""
        tail = self.files.removeprefix(_FOLDER)
        while tail.startswith("/../"):
            tail = tail[3:]
        return tail.removeprefix("/")

    def matches_file(self, path: str) -> bool:
        """Tells if a file may belong to an image, by its path.

        The pattern of images may match it, too. Then the folder nearer to the top decides (``masks/images/a.png``),
        then the longer pattern: with ``{s}_RGB.png={s}.png``, ``a_RGB.png`` is an image.
        """
        found = self._of_file.fullmatch(path)
        if found is None or not self._may_end(path):
            return False
        image = None if self._of_image is None else self._of_image.fullmatch(path)
        if image is None or len(found["base"]) < len(image["base"]):
            return True
        return len(found["base"]) == len(image["base"]) and len(self.images or "") <= len(self.files)

    def _may_end(self, path: str) -> bool:
        """Tells if the suffix of a file fits: ``.*`` stands for that of any image, or for any suffix in a sidecar."""
        return self.option == SIDECAR or not self.files.endswith(".*") or path.lower().endswith(IMAGE_SUFFIXES)

    def list_bases(self, image: str) -> Iterator[tuple[str, str]]:
        """Yields the possible folders, with a slash at their end, to which the files' pattern is relative, each with
        the possible text of ``{s}``. Longer texts come first.
        """
        folder, _, name = image.rpartition("/")
        parts = folder.split("/") if folder else []
        stems = list(_list_stems(name))
        if self._of_image is not None:
            found = self._of_image.fullmatch(image)
            if found is None:
                return
            if not self._from_folder:
                yield found["base"], found.groupdict("").get("within", "") + found["s"]
                return
            stems = [found["s"]]
        if self._from_folder:
            ups = self.files.count("/..")
            if ups <= len(parts):
                base = "".join(f"{part}/" for part in parts[: len(parts) - ups])
                base = base if self.files.startswith(f"{_FOLDER}/") else base.removesuffix("/")
                yield from ((base, stem) for stem in stems)
            return
        if "/" not in self.files:
            yield from (("".join(f"{part}/" for part in parts), stem) for stem in stems)
            return
        for kept in range(len(parts) + 1):  # folders that belong to the stem, the most first
            for depth in range(kept + 1):
                base, within = "".join(f"{part}/" for part in parts[:depth]), parts[kept:]
                yield from ((base, "/".join((*within, stem))) for stem in stems)

    def file_path(self, base: str, stem: str) -> str:
        """Returns the path of the file for ``{s}``, or the pattern of its path if there is a ``*``."""
        folder, slash, last = self._tail.rpartition("/")
        if slash and _STEM not in folder and not last.startswith(_STEM):  # masks/gt_{s}.png: masks/train/gt_a.png
            within, inner, stem = stem.rpartition("/")
            return f"{base}{folder}/{within}{inner}{last.replace(_STEM, stem)}"
        return base + self._tail.replace(_STEM, stem)

    def file_name_matches(self, name: str, stem: str) -> bool:
        """Tells if a name matches the last part of the files' pattern. The text for ``*`` must not continue a word or
        number of the stem."""
        last = self._tail.rpartition("/")[2]
        own = stem.rpartition("/")[2]
        regex = "".join(
            re.escape(own) if token == _STEM else "[^/]*" if token == "*" else re.escape(token)
            for token in re.split(r"(\{s\}|\*)", last)
        )
        if re.fullmatch(regex, name) is None or not self._may_end(name):
            return False
        place = name.find(own) + len(own) if _STEM in last else 0
        after = last.partition(_STEM)[2]
        return not (after.startswith("*") and _STEM in last and _continues(name, place))


def _continues(name: str, place: int) -> bool:
    """Tells if a word or number of ``name`` goes on at ``place``."""
    before, after = name[place - 1 : place], name[place : place + 1]
    return (before.isdigit() and after.isdigit()) or (before.isalpha() and after.isalpha())


def _list_stems(name: str) -> Iterator[str]:
    """Yields a name without its suffix, then without earlier ones: ``0001.nrm``, ``0001``."""
    stem = name.rpartition(".")[0] or name
    yield stem
    while "." in stem.lstrip("."):
        stem = stem.rpartition(".")[0]
        yield stem


def _words_of(pattern: str) -> list[str]:
    """Returns the words in a pattern without its suffix and ``{s}``, in lower case."""
    text = _SUFFIX.sub("", pattern.removeprefix(_FOLDER))
    return [word.lower() for word in _WORDS.findall(text.replace(_STEM, " "))]


def _to_regex(pattern: str, folders: bool, named: bool = False) -> str:
    """Converts a pattern to a regular expression; ``named`` makes a group ``s`` of the first ``{s}``."""
    head, suffix = _SUFFIX.sub("", pattern), _SUFFIX.search(pattern)
    place, slash, last = head.rpartition("/")
    parts: list[str] = []
    if folders and slash and _STEM not in place and _STEM in last[1:] and not last.startswith(_STEM):
        parts = [re.escape(f"{place}/"), f"({'?P<within>' if named else '?:'}(?:[^/]+/)*)"]
        head, folders = last, False
    # ``{s}`` only includes slashes with ``folders``.
    stem = "(?:.+)" if folders else "(?:[^/]+)"
    for token in re.split(r"(\{s\}|\*)", head):
        if token == _STEM:
            first = named and not any("(?P<s>" in part for part in parts)
            parts.append(f"(?P<s>{stem})" if first else "(?P=s)" if named else stem)
        else:
            parts.append("[^/]*" if token == "*" else re.escape(token))
    # The suffix may be in any case.
    return "".join(parts) + (f"(?i:{re.escape(suffix[1])})" if suffix is not None else "")


def parse_pattern(option: str, text: str) -> CompanionPattern:
    """Parses one value of an option. Raises :class:`UsageError` if it is unusable."""
    *images, files = text.split("=")
    type = {PAIR: "image", MASKS: "mask"}.get(option, files)
    if option == SIDECAR and images:
        *images, files = images
    beside = files.startswith(_FOLDER)
    faults = {
        f"it ends with =TYPE, one of {', '.join(TYPES)}": option == SIDECAR and type not in TYPES,
        f"its form is {_FORMS[option]}": len(images) > 1 or (option == PAIR and not images and not beside),
        f"expected a path such as {_EXAMPLES}, with '*' in its last part alone": not all(
            map(_PATH.fullmatch, (*images, files))
        ),
        "it has no {s}": any(_STEM not in each for each in images) or (_STEM not in files and (images or not beside)),
        "both patterns are equal": files in images,
        "{dir} belongs into the pattern of the files, beside images without folders": any(
            _FOLDER in each or ("/" in each and beside) for each in images
        ),
        "the pattern of the files matches every file": files.rpartition("/")[2] in (_STEM, "*"),
    }
    for why, is_wrong in faults.items():
        if is_wrong:
            raise UsageError(f"{option}: {printable(text)!r} is not a pattern: {why}")
    return CompanionPattern(option, text, images[0] if images else None, files, type)


def check_companions(option: str, given: object) -> tuple[str, ...]:
    """Checks the values of an option, and returns them as a tuple. They are a text or a sequence of texts. Raises
    :class:`UsageError` for other values, and for unusable patterns."""
    texts = (given,) if isinstance(given, str) else given
    if not isinstance(texts, (tuple, list)) or not all(isinstance(each, str) for each in texts):
        raise UsageError(f"{option} should be patterns such as '{{s}}_mask.png', got {given!r}")
    for each in texts:
        parse_pattern(option, each)
    return tuple(texts)


def parse_companions(given: Mapping[str, Sequence[str]]) -> tuple[CompanionPattern, ...]:
    """Parses the checked values of all options, by option."""
    return tuple(parse_pattern(option, each) for option in OPTIONS for each in given.get(option, ()))
