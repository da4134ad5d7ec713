"""Recovery of a damaged manifest: found in the bytes of a file, and corrected by the digest that it carries.

The SHA-256 in a manifest covers all the rest of it. So a changed byte can be found by trying: the text with one byte
changed back that has the digest is the manifest as it was. A damaged digest differs from the right one in a few digits
only. A manifest that cannot be corrected may still be readable; it is then believed as far as the records prove it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

from packstore.core.errors import ManifestError
from packstore.core.manifest import Manifest

_ANCHORS = ((b'{"columns"', 0), (b':[{"classes"', 10))
"""Two parts of how a manifest begins, each with its distance from the beginning: a damaged byte leaves one of them."""
_LAST = re.compile(rb'ons":\{|"ver')
_NAME, _NEXT = b'"digest":"', b'","encoding":"'
_MAX_ENDS = 4
_PRINTABLE = re.compile(rb"[\x20-\x7e]*")
_MAX_TEXT = 64 << 20
_ANY_BYTE, _ONE_BIT = 8_000, 60_000
"""Longest texts in which any other byte, or any flipped bit, is tried at each place: a few seconds each."""
_WRONG_DIGITS = 2
_MOST_CORRECTIONS = 32
"""Texts in one file that recovery tries to correct, seconds each: enough for a few copies of one manifest."""


@dataclass(frozen=True, slots=True)
class RecoveredManifest:
    """A manifest out of a file that may be damaged.

    Attributes:
        manifest: What it says.
        proven: Whether its digest proves that it is as it was written.
        state: ``intact``, ``corrected`` or ``unproven``.
    """

    manifest: Manifest
    proven: bool
    state: Literal["intact", "corrected", "unproven"]


def find_manifest(data: memoryview | bytes) -> RecoveredManifest | None:
    """The best manifest whose text lies anywhere in ``data``; None without one that can be read."""
    return best_manifest(_texts(data))


def best_manifest(texts: Iterable[bytes]) -> RecoveredManifest | None:
    """The first manifest in ``texts`` that is proven, else the first that can be read; None without any."""
    unproven = None
    broken: list[bytes] = []
    for text in texts:
        try:
            return RecoveredManifest(Manifest.from_json(text), True, "intact")
        except ManifestError:
            if len(broken) < _MOST_CORRECTIONS:
                broken.append(text)
    for text in broken:
        found = correct(text)
        if found is not None and found.proven:
            return found
        unproven = unproven or found
    return unproven


def correct(text: bytes) -> RecoveredManifest | None:
    """The manifest in ``text``, which may be damaged. None when it cannot even be read.

    Without a proof it is taken only where its values fit together, and the records have to prove themselves."""
    try:
        return RecoveredManifest(Manifest.from_json(text), True, "intact")
    except ManifestError:
        corrected = _with_digest(text)
    if corrected is not None:
        return corrected
    plain = _plain(text)
    if plain is None:
        return None
    body = _canonical({k: v for k, v in plain.items() if k != "digest"})
    digest = hashlib.sha256(body).hexdigest()
    manifest = _manifest(body, digest)
    if manifest is None:
        return None
    stored = str(plain.get("digest"))
    near = len(stored) == 64 and sum(a != b for a, b in zip(stored, digest, strict=True)) <= _WRONG_DIGITS
    return RecoveredManifest(manifest, near, "corrected" if near else "unproven")


def _texts(data: memoryview | bytes) -> Iterator[bytes]:
    """What may be the text of a manifest: from each possible beginning to each possible end."""
    starts: set[int] = set()
    for anchor, distance in _ANCHORS:
        for match in re.finditer(re.escape(anchor), data):
            starts.add(match.start() - distance)
    ordered = sorted(s for s in starts if s >= 0)
    # A text ends where the next one begins: inside a manifest, quotes are escaped. So each byte is read once.
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


def _with_digest(text: bytes) -> RecoveredManifest | None:
    """The manifest in ``text`` with one byte changed so that its digest is right; None where that is not enough."""
    for start in _digest_places(text):
        digest = text[start + len(_NAME) : start + len(_NAME) + 64]
        body = text[:start] + text[start + len(_NAME) + 64 + 2 :]
        own = hashlib.sha256(body).hexdigest().encode("ascii")
        if sum(a != b for a, b in zip(own, digest, strict=False)) <= _WRONG_DIGITS:
            digest = own  # the digest itself is damaged
        if re.fullmatch(rb"[0-9a-f]{64}", digest) is None:
            continue
        for candidate in _variants(body, bytes.fromhex(digest.decode("ascii"))):
            manifest = _manifest(candidate, digest.decode("ascii"))
            if manifest is not None:
                return RecoveredManifest(manifest, True, "corrected")
    return None


def _digest_places(text: bytes) -> Iterator[int]:
    """Where the manifest's own digest may begin: behind the columns, before the encoding."""
    places: list[int] = []
    for match in re.finditer(b"]," + re.escape(_NAME), text):
        start = match.start() + 2
        tail = text[start + len(_NAME) + 64 :][: len(_NEXT)]
        if sum(a != b for a, b in zip(tail, _NEXT, strict=False)) <= 1:  # else it is that of a column with classes
            places.append(start)
    places += [match.start() - 64 - len(_NAME) for match in re.finditer(re.escape(_NEXT), text)]
    return (place for place in dict.fromkeys(places) if place > 0)


def _variants(body: bytes, digest: bytes) -> Iterator[bytes]:
    """Texts with the SHA-256 ``digest`` that differ from ``body`` in one byte at most."""
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


def _manifest(body: bytes, digest: str) -> Manifest | None:
    """The manifest whose JSON without its digest is ``body``."""
    plain = _plain(body)
    if plain is None:
        return None
    try:
        return Manifest.from_json(_canonical(plain | {"digest": digest}))
    except ManifestError:
        return None


def _plain(text: bytes) -> dict[str, object] | None:
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return plain if isinstance(plain, dict) else None


def _canonical(plain: dict[str, object]) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
