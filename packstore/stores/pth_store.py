"""``.pth``: one zip in torch's own layout: a plain dict of CPU tensors and strings.

``torch.load(path, mmap=True, weights_only=True)`` opens it.

The dict: ``image`` is a tensor ``(N, *shape)``, or ``{"bytes": uint8, "offsets": int64}`` when ragged; so is every
other column; ``manifest`` is the JSON. uint64 columns (``checksum``) are int64 tensors with the same bits, because
torch's uint64 is not complete; bfloat16 is ``torch.bfloat16``.

torch.save would need all images in memory. The layout is small and stable (``torch/serialization.py``): stored zip
entries ``archive/data.pkl`` (the dict, with tensors as ``_rebuild_tensor_v2`` calls on persistent ids),
``archive/data/0`` … (raw storages), ``archive/byteorder`` and ``archive/version``. So images are streamed as the first
entry, and the rest follows when their number is known. torch is needed for reading only.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packstore.errors import StoreError, printable
from packstore.manifest import Column, Manifest
from packstore.progress import Progress, ProgressCallback, no_progress
from packstore.stores.base import NUMPY_DTYPE, Buffer, ColumnData, Problem, Ragged, Writer
from packstore.stores.columns import OffsetSpool
from packstore.stores.mapped import MappedReader, check_column, check_offsets
from packstore.stores.publish import sync_file
from packstore.stores.torch_pickle import STORAGE, Tensor, pickle_dict

_PREFIX = "archive"
_ALIGNMENT = 64  # torch.save's own
_LOCAL_HEADER = 30
_ZIP64_EXTRA = 20
_JOIN_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 22


class PthWriter(Writer):
    """Streams images into the entry ``archive/data/0``."""

    def __init__(self, path: Path, image: Column) -> None:
        super().__init__(path, image)
        self._nbytes = 0
        self._ends = OffsetSpool(path.parent) if image.kind == "ragged" else None
        self._zip: zipfile.ZipFile | None = zipfile.ZipFile(path, "x", allowZip64=True)
        self._entry: IO[bytes] | None = _open_entry(self._zip, "data/0")

    def append(self, images: Sequence[Buffer]) -> None:
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
            self._ends.append(sizes)

    def suspend(self) -> None:
        if self._entry is not None:
            self._entry.close()
            self._entry = None
        if self._zip is not None:
            self._zip.close()
            self._zip = None

    def seal(self, manifest: Manifest, columns: Mapping[str, ColumnData]) -> None:
        self.suspend()
        storages: list[NDArray[Any]] = []

        def tensor(dtype: str, array: NDArray[Any]) -> Tensor:
            storages.append(array)
            return Tensor(str(len(storages)), dtype, array.shape)

        def ragged(data: Ragged) -> dict[str, Tensor]:
            return {"bytes": tensor("uint8", data.data), "offsets": tensor("int64", data.offsets)}

        content: dict[str, Any] = {}
        if self._ends is not None:
            offsets = tensor("int64", self._ends.offsets())
            content["image"] = {"bytes": Tensor("0", "uint8", (self._nbytes,)), "offsets": offsets}
        else:
            content["image"] = Tensor("0", self.image.dtype, (manifest.records, *self.image.shape))
        for name, data in columns.items():
            content[name] = ragged(data) if isinstance(data, Ragged) else tensor(manifest.column(name).dtype, data)
        content["manifest"] = manifest.to_json()
        with zipfile.ZipFile(self.path, "a", allowZip64=True) as archive:
            for i, array in enumerate(storages, 1):
                with _open_entry(archive, f"data/{i}") as entry:
                    flat = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
                    for start in range(0, flat.size, _CHUNK_BYTES):
                        entry.write(flat[start : start + _CHUNK_BYTES].data)
            for name, raw in (("data.pkl", pickle_dict(content)), ("byteorder", b"little"), ("version", b"3\n")):
                with _open_entry(archive, name) as entry:
                    entry.write(raw)
        self.abort()
        sync_file(self.path)

    def abort(self) -> None:
        self.suspend()
        if self._ends is not None:
            self._ends.close()


class PthReader(MappedReader):
    """Reads a ``.pth`` through ``torch.load(mmap=True, weights_only=True)``: nothing in it is executed or copied."""

    def __init__(self, path: Path) -> None:
        shown = printable(str(path))
        content = _load(path)
        manifest = _manifest_of(content, path)
        data = {c.name: _column(content, c, shown) for c in manifest.columns}
        for column in manifest.columns:
            check_column(column, manifest.records, data[column.name], shown)
        super().__init__(path, manifest, data)

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        for column in self.manifest.columns:
            yield from check_offsets(column.name, self.column(column.name))
        if not quick:
            yield from _check_zip(self.path, progress)


def read_manifest(path: Path) -> Manifest:
    """The manifest of the ``.pth`` file at ``path``. Raises :class:`StoreError`."""
    return _manifest_of(_load(path), path)


def _load(path: Path) -> dict[str, Any]:
    import torch

    shown = printable(str(path))
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # torch raises nearly anything for a file that it cannot read
        reason = str(error).strip().partition("\n")[0]
        raise StoreError(f"{shown} cannot be opened as a .pth: {reason or type(error).__name__}") from error
    if not isinstance(content, dict) or not isinstance(content.get("manifest"), str):
        raise StoreError(f"{shown} is a .pth without a packstore manifest")
    return content


def _manifest_of(content: dict[str, Any], path: Path) -> Manifest:
    manifest = Manifest.from_json(content["manifest"])
    if manifest.format != "pth" or manifest.shards:
        raise StoreError(f"{printable(str(path))} is a .pth with the manifest of another store ({manifest.format})")
    return manifest


def _column(content: dict[str, Any], column: Column, shown: str) -> ColumnData:
    value = content.get(column.name)
    if column.kind == "fixed":
        return _array(value, column.dtype, f"{shown}: column {column.name!r}")
    if not isinstance(value, dict):
        raise StoreError(f"{shown}: column {column.name!r} is {type(value).__name__}, not a dict of bytes and offsets")
    data = _array(value.get("bytes"), "uint8", f"{shown}: column '{column.name}/bytes'")
    offsets = _array(value.get("offsets"), "int64", f"{shown}: column '{column.name}/offsets'")
    if data.ndim != 1 or offsets.ndim != 1 or not len(offsets):
        raise StoreError(f"{shown}: column {column.name!r} has bytes {data.shape} and offsets {offsets.shape}")
    return Ragged(offsets, data)


def _array(tensor: Any, dtype: str, where: str) -> NDArray[Any]:
    import torch

    wanted = getattr(torch, STORAGE[dtype].dtype)
    if not isinstance(tensor, torch.Tensor):
        raise StoreError(f"{where} is {type(tensor).__name__}, not a tensor")
    if tensor.dtype != wanted or not tensor.is_contiguous() or tensor.layout != torch.strided or tensor.is_meta:
        raise StoreError(f"{where} is a tensor of {tensor.dtype}, not a contiguous one of {wanted}")
    if dtype == "bfloat16":
        tensor = tensor.view(torch.int16)
    array: NDArray[Any] = tensor.numpy().view(NUMPY_DTYPE[dtype])
    array.flags.writeable = False
    return array


def _open_entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """A stored entry whose data begin at a multiple of 64 bytes."""
    info = zipfile.ZipInfo(f"{_PREFIX}/{name}", (1980, 1, 1, 0, 0, 0))
    assert archive.fp is not None
    start = archive.start_dir if hasattr(archive, "start_dir") else archive.fp.tell()
    data = start + _LOCAL_HEADER + len(info.filename) + _ZIP64_EXTRA
    padding = -(data + 4) % _ALIGNMENT
    # "FB" is the field that torch pads with.
    info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
    return archive.open(info, "w", force_zip64=True)


def _check_zip(path: Path, progress: ProgressCallback) -> Iterator[Problem]:
    """Reads every entry against its CRC-32, which torch never does."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            done_bytes = 0
            for done, info in enumerate(entries):
                try:
                    with archive.open(info) as entry:
                        size = 0
                        while data := entry.read(_CHUNK_BYTES):
                            size += len(data)
                            progress(Progress("structure", done, len(entries), done_bytes + size))
                    if size != info.file_size:
                        yield Problem(f"entry {printable(info.filename)!r} has {size} of {info.file_size} bytes")
                    done_bytes += size
                except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, zlib.error) as error:
                    yield Problem(f"entry {printable(info.filename)!r}: {error}")
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        yield Problem(f"the zip structure is broken: {error}")
