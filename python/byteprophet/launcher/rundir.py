"""A job's run directory: config.toml (as run), logs/, results/, summary.json."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tomli_w

from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher.spec import JobResult, JobSpec

SCHEMA = 1


def make_run_directory(parent: Path, label: str) -> Path:
    """Makes ``parent/<utc time>-<label>``, with a number where that exists; returns its path."""
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


def prepare(spec: JobSpec, resolved: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Makes the subdirectories and writes config.toml.

    ``resolved`` is what the launcher chose where the job left it open; ``environment`` what the
    job says about BytePS, which other variables of the caller (he may keep secrets there) are not.
    """
    for name in ("logs", "results"):
        (spec.run_directory / name).mkdir(parents=True, exist_ok=True)
    config = {
        "schema": SCHEMA,
        "command": list(spec.command),
        "directory": str(spec.directory),
        "workers": spec.workers,
        "local_ranks": spec.local_ranks,
        "servers": spec.servers,
        "scheduler": None if spec.all_reduce else spec.scheduler,
        "namespaces": spec.namespaces,
        "bandwidth_bps": spec.bandwidth_bps,
        "worker_bandwidth_bps": {
            str(index): rate_bps for index, rate_bps in sorted(spec.worker_bandwidth_bps.items())
        },
        "steps": [str(step) for step in spec.steps],
        "interface": spec.interface,
        "timeout_s": spec.timeout_s,
        **resolved,
        "environment": dict(environment),
    }
    text = tomli_w.dumps({key: value for key, value in config.items() if value is not None})
    (spec.run_directory / "config.toml").write_text(text, encoding="utf-8")


def write_summary(run_directory: Path, status: str, result: JobResult) -> None:
    """Writes summary.json; ``status`` is done, failed, or interrupted."""
    summary = {"schema": SCHEMA, "status": status, **dataclasses.asdict(result)}
    text = json.dumps(summary, indent=2) + "\n"
    (run_directory / "summary.json").write_text(text, encoding="utf-8")


def read_worker_results(run_directory: Path) -> list[dict[str, Any]]:
    """What workers wrote to results/worker-<rank>.json, by rank; JobFailed for a broken file."""
    found: list[tuple[int, dict[str, Any]]] = []
    for path in (run_directory / "results").glob("worker-*.json"):
        rank = path.stem.removeprefix("worker-")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise JobFailed(f"{path} is not JSON: {error}") from None
        if not rank.isdecimal() or not isinstance(content, dict):
            raise JobFailed(f"{path}: expected worker-<rank>.json with an object inside")
        found.append((int(rank), content))
    return [content for _, content in sorted(found, key=lambda pair: pair[0])]
