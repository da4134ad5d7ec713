"""``PackedLoader`` in Lightning's ``Trainer``: loops, and the order after every kind of resume."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from packstore import PackedDataset, PackedLoader
from tests.conftest import Stores
from tests.makers.batches import FIXED
from tests.makers.torchvision import import_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def lightning() -> Any:
    import_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning

        return lightning


class Run:
    """Trainings in one folder, and the keys and pixels that each of them saw."""

    def __init__(self, lightning: Any, folder: Path, stores: Stores, kind: str = "streaming") -> None:
        self.lightning, self.folder, self.stores, self.kind = lightning, folder, stores, kind

    def load(self, split: str) -> PackedLoader:
        shards = "shards.h5" if self.kind == "lanes" else "cifar.lmdb"
        dataset = PackedDataset(self.stores(shards), split, columns=("image", "key"))
        if split == "test":
            return PackedLoader(dataset, 8, normalize="imagenet", indices=range(20))
        generator = torch.Generator().manual_seed(4)
        options: dict[str, Any] = {
            "resident": {"resident": True},
            "lanes": {"shuffle": "lanes", "window": 2},
            "random": {"shuffle": False, "sampler": RandomSampler(dataset, generator=generator)},
            "distributed": {"shuffle": False, "sampler": DistributedSampler(dataset, 1, 0)},  # type: ignore[dict-item]
        }.get(self.kind, {"resident": False})
        return PackedLoader(dataset, 16, **({"shuffle": True, "augment": FIXED, "normalize": "imagenet"} | options))

    def fit(self, resumed: bool = False, save_every: int | None = None, **options: Any) -> Any:
        """Trains, from the checkpoint ``last.ckpt`` if ``resumed``. Returns the module with what it saw."""
        lightning, run = self.lightning, self

        class Module(lightning.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(3, 10)
                self.seen: list[tuple[list[str], float]] = []
                self.validated: list[tuple[int, list[str]]] = []

            def training_step(self, batch: Any, index: int) -> Any:
                self.seen.append((batch[1], batch[0].sum().item()))
                return self.layer(batch[0].mean((2, 3))).sum()

            def validation_step(self, batch: Any, index: int) -> None:
                self.validated.append((index, batch[1]))

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.1)

        class Data(lightning.LightningDataModule):  # type: ignore[misc]
            def train_dataloader(self) -> PackedLoader:
                return run.load("train")

            def val_dataloader(self) -> PackedLoader:
                return run.load("test")

        module = Module()
        saving = self.lightning.pytorch.callbacks.ModelCheckpoint(
            self.folder, save_last=True, every_n_train_steps=save_every
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(
                accelerator="cpu",
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=[saving],
                **options,
            )
            trainer.fit(module, datamodule=Data(), ckpt_path=self.folder / "last.ckpt" if resumed else None)
        return module


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
    whole = Run(lightning, tmp_path / "whole", stores, kind).fit(max_epochs=3)
    assert len(whole.seen) == 21
    assert len({tuple(keys) for keys, _ in whole.seen}) == 21
    for last in ({"max_epochs": 3}, *([{"max_steps": 21}] if "save_every" in options else [])):
        interrupted = Run(lightning, tmp_path / f"interrupted by {[*last]}", stores, kind)
        interrupted.fit(**ends, **options)
        rest = interrupted.fit(resumed=True, **last, **options)
        assert 0 < len(rest.seen) < 21
        assert rest.seen == whole.seen[-len(rest.seen) :]


def fit_quietly(
    lightning: Any, loader: Any, validation: Any = None, ckpt_path: Path | None = None, **options: Any
) -> list[Any]:
    """Trains with one loader or several. Returns what the steps saw: keys, by loader."""
    found: list[Any] = []

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 10)

        def training_step(self, batch: Any, index: int) -> Any:
            parts = batch if isinstance(batch, dict) else {"": batch}
            found.append([(name, tuple(each[1])) for name, each in parts.items() if each is not None])
            return self.layer(next(iter(parts.values()))[0].float().mean((2, 3))).sum()

        def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
            found.append((dataloader_idx, index, tuple(batch[1])))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.Trainer(**quiet | options).fit(Module(), loader, validation, ckpt_path=ckpt_path)
    return found


@pytest.mark.filterwarnings("ignore")  # what Lightning warns of itself
@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle"])
def test_several_loaders(lightning: Any, stores: Stores, mode: Any) -> None:
    """Two loaders of unequal length for training, and two for validation, give what those of torch give."""
    dataset = PackedDataset(stores("cifar.lmdb"), "train", columns=("image", "key"))
    subset = torch.utils.data.Subset(dataset, range(24))

    def fit(make: Any) -> list[Any]:
        parts = {"long": make(dataset, 16), "short": make(subset, 8)}
        combined = lightning.pytorch.utilities.CombinedLoader(parts, mode)
        return fit_quietly(lightning, combined, [make(subset, 5), make(dataset, 16)], max_epochs=2)

    found = fit(PackedLoader)
    assert found == fit(DataLoader)
    assert {type(each) for each in found} == {tuple, list}


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("short", [16, 32])
@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle"])
def test_several_loaders_resume_where_they_were(
    lightning: Any, stores: Stores, tmp_path: Path, mode: Any, steps: int, short: int
) -> None:
    """Also a short loader that has ended, or has begun anew, within the epoch of Lightning."""
    dataset = PackedDataset(stores("cifar.lmdb"), "train", columns=("image", "key"))
    subset = torch.utils.data.Subset(dataset, range(short))

    def fit(**options: Any) -> list[Any]:
        saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, save_last=True, every_n_train_steps=steps)
        parts = {"long": PackedLoader(dataset, 16, shuffle=True), "short": PackedLoader(subset, 8, shuffle=True)}
        combined = lightning.pytorch.utilities.CombinedLoader(parts, mode)
        return fit_quietly(lightning, combined, enable_checkpointing=True, callbacks=[saving], **options)

    whole = fit(max_epochs=3)
    (tmp_path / "last.ckpt").unlink()
    fit(max_steps=steps)
    rest = fit(max_epochs=3, ckpt_path=tmp_path / "last.ckpt")
    assert rest == whole[steps:]


@pytest.mark.parametrize("count", [40, None])
def test_a_sampler_without_a_length(lightning: Any, stores: Stores, count: int | None) -> None:
    dataset = PackedDataset(stores("cifar.lmdb"), "train", columns=("image", "key"))

    class Numbers:
        def __iter__(self) -> Iterator[int]:
            return (number % 50 for number in itertools.islice(itertools.count(), count))

    def fit(make: Any) -> list[Any]:
        return fit_quietly(lightning, make(dataset, 16, sampler=Numbers()), max_epochs=2, limit_train_batches=5)

    found = fit(PackedLoader)
    assert found == fit(DataLoader)
    assert len(found) == (10 if count is None else 6)


def test_sanity_check_and_validation_every_few_steps(lightning: Any, stores: Stores, tmp_path: Path) -> None:
    module = Run(lightning, tmp_path, stores).fit(max_epochs=1, val_check_interval=3, num_sanity_val_steps=2)
    keys = [keys for _, keys in Run(lightning, tmp_path, stores).load("test")]
    assert [step for step, _ in module.validated] == [0, 1, *[0, 1, 2] * 2]
    assert [found for _, found in module.validated] == [*keys[:2], *keys * 2]
    assert len(module.seen) == 7


def test_validate_and_predict_and_overfit(lightning: Any, stores: Stores, tmp_path: Path) -> None:
    """What Lightning asks elsewhere of a loader: a sampler that is in order, and a batch sampler."""
    run = Run(lightning, tmp_path, stores)

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 10)
            self.seen: list[list[str]] = []

        def validation_step(self, batch: Any, index: int) -> Any:
            self.seen.append(batch[1])
            return self.layer(batch[0].mean((2, 3))).sum()

        test_step = training_step = validation_step

        def predict_step(self, batch: Any, index: int) -> Any:
            return batch[1]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
        quiet |= {"enable_model_summary": False, "accelerator": "cpu"}
        trainer = lightning.Trainer(**quiet)
        keys = [keys for _, keys in run.load("test")]
        for call in (trainer.validate, trainer.test):
            module = Module()
            call(module, run.load("test"), verbose=False)
            assert module.seen == keys
        assert trainer.predict(Module(), run.load("test")) == keys
        module = Module()
        trainer = lightning.Trainer(overfit_batches=2, max_epochs=2, num_sanity_val_steps=0, **quiet)
        trainer.fit(module, run.load("test"), run.load("test"))
        assert module.seen == [*keys[:2]] * 4
