"""Assigns roles to named arrays: images, labels or further columns, and a split. Finds the names of classes.

Names, shapes and dtypes decide. If they do not, the user is asked; nothing is guessed.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.modes import MAX_CHANNELS
from packstore.sources.arrays.stored import ArrayInfo, BlockCache, ColumnArray, decode_text, parse_layout
from packstore.sources.base import SourceOptions
from packstore.sources.columns import LabelTexts, is_label_name, make_column_names, name_words
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import SPLIT_ORDER

IMAGE_WORDS = frozenset(
    ["x", "image", "images", "img", "imgs", "data", "pixels", "rgb", "picture", "pictures", "photo", "photos"]
)
LABEL_WORDS = frozenset(["y", "label", "labels", "target", "targets", "class"])
_MASKS = frozenset(["mask", "masks", "segmentation", "segmentations", "seg"])
_NAMES, _OF_NAMES = frozenset(["classes", "categories"]), frozenset(["class", "label", "category", "target"])
_LISTED = 12
_MAX_CLASSES = 1 << 20
_TEXTS = 4096
_log = logging.getLogger(__name__)
_LEAST = 64
"""Least numbers of a flat image, 8 x 8."""
_PROPOSED = 4


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
        classes: Number of the file, and array, with the names of classes; None if there is no such array.
        left_out: Arrays that are neither columns nor names of classes.
    """

    parts: tuple[SplitArrays, ...]
    classes: tuple[int, ArrayInfo] | None
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
        part: Words that distinguish the parts of a split, such as the ``1`` of ``batch_1.h5``.
    """

    file: int
    info: ArrayInfo
    split: str
    role: str
    words: frozenset[str]
    part: tuple[str, ...] = ()


def assign_roles(shown: str, files: Sequence[Sequence[ArrayInfo]], options: SourceOptions) -> ArrayRoles:
    """Assigns roles to the arrays of all files, by split and part. If some names have a split, an array without split
    can only be names of classes, or left out.

    Args:
        shown: Name of the source, for messages.
        files: Arrays of each file.
        options: Uses ``image_key``, ``label_key`` and ``layout``.

    Raises:
        AmbiguousSourceError: An option has to decide; the message names it. Or images have no split, but others have.
            Or names of files do not tell which parts belong together.
        SourceError: There are no images, or arrays contradict each other.
    """
    named = [_parse_array_name(number, info) for number, infos in enumerate(files) for info in infos]
    if not named:
        raise SourceError(f"{shown} holds no arrays")
    splits = {each.split for each in named if each.split}
    common = [each for each in named if not each.split] if splits else []
    if splits:
        _refuse_unsplit_images(shown, common, named)
    groups: dict[str, dict[tuple[str, ...], list[_NamedArray]]] = {}
    for each in named:
        if each not in common:
            groups.setdefault(each.split, {}).setdefault(each.part, []).append(each)
    used: set[int] = set()
    parts = []
    for split in in_packing_order(groups):
        keys = sorted(groups[split], key=lambda part: [(int(w) if w.isdigit() else -1, w) for w in part])
        if len({tuple(word for word in part if not word.isdigit()) for part in keys}) > 1:
            names = ", ".join(
                sorted({printable(each.info.file) for arrays in groups[split].values() for each in arrays})
            )
            raise AmbiguousSourceError(
                f"{shown}: the files {names} do not go together by their names; give one of them as the source"
            )
        for key in keys:
            part, taken = _assign_part(shown, split, groups[split][key], options)
            parts.append(part)
            used |= taken
    classes = next((each for each in named if id(each) not in used and _holds_class_names(each)), None)
    rest = tuple(each.info for each in named if id(each) not in used and each is not classes)
    return ArrayRoles(tuple(parts), None if classes is None else (classes.file, classes.info), rest)


def _parse_array_name(file: int, info: ArrayInfo) -> _NamedArray:
    """Splits the names of an array and its file into split, role and part. ``train_images`` in ``batch_1.h5`` has the
    split ``train``, the role ``images`` and the part ``batch``, ``1``."""
    own = name_words(info.name)
    stem = name_words(info.file.rpartition("/")[0] if info.alone else re.sub(r"\.[A-Za-z0-9]+$", "", info.file))
    split = next((word for word in [*own, *stem] if word in SPLIT_ORDER), "")
    role = [word for word in own if word not in SPLIT_ORDER]
    if info.alone:
        part = tuple(word for word in role if word.isdigit())
        role = [word for word in role if not word.isdigit()]
    else:
        part = tuple(
            word for word in stem if word not in SPLIT_ORDER and word not in IMAGE_WORDS | LABEL_WORDS | _MASKS
        )
    return _NamedArray(file, info, split, "_".join(role), frozenset(role), part)


def _refuse_unsplit_images(shown: str, common: Sequence[_NamedArray], named: Sequence[_NamedArray]) -> None:
    """Raises :class:`AmbiguousSourceError` if one of ``common``, the arrays without a split, seems to be images."""
    images = [each for each in common if _looks_like_images(each)]
    if images:
        others = next(each for each in named if each.split)
        raise AmbiguousSourceError(
            f"{shown}: {images[0].info.shown} has no split in its name, but {others.info.shown} has; give "
            "a source that holds one kind of them"
        )


def _assign_part(
    shown: str, split: str, arrays: list[_NamedArray], options: SourceOptions
) -> tuple[SplitArrays, set[int]]:
    """Assigns roles to the arrays of one part of a split. Apart from images, labels and names of classes, each array
    with a row per image becomes a column.

    Returns the part, and the ``id()`` of each array in it. Flat images get a description with height and width. Raises
    :class:`AmbiguousSourceError` if an option has to decide. Raises :class:`SourceError` if there are no images, the
    labels are unreadable, or images and labels differ in number.
    """
    image = _find_images(shown, arrays, options)
    labels = _list_labels(shown, arrays, image, options)
    lengths = {each.info.shape[0] if each.info.shape else 0 for each in labels}
    length = lengths.pop() if len(lengths) == 1 else None
    if _may_be_flat_images(image.info):
        image.info = _unflatten_images(shown, image.info, options.layout, length)
    chosen = ColumnArray(image.file, image.info, *_choose_axes(shown, image, length, options))
    count = chosen.length
    if length is not None and length != count:
        raise SourceError(f"{shown}: {image.info.shown} holds {count} images, and there are {length} labels")
    if options.label_key is not None and not _has_number_per_sample(labels[0], "uifb"):
        raise SourceError(f"{shown}: {labels[0].info.shown} should have one number for each of {count} images")
    columns = {"image": chosen}
    used = {id(image)}
    labels = [each for each in labels if each.info.shape[0] == count]
    if len(labels) > 1:
        asked = " or ".join(f"--label-key {printable(each.info.name)}" for each in labels[:_LISTED])
        raise AmbiguousSourceError(
            f"{shown} holds several arrays of labels: say which is 'label' by {asked} (the others keep their names)",
            [Answer(("--label-key", each.info.name)) for each in labels[:_LISTED]],
        )
    lost = next((each for each in arrays if not labels and each.info.why and each.words & LABEL_WORDS), None)
    if lost is not None:
        raise SourceError(f"{shown}: {lost.info.why}")
    if labels:
        columns["label"] = ColumnArray(labels[0].file, labels[0].info)
        used.add(id(labels[0]))
    for each in arrays:
        info = each.info
        fits = info.content != "unreadable" and info.shape[:1] == (count,) and not _holds_class_names(each)
        if id(each) not in used and fits:
            columns[_unused_column_name(each.role or info.name, columns)] = ColumnArray(each.file, info)
            used.add(id(each))
    return SplitArrays(split, count, columns), used


def _find_images(shown: str, arrays: Sequence[_NamedArray], options: SourceOptions) -> _NamedArray:
    """Finds the array of images: the first of these that exists.

    - The array that ``--image-key`` names. Raises if it does not exist.
    - The only candidate, see :func:`_looks_like_images`.
    - The only candidate with a name of images. All other candidates must have names of masks, or be floating point.
    - The only matrix that may be flat images. It must be uint8, or have a name of images.

    Raises :class:`AmbiguousSourceError` for several candidates, and :class:`SourceError` for none. ``shown``: the
    source, for messages.
    """
    if options.image_key is not None:
        return _find_by_key(shown, arrays, options.image_key, "--image-key")
    candidates = [each for each in arrays if _looks_like_images(each)]
    if len(candidates) > 1:  # masks and similar arrays beside those named as images
        called = [each for each in candidates if each.words & IMAGE_WORDS and not each.words & _MASKS]
        others = [each for each in candidates if each not in called]
        if len(called) == 1 and all(each.words & _MASKS or each.info.dtype.kind == "f" for each in others):
            candidates = called
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        asked = " or ".join(f"--image-key {printable(each.info.name)}" for each in candidates[:_LISTED])
        answers = [Answer(("--image-key", each.info.name)) for each in candidates[:_LISTED]]
        raise AmbiguousSourceError(f"{shown} holds several arrays of images: say which by {asked}", answers)
    flat = [
        each
        for each in arrays
        if _may_be_flat_images(each.info) and (each.words & IMAGE_WORDS or each.info.dtype == "u1")
    ]
    if len(flat) == 1:
        return flat[0]
    reason = next((each.info.why for each in arrays if each.info.why), "")
    if reason:
        raise SourceError(f"{shown}: {reason}")
    listed = ", ".join(each.info.shown for each in arrays[:_LISTED]) + (", …" if len(arrays) > _LISTED else "")
    raise SourceError(
        f"{shown} holds no arrays of images (samples x height x width, alone or with 1 or 3 channels, of uint8 or "
        f"named images, x, data …), but {listed}; to choose an array of other numbers or channels, give "
        "--image-key NAME and --layout NHWC (or NCHW, NHW …)"
    )


def _find_by_key(shown: str, arrays: Sequence[_NamedArray], key: str, option: str) -> _NamedArray:
    """Finds the array that ``option`` names by ``key``: its name, or the words of its name. The word of a split may be
    missing. Raises :class:`SourceError` if not exactly one array fits, or it is unreadable."""
    wanted = "_".join(name_words(key))
    for fits in (
        lambda each: each.info.name.strip("/") == key.strip("/"),
        lambda each: each.role == "_".join(word for word in name_words(key) if word not in SPLIT_ORDER),
        lambda each: wanted in (each.role, "_".join(name_words(each.info.name))),
    ):
        matches = [each for each in arrays if fits(each)]
        if len(matches) == 1 and matches[0].info.content == "unreadable":
            raise SourceError(f"{shown}: {matches[0].info.why}")
        if len(matches) == 1:
            return matches[0]
    listed = ", ".join(each.info.shown for each in arrays[:_LISTED])
    raise SourceError(f"{shown} has no array {printable(key)!r}, which {option} names; arrays: {listed}")


def _looks_like_images(each: _NamedArray) -> bool:
    """Tells if an array may be images.

    - Files may be images, if the array has one axis, and its name does not mean masks.
    - Numbers may be images if they are uint8, or their name means images. They need three axes, or four with 1 or 3
      channels.
    - Empty arrays and images of one number are no images.
    """
    info, called = each.info, bool(each.words & IMAGE_WORDS)
    if info.content == "files":
        return len(info.shape) == 1 and not each.words & _MASKS
    if info.content != "numbers" or info.dtype.kind not in "uif" or not info.shape or min(info.shape) < 1:
        return False
    if (info.dtype != "u1" and not called) or all(size == 1 for size in info.shape[1:]):
        return False
    if len(info.shape) == 3:
        return True
    return len(info.shape) == 4 and any(info.shape[axis] in (1, 3) for axis in (1, 2, 3))


def _has_number_per_sample(each: _NamedArray, kinds: str = "uib") -> bool:
    """Tells if an array has one number of some ``kinds`` of dtypes for each sample."""
    info = each.info
    flat = len(info.shape) >= 1 and all(size == 1 for size in info.shape[1:])
    return info.content == "numbers" and info.dtype.kind in kinds and flat


def _list_labels(
    shown: str, arrays: Sequence[_NamedArray], image: _NamedArray, options: SourceOptions
) -> list[_NamedArray]:
    """Lists the arrays that may be class numbers: the one that ``--label-key`` names, else those with a name for labels
    and one number for each sample. Raises :class:`SourceError` if the named array does not exist."""
    if options.label_key is not None:
        return [_find_by_key(shown, arrays, options.label_key, "--label-key")]
    called = (each for each in arrays if each is not image and each.words & LABEL_WORDS)
    return [each for each in called if _has_number_per_sample(each)]


def _choose_axes(
    shown: str, image: _NamedArray, length: int | None, options: SourceOptions
) -> tuple[int, tuple[int, ...]]:
    """Chooses the axis of the samples, and the order of the other axes. The option ``layout`` decides, or else the
    shape. Files have axis 0 and no order.

    Raises :class:`AmbiguousSourceError` if neither layout nor shape decides, and for MATLAB's reversed axes without a
    layout. Raises :class:`SourceError` if the array cannot be images or does not fit the layout, and for too many
    channels.
    """
    info = image.info
    if info.content == "files":
        return 0, ()
    if info.content == "texts" or len(info.shape) not in (3, 4):
        raise SourceError(f"{shown}: {info.shown} cannot be images, which are numbers with three or four axes")
    layout = None if options.layout is None else parse_layout(options.layout)[0]
    if layout is None:
        fitting = _possible_layouts(info.shape, length) or _possible_layouts(info.shape, None)
        sure = length is not None or len(info.shape) == 4 or bool(image.words & IMAGE_WORDS)
        if length is None and len(info.shape) == 3:
            sure = sure and not {1, 3, 4} & {info.shape[0], info.shape[2]}  # it may as well be one image
        if info.reversed or len(fitting) != 1 or not sure:
            usual = ["NHWC", "NCHW"] if len(info.shape) == 4 else ["NHW"]
            proposed = ["NCWH" if len(info.shape) == 4 else "NWH"] if info.reversed else fitting or usual
            asked = " or ".join(f"--layout {each}" for each in proposed)
            why = "MATLAB wrote its axes in reverse" if info.reversed else "the order of its axes is not clear"
            if info.alone and len(info.shape) == 3:
                why += " (one image in an array is not read: stack all of them)"
            named = "" if options.image_key is None else f"--image-key {printable(options.image_key)} "
            answers = [Answer(("--layout", each)) for each in proposed]
            raise AmbiguousSourceError(f"{shown}: {info.shown}: {why}; give it by {named}{asked}", answers)
        layout = fitting[0]
    if len(layout) != len(info.shape):
        raise SourceError(
            f"{shown}: {info.shown} has {len(info.shape)} axes, but the layout {layout} has {len(layout)}"
        )
    channels = info.shape[layout.index("C")] if "C" in layout else 1
    if channels > MAX_CHANNELS:
        raise SourceError(f"{shown}: {info.shown} as {layout} has {channels:,} channels, more than {MAX_CHANNELS:,}")
    order = tuple(layout.index(letter) for letter in "HWC" if letter in layout)
    return layout.index("N"), order


def _possible_layouts(shape: tuple[int, ...], length: int | None) -> list[str]:
    """Lists the layouts that fit a shape, with 1 or 3 channels if there are four axes. If the number of samples,
    ``length``, is known, lists only those with this number. If it is None, lists none with the samples last."""
    if len(shape) == 3:
        layouts = ["NHW", "HWN"] if length is not None else ["NHW"]
    else:
        names = ("NHWC", "NCHW", "HWCN") if length is not None else ("NHWC", "NCHW")
        layouts = [name for name in names if shape[name.index("C")] in (1, 3)]
    return [name for name in layouts if length is None or shape[name.index("N")] == length]


def _holds_class_names(each: _NamedArray) -> bool:
    """Tells if an array of texts has a name such as ``classes`` or ``label_names``."""
    called = each.words & _NAMES or (each.words & {"name", "names"} and each.words & _OF_NAMES)
    return bool(called) and each.info.content == "texts" and len(each.info.shape) == 1


def _unused_column_name(role: str, columns: Mapping[str, ColumnArray]) -> str:
    """Makes a column's name from the words of its array's name. It differs from ``image``, ``label`` and all names in
    ``columns``."""
    return make_column_names([role], {*columns, "image", "label"})[role]


def _may_be_flat_images(info: ArrayInfo) -> bool:
    """Tells if an array is a matrix of numbers with a side of at least 64, enough for an image."""
    return info.content == "numbers" and len(info.shape) == 2 and min(info.shape) >= 1 and max(info.shape) >= _LEAST


def _unflatten_images(shown: str, info: ArrayInfo, layout: str | None, length: int | None) -> ArrayInfo:
    """Returns the description of a matrix as an array of images, by a layout such as ``NHW:28x28``.

    Raises :class:`AmbiguousSourceError` for None or a layout without sizes; its answers are possible layouts. Raises
    :class:`SourceError` if the sizes do not fit. ``length``: number of labels, None if unknown; layouts with another
    number of images are not proposed.
    """
    axes, sizes = parse_layout(layout or "")
    if not sizes:
        proposed = _propose_layouts(info, length)
        asked = " or ".join(f"--layout {each}" for each in proposed) or "--layout NHW:28x28"
        raise AmbiguousSourceError(
            f"{shown}: {info.shown} is a matrix: give the sizes of its images, in the order of their numbers, by "
            f"{asked}",
            [Answer(("--layout", each)) for each in proposed],
        )
    first = axes[0] == "N"
    count, pixels = info.shape if first else info.shape[::-1]
    if math.prod(sizes) != pixels:
        raise SourceError(
            f"{shown}: {info.shown} has {pixels:,} numbers an image, but --layout {layout} needs {math.prod(sizes):,}"
        )
    return replace(info, shape=(count, *sizes) if first else (*sizes, count), flat=True)


def _propose_layouts(info: ArrayInfo, length: int | None) -> list[str]:
    """Proposes up to eight layouts with the sizes closest to a square, for gray or RGB images. One side is at most
    twice the other. If ``length`` is known, proposes only layouts with ``length`` images."""
    layouts = []
    for place in (0, 1):
        count, pixels = info.shape[place], info.shape[1 - place]
        if pixels < _LEAST or (length is not None and count != length):
            continue
        for colours in (1, 3):
            for side in sorted(range(1, math.isqrt(pixels // colours) + 1), reverse=True):
                other, rest = divmod(pixels, side * colours)
                if rest or other > 2 * side:
                    continue
                sizes = [(other, side)] if other == side else [(other, side), (side, other)]
                if colours == 1:
                    orders = ("HW", "WH") if info.by_columns else ("HW",)
                    named = [f"{order}:{a}x{b}" for a, b in sizes for order in orders]
                else:
                    named = [f"HWC:{a}x{b}x3" for a, b in sizes] + [f"CHW:3x{a}x{b}" for a, b in sizes]
                layouts += [f"N{each}" if place == 0 else each.replace(":", "N:") for each in named]
                break
    return layouts[: 2 * _PROPOSED]


def _parse_class_names(value: Any) -> tuple[str, ...] | None:
    """Parses an attribute with names of classes; None for any other value, for no names, and for repeated names.

    - a list or an array
    - a mapping from numbers to names, or from names to numbers
    - JSON of one of these
    """
    if isinstance(value, (str, bytes)):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist()
    if isinstance(value, Mapping):
        numbered = {str(number): name for number, name in value.items()}
        if not all(str(number) in numbered for number in range(len(numbered))):
            numbered = {str(number): name for name, number in value.items()}
        value = [numbered.get(str(number)) for number in range(len(value))]
    if not isinstance(value, list) or not value:
        return None
    names = tuple(_decode_name(name) for name in value)
    return names if all(isinstance(name, str) and name for name in names) and len({*names}) == len(names) else None


def assign_text_labels(roles: ArrayRoles, blocks: BlockCache) -> tuple[ArrayRoles, tuple[str, ...] | None]:
    """Makes an array of texts the labels, if no array has class numbers. In its part it must be the only one with a
    name for labels, and its texts must certainly be classes. Reads all its texts; unreadable texts are no labels.

    Returns the new roles, and the names of the classes. The names are None if no texts become the labels. Before that,
    an array of names of classes becomes a column, as :func:`_add_repeated_names` decides. Raises :class:`OSError` or
    :class:`ValueError` if the names of classes cannot be read.
    """
    roles = _add_repeated_names(roles, blocks)
    if any("label" in part.columns for part in roles.parts):
        return roles, None
    texts, parts = LabelTexts(), []
    for part in roles.parts:
        names = [name for name, chosen in part.columns.items() if name != "image" and _may_be_labels(chosen)]
        if len(names) > 1:
            return roles, None
        if not names:
            parts.append(part)
            continue
        label = part.columns[names[0]]
        try:
            for some in _read_texts(blocks, label):
                texts.add_texts(set(some), len(some))
        except (OSError, ValueError):
            return roles, None
        rest = {name: chosen for name, chosen in part.columns.items() if name not in ("image", names[0])}
        parts.append(replace(part, columns={"image": part.columns["image"], "label": label, **rest}))
    order: list[str] = []
    if roles.classes is not None:
        file, info = roles.classes
        order = list(chain.from_iterable(_read_texts(blocks, ColumnArray(file, info))))
    classes = texts.decide_classes(order=order if len({*order}) == len(order) else ())
    return (roles, None) if classes is None else (replace(roles, parts=tuple(parts), classes=None), classes)


def _add_repeated_names(roles: ArrayRoles, blocks: BlockCache) -> ArrayRoles:
    """Makes the array of names of classes a column if it names the class of each sample.

    It does if it has as many texts as there are samples, and some are equal. If it does not, or if there are several
    parts, the roles are returned unchanged. Raises :class:`OSError` or :class:`ValueError` if the texts cannot be read.
    """
    if roles.classes is None or len(roles.parts) != 1:
        return roles
    (file, info), part = roles.classes, roles.parts[0]
    if info.shape[0] != part.length:
        return roles
    names = list(chain.from_iterable(_read_texts(blocks, ColumnArray(file, info))))
    if len({*names}) == len(names):
        return roles
    columns = {
        **part.columns,
        _unused_column_name("_".join(name_words(info.name)), part.columns): ColumnArray(file, info),
    }
    return replace(roles, parts=(replace(part, columns=columns),), classes=None)


def _may_be_labels(chosen: ColumnArray) -> bool:
    """Tells if an array has a text for each sample, and a name for labels."""
    words = [word for word in name_words(chosen.info.name) if word not in SPLIT_ORDER]
    return chosen.info.content == "texts" and len(chosen.info.shape) == 1 and is_label_name(words)


def find_class_names(shown: str, roles: ArrayRoles, blocks: BlockCache) -> tuple[str, ...] | None:
    """Finds the names of the classes of numeric labels: in an array of texts, else in attributes.

    Attributes may be those of the labels, the images or a group above them. Reads all labels. Tries the first names
    alone, and returns None if these do not fit the labels. If these certainly are names of classes, also logs a
    warning; ``shown`` is the source's path in it. Raises :class:`OSError` or :class:`ValueError` if labels or texts
    cannot be read.
    """
    labels = (_read_labels(part, blocks) for part in roles.parts)
    most = max((int(each[np.isfinite(each)].max(initial=0)) for each in labels), default=0)
    for origin, names, is_certain in _list_possible_names(roles, blocks):
        if names is not None and most < len(names) and (is_certain or most + 1 == len(names)):
            return names
        if is_certain:
            _log.warning("%s: %s does not name the classes of the labels; they are packed as numbers alone", shown,
                         origin)  # fmt: skip
            return None
    return None


def _list_possible_names(roles: ArrayRoles, blocks: BlockCache) -> Iterator[tuple[str, tuple[str, ...] | None, bool]]:
    """Yields possible names of classes, each with three values:

    - their origin, for messages
    - the names, None if unusable
    - True if they certainly are classes

    Yields nothing for an array of more than 1,048,576 texts. Raises :class:`OSError` or :class:`ValueError` if texts
    cannot be read.
    """
    if roles.classes is not None:
        file, info = roles.classes
        if not 0 < info.shape[0] <= _MAX_CLASSES:
            return
        texts = list(chain.from_iterable(_read_texts(blocks, ColumnArray(file, info))))
        yield info.shown, tuple(texts) if all(texts) and len({*texts}) == len(texts) else None, True
        return
    for part in roles.parts:
        for role in ("label", "image"):
            if (chosen := part.columns.get(role)) is None or "label" not in part.columns:
                continue
            place: str | None = chosen.info.name
            while place is not None:
                attributes = blocks.open_file(chosen.file).read_attributes(place)
                for name, value in attributes.items():
                    origin = printable(f"the attribute {name} of {place or 'the file'}")
                    names = _parse_class_names(value)
                    is_certain = names is not None and (name != "names" or place == part.columns["label"].info.name)
                    yield origin, names, is_certain
                place = place.rpartition("/")[0] if place else None


def _read_texts(blocks: BlockCache, chosen: ColumnArray) -> Iterator[list[str]]:
    """Yields all texts of an array, in lists of up to 4096. Raises :class:`OSError` or :class:`ValueError` if they
    cannot be read or decoded."""
    array, length = blocks.open_file(chosen.file).arrays[chosen.info.name], chosen.info.shape[0]
    for start in range(0, length, _TEXTS):
        yield [decode_text(text) for text in array.read_rows(0, start, min(start + _TEXTS, length))]


def _read_labels(part: SplitArrays, blocks: BlockCache) -> NDArray[Any]:
    """Reads all class numbers of a part, a group of arrays that belong together; empty without labels. Raises
    :class:`OSError` or :class:`ValueError` if they cannot be read."""
    chosen = part.columns.get("label")
    if chosen is None or not chosen.length:
        return np.zeros(0, np.int64)
    return blocks.open_file(chosen.file).arrays[chosen.info.name].read_all()


def _decode_name(value: Any) -> Any:
    """Decodes bytes as UTF-8, with a replacement for invalid ones; returns any other value unchanged."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
