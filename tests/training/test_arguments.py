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
from packstore import augment as A  # noqa: N812
from tests.conftest import Stores
from tests.internals import UnknownArgumentError, arguments, unknown_argument, unknown_operation_argument
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


class Flip:
    """Stands for a transform of albumentations."""

    def __call__(self, **named: Any) -> Any: ...


Flip.__module__ = "albumentations.augmentations.geometric"

WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda path: PackedDataset(path, torch.nn.Identity()), "split should be a name, got Identity.*transform="),
    (lambda path: PackedDataset(path, "train", transform=torch.nn.Identity), r"the class Identity.*Identity\(...\)"),
    (lambda path: PackedDataset(path, "train", transform=A.RandomCrop(4)), r"PackedLoader\(dataset, augment="),
    (lambda path: PackedDataset(path, "train", transforms=A.RandomCrop(4)), r"PackedLoader\(dataset, augment="),
    (lambda path: PackedDataset([path, path]), "path should be that of a store.*packstore.concat"),
    (lambda path: PackedDataset(None), "path should be that of a store, got None"),
    (lambda path: make_loader(path, augment=A.RandomCrop), r"the class RandomCrop: .* RandomCrop\(...\)"),
    (lambda path: make_loader(path, augment=[torch.nn.Identity]), "the class Identity"),
    (lambda path: make_loader(path, transform=torch.nn.Identity), "the class Identity"),
    (lambda path: make_loader(path, sampler="random"), "sampler should be Iterable or None, got 'random'"),
    (lambda path: make_loader(path, normalize=True), "normalize should be text, Normalization.*, got True"),
    (lambda path: make_loader(path, augment="imagenet"), "no recipe 'imagenet': there are"),
    (lambda path: make_loader(path, mixup=0.2), "it is mix=, such as mix=MixUp"),
    (lambda path: make_loader(path, input_size=224), "operations have it"),
    (lambda path: make_loader(path, num_workers=2), "no argument num_workers: .*workers= says"),
    (lambda path: make_loader(path, batchsize=2), r"no argument batchsize: .*did you mean batch_size=\?"),
    (lambda path: make_loader(path, colour=2), "no argument colour: .*help"),
    (lambda path: PackedDataset(path, "train", num_workers=2), "no argument num_workers: .*workers="),
    (lambda path: PackedDataset(path, "train", tranform=2), "no argument tranform: .*transform="),
    (lambda path: A.Resize(8, max_size=3), r"augment\.Resize has no argument max_size: RandomShortestSize has it"),
    (lambda path: make_loader(path, num_aug_repeats=3), "sampler=RASampler"),
    (lambda path: make_loader(path, use_prefetcher=True), "prefetch="),
    (lambda path: PackedDataset(path, "train", is_training=True), "it is split="),
    (lambda path: PackedDataset(path, "train", img_size=3), "for PackedLoader, operations have it"),
    (lambda path: A.recipe("resnet50"), "did you mean 'torchvision-resnet50-v2'"),
    (lambda path: make_loader(path, augment=Flip()), r"augment.Albumentations\(Flip\(...\)\)"),
    (lambda path: make_loader(path, augment=[A.RandomCrop(8), Flip()]), r"augment.Albumentations\(Flip"),
    (lambda path: A.PerImage(Flip()), r"PerImage: fn .*augment.Albumentations\(Flip"),
    (lambda path: PackedDataset(path, "train", transform=Flip()), "transform=lambda image: pipeline"),
    (lambda path: PackedDataset(path, "train", transforms=Flip()), "transforms .*named arguments"),
    (lambda path: make_loader(path, augment=A.Pad(2, fill=None)), "Pad: fill should be a number.*got None"),
    (lambda path: make_loader(path, augment=[A.RandomApply([A.Cutout(2, fill=None)])]), "Cutout: fill should be"),
    (lambda path: A.RASampler(10), "RASampler takes a dataset, got 10"),
    (lambda path: A.PerImage(torch.nn.Identity), "PerImage: fn should be a function, got the class Identity"),
    (lambda path: A.RandAugment(n=2, m=9), "it is magnitude="),
    (lambda path: A.Compose([A.RandomCrop(3)], p=0.5), "RandomApply has it"),
    (lambda path: A.RandomChoice([A.RandomCrop(3)], probabilities=[1]), "it is p="),
]
"""Mistakes of users of other libraries, and what the messages say."""


def make_loader(path: str, **options: Any) -> PackedLoader:
    return PackedLoader(PackedDataset(path, "train"), 4, **options)


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_mistake_is_said_before_the_first_batch(stores: Stores, number: int) -> None:
    call, message = WRONG[number]
    with pytest.raises(UsageError, match=message) as caught:
        call(stores("cifar.lmdb"))
    assert isinstance(caught.value, TypeError) == isinstance(caught.value, UnknownArgumentError)


def test_classes_that_convert_are_functions(stores: Stores) -> None:
    dataset = PackedDataset(stores("cifar.lmdb"), "train", target_transform=float)
    assert type(dataset[0][1]) is float


@pytest.mark.parametrize(
    ("name", "advice"), [("ToTensor", "leave it out"), ("Normalize", "normalize="), ("OneOf", "RandomChoice")]
)
def test_a_name_of_another_library_says_what_stands_for_it(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{advice}"):
        getattr(A, name)
    with pytest.raises(AttributeError, match=r"no attribute 'Unknown'$"):
        A.Unknown  # noqa: B018


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


@pytest.mark.slow
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
