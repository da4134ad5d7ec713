"""Computes mean and standard deviation of a source's images, for `--normalize auto`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import SampleError
from packstore.core.parallel import ordered_map
from packstore.core.progress import Progress, ProgressCallback
from packstore.images.encode.statistics import DatasetStatistics
from packstore.packing.batches import DECODE_BYTES, DECODE_RECORDS, group_entries
from packstore.packing.plan import Plan
from packstore.packing.probing import make_encoder
from packstore.sources.base import Entry


def with_statistics(plan: Plan, workers: int, progress: ProgressCallback) -> Plan:
    """Returns the plan with the mean and standard deviation of its images, if it asks for ``auto`` normalisation.

    Else returns the plan unchanged and reads nothing.
    """
    if not plan.auto_normalize:
        return plan
    normalization = _compute_statistics(plan, workers, progress).normalization()
    return replace(plan, encode=replace(plan.encode, normalization=normalization), auto_normalize=False)


def _compute_statistics(plan: Plan, workers: int, progress: ProgressCallback) -> DatasetStatistics:
    """Computes mean and standard deviation over the training split: the first whose name begins with ``train``.

    Takes all records if there is no such split. Reads every image, resized and cropped as it will be stored. Under
    ``on_error="skip"`` leaves out bad samples, else raises :class:`SampleError`. Reports progress.
    """
    names = list(plan.survey.splits)
    split = next((name for name in names if name.lower().startswith("train")), None)
    total = plan.survey.splits[split] if split else plan.survey.records
    mode = plan.encode.reading.pixels
    measured = "float32" if mode.dtype == "float32" else mode.dtype
    pixels = make_encoder(replace(plan.encode, encoding=measured, normalization=None), plan.survey, plan.shape)
    source, skip = plan.source, plan.options.on_error == "skip"

    def measure(batch: list[Entry]) -> tuple[int, int, DatasetStatistics]:
        statistics = DatasetStatistics(mode)
        for entry in batch:
            try:
                record, shape, *_ = pixels(entry.key, source.image(entry))
            except SampleError:
                if not skip:
                    raise
                continue  # it is counted and named when the conversion itself meets it
            values = np.frombuffer(record, NUMPY_DTYPE[measured])
            if shape is not None and measured == "float32":  # kept with the channels first
                height, width, channels = shape
                values = values.reshape(channels, height, width).transpose(1, 2, 0)
            statistics.update(values.reshape(shape or pixels.columns()[0].shape))
        return len(batch), sum(map(source.nbytes, batch)), statistics

    statistics = DatasetStatistics(mode)
    done = done_bytes = 0
    entries = source.fetch(source.entries(split or plan.options.split))
    pieces = group_entries(entries, DECODE_RECORDS, DECODE_BYTES, source.nbytes)
    for count, nbytes, part in ordered_map(measure, pieces, workers):
        statistics.merge(part)
        done, done_bytes = done + count, done_bytes + nbytes
        progress(Progress("statistics", done, total, done_bytes))
    return statistics
