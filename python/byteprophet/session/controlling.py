"""Makes the controller's client that a worker's environment asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from byteprophet import _core, schedulers
from byteprophet._plugin import Plugin, wanted_scheduler
from byteprophet.errors import UserError
from byteprophet.observe.observer import Consumer
from byteprophet.session.controller_address import VARIABLE, controller_of
from byteprophet.session.job import SessionJob
from byteprophet.session.monitoring import process_monitor

if TYPE_CHECKING:
    from byteprophet.control.client import Identity

KEYS = "BYTEPROPHET_CONTROLLER_KEYS"


def make_consumer(
    environment: Mapping[str, str], plugin: Plugin, job: SessionJob
) -> Consumer | None:
    """A client, or None if there is no controller. Raises ``UserError`` for an invalid variable."""
    address = controller_of(environment)
    if not address:
        return None
    # Imported here, so that a job without a controller does not spend time on pydantic.
    from byteprophet.control.client import Client, Feeds
    from byteprophet.control.keys import read_keys
    from byteprophet.control.messages import Sample
    from byteprophet.monitor.processor import ProcessorUse

    def samples() -> list[Sample]:
        monitor = process_monitor()
        found = () if monitor is None else (*monitor.links(), *monitor.samples())
        return [
            Sample(
                server=one.server,
                direction="push" if one.direction == "push" else "pull",
                bandwidth_bps=one.estimate.bandwidth_bps,
                spread_bps=one.estimate.spread_bps,
                message_cost_ns=one.estimate.message_cost_ns,
                delay_ns=one.estimate.delay_ns,
            )
            for one in found
            if one.estimate.bandwidth_bps
        ]

    directory = environment.get(KEYS)
    if not directory:
        raise UserError(f"{VARIABLE}={address}: {KEYS} must name the directory of the job's keys")
    keys = read_keys(Path(directory), "worker")
    feeds = Feeds(profile=lambda: job.found.profile, samples=samples, busy=ProcessorUse().share)
    return Client(_identity(environment, job), address, keys, plugin, job.names, feeds)


def _identity(environment: Mapping[str, str], job: SessionJob) -> Identity:
    from byteprophet.control.client import Identity

    policy = wanted_scheduler(dict(environment)) or schedulers.STOCK
    settings, _ = schedulers.resolve(
        policy,
        _core.parse_settings(environment.get("BYTEPROPHET_SETTINGS", "")),
        int(environment["BYTEPS_PARTITION_BYTES"]),
    )
    host, port = environment.get("DMLC_PS_ROOT_URI"), environment.get("DMLC_PS_ROOT_PORT")
    if not host or not port:
        raise UserError(
            f"{VARIABLE}={controller_of(environment)}: needs DMLC_PS_ROOT_URI and "
            "DMLC_PS_ROOT_PORT, by which the controller knows the job; unset it for a worker "
            "without servers"
        )
    worker = environment.get("BYTEPROPHET_ROLE") or f"worker-{environment['DMLC_WORKER_ID']}"
    return Identity(
        job=f"{host}:{port}",
        worker=worker,
        workers=job.size // int(environment.get("BYTEPS_LOCAL_SIZE", "1")),
        policy=policy,
        settings=settings,
    )
