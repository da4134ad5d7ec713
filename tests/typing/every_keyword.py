"""Every keyword of the public callables, for ``mypy --strict``: see ``tests/test_keywords.py``. Nothing runs this."""

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
from packstore.core.fields import Field


def doubled(batch: torch.Tensor) -> torch.Tensor:
    return batch * 2


def convert(mean: list[float], std: list[float]) -> int:
    report = packstore.convert(
        source="photos",
        destination=Path("photos.lmdb"),
        source_kind="imagefolder",
        labels="labels.csv",
        image_key="x",
        label_key="y",
        layout="NHWC",
        ignore=["*.txt"],
        columns=["image=photo"],
        fields=None,
        split="train",
        format="lmdb",
        encoding="float16",
        size=(224, 256),
        fit="pad",
        resize=256,
        max_side=512,
        quality=90,
        normalize=(mean, std),
        exif_transpose=True,
        check="decode",
        on_error="skip",
        overwrite=True,
        restart=True,
        shard_size="500MB",
        workers=4,
        decoder="pillow",
        max_pixels=100_000_000,
        mode="L",
        depth="scale",
        alpha="drop",
        frames=0,
        link=False,
        cluster="processes:2",
        index=False,
        progressive="baseline",
        progress=True,
    )
    return report.manifest.records


def audit() -> dict[str, int]:
    report = packstore.audit(
        store="photos.lmdb",
        pixels=True,
        near=True,
        mirrored=True,
        mask_classes=21,
        min_side=32,
        max_aspect=4,
        imbalance=100,
        workers=4,
        max_pixels=100_000_000,
        progress=True,
    )
    return dict(report.counts)


def export() -> tuple[str, ...]:
    report = packstore.export(
        store="photos.lmdb",
        destination=Path("shards"),
        to="webdataset",
        encode="jpeg",
        quality=90,
        shard_size="500MB",
        bare=False,
        overwrite=True,
        restart=True,
        workers=4,
        progress=True,
    )
    return report.losses


def write(dataset: torch.utils.data.Dataset[tuple[bytes, int]], files: list[bytes]) -> int:
    fields: dict[str, Field | str] = {
        "image": packstore.Image(encoding="original", optional=False, mode=None),
        "mask": packstore.Mask(dtype="uint8", optional=True),
        "label": packstore.Label(classes=["ant", "bee"], optional=True),
        "labels": packstore.Labels(classes=["ant", "bee"], of="boxes", optional=True),
        "boxes": packstore.Boxes(coordinates="xyxy", optional=True),
        "points": packstore.Keypoints(k=3, of=False, points=17, optional=True),
        "caption": packstore.Text(optional=True),
        "pages": packstore.Images(optional=True, mode=None),
        "notes": packstore.Json(optional=True),
        "blob": packstore.Bytes(optional=True),
        "vector": packstore.Array(
            dtype="float32", shape=(512,), ragged=False, optional=True, spatial=False, smooth=False
        ),
        "score": "float64",
    }
    with packstore.Writer(
        path=Path("photos.lmdb"),
        fields=fields,
        split="train",
        format="lmdb",
        encoding="jpeg",
        size=None,
        fit=None,
        resize=None,
        max_side=None,
        quality=90,
        normalize=None,
        exif_transpose=False,
        check="header",
        on_error="raise",
        overwrite=True,
        shard_size="500MB",
        workers=2,
        decoder="auto",
        max_pixels=100_000_000,
        mode="RGB",
        depth="window:0,4095",
        alpha="over:white",
        frames="first",
        index=True,
        progress=False,
    ) as writer:
        for number, file in enumerate(files):
            writer.add(key=f"{number}", split="train", image=file, label=0, score=0.5)
    packstore.convert(dataset, "a.lmdb", split="train", workers=8)
    packstore.convert(
        {"train": dataset, "val": [{"image": file} for file in files]}, "b.lmdb", fields={"image": "image"}
    )
    packstore.convert(({"image": file} for file in files), "c.lmdb")
    return 0 if writer.report is None else writer.report.manifest.records


def publish_growth() -> int:
    report = packstore.append(
        store="photos.lmdb",
        source=Path("more"),
        split="train",
        source_kind="imagefolder",
        labels="labels.csv",
        image_key="x",
        label_key="y",
        key_prefix="more/",
        no_new_classes=True,
        layout="NHWC",
        ignore=["*.txt"],
        columns=["image=photo"],
        on_duplicate="skip",
        on_error="skip",
        check="decode",
        shard_size="500MB",
        restart=True,
        workers=4,
        decoder="pillow",
        max_pixels=100_000_000,
        depth="clip",
        alpha="drop",
        frames=0,
        progress=True,
    )
    merged = packstore.merge(
        stores=["a.lmdb", Path("b.lmdb")],
        destination="both.lmdb",
        classes=["cat", "dog"],
        format="lmdb",
        on_duplicate="skip",
        overwrite=True,
        progress=True,
    )
    chosen = packstore.select(
        store="both.lmdb",
        destination=Path("some.lmdb"),
        where="label in (cat, dog) and split == train",
        sample=1000,
        per_class=50,
        splits={"train": 0.9, "val": 0.1},
        stratify=True,
        whole_shards=False,
        seed=1,
        drop="audit.json",
        drop_kinds=["leakage"],
        drop_columns=["mask"],
        relabel={"cat": "pet"},
        format="lmdb",
        shard_size="500MB",
        overwrite=True,
        progress=lambda report: None,
    )
    indexed = packstore.add_index(store="photos.lmdb", progress=True)
    moved = packstore.relink(
        store="photos.lmdb", rebase=("/old", Path("/new")), links="relative", progress=lambda report: None
    )
    added = indexed.manifest.records + sum(report.added.values()) + report.duplicates + report.linked + report.rewritten
    added += moved.files + moved.moved + moved.proven
    return added + merged.linked + merged.copied + merged.duplicates + chosen.manifest.records


def check() -> bool:
    report = packstore.verify(
        path="photos.lmdb",
        quick=False,
        decode=True,
        against=Path("photos"),
        source_kind="imagefolder",
        labels=Path("labels.csv"),
        image_key="x",
        label_key="y",
        layout="NHWC",
        workers=4,
        decoder="auto",
        max_pixels=100_000_000,
        progress=lambda report: None,
        ignore=["*.txt"],
        columns=["image=photo"],
    )
    repaired = packstore.repair(
        damaged="photos.lmdb",
        source="photos",
        destination="whole.lmdb",
        source_kind="imagefolder",
        labels="labels.csv",
        image_key="x",
        label_key="y",
        layout="NHWC",
        partial=True,
        workers=4,
        decoder="auto",
        max_pixels=100_000_000,
        progress=True,
        ignore=["*.txt"],
        columns=["image=photo"],
    )
    saved = packstore.salvage(damaged="photos.lmdb", destination="rest.lmdb", unproven=True, progress=True)
    with packstore.open(path="photos.lmdb", checksums="always") as store:
        return report.ok and not repaired.lost and saved.complete and len(store) > 0


def load() -> float:
    dataset = PackedDataset(
        path="photos.lmdb",
        split="train",
        device="cpu",
        columns=("image", "label", "key"),
        output="tensor",
        transform=None,
        target_transform=None,
        transforms=None,
        decoder="auto",
        exif_transpose=None,
        dtype=None,
        denormalize=False,
        mode="L",
        depth="scale",
        alpha="drop",
        frames="first",
        checksums="never",
        max_pixels=100_000_000,
    )
    both = packstore.concat(stores=["photos.lmdb", "drawings.h5"], split="train", columns=("image",))
    mixed = packstore.Mix(weights={"photos.lmdb": 3, "drawings.h5": 1}, split="train", temperature=2.0, epoch=len(both))
    print(both.classes, mixed.draws)
    key, label = dataset.samples[0]
    first: int = label + dataset.targets[0] + dataset.class_to_idx["ant"]
    print(key.upper(), first, dataset.keys[1], dataset.imgs[2], dataset.show(0).size, dataset.loader(key).size)
    loader = PackedLoader(
        dataset=dataset,
        batch_size=32,
        shuffle=True,
        seed=1,
        stream="local",
        drop_last=True,
        block=64,
        window=8,
        sampler=None,
        indices=np.arange(100),
        augment=[
            RandomResizedCrop(size=224, scale=(0.2, 1.0), ratio=(0.8, 1.25), interpolation="random", antialias=False),
            RandomHorizontalFlip(p=0.5, alternating=True),
            Resize(size=(64, 64), interpolation="bicubic", antialias=True),
            augment.RandomResize(min_size=32, max_size=64, interpolation="bicubic", antialias=True),
            augment.RandomShortestSize(min_size=[32, 48], max_size=64, interpolation="nearest", antialias=True),
            augment.ScaleJitter(target_size=64, scale_range=(0.5, 1.5), interpolation="bilinear", antialias=False),
            augment.Pad(padding=(1, 2), fill=0.5, padding_mode="edge"),
            augment.ThreeAugment(),
            augment.RandomZoomOut(fill=(1, 2, 3), side_range=(1.0, 2.0), p=0.5),
            augment.RandomIoUCrop(
                min_scale=0.3,
                max_scale=1.0,
                min_aspect_ratio=0.5,
                max_aspect_ratio=2.0,
                sampler_options=[0.1, 1.0],
                trials=40,
            ),
            augment.RandomSizeCrop(min_size=16, max_size=32),
            RandomCrop(size=32, padding=4, padding_mode="reflect", fill=0.5, pad_if_needed=False),
            CenterCrop(size=28),
            Cutout(size=8, fill=0.5),
            PerImage(fn=torch.abs, generator=False, threads=True),
            InPlace(fn=torch.abs),
            doubled,
        ],
        mix=augment.BatchMixer(
            mixers=[augment.MixUp(alpha=0.8), augment.CutMix(alpha=1.0)],
            p=1.0,
            weights=[0.5, 0.5],
            mode="elem",
            labels="dense",
            label_smoothing=0.1,
            num_classes=10,
        ),
        views={"global": (2, [RandomResizedCrop(size=224)]), "local": (8, [RandomResizedCrop(size=96)])},
        masking=augment.RandomMasking(ratio=0.75, patch=16),
        normalize="imagenet",
        dtype=torch.float16,
        channels_last=True,
        output="numpy",
        transform=doubled,
        target_transform=doubled,
        pre_transform=doubled,
        resident="auto",
        workers=4,
        prefetch=3,
        rank=0,
        world_size=2,
        on_error="skip",
        collate={"boxes": "padded", "tags": "multi_hot", "caption": "optional"},
        mask_fill=255,
        min_area=4.0,
        min_visible=0.25,
    )
    singles = (
        PackedLoader(dataset, augment=RandomCrop(32)),
        PackedLoader(dataset, augment=torch.nn.Sequential(torch.nn.Identity())),
        PackedLoader(dataset, augment=doubled),
        PackedLoader(dataset, shuffle="lanes"),
    )
    print(*singles)
    print(packstore.coco_masks(segmentations=[[[1, 2, 3, 4, 5, 6]]], height=8, width=8, max_bytes=64).shape)
    try:
        ahead = packstore.prefetch(
            iterable=loader, device="cpu", normalize=([0.5] * 3, [0.2] * 3), dtype=torch.float16, ahead=2
        )
        return float(sum(images.sum() for images, *_ in ahead))
    except SizeError:
        return 0.0


def operations() -> list[augment.Operation]:
    gray = augment.RandomGrayscale(p=0.2)
    return [
        augment.ColorJitter(brightness=0.4, contrast=(0.5, 1.5), saturation=0.4, hue=0.1),
        augment.Grayscale(num_output_channels=3),
        augment.RandomInvert(p=0.5),
        augment.RandomPosterize(bits=4, p=0.5),
        augment.RandomSolarize(threshold=128, p=0.5),
        augment.RandomAutocontrast(p=0.5),
        augment.RandomEqualize(p=0.5),
        augment.RandomAdjustSharpness(sharpness_factor=2, p=0.5),
        augment.RandomChannelPermutation(),
        augment.RandomPhotometricDistort(
            brightness=(0.9, 1.1), contrast=(0.5, 1.5), saturation=(0.5, 1.5), hue=(-0.1, 0.1), p=0.5
        ),
        augment.GaussianBlur(kernel_size=(23, 23), sigma=(0.1, 2.0)),
        augment.GaussianNoise(mean=0.0, sigma=0.1, clip=True),
        augment.RandomErasing(p=0.5, scale=(0.02, 0.33), ratio=(0.3, 3.3), value="random", count=(1, 3)),
        augment.RandAugment(num_ops=2, magnitude=9, num_magnitude_bins=31, interpolation="bilinear", fill=(1, 2, 3)),
        augment.TrivialAugmentWide(num_magnitude_bins=31, interpolation="nearest", fill=0),
        augment.AutoAugment(policy="cifar10", interpolation="nearest", fill=None),
        augment.AugMix(
            severity=3, mixture_width=3, chain_depth=-1, alpha=1.0, all_ops=True, interpolation="bilinear", fill=None
        ),
        augment.RandomApply(transforms=[gray], p=0.5),
        augment.RandomChoice(transforms=[gray], p=[1.0]),
        augment.RandomOrder(transforms=[gray]),
        augment.Compose(transforms=[gray]),
        augment.RandomVerticalFlip(p=0.5),
        augment.RandomRotation(degrees=30, interpolation="bilinear", center=(3, 4), fill=0),
        augment.RandomAffine(
            degrees=(-10, 10),
            translate=(0.1, 0.1),
            scale=(0.8, 1.2),
            shear=(-5, 5),
            interpolation="nearest",
            fill=None,
            center=None,
        ),
        augment.RandomPerspective(distortion_scale=0.5, p=0.5, interpolation="bilinear", fill=(1, 2, 3)),
        augment.TimmAugment(config="rand-m9-mstd0.5-inc1", fill=(124, 116, 104), interpolation="random"),
        *augment.recipe(name="deit3"),
    ]


def mosaic() -> augment.Mosaic:
    return augment.Mosaic(size=64, center_range=(0.25, 0.75), fill=0.5, p=1.0)


def masked(found: augment.Masking) -> augment.Masking:
    assert len(augment.RASampler(dataset=[1, 2], repeats=3, seed=1)) == 2
    return augment.Masking(keep=found.keep, mask=found.mask, restore=found.restore)


def mixed(labels: augment.MixedLabels) -> augment.MixedLabels:
    return augment.MixedLabels(first=labels.first, second=labels.second, share=labels.share)
