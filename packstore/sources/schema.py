"""Defines how samples of a dataset become records: names, types and order of their fields, declared or inferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from packstore.core.columns import Column
from packstore.core.errors import SampleError, UsageError, printable
from packstore.core.fields import (
    RESERVED,
    Bytes,
    Field,
    Image,
    Images,
    Json,
    Keypoints,
    Label,
    Labels,
    Mask,
    Text,
    column_of,
)
from packstore.core.modes import RGB, Mode, mode_of, parse_mode
from packstore.images.encode import EncodeOptions, Encoder
from packstore.images.reading import PLAIN, Reading
from packstore.images.sniff import max_file_bytes
from packstore.sources.base import Sample
from packstore.sources.values import (
    array_of,
    convert_image,
    infer_field,
    infer_mode,
    is_file,
    is_pil,
    mask_dtype,
    names_an_image,
    nbytes_of,
    read_file_value,
    refuse_losses,
    refuse_odd_mask,
    to_plain,
)

_FURTHER = ("original", "uint8", "uint16", "int16", "int32", "jpeg")


class FieldError(ValueError):
    """A value that does not fit its field.

    Attributes:
        field: Name of the field.
        reason: The problem, without the field.
        item: Number of the image in a list of images; None for the whole value.
    """

    def __init__(self, field: str, reason: str, item: int | None = None) -> None:
        super().__init__(f"{field}: {reason}" if item is None else f"{field}: image {item}: {reason}")
        self.field, self.reason, self.item = field, reason, item


# Name of a value without a field. It is True if coordinates are fractions that the source has multiplied with the sides
# of the upright image.
RELATIVE = "relative coordinates"
# Name of a value without a field: width and height of the image, as its annotation states them.
STATED_SIZE = "stated size"
# Name of a value without a field: :attr:`packstore.sources.base.Sample.upright_values`.
UPRIGHT_VALUES = "values of the upright image"
# Attributes of :class:`packstore.sources.base.Sample` by the names of values without a field.
_MARKS = {RELATIVE: "relative", STATED_SIZE: "stated_size", UPRIGHT_VALUES: "upright_values"}


class NamedSample(NamedTuple):
    """Sample whose values have the names of fields.

    Attributes:
        key: Its own key; None without one.
        values: Values as the user gave them, or after :meth:`Schema.to_plain`.
        nbytes: Estimated memory of the values.
        unified: Conversions of its images to the modes of their fields: :data:`packstore.images.image_files.UNIFIED`.
        marks: Its values without a field, by the attribute of :class:`packstore.sources.base.Sample`.
    """

    key: str | None
    values: dict[str, Any]
    nbytes: int
    unified: tuple[str, ...] = ()
    marks: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Schema:
    """Fields of all samples; names and converts the samples' values. Plain data, so that worker processes can receive
    it.

    Attributes:
        fields: Fields by name, in order.
        main: Name of the main image.
        positions: Names of the parts of a sample that is a tuple.
        files: Names of images and masks that are files.
        picks: Values of other names than ``fields`` are left out. If False, they are an error.
        max_pixels: Largest image in pixels; larger files are not read.
        dtypes: Dtypes of masks that are arrays, by name.
    """

    fields: Mapping[str, Field]
    main: str
    positions: tuple[str, ...]
    files: frozenset[str]
    picks: bool
    max_pixels: int
    dtypes: Mapping[str, str]

    @property
    def encoding(self) -> str:
        """Encoding of the main image: ``original`` for files, or the dtype of its pixels."""
        return "original" if self.main in self.files else self._mode_of(self.main).dtype

    @property
    def mode(self) -> str | None:
        """Name of the main image's mode, as in :attr:`Survey.mode`; None for files, and for RGB."""
        mode = self._mode_of(self.main)
        return None if self.main in self.files or mode == RGB else mode.name

    def _mode_of(self, name: str) -> Mode:
        """Returns the mode of an image field; RGB if none is declared."""
        field = self.fields[name]
        return parse_mode((field.mode if isinstance(field, Image) else None) or RGB.name)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns except the main image, each with its companions. Raises :class:`UsageError`

        - for a reserved name, and the name of a companion;
        - for labels or points that belong to a field other than boxes.
        """
        all_columns: list[Column] = []
        for name, field in self.fields.items():
            if name != self.main:
                if isinstance(field, Image) and name not in self.files and self._is_stored_file(name):
                    field = replace(field, mode=None)  # a JPEG file is read as RGB
                column = column_of(name, field, files=self._is_stored_file(name), dtype=self.dtypes.get(name, "uint8"))
                all_columns += [column, *column.companions]
        names = [column.name for column in all_columns]
        twice = next((name for name in names if names.count(name) > 1 or name in (*RESERVED, "image")), None)
        if twice is not None:
            raise UsageError(f"the column {twice!r} is made by packstore itself; rename your field")
        objects = {column.name for column in all_columns if column.traits.rows_are_objects}
        for column in all_columns:
            parallel = column.parallel
            if parallel is not None and parallel not in objects:
                raise UsageError(f"{column.name!r} goes with {parallel!r}, which is not a field of boxes")
        return tuple(all_columns)

    def assign_names(self, raw: Any) -> NamedSample:
        """Splits a sample into its key and values by field. Missing values become None.

        None is a missing value, except in a JSON field. Raises :class:`ValueError`

        - for a missing value of a field that is not optional;
        - for a value of no field, unless :attr:`picks`;
        - for the reasons of :func:`name_values`.
        """
        key, values = name_values(raw, self.positions, self.fields)
        marks = {attribute: values.pop(name) for name, attribute in _MARKS.items() if name in values}
        if not self.picks and not values.keys() <= self.fields.keys():
            names = ", ".join(map(printable, sorted(map(str, values.keys() - self.fields.keys()))))
            raise ValueError(f"{names}: no such field; fields: {', '.join(map(printable, self.fields))}")
        by_field, nbytes = {}, 0
        for name, field in self.fields.items():
            value = by_field[name] = values.get(name)
            if value is None and not field.optional and not (isinstance(field, Json) and name in values):
                raise ValueError(f"{name}: no value; declare the field optional if samples may lack it")
            nbytes += nbytes_of(value)
        return NamedSample(key, by_field, nbytes, marks=marks)

    def to_plain(self, taken: NamedSample) -> NamedSample:
        """Converts values to plain types, which do not depend on the libraries that made them. Does not read files.

        Adds the conversions of images to ``unified``. Raises :class:`ValueError` for pixels in a field of files, for
        files in a field of pixels, and for the reasons of :func:`.values.to_plain`. Other values are checked when they
        are stored.
        """
        values, unified = dict(taken.values), [*taken.unified]
        for name, field, plain_type in self._field_types:
            value = values[name]
            if type(value) is plain_type:
                continue
            try:
                if (
                    value is not None
                    and isinstance(field, (Image, Mask))
                    and is_file(value) is not (name in self.files)
                ):
                    found, expected = ("a file", "pixels") if is_file(value) else ("pixels", "a file")
                    raise ValueError(f"found {found}, expected {expected} as in the first samples")
                if isinstance(field, Image) and value is not None and not is_file(value):
                    values[name], conversions = convert_image(value, field.mode)
                    unified += conversions
                else:
                    values[name] = to_plain(field, value)
            except (ValueError, TypeError, OSError) as error:
                raise ValueError(f"{name}: {error}") from error
        return taken._replace(values=values, unified=tuple(unified))

    def make_sample(self, key: str, taken: NamedSample) -> Sample:
        """Converts named values to a sample of a source.

        Reads its files, numbers its classes, and encodes its images except the main image. Does not check ranges of
        class numbers and shapes of arrays: that happens when they are stored.

        Raises :class:`ValueError` for the reasons of :meth:`to_plain`. Raises :class:`FieldError` for a bad file, image
        or class name. ``key``: names the sample in messages.
        """
        taken = self.to_plain(taken)
        values = taken.values
        for name, field, plain_type in self._field_types:
            value = values[name]
            if value is None or type(value) is plain_type:
                continue
            try:
                if name in self.files:
                    values[name] = value = read_file_value(value, max_file_bytes(self.max_pixels))
                    if isinstance(field, Mask):
                        refuse_odd_mask(value)
                if isinstance(field, (Label, Labels)):
                    values[name] = self._to_class_numbers(name, value)
                elif isinstance(field, Images):
                    values[name] = [
                        self._read_listed_image(name, key, number, file) for number, file in enumerate(value)
                    ]
                elif name in self._encoders:
                    values[name] = self._encode_further_image(name, key, value)
            except FieldError:
                raise
            except (ValueError, TypeError) as error:
                raise FieldError(name, str(error)) from error
        image = values.pop(self.main)
        return Sample(image, values, taken.key, unified=taken.unified, **(taken.marks or {}))

    @cached_property
    def _field_types(self) -> tuple[tuple[str, Field, type | None], ...]:
        """Name and field of each field, and the type of values that need no conversion or None."""
        types = []
        for name, field in self.fields.items():
            is_main_file = name == self.main and name in self.files
            ready = {Label: int, Text: str, Bytes: bytes}.get(type(field), bytes if is_main_file else None)
            types.append((name, field, ready))
        return tuple(types)

    def _is_stored_file(self, name: str) -> bool:
        """Tells if images of a field are stored as files."""
        encoding = getattr(self.fields[name], "encoding", None)
        return name in self.files if encoding in (None, "original") else encoding == "jpeg"

    @cached_property
    def _encoders(self) -> dict[str, Encoder]:
        """Encoders of all images except the main one, by the name of their field."""
        encoders = {}
        for name, field in self.fields.items():
            if isinstance(field, (Image, Images)) and name != self.main:
                is_file, mode = name in self.files or isinstance(field, Images), self._mode_of(name)
                encoding = getattr(field, "encoding", None) or "original"
                reading = PLAIN if is_file and encoding == "original" else Reading(mode.name)
                options = EncodeOptions(encoding, max_pixels=self.max_pixels, reading=reading)
                encoders[name] = Encoder(options, "original" if is_file else mode.dtype, source_mode=mode)
        return encoders

    def _read_listed_image(self, name: str, key: str, number: int, value: Any) -> bytes:
        """Reads and checks file ``number`` of a list of images."""
        try:
            return bytes(self._encoders[name](key, read_file_value(value, max_file_bytes(self.max_pixels)))[0])
        except (SampleError, ValueError) as error:
            raise FieldError(name, getattr(error, "reason", str(error)), number) from error

    def _encode_further_image(self, name: str, key: str, value: Any) -> Any:
        """Encodes a further image, to the bytes of a file or to an array."""
        options = self._encoders[name].options
        if name in self.files and options.encoding != "original":  # packing asks about losses of other files
            refuse_losses(value, options)
        try:
            record, shape, *_ = self._encoders[name](key, value)
        except SampleError as error:
            raise ValueError(error.reason) from error
        if self._is_stored_file(name):
            return bytes(record)
        return np.frombuffer(record, self._mode_of(name).dtype).reshape(shape or ())

    @cached_property
    def _numbers_by_class(self) -> dict[str, dict[str, int]]:
        """Class numbers by name, for each field."""
        given = {name: getattr(field, "classes", None) for name, field in self.fields.items()}
        return {name: {label: n for n, label in enumerate(classes or ())} for name, classes in given.items()}

    def _to_class_numbers(self, name: str, value: Any) -> Any:
        """Converts a class name, or each name in a list, to its number; leaves other values unchanged."""
        if isinstance(value, (list, tuple)):
            return [self._to_class_numbers(name, each) for each in value]
        if not isinstance(value, str):
            return value
        numbers = self._numbers_by_class[name]
        if value not in numbers:
            known = f"one of {len(numbers)} classes" if numbers else "a number, since no classes are declared"
            raise ValueError(f"found {printable(value)!r}; expected {known}")
        return numbers[value]


def name_values(
    raw: Any, positions: Sequence[str], fields: Mapping[str, Field] | None = None
) -> tuple[str | None, dict[str, Any]]:
    """Splits a sample into its key and values by name. The key is the value ``key`` as a text, or None.

    A sample is a dict, a tuple or an image. Values of a tuple have the names in ``positions``. A dict in a tuple adds
    its own values, unless its field is JSON. Raises :class:`ValueError`

    - for a tuple of another length than ``positions``;
    - for a key that is no text, path or whole number.
    """
    values: dict[str, Any] = {}
    if isinstance(raw, Mapping):
        values.update(raw)
    elif isinstance(raw, (tuple, list)):
        if len(raw) != len(positions):
            raise ValueError(f"found {len(raw)} values, expected {len(positions)}: {', '.join(positions)}")
        for name, value in zip(positions, raw, strict=True):
            if isinstance(value, Mapping) and not isinstance((fields or {}).get(name), Json):
                values.update(value)
            else:
                values[name] = value
    else:
        values[positions[0]] = raw
    key = values.pop("key", None)
    if key is None or isinstance(key, str):
        return key, values
    if isinstance(key, PurePath):
        return key.as_posix(), values
    if isinstance(key, (int, np.integer)):
        return str(int(key)), values
    raise ValueError(f"key: found {type(key).__name__}, expected a string")


def make_schema(
    samples: Sequence[Any],
    declared: Mapping[str, Field] | None,
    *,
    classes: Sequence[str] | None = None,
    picks: bool = True,
    encoding: str | None = None,
    further: str | None = None,
    max_pixels: int,
) -> Schema:
    """Makes the schema of a dataset from its declaration, or infers it from the first samples. Declared fields without
    mode, dtype or boxes get these from the first samples, too.

    Args:
        samples: First samples, unchanged; at least one.
        declared: Fields by name; None infers them.
        classes: Class names of the dataset, for an inferred label.
        picks: See :class:`Schema`.
        encoding: Requested encoding of the main image, or None.
        further: Requested encoding of other inferred images that are pixels, or None.
        max_pixels: See :class:`Schema`.

    Raises:
        UsageError: A field or an encoding must be declared; or fields contradict each other; or no field can be the
            main image; or a sample has other parts than the first.
    """
    positions = _name_positions(samples[0], declared)
    rows = []
    for number, raw in enumerate(samples):
        try:
            rows.append(name_values(raw, positions, declared)[1])
        except ValueError as error:
            raise UsageError(f"sample {number}: {error}") from error
    fields = dict(declared) if declared is not None else _infer_fields(rows, classes)
    given = {name: [values[name] for values in rows if values.get(name) is not None] for name in fields}
    main = _find_main(fields)
    files = frozenset(
        name
        for name, field in fields.items()
        if isinstance(field, (Image, Mask))
        and (is_file(given[name][0]) if given[name] else getattr(field, "dtype", None) is None)
    )
    dtypes = {}
    for name, field in fields.items():
        if isinstance(field, Mask) and name not in files:
            dtypes[name] = field.dtype or mask_dtype(array_of(given[name][0]))
            fields[name] = replace(field, dtype=dtypes[name])
        elif isinstance(field, (Labels, Keypoints)) and field.of is None:
            fields[name] = replace(field, of=_find_matching_boxes(name, fields, rows))
        elif isinstance(field, Image) and declared is None and name not in (main, *files):
            fields[name] = field = replace(field, encoding=further)
        if isinstance(field, Image) and name in files and name != main and field.mode is None:
            dtype = field.encoding if field.encoding in ("uint16", "int16", "int32") else None
            field = fields[name] = field if dtype is None else replace(field, mode=mode_of(1, dtype).name)
        elif isinstance(field, Image) and name not in files and given[name] and field.mode is None:
            try:
                field = fields[name] = replace(field, mode=infer_mode(given[name]))
            except ValueError as error:
                raise UsageError(f"{printable(name)}: {error}") from error
        if isinstance(field, Image) and given[name]:
            _refuse_missing_encoding(
                name, field, name in files, given[name][0], encoding if name == main else None, name == main
            )
    schema = Schema(fields, main, positions, files, picks, max_pixels, dtypes)
    schema.columns  # noqa: B018 - raises for impossible columns
    return schema


def _name_positions(raw: Any, declared: Mapping[str, Field] | None) -> tuple[str, ...]:
    """Returns the field names of the parts of a sample: of a tuple's values, or of an image alone."""
    names = tuple(declared or ())
    if isinstance(raw, Mapping):
        return names
    if not isinstance(raw, (tuple, list)):
        return (next((name for name, field in (declared or {}).items() if isinstance(field, Image)), "image"),)
    parts = [part for part in raw if isinstance(part, Mapping)]
    if declared is not None and len(names) == len(raw):
        return names
    if len(raw) == 1:
        return ("image",)
    if len(raw) != 2:
        wanted = "fields= with a name for each of its values, in order" if not parts else "dicts as samples"
        raise UsageError(f"a sample is a tuple of {len(raw)} values: give {wanted}")
    if parts or (declared is not None and len(names) < 2):
        return ("image", "target")
    return (names[0] if names else "image", _name_second_value(raw[1]))


def _name_second_value(value: Any) -> str:
    """Returns the field name of the second value of an (image, value) tuple, by its type."""
    if is_pil(value):
        return "mask"
    if isinstance(value, str):
        return "text"
    if isinstance(value, (list, tuple)):
        return "target"
    return "mask" if getattr(value, "ndim", 0) == 2 else "label"


def _infer_fields(samples: Sequence[Mapping[str, Any]], classes: Sequence[str] | None) -> dict[str, Field]:
    """Infers a field for each name in the samples; ``classes`` are the names of the classes of every label."""
    fields: dict[str, Field] = {}
    for name in dict.fromkeys(name for values in samples for name in values):
        if not isinstance(name, str):
            raise UsageError(f"a sample has the name {name!r}; names are strings")
        given = [values[name] for values in samples if values.get(name) is not None]
        if not given:
            raise UsageError(
                f"{printable(name)}: the first {len(samples)} samples have no value; declare it by fields="
            )
        # Such a text is a path.
        if names_an_image(name) and isinstance(given[0], str):
            field: Field = Image()
        else:
            try:
                field = infer_field(name, given)
            except ValueError as error:
                raise UsageError(f"{printable(name)}: {error}; give fields=") from error
        if isinstance(field, Label) and classes is not None:
            field = replace(field, classes=tuple(classes))
        fields[name] = replace(field, optional=True) if len(given) < len(samples) else field
    return fields


def _find_main(fields: Mapping[str, Field]) -> str:
    """Returns the name of the main image: ``image``, or else the first image field."""
    images = [name for name, field in fields.items() if isinstance(field, Image)]
    main = "image" if "image" in images else next(iter(images), None)
    if main is None:
        raise UsageError("no field is an image; declare one: fields={'image': 'image', …}")
    if fields[main].optional:
        raise UsageError(f"{printable(main)}: every record has the main image: leave samples without one out")
    return main


def _find_matching_boxes(name: str, fields: Mapping[str, Field], samples: Sequence[Mapping[str, Any]]) -> str | bool:
    """Returns the only field of boxes if the values of field ``name`` belong to them one to one, else False."""
    boxes = [name for name, field in fields.items() if column_of(name, field).traits.rows_are_objects]
    if len(boxes) != 1:
        return False
    pairs = [(_count_value_rows(values.get(name)), _count_value_rows(values.get(boxes[0]))) for values in samples]
    differing = next((number for number, (rows, others) in enumerate(pairs) if rows != others), None)
    if differing is None:
        return boxes[0]
    together = next((number for number, (rows, others) in enumerate(pairs) if rows and rows == others), None)
    if together is not None:
        # Equal numbers in only some samples prove nothing.
        raise UsageError(
            f"{printable(name)}: there is one for each of the {printable(boxes[0])} in sample {together}, but not in "
            f"sample {differing}; declare it with of={boxes[0]!r} if they go together, else with of=False"
        )
    return False


def _count_value_rows(value: Any) -> int | None:
    """Returns the number of rows of a value; None for a single number, and for other values without a length."""
    return len(value) if isinstance(value, Sized) and getattr(value, "shape", None) != () else None


def _refuse_missing_encoding(
    name: str, field: Image, is_file: bool, value: Any, encoding: str | None, main: bool
) -> None:
    """Raises :class:`UsageError` for pixels without a chosen encoding, or with one that only main images can have."""
    asked = encoding or field.encoding
    if not main and asked not in (None, *_FURTHER):
        raise UsageError(f"{printable(name)}: of an image that is not the main one, the encoding is one of {_FURTHER}")
    if not is_file and asked in (None, "original"):
        dtype = parse_mode(field.mode or RGB.name).dtype
        how = f"encoding={dtype!r}" if main else f"fields={{…, {name!r}: packstore.Image({dtype!r})}}"
        raise UsageError(
            f"{printable(name)}: the images come as pixels ({type(value).__name__}), not as files: choose {how} (the "
            "pixels, nothing lost) or 'jpeg' (smaller, and lossy)"
        )
