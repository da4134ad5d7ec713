"""Reads ArrayRecord files of ``tf.train.Example``, without a description of their features."""

from __future__ import annotations

from packstore.sources.base import Kind
from packstore.sources.records.arrayrecord_files import SUFFIXES, ArrayRecordFiles, is_riegeli
from packstore.sources.records.shards import recognise_shards
from packstore.sources.records.tfrecord import TfrecordSource


class ArrayRecordSource(TfrecordSource):
    """Source of ArrayRecord files: one file, or all in a folder. Columns and refusals are those of
    :class:`TfrecordSource`."""

    kind = "arrayrecord"
    format_name = "ArrayRecord"
    suffixes = SUFFIXES
    is_shard = staticmethod(is_riegeli)
    record_files = ArrayRecordFiles


KIND = Kind(
    "arrayrecord",
    "ArrayRecord files of tf.train.Example",
    lambda path, _: recognise_shards(path, SUFFIXES, is_riegeli),
    ArrayRecordSource,
)
