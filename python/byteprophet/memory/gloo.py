"""What gloo's collectives allocate while they run, beside the tensors that they are given.

PyTorch calls gloo with buffers of its own (``ProcessGroupGloo.cpp``): an all-gather receives into a
flat copy of its output, and a reduce-scatter is an all-reduce of a copy of its input. Gloo's
all-reduce is a ring over segments, and has scratch memory for two of them (``allreduce.cc``). An
all-to-all of equal parts, and a broadcast, need none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteprophet.errors import UserError

_NAMESPACES = ("c10d", "_c10d_functional")
_LARGEST_SEGMENT_BYTES = 1 << 20
_SEGMENTS_PER_RANK = 2  # at least
_IN_PLACE = ("alltoall_base_", "broadcast_", "wait_tensor")
"""Collectives that read and write the tensors that they are given."""


def buffers_bytes(operator: Any, arguments: Sequence[Any]) -> int:
    """The bytes that ``operator`` allocates for itself; 0 if it is no collective.

    Raises ``UserError`` for a collective whose memory is not known.
    """
    if operator.namespace not in _NAMESPACES:
        return 0
    name = operator._schema.name.partition("::")[2]
    if name == "_allgather_base_":
        return int(arguments[0].nbytes)
    if name == "_reduce_scatter_base_":
        reduced, given = arguments[:2]
        ranks = given.numel() // max(1, reduced.numel())
        return int(given.nbytes) + all_reduce_scratch_bytes(given.nbytes, ranks, given.itemsize)
    if name in _IN_PLACE:
        return 0
    if name in ("all_reduce", "all_reduce_"):
        return int(min(2 * arguments[0].nbytes, 2 * _LARGEST_SEGMENT_BYTES))
    raise UserError(
        f"memory: what the collective '{name}' takes over gloo is not known: leave it out of the "
        "iteration"
    )


def all_reduce_scratch_bytes(size_bytes: int, ranks: int, item_bytes: int = 1) -> int:
    """The scratch memory of an all-reduce of ``size_bytes``."""
    if ranks <= 1 or not size_bytes:
        return 0
    per_rank = -(-size_bytes // (ranks * _LARGEST_SEGMENT_BYTES))
    segments = ranks * max(_SEGMENTS_PER_RANK, per_rank)
    segment_bytes = -(-size_bytes // (segments * item_bytes)) * item_bytes
    return 2 * segment_bytes
