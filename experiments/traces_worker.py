"""Trains a small network on the CPU and profiles it: KIND PATH [RANK STORE].

plain    one thread
fork     TorchScript's fork: half of the work is done by another thread
queue    a thread makes the data, and the training thread waits for it
ddp      two ranks, DistributedDataParallel over gloo; STORE is a file for their rendezvous
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch._C._profiler import _ExperimentalConfig
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

_STEPS = 6
_WIDTH = 512


@torch.jit.script
def _branch(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        inputs = torch.relu(inputs @ weights)
    return inputs


@torch.jit.script
def _forked(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    half = inputs.size(0) // 2
    other = torch.jit._fork(_branch, inputs, weights)  # type: ignore[no-untyped-call]
    own: torch.Tensor = _branch(inputs[:half], weights)
    whole: torch.Tensor = torch.jit._wait(other)  # type: ignore[no-untyped-call]
    return whole[:half] + own


@contextmanager
def _data(kind: str) -> Iterator[queue.Queue[torch.Tensor]]:
    """A queue of inputs, which a thread fills if ``kind`` is queue."""
    made: queue.Queue[torch.Tensor] = queue.Queue(1)
    ended = threading.Event()

    def make() -> None:
        while not ended.is_set():
            inputs = torch.randn(1024, _WIDTH)
            for _ in range(6):
                inputs = torch.tanh(inputs @ inputs.t() @ inputs)
            while not ended.is_set():
                try:
                    made.put(inputs[:128], timeout=0.1)
                    break
                except queue.Full:
                    pass

    thread = threading.Thread(target=make)
    if kind == "queue":
        thread.start()
    yield made
    ended.set()
    if kind == "queue":
        thread.join()


def main(kind: str, path: str, rank: int = 0, store: str = "") -> None:
    """Train and profile."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    linear = torch.nn.Linear
    layers = [linear(_WIDTH, 1024), torch.nn.ReLU(), linear(1024, 1024), torch.nn.ReLU()]
    model: torch.nn.Module = torch.nn.Sequential(*layers, linear(1024, 10))
    if kind == "ddp":
        there = f"file://{store}"
        dist.init_process_group("gloo", init_method=there, rank=rank, world_size=2)
        model = DistributedDataParallel(model, bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    weights = torch.randn(_WIDTH, _WIDTH) / _WIDTH**0.5
    with (
        _data(kind) as made,
        profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            schedule=schedule(wait=1, warmup=1, active=_STEPS, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
            experimental_config=_ExperimentalConfig(profile_all_threads=kind == "queue"),
        ) as profiler,
    ):
        for _ in range(_STEPS + 2):
            inputs = made.get() if kind == "queue" else torch.randn(256, _WIDTH)
            if kind == "fork":
                inputs = _forked(inputs, weights)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            profiler.step()
    if kind == "ddp":
        dist.destroy_process_group()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0], given[1], *((int(given[2]), given[3]) if len(given) > 2 else ()))
