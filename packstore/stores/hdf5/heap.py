"""Reads HDF5's dense storage, used for more than eight links in a group and for attributes of 64 KiB and more.

A fractal heap holds the objects, and a version 2 B-tree locates them: chapters III.A.2 and III.G of the "HDF5 File
Format Specification Version 3.0". This module knows heaps of up to 512 KiB and trees of two levels, enough for
thousands of columns. It refuses larger ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

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
