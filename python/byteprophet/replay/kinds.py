"""The interface between predictions and the kinds of jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from byteprophet.job import Job
from byteprophet.job.times import Int64Array, iteration_times_ns
from byteprophet.replay.engine import Replayed
from byteprophet.replay.what_if import Changes


@dataclass(frozen=True, eq=False)
class ReplayedJob:
    """A job's replayed graph. ``begin``, ``end``: operations, shape (workers, iterations).

    ``steps``: how many of the script's steps an iteration of the graph is, because the job
    accumulates gradients, or averages parameters after several steps.
    """

    replayed: Replayed
    begin: Int64Array
    end: Int64Array
    steps: int = 1

    @property
    def iterations_ns(self) -> Int64Array:
        """The time of a step in each iteration, shape (iterations,).

        An iteration begins where the one before it ends.
        """
        ends_ns = self.replayed.end_ns[self.end]
        begins_ns = np.hstack((self.replayed.start_ns[self.begin[:, :1]], ends_ns[:, :-1]))
        return iteration_times_ns(begins_ns, ends_ns) // self.steps


@dataclass(frozen=True)
class JobKind:
    """The functions for one kind of jobs: with servers, without, or with both transports.

    Attributes:
        change: returns the job with changes. Raises ``UserError`` if they do not apply.
        replay: builds the job's graph and replays it.
        daydream_ns: the iteration time if each tensor or bucket had the link to itself.
        assumptions: what is printed with a prediction.
    """

    change: Callable[[Job, Changes], Job]
    replay: Callable[[Job], ReplayedJob]
    daydream_ns: Callable[[Job], int]
    assumptions: Callable[[Job], dict[str, Any]]

    def iterations_ns(self, job: Job) -> Int64Array:
        """The replayed times of iterations, shape (iterations,)."""
        return self.replay(job).iterations_ns


def of_gradients(job: Job) -> dict[str, Any]:
    """The assumptions that jobs of all kinds have: what is done with gradients."""
    strategy = job.strategy
    return {
        "reduce_dtype": strategy.reduce_dtype or None,
        "accumulation": strategy.accumulation,
        "local_sgd": strategy.local_sgd or None,
        "compressed": len(strategy.compressor_of),
    }
