"""Conversations about images, one or several a sample: LLaVA, ShareGPT, and chat messages.

A JSON list, or JSON Lines, of objects with ``conversations`` (``from``, ``value``) or ``messages`` (``role``,
``content``). They name their images in ``image`` or ``images``, one or a list, or in the parts of their messages.

- LLaVA: https://github.com/haotian-liu/LLaVA/blob/main/docs/Finetune_Custom_Data.md
- Messages: https://github.com/hiyouga/LLaMA-Factory/blob/main/data/README.md
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Json, Text
from packstore.sources.annotation_formats.documents import split_of_file
from packstore.sources.annotation_formats.objects import load_json
from packstore.sources.annotation_formats.spool import Spool
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import folder_of, join, plain_path, read_text
from packstore.sources.contents import contents_of
from packstore.sources.rows import FileRow, FileRowSource, InTree, Row, in_packing_order
from packstore.sources.tree import Tree

_START, _MAX_BYTES, _FEW, _MOST = 1 << 16, 4 << 30, 16, 32
_TURNS = {"conversations": ("from", "value"), "messages": ("role", "content")}
_SIGNATURE = re.compile(
    rb'\A(\xef\xbb\xbf)?\s*\[?\s*\{.*?"(conversations|messages)"\s*:\s*\[\s*\{\s*"(from|role|value|content)"\s*:', re.S
)
_IMAGES = ("images", "image", "data", "img", "imgs", "media", "")


class ConversationSource(FileRowSource):
    """Conversations in the order of their file, each with its images: ``image``, ``image_2``, ``image_3`` …

    Conversations that are about no image, or about one that is not here, are counted. The key is the path of the first
    image, with ``#1`` … for further conversations about it.
    """

    kind = "conversations"
    left_images = "images that no conversation is about"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._files = find_files(self.tree)
        if not self._files:
            raise SourceError(
                f"{printable(str(path))} has no conversations: a JSON list with conversations or messages"
            )
        self.ignored: Counter[str] = Counter()
        self._splits: list[str] = []
        self._split_of, self._repeats = bytearray(), array("q")
        self._most, self._having = 1, set[str]()
        try:
            self._spool = Spool(self._read_all())
        except OSError as error:
            raise SourceError(f"{self.tree.name()}: its rows need a temporary file: {error.strerror}") from None
        self.evidence = ", ".join(map(printable, self._files))

    def _read_all(self) -> Iterator[Any]:
        """Yields images and values of each conversation whose images are here."""
        seen: Counter[str] = Counter()
        for file in self._files:
            entries = self._read_entries(file)
            beside = file.rpartition("/")[0]
            bases = [
                join(base, name) if name else base for base in (beside, beside.rpartition("/")[0]) for name in _IMAGES
            ]
            folder = folder_of(self.tree, (name for images, _ in entries for name in images), bases) or ""
            split = split_of_file(file)
            self._splits += [split] if split not in self._splits else []
            there: dict[str, frozenset[str]] = {}
            for names, values in entries:
                images = [join(folder, name) for name in names]
                for place in {image.rpartition("/")[0] for image in images} - there.keys():
                    there[place] = frozenset(self.tree.names(place).files)
                if not all(names) or not all(i.rpartition("/")[2] in there[i.rpartition("/")[0]] for i in images):
                    self.ignored["conversations whose images are not here"] += 1
                    continue
                if not images:
                    self.ignored["conversations without images"] += 1
                    continue
                if len(images) > _MOST:
                    raise SourceError(
                        f"{self.tree.name(file)}: a conversation has {len(images)} images; at most {_MOST}"
                    )
                self._most = max(self._most, len(images))
                self._having.update(values)
                self._repeats.append(seen[images[0]])
                seen[images[0]] += 1
                self._split_of.append(self._splits.index(split))
                yield [images, values]

    def _read_entries(self, file: str) -> list[tuple[list[str], dict[str, Any]]]:
        """Names of the images, and values by column, of each conversation in a file. Raises :class:`SourceError`."""
        shown, found = self.tree.name(file), []
        data = read_text(self.tree, file, _MAX_BYTES)
        try:
            listed = (
                load_json(data) if file.endswith(".json") else map(load_json, filter(bytes.strip, data.split(b"\n")))
            )
            for number, entry in enumerate(listed, 1):
                found.append(_read_entry(entry, f"{shown}, conversation {number}"))
        except (ValueError, TypeError) as error:
            raise SourceError(f"{shown}: {printable(str(error))}") from None
        return found

    def splits(self) -> Sequence[str]:
        return in_packing_order(self._splits)

    def fields(self) -> Mapping[str, Field]:
        found: dict[str, Field] = {"image": Image()}
        found |= {f"image_{n}": Image(optional=True) for n in range(2, self._most + 1)}
        found |= {"id": Text(optional=True)} if "id" in self._having else {}
        return found | {name: Json(optional=True) for name in (*_TURNS, "json") if name in self._having}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        for number in range(len(self._spool)):
            if self._splits[self._split_of[number]] == split:
                first, *further = self._spool.read(number)[0]
                values: dict[str, Any] = {f"image_{n}": InTree(each) for n, each in enumerate(further, 2)}
                key = f"{first}#{self._repeats[number]}" if self._repeats[number] else first
                yield FileRow(first, {"entry": number, **values}, key)

    def rows(self, split: str) -> Iterator[Row]:
        for row in super().rows(split):
            entry = row.ref[3]["entry"] if isinstance(row.ref[3], Mapping) else None
            yield row if entry is None else row._replace(value_bytes=row.value_bytes + self._spool.size(entry))

    def values(self, ref: Any) -> Mapping[str, Any]:
        found = dict(super().values(ref))
        found |= self._spool.read(found.pop("entry"))[1]
        return found

    def described_by(self) -> Iterable[str]:
        return self._files

    def left_members(self) -> Mapping[str, int]:
        return dict(self.ignored)

    def close(self) -> None:
        if hasattr(self, "_spool"):
            self._spool.close()
        super().close()


def find_files(tree: Tree) -> list[str]:
    """Finds files that begin with a conversation: at the top, or in a folder of a few JSON files."""
    found = []
    for folder, contents in contents_of(tree).folders.items():
        for suffix in (".json", ".jsonl"):
            names = contents.others.get(suffix)
            if names is not None and names.count <= _FEW:
                found += [
                    path for name in names.first if _SIGNATURE.search(tree.start(path := join(folder, name), _START))
                ]
    return found


def _read_entry(entry: Any, where: str) -> tuple[list[str], dict[str, Any]]:
    """Images and values of a conversation. Raises :class:`ValueError`."""
    name = next((name for name in _TURNS if isinstance(entry, dict) and name in entry), "")
    turns = entry[name] if name else None
    speaker, text = _TURNS.get(name, ("", ""))
    if not isinstance(turns, list) or not all(
        isinstance(turn, dict) and {speaker, text} <= turn.keys() for turn in turns
    ):
        raise ValueError(f"{where} has no list of {' or '.join(_TURNS)}: {json.dumps(entry)[:60]}")
    given = entry.get("images", entry.get("image"))
    images = [given] if isinstance(given, str) else given or list(_named_in(turns, text))
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise ValueError(f"{where} has the images {json.dumps(given)[:60]}; expected a path or a list of paths")
    local = (image.removeprefix("file://") for image in images)
    plain = ["" if "://" in each else plain_path(re.sub(r"^([A-Za-z]:)?[\\/]+", "", each)) for each in local]
    values: dict[str, Any] = {name: turns}
    values |= {"id": str(entry["id"])} if isinstance(entry.get("id"), (str, int)) else {}
    rest = {key: value for key, value in entry.items() if key not in (name, *(("id",) if "id" in values else ()))}
    return plain, values | ({"json": rest} if rest.keys() - {"image"} or isinstance(given, list) else {})


def _named_in(turns: Sequence[Any], text: str) -> Iterator[str]:
    """Images in the parts of messages: ``{"type": "image", "image": "a.jpg"}``, ``{"image_url": {"url": …}}``."""
    for turn in turns:
        for part in turn[text] if isinstance(turn[text], list) else ():
            image = part.get("image", part.get("image_url")) if isinstance(part, dict) else None
            image = image.get("url") if isinstance(image, dict) else image
            if isinstance(image, str):
                yield image


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """A JSON file that begins with a conversation; whether its images are here is told by reading it."""
    tree = open_tree(path)
    return Certainty.CERTAIN if tree is not None and contents_of(tree).images and find_files(tree) else Certainty.NO


KIND = Kind(
    "conversations",
    "conversations about images, one or several a sample: LLaVA, ShareGPT, messages",
    _recognise,
    ConversationSource,
    in_objects=True,
)
