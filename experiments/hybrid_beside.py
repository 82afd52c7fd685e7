"""What operators and collectives of ``hybrid.py`` lose to each other where jobs compute.

Ranks, gloo's threads and the kernel's share the cores of this machine. So operators take longer
than the least time for which they are known: because other ranks compute, too, and because other
programs run. Beside a collective, they take longer still, and so does the collective. Every rank
runs a product and an activation of the jobs' size over and over: in turn, all at once, and while
an all-reduce is under way, which also runs alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

_TOKENS, _WIDTH, _INNER = 256, 256, 1024
_COMPUTING_S = 2.0
_REDUCED_BYTES, _ROUNDS = 8 << 20, 8


class Beside(NamedTuple):
    """What one rank has measured.

    Attributes:
        alone_ns: the operators, while no other rank computes.
        shared_ns: while all ranks compute.
        reducing_ns: while they compute and an all-reduce is under way.
        waited_ns: all-reduces that ranks wait for.
        beside_ns: those beside operators.
    """

    alone_ns: list[int]
    shared_ns: list[int]
    reducing_ns: list[int]
    waited_ns: list[int]
    beside_ns: list[int]


class Lost(NamedTuple):
    """How much longer things take, as parts of their time.

    Attributes:
        operators: operators while all ranks compute, on average, than at least.
        overlap: operators beside a collective than those.
        collective: a collective beside operators.
    """

    operators: float
    overlap: float
    collective: float


def measure_beside() -> Beside:
    """Measure; every rank calls this."""
    run = _operators()
    found = Beside([], [], [], [], [])
    for rank in range(dist.get_world_size()):
        dist.barrier()
        if rank == dist.get_rank():
            _run(run, found.alone_ns)
    dist.barrier()
    _run(run, found.shared_ns)
    reduced = torch.zeros(_REDUCED_BYTES // 4)
    for _ in range(_ROUNDS):
        for compute in (False, True):
            dist.barrier()
            begin_ns = time.monotonic_ns()
            work = dist.all_reduce(reduced, async_op=True)
            assert work is not None
            while compute and not work.is_completed():
                found.reducing_ns.append(_took_ns(run))
            work.wait()
            took_ns = time.monotonic_ns() - begin_ns
            (found.beside_ns if compute else found.waited_ns).append(took_ns)
    return found


def _operators() -> Callable[[], object]:
    given, weight = torch.rand(_TOKENS, _WIDTH), torch.rand(_WIDTH, _INNER)
    return lambda: torch.nn.functional.gelu(given @ weight)


def _run(run: Callable[[], object], took_ns: list[int]) -> None:
    """Run operators for a while, and note what each time took."""
    end_s = time.monotonic() + _COMPUTING_S
    while time.monotonic() < end_s:
        took_ns.append(_took_ns(run))


def _took_ns(run: Callable[[], object]) -> int:
    begin_ns = time.monotonic_ns()
    run()
    return time.monotonic_ns() - begin_ns


def lost_of(ranks: Sequence[Beside]) -> Lost:
    """What is lost on average over the ranks of a job."""
    found = [
        (
            np.mean(rank.shared_ns) / np.min(rank.alone_ns) - 1,
            np.mean(rank.reducing_ns) / np.mean(rank.shared_ns) - 1,
            np.median(rank.beside_ns) / np.median(rank.waited_ns) - 1,
        )
        for rank in ranks
    ]
    return Lost(*(max(0.0, float(part)) for part in np.mean(found, axis=0)))
