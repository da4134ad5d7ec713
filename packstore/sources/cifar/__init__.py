"""CIFAR-10 and CIFAR-100 in their published layouts: python or binary, directory or ``.tar.gz``.

Keys are ``train/00000``, ``train/00001`` …, in the order of the batches. All layouts give the same samples.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.manifest import Column
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.sources.base import Certainty, Entry, Kind, Source, SourceOptions, Survey, stamp_files
from packstore.sources.cifar.files import CifarFiles, find_cifar, no_cifar_error
from packstore.sources.cifar.pickles import BatchError, build_array, load_dict, parse_name_list
from packstore.sources.ledger import Claims

_SHAPE = (32, 32, 3)
_PIXELS = 3072
_BATCHES_HELD = 2
_PAGE = 1024  # images to transpose from planes to pixels at once: a tenth of the time
_PAGES_HELD = 12


@dataclass(frozen=True, slots=True)
class _LabelColumns:
    """Label columns of a dataset.

    Attributes:
        python: For each column: its name, its key in a python batch, and its key in the python meta file.
        binary: Names of the columns, in their order at the beginning of a binary row.
    """

    python: tuple[tuple[str, str, str], ...]
    binary: tuple[str, ...]


_COLUMNS = {
    "cifar10": _LabelColumns((("label", "labels", "label_names"),), ("label",)),
    "cifar100": _LabelColumns(
        (
            ("label", "fine_labels", "fine_label_names"),
            ("coarse_label", "coarse_labels", "coarse_label_names"),
        ),
        ("coarse_label", "label"),
    ),
}


@dataclass(frozen=True, slots=True)
class _AllLabels:
    """Labels of all batches.

    Attributes:
        classes: Names of the classes, one tuple for each label column.
        batches: Labels, int64 of shape ``(rows, label columns)``, one array for each batch.
    """

    classes: tuple[tuple[str, ...], ...]
    batches: tuple[NDArray[np.int64], ...]


class CifarSource(Source):
    """CIFAR-10 (``label``) or CIFAR-100 (``label``: fine, ``coarse_label``), with the splits ``train`` and ``test``.

    Images are uint8 ``(32, 32, 3)`` RGB, read-only. The first survey or listing reads all files, and raises
    :class:`SourceError` for missing or damaged ones. Memory holds all labels, the pixels of at most two batches, and
    12,288 further images.
    """

    def __init__(self, path: Path, options: SourceOptions, files: CifarFiles) -> None:
        super().__init__(path, options)
        self.kind = self.normalization = files.layout.kind
        self._files = files
        self.evidence = ", ".join(name for _, name in files.layout.batches)
        self._columns = _COLUMNS[self.kind]
        self._labels: _AllLabels | None = None
        self._batches: dict[int, NDArray[np.uint8]] = {}
        self._pages: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    def stamp(self) -> str:
        """Returns sizes and times of the files on disk. Raises :class:`SourceError` if one is missing."""
        return stamp_files(self._files.list_disk_paths())

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts samples. The first call of this method or :meth:`entries` reads all files, for their labels.

        Raises :class:`SourceError` for files that are missing, damaged or unsafe, and for labels out of range. Raises
        :class:`NotInSourceError` for an unknown split.
        """
        labels = self._load_labels(progress)
        splits = dict.fromkeys(self._choose_splits(split), 0)
        for (name, _), batch in zip(self._files.layout.batches, labels.batches, strict=True):
            if name in splits:
                splits[name] += len(batch)
        records = sum(splits.values())
        return Survey(
            splits=splits,
            columns=tuple(
                Column(name, "fixed", "int64", classes=classes, type="label")
                for (name, _, _), classes in zip(self._columns.python, labels.classes, strict=True)
            ),
            encoding="uint8",
            shape=_SHAPE,
            size_bytes=records * _PIXELS,
            size_counts={_PIXELS: records},
            key_bytes=sum(_count_key_bytes(name, count) for name, count in splits.items()),
            ledger=self.ledger(Claims()),
        )

    def claim_files(self, claims: Claims) -> None:
        """Claims the archive, or all files of the layout."""
        self.claim_paths(claims, self._files.list_disk_paths())

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields an entry for each image; ``ref`` is the number of its batch, and its row there. The first call reads
        all files, and raises as :meth:`survey` does."""
        return self._yield_entries(self._load_labels(no_progress), self._choose_splits(split))

    def _yield_entries(self, labels: _AllLabels, splits: list[str]) -> Iterator[Entry]:
        """Yields the entries of the chosen splits, numbered in each split."""
        numbers = dict.fromkeys(splits, 0)
        for batch, (split, _) in enumerate(self._files.layout.batches):
            if split not in numbers:
                continue
            for row, values in enumerate(labels.batches[batch].tolist()):
                yield Entry(f"{split}/{numbers[split] + row:05d}", split, tuple(values), _PIXELS, (batch, row))
            numbers[split] += len(labels.batches[batch])

    def read(self, entry: Entry) -> NDArray[np.uint8]:
        """Returns the image, uint8 ``(32, 32, 3)`` RGB, read-only. Raises :class:`SourceError` for an unreadable
        batch."""
        batch, row = entry.ref
        number = row // _PAGE
        page = self._pages.get((batch, number))
        if page is None:
            page = self._load_page(batch, number)
        image: NDArray[np.uint8] = page[row - number * _PAGE]
        return image

    def close(self) -> None:
        """Closes files and empties the caches."""
        self._batches.clear()
        self._pages.clear()
        self._files.close()

    def _load_page(self, batch: int, number: int) -> NDArray[np.uint8]:
        """Returns a page: 1,024 images ``(rows, 32, 32, 3)``, from the cache or the file. Caches up to 12 pages and 2
        batches, and drops the oldest. Raises :class:`SourceError` for an unreadable batch."""
        with self._lock:
            page = self._pages.get((batch, number))
            if page is not None:
                return page
            if batch not in self._batches:
                while len(self._batches) >= _BATCHES_HELD:
                    del self._batches[next(iter(self._batches))]
                name = self._files.layout.batches[batch][1]
                with self._files.open_file(name) as file:
                    self._batches[batch] = self._parse_batch(name, file)[0]
            planes = self._batches[batch][number * _PAGE : (number + 1) * _PAGE].reshape(-1, 3, 32, 32)
            page = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
            page.setflags(write=False)
            while len(self._pages) >= _PAGES_HELD:
                del self._pages[next(iter(self._pages))]
            self._pages[batch, number] = page
            return page

    def _choose_splits(self, split: str | None) -> list[str]:
        """Returns ``[split]``, or all splits for None. Raises :class:`NotInSourceError` for an unknown split."""
        splits = list(dict.fromkeys(name for name, _ in self._files.layout.batches))
        if split is None:
            return splits
        if split not in splits:
            raise self.unknown_split_error(split, splits)
        return [split]

    def _load_labels(self, progress: ProgressCallback) -> _AllLabels:
        """Returns all labels. The first call reads and checks all files, and reports progress. Raises
        :class:`SourceError` for missing or damaged files, labels out of range, and no images."""
        if self._labels is not None:
            return self._labels
        layout = self._files.layout
        batches = {name: number for number, (_, name) in enumerate(layout.batches)}
        meta: dict[str, tuple[tuple[str, ...], ...]] = {}
        labels: dict[int, NDArray[np.int64]] = {}
        rows = 0
        for name, file in self._files.read_all_files():
            if name in batches:
                labels[batches[name]] = self._parse_batch(name, file)[1]
                rows += len(labels[batches[name]])
                progress(Progress("scan", rows, None, rows * _PIXELS))
            else:
                meta[name] = self._read_class_names(name, file)
        classes = tuple(names for name in layout.meta for names in meta[name])
        for number, (_, name) in enumerate(layout.batches):
            self._check_labels(name, labels[number], classes)
        if not rows:
            raise SourceError(f"{printable(str(self.path))} holds no images: its batches are empty; download it again")
        self._labels = _AllLabels(classes, tuple(labels[number] for number in range(len(labels))))
        return self._labels

    def _read_class_names(self, name: str, file: IO[bytes]) -> tuple[tuple[str, ...], ...]:
        """Reads the names of classes from a meta file; returns a tuple for each label column in the file. Raises
        :class:`SourceError` for damage."""
        try:
            if self._files.layout.binary:
                lines = file.read().decode("utf-8").splitlines()
                return (tuple(line.strip() for line in lines if line.strip()),)
            meta = load_dict(file)
            return tuple(parse_name_list(meta.get(key)) for _, _, key in self._columns.python)
        except (BatchError, UnicodeDecodeError) as error:
            raise SourceError(f"{self._files.shown_path(name)}: {printable(str(error))}") from None
        except OSError as error:
            raise SourceError(f"{self._files.shown_path(name)} cannot be read: {error.strerror or error}") from None

    def _parse_batch(self, name: str, file: IO[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Parses a batch. Returns pixels, uint8 ``(rows, 3072)`` in planes, and labels, int64 ``(rows, label
        columns)``. Raises :class:`SourceError` for damage."""
        try:
            return self._parse_binary_batch(file) if self._files.layout.binary else self._parse_python_batch(file)
        except BatchError as error:
            raise SourceError(f"{self._files.shown_path(name)}: {printable(str(error))}") from None
        except OSError as error:
            raise SourceError(f"{self._files.shown_path(name)} cannot be read: {error.strerror or error}") from None

    def _parse_binary_batch(self, file: IO[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Parses a batch of binary rows. Raises :class:`BatchError` if it is cut off."""
        stored = self._columns.binary
        row = len(stored) + _PIXELS
        data = np.frombuffer(file.read(), np.uint8)
        if len(data) % row:
            raise BatchError(f"{len(data)} bytes are not whole rows of {row}: it is cut off; download it again")
        rows = data.reshape(-1, row)
        order = [stored.index(name) for name, _, _ in self._columns.python]
        return rows[:, len(stored) :], rows[:, order].astype(np.int64)

    def _parse_python_batch(self, file: IO[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Parses a batch that is a pickle, without running it. Raises :class:`BatchError` for any other content."""
        batch = load_dict(file)
        data: NDArray[Any] = build_array(batch.get("data"))
        if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _PIXELS:
            raise BatchError(f"data of {data.dtype} {data.shape}, expected uint8 (rows, {_PIXELS})")
        columns = [build_array(batch.get(key)) for _, key, _ in self._columns.python]
        for (_, key, _), column in zip(self._columns.python, columns, strict=True):
            if column.shape != (len(data),):
                raise BatchError(f"{key} of shape {column.shape} for {len(data)} images")
            if column.dtype.kind not in "iu":
                raise BatchError(f"{key} of {column.dtype}, expected whole numbers")
        return data, np.stack(columns, axis=1).astype(np.int64)

    def _check_labels(self, name: str, labels: NDArray[np.int64], classes: tuple[tuple[str, ...], ...]) -> None:
        """Raises :class:`SourceError` for a label of the batch ``name`` that is out of range."""
        for column, names in enumerate(classes):
            wrong = np.flatnonzero((labels[:, column] < 0) | (labels[:, column] >= len(names)))
            if len(wrong):
                row, what = int(wrong[0]), self._columns.python[column][0]
                raise SourceError(
                    f"{self._files.shown_path(name)}, row {row}: {what} {labels[row, column]} is out of range, "
                    f"expected a number below {len(names)}"
                )


def _count_key_bytes(split: str, count: int) -> int:
    """Returns the bytes of the keys of ``count`` images of a split; numbers have five digits or more."""
    return count * (len(split) + 6) + sum(max(0, count - int(10**digits)) for digits in range(5, 11))


def _recognise(name: str, path: Path, options: SourceOptions) -> Certainty:
    """Returns ``CERTAIN`` if ``path`` holds the dataset ``name``, else ``NO``. Raises :class:`SourceError` for several
    CIFAR datasets in a folder, a folder that cannot be listed, and a damaged archive."""
    files = find_cifar(path, None)
    if files is None:
        return Certainty.NO
    files.close()
    return Certainty.CERTAIN if files.layout.kind == name else Certainty.NO


def _open_cifar(name: str, path: Path, options: SourceOptions) -> CifarSource:
    """Opens the dataset ``name``. Raises :class:`SourceError` if ``path`` does not have it, and as :func:`find_cifar`
    does."""
    files = find_cifar(path, name)
    if files is None:
        raise no_cifar_error(path, name)
    return CifarSource(path, options, files)


def _make_kind(name: str, title: str) -> Kind:
    """Makes the :class:`Kind` of one of the two datasets."""
    help = f"{title} as downloaded, a folder or .tar.gz"
    return Kind(name, help, partial(_recognise, name), partial(_open_cifar, name))


CIFAR10, CIFAR100 = _make_kind("cifar10", "CIFAR-10"), _make_kind("cifar100", "CIFAR-100")
