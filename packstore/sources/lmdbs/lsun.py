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
from packstore.sources.lmdbs.base import Database, LmdbSource, SplitDatabase, decode_key, is_lmdb
from packstore.sources.rows import Row, in_packing_order

CLASSES = (
    *("bedroom", "bridge", "church_outdoor", "classroom", "conference_room", "dining_room", "kitchen", "living_room"),
    *("restaurant", "tower"),
)
_NAME = re.compile(rf"(?:({'|'.join(CLASSES)})_(train|val)|(test))_lmdb")


class LsunSource(LmdbSource):
    """Source of LSUN's LMDBs. The key of a sample is split, class and key in the LMDB. The classes are those with an
    LMDB; images of ``test`` have no label."""

    kind = "lsun"

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if the database has a name of LSUN's. More than half of its first 4 values also have to be images."""
        are_images = [begins_like_image(data[:16]) for _, data in database.read_first_entries()]
        return _match_name(database.path) is not None and 2 * sum(are_images) > len(are_images)

    @classmethod
    def find_databases(cls, path: Path) -> list[SplitDatabase]:
        """Finds the LMDBs with names of LSUN's, at ``path`` or in the folder ``path``; ignores others. Sorts them by
        split, then in the publisher's order of classes."""
        places = [path] if is_lmdb(path) else sorted(each for each in visible_paths(path) if is_lmdb(each))
        entries = [(match[2] or match[3], match[1] or "", each) for each in places if (match := _match_name(each))]
        order = in_packing_order(split for split, _, _ in entries)
        entries.sort(key=lambda each: (order.index(each[0]), CLASSES.index(each[1]) if each[1] else -1))
        return [SplitDatabase(split, each) for split, _, each in entries]

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """Returns ``CERTAIN`` if all LMDBs at ``path`` are of this kind, else ``NO``. Opens no database if no name is
        LSUN's.

        Raises :class:`SourceError` for a file that cannot be read, and :class:`OSError` for a folder that cannot be
        listed."""
        inside = [each.name for each in visible_paths(path)] if path.is_dir() and not _match_name(path) else []
        if not _match_name(path) and not any(map(_NAME.fullmatch, inside)):
            return Certainty.NO
        return super().recognise(path, options)

    @property
    def _classes(self) -> tuple[str, ...]:
        """Classes that have a database, in the publisher's order."""
        present = {match[1] for database in self.databases if (match := _match_name(database.path)) and match[1]}
        return tuple(name for name in CLASSES if name in present)

    def fields(self) -> Mapping[str, Field]:
        """Declares image and label. In ``test`` the label is missing; if there is no other split, declares the image
        alone."""
        if not self._classes:
            return {"image": Image()}
        return {"image": Image(), "label": Label(self._classes, optional="test" in self.splits())}

    def rows(self, split: str) -> Iterator[Row]:
        """Yields a row for each entry. If the LMDB is of no class, ``test`` stands for the class in the key."""
        for number, database in self.list_databases(split):
            match = _match_name(database.path)
            name = match[1] if match and match[1] else "test"
            for key, size in database.walk_entries():
                yield Row(f"{split}/{name}/{decode_key(key)}", (number, key), size, 8)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads the image, and as ``label`` the class in the name of its LMDB. An image of ``test`` has no label.
        Raises :class:`ValueError` for a missing, damaged or too large image."""
        number, key = ref
        values: dict[str, Any] = {"image": self.read_image(number, key)}
        match = _match_name(self.databases[number].path)
        if match is not None and match[1]:
            values["label"] = self._classes.index(match[1])
        return values


def _match_name(path: Path) -> re.Match[str] | None:
    """Matches the name of an LMDB with LSUN's pattern; returns None if it does not match. The groups are class, split,
    and ``test``."""
    return _NAME.fullmatch(path.name)


KIND = Kind(LsunSource.kind, "LMDBs of LSUN", LsunSource.recognise, LsunSource)
