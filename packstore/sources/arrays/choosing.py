"""Which of some named arrays are images, labels and other values of samples, and in which splits they lie.

By names, shapes and dtypes. What these do not decide is a question to the user, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import RESERVED
from packstore.core.modes import MAX_CHANNELS
from packstore.sources.arrays.flat import is_flat, parse_layout, unflatten
from packstore.sources.arrays.stored import ArrayInfo
from packstore.sources.base import SPLIT_ORDER, SourceOptions
from packstore.sources.rows import in_packing_order
from packstore.sources.text_labels import name_words

IMAGE_WORDS = frozenset(
    ["x", "image", "images", "img", "imgs", "data", "pixels", "rgb", "picture", "pictures", "photo", "photos"]
)
LABEL_WORDS = frozenset(["y", "label", "labels", "target", "targets", "class"])
_MASKS = frozenset(["mask", "masks", "segmentation", "segmentations", "seg"])
_NAMES, _OF_NAMES = frozenset(["classes", "categories"]), frozenset(["class", "label", "category", "target"])
_LISTED = 12


@dataclass(frozen=True, slots=True)
class Chosen:
    """An array and what its axes are.

    Attributes:
        file: Number of its file.
        info: The array.
        axis: That of the samples.
        order: The other axes, in the order of the values; ``(height, width[, channel])`` of an image.
    """

    file: int
    info: ArrayInfo
    axis: int = 0
    order: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        return self.info.shape[self.axis]


@dataclass(frozen=True, slots=True)
class Part:
    """Arrays whose rows go together.

    Attributes:
        split: Their split.
        length: Number of samples.
        columns: The arrays by the name of their column; the images are ``image``, class numbers ``label``.
    """

    split: str
    length: int
    columns: Mapping[str, Chosen]


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found.

    Attributes:
        parts: In the order of splits; several of one split follow each other.
        classes: The array of names of classes, and the number of its file.
        left_out: Arrays that belong to no sample.
    """

    parts: tuple[Part, ...]
    classes: tuple[int, ArrayInfo] | None
    left_out: tuple[ArrayInfo, ...]


@dataclass(slots=True)
class _Named:
    file: int
    info: ArrayInfo
    split: str
    role: str
    words: frozenset[str]
    part: tuple[str, ...] = ()


@dataclass(slots=True)
class _Group:
    """The arrays of a part of a split."""

    arrays: list[_Named] = field(default_factory=list)


def choose(shown: str, files: Sequence[Sequence[ArrayInfo]], options: SourceOptions) -> Choice:
    """Decides on the arrays of all files.

    Args:
        shown: Name of the source, for messages.
        files: The arrays of each file.
        options: ``image_key``, ``label_key`` and ``layout`` are used.

    Raises:
        AmbiguousSourceError: Something has to be said by an option, which the message gives.
        SourceError: There are no images, or arrays contradict each other.
    """
    named = [_named(number, info) for number, infos in enumerate(files) for info in infos]
    if not named:
        raise SourceError(f"{shown} holds no arrays")
    splits = {each.split for each in named if each.split}
    common = [each for each in named if not each.split] if splits else []
    if splits:
        _check_common(shown, common, named)
    groups: dict[str, dict[tuple[str, ...], _Group]] = {}
    for each in named:
        if each not in common:
            groups.setdefault(each.split, {}).setdefault(each.part, _Group()).arrays.append(each)
    used: set[int] = set()
    parts = []
    for split in in_packing_order(groups):
        keys = sorted(groups[split], key=lambda part: [(int(w) if w.isdigit() else -1, w) for w in part])
        if len({tuple(word for word in part if not word.isdigit()) for part in keys}) > 1:
            names = ", ".join(sorted({printable(each.info.file) for g in groups[split].values() for each in g.arrays}))
            raise AmbiguousSourceError(
                f"{shown}: the files {names} do not go together by their names; give one of them as the source"
            )
        for key in keys:
            part, taken = _part(shown, split, groups[split][key].arrays, options)
            parts.append(part)
            used |= taken
    classes = next((each for each in named if id(each) not in used and _names_classes(each)), None)
    rest = tuple(each.info for each in named if id(each) not in used and each is not classes)
    return Choice(tuple(parts), None if classes is None else (classes.file, classes.info), rest)


def _named(file: int, info: ArrayInfo) -> _Named:
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
    return _Named(file, info, split, "_".join(role), frozenset(role), part)


def _check_common(shown: str, common: Sequence[_Named], named: Sequence[_Named]) -> None:
    """Raises :class:`AmbiguousSourceError` where some arrays of images are in a split and others are not."""
    images = [each for each in common if _looks_like_images(each)]
    if images:
        others = next(each for each in named if each.split)
        raise AmbiguousSourceError(
            f"{shown}: {images[0].info.shown} is of no split, as {others.info.shown} is; give a source that holds one "
            "kind of them"
        )


def _part(shown: str, split: str, arrays: list[_Named], options: SourceOptions) -> tuple[Part, set[int]]:
    image = _image(shown, arrays, options)
    length = _label_length(shown, arrays, image, options)
    if is_flat(image.info):
        image.info = unflatten(shown, image.info, options.layout, length)
    chosen = Chosen(image.file, image.info, *_axes(shown, image, length, options))
    count = chosen.length
    if length is not None and length != count:
        raise SourceError(f"{shown}: {image.info.shown} holds {count} images, and there are {length} labels")
    columns = {"image": chosen}
    label = _label(shown, arrays, image, count, options)
    used = {id(image)}
    lost = next((each for each in arrays if label is None and each.info.why and each.words & LABEL_WORDS), None)
    if lost is not None:
        raise SourceError(f"{shown}: {lost.info.why}")
    if label is not None:
        columns["label"] = Chosen(label.file, label.info)
        used.add(id(label))
    for each in arrays:
        info = each.info
        fits = info.what != "nothing" and info.shape[:1] == (count,) and not _names_classes(each)
        if id(each) not in used and fits:
            name = column_name(each.role or info.name, columns)
            columns[name] = Chosen(each.file, info)
            used.add(id(each))
    return Part(split, count, columns), used


def _image(shown: str, arrays: Sequence[_Named], options: SourceOptions) -> _Named:
    if options.image_key is not None:
        return _by_key(shown, arrays, options.image_key, "--image-key")
    found = [each for each in arrays if _looks_like_images(each)]
    if len(found) > 1:  # masks and the like beside what is called images
        called = [each for each in found if each.words & IMAGE_WORDS and not each.words & _MASKS]
        others = [each for each in found if each not in called]
        if len(called) == 1 and all(each.words & _MASKS or each.info.dtype.kind == "f" for each in others):
            found = called
    if len(found) == 1:
        return found[0]
    if found:
        asked = " or ".join(f"--image-key {printable(each.info.name)}" for each in found[:_LISTED])
        answers = [Answer(("--image-key", each.info.name)) for each in found[:_LISTED]]
        raise AmbiguousSourceError(f"{shown} holds several arrays of images: say which by {asked}", answers)
    flat = [each for each in arrays if is_flat(each.info) and (each.words & IMAGE_WORDS or each.info.dtype == "u1")]
    if len(flat) == 1:
        return flat[0]
    reason = next((each.info.why for each in arrays if each.info.why), "")
    if reason:
        raise SourceError(f"{shown}: {reason}")
    listed = ", ".join(each.info.shown for each in arrays[:_LISTED]) + (", …" if len(arrays) > _LISTED else "")
    raise SourceError(
        f"{shown} holds no arrays of images (uint8, samples x height x width, with or without 1 or 3 channels), but "
        f"{listed}; --image-key NAME and --layout NHWC (or NCHW, NHW …) say which they are"
    )


def _by_key(shown: str, arrays: Sequence[_Named], key: str, option: str) -> _Named:
    wanted = "_".join(name_words(key))
    for fits in (
        lambda each: each.info.name.strip("/") == key.strip("/"),
        lambda each: each.role == "_".join(word for word in name_words(key) if word not in SPLIT_ORDER),
        lambda each: wanted in (each.role, "_".join(name_words(each.info.name))),
    ):
        found = [each for each in arrays if fits(each)]
        if len(found) == 1:
            return found[0]
    listed = ", ".join(each.info.shown for each in arrays[:_LISTED])
    raise SourceError(f"{shown} has no array {printable(key)!r}, as {option} says; arrays: {listed}")


def _looks_like_images(each: _Named) -> bool:
    info, called = each.info, bool(each.words & IMAGE_WORDS)
    if info.what == "files":
        return len(info.shape) == 1 and not each.words & _MASKS
    if info.what != "numbers" or info.dtype.kind not in "uif" or not info.shape or min(info.shape) < 1:
        return False
    if (info.dtype != "u1" and not called) or all(size == 1 for size in info.shape[1:]):
        return False
    if len(info.shape) == 3:
        return True
    return len(info.shape) == 4 and any(info.shape[axis] in (1, 3) for axis in (1, 2, 3))


def _is_label(each: _Named) -> bool:
    """Whether an array holds a number a sample."""
    info = each.info
    flat = len(info.shape) >= 1 and all(size == 1 for size in info.shape[1:])
    return info.what == "numbers" and info.dtype.kind in "uib" and flat


def _labels(arrays: Sequence[_Named], image: _Named) -> list[_Named]:
    return [each for each in arrays if each is not image and each.words & LABEL_WORDS and _is_label(each)]


def _label_length(shown: str, arrays: Sequence[_Named], image: _Named, options: SourceOptions) -> int | None:
    """How many labels there are, where that is clear; it decides between layouts."""
    if options.label_key is not None:
        found = _by_key(shown, arrays, options.label_key, "--label-key")
        return found.info.shape[0] if found.info.shape else 0
    lengths = {each.info.shape[0] for each in _labels(arrays, image)}
    return lengths.pop() if len(lengths) == 1 else None


def _label(shown: str, arrays: Sequence[_Named], image: _Named, count: int, options: SourceOptions) -> _Named | None:
    if options.label_key is not None:
        found = _by_key(shown, arrays, options.label_key, "--label-key")
        flat = all(size == 1 for size in found.info.shape[1:]) and found.info.what == "numbers"
        if not flat or found.info.dtype.kind not in "uifb" or found.info.shape[:1] != (count,):
            raise SourceError(f"{shown}: {found.info.shown} is not a number for each of {count} images")
        return found
    labels = [each for each in _labels(arrays, image) if each.info.shape[0] == count]
    if len(labels) > 1:
        asked = " or ".join(f"--label-key {printable(each.info.name)}" for each in labels[:_LISTED])
        raise AmbiguousSourceError(
            f"{shown} holds several arrays of labels: say which is to be 'label' by {asked} (the others keep their "
            "names)",
            [Answer(("--label-key", each.info.name)) for each in labels[:_LISTED]],
        )
    return labels[0] if labels else None


def _axes(shown: str, image: _Named, length: int | None, options: SourceOptions) -> tuple[int, tuple[int, ...]]:
    info = image.info
    if info.what == "files":
        return 0, ()
    layout = None if options.layout is None else parse_layout(options.layout)[0]
    if layout is None:
        fitting = _layouts(info.shape, length) or _layouts(info.shape, None)
        sure = length is not None or len(info.shape) == 4 or bool(image.words & IMAGE_WORDS)
        if length is None and len(info.shape) == 3:
            sure = sure and not {1, 3, 4} & {info.shape[0], info.shape[2]}  # one image, as likely
        if info.reversed or len(fitting) != 1 or not sure:
            usual = ["NHWC", "NCHW"] if len(info.shape) == 4 else ["NHW"]
            proposed = ["NCWH" if len(info.shape) == 4 else "NWH"] if info.reversed else fitting or usual
            asked = " or ".join(f"--layout {each}" for each in proposed)
            why = "MATLAB wrote its axes in reverse" if info.reversed else "the order of its axes is not clear"
            if info.alone and len(info.shape) == 3:
                why += " (one image in an array is not read: stack all of them)"
            named = "" if options.image_key is None else f"--image-key {printable(options.image_key)} "
            answers = [Answer(("--layout", each)) for each in proposed]
            raise AmbiguousSourceError(f"{shown}: {info.shown}: {why}; say it by {named}{asked}", answers)
        layout = fitting[0]
    if len(layout) != len(info.shape):
        raise SourceError(f"{shown}: {info.shown} has {len(info.shape)} axes, and the layout {layout} {len(layout)}")
    channels = info.shape[layout.index("C")] if "C" in layout else 1
    if channels > MAX_CHANNELS:
        raise SourceError(f"{shown}: {info.shown} as {layout} has {channels:,} channels, more than {MAX_CHANNELS:,}")
    order = tuple(layout.index(letter) for letter in "HWC" if letter in layout)
    return layout.index("N"), order


def _layouts(shape: tuple[int, ...], length: int | None) -> list[str]:
    """The layouts that a shape can have; ``length`` is the number of samples where that is known."""
    if len(shape) == 3:
        found = ["NHW", "HWN"] if length is not None else ["NHW"]
    else:
        names = ("NHWC", "NCHW", "HWCN") if length is not None else ("NHWC", "NCHW")
        found = [name for name in names if shape[name.index("C")] in (1, 3)]
    return [name for name in found if length is None or shape[name.index("N")] == length]


def _names_classes(each: _Named) -> bool:
    called = each.words & _NAMES or (each.words & {"name", "names"} and each.words & _OF_NAMES)
    return bool(called) and each.info.what == "texts" and len(each.info.shape) == 1


def column_name(role: str, columns: Mapping[str, Chosen]) -> str:
    """A name for a column."""
    name = re.sub(r"[^a-z0-9_]", "_", role.lower())[:60]
    name = name if name[:1].isalpha() else f"x{name}"
    while name in columns or name in (*RESERVED, "image", "label"):
        name += "_"
    return name
