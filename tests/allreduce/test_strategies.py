"""The timing from which strategies of recorded jobs are planned."""

from __future__ import annotations

import numpy as np

from byteprophet.allreduce.strategies import timing_of
from byteprophet.job import Cluster, Host, Job, Model, Parameter, Strategy, Times

MS = 1_000_000


def test_it_is_that_of_the_worker_that_computes_longest_until_step_is_called() -> None:
    """Worker 0 computes for 50 + 10 ms, worker 1 for 45 + 40 ms, 15 of them after its gradients."""
    forward_ns = np.array([[[30, 20]], [[25, 20]]]) * MS
    ready_ns = np.array([[[10, 5]], [[25, 12]]]) * MS
    times = Times(forward_ns, ready_ns, np.array([[10], [40]]) * MS, np.zeros_like(forward_ns))
    other = Times(forward_ns, ready_ns, np.array([[38], [40]]) * MS, times.update_ns)
    model = Model((Parameter("a", 4), Parameter("b", 8)))
    cluster = Cluster((Host(10**9, 10**9),) * 2)
    found = timing_of(Job(model, times, cluster, Strategy("allreduce")))
    assert (found.forward_ns, found.backward_ns) == (45 * MS, 40 * MS)
    assert found.ready_ns == (25 * MS, 12 * MS)
    # The longest backward pass alone does not decide: 50 + 38 ms against 45 + 40.
    found = timing_of(Job(model, other, cluster, Strategy("allreduce")))
    assert (found.forward_ns, found.backward_ns) == (50 * MS, 38 * MS)
