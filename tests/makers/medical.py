"""Samples of medical sources, as tests compare them with other readers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.sources import open_source
from tests.internals import Sample


def read_samples(path: Path, kind: str, **options: Any) -> dict[str, Sample]:
    """All samples of a source by key."""
    found = {}
    with closing(open_source(path, kind=kind, **options)) as source:
        source.survey()
        for entry in source.entries():
            sample = source.read(entry)
            assert isinstance(sample, Sample)
            found[entry.key] = sample
    return found


def image_of(sample: Sample) -> NDArray[Any]:
    """The image of a sample, ``(H, W, C)``."""
    assert isinstance(sample.image, np.ndarray)
    return sample.image.transpose(1, 2, 0) if sample.image.dtype.kind == "f" else sample.image


def noise(number: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Values over the range of a dtype."""
    random = np.random.default_rng(number)
    if dtype.startswith("float"):
        return random.normal(size=shape).astype(dtype)
    info = np.iinfo(dtype)
    return random.integers(info.min, info.max, shape, dtype, endpoint=True)
