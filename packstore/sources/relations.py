"""Relates names of images to names of other files that differ by a text: ``a.jpg`` and ``mask_a_0.png``.

A name is a common part with a text before and behind it, its affix. Names are divided where letters, digits, case or
other characters meet. Of many names a sample is read, spread evenly.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

from packstore.sources.beside import join
from packstore.sources.companion_patterns import CompanionPattern
from packstore.sources.contents import FolderContents
from packstore.sources.listing import IMAGE_SUFFIXES, is_image_name
from packstore.sources.tree import Tree

Item = TypeVar("Item")
# Number of pairs whose files are opened; and of different numbers that count something else than samples.
LOOKED_AT, MOST_NUMBERS = 8, 9
# Maximum number of images in a folder of one sample: ``7/image.jpg``, ``7/mask.png``.
MOST_FORMS = 4
# A number in a name, decimal or hexadecimal.
_NUMBER = re.compile(r"(?<![^\W_])[\da-f]*\d[\da-f]*(?![^\W_])|\d+")
_EDGE = re.compile(r"(?<=[a-z])(?![a-z])|(?<=[A-Z])(?![A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\d)(?!\d)|(?<=[\W_])")
_DIGITS = re.compile(r"\d+")
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[\d*]+")
_SEPARATORS = " _.-+"
_NUMBER_BEFORE = re.compile(r"[A-Za-z]*\d{1,2}[ _.+-]+")
# Short numbers, which may count forms of an image: ``cam0_a``, ``a_10``, ``ax2``, ``a_ev+2``.
_NUMBER_BEHIND = re.compile(r"[ _.+-]+([A-Za-z]*[+-]?\d{1,2}[A-Za-z]?|\d+x\d+)|x\d{1,2}")
_MOST_EDGES, _MOST_AFFIXES, _LONGEST, _FEW = 5, 40, 200, 3
_GOLDEN = 0.6180339887498949
_ENOUGH, _LEAST_SHAPES, _RARE = 48, 8, 20
_WORD = re.compile(r"[^\W\d_]+")
_ONLY_IMAGE = "/*"


class Affix(NamedTuple):
    """Text before and behind the common part of a name.

    ``*`` in ``after`` stands for any number. A slash at its beginning means that a whole name follows, and that the
    common part is the folder: ``/mask.png``. ``/*`` is the only image in a folder.
    """

    before: str
    after: str

    @property
    def is_plain(self) -> bool:
        """True if the name is the common part and a suffix."""
        return not self.before and self.after.count(".") == 1 and self.after[0] == "."

    @property
    def is_whole(self) -> bool:
        """True if the common part is the folder."""
        return self.after.startswith("/")

    @property
    def has_word(self) -> bool:
        """True if there are letters apart from the suffix."""
        return any(token.isalpha() for token in self.tokens)

    @property
    def is_numbered(self) -> bool:
        """True if there is a certain number, such as ``_10`` or ``cam0_``."""
        return not self.is_whole and _DIGITS.search(self.before + self.after.rpartition(".")[0]) is not None

    @property
    def tokens(self) -> list[str]:
        """Words and numbers of the affix without the suffix, in lower case; a ``*`` is a number."""
        return [token.lower() for token in _TOKEN.findall(f"{self.before} {self.after.rpartition('.')[0]}")]

    @property
    def suffix(self) -> str:
        """The suffix with its dot, in lower case; that of any image for the only one in a folder."""
        if self.after == _ONLY_IMAGE:
            return IMAGE_SUFFIXES[0]
        return f".{self.after.rpartition('.')[2].lower()}" if "." in self.after else ""

    def with_any_number(self) -> tuple[str, str]:
        """Returns both texts with ``*`` for each number, without the suffix."""
        return _DIGITS.sub("*", self.before), _DIGITS.sub("*", self.after.rpartition(".")[0])

    def base_of(self, name: str) -> str | None:
        """Returns the common part of a name; None if the name lacks the affix, or the common part would be empty."""
        if not name.startswith(self.before):
            return None
        if "*" not in self.after:
            base = name[len(self.before) : len(name) - len(self.after)] if name.endswith(self.after) else ""
            return base or None
        found = _compile(self.after).search(name, len(self.before) + 1)
        return name[len(self.before) : found.start()] if found is not None else None

    def find(self, names: Sequence[str], base: str) -> str | None:
        """Finds the first name with this affix and common part among sorted names."""
        if self.after == _ONLY_IMAGE:
            return next(filter(is_image_name, names), None)
        start, star, _ = (self.before + base + self.after.removeprefix("/")).partition("*")
        for name in find_names(names, start):
            if name == start or (star and self.base_of(name) == base):
                return name
        return None

    def pattern(self) -> str:
        """Returns the pattern of names with this affix, see :mod:`.companion_patterns`."""
        return f"{self.before}{'{dir}' if self.is_whole else '{s}'}{self.after}"


@lru_cache(1 << 10)
def _compile(after: str) -> re.Pattern[str]:
    """Compiles the end of a name with numbers."""
    return re.compile("".join(r"\d+" if part == "*" else re.escape(part) for part in re.split(r"(\*)", after)) + r"\Z")


def find_names(names: Sequence[str], start: str) -> Iterator[str]:
    """Yields the names that begin with ``start``; ``names`` are sorted."""
    for place in range(bisect_left(names, start), len(names)):
        if not names[place].startswith(start):
            return
        yield names[place]


def sample(items: Sequence[Item], count: int) -> Sequence[Item]:
    """Returns ``count`` of the items, spread evenly but not regularly; the same at each call."""
    if len(items) <= count:
        return items
    return [items[int(len(items) * ((number * _GOLDEN) % 1))] for number in range(count)]


@lru_cache(1 << 13)
def list_affixes(name: str) -> Sequence[tuple[Affix, str]]:
    """Returns the possible affixes of a name, each with the common part, which has a letter or digit.

    Digits behind the common part become ``*``. There are none before it, because those count samples. A short number
    that is all of the affix but a word is kept, too.
    """
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(name) > _LONGEST or not name.isprintable() or {*"*{="} & {*name}:
        return ()
    edges = [match.start() for match in _EDGE.finditer(stem)]
    starts = [0, *(edge for edge in edges if not any(map(str.isdigit, stem[:edge])))][: _MOST_EDGES + 1]
    numbered = [edge for edge in edges if _NUMBER_BEFORE.fullmatch(stem[:edge])]
    ends = [len(stem), *reversed(edges)][: _MOST_EDGES + 5]
    found = []
    for start, end in ((start, end) for start in (*starts, *numbered) for end in ends):
        base, before, after = stem[start:end], stem[:start], stem[end:]
        if not any(map(str.isalnum, base)) or base[-1] in _SEPARATORS or (start and base[0] in _SEPARATORS):
            continue
        if start not in numbered:
            found.append((Affix(before, _DIGITS.sub("*", after) + dot + suffix), base))
        if (start in numbered and not after) or (not start and _NUMBER_BEHIND.fullmatch(after)):
            found.append((Affix(before, after + dot + suffix), base))
    return tuple(dict.fromkeys(found))


def list_glued_affixes(name: str, names: Sequence[str]) -> Iterator[tuple[Affix, str]]:
    """Yields the affixes of a name that are glued to the stem of another: ``mask`` of ``maskpearl.png`` beside
    ``pearl.jpg``. ``names`` are sorted.
    """
    stem, dot, suffix = name.rpartition(".")
    if len(name) > _LONGEST or "." in stem or {*"*{="} & {*name}:
        return
    for place in range(1, len(stem)):
        if not (stem[place - 1].islower() and stem[place].islower()):
            continue
        before, after = stem[:place], stem[place:]
        if not any(map(str.isdigit, before)) and next(find_names(names, f"{after}."), None):
            yield Affix(before, dot + suffix), after
        if next(find_names(names, f"{before}."), None):
            yield Affix("", _DIGITS.sub("*", after) + dot + suffix), before


def go_together(one: Affix, other: Affix) -> bool:
    """Tells if names with two affixes may differ in these alone: the common part could not be longer."""
    if one.is_whole or other.is_whole:
        return one.is_whole and other.is_whole and one != other
    if one == other or any(a.is_numbered and "*" in b.after for a, b in ((one, other), (other, one))):
        return False
    before, others_before = _TOKEN.findall(one.before), _TOKEN.findall(other.before)
    if before and others_before and before[-1] == others_before[-1] and not one.is_numbered:
        return False
    after, others_after = _TOKEN.findall(one.after), _TOKEN.findall(other.after)
    if after == others_after[: len(after)] or others_after == after[: len(others_after)]:
        return after != others_after or one.before != other.before or one.is_numbered  # a.jpg and a.jpg.txt
    return after[0] != others_after[0] or one.is_numbered


class Names(NamedTuple):
    """Names of the files in a folder.

    Attributes:
        folder: Path of the folder.
        sampled: Number of sampled names.
        all: All names, sorted.
        by_affix: Sampled names with their common parts, by each possible affix.
    """

    folder: str
    sampled: int
    all: Sequence[str]
    by_affix: dict[Affix, list[tuple[str, str]]]

    @classmethod
    def of(cls, tree: Tree, folder: FolderContents, count: int, other: FolderContents | None = None) -> Names:
        """Lists a folder, and samples ``count`` of its visible names. Affixes without an edge are those of names that
        contain a stem of the ``other`` folder, else of this one."""
        names = tree.names(folder.path).files
        stems = names if other is None else tree.names(other.path).files
        sampled = sample([name for name in names if name[0] != "."], count)
        by_affix: dict[Affix, list[tuple[str, str]]] = defaultdict(list)
        for name in sampled:
            for affix, base in (*list_affixes(name), *list_glued_affixes(name, stems)):
                by_affix[affix].append((name, base))
            if folder.path and other is None and folder.images.count <= MOST_FORMS:
                only = folder.images.count == 1 and is_image_name(name)
                by_affix[Affix("", _ONLY_IMAGE if only else f"/{name}")].append((name, ""))
        return cls(folder.path, len(sampled), names, by_affix)

    @staticmethod
    def list_frequent(listed: Iterable[Names]) -> list[Affix]:
        """Returns the affixes of two names or more, and of one in fifty; of up to three names all. Those with a certain
        number need one name in nine."""
        counts: Counter[Affix] = Counter()
        names = 0
        for each in listed:
            names += each.sampled
            counts.update({affix: len(found) for affix, found in each.by_affix.items()})
        least = max(2, names // 50) if names > _FEW else 1
        frequent = (affix for affix, count in counts.most_common() if count >= least)
        some = (each for each in frequent if not each.is_numbered or counts[each] * MOST_NUMBERS >= names)
        return [affix for affix, _ in zip(some, range(_MOST_AFFIXES), strict=False)]


@dataclass
class Relation:
    """Names of images and of other files that differ by two affixes, in one folder or in two.

    Attributes:
        one: Affix of the images.
        other: Affix of the other files.
        folders: Names of the folders of images and of the other files; ``""`` and ``{dir}_masks`` if the second name
            has the first at its beginning. None within one folder.
        images: Number of sampled names with the affix of images, in folders that have the other affix too.
        all_images: Number of sampled names with the affix of images in all folders.
        files: Number of sampled names with the affix of the other files.
        files_with_image: Number of those for which there is an image.
        pairs: Images and their files among the sampled names.
        bases: Common parts of their names.
        has_numbers: There are relations with certain numbers in place of a ``*``.
    """

    one: Affix
    other: Affix
    folders: tuple[str, str] | None = None
    images: int = 0
    all_images: int = 0
    files: int = 0
    files_with_image: int = 0
    pairs: list[tuple[str, str]] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)
    has_numbers: bool = False

    @property
    def numbered(self) -> bool:
        """True if the affixes differ by a number only, or whole names have numbers."""
        if self.one.is_whole:
            return any(_NUMBER.search(each.after) for each in (self.one, self.other))
        return self.one.is_numbered and self.one.with_any_number() == self.other.with_any_number()

    @property
    def holds(self) -> bool:
        """True if enough names pair up for the relation to be no chance.

        One of these is enough:

        - two pairs or more, of different names, a third of the images and half of the other files
        - all of the images in a folder and a quarter of other images
        - all files of another folder
        """
        count, within = len(self.pairs), self.folders is None
        places = {image.rpartition("/")[0] for image, _ in self.pairs}
        if count < 2 or (not within and len({*self.bases}) < 2):  # image.jpg in each folder
            return False
        if self.one.is_whole:
            return 2 * count >= self.all_images
        if self.numbered and 2 * len(places) > count:  # cat/cat_1.jpg, cat/cat_2.jpg
            return False
        distinct = {(image.rpartition("/")[0], base) for (image, _), base in zip(self.pairs, self.bases, strict=True)}
        has_few_files = not within and self.files == self.files_with_image > 1
        more_images = within and self.other.suffix in IMAGE_SUFFIXES and self.images == count
        return (
            len(distinct) > count // 2
            and (not within or _RARE * count >= self.all_images)
            and (3 * count >= self.images or has_few_files)
            and (4 if more_images else 2) * self.files_with_image >= self.files
        )

    @property
    def is_complete(self) -> bool:
        """True if each sampled image has a file, and each sampled file an image, except one in twenty."""
        counts = ((len(self.pairs), self.images), (self.files_with_image, self.files))
        return all(_RARE * (total - found) <= total for found, total in counts)

    @property
    def may_hold(self) -> bool:
        """False if none of many images had such a file."""
        return bool(self.pairs) or self.images < _ENOUGH

    @property
    def merely_counts(self) -> bool:
        """True if names are no evidence: their common parts are few, or hardly more than numbers, decimal or
        hexadecimal.
        """
        if self.folders is not None and {*self.one.tokens, *self.other.tokens} & {*map(str.lower, self.folders)}:
            return True  # names that begin with their folder's, as those of classes do
        # Names of folders are no evidence either: art/cat/art1.jpg, real/cat/real1.jpg
        parts = {part for image, _ in self.pairs for part in image.lower().split("/")[:-1]}
        words = (_WORD.sub(lambda word: "" if word[0].lower() in parts else word[0], base) for base in self.bases)
        shapes = Counter(_NUMBER.sub("0", base) for base in words)
        if len(shapes) < _LEAST_SHAPES:  # smile/anna.jpg, frown/anna.jpg
            return True
        others = sum(count for shape, count in shapes.items() if "0" not in shape)  # one may be example.jpg
        return 10 * others <= len(self.bases) and 4 * len(shapes) <= len(self.bases)

    def add(self, images: Names, files: Names) -> None:
        """Adds the pairs among the names of two folders."""
        together = images.folder == files.folder
        self.all_images += len(images.by_affix.get(self.one, ()))
        if together and self.other not in files.by_affix:
            return
        for name, base in images.by_affix.get(self.one, ()):
            if together and self._is_longer(self.other, self.one, name):
                continue  # a_mask.png is not the image of a_mask_mask.png
            self.images += 1
            partner = self.other.find(files.all, base)
            if partner is not None and (partner != name or not together):
                self.pairs.append((join(images.folder, name), join(files.folder, partner)))
                self.bases.append(base)
            elif not self.may_hold:
                break
        known = bool(self.pairs)
        for name, base in files.by_affix.get(self.other, ()):
            if together and self._is_longer(self.one, self.other, name):
                continue
            self.files += 1
            owner = self.one.find(images.all, base)
            self.files_with_image += owner is not None
            if owner is not None and not (known or together):  # few of many images have a file
                self.pairs.append((join(images.folder, owner), join(files.folder, name)))
                self.bases.append(base)

    @staticmethod
    def _is_longer(longer: Affix, affix: Affix, name: str) -> bool:
        """Tells if a name with an affix also has a longer one."""
        return len("".join(longer)) > len("".join(affix)) and bool(longer.base_of(name))

    def swapped(self) -> Relation:
        """Returns the relation with images and other files exchanged."""
        return replace(
            self,
            one=self.other,
            other=self.one,
            folders=None if self.folders is None else (self.folders[1], self.folders[0]),
            images=self.files,
            files=self.images,
            files_with_image=len(self.pairs),
            pairs=[(file, image) for image, file in self.pairs],
        )

    def is_apart(self, other: Relation, tree: Tree) -> bool:
        """Tells if relations have files of the same form, of different images."""
        if self.folders != other.folders or self.other != other.other:
            return False
        owned = sample([*zip(other.pairs, other.bases, strict=True)], LOOKED_AT)
        places = ((tree.names(image.rpartition("/")[0]).files, base) for (image, _), base in owned)
        return not any(self.one.find(names, base) for names, base in places)

    def has_other_owner(self, tree: Tree, known: Sequence[tuple[CompanionPattern, Relation]]) -> bool:
        """Tells if images of the same names lie in a third folder, to which the files may belong instead.

        Images there that match a pattern of ``known`` do not count.
        """
        image, file = self.pairs[0]
        mine, its = image.split("/"), file.split("/")
        place = next((n for n, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), 0)
        others = {*tree.names("/".join(its[:place])).folders} - {mine[place], its[place]}
        for folder in ("/".join((*mine[:place], name, *mine[place + 1 : -1])) for name in others):
            found = self.one.find(tree.names(folder).files, self.bases[0])
            if found is not None and not any(pattern.matches_file(join(folder, found)) for pattern, _ in known):
                return True
        return False

    @property
    def patterns(self) -> tuple[str | None, str]:
        """Patterns of the images and of the other files. The first is None if the second is enough."""
        one, other = self.one.pattern(), self.other.pattern()
        if self.folders is None:
            needed = not (self.one.is_plain or self.one.is_whole) or self.other.is_plain
            return (one if needed else None), other
        if self.one.is_plain:
            one = "{s}.*"
            if self.other.is_plain and self.other.suffix in IMAGE_SUFFIXES:
                other = "{s}.*"
        return f"{self.folders[0]}/{one}".lstrip("/"), f"{self.folders[1]}/{other}"

    @property
    def rank(self) -> tuple[int, bool, int, str]:
        """Order in which relations are tried: most pairs first, then images, then names that differ by less. Images
        come before other files, which so belong to the first of several images.
        """
        length = len("".join((*self.one, *self.other)))
        return -len(self.pairs), self.other.suffix not in IMAGE_SUFFIXES, length, self.patterns[1]

    @property
    def ignore(self) -> str:
        """Pattern for ``--ignore`` that leaves the other files out."""
        if self.folders is not None:
            return f"{self.folders[1]}/".replace("{dir}", "*")
        return self.other.after[1:] if self.other.is_whole else self.other.pattern().replace("{s}", "*")
