"""Reads torchvision's image datasets as files with labels or masks, without decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class ImageFiles(Sequence[dict[str, Any]]):
    """Samples of a dataset of image files with labels or masks. A sample is a dict of key, path of the image, and label
    or path of the mask.

    The key is the path relative to the dataset's root. Applies the dataset's ``target_transform`` to labels, but not to
    masks.
    """

    def __init__(self, dataset: Any, images: Sequence[Any], others: Sequence[Any], name: str) -> None:
        """``others`` are the labels or masks, under ``name``; masks are paths."""
        self._root = Path(dataset.root)
        self._images = images
        self._others = others
        self._name = name
        self._target_transform = dataset.target_transform

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: Any) -> Any:
        path, other = Path(self._images[index]), self._others[index]
        if self._name == "mask":
            other = Path(other)
        elif self._target_transform is not None:
            other = self._target_transform(other)
        return {"key": self.key_at(index), "image": path, self._name: other}

    def key_at(self, index: int) -> str:
        """Returns the key of a sample: the image's path relative to the dataset's root. If the image is outside of the
        root, returns the sample's number with ten digits."""
        path = Path(self._images[index])
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else f"{index:010}"


class ImageFilesSubset(Sequence[dict[str, Any]]):
    """Subset of the samples of another sequence."""

    def __init__(self, files: ImageFiles | ImageFilesSubset, indices: Sequence[int]) -> None:
        self._files = files
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        return self._files[self._indices[index]]

    def key_at(self, index: int) -> str:
        """Returns the key of a sample as the other sequence makes it."""
        return self._files.key_at(self._indices[index])


class SplitImageFiles(Sequence[dict[str, Any]]):
    """Samples of another sequence, with the split before each key: splits may have files of equal names."""

    def __init__(self, files: ImageFiles | ImageFilesSubset, split: str) -> None:
        self._files = files
        self._split = split

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: Any) -> Any:
        return self._files[index] | {"key": self.key_at(index)}

    def key_at(self, index: int) -> str:
        """Returns the key of a sample, with the split before it."""
        return f"{self._split}/{self._files.key_at(index)}"


def find_image_files(dataset: Any) -> ImageFiles | ImageFilesSubset | None:
    """Returns the image files of a torchvision dataset, or of its ``Subset``.

    Returns None for other datasets, and for those that only their own code can read. Such a dataset transforms images,
    has its own loader or ``__getitem__``, or lists no files.
    """
    if type(dataset).__name__ == "Subset" and type(dataset).__module__.startswith("torch.utils.data"):
        files = find_image_files(dataset.dataset)
        return None if files is None else ImageFilesSubset(files, dataset.indices)
    made = getattr(type(dataset), "__getitem__", None), getattr(dataset, "loader", None)
    ours = all(str(getattr(each, "__module__", "torchvision.datasets")).startswith(_OURS) for each in made if each)
    # Of separate transforms, torchvision makes a joint one of this type.
    joint = type(getattr(dataset, "transforms", None)).__name__ not in ("NoneType", "StandardTransform")
    if not ours or joint or getattr(dataset, "transform", None) is not None or not hasattr(dataset, "root"):
        return None
    for name, images, others in _find_file_lists(dataset):
        if len(images) == len(others) == len(dataset) and len(images) and isinstance(images[0], str | Path):
            return ImageFiles(dataset, images, others, name)
    return None


_OURS = "torchvision.datasets"


def _find_file_lists(dataset: Any) -> Iterator[tuple[str, Sequence[Any], Sequence[Any]]]:
    """Yields pairs of lists of a dataset that may be images and their annotations. Yields ``label`` or ``mask``, and
    both lists."""
    attributes = vars(dataset)
    for name in ("samples", "_samples"):  # ImageFolder and the like; GTSRB, Imagenette, StanfordCars
        pairs = attributes.get(name)
        if isinstance(pairs, list) and pairs and isinstance(pairs[0], tuple) and isinstance(pairs[0][1], int):
            images, labels = zip(*pairs, strict=True)
            yield "label", images, labels
    labels = attributes.get("_labels")  # Food101, DTD, Flowers102, SUN397, FGVCAircraft
    if isinstance(labels, list) and labels and isinstance(labels[0], int):
        yield "label", attributes.get("_image_files") or (), labels
    if type(dataset).__name__ == "VOCSegmentation" and dataset.target_transform is None:
        yield "mask", dataset.images, dataset.masks
