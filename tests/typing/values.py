"""Values of the public callables' arguments, other than numbers, texts and bools, for ``mypy --strict``, see
``tests/test_keywords.py``. Nothing runs this."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import packstore
from packstore import PackedDataset, PackedLoader, SizeError, augment
from packstore.augment import (
    CenterCrop,
    Cutout,
    InPlace,
    PerImage,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from tests.internals import Field


def doubled(batch: torch.Tensor) -> torch.Tensor:
    return batch * 2


def convert(mean: list[float], std: list[float]) -> int:
    report = packstore.convert(
        source="photos",
        destination=Path("photos.lmdb"),
        ignore=["*.txt"],
        columns=["image=photo"],
        size=(224, 256),
        normalize=(mean, std),
    )
    return report.manifest.records


def audit() -> dict[str, int]:
    report = packstore.audit(store="photos.lmdb")
    return dict(report.counts)


def export() -> tuple[str, ...]:
    report = packstore.export(store="photos.lmdb", destination=Path("shards"))
    return report.losses


def write(dataset: torch.utils.data.Dataset[tuple[bytes, int]], files: list[bytes]) -> int:
    fields: dict[str, Field | str] = {
        "image": packstore.Image(),
        "mask": packstore.Mask(),
        "label": packstore.Label(classes=["ant", "bee"]),
        "labels": packstore.Labels(classes=["ant", "bee"]),
        "boxes": packstore.Boxes(),
        "points": packstore.Keypoints(),
        "caption": packstore.Text(),
        "pages": packstore.Images(),
        "notes": packstore.Json(),
        "blob": packstore.Bytes(),
        "vector": packstore.Array(dtype="float32", shape=(512,)),
        "score": "float64",
    }
    with packstore.Writer(path=Path("photos.lmdb"), fields=fields) as writer:
        for number, file in enumerate(files):
            writer.add(key=f"{number}", split="train", image=file, label=0, score=0.5)
    packstore.convert(dataset, "a.lmdb")
    packstore.convert(
        {"train": dataset, "val": [{"image": file} for file in files]}, "b.lmdb", fields={"image": "image"}
    )
    packstore.convert(({"image": file} for file in files), "c.lmdb")
    return 0 if writer.report is None else writer.report.manifest.records


def publish_growth() -> int:
    report = packstore.append(store="photos.lmdb", source=Path("more"), ignore=["*.txt"], columns=["image=photo"])
    merged = packstore.merge(stores=["a.lmdb", Path("b.lmdb")], destination="both.lmdb", classes=["cat", "dog"])
    chosen = packstore.select(
        store="both.lmdb",
        destination=Path("some.lmdb"),
        splits={"train": 0.9, "val": 0.1},
        drop_kinds=["leakage"],
        drop_columns=["mask"],
        relabel={"cat": "pet"},
        progress=lambda report: None,
    )
    indexed = packstore.add_index(store="photos.lmdb")
    moved = packstore.relink(store="photos.lmdb", rebase=("/old", Path("/new")), progress=lambda report: None)
    added = indexed.manifest.records + sum(report.added.values()) + report.duplicates + report.linked + report.rewritten
    added += moved.files + moved.moved + moved.proven
    return added + merged.linked + merged.copied + merged.duplicates + chosen.manifest.records


def check() -> bool:
    report = packstore.verify(
        path="photos.lmdb",
        against=Path("photos"),
        labels=Path("labels.csv"),
        progress=lambda report: None,
        ignore=["*.txt"],
        columns=["image=photo"],
    )
    repaired = packstore.repair(damaged="photos.lmdb", source="photos", ignore=["*.txt"], columns=["image=photo"])
    saved = packstore.salvage(damaged="photos.lmdb", destination="rest.lmdb")
    with packstore.open(path="photos.lmdb") as store:
        return report.ok and not repaired.lost and saved.complete and len(store) > 0


def load() -> float:
    dataset = PackedDataset(path="photos.lmdb", columns=("image", "label", "key"))
    both = packstore.concat(stores=["photos.lmdb", "drawings.h5"], columns=("image",))
    mixed = packstore.Mix(weights={"photos.lmdb": 3, "drawings.h5": 1}, epoch=len(both))
    print(both.classes, mixed.draws)
    key, label = dataset.samples[0]
    first: int = label + dataset.targets[0] + dataset.class_to_idx["ant"]
    print(key.upper(), first, dataset.keys[1], dataset.imgs[2], dataset.show(0).size, dataset.loader(key).size)
    loader = PackedLoader(
        dataset=dataset,
        indices=np.arange(100),
        augment=[
            RandomResizedCrop(size=224, scale=(0.2, 1.0), ratio=(0.8, 1.25)),
            RandomHorizontalFlip(),
            Resize(size=(64, 64)),
            augment.RandomResize(min_size=32, max_size=64),
            augment.RandomShortestSize(min_size=[32, 48]),
            augment.ScaleJitter(target_size=64, scale_range=(0.5, 1.5)),
            augment.Pad(padding=(1, 2)),
            augment.ThreeAugment(),
            augment.RandomZoomOut(fill=(1, 2, 3), side_range=(1.0, 2.0)),
            augment.RandomIoUCrop(sampler_options=[0.1, 1.0]),
            augment.RandomSizeCrop(min_size=16, max_size=32),
            RandomCrop(size=32),
            CenterCrop(size=28),
            Cutout(size=8),
            PerImage(fn=torch.abs),
            InPlace(fn=torch.abs),
            doubled,
        ],
        mix=augment.BatchMixer(mixers=[augment.MixUp(), augment.CutMix()], weights=[0.5, 0.5]),
        views={"global": (2, [RandomResizedCrop(size=224)]), "local": (8, [RandomResizedCrop(size=96)])},
        masking=augment.RandomMasking(),
        dtype=torch.float16,
        transform=doubled,
        target_transform=doubled,
        pre_transform=doubled,
        collate={"boxes": "padded", "tags": "multi_hot", "caption": "optional"},
    )
    singles = (
        PackedLoader(dataset, augment=RandomCrop(32)),
        PackedLoader(dataset, augment=torch.nn.Sequential(torch.nn.Identity())),
        PackedLoader(dataset, augment=doubled),
        PackedLoader(dataset, shuffle="lanes"),
    )
    print(*singles)
    print(packstore.coco_masks(segmentations=[[[1, 2, 3, 4, 5, 6]]], height=8, width=8).shape)
    try:
        ahead = packstore.prefetch(iterable=loader, device="cpu", normalize=([0.5] * 3, [0.2] * 3), dtype=torch.float16)
        return float(sum(images.sum() for images, *_ in ahead))
    except SizeError:
        return 0.0


def operations() -> list[augment.Operation]:
    gray = augment.RandomGrayscale()
    return [
        augment.ColorJitter(contrast=(0.5, 1.5)),
        augment.Grayscale(),
        augment.RandomInvert(),
        augment.RandomPosterize(bits=4),
        augment.RandomSolarize(threshold=128),
        augment.RandomAutocontrast(),
        augment.RandomEqualize(),
        augment.RandomAdjustSharpness(sharpness_factor=2),
        augment.RandomChannelPermutation(),
        augment.RandomPhotometricDistort(
            brightness=(0.9, 1.1), contrast=(0.5, 1.5), saturation=(0.5, 1.5), hue=(-0.1, 0.1)
        ),
        augment.GaussianBlur(kernel_size=(23, 23), sigma=(0.1, 2.0)),
        augment.GaussianNoise(),
        augment.RandomErasing(scale=(0.02, 0.33), ratio=(0.3, 3.3), count=(1, 3)),
        augment.RandAugment(fill=(1, 2, 3)),
        augment.TrivialAugmentWide(),
        augment.AutoAugment(),
        augment.AugMix(),
        augment.RandomApply(transforms=[gray]),
        augment.RandomChoice(transforms=[gray], p=[1.0]),
        augment.RandomOrder(transforms=[gray]),
        augment.Compose(transforms=[gray]),
        augment.RandomVerticalFlip(),
        augment.RandomRotation(degrees=30, center=(3, 4)),
        augment.RandomAffine(degrees=(-10, 10), translate=(0.1, 0.1), scale=(0.8, 1.2), shear=(-5, 5)),
        augment.RandomPerspective(fill=(1, 2, 3)),
        augment.TimmAugment(config="rand-m9-mstd0.5-inc1", fill=(124, 116, 104)),
        *augment.recipe(name="deit3"),
    ]


def mosaic() -> augment.Mosaic:
    return augment.Mosaic(size=64, center_range=(0.25, 0.75))


def masked(found: augment.Masking) -> augment.Masking:
    assert len(augment.RASampler(dataset=[1, 2])) == 2
    return augment.Masking(keep=found.keep, mask=found.mask, restore=found.restore)


def mixed(labels: augment.MixedLabels) -> augment.MixedLabels:
    return augment.MixedLabels(first=labels.first, second=labels.second, share=labels.share)
