"""What a prediction asks of a kind of job, so that it need not know which one it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from byteprophet.graph.model import Int64Array
from byteprophet.replay.what_if import Changes

Job = TypeVar("Job")


@dataclass(frozen=True)
class JobKind(Generic[Job]):
    """``change``: the job with changes, UserError where they make no sense.

    ``iterations_ns``: replayed, of the slowest worker, shape (iterations,). ``daydream_ns``: an
    iteration if what is sent had the link for itself. ``bound_ns``: no schedule is faster.
    ``assumptions``: what is printed with a prediction.
    """

    change: Callable[[Job, Changes], Job]
    iterations_ns: Callable[[Job], Int64Array]
    daydream_ns: Callable[[Job], int]
    bound_ns: Callable[[Job], int]
    assumptions: Callable[[Job], dict[str, Any]]
