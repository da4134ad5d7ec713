"""``PackedLoader`` with accelerate, in the ``Trainer`` of Transformers, and on two ranks: the order after a resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from packstore import PackedDataset, PackedLoader
from tests.conftest import ROOT, Stores
from tests.makers.batches import RAGGED, load_as
from tests.makers.torchvision import import_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # of the frameworks' own

KINDS = ("streaming", "resident", "lanes", "random", "distributed")


def load(stores: Stores, kind: str = "streaming", split: str = "train") -> PackedLoader:
    """Makes a loader of 13 batches in training, of dicts with image, label and key."""
    found: PackedLoader = load_as(stores, kind, 8, split, columns=("image", "label", "key"), output="dict")
    return found


def read(loader: Any) -> list[tuple[list[str], float]]:
    """Lists keys and sums of pixels of each batch."""
    return [(batch["key"], batch["image"].sum().item()) for batch in loader]


# accelerate ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def accelerator() -> Any:
    import_torchvision()
    from accelerate import Accelerator

    return Accelerator(cpu=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["torch", *KINDS])
def test_gradients_are_accumulated_to_the_end_of_an_epoch(accelerator: Any, stores: Stores, kind: str) -> None:
    loader = torch.utils.data.DataLoader(list(range(13))) if kind == "torch" else load(stores, kind)
    loader, model = accelerator.prepare(loader), torch.nn.Linear(1, 1)
    accelerator.gradient_accumulation_steps, steps = 4, []
    try:
        for epoch in range(2):
            for number, _ in enumerate(loader):
                with accelerator.accumulate(model):
                    for _ in load(stores, split="test"):  # an evaluation in between is not the end
                        pass
                    if accelerator.sync_gradients:
                        steps.append((epoch, number))
    finally:
        accelerator.gradient_accumulation_steps = 1
    assert steps == [(epoch, number) for epoch in range(2) for number in (3, 7, 11, 12)]
    if kind != "torch":  # accelerate's own stay after a break
        next(iter(loader))
    assert not accelerator.gradient_state.in_dataloader


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_skip_first_batches(accelerator: Any, stores: Stores, kind: str) -> None:
    whole = load(stores, kind)
    epochs = [read(whole) for _ in range(3)]
    loader = accelerator.prepare(load(stores, kind))
    assert isinstance(loader, PackedLoader)
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        skipped = accelerator.skip_first_batches(loader, 3)
        random = torch.get_rng_state()
        assert len(skipped) == 10
        assert read(skipped) == epochs[epoch][3:]
        assert torch.equal(torch.get_rng_state(), random)
    assert read(loader) == epochs[2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("done", [0, 5, 13])
def test_a_loader_that_is_registered_for_checkpointing(
    accelerator: Any, stores: Stores, tmp_path: Path, kind: str, done: int
) -> None:
    whole, loader, resumed = (accelerator.prepare(load(stores, kind)) for _ in range(3))
    epochs = [read(whole) for _ in range(3)]
    read(loader)
    list(zip(range(done), loader, strict=False))
    accelerator.register_for_checkpointing(loader)
    try:
        accelerator.save_state(tmp_path / "state")
        accelerator._custom_objects[:] = [resumed]
        accelerator.load_state(tmp_path / "state")
    finally:
        accelerator._custom_objects.clear()
    assert read(resumed) == (epochs[1][done:] or epochs[2])
    accelerator.project_configuration.iteration = 0


# Transformers -------------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    """Classifies by mean colours, with dropout, and remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 10)
        self.seen: list[tuple[list[str], float]] = []

    def forward(self, image: torch.Tensor, label: torch.Tensor, key: Any = None) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen.append((key, image.sum().item()))
        image = image.float() / 255 if image.dtype == torch.uint8 else image
        logits = self.layer(torch.nn.functional.dropout(image.mean((2, 3)), 0.5, self.training))
        return {"loss": torch.nn.functional.cross_entropy(logits, label), "logits": logits}


def make_trainer(model: Model, folder: Path, arguments: dict[str, Any], **options: Any) -> Any:
    import_torchvision()
    from transformers import Trainer, TrainingArguments

    quiet = TrainingArguments(str(folder), use_cpu=True, report_to=[], disable_tqdm=True, **arguments)
    return Trainer(model=model, args=quiet, **options)


def train(
    stores: Stores, folder: Path, kind: str, resume: Path | None = None, **options: Any
) -> tuple[Model, dict[str, float]]:
    """Trains two epochs with the default settings, and evaluates. Returns the model and the metrics."""
    model = Model()
    torch.manual_seed(0)
    options |= {"num_train_epochs": 2, "save_strategy": "steps", "label_names": ["label"]}
    trainer = make_trainer(model, folder, options, compute_metrics=lambda found: {"count": len(found.predictions)})
    trainer.get_train_dataloader = lambda: load(stores, kind)
    trainer.get_eval_dataloader = lambda eval_dataset=None: load(stores, split="test")
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return model, trainer.evaluate()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_trainer_that_resumes_anywhere(stores: Stores, tmp_path: Path, kind: str, accumulated: int) -> None:
    """In mid-epoch, at an epoch's end, and in a later epoch; dropout included."""
    options = {"gradient_accumulation_steps": accumulated, "save_steps": 1 if accumulated == 3 else 4}
    if accumulated == 1:
        options["save_steps"] = 13 if kind == "resident" else 5
    whole, metrics = train(stores, tmp_path / "whole", kind, **options)
    assert metrics["eval_count"] == 20
    assert len(whole.seen) == 26
    checkpoints = sorted((tmp_path / "whole").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    for checkpoint in checkpoints[:: 2 if accumulated == 3 else 1]:
        resumed, _ = train(stores, tmp_path / "resumed", kind, checkpoint, **options)
        count = len(resumed.seen)
        assert resumed.seen == whole.seen[26 - count :]
        assert torch.equal(resumed.layer.weight, whole.layer.weight)


def test_a_dataset_in_a_trainer(stores: Stores, tmp_path: Path) -> None:
    """Without a loader: Transformers collates the items itself, and calls the labels ``labels``."""

    class Labelled(Model):
        def forward(self, image: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return super().forward(image, labels)

    dataset, model = PackedDataset(stores("cifar.lmdb"), "train", output="dict"), Labelled()
    options = {"max_steps": 3, "save_strategy": "no"}
    trainer = make_trainer(model, tmp_path, options, train_dataset=dataset, eval_dataset=dataset)
    trainer.train()
    assert len(model.seen) == 3
    assert "eval_loss" in trainer.evaluate()


def test_crops_of_files_in_skipped_batches(accelerator: Any, stores: Stores) -> None:
    dataset = PackedDataset(stores("files.lmdb"), "train", columns=("image", "key"), output="dict")
    whole, loader = (PackedLoader(dataset, 2, shuffle=True, augment=RAGGED) for _ in range(2))
    first, second = read(whole), read(whole)
    assert read(accelerator.skip_first_batches(loader, 1)) == first[1:]
    assert read(loader) == second


# On two ranks -----------------------------------------------------------------------------------------------------

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
# Its --cpu starts one process. --multi_gpu starts any number, and Accelerator(cpu=True) keeps them off the GPUs.
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0", "-m"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("launcher", "frameworks"),
    [(TORCHRUN, ["lightning", "accelerate", "transformers"]), (ACCELERATE, ["accelerate"])],
    ids=["torchrun", "accelerate"],
)
def test_ranks_share_the_records_and_resume_in_their_order(
    stores: Stores, tmp_path: Path, launcher: list[str], frameworks: list[str]
) -> None:
    """All ranks together see what one rank would, whichever framework runs them, and whatever interrupts them."""
    store = stores("cifar.lmdb")
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "tests.makers.on_ranks", store, tmp_path, *frameworks],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    loader = PackedLoader(PackedDataset(store, "train", columns=("image", "key")), 8, shuffle=True)
    expected = [sorted(keys) for _ in range(2) for _, keys in loader]
    for framework in frameworks:
        first, second = (rank[framework] for rank in ranks)
        whole = [sorted(one + other) for one, other in zip(first["whole"], second["whole"], strict=True)]
        assert whole == expected, framework
        for rank in (first, second):
            for kind, keys in rank.items():
                assert kind == "evaluated" or keys == rank["whole"], (framework, kind)
    assert [rank["transformers"]["evaluated"] for rank in ranks if "transformers" in rank] in ([20, 20], [])
