"""The lists of `recipes.py` by torchvision, timm and albumentations, each in a DataLoader, and by DALI."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from recipes_dali import dali_loaders

from tests.makers.torchvision import import_torchvision

BATCH = 128
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def peers(folder: str, workers: int) -> dict[str, tuple[str, Any]]:
    """Loaders by name, each with the name of packstore's list that does the same; of the libraries that are installed.

    Args:
        folder: Images by class.
        workers: Processes of each DataLoader.
    """
    import_torchvision()
    from torchvision.datasets import ImageFolder

    def loader(transform: Callable[[Any], Any], **options: Any) -> Any:
        dataset = ImageFolder(folder, transform, **options)
        return torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, drop_last=True)

    found = {f"torchvision: {name}": (name, loader(chain)) for name, chain in torchvisions().items()}
    if _installed("timm"):
        from timm.data import create_transform

        policy: dict[str, Any] = {"auto_augment": "rand-m7-mstd0.5-inc1", "interpolation": "random", "re_prob": 0.0}
        found["timm: timm-rsb-a2"] = ("timm-rsb-a2", loader(create_transform(224, True, **policy)))
    if _installed("albumentations"):
        for name, chain in albumentations().items():
            found[f"albumentations: {name}"] = (name, loader(chain, loader=read_image))
    if _installed("nvidia.dali"):
        found |= dali_loaders(folder, workers)
    return found


def _installed(name: str) -> bool:
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    try:
        import_module(name)
    except ImportError as error:
        print(f"not measured: {name} ({error})", file=sys.stderr)
        return False
    return True


def torchvisions() -> dict[str, Callable[[Any], Any]]:
    """Of Pillow's images, as references/classification does it by default."""
    from torchvision.transforms import v2

    crop, tensor = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()], [v2.PILToTensor()]
    normalised = [*tensor, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    lists: dict[str, list[Any]] = {
        "crop and flip": [*crop, *tensor],
        "crop and flip, normalised": [*crop, *normalised],
        "ColorJitter(.4, .4, .4)": [*crop, v2.ColorJitter(0.4, 0.4, 0.4), *tensor],
        "RandAugment(2, 9)": [*crop, v2.RandAugment(2, 9), *tensor],
        "TrivialAugmentWide": [*crop, v2.TrivialAugmentWide(), *tensor],
        "timm-rsb-a2": [*crop, v2.RandAugment(2, 7), *normalised],
    }
    return {name: v2.Compose(chain) for name, chain in lists.items()} | {"dinov2": DinoV2()}


class DinoV2:
    """The crops of facebookresearch/dinov2, data/augmentations.py: two of 224 and eight of 96 pixels."""

    def __init__(self) -> None:
        from torchvision.transforms import v2

        def crop(size: int, scale: tuple[float, float], blur: float, *more: Any) -> Any:
            sampled = v2.RandomResizedCrop(size, scale, interpolation=v2.InterpolationMode.BICUBIC)
            jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8)
            blurred = v2.RandomApply([v2.GaussianBlur(9, (0.1, 2.0))], blur)
            colour = [v2.RandomHorizontalFlip(), jitter, v2.RandomGrayscale(0.2), blurred, *more]
            tensor = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
            return v2.Compose([sampled, *colour, *tensor])

        large, small = (0.32, 1.0), (0.05, 0.32)
        self.crops = [crop(224, large, 1.0), crop(224, large, 0.1, v2.RandomSolarize(128, 0.2))]
        self.crops += [crop(96, small, 0.5)] * 8

    def __call__(self, image: Any) -> list[Any]:
        return [crop(image) for crop in self.crops]


def albumentations() -> dict[str, Callable[[Any], Any]]:
    """Of arrays; it knows of no RandAugment of torchvision's."""
    import albumentations as al

    crop = [al.RandomResizedCrop(size=(224, 224)), al.HorizontalFlip()]
    jitter = al.ColorJitter(brightness=(0.6, 1.4), contrast=(0.6, 1.4), saturation=(0.6, 1.4), hue=(0, 0), p=1)
    hue = al.ColorJitter(brightness=(0.6, 1.4), contrast=(0.6, 1.4), saturation=(0.6, 1.4), hue=(-0.1, 0.1), p=1)
    lists = {
        "crop and flip": crop,
        "crop and flip, normalised": [*crop, al.Normalize(MEAN, STD)],
        "ColorJitter(.4, .4, .4)": [*crop, jitter],
        "ColorJitter with hue": [*crop, hue],
        "GaussianBlur(23)": [*crop, al.GaussianBlur(blur_limit=(23, 23), p=1)],
    }
    return {name: Albumentations(al.Compose(chain)) for name, chain in lists.items()}


class Albumentations:
    """A list of albumentations for arrays ``(H, W, 3)``; gives tensors ``(3, h, w)``."""

    def __init__(self, chain: Any) -> None:
        self.chain = chain

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(self.chain(image=image)["image"].transpose(2, 0, 1).copy())


def read_image(path: str) -> Any:
    """An image by OpenCV, as its users read it: RGB ``(H, W, 3)``."""
    import cv2

    cv2.setNumThreads(0)
    return cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)
