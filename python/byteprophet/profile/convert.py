"""A profile as a workload: a real job becomes a paced one that anybody can run.

A paced job runs backward in the reverse of forward's order and releases neighbours together. A
profile's bursts need not be neighbours, and later layers may be ready earlier: bursts are cut where
forward order leaves them, and a tensor is ready no earlier than those behind it.
"""

from __future__ import annotations

from byteprophet.profile.model import Profile, TensorProfile
from byteprophet.workload.model import FLOAT32_BYTES, Tensor, Workload, distribute


def to_workload(profile: Profile, name: str) -> Workload:
    """The workload with the profile's sizes, forward times, and ready times.

    Sizes are rounded up to whole float32; a batch size that is not known becomes 1.
    """
    lead_ns = profile.backward_ns - max(tensor.ready_ns for tensor in profile.tensors)
    tensors: list[Tensor] = []
    ended_ns = 0
    runs = _runs(profile)
    for number, run in reversed(list(enumerate(runs))):
        ready_ns = lead_ns + max(tensor.ready_ns for tensor in run)
        backward_ns = distribute(max(0, ready_ns - ended_ns), [1] * len(run))
        ended_ns = max(ended_ns, ready_ns)
        for tensor, time_ns in zip(reversed(run), backward_ns, strict=True):
            size = -(-tensor.size_bytes // FLOAT32_BYTES) * FLOAT32_BYTES
            tensors.append(Tensor(tensor.name, size, tensor.forward_ns, time_ns, number))
    return Workload(name, profile.batch_size or 1, tuple(reversed(tensors)))


def _runs(profile: Profile) -> list[list[TensorProfile]]:
    """Neighbours in forward order that are in one burst."""
    runs: list[list[TensorProfile]] = []
    for tensor in profile.tensors:
        if not runs or runs[-1][-1].burst != tensor.burst:
            runs.append([])
        runs[-1].append(tensor)
    return runs
