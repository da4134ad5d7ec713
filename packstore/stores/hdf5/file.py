"""HDF5's own structure, as far as packstore writes it, read without the HDF5 library.

The library is large, written in C, and has had its share of memory errors on files that lie; which of them a machine's
version still has cannot be known. So a stranger's file never reaches it. Everything here is read over a map, with
bounds checks and with HDF5's own checksums compared; nothing recurses, and what may be read is bounded. Known is what
a file of packstore consists of: superblock 2 and 3, object headers 2, hard links, contiguous datasets of plain numbers,
attributes. Everything else is refused by name. After the "HDF5 File Format Specification Version 3.0", chapters II to
IV, of The HDF Group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from packstore.stores.hdf5.checked import UNDEFINED, FileBytes, Hdf5Error, UnsupportedHdf5Error, lookup3
from packstore.stores.hdf5.heap import Heap

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK = struct.Struct("<8sBBBBQQQQI")
_CONTINUATION = struct.Struct("<QQ")
_DATASPACE, _LINK_INFO, _DATATYPE, _LINK, _EXTERNAL, _LAYOUT = 0x01, 0x02, 0x03, 0x06, 0x07, 0x08
_FILTERS, _ATTRIBUTE, _CONTINUED, _ATTRIBUTE_INFO = 0x0B, 0x0C, 0x10, 0x15
_SHARED = 2
_MAX_CHUNKS = 64
_MAX_HEADER = 1 << 20
"""Bytes of one object's header, all chunks together; the largest that packstore writes has 64 KiB of manifest."""
_MAX_RANK = 32
_FLOATS = {  # precision, exponent at and bits, mantissa at and bits, bias (chapter IV.A.2.d)
    2: (0x0F20, struct.pack("<HHBBBBI", 0, 16, 10, 5, 0, 10, 15), "<f2"),
    4: (0x1F20, struct.pack("<HHBBBBI", 0, 32, 23, 8, 0, 23, 127), "<f4"),
    8: (0x3F20, struct.pack("<HHBBBBI", 0, 64, 52, 11, 0, 52, 1023), "<f8"),
}
_INTEGERS = {  # size and sign bit
    (1, 0): "|u1",
    (2, 0): "<u2",
    (4, 0): "<u4",
    (8, 0): "<u8",
    (1, 8): "|i1",
    (2, 8): "<i2",
    (4, 8): "<i4",
    (8, 8): "<i8",
}
_BOOL = bytes.fromhex("3802000001000000 100800000100000000000800") + b"FALSE\0TRUE\0\0\1"
"""h5py's booleans: an enumeration of bytes (chapter IV.A.2.d, class 8)."""


class Message(NamedTuple):
    """One message of an object header: its type and its content."""

    kind: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class Extent:
    """A contiguous dataset: numpy's name of its dtype, its shape, and where it lies (None where it has no bytes)."""

    dtype: str
    shape: tuple[int, ...]
    address: int | None
    nbytes: int


class Hdf5File(FileBytes):
    """The objects of one file, over a map of it."""

    def __init__(self, data: memoryview) -> None:
        """``data`` is the whole file. Reads the superblock only.

        Raises :class:`Hdf5Error`, as all methods do."""
        super().__init__(data)
        found = _SUPERBLOCK.unpack(self.piece(0, _SUPERBLOCK.size, "superblock"))
        signature, version, offsets, lengths, _, base, extension, end, root, checksum = found
        if signature != SIGNATURE:
            raise Hdf5Error("it does not begin as HDF5 does")
        if version not in (2, 3):
            raise UnsupportedHdf5Error(f"it has a superblock of version {version}")
        if lookup3(data[: _SUPERBLOCK.size - 4]) != checksum:
            raise Hdf5Error("the checksum of its superblock does not match")
        if (offsets, lengths, base, extension) != (8, 8, 0, UNDEFINED):
            raise UnsupportedHdf5Error("its superblock is not as packstore writes it")
        if end > len(data):
            raise Hdf5Error("the file is shorter than its header says")
        self.root: int = root

    def messages(self, address: int) -> list[Message]:
        """The messages of the object at ``address``. Raises :class:`Hdf5Error`."""
        head = self.piece(address, 6, "object header")
        if bytes(head[:2]) == b"\1\0":
            raise UnsupportedHdf5Error("it has an object header of version 1")
        if bytes(head[:5]) != b"OHDR\x02":
            raise Hdf5Error(f"there is no object header at byte {address}")
        flags = head[5]
        start = address + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        size = int.from_bytes(self.piece(start, width, "object header"), "little")
        start += width
        found: list[Message] = []
        chunks = [(address, start, size)]
        total = 0
        for count, (begin, start, size) in enumerate(chunks):  # grows by the continuations that are found
            total += size
            if count >= _MAX_CHUNKS or total > _MAX_HEADER:
                raise Hdf5Error(f"the object header at byte {address} does not end")
            body = self.piece(start, size + 4, "object header")
            if lookup3(self.data[begin : start + size]) != int.from_bytes(body[size:], "little"):
                raise Hdf5Error(f"the checksum of the object header at byte {begin} does not match")
            for message in _messages(body[:size], 6 if flags & 4 else 4):
                if message.kind != _CONTINUED:
                    found.append(message)
                    continue
                begin, length = _unpacked(_CONTINUATION, message.body)
                if length < 8 or bytes(self.piece(begin, 4, "object header")) != b"OCHK":
                    raise Hdf5Error(f"there is no continued object header at byte {begin}")
                chunks.append((begin, begin + 4, length - 8))
        return found

    def members(self, group: list[Message]) -> dict[str, int | None]:
        """The names in a group, by its messages, each with the address of its object; None for links to elsewhere."""
        links: list[memoryview] = []
        for kind, body in group:
            if kind == _LINK:
                links.append(body)
            elif kind == _LINK_INFO:
                links += self._dense(body, 8, "links")
        return dict(map(_link, links))

    def attribute(self, holder: list[Message], name: str) -> bytes | None:
        """The value of an object's attribute, by its messages, that is a string of fixed length; None without it.

        Raises :class:`Hdf5Error`, and :class:`UnsupportedHdf5Error` for an attribute of another type.
        """
        bodies: list[memoryview] = []
        for kind, body in holder:
            if kind == _ATTRIBUTE:
                bodies.append(body)
            elif kind == _ATTRIBUTE_INFO:
                bodies += self._dense(body, 2, "attributes")
        for body in bodies:
            found, value = _attribute(body, name)
            if found:
                return value
        return None

    def dataset(self, address: int) -> Extent:
        """The dataset at ``address``; unsupported unless it is plain and contiguous."""
        found: dict[int, memoryview] = {}
        for kind, body in self.messages(address):
            if kind in (_EXTERNAL, _FILTERS):
                raise UnsupportedHdf5Error("it has external files or filters")
            found.setdefault(kind, body)
        if not {_DATASPACE, _DATATYPE, _LAYOUT} <= found.keys():
            raise UnsupportedHdf5Error("it is no dataset")
        layout = found[_LAYOUT]
        if len(layout) < 18 or layout[0] not in (3, 4) or layout[1] != 1:
            raise UnsupportedHdf5Error("it is not contiguous")
        start, nbytes = _CONTINUATION.unpack_from(layout, 2)
        shape = _shape(found[_DATASPACE])
        return Extent(_dtype(found[_DATATYPE]), shape, None if start == UNDEFINED else start, nbytes)

    def _dense(self, info: memoryview, index_bytes: int, what: str) -> Iterator[memoryview]:
        """Links or attributes that do not lie in the header itself but, as their info message says, in a heap."""
        at = 2 + (index_bytes if len(info) > 1 and info[1] & 1 else 0)
        if len(info) < at + 16 or info[0] != 0:
            raise UnsupportedHdf5Error(f"its {what} are not kept as packstore keeps them")
        heap, index = _CONTINUATION.unpack_from(info, at)
        if heap == UNDEFINED:
            return
        yield from Heap(self, heap).objects(index)


def _messages(body: memoryview, header: int) -> Iterator[Message]:
    at = 0
    while at + header <= len(body):  # a gap of fewer bytes may remain
        kind, size, flags = struct.unpack_from("<BHB", body, at)
        at += header
        if at + size > len(body):
            raise Hdf5Error("a message of an object header reaches out of it")
        if flags & _SHARED and kind in (_DATASPACE, _DATATYPE, _LAYOUT, _ATTRIBUTE, _LINK):
            raise UnsupportedHdf5Error("it shares messages between objects")
        yield Message(kind, body[at : at + size])
        at += size


def _link(body: memoryview) -> tuple[str, int | None]:
    """The name and the target of a link message."""
    if len(body) < 11 or body[0] != 1:  # a name of no letters and an address
        raise Hdf5Error("a link is broken")
    flags, at, kind = body[1], 2, 0
    if flags & 8:
        kind, at = body[at], at + 1
    at += (8 if flags & 4 else 0) + (1 if flags & 16 else 0)
    width = 1 << (flags & 3)
    size = int.from_bytes(body[at : at + width], "little")
    at += width
    if at + size + 8 > len(body) and kind == 0:
        raise Hdf5Error("a link is broken")
    name = bytes(body[at : at + size]).decode("utf-8", "backslashreplace")
    return name, int.from_bytes(body[at + size : at + size + 8], "little") if kind == 0 else None


def _attribute(body: memoryview, name: str) -> tuple[bool, bytes | None]:
    """Whether ``body`` is the attribute ``name``, and then its value."""
    if len(body) < 9 or body[0] != 3:
        raise UnsupportedHdf5Error("it has an attribute that is not as packstore writes it")
    flags, sizes = body[1], struct.unpack_from("<HHH", body, 2)
    pieces, at = [], 9
    for size in sizes:
        pieces.append(body[at : at + size])
        at += size
    if at > len(body):
        raise Hdf5Error("an attribute is broken")
    if bytes(pieces[0]).rstrip(b"\0") != name.encode("ascii"):
        return False, None
    dtype = pieces[1]
    if flags or len(dtype) < 8 or dtype[0] & 15 != 3 or _shape(pieces[2]) != ():
        raise UnsupportedHdf5Error(f"its attribute {name!r} is not a string of fixed length")
    size = int.from_bytes(dtype[4:8], "little")
    if at + size > len(body):
        raise Hdf5Error(f"its attribute {name!r} ends early")
    return True, bytes(body[at : at + size]).rstrip(b"\0")


def _shape(body: memoryview) -> tuple[int, ...]:
    if len(body) < 4 or body[0] not in (1, 2):
        raise UnsupportedHdf5Error("it has a dataspace that is not as packstore writes it")
    rank, at = body[1], 4 if body[0] == 2 else 8
    if rank > _MAX_RANK or len(body) < at + 8 * rank or (body[0] == 2 and body[3] > 1):
        raise Hdf5Error("a dataspace is broken")
    return struct.unpack_from(f"<{rank}Q", body, at)


def _dtype(body: memoryview) -> str:
    """Numpy's name of a little-endian datatype, or one that describes another for a message."""
    if len(body) < 8:
        raise Hdf5Error("a datatype is broken")
    if body[: len(_BOOL)] == _BOOL:
        return "|b1"
    kind, bits, size = body[0] & 15, int.from_bytes(body[1:4], "little"), int.from_bytes(body[4:8], "little")
    if kind == 0 and len(body) >= 12 and struct.unpack_from("<HH", body, 8) == (0, 8 * size) and not bits & 7:
        found = _INTEGERS.get((size, bits))
        if found is not None:
            return found
    if kind == 1 and size in _FLOATS and (bits, bytes(body[8:20])) == _FLOATS[size][:2]:
        return _FLOATS[size][2]
    return f"of HDF5's type class {kind} with {size} bytes"


def _unpacked(form: struct.Struct, body: memoryview) -> tuple[Any, ...]:
    if len(body) < form.size:
        raise Hdf5Error("a message of an object header is too short")
    return form.unpack_from(body)
