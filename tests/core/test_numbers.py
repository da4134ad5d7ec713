"""Extreme numbers: every public operation and option refuses them by name, or works quickly in bounded memory."""

from __future__ import annotations

import dataclasses
import inspect
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import packstore
from packstore import augment
from packstore.cli import cli
from tests.internals import PackstoreError, UsageError

NAN, INF, HUGE = float("nan"), float("inf"), 10**400
VALUES: dict[str, Any] = {
    "nan": NAN,
    "inf": INF,
    "-inf": -INF,
    "1e308": 1e308,
    "10**400": HUGE,
    "-10**400": -HUGE,
    "2**70": 2**70,
    "2**40": 2**40,
    "2**30": 2**30,
    "True": True,
    "-1": -1,
    "-0.5": -0.5,
    "text": "text",
    "5,000 digits": "9" * 5000,
    "numpy's nan": np.float32("nan"),
    "(nan, 1)": (NAN, 1.0),
    "(1e200, 1e300)": (1e200, 1e300),
    "[inf] * 3": [INF] * 3,
    "a mapping": {"a": NAN, "b": 1},
}
ALWAYS_WRONG = ("nan", "inf", "-inf", "10**400", "-10**400", "numpy's nan")
"""Values that no number of an operation may have."""

NEEDED: dict[str, tuple[Any, ...]] = {
    "BatchMixer": ([augment.MixUp()], 1.0, None, "batch", "dense", 0.0, 4),
    **dict.fromkeys(("CenterCrop", "RandomCrop", "RandomResizedCrop", "RandomShortestSize", "Resize"), (8,)),
    **dict.fromkeys(("Cutout", "Pad", "RandomPosterize"), (3,)),
    **dict.fromkeys(("Mosaic", "ScaleJitter"), (16,)),
    **dict.fromkeys(("RandomAffine", "RandomRotation"), (10,)),
    **dict.fromkeys(("RandomResize", "RandomSizeCrop"), (4, 8)),
    "GaussianBlur": (3,),
    "RandomAdjustSharpness": (2.0,),
    "RandomApply": ([augment.RandomInvert(1)],),
    "RandomChoice": ([augment.RandomInvert(1), augment.RandomGrayscale(1)],),
    "RandomMasking": (0.5, 4),
    "RandomSolarize": (100,),
    "TimmAugment": ("rand-m9-mstd0.5-inc1",),
}
"""Arguments of the operations that need some."""


def list_operation_fields() -> Iterator[tuple[str, str]]:
    """Yields each operation with each of its fields but functions and other operations."""
    for name in augment.__all__:
        kind = getattr(augment, name)
        if inspect.isclass(kind) and dataclasses.is_dataclass(kind) and name not in ("Draws", "PerImage"):
            for each in dataclasses.fields(kind):
                if each.name not in ("transforms", "fn", "mixers", "pipeline"):
                    yield name, each.name


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source ``photos``, stores ``a.lmdb`` and ``b.lmdb``, and a store of boxes ``boxes.h5``."""
    folder = tmp_path_factory.mktemp("numbers")
    for number in range(4):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 40 * number, np.uint8)).save(path)
    for name in "ab":
        packstore.convert(folder / "photos", folder / f"{name}.lmdb", encoding="uint8")
    with packstore.Writer(folder / "boxes.h5", {"image": "image", "boxes": "boxes"}, encoding="uint8") as writer:
        for _ in range(4):
            writer.add(image=np.zeros((16, 16, 3), np.uint8), boxes=np.array([[2, 2, 9, 9]], np.float32))
    return folder


def use(operation: Any, stores: Path) -> None:
    """Loads the images of a store with an operation."""
    dataset = packstore.PackedDataset(stores / "a.lmdb")
    options: dict[str, Any] = {"augment": [operation, augment.RandomCrop(8, pad_if_needed=True)]}
    if isinstance(operation, augment.BatchMixer | augment.MixUp | augment.CutMix | augment.Mosaic):
        options = {"mix": operation}
    elif isinstance(operation, augment.RandomMasking):
        options = {"masking": operation}
    if isinstance(operation, augment.Mosaic | augment.RandomIoUCrop):
        dataset = packstore.PackedDataset(stores / "boxes.h5", columns=("image", "boxes"))
    for _ in packstore.PackedLoader(dataset, 4, workers=1, **options):
        pass


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "field"), [*list_operation_fields()])
def test_operations(name: str, field: str, stores: Path) -> None:
    kind = getattr(augment, name)
    needed = dict(zip((each.name for each in dataclasses.fields(kind)), NEEDED.get(name, ()), strict=False))
    use(kind(**needed), stores)
    declared = {each.name: str(each.type) for each in dataclasses.fields(kind)}[field]
    for shown, value in VALUES.items():
        try:
            operation = kind(**{**needed, field: value})
        except UsageError as error:
            assert any(each in str(error) for each in (field, name, "timm's notation")), (shown, error)  # noqa: PT017
            continue
        assert shown not in ALWAYS_WRONG, (shown, declared)
        try:
            use(operation, stores)
        except PackstoreError:
            continue


def list_calls(stores: Path, folder: Path) -> dict[str, tuple[Any, Callable[..., Any]]]:
    """Returns public functions by name, with a function that calls each with some options."""
    numbers = iter(range(10**6))

    def new(suffix: str = ".lmdb") -> Path:
        return folder / f"{next(numbers)}{suffix}"

    def copy() -> Path:
        return Path(shutil.copytree(stores / "a.lmdb", new()))

    def load(**options: Any) -> None:
        dataset = packstore.PackedDataset(stores / "a.lmdb")
        loader = packstore.PackedLoader(dataset, **{"batch_size": 2, "shuffle": True, **options})
        for _ in zip(range(4), loader, strict=False):
            pass

    def write(**options: Any) -> None:
        with packstore.Writer(new(), {"image": "image"}, **{"encoding": "uint8", **options}) as writer:
            writer.add(image=np.zeros((4, 4, 3), np.uint8))

    store, photos = stores / "a.lmdb", stores / "photos"
    weights = {str(store): 1, str(stores / "b.lmdb"): 2}
    return {
        "convert": (packstore.convert, lambda **o: packstore.convert(photos, new(), **o)),
        "export": (packstore.export, lambda **o: packstore.export(store, new(""), **{"to": "imagefolder", **o})),
        "merge": (packstore.merge, lambda **o: packstore.merge([store], new(), **o)),
        "select": (packstore.select, lambda **o: packstore.select(store, new(), **o)),
        "append": (packstore.append, lambda **o: packstore.append(copy(), photos, **{"on_duplicate": "skip", **o})),
        "verify": (packstore.verify, lambda **o: packstore.verify(store, **o)),
        "repair": (packstore.repair, lambda **o: packstore.repair(copy(), photos, **o)),
        "audit": (packstore.audit, lambda **o: packstore.audit(store, **o)),
        "Writer": (packstore.Writer, write),
        "PackedLoader": (packstore.PackedLoader, load),
        "PackedDataset": (packstore.PackedDataset, lambda **o: packstore.PackedDataset(store, **o)[0]),
        "Mix": (packstore.Mix, lambda **o: packstore.Mix(**{"weights": weights, **o}).draws),
    }


GIVEN = ("source", "destination", "path", "store", "stores", "dataset", "damaged", "fields", "progress", "split")
"""Arguments that the calls give themselves."""


def list_options() -> list[tuple[str, str]]:
    """Lists public functions with each of their options."""
    calls = list_calls(Path(), Path())
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        (name, each.name)
        for name, (function, _) in calls.items()
        for each in inspect.signature(function).parameters.values()
        if each.name not in GIVEN and each.kind not in kinds
    ]


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("name", "option"), list_options())
def test_functions(name: str, option: str, stores: Path, tmp_path: Path) -> None:
    _, call = list_calls(stores, tmp_path)[name]
    for value in VALUES.values():
        try:
            call(**{option: value})
        except PackstoreError:
            continue


DIGITS = "9" * 5000
TEXTS = ("nan", "inf", "-inf", "1e308", "-1", "text", str(2**70), DIGITS, "a=nan,b=1", f"a={DIGITS},b=1", "1e999GB")
COMMANDS = {
    "convert": ["{photos}", "{new}"],
    "append": ["{copy}", "{photos}"],
    "merge": ["{store}", "-o", "{new}"],
    "select": ["{store}", "-o", "{new}"],
    "export": ["{store}", "{new}", "--to", "imagefolder"],
    "verify": ["{store}"],
    "repair": ["{copy}", "--from", "{photos}"],
    "audit": ["{store}"],
    "bench": ["{store}", "--seconds", "0.1"],
    "sheet": ["{store}", "-o", "{new}.png"],
}


@cache
def list_flags() -> list[tuple[str, str]]:
    """Lists commands with each of their options that take a value of any text."""
    flags = []
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        for each in command.params:
            if isinstance(each, click.Option) and not each.is_flag and not isinstance(each.type, click.Choice):
                flags.append((name, each.opts[0]))
    return flags


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "flag"), list_flags())
def test_commands(name: str, flag: str, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(TEXTS):
        copy = tmp_path / f"copy-{number}.lmdb"
        if "{copy}" in COMMANDS[name]:
            shutil.copytree(stores / "a.lmdb", copy)
        places = {"photos": stores / "photos", "store": stores / "a.lmdb", "new": tmp_path / f"{number}.lmdb"}
        arguments = [each.format(copy=copy, **places) for each in COMMANDS[name]]
        given = [f"{flag}={text}"] if flag.startswith("--") else [flag, text]
        result = CliRunner().invoke(cli, [name, *arguments, *given])
        # The command's frame turns errors of both kinds into messages; too long a file name is one of the system.
        assert isinstance(result.exception, SystemExit | PackstoreError | OSError | None), (text, result)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: augment.ColorJitter(INF), "ColorJitter: brightness should be a finite number of at most"),
        (lambda: augment.ColorJitter(contrast=(1e200, 1e300)), "ColorJitter: contrast should be a finite number"),
        (lambda: augment.RandomRotation(1, center=(NAN, 1.0)), "RandomRotation: center should be a finite number"),
        (lambda: augment.Cutout(8, fill=NAN), "Cutout: fill should be a finite number"),
        (lambda: augment.Cutout(8, fill=(1, 0)), "Cutout: fill should be a number, or one for each of 3 channels"),
        (lambda: augment.Cutout((8, 9)), "Cutout: size should be a single number"),  # type: ignore[arg-type]
        (lambda: augment.AugMix(mixture_width=True), "AugMix: mixture_width should be a whole number, got True"),
        (lambda: augment.Resize(2**30), "Resize: a size of 1073741824x1073741824 has more than"),
        (lambda: packstore.Mix({"a": HUGE}), "weights should be a finite number"),
        (lambda: packstore.Mix({"a": 1.0}, temperature=NAN), "temperature should be a finite number"),
    ],
)
def test_messages(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_messages_of_a_loader(stores: Path) -> None:
    dataset = packstore.PackedDataset(stores / "a.lmdb")
    for options, message in (
        ({"prefetch": 10**9}, "prefetch should be a whole number from 1 to 1,000, got 1000000000"),
        ({"block": 2**70, "shuffle": True}, "block should be"),
        ({"normalize": ((NAN, 1, 1), (1, 1, 1))}, "normalize should be a finite number"),
        ({"workers": True}, "workers should be a whole number from 1 to 1,000, got True"),
    ):
        with pytest.raises(UsageError, match=message):
            packstore.PackedLoader(dataset, 2, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="splits should be a finite number"):
        packstore.select(stores / "a.lmdb", stores / "new.lmdb", splits={"a": NAN, "b": 1})
