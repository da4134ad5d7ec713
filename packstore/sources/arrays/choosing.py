"""Assigns roles to named arrays: images, labels or further columns, and a split. Finds the names of classes.

Names, shapes and dtypes decide. If they do not, the user is asked; nothing is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.modes import MAX_CHANNELS
from packstore.sources.arrays.stored import ArrayInfo, BlockCache, ColumnArray, decode_text, parse_layout
from packstore.sources.base import SourceOptions
from packstore.sources.columns import is_label_name, make_column_names, name_words
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import SPLIT_ORDER

_IMAGES = frozenset(
    ["x", "image", "images", "img", "imgs", "data", "pixels", "rgb", "picture", "pictures", "photo", "photos"]
)
_LABELS = frozenset(["y", "label", "labels", "target", "targets", "class"])
_MASKS = frozenset(["mask", "masks", "segmentation", "segmentations", "seg"])
_NAMES, _OF_NAMES = frozenset(["classes", "categories"]), frozenset(["class", "label", "category", "target"])
_LISTED = 12
_MAX_CLASSES = 1 << 20
_TEXTS = 4096
# Least numbers of a flat image, 8 x 8.
_LEAST = 64


@dataclass(frozen=True, slots=True)
class SplitArrays:
    """Arrays of a split whose rows belong together.

    Attributes:
        split: Name of the split.
        length: Number of samples.
        columns: Arrays by column; images are in ``image``, class numbers in ``label``.
    """

    split: str
    length: int
    columns: Mapping[str, ColumnArray]


@dataclass(frozen=True, slots=True)
class ArrayRoles:
    """Roles of all arrays of a source.

    Attributes:
        parts: Arrays of the samples, in the order of splits; a split may have several parts.
        classes: Array with the names of classes, which may also be a column; None if there is none.
        left_out: Arrays that are neither columns nor names of classes.
    """

    parts: tuple[SplitArrays, ...]
    classes: ColumnArray | None
    left_out: tuple[ArrayInfo, ...]


@dataclass(slots=True)
class _NamedArray:
    """Array, with the words of its name and its file's name.

    Attributes:
        file: Number of its file.
        info: Description of the array.
        split: The first word that is a split; ``""`` if there is none.
        role: Other words of the array's name, joined by ``_``.
        words: The words of ``role``.
        part: Words that distinguish the parts of a split, such as the ``batch`` and 1 of ``batch_1.h5``. Numbers come
            before words.
    """

    file: int
    info: ArrayInfo
    split: str
    role: str
    words: frozenset[str]
    part: tuple[tuple[float, str], ...]


def ask(question: str, option: str, values: Iterable[str]) -> AmbiguousSourceError:
    """Makes the question which of some values the option should have."""
    return AmbiguousSourceError(question, [Answer((option, value)) for value in values], lists_answers=True)


def assign_roles(files: Sequence[Sequence[ArrayInfo]], options: SourceOptions) -> ArrayRoles:
    """Assigns roles to the arrays of all files, by split and part. If some names have a split, an array without split
    can only be names of classes, or left out.

    Args:
        files: Arrays of each file.
        options: Uses ``image_key``, ``label_key`` and ``layout``.

    Raises:
        AmbiguousSourceError: An option has to decide; the message names it. Or images have no split, but others have.
        SourceError: There are no images, or arrays contradict each other.
    """
    named = [_parse_array_name(number, info) for number, infos in enumerate(files) for info in infos]
    if not named:
        raise SourceError("it holds no arrays")
    has_splits = any(each.split for each in named)
    used: set[int] = set()
    parts = []
    for split in in_packing_order(each.split for each in named if each.split or not has_splits):
        arrays = [each for each in named if each.split == split]
        for part in sorted({each.part for each in arrays}):
            parts.append(_assign_part(split, [each for each in arrays if each.part == part], options, used))
    lost = next((each for each in named if has_splits and not each.split and _looks_like_images(each)), None)
    if lost is not None:
        raise AmbiguousSourceError(f"{lost.info.shown} has no split in its name, but others have; give one of them")
    classes = next((each for each in named if _holds_class_names(each)), None)
    rest = tuple(each.info for each in named if id(each) not in used and each is not classes)
    return ArrayRoles(tuple(parts), None if classes is None else ColumnArray(classes.file, classes.info), rest)


def _parse_array_name(file: int, info: ArrayInfo) -> _NamedArray:
    """Splits the names of an array and its file into split, role and part: ``train``, ``images`` and 1 for
    ``train_images`` in ``batch_1.h5``.
    """
    own = name_words(info.name)
    stem = name_words(info.file.rpartition("/")[0] if info.alone else re.sub(r"\.[A-Za-z0-9]+$", "", info.file))
    split = next((word for word in [*own, *stem] if word in SPLIT_ORDER), "")
    role = [word for word in own if word not in SPLIT_ORDER and not (info.alone and word.isdigit())]
    others = own if info.alone else [word for word in stem if word not in {*SPLIT_ORDER, *_IMAGES, *_LABELS, *_MASKS}]
    part = tuple((int(word), "") if word.isdigit() else (math.inf, word) for word in others)
    part = tuple(each for each in part if each[0] < math.inf) if info.alone else part
    return _NamedArray(file, info, split, "_".join(role), frozenset(role), part)


def _assign_part(split: str, arrays: list[_NamedArray], options: SourceOptions, used: set[int]) -> SplitArrays:
    """Assigns roles to the arrays of one part of a split, and adds their ``id()`` to ``used``."""
    image = _find_images(arrays, options)
    if options.label_key is not None:
        labels = [_find_by_key(arrays, options.label_key, "--label-key")]
    else:
        labels = [each for each in arrays if each is not image and each.words & _LABELS and _is_number_per_row(each)]
    lengths = {each.info.shape[0] if each.info.shape else 0 for each in labels}
    chosen = _choose_axes(image, lengths, options)
    count = chosen.length
    if lengths and count not in lengths:
        raise SourceError(f"{chosen.info.shown} holds {count} images, and there are {max(lengths)} labels")
    is_text = options.label_key is not None and labels[0].info.content == "texts" and len(labels[0].info.shape) == 1
    if options.label_key is not None and not is_text and not _is_number_per_row(labels[0], "uifb"):
        raise SourceError(f"{labels[0].info.shown} should have one number or text for each of {count} images")
    labels = [each for each in labels if each.info.shape[0] == count]
    if len(labels) > 1:
        question = "it holds several arrays of labels: say which is 'label' (the others keep their names)"
        raise ask(question, "--label-key", (each.info.name for each in labels[:_LISTED]))
    lost = next((each for each in arrays if not labels and each.info.why and each.words & _LABELS), None)
    if lost is not None:
        raise SourceError(lost.info.why)
    columns = {"image": chosen}
    used |= {id(image), *map(id, labels)}
    if labels:
        columns["label"] = ColumnArray(labels[0].file, labels[0].info)
    # Any other array with a row per image becomes a column.
    for each in arrays:
        if id(each) not in used and each.info.content != "unreadable" and each.info.shape[:1] == (count,):
            role = each.role or each.info.name
            columns[make_column_names([role], {*columns, "label"})[role]] = ColumnArray(each.file, each.info)
            used.add(id(each))
    return SplitArrays(split, count, columns)


def _find_images(arrays: Sequence[_NamedArray], options: SourceOptions) -> _NamedArray:
    """Finds the array of images: the one that ``--image-key`` names, or else the only likely one."""
    if options.image_key is not None:
        return _find_by_key(arrays, options.image_key, "--image-key")
    candidates = [each for each in arrays if _looks_like_images(each)]
    unmasked = [each for each in candidates if not each.words & _MASKS]
    whole = [each for each in unmasked if each.info.dtype.kind != "f"]
    flat = [each for each in arrays if _may_be_flat_images(each.info)]
    flat = [each for each in flat if each.words & _IMAGES or each.info.dtype == "u1"]
    # From the safest guess to the weakest: whole numbers or files, no masks, any, and matrices that may be flat images.
    for only in (whole, unmasked, candidates, flat):
        if len(only) == 1:
            return only[0]
    if candidates:
        names = (each.info.name for each in candidates[:_LISTED])
        raise ask("it holds several arrays of images: say which are the images", "--image-key", names)
    reason = next((each.info.why for each in arrays if each.info.why), "")
    raise SourceError(
        reason
        or "it holds no arrays of images (samples x height x width, of uint8 or named images, x, data …), but "
        f"{_list_arrays(arrays)}; choose another by --image-key NAME and --layout NHWC"
    )


def _list_arrays(arrays: Sequence[_NamedArray]) -> str:
    """Lists the first arrays for a message."""
    return ", ".join(each.info.shown for each in arrays[:_LISTED]) + (", …" if len(arrays) > _LISTED else "")


def _find_by_key(arrays: Sequence[_NamedArray], key: str, option: str) -> _NamedArray:
    """Finds the array that ``option`` names by ``key``: its name, or the words of its name without the split."""
    role = "_".join(word for word in name_words(key) if word not in SPLIT_ORDER)
    called = [each for each in arrays if each.info.name.strip("/") == key.strip("/")]
    matches = called or [each for each in arrays if each.role == role]
    if len(matches) != 1:
        raise SourceError(f"it has no array {printable(key)!r}, which {option} names; arrays: {_list_arrays(arrays)}")
    if matches[0].info.why:
        raise SourceError(matches[0].info.why)
    return matches[0]


def _looks_like_images(each: _NamedArray) -> bool:
    """Tells if an array may be images, by its type, shape and name."""
    info, shape = each.info, each.info.shape
    if info.content == "files":
        return len(shape) == 1 and not each.words & _MASKS
    if info.content != "numbers" or info.dtype.kind not in "uif" or min(shape, default=0) < 1:
        return False
    # Arrays that are not uint8 need a name of images. One number per row is no image.
    if (info.dtype != "u1" and not each.words & _IMAGES) or math.prod(shape[1:]) == 1:
        return False
    return len(shape) == 3 or (len(shape) == 4 and not {1, 3}.isdisjoint(shape[1:]))


def _is_number_per_row(each: _NamedArray, kinds: str = "uib") -> bool:
    """Tells if an array has one number of some ``kinds`` of dtypes for each sample."""
    info = each.info
    is_flat = len(info.shape) >= 1 and math.prod(info.shape[1:]) == 1
    return info.content == "numbers" and info.dtype.kind in kinds and is_flat


def _choose_axes(image: _NamedArray, lengths: Collection[int], options: SourceOptions) -> ColumnArray:
    """Chooses the axis of the samples and the order of the others, by ``layout`` or else by shape and ``lengths``."""
    info, given = image.info, parse_layout(options.layout)
    # Files have axis 0 and no order.
    if info.content == "files":
        return ColumnArray(image.file, info)
    is_flat = _may_be_flat_images(info)
    if info.content == "texts" or not (is_flat or len(info.shape) in (3, 4)):
        raise SourceError(f"{info.shown} cannot be images, which are numbers with three or four axes")
    if given is None or (is_flat and not given[1]):
        propose = _propose_flat_layouts if is_flat else _propose_layouts
        # ``lengths`` are the possible numbers of labels.
        sure, fitting = propose(image, lengths)
        if not sure or len(fitting) != 1:
            named = "" if options.image_key is None else f" (beside --image-key {printable(options.image_key)})"
            raise ask(
                f"{info.shown}: the order of its axes is not clear, or their sizes in a matrix (NHW:28x28){named}",
                "--layout",
                fitting,
            )
        given = fitting[0], ()
    layout, sizes = given
    # Each row of a matrix is an image; the layout gives its height and width.
    if is_flat:
        first = layout[0] == "N"
        count, pixels = info.shape if first else info.shape[::-1]
        if math.prod(sizes) != pixels:
            raise SourceError(f"{info.shown} has {pixels:,} numbers an image, but --layout needs {math.prod(sizes):,}")
        info = replace(info, shape=(count, *sizes) if first else (*sizes, count), flat=True)
    if len(layout) != len(info.shape):
        raise SourceError(f"{info.shown} has {len(info.shape)} axes, but the layout {layout} has {len(layout)}")
    channels = info.shape[layout.index("C")] if "C" in layout else 1
    if channels > MAX_CHANNELS:
        raise SourceError(f"{info.shown} as {layout} has {channels:,} channels, more than {MAX_CHANNELS:,}")
    order = tuple(layout.index(letter) for letter in "HWC" if letter in layout)
    return ColumnArray(image.file, info, layout.index("N"), order)


def _propose_layouts(image: _NamedArray, lengths: Collection[int]) -> tuple[bool, list[str]]:
    """Returns the layouts that fit an array, and whether a single one is certain."""
    info, shape = image.info, image.info.shape
    # MATLAB writes the axes in reverse.
    if info.reversed:
        return False, ["NCWH" if len(shape) == 4 else "NWH"]
    usual = ["NHW"] if len(shape) == 3 else [name for name in ("NHWC", "NCHW") if shape[name.index("C")] in (1, 3)]
    last = ["HWN"] if len(shape) == 3 else ["HWCN"] if shape[2] in (1, 3) else []
    # Samples come last only if their number is that of the labels.
    fitting = [name for name in (*usual, *last) if shape[name.index("N")] in lengths]
    # Three axes may also be one image with channels.
    may_be_one = not lengths and len(shape) == 3 and not {1, 3, 4}.isdisjoint((shape[0], shape[2]))
    sure = (bool(lengths) or len(shape) == 4 or bool(image.words & _IMAGES)) and not may_be_one
    return sure, fitting or usual or ["NHWC", "NCHW"]


def _holds_class_names(each: _NamedArray) -> bool:
    """Tells if an array of texts has a name such as ``classes`` or ``label_names``."""
    called = each.words & _NAMES or (each.words & {"name", "names"} and each.words & _OF_NAMES)
    return bool(called) and each.info.content == "texts" and len(each.info.shape) == 1


def _may_be_flat_images(info: ArrayInfo) -> bool:
    """Tells if an array is a matrix of numbers with a side of at least 64, enough for an image."""
    return info.content == "numbers" and len(info.shape) == 2 and min(info.shape) >= 1 and max(info.shape) >= _LEAST


def _propose_flat_layouts(image: _NamedArray, lengths: Collection[int]) -> tuple[bool, list[str]]:
    """Proposes layouts of a matrix as gray images with the sides closest to a square; none is certain."""
    layouts = []
    for place, form in ((0, "N{}:{}"), (1, "{}N:{}")):
        count, pixels = image.info.shape[place], image.info.shape[1 - place]
        # The number of images is that of the labels, if there are any.
        if pixels < _LEAST or (lengths and count not in lengths):
            continue
        side = next(number for number in range(math.isqrt(pixels), 0, -1) if pixels % number == 0)
        for axes in ("HW", "WH") if image.info.by_columns else ("HW",):
            sizes = dict.fromkeys([f"{pixels // side}x{side}", f"{side}x{pixels // side}"])
            layouts += [form.format(axes, each) for each in sizes]
    return False, layouts


def find_text_labels(roles: ArrayRoles) -> list[str]:
    """Finds arrays of texts that seem to be labels by their names, if no array was chosen as labels."""
    if any("label" in part.columns for part in roles.parts):
        return []
    texts = (chosen.info for chosen in roles.parts[0].columns.values() if chosen.info.content == "texts")
    return [each.name for each in texts if is_label_name([w for w in name_words(each.name) if w not in SPLIT_ORDER])]


def find_class_names(roles: ArrayRoles, blocks: BlockCache) -> tuple[str, ...] | None:
    """Finds the names of the classes: an array of texts with one for each class, or else the sorted labels if they
    are texts. Reads all labels. Raises :class:`OSError` or :class:`ValueError` if labels or texts cannot be read, or
    more than 1,048,576 of them differ.
    """
    names, texts, most = _read_class_names(blocks, roles.classes), set[str](), -1
    for part in roles.parts:
        chosen = part.columns.get("label")
        if chosen is not None and chosen.info.content == "texts":
            for some in _read_texts(blocks, chosen):
                texts.update(some)
                if len(texts) > _MAX_CLASSES:
                    raise ValueError(f"{chosen.info.shown} has more than {_MAX_CLASSES:,} different texts")
        elif chosen is not None and names:
            labels = blocks.open_file(chosen.file).arrays[chosen.info.name].read_all()
            most = max(most, labels[np.isfinite(labels)].max(initial=0))
    return names if names and most < len(names) and texts.issubset(names) else tuple(sorted(texts)) or None


def _read_class_names(blocks: BlockCache, chosen: ColumnArray | None) -> tuple[str, ...]:
    """Reads an array of names of classes; ``()`` if there is none, or it cannot be one."""
    if chosen is None or chosen.length > _MAX_CLASSES:
        return ()
    names = tuple(chain.from_iterable(_read_texts(blocks, chosen)))
    return names if all(names) and len(set(names)) == len(names) else ()


def _read_texts(blocks: BlockCache, chosen: ColumnArray) -> Iterator[list[str]]:
    """Yields all texts of an array, in lists of up to 4096."""
    array = blocks.open_file(chosen.file).arrays[chosen.info.name]
    for start in range(0, chosen.length, _TEXTS):
        yield [decode_text(text) for text in array.read_rows(0, start, min(start + _TEXTS, chosen.length))]
