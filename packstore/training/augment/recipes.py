"""Recipes by name: the augmentations of papers and reference code, as plain lists that users can change."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Never

from packstore.core.errors import UsageError
from packstore.training.arguments import unknown_operation_argument
from packstore.training.augment.base import Step
from packstore.training.augment.colour import (
    ColorJitter,
    GaussianBlur,
    RandomGrayscale,
    RandomPhotometricDistort,
    RandomSolarize,
)
from packstore.training.augment.erasing import RandomErasing
from packstore.training.augment.geometry import RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from packstore.training.augment.logic import Compose, RandomApply, RandomChoice
from packstore.training.augment.mixing import BatchMixer, CutMix, MixUp
from packstore.training.augment.policies import RandAugment, ThreeAugment, TrivialAugmentWide
from packstore.training.augment.policy_tables import make_timm_augment
from packstore.training.augment.sizes import (
    RandomIoUCrop,
    RandomResize,
    RandomShortestSize,
    RandomSizeCrop,
    RandomZoomOut,
)

IMAGENET_MEAN = (124, 116, 104)
"""Mean of ImageNet in bytes; it becomes 0 by normalisation."""


@dataclass(frozen=True)
class _RecipeDefinition:
    """Definition of a recipe, whose operations are created on demand.

    Attributes:
        make: Makes the list of operations, or a dict of views.
        source: Publication or code of the recipe.
        mix: Makes the value of ``mix=``; None if the recipe mixes nothing.
        normalize: Value of ``normalize=``.
    """

    make: Callable[[], Any]
    source: str
    mix: Callable[[], BatchMixer] | None = None
    normalize: str = "imagenet"


class Recipe(list[Any]):
    """Operations of a recipe as a list. Its ``repr`` is the code that makes the list, or the dict of views.

    Attributes:
        name: Name of the recipe.
        source: Publication or code of the recipe.
        mix: Value of a loader's ``mix=``; None if the recipe mixes nothing.
        views: Value of ``views=``; None for a single view. A recipe of views has an empty list.
        normalize: Value of ``normalize=``.
    """

    def __init__(self, name: str, operations: Any, source: str, mix: BatchMixer | None, normalize: str) -> None:
        several = isinstance(operations, dict)
        super().__init__([] if several else operations)
        self.name = name
        self.source = source
        self.mix = mix
        self.views: dict[str, tuple[int, list[Step]]] | None = operations if several else None
        self.normalize = normalize

    def __repr__(self) -> str:
        if self.views is None:
            return f"[{_format_operations(self, '    ')}\n]"
        views = "".join(
            f"\n    {name!r}: ({n}, [{_format_operations(ops, ' ' * 8)}\n    ]),"
            for name, (n, ops) in self.views.items()
        )
        return f"{{{views}\n}}"


def _format_operations(operations: Any, indent: str) -> str:
    """Formats each operation on a line of its own, with ``indent`` before it."""
    return "".join(f"\n{indent}{operation!r}," for operation in operations)


def _define_timm_rsb(size: int, policy: str, mixup: float, smoothing: float) -> _RecipeDefinition:
    """Defines a recipe of "ResNet strikes back"."""
    return _RecipeDefinition(
        lambda: [RandomResizedCrop(size, interpolation="random"), RandomHorizontalFlip(), make_timm_augment(policy)],
        "Wightman, Touvron, Jégou, 'ResNet strikes back' (2021), table 2; timm 1.0, data/transforms_factory.py",
        lambda: BatchMixer([MixUp(mixup), CutMix(1.0)], label_smoothing=smoothing),
    )


def _make_self_supervised_view(
    crop: RandomResizedCrop, jitter: tuple[float, float, float, float], kernel: int, blur: float, solarize: float = 0.0
) -> list[Step]:
    """Creates the operations of a self-supervised view; ``blur`` and ``solarize`` are probabilities."""
    operations: list[Step] = [
        crop,
        RandomHorizontalFlip(),
        RandomApply([ColorJitter(*jitter)], p=0.8),
        RandomGrayscale(0.2),
        RandomApply([GaussianBlur(kernel, (0.1, 2.0))], p=blur),
    ]
    return [*operations, RandomSolarize(128, p=solarize)] if solarize else operations


_DETR = tuple(range(480, 801, 32))
"""Lengths of the shorter side."""

_JITTER = (0.4, 0.4, 0.2, 0.1)


def _make_dino_views(large: float, kernel: int) -> dict[str, tuple[int, list[Step]]]:
    """Creates the views of DINO: two large crops and eight small ones."""
    # A large crop shows at least the share ``large`` of the area, a small one at most.
    whole = RandomResizedCrop(224, scale=(large, 1.0), interpolation="bicubic")
    part = RandomResizedCrop(96, scale=(0.05, large), interpolation="bicubic")
    return {
        "global1": (1, _make_self_supervised_view(whole, _JITTER, kernel, 1.0)),
        "global2": (1, _make_self_supervised_view(whole, _JITTER, kernel, 0.1, 0.2)),
        "local": (8, _make_self_supervised_view(part, _JITTER, kernel, 0.5)),
    }


def _make_byol_views(interpolation: str) -> dict[str, tuple[int, list[Step]]]:
    """Creates the two views of BYOL, which differ in their probabilities of blur and solarisation."""
    crop = RandomResizedCrop(224, interpolation=interpolation)
    return {
        "first": (1, _make_self_supervised_view(crop, _JITTER, 23, 1.0)),
        "second": (1, _make_self_supervised_view(crop, _JITTER, 23, 0.1, 0.2)),
    }


_RECIPES = {
    "torchvision-resnet50-v2": _RecipeDefinition(
        lambda: [
            RandomResizedCrop(176),
            RandomHorizontalFlip(),
            TrivialAugmentWide(interpolation="bilinear"),
            RandomErasing(0.1, value=IMAGENET_MEAN),
        ],
        "Vryniotis, 'How to train state-of-the-art models using TorchVision's latest primitives' (2021); "
        "pytorch/vision, references/classification/presets.py",
        lambda: BatchMixer([MixUp(0.2), CutMix(1.0)], label_smoothing=0.1),
    ),
    "timm-rsb-a1": _define_timm_rsb(224, "rand-m7-mstd0.5-inc1", 0.2, 0.1),
    "timm-rsb-a2": _define_timm_rsb(224, "rand-m7-mstd0.5-inc1", 0.1, 0.0),
    "timm-rsb-a3": _define_timm_rsb(160, "rand-m6-mstd0.5-inc1", 0.1, 0.0),
    "deit3": _RecipeDefinition(
        lambda: [
            RandomResizedCrop(224, scale=(0.08, 1.0), interpolation="bicubic"),
            RandomHorizontalFlip(),
            ThreeAugment(),
            ColorJitter(0.3, 0.3, 0.3),
        ],
        "Touvron, Cord, Jégou, 'DeiT III: Revenge of the ViT' (2022); facebookresearch/deit, augment.py and "
        "README_revenge.md",
        lambda: BatchMixer([MixUp(0.8), CutMix(1.0)]),
    ),
    "mae-pretrain": _RecipeDefinition(
        lambda: [RandomResizedCrop(224, scale=(0.2, 1.0), interpolation="bicubic"), RandomHorizontalFlip()],
        "He et al., 'Masked autoencoders are scalable vision learners' (2021); facebookresearch/mae, main_pretrain.py",
    ),
    "mae-finetune": _RecipeDefinition(
        lambda: [
            RandomResizedCrop(224, interpolation="bicubic"),
            RandomHorizontalFlip(),
            make_timm_augment("rand-m9-mstd0.5-inc1", interpolation="bicubic"),
            RandomErasing(0.25, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value="random"),
        ],
        "He et al. (2021), table 9; facebookresearch/mae, main_finetune.py and util/datasets.py",
        lambda: BatchMixer([MixUp(0.8), CutMix(1.0)], label_smoothing=0.1),
    ),
    "dino": _RecipeDefinition(
        lambda: _make_dino_views(0.4, 15),
        "Caron et al., 'Emerging properties in self-supervised vision transformers' (2021); facebookresearch/dino, "
        "main_dino.py, DataAugmentationDINO",
    ),
    "dinov2": _RecipeDefinition(
        lambda: _make_dino_views(0.32, 9),
        "Oquab et al., 'DINOv2' (2023); facebookresearch/dinov2, data/augmentations.py, ssl_default_config.yaml",
    ),
    "simclr": _RecipeDefinition(
        lambda: {
            "views": (
                2,
                _make_self_supervised_view(
                    RandomResizedCrop(224, interpolation="bicubic"), (0.8, 0.8, 0.8, 0.2), 23, 0.5
                ),
            ),
        },
        "Chen et al., 'A simple framework for contrastive learning' (2020), appendix A; google-research/simclr, "
        "data_util.py",
        normalize="none",
    ),
    "byol": _RecipeDefinition(
        lambda: _make_byol_views("bicubic"),
        "Grill et al., 'Bootstrap your own latent' (2020), table 6; google-deepmind/deepmind-research, byol",
    ),
    "moco-v3": _RecipeDefinition(
        lambda: _make_byol_views("bilinear"),
        "Chen, Xie, He, 'An empirical study of training self-supervised vision transformers' (2021); "
        "facebookresearch/moco-v3, main_moco.py, with --crop-min .08",
    ),
    "open-clip": _RecipeDefinition(
        lambda: [RandomResizedCrop(224, scale=(0.9, 1.0), interpolation="bicubic")],
        "mlfoundations/open_clip, transform.py, image_transform",
        normalize="0.48145466,0.4578275,0.40821073/0.26862954,0.26130258,0.27577711",
    ),
    "segmentation-reference": _RecipeDefinition(
        lambda: [RandomResize(260, 1040), RandomHorizontalFlip(), RandomCrop(480, pad_if_needed=True)],
        "pytorch/vision, references/segmentation/presets.py, SegmentationPresetTrain, base_size 520, crop_size 480; "
        "masks with mask_fill=255",
    ),
    "ssd": _RecipeDefinition(
        lambda: [
            RandomPhotometricDistort(),
            RandomZoomOut(fill=(123, 117, 104)),
            RandomIoUCrop(),
            RandomHorizontalFlip(),
            Resize((300, 300)),
        ],
        "Liu et al., 'SSD: Single Shot MultiBox Detector' (2016); pytorch/vision, references/detection/presets.py, "
        "'ssd', and the resizing that SSD300 begins with; with columns=('image', 'boxes', ...)",
    ),
    "detr": _RecipeDefinition(
        lambda: [
            RandomHorizontalFlip(),
            RandomChoice(
                [
                    RandomShortestSize(_DETR, max_size=1333),
                    Compose(
                        [
                            RandomShortestSize((400, 500, 600)),
                            RandomSizeCrop(384, 600),
                            RandomShortestSize(_DETR, max_size=1333),
                        ]
                    ),
                ]
            ),
        ],
        "Carion et al., 'End-to-end object detection with transformers' (2020); facebookresearch/detr, "
        "datasets/coco.py; with collate={'image': 'padded'} or 'list'",
    ),
    "yolo-cls": _RecipeDefinition(
        lambda: [
            RandomResizedCrop(224, scale=(0.5, 1.0)),
            RandomHorizontalFlip(),
            RandAugment(interpolation="bilinear"),
            RandomErasing(0.4),
        ],
        "ultralytics, data/augment.py, classify_augmentations, with the defaults of cfg/default.yaml",
        normalize="none",
    ),
    "cifar-airbench": _RecipeDefinition(
        lambda: [
            RandomHorizontalFlip(alternating=True),
            RandomCrop(32, padding=4, padding_mode="reflect"),
            RandomErasing(1.0, scale=(144 / 1024, 144 / 1024), ratio=(1, 1), value=(125, 123, 114)),
        ],
        "Jordan, '94% on CIFAR-10 in 3.29 seconds on a single GPU' (2024); "
        "KellerJordan/cifar10-airbench, airbench96.py",
        normalize="cifar10",
    ),
}

RECIPES = tuple(_RECIPES)
"""Names of all recipes."""


def recipe(name: str, **unknown: Never) -> Recipe:
    """Creates the operations of a recipe as a list, for ``augment=``. A recipe of views has them in ``views``.

    Raises:
        UsageError: An unknown name. The message names all recipes, and a similar one.
    """
    if unknown:
        raise unknown_operation_argument(recipe, min(unknown))
    entry = _RECIPES.get(name)
    if entry is None:
        alike = [known for known in RECIPES if len(str(name)) > 2 and str(name).lower() in known]
        alike = alike or difflib.get_close_matches(str(name), RECIPES, 1, 0.7)
        meant = f"did you mean {alike[0]!r}? " if alike else ""
        raise UsageError(f"there is no recipe {name!r}: {meant}there are {', '.join(RECIPES)}")
    return Recipe(name, entry.make(), entry.source, None if entry.mix is None else entry.mix(), entry.normalize)
