"""Issues plans: decides when and for which iteration, and repeats them for workers that were late.

The coordinator requests a plan. It is issued once all workers of the job are present with a
profile, or if no worker has come, left or sent a new profile for ``_PATIENCE_NS``. Once there has
been a plan, a worker that joins gets one at once, and another when it has a profile. Plans are at
least ``_PAUSE_NS`` apart. If some workers have a new profile, the plan waits up to ``_OTHERS_NS``
for those of the others: a change of the batch or the model usually affects all of them, and a plan
from half of the new profiles would only delay the right one.

A plan's iteration is the largest reported one, extrapolated to now, plus ``_LEAD_NS`` (doubled with
each attempt) and ``_LEAD_ITERATIONS``. It is extrapolated over at most ``_EXTRAPOLATED_NS`` and two
iterations: a job that has reported none for longer stands still, e.g. for an evaluation. Where
workers report no times, an iteration takes what their counts say, or else what is predicted. Only
clients of the job's last start count, because others may count from elsewhere (``members.py``).
With a new start, all that was known by number of iteration is forgotten; the last solution stays.

A plan made in a bad moment does not stay. Once link and host are steady and iterations are
reported, the plan in force is what ``solve`` makes of them, up to the thresholds, after
``_HOLD_NS``, ``_PAUSE_NS`` and the lead. After a change to or from order of arrival, the host alone
brings no other for ``SETTLING`` and ``COMPARED`` iterations, so that the two do not alternate. The
thresholds for the way there and back differ (``arrival_order.py``), and what crosses one must be
more than the usual variation of the host's need (``host_need.py``).

Callers pass times. The clock only tells how long a plan took to make: the job goes on meanwhile, so
its iteration, and the time to answer, count from when it is issued. Only the coordinator uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from pydantic import ValidationError

from byteprophet.control.adoption import MOST_ATTEMPTS, Adoption
from byteprophet.control.arrival_order import COMPARED, SETTLING, ArrivalOrder
from byteprophet.control.host_need import HostNeed
from byteprophet.control.iteration_times import IterationTimes
from byteprophet.control.members import Member
from byteprophet.control.messages import LONGEST_REASON, Message, Plan, PlanOrder, Staged
from byteprophet.control.plan import Facts, HostLimit, Link, NoPlan, Solution, slowest_link, solve
from byteprophet.errors import UserError

Send = tuple[bytes, Message]
Order = tuple[bytes, PlanOrder]
Record = Callable[..., None]  # (event, **fields)
Clock = Callable[[], int]  # in ns, as the times that callers pass

_PATIENCE_NS = 20_000_000_000
_PAUSE_NS = 2_000_000_000
_OTHERS_NS = 1_000_000_000
_LEAD_NS = 1_000_000_000  # until the plug-in has the plan: a client reports four times a second
_LEAD_ITERATIONS = 2
_EXTRAPOLATED_NS = 2_000_000_000  # clients report several times in it
_HOLD_NS = 5_000_000_000  # the window of a worker's ``busy``
_ANSWER_NS = 5_000_000_000
_LEAST_CHANGE = 0.1  # of the bandwidth, for a new plan
_MOST_REASONS = 5
_SHORTEST_ITERATION_NS = 1_000_000
# Values that are valid one by one can be too large together. The controller must survive that.
_NO_SOLUTION = (NoPlan, UserError, ValueError, OverflowError, MemoryError)


class Issuer:
    """``number`` is that of the last plan. A restarted controller learns it from the workers."""

    def __init__(self, job: str, record: Record, clock: Clock) -> None:
        self._job = job
        self._record = record
        self._clock = clock
        self.number = 0
        self._adoption: Adoption | None = None
        self._solution: Solution | None = None
        self._issued_ns = 0
        self._wanted: list[str] = []  # reasons for a new plan; empty: none is wanted
        self._first_wanted_ns = self._wanted_ns = 0
        self._planned: dict[str, tuple[str, int]] = {}  # by worker, the profile of the last plan
        self._told_adopted: dict[str, int] = {}  # by worker, the last plan that was logged
        self._count_anew()

    def _count_anew(self) -> None:
        self._times = IterationTimes()
        self._arrival = ArrivalOrder(self._times)
        self._need = HostNeed()
        self._differs_ns: int | None = None  # since when the host asks for another order
        self._was_unusual: bool | None = None  # the need when it began to; None: it does not
        self._changed_ns: int | None = None  # the last change to or from order of arrival

    def restarted(self) -> None:
        """The job has started again: iterations count from 0, and policies have their defaults."""
        self.tell_outcome(final=True)
        self._adoption = None
        self._count_anew()

    def want(self, reason: str, now_ns: int, *, came: bool = True) -> None:
        """Requests a new plan because of ``reason``.

        If ``came`` (a worker came, left or has a new profile), the wait for other workers restarts.
        """
        if not self._wanted:
            self._first_wanted_ns = now_ns
        if came or not self._wanted:
            self._wanted_ns = now_ns
        if reason not in self._wanted and len(self._wanted) < _MOST_REASONS:
            self._wanted.append(reason)

    def link_changed(self, members: Sequence[Member]) -> str | None:
        """How the link differs from that of the last plan.

        None if it does not differ, or by no more than its usual variation.
        """
        if self._solution is None:
            return None
        before, link = self._solution.link, _link(members)
        if link.bandwidth_bps is None or before.bandwidth_bps is None:
            return None if link.bandwidth_bps == before.bandwidth_bps else "a bandwidth is known"
        moved_bps = abs(link.bandwidth_bps - before.bandwidth_bps)
        # The spread of today: a plan made while the link wavered must not stay for that.
        if moved_bps <= max(_LEAST_CHANGE * before.bandwidth_bps, link.spread_bps):
            return None
        return f"bandwidth {before.bandwidth_bps} became {link.bandwidth_bps} bit/s"

    def host_changed(self, members: Sequence[Member], now_ns: int) -> str | None:
        """How the host's need differs from that of the last plan, if another order is now right.

        None unless that has held for a while. Call it when iterations were reported: between them,
        cores do other work. It simulates nothing.
        """
        planned = None if self._solution is None else self._solution.host
        if planned is None:
            return None
        ready = [member for member in members if member.profile is not None]
        host = replace(planned, host_ns=self._host_ns(ready))
        should_change = self._arrival.should_change(host)
        if should_change and self._was_unusual is None:  # before it is part of what is usual
            self._was_unusual = self._need.is_unusual(host.host_ns)
        elif not should_change:
            self._was_unusual = None
        self._need.note(host.host_ns, now_ns)
        if not should_change or not (self._was_unusual or self._has_settled_beyond(planned)):
            self._differs_ns = None
            return None
        if self._differs_ns is None:
            self._differs_ns = now_ns
        if now_ns - self._differs_ns < _HOLD_NS or self._is_compared(now_ns):
            return None
        self._differs_ns = None
        return (
            f"the processor needs {host.host_ns / 1e6:.1f} ms an iteration, "
            f"{planned.host_ns / 1e6:.1f} ms when the plan was made"
        )

    def _has_settled_beyond(self, planned: HostLimit) -> bool:
        """Whether the host's usual need asks for another order."""
        usual_ns = self._need.settled_ns
        if usual_ns is None:
            return False
        return self._arrival.should_change(replace(planned, host_ns=usual_ns))

    def took(self, name: str, times: Sequence[tuple[int, int]], now_ns: int) -> None:
        """Worker ``name`` reports how long iterations took."""
        if not times:
            return
        self._times.add(name, times)
        verdict = self._arrival.verdict()
        if verdict is not None:
            self.want(verdict, now_ns, came=False)
        if self._adoption is not None:
            self._adoption.took(name, times)
            self.tell_outcome()

    def answered(self, name: str, answer: Staged) -> None:
        """Worker ``name`` accepts or refuses a plan. Answers to earlier plans are ignored."""
        adoption = self._adoption
        if adoption is None or answer.number != adoption.plan.number:
            return
        if answer.error is None:
            adoption.accepted.add(name)
            self._record("accepted", plan=answer.number, worker=name)
        elif answer.late:
            adoption.late.add(name)
        else:
            self._record("plan refused", plan=answer.number, worker=name, error=answer.error)
            adoption.names -= {name}

    def adopted(self, name: str, number: int, iteration: int) -> None:
        """Worker ``name`` has used plan ``number`` since ``iteration``."""
        if self._told_adopted.get(name) != number:
            self._told_adopted[name] = number
            self._record("adopted", plan=number, worker=name, iteration=iteration)
        if self._adoption is not None and number == self._adoption.plan.number:
            self._adoption.adopted[name] = iteration

    @property
    def in_force(self) -> Plan | None:
        """The last plan that was issued, once all workers have adopted it; None until then.

        Those that have left or refused it do not count.
        """
        adoption = self._adoption
        return adoption.plan if adoption is not None and adoption.everywhere else None

    def left(self, name: str) -> None:
        """Worker ``name`` has left, so the plan does not wait for it any more."""
        if self._adoption is not None:
            self._adoption.names -= {name}

    def tick(self, members: Sequence[Member], now_ns: int) -> list[Order]:
        """The plans to send now. ``members`` are the workers that are present."""
        adoption = self._adoption
        if adoption is not None and adoption.missed_by():
            waited = now_ns - self._issued_ns > _ANSWER_NS
            if adoption.late or waited:
                return self._issue_again(adoption, members, now_ns)
        paused = adoption is not None and now_ns - self._issued_ns < _PAUSE_NS
        waits = paused or self._others_follow(members, now_ns)
        if self._wanted and not waits and self._is_complete(members, now_ns):
            return self._solve_and_issue(members, now_ns)
        return []

    def tell_outcome(self, final: bool = False) -> None:
        """Logs the outcome of the plan once enough is known. ``final``: logs all that is known."""
        adoption = self._adoption
        if adoption is None or (adoption.told_iterations and not final):
            return
        outcome = adoption.outcome(1) if final else adoption.outcome()
        if outcome is not None and outcome.iterations > adoption.told_iterations:
            adoption.told_iterations = outcome.iterations
            self._record(
                "outcome",
                plan=adoption.plan.number,
                predicted_iteration_ns=adoption.plan.predicted_iteration_ns,
                measured_iteration_ns=outcome.measured_iteration_ns,
                error=outcome.error,
                iterations=outcome.iterations,
            )

    def _is_complete(self, members: Sequence[Member], now_ns: int) -> bool:
        ready = [member for member in members if member.profile is not None]
        expected = max((member.hello.workers for member in members), default=1)
        has_planned = self._solution is not None
        if ready and len(members) >= expected and (has_planned or len(ready) == len(members)):
            return True
        return bool(ready) and now_ns - self._wanted_ns > _PATIENCE_NS

    def _others_follow(self, members: Sequence[Member], now_ns: int) -> bool:
        are_new = [self._planned.get(member.name) != member.profile_id for member in members]
        soon = now_ns - self._first_wanted_ns <= _OTHERS_NS
        return soon and any(are_new) and not all(are_new)

    def _solve_and_issue(self, members: Sequence[Member], now_ns: int) -> list[Order]:
        ready = [member for member in members if member.profile is not None]
        reason = "; ".join(self._wanted)
        self._wanted.clear()
        before = self._planned
        self._planned = {member.name: member.profile_id for member in ready}
        facts = Facts(
            policy=ready[0].hello.policy,
            settings=ready[0].settings,
            profiles=[member.profile for member in ready if member.profile is not None],
            samples=[member.samples for member in ready],
            host_ns=self._host_ns(ready),
        )
        try:
            solution = self._arrival.choose(solve(facts))
        except _NO_SOLUTION as error:
            self._record("no plan", reason=reason, error=_one_line(error))
            return []
        stays = solution.is_in_order and self._arrival.in_order and before == self._planned
        if stays and self._adoption is not None and not self._adoption.missed_by():
            # Only bandwidths have changed, which order of arrival does not depend on.
            self._solution = solution
            return []
        self.tell_outcome(final=True)
        self._solution = solution
        return self._issue(solution, members, reason, 1, now_ns)

    def _issue_again(self, before: Adoption, members: Sequence[Member], now_ns: int) -> list[Order]:
        missed = before.missed_by()
        self._record("withdrawn", plan=before.plan.number, missed_by=missed)
        orders: list[Order] = []
        if before.attempt < MOST_ATTEMPTS and self._solution is not None:
            reason = f"plan {before.plan.number} came too late for {', '.join(missed)}"
            orders = self._issue(self._solution, members, reason, before.attempt + 1, now_ns)
        if not orders:
            before.names -= frozenset(missed)
        return orders

    def _issue(
        self,
        solution: Solution,
        members: Sequence[Member],
        reason: str,
        attempt: int,
        now_ns: int,
    ) -> list[Order]:
        """Issues ``solution``; nothing if it, its number or its iteration do not fit in a plan."""
        issued_ns = self._clock()
        try:
            plan = Plan(
                number=self.number + 1,
                at_iteration=self._iteration_for(members, solution, attempt, now_ns, issued_ns),
                settings=dict(solution.settings),
                ready=solution.ready,
                blocks=solution.blocks,
                predicted_iteration_ns=solution.predicted_iteration_ns,
                reason=_told(solution, reason)[:LONGEST_REASON],
            )
        except ValidationError as error:
            self._record("no plan", reason=reason, error=_one_line(error))
            return []
        self.number = plan.number
        names = frozenset(member.name for member in _of_last_start(members))
        self._adoption = Adoption(plan, names, attempt)
        self._issued_ns = issued_ns
        if solution.is_in_order != self._arrival.in_order:
            self._changed_ns = issued_ns
            self._was_unusual = None
            self._need.order_changed()
        self._arrival.issued(solution, plan.at_iteration, names)
        host = solution.host
        self._record(
            "plan",
            **plan.model_dump(mode="json", by_alias=True),
            workers=[member.name for member in members],
            bandwidth_bps=solution.link.bandwidth_bps,
            host=None if host is None else asdict(host),
        )
        order = PlanOrder(job=self._job, plan=plan)
        return [(member.peer, order) for member in members]

    def _is_compared(self, now_ns: int) -> bool:
        """Whether a change to or from order of arrival is too recent for another one."""
        if self._changed_ns is None:
            return False
        return now_ns - self._changed_ns < (SETTLING + COMPARED) * (self._times.usual_ns() or 0)

    def _host_ns(self, members: Sequence[Member]) -> int:
        """The core time of an iteration on the busiest host, if all its cores shared it; or 0."""
        busy = max((member.busy for member in members if member.busy is not None), default=0.0)
        return int(busy * (self._times.usual_ns() or 0))

    def _iteration_for(
        self,
        members: Sequence[Member],
        solution: Solution,
        attempt: int,
        now_ns: int,
        issued_ns: int,
    ) -> int:
        """The iteration for a plan that is issued at ``issued_ns``.

        Nobody was heard since ``now_ns``, so that time is no sign that the job stands still.
        """
        last = _of_last_start(members)
        pace_ns = min((member.pace_ns for member in last if member.pace_ns), default=0)
        usual_ns = self._times.usual_ns() or pace_ns or solution.predicted_iteration_ns
        iteration_ns = max(_SHORTEST_ITERATION_NS, usual_ns)
        lead_ns = _LEAD_NS << (attempt - 1)
        most_ns = _EXTRAPOLATED_NS + 2 * iteration_ns
        made_ns = issued_ns - now_ns
        begun = max(
            member.iteration
            + math.ceil((min(now_ns - member.iteration_ns, most_ns) + made_ns) / iteration_ns)
            for member in last
        )
        return begun + math.ceil(lead_ns / iteration_ns) + _LEAD_ITERATIONS


def _told(solution: Solution, reason: str) -> str:
    """``reason``; before it, why gradients go in order of arrival, if they do.

    It also says so if the prediction is without forward passes.
    """
    if not solution.has_forward:
        reason = f"predicted without forward passes, which no worker has measured; {reason}"
    host = solution.host
    if host is None or not solution.is_in_order:
        return reason
    cores, planned, arrival = (
        f"{took_ns / 1e6:.1f} ms" for took_ns in (host.host_ns, host.planned_ns, host.arrival_ns)
    )
    return (
        f"in order of arrival, because the processor is the limit: it needs {cores}, and the links "
        f"{planned} planned or {arrival} in order of arrival; {reason}"
    )


def _of_last_start(members: Sequence[Member]) -> list[Member]:
    """Those whose clients belong to the job's last start that any of them has."""
    last = max(member.start for member in members)
    return [member for member in members if member.start == last]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__


def _link(members: Sequence[Member]) -> Link:
    return slowest_link([member.samples for member in members])
