"""Makes the schema of a dataset from declared fields, or infers it from the first samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

from packstore.core.errors import UsageError, printable
from packstore.core.fields import (
    Field,
    Image,
    Keypoints,
    Label,
    Labels,
    Mask,
    column_of,
)
from packstore.core.modes import RGB, mode_of, parse_mode
from packstore.sources.schema import Schema, name_values
from packstore.sources.values import (
    array_of,
    infer_field,
    infer_mode,
    is_file,
    is_pil,
    mask_dtype,
    names_an_image,
)

_FURTHER = ("original", "uint8", "uint16", "int16", "int32", "jpeg")


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
    """Returns the field names of the parts of a sample: of a tuple's values, or of an image alone. For a dict, returns
    the declared names. Raises :class:`UsageError` for a tuple of more than two values whose fields are not
    declared."""
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
    """Returns the field name of the second value of an (image, value) tuple, by its type. The name is ``mask``,
    ``text``, ``target`` for a list or tuple, or ``label`` for anything else."""
    if is_pil(value):
        return "mask"
    if isinstance(value, str):
        return "text"
    if isinstance(value, (list, tuple)):
        return "target"
    return "mask" if getattr(value, "ndim", 0) == 2 else "label"


def _infer_fields(samples: Sequence[Mapping[str, Any]], classes: Sequence[str] | None) -> dict[str, Field]:
    """Infers a field for each name in the samples. The field is optional if a sample lacks the value. A text under a
    name such as ``image`` is a path. ``classes`` are the class names of every label; None for unknown.

    Raises :class:`UsageError`

    - for a name that is no text, or has no value in any sample;
    - for values that fit no field.
    """
    fields: dict[str, Field] = {}
    for name in dict.fromkeys(name for values in samples for name in values):
        if not isinstance(name, str):
            raise UsageError(f"a sample has the name {name!r}; names are strings")
        given = [values[name] for values in samples if values.get(name) is not None]
        if not given:
            raise UsageError(
                f"{printable(name)}: the first {len(samples)} samples have no value; declare it by fields="
            )
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
    """Returns the name of the main image: ``image``, or else the first image field. Raises :class:`UsageError` if there
    is none, or it is optional."""
    images = [name for name, field in fields.items() if isinstance(field, Image)]
    main = "image" if "image" in images else next(iter(images), None)
    if main is None:
        raise UsageError("no field is an image; declare one: fields={'image': 'image', …}")
    if fields[main].optional:
        raise UsageError(f"{printable(main)}: every record has the main image: leave samples without one out")
    return main


def _find_matching_boxes(name: str, fields: Mapping[str, Field], samples: Sequence[Mapping[str, Any]]) -> str | bool:
    """Finds the field of boxes to which the labels or points in the field ``name`` belong, one to one.

    - Returns the only field of boxes, if every sample has as many values as boxes.
    - Returns False if there are no or several fields of boxes.
    - Returns False if all samples with values have another number of boxes.
    - Raises :class:`UsageError` if the numbers are equal only in some samples with values.
    """
    boxes = [name for name, field in fields.items() if column_of(name, field).traits.rows_are_objects]
    if len(boxes) != 1:
        return False
    pairs = [(_count_value_rows(values.get(name)), _count_value_rows(values.get(boxes[0]))) for values in samples]
    differing = next((number for number, (rows, others) in enumerate(pairs) if rows != others), None)
    if differing is None:
        return boxes[0]
    together = next((number for number, (rows, others) in enumerate(pairs) if rows and rows == others), None)
    if together is not None:
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
    """Raises :class:`UsageError` for an image of pixels without a chosen encoding. A further image with an encoding
    that only main images can have is such an error, too."""
    asked = encoding or field.encoding
    if not main and asked not in (None, *_FURTHER):
        raise UsageError(f"{printable(name)}: of an image that is not the main one, the encoding is one of {_FURTHER}")
    if not is_file and asked in (None, "original"):
        what = "PIL images" if is_pil(value) else f"pixels ({type(value).__name__})"
        dtype = parse_mode(field.mode or RGB.name).dtype
        how = f"encoding={dtype!r}" if main else f"fields={{…, {name!r}: packstore.Image({dtype!r})}}"
        raise UsageError(
            f"{printable(name)}: the images come as {what}, not as files: choose {how} (the pixels, nothing lost) or "
            "'jpeg' (smaller, and lossy); paths or bytes of image files are kept as they are"
        )
