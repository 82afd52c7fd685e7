"""Gives the thread that stands for an accelerator a core whenever it needs one.

An accelerator does not wait for a core, because the host runs ahead of it. The thread that keeps
its time does wait: with two workers and a server on two cores, it spent 34 ms of a backward pass of
600 ms in the run queue. No policy of ours can prevent that. So the thread runs under SCHED_RR if
that is permitted (root). It sleeps nearly always, so it does not starve other threads.

Threads that it starts, which handle gradients and updates, keep the normal priority.
"""

from __future__ import annotations

import os


def run_in_real_time() -> bool:
    """Run the calling thread under SCHED_RR. Returns False if that is not permitted."""
    try:
        policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except PermissionError:
        return False
    return True
