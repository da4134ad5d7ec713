"""Converts ``features.json`` of TensorFlow Datasets to columns.

It has the messages of ``tensorflow_datasets/core/proto/feature.proto``, version 4.9, as JSON. The Python classes
that it names are neither imported nor needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packstore.core.errors import printable
from packstore.sources.columns import make_column_name
from packstore.sources.records.examples import KEYS
from packstore.sources.records.shards import read_class_names

FEATURES = "features.json"
_MAX_COLUMNS, _MAX_DEPTH = 1000, 16
_KNOWN = ("image", "tensor", "classLabel", "boundingBox", "text")
_DTYPES = frozenset(
    ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64")
)


@dataclass(frozen=True)
class Leaf:
    """Feature in ``features.json`` that is no group of others, and so may be a column.

    Attributes:
        feature: Name in an example.
        what: Type in ``features.json``: ``image``, ``tensor``, ``classLabel`` …
        said: Description in ``features.json``.
        shape: Shape of one value; -1 for any size.
        lengths: Lengths of the sequences that contain it, outermost first; -1 for any length.
        classes: Names of its classes; None if there are none.
    """

    feature: str
    what: str
    said: Mapping[str, Any]
    shape: tuple[int, ...]
    lengths: tuple[int, ...] = ()
    classes: tuple[str, ...] | None = None

    @property
    def dtype(self) -> str:
        """Name of its dtype; ``""`` if it has none."""
        return str(self.said.get("dtype", ""))

    @property
    def byte_encoding(self) -> str:
        """Encoding of a tensor that is packed into bytes: ``bytes`` or ``zlib``; ``""`` for a list of numbers."""
        encoding = str(self.said.get("encoding", "none")).lower()
        return "" if encoding in ("", "none") else encoding


@dataclass
class FeatureColumns:
    """Columns that ``features.json`` describes.

    Attributes:
        leaves: Feature of each column.
        ignored: Number of features that no column can hold, by reason.
        parallel: Name of the column of boxes, by the name of the column with the labels of these boxes.
    """

    leaves: dict[str, Leaf] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    parallel: dict[str, str] = field(default_factory=dict)


def is_mask_leaf(leaf: Leaf) -> bool:
    """Tells if a feature is a mask: a PNG of one channel. Its name has ``mask`` or ``segmentation``, or its description
    has labels."""
    named = "mask" in leaf.feature or "segmentation" in leaf.feature or "label" in leaf.said
    return leaf.what == "image" and leaf.shape[-1:] == (1,) and leaf.said.get("encodingFormat") == "png" and named


def is_pixel_tensor(leaf: Leaf) -> bool:
    """Tells if a feature may be the pixels of an image: a uint8 tensor ``(H, W, 1 or 3)``."""
    return leaf.what == "tensor" and leaf.dtype == "uint8" and len(leaf.shape) == 3 and leaf.shape[2] in (1, 3)


def read_feature_columns(features: Mapping[str, Any], folder: Path) -> FeatureColumns:
    """Converts ``features.json`` to columns. The first image that is no mask becomes ``image``, unless there is such a
    column. Reads names of classes from files in ``folder``. Counts features that no column can hold. The only sequence
    of boxes becomes ``boxes``, and the only class label beside it ``labels``.

    Raises :class:`ValueError` if there are no images, more than 1,000 columns, or two columns with one name. Raises
    other errors for invalid content.
    """
    columns = FeatureColumns()
    for path, leaf in _walk_features(features, (), (), 0):
        feature, where = leaf.feature, "-".join(part.replace("/", ".") for part in path)
        if leaf.what == "classLabel":
            count = int(leaf.said.get("numClasses") or 0)
            leaf = replace(leaf, classes=read_class_names(folder / f"{where}.labels.txt", count, FEATURES))
        reason = _unsupported_reason(leaf)
        if reason:
            columns.ignored[f"features that are {reason}"] += 1
            continue
        name = make_column_name("_".join(path)) if feature not in KEYS else make_column_name(feature)
        if name in columns.leaves:
            raise ValueError(f"two features would be the column {name!r}")
        if len(columns.leaves) >= _MAX_COLUMNS:
            raise ValueError(f"it has more than {_MAX_COLUMNS:,} features")
        columns.leaves[name] = leaf
    _rename_boxes(columns)
    single = {name: leaf for name, leaf in columns.leaves.items() if leaf.what == "image" and not leaf.lengths}
    images = [name for name, leaf in single.items() if not is_mask_leaf(leaf)]
    images += [name for name, leaf in columns.leaves.items() if name == "image" and is_pixel_tensor(leaf)]
    if not images:
        raise ValueError(f"it has no images, but {', '.join(columns.leaves) or 'nothing'}")
    if "image" not in images:
        if "image" in columns.leaves:
            raise ValueError(f"its feature 'image' is none, and {images[0]!r} is")
        columns.leaves = {"image" if name == images[0] else name: leaf for name, leaf in columns.leaves.items()}
    return columns


def _rename_boxes(columns: FeatureColumns) -> None:
    """Renames the only sequence of boxes to ``boxes``, and the class label beside it to ``labels``. Several labels
    beside it keep their names. Renames none if another column has such a name. Records in ``columns`` which labels
    belong to which boxes."""
    boxes = [name for name, leaf in columns.leaves.items() if leaf.what == "boundingBox" and len(leaf.lengths) == 1]
    for box in boxes:
        beside = columns.leaves[box].feature.rpartition("/")[0]
        labels = [
            name
            for name, leaf in columns.leaves.items()
            if leaf.what == "classLabel" and len(leaf.lengths) == 1 and leaf.feature.rpartition("/")[0] == beside != ""
        ]
        names = {box: "boxes"} | ({labels[0]: "labels"} if len(labels) == 1 else {})
        if len(boxes) == 1 and not (set(names.values()) - set(names)) & columns.leaves.keys():
            columns.leaves = {names.get(name, name): leaf for name, leaf in columns.leaves.items()}
            columns.parallel.update({names.get(name, name): "boxes" for name in labels})
        else:
            columns.parallel.update(dict.fromkeys(labels, box))


def _walk_features(
    node: Mapping[str, Any], path: tuple[str, ...], lengths: tuple[int, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Yields path and description of each single feature within groups and sequences. Raises :class:`ValueError` for
    more than 16 levels."""
    if depth > _MAX_DEPTH:
        raise ValueError("its features are nested too deeply")
    if "featuresDict" in node:
        for name, child in node["featuresDict"].get("features", {}).items():
            yield from _walk_features(child, (*path, str(name)), lengths, depth + 1)
    elif "sequence" in node:
        length = int(node["sequence"].get("length", -1))
        yield from _walk_features(node["sequence"]["feature"], path, (*lengths, length), depth + 1)
    else:
        what = next((name for name in _KNOWN if name in node), "")
        what = what or next(
            (name for name in node if name not in ("pythonClassName", "description")), "of no known kind"
        )
        said = node.get(what, {})
        said = said if isinstance(said, dict) else {}
        shape = tuple(int(n) for n in said.get("shape", {}).get("dimensions", ()))
        yield path, Leaf("/".join(path), what, said, shape, lengths)


def _unsupported_reason(leaf: Leaf) -> str:
    """Returns the reason why no column can hold a feature; ``""`` if one can."""
    if leaf.what not in _KNOWN:
        return leaf.what
    if leaf.what == "image" and len(leaf.lengths) > 1:
        return "sequences of sequences of images"
    if leaf.what == "image" and leaf.dtype == "float32":
        return "images of float32"
    if leaf.what == "boundingBox" and len(leaf.lengths) > 1:
        return "sequences of sequences of boxes"
    if leaf.what == "tensor":
        if leaf.dtype not in _DTYPES and (leaf.dtype != "string" or leaf.byte_encoding):
            return f"tensors of {printable(leaf.dtype)}"
        if leaf.byte_encoding not in ("", "bytes", "zlib") or (leaf.byte_encoding and leaf.lengths):
            return "sequences of packed tensors"
    return ""
