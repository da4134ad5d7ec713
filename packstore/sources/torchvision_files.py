"""Datasets of torchvision that read image files: their files and labels, without decoding anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Files(Sequence[dict[str, Any]]):
    """The samples of an ``ImageFolder``, or of another dataset of paths and classes: key, path and label of each.

    The key is the path relative to the dataset's root.
    """

    def __init__(self, dataset: Any) -> None:
        self._samples: list[tuple[str, Any]] = dataset.samples
        self._root = Path(dataset.root)
        self._target_transform = dataset.target_transform

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        path, label = self._samples[index]
        if self._target_transform is not None:
            label = self._target_transform(label)
        found = Path(path)
        sample = {"image": found, "label": label}
        return sample | ({"key": found.relative_to(self._root)} if found.is_relative_to(self._root) else {})


class Chosen(Sequence[dict[str, Any]]):
    """Some of the samples of another sequence: a ``Subset``."""

    def __init__(self, files: Sequence[dict[str, Any]], indices: Sequence[int]) -> None:
        self._files = files
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        return self._files[self._indices[index]]


def files_of(dataset: Any) -> Sequence[dict[str, Any]] | None:
    """The files of a dataset of torchvision, or of a ``Subset`` of one; None where only the dataset itself knows its
    samples: it transforms its images, or has a loader or a ``__getitem__`` of its own."""
    if type(dataset).__name__ == "Subset" and type(dataset).__module__.startswith("torch.utils.data"):
        files = files_of(dataset.dataset)
        return None if files is None else Chosen(files, dataset.indices)
    samples = getattr(dataset, "samples", None)
    loader = getattr(dataset, "loader", None)
    ours = all(
        str(getattr(made, "__module__", "")).startswith("torchvision.datasets")
        for made in (getattr(type(dataset), "__getitem__", None), loader)
    )
    plain = getattr(dataset, "transform", None) is None and isinstance(samples, list)
    return Files(dataset) if ours and plain and hasattr(dataset, "root") else None
