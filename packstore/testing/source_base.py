"""Base of :class:`SourceSuite`: how a subclass makes a source, and helpers of the tests."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from packstore.sources import Entry, Source, open_source

FEW = 12


class SourceFixtures:
    """Base of the tests of one kind of source. A subclass makes a source and damages it.

    Attributes:
        kind: The name of the kind in the registry.
        recognised: The kind is recognised by its path; False if ``--source`` has to name it.
        exact_sizes: ``Entry.size_bytes`` is the exact size of each image, and the survey has their sum.
        undecodable_keys: Keys can have bytes that are not UTF-8, and :meth:`make` makes at least one such key.
        has_files: The source consists of files that its ledger lists; False for a store.
        many: Number of samples for measuring the memory of listing.
        bytes_per_sample: Most memory that listing may take for each sample; a list of all entries takes 300 or more.
        damages: Number of random damages to test.
    """

    kind: ClassVar[str]
    recognised: ClassVar[bool] = True
    exact_sizes: ClassVar[bool] = True
    undecodable_keys: ClassVar[bool] = True
    has_files: ClassVar[bool] = True
    many: ClassVar[int] = 2000
    bytes_per_sample: ClassVar[int] = 100
    damages: ClassVar[int] = 30

    def make(self, folder: Path, samples: int) -> Path:
        """Makes a source of about ``samples`` samples, at least six, in the empty ``folder``. Returns the path to open.

        All images must be decodable and different. A subclass must define this method.
        """
        raise NotImplementedError

    def options(self, path: Path) -> Mapping[str, Any]:
        """Returns further arguments of :func:`open_source`, such as ``labels``. By default none."""
        return {}

    def change(self, path: Path) -> None:
        """Changes an image, a label or a key of the source on disk. A subclass must define this method."""
        raise NotImplementedError

    def spoil(self, path: Path, entry: Entry) -> bool:
        """Makes the image of one sample unreadable without changing the listing. By default returns False: that is
        impossible."""
        return False

    def enlarge(self, path: Path, entry: Entry) -> bool:
        """Makes the file of one sample larger than ``max_file_bytes(1)``. By default returns False: images are not
        files."""
        return False

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Path of a source with few samples."""
        folder = tmp_path / "source"
        folder.mkdir()
        return self.make(folder, FEW)

    @pytest.fixture
    def source(self, path: Path) -> Iterator[Source]:
        """Open source with few samples; closed after the test."""
        with closing(self.open(path)) as source:
            yield source

    def open(self, path: Path, **more: Any) -> Source:
        """Opens the source. Names its kind only if the kind is not recognised."""
        return open_source(path, kind=None if self.recognised else self.kind, **self.options(path), **more)


def files_at(path: Path) -> list[Path]:
    """Lists all files at or below a path without packstore's code. Members of a tar or zip are paths within the
    archive. Follows links."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return [path / info.filename for info in archive.infolist() if not info.is_dir()]
    if path.is_file() and tarfile.is_tarfile(path):
        with tarfile.open(path, ignore_zeros=True) as tar:
            return [path / info.name for info in tar if not info.isdir()]
    if path.is_file():
        return [path]
    walked = os.walk(path, followlinks=True)
    return sorted(Path(folder, name) for folder, _, names in walked for name in names)


def copy_image(image: Any) -> Any:
    """Returns a copy of an image that does not depend on its source."""
    return image.copy() if isinstance(image, np.ndarray) else bytes(image)


def is_same_image(one: Any, other: Any) -> bool:
    """Tells if two images of a source are equal: bytes, or arrays of one shape and dtype."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bytes(one) == bytes(other)
