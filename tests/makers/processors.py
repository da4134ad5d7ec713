"""What every processor gives alike: prints a line a check, its name and a digest.

python -m tests.makers.processors prepare FOLDER    files and stores that are compared, in a new folder
python -m tests.makers.processors digests FOLDER    the digests of all that is made of them
python -m tests.makers.processors decoding FOLDER   of decoding and of batches alone
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.images.engine import Engine, Requests
from packstore.training.augment import RandomHorizontalFlip, RandomResizedCrop
from tests.internals import INTERPOLATIONS, Code, join_programs, load_once, pack_warp_flags, step
from tests.makers.engine_checks import run, save
from tests.makers.jpegs import noisy

Lines = Iterator[tuple[str, str]]

STORES: dict[str, dict[str, Any]] = {
    "original.lmdb": {},
    "uint8.h5": {"encoding": "uint8", "size": 60},
    "float16.pth": {"encoding": "float16", "size": 60},
    "bfloat16.lmdb": {"encoding": "bfloat16", "size": 60},
}


def prepare(folder: Path) -> None:
    """Writes JPEG files of two classes and of all samplings, and a store of each encoding."""
    for number in range(32):
        height, width = 40 + 37 * number % 300, 60 + 61 * number % 340
        sampling = ("444", "422", "420", "gray")[number % 4]
        path = folder / "photos" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(save(noisy(height, width, number), sampling, quality=50 + number))
    for name, options in STORES.items():
        packstore.convert(folder / "photos", folder / name, **options)


def digest(*arrays: Any) -> str:
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def decoded(folder: Path, engine: Engine) -> Lines:
    """Whole images, their seek indexes, and crops by these, resized and mirrored."""
    rng = np.random.default_rng(0)
    for path in sorted((folder / "photos").rglob("*.jpg")):
        data = path.read_bytes()
        index = engine.make_indexes([data])[0]
        size = Requests([data]).read_sizes()[0].tolist()
        made = [run(engine, data, (0, 0, *size), channels=channels) for channels in (3, 1)]
        for n in range(8):
            height, width = rng.integers(8, size[0] + 1), rng.integers(8, size[1] + 1)
            box = (rng.integers(size[0] - height + 1), rng.integers(size[1] - width + 1), height, width)
            made.append(
                run(engine, data, box, (40 + n, 70 - n), None, n % 2 == 1, index=index, channels=3 if n < 4 else 1)
            )
        assert all(image is not None for image in made), path
        yield path.stem, digest(np.frombuffer(index, np.uint8), *made)


def augmented(engine: Engine) -> Lines:
    """Each operation of programs, with several parameters, alone; images whose rows end within a vector among them."""
    rng = np.random.default_rng(1)
    cases: dict[Code, list[tuple[tuple[float, ...], int]]] = {
        **{code: [((f,), 0) for f in (0, 0.3, 1.4, 5)] for code in _FACTORS},
        Code.HUE: [((f,), 0) for f in (-0.5, -0.1, 0.07, 0.5)],
        **{code: [((), 0)] for code in _WITHOUT},
        Code.POSTERIZE: [((n,), 0) for n in (0, 3, 8)],
        Code.SOLARIZE: [((127.5,), 0)],
        Code.SOLARIZE_ADD: [((30, 128), 0)],
        Code.BLUR: [((5, 9, 0.7, 2.1), 0), ((23, 1, 4, 1), 0)],
        Code.NOISE: [((3, 20, 77, 5), 1), ((0, 90, 1, 2), 0)],
        Code.PERMUTE: [((2, 0, 1), 0)],
        Code.AFFINE: [
            ((0.9, 0.2, -3.3, -0.15, 1.1, 2.6), pack_warp_flags(how, (9, 99, 199), way))
            for how in range(len(INTERPOLATIONS))
            for way in ("blend", "edge")
        ]
        + [
            (matrix, pack_warp_flags(how, (9, 99, 199), "edge"))
            for matrix in ((1, 0.21, -3.3, 0, 1, 0), (1, 0, 0, -0.15, 1, 2.6))
            for how in (1, 2)
        ],
        Code.PERSPECTIVE: [
            ((1.01, 0.02, -3, 0.01, 0.97, 2, 1e-4, -2e-4), pack_warp_flags(how, None))
            for how in range(len(INTERPOLATIONS))
        ],
        Code.ERASE: [((3, 4, 9, 12, 7, 8, 9), 2), ((2, 2, 20, 30, 5, 6), 1)],
    }
    for code, variants in cases.items():
        made = []
        for parameters, flags in variants:
            for size in ((1, 7), (33, 71), (64, 96)):
                images = rng.integers(0, 256, (2, *size, 3), np.uint8)
                engine.augment(images, step(2, code, *parameters, flags=flags))
                made.append(images)
        yield code.name.lower(), digest(*made)
    images = rng.integers(0, 256, (2, 61, 47, 3), np.uint8)
    steps = [step(2, Code.KEEP, 0.3), step(2, Code.INVERT), step(2, Code.ADD, 0.7), step(2, Code.MIX)]
    engine.augment(images, join_programs(steps, 2))
    yield "a sum of images", digest(images)


_FACTORS = (Code.BRIGHTNESS, Code.CONTRAST, Code.SATURATION, Code.SHARPNESS)
_WITHOUT = (Code.GRAY, Code.INVERT, Code.AUTOCONTRAST, Code.EQUALIZE, Code.MIRROR, Code.FLIP)


def batches(folder: Path) -> Lines:
    """Batches of each store, in each type; of files in gray, too."""
    for name, mode in (*((name, None) for name in STORES), ("original.lmdb", "L")):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            loader = PackedLoader(
                PackedDataset(folder / name, mode=mode),
                8,
                shuffle=True,
                seed=3,
                workers=2,
                augment=[RandomResizedCrop(48), RandomHorizontalFlip()],
                normalize=None if "float16" in name or mode else "imagenet",
                dtype=dtype,
            )
            made = [images.contiguous().view(torch.uint8).numpy().copy() for images, _ in loader]
            yield f"batches of {name} in {dtype}{', gray' if mode else ''}", digest(*made)


def converted(folder: Path) -> Lines:
    """Stores that are made here, whose files are the same."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, options in STORES.items():
            if name.endswith(".lmdb"):  # of HDF5 and .pth the bytes are those of libraries, whose versions differ
                packstore.convert(folder / "photos", Path(scratch) / name, **options)
                made = [
                    images.contiguous().view(torch.uint8).numpy()
                    for images, _ in PackedLoader(
                        PackedDataset(Path(scratch) / name), 8, augment=[RandomResizedCrop(48)]
                    )
                ]
                yield f"conversion to {name}", digest(*made)


def train(folder: Path) -> None:
    """Steps of training; raises if a loss is no number. An optimizer of torch would take half a minute to import on an
    emulated processor."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
    loader = PackedLoader(
        PackedDataset(folder / "original.lmdb"), 8, augment=[RandomResizedCrop(32)], normalize="imagenet"
    )
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        for weights, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
            weights.data -= 0.01 * gradient
        assert torch.isfinite(loss)


def main(what: str, folder: Path) -> None:
    if what == "prepare":
        prepare(folder)
        return
    library = load_once()[0]
    assert library is not None, "the engine was not compiled"
    for vectors in (True, False) if what == "digests" else (True,):
        engine = Engine(library, vectors)
        lines = [*decoded(folder, engine), *(augmented(engine) if what == "digests" else ())]
        for name, value in lines:
            print(f"{'vectors' if vectors else 'plain'}, {name}: {value}")
    for name, value in (*batches(folder), *(converted(folder) if what == "digests" else ())):
        print(f"{name}: {value}")
    train(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
