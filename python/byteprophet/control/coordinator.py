"""Decides what the controller sends and logs: messages in, messages and events out.

The coordinator uses no socket and no file: its caller passes the time and a clock, and sends the
results, so tests run it on a virtual clock. It is not thread-safe; the controller has one thread.

It keeps track of the workers and decides when a new plan is needed: if a worker has a new profile,
has joined or has left, or if the link or the host's need differs from what the last plan assumed.
``issue.py`` does the rest.
"""

from __future__ import annotations

from byteprophet.control.issue import Clock, Issuer, Order, Record, Send
from byteprophet.control.members import Member, Members
from byteprophet.control.messages import (
    Adopted,
    Bye,
    Hello,
    Inbound,
    Plan,
    ProfileReport,
    Refused,
    SamplesReport,
    Staged,
    Status,
    Unknown,
    Welcome,
)

_MOST_WORKERS = 1024  # per job; limits the profiles in memory
_SAMPLES_LOGGED_NS = 10_000_000_000
_GOODBYE = "bye"


class Coordinator:
    """The state of the controller of one job.

    ``record`` takes an event's name and fields. ``identity`` identifies this life of the
    controller. ``clock`` tells the time that has passed while a plan was made.
    """

    def __init__(self, job: str, identity: str, record: Record, clock: Clock) -> None:
        self._job = job
        self._identity = identity
        self._record = record
        self._members = Members()
        self._issuer = Issuer(job, record, clock)
        self._samples_logged_ns: dict[str, int] = {}

    def receive(self, peer: bytes, message: Inbound, now_ns: int) -> list[Send]:
        """Handles ``message`` from connection ``peer`` and returns the answers.

        Raises ``Refused`` if the worker may not join.
        """
        if isinstance(message, Hello):
            return self._hello(peer, message, now_ns)
        member = self._members.of(peer, message.worker)
        if member is None:
            return [(peer, Unknown(job=self._job))]
        member.heard_ns = now_ns
        match message:
            case ProfileReport():
                self._profile(member, message, now_ns)
            case SamplesReport():
                self._samples(member, message, now_ns)
            case Status():
                self._status(member, message, now_ns)
            case Staged():
                self._issuer.answered(member.name, message)
            case Adopted():
                self._issuer.adopted(member.name, message.number, message.iteration)
            case Bye():
                self._leave(member, _GOODBYE, now_ns)
        return []

    @property
    def plan_in_force(self) -> Plan | None:
        """The last plan that was issued, once all workers have adopted it; None until then."""
        return self._issuer.in_force

    def was_deaf(self, time_ns: int) -> None:
        """Nobody could be heard for ``time_ns``, which therefore is no worker's silence."""
        for member in self._members.present:
            member.heard_ns += time_ns

    def tick(self, now_ns: int, heard_all: bool = True) -> list[Order]:
        """Handles workers that have become silent, and returns the plans that are due.

        ``heard_all``: ``receive`` got all that has arrived. Otherwise, nobody counts as silent.
        """
        for member in self._members.present:
            if heard_all and member.is_silent(now_ns):
                self._leave(member, "silent", now_ns)
        return self._issuer.tick(self._members.present, now_ns)

    def close(self) -> None:
        """Logs the outcome of the last plan, as far as it is known."""
        self._issuer.tell_outcome(final=True)

    def _hello(self, peer: bytes, hello: Hello, now_ns: int) -> list[Send]:
        before = self._members.named(hello.worker)
        same = before is not None and before.hello.client == hello.client
        if before is not None and before.present and not same and not before.is_silent(now_ns):
            raise Refused("the worker is here already", hello.worker)
        if before is None and self._members.count >= _MOST_WORKERS:
            raise Refused("too many workers", hello.worker)
        for other in self._members.present:
            if other.hello.policy != hello.policy and other.name != hello.worker:
                raise Refused("another policy", f"{hello.policy} of {hello.worker}")
        known = before is not None and before.present
        start = self._members.start
        self._members.join(peer, hello, now_ns)
        if self._members.start != start:
            self._issuer.restarted()
        if not known:
            fields = {"client", "workers", "policy", "settings", "iteration", "plan"}
            self._record("joined", worker=hello.worker, **hello.model_dump(include=fields))
            self._issuer.want(f"{hello.worker} joined", now_ns)
        elif hello.plan < self._issuer.number:
            self._issuer.want(f"{hello.worker} is back without the plan", now_ns)
        self._issuer.number = max(self._issuer.number, hello.plan)
        return [(peer, Welcome(job=self._job, controller=self._identity))]

    def _profile(self, member: Member, report: ProfileReport, now_ns: int) -> None:
        profile = report.profile
        if profile.number <= member.profile_number:
            return
        member.profile, member.profile_number = profile, profile.number
        self._record(
            "profile",
            worker=member.name,
            number=profile.number,
            tensors=len(profile.tensors),
            size_bytes=sum(tensor.size_bytes for tensor in profile.tensors),
            forward_ns=profile.forward_ns,
            backward_ns=profile.backward_ns,
        )
        self._issuer.want(f"profile {profile.number} of {member.name}", now_ns)

    def _samples(self, member: Member, report: SamplesReport, now_ns: int) -> None:
        member.samples = report.samples
        changed = self._issuer.link_changed(self._members.present)
        if changed is not None:
            self._issuer.want(changed, now_ns, came=False)
        logged_ns = self._samples_logged_ns.get(member.name)
        if logged_ns is None or now_ns - logged_ns >= _SAMPLES_LOGGED_NS:
            self._samples_logged_ns[member.name] = now_ns
            samples = [sample.model_dump(mode="json") for sample in report.samples]
            self._record("samples", worker=member.name, samples=samples)

    def _status(self, member: Member, status: Status, now_ns: int) -> None:
        member.reach(status.iteration, now_ns)
        member.partition_bytes = status.partition_bytes
        member.busy = status.busy
        for reason, count in status.refused.items():
            if count > member.refused.get(reason, 0):
                member.refused[reason] = count
                self._record("refused", by=member.name, reason=reason, count=count)
        if status.took and member.start == self._members.start:
            self._issuer.took(member.name, status.took, now_ns)
            changed = self._issuer.host_changed(self._members.present, now_ns)
            if changed is not None:
                self._issuer.want(changed, now_ns, came=False)

    def _leave(self, member: Member, how: str, now_ns: int) -> None:
        self._members.leave(member, with_goodbye=how == _GOODBYE)
        self._record("left", worker=member.name, how=how, iteration=member.iteration)
        self._issuer.left(member.name)
        self._issuer.want(f"{member.name} left", now_ns)
