"""Memory in which a worker of torch's ``DataLoader`` makes batches: shared, and used again.

torch maps new shared memory for each batch. The kernel allocates and clears each of its pages, which takes a quarter of
a worker's time with floating-point images. Here a batch is made in a file in memory (memfd). The process that trains
gets its own description of the open file, with a lock (flock) that ends with its last descriptor and mapping. A file
without lock is used for another batch.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from math import prod
from typing import Any

import torch
from torch.utils.data import get_worker_info

if sys.platform == "linux":
    import fcntl

_multiprocessing: Any = torch.multiprocessing
_Storage: Any = torch.UntypedStorage
_MOST = 16
"""Most files that a worker keeps."""
_BY_VALUE = (torch.int64, torch.float64, torch.float32, torch.bool)
_MOST_BY_VALUE = 16 << 10
"""Most bytes of a tensor that is sent by value."""


class _File:
    """File in memory, and its mapping, to which all tensors in it hold references."""

    def __init__(self, nbytes: int) -> None:
        self.descriptor = os.memfd_create("packstore batch")
        os.ftruncate(self.descriptor, nbytes)
        self.mapping = mmap.mmap(self.descriptor, nbytes)

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def is_free(self) -> bool:
        """True if no process has a tensor in the file."""
        if sys.getrefcount(self.mapping) > 2:  # the attribute, and the argument here
            return False
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return True

    def lend(self, nbytes: int) -> torch.UntypedStorage:
        """Maps the file once more, locked as long as any process has it. Raises OSError if it is locked."""
        descriptor = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            storage: torch.UntypedStorage = _Storage._new_shared_fd_cpu(descriptor, nbytes)
            return storage
        finally:
            os.close(descriptor)  # the storage has a duplicate


_files: dict[int, _File] = {}
"""Files of this worker by address."""
_lock = threading.Lock()
if sys.platform == "linux":
    os.register_at_fork(after_in_child=_files.clear)


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Allocates a tensor on the CPU for a batch, with arbitrary values."""
    nbytes = prod(shape) * dtype.itemsize
    if sys.platform == "linux" and nbytes and get_worker_info() is not None:
        with _lock:
            file = _find_file(nbytes)
            block = torch.frombuffer(file.mapping, dtype=dtype, count=prod(shape)).resize_(shape)
            if len(_files) < _MOST:
                _files[block.data_ptr()] = file
        return block
    return torch.empty(shape, dtype=dtype, device="cpu")


def move_rows(batch: torch.Tensor) -> torch.Tensor:
    """Copies a batch on the CPU to memory of :func:`allocate` in a worker; returns it itself in other processes."""
    if get_worker_info() is None or batch.device.type != "cpu":
        return batch
    return allocate(tuple(batch.shape), batch.dtype).copy_(batch)


def share(block: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in the same memory as a block from :func:`allocate`, for another process.

    Returns the block itself if that is not possible; torch then copies it.
    """
    file = _files.get(block.data_ptr())
    if file is None or _multiprocessing.get_sharing_strategy() != "file_descriptor":
        return block
    try:
        storage = file.lend(block.nbytes)
    except OSError:  # shared before, or without /proc
        return block
    return torch.empty(0, dtype=block.dtype).set_(storage, 0, block.shape, block.stride())


class _SentByValue(torch.Tensor):
    """Tensor that another process gets by its values."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl  # results of operations are plain tensors

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return torch.from_numpy, (self.numpy(),)


def send_by_value(value: Any) -> Any:
    """Returns a small tensor so that a worker sends its values: a descriptor, as torch sends, takes 1 ms."""
    is_plain = type(value) is torch.Tensor and value.dtype in _BY_VALUE and value.device.type == "cpu"
    if not is_plain or value.nbytes > _MOST_BY_VALUE or value.requires_grad or get_worker_info() is None:
        return value
    return value.as_subclass(_SentByValue)


def _find_file(nbytes: int) -> _File:
    """Returns a free file that is large enough, or a new one."""
    for address, file in [*_files.items()]:
        if file.is_free:
            if nbytes <= len(file.mapping) <= 2 * nbytes:
                return file
            # When there are many, free files of other sizes make room.
            if len(_files) == _MOST:
                del _files[address]
    return _File(nbytes)
