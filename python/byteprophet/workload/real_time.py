"""The thread that stands for an accelerator gets a core whenever it wants one.

An accelerator does not wait until the machine's other threads leave it a core; the host runs ahead
of it. The thread that keeps its time would: with two workers and a server on two cores it stood in
the run queue for 34 ms of a backward pass of 600 ms, which no scheduler can do anything about. So
it runs under SCHED_RR where that is permitted (root). It sleeps nearly always, so nobody starves.

Threads that it starts, which handle gradients and updates, run as they always do.
"""

from __future__ import annotations

import os


def run_in_real_time() -> bool:
    """Put the calling thread under SCHED_RR; False where that is not permitted."""
    try:
        policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except PermissionError:
        return False
    return True
