"""Augmentations in torchvision's words: the public names of :mod:`packstore.training.augment`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from packstore.core.errors import WITHOUT_TORCH as _WITHOUT_TORCH
from packstore.training import augment as _augment
from packstore.training.augment import __all__ as __all__

if _TYPE_CHECKING:
    from packstore.training.augment import *  # noqa: F403

_LIKE = "PerImage(function) and Albumentations(pipeline) run it"
_ELSEWHERE = {
    **dict.fromkeys(("ToTensor", "ToTensorV2", "PILToTensor", "ToImage"), "leave it out, batches are tensors"),
    **dict.fromkeys(("ToDtype", "ConvertImageDtype"), "PackedLoader has dtype="),
    "Normalize": "PackedLoader has normalize=",
    "HorizontalFlip": "it is RandomHorizontalFlip",
    "VerticalFlip": "it is RandomVerticalFlip",
    "OneOf": "it is RandomChoice",
    "Sequential": "it is Compose",
    "Lambda": "it is PerImage",
    "ToGray": "it is RandomGrayscale",
    "CoarseDropout": "it is RandomErasing",
    "Mixup": "it is MixUp",
    **dict.fromkeys(("RandomRotate90", "Rotate", "ElasticTransform", "ShiftScaleRotate", "Affine"), _LIKE),
}
"""What stands here for names of torchvision, timm and albumentations."""


if not _TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports a name on first use. Raises :class:`AttributeError` with advice for names of other libraries, and
        :class:`ModuleNotFoundError` with advice without torch."""
        if name in __all__:
            try:
                return getattr(_augment, name)
            except ModuleNotFoundError as error:
                if error.name != "torch":
                    raise
                raise ModuleNotFoundError(f"packstore.augment {_WITHOUT_TORCH}", name="torch") from None
        advice = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"module 'packstore.augment' has no attribute {name!r}{advice}")

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
