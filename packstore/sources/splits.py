"""Reads splits from the names of folders and files: the one table of words, and the one function, of all sources.

Formats whose own tools read names differently have a table of their own: :mod:`packstore.sources.huggingface.splits`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from packstore.core.errors import UsageError, printable
from packstore.sources.ignoring import compile_ignore_rules, escape_pattern

if TYPE_CHECKING:
    from packstore.sources.listing import Identity
    from packstore.sources.tree import Tree

# Words of each split, in packing order.
_WORDS = {
    "train": ("train", "training"),
    "trainval": ("trainval",),
    "val": ("val", "valid", "validate", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluate", "evaluation", "holdout", "heldout"),
}
# Split that each word means, in packing order: ``validation`` is ``val``.
MEANINGS: Mapping[str, str] = {word: split for split, words in _WORDS.items() for word in words}
# Split of samples without one, in a source whose other samples have splits.
UNASSIGNED = "unassigned"
# Words that name a split, in packing order.
SPLIT_ORDER = tuple(MEANINGS)
# Words beside the word of a split that tell nothing: ``train_set``.
_FILLERS = frozenset(
    ("set", "sets", "data", "dataset", "split", "folder", "images", "image", "imgs", "img", "photos", "pictures")
)
_FILLED = re.compile(rf"^({'|'.join(SPLIT_ORDER)})({'|'.join(_FILLERS)})$")
_LIKELY = re.compile(rf"{'|'.join(SPLIT_ORDER)}|hold|held")
_APART = re.compile(r"[\W\d_]+")
_NEXT = re.compile(r",(?=[^,=]+=)")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def find_split(name: str) -> str:
    """Returns the split in the name of a file or folder, a word of :data:`SPLIT_ORDER` in lower case.

    Only whole words count; case, digits and other characters separate them. ``train2017`` and ``TrainImages`` are
    ``train``, ``training_set`` is ``training``, ``test-dev`` is ``test``, ``train_val`` is ``trainval``. Returns
    ``""`` for no split, such as ``trains``, and for words of different splits.
    """
    return _read_name(name)[0]


def find_split_in_path(path: str) -> str:
    """Returns the split in a folder's path; ``""`` if there is none. Takes the first part that names nothing but a
    split (``train``, ``TrainImages``), else the first part with any split (``seg_train``)."""
    read = [_read_name(part) for part in path.split("/")]
    return next((split for split, rest in read if split and not rest), next((s for s, _ in read if s), ""))


def find_split_of_file(path: str) -> str:
    """Returns the split in the name of a file, else that in its folder's path, else ``""``."""
    folder, _, name = path.rpartition("/")
    return find_split(name.rpartition(".")[0] or name) or find_split_in_path(folder)


def find_meanings(path: str) -> set[str]:
    """Returns what the splits in the parts of a path mean: ``train``, ``trainval``, ``val``, ``test``."""
    return {MEANINGS[split] for part in path.split("/") if (split := find_split(part))}


def is_split(name: str) -> bool:
    """Tells if a name is a split and nothing else, whatever its case: ``Train``."""
    return name.lower() in MEANINGS


def is_split_value(value: str) -> bool:
    """Tells if a cell of a table names a split, and nothing else: ``Training``, ``PublicTest``."""
    split, rest = _read_name(value)
    return bool(split) and {*rest} <= {"public", "private"}


def lower_known_split(name: str) -> str:
    """Returns the name of a split, in lower case if it is a word of :data:`SPLIT_ORDER`."""
    return name.lower() if is_split(name) else name


def find_split_folders(
    names: Iterable[str], list_folders: Callable[[str], Iterable[str]] | None = None
) -> dict[str, str]:
    """Finds the splits among folders side by side, which may also be classes. Returns their splits by name, in packing
    order.

    - ``Train`` always is a split.
    - ``seg_train`` and ``seg_test`` are splits, since their names differ in the split alone. Further words such as
      ``images`` and ``set`` do not count: ``train_set`` goes with ``test``.

    ``list_folders`` lists the folders in a folder. Folders whose names are not exactly splits, and which contain
    folders but none in all of them, are no splits.

    ``test_tubes`` alone, or beside ``train_tracks``, is a class. So are names of which two have one split, and groups
    of names that contradict each other: ``trainA``, ``trainB``, ``testA``, ``testB``.
    """
    names = list(names)
    if not _LIKELY.search("\0".join(names).lower()):  # most folders of classes
        return {}
    read = {name: _read_name(name) for name in names}
    exact = {name: split for name, (split, _) in read.items() if is_split(name)}
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    for name, (split, rest) in read.items():
        if split:
            groups.setdefault(rest, {})[name] = split
    fitting = [group for group in groups.values() if len({*map(MEANINGS.get, group.values())}) > 1]
    if exact:
        fitting = [group for group in fitting if exact.keys() <= group.keys()]
    found = fitting[0] if len(fitting) == 1 and max(Counter(fitting[0].values()).values()) == 1 else exact
    if list_folders is not None and found is not exact:
        inside = _list_inside(found, list_folders)
        if all(inside) and not set.intersection(*inside):  # no class is in both
            found = exact
    return dict(sorted(found.items(), key=lambda item: (SPLIT_ORDER.index(item[1]), item[0])))


def _list_inside(names: Iterable[str], list_folders: Callable[[str], Iterable[str]]) -> list[set[str]]:
    """Lists the folders in each of several folders; or in the only one there, if that repeats the name:
    ``seg_train/seg_train``."""
    inside = {name: set(list_folders(name)) for name in names}
    return [set(list_folders(f"{name}/{name}")) if each == {name} else each for name, each in inside.items()]


def find_splits_of_folders(folders: Iterable[str], *, some: bool = False) -> dict[str, str]:
    """Finds the split of each of several folders by their paths. Returns ``{}`` unless all have one; with ``some``,
    leaves out folders without a split.

    The words of a path that name nothing but a split decide. Else the folders at one level decide together, see
    :func:`find_split_folders`.
    """
    folders = dict.fromkeys(folders)
    parts = {folder: folder.split("/") for folder in folders}
    plain = {
        folder: next((split for split, rest in map(_read_name, its) if split and not rest), "")
        for folder, its in parts.items()
    }
    if all(plain.values()):
        return plain
    for level in range(min(map(len, parts.values()), default=0)):
        found = find_split_folders({its[level] for its in parts.values()})
        if all(its[level] in found for its in parts.values()):
            return {folder: found[its[level]] for folder, its in parts.items()}
    return {folder: split for folder, split in plain.items() if split} if some else {}


@dataclass(frozen=True, slots=True)
class SplitFolders:
    """Top folders of an image folder with splits.

    Attributes:
        splits: Split of each folder that is one, in packing order.
        others: Other folders with images, which may be splits or classes.
        empty: Folders without images: annotations, tools, text.
    """

    splits: Mapping[str, str]
    others: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


def find_splits(
    tree: Tree, directories: Collection[str], above: tuple[Identity, ...], chosen: Sequence[str] = ()
) -> SplitFolders | None:
    """Finds the splits among the top ``directories`` of ``tree``; None if all are classes.

    - With ``chosen`` patterns, see :class:`SplitPatterns`: the folders that they match.
    - Otherwise: by name, see :func:`find_split_folders`. If there are other folders, too, one split must contain
      folders of images: a class that is named ``train`` contains its images directly.

    ``above`` identifies the root of ``tree`` and the directories above it.
    """
    names = sorted(directories)
    if chosen:
        patterns = SplitPatterns(chosen)
        splits = _find_chosen(tree, patterns, names)
    else:
        splits = find_split_folders(names, lambda name: tree.list(name).directories)
    unknown = [name for name in names if name not in splits]
    if not splits or (unknown and not chosen and not any(_contains_classes(tree, name, above) for name in splits)):
        return None
    unknown = [name for name in unknown if not any(each.startswith(f"{name}/") for each in splits)]
    others = tuple(name for name in unknown if tree.holds_images(name, above))
    return SplitFolders(splits, others, tuple(name for name in unknown if name not in others))


def _find_chosen(tree: Tree, patterns: SplitPatterns, folders: Sequence[str], depth: int = 4) -> dict[str, str]:
    """Finds the splits among folders by patterns, or else among the folders in them, and returns them by path."""
    found = {path: split for path in folders if (split := patterns.find_split(path, True))}
    texts = [each.partition("=")[2] for each in patterns.given]
    further = [
        path
        for path in folders
        # A pattern may begin with the path of a folder.
        if not found or (path not in found and any(text.startswith(f"/{escape_pattern(path)}/") for text in texts))
    ]
    if further and depth:
        deeper = (f"{path}/{name}" for path in further for name in tree.list(path).directories)
        found |= _find_chosen(tree, patterns, sorted(deeper), depth - 1)
    return dict(sorted(found.items(), key=lambda item: (patterns.names.index(item[1]), item[0])))


def _contains_classes(tree: Tree, name: str, above: tuple[Identity, ...]) -> bool:
    """Tells if a top folder contains folders of images."""
    inside = tree.list(name)
    return any(
        tree.holds_images(f"{name}/{folder}", (*above, inside.identity)) for folder in sorted(inside.directories)
    )


def check_splits(splits: object) -> tuple[str, ...]:
    """Checks the option ``splits``, and returns it with one ``name=pattern`` each: ``train=images/a,val=images/b`` has
    two. The option is a text or a sequence of texts.

    Raises :class:`UsageError` for other values, a missing name, and an unusable pattern, see
    :class:`packstore.sources.ignoring.IgnoreRules`.
    """
    given = (splits,) if isinstance(splits, str) else splits
    if not isinstance(given, (tuple, list)) or not all(isinstance(each, str) for each in given):
        raise UsageError(f"splits should be patterns by split such as 'train=a,val=b', got {splits!r}")
    checked = []
    for part in (part for each in given for part in _NEXT.split(each)):
        name, equals, pattern = part.partition("=")
        if not equals or not name.strip() or not pattern:
            raise UsageError(f"splits: {printable(part)!r} should be a split and a pattern, such as train=images/a")
        compile_ignore_rules((pattern,))
        checked.append(f"{lower_known_split(name.strip())}={pattern}")
    return tuple(checked)


class SplitPatterns:
    """Patterns of splits. The first one that matches a path, or a folder above it, decides."""

    def __init__(self, splits: Sequence[str]) -> None:
        """``splits`` are those of :func:`check_splits`."""
        self.given = tuple(splits)
        pairs = [each.partition("=")[::2] for each in splits]
        self._rules = [(name, compile_ignore_rules((pattern,))) for name, pattern in pairs]
        self.names = tuple(dict.fromkeys(name for name, _ in pairs))

    def find_number(self, path: str, is_folder: bool = False) -> int | None:
        """Returns the number of the pattern that decides, or None if none matches."""
        return next((n for n, (_, rules) in enumerate(self._rules) if rules.hides(path, is_folder)), None)

    def find_split(self, path: str, is_folder: bool = False) -> str:
        """Returns the split of a file or folder; ``""`` if no pattern matches."""
        number = self.find_number(path, is_folder)
        return "" if number is None else self._rules[number][0]


@lru_cache(1 << 12)
def _read_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Returns the split in a name, ``""`` for none or several, and its other words."""
    if not _LIKELY.search(name.lower()):
        return "", ()
    words = [_FILLED.sub(r"\1", each.lower()) for run in _APART.split(name) for each in _CAMEL.split(run) if each]
    for number, pair in enumerate(map("".join, pairwise(words))):
        if pair in MEANINGS:  # train_val, hold-out
            words[number : number + 2] = [pair]
            break
    splits = [word for word in words if word in MEANINGS]
    if "test" in splits:
        splits = [word for word in splits if word != "dev"]  # test-dev
    split = splits[0] if len({MEANINGS[word] for word in splits}) == 1 else ""
    return split, tuple(word for word in words if word not in MEANINGS and word not in _FILLERS)
