"""Checks the environment variables of a role before it joins a job.

BytePS' launcher, server and workers call this (patch 0043). Without it, they end in a stack trace
or wait for a job that cannot start. If variables are missing or wrong, each function ends the
process with one line that names them, and status 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_JOB = ("DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
_LOCAL = ("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")
_HIGHEST_PORT = 65535
_MOST = 2**31 - 1  # BytePS counts in int
# A Unix socket's path has 107 bytes, of which "/socket_send_nccl63" takes 19.
_LONGEST_SOCKET_PATH = 88


def check_launch(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    """Check those of any role that ``bpslaunch`` starts; a worker is to run ``command``."""
    _end_with(_why_not_launched(command, environment))


def check_server(environment: Mapping[str, str] = os.environ) -> None:
    """Check those of a server or the scheduler role."""
    _end_with(_why_no_server(environment))


def check_worker(environment: Mapping[str, str] = os.environ) -> None:
    """Check those of a training script that calls ``init()``."""
    _end_with(_why_no_worker(environment, _LOCAL))


def _why_not_launched(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    if environment.get("DMLC_ROLE") != "worker":
        return _why_no_server(environment, "worker")
    if not command:
        return "bpslaunch: no command: a worker needs one, e.g. bpslaunch python train.py"
    return _why_no_worker(environment, ())


def _why_no_server(environment: Mapping[str, str], *others: str) -> str | None:
    return (
        _missing(environment, ("DMLC_ROLE", "DMLC_NUM_WORKER", *_JOB))
        or _wrong_role(environment, ("scheduler", "server", *others))
        or _wrong_number(environment, "DMLC_NUM_WORKER", 1)
        or _wrong_job(environment)
        or _wrong_server_number(environment)
    )


def _wrong_server_number(environment: Mapping[str, str]) -> str | None:
    """A server may have a number; without, ps-lite numbers servers by their addresses."""
    if "DMLC_SERVER_ID" not in environment:
        return None
    return _wrong_index(environment, "DMLC_SERVER_ID", "DMLC_NUM_SERVER")


def _why_no_worker(environment: Mapping[str, str], local: Sequence[str]) -> str | None:
    forced = environment.get("BYTEPS_FORCE_DISTRIBUTED", "").strip() not in ("", "0")
    has_servers = forced or environment.get("DMLC_NUM_WORKER", "").strip() != "1"
    needed = ("DMLC_ROLE", *_JOB) if has_servers else ()
    return (
        _missing(environment, (*needed, "DMLC_NUM_WORKER", "DMLC_WORKER_ID", *local))
        or (_wrong_role(environment, ("worker",)) if has_servers else None)
        or _wrong_number(environment, "DMLC_NUM_WORKER", 1)
        or _wrong_index(environment, "DMLC_WORKER_ID", "DMLC_NUM_WORKER")
        or (_wrong_local_rank(environment) if local else None)
        or (_wrong_sockets(environment) if local else None)
        or (_wrong_job(environment) if has_servers else None)
    )


def _wrong_local_rank(environment: Mapping[str, str]) -> str | None:
    return _wrong_number(environment, "BYTEPS_LOCAL_SIZE", 1) or _wrong_index(
        environment, "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"
    )


def _wrong_sockets(environment: Mapping[str, str]) -> str | None:
    path = environment.get("BYTEPS_SOCKET_PATH")
    if path is None:
        return None
    if not Path(path).is_dir() or not os.access(path, os.W_OK | os.X_OK):
        return f"BYTEPS_SOCKET_PATH={path!r}: must be a directory that sockets can be made in"
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        return f"BYTEPS_SOCKET_PATH={path!r}: must be of {_LONGEST_SOCKET_PATH} bytes at most"
    return None


def _wrong_job(environment: Mapping[str, str]) -> str | None:
    return _wrong_number(environment, "DMLC_NUM_SERVER", 1) or _wrong_number(
        environment, "DMLC_PS_ROOT_PORT", 1, _HIGHEST_PORT
    )


def _missing(environment: Mapping[str, str], names: Sequence[str]) -> str | None:
    missing = [name for name in names if not environment.get(name, "").strip()]
    if not missing:
        return None
    if "DMLC_ROLE" in missing and environment.get("BYTEPROPHET_ROLE"):
        return (
            "this job of byteprophet run has no servers, and a script of BytePS needs them: leave "
            "out --servers 0, or give DistributedOptimizer a sync= without servers"
        )
    return (
        f"{', '.join(missing)}: not set, but needed to join a job; set the variables that "
        "BytePS documents and start the role with bpslaunch, or use byteprophet run"
    )


def _wrong_role(environment: Mapping[str, str], roles: Sequence[str]) -> str | None:
    role = environment["DMLC_ROLE"]
    if role in roles:
        return None
    return f"DMLC_ROLE={role!r}: must be {' or '.join(roles)} here"


def _wrong_index(environment: Mapping[str, str], name: str, count: str) -> str | None:
    """What is wrong with ``name``, an index below the number in ``count``, which is right."""
    most = int(environment[count]) - 1
    wrong = _wrong_number(environment, name, 0, most)
    return f"{wrong}, as {count} is {most + 1}" if wrong else None


def _wrong_number(
    environment: Mapping[str, str], name: str, least: int, most: int = _MOST
) -> str | None:
    text = environment[name].strip()
    if text.isascii() and text.isdecimal() and least <= int(text[:20]) <= most:
        return None
    limit = f"from {least}" if most == _MOST else f"from {least} to {most}"
    return f"{name}={text!r}: must be a whole number {limit}"


def _end_with(reason: str | None) -> None:
    if reason is not None:
        print(f"byteprophet: error: {reason}", file=sys.stderr)
        raise SystemExit(2)
