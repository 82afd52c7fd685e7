"""Only the thread that stands for the device runs in real time."""

from __future__ import annotations

import os
import threading

from byteprophet.paced.real_time import at_normal_priority, run_in_real_time


def test_only_the_calling_thread_runs_in_real_time() -> None:
    seen: dict[str, int] = {}

    def started_by_it() -> None:
        seen["started by it"] = os.sched_getscheduler(0)

    def own_policy() -> int:
        return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK

    def device() -> None:
        seen["permitted"] = run_in_real_time()
        with at_normal_priority():
            seen["step"] = own_policy()
        seen["device"] = own_policy()
        thread = threading.Thread(target=started_by_it)
        thread.start()
        thread.join()

    thread = threading.Thread(target=device)
    thread.start()
    thread.join()
    assert seen["device"] == (os.SCHED_RR if seen["permitted"] else os.SCHED_OTHER)
    assert seen["step"] == os.SCHED_OTHER
    assert seen["started by it"] == os.SCHED_OTHER
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
