"""Recipes by name: lists that load, print and change like any other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from tests.internals import UsageError, as_operations, parse_augment, parse_normalization

LISTS = [name for name in A.RECIPES if A.recipe(name).views is None and name not in ("ssd", "detr")]


@pytest.mark.parametrize("name", A.RECIPES)
def test_a_recipe_prints_as_the_code_that_makes_it(name: str) -> None:
    found = A.recipe(name)
    assert found.source
    assert found.name == name
    made = eval(repr(found), dict(vars(A)))
    assert made == (found if found.views is None else found.views)
    parse_normalization(found.normalize)
    assert A.recipe(name) is not found


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
def test_a_recipe_loads(stores: Any, name: str) -> None:
    found = A.recipe(name)
    store = stores("cifar.lmdb" if name.startswith("cifar") else "files.lmdb")
    dataset = PackedDataset(store, "train")
    by_name = PackedLoader(dataset, 8, augment=name, mix=found.mix, normalize=found.normalize)
    by_list = PackedLoader(dataset, 8, augment=found, mix=found.mix, normalize=found.normalize, workers=1)
    for mine, theirs in zip(by_name, by_list, strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])
    assert parse_augment(name) == list(found)


def test_names_that_are_no_recipes_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'dinov2'"):
        A.recipe("dino2")
    with pytest.raises(UsageError, match="views=recipe"):
        as_operations("dino")
    with pytest.raises(UsageError, match=r"no recipe 'timm-rsb-a9': did you mean 'timm-rsb-a.*; or a policy of timm"):
        as_operations("timm-rsb-a9")
    with pytest.raises(UsageError, match="begins with rand, augmix"):
        as_operations(["timm-rsb-a9"])
    with pytest.raises(UsageError, match="there is no recipe"):
        as_operations("imagenet")
    assert as_operations(["rand-m9"]) == (A.TimmAugment("rand-m9"),)
    assert as_operations([A.Compose([A.Resize(3), A.Grayscale()])]) == (A.Resize(3), A.Grayscale())
