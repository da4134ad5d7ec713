"""Reads TensorFlow Datasets: folders of TFRecord with ``dataset_info.json`` and ``features.json``
(https://www.tensorflow.org/datasets/external_tfrecord). Also reads exports of packstore in this format.

Features become examples as in ``tensorflow_datasets/core/example_serializer.py``, version 4.9. ``features.json`` has
the messages of ``tensorflow_datasets/core/proto/feature.proto`` as JSON. The Python classes that it names are neither
imported nor needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.columns import choose_main_image, name_columns
from packstore.sources.exported import ExportedRows, open_with
from packstore.sources.records import Record, RecordFiles, RecordIndex, find_named_file, read_index, refuse_damage
from packstore.sources.records.examples import Example, ExampleSource, FeatureColumn, decode_stored
from packstore.sources.records.facts import Numbering, read_class_names
from packstore.sources.records.tfrecord import ArrayRecordFiles
from packstore.sources.records.typed import NUMBERS

INFO, FEATURES = "dataset_info.json", "features.json"
_MAX_COLUMNS = 1000
# Path, description and lengths of the sequences of a feature within groups and sequences.
_Feature = tuple[tuple[str, ...], Mapping[str, Any], tuple[int, ...]]


class TfdsSource(ExampleSource):
    """Source of one version of a TensorFlow Datasets data set, in TFRecord or ArrayRecord files. Opening raises
    :class:`SourceError` for a missing shard, another format of files, and invalid JSON. A shard with another number of
    records than ``dataset_info.json`` says adds a bad sample."""

    kind = "tfds"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        features = read_index(self._folder / FEATURES)
        with refuse_damage(self._folder / FEATURES):
            self._described, self._left = _read_columns(features, self._folder)
        self.label_names = {each.feature: () for each in self._described.values() if each.kind == "class"}

    def list_shards(self) -> list[tuple[str, Path]]:
        """Lists split and path of each shard that ``dataset_info.json`` names. Raises :class:`SourceError` for a
        missing shard or invalid content."""
        folder = self._folder = _find_version(self.path)
        info = read_index(folder / INFO)
        self._format, self._counts = str(info.get("fileFormat", "tfrecord")), list[int]()
        shards: list[tuple[str, Path]] = []
        with refuse_damage(folder / INFO):
            for split in info.get("splits", ()):
                name, counts = str(split["name"]), [int(count) for count in split.get("shardLengths", ())]
                template = str(split.get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}")
                known = {"DATASET": info["name"], "SPLIT": name, "FILEFORMAT": self._format}
                for number in (f"{i:05}" for i in range(len(counts))):
                    known |= {"SHARD_INDEX": number, "SHARD_X_OF_Y": f"{number}-of-{len(counts):05}"}
                    shards.append((name, find_named_file(folder, template.format(**known))))
                self._counts += counts
        return shards

    def open_files(self, paths: Sequence[Path]) -> RecordFiles:
        """Returns a reader of TFRecord or ArrayRecord files."""
        return super().open_files(paths) if self._format == "tfrecord" else ArrayRecordFiles(paths)

    def files(self) -> Iterator[Path]:
        """Yields the shards, the two JSON files that describe them, and the files of class names."""
        yield from super().files()
        yield from (self._folder / INFO, self._folder / FEATURES, *sorted(self._folder.glob("*.labels.txt")))

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the features that no column holds: those of other types, and sequences of sequences."""
        return {"features of types that no column can hold": self._left} if self._left else {}

    def index_file(self, number: int) -> RecordIndex:
        """Indexes a shard. If it has more or fewer records than ``dataset_info.json`` says, keeps the records, and
        records damage at byte 0."""
        index = super().index_file(number)
        found, expected = len(index.keys), self._counts[number]
        if index.damaged is None and found != expected:
            index.damaged = Record(0, -1, fault=f"it has {found} records, and {INFO} says {expected}")
        return index

    @cached_property
    def example_columns(self) -> Mapping[str, FeatureColumn]:
        """Column of each feature, by name, without the text feature that has the keys. Columns are optional if an
        example lacks the feature, or has the label -1."""
        columns = {}
        for name, column in self._described.items():
            facts, labels = self.facts.features.get(column.feature), self.facts.labels.get(column.feature, {})
            if column.kind != "text" or column.feature != self.key_feature:
                some = facts is None or facts.missing or -1 in labels
                columns[name] = replace(column, optional=some and name != "image")
        return columns


def _read_columns(features: Mapping[str, Any], folder: Path) -> tuple[dict[str, FeatureColumn], int]:
    """Converts ``features.json`` to columns by name, ``image`` first, and counts the features that no column holds."""
    if "featuresDict" not in features:
        raise ValueError("it is of an old version of TensorFlow Datasets: write it again with 4.7 or later")
    # Names of classes are in files in ``folder``.
    made = [_make_column(folder, each) for each in _walk_features((), features, ())]
    columns = {column.feature: column for column in made if column is not None}
    if len(columns) > _MAX_COLUMNS:
        raise ValueError(f"it has more than {_MAX_COLUMNS:,} features")
    images = [name for name, each in columns.items() if each.kind in ("image", "pixels") and not each.repeated]
    names = name_columns(folder, columns, choose_main_image(folder, images, columns))
    boxes = [name for name, each in columns.items() if each.kind == "box" and each.repeated]
    if len(boxes) == 1 and "/" in boxes[0]:  # the objects of an image: a sequence of boxes and what belongs to each
        group = boxes[0].rpartition("/")[0]
        labels = [name for name, each in columns.items() if each.kind == "class" and name.rpartition("/")[0] == group]
        usual = {boxes[0]: "boxes"} | ({labels[0]: "labels"} if len(labels) == 1 else {})
        if {*usual.values()}.isdisjoint(names.values()):
            names |= usual
        columns |= {name: replace(columns[name], of=names[boxes[0]]) for name in labels}
    image_first = sorted(columns, key=lambda name: names[name] != "image")
    return {names[name]: columns[name] for name in image_first}, made.count(None)


def _walk_features(path: tuple[str, ...], node: Mapping[str, Any], lengths: tuple[int, ...]) -> Iterator[_Feature]:
    """Yields each single feature within groups and sequences."""
    if "featuresDict" in node:
        for name, child in node["featuresDict"].get("features", {}).items():
            yield from _walk_features((*path, str(name)), child, lengths)
    elif "sequence" in node:
        length = int(node["sequence"].get("length", -1))
        yield from _walk_features(path, node["sequence"]["feature"], (*lengths, length))
    else:
        yield path, node, lengths


def _make_column(folder: Path, feature: _Feature) -> FeatureColumn | None:
    """Makes the column of a feature; None for a feature that no column holds."""
    path, node, lengths = feature
    kind = next((name for name in ("image", "classLabel", "text", "boundingBox", "tensor") if name in node), "")
    if not kind or len(lengths) > 1:
        return None
    name, said, many = "/".join(path), node[kind], bool(lengths)
    dtype, shape = str(said.get("dtype", "")), tuple(int(n) for n in said.get("shape", {}).get("dimensions", ()))
    if kind == "classLabel":
        file = folder / f"{'-'.join(part.replace('/', '.') for part in path)}.labels.txt"
        classes = read_class_names(file, int(said.get("numClasses") or 0), FEATURES)
        return FeatureColumn(name, "class", repeated=many, numbering=Numbering(classes=classes))
    if kind == "boundingBox":
        return FeatureColumn(name, "box", repeated=many, box_format=str(said.get("bboxFormat") or "REL_YXYX"))
    if kind == "text" or dtype == "string":
        return None if shape else FeatureColumn(name, "text", repeated=many)
    if kind == "image":
        # A mask is a PNG of one channel, with such a name or with labels in its description.
        named = "mask" in name or "segmentation" in name or "label" in said
        is_mask = shape[-1:] == (1,) and said.get("encodingFormat") == "png" and named and not many
        return None if dtype == "float32" else FeatureColumn(name, "mask" if is_mask else "image", repeated=many)
    encoding = str(said.get("encoding") or "none").lower()
    usable = encoding == "none" or (encoding == "bytes" and not many)
    if dtype not in ("bool", *NUMBERS) or not usable or (many and -1 in shape):
        return None
    pixels = name == "image" and dtype == "uint8" and len(shape) == 3 and shape[2] in (1, 3)
    return FeatureColumn(name, "pixels" if pixels else dtype, lengths + shape, packed=encoding == "bytes")


def _find_versions(path: Path) -> list[Path]:
    """Finds folders of versions: ``path`` itself, else all folders like ``1.0.0`` and ``config/1.0.0`` in it."""
    folders = (file.parent for depth in ("*", "*/*") for file in sorted(path.glob(f"{depth}/{FEATURES}")))
    versions = [each for each in folders if re.fullmatch(r"\d+\.\d+\.\d+", each.name)]
    versions = [path] if (path / INFO).is_file() else versions
    return [each for each in versions if (each / INFO).is_file() and (each / FEATURES).is_file()]


def _find_version(path: Path) -> Path:
    """Finds the only version at a path."""
    versions = _find_versions(path)
    if len(versions) > 1:
        raise AmbiguousSourceError(
            f"{printable(str(path))} holds several versions or configurations: give one of "
            f"{', '.join(printable(str(each)) for each in versions[:5])}",
            [Answer(source=each) for each in versions[:5]],
        )
    if not versions:
        raise SourceError(f"{printable(str(path))} holds no {INFO} and {FEATURES} of TensorFlow Datasets")
    return versions[0]


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Certain for versions of a dataset; opening asks which of several is meant."""
    return Certainty.CERTAIN if _find_versions(path) else Certainty.NO


class ExportedTfds(ExportedRows, ExampleSource):
    """Source of TFRecord shards that packstore exported; the feature ``key`` has the keys."""

    kind = "tfds"
    has_keys = True

    def read_key(self, example: Example) -> str:
        """Reads the key, which may be any bytes."""
        return example.only_bytes("key").decode("utf-8", "surrogateescape")

    def decode_example(self, example: Example) -> dict[str, Any]:
        """Decodes the image and the values of the exported columns; leaves out values that are missing. Raises
        :class:`ValueError` for a missing image, and for a value that does not fit its column."""
        image = self.export_manifest.manifest.image
        files = image.layout is None or self.export_manifest.image == "png"
        values = {"image": example.only_bytes("image") if files else decode_stored(image, example)}
        for column in (column for column in self.columns_at_rest if column.name in self.export_manifest.held):
            if not column.nullable or not example.count(column.valid_name) or example.numbers(column.valid_name).any():
                values[column.name] = decode_stored(column, example)
        return values


KIND = Kind("tfds", "a folder of TensorFlow Datasets", _recognise, open_with(TfdsSource, ExportedTfds))
