"""Reads untrusted XML as plain values."""

from __future__ import annotations

from typing import Any
from xml.parsers import expat

_MAX_BYTES = 16 << 20
_MAX_DEPTH = 32


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


def load_xml(data: bytes, max_bytes: int = _MAX_BYTES) -> tuple[str, Any]:
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
        if len(open_elements) > _MAX_DEPTH:
            raise ValueError(f"is nested more than {_MAX_DEPTH} levels deep")
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
