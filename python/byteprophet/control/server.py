"""The controller's process: one thread that waits, reads, decides and answers in a loop.

**How long a turn takes.** It reads for a quarter of a second at most, and then ends the message at
hand; the largest takes a few tenths of a second to parse. It may make one plan, and nothing limits
how long that takes: 100 workers, 400 tensors and 32 servers take about a second of processor time.
The process runs at low priority, so that on a shared machine it computes while workers do not; any
turn may take longer because of that.

**Why no live worker is dropped.** ``Coordinator.tick`` drops whoever has been silent for 10 s, and
only time counts in which the controller listened:

- ``tick`` drops nobody unless the turn has read until nothing was left. So what a worker said while
  a plan was made, or while the messages of many others were read, is heard first. Reading that is
  cut off goes on in the next turn, and libzmq takes messages from all connections in turn.
- Of the time between two turns, only a second counts. After a pause of any length (a plan, other
  processes, a machine that slept), every worker has as much time to be heard as before it: for what
  libzmq's thread has not read yet, and for connections that broke and have to be made again.

So nothing came from a dropped worker in 10 s, over at least ten turns; a live one reports four
times a second. One that is gone is still dropped: 10 s later, plus what the pauses took.
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
_READING_NS = 250_000_000  # less than the margin of a plan's iteration, of which it takes away
_LISTENED_NS = 1_000_000_000  # of the time between two turns, at most
_HANDSHAKES_PER_TURN = 64
_NICENESS = 10


class Controller:
    """Serves one job until ``stop``. Writes control.jsonl and plan.json to ``run_directory``."""

    def __init__(self, listen: str, keys: Keys, job: str, run_directory: Path) -> None:
        self._job = job
        identity = secrets.token_hex(8)
        self._log = EventLog(run_directory, identity)
        self._door = Door(listen, keys)
        self._record = self._log.record
        self._coordinator = Coordinator(job, identity, self._record, time.monotonic_ns)
        self._refusals = Refusals(self._record)
        self._written = 0  # the number of the plan in plan.json
        self._stopped = False
        self._turned_ns = time.monotonic_ns()
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
        self._coordinator.was_deaf(max(0, now_ns - self._turned_ns - _LISTENED_NS))
        self._turned_ns = now_ns
        heard_all = self._read(now_ns)
        for reason in self._door.turned_away(_HANDSHAKES_PER_TURN):
            self._refusals.note(reason, reason, now_ns)
        self._write_plan()  # before another one may be issued
        for to, order in self._coordinator.tick(now_ns, heard_all):
            self._door.send(to, order)  # if it is lost, it is not accepted and is issued again
        self._refusals.tick(now_ns)

    def _write_plan(self) -> None:
        """Writes the plan that all workers have adopted by now, unless it was written."""
        plan = self._coordinator.plan_in_force
        if plan is not None and plan.number != self._written:
            self._log.write_plan(plan)
            self._written = plan.number

    def _read(self, now_ns: int) -> bool:
        """Handles what has arrived, for a limited time; returns whether nothing is left."""
        until_ns = time.monotonic_ns() + _READING_NS
        for peer, frames in self._door.receive():
            self._handle(peer, frames, now_ns)
            if time.monotonic_ns() > until_ns:
                return False
        return True

    def _handle(self, peer: bytes, frames: list[bytes], now_ns: int) -> None:
        try:
            message = parse(INBOUND, frames, self._job)
            answers = self._coordinator.receive(peer, message, now_ns)
        except Refused as refused:
            self._refusals.note(refused.reason, str(refused), now_ns)
            return
        for to, answer in answers:
            self._door.send(to, answer)


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
