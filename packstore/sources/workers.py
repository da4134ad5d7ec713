"""Samples of a map-style dataset, read by worker processes.

Processes and not threads: a dataset is written for torch's ``DataLoader``, which gives each worker a copy of it. Many
share a file handle or a random generator, and in several threads they would mix up samples without an error. So the
same ``DataLoader`` reads here: its workers keep the order, hold a bounded number of samples and end with this process.
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
from packstore.sources.schema import Schema, Taken

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Ref = tuple[int, int]
"""Number of a dataset, and index in it."""

_BATCH_BYTES = 1 << 20
"""Samples are handed over together as long as they have about so many bytes."""
_MOST = 64
_LOOK_SECONDS = 1.0
"""How often a worker looks whether its parent is there."""


class Failed(NamedTuple):
    """A sample that could not be read.

    Attributes:
        reason: Why.
        trace: Where the dataset raised it, or ``""``.
        nbytes: 0: it takes no memory.
    """

    reason: str
    trace: str = ""
    nbytes: int = 0


class Reading:
    """Datasets as one, whose samples are named and made plain where they are read."""

    def __init__(self, datasets: Sequence[Any], schema: Schema, *, in_process: bool) -> None:
        """``in_process``: what can be done by threads is left to them."""
        self._datasets = datasets
        self._schema = schema
        self._in_process = in_process

    def __len__(self) -> int:
        return sum(map(len, self._datasets))

    def __getitem__(self, ref: Ref) -> Taken | Failed:
        number, index = ref
        try:
            raw = self._datasets[number][index]
        except Exception as error:
            return Failed(f"sample {index}: {type(error).__name__}: {error}", traceback.format_exc())
        return self.named(index, raw)

    def named(self, index: int, raw: Any) -> Taken | Failed:
        """The sample ``raw`` with its values by name."""
        try:
            taken = self._schema.take(raw)
            return taken if self._in_process else self._schema.plain(taken)
        except ValueError as error:
            return Failed(f"sample {index}: {error}")


def read_by_workers(reading: Reading, refs: Iterable[Ref], workers: int, nbytes: int) -> Iterator[Taken | Failed]:
    """The samples ``refs`` in order, read by ``workers`` processes, of about ``nbytes`` bytes each.

    Raises :class:`SourceError` where one of these processes ends before its time."""
    from torch import Generator
    from torch.utils.data import DataLoader

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # the number was asked for
        loader: Any = DataLoader(
            cast("Dataset[Any]", reading),
            batch_size=max(1, min(_MOST, _BATCH_BYTES // max(1, nbytes))),
            sampler=refs,
            num_workers=workers,
            collate_fn=list,
            generator=Generator(),  # its own: the program's random numbers stay as they are
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
    """Ends this process soon after its parent was killed. torch alone would let it wait for ever where its samples have
    filled the pipe: it waits until somebody reads them, and the other workers keep the pipe open."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="packstore-parent", daemon=True).start()
