"""Reads the HDF5 structures that packstore writes, without the HDF5 library.

The library is large, written in C, and has had memory errors on malicious files; which of them an installed version
still has cannot be known. So files from strangers never reach it. This module reads over a map with bounds checks and
compares HDF5's own checksums. Nothing recurses, and the amount read is bounded.

The module knows only what packstore's files consist of: superblocks 2 and 3, object headers 2, hard links, contiguous
datasets of plain numbers, attributes. Its errors name anything else.

Dense storage is used for more than eight links in a group and for attributes of 64 KiB and more. A fractal heap holds
the objects, and a version 2 B-tree locates them (chapters III.A.2 and III.G). The module knows heaps of up to 512 KiB
and trees of two levels, enough for thousands of columns.

Source: "HDF5 File Format Specification Version 3.0", chapters II to IV, The HDF Group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from packstore.core.manifest import MAX_JSON_BYTES

UNDEFINED = 0xFFFFFFFFFFFFFFFF
"""HDF5's undefined address."""
_MASK = 0xFFFFFFFF


class Hdf5Error(Exception):
    """The file is damaged; the message says where.

    :mod:`packstore.stores.hdf5.store` raises :class:`packstore.core.errors.StoreError` instead.
    """


class UnsupportedHdf5Error(Hdf5Error):
    """The file uses a feature of HDF5 that packstore never writes; the message names it."""


class FileBytes:
    """The bytes of a file: ``data``, and slices of it with bounds checks."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def read_slice(self, start: int, size: int, what: str) -> memoryview:
        """Returns a view of ``size`` bytes from ``start`` on.

        Raises :class:`Hdf5Error` that names the structure ``what`` if the slice exceeds the file.
        """
        if not 0 <= start <= start + size <= len(self.data):
            raise Hdf5Error(f"its {what} lies outside the file (at byte {start})")
        return self.data[start : start + size]


def hash_lookup3(data: bytes | memoryview) -> int:
    """Computes Bob Jenkins' lookup3 hash (``hashlittle`` with initial value 0), HDF5's checksum of its structures."""
    size = len(data)
    a = b = c = (0xDEADBEEF + size) & _MASK
    if not size:
        return c
    words: tuple[int, ...] = struct.unpack(
        f"<{(size + 11) // 12 * 3}I", bytes(data).ljust((size + 11) // 12 * 12, b"\0")
    )
    for i in range(0, len(words) - 3, 3):
        a, b, c = (a + words[i]) & _MASK, (b + words[i + 1]) & _MASK, c + words[i + 2] & _MASK
        a = (a - c & _MASK) ^ (c << 4 & _MASK | c >> 28)
        c = c + b & _MASK
        b = (b - a & _MASK) ^ (a << 6 & _MASK | a >> 26)
        a = a + c & _MASK
        c = (c - b & _MASK) ^ (b << 8 & _MASK | b >> 24)
        b = b + a & _MASK
        a = (a - c & _MASK) ^ (c << 16 & _MASK | c >> 16)
        c = c + b & _MASK
        b = (b - a & _MASK) ^ (a << 19 & _MASK | a >> 13)
        a = a + c & _MASK
        c = (c - b & _MASK) ^ (b << 4 & _MASK | b >> 28)
        b = b + a & _MASK
    a, b, c = (a + words[-3]) & _MASK, (b + words[-2]) & _MASK, (c + words[-1]) & _MASK
    c = ((c ^ b) - (b << 14 & _MASK | b >> 18)) & _MASK
    a = ((a ^ c) - (c << 11 & _MASK | c >> 21)) & _MASK
    b = ((b ^ a) - (a << 25 & _MASK | a >> 7)) & _MASK
    c = ((c ^ b) - (b << 16 & _MASK | b >> 16)) & _MASK
    a = ((a ^ c) - (c << 4 & _MASK | c >> 28)) & _MASK
    b = ((b ^ a) - (a << 14 & _MASK | a >> 18)) & _MASK
    return ((c ^ b) - (b << 24 & _MASK | b >> 8)) & _MASK


# Signature, version, size of an identifier, of filters, flags, largest object; then twelve numbers of which the second
# is the address of the tree of huge objects; width, first and largest block, bits of an offset, rows at first, address
# of the root block, its rows, checksum.
_HEAP = struct.Struct("<4sBHHBI12QHQQHHQHI")
_TREE = struct.Struct("<4sBBIHHBBQHQI")  # type, size of a node and a record, depth, …, root, records in it, in all
_RECORD_AT = 6  # in a node: behind signature, version and type
_LINK_NAMES, _ATTRIBUTE_NAMES, _HUGE = 5, 8, 1
_MANAGED_ID, _HUGE_ID = 0, 1
_MAX_OBJECT = MAX_JSON_BYTES + (1 << 16)
_MAX_BLOCK = 1 << 16


class Heap:
    """Reads a fractal heap, HDF5's storage of many small objects.

    All methods raise :class:`Hdf5Error` for a damaged heap, and :class:`UnsupportedHdf5Error` for filters or a larger
    heap than packstore writes.
    """

    def __init__(self, file: FileBytes, address: int) -> None:
        """Reads and checks the heap's header at ``address``."""
        self._file = file
        self._address = address
        raw = file.read_slice(address, _HEAP.size, "heap")
        header = _HEAP.unpack(raw)
        if header[:2] != (b"FRHP", 0) or hash_lookup3(raw[:-4]) != header[-1]:
            raise Hdf5Error(f"the heap at byte {address} is broken")
        _, _, self._id_size, filters, self._flags, largest, _, self._huge_tree = header[:8]
        self._width, self._first, self._largest, bits, _, self._root, self._rows = header[18:25]
        powers = all(n and not n & (n - 1) for n in (self._first, self._largest))
        if filters or not powers or not self._first <= self._largest <= _MAX_BLOCK or not 0 < bits <= 64:
            raise UnsupportedHdf5Error("it has a heap of a form that packstore does not write")
        # Later rows would hold addresses of blocks, not objects.
        direct_rows = int(self._largest // self._first).bit_length() + 1
        if not 0 < self._width <= 64 or self._rows > direct_rows:
            raise UnsupportedHdf5Error("it has a larger heap than packstore writes")
        self._offset_size = (bits + 7) // 8
        self._length_size = (min(self._largest, largest).bit_length() + 7) // 8
        self._blocks: dict[int, memoryview] = {}

    def read_objects(self, tree: int) -> Iterator[memoryview]:
        """Yields the messages of all links or attributes in the B-tree of names at address ``tree``.

        Raises :class:`UnsupportedHdf5Error` for a B-tree of another type.
        """
        for kind, record in self._read_tree_records(tree):
            if kind not in (_LINK_NAMES, _ATTRIBUTE_NAMES):
                raise UnsupportedHdf5Error("it has an index that packstore does not write")
            start = 4 if kind == _LINK_NAMES else 0
            yield self._find_object(record[start : start + self._id_size])

    def _find_object(self, identifier: memoryview) -> memoryview:
        """Returns the object with an identifier."""
        if len(identifier) < 1 or len(identifier) != self._id_size or identifier[0] & 0xC0:
            raise Hdf5Error("an identifier of a heap is broken")
        kind = identifier[0] >> 4 & 3
        if kind == _MANAGED_ID:
            middle = 1 + self._offset_size
            offset = int.from_bytes(identifier[1:middle], "little")
            size = int.from_bytes(identifier[middle : middle + self._length_size], "little")
            start, block = self._find_block(offset)
            if offset - start + size > len(block):
                raise Hdf5Error("an object of a heap ends outside its block")
            return block[offset - start : offset - start + size]
        # a huge object lies outside the heap's blocks
        if kind == _HUGE_ID:
            wanted = int.from_bytes(identifier[1:], "little")
            for record_kind, record in self._read_tree_records(self._huge_tree):
                if record_kind != _HUGE or len(record) != 24:
                    raise UnsupportedHdf5Error("its heap lists large objects as packstore never does")
                address, size, number = struct.unpack("<QQQ", record)
                if number == wanted:
                    if size > _MAX_OBJECT:  # more than a manifest may have
                        raise Hdf5Error(f"an attribute has {size} bytes")
                    return self._file.read_slice(address, size, "attribute")
            raise Hdf5Error("a large object of a heap is missing")
        # identifiers hold tiny objects themselves
        raise UnsupportedHdf5Error("it has a heap with tiny objects")

    def _find_block(self, offset: int) -> tuple[int, memoryview]:
        """Returns the block that contains ``offset``: the block's start in the heap, and its bytes."""
        if not self._rows:
            place, start, size, address = 0, 0, self._first, self._root
        else:
            place = start = 0
            size = self._first
            while not start <= offset < start + size:
                place, start = place + 1, start + size
                row = place // self._width
                if row >= self._rows:
                    raise Hdf5Error("an object lies outside its heap")
                size = self._first << max(0, row - 1)
            address = self._read_block_address(place)
        if offset >= start + size:
            raise Hdf5Error("an object lies outside its heap")
        # reads and checks each block only once
        if place not in self._blocks:
            self._blocks[place] = self._read_block(address, size)
        return start, self._blocks[place]

    def _read_block(self, address: int, size: int) -> memoryview:
        """Reads and checks a block of ``size`` bytes at ``address``."""
        block = self._file.read_slice(address, size, "heap")
        at = 13 + self._offset_size
        if bytes(block[:5]) != b"FHDB\0" or int.from_bytes(block[5:13], "little") != self._address:
            raise Hdf5Error(f"there is no block of the heap at byte {address}")
        if self._flags & 2:  # the heap has checksums
            whole = bytearray(block)
            whole[at : at + 4] = bytes(4)
            if hash_lookup3(memoryview(whole)) != int.from_bytes(block[at : at + 4], "little"):
                raise Hdf5Error(f"the checksum of the heap's block at byte {address} does not match")
        return block

    def _read_block_address(self, place: int) -> int:
        """Reads the address of block number ``place`` from the root block."""
        head = 13 + self._offset_size
        size = head + 8 * self._rows * self._width
        block = self._file.read_slice(self._root, size + 4, "heap")
        if bytes(block[:5]) != b"FHIB\0" or hash_lookup3(block[:size]) != int.from_bytes(block[size:], "little"):
            raise Hdf5Error(f"the heap's root block at byte {self._root} is broken")
        return int.from_bytes(block[head + 8 * place : head + 8 * place + 8], "little")

    def _read_tree_records(self, tree: int) -> Iterator[tuple[int, memoryview]]:
        """Yields (type of the B-tree, record) of each record in order."""
        if tree == UNDEFINED:
            return
        raw = self._file.read_slice(tree, _TREE.size, "index")
        signature, version, kind, node, width, depth, _, _, root, count, _, checksum = _TREE.unpack(raw)
        if (signature, version) != (b"BTHD", 0) or hash_lookup3(raw[:-4]) != checksum:
            raise Hdf5Error(f"the index at byte {tree} is broken")
        if not 0 < width <= node - 10 or node > _MAX_BLOCK or depth > 1:
            raise UnsupportedHdf5Error("it has a larger index than packstore writes")
        if root == UNDEFINED:
            return
        if not depth:
            yield from self._read_leaf_records(kind, root, count, width, node)
            return
        digits = ((node - 10) // width).bit_length() + 7 >> 3  # bytes of the number of records in a leaf
        size = _RECORD_AT + count * width + (count + 1) * (8 + digits)
        if size + 4 > node:
            raise Hdf5Error("a node of an index is too full")
        raw = self._file.read_slice(root, size + 4, "index")
        if bytes(raw[:4]) != b"BTIN" or hash_lookup3(raw[:size]) != int.from_bytes(raw[size:], "little"):
            raise Hdf5Error(f"the node of an index at byte {root} is broken")
        for child in range(count + 1):
            at = _RECORD_AT + count * width + child * (8 + digits)
            records = int.from_bytes(raw[at + 8 : at + 8 + digits], "little")
            yield from self._read_leaf_records(kind, int.from_bytes(raw[at : at + 8], "little"), records, width, node)
            if child < count:
                yield kind, raw[_RECORD_AT + child * width : _RECORD_AT + (child + 1) * width]

    def _read_leaf_records(
        self, kind: int, address: int, count: int, width: int, node: int
    ) -> Iterator[tuple[int, memoryview]]:
        """Yields (``kind``, record) of each record of ``width`` bytes in the leaf at ``address``."""
        size = _RECORD_AT + count * width
        # node: most bytes of a leaf, with its checksum
        if size + 4 > node:
            raise Hdf5Error("a node of an index is too full")
        raw = self._file.read_slice(address, size + 4, "index")
        if bytes(raw[:4]) != b"BTLF" or hash_lookup3(raw[:size]) != int.from_bytes(raw[size:], "little"):
            raise Hdf5Error(f"the node of an index at byte {address} is broken")
        for i in range(count):
            yield kind, raw[_RECORD_AT + i * width : _RECORD_AT + (i + 1) * width]


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
