"""Unknown arguments: the advice of each message is true."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import packstore
from packstore import PackedDataset, PackedLoader, UsageError
from packstore.core.errors import UnknownArgumentError
from packstore.training import arguments
from packstore.training.arguments import unknown_argument, unknown_operation_argument
from tests.conftest import Stores
from tests.makers.torchvision import import_torchvision

CALLED: dict[str, Callable[..., Any]] = {
    name: value
    for name in packstore.augment.__all__
    if callable(value := getattr(packstore.augment, name))
    and not issubclass(value if isinstance(value, type) else object, tuple | list)
    and name != "Operation"
}
"""Everything that users call in ``packstore.augment``; tuples and lists are results."""

ALL_ARGUMENTS = {
    name
    for called in (PackedLoader, PackedDataset, packstore.Mix, *CALLED.values())
    for name in inspect.signature(called).parameters
}


def list_arguments(called: Callable[..., Any]) -> set[str]:
    return {name for name in inspect.signature(called).parameters if name != "unknown"}


def check_advice(called: Callable[..., Any], message: str) -> None:
    """Checks that ``called`` has what ``it is X=`` names, and that any other ``X=`` is an argument somewhere."""
    advice = message.partition(": ")[2]
    own = re.findall(r"^(?:it is|did you mean) (\w+)=", advice)
    assert {*own} <= list_arguments(called), message
    assert {*re.findall(r"(\w+)=", advice)} <= ALL_ARGUMENTS, message
    for name, given in re.findall(r"(\w+)\([^()]*?(?:\([^()]*\)[^()]*?)*, (\w+)=", advice):
        owner = getattr(packstore, name, None) or getattr(packstore.augment, name)
        assert given in list_arguments(owner), message


@pytest.mark.parametrize("called", [PackedLoader, PackedDataset])
def test_the_advice_of_loader_and_dataset_is_true(called: type) -> None:
    other = PackedDataset if called is PackedLoader else PackedLoader
    names = {*inspect.signature(torch.utils.data.DataLoader.__init__).parameters, *list_arguments(other)}
    for table in arguments._MEANT.values():
        names |= {*table}
    for name in sorted(names - list_arguments(called) - {"self", "dataset", "path"}):
        message = str(unknown_argument(called, name))
        assert message.startswith(f"{called.__name__} has no argument {name}: ")
        check_advice(called if not message.partition(": ")[2].startswith("for ") else other, message)
        if name in arguments._ONLY[other.__name__].split() and name not in arguments._MEANT[called.__name__]:
            assert f"{other.__name__} has it: {other.__name__}(" in message


def test_the_table_of_both_classes_is_complete() -> None:
    loader, dataset = map(list_arguments, (PackedLoader, PackedDataset))
    assert {*arguments._ONLY["PackedLoader"].split()} == loader - dataset - {"dataset"}
    assert {*arguments._ONLY["PackedDataset"].split()} == dataset - loader - {"path"}


def test_no_table_lists_an_argument_that_exists() -> None:
    for called in (PackedLoader, PackedDataset):
        assert not {*arguments._MEANT[called.__name__]} & list_arguments(called)
    for title, reasons in arguments._REASONS.items():
        if title:
            assert not {*reasons} & list_arguments(CALLED[title]), title


@pytest.mark.parametrize("name", ["pre_transform", "sampler", "views", "mix", "mask_fill", "resident", "channels_last"])
def test_the_dataset_says_what_the_loader_has(stores: Stores, name: str) -> None:
    with pytest.raises(UsageError, match=rf"no argument {name}: PackedLoader has it: PackedLoader\(dataset, {name}=…"):
        PackedDataset(stores("cifar.lmdb"), "train", **{name: None})


@pytest.mark.parametrize("name", ["decoder", "mode", "keep_crowds", "checksums", "exif_transpose", "max_pixels"])
def test_the_loader_says_what_the_dataset_has(stores: Stores, name: str) -> None:
    dataset = PackedDataset(stores("cifar.lmdb"), "train")
    with pytest.raises(UsageError, match=rf"argument {name}: PackedDataset has it: PackedDataset\(path, {name}=…"):
        PackedLoader(dataset, 4, **{name: None})


@pytest.mark.parametrize("title", CALLED)
def test_operations_refuse_unknown_arguments_with_true_advice(title: str) -> None:
    called = CALLED[title]
    names = {*arguments._SPELLINGS, "nonsense"}
    for reasons in arguments._REASONS.values():
        names |= {*reasons}
    for name in sorted(names - list_arguments(called)):
        with pytest.raises(UsageError, match=rf"^augment\.{title} has no argument {name}: ") as caught:
            called(*["deit3"] * (title == "recipe"), **{name: 1})
        assert isinstance(caught.value, TypeError)
        check_advice(called, str(caught.value))


def test_spellings_of_torchvision_and_timm_are_known() -> None:
    """No advice is a guess by similar letters, nor a reference to ``help()``."""
    import_torchvision()
    from timm.data import Mixup
    from timm.data.distributed_sampler import RepeatAugSampler
    from timm.data.random_erasing import RandomErasing
    from torchvision.transforms import transforms, v2

    pairs: list[tuple[str, Any]] = [
        ("BatchMixer", Mixup),
        ("CutMix", Mixup),
        ("MixUp", Mixup),
        ("RASampler", RepeatAugSampler),
        ("RandomErasing", RandomErasing),
    ]
    for title in CALLED:
        pairs += [(title, getattr(module, title)) for module in (transforms, v2) if hasattr(module, title)]
    for title, theirs in pairs:
        called = CALLED[title]
        for name in list_arguments(theirs) - list_arguments(called):
            message = str(unknown_operation_argument(called, name))
            assert not re.search(r"did you mean|help\(", message), message


def test_an_empty_state_is_called_empty(stores: Stores) -> None:
    loader = PackedLoader(PackedDataset(stores("cifar.lmdb"), "train"), 4)
    with pytest.raises(UsageError, match=r"this dict is empty: .*Save loader\.state_dict\(\)"):
        loader.load_state_dict({})


def test_classes_of_users_take_what_they_like() -> None:
    class Mine(packstore.augment.Operation):
        def __init__(self, **options: Any) -> None:
            self.options = options

        def __call__(self, images: Any, draws: Any) -> Any:
            return images

    assert Mine(probability=1).options == {"probability": 1}
    assert isinstance(unknown_operation_argument(packstore.augment.Resize, "x"), UnknownArgumentError)
