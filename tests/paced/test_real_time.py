"""Only the thread that stands for the device runs in real time."""

from __future__ import annotations

import os
import threading

from byteprophet.paced.real_time import run_in_real_time


def test_only_the_calling_thread_runs_in_real_time() -> None:
    seen: dict[str, int] = {}

    def started_by_it() -> None:
        seen["started by it"] = os.sched_getscheduler(0)

    def device() -> None:
        seen["permitted"] = run_in_real_time()
        seen["device"] = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        thread = threading.Thread(target=started_by_it)
        thread.start()
        thread.join()

    thread = threading.Thread(target=device)
    thread.start()
    thread.join()
    assert seen["device"] == (os.SCHED_RR if seen["permitted"] else os.SCHED_OTHER)
    assert seen["started by it"] == os.SCHED_OTHER
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
