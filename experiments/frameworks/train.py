"""Trains by a framework as its documentation has it, as one rank.

    train.py FRAMEWORK FOLDER TURNS [--in-rank-order]

Each function clips gradients, accumulates them and evaluates in mid-training. In turn 0 it saves a
checkpoint to the folder; in turn 1 it goes on from there. ``TURNS`` is 0, 1, or 01 for both in one
process. A function returns the parameters, whose digest each rank prints. None mentions
byteprophet. With ``--in-rank-order``, DistributedDataParallel averages as our exchange does
(``tests/torch/ddp/scripts/rank_order.py``).

``accelerate``, ``transformers`` and ``lightning`` must be installed. Nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

EPOCHS = 2
RANK, RANKS = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
"""Lightning takes these variables away at its end."""
IN_RANK_ORDER = "--in-rank-order"
_RANK_ORDER = Path(__file__).parents[2] / "tests" / "torch" / "ddp" / "scripts"


_exchanged_by = ["nobody"]


def _watched(model: Any) -> Any:
    """Note who exchanges gradients: byteprophet, if it is told that a backward pass sends any."""

    def look(*_: Any) -> None:
        rules: Any = sys.modules.get("byteprophet.torch.ddp.backward")
        _exchanged_by[0] = "ddp"
        if rules is not None and not hasattr(rules.Backward.expect, "__wrapped__"):
            rules.Backward.expect = _noting(rules.Backward.expect)
        first.remove()

    first = model.register_forward_hook(look)
    return model


def _noting(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def expect(*arguments: Any) -> None:
        _exchanged_by[0] = "ours"
        plain(*arguments)

    return expect


def _model() -> nn.Module:
    torch.manual_seed(3)
    body = nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()
    return _watched(nn.Sequential(*body, nn.Linear(64, 1)))


def _data(seed: int = 1) -> TensorDataset:
    return TensorDataset(torch.randn(96, 8, generator=torch.Generator().manual_seed(seed)))


def by_accelerate(folder: Path, turn: int, precision: str = "no") -> Iterable[Tensor]:
    """Hugging Face Accelerate: ``accumulate``, ``clip_grad_norm_``, ``save_state``."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
    inner = _model()
    made = torch.optim.AdamW(inner.parameters(), lr=1e-2)
    model, optimizer, schedule, loader = accelerator.prepare(
        inner,
        made,
        torch.optim.lr_scheduler.LinearLR(made, total_iters=20),
        DataLoader(_data(), batch_size=4),
    )
    if turn:
        accelerator.load_state(str(folder / "state"))
    for _ in range(EPOCHS):
        model.train()
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(inputs).square().mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(_data(2).tensors[0])
    accelerator.save_state(str(folder / "state"))
    parameters: Iterable[Tensor] = accelerator.unwrap_model(model).parameters()
    return parameters


def by_accelerate_bf16(folder: Path, turn: int) -> Iterable[Tensor]:
    """The same under bfloat16 autocast."""
    return by_accelerate(folder, turn, "bf16")


def by_trainer(folder: Path, turn: int, **options: Any) -> Iterable[Tensor]:
    """``transformers.Trainer`` with a small GPT-2 made from a configuration."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    class Tokens(Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 48

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            generator = torch.Generator().manual_seed(index)
            tokens = torch.randint(0, 100, (16,), generator=generator)
            return {"input_ids": tokens, "labels": tokens}

    set_seed(5)
    shape = GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        num_train_epochs=1 + turn,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(_watched(GPT2LMHeadModel(shape)), arguments, None, Tokens(), Tokens())
    trainer.train(resume_from_checkpoint=bool(turn))
    parameters: Iterable[Tensor] = trainer.model.parameters()
    return parameters


def by_trainer_bf16(folder: Path, turn: int) -> Iterable[Tensor]:
    """The same under bfloat16 autocast."""
    return by_trainer(folder, turn, bf16=True)


def by_lightning(folder: Path, turn: int, precision: str = "32-true") -> Iterable[Tensor]:
    """Lightning's ``Trainer(strategy="ddp")``, with automatic optimization."""
    import lightning

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _model()

        def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
            loss: Tensor = self.net(batch[0]).square().mean()
            return loss

        def validation_step(self, batch: list[Tensor], _index: int) -> None:
            self.log("loss", self.net(batch[0]).square().mean(), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return [optimizer], [schedule]

    return _fitted(
        Regression(),
        folder / "lightning.ckpt",
        turn,
        strategy="ddp",
        precision=precision,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
    )


def by_lightning_bf16(folder: Path, turn: int) -> Iterable[Tensor]:
    """The same under bfloat16 autocast."""
    return by_lightning(folder, turn, "bf16-mixed")


def by_lightning_manually(folder: Path, turn: int) -> Iterable[Tensor]:
    """Lightning with manual optimization of two optimizers, as GANs use it."""
    import lightning

    class Pair(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.one, self.two = _model(), _model()

        def training_step(self, batch: list[Tensor], index: int) -> None:
            losses = self.one(batch[0]).square().mean(), self.two(batch[0]).abs().mean()
            for optimizer, loss in zip(self.optimizers(), losses, strict=True):
                self.toggle_optimizer(optimizer)
                self.manual_backward(loss)
                if index % 2:
                    self.clip_gradients(optimizer, 0.5, "norm")
                    optimizer.step()
                    optimizer.zero_grad()
                self.untoggle_optimizer(optimizer)

        def validation_step(self, batch: list[Tensor], _index: int) -> None:
            self.log("loss", self.one(batch[0]).square().mean(), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (self.one, self.two)]

    path = folder / "manually.ckpt"
    return _fitted(Pair(), path, turn, strategy="ddp_find_unused_parameters_true")


def _fitted(model: Any, checkpoint: Path, turn: int, **options: Any) -> Iterable[Tensor]:
    """Train a model of Lightning, from the checkpoint in turn 1. Returns its parameters."""
    import lightning

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        max_epochs=EPOCHS * (1 + turn),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=checkpoint.parent,
        **options,
    )
    trainer.fit(
        model,
        DataLoader(_data(), batch_size=4),
        DataLoader(_data(2), batch_size=4),
        ckpt_path=str(checkpoint) if turn else None,
    )
    trainer.save_checkpoint(checkpoint)
    parameters: Iterable[Tensor] = model.parameters()
    return parameters


def by_fabric(folder: Path, turn: int, precision: str = "32-true") -> Iterable[Tensor]:
    """Lightning Fabric: ``setup``, ``no_backward_sync``, ``clip_gradients``, ``save``."""
    import lightning

    fabric = lightning.Fabric(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        precision=precision,  # type: ignore[arg-type]
    )
    fabric.launch()
    path = folder / "fabric.ckpt"
    inner = _model()
    made = torch.optim.AdamW(inner.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(inner, made)
    state = {"model": model, "optimizer": optimizer}
    if turn:
        fabric.load(path, state)
    loader = fabric.setup_dataloaders(DataLoader(_data(), batch_size=4))
    for _ in range(EPOCHS):
        model.train()
        for number, (inputs,) in enumerate(loader):
            is_last = number % 2 == 1
            with fabric.no_backward_sync(model, enabled=not is_last):
                fabric.backward(model(inputs).square().mean())
            if is_last:
                fabric.clip_gradients(model, optimizer, max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(_data(2).tensors[0])
    fabric.save(path, state)
    return inner.parameters()


def by_fabric_bf16(folder: Path, turn: int) -> Iterable[Tensor]:
    """The same under bfloat16 autocast."""
    return by_fabric(folder, turn, "bf16-mixed")


FRAMEWORKS: dict[str, Callable[[Path, int], Iterable[Tensor]]] = {
    name.removeprefix("by_").replace("_", " "): function
    for name, function in list(globals().items())
    if name.startswith("by_")
}


def main() -> None:
    """Train by the framework that is named."""
    name, folder, turns, *options = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if IN_RANK_ORDER in options:
        sys.path.append(str(_RANK_ORDER))
        importlib.import_module("rank_order").install()
    values: list[Tensor] = []
    with contextlib.redirect_stdout(sys.stderr):
        for turn in map(int, turns):
            parameters = FRAMEWORKS[name](Path(folder), turn)
            values = [each.detach().float().clone() for each in parameters]
    digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in values))
    print(f"digest {digest.hexdigest()[:12]} by {_exchanged_by[0]}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
