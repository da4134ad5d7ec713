"""``PackedLoader``: from a packed store to batches on the device.

It works in one of two modes, which it chooses itself:

- *resident*: the whole split is in device memory.
- *streaming*: threads read and decode into a ring of page-locked buffers. A separate stream copies these to the device.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import sys
import weakref
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from packstore.core.errors import UsageError
from packstore.core.options import describes, initializes, take_options, whole_number
from packstore.core.registry import notebook_html
from packstore.images.engine import get_engine
from packstore.training.arguments import unknown_argument
from packstore.training.augment.base import Operation, Units, with_units
from packstore.training.augment.from_torchvision import translate_augment
from packstore.training.augment.steps import as_operations
from packstore.training.loader.column_readers import refuse_missing_values, resident_obstacle
from packstore.training.loader.columns import Padded
from packstore.training.loader.division import augments_one_by_one, choose_residence
from packstore.training.loader.epochs import Epochs, resolve_ranks
from packstore.training.loader.options import (
    LoaderArguments,
    LoaderOptions,
    check_dataset,
    unwrap_subset,
)
from packstore.training.loader.parts import EpochSubset, LoaderParts, RunningEpoch, announce_epoch
from packstore.training.loader.pipeline import Pipeline
from packstore.training.values import as_arrays

if TYPE_CHECKING:
    from packstore.training.loader.record_stage import RecordStage
    from packstore.training.loader.resident import Resident
    from packstore.training.loader.streaming import Streaming

__all__ = ["PackedLoader", "Padded"]

_log = logging.getLogger("packstore")

_open: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()
"""Open iterators of all loaders."""


@atexit.register
def _close_iterators() -> None:
    """Closes the open iterators of all loaders at exit, while the modules that they need still exist. Leaves out
    iterators that a thread is running."""
    for items in list(_open):
        if (
            inspect.getgeneratorstate(items) != inspect.GEN_RUNNING
        ):  # else a thread that outlives the program would wait in it
            items.close()


@dataclass
class _Start:
    """Where an iterator over the loader begins.

    Attributes:
        epoch: Its epoch.
        first: Number of its first batch.
        resume: Position in the loaded state from which it goes on; None without a state.
        is_over: The iterator has no batches.
    """

    epoch: int
    first: int
    resume: tuple[int, int] | None
    is_over: bool = False


@describes(LoaderArguments)
class PackedLoader(LoaderParts):
    """Loads batches of a :class:`packstore.PackedDataset` onto its device. Used like torch's ``DataLoader``.

    An item is a tuple with one value for each column of the dataset, by default ``(images, labels)``. Images are uint8
    ``(B, 3, H, W)``, or float32 with ``normalize`` or from a floating point store, or of the given ``dtype``. Labels
    are int64 ``(B,)``; keys are a list. With a single column, the item is that column's value. A dataset with
    ``output="dict"`` gives dicts by name.

    =============  ==============================================================================================
    column         in a batch
    =============  ==============================================================================================
    ``image``      further ones as the first: they go through ``normalize``, ``dtype`` and geometric operations
    ``mask``       ``(B, H, W)``, uint8, or int32 if values have more bits
    ``labels``     a list of int64 ``(n,)``; ``"multi_hot"``: float32 ``(B, C)``; or ``"padded"``
    ``boxes``, ``keypoints``, ragged ``array``
                   a list of tensors ``(n, …)``, or ``"padded"``
    ``text``, ``json``, ``bytes``
                   a list
    fixed array    ``(B, …)``
    =============  ==============================================================================================

    After operations such as ``RandomShortestSize`` or ``RandomIoUCrop`` images differ in size: the decoding threads
    then run the whole list image by image. Unless a final crop or ``Resize`` gives them one size, pass
    ``collate={"image": "list"}`` or ``"padded"``.

    Crops, resizes and flips of ``augment`` move masks, boxes and keypoints with the images, by the same random numbers.
    Masks are not interpolated. Boxes are clipped; if little is left of a box, it is dropped with its labels and
    keypoints. With such columns, functions in ``augment`` and ``transform`` are refused unless they are wrapped in
    :class:`packstore.augment.InPlace`, for functions that move no pixels; torchvision's transforms are known.
    Masks, boxes and points belong to the images as loaded, upright with ``exif_transpose``.

    The order and all random numbers depend only on seed, epoch, record and the record's earlier occurrences in the
    epoch. Threads, device, and resuming do not change them, nor does it matter if the data are resident or streamed.
    Each ``for`` over the loader is the next epoch.

    It has the attributes of a ``DataLoader``: ``sampler``, ``batch_sampler``, ``collate_fn``, ``num_workers`` and the
    others. A ``DataLoader`` made of them gives the same batches, from this loader's threads.

    Attributes:
        dataset: The dataset; of a ``Subset``, one with the same items.
        epoch: The epoch that the next ``for`` begins.
        mode: ``"resident"`` or ``"streaming"``, and ``mode_reason`` why.
        pipeline: Steps of all batches; for tools that measure them.

    Raises:
        UsageError: Options that contradict each other or the store; (while iterating) a missing value, with its record
            and key, or a fork since the iteration began.
        CorruptRecordError: (while iterating) a record is damaged, as far as the dataset's ``checksums`` verify.
        DecodeError: (while iterating) a record cannot be decoded; both name the record and its key.
    """

    @initializes(LoaderArguments, unknown=lambda name: unknown_argument(PackedLoader, name))
    def __init__(self, arguments: LoaderArguments) -> None:
        dataset, part = unwrap_subset(arguments.dataset)
        check_dataset(dataset, part is not None)
        get_engine()  # an error here, and not in the first batch, if it is missing
        # A union of types would be in the way of type checkers.
        self.dataset: Any = dataset if part is None else EpochSubset(dataset, part.tolist())
        augment, converted = translate_augment(arguments.augment)
        if arguments.normalize is not None and "normalize" in converted:
            raise UsageError("normalize= is given, and augment= has torchvision's Normalize: leave out one of the two")
        units = Units.of_column(dataset.manifest.image, dataset.manifest.normalization)
        parsed = {name: value for name, value in converted.items() if getattr(arguments, name) is None} | {
            "augment": with_units(as_operations(augment), units)
        }
        if arguments.mix is not None:
            from packstore.training.augment.mixing import parse_mix

            parsed["mix"] = parse_mix(arguments.mix)
        if arguments.views is not None:
            from packstore.training.augment.views import parse_views

            parsed["views"] = parse_views(arguments.views, units)
        self.options = options = take_options(LoaderOptions, vars(arguments) | parsed)
        self.batch_size = batch_size = whole_number("batch_size", arguments.batch_size)
        self.device = dataset.device
        if options.output == "numpy" and self.device.type != "cpu":
            raise UsageError(f"output='numpy' gives arrays on the CPU, and the dataset has device='{self.device}'")
        self.epoch = 0
        self._epochs = Epochs(dataset, batch_size, options, part)
        self._stage: RecordStage | None = None
        if any(getattr(operation, "works_on_records", False) for operation in options.augment):
            from packstore.training.loader.record_stage import RecordStage

            self._stage = RecordStage(dataset, options)
        loading = options if self._stage is None else self._stage.loading_options
        refuse_missing_values(dataset, loading.collate or {}, self._epochs.items)
        wanted = True if options.pre_transform is not None else options.resident
        streamed = resident_obstacle(dataset, options.collate or {})
        on_batches = self.device.type != "cpu" or dataset.manifest.holds_floats
        if options.views is not None and wanted == "auto" and not on_batches:
            streamed = "on the CPU, views= are cropped by the threads that read"
        if streamed is None and augments_one_by_one(dataset, loading):
            streamed = "images differ in size, so the threads that read augment them one by one"
        if self._stage is not None:
            streamed = "the threads that read run Albumentations on each record"
        if streamed is not None and wanted is True:
            raise UsageError(f"resident=True and pre_transform= hold images and numbers of one shape, but {streamed}")
        resident, self.mode_reason = False, streamed or ""
        if streamed is None:
            resident, self.mode_reason = choose_residence(dataset.manifest, len(dataset), self.device, wanted)
        self.mode = "resident" if resident else "streaming"
        _log.info("%s: %s (%s)", dataset.path, self.mode, self.mode_reason)
        self.pipeline = Pipeline(dataset, loading, resident)
        self._producer: Resident | Streaming
        if resident:
            from packstore.training.loader.resident import Resident

            self._producer = Resident(self.pipeline, self._epochs)
        else:
            from packstore.training.loader.streaming import Streaming

            self._producer = Streaming(self.pipeline, self._epochs)
        self._running: tuple[int, int] | None = None  # epoch and batches given, of the latest iteration
        self._resume: tuple[int, int] | None = None  # epoch and records given, over all ranks, of a loaded state
        self._epoch_set: int | None = None  # as the user has set it last
        self._saved: tuple[int | None, bool] = None, False  # the same in a loaded state, and if its epoch had ended
        # The latest iterator, until it is asked for its first batch.
        self._unread: tuple[weakref.ref[Generator[Any, None, None]], _Start] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the latest iterator, which belongs to this process."""
        return self.__dict__ | {"_unread": None}

    @property
    def rank(self) -> int:
        """Current rank of this process among ``world_size`` ranks."""
        return resolve_ranks(self.options)[0]

    @property
    def world_size(self) -> int:
        """Current number of ranks."""
        return resolve_ranks(self.options)[1]

    def _repr_html_(self) -> str:
        """Returns HTML that shows the loader in a notebook."""
        return notebook_html(self)

    def __repr__(self) -> str:
        from packstore.training.loader.state import describe_options

        counted = self.options.sampler is None or hasattr(self.options.sampler, "__len__")
        batches = f"{len(self):,} batches of {self.batch_size}" if counted else f"batches of {self.batch_size}"
        batches += f" (rank {self.rank} of {self.world_size})" if self.world_size > 1 else ""
        path = str(self.pipeline.dataset.path)
        head = f"PackedLoader of {path!r}: {batches}, {self.mode} on {self.device} ({self.mode_reason})"
        records, dtype = len(self.pipeline.dataset), self.pipeline.device_steps.dtype
        return "\n    ".join([head, *describe_options(self.options, self._epochs, records, dtype)])

    def __len__(self) -> int:
        """Number of batches of a whole epoch on this rank, also after :meth:`load_state_dict`. Raises
        :class:`TypeError` for a sampler without a length."""
        return self._epochs.count_batches()

    @property
    def step(self) -> int:
        """Number of the batch in its epoch with which the next ``for`` begins, from 0.

        It is 0, except after :meth:`load_state_dict` in mid-epoch: ``enumerate(loader, loader.step)``."""
        self._follow_sampler()
        return 0 if self._resume is None else self._epochs.order.batches_before(self._resume[1])

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch, or the rest of the epoch in a loaded state. Advances :attr:`epoch` at once.

        If the user has set another epoch in the sampler, begins that epoch instead. Until its first batch, the latest
        iterator follows :meth:`set_epoch`; if it is dropped before, the next one begins where it would have."""
        self._epochs.begin_epoch()
        self._follow_sampler()
        self._settle_unread()
        resume, self._resume = self._resume, None
        epoch, first = (self.epoch, 0) if resume is None else (resume[0], self._epochs.order.batches_before(resume[1]))
        start = _Start(epoch, first, resume)
        self.epoch = epoch + 1
        self._running = epoch, first
        items = self._iterate_items(start)
        self._unread = weakref.ref(items), start
        _open.add(items)
        return items

    def _iterate_from(self, epoch: int, first: int) -> Iterator[Any]:
        """Begins an epoch at batch number ``first``."""
        self.set_epoch(epoch)
        self._resume = epoch, self._epochs.order.count_records(first)
        return iter(self)

    def _settle_unread(self) -> _Start | None:
        """Returns the start of the latest iterator if that waits for its first batch. If it was dropped without,
        takes its start back."""
        if self._unread is None:
            return None
        items, start = self._unread
        if items() is not None:
            return start
        self._unread = None
        if self.epoch == start.epoch + 1:
            self.epoch, self._resume = start.epoch, start.resume
        return None

    def _begin(self, start: _Start) -> None:
        """Notes that the iterator with this start is asked for its first batch."""
        if self._unread is not None and self._unread[1] is start:
            self._follow_sampler()
            self._unread = None
        if self.epoch == start.epoch and not start.is_over:  # set_epoch was called after iter
            self.epoch += 1
        self._running = start.epoch, start.first

    def _iterate_items(self, start: _Start) -> Generator[Any, None, None]:
        """Yields the items of an epoch from its start on, and counts them in the statistics and for resuming."""
        self._begin(start)
        epoch, first = start.epoch, start.first
        if start.is_over:
            return
        process = os.getpid()
        stage = nullcontext() if self._stage is None else self._stage.start_threads()
        announcing: AbstractContextManager[RunningEpoch | None] = nullcontext()
        if "accelerate.state" in sys.modules:
            announcing = announce_epoch()
        batches_of = self._producer.iterate_epoch(epoch, first)
        with closing(batches_of) as batches, stage as run_stage, announcing as announced:
            for batch in batches:  # enumerate would hold the batch
                first += 1
                self.pipeline.stats.add(batches=1, images=batch.images, skipped=batch.skipped)
                item, ids = batch.item, batch.ids
                del batch
                if run_stage is not None and ids is not None:
                    with self.pipeline.stats.measure("augment"):
                        item = run_stage(item, ids, epoch)
                if self.options.output == "numpy":
                    item = self._as_arrays(item)
                if announced is not None:
                    announced.end_of_dataloader = self._epochs.order.ends_after(first)
                self._running = epoch, first  # last, so that Ctrl-C in the lines before loses no batch
                yield item
                if os.getpid() != process:
                    raise UsageError(
                        "this iterator was begun before a fork, and its threads did not come along: begin a new one in "
                        "this process, for batch in loader"
                    )
                del item  # the consumer's alone from here on, so that its memory is free before the next batch

    def _as_arrays(self, item: Any) -> Any:
        """Replaces the tensors of an item by numpy arrays over the same memory."""
        dataset = self.pipeline.dataset
        images = [name for name in dataset.columns if dataset.manifest.column(name).traits.has_images]
        columns = [*dataset.columns, *(["masking"] if self.options.masking is not None else [])]
        return as_arrays(item, columns, images, dataset.output == "dict", self.options.channels_last)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration, which begins at its first batch.

        After ``load_state_dict``, the epoch of the state keeps the position in the state: a script may call
        ``set_epoch`` before every epoch, the resumed one too. Any other epoch drops that position. An iterator that
        has not given a batch yet begins this epoch, too: some frameworks set the epoch after ``iter``. The generator
        of a sampler without ``set_epoch`` advances by the epochs that are left out.

        A framework may begin a loader several times within an epoch of its own. So an iterator that resumes stays at
        its position if this is the epoch that was set last before the state was saved.

        Raises:
            UsageError: ``epoch`` is not a whole number of at least 0.
        """
        self._epoch_set = epoch = whole_number("epoch", epoch, 0)
        unread = self._settle_unread()
        before, had_ended = self._saved
        resumes = unread is not None and unread.resume is not None and before is not None
        if unread is not None and resumes and epoch == before:
            unread.is_over = had_ended
            self.epoch = unread.epoch + (0 if had_ended else 1)
            return
        self._epochs.skip_epochs(epoch - (self.epoch if unread is None else unread.epoch))
        self.epoch = epoch
        if self._resume is not None and self._resume[0] != epoch:
            self._resume = None
        if unread is None:
            self._running = None
            return
        if unread.epoch != epoch or resumes:
            unread.epoch, unread.first, unread.resume, unread.is_over = epoch, 0, None, False
        self._running = unread.epoch, unread.first

    def _find_next_epoch(self) -> int:
        """Returns the epoch that the next iteration begins, as set in the loader or in the sampler."""
        self._epochs.begin_epoch()
        self._follow_sampler()
        self._settle_unread()
        return self.epoch

    def _follow_sampler(self) -> None:
        """Sets the epoch that the user has set in the sampler, if any."""
        if self.options.sampler is None:
            return
        if (epoch := self._epochs.take_epoch_of_sampler()) is not None:
            self.set_epoch(epoch)

    def stats(self) -> dict[str, float]:
        """Returns counts, and the seconds of each stage, since the loader was made or ``reset_stats()``.

        - ``images``, ``batches``, ``skipped``, ``seconds``, ``images_per_second``
        - ``decoded``: image files that were decoded. Several views of a record take one decoding.
        - ``unindexed``: images decoded without their seek index, because the index was invalid.
        - ``wait_seconds``: the consumer stood idle.
        - ``read_seconds``, ``decode_seconds``: summed over threads.
        - ``augment_seconds``, ``copy_seconds``
        - ``per_image_seconds``: functions in ``PerImage``; summed over threads if they run there.

        Of a store at a URL also:

        - ``cache_hits``, ``cache_misses``: shards that were in the cache, or not, when a thread came to read them.
        - ``cache_damaged``: damaged copies in the cache, which were fetched again.
        - ``fetched_bytes``
        - ``fetch_wait_seconds``: threads waited for shards; summed.
        """
        return self.pipeline.stats.snapshot(self.pipeline.fetches)

    def reset_stats(self) -> None:
        """Sets all counts and seconds of :meth:`stats` to 0."""
        self.pipeline.stats.reset(self.pipeline.fetches)

    # Resume -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the latest iteration, for :meth:`load_state_dict`.

        A loader that resumes from it continues after the batches before it; after the last batch, with the next epoch.
        After :meth:`load_state_dict` or :meth:`set_epoch`, returns where the next iteration begins.

        If no iteration has begun since, first prepares the order of the next epoch. This raises :class:`UsageError` if
        the epoch would have no batches, or if ranks would draw different records from the sampler."""
        from packstore.training.loader.state import VERSION

        self._follow_sampler()
        if self._running is None:
            self._epochs.begin_epoch()
        epoch, batches = self._running or (self.epoch, 0)
        epoch, records = self._resume or (epoch, self._epochs.order.count_records(batches))
        ended = self._resume is None and self._epochs.order.ends_after(batches)
        where = {"version": VERSION, "epoch": epoch, "records": records, "ended": ended, "set_epoch": self._epoch_set}
        return where | self._identity() | {"store": self._store, "generator": self._epochs.generator_state}

    @cached_property
    def _store(self) -> dict[str, Any]:
        """Number and digest of the dataset's records, for the state."""
        from packstore.training.loader.state import describe_records

        return describe_records(self.pipeline.dataset)

    def _identity(self) -> dict[str, Any]:
        """Returns the values by which states are compared: dataset, order and augmentation.

        They leave out the number of ranks, normalisation, dtype and transforms."""
        options = self.options
        return {
            "dataset": self.pipeline.dataset.manifest.dataset_digest,
            "split": self.pipeline.dataset.split,
            "exif_transpose": self.pipeline.dataset.exif_transpose,
            "indices": self._epochs.subset_digest,
            "sampler": None if options.sampler is None else type(options.sampler).__name__,
            "length": self._epochs.order.length,
            "mixture": None if self._epochs.mixture is None else [*self._epochs.mixture.draws],
            "global_batch_size": self._epochs.order.global_batch_size,
            "drop_last": options.drop_last,
            "seed": options.seed,
            "stream": options.stream,
            "shuffle": self._epochs.shuffle,
            "block": options.block,
            "window": self._epochs.order.window,
            "shards": self._epochs.shards_digest,
            "augment": [_describe_operation(operation) for operation in options.augment],
            "mix": None if options.mix is None else repr(options.mix),
            "views": None if options.views is None else repr(options.views),
            "masking": None if options.masking is None else repr(options.masking),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue after the batches of ``state``, or begin the next epoch if none is left.
        Restores the epoch and the generator of the sampler, too.

        The number of ranks may differ if the global batch size is the same. If records of a last batch are too few for
        the ranks, leaves them out, and logs a warning.

        Raises:
            UsageError: ``state`` is not a state, or of another dataset, order, augmentation or global batch size. The
                text names the difference, and says if the store has grown since. Or an epoch would have no batches.
        """
        from packstore.training.loader.state import check_state

        self._epochs.begin_epoch()
        check_state(state, self._identity(), self.pipeline.dataset)
        epoch, given = state["epoch"], state["records"]
        self._epochs.restore_generator(state.get("generator"))
        batches = self._epochs.order.batches_before(given)
        left = self._epochs.order.count_records(batches) - given
        if left:  # of a last batch that fewer ranks were about to share
            _log.warning("%d records of epoch %d are left out: too few for %d ranks", left, epoch, self.world_size)
        ended = bool(state.get("ended") or self._epochs.order.ends_after(batches))
        if ended:
            self._epochs.finish_generator()
            epoch, given = epoch + 1, 0
        self.epoch, self._resume, self._unread = epoch, (epoch, given), None
        self.set_epoch(epoch)
        self._epoch_set = state.get("set_epoch")
        self._saved = self._epoch_set, ended
        self._epochs.set_epoch_of_sampler(epoch)


def _describe_operation(operation: Any) -> str:
    """Describes an operation of ``augment`` for the state: packstore's with its parameters, others by module and
    name."""
    if isinstance(operation, Operation):
        return repr(operation)
    named = operation if hasattr(operation, "__qualname__") else type(operation)
    return f"{named.__module__}.{named.__qualname__}"
