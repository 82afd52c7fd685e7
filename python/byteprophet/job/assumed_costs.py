"""What messages cost over a transport that was not recorded.

A record tells what messages of its own transport cost, but a job of two transports has others, too.
The figures are rounded ones of jobs on one machine with limited links (docs/replay.md says which).
A prediction that rests on them is less certain by ``UNSURE``.
"""

from __future__ import annotations

from dataclasses import replace

from byteprophet import _core
from byteprophet.job.cluster import Costs

UNSURE = 0.05
"""A share of the predicted time, in both directions."""

_SERVED = Costs(
    message_cost_ns=50_000,
    hand_over_ns=50_000,
    request_lags_ns=(100_000,),
    ack_lag_ns=200_000,
    sum_ns_per_byte=0.3,
    answers_bytes=_core.ANSWERS_BYTES,
)
_MESH = Costs(start_lag_ns=500_000, update_lag_ns=200_000)


def served_costs(delay_ns: int) -> Costs:
    """Of messages between workers and servers, on links with this one-way delay."""
    return replace(_SERVED, delay_ns=delay_ns)


def mesh_costs(delay_ns: int) -> Costs:
    """Of messages among the ranks, likewise."""
    return replace(_MESH, delay_ns=delay_ns)
