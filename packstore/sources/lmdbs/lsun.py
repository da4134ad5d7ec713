"""LSUN (https://github.com/fyu/lsun): an LMDB for each class and split, ``bedroom_train_lmdb``, and ``test_lmdb``.

Labels and the order of samples are those of ``torchvision.datasets.LSUN``: classes in the publisher's order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packstore.core.fields import Field, Image, Label
from packstore.images.sniff import begins_like_image
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.ignoring import visible_paths
from packstore.sources.lmdbs.base import Database, Found, LmdbSource, is_lmdb, key_text
from packstore.sources.rows import Row, in_packing_order

CLASSES = (
    *("bedroom", "bridge", "church_outdoor", "classroom", "conference_room", "dining_room", "kitchen", "living_room"),
    *("restaurant", "tower"),
)
_NAME = re.compile(rf"(?:({'|'.join(CLASSES)})_(train|val)|(test))_lmdb")


class LsunSource(LmdbSource):
    """See this module. A key begins with the class and ends with the key in the LMDB."""

    kind = "lsun"

    @classmethod
    def is_one(cls, database: Database) -> bool:
        found = [begins_like_image(data[:16]) for _, data in database.first()]
        return _match(database.path) is not None and 2 * sum(found) > len(found)

    @classmethod
    def find(cls, path: Path) -> list[Found]:
        places = [path] if is_lmdb(path) else sorted(each for each in visible_paths(path) if is_lmdb(each))
        found = [(match[2] or match[3], match[1] or "", each) for each in places if (match := _match(each))]
        order = in_packing_order(split for split, _, _ in found)
        found.sort(key=lambda each: (order.index(each[0]), CLASSES.index(each[1]) if each[1] else -1))
        return [Found(split, each) for split, _, each in found]

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """For :class:`Kind`: by the names of folders, before any is opened."""
        inside = [each.name for each in visible_paths(path)] if path.is_dir() and not _match(path) else []
        if not _match(path) and not any(map(_NAME.fullmatch, inside)):
            return Certainty.NO
        return super().recognise(path, options)

    @property
    def _classes(self) -> tuple[str, ...]:
        present = {match[1] for database in self.databases if (match := _match(database.path)) and match[1]}
        return tuple(name for name in CLASSES if name in present)

    def fields(self) -> Mapping[str, Field]:
        """Declares image and label; images of ``test`` have no label."""
        if not self._classes:
            return {"image": Image()}
        return {"image": Image(), "label": Label(self._classes, optional="test" in self.splits())}

    def rows(self, split: str) -> Iterator[Row]:
        for number, database in self.numbered(split):
            match = _match(database.path)
            name = match[1] if match and match[1] else "test"
            for key, size in database.walk():
                yield Row(f"{split}/{name}/{key_text(key)}", (number, key), size, 8)

    def values(self, ref: Any) -> dict[str, Any]:
        number, key = ref
        found: dict[str, Any] = {"image": self.file(number, key)}
        match = _match(self.databases[number].path)
        if match is not None and match[1]:
            found["label"] = self._classes.index(match[1])
        return found


def _match(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name)


KIND = Kind(LsunSource.kind, "LMDBs of LSUN", LsunSource.recognise, LsunSource)
