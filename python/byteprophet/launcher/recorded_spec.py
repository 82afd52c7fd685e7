"""Reads the job of a run directory, so that it can be run again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.launcher.spec import GRACE_S, JobSpec, Limits
from byteprophet.network.steps import parse_step
from byteprophet.schedulers import DEFAULT, PLANNED


def spec_of_run(config: Mapping[str, Any], run_directory: Path) -> JobSpec:
    """The job that ``config``, the ``config.toml`` of a run, describes, for ``run_directory``.

    A file that does not say whether there was a controller is of a version that started one for
    every scheduler that uses plans. Raises ``UserError``, which names the missing or wrong field.
    """
    try:
        servers, scheduler = config["servers"], config.get("scheduler", DEFAULT)
        return JobSpec(
            command=tuple(config["command"]),
            run_directory=run_directory,
            workers=config["workers"],
            local_ranks=config.get("local_ranks", 1),
            servers=servers,
            scheduler=scheduler,
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
            controller=config.get("controller", servers > 0 and scheduler in PLANNED),
            ranks=config.get("ranks", False),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"config.toml does not describe a job that can be run: {error}") from None
