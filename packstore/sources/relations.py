"""Relates names of images to names of other files that differ by a text, and counts how many go together."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from packstore.sources.affixes import (
    Affix,
    list_affixes,
    list_frequent,
    list_glued_affixes,
    list_numbered_affixes,
    sample,
)
from packstore.sources.beside import join
from packstore.sources.contents import FolderContents
from packstore.sources.listing import IMAGE_SUFFIXES, is_image_name
from packstore.sources.tree import Tree

LOOKED_AT, MOST_NUMBERS = 8, 9
"""Number of pairs whose files are opened; and of different numbers that count something else than samples."""
_ENOUGH, _FEW, _LEAST_SHAPES, _RARE = 48, 10, 8, 20
_WORD = re.compile(r"[^\W\d_]+")
NUMBER = re.compile(r"(?<![^\W_])[\da-f]*\d[\da-f]*(?![^\W_])|\d+")
"""A number in a name, decimal or hexadecimal."""


class Names(NamedTuple):
    """Names of the files in a folder.

    Attributes:
        folder: Path of the folder.
        sampled: Some of the names.
        all: All names, sorted.
        by_affix: Sampled names with their common parts, by each possible affix.
    """

    folder: str
    sampled: Sequence[str]
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
        return cls(folder.path, sampled, names, by_affix)

    @classmethod
    def numbered(cls, tree: Tree, folder: FolderContents, count: int) -> Names:
        """Lists a folder, and samples ``count`` of its images, by the affixes that are a number."""
        names = tree.names(folder.path).files
        sampled = sample([name for name in names if name[0] != "." and is_image_name(name)], count)
        by_affix: dict[Affix, list[tuple[str, str]]] = defaultdict(list)
        for name in sampled:
            for affix, base in list_numbered_affixes(name):
                by_affix[affix].append((name, base))
        return cls(folder.path, sampled, names, by_affix)

    @staticmethod
    def list_frequent(listed: Iterable[Names]) -> list[Affix]:
        """Returns the frequent affixes of the sampled names in several folders."""
        counts: Counter[Affix] = Counter()
        names = 0
        for each in listed:
            names += len(each.sampled)
            counts.update({affix: len(found) for affix, found in each.by_affix.items()})
        return list_frequent(counts, names)


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
        numbered: True if the affixes differ by a number only.
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
    numbered: bool = False

    @property
    def has_few_files(self) -> bool:
        """True if all files of a folder have an image, though few images have a file."""
        return self.folders is not None and self.files == self.files_with_image > 1

    @property
    def is_single(self) -> bool:
        """True for an image and another one, alone."""
        alone = self.all_images == self.files == len(self.pairs) == 1
        return alone and self.other.suffix in IMAGE_SUFFIXES and not self.numbered

    @property
    def holds(self) -> bool:
        """True for two pairs or more, of different names, a third of the images and half of the other files; or all of
        the images in a folder and a quarter of other images; or all files of another folder."""
        places = (image.rpartition("/")[0] for image, _ in self.pairs)
        distinct = len(set(zip(places, self.bases, strict=True))) > len(self.bases) // 2
        if self.is_single:
            return True
        if self.folders is not None and len(set(self.bases)) < 2:  # image.jpg in each folder
            return False
        if self.numbered and 2 * len({image.rpartition("/")[0] for image, _ in self.pairs}) > len(self.pairs):
            return False  # cat/cat_1.jpg, cat/cat_2.jpg
        return (
            len(self.pairs) > 1
            and distinct
            and (self.folders is not None or _RARE * len(self.pairs) >= self.all_images)
            and (3 * len(self.pairs) >= self.images or self.has_few_files)
            and (4 if self.has_more_images else 2) * self.files_with_image >= self.files
        )

    @property
    def has_more_images(self) -> bool:
        """True if the other files are images in the same folder, and each image has one."""
        return self.folders is None and self.other.suffix in IMAGE_SUFFIXES and self.images == len(self.pairs)

    @property
    def has_more_files(self) -> bool:
        """True if each image has a file, and some files have no image."""
        return self.images == len(self.pairs) and self.files > self.files_with_image

    @property
    def is_complete(self) -> bool:
        """True if each image has a file, and each file an image."""
        return self.images == len(self.pairs) == self.files == self.files_with_image

    @property
    def may_hold(self) -> bool:
        """False if none of many images had such a file."""
        return bool(self.pairs) or self.images < _ENOUGH

    @property
    def merely_counts(self) -> bool:
        """True if names are no evidence: common parts hardly differ by other than numbers, decimal or hexadecimal, or
        are few."""
        if self.folders is not None and {*self.one.tokens, *self.other.tokens} & {*map(str.lower, self.folders)}:
            return True  # names that begin with their folder's, as those of classes do
        # Names of folders are no evidence either: art/cat/art1.jpg, real/cat/real1.jpg
        parts = {part for image, _ in self.pairs for part in image.lower().split("/")[:-1]}
        words = (_WORD.sub(lambda word: "" if word[0].lower() in parts else word[0], base) for base in self.bases)
        shapes = Counter(NUMBER.sub("0", base) for base in words)
        if len(shapes) < _LEAST_SHAPES:  # smile/anna.jpg, frown/anna.jpg
            return True
        others = sum(count for shape, count in shapes.items() if "0" not in shape)  # one may be example.jpg
        return _FEW * others <= len(self.bases) and 4 * len(shapes) <= len(self.bases)

    def add(self, images: Names, files: Names) -> None:
        """Adds the pairs among the names of two folders."""
        together = images.folder == files.folder
        self.all_images += len(images.by_affix.get(self.one, ()))
        if together and self.other not in files.by_affix:
            return
        for name, base in images.by_affix.get(self.one, ()):
            if together and self.other.is_longer(self.one) and self.other.base_of(name):
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
            if together and self.one.is_longer(self.other) and self.one.base_of(name):
                continue
            self.files += 1
            owner = self.one.find(images.all, base)
            self.files_with_image += owner is not None
            if owner is not None and not (known or together):  # few of many images have a file
                self.pairs.append((join(images.folder, owner), join(files.folder, name)))
                self.bases.append(base)

    def swapped(self) -> Relation:
        """Returns the relation with images and other files exchanged."""
        folders = None if self.folders is None else (self.folders[1], self.folders[0])
        pairs = [(file, image) for image, file in self.pairs]
        return replace(
            self,
            one=self.other,
            other=self.one,
            folders=folders,
            images=self.files,
            files=self.images,
            files_with_image=len(pairs),
            pairs=pairs,
        )

    def list_numbers(self, tree: Tree) -> list[Relation]:
        """Returns a relation for each number that most images have in place of a ``*``: ``0001x2.png``, ``0001x3.png``.
        Returns the relation itself if there are none or many such numbers."""
        ends: Counter[str] = Counter()
        some = sample([*zip(self.pairs, self.bases, strict=True)], LOOKED_AT)
        for (_, file), base in some:
            names = self.other.find_all(tree.names(file.rpartition("/")[0]).files, base)
            ends.update(name[len(self.other.before + base) :] for name in names)
        usual = sorted(end for end, count in ends.items() if 2 * count > len(some))
        if "*" not in self.other.after or not 0 < len(usual) <= MOST_NUMBERS:
            return [self]
        (image, file), base = self.pairs[0], self.bases[0]
        others = [self.other._replace(after=end) for end in usual]
        folder = file.rpartition("/")[0]
        examples = [join(folder, f"{each.before}{base}{each.after}") for each in others]
        return [
            replace(self, other=other, pairs=[(image, example), *self.pairs[1:]])
            for other, example in zip(others, examples, strict=True)
        ]

    def has_other_owner(self, tree: Tree) -> bool:
        """Tells if a further folder beside that of the files has images of the same names."""
        image, file = self.pairs[0]
        mine, its = image.split("/"), file.split("/")
        place = next((n for n, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), 0)
        for name in tree.names("/".join(its[:place])).folders:
            other = "/".join((*mine[:place], name, *mine[place + 1 : -1]))
            found = (
                self.one.find(tree.names(other).files, self.bases[0]) if name not in (mine[place], its[place]) else None
            )
            if found is not None:
                return True
        return False

    @property
    def patterns(self) -> tuple[str | None, str]:
        """Patterns of the images and of the other files. The first is None if the second is enough."""
        one, other = self.one.pattern(), self.other.pattern()
        if self.folders is None:
            needed = not self.one.is_plain or self.other.is_plain
            return (one if needed else None), other
        if self.one.is_plain:
            one = "{s}.*"
            if self.other.is_plain and self.other.suffix in IMAGE_SUFFIXES:
                other = "{s}.*"
        return f"{self.folders[0]}/{one}".lstrip("/"), f"{self.folders[1]}/{other}"

    @property
    def order(self) -> bool:
        """Images come before other files, so that these are found to belong to the first of several images."""
        return self.other.suffix not in IMAGE_SUFFIXES

    @property
    def length(self) -> int:
        """Number of characters of both affixes; names that differ by less go together rather."""
        return sum(len(affix.before) + len(affix.after) for affix in (self.one, self.other))

    @property
    def ignore(self) -> str:
        """Pattern for ``--ignore`` that leaves the other files out."""
        if self.folders is not None:
            return f"{self.folders[1]}/".replace("{dir}", "*")
        return self.other.pattern().replace("{s}", "*")
