"""Reads torchvision's image datasets as files with labels, without decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, eq=False)
class ImageFiles(Sequence[dict[str, Any]]):
    """Samples of a dataset of image files with labels. A sample is a dict of key, path of the image, and label.

    Attributes:
        root: Folder of the dataset, to which keys are relative.
        target_transform: Converts labels; None for no change.
        samples: Pairs of image and label.
        indices: Numbers of the samples in the dataset.
        prefix: Beginning of each key.
    """

    root: Path
    target_transform: Callable[[Any], Any] | None
    samples: Sequence[tuple[Any, Any]]
    indices: Sequence[int]
    prefix: str = ""

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        path, label = self.samples[self.indices[index]]
        label = label if self.target_transform is None else self.target_transform(label)
        return {"key": self.key_at(index), "image": Path(path), "label": label}

    def key_at(self, index: int) -> str:
        """Returns the key of a sample: the image's path relative to the dataset's root. If the image is outside of the
        root, its number in the dataset with ten digits."""
        number = self.indices[index]
        path = Path(self.samples[number][0])
        inside = path.is_relative_to(self.root)
        return self.prefix + (path.relative_to(self.root).as_posix() if inside else f"{number:010}")


def is_subset(dataset: Any) -> bool:
    """Tells if a dataset is torch's ``Subset`` of another one."""
    return type(dataset).__name__ == "Subset" and type(dataset).__module__.startswith("torch.utils.data")


def find_image_files(dataset: Any, prefix: str = "") -> ImageFiles | None:
    """Returns the image files of a torchvision dataset, or of its ``Subset``. ``prefix`` is the beginning of each key.

    Returns None for other datasets, and for those that only their own code can read. Such a dataset transforms images,
    has its own class or loader, or lists no files.
    """
    if is_subset(dataset):
        files = find_image_files(dataset.dataset, prefix)
        return files and replace(files, indices=[files.indices[index] for index in dataset.indices])
    made = type(dataset), getattr(dataset, "loader", type(dataset))
    ours = all(each.__module__.startswith("torchvision.datasets") for each in made)
    # Of separate transforms, torchvision makes a joint one of this type.
    joint = type(getattr(dataset, "transforms", None)).__name__ not in ("NoneType", "StandardTransform")
    if not ours or joint or getattr(dataset, "transform", None) is not None or not hasattr(dataset, "root"):
        return None
    if getattr(dataset, "_target_types", ["category"]) != ["category"]:  # OxfordIIITPet with masks
        return None
    attributes = vars(dataset)
    # ImageFolder and the like; GTSRB, Imagenette, StanfordCars; Places365.
    samples = next((attributes[name] for name in ("samples", "_samples", "imgs") if name in attributes), None)
    if samples is None:  # Food101, DTD, Flowers102, SUN397, FGVCAircraft; OxfordIIITPet
        images = attributes.get("_image_files") or attributes.get("_images") or ()
        samples = [*zip(images, attributes.get("_labels", ()), strict=False)]
    first = samples[0] if isinstance(samples, list) and samples and len(samples) == len(dataset) else (None, None)
    if not isinstance(first, tuple) or not isinstance(first[0], str | Path) or not isinstance(first[1], int):
        return None
    return ImageFiles(Path(dataset.root), dataset.target_transform, samples, range(len(samples)), prefix)
