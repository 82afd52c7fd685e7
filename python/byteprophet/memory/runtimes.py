"""The peak of memory in a training iteration on one of several ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from byteprophet.errors import UserError
from byteprophet.job import Strategy
from byteprophet.job.region_memory import ParameterMemory
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.liveness import Size, Timeline, Use
from byteprophet.memory.on_rank import on_rank
from byteprophet.memory.peak import trace
from byteprophet.memory.training import Training


@dataclass(frozen=True)
class RankPeak:
    """The peak of a rank's iteration is between ``least_bytes`` and ``most_bytes``.

    ``optimizer_state_bytes``: of this rank. ``received_bytes``: of all gradients, what a rank
    receives at most if nothing is let go of.
    """

    least_bytes: int
    most_bytes: int
    optimizer_state_bytes: int
    received_bytes: int


def predict_rank_peak(
    training: Training,
    strategy: Strategy,
    ranks: int,
    rank: int = 0,
    checkpointed_paths: Iterable[str] = (),
    kernels: KernelMemory | None = None,
) -> RankPeak:
    """Predict the peak of an iteration on one of several ranks.

    Args:
        training: the iteration of one rank.
        strategy: the runtime, with its buckets if it is not BytePS.
        ranks: their number.
        rank: the rank that is asked for.
        checkpointed_paths: names of the modules that are recomputed in the backward pass.
        kernels: what has been measured already, and takes up what is measured now.

    Raises:
        UserError: the runtime is not one of ours, the strategy is of another model, or the
            iteration cannot run without data.
    """
    if not 0 <= rank < ranks:
        raise UserError(f"memory: there is no rank {rank} of {ranks}")
    kernels = KernelMemory() if kernels is None else kernels
    timeline = trace(training, checkpointed_paths)
    kernels.measure(timeline.kernels)
    peaks = np.array(timeline.peaks(kernels.extra_bytes))
    parameters = parameters_of(timeline)
    here = on_rank(strategy, parameters, len(peaks), ranks, rank, update_bytes_of(timeline))
    peaks -= here.saved_state_bytes
    state_bytes = timeline.after[-1][Use.OPTIMIZER_STATE] - here.saved_state_bytes
    return RankPeak(
        int(peaks.max()), int((peaks + here.extra_bytes).max()), state_bytes, here.received_bytes
    )


def parameters_of(timeline: Timeline) -> dict[str, ParameterMemory]:
    """The parameters that got gradients; places are operations."""
    complete = {name: place for place, name in timeline.gradients}  # the last one counts
    return {
        name: ParameterMemory(
            size.elements,
            size.size_bytes,
            size.state_bytes,
            _served_bytes(size),
            timeline.first_uses.get(name, 0),
            place,
        )
        for name, place in complete.items()
        for size in (timeline.parameters[name],)
    }


def update_bytes_of(timeline: Timeline) -> int:
    """The temporary results of one update."""
    begin = timeline.gradients[-1][0] if timeline.gradients else 0
    return max((live[Use.ACTIVATIONS] for live in timeline.after[begin + 1 :]), default=0)


def _served_bytes(size: Size) -> int:
    is_copied = size.dtype == torch.bfloat16  # a float32 copy, and an answer of its size
    return size.size_bytes * (4 if is_copied else 1)
