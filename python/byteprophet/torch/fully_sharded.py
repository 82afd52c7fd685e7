"""Optimizers of models that torch's FSDP2 shards: ``sync="fsdp2"``.

``fully_shard`` is applied to the script's model, unit by unit (``fsdp2/``). Each rank keeps a shard
of every parameter, of its gradient and of its state. The optimizer has the sharded parameters in
the place of its own. They are DTensors, so updates, clipping and norms are those of the whole.

With a strategy, its buckets are the units. Without, each block of the longest chain of equal blocks
is one (``job/units.py``).

Threads: the training thread.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Optimizer

from byteprophet.errors import UserError, tell
from byteprophet.job import Bucket, Strategy
from byteprophet.job.peak_memory import write_peak
from byteprophet.job.strategy import FSDP2
from byteprophet.job.strategy_file import Used
from byteprophet.job.units import block_units
from byteprophet.observe.strategy_recording import record_strategy
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.front import other_synchronisers
from byteprophet.torch.fsdp2 import replaced
from byteprophet.torch.fsdp2.checkpoints import ModelCheckpoints, OptimizerCheckpoints
from byteprophet.torch.fsdp2.group import Group
from byteprophet.torch.fsdp2.memory_probe import MemoryProbe
from byteprophet.torch.fsdp2.model import Order, ShardedModel
from byteprophet.torch.fsdp2.units import Unit, check_parameters, check_types, units_of
from byteprophet.torch.record import record_unasked
from byteprophet.torch.regions.root import at_first_forward
from byteprophet.torch.retuning.given_strategy import check_model
from byteprophet.torch.sync import same_start
from byteprophet.torch.tensors import module_calls
from byteprophet.torch.tensors.naming import check_named, optimizer_parameters
from byteprophet.torch.torch_exchange import Calls, check_group, give_calls, unknown_model

_SYNC = f"sync={FSDP2!r}"
_NEWEST = ("set_reduce_scatter_unused_params", "reset_iter_state")  # torch 2.13 has both


class _Sharding:
    """What ``optimizer`` becomes when its model is known: the optimizer of a sharded model.

    ``named``: names that the script has given. ``given``: the strategy in ``settings.strategy``.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        named: Sequence[tuple[str, Tensor]],
        given: Used | None,
        settings: RuntimeSettings,
    ) -> None:
        self.optimizer = optimizer
        self.held = False  # gradients stay on this rank
        self.sharded: ShardedModel | None = None  # also in a job of one rank
        self.checkpoints: OptimizerCheckpoints | None = None
        self._named = named
        self._given = given
        self._settings = settings

    def shard(self, model: nn.Module) -> ShardedModel:
        """Shard ``model``, and give the optimizer its sharded parameters.

        All ranks must call this. Raises ``UserError`` or ``RuntimeError`` if that is not possible,
        and leaves the model as it is then.
        """
        _refuse(model)
        parameters = [*model.named_parameters()]
        told = {id(each): name for name, each in self._named}
        names = {id(each): told.get(id(each), name) for name, each in parameters}
        named = [(names[id(each)], each) for _, each in parameters]
        self._check_optimizer(names)
        check_parameters(model, named)
        units, order = self._units(model, named, names)
        check_types(named, units, self._settings.strategy or _SYNC)
        options = {
            "strategy": None if self._given is None else self._given.digest,
            "units": [unit.names for unit in units],
        }
        group = Group(named, options, self._settings.timeout_s)
        same_start.take_first_ranks_values(named)
        is_first = group.rank == 0
        sizes = {name: each.nbytes for name, each in named}
        frozen = {name for name, each in named if not each.requires_grad}
        record = functools.partial(_record, units, sizes, frozen, group.number)

        def learned(order: Order) -> None:
            if is_first:
                record(order, 2)

        sharded = ShardedModel(model, units, names, group, order, learned)
        other_synchronisers.replaced.update(
            module for module in model.modules() if isinstance(module, FSDPModule)
        )
        if is_first:
            record(sharded.order, 1)
        for settings in self.optimizer.param_groups:
            settings["params"] = [sharded.replaced[id(each)] for each in settings["params"]]
            if settings.get("foreach", 0) is None and not settings.get("fused"):
                settings["foreach"] = True  # without, each DTensor costs 0.1 ms; the same bits
        for _, each in parameters:
            replaced.replace(each)
        ModelCheckpoints(sharded)
        # Pickle and copy ask the object first. Its class is the script's.
        vars(self.optimizer)["__reduce_ex__"] = _refuse_to_copy
        self.checkpoints = OptimizerCheckpoints(self.optimizer, sharded)
        self.sharded = sharded
        sharded.hold(self.held)
        directory = self._settings.sharded_memory

        def measured(peak_bytes: int, iteration: int) -> None:
            write_peak(Path(directory), group.rank, peak_bytes)
            if is_first:  # iterations before were followed, which took time
                record(sharded.order, iteration)

        if directory:
            MemoryProbe(sharded, self.optimizer, measured)
        record_unasked(model, sharded)
        return sharded

    def _check_optimizer(self, names: Mapping[int, str]) -> None:
        if any(self.optimizer.state.values()):
            raise UserError(
                f"{_SYNC}: the optimizer has a state already, which would not be sharded: make "
                "DistributedOptimizer before the first step, with model=, and load checkpoints "
                "after that"
            )
        for each in optimizer_parameters(self.optimizer):
            if id(each) not in names:
                raise UserError(
                    f"{_SYNC}: a parameter of the optimizer, of shape {tuple(each.shape)}, is not "
                    "the model's"
                )

    def _units(
        self, model: nn.Module, named: Sequence[tuple[str, Tensor]], names: Mapping[int, str]
    ) -> tuple[list[Unit], Order | None]:
        sizes = {name: each.nbytes for name, each in named}
        if self._given is not None:
            buckets, path = self._given.strategy.buckets, self._settings.strategy
            known = {name for bucket in buckets for name in bucket.parameters}
            trained = {name for name, each in named if each.requires_grad} | known
            check_model(path, self._given, {name: sizes[name] for name in sizes if name in trained})
            numbers = range(len(buckets))
            order = Order(
                tuple(sorted(numbers, key=lambda number: buckets[number].gather_place)),
                tuple(sorted(numbers, key=lambda number: buckets[number].reduce_place)),
            )
            return units_of(model, names, [each.parameters for each in buckets], path), order
        try:
            units = units_of(model, names, block_units(sizes), _SYNC)
        except UserError:  # blocks that share parameters with others
            units = [Unit(tuple(sizes))]
        if distributed.get_rank() == 0:
            tell(f"{_SYNC}: {len(units)} units: {_described(units, sizes)}")
        return units, None

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Raise ``RuntimeError`` if an update would not be that of all ranks."""
        if self.sharded is None:
            if any(each.grad is not None for each in optimizer_parameters(optimizer)):
                raise unknown_model(FSDP2)
            return
        if self.sharded.has_held:
            raise RuntimeError(
                f"byteprophet: {_SYNC}: step() after backward passes in no_sync() alone: make the "
                "last one of a step outside"
            )
        ours = {id(each) for _, each in self.sharded.parameters}
        for each in optimizer_parameters(optimizer):
            if each.requires_grad and id(each) not in ours:
                raise RuntimeError(
                    f"byteprophet: {_SYNC}: a parameter of shape {tuple(each.shape)} is not the "
                    "sharded model's: make the optimizer again, with all parameters in the model"
                )
        self.sharded.reshard()


class _Calls(Calls):
    def __init__(self, sharding: _Sharding) -> None:
        super().__init__(FSDP2)
        self._sharding = sharding
        self._zero_grad = sharding.optimizer.zero_grad

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context, backward passes accumulate gradients and send none."""
        before = self._sharding.held
        self._hold(True)
        try:
            yield
        finally:
            self._hold(before)

    def _hold(self, held: bool) -> None:
        self._sharding.held = held
        if self._sharding.sharded is not None:
            self._sharding.sharded.hold(held)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, also what ``no_sync()`` has accumulated."""
        if self._sharding.sharded is not None:
            self._sharding.sharded.drop_held()
        self._zero_grad(set_to_none)

    def sharded_state_dict(self) -> dict[str, Any]:
        """The optimizer's state, with this rank's shards only."""
        checkpoints = self._sharding.checkpoints
        if checkpoints is None:
            return dict(self._sharding.optimizer.state_dict())
        return checkpoints.sharded_state_dict()

    def load_sharded_state_dict(self, state: dict[str, Any]) -> None:
        """Load what the same rank of a job of the same size has saved."""
        checkpoints = self._sharding.checkpoints
        if checkpoints is None:
            self._sharding.optimizer.load_state_dict(state)
        else:
            checkpoints.load_sharded_state_dict(state)


def shard(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    *,
    model: nn.Module | None,
    passes: int,
    given: Used | None,
    settings: RuntimeSettings,
) -> Optimizer:
    """Let FSDP2 shard the model of ``optimizer``; all ranks must call this.

    All ranks then have rank 0's parameters. ``passes``: backward passes per step, 1. Without a
    ``model``, it is the module of the first forward pass. Raises ``ValueError`` if there is no
    process group, and ``UserError`` if the model cannot be sharded, or does not fit the strategy.
    """
    check_group(FSDP2)
    parameters = optimizer_parameters(optimizer)
    if any(replaced.is_replaced(each) for each in parameters):
        raise RuntimeError(f"byteprophet: {_SYNC}: the model has two optimizers: use one")
    sharding = _Sharding(optimizer, check_named(named_parameters or []), given, settings)
    give_calls(optimizer, _Calls(sharding), passes)
    if distributed.get_world_size() == 1:
        return optimizer
    other_synchronisers.refuse_optimizer(optimizer)
    optimizer.register_step_pre_hook(sharding.before_step)
    if model is not None:
        sharding.shard(model)
        return optimizer

    def found(module: nn.Module) -> None:
        sharded = sharding.shard(module)
        # Torch has chosen the hooks of this forward pass already.
        sharded.begin_forward()
        state: Any = fully_shard.state(module)  # type: ignore[attr-defined]
        state._pre_forward(module, (), {})

    at_first_forward(parameters, found, f"{_SYNC} needs the model", "give model=")
    return optimizer


def _refuse_to_copy(_protocol: object) -> NoReturn:
    raise RuntimeError(
        f"byteprophet: {_SYNC}: the optimizer cannot be pickled or copied, because each rank has "
        "shards only: save its state_dict(), or its sharded_state_dict()"
    )


def _refuse(model: nn.Module) -> None:
    """Raise ``RuntimeError`` if ``model`` is compiled, or has another synchroniser.

    Raises ``UserError`` if this torch is too old.
    """
    if missing := next((name for name in _NEWEST if not hasattr(FSDPModule, name)), None):
        raise UserError(
            f"{_SYNC}: torch {torch.__version__} has no FSDPModule.{missing}(): use torch 2.13, or "
            "another sync"
        )
    if isinstance(model, FSDPModule) and model in other_synchronisers.replaced:
        raise RuntimeError(f"byteprophet: {_SYNC}: the model has two optimizers: use one")
    other_synchronisers.refuse_within(model, dict(model.named_parameters()))
    if module_calls.is_compiled(model):
        raise RuntimeError(
            f"byteprophet: {_SYNC}: {type(model).__name__} is compiled, and its hooks would be, "
            "too: compile its parts"
        )


def _described(units: Sequence[Unit], sizes_bytes: Mapping[str, int]) -> str:
    """What the units are that no strategy says."""
    if len(units) == 1:
        return "all of the model"
    parts = [[sizes_bytes[name] for name in unit.names] for unit in units]
    blocks = parts.count(parts[-1])
    rest = ", and the rest" if blocks < len(units) else ""
    return f"{blocks} equal blocks{rest}"


def _record(
    units: Sequence[Unit],
    sizes_bytes: Mapping[str, int],
    frozen: Container[str],
    model: int,
    order: Order,
    since: int,
) -> None:
    """Record that ``units`` are in use from iteration ``since`` on, in the model of that number."""
    buckets = tuple(
        Bucket(
            unit.names,
            len(units) + order.reduces.index(number),
            order.gathers.index(number),
            sharded=True,
        )
        for number, unit in enumerate(units)
    )
    record_strategy(Strategy(FSDP2, buckets), sizes_bytes, since, model, frozen=frozen)
