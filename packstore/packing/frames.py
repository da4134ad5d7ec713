"""Brings annotations and pixels of a record into one frame: stored, or upright (EXIF, a TIFF's orientation).

A source gives boxes, points, masks and shapes in the frame in which somebody annotated the image. The options of a
store say in which frame its readers show images. :class:`FrameAligner` finds the frame of a record's annotations by
evidence, and moves them if the two differ.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from packstore.core.columns import FRAMES, STORED, UPRIGHT, is_moved, without_companions
from packstore.core.errors import AmbiguousSourceError, Answer, DecodeError, SampleError, UsageError, printable
from packstore.core.manifest import Column, Manifest
from packstore.images.orientation import keeps_exif, read_annotation_orientation, swaps_sides
from packstore.images.sniff import HeaderError, ImageInfo, sniff
from packstore.sources.base import Sample, Source, Survey

OTHER_SIZE = "other_size_stated"
"""Name of the count of samples whose annotations state a size that their image has in no frame."""
_LOOKED_AT = 20_000
_SLACK = 1.05


def frame_of_pixels(upright: bool, kind: str) -> str:
    """Returns the frame in which readers show an image: upright if they apply EXIF, and for every TIFF."""
    return UPRIGHT if upright or kind == "tiff" else STORED


def state_frames(survey: Survey, upright: bool) -> Survey:
    """Returns the survey with the frame of each column that moves with the image: upright or stored.

    Columns of a store keep its frame if the store keeps no EXIF, or if their frame is unknown and will not change.
    Arrays have no orientation, so their frame is unknown.
    """
    arrays = survey.store is None and survey.encoding != "original"
    store, frame = survey.store, None if arrays else UPRIGHT if upright else STORED
    moved = [column for column in survey.columns if is_moved(column)]
    if store is not None:
        same = bool(store.options.get("exif_transpose")) == upright
        moved = [column for column in moved if keeps_exif(store) and not (same and column.frame is None)]
    names = {column.name for column in moved}
    columns = tuple(replace(column, frame=frame) if column.name in names else column for column in survey.columns)
    return replace(survey, columns=columns)


def list_sampled_columns(survey: Survey) -> list[Column]:
    """Returns the columns whose values samples have, without their companions, such as shapes."""
    return [column for column in without_companions(survey.columns) if column.name in survey.sampled]


def no_effect_error() -> UsageError:
    """Returns the error for an answer about the frame of annotations without annotations that move with the image."""
    return UsageError(
        "annotation_frame is for boxes, points, masks and other annotations that move with the image, and there are "
        "none: leave it out"
    )


def restore_aligner(
    manifest: Manifest, source: Source, survey: Survey, split: str | None, answer: str | None
) -> FrameAligner | None:
    """Makes the aligner with which a store was packed from a source. Returns None for a store without frames: its
    annotations were not moved. ``answer``: the user's; None for that in the manifest. Raises :class:`UsageError` for an
    answer that has no effect."""
    if all(column.frame is None for column in manifest.columns):
        if answer is not None:
            raise no_effect_error()
        return None
    recorded = manifest.options.get("annotation_frame")
    answer = answer or (str(recorded) if recorded in FRAMES else None)
    return FrameAligner(source, survey, bool(manifest.options.get("exif_transpose")), answer, split)


class FrameAligner:
    """Moves the annotations of samples to the frame in which readers of the store show the image. Thread-safe.

    The frame of a sample's annotations follows from the first of these that tells:

    - The size that annotations or masks state.
    - ``answer``, which the user has given.
    - The convention of the format (:meth:`packstore.sources.base.Source.annotation_frame`).
    - Coordinates far beyond the image's sides in one of the frames.
    - Other samples of the source, if their sizes tell the same frame.

    Attributes:
        has_effect: The source has columns that move with the image.
        other_size: The first sample whose annotations state a size that its image has in no frame, in words; empty for
            none.
    """

    other_size = ""

    def __init__(self, source: Source, survey: Survey, upright: bool, answer: str | None, split: str | None) -> None:
        """
        Args:
            source: The source of the samples.
            survey: Its survey.
            upright: Readers of the store apply EXIF.
            answer: The user's answer, ``stored`` or ``upright``; None for none.
            split: The split of the source that is packed; None for all.
        """
        sampled = list_sampled_columns(survey)
        self._columns = {column.name: column for column in sampled if is_moved(column)}
        self._pictures = [column for column in sampled if column.holds_one_image]  # such as masks in colours
        self.has_effect = bool(self._columns or self._pictures)
        self._source, self._survey, self._upright = source, survey, upright
        self._answer, self._split = answer, split
        self._lock = threading.Lock()
        self._evidence: str | None = None
        self._looked = False

    def align(self, key: str, sample: Sample) -> Sample:
        """Returns the sample with its annotations in the frame of its pixels. Adds :data:`OTHER_SIZE` to
        :attr:`Sample.unified` if they state another size.

        Raises:
            AmbiguousSourceError: Nothing tells the frame of its annotations.
            SampleError: A mask or shape cannot be moved.
        """
        if not self.has_effect or isinstance(sample.image, np.ndarray):
            return sample
        # Fractions of the sides fit an image of any size.
        stated = [] if sample.at_rest or sample.relative else _list_stated_sizes(sample)
        try:
            orientation = read_annotation_orientation(sample.image)
            if orientation == 1 and not stated:
                return sample
            info = sniff(bytes(sample.image))
        except HeaderError:
            return sample  # the encoder reports it
        swapped, size = swaps_sides(orientation), _find_stored_size(info, orientation)
        if stated and size not in stated and not (swapped and size[::-1] in stated):
            sample = self._count_other_size(key, sample, stated[0], size)
        if orientation == 1:
            return sample
        wanted = frame_of_pixels(self._upright, info.kind)
        frames = self._find_frames(key, sample, orientation, size, info.kind)
        self._refuse_other_pictures(key, sample, orientation, size, wanted, frames)
        values = dict(sample.values)
        for name, value in (sample.upright_values or {}).items():
            if frames.get(name) == UPRIGHT:
                values[name] = value
        if sample.relative and swapped:
            _scale_to_stored_size(values, self._columns, frames, size)
        from packstore.images.annotations import make_turn

        turn = make_turn(orientation, size, wanted)
        columns = {name: self._columns[name] for name, frame in frames.items() if frame != wanted}
        try:
            if sample.at_rest:
                return sample._replace(values=turn.move_stored_values(columns, values))
            values |= {name: turn.move_value(column, values[name]) for name, column in columns.items()}
        except (ValueError, DecodeError) as error:
            raise SampleError(key, f"its annotations cannot be moved to the {wanted} image: {error}") from error
        return sample._replace(values=values)

    def _count_other_size(self, key: str, sample: Sample, stated: Size, size: Size) -> Sample:
        """Returns the sample with :data:`OTHER_SIZE` in :attr:`Sample.unified`, if it has annotations that move."""
        if not any(_has_annotations(column, sample) for column in self._columns.values()):
            return sample
        found = "{} x {}".format(*stated), "{} x {}".format(*size)
        self.other_size = self.other_size or f"{printable(key)} states {found[0]}, and its image is {found[1]}"
        return sample._replace(unified=(*sample.unified, OTHER_SIZE))

    def _find_frames(
        self, key: str, sample: Sample, orientation: int, size: Size, kind: str
    ) -> dict[str, str]:  # fmt: skip
        """Returns the frame of each column in which the sample has annotations."""
        present = [name for name, column in self._columns.items() if _has_annotations(column, sample)]
        if not sample.at_rest:  # the size of a mask that fits neither is reported when it is checked
            present = [name for name in present if _fits_image(self._columns[name], sample.values[name], size)]
        if sample.at_rest:
            recorded = {name: self._find_recorded_frame(name, kind) for name in present}
            frames = {name: frame for name, frame in recorded.items() if frame is not None}
        else:
            frames = _find_stated_frames({name: self._columns[name] for name in present}, sample, orientation, size)
        if frames.keys() >= set(present):
            return frames
        frame = self._answer or self._source.annotation_frame(kind)
        if frame is None and not sample.at_rest and sample.upright_values is None and swaps_sides(orientation):
            found = {_find_frame_of_extent(self._columns[name], sample, size) for name in present} - {None}
            frame = found.pop() if len(found) == 1 else None
        frame = frame or self._find_common_frame()
        if frame is None:
            self._ask(key, orientation, ", ".join(name for name in present if name not in frames))
        return dict.fromkeys(present, frame) | frames

    def _refuse_other_pictures(
        self, key: str, sample: Sample, orientation: int, size: Size, wanted: str, frames: Mapping[str, str]
    ) -> None:
        """Raises :class:`UsageError` for a picture beside the image, such as a colour mask, that would have to be
        turned."""
        known = {*frames.values()}
        for column in () if sample.at_rest else self._pictures:
            data = sample.values[column.name]
            # Only pictures without an orientation of their own matter: packstore does not turn these.
            if not isinstance(data, bytes) or read_annotation_orientation(data) != 1:
                continue
            try:
                info = sniff(data)
            except HeaderError:
                continue  # reported when it is checked
            by_size = {size: STORED, size[::-1]: UPRIGHT}
            if (info.width, info.height) not in by_size:  # it does not lie on the image
                continue
            told = by_size[info.width, info.height] if swaps_sides(orientation) and size[0] != size[1] else None
            frame = told or self._answer or (known.copy().pop() if len(known) == 1 else None)
            if frame is None:
                frame = self._ask(key, orientation, column.name)
            if frame != wanted:
                other = "with" if frame == UPRIGHT else "without"
                raise UsageError(
                    f"{printable(key)}: its EXIF orientation is {orientation}, and the picture {column.name!r} beside "
                    f"it is in the {frame} frame and would not be turned: pack {other} --exif-transpose, or save the "
                    "image upright, without an orientation"
                )

    def _ask(self, key: str, orientation: int, names: str) -> NoReturn:
        """Raises the question in which frame the annotations are."""
        raise AmbiguousSourceError(
            f"{printable(key)}: its EXIF orientation is {orientation}, and nothing tells if its annotations "
            f"({names}) count in the pixels as the file stores them, or in the upright image that viewers show. "
            "Say which with --annotation-frame (Python: annotation_frame=), for all images that do not tell",
            [Answer(("--annotation-frame", frame)) for frame in (UPRIGHT, STORED)],
            self._source.path,
        )

    def _find_recorded_frame(self, name: str, kind: str) -> str | None:
        """Returns the frame of a column of a source that is a store, or None if it is unknown."""
        store = self._survey.store
        assert store is not None
        turned = bool(store.options.get("exif_transpose"))
        frame = store.column(name).frame
        # If the store does not tell, annotations stay with its pixels, unless the frame of the pixels changes.
        known = frame is not None or turned is self._upright
        return frame_of_pixels(turned, kind) if known else None

    def _find_common_frame(self) -> str | None:
        """Returns the only frame that the first samples of the source tell, or None."""
        with self._lock:
            if not self._looked:
                frames: set[str] = set()
                # A source that can be read only once is not looked at.
                for frame in self._walk_evidence() if self._survey.counted else ():
                    frames.add(frame)
                    if len(frames) > 1:
                        break
                self._evidence = frames.pop() if len(frames) == 1 else None
                self._looked = True
            return self._evidence

    def _walk_evidence(self) -> Iterator[str]:
        """Yields the frames that the first samples of the source tell."""
        for entry in islice(self._source.fetch(self._source.entries(self._split)), _LOOKED_AT):
            try:
                sample = self._source.read(entry)
                if not isinstance(sample, Sample) or isinstance(sample.image, np.ndarray) or sample.at_rest:
                    return
                orientation = read_annotation_orientation(sample.image)
                if not swaps_sides(orientation):
                    continue
                info = sniff(bytes(sample.image))
                present = {name: each for name, each in self._columns.items() if _has_annotations(each, sample)}
                size = _find_stored_size(info, orientation)
                yield from _find_stated_frames(present, sample, orientation, size).values()
            except (SampleError, HeaderError):
                continue  # packing reports it


def _find_stored_size(info: ImageInfo, orientation: int) -> Size:
    """Returns width and height of an image as it is stored."""
    # The size of a TIFF is given as decoded, upright.
    turned = info.kind == "tiff" and swaps_sides(orientation)
    return (info.height, info.width) if turned else (info.width, info.height)


def _has_annotations(column: Column, sample: Sample) -> bool:
    """Tells if a sample has a value of a column that is not empty."""
    value = sample.values.get(column.name)
    if sample.at_rest and column.nullable and not sample.values[column.valid_name]:
        return False
    return value is not None and (not hasattr(value, "__len__") or len(value) > 0)


def _find_stated_frames(columns: Mapping[str, Column], sample: Sample, orientation: int, size: Size) -> dict[str, str]:
    """Returns, by column, the frames that the sizes stated by the sample tell."""
    if not swaps_sides(orientation) or size[0] == size[1]:
        return {}  # both frames have the same size
    by_size = {size: STORED, size[::-1]: UPRIGHT}
    stated: set[str | None] = {by_size.get(each) for each in _list_stated_sizes(sample)}
    frames: dict[str, str] = {}
    for name, column in columns.items():
        value = sample.values[name]
        if column.traits.lies_on_image:
            mask_size = _read_mask_size(column, value)
            if mask_size is not None and (frame := by_size.get(mask_size)) is not None:
                frames[name] = frame
    common = stated or set(frames.values())
    if len(common) == 1 and (frame := next(iter(common))) is not None:
        return dict.fromkeys(columns, frame) | frames
    return frames


def _list_stated_sizes(sample: Sample) -> list[Size]:
    """Returns the sizes of the image that a sample states in its values, or beside them."""
    return [*_walk_stated_sizes(sample.values), *([sample.stated_size] if sample.stated_size is not None else [])]


def _fits_image(column: Column, value: Any, size: Size) -> bool:
    """Tells if a mask has the size of its image in one of the frames; other columns always fit."""
    return not column.traits.lies_on_image or _read_mask_size(column, value) in (size, size[::-1])


def _read_mask_size(column: Column, value: Any) -> Size | None:
    """Returns width and height of a mask, volume or clip; None if it is damaged."""
    if column.layout is not None:
        shape = np.shape(value)
        return (shape[-1], shape[-2]) if len(shape) >= 2 else None
    from packstore.images.masks import read_mask_header

    try:
        header = read_mask_header(value)
    except DecodeError:
        return None  # reported when it is checked
    return header.width, header.height


def _find_frame_of_extent(column: Column, sample: Sample, size: Size) -> str | None:
    """Returns the only frame whose image contains all coordinates, or None."""
    value = sample.values[column.name]
    if sample.relative or column.coordinates is None or column.traits.is_object:
        return None
    points = np.asarray(value, np.float64).reshape(-1, len(column.coordinates or ""))
    points = points.reshape(-1, 2) if column.coordinates == "xyxy" else points[:, :2]
    right, bottom = points.max(0)
    # Annotators draw up to 5% beyond the sides.
    fits = {
        frame: right <= _SLACK * width + 1 and bottom <= _SLACK * height + 1
        for frame, (width, height) in ((STORED, size), (UPRIGHT, size[::-1]))
    }
    return next(frame for frame in FRAMES if fits[frame]) if sum(fits.values()) == 1 else None


def _scale_to_stored_size(
    values: dict[str, Any], columns: Mapping[str, Column], frames: Mapping[str, str], size: Size
) -> None:
    """Scales coordinates in the stored frame, in place, to the sides of the stored image."""
    # They were fractions, which the source has multiplied with the sides of the upright image.
    ratio = size[0] / size[1]
    for name, frame in frames.items():
        coordinates = columns[name].coordinates
        if frame != STORED or coordinates is None:
            continue
        if columns[name].traits.is_object:
            if coordinates == "pixels" and values[name] is not None:
                values[name] = [_scale_shape(shape, ratio) for shape in values[name]]
            continue
        scale = np.ones(len(coordinates))
        scale[: 4 if coordinates == "xyxy" else 2] = [ratio, 1 / ratio] * (2 if coordinates == "xyxy" else 1)
        values[name] = np.asarray(values[name], np.float64) * scale


def _scale_shape(shape: Any, ratio: float) -> Any:
    """Scales the rings of a shape by a ratio of the sides; anything else stays unchanged."""
    if isinstance(shape, dict):
        return {name: _scale_shape(each, ratio) for name, each in shape.items()} if "even_odd" in shape else shape
    if shape is None:
        return None
    return [[n / ratio if place % 2 else n * ratio for place, n in enumerate(ring)] for ring in shape]


Size = tuple[int, int]
"""Width and height."""

_SIZES = (("width", "height"), ("@width", "@height"), ("imageWidth", "imageHeight"))
_PARTS = ("image", "size", "annotation", "asset", "media", "metadata", "item")


def _walk_stated_sizes(values: Any) -> Iterator[Size]:
    """Yields the sizes of the image that values state, in columns and in the JSON of annotations."""
    if not isinstance(values, Mapping):
        return
    for width, height in _SIZES:
        yield from _to_sizes(values.get(width), values.get(height))
    for name in (*_PARTS, "json"):
        yield from _walk_stated_sizes(values.get(name))
    for part in (values.get("image"), values.get("media")):
        listed = part.get("size") if isinstance(part, Mapping) else None
        if isinstance(listed, list) and len(listed) == 2:  # height and width, as in Datumaro
            yield from _to_sizes(listed[1], listed[0])
    yield from _walk_label_studio_sizes(values.get("json"))


def _walk_label_studio_sizes(value: Any) -> Iterator[Size]:
    """Yields the sizes in the results of Label Studio, at any depth."""
    if isinstance(value, Mapping):
        yield from _to_sizes(value.get("original_width"), value.get("original_height"))
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        if isinstance(each, (Mapping, list)):
            yield from _walk_label_studio_sizes(each)


def _to_sizes(width: Any, height: Any) -> list[Size]:
    """Returns the size that two values state, or nothing if one of them is no side in pixels."""
    sides = _to_side(width), _to_side(height)
    return [sides] if all(sides) else []


def _to_side(value: Any) -> int:
    """Converts a number or its text to a side in pixels; returns 0 for anything else."""
    try:
        side = float(value) if isinstance(value, (int, float, str, np.number)) else 0.0
        return int(side) if side >= 1 and side == int(side) else 0
    except (ValueError, OverflowError):
        return 0
