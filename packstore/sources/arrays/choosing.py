"""Assigns roles to named arrays: images, labels or further columns, and a split.

Names, shapes and dtypes decide. If they do not, the user is asked; nothing is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.modes import MAX_CHANNELS
from packstore.sources.arrays.stored import ArrayInfo, ColumnArray, parse_layout
from packstore.sources.base import SourceOptions
from packstore.sources.columns import make_column_names, name_words
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import SPLIT_ORDER

IMAGE_WORDS = frozenset(
    ["x", "image", "images", "img", "imgs", "data", "pixels", "rgb", "picture", "pictures", "photo", "photos"]
)
LABEL_WORDS = frozenset(["y", "label", "labels", "target", "targets", "class"])
_MASKS = frozenset(["mask", "masks", "segmentation", "segmentations", "seg"])
_NAMES, _OF_NAMES = frozenset(["classes", "categories"]), frozenset(["class", "label", "category", "target"])
_LISTED = 12
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
    length = _count_labels(shown, arrays, image, options)
    if _may_be_flat_images(image.info):
        image.info = _unflatten_images(shown, image.info, options.layout, length)
    chosen = ColumnArray(image.file, image.info, *_choose_axes(shown, image, length, options))
    count = chosen.length
    if length is not None and length != count:
        raise SourceError(f"{shown}: {image.info.shown} holds {count} images, and there are {length} labels")
    columns = {"image": chosen}
    label = _find_labels(shown, arrays, image, count, options)
    used = {id(image)}
    lost = next((each for each in arrays if label is None and each.info.why and each.words & LABEL_WORDS), None)
    if lost is not None:
        raise SourceError(f"{shown}: {lost.info.why}")
    if label is not None:
        columns["label"] = ColumnArray(label.file, label.info)
        used.add(id(label))
    for each in arrays:
        info = each.info
        fits = info.content != "unreadable" and info.shape[:1] == (count,) and not _holds_class_names(each)
        if id(each) not in used and fits:
            columns[unused_column_name(each.role or info.name, columns)] = ColumnArray(each.file, info)
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


def _has_number_per_sample(each: _NamedArray) -> bool:
    """Tells if an array has one whole number or boolean for each sample."""
    info = each.info
    flat = len(info.shape) >= 1 and all(size == 1 for size in info.shape[1:])
    return info.content == "numbers" and info.dtype.kind in "uib" and flat


def _find_label_candidates(arrays: Sequence[_NamedArray], image: _NamedArray) -> list[_NamedArray]:
    """Finds the arrays with a name for labels, and one number for each sample."""
    return [each for each in arrays if each is not image and each.words & LABEL_WORDS and _has_number_per_sample(each)]


def _count_labels(shown: str, arrays: Sequence[_NamedArray], image: _NamedArray, options: SourceOptions) -> int | None:
    """Returns the length of the array of labels, which helps to choose a layout. Returns None if there are no
    candidates, or they differ in length. Raises :class:`SourceError` if ``--label-key`` names no array."""
    if options.label_key is not None:
        label = _find_by_key(shown, arrays, options.label_key, "--label-key")
        return label.info.shape[0] if label.info.shape else 0
    lengths = {each.info.shape[0] for each in _find_label_candidates(arrays, image)}
    return lengths.pop() if len(lengths) == 1 else None


def _find_labels(
    shown: str, arrays: Sequence[_NamedArray], image: _NamedArray, count: int, options: SourceOptions
) -> _NamedArray | None:
    """Finds the array of class numbers. ``--label-key`` may name it, else it is the only candidate with ``count``
    numbers. Returns None if there is none. Raises :class:`SourceError` if the named array does not have ``count``
    numbers, and :class:`AmbiguousSourceError` for several candidates."""
    if options.label_key is not None:
        label = _find_by_key(shown, arrays, options.label_key, "--label-key")
        flat = all(size == 1 for size in label.info.shape[1:]) and label.info.content == "numbers"
        if not flat or label.info.dtype.kind not in "uifb" or label.info.shape[:1] != (count,):
            raise SourceError(f"{shown}: {label.info.shown} should have one number for each of {count} images")
        return label
    labels = [each for each in _find_label_candidates(arrays, image) if each.info.shape[0] == count]
    if len(labels) > 1:
        asked = " or ".join(f"--label-key {printable(each.info.name)}" for each in labels[:_LISTED])
        raise AmbiguousSourceError(
            f"{shown} holds several arrays of labels: say which is 'label' by {asked} (the others keep their names)",
            [Answer(("--label-key", each.info.name)) for each in labels[:_LISTED]],
        )
    return labels[0] if labels else None


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


def unused_column_name(role: str, columns: Mapping[str, ColumnArray]) -> str:
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
