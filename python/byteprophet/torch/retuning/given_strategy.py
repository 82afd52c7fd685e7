"""Makes one optimizer use the buckets and their order from a strategy file.

They are adopted between two steps, as soon as all ranks have agreed on the order of the parameters.
Until then, buckets are made by size. All ranks have compared the digests of their files before.

Threads: the training thread calls everything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from byteprophet import _core, _plugin, schedulers
from byteprophet.allreduce.model import Order
from byteprophet.errors import UserError
from byteprophet.job.other_model import other_model, other_size
from byteprophet.job.strategy import BYTEPS, DDP, FSDP2, MIXED, OURS
from byteprophet.job.strategy_file import Used, check_servers, read_strategy_file
from byteprophet.torch.sync import basics

if TYPE_CHECKING:  # this import needs torch.distributed, and most jobs have no strategy
    from byteprophet.torch.sync.collective_synchroniser import CollectiveSynchroniser


_ABLE = (BYTEPS, *OURS, DDP, FSDP2, MIXED)


def given_strategy(path: str, sync: str) -> Used | None:
    """Read the strategy in ``path`` for an optimizer made with ``sync``; None if ``path`` is "".

    The strategy's runtime takes the place of ``sync``, also where one has servers and the other one
    has not. Raises ``UserError`` if the file cannot be read, or asks for what a strategy cannot
    change in a job that was started: whether it has servers, and then its policy and settings.
    """
    if not path:
        return None
    used = read_strategy_file(Path(path))
    runtime = used.strategy.runtime
    if runtime not in _ABLE:
        able = ", ".join(_ABLE)
        raise UserError(f"{path}: runtime {runtime!r}: an optimizer can only be given {able}")
    start = "byteprophet run --strategy starts such a job"
    if runtime in (BYTEPS, MIXED):
        if sync != BYTEPS and not basics.with_servers():
            raise UserError(f"{path}: it needs servers, and this job has none: {start}")
        if runtime == MIXED and not basics.with_ranks():
            raise UserError(
                f"{path}: workers must be ranks of torch.distributed, too, and these are not: "
                f"{start}"
            )
        _check_policy(path, used)
        check_servers(path, used.strategy, int(os.environ.get("DMLC_NUM_SERVER", "1")))
    elif sync == BYTEPS and not basics.without_servers():
        raise UserError(f"{path}: runtime {runtime!r} needs a job without servers: {start}")
    return used


def check_model(path: str, used: Used, sizes_bytes: Mapping[str, int]) -> None:
    """Raise ``UserError``, which names the first parameter that differs, if the model is another.

    ``sizes_bytes``: of the gradients of the model, by name. ``path`` is that of the strategy.
    """
    expected = {each.name: each.size_bytes for each in used.model.parameters}
    bucketed = {name for bucket in used.strategy.buckets for name in bucket.parameters}
    difference = ""
    for name, size_bytes in sizes_bytes.items():
        if name not in bucketed:
            difference = f"parameter {name!r} of this model is in none of its buckets"
        elif expected[name] != size_bytes:
            difference = other_size(name, expected[name], size_bytes)
        if difference:
            break
    else:
        missing = [name for name in expected if name in bucketed and name not in sizes_bytes]
        if missing:
            difference = f"parameter {missing[0]!r} is not in this model, or has sparse gradients"
    if difference:
        raise other_model(path, difference)


def _check_policy(path: str, used: Used) -> None:
    policy = used.policy
    name = _plugin.wanted_scheduler() or schedulers.STOCK
    overrides = _core.parse_settings(os.environ.get("BYTEPROPHET_SETTINGS", ""))
    settings, partition_bytes = schedulers.resolve(name, overrides)
    settings[schedulers.PARTITION] = partition_bytes
    asked = {} if policy is None else {**policy.settings}
    asked[schedulers.PARTITION] = used.strategy.partition_bytes
    if policy is None or policy.name != name or not asked.items() <= settings.items():
        raise UserError(
            f"{path}: its policy and settings are not those with which this job was started: use "
            "byteprophet run --strategy"
        )


class GivenStrategy:
    """Gives a strategy to one optimizer. ``BetweenSteps`` describes the methods.

    ``path`` is used in messages only.
    """

    def __init__(self, synchroniser: CollectiveSynchroniser, used: Used, path: str) -> None:
        self._synchroniser = synchroniser
        self._used = used
        self._path = path
        self.settled = False

    def declare(self) -> None:
        """Check that the model has the strategy's parameters.

        Raises ``UserError``, which names the first parameter that differs.
        """
        sizes = self._synchroniser.bucketing.sizes
        check_model(self._path, self._used, {name: size.size_bytes for name, size in sizes.items()})
        if not all(bucket.sharded for bucket in self._used.strategy.buckets):
            self._synchroniser.begin_whole()
        self.settled = False

    def restart(self) -> None:
        """Adopt the same buckets again."""
        self.settled = False

    def drain(self) -> None:
        """Do nothing: no messages are sent."""

    def after_step(self, owner: str, agreed: bool) -> None:
        """Adopt the buckets once, when all ranks have agreed on the order."""
        if not agreed or self.settled:
            return
        buckets = self._used.strategy.buckets
        places = {name: place for place, name in enumerate(self._synchroniser.bucketing.needed)}
        order = Order(
            tuple(bucket.reduce_place for bucket in buckets),
            tuple(bucket.gather_place for bucket in buckets),
            tuple(bucket.sharded for bucket in buckets),
        )
        groups = tuple(tuple(places[name] for name in bucket.parameters) for bucket in buckets)
        self._synchroniser.adopt(groups, order)
        self.settled = True
