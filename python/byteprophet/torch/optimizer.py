"""``DistributedOptimizer``: gives any optimizer averaged gradients and per-layer waits.

The optimizer that is passed in stays the same object, but its class is replaced by a subclass. So
its state, its hooks and existing learning-rate schedulers continue to work, and every access to the
optimizer goes through the front.
"""

from __future__ import annotations

import functools
import itertools
import os
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from byteprophet.errors import UserError
from byteprophet.job.other_model import refuse_second
from byteprophet.job.owners import parse_weights
from byteprophet.job.staleness import NO_DELAYS, steps_by_name
from byteprophet.job.strategy import ALL_REDUCE, BYTEPS, DDP, FSDP2, MIXED
from byteprophet.job.strategy_file import Used
from byteprophet.observe.strategy_recording import record_given
from byteprophet.runtime_settings import OWNERS, RuntimeSettings
from byteprophet.torch import collectives, lifecycle
from byteprophet.torch.front import other_synchronisers, stopping
from byteprophet.torch.front.backward_rules import SharedRules
from byteprophet.torch.front.cast import changes_of, compression_of, fuses
from byteprophet.torch.front.front import Front
from byteprophet.torch.front.optimizer_class import Distributed, make_distributed
from byteprophet.torch.front.view_step import is_elementwise, needs_closure
from byteprophet.torch.live_fronts import live_fronts
from byteprophet.torch.record import stop_unasked
from byteprophet.torch.regions.install import install
from byteprophet.torch.regions.root import at_first_forward
from byteprophet.torch.retuning.between_steps import BetweenSteps
from byteprophet.torch.retuning.given_strategy import given_strategy
from byteprophet.torch.retuning.make import between_steps
from byteprophet.torch.sync import basics
from byteprophet.torch.sync.make import make_synchroniser
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors import reads
from byteprophet.torch.tensors.naming import (
    Names,
    check_named,
    name_parameters,
    names_for_later,
    optimizer_parameters,
)
from byteprophet.torch.tensors.sparse import SparseParameters

_exchanged_by_torch: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_compared = itertools.count()  # parameters that have taken rank 0's values


class Uncompressed:
    """No compression, the default. It has the interface of ``Compression``'s members."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, None]:
        """Return ``tensor`` itself and no context."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, _context: None) -> Tensor:
        """Return ``tensor`` itself."""
        return tensor


def is_settled(optimizer: Any) -> bool:
    """Whether the search for the buckets of a distributed ``optimizer`` has come to an end.

    With servers, there are none, and DistributedDataParallel does not search.
    """
    front: Front | None = getattr(optimizer, "_front", None)
    return front is None or basics.with_servers() or front.settled


def _refuse_distributed(optimizer: Optimizer) -> None:
    if isinstance(optimizer, Distributed) or optimizer in _exchanged_by_torch:
        raise ValueError("this optimizer is distributed already")


def _refuse_closure(base: type[Optimizer]) -> None:
    if needs_closure(base):
        raise ValueError(
            f"{base.__name__} evaluates its closure several times per step, which cannot be "
            "distributed; use another optimizer"
        )


def distribute(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    compression: Any,
    backward_passes_per_step: int,
    *,
    model: nn.Module | None,
    separable: bool | None,
    synchroniser: Synchroniser,
    settings: RuntimeSettings,
    between: BetweenSteps | None = None,
    accumulation: int = 1,
    rules: SharedRules | None = None,
    sparse: Container[Tensor] = (),
    staleness: Mapping[str, int] = NO_DELAYS,
    local_steps: int = 0,
    given: Used | None = None,
) -> Optimizer:
    """Give ``optimizer`` a front that uses ``synchroniser``; see ``DistributedOptimizer``.

    ``rules`` decide which gradients are sent, and when (``front/backward_rules.py``). ``sparse``
    has the parameters whose gradients are sparse.
    ``staleness`` has the delays of averages, in steps, by parameter. After every ``local_steps``
    steps, parameters are averaged; 0: gradients are. ``given``: the strategy in the file
    ``settings.strategy``, if it has one.
    """
    base = type(optimizer)
    _refuse_distributed(optimizer)
    _refuse_closure(base)
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: must be at least 1")
    parameters = optimizer_parameters(optimizer)
    if named_parameters is not None:
        named_parameters = check_named(named_parameters)
    given_names = names_for_later(named_parameters or ())
    free = functools.partial(stopping.free_dropped, synchroniser, settings.timeout_s)
    taken = synchroniser.names
    named = _named(parameters, named_parameters, model, rules, taken, free)
    if given is not None:
        refuse_second(settings.strategy, given.model.places, [name for name, _ in named])
    if synchroniser.size > 1:
        other_synchronisers.refuse_others(optimizer, named, model)
    for other in live_fronts():
        other.release([parameter for _, parameter in named])
    front = Front(
        base,
        compression,
        backward_passes_per_step,
        synchroniser,
        settings,
        separable,
        between,
        accumulation,
        rules,
        sparse,
        staleness,
        local_steps,
    )
    _check_delayed(staleness, named)
    front.manage(named)
    stopping.register(front)
    if settings.debug:
        reads.watch()

    def name_later(new: Iterable[Tensor]) -> list[tuple[str, Tensor]]:
        names = given_names(new) or None  # without any, those of the model
        return _named(new, names, model, rules, taken, free, first_unnamed=len(parameters))

    make_distributed(optimizer, front, name_later)
    return optimizer


def _named(
    parameters: Iterable[Tensor],
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    model: nn.Module | None,
    rules: SharedRules | None,
    taken: Names,
    free: Callable[[], object],
    first_unnamed: int = 0,
) -> list[tuple[str, Tensor]]:
    """Those of an optimizer's ``parameters`` that its front manages, with their names."""
    if rules is not None:
        named_parameters = rules.named(parameters)
        parameters = [parameter for _, parameter in named_parameters]
    return name_parameters(parameters, named_parameters, model, taken, first_unnamed, free)


def _check_delayed(staleness: Mapping[str, int], named: Sequence[tuple[str, Tensor]]) -> None:
    missing = min(staleness.keys() - {name for name, _ in named}, default=None)
    if missing is not None:
        raise UserError(f"staleness: this optimizer has no parameter {missing!r}")


def _refuse_sparse(parameters: Iterable[Tensor], sparse: Container[Tensor], path: str) -> None:
    if any(parameter in sparse for parameter in parameters):
        raise UserError(f"{path}: local SGD cannot average parameters with sparse gradients")


def _join_servers(parameters: Sequence[Tensor]) -> None:
    """Join BytePS, for a script without servers, whose ranks start with rank 0's parameters."""
    lifecycle.init_once()
    first = [(f"{next(_compared)}", parameter.detach()) for parameter in parameters]
    collectives.broadcast_parameters(first, 0, prefix="byteprophet.first.")


def DistributedOptimizer(  # noqa: N802 (BytePS' name for it)
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Uncompressed,
    backward_passes_per_step: int = 1,
    *,
    model: nn.Module | None = None,
    sync: str = "byteps",
    separable: bool | None = None,
    fusion: int | str = "planned",
    strategy: str | os.PathLike[str] | None = None,
    owners: Sequence[int] | None = None,
    sparse: Iterable[Tensor] = (),
) -> Optimizer:
    """Let ``optimizer`` average gradients over all ranks, during backward and the next forward.

    A parameter without a gradient contributes zeros. Only ``sync="ddp"`` refuses it, in ``step()``.

    Args:
        optimizer: any optimizer whose ``step()`` does not need a closure. One of another class than
            those of ``torch.optim`` may evaluate a closure several times; all ranks must do so
            equally often.
        named_parameters: what ``model.named_parameters()`` returns, with the same names on every
            rank. By default, the names are those of ``model`` if it is given, else numbers. There
            may be parameters among them that ``add_param_group()`` adds later.
        compression: a member of ``Compression``.
        backward_passes_per_step: the number of backward passes that add to a gradient before it is
            sent.
        model: the model. It supplies names if ``named_parameters`` is not given. It is what
            ``"fsdp2"`` shards, and whose gradients ``"ddp"`` exchanges; without it, both take the
            first model in a forward pass that has the optimizer's parameters.
        sync: how gradients are averaged over all ranks. ``"byteps"`` uses servers.
            ``"allreduce"``, ``"dear"`` and ``"dear-planned"`` use the ranks of torch.distributed's
            default group, without servers (docs/allreduce.md). All ranks then start with rank 0's
            parameters. ``"ddp"`` does so, too, but leaves the exchange to torch's
            DistributedDataParallel, and updates everything in ``step()``. ``"fsdp2"`` lets torch's
            ``fully_shard`` shard the model, its gradients and the optimizer's state over the ranks.
        separable: whether the optimizer updates every parameter independently, and changes nothing
            in its parameter groups. The default is True for the classes in ``torch.optim`` and
            False for others, whose ``step()`` then waits for all gradients.
        fusion: without servers, how gradients form buckets. ``"planned"``: by a plan made from
            measurements of the first iterations. A number: neighbours of up to this many bytes;
            with ``"ddp"``, ``bucket_cap_mb`` in bytes, which is 25 MiB otherwise.
            ``"tuned"``: neighbours, with a size that is searched. ``"near-layer"``: four layers
            per bucket.
        strategy: the path of a strategy file (docs/formats.md), which replaces ``sync``, ``fusion``
            and ``owners``; with servers, it also says where gradients go, and in which partitions.
            It may send some to servers, and others over a mesh of the ranks (docs/strategies.md).
            It may cast gradients while they travel, in place of ``compression``, compress single
            ones (docs/compression.md), and accumulate them over several steps (docs/optimizer.md).
            It may delay averages, or average parameters in place of gradients (docs/staleness.md).
            The job must have been started with or without servers, as the strategy needs. The
            default is ``BYTEPROPHET_STRATEGY``.
        owners: without servers, how much of each gradient every rank sums and, if sharded, updates:
            one weight for each rank. A rank with a slow link should own less. The default is
            ``BYTEPROPHET_OWNERS``, or else equal weights.
        sparse: without servers, parameters whose gradients are sparse tensors, on every rank
            (docs/sparse.md). Those of ``model``'s embeddings with ``sparse=True`` are known, and so
            are all of SparseAdam.

    Returns:
        ``optimizer`` itself, which now also has ``synchronize()``, ``skip_synchronize()``,
        ``no_sync()``, ``finish()``, ``set_backward_passes_per_step()``, ``sharded_state_dict()``,
        which returns this rank's part of the state (with ``"ddp"``, all of it), and
        ``load_sharded_state_dict()``, which loads that on the same rank of a job of the same size.

    Raises:
        ValueError: the optimizer needs a closure, names are bad, ``sync`` is unknown, or it cannot
            average sparse gradients.
        UserError: ``strategy`` or ``owners`` do not fit the job, or the script compresses
            gradients that ``strategy`` casts.
        RuntimeError: another synchroniser (DistributedDataParallel, FSDP, DeepSpeed, Horovod,
            upstream BytePS) handles the same gradients. The first forward or backward may raise
            this, too.
    """
    if fusion == "near-layer" and named_parameters is None and model is None:
        raise ValueError(
            "fusion='near-layer': layers are known by their parameters' names: give model= or "
            "named_parameters="
        )
    base = type(optimizer)
    elementwise = separable is not False and is_elementwise(optimizer, base)
    settings = RuntimeSettings.from_environment()
    if strategy is not None:
        settings = replace(settings, strategy=os.fspath(strategy))
    given = given_strategy(settings.strategy, sync)
    if owners is not None:
        weights = tuple(owners)
    else:
        weights = parse_weights(settings.owners, OWNERS) if settings.owners else ()
    parameters = optimizer_parameters(optimizer)
    if given is not None:
        if given.strategy.runtime == BYTEPS and sync != BYTEPS:
            _join_servers(parameters)
        elif given.strategy.runtime == MIXED and sync != BYTEPS:
            lifecycle.init_once()
        sync, fusion, weights = given.strategy.runtime, "planned", given.strategy.owners
    elif sync == BYTEPS and basics.without_servers():
        raise ValueError(
            f"sync={sync!r}: this job has no servers: give sync='dear-planned', or start it with "
            "servers"
        )
    if settings.region_costs:
        weights = ()  # of the recorded ranks, and this one only measures its model
    if sync in (DDP, FSDP2):
        if settings.region_costs:
            sync = ALL_REDUCE
        else:
            found = _by_torch(
                sync,
                optimizer,
                named_parameters,
                compression,
                backward_passes_per_step,
                model,
                fusion,
                weights,
                given,
                settings,
            )
            _exchanged_by_torch.add(found)
            if given is not None:
                _install(given, model, parameters, settings.strategy)
            return found
    distributed: Any = synchronised(
        optimizer,
        named_parameters,
        compression,
        backward_passes_per_step,
        model=model,
        separable=separable,
        sync=sync,
        elementwise=elementwise,
        fusion=fusion,
        given=given,
        weights=weights,
        settings=settings,
        sparse=SparseParameters(base, model, sparse),
    )
    if settings.region_costs:
        from byteprophet.torch.regions.probe import measure_and_end

        names = distributed._front.parameter_names()
        own = [(names[id(each)], each) for each in parameters]
        measure_and_end(optimizer, own, settings, model, shardable=elementwise)
    elif given is not None:
        _install(given, model, parameters, settings.strategy)
    return optimizer


def _install(given: Used, model: nn.Module | None, parameters: Sequence[Tensor], path: str) -> None:
    """Let the model of ``parameters`` compute as the strategy in the file ``path`` says."""
    strategy = given.strategy
    if not strategy.changes_model:
        return
    if model is not None:
        install(model, strategy, path)
    else:
        at_first_forward(parameters, lambda found: install(found, strategy, path))


def _by_torch(
    sync: str,
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    compression: Any,
    passes: int,
    model: nn.Module | None,
    fusion: int | str,
    weights: tuple[int, ...],
    given: Used | None,
    settings: RuntimeSettings,
) -> Optimizer:
    """Torch's own exchange: DistributedDataParallel's or FSDP2's, which most jobs do not import."""
    _refuse_distributed(optimizer)
    _refuse_closure(type(optimizer))
    if not fuses(compression):
        raise UserError(f"compression: sync={sync!r} takes none; DDP takes a strategy that casts")
    if weights:
        raise UserError(f"owners: sync={sync!r} knows no owners of gradients")
    if sync == FSDP2:
        from byteprophet.torch.fully_sharded import shard

        if fusion != "planned":
            raise UserError(f"fusion: sync={sync!r} has units, which a strategy may choose")
        return shard(
            optimizer, named_parameters, model=model, passes=passes, given=given, settings=settings
        )
    from byteprophet.torch.in_place import exchange_in_place

    return exchange_in_place(
        optimizer,
        named_parameters,
        model=model,
        passes=passes,
        fusion=fusion,
        given=given,
        settings=settings,
    )


def synchronised(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    compression: Any,
    backward_passes_per_step: int,
    *,
    model: nn.Module | None,
    separable: bool | None,
    sync: str,
    elementwise: bool,
    fusion: int | str,
    given: Used | None,
    weights: tuple[int, ...],
    settings: RuntimeSettings,
    rules: SharedRules | None = None,
    sparse: Container[Tensor] = (),
) -> Optimizer:
    """Make a synchroniser, and give ``optimizer`` a front that uses it.

    ``DistributedOptimizer``, ``make_synchroniser`` and ``distribute`` describe the arguments.
    """
    options: dict[str, object] = {
        "strategy": None if given is None else given.digest,
        "compression": getattr(compression, "__name__", type(compression).__name__),
        "backward_passes_per_step": backward_passes_per_step,
    }
    parameters = optimizer_parameters(optimizer)
    if rules is not None:
        parameters = [parameter for _, parameter in rules.named(parameters)]
    changes = changes_of(given, compression, parameters)
    compression = compression_of(given, compression, settings.strategy)
    if changes.local_sgd:
        elementwise = False  # every rank has the whole state
        _refuse_sparse(parameters, sparse, settings.strategy)
    synchroniser = make_synchroniser(
        sync,
        elementwise,
        fusion,
        settings.timeout_s,
        options,
        parameters[0].device.type if parameters else "cpu",
        settings.fusion_bytes if fuses(compression) else 0,
        given,
        settings.strategy,
        weights,
        changes,
        sparse,
        gives_values=rules is None,
    )
    if synchroniser.size == 1:
        settings = replace(settings, overlap=False)  # nothing is sent
    stop_unasked()  # from now on, the front's iterations are recorded
    if sync not in (BYTEPS, MIXED):
        lifecycle.observe_ranks(synchroniser.rank, synchroniser.size)
    changed = changes.changes_gradients or bool(changes.staleness)
    if given is not None and (sync == MIXED or (sync == BYTEPS and changed)):
        record_given(given, synchroniser.rank)
    return distribute(
        optimizer,
        named_parameters,
        compression,
        backward_passes_per_step,
        model=model,
        separable=separable,
        synchroniser=synchroniser,
        settings=settings,
        between=between_steps(sync, synchroniser, settings, fusion, given),
        accumulation=changes.accumulation,
        rules=rules,
        sparse=sparse,
        staleness=steps_by_name(changes.staleness),
        local_steps=changes.local_sgd,
        given=given,
    )


def flush(optimizer: Optimizer) -> None:
    """Wait until no update of ``optimizer`` is outstanding.

    Does nothing if it is not a distributed optimizer.
    """
    if isinstance(optimizer, Distributed):
        optimizer.finish()
