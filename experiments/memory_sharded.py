"""A rank of ``memory_ranks.py`` under FSDP2: trains, measures its peaks, and predicts them.

    LD_PRELOAD=malloc_peak.so memory_sharded.py MODEL

Units of ``fully_shard`` are single blocks, pairs of blocks, blocks that keep their parameters from
forward to backward, or blocks that are recomputed in the backward pass. What is in no block belongs
to the root's unit.

A thread of gloo lets go of a collective's buffers after it has woken the training thread. Where
cores are scarce, that may be an operation or more later. So the median iteration is what is
predicted, and the highest one is written, too.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import statistics
import sys
from pathlib import Path

import torch
from malloc_peak import live_bytes, peak_bytes, reset_peak
from memory_models import MODELS
from memory_worker import OPTIMIZERS, training_of
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.sharded import predict_sharded_peak
from byteprophet.memory.training import Training, checkpointed

BATCH = 4
WARMUP, COUNTED = 2, 5
UNITS = ("blocks", "pairs", "kept", "recomputed")


def main() -> None:
    """Train, measure, predict, write."""
    (name,) = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    variants = [(units, optimizer) for units in UNITS for optimizer in OPTIMIZERS]
    measured = [measured_peaks(name, *variant, mesh) for variant in variants]
    distributed.destroy_process_group()
    kernels = KernelMemory()
    rows = []
    for (units, optimizer), peaks in zip(variants, measured, strict=True):
        training = _training(name, optimizer)
        shard = functools.partial(sharded, units)
        paths = recomputed(units, training.model)
        peak = predict_sharded_peak(training, shard, ranks, rank, paths, kernels)
        rows.append(
            {
                "units": units,
                "optimizer": optimizer,
                "measured_bytes": statistics.median_low(peaks),
                "highest_bytes": max(peaks),
                "predicted_bytes": peak.total_bytes,
                "tracker_bytes": tracker_peak(name, units, optimizer, ranks, rank),
                "unmeasured": peak.unmeasured,
            }
        )
    out = Path(os.environ["BYTEPROPHET_RUN"]) / f"rank-{rank}.json"
    out.write_text(json.dumps(rows), encoding="utf-8")


def sharded(units: str, model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard ``model`` in units of that kind."""
    blocks = list(model.get_submodule("blocks").children())
    size = 2 if units == "pairs" else 1
    for place in range(0, len(blocks), size):
        fully_shard(blocks[place : place + size], mesh=mesh, reshard_after_forward=units != "kept")
    fully_shard(model, mesh=mesh)


def recomputed(units: str, model: nn.Module) -> list[str]:
    """The names of the modules that are recomputed."""
    blocks = model.get_submodule("blocks").named_children()
    return [f"blocks.{name}" for name, _ in blocks] if units == "recomputed" else []


def measured_peaks(name: str, units: str, optimizer: str, mesh: DeviceMesh) -> list[int]:
    """The peaks of later iterations, above what lives once model and optimizer are gone."""
    training = _training(name, optimizer)
    sharded(units, training.model, mesh)
    updates = training.optimizer(list(training.model.parameters()))
    peaks = []
    with checkpointed(training.model, recomputed(units, training.model)):
        for _ in range(WARMUP + COUNTED):
            gc.collect()
            reset_peak()
            training.run(updates)
            peaks.append(peak_bytes())
    del training, updates
    gc.collect()
    rest_bytes = live_bytes()
    return [each - rest_bytes for each in peaks[WARMUP:]]


def tracker_peak(name: str, units: str, optimizer: str, ranks: int, rank: int) -> int:
    """The same peak as torch's own ``FSDPMemTracker`` tells it, without data."""
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        training = _training(name, optimizer).without_data(mode)
        sharded(units, training.model, mesh)
        updates = training.optimizer(list(training.model.parameters()))
        tracker = FSDPMemTracker(training.model, updates)
        tracker.track_inputs(tuple(training.micro_batches))
        with checkpointed(training.model, recomputed(units, training.model)), tracker:
            training.run(updates)  # it makes the optimizer's state
            tracker.reset_mod_stats()
            training.run(updates)
    distributed.destroy_process_group()
    return max(each["Total"] for each in tracker.get_tracker_snapshot("peak").values())


def _training(name: str, optimizer: str) -> Training:
    torch.manual_seed(1)
    return training_of(MODELS[name](BATCH), "plain", optimizer)


if __name__ == "__main__":
    main()
