"""Batches that are planned together are those that are planned one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomErasing, RandomHorizontalFlip, RandomResizedCrop, recipe
from packstore.images.engine import Requests
from tests.internals import BatchGroup, DecodeError, PackstoreError, UsageError, group_batches, planning
from tests.makers.batches import same
from tests.makers.datasets import write_image

RECORDS = 45
AUGMENT: dict[str, list[Any]] = {
    "crops": [RandomResizedCrop(24), RandomHorizontalFlip()],
    "programs": [RandomResizedCrop(24), RandomHorizontalFlip(), "rand-m9", RandomErasing(p=0.5)],
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of different sizes, PNG and JPEG."""
    root = tmp_path_factory.mktemp("photos")
    for i in range(RECORDS):
        write_image(root / f"{i:02}.{'png' if i % 4 == 3 else 'jpg'}", 40 + i % 5, 50 - i % 7, i)
    return root


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each batch that has a share of a group, in the order of their preparation: whether the group has a plan."""
    made, plan = [], BatchGroup.plan_once

    def note(self: BatchGroup, make: Any) -> Any:
        found = plan(self, make)
        made.append(found is not None)
        return found

    monkeypatch.setattr(BatchGroup, "plan_once", note)
    return made


def batches(path: Path, **options: Any) -> list[tuple[torch.Tensor, ...]]:
    """The batches of three epochs: the first of a store is cold, and batches of those are planned on their own."""
    dataset = PackedDataset(path, columns=("image", "key"))
    loader = PackedLoader(dataset, 4, shuffle=True, seed=5, workers=2, resident=False, **options)
    return [(images.clone(), keys) for _ in range(3) for images, keys in loader]


def run(loader: PackedLoader) -> tuple[int, Exception | None]:
    """How many images an epoch gives before an error, and that error."""
    seen = 0
    try:
        for images in loader:
            seen += len(images)
    except PackstoreError as error:
        return seen, error
    return seen, None


STORES: dict[str, dict[str, Any]] = {
    "files": {"encoding": "original"},
    "no-index": {"encoding": "original", "index": False},
    "shards": {"encoding": "original", "shard_size": 20_000},
    "pixels": {"encoding": "uint8"},
    "array": {"encoding": "uint8", "size": 32},
    "floats": {"encoding": "float16", "size": 32},
}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
@pytest.mark.parametrize("augment", AUGMENT)
@pytest.mark.parametrize("kind", STORES)
def test_they_are_the_same_batches(
    kind: str, augment: str, suffix: str, photos: Path, tmp_path: Path, plans: list[bool], monkeypatch: Any
) -> None:
    path = tmp_path / f"store.{suffix}"
    packstore.convert(photos, path, **STORES[kind])
    options: dict[str, Any] = {"augment": AUGMENT["crops"] if kind == "floats" else AUGMENT[augment]}
    if kind != "floats":
        options["normalize"] = "imagenet"
    together = batches(path, **options)
    assert any(plans)
    plans.clear()
    monkeypatch.setattr(planning, "RECORDS_TOGETHER", 1)
    alone = batches(path, **options)
    assert not plans
    assert len(together) == 3 * 12
    assert same(together, alone)


@pytest.mark.slow
def test_a_record_that_fails_is_named_by_its_own_batch(photos: Path, tmp_path: Path, plans: list[bool]) -> None:
    for i in range(RECORDS):
        write_image(tmp_path / "photos" / f"{i:02}.png", 40, 50, i)
    damaged = tmp_path / "photos" / "30.png"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(data)
    packstore.convert(tmp_path / "photos", tmp_path / "d.lmdb")
    dataset = PackedDataset(tmp_path / "d.lmdb")
    loader = PackedLoader(dataset, 4, augment=AUGMENT["crops"], workers=2)
    for _ in range(2):
        seen, error = run(loader)
        assert isinstance(error, DecodeError)
        assert "record 30 (30.png)" in str(error)
        assert seen == 28
    assert plans[-1]
    skipping = PackedLoader(dataset, 4, augment=AUGMENT["crops"], on_error="skip")
    assert [sum(len(images) for images in skipping) for _ in range(2)] == [RECORDS - 1] * 2


@pytest.mark.slow
def test_an_operation_that_refuses_an_image_is_left_to_its_batch(tmp_path: Path, plans: list[bool]) -> None:
    for i in range(RECORDS):
        write_image(tmp_path / "photos" / f"{i:02}.png", 20 if i == 30 else 40, 50, i)
    packstore.convert(tmp_path / "photos", tmp_path / "s.lmdb")
    loader = PackedLoader(PackedDataset(tmp_path / "s.lmdb"), 4, augment=[packstore.augment.RandomCrop(32)])
    for _ in range(2):
        seen, error = run(loader)
        assert isinstance(error, UsageError)
        assert seen == 28
    assert not plans[-1]


def test_groups_are_whole_batches_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "RECORDS_TOGETHER", 10)
    sizes = [4, 4, 4, 12, 3, 3]
    given = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    shared = list(group_batches(iter(given)))
    assert [ids.tolist() for ids, _ in shared] == [ids.tolist() for ids in given]
    assert [share is None for _, share in shared] == [False] * 3 + [True] + [False] * 2
    for ids, share in shared:
        if share is not None:
            assert share.group.ids[share.rows].tolist() == ids.tolist()
    assert len({id(share.group) for _, share in shared if share is not None}) == 2


def test_requests_without_rows_do_not_run() -> None:
    images = np.zeros((3, 5, 4, 3), np.uint8)
    requests = Requests.of_array(images, np.arange(3))
    whole = np.tile([0, 0, 5, 4], (3, 1))
    requests.set_outputs(whole, whole[:, 2:], whole, None, np.empty((0, 5, 4, 3), np.uint8))
    with pytest.raises(ValueError, match="no rows to write yet"):
        requests.locate(0, 1)
    part = requests.select_rows(1, 3)
    for wrong in (
        np.empty((3, 5, 4, 3), np.uint8),
        np.empty((2, 5, 4, 3), np.float32),
        np.empty((2, 4, 5, 3), np.uint8),
    ):
        with pytest.raises(ValueError, match="2 of"):
            part.write_to(wrong)
    part.write_to(np.empty((2, 5, 4, 3), np.uint8))
    part.locate(0, 2)
    none = requests.select_rows(1, 1)
    none.set_outputs(whole[:0], whole[:0, 2:], whole[:0], None, np.empty((0, 5, 4, 3), np.uint8))
    none.locate(0, 0)
    with pytest.raises(ValueError, match="no rows to write yet"):
        requests.locate(0, 1)


@pytest.mark.slow
def test_recipes_are_planned_together(photos: Path, tmp_path: Path, plans: list[bool]) -> None:
    packstore.convert(photos, tmp_path / "s.lmdb")
    batches(tmp_path / "s.lmdb", augment=recipe("timm-rsb-a2"))
    assert any(plans)
