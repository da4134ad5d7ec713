"""Base of :class:`ExportSuite`: fixtures, and helpers of the tests."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from packstore.core.manifest import Manifest
from packstore.core.registry import EXPORTS
from packstore.exports.base import Export
from packstore.exports.run import ExportReport, export
from packstore.packing.conversion import convert


class ExportFixtures:
    """Base of the tests of one kind of export.

    Attributes:
        kind: The name of the kind in the registry.
        refuses: Names of :data:`packstore.testing.records.KINDS` with columns that the kind cannot hold.
    """

    kind: ClassVar[str]
    refuses: ClassVar[frozenset[str]] = frozenset()

    @property
    def export_class(self) -> type[Export]:
        """Class of the kind in the registry."""
        kind: type[Export] = EXPORTS[self.kind]
        return kind

    def destination(self, folder: Path, name: str = "out") -> Path:
        """Returns a destination in ``folder``, with the kind's suffix if it has one."""
        suffixes = self.export_class.suffixes
        return folder / f"{name}{suffixes[0] if suffixes else ''}"

    def export(self, store: Path, destination: Path, **options: Any) -> ExportReport:
        """Exports a store to this kind."""
        return export(store, destination, to=self.kind, **options)

    @property
    def stored_encoding(self) -> str:
        """Encoding of stores whose images this kind holds unchanged: ``original``, or ``uint8`` if the kind holds no
        files."""
        return "original" if "files" in self.export_class.image_forms else "uint8"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Makes an image folder of 12 images with two splits of two classes."""
        root = tmp_path / "images"
        for number in range(12):
            split, label = ("train", "val")[number % 3 == 2], ("cat", "dog: big")[number % 2]
            path = root / split / label / f"{number:02}.v{number}.{('jpg', 'png')[number % 5 == 4]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(number, 20 + number, 30, "PNG" if path.suffix == ".png" else "JPEG"))
        return root

    @pytest.fixture
    def store(self, folder: Path, tmp_path: Path) -> Path:
        """Makes a store of the image folder whose images this kind holds unchanged."""
        convert(folder, tmp_path / "in.lmdb", encoding=self.stored_encoding)
        return tmp_path / "in.lmdb"

    def import_back(self, path: Path, tmp_path: Path, **options: Any) -> Manifest:
        """Converts an export to a new store in ``tmp_path`` and returns its manifest."""
        number = len(list(tmp_path.glob("again-*")))
        return convert(path, tmp_path / f"again-{number}.h5", **options).manifest


def picture(seed: int, height: int = 20, width: int = 30, kind: str = "JPEG") -> bytes:
    """Returns an image file, a different one for each seed."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((width, height)).save(out, kind)
    return out.getvalue()


def pixels_of(data: Any) -> Any:
    """Decodes an image file with Pillow to RGB, uint8 ``(H, W, 3)``."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(bytes(data))).convert("RGB"))


def contents(path: Path) -> dict[str, bytes]:
    """Reads a file, or all files in a folder. Returns their bytes by relative path."""
    return {str(file.relative_to(path)): file.read_bytes() for file in files_of(path)}


def files_of(path: Path) -> list[Path]:
    """Returns a file itself, or all files in a folder, sorted."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
