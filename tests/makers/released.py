"""Writes ``tests/corpus/released/NAME.tar.xz``: small stores of each format, encoding and mode.

    PYTHONPATH=CHECKOUT python tests/makers/released.py NAME

CHECKOUT is a checkout of the packstore that writes them, NAME its version. The archive also has ``photos``, the source,
and ``expected.json``: by the name of each store the digests of all that it holds, as its writer reads it. It uses only
functions that every packstore since layout 1 has.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SUFFIXES = ("lmdb", "h5", "pth")
OPTIONS: dict[str, dict[str, Any]] = {
    "original": {"encoding": "original"},
    "seekable": {"encoding": "seekable"},  # until it went
    "jpeg": {"encoding": "jpeg", "resize": 20},
    "uint8": {"encoding": "uint8", "size": 12},
    "uint8-ragged": {"encoding": "uint8"},
    "float16": {"encoding": "float16", "size": 12, "normalize": "imagenet"},
    "bfloat16": {"encoding": "bfloat16", "size": 12, "normalize": "imagenet"},
    "float32": {"encoding": "float32", "size": 12, "normalize": "imagenet"},
    "shards": {"encoding": "original", "shard_size": 3000},
    "gray": {"encoding": "uint8", "mode": "L", "size": 12},
    "gray-files": {"encoding": "original", "mode": "L"},
}
DEEP = {"uint16": 1, "int16": 1, "int32": 1, "float32": 1, "uint16-five": 5, "uint8-rgba": 4}
"""Channels of images by dtype and name, packed as they are."""


def make_photos(folder: Path) -> Path:
    """Six images in two splits and two classes; the first is large enough for a seek index."""
    rng = np.random.default_rng(7)
    for number in range(6):
        height, width = (24 + 3 * number, 30 - number) if number else (120, 152)
        coarse = rng.integers(0, 256, (height // 6, width // 6, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        path = folder / ("train" if number < 4 else "val") / ("ant", "bee")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path.with_suffix(".png") if number == 3 else path, quality=95 if number == 0 else 80)
    return folder


def make_deep(folder: Path, dtype: str, channels: int) -> Path:
    """Four images of a dtype in two classes, as ``.npy`` files."""
    rng = np.random.default_rng(channels)
    for number in range(4):
        values = rng.integers(0, 256, (5 + number % 2, 7, channels)).astype(dtype)
        path = folder / ("ant", "bee")[number % 2] / f"{number}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = values * 120 if values.itemsize > 1 else values
        np.save(path, values if channels > 1 else values[..., 0])
    return folder


def digests(path: Path) -> dict[str, Any]:
    """Digests of a store: dataset digest, SHA-256 of each record's image and of each other column's value."""
    import packstore
    from packstore.stores import open_store

    with open_store(path) as reader:
        manifest = reader.manifest
        images = [hashlib.sha256(np.asarray(reader.read(i)).tobytes()).hexdigest() for i in range(len(reader))]
    dataset = [
        item
        for split in manifest.splits
        for item in packstore.PackedDataset(path, split.name, columns=("key", "label"))  # type: ignore[call-overload]
    ]
    return {
        "encoding": manifest.encoding,
        "format": manifest.format,
        "dataset_digest": manifest.dataset_digest,
        "splits": [[split.name, split.start, split.stop] for split in manifest.splits],
        "classes": list(manifest.classes or ()),
        "images": images,
        "keys": [str(key) for key, _ in dataset],
        "labels": [int(label) for _, label in dataset],
    }


def write(folder: Path) -> None:
    """Writes photos, stores and ``expected.json`` into ``folder``."""
    import packstore

    photos, expected = make_photos(folder / "photos"), {}
    for suffix in SUFFIXES:
        for name, options in OPTIONS.items():
            path = folder / f"{name}.{suffix}"
            try:
                packstore.convert(photos, path, **options)
            except (TypeError, ValueError, packstore.PackstoreError) as error:
                print(f"{path.name}: {error}", file=sys.stderr)  # an encoding that this packstore has not
                continue
            expected[path.name] = digests(path)
        for name, channels in DEEP.items():
            dtype, path = name.partition("-")[0], folder / f"deep-{name}.{suffix}"
            try:
                source = make_deep(folder / f"arrays-{name}", dtype, channels)
                size = {"size": 6} if dtype == "float32" else {}
                packstore.convert(source, path, encoding=dtype, mode="keep", **size)  # type: ignore[call-overload]
            except (TypeError, ValueError, packstore.PackstoreError) as error:
                print(f"{path.name}: {error}", file=sys.stderr)
                continue
            expected[path.name] = digests(path)
        if hasattr(packstore, "append"):
            path = folder / f"grown.{suffix}"
            packstore.convert(photos, path, encoding="original", shard_size=3000)
            packstore.append(path, photos, key_prefix="more/")
            expected[path.name] = digests(path)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))


if __name__ == "__main__":
    name = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        target = Path(__file__).parents[1] / "corpus" / "released" / f"{name}.tar.xz"
        target.parent.mkdir(exist_ok=True)
        with tarfile.open(target, "w:xz") as archive:
            for path in sorted(Path(scratch).iterdir()):
                archive.add(path, path.name)
    print(target)
