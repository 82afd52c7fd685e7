"""The worker's end: reports to the controller, hands its plans to the plug-in.

Threads. The observer's thread calls ``take`` and ``close``; a thread of this file's own does the
rest: it has the socket to itself, sleeps in libzmq until a message comes, and looks four times a
second whether there is something to report. ``_lock`` guards what ``take`` has gathered. Nothing
here is on the way of a gradient, and nothing blocks: what cannot be sent at once is said again.

The connection is libzmq's business: it looks for the controller for as long as the worker lives. A
controller that does not know this worker (a new one, or after a cut) says so, and is told all anew.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import zmq
from numpy.typing import NDArray

from byteprophet.control.iterations import Iterations
from byteprophet.control.keys import Keys
from byteprophet.control.messages import (
    OUTBOUND,
    Adopted,
    Bye,
    Hello,
    Message,
    Plan,
    PlanOrder,
    Profile,
    ProfileReport,
    Refused,
    Sample,
    SamplesReport,
    Staged,
    Status,
    Unknown,
    Welcome,
    encode,
    parse,
)
from byteprophet.control.sockets import failed_handshakes, prepare, watch_handshakes

_REPORT_S = 0.25
_HELLO_S = 1.0
_SAMPLES_S = 1.0
_RECONNECT_MS, _LONGEST_RECONNECT_MS = 100, 2000
_PER_WAKE = 16
_FAREWELL_MS = 200
_CLOSE_TIMEOUT_S = 2.0
_FARTHEST_ITERATIONS = 100_000
_PARTITION = "partition_bytes"


class PlanTarget(Protocol):
    """What takes a plan: the plug-in."""

    def iteration(self) -> int:
        """How often OnIteration was called."""

    def tensor(self, name: str) -> int:
        """The declared tensor's number; -1 if there is none."""

    def stage_plan(
        self,
        at_iteration: int,
        settings: Mapping[str, int],
        times: Sequence[tuple[int, int, int, int]],
    ) -> str | None:
        """Why the plan was refused, or None. ``times``: tensor, priority, ready, spread in ns."""


@dataclass(frozen=True)
class Identity:
    """Who this worker is, as its hello says."""

    job: str
    worker: str
    workers: int
    policy: str
    settings: Mapping[str, int]


@dataclass(frozen=True)
class Feeds:
    """Where reports come from. ``profile``: its number and content, None while there is none."""

    profile: Callable[[], tuple[int, Profile] | None] = lambda: None
    samples: Callable[[], Sequence[Sample]] = lambda: ()


class Client:
    """A Consumer of the observer; ``address`` is the controller's, ``tcp://host:port``."""

    def __init__(
        self, identity: Identity, address: str, keys: Keys, target: PlanTarget, feeds: Feeds
    ) -> None:
        self._identity = identity
        self._target = target
        self._feeds = feeds
        self._client = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._iterations = Iterations()
        self._refused: Counter[str] = Counter()
        self._last_plan = 0  # the last one accepted
        self._pending: Plan | None = None  # accepted, its iteration not begun
        self._untold: list[Message] = []  # answers that could not be sent
        self._closing = threading.Event()
        self._forget()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        prepare(self._socket, keys)
        self._socket.curve_serverkey = keys.peer
        self._socket.immediate = True
        self._socket.reconnect_ivl = _RECONNECT_MS
        self._socket.reconnect_ivl_max = _LONGEST_RECONNECT_MS
        self._monitor = watch_handshakes(self._socket)
        self._socket.connect(address)
        self._thread = threading.Thread(target=self._run, name="byteprophet-control", daemon=True)
        self._thread.start()

    def take(self, transfers: NDArray[Any]) -> None:
        """From the observer: see observe.Consumer."""
        with self._lock:
            self._iterations.take(transfers)

    def close(self) -> None:
        """Says goodbye and ends the thread."""
        self._closing.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._socket.poll(int(_REPORT_S * 1000))
                self._receive()
                self._report()
            self._send(Bye(job=self._identity.job, worker=self._identity.worker))
        finally:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(_FAREWELL_MS)
            self._context.term()

    def _forget(self) -> None:
        """The controller knows nothing of us."""
        self._welcomed = False
        self._said_hello_s = -_HELLO_S
        self._profile_told = 0
        self._samples_told: Sequence[Sample] = ()
        self._samples_told_s = 0.0

    def _receive(self) -> None:
        for _ in range(_PER_WAKE):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                message = parse(OUTBOUND, frames, self._identity.job)
            except Refused as refused:
                self._refused[refused.reason] += 1
                continue
            if isinstance(message, Welcome):
                self._welcomed = True
            elif isinstance(message, Unknown):
                self._forget()
            elif isinstance(message, PlanOrder):
                self._stage(message.plan)
        for reason in failed_handshakes(self._monitor, _PER_WAKE):
            self._refused[reason] += 1

    def _stage(self, plan: Plan) -> None:
        """Hands ``plan`` to the plug-in, and answers."""
        if plan.number <= self._last_plan:
            self._refused["an old plan"] += 1
            return
        now = self._target.iteration()
        late, error = now >= plan.at_iteration, None
        if late:
            error = f"iteration {now} has begun"
        elif plan.at_iteration > now + _FARTHEST_ITERATIONS:
            error = f"iteration {plan.at_iteration} is too far away"
        elif _PARTITION in plan.settings:
            error = f"{_PARTITION} cannot be part of a plan"
        else:
            error = self._target.stage_plan(plan.at_iteration, plan.settings, self._times(plan))
            late = error is not None and self._target.iteration() >= plan.at_iteration
        if error is None:
            self._last_plan, self._pending = plan.number, plan
        self._untold.append(
            Staged(
                job=self._identity.job,
                worker=self._identity.worker,
                number=plan.number,
                late=late,
                error=error,
            )
        )

    def _times(self, plan: Plan) -> list[tuple[int, int, int, int]]:
        """Of tensors that this worker has sent already: their priorities are known."""
        with self._lock:
            priorities = dict(self._iterations.priorities)
        times = []
        for ready in plan.ready:
            tensor = self._target.tensor(ready.name)
            if priorities.get(tensor, 0) < 0:
                times.append((tensor, priorities[tensor], ready.ready_ns, ready.spread_ns))
        return times

    def _report(self) -> None:
        now_s = time.monotonic()
        if not self._welcomed:
            if now_s - self._said_hello_s >= _HELLO_S and self._send(self._hello()):
                self._said_hello_s = now_s
            return
        pending = self._pending
        if pending is not None and self._target.iteration() >= pending.at_iteration:
            self._pending = None
            self._untold.append(
                Adopted(
                    job=self._identity.job,
                    worker=self._identity.worker,
                    number=pending.number,
                    iteration=pending.at_iteration,
                )
            )
        while self._untold and self._send(self._untold[0]):
            del self._untold[0]
        del self._untold[:-_PER_WAKE]
        self._tell_status()
        self._tell_profile()
        if now_s - self._samples_told_s >= _SAMPLES_S:
            self._samples_told_s = now_s
            self._tell_samples()

    def _hello(self) -> Hello:
        return Hello(
            job=self._identity.job,
            worker=self._identity.worker,
            client=self._client,
            workers=self._identity.workers,
            policy=self._identity.policy,
            settings=dict(self._identity.settings),
            iteration=self._target.iteration(),
            plan=self._last_plan,
        )

    def _tell_status(self) -> None:
        with self._lock:
            took = self._iterations.drain()
        sent = self._send(
            Status(
                job=self._identity.job,
                worker=self._identity.worker,
                iteration=self._target.iteration(),
                took=took,
                refused=dict(self._refused),
            )
        )
        if not sent:
            with self._lock:
                self._iterations.put_back(took)

    def _tell_profile(self) -> None:
        found = self._feeds.profile()
        if found is None or found[0] <= self._profile_told:
            return
        number, profile = found
        job, worker = self._identity.job, self._identity.worker
        if self._send(ProfileReport(job=job, worker=worker, number=number, profile=profile)):
            self._profile_told = number

    def _tell_samples(self) -> None:
        samples = list(self._feeds.samples())
        if not samples or samples == self._samples_told:
            return
        job, worker = self._identity.job, self._identity.worker
        if self._send(SamplesReport(job=job, worker=worker, samples=samples)):
            self._samples_told = samples

    def _send(self, message: Message) -> bool:
        """Whether it could be queued for a controller that is connected."""
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True
