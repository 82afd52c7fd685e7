"""A small cluster on one machine, out of anonymous namespaces.

    host 0                switch (a network namespace of its own)             host 1
    eth0 10.87.0.1 ---- port0 --- bridge --- port1 ---------------- eth0 10.87.0.2

Each host has its own network and mount namespace: its own loopback, its own /dev/shm. Nothing of
it is visible on the machine's own network, and nothing has a name that could be left behind (see
holder.py): when the process that made a cluster ends, in whatever way, the cluster is gone.

A limited host's link is throttled by ``tbf`` at both ends, so that each direction has the rate:
at eth0 what the host sends, at its port what it receives. ``tbf`` counts Ethernet frames: of each
1514 bytes, 1448 are TCP payload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import final

from byteprophet.errors import UserError
from byteprophet.network import tools
from byteprophet.network.holder import Holder
from byteprophet.network.permission import (
    enter_command,
    entered_namespaces,
    unshare_command,
    why_not_now,
)
from byteprophet.network.rate import PAYLOAD_SHARE

INTERFACE = "eth0"
"""Of every host."""
_SUBNET = "10.87.0"
_MAX_HOSTS = 253

# Four of the largest segments TCP hands to a device at once (64 KiB). With a burst of one, tbf
# splits each of them into frames, which costs several times the CPU and disturbs what is measured.
BURST_BYTES = 256 << 10
PAYLOAD_BURST_BYTES = int(BURST_BYTES * PAYLOAD_SHARE)
# How long a full queue takes to drain, on top of the burst. Too short, and TCP loses packets: with
# 5 ms, one stream to a host at 200 mbit/s retransmitted 60 packets a second; with 20 ms, one or two
# streams none from 200 mbit/s to 1 gbit/s, at 95.6% of the rate as payload. 50 ms brought no more,
# and what queues here delays all that comes after it, which no scheduler can undo.
_LATENCY = "20ms"
# Linux' default, whatever this machine's is: figures from two machines should be comparable. With
# BBR every connection stops for 200 ms in every 10 s, to measure its round trip (PROBE_RTT), which
# cost one iteration in eleven a sixth of its time.
_CONGESTION_CONTROL = "cubic"


@dataclass(frozen=True)
class HostSpec:
    """A host to make: ``rate_bps`` limits both directions of its link, None does not."""

    name: str
    rate_bps: int | None = None


@dataclass(frozen=True)
class Host:
    """A host of a running cluster."""

    name: str
    address: str
    pid: int  # of the process that holds its namespaces
    join: tuple[str, ...]  # the start of a command line that enters them

    def enter(self, command: Sequence[str], directory: Path | None = None) -> list[str]:
        """``command`` as a command line that runs it on this host, in ``directory``.

        The process that is started becomes the command (no process in between). Entering a mount
        namespace moves to its root directory, so give ``directory`` wherever that matters.
        """
        change = [] if directory is None else ["env", f"--chdir={directory}"]
        return [*self.join, "--net", "--mount", "--", *change, *command]

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Those that ``enter`` enters, as paths, in this order."""
        return entered_namespaces(self.pid)


def check_hosts(count: int) -> None:
    """UserError where a cluster has not so many."""
    if count > _MAX_HOSTS:
        raise UserError(f"{count} hosts: a cluster of namespaces has up to {_MAX_HOSTS}")


@final
class Cluster:
    """A context manager that makes the hosts and removes them; ``hosts`` is in the order asked."""

    def __init__(self, specs: Sequence[HostSpec]) -> None:
        check_hosts(len(specs))
        self._specs = tuple(specs)
        self._holders: list[Holder] = []
        self._stack = ExitStack()
        self._switch_pid = 0
        self.hosts: tuple[Host, ...] = ()

    def __enter__(self) -> Cluster:
        """Makes everything; UserError with the reason where that is not permitted."""
        with ExitStack() as undo:
            self._build(undo)
            self._stack = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def pids(self) -> frozenset[int]:
        """The holders' processes, for whoever ends all other processes of a job."""
        return frozenset(holder.pid for holder in self._holders)

    def set_rate(self, names: Sequence[str], rate_bps: int) -> None:
        """Limits both directions of the links of these hosts to ``rate_bps`` from now on.

        What is queued stays queued. May be called by any thread. UserError if ``tc`` fails.
        """
        chosen = [(index, host) for index, host in enumerate(self.hosts) if host.name in names]
        ports = [_throttle(f"port{index}", rate_bps, "replace") for index, _ in chosen]
        _batch([*enter_command(self._switch_pid), "--net", "--"], "tc", ports)
        for _, host in chosen:
            inside = [*enter_command(host.pid), "--net", "--"]
            _batch(inside, "tc", [_throttle(INTERFACE, rate_bps, "replace")])

    def _hold(
        self, undo: ExitStack, name: str, unshare: Sequence[str], *setup: Sequence[str]
    ) -> Holder:
        holder = Holder(name, unshare, setup)
        undo.callback(holder.close)
        self._holders.append(holder)
        return holder

    def _build(self, undo: ExitStack) -> None:
        try:
            switch = self._hold(undo, "switch", unshare_command())
            switch.wait_ready()
        except UserError as error:
            raise UserError(f"namespaces: {why_not_now() or error}") from None
        # All hosts live in the switch's user namespace: it owns both ends of every cable.
        unshare = [tools.require("unshare"), "--net", "--mount", "--propagation", "private", "--"]
        if "--user" in unshare_command():
            unshare = [*enter_command(switch.pid), "--", *unshare]
        options = "mode=1777,nosuid,nodev"
        mount_shm = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", "/dev/shm"]  # noqa: S108
        holders = [self._hold(undo, spec.name, unshare, mount_shm) for spec in self._specs]
        for holder in holders:
            holder.wait_ready()
        self.hosts = tuple(
            Host(spec.name, f"{_SUBNET}.{index + 1}", holder.pid, tuple(enter_command(holder.pid)))
            for index, (spec, holder) in enumerate(zip(self._specs, holders, strict=True))
        )
        self._switch_pid = switch.pid
        self._cable(lambda pid: [*enter_command(pid), "--net", "--"], switch.pid)

    def _cable(self, inside: Callable[[int], list[str]], switch_pid: int) -> None:
        """Connects and throttles; ``inside(pid)`` starts a command in that process' network."""
        links = ["link add name bridge0 type bridge", "link set dev bridge0 up"]
        queues = []
        for index, host in enumerate(self.hosts):
            links.append(
                f"link add name port{index} type veth peer name {INTERFACE} netns {host.pid}"
            )
            links.append(f"link set dev port{index} master bridge0 up")
            rate_bps = self._specs[index].rate_bps
            if rate_bps is not None:
                queues.append(_throttle(f"port{index}", rate_bps))
        _batch(inside(switch_pid), "ip", links)
        _batch(inside(switch_pid), "tc", queues)
        for spec, host in zip(self._specs, self.hosts, strict=True):
            addresses = ["link set dev lo up", f"addr add {host.address}/24 dev {INTERFACE}"]
            if spec.rate_bps is not None:
                _batch(inside(host.pid), "tc", [_throttle(INTERFACE, spec.rate_bps)])
            up = [f"link set dev {INTERFACE} up", _congestion_control(host.address)]
            _batch(inside(host.pid), "ip", [*addresses, *up])


def _congestion_control(address: str) -> str:
    """The route to the other hosts, anew, with TCP's usual algorithm."""
    return (
        f"route replace {_SUBNET}.0/24 dev {INTERFACE} src {address} congctl {_CONGESTION_CONTROL}"
    )


def _throttle(device: str, rate_bps: int, verb: str = "add") -> str:
    limit = f"rate {rate_bps}bit burst {BURST_BYTES} latency {_LATENCY}"
    return f"qdisc {verb} dev {device} root tbf {limit}"


def _batch(inside: Sequence[str], program: str, lines: Sequence[str]) -> None:
    """Runs ``lines`` in one process: starting one per line is most of what a cluster costs."""
    if not lines:
        return
    script = "".join(f"{line}\n" for line in lines)
    failure = tools.run([*inside, tools.require(program), "-batch", "-"], script)
    if failure is not None:
        raise UserError(f"namespaces: {program} failed: {failure}")
