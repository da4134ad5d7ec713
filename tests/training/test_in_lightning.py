"""``PackedLoader`` in Lightning's ``Trainer``: loops, and the order after every kind of resume."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from packstore import PackedDataset, PackedLoader
from tests.conftest import Stores
from tests.makers.batches import keys_of, load_as
from tests.makers.torchvision import import_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # Lightning warns of itself


@pytest.fixture
def lightning() -> Any:
    import_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning

        return lightning


def load(stores: Stores, kind: str = "streaming", split: str = "train") -> PackedLoader:
    found: PackedLoader = load_as(stores, kind, 16, split, columns=("image", "key"))
    return found


def make_module(lightning: Any) -> Any:
    """Makes a module that lists what its steps saw: for training the keys and the sum of pixels, by loader."""

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 10)
            self.seen: list[dict[str, tuple[list[str], float]]] = []
            self.validated: list[tuple[int, int, list[str]]] = []

        def training_step(self, batch: Any, index: int) -> Any:
            parts = {name: each for name, each in batch.items() if each} if isinstance(batch, dict) else {"": batch}
            self.seen.append({name: ([*each[1]], each[0].float().sum().item()) for name, each in parts.items()})
            return self.layer(next(iter(parts.values()))[0].float().mean((2, 3))).sum()

        def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
            self.validated.append((dataloader_idx, index, [*batch[1]]))

        test_step = validation_step

        def predict_step(self, batch: Any, index: int) -> Any:
            return batch[1]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Module()


def make_trainer(lightning: Any, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": "callbacks" in options}
    return lightning.Trainer(**quiet, enable_model_summary=False, accelerator="cpu", **options)


def fit(
    lightning: Any, train: Any, validation: Any = None, folder: Path | None = None, resumed: bool = False,
    save_every: int | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Trains, and saves in a folder; ``resumed``: from what was saved there. Returns the module with what it saw."""
    module = make_module(lightning)
    if folder is not None:
        saving = lightning.pytorch.callbacks.ModelCheckpoint(folder, save_last=True, every_n_train_steps=save_every)
        options["callbacks"] = [saving]
    last = folder / "last.ckpt" if resumed and folder else None
    make_trainer(lightning, **options).fit(module, train, validation, ckpt_path=last)
    return module


def make_data(lightning: Any, stores: Stores, kind: str = "streaming") -> Any:
    class Data(lightning.LightningDataModule):
        def train_dataloader(self) -> PackedLoader:
            return load(stores, kind)

        def val_dataloader(self) -> PackedLoader:
            return load(stores, split="test")

    return Data()


SAVED = {
    "epoch": ({"max_epochs": 1}, {}),
    "later epoch": ({"max_epochs": 2}, {}),
    "mid-epoch": ({"max_steps": 3}, {"save_every": 3}),
    "mid of a later epoch": ({"max_steps": 9}, {"save_every": 9}),
    "last batch": ({"max_steps": 7}, {"save_every": 7}),
    "validation": ({"max_steps": 6}, {"val_check_interval": 2}),
    "before validation": ({"max_steps": 4}, {"val_check_interval": 2, "save_every": 4}),
}
"""When a run ends, and what says when it saves: epochs have seven batches."""

KINDS = ("streaming", "resident", "lanes", "random", "distributed")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_after_a_resume_is_that_without_an_interruption(
    lightning: Any, stores: Stores, tmp_path: Path, kind: str, saved: str
) -> None:
    ends, options = SAVED[saved]
    whole = fit(lightning, make_data(lightning, stores, kind), max_epochs=3).seen
    assert len(whole) == len({str(batch) for batch in whole}) == 21
    for last in ({"max_epochs": 3}, *([{"max_steps": 21}] if "save_every" in options else [])):
        options = {**options, "folder": tmp_path / f"interrupted by {[*last]}"}
        fit(lightning, make_data(lightning, stores, kind), **ends, **options)
        rest = fit(lightning, make_data(lightning, stores, kind), resumed=True, **last, **options).seen
        assert 0 < len(rest) < 21
        assert rest == whole[-len(rest) :]


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle"])
def test_several_loaders(lightning: Any, stores: Stores, mode: Any) -> None:
    """Two loaders of unequal length for training, and two for validation, give what those of torch give."""
    dataset = PackedDataset(stores("cifar.lmdb"), "train", columns=("image", "key"))
    subset = torch.utils.data.Subset(dataset, range(24))
    found = []
    for make in (PackedLoader, DataLoader):
        parts: Any = {"long": make(dataset, 16), "short": make(subset, 8)}
        combined = lightning.pytorch.utilities.CombinedLoader(parts, mode)
        module = fit(lightning, combined, [make(subset, 5), make(dataset, 16)], max_epochs=2)
        found.append((module.seen, module.validated))
    assert found[0] == found[1]
    assert all(found[0])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("short", [16, 32])
@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle"])
def test_several_loaders_resume_where_they_were(
    lightning: Any, stores: Stores, tmp_path: Path, mode: Any, steps: int, short: int
) -> None:
    """Also a short loader that has ended, or has begun anew, within the epoch of Lightning."""
    dataset = PackedDataset(stores("cifar.lmdb"), "train", columns=("image", "key"))
    subset = torch.utils.data.Subset(dataset, range(short))

    def see(**options: Any) -> list[Any]:
        parts = {"long": PackedLoader(dataset, 16, shuffle=True), "short": PackedLoader(subset, 8, shuffle=True)}
        combined = lightning.pytorch.utilities.CombinedLoader(parts, mode)
        return list(fit(lightning, combined, folder=tmp_path, save_every=steps, **options).seen)

    whole = see(max_epochs=3)
    (tmp_path / "last.ckpt").unlink()
    see(max_steps=steps)
    assert see(max_epochs=3, resumed=True) == whole[steps:]


@pytest.mark.parametrize("count", [40, None])
def test_a_sampler_without_a_length(lightning: Any, stores: Stores, count: int | None) -> None:
    dataset = PackedDataset(stores("cifar.lmdb"), "train", columns=("image", "key"))

    class Numbers:
        def __iter__(self) -> Iterator[int]:
            return (number % 50 for number in itertools.islice(itertools.count(), count))

    found, expected = (
        fit(lightning, make(dataset, 16, sampler=Numbers()), max_epochs=2, limit_train_batches=5).seen
        for make in (PackedLoader, DataLoader)
    )
    assert found == expected
    assert len(found) == (10 if count is None else 6)


def test_sanity_check_and_validation_every_few_steps(lightning: Any, stores: Stores, tmp_path: Path) -> None:
    data = make_data(lightning, stores)
    module = fit(lightning, data, folder=tmp_path, max_epochs=1, val_check_interval=3, num_sanity_val_steps=2)
    keys = keys_of(load(stores, split="test"))
    assert module.validated == [(0, step, keys[step]) for step in [0, 1, *[0, 1, 2] * 2]]
    assert len(module.seen) == 7


def test_validate_and_predict_and_overfit(lightning: Any, stores: Stores) -> None:
    """What Lightning asks elsewhere of a loader: a sampler that is in order, and a batch sampler."""
    keys, trainer = keys_of(load(stores, split="test")), make_trainer(lightning)
    for call in (trainer.validate, trainer.test):
        module = make_module(lightning)
        call(module, load(stores, split="test"), verbose=False)
        assert [found for *_, found in module.validated] == keys
    assert trainer.predict(make_module(lightning), load(stores, split="test")) == keys
    loaders = load(stores, split="test"), load(stores, split="test")
    module = fit(lightning, *loaders, overfit_batches=2, max_epochs=2, num_sanity_val_steps=0)
    assert [step[""][0] for step in module.seen] == [found for *_, found in module.validated] == keys[:2] * 2
