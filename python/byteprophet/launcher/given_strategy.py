"""A job under a strategy from a file: whether it has servers, how many, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.job.strategy import BYTEPS, DDP, FSDP2, MIXED, OURS
from byteprophet.job.strategy_file import Used, check_servers, read_strategy_file
from byteprophet.launcher.spec import JobSpec
from byteprophet.runtime_settings import STRATEGY, STRATEGY_MODEL, SYNC
from byteprophet.schedulers import DEFAULT, PLANNED

SERVERS = 1
"""How many servers a job has if nothing says how many."""

_ABLE = (BYTEPS, DDP, *OURS, FSDP2, MIXED)


def given_file(environment: Mapping[str, str], directory: Path) -> Path | None:
    """The strategy file that a job's ``environment`` names, whose workers start in ``directory``.

    None: it names none.
    """
    name = environment.get(STRATEGY) or environment.get(STRATEGY_MODEL)
    return directory / name if name else None


def strategy_now(path: Path) -> Used | None:
    """The strategy in ``path``; None if there is none that can be read here."""
    try:
        return read_strategy_file(path)
    except UserError:
        return None


def servers_under(path: Path, used: Used, given: int | None) -> int:
    """How many servers a job under the strategy in ``path`` has.

    ``given``: as --servers says; None: it was left out. UserError if that does not fit.
    """
    runtime = used.strategy.runtime
    if runtime not in (BYTEPS, MIXED):
        if given:
            raise UserError(f"--servers {given}: {runtime} (--strategy {path}) has no servers")
        return 0
    if given == 0:
        raise UserError(f"--strategy {path}: it needs servers; leave out --servers 0")
    return given or used.servers or SERVERS


def check_runtime(where: str, used: Used) -> None:
    """Raise ``UserError`` if no job can be given a strategy of such a runtime.

    ``where``: what names the strategy in the message.
    """
    runtime = used.strategy.runtime
    if runtime not in _ABLE:
        raise UserError(f"{where}: {runtime} cannot be given a strategy; {', '.join(_ABLE)} can")


def with_strategy(spec: JobSpec, used: Used, path: Path) -> JobSpec:
    """``spec`` under the strategy ``used`` in the file ``path``.

    A strategy for a script without servers says how many it starts; any other one takes those of
    ``spec``. A policy that uses plans has a controller, unless ``spec`` does without one although
    its own policy uses plans. If our synchronisers take over the script's DistributedDataParallel
    (``SYNC``), they are those of the strategy. Raises ``UserError`` if no job can be given such a
    strategy.
    """
    check_runtime(f"--strategy {path}", used)
    runtime = used.strategy.runtime
    told = {**spec.environment, STRATEGY: str(path.absolute()), STRATEGY_MODEL: ""}
    if used.policy is not None and not used.servers and not used.strategy.is_told_to_workers:
        # Frameworks that know no strategies run it, too; our front only checks its model.
        told[STRATEGY_MODEL], told[STRATEGY] = told[STRATEGY], ""
    if told.get(SYNC):
        told[SYNC] = BYTEPS if used.policy is not None else runtime if runtime in OURS else ""
    if used.policy is None:
        return replace(
            spec,
            servers=0,
            scheduler=DEFAULT,
            settings={},
            partition_bytes=None,
            server_bandwidth_bps={},
            controller=False,
            ranks=False,
            environment=told,
        )
    if runtime == MIXED and spec.local_ranks > 1:
        raise UserError(
            f"--strategy {path}: a mesh beside servers needs workers of one process, not of "
            f"{spec.local_ranks} local ranks"
        )
    does_without = not spec.all_reduce and spec.scheduler in PLANNED and not spec.controller
    servers = used.servers or spec.servers
    if not servers:
        raise UserError(f"--strategy {path}: it needs servers")
    check_servers(f"--strategy {path}", used.strategy, servers)
    return replace(
        spec,
        servers=servers,
        scheduler=used.policy.name,
        settings=used.policy.settings,
        partition_bytes=used.strategy.partition_bytes,
        controller=used.policy.name in PLANNED and not does_without,
        ranks=spec.ranks or used.servers > 0 or runtime == MIXED,
        environment=told,
    )
