"""DistributedDataParallel whose gradients our synchronisers exchange, or with a strategy's buckets.

``construct`` runs in place of the constructor of torch's class in scripts that do not mention
byteprophet (``_autoload.py``). If ``BYTEPROPHET_SYNC`` is set, our synchronisers exchange the
model's gradients (``torch/ddp``). If ``BYTEPROPHET_STRATEGY`` names a file, its runtime exchanges
them, which may be DistributedDataParallel itself with the strategy's buckets. The model then
computes in the strategy's regions. If the job is recorded, so is the model. What does not fit ends
the process with one line and status 2, because the script knows nothing of byteprophet.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, distributed, nn
from torch.nn import parallel
from torch.optim import Optimizer

from byteprophet.errors import UserError, one_line
from byteprophet.job.owners import parse_weights
from byteprophet.job.strategy import AUTO, BYTEPS, DDP, DEAR_PLANNED, OURS, SYNCS
from byteprophet.job.strategy_file import Used, read_strategy_file
from byteprophet.observe import recording
from byteprophet.runtime_settings import OWNERS, SYNC, RuntimeSettings
from byteprophet.torch import lifecycle
from byteprophet.torch.ddp import models, patches
from byteprophet.torch.ddp.backward import ModelRules, as_its_reducer
from byteprophet.torch.ddp.optimizers import note_all, optimizers_of
from byteprophet.torch.ddp.trial import process_trial
from byteprophet.torch.front.backward_rules import SharedRules
from byteprophet.torch.optimizer import Uncompressed, synchronised
from byteprophet.torch.record import record_unasked
from byteprophet.torch.recording.ddp_buckets import reduced_parameters
from byteprophet.torch.regions.install import install
from byteprophet.torch.regions.root import at_first_call
from byteprophet.torch.retuning.given_ddp_strategy import construct_with
from byteprophet.torch.retuning.given_strategy import given_strategy
from byteprophet.torch.sync import basics


class DistributedDataParallel(parallel.DistributedDataParallel):
    """torch's DistributedDataParallel, except that our synchronisers exchange the gradients.

    ``step()`` returns at once, and the next forward waits for each layer's parameters.

    Args:
        module: the module to wrap.
        arguments: further arguments of torch's class.
        sync: ``"allreduce"``, ``"dear"``, ``"dear-planned"``, ``"byteps"``, or ``"auto"``, which
            keeps the faster one of ``"dear-planned"`` and torch's own exchange (docs/ddp.md). If
            ``BYTEPROPHET_STRATEGY`` names a file, its runtime takes the place of ``sync``.
        options: further arguments of torch's class.

    Raises:
        ValueError: there is no such ``sync``, the job was started without the servers that it
            needs, or with servers that it does not use, or it is ``"auto"`` in a job that is
            recorded or has a strategy.
    """

    def __init__(
        self, module: nn.Module, *arguments: Any, sync: str = "dear-planned", **options: Any
    ) -> None:
        with ends_in_one_line():
            wrong = why_not(sync)
        if wrong:
            raise ValueError(f"sync={sync!r}: {wrong}")
        with own_constructor():
            super().__init__(module, *arguments, **options)
        with ends_in_one_line():
            used = _given(RuntimeSettings.from_environment())
        sync = sync if used is None else _ours(used)
        if sync:
            exchange_by(self, sync)
        else:
            record_unasked(self)


def why_not(sync: str) -> str:
    """Why ``sync`` cannot exchange gradients in this job; "" if it can."""
    if sync not in SYNCS:
        return f"must be {', '.join(SYNCS)}"
    if sync == BYTEPS and not basics.with_servers():
        return f"this job has no servers; start it with servers, or use {', '.join(OURS)}"
    if sync != BYTEPS and basics.with_servers():
        return f"this job has servers; start it without servers, or use {BYTEPS}"
    if sync == AUTO and (strategy := RuntimeSettings.from_environment().strategy):
        return f"{strategy} says what exchanges gradients"
    if sync == AUTO and os.environ.get(recording.VARIABLE):
        return "record a job with the sync that it has chosen"
    return ""


_by_hand = 0  # constructors of our class that are running


@contextlib.contextmanager
def own_constructor() -> Iterator[None]:
    """Within this context, ``construct`` only constructs."""
    global _by_hand
    _by_hand += 1
    try:
        yield
    finally:
        _by_hand -= 1


def construct(
    plain: Callable[..., None],
    model: parallel.DistributedDataParallel,
    *arguments: Any,
    **options: Any,
) -> None:
    """Construct ``model`` by ``plain``, its class' own constructor."""
    with ends_in_one_line():
        settings = RuntimeSettings.from_environment()
        used = _given(settings)
        sync = settings.sync if used is None else _ours(used)
        wrong = settings.sync and why_not(settings.sync)
        if wrong:
            raise UserError(f"{SYNC}={settings.sync}: {wrong}")
        if used is None or sync:
            plain(model, *arguments, **options)
        else:
            construct_with(used, settings, plain, model, arguments, options)
        if settings.region_costs:
            _measure_regions(model, settings)
            return
        if used is not None and used.strategy.changes_model:
            _compute_as(model, used, settings.strategy)
        if _by_hand:
            return
        if sync:
            exchange_by(model, sync)
        else:
            record_unasked(model)


def _given(settings: RuntimeSettings) -> Used | None:
    """The strategy of this job, if it has one. Raises ``UserError`` if it does not fit."""
    path = settings.strategy
    if not path:
        return None
    used = read_strategy_file(Path(path))
    runtime = used.strategy.runtime
    if runtime == DDP:
        return used
    if runtime not in (BYTEPS, *OURS):
        raise UserError(f"{path}: runtime {runtime!r} needs a script of DistributedOptimizer")
    wrong = why_not(runtime)
    if wrong:
        raise UserError(f"{path}: runtime {runtime!r}: {wrong}")
    return used


def _ours(used: Used) -> str:
    """Which of our synchronisers ``used`` asks for; "": DistributedDataParallel itself."""
    runtime = used.strategy.runtime
    return "" if runtime == DDP else runtime


def _measure_regions(model: parallel.DistributedDataParallel, settings: RuntimeSettings) -> None:
    """Measure the module of ``model``, the only rank, as if it were alone.

    Its buckets are counted apart. With ``gradient_as_bucket_view``, these are the gradients, which
    then count twice.
    """
    from byteprophet.torch.regions.probe import measure_model_and_end

    note_all()
    if settings.region_memory:
        if model.static_graph:
            raise UserError("memory: what an iteration takes under static_graph=True is not known")
        model.require_backward_grad_sync = False
    reduced = reduced_parameters(model.module)
    measure_model_and_end(
        model.module,
        lambda: _only_optimizer([*reduced.values()]),
        [*reduced.items()],
        settings,
        shardable=False,
        reducer_bytes=sum(each.nbytes for each in reduced.values()),
    )


def _only_optimizer(parameters: Sequence[Tensor]) -> Optimizer:
    """The optimizer of ``parameters``; ``UserError`` if they have none, or several."""
    found = optimizers_of([id(each) for each in parameters]).own
    if len(found) != 1:
        raise UserError(
            f"memory: the parameters of DistributedDataParallel are in {len(found)} optimizers: "
            "what one takes can be measured"
        )
    return found[0]


def _compute_as(model: parallel.DistributedDataParallel, used: Used, path: str) -> None:
    """Let the module of ``model`` compute as a strategy says, from its first call on.

    Before that, the script may compile it, which is then refused.
    """

    def found(called: nn.Module) -> None:
        with ends_in_one_line():
            install(model.module, used.strategy, path, called)

    at_first_call(model.module, found)


def exchange_by(
    model: parallel.DistributedDataParallel,
    sync: str,
    compression: Any = Uncompressed,
    rules_of: Callable[..., ModelRules] = as_its_reducer,
) -> None:
    """Let the synchroniser ``sync`` exchange the gradients of ``model``, if there are other ranks.

    ``compression`` is that of ``DistributedOptimizer``. ``rules_of`` makes the rules by which its
    backward passes send gradients (``models.Public``).
    """
    if distributed.get_world_size() == 1:
        record_unasked(model)
        return
    trial = process_trial() if sync == AUTO else None
    chosen = DEAR_PLANNED if sync == AUTO else sync

    def distribute(optimizer: Optimizer, rules: SharedRules) -> None:
        with ends_in_one_line():
            _distribute(chosen, compression, optimizer, rules)

    patches.install()
    models.add(model, models.Public(chosen, distribute, record_unasked, rules_of, trial))


def _distribute(sync: str, compression: Any, optimizer: Optimizer, rules: SharedRules) -> None:
    """Give ``optimizer`` a front. No bucket is sharded, because a script may read on one rank."""
    settings = RuntimeSettings.from_environment()
    if sync == BYTEPS:
        lifecycle.init_once()  # parameters are equal already
    given = given_strategy(settings.strategy, sync)
    weights = parse_weights(settings.owners, OWNERS) if settings.owners else ()
    if given is not None:
        sync, weights = given.strategy.runtime, given.strategy.owners
        if given.strategy.accumulation > 1:
            raise UserError(f"{settings.strategy}: only DistributedOptimizer accumulates steps")
        if given.strategy.compressors:
            raise UserError(
                f"{settings.strategy}: only DistributedOptimizer compresses gradients, because its "
                "state has what was not sent of them"
            )
        if given.strategy.staleness:
            raise UserError(f"{settings.strategy}: only DistributedOptimizer delays averages")
        if given.strategy.local_sgd:
            raise UserError(f"{settings.strategy}: only DistributedOptimizer does local SGD")
    synchronised(
        optimizer,
        None,  # the rules have names
        compression,
        1,
        model=None,
        separable=None,
        sync=sync,
        elementwise=False,
        fusion="planned",
        given=given,
        weights=weights,
        settings=settings,
        rules=rules,
    )


@contextlib.contextmanager
def ends_in_one_line() -> Iterator[None]:
    """End the process with one line if it does not fit what the user asked for."""
    try:
        yield
    except UserError as error:
        print(f"byteprophet: error: {one_line(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
