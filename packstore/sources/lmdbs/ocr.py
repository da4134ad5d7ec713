"""LMDBs of images with texts, for OCR: MJSynth, SynthText (https://github.com/clovaai/deep-text-recognition-benchmark).

Keys are ``image-%09d`` and ``label-%09d`` from 1 on, and ``num-samples``. The label is a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Text
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.lmdbs.base import Database, LmdbSource, RefusedLmdbError
from packstore.sources.rows import Row

_PREFIX = b"image-"


class OcrSource(LmdbSource):
    """Source of LMDBs of images with texts, for OCR. Leaves out other entries, and counts them. Listing raises
    :class:`SourceError` if an image is missing, or ``num-samples`` is wrong."""

    kind = "ocr"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._others: dict[int, int] = {}

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if the keys ``num-samples`` and ``image-000000001`` exist."""
        return database.read_value(b"num-samples") is not None and database.read_value(b"image-%09d" % 1) is not None

    def fields(self) -> Mapping[str, Field]:
        """Declares image and text."""
        return {"image": Image(), "text": Text()}

    def rows(self, split: str) -> Iterator[Row]:
        """Yields a row for each image, and counts the other entries. Raises :class:`SourceError` if a number is
        missing, or ``num-samples`` is wrong."""
        for number, database in self.list_databases(split):
            count = _read_count(database)
            images = others = 0
            for key, size in database.walk_entries():
                if key.startswith(_PREFIX):
                    images += 1
                    if key != b"image-%09d" % images:
                        raise SourceError(f"{printable(str(database.path))}: image {images} is missing")
                    yield Row(self.make_key(split, key.decode("ascii")), (number, images), size, 16)
                elif key != b"num-samples" and not _is_label(key, images):  # images are before labels
                    others += 1
            self._others[number] = others
            if images != count:
                raise SourceError(
                    f"{printable(str(database.path))}: num-samples is {count}, but there are {images} images"
                )

    def count_left_parts(self) -> Mapping[str, int]:
        """Returns the number of entries besides image, label and ``num-samples``, as :meth:`rows` has counted them, by
        reason. Returns ``{}`` if there are none."""
        others = sum(self._others.values())
        return {"entries besides image, label and num-samples": others} if others else {}

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads image and text. Raises :class:`ValueError` if one is missing, the text is not UTF-8, or the image is
        too large."""
        number, index = ref
        text = self.databases[number].read_value(b"label-%09d" % index)
        if text is None:
            raise ValueError(f"label-{index:09} is missing")
        return {"image": self.read_image(number, b"image-%09d" % index), "text": text.decode("utf-8")}


def _is_label(key: bytes, images: int) -> bool:
    """Tells if ``key`` is the key of a label, with a number from 1 to ``images``."""
    number = key.removeprefix(b"label-")
    return number.isdigit() and 1 <= int(number) <= images and key == b"label-%09d" % int(number)


def _read_count(database: Database) -> int:
    """Reads ``num-samples``. Raises :class:`RefusedLmdbError` if it is missing, or no number."""
    text = (database.read_text(b"num-samples") or "").strip()
    if not text.isdecimal() or len(text) > 18:
        raise RefusedLmdbError(f"{printable(str(database.path))}: num-samples is no number: {printable(text[:40])}")
    return int(text)


KIND = Kind(OcrSource.kind, "an LMDB of images and their texts, for OCR", OcrSource.recognise, OcrSource)
