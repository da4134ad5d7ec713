"""Reads samples of a map-style dataset by worker processes.

Processes instead of threads: a dataset is written for torch's ``DataLoader``, which gives each worker a copy. Many
datasets share a file handle or a random generator, and threads would mix up their samples without an error. So
``DataLoader`` reads here, too: its workers keep the order, hold a bounded number of samples, and end with this
process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from packstore.core.errors import SourceError
from packstore.sources.schema import NamedSample, Schema

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Ref = tuple[int, int]
"""Number of a dataset, and index in it."""

_BATCH_BYTES = 1 << 20
"""Approximate size of a batch of samples from a worker."""
_MOST = 64
_LOOK_SECONDS = 1.0
"""Interval at which a worker tests if its parent is alive."""


class FailedSample(NamedTuple):
    """Sample that could not be read.

    Attributes:
        reason: The error.
        trace: Traceback of the dataset, or ``""``.
        nbytes: 0, since it takes no memory.
    """

    reason: str
    trace: str = ""
    nbytes: int = 0


class DatasetReader:
    """Reads samples of several datasets, and names their values. A sample is indexed by the number of its dataset and
    its index there. A sample that raises an error becomes a :class:`FailedSample`."""

    def __init__(self, datasets: Sequence[Any], schema: Schema, *, in_process: bool) -> None:
        """``in_process``: the main process reads. If so, samples keep the user's values, and threads convert the values
        later."""
        self._datasets = datasets
        self._schema = schema
        self._in_process = in_process

    def __len__(self) -> int:
        return sum(map(len, self._datasets))

    def __getitem__(self, ref: Ref) -> NamedSample | FailedSample:
        number, index = ref
        try:
            raw = self._datasets[number][index]
        except Exception as error:
            return FailedSample(f"sample {index}: {type(error).__name__}: {error}", traceback.format_exc())
        return self.name_values(index, raw)

    def name_values(self, index: int, raw: Any) -> NamedSample | FailedSample:
        """Assigns names to the values of the sample ``raw``. In a worker process, also converts them to plain values.
        Returns a :class:`FailedSample` for a sample that does not fit the schema."""
        try:
            taken = self._schema.assign_names(raw)
            return taken if self._in_process else self._schema.to_plain(taken)
        except ValueError as error:
            return FailedSample(f"sample {index}: {error}")


def read_by_workers(
    reading: DatasetReader, refs: Iterable[Ref], workers: int, nbytes: int
) -> Iterator[NamedSample | FailedSample]:
    """Yields the samples ``refs`` in order, read by ``workers`` processes. ``nbytes`` is the mean size of a sample, and
    decides how many of them a worker sends together.

    Raises :class:`SourceError` if a worker process ends too early."""
    from torch import Generator
    from torch.utils.data import DataLoader

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # the user chose the number
        loader: Any = DataLoader(
            cast("Dataset[Any]", reading),
            batch_size=max(1, min(_MOST, _BATCH_BYTES // max(1, nbytes))),
            sampler=refs,
            num_workers=workers,
            collate_fn=list,
            generator=Generator(),  # leaves the program's random state alone
            worker_init_fn=_end_with_parent,
        )
    batches = iter(loader)
    while True:
        try:
            batch = next(batches, None)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise SourceError(
                f"a process that reads the dataset has ended ({str(error).partition('. ')[0]}); it may have run out of "
                "memory, or the dataset ends its process: workers=1 reads without such processes"
            ) from error
        if batch is None:
            return
        yield from batch


def _end_with_parent(worker: int) -> None:
    """Starts a thread that kills this process soon after its parent has ended."""
    # A worker of torch could wait forever: its samples have filled the pipe, which the other workers keep open.
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="packstore-parent", daemon=True).start()
