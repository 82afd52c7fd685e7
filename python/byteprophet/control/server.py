"""The controller's process: one thread that waits, reads, decides and answers in a loop.

The work per turn is bounded: a limited number of messages, and one plan. The process runs at low
priority, so that on a shared machine it computes while workers do not.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from pathlib import Path
from types import FrameType

from byteprophet.control.coordinator import Coordinator
from byteprophet.control.door import Door
from byteprophet.control.keys import Keys
from byteprophet.control.log import EventLog
from byteprophet.control.messages import INBOUND, Refused, parse
from byteprophet.control.refusals import Refusals

_TICK_S = 0.25
_MESSAGES_PER_TURN = 64
_NICENESS = 10


class Controller:
    """Serves one job until ``stop``. Writes control.jsonl and plan.json to ``run_directory``."""

    def __init__(self, listen: str, keys: Keys, job: str, run_directory: Path) -> None:
        self._job = job
        identity = secrets.token_hex(8)
        self._log = EventLog(run_directory, identity)
        self._door = Door(listen, keys)
        self._record = self._log.record
        self._coordinator = Coordinator(job, identity, self._record)
        self._refusals = Refusals(self._record)
        self._stopped = False
        self.endpoint = self._door.endpoint

    def stop(self) -> None:
        """Makes ``serve`` return soon. May be called from a signal handler or another thread."""
        self._stopped = True

    def serve(self) -> None:
        """Serves until ``stop`` is called."""
        self._record(
            "started", unix_ns=time.time_ns(), pid=os.getpid(), job=self._job, listen=self.endpoint
        )
        try:
            while not self._stopped:
                self._door.wait(_TICK_S)
                self._turn(time.monotonic_ns())
        finally:
            self._refusals.tick(time.monotonic_ns(), final=True)
            self._coordinator.close()
            self._record("stopped")
            self._door.close()
            self._log.close()

    def _turn(self, now_ns: int) -> None:
        for peer, frames in self._door.receive(_MESSAGES_PER_TURN):
            try:
                message = parse(INBOUND, frames, self._job)
                answers = self._coordinator.receive(peer, message, now_ns)
            except Refused as refused:
                self._refusals.note(refused.reason, str(refused), now_ns)
                continue
            for to, answer in answers:
                self._door.send(to, answer)
        for reason in self._door.turned_away(_MESSAGES_PER_TURN):
            self._refusals.note(reason, reason, now_ns)
        orders = self._coordinator.tick(now_ns)
        for to, order in orders:
            self._door.send(to, order)  # if it is lost, it is not accepted and is issued again
        if orders:
            self._log.write_plan(orders[-1][1].plan)
        self._refusals.tick(now_ns)


def run_controller(listen: str, keys: Keys, job: str, run_directory: Path) -> None:
    """Serves until SIGTERM or SIGINT. Raises ``UserError`` if it cannot start."""
    os.nice(_NICENESS)
    controller = Controller(listen, keys, job, run_directory)

    def stop(_signum: int, _frame: FrameType | None) -> None:
        controller.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print(f"byteprophet: controller of job {job} listens on {controller.endpoint}", flush=True)
    controller.serve()
