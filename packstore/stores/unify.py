"""Brings the images of several stores to one stored form, to read them as one store.

Image files stay as they are. Beside them, 8-bit pixels are read as netpbm files, which hold the same pixels. Floating
point images of one normalisation are read as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer
from packstore.core.errors import StoreError, printable
from packstore.core.manifest import Column, Manifest
from packstore.core.modes import is_reading_option
from packstore.stores.base import Reader
from packstore.stores.delegating import DelegatingReader

_NETPBM = {1: b"P5", 3: b"P6"}
_EXIF = "exif_transpose"
_SIZES = ("size", "resize", "max_side")


def unify_encodings(readers: Sequence[Reader]) -> list[Reader]:
    """Returns readers of the same stores whose images have one encoding.

    - Images are stored alike, and image files are read with the same options: the same readers.
    - All images are floating point: reads them as float32. Does not compare normalisations.
    - Others: image files stay, and 8-bit pixels are read as PGM or PPM files.

    Raises:
        StoreError: The images differ in mode. Only some are floating point. Pixels beside files are not 8-bit gray or
            RGB. Options of reading image files contradict each other.
    """
    manifests = [reader.manifest for reader in readers]
    alike = len({(m.encoding, m.image.declaration) for m in manifests}) == 1
    answers = {option for m in manifests for option in filter(is_reading_option, m.options)}
    if alike and len({tuple(m.options.get(name) for name in answers) for m in manifests}) == 1:
        return [*readers]
    if alike and not manifests[0].holds_files:
        return [*readers]
    modes = {m.image.pixels.name: reader for m, reader in zip(manifests, readers, strict=True)}
    if len(modes) > 1:
        (one, first), (other, second), *_ = modes.items()
        raise StoreError(
            f"{_name_both(first, second)} hold images of modes {one} and {other}; convert one of them with --mode"
        )
    floats = [reader for reader in readers if reader.manifest.holds_floats]
    others = [reader for reader in readers if not reader.manifest.holds_floats]
    if floats and others:
        raise StoreError(
            f"{_name_both(floats[0], others[0])} hold {floats[0].manifest.encoding} and {others[0].manifest.encoding}: "
            "the images of the first are normalised floating point values, those of the second are not; convert the "
            "second with the encoding, size and normalisation of the first"
        )
    if floats:
        return [_wrap_as_float32(reader) for reader in readers]
    options = _join_options(readers)
    return [_wrap_as_files(reader, options) for reader in readers]


def _name_both(first: Reader, second: Reader) -> str:
    """Returns ``PATH and PATH`` for messages."""
    return f"{printable(str(first.path))} and {printable(str(second.path))}"


def _join_options(readers: Sequence[Reader]) -> dict[str, Any]:
    """Returns the options of the joined store: those of one store without sizes, and those of :func:`join_answers`.

    The one store is the first of encoding ``original``, else the first of image files, else the first. Raises
    :class:`StoreError` if two stores differ in EXIF rotation, and as :func:`join_answers` does.
    """
    files = [reader for reader in readers if reader.manifest.holds_files] or [*readers]
    lead = next((reader for reader in files if reader.manifest.encoding == "original"), files[0])
    options = {
        name: value for name, value in lead.manifest.options.items() if not (is_reading_option(name) or name in _SIZES)
    }
    for reader in readers[1:]:
        if bool(reader.manifest.options.get(_EXIF)) != bool(readers[0].manifest.options.get(_EXIF)):
            raise StoreError(
                f"the images of {_name_both(readers[0], reader)} differ in EXIF rotation; convert one of them"
            )
    return options | join_answers([(str(reader.path), reader.manifest) for reader in files])


def join_answers(manifests: Iterable[tuple[str, Manifest]]) -> dict[str, Any]:
    """Joins the stores' options of reading image files, in the main column and in others.

    Leaves out options that are None, and the main column's options if the store holds arrays.

    Args:
        manifests: Path and manifest of each store.

    Raises:
        StoreError: Two stores have different values of an option.
    """
    answers: dict[str, tuple[Any, str]] = {}
    for path, manifest in manifests:
        for name, value in manifest.options.items():
            if value is None or not is_reading_option(name) or not ("." in name or manifest.holds_files):
                continue
            before, owner = answers.setdefault(name, (value, path))
            if value != before:
                both = f"{printable(owner)} and {printable(path)}"
                raise StoreError(f"{both} are read with {name} {before} and {value}; convert one of them")
    if "pixels" in answers and len(mixed := answers.keys() & {"pixels", "depth", "alpha", "frames"}) > 1:
        both = " and ".join(printable(owner) for owner in dict.fromkeys(answers[name][1] for name in sorted(mixed)))
        raise StoreError(f"{both} are read with {' and '.join(sorted(mixed))}; convert one of them")
    return {name: value for name, (value, _) in answers.items()}


def _wrap_as_files(reader: Reader, options: Mapping[str, Any]) -> Reader:
    """Wraps a store as one of image files, with the encoding ``original`` and other options.

    8-bit pixels become PGM or PPM files. Raises :class:`StoreError` for pixels that are not 8-bit gray or RGB.
    """
    manifest, image = reader.manifest, reader.manifest.image
    encode: _Convert | None = None
    if not manifest.holds_files:
        if image.dtype != "uint8" or image.pixels.channels not in _NETPBM:
            raise StoreError(
                f"{printable(str(reader.path))} holds {manifest.encoding} pixels of mode {image.pixels.name}, which "
                "cannot be read together with images of another encoding or size; convert one of the stores"
            )
        encode = _to_netpbm
    columns = (
        Column("image", "ragged", "uint8", nbytes=image.nbytes, type="image", mode=image.mode),
        *(column for column in manifest.columns[1:] if image.kind == "fixed" or column.name != image.shape_name),
    )
    if manifest.holds_files:
        columns = manifest.columns
    return UnifiedReader(
        reader, replace(manifest, encoding="original", columns=columns, options=options, shards=None), encode
    )


def _wrap_as_float32(reader: Reader) -> Reader:
    """Wraps a store of floating point arrays as one of float32. Returns a store of float32 unchanged."""
    image = reader.manifest.image
    if image.dtype == "float32":
        return reader
    nbytes = image.nbytes * 4 // NUMPY_DTYPE[image.dtype].itemsize
    columns = (replace(image, dtype="float32", nbytes=nbytes), *reader.manifest.columns[1:])
    return UnifiedReader(
        reader, replace(reader.manifest, encoding="float32", columns=columns, shards=None), _to_float32
    )


_Convert = Callable[[Reader, int, Buffer], Buffer]


def _to_netpbm(reader: Reader, index: int, view: Buffer) -> Buffer:
    """Makes a PGM or PPM file of a record's pixels."""
    image = reader.manifest.image
    shape = image.shape if image.kind == "fixed" else tuple(reader.value(image.shape_name, index).tolist())
    height, width, channels = shape
    return b"%s %d %d 255\n" % (_NETPBM[channels], width, height) + bytes(view)


def _to_float32(reader: Reader, index: int, view: Buffer) -> Buffer:
    """Converts a record's values to bytes of float32."""
    column = reader.manifest.image
    stored = np.frombuffer(view, NUMPY_DTYPE[column.dtype])
    if column.dtype == "bfloat16":  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).tobytes()
    return stored.astype(np.float32).tobytes()


class UnifiedReader(DelegatingReader):
    """Reads a store with another manifest, and converts its images to another stored form.

    Parts and checksums are those of the store itself, for unconverted images.

    Attributes:
        store: The reader of the store itself.
    """

    def __init__(self, store: Reader, manifest: Manifest, convert: _Convert | None) -> None:
        super().__init__(store, manifest)
        self.store = store
        self.checks_records = store.checks_records
        self.converts_images = convert is not None
        self._convert = convert

    @property
    def unchecked_reader(self) -> Reader:
        """A reader of the unchecked store with the same conversion. This reader itself if the store checks nothing."""
        plain = self.store.unchecked_reader
        return self if plain is self.store else UnifiedReader(plain, self.manifest, self._convert)

    def read(self, index: int) -> Buffer:
        """Returns the image in the new form."""
        return self._convert_image(index, self.store.read(index))

    def view(self, index: int) -> Buffer:
        """Returns the image in the new form: a copy if images are converted, else a view."""
        return self._convert_image(index, self.store.view(index))

    def read_stored_image(self, index: int) -> Buffer:
        """Returns the unconverted image. The record's checksum is that of this form."""
        return self.store.view(index)

    def will_need(self, index: int, view: Buffer) -> None:
        """Asks the system to read the image. Does nothing if images are converted, since views are copies then."""
        if not self.converts_images:
            self.store.will_need(index, view)

    def _convert_image(self, index: int, image: Buffer) -> Buffer:
        """Returns the image of a record in the new form, or ``image`` itself if images are not converted."""
        return image if self._convert is None else self._convert(self.store, index, image)

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        """Returns the faults that the reader of the store itself finds."""
        return self.store.find_faults(records, names)

    def check_fields(self, index: int) -> None:
        """Has the reader of the store itself check the fields."""
        self.store.check_fields(index)

    def verify_column(self, name: str) -> None:
        """Has the reader of the store itself verify the column."""
        self.store.verify_column(name)
