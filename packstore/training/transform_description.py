"""Describes the user's functions of a dataset for its ``repr``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from packstore.training.augment.in_place import repr_on_one_line
from packstore.training.items import ItemDataset

if TYPE_CHECKING:
    from packstore.training.torchvision_transforms import TransformPlan


def describe_transforms(dataset: ItemDataset, plan: TransformPlan | None) -> Iterator[str]:
    """Yields lines on the user's functions of a dataset. Says which parts of ``transform`` the engine runs, by its
    ``plan``."""
    for name in ("transform", "target_transform", "transforms"):
        function = getattr(dataset, name)
        if function is None:
            continue
        if name != "transform" or plan is None:
            yield f"{name}: {repr_on_one_line(function)}"
            continue
        steps = [step for step, _ in plan.steps]
        count = sum(1 for _ in takewhile(_runs_in_engine, plan.steps))
        parts = [("by the engine", steps[:count]), ("then", steps[count:])]
        yield "transform: " + "; ".join(f"{by}: {repr_on_one_line(tuple(some))}" for by, some in parts if some)


def _runs_in_engine(step: tuple[Any, Any]) -> bool:
    """Tells if the engine runs a step of a plan, if it runs all before it."""
    from packstore.training.torchvision_transforms import _can_plan_tensor, _Role

    transform, role = step
    return role is _Role.CONVERSION or (role is _Role.PLANNED and _can_plan_tensor(transform, of_bytes=True))
