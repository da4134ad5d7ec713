"""Augmentations as text: calls of operations, within others too, and names of recipes; nothing else."""

from __future__ import annotations

import contextlib
import sys
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore import augment as A  # noqa: N812
from tests.internals import AUGMENT_TEXT_OPERATIONS as OPERATIONS
from tests.internals import UsageError, list_operation_names, parse_augment


def test_operations_hold_others() -> None:
    text = "RandomResizedCrop(24), RandomApply([ColorJitter(0.4, hue=(-0.1, 0.1)), RandomInvert()], p=0.8)"
    assert parse_augment(text) == [
        A.RandomResizedCrop(24),
        A.RandomApply([A.ColorJitter(0.4, hue=(-0.1, 0.1)), A.RandomInvert()], p=0.8),
    ]
    assert list_operation_names(text) == ["ColorJitter", "RandomApply", "RandomInvert", "RandomResizedCrop"]
    assert parse_augment(" timm-rsb-a2 ") == list(A.recipe("timm-rsb-a2"))
    assert {"TimmAugment", "RandomErasing", "AugMix"} <= set(OPERATIONS)
    assert not {"Albumentations", "PerImage", "InPlace", "Operation", "BatchMixer", "recipe", "RASampler"} & set(
        OPERATIONS
    )


@pytest.mark.parametrize(
    "text",
    ["exit()", "RandomApply([exit()])", "RandomInvert(p=__import__('os'))", "PerImage(len)", "Resize(9**9)", "dino"],
)
def test_nothing_else_is_taken(text: str) -> None:
    with pytest.raises(UsageError):
        parse_augment(text)


NESTED = {
    "minus signs": "Resize(" + "-" * 900 + "1)",
    "more minus signs": "-" * 1990 + "1",
    "inversions": "Resize(" + "~" * 900 + "1)",
    "negations": "not " * 490 + "1",
    "sums": "Resize(1" + "+1" * 900 + ")",
    "powers": "Resize(1" + "**1" * 600 + ")",
    "attributes": "Resize" + ".x" * 900 + "(1)",
    "calls": "Resize" + "()" * 900,
    "subscripts": "Resize" + "[0]" * 600,
    "nested calls": "Resize(" * 150 + ")" * 150,
    "nested groups": "RandomApply([" * 60 + "RandomInvert()" + "])" * 60,
    "lists": "Resize(" + "[" * 900 + "]" * 900 + ")",
    "tuples": "Resize(" + "(" * 600 + "1" + ",)" * 600 + ")",
    "brackets": "(" * 1990,
    "conditions": "1 if 1 else " * 160 + "1",
    "functions": "lambda:" * 280 + "1",
    "comparisons": "Resize(1" + "<1" * 900 + ")",
    "a long number": "Resize(" + "9" * 1900 + ")",
    "a long hexadecimal number": "Resize(0x" + "f" * 1900 + ")",
    "many operations too many": "RandomInvert()," * 200,
    "a long text": "Resize(" + "-" * 100_000 + "1)",
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_and_long_expressions_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_augment(NESTED[name])
    assert len(str(caught.value)) < 500


def test_a_stack_that_is_nearly_full_makes_no_difference() -> None:
    """A server or a notebook calls it from deep inside."""

    def descend(levels: int) -> object:
        return descend(levels - 1) if levels else parse_augment(NESTED["minus signs"])

    with pytest.raises(UsageError, match="nested too deeply"):
        descend(sys.getrecursionlimit() // 2)


@pytest.mark.parametrize("depth", [1, 5, 10])
def test_groups_in_groups_are_taken(depth: int) -> None:
    assert len(parse_augment("RandomApply([" * depth + "ColorJitter(hue=(-0.1, 0.1))" + "])" * depth)) == 1


@given(st.lists(st.sampled_from([*"()[]{},.=-*'1", "Resize", "RandomApply", "size=", "lambda:", "not ", "\\"])))
def test_any_text_is_taken_or_refused(parts: list[str]) -> None:
    with contextlib.suppress(UsageError), warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        list_operation_names("".join(parts))
        parse_augment("".join(parts))
