"""torchvision's transforms in ``augment=``: random ones are refused, and work in PerImage; Compose is taken apart."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from packstore import PackedDataset, PackedLoader
from packstore.augment import CenterCrop, Cutout, PerImage, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from packstore.augment import __all__ as our_names
from tests.internals import UsageError, as_operations
from tests.makers.batches import images_of
from tests.makers.torchvision import make_any, transforms_of

Stores = Callable[[str], Any]


# Those that draw random numbers -----------------------------------------------------------------------------------

DRAWS = re.compile(r"torch\.(rand\w*|multinomial|distributions)\b|uniform_\(|exponential_\(|\brandom\.\w+\(|\._dist\b")
RANGES = {"GaussianBlur": {"sigma": [0.1, 2.0]}, "JPEG": {"quality": [5, 50]}}  # drawn from, where low is not high
FOR_BATCHES = {"MixUp", "CutMix"}  # made for whole batches, and call for labels


@functools.cache
def code_of(module: str) -> dict[str, str]:
    """The classes of a module as text without docstrings and comments, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def draws_random_numbers(kind: type) -> bool:
    """Whether the code of a class, or of one of torchvision's that it inherits from, draws from a generator."""
    own = [each for each in kind.__mro__ if each.__module__.startswith("torchvision.transforms")]
    found = any(DRAWS.search(code_of(each.__module__)[each.__name__]) for each in own)
    return found or kind.__name__ == "GaussianNoise"  # which calls a function that does


@pytest.mark.slow
def test_each_random_transform_is_refused_by_name(tv: Any) -> None:
    found = {name: kind for name, kind in transforms_of(tv).items() if draws_random_numbers(kind)}
    assert {"torchvision.transforms.transforms.RandomHorizontalFlip", "torchvision.transforms.v2._augment.JPEG"} <= {
        *found
    }
    assert len(found) > 50
    for kind in found.values():
        name = kind.__name__
        if name in FOR_BATCHES:
            continue
        op = make_any(kind, **RANGES.get(name, {}))
        own = type("Own", (kind,), {})
        for augment in (
            op,
            [Cutout(2), op],
            make_any(tv.transforms.Compose, transforms=[op]),
            [tv.transforms.v2.Compose([tv.transforms.v2.Identity(), op])],
            torch.nn.Sequential(torch.nn.Identity(), op) if isinstance(op, torch.nn.Module) else op,
            make_any(own, **RANGES.get(name, {})),
            make_any(type("OwnCompose", (tv.transforms.v2.Compose,), {}), transforms=[op]),
        ):
            refused = rf"torchvision's {name} would .*augment\.PerImage\({name}\(...\)\)"
            with pytest.raises(UsageError, match=refused) as error:
                as_operations(augment)
            assert (f"use packstore.augment.{name}, " in str(error.value)) == (name in our_names)
        as_operations([PerImage(op)])


@pytest.mark.slow
def test_transforms_that_draw_nothing_pass(tv: Any) -> None:
    found = {name: kind for name, kind in transforms_of(tv).items() if not draws_random_numbers(kind)}
    assert {"torchvision.transforms.v2._misc.Normalize", "torchvision.transforms.v2._misc.ToDtype"} <= {*found}
    ops = [make_any(kind) for kind in found.values() if kind.__name__ != "Compose"]
    assert as_operations(ops) == tuple(ops)
    v2 = tv.transforms.v2
    plain = [v2.GaussianBlur(3, 1.0), v2.Grayscale(3), tv.transforms.GaussianBlur(3, 1.0), v2.JPEG((50, 50))]
    assert as_operations(plain) == tuple(plain)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "RandomHorizontalFlip",
            r"would treat the whole batch alike; use packstore\.augment\.RandomHorizontalFlip, augment\.PerImage"
            r"\(RandomHorizontalFlip\(\.\.\.\)\), or a DataLoader",
        ),
        ("ElasticTransform", r"whole batch alike; use augment\.PerImage\(ElasticTransform\(\.\.\.\)\), or"),
        (
            "GaussianNoise",
            r"draw other numbers in each run, whatever the seed; use packstore\.augment\.GaussianNoise, ",
        ),
    ],
)
def test_the_message_names_what_to_write(tv: Any, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        as_operations([getattr(tv.transforms.v2, name)()])


# Compose, and single operations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("resident", [False, True])
def test_compose_is_taken_apart(tv: Any, stores: Stores, resident: bool) -> None:
    ds, v1, v2 = PackedDataset(stores("cifar.lmdb"), "train"), tv.transforms, tv.transforms.v2
    converting = v2.ToDtype(torch.float32, scale=True)
    plain: list[Any] = [RandomCrop(28, 2), RandomHorizontalFlip(), converting, CenterCrop(24)]
    expected, *found = (
        images_of(PackedLoader(ds, 8, augment=augment, seed=4, resident=resident))
        for augment in (
            plain,
            v1.Compose(plain),
            v2.Compose([plain[0], v2.Compose(plain[1:])]),
            [v1.Compose(plain[:2]), *plain[2:]],
            [plain[0], v2.Compose(plain[1:3]), torch.nn.Sequential(v2.CenterCrop(24))],
        )
    )
    assert all(torch.equal(images, expected) for images in found)


def test_a_single_operation_needs_no_list(stores: Stores) -> None:
    ds = PackedDataset(stores("files.lmdb"), "train")
    alone, listed = (PackedLoader(ds, 4, augment=augment) for augment in (RandomResizedCrop(9), [RandomResizedCrop(9)]))
    assert alone.options.augment == listed.options.augment
    assert torch.equal(next(iter(alone))[0], next(iter(listed))[0])
    negative = PackedLoader(PackedDataset(stores("cifar.lmdb"), "train"), 4, augment=lambda images: 255 - images)
    assert len(next(iter(negative))) == 2


# Images of differing sizes ----------------------------------------------------------------------------------------


def test_what_to_write_where_sizes_differ_in_the_end(stores: Stores) -> None:
    words = (
        r"differ in size after augment=: end it with operations that give one size, such as "
        r"Resize\(\(height, width\)\), CenterCrop or RandomCrop; or say collate={'image':"
    )
    with pytest.raises(UsageError, match=words):
        PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, augment=[Resize(40)])


def test_what_to_write_where_a_function_of_batches_comes_first(stores: Stores) -> None:
    dataset = PackedDataset(stores("files.lmdb"), "train")
    words = r"RandomResizedCrop\(224\) to train, or Resize\(256\) and CenterCrop\(224\) to validate.*PerImage"
    with pytest.raises(UsageError, match=words):
        next(iter(PackedLoader(dataset, 64, augment=[torch.abs, RandomResizedCrop(9)])))
    as_advised = [PerImage(torch.abs), RandomResizedCrop(9)]
    assert next(iter(PackedLoader(dataset, 64, augment=as_advised)))[0].shape[1:] == (3, 9, 9)
