"""Measures one model for ``memory.py``, and predicts the same; both are written as JSON.

    LD_PRELOAD=malloc_peak.so memory_worker.py MODEL PARTS OUT

``malloc_peak.c`` counts what is allocated. PARTS are some of ``variants``, ``mixes``, ``budgets``.
The peak of an iteration is what it reaches above what lives once model and optimizer are gone. So
what libraries keep for later calls, such as compiled kernels, does not count.
"""

from __future__ import annotations

import functools
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from malloc_peak import live_bytes, peak_bytes, reset_peak
from memory_ilp import ilp_choice
from memory_models import MODELS, Subject
from torch import nn
from torch.optim import Optimizer

from byteprophet.errors import UserError
from byteprophet.memory.budget import choose, forward_times
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.mixes import profile_regions
from byteprophet.memory.peak import predict_peak
from byteprophet.memory.training import Training, checkpointed

BATCH = 8
MIXES = 5
BUDGETS = (0.80, 0.60, 0.45)
ROUNDS = 7
_HALF = 0.5

_sgd = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "SGD": _sgd,
    "Adam": torch.optim.Adam,
}
VARIANTS = ("plain", "checkpointed", "accumulated", "bf16")


def main() -> None:
    """Measure, write."""
    name, parts, out = sys.argv[1], sys.argv[2].split(","), Path(sys.argv[3])
    torch.set_num_threads(1)
    kernels = KernelMemory()
    rows: dict[str, Any] = {}
    if "variants" in parts:
        rows["variants"] = [
            variant_row(name, variant, optimizer, kernels)
            for variant in VARIANTS
            for optimizer in OPTIMIZERS
        ]
    if "mixes" in parts:
        rows["mixes"] = mix_rows(name, kernels)
    if "budgets" in parts:
        rows["budgets"] = budget_rows(name, kernels)
    out.write_text(json.dumps(rows), encoding="utf-8")


def subject(name: str) -> Subject:
    """The model and its batch, made anew."""
    torch.manual_seed(1)
    return MODELS[name](BATCH)


def training_of(made: Subject, variant: str, optimizer: str) -> Training:
    """The iteration of a variant."""
    batches = [made.batch] * (2 if variant == "accumulated" else 1)
    autocast = torch.bfloat16 if variant == "bf16" else None
    return Training(made.model, batches, made.loss_of, OPTIMIZERS[optimizer], autocast)


def measured_peak(make: Callable[[], Training], paths: Sequence[str]) -> int:
    """The peak of the second iteration in bytes."""
    training = make()
    optimizer = training.optimizer(list(training.model.parameters()))
    with checkpointed(training.model, paths):
        training.run(optimizer)
        gc.collect()
        reset_peak()
        training.run(optimizer)
        reached_bytes = peak_bytes()
    del training, optimizer
    gc.collect()
    return reached_bytes - live_bytes()


def variant_row(name: str, variant: str, optimizer: str, kernels: KernelMemory) -> dict[str, Any]:
    """One variant, measured and predicted."""

    def make() -> Training:
        return training_of(subject(name), variant, optimizer)

    paths = subject(name).blocks if variant == "checkpointed" else ()
    began = time.monotonic()
    peak = predict_peak(make(), paths, kernels)
    took_s = time.monotonic() - began
    return {
        "model": name,
        "variant": variant,
        "optimizer": optimizer,
        "predicted_bytes": peak.total_bytes,
        "tensors_bytes": predict_peak(make(), paths, _NoKernels()).total_bytes,
        "naive_bytes": naive_peak(make(), paths),
        "measured_bytes": measured_peak(make, paths),
        "predicting_s": round(took_s, 1),
        "unmeasured": peak.unmeasured,
    }


class _NoKernels(KernelMemory):
    """Counts tensors only."""

    def measure(self, kernels: Iterable[Any]) -> None:
        """Measure nothing."""


def naive_peak(training: Training, paths: Sequence[str]) -> int:
    """What is often added up: parameters, gradients, state, inputs, and outputs of all layers.

    The outputs of checkpointed modules count as a whole, and the layers inside of one of them.
    """
    model = training.model
    inside: dict[str, int] = dict.fromkeys(("", *paths), 0)

    def add(owner: str, _module: nn.Module, _args: Any, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            inside[owner] += result.nbytes

    hooks = []
    for path, module in model.named_modules():
        owner = next((each for each in paths if path == each or path.startswith(f"{each}.")), "")
        if path in paths:
            hooks.append(module.register_forward_hook(functools.partial(add, "")))
        if not list(module.children()):
            hooks.append(module.register_forward_hook(functools.partial(add, owner)))
    optimizer = training.optimizer(list(model.parameters()))
    training.run(optimizer)
    for hook in hooks:
        hook.remove()
    state = (each.nbytes for values in optimizer.state.values() for each in values.values()
             if isinstance(each, torch.Tensor))  # fmt: skip
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    outputs = inside[""] + max(inside[path] for path in ("", *paths) if path or not paths) * bool(
        paths
    )
    return 2 * parameters + sum(state) + outputs // len(training.micro_batches)


def mix_rows(name: str, kernels: KernelMemory) -> list[dict[str, Any]]:
    """Random mixes: measured, predicted, and composed of the regions' profiles."""
    rng = random.Random(name)
    made = subject(name)
    training = training_of(made, "plain", "Adam")
    began = time.monotonic()
    regions = profile_regions(training, made.blocks, kernels)
    took_s = time.monotonic() - began
    rows = []
    for _ in range(MIXES):
        mix = [rng.random() < _HALF for _ in made.blocks]
        paths = [path for path, state in zip(made.blocks, mix, strict=True) if state]
        rows.append(
            {
                "model": name,
                "checkpointed": paths,
                "composed_bytes": regions.peak(mix),
                "predicted_bytes": predict_peak(training, paths, kernels).total_bytes,
                "measured_bytes": measured_peak(
                    lambda: training_of(subject(name), "plain", "Adam"), paths
                ),
                "profiling_s": round(took_s, 1),
            }
        )
    return rows


def budget_rows(name: str, kernels: KernelMemory) -> list[dict[str, Any]]:
    """For each budget the chosen mix, beside all blocks and torch's own choice."""

    def make() -> Training:
        return training_of(subject(name), "plain", "Adam")

    made = subject(name)
    training = training_of(made, "plain", "Adam")
    forward_ns = forward_times(training, made.blocks)
    plain = measured_peak(make, ())
    everything = measured_peak(make, made.blocks)
    regions = profile_regions(training, made.blocks, kernels)
    rows = []
    for share in BUDGETS:
        budget = round(share * plain)
        row: dict[str, Any] = {
            "model": name,
            "share": share,
            "budget_bytes": budget,
            "all_bytes": everything,
            "blocks": len(made.blocks),
        }
        candidates: dict[str, Sequence[str]] = {"plain": (), "all": made.blocks}
        try:
            choice = choose(training, regions, budget, forward_ns, kernels)
        except UserError as error:
            row["refused"] = str(error)
        else:
            row["checkpointed"] = choice.checkpointed
            row["is_tight"] = choice.is_tight
            row["predicted_bytes"] = choice.peak_bytes
            row["measured_bytes"] = measured_peak(make, choice.checkpointed)
            candidates["chosen"] = choice.checkpointed
        state_bytes = predict_peak(training, (), kernels).optimizer_state_bytes
        ilp = ilp_choice(make(), made.blocks, budget, state_bytes)
        row["ilp"] = ilp
        if isinstance(ilp, list):
            row["ilp_bytes"] = measured_peak(make, ilp)
            candidates["ilp"] = ilp
        row["cpu_s"] = interleaved(make(), candidates)
        rows.append(row)
    return rows


def interleaved(training: Training, candidates: dict[str, Sequence[str]]) -> dict[str, float]:
    """The least processor seconds of an iteration with each choice, measured in turn."""
    optimizer = training.optimizer(list(training.model.parameters()))
    least = dict.fromkeys(candidates, float("inf"))
    for _ in range(ROUNDS + 1):
        for name, paths in candidates.items():
            with checkpointed(training.model, paths):
                began = time.process_time()
                training.run(optimizer)
                least[name] = min(least[name], time.process_time() - began)
    return least


if __name__ == "__main__":
    main()
