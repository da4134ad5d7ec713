"""Parses what annotations are made of: numbers, JSON, lines, and the ids by which they name images and classes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from xml.parsers import expat

from packstore.core.errors import SourceError, printable
from packstore.core.plainjson import load_json
from packstore.sources.beside import clean_path

T = TypeVar("T")
U = TypeVar("U")
_NUMBER = re.compile(r"(-?(?:0|[1-9]\d{0,17}))(?:\.0+)?", re.ASCII)
_LARGEST_FLOAT = 1 << 53


def to_float(value: Any) -> float:
    """Converts a number or its text to a float. Raises :class:`ValueError` for any other value, infinity, NaN and
    booleans."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"found {printable(repr(value)[:40])}, expected a number")
    return number


def to_floats(values: Iterable[Any], count: int | None = None) -> list[float]:
    """Converts values to floats. Raises :class:`ValueError` if a value is no number, and, with ``count``, for any other
    number of values."""
    numbers = [to_float(value) for value in values]
    if count is not None and len(numbers) != count:
        raise ValueError(f"found {len(numbers)} numbers, expected {count}")
    return numbers


def get_floats(item: Mapping[str, Any], *names: str) -> list[float]:
    """Converts the values of ``names`` to floats. Raises :class:`KeyError` if one is missing, and :class:`ValueError`
    if one is no number."""
    return [to_float(item[name]) for name in names]


def flatten_points(points: Iterable[Sequence[Any]]) -> list[float]:
    """Converts ``[[x, y], …]`` to ``x, y, …``; ignores further values of a point. Raises :class:`ValueError` if a
    coordinate is missing, or is no number."""
    return [number for point in points for number in to_floats(point[:2], 2)]


def is_flagged(flags: Any, *names: str) -> bool:
    """Tells if one of the flags ``names`` of an object is set to anything but 0, False, ``"0"`` and ``"false"``."""
    values = [flags.get(name) for name in names] if isinstance(flags, Mapping) else []
    return any(value not in (None, 0, "") and str(value).lower() not in ("0", "false") for value in values)


def nonempty_text(value: Any) -> str | None:
    """Returns ``value`` if it is a text that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def check_class_names(names: Iterable[Any]) -> None:
    """Raises :class:`ValueError` for the first name of a class that is neither a text nor None."""
    odd = next((name for name in names if name is not None and not isinstance(name, str)), None)
    if odd is not None:
        raise ValueError(f"found {printable(repr(odd)[:60])} as the name of a class, expected a text")


def as_list(value: Any) -> list[Any]:
    """Returns a list unchanged, ``[]`` for None or ``""``, and ``[value]`` for any other value. Parsed XML has a single
    value instead of a list of one element."""
    return value if isinstance(value, list) else [] if value in (None, "") else [value]


def parse_json(data: bytes) -> Any:
    """Parses JSON. Raises :class:`ValueError` if it is invalid or nested too deeply."""
    return load_json(data, "its annotation is no JSON")


def parse_json_lines(data: bytes) -> list[Any]:
    """Parses each line that is not blank as JSON. Raises :class:`ValueError` for an invalid line."""
    return [parse_json(line) for line in data.splitlines() if line.strip()]


def parse_xml(data: bytes) -> Any:
    """Parses XML, up to 1 GiB, to dictionaries and lists. Raises :class:`ValueError` for invalid or larger XML."""
    return load_xml(data, 1 << 30)[1]


def split_lines(data: bytes) -> list[str]:
    """Splits UTF-8 text into its lines. Raises :class:`ValueError` if ``data`` is not UTF-8."""
    return data.decode("utf-8-sig").splitlines()


def parse_each_line(convert: Callable[[str], T]) -> Callable[[bytes], list[T]]:
    """Returns a parser that converts each line of UTF-8 text that is not blank. It raises :class:`ValueError` with the
    number of a line, from 1, that ``convert`` refuses."""

    def parse(data: bytes) -> list[T]:
        found = []
        for number, line in enumerate(split_lines(data), 1):
            try:
                found += [convert(line)] if line.strip() else []
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
        return found

    return parse


def split_numbers(line: str, separator: str | None, counts: Collection[int], names: int = 0) -> list[Any]:
    """Splits a line into values: the first ``names`` stay texts, all others become numbers. Raises
    :class:`ValueError` for another number of values than ``counts``, and for a value that is no number.
    """
    words = line.strip().rstrip(",").split(separator)
    if len(words) not in counts:
        raise ValueError(f"found {len(words)} values, expected {' or '.join(map(str, counts))}")
    return [*words[:names], *to_floats(words[names:])]


def parse_id(value: Any) -> int | str | None:
    """Normalises an id: ``1`` for 1, 1.0, ``"1"`` and ``"1.0"``.

    Other texts stay, such as ``"007"``. Returns None for any other value.
    """
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        return int(match[1]) if match else value
    if isinstance(value, float):  # larger ones may have been rounded to the id of another image
        return int(value) if value.is_integer() and abs(value) <= _LARGEST_FLOAT else None
    return value if type(value) is int else None


def clean_image_path(name: Any) -> str:
    """Converts the name of an image in an annotation file to a path within the source. Of an absolute path or a URL,
    keeps the last part alone. Raises :class:`ValueError` for a value that is no text, and for a path that leads out of
    the source."""
    if not isinstance(name, str):
        raise ValueError(f"found {name!r:.60} as the name of an image, expected a text")
    if re.match(r"\w{2,}:|[A-Za-z]:[\\/]|[\\/]", name):
        name = re.split(r"[\\/]", re.split("[?#]", name)[0])[-1]
    return clean_path(name)


def match_images(
    where: str, annotations: Iterable[tuple[Any, Any, T]], images: Mapping[Any, U]
) -> Iterator[tuple[T, U | None]]:
    """Yields each annotation with the value of its image in ``images``, None for an unlisted image.

    Args:
        where: The file, for messages.
        annotations: Id, id of the image, and annotation.
        images: A value by the id of the image, as of :func:`parse_id`.

    Raises:
        SourceError: The id of an image is no id. At the end, if most annotations are of unlisted images.
    """
    unmatched, total = [], 0
    for number, value, annotation in annotations:
        image_id = parse_id(value)
        if image_id is None:
            raise SourceError(
                f"{where}: annotation {printable(f'{number!r:.40}')} has the image_id {printable(f'{value!r:.40}')}; "
                "expected a whole number or a text. Correct it, or remove this annotation"
            )
        image, total = images.get(image_id), total + 1
        unmatched += [value] if image is None else []
        yield annotation, image
    check_most_match(where, "image_id", unmatched, total)


def check_most_match(where: str, name: str, unmatched: Collection[Any], total: int) -> None:
    """Raises :class:`SourceError` if most annotations of a file match nothing, since ids may be written differently.

    Args:
        where: The file, for the message.
        name: Name of the value with the id, ``image_id``.
        unmatched: The value of each annotation that matches nothing.
        total: Number of all annotations.
    """
    if 2 * len(unmatched) <= total:
        return
    some = printable(f"{next(iter(unmatched))!r:.40}")
    raise SourceError(
        f"{where}: {len(unmatched):,} of {total:,} annotations have the {name} of no {name.removesuffix('_id')}, such "
        f"as {some}. Correct the ids, or remove these annotations"
    )


_MAX_XML_BYTES = 16 << 20
_MAX_XML_DEPTH = 32


class _Element:
    """An element during parsing: its texts, and the values of its children by name."""

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name = name
        self.children: dict[str, list[Any]] = {f"@{key}": [value] for key, value in attributes.items()}
        self.text: list[str] = []

    def to_value(self) -> Any:
        """Returns the element's text, or a dict if it has children or attributes, see :func:`load_xml`."""
        text = "".join(self.text).strip()
        if not self.children:
            return text
        if text:
            self.children.setdefault("#text", []).append(text)
        return {name: values[0] if len(values) == 1 else values for name, values in self.children.items()}


def load_xml(data: bytes, max_bytes: int = _MAX_XML_BYTES) -> tuple[str, Any]:
    """Parses an XML document in UTF-8, whatever encoding it declares. Returns name and value of its root element.

    The value of an element without children and attributes is its text, stripped. The value of any other element is a
    dict: children by name (a list if a name repeats), ``@name`` for an attribute, ``#text`` for its own text.

    Raises:
        ValueError: The data are not XML, or have more than ``max_bytes`` or 32 levels. Also for a document type: it
            could define entities that expand to gigabytes or read other files.
    """
    if len(data) > max_bytes:
        raise ValueError(f"has {len(data)} bytes; expected XML of at most {max_bytes}")
    parser = expat.ParserCreate("utf-8")  # declared encodings are decoded before, :mod:`packstore.sources.encodings`
    parser.buffer_text = True
    open_elements = [_Element("", {})]

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(open_elements) > _MAX_XML_DEPTH:
            raise ValueError(f"is nested more than {_MAX_XML_DEPTH} levels deep")
        open_elements.append(_Element(name, attributes))

    def end(name: str) -> None:
        element = open_elements.pop()
        open_elements[-1].children.setdefault(element.name, []).append(element.to_value())

    def document_type(*_: Any) -> None:
        raise ValueError("has a document type, which is not read")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = lambda text: open_elements[-1].text.append(text)
    parser.StartDoctypeDeclHandler = document_type
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(f"is not XML: {error}") from None
    (root,) = open_elements[0].children.items()
    return root[0], root[1][0]
