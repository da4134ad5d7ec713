"""CIFAR-10 and CIFAR-100 in their published layouts: python or binary, directory or ``.tar.gz``.

Keys are ``train/00000`` and so on, in the order of the batches; all layouts give the same samples.
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
from packstore.sources.cifar.files import CifarFiles, find_files, no_cifar
from packstore.sources.cifar.pickles import BatchError, array_of, load_mapping, names_of
from packstore.sources.ledger import Claims

_SHAPE = (32, 32, 3)
_PIXELS = 3072
_BATCHES_HELD = 2
_PAGE = 1024  # images turned from planes to pixels at once take a tenth of the time
_PAGES_HELD = 12


@dataclass(frozen=True, slots=True)
class _Columns:
    """The label columns of a dataset.

    Attributes:
        python: Name, key in a python batch, key in the python meta file, of each.
        binary: Their names in the order in which a binary row begins with them.
    """

    python: tuple[tuple[str, str, str], ...]
    binary: tuple[str, ...]


_COLUMNS = {
    "cifar10": _Columns((("label", "labels", "label_names"),), ("label",)),
    "cifar100": _Columns(
        (
            ("label", "fine_labels", "fine_label_names"),
            ("coarse_label", "coarse_labels", "coarse_label_names"),
        ),
        ("coarse_label", "label"),
    ),
}


@dataclass(frozen=True, slots=True)
class _Labels:
    """What the files hold besides pixels.

    Attributes:
        classes: The names of the classes, one tuple a label column.
        batches: Labels, int64 of shape ``(rows, label columns)``, one array a batch.
    """

    classes: tuple[tuple[str, ...], ...]
    batches: tuple[NDArray[np.int64], ...]


class CifarSource(Source):
    """CIFAR-10 (``label``) or CIFAR-100 (``label``: fine, ``coarse_label``), with the splits ``train`` and ``test``.

    Images are uint8 ``(32, 32, 3)`` RGB, read-only. Memory holds all labels, and the pixels of at most two batches and
    a few thousand images.
    """

    def __init__(self, path: Path, options: SourceOptions, files: CifarFiles) -> None:
        super().__init__(path, options)
        self.kind = self.normalization = files.layout.kind
        self._files = files
        self.evidence = ", ".join(name for _, name in files.layout.batches)
        self._columns = _COLUMNS[self.kind]
        self._labels: _Labels | None = None
        self._batches: dict[int, NDArray[np.uint8]] = {}
        self._pages: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    def stamp(self) -> str:
        return stamp_files(self._files.paths())

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts samples. The first call here or of :meth:`entries` reads all files, for their labels.

        Raises :class:`SourceError` for files that are missing, truncated, damaged or unsafe, and for labels
        out of range.
        """
        labels = self._all_labels(progress)
        splits = dict.fromkeys(self._choose(split), 0)
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
            key_bytes=sum(_key_bytes(name, count) for name, count in splits.items()),
            ledger=self.ledger(Claims()),
        )

    def claim_files(self, claims: Claims) -> None:
        self.claim_paths(claims, self._files.paths())

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields samples; ``ref`` is (number of the batch, row in it)."""
        return self._entries(self._all_labels(no_progress), self._choose(split))

    def _entries(self, labels: _Labels, splits: list[str]) -> Iterator[Entry]:
        numbers = dict.fromkeys(splits, 0)
        for batch, (split, _) in enumerate(self._files.layout.batches):
            if split not in numbers:
                continue
            for row, values in enumerate(labels.batches[batch].tolist()):
                yield Entry(f"{split}/{numbers[split] + row:05d}", split, tuple(values), _PIXELS, (batch, row))
            numbers[split] += len(labels.batches[batch])

    def read(self, entry: Entry) -> NDArray[np.uint8]:
        """The image, uint8 ``(32, 32, 3)`` RGB, read-only. Raises :class:`SourceError` for an unreadable batch."""
        batch, row = entry.ref
        number = row // _PAGE
        page = self._pages.get((batch, number))
        if page is None:
            page = self._page(batch, number)
        image: NDArray[np.uint8] = page[row - number * _PAGE]
        return image

    def close(self) -> None:
        self._batches.clear()
        self._pages.clear()
        self._files.close()

    def _page(self, batch: int, number: int) -> NDArray[np.uint8]:
        with self._lock:
            page = self._pages.get((batch, number))
            if page is not None:
                return page
            if batch not in self._batches:
                while len(self._batches) >= _BATCHES_HELD:
                    del self._batches[next(iter(self._batches))]
                name = self._files.layout.batches[batch][1]
                with self._files.read(name) as file:
                    self._batches[batch] = self._batch(name, file)[0]
            planes = self._batches[batch][number * _PAGE : (number + 1) * _PAGE].reshape(-1, 3, 32, 32)
            page = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
            page.setflags(write=False)
            while len(self._pages) >= _PAGES_HELD:
                del self._pages[next(iter(self._pages))]
            self._pages[batch, number] = page
            return page

    def _choose(self, split: str | None) -> list[str]:
        splits = list(dict.fromkeys(name for name, _ in self._files.layout.batches))
        if split is None:
            return splits
        if split not in splits:
            raise self.unknown_split_error(split, splits)
        return [split]

    def _all_labels(self, progress: ProgressCallback) -> _Labels:
        if self._labels is not None:
            return self._labels
        layout = self._files.layout
        batches = {name: number for number, (_, name) in enumerate(layout.batches)}
        meta: dict[str, tuple[tuple[str, ...], ...]] = {}
        labels: dict[int, NDArray[np.int64]] = {}
        rows = 0
        for name, file in self._files.all():
            if name in batches:
                labels[batches[name]] = self._batch(name, file)[1]
                rows += len(labels[batches[name]])
                progress(Progress("scan", rows, None, rows * _PIXELS))
            else:
                meta[name] = self._names(name, file)
        classes = tuple(names for name in layout.meta for names in meta[name])
        for number, (_, name) in enumerate(layout.batches):
            self._check_labels(name, labels[number], classes)
        if not rows:
            raise SourceError(f"{printable(str(self.path))} holds no images: its batches are empty; download it again")
        self._labels = _Labels(classes, tuple(labels[number] for number in range(len(labels))))
        return self._labels

    def _names(self, name: str, file: IO[bytes]) -> tuple[tuple[str, ...], ...]:
        """The names of the classes in a meta file: one tuple a label column that it covers."""
        try:
            if self._files.layout.binary:
                lines = file.read().decode("utf-8").splitlines()
                return (tuple(line.strip() for line in lines if line.strip()),)
            meta = load_mapping(file)
            return tuple(names_of(meta.get(key)) for _, _, key in self._columns.python)
        except (BatchError, UnicodeDecodeError) as error:
            raise SourceError(f"{self._files.where(name)}: {printable(str(error))}") from None
        except OSError as error:
            raise SourceError(f"{self._files.where(name)} cannot be read: {error.strerror or error}") from None

    def _batch(self, name: str, file: IO[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Pixels, uint8 ``(rows, 3072)`` in planes, and labels, int64 ``(rows, label columns)``."""
        try:
            return self._binary_batch(file) if self._files.layout.binary else self._python_batch(file)
        except BatchError as error:
            raise SourceError(f"{self._files.where(name)}: {printable(str(error))}") from None
        except OSError as error:
            raise SourceError(f"{self._files.where(name)} cannot be read: {error.strerror or error}") from None

    def _binary_batch(self, file: IO[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        stored = self._columns.binary
        row = len(stored) + _PIXELS
        data = np.frombuffer(file.read(), np.uint8)
        if len(data) % row:
            raise BatchError(f"{len(data)} bytes are not whole rows of {row}: it is cut off; download it again")
        rows = data.reshape(-1, row)
        order = [stored.index(name) for name, _, _ in self._columns.python]
        return rows[:, len(stored) :], rows[:, order].astype(np.int64)

    def _python_batch(self, file: IO[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        found = load_mapping(file)
        data: NDArray[Any] = array_of(found.get("data"))
        if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _PIXELS:
            raise BatchError(f"data of {data.dtype} {data.shape}, expected uint8 (rows, {_PIXELS})")
        columns = [array_of(found.get(key)) for _, key, _ in self._columns.python]
        for (_, key, _), column in zip(self._columns.python, columns, strict=True):
            if column.shape != (len(data),):
                raise BatchError(f"{key} of shape {column.shape} for {len(data)} images")
        return data, np.stack(columns, axis=1).astype(np.int64)

    def _check_labels(self, name: str, labels: NDArray[np.int64], classes: tuple[tuple[str, ...], ...]) -> None:
        for column, names in enumerate(classes):
            wrong = np.flatnonzero((labels[:, column] < 0) | (labels[:, column] >= len(names)))
            if len(wrong):
                row, what = int(wrong[0]), self._columns.python[column][0]
                raise SourceError(
                    f"{self._files.where(name)}, row {row}: {what} {labels[row, column]} is out of range, expected a "
                    f"number below {len(names)}"
                )


def _key_bytes(split: str, count: int) -> int:
    """Bytes of the keys of ``count`` images: five digits a number, more where it has more."""
    return count * (len(split) + 6) + sum(max(0, count - int(10**digits)) for digits in range(5, 11))


def _recognise(name: str, path: Path, options: SourceOptions) -> Certainty:
    """Looks for both datasets, so that a folder with both is refused as ambiguous."""
    files = find_files(path, None)
    if files is None:
        return Certainty.NO
    files.close()
    return Certainty.CERTAIN if files.layout.kind == name else Certainty.NO


def _open(name: str, path: Path, options: SourceOptions) -> CifarSource:
    files = find_files(path, name)
    if files is None:
        raise no_cifar(path, name)
    return CifarSource(path, options, files)


def _kind(name: str, title: str) -> Kind:
    help = f"{title} as downloaded, a folder or .tar.gz"
    return Kind(name, help, partial(_recognise, name), partial(_open, name))


CIFAR10, CIFAR100 = _kind("cifar10", "CIFAR-10"), _kind("cifar100", "CIFAR-100")
