"""torchvision's pipelines in ``transform=``: the engine's images, draws and types equal those of ImageFolder."""

from __future__ import annotations

import functools
import io
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset, default_collate

import packstore
from packstore import PackedDataset, PackedLoader
from tests.internals import CorruptRecordError, Engine, ImageReader, PlannedImage, UsageError, is_like_pillow
from tests.makers.datasets import pixels
from tests.makers.stores import damage
from tests.makers.torchvision import import_torchvision

tv = import_torchvision()
v1, v2 = tv.transforms, tv.transforms.v2
pytestmark = pytest.mark.filterwarnings("ignore:The transform `.*` is deprecated:UserWarning")  # torchvision's v2
NORMAL = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
WAYS = v1.InterpolationMode


def encode(image: Image.Image, suffix: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, {".jpg": "JPEG", ".png": "PNG"}[suffix], **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of many sizes: ordinary JPEG files, progressive ones, gray ones, and PNG files."""
    root = tmp_path_factory.mktemp("folder") / "photos"
    rng = np.random.default_rng(1)
    for number in range(12):
        height, width = rng.integers(70, 260, 2).tolist()
        image = Image.fromarray(pixels(height, width, number))
        path = root / "abc"[number % 3] / f"{number:02}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number == 4:
            path.with_suffix(".png").write_bytes(encode(image, ".png"))
        else:
            image = image.convert("L") if number == 7 else image
            options = {"subsampling": number % 3, "progressive": number == 9}
            path.with_suffix(".jpg").write_bytes(encode(image, ".jpg", quality=90, **options))
    return root


@pytest.fixture(scope="module")
def stores(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Packs the folder, each combination of options once."""

    @functools.cache
    def pack(suffix: str = ".lmdb", **options: Any) -> Path:
        path = tmp_path_factory.mktemp("stores") / f"a{suffix}"
        packstore.convert(folder, path, **options)
        return path

    return pack


def items(data: Dataset[Any], *, batched: bool = False, seed: int = 3) -> tuple[list[Any], torch.Tensor, Any]:
    """All images of a dataset, and the states of the generators after them."""
    torch.manual_seed(seed)
    random.seed(seed)
    rows = range(len(data))
    values = data.__getitems__([*rows]) if batched else [data[row] for row in rows]
    return [value[0] for value in values], torch.get_rng_state(), random.getstate()


def assert_alike(found: tuple[list[Any], torch.Tensor, Any], expected: tuple[list[Any], torch.Tensor, Any]) -> None:
    for a, b in zip(found[0], expected[0], strict=True):
        assert type(a) is type(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b)
    assert torch.equal(found[1], expected[1])
    assert found[2] == expected[2]


def mark(image: Any) -> Any:
    """The function of a user that draws on a PIL image in place."""
    assert isinstance(image, Image.Image)
    ImageDraw.Draw(image).rectangle((3, 3, 9, 9), fill=7)
    return image


def pipelines(t: Any) -> dict[str, Any]:
    """Pipelines of one version of the transforms."""
    resized, flip = t.RandomResizedCrop(48), t.RandomHorizontalFlip()
    end = [t.ToTensor(), t.Normalize(*NORMAL)] if t is v1 else [t.ToImage(), t.ToDtype(torch.float32, scale=True)]
    bytes_of = [t.PILToTensor()]
    return {
        "training": t.Compose([resized, flip, *end]),
        "training, bytes": t.Compose([resized, flip, *bytes_of]),
        "validation": t.Compose([t.Resize(64), t.CenterCrop(48), *end]),
        "nearest": t.Compose([t.Resize((40, 90), interpolation=WAYS.NEAREST), *end]),
        "flat": t.Compose([t.Resize((20, 200)), t.RandomVerticalFlip(), t.RandomCrop(16), *bytes_of]),
        "padded by zeros": t.Compose([t.RandomCrop(60, padding=4, pad_if_needed=True), flip, t.RandAugment(), *end]),
        "whole": t.Compose([flip, *end]),
        "conversion": end[0],
        "padded crop": t.Compose([t.RandomCrop(60, padding=7, fill=3), flip, *end]),
        "reflected": t.Compose([t.Pad(9, padding_mode="reflect"), t.RandomCrop(70), *bytes_of]),
        "center of small": t.Compose([t.Resize(30), t.CenterCrop(44), *end]),
        "nested": t.Compose([t.Compose([t.RandomCrop(66)]), t.Compose([flip, t.Compose(end)])]),
        "sequential": torch.nn.Sequential(resized, flip, *end) if t is v2 else t.Compose([t.Resize(70), *end]),
        "apply": t.Compose([t.RandomApply([t.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.5), resized, *end]),
        "choice": t.Compose([t.RandomChoice([resized, t.RandomCrop(48), t.Resize((48, 48))]), *end]),
        "jitter": t.Compose([resized, flip, t.ColorJitter(0.4, 0.3, 0.2, 0.1), t.RandomGrayscale(0.5), *end]),
        "policies": t.Compose([resized, t.RandAugment(), t.TrivialAugmentWide(), *end]),
        "erasing": t.Compose([resized, *end, t.RandomErasing(0.6), t.RandomErasing(0.6, value="random")]),
        "flip of tensors": t.Compose([resized, *end, flip, t.RandomVerticalFlip()]),
        "gray": t.Compose([resized, t.Grayscale(), *bytes_of]),
        "function": t.Compose([t.Resize(64), mark, flip, *end]),
        "five crops": t.Compose([t.FiveCrop(40), (lambda five: five[2]), *end]),
        "half": t.Compose([resized, *bytes_of, t.ConvertImageDtype(torch.float16)]),
        "doubled": t.Compose([resized, *bytes_of, t.ConvertImageDtype(torch.float64)]),
        "function at the end": t.Compose([resized, *end, lambda x: x + torch.rand(1)]),
    }


BOTH = [pytest.param(t, name, id=f"{label}: {name}") for label, t in (("v1", v1), ("v2", v2)) for name in pipelines(v1)]
ON_TENSORS = {
    "first of all": [v2.ToImage(), v2.RandomResizedCrop(48, antialias=True), v2.RandomHorizontalFlip(0.5)],
    "bicubic": [v2.ToImage(), v2.RandomResizedCrop(48, interpolation=WAYS.BICUBIC, antialias=True)],
    "plain": [v2.ToImage(), v2.RandomResizedCrop(48, antialias=False)],
    "padded": [v2.PILToTensor(), v2.Resize(30), v2.CenterCrop(44), v2.RandomVerticalFlip()],
    "nested": [v2.ToImage(), v2.RandomApply([v2.RandomCrop(60)]), v2.RandomChoice([v2.CenterCrop(50), v2.Resize(50)])],
    "floats": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Resize(50), v2.RandomHorizontalFlip()],
    "jitter": [v2.ToImage(), v2.RandomResizedCrop(48), v2.ColorJitter(0.3, 0.3), v2.RandomHorizontalFlip()],
    "pure": [v2.ToImage(), v2.RandomResizedCrop(48), v2.ToPureTensor()],
}


@pytest.mark.slow
@pytest.mark.sampled(12)
@pytest.mark.parametrize(("t", "name"), BOTH)
def test_images_and_draws_are_those_of_imagefolder(folder: Path, stores: Any, t: Any, name: str) -> None:
    transform = pipelines(t)[name]
    expected = items(tv.datasets.ImageFolder(folder, transform))
    for batched in (False, True):
        assert_alike(items(PackedDataset(stores(), transform=transform), batched=batched), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_TENSORS)
def test_pipelines_that_begin_with_a_tensor(folder: Path, stores: Any, name: str) -> None:
    transform = v2.Compose([*ON_TENSORS[name], v2.ToDtype(torch.float32, scale=True)])
    expected = items(tv.datasets.ImageFolder(folder, transform))
    assert_alike(items(PackedDataset(stores(), transform=transform), batched=True), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first of all", "bicubic", "plain", "padded", "nested"])
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_tensors_are_transformed_as_before(stores: Any, name: str, dtype: torch.dtype | None) -> None:
    """Pipelines without a conversion are called with tensors, whose crops the engine makes."""
    transform = v2.Compose(ON_TENSORS[name][1:])
    plain = PackedDataset(stores(), dtype=dtype)
    torch.manual_seed(3)
    expected = [transform(plain[row][0]) for row in range(len(plain))]
    for batched in (False, True):
        found = items(PackedDataset(stores(), dtype=dtype, transform=transform), batched=batched)[0]
        assert all(map(torch.equal, found, expected))
        assert {type(image) for image in found} == {torch.Tensor}


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["training", "validation", "padded crop", "jitter", "erasing", "flat"])
@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        (".h5", {}),
        (".pth", {"encoding": "original"}),
        (".lmdb", {"encoding": "uint8"}),
        (".h5", {"encoding": "uint8", "size": (80, 72)}),
        (".pth", {"encoding": "uint8", "size": (80, 72)}),
        (".lmdb", {"encoding": "jpeg", "resize": 90}),
        (".lmdb", {"mode": "L"}),
        (".lmdb", {"exif_transpose": True}),
    ],
    ids=str,
)
def test_stores_of_all_kinds(stores: Any, suffix: str, options: dict[str, Any], name: str) -> None:
    """In each, images equal those of the exact old way, which is Pillow's."""
    if options.get("mode") == "L":
        kept = v1.Compose([v1.RandomResizedCrop(40), v1.RandomHorizontalFlip(), v1.ToTensor()])
    else:
        kept = pipelines(v1)[name]
    path = stores(suffix, **options)
    expected = items(PackedDataset(path, output="pil", transform=kept))
    assert_alike(items(PackedDataset(path, transform=kept), batched=True), expected)
    assert_alike(items(PackedDataset(path, transform=kept, decoder="pillow"), batched=True), expected)


@pytest.mark.slow
def test_workers_draw_as_those_of_imagefolder(folder: Path, stores: Any) -> None:
    transform = v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(*NORMAL)])
    batches: list[list[torch.Tensor]] = []
    for data in (tv.datasets.ImageFolder(folder, transform), PackedDataset(stores(), transform=transform)):
        torch.manual_seed(5)
        batches.append([images for images, _ in DataLoader(data, 5, shuffle=True, num_workers=2)])
    assert all(map(torch.equal, *batches))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"is_training": True},
        {"is_training": True, "color_jitter": None, "use_prefetcher": True},
        {"is_training": True, "auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.5},
        {"is_training": False},
    ],
    ids=str,
)
def test_pipelines_of_timm(folder: Path, stores: Any, options: dict[str, Any]) -> None:
    from timm.data.transforms_factory import create_transform

    transform = create_transform(40, **options)
    found = []
    for data in (tv.datasets.ImageFolder(folder, transform), PackedDataset(stores(), transform=transform)):
        np.random.seed(3)
        found.append(items(data, batched=isinstance(data, PackedDataset)))
    assert_alike(found[1], found[0])


STEPS: list[Callable[[Any, int], Any]] = [
    lambda t, n: t.RandomResizedCrop((20 + n, 64 - n)),
    lambda t, n: t.RandomResizedCrop(30 + n, interpolation=WAYS.BICUBIC),
    lambda t, n: t.Resize(400 - n),
    lambda t, n: t.Resize(30 + 3 * n),
    lambda t, n: t.Resize((90 - n, 30 + n), interpolation=WAYS.BOX),
    lambda t, n: t.Resize(40 + n, interpolation=WAYS.LANCZOS),
    lambda t, n: t.CenterCrop(20 + 4 * n),
    lambda t, n: t.RandomCrop(20 + n, pad_if_needed=True),
    lambda t, n: t.Pad(n % 7, fill=n),
    lambda t, n: t.Pad((n % 7, n % 3)),
    lambda t, n: t.RandomCrop(20 + n, padding=(1, 2, 3, 4 + n), pad_if_needed=True),
    lambda t, n: t.RandomHorizontalFlip(0.5),
    lambda t, n: t.RandomVerticalFlip(0.5),
    lambda t, n: t.RandomRotation(n),
    lambda t, n: t.ColorJitter(0.1 + n / 50, 0.2),
    lambda t, n: t.RandomInvert(0.5),
    lambda t, n: t.RandomAffine(n, (0.1, 0.2), (0.8, 1.2), fill=n),
    lambda t, n: t.RandAugment(n % 4, n),
    lambda t, n: t.TrivialAugmentWide(),
    lambda t, n: t.AutoAugment([*v1.AutoAugmentPolicy][n % 3]),
    lambda t, n: t.RandomGrayscale(0.5),
    lambda t, n: t.RandomOrder([t.RandomVerticalFlip(), t.ColorJitter(0.2, hue=0.1), t.CenterCrop(20 + n)]),
    lambda t, n: t.RandomApply([t.RandomCrop(24, pad_if_needed=True), t.RandomHorizontalFlip()]),
]
ENDS: list[Callable[[Any], list[Any]]] = [
    lambda t: [t.PILToTensor()],
    lambda t: [t.ToTensor(), t.Normalize(*NORMAL)],
    lambda t: [t.PILToTensor(), t.RandomHorizontalFlip(), t.ConvertImageDtype(torch.float32), t.RandomVerticalFlip()],
    lambda t: [t.ToTensor(), t.RandomErasing(0.5, value=0.3)],
]


@pytest.mark.slow
@given(
    chosen=st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 30)), max_size=6),
    end=st.sampled_from(ENDS),
    version=st.sampled_from([v1, v2]),
    seed=st.integers(0, 99),
)
def test_any_chain_equals_imagefolder(
    folder: Path, stores: Any, chosen: list[tuple[int, int]], end: Any, version: Any, seed: int
) -> None:
    transform = version.Compose([*(STEPS[number](version, n) for number, n in chosen), *end(version)])
    expected = items(tv.datasets.ImageFolder(folder, transform), seed=seed)
    assert_alike(items(PackedDataset(stores(), transform=transform), batched=True, seed=seed), expected)


@pytest.mark.parametrize("name", ["training", "training, bytes", "flip of tensors", "erasing"])
def test_only_crops_are_decoded(stores: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """All of a batch are made in one block of memory."""
    data = PackedDataset(stores(), transform=pipelines(v1)[name])
    keys = [*data.keys]
    plain = [row for row, key in enumerate(keys) if "04." not in key and "09." not in key]
    for method in ("read", "read_each", "read_stored_pixels", "read_pil"):
        monkeypatch.setattr(ImageReader, method, lambda *a, **k: pytest.fail("decoded a whole image"))
    images = [image for image, _ in data.__getitems__(plain)]
    memory = {image.untyped_storage().data_ptr() for image in images}
    assert (len(images), len(memory)) == (10, 1)


@pytest.mark.slow
@pytest.mark.parametrize("module", [v1, v2])
def test_a_pipeline_with_augmix_is_that_of_the_engine(
    folder: Path, stores: Any, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    flip, choice = module.RandomHorizontalFlip(), module.RandomApply([module.AugMix()], 0.8)
    transform = module.Compose([module.RandomResizedCrop((48, 41)), flip, choice, flip, module.ToTensor()])
    expected, *states = items(tv.datasets.ImageFolder(folder, transform), seed=5)
    assert is_like_pillow()
    monkeypatch.setattr(PlannedImage, "load", lambda *a: pytest.fail("made the pixels of one image"))
    found, *found_states = items(PackedDataset(stores(), transform=transform), batched=True, seed=5)
    differences = (torch.stack(found) - torch.stack(expected)).abs() * 255
    assert (differences > 0.5).float().mean() < 0.01
    assert (differences > 1.5).float().mean() < 0.001
    assert torch.equal(found_states[0], states[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jitter", "apply", "order of colours", "policies", "padded by zeros"])
@pytest.mark.parametrize("module", [v1, v2])
def test_colours_and_warps_are_those_of_the_engine(
    folder: Path, stores: Any, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """Also within containers, whose own draws are the same."""
    jitter = module.ColorJitter(0.4, 0.4, 0.4, 0.1)
    mixed = module.RandomOrder([jitter, module.RandomChoice([module.RandomGrayscale(0.5), module.Grayscale(3)])])
    of_order = module.Compose([module.RandomCrop(60), mixed, module.RandomHorizontalFlip(), module.PILToTensor()])
    transform = of_order if name == "order of colours" else pipelines(module)[name]
    expected = items(tv.datasets.ImageFolder(folder, transform))
    assert is_like_pillow()
    for owner, method in ((Image, "blend"), (Image, "merge"), (PlannedImage, "load")):
        monkeypatch.setattr(owner, method, lambda *a, **k: pytest.fail("Pillow has changed colours"))
    assert_alike(items(PackedDataset(stores(), transform=transform), batched=True), expected)
    assert mixed.transforms[0] is jitter, "the user's objects stay as they are"


@pytest.mark.slow
@pytest.mark.parametrize("module", [v1, v2])
def test_blurring_is_nearly_that_of_torchvision(folder: Path, stores: Any, module: Any) -> None:
    """Pipelines that learn without labels. Torch sums a blur in another order, so a few values differ by 1."""
    colours = [
        module.RandomApply([module.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
        module.RandomGrayscale(0.2),
        module.RandomApply([module.GaussianBlur((5, 9), (0.1, 2.0))], 0.5),
    ]
    transform = module.Compose(
        [module.RandomResizedCrop(48), *colours, module.RandomVerticalFlip(), module.PILToTensor()]
    )
    expected, *states = items(tv.datasets.ImageFolder(folder, transform), seed=5)
    found, *found_states = items(PackedDataset(stores(), transform=transform), batched=True, seed=5)
    differences = (torch.stack(found).int() - torch.stack(expected).int()).abs()
    assert differences.max() <= 1
    assert (differences > 0).float().mean() < 1e-3
    assert torch.equal(found_states[0], states[0])


@pytest.mark.parametrize("name", ["training", "training, bytes", "erasing"])
@pytest.mark.parametrize("module", [v1, v2])
def test_collation_copies_no_batch(stores: Any, module: Any, name: str) -> None:
    """The rows of one block are their batch. Whatever has changed them is heeded, and other rows are copied."""
    data = PackedDataset(stores(), transform=pipelines(module)[name])
    torch.manual_seed(3)
    values = data.__getitems__([0, 2, 3])
    plain = [tuple(value) for value in values]
    expected = torch.stack([image.as_subclass(torch.Tensor) for image, _ in plain])

    def collate(values: Any) -> Any:
        images, labels = default_collate(values)
        assert type(images) is torch.Tensor
        return images, labels

    assert torch.equal(collate(values)[1], torch.tensor([label for _, label in plain]))
    assert torch.equal(collate(values)[0], expected)
    assert collate(values)[0].data_ptr() == values[0][0].data_ptr()
    for some in ([2, 1, 0], [0, 1], [1, 2], [0, 1, 1], [0, 0, 2]):
        images = collate([values[row] for row in some])[0]
        assert torch.equal(images, expected[some])
        assert images.data_ptr() != values[0][0].data_ptr()
    assert torch.equal(collate([values[0], plain[1], plain[2]])[0], expected)
    values[1] = type(values[1])((values[1][0].flip(-1), 1))
    values[2][0][:] = 1
    images = collate(values)[0]
    assert torch.equal(images[1], expected[1].flip(-1))
    assert (images[2] == 1).all()
    assert type(pickle.loads(pickle.dumps(values[0]))) is tuple


@pytest.mark.slow
@pytest.mark.parametrize("name", ["training", "training, bytes"])
def test_workers_share_what_they_make(stores: Any, name: str) -> None:
    data = PackedDataset(stores(), transform=pipelines(v1)[name])
    for batch in DataLoader(data, 4, num_workers=1):
        images, labels = batch
        assert images.is_shared()
        assert images.untyped_storage().nbytes() == images.nbytes
        assert images.amin() < images.amax()
        assert labels.shape == (4,)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, torch.float16])
@pytest.mark.parametrize("options", [{"encoding": "uint8"}, {"encoding": "float32"}, {"encoding": "bfloat16"}], ids=str)
def test_workers_share_arrays(stores: Any, options: dict[str, Any], dtype: torch.dtype | None) -> None:
    """Also those that are stored as they are: without ``transform``, and equal to items."""
    data = PackedDataset(stores(".pth", size=(40, 30), **options), dtype=dtype)
    rows = 0
    for images, labels in DataLoader(data, 5, num_workers=2):
        assert images.is_contiguous()
        for image, label in zip(images, labels, strict=True):
            assert torch.equal(image, data[rows][0])
            assert (image.dtype, label) == (data[rows][0].dtype, data[rows][1])
            rows += 1
    assert rows == len(data)


@pytest.mark.slow
def test_what_the_engine_refuses_is_decoded_otherwise(stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transform = pipelines(v1)["training"]
    expected = items(PackedDataset(stores(), transform=transform))
    run, refused = Engine.run, []

    def refuse_files(self: Engine, requests: Any, first: int, stop: int, max_pixels: int) -> Any:
        result = run(self, requests, first, stop, max_pixels)
        if not requests.pixel_sizes.any():
            result[::2] = True
            refused.extend(result.tolist())
        return result

    monkeypatch.setattr(Engine, "run", refuse_files)
    assert_alike(items(PackedDataset(stores(), transform=transform), batched=True), expected)
    assert sum(refused) >= 5


class Twice:
    """Two crops of an image, as for learning without labels."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.stack([self.transform(image), self.transform(image)])


class Converts:
    def __call__(self, image: Any) -> Any:
        return v1.functional.to_tensor(image)


@dataclass
class Unhashable:
    transform: Any

    def __call__(self, image: Any) -> Any:
        return self.transform(image)


def hidden(t: Any) -> dict[str, Any]:
    """Pipelines whose conversion is inside a function or object of the user."""
    end = pipelines(t)["jitter"]
    crops = [t.Resize(64), t.FiveCrop(40)]
    return {
        "object": Twice(end),
        "object in a list": t.Compose([t.RandomHorizontalFlip(), Twice(end)]),
        "closure": lambda image: end(image),
        "dataclass": Unhashable(end),
        "partial": partial(lambda transform, image: transform(image), end),
        "made within": t.Compose([*crops, (lambda five: torch.stack([v1.ToTensor()(x) for x in five]))]),
        "function within": t.Compose([t.RandomCrop(50), lambda image: v1.functional.to_tensor(image)]),
        "method": t.Compose([t.RandomCrop(50), Converts()]),
        "array": lambda image: torch.from_numpy(np.array(image)[..., ::-1].copy()).permute(2, 0, 1),
        "random": t.Compose([t.RandomCrop(50), t.RandomApply([t.ToTensor()], 1.0)]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", hidden(v1))
@pytest.mark.parametrize("module", [v1, v2])
def test_conversions_inside_functions_are_found(folder: Path, stores: Any, module: Any, name: str) -> None:
    transform = hidden(module)[name]
    expected = items(tv.datasets.ImageFolder(folder, transform))
    for batched in (False, True):
        assert_alike(items(PackedDataset(stores(), transform=transform), batched=batched), expected)


def test_errors_of_tensors_say_how_to_get_images(stores: Any) -> None:
    def paste(image: Any) -> Any:
        return image.convert("L")

    def unpack(image: Any) -> Any:
        _width, _height = image.shape

    for transform in (paste, unpack, v2.Compose([v2.CenterCrop(20), paste])):
        with pytest.raises((AttributeError, ValueError)) as raised:
            PackedDataset(stores(), transform=transform).__getitems__([1])
        assert any("With output='pil' it is given PIL images" in note for note in raised.value.__notes__)


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        [v2.RGB(), v2.RandomResizedCrop(30), v2.ToImage()],
        [v1.Lambda(lambda image: image.convert("RGB")), v1.RandomResizedCrop(30), v1.ToTensor()],
        [v2.ToImage(), v2.ToDtype(torch.uint8, scale=True), v2.RandomResizedCrop(30), v2.ToDtype(torch.float32)],
    ],
    ids=["RGB", "convert", "uint8"],
)
def test_what_changes_nothing_makes_no_pixels(
    folder: Path, stores: Any, monkeypatch: pytest.MonkeyPatch, steps: list[Any]
) -> None:
    expected, *states = items(tv.datasets.ImageFolder(folder, v2.Compose(steps)))
    dataset = PackedDataset(stores(), transform=v2.Compose(steps))
    monkeypatch.setattr(PlannedImage, "load", lambda *a: pytest.fail("made the pixels of one image"))
    assert_alike(items(dataset, batched=True), (expected, *states))


@pytest.mark.parametrize("step", [v1.Normalize(*NORMAL), v2.Normalize(*NORMAL), v1.ToTensor(), v1.PILToTensor()])
def test_normalised_stores_are_not_normalised_again(stores: Any, step: Any) -> None:
    path = stores(".pth", size=(40, 30))
    transform = v2.Compose([v2.RandomCrop(20), step])
    with pytest.raises(UsageError, match=rf"normalised tensors, and {type(step).__name__} is for .* output='pil'"):
        PackedDataset(path, transform=transform)
    assert ", normalised" in repr(PackedDataset(path))
    whole = v2.Compose([v2.RandomCrop(20), v1.ToTensor(), v1.Normalize(*NORMAL)])
    assert PackedDataset(path, output="pil", denormalize=True, transform=whole)[0][0].shape == (3, 20, 20)


@pytest.mark.slow
def test_presets_of_weights_are_planned(folder: Path, stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transforms of a classifier's weights, as the dataset's and as the loader's."""
    preset = tv.transforms._presets.ImageClassification(crop_size=40, resize_size=52)
    data = PackedDataset(stores(), transform=preset)
    assert_alike(items(data, batched=True), items(tv.datasets.ImageFolder(folder, preset)))
    loader = PackedLoader(PackedDataset(stores()), 12, augment=preset)
    expected = tv.transforms.Compose([v1.PILToTensor(), v2.Resize(52), v2.CenterCrop(40)])
    images = tv.datasets.ImageFolder(folder, expected)
    mean, std = (torch.tensor(values)[:, None, None] for values in NORMAL)
    for (found,), image in zip(next(iter(loader))[0][:, None], images, strict=True):
        assert (found - (image[0] / 255 - mean) / std).abs().max() < 2.5 / 255 / min(NORMAL[1])
    monkeypatch.setattr(ImageReader, "read_each", lambda *a, **k: pytest.fail("decoded a whole image"))
    data.__getitems__([0, 1])


def test_a_changed_transform_is_used(stores: Any) -> None:
    transform = v1.Compose([v1.Resize((40, 40)), v1.ToTensor(), v1.Normalize(*NORMAL)])
    data = PackedDataset(stores(), transform=transform)
    before = data[0][0]
    transform.transforms[1:] = [v1.PILToTensor()]
    assert data[0][0].dtype == data.__getitems__([0])[0][0].dtype == torch.uint8
    data.transform = v1.Compose([v1.Resize((40, 40)), v1.ToTensor()])
    assert torch.equal(data[0][0], v1.ToTensor()(v1.ToPILImage()(torch.as_tensor(data[0][0]))))
    assert not torch.equal(data[0][0], before)


@pytest.mark.slow
def test_target_transforms_draw_in_between(folder: Path, stores: Any) -> None:
    options = {
        "transform": pipelines(v1)["training"],
        "target_transform": lambda label: label + int(torch.rand(1) * 99),
    }
    expected = tv.datasets.ImageFolder(folder, **options)
    assert_alike(items(PackedDataset(stores(), **options), batched=True), items(expected))


def test_dtype_and_dicts(stores: Any) -> None:
    transform = v1.Compose([v1.Resize((40, 40)), v1.ToTensor()])
    data = PackedDataset(stores(), transform=transform, dtype=torch.bfloat16, output="dict", columns=["image", "key"])
    expected = PackedDataset(stores(), transform=transform)[3][0].to(torch.bfloat16)
    for found in (pickle.loads(pickle.dumps(data)).__getitems__([2, 3])[1]["image"], data[[2, 3]]["image"][1]):
        assert torch.equal(found, expected)


def test_a_damaged_image_is_named(folder: Path, tmp_path: Path) -> None:
    packstore.convert(folder, tmp_path / "a.lmdb")
    damage(tmp_path / "a.lmdb", [2], [])
    data = PackedDataset(tmp_path / "a.lmdb", transform=pipelines(v1)["training"])
    for read in (lambda: data.__getitems__([0, 1, 2, 3]), lambda: data[2]):
        with pytest.raises(CorruptRecordError, match="record 2"):
            read()
    data[3]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_errors_of_functions_name_the_record(stores: Any, place: int) -> None:
    def fail(image: Any) -> Any:
        raise ArithmeticError("of a user")

    steps = [v1.RandomCrop(40), v1.ToTensor()]
    data = PackedDataset(stores(), transform=v1.Compose([*steps[:place], fail, *steps[place:]]))
    with pytest.raises(ArithmeticError) as raised:
        data.__getitems__([3, 4])
    assert "record 3 (" in "".join(raised.value.__notes__)


def test_floats_and_wide_pixels_are_given_as_before(stores: Any) -> None:
    data = PackedDataset(stores(".pth", size=(80, 72)), transform=v2.Compose([v2.ToImage(), v2.CenterCrop(40)]))
    assert data[0][0].dtype == torch.float32
    data.transform = v1.Compose([v1.ToTensor()])
    with pytest.raises(TypeError, match="PIL") as raised:
        data[0]
    assert "output='pil'" in "".join(raised.value.__notes__)
