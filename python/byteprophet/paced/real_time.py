"""Gives the thread that stands for an accelerator a core whenever it needs one.

An accelerator does not wait for a core, because the host runs ahead of it. The thread that keeps
its time does wait: with two workers and a server on two cores, it spent 34 ms of a backward pass of
600 ms in the run queue. No policy of ours can prevent that. So the thread runs under SCHED_RR if
that is permitted (root). It sleeps nearly always, so it does not starve other threads.

What is work of the host in a real job, too, has the normal priority: ``step()``, and threads that
handle gradients and updates. A step with hundreds of parameters takes milliseconds, in which the
gradients that are needed first could not be sent if all cores were taken.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def run_in_real_time() -> bool:
    """Run the calling thread under SCHED_RR. Returns False if that is not permitted."""
    try:
        policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except PermissionError:
        return False
    return True


@contextlib.contextmanager
def at_normal_priority() -> Iterator[None]:
    """Within this context, run the calling thread as others, whatever its priority was."""
    policy = os.sched_getscheduler(0)
    parameter = os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameter)
