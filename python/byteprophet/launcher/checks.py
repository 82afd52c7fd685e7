"""Refuses jobs that cannot work, before anything is started."""

from __future__ import annotations

import fcntl
import math
import os
import random
import shutil
import socket
import struct
from collections.abc import Mapping
from itertools import pairwise

from byteprophet.errors import UserError
from byteprophet.input_files import whole_number
from byteprophet.launcher.environment import SAID_OTHERWISE, told_environment
from byteprophet.launcher.spec import WEEK_S, JobSpec
from byteprophet.schedulers import DEFAULT, MAX_PARTITION_BYTES, PLANNED

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"
# Ports below the range from which Linux takes ports for outgoing connections.
_FREE_PORTS = range(20000, 32000)
_MOST_ROLES = 1 << 16
_MOST_RANKS_OF_A_HOST = 1 << 10  # without servers
_MOST_LOCAL_RANKS = 64  # the host device's limit (native/byteps/host_device/local_group.h)
_SIOCGIFADDR = 0x8915  # see netdevice(7)

# Modes of BytePS that fail or compute wrong results: variable -> what happens.
_BROKEN_MODES = {
    "BYTEPS_ENABLE_ASYNC": "BytePS' asynchronous mode fails (its server has no merged tensor)",
    "BYTEPS_SERVER_ENGINE_BLOCKING": "BytePS' blocking server fails (it has no merged tensor)",
    "BYTEPS_SERVER_ENABLE_SCHEDULE": "BytePS' server scheduling can give wrong sums",
}


def check_counts(workers: int = 0, servers: int = 0) -> None:
    """Raises ``UserError`` for more workers or servers than a job can have."""
    for name, count in {"workers": workers, "servers": servers}.items():
        if count > _MOST_ROLES:
            raise UserError(f"{name} {count}: a job has at most {_MOST_ROLES}")


def check_spec(spec: JobSpec, environment: Mapping[str, str]) -> None:
    """Raises ``UserError`` unless ``spec`` is valid. ``check_command`` checks its command."""
    for name, count in {"workers": spec.workers, "local ranks": spec.local_ranks}.items():
        if count < 1:
            raise UserError(f"{name} {count}: a job needs at least one")
    check_counts(spec.workers, spec.servers)
    most = _MOST_RANKS_OF_A_HOST if spec.all_reduce else _MOST_LOCAL_RANKS
    if spec.local_ranks > most:
        raise UserError(f"local ranks {spec.local_ranks}: a worker has up to {most}")
    if spec.workers * spec.local_ranks > _MOST_ROLES:
        raise UserError(
            f"local ranks {spec.local_ranks}: {spec.workers} workers with so many have more than "
            f"{_MOST_ROLES} ranks, the most that a job has"
        )
    if spec.max_restarts < 0:
        raise UserError(f"restarts {spec.max_restarts}: must be 0 or more")
    if spec.servers < 0:
        raise UserError(f"servers {spec.servers}: must be 0 (all-reduce without BytePS) or more")
    if spec.all_reduce:
        _check_all_reduce(spec)
    if math.isnan(spec.timeout_s) or spec.timeout_s <= 0:
        raise UserError(f"timeout {spec.timeout_s:g}: must be a positive number of seconds")
    if not 0 <= spec.limits.grace_s <= WEEK_S:
        raise UserError(
            f"grace {spec.limits.grace_s:g}: must be a number of seconds from 0 to {WEEK_S:.0f}"
        )
    if spec.partition_bytes is not None and not 0 < spec.partition_bytes <= MAX_PARTITION_BYTES:
        raise UserError(
            f"partition bytes {spec.partition_bytes}: must be from 1 to {MAX_PARTITION_BYTES}"
        )
    if spec.port is not None and not 0 < spec.port < 65536:
        raise UserError(f"port {spec.port}: must be between 1 and 65535")
    own_rates = spec.worker_bandwidth_bps or spec.server_bandwidth_bps
    limited = spec.bandwidth_bps is not None or own_rates or spec.steps
    if limited and not spec.namespaces:
        raise UserError("a bandwidth needs namespaces: without them, roles share one network")
    _check_rates("worker", spec.worker_bandwidth_bps, spec.workers)
    _check_rates("server", spec.server_bandwidth_bps, spec.servers)
    _check_steps(spec)
    if spec.controller and spec.scheduler not in PLANNED:
        raise UserError(f"scheduler {spec.scheduler} uses no plans: it needs no controller")
    if spec.interface is not None and spec.namespaces:
        raise UserError(f"interface {spec.interface!r}: hosts in namespaces have their own")
    for name, field in SAID_OTHERWISE.items():
        if name in spec.environment:
            raise UserError(f"environment: {name}: the launcher sets it from {field}: use that")
    if not spec.all_reduce:
        _check_modes(environment)
        _check_local_ranks(spec.local_ranks, environment)
    _check_text(spec, environment)
    if not spec.command or not spec.command[0]:
        raise UserError("no command: what the workers run comes after --")


def _check_rates(role: str, rates_bps: Mapping[int, int], count: int) -> None:
    """Raises ``UserError`` for a rate of a role that is not there, and for what is no rate."""
    for index, rate_bps in rates_bps.items():
        if not 0 <= index < count:
            has = f"has 0 to {count - 1}" if count else "has none"
            raise UserError(f"bandwidth of {role} {index}: there is no such {role}, this job {has}")
        if rate_bps < 1:
            raise UserError(f"bandwidth of {role} {index}: {rate_bps} bit/s is not a rate")


def _check_steps(spec: JobSpec) -> None:
    """Raises ``UserError`` for steps that are out of order or would change nothing."""
    if spec.steps and len(spec.worker_bandwidth_bps) == spec.workers:
        raise UserError(
            f"step {spec.steps[0]}: every worker has a bandwidth of its own, which stays"
        )
    for before, after in pairwise(spec.steps):
        for at, then in ((before.at_s, after.at_s), (before.at_update, after.at_update)):
            if at is not None and then is not None and then < at:
                raise UserError(f"step {after}: comes before step {before}; give them in order")


def _check_text(spec: JobSpec, environment: Mapping[str, str]) -> None:
    """Raises ``UserError`` for text that is not UTF-8, because config.toml cannot contain it."""
    told = [("command", word) for word in spec.command]
    told += [("directory", str(spec.directory)), *told_environment(environment).items()]
    for name, value in told:
        if any("\ud800" <= letter <= "\udfff" for letter in value):  # Python's form of other bytes
            raise UserError(f"{name} {value!r}: is not UTF-8 text; rename it")


def _check_all_reduce(spec: JobSpec) -> None:
    """Raises ``UserError`` for options that only exist with BytePS."""
    without = "without servers there is no BytePS"
    if spec.scheduler != DEFAULT:
        raise UserError(f"scheduler {spec.scheduler}: {without}, and nothing to schedule")
    if spec.settings or spec.partition_bytes is not None:
        raise UserError(f"settings of a scheduler: {without}, and nothing to schedule")
    if spec.controller:
        raise UserError(f"controller: {without}, and nothing to plan")


def _check_modes(environment: Mapping[str, str]) -> None:
    for name, what in _BROKEN_MODES.items():
        if environment.get(name, "").strip() not in ("", "0"):
            raise UserError(f"{name}={environment[name]}: {what}; unset it")


def _check_local_ranks(local_ranks: int, environment: Mapping[str, str]) -> None:
    """Raises ``UserError`` for values with which BytePS would sum wrongly, crash or hang."""
    switch = environment.get("BYTEPS_PCIE_SWITCH_SIZE", str(local_ranks))
    if (whole_number(switch) or 0) < local_ranks:
        raise UserError(
            f"BYTEPS_PCIE_SWITCH_SIZE={switch}: with more than one PCIe switch per worker BytePS "
            "can give wrong sums; unset it"
        )
    group = environment.get("BYTEPS_NCCL_GROUP_SIZE", "1")
    if (whole_number(group) or 0) < 1:
        raise UserError(f"BYTEPS_NCCL_GROUP_SIZE={group}: must be a whole number from 1 on")
    roots = environment.get("BYTEPS_REDUCE_ROOTS", "0").split(",")
    ranks = range(local_ranks)
    if not all(whole_number(root) in ranks for root in roots):
        raise UserError(
            f"BYTEPS_REDUCE_ROOTS={','.join(roots)}: must be local ranks, 0 to {local_ranks - 1}, "
            "with commas between them"
        )


def check_command(spec: JobSpec, environment: Mapping[str, str]) -> None:
    """Raises ``UserError`` unless this host has the directory and the program of the workers."""
    if not spec.directory.is_dir():
        raise UserError(f"directory {spec.directory}: there is no such directory")
    program = spec.command[0]
    if "/" in program:
        path = spec.directory / program
        found = path.is_file() and os.access(path, os.X_OK)
    else:
        found = shutil.which(program, path=environment.get("PATH")) is not None
    if not found:
        raise UserError(f"command {program!r}: there is no such program, or it is not executable")


def interface_address(interface: str | None) -> str:
    """The IPv4 address that roles use: that of ``interface``, or loopback's for None.

    Raises ``UserError`` if there is no such interface or it has no IPv4 address.
    """
    if interface is None:
        return LOOPBACK
    there = [name for _, name in socket.if_nameindex()]
    if interface not in there:
        raise UserError(f"interface {interface!r}: there are {', '.join(there)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("256s", interface.encode())
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
        except OSError:
            raise UserError(f"interface {interface!r} has no IPv4 address") from None
    return socket.inet_ntoa(answer[20:24])


def root_port(port: int | None, address: str) -> int:
    """Returns ``port``, or a free port if it is None.

    Raises ``UserError`` if ``port`` is not free on ``address``, or if no free port is found.
    """
    if port is None:
        for candidate in random.sample(_FREE_PORTS, 50):
            if _busy(candidate, address) is None:
                return candidate
        raise UserError(f"no free port on {address}: 50 were tried; give one with --port")
    reason = _busy(port, address)
    if reason is not None:
        raise UserError(f"port {port} is in use on {address}: {reason}; choose another, or none")
    return port


def _busy(port: int, address: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As in ZeroMQ: lingering connections of an earlier job do not matter, but listeners do.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return None
