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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, permutations, product
from typing import TYPE_CHECKING

from packstore.sources.beside import join
from packstore.sources.columns import make_column_name
from packstore.sources.companion_patterns import MASKS, PAIR, SIDECAR, Companion, CompanionPattern, parse_pattern
from packstore.sources.contents import MOST_SIDE_BY_SIDE, Contents, FolderContents, NameSet, is_no_word, list_contents
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.relations import (
    LOOKED_AT,
    MOST_FORMS,
    Affix,
    Names,
    Relation,
    go_together,
    list_affixes,
    list_glued_affixes,
    sample,
)
from packstore.sources.sidecars import find_sidecar_type, is_words
from packstore.sources.splits import is_split
from packstore.sources.tree import Tree

if TYPE_CHECKING:
    from packstore.sources.resemblance import Pair

_SAMPLED, _PER_FOLDER, _TEXTS, _BYTES = 2048, 256, 64, 1 << 16
_MOST_COMPARED, _MOST_LOOKED_THROUGH, _PROBED = 4, 16, 2
# Of large images, fewer pairs are looked at.
_FEWEST, _ENOUGH_PIXELS = 4, 1 << 25
_PHOTOS = (".jpg", ".jpeg")
# Suffixes of texts for people.
PROSE = (".txt", ".caption", ".cap")
# Suffixes of files that are not annotations even with the stem of an image: models, scripts, films.
NO_SIDECARS = frozenset(
    (
        *("", ".pth", ".pt", ".ckpt", ".bin", ".onnx", ".safetensors", ".h5", ".hdf5", ".pkl", ".log", ".py", ".ipynb"),
        *(".sh", ".md", ".html", ".htm", ".css", ".js", ".zip", ".tar", ".gz", ".rar", ".7z", ".db", ".ini", ".pdf"),
        *(".md5", ".sha1", ".sha256", ".xmp", ".aae", ".thm", ".mp4", ".mov", ".avi", ".mkv", ".wav", ".mp3", ".lnk"),
        *(".bak", ".tmp", ".swp", ".lock", ".url", ".psd", ".xcf", ".blend", ".obj", ".mtl", ".svg", ".eps", ".m"),
    )
)

# A pattern of files that belong to images, and how it was found.
Known = tuple[CompanionPattern, Relation]
_NONE = Affix("", "")
# Words in names of copies, which are no further form of an image.
_COPIES = frozenset(("copy", "kopie", "thumb", "thumbnail"))
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
    """Finds the files that belong to images in a tree, for :func:`find_companions` to cache."""
    of_samples = [*_find_folders_of_one_image(tree, contents)]
    found: list[Companion] = []
    known: list[Known] = [(parse_pattern(each.option, each.text), Relation(_NONE, _NONE)) for each in of_samples]
    within = [(each, each) for each in contents.folders.values() if _may_relate(each)]
    for relations in (_relate(tree, None, within), _relate_folders(tree, contents)):
        for relation in sorted(relations, key=lambda each: each.rank):
            # Files that belong to images in their folder belong to no others, and to files no further files belong.
            if _is_known(tree, known, relation, 1) or (judged := _identify(tree, relation, known)) is None:
                continue
            companion, turned = judged
            masks = companion.certain and companion.option == MASKS and turned is relation
            if not _is_known(tree, known, turned, 1) and (masks or not _is_known(tree, known, turned, 0)):
                found.append(companion)
                known.append((parse_pattern(companion.option, companion.text), turned))
    return [*_follow_chains(found), *of_samples]


def _is_known(tree: Tree, known: Sequence[Known], relation: Relation, side: int) -> bool:
    """Tells if a known pattern already covers one side of a relation: its images (0) or its other files (1)."""
    files = [pair[side] for pair in sample(relation.pairs, _TEXTS)]
    return any(any(map(pattern.matches_file, files)) and not other.is_apart(relation, tree) for pattern, other in known)


def _follow_chains(found: Sequence[Companion]) -> Iterator[Companion]:
    """Yields companions with the image at the end of their chain: the photo, for a mask of its depth image."""
    pairs = [each.text.split("=") for each in found if each.option == PAIR and "=" in each.text]
    owners = {files: image for image, files in pairs}
    for each in found:
        image, equals, files = each.text.partition("=")
        yield replace(each, text=f"{owners.get(image, image) if equals else image}{equals}{files}")


def _may_relate(folder: FolderContents) -> bool:
    """Tells if names in a folder may go together: there are images, and names of another form or suffix."""
    others = any(suffix not in NO_SIDECARS for suffix in folder.others)
    few = folder.path != "" and folder.images.count <= MOST_FORMS
    return folder.images.count > 0 and (others or (folder.images.count > 1 and (few or not folder.is_uniform)))


def _may_differ(one: Affix, other: Affix, within: bool) -> bool:
    """Tells if names of images and of other files may differ by two affixes, in one folder or in two."""
    if one.suffix not in IMAGE_SUFFIXES or other.suffix in NO_SIDECARS:
        return False
    if not within and one == other:
        return one.is_plain
    if not go_together(one, other) or not within or other.suffix not in IMAGE_SUFFIXES:
        return go_together(one, other)
    if one.suffix == other.suffix and not (one.has_word or other.has_word or one.is_numbered or other.is_numbered):
        return one.is_whole  # else a further number
    if any("(*)" in each.after for each in (one, other)):
        return False  # a copy: a (1).jpg
    # The plain name is the image's; then the photo's suffix; then the order of the alphabet.
    first, second = ((not each.is_plain, each.suffix not in _PHOTOS, each) for each in (one, other))
    return first < second


def _relate(
    tree: Tree, folders: tuple[str, str] | None, pairs: Sequence[tuple[FolderContents, FolderContents]]
) -> list[Relation]:
    """Finds the relations between names in each pair of folders, by samples of them.

    ``folders``: the two names by which their paths differ; None for names within one folder.
    """
    per_folder = max(2, min(_PER_FOLDER, _SAMPLED // max(1, len(pairs))) // (1 if folders is None else 2))
    listed: list[tuple[Names, Names]] = []
    for one, other in sample(pairs, _SAMPLED // 2):
        names = Names.of(tree, one, per_folder, None if one is other else other)
        listed.append((names, names if one is other else Names.of(tree, other, per_folder, one)))
    ones, others = (Names.list_frequent(pair[side] for pair in listed) for side in (0, 1))
    both = ((one, other) for one, other in product(ones, others) if _may_differ(one, other, folders is None))
    relations = [Relation(one, other, folders) for one, other in both]
    with_number = {each.with_any_number() for each in (*ones, *others) if each.is_numbered}
    for relation in relations:
        stars = (each for each in (relation.one, relation.other) if "*" in each.after and not each.is_whole)
        relation.has_numbers = any(each.with_any_number() in with_number for each in stars)
        for images, files in listed:
            if relation.may_hold:
                relation.add(images, files)
    return [each for each in relations if each.holds]


def _relate_folders(tree: Tree, contents: Contents) -> list[Relation]:
    """Relates the names in folders whose paths differ by the name of one folder."""
    groups: dict[tuple[str, str], list[FolderContents]] = defaultdict(list)
    related: dict[tuple[str, str], list[tuple[FolderContents, FolderContents]]] = defaultdict(list)
    for folder in contents.folders.values():
        if not folder.path or not (folder.images.count or folder.others) or is_work_folder(folder.path):
            continue
        parts = folder.path.split("/")
        for place in range(len(parts)):
            groups["/".join(parts[:place]), "/".join(parts[place + 1 :])].append(folder)
            # A folder of a few folders is no part of the names: masks/vessels beside images, masks/cat beside cat
            holder = contents.folders.get("/".join(parts[: place + 1]))
            if place + 1 == len(parts) or holder is None or holder.images.count or len(holder.folders) > MOST_FORMS:
                continue
            without = contents.folders.get("/".join((*parts[:place], *parts[place + 1 :])))
            if without is None:
                groups["/".join(parts[:place]), "/".join(parts[place + 2 :])].append(folder)
            elif without.images.count and _may_share(without, folder):
                related["", parts[place]].append((without, folder))
    for (above, below), folders in groups.items():
        ends = len(above) + bool(above), len(below) + bool(below)
        for one, other in _list_folder_pairs(tree, folders, ends):
            key = _cut_ends(one.path, ends), _cut_ends(other.path, ends)
            if (is_split(key[0]) and is_split(key[1])) or ("/" in key[0] and "/" in key[1]):
                continue  # a/train and b/train, which a and b relate
            if key[::-1] in related:
                key, one, other = key[::-1], other, one
            if other.path.startswith(one.path):
                key = "", f"{{dir}}{other.path[len(one.path) :]}"
            related[key].append((one, other))
    return [relation for names, pairs in related.items() for relation in _relate(tree, names, pairs)]


def _cut_ends(path: str, ends: tuple[int, int]) -> str:
    """Returns a path without so many characters at its beginning and end."""
    return path[ends[0] : len(path) - ends[1]]


def _list_folder_pairs(
    tree: Tree, folders: Sequence[FolderContents], ends: tuple[int, int]
) -> Iterator[tuple[FolderContents, FolderContents]]:
    """Yields pairs of folders side by side that may share names, a folder of images first."""
    holding = [each for each in folders if each.images.count]
    if not holding or len(folders) < 2:
        return
    pairs: Iterable[tuple[FolderContents, FolderContents]] = combinations(folders, 2)
    if len(folders) > _MOST_COMPARED:
        # Comparing all pairs would take too long: all are compared to the one that shares most names.
        some = sample(holding, _MOST_LOOKED_THROUGH)
        shared = [sum(each.images.count_shared(other.images) for other in some) for each in some]
        photos = [each.images.first[0].lower().endswith(_PHOTOS) for each in some]
        first = max(zip(some, shared, photos, strict=True), key=lambda each: each[1:])[0]
        pairs = ((first, each) for each in folders)
        if len(folders) > MOST_SIDE_BY_SIDE:  # most are classes
            pairs = [(first, each) for each in folders if each is not first and _may_share(first, each)]
            # ``ends`` are the lengths of what the paths have in common.
            if not any(_files_go_together(tree, ends, pair) for pair in sample(pairs, _PROBED)):
                return
    for one, other in pairs:
        one, other = (one, other) if one.images.count else (other, one)
        if one is not other and one.images.count and _may_share(one, other):
            yield one, other


def _files_go_together(tree: Tree, ends: tuple[int, int], pair: tuple[FolderContents, FolderContents]) -> bool:
    """Tells if files of two folders go together, by their names and a few pictures."""
    names = _cut_ends(pair[0].path, ends), _cut_ends(pair[1].path, ends)
    return any(_identify(tree, relation, ()) for relation in _relate(tree, names, [pair]))


def _may_share(one: FolderContents, other: FolderContents) -> bool:
    """Tells if two folders may have files of the same names, by equal stems or by how first names differ."""
    if any(each.count_shared(one.images) for each in _list_kinds(other)):
        return True
    bases = []
    for folder, beside in ((one, other), (other, one)):
        stems = sorted(chain.from_iterable(each.first for each in _list_kinds(beside)))
        names = [name for each in _list_kinds(folder) for name in each.first[:LOOKED_AT]]
        bases.append({base for name in names for _, base in (*list_affixes(name), *list_glued_affixes(name, stems))})
    return len(bases[0] & bases[1]) >= min(2, one.images.count)


def _list_kinds(folder: FolderContents) -> list[NameSet]:
    """Lists the names of images and of each kind of other files in a folder."""
    return [folder.images, *(names for suffix, names in folder.others.items() if suffix not in NO_SIDECARS)]


def _identify(tree: Tree, relation: Relation, known: Sequence[Known]) -> tuple[Companion, Relation] | None:
    """Looks at a few files of a relation, and returns what they are, with the relation from images to them."""
    from packstore.sources.resemblance import are_masks, differ_in_colour, read_picture

    images, files = relation.patterns
    text = files if images is None else f"{images}={files}"
    one, other, within = relation.one, relation.other, relation.folders is None
    if other.suffix not in IMAGE_SUFFIXES:
        contents = [tree.first_bytes(file, _BYTES) for _, file in relation.pairs[:_TEXTS]]
        if (not within and relation.merely_counts and relation.has_other_owner(tree, known)) or (
            one.is_whole and len({*contents}) < 2
        ):
            return None
        type = find_sidecar_type(other.suffix, contents, tree.encoding)
        certain = type == "text" and other.suffix in PROSE and all(map(is_words, contents))
        certain = certain and not (one.is_numbered or one.is_whole)  # it may belong to images of several numbers
        return None if type is None else _make_companion(relation, SIDECAR, f"{text}={type}", certain)
    pictures: list[Pair] = []
    for image, file in dict.fromkeys(sample(relation.pairs, LOOKED_AT)):
        pictures.append((read_picture(tree, image), read_picture(tree, file)))
        seen = sum(each.width * each.height for pair in pictures for each in pair if each is not None)
        if len(pictures) == _FEWEST and seen > _ENOUGH_PIXELS:
            break
    by_names = within or not relation.merely_counts
    may_be_masks = not (relation.numbered and one.is_whole)  # not cat/1.png and cat/2.png
    if may_be_masks and are_masks(pictures, by_names):
        return _make_companion(relation, MASKS, text, within or not relation.has_other_owner(tree, known))
    masks_first = may_be_masks and are_masks([(file, image) for image, file in pictures], by_names)
    grey_first = differ_in_colour(pictures) and all(image is not None and image.is_grey for image, _ in pictures)
    if within and one.suffix in _PHOTOS and other.suffix not in _PHOTOS:
        grey_first = False  # an X-ray beside its overlay
    may_swap = relation.folders is None or relation.folders[0] != ""
    if (grey_first or masks_first) and may_swap:
        # The files are the images: the relation is turned around.
        return _identify(tree, relation.swapped(), known)
    masks = [image is not None and image.is_mask for image, _ in pictures]
    if (all(masks) and not (within and _covers_images(tree, relation))) or (one.is_whole and any(masks)):
        return None  # several masks of an image
    if relation.has_numbers or not _are_forms(tree, relation, pictures):
        return None
    side = 1
    # Each image has a file, and some files have no image; or the plain names are those of the files.
    further = relation.images == len(relation.pairs) and relation.files > relation.files_with_image
    if may_swap and (further or (relation.is_complete and not within and other.is_plain and not one.is_plain)):
        relation, side = relation.swapped(), 0
    images, files = relation.patterns
    text = files if relation.one.is_whole else f"{images or relation.one.pattern()}={files}"
    companion, relation = _make_companion(relation, PAIR, text, False)
    if any(each is not None and each.is_deep for each in (pair[side] for pair in pictures)):
        column = make_column_name(parse_pattern(PAIR, text).words or PAIR)
        companion = replace(companion, further=("--column", f"{column}.depth=keep"))
    return companion, relation


def _covers_images(tree: Tree, relation: Relation) -> bool:
    """Tells if a relation is complete, and all folders of images have such pairs: no further image could own both."""
    places = {image.rpartition("/")[0] for image, _ in relation.pairs}
    folders = {path for path, each in list_contents(tree).folders.items() if each.images.count}
    return relation.is_complete and folders <= places


def _adds_word_to_names(tree: Tree, relation: Relation) -> bool:
    """Tells if one side only adds a word to the names of the other: ``height/a_height.tif`` to ``photo/a.tif``."""
    side = 1 if relation.one.is_plain else 0
    affix = (relation.one, relation.other)[side]
    some = [[file.rpartition("/")[0] for file in pair] for pair in sample(relation.pairs, LOOKED_AT)]
    folders = {pair[side] for pair in some}
    names = chain.from_iterable(tree.names(folder).ending(*IMAGE_SUFFIXES) for folder in folders)
    has_word = any(token.isalpha() and len(token) > 1 for token in affix.tokens)  # not test/t0.png
    are_classes = any(one.endswith(f"/{other}") or other.endswith(f"/{one}") for one, other in some)  # no, augmented/no
    return has_word and not are_classes and all(map(affix.base_of, names))


def _are_forms(tree: Tree, relation: Relation, pictures: Sequence[Pair]) -> bool:
    """Tells if the pictures of each pair are forms of one scene, by words in their names or by how they look."""
    from packstore.sources.resemblance import differ_in_colour, have_own_sizes, resemble

    one, other, within = relation.one, relation.other, relation.folders is None
    sides = [[token for token in affix.tokens if token != "*"] for affix in (one, other)]
    words = [*sides[0], *sides[1]]
    letters = all(side and all(len(word) == 1 for word in side) for side in sides)  # L1.jpg and R1.jpg
    if relation.numbered:
        return resemble(pictures)
    if within and not (one.is_plain and other.is_plain) and all(map(is_no_word, words)) and not letters:
        return not {*words} & _COPIES and resemble(pictures)
    ended = all(sides) and not one.before and not other.before and relation.is_complete
    named = within and words and not any(map(is_no_word, words)) and (one.is_plain or ended)
    if named and len({*relation.bases}) > 1:  # not cat/img_amber.jpg and cat/img_birch.jpg
        return True
    parallel = relation.folders is not None and all(relation.folders)  # not cat/1.jpg and copies/cat/flip_1.jpg
    if parallel and one.is_plain != other.is_plain and relation.is_complete and _adds_word_to_names(tree, relation):
        return True
    if not (letters or relation.merely_counts):
        return True
    return have_own_sizes(pictures) or differ_in_colour(pictures) or resemble(pictures)


def _make_companion(relation: Relation, option: str, text: str, certain: bool) -> tuple[Companion, Relation]:
    """Makes a companion from a relation, and returns both."""
    count, example = len(relation.pairs), relation.pairs[0]
    return Companion(option, text, relation.ignore, count, relation.images, example, certain), relation


def _find_folders_of_one_image(tree: Tree, contents: Contents) -> Iterator[Companion]:
    """Finds masks beside a folder with one image, whatever their names: ``7/masks/0.png`` for ``7/images/7.png``."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for folder in contents.folders.values():
        inside = [contents.folders.get(join(folder.path, name)) for name in folder.folders if folder.path]
        pair = [each for each in inside if each is not None and each.images.count]
        for one, other in permutations(pair) if len(pair) == 2 else ():
            if one.images.count == 1:
                files = join(one.path, one.images.first[0]), join(other.path, other.images.first[0])
                groups[one.name, other.path.rpartition("/")[2]].append(files)
    for (_, name), pairs in groups.items():
        from packstore.sources.resemblance import are_masks, read_picture

        some = sample(pairs, LOOKED_AT)
        if len(pairs) > 1 and are_masks(
            [(read_picture(tree, image), read_picture(tree, mask)) for image, mask in some]
        ):
            suffix = Counter(mask.rpartition(".")[2] for _, mask in some).most_common(1)[0][0]
            text = f"{{dir}}/../{name}/*.{suffix}"
            yield Companion(MASKS, text, f"{name}/", len(pairs), len(pairs), some[0], True)
