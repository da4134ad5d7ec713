"""Reads conversations about images, one or several images a sample: LLaVA, ShareGPT, and chat messages.

A JSON list, or JSON Lines, of objects with ``conversations`` (``from``, ``value``) or ``messages`` (``role``,
``content``). Images are named in ``image`` or ``images``, one or a list, or in the parts of the messages.

- LLaVA: https://github.com/haotian-liu/LLaVA/blob/main/docs/Finetune_Custom_Data.md
- Messages: https://github.com/hiyouga/LLaMA-Factory/blob/main/data/README.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from packstore.core.fields import Field, Images
from packstore.sources.annotation_formats.documents import DocumentFormat, DocumentSource
from packstore.sources.annotation_formats.parsing import parse_json
from packstore.sources.annotation_formats.shapes import Document, Listed, Parts, Picture, Value
from packstore.sources.annotation_formats.source import make_kind
from packstore.sources.contents import list_contents
from packstore.sources.encodings import convert_start
from packstore.sources.rows import FileRow, InTree
from packstore.sources.tree import Tree

_TURNS = {"conversations": ("from", "value"), "messages": ("role", "content")}
_FURTHER = "further_images"
_ABSENT, _ALONE = "conversations whose images are not here", "conversations without images"


class ConversationSource(DocumentSource):
    """Conversations in the order of their file. The first image of each is ``image``, others are ``further_images``.

    Conversations without an image, or with a missing image, are left out."""

    left_images = "images that no conversation is about"
    allows_repeats = True
    absent_reason = _ABSENT

    def fields(self) -> Mapping[str, Field]:
        """Adds ``further_images`` if some conversation has several images."""
        image, *others = super().fields().items()
        return dict([image, *([(_FURTHER, Images())] if self.max_further else []), *others])

    def list_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows with their further images."""
        for row in super().list_rows(split):
            further = self.read_entry(row.values["entry"])[0] if self.max_further else None
            yield row if further is None else row._replace(values={**row.values, _FURTHER: [*map(InTree, further)]})


def _parse_conversation(entry: Any) -> tuple[list[str], Any]:
    """Returns the paths of a conversation's images, and a pair of the values of its columns and its other content."""
    name = next((name for name in _TURNS if isinstance(entry, dict) and name in entry), "")
    turns = entry[name] if name else None
    keys = {*_TURNS.get(name, ())}
    if not isinstance(turns, list) or not all(isinstance(turn, dict) and keys <= turn.keys() for turn in turns):
        raise ValueError(f"has no list of {' or '.join(_TURNS)}: {json.dumps(entry)[:60]}")
    given = entry.get("images", entry.get("image"))
    images = [given] if isinstance(given, str) else given or list(_find_images_in_messages(turns, _TURNS[name][1]))
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise ValueError(f"has the images {json.dumps(given)[:60]}; expected a path or a list of paths")
    identifier = {"id": str(entry["id"])} if isinstance(entry.get("id"), str | int) else {}
    rest: Any = {key: value for key, value in entry.items() if key not in {name, *identifier}}
    # The path of a single image is no content worth a column.
    rest = rest if rest.keys() - {"image"} or isinstance(given, list) else None
    return [image.removeprefix("file://") for image in images], [{name: turns, **identifier}, rest]


def _find_images_in_messages(turns: Sequence[Any], text: str) -> Iterator[str]:
    """Yields images in the parts of messages of type ``image`` or ``image_url``: ``{"image": "a.jpg"}``,
    ``{"image_url": {"url": …}}``, ``{"value": "a.jpg"}``."""
    for part in chain(*(turn[text] for turn in turns if isinstance(turn[text], list))):
        if isinstance(part, dict) and part.get("type") in ("image", "image_url"):
            image = part.get("image", part.get("image_url", part.get("value")))
            image = image.get("url") if isinstance(image, dict) else image
            if isinstance(image, str):
                yield image


class _ConversationFormat(DocumentFormat):
    """Conversations, which a tree without images does not have."""

    def find(self, tree: Tree) -> list[str]:
        """Finds the files of conversations; none in a tree without images."""
        return super().find(tree) if list_contents(tree).image_count else []


def _parse_document(data: bytes) -> Any:
    """Parses a JSON list, or the lines of JSON Lines."""
    text = convert_start(data).lstrip()
    return parse_json(text) if text.startswith(b"[") else [*map(parse_json, filter(bytes.strip, text.split(b"\n")))]


def _list_images(file: Document) -> Iterator[Listed]:
    """Lists the conversations about image files, and counts others as left out."""
    for number, entry in enumerate(file.content, 1):
        try:
            images, item = _parse_conversation(entry)
        except ValueError as error:
            raise ValueError(f"conversation {number} {error}") from None
        if not images or any("://" in image for image in images):
            file.count_left(_ABSENT if images else _ALONE)
            continue
        yield Listed(images[0], item, further_images=images[1:])


def _read_parts(item: Any, _: Picture) -> Parts:
    """Yields the columns of a listed conversation, then the rest of its entry as the column ``json``."""
    yield from (Value(name, value) for name, value in item[0].items())
    yield Value("json", item[1])


_FORMAT = _ConversationFormat(
    kind="conversations",
    help="conversations about images, one or several a sample: LLaVA, ShareGPT, messages",
    signature=rb'(?s)\A\s*\[?\s*\{.*?"(conversations|messages)"\s*:\s*\[\s*\{\s*"(from|role|value|content)"\s*:',
    read_parts=_read_parts,
    parse=_parse_document,
    list_images=_list_images,
    suffixes=(".json", ".jsonl"),
    max_depth=8,
)
KIND = make_kind(_FORMAT, ConversationSource)
