"""Packs datasets of a program: a map-style or iterable ``Dataset`` of torch, a list, a generator.

A map-style dataset is read by index, so an interrupted conversion can resume; an iterable starts afresh.

Worker processes instead of threads: a dataset is written for torch's ``DataLoader``, which gives each worker a copy.
Many datasets share a file handle or a random generator, and threads would mix up their samples without an error. So
``DataLoader`` reads here, too: its workers keep the order, hold a bounded number of samples, and end with this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, groupby, islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import xxhash

from packstore.core.errors import SampleError, SourceError, UsageError, printable
from packstore.core.fields import Field
from packstore.core.parallel import default_workers
from packstore.core.progress import ProgressCallback, no_progress
from packstore.sources.base import Entry, Sample, Source, SourceOptions, Survey, round_up_size
from packstore.sources.schema import NamedSample, Schema, make_schema
from packstore.sources.torchvision_files import find_image_files, is_subset
from packstore.sources.values import is_path, nbytes_of, number_equal_names

if TYPE_CHECKING:
    from torch.utils.data import Dataset

# Number of a dataset, and index in it.
Ref = tuple[int, int]

PROBED = 16
"""Number of samples that are probed: the first ones, and in a map-style dataset as many spread over the rest."""
# Minimum number of samples for worker processes, unless the user names their number: for fewer samples, starting
# processes takes about as long as they save.
_BY_WORKERS = 1024
# Number of digits of a key made from an index, as for records in LMDB.
KEY_DIGITS = 10
# Approximate size of a batch of samples from a worker.
_BATCH_BYTES = 1 << 20
_MOST = 64
# Interval at which a worker tests if its parent is alive.
_LOOK_SECONDS = 1.0


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


class _DatasetReader:
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


@dataclass
class _SplitData:
    """Dataset of one split, and facts about it.

    Attributes:
        split: Name of the split.
        data: The dataset.
        length: Number of samples; None for an iterable.
        in_memory: The data is a list, which needs no worker processes.
        rest: Remaining samples of an iterable, after the probes.
        probes: Probed samples, by index.
    """

    split: str
    data: Any
    length: int | None
    in_memory: bool
    rest: Iterator[Any]
    probes: dict[int, Any]


def index_key(split: str, index: int) -> str:
    """Makes the key of a sample from its split and index: ``train/0000000012``, or ``0000000012`` without a split."""
    number = f"{index:0{KEY_DIGITS}}"
    return f"{split}/{number}" if split else number


class SampleSource(Source):
    """Base of sources whose samples come from a program and a :class:`Schema`.

    Attributes:
        schema: Converts samples to records.
    """

    kind = "dataset"
    schema: Schema

    def read(self, entry: Entry) -> Sample:
        """Converts the sample in ``Entry.ref`` by the schema. If the key is of :func:`index_key`, its index becomes the
        sample's number. Raises :class:`SampleError`

        - for a value that does not fit the schema;
        - if the program failed to read the sample, with its traceback as a note.
        """
        ref = entry.ref
        if isinstance(ref, FailedSample):
            error = SampleError(entry.key, ref.reason)
            if ref.trace:
                error.add_note(ref.trace)
            raise error
        digits = entry.key[-KEY_DIGITS:]
        index = int(digits) if digits.isdecimal() and entry.key == index_key(entry.split, int(digits)) else None
        try:
            return self.schema.make_sample(entry.key, ref)._replace(number=index)
        except ValueError as error:
            which = "" if index is None else f"sample {index}: "
            raise SampleError(ref.key or entry.key, f"{which}{error}") from error

    def nbytes(self, entry: Entry) -> int:
        """Returns the estimated memory of the sample in ``Entry.ref``."""
        return int(entry.ref.nbytes)

    def make_entry(self, split: str, index: int, sample: NamedSample | FailedSample) -> Entry:
        """Makes an entry with a sample in memory as ``ref``, and the size of its image. The size is 0 for a failed
        sample."""
        size = nbytes_of(sample.values[self.schema.main]) if isinstance(sample, NamedSample) else 0
        return Entry(index_key(split, index), split, (), size, sample)

    def choose_encoding(self, encoding: str | None) -> str:
        """Returns the encoding of the main image: ``encoding``, that of its field, or ``original``. Raises
        :class:`UsageError` if ``encoding`` and the field's differ."""
        declared = getattr(self.schema.fields[self.schema.main], "encoding", None)
        if encoding is not None and declared not in (None, encoding):
            raise UsageError(f"encoding={encoding!r} and packstore.Image({declared!r}) differ; give one of them")
        return encoding or declared or "original"

    def mean_sizes(self, samples: Iterable[NamedSample | FailedSample]) -> tuple[int, int]:
        """Returns two means over samples: bytes of the main image, and bytes of all other values. Failed samples do not
        count. Returns zeros for no samples."""
        good = [sample for sample in samples if isinstance(sample, NamedSample)]
        images = sum(nbytes_of(sample.values[self.schema.main]) for sample in good)
        number = max(1, len(good))
        return images // number, (sum(sample.nbytes for sample in good) - images) // number

    def make_survey(self, splits: Mapping[str, int], sizes: tuple[int, int], *, counted: bool) -> Survey:
        """Makes the survey of a source from its counts and from mean sizes, see :meth:`mean_sizes`. Assumes keys of
        :func:`index_key`. ``counted`` becomes :attr:`Survey.counted` and :attr:`Survey.resumable`."""
        records, (image, values) = sum(splits.values()), sizes
        return Survey(
            splits=splits,
            columns=self.schema.columns,
            encoding=self.schema.encoding,
            mode=self.schema.mode,
            shape=None,
            size_bytes=image * records,
            size_counts={round_up_size(image): records},
            key_bytes=sum(len(index_key(split, 0)) * number for split, number in splits.items()),
            sampled=frozenset(column.name for column in self.schema.columns),
            value_bytes=values * records,
            gives_keys=True,
            counted=counted,
            resumable=counted,
        )


class DatasetSource(SampleSource):
    """Datasets by split, each map-style (``len`` and ``[i]``) or iterable.

    The constructor reads up to 33 samples of each split. These samples decide undeclared columns and estimated sizes.
    An iterable can be read only once. A ``DataLoader``, an iterator in two splits, and a named split without samples
    are refused. By default, worker processes read a map-style dataset of 1024 or more samples, unless it is a list.
    """

    def __init__(
        self,
        splits: Mapping[str, Any],
        options: SourceOptions,
        *,
        fields: Mapping[str, Field] | None = None,
        encoding: str | None = None,
        further: str | None = None,
        workers: int | None = None,
    ) -> None:
        """
        Args:
            splits: Datasets by the name of their split; ``""`` for a dataset without splits.
            options: ``max_pixels`` and ``skip_bad`` are used.
            fields: Declarations by name, or None to infer them from the first samples of each split.
            encoding: Requested encoding of the main image.
            further: Encoding of other images that are pixels, unless declared.
            workers: Number of reading processes; None chooses, 1 reads in this process.
        """
        first = next(iter(splits.values()))
        super().__init__(Path(type(first).__qualname__), options)
        self._workers = workers
        # Splits may have files of equal names.
        prefixes = {split: f"{split}/" if len(splits) > 1 else "" for split in splits}
        given = {split: find_image_files(data, prefixes[split]) for split, data in splits.items()}
        iterators = [id(data) for data in splits.values() if isinstance(data, Iterator)]
        if len({*iterators}) < len(iterators):  # each split would read only some of its samples
            raise UsageError("two splits are the same iterator; give each split an iterable of its own")
        self._parts = [_examine_dataset(split, given[split] or data) for split, data in splits.items()]
        raw = self._read_probes()
        classes = _find_class_names(splits) if fields is None else None
        self.schema = make_schema(
            raw, fields, classes=classes, encoding=encoding, further=further, max_pixels=options.max_pixels
        )
        self._reading = _DatasetReader([part.data for part in self._parts], self.schema, in_process=True)

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts samples of one split, or of all. If one of these is an iterable, all counts are 0. Estimates sizes
        from the probed samples. Raises :class:`NotInSourceError` for an unknown split."""
        parts = self._choose_parts(split)
        counted = all(part.length is not None for part in parts)
        splits = {part.split: part.length or 0 if counted else 0 for part in parts}
        return self.make_survey(splits, self._sizes, counted=counted)

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields the entries of one split, or of all. Raises :class:`NotInSourceError` for an unknown split.

        - Map-style dataset: ``ref`` has the index, ``size_bytes`` is the mean of the probed samples.
        - Iterable: ``ref`` is the sample, ``size_bytes`` the size of its image. Raises :class:`SourceError` if the
          iterable has been read before.
        """
        return chain.from_iterable(map(self._part_entries, self._choose_parts(split)))

    def fetch(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Reads the samples of entries, in this process or by worker processes. Yields the entries in order, with the
        sample as ``ref``, or a :class:`FailedSample`. Yields entries that already have a sample unchanged. Raises
        :class:`SourceError` if a worker process ends too early."""
        for number, some in groupby(entries, self._part_number):
            part = self._parts[number]
            workers = self._worker_count(part)
            if workers < 2:
                yield from map(self._read_here, some)
                continue
            # The loader takes indices long before it yields their samples.
            listed, ahead = tee(some)
            reading = _DatasetReader([each.data for each in self._parts], self.schema, in_process=False)
            for taken in _read_by_workers(reading, (each.ref for each in ahead), workers, sum(self._sizes)):
                yield next(listed)._replace(ref=taken)

    def read(self, entry: Entry) -> Sample:
        """Reads the sample in this process, unless :meth:`fetch` has read it. Converts it as the base does."""
        return super().read(self._read_here(entry))

    def pick_entries(self, split: str | None, records: int, count: int) -> Iterator[Entry]:
        """Yields entries with probed samples, at most ``count`` of each split."""
        for part in self._choose_parts(split):
            for index, raw in islice(part.probes.items(), count):
                yield self.make_entry(part.split, index, self._reading.name_values(index, raw))

    def resume_key(self) -> str:
        """Returns the name of each split and the type of its dataset."""
        types = {part.split: type(part.data) for part in self._parts}
        return ", ".join(f"{split}: {made.__module__}.{made.__qualname__}" for split, made in types.items())

    def stamp(self) -> str:
        """Returns a digest of the probed samples. A path counts with size and time of its file, a bad sample with its
        error. A dataset with random samples or a random order has another digest in each process."""
        digest = xxhash.xxh3_128()
        for part in self._parts:
            for index, raw in part.probes.items():
                sample = self._reading.name_values(index, raw)
                try:
                    plain = self.schema.to_plain(sample).values if isinstance(sample, NamedSample) else sample.reason
                    described = json.dumps((index, getattr(sample, "key", None), plain), default=_describe_value)
                except (ValueError, TypeError, OSError, RecursionError) as error:  # reported when it is read
                    described = f"{index} {error}"
                digest.update(described.encode("utf-8", "surrogatepass"))
        return f"samples {digest.hexdigest()}"

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """Results of :meth:`mean_sizes` for at most 16 probed samples of each split."""
        return self.mean_sizes(entry.ref for entry in self.pick_entries(None, 0, PROBED))

    def _choose_parts(self, split: str | None) -> list[_SplitData]:
        """Returns the data of one split, or of all."""
        chosen = [part for part in self._parts if split in (None, part.split)]
        if not chosen:
            raise self.unknown_split_error(split or "", [part.split for part in self._parts])
        return chosen

    def _part_entries(self, part: _SplitData) -> Iterator[Entry]:
        """Yields the entries of one split, see :meth:`entries`."""
        number, split = self._parts.index(part), part.split
        if part.length is not None:
            size = self._sizes[0]
            key_at = getattr(part.data, "key_at", lambda index: index_key(split, index))
            return (Entry(key_at(i), split, (), size, (number, i)) for i in range(part.length))
        # An iterable can be read once only.
        samples, part.rest = chain(part.probes.values(), part.rest), _raise_used_up(self.path)
        return (
            self.make_entry(split, index, self._reading.name_values(index, raw)) for index, raw in zip(count(), samples)
        )

    def _part_number(self, entry: Entry) -> int:
        """Returns the number of the dataset that an entry comes from."""
        if isinstance(entry.ref, (NamedSample, FailedSample)):
            return next(number for number, part in enumerate(self._parts) if part.split == entry.split)
        return int(entry.ref[0])

    def _worker_count(self, part: _SplitData) -> int:
        """Returns the number of worker processes for a split; 0 or 1 means this process."""
        if part.length is None or part.in_memory:
            return 0
        # Starting workers takes longer than reading a few samples.
        default = default_workers() if part.length >= _BY_WORKERS else 0
        return default if self._workers is None else self._workers

    def _read_here(self, entry: Entry) -> Entry:
        """Returns the entry with its sample as ``ref``; reads the sample in this process unless it is read."""
        has_sample = isinstance(entry.ref, (NamedSample, FailedSample))
        return entry if has_sample else entry._replace(ref=self._reading[entry.ref])

    def _read_probes(self) -> list[Any]:
        """Reads samples of each split, keeps them as probes, and returns them."""
        for part in self._parts:
            if part.length is None:
                part.probes = dict(enumerate(islice(part.rest, PROBED)))
            if part.split and not (part.probes if part.length is None else part.length):
                raise SourceError(f"split {printable(part.split)!r} has no samples: leave it out")
            # The first samples are often of one class, so some at equal distances are read as well.
            spread = {round(i * (part.length - 1) / PROBED) for i in range(PROBED + 1)} if part.length else set()
            for index in sorted({*range(min(part.length or 0, PROBED)), *spread}):
                try:
                    part.probes[index] = part.data[index]
                # Errors of an iterable are not caught: it cannot go on after one.
                except Exception as error:
                    if not self.options.skip_bad:
                        reason = f"sample {index}: {type(error).__name__}: {error}"
                        raise SampleError(index_key(part.split, index), reason) from error
        samples = [raw for part in self._parts for raw in part.probes.values()]
        if not samples:
            raise SourceError(f"{printable(str(self.path))} has no samples, so there is nothing to pack")
        return samples


class StreamSource(SampleSource):
    """Samples that a program adds one by one. The constructor takes the first 16. Samples can be listed only once."""

    def __init__(self, path: Path, options: SourceOptions, schema: Schema, entries: Iterator[Entry]) -> None:
        """
        Args:
            path: Name of the source in messages.
            options: Options of the source.
            schema: Converts samples to records.
            entries: The samples as :class:`NamedSample` in ``Entry.ref``; splits follow each other.
        """
        super().__init__(path, options)
        self.schema = schema
        self._first = list(islice(entries, PROBED))
        self._entries = chain(self._first, entries)

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Estimates sizes by the first samples; ignores ``split``. The survey names only the first sample's split. Its
        samples are not counted: their number is 0.

        Raises :class:`SourceError` if there is no sample."""
        if not self._first:
            raise SourceError(f"{printable(str(self.path))} has no samples, so there is nothing to pack")
        sizes = self.mean_sizes(entry.ref for entry in self._first)
        return self.make_survey({self._first[0].split: 0}, sizes, counted=False)

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields the samples of all splits; ignores ``split``. The iterator of a second call raises
        :class:`SourceError`."""
        iterator, self._entries = self._entries, chain(_raise_used_up(self.path))
        return iterator

    def pick_entries(self, split: str | None, records: int, count: int) -> Iterator[Entry]:
        """Yields the first samples of any split, at most 16."""
        return islice(self._first, count)


def _examine_dataset(split: str, data: Any) -> _SplitData:
    """Examines the dataset of a split: its length, and if it is map-style or iterable."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(data, torch_data.DataLoader):
        raise UsageError("a DataLoader gives batches; give its dataset, and workers= here")
    streams = torch_data is not None and isinstance(data, torch_data.IterableDataset)
    if not streams and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        in_memory = isinstance(data, Sequence)
        return _SplitData(split, data, len(data), in_memory, iter(()), {})
    if isinstance(data, Iterable):
        return _SplitData(split, data, None, in_memory=False, rest=iter(data), probes={})
    raise UsageError(
        f"{type(data).__name__} is not a dataset; give a path, a Dataset, a list of samples, an iterable of them, or a "
        "dict of these by split"
    )


def _find_class_names(splits: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the ``classes`` that the datasets have in common; None if no dataset has them."""
    found: dict[tuple[str, ...], str] = {}
    for split, data in splits.items():
        # A ``Subset`` has the classes of its dataset.
        while is_subset(data):
            data = data.dataset
        classes = getattr(data, "classes", None)
        if isinstance(classes, (list, tuple)) and classes:
            # torchvision's ImageNet has several names for a class.
            names = [", ".join(c) if isinstance(c, (list, tuple)) else str(c) for c in classes]
            found.setdefault(number_equal_names(names), split)
    if len(found) > 1:
        shown = "; ".join(f"{printable(split)}: {', '.join(names[:5])}, …" for names, split in found.items())
        raise UsageError(f"the splits have different classes ({shown}); give fields= with packstore.Label(classes)")
    return next(iter(found), None)


def _raise_used_up(path: Path) -> Iterator[Any]:
    """Makes an iterator that raises :class:`SourceError` in place of its first item."""
    raise SourceError(f"{printable(str(path))} is an iterable, which can be read only once")
    yield


def _describe_value(value: Any) -> Any:
    """Returns JSON that identifies a plain value: digests of bytes and arrays, size and time of a file."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, xxhash.xxh3_128_hexdigest(value.tobytes())]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return xxhash.xxh3_128_hexdigest(bytes(value))  # a view may have gaps
    if is_path(value):
        status = Path(value).stat()
        return [str(value), status.st_size, status.st_mtime_ns]
    return repr(value)


def _read_by_workers(
    reading: _DatasetReader, refs: Iterable[Ref], workers: int, nbytes: int
) -> Iterator[NamedSample | FailedSample]:
    """Yields the samples ``refs`` in order, read by ``workers`` processes."""
    from torch import Generator
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        cast("Dataset[Any]", reading),
        # ``nbytes`` is the mean size of a sample. A worker sends several small ones together.
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
