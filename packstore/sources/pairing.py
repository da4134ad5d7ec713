"""Finds files that belong to images, by the evidence of names, sizes and pictures; no list of words decides.

- In a folder, files go together if their names differ by the same text: ``a.jpg`` and ``a_mask_0.png``, ``left1.jpg``
  and ``right1.jpg``.
- Two folders go together if they have files of the same names, perhaps with such a text: ``images/a.jpg`` and
  ``masks/a.png``, in ``train`` and in ``val``.
- A folder with one image goes with a folder of pictures beside it if many folders contain two such: ``7/images/7.png``
  and ``7/masks/0.png``.

Names that merely count prove nothing, since classes count alike: then pictures must resemble each other, or sizes must
vary and yet agree. Only some names are looked at, spread evenly, and few files are opened.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, product
from typing import TYPE_CHECKING

import numpy as np

from packstore.sources.affixes import (
    Affix,
    differ_in_number,
    go_together,
    list_affixes,
    list_glued_affixes,
    sample,
)
from packstore.sources.beside import join
from packstore.sources.companion_patterns import MASKS, PAIR, SIDECAR, Companion, parse_pattern
from packstore.sources.contents import (
    MOST_SIDE_BY_SIDE,
    Contents,
    FolderContents,
    is_no_word,
    list_contents,
    path_and_parents,
)
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.relations import LOOKED_AT, MOST_NUMBERS, NUMBER, Names, Relation
from packstore.sources.sidecars import is_words, tell_type
from packstore.sources.splits import is_split
from packstore.sources.tree import Tree

if TYPE_CHECKING:
    from packstore.sources.resemblance import Picture

_SAMPLED, _PER_FOLDER, _TEXTS, _BYTES = 2048, 256, 64, 1 << 16
_MOST_COMPARED, _PROBED, _MOST_FORMS = 4, 2, 4
_FEWEST, _ENOUGH_PIXELS = 4, 1 << 25
"""Of large images, fewer pairs are looked at."""
_PHOTOS = (".jpg", ".jpeg")
PROSE = (".txt", ".caption", ".cap")
"""Suffixes of texts for people."""
NO_SIDECARS = frozenset(
    (
        *("", ".pth", ".pt", ".ckpt", ".bin", ".onnx", ".safetensors", ".h5", ".hdf5", ".pkl", ".log", ".py", ".ipynb"),
        *(".sh", ".md", ".html", ".htm", ".css", ".js", ".zip", ".tar", ".gz", ".rar", ".7z", ".db", ".ini", ".pdf"),
        *(".md5", ".sha1", ".sha256", ".xmp", ".aae", ".thm", ".mp4", ".mov", ".avi", ".mkv", ".wav", ".mp3", ".lnk"),
        *(".bak", ".tmp", ".swp", ".lock", ".url", ".psd", ".xcf", ".blend", ".obj", ".mtl", ".svg", ".eps", ".m"),
    )
)
"""Suffixes of files that are not annotations even with the stem of an image: models, scripts, films."""


_COPIES = frozenset(("copy", "kopie", "thumb", "thumbnail"))
"""Words in names of copies, which are no further form of an image."""
_WORK = re.compile(r"logs?|runs?|checkpoints?|ckpts?|weights|wandb|mlruns|tensorboard|lightning_logs|__pycache__")


def is_work_folder(folder: str) -> bool:
    """Tells if a folder is of programs' own files (``logs``), or in such a folder. Names of these files may look like
    those of images."""
    return any(map(_WORK.fullmatch, folder.lower().split("/")))


def find_companions(tree: Tree) -> list[Companion]:
    """Finds files that belong to images, those of most images first. Opens few files. Empty if there are none."""
    contents = list_contents(tree)
    if "companions" not in contents.cache:
        contents.cache["companions"] = _find_companions(tree, contents) if contents.may_have_companions else []
    found: list[Companion] = contents.cache["companions"]
    return found


def _find_companions(tree: Tree, contents: Contents) -> list[Companion]:
    """Does the work of :func:`find_companions`."""
    finders = _find_folders_of_one_image, _find_equal_folders, _find_equal_texts
    special = [each for find in finders for each in find(tree, contents)]
    of_samples = [companion for companion, _ in special]
    samples = {folder for _, folders in special for folder in folders}
    found: list[Companion] = []
    patterns = [parse_pattern(each.option, each.text) for each in of_samples]
    for relations in (
        _relate_within(tree, contents),
        _relate_numbered(tree, contents),
        _relate_folders(tree, contents),
    ):
        for relation in sorted(
            relations, key=lambda each: (-len(each.pairs), each.order, each.length, each.patterns[1])
        ):
            # Files that belong to images in their folder belong to no others, and to files no further files belong.
            images, files = (
                any(pattern.matches_file(pair[side]) for pattern in patterns for pair in sample(relation.pairs, _TEXTS))
                for side in (0, 1)
            )
            if files:
                continue
            if len({_find_sample(path, samples) for path in relation.pairs[0]} - {""}) > 1:
                continue
            for companion in _judge(tree, relation):
                masks = companion.certain and companion.option == MASKS and companion.example == relation.pairs[0]
                if (images or relation.is_single) and not masks:
                    continue
                found.append(companion)
                patterns.append(parse_pattern(companion.option, companion.text))
    return [*_follow_chains(found), *of_samples]


def _follow_chains(found: Sequence[Companion]) -> Iterator[Companion]:
    """Yields companions, each with the image itself: of a mask that goes with a depth image that goes with a photo, the
    photo."""
    owners = {each.text.rpartition("=")[2]: each for each in found if each.option != SIDECAR and "=" in each.text}
    for each in found:
        image, equals, files = each.text.partition("=")
        example = each.example[0]
        seen = {files}
        while equals and image in owners and image not in seen:
            seen.add(image)
            owner = owners[image]
            example = owner.example[0] if owner.example[1] == example else example
            image = owner.text.partition("=")[0]
        yield replace(each, text=f"{image}{equals}{files}", example=(example, each.example[1]))


def _find_sample(path: str, samples: Collection[str]) -> str:
    """Returns the folder of the sample to which a file belongs; ``""`` for none of ``samples``."""
    return next((folder for folder in path_and_parents(path) if folder in samples), "")


def _relate_within(tree: Tree, contents: Contents) -> list[Relation]:
    """Relates the names in each folder to each other."""
    folders = [each for each in contents.folders.values() if _may_relate(each)]
    if not folders:
        return []
    per_folder = max(2, min(_PER_FOLDER, _SAMPLED // len(folders)))
    listed = [Names.of(tree, folder, per_folder) for folder in sample(folders, _SAMPLED // 2)]
    frequent = Names.list_frequent(listed)
    relations = [
        Relation(*pair) for one, other in combinations(frequent, 2) if (pair := _order(one, other)) is not None
    ]
    for relation in relations:
        for each in listed:
            if relation.may_hold:
                relation.add(each, each)
    return [each for each in relations if each.holds]


def _relate_numbered(tree: Tree, contents: Contents) -> list[Relation]:
    """Relates names of images in each folder that differ by a number only: ``cam0_a.png`` and ``cam1_a.png``; and names
    of other files to those of such images: ``pose_a.txt``. At most nine numbers count something else than samples."""
    folders = [each for each in contents.folders.values() if each.images.count > 1 and not each.is_uniform]
    per_folder = max(2, min(_PER_FOLDER, _SAMPLED // max(1, len(folders))))
    listed = [Names.numbered(tree, folder, per_folder) for folder in sample(folders, _SAMPLED // 2)]
    least = max(2, sum(len(each.sampled) for each in listed) // MOST_NUMBERS)
    counts: Counter[Affix] = Counter()
    for each in listed:
        counts.update({affix: len(found) for affix, found in each.by_affix.items()})
    frequent = sorted(affix for affix, count in counts.items() if count >= least)
    relations = [Relation(*pair, numbered=True) for pair in combinations(frequent, 2) if differ_in_number(*pair)]
    numbered = list(dict.fromkeys(affix for each in relations for affix in (each.one, each.other)))
    beside = [Names.of(tree, each, per_folder) for each in sample(folders, _SAMPLED // 2) if numbered and each.others]
    others = [each for each in Names.list_frequent(beside) if each.suffix not in (*IMAGE_SUFFIXES, *NO_SIDECARS)]
    texts = [Relation(*pair, numbered=True) for pair in product(numbered, others) if go_together(*pair)]
    places = {each.folder: each for each in listed}
    for relation, names in (*product(relations, listed), *product(texts, beside)):
        if relation.may_hold:
            relation.add(places[names.folder], names)
    return [each for each in (*relations, *texts) if each.holds]


def _may_relate(folder: FolderContents) -> bool:
    """Tells if names in a folder may go together: there are images, and names of another form or suffix."""
    others = any(suffix not in NO_SIDECARS for suffix in folder.others)
    return folder.images.count > 0 and (others or (folder.images.count > 1 and not folder.is_uniform))


def _order(one: Affix, other: Affix) -> tuple[Affix, Affix] | None:
    """Returns two affixes, that of the images first. Returns None if their names cannot go together, or neither is of
    images."""
    images = [each for each in (one, other) if each.suffix in IMAGE_SUFFIXES]
    if not images or not go_together(one, other) or any(each.suffix in NO_SIDECARS for each in (one, other)):
        return None
    if len(images) == 1:
        return (one, other) if images[0] == one else (other, one)
    if one.suffix == other.suffix and not (one.has_word or other.has_word):
        return None  # a further number
    if any("(*)" in each.after for each in (one, other)):
        return None  # a copy: a (1).jpg
    # The plain name is the image's; then the photo's suffix; then the order of the alphabet.
    first, second = sorted((one, other), key=lambda each: (not each.is_plain, each.suffix not in _PHOTOS, each))
    return first, second


def _relate_folders(tree: Tree, contents: Contents) -> list[Relation]:
    """Relates the names in folders whose paths differ by the name of one folder."""
    groups: dict[tuple[str, str], list[FolderContents]] = defaultdict(list)
    related: dict[tuple[str, str], list[tuple[FolderContents, FolderContents]]] = defaultdict(list)
    for folder in contents.folders.values():
        if folder.path and (folder.images.count or folder.others) and not is_work_folder(folder.path):
            parts = folder.path.split("/")
            for place in range(len(parts)):
                groups["/".join(parts[:place]), "/".join(parts[place + 1 :])].append(folder)
                if place + 1 < len(parts) and _holds_folders_only(contents, parts[: place + 1]):
                    without = contents.folders.get("/".join((*parts[:place], *parts[place + 1 :])))
                    if without is None:
                        groups["/".join(parts[:place]), "/".join(parts[place + 2 :])].append(folder)
                    elif without.images.count and _may_share(without, folder):  # masks/cat beside cat
                        related["", parts[place]].append((without, folder))
    for (above, below), folders in groups.items():
        ends = len(above) + bool(above), len(below) + bool(below)
        for one, other in _list_folder_pairs(tree, folders, ends):
            key = _cut(one.path, ends), _cut(other.path, ends)
            if is_split(key[0]) and is_split(key[1]):
                continue
            if "/" in key[0] and "/" in key[1]:
                continue  # a/train and b/train, which a and b relate
            if key[::-1] in related:
                key, one, other = key[::-1], other, one
            if other.path.startswith(one.path):
                key = "", f"{{dir}}{other.path[len(one.path) :]}"
            related[key].append((one, other))
    return [relation for names, pairs in related.items() for relation in _relate_two(tree, names, pairs)]


def _holds_folders_only(contents: Contents, parts: Sequence[str]) -> bool:
    """Tells if a folder holds no images and few folders, as ``masks`` with ``masks/vessels`` and ``masks/optic_disc``
    does."""
    folder = contents.folders.get("/".join(parts))
    return folder is not None and not folder.images.count and 0 < len(folder.folders) <= _MOST_FORMS


def _cut(path: str, ends: tuple[int, int]) -> str:
    """Returns a path without so many characters at its beginning and end."""
    return path[ends[0] : len(path) - ends[1]]


def _list_folder_pairs(
    tree: Tree, folders: Sequence[FolderContents], ends: tuple[int, int]
) -> Iterator[tuple[FolderContents, FolderContents]]:
    """Yields pairs of folders side by side that may share names, a folder of images first. Of many folders, compares
    all to the one that shares most names; of more than 32, only if some of these pairs hold. ``ends`` are the lengths
    of what their paths have in common."""
    holding = [each for each in folders if each.images.count]
    if not holding or len(folders) < 2:
        return
    pairs: Iterable[tuple[FolderContents, FolderContents]] = combinations(folders, 2)
    if len(folders) > _MOST_COMPARED:
        first = _find_most_shared(holding)
        pairs = ((first, each) for each in folders)
        if len(folders) > MOST_SIDE_BY_SIDE:  # most are classes
            pairs = [(first, each) for each in folders if each is not first and _may_share(first, each)]
            if not any(_hold(tree, ends, pair) for pair in sample(pairs, _PROBED)):
                return
    for one, other in pairs:
        one, other = (one, other) if one.images.count else (other, one)
        if one is not other and one.images.count and _may_share(one, other):
            yield one, other


def _find_most_shared(folders: Sequence[FolderContents]) -> FolderContents:
    """Returns the folder whose images have the names that most other folders have; of several, one of photos."""
    _, places, counts = np.unique(
        np.concatenate([each.images.stems for each in folders]), return_inverse=True, return_counts=True
    )
    ends = np.cumsum([len(each.images.stems) for each in folders])[:-1]
    shared = {
        each.path: int((one > 1).sum()) for each, one in zip(folders, np.split(counts[places], ends), strict=True)
    }
    return min(
        folders, key=lambda each: (-shared[each.path], not each.images.first[0].lower().endswith(_PHOTOS), each.path)
    )


def _hold(tree: Tree, ends: tuple[int, int], pair: tuple[FolderContents, FolderContents]) -> bool:
    """Tells if files of two folders go together, by their names and a few pictures."""
    names = _cut(pair[0].path, ends), _cut(pair[1].path, ends)
    return any(_judge(tree, relation) for relation in _relate_two(tree, names, [pair]))


def _may_share(one: FolderContents, other: FolderContents) -> bool:
    """Tells if two folders may have files of the same names: some stems are equal, or names differ by a text."""
    sets = [other.images, *(names for suffix, names in other.others.items() if suffix not in NO_SIDECARS)]
    if any(each.count and each.count_shared(one.images) for each in sets):
        return True
    return len(_list_bases(one, other) & _list_bases(other, one)) > 1


def _list_bases(folder: FolderContents, other: FolderContents) -> set[str]:
    """Returns the possible common parts of the first names of a folder with those of another, for each kind of file."""
    stems = sorted(chain.from_iterable(_list_first_names(other)))
    names = [name for each in _list_first_names(folder) for name in each[:LOOKED_AT]]
    return {base for name in names for _, base in (*list_affixes(name), *list_glued_affixes(name, stems))}


def _list_first_names(folder: FolderContents) -> list[Sequence[str]]:
    """Lists the first names of each kind of file in a folder."""
    others = (names.first for suffix, names in folder.others.items() if suffix not in NO_SIDECARS)
    return [folder.images.first, *others]


def _relate_two(
    tree: Tree, folders: tuple[str, str], pairs: Sequence[tuple[FolderContents, FolderContents]]
) -> list[Relation]:
    """Relates the names in pairs of folders."""
    per_folder = max(2, min(_PER_FOLDER, _SAMPLED // len(pairs)) // 2)
    some = sample(pairs, _SAMPLED // 4)
    listed = [(Names.of(tree, one, per_folder, other), Names.of(tree, other, per_folder, one)) for one, other in some]
    frequent = [Names.list_frequent(pair[side] for pair in listed) for side in (0, 1)]
    relations = [
        Relation(one, other, folders)
        for one in frequent[0]
        for other in frequent[1]
        if one.suffix in IMAGE_SUFFIXES
        and other.suffix not in NO_SIDECARS
        and (go_together(one, other) or (one == other and one.is_plain))
    ]
    for each in relations:
        for images, files in listed:
            if each.may_hold:
                each.add(images, files)
    return [each for each in relations if each.holds]


def _judge(tree: Tree, relation: Relation) -> list[Companion]:
    """Looks at a few files of a relation: returns what they are; nothing if the files only have similar names."""
    from packstore.sources.resemblance import (
        are_masks,
        differ_in_colour,
        have_own_sizes,
        read_picture,
        resemble,
    )

    images, files = relation.patterns
    text = files if images is None else f"{images}={files}"
    if relation.other.suffix not in IMAGE_SUFFIXES:
        contents = [tree.first_bytes(file, _BYTES) for _, file in relation.pairs[:_TEXTS]]
        if relation.folders is not None and relation.merely_counts and relation.has_other_owner(tree):
            return []
        type = tell_type(relation.other.suffix, contents, tree.encoding)
        certain = type == "text" and relation.other.suffix in PROSE and all(map(is_words, contents))
        certain = certain and not relation.numbered  # it may belong to images of several numbers
        return [] if type is None else [_make(relation, SIDECAR, f"{text}={type}", certain)]
    some = dict.fromkeys(sample(relation.pairs, LOOKED_AT))
    pictures: list[tuple[Picture | None, Picture | None]] = []
    for image, file in some:
        pictures.append((read_picture(tree, image), read_picture(tree, file)))
        seen = sum(each.width * each.height for pair in pictures for each in pair if each is not None)
        if len(pictures) == _FEWEST and (seen > _ENOUGH_PIXELS or _are_classes(relation, pictures)):
            break
    by_names = relation.folders is None or not relation.merely_counts
    if are_masks(pictures, by_names):
        return [_make(relation, MASKS, text, relation.folders is None or not relation.has_other_owner(tree))]
    grey_first = differ_in_colour(pictures) and all(image is not None and image.is_grey for image, _ in pictures)
    masks_first = are_masks([(file, image) for image, file in pictures], by_names)
    if relation.folders is None and relation.one.suffix in _PHOTOS and relation.other.suffix not in _PHOTOS:
        grey_first = False  # an X-ray beside its overlay
    if (grey_first or masks_first) and (relation.folders is None or relation.folders[0]):
        return _judge(tree, relation.swapped())
    if all(image is not None and image.is_mask for image, _ in pictures):
        return []  # several masks of an image
    sides = [[token for token in affix.tokens if token != "*"] for affix in (relation.one, relation.other)]
    words = [*sides[0], *sides[1]]
    letters = all(side and all(len(word) == 1 for word in side) for side in sides)  # L1.jpg and R1.jpg
    if relation.numbered:
        return [_make(relation, PAIR, text, False)] if resemble(pictures) else []
    plain = relation.one.is_plain and relation.other.is_plain
    unnamed = relation.folders is None and not plain and all(map(is_no_word, words)) and not letters
    if unnamed and ({*words} & _COPIES or not resemble(pictures)):
        return []
    ended = all(sides) and not relation.one.before and not relation.other.before and relation.is_complete
    named = (relation.one.is_plain or ended) and words and not any(map(is_no_word, words)) and relation.folders is None
    named = named and len({*relation.bases}) > 1  # not cat/img_amber.jpg and cat/img_birch.jpg
    unsure = not named and (letters or relation.merely_counts)
    if unsure and not (have_own_sizes(pictures) or differ_in_colour(pictures) or resemble(pictures)):
        return []
    if relation.has_more_files and (relation.folders is None or relation.folders[0]):
        relation = relation.swapped()
    return [
        _make(each, PAIR, "=".join((each.patterns[0] or each.one.pattern(), each.patterns[1])), False)
        for each in relation.list_numbers(tree)
    ]


def _are_classes(relation: Relation, pictures: Sequence[tuple[Picture | None, Picture | None]]) -> bool:
    """Tells if folders whose names count have unlike pictures, of which no more need be looked at."""
    from packstore.sources.resemblance import differ_in_colour, have_own_sizes, resemble

    if relation.folders is None or not relation.merely_counts:
        return False
    masks = any(each is not None and each.is_mask for pair in pictures for each in pair)
    return not (masks or have_own_sizes(pictures) or differ_in_colour(pictures) or resemble(pictures))


def _make(relation: Relation, option: str, text: str, certain: bool) -> Companion:
    """Makes a companion from a relation."""
    lone = relation.files - relation.files_with_image
    return Companion(
        option, text, relation.ignore, len(relation.pairs), relation.images, relation.pairs[0], certain, lone
    )


def _find_folders_of_one_image(tree: Tree, contents: Contents) -> Iterator[tuple[Companion, list[str]]]:
    """Finds folders that contain a folder with one image and a folder of masks, of whatever names: ``7/images/7.png``,
    ``7/masks/0.png``. Yields the masks, and the folders of the samples (``7``)."""
    groups: dict[tuple[str, ...], list[tuple[FolderContents, ...]]] = defaultdict(list)
    for folder in contents.folders.values():
        inside = [contents.folders.get(join(folder.path, name)) for name in folder.folders if folder.path]
        pair = tuple(each for each in inside if each is not None and each.images.count)
        if len(pair) == 2 and min(each.images.count for each in pair) == 1:
            groups[tuple(each.path.rpartition("/")[2] for each in pair)].append(pair)
    for names, pairs in groups.items():
        for image, file in ((0, 1), (1, 0)):
            if len(pairs) > 1 and all(pair[image].images.count == 1 for pair in pairs):
                companion = _judge_folders(tree, names[file], [(pair[image], pair[file]) for pair in pairs])
                if companion is not None:
                    yield companion, [pair[image].path.rpartition("/")[0] for pair in pairs]
                    break


def _find_equal_folders(tree: Tree, contents: Contents) -> Iterator[tuple[Companion, list[str]]]:
    """Finds an image with its mask or with other forms of it in folders that all have the same few names:
    ``7/image.jpg``, ``7/mask.png``. Yields the masks and forms, each with the folders. Names with numbers may be those
    of any images: they are forms only if they resemble each other."""
    folders: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for folder in contents.folders.values():
        if 1 < folder.images.count <= _MOST_FORMS:
            folders[folder.images.first].append(folder.path)
    for names, paths in folders.items():
        if len(paths) < 2:
            continue
        some = sample(paths, LOOKED_AT)
        for image, others in _find_forms(tree, names, some):
            for name, option in others.items():
                example = join(some[0], image), join(some[0], name)
                certain = {*others.values()} == {MASKS}
                yield Companion(option, f"{{dir}}/{name}", name, len(paths), len(paths), example, certain), paths


def _find_equal_texts(tree: Tree, contents: Contents) -> Iterator[tuple[Companion, list[str]]]:
    """Finds files of one name in at least half of all folders of images, ``7/image.jpg`` and ``7/caption.txt``, that
    are not all equal. The image is the only one, or all folders have the same few. Yields them and the folders."""
    holding = [folder for folder in contents.folders.values() if folder.images.count]
    found: dict[tuple[str, str, tuple[str, ...]], list[FolderContents]] = defaultdict(list)
    for folder in holding:
        forms = folder.images.first if folder.images.count > 1 else ()
        for suffix, names in folder.others.items() if folder.path and len(forms) <= _MOST_FORMS else ():
            if names.count == 1 and suffix not in NO_SIDECARS:
                found[suffix, names.first[0], forms].append(folder)
    for (suffix, name, _), folders in found.items():
        count = len(folders)
        files = [(join(each.path, each.images.first[0]), join(each.path, name)) for each in folders[:_TEXTS]]
        texts = [tree.first_bytes(file, _BYTES) for _, file in files] if 1 < count >= len(holding) / 2 else []
        type = tell_type(suffix, texts, tree.encoding) if len({*texts}) > 1 else None
        if type is not None:
            companion = Companion(SIDECAR, f"{{dir}}/{name}={type}", name, count, count, files[0], False)
            yield companion, [folder.path for folder in folders]


def _find_forms(tree: Tree, names: Sequence[str], folders: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the name of the image among ``names``, and the option for each other name. Yields nothing unless all are
    masks or forms of it."""
    from packstore.sources.resemblance import are_masks, differ_in_colour, read_picture, resemble

    pictures = {name: [read_picture(tree, join(folder, name)) for folder in folders] for name in names}
    counting = any(map(NUMBER.search, names))
    photos = [name for name in names if not any(each is None or each.is_mask for each in pictures[name])]
    if not photos:
        return
    image = next((name for name in photos if not all(each and each.is_grey for each in pictures[name])), photos[0])
    options: dict[str, str] = {}
    for name in names:
        pairs = [*zip(pictures[image], pictures[name], strict=True)]
        if name == image:
            continue
        if not counting and are_masks(pairs):
            options[name] = MASKS
        elif resemble(pairs) or (not counting and differ_in_colour(pairs)):
            options[name] = PAIR
        else:
            return
    yield image, options


def _judge_folders(tree: Tree, name: str, pairs: Sequence[tuple[FolderContents, FolderContents]]) -> Companion | None:
    """Looks at a few pairs of folders, one with an image and one called ``name``. Returns None if that has no masks."""
    from packstore.sources.resemblance import are_masks, read_picture

    files = [
        (join(one.path, one.images.first[0]), join(other.path, other.images.first[0]))
        for one, other in sample(pairs, LOOKED_AT)
    ]
    if not are_masks([(read_picture(tree, image), read_picture(tree, mask)) for image, mask in files]):
        return None
    suffix = Counter(mask.rpartition(".")[2] for _, mask in files).most_common(1)[0][0]
    return Companion(MASKS, f"{{dir}}/../{name}/*.{suffix}", f"{name}/", len(pairs), len(pairs), files[0], True)
