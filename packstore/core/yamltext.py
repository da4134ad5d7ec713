"""Reads YAML (``data.yaml`` of YOLO, heads of Hugging Face cards) as plain values, and formats strings."""

from __future__ import annotations

import importlib
import re
from typing import Any

from packstore.core.plainjson import find_long_number

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 32
_UNPRINTABLE = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
"""Words that YAML does not read as strings."""


def load_yaml(data: bytes) -> Any:
    """Parses a YAML document into dicts, lists, strings, numbers, booleans, dates and None. Creates no other objects.

    Raises:
        ValueError: The data are not YAML, or have more than 1 MiB or 32 levels. Also for aliases, which could expand to
            gigabytes, and without PyYAML.
    """
    if len(data) > _MAX_BYTES:
        raise ValueError(f"has {len(data)} bytes; expected YAML of at most {_MAX_BYTES}")
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise ValueError("needs PyYAML: pip install 'packstore[yaml]'") from None
    try:
        refused = _find_refusal(yaml, data)
        value = None if refused else yaml.load(data, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(find_long_number(data) or f"is not YAML: {' '.join(str(error).split())[:200]}") from None
    if refused:
        raise ValueError(refused)
    return value


def _find_refusal(yaml: Any, data: bytes) -> str:
    """Returns the reason why a document is refused: an alias, or too many levels. Returns ``""`` if there is none."""
    depth = 0
    for event in yaml.parse(data, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            return "has an alias (*name), which is not read"
        if depth > _MAX_DEPTH:
            return f"is nested more than {_MAX_DEPTH} levels deep"
    return ""


def format_yaml_string(text: str) -> str:
    """Formats a string as YAML: a plain word as it is, any other text in quotes."""
    if re.fullmatch(r"[a-z_][a-z_0-9]*", text) and text not in _WORDS:
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _UNPRINTABLE.sub(lambda match: f"\\U{ord(match[0]):08x}", quoted) + '"'
