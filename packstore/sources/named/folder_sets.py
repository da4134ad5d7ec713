"""Published sets whose folders and file names say all, as rows of a table: splits are folders, columns parts of paths.

- Market-1501 and DukeMTMC-reID: ``0002_c1s3_000151_00.jpg`` is identity 2 from camera 1; -1 is junk, 0 a distractor.
- MARS: ``bbox_train/0001/0001C1T0001F001.jpg`` is identity 1, camera 1, tracklet 1, frame 1; ``00-1`` is junk.
- Omniglot: ``images_background/Greek/character01/0390_01.png``; the class is the character with its alphabet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from packstore.core.fields import Array, Field, Image, Label
from packstore.sources.named import NamedSource, named
from packstore.sources.rows import FileRow


@dataclass(frozen=True, slots=True)
class FolderSet:
    """One set.

    Attributes:
        kind: Its name in the registry.
        title: What its publisher calls it.
        splits: Folders by split.
        path: Matches a path within a split's folder: ``label`` is the class, other groups are whole numbers.
    """

    kind: str
    title: str
    splits: Mapping[str, str]
    path: str


_RE_ID = {"train": "bounding_box_train", "test": "bounding_box_test", "query": "query"}
_SETS = (
    FolderSet(
        "market1501",
        "Market-1501",
        _RE_ID,
        r"(?P<identity>-?\d+)_c(?P<camera>\d+)s(?P<sequence>\d+)_(?P<frame>\d+)_(?P<number>\d+)(\.jpg)?\.jpg",
    ),
    FolderSet("dukemtmc", "DukeMTMC-reID", _RE_ID, r"(?P<identity>\d+)_c(?P<camera>\d+)_f(?P<frame>\d+)\.jpg"),
    FolderSet(
        "mars",
        "MARS",
        {"train": "bbox_train", "test": "bbox_test"},
        r"[^/]+/(?P<identity>\d{4}|00-1)C(?P<camera>\d)T(?P<track>\d{4})F(?P<frame>\d{3})\.jpg",
    ),
    FolderSet(
        "omniglot",
        "Omniglot",
        {"train": "images_background", "test": "images_evaluation"},
        r"(?P<label>[^/]+/character\d+)/\d+_(?P<drawer>\d+)\.png",
    ),
)


class FolderSetSource(NamedSource):
    """The images of a set, folder by folder; one whose name is not as the set has it is a bad sample."""

    row: ClassVar[FolderSet]

    @classmethod
    def find(cls, tree: Any) -> str | None:
        """The folder that holds the splits' folders, if the first image there is named as the set has it."""
        base = super().find(tree)
        if base is None:
            return None
        for folder in cls.row.splits.values():
            top = f"{base}/{folder}" if base else folder
            for place, listing in tree.walk(top, tree.above, None, True):
                if listing.images:
                    within = f"{place}/{listing.images[0]}"[len(top) + 1 :]
                    return base if re.fullmatch(cls.row.path, within) else None
        return None

    def splits(self) -> tuple[str, ...]:
        """See :meth:`RowSource.splits`."""
        return tuple(split for split, folder in self.row.splits.items() if self.has(folder))

    def fields(self) -> Mapping[str, Field]:
        """See :meth:`RowSource.fields`."""
        groups = [name for name in self._path.groupindex if name != "label"]
        label: dict[str, Field] = {"label": Label(self._classes)} if "label" in self._path.groupindex else {}
        return {"image": Image(), **label, **{name: Array("int64") for name in groups}}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """See :meth:`FileRowSource.file_rows`."""
        for image, match in self._matches(split):
            found: dict[str, Any] = {} if match is None else match.groupdict()
            yield FileRow(image, {name: text if name == "label" else _number(text) for name, text in found.items()})

    @cached_property
    def _path(self) -> re.Pattern[str]:
        return re.compile(self.row.path)

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        matches = (match for split in self.splits() for _, match in self._matches(split))
        return tuple(sorted({match["label"] for match in matches if match is not None}))

    def _matches(self, split: str) -> Iterator[tuple[str, re.Match[str] | None]]:
        top = self.at(self.row.splits[split])
        for image in self.images(self.row.splits[split]):
            yield image, self._path.fullmatch(image[len(top) + 1 :])


def _number(text: str) -> int:
    return -1 if text == "00-1" else int(text)


def _source(row: FolderSet) -> type[FolderSetSource]:
    signs = tuple(list(row.splits.values())[:2])
    return type(
        f"{row.kind.title()}Source",
        (FolderSetSource,),
        {"kind": row.kind, "title": row.title, "signs": signs, "row": row, "__module__": __name__},
    )


MARKET1501, DUKEMTMC, MARS, OMNIGLOT = (named(_source(row)) for row in _SETS)
