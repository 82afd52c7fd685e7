"""The peak of a training iteration on a rank whose model FSDP2 shards (``fully_shard``).

PyTorch's own FSDP2 runs, on tensors without data and with PyTorch's fake process group in place of
the other ranks. So its units, prefetches, paddings and options are those of the installed version.
Followed are, with their storages (``liveness.py``):

- the shards of this rank, padded to equal sizes: parameters, gradients, and the optimizer's state;
- units that are all-gathered: the buffer that travels, and the parameters that are copied out of
  it. A storage of parameters stays, and is resized to 0 while the unit is sharded;
- gradients of a unit until they are copied into the buffer of the reduce-scatter, that buffer until
  the next unit has one, and its result, which is the gradients' shards;
- what gloo allocates (``gloo.py``).

Not for CUDA: there NCCL has other buffers, and streams let memory go at other times.

Threads: everything runs in the calling one. Meanwhile, the process has the fake process group, and
``UntypedStorage.resize_`` is replaced, so no other thread may use torch.distributed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator

from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule

# Registers the fake process group.
from torch.testing._internal.distributed.fake_pg import FakeStore

from byteprophet.errors import UserError
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.peak import PeakMemory, peak_of, trace
from byteprophet.memory.sharded_liveness import ShardedLiveness
from byteprophet.memory.training import Training

Shard = Callable[[nn.Module, DeviceMesh], object]
"""Calls ``fully_shard`` on a model and its units, with this mesh of all ranks."""


def predict_sharded_peak(
    training: Training,
    shard: Shard,
    ranks: int,
    rank: int = 0,
    checkpointed_paths: Iterable[str] = (),
    kernels: KernelMemory | None = None,
) -> PeakMemory:
    """Predict the peak of an iteration on one of several ranks under FSDP2 over gloo.

    Of the parts, ``parameters_bytes`` and ``gradients_bytes`` are those of this rank's shards.
    ``activations_bytes`` includes what is unsharded and what travels.

    Args:
        training: the iteration of one rank, with the model that is not sharded yet.
        shard: see ``Shard``.
        ranks: their number.
        rank: the rank that is asked for. The first one has the largest shards.
        checkpointed_paths: names of the modules that are recomputed in the backward pass.
        kernels: what has been measured already, and takes up what is measured now.

    Raises:
        UserError: the iteration runs on CUDA or cannot run without data, it has a collective that
            is not known, or this process has a process group already.
    """
    if not 0 <= rank < ranks:
        raise UserError(f"memory: there is no rank {rank} of {ranks}")
    if training.device != "cpu":
        raise UserError(
            f"memory: what FSDP2 takes on {training.device} is not known, because NCCL and streams "
            "keep buffers by other rules: predict it on the CPU"
        )
    kernels = KernelMemory() if kernels is None else kernels
    with _without_others(ranks, rank) as mesh:
        timeline = trace(
            training,
            checkpointed_paths,
            liveness=ShardedLiveness(),
            shard=functools.partial(_shard, shard, mesh),
        )
    kernels.measure(timeline.kernels)
    return peak_of(timeline, kernels)


def _shard(shard: Shard, mesh: DeviceMesh, model: nn.Module) -> None:
    """Shard ``model``, and let each unit get what it keeps from its first use on.

    At that time, FSDP2 pads shards that are shorter than those of other ranks.
    """
    shard(model, mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            module.reshard()


@contextlib.contextmanager
def _without_others(ranks: int, rank: int) -> Iterator[DeviceMesh]:
    """Within this context, this process is ``rank`` of several that do not exist."""
    if distributed.is_initialized():
        raise UserError(
            "memory: this process has a process group: predict the memory of ranks in another "
            "process, or after destroy_process_group()"
        )
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        distributed.destroy_process_group()
