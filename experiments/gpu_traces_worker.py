"""Trains on a GPU and profiles it: KIND PATH [RANK STORE].

KIND is MODEL[-OPTION ...]. MODEL is ``resnet`` (ResNet-50) or ``gpt`` (8 layers). Options:

half, quarter  so much of the batch
item           each iteration reads its loss
copies         inputs come from host memory, on a stream of their own, one iteration ahead
branches       half of the batch is trained on a second stream
events         the profile has records of streams that wait for each other
gloo, nccl     DistributedDataParallel, two ranks; STORE is a file for their rendezvous. Ranks that
               share the GPU seem to NCCL to be on two hosts

Prints the median iteration without the profiler.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from one_gpu_cases import Case
from one_gpu_train import data_of, loss_from, model_of
from torch import Tensor, nn
from torch._C._profiler import _ExperimentalConfig
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

_STEPS, _TIMED = 6, 10
_CASES = {"resnet": Case("resnet50", 64), "gpt": Case("gpt-8", 16, 1, 512)}
_OPTIONS = ("half", "quarter", "item", "copies", "branches", "events", "gloo", "nccl")
_SHARED = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
_TIMEOUT = timedelta(seconds=60)


class _Inputs:
    """Inputs and targets on the GPU; with ``copies``, from pinned memory and one batch ahead."""

    def __init__(self, case: Case, *, copies: bool) -> None:
        with torch.device("cuda"):
            self._data = data_of(case)
        self._copies = copies
        if copies:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._host = tuple(each.cpu().pin_memory() for each in self._data)
            self._next = self._copied()

    def _copied(self) -> tuple[Tensor, ...]:
        with torch.cuda.stream(self._stream):
            return tuple(each.to("cuda", non_blocking=True) for each in self._host)

    def next(self) -> tuple[Tensor, ...]:
        """The next batch."""
        if not self._copies:
            return self._data
        torch.cuda.current_stream().wait_stream(self._stream)
        given = self._next
        for each in given:
            each.record_stream(torch.cuda.current_stream())
        self._next = self._copied()
        return given


def main(kind: str, path: str, rank: int = 0, store: str = "") -> None:
    """Train, time, and profile."""
    name, *options = kind.split("-")
    case = _CASES[name]
    share = 2 if "half" in options else 4 if "quarter" in options else 1
    case = Case(case.model, case.micro_batch // share, 1, case.sequence)
    torch.manual_seed(rank)
    model = _model(case, options, rank, store)
    inputs = _Inputs(case, copies="copies" in options)
    iterate = _iteration(case, model, inputs, options)
    for _ in range(4):
        iterate()
    print(f"{kind}: {_median_ms(iterate):.2f} ms without the profiler", flush=True)
    config = _ExperimentalConfig(enable_cuda_sync_events="events" in options)
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        record_shapes=True,
        schedule=schedule(wait=1, warmup=2, active=_STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
        experimental_config=config,
    ) as profiler:
        for _ in range(_STEPS + 3):
            iterate()
            profiler.step()
    if store:
        dist.destroy_process_group()


def _model(case: Case, options: list[str], rank: int, store: str) -> nn.Module:
    if not store:
        with torch.device("cuda"):
            return model_of(case)
    if torch.cuda.device_count() > rank:
        torch.cuda.set_device(rank)
    if torch.cuda.device_count() < 2:
        os.environ.update(_SHARED, NCCL_HOSTID=f"rank-{rank}")
    backend = "nccl" if "nccl" in options else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=2, timeout=_TIMEOUT
    )
    with torch.device("cuda"):
        model = model_of(case)
    return DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])


def _iteration(
    case: Case, model: nn.Module, inputs: _Inputs, options: list[str]
) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)
    second = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def loss(data: tuple[Tensor, ...]) -> Tensor:
        if "branches" not in options:
            return loss_from(case, model, *data)
        halves = [each.chunk(2) for each in data]
        current = torch.cuda.current_stream()
        second.wait_stream(current)
        with torch.cuda.stream(second):
            other = loss_from(case, model, *(each[1] for each in halves))
        own = loss_from(case, model, *(each[0] for each in halves))
        current.wait_stream(second)
        return (own + other) / 2

    def iterate() -> None:
        found = loss(inputs.next())
        optimizer.zero_grad()
        found.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if "item" in options:
            found.item()

    return iterate


def _median_ms(iterate: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    times = []
    began = time.perf_counter()
    for _ in range(_TIMED):
        iterate()
        torch.cuda.synchronize()
        ended = time.perf_counter()
        times.append(ended - began)
        began = ended
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0], given[1], *((int(given[2]), given[3]) if len(given) > 2 else ()))
