"""Measures collectives between the ranks of a job that measures costs, one rank on each node.

All ranks meet before each collective, and then pause, as they compute in a job: threads fall
asleep and connections become idle. A time is that of the slowest rank, and the median of several.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from byteprophet.errors import UserError
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.table import MeasuredCollective

_SIZES = {"cpu": range(16, 24), "cuda": range(16, 30, 2)}
"""Logarithms of bytes of the whole tensor."""
_PAUSE_S = 0.02
_REPEATS = 5
_UNCOUNTED = timedelta(hours=1)
"""In which rank 0 has measured what the seconds for matrix products do not count."""


def ranks_of_job() -> int:
    """The number of ranks of the job that this process is in, by the variables of torchrun.

    Raises:
        UserError: several of them share a node, so their collectives would not cross the network;
            or the number of ranks is missing.
    """
    if "RANK" not in os.environ:
        return 1
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if local != "1":
        raise UserError(
            f"costs collect: {local} ranks of the job share this node (LOCAL_WORLD_SIZE), but "
            "collectives are measured between nodes: start one rank on each"
        )
    ranks = os.environ.get("WORLD_SIZE", "")
    if not ranks.isdecimal() or not 1 <= int(ranks) < 1 << 20:
        raise UserError(
            f"costs collect: RANK is set, so this is a rank of a job, but WORLD_SIZE is {ranks!r}: "
            "start it with torchrun or byteprophet run, or unset RANK"
        )
    return int(ranks)


def is_first_rank() -> bool:
    """Whether this process is rank 0 of its job, or in none."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def in_job(torch: Any, device: str, seconds: float) -> Iterator[Any]:
    """Join the other ranks; gives ``torch.distributed``.

    ``seconds``: for how long rank 0 measures matrix products, while the others wait for it.
    """
    distributed = torch.distributed
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    timeout = _UNCOUNTED + timedelta(seconds=seconds)
    distributed.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timeout)
    try:
        yield distributed
    finally:
        distributed.destroy_process_group()


def measured_collectives(
    torch: Any, device: str, say: Callable[[str], None]
) -> Iterator[MeasuredCollective]:
    """The time of each kind and size; every rank must call this."""
    distributed = torch.distributed
    ranks = distributed.get_world_size()
    for at in _SIZES[device]:
        size_bytes = 1 << at
        say(f"collectives of {size_bytes:,} bytes")
        for kind, run in _collectives(torch, device, size_bytes // 4 // ranks):
            run()  # connects
            times = [_time_ns(torch, device, run) for _ in range(_REPEATS)]
            taking_part = 2 if kind is CollectiveKind.SEND else ranks
            yield kind.value, taking_part, size_bytes, statistics.median(times)


def _time_ns(torch: Any, device: str, run: Callable[[], Any]) -> float:
    distributed = torch.distributed
    distributed.barrier()
    time.sleep(_PAUSE_S)
    began_ns = time.perf_counter_ns()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    took = torch.tensor(float(time.perf_counter_ns() - began_ns), device=device)
    distributed.all_reduce(took, distributed.ReduceOp.MAX)
    return float(took)


def _collectives(
    torch: Any, device: str, elements: int
) -> Iterator[tuple[CollectiveKind, Callable[[], Any]]]:
    """All kinds; each rank has ``elements`` elements of the whole tensor."""
    distributed = torch.distributed
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    part, whole = (torch.zeros(count, device=device) for count in (elements, elements * ranks))
    gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
    scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)
    yield CollectiveKind.ALL_REDUCE, lambda: distributed.all_reduce(whole)
    yield CollectiveKind.ALL_GATHER, lambda: gather(whole, part)
    yield CollectiveKind.REDUCE_SCATTER, lambda: scatter(part, whole)
    ways = {0: lambda: distributed.send(whole, 1), 1: lambda: distributed.recv(whole, 0)}
    yield CollectiveKind.SEND, ways.get(rank, lambda: None)
