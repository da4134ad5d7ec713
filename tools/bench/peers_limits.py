"""What the machine allows, for `peers.py`: plain threads that do a loader's work with nothing around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loader import random_box
from numpy.typing import NDArray
from peers_task import Batches, Epochs, Task, image_size

from packstore import PackedDataset
from packstore.images.decoders import get_decoder


def bare(task: Task) -> Epochs:
    """Plain threads, each with batches of its own: decode, crop, resize (antialiased), every other one mirrored. Files
    are in memory already. With the convert options of a pixel store, the pixels are."""
    if task.convert.get("encoding") == "uint8":
        assert task.data is not None
        dataset = PackedDataset(task.data, columns=("image",), output="numpy")
        return _bare(
            task, [dataset[number] for number in range(len(dataset))], lambda images, boxes: map(_cut, images, boxes)
        )
    decode = get_decoder("simplejpeg").decode
    files = [Path(file).read_bytes() for file in task.files]
    return _bare(
        task, files, lambda files, boxes: (_cut(decode(data), box) for data, box in zip(files, boxes, strict=True))
    )


Box = tuple[int, int, int, int]


def _cut(image: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    top, left, height, width = box
    return image[top : top + height, left : left + width]


def _bare(
    task: Task, held: list[Any], crops: Callable[[Sequence[Any], Sequence[Box]], Iterator[NDArray[np.uint8]]]
) -> Epochs:
    """``crops`` gives the boxes' pixels of a batch, one after the other."""
    sizes = [item.shape[:2] if isinstance(item, np.ndarray) else image_size(BytesIO(item)) for item in held]
    rng = np.random.default_rng(0)

    def work(numbers: NDArray[np.int64]) -> tuple[NDArray[np.uint8], list[int]]:
        batch = torch.empty((task.batch, task.size, task.size, 3), dtype=torch.uint8)
        rows, own = batch.permute(0, 3, 1, 2), np.random.default_rng(int(numbers[0]))
        boxes = [(0, 0, *sizes[n]) if task.whole else random_box(*sizes[n], own) for n in numbers.tolist()]
        for row, crop in enumerate(crops([held[n] for n in numbers.tolist()], boxes)):
            _resize(np.ascontiguousarray(crop), rows[row : row + 1], task.size)
            if row % 2:
                for first in range(0, task.size, 48):
                    lines = batch[row, first : first + 48]
                    lines.copy_(torch.flip(lines, (1,)))
        return batch.numpy(), numbers.tolist()

    def batches() -> Batches:
        order = rng.permutation(task.order).reshape(-1, task.batch)
        with ThreadPoolExecutor(task.threads) as pool:
            yield from pool.map(work, order)

    return batches


def _resize(crop: NDArray[np.uint8], out: torch.Tensor, size: int) -> None:
    kernel: Any = torch._C._nn._upsample_bilinear2d_aa
    source = torch.from_numpy(crop if crop.flags.writeable else crop.copy()).permute(2, 0, 1)[None]
    kernel(source, (size, size), False, None, None, out=out)
