"""The cheapest mix of checkpointed and plain modules that fits a memory budget."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from byteprophet.errors import UserError
from byteprophet.memory.cheapest import all_mixes, cheapest
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.mixes import Regions
from byteprophet.memory.peak import predict_peak
from byteprophet.memory.training import Training, modules_at

_MARGIN = 0.01  # of the budget; predictions err by less
_CHECKED = 8  # mixes whose whole iteration is predicted


@dataclass(frozen=True)
class Choice:
    """Which modules to checkpoint.

    ``recompute_ns``: the time that their forward passes take again, per micro-batch.
    ``is_tight``: the predicted peak is within 1% of the budget, so it may be exceeded.
    """

    checkpointed: tuple[str, ...]
    peak_bytes: int
    recompute_ns: int
    is_tight: bool


def choose(
    training: Training,
    regions: Regions,
    budget_bytes: int,
    forward_ns: Mapping[str, int],
    kernels: KernelMemory | None = None,
) -> Choice:
    """Choose the modules whose recomputation takes the least time and fits the budget.

    Args:
        training: the iteration.
        regions: the modules that may be checkpointed, as ``profile_regions`` found them.
        budget_bytes: what tensors and kernels may take. Deduct first what a synchronisation
            runtime adds (``runtimes.py``).
        forward_ns: the time of each module's forward pass, such as ``forward_times`` measures.
        kernels: what has been measured already, and takes up what is measured now.

    Raises:
        UserError: no mix fits.
    """
    kernels = KernelMemory() if kernels is None else kernels
    mixes = all_mixes([True] * len(regions.paths))
    peaks = regions.peaks(mixes)
    costs = mixes @ np.array([forward_ns[path] for path in regions.paths], dtype=np.int64)
    for limit_bytes in (round(budget_bytes * (1 - _MARGIN)), budget_bytes):
        for place in cheapest(peaks, costs, limit_bytes)[:_CHECKED]:
            chosen = _chosen(regions, mixes[place])
            peak = predict_peak(training, chosen, kernels).total_bytes
            if peak <= limit_bytes:
                return Choice(chosen, peak, int(costs[place]), limit_bytes == budget_bytes)
    least = int(peaks.argmin())
    raise UserError(
        f"memory: no mix of checkpointed modules fits {budget_bytes} bytes: the least is about "
        f"{peaks[least]} bytes, with {', '.join(_chosen(regions, mixes[least])) or 'none'}: raise "
        "the budget, or use smaller micro-batches"
    )


def forward_times(training: Training, paths: Sequence[str], repeats: int = 5) -> dict[str, int]:
    """Measure the forward pass of each module in the whole model's, in ns of processor time.

    Runs on a copy of the model, so that nothing of it changes. The least of ``repeats`` runs
    counts.
    """
    training = replace(training, model=copy.deepcopy(training.model))
    least: dict[str, int] = {}
    began: dict[str, int] = {}

    def begin(path: str, _module: nn.Module, _args: Any) -> None:
        began[path] = time.thread_time_ns()

    def end(path: str, _module: nn.Module, _args: Any, _result: Any) -> None:
        took = time.thread_time_ns() - began[path]
        least[path] = min(took, least.get(path, took))

    for path, module in zip(paths, modules_at(training.model, paths), strict=True):
        module.register_forward_pre_hook(functools.partial(begin, path))
        module.register_forward_hook(functools.partial(end, path))
    with torch.random.fork_rng(devices=[]):
        for _ in range(repeats + 1):  # the first one warms up
            training.loss(training.micro_batches[0])
    missing = [path for path in paths if path not in least]
    if missing:
        raise UserError(f"memory: the forward pass does not run '{missing[0]}': leave it out")
    return least


def _chosen(regions: Regions, mix: Sequence[int]) -> tuple[str, ...]:
    return tuple(path for path, state in zip(regions.paths, mix, strict=True) if state)
