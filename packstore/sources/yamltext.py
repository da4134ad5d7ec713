"""Reads YAML (``data.yaml`` of YOLO, heads of Hugging Face cards) as plain values, and formats strings."""

from __future__ import annotations

import importlib
import re
from typing import Any

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 32
_UNPRINTABLE = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
"""Words that YAML does not read as strings."""
_TAGS = "tag:yaml.org,2002:"
"""Beginning of the tags that YAML itself defines."""


def load_yaml(data: bytes) -> Any:
    """Parses a YAML document into dicts, lists and strings as they are written: ``007``, ``no`` and ``12:30`` stay
    texts. All keys are texts. A value that is not written is None. Creates no other objects.

    Raises:
        ValueError: The data are not YAML, or have more than 1 MiB or 32 levels. Also for aliases, which could expand to
            gigabytes, for objects of a programming language, for a key that occurs twice, and without PyYAML.
    """
    if len(data) > _MAX_BYTES:
        raise ValueError(f"has {len(data)} bytes; expected YAML of at most {_MAX_BYTES}")
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise ValueError("needs PyYAML: pip install 'packstore[yaml]'") from None
    try:
        refused = _find_refusal(yaml, data)
        # the base loader does not guess types: YAML 1.1 reads the class name "no" as False
        node = None if refused else yaml.compose(data, yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"is not YAML: {' '.join(str(error).split())[:200]}") from None
    if refused:
        raise ValueError(refused)
    return None if node is None else _to_plain_value(node)


def parse_yaml_int(value: Any) -> int | None:
    """Parses a value of :func:`load_yaml` as a whole number from 0 on, of at most 18 digits. Returns None for any other
    value."""
    return int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value) else None


def is_yaml_null(value: Any) -> bool:
    """Tells if a value of :func:`load_yaml` is missing, or is one of the words that YAML has for it."""
    return value is None or value in ("~", "null", "Null", "NULL")


def is_yaml_bool(value: Any, expected: bool) -> bool:
    """Tells if a value of :func:`load_yaml` is a word that YAML 1.1 reads as ``expected``."""
    return isinstance(value, str) and value.lower() in (("true", "yes", "on") if expected else ("false", "no", "off"))


def _to_plain_value(node: Any) -> Any:
    """Converts a node of PyYAML to dicts, lists, strings and None."""
    if node.id == "scalar":
        return None if node.value == "" and not node.style else node.value
    if node.id == "sequence":
        return [_to_plain_value(each) for each in node.value]
    values: dict[str, Any] = {}
    for key, value in node.value:
        if key.id != "scalar":
            raise ValueError(f"has a key that is no text, on line {key.start_mark.line + 1}")
        if key.value in values:
            raise ValueError(f"has the key {key.value!r:.80} twice, again on line {key.start_mark.line + 1}")
        values[key.value] = _to_plain_value(value)
    return values


def _find_refusal(yaml: Any, data: bytes) -> str:
    """Returns why a document is refused: an alias, an object of a language, or too many levels; else ``""``."""
    depth = 0
    for event in yaml.parse(data, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            return "has an alias (*name), which is not read"
        tag = getattr(event, "tag", None) or ""
        if tag not in ("", "!") and (not tag.startswith(_TAGS) or ":python/" in tag):
            return f"has the tag {tag!r:.80}, which is not read"
        if depth > _MAX_DEPTH:
            return f"is nested more than {_MAX_DEPTH} levels deep"
    return ""


def format_yaml_string(text: str) -> str:
    """Formats a string as YAML: a plain word as it is, any other text in quotes."""
    if re.fullmatch(r"[a-z_][a-z_0-9]*", text) and text not in _WORDS:
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _UNPRINTABLE.sub(lambda match: f"\\U{ord(match[0]):08x}", quoted) + '"'
