"""Reads the HDF5 structures that packstore writes, without the HDF5 library.

The library is large, written in C, and has had memory errors on malicious files; which of them an installed version
still has cannot be known. So files from strangers never reach it. This module reads over a map with bounds checks and
compares HDF5's own checksums. Nothing recurses, and the amount read is bounded.

The module knows only what packstore's files consist of: superblocks 2 and 3, object headers 2, hard links, contiguous
datasets of plain numbers, attributes. Its errors name anything else.

Source: "HDF5 File Format Specification Version 3.0", chapters II to IV, The HDF Group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from packstore.stores.hdf5.heap import UNDEFINED, FileBytes, Hdf5Error, Heap, UnsupportedHdf5Error, hash_lookup3

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK = struct.Struct("<8sBBBBQQQQI")
_CONTINUATION = struct.Struct("<QQ")
_DATASPACE, _LINK_INFO, _DATATYPE, _LINK, _EXTERNAL, _LAYOUT = 0x01, 0x02, 0x03, 0x06, 0x07, 0x08
_FILTERS, _ATTRIBUTE, _CONTINUED, _ATTRIBUTE_INFO = 0x0B, 0x0C, 0x10, 0x15
_SHARED = 2
_MAX_CHUNKS = 64
_MAX_HEADER = 1 << 20
"""Most bytes of an object header, all chunks together; the largest that packstore writes has 64 KiB of manifest."""
_MAX_RANK = 32
_FLOATS = {  # by size: class bits; properties (position and width of exponent and mantissa, bias: IV.A.2.d); dtype
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
"""Datatype of h5py's booleans: an enumeration of bytes (chapter IV.A.2.d, class 8)."""


class HeaderMessage(NamedTuple):
    """One message of an object header: its type and content."""

    kind: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class Extent:
    """Dtype, shape and location of a contiguous dataset.

    Attributes:
        dtype: numpy's name, such as ``<f4``; for a dtype that packstore never writes, words for a message.
        shape: Its shape.
        address: Offset of its bytes in the file; None if it has none.
        nbytes: Number of its bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    address: int | None
    nbytes: int


class Hdf5File(FileBytes):
    """Reads the objects of an HDF5 file from a map of the file.

    All methods raise :class:`Hdf5Error` for a damaged file. They raise its subclass :class:`UnsupportedHdf5Error` for
    structures that packstore never writes.

    Attributes:
        root: Address of the root group.
    """

    def __init__(self, data: memoryview) -> None:
        """Reads and checks the superblock. ``data``: the whole file."""
        super().__init__(data)
        superblock = _SUPERBLOCK.unpack(self.read_slice(0, _SUPERBLOCK.size, "superblock"))
        signature, version, offsets, lengths, _, base, extension, end, root, checksum = superblock
        if signature != SIGNATURE:
            raise Hdf5Error("it does not begin with HDF5's signature")
        if version not in (2, 3):
            raise UnsupportedHdf5Error(f"it has a superblock of version {version}")
        if hash_lookup3(data[: _SUPERBLOCK.size - 4]) != checksum:
            raise Hdf5Error("the checksum of its superblock does not match")
        if (offsets, lengths, base, extension) != (8, 8, 0, UNDEFINED):
            raise UnsupportedHdf5Error("its superblock differs from what packstore writes")
        if end > len(data):
            raise Hdf5Error("the file is shorter than its header says")
        self.root: int = root

    def read_messages(self, address: int) -> list[HeaderMessage]:
        """Reads the messages of the object header at ``address``, with all continued chunks, and checks its checksums.

        Raises :class:`Hdf5Error` for over 64 chunks or 1 MiB, and :class:`UnsupportedHdf5Error` for a header of
        version 1.
        """
        head = self.read_slice(address, 6, "object header")
        if bytes(head[:2]) == b"\1\0":
            raise UnsupportedHdf5Error("it has an object header of version 1")
        if bytes(head[:5]) != b"OHDR\x02":
            raise Hdf5Error(f"there is no object header at byte {address}")
        flags = head[5]
        start = address + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        size = int.from_bytes(self.read_slice(start, width, "object header"), "little")
        start += width
        messages: list[HeaderMessage] = []
        chunks = [(address, start, size)]
        total = 0
        for count, (begin, start, size) in enumerate(chunks):  # the loop appends continuations
            total += size
            if count >= _MAX_CHUNKS or total > _MAX_HEADER:
                raise Hdf5Error(f"the object header at byte {address} does not end")
            body = self.read_slice(start, size + 4, "object header")
            if hash_lookup3(self.data[begin : start + size]) != int.from_bytes(body[size:], "little"):
                raise Hdf5Error(f"the checksum of the object header at byte {begin} does not match")
            for message in _split_messages(body[:size], 6 if flags & 4 else 4):
                if message.kind != _CONTINUED:
                    messages.append(message)
                    continue
                if len(message.body) < _CONTINUATION.size:
                    raise Hdf5Error("a message of an object header is too short")
                begin, length = _CONTINUATION.unpack_from(message.body)
                if length < 8 or bytes(self.read_slice(begin, 4, "object header")) != b"OCHK":
                    raise Hdf5Error(f"there is no continued object header at byte {begin}")
                chunks.append((begin, begin + 4, length - 8))
        return messages

    def read_members(self, group: list[HeaderMessage]) -> dict[str, int | None]:
        """Returns the addresses of a group's objects by name. None is the address of a soft or external link.

        ``group``: the group's messages.
        """
        links: list[memoryview] = []
        for kind, body in group:
            if kind == _LINK:
                links.append(body)
            elif kind == _LINK_INFO:
                links += self._read_dense_objects(body, 8, "links")
        return dict(map(_parse_link, links))

    def read_attribute(self, holder: list[HeaderMessage], name: str) -> bytes | None:
        """Returns the value of the string attribute ``name`` without trailing zero bytes. None if it does not exist.

        ``holder``: messages of the object that may have the attribute. Raises :class:`UnsupportedHdf5Error` if the
        attribute is not a string of fixed length.
        """
        bodies: list[memoryview] = []
        for kind, body in holder:
            if kind == _ATTRIBUTE:
                bodies.append(body)
            elif kind == _ATTRIBUTE_INFO:
                bodies += self._read_dense_objects(body, 2, "attributes")
        for body in bodies:
            has_name, value = _parse_attribute(body, name)
            if has_name:
                return value
        return None

    def find_dataset(self, address: int) -> Extent:
        """Returns dtype, shape and location of the dataset whose object header is at ``address``.

        Raises :class:`UnsupportedHdf5Error` if it is no dataset, is not contiguous, or has filters or external files.
        """
        bodies: dict[int, memoryview] = {}
        for kind, body in self.read_messages(address):
            if kind in (_EXTERNAL, _FILTERS):
                raise UnsupportedHdf5Error("it has external files or filters")
            bodies.setdefault(kind, body)
        if not {_DATASPACE, _DATATYPE, _LAYOUT} <= bodies.keys():
            raise UnsupportedHdf5Error("it is no dataset")
        layout = bodies[_LAYOUT]
        if len(layout) < 18 or layout[0] not in (3, 4) or layout[1] != 1:
            raise UnsupportedHdf5Error("it is not contiguous")
        start, nbytes = _CONTINUATION.unpack_from(layout, 2)
        shape = _parse_shape(bodies[_DATASPACE])
        return Extent(_parse_dtype(bodies[_DATATYPE]), shape, None if start == UNDEFINED else start, nbytes)

    def _read_dense_objects(self, info: memoryview, index_bytes: int, what: str) -> Iterator[memoryview]:
        """Yields the links or attributes (``what``) of an object that are in a heap outside its header."""
        # index_bytes: the index that info, the message that locates the heap, may have
        at = 2 + (index_bytes if len(info) > 1 and info[1] & 1 else 0)
        if len(info) < at + 16 or info[0] != 0:
            raise UnsupportedHdf5Error(f"its {what} are stored differently than packstore stores them")
        heap, index = _CONTINUATION.unpack_from(info, at)
        if heap == UNDEFINED:
            return  # no heap
        yield from Heap(self, heap).read_objects(index)


def _split_messages(body: memoryview, header: int) -> Iterator[HeaderMessage]:
    """Yields the messages of a header chunk, each with ``header`` bytes before its content."""
    at = 0
    while at + header <= len(body):  # a gap of fewer bytes may remain
        kind, size, flags = struct.unpack_from("<BHB", body, at)
        at += header
        if at + size > len(body):
            raise Hdf5Error("a message of an object header ends outside the header")
        if flags & _SHARED and kind in (_DATASPACE, _DATATYPE, _LAYOUT, _ATTRIBUTE, _LINK):
            raise UnsupportedHdf5Error("it shares messages between objects")
        yield HeaderMessage(kind, body[at : at + size])
        at += size


def _parse_link(body: memoryview) -> tuple[str, int | None]:
    """Returns the link's name and its object's address, None for a soft or external link."""
    if len(body) < 11 or body[0] != 1:  # the least: an empty name and an address
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


def _parse_attribute(body: memoryview, name: str) -> tuple[bool, bytes | None]:
    """Returns (True, value) if the message has the attribute ``name``, else (False, None)."""
    # body[0]: the version of the message
    if len(body) < 9 or body[0] != 3:
        raise UnsupportedHdf5Error("it has an attribute of a form that packstore does not write")
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
    if flags or len(dtype) < 8 or dtype[0] & 15 != 3 or _parse_shape(pieces[2]) != ():
        raise UnsupportedHdf5Error(f"its attribute {name!r} is not a string of fixed length")
    size = int.from_bytes(dtype[4:8], "little")
    if at + size > len(body):
        raise Hdf5Error(f"its attribute {name!r} ends early")
    return True, bytes(body[at : at + size]).rstrip(b"\0")


def _parse_shape(body: memoryview) -> tuple[int, ...]:
    """Returns the shape in a dataspace message."""
    if len(body) < 4 or body[0] not in (1, 2):
        raise UnsupportedHdf5Error("it has a dataspace of a form that packstore does not write")
    rank, at = body[1], 4 if body[0] == 2 else 8
    # body[3] > 1: a null dataspace
    if rank > _MAX_RANK or len(body) < at + 8 * rank or (body[0] == 2 and body[3] > 1):
        raise Hdf5Error("a dataspace is broken")
    return struct.unpack_from(f"<{rank}Q", body, at)


def _parse_dtype(body: memoryview) -> str:
    """Returns numpy's name of a datatype that packstore writes, or words for a message for any other."""
    if len(body) < 8:
        raise Hdf5Error("a datatype is broken")
    if body[: len(_BOOL)] == _BOOL:
        return "|b1"
    kind, bits, size = body[0] & 15, int.from_bytes(body[1:4], "little"), int.from_bytes(body[4:8], "little")
    if kind == 0 and len(body) >= 12 and struct.unpack_from("<HH", body, 8) == (0, 8 * size) and not bits & 7:
        integer = _INTEGERS.get((size, bits))
        if integer is not None:
            return integer
    if kind == 1 and size in _FLOATS and (bits, bytes(body[8:20])) == _FLOATS[size][:2]:
        return _FLOATS[size][2]
    return f"of HDF5's type class {kind} with {size} bytes"
