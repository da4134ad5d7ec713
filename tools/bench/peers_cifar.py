"""The loaders of `peers.py` over CIFAR-10: random crop (padding 4) and flip, uint8 batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peers_images as images
import peers_torch as streams
import torch
from numpy.typing import NDArray
from peers_task import Batches, Contender, Epochs, Task, torchvision
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomCrop, RandomHorizontalFlip


def _pixels(task: Task) -> NDArray[np.uint8]:
    return np.load(str(task.pixels), mmap_mode="r")  # type: ignore[no-any-return]


def _samples(task: Task) -> Iterator[tuple[bytes, int]]:
    return ((image.tobytes(), number) for number, image in enumerate(_pixels(task)))


def pack_store(task: Task) -> Path:
    return Path(packstore.convert(task.source, task.own / "cifar.pth", split="train", encoding="uint8").destination)


def packed(task: Task, resident: bool = True) -> Epochs:
    assert task.data is not None
    dataset = PackedDataset(task.data, "train", columns=("image", "key" if task.whole else "label"))
    numbers = {key: number for number, key in enumerate(dataset.keys)} if task.whole else {}
    loader = PackedLoader(
        dataset,
        task.batch,
        shuffle=True,
        drop_last=True,
        resident=resident,
        indices=task.order,
        workers=task.threads,
        augment=[RandomCrop(32, padding=task.padding), RandomHorizontalFlip()],
    )

    def batches() -> Batches:
        for batch, names in loader:
            yield batch.permute(0, 2, 3, 1).numpy(), [numbers[key] for key in names] if task.whole else names

    return batches


def streamed(task: Task) -> Epochs:
    return packed(task, resident=False)


def _transform(task: Task, to_pil: bool) -> Any:
    torchvision()
    from torchvision import transforms

    steps: list[Any] = [transforms.ToPILImage()] if to_pil else []
    steps += [
        transforms.RandomCrop(32, padding=task.padding),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
    return transforms.Compose(steps)


class _Numbered(torch.utils.data.Dataset[Any]):
    """What torchvision's CIFAR10 does (an array in memory, a Pillow image of each), with numbers for labels."""

    def __init__(self, task: Task) -> None:
        self.data, self.order, self.transform = np.array(_pixels(task)), task.order, _transform(task, to_pil=False)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number = int(self.order[index])
        return self.transform(Image.fromarray(self.data[number])), number


def cifar10(task: Task) -> Epochs:
    return streams.data_loader(task, _Numbered(task), shuffle=True)


class _Samples:
    """The images as FFCV's writer wants them."""

    def __init__(self, pixels: Path) -> None:
        self.pixels = np.load(str(pixels))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], int]:
        return self.pixels[number], number


def pack_ffcv(task: Task) -> Path:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    assert task.pixels is not None
    path = task.own / "cifar.beton"
    fields = {"image": RGBImageField(), "number": IntField()}
    DatasetWriter(str(path), fields, num_workers=task.threads).from_indexed_dataset(_Samples(task.pixels))
    return path


def ffcv(task: Task) -> Epochs:
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.transforms import RandomHorizontalFlip as Flip
    from ffcv.transforms import RandomTranslate, ToTensor, ToTorchImage

    shift = [RandomTranslate(padding=task.padding)] if task.padding else []
    return images.ffcv_loader(task, [SimpleRGBImageDecoder(), Flip(), *shift, ToTensor(), ToTorchImage()])


class _Finish:
    """A sample's bytes to a tensor, cropped and mirrored by torchvision."""

    def __init__(self, task: Task) -> None:
        self.transform = _transform(task, to_pil=True)

    def image(self, data: bytes) -> torch.Tensor:
        return self.transform(np.frombuffer(data, np.uint8).reshape(32, 32, 3))  # type: ignore[no-any-return]

    def pair(self, sample: tuple[bytes, Any]) -> tuple[torch.Tensor, int]:
        return self.image(sample[0]), int(sample[1])

    def named(self, sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
        return self.image(sample["image"]), sample["number"]


def pack_webdataset(task: Task) -> Path:
    return streams.write_tar(task, _samples(task), "bin")


def webdataset(task: Task) -> Epochs:
    dataset = streams.read_tar(task).to_tuple("bin", "cls")
    return streams.data_loader(task, streams.Cycle(dataset, task, _Finish(task).pair))


def pack_mosaic(task: Task) -> Path:
    return streams.write_mds(task, _samples(task))


def mosaic(task: Task) -> Epochs:
    return streams.data_loader(task, streams.mosaic_dataset(task, _Finish(task).image))


def read_numbered(sample: tuple[str, int]) -> dict[str, Any]:
    """For LitData, which calls it in processes of its own."""
    pixels = np.load(sample[0], mmap_mode="r")
    return {"image": pixels[sample[1]].tobytes(), "number": sample[1]}


def pack_litdata(task: Task) -> Path:
    return streams.write_litdata(task, read_numbered, [(str(task.pixels), number) for number in range(task.count)])


def litdata(task: Task) -> Epochs:
    return streams.data_loader(task, streams.Cycle(streams.read_litdata(task), task, _Finish(task).named))


def gather(task: Task) -> Epochs:
    """`torch.index_select` alone: the images in memory, neither cropped nor mirrored."""
    pixels = torch.from_numpy(np.array(_pixels(task)))
    torch.set_num_threads(task.threads)

    def batches() -> Batches:
        order = torch.from_numpy(np.random.default_rng(0).permutation(task.order))
        for numbers in order.split(task.batch):
            yield pixels.index_select(0, numbers).numpy(), numbers.tolist()

    return batches


def memcpy(task: Task) -> Epochs:
    """One copy of a batch from where it lies: not even in random order."""
    pixels = np.array(_pixels(task))

    def batches() -> Batches:
        for first in range(0, task.images, task.batch):
            numbers = np.arange(first, first + task.batch) % task.count
            start = int(numbers[0])
            straight = start + task.batch <= task.count
            yield pixels[start : start + task.batch].copy() if straight else pixels[numbers], numbers.tolist()

    return batches


CIFAR = (
    Contender("packstore .pth, resident", packed, pack_store),
    Contender("packstore .pth, streaming", streamed, pack_store),
    Contender("FFCV", ffcv, pack_ffcv, **images.FFCV),
    Contender("torchvision, DataLoader", cifar10, **images.TORCHVISION),
    Contender("WebDataset", webdataset, pack_webdataset, **images.WEBDATASET),
    Contender("MosaicML Streaming", mosaic, pack_mosaic, **images.MOSAIC),
    Contender("LitData", litdata, pack_litdata, **images.LITDATA),
    Contender("gather: index_select", gather, package="", limit=True),
    Contender("memcpy, in order", memcpy, package="", limit=True),
)
