"""The loaders of `peers.py` that run on torch's DataLoader: torchvision, WebDataset, MosaicML Streaming, LitData."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from peers_task import Batches, Epochs, Task, torchvision
from PIL import Image


def pil_transform(task: Task) -> Callable[[Image.Image], torch.Tensor]:
    """torchvision's, on Pillow's images, as everybody writes it; uint8 out."""
    torchvision()
    from torchvision import transforms

    crop = transforms.RandomResizedCrop(task.size, scale=task.scale, ratio=task.ratio)
    steps: Any = transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.PILToTensor()])
    return steps  # type: ignore[no-any-return]


def open_rgb(data: Any) -> Image.Image:
    with Image.open(data) as image:
        return image.convert("RGB")


class _Files(torch.utils.data.Dataset[Any]):
    """What torchvision's ImageFolder does, with numbers for labels."""

    def __init__(self, task: Task) -> None:
        self.files, self.order, self.transform = task.files, task.order, pil_transform(task)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number = int(self.order[index])
        return self.transform(open_rgb(self.files[number])), number


def data_loader(task: Task, dataset: Any, shuffle: bool = False) -> Epochs:
    """torch's, with as many worker processes as threads are given; they stay from epoch to epoch. They are forked, as
    is the default on Linux, but not in a process that was spawned itself."""
    loader: Any = torch.utils.data.DataLoader(
        dataset,
        batch_size=task.batch,
        shuffle=shuffle,
        num_workers=task.threads,
        multiprocessing_context="fork",
        persistent_workers=True,
        drop_last=True,
    )

    def batches() -> Batches:
        for images, numbers in loader:
            yield images.permute(0, 2, 3, 1).numpy(), numbers.tolist()

    return batches


def image_folder(task: Task) -> Epochs:
    return data_loader(task, _Files(task), shuffle=True)


class Cycle(torch.utils.data.IterableDataset[Any]):
    """Goes through an iterable dataset again and again until an epoch's share of this worker is full."""

    def __init__(self, dataset: Any, task: Task, finish: Callable[[Any], Any]) -> None:
        self.dataset, self.share, self.finish = dataset, task.images // task.threads, finish

    def __iter__(self) -> Iterator[Any]:
        left = self.share
        while left:
            for sample in self.dataset:
                yield self.finish(sample)
                left -= 1
                if not left:
                    break


def pack_webdataset(task: Task) -> Path:
    return write_tar(task, ((Path(file).read_bytes(), number) for number, file in enumerate(task.files)), "jpg")


def write_tar(task: Task, samples: Iterator[tuple[bytes, int]], suffix: str) -> Path:
    import webdataset

    folder = task.own / "tar"
    folder.mkdir()
    each = -(-task.count // (4 * task.threads))  # four shards a worker
    with webdataset.ShardWriter(str(folder / "%05d.tar"), maxcount=each, verbose=0) as writer:
        for data, number in samples:
            writer.write({"__key__": f"{number:08}", suffix: data, "cls": number})
    return folder


def read_tar(task: Task) -> Any:
    import webdataset

    assert task.data is not None
    return webdataset.WebDataset(sorted(map(str, task.data.iterdir())), shardshuffle=100, empty_check=False).shuffle(
        min(1000, task.count)
    )


def webdataset(task: Task) -> Epochs:
    transform = pil_transform(task)

    def finish(sample: tuple[Image.Image, int]) -> tuple[torch.Tensor, int]:
        return transform(sample[0].convert("RGB")), sample[1]

    return data_loader(task, Cycle(read_tar(task).decode("pil").to_tuple("jpg", "cls"), task, finish))


def pack_mosaic(task: Task) -> Path:
    return write_mds(task, ((Path(file).read_bytes(), number) for number, file in enumerate(task.files)))


def write_mds(task: Task, samples: Iterator[tuple[bytes, int]]) -> Path:
    torchvision()
    from streaming import MDSWriter

    with MDSWriter(out=str(task.own / "mds"), columns={"image": "bytes", "number": "int"}) as writer:
        for data, number in samples:
            writer.write({"image": data, "number": number})
    return task.own / "mds"


def mosaic_dataset(task: Task, decode: Callable[[bytes], torch.Tensor]) -> Any:
    torchvision()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()

    class Samples(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            sample = super().__getitem__(index)
            return decode(sample["image"]), int(sample["number"])

    return Samples(local=str(task.data), shuffle=True, batch_size=task.batch, epoch_size=task.images)


def mosaic(task: Task) -> Epochs:
    transform = pil_transform(task)
    return data_loader(task, mosaic_dataset(task, lambda data: transform(open_rgb(BytesIO(data)))))


def read_numbered(sample: tuple[str, int]) -> dict[str, Any]:
    """For LitData, which calls it in processes of its own."""
    return {"image": Path(sample[0]).read_bytes(), "number": sample[1]}


def pack_litdata(task: Task) -> Path:
    return write_litdata(task, read_numbered, [(file, number) for number, file in enumerate(task.files)])


def write_litdata(task: Task, function: Callable[[Any], Any], inputs: list[Any]) -> Path:
    scratch = task.own / "litdata-scratch"
    # Left alone it works in /tmp/chunks and /tmp/data, and removes what it finds there.
    for name, folder in (("DATA_OPTIMIZER_CACHE_FOLDER", "chunks"), ("DATA_OPTIMIZER_DATA_CACHE_FOLDER", "data")):
        (scratch / folder).mkdir(parents=True)
        os.environ[name] = str(scratch / folder)
    kept, tempfile.tempdir = tempfile.tempdir, str(scratch)
    import litdata

    try:
        litdata.optimize(
            fn=function,
            inputs=inputs,
            output_dir=str(task.own / "litdata"),
            num_workers=task.threads,
            chunk_bytes="16MB",
            verbose=False,
        )
    finally:
        tempfile.tempdir = kept
    return task.own / "litdata"


def read_litdata(task: Task) -> Any:
    import litdata

    return litdata.StreamingDataset(str(task.data), shuffle=True, drop_last=False)


def litdata(task: Task) -> Epochs:
    transform = pil_transform(task)

    def finish(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
        return transform(open_rgb(BytesIO(sample["image"]))), sample["number"]

    return data_loader(task, Cycle(read_litdata(task), task, finish))
