"""Reads torchvision's image datasets as files with labels or masks, without decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_OURS = "torchvision.datasets"


@dataclass(frozen=True, eq=False)
class ImageFiles(Sequence[dict[str, Any]]):
    """Samples of a dataset of image files with labels or masks. A sample is a dict of key, path of the image, and label
    or path of the mask.

    The key is the path relative to the dataset's root. Applies the dataset's ``target_transform`` to labels, but not to
    masks.

    Attributes:
        root: Folder of the dataset.
        target_transform: Converts labels; None for no change.
        images: Paths of all its images.
        others: Their labels or masks.
        name: ``label`` or ``mask``.
        indices: Numbers of the samples in the dataset.
        prefix: Beginning of each key.
    """

    root: Path
    target_transform: Callable[[Any], Any] | None
    images: Sequence[Any]
    others: Sequence[Any]
    name: str
    indices: Sequence[int]
    prefix: str = ""

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        path, other = Path(self.images[self.indices[index]]), self.others[self.indices[index]]
        if self.name == "mask":
            other = Path(other)
        elif self.target_transform is not None:
            other = self.target_transform(other)
        return {"key": self.key_at(index), "image": path, self.name: other}

    def key_at(self, index: int) -> str:
        """Returns the key of a sample: the image's path relative to the dataset's root. If the image is outside of the
        root, its number in the dataset with ten digits."""
        number = self.indices[index]
        path = Path(self.images[number])
        inside = path.is_relative_to(self.root)
        return self.prefix + (path.relative_to(self.root).as_posix() if inside else f"{number:010}")


def find_image_files(dataset: Any, prefix: str = "") -> ImageFiles | None:
    """Returns the image files of a torchvision dataset, or of its ``Subset``. ``prefix`` is the beginning of each key.

    Returns None for other datasets, and for those that only their own code can read. Such a dataset transforms images,
    has its own loader or ``__getitem__``, or lists no files.
    """
    if type(dataset).__name__ == "Subset" and type(dataset).__module__.startswith("torch.utils.data"):
        files = find_image_files(dataset.dataset, prefix)
        return files and replace(files, indices=[files.indices[index] for index in dataset.indices])
    made = getattr(type(dataset), "__getitem__", None), getattr(dataset, "loader", None)
    ours = all(str(getattr(each, "__module__", "torchvision.datasets")).startswith(_OURS) for each in made if each)
    # Of separate transforms, torchvision makes a joint one of this type.
    joint = type(getattr(dataset, "transforms", None)).__name__ not in ("NoneType", "StandardTransform")
    if not ours or joint or getattr(dataset, "transform", None) is not None or not hasattr(dataset, "root"):
        return None
    for name, images, others in _find_file_lists(dataset):
        if len(images) == len(others) == len(dataset) and len(images) and isinstance(images[0], str | Path):
            root, transform = Path(dataset.root), dataset.target_transform
            return ImageFiles(root, transform, images, others, name, range(len(images)), prefix)
    return None


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
