"""Writes and reads ``.pth``: one zip in torch's own layout with a plain dict of CPU tensors and strings.

``torch.load(path, mmap=True, weights_only=True)`` opens it.

The dict:

- A fixed column, such as ``image``, is a tensor ``(N, *shape)``.
- A ragged column is ``{"bytes": uint8, "offsets": int64}``.
- ``manifest`` is the JSON.

uint64 (``checksum``), uint32 and uint16 columns are int64, int32 and int16 tensors with the same bits, because torch
supports the unsigned types only in part. bfloat16 is ``torch.bfloat16``.

The zip has the uncompressed entries ``archive/data.pkl`` (the dict, with tensors as ``_rebuild_tensor_v2`` calls on
persistent ids), ``archive/data/0`` … (raw storages), ``archive/byteorder`` and ``archive/version``. This layout is
stable (``torch/serialization.py``). torch.save would need all images in memory. Here images are streamed as the first
entry, and the rest follows once their number is known. Neither writing nor reading needs torch.

The pickle is read without running anything: :mod:`.pickle_machine` interprets it, and it only describes the objects. A
name becomes a :class:`Global`. Torch's usual call for a plain tensor becomes a :class:`SavedTensor`, and any other call
a :class:`Call`. A stranger's file can neither execute anything nor crash the process by deep nesting, as it could
inside torch.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, Ragged, WholeColumn
from packstore.core.errors import StoreError, printable
from packstore.core.files import drop, open_file, reading
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.stores.format import FileWriter, parse_own_manifest, unreadable_error
from packstore.stores.parts import MappedPart, Problem, map_column
from packstore.stores.pth.pickle_machine import PickleError, StandIn, UnsupportedPickleError, interpret_pickle
from packstore.stores.pth.zip import Archive, ZipError, build_padding_field, check_zip, compute_content_start
from packstore.stores.staged_columns import OffsetSpool, map_consecutive_images

if TYPE_CHECKING:
    from packstore.stores.scavenge import RecoveredManifest, ScavengedData

_MAX_OPERATIONS = 200_000
"""Most operations of a pickle; bounds the time (about a microsecond each). A column takes about 60."""
_MAX_RANK = 64


class _Described(StandIn):
    """Description of an object that is never made. Ignores the object's state and items."""

    __slots__ = ()

    def set_state(self, state: Any) -> None:
        """Ignores the state."""

    def set_items(self, items: list[Any]) -> None:
        """Ignores the items."""


@dataclass(frozen=True, slots=True)
class Call(_Described):
    """Result of a call to ``name``, a function that packstore does not know."""

    name: str


@dataclass(frozen=True, slots=True)
class Storage(_Described):
    """Storage of type ``kind`` (``ByteStorage`` …) in the zip entry ``data/KEY``."""

    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class SavedTensor(_Described):
    """A strided view of a storage: a plain tensor without gradient. Offset and strides are in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Global(_Described):
    """A name in the pickle: ``module.name``. Calling it describes the result, and calls nothing."""

    name: str

    def __call__(self, *arguments: Any) -> SavedTensor | Call:
        """Describes the result: a plain tensor of up to 64 dimensions that torch rebuilds, else a :class:`Call`."""
        match self.name, arguments:
            case (
                "torch._utils._rebuild_tensor_v2",
                (Storage() as storage, int(offset), tuple(shape), tuple(stride), False, _),
            ) if max(len(shape), len(stride)) <= _MAX_RANK and all(type(n) is int for n in shape + stride):
                return SavedTensor(storage, offset, shape, stride)
        return Call(self.name)


def unpickle(data: bytes) -> Any:
    """Returns the object in the pickle ``data``. Calls nothing.

    The object consists of dicts, lists, tuples, strings, numbers, and descriptions such as :class:`SavedTensor`.
    Raises :class:`PickleError` for a damaged pickle, an unsupported one, or one of more
    than 200,000 operations.
    """
    return interpret_pickle(data, lambda module, name: Global(f"{module}.{name}"), _MAX_OPERATIONS, _parse_storage)


def _parse_storage(persistent_id: Any) -> Storage:
    """Returns the storage that torch's persistent id names."""
    match persistent_id:
        case ("storage", Global(name), str(key), str(), int()):
            return Storage(name.removeprefix("torch."), key)
    raise UnsupportedPickleError("a pickle with a persistent id that is not a storage")


STORAGE = {
    "bool": "BoolStorage",
    "int8": "CharStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "uint8": "ByteStorage",
    "uint16": "ShortStorage",  # the same bits; also in the next two lines
    "uint32": "IntStorage",
    "uint64": "LongStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
}
"""Torch's storage class for each column dtype."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A contiguous CPU tensor over the whole of storage ``key``."""

    key: str
    dtype: str
    shape: tuple[int, ...]


def dump_dict(content: Mapping[str, Any]) -> bytes:
    """Pickles ``content`` in protocol 2. Its values are ``str``, :class:`Tensor` or such dicts."""
    return pickle.PROTO + b"\x02" + _dump_value(content) + pickle.STOP


def _dump_value(value: Any) -> bytes:
    """Pickles a dict, tensor, tuple, string, False or integer."""
    if isinstance(value, Mapping):
        return (
            pickle.EMPTY_DICT
            + pickle.MARK
            + b"".join(_dump_value(k) + _dump_value(v) for k, v in value.items())
            + pickle.SETITEMS
        )
    if isinstance(value, Tensor):
        return _dump_tensor(value)
    if isinstance(value, tuple):
        return pickle.MARK + b"".join(map(_dump_value, value)) + pickle.TUPLE
    if isinstance(value, str):
        raw = value.encode("utf-8")
        return pickle.BINUNICODE + struct.pack("<I", len(raw)) + raw
    if value is False:
        return pickle.NEWFALSE
    raw = pickle.encode_long(int(value))
    return pickle.LONG1 + bytes([len(raw)]) + raw


def _dump_tensor(tensor: Tensor) -> bytes:
    """Pickles a tensor as the call that torch makes to rebuild it."""
    storage = (
        pickle.MARK
        + _dump_value("storage")
        + _dump_global("torch", STORAGE[tensor.dtype])
        + _dump_value(tensor.key)
        + _dump_value("cpu")
        + _dump_value(math.prod(tensor.shape))
        + pickle.TUPLE
        + pickle.BINPERSID
    )
    strides = tuple(math.prod(tensor.shape[i + 1 :]) for i in range(len(tensor.shape)))
    no_hooks = _dump_global("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    arguments = (
        pickle.MARK
        + storage
        + _dump_value(0)
        + _dump_value(tensor.shape)
        + _dump_value(strides)
        + _dump_value(False)
        + no_hooks
    )
    return _dump_global("torch._utils", "_rebuild_tensor_v2") + arguments + pickle.TUPLE + pickle.REDUCE


def _dump_global(module: str, name: str) -> bytes:
    """Pickles a reference to a name of a module."""
    return pickle.GLOBAL + f"{module}\n{name}\n".encode("ascii")


_PREFIX = "archive"
_JOIN_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 22


class PthWriter(FileWriter):
    """Creates the file and streams images into its entry ``archive/data/0``. :meth:`seal` adds all other entries."""

    def __init__(self, path: Path, image: Column) -> None:
        super().__init__(path, image)
        self._nbytes = 0
        self._ends = OffsetSpool(path.parent) if image.kind == "ragged" else None
        self._file: IO[bytes] | None = open_file(path, "xb")
        self._zip: zipfile.ZipFile | None = zipfile.ZipFile(self._file, "w", allowZip64=True)
        self._entry: IO[bytes] | None = _create_entry(self._zip, "data/0")

    def append(self, images: Sequence[Buffer]) -> None:
        """Writes the images to the first entry of the zip."""
        assert self._entry is not None
        sizes = [len(image) for image in images]
        total = sum(sizes)
        if total < _JOIN_BYTES * len(images):  # small images: one call for all of them
            self._entry.write(b"".join(images))
        else:
            for image in images:
                self._entry.write(image)
        self._nbytes += total
        if self._ends is not None:
            self._ends.append(sizes, len(sizes))

    def suspend(self) -> None:
        """Finishes and closes the zip, which :meth:`seal` opens again. Idempotent."""
        if self._entry is not None:
            self._entry.close()
            self._entry = None
        if self._zip is not None:
            self._zip.close()
            self._zip = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def seal(self, manifest: Manifest, columns: Mapping[str, WholeColumn]) -> None:
        """Adds an entry for each array of the columns, and closes the zip.

        The last entries are the pickle that describes the columns, the byte order and the version.
        """
        self.suspend()
        storages: list[NDArray[Any]] = []

        def tensor(dtype: str, array: NDArray[Any]) -> Tensor:
            storages.append(array)
            return Tensor(str(len(storages)), dtype, array.shape)

        content: dict[str, Any] = {}
        if self._ends is not None:
            offsets = tensor("int64", self._ends.offsets())
            content["image"] = {"bytes": Tensor("0", "uint8", (self._nbytes,)), "offsets": offsets}
        else:
            content["image"] = Tensor("0", self.image.dtype, (manifest.records, *self.image.shape))
        for name, data in columns.items():
            if isinstance(data, Ragged):
                content[name] = {"bytes": tensor("uint8", data.data), "offsets": tensor("int64", data.offsets)}
            else:
                content[name] = tensor(manifest.column(name).dtype, data)
        content["manifest"] = manifest.to_json()
        self._file = open_file(self.path, "r+b")
        self._zip = zipfile.ZipFile(self._file, "a", allowZip64=True)
        for i, array in enumerate(storages, 1):
            self._entry = _create_entry(self._zip, f"data/{i}")
            flat = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
            for start in range(0, flat.size, _CHUNK_BYTES):
                self._entry.write(flat[start : start + _CHUNK_BYTES].data)
            self._entry.close()
        for name, raw in (("data.pkl", dump_dict(content)), ("byteorder", b"little"), ("version", b"3\n")):
            self._entry = _create_entry(self._zip, name)
            self._entry.write(raw)
            self._entry.close()
        self.suspend()
        self.abort()

    def abort(self) -> None:
        """Closes the file without finishing the zip."""
        if self._entry is not None:
            entry: Any = self._entry
            io.IOBase.close(entry)  # its own close would write sizes
            self._entry = None
        if self._zip is not None:
            self._zip.fp = None  # else it writes its directory when it is garbage-collected
            self._zip = None
        if self._file is not None:
            drop(self._file)
            self._file = None
        if self._ends is not None:
            self._ends.close()


class PthPart(MappedPart):
    """A ``.pth``, read through a map of the file, without torch. Executes nothing and copies nothing.

    Opening raises :class:`StoreError` if the file cannot be read, does not fit the manifest, or has tensors that are
    not plain, contiguous and aligned. Of ragged offsets, opening checks only the first and the last.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """``descriptor`` is an open file descriptor of the file, or None. The caller may close it afterwards."""
        archive, content, manifest = _load_content(path, descriptor)
        map_array = partial(_map_tensor, archive, content, printable(str(path)))
        try:
            data = {each.name: map_column(each, manifest.records, map_array) for each in manifest.container_columns}
        except ZipError as error:
            raise unreadable_error(path, "a .pth", error) from None
        super().__init__(path, manifest, data)
        self._map: NDArray[np.uint8] | None = archive.map

    def close(self) -> None:
        self._map = None
        super().close()

    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields faults of the offsets of ragged columns.

        Without ``quick``, also yields wrong CRC-32 and changed headers of zip entries.
        """
        yield from super().faults()
        map = self._map  # read once: another thread may close the part meanwhile
        if not quick and map is not None:
            yield from check_zip(map, progress)


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest of the ``.pth`` file at ``path``. Raises :class:`StoreError` for a missing or damaged one."""
    return _load_content(path)[2]


def _load_content(path: Path, descriptor: int | None = None) -> tuple[Archive, dict[str, Any], Manifest]:
    """Opens a zip, or its ``descriptor``, and returns it, the dict in its pickle, and the manifest."""
    try:
        with reading(path, descriptor) as opened:
            archive = Archive(opened)
        content = unpickle(archive.read_pickle())  # a description: nothing is called
    except OSError as error:
        raise StoreError(f"{printable(str(path))} cannot be opened: {error.strerror or error}") from error
    except UnsupportedPickleError as error:
        raise StoreError(f"{printable(str(path))} cannot be opened as a .pth of packstore: {error}") from None
    except (ZipError, PickleError) as error:
        raise unreadable_error(path, "a .pth", error) from None
    if not isinstance(content, dict) or not isinstance(content.get("manifest"), str):
        raise StoreError(f"{printable(str(path))} is a .pth without a packstore manifest")
    return archive, content, parse_own_manifest(content["manifest"], path, "pth", "a .pth")


def _map_tensor(
    archive: Archive, content: Mapping[str, Any], shown: str, name: str, dtype: str, shape: tuple[int, ...]
) -> NDArray[Any]:
    """Returns the tensor ``name`` as a read-only view of the map, or raises :class:`StoreError` if it does not fit."""
    column, _, part = name.partition("/")
    tensor, where = content.get(column), f"{shown}: column {name!r}"
    if part:
        if not isinstance(tensor, dict):
            raise StoreError(
                f"{shown}: column {column!r} is {_describe_value(tensor)}, not a dict of bytes and offsets"
            )
        tensor = tensor.get(part)
    if not isinstance(tensor, SavedTensor):
        raise StoreError(f"{where} is {_describe_value(tensor)}, not a plain tensor")
    wanted, size, stored = NUMPY_DTYPE[dtype], math.prod(shape), tensor.storage
    if stored.kind != STORAGE[dtype] or not _is_contiguous(tensor):
        kind = printable(stored.kind)
        raise StoreError(f"{where} is a tensor over a {kind}, not a contiguous one over {STORAGE[dtype]}")
    if tensor.shape != shape:
        raise StoreError(f"{where} is {dtype} {tensor.shape}, not {shape}")
    raw = archive.view_entry(f"data/{stored.key}")
    start, stop = tensor.offset * wanted.itemsize, (tensor.offset + size) * wanted.itemsize
    if not 0 <= start <= stop <= len(raw):
        raise StoreError(f"{where} has shape {shape} from {tensor.offset} on, in {len(raw)} bytes")
    array: NDArray[Any] = raw[start:stop].view(wanted).reshape(shape) if size else np.empty(shape, wanted)
    if not array.flags.aligned:
        raise StoreError(f"{where} does not begin at a multiple of {wanted.itemsize} bytes; pack it again")
    array.flags.writeable = False
    return array


def _is_contiguous(tensor: SavedTensor) -> bool:
    """Returns whether a tensor is contiguous as torch defines it."""
    if len(tensor.shape) != len(tensor.stride):
        return False
    # strides of an empty tensor do not matter
    if 0 in tensor.shape:
        return True
    expected = [math.prod(tensor.shape[i + 1 :]) for i in range(len(tensor.shape))]
    # nor those of dimensions of size 1
    return all(n == 1 or s == e for n, s, e in zip(tensor.shape, tensor.stride, expected, strict=True))


def _describe_value(value: Any) -> str:
    """Returns a word for the type of a value in the pickle, for messages."""
    if isinstance(value, Call):
        return f"made by {printable(value.name)[:100]}"
    return "a tensor" if isinstance(value, SavedTensor) else type(value).__name__


IMAGES_START = compute_content_start(0, f"{_PREFIX}/data/0")
"""Offset of the images in the file."""


def open_partial_file(path: Path, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
    """Maps the file and returns a function that views an image. The images lie one after another in the file."""
    return map_consecutive_images(path, IMAGES_START, sizes)


def scavenge(_: Path, data: memoryview, recovered: RecoveredManifest | None) -> ScavengedData:
    """Recovers columns and images at the offsets that follow from the manifest ``recovered``, which is required.

    The entries follow each other in the order of the manifest's columns.
    """
    from packstore.stores.scavenge import list_array_sizes, scavenge_arrays

    assert recovered is not None
    starts: dict[str, int] = {}
    position = 0
    for number, (name, size) in enumerate(list_array_sizes(recovered.manifest)):
        starts[name] = compute_content_start(position, f"{_PREFIX}/data/{number}")
        position = starts[name] + size
    return scavenge_arrays(data, recovered, starts)


class _Zip64Info(zipfile.ZipInfo):
    """Zip entry that has its sizes only in the zip64 field, as in Python from 3.11.4 on."""

    def FileHeader(self, zip64: bool | None = None) -> bytes:  # noqa: N802 - zipfile's name
        """Returns the entry's local header. With ``zip64``, its 32-bit sizes are 0xFFFFFFFF."""
        header = super().FileHeader(zip64)
        return header[:18] + b"\xff" * 8 + header[26:] if zip64 else header


def _create_entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """Opens a new uncompressed entry for writing, its content aligned to 64 bytes."""
    info = _Zip64Info(f"{_PREFIX}/{name}", (1980, 1, 1, 0, 0, 0))
    info.create_version = info.extract_version = zipfile.ZIP64_VERSION
    assert archive.fp is not None
    start = archive.start_dir if hasattr(archive, "start_dir") else archive.fp.tell()
    info.extra = build_padding_field(start, info.filename.encode("ascii"))
    return archive.open(info, "w", force_zip64=True)
