"""The lists of `recipes.py` as DALI has them, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 128
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_DEPTH = 2
"""Batches under way, DALI's own default."""


def dali_loaders(folder: str, threads: int) -> dict[str, tuple[str, Any]]:
    """Loaders by name, each with the name of packstore's list that does the same.

    Args:
        folder: Images by class.
        threads: Of each pipeline.
    """
    return {
        f"DALI: {name}": (name, DaliLoader(folder, threads, "bicubic" if name == "bicubic" else "linear", operations))
        for name, operations in _lists().items()
    }


def _lists() -> dict[str, Callable[[Any], Any]]:
    """What follows crop, resize and flip: of bytes ``(224, 224, 3)``."""
    from nvidia.dali import fn, types
    from nvidia.dali.auto_aug import rand_augment, trivial_augment

    def around_one() -> Any:
        return fn.random.uniform(range=(0.6, 1.4))

    def twisted(images: Any, hue: float = 0.0) -> Any:
        options = {"hue": fn.random.uniform(range=(-360 * hue, 360 * hue))} if hue else {}
        return fn.color_twist(
            images, brightness=around_one(), contrast=around_one(), saturation=around_one(), **options
        )

    def normalised(images: Any) -> Any:
        mean, std = ([255 * value for value in each] for each in (MEAN, STD))
        return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", mean=mean, std=std)

    def erased(images: Any) -> Any:
        """A box of 2 to 33% of the image in every second one; its sides are drawn alone, not its area and ratio."""
        size = fn.random.uniform(range=(0.14, 0.57), shape=(2,)) * fn.cast(fn.random.coin_flip(), dtype=types.FLOAT)
        place = fn.random.uniform(range=(0.0, 1.0), shape=(2,)) * (1.0 - size)
        return fn.erase(images, anchor=place, shape=size, axis_names="HW", normalized=True)

    return {
        "crop and flip": lambda images: images,
        "bicubic": lambda images: images,
        "crop and flip, normalised": normalised,
        "ColorJitter(.4, .4, .4)": twisted,
        "ColorJitter with hue": lambda images: twisted(images, 0.1),
        "RandAugment(2, 9)": lambda images: rand_augment.rand_augment(images, n=2, m=9, fill_value=0),
        "TrivialAugmentWide": lambda images: trivial_augment.trivial_augment_wide(images, fill_value=0),
        "RandomErasing": erased,
        "GaussianBlur(23)": lambda images: fn.gaussian_blur(
            images, window_size=23, sigma=fn.random.uniform(range=(0.1, 2.0))
        ),
        "timm-rsb-a2": lambda images: normalised(rand_augment.rand_augment(images, n=2, m=7, fill_value=0)),
    }


class DaliLoader:
    """Batches of a pipeline, ``(images, labels)``, ordered one by one.

    Left alone, DALI prepares the next batches between epochs: while others are timed, and before its own clock starts.
    """

    def __init__(self, folder: str, threads: int, interpolation: str, operations: Callable[[Any], Any]) -> None:
        from nvidia.dali import fn, pipeline_def, types

        files = sorted(str(path) for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
        self._batches = len(files) // BATCH
        way = types.INTERP_CUBIC if interpolation == "bicubic" else types.INTERP_LINEAR

        @pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator, unused-ignore]
        def crops() -> Any:
            encoded, number = fn.readers.file(files=files, labels=list(range(len(files))), shuffle_after_epoch=True)
            images = fn.decoders.image_random_crop(
                encoded, device="cpu", output_type=types.RGB, adjust_orientation=False
            )
            images = fn.resize(images, size=(224, 224), interp_type=way, antialias=True)
            return operations(fn.flip(images, horizontal=fn.random.coin_flip())), number

        self._pipeline = crops(
            batch_size=BATCH, num_threads=threads, device_id=None, prefetch_queue_depth=_DEPTH, seed=1
        )
        self._pipeline.build()
        self._pipeline.schedule_run()
        self._finish()

    def _finish(self) -> None:
        while not self._pipeline.empty():
            self._pipeline.share_outputs()
            self._pipeline.release_outputs()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        try:
            for _ in range(min(_DEPTH, self._batches)):
                self._pipeline.schedule_run()
            for given in range(self._batches):
                yield tuple(np.asarray(output.as_tensor()) for output in self._pipeline.share_outputs())  # type: ignore[misc]
                self._pipeline.release_outputs()
                if given + _DEPTH < self._batches:
                    self._pipeline.schedule_run()
        finally:
            self._finish()
