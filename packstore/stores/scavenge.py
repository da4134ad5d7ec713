"""Recovers manifest, columns and images from the file of a store that does not open.

Each format does this in its own folder. HDF5 and ``.pth``: the manifest is found in the bytes, corrected if need be,
and determines the offset of everything. LMDB: leaf pages identify their own content. Nothing here compares checksums of
records: callers do. Memory is about 24 bytes a record.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, OFFSET, Buffer, ColumnData, Ragged
from packstore.core.errors import ManifestError, PackstoreError, StoreError
from packstore.core.manifest import Column, Manifest
from packstore.stores.parts import Rows, map_column


@dataclass(slots=True)
class ScavengedData:
    """Data recovered from one file.

    Attributes:
        recovered: Its manifest, or None.
        columns: Recovered columns by name, each with as many values as the manifest has records.
        records: Number of records, as far as known.
        images: Function of a record's number. Returns candidates for its image, the likeliest last.
        orphans: Function of the checksums of missing images. Yields (checksum, image) of each that is in the file
            although its entry is lost.
        alternatives: For columns that may have several copies, by name: function of a record's number. Returns
            candidates for its value. The column in ``columns`` has the likeliest.
    """

    recovered: RecoveredManifest | None
    columns: Mapping[str, ColumnData]
    records: int
    images: Callable[[int], list[Buffer]]
    orphans: Callable[[set[int]], Iterator[tuple[int, Buffer]]]
    alternatives: Mapping[str, Callable[[int], list[Any]]] = field(default_factory=dict)


def no_orphans(_: set[int]) -> Iterator[tuple[int, Buffer]]:
    """Yields nothing: the ``orphans`` of formats that find no images without an entry."""
    return iter(())


def scavenge_reader(reader: Rows) -> ScavengedData:
    """Returns the columns and images of a damaged store that still opens. Leaves out those that cannot be read."""
    columns: dict[str, ColumnData] = {}
    for column in reader.manifest.columns[1:]:
        try:
            columns[column.name] = reader.column(column.name)
        except (PackstoreError, KeyError):
            continue

    def images(record: int) -> list[Buffer]:
        try:
            return [reader.view(record)]
        except (PackstoreError, IndexError):
            return []

    return ScavengedData(RecoveredManifest(reader.manifest, True, "intact"), columns, len(reader), images, no_orphans)


def scavenge_arrays(data: memoryview, recovered: RecoveredManifest, starts: Mapping[str, int]) -> ScavengedData:
    """Recovers columns and images from a file, given the offsets of all its arrays.

    Leaves out arrays that reach past the end of the file. Of fixed images, only those past the end are missing.

    Args:
        data: All bytes of the file.
        recovered: Its manifest.
        starts: Offset of each array of :func:`list_array_sizes`.
    """
    manifest = recovered.manifest
    arrays: dict[str, memoryview] = {}
    for name, size in list_array_sizes(manifest):
        if starts[name] + size <= len(data):
            arrays[name] = data[starts[name] : starts[name] + size]
    columns: dict[str, ColumnData] = {}
    for column in manifest.columns:
        with suppress(KeyError):  # an array reaches past the end
            columns[column.name] = view_column(column, manifest.records, arrays)
    image = columns.pop("image", None)
    width = manifest.image.record_nbytes

    def images(record: int) -> list[Buffer]:
        if isinstance(image, Ragged):
            try:
                return [image[record]]
            except StoreError:
                return []
        if image is not None:
            return [image[record].reshape(-1).view(np.uint8).data]
        start = starts["image"] + record * width if "image" in starts else 0
        return [data[start : start + width]] if start and start + width <= len(data) else []  # the file ends early

    return ScavengedData(recovered, columns, manifest.records, images, no_orphans)


def list_array_sizes(manifest: Manifest) -> Iterator[tuple[str, int]]:
    """Yields name and bytes of each array in a file with this manifest, in the order of writing."""
    for column in manifest.columns:
        sizes = [column.nbytes, OFFSET.itemsize * (manifest.records + 1)]
        yield from zip(column.array_names, sizes, strict=False)


def view_column(column: Column, records: int, arrays: Mapping[str, memoryview]) -> ColumnData:
    """Returns a column as a view of the bytes of its arrays, which ``arrays`` has by their :attr:`Column.array_names`.

    If the first or last offset of a ragged column is wrong, corrects both in a copy of the offsets. Raises
    :class:`KeyError` if an array is missing.
    """

    def view_array(name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        raw = arrays[name]
        array: NDArray[Any] = np.frombuffer(raw, NUMPY_DTYPE[dtype]) if len(raw) else np.empty(0, NUMPY_DTYPE[dtype])
        return array.reshape(shape)

    data = map_column(column, records, view_array)
    if not isinstance(data, Ragged) or (int(data.offsets[0]), int(data.offsets[-1])) == (0, len(data.data)):
        return data
    offsets = data.offsets.copy()
    offsets[0], offsets[-1] = 0, len(data.data)  # the manifest knows these two
    return Ragged(offsets, data.data)


_ANCHORS = ((b'{"columns"', 0), (b':[{"classes"', 10))
"""Two parts of a manifest's beginning, each with its offset: one damaged byte leaves at least one of them intact."""
_LAST = re.compile(rb'ons":\{|"ver')
_NAME, _NEXT = b'"digest":"', b'","encoding":"'
_MAX_ENDS = 4
_PRINTABLE = re.compile(rb"[\x20-\x7e]*")
_MAX_TEXT = 64 << 20
_ANY_BYTE, _ONE_BIT = 8_000, 60_000
"""Longest texts in which every other byte, or every flipped bit, is tried at each place: a few seconds each."""
_WRONG_DIGITS = 2
_MOST_CORRECTIONS = 32
"""Most texts of one file that recovery tries to correct, seconds each: enough for a few copies of one manifest."""


@dataclass(frozen=True, slots=True)
class RecoveredManifest:
    """A manifest recovered from a file that may be damaged.

    Attributes:
        manifest: The manifest.
        proven: Whether its digest matches: False if ``state`` is ``unproven``.
        state: ``intact``; ``corrected``, see :func:`correct_manifest`; or ``unproven``.
    """

    manifest: Manifest
    proven: bool
    state: Literal["intact", "corrected", "unproven"]


def find_manifest(data: memoryview | bytes) -> RecoveredManifest | None:
    """Returns the manifest anywhere in ``data`` that :func:`choose_manifest` prefers, or None if none can be read."""
    return choose_manifest(_find_manifest_texts(data))


def choose_manifest(texts: Iterable[bytes]) -> RecoveredManifest | None:
    """Returns the first manifest in ``texts`` whose digest matches.

    If there is none, tries to correct the first 32 texts. Returns the first one that can be corrected, else the first
    readable one, else None.
    """
    unproven = None
    broken: list[bytes] = []
    for text in texts:
        try:
            return RecoveredManifest(Manifest.from_json(text), True, "intact")
        except ManifestError:
            if len(broken) < _MOST_CORRECTIONS:
                broken.append(text)
    for text in broken:
        candidate = correct_manifest(text)
        if candidate is not None and candidate.proven:
            return candidate
        unproven = unproven or candidate
    return unproven


def correct_manifest(text: bytes) -> RecoveredManifest | None:
    """Parses the manifest in ``text``. If its digest does not match, tries to correct it.

    - ``corrected``: content and digest match with one byte or up to two digits of the digest changed.
    - ``unproven``: no such change matches, but the values are consistent.
    - None: no such change matches, and the manifest cannot be read.
    """
    try:
        return RecoveredManifest(Manifest.from_json(text), True, "intact")
    except ManifestError:
        corrected = _correct_by_digest(text)
    if corrected is not None:
        return corrected
    plain = _parse_json(text)
    if plain is None:
        return None
    body = _encode_canonical({k: v for k, v in plain.items() if k != "digest"})
    digest = hashlib.sha256(body).hexdigest()
    manifest = _parse_manifest(body, digest)
    if manifest is None:
        return None
    stored = str(plain.get("digest"))
    near = len(stored) == 64 and sum(a != b for a, b in zip(stored, digest, strict=True)) <= _WRONG_DIGITS
    return RecoveredManifest(manifest, near, "corrected" if near else "unproven")


def _find_manifest_texts(data: memoryview | bytes) -> Iterator[bytes]:
    """Yields texts that may be a manifest, from each possible beginning to a few possible ends."""
    starts: set[int] = set()
    for anchor, distance in _ANCHORS:
        for match in re.finditer(re.escape(anchor), data):
            starts.add(match.start() - distance)
    ordered = sorted(s for s in starts if s >= 0)
    # A text ends where the next one begins (inside a manifest, quotes are escaped), so each byte is read once.
    for start, following in pairwise([*ordered, len(data)]):
        text = bytes(data[start : min(following, start + _MAX_TEXT)])
        ends: list[int] = []
        last = _LAST.search(text)
        if last is not None:
            closed = (match.end() for match in re.finditer(rb"\}\}", text[last.start() :]))
            ends += [last.start() + end for end in islice(closed, _MAX_ENDS)]
            run = _PRINTABLE.match(text, last.start())
            ends += [run.end() + more for more in range(3)] if run is not None else []
        for end in dict.fromkeys(ends):
            yield text[:end]


def _correct_by_digest(text: bytes) -> RecoveredManifest | None:
    """Returns the manifest in ``text`` with one byte or two digits of its digest corrected, or None."""
    for start in _find_digest_offsets(text):
        digest = text[start + len(_NAME) : start + len(_NAME) + 64]
        body = text[:start] + text[start + len(_NAME) + 64 + 2 :]
        own = hashlib.sha256(body).hexdigest().encode("ascii")
        if sum(a != b for a, b in zip(own, digest, strict=False)) <= _WRONG_DIGITS:
            digest = own  # the digest itself is damaged
        if re.fullmatch(rb"[0-9a-f]{64}", digest) is None:
            continue
        for candidate in _find_matching_texts(body, bytes.fromhex(digest.decode("ascii"))):
            manifest = _parse_manifest(candidate, digest.decode("ascii"))
            if manifest is not None:
                return RecoveredManifest(manifest, True, "corrected")
    return None


def _find_digest_offsets(text: bytes) -> Iterator[int]:
    """Yields the offsets at which the name ``"digest"`` of the manifest's own digest may begin."""
    # The name is behind the columns, which have digests too, and before the encoding.
    places: list[int] = []
    for match in re.finditer(b"]," + re.escape(_NAME), text):
        start = match.start() + 2
        tail = text[start + len(_NAME) + 64 :][: len(_NEXT)]
        if (
            sum(a != b for a, b in zip(tail, _NEXT, strict=False)) <= 1
        ):  # else it is the digest of a column with classes
            places.append(start)
    places += [match.start() - 64 - len(_NAME) for match in re.finditer(re.escape(_NEXT), text)]
    return (place for place in dict.fromkeys(places) if place > 0)


def _find_matching_texts(body: bytes, digest: bytes) -> Iterator[bytes]:
    """Yields the texts with the SHA-256 ``digest`` that differ from ``body`` in at most one byte."""
    if hashlib.sha256(body).digest() == digest:
        yield body
    if len(body) > _ONE_BIT:
        return
    before = hashlib.sha256()
    for place, byte in enumerate(body):
        after = body[place + 1 :]
        others = range(0x20, 0x7F) if len(body) <= _ANY_BYTE else (byte ^ 1 << bit for bit in range(8))
        for other in others:
            tried = before.copy()
            tried.update(bytes((other,)) + after)
            if tried.digest() == digest:
                yield body[:place] + bytes((other,)) + after
        before.update(body[place : place + 1])


def _parse_manifest(body: bytes, digest: str) -> Manifest | None:
    """Returns the manifest with this JSON and this digest, or None if they do not match."""
    plain = _parse_json(body)  # without the digest
    if plain is None:
        return None
    try:
        return Manifest.from_json(_encode_canonical(plain | {"digest": digest}))
    except ManifestError:
        return None


def _parse_json(text: bytes) -> dict[str, object] | None:
    """Returns the JSON object in ``text``, or None if it is anything else."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return plain if isinstance(plain, dict) else None


def _encode_canonical(plain: dict[str, object]) -> bytes:
    """Encodes a plain value as canonical JSON: sorted names, no blanks, ASCII."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
