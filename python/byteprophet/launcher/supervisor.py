"""Watches the roles of a job from the first start to the last end.

Everything here happens in one thread, the caller's, in one loop: it reads what roles wrote, takes
the status of roles that ended, and decides. So there is no lock. It waits in one select over the
roles' pipes and the signals' wake-up, for at most _TICK_S. The end of a role usually shows at once
by the end of its pipe; if a grandchild keeps the pipe open, it shows at the next tick. The thread
must be the one that started the roles and must outlive them, because a parent-death signal is sent
when the starting thread ends.

Only the receiver of the lines (``echo``) is called by a thread of its own (shown.py), because it
may block. While it does, roles' output stays in their pipes, so that they wait for it, too. Time
limits and signals still hold. Once roles have been asked to end, their output is read in any case,
because a role that waits for its reader could not save anything. While the receiver takes nothing,
it goes to the logs only.

The controller is an attendant: the job can do without it. If it ends, there is a warning, and the
job goes on. Only where it is the one role of a host, it is waited for like others.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Sequence

from byteprophet.errors import UserError, warn
from byteprophet.launcher.attendant import Attendant
from byteprophet.launcher.descendants import Descendants, send
from byteprophet.launcher.role import Role, RolePlan
from byteprophet.launcher.shown import Shown
from byteprophet.launcher.signals import Signals
from byteprophet.launcher.spec import Echo, Limits, RoleResult
from byteprophet.launcher.stopped import StoppedWatch

_TICK_S = 0.1
_REAP_PERIOD_S = 10.0  # of what roles leave behind; all of /proc is read for it
_KILLED_S = 0.3
_KILL_TIMEOUT_S = 5.0
_DRAIN_READS = 100
_LAST_LINES_S = 2.0  # for the receiver to take what it has not got when the time is over


class Supervisor:
    """Call ``run`` once and then ``stop`` once, even if ``run`` was interrupted."""

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
        self._shown = Shown(echo)
        self._deadline_s = time.monotonic()
        self._roles: list[Role] = []  # the job's roles, without attendants
        self._attendants: list[Attendant] = []
        self._is_stopping = False
        self._reaped_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.wake_fd, selectors.EVENT_READ)

    def run(self, plans: Sequence[RolePlan], timeout_s: float) -> str | None:
        """Starts the roles and waits for the end of the workers, or of all if there are none.

        Returns None, or one line if the job failed.
        """
        self._deadline_s = time.monotonic() + timeout_s
        for plan in plans:
            if plan.kind == "controller" and len(plans) > 1:
                self._attendants.append(Attendant(plan))
            else:
                self._roles.append(self._start(plan))
        # A host of servers only waits for these.
        awaited = [role for role in self._roles if role.plan.kind == "worker"] or self._roles
        while True:
            self._pump()
            self._attend()
            if self._signals.received is not None:
                return f"interrupted by {signal.Signals(self._signals.received).name}"
            verdict = self._failed()
            if verdict is not None:
                return verdict
            if all(role.exit_status == 0 for role in awaited):
                self._wait_for(self._roles, self._limits.farewell_s)
                return None
            if time.monotonic() > self._deadline_s:
                unread = "" if self._shown.has_room(0) else "; nobody reads their output"
                return f"the job did not end within {timeout_s:g} s: {self._who()}{unread}"

    def _start(self, plan: RolePlan) -> Role:
        role = Role(plan)
        self._selector.register(role.output_fd, selectors.EVENT_READ, role)
        return role

    def _attend(self) -> None:
        """Starts attendants, and restarts those that ended and may be restarted."""
        for attendant in self._attendants:
            plan, warning = attendant.due(time.monotonic())
            if warning is not None:
                self._drain(attendant.lives[-1])
                self._shown.put(attendant.plan.name, [warning])
            if plan is None:
                continue
            try:
                attendant.lives.append(self._start(plan))
            except (UserError, OSError) as error:
                if not attendant.lives:
                    raise
                attendant.give_up()
                line = f"byteprophet: warning: {error}; the job goes on without it"
                self._shown.put(plan.name, [line])

    @property
    def _everybody(self) -> list[Role]:
        return [*self._roles, *(life for one in self._attendants for life in one.lives)]

    def stop(self) -> None:
        """Ends all processes that still run, first with SIGTERM, after the grace with SIGKILL.

        What attendants say of their end is in their logs only: they end because the job has.
        """
        self._is_stopping = True
        self._poll()
        for role in self._everybody:
            role.stopped = role.stopped or role.exit_status is None
        asked: set[int] = set()
        refused: set[int] = set()
        deadline_s = time.monotonic() + self._limits.grace_s
        # First only the clients of roles elsewhere: what they started must not end before them.
        clients = [role for role in self._everybody if role.stopped and role.plan.host is not None]
        send(signal.SIGTERM, [role.pid for role in clients])
        while any(role.exit_status is None for role in clients) and time.monotonic() < deadline_s:
            self._pump()
        while (running := set(self._descendants.running()) - refused) and (
            time.monotonic() < deadline_s
        ):
            # Each process gets SIGTERM once, including those started since the last turn.
            refused |= send(signal.SIGTERM, running - asked)
            asked |= running
            self._pump()
        beyond = self._descendants.kill_all(_KILL_TIMEOUT_S)
        if beyond:
            warn(
                "processes of the job that belong to another user go on: "
                f"{', '.join(map(str, sorted(beyond)))}; end them as that user"
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
        self._show_rest()

    def results(self) -> tuple[RoleResult, ...]:
        """The results of all roles in the order of their start, attendants last.

        Must be called after ``stop``.
        """
        return tuple(role.result() for role in self._everybody)

    def cancelled(self) -> str | None:
        """What Slurm said when it ended the job; None: it has not ended it, or said nothing.

        Must be called after ``stop``: in a batch script, Slurm tells this process first.
        """
        return next((role.cancelled for role in self._everybody if role.cancelled), None)

    def _wait_for(self, roles: Sequence[Role], timeout_s: float) -> None:
        """Waits until all of ``roles`` have ended, the time is over, or a signal has come."""
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
        has_room = self._shown.has_room(_TICK_S)
        if has_room or self._is_stopping:
            for key, _ in self._selector.select(_TICK_S if has_room else 0):
                if isinstance(key.data, Role):
                    self._read(key.data, may_drop=not has_room)
                else:  # a signal
                    self._signals.clear_wake()
        if not self._is_stopping:  # else nobody could end the roles
            self._shown.check()
        self._poll()
        self._reap()
        self._pass_on()

    def _reap(self) -> None:
        """Now and then waits for orphans that have ended. A script may leave one in each step."""
        now_s = time.monotonic()
        if now_s - self._reaped_s > _REAP_PERIOD_S:
            self._reaped_s = now_s
            self._descendants.reap_orphans_in({role.pid for role in self._everybody})

    def _pass_on(self) -> None:
        """Passes signals for scripts on to the workers that run, as Slurm would without us."""
        for signum in self._signals.take_for_scripts():
            workers = [role for role in self._roles if role.plan.kind == "worker"]
            send(signum, [role.pid for role in workers if role.exit_status is None])

    def _read(self, role: Role, may_drop: bool = False) -> bool:
        """Passes on new output of ``role``, and returns whether there may be more.

        ``may_drop``: the receiver may miss it.
        """
        lines, size_bytes, is_open = role.read()
        if not is_open:
            self._selector.unregister(role.output_fd)
        if not (self._is_stopping and any(role in each.lives for each in self._attendants)):
            self._shown.put(role.name, lines, may_drop)
        return size_bytes > 0

    def _show_rest(self) -> None:
        """Waits until the receiver has got all lines, for as long as the job may take."""
        end_s = None
        while not self._shown.is_done(_TICK_S):
            now_s = time.monotonic()
            is_late = now_s > self._deadline_s or self._signals.received is not None
            if is_late and end_s is None:
                end_s = now_s + _LAST_LINES_S
            elif end_s is not None and now_s > end_s:
                break
        if self._shown.close():
            warn("nobody reads the output: its last lines are in the logs only")
        self._shown.check()

    def _drain(self, role: Role) -> None:
        """Reads the last output of a role that has ended.

        The number of reads is limited, because the role's children may go on writing.
        """
        for _ in range(_DRAIN_READS):
            if role.output_fd not in self._selector.get_map() or not self._read(role):
                break

    def _failed(self) -> str | None:
        """The cause of a failure, or None. Workers come first: other roles end because of them."""
        order = sorted(self._roles, key=lambda role: role.plan.kind != "worker")
        for role in order:
            if role.exit_status is not None and role.exit_status != 0:
                first = self._first_to_fail(role)
                self._drain(first)
                return self._cause(first)
        # Servers and scheduler end together, when the last worker has left them (it may go on
        # without them). One that ends with status 0 while another one stays has ended too early.
        rest = [role for role in order if role.plan.kind != "worker"]
        if any(role.exit_status is None for role in rest):
            for role in rest:
                waited_s = time.monotonic() - role.ended_s
                if role.exit_status == 0 and waited_s > self._limits.premature_s:
                    return f"{role.obituary()} (too early: {self._who()})"
        return self._stopped.look({role.pid: role.name for role in self._roles})

    def _first_to_fail(self, ended: Role) -> Role:
        """The worker because of whose end ``ended`` ended, if there is one; else ``ended``.

        A process takes a moment to end after its connections have, and the others may be quicker
        to notice. One that was killed has not been told of others' ends, and one that has failed
        by itself does not say that a peer is gone.
        """
        if ended.exit_status == -signal.SIGKILL or ended.plan.kind != "worker":
            return ended
        self._drain(ended)
        wait_s = self._limits.last_words_s if ended.blames_peer() else _KILLED_S
        deadline_s = time.monotonic() + wait_s
        others = [r for r in self._roles if r.plan.kind == "worker" and r is not ended]
        while self._signals.received is None:
            for role in others:
                if role.exit_status:
                    self._drain(role)
                    is_cause = ended.blames_peer() and not role.blames_peer()
                    if is_cause or role.exit_status == -signal.SIGKILL:
                        return role
            is_over = all(role.exit_status is not None for role in others)
            if is_over or time.monotonic() > deadline_s:
                break
            self._pump()
        return ended

    def _cause(self, ended: Role) -> str:
        """Why ``ended`` ended: for a reason of its own, or because another role is lost.

        The scheduler knows best which role is lost. A role that is cut off itself would blame the
        others.
        """
        for role in self._roles:
            if role.lost_node is not None:  # Slurm ends the roles on other nodes first
                return f"{role.name}: {role.lost_node}; its log: {role.plan.log}"
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
