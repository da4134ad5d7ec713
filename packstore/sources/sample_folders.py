"""Finds masks and forms of images in folders that are one sample each: ``7/images/7.png`` with ``7/masks/0.png``, or
``7/image.jpg`` with ``7/mask.png``. See :mod:`.pairing` for files whose names differ by a text."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from packstore.sources.affixes import sample
from packstore.sources.beside import join
from packstore.sources.companion_patterns import MASKS, PAIR, Companion
from packstore.sources.contents import Contents, FolderContents
from packstore.sources.tree import Tree

_LOOKED_AT, _MOST_FORMS = 8, 4
NUMBER = re.compile(r"(?<![^\W_])[\da-f]*\d[\da-f]*(?![^\W_])|\d+")
"""A number in a name, decimal or hexadecimal."""


def find_folders_of_one_image(tree: Tree, contents: Contents) -> Iterator[tuple[Companion, list[str]]]:
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


def find_equal_folders(tree: Tree, contents: Contents) -> Iterator[tuple[Companion, list[str]]]:
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
        some = sample(paths, _LOOKED_AT)
        for image, others in _find_forms(tree, names, some):
            for name, option in others.items():
                example = join(some[0], image), join(some[0], name)
                certain = {*others.values()} == {MASKS}
                yield Companion(option, f"{{dir}}/{name}", name, len(paths), len(paths), example, certain), paths


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
        for one, other in sample(pairs, _LOOKED_AT)
    ]
    if not are_masks([(read_picture(tree, image), read_picture(tree, mask)) for image, mask in files]):
        return None
    suffix = Counter(mask.rpartition(".")[2] for _, mask in files).most_common(1)[0][0]
    return Companion(MASKS, f"{{dir}}/../{name}/*.{suffix}", f"{name}/", len(pairs), len(pairs), files[0], True)
