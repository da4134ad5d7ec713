"""``prefetch``: another loader's batches, all of them, on the device and normalised there."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from packstore import UsageError, prefetch
from tests.internals import NORMALIZATIONS
from tests.makers.batches import same

IMAGES = torch.arange(7 * 3 * 4 * 4, dtype=torch.uint8).view(7, 3, 4, 4)
LABELS = torch.arange(7)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(IMAGES, LABELS), batch_size=2)


@pytest.mark.parametrize("ahead", [1, 2, 9])
def test_every_batch_comes_once_and_in_order(ahead: int) -> None:
    ahead_of = prefetch(loader(), "cpu", ahead=ahead)
    assert len(ahead_of) == 4
    for _ in range(2):
        assert same(ahead_of, loader())


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float32])
def test_uint8_images_are_scaled_and_normalised(dtype: torch.dtype | None) -> None:
    chosen = NORMALIZATIONS["cifar10"]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (chosen.mean, chosen.std))
    images = torch.cat([x for x, _ in prefetch(loader(), "cpu", normalize="cifar10", dtype=dtype)])
    assert images.dtype == (dtype or torch.float32)
    tolerance = 2e-3 if dtype == torch.float16 else 1e-6
    torch.testing.assert_close(images.float(), (IMAGES / 255 - mean) / std, rtol=tolerance, atol=tolerance)


def test_floating_point_images_are_normalised_as_they_are() -> None:
    chosen = NORMALIZATIONS["imagenet"]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (chosen.mean, chosen.std))
    (images,) = prefetch([IMAGES / 255], "cpu", normalize="imagenet")
    torch.testing.assert_close(images, (IMAGES / 255 - mean) / std)
    (half,) = prefetch([IMAGES / 255], "cpu", dtype=torch.float16)
    assert half.dtype == torch.float16


class Pair(NamedTuple):
    image: torch.Tensor
    key: str


@pytest.mark.slow
def test_any_structure_keeps_its_form() -> None:
    batch = {"a": [IMAGES, (LABELS, "key", None)], "b": Pair(IMAGES, "x")}
    (got,) = prefetch([batch], "meta", normalize="cifar10")
    assert got["a"][0].device.type == "meta"
    assert got["a"][0].dtype == torch.float32
    assert got["a"][1][0].dtype == torch.int64
    assert got["a"][1][1:] == ("key", None)
    assert isinstance(got["b"], Pair)
    assert got["b"].key == "x"


def test_mappings_keep_their_kind() -> None:
    batch = defaultdict(list, x=torch.arange(3), y=torch.ones(2))
    ordered = OrderedDict(b=torch.arange(2), a=1)
    (found, pairs), *_ = list(prefetch([(batch, ordered)], "cpu"))
    assert found["new"] == []
    assert torch.equal(found["x"], batch["x"])
    assert list(pairs) == ["b", "a"]
    assert type(pairs) is OrderedDict
    assert batch["x"].shape == (3,)  # the loader's own is left as it is


def test_wrong_options() -> None:
    for options in ({"normalize": "mnist"}, {"dtype": torch.int8}, {"ahead": 0}):
        with pytest.raises(UsageError):
            prefetch([], "cpu", **options)
