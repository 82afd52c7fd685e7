"""Reads the job of a run directory, so that it can be run again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.launcher.spec import GRACE_S, JobSpec, Limits
from byteprophet.network.steps import parse_step


def spec_of_run(config: Mapping[str, Any], run_directory: Path) -> JobSpec:
    """The job that ``config``, the ``config.toml`` of a run, describes, for ``run_directory``.

    Raises ``UserError``, which names the missing or wrong field.
    """
    try:
        return JobSpec(
            command=tuple(config["command"]),
            run_directory=run_directory,
            workers=config["workers"],
            local_ranks=config.get("local_ranks", 1),
            servers=config["servers"],
            scheduler=config.get("scheduler", "prophet"),
            settings=dict(config.get("settings", {})),
            partition_bytes=config.get("partition_bytes"),
            bandwidth_bps=config.get("bandwidth_bps"),
            worker_bandwidth_bps={
                int(index): rate for index, rate in config["worker_bandwidth_bps"].items()
            },
            server_bandwidth_bps={
                int(index): rate for index, rate in config.get("server_bandwidth_bps", {}).items()
            },
            steps=tuple(parse_step(step) for step in config.get("steps", ())),
            environment=dict(config["environment"]),
            directory=Path(config["directory"]),
            namespaces=config["namespaces"],
            interface=config.get("interface"),
            timeout_s=config["timeout_s"],
            limits=Limits(grace_s=config.get("grace_s", GRACE_S)),
            ranks=config.get("ranks", False),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"config.toml does not describe a job that can be run: {error}") from None
