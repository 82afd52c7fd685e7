"""Watches over the roles of a job from the first start to the last end.

Everything here happens in one thread, the caller's, in one loop: read what roles wrote, take the
status of those that ended, decide. So there is no lock. Waiting is one select over the roles'
pipes and the signals' wake-up, for at most _TICK_S: an ended role usually shows at once by the
end of its pipe, and by the tick where a grandchild holds the pipe open. The thread must be the one
that started the roles and must outlive them: a parent-death signal is about the starting thread.

A consequence: whoever gets the lines (``echo``) holds everything up while he is slow.

The controller is an attendant: the job can do without it. Its end is a warning, not the job's end.
"""

from __future__ import annotations

import selectors
import signal
import sys
import time
from collections.abc import Sequence

from byteprophet.errors import UserError
from byteprophet.launcher.attendant import Attendant
from byteprophet.launcher.descendants import Descendants, send
from byteprophet.launcher.role import Role, RolePlan
from byteprophet.launcher.signals import Signals
from byteprophet.launcher.spec import Echo, Limits, RoleResult
from byteprophet.launcher.stopped import StoppedWatch

_TICK_S = 0.1
_KILL_TIMEOUT_S = 5.0
_DRAIN_READS = 100


class Supervisor:
    """``run`` and then ``stop``, also when ``run`` was cut short; each once."""

    def __init__(
        self,
        descendants: Descendants,
        signals: Signals,
        limits: Limits,
        stopped: StoppedWatch,
        echo: Echo | None,
    ) -> None:
        self._descendants = descendants
        self._signals = signals
        self._limits = limits
        self._stopped = stopped
        self._echo = echo
        self._roles: list[Role] = []  # the job's: without the attendants
        self._attendants: list[Attendant] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.wake_fd, selectors.EVENT_READ)

    def run(self, plans: Sequence[RolePlan], timeout_s: float) -> str | None:
        """Starts the roles and waits. None when the job is done, else one line with the cause."""
        deadline_s = time.monotonic() + timeout_s
        for plan in plans:
            if plan.kind == "controller":
                self._attendants.append(Attendant(plan))
            else:
                self._roles.append(self._start(plan))
        while True:
            self._pump()
            self._attend()
            if self._signals.received is not None:
                return f"interrupted by {signal.Signals(self._signals.received).name}"
            verdict = self._failed()
            if verdict is not None:
                return verdict
            workers = [role for role in self._roles if role.plan.kind == "worker"]
            if all(role.exit_status == 0 for role in workers):
                self._wait_for(self._roles, self._limits.farewell_s)
                return None
            if time.monotonic() > deadline_s:
                return f"the job did not end within {timeout_s:g} s: {self._who()}"

    def _start(self, plan: RolePlan) -> Role:
        role = Role(plan)
        self._selector.register(role.output_fd, selectors.EVENT_READ, role)
        return role

    def _attend(self) -> None:
        """Starts attendants, again if they ended and may be."""
        for attendant in self._attendants:
            plan, warning = attendant.due(time.monotonic())
            if warning is not None:
                self._drain(attendant.lives[-1])
                self._say(attendant.plan.name, warning)
            if plan is None:
                continue
            try:
                attendant.lives.append(self._start(plan))
            except (UserError, OSError) as error:
                if not attendant.lives:
                    raise
                attendant.give_up()
                self._say(plan.name, f"byteprophet: warning: {error}; the job goes on without it")

    @property
    def _everybody(self) -> list[Role]:
        return [*self._roles, *(life for one in self._attendants for life in one.lives)]

    def stop(self) -> None:
        """Ends what still runs: SIGTERM, and after the grace, SIGKILL."""
        self._poll()
        for role in self._everybody:
            role.stopped = role.stopped or role.exit_status is None
        asked: set[int] = set()
        refused: set[int] = set()
        deadline_s = time.monotonic() + self._limits.grace_s
        while (running := set(self._descendants.running()) - refused) and (
            time.monotonic() < deadline_s
        ):
            # Each once, and also those that one of them started before it was asked itself.
            refused |= send(signal.SIGTERM, running - asked)
            asked |= running
            self._pump()
        beyond = self._descendants.kill_all(_KILL_TIMEOUT_S)
        if beyond:
            print(
                "byteprophet: warning: processes of the job that belong to another user go on: "
                f"{', '.join(map(str, sorted(beyond)))}; end them as that user",
                file=sys.stderr,
            )
        deadline_s = time.monotonic() + _KILL_TIMEOUT_S
        while any(role.exit_status is None for role in self._everybody):
            if time.monotonic() > deadline_s:
                break
            self._pump()
        for role in self._everybody:
            self._drain(role)
            role.close()
        self._selector.close()

    def results(self) -> tuple[RoleResult, ...]:
        """Of all roles in the order of their start, attendants last; after ``stop``."""
        return tuple(role.result() for role in self._everybody)

    def _wait_for(self, roles: Sequence[Role], timeout_s: float) -> None:
        """Until all of ``roles`` have ended, the time is over, or a signal has come."""
        deadline_s = time.monotonic() + timeout_s
        while any(role.exit_status is None for role in roles) and time.monotonic() < deadline_s:
            if self._signals.received is not None:
                break
            self._pump()

    def _poll(self) -> None:
        """Takes the status of all roles that have ended."""
        for role in self._everybody:
            role.poll()

    def _pump(self) -> None:
        """One turn of the loop: waits a little, passes lines on, takes statuses."""
        for key, _ in self._selector.select(_TICK_S):
            if isinstance(key.data, Role):
                self._read(key.data)
            else:  # a signal: once seen, the loop ends by itself
                self._selector.unregister(key.fileobj)
        self._poll()

    def _read(self, role: Role) -> bool:
        """Passes on what has come from ``role``; whether there may be more at once."""
        lines, size_bytes, is_open = role.read()
        if not is_open:
            self._selector.unregister(role.output_fd)
        self._say(role.name, *lines)
        return size_bytes > 0

    def _say(self, name: str, *lines: str) -> None:
        echo, self._echo = self._echo, None  # one that raised is not called again, by stop()
        if echo is not None:
            for line in lines:
                echo(name, line)
            self._echo = echo

    def _drain(self, role: Role) -> None:
        """What a role that has ended wrote last. Not without end: its children may go on."""
        for _ in range(_DRAIN_READS):
            if role.output_fd not in self._selector.get_map() or not self._read(role):
                break

    def _failed(self) -> str | None:
        """The first cause that shows: workers first, as the others' ends follow from theirs."""
        order = sorted(self._roles, key=lambda role: role.plan.kind != "worker")
        for role in order:
            if role.exit_status is not None and role.exit_status != 0:
                self._drain(role)
                return self._cause(role)
        # Servers and scheduler end together, when the last worker has taken its leave (it may go
        # on without them). One that ends with status 0 while another stays has left too early.
        rest = [role for role in order if role.plan.kind != "worker"]
        if any(role.exit_status is None for role in rest):
            for role in rest:
                waited_s = time.monotonic() - role.ended_s
                if role.exit_status == 0 and waited_s > self._limits.premature_s:
                    return f"{role.obituary()} (too early: {self._who()})"
        return self._stopped.look({role.pid: role.name for role in self._roles})

    def _cause(self, ended: Role) -> str:
        """Why ``ended`` ended: its own fault, or another role that it and others wait for in vain.

        The scheduler role knows best who that is: one that is cut off itself misses everybody.
        """
        if ended.verdict is None:
            return ended.obituary()
        verdicts = (role.verdict for role in self._roles if role.plan.kind == "scheduler")
        verdict = next(verdicts, None) or ended.verdict
        named = next((role for role in self._roles if verdict.startswith(f"{role.name} ")), ended)
        others = [r for r in self._roles if r.plan.kind == "worker" and r is not named]
        self._wait_for(others, self._limits.last_words_s)
        return f"{verdict}; its log: {named.plan.log}"

    def _who(self) -> str:
        running = [role.name for role in self._roles if role.exit_status is None]
        ended = [
            f"{role.name} ended with {role.exit_status}"
            for role in self._roles
            if role.exit_status is not None
        ]
        return "; ".join([", ".join(running) + " still running", *ended])
