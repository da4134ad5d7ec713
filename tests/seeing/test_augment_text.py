"""Augmentations as text: calls of operations, within others too, and names of recipes; nothing else."""

from __future__ import annotations

import pytest

from packstore import augment as A  # noqa: N812
from packstore.core.errors import UsageError
from packstore.seeing.augment_text import OPERATIONS, list_operation_names, parse_augment


def test_operations_hold_others() -> None:
    text = "RandomResizedCrop(24), RandomApply([ColorJitter(0.4, hue=(-0.1, 0.1)), RandomInvert()], p=0.8)"
    assert parse_augment(text) == [
        A.RandomResizedCrop(24),
        A.RandomApply([A.ColorJitter(0.4, hue=(-0.1, 0.1)), A.RandomInvert()], p=0.8),
    ]
    assert list_operation_names(text) == ["ColorJitter", "RandomApply", "RandomInvert", "RandomResizedCrop"]
    assert parse_augment(" timm-rsb-a2 ") == list(A.recipe("timm-rsb-a2"))
    assert {"TimmAugment", "RandomErasing", "AugMix"} <= set(OPERATIONS)
    assert not {"PerImage", "InPlace", "Operation", "BatchMixer", "recipe", "RASampler"} & set(OPERATIONS)


@pytest.mark.parametrize(
    "text",
    ["exit()", "RandomApply([exit()])", "RandomInvert(p=__import__('os'))", "PerImage(len)", "Resize(9**9)", "dino"],
)
def test_nothing_else_is_taken(text: str) -> None:
    with pytest.raises(UsageError):
        parse_augment(text)
