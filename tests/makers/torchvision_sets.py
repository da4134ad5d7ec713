"""Small data sets in the folders that torchvision's classes read, for those that need a name or a rule of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.makers.all_layouts import idx
from tests.makers.annotated import fill, jpeg, mask
from tests.makers.images import encode
from tests.makers.layouts import mat

Files = dict[str, str | bytes]


def _gray(seed: int, side: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (side, side), np.uint8)


def _numbered(*folders: str, count: int = 2, suffix: str = ".jpg") -> Files:
    """Images in folders, each another one; ``{n}`` in a folder is the number within it."""
    names = [folder.format(n=n) if "{n}" in folder else f"{folder}/{n}" for folder in folders for n in range(count)]
    return {f"{name}{suffix}": jpeg(seed) for seed, name in enumerate(names)}


def clevr(root: Path) -> None:
    for n, split in enumerate(("train", "val", "test")):
        files: Files = {f"images/{split}/CLEVR_{split}_{i:06}.png": jpeg(10 * n + i) for i in range(2)}
        if split != "test":
            scenes = [{"image_filename": f"CLEVR_{split}_{i:06}.png", "objects": [0] * (3 + i)} for i in range(2)]
            files[f"scenes/CLEVR_{split}_scenes.json"] = json.dumps({"scenes": scenes})
        fill(root / "clevr/CLEVR_v1.0", files)


def emnist(root: Path) -> None:
    for seed, (split, count) in enumerate((("train", 4), ("test", 2))):
        images = np.stack([_gray(10 * seed + n, 28) for n in range(count)])
        base = f"EMNIST/raw/emnist-letters-{split}"
        fill(root, {f"{base}-images-idx3-ubyte": idx(images)})
        fill(root, {f"{base}-labels-idx1-ubyte": idx(np.arange(1, 1 + count, dtype=np.uint8))})


def fer2013(root: Path) -> None:
    rows = "emotion,pixels,Usage\n"
    for n in range(5):
        rows += f"{n},{' '.join(map(str, _gray(n, 48).ravel()))},{'PublicTest' if n > 2 else 'Training'}\n"
    fill(root, {"fer2013/fer2013.csv": rows})


def imagenet(root: Path) -> None:
    import torch

    fill(root, _numbered(*(f"{split}/{kind}" for split in ("train", "val") for kind in ("n01", "n02"))))
    torch.save(({"n01": ("crane",), "n02": ("crane",)}, []), root / "meta.bin")


def inaturalist(root: Path) -> None:
    kinds = ("00000_Animalia_Chordata_Aves_P_F_G_s", "00001_Animalia_Chordata_Aves_P_F_G_t")
    fill(root, _numbered(*(f"2021_{split}/{kind}" for split in ("train", "valid") for kind in kinds)))


def lfw_people(root: Path) -> None:
    names = {"Ann": 3, "Bob": 3}
    base = root / "lfw-py"
    fill(base, {"lfw-funneled.tgz": "", "lfw-names.txt": "".join(f"{name}\t{n}\n" for name, n in names.items())})
    fill(base, {"peopleDevTrain.txt": "2\nAnn\t2\nBob\t1\n", "peopleDevTest.txt": "1\nBob\t3\n"})
    images = [f"lfw_funneled/{name}/{name}_{n:04}.jpg" for name in names for n in (1, 2, 3)]
    fill(base, {name: jpeg(seed) for seed, name in enumerate(images)})


def lfw_pairs(root: Path) -> None:
    lfw_people(root)
    pairs = "1\nAnn\t1\t2\nAnn\t1\tBob\t2\n"
    fill(root / "lfw-py", {"pairsDevTrain.txt": pairs, "pairsDevTest.txt": pairs})


def omniglot(root: Path) -> None:
    for seed, (split, letters) in enumerate((("background", "Greek Latin"), ("evaluation", "Tibetan"))):
        folders = [f"images_{split}/{each}/character0{n}" for each in letters.split() for n in (1, 2)]
        names = [f"{folder}/{number:04}_{n:02}.png" for number, folder in enumerate(folders) for n in range(2)]
        images = {name: encode(Image.fromarray(_gray(100 * seed + n, 20)), "PNG") for n, name in enumerate(names)}
        fill(root / "omniglot-py", {f"images_{split}.zip": "", **images})


def photo_tour(root: Path) -> None:
    import torch

    patches = torch.from_numpy(np.stack([_gray(n, 64) for n in range(4)]))
    root.mkdir()
    torch.save((patches, torch.arange(4), torch.tensor([[0, 1, 1], [2, 3, 0]])), root / "liberty.pt")


def sbd(root: Path) -> None:
    boundaries = np.zeros((20, 1), object)
    objects = {n: {"Segmentation": _gray(n, 16)[:8] % 21, "Boundaries": boundaries} for n in range(4)}
    fill(root, {"train.txt": "0\n1\n", "val.txt": "2\n3\n", **_numbered("img", count=4)})
    fill(root, {f"cls/{n}.mat": mat(GTcls=each) for n, each in objects.items()})


def sintel(root: Path) -> None:
    folders = [f"{split}/{name}/alley" for split in ("training", "test") for name in ("clean", "final")]
    fill(root / "Sintel", _numbered(*folders, count=3, suffix=".png"))
    for n in range(2):
        flow = np.random.default_rng(n).random((8 + n, 16, 2), np.float32)
        head = b"PIEH" + np.array([16, 8 + n], "<i4").tobytes()
        fill(root / "Sintel/training/flow/alley", {f"{n}.flo": head + flow.astype("<f4").tobytes()})


def eth3d(root: Path) -> None:
    for seed, split in enumerate(("two_view_training", "two_view_test")):
        for n in range(2):
            fill(root / f"ETH3D/{split}/scene{n}", {f"im{k}.png": jpeg(100 * seed + 10 * n + k) for k in range(2)})
    for n in range(2):
        values = np.random.default_rng(n).random((8, 16), np.float32).astype("<f4").tobytes()
        truth = {"disp0GT.pfm": b"Pf\n16 8\n-1.0\n" + values, "mask0nocc.png": mask(n, mode="L")}
        fill(root / f"ETH3D/two_view_training_gt/scene{n}", truth)


SETS: Mapping[str, tuple[Callable[[Path], None], Mapping[str, int], Mapping[str, str]]] = {
    "CLEVRClassification": (clevr, {"train": 2, "val": 2, "test": 2}, {"label": "label", "file": "text"}),
    "EMNIST,split=letters": (emnist, {"train": 4, "test": 2}, {"label": "label"}),
    "ETH3DStereo": (
        eth3d,
        {"train": 2, "test": 2},
        {"right": "image", "disparity": "bytes", "valid_mask": "mask", "file": "text"},
    ),
    "FER2013": (fer2013, {"train": 3, "test": 2}, {"label": "label"}),
    "INaturalist": (inaturalist, {"train": 4, "val": 4}, {"file": "text", "label": "label"}),
    "ImageNet": (imagenet, {"train": 4, "val": 4}, {"label": "label"}),
    "LFWPairs": (lfw_pairs, {"train": 2, "test": 2}, {"second": "image", "file": "text", "label": "label"}),
    "LFWPeople": (lfw_people, {"train": 3, "test": 3}, {"file": "text", "label": "label"}),
    "Omniglot": (omniglot, {"background": 8, "evaluation": 4}, {"file": "text", "label": "label"}),
    "PhotoTour,name=liberty": (photo_tour, {"train": 4, "test": 2}, {"second": "image", "match": "array"}),
    "SBDataset": (sbd, {"train": 2, "val": 2}, {"mask": "mask", "file": "text"}),
    "Sintel": (sintel, {"train": 2, "test": 2}, {"second": "image", "flow": "bytes", "file": "text"}),
}
"""Datasets with arguments: maker, records by split, and columns beside the image with their types."""
