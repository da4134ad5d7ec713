"""``Writer``: packs samples that a program adds one by one."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from packstore.core.errors import SampleError, UsageError, printable
from packstore.core.fields import Field, parse_fields
from packstore.core.options import argument, describes, initializes, option, progress_option, take_options
from packstore.core.progress import ProgressCallback, progress_callback
from packstore.core.urls import check_paths
from packstore.packing import ConvertOptions, EncodingOptions, ReadingOptions
from packstore.packing.conversion import ConvertReport, run_plan
from packstore.packing.plan import check_new_store, plan_source
from packstore.packing.source_arguments import max_pixels_option
from packstore.sources.base import Entry, SourceOptions
from packstore.sources.dataset import PROBED, StreamSource, index_key
from packstore.sources.schema import Schema, make_schema
from packstore.sources.values import nbytes_of

_HANDED_OVER, _HANDED_OVER_BYTES = 256, 1 << 20
"""Records and bytes of a list that goes to the packing thread at once: handing over takes about 10 µs."""
_NAME = Path("samples")
"""Name of the source in the manifest; it does not depend on the destination, so that equal samples give equal
stores."""
_WAITING = 4
"""Maximum number of lists in the queue; if it is full, :meth:`Writer.add` blocks."""


class _AbandonedError(Exception):
    """Stops the packing thread after an exception in the ``with`` block."""


@dataclass(frozen=True)
class WriterArguments(ReadingOptions, EncodingOptions):
    """Arguments of :class:`Writer`."""

    path: str | os.PathLike[str] = field(metadata=argument("Path of the store; its suffix chooses the format."))
    fields: Mapping[str, Field | str] | None = option(
        None,
        'Declarations by name, such as ``{"image": "image", "label": packstore.Label(classes)}``; None infers them '
        "from the first 16 samples.",
    )
    _: KW_ONLY
    split: str | None = option(None, "Name of the split if :meth:`add` names none.")
    encoding: str | None = option(
        None,
        "Encoding of the main image; None keeps files as they are. Images that are not files need ``uint8``, ``jpeg`` "
        "or another, here or in their field.",
    )
    max_pixels: int = max_pixels_option("Limit of an image's pixels. An image with more is a bad sample.")
    progress: bool | ProgressCallback = progress_option()


@describes(WriterArguments)
class Writer:
    """Writes a store from samples that are added one by one.

    A context manager: the store is read back and appears under its name when the block ends. An exception in the block
    discards everything. Threads encode the samples, in order; memory does not grow with their number. Not thread-safe.

    ``mode``, ``depth`` and ``alpha`` cannot be ``keep``, and ``normalize`` cannot be ``auto``: they need all images
    first.

    Attributes:
        report: The :class:`packstore.packing.conversion.ConvertReport`; None before the end.
        added: Number of samples added until now.
    """

    @initializes(WriterArguments)
    def __init__(self, arguments: WriterArguments) -> None:
        """Checks options and destination. Nothing is written before the first samples are added.

        Raises:
            UsageError: Unknown options, or options that do not go together.
            DestinationError: The destination exists, or cannot be written.
        """
        self.report: ConvertReport | None = None
        self.added = 0
        check_paths(arguments.path)
        self._path = Path(arguments.path)
        self._options = take_options(ConvertOptions, vars(arguments))
        self._progress = arguments.progress
        self._fields = None if arguments.fields is None else parse_fields(arguments.fields)
        if "split" in (self._fields or ()):
            raise UsageError("add() takes the split of a sample by the name 'split'; rename your field")
        check_new_store(self._path, self._options)
        self._state: Literal["new", "open", "closed"] = "new"
        self._counts: dict[str, int] = {}
        self._first: list[tuple[str, int, dict[str, Any]]] = []
        self._schema: Schema | None = None
        self._batch: list[Entry] = []
        self._batch_bytes = 0
        self._queue: queue.Queue[list[Entry] | None] = queue.Queue(_WAITING)
        self._abandoned = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        """Begins the one block of this writer. Raises :class:`UsageError` for a second one."""
        if self._state != "new":
            raise UsageError("a Writer writes one store, in one with block")
        self._state = "open"
        return self

    def add(self, /, *, key: str | None = None, split: str | None = None, **values: Any) -> None:
        """Adds a sample. Blocks while the packing thread is behind.

        Args:
            key: Unique key in the store; None for the sample's index in its split.
            split: Name of its split, instead of the writer's. Samples of a split must be added one after another.
            values: Values by field. An image is a path, the bytes of a file, a PIL image, a uint8 array ``(H, W, 3)``
                or a tensor ``(3, H, W)``. For other types see :mod:`packstore.core.fields`. An optional field may be
                None or left out.

        Raises:
            UsageError: The ``with`` block has not begun or has ended. Or the samples of a split do not follow each
                other. Or only some samples have a split. Or no fields fit the first 16 samples.
            SampleError: This sample, or one of the samples added shortly before, does not fit the fields.
            PackstoreError: An earlier sample could not be written.
        """
        if self._state != "open":
            raise UsageError("add samples inside the with block of the Writer")
        name = self._options.split or "" if split is None else split
        index = self._counts.get(name, 0)
        if index == 0 and self._counts and (not name or "" in self._counts):
            raise UsageError("either all samples have a split or none")
        if index and name != next(reversed(self._counts)):
            raise UsageError(f"samples of split {printable(name)!r} must follow each other: {index} were added before")
        if key is not None:
            values["key"] = key
        if self._schema is None:
            self._first.append((name, index, values))
            self._counts[name] = index + 1
            if len(self._first) == PROBED:
                self._start_packing()
        else:
            self._check_and_queue(self._schema, name, index, values)
            self._counts[name] = index + 1
        self.added += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._wait_until_published()
        finally:
            self._stop_packing_thread()
            self._state = "closed"

    def __repr__(self) -> str:
        return f"<Writer of {str(self._path)!r}: {self.added:,} samples, {self._state}>"

    def _start_packing(self) -> None:
        """Infers the fields from the first samples, and queues these samples for the packing thread."""
        self._schema = make_schema(
            [sample for *_, sample in self._first],
            self._fields,
            picks=False,
            encoding=self._options.encoding,
            max_pixels=self._options.max_pixels,
        )
        for split, index, sample in self._first:
            self._check_and_queue(self._schema, split, index, sample)
        self._first = []

    def _check_and_queue(self, schema: Schema, split: str, index: int, sample: dict[str, Any]) -> None:
        """Checks a sample against the schema, adds it to the current list, and queues a full list."""
        key = index_key(split, index)
        try:
            taken = schema.assign_names(sample)
        except ValueError as error:
            raise SampleError(str(sample.get("key", key)), f"sample {index}: {error}") from error
        self._batch.append(Entry(key, split, (), nbytes_of(taken.values[schema.main]), taken))
        self._batch_bytes += taken.nbytes
        if len(self._batch) >= _HANDED_OVER or self._batch_bytes >= _HANDED_OVER_BYTES:
            self._queue_batch(self._batch)
            self._batch, self._batch_bytes = [], 0

    def _queue_batch(self, batch: list[Entry] | None) -> None:
        """Queues a list of entries for the packing thread; None marks the end."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_packing_thread, name="packstore-writer", daemon=True)
            self._thread.start()
        while self._thread.is_alive():
            try:
                self._queue.put(batch, timeout=0.2)  # blocks while it is full
                break
            except queue.Full:
                continue
        if self._error is not None:
            raise self._error

    def _wait_until_published(self) -> None:
        """Queues the remaining samples, and waits until the store is published."""
        if self._schema is None:
            if not self._first:
                raise UsageError(f"{printable(str(self._path))}: no sample was added, so there is nothing to write")
            self._start_packing()
        if self._batch:
            self._queue_batch(self._batch)
        self._queue_batch(None)
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _stop_packing_thread(self) -> None:
        """Stops the packing thread if it still runs, and waits for its end."""
        self._abandoned = True  # the thread then deletes the unfinished store
        while self._thread is not None and self._thread.is_alive():
            with suppress(queue.Full):  # wakes it
                self._queue.put_nowait(None)
            self._thread.join(0.05)

    def _run_packing_thread(self) -> None:
        """Packs the queued samples into the store, and sets :attr:`report`; the packing thread runs it."""
        try:
            assert self._schema is not None
            options = SourceOptions(max_pixels=self._options.max_pixels)
            with progress_callback(self._progress) as report:
                source = StreamSource(_NAME, options, self._schema, self._receive_entries())
                encoding = source.choose_encoding(self._options.encoding)
                # Each sample has its own split.
                plan = plan_source(source, self._path, replace(self._options, encoding=encoding, split=None), report)
                self.report = run_plan(plan, report)
        except BaseException as error:  # raised where the program waits for this thread
            self._error = error

    def _receive_entries(self) -> Iterator[Entry]:
        """Yields the queued samples until the end; blocks while the queue is empty."""
        while (batch := self._queue.get()) is not None and not self._abandoned:
            yield from batch
        if self._abandoned:
            raise _AbandonedError  # the ``with`` block has failed
