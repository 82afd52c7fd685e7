"""The worker's end: reports to the controller, and hands the controller's plans to the plug-in.

Threads. The observer's thread calls ``close`` and ``take``, which fetches new results from the
profiler and the monitor. A thread of this file does the rest. It alone uses the connection, sleeps
in libzmq until a message comes, and checks four times a second whether there is something to
report. ``_profile``, ``_samples`` and ``_busy`` pass between the two threads: each is only replaced
as a whole, and the objects do not change. Gradients do not pass through here, and nothing blocks: a
message that cannot be sent at once is sent again later.

Iterations. The plug-in counts those of the process, the controller those of the job since its ranks
started or resumed it together. ``_first`` converts between them: the plug-in's count when the
client was made. ``init`` and ``resume`` make it, in the training thread and after BytePS has waited
for all ranks, and that thread pushes no gradient before they return. So count 0 is the same point
of the training on every rank, also on one that joined a job whose other processes are older. From
there on, an iteration needs gradients of all ranks, so equal counts are the same iteration.

A controller that does not know this worker (after a restart or a network failure) says so. The
client then sends everything again: identity, number of the last plan, profile, samples.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from byteprophet.control.iterations import Iterations
from byteprophet.control.keys import Keys
from byteprophet.control.line import Line
from byteprophet.control.messages import (
    OUTBOUND,
    Adopted,
    Bye,
    Hello,
    Message,
    Plan,
    PlanOrder,
    ProfileReport,
    Refused,
    Sample,
    SamplesReport,
    Staged,
    Status,
    Unknown,
    Welcome,
    parse,
)
from byteprophet.profile.model import Profile
from byteprophet.timeline.tables import Transfers

_REPORT_S = 0.25
_HELLO_S, _LONGEST_HELLO_S = 1.0, 30.0
_SAMPLES_S = 1.0
_PER_WAKE = 16
_CLOSE_TIMEOUT_S = 2.0
_FARTHEST_ITERATIONS = 100_000
_MOST_TOLD = 500  # iterations in one message
_PARTITION = "partition_bytes"


class PlanTarget(Protocol):
    """The part of ``_plugin.Plugin`` that takes plans."""

    def iteration(self) -> int:
        """The number of iterations that have begun so far."""

    def partition_bytes(self) -> int:
        """The current partition size."""

    def iteration_starts(self) -> list[tuple[int, int]]:
        """The iterations that have begun since the last call, and their start times in ns."""

    def stage_plan(
        self,
        at_iteration: int,
        settings: Mapping[str, int],
        times: Sequence[tuple[int, int, int, int]],
    ) -> None:
        """Accepts a plan, or raises ``ValueError``.

        ``times`` has tensor, priority, ready time (ns) and spread (ns) of each tensor.
        """


@dataclass(frozen=True)
class Identity:
    """The worker's identity, as in its ``Hello``."""

    job: str
    worker: str
    workers: int
    policy: str
    settings: Mapping[str, int]


@dataclass(frozen=True)
class Feeds:
    """The sources of reports. They are called in the observer's thread.

    ``profile`` returns None until there is a profile. ``busy``: as in ``Status``.
    """

    profile: Callable[[], Profile | None] = lambda: None
    samples: Callable[[], Sequence[Sample]] = lambda: ()
    busy: Callable[[], float | None] = lambda: None


class Client:
    """A consumer of the observer. ``address`` is the controller's, ``tcp://host:port``.

    ``names`` are the names of tensors by number, as in observe.Job; they may grow meanwhile.
    ``refused`` counts refused messages and handshakes by reason; the client's thread updates it.
    """

    every = 0  # see observe.Consumer: the client itself needs no transfers

    def __init__(
        self,
        identity: Identity,
        address: str,
        keys: Keys,
        target: PlanTarget,
        names: Mapping[int, str],
        feeds: Feeds,
    ) -> None:
        self._identity = identity
        self._target = target
        self._names = names
        self._feeds = feeds
        self._client = secrets.token_hex(8)
        self._first = target.iteration()
        self._iterations = Iterations()
        self._took: deque[tuple[int, int]] = deque(maxlen=_MOST_TOLD)
        self.refused: Counter[str] = Counter()
        self._last_plan = 0  # the last one accepted
        self._pending: Plan | None = None  # accepted, but its iteration has not begun
        self._adopted: Adopted | None = None  # in force
        self._untold: deque[Message] = deque(maxlen=_PER_WAKE)  # answers that could not be sent
        self._profile: Profile | None = None
        self._samples: Sequence[Sample] = ()
        self._busy: float | None = None
        self._feed_due_s = 0.0  # when samples are fetched again; only for the observer's thread
        self._closing = threading.Event()
        self._forget()
        self._line = Line(address, keys)
        self._thread = threading.Thread(target=self._run, name="byteprophet-control", daemon=True)
        self._thread.start()

    def take(self, _transfers: Transfers) -> None:
        """Called by the observer, see observe.Consumer. Fetches the latest profile and samples."""
        self._profile = self._feeds.profile()
        now_s = time.monotonic()
        if now_s >= self._feed_due_s:
            self._feed_due_s = now_s + _SAMPLES_S
            self._samples = self._feeds.samples()
            self._busy = self._feeds.busy()

    def close(self) -> None:
        """Says goodbye and ends the thread."""
        self._closing.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def abandon(self) -> None:
        """Called by the observer after a failure. Leaves, because further reports would be old."""
        self._closing.set()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._line.wait(_REPORT_S)
                self._listen()
                self._report()
            self._say(Bye(job=self._identity.job, worker=self._identity.worker))
        finally:
            self._line.close()

    def _forget(self) -> None:
        """Sends everything again: the controller knows neither us nor the fate of the last plan."""
        if self._adopted is not None and self._adopted not in self._untold:
            self._untold.append(self._adopted)
        self._welcomed = False
        self._hello_due_s = 0.0
        self._hello_after_s = _HELLO_S
        self._profile_told = 0
        self._samples_told: Sequence[Sample] = ()
        self._samples_due_s = 0.0

    def _listen(self) -> None:
        for frames in self._line.receive(_PER_WAKE):
            try:
                message = parse(OUTBOUND, frames, self._identity.job)
            except Refused as refused:
                self.refused[refused.reason] += 1
                continue
            if isinstance(message, Welcome):
                self._welcomed = True
            elif isinstance(message, Unknown):
                self._forget()
            elif isinstance(message, PlanOrder):
                self._stage(message.plan)
        for reason in self._line.turned_away(_PER_WAKE):
            self.refused[reason] += 1

    def _stage(self, plan: Plan) -> None:
        """Hands ``plan`` to the plug-in, and queues the answer."""
        if plan.number <= self._last_plan:
            self.refused["an old plan"] += 1
            return
        error = self._why_not(plan)
        if error is None:
            self._last_plan, self._pending = plan.number, plan
        late = error is not None and self._iteration() >= plan.at_iteration
        job, worker = self._identity.job, self._identity.worker
        answer = Staged(job=job, worker=worker, number=plan.number, late=late, error=error)
        self._untold.append(answer)

    def _why_not(self, plan: Plan) -> str | None:
        """Hands ``plan`` to the plug-in. Returns the reason if it was refused, else None."""
        now = self._iteration()
        if now >= plan.at_iteration:
            return f"iteration {now} has begun"
        if plan.at_iteration > now + _FARTHEST_ITERATIONS:
            return f"iteration {plan.at_iteration} is too far away"
        if _PARTITION in plan.settings:
            return f"{_PARTITION} cannot be part of a plan"
        try:
            at_iteration = self._first + plan.at_iteration
            self._target.stage_plan(at_iteration, plan.settings, self._times(plan))
        except ValueError as refused:
            return str(refused)[:1000]
        return None

    def _times(self, plan: Plan) -> list[tuple[int, int, int, int]]:
        """The times of the plan's tensors, as far as they are also in this worker's profile.

        A worker that has just joined and has no profile yet takes the plan's forward order.
        """
        numbers = {name: number for number, name in dict(self._names).items()}
        if self._profile is None:
            priorities = {ready.name: -1 - place for place, ready in enumerate(plan.ready)}
        else:
            tensors = self._profile.tensors
            priorities = {tensor.name: -1 - tensor.forward_order for tensor in tensors}
        return [
            (numbers[ready.name], priorities[ready.name], ready.ready_ns, ready.spread_ns)
            for ready in plan.ready
            if ready.name in numbers and ready.name in priorities
        ]

    def _report(self) -> None:
        starts = self._target.iteration_starts()
        begun = ((count - self._first, ns) for count, ns in starts if count > self._first)
        self._took.extend(self._iterations.between(begun))
        now_s = time.monotonic()
        if not self._welcomed:
            if now_s >= self._hello_due_s and self._say(self._hello()):
                self._hello_due_s = now_s + self._hello_after_s
                self._hello_after_s = min(2 * self._hello_after_s, _LONGEST_HELLO_S)
            return
        pending, job, worker = self._pending, self._identity.job, self._identity.worker
        if pending is not None and self._iteration() >= pending.at_iteration:
            self._pending = None
            number, iteration = pending.number, pending.at_iteration
            self._adopted = Adopted(job=job, worker=worker, number=number, iteration=iteration)
            self._untold.append(self._adopted)
        while self._untold and self._say(self._untold[0]):
            self._untold.popleft()
        self._tell_status()
        self._tell_profile()
        if now_s >= self._samples_due_s:
            self._samples_due_s = now_s + _SAMPLES_S
            self._tell_samples()

    def _hello(self) -> Hello:
        return Hello(
            job=self._identity.job,
            worker=self._identity.worker,
            client=self._client,
            workers=self._identity.workers,
            policy=self._identity.policy,
            settings=dict(self._identity.settings),
            iteration=self._iteration(),
            plan=self._last_plan,
        )

    def _tell_status(self) -> None:
        status = Status(
            job=self._identity.job,
            worker=self._identity.worker,
            iteration=self._iteration(),
            partition_bytes=self._target.partition_bytes(),
            busy=self._busy,
            took=list(self._took),
            refused=dict(self.refused),
        )
        if self._say(status):
            self._took.clear()

    def _tell_profile(self) -> None:
        profile = self._profile
        if profile is None or profile.number <= self._profile_told:
            return
        job, worker = self._identity.job, self._identity.worker
        if self._say(ProfileReport(job=job, worker=worker, profile=profile)):
            self._profile_told = profile.number

    def _tell_samples(self) -> None:
        samples = list(self._samples)
        if not samples or samples == self._samples_told:
            return
        job, worker = self._identity.job, self._identity.worker
        if self._say(SamplesReport(job=job, worker=worker, samples=samples)):
            self._samples_told = samples

    def _iteration(self) -> int:
        """The job's iterations that have begun since this client was made."""
        return self._target.iteration() - self._first

    def _say(self, message: Message) -> bool:
        return self._line.send(message)
