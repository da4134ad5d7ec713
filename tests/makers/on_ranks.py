"""Trains in Lightning, accelerate and Transformers on the ranks that a launcher starts.

Run it as the module ``tests.makers.on_ranks STORE FOLDER FRAMEWORK…``. It writes ``FOLDER/rank0.json``
and so on: by framework, the keys of an uninterrupted run and of one that resumes.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip
from tests.makers.torchvision import import_torchvision

warnings.simplefilter("ignore")
import_torchvision()

STORE, FOLDER, RANK = sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"])


def load(split: str = "train", **options: Any) -> PackedLoader:
    dataset = PackedDataset(STORE, split, columns=("image", "label", "key"), output="dict")
    return PackedLoader(dataset, 4, normalize="imagenet", augment=[RandomHorizontalFlip()], **options)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 10)
        self.seen: list[list[str]] = []

    def forward(self, image: torch.Tensor, label: torch.Tensor, key: Any = None) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen.append(key)
        logits = self.layer(image.mean((2, 3)))
        return {"loss": torch.nn.functional.cross_entropy(logits, label), "logits": logits}


def run_lightning() -> dict[str, Any]:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(**batch)["loss"]

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("loss", self.model(**batch)["loss"], sync_dist=True, batch_size=len(batch["label"]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def fit(name: str, every: int | None = None, **options: Any) -> list[list[str]]:
        last, module = FOLDER / name / "last.ckpt", Module()
        saving = lightning.pytorch.callbacks.ModelCheckpoint(last.parent, save_last=True, every_n_train_steps=every)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "callbacks": [saving]}
        resumed = last if last.exists() else None
        torch.distributed.is_initialized() and torch.distributed.barrier()
        trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", **quiet, **options)
        trainer.fit(module, load(shuffle=True), load("test"), ckpt_path=resumed)
        return module.model.seen

    return {
        "whole": fit("whole", max_epochs=2),
        "end": [*fit("end", max_epochs=1), *fit("end", max_epochs=2)],
        "middle": [*fit("middle", 5, max_steps=5), *fit("middle", 5, max_epochs=2)],
    }


def run_accelerate() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)

    def read(loader: Any) -> list[list[str]]:
        return [batch["key"] for batch in loader]

    whole, saved, resumed = (accelerator.prepare(load(shuffle=True)) for _ in range(3))
    epochs = [*read(whole), *read(whole)]
    seen = read(saved)
    accelerator.register_for_checkpointing(saved)
    for step, batch in enumerate(saved, 1):
        seen.append(batch["key"])
        if step == 5:
            accelerator.save_state(FOLDER / "state")
            break
    accelerator.wait_for_everyone()  # the main process alone writes the registered objects
    accelerator._custom_objects[:] = [resumed]
    accelerator.load_state(FOLDER / "state")
    skipping = accelerator.prepare(load(shuffle=True))
    skipping.set_epoch(1)
    skipped = [*epochs[: len(whole) + 5], *read(accelerator.skip_first_batches(skipping, 5))]
    accelerator._custom_objects.clear()
    return {"whole": epochs, "registered": [*seen, *read(resumed)], "skipped": skipped}


def run_transformers() -> dict[str, Any]:
    from transformers import Trainer, TrainingArguments

    class Packed(Trainer):
        def get_train_dataloader(self) -> Any:
            return load(shuffle=True)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            dataset = PackedDataset(STORE, "test", columns=("image", "label"))
            return load("test", sampler=DistributedSampler(dataset, shuffle=False))  # type: ignore[arg-type]

    def train(checkpoint: str | None = None) -> tuple[list[list[str]], int]:
        model = Model()
        arguments = TrainingArguments(
            str(FOLDER / "trainer"),
            num_train_epochs=2,
            save_strategy="steps",
            save_steps=5,
            label_names=["label"],
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            per_device_eval_batch_size=4,
        )
        trainer = Packed(model=model, args=arguments, compute_metrics=lambda found: {"count": len(found.predictions)})
        trainer.train(resume_from_checkpoint=checkpoint)
        return model.seen, int(trainer.evaluate()["eval_count"])

    whole, count = train()
    rest, _ = train(str(FOLDER / "trainer" / "checkpoint-5"))
    return {"whole": whole, "resumed": [*whole[:5], *rest], "evaluated": count}


RUNS = {"lightning": run_lightning, "accelerate": run_accelerate, "transformers": run_transformers}
runs = {framework: RUNS[framework]() for framework in sys.argv[3:]}
(FOLDER / f"rank{RANK}.json").write_text(json.dumps(runs))
# Else a thread of gloo may release a tensor while the interpreter ends, and abort the program (torch 2.13).
torch.distributed.destroy_process_group()
