"""Tunes a scheduler's settings while the job trains.

Steps are counted from the one at which all ranks agreed on the forward order, which is the same on
every rank. They form windows of equal length, one per trial. At the end of a window, rank 0 chooses
the settings of the next one. It sends them together with the next iteration's gradients, and all
ranks apply them at the end of the step after that. No rank waits, because the message has a whole
iteration to arrive, and new settings do not require an idle network (``Synchroniser.reconfigure``).
After the last trial, the best settings stay, and no more messages are sent.

The search minimises the median of rank 0's iterations in a window, without the first ones, which
the previous settings still affect. Rank 0 can stand for all: each iteration needs every rank's
gradients, so ranks are never further apart than one iteration, and their times are otherwise equal.
The median is used because a single disturbed iteration would decide the mean of a window of ten.

Only the steps of one optimizer are counted: the one that steps first after the last one was made.
The changes apply to the one policy of the process, and to the partitions of all optimizers'
gradients.

Threads: everything here runs in the training thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise

from byteprophet.torch.retuning.between_steps import DRAIN_S
from byteprophet.torch.sync.agreement import Announcement
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.tune.journal import Journal
from byteprophet.tune.request import SETTLING, TRIALS, Request
from byteprophet.tune.search import Search
from byteprophet.tune.space import Settings

_NAME = "byteprophet.tuning"


class Tuning:
    """Implements ``BetweenSteps``. ``clock_ns`` is monotonic. Only rank 0 writes ``journal``."""

    def __init__(
        self,
        request: Request,
        synchroniser: Synchroniser,
        journal: Journal,
        timeout_s: float,
        seed: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._window = request.window
        self._names = list(request.candidates()[0])
        self._synchroniser = synchroniser
        self._journal = journal
        self._timeout_s = timeout_s
        self._clock_ns = clock_ns
        self._search = Search(request.candidates(), TRIALS, seed)
        self._owner: str | None = None
        self._iteration = -1  # of the owner, from 0
        self._place = -1  # steps since the first window began
        self._ended = False  # the final settings have been applied
        self._message: Announcement | None = None
        self._stamps_ns: list[int] = []  # ends of the last step before the window and of its steps
        self._costs_ns: dict[str, int] = {}  # what changing the settings cost this rank
        self.applied: list[tuple[int, Settings]] = []
        """The iteration after which settings were applied, and the settings, the same on all
        ranks."""

    @property
    def settled(self) -> bool:
        """See ``BetweenSteps``."""
        return self._ended

    def declare(self) -> None:
        """See ``BetweenSteps``. The optimizer that steps first from now on counts steps."""
        self._synchroniser.declare([_NAME])
        self._owner = None

    def restart(self) -> None:
        """See ``BetweenSteps``."""
        self._place, self._ended, self._message = -1, False, None
        self._stamps_ns.clear()

    def drain(self) -> None:
        """See ``BetweenSteps``."""
        if self._message is not None:
            self._message.arrives_within(DRAIN_S)

    def after_step(self, owner: str, agreed: bool) -> None:
        """See ``BetweenSteps``."""
        self._owner = self._owner or owner
        if owner != self._owner:
            return
        self._iteration += 1
        if self._ended or not agreed:
            return
        self._place += 1
        self._stamps_ns.append(self._clock_ns())
        if self._place % self._window == 0:
            self._announce()
        elif self._message is not None:
            self._take_over(self._message)

    def _announce(self) -> None:
        values: list[int] | None = None
        if self._synchroniser.rank == 0:
            if len(self._stamps_ns) > self._window:
                self._learn()
            settings = self._search.ask()
            values = [int(settings is None), *(settings or self._search.best()).values()]
        self._costs_ns = {"decide_ns": self._clock_ns() - self._stamps_ns[-1]}
        del self._stamps_ns[:-1]
        self._message = Announcement(
            self._synchroniser, _NAME, values, 1 + len(self._names), "scheduler's settings"
        )

    def _take_over(self, message: Announcement) -> None:
        begun_ns = self._clock_ns()
        values = message.wait(self._timeout_s)
        assert values is not None
        self._message = None
        arrived_ns = self._clock_ns()
        settings = dict(zip(self._names, values[1:], strict=True))
        self._synchroniser.reconfigure(settings)
        self.applied.append((self._iteration, settings))
        self._costs_ns["wait_ns"] = arrived_ns - begun_ns
        self._costs_ns["apply_ns"] = self._clock_ns() - arrived_ns
        self._ended = values[0] == 1
        if self._ended and self._synchroniser.rank == 0:
            self._journal.write(
                chosen=settings,
                iteration=self._iteration,
                trials=self._search.trial,
                iteration_ns=round(self._search.mean(settings)),
                **self._costs_ns,
            )

    def _learn(self) -> None:
        """Tell the search the measured iteration time of the window that ends here."""
        times_ns = [after - before for before, after in pairwise(self._stamps_ns)]
        measured_ns = statistics.median(times_ns[SETTLING:])
        trial, phase = self._search.trial, self._search.phase
        iteration, settings = self.applied[-1]
        self._search.tell(measured_ns)
        self._journal.write(
            trial=trial,
            phase=phase,
            iteration=iteration,
            settings=settings,
            iteration_ns=round(measured_ns),
            window_ns=times_ns,
            **self._costs_ns,
        )
