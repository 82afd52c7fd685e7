"""Writes and reads a job's run directory: config.toml (as run), logs/, results/, summary.json."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tomli_w

from byteprophet.errors import JobFailed, NotWritten, UserError, warn
from byteprophet.input_files import parse_json, read_bytes
from byteprophet.launcher.given_strategy import given_file, strategy_now
from byteprophet.launcher.spec import JobResult, JobSpec
from byteprophet.whole_files import make_directory, write_whole

SCHEMA = 1
SUMMARY_BYTES = 1 << 16
"""Disk space that is kept free for summary.json during a job; enough for some hundred roles."""


def make_run_directory(parent: Path, label: str) -> Path:
    """Makes ``parent/<utc time>-<label>`` and returns its path. Adds a number if it exists."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{stamp}-{label}")[:100]
    for attempt in range(1, 1000):
        path = (parent / (name if attempt == 1 else f"{name}-{attempt}")).absolute()
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"run directory {path} cannot be made: {error.strerror}") from None
        return path
    raise UserError(f"run directory {parent / name}: there are too many of that name")


def prepare(
    spec: JobSpec,
    resolved: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    elsewhere: bool = False,
) -> None:
    """Makes the subdirectories and writes config.toml.

    ``resolved`` has the values that the job left open and the launcher chose. ``environment`` has
    the variables to record. It must not have all of the caller's variables, because they may
    contain secrets. ``elsewhere``: another launcher starts the roles, perhaps on other hosts.
    """
    for name in ("logs", "results"):
        make_directory(spec.run_directory / name)
    given = given_file(environment, spec.directory)
    used = None if given is None else strategy_now(given)
    config = {
        "schema": SCHEMA,
        "command": list(spec.command),
        "directory": str(spec.directory),
        "workers": spec.workers,
        "local_ranks": spec.local_ranks,
        "servers": spec.servers,
        "scheduler": None if spec.all_reduce else spec.scheduler,
        "controller": None if spec.all_reduce else spec.controller,
        "namespaces": spec.namespaces,
        "bandwidth_bps": spec.bandwidth_bps,
        "worker_bandwidth_bps": {
            str(index): rate_bps for index, rate_bps in sorted(spec.worker_bandwidth_bps.items())
        },
        "server_bandwidth_bps": {
            str(index): rate_bps for index, rate_bps in sorted(spec.server_bandwidth_bps.items())
        }
        or None,
        "steps": [str(step) for step in spec.steps],
        "interface": spec.interface,
        "ranks": spec.ranks or None,
        "timeout_s": spec.timeout_s,
        "grace_s": spec.limits.grace_s,
        "max_restarts": spec.max_restarts or None,
        "elsewhere": elsewhere or None,
        "strategy_digest": None if used is None else used.digest,
        **resolved,
        "environment": dict(environment),
    }
    text = tomli_w.dumps({key: value for key, value in config.items() if value is not None})
    write_whole(spec.run_directory / "config.toml", text)


def write_summary(path: Path, status: str, result: JobResult) -> JobResult:
    """Writes summary.json, which is at ``path``.

    ``status`` is done, failed, interrupted, or restarting: it has failed and is started again.

    Returns ``result``. If the file cannot be written, the returned result has ``failed``; a job
    that had already failed keeps its cause.
    """
    summary = {"schema": SCHEMA, "status": status, **dataclasses.asdict(result)}
    try:
        write_whole(path, json.dumps(summary, indent=2) + "\n")
    except NotWritten as error:
        if result.failed is None:
            return dataclasses.replace(
                result, exit_status=1, failed=f"the job is done, but {error}"
            )
        warn(str(error))
    return result


def read_worker_results(run_directory: Path) -> list[dict[str, Any]]:
    """The contents of results/worker-<rank>.json, which workers wrote, by rank.

    Raises ``JobFailed`` if a file is broken.
    """
    found: list[tuple[int, dict[str, Any]]] = []
    for path in (run_directory / "results").glob("worker-*.json"):
        rank = path.stem.removeprefix("worker-")
        try:
            content = parse_json(read_bytes(path))
        except UserError as error:
            raise JobFailed(str(error)) from None
        except ValueError as error:
            raise JobFailed(f"{path} is not JSON: {error}") from None
        if not rank.isdecimal() or not isinstance(content, dict):
            raise JobFailed(f"{path}: expected worker-<rank>.json with an object inside")
        found.append((int(rank), content))
    return [content for _, content in sorted(found, key=lambda pair: pair[0])]
