"""What a job may use: hosts, their links in both directions, devices, and roles that they take.

A resource specification is a TOML file (docs/formats.md). It describes hosts as they are, one by
one, unlike the cluster of ``byteprophet simulate``, which describes a kind of machine by constants
with their uncertainty. Rates are those of links, as ``--bandwidth`` takes them, and not of payload.

Its numbers come from a person, from a recorded run (``resources_of_run``), or from the hosts
themselves (``byteprophet doctor --resources FILE``).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from byteprophet.digests import digest_of
from byteprophet.errors import UserError
from byteprophet.input_files import first_repeated, has_schema, parse_table, read_text
from byteprophet.job import Cluster, Costs, Host, Job
from byteprophet.job.strategy import BYTEPS, MIXED
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.monitor.samples import read_network
from byteprophet.network import PAYLOAD_SHARE, format_rate, parse_rate, payload_bps
from byteprophet.whole_files import write_whole
from byteprophet.workload.run_config import link_limits_bps, server_limits_bps

SCHEMA = 1
_MOST_HOSTS = 1 << 12
_COMMON = ("up", "down", "burst_bytes", "cores", "devices")
_OWN = (*_COMMON, "name", "address", "workers", "servers")
_TOP = ("schema", "source", "delay_ns", "message_cost_ns", "host", *_COMMON)
_MOST = 1 << 40


@dataclass(frozen=True)
class HostResources:
    """A host.

    Attributes:
        name: what messages call it.
        workers: how many workers it takes, 0 or 1.
        servers: how many servers, 0 or 1.
        up_bps: the rate of its link from it, in bits per second; None: not limited.
        down_bps: the same to it.
        cores: of its processor; None: not known.
        devices: accelerators; 0: workers compute on the processor.
        address: at which other hosts reach it; None: not known.
        burst_bytes: of payload, what its link lets pass at once after a pause, as a limiter does.
    """

    name: str
    workers: int = 1
    servers: int = 0
    up_bps: int | None = None
    down_bps: int | None = None
    cores: int | None = None
    devices: int = 0
    address: str | None = None
    burst_bytes: int = 0

    @property
    def link(self) -> Host:
        """Its link, by what it carries of payload."""
        rates_bps = payload_bps(self.up_bps) or 0, payload_bps(self.down_bps) or 0
        return Host(*rates_bps, self.burst_bytes)

    @property
    def slower_bps(self) -> int | None:
        """The rate of the slower direction; None: neither is limited."""
        return min((rate for rate in (self.up_bps, self.down_bps) if rate), default=None)


@dataclass(frozen=True)
class Resources:
    """``hosts``, and what messages cost between them; None: not known.

    ``delay_ns``: one way. ``message_cost_ns``: time of the sender's link per message. ``source``
    says where the numbers come from; it is not part of the digest.
    """

    hosts: tuple[HostResources, ...]
    delay_ns: int | None = None
    message_cost_ns: int | None = None
    source: str = ""

    @property
    def workers(self) -> tuple[HostResources, ...]:
        """The hosts of workers, in order of ranks."""
        return tuple(host for host in self.hosts if host.workers)

    @property
    def servers(self) -> tuple[HostResources, ...]:
        """The hosts of servers, in order of their numbers."""
        return tuple(host for host in self.hosts if host.servers)

    @property
    def digest(self) -> str:
        """Equal for equal resources."""
        content = [list(map(asdict, self.hosts)), self.delay_ns, self.message_cost_ns]
        return digest_of(json.dumps(content))

    def costs(self, known: Costs) -> Costs:
        """``known``, with what is known here in its place."""
        delay_ns = known.delay_ns if self.delay_ns is None else self.delay_ns
        cost_ns = known.message_cost_ns if self.message_cost_ns is None else self.message_cost_ns
        return replace(known, delay_ns=delay_ns, message_cost_ns=cost_ns)


def read_resources(path: Path) -> Resources:
    """Read ``path``, a file or the directory of a recorded run.

    Raises ``UserError``, which names the file, the host and the field.
    """
    if path.is_dir():
        return resources_of_run(Run(path))
    table = parse_table(read_text(path), str(path))
    try:
        return _resources(table)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def write_resources(path: Path, resources: Resources) -> None:
    """Write a file from which ``read_resources`` reads equal resources."""
    table: dict[str, Any] = {
        "schema": SCHEMA,
        "source": resources.source or None,
        "delay_ns": resources.delay_ns,
        "message_cost_ns": resources.message_cost_ns,
        "host": [_host_table(host) for host in resources.hosts],
    }
    text = tomli_w.dumps({name: value for name, value in table.items() if value is not None})
    write_whole(path, text)


def _host_table(host: HostResources) -> dict[str, Any]:
    table: dict[str, Any] = {
        "name": host.name,
        "workers": host.workers,
        "servers": host.servers,
        "up": format_rate(host.up_bps),
        "down": format_rate(host.down_bps),
        "burst_bytes": host.burst_bytes or None,
        "cores": host.cores,
        "devices": host.devices,
        "address": host.address,
    }
    return {name: value for name, value in table.items() if value is not None}


def resources_of_run(run: Run) -> Resources:
    """The hosts of a recorded run, one for each worker and server.

    A link's rate is the one to which it was limited; else what the network monitor estimated, if it
    took part; else what transfers were measured to carry.
    """
    config = run.config
    if config["local_ranks"] > 1:
        raise UserError(f"{run.directory}: workers of several local ranks share a link")
    cluster = measure_run(run).job.cluster
    monitored = _monitored_bps(run.directory)
    hosts = []
    groups = (
        ("worker", cluster.workers, link_limits_bps(config)),
        ("server", cluster.servers, server_limits_bps(config)),
    )
    for kind, measured, limits_bps in groups:
        for number, (link, limit_bps) in enumerate(zip(measured, limits_bps, strict=True)):
            seen = monitored.get(number, {}) if kind == "worker" else {}
            up_bps = limit_bps or seen.get("push") or link.up_bps
            down_bps = limit_bps or seen.get("pull") or link.down_bps
            hosts.append(
                HostResources(
                    f"{kind}-{number}",
                    workers=int(kind == "worker"),
                    servers=int(kind == "server"),
                    up_bps=_line_bps(up_bps),
                    down_bps=_line_bps(down_bps),
                    burst_bytes=link.burst_bytes if limit_bps else 0,
                )
            )
    costs = cluster.costs
    return Resources(tuple(hosts), costs.delay_ns, costs.message_cost_ns, f"run {run.directory}")


def _monitored_bps(directory: Path) -> dict[int, dict[str, int]]:
    """By rank and direction, the payload that the monitor saw; empty if there was none."""
    if not (directory / "network").is_dir():
        return {}
    return {
        worker.rank: {
            sample.direction: sample.estimate.bandwidth_bps
            for sample in worker.links
            if sample.estimate.bandwidth_bps
        }
        for worker in read_network(directory)
    }


def _line_bps(payload: int) -> int | None:
    """The rate of a link that carries so much payload; None: not limited."""
    if not payload:
        return None
    rate_bps = round(payload / PAYLOAD_SHARE)
    return rate_bps if payload_bps(rate_bps) == payload else rate_bps + 1


def this_host() -> HostResources:
    """The host on which this runs, as a worker on the link of its default route."""
    rate_bps = _interface_bps(_default_interface())
    return HostResources(
        socket.gethostname(),
        up_bps=rate_bps,
        down_bps=rate_bps,
        cores=len(os.sched_getaffinity(0)),
        devices=len(list(Path("/dev").glob("nvidia[0-9]*"))),
    )


def with_host(resources: Resources | None, host: HostResources) -> Resources:
    """``resources`` with ``host`` in place of the one of its name, or behind all others.

    What only people know of it stays: which roles it takes, and its address.
    """
    known = resources or Resources((), source="byteprophet doctor")
    names = [each.name for each in known.hosts]
    if host.name not in names:
        return replace(known, hosts=(*known.hosts, host))
    hosts = tuple(
        replace(host, workers=each.workers, servers=each.servers, address=each.address)
        if each.name == host.name
        else each
        for each in known.hosts
    )
    return replace(known, hosts=hosts)


def _default_interface() -> str | None:
    """The interface of the default route; None: there is none."""
    try:
        lines = Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    rows = (line.split() for line in lines)
    return next((row[0] for row in rows if len(row) > 1 and row[1] == "00000000"), None)


def _interface_bps(interface: str | None) -> int | None:
    """What the driver says of an interface; None: nothing, as of many virtual ones."""
    if interface is None:
        return None
    try:
        text = Path("/sys/class/net", interface, "speed").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) * 10**6 if text.isdecimal() and int(text) else None


def on_resources(job: Job, resources: Resources) -> Job:
    """``job`` on the links of ``resources``.

    A job with servers gets those of ``resources``, and places its gradients on them by hash if
    their number is another one. Raises ``UserError`` if the number of workers differs.
    """
    check_workers(job, resources)
    strategy, servers = job.strategy, tuple(host.link for host in resources.servers)
    if strategy.runtime not in (BYTEPS, MIXED):
        servers = ()
    elif not servers:
        raise UserError("the resources have no server, and the job was recorded with servers")
    elif len(servers) != job.servers:
        keys = tuple(replace(each, servers=()) for each in strategy.keys if each.partition_bytes)
        strategy = replace(strategy, keys=keys)
    mesh_costs = job.cluster.mesh_costs
    cluster = Cluster(
        tuple(host.link for host in resources.workers),
        servers,
        resources.costs(job.cluster.costs),
        None if mesh_costs is None else resources.costs(mesh_costs),
    )
    return replace(job, cluster=cluster, strategy=strategy)


def check_workers(job: Job, resources: Resources) -> None:
    """Raise ``UserError`` if ``resources`` have another number of workers than ``job``."""
    if len(resources.workers) != job.workers:
        raise UserError(
            f"the resources have {len(resources.workers)} worker(s), and the job has "
            f"{job.workers}: strategies are made for the recorded number of workers"
        )


def check_roles(resources: Resources) -> None:
    """Raise ``UserError`` if no job here can use ``resources``."""
    if not resources.workers:
        raise UserError("the resources have no host that takes a worker")
    both = next((host for host in resources.hosts if host.workers and host.servers), None)
    if both is not None:
        raise UserError(
            f"host {both.name!r} takes a worker and a server: they would share a link, and the "
            "launcher gives every role its own; servers on workers' hosts do what owners do "
            "(docs/strategies.md)"
        )


def _resources(table: Mapping[str, Any]) -> Resources:
    if not has_schema(table, SCHEMA):
        raise UserError(f"schema: must be {SCHEMA}")
    _refuse_unknown(table, _TOP)
    rows = table.get("host")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError("host: there must be a table [[host]] for each host")
    if len(rows) > _MOST_HOSTS:
        raise UserError(f"host: there may be at most {_MOST_HOSTS:,} hosts, not {len(rows):,}")
    common = {name: value for name, value in table.items() if name in _COMMON}
    hosts = tuple(_own_host(common, row, number) for number, row in enumerate(rows))
    twice = first_repeated(host.name for host in hosts)
    if twice is not None:
        raise UserError(f"host {twice}: there are two of this name")
    source = table.get("source", "")
    if not isinstance(source, str):
        raise UserError(f"source {source!r}: must be text")
    return Resources(
        hosts,
        _whole(table, "delay_ns", None),
        _whole(table, "message_cost_ns", None),
        source,
    )


def _own_host(common: Mapping[str, Any], row: Mapping[str, Any], number: int) -> HostResources:
    try:
        _refuse_unknown(row, _OWN)
        return _host({**common, **row})
    except UserError as error:
        raise UserError(f"host {row.get('name', number)}: {error}") from None


def _host(row: Mapping[str, Any]) -> HostResources:
    name, address = row.get("name"), row.get("address")
    if not isinstance(name, str) or not name:
        raise UserError("name: is needed")
    if address is not None and not isinstance(address, str):
        raise UserError(f"address {address!r}: must be text")
    workers, servers = _whole(row, "workers", None), _whole(row, "servers", 0)
    assert servers is not None
    if workers is None:
        workers = int(not servers)
    for role, count in (("workers", workers), ("servers", servers)):
        if count > 1:
            raise UserError(f"{role} {count}: roles of one host share its link: at most 1")
    return HostResources(
        name,
        workers,
        servers,
        _rate(row, "up"),
        _rate(row, "down"),
        _whole(row, "cores", None),
        _whole(row, "devices", 0) or 0,
        address,
        _whole(row, "burst_bytes", 0) or 0,
    )


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = min(set(table) - set(known), default=None)
    if unknown is not None:
        raise UserError(f"{unknown}: there is no such field; there are {', '.join(known)}")


def _rate(row: Mapping[str, Any], name: str) -> int | None:
    text = row.get(name, "unlimited")
    if not isinstance(text, str):
        raise UserError(f'{name} {text!r}: must be text, such as "1gbit"')
    return parse_rate(text, name)


def _whole(row: Mapping[str, Any], name: str, usual: int | None) -> int | None:
    value = row.get(name, usual)
    if value is not None and (type(value) is not int or not 0 <= value <= _MOST):
        raise UserError(f"{name} {value!r}: must be a whole number from 0 to {_MOST}")
    return value
