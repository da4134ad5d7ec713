"""The loaders of `peers.py` over image files: random resized crop and flip, uint8 batches."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from loader import random_box
from numpy.typing import NDArray
from peers_limits import bare
from peers_task import Batches, Contender, Epochs, Task, image_size
from peers_torch import image_folder, litdata, mosaic, pack_litdata, pack_mosaic, pack_webdataset, webdataset
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop

QUALITY, MAX_SIDE = 90, 256

# packstore -----------------------------------------------------------------------------------------------------------


def pack_store(task: Task) -> Path:
    report = packstore.convert(
        task.source, task.own / "store.lmdb", split=task.split, workers=task.threads, **task.convert
    )
    return Path(report.destination)


def packed(task: Task) -> Epochs:
    assert task.data is not None
    columns = ("image", "key" if task.whole else "label")
    dataset = PackedDataset(task.data, columns=columns)
    numbers = {key: number for number, key in enumerate(dataset.keys)}
    loader = PackedLoader(
        dataset,
        task.batch,
        shuffle=True,
        indices=task.order,
        workers=task.threads,
        augment=[RandomResizedCrop(task.size, scale=task.scale, ratio=task.ratio), RandomHorizontalFlip()],
    )

    def batches() -> Batches:
        for images, names in loader:
            yield images.permute(0, 2, 3, 1).numpy(), [numbers[key] for key in names] if task.whole else names

    return batches


# DALI ----------------------------------------------------------------------------------------------------------------


def dali(task: Task, antialias: bool = True) -> Epochs:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def
    def crops() -> Any:
        encoded, number = fn.readers.file(
            files=list(task.files), labels=list(range(len(task.files))), shuffle_after_epoch=True
        )
        images = fn.decoders.image_random_crop(
            encoded,
            device="cpu",
            output_type=types.RGB,
            random_area=task.scale,
            random_aspect_ratio=task.ratio,
            adjust_orientation=False,  # the others take pixels as they are stored
        )
        images = fn.resize(images, size=(task.size, task.size), interp_type=types.INTERP_LINEAR, antialias=antialias)
        return fn.flip(images, horizontal=fn.random.coin_flip()), number

    depth = 2  # DALI's own default
    pipeline = crops(
        batch_size=task.batch, num_threads=task.threads, device_id=None, prefetch_queue_depth=depth, seed=1
    )
    pipeline.build()
    # Left alone, DALI prepares the next batches between epochs: while others are timed, and before its own clock
    # starts. So its batches are ordered one by one. The very first order is for as many as the queue holds.
    pipeline.schedule_run()
    while not pipeline.empty():
        pipeline.share_outputs()
        pipeline.release_outputs()

    def batches() -> Batches:
        count = task.images // task.batch
        for _ in range(min(depth, count)):
            pipeline.schedule_run()
        for given in range(count):
            images, numbers = (np.asarray(output.as_tensor()) for output in pipeline.share_outputs())  # no copies
            yield images, numbers.ravel().tolist()
            pipeline.release_outputs()
            if given + depth < count:
                pipeline.schedule_run()
        if not pipeline.empty():
            raise AssertionError("DALI still has batches under way")

    return batches


def dali_aliased(task: Task) -> Epochs:
    return dali(task, antialias=False)


# TurboLoader ---------------------------------------------------------------------------------------------------------


def pack_tar(task: Task) -> Path:
    path = task.own / "images.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for number, file in enumerate(task.files):
            archive.add(file, f"{number:08}.jpg")
    return path


def turboloader(task: Task, antialias: bool = True) -> Epochs:
    """It gives float32 from 0 to 1, and takes as many threads as there are cores."""
    from turboloader import DataLoader

    loader = DataLoader(
        str(task.data),
        batch_size=task.batch,
        shuffle=True,
        drop_last=not task.whole,
        image_size=task.size,
        output_format="numpy",
        antialias=antialias,
        train_aug=not task.whole,
    )
    epoch = count()

    def pieces() -> Batches:
        while True:
            loader.set_epoch(next(epoch))
            for images, of_batch in loader:
                yield images, of_batch["indices"]

    def batches() -> Batches:
        left, kept, numbers = task.images, [], []
        for images, places in pieces():
            if not kept and len(places) == task.batch:
                yield images, places
                left -= len(places)
            else:  # of whole images the last batch of an epoch is there, too
                kept, numbers = [*kept, images], [*numbers, *places]
                while len(numbers) >= task.batch and left:
                    joined = np.concatenate(kept)
                    yield joined[: task.batch], numbers[: task.batch]
                    kept, numbers, left = [joined[task.batch :]], numbers[task.batch :], left - task.batch
            if not left:
                return

    return batches


def turboloader_aliased(task: Task) -> Epochs:
    return turboloader(task, antialias=False)


# FFCV ----------------------------------------------------------------------------------------------------------------


class _Pixels:
    """The files as FFCV's writer wants them."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], int]:
        with Image.open(self.files[number]) as image:
            return np.asarray(image.convert("RGB")), number


def pack_ffcv(task: Task, **how: Any) -> Path:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    path = task.own / "ffcv.beton"
    fields = {"image": RGBImageField(**how), "number": IntField()}
    DatasetWriter(str(path), fields, num_workers=task.threads).from_indexed_dataset(_Pixels(task.files))
    return path


def pack_ffcv_jpg(task: Task) -> Path:
    return pack_ffcv(task, write_mode="jpg", jpeg_quality=QUALITY)


def pack_ffcv_raw(task: Task) -> Path:
    return pack_ffcv(task, write_mode="raw", max_resolution=MAX_SIDE)


def ffcv(task: Task) -> Epochs:
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.transforms import RandomHorizontalFlip as Flip
    from ffcv.transforms import ToTensor, ToTorchImage

    crop = RandomResizedCropRGBImageDecoder((task.size, task.size), scale=task.scale, ratio=task.ratio)
    return ffcv_loader(task, [crop, Flip(), ToTensor(), ToTorchImage()])


def ffcv_loader(task: Task, pipeline: list[Any]) -> Epochs:
    from ffcv.fields.basics import IntDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor

    loader = Loader(
        str(task.data),
        batch_size=task.batch,
        num_workers=task.threads,
        order=OrderOption.RANDOM,
        indices=task.order.astype(np.uint64),
        seed=0,
        pipelines={"image": pipeline, "number": [IntDecoder(), ToTensor()]},
    )

    def batches() -> Batches:
        for images, numbers in loader:
            yield images.permute(0, 2, 3, 1).numpy(), numbers.flatten().tolist()

    return batches


# SPDL ----------------------------------------------------------------------------------------------------------------


def spdl(task: Task) -> Epochs:
    """Decoding, crop, resize and flip by FFmpeg's filters, in SPDL's own threads."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    sizes = [image_size(file) for file in task.files]
    rng = np.random.default_rng(0)

    def load(job: tuple[int, str]) -> tuple[Any, int]:
        number, filters = job
        frames = spdl.io.decode_packets(spdl.io.demux_image(task.files[number]), filter_desc=filters)
        return spdl.io.convert_frames(frames), number

    def filters(number: int) -> str:
        height, width = sizes[number]
        top, left, tall, wide = (0, 0, height, width) if task.whole else random_box(height, width, rng)
        flip = ",hflip" if rng.random() < 0.5 else ""
        scale = f"scale={task.size}:{task.size}:flags=bilinear"
        return f"crop={wide}:{tall}:{left}:{top}:exact=1,{scale}{flip},format=pix_fmts=rgb24"

    def together(jobs: list[tuple[Any, int]]) -> tuple[NDArray[np.uint8], list[int]]:
        return np.stack([np.asarray(spdl.io.to_numpy(data)) for data, _ in jobs]), [number for _, number in jobs]

    def batches() -> Batches:
        order = rng.permutation(task.order).tolist()
        pipeline = (
            PipelineBuilder()
            .add_source((number, filters(number)) for number in order)
            .pipe(load, concurrency=task.threads)
            .aggregate(task.batch)
            .pipe(together)
            .add_sink(3)
            .build(num_threads=task.threads)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return batches


DALI: dict[str, Any] = {"modules": ("nvidia.dali", "nvidia.nvimgcodec"), "package": "nvidia-dali-cuda120"}
TURBOLOADER: dict[str, Any] = {"modules": ("turboloader",), "package": "turboloader"}
FFCV: dict[str, Any] = {"modules": ("ffcv.loader", "ffcv.writer"), "package": "ffcv"}
TORCHVISION: dict[str, Any] = {"modules": ("torchvision",), "package": "torchvision"}
WEBDATASET: dict[str, Any] = {"modules": ("torchvision", "webdataset"), "package": "webdataset"}
MOSAIC: dict[str, Any] = {"modules": ("torchvision", "streaming"), "package": "mosaicml-streaming"}
LITDATA: dict[str, Any] = {"modules": ("torchvision", "litdata"), "package": "litdata"}
SPDL: dict[str, Any] = {"modules": ("spdl.io", "spdl.pipeline"), "package": "spdl"}

PACKED = Contender("packstore LMDB", packed, pack_store)

JPEG = (
    PACKED,
    Contender("DALI CPU, fused crop", dali, **DALI),
    Contender("DALI CPU, fused crop, not antialiased", dali_aliased, **DALI),
    Contender("TurboLoader, float32", turboloader, pack_tar, **TURBOLOADER),
    Contender("TurboLoader, float32, not antialiased", turboloader_aliased, pack_tar, **TURBOLOADER),
    Contender("torchvision, DataLoader", image_folder, **TORCHVISION),
    Contender("WebDataset", webdataset, pack_webdataset, **WEBDATASET),
    Contender("MosaicML Streaming", mosaic, pack_mosaic, **MOSAIC),
    Contender("LitData", litdata, pack_litdata, **LITDATA),
    Contender("SPDL", spdl, **SPDL),
    Contender("bare threads: decode, crop, resize", bare, package="", limit=True),
)
Q90 = (PACKED, Contender("FFCV `jpg`", ffcv, pack_ffcv_jpg, **FFCV))
RAW = (
    PACKED,
    Contender("FFCV `raw`", ffcv, pack_ffcv_raw, **FFCV),
    Contender("bare threads: crop, resize", bare, pack_store, package="", limit=True),
)
