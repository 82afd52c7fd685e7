"""The collectives of a case as PyTorch's ``LocalTensorMode`` gives them, in one process.

It holds the tensors of all ranks and runs a program once for all. That works for tensor and
sequence parallelism, which are DTensors. DistributedDataParallel and pipelining have no such mode.
"""

from __future__ import annotations

import torch.distributed as dist
from hybrid_cases import Case
from hybrid_device import Watch
from hybrid_parallel import Job, ranks_of
from hybrid_predict import Counted
from torch.distributed._local_tensor import LocalTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore


def works_for(case: Case) -> bool:
    """Whether a case has tensor parallelism and nothing else."""
    mesh = case.strategy.mesh
    return mesh.tp > 1 and mesh.tp == mesh.ranks


def local_calls(case: Case) -> Counted:
    """The collectives of an iteration on each rank; this process must be in no job."""
    dist.init_process_group("fake", rank=0, world_size=case.ranks, store=FakeStore())
    try:
        ranks = ranks_of(case.strategy.mesh)
        watch = Watch(ranks.axes)
        with LocalTensorMode(case.ranks):
            job = Job(case, ranks, computes=True)
            with watch:
                job.iteration()
        return watch.calls
    finally:
        dist.destroy_process_group()
