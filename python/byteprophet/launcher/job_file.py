"""Job files: all that a role must know of its job, on whichever host it starts.

``byteprophet role`` reads one. Every host has the same file, so no role is told anything else but
its kind and its number. The file holds no secret. docs/formats.md describes it.
"""

from __future__ import annotations

import ipaddress
import math
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, parse_table, read_text, whole_number
from byteprophet.launcher.spec import GRACE_S, WEEK_S, JobSpec, Limits
from byteprophet.schedulers import DEFAULT

SCHEMA = 1
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_FIELDS = (
    "schema", "root", "command", "workers", "servers", "local_ranks", "scheduler", "settings",
    "partition_bytes", "directory", "run_directory", "environment", "timeout_s", "grace_s",
    "controller", "controller_keys", "restart", "max_restarts",
)  # fmt: skip


@dataclass(frozen=True)
class Address:
    """Where a role listens. ``host`` is an IPv4 address, or a name that leads to one."""

    host: str
    port: int

    @classmethod
    def parse(cls, name: str, value: object) -> Address:
        """Parse ``"10.0.0.1:9000"``; ``UserError`` names the field ``name``."""
        host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        number = whole_number(port) or 0
        if not 0 < number < 65536 or not (_is_address(host) or _is_name(host)):
            raise UserError(
                f"{name} {value!r}: use an IPv4 address and a port: 10.0.0.1:9000, or a host's "
                "name and a port"
            )
        return cls(host, number)

    def resolved(self, timeout_s: float | None) -> Address:
        """The same with an IPv4 address. Waits for a name that is not known yet.

        A pod's name is known only when the pod has an address. Raises ``UserError`` if the name
        does not become known within ``timeout_s``; None: there is no limit.
        """
        if _is_address(self.host):
            return self
        limit_s = math.inf if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        while True:
            try:
                found = socket.getaddrinfo(self.host, self.port, socket.AF_INET, socket.SOCK_STREAM)
                return Address(str(found[0][4][0]), self.port)
            except OSError as error:
                if time.monotonic() > deadline_s:
                    raise UserError(
                        f"{self.host}: this name led to no IPv4 address for "
                        f"{limit_s:.0f} s ({error.strerror}); BYTEPROPHET_START_TIMEOUT_S sets "
                        "how long it may take"
                    ) from None
            time.sleep(1)


def _is_address(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def _is_name(host: str) -> bool:
    return _NAME.fullmatch(host) is not None and any(letter.isalpha() for letter in host)


@dataclass(frozen=True)
class JobFile:
    """A job on several hosts.

    Attributes:
        spec: the job, as ``byteprophet run`` would start it on one machine.
        root: where the scheduler role listens, or rank 0 of a job without servers.
        controller: where the job's controller listens; None: there is none.
        controller_keys: the directory with its keys, on every host of a worker.
        mesh_key: a secret of the job's ranks, which is in no file; "": there is none.
    """

    spec: JobSpec
    root: Address
    controller: Address | None
    controller_keys: str
    mesh_key: str = ""


def read_job_file(path: Path) -> JobFile:
    """Read ``path``. Raises ``UserError``, which names the file and the field that is wrong."""
    return parse_job(read_text(path), str(path))


def parse_job(text: str, source: str) -> JobFile:
    """The job that ``text`` describes, as ``read_job_file`` reads it. Errors name ``source``."""
    table = parse_table(text, source)
    try:
        return _job(table)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def job_text(job: JobFile) -> str:
    """``job`` as the text of a job file. Paths are written as they are."""
    spec, controller = job.spec, job.controller
    fields = {
        "schema": SCHEMA,
        "root": f"{job.root.host}:{job.root.port}",
        "command": list(spec.command),
        "workers": spec.workers,
        "servers": spec.servers,
        "local_ranks": spec.local_ranks,
        "scheduler": spec.scheduler,
        "settings": dict(spec.settings),
        "partition_bytes": spec.partition_bytes,
        "directory": str(spec.directory),
        "run_directory": str(spec.run_directory),
        "environment": dict(spec.environment),
        "timeout_s": spec.timeout_s,
        "grace_s": spec.limits.grace_s,
        "controller": None if controller is None else f"{controller.host}:{controller.port}",
        "controller_keys": job.controller_keys or None,
        "restart": spec.restart or None,
        "max_restarts": spec.max_restarts or None,
    }
    return tomli_w.dumps({name: value for name, value in fields.items() if value is not None})


def _job(table: dict[str, Any]) -> JobFile:
    if not has_schema(table, SCHEMA):
        raise UserError(
            f"schema: must be {SCHEMA}; a file with another one is for another version of "
            "byteprophet: install the same on all hosts"
        )
    unknown = sorted(set(table) - set(_FIELDS))
    if unknown:
        raise UserError(f"{unknown[0]}: there is no such field; there are {', '.join(_FIELDS)}")
    command = table.get("command")
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise UserError("command: must be a list of words")
    if any("\0" in word for word in command):
        raise UserError("command: no word can contain a NUL")
    partition_bytes = table.get("partition_bytes")
    spec = JobSpec(
        command=tuple(command),
        run_directory=Path(_text(table, "run_directory", "runs/job")),
        workers=_whole(table, "workers", 1),
        servers=_whole(table, "servers", 0),
        local_ranks=_whole({"local_ranks": 1, **table}, "local_ranks", 1),
        scheduler=_text(table, "scheduler", DEFAULT),
        settings=_settings(table.get("settings", {})),
        partition_bytes=None if partition_bytes is None else _whole(table, "partition_bytes", 1),
        environment=_environment(table.get("environment", {})),
        directory=Path(_text(table, "directory", ".")),
        timeout_s=_seconds(table, "timeout_s", WEEK_S),
        limits=Limits(grace_s=_seconds(table, "grace_s", GRACE_S)),
        controller="controller" in table,
        restart=_whole({"restart": 0, **table}, "restart", 0),
        max_restarts=_whole({"max_restarts": 0, **table}, "max_restarts", 0),
    )
    controller = table.get("controller")
    keys = _text(table, "controller_keys", "")
    if (controller is None) != (not keys):
        raise UserError("controller and controller_keys: give both, or none")
    return JobFile(
        spec,
        Address.parse("root", table.get("root")),
        None if controller is None else Address.parse("controller", controller),
        keys,
    )


def _whole(table: Mapping[str, Any], name: str, least: int) -> int:
    value = table.get(name)
    if type(value) is not int or value < least:
        raise UserError(f"{name} {value!r}: must be a whole number from {least} on")
    return value


def _seconds(table: Mapping[str, Any], name: str, usual_s: float) -> float:
    value = table.get(name, usual_s)
    if type(value) not in (int, float):
        raise UserError(f"{name} {value!r}: must be a number of seconds")
    return float(value)


def _text(table: Mapping[str, Any], name: str, usual: str) -> str:
    value = table.get(name, usual)
    if not isinstance(value, str):
        raise UserError(f"{name} {value!r}: must be text")
    return value


def _settings(table: object) -> dict[str, int]:
    if not isinstance(table, dict):
        raise UserError("settings: must be a table")
    return {name: _whole(table, name, -(1 << 62)) for name in table}


def _environment(table: object) -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise UserError("environment: must be a table of texts")
    for name, value in table.items():
        if not name or "=" in name or "\0" in name + value:
            raise UserError(f"environment: {name!r}: there can be no such variable")
    return dict(table)
