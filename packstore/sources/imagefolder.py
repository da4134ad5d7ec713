"""An image folder: ``root/class/…/file``, or ``root/split/class/…/file``, nested to any depth.

Class order, labels and file order are those of torchvision's ``ImageFolder``. A top level of split names (``train``,
``val`` …) makes splits with one class list; see :data:`packstore.sources.base.SPLIT_ORDER`, and :mod:`.splits` for what
lies beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from packstore.core.errors import NotInSourceError, SampleError, SourceError, printable
from packstore.core.manifest import Column
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.sniff import max_file_bytes
from packstore.sources.base import SPLIT_ORDER, Entry, Source, Survey, paged
from packstore.sources.listing import (
    NO_FILE,
    NO_SOURCE,
    Files,
    Identity,
    Listing,
    ancestry,
    cycle,
    key_size,
    list_directory,
    no_images,
    walk,
)
from packstore.sources.splits import find_splits

_KEPT_FILES = 250_000  # about 25 MB of names; listing as many again takes 0.6 s


@dataclass(frozen=True, slots=True)
class _Part:
    """One split of the folder, or the folder itself when it has none.

    Attributes:
        split: Name of the split; ``""`` in a folder without splits.
        directory: Its path relative to the root; ``""`` for the root itself.
        classes: Its class directories, sorted; empty where images lie in it directly.
        images: Number of images that lie in it directly.
        above: Identities of its directory and of those above it.
    """

    split: str
    directory: str
    classes: tuple[str, ...]
    images: int
    above: tuple[Identity, ...]

    @property
    def unlabelled(self) -> bool:
        return not self.classes and self.images > 0


class ImageFolderSource(Source):
    """An image folder as torchvision's ``ImageFolder`` reads it, with splits.

    The key of a sample is its path relative to the root, with ``/``. Splits whose images lie in them directly have no
    labels; they can be packed together, or one by one, but not together with labelled splits.

    Where other folders with images lie beside splits, one split can be packed alone; ``all_classes`` takes all folders
    as classes instead.
    """

    kind = "imagefolder"

    def __init__(self, path: Path, *, all_classes: bool = False) -> None:
        super().__init__(path)
        self._all_classes = all_classes
        self._root = str(path.absolute())
        self._files = Files(self._root)
        self._kept: dict[str, list[tuple[str, str, Listing]]] = {}  # what the survey has listed, by split
        self._kept_files = 0

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """See :meth:`Source.survey`. One pass over the listing with a ``stat`` a file.

        Raises :class:`SourceError` for a folder without images, a class without images in any split, labelled and
        unlabelled splits together, splits and other folders with images together, a cycle of links, and a directory
        that cannot be listed.
        """
        ignored: Counter[str] = Counter()
        self._kept, self._kept_files = {}, 0
        parts = self._parts(ignored, split)
        chosen = self._choose(parts, split)
        classes = _all_classes(parts)
        per_class: Counter[str] = Counter()
        splits: dict[str, int] = {}
        size_bytes = paged_bytes = key_bytes = 0
        limit = max_file_bytes(self.max_pixels)  # what is larger will not be read
        for part in chosen:
            before = sum(splits.values())
            count = 0
            for label, directory, listing in self._directories(part, ignored):
                sizes = [size for size in listing.sizes if 0 < size <= limit]
                size_bytes += sum(sizes)
                paged_bytes += sum(map(paged, sizes))
                key_bytes += sum(map(key_size, listing.images))
                key_bytes += len(listing.images) * (key_size(directory) + 1 if directory else 0)
                per_class[label] += len(listing.images)
                count += len(listing.images)
                progress(Progress("scan", before + count, None, size_bytes))
            if part.split and not count:
                there = ", ".join(p.split for p in parts)
                advice = f"remove this split, or pack another one with --split ({there})"
                passed: Counter[str] = Counter()
                for _ in walk(self._root, part.directory, part.above[:-1], passed):
                    continue
                raise SourceError(no_images(self._name(part.directory), passed, advice))
            splits[part.split] = count
        if not classes and not any(splits):
            self._no_folders(splits[""], ignored)
        labelled = any(part.classes for part in chosen)
        if labelled:
            self._check_classes(classes, per_class, [p for p in parts if p not in chosen], ignored)
        return Survey(
            splits=splits,
            columns=(Column("label", "fixed", "int64", classes=classes),) if labelled else (),
            encoding="original",
            shape=None,
            size_bytes=size_bytes,
            paged_bytes=paged_bytes,
            key_bytes=key_bytes,
            ignored=dict(ignored),
        )

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """See :meth:`Source.entries`. ``ref`` is None, or tells that the entry is no file."""
        parts = self._parts(None, split)
        chosen = self._choose(parts, split)
        numbers = {name: number for number, name in enumerate(_all_classes(parts))}
        return self._entries(chosen, numbers)

    def _entries(self, chosen: Sequence[_Part], numbers: dict[str, int]) -> Iterator[Entry]:
        for part in chosen:
            name = part.split
            for label, directory, listing in self._directories(part, None):
                labels = (numbers[label],) if part.classes else ()
                prefix = f"{directory}/" if directory else ""
                for image, size, modified, changed in zip(
                    listing.images, listing.sizes, listing.modified, listing.changed, strict=True
                ):
                    yield (
                        Entry(prefix + image, name, labels, size, None, modified, changed)
                        if size >= 0
                        else Entry(prefix + image, name, labels, 0, NO_FILE)
                    )

    def close(self) -> None:
        """See :meth:`Source.close`."""
        self._files.close()

    def read(self, entry: Entry) -> bytes:
        """The bytes of the file. Raises :class:`SampleError` when it cannot be read or is not a file."""
        if entry.ref is not None:
            raise SampleError(entry.key, "is not a file but a pipe, a socket or a device")
        limit = max_file_bytes(self.max_pixels)
        return self._files.read(entry.key, entry.size_bytes, entry.modified_ns, limit)

    def _name(self, directory: str = "") -> str:
        return printable(f"{self.path}/{directory}" if directory else str(self.path))

    def _parts(self, ignored: Counter[str] | None, split: str | None) -> list[_Part]:
        """The splits in their order; or one part without a name. Counts what lies beside folders in ``ignored``."""
        above = ancestry(self._root)
        root = list_directory(self._root, ignored)
        loose, above = len(root.images), (*above, root.identity)
        found = find_splits(self._root, root.directories, above)
        if found is not None and found.others:
            if self._all_classes:
                found = None
            elif split is None:
                raise SourceError(found.describe(self._name()))
        if found is None:
            _count_loose(ignored, loose if root.directories else 0, "class")
            return [_Part("", "", tuple(sorted(root.directories)), loose, above)]
        _count_loose(ignored, loose, "split")
        if ignored is not None:
            ignored += Counter(
                {"folders without images": len(found.empty), "folders beside the splits": len(found.others)}
            )
        parts: dict[str, _Part] = {}
        for directory in sorted(found.splits, key=lambda name: (SPLIT_ORDER.index(name.lower()), name)):
            split, path = directory.lower(), f"{self._root}/{directory}"
            if split in parts:
                raise SourceError(
                    f"{self._name(directory)} and {self._name(parts[split].directory)} are the same split: rename one"
                )
            inside = list_directory(path, ignored)
            if inside.identity in above:
                raise cycle(path)
            loose, classes = len(inside.images), tuple(sorted(inside.directories))
            _count_loose(ignored, loose if classes else 0, "class")
            parts[split] = _Part(split, directory, classes, loose, (*above, inside.identity))
        return list(parts.values())

    def _choose(self, parts: list[_Part], split: str | None) -> list[_Part]:
        """The parts to pack. Raises :class:`SourceError` for an unknown split and for labels that only some have."""
        if split is not None:
            chosen = [part for part in parts if part.split == split.lower()] if split else []
            if not chosen:
                there = ", ".join(part.split for part in parts if part.split) or "it has none"
                raise NotInSourceError(f"{self._name()} has no split {printable(split)!r}; splits: {there}")
            return chosen
        bare = [part.split for part in parts if part.unlabelled]
        labelled = [part.split for part in parts if part.classes]
        if bare and labelled:
            raise SourceError(
                f"in {self._name()} the images of {' and '.join(bare)} lie in no class folders, those of "
                f"{' and '.join(labelled)} do: pack the splits one at a time with --split, or give labels for all with "
                "--labels labels.csv (columns file,label,split)"
            )
        return parts

    def _directories(self, part: _Part, ignored: Counter[str] | None) -> Iterator[tuple[str, str, Listing]]:
        """(class, path relative to the root, what is in it) of each directory of a part, in order.

        What a survey lists is kept, where it is little enough, so that it need not be listed again.
        """
        if ignored is None:
            yield from self._kept[part.split] if part.split in self._kept else self._list(part, None)
            return
        listed: list[tuple[str, str, Listing]] | None = []
        for found in self._list(part, ignored):
            self._kept_files += len(found[2].images)
            if self._kept_files > _KEPT_FILES:
                listed = None
            if listed is not None:
                listed.append(found)
            yield found
        if listed is not None:
            self._kept[part.split] = listed

    def _list(self, part: _Part, ignored: Counter[str] | None) -> Iterator[tuple[str, str, Listing]]:
        if not part.classes:
            path = f"{self._root}/{part.directory}" if part.directory else self._root
            yield "", part.directory, list_directory(path)
            return
        prefix = f"{part.directory}/" if part.directory else ""
        for name in part.classes:
            for directory, listing in walk(self._root, prefix + name, part.above, ignored):
                yield name, directory, listing

    def _no_folders(self, images: int, ignored: Counter[str]) -> NoReturn:
        if images:
            raise SourceError(f"{self._name()} holds {images} images but no class folders: pack it with --source flat")
        raise SourceError(no_images(self._name(), ignored, NO_SOURCE))

    def _check_classes(
        self, classes: Sequence[str], per_class: Counter[str], others: Sequence[_Part], ignored: Counter[str]
    ) -> None:
        """Raises :class:`SourceError` for classes that have no image in any split."""
        empty = [name for name in classes if not per_class[name]]
        for part in others:
            prefix = f"{part.directory}/"
            for name in [n for n in empty if n in part.classes]:
                if any(listing.images for _, listing in walk(self._root, prefix + name, part.above)):
                    empty.remove(name)
        if empty:
            named = ", ".join(repr(printable(name)) for name in empty[:5]) + (" …" if len(empty) > 5 else "")
            passed = ", ".join(f"{count:,} {reason}" for reason, count in ignored.most_common(5))
            raise SourceError(
                f"{self._name()}: {len(empty)} of {len(classes)} class folders hold no images: {named}. Remove them, "
                f"or move them out of the folder{f' (passed over in all folders: {passed})' if passed else ''}"
            )


def _all_classes(parts: Sequence[_Part]) -> tuple[str, ...]:
    return tuple(sorted({name for part in parts for name in part.classes}))


def _count_loose(ignored: Counter[str] | None, images: int, kind: str) -> None:
    if ignored is not None and images:
        ignored[f"images beside the {kind} folders"] += images
