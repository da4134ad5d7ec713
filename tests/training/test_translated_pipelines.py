"""torchvision's pipelines in a loader's ``augment=``: packstore's operations, with the loader's own draws."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import packstore
from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from tests.internals import UsageError
from tests.makers.batches import same
from tests.makers.datasets import make_folder
from tests.makers.torchvision import import_torchvision

tv = import_torchvision()
v1, v2 = tv.transforms, tv.transforms.v2
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
pytestmark = pytest.mark.filterwarnings("ignore:The transform `.*` is deprecated:UserWarning")  # torchvision's v2


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("translated")
    packstore.convert(make_folder(root / "photos", splits=()), root / "a.lmdb")
    return root / "a.lmdb"


def loader_of(store: Path, augment: Any, **options: Any) -> PackedLoader:
    return PackedLoader(PackedDataset(store), 4, augment=augment, seed=3, **options)


EQUAL = {
    "RandomResizedCrop(40)": A.RandomResizedCrop(40),
    "RandomResizedCrop((30, 40), (0.3, 1), antialias=False)": A.RandomResizedCrop((30, 40), (0.3, 1), antialias=False),
    "Resize(40, interpolation=InterpolationMode.BICUBIC)": A.Resize(40, interpolation="bicubic"),
    "Resize((40, 30))": A.Resize((40, 30)),
    "CenterCrop(30)": A.CenterCrop(30),
    "RandomCrop(30)": A.RandomCrop(30),
    "RandomCrop(30, padding=4, fill=9)": A.RandomCrop(30, padding=4, fill=9),
    "RandomCrop(30, pad_if_needed=True)": A.RandomCrop(30, pad_if_needed=True),
    "Pad((1, 2), fill=3)": A.Pad((1, 2), fill=3),
    "RandomHorizontalFlip(0.3)": A.RandomHorizontalFlip(0.3),
    "RandomVerticalFlip(0.3)": A.RandomVerticalFlip(0.3),
    "ColorJitter(0.4, hue=0.1)": A.ColorJitter((0.6, 1.4), hue=(-0.1, 0.1)),
    "Grayscale(3)": A.Grayscale(3),
    "RandomGrayscale(0.2)": A.RandomGrayscale(0.2),
    "GaussianBlur(5, (0.1, 2.0))": A.GaussianBlur((5, 5), (0.1, 2.0)),
    "RandomErasing(0.3)": A.RandomErasing(0.3),
    "RandomErasing(0.3, value='random')": A.RandomErasing(0.3, value="random"),
    "RandAugment(3, 7)": A.RandAugment(3, 7),
    "TrivialAugmentWide()": A.TrivialAugmentWide(),
    "AutoAugment(AutoAugmentPolicy.CIFAR10)": A.AutoAugment("cifar10"),
    "AugMix(4)": A.AugMix(4),
    "RandomPosterize(3, 0.2)": A.RandomPosterize(3, 0.2),
    "RandomSolarize(128, 0.2)": A.RandomSolarize(128, 0.2),
    "RandomAutocontrast(0.2)": A.RandomAutocontrast(0.2),
    "RandomEqualize(0.2)": A.RandomEqualize(0.2),
    "RandomInvert(0.2)": A.RandomInvert(0.2),
    "RandomAdjustSharpness(2, 0.2)": A.RandomAdjustSharpness(2, 0.2),
    "RandomRotation(15)": A.RandomRotation((-15.0, 15.0)),
    "RandomAffine(9, (0.1, 0.2))": A.RandomAffine((-9.0, 9.0), (0.1, 0.2)),
    "RandomPerspective(0.3, 0.4)": A.RandomPerspective(0.3, 0.4),
    "RandomApply([ColorJitter(0.4)], 0.3)": A.RandomApply([A.ColorJitter((0.6, 1.4))], 0.3),
    "RandomOrder([RandomInvert(), RandomEqualize()])": A.RandomOrder([A.RandomInvert(), A.RandomEqualize()]),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("code", EQUAL)
def test_operations_are_translated(store: Path, code: str, t: Any) -> None:
    names = {**vars(v1), **vars(t)}
    operations = loader_of(store, t.Compose([eval(code, names), t.CenterCrop(30)])).options.augment
    assert operations == (EQUAL[code], A.CenterCrop(30))
    assert repr(operations[0]).startswith(f"{code.partition('(')[0]}(")


@pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
def test_batches_are_those_of_the_counterpart(store: Path, t: Any) -> None:
    steps = [t.Compose([t.RandomResizedCrop(40), t.RandomHorizontalFlip()]), t.ColorJitter(0.4, 0.4)]
    ours = [A.RandomResizedCrop(40), A.RandomHorizontalFlip(), A.ColorJitter((0.6, 1.4), (0.6, 1.4))]
    assert same(loader_of(store, t.Compose(steps)), loader_of(store, ours))
    ends = [t.ToTensor(), t.Normalize(MEAN, STD)] if t is v1 else [t.ToImage(), t.ToDtype(torch.float32, scale=True)]
    normalize = (MEAN, STD) if t is v1 else None
    expected = loader_of(store, ours, normalize=normalize, dtype=torch.float32)
    assert same(loader_of(store, [*steps, *ends]), expected)
    half = loader_of(store, t.Compose([*steps, *ends]), dtype=torch.float16)
    assert next(iter(half))[0].dtype == torch.float16


def test_erasing_after_normalize_erases_to_the_mean(store: Path) -> None:
    steps = [v1.CenterCrop(30), v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(1.0)]
    for images, _ in loader_of(store, v1.Compose(steps)):
        assert ((images.abs() < 0.01).all(1).sum((1, 2)) > 10).all()
    steps[2:] = [v1.RandomErasing(1.0, value=0.5)]
    assert loader_of(store, v1.Compose(steps)).options.augment[1].value == 128


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([v1.RandomCrop(30, padding=(1, 2, 3, 4))], "RandomCrop.*padding=.*PackedDataset"),
        ([v1.RandomRotation(3, expand=True)], "RandomRotation.*expand=True.*PerImage"),
        ([v2.ElasticTransform()], "ElasticTransform"),
        ([v1.CenterCrop(9), v1.ToTensor(), torch.relu], "relu.*follows a conversion.*transform="),
        ([v1.CenterCrop(9), v2.ToDtype(torch.int64)], "ToDtype.*PackedDataset"),
    ],
)
def test_others_are_refused_by_name(store: Path, steps: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        loader_of(store, v1.Compose(steps))


def test_functions_of_batches_stay(store: Path) -> None:
    steps = [v1.Resize((30, 30)), v1.Grayscale(1), v1.Resize(20, max_size=40)]
    loader = loader_of(store, v1.Compose(steps))
    assert loader.options.augment == (A.Resize((30, 30)), *steps[1:])
    assert next(iter(loader))[0].shape == (4, 1, 20, 20)


def test_two_normalisations_are_refused(store: Path) -> None:
    with pytest.raises(UsageError, match="leave out one of the two"):
        loader_of(store, [v1.CenterCrop(9), v1.Normalize(MEAN, STD)], normalize="imagenet")


OURS = "packstore.augment."
MIXES = {  # what stands for a mixer of torchvision or timm
    "v2.MixUp(num_classes=4)": f"mix={OURS}BatchMixer([{OURS}MixUp(1.0)], num_classes=4)",
    "v2.CutMix(alpha=0.5)": f"mix={OURS}CutMix(0.5)",
    "v2.RandomChoice([v2.MixUp(num_classes=4), v2.CutMix(num_classes=4)])": (
        f"mix={OURS}BatchMixer([{OURS}MixUp(1.0), {OURS}CutMix(1.0)], num_classes=4)"
    ),
    "v2.RandomChoice([v2.MixUp(), v2.CutMix()], p=[3, 1])": (
        f"mix={OURS}BatchMixer([{OURS}MixUp(1.0), {OURS}CutMix(1.0)], weights=(0.75, 0.25))"
    ),
    "Mixup(0.8, 1.0, prob=0.9, switch_prob=0.3, mode='pair', num_classes=4)": (
        f"mix={OURS}BatchMixer([{OURS}MixUp(0.8), {OURS}CutMix(1.0)], p=0.9, weights=(0.7, 0.3), mode='pair', "
        "label_smoothing=0.1, num_classes=4)"
    ),
    "FastCollateMixup(0.0, 0.3, label_smoothing=0)": f"mix={OURS}BatchMixer([{OURS}CutMix(0.3)], num_classes=1000)",
    "A.MixUp(0.3)": f"mix={OURS}MixUp(0.3)",
    "A.BatchMixer([A.MixUp(0.3)])": "mix=BatchMixer(mixers=(MixUp(alpha=0.3),)",
    "A.Mosaic(64)": "mix=Mosaic(size=(64, 64)",
}


@pytest.mark.slow
@pytest.mark.parametrize("code", MIXES)
def test_mixers_where_a_function_belongs_name_the_mix(store: Path, code: str) -> None:
    from timm.data.mixup import FastCollateMixup, Mixup

    mixer = eval(code, {"v2": v2, "A": A, "Mixup": Mixup, "FastCollateMixup": FastCollateMixup})
    floats = [v2.CenterCrop(9), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    uses: list[dict[str, Any]] = [
        {"augment": mixer},
        {"augment": [A.RandomResizedCrop(8), mixer]},
        {"augment": A.Compose([mixer])},
        {"augment": [*floats, mixer]},
        {"views": {"a": [A.CenterCrop(9), mixer]}},
    ]
    if not code.startswith("A."):
        uses += [{"mix": mixer}, {"mix": [mixer]}, {"augment": v2.Compose([*floats, mixer])}, {"transform": mixer}]
        with pytest.raises(UsageError, match=re.escape(MIXES[code])):
            PackedDataset(store, transform=mixer)
    for use in uses:
        with pytest.raises(UsageError, match=re.escape(MIXES[code])):
            PackedLoader(PackedDataset(store), 4, **use)
    if not code.startswith(("A.B", "A.Mo")):
        line = MIXES[code].removeprefix("mix=")
        assert PackedLoader(PackedDataset(store), 4, mix=eval(line, {"packstore": packstore})).options.mix is not None


@pytest.mark.parametrize("mix", [[A.BatchMixer([A.MixUp()])], [A.Mosaic(64)], [v2.MixUp(), A.CutMix()]])
def test_lists_of_mixers_that_cannot_be_name_the_mix(store: Path, mix: Any) -> None:
    with pytest.raises(UsageError, match=r"mix= takes .*; write mix="):
        PackedLoader(PackedDataset(store), 4, mix=mix)
    with pytest.raises(UsageError, match=r"mix= takes [^;]*$"):
        PackedLoader(PackedDataset(store), 4, mix=[*mix, A.CenterCrop(9)])
