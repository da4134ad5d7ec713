"""ArrayRecord files of ``tf.train.Example``, without a description of what they hold."""

from __future__ import annotations

from pathlib import Path

from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.records.arrayrecord_files import SUFFIXES, ArrayRecordFiles, is_riegeli
from packstore.sources.records.files import first_shards, holds_images
from packstore.sources.records.tfrecord import TfrecordSource


class ArrayRecordSource(TfrecordSource):
    """ArrayRecord files in a folder, or one file."""

    kind = "arrayrecord"
    what = "ArrayRecord"
    suffixes = SUFFIXES
    is_shard = staticmethod(is_riegeli)
    record_files = ArrayRecordFiles


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    if path.is_dir() and holds_images(path):
        return Certainty.NO
    files = [path] if path.is_file() else first_shards(path, SUFFIXES)
    return Certainty.CERTAIN if any(map(is_riegeli, files)) else Certainty.NO


KIND = Kind("arrayrecord", "ArrayRecord files of tf.train.Example", _recognise, ArrayRecordSource)
